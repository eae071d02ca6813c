"""Mutants of a PTX text: each wait, fence, arrive, expect_tx, commit, init, barrier, atomic, request of cluster launch control, swizzle, descriptor field and scale id removed or changed in turn.

mutants(text) gives (class, line, what was done, mutated text, text in which a trap stands there instead). An instruction that takes several is several
mutants. Only what comes in PTX is changed: no addresses, no arithmetic on data."""
import re

STATEMENT = re.compile(r"(?P<guard>@!?%?[\w$]+\s+)?(?P<op>[a-z][a-z0-9_]*(?:\.[\w:]+)+)(?P<args>(?:\s+[^;]*)?);")
WORDS = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
UNIT = 1 << 4   # bytes of a descriptor's fields


def operands(args):
    return [word.strip() for word in WORDS.findall(args)]


def changed(guard, op, words, index, kind, change):
    """The instruction with one operand changed: of a number at once, of a register in a new one."""
    word = words[index]
    new = list(words)
    if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", word):
        value = int(word, 0)
        new[index] = str(value ^ change if kind == "xor" else value + change)
        return f"{guard}{op} {', '.join(new)};"
    bits = 64 if op.startswith("wgmma") or kind.endswith("64") else 16 if op.startswith(("cp.async.bulk", "tcgen05.commit")) else 32
    kind = kind[:3]
    new[index] = "mutated_value"
    how = f"xor.b{bits}" if kind == "xor" else f"add.u{bits}"
    return f"{{ .reg .b{bits} mutated_value; {how} mutated_value, {word}, {change}; {guard}{op} {', '.join(new)}; }}"


def of_instruction(guard, op, words, swizzles, flips):
    """(class, what, text) of one instruction. swizzles: an xor by a register may be one. flips: registers that are 0 or 1, which flip phases."""
    def removed(kind):
        return kind, "removed", ""

    if op.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
        yield "wait", "removed", f"{guard}setp.eq.u32 {words[0].split('|')[0]}, 0, 0;"
        if ".parity" in op:
            yield "wait", "other parity", changed(guard, op, words, 2, "xor", 1)
    elif re.match(r"(cp\.async\.bulk|cp\.async|wgmma)\.wait_group", op):
        yield removed("wait")
        yield "wait", "one more may be pending", f"{guard}{op} {int(words[0], 0) + 1};"
    elif op in ("cp.async.wait_all",) or op.startswith("barrier.cluster.wait"):
        yield removed("wait")
    elif op.startswith(("fence.", "membar.", "wgmma.fence", "tcgen05.fence")):
        yield removed("fence")
    elif op.startswith("tcgen05.wait"):
        yield removed("wait")
    elif op.startswith("tcgen05.commit"):
        yield removed("commit")
        if "multicast::cluster" in op:
            yield "commit", "to one CTA fewer", changed(guard, op, words, 1, "xor", 2)
            yield "commit", "to another CTA", changed(guard, op, words, 1, "xor", 1)
    elif op.startswith("tcgen05.alloc") and re.fullmatch(r"\d+", words[1]) and int(words[1]) > 32:
        yield "init", "half the columns", f"{guard}{op} {words[0]}, {int(words[1]) // 2};"
    elif op.startswith("clusterlaunchcontrol.try_cancel"):
        yield removed("launch")
        yield "launch", "twice", f"{guard}{op} {', '.join(words)}; {guard}{op} {', '.join(words)};"
        if "multicast" in op:
            yield "launch", "to the own CTA alone", f"{guard}{op.replace('.multicast::cluster::all', '')} {', '.join(words)};"
    elif op.startswith("clusterlaunchcontrol.query_cancel.is_canceled"):
        yield "launch", "always a decline", f"{guard}setp.ne.u32 {words[0]}, 0, 0;"
        yield "launch", "never a decline", f"{guard}setp.eq.u32 {words[0]}, 0, 0;"
    elif op.startswith("tcgen05.dealloc"):
        yield removed("commit")
    elif op.startswith("tcgen05.cp"):
        yield "descriptor", "start + 128 bytes", changed(guard, op, words, 1, "add64", 128 // UNIT)
        yield "descriptor", "stride", changed(guard, op, words, 1, "xor64", 512 // UNIT << 32)
        yield "scale", "one column on", f"{guard}{op} {words[0][:-1]} + 1], {words[1]};"
    elif op.startswith("tcgen05.mma"):
        yield from of_tcgen05(guard, op, words)
    elif op.startswith(("mbarrier.arrive.expect_tx", "mbarrier.arrive_drop.expect_tx")):
        yield removed("expect_tx")
        yield "expect_tx", "16 bytes more", changed(guard, op, words, len(words) - 1, "add", 16)
        yield "expect_tx", "16 bytes fewer", changed(guard, op, words, len(words) - 1, "add", -16)
        yield "expect_tx", "an arrival without bytes", f"{guard}{op.replace('.expect_tx', '')} {', '.join(words[:-1])};"
    elif op.startswith("mbarrier.expect_tx"):
        yield removed("expect_tx")
        yield "expect_tx", "16 bytes more", changed(guard, op, words, 1, "add", 16)
    elif op.startswith(("mbarrier.arrive", "cp.async.mbarrier.arrive")):
        yield removed("arrive")
        yield "arrive", "twice", f"{guard}{op} {', '.join(words)}; {guard}{op} {', '.join(words)};"
    elif op.startswith(("barrier.cluster.arrive", "bar.arrive", "barrier.arrive", "barrier.cta.arrive")):
        yield removed("arrive")
    elif re.match(r"(cp\.async\.bulk|cp\.async|wgmma)\.commit_group", op):
        yield removed("commit")
    elif op.startswith("mbarrier.init"):
        yield removed("init")
        yield "init", "one arrival more", changed(guard, op, words, 1, "add", 1)
    elif re.match(r"(bar|barrier)(\.cta)?\.(sync|red)|bar\.warp\.sync", op):
        if ".red" not in op:
            yield removed("barrier")
        if len(words) == 2 and op.startswith("bar.sync"):
            yield "barrier", "32 threads more", changed(guard, op, words, 1, "add", 32)
    elif op.startswith("mapa"):
        yield "arrive", "of another CTA", changed(guard, op, words, 2, "xor", 1)
    elif op.startswith("and.b32") and words[2] in ("-16777217", "4278190079", "0xfeffffff"):
        yield "arrive", "of the own CTA", f"{guard}mov.b32 {words[0]}, {words[1]};"
    elif op.startswith(("atom.", "red.")):
        bits = re.search(r"\d+", op.rsplit(".", 1)[1])[0]
        yield "atomic", "removed", f"{guard}mov.b{bits} {words[0]}, 0;" if op.startswith("atom.") and words[0] != "_" else ""
    elif op.startswith("xor.b32") and len(words) == 3:
        if words[2] == "1" or words[2] in flips:
            yield "wait", "the phase stays", f"{guard}mov.b32 {words[0]}, {words[1]};"
        elif swizzles and not re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", words[2]):
            yield "swizzle", "not applied", f"{guard}mov.b32 {words[0]}, {words[1]};"
    elif op.startswith("wgmma.mma_async"):
        for index, name in ((1, "a"), (2, "b")):
            if words[index].startswith("{"):
                continue
            for bit in (62, 63):
                yield "swizzle", f"bit {bit} of descriptor {name}", changed(guard, op, words, index, "xor", 1 << bit)
            for what, value in (("start + 32 bytes", 32 // UNIT), ("start + 1024 bytes", 1024 // UNIT)):
                yield "descriptor", f"{what} of {name}", changed(guard, op, words, index, "add", value)
            yield "descriptor", f"stride of {name}", changed(guard, op, words, index, "xor", 512 // UNIT << 32)
            yield "descriptor", f"leading offset of {name}", changed(guard, op, words, index, "xor", 1 << 16)
        flip = list(words)
        flip[4] = str(-int(flip[4]))
        yield "descriptor", "sign of a", f"{guard}{op} {', '.join(flip)};"
    elif op.startswith("cp.async.bulk") and "multicast::cluster" in op:
        index = 3 if ".tensor" in op else 4
        yield "descriptor", "multicast to the first alone", changed(guard, op, words, index, "xor", 2)


def of_tcgen05(guard, op, words):
    """tcgen05.mma [d], a, b, idesc, ([scales of a], [scales of b],) accumulate (PTX ISA 9.7.16.4.1 and 2)."""
    scaled = "block_scale" in op
    for index, name in ((1, "a"), (2, "b")):
        if words[index].startswith("["):
            continue
        for bit in (61, 62, 63):
            yield "swizzle", f"bit {bit} of descriptor {name}", changed(guard, op, words, index, "xor64", 1 << bit)
        for what, value in (("start + 32 bytes", 32 // UNIT), ("start + 1024 bytes", 1024 // UNIT)):
            yield "descriptor", f"{what} of {name}", changed(guard, op, words, index, "add64", value)
        yield "descriptor", f"stride of {name}", changed(guard, op, words, index, "xor64", 512 // UNIT << 32)
        yield "descriptor", f"leading offset of {name}", changed(guard, op, words, index, "xor64", 1 << 16)
        yield "descriptor", f"version of {name}", changed(guard, op, words, index, "xor64", 1 << 46)
    fields = [("type of a", 7), ("type of b", 10), ("order of a", 15), ("order of b", 16), ("n", 17), ("n, halved", 21), ("m", 27 if scaled else 24)]
    fields += [] if scaled else [("type of d", 4)]
    for name, bit in fields:
        yield "descriptor", f"{name} in the instruction descriptor", changed(guard, op, words, 3, "xor", 1 << bit)
    if scaled:
        for name, bit in (("type of scales", 23), ("id of the scales of a", 29), ("id of the scales of a, upper", 30), ("id of the scales of b", 4), ("id of the scales of b, upper", 5)):
            yield "scale", name, changed(guard, op, words, 3, "xor", 1 << bit)
        for index, name in ((4, "a"), (5, "b")):
            new = list(words)
            new[index] = words[index][:-1] + " + 1]"
            yield "scale", f"column of the scales of {name}", f"{guard}{op} {', '.join(new)};"
    accumulate = 6 if scaled else 5 if words[4].startswith("{") else 4
    yield "descriptor", "never accumulates", f"{{ .reg .pred mutated_never; setp.ne.u32 mutated_never, 0, 0; {guard}{op} {', '.join(words[:accumulate] + ['mutated_never'] + words[accumulate + 1:])}; }}"
    yield "descriptor", "always accumulates", f"{{ .reg .pred mutated_always; setp.eq.u32 mutated_always, 0, 0; {guard}{op} {', '.join(words[:accumulate] + ['mutated_always'] + words[accumulate + 1:])}; }}"


def statements(text):
    """(match, offset) of every instruction; comments are blanked, so that nothing in them is one."""
    blank = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    for m in STATEMENT.finditer(blank):
        yield m


def mutants(text):
    swizzles = re.search(r"cp\.async\.bulk\.tensor|wgmma\.mma_async|tcgen05\.mma", text) is not None
    flips = set(re.findall(r"selp\.[bsu]32\s+(%\w+),\s*1,\s*0,", text))
    for m in statements(text):
        guard, op, words = m["guard"] or "", m["op"], operands(m["args"])
        begin, end = m.start(), m.end()
        trap = f"{guard}trap;"
        if op.startswith("xor.b32") and words[-1] in flips:   # where it is never 1 nothing is flipped
            trap = f"{{ .reg .pred mutated_flips; setp.ne.u32 mutated_flips, {words[-1]}, 0; @mutated_flips trap; }}"
        for kind, what, new in of_instruction(guard, op, words, swizzles, flips):
            yield (kind, text.count("\n", 0, m.start("op")) + 1, op, what, text[:begin] + new + text[end:], text[:begin] + trap + " " + text[begin:])
