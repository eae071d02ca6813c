"""What each rank of test_sharded.py runs, under torch.distributed with gloo. Usage: sharded_program.py RANK WORLD PORT FOLDER [ARGUMENTS]; prints one line of JSON.
With ARGUMENTS behind these: a command of the command line, which all ranks run first."""
import asyncio
import json
import os
import pathlib
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import deepwell as dw
from deepwell import _core, ranks, serve

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))     # also where PYTHONSAFEPATH is set
import parallel_program

CARRIED = pathlib.Path(__file__).parents[2] / "models" / "kjv.pt2"
PROMPTS = [list(b"In the beginning "), list(b"And "), list(b"In the beginning God")]


class Block(nn.Module):
    def __init__(self, width, heads, keys):
        super().__init__()
        self.heads, self.keys, self.head = heads, keys, width // heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, keys * self.head), nn.Linear(width, keys * self.head)
        self.o = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        b, s, width = x.shape
        y = self.norm(x)
        q, k, v = (f(y).view(b, s, -1, self.head).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(self.heads // self.keys, dim=1) for t in (k, v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(203, 72)
        self.blocks = nn.ModuleList(Block(72, 6, 2) for _ in range(2))
        self.head = nn.Linear(72, 203, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def refusal(model, comm):
    try:
        dw.optimize(model, mesh=comm, shard="nothing.at.all = row", strict=True)(torch.zeros(1, 3, dtype=torch.int64))
    except dw.Error as error:
        return str(error)
    return ""


async def texts_of(service):
    async with service:
        streams = [service.submit(prompt, 12, temperature=float(i), top_k=20, logprobs=True) for i, prompt in enumerate(PROMPTS)]
        await asyncio.sleep(1.5)       # the others hear of the one that leads meanwhile
        late = service.submit(PROMPTS[0], 200)
        late.cancel()
        return [[(event.id, event.logprob) async for event in stream] for stream in streams], [event.end async for event in late][-1]


def served(comm, place):
    """What the rank that leads has of its texts, from one file that all ranks map; the others follow it."""
    file = os.path.join(place, "served.dw")
    dw.compile(CARRIED, mesh=comm, shard="all", threads=1).save(file)
    engine = dw.load(file, mesh=comm, threads=1)
    service = serve.Service(engine, rows=2, page_tokens=16, context=256)
    assert service.leads == (comm.rank == 0)
    if service.leads:
        return asyncio.run(texts_of(service))
    try:
        service.submit([65], 1)
    except dw.Invalid as error:
        assert "rank 1 follows rank 0" in str(error)
    service.follow()
    return None


def main(rank, world, port, place, *command):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(world))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = Model().eval()
    ids = torch.randint(0, 203, (2, 9), generator=torch.Generator().manual_seed(2))
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    comm = ranks.communicator(mesh, timeout_s=60)
    if command:
        assert _core.main(list(command), comm) == 0
    sharded = dw.optimize(model, mesh=comm, shard="all", strict=True, threads=1)   # so small a model takes less time whole
    with torch.no_grad():
        expected, made = model(ids), sharded(ids)
        again = sharded(ids[:1, :5])
    error = float((made - expected).norm() / expected.norm())
    part = float((again - model(ids[:1, :5])).norm() / expected.norm())
    text = sharded.deepwell.explain()
    print(json.dumps({"error": max(error, part), "bits": made.numpy().tobytes().hex()[:64], "splits": [line.split()[:2] for line in text.splitlines() if line.startswith("  blocks.*")][:16], "refusal": refusal(model, comm), "parallel": parallel_program.answers(mesh, comm, place), "served": served(comm, place)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
