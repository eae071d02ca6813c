"""deepwell train on simulated GPUs: whole steps of transformers, one with an mlp and one with experts, beside the CPU's. Standard library only."""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

ROOT = os.getcwd()
BUILD = os.environ.get("DEEPWELL_BUILD", os.path.join(ROOT, "build"))
COMMAND = os.path.join(BUILD, "deepwell")
TEXT = os.path.join(ROOT, "models", "kjv.heldout.txt")
# Grouped heads, a causal mask, a bias that is trained, a tied head.
BEGIN = """  symbol b 1..
  symbol s 1..64
  input ids i64[b,s]
  param table f32[256,32]
  param norm f32[32]
  param qkv f32[64,32]
  param slopes f32[4,1,1]
  param o f32[32,32]
"""
ATTENTION = """  %1 = take table, ids {axis=0}
  %2 = rms_norm %1, norm {eps=1e-5}
  %3 = matmul %2, qkv {bt=true}
  %4 = reshape %3 {shape=[b,s,8,8]}
  %5 = transpose %4 {order=[0,2,1,3]}
  %6 = slice %5 {axis=1,start=0,end=4,step=1}
  %7 = slice %5 {axis=1,start=4,end=6,step=1}
  %8 = slice %5 {axis=1,start=6,end=8,step=1}
  %9 = iota {start=0,step=1,length=s,to=i64}
  %10 = cast %9 {to=f32}
  %11 = reshape %10 {shape=[1,1,s]}
  %12 = mul %11, slopes
  %13 = attention %6, %7, %8, -, %12 {scale=0.35,causal=true}
  %14 = transpose %13 {order=[0,2,1,3]}
  %15 = reshape %14 {shape=[b,s,32]}
  %16 = matmul %15, o {bt=true}
  %17 = add %1, %16
"""
MLP = """graph mlp
""" + BEGIN + """  param up f32[64,32]
  param bias f32[64]
  param down f32[32,64]
""" + ATTENTION + """  %18 = layer_norm %17 {eps=1e-5}
  %19 = matmul %18, up {bt=true}
  %20 = add %19, bias
  %21 = gelu %20
  %22 = matmul %21, down {bt=true}
  %23 = add %17, %22
  %24 = matmul %23, table {bt=true}
  output logits %24
"""
EXPERTS = """graph experts
""" + BEGIN + """  param router f32[5,32]
  param up f32[5,24,32]
  param down f32[5,32,24]
""" + ATTENTION + """  %18 = reshape %17 {shape=[b*s,32]}
  %19 = matmul %18, router {bt=true}
  %20 = softmax %19 {axis=1}
  %21, %22 = topk %20 {axis=1,length=2,largest=true}
  %23, %24, %25 = dispatch %22 {length=5}
  %26 = take %18, %23 {axis=0}
  %27 = grouped_matmul %26, up, %25 {bt=true}
  %28 = silu %27
  %29 = grouped_matmul %28, down, %25 {bt=true}
  %30 = combine %29, %24, %21
  %31 = add %18, %30
  %32 = reshape %31 {shape=[b,s,32]}
  %33 = matmul %32, table {bt=true}
  output logits %33
"""
failures = []


def expect(condition, claim, result=None):
    if not condition:
        failures.append(claim + ("" if result is None else f"\n  exit {result.returncode}\n  stdout: {result.stdout[-400:]!r}\n  stderr: {result.stderr[-600:]!r}"))


def weights_of(text):
    """Normal numbers for each parameter of a graph, in safetensors; norms around 1."""
    header, data, draw = {}, b"", random.Random(5)
    for line in text.splitlines():
        if line.startswith("  param "):
            _, name, kind = line.split()
            shape = [int(size) for size in kind[4:-1].split(",")]
            count = 1
            for size in shape:
                count *= size
            numbers = struct.pack(f"<{count}f", *(draw.gauss(name == "norm", 0.25) for _ in range(count)))
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
            data += numbers
    words = json.dumps(header).encode()
    words += b" " * (-(len(words) + 8) % 64)
    return struct.pack("<Q", len(words)) + words + data


def numbers_of(path):
    """name -> its floats"""
    with open(path, "rb") as file:
        everything = file.read()
    size = struct.unpack("<Q", everything[:8])[0]
    header, data = json.loads(everything[8:8 + size]), everything[8 + size:]
    return {name: struct.unpack(f"<{(row['data_offsets'][1] - row['data_offsets'][0]) // 4}f", data[slice(*row["data_offsets"])]) for name, row in header.items() if name != "__metadata__"}


def train(folder, name, out, *more):
    path = os.path.join(folder, out)
    result = subprocess.run([COMMAND, "train", os.path.join(folder, name + ".txt"), "--weights", os.path.join(folder, name), "--data", TEXT, "--loss", "next-token", "--batch", "2", "--length", "20", "--steps", "3",
                             "--rate", "0.01", "--json", "--out", path, *more], capture_output=True, stdin=subprocess.DEVNULL, timeout=300)
    expect(result.returncode == 0, f"{name} trains with {more}", result)
    return ([json.loads(line)["loss"] for line in result.stdout.splitlines()], numbers_of(path)) if result.returncode == 0 else None


def distance_of(a, b):
    """Of all parameters together, beside their size."""
    away = sum((x - y) ** 2 for name in a for x, y in zip(a[name], b[name]))
    return (away / sum(x * x for numbers in a.values() for x in numbers)) ** 0.5


def it_trains_as_on_the_cpu(name, text, more, bound):
    """SGD, whose steps are as large as gradients are: of AdamW's first step they are all of one size, whatever is wrong with a factor."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, name + ".txt"), "w") as file:
            file.write(text)
        with open(os.path.join(folder, name), "wb") as file:
            file.write(weights_of(text))
        before = numbers_of(os.path.join(folder, name))
        here = train(folder, name, "here", "--optimizer", "sgd", *more)
        if here is None:
            return
        moved = distance_of(before, here[1])
        for device in ("sim:h200", "sim:b200", "sim:h200,seed=3"):
            there = train(folder, name, "there", "--optimizer", "sgd", "--device", device, *more)
            if there is None:
                continue
            expect(max(abs(a - b) for a, b in zip(here[0], there[0])) < bound, f"{name} {more} on {device}: losses {there[0]}, on the CPU {here[0]}")
            expect(distance_of(here[1], there[1]) < bound * moved, f"{name} {more} on {device}: parameters are {distance_of(here[1], there[1]):.3g} from the CPU's, steps were {moved:.3g}")
            first = there if device == "sim:h200" else first
        expect(first == there, f"{name} {more}: another order of thread blocks has the same bits")


with open(os.path.join(BUILD, "images", "images.def")) as file:
    if "IMAGE(" not in file.read() or not os.path.exists(os.path.join(BUILD, "libdeepwell-sim.so")):
        print("skipped: this build has no GPU code, or no simulator")
        sys.exit(77)
# Sums in fp32 in another order; of products of bf16 operands some of these round to the other side.
for name, text in (("mlp", MLP), ("experts", EXPERTS)):
    it_trains_as_on_the_cpu(name, text, ("--clip", "1"), 2e-5)
it_trains_as_on_the_cpu("mlp", MLP, ("--precision", "bf16"), 2e-2)
for failure in failures:
    print(failure)
sys.exit(len(failures) > 0)
