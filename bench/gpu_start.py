"""From a model's file to its first output on an NVIDIA GPU, as a process of its own: loading of the library, the driver's and a context's start, the file, its weights, GPU code, and one run.

    python bench/gpu_start.py [--shape gpt2|llama-8b] [--command build/deepwell] [--precision bf16,fp8,mxfp8] [--rounds 5] [--device cuda] [--folder build/bench] [--warm-alone]

The model has random weights, in fp32 of GPT-2's shape and in bf16 of Llama-3.1-8B's; it is exported once and compiled once per precision. Told is the wall time of `deepwell generate` of one
token behind 64 and of `deepwell run` over as many, from the compiled `.dw` and from the exported `.pt2`, median [least, most] of the rounds in seconds: with the file and the library put out of
the system's cache of files before each start (cold), with them in it (warm), and warm without the driver's cache of compiled code. Beside them `deepwell probe`, which starts the driver and no
more. Needs torch for the export alone. --warm-alone: `generate` with the file in the system's cache and nothing else, which for 8 to 16 GB takes minutes less.
"""
import argparse
import os
import statistics
import subprocess
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

PROMPT = 64


class Gpt2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, width = x.shape
        q, k, v = (part.view(b, s, self.heads, width // self.heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, s, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """124M parameters in fp32."""
    positions = 1024

    def __init__(self, vocabulary=50257, width=768, heads=12, layers=12):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(self.positions, width)
        self.blocks = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids):
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, groups, inner):
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, groups * size, bias=False), nn.Linear(width, groups * size, bias=False)
        self.gate, self.up, self.down = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin):
        b, s, width = x.shape
        size, y = width // self.heads, self.norm1(x)
        q, k, v = (part.view(b, s, -1, size).transpose(1, 2) for part in (self.q(y), self.k(y), self.v(y)))
        q, k = (part * cos + torch.cat((-part[..., size // 2:], part[..., :size // 2]), dim=-1) * sin for part in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, s, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama8b(nn.Module):
    """Llama-3.1-8B's shape: 8.0G parameters in bf16."""
    positions = 8192

    def __init__(self, vocabulary=128256, width=4096, heads=32, groups=8, inner=14336, layers=32):
        super().__init__()
        self.tokens, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups, inner) for _ in range(layers))
        self.norm, size = nn.RMSNorm(width, eps=1e-5), width // heads
        self.register_buffer("rates", 5e5 ** (-torch.arange(0, size, 2, dtype=torch.float32) / size))

    def forward(self, input_ids):
        x = self.tokens(input_ids)
        angles = torch.arange(input_ids.shape[1], device=input_ids.device)[:, None] * self.rates
        cos, sin = (torch.cat((part, part), dim=-1).to(x.dtype) for part in (angles.cos(), angles.sin()))
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


SHAPES = {"gpt2": (Gpt2, torch.float32), "llama-8b": (Llama8b, torch.bfloat16)}


def export(shape, path):
    """Made where there is a GPU on it: eight thousand million random numbers take the host minutes."""
    kind, dtype = SHAPES[shape]
    torch.manual_seed(124)
    torch.set_default_dtype(dtype)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = kind().eval().requires_grad_(False)
        ids = torch.zeros(2, 24, dtype=torch.int64)
    torch.set_default_dtype(torch.float32)
    dims = {"input_ids": {0: torch.export.Dim("b", max=64), 1: torch.export.Dim("s", max=kind.positions)}}
    torch.export.save(torch.export.export(model, (ids,), dynamic_shapes=dims), path)


def write_ids(path):
    """A safetensors file of the input alone, written by hand: a header and its numbers."""
    header = '{"input_ids":{"dtype":"I64","shape":[1,%d],"data_offsets":[0,%d]}}' % (PROMPT, 8 * PROMPT)
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"".join(i.to_bytes(8, "little") for i in range(1, PROMPT + 1)))


def put_out(*paths):
    """Out of the system's cache of files; pages that a process maps stay."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def spent(command, environment):
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return time.perf_counter() - start


def tell(name, times):
    print(f"{name:40s} {statistics.median(times):7.3f} [{min(times):.3f}, {max(times):.3f}]", flush=True)


def tell_starts(name, command, files, args, usual):
    cold = []
    for _ in range(0 if args.warm_alone else args.rounds):
        put_out(*files)
        cold.append(spent(command, usual))
    if cold:
        tell(f"{name}, cold", cold)
    tell(f"{name}, warm", [spent(command, usual) for _ in range(args.rounds)])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", default="gpt2", choices=SHAPES)
    p.add_argument("--command", type=Path, default=Path("build/deepwell"))
    p.add_argument("--precision", default="bf16,fp8,mxfp8")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--device", default="cuda")
    p.add_argument("--folder", type=Path, default=Path("build/bench"))
    p.add_argument("--warm-alone", action="store_true")
    args = p.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    archive, ids = args.folder / f"gpu_start.{args.shape}.pt2", args.folder / "gpu_start.safetensors"
    if not archive.exists():
        export(args.shape, archive)
    write_ids(ids)
    places = args.command.resolve().parent, args.command.resolve().parent.parent / "lib"
    libraries = [path.resolve() for place in places for path in place.glob("libdeepwell.so*")]
    usual, uncached = dict(os.environ), dict(os.environ, CUDA_CACHE_DISABLE="1")
    tell("probe", [spent([args.command, "probe"], usual) for _ in range(args.rounds)])
    for precision in args.precision.split(","):
        compiled = args.folder / f"gpu_start.{args.shape}.{precision}.dw"
        chosen = ["--precision", precision, "--device", args.device]
        print(f"{precision}: compiled in {spent([args.command, 'compile', archive, '-o', compiled, *chosen], usual):.1f} s, {compiled.stat().st_size / 1e6:.0f} MB", flush=True)
        behind = ["--ids", ",".join(map(str, range(1, PROMPT + 1))), "--tokens", "1"]
        generate = [args.command, "generate", compiled, *behind, "--device", args.device]
        run = [args.command, "run", compiled, "--in", ids, "--out", args.folder / "gpu_start.out.safetensors", "--device", args.device]
        tell_starts(f"{precision} generate", generate, [compiled, *libraries], args, usual)
        if not args.warm_alone:
            tell_starts(f"{precision} run", run, [compiled, *libraries], args, usual)
            tell(f"{precision} generate, warm, no code cache", [spent(generate, uncached) for _ in range(args.rounds)])
        tell_starts(f"{precision} generate of the .pt2", [args.command, "generate", archive, *behind, *chosen], [archive, *libraries], args, usual)


if __name__ == "__main__":
    main()
