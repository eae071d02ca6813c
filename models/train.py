"""Trains the carried model and writes NAME.pt2, NAME.log and NAME.heldout.txt.

Usage: train.py [--out models/kjv] [--text FILE] [--steps N] [--weights FILE.pt] ...

The archive holds bf16 weights, and the last lines of the log are of those, computed in fp32. With --weights nothing is trained: the archive is written from an earlier run's weights (NAME.pt).

The steps are those of `deepwell train`: the model is exported as it begins, with its dropout, and PyTorch only evaluates the checkpoints. NAME.start.pt2, NAME.train.txt and NAME.checkpoint stay.
"""
import argparse
import datetime
import json
import math
import platform
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import kjv
from bytegpt import ByteGpt, to_bf16


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "kjv")
    p.add_argument("--text", type=Path, help="the text, where the Debian package is not installed")
    p.add_argument("--weights", type=Path, help="write the archive from these weights; train nothing")
    p.add_argument("--command", type=Path, default=Path("build/deepwell"), help="what trains")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of --command")
    p.add_argument("--steps", type=int, default=4857)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--dropout", type=float, default=0.15)
    p.add_argument("--decay", type=float, default=0.3)
    p.add_argument("--every", type=int, default=80, help="steps between evaluations")
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def bits_per_byte(model, text, context, device):
    """Mean over the text cut into windows of `context` bytes; the first byte of a window is given, not predicted."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().to(device)
    windows = len(data) // context
    data = data[:windows * context].view(windows, context)
    total = 0.0
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for chunk in data.split(16):
            logits = model(chunk[:, :-1]).float()
            total += F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten(), reduction="sum").item()
    model.train(was_training)
    return total / (windows * (context - 1)) / math.log(2)


def export_to_train(model, path):
    """As it trains: what drops at random is in the archive."""
    dims = {"input_ids": {0: torch.export.Dim("b"), 1: torch.export.Dim("s")}}
    torch.export.save(torch.export.export(model.train(), (), kwargs={"input_ids": torch.randint(0, 256, (3, 21))}, dynamic_shapes=dims), path)


def bits_of(state, valid, context, device):
    model = ByteGpt()
    model.load_state_dict(state)
    return bits_per_byte(model.to(device), valid, context, device)


def train(args, text, valid, device, log):
    """Muon for the matrices between embedding and head (README.md has what that buys over AdamW alone), AdamW for the rest; a line of the log for each --every steps, whose checkpoint is evaluated. Returns the weights of the
    evaluation with the fewest bits per byte on `valid`, rounded to bf16."""
    torch.manual_seed(args.seed)
    start, data, checkpoint = (Path(f"{args.out}.{end}") for end in ("start.pt2", "train.txt", "checkpoint"))
    export_to_train(ByteGpt(dropout=args.dropout), start)
    data.write_bytes(text)
    run = subprocess.Popen([str(a) for a in (
        args.command, "train", start, "--data", data, "--loss", "next-token", "--steps", args.steps, "--batch", args.batch, "--length", args.context, "--rate", args.lr, "--schedule", "cosine",
        "--warmup", min(100, args.steps), "--clip", 1, "--seed", args.seed, "--device", args.device, "--precision", "bf16", "--save", checkpoint, "--save-every", args.every, "--json",
        "--optimizer", f"adamw(beta2=0.95,decay=0); muon(decay={args.decay},match_rms=1) for blocks.*.weight")], stdout=subprocess.PIPE, text=True)
    seen, best, best_state, last = [], float("inf"), None, 0

    def evaluate(step):
        """Of the checkpoint that is there: where steps are faster than this, a later one."""
        nonlocal best, best_state, last
        file = load_file(checkpoint)
        updates = int(file["deepwell.trainer"][2])
        if updates == last:
            return
        last = updates
        state = {k: v.to(torch.bfloat16) for k, v in file.items() if k in names}
        bits = bits_of({k: v.float() for k, v in state.items()}, valid, args.context, device)
        log(f"{updates} {sum(seen) / len(seen) / math.log(2):.4f} {bits:.4f} {step['rate']:.2e} {step['seconds']:.0f}")
        seen.clear()
        if bits < best:
            best, best_state = bits, state

    names = set(ByteGpt().state_dict())
    for line in run.stdout:             # the checkpoint of a step is there once the next one is done, or the run has ended
        step = json.loads(line)
        if seen and (step["step"] - 1) % args.every == 0:
            evaluate(before)
        seen.append(step["loss"])
        before = step
    if run.wait() != 0:
        sys.exit(run.returncode)
    evaluate(before)
    return best_state


def sample(model, prompt, count, seed=7, top_k=40, temperature=0.8):
    """Text by plain recomputation."""
    g = torch.Generator().manual_seed(seed)
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([ids[-512:]]))[0, -1].float() / temperature
            top = torch.topk(logits, top_k)
            ids.append(int(top.indices[torch.multinomial(torch.softmax(top.values, 0), 1, generator=g)]))
    return bytes(ids).decode("ascii", "replace")


def write_archive(model, path):
    """Exports with dynamic batch and sequence. Paths of this machine are left out of the archive."""
    example = torch.randint(0, 256, (3, 21))
    dims = {"input_ids": {0: torch.export.Dim("b"), 1: torch.export.Dim("s")}}
    program = torch.export.export(model.eval(), (), kwargs={"input_ids": example}, dynamic_shapes=dims)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    torch.export.save(program, path, extra_files={"tokenizer": "bytes"})


def main():
    args = arguments()
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text, valid, held_out = kjv.split(args.text.read_bytes() if args.text else kjv.read_package())
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    if args.weights:
        state = torch.load(args.weights)
    else:
        with open(f"{args.out}.log", "w") as f:
            def log(line):
                print(line, file=f, flush=True)
                print(line, flush=True)
            log(f"# {datetime.date.today()}, {name}, torch {torch.__version__}")
            log("# " + " ".join(f"{k}={v}" for k, v in vars(args).items() if k not in ("out", "text", "weights", "every")))
            log(f"# {len(text)} bytes to train, {len(valid)} to choose the checkpoint, {len(held_out)} held out")
            log("# step, bits per byte: training (with dropout, since the line before), validation; learning rate; seconds")
            state = train(args, text, valid, device, log)
        torch.save(state, f"{args.out}.pt")

    torch.set_float32_matmul_precision("highest")
    model = ByteGpt()
    model.load_state_dict(state)
    to_bf16(model).eval().to(device)
    results = [f"# bf16 weights in fp32, windows of {context}: validation {bits_per_byte(model, valid, context, device):.4f}, "
               f"held out {bits_per_byte(model, held_out, context, device):.4f}" for context in (512, 1024)]
    print("\n".join(results))
    if not args.weights:
        with open(f"{args.out}.log", "a") as f:
            print("\n".join(results), file=f)
    model.to("cpu")
    write_archive(model, f"{args.out}.pt2")
    Path(f"{args.out}.heldout.txt").write_bytes(held_out)
    print(sample(model, b"And it came to pass", 400))


if __name__ == "__main__":
    sys.exit(main())
