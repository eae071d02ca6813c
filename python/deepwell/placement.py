"""Where tensors lie: the device of a model, of a call, and what is said where they do not agree. A tensor of rank 0 in the CPU's memory goes with any
device, as it does in PyTorch."""
from __future__ import annotations

from typing import Any, Container, Iterable

import torch

from .errors import Mismatch, Unsupported

CPU = torch.device("cpu")


def device_of(tensors: Iterable[tuple[str, Any]], device: torch.device | None = None, of: str = "") -> torch.device | None:
    """The device that these tensors are on, which is the given one where there is one (of says whose it is); None: there is no tensor.

    Mismatch names two tensors on different devices, Unsupported one on a device that is neither the CPU nor CUDA."""
    first, scalar = of, None
    for name, tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta":
            continue
        if tensor.dim() == 0 and tensor.device.type == "cpu":
            scalar = CPU
            continue
        if tensor.device == device:
            continue
        if tensor.device.type not in ("cpu", "cuda"):
            raise Unsupported(f"'{name}' is on device '{tensor.device}'; Deepwell runs on the CPU and on CUDA")
        if device is not None:
            raise Mismatch(f"'{name}' is on {tensor.device}, {first} on {device}: move it by .to('{device}')")
        device, first = tensor.device, f"'{name}'"
    return scalar if device is None else device


def core_device(device: torch.device | None) -> str | None:
    """The core's name of it; None: the CPU."""
    return None if device is None or device.type == "cpu" else f"cuda:{device.index or 0}"


def parse_device(device: Any) -> torch.device | None:
    """What the user named: None, "cpu", "cuda", "cuda:1", or a torch.device."""
    if device is None:
        return None
    made = torch.device(device)
    if made.type not in ("cpu", "cuda"):
        raise Unsupported(f"device '{made}': Deepwell runs on the CPU and on CUDA")
    return torch.device("cuda", made.index or 0) if made.type == "cuda" else made


_SMALL = 65536      # bytes: a weight of fewer is copied to the host, where passes may look at its numbers


def _stays(tensor: torch.Tensor, device: torch.device | None) -> bool:
    return tensor.device == device and tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 and tensor.numel() * tensor.element_size() > _SMALL


def for_core(tensors: Iterable[tuple[str, torch.Tensor]], parameters: Container[str], device: torch.device | None) -> list[tuple[str, torch.Tensor]]:
    """The tensors where the core reads them: large parameters of device, where the model will run, stay there; what else lies on GPUs comes as copies in the CPU's memory."""
    return [(name, tensor if tensor.device.type != "cuda" or (name in parameters and _stays(tensor, device)) else tensor.detach().cpu()) for name, tensor in tensors]
