"""Blocks that repeat are traced once: the program is the one that tracing all of them gives, and what may differ from block to block is traced as it is."""

import copy
import functools
import re

import pytest
import torch

import deepwell as dw
from deepwell import repeats

pytestmark = pytest.mark.filterwarnings("ignore::deepwell.DeepwellWarning")


class Block(torch.nn.Module):
    """Made with whatever attribute a test wants."""

    def __init__(self, forward, **attributes):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
        self.register_buffer("offset", torch.randn(8))
        self.act = functools.partial(torch.nn.functional.gelu, approximate="tanh")
        self.__dict__.update(attributes)
        self.__dict__["run"] = forward

    def forward(self, x, *more, **named):
        return self.run(self, x, *more, **named)


def plain(self, x):
    return x + self.act(self.linear(self.norm(x))) * self.offset


class Stack(torch.nn.Module):
    def __init__(self, forward=plain, count=6, attributes=lambda i: {}, call=None):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList([Block(forward, **attributes(i)) for i in range(count)])
        self.__dict__["call"] = call

    def forward(self, x):
        if self.call is not None:
            return self.call(self, x)
        for block in self.blocks:
            x = block(x)
        return x * 2


X = torch.randn(3, 5, 8)


def whole(model, example, monkeypatch, **more):
    with monkeypatch.context() as patch:
        patch.setattr(repeats, "find_blocks", lambda model: [])
        return dw.capture(model, example, **more)


def lines(ir):
    """The graph without what torch calls its nodes."""
    return [re.sub(r' name "[^"]*"|^  output \S+', "", line) for line in str(ir).splitlines()]


def check(model, example, monkeypatch, **more):
    """The program with blocks traced once, held against the one with all of them traced. Gives what was said."""
    model = model.eval()
    made, expected = dw.capture(model, example, **more), whole(model, example, monkeypatch, **more)
    assert lines(made) == lines(expected)
    for field in ("form", "names", "result", "fixed", "flops", "lifted"):
        assert getattr(made.trace, field) == getattr(expected.trace, field), field
    assert made.trace.program.shapes == expected.trace.program.shapes
    weights = dict([*model.named_parameters(), *model.named_buffers()])      # constants bear names of the trace's
    assert [n for n, _ in made.trace.program.tensors if n in weights] == [n for n, _ in expected.trace.program.tensors if n in weights]
    return made.trace.origin


def test_blocks_alike_are_traced_once(monkeypatch):
    calls = []

    def counted(self, x):
        calls.append(self)
        return plain(self, x)
    model = Stack(counted)
    said = dw.capture(model.eval(), X).trace.origin
    assert "blocks.0 stands for 4 like it" in said and len(calls) == 2
    check(Stack(), X, monkeypatch)
    ir = dw.capture(model, X)
    engine = dw.compile(ir)
    with torch.no_grad():
        for x in (X, torch.randn(2, 9, 8)):
            assert torch.allclose(engine(x), model(x), atol=1e-5)
    assert "stands for 4" in engine.explain() and "forward" not in model.blocks[3].__dict__


@pytest.mark.parametrize("dynamic", [False, {"x": {0: True}}])
def test_sizes_may_be_fixed(dynamic, monkeypatch):
    assert "stands for 4" in check(Stack(), X, monkeypatch, dynamic=dynamic)


def test_an_attribute_that_differs_and_is_read_makes_other_blocks(monkeypatch):
    def forward(self, x):
        return plain(self, x) * self.scale
    assert "stands for" not in check(Stack(forward, attributes=lambda i: {"scale": i + 1.0}), X, monkeypatch)
    said = check(Stack(forward, 9, lambda i: {"scale": 2.0 if i % 3 else 1.0, "index": i}), X, monkeypatch)
    assert "blocks.0 stands for 1 like it, blocks.1 stands for 4 like it" in said
    assert "blocks.0 stands for 4" in check(Stack(plain, attributes=lambda i: {"scale": i + 1.0}), X, monkeypatch)


@pytest.mark.parametrize("read", [lambda b: getattr(b, "scale", 1.0), lambda b: b.scale if hasattr(b, "scale") else 1.0])
def test_a_read_is_seen_however_it_is_done(read, monkeypatch):
    assert "stands for" not in check(Stack(lambda self, x: plain(self, x) * read(self), attributes=lambda i: {"scale": i + 1.0}), X, monkeypatch)


def test_an_attribute_that_hides_one_of_the_class_counts_as_read(monkeypatch):
    monkeypatch.setattr(Block, "scale", 5.0, raising=False)
    assert "stands for" not in check(Stack(lambda self, x: plain(self, x) * self.scale, attributes=lambda i: {"scale": i + 1.0}), X, monkeypatch)


def scaled_by_place(model, x):
    for i, block in enumerate(model.blocks):
        x = block(x, float(i > 3))
    return x


def growing(model, x):
    for block in model.blocks:
        x = torch.cat([block(x), x], 1)
    return x


def test_calls_with_other_arguments_are_traced(monkeypatch):
    said = check(Stack(lambda self, x, by: plain(self, x) + by, 8, call=scaled_by_place), X, monkeypatch)
    assert "blocks.0 stands for 2 like it, blocks.4 stands for 2 like it" in said
    assert "stands for" not in check(Stack(count=4, call=growing), X, monkeypatch)
    assert "stands for" not in check(Stack(lambda self, x, box: plain(self, box[0]), call=lambda m, x: [b(x, [x]) for b in m.blocks][-1]), X, monkeypatch)


def kept_outside(self, x):
    y = plain(self, x)
    self.box.append(y.mean())
    return y


def box(i, shared=[]):
    return {"box": shared}


def all_of_the_box(model, x):
    model.blocks[0].box.clear()
    for block in model.blocks:
        x = block(x)
    return x + sum(model.blocks[0].box)


def counted(self, x):
    self.turn[0] += 1
    return plain(self, x) * (2.0 if self.turn[0] > 4 else 1.0)


def one_turn(i, shared=[0]):
    return {"turn": shared}


def count_turns(model, x):
    model.blocks[0].turn[0] = 0
    for block in model.blocks:
        x = block(x)
    return x


def test_blocks_with_effects_are_all_traced(monkeypatch):
    assert "inside of a block" in check(Stack(kept_outside, attributes=box, call=all_of_the_box), X, monkeypatch)
    said = dw.capture(Stack(counted, attributes=one_turn, call=count_turns).eval(), X).trace.origin
    assert "stands for" not in said and "every block: blocks.0 changes attributes of modules" in said


class Hidden:
    """Where no attribute of a module leads to."""
    seen = []


def leaks(self, x):
    y = self.linear(x)
    Hidden.seen.append(y)
    return plain(self, x)


def reads_leaks(model, x):
    Hidden.seen.clear()
    for block in model.blocks:
        x = block(x)
    return x + Hidden.seen[0]


def outside_tensor(self, x):
    return plain(self, x) + Hidden.table


def gives_table(model, x):
    Hidden.table = x * 3
    for block in model.blocks:
        x = block(x)
    return x


TURNS = {"count": 0}


def second_differs(self, x):
    TURNS["count"] += 1
    return plain(self, x) * 2 if TURNS["count"] == 2 else plain(self, x)


def reset_turns(model, x):
    TURNS["count"] = 0
    for block in model.blocks:
        x = block(x)
    return x


def writes_its_buffer(self, x):
    self.offset.add_(1)
    return plain(self, x)


@pytest.mark.parametrize("forward, call, why", [
    (leaks, reads_leaks, "inside of a block"), (outside_tensor, gives_table, "none of its weights and not among its arguments"),
    (second_differs, reset_turns, "do not become the same nodes")], ids=["leak", "outside", "second"])
def test_what_is_in_doubt_is_exported_as_a_whole(forward, call, why, monkeypatch):
    said = check(Stack(forward, call=call), X, monkeypatch)
    assert "every block: " in said and why in said


def test_blocks_that_write_their_buffers_are_all_traced():
    made = Stack(writes_its_buffer).eval()
    expected = copy.deepcopy(made)
    ir = dw.capture(made, X)
    assert "stands for" not in ir.trace.origin
    engine = dw.compile(ir)
    with torch.no_grad():
        for _ in range(2):
            assert torch.allclose(engine(X), expected(X), atol=1e-4)


def test_hooks_and_patched_blocks_are_traced(monkeypatch):
    hooked = Stack(count=5)
    hooked.blocks[2].linear.register_forward_hook(lambda m, args, out: out * 2)
    assert "blocks.0 stands for 2 like it" in check(hooked, X, monkeypatch)
    patched = Stack(count=6)
    patched.blocks[2].forward = lambda x: plain(patched.blocks[2], x) * 3
    assert "blocks.0 stands for 3 like it" in check(patched, X, monkeypatch)
    assert "forward" in patched.blocks[2].__dict__
    patched = Stack(count=6)
    patched.blocks[3].linear.forward = lambda x: x
    assert "blocks.0 stands for 3 like it" in check(patched, X, monkeypatch)


def test_weights_may_be_shared(monkeypatch):
    every = Stack()
    for block in every.blocks[1:]:
        block.linear.weight = every.blocks[0].linear.weight
    check(every, X, monkeypatch)
    one = Stack()
    one.blocks[3].linear.weight = one.blocks[2].linear.weight
    assert "stands for 4" in check(one, X, monkeypatch)
    modules = Stack()
    for block in modules.blocks[1:]:
        block.linear = modules.blocks[0].linear
    assert "stands for" not in check(modules, X, monkeypatch)


def several(self, x, pair, extra=None):
    y = plain(self, x)
    return {"hidden": y, "same": pair[0], "both": (y, pair[1] + extra)}


def call_several(model, x):
    pair = (x * 2, x * 3)
    for block in model.blocks:
        made = block(x, pair, extra=x)
        x, pair = made["hidden"], (made["same"], made["both"][1])
    return made


def test_results_of_any_form(monkeypatch):
    assert "stands for 4" in check(Stack(several, call=call_several), X, monkeypatch)


def test_constants_of_a_block_are_shared():
    def forward(self, x):
        return plain(self, x) * torch.tensor([1.0, 2.0] * 4)
    model = Stack(forward).eval()
    ir = dw.capture(model, X)
    assert "stands for 4" in ir.trace.origin
    with torch.no_grad():
        assert torch.allclose(dw.compile(ir)(X), model(X), atol=1e-3)


def test_stacks_in_blocks_and_sequentials(monkeypatch):
    inner = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(inplace=True)) for _ in range(5)])
    said = check(inner, X, monkeypatch)
    assert "0 stands for 3 like it" in said
    nested = torch.nn.Sequential(copy.deepcopy(inner), copy.deepcopy(inner))     # too few of the outer kind
    assert "0.0 stands for 3 like it, 1.0 stands for 3 like it" in check(nested, X, monkeypatch)


def test_the_wrapping_module_is_found_under_its_own_path(monkeypatch):
    from deepwell.trace import trace
    model = Stack().eval()
    found = [trace(model, (X,), {}, base=base) for base in ("blocks", "a.blocks.0")]
    monkeypatch.setattr(repeats, "find_blocks", lambda model: [])
    for made, base in zip(found, ("blocks", "a.blocks.0")):
        assert "stands for" in made.origin
        assert lines(graph(made)) == lines(graph(trace(model, (X,), {}, base=base)))


def graph(made):
    from deepwell.region import graph_of
    return graph_of("m", made.program, None).print()


def test_buffers_can_be_lifted_afterwards(monkeypatch):
    from deepwell.trace import trace
    model = Stack().eval()
    made = trace(model, (X,), {})
    monkeypatch.setattr(repeats, "find_blocks", lambda model: [])
    expected = trace(model, (X,), {})
    for each in (made, expected):
        each.relower(["blocks.0.offset", "blocks.4.offset"])
    assert made.lifted == expected.lifted and lines(graph(made)) == lines(graph(expected))


# ---- models of transformers ----

COMMON = dict(vocab_size=64, hidden_size=16, num_hidden_layers=5, num_attention_heads=2, num_key_value_heads=1, intermediate_size=24, max_position_embeddings=64)
IDS = torch.arange(1, 41).reshape(2, 20)


@pytest.mark.long
@pytest.mark.parametrize("name, settings, said", [
    ("Llama", {}, "stands for 3"), ("Mistral", {"sliding_window": 8}, "stands for 3"), ("Gemma2", {"num_hidden_layers": 7, "head_dim": 8, "sliding_window": 8}, "model.layers.1 stands for 1"),
    ("GPT2", {"n_embd": 16, "n_head": 2, "n_layer": 5, "vocab_size": 64, "scale_attn_by_inverse_layer_idx": True}, "exported in"), ("Bert", {}, "stands for 3"),
    ("Qwen3Moe", {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}, "stands for 3")])
def test_models_of_transformers_become_the_same_graphs(name, settings, said, monkeypatch):
    tf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = settings if name == "GPT2" else COMMON | settings
    if name == "Bert":
        settings.pop("num_key_value_heads")
    config = getattr(tf, f"{name}Config")(**settings)
    model = tf.BertModel(config) if name == "Bert" else tf.AutoModelForCausalLM.from_config(config)
    assert said in check(model, {"input_ids": IDS}, monkeypatch)


@pytest.mark.long
def test_the_caches_of_transformers_run_for_every_block(monkeypatch):
    tf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**COMMON)).eval()
    with torch.no_grad():
        def filled(cache):
            model(IDS, past_key_values=cache)
            return {"input_ids": IDS[:, :1], "past_key_values": cache}
        check(model, filled(tf.DynamicCache(config=model.config)), monkeypatch)
        made = check(model, filled(tf.StaticCache(config=model.config, max_cache_len=32)) | {"cache_position": torch.tensor([20])}, monkeypatch)
    assert "stands for 3" in made or "every block: " in made
