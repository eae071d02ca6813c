"""Ours beside PyTorch eager on a random GPT-2 of 124M parameters, in one run on the same threads: a whole run of 512 tokens (all logits, no
cache), prefill of 512 tokens (cache, last logits), and decode per token.

Usage: bench.py [--command build/deepwell] [--threads 2] [--rounds 5] [--prefill 512] [--decode 32] [--json FILE]

The contestants take turns, one measurement each a round, so that a machine that slows down slows all of them; a figure is the median over
the rounds, with the smallest and largest beside it. It writes build/bench/gpt2-124m.pt2 (500 MB) once.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import peer_torch
import torch

OURS = ("fp32", "bf16", "fp8", "mxfp8", "mxfp4", "nvfp4")


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--command", default="build/deepwell")
    p.add_argument("--archive", type=Path, default=Path("build/bench/gpt2-124m.pt2"))
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--prefill", type=int, default=512)
    p.add_argument("--decode", type=int, default=32)
    p.add_argument("--precisions", default=",".join(OURS))
    p.add_argument("--json", type=Path)
    return p.parse_args()


WHAT = ("run", "prefill", "decode")


def time_ours(args, precision):
    """{what: seconds} by our own command."""
    done = subprocess.run([args.command, "bench", str(args.archive), "--json", "--precision", precision, "--threads", str(args.threads), "--repeat", "1",
                           "--dim", f"s={args.prefill},b=1", "--prefill", str(args.prefill), "--tokens", str(args.decode)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"bench.py: {args.command} bench --precision {precision}: {done.stderr.strip()}")
    facts = json.loads(done.stdout)
    if facts["reference_flops_share"] > 0:
        print(f"ours {precision}: {100 * facts['reference_flops_share']:.1f} % of FLOPs ran on reference kernels", file=sys.stderr)
    return {what: facts[what]["seconds"] for what in WHAT}


def time_peer(args, peer):
    run, prefill, steps = peer.time(args.prefill, args.decode)
    return {"run": run, "prefill": prefill, "decode": statistics.median(steps)}


def main():
    args = arguments()
    peer_torch.export(args.archive)
    peers = {"PyTorch fp32": peer_torch.Peer(torch.float32, args.threads), "PyTorch bf16": peer_torch.Peer(torch.bfloat16, args.threads)}
    for peer in peers.values():
        peer.time(32, 2)                    # what the first call alone pays for is in no figure; ours warms up likewise
    names = list(peers) + [f"ours {p}" for p in args.precisions.split(",") if p]
    figures = {name: {what: [] for what in WHAT} for name in names}
    for round_number in range(args.rounds):
        for name in names:
            times = time_peer(args, peers[name]) if name in peers else time_ours(args, name.split()[1])
            for what in WHAT:
                figures[name][what].append(times[what])
        print(f"round {round_number + 1} of {args.rounds}", file=sys.stderr)
    base = {what: statistics.median(figures["PyTorch fp32"][what]) for what in WHAT}
    print(f"GPT-2 124M, batch 1, {args.threads} threads, median of {args.rounds} rounds [smallest, largest] in ms; x = time over PyTorch fp32's")
    titles = (f"whole run of {args.prefill}", f"prefill of {args.prefill}", "decode, a token")
    print(f"{'':14}" + "".join(f"{title:>26} {'x':>5}" for title in titles))
    for name, f in figures.items():
        line = f"{name:14}"
        for what in WHAT:
            ms = [1e3 * s for s in f[what]]
            middle = statistics.median(ms)
            line += f"{f'{middle:.1f} [{min(ms):.1f}, {max(ms):.1f}]':>26} {middle / 1e3 / base[what]:5.2f}"
        print(line)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
