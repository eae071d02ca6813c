"""Values that are columns of keys, on the simulator: where v is a slice of k in a graph, attention of latent keys loads both at once, and gives the bits that it gives of values that lie by themselves,
and of those that are other columns of the keys: alike in steps, not in address. Of caches without pages the loads by TMA of the first thread block are counted. Besides caches in pages, of 32 and of 16 slots, whose slots of values are those of keys:
slots that no query sees are NaN or infinite, and entries of the table that none sees are no pages."""
import json
import os
import random
import struct
import subprocess
import tempfile
from pathlib import Path

COMMAND = Path(os.environ.get("DEEPWELL_BUILD", Path(__file__).resolve().parent.parent.parent / "build")) / "deepwell"
WIDTH, VALUES, KEYS, BLOCK = 576, 512, 70, 32
LATENT = ["--kernels", "attention=cuda_attention_latent"]


def slice_from(col):
    return f"  %1 = slice k {{axis=3,start={col},end={col + VALUES},step=1}}\n"


def graph(heads, shape, places, value, arguments):
    inputs = "".join(f"  input {name} {of}\n" for name, of in places)
    return f"graph g\n  input q bf16[{shape[0]},{heads},2,{WIDTH}]\n  input k bf16[{shape[1]},1,{shape[2]},{WIDTH}]\n{inputs}{value}  %2 = attention q, k, {arguments}\n  output y %2\n"


def numbers(count, seed):
    """Of both signs in [1/4, 4), in bf16."""
    source = random.Random(seed)
    return [source.randrange(2) << 15 | source.randrange(0x3E80, 0x4080) for _ in range(count)]


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


def check(device, heads, shape, places, given, options, blocks, hidden):
    """shape: queries' batch, and rows or pages of keys and the slots of each. blocks: of keys, of the first thread block. hidden: rows of keys, over all pages, that no query sees."""
    arguments = ", ".join(["-"] * 3 + [name for name, _ in places]) if places else ""
    q, k = numbers(shape[0] * heads * 2 * WIDTH, 1), numbers(shape[1] * shape[2] * WIDTH, 2)
    for row in hidden:
        k[row * WIDTH:(row + 1) * WIDTH] = [(0x7FC0, 0x7F80, 0xFF80)[row % 3]] * WIDTH
    tensors = {"q": ("BF16", [shape[0], heads, 2, WIDTH], q), "k": ("BF16", [shape[1], 1, shape[2], WIDTH], k), **given}
    tail = f", {arguments} {options}" if arguments else f" {options}"
    alone = graph(heads, shape, [("v", f"bf16[{shape[1]},1,{shape[2]},{VALUES}]"), *places], "", "v" + tail)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for col, times in [(0, 1)] if places else [(0, 1), (64, 2)]:
            values = [x for row in range(shape[1] * shape[2]) for x in k[row * WIDTH + col:row * WIDTH + col + VALUES]]
            apart, columns = {**tensors, "v": ("BF16", [shape[1], 1, shape[2], VALUES], values)}, graph(heads, shape, places, slice_from(col), "%1" + tail)
            got, wanted = result(folder, device, columns, tensors), result(folder, device, alone, apart)
            assert got == wanted, f"{device}: {sum(a != b for a, b in zip(got, wanted))} of {len(wanted)} bytes differ"
            found = struct.unpack(f"<{len(got) // 2}H", got)
            assert all(x & 0x7F80 != 0x7F80 for x in found), f"{device}: a result is NaN or infinite"
            assert len(set(found)) > 100, f"{device}: only {len(set(found))} different results"
            if places:
                continue
            found = loads(folder, device, columns, tensors), loads(folder, device, alone, apart)
            assert found == (times * blocks, 2 * blocks), f"{device}: {found} loads by TMA of the first warp, for {blocks} blocks of keys, values from column {col}"


PLACES = [("r", "i64[2]"), ("p", "i64[2]"), ("t", "i32[2,3]")]
GIVEN = {"r": ("I64", [2], [0, 1]), "p": ("I64", [2], [60, 95]), "t": ("I32", [2, 3], [4, 0, 999, 1, 3, 2])}
SHORT = [("r", "i64[2]"), ("p", "i64[2]"), ("t", "i32[2,4]")]
BEFORE = {"r": ("I64", [2], [0, 1]), "p": ("I64", [2], [10, 40]), "t": ("I32", [2, 4], [2, 999, 999, 999, 4, 0, 1, 999])}
BEHIND = {"r": ("I64", [2], [0, 1]), "p": ("I64", [2], [30, 60]), "t": ("I32", [2, 4], [999, 1, 999, 999, 999, 999, 999, 3])}
LARGE, SMALL = "sim:h200,units=1", "sim:rtx5090,units=1"     # a cluster of one block
for device, heads in (LARGE, 64), (SMALL, 16):
    check(device, heads, (1, 1, KEYS), [], {}, "{scale=0.02,causal=true,offset=67}", -(-KEYS // BLOCK), [69])
check(LARGE, 16, (1, 5, BLOCK), PLACES, GIVEN, "{scale=0.02,causal=true}", 2, range(29, 32))
check(LARGE, 16, (1, 5, BLOCK // 2), SHORT, BEFORE, "{scale=0.02,causal=true}", 1, [*range(43, 48), *range(25, 32), *range(48, 64)])
check(SMALL, 16, (1, 5, BLOCK // 2), SHORT, BEHIND, "{scale=0.02,causal=true,window=8}", 1, [*range(0, 16), *range(16, 23), 31, *range(32, 53), *range(61, 80)])
