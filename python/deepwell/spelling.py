"""Operators that the core does not read, spelled out by PyTorch in others: its decompositions of recurrent layers, of spellings like ``hstack``, of rare functions."""
from __future__ import annotations

import functools
import json
from typing import Any, Callable

import torch
from torch.export import ExportedProgram

from . import _core

_ROUNDS = 4         # a spelling may hold operators that are spelled out in their turn


@functools.cache
def _read() -> frozenset[str]:
    """What the core reads, with the forms that write in place."""
    names = []
    for row in json.loads(_core.operators()):
        names.append(row["target"])
        if row["in_place"]:
            base, _, overload = row["target"].rpartition(".")
            names.append(f"{base}_.{overload}")
    return frozenset(names)


def unread(program: ExportedProgram) -> set[torch._ops.OpOverload]:
    """The operators of aten and prims that the program calls and the core does not read."""
    return {n.target for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule) for n in module.graph.nodes
            if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload) and n.target.namespace in ("aten", "prims") and str(n.target) not in _read()}


def _spellings(operators: set[torch._ops.OpOverload]) -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """By operator what PyTorch makes of it; none for one that it has no other words for."""
    known = torch.export.default_decompositions()
    found: dict[torch._ops.OperatorBase, Callable[..., Any]] = {}
    for operator in operators:
        if operator in torch._decomp.decomposition_table:
            found[operator] = torch._decomp.decomposition_table[operator]
        elif operator in known:
            found[operator] = known[operator]
    return found


def spell_out(program: ExportedProgram) -> ExportedProgram:
    """The program with what the core does not read in other words, where PyTorch has some. One that needs none is given back as it is, as is one whose other words are not read either:
    what the core refuses then has the names that the model's author knows."""
    wanted = unread(program)
    guards = getattr(program, "_guards_code", None)
    spelled = program
    for _ in range(_ROUNDS):
        spellings = _spellings(unread(spelled))
        if not spellings:
            break
        try:
            spelled = spelled.run_decompositions(spellings)
        except Exception:       # as of a recurrence over a number of steps that is not known: a capture with less that is dynamic comes next
            return program
        if guards and not getattr(spelled, "_guards_code", None):
            spelled._guards_code = guards
    return spelled if unread(spelled) <= wanted else program
