#!/usr/bin/env python3
"""Checks who includes whom. Usage: check_includes.py [ROOT]; prints FILE:LINE: what is wrong, and exits 1 if anything is.

A layer is a folder of src/. It may include the header of its own name and the row files (.def) of the layers listed for it below, and
anything of its own; <layer>/<layer>.h is all that others see of a layer, SHARED apart. The public headers include each other only.

A layer may have rooms, folders of its own, and a room may have rooms. A room may include what lies beside the rooms around it, its own files, and the rooms listed for it.
What lies beside the rooms of a layer may include any of them; what lies beside the rooms of a room is what they share, and may include none."""
import re
import sys
from pathlib import Path

LAYERS = {
    "base": "",
    "num": "base",
    "chip": "base num",
    "op": "base num chip",
    "ir": "base num chip op",
    "capture": "base num chip op ir",
    "analysis": "base num chip op ir",
    "pass": "base num chip op ir analysis",
    "kernel": "base num chip op kernels",
    "kernels": "base num chip op kernel",
    "device": "base num chip op kernel",
    "comm": "base num op kernel",
    "plan": "base num chip op ir pass kernel",
    "engine": "base num chip op ir pass kernel comm capture device plan",
    "serve": "base num chip op ir pass kernel comm device plan engine",
    "train": "base num chip op ir pass kernel capture device plan engine",
    "lab": "base num chip op ir pass kernel comm capture device plan engine serve train",
    "cli": "",
    "python": "cli",
    "sim": "base num chip",   # and the driver's interface, device/cuda.def and device/cuda_abi.h
}

ROOMS = {
    "pass": {
        "clean": "",
        "fuse": "clean",
        "attention": "clean fuse",
        "precision": "fuse attention",
        "step": "clean attention",
        "shard": "fuse step",
        "gradient": "",
    },
    "sim": {
        "ptx": "",
        "math": "ptx",
        "machine": "ptx math",
        "isa": "ptx math machine",
        "decode": "ptx math machine isa",
        "launch": "ptx math machine isa decode",
        "driver": "ptx math machine isa decode launch",
        "runtime": "",
    },
    "kernels": {
        "cpu": "",
        "gpu": "",
        "reference": "",
        "library": "",
        "move": "cpu gpu",
        "quantize": "cpu gpu",
        "norm": "cpu gpu quantize",
        "softmax": "cpu gpu",
        "loss": "cpu gpu",
        "dropout": "cpu gpu",
        "pointwise": "cpu gpu",
        "rotary": "cpu gpu",
        "cache": "cpu gpu move quantize rotary",
        "reduce": "cpu gpu",
        "route": "cpu gpu",
        "index": "cpu gpu move quantize",
        "scan": "cpu gpu move pointwise",
        "sample": "cpu gpu move",
        "collective": "cpu",
        "optimizer": "cpu gpu",
        "gemm": "cpu gpu move quantize library",
        "attention": "cpu gpu cache quantize library",
        "conv": "cpu gpu move gemm",
        "mqa_logits": "cpu gpu attention",
    },
    "kernels/gpu": {
        "ptx": "",
        "pipe": "ptx",
        "plain": "",
        "epilogue": "ptx plain",
        "host": "",
        "rows": "ptx plain host",
    },
    "kernels/gemm": {
        "cpu": "",
        "plain": "",
        "dequantise": "",
        "skinny": "plain",
        "wgmma": "plain dequantise skinny",
        "tcgen05": "plain dequantise",
        "library": "plain skinny",
    },
    "kernels/attention": {
        "cpu": "",
        "plain": "",
        "splitkv": "plain",
        "tf32x3": "plain",
        "tile": "plain",
        "wgmma": "plain",
        "tcgen05": "plain",
        "decode": "plain",
        "library": "plain",
    },
}

# Headers of pure arithmetic that device code compiles, too: any file of kernels may include them, and they each other.
SHARED = {"num/small.h", "num/philox.h", "num/rules.h", "op/scores.h", "op/sampling.h", "op/pointwise.h", "op/optimizer.h", "op/dropping.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def layer_of(path):
    """The layer that a file belongs to, by its path from the root; None for the public headers."""
    parts = path.parts
    return None if parts[0] == "include" else parts[1] if parts[0] == "src" else parts[0]


def room_of(layer, folders):
    """The room that a file lies in, by the folders below its layer: "pass/fuse", "kernels/gemm/wgmma"; the layer for what lies beside its rooms."""
    room = layer
    for folder in folders:
        if folder not in ROOMS.get(room, {}):
            break
        room += "/" + folder
    return room


def lacks_room(layer, folders):
    """The folder of a layer with rooms, or of a room with rooms, that is none of them; None: there is no such."""
    room = room_of(layer, folders)
    if room not in ROOMS:
        return None
    below = folders[room.count("/"):]
    return f"{room}/{below[0]}" if below else None


def may_use(room, other):
    """May files of a room include and call those of the other, which is of the same layer?"""
    own, others = room.split("/"), other.split("/")
    shared = next((i for i, (a, b) in enumerate(zip(own, others)) if a != b), min(len(own), len(others)))
    if shared == len(others):
        return True
    if shared == len(own):
        return shared == 1
    return others[shared] in ROOMS["/".join(own[:shared])][own[shared]].split()


def fault(layer, room, file, included):
    """Why a file of that layer and room may not include this, or None."""
    parts = Path(included).parts
    if parts[0] == "deepwell":
        return None if layer != "sim" else "the simulator is a driver and knows nothing of the library"
    if layer is None:
        return "a public header includes public headers only"
    if len(parts) == 1:
        return None if (file.parent / included).exists() else "no such file beside it; name it from its layer, as in \"base/base.h\""
    owner = parts[0]
    if owner == layer:
        other = room_of(layer, parts[1:-1])
        return None if may_use(room, other) else f"the room {room} may not include {other}"
    if layer == "sim" and included in ("device/cuda.def", "device/cuda_abi.h"):
        return None
    if owner not in LAYERS:
        return f"{owner} is no layer"
    if layer == "cli":
        return "the command uses the public interface only"
    if owner not in LAYERS[layer].split():
        return f"{layer} may not include {owner}"
    if included in SHARED and (layer == "kernels" or "/".join(file.parts[-2:]) in SHARED):
        return None
    if len(parts) == 2 and (parts[1] == f"{owner}.h" or parts[1].endswith(".def")):
        return None
    if layer == "kernel" and owner == "kernels" and parts[-1].endswith("ways.def"):
        return None
    return f"{owner}/{owner}.h is all that other layers may include"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    files = [file for folder in ("include", "src", "kernels", "sim", "python") for file in sorted((root / folder).rglob("*"))]
    checked = faults = 0
    for file in files:
        if file.suffix not in (".c", ".h", ".def", ".cu", ".cuh"):
            continue
        path = file.relative_to(root)
        layer = layer_of(path)
        if layer is not None and layer not in LAYERS:
            print(f"{path}: {layer} is no layer; add it to scripts/check_includes.py with what it may include")
            faults += 1
            continue
        folders = path.parts[2 if path.parts[0] == "src" else 1:-1]
        room, unknown = room_of(layer, folders), lacks_room(layer, folders)
        if unknown:
            print(f"{path}: {unknown} is no room; add it to ROOMS in scripts/check_includes.py with the rooms that it may include")
            faults += 1
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            checked += 1
            why = fault(layer, room, file, match.group(1))
            if why:
                print(f"{path}:{number}: includes \"{match.group(1)}\": {why}")
                faults += 1
    if checked == 0:
        print(f"{root}: no include found: not the root of the project")
        return 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
