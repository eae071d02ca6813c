"""Architectures of transformers through ``deepwell.optimize`` and ``torch.compile(backend="deepwell")``, beside eager PyTorch.

    build/python/bin/python models/zoo.py [NAME..] [--rows build/zoo.jsonl] [--write docs/zoo.md] [--jobs 2]

With --rows a sweep that was broken off goes on where it ended: rows of the file that are right, and of the same code and versions, are not run again. Each row is one small random model, in a process of its own:
  fp32     largest relative error of any output over the sizes, eager PyTorch's result being exact;
  decode   the same of the logits of single tokens behind a prompt, through the cache objects of transformers, where the model has a cache;
  mxfp8    relative error beside fp32 eager, and that of the same quantisation done in PyTorch (quantised.py), over all sizes and, with a cache, decode steps;
  compile  as fp32, through torch.compile.
Exit code 1 when a row fails: an error, fp32 beyond 1e-5, or mxfp8 beyond 1.2 times PyTorch's.
"""
import argparse
import functools
import hashlib
import json
import multiprocessing.connection
import os
import platform
import re
import sys
import time
import traceback
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
FP32_BOUND = 1e-5
MXFP8_FACTOR = 1.2
PROMPT, STEPS = 9, 4
# What the catalogue holds of other spellings of an architecture that is here already.
SPELLINGS = {"kjv", "llama_eager", "llama_functional", "llama_static", "llama_bf16", "llama_padded", "mixtral_bf16", "llama_static_cache"}


def architectures():
    """The catalogue's rows whose module is one of transformers."""
    from catalog import MODELS
    from families import FAMILIES
    return {row.name: row for row in MODELS + FAMILIES if row.role != "layer" and row.name not in SPELLINGS and uses_transformers(row)}


def uses_transformers(row):
    """Told without building the model: a builder of the hand-written ones lies in handmade.py or names it."""
    code = getattr(row.build, "__code__", None)
    return getattr(row.build, "__module__", "") != "handmade" and (code is None or "handmade" not in code.co_names)


def kind_of(row, module):
    config = getattr(module, "config", None)
    if experts(config):
        return "mixture of experts"
    if row.role == "vision":
        return "speech" if any(word in row.name for word in ("whisper", "wav2vec", "hubert", "wavlm", "audio", "speech")) else "vision"
    if "mamba" in row.name or "rwkv" in row.name:
        return "state space"
    return {"seq2seq": "encoder-decoder"}.get(row.role, row.role)


def experts(config):
    return next((getattr(config, key) for key in ("num_local_experts", "num_experts", "n_routed_experts") if getattr(config, key, None)), 0)


def routers(module):
    """Parameters that choose experts: Deepwell leaves their products in fp32 (docs/precision.md), so the oracle does."""
    count = experts(getattr(module, "config", None))
    return [name for name, p in module.named_parameters() if count and re.search(r"(^|\.)(router|gate)(\.|$)", name) and p.shape[0] == count]


# ---- comparing ----

def tensors_of(result):
    """Floating-point tensors of an output, in its order, caches left out."""
    import torch
    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() else []
    if isinstance(result, dict):
        return [t for key, value in result.items() if "past" not in key and "cache" not in key for t in tensors_of(value)]
    if isinstance(result, (tuple, list)):
        return [t for value in result for t in tensors_of(value)]
    return []


class Error:
    """Relative distance in the L2 norm, summed over all results, and the largest of a single one."""

    def __init__(self):
        self.apart = self.norm = 0.0
        self.largest = 0.0
        self.count = 0

    def add(self, got, want):
        got, want = tensors_of(got), tensors_of(want)
        if [t.shape for t in got] != [t.shape for t in want]:
            raise AssertionError(f"shapes {[list(t.shape) for t in got]} where PyTorch gives {[list(t.shape) for t in want]}")
        for a, b in zip(got, want):
            if b.numel() == 0:
                continue
            apart, norm = (a.double() - b.double()).square().sum().item(), b.double().square().sum().item()
            self.apart, self.norm, self.count = self.apart + apart, self.norm + norm, self.count + 1
            self.largest = max(self.largest, (apart / norm) ** 0.5 if norm > 0 else float(apart > 0)) if apart == apart else float("nan")

    @property
    def relative(self):
        return (self.apart / self.norm) ** 0.5 if self.norm > 0 else float("nan")


def cached_steps(row, module):
    """Calls of a prompt and of single tokens behind it: functions from (model, cache) to a result with a cache; none where there is no cache."""
    import torch
    config = getattr(module, "config", None)
    if row.role != "decoder" or not row.dynamic or not hasattr(config, "use_cache"):
        return []
    generator = torch.Generator().manual_seed(7)
    vocab = config.vocab_size
    ids = torch.randint(3, vocab, (2, PROMPT + STEPS), generator=generator)

    def call(part):
        return lambda model, cache: model(input_ids=part, past_key_values=cache, use_cache=True)
    return [call(ids[:, :PROMPT])] + [call(ids[:, i:i + 1]) for i in range(PROMPT, PROMPT + STEPS)]


def decode(steps, model):
    results, cache = [], None
    for step in steps:
        result = step(model, cache)
        cache = getattr(result, "past_key_values", None)
        if cache is None:
            return []
        results.append(result.logits)
    return results


def one(name):
    """The row of one architecture, as a dict."""
    import torch
    import transformers
    import deepwell
    from quantised import Quantised
    transformers.logging.set_verbosity_error()
    row = architectures()[name]
    found = {"name": name, "failures": []}
    torch.manual_seed(0)
    module = row.build().eval()
    found["kind"] = kind_of(row, module)
    generator = torch.Generator().manual_seed(1)
    inputs = [row.inputs(generator, size) for size in row.sizes]
    with torch.no_grad():
        exact = [module(**i) for i in inputs]
        steps = cached_steps(row, module)
        try:
            exact_steps = decode(steps, module)
        except (TypeError, ValueError):
            exact_steps = []            # the model takes no such cache

    def sweep(model):
        """Errors over the sizes and over the decode steps."""
        whole, decoded = Error(), Error()
        with torch.no_grad():
            for given, want in zip(inputs, exact):
                whole.add(model(**given), want)
            if exact_steps:
                decoded.add(decode(steps, model), exact_steps)
        return whole, decoded

    def attempt(what, call):
        try:
            return call()
        except Exception as error:      # one architecture must not end the table; the row has failed and says so
            found["failures"].append(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            found.setdefault("trace", traceback.format_exc())
            return None

    def fp32():
        model = deepwell.optimize(module, precision="fp32")
        whole, decoded = sweep(model)
        report = model.deepwell.report()
        found.update(fp32=whole.largest, decode=decoded.largest if decoded.count else None, whole=report.whole, share=report.share,
                     reasons=report.reasons, captures=model.deepwell.count)
        if not max(whole.largest, decoded.largest) <= FP32_BOUND:
            found["failures"].append(f"fp32: {max(whole.largest, decoded.largest):.1e} beyond {FP32_BOUND:.0e}")

    def mxfp8():
        ours = sweep(deepwell.optimize(module, precision="mxfp8"))
        with Quantised(module, routers(module)):
            theirs = sweep(module)
        ours, theirs = [(sum(e.apart for e in both) / sum(e.norm for e in both)) ** 0.5 for both in (ours, theirs)]
        found.update(mxfp8=ours, torch_mxfp8=theirs)
        if not ours <= MXFP8_FACTOR * theirs + FP32_BOUND:
            found["failures"].append(f"mxfp8: {ours:.2e} beyond {MXFP8_FACTOR} x {theirs:.2e}")

    def compiled():
        torch._dynamo.reset()
        model = torch.compile(module, backend="deepwell", dynamic=None if row.dynamic else False)
        whole, decoded = sweep(model)
        found.update(compile=whole.largest, compile_decode=decoded.largest if decoded.count else None)
        if not max(whole.largest, decoded.largest) <= FP32_BOUND:
            found["failures"].append(f"torch.compile: {max(whole.largest, decoded.largest):.1e} beyond {FP32_BOUND:.0e}")

    for what, call in (("optimize fp32", fp32), ("optimize mxfp8", mxfp8), ("torch.compile", compiled)):
        began = time.monotonic()
        attempt(what, call)
        found[f"seconds {what}"] = round(time.monotonic() - began, 1)
    return found


# ---- the table ----

def number(value):
    return "" if value is None else f"{value:.1e}"


def table(rows):
    lines = ["| architecture | kind | captured | FLOPs on Deepwell | fp32 | decode | mxfp8 | in PyTorch | torch.compile | note |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        captured = "whole" if r.get("whole") else "in part" if r.get("share") else "not"
        note = "; ".join(["**fails** " + f for f in r["failures"]] + [reason[:160] for reason in r.get("reasons", [])]).replace("|", "/")
        compiled = max((v for v in (r.get("compile"), r.get("compile_decode")) if v is not None), default=None)
        lines.append(f"| {r['name']} | {r.get('kind', '')} | {captured} | {100 * r.get('share', 0.0):.1f} % | {number(r.get('fp32'))} | {number(r.get('decode'))} | "
                     f"{number(r.get('mxfp8'))} | {number(r.get('torch_mxfp8'))} | {number(compiled)} | {note} |")
    right = sum(not r["failures"] for r in rows)
    lines += ["", f"{right} of {len(rows)} right; {sum(bool(r.get('whole')) for r in rows)} captured whole."]
    return "\n".join(lines)


def versions():
    import deepwell
    import torch
    import transformers
    return f"deepwell {deepwell.__version__}, torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, Python {platform.python_version()}"


def tell(name, pipe):
    """In a process of its own: the row goes into the pipe."""
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    pipe.send(one(name))


def rows_of(names, jobs, limit):
    """Rows as they are done, each made by a process that is forked when everything is imported, and nothing has run yet."""
    import deepwell.optimized       # noqa: F401
    import torch._dynamo            # noqa: F401
    fork, waiting, running = multiprocessing.get_context("fork"), list(names), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            receiver, sender = fork.Pipe(duplex=False)
            process = fork.Process(target=tell, args=(name, sender))
            process.start()
            sender.close()
            running[receiver] = name, process, time.monotonic() + limit
        done = multiprocessing.connection.wait(running, max(0, min(end for *_, end in running.values()) - time.monotonic()))
        for receiver in done or [r for r, (*_, end) in running.items() if end <= time.monotonic()]:
            name, process, _ = running.pop(receiver)
            try:
                row = receiver.recv() if done else {"name": name, "failures": [f"more than {limit} s"]}
            except EOFError:        # it ended without a row
                process.join()
                row = {"name": name, "failures": [f"exit code {process.exitcode}, and no row"]}
            process.kill()
            process.join()
            print(f"{name:24} {'right' if not row['failures'] else 'FAILS ' + '; '.join(row['failures'])[:400]}", file=sys.stderr, flush=True)
            yield row | {"made_by": made_by()}


@functools.cache
def made_by():
    """What a row depends on: versions, and a hash of Deepwell as it is installed and of the files beside this one."""
    import deepwell
    digest = hashlib.sha256()
    for folder in (Path(deepwell.__file__).parent, HERE):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".so")):
            digest.update(path.read_bytes())
    return f"{versions()}, {digest.hexdigest()[:16]}"


def rows_kept(path):
    """Of a file of rows, those that are right and made by the same, by name; the last line of a name counts."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []
    return {r["name"]: r for r in {r["name"]: r for r in rows}.values() if not r["failures"] and r["made_by"] == made_by()}


def write(path, rows):
    """Puts the table between the marks of a document, which must be there."""
    text = path.read_text()
    begin, end = "<!-- zoo -->\n", "<!-- end -->"
    head, rest = text.split(begin)
    path.write_text(head + begin + f"{versions()}, {time.strftime('%Y-%m-%d', time.gmtime())}.\n\n{table(rows)}\n" + end + rest.split(end, 1)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="architectures; default: all")
    parser.add_argument("--write", type=Path, help="document to put the table into")
    parser.add_argument("--rows", type=Path, help="file for all that was measured, a line of JSON for each row, and to go on from")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=600, help="seconds for one architecture")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE))
    known = architectures()
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"no such architecture: {', '.join(unknown)}; there are {', '.join(known)}")
    names = args.names or list(known)
    rows = rows_kept(args.rows)
    for row in rows_of([name for name in names if name not in rows], args.jobs, args.limit):
        rows[row["name"]] = row
        if args.rows:
            with args.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
    rows = [rows[name] for name in names]
    print(table(rows))
    if args.write:
        write(args.write, rows)
    return int(any(r["failures"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())
