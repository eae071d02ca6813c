"""Operators that the core does not read, in PyTorch's other words."""

import warnings

import pytest
import torch

import deepwell as dw


class Recurrent(torch.nn.Module):
    """A recurrent layer, a product along positions and a spelling of cat: the core reads none of them, PyTorch knows each in other words."""

    def __init__(self):
        super().__init__()
        self.recurrent = torch.nn.LSTM(6, 5, batch_first=True)

    def forward(self, x):
        y, (h, _) = self.recurrent(x)
        return torch.hstack([y.cumprod(1), h.transpose(0, 1)])


def test_what_the_core_does_not_read_is_spelled_out():
    torch.manual_seed(0)
    model, x = Recurrent().eval(), torch.randn(3, 4, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dw.DeepwellWarning)     # the number of steps is fixed, as each step is spelled out
        engine = dw.compile(dw.capture(model, x), precision="fp32")
    for batch in (3, 2):
        with torch.no_grad():
            assert torch.allclose(engine(x[:batch]), model(x[:batch]), rtol=1e-5, atol=1e-6)


def test_what_has_no_other_words_is_refused_by_name_alone():
    class Both(torch.nn.Module):
        def forward(self, x):
            return torch.hstack([x, x.cummax(1)[0]])
    with pytest.raises(dw.Unsupported, match="1 operator is not supported: aten.cummax.default"):
        dw.capture(Both().eval(), torch.randn(3, 4, 6))
