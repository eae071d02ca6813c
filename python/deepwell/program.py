"""An fx graph in ATen dialect -> the exported-program JSON that the core reads (``src/capture/program.c``), and the tensors it names.

The same text that ``torch.export.save`` puts into an archive, written from what fx and the operators' schemas say publicly, so that one form
serves archives, ``torch.export`` and the regions of ``torch.compile`` alike. Does not trace: ``capture.py`` and ``backend.py`` do.
"""
from __future__ import annotations

import json
import math
import operator
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Sequence

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

# Of targets that name process groups.
COLLECTIVES = b"torch.ops._c10d_functional."

SCHEMA_VERSION = {"major": 8, "minor": 17}

# torch._export.serde numbers these; the numbers are part of the file format.
_DTYPES = {name: number for number, name in enumerate(
    ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128", "bool", "bfloat16"], 1)}
_DTYPES |= {"uint16": 28, "float8_e4m3fn": 29, "float8_e5m2": 30, "float8_e4m3fnuz": 31, "float8_e5m2fnuz": 32, "float8_e8m0fnu": 33}
_MEMORY_FORMATS = {torch.contiguous_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3, torch.preserve_format: 4}
_STRIDED = 7
_POSITIONAL, _KEYWORD = 1, 2

# Side effects on autograd's state: nothing that a run without gradients computes depends on them.
_DROPPED = {torch._C._set_grad_enabled}


@dataclass(frozen=True)
class Output:
    """One leaf of a program's result: the tensor called ``name``, or the input of that index as it came, or a number computed from sizes (a
    sympy expression of the program's symbols), or the Python value ``constant``."""
    name: str | None = None
    given: int | None = None
    size: Any = None
    constant: Any = None


@dataclass
class Program:
    """What the core is handed, and what Python keeps to call it."""
    json: bytes
    tensors: list[tuple[str, torch.Tensor]]     # weights, buffers and constants by the names in the JSON
    inputs: list[str | None]                    # graph inputs in order; None for one that is a constant, a symbol or absent
    outputs: list[Output]
    shapes: list[tuple[Any, ...]] = field(default_factory=list)     # of the inputs as traced: ints, and sympy expressions of symbols
    parameters: frozenset[str] = frozenset()    # of the tensors, those that are parameters, whose numbers decide nothing
    read: list[tuple[str, torch.Tensor]] = field(default_factory=list)      # tensors where the core reads them: some of those of GPUs are copies
    place: torch.device | None = None           # the GPU whose parameters are read there; None: all are read on the host


# ---- sizes ----

class _Sizes:
    """Symbolic sizes as sympy's srepr spells them, each expression printed once."""

    def __init__(self) -> None:
        self._texts: dict[Any, str] = {}

    def text(self, expression: Any) -> str:
        known = self._texts.get(expression)
        if known is None:
            known = self._texts[expression] = self._print(expression)
        return known

    def _print(self, expression: Any) -> str:
        kind = type(expression).__name__
        if expression.is_Symbol:
            return f"Symbol('{expression.name}', integer=True)"
        if expression.is_Integer:
            return f"Integer({int(expression)})"
        if expression.is_Rational:
            return f"Rational({int(expression.p)}, {int(expression.q)})"
        if expression.is_Float:
            return f"Float('{expression}')"
        return f"{kind}({', '.join(self.text(a) for a in expression.args)})"

    def size(self, value: Any) -> dict[str, Any]:
        """An int or a SymInt as the schema's SymInt."""
        if isinstance(value, int):
            return {"as_int": value}
        expression, hint = value.node.expr, value.node.hint     # hint: what the example had; None where the data alone tells
        if expression.is_Integer:
            return {"as_int": int(expression)}
        return {"as_expr": {"expr_str": self.text(expression)} | ({"hint": {"as_int": hint}} if isinstance(hint, int) else {})}

    def real(self, value: Any) -> dict[str, Any]:
        expression = value.node.expr
        return {"as_float": float(expression)} if expression.is_number else {"as_expr": {"expr_str": self.text(expression)}}


# ---- one graph ----

def _number(value: float) -> Any:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def _device(device: torch.device) -> dict[str, Any]:
    return {"type": device.type, "index": device.index}


def dtype_number(dtype: torch.dtype) -> int:
    """The schema's ScalarType; 0, unknown, for a dtype that has no number there."""
    return _DTYPES.get(str(dtype).removeprefix("torch."), 0)


def _is_getitem(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[1], int)


def value_of(node: fx.Node) -> Any:
    """What a node made when it was traced: a fake tensor, a number, a tuple of them."""
    meta = node.meta
    return meta["val"] if "val" in meta else meta.get("example_value")


class _GraphWriter:
    """Nodes of one graph, nested ones by a writer of their own."""

    def __init__(self, module: fx.GraphModule, sizes: _Sizes, rename: dict[str, str] | None = None) -> None:
        self.module, self.sizes, self.rename = module, sizes, rename or {}
        self.tensor_values: dict[str, Any] = {}
        self.sym_ints: dict[str, Any] = {}
        self.sym_floats: dict[str, Any] = {}
        self.sym_bools: dict[str, Any] = {}
        self.custom: dict[str, Any] = {}
        self.prefix = self.base = ""        # taken off module paths; put before them
        self.alias: dict[fx.Node, fx.Node] = {}     # a second getitem of one result -> the first
        self.constants: dict[str, torch.Tensor] = {}
        self.constant_specs: list[dict[str, Any]] = []

    # -- values --

    def define(self, name: str, value: Any) -> dict[str, Any]:
        """Records a value under a name; gives the argument that stands for it."""
        if isinstance(value, torch.Tensor):
            self.tensor_values[name] = self.tensor_meta(value)
            return {"as_tensor": {"name": name}}
        if isinstance(value, torch.SymBool):
            self.sym_bools[name] = {"as_expr": {"expr_str": self.sizes.text(value.node.expr)}}
            return {"as_sym_bool": {"as_name": name}}
        if isinstance(value, bool):
            self.sym_bools[name] = {"as_bool": value}
            return {"as_sym_bool": {"as_name": name}}
        if isinstance(value, (int, torch.SymInt)):
            self.sym_ints[name] = self.sizes.size(value)
            return {"as_sym_int": {"as_name": name}}
        if isinstance(value, torch.SymFloat):
            self.sym_floats[name] = self.sizes.real(value)
            return {"as_sym_float": {"as_name": name}}
        if isinstance(value, float):
            self.sym_floats[name] = {"as_float": _number(value)}
            return {"as_sym_float": {"as_name": name}}
        if value is None:
            return {"as_none": True}
        return {"as_custom_obj": {"name": name, "class_fqn": type(value).__name__}}

    def tensor_meta(self, value: torch.Tensor) -> dict[str, Any]:
        strided = value.layout == torch.strided
        return {"dtype": dtype_number(value.dtype), "sizes": [self.sizes.size(s) for s in value.shape],
                "requires_grad": bool(value.requires_grad), "device": _device(value.device),
                "strides": [self.sizes.size(s) for s in value.stride()] if strided else [],
                "storage_offset": {"as_int": 0}, "layout": _STRIDED if strided else 0}

    def reference(self, node: fx.Node) -> dict[str, Any]:
        node = self.alias.get(node, node)
        if node.op == "get_attr":
            return self.attribute(node)
        value = value_of(node)
        name = self.rename.get(node.name, node.name)
        if isinstance(value, torch.Tensor):
            return {"as_tensor": {"name": name}}
        if isinstance(value, (bool, torch.SymBool)):
            return {"as_sym_bool": {"as_name": name}}
        if isinstance(value, (int, torch.SymInt)):
            return {"as_sym_int": {"as_name": name}}
        if isinstance(value, (float, torch.SymFloat)):
            return {"as_sym_float": {"as_name": name}}
        return {"as_none": True} if value is None else {"as_custom_obj": {"name": name, "class_fqn": type(value).__name__}}

    def attribute(self, node: fx.Node) -> dict[str, Any]:
        """A get_attr node: a nested graph, or a tensor that the trace made a constant of."""
        target = self.module
        for step in node.target.split("."):
            target = getattr(target, step)
        if isinstance(target, fx.GraphModule):
            inner = _GraphWriter(target, self.sizes)
            inner.prefix, inner.base = self.prefix, self.base
            graph = inner.graph()
            if inner.constants:
                raise ValueError(f"the nested graph '{node.target}' holds a constant of its own")
            return {"as_graph": {"name": node.target, "graph": graph}}
        if isinstance(target, torch.Tensor):
            if node.name not in self.tensor_values:
                self.define(node.name, target)
                self.constants[node.target] = target
                self.constant_specs.append({"tensor_constant": {"arg": {"name": node.name}, "tensor_constant_name": node.target}})
            return {"as_tensor": {"name": node.name}}
        return {"as_custom_obj": {"name": node.name, "class_fqn": type(target).__name__}}

    # -- arguments --

    def argument(self, value: Any, kind: str = "") -> dict[str, Any]:
        """kind: the schema's type, which says what an empty list is a list of."""
        if isinstance(value, fx.Node):
            return self.reference(value)
        if value is None:
            return {"as_none": True}
        if isinstance(value, bool):
            return {"as_bool": value}
        if isinstance(value, int):
            return {"as_int": value}
        if isinstance(value, float):
            return {"as_float": _number(value)}
        if isinstance(value, str):
            return {"as_string": value}
        if isinstance(value, torch.dtype):
            return {"as_scalar_type": dtype_number(value)}
        if isinstance(value, torch.device):
            return {"as_device": _device(value)}
        if isinstance(value, torch.layout):
            return {"as_layout": _STRIDED if value == torch.strided else 0}
        if isinstance(value, torch.memory_format):
            return {"as_memory_format": _MEMORY_FORMATS.get(value, 0)}
        if isinstance(value, complex):
            return {"as_complex": {"real": _number(value.real), "imag": _number(value.imag)}}
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return {"as_int": int(value)} if isinstance(value, torch.SymInt) else {"as_float": float(value)}
        if isinstance(value, (list, tuple)):
            return self.list(value, kind)
        if isinstance(getattr(value, "group_name", None), str):     # a process group
            return {"as_string": value.group_name}
        return {"as_custom_obj": {"name": type(value).__name__, "class_fqn": type(value).__name__}}

    def list(self, values: Iterable[Any], kind: str) -> dict[str, Any]:
        values = list(values)
        if not values:
            if "Tensor" in kind:
                return {"as_tensors": []}
            return {"as_floats": []} if "float" in kind else {"as_bools": []} if "bool" in kind else {"as_ints": []}
        items = [self.argument(v) for v in values]
        tags = {next(iter(i)) for i in items}
        if tags == {"as_tensor"} and "Optional" not in kind:
            return {"as_tensors": [i["as_tensor"] for i in items]}
        if tags <= {"as_tensor", "as_none"}:
            return {"as_optional_tensors": items}
        if tags == {"as_int"}:
            return {"as_ints": [i["as_int"] for i in items]}
        if tags <= {"as_int", "as_sym_int"}:
            return {"as_sym_ints": [i.get("as_sym_int", i) for i in items]}
        if tags <= {"as_int", "as_float"}:
            return {"as_floats": [next(iter(i.values())) for i in items]}
        if tags <= {"as_bool", "as_sym_bool"}:
            return {"as_bools": [i["as_bool"] for i in items]} if tags == {"as_bool"} else {"as_sym_bools": [i.get("as_sym_bool", i) for i in items]}
        if tags == {"as_string"}:
            return {"as_strings": [i["as_string"] for i in items]}
        return {"as_custom_obj": {"name": "list", "class_fqn": "list"}}

    def arguments(self, node: fx.Node) -> list[dict[str, Any]]:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            positional = [{"name": "", "arg": self.argument(a), "kind": _POSITIONAL} for a in node.args]
            return positional + [{"name": k, "arg": self.argument(a), "kind": _KEYWORD} for k, a in node.kwargs.items()]
        result = []
        for index, declared in enumerate(schema.arguments):
            if declared.name in node.kwargs:
                given, kind = node.kwargs[declared.name], _KEYWORD
            elif index < len(node.args) and not declared.kwarg_only:
                given, kind = node.args[index], _POSITIONAL
            else:
                continue        # the reader has the schema's default
            result.append({"name": declared.name, "arg": self.argument(given, str(declared.type)), "kind": kind})
        return result

    # -- results --

    def results(self, node: fx.Node) -> list[dict[str, Any]]:
        value = value_of(node)
        if value is None:
            return []
        if not isinstance(value, (tuple, list)):
            return [self.define(node.name, value)]
        names: dict[int, str] = {}
        for user in node.users:
            if not _is_getitem(user):
                continue
            index = user.args[1] % len(value)
            if index in names:
                self.alias[user] = next(u for u in node.users if u.name == names[index])
            else:
                names[index] = user.name
        items = [self.define(names.get(i, f"{node.name}_unused_{i}"), v) for i, v in enumerate(value)]
        schema = getattr(node.target, "_schema", None)
        if schema is not None and len(schema.returns) == 1 and all("as_tensor" in i for i in items):
            return [{"as_tensors": [i["as_tensor"] for i in items]}]
        return items

    # -- nodes --

    @staticmethod
    def target(node: fx.Node) -> str:
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            return f"torch.ops.{target}"
        if isinstance(target, torch._ops.HigherOrderOperator):
            return f"torch.ops.higher_order.{target.name()}"
        module = getattr(target, "__module__", None) or "builtins"
        return f"{module}.{getattr(target, '__name__', str(target))}"

    def metadata(self, node: fx.Node) -> dict[str, str]:
        stack = node.meta.get("nn_module_stack")
        if not stack:
            return {}
        entries = []
        for key, (path, kind) in stack.items():
            name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
            path = clean_path(path)
            if self.prefix:
                if not (path + ".").startswith(self.prefix):
                    continue        # the module around it
                path = path[len(self.prefix):]
            if self.base:
                path = f"{self.base}.{path}" if path else self.base
            entries.append(f"{key},{path},{name}".replace(";", ":"))
        return {"nn_module_stack": ";".join(entries)}

    def node(self, node: fx.Node) -> dict[str, Any] | None:
        if _is_getitem(node) and isinstance(value_of(node.args[0]), (tuple, list)):
            return None
        if node.target in _DROPPED:
            return None
        outputs = self.results(node)
        return {"target": self.target(node), "inputs": self.arguments(node), "outputs": outputs, "metadata": self.metadata(node), "name": node.name}

    def graph(self) -> dict[str, Any]:
        inputs, nodes, outputs = [], [], []
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                inputs.append(self.define(self.rename.get(node.name, node.name), value_of(node)))
            elif node.op == "call_function":
                made = self.node(node)
                if made is not None:
                    nodes.append(made)
            elif node.op == "output":
                outputs = [self.argument(a) for a in _leaves(node.args[0])]
            elif node.op != "get_attr":
                raise ValueError(f"node '{node.name}' is a {node.op}: the graph is not in ATen dialect")
        return {"inputs": inputs, "outputs": outputs, "nodes": nodes, "tensor_values": self.tensor_values, "sym_int_values": self.sym_ints,
                "sym_float_values": self.sym_floats, "sym_bool_values": self.sym_bools, "custom_obj_values": self.custom,
                "is_single_tensor_return": False}


def _leaves(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def clean_path(path: str) -> str:
    """The path of a module as named_modules() has it: Dynamo writes ``L['self'].blocks[0].mlp`` and the like."""
    if "[" in path or path.startswith("L__self__"):
        for quote in ("['", '["'):
            path = path.replace(quote, ".")
        for bracket in ("']", '"]', "]"):
            path = path.replace(bracket, "")
        path = path.replace("[", ".").replace("L.self", "").replace("._modules.", ".").removeprefix("L__self__")
    return path.strip(".")


# ---- the whole ----

def _encode(graph: dict[str, Any], input_specs: list[Any], output_specs: list[Any], ranges: dict[str, Any],
            guards: list[str]) -> bytes:
    program = {"graph_module": {"graph": graph, "signature": {"input_specs": input_specs, "output_specs": output_specs}, "module_call_graph": []},
               "opset_version": {"aten": 10}, "range_constraints": ranges, "schema_version": SCHEMA_VERSION, "verifiers": [],
               "torch_version": torch.__version__, "guards_code": guards}
    return json.dumps(program, separators=(",", ":")).encode()


def _bound(value: Any) -> int | None:
    """One end of a range; None where it is open."""
    if not isinstance(value, int) and not value.is_Integer:
        return None
    return int(value) if abs(int(value)) < 2**62 else None


def ranges_of(constraints: Any) -> dict[str, Any]:
    """``{symbol: range with lower and upper}`` as the schema has it."""
    return {str(symbol): {"min_val": _bound(r.lower), "max_val": _bound(r.upper)} for symbol, r in constraints.items()}


_INPUT_TAGS = {InputKind.PARAMETER: ("parameter", "parameter_name"), InputKind.BUFFER: ("buffer", "buffer_name"),
               InputKind.CONSTANT_TENSOR: ("tensor_constant", "tensor_constant_name")}
_OUTPUT_TAGS = {OutputKind.BUFFER_MUTATION: ("buffer_mutation", "buffer_name"), OutputKind.USER_INPUT_MUTATION: ("user_input_mutation", "user_input_name")}
if hasattr(OutputKind, "PARAMETER_MUTATION"):
    _OUTPUT_TAGS[OutputKind.PARAMETER_MUTATION] = ("parameter_mutation", "parameter_name")


def _real_tensors(tensors: dict[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """With a complex one as two, its real and its imaginary part."""
    result = []
    for name, tensor in tensors.items():
        if tensor.is_complex():
            pairs = torch.view_as_real(tensor.detach().resolve_conj())
            result += [(f"{name}.real", pairs[..., 0]), (f"{name}.imag", pairs[..., 1])]
        else:
            result.append((name, tensor.detach()))
    return result


def _parameters(tensors: dict[str, torch.Tensor]) -> frozenset[str]:
    return frozenset(name for name, tensor in tensors.items() if isinstance(tensor, torch.nn.Parameter))


def _unique_names(module: fx.GraphModule, nodes: list[fx.Node], wanted: list[str]) -> dict[str, str]:
    """New names for placeholders: identifiers that no other node of the graph has."""
    own = {n.name for n in nodes}
    taken = {n.name for n in module.graph.nodes} - own
    result = {}
    for node, name in zip(nodes, wanted):
        base = re.sub(r"\W", "_", name) or "x"
        name, number = base, 1
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        result[node.name] = name
    return result


def _shape(node: fx.Node) -> tuple[Any, ...]:
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return ()
    sizes = [s if isinstance(s, int) else s.node.expr for s in value.shape]
    return tuple(int(s) if isinstance(s, int) or s.is_Integer else s for s in sizes)


def _output(node: Any, written: dict[str, Any], inputs: dict[fx.Node, int]) -> Output:
    """node: the output as the graph has it; written: the same in the schema; inputs: the placeholders that are inputs."""
    if isinstance(node, fx.Node) and node in inputs:
        return Output(given=inputs[node])
    if "as_tensor" in written:
        return Output(name=written["as_tensor"]["name"])
    if not isinstance(node, fx.Node):
        return Output(constant=node)
    value = value_of(node)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return Output(size=value.node.expr)
    return Output(constant=value)


def from_exported(program: ExportedProgram, names: list[str] | None = None, prefix: str = "", lifted: frozenset[str] = frozenset(),
                  equal: Iterable[Sequence[tuple[int, int]]] = (), base: str = "", expand: Callable[..., None] | None = None) -> Program:
    """The program of ``torch.export.export``, in the training dialect or after ``run_decompositions``.

    names: what to call the user inputs, in order, instead of what the export calls them. prefix: taken off module paths and weight names, for a
    module that was exported from within another. lifted: buffers that become inputs behind the user's, in the order of the signature. equal: groups
    of (user input, axis) whose sizes are one, which torch need not have seen. base: put before module paths, for a part of a module.
    expand(graph, weights, constants) may change the graph's JSON, knowing tensors by their names there.
    Raises ValueError for what the form cannot express; operators that the core does not know are the core's to refuse."""
    sizes = _Sizes()
    module, signature = program.graph_module, program.graph_signature
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    user = [n for n, spec in zip(placeholders, signature.input_specs) if spec.kind == InputKind.USER_INPUT]
    rename = _unique_names(module, user, names) if names is not None else {}
    writer = _GraphWriter(module, sizes, rename)
    writer.prefix, writer.base = prefix, base
    graph = writer.graph()
    state, constants = program.state_dict, program.constants
    if expand is not None:
        named = {n.name: (spec.kind, state[spec.target] if spec.target in state else constants.get(spec.target)) for spec, n in zip(signature.input_specs, placeholders)
                 if spec.kind in _INPUT_TAGS}
        lifted_ones = {name: tensor for name, (kind, tensor) in named.items() if kind == InputKind.CONSTANT_TENSOR and tensor is not None}
        held = {spec["tensor_constant"]["arg"]["name"]: writer.constants[spec["tensor_constant"]["tensor_constant_name"]] for spec in writer.constant_specs}
        expand(graph, {name: tensor for name, (kind, tensor) in named.items() if name not in lifted_ones}, lifted_ones | held)
    input_specs: list[dict[str, Any]] = []
    inputs: list[str | None] = []
    shapes: list[tuple[Any, ...]] = []
    tensors: dict[str, torch.Tensor] = {}
    extra: list[tuple[str, fx.Node, dict[str, Any]]] = []
    for spec, node, arg in zip(signature.input_specs, placeholders, graph["inputs"]):
        target = (spec.target or "").removeprefix(prefix)
        if spec.kind in _INPUT_TAGS and target in lifted:
            extra.append((target, node, arg))
        elif spec.kind in _INPUT_TAGS:
            tag, key = _INPUT_TAGS[spec.kind]
            input_specs.append({tag: {"arg": {"name": node.name}, key: target}})
            found = state.get(spec.target) if spec.target in state else constants.get(spec.target)
            if found is not None:
                tensors[target] = found
        elif spec.kind == InputKind.USER_INPUT:
            inputs.append(arg["as_tensor"]["name"] if "as_tensor" in arg else None)
            shapes.append(_shape(node))
            if "as_tensor" in arg:
                input_specs.append({"user_input": {"arg": arg}})
        else:
            inputs.append(None)
            shapes.append(())
    for target, node, arg in extra:
        inputs.append(node.name)
        shapes.append(_shape(node))
        input_specs.append({"user_input": {"arg": arg}})
    given = {n: i for i, n in enumerate(user)}
    results = next(n for n in module.graph.nodes if n.op == "output").args[0]
    output_specs, outputs = [], []
    for spec, node, arg in zip(signature.output_specs, results, graph["outputs"]):
        if spec.kind == OutputKind.USER_OUTPUT:
            outputs.append(_output(node, arg, given))
            if outputs[-1].name is not None:
                output_specs.append({"user_output": {"arg": arg}})
        elif spec.kind in _OUTPUT_TAGS:
            tag, key = _OUTPUT_TAGS[spec.kind]
            name = rename.get(spec.target, spec.target) if spec.kind == OutputKind.USER_INPUT_MUTATION else spec.target.removeprefix(prefix)
            output_specs.append({tag: {"arg": {"name": arg["as_tensor"]["name"]}, key: name}})
        else:
            output_specs.append({spec.kind.name.lower(): {"arg": arg}})
    tensors |= writer.constants
    guards = _rename_guards(getattr(program, "_guards_code", None) or (), [rename.get(n.name, n.name) for n in user] if names is not None else [])
    guards += [f"L['{inputs[a]}'].size()[{i}] == L['{inputs[b]}'].size()[{j}]" for (a, i), *others in equal for b, j in others
               if not isinstance(shapes[a][i], int) and shapes[a][i] != shapes[b][j]]
    data = _encode(graph, writer.constant_specs + input_specs, output_specs, ranges_of(program.range_constraints), guards)
    return Program(data, _real_tensors(tensors), inputs, outputs, shapes, _parameters(tensors))


def _rename_guards(guards: Iterable[Any], names: list[str]) -> list[str]:
    """torch names the n-th of variadic arguments ``L['leaves'][n]``."""
    return [re.sub(r"L\['leaves'\]\[(\d+)\]", lambda m: f"L['{names[int(m[1])]}']" if int(m[1]) < len(names) else m[0], str(g)) for g in guards]


def from_graph(module: fx.GraphModule, ranges: dict[str, Any] | None = None, tensors: dict[str, tuple[str, torch.Tensor]] | None = None) -> Program:
    """A GraphModule whose nodes are ATen calls with ``meta["val"]`` (of ``make_fx``, Dynamo's after it, or AOTAutograd).

    Placeholders become the inputs, but for those that ``tensors`` gives a weight's name and tensor. Symbols among the placeholders must be sizes
    of tensors. Attributes become constants. Outputs are the leaves of the output node's tuple; ``given`` counts the inputs."""
    writer = _GraphWriter(module, _Sizes())
    graph = writer.graph()
    weights = tensors or {}
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    input_specs: list[dict[str, Any]] = []
    inputs: list[str | None] = []
    shapes: list[tuple[Any, ...]] = []
    given: dict[fx.Node, int] = {}
    bound: dict[str, torch.Tensor] = {}
    for node, arg in zip(placeholders, graph["inputs"]):
        if node.name in weights:
            name, tensor = weights[node.name]
            input_specs.append({"parameter": {"arg": {"name": node.name}, "parameter_name": name}})
            bound[name] = tensor
            continue
        given[node] = len(inputs)
        inputs.append(node.name if "as_tensor" in arg else None)
        shapes.append(_shape(node))
        if "as_tensor" in arg:
            input_specs.append({"user_input": {"arg": arg}})
    result = next(n for n in module.graph.nodes if n.op == "output")
    output_specs, outputs = [], []
    for node, arg in zip(_leaves(result.args[0]), graph["outputs"]):
        outputs.append(_output(node, arg, given))
        if outputs[-1].name is not None:
            output_specs.append({"user_output": {"arg": arg}})
    data = _encode(graph, writer.constant_specs + input_specs, output_specs, ranges or {}, [])
    return Program(data, _real_tensors(bound | writer.constants), inputs, outputs, shapes, _parameters(bound))
