"""The logits of sparse attention (mqa_logits) on an NVIDIA GPU: Deepwell's kernels beside DeepGEMM's fp8_mqa_logits, where that can be imported.

    python bench/gpu_mqa_logits.py [--kernels build/bench/cuda_kernels] [--rounds 7]

Queries are the last of the keys, and each sees those up to its own. Ours by cuda_kernels, a process of its own, which times calls with factors of 1 and the same ranges, and writes -inf wherever no key is
seen; DeepGEMM's in CUDA graphs, without its kernel that does so and with it. TFLOP/s are those of the products of the pairs that are seen. Needs torch with CUDA.
"""
import argparse

import torch

from gpu_graphs import call_us, kernel_us

# queries, keys, heads, width
CASES = [(m, n, h, d) for m in (2048, 8192) for n in (8192, 65536) for h, d in ((32, 128), (64, 128), (64, 64))]
CALLS = 3


def peer_us(case, clean, rounds):
    import deep_gemm
    m, n, h, d = case
    q = torch.randn(m, h, d, device="cuda").to(torch.float8_e4m3fn)
    k = torch.randn(n, d, device="cuda").to(torch.float8_e4m3fn), torch.rand(n, device="cuda") + 0.5
    weights, start = torch.randn(m, h, device="cuda"), torch.zeros(m, dtype=torch.int32, device="cuda")
    end = torch.arange(m, dtype=torch.int32, device="cuda") + (n - m)
    return call_us([lambda: deep_gemm.fp8_mqa_logits(q, k, weights, start, end, clean_logits=clean)] * CALLS, rounds)


def our_us(program, case):
    """Of each kernel but the plain one, by its name."""
    m, n, h, d = case
    line = f"mqa_logits e4m3[1,{m},{h},{d}] e4m3[1,{n},{d}] f32[1,{m},{h}] f32[1,{n}] - i32[1,{m}] choice=3:1 range=5:{n - m}:{n - 1} ascending=5"
    return kernel_us(program, line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", default="build/bench/cuda_kernels", help="the program cuda_kernels; '': DeepGEMM alone")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for case in CASES:
        m, n, h, d = case
        us = our_us(arguments.kernels, case) if arguments.kernels else {}
        try:
            us |= {"deep_gemm": peer_us(case, False, arguments.rounds), "deep_gemm, -inf": peer_us(case, True, arguments.rounds)}
        except ImportError as error:
            print(f"DeepGEMM is not beside: {error}")
        flops = 2 * h * d * (m * (n - m) + m * (m - 1) / 2)
        shown = "   ".join(f"{name} {x:8.1f} us {flops / x / 1e6:5.0f}" for name, x in us.items())
        print(f"{m:5d} x {n:6d}, {h:2d} heads of {d:3d}   {shown}", flush=True)


if __name__ == "__main__":
    main()
