#!/usr/bin/env python3
"""Writes tests/sim/ptx/edge_*.ptx: every form of the scalar instructions that sm_90a has, applied to operands at the edges of its types: products a
hair below the smallest normal number, sums that two roundings would get wrong, NaNs with payloads, positions beyond the width. What an H200 makes of
them is recorded by tool_sim_ptx --record; the simulator is held against the recording.

    python3 tests/sim/make_edges.py                       writes the cases anew
    python3 tests/sim/make_edges.py --operands 2048 --out FOLDER     with more operands for each form, for a recording that is looked at and not kept"""
import argparse
import os
import random
import struct
from fractions import Fraction

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ptx")
BLOCK = 128

HEAD = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry test(.param .u64 out, .param .u64 in)
{
    .reg .b64 %out, %out2, %out4, %out8, %in, %t;
    .reg .b32 %thread, %cta;
    .reg .b64 A, B, C;
    .reg .b32 a, b, c;
    .reg .b16 x, y, z;
    ld.param.u64 %out, [out];
    ld.param.u64 %in, [in];
    mov.u32 %thread, %tid.x;
    mov.u32 %cta, %ctaid.x;
    mad.lo.u32 %thread, %cta, BLOCK, %thread;
    mul.wide.u32 %t, %thread, 24;
    add.u64 %in, %in, %t;
    mad.wide.u32 %out2, %thread, 2, %out;
    mad.wide.u32 %out4, %thread, 4, %out;
    mad.wide.u32 %out8, %thread, 8, %out;
    ld.global.u64 A, [%in];
    ld.global.u64 B, [%in+8];
    ld.global.u64 C, [%in+16];
    cvt.u32.u64 a, A;
    cvt.u32.u64 b, B;
    cvt.u32.u64 c, C;
    cvt.u16.u64 x, A;
    cvt.u16.u64 y, B;
    cvt.u16.u64 z, C;
"""

ROUNDINGS = ("rn", "rz", "rm", "rp")
NUMERIC = ("eq", "ne", "lt", "le", "gt", "ge")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
ONE = {16: "x", 32: "a", 64: "A"}
TWO = {16: "x, y", 32: "a, b", 64: "A, B"}
THREE = {16: "x, y, z", 32: "a, b, c", 64: "A, B, C"}


class Edge:
    """A kernel that applies form after form to the same triples of operands, one triple a thread."""

    def __init__(self, name, about, triples):
        self.name, self.about, self.triples = name, about, triples
        self.body, self.bytes, self.forms, self.shared = [], 0, [], False

    def add(self, form, lines, bits):
        """Lines that leave the form's result in the register d."""
        size = max(bits, 16) // 8
        text = "".join(f"        {line}\n" for line in lines)
        self.body.append(f"    {{\n{text}        st.global.b{size * 8} [%out{size}+{self.bytes}], d;\n    }}\n")
        self.bytes += len(self.triples) * size
        self.forms.append((form, size))

    def op(self, opcode, operands, bits):
        self.add(opcode, [f".reg .b{max(bits, 16)} d;", f"{opcode} d, {operands};"], bits)

    def pred(self, opcode, operands, before=(), both=True):
        """A comparison into one predicate, or into two."""
        ends = ["selp.b16 e, 2, 0, q;", "or.b16 d, d, e;"] if both else []
        self.add(opcode, [".reg .pred p, q, r;", ".reg .b16 d, e;", *before, f"{opcode} {'p|q' if both else 'p'}, {operands};", "selp.b16 d, 1, 0, p;", *ends], 16)

    def write(self, folder):
        data = b"".join(struct.pack("<3Q", *triple) for triple in self.triples)
        words = struct.unpack(f"<{len(data) // 4}I", data)
        with open(os.path.join(folder, f"edge_{self.name}.ptx"), "w") as file:
            file.write(f"// {self.about} Made by tests/sim/make_edges.py.\n// launch: grid={len(self.triples) // BLOCK} block={BLOCK}\n// out: {self.bytes}\n// vector: edge_{self.name}\n")
            for i in range(0, len(words), 24):
                file.write("// in: u32 " + " ".join(f"0x{w:x}" for w in words[i:i + 24]) + "\n")
            head = HEAD.replace("BLOCK", str(BLOCK))
            if self.shared:
                head = head.replace(".visible", f".shared .align 16 .b8 held[{8 * BLOCK}];\n.visible").replace("    .reg .b32 a,", "    .reg .b32 %local;\n    mov.u32 %local, %tid.x;\n    .reg .b32 a,")
            file.write(head)
            file.writelines(self.body)
            file.write("    ret;\n}\n")


class Format:
    """A binary floating-point format of IEEE's kind: its bits from numbers, and the other way."""

    def __init__(self, exponent, mantissa):
        self.exponent, self.mantissa = exponent, mantissa
        self.bits = 1 + exponent + mantissa
        self.bias = (1 << (exponent - 1)) - 1
        self.sign = 1 << (self.bits - 1)
        self.infinity = ((1 << exponent) - 1) << mantissa
        self.normal = 1 << mantissa

    def value(self, bits):
        e, m = (bits & self.infinity) >> self.mantissa, bits & (self.normal - 1)
        magnitude = Fraction(m if e == 0 else m | self.normal) * Fraction(2) ** (max(e, 1) - self.bias - self.mantissa)
        return -magnitude if bits & self.sign else magnitude

    def finite(self, bits):
        return bits & self.infinity != self.infinity

    def nearest(self, number):
        """The bits of the number that is nearest, ties to even; infinity beyond the largest."""
        sign, number = (self.sign if number < 0 else 0), abs(number)
        if number == 0:
            return sign
        e = number.numerator.bit_length() - number.denominator.bit_length()
        if Fraction(2) ** e > number:
            e -= 1
        e = max(e, 1 - self.bias)
        code = round(number / Fraction(2) ** (e - self.mantissa)) + ((e + self.bias - 1) << self.mantissa)
        return sign | min(code, self.infinity)

    def edges(self):
        one = self.bias << self.mantissa
        top = self.infinity
        values = [0, 1, 2, self.normal // 2, self.normal - 1, self.normal, self.normal + 1, one - 1, one, one + 1, one | self.normal >> 1, one + self.normal, one - self.normal, top - 2, top - 1,
                  top, top | 1, top | self.normal >> 1, top | self.normal - 1, top | self.normal >> 2 | 1, one + (self.mantissa << self.mantissa), one + ((self.mantissa + 1) << self.mantissa) | 1]
        return values + [v | self.sign for v in values]


F16, BF16, F32, F64 = Format(5, 10), Format(8, 7), Format(8, 23), Format(11, 52)


def any_bits(f, rng):
    return rng.getrandbits(f.bits)


def near_one(f, rng, spread):
    e = f.bias + rng.randint(-spread, spread)
    return rng.getrandbits(1) << (f.bits - 1) | max(1, min(e, 2 * f.bias - 1)) << f.mantissa | rng.getrandbits(f.mantissa)


def tiny_product(f, rng):
    """a * b a hair around the smallest normal number, c zero or tiny."""
    least = Fraction(2) ** (1 - f.bias)
    a = near_one(f, rng, f.bias // 2)
    off = Fraction(rng.choice((-1, -1, -1, 1)), 2 ** rng.randint(f.mantissa - 1, f.mantissa + 5)) * rng.randint(1, 3)
    b = f.nearest(least * (1 + off) / f.value(a))
    return a, b if f.finite(b) else f.normal, rng.choice((0, f.sign, 0, 1, f.sign | 1, f.normal, f.normal - 1))


def tie(f, rng):
    """a * b that ends half way between two numbers, and c too small to matter, but for the rounding."""
    for _ in range(200):
        a, b = near_one(f, rng, 6), near_one(f, rng, 6)
        product = f.value(a) * f.value(b)
        half = f.nearest(product)
        rest = abs(product - f.value(half))
        unit = Fraction(2) ** max(((half & f.infinity) >> f.mantissa) - f.bias - f.mantissa, 1 - f.bias - f.mantissa)
        if rest * 2 == unit:
            break
    small = f.nearest(product * Fraction(1, 2 ** rng.randint(f.mantissa + 2, max(f.mantissa + 6, min(f.bias - 8, 4 * f.mantissa + 40)))))
    return a, b, small ^ (f.sign if rng.random() < 0.5 else 0)


def cancelled(f, rng):
    a, b = near_one(f, rng, 8), near_one(f, rng, 8)
    c = f.nearest(-f.value(a) * f.value(b))
    return a, b, c ^ rng.choice((0, 0, 1, 2)) if f.finite(c) else c


def overflowing(f, rng):
    largest = f.value(f.infinity - 1)
    a = near_one(f, rng, f.bias // 2)
    b = f.nearest(largest * (1 + Fraction(rng.randint(-3, 3), 2 ** (f.mantissa + 2))) / f.value(a))
    return a, b if f.finite(b) else f.infinity - 1, rng.choice((0, f.infinity - 1, f.sign | (f.infinity - 1), 1))


def float_triples(f, count, seed, doubled=False):
    """Triples of numbers; doubled: two numbers side by side in each operand, for instructions on pairs."""
    rng = random.Random(seed)
    edges = f.edges()

    def one(i):
        if i < len(edges):
            return [edges[i], rng.choice(edges), rng.choice(edges)]
        kind = i % 8
        if kind < 2:
            return [rng.choice(edges) for _ in range(3)]
        if kind == 2:
            return [any_bits(f, rng) for _ in range(3)]
        return list((tiny_product, tie, cancelled, overflowing, lambda f, rng: (near_one(f, rng, 3), near_one(f, rng, 3), near_one(f, rng, 3)))[kind - 3](f, rng))

    triples = [one(i) for i in range(count)]
    if doubled:
        others = [one(i + 3) for i in range(count)]
        triples = [[low | high << f.bits for low, high in zip(t, o)] for t, o in zip(triples, others)]
    return triples


def integer_triples(count, seed):
    rng = random.Random(seed)
    small = [0, 1, 2, 3, 7, 8, 15, 16, 17, 23, 24, 30, 31, 32, 33, 47, 48, 62, 63, 64, 65, 96, 127, 128, 129, 192, 254, 255, 256, 257, 287, 288, 320, 0xff00, 0x10000]
    large = [0x7f, 0x80, 0xff, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff, 0x7fffff, 0x800000, 0xffffff, 0x1000000, 0x7ffffffe, 0x7fffffff, 0x80000000, 0x80000001, 0xfffffffe, 0xffffffff, 0x55555555,
             0xaaaaaaaa, 0x80008000, 0x7fff7fff, 0x80807f7f, 0x00ff00ff]

    def word(i, k):
        if i < 64 and k > 0:
            return rng.choice(small)
        if i < 64:
            return (large + small)[i % len(large + small)]
        return rng.choice((lambda: rng.choice(small), lambda: rng.choice(large), lambda: rng.getrandbits(32), lambda: (1 << rng.randrange(32)) - rng.getrandbits(1)))() & 0xffffffff

    triples = []
    for i in range(count):
        triple = [word(i, k) | word(i, 0 if k == 0 else 1) << 32 for k in range(3)]
        if i % 9 == 0:
            triple = [v if v >> 63 == 0 else v | 0xffffffff00000000 for v in triple]
        if i % 11 == 0:
            triple[1] = triple[0]
        triples.append(triple)
    return triples


# ---- integers ----

def integers(count):
    case = Edge("int", "Integer arithmetic at the edges.", integer_triples(count, 101))
    for t in ("u16", "s16", "u32", "s32", "u64", "s64"):
        bits = int(t[1:])
        for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            case.op(f"{op}.{t}", TWO[bits], bits)
        for op in ("mad.lo", "mad.hi", "sad"):
            case.op(f"{op}.{t}", THREE[bits], bits)
        if bits < 64:
            case.op(f"mul.wide.{t}", TWO[bits], bits * 2)
            case.op(f"mad.wide.{t}", TWO[bits] + (", c" if bits == 16 else ", C"), bits * 2)
        for op in ("div", "rem"):
            case.add(f"{op}.{t}", [f".reg .b{bits} d, v;", f"or.b{bits} v, {TWO[bits].split(', ')[1]}, 1;", f"{op}.{t} d, {ONE[bits]}, v;"], bits)
        if t[0] == "s":
            for op in ("abs", "neg"):
                case.op(f"{op}.{t}", ONE[bits], bits)
    for op in ("add.sat.s32", "sub.sat.s32", "mul24.lo.u32", "mul24.hi.u32", "mul24.lo.s32", "mul24.hi.s32", "add.u16x2", "add.s16x2", "min.u16x2", "max.u16x2", "min.s16x2", "max.s16x2",
               "min.relu.s16x2", "max.relu.s16x2", "min.relu.s32", "max.relu.s32"):
        case.op(op, "a, b", 32)
    for op in ("mad.hi.sat.s32", "mad24.lo.u32", "mad24.hi.u32", "mad24.lo.s32", "mad24.hi.s32", "mad24.hi.sat.s32"):
        case.op(op, "a, b, c", 32)
    for t in ("u32", "s32"):
        for u in ("u32", "s32"):
            for op in ("dp4a", "dp2a.lo", "dp2a.hi"):
                case.op(f"{op}.{t}.{u}", "a, b, c", 32)
    for t in ("u32", "s32", "u64", "s64"):
        bits = int(t[1:])
        a, b, c = THREE[bits].split(", ")
        for name, lines in (("add", (f"add.cc.{t} d, {a}, {b};", f"addc.cc.{t} e, {b}, {c};", f"addc.{t} d, d, e;")), ("sub", (f"sub.cc.{t} d, {a}, {b};", f"subc.cc.{t} e, {b}, {c};", f"subc.{t} d, d, e;")),
                            ("mad", (f"mad.lo.cc.{t} d, {a}, {b}, {c};", f"madc.hi.cc.{t} e, {a}, {b}, {c};", f"madc.lo.{t} d, d, e, {c};")),
                            ("mad.hi", (f"mad.hi.cc.{t} d, {a}, {b}, {c};", f"madc.lo.cc.{t} e, {a}, {b}, {c};", f"madc.hi.{t} d, d, e, {c};"))):
            case.add(f"{name}.cc.{t}", [f".reg .b{bits} d, e;", *lines], bits)
    return [case]


def bit_operations(count):
    case = Edge("bits", "Bits at the edges: positions, lengths and shifts beyond the width.", integer_triples(count, 102))
    for bits in (32, 64):
        for op in ("popc", "clz"):
            case.op(f"{op}.b{bits}", ONE[bits], 32)
        case.op(f"brev.b{bits}", ONE[bits], bits)
        case.op(f"bfi.b{bits}", f"{TWO[bits]}, b, c", bits)
        case.op(f"bfi.b{bits}", f"{TWO[bits]}, c, b", bits)
        for sign in "us":
            case.op(f"bfind.{sign}{bits}", ONE[bits], 32)
            case.op(f"bfind.shiftamt.{sign}{bits}", ONE[bits], 32)
            case.op(f"bfe.{sign}{bits}", f"{ONE[bits]}, b, c", bits)
            case.op(f"bfe.{sign}{bits}", f"{ONE[bits]}, c, b", bits)
    for mode in ("clamp", "wrap"):
        for t in ("u32", "s32"):
            case.op(f"szext.{mode}.{t}", "a, b", 32)
        case.op(f"bmsk.{mode}.b32", "b, c", 32)
        for direction in "lr":
            case.op(f"shf.{direction}.{mode}.b32", "a, b, c", 32)
    for offset in (1, 2, 5, 31, 32, 33, -1, -3, -32, 0):
        case.add(f"fns {offset}", [".reg .b32 d, m;", "and.b32 m, b, 31;", f"fns.b32 d, a, m, {offset};"], 32)
    for bits in (16, 32, 64):
        for op in ("and", "or", "xor"):
            case.op(f"{op}.b{bits}", TWO[bits], bits)
        for op in ("not", "cnot"):
            case.op(f"{op}.b{bits}", ONE[bits], bits)
        case.op(f"shl.b{bits}", f"{ONE[bits]}, b", bits)
        for sign in "bus":
            case.op(f"shr.{sign}{bits}", f"{ONE[bits]}, b", bits)
    for table in (0x00, 0x01, 0x10, 0x1b, 0x33, 0x3c, 0x55, 0x69, 0x78, 0x80, 0x96, 0xca, 0xe8, 0xf0, 0xfe, 0xff):
        case.op("lop3.b32", f"a, b, c, {table}", 32)
    case.op("prmt.b32", "a, b, c", 32)
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        case.op(f"prmt.b32.{mode}", "a, b, c", 32)
    return [case]


# ---- floats ----

def singles(count):
    case = Edge("f32", "Single precision at the edges.", float_triples(F32, count, 103))
    for ftz in ("", ".ftz"):
        for sat in ("", ".sat"):
            for op in ("add", "sub", "mul"):
                case.op(f"{op}{ftz}{sat}.f32", "a, b", 32)
            for rounding in ROUNDINGS:
                for op in ("add", "sub", "mul"):
                    case.op(f"{op}.{rounding}{ftz}{sat}.f32", "a, b", 32)
                for op in ("fma", "mad"):
                    case.op(f"{op}.{rounding}{ftz}{sat}.f32", "a, b, c", 32)
        for rounding in ROUNDINGS:
            case.op(f"div.{rounding}{ftz}.f32", "a, b", 32)
            for op in ("rcp", "sqrt"):
                case.op(f"{op}.{rounding}{ftz}.f32", "a", 32)
        for op in ("abs", "neg"):
            case.op(f"{op}{ftz}.f32", "a", 32)
        for op in ("min", "max"):
            for mod in ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"):
                case.op(f"{op}{ftz}{mod}.f32", "a, b", 32)
    case.op("copysign.f32", "a, b", 32)
    for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        case.add(f"testp.{test}.f32", [".reg .pred p;", ".reg .b32 d;", f"testp.{test}.f32 p, a;", "selp.b32 d, 1, 0, p;"], 32)
    return [case]


def doubles(count):
    case = Edge("f64", "Double precision at the edges, NaNs with payloads.", float_triples(F64, count, 104))
    for op in ("add", "sub", "mul", "min", "max", "copysign"):
        case.op(f"{op}.f64", "A, B", 64)
    for rounding in ROUNDINGS:
        for op in ("add", "sub", "mul", "div"):
            case.op(f"{op}.{rounding}.f64", "A, B", 64)
        for op in ("fma", "mad"):
            case.op(f"{op}.{rounding}.f64", "A, B, C", 64)
        for op in ("rcp", "sqrt"):
            case.op(f"{op}.{rounding}.f64", "A", 64)
    for op in ("abs", "neg"):
        case.op(f"{op}.f64", "A", 64)
    for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        case.add(f"testp.{test}.f64", [".reg .pred p;", ".reg .b32 d;", f"testp.{test}.f64 p, A;", "selp.b32 d, 1, 0, p;"], 32)
    return [case]


def half_forms(case, t, full):
    """full: with .ftz and .sat, which bf16 lacks."""
    ftzs, sats = (("", ".ftz"), ("", ".sat")) if full else (("",), ("",))
    for suffix, bits in (("", 16), ("x2", 32)):
        for ftz in ftzs:
            for sat in sats:
                for op in ("add", "sub", "mul"):
                    for rounding in ("", ".rn"):
                        case.op(f"{op}{rounding}{ftz}{sat}.{t}{suffix}", TWO[bits], bits)
            for end in (*sats, ".relu"):
                case.op(f"fma.rn{ftz}{end}.{t}{suffix}", THREE[bits], bits)
            for op in ("neg", "abs"):
                case.op(f"{op}{ftz}.{t}{suffix}", ONE[bits], bits)
            for op in ("min", "max"):
                for mod in ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"):
                    case.op(f"{op}{ftz}{mod}.{t}{suffix}", TWO[bits], bits)
        for relu in ("", ".relu"):
            case.op(f"fma.rn.oob{relu}.{t}{suffix}", THREE[bits], bits)


def halves(count):
    f16 = Edge("f16", "Half precision at the edges, alone and in pairs.", float_triples(F16, count, 105, True))
    half_forms(f16, "f16", True)
    bf16 = Edge("bf16", "bfloat16 at the edges, alone and in pairs.", float_triples(BF16, count, 106, True))
    half_forms(bf16, "bf16", False)
    return [f16, bf16]


# ---- comparisons ----

def comparison_targets(t, packed):
    """What set can give of such a comparison."""
    if packed:
        return ("u32", "s32", t)
    if t == "f16":
        return ("u16", "s16", "u32", "s32", "f16")
    if t == "bf16":
        return ("u16", "s16", "u32", "s32", "bf16")
    return ("u32", "s32", "f32", "f16", "bf16")


def comparisons_of(case, t, bits):
    packed, real, ftzs = t.endswith("x2"), "f" in t, ("", ".ftz") if t in ("f32", "f16", "f16x2") else ("",)
    hows = ("eq", "ne") if t[0] == "b" and not real else NUMERIC + (UNORDERED if real else ("lo", "ls", "hi", "hs") if t[0] == "u" else ())
    targets = comparison_targets(t, packed)
    both = not (real and bits == 16)
    sizes = [32 if to.endswith("x2") else int(to.lstrip("usbf")) for to in targets]
    for i, how in enumerate(hows):
        for ftz in ftzs:
            case.pred(f"setp.{how}{ftz}.{t}", TWO[bits], both=both)
            for k in range(len(targets)):
                if (i + k) % len(targets) < 2 and not (ftz and targets[k] == "bf16"):
                    case.op(f"set.{how}{ftz}.{targets[k]}.{t}", TWO[bits], sizes[k])
    before = ["setp.gt.u64 r, C, 0x3fff000000000000;"]
    for how, combine, negated in ((hows[-1], "or", "!"), (hows[1], "xor", ""), (hows[len(hows) // 2], "and", "")):
        case.pred(f"setp.{how}.{combine}.{t}", f"{TWO[bits]}, {negated}r", before, both)
        for to, size in zip(targets, sizes):
            case.add(f"set.{how}.{combine}.{to}.{t}", [".reg .pred r;", f".reg .b{size} d;", *before, f"set.{how}.{combine}.{to}.{t} d, {TWO[bits]}, {negated}r;"], size)


def with_equals(triples):
    """Every fifth pair alike, or, where they are numbers, alike but for the sign."""
    for i in range(0, len(triples), 5):
        triples[i][1] = triples[i][0]
    return triples


def comparisons(count):
    cases = []
    whole = Edge("compare_int", "Comparisons of integers, into predicates and numbers of all types; choices.", with_equals(integer_triples(count, 107)))
    for kind in "bus":
        for bits in (16, 32, 64):
            comparisons_of(whole, f"{kind}{bits}", bits)
    for t, bits in (("b16", 16), ("u16", 16), ("s16", 16), ("b32", 32), ("u32", 32), ("s32", 32), ("f32", 32), ("b64", 64), ("u64", 64), ("s64", 64), ("f64", 64)):
        case = whole
        case.op(f"slct.{t}.s32", f"{TWO[bits]}, c", bits)
        case.op(f"slct.{t}.f32", f"{TWO[bits]}, c", bits)
        case.op(f"slct.ftz.{t}.f32", f"{TWO[bits]}, c", bits)
        case.add(f"selp.{t}", [".reg .pred r;", f".reg .b{bits} d;", "setp.gt.s32 r, c, 16;", f"selp.{t} d, {TWO[bits]}, r;"], bits)
    cases.append(whole)
    for f, t, seed in ((F32, "f32", 108), (F64, "f64", 109), (F16, "f16", 110), (BF16, "bf16", 111)):
        case = Edge(f"compare_{t}", f"Comparisons of {t}, into predicates and numbers of all types.", with_equals(float_triples(f, count, seed, f.bits == 16)))
        comparisons_of(case, t, f.bits)
        if f.bits == 16:
            comparisons_of(case, t + "x2", 32)
        cases.append(case)
    return cases


# ---- conversions ----

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")


def holds(to, frm):
    """Can the one integer type represent every value of the other?"""
    if to[0] == frm[0]:
        return int(to[1:]) >= int(frm[1:])
    return to[0] == "s" and int(to[1:]) > int(frm[1:])


def whole_conversions(count):
    case = Edge("cvt_int", "Conversions of integers, to integers and floats.", integer_triples(count, 112))
    for frm in INTEGERS:
        source = ONE[max(16, int(frm[1:]))]
        for to in INTEGERS:
            if to != frm:
                case.op(f"cvt.{to}.{frm}", source, int(to[1:]))
                if not holds(to, frm):
                    case.op(f"cvt.sat.{to}.{frm}", source, int(to[1:]))
        for to in ("f16", "bf16", "f32", "f64"):
            for rounding in ROUNDINGS if to != "bf16" or frm[1:] != "8" else ():
                case.op(f"cvt.{rounding}.{to}.{frm}", source, int(to.lstrip("bf")))
        for to in ("f16", "f32", "f64"):
            case.op(f"cvt.rn.sat.{to}.{frm}", source, int(to[1:]))
    for to in ("u16", "s16"):
        case.op(f"cvt.pack.sat.{to}.s32", "a, b", 32)
    for to in ("u8", "s8", "u4", "s4", "u2", "s2"):
        case.op(f"cvt.pack.sat.{to}.s32.b32", "a, b, c", 32)
    return case


def to_integers(case, t, bits):
    for to in INTEGERS[2:] if t == "bf16" else INTEGERS:
        for rounding in ("rni", "rzi", "rmi", "rpi"):
            for ftz in (("", ".ftz") if t == "f32" else ("",)):
                for sat in ("", ".sat") if t != "bf16" else ("",):
                    case.op(f"cvt.{rounding}{ftz}{sat}.{to}.{t}", ONE[bits], int(to[1:]))


def conversion_numbers(f, narrower, count, seed):
    """Numbers at the limits of integers, and half way between numbers of narrower formats, and next to that."""
    rng = random.Random(seed)
    values = f.edges()
    for bits in (7, 8, 15, 16, 31, 32, 63, 64):
        for delta in (Fraction(-1), Fraction(-1, 2), Fraction(0), Fraction(1, 2), Fraction(-3, 2)):
            values += [f.nearest(2 ** bits + delta), f.nearest(-(2 ** bits) - delta)]
    values += [f.nearest(Fraction(n, 2)) for n in range(-5, 6)]
    while len(values) < 3 * count:
        kind = rng.randrange(8)
        n = rng.choice(narrower)
        low = any_bits(n, rng) & (n.sign - 1)
        if kind == 0 or not n.finite(low):
            values.append(any_bits(f, rng))
            continue
        if kind == 1:
            low = rng.choice((0, n.normal - 1, n.normal, n.infinity - 1, n.infinity - 2, 1, 2))
        half = n.value(low) + Fraction(2) ** (max((low & n.infinity) >> n.mantissa, 1) - n.bias - n.mantissa - 1)
        number = f.nearest(half * (1 + rng.choice((0, 0, 1, -1, 3, -3)) * Fraction(1, 2 ** rng.choice((f.mantissa, f.mantissa, n.mantissa + 3)))))
        values.append(number | rng.getrandbits(1) << (f.bits - 1))
    first = values[:count]
    rest = values[count:]
    rng.shuffle(rest)
    return [[first[i], rest[2 * i], rest[2 * i + 1]] for i in range(count)]


def single_conversions(count):
    small = [Format(4, 3), Format(5, 2), F16, BF16, Format(8, 10)]
    case = Edge("cvt_f32", "Conversions of single precision.", conversion_numbers(F32, small, count, 113))
    to_integers(case, "f32", 32)
    for ftz in ("", ".ftz"):
        for sat in ("", ".sat"):
            for rounding in ("rni", "rzi", "rmi", "rpi"):
                case.op(f"cvt.{rounding}{ftz}{sat}.f32.f32", "a", 32)
            if ftz + sat:
                case.op(f"cvt{ftz}{sat}.f32.f32", "a", 32)
            case.op(f"cvt{ftz}{sat}.f64.f32", "a", 64)
            for rounding in ROUNDINGS:
                case.op(f"cvt.{rounding}{ftz}{sat}.f16.f32", "a", 16)
    for rounding in ROUNDINGS:
        case.op(f"cvt.{rounding}.bf16.f32", "a", 16)
    for rounding in ("rn", "rz"):
        for relu in ("", ".relu"):
            case.op(f"cvt.{rounding}{relu}.tf32.f32", "a", 32)
            for finite in ("", ".satfinite"):
                for to in ("f16", "bf16"):
                    if relu + finite:
                        case.op(f"cvt.{rounding}{relu}{finite}.{to}.f32", "a", 16)
                    case.op(f"cvt.{rounding}{relu}{finite}.{to}x2.f32", "a, b", 32)
    case.op("cvt.rna.tf32.f32", "a", 32)
    case.op("cvt.rna.satfinite.tf32.f32", "a", 32)
    for relu in ("", ".relu"):
        for to in ("e4m3x2", "e5m2x2"):
            case.op(f"cvt.rn.satfinite{relu}.{to}.f32", "a, b", 16)
    return case


def double_conversions(count):
    case = Edge("cvt_f64", "Conversions of double precision.", conversion_numbers(F64, [F32, F32, F16, BF16], count, 114))
    to_integers(case, "f64", 64)
    for rounding in ROUNDINGS:
        for sat in ("", ".sat"):
            for ftz in ("", ".ftz"):
                case.op(f"cvt.{rounding}{ftz}{sat}.f32.f64", "A", 32)
            case.op(f"cvt.{rounding}{sat}.f16.f64", "A", 16)
            case.op(f"cvt.{rounding}i{sat}.f64.f64", "A", 64)
        case.op(f"cvt.{rounding}.bf16.f64", "A", 16)
    case.op("cvt.sat.f64.f64", "A", 64)
    return case


def half_conversions(count):
    cases = []
    for f, t, seed in ((F16, "f16", 115), (BF16, "bf16", 116)):
        numbers = conversion_numbers(f, [Format(4, 3), Format(5, 2)], count, seed)
        others = conversion_numbers(f, [Format(4, 3), Format(5, 2)], count, seed + 10)
        case = Edge(f"cvt_{t}", f"Conversions of {t}, alone and in pairs, and of pairs of 8 bits.", [[a | b << 16 for a, b in zip(n, reversed(o))] for n, o in zip(numbers, reversed(others))])
        to_integers(case, t, 16)
        for rounding in ("rni", "rzi", "rmi", "rpi"):
            case.op(f"cvt.{rounding}.{t}.{t}", "x", 16)
        for sat in (("", ".sat") if t == "f16" else ("",)):
            for ftz in (("", ".ftz") if t == "f16" else ("",)):
                case.op(f"cvt{ftz}{sat}.f32.{t}", "x", 32)
            case.op(f"cvt{sat}.f64.{t}", "x", 64)
        if t == "f16":
            case.op("cvt.sat.f16.f16", "x", 16)
            for rounding in ROUNDINGS:
                case.op(f"cvt.{rounding}.bf16.f16", "x", 16)
            for to in ("e4m3x2", "e5m2x2"):
                for relu in ("", ".relu"):
                    case.op(f"cvt.rn.satfinite{relu}.{to}.f16x2", "a", 16)
                    case.op(f"cvt.rn{relu}.f16x2.{to}", "x", 32)
        else:
            for rounding in ROUNDINGS:
                case.op(f"cvt.{rounding}.f16.bf16", "x", 16)
        cases.append(case)
    return cases


def conversions(count):
    return [whole_conversions(count), single_conversions(count), double_conversions(count), *half_conversions(count)]


# ---- functions that approximate, where the ISA says what they give: at zeros, infinities, NaN and subnormal numbers ----

def approximations(count):
    rng = random.Random(117)
    special = [0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x807fffff, 0x00400000, 0x80400000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 0x7fffffff]
    triples = []
    for i in range(count):
        value = special[i % len(special)] if i % 4 else rng.choice((0x3f800000, 0xbf800000, 0xff7fffff))
        wide = {0x7f800000: F64.infinity, 0xff800000: F64.infinity | F64.sign}.get(value, F64.infinity | F64.normal >> 1 if not F32.finite(value) else F64.nearest(F32.value(value)) | (value >> 31) << 63)
        triples.append([value, rng.choice(special + [0x7f000001, 0xfe800001, 0x7f7fffff]), wide if i % 3 else rng.choice((1, F64.sign | 1, F64.normal - 1, F64.infinity | F64.sign, F64.sign))])
    case = Edge("approx", "Approximate functions at zeros, infinities, NaN and subnormal numbers.", triples)
    keep = [".reg .pred p, q;", ".reg .b32 d, m;", "and.b32 m, a, 0x7fffffff;", "setp.eq.u32 p, m, 0;", "setp.ge.u32 q, m, 0x7f800000;", "or.pred p, p, q;"]
    for ftz in ("", ".ftz"):
        for op in ("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2"):
            case.add(f"{op}.approx{ftz}.f32", [*keep, f"{op}.approx{ftz}.f32 d, a;", "selp.b32 d, d, 0, p;"], 32)
    case.add("tanh.approx.f32", [*keep, "tanh.approx.f32 d, a;", "selp.b32 d, d, 0, p;"], 32)
    wide_keep = [".reg .pred p, q;", ".reg .b64 d, m;", "and.b64 m, C, 0x7fffffffffffffff;", "setp.eq.u64 p, m, 0;", "setp.ge.u64 q, m, 0x7ff0000000000000;", "or.pred p, p, q;"]
    for op in ("rcp.approx.ftz", "rsqrt.approx", "rsqrt.approx.ftz"):
        case.add(f"{op}.f64", [*wide_keep, f"{op}.f64 d, C;", "selp.b64 d, d, 0, p;"], 64)
    return [case]


# ---- atomics: what the location held, and what it holds then ----

def atomic(case, opcode, operands, bits, shared):
    """The operation on a location of the thread's own that holds the first operand; red gives nothing back."""
    size, a = bits // 8, ONE[bits]
    back = "d, " if opcode.startswith("atom") else ""
    lines = [f".reg .b{bits} d, e;"]
    if shared:
        lines += [".reg .b32 w;", "mov.u32 w, held;", "mad.lo.u32 w, %local, 8, w;", f"st.shared.b{bits} [w], {a};", f"mov.b{bits} d, 0;", f"{opcode} {back}[w], {operands};",
                  f"ld.shared.b{bits} e, [w];"]
    else:
        lines += [f"st.global.b{bits} [%out{size}+{case.bytes}], {a};", f"mov.b{bits} d, 0;", f"{opcode} {back}[%out{size}+{case.bytes}], {operands};"]
        case.bytes += len(case.triples) * size
    at = case.bytes
    case.add(opcode, lines, bits)
    if shared:
        case.body[-1] = case.body[-1].replace(f"[%out{size}+{at}], d;\n", f"[%out{size}+{at}], d;\n        st.global.b{bits} [%out{size}+{case.bytes}], e;\n")
        case.bytes += len(case.triples) * size


def atomics(count):
    cases = []
    for shared in (False, True):
        place = "shared" if shared else "global"
        tables = [("int", integer_triples(count, 118), [(f"{op}.{t}", int(t[1:])) for op, types in (("add", ("u32", "s32", "u64")), ("min", ("u32", "s32", "u64", "s64")), ("max", ("u32", "s32", "u64", "s64")),
                                                                                    ("inc", ("u32",)), ("dec", ("u32",)), ("and", ("b32", "b64")), ("or", ("b32", "b64")), ("xor", ("b32", "b64"))) for t in types]),
                  ("f32", float_triples(F32, count, 119), [("add.f32", 32)]), ("f64", float_triples(F64, count, 120), [("add.f64", 64)]),
                  ("f16", float_triples(F16, count, 121, True), [("add.noftz.f16", 16), ("add.noftz.f16x2", 32)]), ("bf16", float_triples(BF16, count, 122, True), [("add.noftz.bf16", 16), ("add.noftz.bf16x2", 32)])]
        for table, triples, forms in tables:
            if shared:   # of pairs ptxas 13.0 adds the upper half of another register
                forms = [form for form in forms if not form[0].endswith("x2")]
            case = Edge(f"atom_{place}_{table}", f"Atomics on {place} memory: {table}.", with_equals(triples))
            case.shared = shared
            for form, bits in forms:
                for kind in ("atom", "red"):
                    atomic(case, f"{kind}.{place}.{form}", TWO[bits].split(", ")[1], bits, shared)
            if table == "int":
                for t in ("b32", "b64"):
                    atomic(case, f"atom.{place}.exch.{t}", TWO[int(t[1:])].split(", ")[1], int(t[1:]), shared)
                for t in ("b16", "b32", "b64"):
                    atomic(case, f"atom.{place}.cas.{t}", THREE[int(t[1:])].split(", ", 1)[1], int(t[1:]), shared)
            cases.append(case)
    return cases


# ---- products of small matrices ----

PRODUCT_HEAD = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry test(.param .u64 out, .param .u64 in)
{
    .reg .b64 %out, %in, %t;
    .reg .b32 %lane, %cta, %a<4>, %b<4>, %c<4>, %d<4>, %m;
    ld.param.u64 %out, [out];
    ld.param.u64 %in, [in];
    mov.u32 %lane, %tid.x;
    mov.u32 %cta, %ctaid.x;
    mad.lo.u32 %lane, %cta, 32, %lane;
    mad.wide.u32 %t, %lane, 48, %in;
    ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%t];
    ld.global.v4.b32 {%b0, %b1, %b2, %b3}, [%t+16];
    ld.global.v4.b32 {%c0, %c1, %c2, %c3}, [%t+32];
    mov.b32 %m, 0xeeee4444;
    mad.wide.u32 %out, %lane, 16, %out;
"""


class Product:
    """mma.sync of one pair of types: first with c as it comes, then with the negated result as c, so that what remains shows how the sum was cut."""

    def __init__(self, name, about, codes, warps):
        self.name, self.about, self.codes, self.warps, self.body, self.bytes, self.forms = name, about, codes, warps, [], 0, []

    def form(self, opcode, a, b, half, sparse=False):
        names = {k: "{" + ", ".join(f"%{k}{i}" for i in range(n)) + "}" for k, n in (("a", a), ("b", b), ("c", 2 if half else 4), ("d", 2 if half else 4))}
        end = ", %m, 0;" if sparse else ";"
        registers = 2 if half else 4
        self.body.append("    {\n        .reg .b32 %e<4>;\n" + "".join(f"        mov.b32 %d{i}, 0;\n        mov.b32 %e{i}, 0;\n" for i in range(4)))
        self.body.append(f"        {opcode} {names['d']}, {names['a']}, {names['b']}, {names['c']}{end}\n")
        self.body += [f"        {'neg.f16x2' if half else 'neg.f32'} %e{i}, %d{i};\n" for i in range(registers)]
        e = names["c"].replace("%c", "%e")
        self.body.append(f"        st.global.v4.b32 [%out+{self.bytes}], {{%d0, %d1, %d2, %d3}};\n        {opcode} {e}, {names['a']}, {names['b']}, {e}{end}\n")
        self.bytes += 512 * self.warps
        self.body.append(f"        st.global.v4.b32 [%out+{self.bytes}], {{%e0, %e1, %e2, %e3}};\n    }}\n")
        self.bytes += 512 * self.warps
        self.forms.append((opcode, 32))

    def write(self, folder):
        with open(os.path.join(folder, f"edge_{self.name}.ptx"), "w") as file:
            file.write(f"// {self.about} Made by tests/sim/make_edges.py.\n// launch: grid={self.warps} block=32\n// out: {self.bytes}\n// vector: edge_{self.name}\n")
            for i in range(0, len(self.codes), 24):
                file.write("// in: u32 " + " ".join(f"0x{w:x}" for w in self.codes[i:i + 24]) + "\n")
            file.write(PRODUCT_HEAD)
            file.writelines(self.body)
            file.write("    ret;\n}\n")


def product_codes(f, warps, seed, half_sums):
    """Fragments of a and b in a format of so many bits, a few of them far larger than the others; of c numbers near what the sums may be."""
    rng = random.Random(seed)

    def code(spread):
        kind = rng.random()
        if kind < 0.04:
            return rng.choice((0, f.sign, 1, f.normal - 1, f.normal, f.infinity - 1 if f.exponent != 4 else 0x7e))
        e = max(0, min(f.bias + rng.randint(-spread, spread), 2 * f.bias))
        return rng.getrandbits(1) << (f.bits - 1) | e << f.mantissa | rng.getrandbits(f.mantissa)

    each, words = 32 // f.bits, []
    for warp in range(warps):
        spread = (1, 3, f.bias - 1 if f.bias < 20 else 14, 6)[warp % 4]
        special = warp % 8 == 7
        for lane in range(32):
            operands = [sum(code(spread) << (f.bits * i) for i in range(each)) for _ in range(8)]
            if f.bits == 32:
                operands = [v & 0xffffe000 for v in operands]
            if special and lane % 5 == 0:
                operands[lane % 8] = operands[lane % 8] & ~((1 << f.bits) - 1) | rng.choice((f.infinity, f.infinity | f.sign, f.infinity | f.normal >> 1, 0x7f if f.bits == 8 else f.infinity | 1))
            if half_sums:
                sums = [near_one(F16, rng, 6) | near_one(F16, rng, 6) << 16 for _ in range(4)]
            else:
                sums = [rng.choice((0, near_one(F32, rng, 12), near_one(F32, rng, 30), near_one(F32, rng, 4))) for _ in range(4)]
            words += operands + sums
    return words


def products(count):
    warps = count // 16
    e4m3, e5m2 = Format(4, 3), Format(5, 2)
    cases = []
    for a, b, f, seed in (("e4m3", "e4m3", e4m3, 130), ("e4m3", "e5m2", e5m2, 131), ("e5m2", "e4m3", e5m2, 132), ("e5m2", "e5m2", e5m2, 133)):
        for to in ("f32", "f16"):
            half = to == "f16"
            case = Product(f"mma_{a}_{b}_{to}", f"mma.sync of {a} and {b}, sums in {to}, of inputs that cancel.", product_codes(f, warps, seed, half), warps)
            case.form(f"mma.sync.aligned.m16n8k32.row.col.{to}.{a}.{b}.{to}", 4, 2, half)
            case.form(f"mma.sync.aligned.m16n8k16.row.col.{to}.{a}.{b}.{to}", 2, 1, half)
            if not half:
                case.form(f"mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.{to}.{a}.{b}.{to}", 4, 4, half, True)
            cases.append(case)
    for t, f, seed in (("f16", F16, 134), ("bf16", BF16, 135)):
        case = Product(f"mma_{t}", f"mma.sync of {t}, sums in f32, of inputs that cancel.", product_codes(f, warps, seed, False), warps)
        case.form(f"mma.sync.aligned.m16n8k16.row.col.f32.{t}.{t}.f32", 4, 2, False)
        case.form(f"mma.sync.aligned.m16n8k8.row.col.f32.{t}.{t}.f32", 2, 1, False)
        case.form(f"mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.{t}.{t}.f32", 4, 4, False, True)
        cases.append(case)
    case = Product("mma_f16_f16", "mma.sync of f16, sums in f16, of inputs that cancel.", product_codes(F16, warps, 136, True), warps)
    case.form("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", 4, 2, True)
    case.form("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", 2, 1, True)
    case.form("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16", 4, 4, True, True)
    cases.append(case)
    case = Product("mma_tf32", "mma.sync of tf32, sums in f32, of inputs that cancel.", product_codes(F32, warps, 137, False), warps)
    case.form("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, False)
    case.form("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", 2, 1, False)
    cases.append(case)
    return cases


def all_cases(count):
    return [case for family in (integers, bit_operations, singles, doubles, halves, comparisons, conversions, approximations, atomics, products) for case in family(count)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--operands", type=int, default=BLOCK)
    parser.add_argument("--out", default=FOLDER)
    options = parser.parse_args()
    cases = all_cases(options.operands)
    for case in cases:
        case.write(options.out)
    print(", ".join(f"{case.name}: {len(case.forms)} forms, {case.bytes} bytes" for case in cases))
    print(f"{sum(len(case.forms) for case in cases)} forms, {sum(case.bytes for case in cases)} bytes")


if __name__ == "__main__":
    main()
