"""``capture``: a module or a file -> an ``IR``, the graph that the core compiles, with what Python needs to call it as the module was called."""
from __future__ import annotations

import json
import os
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

from . import _core
from .errors import DeepwellWarning, Invalid, Unsupported

_NODE = re.compile(r"^  ((?:%\d+(?:, )?)+) = (\w+) ?(.*)$")
_BEHIND = re.compile(r' ?\{| at "| name "| type "| role ')     # attributes and origin
_OPERAND = re.compile(r'%\d+|"([^"]*)"|[A-Za-z_][\w.]*')


@dataclass(frozen=True)
class Dependencies:
    """Which value is made of which. ``reads[value]`` are its operands (values, inputs, weights), ``ops[value]`` the op that makes it."""
    reads: dict[str, tuple[str, ...]]
    ops: dict[str, str]
    outputs: dict[str, str]

    @property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """By value, input or weight: the values made of it."""
        found: dict[str, list[str]] = {}
        for value, operands in self.reads.items():
            for operand in dict.fromkeys(operands):
                found.setdefault(operand, []).append(value)
        return {k: tuple(v) for k, v in found.items()}

    @property
    def depth(self) -> int:
        """Ops on the longest chain from inputs to outputs."""
        depths: dict[str, int] = {}
        for value, operands in self.reads.items():      # in the order of the graph: operands come first
            depths[value] = 1 + max((depths.get(o, 0) for o in operands), default=0)
        return max(depths.values(), default=0)

    def __str__(self) -> str:
        readers = self.readers
        lines = [f"{len(self.reads)} values, {self.depth} ops on the longest chain"]
        for value, operands in self.reads.items():
            lines.append(f"  {value:6} {self.ops[value]:14} of {', '.join(operands) or 'nothing'}; read by {', '.join(readers.get(value, ())) or 'no op'}")
        lines += [f"  output {name} is {value}" for name, value in self.outputs.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class FusionReport:
    """How many ops of each kind before and after structural fusion, and which attention stayed apart and why."""
    captured: dict[str, int]
    fused: dict[str, int]
    not_fused: str

    def __str__(self) -> str:
        lines = [f"{sum(self.captured.values())} ops captured, {sum(self.fused.values())} after fusion"]
        for op in sorted(set(self.captured) | set(self.fused)):
            before, after = self.captured.get(op, 0), self.fused.get(op, 0)
            lines.append(f"  {op:16} {before:5} -> {after:5}" + ("" if before == after else f"  ({after - before:+d})"))
        if self.not_fused:
            lines.append(f"not fused: {self.not_fused}")
        return "\n".join(lines)


class IR:
    """A captured model. ``print(ir)`` shows the graph in its text form (docs/text.md); ``compile(ir)`` makes an engine of it."""

    def __init__(self, source: str, graph: Any, trace: Any = None, model: Any = None) -> None:
        self.source, self.graph, self.trace, self.model = source, graph, trace, model

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """[(name, "f32[b,s,64]"), ..]"""
        return self.graph.inputs

    @property
    def outputs(self) -> list[tuple[str, str]]:
        return self.graph.outputs

    def __str__(self) -> str:
        return self.graph.print()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{n} {t}" for n, t in self.inputs)
        outputs = ", ".join(f"{n} {t}" for n, t in self.outputs)
        origin = " from the cache of captures" if self.trace is not None and self.trace.is_kept else ""
        return f"<deepwell.IR of {self.source}{origin}: {inputs} -> {outputs}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """``*.dw``: compiled for this machine as exported (``deepwell.load`` reads it); any other name: the graph's text, without weights."""
        if str(path).endswith(".dw"):
            _core.Model(self._on_host(), generate=True).save(path)
            return
        with open(path, "w", encoding="utf-8") as file:
            file.write(str(self))

    def _on_host(self) -> Any:
        """The graph with all of its weights in the CPU's memory."""
        from .placement import for_core
        if self.trace is None or self.trace.program.place is None:
            return self.graph
        program = self.trace.program
        return _core.Graph.program(self.source, program.json, for_core(program.tensors, (), None))

    def dependencies(self) -> Dependencies:
        """Which value of the graph is made of which."""
        reads: dict[str, tuple[str, ...]] = {}
        ops: dict[str, str] = {}
        outputs: dict[str, str] = {}
        for line in str(self).splitlines():
            node = _NODE.match(line)
            if node is not None:
                operands = [m[1] or m[0] for m in _OPERAND.finditer(_BEHIND.split(node[3], maxsplit=1)[0])]
                for value in node[1].split(", "):
                    reads[value], ops[value] = tuple(operands), node[2]
            elif line.startswith("  output "):
                words = line.split()
                outputs[words[1]] = words[2]
        return Dependencies(reads, ops, outputs)

    def fusion_report(self) -> FusionReport:
        """What structural fusion makes of the graph."""
        facts = json.loads(_core.Model(self.graph, plan_only=True).print("explain", json=True))
        return FusionReport(Counter(facts["captured_ops"]), Counter(facts["fused_ops"]), facts.get("not_fused") or "")


def _as_call(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, dict):
        return (), dict(example)
    if isinstance(example, tuple):
        if len(example) == 2 and isinstance(example[0], tuple) and isinstance(example[1], dict):
            return example
        return example, {}
    return (example,), {}


def capture(model: Any, example_inputs: Any = None, *, dynamic: Any = True) -> IR:
    """The graph of a module or of a file.

    model: an ``nn.Module``, or the path of a ``.pt2`` archive or a graph in text form. example_inputs: a tensor, a tuple of positional arguments, a
    dict of keyword arguments, or ``(args, kwargs)``; None: inferred from the module where it says enough. dynamic: True lets batch and positions
    change where torch.export can keep them apart (what it cannot is warned of), False takes the examples' sizes, and
    ``{"input_ids": {0: True, 1: True}}`` names the axes.

    The module is captured for inference, in eval mode; its weights are borrowed, not copied. A capture is kept on disk for the next process that
    captures the same model in the same way (docs/python.md)."""
    if isinstance(model, (str, os.PathLike)):
        return IR(os.fspath(model), _core.Graph.open(os.fspath(model)))
    import torch
    from .inputs import infer_inputs
    from .optimized import in_eval_mode
    from .placement import CPU, device_of
    from .region import check_tensor, graph_of
    from .trace import flatten_call, trace, warn_fixed
    if not isinstance(model, torch.nn.Module):
        raise Invalid(f"capture: an nn.Module or the path of a file is wanted, not a {type(model).__name__}")
    if model.training:
        warnings.warn(f"{type(model).__name__} is in training mode; it is captured as in eval mode", DeepwellWarning, stacklevel=2)
        model = in_eval_mode(model)
    device = device_of([*model.named_parameters(), *model.named_buffers()])
    with device or CPU:
        args, kwargs = infer_inputs(model) if example_inputs is None else _as_call(example_inputs)
    form, flat = flatten_call(model, args, kwargs)
    for name, leaf in zip(flat.names, flat.leaves):
        check_tensor(leaf, name)
    device_of(zip(flat.names, flat.leaves), device, "the model's weights are")
    graphs: list[Any] = []

    def accept(made: Any) -> None:
        graphs.append(graph_of(type(model).__name__, made.program, device))
    made = trace(model, args, kwargs, dynamic, accept)
    warn_fixed(made, type(model).__name__)
    if not any(o.name for o in made.program.outputs):
        raise Unsupported(f"{type(model).__name__}: nothing is computed: every result is an argument or a constant")
    return IR(type(model).__name__, graphs[-1], made, model)
