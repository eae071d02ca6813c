"""Collectives."""

import torch

from families.cases import Cases, FLOATS, INTS, inf, integers, nan, normal


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
            c.add(op, xs, result(rank), tolerance=0, rank=rank, over='"tp"', ranks=len(xs), **attrs)

    for dtype in FLOATS + INTS + [torch.bool]:
        xs = [normal(2, 6, dtype=dtype) if dtype.is_floating_point else integers(0, 2 if dtype == torch.bool else 200, 2, 6, dtype=dtype) for _ in range(3)]
        for by in ("sum", "max"):
            each("all_reduce", xs, lambda rank: reduced(xs, by), by=f'"{by}"')
            each("reduce_scatter", xs, lambda rank: reduced(xs, by).chunk(3, dim=1)[rank], by=f'"{by}"', axis=1)
        for axis in (0, 1):
            each("all_gather", xs, lambda rank: torch.cat(xs, dim=axis), axis=axis)
            each("all_to_all", xs, lambda rank: torch.cat([x.chunk(3, dim=1)[rank] for x in xs], dim=axis), split=1, concat=axis)
    c.note("parts that ranks do not divide: rows of zeros behind the end, which fall away when parts are put together")
    for rows in (1, 4, 5):
        xs = [normal(2, rows, 2) for _ in range(3)]
        part = -(-rows // 3)
        each("reduce_scatter", xs, lambda rank: torch.nn.functional.pad(reduced(xs, "sum"), (0, 0, 0, 3 * part - rows))[:, rank * part : (rank + 1) * part], by='"sum"', axis=1)
        parts = [normal(2, part, 2) for _ in range(3)]
        each("all_gather", parts, lambda rank: torch.cat(parts, dim=1)[:, :rows], axis=1, length=rows)
    xs = [integers(0, 200, 4, dtype=torch.uint8) for _ in range(3)]
    each("reduce_scatter", xs, lambda rank: torch.nn.functional.pad(reduced(xs, "max"), (0, 2))[2 * rank : 2 * rank + 2], by='"max"', axis=0)
    c.note("sums of one order, NaN and infinities, zeros of both signs")
    xs = [torch.tensor([1e8, inf, -inf, nan, -0.0, 0.0]), torch.tensor([1.0, 1.0, inf, 1.0, -0.0, -0.0]), torch.tensor([-1e8, 2.0, 1.0, nan, -0.0, 0.0])]
    each("all_reduce", xs, lambda rank: reduced(xs, "sum"), by='"sum"')
    each("all_reduce", xs[:1] + [x[:6] for x in xs[1:]], lambda rank: reduced(xs, "max"), by='"max"')
    c.note("one rank")
    x = normal(2, 3)
    c.add("all_reduce", [x], x, tolerance=0, over='"tp"', ranks=1, by='"sum"')
    c.add("all_to_all", [x], x, tolerance=0, over='"tp"', ranks=1, split=0, concat=1)
    c.write()
