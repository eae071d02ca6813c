"""One family of exceptions: those of the core, whose texts say what, where, the values and what to do.

``Error`` is the base; ``error.status`` is the name of the status (docs: ``status.def``). Warnings are ``DeepwellWarning``.
"""
from ._core import (Cancelled, Corrupt, DeepwellWarning, Error, Internal, Invalid, Io, Limit, Lost, Mismatch, NoMemory, NotFound, Syntax, Unsupported)

__all__ = ["Cancelled", "Corrupt", "DeepwellWarning", "Error", "Internal", "Invalid", "Io", "Limit", "Lost", "Mismatch", "NoMemory", "NotFound", "Syntax",
           "Unsupported"]
