"""Whole models with random weights in bf16, in turns in one process: Deepwell in its precisions, PyTorch eager, torch.compile, and torch.compile over fp8 linears; errors beside fp32.

    python bench/models.py [ROW..] [--ways WAY,..] [--rows models.jsonl [--continue]] [--for SECONDS] [--warm 4] [--markdown models.md]

A row is "model/work", as "llama-1b/decode 16 behind 1024"; --list prints them all, with their kinds. ROW selects those that contain it. Ways (model_ways.py): eager, compile, compile MODE,
compile fp8, deepwell PRECISION, deepwell.optimize PRECISION (which generates by PyTorch's loop). Without MODE, torch.compile runs in mode default where products bound the work and in reduce-overhead (CUDA graphs) where launches do, and in decode.

Each model has a process of its own; what fails in it or takes longer than --limit is reported, and the others go on in the next one. Two times are told of each way, in milliseconds:
  burst      the least of --rounds, in turns, each behind a pause in which the chip is idle;
  sustained  the median of the second half of --sustain seconds without a pause.
A forward pass, a prefill and an encoder's run with the first token is one call, of several back to back; decode is what each further token of all texts takes: Deepwell by engine.generate, PyTorch by a loop over the model with a cache
that grows (eager) or a static one (compile). All is wall time, the host's part included. Besides
  first      seconds to the first result, from a module with weights on the device;
  error      relative distance to fp32 with the same weights: of forward passes' results for two rows, of prefills' last logits;
  ids        generation: how many of up to four texts have the first id that fp32 gives;
  report     what engine.report says of the run (docs/report.md), and the three kinds of steps that lose most; --lines prints more.

--rows appends each row to a file, as JSON; with --continue rows that the file has are not measured again. --for: no row is begun after so many seconds. --warm N: first, N rows at a time are
captured and compiled once, so that their caches on disk are there; `first` is then not what a first process sees. --markdown writes the tables of all rows of the file, and of no file those measured.
Needs torch, transformers and the deepwell package. --device cpu --small runs small models, to try all of it: exit code 1 where a way fails, or Deepwell in bf16 is further from fp32 than eager is.
"""
import argparse
import faulthandler
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))     # also where PYTHONSAFEPATH is set
import model_rows
import model_table
import model_ways

WAYS = "eager,compile,compile fp8,deepwell bf16,deepwell fp8"
# In --small, what Deepwell's error may be beside eager PyTorch's, which is of the same format; the sum covers a result that happens to be right in eager.
AGREES_FACTOR, AGREES_SUM = 1.5, 2e-3


# ---- one model, in a process of its own ----

class Bench:
    def __init__(self, model, arguments):
        import torch
        import transformers
        self.torch, self.arguments, self.model, self.device = torch, arguments, model, torch.device(arguments.device)
        self.clock = model_ways.Clock(torch, self.device)
        torch.backends.cudnn.allow_tf32 = False
        model_class, self.config = model.make(transformers, arguments.small)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with self.device:
            self.module = model_class(self.config).eval().to(self.device)      # parameters made of tensors with a device of their own, too
        torch.set_default_dtype(torch.float32)
        self.module.requires_grad_(False)
        if model.experts:
            self.module.get_input_embeddings().weight.normal_()     # tokens that differ: behind smaller ones attention's means make all alike, and few experts are used
        if (generation := getattr(self.module, "generation_config", None)) is not None:
            generation.eos_token_id = None

    def given(self, work):
        """What the work runs on: the same in each way and process."""
        self.torch.manual_seed(1)
        if work.inputs is not None:
            return self.on_device(work.inputs(self.torch, self.config, self.arguments.small))
        return self.torch.randint(3, self.config.get_text_config(decoder=True).vocab_size, (work.texts, work.prompt), device=self.device)

    def on_device(self, tensors):
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def source(self, count):
        """What an encoder reads, of so many texts: the first ones are the same for any number."""
        self.torch.manual_seed(2)
        return self.on_device(self.model.source(self.torch, self.config, max(count, 4), self.arguments.small)) if count >= 4 else {
            name: tensor[:count] for name, tensor in self.source(4).items()}

    def exact(self, works):
        """What fp32 gives with the same weights, by work: the tensors that are compared, of two rows; of generation the last logits, of up to four texts. Nothing, where it does not fit."""
        torch, kept = self.torch, {}
        low = [t for t in [*self.module.parameters(), *self.module.buffers()] if t.dtype == torch.bfloat16]
        try:
            for tensor in low:
                tensor.data = tensor.data.float()
            for work in works:
                kept[work.name] = self.exact_of(work)
        except torch.OutOfMemoryError:      # weights in fp32 take twice the memory: those works are not compared
            pass
        for tensor in low:
            tensor.data = tensor.data.to(torch.bfloat16)
        if self.clock.cuda:
            torch.cuda.empty_cache()
        return kept

    def exact_of(self, work):
        given = self.given(work)
        if work.inputs is not None:
            few = {name: tensor[:2].float() if tensor.is_floating_point() else tensor[:2] for name, tensor in given.items()}
            return [t.float() for t in model_ways.picked(model_ways.part_of(self.module, work.part)(**few), work)]
        if self.model.source:
            source = {name: tensor[:len(given[:4])].float() if tensor.is_floating_point() else tensor[:len(given[:4])] for name, tensor in self.source(4).items()}
            return [self.module(**source, decoder_input_ids=given[:4]).logits[:, -1]]
        return [self.module(given[:4], use_cache=False, logits_to_keep=1).logits[:, -1]]

    def errors(self, work, running, exact):
        told, torch = {}, self.torch
        if running.result is not None:
            apart = norm = 0.0
            for got, want in zip(running.result, exact):
                got, want = got[:2].float(), want[:2]
                if "attention_mask" in (given := self.given(work) if work.inputs is not None else {}) and got.shape[:2] == given["attention_mask"][:2].shape:
                    seen = given["attention_mask"][:2].bool()       # what a text's padding becomes is nobody's
                    got, want = got[seen], want[seen]
                apart, norm = apart + (got - want).square().sum().item(), norm + want.square().sum().item()
            told["error"] = (apart / norm) ** 0.5
        if running.ids is not None:
            want = exact[0].argmax(-1)
            told["ids"] = f"{int((running.ids[:len(want)] == want).sum())} of {len(want)}"
        return told

    def run(self, work, say):
        """One row: each way is made, then all are measured in turns."""
        torch, names = self.torch, self.arguments.ways.split(",")
        exact = None if self.arguments.prepare else self.exact([work]).get(work.name)
        given, made, running = self.given(work), {}, {}
        torch._dynamo.reset()
        for name in names:
            say(name)
            if name in self.arguments.without:
                made[name] = {"failed": self.arguments.without[name]}
                continue
            try:
                way = model_ways.make(name, self.clock, self.module, self.source if self.model.source else None)
                running[name] = (way.forward if work.inputs is not None else way.generate)(work, given)
                made[name] = {"first": running[name].first, **({"mode": running[name].mode} if running[name].mode else {})}
                if exact is not None:
                    made[name].update(self.errors(work, running[name], exact))
                running[name].result = running[name].ids = None
            except Exception as error:      # reported in the table; the others are measured
                made[name] = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"}
                running.pop(name, None)
        if not self.arguments.prepare:
            self.measure(running, made, say)
        return {"row": f"{self.model.name}/{work.name}", "kind": work.kind, "ways": made}

    def measure(self, running, made, say):
        bursts = {name: [] for name in running}
        for round_number in range(self.arguments.rounds):
            for name in sorted(running, reverse=round_number % 2 == 1):
                say(name)
                time.sleep(self.arguments.pause)
                bursts[name].append(running[name].once())
        for name, one in running.items():
            say(name)
            times, end = [], time.perf_counter() + self.arguments.sustain
            while not times or time.perf_counter() < end:
                times.append(one.once())
            made[name].update(burst=min(bursts[name]) * 1e3, sustained=statistics.median(times[len(times) // 2:]) * 1e3)
        for name, one in running.items():
            if one.report is None or self.arguments.lines < 0:
                continue
            say(name)
            try:
                made[name].update(self.told(f"{self.model.name}, {name}", one.report()))
            except Exception as error:
                made[name]["report_failed"] = f"{type(error).__name__}: {error}"[:300]

    def told(self, title, report):
        """A report in short: of the work's last run, all kinds of steps that take a part in a hundred."""
        if self.arguments.lines:
            print(f"  {title}\n{report.table(lines=self.arguments.lines)}", flush=True)
        run, keys = report.runs[-1], ("op", "shapes", "kernel", "count", "seconds", "bound_seconds", "estimate_seconds")
        if not run["measured"]:
            return {}
        groups = [{key: group[key] for key in keys if key in group} for group in run["groups"] if group["seconds"] >= 0.01 * run["seconds"]]
        return {"report": {"name": run["name"], "ms": run["seconds"] * 1e3, "bound": run["bound_seconds"] * 1e3, "estimate": run["estimate_seconds"] * 1e3, "launches": run["launches"], "groups": groups},
                "losses": report.losses(3)}


def run_model(name, arguments):
    """In the child: a line of JSON for each row, behind a word that nothing else prints."""
    import torch
    model = model_rows.MODELS[name]
    works = {work.name: work.made_small() if arguments.small else work for work in model.works}
    with torch.no_grad():
        bench = Bench(model, arguments)
        for work_name in arguments.row:
            def say(way):
                print(f"@begin {work_name}\t{way}", flush=True)
                faulthandler.dump_traceback_later(arguments.limit, exit=True)
            say("")
            made = bench.run(works[work_name], say)
            faulthandler.cancel_dump_traceback_later()
            print("@row " + json.dumps(made), flush=True)


# ---- processes ----

def child_of(name, works, arguments, without, prepare):
    """The command that runs these works of one model; without: {way: why it is left out}, of the first work."""
    kept = [f"--{key}={getattr(arguments, key)}" for key in ("ways", "rounds", "limit", "device", "lines", "sustain", "pause")] + ["--small"] * arguments.small + ["--prepare"] * prepare
    return [sys.executable, __file__, "--child", name, *kept, "--without", json.dumps(without), *works]


def last_words(words):
    """Of a process that ran out of time where its main thread was, which is told of last, innermost call first; of others what it said last."""
    late = next((i for i, line in enumerate(words) if line.startswith("Timeout")), None)
    if late is None:
        return words[-1]
    begins = [i for i, line in enumerate(words) if line.startswith("Thread ") and i > late] or [late]
    frames = [line.strip().replace(os.path.dirname(os.path.abspath(__file__)) + os.sep, "") for line in words[begins[-1] + 1:] if line.lstrip().startswith("File ")]
    return " < ".join([words[late], *frames[:4]])


def measured(name, works, arguments):
    """The rows of one model. Where its process ends early, the next one leaves out the way that it ended in."""
    without = {}
    while works:
        begun, way, alone = works[0], "", works[:1] if without else works
        with tempfile.TemporaryFile("w+") as said, subprocess.Popen(child_of(name, alone, arguments, without, False), stdout=subprocess.PIPE, stderr=said, text=True) as child:
            try:
                for line in child.stdout:
                    if line.startswith("@begin "):
                        begun, way = line[7:].rstrip("\n").split("\t")
                    elif line.startswith("@row "):
                        works, without = works[1:], {}
                        yield json.loads(line[5:])
                        begun, way = (works[0] if works else ""), ""
                    else:
                        print(line, end="", flush=True)
            except GeneratorExit:       # no more rows are wanted
                child.kill()
                raise
            code = child.wait()
            said.seek(0)
            words = said.read().strip().splitlines() or ["it said nothing"]
        if code == 0:
            continue
        reason = f"its process ended with {code}: " + last_words(words)[:300]
        if way and way not in without:
            without[way] = reason
        else:
            yield {"row": f"{name}/{begun}", "kind": "", "ways": {way: {"failed": reason} for way in arguments.ways.split(",")}}
            works, without = works[1:], {}


def warm(wanted, arguments):
    """Captures and compiled kernels of all rows get into their caches on disk, some rows at a time. What fails here is told when it is measured."""
    waiting, running = [child_of(model.name, [work.name], arguments, {}, True) for model, works in wanted for work in works], []
    while waiting or running:
        while waiting and len(running) < arguments.warm:
            running.append(subprocess.Popen(waiting.pop(0), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        time.sleep(0.1)
        running = [child for child in running if child.poll() is None]


def made_by(arguments):
    import deepwell
    import torch
    import transformers
    device = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else deepwell.probe().cpu.model
    return (f"{device}, deepwell {deepwell.__version__}, torch {torch.__version__}, transformers {transformers.__version__}, {time.strftime('%Y-%m-%d', time.gmtime())}"
            + (", small models" if arguments.small else ""))


def rows_kept(path):
    if not path or not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def told(row):
    """A row as it is printed when it is done."""
    parts = []
    for way, made in row["ways"].items():
        error = ", ".join(x for x in (f"{made['error']:.1e}" if "error" in made else "", made.get("ids", "")) if x)
        parts.append(f"{way}: " + (f"FAILS {made['failed']}" if "failed" in made else f"{made['sustained']:.3f} ({made['burst']:.3f})" + (f" [{error}]" if error else "")))
    return f"{row['row']:36} " + "; ".join(parts)


def disagrees(row):
    """Words for each of Deepwell's ways that fails or is further from fp32 than PyTorch in the same format."""
    eager, found = row["ways"].get("eager", {}), []
    for way, made in row["ways"].items():
        if "failed" in made:
            found.append(f"{row['row']}, {way}: {made['failed']}")
        elif way == "deepwell bf16" and made.get("error", 0) > AGREES_FACTOR * eager.get("error", 0) + AGREES_SUM:
            found.append(f"{row['row']}, {way}: error {made['error']:.1e} where eager PyTorch's is {eager.get('error', 0):.1e}")
    return found


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", nargs="*", help="rows that contain one of these; none: all")
    parser.add_argument("--ways", default=WAYS, help=f"default: {WAYS}")
    parser.add_argument("--rows", help="file to append each row to, as JSON")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="do not measure rows that the file of --rows has")
    parser.add_argument("--for", dest="seconds", type=float, default=float("inf"), metavar="SECONDS", help="begin no row after so many seconds")
    parser.add_argument("--warm", type=int, default=0, metavar="N", help="first capture and compile all, N rows at a time")
    parser.add_argument("--markdown", help="file for the tables; without it they are printed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sustain", type=float, default=1.0, help="seconds of load before and while the sustained time is taken")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of rest before each burst")
    parser.add_argument("--lines", type=int, default=0, help="of each report, so many kinds of steps are printed; -1: no report")
    parser.add_argument("--limit", type=int, default=150, help="seconds that one way may take")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small models, to try all of it")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--without", type=json.loads, default={}, help=argparse.SUPPRESS)
    return parser, parser.parse_args()


def main():
    parser, arguments = parse()
    if arguments.child:
        return run_model(arguments.child, arguments)
    began, wanted, before = time.monotonic(), model_rows.rows(arguments.row), rows_kept(arguments.rows)
    if not wanted:
        parser.error(f"no row contains {' or '.join(arguments.row)}: --list prints all")
    if arguments.list:
        return print("\n".join(f"{model.name + '/' + work.name:36} {work.kind}" for model, works in wanted for work in works))
    if arguments.go_on:
        had = {row["row"] for row in before if set(arguments.ways.split(",")) <= set(row["ways"])}
        wanted = [(model, left) for model, works in wanted if (left := [work for work in works if f"{model.name}/{work.name}" not in had])]
    if arguments.warm:
        warm(wanted, arguments)
        print(f"warm after {time.monotonic() - began:.0f} s", flush=True)
    done, machine = [], made_by(arguments)
    for model, works in wanted:
        if time.monotonic() - began > arguments.seconds:
            print(f"{model.name}: not begun, {arguments.seconds:.0f} s are over", flush=True)
            continue
        rows = measured(model.name, [work.name for work in works], arguments)
        for row in rows:
            done.append(row | {"made_by": machine})
            print(told(row), flush=True)
            if arguments.rows:
                with open(arguments.rows, "a", encoding="utf-8") as file:
                    file.write(json.dumps(done[-1]) + "\n")
            if time.monotonic() - began > arguments.seconds:
                rows.close()
    tables = model_table.markdown((before if arguments.go_on else []) + done)
    if arguments.markdown:
        with open(arguments.markdown, "w", encoding="utf-8") as file:
            file.write(tables + "\n")
    else:
        print("\n" + tables)
    wrong = [words for row in done for words in disagrees(row)] if arguments.small else []
    if wrong:
        sys.exit("\n".join(["", *wrong]))


if __name__ == "__main__":
    main()
