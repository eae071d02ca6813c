"""Floating-point operations of products in a traced graph: matrix products, convolutions and attention, two for each multiply-add. What shares of
coverage are counted in; elementwise work is not counted."""
from __future__ import annotations

import math
from typing import Any, Callable, Iterable

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from .program import value_of


def _int(size: Any) -> int:
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return int(hint) if isinstance(hint, (int, float)) else 1


def _count(value: Any) -> int:
    return math.prod(_int(s) for s in value.shape) if isinstance(value, torch.Tensor) else 0


def _value(arg: Any) -> Any:
    return value_of(arg) if isinstance(arg, fx.Node) else arg


def node_flops(node: fx.Node) -> float:
    """Of one node; 0 for what is no product."""
    if node.op != "call_function":
        return 0.0
    name = str(getattr(node.target, "_overloadpacket", node.target)).split(".")[-1]
    args = [_value(a) for a in node.args]
    result = _value(node)
    result = result[0] if isinstance(result, (tuple, list)) and result else result
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if name in ("mm", "bmm", "matmul", "mv", "dot", "linear", "_grouped_mm", "grouped_mm_fallback") and len(tensors) >= 2:
        return 2.0 * _count(result) * _int(tensors[0].shape[-1])
    if name in ("addmm", "baddbmm", "addmv") and len(tensors) >= 3:
        return 2.0 * _count(result) * _int(tensors[1].shape[-1])
    if name in ("conv1d", "conv2d", "conv3d", "convolution", "_convolution") and len(tensors) >= 2:
        return 2.0 * _count(result) * _count(tensors[1]) / max(1, _int(tensors[1].shape[0]))
    if "scaled_dot_product" in name and len(tensors) >= 3:
        q, k, v = tensors[:3]
        return 2.0 * _count(q) * _int(k.shape[-2]) + 2.0 * _count(q) / max(1, _int(q.shape[-1])) * _int(k.shape[-2]) * _int(v.shape[-1])
    if name == "einsum":
        operands = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else []
        operands = [_value(o) for o in operands]
        equation = str(args[0]).split("->")[0].replace(" ", "").split(",")
        sizes = {c: _int(s) for term, o in zip(equation, operands) if "." not in term for c, s in zip(term, o.shape)}
        return 2.0 * math.prod(sizes.values()) if len(operands) == 2 else 0.0
    return 0.0


def graph_flops(nodes: Iterable[fx.Node], module: fx.GraphModule | None = None) -> float:
    """Of these nodes, and of the graphs nested in them where module is given."""
    total = 0.0
    for node in nodes:
        total += node_flops(node)
        if module is not None and node.op == "get_attr":
            inner = module
            for step in node.target.split("."):
                inner = getattr(inner, step, None)
            if isinstance(inner, fx.GraphModule):
                total += graph_flops(inner.graph.nodes, inner)
    return total


class _Counter(TorchDispatchMode):
    """Counts what PyTorch computes. (FlopCounterMode also hooks all modules, for which torch.compile compiles them anew.)"""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """So that graphs of torch.compile run as they do without the mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils.flop_counter import flop_registry
        kwargs = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None and func is not torch.ops.prim.device.default:
            with self:              # operators that PyTorch composes of others, which inference mode does not take apart
                value = func.decompose(*args, **kwargs)
            if value is not NotImplemented:
                return value
        value = func(*args, **kwargs)
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=value)
            if isinstance(flops, (int, float)):     # of what is traced meanwhile, whose sizes are symbols, nothing is computed
                self.total += flops
        return value


def can_count_compiled() -> bool:
    """Does this torch run the graphs that torch.compile has made under a mode too? One that does not compiles them anew, or runs the Python that they came
    from."""
    return hasattr(torch._C._dynamo.guards, "set_is_in_mode_without_ignore_compile_internals")


def counted(call: Callable[[], Any]) -> tuple[Any, float]:
    """What call gives, and the FLOPs of the products that PyTorch computed in it."""
    with _Counter() as counter:
        value = call()
    return value, float(counter.total)
