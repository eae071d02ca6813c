"""Whole models on an NVIDIA GPU, random weights in bf16: generation by ``engine.generate`` and forward passes by ``deepwell.optimize``, and PyTorch beside them.

    python bench/models.py [ROW..] [--peers] [--kernels] [--report 12] [--rounds 3] [--rows models.jsonl]

A row is one model run in one way, "llama-1b/deepwell bf16"; --list prints them all. ROW selects those that contain it. A model's rows run in a process of their own; one that fails or
takes longer than --limit is reported, and the others go on in the next process. --peers adds PyTorch eager, torch.compile, and transformers' own generate over deepwell.optimize;
--kernels prints where the GPU's time goes, by PyTorch's profiler. --report N prints, of Deepwell's rows, the N kinds of steps of each run that lose most beside their bounds
(docs/report.md), and keeps the three worst in the row. --rows appends each row to a file, as JSON.

Reported is wall time in milliseconds, the least of the rounds after a call that is not counted:
  generation  prefill: generate of one token behind 512; a step: what each of 128 further tokens takes; both for 1 and for 16 texts;
  forward     a call, of several back to back;
  first       seconds from the module to the first result: capture, planning, weights, the first run;
  agrees      generation: how many texts of 16 have the first id that eager PyTorch gives in bf16; forward: the relative distance to eager bf16.
Needs torch with CUDA, transformers and the deepwell package. --device cpu --small is a try of the script itself.
"""
import argparse
import collections
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

TEXTS, PROMPT, TOKENS = 16, 512, 128


# ---- models: the configuration, and the same made small ----

def llama(tf, small):
    """The shape of Llama-3.2-1B."""
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=256) if small else dict(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128256)
    return tf.LlamaForCausalLM, tf.LlamaConfig(**sizes, max_position_embeddings=4096, tie_word_embeddings=True, rms_norm_eps=1e-5)


def qwen3_moe(tf, small):
    """Qwen3-30B-A3B, of whose 48 layers 8."""
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=256, num_experts=8,
                 num_experts_per_tok=2, moe_intermediate_size=32) if small else dict(
        hidden_size=2048, intermediate_size=6144, num_hidden_layers=8, num_attention_heads=32, num_key_value_heads=4, head_dim=128, vocab_size=151936, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=768)
    return tf.Qwen3MoeForCausalLM, tf.Qwen3MoeConfig(**sizes, norm_topk_prob=True, decoder_sparse_step=1, max_position_embeddings=4096, tie_word_embeddings=False)


def bert(tf, small):
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256) if small else dict(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16)
    return tf.BertModel, tf.BertConfig(**sizes, max_position_embeddings=512)


def vit(tf, small):
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4) if small else dict(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16)
    return tf.ViTModel, tf.ViTConfig(**sizes, image_size=224, patch_size=16)


# ---- what a forward pass is given ----

def padded_texts(torch, config, small):
    """Texts of 128 to 512 tokens, padded at their ends."""
    count, length = (3, 24) if small else (32, 512)
    ids = torch.randint(1, config.vocab_size, (count, length))
    lengths = torch.linspace(length // 4, length, count).long()
    return {"input_ids": ids, "attention_mask": (torch.arange(length) < lengths[:, None]).long()}


def whole_texts(torch, config, small):
    given = padded_texts(torch, config, small)
    return {"input_ids": given["input_ids"], "attention_mask": torch.ones_like(given["attention_mask"])}


def images(torch, config, small):
    return {"pixel_values": torch.randn(2 if small else 64, 3, config.image_size, config.image_size, dtype=torch.bfloat16)}


# name: its model, what a forward pass is given (None: it generates), precisions
MODELS = {
    "llama-1b": (llama, None, ("bf16", "fp8")),
    "qwen3-moe-8": (qwen3_moe, None, ("bf16",)),
    "bert-large-padded": (bert, padded_texts, ("bf16",)),
    "bert-large": (bert, whole_texts, ("bf16",)),
    "vit-large": (vit, images, ("bf16",)),
}


def rows_of(name, arguments):
    precisions = arguments.precision.split(",") if arguments.precision else MODELS[name][2]
    ways = [f"deepwell {p}" for p in precisions]
    if arguments.peers:
        ways += ["eager", "compile"] + [f"transformers over deepwell {p}" for p in precisions if MODELS[name][1] is None]
    rows = [f"{name}/{way}" for way in ways]
    return [row for row in rows if not arguments.row or any(part in row for part in arguments.row)]


# ---- one model, in a process of its own ----

class Bench:
    def __init__(self, name, arguments):
        import torch
        import transformers
        self.torch, self.arguments, self.device = torch, arguments, torch.device(arguments.device)
        make, self.make_inputs, _ = MODELS[name]
        model_class, self.config = make(transformers, arguments.small)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with self.device:
            self.model = model_class(self.config).eval()
        torch.set_default_dtype(torch.float32)
        self.model.requires_grad_(False)
        self.captured = None

    def wait(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def spent(self, call):
        """Seconds of a call, and what it gives."""
        self.wait()
        start = time.perf_counter()
        value = call()
        self.wait()
        return time.perf_counter() - start, value

    def least(self, call):
        return min(self.spent(call)[0] for _ in range(self.arguments.rounds))

    def engine(self, example, precision):
        import deepwell
        if self.captured is None:
            self.captured = deepwell.capture(self.model, example)
        return deepwell.compile(self.captured, precision=precision, device=self.device)

    def report(self, row, engine, *given, **named):
        """What engine.report says, in short; the three largest losses."""
        made = engine.report(*given, **named)
        print(f"  {row}\n" + made.table(lines=self.arguments.report), flush=True)
        return {f"{run['name']}": {"ms": run["seconds"] * 1e3, "bound": run["bound_seconds"] * 1e3, "estimate": run["estimate_seconds"] * 1e3} for run in made.runs if run["measured"]}, made.losses(3)

    # -- generation --

    def generator(self, way):
        """A function of ids [b,s] and a number of new tokens to ids [b,s + new]."""
        import deepwell
        if way.startswith("deepwell"):
            engine = self.generating = self.engine({"input_ids": self.ids[:2, :24]}, way.split()[1])
            return lambda ids, new: engine.generate(ids, new)
        model, more = self.model, {}
        if way == "compile":
            more = {"cache_implementation": "static"}
        elif way != "eager":
            model = deepwell.optimize(self.model, precision=way.split()[-1])
        model.generation_config.pad_token_id = 0
        model.generation_config.eos_token_id = None
        return lambda ids, new: model.generate(ids, attention_mask=self.torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False, **more)

    def generation(self, way):
        torch, small = self.torch, self.arguments.small
        texts, prompt, tokens = (4, 24, 8) if small else (TEXTS, PROMPT, TOKENS)
        torch.manual_seed(1)
        self.ids = torch.randint(0, self.config.vocab_size, (texts, prompt), device=self.device)
        made = {}

        def start():
            generate = self.generator(way)
            generate(self.ids[:1], tokens + 1)
            return generate
        made["first"], generate = self.spent(start)
        for count in (1, texts):
            ids = self.ids[:count]
            result = generate(ids, tokens + 1)
            assert result.shape[1] == prompt + tokens + 1, f"{result.shape[1] - prompt} tokens instead of {tokens + 1}"
            generate(ids, 1)
            prefill = self.least(lambda: generate(ids, 1))
            made[f"prefill {count}"] = prefill * 1e3
            made[f"step {count}"] = (self.least(lambda: generate(ids, tokens + 1)) - prefill) * 1e3 / tokens
        want = torch.cat([self.model(ids[None], logits_to_keep=1).logits[:, -1].argmax(-1) for ids in self.ids])
        made["agrees"] = f"{int((result[:, prompt] == want).sum())} of {texts}"
        if self.arguments.report and way.startswith("deepwell"):
            made["report"], made["losses"] = {}, {}
            for count in (1, texts):
                made["report"][count], made["losses"][count] = self.report(f"{way}, {count} x {prompt}", self.generating, prefill=prompt, keys=prompt, texts=count)
        if self.arguments.kernels:
            for count in (1, texts):
                self.tell_kernels(f"{way}, prefill of {count} x {prompt}", lambda: generate(self.ids[:count], 1), 1)
                self.tell_kernels(f"{way}, prefill of {count} x {prompt} and 32 steps", lambda: generate(self.ids[:count], 33), 1)
        return made

    # -- forward passes --

    def forward(self, way):
        import deepwell
        torch = self.torch
        torch.manual_seed(1)
        given = {name: value.to(self.device) for name, value in self.make_inputs(torch, self.config, self.arguments.small).items()}

        def start():
            if way == "eager":
                module = self.model
            elif way == "compile":
                module = torch.compile(self.model, dynamic=False)
            else:
                module = deepwell.optimize(self.model, precision=way.split()[1], strict=True)
            return module, module(**given).last_hidden_state
        first, (module, got) = self.spent(start)
        calls = max(1, int(0.2 / self.spent(lambda: module(**given))[0]))

        def many():
            for _ in range(calls):
                module(**given)
        made = {"first": first, "forward": self.least(many) * 1e3 / calls}
        want, got = self.model(**given).last_hidden_state.float(), got.float()
        if "attention_mask" in given:       # what a text's padding becomes is nobody's
            seen = given["attention_mask"].bool()
            want, got = want[seen], got[seen]
        made["agrees"] = f"{((got - want).norm() / want.norm()).item():.1e}"
        if self.arguments.report and way.startswith("deepwell"):
            made["report"], made["losses"] = self.report(way, self.engine(given, way.split()[1]), **given)
        if self.arguments.kernels:
            self.tell_kernels(way, lambda: module(**given), 5)
        return made

    def tell_kernels(self, what, call, times):
        """Launches and milliseconds of a call by kernel, longest first."""
        from torch.profiler import ProfilerActivity, profile
        if self.device.type != "cuda":
            return
        self.wait()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            wall, _ = self.spent(lambda: [call() for _ in range(times)])
        total = collections.defaultdict(lambda: [0, 0.0])
        for event in profiled.events():
            if event.device_type == self.torch.autograd.DeviceType.CUDA:
                total[event.name][0] += 1
                total[event.name][1] += event.device_time / 1e3
        busy = sum(ms for _, ms in total.values())
        print(f"  {what}: {busy / times:.2f} ms of {wall * 1e3 / times:.2f} on the GPU, launches and ms a call", flush=True)
        for name, (count, ms) in sorted(total.items(), key=lambda row: -row[1][1])[:16]:
            print(f"    {name[:72]:72s} {count / times:7.1f} {ms / times:9.3f}", flush=True)


def run_model(name, rows, arguments):
    """In the child: a line of JSON for each row, behind a word that nothing else prints."""
    import torch
    bench = None
    for row in rows:
        print(f"@begin {row}", flush=True)
        faulthandler.dump_traceback_later(arguments.limit, exit=True)
        try:
            with torch.no_grad():
                bench = bench or Bench(name, arguments)
                made = (bench.forward if bench.make_inputs else bench.generation)(row.split("/")[1])
        except Exception as error:      # reported in the table; the others are measured
            made = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"}
        faulthandler.cancel_dump_traceback_later()
        print("@row " + json.dumps({"row": row, **made}), flush=True)


# ---- the table ----

def child_of(name, rows, arguments):
    """The command that runs these rows of one model."""
    kept = [f"--{key}={getattr(arguments, key)}" for key in ("rounds", "limit", "device", "report")] + [f"--{key}" for key in ("kernels", "small") if getattr(arguments, key)]
    return [sys.executable, __file__, "--child", name, *kept, *rows]


def measured(name, rows, arguments):
    """The rows of one model; a process that ends early leaves what is left to the next."""
    while rows:
        begun = rows[0]
        with tempfile.TemporaryFile("w+") as said, subprocess.Popen(child_of(name, rows, arguments), stdout=subprocess.PIPE, stderr=said, text=True) as child:
            for line in child.stdout:
                if line.startswith("@begin "):
                    begun = line.split(" ", 1)[1].strip()
                elif line.startswith("@row "):
                    rows = rows[1:]
                    yield json.loads(line.split(" ", 1)[1])
                else:
                    print(line, end="", flush=True)
            code = child.wait()
            said.seek(0)
            words = said.read().strip().splitlines() or ["it said nothing"]
        if rows:
            reason = next((line for line in words if line.startswith("Timeout")), words[-1])
            yield {"row": begun, "failed": f"its process ended with {code}: {reason}"}
            rows = rows[1:]


def cell(made, key, form):
    return format(made[key], form) if key in made else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", nargs="*", help="rows that contain one of these; none: all")
    parser.add_argument("--peers", action="store_true", help="PyTorch eager and compiled, and transformers' generate over deepwell.optimize")
    parser.add_argument("--kernels", action="store_true", help="where the GPU's time goes")
    parser.add_argument("--report", type=int, default=0, metavar="N", help="of Deepwell's rows, the N kinds of steps that lose most")
    parser.add_argument("--precision", help="instead of the rows' own: bf16,fp8,..")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=150, help="seconds that a row may take")
    parser.add_argument("--rows", help="file to append each row to, as JSON")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small models, for a try of this script")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return run_model(arguments.child, arguments.row, arguments)
    wanted = {name: rows_of(name, arguments) for name in MODELS}
    if not any(wanted.values()):
        parser.error(f"no row contains {' or '.join(arguments.row)}: --list prints all")
    if arguments.list:
        return print("\n".join(row for rows in wanted.values() for row in rows))
    print(f"{'':44} {'prefill 1':>10} {'16':>8} {'step 1':>8} {'16':>8} {'forward':>8} {'first, s':>9}  agrees", flush=True)
    texts = 4 if arguments.small else TEXTS
    for name, rows in wanted.items():
        for made in measured(name, rows, arguments):
            print(f"{made['row']:44} {cell(made, 'prefill 1', '10.2f'):>10} {cell(made, f'prefill {texts}', '8.2f'):>8} {cell(made, 'step 1', '8.3f'):>8} "
                  f"{cell(made, f'step {texts}', '8.3f'):>8} {cell(made, 'forward', '8.2f'):>8} {cell(made, 'first', '9.1f'):>9}  {made.get('failed') or made['agrees']}", flush=True)
            if arguments.rows:
                with open(arguments.rows, "a", encoding="utf-8") as file:
                    file.write(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
