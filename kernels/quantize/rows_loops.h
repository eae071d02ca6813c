/* The loops of rows.h in plain C for the compiler to vectorise; each rows_<instruction set>.c defines QUANTIZE_ROW, the name of its function, and includes
 * this. A chunk of 1024 elements at a time:
 *     x [1024] -> amax [blocks] -> scale code and inverse [blocks] -> codes [1024] -> packed
 * so that loops over scales run over many blocks. The rules are num.h's, operation by operation; num_quantize_rows is what it is tested against. */
#include <float.h>
#include <string.h>

#include "kernels/cpu/math.h"
#include "kernels/quantize/rows.h"
#include "num/rules.h"

enum { CHUNK = 1024, BLOCKS_MAX = CHUNK / 16, INFINITY_BITS = 0x7f800000 };

static inline int32_t pick(int condition, int32_t yes, int32_t no) { return no ^ ((yes ^ no) & -condition); }

/* A code of 8 bits or less: sign, exponent, mantissa; nearest even, no further than the magnitude with these bits. No NaN. Adding 2^23 steps makes the adder round to one: a step is that of the
 * magnitude's power of two, and below the smallest normal number the same as there. */
static inline int32_t encode(float value, int bits, int mantissa, int bias, int32_t max_bits) {
    const int32_t all = cpu_bits(value), drop = 23 - mantissa, least = (1 - bias + 127) << 23;
    int32_t magnitude = all & 0x7fffffff;
    magnitude = magnitude < max_bits ? magnitude : max_bits;
    int32_t power = magnitude & 0x7f800000;
    power = power > least ? power : least;
    const int32_t shift = power + (drop << 23), steps = cpu_bits(cpu_float(magnitude) + cpu_float(shift)) - shift;
    const int32_t code = steps + (power >> drop) - ((128 - bias) << mantissa);
    return code | (int32_t)((uint32_t)all >> 31) << (bits - 1);
}

static inline int32_t e4m3(float value) { return encode(value, 8, 3, 7, 0x43e00000); }
static inline int32_t e5m2(float value) { return encode(value, 8, 2, 15, 0x47600000); }
static inline int32_t e2m1(float value) { return encode(value, 4, 1, 1, 0x40c00000); }

static inline float e4m3_value(int32_t code) {
    int32_t normal = (code << 20) + (120 << 23);
    return cpu_float(pick(code < 8, cpu_bits((float)code * 0x1p-9f), normal));
}

/* The bits of the largest magnitude of each block, which order as magnitudes do. count is a multiple of block. The sizes of blocks are spelled out, so that each is a few
 * registers and no loop. */
static inline int32_t largest_of(const float *x, const int64_t block) {
    int32_t largest = 0;
    for (int64_t i = 0; i < block; i++) {
        const int32_t magnitude = cpu_bits(x[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

static void block_maxima(const float *x, int64_t count, int64_t block, int32_t *restrict amax) {
    const int64_t blocks = count / block;
    if (block == 16) {
        for (int64_t b = 0; b < blocks; b++) amax[b] = largest_of(x + 16 * b, 16);
    } else if (block == 32) {
        for (int64_t b = 0; b < blocks; b++) amax[b] = largest_of(x + 32 * b, 32);
    } else {
        for (int64_t b = 0; b < blocks; b++) amax[b] = largest_of(x + block * b, block);
    }
}

/* ---- scales: from amax [blocks], the codes and what elements are multiplied by ---- */

static void mx_scales(const int32_t *restrict amax, int64_t blocks, int32_t max_bits, int32_t rounds_up, uint8_t *restrict scales, float *restrict inverse) {
    for (int64_t i = 0; i < blocks; i++) {
        int32_t above = ((amax[i] & 0x7fffff) > (max_bits & 0x7fffff)) & rounds_up;
        int32_t code = (amax[i] >> 23) - (max_bits >> 23) + above + 127;
        code = code < 0 ? 0 : code;
        scales[i] = (uint8_t)code;
        inverse[i] = cpu_float((254 - code) << 23);
    }
}

/* factor is S_enc / 6, rounded; decode is S_dec. */
static void nv_scales(const int32_t *restrict amax, int64_t blocks, float factor, float decode, uint8_t *restrict scales, float *restrict inverse) {
    for (int64_t i = 0; i < blocks; i++) {
        int32_t code = e4m3(cpu_float(amax[i]) * factor);
        float quotient = 1.0f / (e4m3_value(code) * decode);
        quotient = quotient < FLT_MAX ? quotient : FLT_MAX;
        scales[i] = (uint8_t)code;
        inverse[i] = cpu_select(code == 0, 0.0f, quotient);
    }
}

static void f32_scales(const int32_t *restrict amax, int64_t blocks, float *restrict scales, float *restrict inverse) {
    const float least = 448.0f * 0x1p-126f;
    for (int64_t i = 0; i < blocks; i++) {
        float value = cpu_float(amax[i]);
        float bounded = cpu_select(amax[i] == 0, 448.0f, value > least ? value : least);
        scales[i] = bounded / 448.0f;
        inverse[i] = 448.0f / bounded;
    }
}

/* ---- the search for better scales (num.h): blocks side by side in lanes, their elements one after the other ---- */

enum { SEARCHED_NV = 6, SEARCHED_MX = 2 };

/* What blocks are compared by: candidates for their scales against their magnitudes. */
typedef struct search {
    int64_t blocks, block;
    float magnitudes[CHUNK];                                  /* [block, blocks] */
    float unit[BLOCKS_MAX], least[BLOCKS_MAX];
    float inverse[BLOCKS_MAX], value[BLOCKS_MAX];             /* of a candidate */
    int32_t code[BLOCKS_MAX], is_offered[BLOCKS_MAX];
} search;

static void search_start(search *s, const float *restrict x, int64_t blocks, int64_t block) {
    s->blocks = blocks;
    s->block = block;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = 0; i < block; i++) s->magnitudes[i * blocks + b] = cpu_float(cpu_bits(x[b * block + i]) & 0x7fffffff);
}

/* The squared errors under the candidates: sums in the order of the elements. The nearest value of e2m1 is found by an addition that rounds: its step is
 * 2^(e-1) for magnitudes in [2^e, 2^(e+1)), and 1/2 below 2. */
static void search_errors(const search *restrict s, float *restrict error) {
    for (int64_t b = 0; b < s->blocks; b++) error[b] = 0;
    for (int64_t i = 0; i < s->block; i++) {
        const float *restrict row = s->magnitudes + i * s->blocks;
        for (int64_t b = 0; b < s->blocks; b++) {
            float scaled = row[b] * s->inverse[b];
            scaled = scaled < 6.0f ? scaled : 6.0f;
            int32_t exponent = cpu_bits(scaled) & 0x7f800000, one = 127 << 23;
            float shift = cpu_float((exponent > one ? exponent : one) + (22 << 23));
            float nearest = (scaled + shift) - shift;
            float difference = row[b] * s->unit[b] - nearest * s->value[b];
            error[b] += difference * difference;
        }
    }
}

/* The candidates are the scales from now on where they are offered and better; first: the scales as they are. */
static void search_compare(search *s, int first, uint8_t *restrict scales, float *restrict inverse) {
    float error[BLOCKS_MAX];
    search_errors(s, error);
    for (int64_t b = 0; b < s->blocks; b++) {
        int32_t better = first | (s->is_offered[b] & (error[b] < s->least[b]));
        s->least[b] = better ? error[b] : s->least[b];
        inverse[b] = better && !first ? s->inverse[b] : inverse[b];
        scales[b] = (uint8_t)(better ? s->code[b] : scales[b]);
    }
}

static void search_nv(const float *x, int64_t blocks, int64_t block, float encode_scale, float decode, uint8_t *scales, float *inverse) {
    static const int steps[SEARCHED_NV] = RULES_NV_STEPS;
    int32_t plain[BLOCKS_MAX];
    search s;
    search_start(&s, x, blocks, block);
    for (int64_t b = 0; b < blocks; b++) {
        plain[b] = scales[b];
        s.unit[b] = encode_scale;
    }
    for (int step = 0; step < SEARCHED_NV; step++) {
        for (int64_t b = 0; b < blocks; b++) {
            int32_t code = plain[b] + steps[step];
            s.is_offered[b] = (plain[b] > 0) & (code > 0) & (code <= 0x7e);
            s.code[b] = code;
            s.value[b] = e4m3_value(code & 0x7f);
            float quotient = 1.0f / (s.value[b] * decode);
            s.inverse[b] = quotient < FLT_MAX ? quotient : FLT_MAX;
        }
        search_compare(&s, step == 0, scales, inverse);
    }
}

static void search_mx(const float *x, int64_t blocks, int64_t block, uint8_t *scales, float *inverse) {
    search s;
    search_start(&s, x, blocks, block);
    for (int64_t b = 0; b < blocks; b++) s.unit[b] = inverse[b];
    for (int step = 0; step < SEARCHED_MX; step++) {
        for (int64_t b = 0; b < blocks; b++) {
            int32_t code = scales[b];
            s.is_offered[b] = code > 0;
            s.code[b] = code - step;
            s.value[b] = step == 0 ? 1.0f : 0.5f;
            s.inverse[b] = step == 0 ? s.unit[b] : s.unit[b] * 2.0f;
        }
        search_compare(&s, step == 0, scales, inverse);
    }
}

/* ---- elements ---- */

/* The sizes of blocks are spelled out, so that none is too short for the vectors that a loop of unknown length would take. */
#define CODES(element, size) for (int64_t i = 0; i < (size); i++) codes[i] = (uint8_t)element(x[i] * inverse)
#define ELEMENTS(element)                                                                                                     \
    static void element##_block(const float *restrict x, int64_t count, float inverse, uint8_t *restrict codes) {             \
        if (count == 16) CODES(element, 16);                                                                                  \
        else if (count == 32) CODES(element, 32);                                                                             \
        else CODES(element, count);                                                                                           \
    }
ELEMENTS(e4m3)
ELEMENTS(e5m2)
ELEMENTS(e2m1)
#undef ELEMENTS
#undef CODES

static void pack_nibbles(const uint8_t *codes, int64_t count, uint8_t *restrict packed) {
    uint16_t pairs[CHUNK / 2];
    memcpy(pairs, codes, (size_t)count);
    for (int64_t i = 0; i < count / 2; i++) packed[i] = (uint8_t)(pairs[i] | pairs[i] >> 4);   /* little-endian: the first in the low nibble */
}

static void encode_chunk(dw_format element, const float *x, int64_t count, int64_t block, const float *inverse, uint8_t *data) {
    uint8_t codes[CHUNK];
    if (element == DW_FORMAT_e4m3) {
        for (int64_t i = 0; i < count / block; i++) e4m3_block(x + i * block, block, inverse[i], data + i * block);
    } else if (element == DW_FORMAT_e5m2) {
        for (int64_t i = 0; i < count / block; i++) e5m2_block(x + i * block, block, inverse[i], data + i * block);
    } else {
        for (int64_t i = 0; i < count / block; i++) e2m1_block(x + i * block, block, inverse[i], codes + i * block);
        pack_nibbles(codes, count, data);
    }
}

/* ---- rows ---- */

/* NVFP4's second level: false when the row has a NaN or an infinity, whose part in it num knows, or when the given one is no positive number: the scales under it are not those of these loops. */
static bool second_level(const quantize_row *row, float *encode_scale) {
    int32_t amax[BLOCKS_MAX], largest = 0;
    if (row->scaling.has_second) {
        if (!(*row->second > 0 && *row->second <= FLT_MAX)) return false;
        float quotient = 1.0f / *row->second;
        *encode_scale = row->scaling.encode > 0 ? row->scaling.encode : quotient < FLT_MAX ? quotient : FLT_MAX;
        return true;
    }
    for (int64_t at = 0; at < row->cols; at += CHUNK) {
        int64_t count = row->cols - at < CHUNK ? row->cols - at : CHUNK;
        block_maxima(row->x + at, count, 16, amax);
        for (int64_t i = 0; i < count / 16; i++) largest = largest > amax[i] ? largest : amax[i];
    }
    if (largest >= INFINITY_BITS) return false;
    float quotient = 2688.0f / cpu_float(largest);
    *encode_scale = largest == 0 ? 1.0f : quotient < FLT_MAX ? quotient : FLT_MAX;
    *row->second = 1.0f / *encode_scale;
    return true;
}

/* One fp32 scale for all of the row. */
static bool whole_row(const quantize_row *row, dw_format element) {
    const int32_t amax = largest_of(row->x, row->cols);
    float inverse[CHUNK / 16];
    if (amax >= INFINITY_BITS) return false;
    f32_scales(&amax, 1, row->scales, inverse);
    for (int64_t i = 1; i < CHUNK / 16; i++) inverse[i] = inverse[0];
    const int64_t blocks = row->cols / 16 * 16;
    for (int64_t at = 0; at < blocks; at += CHUNK) encode_chunk(element, row->x + at, blocks - at < CHUNK ? blocks - at : CHUNK, 16, inverse, row->data + at);
    if (blocks < row->cols) encode_chunk(element, row->x + blocks, row->cols - blocks, row->cols - blocks, inverse, row->data + blocks);
    return true;
}

bool QUANTIZE_ROW(const quantize_row *row) {
    const num_format *info = num_info(row->format);
    int64_t block = info->cols;
    bool element_fits = info->element == DW_FORMAT_e4m3 || info->element == DW_FORMAT_e5m2 || info->element == DW_FORMAT_e2m1;
    if (element_fits && info->rows == 1 && block == 0 && info->scale == DW_FORMAT_f32 && info->second == 0 && num_info(info->element)->bits == 8 && row->cols > 0) return whole_row(row, info->element);
    if (!element_fits || info->rows != 1 || block == 0 || row->cols % block != 0) return false;
    float encode_scale = 1;
    if (info->second != 0 && !second_level(row, &encode_scale)) return false;
    float factor = encode_scale * (1.0f / 6.0f), max = (float)num_info(info->element)->max;
    uint8_t *scales = row->scales, *data = row->data;
    for (int64_t at = 0; at < row->cols; at += CHUNK) {
        int64_t count = row->cols - at < CHUNK ? row->cols - at : CHUNK, blocks = count / block;
        int32_t amax[BLOCKS_MAX];
        float inverse[BLOCKS_MAX];
        block_maxima(row->x + at, count, block, amax);
        for (int64_t i = 0; i < blocks; i++)
            if (amax[i] >= INFINITY_BITS) return false;
        if (info->scale == DW_FORMAT_e8m0) mx_scales(amax, blocks, cpu_bits(max), row->scaling.round != NUM_ROUND_FLOOR, scales, inverse);
        else if (info->scale == DW_FORMAT_e4m3) nv_scales(amax, blocks, factor, *row->second, scales, inverse);
        else f32_scales(amax, blocks, (float *)(void *)scales, inverse);
        if (row->scaling.round == NUM_ROUND_SEARCH) {
            if (info->scale == DW_FORMAT_e8m0) search_mx(row->x + at, blocks, block, scales, inverse);
            else search_nv(row->x + at, blocks, block, encode_scale, *row->second, scales, inverse);
        }
        encode_chunk(info->element, row->x + at, count, block, inverse, data);
        scales += (size_t)blocks * ((size_t)num_info(info->scale)->bits / 8);
        data += num_row_bytes(row->format, count);
    }
    return true;
}
