"""What the text of a kernel says of its flow: which instructions come before and behind one, and what they touch. Whatever is not understood answers no."""
import re

LABEL = re.compile(r"(\$?[\w$]+):\s*$")
BRANCH = re.compile(r"(?:@!?%?\w+\s+)?bra(?:\.uni)?\s+(\$?[\w$]+)\s*;")
ACCESS = re.compile(r"(?:@!?%?\w+\s+)?((?:ld|st|atom|red|ldmatrix|stmatrix|cp|mbarrier|wgmma|tcgen05|bar|barrier|fence|membar|multimem|call|brx)\b[\w.:]*)\s*([^;]*)")


def body(text):
    """The lines of the only kernel, stripped, numbered as in the text from 0."""
    return [re.sub(r"//.*", "", line).strip() for line in text.split("\n")]


def ways(lines):
    """(those that may come next, those that may have come before) of every line."""
    labels = {m[1]: i for i, line in enumerate(lines) if (m := LABEL.match(line))}
    after = []
    for i, line in enumerate(lines):
        branch = BRANCH.match(line)
        leaves = re.match(r"(ret|exit|trap)\s*;", line) or (branch and not line.startswith("@"))
        after.append(([] if leaves or i + 1 == len(lines) else [i + 1]) + ([labels[branch[1]]] if branch and branch[1] in labels else []))
    before = [[] for _ in lines]
    for i, others in enumerate(after):
        for other in others:
            before[other].append(i)
    return after, before


def reach(lines, edges, start):
    """Lines on all ways from start on, up to a barrier of the whole CTA."""
    seen, left = set(), list(edges[start])
    while left:
        at = left.pop()
        if at in seen or re.match(r"bar\.sync\s+0\s*;", lines[at]):
            continue
        seen.add(at)
        left += edges[at]
    return seen


def variables_of(lines, register, shared, seen=()):
    """The shared variables that an address in the register may lie in; None: not known."""
    found = set()
    if register in seen:
        return found
    for line in lines:
        instruction = re.match(r"(?:@!?%?\w+\s+)?([a-z][\w.:]*)\s+(\{[^}]*\}|[^,;]+),?\s*([^;]*);", line)
        if not instruction or register not in re.findall(r"%\w+", instruction[2]) or re.match(r"st\.", instruction[1]):
            continue
        if not re.match(r"(mov|add)\.[us](32|64)$", instruction[1]):
            return None
        words = [word.strip() for word in instruction[3].split(",")]
        bases = [word for word in words if word in shared]
        if not bases:
            inner = [variables_of(lines, word, shared, (*seen, register)) for word in words if word.startswith("%r")]
            bases = [name for names in inner if names for name in names]
        if not bases:
            return None
        found.update(bases)
    return found or None


def touched(lines, at, shared):
    """Shared variables that the lines touch (None: not known), and whether they leave global memory alone."""
    names, only_shared = set(), True
    for i in sorted(at):
        access = ACCESS.match(lines[i])
        if not access:
            continue
        if re.match(r"(ld|st)\.(param|local|const)", access[1]):
            continue
        if re.match(r"(ld|st)\.global", access[1]):
            only_shared = False
            continue
        place = re.search(r"\[([%\w$]+)", access[2])
        if not re.match(r"(ld|st)\.shared", access[1]) or not place:
            return None, False
        of_place = {place[1]} if place[1] in shared else variables_of(lines, place[1], shared)
        if of_place is None:
            return None, False
        names |= of_place
    return names, only_shared


def orders_nothing(text, line):
    """The bar.sync 0 of that line: behind it, up to the next ones, come accesses of some shared variables alone, and before it, from those before on, none of these."""
    lines = body(text)
    if not re.match(r"bar\.sync\s+0\s*;", lines[line - 1]) or len(re.findall(r"\.entry\b", text)) != 1:
        return False
    shared = set(re.findall(r"\.shared\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$]+)", text))
    after, before = ways(lines)
    behind, alone = touched(lines, reach(lines, after, line - 1), shared)
    ahead, _ = touched(lines, reach(lines, before, line - 1), shared)
    return behind is not None and ahead is not None and alone and not behind & ahead


def registers_of_products(lines, line):
    """Those of the products that follow a wgmma.fence."""
    used = set()
    for one in lines[line:]:
        if one.startswith(("wgmma.fence", "wgmma.wait_group", "ret")):
            break
        if one.startswith("wgmma.mma_async"):
            used.update(re.findall(r"%\w+", " ".join(re.findall(r"\{([^}]*)\}", one))))
    return used


def is_fenced_on_every_way(text, line):
    """On every way to the wgmma.fence of that line there is another one behind the last instruction of threads that reads or writes a register of the products that follow."""
    lines = body(text)
    used = registers_of_products(lines, line)
    _, before = ways(lines)
    if not used or "brx" in text:
        return False
    seen, left = set(), list(before[line - 1])
    while left:
        at = left.pop()
        if at in seen or (lines[at].startswith("wgmma.fence") and at != line - 1):
            continue
        seen.add(at)
        if (not before[at] and lines[at]) or (not lines[at].startswith("wgmma.") and used & set(re.findall(r"%\w+", lines[at]))):
            return False
        left += before[at]
    return True


def is_fenced_before(text, line):
    """Every way to the wgmma.fence of that line comes by the one before it in the text, and what stands between the two touches no register of the products that follow."""
    lines = body(text)
    earlier = [i for i in range(line - 1) if lines[i].startswith("wgmma.fence")]
    if not earlier:
        return False
    between = range(earlier[-1] + 1, line - 1)
    inner = {LABEL.match(lines[i])[1] for i in between if LABEL.match(lines[i])}
    if any(m[1] in inner for i, one in enumerate(lines) if i not in between and (m := BRANCH.match(one))) or "brx" in text:
        return False
    used = registers_of_products(lines, line)
    for i in between:
        written = re.match(r"(?:@!?%?\w+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+)", lines[i])
        if written and used & set(re.findall(r"%\w+", written[1])):
            return False
    return bool(used)
