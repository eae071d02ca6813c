/* Block formats made from rows held in registers (row_parts.cuh), bit for bit as num does it: the largest magnitude of a block, its scale, its codes. A block's
 * elements lie in neighbouring threads of a warp, or in all threads of a row. Scales follow num's own text (rules.h). Codes come from the chip's conversions where
 * it has them: e4m3 and e5m2 from sm_89 on, those of 6 and 4 bits in the families of sm_100 and sm_120; elsewhere e2m1 by the adder's rounding, 6 bits by small.h.
 * What is not: scales by cvt.ue8m0, which rounds amax / max once more where that is below 2^-126. */
#ifndef KERNELS_QUANTIZE_BLOCKS_CUH
#define KERNELS_QUANTIZE_BLOCKS_CUH

#include "kernels/gpu/ptx/small.cuh"
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/quantize/scales.cuh"

/* ---- codes: 8 values to 8, 6 or 4 bytes, the first in the lowest bits ---- */

INLINE uint32_t join(uint16_t low, uint16_t high) { return (uint32_t)low | (uint32_t)high << 16; }

INLINE uint2 codes_e4m3(const float *x) {
    return make_uint2(join(cvt_e4m3x2(x[0], x[1]), cvt_e4m3x2(x[2], x[3])), join(cvt_e4m3x2(x[4], x[5]), cvt_e4m3x2(x[6], x[7])));
}
INLINE uint2 codes_e5m2(const float *x) {
    return make_uint2(join(cvt_e5m2x2(x[0], x[1]), cvt_e5m2x2(x[2], x[3])), join(cvt_e5m2x2(x[4], x[5]), cvt_e5m2x2(x[6], x[7])));
}

/* The code of a magnitude, as 2^23 + code. The grid of e2m1 is 2 m, m + 2 and m / 2 + 4 rounded to integers, whichever is the least: an fma with 2^23 rounds each of
 * them once, ties to even codes. What is more than the largest, and NaN, give 7. */
#define GRID_ONES 8388608.0f
INLINE float grid_e2m1(float m) {
    return fminf(fminf(fmaf(m, 2, GRID_ONES), fmaf(m, 1, GRID_ONES + 2)), fminf(fmaf(m, 0.5f, GRID_ONES + 4), GRID_ONES + 7));
}

#ifdef PTX_HAS_SMALL_CVT
INLINE uint32_t codes_e2m1(const float *x) {
    uint32_t codes = cvt_e2m1x2(x[0], x[1]);
    codes |= cvt_e2m1x2(x[2], x[3]) << 8;
    codes |= cvt_e2m1x2(x[4], x[5]) << 16;
    return codes | cvt_e2m1x2(x[6], x[7]) << 24;
}
#else
/* A NaN of the multiplier has no sign. */
INLINE uint32_t code_e2m1(float x) { return (__float_as_uint(grid_e2m1(fabsf(x))) & 7) | (__float_as_uint(x) >> 28 & 8); }
INLINE uint32_t codes_e2m1(const float *x) {
    uint32_t codes = 0;
    EACH_OF_PIECE(i) codes |= code_e2m1(x[i]) << (4 * i);
    return codes;
}
#endif

/* The same codes of bf16 values, two at a time: a magnitude's are 2^7 + code. */
INLINE uint32_t grid_e2m1_bf16x2(uint32_t x) {
    uint32_t m = x & 0x7fff7fff;
    uint32_t low = min_bf16x2(fma_bf16x2(m, 0x40004000, 0x43004300), fma_bf16x2(m, 0x3f803f80, 0x43024302));   /* 2 m + 128, m + 130 */
    uint32_t high = min_bf16x2(fma_bf16x2(m, 0x3f003f00, 0x43044304), 0x43074307);                              /* m / 2 + 132, 135 */
    return (min_bf16x2(low, high) & 0x00070007) | (x >> 12 & 0x00080008);
}
INLINE uint32_t codes_e2m1_bf16(uint4 x) {
    uint32_t a = grid_e2m1_bf16x2(x.x) + (grid_e2m1_bf16x2(x.y) << 8), b = grid_e2m1_bf16x2(x.z) + (grid_e2m1_bf16x2(x.w) << 8);
    return prmt(a, b, 0x5410) + (prmt(a, b, 0x7632) << 4);
}

/* The codes of a piece, those of one byte first. */
INLINE uint2 piece_codes(int element, const float *x) {
    if (element == CUDA_e4m3) return codes_e4m3(x);
    if (element == CUDA_e5m2) return codes_e5m2(x);
    if (element == CUDA_e2m1) return make_uint2(codes_e2m1(x), 0);
    uint64_t codes = 0;
    EACH_OF_PIECE(i) codes |= (uint64_t)(uint32_t)(element == CUDA_e3m2 ? small_e3m2(x[i]) : small_e2m3(x[i])) << (6 * i);
    return make_uint2((uint32_t)codes, (uint32_t)(codes >> 32));
}

INLINE int code_bits(int element) { return element == CUDA_e2m1 ? 4 : element == CUDA_e4m3 || element == CUDA_e5m2 ? 8 : 6; }

/* Pieces that do not lie in words. Unused bits of a row's last byte are zero. */
INLINE void store_bytes(uint8_t *to, uint2 codes, int bits, int count) {
    uint64_t all = (uint64_t)codes.y << 32 | codes.x;
    if (count < PIECE) all &= (1ull << (count * bits)) - 1;
#pragma unroll 1
    for (int i = 0; i < (count * bits + 7) / 8; i++) to[i] = (uint8_t)(all >> (8 * i));
}

/* Those of a piece multiplied by inverse. of_power: inverse is a power of two, so that in bf16, which has the exponents of fp32, the product is exact, or so small that
 * its codes are those of zero. */
INLINE uint2 scaled_codes(int element, const int format, const bool of_power, const row_values *values, const int c, float inverse) {
    float x[PIECE];
    if (format == CUDA_bf16 && of_power) {
        uint32_t by = __float_as_uint(inverse), both = prmt(by, by, 0x3232);
        uint4 words = values->words[c];
        words = make_uint4(mul_bf16x2(words.x, both), mul_bf16x2(words.y, both), mul_bf16x2(words.z, both), mul_bf16x2(words.w, both));
#ifndef PTX_HAS_SMALL_CVT
        if (element == CUDA_e2m1) return make_uint2(codes_e2m1_bf16(words), 0);
#endif
        unpack_halves(format, words, x);
    } else {
        piece_floats(format, values, c, x);
        EACH_OF_PIECE(i) x[i] *= inverse;
    }
    return piece_codes(element, x);
}

/* All pieces, multiplied by what belongs to their blocks. dense: rows are known to lie in words, of formats of 8 and 4 bits. */
INLINE void store_codes(const int pieces, int element, const int format, const bool of_power, const bool dense, const cuda_rows *rows, const row_place *p,
                        const row_values *values, const float *inverse) {
    int bits = code_bits(element);
    uint8_t *to = (uint8_t *)rows->data + p->row * rows->row_bytes + p->first / PIECE * bits;
    bool in_words = dense || ((uint64_t)to % (bits == 6 ? 2 : bits) | p->cols % PIECE) == 0;
    EACH_PIECE(c) {
        uint2 codes = scaled_codes(element, format, of_power, values, c, inverse[c]);
        uint8_t *piece = to + c * p->group * bits;
        if (piece_col(p, c) >= p->cols) continue;
        if (!in_words) store_bytes(piece, codes, bits, min(PIECE, p->cols - piece_col(p, c)));
        else if (bits == 8) *(uint2 *)piece = codes;
        else if (bits == 4) *(uint32_t *)piece = codes.x;
        else ((uint16_t *)piece)[0] = (uint16_t)codes.x, ((uint16_t *)piece)[1] = (uint16_t)(codes.x >> 16), ((uint16_t *)piece)[2] = (uint16_t)codes.y;
    }
}

/* ---- scales ---- */

/* NaN if any is. */
INLINE float piece_amax(const float *x) {
    float most = fabsf(x[0]);
#pragma unroll
    for (int i = 1; i < PIECE; i++) most = max_nan(most, fabsf(x[i]));
    return most;
}

INLINE uint32_t pair_max(const int format, uint32_t x, uint32_t y) { return format == CUDA_bf16 ? max_abs_bf16x2(x, y) : max_abs_f16x2(x, y); }

/* Of 16-bit elements: one for those in the lower halves and one for the others. */
INLINE uint32_t words_amax(const int format, uint4 words) { return pair_max(format, pair_max(format, words.x, words.y), pair_max(format, words.z, words.w)); }

/* The number of one half. */
INLINE float half_of(const int format, uint32_t pair, bool high) {
    uint32_t bits = high ? pair >> 16 & 0x7fff : pair & 0x7fff;
    return format == CUDA_bf16 ? __uint_as_float(bits << 16) : cvt_f32_f16((uint16_t)bits);
}

INLINE float values_amax(const int format, const row_values *values, const int c) {
    if (format == CUDA_f32) return piece_amax(values->x[c]);
    uint32_t pair = words_amax(format, values->words[c]);
    return half_of(format, pair_max(format, pair, pair >> 16), false);
}

/* Second levels above the scales of NVFP4: what values and scales are multiplied by. */
typedef struct second_level { float encode, decode; } second_level;

/* Where the scale of column block b of row p->row lies. */
INLINE int64_t scale_index(const cuda_rows *rows, const row_place *p, int b) {
    if (!rows->tiled) return p->row * rows->scale_cols + b;
    uint32_t matrix = (uint32_t)p->row / (uint32_t)rows->matrix_rows, r = (uint32_t)p->row - matrix * (uint32_t)rows->matrix_rows;
    int64_t tile = (int64_t)(r / 128) * (rows->scale_cols / 4) + b / 4;   /* cuBLAS documentation, "Block Scaling Factors Layout" */
    return matrix * rows->scale_rows * rows->scale_cols + tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + b % 4;
}

/* The code of an MX or NVFP4 scale from its block's largest magnitude; and what elements under a code are multiplied by. */
INLINE int32_t scale_code(const int scale, int element, const row_target *t, float amax, second_level second) {
    if (scale == CUDA_e8m0) return rules_mx_scale(amax, largest_code(element), t->round == ROUND_FLOOR);
    return cvt_e4m3x2(amax * (second.encode * (1.0f / 6.0f)), 0) & 0xff;
}
INLINE float scale_inverse(const int scale, int32_t code, second_level second) { return scale == CUDA_e8m0 ? rules_mx_inverse(code) : rules_nv_inverse(code, second.decode); }

/* The scale of a block from its largest magnitude, stored by threads that write; returns what the block's elements are multiplied by. */
INLINE float store_scale(const int scale, int element, const row_target *t, const row_place *p, int b, bool writes, float amax, second_level second) {
    int64_t at = scale_index(&t->rows, p, b);
    if (scale != CUDA_f32) {
        int32_t code = scale_code(scale, element, t, amax, second);
        if (writes) ((uint8_t *)t->rows.scales)[at] = (uint8_t)code;
        return scale_inverse(scale, code, second);
    }
    if (writes) ((float *)t->rows.scales)[at] = fp8_scale(amax);
    return fp8_inverse(amax);
}

INLINE float largest_without_nan(const int pieces, const int format, const row_values *values) {
    float most = 0;
    EACH_PIECE(c) {
        float x[PIECE];
        piece_floats(format, values, c, x);
        EACH_OF_PIECE(i) most = fmaxf(most, fabsf(x[i]));
    }
    return most;
}

/* The second level of the part's row, which it stores. */
INLINE second_level row_second(const int pieces, const int format, const row_target *t, const row_place *p, const row_values *values, row_room *room) {
    second_level second;
    second.encode = rules_nv_encode(row_max(largest_without_nan(pieces, format, values), p->group, room));
    second.decode = 1.0f / second.encode;
    if (p->first == 0 && p->cols > 0) ((float *)t->rows.second)[p->row] = second.decode;
    return second;
}

/* ---- blocks ---- */

INLINE int thread_lane(void) { return (int)threadIdx.x & 31; }

/* The number of the piece whose block's scale this thread makes as its k-th: thread number i of four makes that of piece i (lanes 4 and more), of two those of pieces
 * 2 i and 2 i + 1 (lanes 2), so that each scale is made once. */
INLINE int own_piece(const int lanes, int k) { return lanes == 2 ? (thread_lane() & 1) * 2 + k : thread_lane() & 3; }

/* most: of each piece this thread's largest. After it the largest of the blocks whose scales it makes: as many numbers travel as are needed. */
INLINE void share_amax(const int lanes, float *most) {
    int lane = thread_lane();
    for (int step = lanes / 2; step >= 4; step /= 2) {
#pragma unroll
        for (int c = 0; c < PIECES_MOST; c++) most[c] = max_nan(most[c], __shfl_xor_sync(~0u, most[c], step));
    }
    bool odd = lane & 1, high = lane & 2;
    if (lanes == 2) {
        most[0] = max_nan(odd ? most[2] : most[0], __shfl_xor_sync(~0u, odd ? most[0] : most[2], 1));
        most[1] = max_nan(odd ? most[3] : most[1], __shfl_xor_sync(~0u, odd ? most[1] : most[3], 1));
        return;
    }
    float a = max_nan(high ? most[2] : most[0], __shfl_xor_sync(~0u, high ? most[0] : most[2], 2));
    float b = max_nan(high ? most[3] : most[1], __shfl_xor_sync(~0u, high ? most[1] : most[3], 2));
    most[0] = max_nan(odd ? b : a, __shfl_xor_sync(~0u, odd ? a : b, 1));
}

/* The same of 16-bit elements, two to a word. */
INLINE void share_words_amax(const int format, const int lanes, const uint4 *words, float *most) {
    uint32_t pairs[2];   /* the largest of pieces 0 and 1, and of 2 and 3 */
    bool odd = thread_lane() & 1, high = thread_lane() & 2;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t a = words_amax(format, words[2 * k]), b = words_amax(format, words[2 * k + 1]);
        pairs[k] = pair_max(format, prmt(a, b, 0x5410), prmt(a, b, 0x7632));
    }
    for (int step = lanes / 2; step >= 4; step /= 2) {
#pragma unroll
        for (int k = 0; k < 2; k++) pairs[k] = pair_max(format, pairs[k], __shfl_xor_sync(~0u, pairs[k], step));
    }
    bool second = lanes == 2 ? odd : high;
    uint32_t own = second ? pairs[1] : pairs[0], other = second ? pairs[0] : pairs[1];
    own = pair_max(format, own, __shfl_xor_sync(~0u, other, lanes == 2 ? 1 : 2));
    if (lanes == 2) {
        most[0] = half_of(format, own, false);
        most[1] = half_of(format, own, true);
    } else {
        most[0] = half_of(format, pair_max(format, own, __shfl_xor_sync(~0u, own, 1)), odd);
    }
}

/* What the elements of each piece are multiplied by; stores the scales of their blocks, of so many lanes each. */
INLINE void block_scales(const int pieces, int element, const int scale, const int lanes, const int format, const row_target *t, const row_place *p, second_level second,
                         const row_values *values, float *inverse) {
    float most[PIECES_MOST];
    if (pieces != PIECES_MOST || format == CUDA_f32) EACH_PIECE(c) most[c] = values_amax(format, values, c);
    if (pieces != PIECES_MOST) {
        EACH_PIECE(c) inverse[c] = store_scale(scale, element, t, p, piece_col(p, c) / (PIECE * lanes), thread_lane() % lanes == 0 && piece_col(p, c) < p->cols, lanes_max(most[c], lanes), second);
        return;
    }
    const int makers = lanes < PIECES_MOST ? lanes : PIECES_MOST, each = PIECES_MOST / makers;
    int lane = thread_lane();
    if (format == CUDA_f32) share_amax(lanes, most);
    else share_words_amax(format, lanes, values->words, most);
#pragma unroll
    for (int k = 0; k < each; k++) {
        int block = piece_col(p, own_piece(lanes, k)) / (PIECE * lanes);
        most[k] = store_scale(scale, element, t, p, block, lane % lanes < makers && block * (PIECE * lanes) < p->cols, most[k], second);
    }
    EACH_PIECE(c) inverse[c] = __shfl_sync(~0u, most[c % each], c / each, makers);
}

/* ---- the search for better scales, num.h's, in blocks of e2m1 ---- */

static __constant__ int nv_steps[] = RULES_NV_STEPS;

/* The e2m1 number nearest to a magnitude, ties to even codes, by the adder's rounding: numbers below 2 are a half apart, then one, and two from 4 on, so 2^22 times m's power of two, 2^22 at least,
 * is added. What is more than the largest gives 6, also where that power leaves fp32: a number less than 2^22 then stays, and infinity becomes a NaN, of which fminf takes the other. */
INLINE float nearest_e2m1(float m) {
    const float ones = __int_as_float(max((int)((__float_as_uint(m) & 0x7f800000) + (22u << 23)), 0x4a800000));
    return fminf(m + ones - ones, 6);
}

/* What elements under the candidate near are multiplied by, where its number is value. */
INLINE float candidate_inverse(const bool is_nv, int32_t near, float value, second_level second) {
    return is_nv ? rules_least(1.0f / (value * second.decode), RULES_FLT_MAX) : rules_mx_inverse(near);
}
INLINE float candidate_value(const bool is_nv, int32_t near, int k) { return is_nv ? cvt_f32_f16((uint16_t)cvt_f16x2_e4m3x2((uint16_t)(near & 0x7f))) : k == 0 ? 1.0f : 0.5f; }

/* The squared error of a piece's block under a candidate, its elements in order: lane after lane adds its own to what the one before it has. */
INLINE float block_error(const int lanes, const float *x, float inverse, float unit, float value) {
    float squares[PIECE], sum = 0;
    EACH_OF_PIECE(i) {
        float size = fabsf(x[i]), error = fmaf(-nearest_e2m1(size * inverse), value, size * unit);   /* their product is exact */
        squares[i] = error * error;
    }
#pragma unroll
    for (int l = 0; l < lanes; l++) {
        EACH_OF_PIECE(i) sum += squares[i];
        sum = __shfl_sync(~0u, sum, l, lanes);
    }
    return sum;
}

/* What block_scales does, where of the scales near each other the best one is taken. Elements behind a row's end are zero: they have no error. */
INLINE void searched_scales(const int pieces, const int scale, const int lanes, const int format, const row_target *t, const row_place *p, second_level second,
                            const row_values *values, float *inverse) {
    float x[PIECES_MOST][PIECE];
    const bool is_nv = scale == CUDA_e4m3;
    const int last = is_nv ? 0x7e : 0xfd, count = is_nv ? (int)(sizeof nv_steps / sizeof *nv_steps) : 2;
    int32_t first[PIECES_MOST], best[PIECES_MOST];
    float unit[PIECES_MOST], least[PIECES_MOST];
    bool is_searched[PIECES_MOST];
    EACH_PIECE(c) {
        piece_floats(format, values, c, x[c]);
        float most = lanes_max(piece_amax(x[c]), lanes);
        first[c] = best[c] = scale_code(scale, CUDA_e2m1, t, most, second);
        inverse[c] = scale_inverse(scale, first[c], second);
        unit[c] = is_nv ? second.encode : inverse[c];
        least[c] = INFINITE;
        is_searched[c] = most < INFINITE && first[c] > 0;
    }
#pragma unroll 1
    for (int k = 0; k < count; k++) {
        EACH_PIECE(c) {
            int32_t near = first[c] + (is_nv ? nv_steps[k] : -k);
            float value = candidate_value(is_nv, near, k), by = candidate_inverse(is_nv, near, value, second);
            float error = block_error(lanes, x[c], by, unit[c], value);
            bool is_taken = is_searched[c] && near >= is_nv && near <= last && (k == 0 || error < least[c]);
            least[c] = is_taken ? error : least[c];
            best[c] = is_taken ? near : best[c];
            inverse[c] = is_taken ? by : inverse[c];
        }
    }
    EACH_PIECE(c) if (thread_lane() % lanes == 0 && piece_col(p, c) < p->cols)
        ((uint8_t *)t->rows.scales)[scale_index(&t->rows, p, piece_col(p, c) / (PIECE * lanes))] = (uint8_t)best[c];
}

/* A part of a row in a block format of these elements and scales, lanes threads a block; 0: all of the row. second: where it lies over the tensor. */
INLINE void store_blocks(const int pieces, int element, const int scale, const int lanes, const int format, const bool searches, const bool dense, const row_target *t,
                         const row_place *p, const row_values *values, second_level second, row_room *room) {
    float inverse[PIECES_MOST];
    if (scale == CUDA_e4m3 && t->rows.second_kind == 2) second = row_second(pieces, format, t, p, values, room);
    if (searches) {
        searched_scales(pieces, scale, lanes, format, t, p, second, values, inverse);
    } else if (lanes > 0) {
        block_scales(pieces, element, scale, lanes, format, t, p, second, values, inverse);
    } else {
        float most = 0;
        EACH_PIECE(c) most = max_nan(most, values_amax(format, values, c));
        inverse[0] = store_scale(scale, element, t, p, 0, p->first == 0 && p->cols > 0, row_max(most, p->group, room), second);
        EACH_PIECE(c) inverse[c] = inverse[0];
    }
    store_codes(pieces, element, format, scale == CUDA_e8m0, dense, &t->rows, p, values, inverse);
}

/* A part of a row of that format's values into a block format. Formats that are common have code of their own; so has the search, which takes many registers: kernels
 * that search do nothing else. */
INLINE void store_quantized(const int pieces, const int format, const bool searches, const bool dense, const row_target *t, const row_place *p, const row_values *values,
                            second_level second, row_room *room) {
    if (searches) {
        if (t->format == CUDA_mxfp4) store_blocks(pieces, CUDA_e2m1, CUDA_e8m0, 4, format, true, false, t, p, values, second, room);
        else store_blocks(pieces, CUDA_e2m1, CUDA_e4m3, 2, format, true, false, t, p, values, second, room);
        return;
    }
    switch (t->format) {
    case CUDA_mxfp8: store_blocks(pieces, CUDA_e4m3, CUDA_e8m0, 4, format, false, dense, t, p, values, second, room); break;
    case CUDA_mxfp4: store_blocks(pieces, CUDA_e2m1, CUDA_e8m0, 4, format, false, dense, t, p, values, second, room); break;
    case CUDA_nvfp4:
    case CUDA_nvfp4_row: store_blocks(pieces, CUDA_e2m1, CUDA_e4m3, 2, format, false, dense, t, p, values, second, room); break;
    case CUDA_fp8_1x128: store_blocks(pieces, CUDA_e4m3, CUDA_f32, 16, format, false, dense, t, p, values, second, room); break;
    case CUDA_fp8_row: store_blocks(pieces, CUDA_e4m3, CUDA_f32, 0, format, false, dense, t, p, values, second, room); break;
    default: if (!dense) store_blocks(pieces, t->rows.format, CUDA_e8m0, 4, format, false, false, t, p, values, second, room);   /* MX of e5m2 and of 6 bits */
    }
}

/* Formats with a scale for all of a row. */
INLINE bool is_scaled_by_row(int format) { return format == CUDA_fp8_row || format == CUDA_nvfp4_row; }

/* Of a part's values the largest magnitude that such a scale is made of. */
INLINE float largest_for_row(const int pieces, const int format, const row_target *t, const row_values *values) {
    float most = 0;
    if (t->format == CUDA_nvfp4_row) return largest_without_nan(pieces, format, values);
    EACH_PIECE(c) most = max_nan(most, values_amax(format, values, c));
    return most;
}

/* What store_quantized does in those formats, where the row's largest magnitude is known. */
INLINE void store_scaled_by_row(const int pieces, const int format, const row_target *t, const row_place *p, const row_values *values, float most) {
    float inverse[PIECES_MOST];
    second_level second = {1, 1};
    const bool is_first = p->first == 0 && p->cols > 0;
    if (t->format == CUDA_fp8_row) {
        inverse[0] = store_scale(CUDA_f32, CUDA_e4m3, t, p, 0, is_first, most, second);
        EACH_PIECE(c) inverse[c] = inverse[0];
        store_codes(pieces, CUDA_e4m3, format, false, false, &t->rows, p, values, inverse);
        return;
    }
    second.encode = rules_nv_encode(most);
    second.decode = 1.0f / second.encode;
    if (is_first) ((float *)t->rows.second)[p->row] = second.decode;
    block_scales(pieces, CUDA_e2m1, CUDA_e4m3, 2, format, t, p, second, values, inverse);
    store_codes(pieces, CUDA_e2m1, format, false, false, &t->rows, p, values, inverse);
}

#endif
