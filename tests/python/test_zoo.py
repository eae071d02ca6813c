"""The zoo's own parts: its MXFP8 oracle against the definition, its comparison, and one architecture through all of it."""
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "models"))

import quantised      # noqa: E402
import zoo            # noqa: E402


def test_a_block_is_scaled_by_the_least_power_of_two_that_saturates_nothing():
    x = torch.zeros(1, 64)
    x[0, 0], x[0, 1], x[0, 32], x[0, 33] = 449.0, 1.0, 448.0, 0.0019
    got = quantised.round_mxfp8(x, -1)
    assert got[0, 0] == 448.0           # 449 / 2 = 224.5 is rounded to 224
    assert got[0, 1] == 1.0
    assert got[0, 32] == 448.0          # scale 1: it fits as it is
    assert got[0, 33] == 2.0 ** -9      # the least subnormal of E4M3
    assert (got[0, 2:32] == 0).all()


@pytest.mark.parametrize("length", [1, 31, 32, 70])
def test_rounding_along_an_axis_is_rounding_of_the_transposed(length):
    x = torch.randn(3, length, 5, generator=torch.Generator().manual_seed(length))
    assert torch.equal(quantised.round_mxfp8(x, 1), quantised.round_mxfp8(x.transpose(1, 2), -1).transpose(1, 2))
    assert quantised.round_mxfp8(torch.zeros(2, 0), -1).shape == (2, 0)


def test_only_products_with_parameters_are_quantised():
    module = torch.nn.Linear(64, 8)
    x, other = torch.randn(4, 64), torch.randn(64, 8)
    with torch.no_grad(), quantised.Quantised(module) as mode:
        y, z = module(x), x @ other
    assert mode.products == 1
    assert torch.equal(z, x @ other)
    want = quantised.round_mxfp8(x, -1) @ quantised.round_mxfp8(module.weight.detach(), -1).T + module.bias.detach()
    assert torch.allclose(y, want, rtol=0, atol=1e-5)
    with torch.no_grad(), quantised.Quantised(module, ["weight"]) as mode:
        assert torch.equal(module(x), torch.nn.functional.linear(x, module.weight, module.bias))


def test_a_wrong_result_is_an_error_and_a_nan_too():
    error = zoo.Error()
    error.add(torch.ones(4), torch.ones(4))
    assert error.relative == 0 and error.largest == 0
    error.add(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0]))
    assert error.largest == pytest.approx(0.5 ** 0.5)
    with pytest.raises(AssertionError):
        error.add(torch.ones(3), torch.ones(4))
    error.add(torch.tensor([float("nan")]), torch.ones(1))
    assert not error.largest <= zoo.FP32_BOUND


def test_the_zoo_has_forty_architectures_of_every_kind():
    rows = zoo.architectures()
    assert len(rows) >= 40
    assert {"decoder", "encoder", "seq2seq", "vision"} <= {row.role for row in rows.values()}
    assert {"mixtral", "mamba", "whisper", "wav2vec2"} <= set(rows)


def test_a_row_that_fails_is_said_to_fail():
    text = zoo.table([{"name": "a", "failures": ["fp32: 1.0e-01 beyond 1e-05"], "share": 1.0, "whole": True}, {"name": "b", "failures": [], "whole": True, "share": 1.0}])
    assert "1 of 2 right; 2 captured whole." in text and "**fails** fp32" in text


@pytest.mark.long
def test_one_architecture_goes_through():
    row = zoo.one("vit")
    assert row["failures"] == []
    assert row["whole"] and row["share"] == 1.0
    assert row["fp32"] <= zoo.FP32_BOUND and row["compile"] <= zoo.FP32_BOUND
    assert 1e-4 < row["mxfp8"] <= zoo.MXFP8_FACTOR * row["torch_mxfp8"]
