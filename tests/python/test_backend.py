"""torch.compile(backend="deepwell"): graphs as Dynamo and AOTAutograd hand them over."""

import warnings

import pytest
import torch

import deepwell as dw
from deepwell import backend
from deepwell.region import Region

pytestmark = pytest.mark.filterwarnings("ignore::deepwell.DeepwellWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    backend.report().rows.clear()


def close(a, b, bound=1e-5):
    return float((a - b).norm()) <= bound * float(b.norm())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(50, 32)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(2))
        self.norm, self.scale = torch.nn.RMSNorm(32), 0.5
        self.register_buffer("shift", torch.ones(32))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(self.norm(x))) * self.scale + self.shift
        return {"x": x, "length": ids.shape[1]}


@torch.no_grad()
def test_it_is_registered_and_sizes_change_freely():
    model = Net().eval()
    fast = torch.compile(model, backend="deepwell", options={"precision": "fp32"})
    for shape in ((2, 7), (2, 9), (3, 11), (4, 12), (9, 30)):
        ids = torch.randint(0, 50, shape)
        got = fast(ids)
        assert close(got["x"], model(ids)["x"]) and got["length"] == shape[1]
    report = backend.report()
    assert report.whole and len(report.rows) <= 3, str(report)      # static, one size dynamic, both


@torch.no_grad()
def test_options_are_checked():
    ids = torch.randint(0, 50, (2, 7))
    with pytest.raises(Exception, match="no option colour"):
        torch.compile(Net().eval(), backend="deepwell", options={"colour": "red"})(ids)
    a = torch.compile(Net().eval(), backend="deepwell", options={"precision": "mxfp8"})(ids)["x"]
    b = Net().eval()(ids)["x"]
    assert not close(a, b) and close(a, b, 0.2)


def test_gradients_are_pytorchs():
    model, other = Net().eval(), Net().eval()
    fast = torch.compile(model, backend="deepwell")
    ids = torch.randint(0, 50, (2, 7))
    fast(ids)["x"].square().sum().backward()
    other(ids)["x"].square().sum().backward()
    for (name, a), b in zip(model.named_parameters(), other.parameters()):
        assert close(a.grad, b.grad), name


def test_a_step_of_an_optimizer_is_one_update_of_the_model(monkeypatch):
    updates = []
    update = Region.update
    monkeypatch.setattr(Region, "update", lambda region, names: update(region, (updates.append(list(names)), updates[-1])[1]))
    model, other = Net().eval(), Net().eval()
    fast = torch.compile(model, backend="deepwell")
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, other))
    ids = torch.randint(0, 50, (2, 7))
    for _ in range(4):
        for net, optimizer in ((fast, ours), (other, theirs)):
            optimizer.zero_grad()
            net(ids)["x"].square().sum().backward()
            optimizer.step()
    assert close(fast(ids)["x"].detach(), other(ids)["x"].detach(), 1e-4)
    given = [names for names in updates if names]
    assert len(given) == 4 and all(len(names) > 1 for names in given), updates     # the first call compiles with the weights as they are


@torch.no_grad()
def test_changed_weights_are_noticed():
    model = Net().eval()
    fast = torch.compile(model, backend="deepwell")
    ids = torch.randint(0, 50, (2, 7))
    fast(ids)
    model.layers[0].weight.mul_(3)
    assert close(fast(ids)["x"], model(ids)["x"])
    model.shift.add_(1)
    assert close(fast(ids)["x"], model(ids)["x"])
    model.layers[1].weight = torch.nn.Parameter(torch.randn(32, 32))
    assert close(fast(ids)["x"], model(ids)["x"])


class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

    def forward(self, x):
        return self.b(torch.special.i1e(self.a(x)))


@torch.no_grad()
def test_what_is_refused_stays_with_pytorch_with_its_reason():
    model = Odd().eval()
    fast = torch.compile(model, backend="deepwell")
    for rows in (3, 5, 6):
        x = torch.randn(rows, 32)
        assert close(fast(x), model(x))
    report = backend.report()
    assert 0 < report.share and any("i1e" in reason for reason in report.reasons), str(report)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="i1e"):
        torch.compile(model, backend="deepwell", options={"strict": True})(x)


class Alike(torch.nn.Module):
    """Layers that are broken off in the middle, so that Dynamo hands over their graphs once and calls them with each layer's weights."""

    class Layer(torch.nn.Module):
        def __init__(self, refused):
            super().__init__()
            self.a, self.b, self.refused = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), refused

        def forward(self, x):
            x = self.a(x)
            if self.refused:
                x = torch.special.i1e(x)
            x = self.b(x)
            torch._dynamo.graph_break()
            return x + 1

    def __init__(self, refused):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(self.Layer(refused) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("refused", [False, True])
@torch.no_grad()
def test_layers_that_are_alike_have_their_own_weights(refused, monkeypatch):
    made = []
    bind = backend._Compiled._bind
    monkeypatch.setattr(backend._Compiled, "_bind", lambda self, *args: (made.append(args[-1]), bind(self, *args)))
    model = Alike(refused).eval()
    fast = torch.compile(model, backend="deepwell")
    for rows in (3, 3, 3):
        x = torch.randn(rows, 16)
        assert close(fast(x), model(x))
    count = len(made)
    for _ in range(3):
        x = torch.randn(3, 16)
        assert close(fast(x), model(x))
    assert len(made) == count           # each layer's weights are bound once
    for layer in model.layers:
        layer.a.weight = torch.nn.Parameter(torch.randn(16, 16))
    assert close(fast(x), model(x))


@torch.no_grad()
def test_weights_that_were_replaced_are_let_go(monkeypatch):
    graphs = []
    compile_ = backend._Graph.compile
    monkeypatch.setattr(backend._Graph, "compile", lambda self, values: (graphs.append(self), compile_(self, values))[1])
    model = Net().eval().requires_grad_(False)
    fast = torch.compile(model, backend="deepwell")
    ids = torch.randint(0, 50, (2, 7))
    for _ in range(6):
        model.layers[1].weight = torch.nn.Parameter(torch.randn(32, 32), requires_grad=False)
        assert close(fast(ids)["x"], model(ids)["x"])
    assert len(graphs) == 6 and all(len(graph.made) == 1 for graph in graphs)


@torch.no_grad()
def test_graph_breaks():
    class Breaks(Net):
        def forward(self, ids):
            x = super().forward(ids)["x"]
            if float(x.sum()) > 0:
                x = self.layers[0](x)
            return x
    model = Breaks().eval()
    fast = torch.compile(model, backend="deepwell")
    ids = torch.randint(0, 50, (2, 7))
    assert close(fast(ids), model(ids))
    report = backend.report()
    assert len([r for r in report.rows if r.where == "deepwell"]) == 2 and not report.whole, str(report)
    assert [r for r in report.reasons if "breaks the graph" in r and "test_backend.py" in r], str(report)
    with pytest.raises(Exception, match="breaks the graph"):
        torch.compile(Breaks().eval(), backend="deepwell", options={"strict": True})(ids)


@torch.no_grad()
def test_arguments_are_written():
    def step(x, out, w):
        out.add_(x @ w)
        return out * 2
    fast = torch.compile(step, backend="deepwell")
    x, w = torch.randn(3, 8), torch.randn(8, 8)
    a, b = torch.zeros(3, 8), torch.zeros(3, 8)
    assert close(fast(x, a, w), step(x, b, w)) and close(a, b)


@torch.no_grad()
def test_aot_autograds_graphs_are_taken():
    from torch._dynamo.backends.common import aot_autograd
    model = Net().eval()
    fast = torch.compile(model, backend=aot_autograd(fw_compiler=backend.compile))
    ids = torch.randint(0, 50, (2, 7))
    assert close(fast(ids)["x"], model(ids)["x"])
    assert any(r.where == "deepwell" for r in backend.report().rows), str(backend.report())


@torch.no_grad()
def test_autocast_is_explicit_in_the_graph():
    model = Net().eval()

    def run(ids):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(ids)["x"]
    ids = torch.randint(0, 50, (2, 7))
    assert close(torch.compile(run, backend="deepwell")(ids).float(), run(ids).float(), 2e-2)


def test_the_report_prints():
    assert "torch.compile" in str(backend.report())
    assert issubclass(dw.DeepwellWarning, UserWarning)


def test_a_model_in_training_mode_is_told_of_once():
    class Dropping(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.dropped_once = torch.nn.Linear(8, 8), torch.nn.Dropout(0.1)

        def forward(self, x):
            return self.dropped_once(self.first(x))

    fast = torch.compile(Dropping().train(), backend="deepwell", dynamic=False)
    with warnings.catch_warnings(record=True) as seen, torch.no_grad():
        warnings.simplefilter("always")
        for rows in (2, 3, 4):
            fast(torch.ones(rows, 8))
    told = [str(w.message) for w in seen if issubclass(w.category, dw.DeepwellWarning)]
    assert len(told) == 1 and "dropped_once is in training mode" in told[0] and ".eval()" in told[0], told
    assert len(backend.report().rows) >= 3
