"""``torch.compile(model, backend="deepwell", options={"precision": "mxfp8"})``.

A graph of Dynamo's is brought to ATen dialect by ``make_fx`` before dispatch, which is the dialect of ``torch.export``; a graph of AOTAutograd's is there
already. What the core refuses of it is left to PyTorch, node by node with the core's reason, and the rest runs on Deepwell in as few regions as there
can be. Parameters and buffers are weights, bound once; a call with others is compiled for those besides, as a graph of a layer is called with the weights
of every layer that is like it.
"""
from __future__ import annotations

import json
import re
import warnings
import weakref
from typing import Any, Callable, Sequence

import torch
from torch import fx

from . import _core
from .engine import _options
from .errors import DeepwellWarning, Error, Invalid, Unsupported
from .flops import graph_flops
from .placement import device_of
from .program import clean_path, from_graph, ranges_of, value_of
from .region import Options, Region
from .report import Report, Row

# The core names what it refuses in one message; a part left to PyTorch may uncover more.
MAX_ROUNDS = 12
# Weights that a graph is compiled for at a time.
MOST_MADE = 256
# Nodes of autograd's state, which stay where they are in graphs that run on PyTorch.
_STATE_CALLS = {torch._C._set_grad_enabled}
_OPTION_NAMES = ("precision", "precision_policy", "kernel_registry", "threads", "kernels", "tuning", "strict")


class CompileReport(Report):
    """Of all graphs that torch.compile has handed over in this process. What it runs between graphs it does not hand over: a row says where and why a
    graph was broken off, and its FLOPs are not known."""


_REPORT = CompileReport("torch.compile")


def report() -> Report:
    """What the graphs compiled by backend="deepwell" in this process run on."""
    return _REPORT


def compile(module: fx.GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None, **_: Any) -> Callable[..., Any]:
    """The backend that torch.compile calls, once for every graph. options: precision, precision_policy, kernel_registry, threads, kernels, tuning, strict."""
    options = dict(options or {})
    unknown = set(options) - set(_OPTION_NAMES)
    if unknown:
        raise Invalid(f"backend deepwell: no option {', '.join(sorted(unknown))}; there are {', '.join(_OPTION_NAMES)}")
    if mode not in (None, "default"):
        warnings.warn(f"backend deepwell has no modes; '{mode}' changes nothing", DeepwellWarning, stacklevel=2)
    strict = bool(options.pop("strict", False))
    made = _options(options.get("precision"), options.get("precision_policy"), options.get("kernel_registry"), int(options.get("threads", 0)), {},
                    options.get("kernels"), options.get("tuning"))
    return compile_region(module, example_inputs, options=made, rows=_REPORT.rows, name="graph", strict=strict)


# ---- to ATen dialect ----

def is_aten(module: fx.GraphModule) -> bool:
    return all(n.op in ("placeholder", "output", "get_attr") or n.op == "call_function" and isinstance(
        n.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)) or n.op == "call_function" and getattr(n.target, "__module__", "") in (
        "_operator", "math") for n in module.graph.nodes)


def _fakes(module: fx.GraphModule) -> tuple[list[Any], Any]:
    """The fake inputs that Dynamo traced with, and their mode."""
    fakes = [value_of(n) for n in module.graph.nodes if n.op == "placeholder"]
    mode = next((f.fake_mode for f in fakes if hasattr(f, "fake_mode")), None)
    return fakes, mode


def _lost(module: fx.GraphModule) -> bool:
    """Are there constants without data: values whose making was not traced?"""
    from torch._subclasses.fake_tensor import FakeTensor
    return any(n.op == "get_attr" and n.users and isinstance(getattr(module, n.target, None), FakeTensor) for n in module.graph.nodes)


def to_aten(module: fx.GraphModule) -> fx.GraphModule:
    """The same in ATen dialect, placeholders in the same order, with their names."""
    from torch.fx.experimental.proxy_tensor import make_fx
    import torch.fx.traceback
    fakes, mode = _fakes(module)
    if any(f is None for f in fakes):
        raise Unsupported("an input of the graph was not traced with a value")
    autocast = any(n.op == "call_function" and "autocast" in getattr(n.target, "__name__", "") for n in module.graph.nodes)

    def run(*args: Any) -> Any:
        return fx.Interpreter(module).run(*args)

    def traced(pre_dispatch: bool) -> fx.GraphModule:
        with torch.no_grad(), torch.fx.traceback.preserve_node_meta():
            if mode is None:
                return make_fx(run, tracing_mode="fake", pre_dispatch=pre_dispatch)(*fakes)
            with mode:
                return make_fx(run, pre_dispatch=pre_dispatch)(*fakes)
    made = traced(not autocast)
    if _lost(made):                     # a higher-order operator was run rather than traced before dispatch; behind it, it is traced
        made = traced(False)
    if _lost(made):
        raise Unsupported("torch's tracing loses values of it")
    for old, new in zip((n for n in module.graph.nodes if n.op == "placeholder"), [n for n in made.graph.nodes if n.op == "placeholder"]):
        new.meta["source"] = old.meta.get("grapharg")
        new._rename(old.name)
    for node in list(made.graph.nodes):
        if node.target in _STATE_CALLS:
            made.graph.erase_node(node)
    made.graph.eliminate_dead_code()
    made.recompile()
    return made


BREAK = "torch.compile breaks the graph"


def break_reason(module: fx.GraphModule) -> str | None:
    """Why Dynamo's graph ends before the function does, and where in the user's code; None when it is the whole, or the last part."""
    why = getattr(module, "compile_subgraph_reason", None)
    if why is None or not why.graph_break:
        return None
    words = str(why.reason).strip().splitlines() or [""]
    place = f" at {why.user_stack[-1].filename}:{why.user_stack[-1].lineno}" if why.user_stack else ""
    return f"{BREAK}{place}: {words[0][:200]}"


# ---- weights ----

def _is_weight(value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter) or isinstance(value, torch.Tensor) and hasattr(value, "_dynamo_static_input_type")


def _weight_name(node: fx.Node) -> str:
    """As the state_dict has it, where Dynamo has the source."""
    source = getattr(node.meta.get("source"), "source", None)
    name = getattr(source, "name", "")
    name = name() if callable(name) else name
    parts = re.findall(r"\['([^']+)'\]|\[(\d+)\]|\.([A-Za-z]\w*)", str(name))
    words = [a or b or c for a, b, c in parts]
    return ".".join(w for w in words[1:] if w) or node.name


# ---- partition ----

def _refused(error: Error, module: fx.GraphModule) -> tuple[set[str], set[str]]:
    """Targets and node names that an error of the core speaks of."""
    text = str(error)
    names = {n.name for n in module.graph.nodes}
    targets = set(re.findall(r"([\w]+\.[\w]+\.[\w]+) \(\d+ times?", text)) | set(re.findall(r"(higher_order\.\w+) \(\d+ times?", text))
    nodes = {m for m in re.findall(r"node '([^']+)'", text) if m in names}
    nodes |= {m for m in re.findall(r"output '([^']+)'", text) if m in names}
    inputs = set(re.findall(r"input '([^']+)'", text))
    nodes |= {user.name for n in module.graph.nodes if n.name in inputs for user in n.users if user.op == "call_function"}
    return targets, nodes


def _reason(error: Exception, source: str) -> str:
    """Its text without the name of the graph, which stands before it already."""
    return re.sub(r" \(`deepwell inspect --operators` [^)]*\)[^)]*\)", "", str(error).removeprefix(f"{source}: "))


_training_told: set[str] = set()        # where


def _warn(text: str) -> None:
    """Of a model in training mode once: each of its graphs, and each size that it generates at, would warn of the same."""
    match = re.search(r"in training mode.*\bin ([\w.]+)\)", text)
    if match is not None:
        if match[1] in _training_told:
            return
        _training_told.add(match[1])
        text = f"{match[1]} is in training mode, which PyTorch has to run, in parts or whole: call .eval() on the model; torch.compile's graphs that follow do not warn of it again"
    warnings.warn(text, DeepwellWarning, stacklevel=4)


def _target_name(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return str(target)


class _Left:
    """Nodes that stay with PyTorch, each with its reason."""

    def __init__(self) -> None:
        self.targets: dict[str, str] = {}
        self.nodes: dict[str, str] = {}

    def reason(self, node: fx.Node) -> str | None:
        return self.targets.get(_target_name(node)) or self.nodes.get(node.name)

    def add(self, targets: set[str], nodes: set[str], reason: str) -> bool:
        new = [t for t in targets if t not in self.targets] + [n for n in nodes if n not in self.nodes]
        self.targets.update({t: reason for t in targets if t not in self.targets})
        self.nodes.update({n: reason for n in nodes if n not in self.nodes})
        return bool(new)


def _makes_tensors(node: fx.Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) or isinstance(value, (tuple, list)) and all(isinstance(v, torch.Tensor) for v in value)


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


class _Support:
    """What the partitioner asks: may this node be in a region of ours?"""

    def __init__(self, left: _Left) -> None:
        self.left = left

    def is_node_supported(self, _: Any, node: fx.Node) -> bool:
        if node.op != "call_function" or self.left.reason(node) is not None:
            return False
        if isinstance(node.target, torch._ops.OpOverload):
            return (_makes_tensors(node) or value_of(node) is None) and not _writes(node) or str(node.target).startswith("aten.sym_")
        return getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[1], int)


def _split(module: fx.GraphModule, left: _Left) -> fx.GraphModule:
    """Regions of what is supported as submodules, the rest in between."""
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    partitioner = CapabilityBasedPartitioner(module, _Support(left), allows_single_node_partition=True)
    partitions = partitioner.propose_partitions()
    partitions = [p for p in partitions if graph_flops(p.nodes) > 0 or len(p.nodes) > 8]
    return partitioner.fuse_partitions(partitions)


# ---- regions ----

class _Compiled:
    """A region with its weights bound: called with the placeholders' values."""

    def __init__(self, module: fx.GraphModule, values: Sequence[Any], options: Options, name: str) -> None:
        """values: of the placeholders, as far as they are known (weights); None otherwise."""
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        weights = {n.name: (_weight_name(n), v) for n, v in zip(placeholders, values) if isinstance(v, torch.Tensor) and v.device.type in ("cpu", "cuda")}
        self._bind(module, placeholders, values, weights, options, name)
        if self.region.states:          # buffers that the graph writes are inputs that it writes
            weights = {k: v for k, v in weights.items() if v[0] not in self.region.states}
            self._bind(module, placeholders, values, weights, options, name)
        self.region.session
        self.flops = graph_flops(module.graph.nodes, module)
        self.row: Row | None = None

    def _bind(self, module: fx.GraphModule, placeholders: list[fx.Node], values: Sequence[Any], weights: dict[str, tuple[str, torch.Tensor]],
              options: Options, name: str) -> None:
        fakes = [value_of(n) for n in placeholders]
        mode = next((f.fake_mode for f in fakes if hasattr(f, "fake_mode")), None)
        shape_env = getattr(mode, "shape_env", None)
        self.program = from_graph(module, ranges_of(shape_env.var_to_range) if shape_env is not None else None, weights)
        self.weights = {i: v._version if not v.is_inference() else 0 for i, (n, v) in enumerate(zip(placeholders, values)) if n.name in weights}
        self.names = {i: weights[placeholders[i].name][0] for i in self.weights}
        self.inputs = [i for i, n in enumerate(placeholders) if n.name not in weights]
        example = [_example(value_of(placeholders[i])) for i in self.inputs]
        self.region = Region(name, self.program, options, example, device=device_of((n.name, value_of(n)) for n in placeholders))

    def _update(self, args: Sequence[Any]) -> None:
        """Weights that were written since, as all are by a step of an optimizer, are taken in by one update of the model."""
        now = {index: args[index]._version if not args[index].is_inference() else 0 for index in self.weights}
        self.region.update([self.names[index] for index, version in now.items() if version != self.weights[index]])
        self.weights = now

    def __call__(self, *args: Any) -> list[Any]:
        self._update(args)
        self.row.calls += 1
        return list(self.region.run([args[i] for i in self.inputs]))


def _example(fake: Any) -> Any:
    """A tensor of the traced sizes that takes no memory, for typical sizes."""
    if not isinstance(fake, torch.Tensor):
        return fake
    shape = [int(s) if isinstance(s, int) else int(getattr(s.node, "hint", None) or 1) for s in fake.shape]
    return torch.empty((1,) * len(shape), dtype=fake.dtype).expand(shape)


def _constants(module: fx.GraphModule, values: Sequence[Any]) -> dict[int, float]:
    """Floats that Dynamo passes as tensors of one element: numbers that an operator reads on the host. The graph is specialised to their value."""
    found = {}
    for index, (node, value) in enumerate(zip((n for n in module.graph.nodes if n.op == "placeholder"), values)):
        if isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype == torch.float64 and value.device.type == "cpu" and any(
                getattr(u.target, "__name__", u.target) == "item" for u in node.users):
            found[index] = float(value)
    return found


def _specialise(module: fx.GraphModule, constants: dict[int, float]) -> fx.GraphModule:
    """The graph with ``item`` of these inputs replaced by their values."""
    graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(module.graph, mapping)
    graph.output(result)
    for old, new in mapping.items():
        new.meta = dict(old.meta)
    for index, node in enumerate([n for n in graph.nodes if n.op == "placeholder"]):
        if index in constants:
            for user in list(node.users):
                if getattr(user.target, "__name__", user.target) == "item":
                    user.replace_all_uses_with(constants[index])
                    graph.erase_node(user)
    return fx.GraphModule(module, graph)


class _Weight:
    """The tensor that an argument of a graph was, which is not kept alive by this: its memory is, by what was compiled for it."""

    def __init__(self, index: int, tensor: torch.Tensor) -> None:
        self.index, self.tensor = index, weakref.ref(tensor)
        self.memory = (tensor.data_ptr(), tensor.shape, tensor.dtype)

    def is_of(self, args: Sequence[Any]) -> bool:
        given = args[self.index]
        return given is self.tensor() or (given.data_ptr(), given.shape, given.dtype) == self.memory


class _Made:
    """What a graph was compiled to, for the weights and host numbers of a call."""

    def __init__(self, run: Callable[..., Any], weights: Sequence[_Weight], constants: dict[int, float]) -> None:
        self.run, self.weights, self.constants = run, weights, constants
        self.called = 0                 # the graph's last call that was this one's

    def has_weights(self, args: Sequence[Any]) -> bool:
        return all(weight.is_of(args) for weight in self.weights)

    def takes(self, args: Sequence[Any]) -> bool:
        return all(args[i].item() == v for i, v in self.constants.items()) and self.has_weights(args)

    def is_dead(self) -> bool:
        return any(weight.tensor() is None for weight in self.weights)


class _Graph:
    """One graph of torch.compile's: compiled for the weights and host numbers that it is called with."""

    def __init__(self, module: fx.GraphModule, options: Options, rows: list[Row], name: str, strict: bool) -> None:
        self.module, self.options, self.rows, self.name, self.strict = module, options, rows, name, strict
        self.made: list[_Made] = []
        self.calls = 0
        self.rest: Row | None = None        # what follows a graph that was broken off
        result = next(n for n in module.graph.nodes if n.op == "output").args[0]
        self.differentiable = [getattr(value_of(r), "requires_grad", False) if isinstance(r, fx.Node) else False for r in result]

    def compile(self, values: Sequence[Any]) -> _Made:
        """For these values, beside what there is already."""
        constants = _constants(self.module, values)
        run, weights = self._compile(values, _specialise(self.module, constants) if constants else self.module)
        made = _Made(run, weights, constants)
        # Gone are those of weights that were replaced, and of other host numbers: those change from call to call. Layers that are alike are called in their turn.
        kept = [m for m in self.made if not m.is_dead() and not m.has_weights(values) and self.calls - m.called <= 2 * len(self.made)]
        self.made = sorted(kept, key=lambda m: m.called)[-MOST_MADE + 1:] + [made]
        return made

    def _compile(self, values: Sequence[Any], module: fx.GraphModule) -> tuple[Callable[..., Any], Sequence[_Weight]]:
        """What runs the graph, and the weights that it was made for."""
        try:
            module = module if is_aten(module) else to_aten(module)
        except Exception as error:      # tracing runs the operators' own Python
            return self._all_on_pytorch(f"it cannot be brought to ATen: {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}")
        known = [v if _is_weight(v) else None for v in values]
        try:
            whole = _Compiled(module, known, self.options, self.name)
        except (Error, ValueError) as error:
            if self.strict:
                raise
            if any(_writes(n) for n in module.graph.nodes):
                return self._all_on_pytorch(f"it writes in place, so it cannot be taken in parts; and whole: {error}")
            return self._in_parts(module, known, error)
        self._add(whole, module)
        return whole, [_Weight(index, values[index]) for index in whole.weights]

    def _add(self, part: _Compiled, module: fx.GraphModule) -> None:
        inputs = ", ".join(str([str(s) for s in value_of(n).shape]) for n in module.graph.nodes if n.op == "placeholder" and n.name in part.program.inputs)
        part.row = Row(f"{self.name}({inputs[:160]})", "deepwell", part.flops)
        self.rows.append(part.row)

    def _all_on_pytorch(self, reason: str) -> tuple[Callable[..., Any], Sequence[_Weight]]:
        if self.strict:
            raise Unsupported(f"{self.name}: {reason}")
        row = Row(self.name, "pytorch", graph_flops(self.module.graph.nodes), reason)
        self.rows.append(row)
        _warn(f"{self.name} runs on PyTorch: {reason}")

        def run(*args: Any) -> Any:
            row.calls += 1
            return self.module(*args)
        return run, ()

    def _in_parts(self, module: fx.GraphModule, known: list[Any], error: Exception) -> tuple[Callable[..., Any], Sequence[_Weight]]:
        left = _Left()
        left.add(*_refused(error, module), _reason(error, self.name))
        by_name = {n.name: v for n, v in zip((n for n in module.graph.nodes if n.op == "placeholder"), known)}
        sources = {n.name: n.meta.get("source") for n in module.graph.nodes if n.op == "placeholder"}
        for _ in range(MAX_ROUNDS):
            import copy
            split = _split(copy.deepcopy(module), left)
            parts: list[tuple[str, fx.GraphModule, _Compiled]] = []
            again = False
            for node in split.graph.nodes:
                if node.op != "call_module":
                    continue
                inner = getattr(split, node.target)
                for placeholder, arg in zip((n for n in inner.graph.nodes if n.op == "placeholder"), node.args):
                    placeholder.meta["source"] = sources.get(getattr(arg, "name", ""))
                    placeholder.meta.setdefault("val", value_of(arg))
                values = [by_name.get(a.name) if isinstance(a, fx.Node) and a.op == "placeholder" else None for a in node.args]
                try:
                    parts.append((node.target, inner, _Compiled(inner, values, self.options, f"{self.name} {node.target}")))
                except (Error, ValueError) as refused:
                    found = _refused(refused, inner) if isinstance(refused, Error) else (set(), set())
                    why = _reason(refused, f"{self.name} {node.target}")
                    if not left.add(*found, why):
                        left.add(set(), {n.name for n in inner.graph.nodes if n.op == "call_function"}, why)
                    again = True
            if not again:
                break
        else:
            return self._all_on_pytorch(f"after {MAX_ROUNDS} rounds the core still refuses parts of it: {error}")
        if not parts:
            return self._all_on_pytorch(_reason(error, self.name))
        reasons: dict[str, float] = {}
        for node in module.graph.nodes:
            reason = left.reason(node) if node.op == "call_function" else None
            if reason is not None:
                reasons[reason] = reasons.get(reason, 0.0) + graph_flops([node])
        rows = [Row(self.name, "pytorch", flops, reason) for reason, flops in reasons.items()]
        taken = sum(graph_flops(inner.graph.nodes) for _, inner, _ in parts)
        rest = graph_flops(module.graph.nodes) - taken - sum(reasons.values())
        if rest > 0:
            rows.append(Row(self.name, "pytorch", rest, "between regions"))
        self.rows += rows
        for target, inner, part in parts:
            self._add(part, inner)
            setattr(split, target, _Call(part, _single(inner)))
        split.recompile()
        _warn(f"{self.name} is left to PyTorch in part: {_reason(error, self.name)}")

        def run(*args: Any) -> Any:
            for row in rows:
                row.calls += 1
            return split(*args)
        return run, [_Weight(i, v) for i, v in enumerate(known) if v is not None]

    def break_off(self, reason: str) -> None:
        if self.strict:
            raise Unsupported(f"{self.name}: {reason}")
        self.rest = next((r for r in self.rows if r.where == "pytorch" and r.reason == reason), None)
        if self.rest is None:
            self.rest = Row(f"{self.name}: between graphs", "pytorch", 0.0, reason)
            self.rows.append(self.rest)

    def __call__(self, *args: Any) -> Any:
        if self.rest is not None:
            self.rest.calls += 1
        self.calls += 1
        made = next((m for m in reversed(self.made) if m.takes(args)), None) or self.compile(args)
        made.called = self.calls
        if torch.is_grad_enabled() and any(self.differentiable) and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            return _Recompute.apply(self, made.run, *args)
        return made.run(*args)


def _single(module: fx.GraphModule) -> bool:
    result = next(n for n in module.graph.nodes if n.op == "output").args[0]
    return not isinstance(result, (tuple, list))


class _Call(torch.nn.Module):
    """A region as a submodule of the graph that holds it."""

    def __init__(self, part: _Compiled, single: bool) -> None:
        super().__init__()
        self.part, self.single = part, single

    def forward(self, *args: Any) -> Any:
        made = self.part(*args)
        return made[0] if self.single else tuple(made)


class _Recompute(torch.autograd.Function):
    """Forward on Deepwell; backward through PyTorch's forward of the same inputs, which is run for it. So gradients are those of the graph as PyTorch
    computes it, also where the forward was quantised."""

    @staticmethod
    def forward(ctx: Any, graph: _Graph, run: Callable[..., Any], *args: Any) -> Any:
        ctx.graph = graph
        ctx.args = args
        result = run(*args)
        ctx.mark_non_differentiable(*[r for r, wanted in zip(result, graph.differentiable) if isinstance(r, torch.Tensor) and not wanted])
        return tuple(result)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        args = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in ctx.args]
        with torch.enable_grad():
            result = ctx.graph.module(*args)
        pairs = [(r, g) for r, g in zip(result, gradients) if isinstance(r, torch.Tensor) and r.requires_grad and g is not None]
        wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
        found = iter(torch.autograd.grad([r for r, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True) if pairs else [None] * len(wanted))
        return (None, None, *[next(found) if isinstance(a, torch.Tensor) and a.requires_grad else None for a in args])


def compile_region(module: fx.GraphModule, example_inputs: Sequence[Any], *, options: Options, rows: list[Row], name: str, strict: bool = False) -> Callable[..., Any]:
    """As ``compile``, with rows of a report to add to."""
    if not any(n.op == "call_function" or n.op == "call_method" for n in module.graph.nodes):
        return module.forward           # Dynamo hands over empty graphs too
    graph = _Graph(module, options, rows, name, strict)
    broken = break_reason(module)
    if broken is not None:
        graph.break_off(broken)
    real = [v for v in example_inputs]
    if all(not isinstance(v, torch.Tensor) or type(v).__name__ != "FakeTensor" for v in real):
        graph.compile(real)
    return graph
