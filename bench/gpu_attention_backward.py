"""The gradients of attention on an NVIDIA GPU: Deepwell's kernels beside PyTorch's FlashAttention and cuDNN.

    python bench/gpu_attention_backward.py [--kernels build/bench/cuda_kernels] [--rounds 7]

PyTorch's backward operators alone, in CUDA graphs over three sets of inputs; FlashAttention's also where it is asked to be deterministic. Ours by cuda_kernels, a process of its own. TFLOP/s are those of five products
of the pairs that are seen, whatever a kernel makes twice. Needs torch with CUDA.
"""
import argparse

import torch

from gpu_graphs import call_us, kernel_us

# batch, heads, heads of k, queries = keys, width, causal
CASES = [
    (8, 12, 12, 256, 64, True),
    (8, 12, 12, 1024, 64, True),
    (4, 32, 32, 2048, 64, False),
    (8, 16, 16, 2048, 128, True),
    (2, 32, 8, 4096, 128, True),
    (2, 16, 16, 8192, 128, True),
    (2, 16, 16, 8192, 128, False),
]
SETS = 3
aten = torch.ops.aten


def flash(q, k, v, d, causal):
    out, lse, begin_q, begin_k, longest_q, longest_k, seed, unused, _ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    return lambda: aten._scaled_dot_product_flash_attention_backward(d, q, k, v, out, lse, begin_q, begin_k, longest_q, longest_k, 0.0, causal, seed, unused)


def cudnn(q, k, v, d, causal):
    out, lse, begin_q, begin_k, longest_q, longest_k, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
    return lambda: aten._scaled_dot_product_cudnn_attention_backward(d, q, k, v, out, lse, seed, offset, None, begin_q, begin_k, longest_q, longest_k, 0.0, causal)


def peer_us(way, deterministic, sets, causal, rounds):
    torch.use_deterministic_algorithms(deterministic)
    try:
        return call_us([way(*inputs, causal) for inputs in sets], rounds)
    except RuntimeError as error:
        print(f"  {str(error).splitlines()[0][:150]}")
        return None
    finally:
        torch.use_deterministic_algorithms(False)


def our_us(program, case):
    """Of each kernel that takes it, by its name."""
    b, h, g, s, d, causal = case
    q, k, row = f"bf16[{b},{h},{s},{d}]", f"bf16[{b},{g},{s},{d}]", f"f32[{b},{h},{s}]"
    line = f"attention_backward {q} {k} {k} {q} {row} {q} scale={d ** -0.5:.4f} {'causal=true ' if causal else ''}range=4:3:5"
    return kernel_us(program, line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", help="the program cuda_kernels")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for case in CASES:
        b, h, g, s, d, causal = case
        torch.manual_seed(0)
        sets = [[torch.randn(b, n, s, d, device="cuda", dtype=torch.bfloat16) for n in (h, h if g != h else g, h if g != h else g, h)] for _ in range(SETS)]
        us = {name: peer_us(way, fixed, sets, causal, arguments.rounds) for name, way, fixed in (("flash", flash, False), ("flash, deterministic", flash, True), ("cudnn", cudnn, False))}
        us |= our_us(arguments.kernels, case) if arguments.kernels else {}
        flops = 10 * b * h * d * (s * s if not causal else s * (s + 1) / 2)
        shown = "   ".join(f"{name} {x:8.1f} us {flops / x / 1e6:5.0f}" for name, x in us.items() if x is not None)
        print(f"{b:2d} x {h:2d}/{g:2d} x {s:5d} x {d:3d} {'causal' if causal else 'full  '}   {shown}", flush=True)


if __name__ == "__main__":
    main()
