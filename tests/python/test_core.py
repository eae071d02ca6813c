"""The extension: graphs, models and sessions over tensors of torch, where they lie."""

import json
import pathlib
import threading
import zipfile

import pytest
import torch

import deepwell
from deepwell import _core

LINEAR = """graph linear
  symbol m 1..64
  input x f32[m,3]
  param w f32[2,3]
  %1 = matmul x, w {bt=true}
  output y %1
"""


def linear(weight, **options):
    return _core.Model(_core.Graph.text("linear", LINEAR, [("w", weight)]), **options)


def test_a_text_runs_on_tensors_where_they_lie():
    weight, x = torch.randn(2, 3), torch.randn(4, 3)
    model = linear(weight)
    assert model.inputs == [("x", "f32[m,3]")] and model.outputs == [("y", "f32[m,2]")]
    (y,) = _core.Session(model, dims="m=4").run((x,))
    torch.testing.assert_close(y, x @ weight.T)


def test_make_gives_the_outputs():
    made = []

    def make(shape, name):
        assert name == "f32"
        made.append(torch.full(shape, 7.0))
        return made[-1]

    weight, x = torch.randn(2, 3), torch.randn(4, 3)
    (y,) = _core.Session(linear(weight)).run((x,), make)
    assert y is made[0]
    torch.testing.assert_close(y, x @ weight.T)


def test_an_exported_program_is_read_from_memory(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(module, (torch.randn(3, 8),), dynamic_shapes=({0: rows},))
    path = tmp_path / "m.pt2"
    torch.export.save(program, path)
    with zipfile.ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if "/models/" in name]
        text = archive.read(name)
    assert json.loads(text)["graph_module"]
    graph = _core.Graph.program("mlp", text, list(module.state_dict().items()))
    x = torch.randn(5, 8)
    (y,) = _core.Session(_core.Model(graph)).run((x,))
    torch.testing.assert_close(y, module(x), rtol=1e-5, atol=1e-6)
    (from_file,) = _core.Session(_core.Model(path)).run((x,))
    assert torch.equal(from_file, y)
    assert _core.Graph.open(path).print() == graph.print()


def test_errors_are_of_one_family_and_say_what_is_wrong():
    assert deepwell.Error is _core.Error and deepwell.Mismatch.status == "MISMATCH"
    session = _core.Session(linear(torch.randn(2, 3)))
    with pytest.raises(deepwell.Mismatch, match="x has rank 1"):
        session.run((torch.randn(3),))
    with pytest.raises(deepwell.Mismatch, match="x is f64"):
        session.run((torch.randn(4, 3, dtype=torch.float64),))
    with pytest.raises(deepwell.Mismatch, match="not contiguous"):
        session.run((torch.randn(3, 4).T,))
    with pytest.raises(deepwell.Mismatch, match="1 inputs, 2 are given"):
        session.run((torch.randn(4, 3), torch.randn(4, 3)))
    with pytest.raises(deepwell.Syntax, match="bad:1"):
        _core.Graph.text("bad", "graf", [])
    with pytest.raises(deepwell.NotFound, match="no param or state named 'v'"):
        _core.Graph.text("linear", LINEAR, [("v", torch.randn(2, 3))])
    with pytest.raises(deepwell.Unsupported, match="complex64"):
        session.run((torch.randn(4, 3, dtype=torch.complex64),))
    with pytest.raises(deepwell.Unsupported, match="CPU"):
        session.run((torch.randn(4, 3, device="meta"),))
    with pytest.raises(TypeError, match="x is no tensor"):
        session.run(([1.0, 2.0, 3.0],))
    with pytest.raises(deepwell.NotFound):
        _core.Model("/nowhere/model.pt2")
    with pytest.raises(TypeError):
        _core.Graph()


def test_tensors_of_numpy_are_read_where_they_lie():
    numpy = pytest.importorskip("numpy")
    weight, x = numpy.ones((2, 3), "float32"), numpy.arange(6, dtype="float32").reshape(2, 3)
    made = []

    def make(shape, name):
        made.append(numpy.empty(shape, {"f32": "float32"}[name]))
        return made[-1]

    (y,) = _core.Session(linear(weight)).run((x,), make)
    assert y is made[0] and (y == x @ weight.T).all()


def test_two_threads_in_one_session_are_both_right():
    weight = torch.randn(2, 3)
    session = _core.Session(linear(weight), dims="m=64")
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(200):
            x = torch.randn(int(torch.randint(1, 65, (1,), generator=generator)), 3, generator=generator)
            (y,) = session.run((x,))
            if not torch.allclose(y, x @ weight.T, rtol=1e-5, atol=1e-6):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_model_outlives_who_made_its_weights():
    def make():
        weight = torch.full((2, 3), 2.0)
        return _core.Session(linear(weight))

    (y,) = make().run((torch.ones(1, 3),))
    assert y.tolist() == [[6.0, 6.0]]


def test_facts_are_json():
    assert json.loads(_core.probe())
    assert json.loads(_core.operators())
    model = linear(torch.randn(2, 3), precision="bf16")
    assert json.loads(model.print("summary", json=True))["inputs"]
    assert "matmul" in model.print("explain")
    with pytest.raises(deepwell.Invalid):
        model.print("poem")


def test_the_command_runs_in_the_process(capfd):
    assert _core.main(["--version"]) == 0
    assert capfd.readouterr().out.strip() == "deepwell " + _core.version()
    assert _core.main(["inspect", "/nowhere.pt2"]) == 1


def test_what_is_reserved_grows_and_is_counted():
    weight = torch.randn(2, 3)
    graph = _core.Graph.text("two", LINEAR.replace("output y %1", "%2 = exp %1\n  %3 = matmul %2, %1 {bt=true}\n  output y %3"), [("w", weight)])
    session = _core.Session(_core.Model(graph), dims="m=2")
    before = session.workspace_bytes
    for m, growths in ((2, 0), (1, 0), (30, 1), (17, 1), (64, 2), (64, 2)):
        x = torch.randn(m, 3)
        (y,) = session.run((x,))
        torch.testing.assert_close(y, (x @ weight.T).exp() @ (x @ weight.T).T, rtol=1e-5, atol=1e-5)
        assert session.growths == growths
    assert session.workspace_bytes > before
    with pytest.raises(deepwell.Mismatch, match="at most 64"):
        session.run((torch.randn(65, 3),))


def test_check_and_bench_of_a_graph_in_memory():
    model = linear(torch.randn(2, 3), precision="bf16")
    report = json.loads(model.check({"x": torch.randn(4, 3)}, json=True))
    assert report["random_inputs"] is False
    assert json.loads(model.bench(json=True, repeat=1))["run"]["seconds"] > 0
    with pytest.raises(deepwell.Invalid, match="precision"):
        linear(torch.randn(2, 3)).check()


def test_many_models_share_their_threads():
    def count():
        return len(list(pathlib.Path("/proc/self/task").iterdir()))

    weight = torch.randn(2, 3)
    kept = [_core.Session(linear(weight, threads=3))]
    before = count()
    kept += [_core.Session(linear(weight, threads=3)) for _ in range(20)]
    assert count() == before
    with pytest.raises(deepwell.Invalid, match="5000"):
        linear(weight, threads=5000)
