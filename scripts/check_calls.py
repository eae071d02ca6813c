#!/usr/bin/env python3
"""Checks which files call each other, by the symbols of compiled objects. Usage: check_calls.py BUILD; exits 1 if anything is wrong.

A file calls files of its own layer and of the layers that check_includes.py lists for it; a file of a room calls files of its room and of
the rooms listed for that. No files call each other in a circle, but for the recursions below, which their headers name; and no headers
include each other in one."""
import re
import subprocess
import sys
from pathlib import Path

from check_includes import INCLUDE, LAYERS, layer_of, may_use, room_of

ROOT = Path(__file__).resolve().parent.parent

# The header that they share, the files that call each other by the beginnings of their paths, and why.
RECURSIONS = [
    ("src/base/dim_node.h", ("src/base/dim",), "an expression is simplified by making its parts anew"),
    ("src/op/family.h", ("src/op/chain.c", "src/op/line.c", "src/op/op.c", "src/op/scan.c"), "a chain is an op whose steps are ops, and so is a choice with steps"),
    ("src/analysis/value.h", ("src/analysis/value",), "a formula is simplified by making formulas"),
    ("src/kernel/kernel.h", ("src/kernel/registry.c", "kernels/conv/gemm_cuda.c"), "a convolution is a product, whose kernel is of the same rows"),
    ("sim/isa/decoder.h", ("sim/decode/decode.c", "sim/decode/match.c", "sim/decode/flow.c"), "what is called is decoded where the call is"),
]
MOST_RECURSIONS = 9
OBJECT = re.compile(r"/CMakeFiles/(?:dw_(?!test_|images)\w+|deepwell_command)\.dir/((?:src|kernels|sim)/.*)\.o$")


def read_objects(build):
    """{file: (defined symbols, used symbols)} of the objects of src/, kernels/ and sim/, files named from the root."""
    names = {}
    for path in Path(build).resolve().glob("CMakeFiles/*.dir/**/*.c.o"):
        match = OBJECT.search(path.as_posix())
        if match and (ROOT / match[1]).exists():   # else it has moved since
            names[str(path)] = match[1]
    found = {name: (set(), set()) for name in names.values()}
    if not names:
        return found
    for line in subprocess.run(["nm", "-A", *names], capture_output=True, text=True, check=True).stdout.splitlines():
        path, symbol = line.rsplit(":", 1)
        *_, kind, name = symbol.split()
        if kind in "TDRBU":
            found[names[path]][kind == "U"].add(name)
    return found


def find_calls(objects):
    """{file: {files that it calls: a symbol}}"""
    owners = {symbol: name for name, (defined, _) in objects.items() for symbol in defined}
    return {name: {owners[symbol]: symbol for symbol in sorted(used) if owners.get(symbol, name) != name} for name, (_, used) in objects.items()}


def find_header_includes(root):
    """{header: {headers that it includes}}"""
    headers = [path for folder in ("src", "kernels", "sim") for path in sorted((root / folder).rglob("*")) if path.suffix in (".h", ".cuh")]
    found = {}
    for path in headers:
        lines = [match[1] for match in map(INCLUDE.match, path.read_text().splitlines()) if match]
        included = [next((base / line for base in (path.parent, root / "src", root) if (base / line).is_file()), path) for line in lines]
        found[path.relative_to(root).as_posix()] = {other.resolve().relative_to(root).as_posix() for other in included if other != path}
    return found


def reach(calls, start):
    seen, todo = set(), [start]
    while todo:
        for name in calls.get(todo.pop(), ()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def find_circles(calls):
    reached = {name: reach(calls, name) for name in calls}
    return {tuple(sorted(other for other in reached[name] if name in reached.get(other, ()))) for name in calls if name in reached[name]}


def is_named(circle):
    return any(all(name.startswith(beginnings) for name in circle) for _, beginnings, _ in RECURSIONS)


def explain(circle, calls):
    """The circle, and what closes it."""
    lines = [f"these files call each other in a circle: {' '.join(circle)}"]
    return lines + [f"    {name} calls {calls[name][other]} of {other}" for name in circle for other in circle if other in calls[name]]


def find_unnamed(circles, root):
    """What is wrong with RECURSIONS: too many, no circle any more, or not named in the header."""
    if len(RECURSIONS) > MOST_RECURSIONS:
        yield f"check_calls.py names {len(RECURSIONS)} recursions; at most {MOST_RECURSIONS} may stay"
    for header, beginnings, _ in RECURSIONS:
        circle = next((circle for circle in circles if all(name.startswith(beginnings) for name in circle)), None)
        if circle is None:
            yield f"check_calls.py: files of {header} no longer call each other; delete the row"
            continue
        comment = (root / header).read_text().split("*/")[0] if (root / header).exists() else ""
        for name in circle:
            if not re.search(rf"call each other.*(?<!\w){re.escape(Path(name).name)}\b", comment, re.S):
                yield f"{header}: its first comment does not say that {Path(name).name} is one of those that call each other"


def place_of(name):
    """The layer and room of a file."""
    path = Path(name)
    layer = layer_of(path)
    return layer, room_of(layer, path.parts[2 if path.parts[0] == "src" else 1:-1])


def find_climbs(calls):
    """Calls of a layer or room that the caller's does not know. The command calls the public interface, wherever that is."""
    for name, called in calls.items():
        layer, room = place_of(name)
        for other, symbol in called.items():
            owner, owners_room = place_of(other)
            if owner != layer and layer != "cli" and owner not in LAYERS[layer].split():
                yield f"{name} calls {symbol} of {other}: {layer} may not call {owner}"
            elif owner == layer and not may_use(room, owners_room):
                yield f"{name} calls {symbol} of {other}: the room {room} may not call it"


def main():
    calls = find_calls(read_objects(sys.argv[1]))
    if not calls:
        print(f"{sys.argv[1]}: no objects of the library are there: not a build folder, or nothing is built")
        return 1
    circles = sorted(find_circles(calls))
    faults = [line for circle in circles if not is_named(circle) for line in explain(circle, calls)]
    faults += [f"these headers include each other: {' '.join(circle)}" for circle in sorted(find_circles(find_header_includes(ROOT)))]
    faults += [*find_unnamed(circles, ROOT), *find_climbs(calls)]
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
