"""Holds curves of `deepwell train` against PyTorch: the same model, batches, optimiser and rates, losses of 25 steps to 1e-4. Beyond that no test may ask for more, as sums in another order
grow to other curves.

Usage: curves.py COMMAND SCRATCH
"""
import json
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "models"))
from bytegpt import ByteGpt, Shape

STEPS, BATCH, LENGTH, RATE, BOUND = 25, 4, 64, 3e-3, 1e-4
TEXT = ROOT / "models" / "kjv.heldout.txt"
MASK = (1 << 64) - 1


def draw(seed, place, count):
    """cmd_train.c's: splitmix64."""
    z = (seed * 0xd1342543de82ef95 + (place + 1) * 0x9e3779b97f4a7c15) & MASK
    z = ((z ^ z >> 30) * 0xbf58476d1ce4e5b9) & MASK
    z = ((z ^ z >> 27) * 0x94d049bb133111eb) & MASK
    return (z ^ z >> 31) % count


def batch(data, seed, number):
    at = [draw(seed, number * BATCH + row, len(data) - LENGTH) for row in range(BATCH)]
    rows = torch.stack([data[i:i + LENGTH + 1] for i in at]).long()
    return rows[:, :-1], rows[:, 1:]


def orthogonal(grad, coefficients, steps, eps):
    """torch.optim.Muon's own in fp32, where it takes bf16."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


def adamw(model):
    decayed, others = ([p for p in model.parameters() if (p.dim() >= 2) == is_decayed] for is_decayed in (True, False))
    return [torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}], lr=RATE, betas=(0.9, 0.95))]


def sgd(model):
    return [torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, nesterov=True)]


def muon(model):
    import torch.optim._muon as inside
    inside._zeropower_via_newtonschulz = orthogonal
    inner = [p for n, p in model.named_parameters() if n.startswith("blocks.") and p.dim() == 2]
    rest = [p for n, p in model.named_parameters() if not (n.startswith("blocks.") and p.dim() == 2)]
    return [torch.optim.Muon(inner, lr=RATE, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"), torch.optim.AdamW(rest, lr=RATE, weight_decay=0)]


CASES = {
    "adamw": ("adamw(beta2=0.95,decay=0.1)", adamw, 1),
    "adamw, 2 micro-batches": ("adamw(beta2=0.95,decay=0.1)", adamw, 2),
    "sgd": ("sgd(momentum=0.9,nesterov=true)", sgd, 1),
    "muon": ("adamw(decay=0); muon(match_rms=1) for blocks.*", muon, 1),
}


def rate_at(step, warmup=5):
    return RATE * (step + 1) / warmup if step < warmup else RATE * (STEPS - step) / (STEPS - warmup)


def of_torch(state, make, accumulate, data):
    model = ByteGpt(Shape(width=64, layers=2, heads=2, kv_heads=1, head_width=32, hidden=128))
    model.load_state_dict(state)
    optimizers = make(model)
    losses, norms = [], []
    for step in range(STEPS):
        total = 0
        for i in range(accumulate):
            ids, labels = batch(data, 3, step * accumulate + i)
            loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
            (loss / accumulate).backward()
            total += loss.item() / accumulate
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(total)
    return losses, norms


def of_deepwell(command, archive, text, accumulate):
    arguments = ["--data", TEXT, "--loss", "next-token", "--steps", STEPS, "--rate", RATE, "--schedule", "linear", "--warmup", 5, "--batch", BATCH, "--length", LENGTH, "--seed", 3, "--clip", 1,
                 "--optimizer", text, "--accumulate", accumulate, "--json"]
    done = subprocess.run([command, "train", archive, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line["loss"] for line in lines], [line["norm"] for line in lines]


def model_of(folder):
    """Its weights, and the archive in the folder."""
    torch.manual_seed(1)
    model = ByteGpt(Shape(width=64, layers=2, heads=2, kv_heads=1, head_width=32, hidden=128)).eval()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    archive = folder / "byte.pt2"
    dims = {"input_ids": {0: torch.export.Dim("b"), 1: torch.export.Dim("s")}}
    torch.export.save(torch.export.export(model, (), kwargs={"input_ids": torch.randint(0, 256, (3, 21))}, dynamic_shapes=dims), archive)
    return state, archive


def main():
    command = sys.argv[1]
    torch.set_num_threads(2)
    state, archive = model_of(Path(sys.argv[2]))
    data = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8)
    failed = 0
    for name, (text, make, accumulate) in CASES.items():
        (losses, norms), (ours, our_norms) = of_torch(state, make, accumulate, data), of_deepwell(command, archive, text, accumulate)
        worst = max(abs(a - b) for a, b in zip(losses, ours))
        worst_norm = max(abs(a - b) / a for a, b in zip(norms, our_norms))
        holds = len(ours) == STEPS and worst <= BOUND and losses[-1] < losses[0]
        failed += not holds
        print(f"{name}: loss {losses[0]:.4f} to {losses[-1]:.4f}, off by {worst:.1e}, norms by {worst_norm:.1e}{'' if holds else '  FAILED'}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
