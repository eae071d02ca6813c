"""Training steps of GPT-2 with 124M parameters on the CPU: `deepwell train` beside eager PyTorch with fused AdamW, in turns, each in a process of its own.

    python bench/cpu_train.py [--layers 12] [--batch 8] [--length 256] [--threads 1] [--steps 3] [--rounds 2] [--formats fp32,bf16] [--command build/deepwell] [--folder build/bench]

Random weights and ids, no dropout. bf16: parameters in fp32 and products in bf16 (--precision bf16; autocast). Printed are the seconds of every step but the first of a process, and the least of each side. On a busy machine put
`chrt -r 10` in front, with one thread: steps then have a processor to themselves, but not its caches and memory.
"""
import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import train_memory


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--formats", default="fp32,bf16")
    p.add_argument("--command", default="build/deepwell")
    p.add_argument("--folder", type=Path, default=Path("build/bench"))
    p.add_argument("--torch", choices=("fp32", "bf16"), help="the steps of PyTorch alone, in this process")
    return p.parse_args()


def torch_steps(given):
    import torch
    torch.set_num_threads(given.threads)
    model = train_memory.model_of(given.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    seconds = []
    for _ in range(given.steps):
        ids = torch.randint(0, 50257, (given.batch, given.length + 1))
        begin = time.perf_counter()
        train_memory.step(model, optimizer, ids, autocast=given.torch == "bf16")
        seconds.append(time.perf_counter() - begin)
    print(json.dumps(seconds[1:]))


def our_steps(given, form, archive, ids):
    command = [given.command, "train", archive, "--loss", "next-token", "--data", ids, "--steps", given.steps, "--rate", 1e-4, "--batch", given.batch, "--length", given.length, "--threads", given.threads, "--json"]
    if form == "bf16":
        command += ["--precision", "bf16"]
    ends = []
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if '"loss"' in line:
                ends.append(time.perf_counter())
    if process.returncode != 0 or len(ends) != given.steps:
        sys.exit(f"deepwell train ended with {process.returncode} after {len(ends)} of {given.steps} steps")
    return [after - before for before, after in zip(ends, ends[1:])]


def main():
    given = arguments()
    if given.torch:
        return torch_steps(given)
    archive, ids = train_memory.archive_in(given.folder, given.layers)
    same = [f"--{name}={getattr(given, name)}" for name in ("layers", "batch", "length", "threads", "steps")]
    for form in given.formats.split(","):
        ours, theirs = [], []
        for _ in range(given.rounds):
            ours += our_steps(given, form, archive, ids)
            done = subprocess.run([sys.executable, __file__, f"--torch={form}", *same], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(done.stderr)
            theirs += json.loads(done.stdout.splitlines()[-1])
        told = [" ".join(f"{s:.2f}" for s in side) for side in (ours, theirs)]
        print(f"{form}: deepwell {told[0]} s a step, PyTorch {told[1]} s; least against least {min(theirs) / min(ours):.2f}x", flush=True)


if __name__ == "__main__":
    main()
