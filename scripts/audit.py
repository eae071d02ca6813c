#!/usr/bin/env python3
"""Audits the machine code of the kernels for Hopper and Blackwell: what their steady loops have a k-block against formulas and limits, and what must not be there at all.
Usage: audit.py [--images FOLDER] [--table] [IMAGE..]; build/images and all its images for sm_90a and the sm_100 family by default. Prints what does not hold and is not in
scripts/audit.txt, and what is there and holds by now, and exits 1 if there is any. --table: prints what was counted of each entry of products as well.

A k-block is 128 bytes of k. The loop that multiplies is the innermost one with matrix instructions and a wait; the loop that loads has TMA's and a wait. Counted is a loop's code, each
instruction once, as the code of a wait that succeeds at once and of every branch. How often loops go round is not in machine code: tests/sim/test_counts.py holds that on the simulator.

 local     loads and stores of local memory in the entry: arrays that are indexed, spills
 spills    bytes that ptxas says it spilled
 steady    loads and stores of global memory, and generic ones, in the loops that multiply and load
 narrow    loads of tensor memory of fewer than 16 columns, which take as long as those of 16
 formula   matrix instructions, copies of scales, loads by TMA, commits of a k-block are those of the tile
 multiply  instructions a k-block of a warp that multiplies, beside the one for each of its sums that threads add themselves (fp8 by wgmma): at most 40; of persistent tiles by tcgen05 what tiles.c reckons with
 load      of the warp that loads: at most 24; the same
 cover     stages x cycles of a k-block, by the slower of its matrix instructions and of what the L2 cache gives: at least 1600; of tiles of at most 64 columns, which read main memory, or 64 KB in flight
 soften    attention by tcgen05, position alone: instructions of the loop of its softmax, with what blocks with hidden keys alone run, and global memory in it
 issue     the same: of the loop of its products, a tile and a block of keys
 bound     the same: matrix instructions of a block of keys over the slowest of what it takes: at least 65 % of heads of 64, of 16 bits, 85 % of 96 and 90 % of wider ones
 powers    the same: powers of 2 by special function units of a row's 128 keys, all but those that the entry makes by multiplying and adding, and one for what a largest score that has moved costs
 epilogue  it runs under the products of the next tile, and takes no longer than those of the shortest k claimed"""
import fnmatch
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from gen_docs import CHIP_MEASURED, rows
from sass import ROOT, disassemble, find_nvdisasm, loops_around, read_entries, read_functions

MATRIX = ("HGMMA", "QGMMA", "IGMMA", "UTCHMMA", "UTCQMMA", "UTCOMMA", "UTCIMMA")
LOADS, WAIT = ("UTMALDG",), ("SYNCS",)
GLOBAL = ("LD", "ST", "LDG", "STG", "ATOM", "ATOMG", "RED", "REDG")
LOCAL = ("LDL", "STL")
WIDE = re.compile(r"\.x(16|32|64|128)\b")
MOST_MULTIPLY, MOST_LOAD, LEAST_COVER, LEAST_IN_FLIGHT, K_BLOCK = 40, 24, 1600, 65536, 128
EXPECTED = ROOT / "scripts/audit.txt"


# ---- what is claimed of entries -----------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """A kernel of products: a thread block's rows of its tile, and columns; stages; cycles of a k-block's matrix instructions; bytes of a stage. Of a k-block: matrix instructions,
    None where their shapes say it; copies of scales; loads by TMA, None where their number is data."""
    rows: int
    columns: int
    stages: int
    cycles: float
    stage_bytes: int
    warp_rows: int            # that the warps of one loop multiply
    matrix: int
    copies: int
    loads: int                # or a tuple of numbers, each of a loop of its own
    scale_loads: int          # by the loop that brings scales
    adds: int                 # of a k-block's sums by each thread
    overlaps: bool            # an epilogue runs under the next tile's products
    commits: int = 1          # of a k-block
    most_multiply: int = MOST_MULTIPLY
    most_load: int = MOST_LOAD


def claims_of(path):
    """Instructions that a host half reckons with, by the names of its constants."""
    return {name: int(value) for name, value in re.findall(r"(\w+_INSTRUCTIONS) = (\d+)", (ROOT / path).read_text())}


def wgmma_tiles():
    """{entry: Tile} of kernels/gemm/wgmma/tiles.def. Loads: a, and b in two halves, of which a block of a pair brings one."""
    elements = {"HALF": ("bf16", "f16"), "TURNED": ("bf16", "f16"), "BYTE": ("e4m3",), "SCALED": ("e4m3_block",)}
    columns = {"TILE": "m n stages boxes pair splits block_us tile_us", "TURNS": "m n stages boxes pair block_us tile_us", "GROUPS": "m n stages boxes pair block_us tile_us",
               "BLOCKS": "m n stages boxes pair block_us tile_us", "TURNED": "at bn m n stages boxes pair splits block_us tile_us"}
    found = {}
    for kind, element in (("TILE", "HALF"), ("TURNS", "HALF"), ("TURNED", "HALF"), ("TILE", "BYTE"), ("TILE", "SCALED"), ("GROUPS", "HALF"), ("GROUPS", "TURNED"), ("GROUPS", "BYTE"), ("GROUPS", "SCALED"), ("BLOCKS", "BYTE"), ("BLOCKS", "SCALED")):
        names = ["name"] + (["parts"] if element == "SCALED" else []) + columns[kind].split()
        for row in rows("kernels/gemm/wgmma/tiles.def", f"MATMUL_{kind}_{element}", names):
            m, n, stages, pair = (int(row[x]) for x in ("m", "n", "stages", "pair"))
            suffix = {"GROUPS": "_groups", "BLOCKS": "_blocks"}.get(kind, "")
            warp_rows = 128 if kind == "TURNS" else max(64, m // 2)
            loads = None if kind == "GROUPS" else 3 - (pair == 2)
            if kind == "TURNED":      # boxes of 64 by 64; operands that lie straight are loaded as others are
                loads = (m // 64 if int(row["at"]) else 1) + (n // 64 // (1 + (pair == 2)) if int(row["bn"]) else 3 - (pair == 2) - 1)
            tile = Tile(m, n, stages, m / 64 * 4 * n / 2, (m + n) * K_BLOCK, warp_rows, None, 0, loads, 0, 0 if element in ("HALF", "TURNED") else warp_rows * n // 128, kind == "TURNS")
            for name in elements[element]:
                found[f"matmul_{name}_{row['name']}{suffix}"] = tile
    return found


def tcgen05_tiles():
    """The tiles of one multiprocessor, 128 x 128: loads of a, and of b in two halves; copies of scales: a tile of 512 bytes for each 4 scales of a row of a and of b."""
    scale_tiles = {"half": 0, "e4m3": 0, "mxfp8": 1, "mxfp4": 2, "nvfp4": 4}
    return {f"matmul_{name}_sm100": Tile(128, 128, 4, 4 * 64, 256 * K_BLOCK + 2 * count * 512, 128, 4, 2 * count, 3, 0, 0, False) for name, count in scale_tiles.items()}


def tcgen05_tile(pair, n, boxes, scale_tiles, promotes=False):
    """A row of kernels/gemm/tcgen05/tiles.def, by the formulas of tiles.h: loads of a, and of b in two halves, of which a block of a pair brings one; scales of a and of
    each 128 columns of b, of which a block of a pair brings its own. Where threads add up the sums of k-blocks (promotes), there are 8 warps for results, slots of scales, and a commit more."""
    of_b = -(-n // 128)
    stage_bytes = -(-((128 + n // pair) * K_BLOCK + (1 + of_b) * scale_tiles * 512) // 1024) * 1024
    slots = 3 * ((128 + n // (64 if n >= 128 else n // 2)) * 16 + 16) if promotes else 0
    stages = min(12, (227 * 1024 - ((8 if promotes else 4) * boxes * 4096 or (2048 if scale_tiles == 0 else 4 * 2 * 2064 if pair == 2 and n == 256 else 0)) - slots - 12 * 24 - 3 * 32 - 48) // stage_bytes)
    cycles, copies, claims = 4 * max(n / 2, (128 + n / pair) / 4), (1 + of_b) * scale_tiles, claims_of("kernels/gemm/tcgen05/tiles.c")
    most = claims["MULTIPLY_INSTRUCTIONS"] + claims["COPY_INSTRUCTIONS"] * copies + claims["SCALE_INSTRUCTIONS"] * (copies > 0) + claims["PROMOTE_INSTRUCTIONS"] * promotes
    return Tile(128, n, stages, cycles, stage_bytes, 128, 4, copies, 2 if pair == 2 else 3, 0 if scale_tiles == 0 else 2 if pair == 2 else 1 + of_b, 0, not promotes, 1 + promotes, most, claims["LOAD_INSTRUCTIONS"])


def tcgen05_tiles_of(kind, elements):
    found = {}
    lists = {"": "", "_groups": "_GROUPS"} | ({} if kind == "PROMOTED" else {"_swapped_groups": "_SWAPPED_GROUPS", "_parts": "_PARTS", "_swapped": "_SWAPPED", "_swapped_parts": "_SWAPPED", "_shared": "_SHARED", "_shared_parts": "_SHARED"})
    for suffix, list_of in lists.items():
        for row in rows("kernels/gemm/tcgen05/tiles.def", f"TILES_{kind}{list_of}", "name pair n boxes".split()):
            for element, scale_tiles in elements.items():
                tile = tcgen05_tile(int(row["pair"]), int(row["n"]), int(row["boxes"]), scale_tiles, kind == "PROMOTED")
                # boxes of a, as many as a group's rows need; swapped columns in one, and rows in two where steps may join them; of pairs that share rows half of a, or, by a pair alone, both halves
                loads = None if suffix.endswith("_groups") else (3 if scale_tiles == 0 else 2) if "swapped" in suffix else (tile.loads, tile.loads + 1) if "shared" in suffix else tile.loads
                found[f"matmul_tcgen05_{element}_{row['name']}{suffix}"] = tile._replace(loads=loads)
    return found


def tcgen05_turned():
    """Tiles of operands that lie turned: those come in boxes of 64 columns."""
    found = {}
    for row in rows("kernels/gemm/tcgen05/tiles.def", "TILES_TURNED", "name at bn pair n boxes".split()):
        pair, n = int(row["pair"]), int(row["n"])
        of_b = n // pair // 64 if int(row["bn"]) else 3 - pair
        for suffix in ("", "_parts"):
            found[f"matmul_tcgen05_half_{row['name']}{suffix}"] = tcgen05_tile(pair, n, int(row["boxes"]), 0)._replace(loads=(2 if int(row["at"]) else 1) + of_b)
    return found


def all_tiles():
    return {**wgmma_tiles(), **tcgen05_tiles(), **tcgen05_turned(), **tcgen05_tiles_of("DENSE", {"half": 0, "e4m3": 0}), **tcgen05_tiles_of("PROMOTED", {"e4m3_block": 0}), **tcgen05_tiles_of("SCALED", {"mxfp8": 1, "mxfp4": 2, "nvfp4": 4})}


# ---- counting -----------------------------------------------------------------------------------------------------------------


class Count(NamedTuple):
    image: str
    entry: str
    multiply: float           # instructions a k-block, 0: not of products
    load: float
    findings: list            # (check, how much)
    powers: int = 0           # of attention: powers of 2 by special function units, of a row's block of keys
    bound: float = 0          # of attention: its bound, of the rate of matrix instructions


def matrix_share(loop, tile):
    """k-blocks that one turn of the loop that multiplies has: by the shapes of its instructions, "HGMMA.64x256x16.F32.BF16", where they have any."""
    if tile.matrix is not None:
        return loop.count(*MATRIX) / tile.matrix
    sizes = [re.match(r"\w+\.(\d+)x(\d+)x", i.name) for i in loop.instructions if i.name.split(".")[0] in MATRIX]
    return sum(int(size[1]) * int(size[2]) for size in sizes) / (4 * tile.warp_rows * tile.columns)


def audit_multiply(loop, tile, findings):
    blocks = matrix_share(loop, tile)
    if blocks < 1 or blocks != int(blocks):
        findings.append(("formula", f"matrix instructions for {blocks:g} k-blocks in a turn"))
        return 0
    if loop.count("UTCCP") != tile.copies * blocks:
        findings.append(("formula", f"{loop.count('UTCCP') / blocks:g} copies of scales a k-block, {tile.copies} are needed"))
    if tile.matrix is not None and loop.count("UTCBAR") != tile.commits * blocks:
        findings.append(("formula", f"{loop.count('UTCBAR') / blocks:g} commits a k-block, {tile.commits} are needed"))
    beside = len(loop.instructions) / blocks - tile.adds
    if beside > tile.most_multiply:
        findings.append(("multiply", f"{beside:g}"))
    return beside + tile.adds


def audit_load(loop, tile, findings):
    brings_scales = loop.count("UTMALDG.3D", "UTMALDG.3D.MULTICAST", "UTMALDG.3D.2CTA", "UTMALDG.3D.MULTICAST.2CTA") > 0
    wanted = tile.scale_loads if brings_scales else tile.loads
    if wanted is not None and loop.count(*LOADS) not in (wanted if isinstance(wanted, tuple) else (wanted,)):
        findings.append(("formula", f"{loop.count(*LOADS)} loads by TMA a k-block, {wanted} are needed"))
    if len(loop.instructions) > tile.most_load:
        findings.append(("load", f"{len(loop.instructions)}"))
    return len(loop.instructions)


def rate_of(chip, rate):
    """Of a multiprocessor, a cycle; one that nobody knows bounds nothing."""
    return next((float(row["value"]) for row in rows("src/chip/chip.def", "CHIP_MEASURED", CHIP_MEASURED) if (row["chip"], row["rate"]) == (chip, rate)), float("inf"))


def audit_tile(tile, chip, findings):
    cycles, in_flight = tile.stages * max(tile.cycles, tile.stage_bytes / rate_of(chip, "operands")), tile.stages * tile.stage_bytes
    if cycles < LEAST_COVER and not (tile.columns <= 64 and in_flight >= LEAST_IN_FLIGHT):
        findings.append(("cover", f"{cycles:.0f}"))
    if not tile.overlaps:
        findings.append(("epilogue", "behind"))


# ---- attention ----------------------------------------------------------------------------------------------------------------

LEAST_BOUND = {64: 65, 96: 85, 128: 90, 192: 90, 256: 90}   # % of the matrix rate, of heads up to so wide; codes of heads of 64 gain nothing, as powers of 2 bind
HIDING, SELDOM = 3 * 128, 24      # what hides keys of a row: two tests and a choice each; what a largest score that has moved costs besides


def attention_tiles():
    """{entry: its row of kernels/attention/tcgen05/tiles.def, or of codes.def beside it} of those that hide by position alone."""
    columns = "name width value_width emulated scores texts codes blocks".split()
    found = {f"attention_tcgen05_{row['name']}": row for row in rows("kernels/attention/tcgen05/codes.def", "ATTENTION_TILE", columns)
             if row["scores"] == "ATTENTION_PLAIN" and row["texts"] == "0"}
    for row in rows("kernels/attention/tcgen05/tiles.def", "ATTENTION_TILE", columns):
        if row["scores"] == "ATTENTION_PLAIN" and row["texts"] == "0":
            found.update({f"attention_tcgen05_{element}_{row['name']}": row for element in ("bf16", "f16")})
    return found


def bound_of(row, issue):
    """The part of the matrix rate that a tile and a block of keys may have, in %: cycles of the four resources of a multiprocessor beside them, as src/kernel/attend.c has them, on the chip whose special function
    units the entry is for."""
    chip, pairs = "b300" if "_ex2" in row["name"] else "b200", 128 * 128
    matrix = pairs * (int(row["width"]) * (16 if row["codes"] == "ATTEND_HALVES" else 8) + int(row["value_width"]) * 16) / 256 / rate_of(chip, "mma")
    return 100 * matrix / max(matrix, pairs * (1 - int(row["emulated"]) / 8) / rate_of(chip, "ex2"), pairs * 6 / rate_of(chip, "tmem"), issue)


def audit_attention(blocks, row, findings):
    is_wide = int(row["value_width"]) > 128
    has_codes, has_key_scale, has_scales = row["codes"] != "ATTEND_HALVES", row["codes"] == "ATTEND_E4M3", row["codes"] == "ATTEND_MXFP8"
    claims, pairs, steps = claims_of("kernels/attention/tcgen05/tcgen05.c"), 128 // 2 * int(row["emulated"]) // 8, int(row["width"]) // (32 if has_codes else 16) + 128 // 16
    softens = [loop for loop in loops_around(blocks, ("STTM",), ("SYNCS", "MUFU")) if loop.count("MUFU") > 0]   # those that scale sums have none of their own
    multiplies = loops_around(blocks, MATRIX, WAIT)
    if len(softens) != 1 or len(multiplies) != 1 + is_wide:
        findings.append(("formula", f"{len(softens)} loops of softmax and {len(multiplies)} of products, one of each is wanted, of wide heads two of products"))
        return 0, 0, 0
    most = claims["SOFTEN_INSTRUCTIONS"] + claims["EMULATED_INSTRUCTIONS"] * pairs + HIDING + SELDOM + has_key_scale * claims["FACTOR_INSTRUCTIONS"]
    if len(softens[0].instructions) > most or softens[0].count(*GLOBAL) > has_key_scale:
        findings.append(("soften", f"{len(softens[0].instructions)}"))
    powers = sum(i.name.startswith("MUFU.EX2") for i in softens[0].instructions)
    if powers != 128 - 2 * pairs + 1:
        findings.append(("powers", f"{powers}"))
    turns = 4 if is_wide else 0.5   # of its loops, of a block of one tile
    each, products, copies = (turns * sum(numbers) for numbers in zip(*((len(loop.instructions), loop.count(*MATRIX), loop.count("UTCCP")) for loop in multiplies)))
    pieces = (int(row["width"]) + 63) // 64 + (int(row["value_width"]) + 63) // 64 if int(row["width"]) > 128 else 2   # of a block
    claimed = turns * claims["WIDE_INSTRUCTIONS"] if is_wide else claims["MULTIPLY_INSTRUCTIONS"] + claims["STEP_INSTRUCTIONS"] * steps + claims["PIECE_INSTRUCTIONS"] * (pieces - 2) + has_key_scale * claims["CODES_INSTRUCTIONS"] + has_scales * claims["SCALES_INSTRUCTIONS"]
    if each > claimed:
        findings.append(("issue", f"{each:g}"))
    if products != steps:
        findings.append(("formula", f"{products:g} matrix instructions of a tile's block, {steps} are needed"))
    if copies != 2 * has_scales:
        findings.append(("formula", f"{copies:g} copies of scales of a tile's block, {2 * has_scales} are needed"))
    bound = bound_of(row, len(softens[0].instructions) - HIDING - SELDOM + claims["CORRECT_INSTRUCTIONS"] + each)
    if bound < LEAST_BOUND[int(row["width"])] and not (has_codes and int(row["width"]) == 64):
        findings.append(("bound", f"{bound:.1f}"))
    return each, powers, bound


def audit_function(image, entry, blocks, tile):
    findings = []
    everything = [i for block in blocks for i in block.instructions]
    local = sum(i.name.split(".")[0] in LOCAL for i in everything)
    multiplies, loads = loops_around(blocks, MATRIX, WAIT), loops_around(blocks, LOADS, WAIT, MATRIX)
    steady = sum(loop.count(*GLOBAL) for loop in multiplies + loads)
    if local > 0:
        findings.append(("local", f"{local}"))
    if steady > 0:
        findings.append(("steady", f"{steady}"))
    narrow = sum(i.name.startswith("LDTM") and not WIDE.search(i.name) for i in everything)
    if narrow > 0:
        findings.append(("narrow", f"{narrow}"))
    attention = attention_tiles().get(entry)
    if attention is not None:
        each, powers, bound = audit_attention(blocks, attention, findings)
        return Count(image, entry, each, 0, findings, powers, bound)
    if tile is None:
        return Count(image, entry, 0, 0, findings)
    if not multiplies or not loads:
        findings.append(("formula", "there is no loop that multiplies, or none that loads"))
        return Count(image, entry, 0, 0, findings)
    counts = [audit_multiply(loop, tile, findings) for loop in multiplies], [audit_load(loop, tile, findings) for loop in loads]
    audit_tile(tile, "h200" if image.endswith(":90") else "b300", findings)
    return Count(image, entry, max(counts[0]), max(counts[1]), findings)


SPILLED = re.compile(r"(\d+) bytes spill")


def audit_image(path):
    """Counts of the entries for sm_90a and sm_100f in a fatbin; what other images are for is compiled again by these."""
    tiles, counts = all_tiles(), []
    for (kind, architecture), code in read_entries(path).items():
        if kind != "machine code" or architecture not in (90, 100) or f"{path.stem}:{architecture}" not in images():
            continue
        for entry, blocks in read_functions(disassemble(code)).items():
            if not entry.startswith("$"):
                counts.append(audit_function(f"{path.stem}:{architecture}", entry, blocks, tiles.get(entry)))
    if not counts:
        raise SystemExit(f"audit.py: {path} has no machine code for sm_90a or sm_100f: configure with -DDEEPWELL_ASSEMBLE=, which assembles all images")
    log = path.with_name(path.name + ".log")
    spilled = sum(int(bytes_) for bytes_ in SPILLED.findall(log.read_text())) if log.exists() else 0
    if spilled > 0:
        counts.append(Count(f"{path.stem}", "*", 0, 0, [("spills", f"{spilled}")]))
    return counts


def images():
    """"STEM:ARCHITECTURE" of the images that have code for sm_90a or sm_100f."""
    wanted = {"90a": 90, "100f": 100}
    return {f"{row['stem']}:{wanted[target]}" for row in rows("kernels/image.def", "CUDA_IMAGE", "stem source targets temperature constants".split()) for target in row["targets"].split() if target in wanted}


# ---- what is expected not to hold ---------------------------------------------------------------------------------------------


class Expected(NamedTuple):
    entries: str
    check: str
    most: str
    reason: str


def read_expected():
    found = []
    for number, line in enumerate(EXPECTED.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        words = line.split(None, 3)
        if len(words) != 4:
            raise SystemExit(f"audit.py: {EXPECTED.name}, line {number}: entries, check, how much at most, and a reason are wanted")
        found.append(Expected(*words))
    return found


def is_within(found, most):
    """"-": whatever it is."""
    return most == "-" or float(found) <= float(most)


def judge(counts, expected, all_of_them=True):
    """Lines of what does not hold and is not expected, and, where all entries were counted, of what is expected and holds."""
    lines, met = [], set()
    for count in counts:
        for check, found in count.findings:
            matching = [e for e in expected if e.check == check and fnmatch.fnmatchcase(count.entry, e.entries)]
            met.update(matching)
            if not any(is_within(found, e.most) for e in matching):
                beyond = f", beyond the {matching[0].most} of {EXPECTED.name}" if matching else ""
                lines.append(f"{count.image} {count.entry}: {check}: {found}{beyond}")
    seen = {count.entry for count in counts}
    for e in expected:
        if all_of_them and e not in met and any(fnmatch.fnmatchcase(entry, e.entries) for entry in seen):
            lines.append(f"{EXPECTED.name}: {e.entries} {e.check} holds by now: delete the line")
    return lines


def main():
    arguments = sys.argv[1:]
    folder = Path(arguments[arguments.index("--images") + 1]) if "--images" in arguments else ROOT / "build/images"
    named = [a for i, a in enumerate(arguments) if not a.startswith("--") and (i == 0 or arguments[i - 1] != "--images")]
    if find_nvdisasm() is None:
        raise SystemExit("audit.py: no nvdisasm: put it in PATH, name it by NVDISASM, or run scripts/nvcc.sh disassembler")
    paths = [folder / f"{stem}.fatbin" for stem in sorted({image.split(":")[0] for image in images()}) if not named or stem in named]
    missing = [str(path) for path in paths if not path.exists()]
    if missing or not paths:
        raise SystemExit(f"audit.py: no such image: {', '.join(missing or named)}")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        counts = [count for of_image in pool.map(audit_image, sorted(paths, key=lambda path: -path.stat().st_size)) for count in of_image]
    if "--table" in arguments:
        for count in sorted(counts):
            if count.multiply > 0:
                more = f"powers {count.powers:4d}  bound {count.bound:5.1f} %" if count.powers else f"load {count.load:4g}"
                print(f"{count.image:28s} {count.entry:44s} multiply {count.multiply:6g}  {more}")
    lines = judge(counts, read_expected(), not named)
    print("\n".join(lines + [f"{len(counts)} entries of {len(paths)} images: {len(lines)} findings that are not expected"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
