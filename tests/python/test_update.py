"""Weights that change under a model."""

import gc
import weakref

import pytest
import torch

import deepwell
from deepwell import _core

TEXT = """graph linear
  symbol m 1..64
  input x f32[m,64]
  param w f32[32,64]
  %1 = matmul x, w {bt=true}
  output y %1
"""


def model(weight, **options):
    return _core.Model(_core.Graph.text("linear", TEXT, [("w", weight)]), **options)


@pytest.mark.parametrize("precision", [None, "bf16", "mxfp8"])
def test_a_weight_changed_in_place_counts_after_update(precision):
    weight, x = torch.randn(32, 64), torch.randn(4, 64)
    changed = model(weight, precision=precision)
    session = _core.Session(changed)
    before = session.run((x,))[0]
    weight.mul_(-2)
    changed.update(["w"])
    (y,) = session.run((x,))
    assert torch.equal(y, _core.Session(model(weight, precision=precision)).run((x,))[0])
    assert torch.equal(y, before * -2)


def test_a_weight_may_lie_elsewhere_and_is_kept_alive():
    x = torch.randn(4, 64)
    first = torch.randn(32, 64)
    changed = model(first)
    session = _core.Session(changed)
    for _ in range(3):
        weight = torch.randn(64, 32).T
        expected = x @ weight.T
        changed.update({"w": weight})
        changed.update(["w"])
        alive = weakref.ref(weight)
        del weight
        gc.collect()
        assert alive() is not None
        torch.testing.assert_close(session.run((x,))[0], expected, rtol=1e-5, atol=1e-5)
    last = alive
    del changed, session
    gc.collect()
    assert last() is None


def test_what_does_not_fit_is_refused():
    changed = model(torch.randn(32, 64))
    with pytest.raises(deepwell.NotFound, match="no weight named 'v'"):
        changed.update([("v", torch.randn(32, 64))])
    with pytest.raises(deepwell.NotFound, match="no tensor named 'v'"):
        changed.update(["v"])
    with pytest.raises(deepwell.Mismatch, match="another format or shape"):
        changed.update([("w", torch.randn(32, 63))])
