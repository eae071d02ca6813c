"""PTX that goes along for another family under its name (kernels/image.def: 110p) is what the compiler makes for that family, which assembles it without spills. A tenth of the images for
each commit (scripts/part.sh)."""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from machine_code import lines_of
from sass import read_entries

ROW = re.compile(r'^CUDA_IMAGE\( *(\w+), *"([^"]+)", *"[^"]*\b(\d+)p", *(\w+), *"([^"]*)"', re.M)


def differs(shipped, made, architecture):
    """Why the PTX that ships is not the compiler's; None: it is."""
    if ("PTX", architecture) not in shipped:
        return f"has no PTX for sm_{architecture}"
    if ("machine code", architecture) in shipped:
        return f"has machine code for sm_{architecture}: the row says PTX alone"
    was, now = lines_of("PTX", shipped["PTX", architecture]), lines_of("PTX", made["PTX", architecture])
    if was == now:
        return None
    return next((f"has '{a}', the compiler '{b}'" for a, b in zip(was, now) if a != b), f"has {len(was)} lines of PTX, the compiler {len(now)}")


def test_differs():
    ptx = b".target sm_110f\nmov.u32 %r1, 0;\n\0"
    made = {("PTX", 110): ptx, ("machine code", 110): b""}
    assert differs({("PTX", 110): ptx}, made, 110) is None
    assert differs({("PTX", 100): ptx}, made, 110) == "has no PTX for sm_110"
    assert differs({("PTX", 110): ptx, ("machine code", 110): b""}, made, 110).startswith("has machine code")
    assert differs({("PTX", 110): ptx.replace(b"110f", b"100f")}, made, 110) == "has '.target sm_100f', the compiler '.target sm_110f'"
    assert differs({("PTX", 110): ptx[:16]}, made, 110).startswith("has 1 lines")


def check(image, row, place):
    """What is wrong with an image, or None."""
    stem, source, architecture, kind, constants = row
    out = place / f"{stem}.fatbin"
    ran = subprocess.run(["cmake", f"-DNVCC={os.environ.get('DEEPWELL_NVCC', 'nvcc')}", f"-DSOURCE={ROOT}/kernels/{source}", f"-DOUTPUT={out}", f"-DARCHITECTURES={architecture}f", f"-DKIND={kind}",
                          f"-DCONSTANTS={constants}", f"-DINCLUDES={ROOT}/include;{ROOT}/src;{ROOT}", "-P", ROOT / "scripts/cuda_image.cmake"], capture_output=True, text=True)
    if ran.returncode != 0:
        return f"does not compile for sm_{architecture}f:\n{ran.stderr}"
    return differs(read_entries(image), read_entries(out), int(architecture))


test_differs()
images = Path(os.environ.get("DEEPWELL_BUILD", ROOT / "build")) / "images"
if not any(images.glob("*.fatbin")):
    print("skipped: a build without GPU code of its own")
    sys.exit(77)
rows = ROW.findall((ROOT / "kernels/image.def").read_text())
assert rows, "no row of kernels/image.def has PTX for another family"
part, parts = (int(word) for word in subprocess.run(["sh", ROOT / "scripts/part.sh"], check=True, capture_output=True, text=True).stdout.split("/"))
wrong = []
with tempfile.TemporaryDirectory() as folder:
    for row in rows[part::parts]:
        found = check(images / f"{row[0]}.fatbin", row, Path(folder))
        print(f"{row[0]}: {found or 'the PTX is the one for its family, which assembles without spills'}")
        wrong += [row[0]] if found else []
sys.exit(1 if wrong else 0)
