"""A digest of all that tracing a model can depend on: the modules, their attributes, the code that a call can reach, tensors, torch's settings.

Code is read where it lives, in the functions that would run, so a patched method counts and a comment does not. From each function the walk goes on to what
its names can mean: globals, attributes of modules, and attributes of every class met so far. torch, the standard library and a few packages of
compiled code stand for themselves by version; torch's public functions are listed, so that one put in another's place is seen. What cannot be read raises ``Unsure``: such a model has no digest.
Stores nothing: ``cache.py`` does.
"""
from __future__ import annotations

import contextlib
import contextvars
import ctypes
import dataclasses
import dis
import enum
import functools
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import pathlib
import platform
import re
import sys
import sysconfig
import threading
import types
import typing
from collections import UserDict, deque
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from . import _core

# Packages whose code is taken as read, by their version, as the standard library's is.
_COMPILED = ("numpy", "sympy", "scipy", "sklearn", "PIL", "tokenizers", "safetensors", "triton")
_VERSIONED = frozenset(("torch", "functorch", "torchgen", "builtins", *_COMPILED)) | frozenset(getattr(sys, "stdlib_module_names", ()))
_OUTSIDE = ("random", "time", "datetime", "uuid", "secrets", "numpy.random")      # modules whose functions return something else each time
_ENVIRONMENT = ("TORCH", "PYTORCH", "TRANSFORMERS_", "HF_", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE")

# Attributes of a class that no call of a finished module reads, and those that only making an instance does.
_UNREAD = frozenset(("__doc__", "__module__", "__dict__", "__weakref__", "__annotations__", "__dataclass_fields__", "__dataclass_params__", "__slots__",
                     "__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__", "__repr__", "__str__", "__dir__", "__del__", "__reduce__",
                     "__reduce_ex__", "__getstate__", "__setstate__", "__init_subclass__", "__class_getitem__", "__subclasshook__", "__copy__",
                     "__deepcopy__", "__match_args__", "__firstlineno__", "__static_attributes__", "__annotate__", "__annotate_func__",
                     "__annotations_cache__", "__classcell__", "__signature__", "__type_params__"))
_MAKING = frozenset(("__init__", "__new__", "__post_init__"))
# Those that Python reads without their names in the code.
_IMPLIED = frozenset(name for kind in (object, int, float, dict, list, set, str, type, types.GeneratorType) for name in dir(kind) if name.startswith("__")) | frozenset((
    "__bool__", "__call__", "__getattr__", "__delattr__", "__enter__", "__exit__", "__get__", "__set__", "__delete__", "__missing__", "__length_hint__",
    "__matmul__", "__rmatmul__", "__imatmul__", "__itruediv__", "__ifloordiv__", "__ipow__", "__complex__", "__array__", "__bytes__", "__fspath__",
    "__torch_function__", "__torch_dispatch__", "__instancecheck__", "__subclasscheck__"))

# Attributes of a module that the walk reads in its own way, or that a forward without gradients does not read.
_OF_TREE = frozenset(("_parameters", "_buffers", "_modules", "_is_full_backward_hook", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
                      "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_non_persistent_buffers_set"))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")

_SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
_PRINTED = (torch.dtype, torch.device, torch.layout, torch.memory_format, range, slice, pathlib.PurePath, typing.TypeVar, types.GenericAlias,
            type(typing.Optional[int]), type(typing.List[int]), type(typing.ClassVar), type(typing.Callable), getattr(types, "UnionType", range))
_MUTE = (logging.Logger, logging.Handler, logging.Formatter, type(threading.Lock()), type(threading.RLock()), type(dataclasses.MISSING))       # they log and lock, and change no value
# Attributes of objects and functions that differ between processes and that no forward reads: hashes and addresses.
_RANDOM = frozenset(("__doc__", "__signature__", "_torchdynamo_wrapper_id", "_original_object_hash"))
_MUTE_NAMES = {("torch._dynamo.eval_frame", "DisableContext")}
_PLAIN = (UserDict, types.SimpleNamespace, torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode)     # their attributes are all of them
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
          types.MethodWrapperType)
_WRAPPERS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset"), staticmethod: ("__func__",), classmethod: ("__func__",), functools.cached_property: ("func",),
    functools.partial: ("func", "args", "keywords"), functools.partialmethod: ("func", "args", "keywords"), types.MethodType: ("__func__", "__self__"),
    dataclasses.Field: ("name", "type", "default", "default_factory", "metadata"), re.Pattern: ("pattern", "flags"), functools._lru_cache_wrapper: ("__wrapped__",),
    contextlib._GeneratorContextManager: ("func", "args", "kwds"),
}
_MOST_CONSTANT = 1 << 20        # bytes of a tensor among attributes
_MOST_BUFFERS = 1 << 28         # bytes of the buffers together


class Unsure(Exception):
    """Something that a trace may depend on cannot be read. The text says what, and where it was found."""


def _sha(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_versioned(module: str) -> bool:
    package = module.partition(".")[0]
    return package == "deepwell" or package in _VERSIONED or _version(package) is not None      # its own sources are among the settings


def _holds_machine_code(names: Iterable[str]) -> bool:
    return any(n.endswith((".so", ".pyd", ".dylib")) for n in names)


def _binds_machine_code(module: types.ModuleType) -> bool:
    """By ctypes: pynvml, say, whose classes of pointers have no names."""
    return any(value is ctypes or value is ctypes.CDLL for value in list(vars(module).values()))


@functools.lru_cache(maxsize=None)
def _installed_version(package: str, file: str, said: str | None, binds: bool) -> str | None:
    if package == "deepwell" or not {"site-packages", "dist-packages"} & set(pathlib.PurePath(file).parts):
        return None
    try:
        found: Any = importlib.metadata.distribution(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        found = None
    listed = [str(f) for f in (found.files or ())] if found is not None else []
    is_package = os.path.basename(file).startswith("__init__.")
    if not binds and not _holds_machine_code([file, *listed]) and not (is_package and any(_holds_machine_code(names) for _, _, names in os.walk(os.path.dirname(file)))):
        return None
    facts = os.stat(file)
    return said or (found.version if found is not None else f"of {facts.st_size} bytes at {facts.st_mtime_ns}")


def _version(package: str) -> str | None:
    """Of an installed package that is not written in Python alone, torchaudio or flash_attn, say: it is taken by its version, as torch is. None: it is read."""
    module = sys.modules.get(package)
    file, said = getattr(module, "__file__", None), getattr(module, "__version__", None)
    if module is None or not isinstance(file, str):
        return None
    return _installed_version(package, file, said if isinstance(said, str) else None, _binds_machine_code(module))


def _named(module: str) -> str:
    """The name of a module, with the version of a package that _settings does not list."""
    package = module.partition(".")[0]
    version = None if package in _VERSIONED else _version(package)
    return module if version is None else f"{module} {version}"


@functools.lru_cache(maxsize=None)
def _folders_of(package: str, file: str | None) -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return (os.path.join(os.path.dirname(file), ""),) if file and (package in ("torch", "functorch", "torchgen", *_COMPILED) or package not in _VERSIONED) else (
        os.path.join(paths["stdlib"], ""), os.path.join(paths["platstdlib"], ""))


def _folders(package: str) -> tuple[str, ...]:
    return _folders_of(package, getattr(sys.modules.get(package), "__file__", None))


def _is_own(function: types.FunctionType) -> bool:
    """Is it code of the versioned package whose name it bears? A user's function may have been given another's name."""
    module = function.__globals__.get("__name__") or ""
    file = function.__code__.co_filename
    if not _is_versioned(module):
        return False
    if file.startswith("<"):        # made by the package: namedtuples, dataclasses, frozen modules
        return function.__module__ == module
    inner = os.path.join("", "site-packages", "")
    folders = _folders(module.partition(".")[0])
    return file.startswith(folders) and inner not in file[max(len(f) for f in folders if file.startswith(f)):]


# ---- code ----

def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _literal(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code_digest(value)
    if isinstance(value, (tuple, frozenset)):
        items = [_literal(v) for v in value]
        return f"{type(value).__name__}({','.join(items if isinstance(value, tuple) else sorted(items))})"
    return f"{type(value).__name__}:{value!r}"


@functools.lru_cache(maxsize=None)
def _code_digest(code: types.CodeType) -> str:
    """Of what it does, not of where it is written."""
    parts = (code.co_code.hex(), code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_names, code.co_varnames,
             code.co_freevars, code.co_cellvars, getattr(code, "co_exceptiontable", b"").hex(), _literal(code.co_consts))
    return _sha("\n".join(map(str, parts)).encode())


class _Names:
    """What a function's code names, with that of the functions in it."""

    def __init__(self, code: types.CodeType) -> None:
        self.names: set[str] = set()
        self.texts: set[str] = set()
        self.imports: set[tuple[int, str]] = set()
        for part in _codes(code):
            self.names.update(part.co_names)
            for constant in part.co_consts:
                self.texts.update(c for c in (constant if isinstance(constant, (tuple, frozenset)) else (constant,)) if isinstance(c, str))
            if dis.opmap["IMPORT_NAME"] in part.co_code[::2]:
                self.imports |= _imports(part)
        self.names.update(t for t in self.texts if t.isidentifier())        # getattr(self, "name")


@functools.lru_cache(maxsize=None)
def _names(code: types.CodeType) -> _Names:
    return _Names(code)


def _imports(code: types.CodeType) -> set[tuple[int, str]]:
    """(level, module) of each import statement."""
    found, numbers = set(), [0]
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            found.add((numbers[-1], step.argval))
        elif step.opname.startswith("LOAD_") and type(step.argval) is int:
            numbers.append(step.argval)
    return found


# ---- the walk ----

class Walk:
    """Reads a model, and collects what it read in ``lines``, in an order that the model alone decides."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.classes: dict[type, set[str]] = {}             # met, and which of their attributes are read
        self._names: dict[str, None] = {"forward": None}
        self._made: set[type] = set()                       # met as values, which code can make instances of
        self._seen: dict[int, str] = {}
        self._alive: list[Any] = []                         # so that ids stay theirs
        self._codes: dict[tuple[types.CodeType, int], None] = {}
        self._queue: list[tuple[types.CodeType, dict[str, Any]]] = []
        self._listed: set[int] = set()

    def say(self, *facts: Any) -> None:
        self.lines.append("\t".join(map(str, facts)))

    def digest(self) -> str:
        return _sha("\n".join(self.lines).encode("utf-8", "surrogatepass"))

    # -- values --

    def value(self, value: Any, where: str) -> str:
        """A text that two values share only where a trace cannot tell them apart. Code that is met is read by ``finish``."""
        if type(value) in _SIMPLE:
            return f"{type(value).__name__}:{value!r}"
        if isinstance(value, type):
            self._made.add(value)
            return self.class_of(value, where)
        if isinstance(value, types.ModuleType):
            return f"module {_named(value.__name__)}"
        known = self._seen.get(id(value))
        if known is not None:
            return known
        self._seen[id(value)] = f"#{len(self._seen)}"
        self._alive.append(value)
        return f"{self._seen[id(value)]}={self._read(value, where)}"

    def _read(self, value: Any, where: str) -> str:
        kind = type(value)
        if isinstance(value, types.FunctionType):
            return self._function(value, where)
        if isinstance(value, (types.BuiltinFunctionType, *_SLOTS)) or kind.__name__ in ("builtin_function_or_method", "_VariableFunctionsClass"):
            return self._builtin(value, where)
        if isinstance(value, _PRINTED):
            return f"{kind.__name__}:{value!r}"
        if isinstance(value, enum.Enum):
            return f"enum {self.class_of(kind, where)} {value.name if hasattr(value, 'name') else value!r}"
        if isinstance(value, torch.Tensor):
            return self._constant(value, where)
        if isinstance(value, nn.Module):
            return self._loose_module(value, where)
        if isinstance(value, (tuple, list, deque)):
            items = [self.value(v, f"{where}[{i}]") for i, v in enumerate(value)]
            return f"{self.class_of(kind, where)}[{','.join(items)}]{self._attributes(value, where)}"
        if kind is dict and _is_installed(value):
            return f"the packages that are installed {_sha(repr(_sorted_lists(value)).encode())}"
        if isinstance(value, (dict, types.MappingProxyType)):
            pairs = [self.value(k, where) + ":" + self.value(v, f"{where}[{k!r}]") for k, v in value.items()]
            return f"{self.class_of(kind, where)}{{{','.join(pairs)}}}{self._attributes(value, where)}"
        if isinstance(value, (set, frozenset)):
            if not all(isinstance(v, (*_SIMPLE, type)) for v in value):
                raise Unsure(f"{where}: a set of objects")
            ordered = sorted(value, key=lambda v: f"{v.__module__}.{v.__qualname__}" if isinstance(v, type) else _literal(v))
            return f"{kind.__name__}({','.join([self.value(v, where) for v in ordered])})"
        parts = next((parts for base, parts in _WRAPPERS.items() if isinstance(value, base)), None)
        if parts is not None:
            return f"{self.class_of(kind, where)}({','.join([self.value(getattr(value, part), where) for part in parts])})"
        if kind is object:
            return "object"
        if isinstance(value, contextvars.ContextVar):
            return f"ContextVar {value.name} {self.value(value.get(None), where)}"
        if isinstance(value, _MUTE) or (kind.__module__, kind.__name__) in _MUTE_NAMES:
            return kind.__name__
        if type(value).__module__.startswith("torch._ops"):
            return self._operator(value, where)
        return self._object(value, where)

    def _attributes(self, value: Any, where: str) -> str:
        """Those of a container of a class of its own."""
        own = getattr(value, "__dict__", None)
        return ";" + self._listed_values(own.items(), where) if own else ""

    def _listed_values(self, pairs: Iterable[tuple[str, Any]], where: str) -> str:
        return ";".join([f"{name}=" + self.value(value, f"{where}.{name}") for name, value in pairs])

    def _object(self, value: Any, where: str) -> str:
        kind = type(value)
        if _is_versioned(kind.__module__) and not isinstance(value, _PLAIN):
            raise Unsure(f"{where}: a {kind.__module__}.{kind.__qualname__}")
        slots = [s for c in kind.__mro__ for s in ([c.__dict__.get("__slots__", ())] if isinstance(c.__dict__.get("__slots__"), str) else c.__dict__.get("__slots__", ()))]
        if not hasattr(value, "__dict__") and not slots:
            raise Unsure(f"{where}: a {kind.__module__}.{kind.__qualname__}, whose contents cannot be read")
        if kind.__basicsize__ > object.__basicsize__ + 8 * (len(slots) + 4) or not _in_python(kind):
            raise Unsure(f"{where}: a {kind.__module__}.{kind.__qualname__}, which is not written in Python alone")
        pairs = [(s, getattr(value, s)) for s in slots if s not in ("__dict__", "__weakref__") and hasattr(value, s)] + [p for p in getattr(value, "__dict__", {}).items() if p[0] not in _RANDOM]
        return f"{self.class_of(kind, where)}({self._listed_values(pairs, where)})"

    def _loose_module(self, module: nn.Module, where: str) -> str:
        """One that is no part of the model: its parameters are constants of the trace."""
        if any(module.__dict__.get(hooks) for hooks in _HOOKS):
            raise Unsure(f"{where}: a forward hook")
        own = [(k, v) for k, v in module.__dict__.items() if k not in _OF_TREE or k in ("_parameters", "_buffers", "_modules")]
        return f"{self.class_of(type(module), where)}({self._listed_values(own, where)})"

    def _constant(self, tensor: torch.Tensor, where: str) -> str:
        if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.device.type == "meta" or tensor.numel() * tensor.element_size() > _MOST_CONSTANT:
            raise Unsure(f"{where}: a tensor that is neither a parameter nor a buffer, of {tensor.numel()} numbers on {tensor.device}")
        return f"{tensor_facts(tensor)} {contents(tensor)}"

    def _operator(self, value: Any, where: str) -> str:
        name = str(value)
        if not name.startswith(("aten.", "prims.", "aten::", "prims::")):
            raise Unsure(f"{where}: the operator {name}, which torch does not define")
        return f"operator {name}"

    def _builtin(self, value: Any, where: str) -> str:
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        module = getattr(value, "__module__", None) or (owner.__module__ if isinstance(owner, type) else type(owner).__module__)
        if isinstance(owner, types.ModuleType):
            module = owner.__name__
        if not _is_versioned(module or "") and not (isinstance(owner, type) and _in_python(owner)):
            raise Unsure(f"{where}: {module}.{getattr(value, '__qualname__', value)}, which is not written in Python")
        bound = "" if owner is None or isinstance(owner, types.ModuleType) or _is_versioned(type(owner).__module__) and not isinstance(owner, (dict, list, set, type)) else \
            self.value(owner, where)
        return f"builtin {_named(module or '')}.{getattr(value, '__qualname__', '')} {bound}"

    # -- functions --

    def _function(self, function: types.FunctionType, where: str) -> str:
        code = function.__code__
        label = f"function {_named(str(function.__globals__.get('__name__')))}.{code.co_name} {_code_digest(code)}"
        if _is_own(function) and not function.__closure__:
            return label
        parts = [label, self.value(function.__defaults__, where), self.value(function.__kwdefaults__, where)]
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            try:
                parts.append(f"{name}=" + self.value(cell.cell_contents, f"{where}, {function.__qualname__}, {name}"))
            except ValueError:
                parts.append(f"{name} is empty")
        parts.append(self._listed_values([(k, v) for k, v in function.__dict__.items() if k not in _RANDOM], where))
        key = (code, id(function.__globals__))
        if key not in self._codes and not _is_own(function):
            self._codes[key] = None
            self._queue.append((code, function.__globals__))
        return " ".join(parts)

    def _globals(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """What the names of a function can mean where it is defined."""
        module, found = space.get("__name__"), _names(code)
        self._names.update(dict.fromkeys(sorted(found.names)))
        facts = []
        builtins = space.get("__builtins__", {})
        builtins = builtins if isinstance(builtins, dict) else builtins.__dict__
        where = f"{module}.{code.co_name}"
        reached: dict[int, types.ModuleType] = {}
        for name in sorted(found.names):
            value = space[name] if name in space else builtins.get(name)
            if isinstance(value, types.ModuleType):
                facts.append(f"{name}=module {_named(value.__name__)}")
                self._module(value, found.names, where, reached, facts)
            elif name in space or isinstance(value, types.FunctionType):
                facts.append(f"{name}=" + self.value(value, f"{where}, {name}"))
        for level, name in sorted(found.imports):
            self._import(level, name, space, found.names, where, reached, facts)
        if "environ" in found.names or "getenv" in found.names:
            facts += [f"${t}={os.environ[t]!r}" for t in sorted(found.texts) if t in os.environ]
        self.say("code", module, code.co_name, _code_digest(code), *facts)

    def _module(self, module: types.ModuleType, names: Iterable[str], where: str, reached: dict[int, types.ModuleType], facts: list[str]) -> None:
        if id(module) in reached:
            return
        reached[id(module)] = module
        is_versioned = _is_versioned(module.__name__)
        lazy: Any = ()      # names that the module imports when they are asked for
        if not is_versioned and type(module) is not types.ModuleType:
            lazy = module.__dict__.get("_class_to_module") or dir(module)
        for name in sorted(names):
            value, label = module.__dict__.get(name), f"{module.__name__}.{name}"
            if value is None and name in lazy:
                value = getattr(module, name)
            if isinstance(value, types.ModuleType):
                self._module(value, names, where, reached, facts)
            elif value is not None and module.__name__ in _OUTSIDE:
                raise Unsure(f"{where}: {module.__name__}.{name}, which is another at every call")
            elif value is not None and not is_versioned:
                facts.append(f"{label}=" + self.value(value, f"{where}, {label}"))
            elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type, *_SIMPLE)) and value is not None:
                facts.append(f"{label}=" + self._surface(value, f"{where}, {label}"))
        if module is torch.ops:
            found = {op.partition("::")[0] for op in torch._C._dispatch_get_all_op_names()} & set(names) - {"aten", "prims"}
            if found - ({where.partition(".")[0]} & {"transformers"}):       # which defines its operators beside what calls them
                raise Unsure(f"{where}: operators of {', '.join(sorted(found))}")
            facts.append(f"operators {_file_digest(sys.modules[where.rpartition('.')[0]].__file__ or '')}" if found else "operators of torch")

    def _import(self, level: int, name: str, space: dict[str, Any], names: Iterable[str], where: str, reached: dict[int, types.ModuleType], facts: list[str]) -> None:
        try:
            full = importlib.util.resolve_name("." * level + name, space.get("__package__") or "") if level else name
            if full in sys.modules:
                facts.append(f"import {_named(full)}")
                self._module(sys.modules[full], names, where, reached, facts)
            elif not _is_versioned(full):
                spec = importlib.util.find_spec(full)
                facts.append(f"import {full} {_file_digest(spec.origin) if spec is not None and spec.origin else None}")
        except (ImportError, ValueError, AttributeError) as error:
            facts.append(f"import {full} {type(error).__name__}")

    # -- classes --

    def class_of(self, kind: type, where: str) -> str:
        label = f"class {_named(kind.__module__)}.{kind.__qualname__}"
        if kind in self.classes or kind.__module__ == "builtins":
            return label
        found: Any = sys.modules.get(kind.__module__)
        for step in kind.__qualname__.split("."):
            found = getattr(found, step, None)
        if _is_versioned(kind.__module__):
            if issubclass(kind, nn.Module) and found is kind:
                self.classes[kind] = set(kind.__dict__)
                self.list_functions(kind, label)
            return label
        if found is not kind:
            raise Unsure(f"{where}: the class {kind.__qualname__} of {kind.__module__}, which is not found by its name")
        self.classes[kind] = set()
        facts = [self.class_of(base, where) for base in kind.__mro__[1:]]
        facts.append(self.class_of(type(kind), where))
        facts.append(",".join(str(k) for k in kind.__dict__.get("__annotations__", ())))
        if issubclass(kind, enum.Enum):
            facts.append(self._listed_values([(m.name, m._value_) for m in kind], where))
        self.say(label, *facts)
        return label

    def _read_classes(self) -> bool:
        """The attributes of classes that the names met so far can mean. False: nothing is new."""
        before = len(self.lines)
        for kind in list(self.classes):
            read = self.classes[kind]
            is_made = any(kind in made.__mro__ for made in self._made)
            for name in [n for n in kind.__dict__ if n not in read]:
                if name in _UNREAD or (not is_made if name in _MAKING else name not in _IMPLIED and name not in self._names):
                    continue
                read.add(name)
                if issubclass(kind, enum.Enum) and name in kind.__members__:
                    continue
                self.say("attribute", kind.__module__, kind.__qualname__, name, self.value(kind.__dict__[name], f"{kind.__qualname__}.{name}"))
        return len(self.lines) > before

    def list_functions(self, owner: Any, label: str) -> None:
        """Each function of a versioned module or class with what it is: one that was put in another's place is seen."""
        if id(owner) in self._listed:
            return
        self._listed.add(id(owner))
        self._alive.append(owner)
        for name, value in sorted(owner.__dict__.items()):
            if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, property, staticmethod, classmethod)):
                self.say(label, name, self._surface(value, f"{label}.{name}"))

    def _surface(self, value: Any, where: str) -> str:
        """What a name of a versioned package stands for; all of it where that is something of another's."""
        if isinstance(value, (property, staticmethod, classmethod)):
            return " ".join(self._surface(getattr(value, part), where) for part in _WRAPPERS[type(value)])
        if isinstance(value, types.FunctionType) and _is_own(value):
            return f"{value.__globals__['__name__']}.{value.__code__.co_name} {_code_digest(value.__code__)}"
        if isinstance(value, types.BuiltinFunctionType):
            owner = value.__self__
            module = owner.__name__ if isinstance(owner, types.ModuleType) else value.__module__ or type(owner).__module__
            if owner is None or _is_versioned(module or "") or type(owner).__module__.startswith("pybind11"):
                return f"builtin {value.__qualname__}"
        return self.value(value, where)

    # -- the whole --

    def tree(self, model: nn.Module) -> None:
        """All modules, with their attributes, parameters and buffers."""
        owners: list[tuple[str, nn.Module]] = []
        for path, module in model.named_modules(remove_duplicate=False):
            if id(module) in self._seen:
                self.say("module", path, self._seen[id(module)])
                continue
            self._seen[id(module)] = f"#module {path}"
            self._alive.append(module)
            owners.append((path, module))
        tensors = []
        for path, module in owners:
            for role, found in (("parameter", module._parameters), ("buffer", module._buffers)):
                tensors += [(role, f"{path}.{name}".lstrip("."), tensor, name in module._non_persistent_buffers_set) for name, tensor in found.items()]
        self._tensors(tensors)
        for path, module in owners:
            for hooks in _HOOKS:
                if module.__dict__.get(hooks):
                    raise Unsure(f"{path or 'the model'}: a forward hook")
            own = [(k, v) for k, v in module.__dict__.items() if k not in _OF_TREE]
            self.say("module", path, self.class_of(type(module), path or "the model"), ",".join(module._modules), self._listed_values(own, path))

    def _tensors(self, tensors: list[tuple[str, str, torch.Tensor | None, bool]]) -> None:
        memory: dict[tuple[Any, int], int] = {}
        total = 0
        for index, (role, name, tensor, is_transient) in enumerate(tensors):
            if tensor is None:
                self.say(role, name, None)
                continue
            first = self._seen.setdefault(id(tensor), f"#{role} {name}")
            if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.device.type == "meta":
                raise Unsure(f"{name}: a {type(tensor).__name__} of layout {tensor.layout} on {tensor.device}")
            shared = memory.setdefault((tensor.device, tensor.untyped_storage().data_ptr()), index)
            facts = [tensor_facts(tensor), tensor.storage_offset(), first, shared, is_transient]
            if role == "buffer":
                total += tensor.numel() * tensor.element_size()
                if total > _MOST_BUFFERS:
                    raise Unsure(f"{name}: buffers of over {_MOST_BUFFERS >> 20} MiB")
                facts.append(contents(tensor))
            self.say(role, name, *facts)

    def finish(self) -> None:
        """Reads the code of all that was met."""
        while True:
            while self._queue:
                self._globals(*self._queue.pop(0))
            if not self._read_classes() and not self._queue:
                return


def _in_python(kind: type) -> bool:
    """Is it a class statement's, with Python's own bases?"""
    return all(c.__flags__ & (1 << 9) or c is object or _is_versioned(c.__module__) for c in kind.__mro__)      # Py_TPFLAGS_HEAPTYPE


@functools.lru_cache(maxsize=None)
def _file_digest(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return _sha(file.read())
    except OSError:
        return None


def tensor_facts(tensor: torch.Tensor) -> str:
    """All that a trace sees of a tensor but its numbers."""
    return (f"{type(tensor).__name__} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride() if tensor.layout == torch.strided else tensor.layout} {tensor.device} "
            f"{tensor.requires_grad} {tensor.is_conj()} {tensor.is_neg()} {tensor.is_inference()} {tensor.is_leaf}")


def contents(tensor: torch.Tensor) -> str:
    """A digest of a tensor's numbers."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return _sha(memoryview(plain.view(torch.uint8).numpy()) if plain.numel() else b"")


# ---- settings ----

def _changed_settings(name: str) -> list[tuple[str, Any]]:
    """Of one of torch's modules of settings, those that are not as torch has them; a module that is not imported is as torch has it."""
    config = sys.modules.get(name)
    known = sorted(config._config.items()) if config is not None else []
    values = [(key, getattr(config, key), entry.default) for key, entry in known if not (entry.alias or entry.hide or getattr(entry, "deprecated", False))]
    return [(key, value) for key, value, default in values if not isinstance(value, types.ModuleType) and value is not default and value != default]


_FLAGS: tuple[Callable[[], Any], ...] = (
    torch.get_default_dtype, torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.are_deterministic_algorithms_enabled,
    torch.get_float32_matmul_precision, torch.get_default_device, lambda: torch.is_autocast_enabled("cpu"), lambda: torch.is_autocast_enabled("cuda"),
    torch.backends.mha.get_fastpath_enabled, torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.cudnn_sdp_enabled, lambda: torch.backends.cuda.matmul.allow_tf32,
    lambda: torch.backends.cudnn.enabled, lambda: torch.backends.cudnn.allow_tf32, lambda: torch.backends.mkldnn.enabled, torch.cuda.is_available,
    lambda: torch.cuda.get_device_capability() if torch.cuda.is_available() else None, lambda: torch.__future__.get_swap_module_params_on_conversion())


def _settings(walk: Walk) -> None:
    walk.say("versions", sys.version, platform.machine(), torch.__version__, torch.version.git_version, _core.version(),
             *(f"{n} {getattr(sys.modules[n], '__version__', None)}" for n in (*_COMPILED, "transformers") if n in sys.modules))
    walk.say("deepwell", _own_sources())
    walk.say("flags", *(flag() for flag in _FLAGS))
    walk.say("environment", *(f"{k}={v!r}" for k, v in sorted(os.environ.items()) if k.startswith(_ENVIRONMENT) and not k.startswith("TORCHINDUCTOR_")))
    for name in ("torch._dynamo.config", "torch._functorch.config", "torch.fx.experimental._config", "torch._export.config"):
        walk.say(name, *(f"{key}={walk.value(value, f'{name}.{key}')}" for key, value in _changed_settings(name)))
    modes = [type(torch._C._get_function_stack_at(i)) for i in range(torch._C._len_torch_function_stack())]
    if any(m is not torch.utils._device.DeviceContext for m in modes) or torch._C._len_torch_dispatch_stack():
        raise Unsure("a mode that changes what torch's functions do is on")
    for hooks in _GLOBAL_HOOKS:
        if getattr(nn.modules.module, hooks):
            raise Unsure("a hook of all modules is set")
    for owner, name in ((torch, "torch"), (nn.functional, "torch.nn.functional"), (torch.Tensor, "torch.Tensor"), (nn.Module, "torch.nn.Module"),
                        (torch.linalg, "torch.linalg"), (torch.fft, "torch.fft"), (torch.special, "torch.special")):
        walk.list_functions(owner, name)


def _sorted_lists(lists: Mapping[str, Sequence[str]]) -> list[tuple[str, list[str]]]:
    return sorted((name, sorted(items)) for name, items in lists.items())


@functools.lru_cache(maxsize=None)
def _installed() -> list[tuple[str, list[str]]]:
    return _sorted_lists(importlib.metadata.packages_distributions())


def _is_installed(value: dict[Any, Any]) -> bool:
    """Which distributions each package comes from, as transformers keeps it: every process has it in another order."""
    listed = "torch" in value and all(isinstance(k, str) and isinstance(v, list) and all(isinstance(i, str) for i in v) for k, v in value.items())
    return listed and _sorted_lists(value) == _installed()


@functools.lru_cache(maxsize=None)
def _own_sources() -> str:
    """Of this package, which makes a capture of a trace."""
    folder = os.path.dirname(os.path.abspath(__file__))
    return _sha("".join(str(_file_digest(os.path.join(folder, n))) for n in sorted(os.listdir(folder)) if n.endswith(".py")).encode())


def fingerprint(model: nn.Module, form: Any, names: Sequence[str], leaves: Sequence[torch.Tensor], more: Any) -> Walk:
    """The walk over a model and one call of it; its digest is what a capture may be kept by. more: what else the capture depends on.

    Raises Unsure, saying what cannot be read."""
    walk = Walk()
    _settings(walk)
    walk.tree(model)
    walk.say("call", walk.value(form, "the arguments"), walk.value(more, "what was asked for"))
    memory: dict[Any, int] = {}
    for index, (name, leaf) in enumerate(zip(names, leaves)):
        if type(leaf) is not torch.Tensor or leaf.layout != torch.strided or leaf.device.type == "meta":
            raise Unsure(f"input '{name}' is no plain tensor")
        walk.say("input", name, tensor_facts(leaf), walk._seen.get(id(leaf)), memory.setdefault(id(leaf), index))
    walk.finish()
    return walk
