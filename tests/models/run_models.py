"""Holds the built command against PyTorch on every exported model: outputs of `run` in fp32, ids of `generate`, attention ops after fusion.

Usage: run_models.py COMMAND FIXTURES [--part I/N | NAME...]      (FIXTURES as models/export.py writes it; --part: every N-th model)

Prints one line a model and a line `N passed, N failed`; exits 1 if any failed. A check is one case of a model, one generation or one graph.
"""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tensors

# PyTorch's fp32 is within 1e-6 of fp64 on these models (manifest: torch_error) and an fp32 implementation that sums in another order is as
# far off; two such errors and a margin of half as much again.
BOUND = 3e-6


class Failure(Exception):
    pass


def call(command, *args, seconds=120):
    done = subprocess.run([command, *map(str, args)], capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, args))}: exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def check_case(command, fixtures, model, case, scratch):
    """The worst relative error of the outputs of one case."""
    out = scratch / "out.safetensors"
    out.unlink(missing_ok=True)
    call(command, "run", fixtures / model["file"], "--in", fixtures / case["in"], "--out", out)
    got, want = tensors.read(out), tensors.read(fixtures / case["out"])
    if sorted(got) != sorted(want):
        raise Failure(f"outputs are {sorted(got)}, expected {sorted(want)}")
    worst = max(tensors.relative_error(got[name], want[name]) for name in want)
    if not worst <= model.get("bound", BOUND):
        raise Failure(f"{case['dims']}: relative error {worst:.2e}, allowed {model.get('bound', BOUND):.0e}")
    return worst


def check_generate(command, fixtures, model):
    """Greedy ids through the cached step against PyTorch's full recomputation."""
    want = model["generate"]
    text = call(command, "generate", fixtures / model["file"], "--ids", ",".join(map(str, want["prompt"])), "--tokens", len(want["ids"]))
    got = [int(x) for x in text.strip().splitlines()[-1].split(",")]
    if got != want["ids"]:
        at = next((i for i, (a, b) in enumerate(zip(got, want["ids"])) if a != b), min(len(got), len(want["ids"])))
        raise Failure(f"generate: ids differ from {at} on: {got[at:at + 4]}, expected {want['ids'][at:at + 4]}")


def greedy_ids(fixtures, model, given, prompts, tokens):
    """Greedy ids of the exported program itself, run by PyTorch over whole sequences, for prompts of one length: a row each."""
    import warnings
    import torch
    import transformers.modeling_outputs        # the outputs of the exported modules are of its classes
    warnings.simplefilter("ignore")             # about buffers, which are not what is tested
    module = torch.export.load(fixtures / model["file"]).module()
    ids = torch.tensor(prompts)
    name = "decoder_input_ids" if "decoder_input_ids" in model["inputs"] else "input_ids"
    with torch.no_grad():
        for _ in range(tokens):
            rest = {"cache_position": torch.arange(ids.shape[1])} if "cache_position" in model["inputs"] else given
            output = module(**{name: ids}, **rest)
            logits = torch.utils._pytree.tree_leaves(output)[0]
            ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids[:, len(prompts[0]):].tolist()


def check_encoder_decoder(command, fixtures, model, scratch):
    """Two prompts with inputs of their own, together, against PyTorch's greedy ids: short prompts with many tokens, longer ones with few."""
    from safetensors.torch import load_file, save_file
    case = next(c for c in model["cases"] if c["dims"]["b"] == 2)
    inputs = load_file(fixtures / case["in"])
    target = inputs.pop("decoder_input_ids")
    save_file(inputs, scratch / "given.safetensors")
    seen = set()
    for length, tokens in ((2, 16), (4, 3), (7, 3), (9, 3)):
        prompts = target[:, :length].tolist()
        want = greedy_ids(fixtures, model, inputs, prompts, tokens)
        text = call(command, "generate", fixtures / model["file"], *(x for p in prompts for x in ("--ids", ",".join(map(str, p)))), "--tokens", tokens,
                    "--in", scratch / "given.safetensors")
        got = [[int(x) for x in line.split(",")] for line in text.strip().splitlines()]
        if got != want:
            raise Failure(f"generate: ids are {got}, expected {want}")
        seen.update(x for row in want for x in row)
    if len(seen) < 3:
        raise Failure(f"generate: ids that never change test nothing: {seen}")


def check_own_cache(command, fixtures, model):
    """A model that keeps its own cache generates by it; the end of its room is said."""
    prompt, tokens = [5, 17, 101, 3, 255], 24
    want = greedy_ids(fixtures, model, {}, [prompt], tokens)[0]
    text = call(command, "generate", fixtures / model["file"], "--ids", ",".join(map(str, prompt)), "--tokens", tokens)
    got = [int(x) for x in text.strip().split(",")]
    if got != want:
        raise Failure(f"generate: ids are {got}, expected {want}")
    done = subprocess.run([command, "generate", str(fixtures / model["file"]), "--ids", "1", "--tokens", "100"], capture_output=True, text=True)
    if done.returncode != 1 or "holds 48 tokens" not in done.stderr:
        raise Failure(f"generate beyond the model's own cache: exit {done.returncode}: {done.stderr}")


def check_graph(command, fixtures, model):
    """After the passes every attention is one op, none is left spelled out, and a causal one has no mask operand unless there is padding."""
    graph = call(command, "inspect", fixtures / model["file"], "--graph", "lowered")
    ops = [m.groups() for m in re.finditer(r"^\s*%[\d, %]+ = (\w+) ([^{\n]*)", graph, re.M)]
    attentions = [re.split(r",\s*", operands.strip()) for op, operands in ops if op == "attention"]
    if len(attentions) != model["attentions"]:
        raise Failure(f"graph: {len(attentions)} attention ops, expected {model['attentions']}")
    if not model.get("softmax") and re.search(r"= softmax [^\n]*axis=[2-9]", graph):     # of a matrix, axis 1, it is the choice of experts
        raise Failure("graph: a softmax is left outside the attention ops")
    masked = [operands for operands in attentions if len(operands) > 3 and operands[3] != "-"]
    if model["causal"] and len(model["inputs"]) == 1 and masked:
        raise Failure(f"graph: {len(masked)} causal attention ops have a mask operand: {masked[0]}")


def main(command, fixtures, names):
    manifest = json.loads((fixtures / "manifest.json").read_text())
    models = [m for m in manifest["models"] if not names or m["name"] in names]
    if names[:1] == ["--part"]:
        part, parts = map(int, names[1].split("/"))
        models = manifest["models"][part::parts]
    passed = failed = 0
    print(f"{'model':24} {'cases':>5} {'worst error':>11} {'PyTorch':>8}  generate")
    with tempfile.TemporaryDirectory() as scratch:
        for model in models:
            failures, worst = [], 0.0

            def attempt(check, *args):
                nonlocal passed, failed
                try:
                    result = check(*args)
                    passed += 1
                    return result
                except (Failure, subprocess.TimeoutExpired, ValueError, KeyError, IndexError, OSError, RuntimeError) as e:
                    failed += 1
                    failures.append(str(e))
                    return None

            for case in model["cases"]:
                worst = max(worst, attempt(check_case, command, fixtures, model, case, Path(scratch)) or 0.0)
            attempt(check_graph, command, fixtures, model)
            generated = "-"
            if "generate" in model:
                before = failed
                attempt(check_generate, command, fixtures, model)
                generated = "equal" if failed == before else "FAILED"
            own = {"seq2seq": (check_encoder_decoder, (Path(scratch),)), "static": (check_own_cache, ())}.get(
                "static" if "cache_position" in model["inputs"] else model["role"])
            if own is not None and model["cases"][0]["dims"]:      # an export of one size takes no prompt of another
                before = failed
                attempt(own[0], command, fixtures, model, *own[1])
                generated = "equal" if failed == before else "FAILED"
            torch_error = max(max(c["torch_error"].values()) for c in model["cases"])
            print(f"{model['name']:24} {len(model['cases']):5} {worst:11.1e} {torch_error:8.1e}  {generated}", flush=True)
            for failure in failures:
                print(f"    FAILED {failure}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
