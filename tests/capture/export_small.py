"""Writes tests/capture/cases/small.pt2: a model of a few operators of each kind, for the tests that damage archives and programs.

Usage: export_small.py DIRECTORY. The records are those of torch.export.save, but for sample inputs and stack traces, which nothing here reads.
"""
import json
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


class Small(nn.Module):
    """Token ids [b,s] to logits [b,s,16]: tied embeddings, one attention, a counter, a write into a slice, a nested graph."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("runs", torch.zeros((), dtype=torch.int64))

    def forward(self, ids):
        b, s = ids.shape
        self.runs.add_(1)
        with torch.no_grad():
            angle = torch.arange(s)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
            table = torch.cat([angle.sin(), angle.cos()], -1)
        x = self.embed(ids) + table
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, 8)
        y = torch.zeros_like(x)
        y[:, :, :4] = x[:, :, 4:] * 0.5
        return self.head(x + y), self.runs * 1


def main(folder):
    torch.manual_seed(0)
    dims = {"ids": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}}
    program = torch.export.export(Small().eval(), (), kwargs={"ids": torch.randint(0, 16, (3, 7))}, dynamic_shapes=dims)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        torch.export.save(program, Path(scratch) / "small.pt2")
        with zipfile.ZipFile(Path(scratch) / "small.pt2") as full, zipfile.ZipFile(folder / "small.pt2", "w") as out:
            for name in full.namelist():
                if "sample_inputs" in name:
                    continue
                data = full.read(name)
                if name.endswith("models/model.json"):
                    data = json.dumps(json.loads(data, object_hook=without_traces), separators=(",", ":")).encode()
                out.writestr(aligned(name, out.fp.tell()), data)


def aligned(name, offset):
    """An entry whose data begins on a multiple of 64 bytes, as torch's do."""
    entry = zipfile.ZipInfo(name)
    room = -(offset + 30 + len(name) + 4) % 64
    entry.extra = struct.pack("<HH", 0x4246, room) + bytes(room)
    return entry


def without_traces(members):
    return {k: v for k, v in members.items() if k not in ("stack_trace", "torch_fn") and v is not None}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
