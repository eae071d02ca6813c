"""Notices that a module's weights changed since they were last looked at: written in place, given other memory, or replaced."""
from __future__ import annotations

from typing import Any, Iterable

import torch
from torch import nn

from .errors import Invalid


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class Watch:
    """Parameters and buffers of a module, by the names of its state_dict; those of ``ignored`` names excepted.

    A write inside ``torch.inference_mode`` to a tensor made there leaves no trace: call ``model.deepwell.update()`` after it."""

    def __init__(self, module: nn.Module, outer: nn.Module | None = None, ignored: Iterable[str] = ()) -> None:
        """outer: the module as the user sees it, on the same parameters."""
        self.module, self.outer = module, outer if outer is not None else module
        self.ignored = set(ignored)
        self.look()

    def check_modules(self) -> None:
        """Raises Invalid where the user put another submodule into place, or took one away: what is captured is another model then."""
        for owner, key, child in self._children:
            if owner.get(key) is not child:
                raise Invalid(f"submodule '{key}' of an optimised {type(self.outer).__name__} is another one now; change the model and optimize it again")

    def look(self) -> None:
        """Takes what is there now as known."""
        self._rows: list[tuple[dict[str, Any], str, torch.Tensor, int, str]] = []
        versions = []
        for path, module in self.module.named_modules(remove_duplicate=False):
            for owner in (module._parameters, module._buffers):
                for key, tensor in owner.items():
                    name = f"{path}.{key}" if path else key
                    if tensor is not None and name not in self.ignored:
                        self._rows.append((owner, key, tensor, tensor.data_ptr() if tensor.device.type != "meta" else 0, name))
                        versions.append(_version(tensor))
        self._versions = versions
        self._children = [(m._modules, key, child) for m in self.outer.modules() for key, child in m._modules.items()]
        self.pairs = list(zip(self.module.modules(), self.outer.modules()))
        self._quick = [(owner, key, tensor, pointer, version) for (owner, key, tensor, pointer, _), version in zip(self._rows, versions)
                       if not tensor.is_inference()]

    def is_same(self) -> bool:
        """Nothing changed. Quick: it is asked before every call."""
        for owner, key, child in self._children:
            if owner.get(key) is not child:
                return False
        for owner, key, tensor, pointer, version in self._quick:
            if owner.get(key) is not tensor or tensor._version != version or tensor.data_ptr() != pointer:
                return False
        return True

    def changes(self) -> tuple[list[str], list[str]]:
        """Names of weights written in place, and of those whose memory or tensor is another one."""
        written, moved = [], []
        for (owner, key, tensor, pointer, name), version in zip(self._rows, self._versions):
            now = owner.get(key)
            if now is not tensor or tensor.data_ptr() != pointer:
                moved.append(name)
            elif _version(tensor) != version:
                written.append(name)
        return written, moved

    def tensors(self) -> dict[str, torch.Tensor]:
        """By name, as they are now."""
        return {name: owner[key].detach() for owner, key, _, _, name in self._rows if owner.get(key) is not None}
