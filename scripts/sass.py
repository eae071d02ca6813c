"""Machine code of GPUs as lists of instructions: entries of fatbins, what nvdisasm makes of them, their flow and loops. Shared by machine_code.py and audit.py.

nvdisasm is the one that the environment variable NVDISASM names, or in PATH, or what scripts/nvcc.sh disassembler has fetched from PyPI to build/nvdisasm."""
import ctypes
import ctypes.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MAGIC, ENTRY_BYTES = 0xBA55ED50, 64
KINDS = {1: "PTX", 2: "machine code"}


# ---- fatbins ------------------------------------------------------------------------------------------------------------------


def unpack(payload, compressed, size):
    """What fatbins hold compressed is zstd's."""
    name = ctypes.util.find_library("zstd")
    if name is None:
        raise SystemExit("PTX in fatbins is compressed: libzstd is needed, and is not found")
    zstd, out = ctypes.CDLL(name), ctypes.create_string_buffer(size)
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    zstd.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    if zstd.ZSTD_decompress(out, size, payload[:compressed], compressed) != size:
        raise SystemExit(f"an entry of a fatbin does not unpack to its {size} bytes")
    return out.raw


def read_entries(path):
    """{(kind, architecture): bytes} of a fatbin; sim/ptx/fatbin.c says how it is built."""
    data, entries = path.read_bytes(), {}
    magic, _, at = struct.unpack_from("<IHH", data)
    if magic != MAGIC:
        raise SystemExit(f"{path}: no fatbin")
    while at + ENTRY_BYTES <= len(data):
        kind, _, header, size, compressed = struct.unpack_from("<HHIQI", data, at)
        (architecture,), (unpacked,) = struct.unpack_from("<I", data, at + 28), struct.unpack_from("<Q", data, at + 56)
        payload = data[at + header:at + header + size]
        entries[KINDS[kind], architecture] = unpack(payload, compressed, unpacked) if compressed else payload
        at += header + size
    return entries


def find_nvdisasm():
    """Its path; None: there is none."""
    return shutil.which(os.environ.get("NVDISASM", "nvdisasm")) or shutil.which(ROOT / "build/nvdisasm/nvdisasm")


def disassemble(machine_code):
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        raise SystemExit("no nvdisasm: put it in PATH, name it by NVDISASM, or run scripts/nvcc.sh disassembler")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(machine_code)
        file.flush()
        return subprocess.run([nvdisasm, file.name], check=True, capture_output=True, text=True).stdout


# ---- instructions -------------------------------------------------------------------------------------------------------------


class Instruction(NamedTuple):
    address: int
    predicate: str     # "@!P0", or ""
    name: str          # "UTMALDG.2D.MULTICAST"
    operands: str

    @property
    def targets(self):
        return LABEL.findall(self.operands)

    @property
    def ends(self):
        """Does nothing come behind it?"""
        if self.predicate or self.name.split(".")[0] not in ("BRA", "BRX", "JMP", "EXIT", "RET", "BPT"):
            return False
        return not (self.name.startswith("BRA") and re.match(r"!?U?P\d|R\d", self.operands))


LABEL = re.compile(r"\.L_x?_?\w+")
TEXT = re.compile(r"^\.text\.(\S+):")
LABEL_LINE = re.compile(r"^(\.L_\w+):")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)(.*)")


class Block:
    def __init__(self):
        self.instructions, self.next = [], []


def read_functions(text):
    """{name: (blocks, first block's index 0)} of nvdisasm's text: each function as its blocks, with the numbers of those that follow."""
    functions, blocks, labels = {}, None, None
    for line in text.splitlines():
        start = TEXT.match(line)
        if start or line.startswith("\t.section") or line.startswith("//-"):
            if blocks:
                link(blocks, labels)
            blocks = labels = None
            if start:
                blocks, labels = functions.setdefault(start[1], [Block()]), {}
            continue
        if blocks is None:
            continue
        label = LABEL_LINE.match(line)
        if label:
            if blocks[-1].instructions:
                blocks.append(Block())
            labels[label[1]] = len(blocks) - 1
            continue
        found = INSTRUCTION.match(line)
        if found:
            instruction = Instruction(int(found[1], 16), found[2] or "", found[3], found[4].strip(" ;}"))
            blocks[-1].instructions.append(instruction)
            if instruction.targets or instruction.ends:
                blocks.append(Block())
    if blocks:
        link(blocks, labels)
    return functions


def link(blocks, labels):
    for i, block in enumerate(blocks):
        last = block.instructions[-1] if block.instructions else None
        if last is not None and not last.name.startswith(("BSSY", "CALL", "WARPSYNC", "MOV")):
            block.next = [labels[target] for target in last.targets if target in labels]
        if i + 1 < len(blocks) and (last is None or not last.ends):
            block.next.append(i + 1)


# ---- loops --------------------------------------------------------------------------------------------------------------------


def order_of(blocks):
    """Blocks that are reached, in reverse postorder."""
    order, seen, stack = [], {0}, [(0, iter(blocks[0].next))]
    while stack:
        at, following = stack[-1]
        for block in following:
            if block not in seen:
                seen.add(block)
                stack.append((block, iter(blocks[block].next)))
                break
        else:
            order.append(at)
            stack.pop()
    return order[::-1]


def dominators_of(blocks, order):
    """{block: the nearest block that all ways to it go through} (Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm)."""
    number, before, over = {block: i for i, block in enumerate(order)}, {block: [] for block in order}, {order[0]: order[0]}
    for block in order:
        for following in blocks[block].next:
            before[following].append(block)
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            found = None
            for other in before[block]:
                if other not in over:
                    continue
                if found is None:
                    found = other
                    continue
                while found != other:
                    if number[found] > number[other]:
                        found = over[found]
                    else:
                        other = over[other]
            if over.get(block) != found:
                over[block] = found
                changed = True
    return over, before


def loops_of(blocks):
    """The natural loops of a function: {first block: set of its blocks}."""
    order = order_of(blocks)
    over, before = dominators_of(blocks, order)
    number, loops = {block: i for i, block in enumerate(order)}, {}
    for block in order:
        for head in blocks[block].next:
            at = block
            while number[at] > number[head]:
                at = over[at]
            if at != head:
                continue
            body, todo = loops.setdefault(head, {head}), [block]
            while todo:
                other = todo.pop()
                if other not in body:
                    body.add(other)
                    todo += before[other]
    return loops


class Loop(NamedTuple):
    """A loop's instructions, without those of loops in it that have none of what it is named for: waits, mostly."""
    instructions: list

    def count(self, *names):
        return sum(i.name.split(".")[0] in names or i.name in names for i in self.instructions)


def loops_around(blocks, names, beside=(), without=()):
    """The innermost loops that have instructions of these names and of those beside them, and none of the others, in the order of their code."""
    def has(body, names):
        return any(i.name.split(".")[0] in names for block in body for i in blocks[block].instructions)

    loops = loops_of(blocks).values()
    fit = [body for body in loops if has(body, names) and (not beside or has(body, beside)) and not has(body, without)]
    found = []
    for body in fit:
        if any(other < body for other in fit):
            continue
        waits = set().union(*(other for other in loops if other < body and not has(other, names)))
        found.append(Loop([i for block in sorted(body - waits) for i in blocks[block].instructions if i.name != "NOP"]))
    return found
