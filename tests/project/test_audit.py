"""The machine code of the kernels for Hopper and Blackwell holds what scripts/audit.py claims of it, but for scripts/audit.txt; and the audit finds what it is there for: in code made up
here. A third of the images for each commit (scripts/part.sh); a line of audit.txt that holds by now is found where all are read, by scripts/audit.py."""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import audit
from sass import find_nvdisasm, read_functions

MOST_BYTES = 12_000_000     # what kernels for Blackwell may add to the library

TILE = audit.Tile(rows=128, columns=128, stages=6, cycles=512, stage_bytes=32768, warp_rows=64, matrix=None, copies=0, loads=3, scale_loads=0, adds=0, overlaps=True)


def code(*, multiply=4, filler=10, loads=3, odd=""):
    """Two loops as nvdisasm prints them: one that loads and one that multiplies 64 x 128 in 4 steps, each with a wait whose way back lies behind the end."""
    lines = [".text.kernel:", "@P0 BRA `(.L_x_9)"]
    lines += [".L_x_1:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2", "@!P1 BRA `(.L_x_8)", ".L_x_2:"] + ["UTMALDG.2D [UR4], [UR6], desc[UR8]"] * loads + ["@P2 BRA `(.L_x_1)", "EXIT"]
    lines += [".L_x_9:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2", odd, *["IADD3 R1, R1, 0x1, RZ"] * filler, *["HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24"] * multiply, "@P3 BRA `(.L_x_9)", "EXIT"]
    lines += [".L_x_8:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2", "@!P1 BRA `(.L_x_8)", "BRA `(.L_x_2)"]
    text = "\n".join(line if line.startswith(".") else f"        /*{16 * i:04x}*/                   {line} ;" for i, line in enumerate(lines) if line)
    return read_functions(text)["kernel"]


def found(tile=TILE, **changed):
    return audit.audit_function("image", "kernel", code(**changed), tile).findings


def test_rules():
    assert found() == [], found()
    assert audit.audit_function("image", "kernel", code(), TILE).load == 7      # a wait, three loads, the turn; the way back of the wait as well
    assert found(multiply=5) == [("formula", "matrix instructions for 1.25 k-blocks in a turn")]
    assert found(multiply=8, filler=60) == []                                   # two k-blocks
    assert found(loads=2) == [("formula", "2 loads by TMA a k-block, 3 are needed")]
    assert found(filler=50) == [("multiply", "56")]
    assert found(filler=50, tile=TILE._replace(adds=16)) == []
    assert found(tile=TILE._replace(most_multiply=15)) == [("multiply", "16")]
    assert found(tile=TILE._replace(most_load=6)) == [("load", "7")]
    assert found(odd="LDG.E R4, desc[UR4][R2.64]") == [("steady", "1")]
    assert found(odd="LD.E R4, desc[UR4][R2.64]") == [("steady", "1")]
    assert found(odd="STL [R1], R2") == [("local", "1")]
    assert found(odd="LDTM.x8 R4, tmem[UR4]") == [("narrow", "1")]
    assert found(odd="LDTM.x16 R4, tmem[UR4]") == []
    assert found(tile=TILE._replace(stages=3)) == [("cover", "1536")]
    assert found(tile=TILE._replace(overlaps=False)) == [("epilogue", "behind")]


def test_claims():
    """What tiles by tcgen05 may take is what their estimates reckon with."""
    claims = audit.claims_of("kernels/gemm/tcgen05/tiles.c")
    plain, scaled, promoted = audit.tcgen05_tile(2, 256, 2, 0), audit.tcgen05_tile(2, 256, 2, 4), audit.tcgen05_tile(2, 256, 2, 0, True)
    assert (plain.most_multiply, plain.most_load) == (claims["MULTIPLY_INSTRUCTIONS"], claims["LOAD_INSTRUCTIONS"])
    assert scaled.most_multiply == plain.most_multiply + 12 * claims["COPY_INSTRUCTIONS"] + claims["SCALE_INSTRUCTIONS"]
    assert promoted.most_multiply == plain.most_multiply + claims["PROMOTE_INSTRUCTIONS"]


def test_judging():
    count = audit.Count("image", "kernel", 0, 0, [("load", "30")])
    expected = audit.Expected("ker*", "load", "30", "why")
    assert audit.judge([count], []) == ["image kernel: load: 30"]
    assert audit.judge([count], [expected]) == []
    assert len(audit.judge([count], [expected._replace(most="29")])) == 1
    assert audit.judge([count], [expected._replace(most="-")]) == []
    assert len(audit.judge([count._replace(findings=[])], [expected])) == 1     # it holds by now
    assert audit.judge([count._replace(findings=[])], [expected._replace(entries="other")]) == []


test_rules()
test_claims()
test_judging()
images = Path(os.environ.get("DEEPWELL_BUILD", ROOT / "build")) / "images"
if not any(images.glob("*.fatbin")):
    print("skipped: a build without GPU code")
    sys.exit(77)
size = sum(image.stat().st_size for image in images.glob("*_sm100.fatbin"))
if size > MOST_BYTES:
    sys.exit(f"images for sm_100 take {size / 1e6:.1f} MB of the library, at most {MOST_BYTES / 1e6:.0f} are allowed")
if find_nvdisasm() is None and subprocess.run(["sh", ROOT / "scripts/nvcc.sh", "disassembler"]).returncode != 0:
    print("skipped: no nvdisasm here, and none to be had from PyPI")
    sys.exit(77)
part = int(subprocess.run(["sh", ROOT / "scripts/part.sh", "3"], capture_output=True, text=True, check=True).stdout.split("/")[0])
audited = {image.split(":")[0] for image in audit.images()}
named = [row["stem"] for row in audit.rows("kernels/image.def", "CUDA_IMAGE", "stem source targets temperature constants".split())][part::3]     # as DEEPWELL_ASSEMBLE counts them
sys.exit(subprocess.run([sys.executable, ROOT / "scripts/audit.py", "--images", images, *(stem for stem in named if stem in audited)]).returncode)
