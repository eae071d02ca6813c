/* Block formats spelled out: the quantiser that is their meaning, element by element with the codec of format.c, and the way back.
 * quantize.c has the same quantiser at speed. Sources of the rules: OCP MX 1.0 section 6.3; PTX ISA "cvt" (ue8m0, satfinite); NVFP4: Transformer Engine
 * (core_nvfp4.cuh), whose order of operations is part of the rule: multiplying by a reciprocal and dividing give different codes. */
#include "num/num.h"

#include <float.h>
#include <math.h>

#include "num/scale.h"
#include "num/small.h"
#include "num/view.h"

/* ---- quantise ---- */

/* fmax that keeps a NaN. */
static float larger(float a, float b) { return isnan(a) || a > b ? a : b; }

static float second_amax(const float *x, int64_t x_stride, int64_t first_row, int64_t rows, int64_t cols) {
    float amax = 0;
    for (int64_t r = first_row; r < first_row + rows; r++)
        for (int64_t c = 0; c < cols; c++)
            if (fabsf(x[r * x_stride + c]) > amax) amax = fabsf(x[r * x_stride + c]);   /* not fmaxf: it gives NaN for a signalling one */
    return amax;
}

/* The squared error of elements [begin, end) of a row under a candidate. */
static float candidate_error(const scale_candidate *candidate, float unit, const float *x, int64_t begin, int64_t end) {
    float sum = 0;
    for (int64_t c = begin; c < end; c++) {
        float nearest = (float)num_decode(DW_FORMAT_e2m1, num_encode(DW_FORMAT_e2m1, (double)(fabsf(x[c]) * candidate->inverse), true));
        float scaled = fabsf(x[c]) * unit, rounded = nearest * candidate->value, error = scaled - rounded, square = error * error;
        sum = sum + square;
    }
    return sum;
}

/* The block's scale becomes the best candidate; returns what its elements are multiplied by. */
static float search(const num_view *v, size_t index, float amax, const scale_rule *rule, float inverse, const float *x, int64_t begin, int64_t end) {
    scale_candidate candidates[SCALE_CANDIDATES];
    float unit, least;
    int count = scale_near(v, index, amax, rule, candidates, &unit);
    for (int i = 0; i < count && count > 1; i++) {
        float error = candidate_error(&candidates[i], unit, x, begin, end);
        if (i > 0 && !(error < least)) continue;
        least = error;
        inverse = candidates[i].inverse;
        ((uint8_t *)v->m->scales)[index] = candidates[i].code;
    }
    return inverse;
}

void num_quantize_reference(const float *x, int64_t x_stride, num_round round, bool has_second, num_matrix *out) {
    num_view v = num_view_of(out);
    num_view_clear(&v);
    scale_rule rule = {.round = round, .encode = 1.0f, .decode = 1.0f};
    if (v.f->second == 1) scale_second(second_amax(x, x_stride, 0, v.matrices * v.rows, v.cols), has_second, out->second, &rule);
    for (int64_t i = 0; i < v.matrices; i++)
        for (int64_t rb = 0; rb < v.row_blocks; rb++) {
            int64_t top = i * v.rows + rb * v.block_rows;
            int64_t bottom = top + num_least(v.block_rows, v.rows - rb * v.block_rows);
            if (v.f->second == 2) scale_second(second_amax(x, x_stride, top, 1, v.cols), has_second, out->second + top, &rule);
            for (int64_t cb = 0; cb < v.col_blocks; cb++) {
                int64_t begin = cb * v.block_cols, end = num_least(begin + v.block_cols, v.cols);
                float amax = 0;
                for (int64_t r = top; r < bottom; r++)
                    for (int64_t c = begin; c < end; c++) amax = larger(fabsf(x[r * x_stride + c]), amax);
                size_t index = num_view_scale(&v, i, rb, cb);
                float inverse = scale_block(&v, index, amax, &rule);
                if (num_can_search(out->format)) inverse = search(&v, index, amax, &rule, inverse, x + top * x_stride, begin, end);   /* whose blocks have one row */
                for (int64_t r = top; r < bottom; r++)
                    for (int64_t c = begin; c < end; c++)
                        num_store(v.f->element, num_view_row(&v, r), c, (double)(x[r * x_stride + c] * inverse), true);
            }
        }
}

/* ---- and back ---- */

/* The values of all codes of a format of up to 8 bits. */
static void decode_all(dw_format element, float values[256]) {
    int count = 1 << num_info(element)->bits;
    for (int code = 0; code < count; code++) values[code] = (float)num_decode(element, (uint64_t)code);
}

static int code_at(int bits, const uint8_t *row, int64_t index) {
    if (bits == 8) return row[index];
    if (bits == 4) return row[index / 2] >> (index % 2 * 4) & 15;
    int64_t bit = index * 6;
    int shift = (int)(bit % 8);
    int low = row[bit / 8] >> shift;
    return (shift > 2 ? low | row[bit / 8 + 1] << (8 - shift) : low) & 63;
}

static float scale_value(const num_view *v, size_t index) {
    const uint8_t *bytes = v->m->scales;
    if (v->f->scale == DW_FORMAT_e8m0) return num_e8m0_to_f32(bytes[index]);
    if (v->f->scale == DW_FORMAT_e4m3) return num_e4m3_to_f32(bytes[index]);
    return ((const float *)v->m->scales)[index];
}

/* A run of elements of one row under one scale. */
typedef struct run {
    int64_t row, begin, end;             /* row counts through all matrices */
    const uint8_t *codes;                /* the row's data */
    float scale;
} run;

/* Calls visit for every run, row by row from left to right; stops when it returns false. */
static bool for_each_run(const num_view *v, bool (*visit)(const num_view *v, const run *run, void *argument), void *argument) {
    for (int64_t i = 0; i < v->matrices; i++)
        for (int64_t r = 0; r < v->rows; r++)
            for (int64_t cb = 0; cb < v->col_blocks; cb++) {
                int64_t begin = cb * v->block_cols;
                run run = {.row = i * v->rows + r, .begin = begin, .end = num_least(begin + v->block_cols, v->cols)};
                if (run.begin == run.end) continue;
                run.codes = num_view_row(v, run.row);
                run.scale = scale_value(v, num_view_scale(v, i, r / v->block_rows, cb));
                if (!visit(v, &run, argument)) return false;
            }
    return true;
}

typedef struct dequantize_job {
    float values[256];
    float *x;            /* one of x and codes is the output */
    uint16_t *codes;
    int64_t x_stride;
    bool plain;          /* leave the scale out */
} dequantize_job;

static bool dequantize_run(const num_view *v, const run *run, void *argument) {
    dequantize_job *job = argument;
    float *x = job->x + run->row * job->x_stride;
    const float *second = v->m->second;
    for (int64_t c = run->begin; c < run->end; c++) x[c] = job->values[code_at(v->f->bits, run->codes, c)] * run->scale;
    if (v->f->second == 0 || second == NULL) return true;
    float factor = v->f->second == 1 ? second[0] : second[run->row];
    for (int64_t c = run->begin; c < run->end; c++) x[c] *= factor;
    return true;
}

void num_dequantize(const num_matrix *in, float *x, int64_t x_stride) {
    num_view v = num_view_of(in);
    dequantize_job job = {.x = x, .x_stride = x_stride};
    decode_all(v.f->element, job.values);
    for_each_run(&v, dequantize_run, &job);
}

static bool dequantize_bf16_run(const num_view *v, const run *run, void *argument) {
    dequantize_job *job = argument;
    uint16_t *codes = job->codes + run->row * job->x_stride;
    float scale = job->plain ? 1.0f : run->scale;
    for (int64_t c = run->begin; c < run->end; c++) codes[c] = (uint16_t)small_bf16(job->values[code_at(v->f->bits, run->codes, c)] * scale);
    return true;
}

void num_dequantize_bf16(const num_matrix *in, uint16_t *x, int64_t x_stride) {
    num_view v = num_view_of(in);
    dequantize_job job = {.codes = x, .x_stride = x_stride, .plain = v.f->scale == DW_FORMAT_f32};
    decode_all(v.f->element, job.values);
    for_each_run(&v, dequantize_bf16_run, &job);
}

static bool is_run_exact(const num_view *v, const run *run, void *argument) {
    const dequantize_job *job = argument;
    if (run->scale >= 0x1p-110f && run->scale <= 0x1p112f) return true;
    for (int64_t c = run->begin; c < run->end; c++) {
        float element = job->values[code_at(v->f->bits, run->codes, c)], product = element * run->scale;
        if (isnan(product) || isinf(element) || product == 0) continue;
        if (isinf(product) || fabsf(product) < FLT_MIN) return false;
    }
    return true;
}

bool num_is_bf16_exact(const num_matrix *in) {
    num_view v = num_view_of(in);
    if (v.f->scale != DW_FORMAT_e8m0) return true;
    dequantize_job job = {0};
    decode_all(v.f->element, job.values);
    return for_each_run(&v, is_run_exact, &job);
}
