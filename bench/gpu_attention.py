"""Attention alone on an NVIDIA GPU: Deepwell beside PyTorch's scaled_dot_product_attention.

    python bench/gpu_attention.py [--rounds 9] [--only decode]

Both sides are CUDA graphs of calls over three sets of inputs, replayed in turns; the median is reported, with TFLOP/s of the pairs that are seen (4 d for each) or,
for one query, GB/s of keys and values. Errors are the largest difference beside the largest value, against fp32. Needs torch with CUDA and the deepwell package.
"""
import argparse
import functools
import statistics

import torch
import torch.nn.functional as F

import deepwell
from gpu_graphs import capture, replay

# name, batch, heads, heads of k, queries, keys, width, causal, dtype
CASES = [
    ("prefill", 32, 12, 12, 512, 512, 64, True, torch.bfloat16),
    ("prefill", 8, 16, 16, 2048, 2048, 128, True, torch.bfloat16),
    ("prefill", 4, 32, 32, 2048, 2048, 128, True, torch.bfloat16),
    ("prefill", 8, 32, 32, 2048, 2048, 64, False, torch.bfloat16),
    ("prefill", 2, 16, 16, 8192, 8192, 128, True, torch.bfloat16),
    ("prefill", 2, 16, 16, 8192, 8192, 128, False, torch.bfloat16),
    ("prefill", 4, 8, 8, 2048, 2048, 256, True, torch.bfloat16),
    ("prefill", 1, 12, 12, 512, 512, 64, True, torch.float32),
    ("prefill", 1, 32, 8, 2048, 2048, 128, True, torch.float32),
    ("decode", 1, 32, 32, 1, 16384, 128, False, torch.bfloat16),
    ("decode", 64, 32, 32, 1, 4096, 128, False, torch.bfloat16),
    ("decode", 16, 32, 8, 1, 4096, 128, False, torch.bfloat16),
    ("decode", 1, 32, 8, 1, 2048, 128, False, torch.bfloat16),
    ("decode", 1, 32, 32, 1, 1, 128, False, torch.bfloat16),
    ("decode", 1, 12, 12, 1, 1024, 64, False, torch.float32),
]
SETS = 3


class Attention(torch.nn.Module):
    def __init__(self, causal, grouped):
        super().__init__()
        self.options = dict(is_causal=causal, enable_gqa=grouped)

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **self.options)


def measure(case, rounds):
    name, b, h, g, s, t, d, causal, dtype = case
    torch.manual_seed(0)
    module = Attention(causal, g != h).eval()
    sets = [tuple(torch.randn(b, n, length, d, device="cuda", dtype=dtype) for n, length in ((h, s), (g, t), (g, t))) for _ in range(SETS)]
    want = module(*(x[:1].float() for x in sets[0]))
    graphs = {}
    for side, call in (("torch", module), ("deepwell", deepwell.optimize(module, strict=True))):
        graph, kept = capture([functools.partial(call, *inputs) for inputs in sets])
        graph.replay()
        graphs[side] = (graph, (kept[0][:1].float() - want).abs().max().item() / want.abs().max().item(), kept)
    count = {side: max(1, int(20000 / replay(graph, 2))) for side, (graph, _, _) in graphs.items()}
    times = {side: [] for side in graphs}
    for _ in range(rounds):
        for side, (graph, _, _) in graphs.items():
            times[side].append(replay(graph, count[side]) / SETS)
    us = {side: statistics.median(x) for side, x in times.items()}
    pairs = b * h * (s * t if not causal else s * (s + 1) / 2)
    amount = {side: f"{4 * d * pairs / x / 1e6:7.0f} TFLOP/s" if s > 1 else f"{2 * b * g * t * d * sets[0][1].element_size() / x / 1e3:7.0f} GB/s" for side, x in us.items()}
    error = {side: graphs[side][1] for side in graphs}
    print(f"{name:8s} {b:3d} x {h:2d}/{g:2d} heads x {s:5d} x {t:5d} x {d:3d} {'causal' if causal else 'full  '} {str(dtype)[6:]:8s} "
          f"torch {us['torch']:9.1f} us {amount['torch']} {error['torch']:.1e}   deepwell {us['deepwell']:9.1f} us {amount['deepwell']} {error['deepwell']:.1e}   "
          f"{us['torch'] / us['deepwell']:.2f}x", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", help="prefill or decode")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, deepwell {deepwell.__version__}")
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        for case in CASES:
            if arguments.only in (None, case[0]):
                measure(case, arguments.rounds)


if __name__ == "__main__":
    main()
