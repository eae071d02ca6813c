"""Writes the small random models that the tests run: NAME.pt2 by torch.export, and NAME.cases/ with inputs and PyTorch's outputs.

Usage: export.py DIRECTORY [NAME...]

A case is two safetensors files under the names of the export: `b2_s16.in.safetensors` and `b2_s16.out.safetensors` (PyTorch eager).
manifest.json lists models and cases, with PyTorch's own relative error against fp64 for each output, and the ids of greedy generation.
A directory whose manifest was written by the same scripts and versions is left as it is. It trains nothing: that is train.py.
"""
import functools
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import warnings
import zipfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

HERE = Path(__file__).resolve().parent


def stamp():
    """Hash of all that decides the output: these scripts and the pinned packages."""
    h = hashlib.sha256()
    for name in ("export.py", "catalog.py", "families.py", "handmade.py", "bytegpt.py", "kjv.pt2", "requirements.txt"):
        h.update((HERE / name).read_bytes())
    return h.hexdigest()


def is_fresh(out, names):
    manifest = out / "manifest.json"
    if names or not manifest.exists():
        return False
    return json.loads(manifest.read_text()).get("stamp") == stamp()


if __name__ == "__main__" and len(sys.argv) > 1 and is_fresh(Path(sys.argv[1]), sys.argv[2:]):
    sys.exit(0)         # before the slow imports: a fresh directory costs nothing

import torch
import transformers
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode

import catalog
import families

MODELS = catalog.MODELS + families.FAMILIES


class InFloat64(TorchFunctionMode):
    """Runs a module in fp64 throughout: casts to less that the module spells out become casts to fp64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def widen(x):
            return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(widen(a) for a in args)
        kwargs = {k: widen(v) for k, v in (kwargs or {}).items()}
        if func is torch.full and isinstance(args[1], float):
            kwargs.setdefault("dtype", torch.float64)
        return func(*args, **kwargs)


def randomise(module, seed):
    """Weights that make every part matter: linears keep the variance, norms and biases are not the neutral ones."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if p.dim() >= 2:
                fan_in = p[0].numel()
                scale = 0.02 if "emb" in name or "wte" in name or "wpe" in name else fan_in ** -0.5
                p.copy_(torch.randn(p.shape, generator=g) * scale)
            else:
                p.add_(torch.randn(p.shape, generator=g) * 0.1)


def flat_tensors(output):
    """The tensors of a module's output in the order of the export."""
    leaves = torch.utils._pytree.tree_leaves(output)
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def archive_names(path):
    """Names of the user's inputs and outputs, as the archive itself has them."""
    with zipfile.ZipFile(path) as z:
        member = next(n for n in z.namelist() if n.endswith("models/model.json"))
        signature = json.loads(z.read(member))["graph_module"]["signature"]

    def tensor_name(spec, key):
        return (spec.get(key) or {}).get("arg", {}).get("as_tensor", {}).get("name")
    inputs = [tensor_name(s, "user_input") for s in signature["input_specs"]]
    outputs = [tensor_name(s, "user_output") for s in signature["output_specs"]]
    return [n for n in inputs if n], [n for n in outputs if n]


def relative_error(a, b):
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm())


def export_model(model, module, path):
    """Traces at sizes that no dimension of a weight has, so that nothing is specialised by accident."""
    g = torch.Generator().manual_seed(1)
    example = model.inputs(g, (3, 21, 13)[:len(model.dims)] if model.dims else model.sizes[0])
    dims = {name: torch.export.Dim(name, max=model.special.get("max_" + name)) for name in model.dims}
    dynamic = {name: {axis: dims[d] for axis, d in axes.items()} for name, axes in model.dynamic.items()}
    program = torch.export.export(module, (), kwargs=example, dynamic_shapes=dynamic or None)
    if model.special.get("decompose"):
        program = program.run_decompositions({})
    torch.export.save(program, path)


def write_cases(model, module, module64, out, inputs_of_archive, outputs_of_archive):
    folder = out / f"{model.name}.cases"
    folder.mkdir(exist_ok=True)
    cases = []
    for index, size in enumerate(model.sizes):
        g = torch.Generator().manual_seed(100 + index)
        given = model.inputs(g, size)
        assert list(given) == inputs_of_archive, (model.name, list(given), inputs_of_archive)
        label = "_".join(f"{d}{n}" for d, n in zip(model.dims, size)) or "static"
        with torch.no_grad():
            got = flat_tensors(module(**given))
            with InFloat64():
                exact = flat_tensors(module64(**{k: v.double() if v.is_floating_point() else v for k, v in given.items()}))
        assert len(got) == len(outputs_of_archive), (model.name, len(got), outputs_of_archive)
        assert all(torch.isfinite(t).all() for t in got), (model.name, label)
        assert all(t.dtype == torch.float64 for t in exact), (model.name, [t.dtype for t in exact])
        files = {kind: f"{model.name}.cases/{label}.{kind}.safetensors" for kind in ("in", "out")}
        save_file({k: v.contiguous() for k, v in given.items()}, out / files["in"])
        save_file({k: v.clone().contiguous() for k, v in zip(outputs_of_archive, got)}, out / files["out"])
        errors = {k: relative_error(a, b) for k, a, b in zip(outputs_of_archive, got, exact)}
        cases.append({"in": files["in"], "out": files["out"], "dims": dict(zip(model.dims, size)), "torch_error": errors})
    return cases


def greedy(model, module, prompt):
    """Greedy ids by full recomputation, and the smallest lead of a chosen id over the next one, relative to the logits' norm."""
    ids, lead = list(prompt), float("inf")
    name = next(iter(model.dynamic))
    with torch.no_grad():
        for _ in range(model.tokens):
            logits = flat_tensors(module(**{name: torch.tensor([ids])}))[0][0, -1].double()
            top = torch.topk(logits, 2).values
            lead = min(lead, float((top[0] - top[1]) / logits.norm()))
            ids.append(int(logits.argmax()))
    return {"prompt": list(prompt), "ids": ids[len(prompt):], "lead": lead}


def write_model(model, out):
    torch.manual_seed(0)                # what a model's own initialisation draws and randomise leaves is the same in whatever order they come
    module = model.build().eval()
    path = out / f"{model.name}.pt2"
    if model.archive:
        shutil.copyfile(model.archive, path)
    else:
        randomise(module, seed=len(model.name) * 1000 + sum(map(ord, model.name)))
        export_model(model, module, path)
    inputs, outputs = archive_names(path)
    module64 = model.build().eval()
    module64.load_state_dict(module.state_dict())
    module64.double()
    if hasattr(module64, "set_experts_implementation"):
        module64.set_experts_implementation("eager")    # PyTorch's grouped product takes no fp64
    entry = {"name": model.name, "file": path.name, "role": model.role, "attentions": model.attentions, "causal": model.causal, "softmax": model.softmax,
             "cached": model.cached, "dims": list(model.dims), "inputs": inputs, "outputs": outputs,
             "cases": write_cases(model, module, module64, out, inputs, outputs)}
    worst = max(max(c["torch_error"].values()) for c in entry["cases"])
    if next(module.parameters()).dtype == torch.bfloat16 and not model.archive:
        entry["bound"] = 2 * worst      # PyTorch's own error and as much again, in a format where each is large
    elif worst > 1.5e-6:
        entry["bound"] = 3e-6 + worst   # 3e-6 around the exact result, from which PyTorch's own fp32 is that far already
    if model.tokens:
        entry["generate"] = greedy(model, module, model.prompt)
    return entry


def write_at(out, index):
    return write_model(MODELS[index], out)


def main(out, names):
    out.mkdir(parents=True, exist_ok=True)
    unknown = set(names) - {m.name for m in MODELS}
    if unknown:
        sys.exit(f"export.py: no such model: {', '.join(sorted(unknown))}")
    manifest = out / "manifest.json"
    if not names and manifest.exists():
        manifest.unlink()               # an interrupted run must not look fresh
    entries = []
    chosen = [i for i, model in enumerate(MODELS) if not names or model.name in names]
    # A process for each CPU: tracing is Python, and takes most of the time. They are forked before torch starts threads of its own.
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for entry in pool.imap(functools.partial(write_at, out), chosen):
            entries.append(entry)
            print(f"{entry['name']:24} {len(entry['cases'])} cases", flush=True)
    if not names:
        manifest.write_text(json.dumps({"stamp": stamp(), "torch": torch.__version__, "transformers": transformers.__version__,
                                        "models": entries}, indent=1))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
