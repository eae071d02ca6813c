"""Small transformers written by hand, in the spellings people use outside of any library.

Each builder returns a module with random weights; what inputs it takes and how it is exported is said in catalog.py.
"""
import math

import torch
import torch.nn.functional as F
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM
from torch import nn


class CausalSelfAttention(nn.Module):
    """One projection for q, k and v, and torch's own causal attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(x).split(d, dim=2)
        q, k, v = (t.view(b, s, self.heads, d // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(b, s, d))


class TrilSelfAttention(nn.Module):
    """The same attention by hand: scores, a lower-triangular buffer, softmax."""

    def __init__(self, width, heads, max_length):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(max_length, max_length)).view(1, 1, max_length, max_length))

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(x).split(d, dim=2)
        q, k, v = (t.view(b, s, self.heads, d // self.heads).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :s, :s] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.proj(y.transpose(1, 2).contiguous().view(b, s, d))


class Block(nn.Module):
    """Pre-norm block around the given attention."""

    def __init__(self, width, attention):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = attention
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Token and learned position embeddings, blocks, a head tied to the token embedding."""

    def __init__(self, vocab, max_length, width, blocks, attention):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(max_length, width)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(Block(width, attention()) for _ in range(blocks))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx):
        position = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(position))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class EncoderBlock(nn.Module):
    """Post-norm encoder block of the first transformer, separate projections, padding given as a [b,s] mask of 0 and 1."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x, mask):
        b, s, d = x.shape
        q, k, v = (f(x).view(b, s, self.heads, d // self.heads).transpose(1, 2) for f in (self.query, self.key, self.value))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(d // self.heads) + bias
        y = torch.matmul(torch.softmax(scores, dim=-1), v).permute(0, 2, 1, 3).reshape(b, s, d)
        x = self.norm1(x + self.out(y))
        return self.norm2(x + self.down(F.relu(self.up(x))))


def gelu_longhand_tanh(x):
    """GPT-2's spelling."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_longhand_erf(x):
    """BERT's first spelling."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_sigmoid(x):
    """The quick GELU of CLIP: an activation of its own."""
    return x * torch.sigmoid(1.702 * x)


class Mlp(nn.Module):
    """Two linears and the given activation between them."""

    def __init__(self, width, hidden, activation, bias=True):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden, bias=bias)
        self.fc2 = nn.Linear(hidden, width, bias=bias)
        self.activation = activation

    def forward(self, x):
        return self.fc2(self.activation(self.fc1(x)))


class GatedMlp(nn.Module):
    """silu(gate) * up, as in Llama."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Indexer(nn.Module):
    """The logits by which DeepSeek's sparse attention picks keys for each query: few heads of queries over shared keys."""

    def __init__(self, width, heads, head_width):
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.query = nn.Linear(width, heads * head_width, bias=False)
        self.key = nn.Linear(width, head_width, bias=False)
        self.norm = nn.LayerNorm(head_width)
        self.weights = nn.Linear(width, heads, bias=False)

    def forward(self, x):
        b, s, _ = x.shape
        q = self.query(x).view(b, s, self.heads, self.head_width)
        scores = torch.einsum("bshd,btd->bsht", q, self.norm(self.key(x))) * self.head_width**-0.5
        return torch.einsum("bsht,bsh->bst", F.relu(scores), self.weights(x) * self.heads**-0.5)


class OneLinear(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.fc = nn.Linear(width, out)

    def forward(self, x):
        return self.fc(x)


class ShiftedGpt(Gpt):
    """Mixes each token with the one before it, which a cached step cannot do without remembering that token."""

    def forward(self, idx):
        x = self.wte(idx)
        x = x + 0.5 * F.pad(x, (0, 0, 1, 0))[:, :-1]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class PooledGpt(Gpt):
    """Adds the mean over all tokens: later tokens change what earlier ones give, so nothing can be cached."""

    def forward(self, idx):
        x = self.wte(idx)
        x = x + x.mean(dim=1, keepdim=True)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def nanogpt():
    return Gpt(509, 128, 80, 2, lambda: CausalSelfAttention(80, 5))


def tril_gpt():
    return Gpt(320, 96, 64, 2, lambda: TrilSelfAttention(64, 4, 96))


MLPS = {
    "gelu_erf": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "gelu_longhand_tanh": gelu_longhand_tanh,
    "gelu_longhand_erf": gelu_longhand_erf,
    "gelu_sigmoid": gelu_sigmoid,
    "silu": F.silu,
    "relu": F.relu,
}


def shifted_gpt():
    return ShiftedGpt(320, 8, 64, 2, lambda: CausalSelfAttention(64, 4))


def pooled_gpt():
    return PooledGpt(320, 8, 64, 2, lambda: CausalSelfAttention(64, 4))


class ExpertLoop(nn.Module):
    """A mixture of experts as written by hand: every expert sees every token, and each token weighs what its own experts say."""

    def __init__(self, width, hidden, experts, chosen):
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(GatedMlp(width, hidden) for _ in range(experts))

    def forward(self, x):
        b, s, d = x.shape
        flat = x.reshape(-1, d)
        weights, ids = torch.topk(F.softmax(self.router(flat), dim=-1), self.chosen, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        result = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            share = (weights * (ids == index)).sum(dim=-1, keepdim=True)
            result = result + share * expert(flat)
        return result.reshape(b, s, d)


class ExpertBlock(Block):
    """The block with a mixture of experts for its two linears."""

    def __init__(self, width, attention):
        super().__init__(width, attention)
        self.mlp = ExpertLoop(width, 2 * width, 4, 2)


class ExpertGpt(Gpt):
    """A language model of such blocks."""

    def __init__(self, vocab, max_length, width, blocks, attention):
        super().__init__(vocab, max_length, width, 0, attention)
        self.h = nn.ModuleList(ExpertBlock(width, attention()) for _ in range(blocks))


def expert_gpt():
    return ExpertGpt(320, 96, 64, 2, lambda: CausalSelfAttention(64, 4))


class StaticCache(nn.Module):
    """A language model around the cache of fixed length that transformers exports; in fp64, which that cache is not made for, without it."""

    def __init__(self, model, length):
        super().__init__()
        model.generation_config.use_cache = True
        model.generation_config.cache_implementation = "static"
        model.generation_config.cache_config = {"batch_size": 1, "max_cache_len": length}
        self.exported = TorchExportableModuleForDecoderOnlyLM(model, batch_size=1, max_cache_len=length).model
        self.is_exact = False

    def double(self):
        self.is_exact = True
        return super().double()

    def forward(self, input_ids, cache_position):
        if self.is_exact:
            return self.exported.model(input_ids).logits
        return self.exported(input_ids=input_ids, cache_position=cache_position)
