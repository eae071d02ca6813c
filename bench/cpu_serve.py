"""Texts together on a CPU: a service of Deepwell (deepwell.serve) beside llama.cpp's llama-server, on the same random weights of GPT-2's shape (124M), in turns.

    python bench/cpu_serve.py [--threads 2] [--rounds 3] [--texts 8] [--tokens 128] [--llama-server PATH]

Prints tokens a second: of one text alone, and of all at once, and what together / alone is. Prompts are 16 random ids each; draws are greedy, and no text ends early. Deepwell multiplies in mxfp8, llama.cpp has q8_0.
Without --llama-server, Deepwell alone. The file that llama-server reads is written here, by the package gguf; llama-server is a program of llama.cpp, whose source comes with llama-cpp-python.
"""
import argparse
import asyncio
import concurrent.futures
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

PROMPT, SLOT = 16, 512


def make_model():
    import torch
    import transformers
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)).eval().requires_grad_(False)


def check(made, tokens, name):
    if any(count != tokens for count in made):
        raise SystemExit(f"{name} made {made} tokens of texts that were to have {tokens} each: their times cannot be compared")


class Deepwell:
    name = "deepwell mxfp8"

    def __init__(self, model, prompts, threads):
        import deepwell
        import torch
        example = {"input_ids": torch.tensor(prompts[:2])}
        self.serve = deepwell.serve
        self.engine = deepwell.compile(deepwell.capture(model, example), precision="mxfp8", threads=threads)
        self.rows = len(prompts)

    def turn(self, prompts, tokens):
        """Seconds until all texts have all their tokens."""
        async def read(stream):
            return [event.id async for event in stream]

        async def run():
            async with self.serve.Service(self.engine, rows=self.rows, context=SLOT, share=False) as service:
                start = time.perf_counter()
                made = await asyncio.gather(*[read(service.submit(prompt, tokens)) for prompt in prompts])
                return time.perf_counter() - start, made
        seconds, made = asyncio.run(run())
        check([len(ids) for ids in made], tokens, self.name)
        return seconds

    def end(self):
        pass


# ---- llama.cpp ----

def write_gguf(path, model):
    """The model in q8_0, with a vocabulary whose words mean nothing."""
    import gguf
    import numpy
    config, weights = model.config, {name: value.numpy() for name, value in model.state_dict().items()}
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q8_0))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"w{i}" for i in range(config.vocab_size)])
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * config.vocab_size)
    writer.add_token_merges(["w 1"])
    writer.add_bos_token_id(config.vocab_size - 1)
    writer.add_eos_token_id(config.vocab_size - 1)
    kind = gguf.GGMLQuantizationType.Q8_0

    def matrix(name, values):
        writer.add_tensor(name, gguf.quants.quantize(numpy.ascontiguousarray(values, dtype=numpy.float32), kind), raw_dtype=kind)

    def vector(name, values):
        writer.add_tensor(name, numpy.ascontiguousarray(values, dtype=numpy.float32))
    matrix("token_embd.weight", weights["transformer.wte.weight"])
    matrix("output.weight", weights["transformer.wte.weight"])
    vector("position_embd.weight", weights["transformer.wpe.weight"])
    vector("output_norm.weight", weights["transformer.ln_f.weight"])
    vector("output_norm.bias", weights["transformer.ln_f.bias"])
    for i in range(config.n_layer):
        for to, of in (("attn_norm", "ln_1"), ("ffn_norm", "ln_2")):
            vector(f"blk.{i}.{to}.weight", weights[f"transformer.h.{i}.{of}.weight"])
            vector(f"blk.{i}.{to}.bias", weights[f"transformer.h.{i}.{of}.bias"])
        for to, of in (("attn_qkv", "attn.c_attn"), ("attn_output", "attn.c_proj"), ("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")):
            matrix(f"blk.{i}.{to}.weight", weights[f"transformer.h.{i}.{of}.weight"].T)
            vector(f"blk.{i}.{to}.bias", weights[f"transformer.h.{i}.{of}.bias"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaServer:
    name = "llama-server q8_0"

    def __init__(self, program, path, texts, threads):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        port = self.address.rpartition(":")[2]
        command = [program, "-m", path, "-np", str(texts), "-c", str(texts * SLOT), "-t", str(threads), "--port", port, "--host", "127.0.0.1", "--no-warmup"]
        self.words = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.process = subprocess.Popen(command, stdout=self.words, stderr=self.words)
        self.wait()

    def wait(self):
        for _ in range(240):
            if self.process.poll() is not None:
                self.words.seek(0)
                raise SystemExit("llama-server ended:\n" + "".join(self.words.readlines()[-12:]))
            try:
                urllib.request.urlopen(self.address + "/health", timeout=1).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.25)
        raise SystemExit("llama-server does not answer")

    def complete(self, prompt, tokens):
        asked = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        request = urllib.request.Request(self.address + "/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)["tokens_predicted"]

    def turn(self, prompts, tokens):
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            start = time.perf_counter()
            made = list(pool.map(lambda prompt: self.complete(prompt, tokens), prompts))
            seconds = time.perf_counter() - start
        check(made, tokens, self.name)
        return seconds

    def end(self):
        self.process.terminate()
        self.process.wait()


# ---- the table ----

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--llama-server", help="llama.cpp's program of that name")
    arguments = parser.parse_args()
    import torch
    torch.set_num_threads(arguments.threads)
    model = make_model()
    prompts = torch.randint(0, model.config.vocab_size - 1, (arguments.texts, PROMPT), generator=torch.Generator().manual_seed(1)).tolist()
    with tempfile.TemporaryDirectory() as folder:
        ways = [Deepwell(model, prompts, arguments.threads)]
        if arguments.llama_server:
            path = os.path.join(folder, "gpt2.gguf")
            write_gguf(path, model)
            ways.append(LlamaServer(arguments.llama_server, path, arguments.texts, arguments.threads))
        seconds = {way.name: {count: [] for count in (1, arguments.texts)} for way in ways}
        for way in ways:
            way.turn(prompts[:1], 8)
        for _ in range(arguments.rounds):
            for count in (1, arguments.texts):
                for way in ways:
                    seconds[way.name][count].append(way.turn(prompts[:count], arguments.tokens))
        for way in ways:
            way.end()
    print(f"{arguments.texts} texts of {arguments.tokens} tokens, {arguments.threads} threads, medians of {arguments.rounds}: tokens a second\n")
    print(f"{'':20} {'alone':>9} {'together':>9} {'ratio':>6}")
    for name, of in seconds.items():
        alone, together = (count * arguments.tokens / statistics.median(of[count]) for count in (1, arguments.texts))
        print(f"{name:20} {alone:9.1f} {together:9.1f} {together / alone:6.2f}")
    if len(ways) > 1:
        each = [statistics.median(seconds[way.name][arguments.texts]) for way in ways]
        print(f"\ntogether, deepwell / llama-server: {each[1] / each[0]:.2f}")


if __name__ == "__main__":
    main()
