"""``optimize``: a copy of a module whose ``forward`` runs on Deepwell.

A call is captured for the form of its arguments (``structure.py``); calls of that form and of sizes that the capture allows run on it from then on. What
cannot be captured whole goes to the torch.compile backend, which captures what it can, and what that cannot do is taken module by module.
"""
from __future__ import annotations

import copy
import functools
import inspect
import os
import threading
import warnings
from typing import Any, Callable, TypeVar, cast

import torch
from torch import nn

from . import _core
from .engine import _options, comm_of, warn_cutlass
from .errors import DeepwellWarning, Error, Invalid, Limit, Mismatch, Unsupported
from .flops import can_count_compiled, counted
from .kernels import KernelRegistry
from .parallel import whole
from .precision import PrecisionPolicy
from .placement import device_of
from .region import Options, Region, check_options, check_tensor
from .report import Report, Row
from .structure import TENSOR, rebuild_call
from .trace import Trace, flatten_call, trace
from .weights import Watch

# Captures that one model may have: forms of arguments times what torch.export had to fix. Calls beyond run on PyTorch, and that is said.
MAX_SPECIALISATIONS = 16
# Exact shapes whose capture is looked up at once.
MAX_SHAPES = 256


def _cannot_be_copied() -> tuple[type, ...]:
    """What modules that are parallel already hold: groups of processes, and meshes of them."""
    if not torch.distributed.is_available():
        return ()
    from torch.distributed.device_mesh import DeviceMesh
    return (torch.distributed.ProcessGroup, DeviceMesh)


def in_eval_mode(model: nn.Module) -> nn.Module:
    """The same modules anew, in eval mode, on the same parameters and buffers."""
    shared: dict[int, Any] = {}
    kept = (torch.Tensor, *_cannot_be_copied())
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values(), *module.__dict__.values()):
            if isinstance(tensor, kept):
                shared[id(tensor)] = tensor
    try:
        made = copy.deepcopy(model, shared)
    except Exception as error:      # whatever an attribute of somebody's module raises when it is copied
        raise Unsupported(f"{type(model).__name__} cannot be copied, as its parts must be to be put in eval mode: {error}; call .eval() on it") from error
    return made.eval()


class Capture:
    """One capture of a model."""

    def __init__(self, owner: "Optimized", made: Trace, region: Region, row: Row) -> None:
        self.owner, self.trace, self.region, self.row = owner, made, region, row
        self.single = made.result[0] is TENSOR and not made.result[1]

    def run(self, leaves: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.trace.lifted:
            leaves = [*leaves, *map(self.owner.tensor, self.trace.lifted)]
        made = self.region.run(leaves)
        self.row.calls += 1
        return made[0] if self.single else rebuild_call(self.trace.result, made, args, kwargs)


class Optimized:
    """``model.deepwell``: what became of a model. ``report()`` prints it."""

    def __init__(self, eager: nn.Module, outer: nn.Module, options: Options, strict: bool, dynamic: Any, fallback: bool = True, base: str = "") -> None:
        """eager: what is captured and what PyTorch runs. outer: what the user calls. base: the path of a part within its model."""
        self.eager, self.outer, self.options, self.strict, self.dynamic, self.fallback = eager, outer, options, strict, dynamic, fallback
        self.base = base
        self.name = f"{type(eager).__name__} {base}".strip()
        self.captures: dict[Any, list[Capture]] = {}
        self.rest: dict[Any, Callable[..., Any]] = {}       # forms that cannot be captured whole -> what runs them
        self.shapes: dict[Any, Capture] = {}
        self.rows: list[Row] = []
        self.parts: list[Optimized] = []                    # called by themselves, or of a model taken module by module
        self.notes: list[str] = []
        self.watch = Watch(eager, outer)
        self.count = 0
        self._placed: tuple[Any, Any] = (None, None)        # what the watch saw, and where it was
        self._said: set[str] = set()
        self._lock = threading.RLock()

    # -- what users ask --

    def report(self) -> Report:
        """What has run so far, on Deepwell and on PyTorch."""
        return Report(self.name, self.rows + [r for p in self.parts for r in p.report().rows], list(self.notes))

    def explain(self, which: int = 0) -> str:
        """Every choice in a capture with its reason."""
        regions = self.regions
        if not regions:
            return f"{self.name}: nothing is captured yet: call the model once"
        origin = next((f"captured: {c.trace.origin}\n" for captures in self.captures.values() for c in captures if c.region is regions[which]), "")
        return origin + regions[which].model.print("explain")

    @property
    def regions(self) -> list[Region]:
        """All captures, in the order in which they were made."""
        own = [c.region for captures in self.captures.values() for c in captures]
        return own + [r for p in self.parts for r in p.regions]

    def update(self) -> None:
        """All weights may have changed, in ways that leave no trace: what was computed from them is made again."""
        with self._lock:
            self._refresh([name for *_, name in self.watch._rows], [])
            self.watch.look()

    def __repr__(self) -> str:
        return f"<deepwell.Optimized {self.name}: {self.count} captures, {len(self.rest)} forms of call left to PyTorch in part>"

    @property
    def device(self) -> torch.device | None:
        """Where the weights are; None: there are none."""
        if self._placed[0] is not self.watch._rows:
            self._placed = (self.watch._rows, device_of((name, tensor) for _, _, tensor, _, name in self.watch._rows))
        return self._placed[1]

    # -- calls --

    def tensor(self, name: str) -> torch.Tensor:
        path, _, key = name.rpartition(".")
        return getattr(self.eager.get_submodule(path), key)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Any call; the common one is answered by ``make_forward``."""
        reason = self._refusal()
        if reason is not None:
            return self._on_pytorch(reason, args, kwargs)
        self.watch.check_modules()
        try:
            form, flat = flatten_call(self.eager, args, kwargs)
            for name, leaf in zip(flat.names, flat.leaves):
                check_tensor(leaf, name)
        except Unsupported as error:
            return self._on_pytorch(str(error), args, kwargs)
        if torch.is_grad_enabled() and any(t.requires_grad for t in flat.leaves):
            return self._on_pytorch("an input requires a gradient; Deepwell's results carry none", args, kwargs)
        with self._lock:
            if not self.watch.is_same():
                self._look()
            device = device_of(zip(flat.names, flat.leaves), self.device, "the model's weights are")
            form = (form, device)
            rest = self.rest.get(form)
            found = None if rest is not None else self._find(form, flat.leaves) or self._capture(form, flat, args, kwargs)
        if found is None:
            return (rest or self.rest[form])(*args, **kwargs)
        try:
            value = found.run(flat.leaves, args, kwargs)
        except (Mismatch, Limit) as error:      # sizes that the capture's symbols did not show
            with self._lock:
                found = self._capture(form, flat, args, kwargs, str(error))
            if found is None:
                return self.rest[form](*args, **kwargs)
            value = found.run(flat.leaves, args, kwargs)
        if len(flat.leaves) == 1 and not kwargs and len(args) == 1 and args[0] is flat.leaves[0]:
            if len(self.shapes) >= MAX_SHAPES:
                self.shapes.clear()
            self.shapes[args[0].shape, args[0].dtype, args[0].device] = found
        return value

    def _refusal(self) -> str | None:
        """Why no call can be taken now; None when it can."""
        if self.outer.training:
            return "the model is in training mode; call .eval() on it"
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return "torch.autocast is on; choose a precision in optimize() instead"
        if torch.jit.is_tracing() or torch.compiler.is_compiling():
            return "PyTorch is tracing the model"
        return None

    def _on_pytorch(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.strict:
            raise Unsupported(f"{self.name}: {reason}")
        for module, of_user in self.watch.pairs:
            module.training = of_user.training
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return self.eager(*args, **kwargs)
        self._say(f"runs on PyTorch: {reason}")
        row = next((r for r in self.rows if r.reason == reason), None)
        if row is None:
            row = Row(self.name, "pytorch", 0.0, reason)
            self.rows.append(row)
        return self._count(row, args, kwargs)

    def _count(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call on PyTorch; the first one, or the second one where the first ran otherwise, counts the row's FLOPs."""
        row.calls += 1
        if row.flops or row.calls > 2:
            return self.eager(*args, **kwargs)
        value, row.flops = counted(lambda: self.eager(*args, **kwargs))
        return value

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warnings.warn(f"{self.name}: {text}", DeepwellWarning, stacklevel=5)

    def _find(self, form: Any, leaves: list[Any]) -> Capture | None:
        for capture in self.captures.get(form, ()):
            if capture.region.bind([*leaves, *map(self.tensor, capture.trace.lifted)]) is not None:
                return capture
        return None

    # -- captures --

    def _capture(self, form: Any, flat: Any, args: tuple[Any, ...], kwargs: dict[str, Any], again: str = "") -> Capture | None:
        """None: the form is left to PyTorch, and self.rest has what runs it."""
        if self.count >= MAX_SPECIALISATIONS:
            reason = f"{MAX_SPECIALISATIONS} captures are made already, for other arguments or sizes"
            self._leave(form, self._plain_pytorch(reason), reason)
            return None
        regions: list[Region] = []

        def accept(made: Trace) -> None:
            region = Region(self.name, made.program, self.options, [*flat.leaves, *map(self.tensor, made.lifted)], device=form[1])
            if region.states:
                made.relower(region.states)
                region = Region(self.name, made.program, self.options, [*flat.leaves, *map(self.tensor, made.lifted)], device=form[1])
            if region.bind([*flat.leaves, *map(self.tensor, made.lifted)]) is None:
                raise Unsupported("the captured sizes do not fit the call that was captured")
            region.session          # what cannot be planned or loaded is known now
            regions.append(region)
        try:
            made = trace(self.eager, args, kwargs, self.dynamic if not again else False, accept, self.base, lifts=True)
        except Unsupported as error:
            self._leave(form, self._partial(str(error)), str(error))
            return None
        if made.lifted:
            self.watch.ignored |= set(made.lifted)
            self.watch.look()
        row = Row(f"{self.name}({', '.join(f'{n} {list(t.shape)}' for n, t in zip(flat.names, flat.leaves) if 'past' not in n)[:200]})", "deepwell",
                  made.flops, "; ".join(made.fixed))
        self.rows.append(row)
        if made.is_kept:
            self.notes.append(f"captured {made.origin}")
        for line in made.fixed:
            self._say(line)
        capture = Capture(self, made, regions[-1], row)
        self.captures.setdefault(form, []).append(capture)
        self.count += 1
        return capture

    def _leave(self, form: Any, run: Callable[..., Any], reason: str) -> None:
        if self.strict:
            raise Unsupported(f"{self.name}: {reason}")
        self._say(f"is not captured whole: {reason}")
        if f"not captured whole: {reason}" not in self.notes:
            self.notes.append(f"not captured whole: {reason}")
        self.rest[form] = run

    def _plain_pytorch(self, reason: str, calls: int = 0) -> Callable[..., Any]:
        """calls: how many there were already, on PyTorch too."""
        row = Row(self.name, "pytorch", 0.0, reason, calls)
        self.rows.append(row)

        def run(*args: Any, **kwargs: Any) -> Any:
            return self._count(row, args, kwargs)
        return run

    def _partial(self, reason: str) -> Callable[..., Any]:
        """What runs a call that cannot be captured whole: torch.compile with our backend, and where that fails, module by module."""
        if not self.fallback:
            return self._plain_pytorch(reason)
        from torch._dynamo.utils import counters
        from . import backend, modules
        chosen: list[Callable[..., Any]] = []

        def run(*args: Any, **kwargs: Any) -> Any:
            if chosen:
                return chosen[0](*args, **kwargs)
            taken, breaks, has_run, value = len(self.rows), sum(counters["graph_break"].values()), False, None
            compiled = torch.compile(self.eager, backend=functools.partial(backend.compile_region, options=self.options, rows=self.rows, name=self.name))
            try:
                value = compiled(*args, **kwargs)
                has_run = True
                rows = self.rows[taken:]
                if any(r.where == "deepwell" for r in rows):
                    between = next((r for r in rows if r.reason.startswith(backend.BREAK)), None)
                    if between is None and sum(counters["graph_break"].values()) > breaks:
                        between = Row(f"{self.name}: between graphs", "pytorch", 0.0, f"{backend.BREAK}, before anything of it was taken", 1)
                        self.rows.append(between)
                    chosen.append(compiled if between is None else self._counting(compiled, between))
                    return value
                why = "torch.compile captured nothing of it"
            except Exception as error:      # Dynamo fails with any of a dozen types
                why = f"torch.compile: {type(error).__name__}: {str(error).strip().splitlines()[0][:300] if str(error).strip() else ''}"
            del self.rows[taken:]
            self.notes.append(f"module by module: {why}")
            self.parts = modules.replace(self.eager, self.options, self.dynamic)
            chosen.append(self._plain_pytorch(f"what is around the captured modules: {reason}", int(has_run)))
            return value if has_run else chosen[0](*args, **kwargs)     # what has run may have written buffers, and does not run again
        return run

    def _counting(self, compiled: Callable[..., Any], between: Row) -> Callable[..., Any]:
        """The same; a call that compiles nothing counts the FLOPs of what runs between the graphs, where torch can be asked."""
        run: list[Callable[..., Any]] = []
        if not can_count_compiled():
            return compiled

        def count(*args: Any, **kwargs: Any) -> Any:
            rows, calls = list(self.rows), [r.calls for r in self.rows]
            value, flops = counted(lambda: compiled(*args, **kwargs))
            ran = [r for r, before in zip(rows, calls) if r.calls > before]
            if len(self.rows) == len(rows) and any(r.where == "deepwell" for r in ran):
                between.flops = max(0.0, flops - sum(r.flops for r in ran if r.where == "pytorch"))
                run[0] = compiled
            return value
        run.append(count)
        return lambda *args, **kwargs: run[0](*args, **kwargs)

    # -- weights --

    def _look(self) -> None:
        written, moved = self.watch.changes()
        self._refresh(written, moved)
        self.watch.look()

    def _refresh(self, written: list[str], moved: list[str]) -> None:
        now = self.watch.tensors() if moved else {}
        for form, captures in list(self.captures.items()):
            kept = [c for c in captures if c.region.renew(written, {n: now[n] for n in moved if n in now}, len(moved))]
            self.count -= len(captures) - len(kept)
            self.captures[form] = kept
        self.shapes.clear()


def make_forward(handle: Optimized, original: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of an optimised module. A call with one tensor of a shape seen before takes the short way."""
    shapes, outer, watch = handle.shapes, handle.outer, handle.watch
    is_autocast, is_grad, tensor = torch.is_autocast_enabled, torch.is_grad_enabled, torch.Tensor

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and len(args) == 1:
            x = args[0]
            if type(x) is tensor and not outer.training:
                found = shapes.get((x.shape, x.dtype, x.device))
                if found is not None and not (x.requires_grad and is_grad()) and watch.is_same() and not is_autocast("cpu") and not is_autocast("cuda"):
                    return found.run(args, args, kwargs)
        return handle.call(args, kwargs)
    return forward


M = TypeVar("M", bound=nn.Module)


def _splits(shard: str | None, comm: Any, strict: bool) -> str | None:
    """What strict says of ranks is a line of the policy; where nothing is cut there is none."""
    is_cut = comm is not None and any(axis.startswith("tp=") and axis != "tp=1" for axis in comm.mesh.split(","))
    return f"{shard or ''}\nstrict" if strict and is_cut else shard


def optimize(model: M, *, precision: str | None = None, precision_policy: PrecisionPolicy | str | None = None,
             kernel_registry: KernelRegistry | None = None, use_cutlass: bool = False, batch_size: int | None = None, seq_len: int | None = None,
             example_inputs: Any = None, dynamic: Any = True, strict: bool = False, threads: int = 0, kernels: str | None = None,
             tuning: str | os.PathLike[str] | None = None, mesh: Any = None, shard: str | None = None) -> M:
    """A module that computes what model computes, in eval mode, on Deepwell where it can.

    It is of model's class, on the same parameters and buffers (not copies), with the same state_dict keys; arguments and results are those of model.
    It is captured at its first call, and again for calls of another form, at most MAX_SPECIALISATIONS times; batch and positions may change freely.
    What cannot be captured runs on PyTorch: ``model.deepwell.report()`` says what, with its share of FLOPs and the reason, and so does a warning;
    strict makes it an error. Weights written in place or replaced are noticed before the next call. Results carry no gradients: in training mode, or
    with an input that requires a gradient, PyTorch runs. A submodule that is called by itself is optimised in the same way. Hooks of submodules run when
    a capture is made, not in each call.

    precision: fp32, bf16, fp8, mxfp8, mxfp4, nvfp4, .. (docs/precision.md); None: as the module has it. precision_policy: by layer.
    It runs where its weights are: a model on a GPU takes and gives tensors of that GPU, in PyTorch's current stream, inside torch.cuda.graph too.
    tuning: a file that ``deepwell tune`` wrote; None: kernels are chosen by estimates.
    batch_size, seq_len: typical sizes, for the choice of kernels and the first reservation. example_inputs: captured at once, as in ``capture``.
    mesh: a DeviceMesh over all ranks of the default process group, each of which calls this with the same module, and the result with the same arguments: each computes its part, and has all of the outputs
    (docs/ranks.md), also where its parameters are DTensors; a Comm that ``deepwell.ranks.communicator`` gave serves several models. shard: the text of a policy of splits.
    """
    if not isinstance(model, nn.Module):
        raise Invalid(f"optimize: an nn.Module is wanted, not a {type(model).__name__}")
    if isinstance(getattr(model, "deepwell", None), Optimized):
        raise Invalid(f"optimize: this {type(model).__name__} is optimised already; give the module it was made of")
    warn_cutlass(use_cutlass)
    model = cast(M, whole(model))
    comm = comm_of(mesh)
    options = _options(precision, precision_policy, kernel_registry, threads, {"b": batch_size, "s": seq_len}, kernels, tuning, comm=comm, shard=_splits(shard, comm, strict))
    check_options(options, device_of([*model.named_parameters(), *model.named_buffers()]))
    if model.training:
        warnings.warn(f"{type(model).__name__} is in training mode; the optimised copy is in eval mode", DeepwellWarning, stacklevel=2)
    return cast(M, _wrap(in_eval_mode(model), options, strict, dynamic, example_inputs))


def handle(model: nn.Module) -> Optimized:
    """What became of an optimised model: its attribute ``deepwell``, which type checkers cannot see on a class of the user's."""
    found = getattr(model, "deepwell", None)
    if not isinstance(found, Optimized):
        raise Invalid(f"handle: this {type(model).__name__} is no result of optimize()")
    return found


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")


def _without_hooks(module: nn.Module) -> None:
    for hooks in _HOOKS:
        if hasattr(module, hooks):
            setattr(module, hooks, type(getattr(module, hooks))())


def _shell(module: nn.Module) -> nn.Module:
    """Another module of the same class on the same parameters, buffers and parts. copy.copy refuses modules with parametrizations."""
    shell = type(module).__new__(type(module))
    shell.__dict__.update(module.__dict__)
    return shell


def _part(eager: nn.Module, root: Optimized, base: str, made: dict[int, nn.Module]) -> nn.Module:
    """A submodule of an optimised model as its user sees it: called by itself, as generate calls an encoder, it runs on Deepwell too."""
    if id(eager) in made:
        return made[id(eager)]
    if isinstance(eager, nn.utils.parametrize.ParametrizationList):     # it makes a weight whenever that is read
        return eager
    part = made[id(eager)] = _shell(eager)
    part._modules = type(eager._modules)((n, None if c is None else _part(c, root, f"{base}.{n}".strip("."), made)) for n, c in eager._modules.items())
    if isinstance(eager, (nn.ModuleList, nn.ModuleDict)) or "forward" in eager.__dict__ or type(eager).forward is nn.Module.forward:
        return part
    _without_hooks(part)        # those of the module itself run, as part of it
    handles: list[Optimized] = []

    @functools.wraps(eager.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not handles:
            handles.append(Optimized(eager, part, root.options, root.strict, root.dynamic, root.fallback, base))
            root.parts.append(handles[0])
        return handles[0].call(args, kwargs)
    object.__setattr__(part, "forward", forward)
    object.__setattr__(part, "__deepcopy__", lambda memo: copy.deepcopy(eager, memo))
    return part


def _wrap(eager: nn.Module, options: Options, strict: bool, dynamic: Any, example_inputs: Any = None, fallback: bool = True) -> nn.Module:
    outer = _shell(eager)
    _without_hooks(eager)       # the outer module calls them
    original = eager.forward
    handle = Optimized(eager, outer, options, strict, dynamic, fallback)
    made = {id(eager): outer}
    outer._modules = type(eager._modules)((n, None if c is None else _part(c, handle, n, made)) for n, c in eager._modules.items())
    handle.watch.look()
    object.__setattr__(outer, "deepwell", handle)
    object.__setattr__(outer, "forward", make_forward(handle, original))
    # A copy has weights of its own, so captures of its own.
    object.__setattr__(outer, "__deepcopy__", lambda memo: _wrap(copy.deepcopy(eager, memo), options, strict, dynamic, fallback=fallback))
    if example_inputs is not None:
        from .capture import _as_call
        args, kwargs = _as_call(example_inputs)
        with torch.no_grad():
            outer(*args, **kwargs)
    return outer


optimize_for_blackwell = optimize
