"""One op at once, block formats among its operands and results."""

import pytest
import torch

import deepwell
from deepwell import _core

FORMATS = ["mxfp8", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp4", "nvfp4", "nvfp4_row", "fp8_1x128", "fp8_128x128", "fp8_row", "fp8_tensor"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", [(7, 256), (128, 128), (2, 3, 160), (1, 32)])
def test_what_is_quantised_comes_back_near(format, shape):
    x = torch.randn(shape)
    (block,) = _core.op("quantize", f"to={format}", [x])
    assert block[0] == format and block[1] == shape
    (back,) = _core.op("dequantize", "to=f32", [block])
    graph = f"graph g\n  input x f32[{','.join(map(str, shape))}]\n  %1 = quantize x {{to={format}}}\n  %2 = dequantize %1 {{to=f32}}\n  output y %2\n"
    (expected,) = _core.Session(_core.Model(_core.Graph.text("g", graph))).run((x,))
    assert torch.equal(back, expected)
    assert (back - x).abs().max() <= x.abs().max() / 4


def test_mxfp8_is_what_its_parts_say():
    x = torch.randn(5, 96)
    ((_, _, data, scales, second),) = _core.op("quantize", "to=mxfp8", [x])
    assert data.dtype == torch.float8_e4m3fn and data.shape == (5, 96)
    assert scales.dtype == torch.float8_e8m0fnu and scales.shape == (5, 3) and second is None
    values = (data.float().unflatten(-1, (3, 32)) * scales.float().unsqueeze(-1)).flatten(-2)
    (back,) = _core.op("dequantize", "to=f32", [("mxfp8", (5, 96), data, scales, None)])
    assert torch.equal(values, back)


def test_products_take_blocks():
    x, w = torch.randn(3, 64), torch.randn(16, 64)
    blocks = [_core.op("quantize", "to=mxfp8", [t])[0] for t in (x, w)]
    (y,) = _core.op("matmul", "bt=true", blocks)
    a, b = (_core.op("dequantize", "to=f32", [block])[0] for block in blocks)
    torch.testing.assert_close(y, a @ b.T, rtol=1e-5, atol=1e-5)


def test_several_results_and_absent_operands():
    x = torch.randn(4, 9)
    values, places = _core.op("topk", "axis=1,length=3,largest=true", [x], results=2)
    assert torch.equal(values, x.topk(3).values) and torch.equal(places, x.topk(3).indices)


def test_what_does_not_fit_is_refused():
    x = torch.randn(4, 64)
    ((format, shape, data, scales, _),) = _core.op("quantize", "to=mxfp8", [x])
    with pytest.raises(deepwell.NotFound, match="no op named quantise"):
        _core.op("quantise", "", [x])
    with pytest.raises(deepwell.Mismatch, match="scales has 7 bytes"):
        _core.op("dequantize", "to=f32", [(format, shape, data, scales.flatten()[:7], None)])
    with pytest.raises(deepwell.Mismatch, match="gaps"):
        _core.op("dequantize", "to=f32", [(format, shape, data.T.contiguous().T, scales, None)])
    with pytest.raises(deepwell.NotFound, match="f32 is no block format"):
        _core.op("dequantize", "to=f32", [("f32", shape, data, scales, None)])
    with pytest.raises(deepwell.Invalid, match="size -1"):
        _core.op("dequantize", "to=f32", [(format, (4, -1), data, scales, None)])
    with pytest.raises(deepwell.Mismatch):
        _core.op("matmul", "bt=true", [x, torch.randn(5, 63)])
    with pytest.raises(TypeError):
        _core.op("neg", "", [3])
