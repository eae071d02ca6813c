"""Kernels of the user's own, chosen before Deepwell's wherever they accept."""
from __future__ import annotations

import ctypes
from typing import Any, Callable

from . import _core
from .errors import Invalid
from .precision import precision_name


class KernelRegistry:
    """A list of kernels, given to ``compile`` or ``optimize``; never global.

    >>> registry = KernelRegistry()
    >>> registry.register("custom_gemm", my_kernel, precision="mxfp8", min_size=1024)
    """

    def __init__(self) -> None:
        self._core = _core.Registry()
        self.names: list[str] = []

    def register(self, name: str, kernel: Callable[..., Any] | int | Any, precision: str | None = None, min_size: int = 0, op: str = "matmul",
                 can_post: bool = False) -> None:
        """kernel: a Python callable ``kernel(*operands, outputs, op, post, attributes, threads)``, or a C function (a ctypes function, or its address)
        of type ``dw_status (*)(const dw_kernel_call *)`` as in ``deepwell/device.h``.

        A callable gets each operand as an ``Operand``: ``torch.from_dlpack(operand)`` is a tensor over it, ``.data`` and ``.scales`` are the parts of a
        block format; it fills the tensors over ``outputs`` and returns None, or returns its result (of several a tuple) in their shape and dtype. For a matmul with ``attributes["bt"]`` the right operand is [n,k].
        precision: the format of the operands it takes ("f32", "mxfp8", ..); None: any. min_size: least number of multiply-adds (for other ops than
        matmul, of elements) known at plan time. can_post: it applies post lists (bias, activation) itself; others are given none."""
        run = kernel
        if isinstance(kernel, ctypes._CFuncPtr):
            run = ctypes.cast(kernel, ctypes.c_void_p).value
        if not callable(run) and not isinstance(run, int):
            raise Invalid(f"kernel '{name}' is a {type(kernel).__name__}: give a callable or the address of a C function")
        name_of = precision_name(precision)
        self._core.add(name, op=op, precision="f32" if name_of == "fp32" else name_of, min_size=min_size, can_post=can_post, run=run)
        self.names.append(name)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"KernelRegistry({', '.join(self.names)})"
