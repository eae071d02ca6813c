"""``compile`` and ``Engine``: a captured model, planned for this machine's hardware in a precision, and called like the module it came from."""
from __future__ import annotations

import json
import os
import statistics
import time
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

from . import _core
from .capture import IR, capture
from .errors import DeepwellWarning, Invalid, Mismatch, Unsupported
from .kernels import KernelRegistry
from .precision import PrecisionPolicy, precision_name
from .probe import Hardware
from .speed import SpeedReport


@dataclass(frozen=True)
class Benchmark:
    """Medians, in milliseconds, of ``repeat`` calls after one that is not counted; torch_ms is the module's own, None for an engine of a file."""
    ms: float
    torch_ms: float | None
    repeat: int
    times_ms: tuple[float, ...]
    _measure: Callable[..., SpeedReport] = field(repr=False, compare=False)

    def report(self, **generation: int) -> SpeedReport:
        """Each step of such a call beside its bound; takes what ``Engine.report`` takes besides inputs."""
        return self._measure(repeat=self.repeat, **generation)

    def __str__(self) -> str:
        text = f"{self.ms:.3f} ms a call (median of {self.repeat}, {min(self.times_ms):.3f} to {max(self.times_ms):.3f})"
        return text if self.torch_ms is None else f"{text}; PyTorch eager {self.torch_ms:.3f} ms, {self.torch_ms / self.ms:.2f}x"


def _milliseconds(call: Callable[[], Any], repeat: int) -> list[float]:
    call()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def _row(name: str, given: Any, row: int, rows: int) -> Any:
    """What one of the prompts is given of an input."""
    if isinstance(given, (list, tuple)):
        if len(given) != rows:
            raise Mismatch(f"generate: '{name}' is a list of {len(given)} tensors, for {rows} prompts")
        return given[row].cpu().contiguous()
    if given.dim() == 0 or given.shape[0] not in (1, rows):
        raise Mismatch(f"generate: '{name}' is {list(given.shape)}, for {rows} prompts; it has a row for each, or one for all")
    return (given[row:row + 1] if given.shape[0] == rows else given).cpu().contiguous()


FEW_IDS = 4096      # whose copy to a GPU takes no longer than its start


def _filled(rows: Sequence[Sequence[int]]) -> Any:
    """Rows of ids as one tensor; those that are shorter go on with their last one."""
    import torch
    longest = max(map(len, rows))
    return torch.tensor([list(r) + [r[-1]] * (longest - len(r)) for r in rows], dtype=torch.int64)


def _behind(given: Any, here: Any, new: Any) -> Any:
    """The new ids behind those given, where these lie; here: they in the host's memory. Few go to a GPU in one copy that is not waited for, as joining them there would take a second one and a launch."""
    import torch
    if here.numel() > FEW_IDS:
        return torch.cat([given, new.to(given.device)], 1)
    return torch.cat([here, new], 1).to(given.device, non_blocking=True)


def _largest(types: list[tuple[str, str]], given: list[dict[str, Any]]) -> dict[str, int]:
    """The largest sizes by symbol that tensors of these inputs have."""
    from .region import split_type
    sizes: dict[str, int] = {}
    for name, text in types:
        for row in given:
            for dim, size in zip(split_type(text)[1], row[name].shape if name in row else ()):
                if dim.isidentifier():
                    sizes[dim] = max(size, sizes.get(dim, 0))
    return sizes


class Engine:
    """Called with what the module was captured with; returns what the module returns. Made by ``compile`` and ``load``.

    Calls from several threads run one after another. State (buffers that the model writes) lives in the engine; ``reset()`` restores it."""

    def __init__(self, region: Any, ir: IR | None, plan_only: Any = None) -> None:
        self._region, self.ir, self._plan_only = region, ir, plan_only
        self._trace = ir.trace if ir is not None else None
        self._generator: tuple[Any, Any, Any] | None = None     # model, what its session of generation has room for, session
        self._both_plans: Any = None

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """[(name, "f32[b,s,64]"), ..]"""
        return self._core_model.inputs

    @property
    def outputs(self) -> list[tuple[str, str]]:
        return self._core_model.outputs

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in the form that runs: each once, whichever of calls and generation read it."""
        return self._core_model.weight_bytes

    @property
    def device(self) -> Any:
        """The torch.device that it runs on, where its inputs and outputs are."""
        return self._region.device

    @property
    def _core_model(self) -> Any:
        return self._plan_only if self._plan_only is not None else self._region.model

    @property
    def _explained(self) -> Any:
        """The model with both plans: the one that runs once it generates, too, else one that is only planned."""
        if self._plan_only is not None or self._region.graph is None or self._generator is not None:
            return self._core_model
        if self._both_plans is None:
            region = self._region
            self._both_plans = region.options.model(region.graph, region.dims, region.text, generate=True, plan_only=True, device=region.core_device)
        return self._both_plans

    def __repr__(self) -> str:
        return f"<deepwell.Engine of {self._region.source}>"

    # -- calls --

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        from .placement import device_of
        from .region import check_tensor
        if self._plan_only is not None:
            raise Unsupported(f"{self._region.source} was planned for another chip; it cannot run on this machine")
        if self._trace is not None:
            from .trace import flatten_call
            form, flat = flatten_call(self.ir.model, args, kwargs)
            for name, leaf in zip(flat.names, flat.leaves):
                check_tensor(leaf, name)
            device_of(zip(flat.names, flat.leaves), self.device, "the engine is")
            if form != self._trace.form:
                if sorted(flat.names) != sorted(self._trace.names):
                    raise Mismatch(f"{self._region.source} was captured with the inputs {', '.join(self._trace.names)}; given are "
                                   f"{', '.join(flat.names) or 'none'}: capture it again with these")
                if flat.names != self._trace.names:     # by position there, by name here
                    by_name = dict(zip(flat.names, flat.leaves))
                    return [by_name[n] for n in self._trace.names]
            return flat.leaves
        names = [n for n in self._region.program.inputs]
        if len(args) > len(names) or set(kwargs) - set(names[len(args):]) or len(args) + len(kwargs) != len(names):
            raise Mismatch(f"{self._region.source} takes {', '.join(f'{n} {t}' for n, t in self.inputs)}; given are {len(args)} by position and "
                           f"{', '.join(kwargs) or 'none'} by name")
        leaves = list(args) + [kwargs[n] for n in names[len(args):]]
        for name, leaf in zip(names, leaves):
            check_tensor(leaf, name)
        device_of(zip(names, leaves), self.device, "the engine is")
        return leaves

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = self._leaves(args, kwargs)
        made = self._region.run(leaves)
        if self._trace is None:
            return made[0] if len(made) == 1 else tuple(made)
        from .structure import rebuild_call
        return rebuild_call(self._trace.result, made, args, kwargs)

    def reset(self) -> None:
        """State as the export had it."""
        self._region.session.reset()

    def update(self, *names: str) -> None:
        """These weights were written in place: what was computed from them is made again before the next call. None named: all."""
        self._region.update(names or [n for n, _ in self._region.program.tensors])

    # -- reports --

    def explain(self, json: bool = False) -> str:
        """Every choice with its reason: precision by layer, kernel by op, memory; of a model that generates also the plan of its cached step."""
        text = self._explained.print("explain", json=json)
        return text if json or self._trace is None else f"captured: {self._trace.origin}\n{text}"

    def check(self, *args: Any, json: bool = False, **kwargs: Any) -> str:
        """The error of this precision on these inputs (none: random ones): per layer, alone and accumulated, and at the outputs."""
        return self._region.model.check(self._host_inputs(args, kwargs) if args or kwargs else [], json=json)

    def benchmark(self, *args: Any, repeat: int = 5, **kwargs: Any) -> Benchmark:
        """Times calls with these inputs, and the module's own beside them."""
        import torch
        times = _milliseconds(lambda: self(*args, **kwargs), repeat)
        torch_ms = None
        if self.ir is not None and self.ir.model is not None:
            with torch.inference_mode():
                torch_ms = statistics.median(_milliseconds(lambda: self.ir.model(*args, **kwargs), repeat))
        return Benchmark(statistics.median(times), torch_ms, repeat, tuple(times), lambda **more: self.report(*args, **kwargs, **more))

    def report(self, *args: Any, repeat: int = 5, prefill: int = 0, keys: int = 0, texts: int = 1, **kwargs: Any) -> SpeedReport:
        """Each step of a call with these inputs beside its bound. prefill: of reading texts with so many tokens each, too; keys: and of one further token of texts behind so many. Without inputs
        of these alone. On a simulated device there are bounds and no times."""
        whole = bool(args or kwargs)
        if not whole and prefill <= 0 and keys <= 0:
            raise Invalid("report: give it the inputs of a call, or prefill or keys")
        runs, facts = [], None
        if whole:
            facts = json.loads(self._region.model.report(self._host_inputs(args, kwargs), repeat=repeat, prefill=-1, keys=-1))
            runs += facts["runs"]
        if prefill > 0 or keys > 0:
            facts = json.loads(self._generation_model().report(repeat=repeat, prefill=prefill or -1, keys=keys or -1, texts=texts, whole=False))
            runs += facts["runs"]
        return SpeedReport(json.dumps({**facts, "runs": runs}))

    def _host_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """The call's tensors by the graph's names, in the host's memory."""
        leaves = self._leaves(args, kwargs)
        return [(self._region.program.inputs[i], leaves[i].cpu().contiguous()) for i in self._region.positions]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Graph, plans and packed weights in one file, which ``load`` maps on a machine of this CPU level."""
        self._generation_model().save(os.fspath(path))

    # -- generation --

    def _generation_model(self) -> Any:
        """The model that answers calls, with generation added to it: both read one copy of the weights."""
        model = self._region.model
        if self._generator is None or self._generator[0] is not model:      # an update may have made another
            model.add_generation()
            self._generator = (model, (0, 0, {}), None)
        return model

    def _generation_session(self, room: int, rows: int, sizes: dict[str, int]) -> Any:
        """A session with at least that room for each text, as many texts at a time, and sizes of other inputs; kept until one needs more."""
        model, (had_room, had_rows, had_sizes), session = self._generator
        if session is not None and room <= had_room and rows <= had_rows and all(size <= had_sizes.get(name, 0) for name, size in sizes.items()):
            return session
        sizes = {name: max(size, had_sizes.get(name, 0)) for name, size in sizes.items()}
        dims = ",".join(f"{name}={size}" for name, size in sizes.items()) or None
        rows, wanted = max(rows, had_rows), room if room <= had_room else max(room, 2 * had_room)
        try:
            session = _core.Session(model, max_tokens=wanted, rows=rows, dims=dims)
        except _core.Limit:                        # the model ends before twice what there was
            wanted = room
            session = _core.Session(model, max_tokens=room, rows=rows, dims=dims)
        self._generator = (model, (wanted, rows, sizes), session)
        return session

    def generate(self, ids: Any, max_new_tokens: int, *, temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0, seed: int = 0,
                 eos_token_id: int | Sequence[int] | None = None, on_token: Callable[[int, int], Any] | None = None, **inputs: Any) -> Any:
        """Continues token ids with a cache of Deepwell's own.

        ids: an int64 tensor [s] or [b,s], or a list of ids, or a list of such lists of any lengths. Gives the same kind, prompt included (rows that
        end early are filled up with the id that ended them). temperature 0 is greedy. on_token(row, id) may return True to end the row. Rows go through
        one step together, and row i draws by seed + i. inputs: what else the model takes, of an encoder-decoder the encoder's, by name: a tensor with one
        row for each prompt, or one for all of them; or a list with a tensor of one row for each prompt, of any lengths."""
        import torch
        given = ids.reshape(-1, ids.shape[-1]) if isinstance(ids, torch.Tensor) and ids.dim() in (1, 2) and ids.dtype == torch.int64 and ids.numel() > 0 else None
        if given is not None:       # as it lies: a prompt is long, and a list of its ids takes longer to make than a step
            here = given.cpu().contiguous()
            prompts, single, shortest, longest = list(here.unbind(0)), ids.dim() == 1, here.shape[1], here.shape[1]
        else:
            rows = ids.tolist() if isinstance(ids, torch.Tensor) else list(ids)
            single = not rows or not isinstance(rows[0], (list, tuple))
            prompts = [rows] if single else [list(r) for r in rows]
            shortest, longest = min(map(len, prompts), default=0), max(map(len, prompts), default=0)
        if shortest < 1 or max_new_tokens < 1:
            raise Invalid(f"generate: a prompt has {shortest} ids and {max_new_tokens} are wanted; both are at least 1")
        model = self._generation_model()
        own = [{name: _row(name, tensor, row, len(prompts)) for name, tensor in inputs.items()} for row in range(len(prompts))] if inputs else ()
        session = self._generation_session(longest + max_new_tokens, len(prompts), _largest(model.inputs, own) if inputs else {})
        stops = [] if eos_token_id is None else [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
        new = session.generate(prompts, max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, stop_ids=stops, seed=seed, on_token=on_token, inputs=own)
        if given is not None:
            result = _behind(given, here, _filled(new))
            return result[0] if single else result
        made = [prompt + list(tail) for prompt, tail in zip(prompts, new)]
        if isinstance(ids, torch.Tensor):
            result = _filled(made).to(ids.device)
            return result[0] if single else result
        return made[0] if single else made


def _options(precision: str | None, policy: PrecisionPolicy | str | None, registry: KernelRegistry | None, threads: int,
             sizes: dict[str, int | None], kernels: str | None = None, tuning: str | os.PathLike[str] | None = None, invariant: bool = False, comm: Any = None, shard: str | None = None) -> Any:
    from .region import Options
    words = None
    if tuning is not None:
        with open(tuning, encoding="utf-8") as file:
            words = file.read()
    precision = precision_name(precision)
    if isinstance(policy, PrecisionPolicy) and policy.default is not None:
        if precision is not None and precision != policy.default:
            raise Invalid(f"precision is '{precision}' and the policy's default '{policy.default}'; give one of them")
        precision = policy.default
    return Options(precision=precision, policy=policy if not isinstance(policy, PrecisionPolicy) or policy.rules else None, kernels=kernels, tuning=words,
                   tuning_name=None if tuning is None else os.fspath(tuning), registry=None if registry is None or len(registry) == 0 else registry._core, threads=threads, invariant=invariant,
                   comm=comm, shard=shard, sizes={k: int(v) for k, v in sizes.items() if v})


def comm_of(mesh: Any) -> Any:
    """The communicator of a DeviceMesh, of which all ranks ask for it; one that is there already as it is."""
    if mesh is None or isinstance(mesh, _core.Comm):
        return mesh
    from . import ranks
    return ranks.communicator(mesh)


def warn_cutlass(use_cutlass: bool) -> None:
    if use_cutlass:
        warnings.warn("use_cutlass: this build holds no CUTLASS kernels; Deepwell's own are chosen (explain() says which)", DeepwellWarning, stacklevel=3)


def compile(ir: IR | Any, hw: Hardware | str | None = None, *, precision: str | None = None, precision_policy: PrecisionPolicy | str | None = None,
            kernel_registry: KernelRegistry | None = None, use_cutlass: bool = False, batch_size: int | None = None, seq_len: int | None = None,
            threads: int = 0, kernels: str | None = None, tuning: str | os.PathLike[str] | None = None, device: Any = None, invariant: bool = False, mesh: Any = None,
            shard: str | None = None) -> Engine:
    """Plans a captured model and loads its weights.

    ir: what ``capture`` gave, or a module or file to capture. hw: what ``probe`` gave (None: this machine), or the name of a chip such as "b200" to
    plan for it without running. precision: fp32, bf16, fp8, mxfp8, mxfp4, nvfp4, .. (docs/precision.md); None: as exported. precision_policy: by
    layer, and a text in the core's form. batch_size, seq_len: typical sizes, for estimates and the first reservation; any size runs. None: a batch of 1, and of other axes 128, or what the example had where that is more.
    kernels: kernels that must be taken, "matmul=matmul_f32_avx2". tuning: a file that ``deepwell tune`` wrote; None: kernels are chosen by estimates. device: "cpu", "cuda:1" or a torch.device, where it runs and takes its inputs; None: where the
    module's weights are, the CPU for a file. invariant: on a GPU a text has the same bits beside any others and in any pieces, as on a CPU; explain() tells what that costs. mesh, shard: as ``optimize`` takes them: the model is cut over ranks, each of which calls this and the engine alike (docs/ranks.md). An engine of which something asked for cannot be had is an error."""
    from .placement import parse_device
    from .region import Region
    if not isinstance(ir, IR):
        ir = capture(ir)
    warn_cutlass(use_cutlass)
    if hw is not None and not isinstance(hw, (Hardware, str)):
        raise Invalid(f"hw: what probe() gives, or the name of a chip, not a {type(hw).__name__}")
    options = _options(precision, precision_policy, kernel_registry, threads, {"b": batch_size, "s": seq_len}, kernels, tuning, invariant, comm_of(mesh), shard)
    region = Region(ir.source, ir.trace.program if ir.trace is not None else None, options, graph=ir.graph, device=parse_device(device))
    if isinstance(hw, str):
        return Engine(region, ir, options.model(region.graph, region.dims, region.text, chip=hw, generate=True, plan_only=True))
    region.session          # errors of planning and loading belong here, not to the first call
    return Engine(region, ir)


def load(path: str | os.PathLike[str], *, threads: int = 0, device: Any = None, mesh: Any = None) -> Engine:
    """An engine that ``save`` wrote. Inputs are tensors in the order of ``engine.inputs``, or by name; results a tensor or a tuple of them.
    device: what it was compiled for; None: the CPU. mesh: as ``compile`` takes it; each of its ranks calls this, of a package as many as it was made for."""
    from .placement import core_device, parse_device
    from .region import Options, Region
    place = parse_device(device)
    comm = comm_of(mesh)
    known = {"threads": threads, "device": core_device(place), "comm": comm}
    model = _core.Model(os.fspath(path), **{k: v for k, v in known.items() if v})
    return Engine(Region(os.fspath(path), None, Options(threads=threads, comm=comm), model=model, device=place), None)
