/* The products of stream_sm90.cuh in f16, for weights of 8 and 4 bits: their elements are f16 numbers after one conversion or a few shifts, and scales multiply sums of
 * 32 k (MX), of a step (blocks of 128), or pairs (NVFP4, exactly).
 *
 *   b of a step  ring in smem -> ldmatrix -> decoded to f16 pairs -> mma.sync
 *   a of a slab  gmem -> reg -> f16 in smem, a row's 32 k as 64 bytes: 16 for each of a quad's four lanes
 *
 * An element of a is one f16 number where its format fits (f16, e4m3 and NVFP4 without E8M0 scales). Any other is a sum of two (planes, rows of their own): the row's
 * largest number times a power of two lies in [2^14, 2^15), and what f16 cannot hold of an element, times 2^39, is the second: 78 binades below the row's
 * largest number are exact. Pairs of e2m1 carry 2^-14, which alpha gives back. */
#ifndef KERNELS_MATMUL_STREAM_NARROW_SM90_CUH
#define KERNELS_MATMUL_STREAM_NARROW_SM90_CUH

INLINE bool is_mx(const stream_shape s) { return s.weights >= STREAM_MXFP8 && s.weights <= STREAM_MXFP4; }

/* ---- a ---- */

enum { NARROW_PLANE = 39 };

INLINE float power_of_two(int exponent) { return __uint_as_float((uint32_t)(exponent + 127) << 23); }
/* Any exponent, in two steps. */
INLINE float times_power(float x, int exponent) { return x * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2); }

INLINE void floats_of_unit(const stream_arguments *g, const stream_shape s, int first, int row, int unit, const stream_batch *batch, const int j, float x[8]) {
    if (is_whole(g)) {
        read_unit(g->a.format, (const uint8_t *)&batch->raw[j], 0, x);
    } else {
        const uint8_t *data = (const uint8_t *)g->a.data + row * g->a.row_bytes;
        const int element = first * step_depth(s) + unit * 8;
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = element + e < g->k ? element_of_row(g->a.format, data, element + e) : 0;
    }
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] *= batch->scales[j];
}

/* The largest finite magnitude of each row of a slab, as bits, into ranges. */
INLINE void find_ranges(const stream_arguments *g, const stream_shape s, int first, int units, const stream_batch *fetched, uint32_t *ranges) {
    stream_batch batch = *fetched;
    if (threadIdx.x < 16) ranges[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x;;) {
#pragma unroll
        for (int j = 0; j < STREAM_TOGETHER; j++) {
            float x[8];
            uint32_t most = 0;
            int unit = i + j * thread_count(s);
            const int row = row_of_unit(units, &unit);
            if (row >= g->m) continue;
            floats_of_unit(g, s, first, row, unit, &batch, j, x);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const uint32_t bits = __float_as_uint(x[e]) & 0x7fffffff;
                most = max(most, bits < 0x7f800000 ? bits : 0);
            }
            if (most > ranges[row]) atomicMax(&ranges[row], most);
        }
        i += STREAM_TOGETHER * thread_count(s);
        if (i >= g->m * units) break;
        fetch_units(g, s, first, units, i, &batch);
    }
    __syncthreads();
}

/* By which power of two a row is multiplied. */
INLINE int range_exponent(uint32_t largest) { return largest == 0 ? 0 : 14 - (largest < 0x00800000 ? -118 - __clz((int)largest) : (int)(largest >> 23) - 127); }

/* What row row of the slab (planes counted) is to be multiplied by again. */
INLINE float range_factor(const stream_arguments *g, const uint32_t *ranges, int row) {
    if (g->planes == 1) return 1;
    const int plane = row / g->m;
    return times_power(1, -range_exponent(ranges[row - plane * g->m]) - plane * NARROW_PLANE);
}

/* Eight numbers of f16 to their places in the slab: unit u of row row. */
INLINE void store_unit(const stream_shape s, uint32_t slab, int unit, int row, int rows, const float *x) {
    const uint32_t block = slab + (unit / 4 * rows + row) * 64;
    if (bits_of(s) == 4) {
        st_shared_u32x4(block + unit % 4 * 16, make_uint4(cvt_f16x2(x[0], x[4]), cvt_f16x2(x[1], x[5]), cvt_f16x2(x[2], x[6]), cvt_f16x2(x[3], x[7])));
    } else {
        const uint32_t to = block + unit % 2 * 32 + unit % 4 / 2 * 8;
        st_shared_u32x2(to, cvt_f16x2(x[0], x[1]), cvt_f16x2(x[2], x[3]));
        st_shared_u32x2(to + 16, cvt_f16x2(x[4], x[5]), cvt_f16x2(x[6], x[7]));
    }
}

/* The part of a that belongs to steps [first, first + steps): f16 numbers, and behind them the fp32 scales of blocks of 128, [steps][rows]. */
INLINE void fill_narrow(const stream_arguments *g, const stream_shape s, uint32_t slab, uint32_t slab_scales, uint32_t *ranges, int first, int steps, const stream_batch *fetched) {
    const int units = steps * (step_depth(s) / 8), rows = g->m * g->planes;
    if (g->planes > 1) find_ranges(g, s, first, units, fetched, ranges);
    stream_batch batch = *fetched;
    for (int i = threadIdx.x;;) {
#pragma unroll
        for (int j = 0; j < STREAM_TOGETHER; j++) {
            float x[8];
            int unit = i + j * thread_count(s);
            const int row = row_of_unit(units, &unit);
            if (row >= g->m) continue;
            floats_of_unit(g, s, first, row, unit, &batch, j, x);
            if (g->planes > 1) {
                const int exponent = range_exponent(ranges[row]);
                float rest[8];
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    x[e] = times_power(x[e], exponent);
                    const float left = x[e] - cvt_f32_f16((uint16_t)cvt_f16x2(x[e], 0));
                    rest[e] = fabsf(x[e]) < 65504 ? left * power_of_two(NARROW_PLANE) : 0;
                }
                store_unit(s, slab, unit, g->m + row, rows, rest);
            }
            store_unit(s, slab, unit, row, rows, x);
        }
        i += STREAM_TOGETHER * thread_count(s);
        if (i >= g->m * units) break;
        fetch_units(g, s, first, units, i, &batch);
    }
    if (s.weights != STREAM_E4M3_BLOCK) return;
    for (int i = threadIdx.x; i < steps * rows; i += thread_count(s)) {
        const int step = i / rows, row = i % rows, own = row % g->m;
        float scale = g->a.scale == MATMUL_f32 ? ((const float *)g->a.scales.data)[scale_index(&g->a.scales, scales_of_row(&g->a.scales, own), first + step)] : 1;
        st_shared_f32(slab_scales + i * 4, scale * range_factor(g, ranges, row));
    }
}

/* ---- b ---- */

/* Where this lane's row of the first matrices of a stage begins, and its quad's scales: lanes 0 to 7 name rows 0 to 7, the next eight rows 8 to 15, and so again 16
 * bytes further. */
typedef struct narrow_place { uint32_t matrices, scales; } narrow_place;

INLINE narrow_place narrow_place_of(const stream_shape s) {
    const uint32_t lane = threadIdx.x % 32, row = lane % 16;
    return (narrow_place){threadIdx.x / 32 * (16 * STREAM_STEP_BYTES) + row * STREAM_STEP_BYTES + (lane / 16 ^ swizzle(row)) * 16, thread_count(s) * 64 + (threadIdx.x & ~3u) * 4};
}

/* Elements j and j + 4 of a word of e2m1 codes, times 2^-14. */
INLINE uint32_t half_pair_of_e2m1(uint32_t word, const int j) {
    const uint32_t signs = word << (12 - 4 * j), rest = j < 3 ? word << (9 - 4 * j) : word >> 3;
    return (signs & 0x80008000) | (rest & 0x0e000e00);
}

INLINE uint32_t half_pair_of(const stream_shape s, uint32_t codes) {
    return s.weights == STREAM_MXFP8_E5M2 ? cvt_f16x2_e5m2x2((uint16_t)codes) : cvt_f16x2_e4m3x2((uint16_t)codes);
}

/* Scale j of a word of E8M0 codes; that of NaN is infinite here (has_nan). */
INLINE float word_scale(uint32_t word, const int j) {
    const uint32_t bits = (j < 3 ? word << (23 - 8 * j) : word >> 1) & 0x7f800000;
    return __uint_as_float(max(bits, 0x00400000u));
}

INLINE bool has_nan(uint32_t word) { return ((word & 0x7f7f7f7f) + 0x01010101 & word & 0x80808080) != 0; }

/* sums += part, each times the scales of its row of b and its row of a. */
INLINE void add_part(float *sums, const float *part, float low, float high, const float *factors) {
    sums[0] = fmaf(part[0], low * factors[0], sums[0]);
    sums[1] = fmaf(part[1], low * factors[1], sums[1]);
    sums[2] = fmaf(part[2], high * factors[0], sums[2]);
    sums[3] = fmaf(part[3], high * factors[1], sums[3]);
}

/* A step of this warp. factors: of this lane's two rows of a of each tile; scales: of a, of this step's rows, for blocks of 128. */
INLINE void multiply_narrow(const stream_shape s, uint32_t stage, const narrow_place *place, uint32_t units, int rows, const uint32_t *places, uint32_t scales,
                            const float factors[][2], float sums[][4]) {
    uint32_t words[8];
    float part[2][4];
    if (s.weights == STREAM_MXFP4 || s.weights == STREAM_NVFP4) {
        const uint4 low = ld_shared_u32x4(stage + place->scales);
        words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
    } else if (scale_words(s) > 0) {
        words[0] = ld_shared_u32(stage + place->scales), words[1] = ld_shared_u32(stage + place->scales + 4);
    }
    if (s.weights == STREAM_NVFP4) {
        const uint4 high = ld_shared_u32x4(stage + place->scales + thread_count(s) * 4);
        words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
    }
    const int t = threadIdx.x % 4;
    const uint32_t selectors[2] = {(uint32_t)(t / 2) * 0x11, (uint32_t)(2 + t / 2) * 0x11};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 matrix = ldmatrix_x4(stage + (place->matrices ^ i * 32));
        const int groups = bits_of(s) == 4 ? 2 : 1;
#pragma unroll
        for (int j = 0; j < groups; j++) {
            const int group = i * groups + j;
            uint32_t low[4], high[4];
            if (bits_of(s) == 4) {
#pragma unroll
                for (int e = 0; e < 4; e++) low[e] = half_pair_of_e2m1(j == 0 ? matrix.x : matrix.z, e), high[e] = half_pair_of_e2m1(j == 0 ? matrix.y : matrix.w, e);
                if (s.weights == STREAM_NVFP4) {
                    const uint32_t left = cvt_f16x2_e4m3x2((uint16_t)prmt(words[group / 2], 0, selectors[group % 2]));
                    const uint32_t right = cvt_f16x2_e4m3x2((uint16_t)prmt(words[4 + group / 2], 0, selectors[group % 2]));
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
                if (group == 0 || is_mx(s)) mma_f16_first(part[tile], low[0], high[0], low[1], high[1], a.x, a.y);
                else mma_f16(part[tile], low[0], high[0], low[1], high[1], a.x, a.y);
                mma_f16(part[tile], low[2], high[2], low[3], high[3], a.z, a.w);
                if (s.weights == STREAM_MXFP4) add_part(sums[tile], part[tile], word_scale(words[group / 4], group % 4), word_scale(words[2 + group / 4], group % 4), factors[tile]);
                else if (is_mx(s)) add_part(sums[tile], part[tile], word_scale(words[0], group), word_scale(words[1], group), factors[tile]);
            }
            units += rows * 64;
        }
    }
    if (is_mx(s)) {
        const bool both = s.weights == STREAM_MXFP4, left = has_nan(words[0]) || (both && has_nan(words[1])), right = has_nan(words[both ? 2 : 1]) || (both && has_nan(words[3]));
        if (left || right)
#pragma unroll
            for (int tile = 0; tile < s.tiles; tile++) {
                if (left) sums[tile][0] = sums[tile][1] = __uint_as_float(0x7fffffff);
                if (right) sums[tile][2] = sums[tile][3] = __uint_as_float(0x7fffffff);
            }
        return;
    }
#pragma unroll
    for (int tile = 0; tile < s.tiles; tile++) {
        const float one[2] = {1, 1};
        if (s.weights == STREAM_E4M3_BLOCK) {
            const int row = tile * 8 + 2 * t;
            const float own[2] = {ld_shared_f32(scales + min(row, rows - 1) * 4), ld_shared_f32(scales + min(row + 1, rows - 1) * 4)};
            add_part(sums[tile], part[tile], __uint_as_float(words[0]), __uint_as_float(words[1]), own);
        } else {
            add_part(sums[tile], part[tile], one[0], one[1], factors[tile]);
        }
    }
}

#endif
