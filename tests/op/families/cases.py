"""How cases are drawn and written: operands, lines, and seeds of their own."""

import contextlib
import pathlib
import zlib

import numpy as np
import torch

FOLDER = pathlib.Path(__file__).parents[1] / "cases"
NAMES = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64", torch.bool: "bool", torch.uint8: "u8",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2",
}
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTS = [torch.int64, torch.int32, torch.uint8]
TOLERANCE = {torch.float32: 2e-7, torch.float64: 2e-15}
nan, inf = float("nan"), float("inf")
MX = ["mxfp8", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "nvfp4", "nvfp4_row"]
FP8 = ["fp8_1x128", "fp8_128x128", "fp8_row", "fp8_tensor"]


def number(x, dtype):
    if dtype == torch.bool or not dtype.is_floating_point:
        return str(int(x))
    x = float(x)
    if x != x:
        return "nan"
    if x in (inf, -inf):
        return "inf" if x > 0 else "-inf"
    if x == int(x) and abs(x) < 1e6:
        return "-0.0" if x == 0 and str(x)[0] == "-" else str(int(x))
    return repr(x) if dtype == torch.float64 else str(np.float32(x))


def tensor(x, name=None):
    """name: the format when it is a block format, whose values x holds."""
    if x is None:
        return "-"
    values = ",".join(number(v, x.dtype) for v in (x.to(torch.float32) if x.dtype.itemsize == 1 and x.dtype.is_floating_point else x).flatten().tolist())
    return f"{name or NAMES[x.dtype]}[{','.join(map(str, x.shape))}]({values})"


def attribute(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(str, value)) + "]"
    if isinstance(value, torch.dtype):
        return NAMES[value]
    return str(value)


class Cases:
    def __init__(self, name):
        self.name, self.lines = name, []

    def note(self, text):
        self.lines.append(f"# {text}")

    def add(self, op, inputs, outputs, tolerance=None, rank=None, **attrs):
        """inputs, outputs: tensors, None, or (tensor, format). rank: inputs are those of all ranks, and the outputs are of this one."""
        outputs = outputs if isinstance(outputs, list) else [outputs]
        text = [op]
        if attrs:
            text.append("{" + ",".join(f"{k}={attribute(v)}" for k, v in attrs.items() if v is not None) + "}")
        text += ["among"] if rank is not None else []
        for x in inputs:
            text.append(tensor(*x) if isinstance(x, tuple) else tensor(x))
        text += ["at", str(rank)] if rank is not None else []
        text.append("->")
        text += [tensor(*y) if isinstance(y, tuple) else tensor(y) for y in outputs]
        first = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]
        tolerance = TOLERANCE.get(first.dtype, 0) if tolerance is None else tolerance
        if tolerance:
            text.append(f"~ {tolerance:g}")
        self.lines.append(" ".join(text))

    def write(self):
        FOLDER.mkdir(exist_ok=True)
        head = "# Written by tests/op/make_cases.py from PyTorch's results; do not edit.\n"
        (FOLDER / f"{self.name}.txt").write_text(head + "\n".join(self.lines) + "\n")


def normal(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(shape, dtype=torch.float64) * scale).round(decimals=3).to(torch.float32).to(dtype)   # few digits, all bits


def integers(low, high, *shape, dtype=torch.int64):
    return torch.randint(low, high, shape, dtype=torch.int64).to(dtype)


def special(dtype):
    return torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 88.0, -88.0, inf, -inf, nan], dtype=dtype)


def begin(name):
    """Each op draws from a seed of its own, so that a new one changes no other's cases."""
    torch.manual_seed(zlib.crc32(name.encode()))


@contextlib.contextmanager
def apart(name):
    """What is drawn within comes from the op's own seed, and what is drawn behind is as if nothing had been."""
    with torch.random.fork_rng(devices=[]):
        begin(name)
        yield


def exact_in(name, *shape):
    """Values that the block format holds without error: small integers times a power of two, the largest in each block."""
    grid = torch.tensor([0.0, 32, -32, 64, -64, 128, -128, 256, -256])
    x = grid[torch.randint(0, len(grid), shape)]
    x[..., ::16] = 448.0 if name in FP8 else 384.0
    return x


def gradients(function, dout, *inputs):
    """Of the inputs, in f64, of what function makes of them in f64, whose gradients are dout."""
    with torch.enable_grad():
        wide = [x.double().clone().requires_grad_() for x in inputs]
        return torch.autograd.grad(function(*wide), wide, dout.double(), materialize_grads=True)
