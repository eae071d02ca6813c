"""Kernels of the user's own: Python callables and C functions."""

import ctypes
import gc
import weakref

import pytest
import torch

import deepwell
from deepwell import _core

LINEAR = """graph linear
  symbol m 1..
  input x f32[m,64]
  param w f32[32,64]
  %1 = matmul x, w {bt=true}
  %2 = neg %1
  output y %2
"""


AT_LOAD = """graph linear
  symbol m 1..
  input x f32[m,64]
  param w f32[32,64]
  %1 = neg w
  %2 = matmul x, %1 {bt=true}
  output y %2
"""


def session(registry, weight, text=LINEAR, **options):
    model = _core.Model(_core.Graph.text("linear", text, [("w", weight)]), registry=registry, **options)
    return _core.Session(model, dims="m=4")


def registry_of(run, **options):
    registry = _core.Registry()
    registry.add("mine", run=run, **options)
    return registry


def test_a_callable_runs_on_the_memory_itself():
    calls = []

    def kernel(x, w, *, outputs, op, post, attributes, threads):
        calls.append((op, post, attributes, x.shape, x.format, outputs[0].shape))
        assert threads >= 1
        torch.matmul(torch.from_dlpack(x), torch.from_dlpack(w).T, out=torch.from_dlpack(outputs[0]))

    weight = torch.randn(32, 64)
    running = session(registry_of(kernel), weight)
    for rows in (4, 1, 9):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(running.run((x,))[0], -(x @ weight.T))
        assert calls.pop() == ("matmul", "", {"bt": True}, (rows, 64), "f32", (rows, 32))
    assert not calls


def decoded(operand):
    elements = torch.from_dlpack(operand.data).view(torch.float8_e4m3fn).float()
    scales = torch.exp2(torch.from_dlpack(operand.scales).float() - 127)
    return (elements.unflatten(-1, (-1, 32)) * scales.unsqueeze(-1)).flatten(-2)


def test_quantised_operands_come_with_their_scales():
    seen = []

    def kernel(x, w, *, outputs, **call):
        assert (x.format, x.scale_layout, x.second) == ("mxfp8", "plain", None)
        with pytest.raises(deepwell.Invalid, match="take its data and scales"):
            torch.from_dlpack(x)
        seen.append(decoded(w))
        torch.from_dlpack(outputs[0]).copy_(decoded(x) @ decoded(w).T)

    weight, x = torch.randn(32, 64), torch.randn(4, 64)
    text = LINEAR.replace("{bt=true}", "{bt=true} at \"mlp\" role mlp")
    (y,) = session(registry_of(kernel, precision="mxfp8"), weight, text, precision="mxfp8").run((x,))
    (expected,) = session(None, weight, text, precision="mxfp8").run((x,))
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert (seen[0] - weight).abs().max() < 0.07 * weight.abs().max()


def test_what_it_does_not_take_is_said():
    def kernel(*operands, **call):
        raise AssertionError("not called")

    weight, x = torch.randn(32, 64), torch.randn(4, 64)
    running = session(registry_of(kernel, min_size=10**9), weight)
    torch.testing.assert_close(running.run((x,))[0], -(x @ weight.T))
    explained = _core.Model(_core.Graph.text("linear", LINEAR, [("w", weight)]), registry=registry_of(kernel, precision="mxfp8")).print("explain")
    assert "mine" in explained and "it takes mxfp8" in explained


def test_what_a_kernel_raises_is_what_the_run_raises():
    class Own(Exception):
        pass

    def kernel(*operands, **call):
        raise Own("no")

    running = session(registry_of(kernel), torch.randn(32, 64))
    with pytest.raises(Own, match="no"):
        running.run((torch.randn(4, 64),))
    with pytest.raises(TypeError, match="result 0 that the kernel returned is no tensor"):
        session(registry_of(lambda *operands, **call: 1), torch.randn(32, 64)).run((torch.randn(4, 64),))
    with pytest.raises(Own):   # while a model is made: weights are computed by it
        session(registry_of(kernel, op="neg"), torch.randn(32, 64), AT_LOAD)


def product(a, b):
    return torch.from_dlpack(a) @ torch.from_dlpack(b).T


@pytest.mark.parametrize("kernel", [
    lambda x, w, *, outputs, **call: product(x, w),
    lambda x, w, *, outputs, **call: (product(x, w),),
    lambda x, w, *, outputs, **call: [torch.from_dlpack(w).matmul(torch.from_dlpack(x).T).T],      # columns first
    lambda x, w, *, outputs, **call: torch.matmul(torch.from_dlpack(x), torch.from_dlpack(w).T, out=torch.from_dlpack(outputs[0])),
    lambda x, w, *, outputs, **call: product(x, w).numpy(),
])
def test_a_kernel_may_return_its_result(kernel):
    weight, x = torch.randn(32, 64), torch.randn(4, 64)
    (y,) = session(registry_of(kernel), weight).run((x,))
    torch.testing.assert_close(y, -(x @ weight.T))


def test_what_is_returned_has_the_results_shape_and_dtype():
    weight, x = torch.randn(32, 64), torch.randn(4, 64)
    for kernel, message in ((lambda x, w, **call: product(x, w).T, r"is f32 \(32, 4\), it should be f32 \(4, 32\)"),
                            (lambda x, w, **call: product(x, w).to(torch.bfloat16), r"is bf16 \(4, 32\), it should be f32 \(4, 32\)")):
        with pytest.raises(deepwell.Mismatch, match=message):
            session(registry_of(kernel), weight).run((x,))
    with pytest.raises(TypeError, match="returns its 1 results"):
        session(registry_of(lambda x, w, **call: (product(x, w), 0)), weight).run((x,))


def test_two_results_are_returned_as_a_tuple():
    text = "graph top\n  input x f32[4,9]\n  %1, %2 = topk x {axis=1,length=2,largest=true}\n  output v %1\n  output i %2\n"

    def kernel(x, *, attributes, **call):
        return tuple(torch.topk(torch.from_dlpack(x), attributes["length"]))

    x = torch.randn(4, 9)
    running = _core.Session(_core.Model(_core.Graph.text("top", text, []), registry=registry_of(kernel, op="topk")))
    values, indices = running.run((x,))
    expected = torch.topk(x, 2)
    assert torch.equal(values, expected.values) and torch.equal(indices, expected.indices)


def test_operands_at_load_are_copies_that_may_be_kept():
    kept = []

    def kernel(x, *, outputs, **call):
        kept.append(torch.from_dlpack(x))
        torch.neg(kept[-1], out=torch.from_dlpack(outputs[0]))

    weight, x = torch.randn(32, 64), torch.randn(4, 64)
    (y,) = session(registry_of(kernel, op="neg"), weight, AT_LOAD).run((x,))
    torch.testing.assert_close(y, -(x @ weight.T))
    assert len(kept) == 1
    gc.collect()
    assert torch.equal(kept[0], weight)


def test_what_is_kept_stays_alive_and_in_place():
    kept, operands = [], []

    def kernel(x, w, *, outputs, **call):
        operands.append(x)
        kept.append(torch.from_dlpack(outputs[0]))
        torch.matmul(torch.from_dlpack(x), torch.from_dlpack(w).T, out=kept[-1])

    weight = torch.randn(32, 64)
    running = session(registry_of(kernel), weight)
    x = torch.randn(4, 64)
    running.run((x,))
    with pytest.raises(deepwell.Invalid, match="after the call"):
        torch.from_dlpack(operands[0])
    with pytest.raises(deepwell.Limit):
        running.run((torch.randn(4000, 64),))
    with pytest.raises(deepwell.Invalid, match="has kept 1 tensors"):
        model_of = running.model
        model_of.update([("w", weight)])
    product = kept[0].clone()
    del running, model_of
    gc.collect()
    assert torch.equal(kept[0], product)
    torch.testing.assert_close(product, x @ weight.T)


def test_a_kernel_may_run_other_models_but_not_its_own_session():
    weight, x = torch.randn(32, 64), torch.randn(4, 64)
    other = session(None, weight)
    state = {}

    def kernel(a, w, *, outputs, **call):
        torch.from_dlpack(outputs[0]).copy_(-other.run((torch.from_dlpack(a),))[0])
        if "own" in state:
            state["own"].run((x,))

    running = session(registry_of(kernel), weight)
    torch.testing.assert_close(running.run((x,))[0], -(x @ weight.T))
    state["own"] = running
    with pytest.raises(deepwell.Invalid, match="make another Session"):
        running.run((x,))


def test_cycles_through_a_registry_are_collected():
    class Holder:
        pass

    holder = Holder()
    holder.registry = registry_of(lambda *operands, holder=holder, **call: None)
    holder.session = session(holder.registry, torch.randn(32, 64))
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_the_address_of_a_c_function_is_a_kernel():
    registry = _core.Registry()
    calls = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    function = kind(lambda call: calls.append(call) or 3)   # DW_UNSUPPORTED
    registry.add("mine", run=ctypes.cast(function, ctypes.c_void_p).value)
    with pytest.raises(deepwell.Unsupported, match="registered kernel mine returned UNSUPPORTED"):
        session(registry, torch.randn(32, 64)).run((torch.randn(4, 64),))
    assert len(calls) == 1


def test_what_cannot_be_added_is_refused():
    registry = _core.Registry()
    with pytest.raises(TypeError, match="run is missing"):
        registry.add("mine")
    with pytest.raises(TypeError, match="callable"):
        registry.add("mine", run="f")
    with pytest.raises(deepwell.Invalid, match="address"):
        registry.add("mine", run=0)
    with pytest.raises(deepwell.NotFound, match="no op named conv9"):
        registry.add("mine", op="conv9", run=print)
    with pytest.raises(deepwell.NotFound, match="no format named fp3"):
        registry.add("mine", precision="fp3", run=print)
    registry.add("mine", run=print)
    with pytest.raises(deepwell.Invalid, match="already"):
        registry.add("mine", run=print)


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).eval()


def test_a_kernel_that_applies_no_bias_and_no_activation_runs_each_product():
    calls = []

    def kernel(x, w, *, outputs, post, **call):
        calls.append((x.format, post, outputs[0].shape))
        return decoded(x) @ decoded(w).T

    registry = deepwell.KernelRegistry()
    registry.register("custom_gemm", kernel, precision="mxfp8", min_size=1024)
    model, x = mlp(), torch.randn(5, 64)
    own, plain = deepwell.optimize(model, precision="mxfp8", kernel_registry=registry), deepwell.optimize(model, precision="mxfp8")
    with torch.no_grad():
        y, expected = own(x), plain(x)
    assert calls == [("mxfp8", "", (5, 256)), ("mxfp8", "", (5, 64))]
    assert (y - expected).norm() < 1e-2 * expected.norm()      # a sum in another order may round an activation another way
    assert '0: post list "bias,gelu" runs behind custom_gemm: it applies no post list' in own.deepwell.explain()


def test_a_kernel_that_nothing_takes_is_warned_of():
    registry = deepwell.KernelRegistry()
    registry.register("custom_gemm", lambda *operands, **call: None, precision="nvfp4", min_size=1024)
    own = deepwell.optimize(mlp(), precision="mxfp8", kernel_registry=registry)
    with pytest.warns(deepwell.DeepwellWarning, match=r"registered kernel custom_gemm runs no matmul of graph \w+: operand 0 is mxfp8, it takes nvfp4 \(0, 2\)"), torch.no_grad():
        own(torch.randn(5, 64))
