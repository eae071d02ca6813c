"""Attention of packed texts, and attn_implementation="deepwell" of transformers."""

import copy

import pytest
import torch
import torch.nn.functional as F

import deepwell as dw

transformers = pytest.importorskip("transformers")


def close(a, b, bound=2e-6):
    return a.shape == b.shape and a.dtype == b.dtype and float((a - b).double().norm()) <= bound * float(b.double().norm())


# ---- packed texts ----

def packed(lengths, heads=4, groups=2, width=16, dtype=torch.float32):
    torch.manual_seed(len(lengths))
    queries, keys = (torch.tensor([0] + [n[i] for n in lengths]).cumsum(0).int() for i in range(2))
    q, k, v = (torch.randn(int(starts[-1]), h, width).to(dtype) for starts, h in ((queries, heads), (keys, groups), (keys, groups)))
    return q, k, v, queries, keys


def one_by_one(q, k, v, queries, keys, causal=False, window=0, scale=None):
    made = []
    for i in range(len(queries) - 1):
        a, (b, c) = q[queries[i]:queries[i + 1]].transpose(0, 1)[None], (x[keys[i]:keys[i + 1]].transpose(0, 1)[None] for x in (k, v))
        s, t = a.shape[2], b.shape[2]
        seen = torch.ones(s, t, dtype=torch.bool)
        if causal:
            seen = seen.tril(t - s)
        if window:
            seen &= ~torch.ones(s, t, dtype=torch.bool).tril(t - s - window)
        b, c = (x.repeat_interleave(a.shape[1] // x.shape[1], 1) for x in (b, c))
        y = F.scaled_dot_product_attention(a.double(), b.double(), c.double(), attn_mask=seen, scale=scale)
        made.append(torch.where(seen.any(1)[:, None], y, 0)[0].transpose(0, 1))
    return torch.cat(made).to(q.dtype)


@pytest.mark.parametrize("lengths", [[(5, 5), (1, 1), (70, 70)], [(3, 9), (1, 40), (2, 2)], [(4, 4)], [(2, 0), (3, 3)], [(0, 4), (6, 2)]])
def test_packed_texts_see_their_own_keys(lengths):
    q, k, v, queries, keys = packed(lengths)
    for how in ({}, {"causal": True}, {"causal": True, "window": 3}, {"scale": 0.7}):
        assert close(dw.ops.attention_packed(q, k, v, queries, keys, **how), one_by_one(q, k, v, queries, keys, **how)), how
    longer = torch.cat([q, torch.randn(3, *q.shape[1:])])        # tokens of no text
    made = dw.ops.attention_packed(longer, k, v, queries, keys, longest=100)
    assert torch.equal(made[:len(q)], dw.ops.attention_packed(q, k, v, queries, keys)) and made[len(q):].abs().max() == 0


def test_packed_texts_of_one_kind_need_one_list_of_starts():
    q, k, v, queries, _ = packed([(5, 5), (8, 8)])
    assert torch.equal(dw.ops.attention_packed(q, k, v, queries, causal=True), dw.ops.attention_packed(q, k, v, queries, queries, causal=True))
    assert dw.ops.attention_packed(q[:0], k, v, torch.tensor([0])).shape == (0, 4, 16)
    sink = torch.randn(4)
    weights = torch.cat([torch.einsum("shd,thd->hst", q[:5], k[:5].repeat_interleave(2, 1)) / 4, sink[:, None, None].expand(4, 5, 1)], -1).softmax(-1)[..., :-1]
    assert close(dw.ops.attention_packed(q, k, v, queries, sink=sink)[:5], torch.einsum("hst,thd->shd", weights, v[:5].repeat_interleave(2, 1)))


def test_packed_nonsense_is_refused():
    q, k, v, queries, keys = packed([(5, 5), (8, 8)])
    with pytest.raises(dw.Mismatch, match="query_starts"):
        dw.ops.attention_packed(q, k, v, queries, keys[:-1])
    with pytest.raises(dw.Mismatch, match="query_starts"):
        dw.ops.attention_packed(q, k, v, queries.float())
    with pytest.raises(dw.Unsupported, match="window"):
        dw.ops.attention_packed(q, k, v, queries, window=4)
    with pytest.raises(dw.Error):
        dw.ops.attention_packed(q, k, v[:, :1], queries)


def test_the_weight_of_rows_joins_parts_of_the_keys():
    torch.manual_seed(1)
    q, k, v = torch.randn(2, 4, 5, 16), torch.randn(2, 2, 30, 16), torch.randn(2, 2, 30, 16)
    made, lse = dw.ops.attention_lse(q, k, v)
    scores = q @ k.repeat_interleave(2, 1).mT / 4
    assert close(lse, scores.logsumexp(-1)) and torch.equal(made, dw.ops.attention(q, k, v))
    parts = [dw.ops.attention_lse(q, k[:, :, part], v[:, :, part]) for part in (slice(0, 11), slice(11, None))]
    shares = torch.stack([lse for _, lse in parts]).softmax(0)
    assert close(sum(share[..., None] * y for share, (y, _) in zip(shares, parts)), made)
    hidden = torch.zeros(5, 30, dtype=torch.bool)
    assert dw.ops.attention_lse(q, k, v, hidden)[1].max() == float("-inf")
    p, a, b, queries, keys = packed([(3, 9), (1, 40), (2, 0)])
    y, lse = dw.ops.attention_packed_lse(p, a, b, queries, keys)
    assert torch.equal(y, dw.ops.attention_packed(p, a, b, queries, keys)) and lse.shape == (6, 4)
    assert close(lse[:3].T, (p[:3].transpose(0, 1) @ a[:9].repeat_interleave(2, 1).permute(1, 2, 0) / 4).logsumexp(-1)) and lse[4:].max() == float("-inf")


@pytest.mark.parametrize("op", ["attention_packed", "attention_packed_lse", "attention_lse"])
def test_opcheck(op):
    q, k, v, starts, _ = packed([(5, 5), (8, 8)])
    arguments = (q, k, v, starts) if "packed" in op else (q[None], k[None].repeat(1, 1, 2, 1), v[None].repeat(1, 1, 2, 1))
    torch.library.opcheck(getattr(torch.ops.deepwell, op).default, arguments)


# ---- transformers ----

SMALL = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=99, max_position_embeddings=64)


def pair(config):
    """The same weights with eager attention and with deepwell's."""
    dw.register_attention()
    torch.manual_seed(3)
    cls = transformers.AutoModelForCausalLM if type(config) in transformers.AutoModelForCausalLM._model_mapping else transformers.AutoModel
    models = [cls.from_config(copy.deepcopy(config), attn_implementation=name).eval() for name in ("eager", "deepwell")]
    models[1].load_state_dict(models[0].state_dict())
    return models


CONFIGS = [
    transformers.LlamaConfig(**SMALL), transformers.MistralConfig(**SMALL, sliding_window=5), transformers.Gemma2Config(**SMALL, head_dim=8, sliding_window=5),
    transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64),
    transformers.GptOssConfig(**SMALL, head_dim=8, sliding_window=5, num_local_experts=4, num_experts_per_tok=2),
    transformers.BertConfig(**{name: value for name, value in SMALL.items() if name != "num_key_value_heads"})]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: type(c).__name__)
def test_models_of_transformers_give_what_eager_attention_gives(config, monkeypatch):
    eager, ours = pair(config)
    calls = []
    monkeypatch.setattr(dw.ops, "attention", lambda *arguments, made=dw.ops.attention: calls.append(arguments) or made(*arguments))
    ids = torch.randint(1, 99, (2, 11))
    padding = torch.ones(2, 11, dtype=torch.long)
    padding[1, :4] = 0
    with torch.no_grad():
        for mask in (None, padding):
            a, b = (model(input_ids=ids, attention_mask=mask)[0] for model in (eager, ours))
            rows = slice(None) if mask is None else mask.bool()
            assert close(b[rows], a[rows], 2e-5)
    assert len(calls) == 4      # of two layers, twice


@pytest.mark.long
def test_generation_beside_a_cache_is_the_same():
    eager, ours = pair(transformers.LlamaConfig(**SMALL))
    ids = torch.randint(1, 99, (2, 7))
    a, b = (model.generate(ids, max_new_tokens=9, do_sample=False, pad_token_id=0) for model in (eager, ours))
    assert torch.equal(a, b)


def test_what_it_cannot_do_is_said():
    _, ours = pair(transformers.LlamaConfig(**SMALL, attention_dropout=0.1))
    ids = torch.randint(1, 99, (1, 5))
    with pytest.raises(dw.Unsupported, match="dropout"):
        ours.train()(input_ids=ids)
    with pytest.raises(Exception, match="backward through deepwell"):
        ours.eval()(input_ids=ids).logits.sum().backward()
