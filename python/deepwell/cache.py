"""Captures on disk: what ``trace.py`` made of a model and a call, without the weights, for the next process that asks for the same.

A file is named by the digest of all that the trace depends on (``fingerprint.py``) and begins with a digest of its own contents. It is JSON, read without
making anything but tuples, numbers and sizes; the classes in the form of a result are looked up among those that the model's code names. Where a capture
cannot be kept, or one that was kept cannot be read, the model is traced, and ``Trace.origin`` says why.
"""
from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import os
import pathlib
import re
import tempfile
import time
import warnings
from collections import UserDict
from dataclasses import is_dataclass
from typing import Any, Iterable, Sequence

import sympy
import torch
from torch import nn

from . import program as _program
from .errors import DeepwellWarning
from .fingerprint import Unsure, fingerprint
from .structure import TENSOR, is_state_class

LIMIT = 1 << 30             # bytes of all captures; the ones unused for longest are removed
_MOST_CONSTANTS = 1 << 22   # bytes of the constants of one capture
_ABANDONED = 3600           # seconds after which a file that was not finished is nobody's
_HEAD = b"deepwell capture 1 "
_log = logging.getLogger("deepwell.cache")


def folder() -> pathlib.Path | None:
    """Where captures are kept: in ``$DEEPWELL_CACHE``, else in the user's cache; None: the variable is empty, none are kept."""
    chosen = os.environ.get("DEEPWELL_CACHE")
    if chosen == "":
        return None
    base = pathlib.Path(chosen) if chosen is not None else pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "deepwell"
    return base / "captures"


# ---- sizes: sympy expressions as text ----

def _functions() -> dict[str, Any]:
    from torch.utils._sympy import functions
    made = {name: getattr(sympy, name) for name in ("Integer", "Rational", "Float", "Add", "Mul", "Pow", "Mod", "Max", "Min", "floor", "ceiling")}
    return made | {name: kind for name, kind in vars(functions).items() if isinstance(kind, type) and issubclass(kind, sympy.Function)}


_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>-?\d+)|'(?P<text>[^']*)'|(?P<mark>[(),=]))")


def parse_size(text: str) -> Any:
    """The expression that ``_Sizes`` of program.py printed. Raises ValueError for any other text."""
    tokens = _tokens(text)
    made, rest = _size(tokens, 0, _functions())
    if tokens[rest][0] != "end" or not isinstance(made, sympy.Basic):
        raise ValueError(f"'{text}' is no size")
    return made


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.end() == at:
            raise ValueError(f"'{text}' is no size")
        found.append((match.lastgroup or "", match[match.lastgroup or 0]))
        at = match.end()
    return found + [("end", "")]


def _size(tokens: list[tuple[str, str]], at: int, functions: dict[str, Any]) -> tuple[Any, int]:
    kind, name = tokens[at]
    if kind in ("number", "text"):
        return int(name) if kind == "number" else name, at + 1
    if kind != "name" or tokens[at + 1] != ("mark", "("):
        raise ValueError(f"'{name}' where a size is wanted")
    args: list[Any] = []
    at += 2
    while tokens[at] != ("mark", ")"):
        if tokens[at][0] == "name" and tokens[at + 1] == ("mark", "="):      # integer=True, which all symbols are
            at += 3
        else:
            made, at = _size(tokens, at, functions)
            args.append(made)
        if tokens[at] == ("mark", ","):
            at += 1
    return _apply(name, args, functions), at + 1


_REAL = re.compile(r"-?\d+(\.\d*)?(e[+-]?\d+)?")


def _apply(name: str, args: list[Any], functions: dict[str, Any]) -> Any:
    """A function of sizes. Text reaches sympy as a name or a number alone: it evaluates others as Python."""
    if name in ("Symbol", "Float") and len(args) == 1 and isinstance(args[0], str):
        if name == "Symbol" and args[0].isidentifier():
            return sympy.Symbol(args[0], integer=True)
        if name == "Float" and _REAL.fullmatch(args[0]):
            return sympy.Float(args[0])
    elif name in ("Integer", "Rational") and len(args) == 1 + (name == "Rational") and all(isinstance(a, int) for a in args):
        return functions[name](*args)
    elif name in functions and name not in ("Integer", "Rational", "Float") and all(isinstance(a, sympy.Basic) for a in args):
        return functions[name](*args)
    raise ValueError(f"'{name}' of {len(args)} is no function of sizes")


def _write_size(value: Any) -> Any:
    if isinstance(value, int):
        return value
    text = _program._Sizes().text(value)
    try:
        read = _program._Sizes().text(parse_size(text))
    except ValueError:
        read = ""
    if read != text:
        raise Unsure(f"the size {value}")
    return text


def _read_size(value: Any) -> Any:
    return value if isinstance(value, int) else parse_size(value)


# ---- forms of results ----

_NUMBERS = (type(None), bool, int, float, str)
_TORCH = {str(v): v for v in vars(torch).values() if isinstance(v, (torch.dtype, torch.layout, torch.memory_format))}
_BUILTINS: tuple[type, ...] = (tuple, list, dict, *_NUMBERS, complex, bytes, torch.Size)


class _Forms:
    """Forms as JSON, and back. Classes are those that the walk met."""

    def __init__(self, classes: Sequence[type]) -> None:
        self._known = {f"{c.__module__}.{c.__qualname__}": c for c in (*_BUILTINS, *classes)}

    def kind(self, kind: type) -> str:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if self._known.get(name) is not kind:
            raise Unsure(f"a result has a {name}, which the model's code does not name")
        return name

    def find(self, name: str, tag: str) -> type:
        kind = self._known[name]
        fits = {"sequence": issubclass(kind, (tuple, list)), "mapping": issubclass(kind, (dict, UserDict)), "object": is_dataclass(kind), "state": is_state_class(kind)}
        if not fits[tag]:
            raise ValueError(f"{name} is no class of a {tag}")
        return kind

    def write(self, form: tuple[Any, ...]) -> Any:
        tag = form[0]
        if tag == "constant":
            return [tag, self.constant(form[3])]
        if tag in ("tensor", "length", "given"):
            return list(form)
        if tag == "sequence":
            return [tag, self.kind(form[1]), [self.write(f) for f in form[2]]]
        if not all(isinstance(key, str) for key in form[2]):
            raise Unsure("a result has keys that are no strings")
        return [tag, self.kind(form[1]), list(form[2]), [self.write(f) for f in form[3]]]

    def constant(self, value: Any) -> Any:
        if type(value) in _NUMBERS and value == value:
            return ["number", value]
        if isinstance(value, type):
            return ["class", self.kind(value)]
        if str(value) in _TORCH and _TORCH[str(value)] is value:
            return ["torch", str(value)]
        if isinstance(value, torch.device):
            return ["device", str(value)]
        raise Unsure(f"a result has a constant of type {type(value).__name__}")

    def read_constant(self, written: Any) -> Any:
        tag, value = written
        if tag == "number" and type(value) in _NUMBERS:
            return value
        return {"class": self._known, "torch": _TORCH}[tag][value] if tag != "device" else torch.device(value)

    def read(self, written: Any) -> tuple[Any, ...]:
        tag = written[0]
        if tag == "constant":
            value = self.read_constant(written[1])
            return (tag, type(value), value, value)
        if tag == "tensor":
            return TENSOR
        if tag in ("length", "given"):
            return (tag, *map(int, written[1:]))
        kind = self.find(written[1], tag)
        if tag == "sequence":
            return (tag, kind, tuple([self.read(f) for f in written[2]]))
        return (tag, kind, tuple(map(str, written[2])), tuple([self.read(f) for f in written[3]]))



# ---- tensors ----

def _live(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _part(tensor: torch.Tensor, part: str) -> torch.Tensor:
    """What a program reads of a model's tensor: all of it, or the real or imaginary numbers of a complex one."""
    return _plain(tensor) if not part else torch.view_as_real(tensor.detach().resolve_conj())[..., ("real", "imag").index(part)]


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.dtype, a.stride(), a.device) == (b.data_ptr(), b.shape, b.dtype, b.stride(), b.device)


def _write_tensors(tensors: Iterable[tuple[str, torch.Tensor]], model: nn.Module) -> list[Any]:
    """Each tensor of a program as the name of the model's, or as a constant."""
    live, written, total = _live(model), [], 0
    for name, tensor in tensors:
        base, _, part = name.rpartition(".")
        if name in live and _is_same(_plain(live[name]), tensor):
            written.append([name, "model", name, ""])
            continue
        if part in ("real", "imag") and base in live and live[base].is_complex() and _is_same(_part(live[base], part), tensor):
            written.append([name, "model", base, part])
            continue
        total += tensor.numel() * tensor.element_size()
        if tensor.device.type != "cpu" or type(tensor) is not torch.Tensor or total > _MOST_CONSTANTS:
            raise Unsure(f"the constant '{name}' of {tensor.numel()} numbers on {tensor.device}")
        numbers = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        written.append([name, "constant", str(tensor.dtype), list(tensor.shape), base64.b64encode(numbers).decode()])
    return written


def _read_tensors(written: list[Any], model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    live, made = _live(model), []
    for name, role, *rest in written:
        if role == "model":
            made.append((str(name), _part(live[rest[0]], rest[1])))
            continue
        dtype, shape, numbers = _TORCH[rest[0]], [int(n) for n in rest[1]], bytearray(base64.b64decode(rest[2], validate=True))
        flat = torch.frombuffer(numbers, dtype=torch.uint8).view(dtype) if numbers else torch.empty(0, dtype=dtype)
        made.append((str(name), flat.reshape(shape)))
    return made


# ---- one capture ----

def _encode(key: str, made: Any, model: nn.Module, forms: _Forms) -> bytes:
    program = made.program
    if _program.COLLECTIVES in program.json:
        raise Unsure("it names process groups, which mean something in this process alone")
    value, after = made.result
    outputs = [["name", o.name] if o.name is not None else ["given", o.given] if o.given is not None else ["size", _write_size(o.size)] if o.size is not None else
               ["constant", forms.constant(o.constant)] for o in program.outputs]
    facts = {"key": key, "inputs": program.inputs, "outputs": outputs, "shapes": [[_write_size(s) for s in shape] for shape in program.shapes],
             "parameters": sorted(program.parameters), "tensors": _write_tensors(program.tensors, model), "names": made.names,
             "result": [forms.write(value), [forms.write(f) for f in after]], "fixed": made.fixed, "seconds": made.seconds, "flops": made.flops,
             "lifted": list(made.lifted)}
    contents = json.dumps(facts, separators=(",", ":")).encode() + b"\n" + program.json
    return _HEAD + hashlib.sha256(contents).hexdigest().encode() + b"\n" + contents


def _decode(data: bytes, key: str, model: nn.Module, forms: _Forms) -> dict[str, Any]:
    """The fields of a Trace. Raises ValueError, KeyError, TypeError or IndexError where the file is not what ``_encode`` wrote."""
    head, _, contents = data.partition(b"\n")
    if head != _HEAD + hashlib.sha256(contents).hexdigest().encode():
        raise ValueError("its contents are not those that were written")
    line, _, text = contents.partition(b"\n")
    facts = json.loads(line)
    if facts["key"] != key:
        raise ValueError("it is of another model")
    kinds = {"name": str, "given": int, "size": _read_size, "constant": forms.read_constant}
    outputs = [_program.Output(**{tag: kinds[tag](value)}) for tag, value in facts["outputs"]]
    program = _program.Program(text, _read_tensors(facts["tensors"], model), [None if n is None else str(n) for n in facts["inputs"]], outputs,
                               [tuple([_read_size(s) for s in shape]) for shape in facts["shapes"]], frozenset(map(str, facts["parameters"])))
    value, after = facts["result"]
    return {"program": program, "names": [str(n) for n in facts["names"]], "result": (forms.read(value), tuple([forms.read(f) for f in after])),
            "fixed": [str(f) for f in facts["fixed"]], "seconds": float(facts["seconds"]), "flops": float(facts["flops"]),
            "lifted": tuple(map(str, facts["lifted"]))}


class Place:
    """Where the capture of one call of a model is kept. ``reason`` says why it is not, where ``path`` is None."""

    def __init__(self, model: nn.Module, form: Any, names: Sequence[str], leaves: Sequence[torch.Tensor], more: Any) -> None:
        """more: what a capture depends on besides the model and the call."""
        self.model = model
        self.path: pathlib.Path | None = None
        self.reason = "the cache is turned off"
        base = folder()
        if base is None:
            return
        try:
            walk = fingerprint(model, form, names, leaves, more)
        except Exception as error:      # whatever an attribute of somebody's module raises when it is read
            self.reason = str(error) if isinstance(error, Unsure) else f"{type(error).__name__}: {error}"
            _log.debug("%s: captures are not kept: %s", type(model).__name__, error)
            return
        self.key, self.forms, self.path = walk.digest(), _Forms(list(walk.classes)), base / f"{walk.digest()}.capture"

    def load(self) -> dict[str, Any] | None:
        """The fields of the Trace that is kept; None: there is none."""
        if self.path is None:
            return None
        try:
            data = self.path.read_bytes()
        except OSError:
            return None
        try:
            fields = _decode(data, self.key, self.model, self.forms)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RuntimeError, RecursionError) as error:
            warnings.warn(f"the capture in {self.path} is damaged ({error}); the model is captured anew", DeepwellWarning, stacklevel=5)
            return None
        try:
            os.utime(self.path)
        except OSError as error:        # of another user, say: it is read all the same
            _log.debug("%s: %s", self.path, error)
        return fields

    def store(self, made: Any) -> None:
        """Keeps a Trace, where it can be kept."""
        if self.path is None:
            return
        try:
            data = _encode(self.key, made, self.model, self.forms)
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(self.path, data)
            _remove_oldest(self.path.parent)
        except (Unsure, OSError) as error:
            self.path, self.reason = None, str(error)
            _log.debug("%s: the capture is not kept: %s", type(self.model).__name__, error)


def _write(path: pathlib.Path, data: bytes) -> None:
    """At once: a reader sees all of it or none."""
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _remove_oldest(base: pathlib.Path) -> None:
    """Until the rest fits in LIMIT. Other processes may be doing the same; what one of them is writing stays."""
    found, now = [], time.time()
    for entry in os.scandir(base):
        with contextlib.suppress(FileNotFoundError):
            facts = entry.stat()
            if entry.name.endswith(".capture") or entry.name.endswith(".part") and facts.st_mtime < now - _ABANDONED:
                found.append((facts.st_mtime, facts.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found)[:-1]:        # the newest stays
        if total <= LIMIT:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        total -= size
