"""Pointwise ops."""

import pathlib
import re

import torch
import torch.nn.functional as F

from families.cases import Cases, FLOATS, INTS, begin, inf, integers, nan, normal, special

FORMULAS = pathlib.Path(__file__).parents[3] / "src" / "op" / "pointwise.def"

# Ops that PyTorch has under another name, or with other defaults.
def slope_of(function):
    def slope(x):
        x = x.detach().clone().requires_grad_()
        function(x).backward(torch.ones_like(x))
        return x.grad
    return slope


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


OTHERWISE = {
    "silu_slope": slope_of(F.silu), "gelu_slope": slope_of(F.gelu), "gelu_tanh_slope": slope_of(lambda x: F.gelu(x, approximate="tanh")),
    "quick_gelu": quick_gelu, "quick_gelu_slope": slope_of(quick_gelu),
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
    c.note("slopes where squares leave fp32's range, which are 0 or 1")
    ends = torch.tensor([1e14, -1e14, 1e20, -1e20, 1e38, -1e38])
    for name in ("silu_slope", "gelu_slope", "gelu_tanh_slope", "quick_gelu_slope"):
        c.add(name, [ends], of_torch(name)(ends.double()).float())
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
