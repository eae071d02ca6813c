"""Modules that are parallel by DTensors: by ``fully_shard``, ``parallelize_module``, or transformers' ``tp_plan``. A parameter's placement says which part of it a rank has, and what these have put around
modules brings inputs and results to where they are wanted. Such a module computes what the same one does with whole parameters and nothing around it. That one is captured, and cut by the mesh that it is given.

Whole parameters lie in a file, one of each machine, which its ranks map: a rank's own memory holds one of them at a time, and then its slices.
"""
from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import tempfile
from typing import Any, Iterator

import torch
from torch import nn

from .errors import Io, Unsupported
from .mapping import _DTYPES, mapped

# Whose hooks and forwards are taken off.
_OWNERS = ("torch.distributed.", "transformers.distributed.", "transformers.integrations.")


def whole(model: nn.Module) -> nn.Module:
    """The module with whole parameters; model itself where none is a DTensor. All ranks call it at the same time: parameters are put together one after another, into a file of the folder for temporary ones
    where that has room, else in memory. Numbers are those that model has now."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return model
    _refuse(model)
    if not any(map(_is_dtensor, (*model.parameters(), *model.buffers()))):
        return model
    return _plain(model, _put_together(model))


def _is_dtensor(tensor: Any) -> bool:
    from torch.distributed.tensor import DTensor
    return isinstance(tensor, DTensor)


def _refuse(model: nn.Module) -> None:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    name = type(model).__name__
    if any(isinstance(m, FullyShardedDataParallel) for m in model.modules()):
        raise Unsupported(f"{name} is wrapped by FullyShardedDataParallel, whose parameters are flat parts of several: shard it by torch.distributed.fsdp.fully_shard, or give the module that it was made of")
    if model.training and any(isinstance(m, FSDPModule) for m in model.modules()):
        raise Unsupported(f"{name} is sharded by fully_shard and in training mode: FSDP would change and move its parameters under a captured copy. Train it on PyTorch; to run it on Deepwell call .eval() on it, "
                          "and optimize() it again when its weights have changed")


def _plain(module: nn.Module, made: dict[int, Any]) -> nn.Module:
    """A copy without what is parallel of it; what is shared stays so."""
    if id(module) in made:
        return made[id(module)]
    kind = _class_of(module)
    copied = made[id(module)] = kind.__new__(kind)
    copied.__dict__.update({name: value for name, value in module.__dict__.items() if not name.startswith("__composable_api_")})     # where fully_shard keeps what it knows
    if _is_owned(module.__dict__.get("forward")):
        del copied.__dict__["forward"]
    for name, hooks in module.__dict__.items():
        if name.endswith("_hooks") and isinstance(hooks, dict):
            copied.__dict__[name] = type(hooks)((key, hook) for key, hook in hooks.items() if not _is_owned(hook))
    copied._parameters = type(module._parameters)((name, _whole(tensor, made)) for name, tensor in module._parameters.items())
    copied._buffers = type(module._buffers)((name, _whole(tensor, made)) for name, tensor in module._buffers.items())
    copied._modules = type(module._modules)((name, None if part is None else _plain(part, made)) for name, part in module._modules.items())
    return copied


def _class_of(module: nn.Module) -> type[nn.Module]:
    """fully_shard gives modules a class of its own, made of theirs."""
    from torch.distributed.fsdp import FSDPModule
    if not isinstance(module, FSDPModule):
        return type(module)
    return next(base for base in type(module).__bases__ if base is not FSDPModule)


def _whole(tensor: Any, made: dict[int, Any]) -> Any:
    return made[id(tensor)] if _is_dtensor(tensor) else tensor


# ---- parameters, one after another ----

_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def _parts_of(model: nn.Module) -> dict[int, Any]:
    """Each DTensor once, in an order that all ranks agree on."""
    found: Iterator[Any] = (tensor for module in model.modules() for tensor in (*module._parameters.values(), *module._buffers.values()) if _is_dtensor(tensor))
    return {id(tensor): tensor for tensor in found}


def _full(tensor: Any) -> torch.Tensor:
    with torch.no_grad():
        return tensor.full_tensor().detach().contiguous()


def _put_together(model: nn.Module) -> dict[int, Any]:
    """The whole of each DTensor, by its id."""
    parts = _parts_of(model)
    return {key: nn.Parameter(full, requires_grad=False) if isinstance(parts[key], nn.Parameter) else full for key, full in _wholes(parts).items()}


def _wholes(parts: dict[int, Any]) -> dict[int, torch.Tensor]:
    filed = {key: tensor for key, tensor in parts.items() if tensor.device.type == "cpu" and tensor.dtype in _NAMES and tensor.numel() > 0}
    path, writes = _place(sum(tensor.numel() * tensor.dtype.itemsize for tensor in filed.values()))
    if path is None:
        return {key: _full(tensor) for key, tensor in parts.items()}
    try:
        failure = _write(path, filed, writes)
        made = {key: _full(tensor) for key, tensor in parts.items() if key not in filed}
        if any(_gathered(failure)):
            raise Io(f"parameters could not be put together in {tempfile.gettempdir()} on every machine: {failure or 'on another one'}; TMPDIR names another folder")
        found = mapped(path)
        _gathered(None)      # all have mapped it
    finally:
        if writes:
            os.unlink(path)
    return made | {key: found[str(number)] for number, key in enumerate(filed)}


def _gathered(value: Any) -> list[Any]:
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _place(size: int) -> tuple[str | None, bool]:
    """The file of this machine, and does this rank write it? None: there is none on some machine, as it has no room."""
    folder, host, path = tempfile.gettempdir(), socket.gethostname(), ""
    rooms = _gathered((host, size > 0 and shutil.disk_usage(folder).free > size + size // 8))
    if not all(fits for _, fits in rooms):
        return None, False
    writer = [name for name, _ in rooms].index(host)
    writes = writer == torch.distributed.get_rank()
    if writes:
        try:
            handle, path = tempfile.mkstemp(prefix="deepwell-", suffix=".safetensors", dir=folder)
            os.close(handle)
        except OSError:
            path = ""
    shared = _gathered(path)[writer]
    if all(_gathered(os.path.exists(shared))):
        return shared, writes
    if path:
        os.unlink(path)
    return None, False


def _write(path: str, tensors: dict[int, Any], writes: bool) -> str | None:
    """As a safetensors file, under their numbers. Every rank takes part in putting each together. What went wrong, or None."""
    header, at = {}, 0
    for number, tensor in enumerate(tensors.values()):
        header[str(number)] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at := at + tensor.numel() * tensor.dtype.itemsize]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)       # data begins at a multiple of 64
    failure = None
    with open(path if writes else os.devnull, "wb") as file:
        for number, tensor in enumerate((None, *tensors.values())):
            full = None if tensor is None else _full(tensor)
            if not writes or failure is not None:
                continue
            try:
                file.write(len(text).to_bytes(8, "little") + text if full is None else memoryview(full.reshape(-1).view(torch.uint8).numpy()))
            except OSError as error:
                failure = str(error)
    return failure


def _is_owned(function: Any) -> bool:
    while isinstance(function, functools.partial) or hasattr(function, "hook"):
        function = function.func if isinstance(function, functools.partial) else function.hook      # torch wraps hooks that take the module
    return (getattr(function, "__module__", None) or "").startswith(_OWNERS)
