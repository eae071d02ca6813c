"""Arguments and results of a module as flat lists of tensors and a hashable form that says how to put them together again.

A form is a nested tuple. Two calls with equal forms differ in tensor contents and sizes alone, so a form is what a capture is made for. Numbers,
strings, None, dtypes and the like are part of the form: constants. Caches of ``transformers`` are taken apart attribute by attribute, whatever
their kind; their integers, lengths that change from step to step, become sizes of tensors. Does not look at sizes: ``region.py`` does.
"""
from __future__ import annotations

import enum
import functools
import types
from collections import UserDict
from dataclasses import fields, is_dataclass
from typing import Any, Iterator

import torch

from .errors import Unsupported

TENSOR = ("tensor",)
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum, type,
              types.FunctionType, types.BuiltinFunctionType, functools.partial, slice, range)


def is_state_class(kind: type) -> bool:
    """Of objects that a model reads and writes in place: a cache of transformers, or a layer of one."""
    return any(base.__module__.startswith("transformers.") and base.__name__ in ("Cache", "CacheLayerMixin", "LinearAttentionCacheLayerMixin", "DummyLayer")
               for base in kind.__mro__)


def is_state(value: Any) -> bool:
    return is_state_class(type(value))


def _constant(value: Any) -> tuple[Any, ...]:
    try:
        hash(value)
    except TypeError:
        raise Unsupported(f"an argument of type {type(value).__name__} that cannot be compared") from None
    return ("constant", type(value), value if value == value else "nan", value)


class Flat:
    """What flatten collects: tensors, where each comes from, and, for results, the caches that were given and come back."""

    def __init__(self, given: list[Any] | None = None, lengths_as_tensors: bool = True) -> None:
        self.leaves: list[Any] = []
        self.names: list[str] = []
        self.given = {id(state): index for index, state in enumerate(given or ())}
        self.lengths_as_tensors = lengths_as_tensors

    def add(self, leaf: Any, name: str) -> None:
        self.leaves.append(leaf)
        self.names.append(name)


def _is_length(name: str) -> bool:
    """Is the attribute of a cache a count of tokens seen so far? It then grows from step to step."""
    return name in ("cumulative_length", "seen_tokens", "_seen_tokens")


def _flatten_state(value: Any, flat: Flat, name: str) -> tuple[Any, ...]:
    forms = []
    for key, item in value.__dict__.items():
        inner = name if key == "layers" else f"{name}_{key}"
        if _is_length(key) and isinstance(item, (int, torch.SymInt)):
            flat.add(torch.empty(item, dtype=torch.uint8) if flat.lengths_as_tensors else item, inner)
            forms.append(("length",))
        else:
            forms.append(flatten(item, flat, inner))
    return ("state", type(value), tuple(value.__dict__), tuple(forms))


def flatten(value: Any, flat: Flat, name: str = "") -> tuple[Any, ...]:
    """The form of value; its tensors go to flat, with names made of argument names, keys and indices.

    Raises Unsupported for an object that is neither a container, nor a constant, nor a cache."""
    if isinstance(value, torch.Tensor):
        flat.add(value, name)
        return TENSOR
    kind = type(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        flat.add(value, name)
        return ("length",)
    if isinstance(value, _CONSTANTS):
        return _constant(value)
    if isinstance(value, (tuple, list)):
        return ("sequence", kind, tuple([flatten(v, flat, f"{name}_{i}") for i, v in enumerate(value)]))
    if isinstance(value, (dict, UserDict)):
        return ("mapping", kind, tuple(value), tuple([flatten(v, flat, f"{name}_{k}" if name else str(k)) for k, v in value.items()]))
    if id(value) in flat.given:
        return ("given", flat.given[id(value)])
    if is_state(value):
        return _flatten_state(value, flat, name)
    if is_dataclass(value):
        keys = tuple(f.name for f in fields(value))
        return ("object", kind, keys, tuple([flatten(getattr(value, k), flat, f"{name}_{k}") for k in keys]))
    raise Unsupported(f"a value of type {kind.__module__}.{kind.__qualname__}: tensors, numbers, strings, tuples, lists, dicts, "
                      "dataclasses and caches of transformers can be captured")


def rebuild(form: tuple[Any, ...], leaves: Iterator[Any], given: list[Any] | None = None) -> Any:
    """The value of a form, from its leaves in order; given: the caches that stand where the form says so."""
    tag = form[0]
    if tag == "tensor":
        return next(leaves)
    if tag == "constant":
        return form[3]
    if tag == "given":
        return given[form[1]]
    if tag == "length":
        length = next(leaves)
        return length.shape[0] if isinstance(length, torch.Tensor) else length
    kind = form[1]
    if tag == "sequence":
        items = [rebuild(f, leaves, given) for f in form[2]]
        return items if kind is list else tuple(items) if kind is tuple else kind(*items) if hasattr(kind, "_fields") else kind(items)
    values = [rebuild(f, leaves, given) for f in form[3]]
    if tag == "mapping":
        pairs = dict(zip(form[2], values))
        return pairs if kind is dict else kind(**pairs) if is_dataclass(kind) else kind(pairs)
    made = kind.__new__(kind)
    for key, value in zip(form[2], values):
        object.__setattr__(made, key, value)
    return made


def states_of(value: Any, found: list[Any] | None = None) -> list[Any]:
    """The caches in arguments, outermost alone, in the order in which flatten meets them."""
    found = [] if found is None else found
    if isinstance(value, (tuple, list)):
        for v in value:
            states_of(v, found)
    elif isinstance(value, (dict, UserDict)):
        for v in value.values():
            states_of(v, found)
    elif is_state(value):
        found.append(value)
    return found


def restore(form: tuple[Any, ...], state: Any, leaves: Iterator[Any]) -> None:
    """Gives a cache, in place, the attributes that a call left it with."""
    made = rebuild(form, leaves)
    state.__dict__.clear()
    state.__dict__.update(made.__dict__)


def rebuild_call(result: tuple[Any, ...], leaves: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call returns, from the forms that its capture recorded; the caches among its arguments are brought up to date."""
    form, after = result
    if form is TENSOR and not after:
        return leaves[0]
    items = iter(leaves)
    if not after:
        return rebuild(form, items)
    given = states_of((args, kwargs))
    value = rebuild(form, items, given)
    for state_form, state in zip(after, given):
        restore(state_form, state, items)
    return value
