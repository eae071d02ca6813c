"""``python -m deepwell``: the command line of the core. Started by torchrun, or anything else that says RANK, WORLD_SIZE and MASTER_ADDR, each process is a rank of the command (docs/ranks.md)."""
from __future__ import annotations

import os
import sys
from typing import Any

from . import _core


def _mesh(arguments: list[str]) -> Any:
    """The DeviceMesh of --mesh dp=2,tp=2; None: it is not given."""
    if "--mesh" not in arguments[:-1]:
        return None
    from torch.distributed.device_mesh import init_device_mesh
    axes = [axis.partition("=") for axis in arguments[arguments.index("--mesh") + 1].split(",")]
    return init_device_mesh("cpu", tuple(int(size) for _, _, size in axes), mesh_dim_names=tuple(name for name, _, _ in axes))


def _main(arguments: list[str]) -> int:
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ or "MASTER_ADDR" not in os.environ or "--help" in arguments:
        return _core.main(arguments)
    import torch.distributed as dist
    from . import ranks
    dist.init_process_group("gloo")
    try:
        return _core.main(arguments, ranks.communicator(_mesh(arguments)))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
