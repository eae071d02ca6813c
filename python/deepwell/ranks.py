"""Ranks started by torch.distributed (torchrun, or anything that calls ``init_process_group``): a communicator whose bytes gloo carries.

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    comm = deepwell.ranks.communicator(mesh)         # all ranks, at the same time

Deepwell sums by itself, in order of ranks, so gloo moves bytes alone and results have the same bits by every engine. The groups are its own, of gloo whatever the mesh's are, with a timeout of their
own; nothing else of the program's travels in them.
"""
from __future__ import annotations

import datetime
import json
import time
from typing import Any

import torch
import torch.distributed as dist

from . import _core
from .errors import Invalid, Lost
from .program import COLLECTIVES

_FIND_S = 0.8     # how long ranks that have failed look for those that are gone
_SILENT = "silent"
_axes_of: dict[str, str] = {}   # process groups by their names -> the axes that they are, "tp=2", of the meshes that communicators were made of


def communicator(mesh: Any = None, *, timeout_s: float = 60.0) -> _core.Comm:
    """This process's part in a communicator of all ranks of the default process group. Every rank calls it.

    mesh: a DeviceMesh with names, over all ranks in order; None: one axis, ``tp``. timeout_s: how long a rank waits for another; then, or when one is gone, the call that waits raises ``Lost``, which
    names the rank as far as it can be told, the op and the layer."""
    if not dist.is_available() or not dist.is_initialized():
        raise Invalid("torch.distributed is not initialised: start the ranks by torchrun, and call torch.distributed.init_process_group first")
    if not dist.is_gloo_available():
        raise Invalid("this build of torch has no gloo, which carries the bytes of ranks")
    if not timeout_s > 0:
        raise Invalid(f"timeout_s is {timeout_s}; give seconds")
    names, ranks = _axes(mesh)
    for axis, (name, size) in enumerate(zip(names, ranks.shape)):
        group = dist.group.WORLD if mesh is None else mesh.get_group(axis)
        _axes_of[group.group_name] = f"{name}={size}"
    return _core.Comm(dist.get_rank(), dist.get_world_size(), _Gloo(ranks, timeout_s), mesh=",".join(f"{name}={size}" for name, size in zip(names, ranks.shape)))


def _axes(mesh: Any) -> tuple[tuple[str, ...], torch.Tensor]:
    """The names of the axes, and the ranks as they lie along them."""
    world = torch.arange(dist.get_world_size())
    if mesh is None:
        return ("tp",), world
    names, ranks = mesh.mesh_dim_names, mesh.mesh.cpu().to(torch.int64)
    if names is None:
        raise Invalid('the axes of the mesh have no names: init_device_mesh(.., mesh_dim_names=("tp",))')
    if ranks.flatten().tolist() != world.tolist():
        raise Invalid(f"the mesh holds the ranks {ranks.flatten().tolist()}; it must be all {len(world)} ranks in order, with the last axis innermost")
    return tuple(names), ranks


def name_groups(program: bytes) -> bytes:
    """A program's JSON with the axes of the mesh in place of the names of process groups, where a communicator has such an axis. The core refuses other groups by name."""
    read = json.loads(program)
    for node in read["graph_module"]["graph"]["nodes"]:
        for given in node["inputs"] if node["target"].startswith(COLLECTIVES.decode()) else ():
            if given["name"] == "group_name" and "as_string" in given["arg"]:
                given["arg"]["as_string"] = _axes_of.get(given["arg"]["as_string"], given["arg"]["as_string"])
    return json.dumps(read).encode()


def _lines(ranks: torch.Tensor, axis: int) -> list[list[int]]:
    """The groups of ranks that lie along an axis, in an order that all ranks agree on."""
    return ranks.movedim(axis, -1).reshape(-1, ranks.shape[axis]).tolist()


class _Gloo:
    """Moves bytes along each axis by a group of its own."""

    def __init__(self, ranks: torch.Tensor, timeout_s: float) -> None:
        timeout, me = datetime.timedelta(seconds=timeout_s), dist.get_rank()
        everybody = list(range(dist.get_world_size()))
        self._groups = {-1: dist.new_group(everybody, timeout=timeout, backend="gloo")}
        self._members = {-1: everybody}
        for axis in range(ranks.dim()):
            for line in _lines(ranks, axis):
                group = dist.new_group(line, timeout=timeout, backend="gloo")     # every rank makes every group
                if me in line:
                    self._groups[axis], self._members[axis] = group, line
        self._asking = dist.new_group(everybody, timeout=timeout, backend="gloo")

    def all_gather(self, axis: int, part: memoryview, parts: memoryview) -> None:
        self._carry(axis, lambda group: dist.all_gather(list(_bytes(parts).chunk(len(self._members[axis]))), _bytes(part), group=group))

    def all_to_all(self, axis: int, parts: memoryview, received: memoryview) -> None:
        self._carry(axis, lambda group: dist.all_to_all_single(_bytes(received), _bytes(parts), group=group))

    def _carry(self, axis: int, move: Any) -> None:
        try:
            move(self._groups[axis])
        except RuntimeError as error:
            raise Lost(f"{self._missing(self._members[axis])} ({error})") from error

    def _missing(self, members: list[int]) -> str:
        """Who is not there any more: ranks that have failed send each other a byte, in a group that nothing else is sent in, and then another one, so that none ends while somebody looks for it."""
        others = [rank for rank in members if rank != dist.get_rank()]
        answers = self._ask(others)
        self._ask([rank for rank in others if answers[rank] is None])
        gone = [rank for rank in others if answers[rank] not in (None, _SILENT)]
        silent = [rank for rank in others if answers[rank] == _SILENT]
        if gone:
            return f"{_ranks(gone)} gone"
        return f"{_ranks(silent)} not there" if silent else "a rank did not come in time"

    def _ask(self, others: list[int]) -> dict[int, str | None]:
        """By rank: None, it has answered; else why not."""
        bytes_of = {rank: (torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)) for rank in others}
        begun = {rank: [_begin(dist.isend, sent, rank, self._asking), _begin(dist.irecv, received, rank, self._asking)] for rank, (sent, received) in bytes_of.items()}
        until = time.monotonic() + _FIND_S
        return {rank: next((answer for work in works if (answer := _wait(work, until)) is not None), None) for rank, works in begun.items()}


def _begin(call: Any, byte: torch.Tensor, rank: int, group: Any) -> Any:
    try:
        return call(byte, rank, group=group)
    except RuntimeError as error:
        return error


def _wait(work: Any, until: float) -> str | None:
    """None: it was done; else why not."""
    if isinstance(work, Exception):
        return str(work)
    try:
        work.wait(datetime.timedelta(seconds=max(until - time.monotonic(), 0.001)))
        return None
    except RuntimeError as error:
        return _SILENT if "imed out" in str(error) else str(error)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"


def _bytes(view: memoryview) -> torch.Tensor:
    return torch.frombuffer(view, dtype=torch.uint8)
