"""The carried model: a byte-level GPT with RMSNorm, rotary positions, grouped heads and SwiGLU.

Each use of a weight casts it to the type of the activations. With fp32 weights that is nothing; with bf16 weights (as in the archive)
the module computes in fp32 from bf16 numbers, so fp32 stays the meaning that lower precisions are held against.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    vocab: int = 256
    width: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 64
    hidden: int = 512
    rope_base: float = 10000.0


class Linear(nn.Module):
    def __init__(self, n_in, n_out, std=0.02):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * std)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-5)


def rotate(x, cos, sin):
    """x [b,h,s,d] turned by the angles of its positions; cos and sin [s,d]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, shape, out_std, dropout):
        super().__init__()
        self.head_width = shape.head_width
        self.q = Linear(shape.width, shape.heads * shape.head_width)
        self.k = Linear(shape.width, shape.kv_heads * shape.head_width)
        self.v = Linear(shape.width, shape.kv_heads * shape.head_width)
        self.o = Linear(shape.heads * shape.head_width, shape.width, out_std)
        self.dropout = dropout

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        q, k, v = (f(x).view(b, s, -1, self.head_width).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True,
                                           dropout_p=self.dropout if self.training else 0.0)
        return self.o(y.transpose(1, 2).reshape(b, s, -1))


class Mlp(nn.Module):
    def __init__(self, shape, out_std):
        super().__init__()
        self.gate = Linear(shape.width, shape.hidden)
        self.up = Linear(shape.width, shape.hidden)
        self.down = Linear(shape.hidden, shape.width, out_std)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, shape, dropout):
        super().__init__()
        out_std = 0.02 / (2 * shape.layers) ** 0.5
        self.attn_norm = RmsNorm(shape.width)
        self.attn = Attention(shape, out_std, dropout)
        self.mlp_norm = RmsNorm(shape.width)
        self.mlp = Mlp(shape, out_std)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, cos, sin):
        x = x + self.drop(self.attn(self.attn_norm(x), cos, sin))
        return x + self.drop(self.mlp(self.mlp_norm(x)))


class ByteGpt(nn.Module):
    """input_ids [b,s] (bytes as int64) -> logits [b,s,256]."""

    def __init__(self, shape=Shape(), dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(shape.vocab, shape.width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.width)
        self.lm_head = Linear(shape.width, shape.vocab)
        exponent = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
        self.register_buffer("inv_freq", shape.rope_base ** -exponent, persistent=False)

    def forward(self, input_ids):
        position = torch.arange(input_ids.size(1), device=input_ids.device)
        angle = position[:, None] * self.inv_freq[None, :]
        angle = torch.cat((angle, angle), dim=-1)
        cos, sin = angle.cos(), angle.sin()
        x = self.drop(self.embed(input_ids).float())
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.lm_head(self.norm(x))


def to_bf16(model):
    """Rounds the parameters to bf16; the rotary frequencies stay fp32."""
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16)
    return model
