"""A model that cannot be traced, taken module by module: each part that can be captured whole runs on Deepwell, the Python around it on PyTorch."""
from __future__ import annotations

from typing import Any

from torch import nn


def replace(model: nn.Module, options: Any, dynamic: Any) -> list[Any]:
    """Replaces the submodules of model, in place, by optimised ones; gives their handles. model is a copy of ours, not the user's.

    The largest parts are tried first, at their first call; one that cannot be captured is taken apart in turn."""
    handles: list[Any] = []
    _replace_children(model, options, dynamic, handles, {})
    return handles


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _replace_children(module: nn.Module, options: Any, dynamic: Any, handles: list[Any], made: dict[int, nn.Module]) -> None:
    for name, child in list(module._modules.items()):
        if child is None or not _has_weights(child):
            continue
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            _replace_children(child, options, dynamic, handles, made)
            continue
        if id(child) not in made:
            made[id(child)] = _part(child, options, dynamic, handles)
        module._modules[name] = made[id(child)]


def _part(child: nn.Module, options: Any, dynamic: Any, handles: list[Any]) -> nn.Module:
    from .optimized import Optimized, _wrap
    part = _wrap(child, options, False, dynamic, fallback=False)
    handle: Optimized = part.deepwell
    handles.append(handle)

    def take_apart(reason: str) -> Any:
        """Its own parts are optimised instead, and it runs on PyTorch."""
        if not any(_has_weights(c) for c in handle.eager.children()):
            return type(handle)._plain_pytorch(handle, reason)
        _replace_children(handle.eager, options, dynamic, handles, {})
        return handle.eager
    handle._partial = take_apart        # type: ignore[method-assign]
    return part
