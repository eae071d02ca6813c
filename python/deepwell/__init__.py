"""Deepwell: PyTorch transformers in low precision, with the fastest kernel for the hardware and the reason of every choice.

    model = deepwell.optimize(model, precision="mxfp8")     # the same inputs, the same outputs
    print(model.deepwell.report())                          # what runs on Deepwell, and what does not and why

``import deepwell`` needs no torch; what takes a module imports it.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._core import version as _version
from .capture import IR, capture
from .engine import Benchmark, Engine, compile, load
from .errors import (Cancelled, Corrupt, DeepwellWarning, Error, Internal, Invalid, Io, Limit, Lost, Mismatch, NoMemory, NotFound, Syntax, Unsupported)
from .kernels import KernelRegistry
from .precision import PrecisionPolicy
from .probe import Hardware, probe

if TYPE_CHECKING:
    from . import ops, serve
    from .attention import register_attention
    from .mapping import mapped
    from .optimized import Optimized, handle, optimize, optimize_for_blackwell
    from .report import Report, Row

__version__ = _version()

_LAZY = {"optimize": "optimized", "mapped": "mapping", "optimize_for_blackwell": "optimized", "handle": "optimized", "Optimized": "optimized", "Report": "report", "Row": "report",
         "register_attention": "attention"}

__all__ = ["IR", "Benchmark", "Cancelled", "Corrupt", "DeepwellWarning", "Engine", "Error", "Hardware", "Internal", "Invalid", "Io", "KernelRegistry",
           "Limit", "Lost", "Mismatch", "NoMemory", "NotFound", "Optimized", "PrecisionPolicy", "Report", "Row", "Syntax", "Unsupported", "capture", "compile", "handle",
           "load", "mapped", "ops", "optimize", "optimize_for_blackwell", "probe", "register_attention", "serve"]


def __getattr__(name: str) -> Any:
    """What needs torch, imported when it is first asked for."""
    import importlib
    if name in ("ops", "serve"):
        return importlib.import_module(f".{name}", __name__)
    if name in _LAZY:
        value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'deepwell' has no attribute '{name}'")
