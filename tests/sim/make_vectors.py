#!/usr/bin/env python3
"""Writes tests/sim/ptx/vector_*.ptx: for each family of instructions a kernel that applies every form to the same tricky operands, one result after
another. What hardware makes of them is recorded by tool_sim_ptx --record, run on a GPU; the simulator is held against the recording.

    python3 tests/sim/make_vectors.py            writes the cases anew"""
import itertools
import os
import random
import struct

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ptx")
THREADS = 128

FLOATS = [0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000, 0x3f800000, 0xbf800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
          0x7f800001, 0x3f800001, 0x3effffff, 0x40490fdb, 0x4b000000, 0x4b000001, 0x4f000000, 0xcf000000, 0x5f000000, 0x3f000000, 0xbf000000, 0x3fc00000,
          0x40200000, 0xc0200000, 0x42fe0000, 0x33800000, 0x477fe000, 0x477ff000, 0x38800000, 0x33000000, 0x387fc000, 0x43e00000, 0x43e80000, 0x40c00000,
          0x41e00000, 0x3e800000, 0x3b000000, 0x7e800001, 0x00400000, 0x437f8000, 0xc3000000, 0x47000000]
INTS = [0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256, 0x7fff, 0x8000, 0xffff, 0x10000, 0x7fffffff, 0x80000000, 0x80000001, 0xfffffffe,
        0xffffffff, 0x12345678, 0xdeadbeef, 0x00ff00ff, 0x80008000, 0x7fff8000]
HALVES = [0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x3c01, 0x3555, 0x4248, 0x6400, 0x3800, 0xb800]
BFS = [0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0x3f81, 0x3eab, 0x4049, 0x4b00, 0x3f00, 0xbf00]


def f64(bits32, rng):
    value = struct.unpack("<f", struct.pack("<I", bits32))[0]
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    return bits ^ (rng.getrandbits(29) if rng.random() < 0.5 and value == value and abs(value) != float("inf") and value != 0 else 0)


def pairs(values, rng, bits, count):
    """count triples: tricky ones first in mixed company, then random ones."""
    found = []
    for i in range(count):
        triple = []
        for k in range(3):
            v = values[(i * (1, 7, 11)[k] + k * 5) % len(values)] if rng.random() < 0.75 else rng.getrandbits(bits)
            triple.append(v)
        found.append(triple)
    for i, v in enumerate(values[:count]):
        found[i][0] = v
    return found


class Case:
    def __init__(self, name, about, operand_bits, triples, needs=None):
        self.name, self.about, self.bits, self.triples, self.needs = name, about, operand_bits, triples, needs
        self.body, self.results, self.bytes = [], 0, 0

    def add(self, lines, result, bits):
        """Lines that leave their result in a register of that many bits."""
        size = max(bits, 16) // 8
        self.body.append("    {\n" + "".join(f"        {line}\n" for line in lines))
        self.body.append(f"        st.global.b{size * 8} [%out{size}+{self.bytes}], {result};\n    }}\n")
        self.bytes += THREADS * size
        self.results += 1

    def op(self, opcode, operands, bits, kind="b"):
        self.add([f".reg .{kind}{bits} d;", f"{opcode} d, {operands};"], "d", bits)

    def pred(self, opcode, operands):
        self.add([".reg .pred p, q;", ".reg .b32 d, e;", f"{opcode} p|q, {operands};", "selp.b32 d, 1, 0, p;", "selp.b32 e, 2, 0, q;", "or.b32 d, d, e;"], "d", 32)

    def write(self):
        data = b"".join(struct.pack("<Q", v) for triple in self.triples for v in triple + [0])
        words = struct.unpack(f"<{len(data) // 4}I", data)
        with open(os.path.join(FOLDER, f"vector_{self.name}.ptx"), "w") as file:
            file.write(f"// {self.about} Made by tests/sim/make_vectors.py.\n// launch: block={THREADS}\n")
            if self.needs:
                file.write(f"// needs: {self.needs}\n")
            file.write(f"// out: {self.bytes}\n// vector: {self.name}\n")
            for i in range(0, len(words), 16):
                file.write("// in: u32 " + " ".join(f"0x{w:x}" for w in words[i:i + 16]) + "\n")
            target = "sm_90a" if self.needs is None or self.needs == 90 else f"sm_{self.needs}a"
            file.write(f".version {'8.6' if target != 'sm_90a' else '8.0'}\n.target {target}\n.address_size 64\n.visible .entry test(.param .u64 out, .param .u64 in)\n{{\n")
            file.write("    .reg .b64 %out, %out2, %out4, %out8, %in, %t;\n    .reg .b32 %thread;\n    .reg .b64 A, B, C;\n    .reg .b32 a, b, c;\n    .reg .b16 x, y, z;\n"
                       "    ld.param.u64 %out, [out];\n    ld.param.u64 %in, [in];\n    mov.u32 %thread, %tid.x;\n    mul.wide.u32 %t, %thread, 32;\n    add.u64 %in, %in, %t;\n"
                       "    mad.wide.u32 %out2, %thread, 2, %out;\n    mad.wide.u32 %out4, %thread, 4, %out;\n    mad.wide.u32 %out8, %thread, 8, %out;\n    ld.global.u64 A, [%in];\n    ld.global.u64 B, [%in+8];\n    ld.global.u64 C, [%in+16];\n"
                       "    cvt.u32.u64 a, A;\n    cvt.u32.u64 b, B;\n    cvt.u32.u64 c, C;\n    cvt.u16.u64 x, A;\n    cvt.u16.u64 y, B;\n    cvt.u16.u64 z, C;\n")
            file.writelines(self.body)
            file.write("    ret;\n}\n")


def integers():
    rng = random.Random(1)
    case = Case("int", "Integer arithmetic.", 32, pairs(INTS, rng, 32, THREADS))
    for t in ("u16", "s16", "u32", "s32", "u64", "s64"):
        bits = int(t[1:])
        r = {16: "x, y", 32: "a, b", 64: "A, B"}[bits]
        r3 = {16: "x, y, z", 32: "a, b, c", 64: "A, B, C"}[bits]
        for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            case.op(f"{op}.{t}", r, bits)
        for op in ("mad.lo", "mad.hi", "sad"):
            case.op(f"{op}.{t}", r3, bits)
        if bits < 64:
            case.op(f"mul.wide.{t}", r, bits * 2)
            case.op(f"mad.wide.{t}", r3.rsplit(", ", 1)[0] + (", c" if bits == 16 else ", C"), bits * 2)
        nonzero = {16: ("or.b16 v, y, 1;", "x, v"), 32: ("or.b32 v, b, 1;", "a, v"), 64: ("or.b64 v, B, 1;", "A, v")}[bits]
        for op in ("div", "rem"):
            case.add([f".reg .b{bits} d, v;", nonzero[0], f"{op}.{t} d, {nonzero[1]};"], "d", bits)
        case.op(f"shr.{t}", f"{'x' if bits == 16 else 'a' if bits == 32 else 'A'}, b", bits)
        if t[0] == "s":
            for op in ("abs", "neg"):
                case.op(f"{op}.{t}", r.split(",")[0], bits)
    for op in ("add.sat.s32", "sub.sat.s32", "mul24.lo.u32", "mul24.hi.u32", "mul24.lo.s32", "mul24.hi.s32"):
        case.op(op, "a, b", 32)
    for op in ("mad.hi.sat.s32", "mad24.lo.u32", "mad24.hi.s32"):
        case.op(op, "a, b, c", 32)
    for op in ("add.u16x2", "min.u16x2", "max.u16x2", "min.s16x2", "max.s16x2", "min.relu.s16x2", "max.relu.s16x2", "min.relu.s32", "max.relu.s32"):
        case.op(op, "a, b", 32)
    for t in ("u32", "s32"):
        for u in ("u32", "s32"):
            case.op(f"dp4a.{t}.{u}", "a, b, c", 32)
            case.op(f"dp2a.lo.{t}.{u}", "a, b, c", 32)
            case.op(f"dp2a.hi.{t}.{u}", "a, b, c", 32)
    for t in ("u32", "s32", "u64", "s64"):
        bits, r, s = (32, "a, b", "c, a") if t[1:] == "32" else (64, "A, B", "C, A")
        zero = f".reg .b{bits} d, e;"
        case.add([zero, f"add.cc.{t} d, {r};", f"addc.cc.{t} d, d, {s.split(', ')[0]};", f"addc.{t} d, d, 0;"], "d", bits)
        case.add([zero, f"sub.cc.{t} d, {r};", f"subc.cc.{t} d, d, {s.split(', ')[0]};", f"subc.{t} d, d, 0;"], "d", bits)
        case.add([zero, f"mad.lo.cc.{t} d, {r}, {s.split(', ')[0]};", f"madc.hi.{t} d, {r}, {s.split(', ')[0]};"], "d", bits)
    return case


def bits_case():
    rng = random.Random(2)
    case = Case("bits", "Bits: counts, fields, logic, shifts, bytes.", 32, pairs(INTS, rng, 32, THREADS))
    for t in ("b32", "b64"):
        r = "a" if t == "b32" else "A"
        for op in ("popc", "clz"):
            case.op(f"{op}.{t}", r, 32)
        case.op(f"brev.{t}", r, int(t[1:]))
        case.add([f".reg .b{t[1:]} d;", ".reg .b32 p, q;", "and.b32 p, b, 255;", "and.b32 q, c, 255;", f"bfi.{t} d, {r}, {'b' if t == 'b32' else 'B'}, p, q;"], "d", int(t[1:]))
    for t in ("u32", "s32", "u64", "s64"):
        r = "a" if t[1:] == "32" else "A"
        case.op(f"bfind.{t}", r, 32)
        case.op(f"bfind.shiftamt.{t}", r, 32)
        case.add([f".reg .b{t[1:]} d;", ".reg .b32 p, q;", "and.b32 p, b, 255;", "and.b32 q, c, 255;", f"bfe.{t} d, {r}, p, q;"], "d", int(t[1:]))
    for mode in ("clamp", "wrap"):
        for t in ("u32", "s32"):
            case.op(f"szext.{mode}.{t}", "a, b", 32)
        case.op(f"bmsk.{mode}.b32", "a, b", 32)
        for d in "lr":
            case.op(f"shf.{d}.{mode}.b32", "a, b, c", 32)
    case.add([".reg .b32 d, m;", "and.b32 m, b, 31;", "fns.b32 d, a, m, 2;"], "d", 32)
    case.add([".reg .b32 d, m;", "and.b32 m, b, 31;", "fns.b32 d, a, m, -1;"], "d", 32)
    case.add([".reg .b32 d, m;", "and.b32 m, b, 31;", "fns.b32 d, a, m, 0;"], "d", 32)
    for bits, r in ((16, "x, y"), (32, "a, b"), (64, "A, B")):
        for op in ("and", "or", "xor"):
            case.op(f"{op}.b{bits}", r, bits)
        case.op(f"not.b{bits}", r.split(",")[0], bits)
        case.op(f"cnot.b{bits}", r.split(",")[0], bits)
        case.op(f"shl.b{bits}", r.split(",")[0] + ", b", bits)
    for table in (0x80, 0xfe, 0x96, 0xe8, 0xca, 0x1b):
        case.op("lop3.b32", f"a, b, c, {table}", 32)
    case.op("prmt.b32", "a, b, c", 32)
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        case.op(f"prmt.b32.{mode}", "a, b, c", 32)
    return case


def floats():
    rng = random.Random(3)
    case = Case("f32", "Single precision in all rounding modes.", 32, pairs(FLOATS, rng, 32, THREADS))
    for rnd in ("", ".rn", ".rz", ".rm", ".rp"):
        for ftz in ("", ".ftz"):
            for op in ("add", "sub", "mul"):
                case.op(f"{op}{rnd}{ftz}.f32", "a, b", 32)
            if rnd:
                case.op(f"fma{rnd}{ftz}.f32", "a, b, c", 32)
                case.op(f"div{rnd}{ftz}.f32", "a, b", 32)
                case.op(f"rcp{rnd}{ftz}.f32", "a", 32)
                case.op(f"sqrt{rnd}{ftz}.f32", "a", 32)
    for op in ("add.sat", "sub.rz.sat", "mul.ftz.sat"):
        case.op(f"{op}.f32", "a, b", 32)
    case.op("fma.rn.sat.f32", "a, b, c", 32)
    for op in ("abs", "neg", "abs.ftz", "neg.ftz"):
        case.op(f"{op}.f32", "a", 32)
    case.op("copysign.f32", "a, b", 32)
    for op in ("min", "max"):
        for mod in ("", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs"):
            case.op(f"{op}{mod}.f32", "a, b", 32)
    for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        case.add([".reg .pred p;", ".reg .b32 d;", f"testp.{test}.f32 p, a;", "selp.b32 d, 1, 0, p;"], "d", 32)
    return case


def doubles():
    rng = random.Random(4)
    triples = [[f64(v & 0xffffffff, rng) for v in t] for t in pairs(FLOATS, rng, 32, THREADS)]
    case = Case("f64", "Double precision in all rounding modes.", 64, triples)
    for rnd in ("", ".rn", ".rz", ".rm", ".rp"):
        for op in ("add", "sub", "mul"):
            case.op(f"{op}{rnd}.f64", "A, B", 64)
        if rnd:
            case.op(f"fma{rnd}.f64", "A, B, C", 64)
            case.op(f"div{rnd}.f64", "A, B", 64)
            case.op(f"rcp{rnd}.f64", "A", 64)
            case.op(f"sqrt{rnd}.f64", "A", 64)
    for op in ("abs", "neg"):
        case.op(f"{op}.f64", "A", 64)
    for op in ("min", "max", "copysign"):
        case.op(f"{op}.f64", "A, B", 64)
    for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        case.add([".reg .pred p;", ".reg .b32 d;", f"testp.{test}.f64 p, A;", "selp.b32 d, 1, 0, p;"], "d", 32)
    return case


def halves():
    rng = random.Random(5)
    triples = []
    for t in pairs(list(range(len(HALVES))), rng, 32, THREADS):
        triples.append([(HALVES if i % 2 == 0 else HALVES)[v % len(HALVES)] | (HALVES[(v * 7 + 3) % len(HALVES)] << 16) if v < 1000 else v & 0xffffffff for i, v in enumerate(t)])
    case = Case("f16", "Half precision, alone and in pairs.", 32, triples)
    half_ops(case, "f16", True)
    return case


def bfloats():
    rng = random.Random(6)
    triples = []
    for t in pairs(list(range(len(BFS))), rng, 32, THREADS):
        triples.append([BFS[v % len(BFS)] | (BFS[(v * 7 + 3) % len(BFS)] << 16) if v < 1000 else v & 0xffffffff for v in t])
    case = Case("bf16", "bfloat16, alone and in pairs.", 32, triples)
    half_ops(case, "bf16", False)
    return case


def half_ops(case, t, full):
    for suffix, r, r3, bits in (("", "x, y", "x, y, z", 16), ("x2", "a, b", "a, b, c", 32)):
        one = r.split(",")[0]
        for op in ("add", "sub", "mul"):
            for mod in ([".rn", ".ftz", ".sat", ".rn.ftz.sat"] if full else [".rn"]):
                case.op(f"{op}{mod}.{t}{suffix}", r, bits)
        for mod in ([".rn", ".rn.ftz", ".rn.sat", ".rn.relu", ".rn.ftz.relu"] if full else [".rn", ".rn.relu"]):
            case.op(f"fma{mod}.{t}{suffix}", r3, bits)
        for op in ("neg", "abs"):
            case.op(f"{op}.{t}{suffix}", one, bits)
        for op in ("min", "max"):
            for mod in (["", ".ftz", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"] if full else ["", ".NaN", ".xorsign.abs"]):
                case.op(f"{op}{mod}.{t}{suffix}", r, bits)
    for how in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
        case.add([".reg .pred p;", ".reg .b32 d;", f"setp.{how}.{t} p, x, y;", "selp.b32 d, 1, 0, p;"], "d", 32)
        case.pred(f"setp.{how}.{t}x2", "a, b")


def comparisons():
    rng = random.Random(7)
    mixed = [v for pair in itertools.zip_longest(FLOATS, INTS, fillvalue=0x3f800000) for v in pair]
    triples = pairs(mixed, rng, 32, THREADS)
    for i in range(0, THREADS, 5):
        triples[i][1] = triples[i][0]
    case = Case("compare", "Comparisons into predicates and numbers, and choices by them.", 32, triples)
    for how in ("eq", "ne", "lt", "le", "gt", "ge"):
        for t, r in (("u16", "x, y"), ("s16", "x, y"), ("u32", "a, b"), ("s32", "a, b"), ("u64", "A, B"), ("s64", "A, B"), ("f32", "a, b"), ("f64", "A, B")):
            case.pred(f"setp.{how}.{t}", r)
    for how in ("lo", "ls", "hi", "hs"):
        case.pred(f"setp.{how}.u32", "a, b")
    for how in ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
        case.pred(f"setp.{how}.f32", "a, b")
        case.pred(f"setp.{how}.ftz.f32", "a, b")
        case.op(f"set.{how}.u32.f32", "a, b", 32)
        case.op(f"set.{how}.f32.f32", "a, b", 32)
    for combine in ("and", "or", "xor"):
        case.add([".reg .pred p, q, r;", ".reg .b32 d, e;", "setp.lt.s32 r, c, 5;", f"setp.gt.{combine}.s32 p|q, a, b, r;", "selp.b32 d, 1, 0, p;", "selp.b32 e, 2, 0, q;", "or.b32 d, d, e;"], "d", 32)
        case.add([".reg .pred p, q, r;", ".reg .b32 d, e;", "setp.lt.s32 r, c, 5;", f"setp.gt.{combine}.s32 p|q, a, b, !r;", "selp.b32 d, 1, 0, p;", "selp.b32 e, 2, 0, q;", "or.b32 d, d, e;"], "d", 32)
    for t, r, bits in (("u32", "a, b", 32), ("f32", "a, b", 32), ("u64", "A, B", 64), ("u16", "x, y", 16)):
        case.op(f"slct.{t}.s32", r + ", c", bits)
        case.op(f"slct.{t}.f32", r + ", c", bits)
        case.op(f"slct.ftz.{t}.f32", r + ", c", bits)
    return case


def holds(to, frm):
    """Can the one integer type represent every value of the other?"""
    to_bits, from_bits = int(to[1:]), int(frm[1:])
    if to[0] == frm[0]:
        return to_bits >= from_bits
    return to[0] == "s" and to_bits > from_bits


def conversions():
    rng = random.Random(8)
    mixed = [v for pair in itertools.zip_longest(FLOATS, INTS, fillvalue=0xc2f70000) for v in pair]
    case = Case("cvt", "Conversions between integers and floats.", 32, pairs(mixed, rng, 32, THREADS))
    register = {8: "x", 16: "x", 32: "a", 64: "A"}
    ints = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]
    for to in ints:
        for frm in ints:
            if to == frm:
                continue
            bits = max(16, int(to[1:]))
            case.op(f"cvt.{to}.{frm}", register[int(frm[1:])], bits)
            if not holds(to, frm):
                case.op(f"cvt.sat.{to}.{frm}", register[int(frm[1:])], bits)
    for to in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"):
        for mode in ("rni", "rzi", "rmi", "rpi"):
            case.op(f"cvt.{mode}.{to}.f32", "a", max(16, int(to[1:])))
        case.op(f"cvt.rni.ftz.{to}.f32", "a", max(16, int(to[1:])))
        case.op(f"cvt.rzi.{to}.f16", "x", max(16, int(to[1:])))
        case.add([f".reg .b{max(16, int(to[1:]))} d;", ".reg .f64 w;", "cvt.f64.f32 w, a;", "mul.f64 w, w, 0d3FF8000000000001;", f"cvt.rni.{to}.f64 d, w;"], "d", max(16, int(to[1:])))
    for frm in ("s8", "u16", "u32", "s32", "u64", "s64"):
        for mode in ("rn", "rz", "rm", "rp"):
            case.op(f"cvt.{mode}.f32.{frm}", register[int(frm[1:])], 32)
            case.op(f"cvt.{mode}.f64.{frm}", register[int(frm[1:])], 64)
            case.op(f"cvt.{mode}.f16.{frm}", register[int(frm[1:])], 16)
    return case


def real_conversions():
    rng = random.Random(9)
    case = Case("cvt_real", "Conversions between floats.", 32, pairs(FLOATS + [0x38000000 + 0x111111 * i for i in range(20)] + [0xc0000000 + 0x133333 * i for i in range(20)], rng, 32, THREADS))
    for mode in ("rn", "rz"):
        for mod in ("", ".relu", ".satfinite", ".relu.satfinite"):
            if mod != ".satfinite" and mod != ".relu.satfinite":
                case.op(f"cvt.{mode}{mod}.f16.f32", "a", 16)
                case.op(f"cvt.{mode}{mod}.bf16.f32", "a", 16)
                case.op(f"cvt.{mode}{mod}.f16x2.f32", "a, b", 32)
                case.op(f"cvt.{mode}{mod}.bf16x2.f32", "a, b", 32)
    for mode in ("rm", "rp"):
        case.op(f"cvt.{mode}.f16.f32", "a", 16)
    case.op("cvt.rn.ftz.f16.f32", "a", 16)
    case.op("cvt.rn.sat.f16.f32", "a", 16)
    case.op("cvt.f32.f16", "x", 32)
    case.op("cvt.ftz.f32.f16", "x", 32)
    case.op("cvt.f32.bf16", "x", 32)
    case.op("cvt.rna.tf32.f32", "a", 32)
    for mode in ("rn", "rz"):
        case.op(f"cvt.{mode}.tf32.f32", "a", 32)
        case.op(f"cvt.{mode}.relu.tf32.f32", "a", 32)
    case.op("cvt.f64.f32", "a", 64)
    case.op("cvt.ftz.f64.f32", "a", 64)
    for mode in ("rn", "rz", "rm", "rp"):
        case.add([".reg .f64 w;", ".reg .b32 d;", "cvt.f64.f32 w, a;", "mul.f64 w, w, 0d3FF0000010000001;", f"cvt.{mode}.f32.f64 d, w;"], "d", 32)
        case.add([".reg .f64 w;", ".reg .b16 d;", "cvt.f64.f32 w, a;", "mul.f64 w, w, 0d3FF0000010000001;", f"cvt.{mode}.f16.f64 d, w;"], "d", 16)
    for mode in ("rni", "rzi", "rmi", "rpi"):
        case.op(f"cvt.{mode}.f32.f32", "a", 32)
        case.op(f"cvt.{mode}.ftz.f32.f32", "a", 32)
        case.op(f"cvt.{mode}.f16.f16", "x", 16)
        case.add([".reg .f64 w, d;", "cvt.f64.f32 w, a;", f"cvt.{mode}.f64.f64 d, w;"], "d", 64)
    case.op("cvt.sat.f32.f32", "a", 32)
    case.op("cvt.ftz.sat.f32.f32", "a", 32)
    for t in ("e4m3x2", "e5m2x2"):
        for mod in ("", ".relu"):
            case.op(f"cvt.rn.satfinite{mod}.{t}.f32", "a, b", 16)
            case.op(f"cvt.rn.satfinite{mod}.{t}.f16x2", "a", 16)
            case.op(f"cvt.rn{mod}.f16x2.{t}", "x", 32)
    return case


def main():
    cases = [integers(), bits_case(), floats(), doubles(), halves(), bfloats(), comparisons(), conversions(), real_conversions()]
    for case in cases:
        case.write()
    print(", ".join(f"{case.name}: {case.results} forms" for case in cases))


if __name__ == "__main__":
    main()
