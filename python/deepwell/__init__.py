"""Deepwell: PyTorch transformers in low precision, with the fastest kernel for the hardware and the reason of every choice."""

from ._core import version as _version
from .errors import *  # noqa: F403

__version__ = _version()
