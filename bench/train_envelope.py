"""How far 300 steps of `deepwell train` go from PyTorch's, beside how far PyTorch goes from itself where its weights are disturbed by 1e-7. By hand: curves this long are chaotic, so CI holds 25 steps alone.

    python bench/train_envelope.py [--command build/deepwell] [--steps 300] [--runs 4]

The model, the batches and AdamW are those of tests/train/curves.py. Printed are, up to some steps, the largest difference of the loss of each disturbed run and of ours, and whether ours is within twice the largest of those.
"""
import argparse
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "train"))
import curves


def furthest(losses, base, steps):
    return max(abs(a - b) for a, b in zip(losses[:steps], base[:steps]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="build/deepwell")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--runs", type=int, default=4)
    given = parser.parse_args()
    curves.STEPS = given.steps
    torch.set_num_threads(1)
    data = torch.frombuffer(bytearray(curves.TEXT.read_bytes()), dtype=torch.uint8)
    text, make, accumulate = curves.CASES["adamw"]
    with tempfile.TemporaryDirectory() as folder:
        state, archive = curves.model_of(Path(folder))
        ours, _ = curves.of_deepwell(given.command, archive, text, accumulate)
    base, _ = curves.of_torch(state, make, accumulate, data)
    runs = []
    for seed in range(given.runs):
        torch.manual_seed(100 + seed)
        disturbed = {name: x * (1 + 1e-7 * torch.randn_like(x)) for name, x in state.items()}
        runs.append(curves.of_torch(disturbed, make, accumulate, data)[0])
    print(f"loss {base[0]:.4f} to {base[-1]:.4f}, ours to {ours[-1]:.4f}")
    for steps in sorted({25, 50, 100, 200, given.steps}):
        envelope = [furthest(run, base, steps) for run in runs]
        print(f"{steps:4d} steps: disturbed {' '.join(f'{x:.1e}' for x in envelope)}, ours {furthest(ours, base, steps):.1e}, {furthest(ours, base, steps) / max(envelope):.2f} of the largest")
    return furthest(ours, base, given.steps) > 2 * max(furthest(run, base, given.steps) for run in runs)


if __name__ == "__main__":
    sys.exit(main())
