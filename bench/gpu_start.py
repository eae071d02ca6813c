"""From a compiled model of 124M parameters to its first output on an NVIDIA GPU, as a process of its own: loading of the library, the driver's and a context's start, the file, its weights,
GPU code, and one run.

    python bench/gpu_start.py [--command build/deepwell] [--precision bf16,fp8,mxfp8] [--rounds 5] [--device cuda] [--folder build/bench]

The model is GPT-2's shape with random weights, exported and compiled once per precision (not timed). Told is the wall time of `deepwell generate MODEL.dw --tokens 1` behind 64 tokens and of
`deepwell run MODEL.dw` over as many, median [least, most] of the rounds in seconds: with the file and the library put out of the system's cache of files before each start (cold), with
them in it (warm), and warm without the driver's cache of compiled code. Beside them `deepwell probe`, which starts the driver and no more. Needs torch for the export alone.
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

WIDTH, HEADS, LAYERS, VOCABULARY, POSITIONS, PROMPT = 768, 12, 12, 50257, 1024, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (part.view(b, s, HEADS, WIDTH // HEADS).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(WIDTH, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, s, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids):
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def export(path):
    torch.manual_seed(124)
    dims = {"input_ids": {0: torch.export.Dim("b", max=64), 1: torch.export.Dim("s", max=POSITIONS)}}
    torch.export.save(torch.export.export(Gpt().eval(), (torch.zeros(2, 24, dtype=torch.int64),), dynamic_shapes=dims), path)


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


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", type=Path, default=Path("build/deepwell"))
    p.add_argument("--precision", default="bf16,fp8,mxfp8")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--device", default="cuda")
    p.add_argument("--folder", type=Path, default=Path("build/bench"))
    args = p.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    archive, ids = args.folder / "gpu_start.pt2", args.folder / "gpu_start.safetensors"
    if not archive.exists():
        export(archive)
    write_ids(ids)
    places = args.command.resolve().parent, args.command.resolve().parent.parent / "lib"
    libraries = [path.resolve() for place in places for path in place.glob("libdeepwell.so*")]
    usual, uncached = dict(os.environ), dict(os.environ, CUDA_CACHE_DISABLE="1")
    tell("probe", [spent([args.command, "probe"], usual) for _ in range(args.rounds)])
    for precision in args.precision.split(","):
        compiled = args.folder / f"gpu_start.{precision}.dw"
        print(f"{precision}: compiled in {spent([args.command, 'compile', archive, '-o', compiled, '--precision', precision, '--device', args.device], usual):.1f} s, "
              f"{compiled.stat().st_size / 1e6:.0f} MB")
        prompt = ",".join(map(str, range(1, PROMPT + 1)))
        generate = [args.command, "generate", compiled, "--ids", prompt, "--tokens", "1", "--device", args.device]
        run = [args.command, "run", compiled, "--in", ids, "--out", args.folder / "gpu_start.out.safetensors", "--device", args.device]
        for name, command in (("generate", generate), ("run", run)):
            cold = []
            for _ in range(args.rounds):
                put_out(compiled, *libraries)
                cold.append(spent(command, usual))
            tell(f"{precision} {name}, cold", cold)
            tell(f"{precision} {name}, warm", [spent(command, usual) for _ in range(args.rounds)])
        tell(f"{precision} generate, warm, no code cache", [spent(generate, uncached) for _ in range(args.rounds)])


if __name__ == "__main__":
    main()
