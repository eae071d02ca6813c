"""Modules that are parallel by DTensors: by ``fully_shard``, ``parallelize_module``, or transformers' ``tp_plan``. A parameter's placement says which part of it a rank has, and what these have put around
modules brings inputs and results to where they are wanted. Such a module computes what the same one does with whole parameters and nothing around it. That one is captured, and cut by the mesh that it is given.
"""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from .errors import Unsupported

# Whose hooks and forwards are taken off.
_OWNERS = ("torch.distributed.", "transformers.distributed.", "transformers.integrations.")


def whole(model: nn.Module) -> nn.Module:
    """The module with whole parameters; model itself where none is a DTensor. All ranks call it at the same time: parameters are put together one after another. Numbers are those that model has now."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return model
    _refuse(model)
    if not any(map(_is_dtensor, (*model.parameters(), *model.buffers()))):
        return model
    return _plain(model, {})


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
    if not _is_dtensor(tensor):
        return tensor
    if id(tensor) not in made:
        with torch.no_grad():
            full = tensor.full_tensor().contiguous()
        made[id(tensor)] = nn.Parameter(full, requires_grad=False) if isinstance(tensor, nn.Parameter) else full
    return made[id(tensor)]


def _is_owned(function: Any) -> bool:
    while isinstance(function, functools.partial) or hasattr(function, "hook"):
        function = function.func if isinstance(function, functools.partial) else function.hook      # torch wraps hooks that take the module
    return (getattr(function, "__module__", None) or "").startswith(_OWNERS)
