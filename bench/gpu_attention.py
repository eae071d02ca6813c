"""Attention alone on an NVIDIA GPU: Deepwell beside PyTorch's scaled_dot_product_attention.

    python bench/gpu_attention.py [--rounds 9] [--only decode]
    python bench/gpu_attention.py --errors

Both sides are CUDA graphs of calls over three sets of inputs, replayed in turns; the median is reported, with TFLOP/s of the pairs that are seen (4 d for each) or,
for one query, GB/s of keys and values; of mla, whose heads share keys of 576 columns and whose values are the first 512 of them, both. Errors are the largest difference beside the largest value, against fp32. --errors: errors of both against fp64 of the same inputs, for inputs that are hard, causal but with a mask.
Needs torch with CUDA and the deepwell package.
"""
import argparse
import functools
import math
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
    ("f32", 1, 12, 12, 512, 512, 64, True, torch.float32),
    ("f32", 1, 32, 8, 2048, 2048, 128, True, torch.float32),
    ("f32", 1, 32, 32, 2048, 2048, 128, True, torch.float32),
    ("f32", 8, 16, 16, 512, 512, 64, True, torch.float32),
    ("f32", 4, 16, 16, 2048, 2048, 64, True, torch.float32),
    ("f32", 4, 16, 16, 2048, 2048, 64, False, torch.float32),
    ("f32", 1, 8, 8, 8192, 8192, 64, True, torch.float32),
    ("f32", 1, 8, 8, 8192, 8192, 64, False, torch.float32),
    ("f32", 2, 16, 16, 4096, 4096, 128, True, torch.float32),
    ("f32", 2, 16, 16, 4096, 4096, 128, False, torch.float32),
    ("decode", 1, 32, 32, 1, 16384, 128, False, torch.bfloat16),
    ("decode", 64, 32, 32, 1, 4096, 128, False, torch.bfloat16),
    ("decode", 16, 32, 8, 1, 4096, 128, False, torch.bfloat16),
    ("decode", 1, 32, 8, 1, 2048, 128, False, torch.bfloat16),
    ("decode", 1, 32, 32, 1, 1, 128, False, torch.bfloat16),
    ("decode", 1, 12, 12, 1, 1024, 64, False, torch.float32),
]
# texts, heads, keys; one query
LATENT = [(texts, 128, keys) for texts in (1, 16, 64) for keys in (1024, 4096, 16384)] + [(16, 16, 4096), (64, 16, 4096)]
LATENT_WIDTH, LATENT_VALUES, LATENT_SCALE = 576, 512, 192 ** -0.5
SETS = 3


class Attention(torch.nn.Module):
    def __init__(self, causal, grouped):
        super().__init__()
        self.options = dict(is_causal=causal, enable_gqa=grouped)

    def forward(self, q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)


class Latent(torch.nn.Module):
    """Multi-head latent attention, absorbed, of one query: values are columns of keys."""

    def forward(self, q, k):
        return F.scaled_dot_product_attention(q, k, k[..., :LATENT_VALUES], scale=LATENT_SCALE, enable_gqa=True)


def latent_by_rows(q, k):
    """The same with heads as queries of one head, of which PyTorch does not repeat keys."""
    return F.scaled_dot_product_attention(q.transpose(1, 2), k, k[..., :LATENT_VALUES], scale=LATENT_SCALE).transpose(1, 2)


def times_of(calls, sets, rounds):
    """Microseconds of a call, by side, and its first results."""
    graphs = {}
    for side, call in calls.items():
        graph, kept = capture([functools.partial(call, *inputs) for inputs in sets])
        graph.replay()
        graphs[side] = (graph, kept, kept[0].clone())
    count = {side: max(1, int(20000 / replay(graph, 2))) for side, (graph, _, _) in graphs.items()}
    times = {side: [] for side in graphs}
    for _ in range(rounds):
        for side, (graph, _, _) in graphs.items():
            times[side].append(replay(graph, count[side]) / len(sets))
    return {side: statistics.median(x) for side, x in times.items()}, {side: result for side, (_, _, result) in graphs.items()}


def measure_latent(case, rounds):
    texts, heads, keys = case
    torch.manual_seed(0)
    sets = [tuple(torch.randn(texts, n, length, LATENT_WIDTH, device="cuda", dtype=torch.bfloat16) for n, length in ((heads, 1), (1, keys))) for _ in range(SETS)]
    want = latent_by_rows(*(x[:1].float() for x in sets[0]))
    us, results = times_of({"torch": latent_by_rows, "deepwell": deepwell.optimize(Latent().eval(), strict=True)}, sets, rounds)
    line = f"mla      {texts:3d} x {heads:3d}/1 heads x 1 x {keys:5d} x {LATENT_WIDTH}"
    for side, x in us.items():
        error = (results[side][:1].float() - want).abs().max().item() / want.abs().max().item()
        line += f"   {side} {x:9.1f} us {2 * texts * keys * LATENT_WIDTH / x / 1e3:5.0f} GB/s {2 * texts * heads * keys * (LATENT_WIDTH + LATENT_VALUES) / x / 1e6:4.0f} TFLOP/s {error:.1e}"
    print(f"{line}   {us['torch'] / us['deepwell']:.2f}x", flush=True)


def measure(case, rounds):
    name, b, h, g, s, t, d, causal, dtype = case
    torch.manual_seed(0)
    module = Attention(causal, g != h).eval()
    sets = [tuple(torch.randn(b, n, length, d, device="cuda", dtype=dtype) for n, length in ((h, s), (g, t), (g, t))) for _ in range(SETS)]
    want = module(*(x[:1].float() for x in sets[0]))
    us, results = times_of({"torch": module, "deepwell": deepwell.optimize(module, strict=True)}, sets, rounds)
    pairs = b * h * (s * t if not causal else s * (s + 1) / 2)
    amount = {side: f"{4 * d * pairs / x / 1e6:7.0f} TFLOP/s" if s > 1 else f"{2 * b * g * t * d * sets[0][1].element_size() / x / 1e3:7.0f} GB/s" for side, x in us.items()}
    error = {side: (x[:1].float() - want).abs().max().item() / want.abs().max().item() for side, x in results.items()}
    print(f"{name:8s} {b:3d} x {h:2d}/{g:2d} heads x {s:5d} x {t:5d} x {d:3d} {'causal' if causal else 'full  '} {str(dtype)[6:]:8s} "
          f"torch {us['torch']:9.1f} us {amount['torch']} {error['torch']:.1e}   deepwell {us['deepwell']:9.1f} us {amount['deepwell']} {error['deepwell']:.1e}   "
          f"{us['torch'] / us['deepwell']:.2f}x", flush=True)


def exact(q, k, v, causal, mask):
    """The op's result in fp64: a hidden key is not seen, whatever it holds, and a row that sees none is 0."""
    q, k, v = (x.double() for x in (q, k, v))
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    if causal:
        seen = seen.tril()
    if mask is not None:
        seen = seen & mask
    scores = (q @ k.mT / math.sqrt(q.shape[3])).masked_fill(~seen, -math.inf)
    weights = torch.where((scores == -math.inf).all(-1, keepdim=True), 0, torch.softmax(scores, -1))
    sums = weights @ v.nan_to_num(0)
    return torch.where((weights > 0).double() @ v.isnan().double() > 0, math.nan, sums)


def growing(step, q, k):
    """Keys whose largest score, in powers of 2, grows by step with each 64 of them, from 0 on."""
    place = torch.arange(k.shape[2], device=k.device) // 64
    k[..., 0] = (place * step * math.log(2) * math.sqrt(k.shape[3])).to(k.dtype)
    q[..., 0] = 1
    k[..., 1:] /= 8


def hard(name, q, k, v):
    """The inputs of a case of --errors, and its mask."""
    mask = None
    if name == "large":
        q *= 8
        k *= 8
    elif name == "masked rows":
        mask = torch.rand(q.shape[2], k.shape[2], device=q.device) < 0.5
        mask[::7] = False
    elif name == "NaN in a key":
        k[:, :, 300, 3] = math.nan
    elif name == "inf in a key":
        k[:, :, 300, 3] = math.inf
    elif name == "NaN in a value":
        v[:, :, 300, 3] = math.nan
    elif name.startswith("growing"):
        growing(float(name.split()[1]), q, k)
    return mask


HARD = ("random", "large", "growing 7.9", "growing 8.1", "masked rows", "NaN in a key", "inf in a key", "NaN in a value")


def compare(name, width, dtype, device):
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 4, 1024, width, device=device).to(dtype) for _ in range(3))
    mask = hard(name, q, k, v)
    module = Attention(mask is None, False).eval()
    want = exact(q, k, v, mask is None, mask)
    line = f"{name:15s} width {width:3d} {str(dtype)[6:]:8s}"
    for side, call in (("torch", module), ("deepwell", deepwell.optimize(module, strict=True))):
        got = (call(q, k, v) if mask is None else call(q, k, v, mask)).double()
        both = want.isfinite() & got.isfinite()
        difference, wrong = (got - want)[both], int((want.isnan() != got.isnan()).any(-1).sum())
        line += f"   {side} largest {difference.abs().max().item() / want[both].abs().max().item():.1e} rms {(difference.square().mean() / want[both].square().mean()).sqrt().item():.1e}"
        line += f" rows NaN {int(got.isnan().any(-1).sum())}, not as they should be {wrong}"
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", help="prefill, f32, decode or mla")
    parser.add_argument("--errors", action="store_true", help="errors alone, against fp64; without a GPU those of the CPU")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}, torch {torch.__version__}, deepwell {deepwell.__version__}")
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        if arguments.errors:
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                for width in (64, 128):
                    for name in HARD:
                        compare(name, width, dtype, device)
            return
        for case in CASES:
            if arguments.only in (None, case[0]):
                measure(case, arguments.rounds)
        for case in LATENT:
            if arguments.only in (None, "mla"):
                measure_latent(case, arguments.rounds)


if __name__ == "__main__":
    main()
