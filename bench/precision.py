"""What precisions and policies cost the carried model: perplexity on held-out text, and the error of its logits against fp32.

Usage: precision.py [--command build/deepwell] [--windows 96] [POLICY...]

A POLICY is what --precision takes, or rules and a precision with commas between: "lm_head=mxfp8,nvfp4". Without any, those of
docs/precision.md are measured. Runs with the packages of models/requirements.txt (scripts/venv.sh makes build/venv).
"""
import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

WINDOW = 256            # bytes that are scored together
MODEL = Path("models/kjv.pt2")
TEXT = Path("models/kjv.heldout.txt")
POLICIES = (
    "bf16", "fp8", "fp8-row", "mxfp8", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "mxfp4-mxfp8", "nvfp4",
    "mxfp8-weights", "mxfp4-weights", "nvfp4-weights",
    "lm_head=bf16,mxfp8",
    "lm_head=mxfp4,mxfp4", "lm_head=mxfp8,mxfp4", "*.down=bf16,mxfp4", "role:attention=bf16,mxfp4", "role:mlp=bf16,mxfp4",
    "blocks.0.*=bf16,blocks.3.*=bf16,mxfp4", "blocks.1.*=bf16,blocks.2.*=bf16,mxfp4",
    "lm_head=nvfp4,nvfp4", "lm_head=mxfp8,nvfp4", "*.down=bf16,nvfp4", "role:attention=bf16,nvfp4", "role:mlp=bf16,nvfp4",
    "blocks.0.*=bf16,blocks.3.*=bf16,nvfp4", "blocks.1.*=bf16,blocks.2.*=bf16,nvfp4",
)


def logits(command, policy, scratch):
    out = scratch / "out.safetensors"
    subprocess.run([command, "run", MODEL, "--in", scratch / "in.safetensors", "--out", out, "--precision", policy], check=True, stdout=subprocess.DEVNULL)
    return next(iter(load_file(out).values())).astype(np.float64)


def losses(values, ids):
    """Nats per predicted byte, [windows, WINDOW - 1]."""
    z = values[:, :-1] - values[:, :-1].max(-1, keepdims=True)
    return np.log(np.exp(z).sum(-1)) - np.take_along_axis(z, ids[:, 1:, None], -1)[..., 0]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--command", default="build/deepwell")
    p.add_argument("--windows", type=int, default=96)
    p.add_argument("policies", nargs="*", default=POLICIES)
    options = p.parse_args()
    text = np.frombuffer(TEXT.read_bytes()[: options.windows * WINDOW], np.uint8).astype(np.int64)
    ids = text[: len(text) // WINDOW * WINDOW].reshape(-1, WINDOW)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        save_file({"input_ids": ids}, scratch / "in.safetensors")
        exact = logits(options.command, "fp32", scratch)
        base = losses(exact, ids)
        print(f"{len(ids)} windows of {WINDOW} bytes; fp32: perplexity {np.exp(base.mean()):.4f}")
        print(f"{'policy':46} {'perplexity':>10} {'loss over fp32':>20} {'error of logits':>16}")
        for policy in options.policies:
            low = logits(options.command, policy, scratch)
            more = losses(low, ids) - base
            error = np.linalg.norm(low - exact) / np.linalg.norm(exact)
            spread = more.mean(1).std() / len(ids) ** 0.5
            print(f"{policy:46} {np.exp(losses(low, ids).mean()):10.4f} {more.mean():+10.4f} +- {spread:.4f} {error:16.4f}", flush=True)


if __name__ == "__main__":
    main()
