"""Writes one small archive for each spelling of an operator, with inputs and PyTorch's outputs, for tests/capture/test_models.c to run.

Usage: export_operators.py DIRECTORY [NAME...]

The same files and manifest as models/export.py makes, for functions of one line. A directory that these lines made already is left as it is.
"""
import hashlib
import json
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")


def stamp():
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


if __name__ == "__main__" and len(sys.argv) == 2:
    made = Path(sys.argv[1]) / "manifest.json"
    if made.exists() and json.loads(made.read_text())["stamp"] == stamp():
        sys.exit(0)

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

G = torch.Generator().manual_seed(7)


def f(*shape):
    return torch.randn(shape, generator=G)


def i(*shape, high=5):
    return torch.randint(0, high, shape, generator=G)


def b(*shape):
    return torch.rand(shape, generator=G) > 0.4


def inplace(x, act):
    """act on a copy, so that the input is not written."""
    y = x.clone()
    act(y)
    return y


class State(torch.nn.Module):
    """A buffer that is written in every run."""

    def __init__(self, act):
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 6))
        self.act = act

    def forward(self, x):
        return self.act(self.kept, x)


def write_row(kept, x):
    kept[1:3].copy_(x[:2])
    return kept * 2


def count_up(kept, x):
    kept.add_(1)
    return kept + x


def slices(x):
    y = torch.zeros_like(x)
    y[:, 1:3] = x[:, :2]
    y[0] += 1
    y.t()[3].mul_(2)
    return y


def views(x):
    y = x.clone()
    v = y.view(-1)
    w = y[:, ::2]
    w.add_(10)
    v[3] = 7
    return y, w, v * 1


def late_view(x):
    y = x.clone()
    w = y[1:]
    y.mul_(3)
    return w + 1


def alias_to(x):
    y = x + 0
    y.to(torch.float32).reshape(2, -1).add_(1)
    return y


def inverse(p):
    q = torch.empty_like(p)
    q[p] = torch.arange(p.shape[0])
    return q


def router(x):
    w, at = torch.topk(torch.softmax(x, -1), 2, dim=-1)
    w /= w.sum(-1, keepdim=True)
    return w, at


def sorted_experts(ids):
    flat = ids.view(-1)
    values, order = torch.sort(flat)
    counts = torch.histc(values.float(), bins=5, min=0, max=4)
    return values, order, order // 2, counts, torch.cumsum(counts, 0, dtype=torch.int32)


def attend(q, k, v, **more):
    return F.scaled_dot_product_attention(q, k, v, **more)


def rotate_complex(x, angle):
    """The rotary embedding of the first Llama."""
    table = torch.polar(torch.ones_like(angle), angle)[None, :, None, :]
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table).flatten(3)


class ComplexTable(torch.nn.Module):
    """The same with the table in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.polar(torch.ones(9, 4), f(9, 4)))

    def forward(self, x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.table[:x.shape[1]].view(1, x.shape[1], 1, 4)).flatten(3)


def permutation(n):
    return torch.randperm(n, generator=G)


E = torch.float32
# name, function, inputs. A name's first word is what it tests.
ROWS = [
    *((n, fn, (f(3, 5),)) for n, fn in {
        "abs": torch.abs, "neg": torch.neg, "sign": torch.sign, "exp": torch.exp, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh,
        "sigmoid": torch.sigmoid, "erf": torch.erf, "relu": torch.relu, "silu": F.silu, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round,
        "square": torch.square, "expm1": torch.expm1, "exp2": torch.exp2, "trunc": torch.trunc, "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus": F.softplus, "softplus_beta": lambda x: F.softplus(x, beta=2.0),
        "hardtanh": F.hardtanh, "leaky_relu": F.leaky_relu, "elu": F.elu, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "relu6": F.relu6,
        "mish": F.mish, "logsigmoid": F.logsigmoid, "isnan": torch.isnan, "isinf": torch.isinf, "logical_not": torch.logical_not,
        "reciprocal": torch.reciprocal}.items()),
    *((n, fn, (f(3, 5).abs() + 0.1,)) for n, fn in {
        "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "log1p": torch.log1p, "log2": torch.log2, "log10": torch.log10}.items()),
    ("sqrt_int", lambda x: torch.sqrt(x), (i(4),)),
    ("glu", lambda x: F.glu(x, dim=-1), (f(3, 6),)),
    ("add_alpha", lambda x, y: torch.add(x, y, alpha=0.5), (f(3, 4), f(4))),
    ("add_int", lambda x: x + 3, (i(3, 4),)),
    ("add_int_float", lambda x: x + 0.5, (i(3, 4),)),
    ("add_bool", lambda x, y: x + y, (b(6), b(6))),
    ("add_half", lambda x: x + 0.1, (f(3, 4).bfloat16(),)),
    ("mul_half_single", lambda x, y: x * y, (f(3, 4).bfloat16(), f(4))),
    ("mul_int_scalar_tensor", lambda x, y: x * y, (i(3, 4), f())),
    ("mul_bool", lambda x, y: x * y, (b(6), b(6))),
    ("sub", lambda x, y: x - y, (f(3, 1), f(4))),
    ("rsub", lambda x: 1.0 - x, (f(3, 4),)),
    ("rsub_int", lambda x: torch.rsub(x, 2), (i(3, 4),)),
    ("div", lambda x, y: x / y, (f(3, 4), f(4))),
    ("div_int", lambda x: x / 3, (i(3, 4),)),
    ("div_floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), (f(3, 4), f(4))),
    ("div_trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), (i(9) - 4, i(9) + 1)),
    ("floor_divide", lambda x: (x - 3) // 2, (i(9),)),
    ("floor_divide_float", lambda x: x // 0.3, (f(9),)),
    ("remainder", lambda x: (x - 3) % 2, (i(9),)),
    ("remainder_float", lambda x, y: x % y, (f(9), f(9))),
    ("fmod", lambda x: torch.fmod(x, 0.7), (f(9),)),
    ("pow_int", lambda x: x ** 2, (f(3, 4),)),
    ("pow_three", lambda x: torch.pow(x, 3.0), (f(3, 4),)),
    ("pow_base", lambda x: 2.0 ** x, (f(3, 4),)),
    ("pow_tensor", lambda x, y: x.abs() ** y, (f(3, 4), f(4))),
    ("pow_exponents", lambda x: 0.5 ** x, (i(3, 4),)),
    ("minimum", torch.minimum, (f(5), f(5))),
    ("max_other", torch.max, (f(5), f(5))),
    ("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), (f(5), f(5), f(5))),
    ("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), (f(5), f(5), f(5))),
    ("lerp", lambda x, y: torch.lerp(x, y, 0.3), (f(5), f(5))),
    *((n, fn, (i(3, 4), i(4))) for n, fn in {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}.items()),
    ("eq_scalar", lambda x: x == 2, (i(9),)),
    ("gt_scalar", lambda x: x > 0.25, (f(9),)),
    ("lt_mixed", lambda x, y: x < y, (i(9), f(9))),
    ("and", lambda x, y: x & y, (b(9), b(9))),
    ("or", lambda x, y: x | y, (b(9), b(9))),
    ("xor_int", lambda x, y: x ^ y, (i(9), i(9))),
    ("bitwise_not", lambda x: ~x, (b(9),)),
    ("bitwise_not_int", lambda x: ~x, (i(9),)),
    ("logical_and", torch.logical_and, (f(9).round(), i(9))),
    ("where", torch.where, (b(3, 4), f(3, 4), f(4))),
    ("where_scalars", lambda c, x: torch.where(c, x, -1e9), (b(3, 4), f(3, 4))),
    ("where_two_scalars", lambda c: torch.where(c, 1.5, 0.0), (b(3, 4),)),
    ("where_self_scalar", lambda c, x: torch.where(c, 2.0, x), (b(3, 4), f(3, 4))),
    ("masked_fill", lambda x, m: x.masked_fill(m, float("-inf")), (f(3, 4), b(4))),
    ("clamp", lambda x: x.clamp(-0.5, 0.5), (f(9),)),
    ("clamp_min", lambda x: x.clamp(min=0.1), (f(9),)),
    ("clamp_tensor", lambda x, lo: torch.clamp(x, min=lo), (f(9), f(9))),
    ("cast_int", lambda x: x.to(torch.int64), (f(9) * 3,)),
    ("cast_bool", lambda x: x.bool(), (i(9, high=2),)),
    ("cast_half", lambda x: x.to(torch.bfloat16).float(), (f(9),)),
    ("type_as", lambda x, y: x.type_as(y), (i(9), f(2))),
    ("dropout", lambda x: F.dropout(x, 0.5, training=False), (f(4),)),
    ("contiguous", lambda x: x.t().contiguous().view(-1), (f(3, 4),)),
    # views
    ("view", lambda x: x.view(2, -1, 3), (f(4, 6),)),
    ("reshape_transposed", lambda x: x.transpose(0, 1).reshape(-1), (f(4, 6),)),
    ("flatten", lambda x: x.flatten(1), (f(2, 3, 4),)),
    ("flatten_scalar", lambda x: x.flatten(), (f(),)),
    ("unflatten", lambda x: x.unflatten(-1, (2, -1)), (f(2, 6),)),
    ("squeeze", lambda x: (x.squeeze(), x.squeeze(1), x.squeeze((0, 1))), (f(1, 1, 3, 1),)),
    ("unsqueeze", lambda x: x.unsqueeze(-1).unsqueeze(0), (f(3),)),
    ("permute", lambda x: x.permute(2, 0, 1), (f(2, 3, 4),)),
    ("movedim", lambda x: torch.movedim(x, (0, 1), (2, 0)), (f(2, 3, 4),)),
    ("numpy_T", lambda x: x.T @ x, (f(4, 3),)),
    ("mT", lambda x: x.mT, (f(2, 4, 3),)),
    ("t", lambda x: x.t(), (f(4, 3),)),
    ("expand", lambda x: x.expand(2, -1, 4), (f(3, 1),)),
    ("expand_as", lambda x, y: x.expand_as(y), (f(3, 1), f(2, 3, 4))),
    ("slice", lambda x: (x[1:], x[:-1], x[::2], x[-2:], x[:, 1:3], x[..., -1:]), (f(5, 4),)),
    ("select", lambda x: (x[0], x[-1], x[:, 2], x[1, 3]), (f(5, 4),)),
    ("narrow", lambda x: x.narrow(1, 1, 2), (f(5, 4),)),
    ("split", lambda x: x.split(2, dim=1), (f(3, 5),)),
    ("split_sizes", lambda x: x.split([1, 4], dim=1), (f(3, 5),)),
    ("chunk", lambda x: x.chunk(3, dim=-1), (f(3, 7),)),
    ("tensor_split", lambda x: x.tensor_split(3, dim=-1), (f(3, 7),)),
    ("unbind", lambda x: x.unbind(1), (f(3, 4),)),
    # new tensors
    ("arange", lambda x: (torch.arange(x.shape[0]) + 1, torch.arange(2, 9, 3), torch.arange(5, dtype=E), torch.arange(0, 1, 0.25)), (f(3),)),
    ("full", lambda x: (torch.full((2, 3), 1.5), torch.full_like(x, 2), x.new_full((2,), 3.0), x.new_zeros(2, 2), x.new_ones(3)) + (x,), (f(3),)),
    ("zeros", lambda x: (torch.zeros(2, 3) + x[0], torch.ones(2) * x[1], torch.zeros_like(x) + x, torch.ones_like(x) * x), (f(3),)),
    ("eye", lambda x: torch.eye(3) + x, (f(3, 3),)),
    ("linspace", lambda x: torch.linspace(-1, 1, 7) + x, (f(7),)),
    ("scalar_tensor", lambda x: x * torch.tensor(2.5), (f(7),)),
    # movement
    ("cat", lambda x, y: torch.cat([x, y, x], dim=-1), (f(2, 3), f(2, 4))),
    ("cat_formats", lambda x, y: torch.cat([x, y]), (f(2), i(3))),
    ("cat_empty", lambda x: torch.cat([x.new_zeros(0), x]), (f(2, 3),)),
    ("cat_many", lambda x: torch.cat([x * k for k in range(70)]), (f(1),)),
    ("stack", lambda x, y: torch.stack([x, y], dim=1), (f(2, 3), f(2, 3))),
    ("repeat", lambda x: (x.repeat(2, 1, 3), x.tile((2,))), (f(2, 3),)),
    ("repeat_interleave", lambda x: (x.repeat_interleave(3, dim=1), x.repeat_interleave(2)), (f(2, 3),)),
    ("roll", lambda x: (x.roll(1, 0), x.roll((-1, 2), (0, 1))), (f(3, 5),)),
    ("flip", lambda x: x.flip(0, 1), (f(3, 5),)),
    ("pad", lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 0, -1, 1), value=3.0)), (f(3, 5),)),
    ("unfold", lambda x: x.unfold(1, 3, 2), (f(2, 8),)),
    ("tril", lambda x: (x.tril(), x.triu(1), torch.tril(torch.ones(4, 4, dtype=torch.bool), -1)), (f(4, 4),)),
    ("embedding", lambda w, x: F.embedding(x, w), (f(7, 3), i(2, 4))),
    ("index_select", lambda x, at: x.index_select(1, at), (f(3, 5), i(4))),
    ("gather", lambda x, at: x.gather(1, at), (f(3, 5), i(3, 2))),
    ("index", lambda x, at: (x[at], x[:, at], x[at, at]), (f(5, 5, 2), i(4))),
    ("index_apart", lambda x, at: x[at, :, at], (f(5, 3, 5), i(4))),
    ("index_broadcast", lambda x, p, q: x[p[:, None], q[None, :]], (f(5, 6), i(3), i(4))),
    ("index_put", lambda x, at, y: inplace(x, lambda z: z.index_put_((at,), y)), (f(6, 3), permutation(5)[:3], f(3, 3))),
    ("index_put_add", lambda x, at, y: torch.index_put(x, (at,), y, accumulate=True), (f(6, 3), i(4), f(4, 3))),
    ("index_put_mask", lambda x, m: inplace(x, lambda z: z.__setitem__(m, 2.0)), (f(4, 3), b(4, 3))),
    ("index_put_apart", lambda x, at, y: inplace(x, lambda z: z.__setitem__((at, slice(None), at), y)), (f(5, 2, 5), permutation(5)[:3], f(3, 2))),
    ("index_copy", lambda x, at, y: x.index_copy(1, at, y), (f(2, 6), permutation(6)[:3], f(2, 3))),
    ("index_add", lambda x, at, y: x.index_add(0, at, y, alpha=0.5), (f(4, 2), i(5, high=4), f(5, 2))),
    ("scatter", lambda x, at, y: x.scatter(1, at, y), (f(3, 6), permutation(6)[:3].expand(3, 3).contiguous(), f(3, 3))),
    ("scatter_value", lambda x, at: inplace(torch.zeros_like(x), lambda z: z.scatter_(1, at, 1.0)), (f(3, 6), i(3, 2))),
    ("scatter_add", lambda x, at, y: x.scatter_add(1, at, y), (f(3, 6), i(3, 4), f(3, 4))),
    ("scatter_reduce", lambda x, at, y: x.scatter_reduce(1, at, y, "sum"), (f(3, 6), i(3, 4), f(3, 4))),
    ("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 1, 1, 4), (f(3, 6), f(3, 3))),
    ("select_scatter", lambda x, y: torch.select_scatter(x, y, 0, 1), (f(3, 6), f(6))),
    # reductions
    ("sum", lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True)), (f(2, 3, 4),)),
    ("sum_bool", lambda x: (x.sum(), x.sum(-1)), (b(3, 4),)),
    ("mean", lambda x: (x.mean(), x.mean(-1, keepdim=True)), (f(2, 3, 4),)),
    ("mean_half", lambda x: x.mean(-1, dtype=E), (f(2, 8).bfloat16(),)),
    ("prod", lambda x: (x.prod(), x.prod(1)), (f(2, 3),)),
    ("amax", lambda x: (x.amax(-1), x.amin((0, 1)), x.max(), x.min()), (f(2, 3, 4),)),
    ("max_dim", lambda x: tuple(x.max(-1)), (f(2, 3, 4),)),
    ("min_dim", lambda x: tuple(x.min(0, keepdim=True)), (f(2, 3, 4),)),
    ("any", lambda x: (x.any(), x.any(1), x.all(), x.all(-1, keepdim=True)), (b(3, 4),)),
    ("argmax", lambda x: (x.argmax(-1), x.argmin(0, keepdim=True), x.argmax()), (f(3, 4),)),
    ("count_nonzero", lambda x: torch.count_nonzero(x, dim=1), (i(3, 4, high=2),)),
    ("var", lambda x: (x.var(-1), x.var(1, unbiased=False), x.std(0, keepdim=True)), (f(3, 4, 5),)),
    ("var_mean", lambda x: torch.var_mean(x, -1, correction=0, keepdim=True), (f(3, 4),)),
    ("logsumexp", lambda x: torch.logsumexp(x, -1), (f(3, 4),)),
    ("vector_norm", lambda x: (x.norm(dim=-1, keepdim=True), torch.linalg.vector_norm(x, 1, dim=0), F.normalize(x, dim=-1)), (f(3, 4),)),
    ("cumsum", lambda x: (x.cumsum(-1), (x > 0).cumsum(0), x.long().cumsum(0)), (f(3, 4),)),
    ("diff", lambda x: (x.diff(), x.diff(dim=0, prepend=x[:1] - 1)), (i(3, 4),)),
    ("sort", lambda x: (*x.sort(-1), *x.sort(0, descending=True), x.argsort(-1)), (f(3, 4),)),
    ("sort_stable", lambda x: tuple(x.sort(stable=True)), (i(9),)),
    ("topk", lambda x: (*x.topk(2), *x.topk(2, dim=0, largest=False)), (f(3, 4),)),
    ("histc", sorted_experts, (i(4, 2),)),
    ("one_hot", lambda x: F.one_hot(x, 6), (i(3, 2),)),
    ("softmax", lambda x: (x.softmax(-1), x.softmax(0), F.log_softmax(x, -1)), (f(3, 4),)),
    ("softmax_half", lambda x: F.softmax(x, -1, dtype=E), (f(3, 4).bfloat16(),)),
    # norms
    ("layer_norm", lambda x, w, c: (F.layer_norm(x, (6,), w, c), F.layer_norm(x, (6,))), (f(2, 3, 6), f(6), f(6))),
    ("layer_norm_axes", lambda x, w: F.layer_norm(x, (3, 6), w), (f(2, 3, 6), f(3, 6))),
    ("rms_norm", lambda x, w: (F.rms_norm(x, (6,), w, 1e-6), F.rms_norm(x, (6,))), (f(2, 3, 6), f(6))),
    ("group_norm", lambda x, w, c: F.group_norm(x, 2, w, c), (f(2, 6, 5), f(6), f(6))),
    ("batch_norm", lambda x, m, v, w, c: F.batch_norm(x, m, v, w, c), (f(2, 6, 5), f(6), f(6).abs() + 0.1, f(6), f(6))),
    # products
    ("linear", F.linear, (f(2, 3, 6), f(4, 6), f(4))),
    ("linear_row", F.linear, (f(6), f(4, 6))),
    ("matmul", lambda x, y: (x @ y, x[0] @ y[0], x[0, 0] @ y[0], x @ y[0, :, 0], x[0, 0] @ y[0, :, 0]), (f(2, 3, 6), f(2, 6, 4))),
    ("matmul_broadcast", torch.matmul, (f(2, 5, 3, 6), f(5, 6, 4))),
    ("matmul_transposed", lambda x, y: x @ y.transpose(-1, -2), (f(2, 3, 6), f(2, 4, 6))),
    ("bmm", torch.bmm, (f(2, 3, 6), f(2, 6, 4))),
    ("mm", torch.mm, (f(3, 6), f(6, 4))),
    ("mv", torch.mv, (f(3, 6), f(6))),
    ("outer", torch.outer, (f(3), f(4))),
    ("addmm", torch.addmm, (f(4), f(3, 6), f(6, 4))),
    ("addmm_scaled", lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2.0), (f(3, 4), f(3, 6), f(6, 4))),
    ("baddbmm", lambda c, x, y: torch.baddbmm(c, x, y, beta=1.0, alpha=0.25), (f(2, 1, 4), f(2, 3, 6), f(2, 6, 4))),
    ("matmul_int", lambda x, y: x @ y, (i(3, 4), i(4, 2))),
    ("einsum", lambda x, y: (torch.einsum("bhqd,bhkd->bhqk", x, y), torch.einsum("bhqd,bhkd->bqhk", x, y)), (f(2, 3, 4, 5), f(2, 3, 6, 5))),
    ("einsum_outer", lambda x, y: torch.einsum("i,j->ij", x, y), (f(3), f(4))),
    ("einsum_sum", lambda x: (torch.einsum("ij->i", x), torch.einsum("ij->ji", x)), (f(3, 4),)),
    ("einsum_ellipsis", lambda x, y: torch.einsum("...nd,...md->...nm", x, y), (f(2, 3, 4, 5), f(2, 3, 6, 5))),
    ("einsum_two_summed", lambda x, y: torch.einsum("bij,kij->bk", x, y), (f(2, 3, 4), f(5, 3, 4))),
    ("einsum_three", lambda x, y, z: torch.einsum("bi,ij,bj->b", x, y, z), (f(2, 3), f(3, 4), f(2, 4))),
    ("einsum_implied", lambda x, y: torch.einsum("ij,jk", x, y), (f(2, 3), f(3, 4))),
    ("attention", attend, (f(2, 3, 4, 8), f(2, 3, 6, 8), f(2, 3, 6, 8))),
    ("attention_causal", lambda q, k, v: attend(q, k, v, is_causal=True), (f(2, 3, 4, 8), f(2, 3, 4, 8), f(2, 3, 4, 8))),
    ("attention_mask", lambda q, k, v, m: attend(q, k, v, attn_mask=m, scale=0.3), (f(2, 3, 4, 8), f(2, 3, 6, 8), f(2, 3, 6, 8), b(4, 6) | (torch.arange(6) == 0))),
    ("attention_bias", lambda q, k, v, m: attend(q, k, v, attn_mask=m), (f(2, 3, 4, 8), f(2, 3, 6, 8), f(2, 3, 6, 8), f(2, 1, 4, 6))),
    ("attention_grouped", lambda q, k, v: attend(q, k, v, enable_gqa=True), (f(2, 6, 4, 8), f(2, 2, 6, 8), f(2, 2, 6, 8))),
    ("attention_three", attend, (f(3, 4, 8), f(3, 6, 8), f(3, 6, 8))),
    ("attention_five", lambda q, k, v, m: attend(q, k, v, attn_mask=m), (f(2, 2, 3, 4, 8), f(2, 2, 3, 6, 8), f(2, 2, 3, 6, 8), f(2, 1, 1, 4, 6))),
    ("conv1d", lambda x, w, c: F.conv1d(x, w, c, stride=2, padding=1), (f(2, 4, 9), f(6, 4, 3), f(6))),
    ("conv1d_groups", lambda x, w: F.conv1d(x, w, groups=4, dilation=2), (f(2, 4, 9), f(8, 1, 3))),
    ("conv1d_same", lambda x, w: F.conv1d(x, w, padding="same"), (f(2, 4, 9), f(6, 4, 4))),
    ("conv2d", lambda x, w, c: F.conv2d(x, w, c, stride=(2, 1), padding=1), (f(2, 3, 8, 6), f(5, 3, 3, 3), f(5))),
    ("conv2d_valid", lambda x, w: F.conv2d(x, w, padding="valid"), (f(3, 8, 6), f(5, 3, 2, 2))),
    ("conv3d_patch", lambda x, w, c: F.conv3d(x, w, c, stride=(2, 4, 4)), (f(5, 3, 2, 4, 4), f(7, 3, 2, 4, 4), f(7))),
    ("adaptive_avg_pool1d", lambda x: (F.adaptive_avg_pool1d(x, 1), F.adaptive_avg_pool1d(x, 4)), (f(2, 3, 8),)),
    ("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), (f(2, 3, 8, 4),)),
    ("avg_pool", lambda x: (F.avg_pool1d(x, 2), F.avg_pool1d(x, 3, 2, 1)), (f(2, 3, 8),)),
    ("avg_pool_share", lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), (f(2, 3, 5, 4),)),
    ("max_pool2d", lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, (3, 2), 1, dilation=2)), (f(2, 3, 8, 5),)),
    ("max_pool1d", lambda x: F.max_pool1d(x, 3, 2), (f(2, 3, 9),)),
    ("resize_linear", lambda x: (F.interpolate(x, 7, mode="linear"), F.interpolate(x, 3, mode="linear", align_corners=True)), (f(2, 3, 5),)),
    ("resize_bilinear", lambda x: (F.interpolate(x, (7, 3), mode="bilinear"), F.interpolate(x, scale_factor=(2.0, 1.5), mode="bilinear")), (f(2, 3, 5, 4),)),
    ("resize_bicubic", lambda x: (F.interpolate(x, (7, 3), mode="bicubic"), F.interpolate(x, (6, 9), mode="bicubic", align_corners=True)), (f(2, 3, 5, 4),)),
    ("resize_smooth", lambda x: (F.interpolate(x, (3, 9), mode="bilinear", antialias=True), F.interpolate(x, (4, 3), mode="bicubic", antialias=True),
                                 F.interpolate(x, (3, 9), mode="bilinear", antialias=True, align_corners=True)), (f(2, 3, 7, 8),)),
    ("resize_nearest", lambda x: (F.interpolate(x, (7, 3)), F.interpolate(x, scale_factor=2.0), F.interpolate(x, 8, mode="nearest-exact")), (f(2, 3, 5, 4),)),
    ("meshgrid", lambda x, y: (*torch.meshgrid(x, y, indexing="ij"), *torch.meshgrid(x, y, indexing="xy")), (f(3), f(4))),
    ("arange_float_step", lambda x: torch.arange(x.shape[0], -x.shape[0], -1.0), (f(5),)),
    ("weight_norm", lambda v, g: torch._weight_norm(v, g, 2), (f(4, 3, 5), f(1, 1, 5))),
    ("complex_rotary", rotate_complex, (f(2, 5, 3, 8), f(5, 4))),
    ("complex_table", ComplexTable(), (f(2, 5, 3, 8),)),
    ("complex_parts", lambda x, y: (torch.complex(x, y) * 2.0).conj().imag, (f(4), f(4))),
    # functions made of others
    *((n, fn, (f(3, 5).clamp(-0.99, 0.99),)) for n, fn in {
        "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh, "atanh": torch.atanh,
        "erfc": torch.erfc, "selu": F.selu, "celu": lambda x: F.celu(x, 0.7), "hardshrink": F.hardshrink, "softshrink": lambda x: F.softshrink(x, 0.3),
        "threshold": lambda x: F.threshold(x, 0.1, -2.0), "logit": lambda x: torch.logit(x.abs(), eps=0.01)}.items()),
    ("acosh", torch.acosh, (f(3, 5).abs() + 1,)),
    ("atan2", torch.atan2, (torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0, 0.0, 2.0, -2.0, 0.3]), torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, 0.0, 0.0, 0.0, -0.5]))),
    ("logaddexp", torch.logaddexp, (f(7) * 9, f(7))),
    ("isfinite", lambda x: (torch.isfinite(x / (x - x[0])), torch.isneginf(-1 / (x - x[0]).abs()), torch.nan_to_num(x / (x - x[0]).abs(), nan=5.0)), (f(6),)),
    ("prelu", F.prelu, (f(2, 3, 4), f(3))),
    ("bucketize", lambda x, e: (torch.bucketize(x, e.sort().values), torch.bucketize(x, e.sort().values, right=True)), (i(9), i(4).float())),
    ("searchsorted", lambda e, x: torch.searchsorted(e.sort(-1).values, x), (f(2, 5), f(2, 3))),
    ("isin", lambda x, y: (torch.isin(x, y), torch.isin(x, 3, invert=True)), (i(9), i(2))),
    ("repeat_each", lambda x, n: torch.repeat_interleave(x, n, dim=0, output_size=6), (f(4, 3), torch.tensor([2, 0, 3, 1]))),
    ("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, dim=-1), (f(3, 4, 5), f(4, 5))),
    ("losses", lambda x, y: (F.mse_loss(x, y), F.mse_loss(x, y, reduction="sum"), F.l1_loss(x, y, reduction="none")), (f(3, 4), f(3, 4))),
    ("broadcast_tensors", lambda x, y: [t * 1 for t in torch.broadcast_tensors(x, y)], (f(3, 1), f(4))),
    ("cdist", lambda x, y: (torch.cdist(x, y), torch.cdist(x, y, p=1.0)), (f(2, 3, 5), f(2, 4, 5))),
    # windows and places
    ("as_strided", lambda x: torch.as_strided(x, (3, 4), (2, 1), 1), (f(12),)),
    ("diagonal", lambda x: (x.diagonal(dim1=1, dim2=2), x.diagonal(1, 0, 2), x.diagonal(-1, 1, 2)), (f(3, 4, 5),)),
    ("im2col", lambda x: (F.unfold(x, 3, padding=1), F.unfold(x, (2, 3), dilation=(1, 2), stride=(2, 1))), (f(2, 3, 6, 7),)),
    ("col2im_tiles", lambda x: F.fold(x, (4, 6), 2, stride=2), (f(2, 12, 6),)),
    ("col2im", lambda x: F.fold(x, (5, 6), (2, 3), padding=1, stride=(1, 2)), (f(2, 12, 18),)),
    ("pixel_shuffle", lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)), (f(2, 8, 4, 6),)),
    ("pad_reflect", lambda x: (F.pad(x, (2, 1), mode="reflect"), F.pad(x, (0, 3), mode="replicate"), F.pad(x, (2, 2), mode="circular")), (f(2, 3, 5),)),
    ("pad_reflect2d", lambda x: (F.pad(x, (2, 1, 1, 0), mode="reflect"), F.pad(x, (1, 3, 2, 2), mode="replicate")), (f(2, 3, 5, 4),)),
    ("grid_sample", lambda x, g: (F.grid_sample(x, g), F.grid_sample(x, g, align_corners=True), F.grid_sample(x, g, mode="nearest"),
                                  F.grid_sample(x, g, padding_mode="border")), (f(2, 3, 5, 4), f(2, 3, 7, 2))),
    # convolutions and pooling beyond the plain ones
    ("conv3d", lambda x, w, c: (F.conv3d(x, w, c, stride=(2, 1, 2), padding=1), F.conv3d(x, w, dilation=(2, 1, 1))), (f(2, 3, 6, 5, 4), f(4, 3, 2, 3, 2), f(4))),
    ("conv3d_groups", lambda x, w: F.conv3d(x, w, groups=2), (f(1, 4, 3, 5, 4), f(6, 2, 2, 3, 3))),
    ("conv_transpose1d", lambda x, w, c: (F.conv_transpose1d(x, w, c, stride=2), F.conv_transpose1d(x, w, c, 3, 1, 2), F.conv_transpose1d(x, w, dilation=2)),
     (f(2, 4, 5), f(4, 3, 4), f(3))),
    ("conv_transpose1d_groups", lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=2, groups=2), (f(2, 4, 5), f(4, 3, 3))),
    ("conv_transpose2d", lambda x, w, c: (F.conv_transpose2d(x, w, c, stride=(2, 1), padding=(1, 0), output_padding=(1, 0)), F.conv_transpose2d(x, w, c, 1, 2)),
     (f(2, 3, 4, 5), f(3, 6, 3, 2), f(6))),
    ("conv_transpose2d_tiles", lambda x, w, c: F.conv_transpose2d(x, w, c, stride=(2, 3)), (f(2, 3, 4, 5), f(3, 6, 2, 3), f(6))),
    ("max_pool_ceil", lambda x: (F.max_pool2d(x, 2, ceil_mode=True), F.max_pool2d(x, 3, 2, 1, ceil_mode=True), F.max_pool1d(x[0], 2, 3, ceil_mode=True)), (f(2, 3, 7, 5),)),
    ("avg_pool_ceil", lambda x: (F.avg_pool2d(x, 2, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1, True, False),
                                 F.avg_pool2d(x, (2, 3), divisor_override=5)), (f(2, 3, 7, 5),)),
    ("adaptive_uneven", lambda x: (F.adaptive_avg_pool2d(x, (3, 4)), F.adaptive_avg_pool1d(x[0], 9), F.adaptive_max_pool2d(x, (2, 3)), F.adaptive_avg_pool2d(x, (None, 2))),
     (f(2, 3, 7, 6),)),
    ("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (1, 2, 3)), (f(2, 3, 4, 4, 5),)),
    ("group_norm", lambda x, w, c: F.group_norm(x, 2, w, c), (f(2, 4, 5), f(4), f(4))),
    ("instance_norm", lambda x: F.instance_norm(x), (f(2, 4, 5),)),
    # Fourier transforms
    ("fft_real", lambda x: (torch.fft.fftn(x, dim=(1, 2)).real, torch.fft.fft(x, norm="ortho").imag, torch.fft.fft2(x).abs()), (f(2, 6, 5),)),
    ("fft_half", lambda x: (torch.fft.irfft(torch.fft.rfft(x), n=7), torch.fft.irfft(torch.fft.rfft(x)), torch.view_as_real(torch.fft.rfft(x, n=9, dim=1))), (f(2, 5, 7),)),
    ("fft_back", lambda x: (torch.view_as_real(torch.fft.ifft(torch.fft.fft(x) * torch.fft.fft(x), dim=-1)), torch.fft.irfft2(torch.fft.rfft2(x))), (f(3, 4, 6),)),
    # what only the data tell, and needs no size of its own
    ("item_operand", lambda x: x * x.argmax().item(), (f(7),)),
    ("item_asserted", lambda x: (torch._check(x.max().item() < 100), x + 1)[1], (i(7),)),
    ("masked_scatter", lambda x, m, y: x.masked_scatter(m, y), (f(3, 4), b(3, 4), f(12))),
    ("masked_scatter_rows", lambda x, m, y: x.masked_scatter(m[..., None], y), (f(2, 5, 3), b(2, 5), f(10, 3))),
    ("index_put_rows", lambda x, y: inplace(x, lambda z: z.__setitem__(torch.tensor([[True, False, True], [False, True, False]]), y)), (f(2, 3, 4), f(3, 4))),
    ("scatter_amax", lambda x, at, y: (x.scatter_reduce(1, at, y, "amax"), x.scatter_reduce(1, at, y, "amin")), (f(3, 6), i(3, 4), f(3, 4))),
    ("scatter_mean", lambda x, at, y: (x.scatter_reduce(1, at, y, "mean"), x.scatter_reduce(1, at, y, "sum", include_self=False),
                                       x.scatter_reduce(1, at, y, "amax", include_self=False)), (f(3, 6), i(3, 4, high=3), f(3, 4))),
    # writes and views
    ("write_slices", slices, (f(4, 6),)),
    ("write_views", views, (f(4, 6),)),
    ("write_late_view", late_view, (f(4, 6),)),
    ("write_alias", alias_to, (f(4, 6),)),
    ("write_inverse", inverse, (permutation(7),)),
    ("write_router", router, (f(4, 6),)),
    ("write_fill", lambda x: inplace(x, lambda z: (z[0].zero_(), z[1].fill_(3.0), z[2].masked_fill_(z[2] > 0, 1.0))), (f(4, 6),)),
    ("write_split", lambda x: inplace(x, lambda z: z.chunk(2, 1)[1].mul_(-1)), (f(4, 6),)),
    ("write_permuted", lambda x: inplace(x, lambda z: z.permute(1, 0)[2].add_(1)), (f(4, 6),)),
    ("write_unsqueezed", lambda x: inplace(x, lambda z: z.unsqueeze(0)[0, :, 1:3].add_(1)), (f(4, 6),)),
    ("state_row", State(write_row), (f(4, 6),)),
    ("state_count", State(count_up), (f(4, 6),)),
]

# Sizes that vary: the same functions with the first axis of every input dynamic, at other sizes than traced.
DYNAMIC = [
    ("dynamic_slice", lambda x: (x[1:], x[:-1], x[-1:], x[::2], x[: x.shape[0] // 2]), ((6, 4), (3, 4), (9, 4))),
    ("dynamic_view", lambda x: (x.reshape(-1), x.view(x.shape[0] * 2, 2), x.unsqueeze(1).expand(-1, 3, -1).reshape(-1, 4)), ((6, 4), (1, 4))),
    ("dynamic_arange", lambda x: (torch.arange(x.shape[0]) * 2, torch.ones(x.shape[0], x.shape[0]).tril(), x * x.shape[0], torch.full((x.shape[0],), 2.0)), ((6, 4), (1, 4))),
    ("dynamic_cat", lambda x: (torch.cat([x, x[:1]]), torch.stack([x, x]).flatten(0, 1), x.repeat(2, 1), x.roll(1, 0)), ((6, 4), (2, 4))),
    ("dynamic_chunk", lambda x: x.chunk(2, dim=1), ((6, 4), (3, 4))),
    ("dynamic_mean", lambda x: (x.mean(0), x.var(0), x.sum(0) / x.shape[0], x / math_sqrt(x)), ((6, 4), (3, 4))),
    ("dynamic_diff", lambda x: (x.diff(dim=0), x.cumsum(0), x.flip(0), F.pad(x, (0, 0, 1, 2))), ((6, 4), (3, 4))),
    ("dynamic_fft", lambda x: (torch.fft.fftn(x, dim=(0, 1)).real, torch.fft.fft(x, dim=0, norm="ortho").imag), ((6, 4), (3, 4))),
    ("dynamic_unfold", lambda x: x.unfold(0, 2, 1), ((6, 4), (5, 4))),
    ("dynamic_transposed", lambda x: F.conv_transpose1d(x.t()[None], torch.ones(4, 3, 4), stride=2, padding=1), ((6, 4), (3, 4))),
    ("dynamic_write", lambda x: inplace(x, lambda z: z[1:].add_(z[:-1].clone())), ((6, 4), (3, 4))),
]


def math_sqrt(x):
    return torch.tensor(float(x.shape[1])).sqrt()


class Call(torch.nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x, y=None, z=None, u=None, v=None):
        return self.act(*(t for t in (x, y, z, u, v) if t is not None))


class Together(torch.nn.Module):
    """Many rows as one module: decomposing each alone would take minutes."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows
        self.modules_of_rows = torch.nn.ModuleList(act for _, act, _ in rows if isinstance(act, torch.nn.Module))

    def forward(self, **inputs):
        return [act(*(inputs[f"{name}_{k}"] for k in "xyzuv"[:len(given)])) for name, act, given in self.rows]


def write(out, name, act, sets, dynamic, core=False):
    module = (act if isinstance(act, torch.nn.Module) else Call(act)).eval()
    given = [inputs if isinstance(inputs, dict) else dict(zip("xyzuv", inputs)) for inputs in sets]
    shapes = {k: {0: torch.export.Dim.AUTO} for k in given[0]} if dynamic else None
    program = torch.export.export(module, (), kwargs={k: v.clone() for k, v in given[0].items()}, dynamic_shapes=shapes)
    if core:
        with torch.no_grad():
            program = program.run_decompositions()
    torch.export.save(program, out / f"{name}.pt2")
    names = [s.arg.name for s in program.graph_signature.output_specs if s.kind == torch.export.graph_signature.OutputKind.USER_OUTPUT]
    cases = []
    for index, inputs in enumerate(given):
        if isinstance(module, State):
            module.kept.zero_()
        with torch.no_grad():
            got = [t for t in torch.utils._pytree.tree_leaves(module(**{k: v.clone() for k, v in inputs.items()})) if isinstance(t, torch.Tensor)]
        files = {kind: f"{name}.{index}.{kind}.safetensors" for kind in ("in", "out")}
        save_file({k: v.contiguous() for k, v in zip(program.graph_signature.user_inputs, inputs.values())}, out / files["in"])
        save_file({k: v.clone().contiguous() for k, v in zip(names, got)}, out / files["out"])
        cases.append(files)
    # bf16 results are one rounding away; elsewhere fp32 is within a few roundings
    half = any(t.dtype == torch.bfloat16 for t in got)
    return {"name": name, "file": f"{name}.pt2", "cases": cases, "bound": 8e-3 if half else 2e-6}


TOGETHER = 24


def write_core(out):
    """The rows in fp32 once more, in the dialect of run_decompositions()."""
    entries = []
    rows = [row for row in ROWS if not isinstance(row[1], State) and row[0] != "complex_table"]
    rest = [row for row in rows if "half" not in row[0]]
    for index, start in enumerate(range(0, len(rest), TOGETHER)):
        some = rest[start:start + TOGETHER]
        inputs = {f"{name}_{k}": t for name, _, given in some for k, t in zip("xyzuv", given)}
        entries.append(write(out, f"core_{index}", Together(some), [inputs], False, core=True))
    return entries


def main(out, wanted):
    out.mkdir(parents=True, exist_ok=True)
    entries = []
    for name, act, inputs in ROWS:
        if not wanted or name in wanted:
            entries.append(write(out, name, act, [inputs], False))
    for name, act, sizes in DYNAMIC:
        if not wanted or name in wanted:
            entries.append(write(out, name, act, [(f(*size),) for size in sizes], True))
    if not wanted:
        entries.extend(write_core(out))
    (out / "manifest.json").write_text(json.dumps({"stamp": stamp() if not wanted else "", "torch": torch.__version__, "models": entries}, indent=1))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
