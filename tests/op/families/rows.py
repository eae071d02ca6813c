"""Reductions, scans, routes of experts and norms."""

import torch
import torch.nn.functional as F

from families.cases import Cases, FLOATS, INTS, apart, inf, integers, nan, normal


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
    with apart("choose"):
        x, y = normal(5, 9), normal(5, 9).abs()
        v, i = x.topk(4, 1)
        w = y.gather(1, i)
        c.add("choose", [x], [v, i], tolerance=0, axis=1, length=4, largest=True)
        c.add("choose", [x, y], [(w / (w.sum(1, keepdim=True) + 0.5) * 2.5).bfloat16(), i], tolerance=0.01, axis=1, length=4, largest=True,
              steps='"sum(x0);add(t0,f32:0.5);div(x0,t1);mul(t2,f32:2.5);cast(t3,bf16)"')
        v, i = x.topk(2, 0, largest=False)
        c.add("choose", [x], [v.sum(0, keepdim=True), i], axis=0, length=2, steps='"sum(x0)"')
        v, i = x.topk(3, 1)
        c.add("choose", [x], [v.softmax(1), i], axis=1, length=3, largest=True, steps='"softmax(x0)"')
        p = x.softmax(1)
        v, i = p.topk(4, 1)
        c.add("choose", [x], [v / v.sum(1, keepdim=True), i], axis=1, length=4, largest=True, softmax=True, steps='"sum(x0);div(x0,t0)"')
        half = y.to(torch.float16)
        v, i = half.topk(3, 1)
        c.add("choose", [half], [v / v.sum(1, keepdim=True), i], axis=1, length=3, largest=True, steps='"sum(x0);div(x0,t0)"')
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
