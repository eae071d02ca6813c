"""Holds the gradients of every exported model against PyTorch's autograd in fp64. The loss is the sum of all outputs, each element times a random number.

Usage: gradients.py COMMAND FIXTURES [--part I/N | NAME...]      (FIXTURES as models/export.py writes it; --part: every N-th model)

Of each parameter the error, beside what is exact, is at most twice that of PyTorch's own autograd in the model's format, and a millionth of the largest gradient of the model's
parameters besides, as some gradients are 0 but for rounding. b and s of the file are symbols. Prints one line a model, and `N whole, N refused, N wrong`; exits 1 if
any is wrong, or is refused for an op that is not among REFUSED.
"""
import copy
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "models"))
import export

# Ops whose gradient is refused, and which a model may therefore be refused for.
REFUSED = set()

# Models whose outputs at tokens of padding are not in the loss: where finite numbers take the place of all scores of such a query, no gradient reaches q and k in PyTorch, and here it
# does, as where the numbers are added (docs/passes.md, "Masks with finite numbers": such a query has another meaning).
PADDED = {"deberta_v2"}


class Failure(Exception):
    pass


def call(command, *args, seconds=300):
    done = subprocess.run([command, *map(str, args)], capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0:
        raise Failure(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    return done.stdout


# ---- the graph with its loss -------------------------------------------------------------------------------------------------

def add_loss(text, outputs):
    """The graph with an input for the numbers of each output, and the loss behind it."""
    values = dict(re.findall(r"^  output (\S+) (\S+)$", text, re.M))
    lines, parts, number = [], [], 10 ** 6
    for index, (name, kind) in enumerate(outputs.items()):
        rank = kind.count(",") + 1 if not kind.endswith("[]") else 0
        lines.append(f"  input  cotangent.{index} {kind}")
        steps = [f"mul {values[name]}, cotangent.{index}", "cast %{0} {{to=f32}}"] + ([f"sum %{{0}} {{{{axes=[{','.join(map(str, range(rank)))}]}}}}"] if rank else [])
        for step in steps:
            lines.append(f"  %{number + 1} = " + step.format(number))
            number += 1
        parts.append(number)
    for part in parts[1:]:
        lines.append(f"  %{number + 1} = add %{parts[0]}, %{part}")
        number += 1
        parts[0] = number
    return text + "\n".join(lines) + f"\n  output the.loss %{parts[0]}\n"


def tensors_of(module, text, path):
    """What the graph's params are, by name."""
    names = re.findall(r"^  (?:param|state)\s+(\S+) ", text, re.M)
    have = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    if any(name not in have for name in names):
        have |= {name: value for name, value in torch.export.load(path).constants.items() if isinstance(value, torch.Tensor)}
    return {name: have[name].detach().clone().contiguous() for name in names}


# ---- PyTorch -----------------------------------------------------------------------------------------------------------------

def modules_of(model):
    torch.manual_seed(0)
    module = model.build().eval()
    if not model.archive:
        export.randomise(module, seed=len(model.name) * 1000 + sum(map(ord, model.name)))
    exact = model.build().eval()
    exact.load_state_dict(module.state_dict())
    exact.double()
    for m in (module, exact):
        if hasattr(m, "set_experts_implementation"):
            m.set_experts_implementation("eager")       # PyTorch's grouped product takes no fp64
    return module, exact


def loss_of(output, numbers):
    return sum((y * r.to(y.dtype)).sum(dtype=torch.promote_types(y.dtype, torch.float32)) for y, r in zip(export.flat_tensors(output), numbers) if y.is_floating_point())


def autograd(module, given, numbers):
    parameters = dict(module.named_parameters(remove_duplicate=False))
    trained = {name: p for name, p in parameters.items() if p.requires_grad}      # the file does not say which are frozen
    loss = loss_of(module(**given), numbers)
    made = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return {name: torch.zeros_like(p) if d is None else d for (name, p), d in zip(trained.items(), made)}


# ---- one model ---------------------------------------------------------------------------------------------------------------

def case_of(entry):
    """A case of moderate size with more than one text, where there is one."""
    cases = sorted(entry["cases"], key=lambda case: (min(case["dims"].values(), default=1) < 2, [-n for n in case["dims"].values()]))
    return cases[0]


class WithLoss(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, given, numbers):
        return loss_of(self.module(**given), numbers)


def gradients_of_text(command, path, text, floats, module, given, numbers, scratch):
    """The captured graph in text form, with the loss behind it."""
    names = set(re.findall(r"^  (?:param|const)\s+(\S+) ", text, re.M))
    trained = [name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad and name in names]
    (scratch / "graph.txt").write_text(text)
    save_file(tensors_of(module, text, path), scratch / "weights.safetensors")
    save_file(given | {f"cotangent.{i}": numbers[name] for i, name in enumerate(floats)}, scratch / "in.safetensors")
    call(command, "gradients", scratch / "graph.txt", "--loss", "the.loss", "--trained", ",".join(trained), "--weights", scratch / "weights.safetensors",
         "--in", scratch / "in.safetensors", "--out", scratch / "out.safetensors")
    return {name.removeprefix("grad."): value for name, value in load_file(scratch / "out.safetensors").items() if name != "loss"}


def gradients_of_export(command, module, given, of_outputs, scratch):
    """An export with the loss in it, of the case's sizes: capture made large constants of its own, which no text holds."""
    torch.export.save(torch.export.export(WithLoss(module), (given, of_outputs)), scratch / "loss.pt2")
    inputs, _ = export.archive_names(scratch / "loss.pt2")
    save_file(dict(zip(inputs, [*given.values(), *of_outputs], strict=True)), scratch / "in.safetensors")
    call(command, "gradients", scratch / "loss.pt2", "--in", scratch / "in.safetensors", "--out", scratch / "out.safetensors")
    return {name.removeprefix("grad.module."): value for name, value in load_file(scratch / "out.safetensors").items() if name != "loss"}


def check(command, fixtures, model, entry, scratch):
    path = fixtures / entry["file"]
    types = {x["name"]: x["type"] for x in json.loads(call(command, "inspect", path, "--json"))["outputs"]}
    floats = {name: kind for name, kind in types.items() if re.match(r"(f64|f32|f16|bf16)\[", kind)}
    text = add_loss(call(command, "inspect", path, "--graph", "captured"), floats)
    module, exact = modules_of(model)
    case = case_of(entry)
    given = load_file(fixtures / case["in"])
    wanted = load_file(fixtures / case["out"])
    g = torch.Generator().manual_seed(7)
    numbers = {name: torch.randn(wanted[name].shape, generator=g).to(wanted[name].dtype) for name in floats}
    if model.name in PADDED:
        for r in numbers.values():
            r[given["attention_mask"] == 0] = 0
    for name, y in zip(entry["outputs"], export.flat_tensors(copy.deepcopy(module)(**given))):     # some keep a cache between calls
        if name in numbers and not y.requires_grad:
            numbers[name].zero_()       # detached: no loss is made of it
    of_outputs = [numbers[name] if name in numbers else torch.zeros(()) for name in entry["outputs"]]
    if re.search(r"^  param\s+const\.\d+ ", text, re.M):
        made = gradients_of_export(command, module, given, of_outputs, scratch)
    else:
        made = gradients_of_text(command, path, text, floats, module, given, numbers, scratch)
    own = autograd(module, given, of_outputs)
    with export.InFloat64():
        right = autograd(exact, {k: v.double() if v.is_floating_point() else v for k, v in given.items()}, [r.double() for r in of_outputs])
    made = {name: value for name, value in made.items() if name in right}
    if not made:
        raise Failure("no gradients were made")
    largest = max(float(right[name].norm()) for name in made)
    worst, worst_name = 0.0, ""
    for name, value in made.items():
        error = float((value.double() - right[name]).norm())
        allowed = 2 * float((own[name].double() - right[name]).norm()) + 1e-6 * largest
        if not error <= worst * allowed:
            worst, worst_name = error / allowed if allowed else float("inf"), name
    if not worst <= 1:
        relative = float((made[worst_name].double() - right[worst_name]).norm() / right[worst_name].norm())
        raise Failure(f"wrong: {case['dims']}: {worst_name} is {worst:.3g} times as far off as allowed, {relative:.2e} of it")
    return f"{len(made)} gradients, {worst:.2f} of what is allowed"


def main(command, fixtures, part, names):
    entries = {entry["name"]: entry for entry in json.loads((fixtures / "manifest.json").read_text())["models"]}
    models = [m for m in export.MODELS if not names or m.name in names][part[0]::part[1]]
    whole = refused = wrong = 0
    for model in models:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                words = check(command, fixtures, model, entries[model.name], Path(scratch))
                whole += 1
            except Failure as failure:
                words = str(failure)
                refusal = re.search("UNSUPPORTED: the gradient of op ([a-z_]+)", words)
                known = refusal is not None and refusal.group(1) in REFUSED
                refused += known
                wrong += not known
        print(f"{model.name:28} {words}", flush=True)
    print(f"{whole} whole, {refused} refused, {wrong} wrong")
    return wrong == 0


if __name__ == "__main__":
    arguments = sys.argv[3:]
    part = (0, 1)
    if arguments[:1] == ["--part"]:
        part, arguments = tuple(map(int, arguments[1].split("/"))), arguments[2:]
    torch.set_num_threads(1)
    sys.exit(0 if main(sys.argv[1], Path(sys.argv[2]), part, arguments) else 1)
