"""Whole models on a CPU, random weights: Deepwell beside PyTorch, OpenVINO, ONNX Runtime and llama.cpp, in turns.

    python bench/cpu_models.py [ROW..] [--threads 2] [--rounds 5] [--seconds 1.0] [--llama-bench PATH] [--rows cpu_models.jsonl]

A row is one model run in one way, "bert-base 1x128/openvino bf16"; --list prints them all. ROW selects those that contain it. Each way runs in a process of its own, so that no
library's threads stand in another's way; all of a model's processes are loaded first and then work in turns, one at a time, --seconds each. What is not installed is left out,
and named. llama.cpp is the program llama-bench at --llama-bench; the file that it reads is written here, by the package gguf.

Reported are milliseconds, the least and the median of all calls of all rounds:
  encoders    a call; `error` is the distance to PyTorch in fp32, relative to its length (of texts without what pads them);
  llama-1b    `prefill`: a prompt of 512 tokens; `token`: each of 64 that follow it.
Behind Deepwell's rows stands how many times as fast they are as the fastest row of another library, whatever its precision.
"""
import argparse
import importlib.util
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

PROMPT, TOKENS = 512, 64
LLAMA = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=32000)


# ---- models and what they are given ----

def bert(tf):
    return tf.BertModel(tf.BertConfig(max_position_embeddings=512))


def vit(tf):
    return tf.ViTModel(tf.ViTConfig())


def llama(tf):
    return tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA, max_position_embeddings=2048, tie_word_embeddings=False, rms_norm_eps=1e-5))


def texts(torch, count):
    """Of 128 tokens; of several the shortest has 32, and half of all tokens or so are padding."""
    lengths = torch.linspace(32 if count > 1 else 128, 128 if count == 1 else 96, count).long()
    return {"input_ids": torch.randint(1, 30000, (count, 128)), "attention_mask": (torch.arange(128) < lengths[:, None]).long()}


def images(torch, count):
    return {"pixel_values": torch.randn(count, 3, 224, 224)}


ENCODERS = ("eager f32", "eager bf16", "compile bf16", "openvino f32", "openvino bf16", "onnxruntime f32", "deepwell f32", "deepwell bf16", "deepwell fp8", "deepwell mxfp8", "deepwell nvfp4")
# name: what makes it, what a call is given (None: it generates), its ways
MODELS = {
    "bert-base 1x128": (bert, lambda torch: texts(torch, 1), ENCODERS),
    "bert-base 8x128": (bert, lambda torch: texts(torch, 8), ENCODERS),
    "vit-base 1": (vit, lambda torch: images(torch, 1), ENCODERS),
    "vit-base 8": (vit, lambda torch: images(torch, 8), ENCODERS),
    "llama-1b": (llama, None, ("llama.cpp bf16", "llama.cpp q8_0", "llama.cpp q4_0", "deepwell bf16", "deepwell mxfp8", "deepwell nvfp4", "deepwell mxfp4", "deepwell nvfp4 head",
                               "deepwell mxfp4 head")),
}
PACKAGES = {"openvino": ("openvino",), "onnxruntime": ("onnxruntime", "onnx", "onnxscript"), "llama.cpp": ("gguf",)}


# ---- one way, in a process of its own: a function that makes a call, and one that gives its result ----

class Way:
    def __init__(self, name, way, threads):
        import torch
        import transformers
        self.torch, self.threads = torch, threads
        torch.set_num_threads(threads)
        make, give, _ = MODELS[name]
        self.library, self.precision = way.split(" ", 1)
        torch.manual_seed(0)
        half = self.library in ("eager", "compile", "deepwell") and self.precision != "f32"
        torch.set_default_dtype(torch.bfloat16 if half else torch.float32)
        self.model = make(transformers).eval().requires_grad_(False)
        torch.set_default_dtype(torch.float32)
        if half:                                         # the same numbers as in fp32, rounded
            torch.manual_seed(0)
            if give is not None:
                self.model = make(transformers).eval().requires_grad_(False).to(torch.bfloat16)
        torch.manual_seed(1)
        self.given = give(torch) if give else {"input_ids": torch.randint(0, LLAMA["vocab_size"], (1, PROMPT))}
        if half:
            self.given = {key: value.to(torch.bfloat16) if value.is_floating_point() else value for key, value in self.given.items()}
        self.call = getattr(self, self.library)() if give else self.generator()

    def names(self):
        return list(self.given)

    def eager(self):
        return lambda: self.model(**self.given).last_hidden_state

    def compile(self):
        module = self.torch.compile(self.model, dynamic=False)
        return lambda: module(**self.given).last_hidden_state

    def engine(self, example):
        import deepwell
        words = self.precision.split()
        policy = deepwell.PrecisionPolicy(words[0])
        if "head" in words:
            policy.set_layer_precision("lm_head", words[0])
        return deepwell.compile(deepwell.capture(self.model, example), precision_policy=policy, threads=self.threads)

    def deepwell(self):
        engine = self.engine(self.given)
        return lambda: engine(**self.given).last_hidden_state

    def openvino(self):
        import openvino
        made = openvino.convert_model(self.model, example_input=dict(self.given))
        hint = {"f32": openvino.Type.f32, "bf16": openvino.Type.bf16}[self.precision]
        compiled = openvino.Core().compile_model(made, "CPU", {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": self.threads, "INFERENCE_PRECISION_HINT": hint})
        request = compiled.create_infer_request()
        given = [self.given[name].numpy() for name in self.names()]
        return lambda: self.torch.from_numpy(request.infer(given, share_inputs=True, share_outputs=True)[0])

    def onnxruntime(self):
        import onnxruntime
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            self.torch.onnx.export(self.model, (), path, kwargs=dict(self.given), dynamo=True, input_names=self.names(), verbose=False)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.threads
            options.log_severity_level = 3
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        given = {name: value.numpy() for name, value in self.given.items()}
        return lambda: self.torch.from_numpy(session.run(None, given)[0])

    def generator(self):
        engine = self.engine({"input_ids": self.given["input_ids"][:, :24]})
        ids = self.given["input_ids"]

        def generate():
            start = time.perf_counter()
            engine.generate(ids, 1)
            first = time.perf_counter()
            engine.generate(ids, TOKENS + 1)
            end = time.perf_counter()
            return {"prefill": (first - start) * 1e3, "token": (end - first - (first - start)) * 1e3 / TOKENS}
        return generate


def serve(name, way, arguments):
    """Loads, says "ready", and for each line that comes makes calls for so many seconds: a line of JSON with their times."""
    import torch
    with torch.no_grad():
        made = Way(name, way, arguments.threads)
        result = made.call()
        made.call()
        if arguments.result and not isinstance(result, dict):
            torch.save(result.float(), arguments.result)
        print("@ready", flush=True)
        for line in sys.stdin:
            seconds, times = float(line), []
            end = time.perf_counter() + seconds
            while not times or time.perf_counter() < end:
                start = time.perf_counter()
                value = made.call()
                times.append(value if isinstance(value, dict) else {"call": (time.perf_counter() - start) * 1e3})
            print("@times " + json.dumps(times), flush=True)


# ---- llama.cpp ----

def write_gguf(path, kind):
    """A Llama of random numbers. One tensor of each shape is made, and stands in all layers: speed does not look at values."""
    import gguf
    import numpy
    layers, width, wide, heads, keys, head, words = (LLAMA[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                                                                          "vocab_size"))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(words)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(heads)
    writer.add_head_count_kv(keys)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("none")
    quantised, made = getattr(gguf.GGMLQuantizationType, kind.upper()), {}
    writer.add_file_type(int(getattr(gguf.LlamaFileType, "MOSTLY_" + kind.upper())))

    def add(name, rows, cols):
        if (rows, cols) not in made:
            values = (numpy.random.default_rng(0).standard_normal((rows, cols), dtype=numpy.float32) * 0.02)
            made[rows, cols] = gguf.quants.quantize(values, quantised)
        writer.add_tensor(name, made[rows, cols], raw_dtype=quantised)
    ones = numpy.ones(width, dtype=numpy.float32)
    add("token_embd.weight", words, width)
    add("output.weight", words, width)
    writer.add_tensor("output_norm.weight", ones)
    for i in range(layers):
        for name, rows, cols in (("attn_q", width, width), ("attn_k", keys * head, width), ("attn_v", keys * head, width), ("attn_output", width, width), ("ffn_gate", wide, width),
                                 ("ffn_up", wide, width), ("ffn_down", width, wide)):
            add(f"blk.{i}.{name}.weight", rows, cols)
        writer.add_tensor(f"blk.{i}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """llama-bench, started anew at each turn: it loads, warms up, and measures a prompt and the tokens behind one."""
    def __init__(self, way, arguments, folder):
        self.path = os.path.join(folder, way.split()[1] + ".gguf")
        write_gguf(self.path, way.split()[1])
        self.command = [arguments.llama_bench, "-m", self.path, "-t", str(arguments.threads), "-r", "1", "-o", "json"]

    def turn(self, seconds):
        del seconds
        said = subprocess.run([*self.command, "-p", str(PROMPT), "-n", "0"], check=True, capture_output=True, text=True).stdout
        behind = subprocess.run([*self.command, "-p", "0", "-n", str(TOKENS), "-d", str(PROMPT)], check=True, capture_output=True, text=True).stdout
        return [{"prefill": PROMPT / json.loads(said)[0]["avg_ts"] * 1e3, "token": 1e3 / json.loads(behind)[0]["avg_ts"]}]

    def end(self):
        os.unlink(self.path)


class Served:
    def __init__(self, name, way, arguments, folder):
        self.result = os.path.join(folder, way.replace(" ", "_") + ".pt")
        self.words = open(os.path.join(folder, way.replace(" ", "_") + ".log"), "w+", encoding="utf-8")
        command = [sys.executable, __file__, "--child", way, "--result", self.result, "--threads", str(arguments.threads), name]
        environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words, text=True, env=environment)
        self.read("@ready")

    def read(self, word):
        for line in self.process.stdout:
            if line.startswith(word):
                return line[len(word):]
        self.process.wait()
        self.words.seek(0)
        raise RuntimeError((self.words.read().strip().splitlines() or ["it ended without a word"])[-1][:300])

    def turn(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return json.loads(self.read("@times"))

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.words.close()


# ---- the table ----

def missing(way, arguments):
    """Why it cannot run here; None: it can."""
    library = way.split()[0]
    for package in PACKAGES.get(library, ()):
        if importlib.util.find_spec(package) is None:
            return f"the package {package} is not installed"
    if library == "llama.cpp" and not arguments.llama_bench:
        return "--llama-bench does not say where the program is"
    return None


def start(name, ways, arguments, folder):
    """Those that run, and why the others do not."""
    running, failed = {}, {}
    for way in ways:
        failed[way] = missing(way, arguments)
        if failed[way] is not None:
            continue
        try:
            running[way] = LlamaCpp(way, arguments, folder) if way.startswith("llama.cpp") else Served(name, way, arguments, folder)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            failed[way] = str(error)
    return running, {way: why for way, why in failed.items() if why is not None}


def distances(name, running):
    """Of the encoders' results to PyTorch's in fp32, where that is among them."""
    import torch
    results = {way: torch.load(served.result) for way, served in running.items() if isinstance(served, Served) and os.path.exists(served.result)}
    if "eager f32" not in results:
        return {}
    torch.manual_seed(1)
    mask = MODELS[name][1](torch).get("attention_mask")
    seen = (lambda x: x) if mask is None else (lambda x: x[mask.bool()])
    want = seen(results["eager f32"])
    return {way: ((seen(got) - want).norm() / want.norm()).item() for way, got in results.items()}


def measure(name, ways, arguments):
    """A dict for each way: times of all rounds."""
    with tempfile.TemporaryDirectory() as folder:
        running, failed = start(name, ways, arguments, folder)
        times = {way: [] for way in running}
        for _ in range(arguments.rounds):
            for way, worker in running.items():
                times[way] += worker.turn(arguments.seconds)
        errors = distances(name, running)
        for worker in running.values():
            worker.end()
    for way in ways:
        if way in failed:
            yield {"row": f"{name}/{way}", "failed": failed[way]}
            continue
        made = {"row": f"{name}/{way}", **({"error": errors[way]} if way in errors else {})}
        for key in times[way][0]:
            all_of = [each[key] for each in times[way]]
            made[key] = {"least": min(all_of), "median": statistics.median(all_of)}
        yield made


def print_rows(rows):
    peers = [row for row in rows if "failed" not in row and not row["row"].split("/")[1].startswith("deepwell")]
    for row in rows:
        if "failed" in row:
            print(f"{row['row']:36} not measured: {row['failed']}", flush=True)
            continue
        line = f"{row['row']:36}"
        for key in ("call", "prefill", "token"):
            if key not in row:
                continue
            line += f" {key} {row[key]['least']:9.2f} ({row[key]['median']:.2f})"
            if peers and "/deepwell" in row["row"]:
                best = min(peers, key=lambda peer: peer[key]["least"])
                line += f"  {best[key]['least'] / row[key]['least']:.2f}x of {best['row'].split('/')[1]}"
        print(line + (f"  error {row['error']:.1e}" if "error" in row else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", nargs="*", help="rows that contain one of these; none: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--llama-bench", help="llama.cpp's program of that name")
    parser.add_argument("--rows", help="file to append each row to, as JSON")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return serve(arguments.row[0], arguments.child, arguments)
    wanted = {name: [way for way in ways if not arguments.row or any(part in f"{name}/{way}" for part in arguments.row)] for name, (_, _, ways) in MODELS.items()}
    if not any(wanted.values()):
        parser.error(f"no row contains {' or '.join(arguments.row)}: --list prints all")
    for name, ways in wanted.items():
        if arguments.list:
            print("\n".join(f"{name}/{way}" for way in ways))
        elif ways:
            rows = list(measure(name, ways, arguments))
            print_rows(rows)
            if arguments.rows:
                with open(arguments.rows, "a", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
