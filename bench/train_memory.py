"""Peak memory of one training step on the CPU: Deepwell beside eager PyTorch, each in a process of its own.

    python bench/train_memory.py [--layers 12] [--batch 8] [--length 256] [--command build/deepwell] [--folder build/bench] [--recompute none,cheap,block]

GPT-2 with random weights and ids, no dropout, fp32, AdamW. What is printed is the largest resident set of the process (MB), what it had before its first step, and of Deepwell also what the plan reserved: parameters and moments, and the
workspace. A resident set holds the archive's weights, too, which are mapped and read once.
"""
import argparse
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--command", default="build/deepwell")
    p.add_argument("--folder", type=Path, default=Path("build/bench"))
    p.add_argument("--recompute", default="none,cheap,block")
    p.add_argument("--torch", action="store_true", help="the step of PyTorch alone, in this process")
    return p.parse_args()


def model_of(layers):
    import torch
    import transformers
    torch.manual_seed(0)
    config = transformers.GPT2Config(use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, n_layer=layers)
    return transformers.GPT2LMHeadModel(config).eval()


class Logits:
    """The model as a function of ids alone."""

    @staticmethod
    def of(model):
        import torch

        class Wrapped(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, ids):
                return self.model(ids).logits
        return Wrapped()


def archive_in(folder, layers):
    """The exported model and a file of ids there, written where they are not."""
    folder.mkdir(parents=True, exist_ok=True)
    path, ids = folder / f"gpt2-{layers}.pt2", folder / "ids.safetensors"
    if path.exists() and ids.exists():
        return path, ids
    import torch
    from safetensors.torch import save_file
    from torch.export import Dim, export, save
    example = torch.randint(0, 50257, (2, 16))
    save(export(Logits.of(model_of(layers)), (example,), dynamic_shapes={"ids": {0: Dim("b", min=1, max=64), 1: Dim("s", min=2, max=1024)}}), path)
    save_file({"ids": torch.randint(0, 50257, (100000,), dtype=torch.int32)}, ids)
    return path, ids


def step(model, optimizer, ids, autocast=False):
    """Forward, next-token loss, backward and update of PyTorch; logits go before gradients come. autocast: to bf16."""
    import torch
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    del logits
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def torch_step(given):
    import torch
    model = model_of(given.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, 50257, (given.batch, given.length + 1))
    before = peak()
    for _ in range(2):      # moments are made in the first
        step(model, optimizer, ids)
    print(json.dumps({"before": before, "peak": peak()}))


def measured(command):
    """The largest resident set of a process, in MB, and what it printed."""
    result = subprocess.run(["/usr/bin/time", "-f", "peak %M kB", *map(str, command)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr)
    return int(re.search(r"peak (\d+) kB", result.stderr).group(1)) / 1e3, result.stdout


def main():
    given = arguments()
    if given.torch:
        return torch_step(given)
    archive, ids = archive_in(given.folder, given.layers)
    same = ["--layers", given.layers, "--batch", given.batch, "--length", given.length]
    _, told = measured([sys.executable, __file__, "--torch", *same])
    told = json.loads(told.splitlines()[-1])
    print(f"GPT-2 of {given.layers} layers, {given.batch} x {given.length} tokens, fp32; MB\n")
    print("| | peak of the process | before its first step | kept | workspace |\n|---|---|---|---|---|")
    print(f"| eager PyTorch | {told['peak']:.0f} | {told['before']:.0f} | | |")
    for level in given.recompute.split(","):
        options = [archive, "--loss", "next-token", "--recompute", level]
        facts = json.loads(subprocess.run([given.command, "explain", "--train", *options, "--dim", f"b={given.batch},s={given.length}", "--json"], capture_output=True, text=True, check=True).stdout)
        most, _ = measured([given.command, "train", *options, "--data", ids, "--steps", 2, "--rate", 1e-4, "--batch", given.batch, "--length", given.length, "--json"])
        kept = sum(facts["memory"]["states"].values())
        print(f"| Deepwell, recompute {level} | {most:.0f} | | {kept / 1e6:.0f} | {facts['memory']['workspace_bytes'] / 1e6:.0f} |", flush=True)


if __name__ == "__main__":
    main()
