"""Runs mutants (generate.py) of the kernels and cases in cases.txt on the simulator, and tells which went unnoticed.

    run.py [--build build] [--only TEXT] [--classes barrier,fence,..] [--part I/N] [--seeds 0,7,..] [--log FILE]

What the log has already is not run again, so that a run may be broken off.

A mutant is noticed when, under one of the schedules, a launch ends with a finding or results are wrong. One that is not under the first is tried with a trap in
its place: where that goes unnoticed, too, the case never comes there. What is left changes nothing by one of the rules below (equivalent_by_rule), is excluded by a row of
equivalent.txt, with its reason, or survives. Exit 1 when less than 95 % of all, or 90 % of a class with 10 mutants and more, are noticed."""
import argparse
import collections
import ctypes
import fnmatch
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import flow
import generate

HERE = os.path.dirname(os.path.abspath(__file__))
BUDGET = 20_000_000
SECONDS = 600   # of one run, on a machine however busy


def ptx_of_image(path):
    """The PTX in a fatbin: of several the one for the oldest architecture, as others say the same to other families."""
    image, texts = open(path, "rb").read(), {}
    at = 16
    while at < len(image):
        kind, _, header, payload, compressed = struct.unpack_from("<HHIQI", image, at)
        if kind == 1:
            data = image[at + header:at + header + (compressed or payload)]
            if data[:4] == b"\x28\xb5\x2f\xfd":
                size, = struct.unpack_from("<Q", image, at + 56)
                out = ctypes.create_string_buffer(size)
                zstd = ctypes.CDLL("libzstd.so.1")
                zstd.ZSTD_decompress.restype = ctypes.c_size_t
                assert zstd.ZSTD_decompress(out, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data))) == size
                data = out.raw
            architecture, = struct.unpack_from("<I", image, at + 28)
            texts[architecture] = data.rstrip(b"\0").decode()
        at += header + payload
    if not texts:
        raise ValueError(f"{path} holds no PTX")
    return texts[min(texts)]


def path_of_image(build, stem):
    """Where the fatbin lies that the build embeds: it may be another build's."""
    found = re.search(rf'\.incbin "([^"]*/{stem}\.fatbin)"', open(f"{build}/images/images.S").read())
    if found is None:
        raise SystemExit(f"{build}/images/images.S names no image {stem}: is the case's first word a row of kernels/image.def?")
    return found[1]


def of_entries(text, entries):
    """The module with these kernels alone; functions that they may call stay."""
    pieces = re.split(r"(?m)^(?=(?:\.visible |\.weak )?\.entry )", text)
    kept = [piece for piece in pieces if not re.match(r"(\.visible |\.weak )?\.entry ", piece) or re.match(rf"(\.visible |\.weak )?\.entry ({'|'.join(entries)})\b", piece)]
    assert len(kept) == 1 + len(entries), f"not all of these kernels: {entries}"
    return "".join(kept)


class Case:
    """A text and what runs it: a line of conformance, or a case of tests/sim/ptx on its own."""
    def __init__(self, row, build):
        words = row.split(None, 3)
        self.build, self.name = build, words[1]
        if words[0] == "ptx":
            self.text, self.row, self.line = open(f"tests/sim/ptx/{words[1]}.ptx").read(), None, None
        else:
            self.text, self.row, self.line = of_entries(ptx_of_image(path_of_image(build, words[0])), words[1].split("+")), words[2], words[3]
        self.options = words[2] if words[0] == "ptx" and len(words) > 2 else ""
        if self.line and "=" in self.line.split()[0]:
            self.options, self.line = self.line.split(None, 1)
        self.chip = "b200" if re.search(r"(?m)^\.target\s+sm_10", self.text) else "h200"

    def run(self, text, seed, digest=None):
        """What noticed the text: "", "finding", "wrong result". digest: a file that gets what its products did."""
        driver = f"{self.build}/libdeepwell-sim.so"
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(text)
            file.flush()
            options = f"{self.chip},seed={seed},threads=1,budget={BUDGET}" + (f",digest={digest}" if digest else "") + (f",{self.options}" if self.options else "")
            if self.line is None:
                command = [f"{self.build}/tests/tool_sim_ptx", driver, file.name]
            else:
                options += f",ptx={file.name}"
                command = [f"{self.build}/tests/test_conform_kernels", "--device", f"cuda:0,driver={driver}", "--seeds", "1", "--kernel", self.row, "--once", *self.line.split()]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, "DEEPWELL_SIM": options})
        said = done.stdout + done.stderr
        if done.returncode == 0 and (self.line is None or not re.search(r"(?m)^0 runs", said)):
            return ""
        if done.returncode == 0:
            raise RuntimeError(f"{self.name}: the row {self.row} does not take the line")
        if done.returncode < 0 or re.search(r"SYNTAX|UNSUPPORTED|cannot be (read|loaded|fetched)", said):
            raise RuntimeError(f"{self.name}: {said[-2000:]}")
        return "finding" if re.search(r"INVALID: kernel|deepwell-sim: ", said) else "wrong result"


    def products(self, text, seed):
        """What the products of the text were, read and wrote, as one number for each launch."""
        with tempfile.NamedTemporaryFile("r", suffix=".digest") as file:
            self.run(text, seed, file.name)
            return file.read()


def equivalent_by_rule(case, kind, line, op, seed, mutated):
    """Why the mutant changes nothing, or None. A descriptor, swizzle, scale: the products are the same, read the same places and write the same. A barrier: the
    CTA is one warp, which executes in order; or between it and the next one nothing touches memory but initialisations of mbarriers and allocations, so that the
    next one orders all that it orders; or what comes between the barriers before and behind it and itself touches other shared variables on its two sides (flow.py). A wgmma.fence: every
    way to it comes by the one before, and nothing between touches what its products use; or on every way there is another one behind the last touch of that. The only tcgen05.fence of a kernel whose waits acquire: without it they order tensor memory (9.7.16.6.3); or one on one of whose sides,
    or right behind which, are allocations alone, which are synchronous (9.7.16.6.1) and ordered by barriers. tcgen05.wait::ld: the next tcgen05 instruction that is no load waits for the same loads (9.7.16.6.2.1.2), or there
    is none; what the registers get does not depend on it (9.7.16.6.4.5). A fence.mbarrier_init where no CTA talks to another: copies reach mbarriers by the generic proxy (9.7.9.25), which barriers
    order; or in front of an arrival at the cluster's barrier that releases what was initialised."""
    if kind in ("descriptor", "swizzle", "scale") and re.match(r"wgmma|tcgen05", op) and case.products(case.text, seed) == case.products(mutated, seed):
        return "the products are the same"
    if kind == "barrier" and case.line is None and (re.search(r"(?m)^// launch:.*block=(\d+)", case.text) or [0, "32"])[1] == "32" and "cluster" not in op:
        return "one warp"
    if op == "bar.sync":
        behind = re.match(r"(?:\s*(?:@!?%?\w+\s+)?(?:mbarrier\.init|fence\.mbarrier_init|tcgen05\.alloc|tcgen05\.relinquish_alloc_permit|mov|add|shl|and|setp)\b[^;]*;)*\s*(?:bar\.sync\s+0|barrier\.cluster\.arrive)",
                          "\n".join(case.text.split("\n")[line:]))
        if behind and re.match(r"\s*bar\.sync\s+0;", case.text.split("\n")[line - 1]):
            return "the next barrier orders the same"
        if flow.orders_nothing(case.text, line):
            return "other variables on its two sides"
    if op.startswith("fence.mbarrier_init"):
        if re.search(r"(?m)^\.reqnctapercluster 1, 1, 1$", case.text) or not re.search(r"barrier\.cluster|multicast::cluster|\bmapa\b", case.text):
            return "no other CTA to tell"
        arrival = re.search(r"barrier\.cluster\.arrive[\w.]*", "\n".join(case.text.split("\n")[line:]))
        if arrival and "relaxed" not in arrival[0]:
            return "the cluster's barrier tells"
    if op.startswith("wgmma.fence") and (flow.is_fenced_before(case.text, line) or flow.is_fenced_on_every_way(case.text, line)):
        return "the fence before it covers the same"
    if op.startswith("tcgen05.fence") and case.text.count("tcgen05.fence") == 1 and not re.search(r"mbarrier\.(try|test)_wait[\w.]*\.relaxed", case.text):
        return "ordered by waits"
    if op.startswith("tcgen05.fence"):
        lines = case.text.split("\n")
        before = re.findall(r"tcgen05\.(?!fence)\w+", "\n".join(lines[:line - 1]))
        behind = re.findall(r"tcgen05\.(?!fence)\w+", "\n".join(lines[line:]))
        if all(word in ("tcgen05.alloc", "tcgen05.relinquish_alloc_permit") for word in before) or all(word == "tcgen05.dealloc" for word in behind):
            return "beside allocations alone"
        if re.match(r"(?:\s*(?:bar\.warp\.sync|mov|add|shl)\b[^;]*;)*\s*tcgen05\.dealloc", "\n".join(lines[line:])):
            return "beside allocations alone"
    if op.startswith("tcgen05.wait::ld"):
        later = re.findall(r"tcgen05\.(?!ld)[\w:]+", "\n".join(case.text.split("\n")[line:]))
        if later and later[0].startswith("tcgen05.wait::ld"):
            return "waited for behind it"
    return None


def read_rows(path):
    return [line for line in (line.split("#")[0].strip() for line in open(path)) if line]


def excluded(rows, case, kind, line, op, what):
    for row in rows:
        name, a_class, an_op, a_what, reason = (cell.strip() for cell in row.split("|", 4))
        if fnmatch.fnmatch(case, name) and fnmatch.fnmatch(kind, a_class) and fnmatch.fnmatch(op, an_op) and (fnmatch.fnmatch(what, a_what) or f"{what} at {line}" == a_what):
            return reason
    return None


def judge(case, seeds, kind, line, op, mutated, trapped):
    for i, seed in enumerate(seeds):
        noticed = case.run(mutated, seed)
        if noticed:
            return noticed, seed
        if i == 0 and not case.run(trapped, seed):
            return "not reached", None
    return ("equivalent by rule", None) if equivalent_by_rule(case, kind, line, op, seeds[0], mutated) else ("survives", None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=os.environ.get("DEEPWELL_BUILD", "build"))
    parser.add_argument("--only", default="")
    parser.add_argument("--classes", default="", help="of these alone")
    parser.add_argument("--part", default="0/1", help="I/N: of all mutants, every n-th")
    parser.add_argument("--seeds", default="7,0,12,33")
    parser.add_argument("--log")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    part, parts = (int(number) for number in options.part.split("/"))
    equivalent = read_rows(f"{HERE}/equivalent.txt")
    counts = collections.defaultdict(collections.Counter)
    known = {}
    if options.log and os.path.exists(options.log):
        for line in open(options.log):
            row = json.loads(line)
            known[row["case"], row["line"], row["what"]] = row["result"], row["seed"]
    log = open(options.log, "a") if options.log else None
    number = 0
    for row in read_rows(f"{HERE}/cases.txt"):
        if options.only not in row:
            continue
        case = Case(row, options.build)
        found = list(generate.mutants(case.text))
        chosen = [m for i, m in enumerate(found) if (number + i) % parts == part and (not options.classes or m[0] in options.classes.split(","))]
        number += len(found)
        if not chosen:
            continue
        for seed in seeds if any((case.name, m[1], m[3]) not in known for m in chosen) else []:
            noticed = case.run(case.text, seed)
            if noticed:
                sys.exit(f"{case.name}, seed {seed}: {noticed} without any change")
        if chosen[0][4] and not any(case.run(m[5], seeds[0]) for m in chosen[:: max(1, len(chosen) // 4)]) and (case.name, chosen[0][1], chosen[0][3]) not in known:
            sys.exit(f"{case.name}: the line does not come to this kernel")
        for kind, line, op, what, mutated, trapped in chosen:
            reason = excluded(equivalent, case.name, kind, line, op, what)
            before = known.get((case.name, line, what))
            result, seed = ("equivalent", None) if reason else before if before and before[0] != "equivalent" else judge(case, seeds, kind, line, op, mutated, trapped)
            counts[kind][result] += 1
            if log and not before:
                print(json.dumps({"case": case.name, "class": kind, "line": line, "op": op, "what": what, "result": result, "seed": seed}), file=log, flush=True)
            if result == "survives":
                print(f"unnoticed: {case.name}, line {line}: {op}: {what}", flush=True)
    good = report(counts)
    sys.exit(0 if good else 1)


def report(counts):
    print("| class | mutants | by a finding | by a wrong result | unnoticed | equivalent by rule | by reason | not reached |\n|---|---|---|---|---|---|---|---|")
    total, good = collections.Counter(), True
    for kind, of in sorted(counts.items()):
        total.update(of)
        print_row(kind, of)
        noticed, all_of = of["finding"] + of["wrong result"], of["finding"] + of["wrong result"] + of["survives"]
        good &= all_of < 10 or noticed >= 0.9 * all_of
    print_row("all", total)
    noticed = total["finding"] + total["wrong result"]
    return good and noticed >= 0.95 * (noticed + total["survives"])


def print_row(name, of):
    noticed = of["finding"] + of["wrong result"]
    share = f"{of['survives']} ({100 * noticed / (noticed + of['survives']):.0f} % noticed)" if noticed + of["survives"] else "0"
    print(f"| {name} | {sum(of.values())} | {of['finding']} | {of['wrong result']} | {share} | {of['equivalent by rule']} | {of['equivalent']} | {of['not reached']} |")


if __name__ == "__main__":
    main()
