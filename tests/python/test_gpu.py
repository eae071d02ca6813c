"""Models on a GPU beside PyTorch's own results there: memory in place, the current stream, captures, weights that change. Skipped where there is none."""

import pytest
import torch

import deepwell as dw
from deepwell import backend

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU that PyTorch sees")


class Block(torch.nn.Module):
    def __init__(self, width=64, heads=4, vocabulary=97):
        super().__init__()
        self.table = torch.nn.Embedding(vocabulary, width)
        self.norm = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, ids):
        x = self.table(ids)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def block():
    torch.manual_seed(0)
    return Block().cuda().eval()


def close(a, b):
    assert a.device == b.device
    torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


@pytest.fixture(autouse=True)
def exact():
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        yield


def test_an_optimised_model_runs_where_it_is():
    model = block()
    fast = dw.optimize(model, strict=True)
    for shape in ((2, 16), (1, 7), (3, 40)):
        ids = torch.randint(0, 97, shape, device="cuda")
        close(fast(ids), model(ids))
    assert fast.deepwell.count == 1


def test_an_engine_takes_and_gives_tensors_of_the_gpu():
    model = block()
    ids = torch.randint(0, 97, (2, 16), device="cuda")
    engine = dw.compile(dw.capture(model, ids))
    assert engine.device == torch.device("cuda:0")
    close(engine(ids), model(ids))
    wide = torch.randint(0, 97, (2, 32), device="cuda")
    close(engine(wide[:, ::2]), model(wide[:, ::2]))        # not contiguous
    odd = torch.randint(0, 97, (3, 17), device="cuda")
    close(engine(odd[1:]), model(odd[1:]))                  # between multiples of 16 bytes
    with pytest.raises(dw.Mismatch, match="move it by"):
        engine(ids.cpu())


def test_a_model_of_the_cpu_runs_on_a_gpu_that_is_named():
    model = block().cpu()
    ids = torch.randint(0, 97, (2, 16))
    engine = dw.compile(dw.capture(model, ids), device="cuda")
    torch.testing.assert_close(engine(ids.cuda()).cpu(), model(ids), rtol=2e-5, atol=2e-5)


def test_runs_are_in_the_current_stream():
    model = torch.nn.Linear(512, 512).cuda().eval()
    fast = dw.optimize(model, strict=True)
    x = torch.zeros(256, 512, device="cuda")
    fast(x)
    for stream in (torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            x.fill_(3.0)                    # behind the sleep
            y = fast(x)
            x.fill_(5.0)                    # behind the run
            assert not stream.query()       # so nothing was waited for
        torch.cuda.synchronize()
        close(y, model(torch.full_like(x, 3.0)))


def test_a_capture_takes_the_run_up():
    model = block()
    fast = dw.optimize(model, strict=True)
    ids = torch.randint(0, 97, (2, 16), device="cuda")
    fast(ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast(ids) * 2
    for _ in range(3):
        ids.copy_(torch.randint(0, 97, (2, 16), device="cuda"))
        graph.replay()
        close(y, model(ids) * 2)
    other = torch.randint(0, 97, (2, 16), device="cuda")
    close(fast(other), model(other))
    long = torch.randint(0, 97, (4, 90), device="cuda")     # the session grows; what the graph runs on stays
    close(fast(long), model(long))
    graph.replay()
    close(y, model(ids) * 2)


def test_a_first_call_may_be_captured():
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 32)).cuda().eval()
    x = torch.randn(5, 64, device="cuda")
    engine = dw.compile(dw.capture(model, x))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = engine(x)
    x.normal_()
    graph.replay()
    close(y, model(x))


def test_weights_that_change_are_noticed():
    model = block()
    fast = dw.optimize(model, strict=True)
    ids = torch.randint(0, 97, (2, 16), device="cuda")
    close(fast(ids), model(ids))
    model.up.weight.mul_(1.5)
    close(fast(ids), model(ids))
    model.cpu()
    torch.testing.assert_close(fast(ids.cpu()), model(ids.cpu()), rtol=2e-5, atol=2e-5)
    model.cuda()
    close(fast(ids), model(ids))


def test_mixed_devices_are_named():
    fast = dw.optimize(block())
    with pytest.raises(dw.Mismatch, match=r"'ids' is on cpu, the model's weights are on cuda:0"):
        fast(torch.zeros(1, 4, dtype=torch.int64))


def test_a_bad_index_is_told_of():
    model = torch.nn.Embedding(10, 8).cuda().eval()
    fast = dw.optimize(model, strict=True)
    ids = torch.zeros(1, 4, dtype=torch.int64, device="cuda")
    fast(ids)
    fast(ids + 12)
    torch.cuda.synchronize()
    with pytest.raises(dw.Invalid, match="index 12 is outside its axis"):
        fast(ids)
    close(fast(ids), model(ids))


def test_precisions_run():
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda().eval()
    x = torch.randn(64, 256, device="cuda")
    want = model(x)
    for precision, bound in (("bf16", 0.02), ("fp8", 0.1), ("mxfp8", 0.1)):
        got = dw.optimize(model, precision=precision, strict=True)(x)
        assert (got - want).norm() / want.norm() < bound, precision


def test_single_operators_run_where_their_tensors_are():
    x, w, bias = (torch.randn(shape, device="cuda") for shape in ((3, 20, 64), (96, 64), (96,)))
    made = dw.ops.gemm(x, w, bias, "gelu", None, True)
    close(made, torch.nn.functional.gelu(torch.nn.functional.linear(x, w, bias)))
    close(dw.ops.layer_norm(x, None, None), torch.nn.functional.layer_norm(x, (64,)))
    close(dw.ops.rms_norm(x[:, 1::2]), torch.nn.functional.rms_norm(x[:, 1::2], (64,), eps=1e-6))
    q, k, v = (torch.randn(2, 4, 9, 16, device="cuda") for _ in range(3))
    close(dw.ops.attention(q, k, v, causal=True), torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert (dw.ops.fake_quantize(x, "mxfp8").cpu() == dw.ops.fake_quantize(x.cpu(), "mxfp8")).all()
    with torch.cuda.stream(torch.cuda.Stream()):
        y = dw.ops.rms_norm(x * 2)
        close(y, torch.nn.functional.rms_norm(x * 2, (64,), eps=1e-6))
    with pytest.raises(dw.Mismatch, match="move it by"):
        dw.ops.gemm(x, w.cpu(), None, "none", None, True)
    with pytest.raises(dw.Unsupported, match="on the CPU alone"):
        dw.ops.quantize(x, "mxfp8")


def test_what_was_tuned_is_taken(tmp_path):
    model = torch.nn.Linear(256, 512).cuda().eval()
    x = torch.randn(64, 256, device="cuda")
    exported = torch.export.export(model.cpu(), (x.cpu(),), dynamic_shapes=({0: torch.export.Dim("b")},))
    torch.export.save(exported, tmp_path / "model.pt2")
    model.cuda()
    file = tmp_path / "tuning.txt"
    assert dw._core.main(["tune", str(tmp_path / "model.pt2"), "--device", "cuda", "--precision", "bf16", "--tuning", str(file)]) == 0
    engine = dw.compile(dw.capture(model, x), precision="bf16", tuning=file)
    assert "tuned" in engine._region.model.print("plan")
    assert (engine(x) - model(x)).norm() / model(x).norm() < 0.02
    with pytest.raises(dw.Mismatch, match="tune again"):
        changed = tmp_path / "other.txt"
        changed.write_text(file.read_text().replace('tuning "', 'tuning "another '))
        dw.compile(dw.capture(model, x), tuning=changed)


def test_torch_compile_takes_it_as_a_backend():
    model = block()
    ids = torch.randint(0, 97, (2, 16), device="cuda")
    compiled = torch.compile(model, backend="deepwell" if "deepwell" in torch._dynamo.list_backends() else backend.compile)
    close(compiled(ids), model(ids))


def test_generation_reads_and_gives_ids_of_the_gpu():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=97, n_positions=64, bos_token_id=0, eos_token_id=None)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).cuda().eval()
    ids = torch.randint(1, 97, (1, 8), device="cuda")
    want = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    fast = dw.optimize(model, strict=True)
    assert torch.equal(fast.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0), want)
    engine = dw.compile(dw.capture(model, {"input_ids": ids}))
    made = engine.generate(ids, 12)
    assert made.device == ids.device and torch.equal(made, want)


def test_a_report_tells_the_times_of_the_gpu():
    ids = torch.randint(0, 97, (2, 16), device="cuda")
    engine = dw.compile(dw.capture(block(), ids))
    report = engine.benchmark(ids).report()
    run, = report.runs
    assert run["measured"] and 0 < run["seconds"] < 0.1 and run["launches"] >= len(run["steps"]) - 2 and 0 < report.facts["launch_seconds"] < 1e-4
    assert sum(step["seconds"] for step in run["steps"]) == pytest.approx(run["apart_seconds"], rel=1e-5)
    assert all(step["seconds"] >= 0 for step in run["steps"]) and run["wall_seconds"] > run["seconds"]
