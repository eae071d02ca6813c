"""A module and one call of it -> a program: ``torch.export`` on the call's tensors alone, with batch and sequence dynamic where it can be.

Arguments are taken apart by ``structure.py`` first, so that export sees tensors only: caches, None, numbers and nested containers are no matter to
it. Does not compile: ``region.py`` does.
"""
from __future__ import annotations

import contextlib
import functools
import inspect
import io
import logging
import re
import time
import warnings
from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

import torch
from torch import nn

from . import program as _program
from .cache import Place
from .errors import Corrupt, DeepwellWarning, Error, Invalid, Limit, Mismatch, Unsupported
from .expansion import expand, flops
from .repeats import Doubt, Repeats
from .structure import Flat, flatten, rebuild, states_of

_CACHED = re.compile(r"(.*)_\d+_(?:keys|values)$")
Axes = dict[int, Any]           # axis -> a name, or True for one of its own


@dataclass
class Trace:
    """A captured call."""
    program: _program.Program
    form: tuple[Any, ...]           # of (args, kwargs)
    names: list[str]                # of the leaves of form, in order
    result: tuple[Any, ...]         # form of (value, the caches after the call)
    fixed: list[str]                # "captured with a fixed size: input_ids axis 1 = 21", which was asked to be dynamic
    seconds: float                  # that torch.export took
    exported: Any = None            # the ExportedProgram; None: the capture was kept on disk
    equal: list[list[tuple[int, int]]] = field(default_factory=list)    # (leaf, axis) whose sizes are one
    base: str = ""                  # path of the module within the model it is part of
    lifted: tuple[str, ...] = ()    # buffers that the program writes: inputs behind the leaves, in the order of the signature
    flops: float = 0.0              # of products, at the sizes of the example
    origin: str = ""                # "exported in 8.3 s", with where it is kept or was found
    is_kept: bool = False           # was it found on disk?
    repeats: Repeats | None = None  # blocks of exported that stand for others

    def relower(self, lifted: Sequence[str]) -> None:
        """Makes the program anew with these buffers as inputs."""
        self.program = _write(self.exported, self.repeats, self.names, self.equal, self.base, frozenset(lifted))
        targets = [(s.target or "").removeprefix("model.") for s in self.exported.graph_signature.input_specs]
        self.lifted = tuple(t for t in targets if t in set(lifted))


class _Kept:
    """What a traced call says of its result. An object of its own: torch.export puts the attributes of modules back."""
    result: tuple[Any, ...] = ()


class _Call(nn.Module):
    """The call of a module as a function of its tensors."""

    def __init__(self, model: nn.Module, form: tuple[Any, ...]) -> None:
        super().__init__()
        self.model = model
        self.form = form
        self.kept = _Kept()

    def forward(self, *leaves: torch.Tensor) -> tuple[Any, ...]:
        args, kwargs = rebuild(self.form, iter(leaves))
        given = states_of((args, kwargs))
        value = self.model(*args, **kwargs)
        flat = Flat(given, lengths_as_tensors=False)
        form = flatten(value, flat)
        after = []
        for state in given:
            flat.given.pop(id(state))
            after.append(flatten(state, flat))
            flat.given[id(state)] = len(after) - 1
        self.kept.result = (form, tuple(after))
        return tuple(flat.leaves)


def argument_names(model: nn.Module, args: tuple[Any, ...]) -> list[str]:
    """What the positional arguments of a call are called."""
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [names[i] if i < len(names) else f"input_{i}" for i in range(len(args))]


def flatten_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Flat]:
    """The form of a call and its leaves, named after the arguments."""
    flat = Flat()
    names = argument_names(model, args)
    positional = ("sequence", tuple, tuple([flatten(a, flat, n) for a, n in zip(args, names)]))
    named = ("mapping", dict, tuple(kwargs), tuple([flatten(v, flat, k) for k, v in kwargs.items()]))
    return ("sequence", tuple, (positional, named)), flat


# ---- which axes are dynamic ----

def dynamic_axes(name: str, tensor: torch.Tensor) -> tuple[int, ...]:
    """The axes of an argument that may change from call to call: batch and positions, not channels nor the sides of an image."""
    rank = tensor.dim()
    if rank == 4 and (_CACHED.match(name) or "past" in name or "cache" in name):
        return (0, 2)               # a cache: [batch, heads, positions, width]
    if rank == 4 and ("mask" in name or "bias" in name):
        return (0, 2, 3)
    if rank <= 3:
        return tuple(range(rank))   # channels turn out static as soon as they meet a weight
    return (0,)


def _equal_axes(names: Sequence[str], leaves: Sequence[torch.Tensor]) -> list[list[tuple[int, int]]]:
    """The positions of the keys and values of one cache, all layers of one length: torch's trace may keep them apart."""
    groups: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for index, (name, leaf) in enumerate(zip(names, leaves)):
        match = _CACHED.match(name)
        if match is not None and leaf.dim() == 4:
            groups.setdefault((match[1], leaf.shape[2]), []).append((index, 2))
    return [group for group in groups.values() if len(group) > 1]


def _enlarge(leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same with a batch of two instead of one, as torch takes a size of 1 for a constant."""
    if not all(t.dim() >= 2 and t.shape[0] == 1 or t.dim() < 2 for t in leaves) or not any(t.dim() >= 2 for t in leaves):
        return leaves
    return [t.expand(2, *t.shape[1:]).clone() if t.dim() >= 2 else t for t in leaves]


def _fixed(names: Sequence[str], leaves: Sequence[torch.Tensor], specs: list[Axes], program: _program.Program, widths: set[int]) -> list[str]:
    """widths: sizes of parameters. A last axis of such a size is what the model computes with, not how much it is given."""
    result = []
    for name, leaf, axes, shape in zip(names, leaves, specs, program.shapes):
        for axis in axes:
            if name.endswith("cumulative_length") or axis >= min(2, len(shape)) or not isinstance(shape[axis], int) or shape[axis] <= 1 or axis == 1 and len(shape) == 3:
                continue
            if axis == len(shape) - 1 and leaf.is_floating_point() and shape[axis] in widths:
                continue
            result.append(f"captured with a fixed size: {name} axis {axis} = {shape[axis]}")
    return result


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """torch logs what it is about to raise."""
    loggers = [logging.getLogger(n) for n in ("torch.fx.experimental.symbolic_shapes", "torch.export", "torch._export", "torch._dynamo")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


def _export(call: _Call, leaves: Sequence[torch.Tensor], specs: list[Axes]) -> Any:
    auto = torch.export.Dim.AUTO
    dims: dict[str, Any] = {}
    shapes = []
    for leaf, axes in zip(leaves, specs):
        shapes.append({axis: (auto if wanted is True else dims.setdefault(wanted, auto) if isinstance(wanted, str) else wanted)
                       for axis, wanted in axes.items() if leaf.shape[axis] > 1} or None)
    # torch prints the graph that it could not finish; the reason reaches the user as text of an error or of a report.
    with _quiet_torch(), torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return torch.export.export(call, tuple(leaves), dynamic_shapes=(tuple(shapes),) if any(shapes) else None, strict=False)


def _attempts(names: Sequence[str], leaves: list[torch.Tensor], dynamic: Any) -> list[tuple[str, list[torch.Tensor], list[Axes]]]:
    """What to try in turn: (how it is called, tensors, dynamic axes)."""
    static: list[Axes] = [{} for _ in leaves]
    if dynamic is False or not leaves:
        return [("static sizes", leaves, static)]
    if isinstance(dynamic, dict):
        unknown = set(dynamic) - set(names)
        if unknown:
            raise Invalid(f"dynamic names {', '.join(sorted(unknown))}; the inputs are {', '.join(names)}")
        return [("the dynamic sizes asked for", leaves, [dict(dynamic.get(n) or {}) for n in names])]
    every: list[Axes] = [{a: True for a in dynamic_axes(n, t)} for n, t in zip(names, leaves)]
    batch: list[Axes] = [{0: True} if t.dim() >= 2 else {} for t in leaves]
    large = _enlarge(leaves)
    attempts = [("batch and positions dynamic", large, every), ("batch dynamic", large, batch), ("static sizes", leaves, static)]
    if large is not leaves:
        attempts.insert(1, ("positions dynamic", leaves, every))
    return attempts


def _write(exported: Any, repeats: Repeats | None, names: list[str], equal: Any, base: str, lifted: frozenset[str] = frozenset()) -> _program.Program:
    return _program.from_exported(exported, names, "model.", lifted, equal, base, None if repeats is None else functools.partial(expand, repeats))


def _program_of(model: nn.Module, form: tuple[Any, ...], names: list[str], leaves: Sequence[torch.Tensor], specs: list[Axes], equal: Any,
                base: str) -> tuple[_Call, Any, Repeats | None, _program.Program, str]:
    """The call that was exported, with blocks that repeat traced once where nothing is in doubt, its program, and words about those blocks."""
    repeats, words = Repeats(model, base), ""
    if repeats.blocks:
        try:
            call = _Call(model, form)
            with repeats:
                exported = _export(call, leaves, specs)
            if repeats.doubt:
                raise Doubt(repeats.doubt)
            return call, exported, repeats, _write(exported, repeats, names, equal, base), repeats.words()
        except Doubt as doubt:
            words = f" (every block: {doubt})"
        except Exception:       # a doubt that export has put into words of its own, or what the model raises, which says so again
            if not repeats.used and not repeats.doubt:
                raise
            words = f" (every block: {repeats.doubt or 'the export with marks failed'})"
    call = _Call(model, form)
    exported = _export(call, leaves, specs)
    return call, exported, None, _write(exported, None, names, equal, base), words


def _restore(place: Place, form: tuple[Any, ...], flat: Flat, base: str, accept: Any) -> Trace | None:
    """The trace that is kept on disk; None: there is none, or it is refused."""
    start = time.perf_counter()
    fields = place.load()
    if fields is None or fields["names"] != flat.names:
        return None
    made = Trace(form=form, base=base, is_kept=True, **fields)
    made.origin = f"from {place.path} in {time.perf_counter() - start:.2f} s; its export had taken {made.seconds:.2f} s"
    try:
        if accept is not None:
            accept(made)
    except (Unsupported, Mismatch, Limit, Corrupt):
        return None
    return made


def trace(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any = True, accept: Any = None, base: str = "", lifts: bool = False) -> Trace:
    """Captures model(*args, **kwargs), or finds the capture that is kept on disk (``cache.py``).

    dynamic: True (batch and positions where torch.export can), False, or {input: {axis: True}}. base: put before module paths. accept(trace) may refuse one with an exception,
    and the next more static one is tried; lifts: it may make buffers inputs. Raises Unsupported with torch's reason when no way of capture succeeds."""
    form, flat = flatten_call(model, args, kwargs)
    attempts = _attempts(flat.names, flat.leaves, dynamic)
    place = Place(model, form, flat.names, flat.leaves, (dynamic, base, lifts))
    found = _restore(place, form, flat, base, accept)
    if found is not None:
        return found
    failures = []
    is_refused = False
    widths = {size for parameter in model.parameters() for size in parameter.shape}
    for label, leaves, specs in attempts:
        start = time.perf_counter()
        made = None
        try:
            equal = _equal_axes(flat.names, leaves)
            call, exported, repeats, program, blocks = _program_of(model, form, flat.names, leaves, specs, equal, base)
            half = [group for group in equal if len({isinstance(program.shapes[i][axis], int) for i, axis in group}) > 1]
            if half:        # torch fixed the length of the keys alone, say
                specs = [{a: w for a, w in axes.items() if not any((i, a) in group for group in half)} for i, axes in enumerate(specs)]
                call, exported, repeats, program, blocks = _program_of(model, form, flat.names, leaves, specs, equal, base)
            seconds = time.perf_counter() - start
            made = Trace(program, form, flat.names, call.kept.result, _fixed(flat.names, leaves, specs, program, widths), seconds, exported, equal, base, repeats=repeats)
            made.flops = flops(exported.graph.nodes, exported.graph_module)
            if accept is not None:
                accept(made)
        except Exception as error:      # torch.export fails with any of a dozen types
            if isinstance(error, Error) and not isinstance(error, (Unsupported, Mismatch, Limit, Corrupt)):
                raise           # what was asked for is wrong, however the model is captured
            is_refused |= made is not None
            failures.append((label, error))
            continue
        if failures and label != failures[0][0]:
            made.fixed = [f"captured with {label} only: {_first_line(failures[0][1])}"]
        made.origin = f"exported in {seconds:.2f} s{blocks}, {_keep(place, made, is_refused)}"
        return made
    label, error = failures[-1]
    if isinstance(error, Unsupported):
        raise error
    raise Unsupported(f"torch.export cannot capture it, with {label} either: {_first_line(error)}") from error


def _keep(place: Place, made: Trace, is_refused: bool) -> str:
    """Keeps it on disk, and says where or why not. is_refused: a less static one was, for reasons that another machine or precision need not have."""
    if is_refused:
        return "not kept: a capture with more dynamic sizes could not be compiled"
    place.store(made)
    return f"kept in {place.path}" if place.path is not None else f"not kept: {place.reason}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def warn_fixed(made: Trace, what: str) -> None:
    for line in made.fixed:
        warnings.warn(f"{what}: {line}", DeepwellWarning, stacklevel=3)
