#!/usr/bin/env python3
"""Checks which files of src/ call each other, by the symbols of compiled objects. Usage: check_calls.py BUILD; exits 1 if anything is wrong.

A file calls files of its own layer and of the layers that check_includes.py lists for it; a file of a room calls files of its room and of
the rooms listed for that. No files call each other in a circle, but for the recursions below, which their headers name."""
import subprocess
import sys
from pathlib import Path

from check_includes import LAYERS, ROOMS, room_of

ROOT = Path(__file__).resolve().parent.parent

# Files that call each other, by the beginnings of their paths, and why.
RECURSIONS = [
    (("base/dim",), "an expression is simplified by making its parts anew"),
    (("op/chain.c", "op/op.c"), "a chain is an op whose steps are ops"),
    (("analysis/value",), "a formula is simplified by making formulas"),
]


def read_objects(build):
    """{file: (defined symbols, used symbols)} of the objects of src/, files named from there."""
    names = {}
    for path in Path(build).glob("CMakeFiles/dw_*.dir/src/**/*.o"):
        name = str(path).split(".dir/src/", 1)[1][: -len(".o")]
        if (ROOT / "src" / name).exists():   # else it has moved since
            names[str(path)] = name
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
    return {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in calls if name in reached[name]}


def is_named(circle):
    return any(all(name.startswith(beginnings) for name in circle) for beginnings, _ in RECURSIONS)


def find_climbs(calls):
    """Calls of a layer or room that the caller's does not know."""
    for name, called in calls.items():
        layer, *folders = name.split("/")[:-1]
        for other, symbol in called.items():
            owner, *others = other.split("/")[:-1]
            room, owners_room = room_of(layer, folders), room_of(owner, others)
            if owner != layer and owner not in LAYERS[layer].split():
                yield f"src/{name} calls {symbol} of src/{other}: {layer} may not call {owner}"
            elif owner == layer and room is not None and owners_room != room and owners_room not in ROOMS[layer][room].split():
                yield f"src/{name} calls {symbol} of src/{other}: the room {layer}/{room} may not call it"


def main():
    calls = find_calls(read_objects(sys.argv[1]))
    if not calls:
        print(f"{sys.argv[1]}: no objects of src/ are there: not a build folder, or nothing is built")
        return 1
    faults = [f"these files call each other in a circle: {' '.join(circle)}" for circle in sorted(find_circles(calls)) if not is_named(circle)]
    faults += find_climbs(calls)
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
