"""Launches of a step overlap on a device, so each kernel waits by itself for those in front of it (kernels/gpu/README.md). Here the wait is taken out of the kernels that
ship, and moved to their ends: a run on the simulated H200 must end with a finding each time, and without one as they are."""
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

BUILD = os.environ["DEEPWELL_BUILD"]
IMAGES = os.path.join(BUILD, "images")
ROWS, WIDTH, LONG = 16, 256, 3200
STEP = f"""graph step
  input x bf16[{ROWS},{WIDTH}]
  param gain bf16[{WIDTH}]
  param up bf16[{LONG},{WIDTH}]
  param down bf16[{WIDTH},{LONG}]
  %1 = softmax x {{axis=1}}
  %2 = layer_norm %1, gain {{eps=1e-5}}
  %3 = matmul %2, up {{bt=true}}
  %4 = matmul %3, down {{bt=true}}
  %5 = exp %4
  %6 = softmax %5 {{axis=1}}
  output y %6
  output n %2
"""
KERNELS = (("softmax_rows", "softmax_rows_bf16_1"), ("norm_rows", "norm_rows_bf16_1"), ("matmul_panel", "matmul_panel_bf16_m16"), ("matmul_panels", "matmul_panels_bf16_m16"), ("pointwise_vectors", "pointwise_vectors"))
WAIT = re.compile(r"griddepcontrol\.wait\s*;")

spec = importlib.util.spec_from_file_location("run", os.path.join(os.path.dirname(__file__), "mutants", "run.py"))
mutants = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(mutants)


def write_safetensors(path, shapes):
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + struct.pack("<H", 0x3f80) * (at // 2))


def run(folder, options):
    return subprocess.run([os.path.join(BUILD, "deepwell"), "run", f"{folder}/step.txt", "--weights", f"{folder}/w.safetensors", "--in", f"{folder}/x.safetensors", "--out",
                           f"{folder}/y.safetensors", "--device", f"sim:h200,threads=1{options}", "--kernels", "matmul=cuda_matmul_skinny"], capture_output=True, text=True)


if "IMAGE" not in open(os.path.join(IMAGES, "images.def")).read():
    print("skipped: this build has no GPU code: DEEPWELL_NVCC is empty")
    sys.exit(77)
if not os.path.exists(os.path.join(IMAGES, "norm_rows.fatbin")):
    print(f"skipped: the GPU code in this build is another's; {IMAGES} has no fatbins")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/step.txt", "w") as file:
        file.write(STEP)
    write_safetensors(f"{folder}/w.safetensors", {"gain": [WIDTH], "up": [LONG, WIDTH], "down": [WIDTH, LONG]})
    write_safetensors(f"{folder}/x.safetensors", {"x": [ROWS, WIDTH]})
    done = run(folder, "")
    assert done.returncode == 0, done.stderr
    for image, entry in KERNELS:
        text = mutants.of_entries(mutants.ptx_of_image(os.path.join(IMAGES, f"{image}.fatbin")), [entry])
        assert WAIT.search(text), f"{entry} does not wait"
        late = WAIT.sub("", text)
        late = re.sub(r"\bret;", "griddepcontrol.wait; ret;", late)
        for what, mutated in (("without its wait", WAIT.sub("", text)), ("with its wait at its end", late)):
            with open(f"{folder}/mutant.ptx", "w") as file:
                file.write(mutated)
            done = run(folder, f",ptx={folder}/mutant.ptx")
            said = done.stdout + done.stderr
            assert done.returncode != 0 and entry in said and "griddepcontrol.wait" in said, f"{entry} {what}: {said or 'nothing was found'}"
            print(f"{entry} {what}: found")
