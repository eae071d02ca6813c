"""dw.ops: right against PyTorch, and torch.library ops that trace, export and compile."""

import json

import pytest
import torch
import torch.nn.functional as F

import deepwell as dw
from deepwell import _core

torch.manual_seed(0)
A, B, BIAS = torch.randn(5, 7, 64), torch.randn(64, 48), torch.randn(48)
X, EXPERTS, OFFSETS = torch.randn(10, 64), torch.randn(3, 64, 32), torch.tensor([4, 4, 10], dtype=torch.int32)
Q, K, V = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
MASK = torch.rand(2, 1, 5, 9).gt(0.3).index_fill(3, torch.tensor([0]), True)
WEIGHT, SHIFT = torch.randn(64), torch.randn(64)


def close(a, b, bound=1e-6):
    return a.shape == b.shape and a.dtype == b.dtype and float((a - b).double().norm()) <= bound * float(b.double().norm())


@pytest.mark.parametrize("activation, function", [("none", lambda x: x), ("relu", F.relu), ("gelu", F.gelu), ("silu", F.silu), ("tanh", torch.tanh),
                                                  ("sigmoid", torch.sigmoid), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")), ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x))])
def test_gemm(activation, function):
    assert close(dw.ops.gemm(A, B, activation=activation), function(A @ B))
    assert close(dw.ops.gemm(A, B, BIAS, activation), function(A @ B + BIAS))
    assert close(dw.ops.gemm(A, B.T.contiguous(), BIAS, activation, transpose_b=True), function(A @ B + BIAS))
    assert close(dw.ops.gemm(A.transpose(0, 1), B), A.transpose(0, 1) @ B)
    assert dw.ops.gemm(A[:, :0], B).shape == (5, 0, 48)


PRECISIONS = {row["name"]: (row["activation"], row["weight"]) for row in json.loads(_core.precisions()) if row["name"] != "fp32"}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gemm_in_a_precision_multiplies_what_the_format_keeps(precision):
    def keep(x, form):
        return x.bfloat16().float() if form == "bf16" else dw.ops.fake_quantize(x, form)
    left, right = PRECISIONS[precision]
    wanted = keep(A, left) @ keep(B.T.contiguous(), right).T
    assert close(dw.ops.gemm(A, B, precision=precision), wanted, 1e-5) and not close(wanted, A @ B, 1e-4)
    assert close(dw.ops.grouped_gemm(X, EXPERTS, OFFSETS, precision), grouped(keep(X, left), keep(EXPERTS.mT.contiguous(), right).mT), 1e-5)


def grouped(x, experts):
    return torch.cat([x[:4] @ experts[0], x[4:] @ experts[2]])


def test_grouped_gemm():
    assert close(dw.ops.grouped_gemm(X, EXPERTS, OFFSETS), grouped(X, EXPERTS))
    assert close(dw.ops.grouped_gemm(X, EXPERTS.mT.contiguous(), OFFSETS, transpose_b=True), grouped(X, EXPERTS))


@pytest.mark.parametrize("precision", [None, "bf16", "mxfp8"])
def test_grouped_gemm_of_padded_groups(precision):
    x, counts = torch.randn(len(EXPERTS), 5, EXPERTS.shape[1]), torch.tensor([5, 0, 3] + [1] * (len(EXPERTS) - 3), dtype=torch.int32)
    y = dw.ops.grouped_gemm(x, EXPERTS, counts, precision, expected=2)
    for i, count in enumerate(counts.tolist()):
        alone = dw.ops.gemm(x[i, :count], EXPERTS[i], precision=precision)
        assert close(y[i, :count], alone, 1e-5) and (y[i, count:] == 0).all()
    assert torch.equal(dw.ops.grouped_gemm(x, EXPERTS, counts, precision), y)
    with pytest.raises(dw.Mismatch, match="rows for 2 groups"):
        dw.ops.grouped_gemm(x[:2], EXPERTS, counts)
    with pytest.raises(dw.Invalid, match="expected is 4"):
        dw.ops.grouped_gemm(X, EXPERTS, OFFSETS, expected=4)


def test_attention():
    k, v = K.repeat_interleave(4, 1), V.repeat_interleave(4, 1)
    causal = torch.ones(5, 9, dtype=torch.bool).tril(4)
    bias = torch.randn(1, 1, 5, 9)
    assert close(dw.ops.attention(Q, K, V), F.scaled_dot_product_attention(Q, k, v))
    assert close(dw.ops.attention(Q, K, V, MASK), F.scaled_dot_product_attention(Q, k, v, attn_mask=MASK))
    assert close(dw.ops.attention(Q, K, V, bias, scale=0.3), F.scaled_dot_product_attention(Q, k, v, attn_mask=bias, scale=0.3))
    assert close(dw.ops.attention(Q, K, V, causal=True), F.scaled_dot_product_attention(Q, k, v, attn_mask=causal))
    windowed = causal & ~torch.ones(5, 9, dtype=torch.bool).tril(4 - 3)
    assert close(dw.ops.attention(Q, K, V, causal=True, window=3), F.scaled_dot_product_attention(Q, k, v, attn_mask=windowed))


def index_logits(q, k, weights, key_scale, start, end, scale):
    scores = F.relu(torch.einsum("bmhd,bnd->bmhn", q.float(), k.float() * key_scale[..., None]) * scale)
    at = torch.arange(k.shape[1])
    return torch.einsum("bmhn,bmh->bmn", scores, weights).masked_fill((at < start[..., None]) | (at >= end[..., None]), -torch.inf)


def test_mqa_logits():
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        q, k, weights, key_scale = torch.randn(2, 5, 4, 64).to(dtype), torch.randn(2, 100, 64).to(dtype), torch.randn(2, 5, 4), torch.rand(2, 100)
        start, end = torch.randint(0, 40, (2, 5)), torch.randint(30, 110, (2, 5), dtype=torch.int32)
        wanted = index_logits(q, k, weights, key_scale, start, end, 0.5)
        assert torch.allclose(dw.ops.mqa_logits(q, k, weights, key_scale, start, end, scale=0.5), wanted, atol=1e-4)
        assert torch.allclose(dw.ops.mqa_logits(q[1], k[1], weights[1], key_scale[1], start[1], end[1], scale=0.5), wanted[1], atol=1e-4)
        pages, factors, table = torch.randn(9, 16, 64).to(dtype), torch.rand(9, 16), torch.randperm(9)[:8].reshape(2, 4)
        wanted = index_logits(q, pages.float()[table].flatten(1, 2), weights, factors[table].flatten(1), torch.zeros_like(start), end, 1.0)
        assert torch.allclose(dw.ops.mqa_logits(q, pages, weights, factors, end=end, table=table), wanted, atol=1e-4)
    assert dw.ops.mqa_logits(q, k, weights, dtype=torch.bfloat16).dtype == torch.bfloat16
    for precision in dw.ops.LOGITS_PRECISIONS:
        exact = q.float(), k.float()
        rounded = [dw.ops.fake_quantize(x, precision) for x in exact]
        assert torch.allclose(dw.ops.mqa_logits(*exact, weights, end=end, precision=precision), dw.ops.mqa_logits(*rounded, weights, end=end), atol=1e-4)
    with pytest.raises(dw.Invalid, match="no precision 'fp3'"):
        dw.ops.mqa_logits(q, k, weights, precision="fp3")
    with pytest.raises(dw.Mismatch, match="it takes"):
        dw.ops.mqa_logits(q, k[0], weights)
    with pytest.raises(dw.Error, match="d of q"):
        dw.ops.mqa_logits(q, k[..., :8], weights)
    with pytest.raises(dw.Error, match="table"):
        dw.ops.mqa_logits(q, pages, weights, table=table + 7)


def test_norms():
    assert close(dw.ops.rms_norm(X, WEIGHT), F.rms_norm(X, (64,), WEIGHT, 1e-6)) and close(dw.ops.rms_norm(X), F.rms_norm(X, (64,), None, 1e-6))
    assert close(dw.ops.layer_norm(X, WEIGHT, SHIFT), F.layer_norm(X, (64,), WEIGHT, SHIFT)) and close(dw.ops.layer_norm(X), F.layer_norm(X, (64,)))


@pytest.mark.parametrize("op, arguments", [
    ("gemm", (A, B, BIAS, "gelu", "mxfp8", False)), ("gemm", (A, B)), ("grouped_gemm", (X, EXPERTS, OFFSETS)), ("attention", (Q, K, V, MASK, False)),
    ("attention", (Q, K, V)), ("mqa_logits", (Q.transpose(1, 2).contiguous(), K[:, 0].contiguous(), torch.randn(*Q.shape[:1], Q.shape[2], Q.shape[1]))), ("rms_norm", (X, WEIGHT)), ("layer_norm", (X, WEIGHT, SHIFT)), ("fake_quantize", (X, "nvfp4"))])
def test_opcheck(op, arguments):
    torch.library.opcheck(getattr(torch.ops.deepwell, op).default, arguments)


def test_they_compile_and_export():
    class Net(torch.nn.Module):
        def forward(self, a, b):
            return dw.ops.gemm(a, b, activation="relu") + 1
    wanted = F.relu(A @ B) + 1
    assert close(torch.compile(Net(), backend="eager", fullgraph=True)(A, B), wanted)
    assert close(torch.export.export(Net(), (A, B)).module()(A, B), wanted)


def test_nonsense_is_refused():
    with pytest.raises(dw.Mismatch, match="k of a"):
        dw.ops.gemm(A, B.T.contiguous())
    with pytest.raises(dw.Invalid, match="activation"):
        dw.ops.gemm(A, B, activation="swish")
    with pytest.raises(dw.Invalid, match="precision"):
        dw.ops.gemm(A, B, precision="fp3")
    with pytest.raises(dw.Error):
        dw.ops.attention(Q, K, V[:, :, :3])
    with pytest.raises(dw.Error):
        dw.ops.fake_quantize(X, "fp3")


BLOCK_FORMATS = [name for name, (_, element, *_) in _core.formats().items() if element]


@pytest.mark.parametrize("form", BLOCK_FORMATS)
def test_quantize_and_back(form):
    for shape in ((4, 64), (2, 3, 96), (130, 256), (3, 40)):
        x = torch.randn(shape)
        parts = dw.ops.quantize(x, form)
        assert torch.equal(dw.ops.dequantize(*parts, form, shape[-1]), dw.ops.fake_quantize(x, form))
        assert torch.equal(dw.ops.dequantize(*parts, form, shape[-1], torch.bfloat16), dw.ops.fake_quantize(x, form).bfloat16())
    torch.library.opcheck(torch.ops.deepwell.quantize.default, (x, form))
    # Not test_schema: it compares arguments by allclose, which PyTorch does not have for float8.
    torch.library.opcheck(torch.ops.deepwell.dequantize.default, (*parts, form, 40),
                          test_utils=("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"))


def test_parts_are_torchs_own_numbers():
    x = torch.randn(6, 128)
    elements, scales, _ = dw.ops.quantize(x, "mxfp8")
    assert torch.equal(elements.float() * scales.float().repeat_interleave(32, 1), dw.ops.fake_quantize(x, "mxfp8"))
    elements, scales, _ = dw.ops.quantize(x, "fp8_row")
    assert torch.equal(elements.float() * scales, dw.ops.fake_quantize(x, "fp8_row"))
    packed, scales, _ = dw.ops.quantize(x, "mxfp4")
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1).long()
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])[codes]
    assert torch.equal(values * scales.float().repeat_interleave(32, 1), dw.ops.fake_quantize(x, "mxfp4"))


def test_parts_that_do_not_fit_are_refused():
    elements, scales, second = dw.ops.quantize(X, "mxfp8")
    with pytest.raises(dw.Mismatch, match="scales"):
        dw.ops.dequantize(elements, scales[:, :1], second, "mxfp8", 64)
    with pytest.raises(dw.Mismatch, match="elements"):
        dw.ops.dequantize(elements, scales, second, "mxfp8", 63)
    with pytest.raises(dw.Invalid, match="no block format"):
        dw.ops.quantize(X, "bf16")
