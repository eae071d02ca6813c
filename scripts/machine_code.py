#!/usr/bin/env python3
"""Compares the GPU code of two builds. Usage: machine_code.py BEFORE AFTER [IMAGE..]: two folders of fatbins (build/images), and which of them; exits 1 where code differs.

Of machine code the text of nvdisasm is compared, of PTX the text. In both nvcc writes names of static functions with the path of the source in them, as a hash and a
file's name (_INTERNAL_<hash>_..), so these parts are taken out, and so is how far nvdisasm moves columns for such a name. Which nvdisasm that is: scripts/sass.py."""
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sass import disassemble, read_entries

PATH_IN_NAME = re.compile(r"(_Z+N)?\d*_INTERNAL_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}")
SHOWN = 4   # lines of a difference


def lines_of(kind, code):
    text = disassemble(code) if kind == "machine code" else code.rstrip(b"\0").decode()
    return [" ".join(line.split()) for line in PATH_IN_NAME.sub(r"\1_INTERNAL", text).splitlines()]


def compare(before, after):
    """What differs between two fatbins, as lines."""
    old, new = read_entries(before), read_entries(after)
    found = [f"{kind} for sm_{architecture} is in one of them alone" for kind, architecture in sorted(old.keys() ^ new.keys())]
    for kind, architecture in sorted(old.keys() & new.keys()):
        if old[kind, architecture] == new[kind, architecture]:
            continue
        was, now = lines_of(kind, old[kind, architecture]), lines_of(kind, new[kind, architecture])
        if was == now:
            continue
        different = [(a, b) for a, b in zip(was, now) if a != b]
        found.append(f"{kind} for sm_{architecture}: {len(different) + abs(len(was) - len(now))} of {max(len(was), len(now))} lines")
        found += [f"    {sign} {line}" for pair in different[:SHOWN] for sign, line in zip("-+", pair)]
    return found


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    before, after = Path(sys.argv[1]), Path(sys.argv[2])
    was, now = ({path.name for path in folder.glob("*.fatbin") if not sys.argv[3:] or path.stem in sys.argv[3:]} for folder in (before, after))
    both = sorted(was & now)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(both, pool.map(lambda name: compare(before / name, after / name), both)))
    for name in sorted(was ^ now):
        found[name] = [f"is in {before if name in was else after} alone"]
    for name, lines in sorted(found.items()):
        if lines:
            print("\n  ".join([f"{name} differs:", *lines]))
    equal = sum(not lines for lines in found.values())
    print(f"{equal} of {len(found)} images have the same code")
    return 0 if found and equal == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
