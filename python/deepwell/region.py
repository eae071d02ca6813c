"""A program compiled by the core and called with tensors: which sizes it takes, running it, and weights that change.

Does not know modules or structures: leaves in, leaves out.
"""
from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterable, Sequence

import torch

from . import _core
from .errors import DeepwellWarning, Mismatch, NoMemory, Unsupported
from .placement import CPU, core_device, device_of, for_core
from .precision import PrecisionPolicy
from .program import COLLECTIVES, Output, Program

# The core's names of formats that torch has too.
DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64, "i32": torch.int32,
          "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
if hasattr(torch, "float8_e8m0fnu"):
    DTYPES["e8m0"] = torch.float8_e8m0fnu
_TYPE = re.compile(r"(\w+)\[(.*)\]$")
_SYMBOL = re.compile(r"^  symbol (\S+) (\d*)\.\.(\d*)", re.MULTILINE)
_MODULE = re.compile(r' at "([^"]+)"')
_DROPS = re.compile(r'^  %.* = dropout .* at "([^"]*)"', re.MULTILINE)
_STATE = re.compile(r'^  state  "?([^\s"]+)"? ', re.MULTILINE)


@dataclass(frozen=True)
class Options:
    """How the core is to compile; what ``_core.Model`` takes."""
    precision: str | None = None
    policy: PrecisionPolicy | str | None = None
    kernels: str | None = None
    tuning: str | None = None                               # the text
    tuning_name: str | None = None                          # its file
    registry: Any = None
    device: str | None = None
    threads: int = 0
    invariant: bool = False
    comm: Any = None                                        # a _core.Comm: models are cut over its ranks
    shard: str | None = None                                # the text of a policy of splits
    sizes: dict[str, int] = field(default_factory=dict)     # typical sizes by name, "b" and "s"

    def model(self, graph: Any, dims: str | None, text: str = "", **more: Any) -> Any:
        """text: the graph's, whose module paths complete the names in a policy."""
        policy = self.policy.text(_MODULE.findall(text)) if isinstance(self.policy, PrecisionPolicy) else self.policy
        known = {"precision": self.precision, "policy": policy, "kernels": self.kernels, "tuning": self.tuning, "tuning_name": self.tuning_name, "registry": self.registry, "device": self.device,
                 "threads": self.threads, "invariant": self.invariant, "dims": dims, "comm": self.comm, "shard": self.shard}
        return _core.Model(graph, **{k: v for k, v in (known | more).items() if v})


_PROBE = "graph probe\n  input x f32[4,32]\n  input w f32[32,32]\n  %1 = matmul x, w {bt=true}\n  output y %1\n"


def check_options(options: Options, device: torch.device | None = None) -> None:
    """Raises what the core says of them before any model is captured: an unknown precision, a broken policy, a kernel or device that is not there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeepwellWarning)        # the probe has none of the layers that a policy names
        options.model(_core.Graph.text("options", _PROBE), None, plan_only=True, device=options.device or core_device(device), comm=None, shard=None)


def split_type(text: str) -> tuple[str, list[str]]:
    """"f32[b,s,64]" -> ("f32", ["b", "s", "64"])."""
    match = _TYPE.match(text)
    if match is None:
        return text, []
    parts, depth, start = [], 0, 0
    for at, c in enumerate(match[2]):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(match[2][start:at])
            start = at + 1
    tail = match[2][start:]
    return match[1], parts + ([tail] if tail else [])


def check_tensor(tensor: torch.Tensor, name: str) -> None:
    """Says what to do about a tensor that the core cannot read."""
    if tensor.device.type == "meta":
        raise Unsupported(f"input '{name}' is a meta tensor, which holds no data")
    if tensor.layout != torch.strided:
        raise Unsupported(f"input '{name}' has layout {tensor.layout}; give a dense tensor by .to_dense()")


def enqueue(session: Any, leaves: Iterable[torch.Tensor], device: torch.device) -> Any:
    """A run in PyTorch's current stream of the GPU, not waited for. A copy is made of inputs that are not contiguous or begin between multiples of 16 bytes."""
    inputs = []
    for leaf in leaves:
        if not leaf.is_cuda and leaf.dim() == 0:
            leaf = leaf.to(device, non_blocking=True)
        if not leaf.is_contiguous() or leaf.data_ptr() % 16:
            leaf = leaf.clone(memory_format=torch.contiguous_format)
        inputs.append(leaf)
    return session.run(tuple(inputs), lambda shape, name: torch.empty(shape, dtype=DTYPES[name], device=device), torch.cuda.current_stream(device).cuda_stream)


def graph_of(source: str, program: Program, device: torch.device | None) -> Any:
    """The core's graph of a program, over its tensors, for models that run on device (None: the host): parameters of that GPU are read in place."""
    program.place = device if device is not None and device.type == "cuda" else None
    program.read = for_core(program.tensors, program.parameters, program.place)
    written = program.json
    if COLLECTIVES in written:
        from . import ranks
        written = ranks.name_groups(written)
    graph = _core.Graph.program(source, written, program.read)
    if any(name == "random.draw" for name, _ in graph.inputs):      # what the trainer gives, and no call from Python
        place = _DROPS.search(graph.print())
        raise Unsupported(f"{source}: the module drops elements at random, as it was traced in training mode; call .eval() (op dropout, in {place[1] if place else source})")
    return graph


class Region:
    """One program, planned once, run at any sizes that its dimensions allow. Calls from several threads run one after another."""

    def __init__(self, source: str, program: Program | None, options: Options, example: Sequence[torch.Tensor] | None = None, graph: Any = None,
                 model: Any = None, device: torch.device | None = None) -> None:
        """program: what to compile; None: graph (of a file) or model (compiled already) has the inputs and outputs. example: tensors whose sizes are
        the typical ones. device: where it runs, and inputs and outputs are; None: where the program's tensors are. Raises Unsupported with every operator that the core does not read."""
        self.source, self.options = source, options
        self.device = device if device is not None else device_of(program.tensors if program is not None else ()) or CPU
        if graph is not None and program is not None and program.place not in (None, self.device):
            graph, program = None, replace(program, tensors=list(program.tensors))      # its weights are read where this model does not run
        self.graph = graph if graph is not None or model is not None else graph_of(source, program, self.device)
        known = self.graph if model is None else model
        if program is None:
            program = Program(b"", [], [n for n, _ in known.inputs], [Output(name=n) for n, _ in known.outputs], [() for _ in known.inputs])
        self.program = program
        self._on_gpu = self.device.type == "cuda"
        self._kept: list[Any] = []              # sessions that graphs of torch.cuda.graph run on
        self._is_captured = False
        self.text = self.graph.print() if model is None else ""
        self.states = _STATE.findall(self.text)
        self.ranges = {name: (int(low or 0), int(high) if high else None) for name, low, high in _SYMBOL.findall(self.text)}
        types = dict(known.inputs)
        self.positions = [i for i, name in enumerate(program.inputs) if name is not None]
        self.types = [split_type(types[program.inputs[i]]) for i in self.positions]
        self.dtypes = [DTYPES.get(t[0]) for t in self.types]
        self._model: Any = model
        self._session: Any = None
        self.dims = self._dims(example)
        outputs = [name for name, _ in known.outputs]
        index = {name: i for i, name in enumerate(outputs)}
        self._results: list[tuple[str, Any]] = []
        for output in program.outputs:
            if output.name is not None:
                self._results.append(("tensor", index[output.name]))
            elif output.given is not None:
                self._results.append(("given", output.given))
            elif output.size is not None:
                self._results.append(("size", self._size_function(output.size)))
            else:
                self._results.append(("constant", output.constant))
        self._plain = all(kind == "tensor" for kind, _ in self._results) and [i for _, i in self._results] == list(range(len(outputs)))
        self._written = [(program.inputs.index(name[:-len(".next")]), i) for name, i in index.items()
                         if name.endswith(".next") and name[:-len(".next")] in program.inputs]

    # -- sizes --

    def bind(self, leaves: Sequence[torch.Tensor]) -> dict[str, int] | None:
        """Sizes by symbol, as these tensors give them; None when they do not fit the program."""
        sizes: dict[str, int] = {}
        for position, (_, dims), dtype in zip(self.positions, self.types, self.dtypes):
            leaf = leaves[position]     # those of other positions are numbers
            if leaf.dtype != dtype or leaf.dim() != len(dims):
                return None
            for size, dim in zip(leaf.shape, dims):
                if dim.isdigit():
                    if int(dim) != size:
                        return None
                elif dim.isidentifier():
                    low, high = self.ranges.get(dim, (0, None))
                    if sizes.setdefault(dim, size) != size or size < low or (high is not None and size > high):
                        return None
        return sizes

    def _dims(self, example: Sequence[torch.Tensor] | None) -> str | None:
        symbols = {d for _, dims in self.types for d in dims if d.isidentifier()}
        sizes = (self.bind(example) if example is not None else None) or {}
        sizes |= {k: v for k, v in self.options.sizes.items() if k in symbols}
        for name, value in sizes.items():
            high = self.ranges.get(name, (0, None))[1]
            sizes[name] = max(1, value if high is None else min(value, high))
        return ",".join(f"{k}={v}" for k, v in sizes.items()) or None

    def _size_function(self, expression: Any) -> Callable[[Sequence[torch.Tensor]], Any]:
        """A number computed from sizes, as a function of the inputs."""
        if not expression.free_symbols:
            return lambda leaves: int(expression) if expression.is_Integer else float(expression)
        places = {}
        for position, shape in enumerate(self.program.shapes):
            for axis, size in enumerate(shape):
                if not isinstance(size, int) and size.is_Symbol:
                    places.setdefault(size, (position, axis))
        missing = [str(s) for s in expression.free_symbols if s not in places]
        if missing:
            raise Unsupported(f"{self.source}: a result depends on {', '.join(missing)}, which is the size of no input")
        if expression.is_Symbol:
            position, axis = places[expression]
            return lambda leaves: leaves[position].shape[axis]

        def evaluate(leaves: Sequence[torch.Tensor]) -> Any:
            value = expression.subs({s: leaves[places[s][0]].shape[places[s][1]] for s in expression.free_symbols})
            return int(value) if value.is_integer else float(value)
        return evaluate

    # -- running --

    @property
    def core_device(self) -> str | None:
        return self.options.device or core_device(self.device)

    @property
    def model(self) -> Any:
        if self._model is None:
            self._wait()
            self._model = self.options.model(self.graph, self.dims, self.text, device=self.core_device)
        return self._model

    @property
    def session(self) -> Any:
        if self._session is None:
            self._session = _core.Session(self.model, dims=self.dims, device_memory=self._on_gpu)
        return self._session

    def run(self, leaves: Sequence[torch.Tensor]) -> Sequence[Any]:
        """The results for these inputs, which are read in place (a copy is made of those that are not contiguous)."""
        if self._on_gpu:
            if torch.cuda.is_current_stream_capturing():
                self._is_captured = True
            made: Sequence[Any] = enqueue(self.session, [leaves[position] for position in self.positions], self.device)
        else:
            inputs = []
            for position in self.positions:
                leaf = leaves[position]
                inputs.append(leaf if leaf.is_contiguous() else leaf.contiguous())
            made = self.session.run(tuple(inputs))
        if self._plain:
            return made
        for position, index in self._written:
            leaves[position].copy_(made[index])
        return [made[which] if kind == "tensor" else leaves[which] if kind == "given" else which(leaves) if kind == "size" else which
                for kind, which in self._results]

    def renew(self, written: Iterable[str], moved: dict[str, torch.Tensor], moved_count: int) -> bool:
        """Weights were written in place, or are other tensors now. False: another dtype or shape, the program is no longer true."""
        for index, (name, tensor) in enumerate(self.program.tensors):
            now = moved.get(name)
            if now is None:
                continue
            if now.shape != tensor.shape or now.dtype != tensor.dtype or now.device != tensor.device:
                return False
            self.program.tensors[index] = (name, now)
        names = {name for name, _ in self.program.tensors}
        if names & set(moved):
            self._rebuild()
        else:
            self.update([n for n in written if n in names])
        return True

    def _wait(self) -> None:
        """Until weights that the core reads on a GPU are written."""
        if self._on_gpu:
            torch.cuda.current_stream(self.device).synchronize()

    def _rebuild(self) -> None:
        self._keep()
        self.graph = graph_of(self.source, self.program, self.device)
        self._model = self._session = None

    def _keep(self) -> None:
        """What a graph of the user's runs on lives as long as this."""
        if self._is_captured:
            self._kept.append((self._model, self._session))
            self._is_captured = False

    def _update_model(self, names: list[str]) -> None:
        """At once where there is memory for what is made anew beside what was there before; else one half behind the other."""
        try:
            self._model.update(names)
            return
        except NoMemory:
            if len(names) == 1:
                raise
        middle = len(names) // 2
        self._update_model(names[:middle])
        self._update_model(names[middle:])

    def update(self, names: Iterable[str]) -> None:
        """The memory of these weights was written: what was computed from them is made again."""
        changed = list(names)
        if not changed or self._model is None:
            return
        if self._is_captured:       # the weights of a captured graph stay as they were
            self._rebuild()
            return
        if self._on_gpu:
            now = dict(self.program.tensors)
            for name, copy in self.program.read:
                if name in changed and copy is not now[name]:
                    copy.copy_(now[name])
            self._wait()
        try:
            self._update_model(changed)
        except Mismatch:      # its values decided how the model was compiled
            self._rebuild()
