"""Ops that make, view, move and look up."""

import torch
import torch.nn.functional as F

from families.cases import Cases, FLOATS, inf, integers, nan, normal


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
