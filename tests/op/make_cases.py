#!/usr/bin/env python3
"""Writes tests/op/cases/*.txt: inputs from fixed seeds and the results of PyTorch, which is the independent implementation that the references
are held against. Floating-point ops are computed by PyTorch in f64 on the rounded inputs and rounded once, which is what a reference promises.

Each family is drawn from a seed of its own, and so is each pointwise op: a new one changes no other's cases. In any other family the cases of a new op stand in `with apart(name):`, wherever they belong.
A pointwise op needs no entry here where PyTorch has a function of its name.

Run it when an op is added:  build/venv/bin/python tests/op/make_cases.py   (needs torch and numpy; the files are committed, so tests need neither).
types.txt and errors.txt are written by hand."""

import contextlib
import pathlib
import re
import zlib

import numpy as np
import torch
import torch.nn.functional as F

FOLDER = pathlib.Path(__file__).parent / "cases"
FORMULAS = pathlib.Path(__file__).parents[2] / "src" / "op" / "pointwise.def"
NAMES = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64", torch.bool: "bool", torch.uint8: "u8",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2",
}
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTS = [torch.int64, torch.int32, torch.uint8]
TOLERANCE = {torch.float32: 2e-7, torch.float64: 2e-15}
nan, inf = float("nan"), float("inf")


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

    def add(self, op, inputs, outputs, tolerance=None, at=None, **attrs):
        """inputs, outputs: tensors, None, or (tensor, format). at: inputs are those of all ranks, and the outputs are of this one."""
        outputs = outputs if isinstance(outputs, list) else [outputs]
        text = [op]
        if attrs:
            text.append("{" + ",".join(f"{k}={attribute(v)}" for k, v in attrs.items() if v is not None) + "}")
        text += ["among"] if at is not None else []
        for x in inputs:
            text.append(tensor(*x) if isinstance(x, tuple) else tensor(x))
        text += ["at", str(at)] if at is not None else []
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


# ---- pointwise ----

# Ops that PyTorch has under another name, or with other defaults.
def slope_of(function):
    def slope(x):
        x = x.detach().clone().requires_grad_()
        function(x).backward(torch.ones_like(x))
        return x.grad
    return slope


OTHERWISE = {
    "silu_slope": slope_of(F.silu), "gelu_slope": slope_of(F.gelu), "gelu_tanh_slope": slope_of(lambda x: F.gelu(x, approximate="tanh")),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus": lambda x: F.softplus(x, threshold=1000), "floordiv": torch.floor_divide,
}


def of_torch(name):
    """The function that an op is in PyTorch: of its own name, where OTHERWISE does not say."""
    if name in OTHERWISE:
        return OTHERWISE[name]
    for module in (torch, F, torch.special):
        if hasattr(module, name):
            return getattr(module, name)
    raise SystemExit(f"make_cases: PyTorch has no '{name}': say in OTHERWISE what the op is")


def ops(kinds):
    """The ops of src/op/pointwise.def that have a row of one of these kinds, in its order."""
    return re.findall(rf"^OP_(?:{kinds})\(\s*(\w+),", FORMULAS.read_text(), flags=re.M)


def begin(name):
    """Each op draws from a seed of its own, so that a new one changes no other's cases."""
    torch.manual_seed(zlib.crc32(name.encode()))


@contextlib.contextmanager
def apart(name):
    """What is drawn within comes from the op's own seed, and what is drawn behind is as if nothing had been."""
    with torch.random.fork_rng(devices=[]):
        begin(name)
        yield


def pointwise():
    c = Cases("pointwise")
    whole = ops("INTEGER1")
    c.note("one operand: ordinary values, then signed zeros, halves, large values, infinities, NaN")
    for name in ops("REAL1|LONG1|TEST1"):
        f = of_torch(name)
        begin(name)
        for dtype in FLOATS:
            x = torch.cat([normal(5, dtype=dtype, scale=2), special(dtype)])
            y = f(x.double())
            c.add(name, [x], y if y.dtype == torch.bool else y.to(dtype))
        if name in whole:
            for dtype in INTS:
                x = integers(0 if dtype == torch.uint8 else -5, 6, 2, 3, dtype=dtype)
                c.add(name, [x], f(x))
    c.add("neg", [torch.tensor([-(2**63), 2**63 - 1])], torch.tensor([-(2**63), -(2**63) + 1]))
    c.add("abs", [torch.tensor([-128, 127], dtype=torch.int8)], torch.tensor([-128, 127], dtype=torch.int8).abs())
    c.add("isnan", [integers(0, 2, 3)], torch.zeros(3, dtype=torch.bool))
    begin("not")
    c.add("not", [torch.tensor([True, False])], torch.tensor([False, True]))
    for dtype in INTS:
        x = integers(0, 9, 4, dtype=dtype)
        c.add("not", [x], ~x)
    c.add("exp", [torch.zeros(0, 3)], torch.zeros(0, 3))
    c.add("neg", [torch.tensor(1.5)], torch.tensor(-1.5))

    begin("cast")
    c.note("casts")
    values = torch.cat([special(torch.float32)[:9], normal(4, scale=30)])
    for to in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.bool):
        c.add("cast", [values], values.to(to), tolerance=0, to=to)
    for to in (torch.bfloat16, torch.float16, torch.float64, torch.bool):
        c.add("cast", [special(torch.float32)], special(torch.float32).to(to), tolerance=0, to=to)
    small = normal(6, scale=20)
    for to in (torch.float8_e4m3fn, torch.float8_e5m2):
        c.add("cast", [small], small.to(to), tolerance=0, to=to)
        c.add("cast", [small.to(to)], small.to(to).to(torch.float32), tolerance=0, to=torch.float32)
    large = torch.tensor([2**53 + 1, -(2**53) - 1, 2**62 + 2**38 + 1, 2**63 - 1, -(2**63), 0, 300, -300, 16777217])
    for to in (torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.int16, torch.uint8, torch.int8, torch.bool):
        c.add("cast", [large], large.to(to), tolerance=0, to=to)
    c.add("cast", [torch.tensor([True, False])], torch.tensor([1.0, 0.0]), to=torch.float32)
    c.add("cast", [torch.tensor([nan, inf, -inf, 1e30], dtype=torch.float32)], torch.tensor([0, 2**63 - 1, -(2**63), 2**63 - 1]), to=torch.int64)
    c.note("to narrower integers: toward zero into 64 bits, which then wrap")
    c.add("cast", [torch.tensor([300.7, -1.5])], torch.tensor([44, 255], dtype=torch.uint8), to=torch.uint8)

    c.note("two operands, broadcast")
    whole = ops("INTEGER2|INTEGER_TEST2|INTEGER_DIVIDE2")
    shapes = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (3,)), ((2, 1, 3), (2, 1)), ((0, 3), (1, 3)), ((1,), (0,))]
    for name in ops("REAL2|LONG2|TEST2|DIVIDE2"):
        f = of_torch(name)
        begin(name)
        for dtype in FLOATS:
            for sx, sy in shapes if dtype == torch.float32 else shapes[:2]:
                x, y = normal(*sx, dtype=dtype, scale=3), normal(*sy, dtype=dtype, scale=2)
                if name == "pow":
                    x = x.abs()
                z = f(x.double(), y.double())
                c.add(name, [x, y], z if z.dtype == torch.bool else z.to(dtype))
        x, y = torch.meshgrid(torch.tensor([0.0, -0.0, 1.0, -2.0, inf, -inf, nan]), torch.tensor([1.0, -1.0, 0.5, inf, -inf, nan]), indexing="ij")
        x, y = x.reshape(-1).contiguous(), y.reshape(-1).contiguous()
        z = f(x.double(), y.double())
        c.add(name, [x, y], z if z.dtype == torch.bool else z.float())
        if name not in whole:
            continue
        for dtype in INTS:
            x, y = integers(0 if dtype == torch.uint8 else -7, 8, 3, 4, dtype=dtype), integers(1, 4, 4, dtype=dtype)
            if dtype != torch.uint8 and name != "pow":
                y[0] = -2
            c.add(name, [x, y], f(x, y))
    top = torch.tensor([2**63 - 1, -(2**63), -(2**63)])
    c.add("add", [top, torch.tensor([1, -1, 0])], torch.tensor([-(2**63), 2**63 - 1, -(2**63)]))
    c.add("mul", [top, torch.tensor([2, -1, 3])], top * torch.tensor([2, -1, 3]))
    c.add("floordiv", [top, torch.tensor([-1, -1, 2])], torch.tensor([-(2**63) + 1, -(2**63), -(2**62)]))
    c.add("remainder", [top, torch.tensor([-1, -1, 7])], torch.tensor([0, 0, -(2**63) % 7]))
    c.add("add", [torch.tensor([200, 100], dtype=torch.uint8), torch.tensor([100, 100], dtype=torch.uint8)], torch.tensor([44, 200], dtype=torch.uint8))
    c.add("pow", [torch.tensor([2, -1, 1, 3, -1]), torch.tensor([-1, -3, -5, -2, -2])], torch.tensor([0, -1, 1, 0, 1]))
    c.add("floordiv", [torch.tensor([1.0, -1.0, 7.0, 0.3]), torch.tensor([0.0, 0.0, -2.0, 0.1])], torch.floor_divide(torch.tensor([1.0, -1.0, 7.0, 0.3]).double(), torch.tensor([0.0, 0.0, -2.0, 0.1]).double()).float())
    t, f = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    for name, g in (("add", torch.logical_or), ("mul", torch.logical_and), ("and", torch.logical_and), ("or", torch.logical_or), ("xor", torch.logical_xor), ("eq", torch.eq), ("ne", torch.ne), ("maximum", torch.logical_or), ("minimum", torch.logical_and), ("lt", torch.lt)):
        c.add(name, [t, f], g(t, f))
    for name, g in (("and", torch.bitwise_and), ("or", torch.bitwise_or), ("xor", torch.bitwise_xor)):
        begin(name)
        for dtype in INTS:
            x, y = integers(0, 99, 2, 3, dtype=dtype), integers(0, 99, 3, dtype=dtype)
            c.add(name, [x, y], g(x, y))

    begin("where")
    c.note("where")
    condition = torch.tensor([[True], [False]])
    for dtype in FLOATS + [torch.int64, torch.bool]:
        x = normal(2, 3, dtype=dtype) if dtype.is_floating_point else integers(0, 2, 2, 3, dtype=dtype)
        y = normal(3, dtype=dtype) if dtype.is_floating_point else integers(0, 2, 3, dtype=dtype)
        c.add("where", [condition, x, y], torch.where(condition, x, y))
    c.add("where", [torch.tensor([True, False, True]), torch.tensor([nan, 1.0, -inf]), torch.tensor(2.0)], torch.tensor([nan, 2.0, -inf]))
    c.write()


# ---- create, view, move ----

def create():
    c = Cases("create")
    for dtype in FLOATS + [torch.int64, torch.uint8]:
        c.add("fill", [], torch.full((2, 3), 3, dtype=dtype), shape=[2, 3], value=3, to=dtype)
    c.add("fill", [], torch.full((2,), -inf), shape=[2], value="-inf", to=torch.float32)
    c.add("fill", [], torch.full((), 0.1, dtype=torch.bfloat16), shape=[], value=0.1, to=torch.bfloat16)
    c.add("fill", [], torch.full((2, 0), 1.0), shape=[2, 0], value=1, to=torch.float32)
    c.add("fill", [], torch.full((2,), True), shape=[2], value=1, to=torch.bool)
    for dtype in (torch.int64, torch.int32, torch.float32, torch.bfloat16):
        c.add("iota", [], torch.arange(3, 13, 2, dtype=dtype), length=5, start=3, step=2, to=dtype)
    c.add("iota", [], torch.arange(2, -4, -3), length=2, start=2, step=-3, to=torch.int64)
    c.add("iota", [], torch.arange(0), length=0, start=0, step=1, to=torch.int64)
    c.add("size", [], torch.tensor(42), size=42)
    c.write()


def view():
    c = Cases("view")
    for x in (normal(2, 3, 4), integers(-9, 9, 2, 3, 4), normal(2, 3, 4, dtype=torch.bfloat16), integers(0, 2, 2, 3, 4, dtype=torch.bool), normal(2, 3, 4, dtype=torch.float64)):
        c.add("reshape", [x], x.reshape(6, 4), tolerance=0, shape=[6, 4])
        c.add("reshape", [x], x.reshape(2, 2, 1, 6), tolerance=0, shape=[2, 2, 1, 6])
        c.add("transpose", [x], x.permute(2, 0, 1), tolerance=0, order=[2, 0, 1])
        c.add("slice", [x], x[:, 1:3], tolerance=0, axis=1, start=1, end=3, step=1)
        c.add("slice", [x], x[:, :, 0:4:3], tolerance=0, axis=2, start=0, end=4, step=3)
    x = normal(1, 3, 1)
    c.add("reshape", [x], x.reshape(3), tolerance=0, shape=[3])
    c.add("reshape", [torch.tensor(2.5)], torch.tensor([[2.5]]), tolerance=0, shape=[1, 1])
    c.add("reshape", [torch.tensor([[2.5]])], torch.tensor(2.5), tolerance=0, shape=[])
    c.add("reshape", [torch.zeros(0, 3)], torch.zeros(3, 0, 2), tolerance=0, shape=[3, 0, 2])
    c.add("transpose", [torch.tensor(2.5)], torch.tensor(2.5), tolerance=0, order=[])
    c.add("broadcast", [x], x.expand(2, 3, 4), tolerance=0, shape=[2, 3, 4])
    c.add("broadcast", [x[0]], x[0].expand(2, 3, 2), tolerance=0, shape=[2, 3, 2])
    c.add("broadcast", [torch.tensor(7)], torch.tensor(7).expand(2, 2), tolerance=0, shape=[2, 2])
    c.add("broadcast", [normal(1, 2)], torch.zeros(0, 2), tolerance=0, shape=[0, 2])
    c.add("slice", [normal(4)], torch.zeros(0), tolerance=0, axis=0, start=4, end=4, step=1)
    c.add("slice", [torch.zeros(0)], torch.zeros(0), tolerance=0, axis=0, start=0, end=0, step=2)
    c.add("slice", [torch.arange(7)], torch.arange(7)[1:6:2], tolerance=0, axis=0, start=1, end=6, step=2)
    c.add("reshape", [torch.tensor([nan, -inf])], torch.tensor([[nan], [-inf]]), tolerance=0, shape=[2, 1])
    c.write()


def move():
    c = Cases("move")
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        make = (lambda *s: normal(*s, dtype=dtype)) if dtype.is_floating_point else (lambda *s: integers(0, 2, *s, dtype=dtype))
        x, y, z = make(2, 3), make(2, 1), make(2, 0)
        c.add("concat", [x, y, z, x], torch.cat([x, y, z, x], 1), tolerance=0, axis=1)
        c.add("concat", [x], x, tolerance=0, axis=0)
        padded = F.pad(x, (2, 1, 1, 0), value=1)
        c.add("pad", [x], padded, tolerance=0, before=[1, 2], after=[0, 1], value=1)
        square = make(2, 3, 4)
        for offset in (-1, 0, 2, 9, -9):
            c.add("tril", [square], square.tril(offset), tolerance=0, offset=offset)
            c.add("triu", [square], square.triu(offset), tolerance=0, offset=offset)
        base, part = make(3, 5), make(3, 2)
        c.add("slice_scatter", [base, part], torch.slice_scatter(base, part, 1, 1, 5, 2), tolerance=0, axis=1, start=1, step=2)
        c.add("slice_scatter", [base, make(0, 5)], base, tolerance=0, axis=0, start=3, step=1)
    c.add("pad", [normal(0, 2)], torch.full((1, 2), -inf), tolerance=0, before=[1, 0], after=[0, 0], value="-inf")
    c.add("tril", [torch.full((2, 2), nan)], torch.tensor([[nan, 0], [nan, nan]]), tolerance=0, offset=0)
    c.write()


def index():
    c = Cases("index")
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        make = (lambda *s: normal(*s, dtype=dtype)) if dtype.is_floating_point else (lambda *s: integers(-9, 9, *s, dtype=dtype))
        x = make(4, 3, 2)
        for itype in (torch.int64, torch.int32):
            i = torch.tensor([[0, 3], [-1, -4], [2, 2]], dtype=itype)
            c.add("take", [x, i], x[i.long()], tolerance=0, axis=0)
            j = torch.tensor([2, -1, -3, 0], dtype=itype)
            c.add("take", [x, j], x[:, j.long()], tolerance=0, axis=1)
            c.add("take", [x, j[0]], x[:, int(j[0])], tolerance=0, axis=1)
        c.add("take", [x, torch.zeros(0, dtype=torch.int64)], x[:, :, :0], tolerance=0, axis=2)
        i = integers(0, 3, 2, 5, 2)
        c.add("gather", [x, i], torch.gather(x, 1, i), tolerance=0, axis=1)
        c.add("gather", [x, torch.tensor([[[-1]]])], x[:1, -1:, :1], tolerance=0, axis=1)
        y = make(2, 5, 2)
        unique = torch.stack([torch.randperm(3) for _ in range(4)]).reshape(2, 2, 3).permute(0, 2, 1)[:, :2].contiguous()
        c.add("scatter", [x, unique, y], torch.scatter(x, 1, unique, y), tolerance=0, axis=1)
        c.add("scatter", [x, i, y], torch.scatter_add(x.double() if dtype.is_floating_point else x, 1, i, y.double() if dtype.is_floating_point else y).to(dtype), axis=1, accumulate=True, tolerance=1e-6 if dtype == torch.float32 else 0.03 if dtype == torch.bfloat16 else 0)
        a, b = torch.tensor([[0], [-1]]), torch.tensor([1, -2, 0])
        c.add("index", [x, a, b], x[a, b], tolerance=0, axis=0)
        c.add("index", [x, torch.tensor([2, 0]), torch.tensor([1, -1])], x[:, [2, 0], [1, -1]], tolerance=0, axis=1)
        c.add("index", [x, torch.tensor([1, 1])], x[:, :, [1, 1]], tolerance=0, axis=2)
        c.add("index", [x, torch.tensor(1), torch.tensor(2), torch.tensor(0)], x[1, 2, 0], tolerance=0, axis=0)
        v = make(2, 3, 2)
        c.add("index_put", [x, v, a, b], x.index_put((a, b), v), tolerance=0, axis=0)
        c.add("index_put", [x, make(2)[:1].reshape(()) * 0 + 1, a], x.index_put((a,), torch.ones((), dtype=dtype)), tolerance=0, axis=0)
        twice = torch.tensor([1, 1, -3])
        w = make(3, 3, 2)
        exact = x.double().index_put((twice,), w.double(), accumulate=True).to(dtype)
        c.add("index_put", [x, w, twice], exact, tolerance=1e-6 if dtype == torch.float32 else 0.03 if dtype == torch.bfloat16 else 0, axis=0, accumulate=True)
        rows = torch.arange(4)[:, None]
        column = torch.tensor([[0], [2], [1], [-1]])
        c.add("index_put", [x, v[:1, :1], rows, column], x.index_put((rows, column), v[:1, :1]), tolerance=0, axis=0)
    c.write()


# ---- reduce, scan, norm ----

def reduce():
    c = Cases("reduce")
    functions = {"sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "amin": torch.amin}
    for dtype in FLOATS:
        x = normal(2, 3, 4, dtype=dtype)
        for name, f in functions.items():
            for axes in ([0], [1], [2], [0, 2], [0, 1, 2]):
                c.add(name, [x], f(x.double(), axes).to(dtype), axes=axes)
            c.add(name, [x], f(x.double(), [1], keepdim=True).to(dtype), axes=[1], keep=True)
            special_x = torch.tensor([[1.0, nan, 2.0], [inf, 1.0, -inf], [-inf, -inf, -inf]], dtype=dtype)
            c.add(name, [special_x], f(special_x.double(), [1]).to(dtype), axes=[1])
        c.add("prod", [x], x.double().prod(1).to(dtype), axes=[1])
        c.add("argmax", [x], x.argmax(2), axis=2)
        c.add("argmin", [x], x.argmin(1, keepdim=True), axis=1, keep=True)
        ties = torch.tensor([[1.0, 2.0, 2.0], [nan, 3.0, nan], [-inf, -inf, -inf], [0.0, -0.0, 0.0]], dtype=dtype)
        c.add("argmax", [ties], torch.tensor([1, 0, 0, 0]), axis=1)
        c.add("argmin", [ties], torch.tensor([0, 0, 0, 0]), axis=1)
        c.add("any", [ties], ties.bool().any(1), axes=[1])
        c.add("all", [ties], ties.bool().all(1), axes=[1])
    for dtype in INTS + [torch.bool]:
        x = integers(0, 2 if dtype == torch.bool else 50, 3, 4, dtype=dtype)
        c.add("sum", [x], x.sum(1), axes=[1])
        c.add("prod", [x], x.prod(0), axes=[0])
        c.add("any", [x], x.bool().any(1), axes=[1])
        c.add("all", [x], x.bool().all(0, keepdim=True), axes=[0], keep=True)
        c.add("amax", [x], x.amax([0, 1]), axes=[0, 1])
        c.add("amin", [x], x.amin([1]), axes=[1])
        if dtype != torch.bool:
            c.add("argmax", [x], x.argmax(1), axis=1)
            c.add("argmin", [x], x.argmin(1), axis=1)
    big = torch.tensor([[2**62, 2**62, 2**53 + 1]])
    c.add("sum", [big], big.sum(1), axes=[1])
    c.add("amax", [torch.tensor([2**53 + 1, 2**53])], torch.tensor(2**53 + 1), axes=[0])
    empty = torch.zeros(2, 0)
    c.add("sum", [empty], empty.sum(1), axes=[1])
    c.add("prod", [empty], empty.prod(1), axes=[1])
    c.add("mean", [empty], empty.mean(1), axes=[1])
    c.add("any", [empty], empty.bool().any(1), axes=[1])
    c.add("all", [empty], empty.bool().all(1), axes=[1])
    c.add("amax", [empty], empty.amax(0), axes=[0])
    c.add("argmax", [empty], empty.argmax(0), axis=0)
    x = normal(2, 3)
    c.add("sum", [x], x, tolerance=0, axes=[])
    c.write()


def scan():
    c = Cases("scan")
    for dtype in FLOATS:
        x = normal(3, 4, dtype=dtype)
        for axis in (0, 1):
            y = x.double().cumsum(axis)
            c.add("cumsum", [x], y.to(dtype), axis=axis)
            c.add("cumsum", [x], (y - x.double()).to(dtype), axis=axis, exclusive=True, tolerance=1e-6)
            for descending in (False, True):
                v, i = x.sort(dim=axis, descending=descending, stable=True)
                c.add("sort", [x], [v, i], tolerance=0, axis=axis, descending=descending)
                v, i = x.topk(2, axis, largest=descending)
                c.add("topk", [x], [v, i], tolerance=0, axis=axis, length=2, largest=descending)
        odd = torch.tensor([2.0, nan, -inf, inf, 2.0, nan, -0.0, 0.0], dtype=dtype)
        for descending in (False, True):
            v, i = odd.sort(descending=descending, stable=True)
            c.add("sort", [odd], [v, i], tolerance=0, axis=0, descending=descending)
            c.add("topk", [odd], [v[:5], i[:5]], tolerance=0, axis=0, length=5, largest=descending)
    for dtype in INTS + [torch.bool]:
        x = integers(0, 2 if dtype == torch.bool else 9, 2, 7, dtype=dtype)
        c.add("cumsum", [x], x.cumsum(1), axis=1)
        c.add("cumsum", [x], x.cumsum(0) - x.long(), axis=0, exclusive=True)
        v, i = x.sort(dim=1, stable=True)
        c.add("sort", [x], [v, i], axis=1)
        v, i = x.sort(dim=1, descending=True, stable=True)
        c.add("topk", [x], [v[:, :3], i[:, :3]], axis=1, length=3, largest=True)
    long = torch.randperm(300).float() % 37
    v, i = long.sort(stable=True)
    c.add("sort", [long], [v, i], tolerance=0, axis=0)
    v, i = long.sort(descending=True, stable=True)
    c.add("topk", [long], [v[:40], i[:40]], tolerance=0, axis=0, length=40, largest=True)
    c.add("topk", [normal(2, 3)], [torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.int64)], tolerance=0, axis=1, length=0, largest=True)
    c.add("sort", [torch.zeros(0)], [torch.zeros(0), torch.zeros(0, dtype=torch.int64)], tolerance=0, axis=0)
    c.add("cumsum", [torch.zeros(2, 0)], torch.zeros(2, 0), tolerance=0, axis=1)
    big = torch.tensor([2**53 + 1, 2**53, 2**53 + 1])
    v, i = big.sort(stable=True)
    c.add("sort", [big], [v, i], axis=0)
    with apart("bincount"):
        n = integers(0, 5, 3, 4)
        c.add("bincount", [n], torch.bincount(n.flatten(), minlength=6), length=6)
    c.add("bincount", [torch.tensor([-1, 0, 7, 2, 2], dtype=torch.int32)], torch.tensor([1, 0, 2]), length=3)
    c.add("bincount", [torch.zeros(0, dtype=torch.int64)], torch.tensor([0, 0]), length=2)
    c.write()


def route():
    c = Cases("route")
    for ids, experts in ((integers(0, 5, 7, 2), 5), (integers(0, 3, 1, 4, dtype=torch.int32), 8), (torch.tensor([[2, -1], [0, 9], [2, 2]]), 3)):
        keys = torch.where((ids < 0) | (ids >= experts), experts, ids).flatten()
        order = keys.argsort(stable=True)
        counts = torch.bincount(keys, minlength=experts)[:experts]
        c.add("dispatch", [ids], [order // ids.shape[1], order.argsort().view(ids.shape), counts.cumsum(0).int()], tolerance=0, length=experts)
    for dtype in FLOATS:
        y, weights, place = normal(6, 5, dtype=dtype), normal(3, 2, dtype=dtype), torch.tensor([[0, 3], [5, 5], [2, 1]])
        c.add("combine", [y, place, weights], (y.double()[place] * weights.double()[:, :, None]).sum(1).to(dtype))
    c.write()


def norm():
    c = Cases("norm")
    for dtype in FLOATS:
        x, r = normal(2, 3, 5, dtype=dtype), normal(2, 3, 5, dtype=dtype)
        w, b = normal(5, dtype=dtype), normal(5, dtype=dtype)
        d, eps = [5], 1e-5
        layer = lambda x, w, b: F.layer_norm(x.double(), d, w if w is None else w.double(), b if b is None else b.double(), eps)
        rms = lambda x, w: F.rms_norm(x.double(), d, w if w is None else w.double(), eps)
        total = (x.double() + r.double()).to(dtype)
        c.add("layer_norm", [x, w, b], layer(x, w, b).to(dtype), eps=eps)
        c.add("layer_norm", [x], layer(x, None, None).to(dtype), eps=eps)
        c.add("layer_norm", [x, w], layer(x, w, None).to(dtype), eps=eps)
        c.add("layer_norm", [x, None, b], layer(x, None, b).to(dtype), eps=eps)
        c.add("layer_norm", [x, w, b, r], [layer(total, w, b).to(dtype), total], eps=eps)
        c.add("layer_norm", [x, None, None, r], [layer(total, None, None).to(dtype), total], eps=eps)
        c.add("rms_norm", [x, w], rms(x, w).to(dtype), eps=eps)
        c.add("rms_norm", [x], rms(x, None).to(dtype), eps=eps)
        c.add("rms_norm", [x, w, r], [rms(total, w).to(dtype), total], eps=eps)
        c.add("rms_norm", [x, w], rms(x, w).to(torch.float32), eps=eps, to=torch.float32)
        g, gw, gb = normal(2, 6, 4, dtype=dtype), normal(6, dtype=dtype), normal(6, dtype=dtype)
        group = lambda n, w, b: F.group_norm(g.double(), n, w if w is None else w.double(), b if b is None else b.double(), eps)
        c.add("group_norm", [g, gw, gb], group(3, gw, gb).to(dtype), groups=3, eps=eps)
        c.add("group_norm", [g], group(1, None, None).to(dtype), groups=1, eps=eps)
        s = normal(2, 3, 4, dtype=dtype, scale=3)
        for axis in (0, 1, 2):
            c.add("softmax", [s], s.double().softmax(axis).to(dtype), axis=axis)
            c.add("log_softmax", [s], s.double().log_softmax(axis).to(dtype), axis=axis)
        m = torch.tensor([[0.0, -inf, 1.0], [nan, 1.0, 2.0], [1000.0, 999.0, -1000.0], [inf, 1.0, 2.0]], dtype=dtype)
        c.add("softmax", [m], m.double().softmax(1).to(dtype), axis=1)
        c.add("log_softmax", [m], m.double().log_softmax(1).to(dtype), axis=1)
        c.add("softmax", [torch.full((2,), -inf, dtype=dtype)], torch.zeros(2, dtype=dtype), axis=0)
    mixed = normal(2, 4, dtype=torch.bfloat16)
    weight = normal(4)
    c.note("weights in another format than x")
    c.add("rms_norm", [mixed, weight], F.rms_norm(mixed.double(), [4], weight.double(), 1e-6).to(torch.bfloat16), eps=1e-6)
    c.add("layer_norm", [torch.zeros(0, 4)], torch.zeros(0, 4), eps=1e-5)
    c.add("layer_norm", [torch.zeros(1, 4)], torch.zeros(1, 4), eps=1e-5)
    c.add("rms_norm", [torch.tensor([[1.0, nan, 2.0]])], torch.full((1, 3), nan), eps=1e-5)
    c.add("softmax", [torch.zeros(2, 0)], torch.zeros(2, 0), axis=1)
    image = normal(1, 4, 2, 3)
    c.add("group_norm", [image], F.group_norm(image.double(), 2, None, None, 1e-5).float(), groups=2, eps=1e-5)
    c.write()


# ---- contractions ----

MX = ["mxfp8", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "nvfp4", "nvfp4_row"]
FP8 = ["fp8_1x128", "fp8_128x128", "fp8_row", "fp8_tensor"]


def exact_in(name, *shape):
    """Values that the block format holds without error: small integers times a power of two, the largest in each block."""
    grid = torch.tensor([0.0, 32, -32, 64, -64, 128, -128, 256, -256])
    x = grid[torch.randint(0, len(grid), shape)]
    x[..., ::16] = 448.0 if name in FP8 else 384.0
    return x


def matmul():
    c = Cases("matmul")
    for dtype in FLOATS:
        for sa, sb in (((2, 3), (3, 4)), ((1, 5), (5, 1)), ((9, 7), (7, 17)), ((2, 1, 2, 3), (3, 3, 2)), ((3, 2), (2, 2, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3))):
            if dtype != torch.float32 and sa not in ((2, 3), (9, 7)):
                continue
            a, b = normal(*sa, dtype=dtype), normal(*sb, dtype=dtype)
            c.add("matmul", [a, b], (a.double() @ b.double()).to(dtype), tolerance=None if dtype != torch.float32 else 5e-7)
    a, b = normal(3, 4), normal(4, 6)
    y = a.double() @ b.double()
    c.note("transposed operands, result formats")
    c.add("matmul", [a.T.contiguous(), b], y.float(), at=True)
    c.add("matmul", [a, b.T.contiguous()], y.float(), bt=True)
    c.add("matmul", [a.T.contiguous(), b.T.contiguous()], y.float(), at=True, bt=True)
    c.add("matmul", [a, b], y.to(torch.bfloat16), to=torch.bfloat16)
    h, g = a.to(torch.bfloat16), b.to(torch.bfloat16)
    c.add("matmul", [h, g], (h.double() @ g.double()).float(), to=torch.float32)
    c.add("matmul", [torch.tensor([[inf, 1.0], [nan, 1.0]]), torch.tensor([[1.0, 0.0], [2.0, 1.0]])], torch.tensor([[inf, nan], [nan, nan]]))
    long_a, long_b = normal(2, 300), normal(300, 3)
    c.add("matmul", [long_a, long_b], (long_a.double() @ long_b.double()).float(), tolerance=5e-7)

    c.note("post lists")
    bias, full = normal(6), normal(3, 6)
    z = y + bias.double()
    half = normal(3, 3)
    steps = {
        "bias": ([bias], z), "add": ([full], y + full.double()), "mul": ([full], y * full.double()), "relu": ([], y.relu()), "silu": ([], F.silu(y)),
        "gelu": ([], F.gelu(y)), "gelu_tanh": ([], F.gelu(y, approximate="tanh")), "tanh": ([], y.tanh()), "sigmoid": ([], y.sigmoid()),
        "swiglu": ([], F.silu(y[:, :3]) * y[:, 3:]), "geglu": ([], F.gelu(y[:, :3]) * y[:, 3:]),
        "geglu_tanh": ([], F.gelu(y[:, :3], approximate="tanh") * y[:, 3:]), "reglu": ([], y[:, :3].relu() * y[:, 3:]),
        "bias,gelu": ([bias], F.gelu(z)), "bias,add": ([bias, full], z + full.double()), "bias,swiglu": ([bias], F.silu(z[:, :3]) * z[:, 3:]),
        "bias,swiglu,bias,mul": ([bias, bias[:3], half], (F.silu(z[:, :3]) * z[:, 3:] + bias[:3].double()) * half.double()),
    }
    for post, (extra, result) in steps.items():
        c.add("matmul", [a, b] + extra, result.float(), post=f'"{post}"')
        c.add("matmul", [h, g] + [e.to(torch.bfloat16) for e in extra], {}.get(post, result).to(torch.bfloat16), tolerance=0.05, post=f'"{post}"') if post in ("bias", "bias,gelu") else None
    batch = normal(2, 3, 4)
    scalar = torch.tensor(0.5)
    c.add("matmul", [batch, b, full[:, :1].contiguous()], (batch.double() @ b.double() + full[:, :1].double()).float(), post='"add"')
    c.add("matmul", [a, b, scalar], (y * 0.5).float(), post='"mul"')

    c.note("weights in a low-precision format, then both operands; the values are exact in the formats, so the results are those of fp64")
    for name in MX + FP8:
        k = 64 if name in MX else 160
        a, w = normal(3, k), exact_in(name, 5, k)
        exact = (a.double() @ w.double().T).float()
        scale = 1e-6 if name.startswith("nvfp4") else 2e-7
        c.add("matmul", [a, (w, name)], exact, tolerance=scale, bt=True)
        q = exact_in(name, 3, k)
        c.add("matmul", [(q, name), (w, name)], (q.double() @ w.double().T).float(), tolerance=scale, bt=True)
    q, w = exact_in("mxfp8", 2, 3, 40), exact_in("mxfp4", 2, 4, 40)
    c.add("matmul", [(q, "mxfp8"), (w, "mxfp4")], (q.double() @ w.double().transpose(1, 2)).to(torch.bfloat16), bt=True, to=torch.bfloat16)
    c.add("matmul", [(exact_in("mxfp8", 2, 33), "mxfp8"), (torch.zeros(2, 33), "mxfp8")], torch.zeros(2, 2), bt=True)
    q, w = exact_in("nvfp4_row", 2, 3, 32) * torch.tensor([1.0, 2.0, 0.25])[:, None], exact_in("nvfp4", 4, 32)
    c.add("matmul", [(q, "nvfp4_row"), (w, "nvfp4")], (q.double() @ w.double().T).float(), tolerance=1e-6, bt=True)
    low = normal(4, 3).to(torch.float8_e4m3fn)
    a = normal(2, 4)
    c.add("matmul", [a, low], (a.double() @ low.double()).float())
    c.write()


def grouped():
    c = Cases("grouped")
    a, b = normal(7, 3), normal(4, 3, 5)
    offsets = torch.tensor([2, 2, 5, 6], dtype=torch.int32)

    def product(a, b, offsets, after=lambda y, g: y):
        y, begin = torch.zeros(a.shape[0], after(torch.zeros(1, b.shape[2], dtype=torch.float64), 0).shape[1], dtype=torch.float64), 0
        for g, end in enumerate(offsets.tolist()):
            y[begin:end] = after(a[begin:end].double() @ b[g].double(), g)
            begin = end
        return y

    c.add("grouped_matmul", [a, b, offsets], product(a, b, offsets).float())
    c.add("grouped_matmul", [a, b.transpose(1, 2).contiguous(), offsets], product(a, b, offsets).float(), bt=True)
    h, g = a.to(torch.bfloat16), b.to(torch.bfloat16)
    c.add("grouped_matmul", [h, g, offsets], product(h, g, offsets).to(torch.bfloat16))
    c.add("grouped_matmul", [h, g, offsets], product(h, g, offsets).float(), to=torch.float32)
    bias, group_bias, full = normal(5), normal(4, 5), normal(7, 5)
    c.add("grouped_matmul", [a, b, offsets, bias], product(a, b, offsets, lambda y, g: y + bias.double()).float(), post='"bias"')
    c.add("grouped_matmul", [a, b, offsets, group_bias], product(a, b, offsets, lambda y, g: (y + group_bias[g].double()).relu()).float(), post='"bias,relu"')
    y = product(a, b, offsets) + full.double()
    y[6:] = 0
    c.add("grouped_matmul", [a, b, offsets, full], y.float(), post='"add"')
    wide = normal(4, 3, 4)
    c.add("grouped_matmul", [a, wide, offsets], product(a, wide, offsets, lambda y, g: F.silu(y[:, :2]) * y[:, 2:]).float(), post='"swiglu"')
    c.add("grouped_matmul", [a, b, torch.zeros(4, dtype=torch.int32)], torch.zeros(7, 5))
    c.add("grouped_matmul", [torch.zeros(0, 3), b, torch.zeros(4, dtype=torch.int32)], torch.zeros(0, 5))
    q, w = exact_in("mxfp8", 4, 64), exact_in("mxfp4", 2, 3, 64)
    two = torch.tensor([1, 4], dtype=torch.int32)
    c.add("grouped_matmul", [(q, "mxfp8"), (w, "mxfp4"), two], product(q, w.transpose(1, 2), two).float(), bt=True)
    q, w = exact_in("nvfp4", 4, 64), exact_in("nvfp4_row", 2, 3, 64)
    c.add("grouped_matmul", [(q, "nvfp4"), (w, "nvfp4_row"), two], product(q, w.transpose(1, 2), two).float(), tolerance=1e-6, bt=True)
    with apart("grouped_outer"):
        def outer(a, b, offsets):
            begins = [0] + offsets.tolist()
            return torch.stack([a[x:y].double().T @ b[x:y].double() for x, y in zip(begins, begins[1:])])

        a, b, offsets = normal(7, 3), normal(7, 5), torch.tensor([2, 2, 5, 6], dtype=torch.int32)
        c.add("grouped_outer", [a, b, offsets], outer(a, b, offsets).float())
        for dtype in FLOATS[1:]:
            h, g = a.to(dtype), b.to(dtype)
            c.add("grouped_outer", [h, g, offsets], outer(h, g, offsets).to(dtype))
        h, g = a.to(torch.bfloat16), b.to(torch.bfloat16)
        c.add("grouped_outer", [h, g, offsets], outer(h, g, offsets).float(), to=torch.float32)
        c.add("grouped_outer", [normal(0, 3), normal(0, 5), torch.zeros(2, dtype=torch.int32)], torch.zeros(2, 3, 5))
        long_a, long_b, one = normal(300, 2), normal(300, 40), torch.tensor([290], dtype=torch.int32)
        c.add("grouped_outer", [long_a, long_b, one], outer(long_a, long_b, one).float(), tolerance=2e-6)
    c.write()


def attention():
    c = Cases("attention")

    def expected(q, k, v, scale, mask=None, bias=None, sink=None, causal=False, window=0, ahead=0, offset=0, softcap=0.0):
        q, k, v = q.double(), k.double(), v.double()
        n = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        s = q @ k.transpose(2, 3) * scale
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        if bias is not None:   # a number of f32, as PyTorch's scores are
            s = (s + bias.double()).float().double()
        i, j = torch.arange(s.shape[2])[:, None] + offset, torch.arange(s.shape[3])[None]
        seen = torch.ones_like(s, dtype=torch.bool)
        if causal:
            seen &= j <= i
        if window:
            seen &= i - j < window
        if ahead:
            seen &= j - i < ahead
        if mask is not None:
            seen &= mask
        s = s.masked_fill(~seen, -inf)
        if sink is not None:
            s = torch.cat([s, sink.double().reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], 3)
        p = torch.softmax(s, 3).nan_to_num(0.0)
        return p[..., :k.shape[2]] @ v

    for dtype in FLOATS:
        q, k, v = normal(2, 4, 3, 6, dtype=dtype), normal(2, 2, 5, 6, dtype=dtype), normal(2, 2, 5, 3, dtype=dtype)
        c.add("attention", [q, k, v], expected(q, k, v, 0.5).to(dtype), scale=0.5)
        c.add("attention", [q, k, v], expected(q, k, v, 0.5, causal=True, offset=2).to(dtype), scale=0.5, causal=True, offset=2)
    q, k, v = normal(1, 2, 4, 3), normal(1, 1, 6, 3), normal(1, 1, 6, 2)
    forms = [
        dict(causal=True), dict(causal=True, window=2), dict(causal=True, window=2, offset=2), dict(ahead=2, offset=1), dict(window=2, ahead=3),
        dict(softcap=1.5), dict(causal=True, offset=-2), dict(causal=True, offset=9), dict(window=1, offset=7),
    ]
    for form in forms:
        c.add("attention", [q, k, v], expected(q, k, v, 0.7, **form).float(), scale=0.7, **form)
    c.note("mask, bias and sink; rows that see nothing give 0")
    padding = torch.tensor([1, 1, 0, 1, 0, 1], dtype=torch.bool)
    mask = torch.rand(1, 1, 4, 6) < 0.6
    mask[0, 0, 1] = False
    bias, sink = normal(2, 4, 6), normal(2)
    c.add("attention", [q, k, v, padding], expected(q, k, v, 0.7, mask=padding).float(), scale=0.7)
    c.add("attention", [q, k, v, mask], expected(q, k, v, 0.7, mask=mask).float(), scale=0.7)
    c.add("attention", [q, k, v, None, bias], expected(q, k, v, 0.7, bias=bias).float(), scale=0.7)
    c.add("attention", [q, k, v, mask, bias, sink], expected(q, k, v, 0.7, mask=mask, bias=bias, sink=sink, causal=True, offset=1, softcap=2.0).float(), scale=0.7, causal=True, offset=1, softcap=2.0)
    c.add("attention", [q, k, v, None, None, sink], expected(q, k, v, 0.7, sink=sink).float(), scale=0.7)
    hidden = torch.zeros(4, 6).masked_fill(~mask[0, 0], -inf)
    c.add("attention", [q, k, v, None, hidden], expected(q, k, v, 0.7, bias=hidden).float(), scale=0.7)
    h = [x.to(torch.bfloat16) for x in (q, k, v)]
    c.add("attention", h, expected(*h, 0.7).float(), scale=0.7, to=torch.float32)
    c.add("attention", [torch.zeros(1, 2, 0, 3), k, v], torch.zeros(1, 2, 0, 2), scale=1)
    c.add("attention", [q, torch.zeros(1, 1, 0, 3), torch.zeros(1, 1, 0, 2)], torch.zeros(1, 2, 4, 2), scale=1)
    bad = q.clone()
    bad[0, 0, 0, 0] = nan
    y = expected(bad, k, v, 0.7)
    y[0, 0, 0] = nan
    c.add("attention", [bad, k, v], y.float(), scale=0.7)
    wide = [normal(1, 1, 1, 260, scale=0.2), normal(1, 1, 2, 260, scale=0.2), normal(1, 1, 2, 260)]
    c.add("attention", wide, expected(*wide, 0.1).float(), scale=0.1)
    c.note("tokens of two texts beside caches of six places; the first text is longer, so its cache is a ring")
    lengths, room = (9, 4), 6
    texts = [(normal(1, 1, n, 3), normal(1, 1, n, 2)) for n in lengths]
    k, v = torch.zeros(2, 1, room, 3), torch.zeros(2, 1, room, 2)
    for r, (keys, values) in enumerate(texts):
        for p in range(lengths[r]):
            k[r, :, p % room], v[r, :, p % room] = keys[0, :, p], values[0, :, p]
    row, position = torch.tensor([0, 1, 1, 0]), torch.tensor([8, 3, 0, 7])
    q, sink = normal(1, 2, 4, 3), normal(2)
    padding = torch.rand(2, 1, 1, 9) < 0.7
    bias = normal(2, 1, 9)
    for form in (dict(window=3), dict(window=4, softcap=1.5)):
        for operands in ((None, None, None), (padding, bias, sink)):
            made = []
            for i in range(4):
                r, p = int(row[i]), int(position[i])
                mask = None if operands[0] is None else operands[0][r:r + 1, ..., :p + 1]
                b = None if operands[1] is None else operands[1][..., :p + 1]
                made.append(expected(q[:, :, i:i + 1], texts[r][0][:, :, :p + 1], texts[r][1][:, :, :p + 1], 0.7, mask=mask, bias=b, sink=operands[2], offset=p, **form))
            c.add("attention", [q, k, v, *operands, row, position], torch.cat(made, 2).float(), scale=0.7, causal=True, **form)
    c.note("rows whose biases are huge, the same, partly or all -inf, NaN, inf; PyTorch's attention in f32, whose scores are numbers of f32")
    q, k, v, sink = normal(1, 2, 6, 3), normal(1, 1, 6, 3), normal(1, 1, 6, 2), torch.tensor([0.25, -inf])

    def of_torch(bias, k=k, v=v, **form):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, bias.float(), scale=0.7, enable_gqa=True, **form)

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        low = torch.finfo(dtype).min
        rows = [[low] * 6, [low, -inf, low, low, -inf, -inf], [low, low, 0.5, low, low, low], [-inf] * 6, [0, low, -inf, 1.5, low, 0], [-inf, low, -inf, -inf, -inf, -inf]]
        bias = torch.tensor(rows, dtype=dtype)
        c.add("attention", [q, k, v, None, bias], of_torch(bias), tolerance=1e-6, scale=0.7)
        keys = torch.tensor([low, low, 0, low, 0, low], dtype=dtype)
        c.add("attention", [q, k, v, None, keys], of_torch(keys.expand(6, 6)), tolerance=1e-6, scale=0.7)
        keys = torch.full((6,), low, dtype=dtype)
        c.add("attention", [q, k, v, None, keys], of_torch(keys.expand(6, 6)), tolerance=1e-6, scale=0.7)
    low = torch.finfo(torch.float32).min
    added = torch.tensor([0, 0, 0, low, low, low])[None] + torch.full((6, 6), low).triu(1)
    left = torch.tensor([low, low, 0, 0, 0, 0])[None] + torch.full((6, 6), low).triu(1)
    tall = torch.tensor([[-1e9] * 6, [-1e20] * 6, [-1e30] * 6, [-1e30, -1e31, -1e30, -inf, -1e38, low], [1e9] * 6, [3e38, 3e38, low, 1e38, 0, 0]])
    odd = torch.tensor([[nan, 0, 0, 0, 0, 0], [low, nan, low, low, low, low], [-inf, -inf, inf, 0, 0, 0], [inf] * 6, [0] * 6, [nan] * 6])
    for bias in (added, left, tall, odd):
        c.add("attention", [q, k, v, None, bias], of_torch(bias), tolerance=1e-6, scale=0.7)
    padding = torch.tensor([0, 0, low, low, low, low])
    c.add("attention", [q, k, v, None, padding], expected(q, k, v, 0.7, bias=padding, causal=True, offset=-1).float(), scale=0.7, causal=True, offset=-1)
    c.add("attention", [q, k, v, None, padding.flip(0)], expected(q, k, v, 0.7, bias=padding.flip(0), causal=True).float(), scale=0.7, causal=True)
    c.add("attention", [q, k, v, None, padding, sink], expected(q, k, v, 0.7, bias=padding, sink=sink).float(), scale=0.7)
    lowest, sinks = torch.full((6,), low), torch.tensor([low, 0])
    c.add("attention", [q, k, v, None, lowest, sinks], expected(q, k, v, 0.7, bias=lowest, sink=sinks).float(), scale=0.7)
    y = expected(q, k, v, 0.7, sink=torch.tensor([0, 0.5]))
    y[:, 0] = nan
    for sinks in ([inf, 0.5], [nan, 0.5]):
        c.add("attention", [q, k, v, None, None, torch.tensor(sinks)], y.float(), scale=0.7)
    c.note("what a hidden key holds is not looked at")
    wrong_k, wrong_v = k.clone(), v.clone()
    wrong_k[0, 0, 2:4], wrong_v[0, 0, 3:5] = torch.tensor([nan, inf, -inf]), nan
    for dtype in (torch.float32, torch.bfloat16):
        low = torch.finfo(dtype).min
        for hidden in ([0, 0, low, low, low, 0.5], [0, 0, -inf, low, -inf, 0.5], [-1e30] * 2 + [-inf] * 3 + [-1e30]):
            bias = torch.tensor(hidden, dtype=dtype)
            c.add("attention", [q, wrong_k, wrong_v, None, bias], of_torch(bias.expand(6, 6)), tolerance=1e-6, scale=0.7)
    c.note("pages of two keys: two texts share the first one, one page is not there, tokens of row -1 see nothing")
    lengths, page, table = (7, 5), 2, torch.tensor([[4, 1, 0, 2], [4, -1, 3, -1]], dtype=torch.int32)
    texts = [(normal(1, 1, 8, 3), normal(1, 1, 8, 2)) for _ in lengths]
    k, v = torch.full((5, 1, page, 3), nan), torch.full((5, 1, page, 2), nan)
    for r, (keys, values) in reversed(list(enumerate(texts))):
        for p in range(lengths[r]):
            if table[r, p // page] >= 0:
                k[table[r, p // page], :, p % page], v[table[r, p // page], :, p % page] = keys[0, :, p], values[0, :, p]
    texts[1][0][:, :, :page], texts[1][1][:, :, :page] = texts[0][0][:, :, :page], texts[0][1][:, :, :page]
    there = (table >= 0).repeat_interleave(page, 1)
    q, sink = normal(1, 2, 5, 3), normal(2)
    row, position = torch.tensor([1, 0, -1, 0, 1]), torch.tensor([4, 6, 99, 1, 3])
    padding, bias = torch.rand(2, 1, 1, 8) < 0.8, normal(2, 1, 8)
    for form in ({}, dict(window=3)):
        for operands in ((None, None, None), (padding, bias, sink)):
            made = []
            for i in range(5):
                r, p = int(row[i]), int(position[i])
                if r < 0:
                    made.append(torch.zeros(1, 2, 1, 2, dtype=torch.float64))
                    continue
                mask = there[r, :p + 1] if operands[0] is None else operands[0][r:r + 1, ..., :p + 1] & there[r, :p + 1]
                b = None if operands[1] is None else operands[1][..., :p + 1]
                made.append(expected(q[:, :, i:i + 1], texts[r][0][:, :, :p + 1], texts[r][1][:, :, :p + 1], 0.7, mask=mask, bias=b, sink=operands[2], offset=p, **form))
            c.add("attention", [q, k, v, *operands, row, position, table], torch.cat(made, 2).float(), scale=0.7, causal=True, **form)
    c.note("pages without rows and positions: each batch has its row of the table")
    k, v, q = normal(5, 1, page, 3), normal(5, 1, page, 2), normal(2, 2, 3, 3)
    keys, values = (torch.cat([x[table[r]].transpose(0, 1).reshape(1, 1, 8, -1) for r in range(2)]) for x in (k, v))
    c.add("attention", [q, k, v, None, None, None, None, None, table], expected(q, keys, values, 0.7, mask=there[:, None, None]).float(), scale=0.7)
    c.add("attention", [q, k, v, None, None, None, None, None, table.long()], expected(q, keys, values, 0.7, mask=there[:, None, None], causal=True, offset=4).float(), scale=0.7, causal=True, offset=4)
    c.note("a row of no text without pages: its sink alone is there")
    c.add("attention", [q[:1], k, v, None, None, sink, torch.tensor([-1, 0, -1])],
          torch.cat([torch.zeros(1, 2, 1, 2, dtype=torch.float64), expected(q[:1, :, 1:2], k[:1], v[:1], 0.7, sink=sink), torch.zeros(1, 2, 1, 2, dtype=torch.float64)], 2).float(), scale=0.7)
    c.note("the logarithm of the sum of e^score as a second result; rows that see nothing have -inf")
    q, k, v, sink, hidden = normal(2, 4, 5, 3), normal(2, 2, 7, 3), normal(2, 2, 7, 2), normal(4), torch.rand(2, 1, 5, 7) < 0.5
    hidden[0, 0, 2] = False
    scores = q.double() @ k.repeat_interleave(2, 1).double().transpose(2, 3) * 0.7
    c.add("attention", [q, k, v], [expected(q, k, v, 0.7).float(), scores.logsumexp(3).float()], scale=0.7, lse=True)
    c.add("attention", [q, k, v, hidden], [expected(q, k, v, 0.7, mask=hidden).float(), scores.masked_fill(~hidden, -inf).logsumexp(3).float()], scale=0.7, lse=True)
    c.add("attention", [q, k, v, None, None, sink], [expected(q, k, v, 0.7, sink=sink).float(), torch.cat([scores, sink.double()[:, None, None].expand(2, 4, 5, 1)], 3).logsumexp(3).float()],
          scale=0.7, lse=True)
    c.add("attention", [q, k, v], [expected(q, k, v, 0.7).float().transpose(1, 2).reshape(2, 5, 8), scores.logsumexp(3).float()], scale=0.7, joined=True, lse=True)
    attention_blocks(c, expected)
    c.write()


def attention_blocks(c, expected):
    """Keys and values in blocks: numbers that the formats hold exactly, so that they are what PyTorch computes with."""
    c.note("keys and values in blocks")
    for name in ("fp8_1x128", "mxfp8", "nvfp4"):
        q, k, v = normal(1, 2, 2, 32), exact_in(name, 1, 1, 5, 32), exact_in(name, 1, 1, 5, 32)
        near = 2e-6 if name == "nvfp4" else 5e-7      # whose second level is a quotient of fp32
        c.add("attention", [q, (k, name), (v, name)], expected(q, k, v, 0.001).float(), tolerance=near, scale=0.001)
        c.add("attention", [q, (k, name), (v, name)], expected(q, k, v, 0.001, causal=True, offset=2).float(), tolerance=near, scale=0.001, causal=True, offset=2)


def gradients(function, dout, *inputs):
    """Of the inputs, in f64, of what function makes of them in f64, whose gradients are dout."""
    with torch.enable_grad():
        wide = [x.double().clone().requires_grad_() for x in inputs]
        return torch.autograd.grad(function(*wide), wide, dout.double(), materialize_grads=True)


def attention_backward():
    c = Cases("attention_backward")

    def scores(q, k, scale, bias, mask, causal, window, ahead, offset, softcap):
        s = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3) * scale
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        if bias is not None:
            s = s + bias
        i, j = torch.arange(s.shape[2])[:, None] + offset, torch.arange(s.shape[3])[None]
        seen = torch.ones(s.shape, dtype=torch.bool)
        seen &= j <= i if causal else True
        seen &= i - j < window if window else True
        seen &= j - i < ahead if ahead else True
        seen &= mask if mask is not None else True
        return s.masked_fill(~seen, -inf), seen

    def case(q, k, v, mask=None, bias=None, sink=None, dbias=False, tolerance=None, scale=0.7, causal=False, window=0, ahead=0, offset=0, softcap=0.0):
        form = dict(causal=causal, window=window, ahead=ahead, offset=offset, softcap=softcap)

        def result(q, k, v, bias=None):
            s, seen = scores(q, k, scale, bias, mask, **form)
            if sink is not None:
                s = torch.cat([s, sink.double().reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], 3)
            p = torch.softmax(s.where((s > -inf).any(3, keepdim=True), 0.0), 3)[..., : k.shape[2]].where(seen, 0.0)   # a row that sees nothing: 0, not NaN
            return p @ v.repeat_interleave(q.shape[1] // k.shape[1], 1)

        wide = [x.double() for x in (q, k, v)] + ([] if bias is None else [bias.double()])
        out = result(*wide)
        dout = normal(*out.shape, dtype=q.dtype)
        s, _ = scores(wide[0], wide[1], scale, None if bias is None else wide[3], mask, **form)
        if sink is not None:
            s = torch.cat([s, sink.double().reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], 3)
        grads = gradients(result, dout, q, k, v, *([] if bias is None else [bias]))
        outputs = [g.to(x.dtype) for g, x in zip(grads, (q, k, v, bias))][: 4 if dbias else 3]
        inputs = [q, k, v, out.to(q.dtype), s.logsumexp(3).float(), dout] + ([mask, bias] if bias is not None else [mask] if mask is not None else [])
        said = {name: value for name, value in form.items() if value} | ({"dbias": True} if dbias else {})
        c.add("attention_backward", inputs, outputs, tolerance=tolerance or {torch.bfloat16: 0.05, torch.float16: 0.005}.get(q.dtype, 2e-6), scale=scale, **said)   # out and lse are rounded

    for dtype in FLOATS:
        q, k, v = normal(2, 4, 3, 6, dtype=dtype), normal(2, 2, 5, 6, dtype=dtype), normal(2, 2, 5, 3, dtype=dtype)
        case(q, k, v)
        case(q, k, v, causal=True, offset=2)
    q, k, v = normal(1, 2, 4, 3), normal(1, 1, 6, 3), normal(1, 1, 6, 2)
    for form in (dict(causal=True), dict(causal=True, window=2, offset=2), dict(ahead=2, offset=1), dict(window=2, ahead=3), dict(softcap=1.5), dict(causal=True, offset=-2), dict(window=1, offset=7)):
        case(q, k, v, **form)
    c.note("mask, bias and sink; rows that see nothing have no part")
    mask = torch.rand(1, 1, 4, 6) < 0.6
    mask[0, 0, 1] = False
    case(q, k, v, mask=mask)
    case(q, k, v, mask=mask, sink=normal(2))
    for shape in ((1, 2, 4, 6), (4, 6), (2, 1, 1), (1, 6), (1,), ()):
        case(q, k, v, bias=normal(*shape), dbias=True)
        case(q, k, v, mask=mask, bias=normal(*shape), dbias=True, softcap=2.0, causal=True, offset=3)
    case(q, k, v, bias=normal(4, 6))
    case(normal(2, 2, 3, 300, scale=0.2), normal(2, 2, 2, 300, scale=0.2), normal(2, 2, 2, 270, scale=0.2))
    case(normal(1, 2, 0, 3), k, v)
    case(normal(1, 2, 3, 3), normal(1, 2, 0, 3), normal(1, 2, 0, 2))
    c.write()


def norm_backward():
    c = Cases("norm_backward")
    layer = lambda x, w, b: F.layer_norm(x, [x.shape[-1]], w, b, 1e-5)
    rms = lambda x, w: F.rms_norm(x, [x.shape[-1]], w, 1e-5)

    def case(x, dy, weight=None, plus=None, tolerance=None):
        w = torch.ones(x.shape[-1], dtype=weight.dtype if weight is not None else x.dtype) if weight is None else weight
        more = 0 if plus is None else plus.double()
        inputs = [x, dy, weight, plus] if plus is not None else [x, dy] if weight is None else [x, dy, weight]
        dx, dw, db = gradients(layer, dy, x, w, torch.zeros_like(w))
        c.add("layer_norm_backward", inputs, [(dx + more).to(x.dtype), dw.to(w.dtype), db.to(w.dtype)], tolerance=tolerance, eps=1e-5)
        dx, dw = gradients(rms, dy, x, w)
        c.add("rms_norm_backward", inputs, [(dx + more).to(x.dtype), dw.to(w.dtype)], tolerance=tolerance, eps=1e-5)

    for dtype in FLOATS:
        x, dy, plus, w = normal(2, 3, 5, dtype=dtype), normal(2, 3, 5, dtype=dtype), normal(2, 3, 5, dtype=dtype), normal(5, dtype=dtype)
        t = {torch.float64: 2e-14, torch.float32: 5e-7}.get(dtype)
        case(x, dy, tolerance=t)
        case(x, dy, w, tolerance=t)
        case(x, dy, w, plus, tolerance=t)
        case(x, dy, None, plus, tolerance=t)
    case(normal(2, 4, dtype=torch.bfloat16), normal(2, 4), normal(4), tolerance=None)
    case(normal(1, 300), normal(1, 300), normal(300), tolerance=1e-6)
    case(normal(7), normal(7), normal(7), tolerance=1e-6)
    case(torch.zeros(2, 4), normal(2, 4), normal(4), tolerance=2e-6)
    case(torch.zeros(0, 4), torch.zeros(0, 4), normal(4))
    case(normal(3, 1), normal(3, 1), normal(1), tolerance=1e-6)
    c.write()


def cross_entropy():
    c = Cases("cross_entropy")

    def case(logits, labels, ignore=None, smoothing=0.0, tolerance=1e-6):
        said = ({} if ignore is None else {"ignore": ignore}) | ({"smoothing": smoothing} if smoothing else {})
        rows, of_rows = logits.double().reshape(-1, logits.shape[-1]), torch.float64 if logits.dtype == torch.float64 else torch.float32
        loss = lambda x: F.cross_entropy(x, labels.flatten().long(), reduction="none", label_smoothing=smoothing, ignore_index=-100 if ignore is None else ignore)
        lse = rows.logsumexp(1).reshape(labels.shape).to(of_rows)
        c.add("cross_entropy", [logits, labels], [loss(rows).reshape(labels.shape).to(of_rows), lse], **said)
        d = normal(*labels.shape)
        c.add("cross_entropy_backward", [logits, labels, lse, d], gradients(loss, d.flatten(), rows)[0].reshape(logits.shape).to(logits.dtype),
              tolerance=tolerance, **said)

    for dtype in FLOATS:
        logits = normal(2, 3, 7, dtype=dtype, scale=3)
        case(logits, integers(0, 7, 2, 3))
        case(logits, torch.tensor([[0, -100, 6], [-100, 1, 1]]), ignore=-100)
        case(logits, torch.tensor([[0, 2, 6], [5, 1, 2]], dtype=torch.int32), ignore=2, smoothing=0.1)
    case(normal(5), torch.tensor(3), smoothing=0.3)
    case(normal(4, 1), torch.zeros(4, dtype=torch.int64))
    case(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    case(torch.tensor([[1000.0, 999.0, -inf], [-1000.0, 0.0, 1000.0]]), torch.tensor([1, 0]), tolerance=1e-4)   # lse is a number of fp32
    c.note("NaN and infinities; what is ignored has none")
    odd = torch.tensor([[nan, 1.0], [nan, 1.0], [-inf, 1.0], [-inf, 0.0]])
    labels = torch.tensor([0, -1, 0, 1])
    c.add("cross_entropy", [odd, labels], [torch.tensor([nan, 0.0, inf, 0.0]), torch.tensor([nan, nan, 1.0, 0.0])], ignore=-1)
    c.add("cross_entropy_backward", [odd, labels, torch.tensor([nan, nan, 1.0, 0.0]), torch.tensor([1.0, nan, 1.0, 2.0])],
          torch.tensor([[nan, nan], [0.0, 0.0], [-1.0, 1.0], [0.0, 0.0]]), ignore=-1)
    c.write()


def mqa_logits():
    c = Cases("mqa_logits")

    def logits(q, k, weights, factor=None, start=None, end=None, scale=1.0):
        q, k, weights = q.double(), k.double(), weights.double()
        scores = torch.einsum("bmhd,bnd->bmhn", q, k if factor is None else k * factor.double()[..., None]) * scale
        sums = torch.einsum("bmhn,bmh->bmn", F.relu(scores), weights)
        at = torch.arange(k.shape[1])
        if start is not None:
            sums = sums.masked_fill(at < start[..., None], -inf)
        return sums if end is None else sums.masked_fill(at >= end[..., None], -inf)

    start, end = torch.tensor([[0, -3, 4], [2, 9, 1]]), torch.tensor([[7, 2, 20], [2, 9, 5]], dtype=torch.int32)
    for dtype in [*FLOATS, torch.float8_e4m3fn]:
        q, k, weights, factor = normal(2, 3, 4, 5).to(dtype), normal(2, 7, 5).to(dtype), normal(2, 3, 4), normal(2, 7)
        to = torch.float64 if dtype == torch.float64 else torch.float32
        c.add("mqa_logits", [q, k, weights], logits(q, k, weights).to(to))
        c.add("mqa_logits", [q, k, weights, factor, start, end], logits(q, k, weights, factor, start, end, 0.25).to(to), scale=0.25)
    q, k, weights = normal(1, 2, 70, 130), normal(1, 40, 130), normal(1, 2, 70)
    c.add("mqa_logits", [q, k, weights], logits(q, k, weights, scale=-0.1).bfloat16(), scale=-0.1, to=torch.bfloat16)
    c.note("pages of 3 keys, one of which is not there")
    q, pages, weights, factor = normal(2, 2, 3, 4), normal(5, 3, 4), normal(2, 2, 3), normal(5, 3)
    table, end = torch.tensor([[4, 0, 2], [1, -1, 3]]), torch.tensor([[8, 9], [7, 2]])
    paged = logits(q, pages[table].flatten(1, 2), weights, factor[table].flatten(1), None, end)
    paged[1, :, 3:6] = -inf
    c.add("mqa_logits", [q, pages, weights, factor, None, end, table], paged.float())
    c.note("blocks along d")
    q, k, weights = exact_in("mxfp8", 1, 2, 3, 64), exact_in("mxfp4", 1, 6, 64), normal(1, 2, 3)
    c.add("mqa_logits", [(q, "mxfp8"), (k, "mxfp4"), weights], logits(q, k, weights).float())
    c.note("NaN and infinities of keys that are seen alone; 0 heads")
    q, k, weights = torch.tensor([[[[1.0], [-1.0]]]]), torch.tensor([[[nan], [inf], [-inf], [2.0]]]), torch.tensor([[[1.0, 3.0]]])
    c.add("mqa_logits", [q, k, weights], torch.tensor([[[nan, inf, inf, 2.0]]]))
    c.add("mqa_logits", [q, k, weights, None, torch.tensor([[3]])], torch.tensor([[[-inf, -inf, -inf, 2.0]]]))
    c.add("mqa_logits", [torch.zeros(1, 2, 0, 3), torch.ones(1, 2, 3), torch.zeros(1, 2, 0)], torch.zeros(1, 2, 2))
    c.write()


def dropout():
    c = Cases("dropout")

    def case(x, seed, step, site, probability):
        count = x.numel()
        words = torch.tensor([philox(seed % 2**64, (g, 0, site, step % 2**32)) for g in range(-(-count // 4))], dtype=torch.int64).flatten()[:count].reshape(x.shape)
        grown = 1 / (1 - probability) if probability < 1 else 0.0
        factor = torch.where(words >= round(probability * 2**32), torch.tensor(grown, dtype=torch.float64), 0.0)
        y = x * factor if x.dtype == torch.float64 else (x.float() * factor.float()).to(x.dtype)   # one of fp32, and rounded
        c.add("dropout", [x, torch.tensor([seed, step])], y, tolerance=0, probability=probability, site=site)

    for dtype in FLOATS:
        case(normal(3, 7, dtype=dtype), 1, 0, 0, 0.1)
        case(normal(5, dtype=dtype), -5, 2**40 + 3, 2**32 - 1, 0.5)
    case(normal(2, 3, 4), 2**62 + 12345, -1, 7, 0.9)
    case(normal(9), 3, 4, 1, 0.0)
    case(torch.tensor([1.0, inf, nan, -2.0]), 3, 4, 1, 1.0)
    case(torch.zeros(0, 3), 3, 4, 1, 0.3)
    case(torch.tensor(2.0), 3, 4, 1, 0.3)
    c.write()


def halves(x, cosine, sine, width):
    t, rest = x[..., :width].double(), x[..., width:].double()
    a, b = t.chunk(2, -1)
    return torch.cat([t * cosine.double() + torch.cat([-b, a], -1) * sine.double(), rest], -1)


def neighbours(x, cosine, sine, width):
    t, rest = x[..., :width].double(), x[..., width:].double()
    turned = torch.stack([-t[..., 1::2], t[..., ::2]], -1).flatten(-2)
    return torch.cat([t * cosine.double() + turned * sine.double(), rest], -1)


def cache():
    c = Cases("cache")
    x, y = normal(2, 2, 4, 3), normal(1, 2, 6, 3)
    row, position = torch.tensor([0, 1, 1, 0, 1, 0]), torch.tensor([0, 5, 6, 9, 2, 1])
    want = x.clone()
    for i in range(6):
        want[row[i], :, position[i] % 4] = y[0, :, i]
    c.add("cache_write", [x, y, row, position], want, tolerance=0)
    c.add("cache_write", [x.to(torch.bfloat16), y.to(torch.bfloat16), row.int(), position.int()], want.to(torch.bfloat16), tolerance=0)
    c.add("cache_write", [x, y[:, :, :0], row[:0], position[:0]], x, tolerance=0)

    def written(cache, tokens):
        cache = cache.clone()
        for i in range(tokens.shape[2]):
            cache[row[i], :, position[i] % cache.shape[2]] = tokens[0, :, i]
        return cache

    def turned(x, cosine, sine, width, interleaved):
        return (neighbours if interleaved else halves)(x, cosine, sine, width).to(x.dtype)

    for dtype in FLOATS:
        x, y, keys, values, queries = (normal(*shape, dtype=dtype) for shape in ((2, 2, 4, 6), (2, 3, 4, 5), (1, 2, 6, 6), (1, 3, 6, 5), (1, 4, 6, 6)))
        c.add("cache_update", [x, y, keys, values, row, position], [written(x, keys), written(y, values)], tolerance=0)
        for width, interleaved in ((6, False), (4, True)):
            angle = normal(6, width, scale=2)
            cosine, sine = angle.cos().to(dtype), angle.sin().to(dtype)
            new = [written(x, turned(keys, cosine, sine, width, interleaved)), written(y, values)]
            more = {"width": width, "interleaved": True} if interleaved else {"width": width}
            c.add("cache_update", [x, y, keys, values, row, position, cosine, sine], new, **more)
            c.add("cache_update", [x, y, keys, values, row, position, cosine, sine, queries], [*new, turned(queries, cosine, sine, width, interleaved)], **more)
    c.note("tokens of row -1 go nowhere, and in pages those of a page that is not there; of two texts that share a page the last token stays")
    x, y = normal(3, 2, 4, 3), normal(1, 2, 6, 3)
    row, position = torch.tensor([0, -1, 1, 0, -1, 0]), torch.tensor([0, -7, 3, 5, 99, 1])
    table = torch.tensor([[2, -1], [2, 0]], dtype=torch.int32)
    want, paged = x.clone(), x.clone()
    for i in range(6):
        if row[i] < 0:
            continue
        want[row[i], :, position[i] % 4] = y[0, :, i]
        if table[row[i], position[i] // 4] >= 0:
            paged[table[row[i], position[i] // 4], :, position[i] % 4] = y[0, :, i]
    c.add("cache_write", [x, y, row, position], want, tolerance=0)
    c.add("cache_write", [x, y, row, position, table], paged, tolerance=0)
    c.add("cache_write", [x, y, row.int(), position.int(), table.long()], paged, tolerance=0)
    c.add("cache_update", [x, x, y, y, row, position, None, None, None, table], [paged, paged], tolerance=0)
    angle, queries = normal(6, 2, scale=2), normal(1, 4, 6, 3)
    cosine, sine = angle.cos(), angle.sin()
    keys = turned(y, cosine, sine, 2, False)
    of_keys = x.clone()
    for i in range(6):
        if row[i] >= 0 and table[row[i], position[i] // 4] >= 0:
            of_keys[table[row[i], position[i] // 4], :, position[i] % 4] = keys[0, :, i]
    c.add("cache_update", [x, x, y, y, row, position, cosine, sine, queries, table], [of_keys, paged, turned(queries, cosine, sine, 2, False)], width=2)
    c.note("caches in blocks hold what quantize makes of tokens: here numbers that the formats hold exactly")
    row, position = torch.tensor([0, -1, 1, 0]), torch.tensor([0, 3, 3, 5])
    for name in ("fp8_1x128", "mxfp8", "mxfp4", "nvfp4"):
        near = 2e-6 if name == "nvfp4" else 0         # whose second level is a quotient of fp32
        x, y = exact_in(name, 2, 1, 2, 40), exact_in(name, 1, 1, 4, 40)
        want, paged = x.clone(), x.clone()
        for i in (0, 2, 3):
            want[row[i], :, position[i] % 2] = y[0, :, i]
        paged[1, :, 0], paged[0, :, 1] = y[0, :, 0], y[0, :, 2]
        table = torch.tensor([[1, 0, -1], [1, 0, 1]], dtype=torch.int32)
        c.add("cache_write", [(x, name), y.to(torch.bfloat16), row, position], (want, name), tolerance=near)
        c.add("cache_write", [(x, name), y, row, position, table], (paged, name), tolerance=near)
        c.add("cache_update", [(x, name), (x, name), y, y, row, position], [(want, name)] * 2, tolerance=near)
    c.write()


def rotary():
    c = Cases("rotary")

    for dtype in FLOATS:
        x = normal(2, 2, 3, 8, dtype=dtype)
        for width in (8, 4):
            angle = normal(3, width, scale=2)
            cosine, sine = angle.cos().to(dtype), angle.sin().to(dtype)
            c.add("rotary", [x, cosine, sine], halves(x, cosine, sine, width).to(dtype), width=width)
            c.add("rotary", [x, cosine, sine], neighbours(x, cosine, sine, width).to(dtype), width=width, interleaved=True)
    x, angle = normal(2, 2, 3, 4), normal(2, 1, 3, 4)
    c.add("rotary", [x, angle.cos(), angle.sin()], halves(x, angle.cos(), angle.sin(), 4).float(), width=4)
    h = x.to(torch.bfloat16)
    c.add("rotary", [h, angle.cos(), angle.sin()], halves(h, angle.cos(), angle.sin(), 4).to(torch.bfloat16), width=4)
    c.add("rotary", [torch.zeros(2, 0, 4), torch.zeros(0, 4), torch.zeros(0, 4)], torch.zeros(2, 0, 4), width=4)
    c.write()


def conv():
    c = Cases("conv")
    for dtype in FLOATS:
        x, w, b = normal(2, 4, 7, dtype=dtype), normal(6, 2, 3, dtype=dtype), normal(6, dtype=dtype)
        for stride, padding, dilation in ((1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 3, 2)):
            y = F.conv1d(x.double(), w.double(), b.double(), stride, padding, dilation, 2).to(dtype)
            c.add("conv", [x, w, b], y, stride=[stride], padding=[padding], dilation=[dilation], groups=2, tolerance=5e-7 if dtype == torch.float32 else None)
        x, w = normal(1, 3, 5, 6, dtype=dtype), normal(2, 3, 2, 3, dtype=dtype)
        y = F.conv2d(x.double(), w.double(), None, (2, 1), (1, 0), (1, 2)).to(dtype)
        c.add("conv", [x, w], y, stride=[2, 1], padding=[1, 0], dilation=[1, 2], groups=1, tolerance=5e-7 if dtype == torch.float32 else None)
    x, w = normal(1, 3, 4, 4), normal(5, 3, 2, 2)
    c.add("conv", [x, w], F.conv2d(x.double(), w.double(), stride=2).float(), stride=[2, 2], padding=[0, 0], dilation=[1, 1], groups=1, tolerance=5e-7)
    depthwise = normal(3, 1, 4)
    x = normal(2, 3, 5)
    c.add("conv", [x, depthwise], F.conv1d(x.double(), depthwise.double(), padding=3, groups=3).float(), stride=[1], padding=[3], dilation=[1], groups=3, tolerance=5e-7)
    c.add("conv", [torch.zeros(0, 3, 5), depthwise], torch.zeros(0, 3, 2), stride=[1], padding=[0], dilation=[1], groups=3)
    c.write()


def quantize():
    c = Cases("quantize")
    c.note("values that the format holds exactly come back unchanged")
    for name in MX + FP8:
        x = exact_in(name, 2, 3, 40) if name != "fp8_128x128" else exact_in(name, 3, 130)
        tolerance = 1e-6 if name.startswith("nvfp4") else 0
        for dtype in (torch.float32, torch.bfloat16):
            c.add("quantize", [x.to(dtype)], (x, name), tolerance=tolerance, to=name)
        c.add("dequantize", [(x, name)], x.float(), tolerance=tolerance, to=torch.float32)
        c.add("dequantize", [(x, name)], x.to(torch.bfloat16), tolerance=0, to=torch.bfloat16)
    c.note("rounding by hand: amax 3.5 needs the scale 1 rounded up and 0.5 by the floor rule, where 3.5 saturates to 3; 1.25 is a tie")
    x = torch.tensor([3.5, 1.25, -0.25, 0.2])
    c.add("quantize", [x], (torch.tensor([4.0, 1.0, 0.0, 0.0]), "mxfp4"), tolerance=0, to="mxfp4")
    c.add("quantize", [x], (torch.tensor([3.0, 1.0, -0.25, 0.25]), "mxfp4"), tolerance=0, to="mxfp4", floor=True)
    c.note("a second-level scale that was calibrated")
    x = exact_in("nvfp4", 2, 32)
    c.add("quantize", [x, torch.tensor(0.5)], (x, "nvfp4"), tolerance=1e-6, to="nvfp4")
    c.add("quantize", [torch.zeros(2, 0)], (torch.zeros(2, 0), "mxfp8"), to="mxfp8")
    c.add("quantize", [torch.zeros(0, 32)], (torch.zeros(0, 32), "nvfp4"), to="nvfp4")
    nan_block = torch.ones(40)
    nan_block[35] = nan
    back = nan_block.clone()
    back[32:] = nan
    c.add("quantize", [nan_block], (back, "mxfp8"), to="mxfp8")
    c.note("scales in tiles: the same numbers")
    x = exact_in("mxfp8", 2, 3, 40)
    c.add("quantize", [x], (x, "mxfp8@tile128x4"), tolerance=0, to="mxfp8", tiled=True)
    c.add("tile_scales", [(x, "mxfp8")], (x, "mxfp8@tile128x4"), tolerance=0)
    c.write()


def philox(seed, counter):
    """Philox4x32-10, by its paper: four words of 32 bits, of a counter of four."""
    word, key, most = list(counter), [seed & 0xFFFFFFFF, seed >> 32], 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * word[0], 0xCD9E8D57 * word[2]
        word = [(b >> 32) ^ word[1] ^ key[0], b & most, (a >> 32) ^ word[3] ^ key[1], a & most]
        key = [(key[0] + 0x9E3779B9) & most, (key[1] + 0xBB67AE85) & most]
    return word


def token_of(logits, settings, seed, draw, counts=None, bias=None, mask=None):
    """The rule of sample in double, by sorting. An id that another number of digits could change is refused."""
    temperature, top_k, top_p, min_p, repetition, presence, frequency = settings
    x = logits.double().clone()
    if bias is not None:
        x += bias.double()
    if counts is not None:
        made = counts % 2**30
        hot = torch.where(x > 0, x / repetition, x * repetition) - frequency * made - presence * (made > 0)
        x = torch.where(counts != 0, hot, x)
    if mask is not None:
        x = torch.where(mask, x, torch.tensor(-inf, dtype=torch.float64))
    if logits.isnan().any() or (logits == inf).any() or x.isnan().any() or (x == inf).any():
        return -1
    if (x == -inf).all():
        return -2
    order = [i for i in sorted(range(len(x)), key=lambda i: (-x[i].item(), i)) if x[i] > -inf]
    if temperature == 0:
        return order[0]
    heat = (x - x.max()) / temperature
    if top_k >= 1:
        order = order[: int(top_k)]
    if 0 < top_p < 1:
        share = torch.exp(heat[order]).cumsum(0) / torch.exp(heat[order]).sum()
        assert (share - top_p).abs().min() > 1e-5
        order = order[: int((share < top_p).sum()) + 1]
    if min_p > 0:
        assert (torch.exp(heat[order]) / min_p - 1).abs().min() > 1e-5
        order = [i for i in order if torch.exp(heat[i]) >= min_p]
    score = {i: heat[i].item() - float(np.log(-np.log1p(-((philox(seed, (i // 4, draw & 0xFFFFFFFF, draw >> 32, 0))[i % 4] >> 1) + 0.5) / 2**31))) for i in order}
    best = sorted(score, key=lambda i: -score[i])
    assert len(best) == 1 or score[best[0]] - score[best[1]] > 1e-4
    return best[0]


def sample():
    c = Cases("sample")

    def rows(logits, settings, draws, counts=None, bias=None, mask=None, row=None, best=None):
        """mask: bools."""
        settings, draws = torch.tensor(settings), torch.tensor(draws)
        number = range(len(logits)) if row is None else row.tolist()
        picked = lambda x, i: None if x is None or number[i] < 0 else x[number[i]]
        ids = torch.tensor([token_of(logits[i], settings[i].tolist(), draws[i][0].item() % 2**64, draws[i][1].item() % 2**64, picked(counts, i), picked(bias, i), picked(mask, i))
                            for i in range(len(logits))])
        logs = torch.log_softmax(logits.double(), 1)
        outputs = [ids, torch.where(ids < 0, nan, logs.gather(1, ids.clamp(0)[:, None])[:, 0]).float()]
        if best is not None:
            values, places = logs.sort(dim=1, descending=True, stable=True)
            outputs += [torch.where(ids[:, None] < 0, -1, places[:, :best]), torch.where(ids[:, None] < 0, nan, values[:, :best]).float()]
        words = None
        if mask is not None:
            padded = F.pad(mask.int(), (0, -mask.shape[1] % 32)).view(len(mask), -1, 32)
            words = (padded.long() << torch.arange(32)).sum(2)
            words = torch.where(words >= 2**31, words - 2**32, words).int()
        inputs = [logits, settings, draws, row, counts, bias, words]
        while inputs[-1] is None:
            inputs.pop()
        c.add("sample", inputs, outputs, tolerance=2e-6, **({} if best is None else {"length": best}))

    plain = lambda temperature, top_k=0.0, top_p=0.0, min_p=0.0: [float(temperature), float(top_k), float(top_p), float(min_p), 1.0, 0.0, 0.0]
    c.note("the largest; of equal ones the first")
    rows(torch.tensor([[1.0, 3.0, 3.0, -2.0], [-5.0, -inf, -4.0, -4.5]]), [plain(0)] * 2, [[0, 0]] * 2)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        c.note("draws among all, and the likeliest ones in order")
        rows(normal(4, 37, dtype=dtype, scale=2), [plain(t) for t in (0.3, 1, 2, 50)], [[1, 0], [-1, 1], [2**62 + 12345, 2**40 + 3], [7, -2]], best=3)
        c.note("top_k, top_p, min_p, and all of them")
        rows(normal(5, 40, dtype=dtype, scale=2), [plain(1, 1), plain(1.5, 7), plain(1, 0, 0.6), plain(2, 0, 0, 0.1), plain(1.5, 20, 0.9, 0.05)], [[s, 3] for s in range(5)])
    c.note("what is equal at the cut: the least ids are kept")
    rows(torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]] * 6), [plain(5, 3)] * 3 + [plain(5, 0, 0.45)] * 3, [[s, s] for s in range(6)])
    c.note("bias, counts of what was made and of what the prompt has, masks")
    counts = torch.tensor([0, 0, 1, 5, 2**30, 2**30 + 2, 0]).int()
    some = normal(3, 40, dtype=torch.float32)
    rows(some, [[t, 0.0, 0.0, 0.0, 1.5, 0.25, 0.5] for t in (0.0, 1.0, 2.0)], [[s, 9] for s in range(3)], counts=counts[integers(0, 7, 3, 40)])
    rows(some, [plain(1)] * 3, [[s, 9] for s in range(3)], bias=normal(3, 40, scale=3), best=2)
    rows(some, [plain(t) for t in (0, 1, 3)], [[s, 9] for s in range(3)], mask=integers(0, 3, 3, 40) == 0, best=2)
    c.note("of the rows that are named, or of none")
    rows(normal(4, 40), [[t, 9.0, 0.0, 0.0, 1.5, 0.25, 0.5] for t in (0.0, 1.0, 2.0, 1.0)], [[s, 9] for s in range(4)], counts=counts[integers(0, 7, 2, 40)], bias=normal(2, 40),
         mask=integers(0, 2, 2, 40) == 0, row=torch.tensor([1, 0, -1, 0]))
    c.note("rows that have no token")
    rows(torch.tensor([[1.0, nan, 2.0], [-inf, -inf, -inf], [0.0, 1.0, 2.0], [inf, 1.0, 2.0]]), [plain(0), plain(1), plain(1), plain(1)], [[0, 0]] * 4,
         mask=torch.tensor([[True, True, True], [True, True, True], [False, False, False], [True, True, True]]), best=1)
    c.write()


def optimizer():
    c = Cases("optimizer")

    def step(p, m, v, g, rate, count, scale=None, decay=0.01, betas=(0.9, 0.999), eps=1e-8, steps=1):
        """What torch.optim.AdamW makes of them, in f64."""
        w = torch.nn.Parameter(p.double().clone())
        adamw = torch.optim.AdamW([w], lr=rate, betas=betas, eps=eps, weight_decay=decay)
        w.grad = g.double() * (1 if scale is None else scale)
        adamw.state[w] = {"step": torch.tensor(float(count - 1)), "exp_avg": m.double().clone(), "exp_avg_sq": v.double().clone()}
        adamw.step()
        state = adamw.state[w]
        return [w.detach().to(p.dtype), state["exp_avg"].to(m.dtype), state["exp_avg_sq"].to(v.dtype)]

    def add(p, m, v, g, rate, count, scale=None, tolerance=None, **more):
        scalars = [torch.tensor(rate, dtype=torch.float64), torch.tensor(count), *([torch.tensor(scale, dtype=torch.float64)] if scale is not None else [])]
        attrs = {"beta1": more.get("betas", (0.9, 0.999))[0], "beta2": more.get("betas", (0.9, 0.999))[1], "decay": more.get("decay", 0.01), "eps": more.get("eps", 1e-8)}
        c.add("adamw", [p, m, v, g, *scalars], step(p, m, v, g, rate, count, scale, **more), tolerance=tolerance, **attrs)

    for dtype in FLOATS:
        for count in (1, 2, 1000):
            add(normal(2, 5, dtype=dtype), normal(2, 5, dtype=dtype, scale=0.1), normal(2, 5, dtype=dtype, scale=0.1).abs(), normal(2, 5, dtype=dtype), 0.01, count, betas=(0.8912347, 0.9973219))
        add(normal(7, dtype=dtype), normal(7), normal(7).abs(), normal(7, dtype=dtype), 0.003, 3, scale=0.25, decay=0.1, betas=(0.8123457, 0.9534567), eps=1e-6)
    add(normal(3), normal(3), normal(3).abs(), normal(3), 0.5, 9, decay=0, betas=(0.0, 0.0), eps=1.0)
    add(normal(0, 4), normal(0, 4), normal(0, 4), normal(0, 4), 0.5, 9)
    p, m, v = normal(3), normal(3), normal(3).abs()
    scalars = [torch.tensor(0.5), torch.tensor(1, dtype=torch.int32), torch.tensor(nan)]
    c.note("a scale of NaN leaves all as it is")
    c.add("adamw", [p, m, v, special(torch.float32)[9:], *scalars], [p, m, v], beta1=0.9, beta2=0.99, eps=1e-8, tolerance=0)
    with apart("several"):
        c.note("several parameters at once, of their own shapes and formats")
        groups = [[normal(*shape, dtype=dtype), normal(*shape), normal(*shape).abs(), normal(*shape, dtype=other)]
                  for shape, dtype, other in (((2, 3), torch.float32, torch.float32), ((5,), torch.bfloat16, torch.float32), ((), torch.float32, torch.bfloat16), ((0, 2), torch.float32, torch.float32))]
        for scale in (0.5, nan):
            scalars = [torch.tensor(0.01, dtype=torch.float64), torch.tensor(3), torch.tensor(scale, dtype=torch.float64)]
            made = [x for p, m, v, g in groups for x in ([p, m, v] if scale != scale else step(p, m, v, g, 0.01, 3, scale))]
            c.add("adamw", groups[0] + scalars + [x for group in groups[1:] for x in group], made, tolerance=0 if scale != scale else 2e-7, beta1=0.9, beta2=0.999, decay=0.01, eps=1e-8)

    def accumulate(pairs, factor):
        sums = [s if factor == 0 else (s.double() + g.double() * factor).to(s.dtype) for s, g in pairs]
        c.add("accumulate", [*pairs[0], torch.tensor(factor, dtype=torch.float64), *[x for pair in pairs[1:] for x in pair]], sums, tolerance=None if factor != 0 and any(s.dtype != torch.float32 for s, g in pairs) else 0 if factor == 0 else 2e-7)

    with apart("accumulate"):
        for dtype in FLOATS:
            accumulate([(normal(2, 5, dtype=dtype), normal(2, 5, dtype=dtype))], 0.25)
        accumulate([(normal(3), normal(3)), (normal(2, 2), normal(2, 2, dtype=torch.bfloat16)), (normal(), normal()), (normal(0, 2), normal(0, 2))], 0.3)
        c.note("a factor of 0 leaves all as it is")
        accumulate([(normal(3), special(torch.float32)[9:12]), (normal(2), normal(2))], 0.0)
    with apart("sum_squares"):
        def squares(*xs):
            c.add("sum_squares", list(xs), torch.stack([x.double().square().sum() for x in xs]).sum().to(torch.float64 if any(x.dtype == torch.float64 for x in xs) else torch.float32), tolerance=2e-7)

        for dtype in FLOATS:
            squares(normal(3, 5, dtype=dtype))
        squares(normal(2, 3), normal(), normal(4, dtype=torch.bfloat16), normal(0, 2), normal(5, dtype=torch.float16))
        squares(normal(300), torch.tensor([inf]))
    c.write()


def collective():
    c = Cases("collective")

    def reduced(xs, by):
        """In order of ranks, in fp32 or f64, rounded once."""
        wide = torch.float64 if xs[0].dtype == torch.float64 else torch.float32 if xs[0].dtype.is_floating_point else xs[0].dtype
        made = xs[0].to(wide)
        for x in xs[1:]:
            made = made + x.to(wide) if by == "sum" else torch.maximum(made, x.to(wide))
        return made.to(xs[0].dtype)

    def each(op, xs, result, **attrs):
        for rank in {0, len(xs) - 1}:
            c.add(op, xs, result(rank), tolerance=0, at=rank, over='"tp"', ranks=len(xs), **attrs)

    for dtype in FLOATS + INTS + [torch.bool]:
        xs = [normal(2, 6, dtype=dtype) if dtype.is_floating_point else integers(0, 2 if dtype == torch.bool else 200, 2, 6, dtype=dtype) for _ in range(3)]
        for by in ("sum", "max"):
            each("all_reduce", xs, lambda rank: reduced(xs, by), by=f'"{by}"')
            each("reduce_scatter", xs, lambda rank: reduced(xs, by).chunk(3, dim=1)[rank], by=f'"{by}"', axis=1)
        for axis in (0, 1):
            each("all_gather", xs, lambda rank: torch.cat(xs, dim=axis), axis=axis)
            each("all_to_all", xs, lambda rank: torch.cat([x.chunk(3, dim=1)[rank] for x in xs], dim=axis), split=1, concat=axis)
    c.note("sums of one order, NaN and infinities, zeros of both signs")
    xs = [torch.tensor([1e8, inf, -inf, nan, -0.0, 0.0]), torch.tensor([1.0, 1.0, inf, 1.0, -0.0, -0.0]), torch.tensor([-1e8, 2.0, 1.0, nan, -0.0, 0.0])]
    each("all_reduce", xs, lambda rank: reduced(xs, "sum"), by='"sum"')
    each("all_reduce", xs[:1] + [x[:6] for x in xs[1:]], lambda rank: reduced(xs, "max"), by='"max"')
    c.note("one rank")
    x = normal(2, 3)
    c.add("all_reduce", [x], x, tolerance=0, over='"tp"', ranks=1, by='"sum"')
    c.add("all_to_all", [x], x, tolerance=0, over='"tp"', ranks=1, split=0, concat=1)
    c.write()


if __name__ == "__main__":
    for family in (pointwise, create, view, move, index, reduce, scan, route, norm, matmul, grouped, attention, attention_backward, mqa_logits, norm_backward, cross_entropy, dropout, cache, rotary, conv, quantize, sample, optimizer, collective):
        torch.manual_seed(1)
        family()
