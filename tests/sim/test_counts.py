"""How often the loops of products by tcgen05 go round, on the simulator: matrix instructions, copies of scales, loads by TMA and commits that a warp executes are the formulas' of
scripts/audit.py, which holds the machine code to them, times the k-blocks. And the epilogue of a persistent tile takes no longer than the products of 4 k-blocks, under which it runs."""
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import audit

COMMAND = Path(os.environ.get("DEEPWELL_BUILD", ROOT / "build")) / "deepwell"
LOADS, MULTIPLIES, SCALES, STORES = 0, 1, 2, 4     # the warps that do
COUNTED = re.compile(r"tcgen05\.ld|tcgen05\.mma|tcgen05\.cp|tcgen05\.commit|cp\.async\.bulk\.tensor|[ls][dt]\.(?:local|global)")
RENAMED = re.compile(r" mov\.b(32 %f\d+, %r\d|32 %r\d+, %f\d|64 %rd\d+, \{|64 \{)")
LEAST_BLOCKS = 4          # of k, of which a persistent kernel claims that its epilogue is hidden


def trace(way, device, launch, warp, line):
    """The launch's name, and the lines of the warp of its first thread block."""
    done = subprocess.run([COMMAND, "trace", "--device", device, "--kernels", f"matmul={way}", "--launch", launch, "--warp", str(warp), "--lines", "1000000", line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return re.match(r"launch \d+: (\w+)", done.stdout)[1], done.stdout.splitlines()


def count(way, device, launch, warp, line):
    return Counter(name for words in trace(way, device, launch, warp, line)[1] for name in COUNTED.findall(words))


def check(what, found, **wanted):
    wanted = {name.replace("__", "."): times for name, times in wanted.items() if times > 0}
    assert found == wanted, f"{what} executed {dict(found)}, {wanted} are needed"


def check_plain(entry, blocks, line):
    """A thread block has one tile."""
    tile, way = audit.tcgen05_tiles()[entry], "cuda_matmul_tcgen05"
    check(f"{entry}: the warp that multiplies", count(way, "sim:b200", entry, MULTIPLIES, line), tcgen05__mma=blocks * tile.matrix, tcgen05__commit=blocks + 1, tcgen05__cp=blocks * tile.copies)
    check(f"{entry}: the warp that loads", count(way, "sim:b200", entry, LOADS, line), cp__async__bulk__tensor=blocks * tile.loads)


def epilogue_instructions(lines, turns):
    """Of a warp that stores, but for waits: those of its lines that it does not go over more often than there are parts of 16 columns in all its tiles. Moves that only say what registers are of, as of two that
    become one of 64 bits, are no machine instructions."""
    times = Counter(words.split()[1] for words in lines if re.match(r"\s+\d+\s+\d+\s", words) and not RENAMED.search(words))
    return sum(count for count in times.values() if count <= turns)


def check_persistent(line, m, n, blocks):
    """On two multiprocessors one pair has all tiles."""
    way, device = "cuda_matmul_tcgen05_tiles", "sim:b200,units=2"
    entry, stores = trace(way, device, "1", STORES, line)
    tile = audit.all_tiles()[entry]
    assert "_m256" in entry, f"{entry}: a pair was to be taken"
    tiles = -(-m // 256) * -(-n // tile.columns)
    turns = tiles * blocks
    check(f"{entry}: the warp that multiplies", count(way, device, "1", MULTIPLIES, line), tcgen05__mma=turns * tile.matrix, tcgen05__commit=turns + tiles, tcgen05__cp=turns * tile.copies)
    check(f"{entry}: the warp that loads", count(way, device, "1", LOADS, line), cp__async__bulk__tensor=turns * tile.loads)
    check(f"{entry}: the warp that loads scales", count(way, device, "1", SCALES, line), cp__async__bulk__tensor=turns * 2 if tile.scale_loads > 0 else 0)   # of a, and its block's half of b's
    loads = sum("tcgen05.ld" in words for words in stores)
    assert loads == tiles * tile.columns // 16, f"{entry}: {loads} loads of sums by a warp, {tiles * tile.columns // 16} of 16 columns are needed"
    instructions = epilogue_instructions(stores, tiles * tile.columns // 16) / tiles
    assert instructions <= LEAST_BLOCKS * tile.cycles, f"{entry}: an epilogue of {instructions:.0f} instructions a warp, {LEAST_BLOCKS} blocks of k take {LEAST_BLOCKS * tile.cycles:.0f} cycles"


check_plain("matmul_half_sm100", 5, "matmul bf16[100,320] bf16[72,320] bt=true")
check_plain("matmul_e4m3_sm100", 3, "matmul fp8_tensor[100,384] fp8_tensor[72,384] bt=true to=bf16")
check_plain("matmul_mxfp8_sm100", 3, "matmul mxfp8[100,384] mxfp8[72,384] bt=true to=bf16")
check_plain("matmul_mxfp4_sm100", 4, "matmul mxfp4[100,1024] mxfp4[72,1024] bt=true to=bf16")
check_plain("matmul_nvfp4_sm100", 4, "matmul nvfp4@tile128x4[100,1024] nvfp4@tile128x4[72,1024] bt=true to=bf16")
check_persistent("matmul bf16[512,320] bf16[1024,320] bt=true", 512, 1024, 5)
check_persistent("matmul fp8_tensor[512,384] fp8_tensor[1024,384] bt=true to=bf16", 512, 1024, 3)
check_persistent("matmul mxfp8@tile128x4[512,384] mxfp8@tile128x4[1024,384] bt=true to=bf16", 512, 1024, 3)
check_persistent("matmul mxfp4@tile128x4[512,1024] mxfp4@tile128x4[1024,1024] bt=true to=bf16", 512, 1024, 4)
check_persistent("matmul nvfp4@tile128x4[512,1024] nvfp4@tile128x4[1024,1024] bt=true to=bf16", 512, 1024, 4)
