"""The C core as Python sees it. Tensors are anything with data_ptr(), shape, stride(), dtype and is_cpu (torch's), or with __dlpack__."""

import os
from typing import Any, Callable, Protocol, Sequence

class Error(Exception):
    """What Deepwell refused or could not do: what, where, the values, and what to do."""

    status: str

class Invalid(Error): ...
class Mismatch(Error): ...
class Unsupported(Error): ...
class Corrupt(Error): ...
class Syntax(Error): ...
class NotFound(Error): ...
class Io(Error): ...
class NoMemory(Error): ...
class Limit(Error): ...
class Lost(Error): ...
class Cancelled(Error): ...
class Internal(Error): ...

class DeepwellWarning(UserWarning):
    """What a user should know and may well accept; never an error in disguise."""

Tensors = Sequence[tuple[str, Any]] | dict[str, Any]
Make = Callable[[tuple[int, ...], str], Any]

def version() -> str: ...
def probe() -> str:
    """What this machine has, as JSON."""

def report_table(facts: str, all: bool = False, lines: int = 0) -> str:
    """What Model.report gave, as tables: equal steps are one line, or all=True: each step; lines: so many of each run, those that lose most."""

def operators() -> str:
    """Every operator that capture reads, as JSON."""

def precisions() -> str:
    """Every precision that a policy may give, as JSON: name, weight, activation, meaning."""

def formats() -> dict[str, tuple[int, str, str, int, int, int]]:
    """(bits of an element, element, scale, rows, cols, second) by name: format of a block's elements and of its scale, both "" of an element format; size of
    a block, cols 0 the whole last axis, rows 0 the whole tensor; second level: 0 none, 1 one, 2 one a row."""

Block = tuple[str, Sequence[int], Any, Any, Any]

def op(
    name: str, attributes: str, inputs: Sequence[Any | Block | None], results: int = 1, make: Make | None = None, threads: int = 0
) -> tuple[Any | Block, ...]:
    """One op at once (docs/ops.md), its attributes as in a graph's text: "bt=true,to=mxfp8". Operands are contiguous tensors, None where absent, and
    in a block format (format, shape, data, scales, second): data the elements, those under 8 bits packed row by row as bytes; scales
    [.., blocks of rows, blocks of columns]; second of NVFP4, else None. Results come in the same forms, from make or torch.empty. The kernel is
    chosen at each call, as for a model; work that is done often belongs into a Graph."""

def main(arguments: list[str], comm: Comm | None = None) -> int:
    """The command line without the program's name; gives its exit code. comm: this process is a rank of a command that all ranks run, and the first writes its results."""

class Operand:
    """An operand or a result of a kernel, where it lies, while the kernel's call lasts: torch.from_dlpack(operand) is a tensor over it, results writable. What must
    outlive the call is copied: a tensor that is kept keeps the session's memory from growing and its model's weights from being updated."""

    shape: tuple[int, ...]
    format: str
    """ "f32", "mxfp8", .. """

    @property
    def data(self) -> Operand:
        """The elements; packed ones (under 8 bits) as bytes, row by row. FP8 elements and their scales go through DLPack as bytes: .view(torch.float8_e4m3fn)."""

    @property
    def scales(self) -> Operand | None:
        """Of a block format: one scale per block, [.., blocks of rows, blocks of columns]; tile128x4 as it lies, flat."""

    @property
    def second(self) -> Operand | None:
        """Of NVFP4: the second-level scale, or one per row."""

    scale_layout: str | None
    """Of a block format: "plain" or "tile128x4"."""

    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Registry:
    """Kernels of the caller's, for models that are made with it."""

    def __init__(self) -> None: ...
    def add(
        self,
        name: str,
        *,
        op: str | None = "matmul",
        precision: str | None = None,
        min_size: int = 0,
        can_post: bool = False,
        run: Callable[..., None] | int,
    ) -> None:
        """A kernel that is taken wherever it accepts, before Deepwell's own. precision: the format of its operands; None: any. min_size: least number of multiply-adds (of
        other ops, of elements) known when the model is made. run: the address of a C function as in deepwell/device.h, or a callable
        run(*operands, outputs, op, post, attributes, threads): operands are Operands or None, outputs a tuple of Operands that it fills, post the names of the epilogue
        ("" unless can_post), attributes a dict ({"bt": True}; absent ones have their defaults), threads how many it may use. It returns None, or its result, of several a tuple; what it raises
        is what the run raises. It is called in the thread that runs, with the GIL."""

class Carrier(Protocol):
    """What moves bytes between ranks. axis: those along this axis of the mesh take part, -1: all, in order of ranks. The memory is there until the call returns, and ``part`` and ``parts`` are only read."""

    def all_gather(self, axis: int, part: memoryview, parts: memoryview) -> None: ...
    def all_to_all(self, axis: int, parts: memoryview, received: memoryview) -> None: ...

class Comm:
    """This process's membership among ranks. Made by all of them at once; used by one thread at a time, with models that all make and run alike."""

    def __init__(self, rank: int, world: int, engine: Carrier, *, mesh: str | None = None) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def mesh(self) -> str: ...

class Graph:
    """What a model is made of. Made by its class methods, which raise what is wrong with it; may be compiled any number of times."""

    @classmethod
    def program(cls, source: str, json: str | bytes, tensors: Tensors = []) -> Graph:
        """The exported program's JSON, as a .pt2 holds it at models/<name>.json, over tensors in memory: parameters, buffers and constants under the
        names that the signature gives them, any strides. They are borrowed, not copied: the graph, and every model of it, keeps references. A complex
        tensor is given as two, name.real and name.imag."""

    @classmethod
    def text(cls, source: str, text: str | bytes, tensors: Tensors = []) -> Graph:
        """A graph in its text form (docs/text.md); tensors give params and states their data."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Graph:
        """A .pt2 archive, or a graph in its text form."""

    def print(self) -> str: ...
    @property
    def inputs(self) -> list[tuple[str, str]]:
        """[(name, "f32[b,s,64]"), ..]"""

    @property
    def outputs(self) -> list[tuple[str, str]]: ...

class Model:
    """A compiled graph: immutable, shared by its sessions, each of which may run in a thread of its own."""

    def __init__(
        self,
        source: Graph | str | os.PathLike[str],
        *,
        precision: str | None = None,
        policy: str | None = None,
        chip: str | None = None,
        device: str | None = None,
        dims: str | None = None,
        kernels: str | None = None,
        tuning: str | None = None,
        tuning_name: str | None = None,
        registry: Registry | None = None,
        generate: bool = False,
        plan_only: bool = False,
        threads: int = 0,
        invariant: bool = False,
        comm: Comm | None = None,
        mesh: str | None = None,
        shard: str | None = None,
    ) -> None:
        """source: a Graph, or the path of a .pt2, a graph's text or a compiled .dw. policy is the text of one (docs/precision.md). dims are typical
        sizes, "b=1,s=128". kernels must be taken, "matmul=matmul_f32_avx2". tuning is a text that tune gave, tuning_name what messages call it. plan_only: for explaining, chip may be another than this machine's.
        invariant: on a GPU a row's bits depend on that row alone, as on a CPU. comm: the model is cut over its ranks, which all make it alike; mesh: of a plan alone the ranks that it is for, "tp=4"; shard: the text
        of a policy of splits (docs/ranks.md)."""

    @property
    def source(self) -> Graph: ...
    @property
    def inputs(self) -> list[tuple[str, str]]: ...
    @property
    def outputs(self) -> list[tuple[str, str]]: ...
    @property
    def generate_reason(self) -> str | None:
        """Why it cannot generate with a cache; None when it can."""

    @property
    def weight_bytes(self) -> int: ...
    def print(self, what: str = "summary", json: bool = False) -> str:
        """summary, captured, fused, graph, step, plan, explain or memory; json is for summary and explain."""

    def check(self, inputs: Tensors = (), json: bool = False) -> str:
        """The source in fp32 beside the model's precision, on these inputs or on random ones: errors per layer and at the outputs."""

    def bench(self, json: bool = False, prefill: int = 0, tokens: int = 0, repeat: int = 0) -> str:
        """The source, compiled and timed: a run at the sizes of dims, prefill and decode where it generates."""

    def report(
        self, inputs: Tensors = (), *, dims: str | None = None, prefill: int = 0, keys: int = 0, texts: int = 0, repeat: int = 0, whole: bool = True
    ) -> str:
        """Each step of runs of the model beside its bound, as JSON (docs/report.md): a whole run on these inputs, or on random ones of the sizes of dims; of a model made with generate=True a
        prefill of texts with so many tokens, and a cached step behind keys. 0: usual sizes; prefill and keys -1: not that one."""

    def update(self, tensors: Sequence[str | tuple[str, Any]] | dict[str, Any]) -> None:
        """These weights have new values where they lie (by name), or lie elsewhere ((name, tensor)): what was computed from them is computed again, for the runs that begin after it. Mismatch for a
        weight of another shape, or whose values decided how the model was compiled: make another Model. Invalid while a session of it runs. State of
        sessions is what it was until reset(). check and bench compile the source as it was given."""

    def add_generation(self) -> None:
        """What generate=True would have added when the model was made: the cached step, and of its weights what runs do not have there already. Sessions that are there go on."""

    def save(self, path: str | os.PathLike[str]) -> None: ...
    def note(self, name: str) -> str | None:
        """A fact that the file states, such as "tokenizer"."""

class Session:
    """A model at work: its state, its workspace and its position. One thread at a time is inside: a second one waits for the first."""

    def __init__(self, model: Model, *, dims: str | None = None, max_tokens: int = 0, rows: int = 0, chunk: int = 0, device_memory: bool = False) -> None:
        """dims: the largest sizes of runs, "b=4,s=512". Generation: max_tokens is the room of each text, prompt included; rows, how many texts are at work at a time
        (0: 1); chunk, the most new tokens of a run, so that prompts are read piece by piece (0: 512; on a GPU up to 8192). device_memory, of a model on a GPU: inputs and outputs of
        run are tensors of that GPU."""

    def run(self, inputs: tuple[Any, ...], make: Make | None = None, stream: int = 0) -> tuple[Any, ...]:
        """Tensors in the order of model.inputs, contiguous, to tensors in the order of model.outputs. make(shape, format) gives a new
        contiguous tensor to write to; None: torch.empty. What is reserved grows when the inputs need more (see growths). The GIL is released meanwhile, and Ctrl-C ends it with KeyboardInterrupt.
        On device memory tensors lie at multiples of 16 bytes, and the run goes to the CUDA stream of that address and is not waited for: what its kernels meet is raised by a
        later call. Into a stream that is being captured it goes as a child graph, for which the session and its model stay alive and unchanged."""

    def synchronize(self) -> None:
        """Waits for all runs on streams, and raises what their kernels have met."""

    def generate(
        self,
        ids: Sequence[int] | list[Sequence[int]],
        tokens: int,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 0.0,
        seed: int = 0,
        stop_ids: Sequence[int] = (),
        on_token: Callable[[int, int], Any] | None = None,
        inputs: Tensors | list[Tensors] = (),
    ) -> list[int] | list[list[int]]:
        """The ids that continue a prompt, or a list of them for a list of prompts of any lengths, of which as many are at work at a time as the session has rows.
        The model was made with generate=True, the session with max_tokens. Prompt i draws from seed + i. on_token(row, id) is called with each new id; its result ends that prompt's generation when it is true. inputs: those
        besides the prompt, an encoder's, one row each, for all prompts; or a list of such lists or dicts, one for each prompt, of any sizes up to those
        of the session's dims."""

    @property
    def times(self) -> dict[str, Any]:
        """Of the last generation: prefill_s, decode_s, prompt_tokens, new_tokens, cached."""

    def reset(self) -> None:
        """State as the export had it, position 0."""

    @property
    def model(self) -> Model: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def growths(self) -> int:
        """How often a run needed more room than had been reserved, and got it."""


class Service:
    """Requests in, events out: what deepwell.serve.Service is made of. Runs in a thread of its own between start and stop, without the GIL."""

    def __init__(self, model: Model, *, rows: int = 0, run_tokens: int = 0, context: int = 0, page_tokens: int = 0, cache_bytes: int = 0, queue: int = 0, dims: str | None = None,
                 share: bool = True, lookahead: bool = True, times_device: bool = False) -> None:
        """As dw_service_options (include/deepwell/serve.h); 0: the usual. The model was made with generate=True."""

    def start(self) -> None: ...
    def stop(self, drain_s: float = 0.0) -> None: ...
    @property
    def leads(self) -> bool:
        """Does this rank take requests?"""

    def follow(self) -> None:
        """On a rank that does not lead (docs/ranks.md): returns when the one that does has stopped."""

    def submit(self, ids: Sequence[int], tokens: int, *, temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0, min_p: float = 0.0, repetition: float = 0.0, presence: float = 0.0,
               frequency: float = 0.0, seed: int = 0, stop_ids: Sequence[int] = (), bias: dict[int, float] = ..., logprobs: bool = False, top_logprobs: int = 0, priority: int = 0,
               deadline_s: float = 0.0, salt: int = 0, inputs: Tensors = (), mask: Callable[[int | None, memoryview], object] | None = None) -> int:
        """The request's number. As dw_request says; of mask, too, which is called in the service's thread with the GIL and calls no method of the service."""

    def cancel(self, request: int) -> None: ...
    def poll(self) -> list[tuple[int, int | None, int, str | None, float | None, list[tuple[int, float]], int, str | None]]:
        """(request, id, index, end, logprob, top, cached, message) of each event that there is, at most 1024."""

    def fileno(self) -> int:
        """Readable while there are events."""

    def facts(self) -> str:
        """Counters, as JSON."""
