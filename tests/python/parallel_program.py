"""Models that are parallel already, beside PyTorch under the same ranks: answers() for sharded_program.py; and as a program of its own, of test_parallel.py, one of transformers' under torch.distributed with gloo.
Usage: parallel_program.py RANK WORLD PORT FOLDER; prints one line of JSON."""
import json
import os
import resource
import sys
import threading
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from safetensors.torch import save_file

import deepwell as dw
from deepwell import ranks


class Every(nn.Module):
    """Each collective by hand; a rank's weights are its own."""

    def __init__(self, group, rank, world):
        super().__init__()
        self.group, self.world = group, world
        torch.manual_seed(10 + rank)
        self.up, self.down = nn.Linear(24, 20), nn.Linear(20, 24, bias=False)

    def forward(self, x):
        y = collectives.all_reduce(self.down(F.gelu(self.up(x))), "sum", self.group)
        z = y * 0.5
        dist.all_reduce(z, group=self.group)
        gathered = collectives.all_gather_tensor(self.up(x), 1, self.group)
        scattered = collectives.reduce_scatter_tensor(y.repeat(1, self.world), "sum", 1, self.group)
        moved = collectives.all_to_all_single(self.up(y).reshape(-1, 4), None, None, self.group)
        return y + z, gathered, scattered, moved, collectives.all_reduce(self.up.weight.sum() + x, "max", self.group), collectives.broadcast(self.up(x), 1, self.group)


class Unknown(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group

    def forward(self, x):
        return collectives.all_reduce(x, "sum", self.group)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(24), nn.Linear(24, 40), nn.Linear(40, 24)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def by_parallelize(mesh):
    torch.manual_seed(3)
    model = nn.Sequential(Mlp(), Mlp()).eval()
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def by_fsdp(mesh):
    torch.manual_seed(4)
    model = nn.Sequential(Mlp(), Mlp()).eval()
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def by_tp_plan(place):
    """As transformers loads it: from a file, each rank its part. It asks for accelerate, which it does not need for that."""
    import transformers
    import transformers.integrations.accelerate as asked
    asked.is_accelerate_available = lambda *given: True
    if dist.get_rank() == 0:
        torch.manual_seed(5)
        transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)).save_pretrained(place)
    dist.barrier()
    return transformers.AutoModelForCausalLM.from_pretrained(place, tp_plan="auto").eval()


class Peak(threading.Thread):
    """The most memory of its own that this process has at once, beside what it has when this begins. Files that it maps are no such memory."""

    def __init__(self):
        super().__init__(daemon=True)
        self.first = self.most = self.own()
        self.ended = threading.Event()
        self.start()

    @staticmethod
    def own():
        with open("/proc/self/statm") as file:
            pages = file.read().split()
        return (int(pages[1]) - int(pages[2])) * resource.getpagesize()

    def run(self):
        while not self.ended.wait(0.001):
            self.most = max(self.most, self.own())

    def end(self):
        self.ended.set()
        self.join()
        return self.most - self.first


def by_pieces(mesh, comm):
    """A model of 64 MiB in parameters of 4 MiB: what it is off by, and the MiB that a rank takes for it at most, of which its half are 32."""
    torch.manual_seed(8)
    layers, width = 16, 1024
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).eval()
    for block in range(0, layers, 2):
        parallelize_module(model, mesh, {str(block): ColwiseParallel(), str(block + 1): RowwiseParallel()})
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(2))
    expected, peak = model(x), Peak()
    error = off([dw.optimize(model, mesh=comm, shard="all", strict=True, threads=1)(x)], [expected])
    return error, peak.end() / (1 << 20)


def off(made, expected):
    return max(float((a - b).double().norm() / b.double().norm()) for a, b in zip(made, expected))


def refusal(comm):
    """A group that is no axis of the mesh."""
    try:
        dw.optimize(Unknown(dist.new_group(backend="gloo")).eval(), mesh=comm, strict=True)(torch.ones(4))
    except dw.Error as error:
        return str(error)
    return ""


def training(mesh):
    try:
        dw.optimize(by_fsdp(mesh).train())
    except dw.Unsupported as error:
        return str(error)
    return ""


def by_mapping(place):
    """Made on meta, with the weights of a file where they lie."""
    torch.manual_seed(7)
    whole = nn.Sequential(Mlp(), Mlp()).eval()
    path = f"{place}/rank{dist.get_rank()}.safetensors"
    save_file(whole.state_dict(), path)
    with torch.device("meta"):
        made = nn.Sequential(Mlp(), Mlp()).eval()
    made.load_state_dict(dw.mapped(path), assign=True)
    return whole, made


def answers(mesh, comm, place):
    """What models are off by that are parallel by collectives, parallelize_module and fully_shard, and words of refusals."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.randn(2 * world, 24, generator=torch.Generator().manual_seed(2))
    every = Every(mesh.get_group("tp"), rank, world).eval()
    with torch.no_grad():
        made = {"collectives": off(dw.optimize(every, mesh=comm, strict=True, threads=1)(x), every(x))}
        for name, build in (("parallelize_module", by_parallelize), ("fully_shard", by_fsdp)):
            made[name] = off([dw.optimize(build(mesh), mesh=comm, shard="all", strict=True, threads=1)(x)], [build(mesh)(x)])
        whole, mapped = by_mapping(place)
        made["pieces"], made["pieces_mib"] = by_pieces(mesh, comm)
        made["meta"] = off([dw.optimize(mapped, mesh=comm, shard="all", strict=True, threads=1)(x)], [whole(x)])
    return made | {"group": refusal(comm), "training": training(mesh)}


def main(rank, world, port, place):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    comm = ranks.communicator(init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)), timeout_s=60)
    ids = torch.randint(0, 96, (2, 7), generator=torch.Generator().manual_seed(6))
    model = by_tp_plan(place)
    with torch.no_grad():
        made = dw.optimize(model, mesh=comm, shard="all", strict=True, threads=1)(ids, use_cache=False).logits
        print(json.dumps({"tp_plan": off([made], [model(ids, use_cache=False).logits])}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
