"""Exceptions: Error, and one subclass per status of the C core. `error.status` is the status's name, such as "MISMATCH"."""

from . import _core

__all__ = [name for name, value in vars(_core).items() if isinstance(value, type) and issubclass(value, _core.Error)]
globals().update({name: getattr(_core, name) for name in __all__})
