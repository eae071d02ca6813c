"""Values that are columns of keys, on the simulator: where v is a slice of k in a graph, attention of latent keys loads both at once, and gives the bits that it gives of values that lie by themselves.
Of both kinds the loads by TMA of the first thread block are counted. Besides caches in pages, whose slots of values are those of keys."""
import json
import os
import random
import struct
import subprocess
import tempfile
from pathlib import Path

COMMAND = Path(os.environ.get("DEEPWELL_BUILD", Path(__file__).resolve().parent.parent.parent / "build")) / "deepwell"
HEADS, WIDTH, VALUES, KEYS, BLOCK = 64, 576, 512, 70, 32
LATENT = ["--kernels", "attention=cuda_attention_latent"]
SLICE = f"  %1 = slice k {{axis=3,start=0,end={VALUES},step=1}}\n"


def graph(shape, places, value, arguments):
    inputs = "".join(f"  input {name} {of}\n" for name, of in places)
    return f"graph g\n  input q bf16[{shape[0]},{HEADS},2,{WIDTH}]\n  input k bf16[{shape[1]},1,{shape[2]},{WIDTH}]\n{inputs}{value}  %2 = attention q, k, {arguments}\n  output y %2\n"


def numbers(count, seed):
    """Of both signs in [1/4, 4), in bf16; of every 50 one is a NaN or infinite."""
    source = random.Random(seed)
    return [0x7FC0 if source.random() < 0.00002 else source.randrange(2) << 15 | source.randrange(0x3E80, 0x4080) for _ in range(count)]


def safetensors(tensors):
    header, data = {}, b""
    for name, (format, shape, values) in tensors.items():
        packed = struct.pack(f"<{len(values)}{dict(BF16='H', I64='q', I32='i')[format]}", *values)
        header[name] = {"dtype": format, "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def result(folder, device, text, tensors):
    (folder / "g.txt").write_text(text)
    (folder / "in.safetensors").write_bytes(safetensors(tensors))
    done = subprocess.run([COMMAND, "run", folder / "g.txt", "--device", device, *LATENT, "--in", folder / "in.safetensors", "--out", folder / "out.safetensors"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    content = (folder / "out.safetensors").read_bytes()
    return content[8 + struct.unpack("<Q", content[:8])[0]:]


def loads(folder, device, text, tensors):
    """Lines of the first warp that load by TMA, a box of each lane."""
    (folder / "g.txt").write_text(text)
    (folder / "in.safetensors").write_bytes(safetensors(tensors))
    done = subprocess.run([COMMAND, "trace", folder / "g.txt", "--device", device, *LATENT, "--in", folder / "in.safetensors", "--launch", "attention_latent", "--lines", "1000000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return sum("cp.async.bulk.tensor" in line for line in done.stdout.splitlines())


def check(device, shape, places, given, options, blocks):
    """shape: queries' batch, and rows or pages of keys and the slots of each. blocks: of keys, of the first thread block."""
    arguments = ", ".join(["-"] * 3 + [name for name, _ in places]) if places else ""
    q, k = numbers(shape[0] * HEADS * 2 * WIDTH, 1), numbers(shape[1] * shape[2] * WIDTH, 2)
    values = [x for row in range(shape[1] * shape[2]) for x in k[row * WIDTH:row * WIDTH + VALUES]]
    tensors = {"q": ("BF16", [shape[0], HEADS, 2, WIDTH], q), "k": ("BF16", [shape[1], 1, shape[2], WIDTH], k), **given}
    apart = {**tensors, "v": ("BF16", [shape[1], 1, shape[2], VALUES], values)}
    tail = f", {arguments} {options}" if arguments else f" {options}"
    columns, alone = graph(shape, places, SLICE, "%1" + tail), graph(shape, [("v", f"bf16[{shape[1]},1,{shape[2]},{VALUES}]"), *places], "", "v" + tail)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        got, wanted = result(folder, device, columns, tensors), result(folder, device, alone, apart)
        assert got == wanted, f"{device}: {sum(a != b for a, b in zip(got, wanted))} of {len(wanted)} bytes differ"
        assert any(got), "all results are 0"
        found = loads(folder, device, columns, tensors), loads(folder, device, alone, apart)
        assert found == (blocks, 2 * blocks), f"{device}: {found} loads by TMA of the first warp, for {blocks} blocks of keys"


PLACES = [("r", "i64[2]"), ("p", "i64[2]"), ("t", "i32[2,3]")]
GIVEN = {"r": ("I64", [2], [0, 1]), "p": ("I64", [2], [60, 95]), "t": ("I32", [2, 3], [4, 0, 2, 1, 3, 0])}
for device in ("sim:h200,units=1", "sim:rtx5090,units=1"):     # a cluster of one block
    check(device, (1, 1, KEYS), [], {}, "{scale=0.02,causal=true,offset=68}", -(-KEYS // BLOCK))
    check(device, (1, 5, BLOCK), PLACES, GIVEN, "{scale=0.02,causal=true}", 2)
