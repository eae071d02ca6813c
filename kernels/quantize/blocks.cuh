/* Block formats made from rows held in registers (row_parts.cuh), bit for bit as num does it: the largest magnitude of a block, its scale, its codes. A block's
 * elements lie in neighbouring threads of a warp, or in all threads of a row. Scales follow num's own text (rules.h). Codes come from the chip's conversions where
 * it has them: e4m3 and e5m2 from sm_89 on, those of 6 and 4 bits in the families of sm_100 and sm_120; elsewhere e2m1 by the adder's rounding, 6 bits by small.h.
 * What is not: scales by cvt.ue8m0, which rounds amax / max once more where that is below 2^-126. */
#ifndef KERNELS_QUANTIZE_BLOCKS_CUH
#define KERNELS_QUANTIZE_BLOCKS_CUH

#include "kernels/common/cuda/ptx_small.cuh"
#include "kernels/common/cuda/row_parts.cuh"

/* ---- codes: 8 values to 8, 6 or 4 bytes, the first in the lowest bits ---- */

INLINE uint32_t join(uint16_t low, uint16_t high) { return (uint32_t)low | (uint32_t)high << 16; }

INLINE uint2 codes_e4m3(const float *x) {
    return make_uint2(join(cvt_e4m3x2(x[0], x[1]), cvt_e4m3x2(x[2], x[3])), join(cvt_e4m3x2(x[4], x[5]), cvt_e4m3x2(x[6], x[7])));
}
INLINE uint2 codes_e5m2(const float *x) {
    return make_uint2(join(cvt_e5m2x2(x[0], x[1]), cvt_e5m2x2(x[2], x[3])), join(cvt_e5m2x2(x[4], x[5]), cvt_e5m2x2(x[6], x[7])));
}

#ifdef PTX_HAS_SMALL_CVT
INLINE uint32_t codes_e2m1(const float *x) {
    uint32_t codes = cvt_e2m1x2(x[0], x[1]);
    codes |= cvt_e2m1x2(x[2], x[3]) << 8;
    codes |= cvt_e2m1x2(x[4], x[5]) << 16;
    return codes | cvt_e2m1x2(x[6], x[7]) << 24;
}
#else
/* The grid of e2m1 is 2 x, x + 2 and x / 2 + 4 rounded to integers, whichever is the least: an fma with 2^23 rounds each of them once, ties to even codes. What is
 * more than the largest, and NaN, give 7; a NaN of the multiplier has no sign. */
INLINE uint32_t code_e2m1(float x) {
    const float ones = 8388608.0f, m = fabsf(x);
    float code = fminf(fminf(fmaf(m, 2, ones), fmaf(m, 1, ones + 2)), fminf(fmaf(m, 0.5f, ones + 4), ones + 7));
    return (__float_as_uint(code) & 7) | (__float_as_uint(x) >> 28 & 8);
}
INLINE uint32_t codes_e2m1(const float *x) {
    uint32_t codes = 0;
    EACH_OF_PIECE(i) codes |= code_e2m1(x[i]) << (4 * i);
    return codes;
}
#endif

/* Three words of 16 bits. */
INLINE uint3 codes_of_6(int format, const float *x) {
    uint64_t codes = 0;
    EACH_OF_PIECE(i) codes |= (uint64_t)(uint32_t)(format == CUDA_e3m2 ? small_e3m2(x[i]) : small_e2m3(x[i])) << (6 * i);
    return make_uint3((uint32_t)codes & 0xffff, (uint32_t)codes >> 16, (uint32_t)(codes >> 32));
}

INLINE void store_bytes(uint8_t *to, uint64_t bytes, int count) {
    for (int i = 0; i < count; i++) to[i] = (uint8_t)(bytes >> (8 * i));
}

/* Piece c of row p->row, already multiplied by its blocks' inverse scales. Unused bits of a row's last byte are zero. */
INLINE void store_codes(const cuda_rows *rows, const row_place *p, int c, float *x) {
    int col = piece_col(p, c), count = min(PIECE, p->cols - col);
    uint8_t *row = (uint8_t *)rows->data + p->row * rows->row_bytes;
    if (count <= 0) return;
    if (rows->format == CUDA_e4m3 || rows->format == CUDA_e5m2) {
        uint2 codes = rows->format == CUDA_e4m3 ? codes_e4m3(x) : codes_e5m2(x);
        if (count == PIECE && (uint64_t)row % 8 == 0) *(uint2 *)(row + col) = codes;
        else store_bytes(row + col, (uint64_t)codes.y << 32 | codes.x, count);
        return;
    }
    bool ragged = count < PIECE;
    if (ragged) EACH_OF_PIECE(i) x[i] = i < count ? x[i] : 0;
    if (rows->format == CUDA_e2m1) {
        uint32_t codes = codes_e2m1(x);
        if (!ragged && (uint64_t)row % 4 == 0) *(uint32_t *)(row + col / 2) = codes;
        else store_bytes(row + col / 2, codes, (count + 1) / 2);
        return;
    }
    uint3 codes = codes_of_6(rows->format, x);
    uint64_t all = codes.x | (uint64_t)codes.y << 16 | (uint64_t)codes.z << 32;
    uint16_t *to = (uint16_t *)(row + col / 8 * 6);
    if (!ragged && (uint64_t)row % 2 == 0) to[0] = (uint16_t)codes.x, to[1] = (uint16_t)codes.y, to[2] = (uint16_t)codes.z;
    else store_bytes((uint8_t *)to, all, (count * 6 + 7) / 8);
}

/* ---- scales ---- */

INLINE float largest_code(int format) {
    return format == CUDA_e4m3 ? 448.0f : format == CUDA_e5m2 ? 57344.0f : format == CUDA_e3m2 ? 28.0f : format == CUDA_e2m3 ? 7.5f : 6.0f;
}

/* NaN if any is. */
INLINE float piece_amax(const float *x) {
    float most = fabsf(x[0]);
#pragma unroll
    for (int i = 1; i < PIECE; i++) most = max_nan(most, fabsf(x[i]));
    return most;
}

/* Second levels above the scales of NVFP4: what values and scales are multiplied by. */
typedef struct second_level { float encode, decode; } second_level;

/* Where the scales of row p->row begin, and the one of column block b in them. */
INLINE int64_t scale_index(const cuda_rows *rows, const row_place *p, int b) {
    if (!rows->tiled) return p->row * rows->scale_cols + b;
    uint32_t matrix = (uint32_t)p->row / (uint32_t)rows->matrix_rows, r = (uint32_t)p->row - matrix * (uint32_t)rows->matrix_rows;
    int64_t tile = (int64_t)(r / 128) * (rows->scale_cols / 4) + b / 4;   /* cuBLAS documentation, "Block Scaling Factors Layout" */
    return matrix * rows->scale_rows * rows->scale_cols + tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + b % 4;
}

/* The scale of a block from its largest magnitude, stored by the thread that writes; returns what the block's elements are multiplied by. */
INLINE float store_scale(const row_target *t, const row_place *p, int b, bool writes, float amax, second_level second) {
    uint8_t *bytes = (uint8_t *)t->rows.scales;
    if (t->rows.scale_format == CUDA_e8m0) {
        int32_t code = rules_mx_scale(amax, largest_code(t->rows.format), t->floors);
        if (writes) bytes[scale_index(&t->rows, p, b)] = (uint8_t)code;
        return rules_mx_inverse(code);
    }
    if (t->rows.scale_format == CUDA_e4m3) {
        int32_t code = cvt_e4m3x2(amax * (second.encode * (1.0f / 6.0f)), 0) & 0xff;
        if (writes) bytes[scale_index(&t->rows, p, b)] = (uint8_t)code;
        return rules_nv_inverse(code, second.decode);
    }
    float bounded = rules_fp8_bounded(amax);
    bool is_nan = rules_is_nan(amax);
    if (writes) ((float *)bytes)[scale_index(&t->rows, p, b)] = is_nan ? NOT_A_NUMBER : bounded / 448.0f;
    return is_nan ? NOT_A_NUMBER : 448.0f / bounded;
}

INLINE float without_nan(float x) { return rules_is_nan(x) ? 0 : fabsf(x); }

/* The second level of the part's row, which it stores. */
INLINE second_level row_second(const int pieces, const row_target *t, const row_place *p, float x[][PIECE], row_room *room) {
    float most = 0;
    EACH_PIECE(c) EACH_OF_PIECE(i) most = fmaxf(most, without_nan(x[c][i]));
    second_level second;
    second.encode = rules_nv_encode(row_max(most, p->group, room));
    second.decode = 1.0f / second.encode;
    if (p->first == 0 && p->cols > 0) ((float *)t->rows.second)[p->row] = second.decode;
    return second;
}

/* A part of a row into a block format. second: of formats whose second level lies over the tensor. */
INLINE void store_blocks(const int pieces, const row_target *t, const row_place *p, float x[][PIECE], second_level second, row_room *room) {
    if (t->rows.second_kind == 2) second = row_second(pieces, t, p, x, room);
    if (t->lanes == 0) {
        float most = 0;
        EACH_PIECE(c) most = max_nan(most, piece_amax(x[c]));
        most = row_max(most, p->group, room + 1);
        float inverse = store_scale(t, p, 0, p->first == 0 && p->cols > 0, most, second);
        EACH_PIECE(c) {
            EACH_OF_PIECE(i) x[c][i] *= inverse;
            store_codes(&t->rows, p, c, x[c]);
        }
        return;
    }
    EACH_PIECE(c) {
        int piece = piece_col(p, c) / PIECE;
        float most = lanes_max(piece_amax(x[c]), t->lanes);
        float inverse = store_scale(t, p, piece / t->lanes, piece % t->lanes == 0 && piece * PIECE < p->cols, most, second);
        EACH_OF_PIECE(i) x[c][i] *= inverse;
        store_codes(&t->rows, p, c, x[c]);
    }
}

/* A part of a row that begins at element at of a plain result, or into a block format. */
INLINE void store_part(const int pieces, const row_target *t, int64_t at, const row_place *p, float x[][PIECE], second_level second, row_room *room) {
    if (t->rows.scale_format != CUDA_FORMAT_COUNT) {
        store_blocks(pieces, t, p, x, second, room);
        return;
    }
    EACH_PIECE(c) store_piece(t->rows.data, t->rows.format, at, t->step, p, c, x[c]);
}

#endif
