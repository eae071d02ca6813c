"""What each rank of test_ranks.py runs, under torch.distributed with gloo. Usage: ranks_program.py WHAT RANK WORLD PORT; prints one line of JSON."""
import datetime
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from deepwell import _core, ranks
from deepwell.errors import Error

GRAPH = """graph ranks
  symbol s 1..4096
  input x f32[s,6]
  input i i64[1]
  const c f32[2] = 1, 2
  %1 = all_reduce x {over="tp",ranks=TP,by="sum"} at "layer.0"
  %2 = take c, i {axis=0} at "layer.1"
  %3 = reduce_scatter %1 {axis=1,over="tp",ranks=TP,by="sum"} at "layer.2"
  %4 = all_gather %3 {axis=1,over="tp",ranks=TP} at "layer.3"
  %5 = all_to_all %4 {over="dp",ranks=DP,split=1,concat=0} at "layer.4"
  output y %5
  output z %2
"""
TIMEOUT_S = 4.0


def operand(rank, rows):
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(rank * 100 + rows))


def expected(dp, tp, rank, rows):
    """As torch adds in order of ranks."""
    def of(at):
        total = None
        for i in range(tp):
            x = operand(at * tp + i, rows)
            total = x if total is None else total + x
        again = total
        for _ in range(tp - 1):
            again = again + total
        return again
    return torch.cat([of(at).chunk(dp, dim=1)[rank // tp] for at in range(dp)])


def make(dp, tp):
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    comm = ranks.communicator(mesh, timeout_s=TIMEOUT_S)
    model = _core.Model(_core.Graph.text("ranks", GRAPH.replace("TP", str(tp)).replace("DP", str(dp))), comm=comm, threads=1)
    return comm, model, _core.Session(model, dims="s=4096")


def run(session, rank, rows, index=0):
    return session.run((operand(rank, rows), torch.tensor([index])))


def same(rank, world):
    dp, tp = (1, world) if world % 2 else (2, world // 2)
    comm, model, session = make(dp, tp)
    good = comm.rank == rank and comm.world == world and comm.mesh == f"dp={dp},tp={tp}"
    for rows in (1, 3, 700, 2):
        good = good and torch.equal(run(session, rank, rows)[0], expected(dp, tp, rank, rows))
    errors = []
    for index in (9 if rank == 1 else 0, 0):
        try:
            run(session, rank, 2, index)
        except Error as error:
            errors.append(f"{error.status}: {error}")
    good = good and torch.equal(run(session, rank, 3)[0], expected(dp, tp, rank, 3))
    return {"good": good, "errors": errors}


def lost(rank, world, how):
    """Rank 1 is killed or stopped behind its first run; the others' second is an error."""
    _, _, session = make(1, world)
    run(session, rank, 700)
    dist.barrier()
    if rank == 1:
        print("{}", flush=True)
        os.kill(os.getpid(), how)
    begin = time.monotonic()
    try:
        run(session, rank, 700)
    except Error as error:
        return {"status": error.status, "message": str(error), "seconds": time.monotonic() - begin}
    return {"status": "OK"}


def other(rank, world):
    """Another graph on one rank."""
    comm = ranks.communicator(timeout_s=TIMEOUT_S)
    text = f'graph g\n  input x f32[{2 + (rank == 1)}]\n  %1 = all_reduce x {{over="tp",ranks={world},by="sum"}}\n  output y %1\n'
    try:
        _core.Model(_core.Graph.text("g", text), comm=comm)
    except Error as error:
        return {"status": error.status, "message": str(error)}
    return {"status": "OK"}


def main():
    what, rank, world, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    does = {"same": same, "other": other, "killed": lambda r, w: lost(r, w, signal.SIGKILL), "stopped": lambda r, w: lost(r, w, signal.SIGSTOP)}
    print(json.dumps(does[what](rank, world)), flush=True)
    os._exit(0)      # gloo's threads wait for who is gone


main()
