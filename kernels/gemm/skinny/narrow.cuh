/* The products of skinny.cuh in f16, for weights of 8 and 4 bits: their elements are f16 numbers after one conversion or a few bit operations on four bytes at a
 * time, and scales multiply sums of 32 k (MX), of a step (blocks of 128), or pairs (NVFP4, exactly).
 *
 *   b of a step       ring in smem -> ldmatrix -> dequantised to f16 pairs -> mma.sync
 *   its block scales  ring -> each dequantised by one lane -> a warp's table in smem -> all lanes
 *   a of a slab       gmem -> reg -> f16 in smem, a row's 32 k as 64 bytes: 16 for each of a quad's four lanes
 *
 * An element of a is one f16 number. Where its format has a longer range (bf16, MX), 256 k of a row, a span, are multiplied by a power of two that brings the largest
 * of them into [2^14, 2^15): elements down to 2^-31 of it are exact, lesser ones are off by 2^-39 of it at most. Pairs of e2m1 carry 2^-14, which alpha gives back.
 * What the machine has least of are bit operations, 16 lanes a cycle: of e2m1 they are 9 for 8 elements. Chips of the sm_100 family convert pairs of them, 4 instructions for 8 elements; there 2^-14 is
 * a factor of a's rows. */
#ifndef KERNELS_GEMM_SKINNY_NARROW_CUH
#define KERNELS_GEMM_SKINNY_NARROW_CUH

INLINE bool is_mx(const skinny_shape s) { return s.weights >= SKINNY_MXFP8 && s.weights <= SKINNY_MXFP4; }

#if defined(PTX_HAS_DECODE)
enum { NARROW_CONVERTS = 1 };      /* pairs of e2m1 are neighbours, as an instruction gives them */
#else
enum { NARROW_CONVERTS = 0 };
#endif

/* ---- a ---- */

enum { NARROW_SPAN = 256 };

/* Bytes from a row's 32 k to the next: not a multiple of 128, so that a warp's units of one row do not lie in the same banks. */
INLINE int group_pitch(const skinny_shape s, int rows) { return rows * 64 + (s.narrow ? SKINNY_NARROW_PAD : 0); }

INLINE float power_of_two(int exponent) { return __uint_as_float((uint32_t)(exponent + 127) << 23); }
/* Any exponent, in two steps. */
INLINE float times_power(float x, int exponent) { return x * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2); }

/* By which power of two a span is multiplied; largest: the bits of its largest finite magnitude. By 2^126 at most, as the inverse is to be a number of fp32 that is not subnormal: what is that
 * small has the few digits of a bf16 or MX number left, all of which f16 holds. */
INLINE int range_exponent(uint32_t largest) {
    const int exponent = 14 - (largest < 0x00800000 ? -118 - __clz((int)largest) : (int)(largest >> 23) - 127);
    return largest == 0 ? 0 : min(exponent, 126);
}

/* count elements of bits bits each from element at on, a multiple of 8, as they lie, and zeros behind them: for rows whose units cannot be read whole. */
static __device__ __noinline__ uint4 gather_unit(int bits, const uint8_t *row, int at, int count) {
    uint32_t words[4] = {0, 0, 0, 0};
    row += (int64_t)at * bits / 8;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int left = count * bits - i * 8;
        if (left > 0) words[i / 4] |= (row[i] & (left < 8 ? 15u : 255u)) << i % 4 * 8;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Spans of a slab go to the warps in turn, row by row; each lane has eight elements of one. */
typedef struct narrow_spans { int row, span, count; } narrow_spans;

enum { NARROW_TOGETHER = 6 };

/* Units of a that a lane has on their way at a time, and what scales they have: codes, or the bits of fp32. whole: rows are read by whole units. */
typedef struct narrow_batch { uint4 raw[NARROW_TOGETHER]; uint32_t scales[NARROW_TOGETHER]; bool whole; } narrow_batch;

INLINE void next_spans(narrow_spans *n, int step) {
    for (n->span += step; n->span >= n->count; n->row++) n->span -= n->count;
}

INLINE bool is_scaled(const skinny_arguments *g) { return g->a.scale == MATMUL_e8m0 || g->a.scale == MATMUL_e4m3; }

/* Has a fp32 scales of blocks of 128? They are factors of sums. */
INLINE bool has_block_factors(const skinny_arguments *g, const skinny_shape s) { return s.weights == SKINNY_E4M3_BLOCK && g->a.scale == MATMUL_f32; }

/* Unit j of the batch: this lane's of span n of a slab that begins with step first. */
INLINE void fetch_span(const skinny_arguments *g, const skinny_shape s, int first, const narrow_spans *n, narrow_batch *batch, const int j) {
    const int bits = format_bits(g->a.format), element = first * step_depth(s) + n->span * NARROW_SPAN + threadIdx.x % 32 * 8;
    batch->raw[j] = make_uint4(0, 0, 0, 0);
    batch->scales[j] = 0;
    if (n->row >= g->m || element >= g->k) return;
    const uint8_t *data = rows_of_a(g, s) + n->row * g->a.row_bytes;
    if (batch->whole) batch->raw[j] = raw_unit(bits, data + (int64_t)element * bits / 8);
    else batch->raw[j] = gather_unit(bits, data, element, min(8, g->k - element));
    if (!is_scaled(g) && !has_block_factors(g, s)) return;
    const int64_t at = scale_index(&g->a.scales, scales_of_row(&g->a.scales, n->row), element / g->a.block);
    batch->scales[j] = is_scaled(g) ? ((const uint8_t *)g->a.scales.data)[at] : ((const uint32_t *)g->a.scales.data)[at];
}

/* The first spans of a slab that are this warp's; n becomes the next one. */
INLINE narrow_spans fetch_spans(const skinny_arguments *g, const skinny_shape s, int first, int steps, narrow_batch *batch) {
    narrow_spans n = {0, 0, (steps * step_depth(s) + NARROW_SPAN - 1) / NARROW_SPAN};
    next_spans(&n, threadIdx.x / 32);
    batch->whole = is_whole(g, s);
#pragma unroll
    for (int j = 0; j < NARROW_TOGETHER; j++) {
        fetch_span(g, s, first, &n, batch, j);
        next_spans(&n, warp_count(s));
    }
    return n;
}

/* Eight numbers of f16, neighbours in pairs, to their places in the slab: unit u of row row. */
INLINE void store_pairs(const skinny_shape s, uint32_t slab, int unit, int row, int rows, const uint4 pairs) {
    const uint32_t block = slab + unit / 4 * group_pitch(s, rows) + row * 64;
    if (bits_of(s) == 4) {
        st_shared_u32x4(block + unit % 4 * 16, NARROW_CONVERTS ? pairs : ordered_pairs(s, pairs));
    } else {
        const uint32_t to = block + unit % 2 * 32 + unit % 4 / 2 * 8;
        st_shared_u32x2(to, pairs.x, pairs.y);
        st_shared_u32x2(to + 16, pairs.z, pairs.w);
    }
}

/* Eight codes of e4m3, which are f16 numbers as they are. */
INLINE uint4 pairs_of_codes(const uint4 raw) {
    return make_uint4(cvt_f16x2_e4m3x2((uint16_t)raw.x), cvt_f16x2_e4m3x2((uint16_t)(raw.x >> 16)), cvt_f16x2_e4m3x2((uint16_t)raw.y), cvt_f16x2_e4m3x2((uint16_t)(raw.y >> 16)));
}

/* Are a's elements such codes, which nothing multiplies before the product? */
INLINE bool is_codes(const skinny_arguments *g) { return g->a.format == MATMUL_e4m3 && !g->ranged && !is_scaled(g); }

#include "kernels/gemm/skinny/quantise.cuh"

/* The span's numbers are brought into the range of f16; returns what undoes that. All lanes of the warp. */
INLINE float bring_into_range(float x[8]) {
    uint32_t most = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const uint32_t bits = __float_as_uint(x[e]) & 0x7fffffff;
        most = max(most, bits < 0x7f800000 ? bits : 0);
    }
    const int exponent = range_exponent(redux_max(most));
    const float low = power_of_two(exponent / 2), high = power_of_two(exponent - exponent / 2);
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = x[e] * low * high;
    return times_power(1, -exponent);
}

/* Any other unit as pairs of f16; *factor: of its sums. scale: as fetch_span has it. All lanes of the warp. */
INLINE uint4 pairs_of_unit(const skinny_arguments *g, const skinny_shape s, uint32_t amax, int row, const uint4 raw, uint32_t scale, float *factor) {
    float x[8];
    floats_of_unit(g->a.format, raw, x);
    if (g->quantised != 0) *factor = quantise_unit(g->quantised, bits_of(s) == 4 && g->searches, has_row_scales(g->quantised) ? row_amax(g, s, amax, row) : 0, x);
    if (is_scaled(g)) {
        const float by = g->a.scale == MATMUL_e8m0 ? float_of_e8m0(scale) : cvt_f32_f16((uint16_t)cvt_f16x2_e4m3x2((uint16_t)scale));
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] *= by;
    }
    if (g->ranged) *factor *= bring_into_range(x);
    return make_uint4(cvt_f16x2(x[0], x[1]), cvt_f16x2(x[2], x[3]), cvt_f16x2(x[4], x[5]), cvt_f16x2(x[6], x[7]));
}

/* The part of a that belongs to steps [first, first + steps): f16 numbers, and behind them what sums of a step are multiplied by, [steps][m]: powers of two that undo
 * the spans', times fp32 scales of blocks of 128. batch, n: of fetch_spans; amax: of find_row_amax. */
INLINE void fill_narrow(const skinny_arguments *g, const skinny_shape s, uint32_t slab, uint32_t slab_factors, uint32_t amax, int first, int steps, narrow_batch *batch,
                        narrow_spans *n) {
    const int lane = threadIdx.x % 32, step_units = step_depth(s) / 8;
    const bool as_codes = is_codes(g);
    narrow_spans own = {0, 0, n->count};
    next_spans(&own, threadIdx.x / 32);
#pragma unroll 1
    while (own.row < g->m) {
        const int unit = own.span * (NARROW_SPAN / 8) + lane, step = unit / step_units;
        float factor = has_block_factors(g, s) ? __uint_as_float(batch->scales[0]) : 1;
        const uint4 pairs = as_codes ? pairs_of_codes(batch->raw[0]) : pairs_of_unit(g, s, amax, own.row, batch->raw[0], batch->scales[0], &factor);
        if (NARROW_CONVERTS && bits_of(s) == 4) factor *= 0x1p-14f;
        if (step < steps) {
            store_pairs(s, slab, unit, own.row, g->m, pairs);
            if (lane % step_units == 0) st_shared_f32(slab_factors + (step * g->m + own.row) * 4, factor);
        }
#pragma unroll
        for (int j = 0; j < NARROW_TOGETHER - 1; j++) batch->raw[j] = batch->raw[j + 1], batch->scales[j] = batch->scales[j + 1];
        fetch_span(g, s, first, n, batch, NARROW_TOGETHER - 1);
        next_spans(n, warp_count(s));
        next_spans(&own, warp_count(s));
    }
}

/* ---- b ---- */

/* Where this lane's row of the first matrices of a stage begins: lanes 0 to 7 name rows 0 to 7, the next eight rows 8 to 15, and so again 16 bytes further; the words
 * of scales that it has brought; and the warp's table of scales, [16 rows][16 or 32 bytes], in its own part of what takes the sums when a tile ends. */
typedef struct narrow_place { uint32_t matrices, scales, table; } narrow_place;

INLINE narrow_place narrow_place_of(const skinny_shape s, uint32_t sums) {
    const uint32_t lane = threadIdx.x % 32, row = lane % 16;
    return (narrow_place){threadIdx.x / 32 * (16 * SKINNY_STEP_BYTES) + row * SKINNY_STEP_BYTES + (lane / 16 ^ swizzle(row)) * 16, thread_count(s) * 64 + threadIdx.x * 4,
                          sums + threadIdx.x / 32 * (s.tiles * 8 * SKINNY_SUM_PITCH * 4)};
}

/* Neighbours in a word of e2m1 codes where an instruction converts them; else elements j and j + 4, times 2^-14: a code's three low bits are the low bits of f16's exponent and the first of its fraction, all in its upper
 * byte. */
INLINE void half_pairs_of_e2m1(uint32_t word, uint32_t pairs[4]) {
#if defined(PTX_HAS_DECODE)
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = cvt_f16x2_e2m1x2(word, i);
#else
    const uint32_t shifted = word << 4, odd = (word & 0x80808080) | (word >> 3 & 0x0e0e0e0e), even = (shifted & 0x80808080) | (word << 1 & 0x0e0e0e0e);
    pairs[0] = prmt(even, 0, 0x2404);
    pairs[1] = prmt(odd, 0, 0x2404);
    pairs[2] = even & 0xff00ff00;
    pairs[3] = odd & 0xff00ff00;
#endif
}

INLINE uint32_t half_pair_of(const skinny_shape s, uint32_t codes) {
    return s.weights == SKINNY_MXFP8_E5M2 ? cvt_f16x2_e5m2x2((uint16_t)codes) : cvt_f16x2_e4m3x2((uint16_t)codes);
}

static __device__ __noinline__ uint4 floats_of_any_e8m0(uint32_t word) {
    return make_uint4(__float_as_uint(float_of_e8m0(word & 0xff)), __float_as_uint(float_of_e8m0(word >> 8 & 0xff)), __float_as_uint(float_of_e8m0(word >> 16 & 0xff)),
                      __float_as_uint(float_of_e8m0(word >> 24)));
}

/* Four E8M0 codes as fp32; those of 2^-127 and NaN, which are no exponents of fp32, aside. */
INLINE uint4 floats_of_e8m0(uint32_t word) {
    const uint32_t low = word & 0x7f7f7f7f;
    if ((~(low + 0x7f7f7f7f | word) | (low + 0x01010101 & word)) & 0x80808080) return floats_of_any_e8m0(word);
    return make_uint4(word << 23 & 0x7f800000, word << 15 & 0x7f800000, word << 7 & 0x7f800000, word >> 1 & 0x7f800000);
}

/* The scales of a step to the warp's table: of a row, MX: [quad][4] in fp32; NVFP4: in f16, those of even blocks and then those of odd ones. */
INLINE void dequantise_scales(const skinny_shape s, uint32_t stage, const narrow_place *place) {
    const uint32_t lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
    if (s.weights == SKINNY_MXFP4) st_shared_u32x4(place->table + (row + t / 2 * 8) * 32 + t % 2 * 16, floats_of_e8m0(ld_shared_u32(stage + place->scales)));
    else if (is_mx(s) && t < 2) st_shared_u32x4(place->table + (row + t * 8) * 16, floats_of_e8m0(ld_shared_u32(stage + place->scales)));
    if (s.weights == SKINNY_NVFP4) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t word = ld_shared_u32(stage + place->scales + i * thread_count(s) * 4), to = place->table + (row + i * 8) * 32 + t * 4;
            st_shared_u32(to, cvt_f16x2_e4m3x2((uint16_t)prmt(word, 0, 0x20)));
            st_shared_u32(to + 16, cvt_f16x2_e4m3x2((uint16_t)prmt(word, 0, 0x31)));
        }
    }
    if (is_mx(s) || s.weights == SKINNY_NVFP4) __syncwarp();
}

/* A step of this warp. factors_at: of this step's rows of a, in smem. */
INLINE void multiply_narrow(const skinny_shape s, uint32_t stage, const narrow_place *place, uint32_t units, int rows, const uint32_t *places, uint32_t factors_at,
                            float sums[][4]) {
    const uint32_t lane = threadIdx.x % 32, row = lane / 4, t = lane % 4, table = place->table + row * (bits_of(s) == 4 ? 32 : 16);
    const int groups = bits_of(s) == 4 ? 2 : 1;
    uint4 scales[2];               /* of the first and the second half of the rows: of four groups (MX), or of all, pair by pair (NVFP4) */
    float part[2][2][4], factors[2][2];
    dequantise_scales(s, stage, place);
#pragma unroll
    for (int i = 0; i < 2 * s.tiles; i++) factors[i / 2][i % 2] = ld_shared_f32(factors_at + min(i / 2 * 8 + (int)t * 2 + i % 2, rows - 1) * 4);
#pragma unroll
    for (int half = 0; half < 2 && s.weights == SKINNY_NVFP4; half++) scales[half] = ld_shared_u32x4(table + half * 256 + t / 2 * 16);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 matrix = ldmatrix_x4(stage + (place->matrices ^ i * 32));
#pragma unroll
        for (int j = 0; j < groups; j++) {
            const int group = i * groups + j, chain = group % 2;
            uint32_t low[4], high[4];
#pragma unroll
            for (int half = 0; half < 2 && is_mx(s) && group % 4 == 0; half++) scales[half] = ld_shared_u32x4(table + half * (bits_of(s) == 4 ? 256 : 128) + group * 4);
            if (bits_of(s) == 4) {
                half_pairs_of_e2m1(j == 0 ? matrix.x : matrix.z, low);
                half_pairs_of_e2m1(j == 0 ? matrix.y : matrix.w, high);
                if (s.weights == SKINNY_NVFP4) {
                    const uint32_t left = half_twice(word_of(scales[0], group / 2), group % 2), right = half_twice(word_of(scales[1], group / 2), group % 2);
#pragma unroll
                    for (int e = 0; e < 4; e++) low[e] = mul_f16x2(low[e], left), high[e] = mul_f16x2(high[e], right);
                }
            } else {
                low[0] = half_pair_of(s, matrix.x), low[1] = half_pair_of(s, matrix.x >> 16), low[2] = half_pair_of(s, matrix.z), low[3] = half_pair_of(s, matrix.z >> 16);
                high[0] = half_pair_of(s, matrix.y), high[1] = half_pair_of(s, matrix.y >> 16), high[2] = half_pair_of(s, matrix.w), high[3] = half_pair_of(s, matrix.w >> 16);
            }
#pragma unroll
            for (int tile = 0; tile < s.tiles; tile++) {
                const uint4 a = ld_shared_u32x4(units + places[tile]);
                float *sum = part[tile][chain];
                if (group < 2 || is_mx(s)) mma_f16_first(sum, low[0], high[0], low[1], high[1], a.x, a.y);
                else mma_f16(sum, low[0], high[0], low[1], high[1], a.x, a.y);
                mma_f16(sum, low[2], high[2], low[3], high[3], a.z, a.w);
                if (!is_mx(s)) continue;
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sums[tile][e] = fmaf(sum[e] * factors[tile][e % 2], __uint_as_float(word_of(scales[e / 2], group % 4)), sums[tile][e]);
            }
            units += group_pitch(s, rows);
        }
    }
    if (is_mx(s)) return;
    float of_rows[2] = {1, 1};
    if (s.weights == SKINNY_E4M3_BLOCK)
        for (int half = 0; half < 2; half++) of_rows[half] = ld_shared_f32(stage + place->scales + ((int)half - (int)t) * 4);
#pragma unroll
    for (int tile = 0; tile < s.tiles; tile++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float sum = (part[tile][0][e] + part[tile][1][e]) * factors[tile][e % 2];
            sums[tile][e] = s.weights == SKINNY_E4M3_BLOCK ? fmaf(sum, of_rows[e / 2], sums[tile][e]) : sums[tile][e] + sum;
        }
}

#endif
