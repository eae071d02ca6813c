"""The carried model end to end on the simulated H200 and B200 against the CPU: its logits, and the text that it makes.

Bounds, as relative L2 of all logits: fp32 differs by the order of sums alone, a few 1e-7 a layer. In mxfp8 such a difference flips roundings of activations
from layer to layer: four layers measured 2.6e-3 (three texts of 33 tokens), and twelve of another model 4e-3; in nvfp4, whose steps are coarser, twelve 2e-2. On Hopper
few rows of mxfp8 are added in the tensor core's shorter sums (docs/precision.md): 0.8e-2 to 1.7e-2, where both are 1.1e-2 to 1.8e-2 from fp32. A wrong kernel is wrong by 1e-1 and more."""
import json
import os
import struct
import subprocess
import sys
import tempfile

BUILD, FIXTURES = os.environ["DEEPWELL_BUILD"], os.environ["DEEPWELL_FIXTURES"]
COMMAND, MODEL = os.path.join(BUILD, "deepwell"), "models/kjv.pt2"
INPUTS = os.path.join(FIXTURES, "kjv.cases", "b1_s7.in.safetensors")
RUNS = (("fp32", 1e-5, "sim:h200,seed=5"), ("mxfp8", 3e-2, "sim:h200,seed=5"), ("mxfp8", 1e-2, "sim:b200,seed=5"), ("nvfp4", 2e-2, "sim:b200,seed=5"))


def deepwell(*arguments):
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"deepwell {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def floats(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header, body = json.loads(file.read(length)), file.read()
    (entry,) = [value for name, value in header.items() if name != "__metadata__"]
    assert entry["dtype"] == "F32", entry
    begin, end = entry["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 4}f", body[begin:end])


def distance(a, b):
    return (sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / sum(y * y for y in b)) ** 0.5


if "IMAGE" not in open(os.path.join(BUILD, "images", "images.def")).read():
    print("skipped: this build has no GPU code: DEEPWELL_NVCC is empty")
    sys.exit(77)
if not os.path.exists(INPUTS):
    print(f"skipped: no {INPUTS}; scripts/fixtures.sh makes it")
    sys.exit(77)
together = True
if os.environ.get("DEEPWELL_SANITIZE"):   # ten times as slow: one of the runs, or the prompts together, another for each commit
    part = int(subprocess.run(["scripts/part.sh"], capture_output=True, text=True, check=True).stdout.split("/")[0])
    chosen = part % (len(RUNS) + 1)
    together = chosen == len(RUNS)
    RUNS = RUNS[chosen:chosen + 1]
with tempfile.TemporaryDirectory() as folder:
    for precision, bound, chip in RUNS:
        results, texts = [], []
        for device in ("cpu", chip):
            out = os.path.join(folder, "out.safetensors")
            deepwell("run", MODEL, "--precision", precision, "--device", device, "--in", INPUTS, "--out", out)
            results.append(floats(out))
            texts.append(deepwell("generate", MODEL, "--precision", precision, "--device", device, "--prompt", "And", "--tokens", "2"))
        found = distance(results[1], results[0])
        print(f"{chip}, {precision}: logits within {found:.2e} of the CPU's (bound {bound:g}); text {texts[1].strip()!r}")
        assert found <= bound, "too far"
        assert texts[0] == texts[1], f"the CPU says {texts[0]!r}"
# Prompts of any lengths go through the same runs; each is continued as the CPU does it alone.
if together:
    words = open("models/kjv.heldout.txt").read()
    prompts = [words[97 * i:97 * i + 1 + 5 * i % 23] for i in range(16)]
    given = [word for prompt in prompts for word in ("--prompt", prompt)]
    made = deepwell("generate", MODEL, "--device", "sim:h200,seed=5", "--tokens", "3", *given)
    alone = "".join(deepwell("generate", MODEL, "--tokens", "3", "--prompt", prompt) for prompt in prompts)
    print(f"sim:h200: {len(prompts)} prompts of 1 to {max(map(len, prompts))} tokens together are continued as by the CPU, each alone")
    assert made == alone, f"{made!r}, each alone on the CPU {alone!r}"
