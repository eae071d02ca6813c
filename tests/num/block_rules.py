"""The block quantisers once more, in numpy, from their sources and not from src/num: OCP MX 1.0 section 6.3, PTX cvt, Transformer Engine's NVFP4
(core_nvfp4.cuh) in float32 with its order of operations. Works on whole arrays, finds elements by searching in the table of a format's
values, scales by comparing with powers of two in float64, tiles by permuting axes: other ways than the C code's."""
import numpy as np

F32 = np.float32
FLT_MAX = np.finfo(np.float32).max


def magnitudes(exponent_bits, mantissa_bits, bias, count):
    """The values of the first count magnitude codes."""
    codes = np.arange(count)
    exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    fraction = np.where(exponent == 0, mantissa, mantissa + (1 << mantissa_bits)).astype(np.float64)
    return np.ldexp(fraction, np.maximum(exponent, 1) - bias - mantissa_bits)


class Element:
    def __init__(self, bits, exponent_bits, mantissa_bits, bias, finite, nan):
        self.bits, self.nan = bits, nan
        self.values = magnitudes(exponent_bits, mantissa_bits, bias, finite)
        self.boundaries = (self.values[1:] + self.values[:-1]) / 2
        self.max = self.values[-1]
        self.exponent_max = int(np.floor(np.log2(self.max)))

    def encode(self, x):
        """Saturating, ties to the even code; NaN gives the positive NaN code."""
        magnitude = np.abs(np.asarray(x, dtype=np.float64))
        code = np.searchsorted(self.boundaries, magnitude, side="left")
        tie = (code < len(self.boundaries)) & (magnitude == np.append(self.boundaries, np.inf)[code])
        code = np.where(tie & (code % 2 == 1), code + 1, code)
        code = code | (np.signbit(x).astype(np.int64) << (self.bits - 1))
        return np.where(np.isnan(x), self.nan, code).astype(np.uint8)

    def table(self):
        """Value of every code in float32; codes past the largest finite magnitude are NaN (no infinity is ever made here)."""
        half = np.full(1 << (self.bits - 1), np.nan)
        half[: len(self.values)] = self.values
        return np.concatenate([half, -half]).astype(F32)


ELEMENTS = {
    "e4m3": Element(8, 4, 3, 7, 127, 0x7F),
    "e5m2": Element(8, 5, 2, 15, 124, 0x7F),
    "e3m2": Element(6, 3, 2, 3, 32, 0x1F),
    "e2m3": Element(6, 2, 3, 1, 32, 0x1F),
    "e2m1": Element(4, 2, 1, 1, 8, 0x7),
}

# name: element, scale, block rows, block columns (0: all), second level
FORMATS = {
    "mxfp8": ("e4m3", "e8m0", 1, 32, None),
    "mxfp8_e5m2": ("e5m2", "e8m0", 1, 32, None),
    "mxfp6_e3m2": ("e3m2", "e8m0", 1, 32, None),
    "mxfp6_e2m3": ("e2m3", "e8m0", 1, 32, None),
    "mxfp4": ("e2m1", "e8m0", 1, 32, None),
    "nvfp4": ("e2m1", "e4m3", 1, 16, "tensor"),
    "nvfp4_row": ("e2m1", "e4m3", 1, 16, "row"),
    "fp8_1x128": ("e4m3", "f32", 1, 128, None),
    "fp8_128x128": ("e4m3", "f32", 128, 128, None),
    "fp8_row": ("e4m3", "f32", 1, 0, None),
    "fp8_tensor": ("e4m3", "f32", 0, 0, None),
}


def blocks_of(x, height, width):
    """[rows, cols] -> [row blocks, column blocks, height, width], filled with zeros at the edges."""
    rows, cols = x.shape
    height, width = height or rows, width or cols
    row_blocks = -(-rows // height) if height else 1
    col_blocks = -(-cols // width) if width else 1
    full = np.zeros((row_blocks * height, col_blocks * width), dtype=x.dtype)
    full[:rows, :cols] = x
    return full.reshape(row_blocks, height, col_blocks, width).transpose(0, 2, 1, 3)


def unblock(blocks, rows, cols):
    row_blocks, col_blocks, height, width = blocks.shape
    return blocks.transpose(0, 2, 1, 3).reshape(row_blocks * height, col_blocks * width)[:rows, :cols]


def mx_scales(amax, element, rule):
    """Exponents e of 2^e, -127..127; 128 stands for NaN. amax float64 [..]."""
    safe = np.where(np.isfinite(amax) & (amax > 0), amax, 1.0)
    exponent = np.frexp(safe)[1] - 1 - element.exponent_max
    if rule == "up":
        exponent = exponent - 1
        while np.any(low := np.ldexp(element.max, exponent) < safe):
            exponent = exponent + low
    exponent = np.clip(np.where(amax == 0, -127, exponent), -127, 127)
    return np.where(np.isnan(amax), 128, np.where(np.isinf(amax), 127, exponent))


def second_level(amax):
    """S_enc, S_dec of Transformer Engine from float32 amax."""
    with np.errstate(divide="ignore", over="ignore"):
        encode = np.minimum(F32(448.0) * F32(6.0) / amax, FLT_MAX).astype(F32)
    encode = np.where((amax == 0) | (encode == 0), F32(1), encode).astype(F32)
    return encode, (F32(1) / encode).astype(F32)


def pack(codes, bits):
    """uint8 [rows, cols] -> bytes of each row: codes little-endian one after the other."""
    digits = (codes[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(digits.reshape(codes.shape[0], codes.shape[1] * bits), axis=1, bitorder="little")


def tile128x4(scales):
    """As torchao's to_blocked: pad to whole tiles, then permute axes."""
    rows, cols = -(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4
    padded = np.zeros((rows, cols), dtype=scales.dtype)
    padded[: scales.shape[0], : scales.shape[1]] = scales
    tiles = padded.reshape(rows // 128, 128, cols // 4, 4).transpose(0, 2, 1, 3)
    return tiles.reshape(-1, 4, 32, 4).transpose(0, 2, 1, 3).reshape(-1)


def search(blocks, starting, unit, candidates):
    """The search of num.h, all blocks at once. blocks float32 [.., elements]; candidates: (offered [..], inverse [..], value [..]), the first being
    the scale to start from. Returns the index of each block's choice."""
    grid = ELEMENTS["e2m1"]
    best, chosen = None, np.zeros(starting.shape, int)
    for number, (offered, inverse, value) in enumerate(candidates):
        nearest = grid.values[grid.encode(np.abs(blocks * inverse[..., None]))].astype(F32)
        squares = (np.abs(blocks) * unit[..., None] - nearest * value[..., None]).astype(F32) ** 2
        # The running sum of an axis adds one element after the other, which np.sum does not promise.
        error = np.cumsum(squares, axis=-1, dtype=F32)[..., -1] if blocks.shape[-1] else np.zeros(starting.shape, F32)
        better = np.ones(starting.shape, bool) if best is None else offered & (error < best)
        best = np.where(better, error, F32(0) if best is None else best)
        chosen = np.where(better, number, chosen)
    return chosen


def searched_mx(blocks, amax, exponent):
    halves = (exponent > -127) & np.isfinite(amax)
    inverse = np.ldexp(1.0, -np.where(exponent == 128, 0, exponent)).astype(F32)
    one = np.ones(amax.shape, F32)
    chosen = search(blocks[..., 0, :], exponent, inverse, [(halves, inverse, one), (halves, (inverse * F32(2)).astype(F32), one / F32(2))])
    return np.where(halves & (chosen == 1), exponent - 1, exponent)


def searched_nv(blocks, amax, scales, encode, decode):
    steps, table = np.array([0, -1, 1, 4, 5, 3]), ELEMENTS["e4m3"].table()
    searched = (scales > 0) & np.isfinite(amax)
    candidates = []
    for step in steps:
        code = scales.astype(int) + step
        offered = searched & (code >= 1) & (code <= 0x7E)
        value = table[np.clip(code, 1, 0x7E)]
        candidates.append((offered, np.minimum(F32(1) / (value * decode), FLT_MAX).astype(F32), value))
    chosen = search(blocks[..., 0, :], scales, np.broadcast_to(encode, scales.shape).astype(F32), candidates)
    return np.where(searched, scales + steps[chosen], scales).astype(np.uint8)


def quantize_matrix(x, name, rule, second):
    """x float32 [rows, cols]; second: S_enc, S_dec broadcastable to [rows, 1], or None. Returns codes, raw scales [row blocks, col blocks], values of
    element times scale in float32."""
    element_name, scale_name, height, width, _ = FORMATS[name]
    element = ELEMENTS[element_name]
    blocks = blocks_of(x, height, width)
    amax = np.abs(blocks).max(axis=(2, 3), initial=0)   # keeps NaN
    with np.errstate(all="ignore"):
        if scale_name == "e8m0":
            exponent = mx_scales(amax.astype(np.float64), element, "up" if rule == "search" else rule)
            if rule == "search":
                exponent = searched_mx(blocks, amax, exponent)
            scales = (exponent + 127).astype(np.uint8)
            values = np.where(exponent == 128, np.nan, np.ldexp(1.0, exponent)).astype(F32)
            codes = element.encode(np.where((exponent == 128)[..., None, None], np.nan, blocks.astype(np.float64) / np.ldexp(1.0, exponent)[..., None, None]))
        elif scale_name == "e4m3":
            encode, decode = second
            scales = ELEMENTS["e4m3"].encode(amax * (encode * F32(1.0 / 6.0)))
            if rule == "search":
                scales = searched_nv(blocks, amax, scales, encode, decode)
            values = ELEMENTS["e4m3"].table()[scales]
            factor = np.minimum(F32(1) / (values * decode), FLT_MAX)
            factor = np.where(values == 0, F32(0), np.where(np.isnan(values), F32(np.nan), factor)).astype(F32)
            codes = element.encode(blocks * factor[..., None, None])
        else:
            bounded = np.clip(amax, F32(448) * F32(2.0**-126), FLT_MAX).astype(F32)
            values = np.where(amax == 0, F32(1), bounded / F32(448)).astype(F32)
            factor = np.where(amax == 0, F32(1), F32(448) / bounded).astype(F32)
            values, factor = (np.where(np.isnan(amax), F32(np.nan), v).astype(F32) for v in (values, factor))
            scales = values.view(np.uint32)
            scales = np.where(np.isnan(amax), np.uint32(0x7FFFFFFF), scales)
            codes = element.encode(blocks * factor[..., None, None])
        products = element.table()[codes] * values[..., None, None]
    return unblock(codes, *x.shape), scales, unblock(products, *x.shape), element.table()[unblock(codes, *x.shape)]


def quantize(x, name, layout, rule, given=None):
    """x float32 [batches, rows, cols]. Returns bytes of data, scales and second level, then float32 values dequantised, and the values that
    become bf16 operands."""
    batches, rows, cols = x.shape
    element_name, scale_name, height, width, level = FORMATS[name]
    matrices = x.reshape(1, batches * rows, cols) if height == 0 else x
    second = decode = None
    if level is not None:
        magnitude = np.where(np.isnan(x), F32(0), np.abs(x)).reshape(batches * rows, cols)
        amax = magnitude.max(initial=0) if level == "tensor" else magnitude.max(axis=1, initial=0)[:, None]
        encode, decode = second_level(np.asarray(amax, dtype=F32))
        if given is not None:
            decode = given.reshape(np.shape(decode))
            encode = np.minimum(F32(1) / decode, FLT_MAX).astype(F32)
        second = np.atleast_1d(decode)
    data, scales, values, operands = [], [], [], []
    for i, matrix in enumerate(matrices):
        pair = None
        if level == "tensor":
            pair = (encode, decode)
        elif level == "row":
            pair = (encode[i * rows : (i + 1) * rows], decode[i * rows : (i + 1) * rows])
        codes, raw, products, elements = quantize_matrix(matrix, name, rule, pair)
        data.append(pack(codes, ELEMENTS[element_name].bits).tobytes())
        scales.append((tile128x4(raw) if layout == "tile128x4" else raw).tobytes())
        operands.append(elements if scale_name == "f32" else products)
        with np.errstate(all="ignore"):
            values.append(products if pair is None else products * pair[1])
    return b"".join(data), b"".join(scales), b"" if second is None else second.astype(F32).tobytes(), np.stack(values).reshape(x.shape), np.stack(operands).reshape(x.shape)
