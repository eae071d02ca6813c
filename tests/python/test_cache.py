"""Captures kept on disk: a hit is the same graph, and whatever a trace depends on makes another digest."""

import ctypes
import functools
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import types
import warnings

import captured_model
import pytest
import torch
import torch._dynamo.config

import deepwell as dw
from deepwell import cache, fingerprint
from deepwell.trace import flatten_call


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPWELL_CACHE", str(tmp_path))
    return tmp_path / "captures"


def model(**more):
    return captured_model.Model(**more).eval()


X = torch.randn(3, 5, 16)


def digest(made, args=(X,), kwargs=None, more=(True, "", False)):
    form, flat = flatten_call(made, args, kwargs or {})
    return fingerprint.fingerprint(made, form, flat.names, flat.leaves, more).digest()


def forbid_export(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the model was exported")
    monkeypatch.setattr("deepwell.trace._export", refuse)


# ---- hits ----

def test_a_hit_is_the_same_graph_and_gives_the_same_results(kept, monkeypatch):
    first = dw.capture(model(), X)
    assert not first.trace.is_kept and len(list(kept.iterdir())) == 1
    forbid_export(monkeypatch)
    second = dw.capture(model(), X)
    assert second.trace.is_kept and "from the cache of captures" in repr(second) and "from the cache" not in repr(first)
    assert str(second) == str(first) and second.trace.program.json == first.trace.program.json
    assert second.trace.result == first.trace.result and second.trace.form == first.trace.form and second.trace.flops == first.trace.flops
    for x in (X, torch.randn(4, 2, 16)):
        a, b = dw.compile(first)(x), dw.compile(second)(x)
        assert torch.equal(a["x"], b["x"]) and a["rows"] == b["rows"] == len(x) and b["sum"][1] == "text" and torch.equal(a["sum"][0], b["sum"][0])
    assert dw.compile(second).explain().startswith(f"captured: from {kept}")


def test_a_hit_reads_the_weights_of_its_own_model(kept):
    dw.capture(model(), X)
    other = model()
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(0.5)
    ir = dw.capture(other, X)
    assert ir.trace.is_kept
    with torch.no_grad():
        assert torch.allclose(dw.compile(ir)(X)["x"], other(X)["x"], atol=1e-5)


def test_optimize_hits_and_says_so(kept, monkeypatch):
    with torch.no_grad():
        first = dw.optimize(model())(X)["x"]
        forbid_export(monkeypatch)
        fast = dw.optimize(model(), strict=True)
        assert torch.equal(fast(X)["x"], first)
        assert "captured from" in str(fast.deepwell.report()) and fast.deepwell.explain().startswith("captured: from")
        fast.offset.add_(1)
        assert torch.allclose(fast(X)["x"], first + 1, atol=1e-5)


def test_a_model_that_writes_a_buffer_hits(kept, monkeypatch):
    x = torch.zeros(3, 4)
    with torch.no_grad():
        dw.optimize(captured_model.Counter().eval(), strict=True)(x)
        forbid_export(monkeypatch)
        fast = dw.optimize(captured_model.Counter().eval(), strict=True)
        assert [float(fast(x)[0, 0]) for _ in range(3)] == [1, 2, 3] and float(fast.count[0]) == 3


@pytest.mark.long
def test_another_process_hits(kept):
    program = ("import sys; sys.path[:0] = sys.argv[1:]; import torch, captured_model as c, deepwell as dw; "
               "ir = dw.capture(c.Model().eval(), torch.ones(3, 5, 16)); print(ir.trace.is_kept); print(ir)")
    paths = [os.path.dirname(__file__), os.path.dirname(os.path.dirname(dw.__file__))]
    made = [subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True, check=True).stdout.partition("\n") for _ in range(2)]
    assert [m[0] for m in made] == ["False", "True"] and made[0][2] == made[1][2]


@pytest.mark.long
def test_another_process_hits_for_a_model_of_transformers(kept):
    pytest.importorskip("transformers")
    program = ("import sys; sys.path[:0] = sys.argv[1:]; import torch, transformers as t, deepwell as dw; "
               "m = t.LlamaForCausalLM(t.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=50)).eval(); "
               "ir = dw.capture(m, {'input_ids': torch.ones(2, 7, dtype=torch.int64)}); print(ir.trace.is_kept); print(ir)")
    package = os.path.dirname(os.path.dirname(dw.__file__))
    made = [subprocess.run([sys.executable, "-c", program, package], capture_output=True, text=True, check=True).stdout.partition("\n") for _ in range(2)]
    assert [m[0] for m in made] == ["False", "True"] and made[0][2] == made[1][2]


# ---- misses ----

def changed_attribute(m, monkeypatch): m.blocks[1].eps = 2e-5
def changed_class_attribute(m, monkeypatch): monkeypatch.setattr(captured_model.Block, "eps", 2e-5)
def changed_configuration(m, monkeypatch): m.blocks[0].settings.scale = 2.5
def shared_no_longer(m, monkeypatch): m.blocks[1].settings = captured_model.Settings()
def changed_buffer(m, monkeypatch): m.offset[3] = 2
def changed_constant(m, monkeypatch): m.table[3] = 2
def changed_table(m, monkeypatch): monkeypatch.setitem(captured_model.SHIFTS, "half", OtherShift)
def patched_constructor(m, monkeypatch): monkeypatch.setattr(captured_model.Shift, "__init__", lambda self: setattr(self, "by", 1))
def changed_global(m, monkeypatch): monkeypatch.setattr(captured_model, "SLOPE", 3.0)
def other_parameter_dtype(m, monkeypatch): m.blocks[0].linear.weight.data = m.blocks[0].linear.weight.data.double()
def other_parameter_strides(m, monkeypatch): m.blocks[0].linear.weight.data = m.blocks[0].linear.weight.data.t().contiguous().t()
def frozen_parameter(m, monkeypatch): m.blocks[0].linear.weight.requires_grad_(False)
def no_bias(m, monkeypatch): m.blocks[0].linear.bias = None
def another_module(m, monkeypatch): m.blocks[1] = torch.nn.Linear(16, 16)
def one_module_twice(m, monkeypatch): m.blocks[1] = m.blocks[0]
def more_modules(m, monkeypatch): m.blocks.append(torch.nn.Identity())
def training(m, monkeypatch): m.blocks[0].train()
def patched_function(m, monkeypatch): monkeypatch.setattr(captured_model, "bend", torch.nn.functional.relu)
def patched_method(m, monkeypatch): monkeypatch.setattr(captured_model.Block, "forward", lambda self, x: bend_otherwise(self.linear(x)))
def patched_instance(m, monkeypatch): m.blocks[0].forward = types.MethodType(forward_otherwise, m.blocks[0])
def patched_torch(m, monkeypatch): monkeypatch.setattr(torch, "where", where_otherwise)
def swapped_torch(m, monkeypatch): monkeypatch.setattr(torch.nn.functional, "linear", torch.nn.functional.bilinear)
def patched_tensor(m, monkeypatch): monkeypatch.setattr(torch.Tensor, "sum", where_otherwise)
def compile_settings(m, monkeypatch): torch._dynamo.config.assume_static_by_default = False
def environment(m, monkeypatch): monkeypatch.setenv("TORCHDYNAMO_VERBOSE", "1")
def attention(m, monkeypatch): torch.backends.cuda.enable_flash_sdp(False)


class OtherShift:
    by = 2


def bend_otherwise(x):
    return x.abs()


def forward_otherwise(self, x):
    return self.linear(x)


def where_otherwise(*args):
    return args[1]


CHANGES = [changed_attribute, changed_class_attribute, changed_configuration, shared_no_longer, changed_buffer, changed_constant, changed_global, changed_table, patched_constructor,
           other_parameter_dtype, other_parameter_strides, frozen_parameter, no_bias, another_module, one_module_twice, more_modules, training,
           patched_function, patched_method, patched_instance, patched_torch, swapped_torch, patched_tensor, compile_settings, environment, attention]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_a_change_is_a_miss(change, monkeypatch):
    before = digest(model())
    assert digest(model()) == before
    made = model()
    flash = torch.backends.cuda.flash_sdp_enabled()
    try:
        change(made, monkeypatch)
        assert digest(made) != before
    finally:
        monkeypatch.undo()
        torch.backends.cuda.enable_flash_sdp(flash)
        torch._dynamo.config.assume_static_by_default = True
    assert digest(model()) == before


@pytest.mark.parametrize("owner, name", [(torch, "__version__"), (fingerprint._core, "version"), (fingerprint, "_own_sources")])
def test_another_version_is_a_miss(owner, name, monkeypatch):
    before = digest(model())
    monkeypatch.setattr(owner, name, "another" if isinstance(getattr(owner, name), str) else lambda: "another")
    assert digest(model()) != before


PACKAGE = """
import torch
__version__ = "1.0"
def half(x):
    return torch.ops.foreign_operators.half(x)
class Half(torch.nn.Module):
    def forward(self, x):
        return torch.ops.foreign_operators.half(x)
"""


class ReadsAPackage(torch.nn.Module):
    def forward(self, x, by_package=False):
        if by_package:
            import foreign_package
            return foreign_package.half(x) + foreign_package.Half()(x)
        return x + 1


@pytest.fixture
def foreign_package(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages" / "foreign_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "_code.so").write_bytes(b"")
    monkeypatch.syspath_prepend(str(folder.parent))
    operators = torch.library.Library("foreign_operators", "DEF")
    operators.define("half(Tensor x) -> Tensor")
    import foreign_package as made
    yield made
    operators._destroy()
    sys.modules.pop("foreign_package")


def test_a_package_of_machine_code_is_taken_by_its_version(foreign_package, monkeypatch):
    before = digest(ReadsAPackage())
    assert digest(ReadsAPackage()) == before
    monkeypatch.setattr(foreign_package, "half", bend_otherwise)
    assert digest(ReadsAPackage()) != before
    monkeypatch.undo()
    monkeypatch.setattr(foreign_package.Half, "forward", forward_otherwise)
    assert digest(ReadsAPackage()) != before
    monkeypatch.undo()
    assert digest(ReadsAPackage()) == before
    monkeypatch.setattr(foreign_package, "__version__", "1.1")
    assert digest(ReadsAPackage()) != before


def test_a_package_in_python_is_read(foreign_package):
    os.unlink(os.path.join(os.path.dirname(foreign_package.__file__), "_code.so"))
    fingerprint._installed_version.cache_clear()
    with pytest.raises(fingerprint.Unsure, match="operators of foreign_operators"):
        digest(ReadsAPackage())


def test_a_package_that_binds_machine_code_by_ctypes_is_taken_by_its_version(foreign_package, monkeypatch):
    os.unlink(os.path.join(os.path.dirname(foreign_package.__file__), "_code.so"))
    monkeypatch.setattr(foreign_package, "CDLL", ctypes.CDLL, raising=False)
    monkeypatch.setattr(foreign_package, "handle", ctypes.POINTER(type("Opaque", (ctypes.Structure,), {"__module__": "foreign_package"})), raising=False)
    fingerprint._installed_version.cache_clear()
    before = digest(ReadsAPackage())
    assert digest(ReadsAPackage()) == before
    monkeypatch.setattr(foreign_package, "__version__", "1.1")
    assert digest(ReadsAPackage()) != before


def test_packages_that_are_installed_count_in_any_order():
    """importlib.metadata lists them in another order in each process."""
    listed = importlib.metadata.packages_distributions()
    turned = {name: items[::-1] for name, items in reversed(listed.items())}
    assert list(turned) != list(listed)
    made, digests = model(), []
    for made.blocks[0].installed in (listed, turned, {**listed, "torch": ["another"]}, {"a": ["b"], "c": ["d"]}, {"c": ["d"], "a": ["b"]}):
        digests.append(digest(made))
    assert digests[0] == digests[1] and len(set(digests)) == 4


def test_tied_weights_are_a_miss():
    assert digest(model(tied=True)) != digest(model())


@pytest.mark.parametrize("change", [
    lambda: ((X[:2],), {}, (True, "", False)), lambda: ((X.double(),), {}, (True, "", False)), lambda: ((X.transpose(0, 1),), {}, (True, "", False)),
    lambda: ((), {"x": X}, (True, "", False)), lambda: ((X, None), {}, (True, "", False)), lambda: ((X, X), {}, (True, "", False)),
    lambda: ((X, X.clone()), {}, (True, "", False)), lambda: ((X, 2.0), {}, (True, "", False)), lambda: ((X, 3.0), {}, (True, "", False)),
    lambda: ((X,), {}, (False, "", False)), lambda: ((X,), {}, ({"x": {0: True}}, "", False)), lambda: ((X,), {}, (True, "part", False)),
    lambda: ((X,), {}, (True, "", True))])
def test_another_call_is_a_miss(change):
    assert digest(model(), *change()) == digest(model(), *change()) != digest(model())


@pytest.mark.long
def test_a_changed_line_of_the_source_is_a_miss(kept, tmp_path):
    source = open(captured_model.__file__, encoding="utf-8").read()
    program = ("import sys; sys.path[:0] = sys.argv[1:]; import torch, changing as c, deepwell as dw; "
               "print(dw.capture(c.Model().eval(), torch.ones(3, 5, 16)).trace.is_kept)")
    texts = [source, source, source.replace("bend(self.linear(x)) *", "self.linear(x) *"), source.replace("self.count.add_(1)", "self.count.add_(2)  # unread"),
             "# a comment alone\n" + source]
    found = []
    for text in texts:
        (tmp_path / "changing.py").write_text(text)
        paths = [str(tmp_path), os.path.dirname(os.path.dirname(dw.__file__))]
        found.append(subprocess.run([sys.executable, "-B", "-c", program, *paths], capture_output=True, text=True, check=True).stdout.strip())
    assert found == ["False", "True", "False", "True", "True"]


# ---- what is never kept ----

class OfThisFile(torch.nn.Module):
    def __init__(self, thing):
        super().__init__()
        self.linear, self.thing = torch.nn.Linear(4, 4), thing

    def forward(self, x):
        return self.linear(x)


def hooked():
    made = model()
    made.blocks[0].register_forward_hook(lambda m, args, out: out * 2)
    return made


def local():
    class Local(torch.nn.Linear):
        pass
    return Local(16, 16)


@pytest.mark.parametrize("make, why", [(hooked, "hook"), (local, "not found by its name"), (lambda: OfThisFile(open(os.devnull)), "TextIOWrapper"),
                                       (lambda: OfThisFile(iter([1])), "list_iterator"), (lambda: OfThisFile(torch.Generator()), "Generator"),
                                       (lambda: OfThisFile(torch.zeros(1 << 20)), "neither a parameter nor a buffer")])
def test_what_cannot_be_read_is_not_kept(make, why, kept):
    with pytest.raises(fingerprint.Unsure, match=why):
        digest(make().eval())


def test_not_kept_is_said_and_captured(kept):
    ir = dw.capture(hooked().eval(), X)
    assert "not kept" in ir.trace.origin and "a forward hook" in ir.trace.origin and not kept.exists()


class Moody:
    def __getattribute__(self, name):
        if name == "__dict__":
            raise OSError("not today")
        return object.__getattribute__(self, name)


def test_an_object_that_cannot_be_looked_at_is_no_error(kept):
    made = OfThisFile(Moody())
    form, flat = flatten_call(made, (torch.ones(2, 4),), {})
    place = cache.Place(made, form, flat.names, flat.leaves, None)
    assert place.path is None and "not today" in place.reason


def test_closures_are_read():
    def made(k):
        m = OfThisFile(functools.partial(torch.mul, other=k)).eval()
        return digest(m, (torch.ones(2, 4),))
    assert made(2) == made(2) != made(3)


# ---- files ----

def test_turned_off_by_an_empty_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("DEEPWELL_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "turned off" in dw.capture(model(), X).trace.origin and not list(tmp_path.iterdir())
    monkeypatch.delenv("DEEPWELL_CACHE")
    assert cache.folder() == tmp_path / "deepwell" / "captures"


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:100], lambda d: b"", lambda d: d[:200] + bytes([d[200] ^ 1]) + d[201:]])
def test_damage_is_warned_of_and_mended(damage, kept):
    text = str(dw.capture(model(), X))
    path, = kept.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.warns(dw.DeepwellWarning, match="is damaged"):
        assert str(dw.capture(model(), X)) == text
    assert path.read_bytes().partition(b"\n")[2].partition(b"\n")[2] == whole.partition(b"\n")[2].partition(b"\n")[2]
    assert dw.capture(model(), X).trace.is_kept


def forge(path, change):
    """The file with other facts, and a digest that fits them."""
    _, _, contents = path.read_bytes().partition(b"\n")
    line, _, text = contents.partition(b"\n")
    facts = json.loads(line)
    change(facts)
    contents = json.dumps(facts).encode() + b"\n" + text
    path.write_bytes(cache._HEAD + hashlib.sha256(contents).hexdigest().encode() + b"\n" + contents)


@pytest.mark.parametrize("change", [
    lambda f: f["result"].__setitem__(0, ["mapping", "subprocess.Popen", ["args"], [["constant", ["number", "false"]]]]),
    lambda f: f["result"].__setitem__(0, ["object", "captured_model.Block", [], []]), lambda f: f.__setitem__("key", "0"),
    lambda f: f["shapes"].__setitem__(0, ["Symbol('__import__(\"os\").getpid()', integer=True)"]), lambda f: f["shapes"].__setitem__(0, ["Add('1+1', 'x')"]),
    lambda f: f["tensors"].__setitem__(0, ["w", "model", "no.such", ""]), lambda f: f["tensors"].__setitem__(0, ["w", "constant", "torch.load", [], ""]),
    lambda f: f.pop("lifted"), lambda f: f["outputs"].__setitem__(0, ["eval", "1"])])
def test_forged_facts_are_refused(change, kept):
    dw.capture(model(), X)
    path, = kept.iterdir()
    forge(path, change)
    with pytest.warns(dw.DeepwellWarning, match="is damaged"):
        assert not dw.capture(model(), X).trace.is_kept


@pytest.mark.parametrize("text", ["Symbol('s0', integer=True)", "Add(Integer(1), Mul(Integer(-1), Symbol('s0', integer=True)))", "Integer(7)",
                                  "FloorDiv(Symbol('s1', integer=True), Integer(2))", "Rational(1, 2)"])
def test_sizes_read_as_they_were_written(text):
    from deepwell.program import _Sizes
    assert _Sizes().text(cache.parse_size(text)) == text


@pytest.mark.parametrize("text", ["", "s0", "eval('1')", "Add('1', '2')", "Integer('2')", "Symbol('s0')Symbol('s1')", "Float('nan()')", "Add(", "Symbol(1)", "1"])
def test_other_texts_are_no_sizes(text):
    with pytest.raises((ValueError, IndexError)):
        cache.parse_size(text)


def test_the_oldest_are_removed(kept, monkeypatch):
    dw.capture(model(), X)
    first, = kept.iterdir()
    os.utime(first, (1, 1))
    monkeypatch.setattr(cache, "LIMIT", first.stat().st_size * 3 // 2)
    dw.capture(model(), X, dynamic=False)
    second, = kept.iterdir()
    assert second != first


def test_what_is_used_stays_when_others_go(kept, monkeypatch):
    dw.capture(model(), X)
    first, = kept.iterdir()
    dw.capture(model(), X, dynamic=False)
    second, = set(kept.iterdir()) - {first}
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    assert dw.capture(model(), X).trace.is_kept          # which is a use of the first
    monkeypatch.setattr(cache, "LIMIT", 2 * max(first.stat().st_size, second.stat().st_size) + 100)
    dw.capture(model(), (torch.randn(1, 5, 16),), dynamic={"x": {1: True}})
    assert first.exists() and not second.exists() and len(list(kept.iterdir())) == 2


def test_what_another_process_writes_or_removes_is_no_error(kept, monkeypatch):
    kept.mkdir()
    (kept / ".theirs.part").write_bytes(b"x" * 100)
    (kept / ".abandoned.part").write_bytes(b"x" * 100)
    os.utime(kept / ".abandoned.part", (1, 1))
    (kept / "gone.capture").symlink_to(kept / "nothing")       # removed between the listing and the look at it
    monkeypatch.setattr(cache, "LIMIT", 50)
    assert "kept in" in dw.capture(model(), X).trace.origin
    assert (kept / ".theirs.part").exists() and not (kept / ".abandoned.part").exists()
    assert dw.capture(model(), X).trace.is_kept


@pytest.mark.long
def test_several_processes_at_once_keep_one_capture(kept):
    program = ("import sys; sys.path[:0] = sys.argv[1:]; import torch, captured_model as c, deepwell as dw; "
               "m = c.Model().eval(); sys.stdin.readline(); ir = dw.capture(m, torch.ones(3, 5, 16)); print('damaged' in ir.trace.origin); print(ir)")
    paths = [os.path.dirname(__file__), os.path.dirname(os.path.dirname(dw.__file__))]
    running = [subprocess.Popen([sys.executable, "-W", "error", "-c", program, *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        process.stdin.write("begin\n")
        process.stdin.flush()
    told = [process.communicate()[0] for process in running]
    assert all(process.returncode == 0 for process in running) and told[0].startswith("False") and told[1:] == told[:1] * 2
    assert len(list(kept.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_alone_is_read(kept):
    text = str(dw.capture(model(), X))
    path, = kept.iterdir()
    kept.chmod(0o500)
    try:
        assert dw.capture(model(), X).trace.is_kept and "not kept" in dw.capture(model(), X, dynamic=False).trace.origin
    finally:
        kept.chmod(0o700)
    assert str(dw.capture(model(), X)) == text and list(kept.iterdir()) == [path]


def test_a_folder_that_refuses_files_is_read(kept, monkeypatch):
    dw.capture(model(), X)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Read-only file system")
    monkeypatch.setattr(cache.os, "utime", refuse)
    monkeypatch.setattr(cache.tempfile, "mkstemp", refuse)
    assert dw.capture(model(), X).trace.is_kept
    assert "not kept: [Errno 13] Read-only file system" in dw.capture(model(), X, dynamic=False).trace.origin


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "captures").write_text("a file")
    monkeypatch.setenv("DEEPWELL_CACHE", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error", dw.DeepwellWarning)
        assert "not kept" in dw.capture(model(), X).trace.origin
