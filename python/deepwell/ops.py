"""Single operators as ``torch.library`` ops, with fake kernels: they trace, export and compile as PyTorch's own do.

Each call is a graph of a few ops in the core's text form, planned once for its shapes and device and kept; the CPU runs it at once, a GPU in the current
stream. ``quantize`` and ``dequantize``, whose results are parts of a format, are the CPU's. Results carry no gradients.
"""
from __future__ import annotations

import functools
import json
from typing import Any, Mapping, Optional, Sequence

import torch
from torch import Tensor

from . import _core
from .errors import Invalid, Mismatch, Unsupported
from .placement import CPU, core_device, device_of
from .precision import precision_name
from .region import DTYPES, enqueue

# Planned graphs that are kept; the one not used for longest goes.
MAX_PLANS = 256

_NAMES = {dtype: name for name, dtype in DTYPES.items() if not name.startswith("e")}
# And those that mqa_logits multiplies besides.
_MULTIPLIED = {dtype: name for name, dtype in DTYPES.items() if name in ("f64", "f32", "f16", "bf16", "e4m3", "e5m2")}
LOGITS_PRECISIONS = ("mxfp4", "nvfp4", "mxfp8")
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "sigmoid", "tanh")


@functools.cache
def _operands() -> dict[str, tuple[str, str]]:
    """precision -> formats of the left and of the right operand, along the axis that is summed over (docs/precision.md)."""
    return {row["name"]: (row["activation"], row["weight"]) for row in json.loads(_core.precisions()) if row["weight"] != "f32"}


# ---- planned graphs ----

@functools.lru_cache(MAX_PLANS)
def _session(text: str, device: Optional[str]) -> Any:
    if device is None:
        return _core.Session(_core.Model(_core.Graph.text("op", text)))
    return _core.Session(_core.Model(_core.Graph.text("op", text), device=device), device_memory=True)


# Those that graphs of torch.cuda.graph run on.
_captured: list[Any] = []


def _check(name: str, tensor: Tensor, names: Mapping[torch.dtype, str] = _NAMES) -> None:
    if tensor.dtype not in names:
        raise Invalid(f"deepwell op: '{name}' is {tensor.dtype}, which has no format here")


def _run(lines: list[str], inputs: dict[str, Tensor], result: str) -> Tensor:
    """Runs the nodes in lines on these inputs; result is the value that is given back."""
    return _run_for(lines, inputs, [result])[0]


def _run_for(lines: list[str], inputs: dict[str, Tensor], results: list[str], names: Mapping[torch.dtype, str] = _NAMES) -> list[Tensor]:
    text = ["graph op"]
    for name, tensor in inputs.items():
        _check(name, tensor, names)
        text.append(f"  input {name} {names[tensor.dtype]}[{','.join(map(str, tensor.shape))}]")
    text += [f"  {line}" for line in lines] + [f"  output y{i} {result}" for i, result in enumerate(results)] + [""]
    device = device_of(inputs.items()) or CPU
    session = _session("\n".join(text), core_device(device))
    if device.type == "cpu":
        return list(session.run(tuple(t.contiguous() for t in inputs.values())))
    if torch.cuda.is_current_stream_capturing():
        _captured.append(session)
    return list(enqueue(session, inputs.values(), device))


def _check_host(what: str, *tensors: Tensor) -> None:
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise Unsupported(f"deepwell op: {what} makes parts of a format on the CPU alone, a tensor is on '{tensor.device}': move it by .cpu()")


def _round_up(count: int) -> int:
    """To a power of two: each number in a graph makes a plan of its own."""
    return 1 << (count - 1).bit_length()


def _precision(precision: Optional[str]) -> Optional[str]:
    name = precision_name(precision)
    if name in (None, "fp32"):
        return None
    if name not in _operands():
        raise Invalid(f"deepwell op: no precision '{precision}'; there are fp32, {', '.join(_operands())}")
    return name


class _Text:
    """Lines of a graph, values numbered."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, node: str) -> str:
        self.lines.append(f"%{len(self.lines) + 1} = {node}")
        return f"%{len(self.lines)}"

    def to(self, value: str, form: str) -> str:
        return self.add(f"cast {value} {{to={form}}}" if form == "bf16" else f"quantize {value} {{to={form}}}")


# ---- gemm ----

def _activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise Invalid(f"deepwell op: no activation '{name}'; there are {', '.join(ACTIVATIONS)}")
    return name


def _check_product(what: str, a: Tensor, b: Tensor, k: int, transpose_b: bool) -> None:
    if a.shape[-1] != k:
        raise Mismatch(f"{what}: k of a {list(a.shape)} is {a.shape[-1]}, k of b {list(b.shape)}{' transposed' if transpose_b else ''} is {k}")
    if a.dtype != b.dtype:
        raise Mismatch(f"{what}: a is {a.dtype}, b is {b.dtype}")


@torch.library.custom_op("deepwell::gemm", mutates_args=())
def gemm(a: Tensor, b: Tensor, bias: Optional[Tensor] = None, activation: str = "none", precision: Optional[str] = None,
         transpose_b: bool = False) -> Tensor:
    """activation(a @ b + bias): a [..,m,k], b [k,n] (transpose_b: [n,k], as Linear has it), bias [n] -> [..,m,n] in a's dtype, accumulated in fp32.

    precision: the formats of both operands, quantised along k; None: as they are."""
    k, n = (b.shape[1], b.shape[0]) if transpose_b else (b.shape[0], b.shape[1])
    _check_product("gemm", a, b, k, transpose_b)
    _activation(activation)
    name = _precision(precision)
    rows = a.reshape(-1, k)
    inputs = {"a": rows, "b": b}
    text = _Text()
    left, right, turned = "a", "b", transpose_b
    if name is not None and not transpose_b:
        right, turned = text.add("transpose b {order=[1,0]}"), True
    if name is not None:
        left, right = text.to(left, _operands()[name][0]), text.to(right, _operands()[name][1])
    post = [p for p in ("bias" if bias is not None else "", activation if activation != "none" else "") if p]
    attributes = ",".join((["bt=true"] if turned else []) + ([f'post="{",".join(post)}"'] if post else []) + [f"to={_NAMES[a.dtype]}"])
    operands = f"{left}, {right}" + (", bias" if bias is not None else "")
    if bias is not None:
        inputs["bias"] = bias
    value = text.add(f"matmul {operands} {{{attributes}}}")
    return _run(text.lines, inputs, value).reshape(*a.shape[:-1], n)


@gemm.register_fake
def _(a: Tensor, b: Tensor, bias: Optional[Tensor] = None, activation: str = "none", precision: Optional[str] = None, transpose_b: bool = False) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[0] if transpose_b else b.shape[1]))


@torch.library.custom_op("deepwell::grouped_gemm", mutates_args=())
def grouped_gemm(a: Tensor, b: Tensor, offsets: Tensor, precision: Optional[str] = None, transpose_b: bool = False, expected: Optional[int] = None) -> Tensor:
    """a [t,k], rows sorted by group; b [g,k,n] (transpose_b: [g,n,k]); offsets int32 [g], the end of each group's rows -> [t,n] in a's dtype.

    Or a [g,r,k], r rows for each group; offsets [g], how many of them, from the first on, are the group's -> [g,r,n]. expected: about how many those are, by which a kernel is chosen; None: r.
    Rows of no group are 0."""
    k, n = (b.shape[2], b.shape[1]) if transpose_b else (b.shape[1], b.shape[2])
    _check_product("grouped_gemm", a, b, k, transpose_b)
    padded = a.dim() == 3
    if padded and a.shape[0] != b.shape[0]:
        raise Mismatch(f"grouped_gemm: a {list(a.shape)} has rows for {a.shape[0]} groups, b {list(b.shape)} has {b.shape[0]} matrices")
    if expected is not None and (not padded or expected < 1):
        raise Invalid(f"grouped_gemm: expected is {expected}; it is of a [g,r,k], and 1 or more")
    name = _precision(precision)
    text = _Text()
    left, right, turned = "a", "b", transpose_b
    if name is not None and not transpose_b:
        right, turned = text.add("transpose b {order=[0,2,1]}"), True
    if name is not None:
        left, right = text.to(left, _operands()[name][0]), text.to(right, _operands()[name][1])
    attributes = (["bt=true"] if turned else []) + ([f"padded={_round_up(max(min(expected or a.shape[1], a.shape[1]), 1))}"] if padded else []) + [f"to={_NAMES[a.dtype]}"]
    value = text.add(f"grouped_matmul {left}, {right}, offsets {{{','.join(attributes)}}}")
    return _run(text.lines, {"a": a.flatten(0, 1) if padded else a, "b": b, "offsets": offsets.to(torch.int32)}, value).reshape(*a.shape[:-1], n)


@grouped_gemm.register_fake
def _(a: Tensor, b: Tensor, offsets: Tensor, precision: Optional[str] = None, transpose_b: bool = False, expected: Optional[int] = None) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[1] if transpose_b else b.shape[2]))


# ---- attention ----

def _attention(inputs: dict[str, Optional[Tensor]], scale: Optional[float], causal: bool, offset: Optional[int], window: int, softcap: float, lse: bool) -> list[Tensor]:
    """The op on its operands by name, mask being bool or additive; lse: with its second result."""
    mask, width = inputs.get("mask"), inputs["q"].shape[-1]  # type: ignore[union-attr]
    additive = mask is not None and mask.dtype != torch.bool
    names = ["q", "k", "v", "" if additive else "mask", "mask" if additive else "", "sink", "row", "position"]
    present = [name if inputs.get(name) is not None else "-" for name in names]
    while present[-1] == "-":
        present.pop()
    attributes = [f"scale={scale if scale is not None else width ** -0.5!r}"] + (["causal=true"] if causal else [])
    attributes += ([f"offset={offset}"] if offset is not None else []) + ([f"window={window}"] if window else []) + ([f"softcap={softcap!r}"] if softcap else [])
    results = ["%1", "%2"] if lse else ["%1"]
    line = f"{', '.join(results)} = attention {', '.join(present)} {{{','.join(attributes + ['lse=true'] * lse)}}}"
    return _run_for([line], {name: tensor for name, tensor in inputs.items() if tensor is not None}, results)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], causal: bool, scale: Optional[float], window: int, softcap: float, sink: Optional[Tensor],
            lse: bool) -> list[Tensor]:
    offset = key.shape[-2] - query.shape[-2] if causal else None
    return _attention({"q": query, "k": key, "v": value, "mask": mask, "sink": sink}, scale, causal, offset, window, softcap, lse)


@torch.library.custom_op("deepwell::attention", mutates_args=())
def attention(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor] = None, causal: bool = False, scale: Optional[float] = None,
              window: int = 0, softcap: float = 0.0, sink: Optional[Tensor] = None) -> Tensor:
    """softmax(q k^T * scale) v: query [b,h,s,d], key [b,g,t,d], value [b,g,t,e], g dividing h -> [b,h,s,e]. Scores and sums are fp32.

    mask: bool (True: attend) or additive, broadcastable to [b,h,s,t]. causal: query i sees keys up to i + t - s. window: of the last keys alone, 0:
    all. softcap: scores become softcap * tanh(scores / softcap), 0: they stay. scale None: 1 / sqrt(d). sink [h]: one more score of each row, without a value."""
    return _attend(query, key, value, mask, causal, scale, window, softcap, sink, False)[0]


@attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor] = None, causal: bool = False, scale: Optional[float] = None, window: int = 0,
      softcap: float = 0.0, sink: Optional[Tensor] = None) -> Tensor:
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


@torch.library.custom_op("deepwell::attention_lse", mutates_args=())
def attention_lse(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor] = None, causal: bool = False, scale: Optional[float] = None,
                  window: int = 0, softcap: float = 0.0, sink: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
    """attention, and float32 [b,h,s]: the logarithm of the sum of e^score of each row's keys and sink; -inf where a row sees none."""
    made, lse = _attend(query, key, value, mask, causal, scale, window, softcap, sink, True)
    return made, lse


@attention_lse.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor] = None, causal: bool = False, scale: Optional[float] = None, window: int = 0,
      softcap: float = 0.0, sink: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
    return query.new_empty((*query.shape[:-1], value.shape[-1])), query.new_empty(query.shape[:-1], dtype=torch.float32)


def _check_starts(name: str, starts: Tensor, other: Tensor) -> None:
    if starts.dim() != 1 or starts.dtype not in (torch.int32, torch.int64) or starts.shape != other.shape or starts.shape[0] < 1:
        raise Mismatch(f"attention_packed: {name} is {starts.dtype} {list(starts.shape)}; starts are i32 or i64 [n+1] of n texts, of queries as of keys")


def _packed(query: Tensor, key: Tensor, value: Tensor, query_starts: Tensor, key_starts: Optional[Tensor], causal: bool, scale: Optional[float], window: int, softcap: float,
            sink: Optional[Tensor], longest: Optional[int], lse: bool) -> list[Tensor]:
    """Keys and values of each text in a row of their own, padded, and queries that say which row is theirs and where they stand."""
    of_keys = query_starts if key_starts is None else key_starts
    _check_starts("query_starts", query_starts, of_keys)
    if window and not causal:
        raise Unsupported("attention_packed: a window goes with causal=True")
    lengths = of_keys.diff()
    if len(lengths) == 0:
        return [query.new_zeros((*query.shape[:-1], value.shape[-1])), query.new_full(query.shape[:-1], float("-inf"), dtype=torch.float32)][:1 + lse]
    room = max(longest if longest is not None else int(lengths.max()), 1)
    tokens = torch.arange(query.shape[0], device=query.device)
    row = torch.bucketize(tokens, query_starts[1:], right=True)
    text = row.clamp(max=len(lengths) - 1)
    position = lengths[text] - query_starts[1:][text] + tokens if causal else lengths[text] - 1
    slots = (of_keys[:-1, None] + torch.arange(room, device=key.device)).clamp(max=max(key.shape[0] - 1, 0))
    k, v = ((x[slots] if x.shape[0] > 0 else x.new_zeros((len(lengths), room, *x.shape[1:]))).transpose(1, 2) for x in (key, value))
    inputs = {"q": query.transpose(0, 1)[None], "k": k, "v": v, "sink": sink, "row": torch.where(row < len(lengths), row, -1), "position": position.to(torch.int64)}
    return [made[0].transpose(0, 1).contiguous() for made in _attention(inputs, scale, True, None, window, softcap, lse)]


@torch.library.custom_op("deepwell::attention_packed", mutates_args=())
def attention_packed(query: Tensor, key: Tensor, value: Tensor, query_starts: Tensor, key_starts: Optional[Tensor] = None, causal: bool = False, scale: Optional[float] = None,
                     window: int = 0, softcap: float = 0.0, sink: Optional[Tensor] = None, longest: Optional[int] = None) -> Tensor:
    """Attention of texts that lie one behind another: query [s,h,d], key [t,g,d], value [t,g,e] -> [s,h,e]. Text i has queries query_starts[i] up to
    query_starts[i + 1], and keys by key_starts (None: by query_starts): n + 1 ascending integers, the first 0. A query sees keys of its text alone.

    causal: the last query of a text sees its last key. Tokens behind the last text give 0. longest: no text has more keys; None: read from the starts, for which a GPU is waited
    for. The rest as in attention."""
    return _packed(query, key, value, query_starts, key_starts, causal, scale, window, softcap, sink, longest, False)[0]


@attention_packed.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, query_starts: Tensor, key_starts: Optional[Tensor] = None, causal: bool = False, scale: Optional[float] = None,
      window: int = 0, softcap: float = 0.0, sink: Optional[Tensor] = None, longest: Optional[int] = None) -> Tensor:
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


@torch.library.custom_op("deepwell::attention_packed_lse", mutates_args=())
def attention_packed_lse(query: Tensor, key: Tensor, value: Tensor, query_starts: Tensor, key_starts: Optional[Tensor] = None, causal: bool = False,
                         scale: Optional[float] = None, window: int = 0, softcap: float = 0.0, sink: Optional[Tensor] = None,
                         longest: Optional[int] = None) -> tuple[Tensor, Tensor]:
    """attention_packed, and float32 [s,h]: the logarithm of the sum of e^score of each row, as attention_lse gives it."""
    made, lse = _packed(query, key, value, query_starts, key_starts, causal, scale, window, softcap, sink, longest, True)
    return made, lse


@attention_packed_lse.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, query_starts: Tensor, key_starts: Optional[Tensor] = None, causal: bool = False, scale: Optional[float] = None,
      window: int = 0, softcap: float = 0.0, sink: Optional[Tensor] = None, longest: Optional[int] = None) -> tuple[Tensor, Tensor]:
    return query.new_empty((*query.shape[:-1], value.shape[-1])), query.new_empty(query.shape[:-1], dtype=torch.float32)


# ---- the logits of sparse attention ----

def _logits_shape(query: Tensor, key: Tensor, table: Optional[Tensor]) -> list[int]:
    """Of the result; MISMATCH where the ranks fit no call."""
    ranks = (4, 3, 2) if table is not None else (query.dim(), query.dim() - 1, 2)
    if query.dim() not in (3, 4) or (query.dim(), key.dim(), table.dim() if table is not None else 2) != ranks:
        raise Mismatch(f"mqa_logits: query is {list(query.shape)}, key {list(key.shape)}" + (f", table {list(table.shape)}" if table is not None else "") +
                       "; it takes [m,h,d] and [n,d], [b,m,h,d] and [b,n,d], or with table [b,r] [b,m,h,d] and pages [p,t,d]")
    return [*query.shape[:-2], key.shape[-2] * (table.shape[1] if table is not None else 1)]


@torch.library.custom_op("deepwell::mqa_logits", mutates_args=())
def mqa_logits(query: Tensor, key: Tensor, weights: Tensor, key_scale: Optional[Tensor] = None, start: Optional[Tensor] = None, end: Optional[Tensor] = None,
               table: Optional[Tensor] = None, scale: float = 1.0, dtype: torch.dtype = torch.float32, precision: Optional[str] = None) -> Tensor:
    """The sum over heads of weights * relu(query . key * key_scale * scale), by which sparse attention picks keys: query [m,h,d], key [n,d], weights [m,h], key_scale [n] -> [m,n] in
    dtype, accumulated in fp32. All may have a batch in front. query and key: float8, bfloat16, float16, float32.

    start, end: integers [m]; a key below start or not below end has -inf. table: integers [b,r], then key is pages [p,t,d], key_scale [p,t], and the key of position i of batch b
    lies in page table[b, i / t], slot i mod t; a key of page -1 has -inf. n is r*t then.

    precision: "mxfp4", "nvfp4" or "mxfp8": query and key are quantised first, in blocks of their rows, and multiplied so."""
    shape = _logits_shape(query, key, table)
    if precision not in (None, *LOGITS_PRECISIONS):
        raise Invalid(f"mqa_logits: no precision '{precision}'; there are {', '.join(LOGITS_PRECISIONS)}")
    given = {"q": query, "k": key, "weights": weights, "factor": key_scale, "start": start, "end": end, "table": table}
    if query.dim() == 3:
        given = {name: None if x is None else x.unsqueeze(0) for name, x in given.items()}
    present = [name if x is not None else "-" for name, x in given.items()]
    while present[-1] == "-":
        present.pop()
    if dtype not in _NAMES:
        raise Invalid(f"deepwell op: dtype is {dtype}, which has no format here")
    names = _NAMES | _MULTIPLIED
    text = _Text()
    if precision is not None:
        present[:2] = [text.to(name, precision) for name in present[:2]]
    made = text.add(f"mqa_logits {', '.join(present)} {{to={_NAMES[dtype]},scale={scale!r}}}")
    return _run_for(text.lines, {name: x for name, x in given.items() if x is not None}, [made], names)[0].reshape(shape)


@mqa_logits.register_fake
def _(query: Tensor, key: Tensor, weights: Tensor, key_scale: Optional[Tensor] = None, start: Optional[Tensor] = None, end: Optional[Tensor] = None,
      table: Optional[Tensor] = None, scale: float = 1.0, dtype: torch.dtype = torch.float32, precision: Optional[str] = None) -> Tensor:
    return query.new_empty(_logits_shape(query, key, table), dtype=dtype)


# ---- norms ----

@torch.library.custom_op("deepwell::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight along the last axis: x [..,d], weight [d] -> [..,d]."""
    text = _Text()
    made = text.add(f"rms_norm x{', weight' if weight is not None else ''} {{eps={eps!r}}}")
    return _run(text.lines, {"x": x} | ({"weight": weight} if weight is not None else {}), made)


@rms_norm.register_fake
def _(x: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-6) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("deepwell::layer_norm", mutates_args=())
def layer_norm(x: Tensor, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias along the last axis: x [..,d], weight and bias [d] -> [..,d]."""
    if bias is not None and weight is None:
        raise Invalid("layer_norm: a bias without a weight")
    given = {"x": x} | {k: v for k, v in (("weight", weight), ("bias", bias)) if v is not None}
    text = _Text()
    made = text.add(f"layer_norm {', '.join(given)} {{eps={eps!r}}}")
    return _run(text.lines, given, made)


@layer_norm.register_fake
def _(x: Tensor, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None, eps: float = 1e-5) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# ---- block formats ----

@functools.cache
def _blocks() -> dict[str, tuple[torch.dtype, int, torch.dtype, int, int, int]]:
    """format -> (dtype of elements, uint8 for packed ones; bits of one; dtype of scales; rows and columns of a block; second level), as in docs/formats.md."""
    return {name: (DTYPES.get(element, torch.uint8), bits, DTYPES[scale], rows, cols, second)
            for name, (bits, element, scale, rows, cols, second) in _core.formats().items() if element}


def _block_shapes(shape: Sequence[int], format: str) -> tuple[list[int], list[int], list[int]]:
    """Shapes of elements, scales and second level of a tensor in a block format."""
    if format not in _blocks():
        raise Invalid(f"deepwell op: no block format '{format}'; there are {', '.join(_blocks())}")
    _, bits, _, rows, cols, second = _blocks()[format]
    if len(shape) < 1 or (rows > 1 and len(shape) < 2):
        raise Mismatch(f"quantize: {format} needs {'two axes' if rows > 1 else 'an axis'}, the tensor has {len(shape)}")
    *outer, k = shape
    scales = [*outer, 1 if cols == 0 else (k + cols - 1) // cols] if rows > 0 else []
    if rows > 1:
        scales[-2] = (scales[-2] + rows - 1) // rows
    return [*outer, (k * bits + 7) // 8], scales, [] if second == 1 else [*outer] if second == 2 else [0]


@torch.library.custom_op("deepwell::quantize", mutates_args=())
def quantize(x: Tensor, format: str) -> tuple[Tensor, Tensor, Tensor]:
    """x [..,k] in a block format, blocks along the last axis: (elements, scales, second level).

    elements: float8 [..,k], or packed into bytes, FP4 two to a byte [..,k/2], FP6 [..,k*6/8]. scales: float8_e8m0fnu, float8_e4m3fn or float32, one a
    block [..,ceil(k/block)], of fp8_tensor []. second level: float32, of nvfp4 [], of nvfp4_row one a row, of others empty [0]."""
    _check("x", x)
    _check_host("quantize", x)
    data, scales, second = _block_shapes(x.shape, format)
    (_, _, elements, scale, level), = _core.op("quantize", f"to={format}", [x.contiguous()])
    return elements.reshape(data), scale.reshape(scales), torch.empty(0) if level is None else level.reshape(second)


@quantize.register_fake
def _(x: Tensor, format: str) -> tuple[Tensor, Tensor, Tensor]:
    data, scales, second = _block_shapes(x.shape, format)
    elements, _, scale = _blocks()[format][:3]
    return x.new_empty(data, dtype=elements), x.new_empty(scales, dtype=scale), x.new_empty(second, dtype=torch.float32)


@torch.library.custom_op("deepwell::dequantize", mutates_args=())
def dequantize(elements: Tensor, scales: Tensor, second: Tensor, format: str, k: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What ``quantize`` gave, as numbers: [..,k] in dtype (float32 or bfloat16). k: the packed last axis does not say it for certain."""
    shape = [*elements.shape[:-1], k]
    _check_host("dequantize", elements, scales, second)
    for name, given, wanted in zip(("elements", "scales", "second"), (elements, scales, second), _block_shapes(shape, format)):
        if list(given.shape) != wanted:
            raise Mismatch(f"dequantize: {name} is {list(given.shape)}, of {format} {shape} it is {wanted}")
    if elements.dtype != _blocks()[format][0] or scales.dtype != _blocks()[format][2]:
        raise Mismatch(f"dequantize: elements are {elements.dtype}, scales {scales.dtype}; of {format} they are {_blocks()[format][0]} and {_blocks()[format][2]}")
    block = (format, shape, elements.contiguous(), scales.contiguous(), second.contiguous() if second.numel() else None)
    return _core.op("dequantize", f"to={_NAMES[dtype]}", [block])[0]


@dequantize.register_fake
def _(elements: Tensor, scales: Tensor, second: Tensor, format: str, k: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return elements.new_empty((*elements.shape[:-1], k), dtype=dtype)


@torch.library.custom_op("deepwell::fake_quantize", mutates_args=())
def fake_quantize(x: Tensor, format: str) -> Tensor:
    """x rounded to a format and back, in x's dtype: what a product of that precision sees. Blocks run along the last axis: x [..,k] -> [..,k]."""
    text = _Text()
    quantised = text.add(f"quantize x {{to={format}}}")
    return _run(text.lines + [f"%2 = dequantize {quantised} {{to={_NAMES[x.dtype]}}}"], {"x": x}, "%2")


@fake_quantize.register_fake
def _(x: Tensor, format: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)
