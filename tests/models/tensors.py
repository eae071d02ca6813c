"""Reads safetensors files into numpy, bf16 included, and measures errors. It writes none."""
import json
import struct

import ml_dtypes
import numpy as np

TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
         "I64": np.int64, "I32": np.int32, "U8": np.uint8, "BOOL": np.bool_}


def read(path):
    """{name: array} of a safetensors file."""
    with open(path, "rb") as f:
        data = f.read()
    (header_bytes,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + header_bytes])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = data[8 + header_bytes + begin:8 + header_bytes + end]
        tensors[name] = np.frombuffer(raw, TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def relative_error(got, want):
    """Norm of the difference over the norm of `want`, in fp64; infinite where shapes or types differ or something is not finite."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    got, want = got.astype(np.float64), want.astype(np.float64)
    if not np.isfinite(got).all():
        return float("inf")
    norm = np.linalg.norm(want)
    difference = np.linalg.norm(got - want)
    return float(difference / norm) if norm else float(difference > 0) * float("inf") if difference else 0.0
