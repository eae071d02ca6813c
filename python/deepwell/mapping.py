"""Weights where they lie in files. A model that is made on ``meta`` takes them without a copy, and each rank copies its slices alone.

    with torch.device("meta"):
        model = Model()
    model.load_state_dict(deepwell.mapped("model-1.safetensors", "model-2.safetensors"), assign=True)
"""
from __future__ import annotations

import json
import mmap
import os

import torch

from .errors import Corrupt, Invalid

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
           "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}


def mapped(*paths: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of safetensors files, by name, in memory that is mapped: a page is read when somebody looks at it. What is written into them stays in this process. Raises Corrupt for a file that is none,
    Invalid for a name that is there twice."""
    found: dict[str, torch.Tensor] = {}
    for path in paths:
        for name, tensor in _tensors(os.fspath(path)).items():
            if name in found:
                raise Invalid(f"{os.fspath(path)}: tensor '{name}' is in a file before, too")
            found[name] = tensor
    return found


def _tensors(path: str) -> dict[str, torch.Tensor]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < 8:
            raise Corrupt(f"{path} is no safetensors file: it has fewer than 8 bytes")
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    length = int.from_bytes(memory[:8], "little")
    try:
        header = json.loads(memory[8:8 + length]) if length <= len(memory) - 8 else None
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise Corrupt(f"{path} is no safetensors file: it does not begin with a header")
    header.pop("__metadata__", None)
    return {name: _tensor(path, memory, 8 + length, name, row) for name, row in header.items()}


def _tensor(path: str, memory: mmap.mmap, first: int, name: str, row: object) -> torch.Tensor:
    try:
        dtype, shape, (begin, end) = _DTYPES[row["dtype"]], [int(n) for n in row["shape"]], row["data_offsets"]     # type: ignore[index]
        count = 1
        for size in shape:
            count *= size
        good = min(shape, default=0) >= 0 and 0 <= begin <= end <= len(memory) - first and end - begin == count * dtype.itemsize
    except (KeyError, TypeError, ValueError):
        good = False
    if not good:
        raise Corrupt(f"{path}: tensor '{name}' has a format, shape or place that cannot be")
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    if (first + begin) % dtype.itemsize:        # files of old writers
        return torch.frombuffer(bytearray(memory[first + begin:first + end]), dtype=dtype).reshape(shape)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=first + begin).reshape(shape)
