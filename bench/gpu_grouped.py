"""Rows in groups, as experts have them, and fp32 products on an NVIDIA GPU: Deepwell beside PyTorch.

    python bench/gpu_grouped.py [--rounds 9] [--formats bf16,f32,fp8] [CASES, as 16384:8x14336x4096 or 1024x1024x1024 ...]

A case with a colon is rows:groups x n x k, the rows dealt to the groups at random; one without is m x n x k, of f32 alone, without tf32. Both sides are CUDA graphs of calls over sets of
inputs of 200 MB and more, replayed in turns; the median is reported. The peer of bf16 is torch._grouped_mm, or, where there is none, torch.matmul for each group that has rows (whose
sizes it knows beforehand); that of fp8 torch._scaled_grouped_mm on operands quantised beforehand by rows, while Deepwell's call quantises a each time. Differences are the
norm of the difference of both results over the norm. Needs torch with CUDA and the deepwell package.
"""
import argparse
import statistics
import time

import torch

import deepwell
import deepwell.ops
from gpu_graphs import capture, replay

CASES = ["4096x4096x4096", "1024x1024x1024", "16384:64x1408x2048", "64:64x1408x2048", "16384:8x14336x4096", "64:8x14336x4096"]
SETS_BYTES = 200e6
FP8_MOST = 448.0


class Experts(torch.nn.Module):
    def __init__(self, b):
        super().__init__()
        self.b = torch.nn.Parameter(b, requires_grad=False)

    def forward(self, a, offsets):
        return torch._grouped_mm(a, self.b.transpose(1, 2), offs=offsets)


def each_group(a, b, offsets, sizes):
    out = torch.zeros(a.shape[0], b.shape[1], device=a.device, dtype=a.dtype)
    begin = 0
    for group, size in enumerate(sizes):
        if size:
            torch.matmul(a[begin:begin + size], b[group].t(), out=out[begin:begin + size])
        begin += size
    return out


def by_rows(x):
    """e4m3 codes and a factor for each row."""
    scale = x.abs().amax(-1).float().clamp_(min=1e-12) / FP8_MOST
    return (x.float() / scale.unsqueeze(-1)).to(torch.float8_e4m3fn), scale


def grouped_sides(shape, format):
    """{side: a call for each set}; sizes of the groups."""
    rows, groups, n, k = shape
    counts = torch.bincount(torch.randint(groups, (rows,), device="cuda"), minlength=groups)
    offsets, sizes = counts.cumsum(0).to(torch.int32), counts.tolist()
    bytes_of_b = groups * n * k * (2 if format == "bf16" else 1)
    sets = [torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    weights = [torch.randn(groups, n, k, device="cuda", dtype=torch.bfloat16) for _ in range(max(1, round(SETS_BYTES / bytes_of_b)))]
    pairs = [(a, weights[i % len(weights)]) for i, a in enumerate(sets)]
    ours, peers = [], []
    for a, b in pairs:
        if format == "bf16":
            ours.append(lambda a=a, b=b: torch.ops.deepwell.grouped_gemm(a, b, offsets, transpose_b=True))
            if hasattr(torch, "_grouped_mm"):
                peers.append(lambda a=a, b=b: torch._grouped_mm(a, b.transpose(1, 2), offs=offsets))
            else:
                peers.append(lambda a=a, b=b: each_group(a, b, offsets, sizes))
            continue
        module = deepwell.optimize(Experts(b).eval(), precision="fp8", strict=True)
        ours.append(lambda a=a, module=module: module(a, offsets))
        (a8, a_scale), (b8, b_scale) = by_rows(a), by_rows(b)
        peers.append(lambda a8=a8, b8=b8, a_scale=a_scale, b_scale=b_scale: torch._scaled_grouped_mm(a8, b8.transpose(1, 2), a_scale, b_scale, offs=offsets, out_dtype=torch.bfloat16))
    return {"deepwell": ours, "torch": peers}, f"{sum(size > 0 for size in sizes)} of {groups} groups, at most {max(sizes)} rows"


def square_sides(shape):
    m, n, k = shape
    count = max(2, int(SETS_BYTES / (4 * (m * k + n * k + m * n))))
    pairs = [(torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")) for _ in range(count)]
    return {"deepwell": [lambda a=a, b=b: torch.ops.deepwell.gemm(a, b, transpose_b=True) for a, b in pairs],
            "torch": [lambda a=a, b=b: torch.matmul(a, b.t()) for a, b in pairs]}, ""


def measure(case, format, rounds):
    rows, _, product = case.partition(":")
    shape = tuple(map(int, ([rows] if product else []) + (product or rows).split("x")))
    torch.manual_seed(0)
    sides, words = grouped_sides(shape, format) if product else square_sides(shape)
    graphs, results = {}, {}
    for side, calls in sides.items():
        graphs[side], kept = capture(calls)
        results[side] = kept
    first = {side: kept[0].float() for side, kept in results.items()}
    difference = ((first["deepwell"] - first["torch"]).norm() / first["torch"].norm()).item()
    counts = {side: max(1, min(50, int(8000 / max(replay(graph, 1), 1)))) for side, graph in graphs.items()}
    times = {side: [] for side in graphs}
    for _ in range(rounds):
        for side, graph in graphs.items():
            time.sleep(0.01)
            times[side].append(replay(graph, counts[side]) / len(sides[side]))
    us = {side: statistics.median(x) for side, x in times.items()}
    flops = 2.0 * shape[0] * shape[-1] * shape[-2]
    print(f"{format:5s} {case:22s} torch {us['torch']:9.1f} us {flops / us['torch'] / 1e6:7.1f} TFLOP/s   deepwell {us['deepwell']:9.1f} us {flops / us['deepwell'] / 1e6:7.1f} TFLOP/s   "
          f"{us['torch'] / us['deepwell']:.2f}x   difference {difference:.1e}   {words}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--formats", default="bf16,f32,fp8")
    parser.add_argument("cases", nargs="*", default=CASES)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, deepwell {deepwell.__version__}; the ratio is torch's time over ours", flush=True)
    with torch.no_grad():
        for format in arguments.formats.split(","):
            for case in arguments.cases:
                if (format == "f32") != (":" in case):
                    try:
                        measure(case, format, arguments.rounds)
                    except (RuntimeError, AttributeError) as error:
                        print(f"{format:5s} {case:22s} not timed: {str(error).splitlines()[0][:200]}", flush=True)
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
