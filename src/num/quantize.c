/* num_quantize at speed: the same bits as num_quantize_reference, by loops over 16 lanes that compilers vectorise for any
 * instruction set. The rules for scales are in scale.c. */
#include "num/num.h"

#include <assert.h>

#include "num/scale.h"
#include "num/small.h"
#include "num/view.h"

enum { LANES = 16, PACKED_BLOCK_MAX = 32 };

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* The largest of the magnitudes' bits, which order as the magnitudes do: a NaN is larger than all, so it is kept. */
static int32_t amax_bits(const float *x, int64_t count) {
    int32_t lane[LANES] = {0}, result = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] = larger(lane[j], small_bits(x[i + j]) & 0x7fffffff);
    for (; i < count; i++) result = larger(result, small_bits(x[i]) & 0x7fffffff);
    for (int j = 0; j < LANES; j++) result = larger(result, lane[j]);
    return result;
}

/* The same with NaN left out. */
static int32_t amax_bits_finite(const float *x, int64_t count) {
    int32_t all = amax_bits(x, count);
    if (all <= SMALL_F32_INFINITY) return all;
    int32_t result = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits = small_bits(x[i]) & 0x7fffffff;
        if (bits <= SMALL_F32_INFINITY) result = larger(result, bits);
    }
    return result;
}

float num_amax(const float *x, int64_t count) { return small_float(amax_bits_finite(x, count)); }

/* ---- elements: count values times inverse, a code in each byte ---- */

#define ENCODE(element)                                                                                                       \
    static void encode_##element(const float *restrict x, int64_t count, float inverse, uint8_t *restrict codes)              \
    {                                                                                                                         \
        int64_t i = 0;                                                                                                        \
        for (; i + LANES <= count; i += LANES)                                                                                \
            for (int j = 0; j < LANES; j++) codes[i + j] = (uint8_t)small_##element(x[i + j] * inverse);                      \
        for (; i < count; i++) codes[i] = (uint8_t)small_##element(x[i] * inverse);                                           \
    }
ENCODE(e4m3)
ENCODE(e5m2)
ENCODE(e3m2)
ENCODE(e2m3)
ENCODE(e2m1)
#undef ENCODE

/* codes has PACKED_BLOCK_MAX bytes, those past count zero. */
static void pack_4(const uint8_t *restrict codes, int64_t count, uint8_t *restrict packed) {
    for (int64_t i = 0; 2 * i < count; i++) packed[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
}

static void pack_6(const uint8_t *restrict codes, int64_t count, uint8_t *restrict packed) {
    for (int64_t i = 0, bytes = (count * 6 + 7) / 8; i < bytes; i++) {
        const uint8_t *four = codes + i / 3 * 4;
        uint32_t bits = four[0] | (uint32_t)four[1] << 6 | (uint32_t)four[2] << 12 | (uint32_t)four[3] << 18;
        packed[i] = (uint8_t)(bits >> (i % 3 * 8));
    }
}

/* Elements begin..end of a row, where begin is a multiple of the block: it starts on a byte. */
static void encode_run(const num_view *v, const float *x, int64_t begin, int64_t end, float inverse, uint8_t *row) {
    int64_t count = end - begin;
    uint8_t *to = row + begin * v->f->bits / 8;
    uint8_t codes[PACKED_BLOCK_MAX] = {0};
    switch (v->f->element) {
    case DW_FORMAT_e4m3: encode_e4m3(x + begin, count, inverse, to); return;
    case DW_FORMAT_e5m2: encode_e5m2(x + begin, count, inverse, to); return;
    case DW_FORMAT_e3m2: encode_e3m2(x + begin, count, inverse, codes); pack_6(codes, count, to); return;
    case DW_FORMAT_e2m3: encode_e2m3(x + begin, count, inverse, codes); pack_6(codes, count, to); return;
    case DW_FORMAT_e2m1: encode_e2m1(x + begin, count, inverse, codes); pack_4(codes, count, to); return;
    default: assert(!"a block format whose elements have no encoder here");
    }
}

/* ---- blocks ---- */

/* The squared error of count elements under a candidate. */
static float candidate_error(const scale_candidate *candidate, float unit, const float *x, int64_t count) {
    float sum = 0;
    for (int64_t i = 0; i < count; i++) {
        float magnitude = small_float(small_bits(x[i]) & 0x7fffffff);
        float nearest = small_decode(small_e2m1(magnitude * candidate->inverse), 1, 1);
        float error = magnitude * unit - nearest * candidate->value;
        sum += error * error;
    }
    return sum;
}

/* The block's scale becomes the best candidate; returns what its elements are multiplied by. */
static float search(const num_view *v, size_t index, float amax, const scale_rule *rule, float inverse, const float *x, int64_t count) {
    scale_candidate candidates[SCALE_CANDIDATES];
    float unit;
    int candidate_count = scale_near(v, index, amax, rule, candidates, &unit), best = 0;
    if (candidate_count == 1) return inverse;
    float least = candidate_error(&candidates[0], unit, x, count);
    for (int i = 1; i < candidate_count; i++) {
        float error = candidate_error(&candidates[i], unit, x, count);
        if (!(error < least)) continue;
        least = error;
        best = i;
    }
    ((uint8_t *)v->m->scales)[index] = candidates[best].code;
    return candidates[best].inverse;
}

/* One row block: the rows that share scales. */
static void quantize_row_block(const num_view *v, const float *x, int64_t x_stride, int64_t matrix, int64_t row_block, bool has_second, scale_rule rule) {
    int64_t top = matrix * v->rows + row_block * v->block_rows;
    int64_t bottom = top + num_least(v->block_rows, v->rows - row_block * v->block_rows);
    if (v->f->second == 2) {
        int32_t amax = has_second || v->cols == 0 ? 0 : amax_bits_finite(x + top * x_stride, v->cols);
        scale_second(small_float(amax), has_second, v->m->second + top, &rule);
    }
    for (int64_t cb = 0; cb < v->col_blocks; cb++) {
        int64_t begin = cb * v->block_cols, end = num_least(begin + v->block_cols, v->cols);
        int32_t amax = 0;
        for (int64_t r = top; r < bottom && begin < end; r++) amax = larger(amax, amax_bits(x + r * x_stride + begin, end - begin));
        size_t index = num_view_scale(v, matrix, row_block, cb);
        float inverse = scale_block(v, index, small_float(amax), &rule);
        if (num_can_search(v->m->format)) inverse = search(v, index, small_float(amax), &rule, inverse, x + top * x_stride + begin, end - begin);   /* whose blocks have one row */
        for (int64_t r = top; r < bottom && begin < end; r++) encode_run(v, x + r * x_stride, begin, end, inverse, num_view_row(v, r));
    }
}

void num_quantize(const float *x, int64_t x_stride, num_round round, bool has_second, num_matrix *out) {
    num_view v = num_view_of(out);
    scale_rule rule = {.round = round, .encode = 1.0f, .decode = 1.0f};
    if (out->layout != DW_SCALE_plain) num_view_clear(&v);
    if (v.f->second == 1) {
        int32_t amax = 0;
        for (int64_t r = 0; r < v.matrices * v.rows && v.cols > 0 && !has_second; r++) amax = larger(amax, amax_bits_finite(x + r * x_stride, v.cols));
        scale_second(small_float(amax), has_second, out->second, &rule);
    }
    for (int64_t i = 0; i < v.matrices; i++)
        for (int64_t rb = 0; rb < v.row_blocks; rb++) quantize_row_block(&v, x, x_stride, i, rb, has_second, rule);
}

bool num_is_row_wise(dw_format format, bool has_second) {
    const num_format *f = num_info(format);
    return f->class == NUM_BLOCK && f->rows == 1 && (f->second != 1 || has_second);
}

void num_quantize_rows(const float *x, int64_t x_stride, const num_scaling *scaling, num_matrix *out, int64_t begin, int64_t end) {
    assert(num_is_row_wise(out->format, scaling->has_second));
    num_view v = num_view_of(out);
    scale_rule rule = {.round = scaling->round, .encode = 1.0f, .decode = 1.0f};
    if (v.f->second == 1) scale_second(0, scaling->has_second, out->second, &rule);
    if (v.f->second == 1 && scaling->encode > 0) rule.encode = scaling->encode;
    for (int64_t row = begin; row < end; row++) quantize_row_block(&v, x, x_stride, row / v.rows, row % v.rows, scaling->has_second, rule);
}
