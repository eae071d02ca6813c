"""The example of docs/python.md line by line: probe, capture, compile, explain, check, save, load, benchmark, policies, kernels, generation."""

import copy
import re
import subprocess
import sys
import warnings

import pytest
import torch

import deepwell as dw
from deepwell.kernels import KernelRegistry
from deepwell.precision import PrecisionPolicy

pytestmark = pytest.mark.filterwarnings("ignore::deepwell.DeepwellWarning")


class Attention(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.out, self.heads = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width), heads

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, s, w))


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention = torch.nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = torch.nn.LayerNorm(width)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Tiny(torch.nn.Module):
    """A causal language model: ids [b,s] -> logits [b,s,100]."""

    def __init__(self, width=64, layers=2):
        super().__init__()
        self.embed = torch.nn.Embedding(100, width)
        self.blocks = torch.nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.lm_head = torch.nn.LayerNorm(width), torch.nn.Linear(width, 100, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Tiny().eval()


@pytest.fixture(scope="module")
def ir(model):
    return dw.capture(model)


def close(a, b, bound=1e-5):
    return float((a - b).norm()) <= bound * float(b.norm())


def test_probe_tells_of_cpu_and_gpus():
    hw = dw.probe()
    assert hw.cpu.level.startswith("cpu-") and hw.cpu.threads >= 1
    assert isinstance(hw.gpus, list) and ("none" in str(hw)) == (not hw.gpus)
    for gpu in hw.gpus:
        assert gpu.name and gpu.is_blackwell in (True, False)


def test_capture_infers_inputs_and_keeps_sizes_dynamic(ir):
    assert ir.inputs == [("ids", "i64[b,s]")] and ir.outputs[0][1] == "f32[b,s,100]"
    assert "matmul" in str(ir) and "Tiny" in repr(ir)


def test_dependencies_and_fusion(ir):
    graph = ir.dependencies()
    assert graph.depth > 10 and len(graph.outputs) == 1
    assert all(o.startswith("%") is False or o in graph.reads for operands in graph.reads.values() for o in operands)
    assert "ids" in {o for operands in graph.reads.values() for o in operands}
    report = ir.fusion_report()
    assert report.fused["attention"] == 2 and sum(report.fused.values()) < sum(report.captured.values())
    assert "longest chain" in str(graph) and "after fusion" in str(report)


def test_an_engine_computes_what_the_module_does(ir, model):
    engine = dw.compile(ir, dw.probe())
    with torch.no_grad():
        for shape in ((1, 5), (3, 17), (2, 1)):
            ids = torch.randint(0, 100, shape)
            assert close(engine(ids), model(ids)) and close(engine(ids=ids), model(ids))
    with pytest.raises(dw.Mismatch):
        engine(torch.randint(0, 100, (1, 5)), torch.zeros(1))
    with pytest.raises(dw.Error):
        engine(torch.zeros(1, 5))       # not int64
    for explained in (engine.explain(), dw.compile(ir, "b200").explain()):
        assert "plan of a whole run" in explained and "plan of the cached step" in explained and "matmul" in explained
    assert "ms a call" in str(engine.benchmark(torch.randint(0, 100, (1, 5)), repeat=2))


def test_a_report_holds_each_step_against_its_bound(ir):
    engine = dw.compile(ir, dw.probe())
    report = engine.benchmark(torch.randint(0, 100, (2, 5)), repeat=2).report(prefill=6, keys=9, texts=2)
    assert [run["name"] for run in report.runs] == ["a whole run", "prefill of 6 tokens, 2 texts", "a cached step behind 9 tokens, 2 texts"]
    assert report.runs[0]["sizes"] == {"b": 2, "s": 5}
    for run in report.runs:
        assert run["measured"] and run["seconds"] == pytest.approx(sum(step["seconds"] for step in run["steps"]), rel=1e-6)
        assert run["ratio"] == pytest.approx(run["bound_seconds"] / run["seconds"], rel=1e-6)
    losses = report.losses(3)
    assert len(losses) == 3 and losses[0][1] >= losses[1][1] >= losses[2][1]
    assert "a cached step behind 9 tokens" in str(report) and len(report.table(lines=1)) < len(str(report)) < len(report.table(all=True))
    with pytest.raises(dw.Invalid, match="prefill or keys"):
        engine.report()
    with pytest.raises(dw.Error, match="JSON"):
        dw._core.report_table("[")


def test_a_tuning_is_read_and_is_for_gpus(ir, tmp_path):
    file = tmp_path / "tuning.txt"
    with pytest.raises(FileNotFoundError):
        dw.compile(ir, tuning=file)
    file.write_text('tuning "NVIDIA H200" "CUDA 13.0" "0123456789abcdef"\nend 0\n')
    with pytest.raises(dw.Unsupported, match="the CPU's kernels are chosen by estimates"):
        dw.compile(ir, tuning=file)
    file.write_text('tuning "NVIDIA H200" "CUDA')
    with pytest.raises(dw.Syntax, match=f"{file}: the text ends inside of a line"):
        dw.compile(ir, tuning=file)


def test_a_policy_reaches_the_layers(ir):
    policy = PrecisionPolicy()
    policy.set_default("mxfp8")
    policy.set_layer_precision("attention", "bf16")
    policy.set_layer_precision("mlp", "fp4")
    with pytest.warns(dw.DeepwellWarning, match="CUTLASS"):
        engine = dw.compile(ir, dw.probe(), precision="mxfp8", precision_policy=policy, use_cutlass=True)
    text = engine.explain()
    layers = {line.split()[0]: line.split()[1] for line in text.splitlines() if line.startswith("  blocks.0") and "=" in line}
    assert layers["blocks.0.mlp.0"] == "nvfp4" and layers["blocks.0.attention.qkv"] == "bf16", text
    with pytest.raises(dw.Invalid):
        dw.compile(ir, precision="fp32", precision_policy=policy)


def test_a_precision_may_leave_several_open(ir):
    engine = dw.compile(ir, precision="fp4 or fp4-weights or bfloat16", seq_len=16)
    rows = [line for line in engine.explain().splitlines() if line.startswith("  blocks.0.mlp")]
    assert rows and all("* = nvfp4 or nvfp4-weights or bf16 (default); nvfp4 " in row and " us, bf16 " in row for row in rows), rows
    with pytest.raises(dw.Syntax, match="no precisions with 'or' between them"):
        dw.compile(ir, precision="mxfp8 bf16")


def test_a_kernel_of_the_users_is_chosen(model):
    calls = []

    def my_kernel(a, b, *others, outputs, op, post, attributes, threads):
        calls.append((op, a.format))
        b = torch.from_dlpack(b)
        torch.from_dlpack(outputs[0]).copy_(torch.from_dlpack(a) @ (b.mT if attributes.get("bt") else b))
    registry = KernelRegistry()
    registry.register("custom_gemm", my_kernel, precision="fp32", min_size=1024)
    engine = dw.compile(dw.capture(model), kernel_registry=registry, seq_len=16)
    ids = torch.randint(0, 100, (2, 16))
    with torch.no_grad():
        assert close(engine(ids), model(ids)) and calls and set(calls) == {("matmul", "f32")}
        assert "custom_gemm" in engine.explain()
        fast = dw.optimize(model, kernel_registry=registry)
        assert close(fast(ids), model(ids)) and "custom_gemm" in fast.deepwell.explain()
    with pytest.raises(dw.Invalid):
        registry.register("nothing", "my_kernel")


def test_a_plain_name_is_a_module_and_what_is_in_it():
    policy = PrecisionPolicy().set_layer_precision("mlp.0", "bf16").set_layer_precision("blocks.1", "fp32")
    text = policy.text(["blocks.0.mlp.0", "blocks.1.mlp.0", "blocks.10.mlp.0", "lm_head"])
    assert text == "blocks.1.* = fp32\n*.mlp.0 = bf16\n"


def test_check_names_layers(ir):
    engine = dw.compile(ir, precision="mxfp8")
    assert "blocks.0.mlp" in engine.check(torch.randint(0, 100, (2, 9)))


def test_save_and_load(ir, model, tmp_path):
    path = tmp_path / "m.dw"
    engine = dw.compile(ir, precision="bf16")
    engine.save(path)
    ids = torch.randint(0, 100, (2, 9))
    loaded = dw.load(path)
    assert torch.equal(loaded(ids), engine(ids)) and loaded.inputs == engine.inputs
    ir.save(tmp_path / "ir.dw")
    with torch.no_grad():
        assert close(dw.load(tmp_path / "ir.dw")(ids), model(ids))
    ir.save(tmp_path / "ir.txt")
    assert "matmul" in (tmp_path / "ir.txt").read_text()


def test_a_file_is_captured(model, tmp_path):
    path = tmp_path / "m.pt2"
    program = torch.export.export(model, (torch.randint(0, 100, (3, 21)),), dynamic_shapes=({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},))
    torch.export.save(program, path)
    ids = torch.randint(0, 100, (2, 9))
    with torch.no_grad():
        assert close(dw.compile(dw.capture(path))(ids), model(ids))


def greedy(model, ids, count):
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    return ids


def test_generate_uses_a_cache_of_its_own(ir, model):
    engine = dw.compile(ir)
    ids = torch.randint(0, 100, (2, 6))
    assert torch.equal(engine.generate(ids, max_new_tokens=12), greedy(model, ids, 12))
    assert engine.generate(ids[0].tolist(), 5) == greedy(model, ids[:1], 5)[0].tolist()
    assert engine.generate([[1, 2, 3], [4]], 4)[1] == greedy(model, torch.tensor([[4]]), 4)[0].tolist()
    seen = []
    engine.generate(ids, 3, on_token=lambda row, token: seen.append(row))
    assert seen == [0, 1, 0, 1, 0, 1]
    with pytest.raises(dw.Invalid):
        engine.generate([], 3)


def test_calls_and_generation_read_one_copy_of_the_weights(ir):
    both = dw.compile(ir, precision="bf16")
    called, ids = both.weight_bytes, torch.randint(0, 100, (2, 6))
    both(ids)
    told = re.search(r"weights in the form that runs: ([\d.]+) MB; runs read ([\d.]+) and generation [\d.]+, of which both ([\d.]+)", both.explain())
    made = both.generate(ids, 4)
    assert both.weight_bytes < 1.5 * called and both.weight_bytes / 1e6 == pytest.approx(float(told[1]), abs=0.01)
    assert float(told[3]) > 0.5 * float(told[2]) and told[0] in both.explain()
    assert torch.equal(dw.compile(ir, precision="bf16").generate(ids, 4), made)


def test_an_update_reaches_generation(model):
    model = copy.deepcopy(model)
    engine = dw.compile(dw.capture(model))
    ids = torch.randint(0, 100, (2, 6))
    engine.generate(ids, 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    engine.update()
    assert torch.equal(engine.generate(ids, 8), greedy(model, ids, 8))


def test_an_update_that_finds_no_memory_goes_by_halves(model):
    """What is made anew lies beside what was there before, so fewer weights at a time take less."""
    model = copy.deepcopy(model)

    def change():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    change()                # weights that are all 1 or 0 would decide how it is compiled
    engine = dw.compile(dw.capture(model))
    region, given = engine._region, []

    class Short:
        def __init__(self, model, most):
            self.model, self.most = model, most

        def update(self, names):
            if len(names) > self.most:
                raise dw.NoMemory("no room")
            given.extend(names)
            self.model.update(names)

    change()
    made = region._model
    region._model = Short(made, 5)
    engine.update()
    region._model = Short(made, 0)
    with pytest.raises(dw.NoMemory):
        engine.update()
    region._model = made
    ids = torch.randint(0, 100, (2, 6))
    assert given == [name for name, _ in region.program.tensors] and len(given) > 5
    assert torch.equal(engine.generate(ids, 8), greedy(model, ids, 8))


def test_a_loaded_engine_generates_by_its_cached_step(ir, tmp_path):
    engine = dw.compile(ir)
    engine.save(tmp_path / "m.dw")
    loaded = dw.load(tmp_path / "m.dw")
    assert "generation with a cache: no: no generation was asked for" in loaded.explain()
    assert loaded.generate([1, 2, 3], 8) == engine.generate([1, 2, 3], 8)
    assert "generation with a cache: yes" in loaded.explain() and "plan of the cached step" in loaded.explain()
    assert "texts of a service go together and share pages: yes" in loaded.explain()
    loaded.save(tmp_path / "again.dw")
    assert (tmp_path / "again.dw").read_bytes() == (tmp_path / "m.dw").read_bytes()


@pytest.mark.long
@torch.no_grad()
def test_generate_of_an_encoder_decoder_takes_rows_together():
    tf = pytest.importorskip("transformers")
    torch.manual_seed(3)
    model = tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_heads=4,
                                                      use_cache=False, decoder_start_token_id=0)).eval()
    ids = torch.randint(3, 64, (3, 9))
    engine = dw.compile(dw.capture(model, {"input_ids": ids[:, :5], "decoder_input_ids": torch.zeros(3, 4, dtype=torch.int64)}))

    def greedy(source):
        made = torch.zeros(source.shape[0], 1, dtype=torch.int64)
        for _ in range(6):
            logits = model(input_ids=source, decoder_input_ids=made).logits[:, -1]
            made = torch.cat([made, logits.argmax(-1, keepdim=True)], 1)
        return made
    start = torch.zeros(3, 1, dtype=torch.int64)
    told = []
    assert torch.equal(engine.generate(start, 6, input_ids=ids, on_token=lambda row, token: told.append(row) and False), greedy(ids))
    assert told[:3] == [0, 1, 2], told          # all of them in one step
    ragged = [ids[:1, :4], ids[1:2], ids[2:, :7]]
    assert engine.generate([[0], [0], [0]], 6, input_ids=ragged) == [greedy(r)[0].tolist() for r in ragged]
    assert torch.equal(engine.generate(start, 6, input_ids=ids[:1]), greedy(ids[:1]).expand(3, -1))
    longer = torch.randint(3, 64, (1, 40))      # than what was captured
    assert torch.equal(engine.generate(start[:1], 6, input_ids=longer), greedy(longer))
    with pytest.raises(dw.Mismatch, match="3 prompts"):
        engine.generate(start, 2, input_ids=ids[:2])


def test_another_chip_is_planned_for_but_does_not_run(ir):
    engine = dw.compile(ir, "cpu-portable")
    assert "cpu-portable" in engine.explain()
    with pytest.raises(dw.Unsupported):
        engine(torch.randint(0, 100, (1, 5)))


def test_inputs_that_cannot_be_inferred_are_asked_for():
    class Two(torch.nn.Module):
        def forward(self, left, right):
            return left + right
    with pytest.raises(dw.Invalid, match="right"):
        dw.capture(Two())
    with pytest.raises(dw.Invalid, match="example inputs"):
        dw.capture(torch.nn.ReLU())
    assert dw.capture(Two(), (torch.ones(3, 4), torch.ones(3, 4))).inputs[1][0] == "right"
    assert "f32[b,3,32,32]" in str(dw.capture(Convolutions()))


def test_the_sides_of_images_stay_fixed():
    from deepwell.trace import dynamic_axes
    assert dynamic_axes("pixel_values", torch.zeros(2, 3, 8, 8)) == (0,)
    assert dynamic_axes("past_key_values_0_values", torch.zeros(2, 3, 8, 8)) == (0, 2)
    assert dynamic_axes("attention_mask", torch.zeros(2, 1, 8, 8)) == (0, 2, 3)
    assert dynamic_axes("hidden_states", torch.zeros(2, 8, 8)) == (0, 1, 2)


class Convolutions(torch.nn.Module):
    image_size = 32

    def __init__(self):
        super().__init__()
        self.stem, self.head = torch.nn.Conv2d(3, 8, 4, stride=4), torch.nn.Linear(8 * 64, 5)

    def forward(self, x):
        return self.head(self.stem(x).flatten(1))


def test_importing_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import deepwell; print(deepwell.probe().cpu.level, deepwell.__version__)"
    assert "cpu-" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_command_line_is_the_same():
    made = subprocess.run([sys.executable, "-m", "deepwell", "probe"], capture_output=True, text=True)
    assert made.returncode == 0 and "cpu" in made.stdout


def test_every_public_name_is_there():
    for name in dw.__all__:
        assert getattr(dw, name) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert callable(dw.optimize) and dw.optimize is dw.optimize_for_blackwell
    assert KernelRegistry is dw.KernelRegistry


@pytest.mark.long
@torch.no_grad()
def test_prompts_longer_than_a_window():
    """The caches that the model makes and returns take another form there, so an export with them ends before; the engine's own are rings."""
    tf = pytest.importorskip("transformers")
    torch.manual_seed(4)
    model = tf.Gemma2ForCausalLM(tf.Gemma2Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                                 query_pre_attn_scalar=8, sliding_window=12, max_position_embeddings=96, attn_implementation="eager")).eval()
    ids = torch.randint(3, 64, (1, 30))
    with pytest.raises(dw.Limit, match="at most 10 tokens.*use_cache=False"):
        dw.compile(dw.capture(model, {"input_ids": ids[:, :6].expand(2, -1)})).generate(ids, 8)
    engine = dw.compile(dw.capture(model, {"input_ids": ids[:, :6].expand(2, -1), "use_cache": False}))
    made = ids
    for _ in range(8):
        made = torch.cat([made, model(made, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(engine.generate(ids, 8), made)


class Ear(torch.nn.Module):
    """Convolutions that shorten a sound, as those of wav2vec 2.0: of 128 samples nothing would be left."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv1d(1, 8, 10, 5), *(torch.nn.Conv1d(8, 8, 3, 2) for _ in range(4)), *(torch.nn.Conv1d(8, 8, 2, 2) for _ in range(2)))

    def forward(self, sound):
        return self.layers(sound[:, None])


class Alone(Ear):
    def forward(self, sound):
        return super().forward(sound[None])


def test_plans_are_made_for_the_size_of_the_example(tmp_path):
    def planned(engine):
        return re.findall(r"(\w+=\d+) \(", re.search(r"^plan of a whole run at (.*): ", engine.explain(), re.MULTILINE)[1])
    ir = dw.capture(Ear().eval(), torch.randn(2, 16000))
    assert planned(dw.compile(ir)) == ["b=1", "s=16000"]
    assert planned(dw.compile(ir, "b200")) == ["b=1", "s=16000"]
    assert planned(dw.compile(ir, seq_len=4000)) == ["b=1", "s=4000"]
    assert planned(dw.compile(dw.capture(Alone().eval(), torch.randn(16000)))) == ["s=16000"]      # its only axis is no batch
    assert planned(dw.compile(dw.capture(Block(32, 2).eval(), torch.randn(2, 24, 32)))) == ["b=1", "s=128"]      # shorter ones say nothing of what comes
    torch.export.save(torch.export.export(ir.model, (torch.randn(2, 16000),), dynamic_shapes=({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)), tmp_path / "ear.pt2")
    read = dw.capture(tmp_path / "ear.pt2")
    assert planned(dw.compile(read)) == ["b=1", "s=16000"]
    assert 'note   example "b=2,s=16000"' in str(ir) and 'note   example "b=2,s=16000"' in str(read)      # whichever way it comes
    sound = torch.randn(3, 1000)
    assert torch.allclose(dw.compile(ir)(sound), ir.model(sound), atol=1e-5)
