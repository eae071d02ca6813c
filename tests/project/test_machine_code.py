"""machine_code.py: code that differs by names made of paths is the same code; other code is not, and an image that is missing is no equal one."""
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "machine_code.py"
PTX = ".visible .entry add()\n{{\n    call {name}add_onev;\n    {add};\n}}\n"


def write_fatbin(path, text):
    """One entry of PTX, as it is."""
    header = struct.pack("<HHIQI", 1, 0x101, 64, len(text), 0).ljust(64, b"\0")
    header = header[:28] + struct.pack("<I", 90) + header[32:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(header) + len(text)) + header + text)


def compare(*arguments):
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


with tempfile.TemporaryDirectory() as folder:
    before, after = Path(folder) / "before", Path(folder) / "after"
    write_fatbin(before / "add.fatbin", PTX.format(name="_ZN39_INTERNAL_f6f0e930_9_decode_cu_e3b582b17", add="add.s32 %r1, %r1, 1").encode())
    write_fatbin(after / "add.fatbin", PTX.format(name="_ZN43_INTERNAL_0123abcd_13_dequantise_cu_89abcdef7", add="add.s32 %r1, %r1, 1").encode())
    assert compare(before, after) == (0, "1 of 1 images have the same code\n"), compare(before, after)

    write_fatbin(after / "add.fatbin", PTX.format(name="_ZN43_INTERNAL_0123abcd_13_dequantise_cu_89abcdef7", add="add.s32 %r1, %r1, 2").encode())
    code, said = compare(before, after)
    assert code == 1 and "PTX for sm_90: 1 of 5 lines" in said and "+ add.s32 %r1, %r1, 2;" in said and "0 of 1 images" in said, said

    write_fatbin(before / "sub.fatbin", b"sub")
    code, said = compare(before, after, "sub")
    assert code == 1 and "sub.fatbin differs:\n  is in" in said, said

    code, said = compare(before, after, "nothing")
    assert code == 1 and "0 of 0 images" in said, said
