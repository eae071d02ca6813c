"""What each rank of test_parallel.py runs, under torch.distributed with gloo: models that are parallel already, beside PyTorch under the same ranks. Usage: parallel_program.py RANK WORLD PORT; prints one line of
JSON, what each model is off by."""
import json
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

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


def off(made, expected):
    return max(float((a - b).double().norm() / b.double().norm()) for a, b in zip(made, expected))


def refusal(comm):
    """A group that is no axis of the mesh."""
    try:
        dw.optimize(Unknown(dist.new_group(backend="gloo")).eval(), mesh=comm, strict=True)(torch.ones(4))
    except dw.Error as error:
        return str(error)
    return ""


def main(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(world))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    comm = ranks.communicator(mesh, timeout_s=60)
    model = Every(mesh.get_group("tp"), rank, world).eval()
    x = torch.randn(2 * world, 24, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model(x)
        made = dw.optimize(model, mesh=comm, strict=True, threads=1)(x)
    print(json.dumps({"every": off(made, expected), "refusal": refusal(comm)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
