"""Blocks that repeat are traced once: of the layers of a stack that are made alike, ``torch.export`` sees the first two, and the others as one call each, which the writing of the program
(expansion.py) replaces by the first one's nodes, with their own weights.

What must hold, or the block is traced as it is:

- it is a member of a ``ModuleList`` or ``Sequential`` with at least four alike: the same classes, the same shapes and dtypes of parameters and buffers, no hooks inside, no module in two of them;
- an attribute in which it differs from the first one was not read when that was traced: a read is seen, as the attributes that differ are taken away meanwhile;
- what it does with a cache is to call ``update``, and what it does with its ``layer_idx`` is to hand it to that: both are stand-ins that refuse all else. The cache's own code runs for
  every block, between two parts of the block's nodes;
- it is called with tensors of the same shapes, strides and dtypes, in sizes and symbols, and with equal constants;
- tracing the first one changed no attribute of any module.

Then the second one is traced as well, and the nodes of both must be the same but for names (expansion.py). Where anything is in doubt, ``Doubt`` says what, and the whole model is exported.
"""
from __future__ import annotations

import functools
import itertools
import types
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

import torch
from torch import nn

from .errors import Unsupported
from .structure import Flat, flatten, rebuild, states_of

MARK = "deepwell_blocks"
_LEAST = 4              # of a kind: two are traced
_library = torch.library.Library(MARK, "FRAGMENT")
for _mark_of_a_traced_one in ("begin", "leave", "enter", "end"):
    _library.define(f"{_mark_of_a_traced_one}(Tensor[] x, int call) -> Tensor[]")
_library.define("again(Tensor[] x, int call, int first, int part) -> Tensor[]")
_numbers = itertools.count()
_made: dict[tuple[int, int], list[torch.Tensor]] = {}       # by call and part: what it gave, while a trace is made


def _like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t.new_empty_strided(t.shape, t.stride()) for t in tensors]


for _mark_of_a_traced_one in ("begin", "leave", "enter", "end"):
    torch.library.register_fake(f"{MARK}::{_mark_of_a_traced_one}", lambda x, call: _like(x), lib=_library)
torch.library.register_fake(f"{MARK}::again", lambda x, call, first, part: _like(_made[first, part]), lib=_library)


class Doubt(Exception):
    """Blocks that may not be alike, or a graph in which they cannot be told. The text says why."""


# ---- which modules are alike ----

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_OF_TREE = frozenset(("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", *_HOOKS)) | frozenset(
    k for k in nn.Module().__dict__ if k.startswith("_"))
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def _is_same(a: Any, b: Any, one: nn.Module, other: nn.Module) -> bool:
    """Do two attributes, of these modules, mean the same?"""
    def same(x: Any, y: Any) -> bool:
        return _is_same(x, y, one, other)
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, _PLAIN):
        return repr(a) == repr(b)
    if type(a) in (tuple, list):
        return len(a) == len(b) and all(map(same, a, b))
    if type(a) in (dict, OrderedDict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if type(a) is functools.partial:
        return same(a.func, b.func) and same(a.args, b.args) and same(a.keywords, b.keywords) and same(a.__dict__, b.__dict__)
    if type(a) is types.MethodType:
        return a.__func__ is b.__func__ and a.__self__ is one and b.__self__ is other
    return False


def _tensor_facts(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else (type(tensor), tensor.dtype, tuple(tensor.shape), tensor.stride() if tensor.layout == torch.strided else tensor.layout, tensor.device, tensor.requires_grad)


def _kind(block: nn.Module) -> Any:
    """What blocks that are alike share; None: it has a forward of its own, or hooks inside, which may do anything."""
    facts: list[Any] = []
    if "forward" in block.__dict__:
        return None
    for path, module in block.named_modules(remove_duplicate=False):
        if any(module.__dict__.get(hooks) for hooks in _HOOKS) and module is not block:
            return None
        facts.append((path, type(module), tuple((n, _tensor_facts(t)) for n, t in module._parameters.items()), tuple((n, _tensor_facts(t)) for n, t in module._buffers.items()),
                      frozenset(module._non_persistent_buffers_set)))
    return tuple(facts)


def _own(module: nn.Module) -> dict[str, Any]:
    return {k: v for k, v in module.__dict__.items() if k not in _OF_TREE}


def _differences(a: nn.Module, b: nn.Module) -> set[tuple[str, str]]:
    """(path, attribute) in which two blocks of a kind differ."""
    found = set()
    for (path, one), (_, other) in zip(a.named_modules(remove_duplicate=False), b.named_modules(remove_duplicate=False)):
        mine, theirs = _own(one), _own(other)
        found |= {(path, name) for name in mine.keys() | theirs.keys() if name not in mine or name not in theirs or not _is_same(mine[name], theirs[name], one, other)}
    return found


def _share(members: Sequence[tuple[str, nn.Module]]) -> bool:
    """Do they share a module? torch names what that computes by one of its paths."""
    inside = [id(m) for _, member in members for m in member.modules()]
    return len(inside) != len(set(inside))


@dataclass
class Block:
    path: str
    module: nn.Module
    kind: int
    watched: set[tuple[str, str]] = field(default_factory=set)      # attributes in which those of its kind differ


def find_blocks(model: nn.Module) -> list[Block]:
    """Of all stacks, the members of which at least four are alike; not those inside of one that is found."""
    found: list[Block] = []
    kinds = itertools.count()

    def look(module: nn.Module, path: str) -> None:
        taken: set[str] = set()
        if type(module) in (nn.ModuleList, nn.Sequential):
            by_kind: dict[Any, list[tuple[str, nn.Module]]] = {}
            for name, child in module.named_children():
                by_kind.setdefault(_kind(child) if any(True for _ in child.parameters()) else None, []).append((name, child))
            for kind, members in by_kind.items():
                if kind is None or len(members) < _LEAST or _share(members):
                    continue
                number = next(kinds)
                watched = set().union(*(_differences(members[0][1], other) for _, other in members[1:]))
                found.extend(Block(f"{path}.{name}".lstrip("."), child, number, watched) for name, child in members)
                taken.update(name for name, _ in members)
        for name, child in module.named_children():
            if name not in taken:
                look(child, f"{path}.{name}".lstrip("."))
    look(model, "")
    return found


# ---- calls while a trace is made ----

def _sizes(tensor: torch.Tensor) -> tuple[Any, ...]:
    def plain(size: Any) -> Any:
        return size if isinstance(size, int) else size.node.expr
    return (tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad, tuple(map(plain, tensor.shape)), tuple(map(plain, tensor.stride())), plain(tensor.storage_offset()))


def _is_fixed(form: Any, top: bool = True) -> bool:
    """May a copy stand for arguments of this form? A list could be written to."""
    if form[0] in ("tensor", "constant", "given"):
        return True
    if form[0] == "sequence" and form[1] is tuple:
        return all(_is_fixed(f, False) for f in form[2])
    return top and form[0] == "mapping" and form[1] is dict and all(_is_fixed(f, False) for f in form[3])


class _Index:
    """What a block reads as its ``layer_idx``: good for the cache alone."""
    __hash__ = None         # type: ignore[assignment]

    def __init__(self, path: str, value: int) -> None:
        self.__dict__.update(path=path, value=value)

    def _refuse(self, *others: Any) -> Any:
        raise Doubt("a block's layer_idx is read for something else than its cache")
    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __str__ = __repr__ = __format__ = _refuse      # type: ignore[assignment]


class _Cache:
    """The cache that a block sees: ``update`` alone."""
    __hash__ = None         # type: ignore[assignment]

    def __init__(self, update: Callable[..., Any]) -> None:
        self.__dict__["update"] = update

    def _refuse(self, *others: Any) -> Any:
        raise Doubt(f"a block reads {', '.join(str(o) for o in others[:1]) or 'something'} of its cache")
    __getattr__ = __setattr__ = __bool__ = __len__ = __iter__ = __getitem__ = __eq__ = __ne__ = _refuse     # type: ignore[assignment]


@dataclass
class _Update:
    """A call of a cache's update: the forms of its arguments and result, and the sizes of what it gives."""
    form: Any
    pattern: tuple[int, ...]
    index: tuple[tuple[Any, str], ...]          # (position or name, path of the module whose layer_idx it is)
    result: Any = None
    sizes: list[Any] = field(default_factory=list)


def _tensors(flat: Flat) -> tuple[list[torch.Tensor], tuple[int, ...]] | None:
    """The tensors of a form, each once, and which leaf is which; None: there are leaves that are no tensors."""
    if not all(isinstance(t, torch.Tensor) for t in flat.leaves):
        return None
    found = list({id(t): t for t in flat.leaves}.values())
    order = {id(t): i for i, t in enumerate(found)}
    return found, tuple(order[id(t)] for t in flat.leaves)


@dataclass
class _First:
    """A block that was traced, for others to stand for."""
    call: int
    block: Block
    form: Any
    pattern: tuple[int, ...]            # which leaf is which of the given tensors
    given: list[torch.Tensor]
    read: set[tuple[str, str]] = field(default_factory=set)
    updates: list[_Update] = field(default_factory=list)
    result: Any = None                  # its form,
    sources: list[tuple[str, int]] = field(default_factory=list)       # and of each leaf: ("given", i) or ("made", i)
    second: int | None = None           # the call that was traced as well
    doubt: str = ""


class _Watch:
    """Attributes taken away from modules, so that a read of one is seen."""

    def __init__(self, block: Block, is_cached: bool) -> None:
        """is_cached: a layer_idx is for the cache."""
        self.is_cached = is_cached
        self.read: set[tuple[str, str]] = set()
        self._away: dict[tuple[int, str], tuple[tuple[str, str], Any]] = {}
        modules = dict(block.module.named_modules(remove_duplicate=False))
        self._modules = list(modules.values())
        for path, name in block.watched:
            module = modules[path]
            if name not in module.__dict__ or hasattr(type(module), name):      # what lies behind it would be read in its place
                self.read.add((path, name))
            else:
                self._away[id(module), name] = ((path, name), module.__dict__.pop(name))

    def __enter__(self) -> "_Watch":
        self._before = nn.Module.__getattr__
        before, away, read = self._before, self._away, self.read

        def look_up(module: nn.Module, name: str) -> Any:
            found = away.get((id(module), name))
            if found is None:
                return before(module, name)
            if self.is_cached and name == "layer_idx" and type(found[1]) is int:
                return _Index(found[0][0], found[1])
            read.add(found[0])
            return found[1]
        nn.Module.__getattr__ = look_up         # type: ignore[method-assign]
        return self

    def __exit__(self, *error: Any) -> None:
        nn.Module.__getattr__ = self._before    # type: ignore[method-assign]
        for module in self._modules:
            for (owner, name), (_, value) in self._away.items():
                if owner == id(module):
                    module.__dict__.setdefault(name, value)     # one that was written stays: the look at all attributes sees it


class Repeats:
    """Around one export of a model: ``with repeats: export(..)``, then ``expand`` by the writer of the program."""

    def __init__(self, model: nn.Module, base: str = "") -> None:
        """base: put before module paths, for a part of a model."""
        self.model = model
        self.base = f"{base}." if base else ""
        self.blocks = find_blocks(model)
        self.again: dict[int, tuple[int, Block]] = {}          # call -> the first one's call, and its own block
        self.firsts: dict[int, _First] = {}                     # by call
        self.traced: dict[int, Block] = {}
        self._by_kind: dict[int, list[_First]] = {}
        self._inside = False
        self.doubt = ""

    @property
    def used(self) -> bool:
        return bool(self.traced)

    def __enter__(self) -> "Repeats":
        self._forwards = []
        for block in {id(b.module): b for b in self.blocks}.values():
            self._forwards.append(block.module)
            block.module.forward = self._wrapper(block, block.module.forward)
        return self

    def __exit__(self, *error: Any) -> None:
        for module in self._forwards:
            del module.forward
        for key in [k for k in _made if k[0] in self.traced]:
            del _made[key]

    def _wrapper(self, block: Block, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(block, forward, args, kwargs)
        return call

    def _doubt(self, why: str) -> Doubt:
        self.doubt = self.doubt or why
        return Doubt(why)

    def _call(self, block: Block, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        states = list({id(s): s for s in states_of((args, kwargs))}.values())
        flat = Flat(given=states, lengths_as_tensors=False)
        try:
            form = None if self._inside or len(states) > 1 or any(not hasattr(s, "layers") for s in states) else (flatten(tuple(args), flat), flatten(dict(kwargs), flat))
        except Unsupported:
            form = None
        found = None if form is None or not flat.leaves or not all(map(_is_fixed, form)) else _tensors(flat)
        if found is None:
            return forward(*args, **kwargs)
        given, pattern = found
        first = next((f for f in self._by_kind.get(block.kind, ()) if f.form == form and f.pattern == pattern and list(map(_sizes, f.given)) == list(map(_sizes, given)) and
                      not f.read & _differences(f.block.module, block.module)), None)
        if first is not None and not first.doubt and first.second is not None:
            return self._stand_in(first, block, given, states)
        made = _First(next(_numbers), block, form, pattern, given)
        value = self._trace(made, forward, states)
        if first is None:
            self._by_kind.setdefault(block.kind, []).append(made)
            self.firsts[made.call] = made
        elif not first.doubt:
            first.second = made.call
            if made.doubt or (made.read, made.result, made.sources, made.updates) != (first.read, first.result, first.sources, first.updates):
                first.doubt = made.doubt or f"{block.path} reads or gives something else than {first.block.path}"
        return value

    def _stand_in(self, first: _First, block: Block, given: list[torch.Tensor], states: list[Any]) -> Any:
        call = next(_numbers)
        self.again[call] = (first.call, block)
        made = torch.ops.deepwell_blocks.again(given, call, first.call, 0)
        modules = dict(block.module.named_modules(remove_duplicate=False))
        for part, update in enumerate(first.updates, 1):
            result = self._update(states[0], update, made, [modules[path].__dict__.get("layer_idx") for _, path in update.index])
            flat = Flat(lengths_as_tensors=False)
            form, found = flatten(result, flat), _tensors(flat)
            if found is None or form != update.result or list(map(_sizes, found[0])) != update.sizes:
                raise self._doubt(f"the cache gives {block.path} something else than {first.block.path}")
            made = torch.ops.deepwell_blocks.again(found[0], call, first.call, part)
        return rebuild(first.result, iter([given[i] if source == "given" else made[i] for source, i in first.sources]), states)

    @staticmethod
    def _update(state: Any, update: _Update, tensors: Sequence[torch.Tensor], indices: list[int]) -> Any:
        """The cache's own update."""
        leaves = iter([tensors[i] for i in update.pattern])
        args, kwargs = list(rebuild(update.form[0], leaves)), rebuild(update.form[1], leaves)
        for (place, _), index in zip(update.index, indices):
            if isinstance(place, int):
                args[place] = index
            else:
                kwargs[place] = index
        return state.update(*args, **kwargs)

    def _seen_update(self, made: _First, state: Any, args: Any, kwargs: Any) -> Any:
        """What stands for the update of the cache in a block that is traced."""
        places = [*enumerate(args), *kwargs.items()]
        index = [(place, value) for place, value in places if isinstance(value, _Index)]
        plain = [None if isinstance(v, _Index) else v for v in args], {k: None if isinstance(v, _Index) else v for k, v in kwargs.items()}
        flat = Flat(lengths_as_tensors=False)
        try:
            form = (flatten(tuple(plain[0]), flat), flatten(plain[1], flat))
        except Unsupported as error:
            raise self._doubt(f"{made.block.path} gives its cache {error}") from None
        found = _tensors(flat)
        if found is None:
            raise self._doubt(f"{made.block.path} gives its cache a number")
        update = _Update(form, found[1], tuple((place, value.__dict__["path"]) for place, value in index))
        left = _made[made.call, len(made.updates)] = torch.ops.deepwell_blocks.leave(found[0], made.call)
        made.updates.append(update)
        result = self._update(state, update, left, [value.__dict__["value"] for _, value in index])
        flat = Flat(lengths_as_tensors=False)
        try:
            update.result = flatten(result, flat)
        except Unsupported as error:
            raise self._doubt(f"the cache gives {error}") from None
        given = _tensors(flat)
        if given is None or len(given[0]) != len(flat.leaves):
            raise self._doubt("the cache gives something else than tensors")
        update.sizes = list(map(_sizes, given[0]))
        return rebuild(update.result, iter(torch.ops.deepwell_blocks.enter(given[0], made.call)))

    def _trace(self, made: _First, forward: Callable[..., Any], states: list[Any]) -> Any:
        inner = torch.ops.deepwell_blocks.begin(made.given, made.call)
        leaves = iter([inner[i] for i in made.pattern])
        seen = [_Cache(lambda *args, **kwargs: self._seen_update(made, states[0], args, kwargs)) for _ in states]
        args, kwargs = rebuild(made.form[0], leaves, seen), rebuild(made.form[1], leaves, seen)
        before = self._attributes()
        self._inside = True
        try:
            with _Watch(made.block, bool(states)) as watch:
                value = forward(*args, **kwargs)
        except Doubt as doubt:
            raise self._doubt(str(doubt)) from None
        finally:
            self._inside = False
        made.read = watch.read
        if self._attributes() != before:
            made.doubt = f"{made.block.path} changes attributes of modules"
        self.traced[made.call] = made.block
        return self._close(made, value, inner, seen, states)

    def _close(self, made: _First, value: Any, inner: list[torch.Tensor], seen: list[Any], states: list[Any]) -> Any:
        flat = Flat(given=seen, lengths_as_tensors=False)
        try:
            made.result = flatten(value, flat)
        except Unsupported as error:
            made.doubt = f"{made.block.path} gives {error}"
            torch.ops.deepwell_blocks.end([], made.call)
            return value
        own = {id(t) for t in (*made.block.module.parameters(), *made.block.module.buffers())}
        fresh: dict[int, torch.Tensor] = {}
        for leaf in flat.leaves:
            index = next((i for i, t in enumerate(inner) if t is leaf), None)
            if index is not None:
                made.sources.append(("given", index))
            elif not isinstance(leaf, torch.Tensor) or id(leaf) in own:
                made.doubt = f"{made.block.path} gives a number, or one of its weights"
                made.sources.append(("as it is", -1))
            else:
                fresh.setdefault(id(leaf), leaf)
                made.sources.append(("made", list(fresh).index(id(leaf))))
        results = _made[made.call, len(made.updates)] = torch.ops.deepwell_blocks.end(list(fresh.values()), made.call)
        given = made.given
        leaves = [given[i] if source == "given" else results[i] if source == "made" else leaf for (source, i), leaf in zip(made.sources, flat.leaves)]
        return rebuild(made.result, iter(leaves), states)

    def _attributes(self) -> dict[int, Any]:
        """Of all modules, what they are and hold: the same objects, and equal plain values in containers."""
        return {id(m): {k: _print(v) for k, v in m.__dict__.items()} for m in self.model.modules()}

    # -- what is said --

    def words(self) -> str:
        """" (model.layers.0 stands for 30 like it)", or why none does where some are alike."""
        counts: dict[int, int] = {}
        for first, _ in self.again.values():
            counts[first] = counts.get(first, 0) + 1
        told = [f"{self.firsts[first].block.path} stands for {count} like it" for first, count in sorted(counts.items())] or [f"every block: {f.doubt}" for f in self.firsts.values() if f.doubt][:1]
        return f" ({', '.join(told)})" if told else ""


def _print(value: Any, depth: int = 3) -> Any:
    if isinstance(value, _PLAIN):
        return repr(value)
    if depth > 0 and type(value) in (tuple, list, set):
        return [_print(v, depth - 1) for v in value]
    if depth > 0 and isinstance(value, dict):
        return [(k if isinstance(k, _PLAIN) else id(k), _print(v, depth - 1)) for k, v in value.items()]
    return id(value)
