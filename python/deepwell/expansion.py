"""Writes out blocks that were not traced: in the JSON of an exported program the marks of repeats.py become the nodes of the block that stands for them, with the weights of their own.

Two blocks were traced, and their nodes must be the same but for names; where they are not, or anything else is in doubt, ``Doubt`` says what.
"""
from __future__ import annotations

import copy
import itertools
import re
from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator

import torch
from torch import fx, nn

from .fingerprint import contents, tensor_facts
from .flops import graph_flops
from .repeats import MARK, Block, Doubt, Repeats

_UNBACKED = re.compile(r"Symbol\('z?u\d")


def _names(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Each place in JSON that names a tensor."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "as_tensor":
                yield inner, inner["name"]
            elif key == "as_tensors":
                for each in inner:
                    yield each, each["name"]
            else:
                yield from _names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner)


def _has(value: Any, key: str) -> bool:
    if isinstance(value, dict):
        return key in value or any(_has(v, key) for v in value.values())
    return isinstance(value, list) and any(_has(v, key) for v in value)


def _mark(node: dict[str, Any]) -> str:
    target = node["target"].split(".")
    return target[3] if target[:3] == ["torch", "ops", MARK] else ""


def _number(node: dict[str, Any], name: str) -> int:
    return next(i["arg"]["as_int"] for i in node["inputs"] if i["name"] == name)


@dataclass
class _Region:
    """A block's nodes, in parts between which its cache is brought up to date."""
    given: list[list[str]] = field(default_factory=list)                # by part: names inside of what it is given,
    nodes: list[list[dict[str, Any]]] = field(default_factory=list)
    made: list[list[str]] = field(default_factory=list)                 # and of what it gives
    own: set[str] = field(default_factory=set)                          # tensors that its nodes make
    left: list[dict[str, str]] = field(default_factory=list)            # metadata of the ends of parts: where the cache's own nodes are

    def begin(self, given: list[str]) -> None:
        self.given.append(given)
        self.nodes.append([])


class _Expansion:
    """One graph of the program's JSON, with the marks replaced."""

    def __init__(self, repeats: Repeats, graph: dict[str, Any], tensors: dict[str, torch.Tensor], constants: dict[str, torch.Tensor]) -> None:
        self.repeats, self.graph = repeats, graph
        self.alias: dict[str, str] = {}
        self.regions: dict[int, _Region] = {}
        self.by_tensor = {id(t): n for n, t in tensors.items()}
        self.constants = {n: f"constant {contents(t)} {tensor_facts(t)}" for n, t in constants.items()}
        self.checked: set[int | None] = set()
        self.copies: dict[int, dict[str, str]] = {}             # by call of one that was not traced: names of the first one's tensors -> of its own
        self.values = graph["tensor_values"]
        self.taken = set(self.values) | set(graph["sym_int_values"]) | set(graph["sym_float_values"]) | set(graph["sym_bool_values"]) | {n["name"] for n in graph["nodes"]}
        self.inside: set[str] = set()                           # tensors of closed regions, which nobody else may read

    def resolve(self, name: str) -> str:
        return self.alias.get(name, name)

    def substitute(self, inputs: Any) -> None:
        for place, name in _names(inputs):
            place["name"] = self.resolve(name)

    def run(self) -> None:
        nodes: list[dict[str, Any]] = []
        region: _Region | None = None
        outside: dict[str, str] | None = None           # metadata of nodes of a cache, between parts of a block that was not traced
        for node in self.graph["nodes"]:
            mark, outputs = _mark(node), [name for _, name in _names(node["outputs"])]
            raw = [name for _, name in _names(node["inputs"])]
            strange = next((n for n in raw if n in self.inside and (region is None or n not in region.own)), None)
            if strange is not None:
                raise Doubt(f"{node['name']} reads {strange}, which is inside of a block")
            if mark in ("begin", "enter"):
                if region is not None:
                    raise Doubt("the marks of blocks are not in order")
                region = self.regions.setdefault(_number(node, "call"), _Region())
                region.begin(outputs)
                self.forward(outputs, raw)
            elif mark in ("leave", "end"):
                if region is None or region is not self.regions.get(_number(node, "call")):
                    raise Doubt("the marks of blocks are not in order")
                region.made.append(raw)
                region.left.append(node["metadata"])
                self.forward(outputs, raw)
                self.inside |= region.own
                region = None
            elif mark == "again":
                call, part = _number(node, "call"), _number(node, "part")
                nodes += self.clone(call, part, outputs, [self.resolve(n) for n in raw])
                first, block = self.repeats.again[call]
                source = self.regions[first]
                outside = self.moved(source.left[part], self.repeats.traced[first], block) if part + 1 < len(source.made) else None
            else:
                if region is not None:
                    region.nodes[-1].append(copy.deepcopy(node))
                    region.own.update(outputs)
                self.substitute(node["inputs"])
                nodes.append(node if outside is None else {**node, "metadata": outside})
        if any(name in self.inside for _, name in _names(self.graph["outputs"])):
            raise Doubt("a result is what is inside of a block")
        self.substitute(self.graph["outputs"])
        self.graph["nodes"] = nodes

    def forward(self, outputs: list[str], inputs: list[str]) -> None:
        for name, source in zip(outputs, inputs):
            self.alias[name] = self.resolve(source)
            self.values.pop(name, None)

    def fresh(self, name: str) -> str:
        for number in itertools.count(1):
            made = f"{name}_again_{number}"
            if made not in self.taken:
                self.taken.add(made)
                return made
        raise AssertionError

    # -- one more block --

    def weights(self, one: Block, other: Block) -> dict[str, str]:
        """Names of one block's weights and buffers in the graph -> of the other's."""
        found: dict[str, str] = {}
        for get in (nn.Module.named_parameters, nn.Module.named_buffers):
            for (_, a), (_, b) in zip(get(one.module, remove_duplicate=False), get(other.module, remove_duplicate=False)):
                name, its = self.by_tensor.get(id(a)), self.by_tensor.get(id(b))
                if name is None or its is None:
                    raise Doubt(f"a weight of {one.path} or {other.path} is not in the graph")
                if found.setdefault(name, its) != its:
                    raise Doubt(f"{one.path} shares weights that {other.path} does not share")
        return found

    def check(self, region: _Region, block: Block, weights: dict[str, str]) -> None:
        """Can the region be repeated? It reads what it is given, makes itself, or owns."""
        given = {name for names in region.given for name in names}
        for node in itertools.chain(*region.nodes):
            if _has(node["inputs"], "as_graph"):
                raise Doubt(f"{block.path} holds a graph of its own, {node['name']}")
            read = [name for _, name in _names(node["inputs"])]
            strange = [n for n in read if n not in region.own and n not in given and n not in weights and n not in self.constants]
            if strange:
                raise Doubt(f"{block.path} reads {strange[0]}, which is none of its weights and not among its arguments")
            if node["target"].split(".")[-2].endswith("_") and read and read[0] in weights:
                raise Doubt(f"{block.path} writes {read[0]}")
            if any(_UNBACKED.search(str(self.values.get(name))) for _, name in _names(node["outputs"])) or any(
                    _UNBACKED.search(str(self.graph[kind].get(o[key]["as_name"]))) for o in node["outputs"]
                    for kind, key in (("sym_int_values", "as_sym_int"), ("sym_float_values", "as_sym_float"), ("sym_bool_values", "as_sym_bool")) if key in o):
                raise Doubt(f"{block.path} computes sizes from values")

    def clone(self, call: int, part: int, outputs: list[str], given: list[str]) -> list[dict[str, Any]]:
        first, block = self.repeats.again[call]
        source, region = self.repeats.traced[first], self.regions.get(first)
        if region is None or len(region.made) != len(self.repeats.firsts[first].updates) + 1:
            raise Doubt(f"{source.path} is not whole in the graph")
        if part == 0:
            self.check_once(first, region, source)
            self.copies[call] = self.weights(source, block) | {n: n for n in self.constants} | {name: self.fresh(name) for name in region.own}
            for name in region.own:
                self.values[self.copies[call][name]] = copy.deepcopy(self.values[name])
        names = self.copies[call]
        names.update(zip(region.given[part], given))
        nodes = []
        for node in region.nodes[part]:
            if not any(True for _ in _names(node["outputs"])) and node["outputs"]:
                continue                # a size: the first one's is the same
            made = copy.deepcopy(node)
            for side in ("inputs", "outputs"):
                for place, name in _names(made[side]):
                    place["name"] = names[name]
            made["name"] = names.get(node["name"]) or self.fresh(node["name"])
            made["metadata"] = self.moved(made["metadata"], source, block)
            nodes.append(made)
        for output, name in zip(outputs, region.made[part]):
            self.alias[output] = names[name]
            self.values.pop(output, None)
        return nodes

    def check_once(self, first: int, region: _Region, block: Block) -> None:
        """The region can be repeated, and the second one of the kind, which was traced as well, is what the first becomes with the second's weights."""
        facts = self.repeats.firsts[first]
        if facts.doubt:
            raise Doubt(facts.doubt)
        if facts.second in self.checked:
            return
        second, other = self.regions.get(facts.second), self.repeats.traced.get(facts.second)
        if second is None or other is None:
            raise Doubt(f"the second one like {block.path} is not in the graph")
        weights = self.weights(block, other)
        self.check(region, block, weights)
        self.check(second, other, self.weights(other, block))
        if self.plain(region, {n: n for n in weights}, block, other) != self.plain(second, {b: a for a, b in weights.items()}, other, other):
            raise Doubt(f"{block.path} and {other.path} do not become the same nodes")
        self.checked.add(facts.second)

    checked: set[int | None]

    def plain(self, region: _Region, weights: dict[str, str], block: Block, where: Block) -> list[Any]:
        """Nodes with names in the order in which they come, so that two regions can be compared."""
        names = {name: f"given {p} {i}" for p, given in enumerate(region.given) for i, name in enumerate(given)} | {n: f"weight {w}" for n, w in weights.items()} | self.constants
        result: list[Any] = []
        for part, node in [(p, n) for p, nodes in enumerate(region.nodes) for n in nodes]:
            if not any(True for _ in _names(node["outputs"])) and node["outputs"]:
                continue
            made = copy.deepcopy(node)
            for _, name in _names(node["outputs"]):
                names[name] = f"made {len(names)}"
            for part in ("inputs", "outputs"):
                for place, name in _names(made[part]):
                    place["name"] = names[name]
            facts = [self.values[name] for _, name in _names(node["outputs"])]
            result.append((part, made["target"], self.sized(made["inputs"]), made["outputs"], self.moved(made["metadata"], block, where), facts))
        return [*result, [[names[n] for n in made] for made in region.made]]

    def sized(self, inputs: Any) -> Any:
        """With the expressions of sizes in the place of their names."""
        if isinstance(inputs, dict):
            kind = next((k for k in ("sym_int_values", "sym_float_values", "sym_bool_values") if inputs.get("as_name") in self.graph[k]), None)
            return self.graph[kind][inputs["as_name"]] if kind is not None else {k: self.sized(v) for k, v in inputs.items()}
        return [self.sized(v) for v in inputs] if isinstance(inputs, list) else inputs

    def moved(self, metadata: dict[str, str], source: Block, block: Block) -> dict[str, str]:
        """With the path of another block."""
        stack = metadata.get("nn_module_stack")
        if stack is None:
            return metadata
        entries = []
        for entry in stack.split(";"):
            key, path, kind = entry.split(",", 2)
            if (path + ".").startswith(self.repeats.base + source.path + "."):
                path = self.repeats.base + block.path + path[len(self.repeats.base + source.path):]
                key = re.sub(rf"(?<!\w){re.escape(source.path)}(?!\w)", block.path, key, count=1)
            entries.append(f"{key},{path},{kind}")
        return {**metadata, "nn_module_stack": ";".join(entries)}


def _nested(value: Any) -> Iterator[dict[str, Any]]:
    """The graphs in arguments."""
    if isinstance(value, dict):
        if "as_graph" in value:
            yield value["as_graph"]["graph"]
        for inner in value.values():
            yield from _nested(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _nested(inner)


def expand(repeats: Repeats, graph: dict[str, Any], tensors: dict[str, torch.Tensor], constants: dict[str, torch.Tensor]) -> None:
    """Replaces the marks in a graph of the program's JSON: each block that was not traced becomes the nodes of the one that stands for it. tensors: weights and buffers, constants:
    what the trace made constants of, by their names in the graph. Raises Doubt."""
    _Expansion(repeats, graph, tensors, constants).run()
    if any(_mark(n) for node in graph["nodes"] for inner in _nested(node["inputs"]) for n in inner["nodes"]):
        raise Doubt("a block is called in a nested graph")


def flops(nodes: Iterable[fx.Node], module: fx.GraphModule) -> float:
    """Of products in an exported graph with marks."""
    inside: dict[int, float] = {}
    total, call, start = 0.0, None, 0.0
    for node in nodes:
        mark = getattr(node.target, "_schema", None)
        name = mark.name.partition("::")[2] if mark is not None and mark.name.startswith(f"{MARK}::") else ""
        if name in ("begin", "enter"):
            call, start = node.args[1], total
        elif name in ("leave", "end") and call is not None:
            inside[call] = inside.get(call, 0.0) + total - start
        elif name == "again":
            total += inside.get(node.args[2], 0.0) if node.args[3] == 0 else 0.0
        else:
            total += graph_flops([node], module)
    return total
