"""optimize: the same module on Deepwell, whatever its arguments look like, and nothing silently left out."""

import copy
import dataclasses
import threading
import warnings

import pytest
import torch

import deepwell as dw
from deepwell.flops import can_count_compiled

pytestmark = pytest.mark.filterwarnings("ignore::deepwell.DeepwellWarning")


def mlp(width=64):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(width, 48), torch.nn.GELU(), torch.nn.Linear(48, width)).eval()


def close(a, b, bound=1e-5):
    return float((a - b).norm()) <= bound * float(b.norm())


@dataclasses.dataclass
class Result:
    first: torch.Tensor
    rest: dict


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(16, 16)

    def forward(self, pair, scale=2, mask=None, *, extra=None):
        x, y = pair
        h = self.a(x) * scale + y
        if mask is not None:
            h = h * mask
        return Result(h, {"sum": h.sum(-1), "none": None, "scale": scale, "given": y, "list": [h + 1, "text"]})


def test_class_parameters_and_keys_stay():
    model = mlp()
    fast = dw.optimize(model)
    assert isinstance(fast, torch.nn.Sequential) and list(fast.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(fast.parameters(), model.parameters()))


def test_sizes_change_without_another_capture():
    model = mlp()
    fast = dw.optimize(model)
    with torch.no_grad():
        for shape in ((3, 64), (1, 64), (17, 64), (2, 64)):
            x = torch.randn(shape)
            assert close(fast(x), model(x))
    assert fast.deepwell.count == 1 and fast.deepwell.report().whole


@torch.no_grad()
def test_structures_constants_and_none_pass_through():
    model = Nested().eval()
    fast = dw.optimize(model)
    x, y = torch.randn(3, 16), torch.randn(3, 16)
    for args, kwargs in ((((x, y),), {}), (([x, y], 3), {}), (((x, y),), {"mask": torch.ones(3, 1)}), (((x, y),), {"extra": None, "scale": 0.5})):
        got, wanted = fast(*args, **kwargs), model(*args, **kwargs)
        assert type(got) is Result and close(got.first, wanted.first) and list(got.rest) == list(wanted.rest)
        assert got.rest["none"] is None and got.rest["scale"] == wanted.rest["scale"] and got.rest["list"][1] == "text"
        assert got.rest["given"] is y and close(got.rest["list"][0], wanted.rest["list"][0])
    assert fast.deepwell.report().whole


@torch.no_grad()
@pytest.mark.parametrize("precision", [None, "mxfp8", "bf16"])
def test_changed_weights_are_noticed(precision):
    model = mlp()
    fast = dw.optimize(model, precision=precision)
    x = torch.randn(5, 64)

    def same():
        fresh = dw.optimize(copy.deepcopy(model), precision=precision)
        return torch.equal(fast(x), fresh(x))
    assert same()
    model[0].weight.mul_(2)
    assert same()
    model[2].bias.add_(1)
    assert same()
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
    assert same()
    model[0].weight.data = torch.randn(48, 64)
    assert same()
    fast[2].weight = model[2].weight = torch.nn.Parameter(torch.randn(64, 48))
    assert same()


def test_training_gradients_and_autocast_run_on_pytorch_and_say_so():
    fast = dw.optimize(mlp())
    x = torch.randn(2, 64, requires_grad=True)
    with pytest.warns(dw.DeepwellWarning, match="gradient"):
        fast(x).sum().backward()
    assert x.grad is not None
    with pytest.warns(dw.DeepwellWarning, match="autocast"), torch.autocast("cpu"):
        fast(x.detach())
    fast.train()
    with pytest.warns(dw.DeepwellWarning, match="training mode"):
        fast(x.detach())
    assert not fast.deepwell.report().whole and len(fast.deepwell.report().reasons) == 3


def test_strict_makes_them_errors():
    fast = dw.optimize(mlp(), strict=True)
    with pytest.raises(dw.Unsupported, match="autocast"), torch.autocast("cpu"):
        fast(torch.randn(2, 64))
    with pytest.raises(dw.Unsupported, match="meta tensor"):
        fast(torch.empty(2, 64, device="meta"))


@torch.no_grad()
def test_inputs_that_are_not_contiguous():
    model = mlp()
    fast = dw.optimize(model)
    x = torch.randn(64, 6).T
    assert close(fast(x), model(x)) and close(fast(torch.randn(6, 128)[:, ::2]), fast(torch.zeros(6, 64))) is False


class Counter(torch.nn.Module):
    """Writes a buffer, and one of its arguments."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))
        self.a = torch.nn.Linear(8, 8)

    def forward(self, x, out):
        self.seen.add_(x.sum(0))
        out.copy_(self.a(x))
        return out + self.seen


@torch.no_grad()
def test_buffers_and_arguments_are_written():
    model = Counter().eval()
    fast = dw.optimize(copy.deepcopy(model))
    for _ in range(3):
        x, a, b = torch.randn(4, 8), torch.zeros(4, 8), torch.zeros(4, 8)
        assert close(fast(x, a), model(x, b)) and close(a, b) and close(fast.seen, model.seen)
    assert fast.deepwell.count == 1 and fast.deepwell.report().whole


class Broken(torch.nn.Module):
    """Its control flow hangs on data, and one operator is not Deepwell's."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

    def forward(self, x):
        h = torch.special.i1e(self.a(x))
        h = self.b(h)
        return self.a(h) if float(h.sum()) > 0 else self.b(h)


@torch.no_grad()
def test_what_cannot_be_captured_whole_is_captured_in_part():
    model = Broken().eval()
    fast = dw.optimize(model)
    for rows in (3, 4, 5):
        x = torch.randn(rows, 32)
        assert close(fast(x), model(x))
    report = fast.deepwell.report()
    assert not report.whole and report.share > 0 and any("i1e" in r for r in report.reasons)
    assert "i1e" in str(report)
    with pytest.raises(dw.Unsupported):
        dw.optimize(model, strict=True)(x)


@pytest.mark.parametrize("options, error", [
    ({"precision": "mxfp5"}, dw.NotFound), ({"precision_policy": "a rule"}, dw.Syntax), ({"precision_policy": "a = mxfp5"}, dw.NotFound),
    ({"kernels": "matmul"}, dw.Invalid), ({"kernels": "matmul=none"}, dw.NotFound), ({"threads": -1}, dw.Invalid)])
def test_what_is_wrong_with_the_options_is_said_at_once(options, error):
    with pytest.raises(error):
        dw.optimize(mlp(32).eval(), **options)


@torch.no_grad()
def test_warnings_are_of_one_class_and_say_what_they_mean():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        dw.optimize(mlp(32).eval(), precision_policy="nothing.here = bf16")(torch.randn(3, 32))
    assert [w.category for w in told] == [dw.DeepwellWarning] and "matches no layer" in str(told[0].message), [str(w.message) for w in told]

    class Fixed(torch.nn.Module):
        def forward(self, ids):
            return torch.nn.functional.one_hot(ids, 9).float().reshape(-1, 7 * 9) + 1
    with pytest.warns(dw.DeepwellWarning, match="captured with a fixed size: ids axis 1 = 7"):
        dw.optimize(Fixed().eval())(torch.randint(0, 9, (2, 7)))


@torch.no_grad()
def test_several_regions_are_not_the_whole():
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

        @torch._dynamo.disable
        def between(self, x):
            return x @ x.T @ x

        def forward(self, x):
            h = self.between(self.a(x))
            return self.b(h) if float(h.sum()) > 0 else self.a(h)
    model = Branches().eval()
    fast = dw.optimize(model)
    x = torch.randn(4, 32)
    for _ in range(3):
        assert close(fast(x), model(x))
    report = fast.deepwell.report()
    ours = 2 * (2 * 4 * 32 * 32)
    assert not report.whole and str(report).count("deepwell") >= 2, str(report)
    if can_count_compiled():
        assert report.share == ours / (ours + 2 * (2 * 4 * 32 * 4)), str(report)
    assert any("breaks the graph" in r for r in report.reasons), str(report)


@torch.no_grad()
def test_one_graph_of_torch_compile_is_the_whole():
    class Sized(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(32, 32)

        def forward(self, x):
            return self.a(x)
    fast = dw.optimize(Sized().eval())
    run = fast.deepwell._partial("export is left out here")
    x = torch.randn(4, 32)
    assert close(run(x), fast.deepwell.eager(x)) and fast.deepwell.report().whole, str(fast.deepwell.report())


class Untraceable(torch.nn.Module):
    """Python that neither tracer follows."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([mlp(32), mlp(32)])

    def forward(self, x):
        torch._dynamo.graph_break()
        for block in self.blocks:
            x = torch.from_numpy(block(x).numpy().copy())
        return x


@torch.no_grad()
def test_the_last_resort_is_module_by_module():
    from deepwell import modules
    model = Untraceable().eval()
    fast = dw.optimize(model)
    x = torch.randn(3, 32)
    assert close(fast(x), model(x)) and close(fast(x), model(x))
    assert any(row.where == "deepwell" for row in fast.deepwell.report().rows), str(fast.deepwell.report())
    eager = copy.deepcopy(model)
    handles = modules.replace(eager, fast.deepwell.options, True)
    assert close(eager(x), model(x)) and sum(len(h.regions) for h in handles) == 2


@torch.no_grad()
def test_captures_are_bounded():
    from deepwell.optimized import MAX_SPECIALISATIONS
    model = Nested().eval()
    fast = dw.optimize(model)
    x, y = torch.randn(3, 16), torch.randn(3, 16)
    for scale in range(2, 4 + MAX_SPECIALISATIONS):
        assert close(fast((x, y), scale).first, model((x, y), scale).first)
    assert fast.deepwell.count == MAX_SPECIALISATIONS
    assert any("captures are made already" in r for r in fast.deepwell.report().reasons)


@torch.no_grad()
def test_threads_get_right_answers():
    model = mlp()
    fast = dw.optimize(model)
    inputs = [torch.randn(4, 64) for _ in range(8)]
    wanted = [fast(x) for x in inputs]
    wrong = []

    def work():
        for _ in range(50):
            for x, y in zip(inputs, wanted):
                if not torch.equal(fast(x), y):
                    wrong.append(x)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_model_in_training_mode_is_optimised_in_eval_mode():
    model = mlp().train()
    with pytest.warns(dw.DeepwellWarning, match="training mode"):
        fast = dw.optimize(model)
    assert model.training and model[0].training and not fast.training and not fast[0].training


def test_nonsense_is_refused():
    with pytest.raises(dw.Invalid):
        dw.optimize("model")
    with pytest.raises(dw.Invalid):
        dw.optimize(dw.optimize(mlp()))
    with pytest.raises(dw.Error, match="fp7"):
        dw.optimize(mlp(), precision="fp7")


def test_warnings_are_warnings(capsys):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fast = dw.optimize(Broken().eval())
        with torch.no_grad():
            fast(torch.randn(3, 32))
    assert any(issubclass(w.category, dw.DeepwellWarning) for w in caught)
    assert capsys.readouterr() == ("", "")


@torch.no_grad()
def test_parts_called_by_themselves_run_on_deepwell_too():
    class TwoTowers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = mlp(16), torch.nn.ModuleList([mlp(16)])

        def forward(self, x):
            return self.left(x) + self.right[0](x)

        def features(self, x):
            return self.right[0](x)
    model = TwoTowers().eval()
    fast = dw.optimize(model)
    x = torch.randn(3, 16)
    assert close(fast.features(x), model.features(x)) and close(fast(x), model(x))
    report = fast.deepwell.report()
    assert report.whole and any("right.0" in row.name for row in report.rows)
    assert list(fast.state_dict()) == list(model.state_dict())
    model.right[0][0].weight.mul_(2)
    assert close(fast.features(x), model.features(x)) and close(fast(x), model(x))
    fast.left = mlp(16)
    with pytest.raises(dw.Invalid, match="left"):
        fast(x)


@torch.no_grad()
def test_a_copy_is_a_model_of_its_own():
    model = mlp()
    fast = dw.optimize(model)
    x = torch.randn(3, 64)
    fast(x)
    other = copy.deepcopy(fast)
    other[0].weight.mul_(2)
    wanted = copy.deepcopy(model)
    wanted[0].weight.mul_(2)
    assert close(fast(x), model(x)) and close(other(x), wanted(x)) and other.deepwell is not fast.deepwell


@torch.no_grad()
def test_shares_count_what_runs_on_pytorch():
    fast = dw.optimize(mlp())
    x = torch.randn(3, 64)
    fast(x)
    fast.train()
    fast(x)
    report = fast.deepwell.report()
    assert [r.flops for r in report.rows] == [4 * 3 * 64 * 48] * 2 and report.share == 0.5


def test_a_module_with_parametrizations_is_optimised():
    inner = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 4))
    model = torch.nn.Sequential(inner, torch.nn.ReLU()).eval()
    made = dw.optimize(model, precision="fp32")
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.allclose(made(x), model(x), atol=1e-6)
        assert torch.equal(made[0].weight, model[0].weight)
    assert made.deepwell.report().whole
    assert list(made.state_dict()) == list(model.state_dict())


def test_a_call_of_which_nothing_is_captured_runs_once():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls.add_(1)
            return torch.cummax(x, 1)[0] + self.calls

    model, x = Counting().eval(), torch.arange(12.0).reshape(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimized = dw.optimize(model)
        for call in range(1, 4):
            with torch.no_grad():
                assert torch.equal(optimized(x), x + call)
            assert model.calls.item() == call
    assert [row.calls for row in optimized.deepwell.report().rows] == [3]
