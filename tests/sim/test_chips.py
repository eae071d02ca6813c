"""The carried model generates on every chip that planning knows: what a kernel asks of a chip has to be there, above all of shared memory, of which some have less than half of what others have.
Its text is the CPU's, of as many tokens as agree where low precision amplifies the order of sums: two. Every precision of precision.def runs on the chips of EVERY, one of each set of kernels and room, and
the common ones on all others. A tenth of that for each commit (scripts/part.sh), with --all all of it; under a sanitizer one."""
import os
import re
import subprocess
import sys

BUILD = os.environ["DEEPWELL_BUILD"]
COMMAND, MODEL = os.path.join(BUILD, "deepwell"), "models/kjv.pt2"
COMMON = ("fp32", "bf16", "fp8", "fp8-row", "mxfp8", "mxfp4", "nvfp4")
EVERY = ("h200", "b200", "b300", "rtx5090", "gb10")


def precisions():
    """All that a policy can give: a weight in blocks may be alone in low precision."""
    names = []
    for name, weight in re.findall(r'^PRECISION\( *"([^"]+)", *(\w+),', open("src/pass/precision/precision.def").read(), re.MULTILINE):
        names.append(name)
        if weight not in ("f32", "bf16") and name != "mxfp4-mxfp8":
            names.append(f"{name}-weights")
    return names


def generate(precision, device):
    done = subprocess.run([COMMAND, "generate", MODEL, "--precision", precision, "--device", device, "--prompt", "And", "--tokens", "2"], capture_output=True, text=True)
    return done.returncode == 0, done.stdout if done.returncode == 0 else f"exit status {done.returncode}: {done.stderr}"


if "IMAGE" not in open(os.path.join(BUILD, "images", "images.def")).read():
    print("skipped: this build has no GPU code: DEEPWELL_NVCC is empty")
    sys.exit(77)
chips = re.findall(r"^CHIP_GPU\( *(\w+),", open("src/chip/chip.def").read(), re.MULTILINE)
assert len(chips) > 10, chips
assert set(EVERY) <= set(chips) and set(COMMON) <= set(precisions()), (chips, precisions())
runs = [(chip, precision) for precision in precisions() for chip in chips if precision in COMMON or chip in EVERY]
if sys.argv[1:] != ["--all"]:
    part = int(subprocess.run(["scripts/part.sh"], capture_output=True, text=True, check=True).stdout.split("/")[0])
    runs = [("rtx5090", "nvfp4"), *runs[part::10]][:1 if os.environ.get("DEEPWELL_SANITIZE") else None]
expected, wrong = {}, 0
for chip, precision in runs:
    if precision not in expected:
        done, expected[precision] = generate(precision, "cpu")
        assert done, expected[precision]
    done, text = generate(precision, f"sim:{chip}")
    same = done and text == expected[precision]
    wrong += not same
    print(f"sim:{chip}, {precision}: {text.strip()!r}" + ("" if same else f", the CPU says {expected[precision].strip()!r}"), flush=True)
sys.exit(wrong > 0)
