"""How often the loops of products by tcgen05 go round, on the simulator: matrix instructions, copies of scales, loads by TMA and commits that a warp executes are the formulas' of
scripts/audit.py, which holds the machine code to them, times the k-blocks."""
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import audit

COMMAND = Path(os.environ.get("DEEPWELL_BUILD", ROOT / "build")) / "deepwell"
LOADS, MULTIPLIES = 0, 1     # the warps that do

# entry, k, k-blocks of 128 bytes, call
CASES = [
    ("matmul_half_sm100", 5, "matmul bf16[100,320] bf16[72,320] bt=true"),
    ("matmul_e4m3_sm100", 3, "matmul fp8_tensor[100,384] fp8_tensor[72,384] bt=true to=bf16"),
    ("matmul_mxfp8_sm100", 3, "matmul mxfp8[100,384] mxfp8[72,384] bt=true to=bf16"),
    ("matmul_mxfp4_sm100", 4, "matmul mxfp4[100,1024] mxfp4[72,1024] bt=true to=bf16"),
    ("matmul_nvfp4_sm100", 4, "matmul nvfp4@tile128x4[100,1024] nvfp4@tile128x4[72,1024] bt=true to=bf16"),
]


def executed(entry, warp, line):
    """{what: how often} of the launch's first thread block."""
    done = subprocess.run([COMMAND, "trace", "--device", "sim:b200", "--kernels", "matmul=cuda_matmul_tcgen05", "--launch", entry, "--warp", str(warp), "--lines", "1000000", line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = re.findall(r"(tcgen05\.mma|tcgen05\.cp|tcgen05\.commit|cp\.async\.bulk\.tensor|[ls][dt]\.(?:local|global)|[ls]d\.u|st\.u)", done.stdout)
    return {name: names.count(name) for name in set(names)}


for entry, blocks, line in CASES:
    tile = audit.tcgen05_tiles()[entry]
    counts = executed(entry, MULTIPLIES, line)
    wanted = {"tcgen05.mma": blocks * tile.matrix, "tcgen05.commit": blocks + 1}
    if tile.copies > 0:
        wanted["tcgen05.cp"] = blocks * tile.copies
    assert counts == wanted, f"{entry}: the warp that multiplies executed {counts}, {wanted} are needed"
    counts = executed(entry, LOADS, line)
    assert counts == {"cp.async.bulk.tensor": blocks * tile.loads}, f"{entry}: the warp that loads executed {counts}, {blocks * tile.loads} loads are needed"
