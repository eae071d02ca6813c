"""Element formats beside ml_dtypes and numpy (every code, all bf16 numbers, ten million floats), block formats beside block_rules.py.
With --write, writes the golden cases blocks.txt, which test_block.c reads, instead."""
import os
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
import python_packages

python_packages.require("numpy", "ml_dtypes")

import ml_dtypes
import numpy as np

import block_rules

F32 = np.float32
TOOL = os.path.join(os.environ.get("DEEPWELL_BUILD", "build"), "tests", "tool_num_codec")
GOLDEN = os.path.join(HERE, "blocks.txt")
SAMPLES = 10_000_000
np.seterr(all="ignore")   # NaN, infinities and overflow are among the inputs
failures = []


def tool(*arguments, data=b""):
    done = subprocess.run([TOOL, *map(str, arguments)], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise SystemExit(f"tool_num_codec {' '.join(map(str, arguments))}: {done.stderr.decode()}")
    return done.stdout


def check(claim, holds, detail=""):
    if not holds:
        failures.append(claim)
        print(f"FAILED: {claim} {detail}")


# ---- elements -----------------------------------------------------------------------------------------------------------------

# The formats, their type in ml_dtypes or numpy, and whether that type's conversion saturates.
TYPES = {
    "f16": (np.float16, False),
    "bf16": (ml_dtypes.bfloat16, False),
    "e4m3": (ml_dtypes.float8_e4m3fn, False),
    "e5m2": (ml_dtypes.float8_e5m2, False),
    "e3m2": (ml_dtypes.float6_e3m2fn, True),
    "e2m3": (ml_dtypes.float6_e2m3fn, True),
    "e2m1": (ml_dtypes.float4_e2m1fn, True),
}

# Inputs on which the two differ, and why; all else must be equal.
EXCLUDED = {
    "nan": "NaN: the packages keep its sign and another payload, and give -0 where a format has no NaN; ours is PTX's canonical NaN, or +max",
}


def storage(kind):
    return np.uint8 if np.dtype(kind).itemsize == 1 else np.uint16


def samples(kind, bits):
    """Every value of the format and every boundary between two, with neighbours, both signs; all bf16 numbers; then random floats."""
    codes = np.arange(1 << (bits - 1), dtype=storage(kind))
    values = codes.view(kind).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    beyond = 2 * values[-1] - values[-2]
    edges = np.concatenate([values, (values + np.append(values[1:], beyond)) / 2])
    edges = edges.astype(F32)
    edges = np.concatenate([edges, np.nextafter(edges, F32(np.inf)), np.nextafter(edges, F32(-np.inf))])
    all_bf16 = (np.arange(65536, dtype=np.uint32) << 16).view(F32)
    fixed = np.concatenate([edges, -edges, all_bf16, F32([3.4028235e38, -3.4028235e38, 1e-45, -1e-45])])
    generator = np.random.default_rng(7)
    count = SAMPLES - len(fixed)
    bits_any = generator.integers(0, 1 << 32, count // 2, dtype=np.uint32).view(F32)
    # The rest has exponents about those of the format.
    low, high = np.log2(values[values > 0][0]) - 3, np.log2(values[-1]) + 3
    exponents = generator.integers(max(int(low), -127), min(int(high), 127) + 1, count - count // 2)
    mantissas = generator.integers(0, 1 << 24, count - count // 2, dtype=np.uint32)
    near = ((mantissas & 0x7FFFFF) | ((mantissas >> 23) << 31) | ((exponents + 127).astype(np.uint32) << 23)).view(F32)
    return np.concatenate([fixed, bits_any, near])


def check_elements():
    for name, (kind, saturates) in TYPES.items():
        bits = {"f16": 16, "bf16": 16}.get(name) or block_rules.ELEMENTS[name].bits
        codes = np.arange(1 << bits, dtype=storage(kind))
        expected = codes.view(kind).astype(np.float64)
        found = np.frombuffer(tool("decode", name), dtype=np.float64)
        same = (found == expected) & (np.signbit(found) == np.signbit(expected)) | (np.isnan(found) & np.isnan(expected))
        check(f"{name}: every code decodes alike", same.all(), codes[~same])

        x = samples(kind, bits)
        expected = x.astype(kind).view(storage(kind)).astype(np.uint16) & ((1 << bits) - 1)
        found = np.frombuffer(tool("encode", name, "sat" if saturates else "plain", data=x.tobytes()), dtype=np.uint16)
        differ = (found != expected) & ~np.isnan(x)
        if name == "e4m3":   # where e4m3 overflows, both give NaN with the sign of x
            check("e4m3: overflow is NaN", ((found & 0x7F) == 0x7F)[np.abs(x) > 464].all())
        check(f"{name}: {len(x)} floats encode alike", not differ.any(), [(float(v), int(f), int(e)) for v, f, e in zip(x[differ][:4], found[differ], expected[differ])])
        nan_codes = np.unique(found[np.isnan(x)])
        check(f"{name}: NaN is one code", len(nan_codes) == 1)
        print(f"{name}: {1 << bits} codes, {len(x)} floats")
    for input_class, reason in EXCLUDED.items():
        print(f"excluded: {input_class}: {reason}")


# ---- blocks --------------------------------------------------------------------------------------------------------------------


def cut(data, *sizes):
    parts, at = [], 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    assert at == len(data), (at, len(data))
    return parts


def same_floats(a, b):
    return ((a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))).all()


def check_blocks(claim, x, name, layout="plain", rule="up", given=None):
    batches, rows, cols = x.shape
    data, scales, second, values, operands = block_rules.quantize(x, name, layout, rule, given)
    stdin = x.tobytes() + (b"" if given is None else given.tobytes())
    out = tool("quantize", name, layout, rule, "computed" if given is None else "given", batches, rows, cols, data=stdin)
    found = cut(out, len(data), len(scales), len(second), 4 * x.size, 2 * x.size, 1)
    claim = f"{name} {layout} {rule} {list(x.shape)}: {claim}"
    check(claim + ": data", found[0] == data)
    check(claim + ": scales", found[1] == scales)
    check(claim + ": second level", found[2] == second)
    check(claim + ": dequantised", same_floats(np.frombuffer(found[3], F32), values.reshape(-1)))
    bf16 = operands.astype(ml_dtypes.bfloat16).reshape(-1).astype(F32)
    check(claim + ": dequantised to bf16", same_floats((np.frombuffer(found[4], np.uint16).astype(np.uint32) << 16).view(F32), bf16))
    finite = np.isfinite(operands)
    normal = (operands == 0) | (np.abs(operands) >= 2.0**-126)
    check(claim + ": is_bf16_exact", bool(found[5][0]) == bool((normal | ~finite).all() and not np.isinf(operands).any()))


def with_specials(x, generator):
    """x with NaN, infinities, zeros of both signs, subnormals, whole zero blocks and powers of two with their neighbours strewn in."""
    x = x.copy()
    flat = x.reshape(-1)
    powers = np.ldexp(F32(1), generator.integers(-40, 40, 64)).astype(F32)
    special = np.concatenate([F32([np.nan, np.inf, -np.inf, 0, -0.0, 1e-45, -1e-40, 3.4e38, 1e-38, 448, 6, 57344, 28, 7.5]), powers, np.nextafter(powers, F32(0)), np.nextafter(powers, F32(np.inf))])
    where = generator.integers(0, flat.size, max(1, flat.size // 200)) if flat.size else []
    flat[where] = generator.choice(special, len(where))
    if x.shape[2] > 32:
        x[:, ::3, :32] = np.where(generator.random(x[:, ::3, :32].shape) < 0.5, F32(0), F32(-0.0))
    return x


SHAPES = [(1, 1, 1), (1, 3, 15), (1, 5, 16), (1, 7, 33), (2, 130, 70), (3, 33, 129), (1, 4, 300), (1, 0, 64), (1, 3, 0), (1, 0, 0)]


def rules_of(name):
    element_name, scale_name, *_ = block_rules.FORMATS[name]
    return ["up"] + ["floor"] * (scale_name == "e8m0") + ["search"] * (element_name == "e2m1")


def check_all_blocks():
    generator = np.random.default_rng(11)
    for name, (element_name, scale_name, height, width, level) in block_rules.FORMATS.items():
        layouts = ["plain", "tile128x4"] if scale_name != "f32" else ["plain"]
        rules = rules_of(name)
        for layout in layouts:
            for rule in rules:
                for shape in SHAPES:
                    x = generator.standard_normal(shape).astype(F32)
                    check_blocks("normal", x, name, layout, rule)
                    check_blocks("with specials", with_specials(x, generator), name, layout, rule)
        for rule in rules:
            wide = (generator.standard_normal((1, 200, 512)) * np.exp2(generator.integers(-30, 30, (1, 200, 512)))).astype(F32)
            check_blocks("wide range", wide, name, "plain", rule)
            any_bits = generator.integers(0, 1 << 32, (1, 64, 512), dtype=np.uint32).view(F32)
            check_blocks("any bits", any_bits, name, "plain", rule)
            # amax at the powers of two and at max * 2^e, and one ulp around: one block for each.
            edges = np.ldexp(F32([1.0, block_rules.ELEMENTS[element_name].max]), np.arange(-130, 125)[:, None] - 8).astype(F32).reshape(-1)
            edges = np.concatenate([edges, np.nextafter(edges, F32(0)), np.nextafter(edges, F32(np.inf))])
            check_blocks("amax at edges", np.outer(edges, F32([1, -0.5, 0.3, 0])).astype(F32).reshape(1, -1, 4), name, "plain", rule)
            check_blocks("subnormals", (generator.standard_normal((1, 8, 64)) * 1e-39).astype(F32), name, "plain", rule)
        if level is not None:
            x = generator.standard_normal((2, 9, 50)).astype(F32)
            count = 1 if level == "tensor" else 18
            for rule in rules:
                check_blocks("calibrated", x, name, "plain", rule, given=(0.5 + generator.random(count).astype(F32)) / F32(700))
                check_blocks("calibrated too small", x, name, "plain", rule, given=np.full(count, 1e-6, F32))
                check_blocks("calibrated far too small", x, name, "plain", rule, given=np.full(count, 1e-38, F32))
                check_blocks("calibrated too large", x, name, "plain", rule, given=np.full(count, 10, F32))
            x[0, 0, 0] = 1e6   # the other blocks' scales underflow under its second level
            for rule in rules:
                check_blocks("blocks that underflow", x, name, "plain", rule)
        print(f"{name}: blocks")


# ---- golden cases ----------------------------------------------------------------------------------------------------------------


def golden_text():
    generator = np.random.default_rng(3)
    lines = ["# Block quantisers: cases of block_rules.py (python3 tests/num/test_oracle.py --write), read by test_block.c.",
             "# format layout rule batches rows cols : floats : data : scales : second level, all in hexadecimal, bytes in memory order ('-': none)"]
    for name, (_, scale_name, _, _, _) in block_rules.FORMATS.items():
        for layout in ["plain", "tile128x4"] if name in ("mxfp8", "nvfp4") else ["plain"]:
            for rule in rules_of(name):
                for shape in [(1, 2, 35), (2, 1, 5)]:
                    x = generator.standard_normal(shape).astype(F32)
                    x.reshape(-1)[generator.integers(0, x.size, 3)] = generator.choice(F32([-0.0, 448, 6, 1e-40, np.inf]), 3)
                    if shape[0] == 2:
                        x[0] = np.copysign(F32(0), x[0])
                        x[1, 0, 0] = np.nan
                    data, scales, second, _, _ = block_rules.quantize(x, name, layout, rule)
                    hexes = " : ".join(part.hex() or "-" for part in (x.tobytes(), data, scales, second))
                    lines.append(f"{name} {layout} {rule} {shape[0]} {shape[1]} {shape[2]} : {hexes}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        with open(GOLDEN, "w") as file:
            file.write(golden_text())
        sys.exit(0)
    check_elements()
    check_all_blocks()
    with open(GOLDEN) as file:
        check("blocks.txt is what block_rules.py makes (--write makes it anew)", file.read() == golden_text())
    print(f"{len(failures)} failures" if failures else "all equal")
    sys.exit(1 if failures else 0)
