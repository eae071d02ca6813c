"""Whole training steps of GPT-2 on an NVIDIA GPU: `deepwell train` beside PyTorch with torch.compile and fused AdamW, random weights and ids.

    python bench/gpu_train.py [--command build/deepwell] [--device cuda] [--size 12,768,12] [--batch 8] [--length 256] [--steps 40] [--ways masters,bf16] [--recompute none,cheap] [--accumulate 4]

masters: parameters in fp32, products in bf16 (--precision bf16; autocast). bf16: parameters in bf16 (ours keeps masters in fp32; PyTorch's has none). A step's time is of the second half of the steps: ours the mean, PyTorch's the median.
--recompute: levels of what ours makes again (docs/train.md), in turns, --rounds times; a level's time is the median of its rounds.
Needs torch with CUDA; with --no-torch only ours runs, on any device, as on sim:h200.
"""
import argparse
import ctypes
import json
import os
import statistics
import struct
import subprocess
import tempfile
import time

import torch

VOCABULARY, POSITIONS = 50257, 1024
ROLES = {".attn": "attention", ".mlp": "mlp", "ln_": "norm"}    # as capture gives them to modules of such names


def graph_of(layers, width, heads, kind, vocabulary):
    """GPT-2 in text form, with modules, by which --recompute finds layers, and the shapes of its parameters."""
    shapes, lines, count = {}, [], 0

    def param(name, *shape):
        shapes[name] = shape

    def emit(text, module=None):
        nonlocal count
        count += 1
        lines.append(f"  %{count} = {text}" + (f' at "{module}"' if module else "") + next((f" role {role}" for part, role in ROLES.items() if module and part in module), ""))
        return f"%{count}"

    def linear(x, name, rows, cols):
        param(f"{name}.weight", rows, cols)
        param(f"{name}.bias", cols)
        return emit(f"add {emit(f'matmul {x}, {name}.weight', name)}, {name}.bias", name)

    def norm(x, name):
        param(f"{name}.weight", width)
        param(f"{name}.bias", width)
        return emit(f"layer_norm {x}, {name}.weight, {name}.bias {{eps=1e-5}}", name)

    param("wte", vocabulary, width)
    param("wpe", POSITIONS, width)
    places = emit("iota {start=0,step=1,length=s,to=i64}")
    x = emit(f"add {emit('take wte, ids {axis=0}')}, {emit(f'take wpe, {places} {{axis=0}}')}")
    for layer in range(layers):
        h = f"h.{layer}"
        qkv = linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn", width, 3 * width)
        parts = []
        for i in range(3):
            part = emit(f"slice {qkv} {{axis=2,start={i * width},end={(i + 1) * width},step=1}}", f"{h}.attn")
            part = emit(f"reshape {part} {{shape=[b,s,{heads},{width // heads}]}}", f"{h}.attn")
            parts.append(emit(f"transpose {part} {{order=[0,2,1,3]}}", f"{h}.attn"))
        y = emit(f"attention {', '.join(parts)} {{scale={(width // heads) ** -0.5},causal=true}}", f"{h}.attn")
        y = emit(f"transpose {y} {{order=[0,2,1,3]}}", f"{h}.attn")
        y = emit(f"reshape {y} {{shape=[b,s,{width}]}}", f"{h}.attn")
        x = emit(f"add {x}, {linear(y, f'{h}.attn.c_proj', width, width)}", h)
        y = emit(f"gelu_tanh {linear(norm(x, f'{h}.ln_2'), f'{h}.mlp.c_fc', width, 4 * width)}", f"{h}.mlp.act")
        x = emit(f"add {x}, {linear(y, f'{h}.mlp.c_proj', 4 * width, width)}", h)
    logits = emit(f"matmul {norm(x, 'ln_f')}, wte {{bt=true}}")
    params = [f"  param {name} {kind}[{','.join(map(str, shape))}]" for name, shape in shapes.items()]
    head = ["graph gpt2", "  symbol b 1..64", f"  symbol s 1..{POSITIONS}", "  input ids i64[b,s]"]
    return "\n".join(head + params + lines + [f"  output logits {logits}", ""]), shapes


def weights_of(shapes):
    def start(name, shape):
        if name.endswith("bias"):
            return torch.zeros(shape)
        return torch.ones(shape) if "ln_" in name else torch.randn(shape) * 0.02

    return {name: start(name, shape) for name, shape in shapes.items()}


def save(path, tensors):
    kinds, header, at = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64"}, {}, 0
    for name, x in tensors.items():
        size = x.numel() * x.element_size()
        header[name] = {"dtype": kinds[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + size]}
        at += size
    words = json.dumps(header).encode()
    words += b" " * (-(len(words) + 8) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(words)) + words)
        for x in tensors.values():
            x = x.contiguous()
            file.write(ctypes.string_at(x.data_ptr(), x.numel() * x.element_size()))


def write_model(folder, arguments, text, weights, way):
    path = lambda name: os.path.join(folder, name)   # noqa: E731
    with open(path("gpt2.txt"), "w") as file:
        file.write(text)
    save(path("weights"), {name: x.bfloat16() if way == "bf16" else x for name, x in weights.items()})
    save(path("ids"), {"ids": torch.randint(0, arguments.vocabulary, (arguments.batch * arguments.length * 64,))})


def ours(folder, arguments, way, level):
    path = lambda name: os.path.join(folder, name)   # noqa: E731
    command = [arguments.command, "train", path("gpt2.txt"), "--weights", path("weights"), "--data", path("ids"), "--loss", "next-token", "--batch", arguments.batch, "--length", arguments.length,
               "--steps", arguments.steps, "--rate", 1e-4, "--clip", 1, "--device", arguments.device, "--json", "--recompute", level, "--accumulate", arguments.accumulate, *(["--precision", "bf16"] if way == "masters" else [])]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=500)
    if result.returncode != 0:
        print(f"  {result.stderr.strip()[-400:]}")
        return None
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    seconds = [b["seconds"] - a["seconds"] for a, b in zip(lines, lines[1:])]
    print(f"  deepwell, {level}: losses {lines[0]['loss']:.4f} .. {lines[-1]['loss']:.4f}, seconds {' '.join(f'{x:.3f}' for x in seconds[:6])} ..")
    return 1e3 * (lines[-1]["seconds"] - lines[len(lines) // 2]["seconds"]) / (len(lines) - 1 - len(lines) // 2)


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.ln_1, self.ln_2 = heads, torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attn, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.fc, self.out = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, width = x.shape
        q, k, v = (part.view(b, s, self.heads, -1).transpose(1, 2) for part in self.attn(self.ln_1(x)).split(width, dim=2))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, width))
        return x + self.out(torch.nn.functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Peer(torch.nn.Module):
    def __init__(self, layers, width, heads, vocabulary):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(POSITIONS, width)
        self.blocks, self.ln_f = torch.nn.ModuleList(Block(width, heads) for _ in range(layers)), torch.nn.LayerNorm(width)

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.T
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def peers(arguments, way):
    model = Peer(*arguments.size, arguments.vocabulary).cuda()
    model = model.bfloat16() if way == "bf16" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, arguments.vocabulary, (arguments.batch, arguments.length + 1), device="cuda")

    def loss_of():
        with torch.autocast("cuda", torch.bfloat16, enabled=way == "masters"):
            return model(ids[:, :-1], ids[:, 1:])

    found = {}
    for name, call in (("eager", loss_of), ("compile", torch.compile(loss_of))):
        times = []
        for _ in range(arguments.steps):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            call().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
            optimizer.step()
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begin))
        found[name] = statistics.median(times[len(times) // 2:])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="build/deepwell")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="12,768,12", help="layers, width, heads")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ways", default="masters,bf16")
    parser.add_argument("--recompute", default="cheap", help="levels, separated by commas; cheap is the default of `deepwell train`")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step of ours; PyTorch's has one")
    parser.add_argument("--no-torch", action="store_true")
    arguments = parser.parse_args()
    arguments.size = [int(x) for x in arguments.size.split(",")]
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name() if torch.cuda.is_available() else arguments.device}, torch {torch.__version__}, {arguments.size}, {arguments.batch} x {arguments.length}")
    for way in arguments.ways.split(","):
        text, shapes = graph_of(*arguments.size, "bf16" if way == "bf16" else "f32", arguments.vocabulary)
        levels = arguments.recompute.split(",")
        with tempfile.TemporaryDirectory() as folder:
            write_model(folder, arguments, text, weights_of(shapes), way)
            rounds = [{level: ours(folder, arguments, way, level) for level in levels} for _ in range(arguments.rounds)]
        found = {level: [r[level] for r in rounds if r[level] is not None] for level in levels}
        ms = {f"deepwell, {level}": statistics.median(times) if times else None for level, times in found.items()}
        ms |= {} if arguments.no_torch else peers(arguments, way)
        print(f"{way:8s} " + "   ".join(f"{name} {x:8.2f} ms a step" for name, x in ms.items() if x is not None), flush=True)


if __name__ == "__main__":
    main()
