"""Tensors of GPUs: what the extension makes of them, on a stand-in for the driver whose device memory is the host's, and which devices go together.
What needs a GPU is in test_gpu.py."""

import os
import pathlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import deepwell as dw
from deepwell import _core
from deepwell.placement import core_device, device_of, parse_device

DRIVER = pathlib.Path(os.environ.get("DEEPWELL_TEST_DRIVER", pathlib.Path(__file__).parents[2] / "build/tests/libfake_cuda.so"))
DEVICE = f"cuda:0,driver={DRIVER}"
LINEAR = """graph linear
  symbol m 1..64
  input x f32[m,3]
  param w f32[2,3]
  %1 = matmul x, w {bt=true}
  output y %1
"""


class OnGPU:
    """A tensor that says it is on a GPU, as PyTorch's say it."""

    is_cpu, is_cuda = False, True

    def __init__(self, tensor, number=0):
        self.tensor, self.number = tensor, number
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def data_ptr(self):
        return self.tensor.data_ptr()

    def stride(self):
        return self.tensor.stride()

    def get_device(self):
        return self.number


def on_gpu(shape, name):
    assert name == "f32"
    return OnGPU(torch.full(shape, 7.0))


@pytest.fixture
def model():
    if not DRIVER.exists():
        pytest.skip("there is no stand-in for the driver: build the tests")
    weight = torch.randn(2, 3)
    try:
        made = _core.Model(_core.Graph.text("linear", LINEAR, [("w", weight)]), device=DEVICE)
    except _core.Unsupported as error:
        pytest.skip(str(error))
    return made, weight


def test_a_run_reads_and_writes_memory_of_the_gpu(model):
    made, weight = model
    session = _core.Session(made, dims="m=4", device_memory=True)
    for rows in (4, 2, 9):
        x = torch.randn(rows, 3)
        (y,) = session.run((OnGPU(x),), on_gpu, 0)
        torch.testing.assert_close(y.tensor, x @ weight.T)
    session.synchronize()


def test_tensors_elsewhere_are_refused(model):
    session = _core.Session(model[0], dims="m=4", device_memory=True)
    x = torch.randn(4, 3)
    with pytest.raises(dw.Mismatch, match=r"x is not in the memory of GPU 0, where the model is: move it by .to\(\"cuda:0\"\)"):
        session.run((x,), on_gpu, 0)
    with pytest.raises(dw.Mismatch, match="x is in the memory of GPU 1, the model in that of GPU 0"):
        session.run((OnGPU(x, 1),), on_gpu, 0)
    with pytest.raises(dw.Mismatch, match="a tensor from make is not in the memory of GPU 0"):
        session.run((OnGPU(x),), lambda shape, name: torch.empty(shape), 0)
    with pytest.raises(dw.Unsupported, match="x is not in the CPU's memory"):
        _core.Session(model[0], dims="m=4").run((OnGPU(x),))
    flat = torch.zeros(16)
    with pytest.raises(dw.Mismatch, match="multiples of 16 bytes"):
        session.run((OnGPU(flat[1:13].view(4, 3)),), on_gpu, 0)
    with pytest.raises(TypeError, match="it has no data_ptr"):
        session.run((x.numpy(),), on_gpu, 0)


def test_device_memory_is_of_a_gpu():
    model = _core.Model(_core.Graph.text("linear", LINEAR, [("w", torch.randn(2, 3))]))
    with pytest.raises(dw.Invalid, match="made for a GPU"):
        _core.Session(model, device_memory=True)


def test_devices_go_together():
    with FakeTensorMode():
        first, second = torch.empty(2, device="cuda:0"), torch.empty(2, device="cuda:1")
        host, number, nowhere = torch.empty(2), torch.empty(()), torch.empty(2, device="meta")
        assert device_of([("a", first), ("n", number), ("m", nowhere), ("i", 3)]) == torch.device("cuda:0")
        assert device_of([("a", host), ("n", number)]) == torch.device("cpu")
        assert device_of([("n", number)]) == torch.device("cpu")
        assert device_of([("m", nowhere)]) is None
        with pytest.raises(dw.Mismatch, match=r"'b' is on cuda:1, 'a' on cuda:0: move it by .to\('cuda:0'\)"):
            device_of([("a", first), ("b", second)])
        with pytest.raises(dw.Mismatch, match=r"'x' is on cpu, the model's weights are on cuda:1"):
            device_of([("x", host)], second.device, "the model's weights are")


def test_devices_have_names():
    assert core_device(parse_device("cuda")) == "cuda:0" and core_device(parse_device("cuda:3")) == "cuda:3"
    assert core_device(parse_device("cpu")) is None and core_device(parse_device(None)) is None
    with pytest.raises(dw.Unsupported, match="the CPU and on CUDA"):
        parse_device("mps")


def test_a_model_on_a_gpu_that_cannot_be_used_is_an_error():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    model = torch.nn.Linear(4, 4).eval()
    with FakeTensorMode():
        model.weight, model.bias = torch.nn.Parameter(torch.empty(4, 4, device="cuda:0")), torch.nn.Parameter(torch.empty(4, device="cuda:0"))
    with pytest.raises(dw.Unsupported, match="driver cannot be loaded"):
        dw.optimize(model)
    half = torch.nn.Sequential(torch.nn.Linear(4, 4), model)
    with pytest.raises(dw.Mismatch, match=r"'1.weight' is on cuda:0, '0.weight' on cpu"):
        dw.optimize(half)
