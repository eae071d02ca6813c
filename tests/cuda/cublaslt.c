/* A stand-in for cuBLASLt, in the same file as that for the driver: what it is asked for is checked, and computed in doubles on the host when its turn in the
 * stream comes. It knows the rules of the real one that rows have to keep; how fast anything is it does not know. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/library/cublaslt_abi.h"
#include "num/small.h"
#include "tests/cuda/control.h"

#define CUBLASLT_CALL(returns, name, parameters) returns cublasLt##name parameters;
#include "kernels/library/cublaslt.def"
#undef CUBLASLT_CALL

extern fake_cuda_control fake_cuda;

struct cublaslt_handle_st { int unused; };
struct cublaslt_desc_st {
    int32_t transpose_a, transpose_b, bias_type, mode_a, mode_b;
    uint32_t epilogue;
    uint64_t bias, scales_a, scales_b;
};
struct cublaslt_layout_st { cublaslt_type type; int64_t rows, cols, stride, batch; int32_t batches; };
struct cublaslt_preference_st { uint64_t workspace; uint32_t reductions, alignments[4]; };

/* ---- handles and descriptions ---- */

static void *make(size_t bytes) {
    fake_cuda.library_live++;
    return calloc(1, bytes);
}
static cublaslt_status drop(void *memory) {
    fake_cuda.library_live--;
    free(memory);
    return CUBLASLT_OK;
}

size_t cublasLtGetVersion(void) { return (size_t)fake_cuda.library_version; }
const char *cublasLtGetStatusName(cublaslt_status status) { return status == CUBLASLT_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS"; }
cublaslt_status cublasLtCreate(cublaslt_handle *handle) { *handle = make(sizeof **handle); return CUBLASLT_OK; }
cublaslt_status cublasLtDestroy(cublaslt_handle handle) { return drop(handle); }
cublaslt_status cublasLtMatmulDescCreate(cublaslt_desc *desc, cublaslt_compute compute, cublaslt_type scale) {
    *desc = make(sizeof **desc);
    (*desc)->epilogue = CUBLASLT_POST_NONE;
    (*desc)->bias_type = -1;
    return compute == CUBLASLT_COMPUTE_F32 && scale == CUBLASLT_F32 ? CUBLASLT_OK : CUBLASLT_INVALID_VALUE;
}
cublaslt_status cublasLtMatmulDescDestroy(cublaslt_desc desc) { return drop(desc); }

static cublaslt_status set(void *field, size_t size, const void *value, size_t bytes) {
    if (size != bytes) return CUBLASLT_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLASLT_OK;
}
#define SET(field) return set(&(field), sizeof(field), value, bytes)

cublaslt_status cublasLtMatmulDescSetAttribute(cublaslt_desc desc, cublaslt_desc_attribute attribute, const void *value, size_t bytes) {
    switch (attribute) {
    case CUBLASLT_DESC_TRANSPOSE_A: SET(desc->transpose_a);
    case CUBLASLT_DESC_TRANSPOSE_B: SET(desc->transpose_b);
    case CUBLASLT_DESC_EPILOGUE: SET(desc->epilogue);
    case CUBLASLT_DESC_BIAS: SET(desc->bias);
    case CUBLASLT_DESC_SCALES_A: SET(desc->scales_a);
    case CUBLASLT_DESC_SCALES_B: SET(desc->scales_b);
    case CUBLASLT_DESC_BIAS_TYPE: SET(desc->bias_type);
    case CUBLASLT_DESC_SCALE_MODE_A: SET(desc->mode_a);
    case CUBLASLT_DESC_SCALE_MODE_B: SET(desc->mode_b);
    }
    return CUBLASLT_INVALID_VALUE;
}

cublaslt_status cublasLtMatrixLayoutCreate(cublaslt_layout *layout, cublaslt_type type, uint64_t rows, uint64_t cols, int64_t stride) {
    *layout = make(sizeof **layout);
    **layout = (struct cublaslt_layout_st){type, (int64_t)rows, (int64_t)cols, stride, 0, 1};
    return rows > 0 && cols > 0 && stride >= (int64_t)rows ? CUBLASLT_OK : CUBLASLT_INVALID_VALUE;
}
cublaslt_status cublasLtMatrixLayoutDestroy(cublaslt_layout layout) { return drop(layout); }
cublaslt_status cublasLtMatrixLayoutSetAttribute(cublaslt_layout layout, cublaslt_layout_attribute attribute, const void *value, size_t bytes) {
    if (attribute == CUBLASLT_LAYOUT_BATCHES) SET(layout->batches);
    SET(layout->batch);
}

cublaslt_status cublasLtMatmulPreferenceCreate(cublaslt_preference *preference) {
    *preference = make(sizeof **preference);
    for (int i = 0; i < 4; i++) (*preference)->alignments[i] = 256;
    return CUBLASLT_OK;
}
cublaslt_status cublasLtMatmulPreferenceDestroy(cublaslt_preference preference) { return drop(preference); }
cublaslt_status cublasLtMatmulPreferenceSetAttribute(cublaslt_preference preference, cublaslt_preference_attribute attribute, const void *value, size_t bytes) {
    if (attribute == CUBLASLT_PREFER_WORKSPACE_BYTES) SET(preference->workspace);
    if (attribute == CUBLASLT_PREFER_REDUCTIONS) SET(preference->reductions);
    SET(preference->alignments[attribute - CUBLASLT_PREFER_ALIGNMENT_A]);
}

/* ---- what it takes ---- */

static int is_8_bits(cublaslt_type type) { return type == CUBLASLT_E4M3; }

static int is_product(const struct cublaslt_desc_st *d, const struct cublaslt_layout_st *a, const struct cublaslt_layout_st *b, const struct cublaslt_layout_st *out) {
    const int64_t m = d->transpose_a ? a->cols : a->rows, k = d->transpose_a ? a->rows : a->cols, n = d->transpose_b ? b->rows : b->cols;
    if (k != (d->transpose_b ? b->cols : b->rows) || out->rows != m || out->cols != n) return 0;
    if (a->type != b->type || a->batches != b->batches || a->batches != out->batches) return 0;
    if (!is_8_bits(a->type)) return d->scales_a == 0 && d->scales_b == 0 && (out->type == a->type || out->type == CUBLASLT_F32);
    if (!d->transpose_a || d->transpose_b || k % 16 != 0 || m % 16 != 0 || d->scales_a == 0 || d->scales_b == 0) return 0;
    if (d->mode_b == CUBLASLT_SCALE_1X128 && n % 4 != 0) return 0;
    return d->mode_a == d->mode_b || (d->mode_a == CUBLASLT_SCALE_128X128 && d->mode_b == CUBLASLT_SCALE_1X128);
}

/* Two candidates, which are told apart by their first number. */
cublaslt_status cublasLtMatmulAlgoGetHeuristic(cublaslt_handle handle, cublaslt_desc desc, cublaslt_layout a, cublaslt_layout b, cublaslt_layout c, cublaslt_layout d,
                                               cublaslt_preference preference, int asked, cublaslt_candidate *candidates, int *found) {
    *found = 0;
    fake_cuda.library_asked++;
    if (handle == NULL || asked < 2 || preference->workspace == 0 || preference->reductions != CUBLASLT_REDUCTION_F32) return CUBLASLT_INVALID_VALUE;
    if (fake_cuda.library_refuses || c->type != d->type || !is_product(desc, a, b, d)) return CUBLASLT_NOT_SUPPORTED;
    for (*found = 0; *found < 2; ++*found) candidates[*found] = (cublaslt_candidate){.algorithm = {{(uint64_t)*found + 1}}, .workspace_bytes = preference->workspace};
    return CUBLASLT_OK;
}

/* ---- the product ---- */

typedef struct product {
    struct cublaslt_desc_st desc;
    struct cublaslt_layout_st a, b, d;
    const void *a_data, *b_data, *c_data;
    void *d_data;
    float alpha, beta;
} product;

static double number(int32_t type, const void *data, int64_t at) {
    switch (type) {
    case CUBLASLT_F32: return ((const float *)data)[at];
    case CUBLASLT_F16: return small_from_f16(((const uint16_t *)data)[at]);
    case CUBLASLT_BF16: return small_from_bf16(((const uint16_t *)data)[at]);
    default: return small_from_e4m3(((const uint8_t *)data)[at]);
    }
}

static void store(int32_t type, void *data, int64_t at, double value) {
    switch (type) {
    case CUBLASLT_F32: ((float *)data)[at] = (float)value; break;
    case CUBLASLT_F16: ((uint16_t *)data)[at] = (uint16_t)small_f16((float)value); break;
    default: ((uint16_t *)data)[at] = (uint16_t)small_bf16((float)value); break;
    }
}

static double load(const struct cublaslt_layout_st *x, const void *data, int64_t batch, int64_t row, int64_t col) {
    return number((int32_t)x->type, data, batch * x->batch + row + col * x->stride);
}

/* outer: the row of a or the column of b; size: how many there are; l: along k. */
static double scale(int32_t mode, uint64_t address, int64_t outer, int64_t size, int64_t l, int64_t k) {
    const float *scales = (const float *)(uintptr_t)address;
    const uint8_t *bytes = (const uint8_t *)(uintptr_t)address;
    const int64_t blocks = (k + 127) / 128, c = l / 32, wide = (k / 32 + 3) / 4;
    if (scales == NULL) return 1;
    switch (mode) {
    case CUBLASLT_SCALE_ONE: return scales[0];
    case CUBLASLT_SCALE_EACH: return scales[outer];
    case CUBLASLT_SCALE_1X128: return scales[l / 128 * size + outer];
    case CUBLASLT_SCALE_128X128: return scales[outer / 128 * ((blocks + 3) / 4 * 4) + l / 128];
    case CUBLASLT_SCALE_32_E8M0: return ldexp(1, bytes[(outer / 128 * wide + c / 4) * 512 + outer % 32 * 16 + outer % 128 / 32 * 4 + c % 4] - 127);
    default: return NAN;
    }
}

static double rounded(int32_t type, double value) {
    uint16_t half;
    store(type, &half, 0, value);
    return number(type, &half, 0);
}

/* Is a result of 16 bits written over what is added to it? */
static bool is_over(const product *p) { return p->beta != 0 && p->c_data == p->d_data && p->d.type != CUBLASLT_F32; }

static double finish(const product *p, int64_t batch, int64_t i, int64_t j, double sum) {
    double y = p->alpha * sum;
    if (is_over(p)) y = rounded((int32_t)p->d.type, y);   /* as it was seen to do on an H200 */
    if (p->beta != 0) y += p->beta * load(&p->d, p->c_data, batch, i, j);
    if (p->desc.epilogue & CUBLASLT_POST_BIAS) y += number(p->desc.bias_type, (const void *)(uintptr_t)p->desc.bias, i);
    if (p->desc.epilogue & CUBLASLT_POST_RELU) y = y > 0 ? y : 0;
    if (p->desc.epilogue & CUBLASLT_POST_GELU) y *= 0.5 * (1 + tanh(0.7978845608028654 * (y + 0.044715 * y * y * y)));
    return y;
}

static void run(const void *arguments) {
    const product *p = arguments;
    const struct cublaslt_desc_st *d = &p->desc;
    const int64_t m = p->d.rows, n = p->d.cols, k = d->transpose_a ? p->a.rows : p->a.cols;
    fake_cuda.library_calls++;
    fake_cuda.library_over += is_over(p);
    for (int32_t batch = 0; batch < p->d.batches; batch++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++)
                    sum += load(&p->a, p->a_data, batch, d->transpose_a ? l : i, d->transpose_a ? i : l) * scale(d->mode_a, d->scales_a, i, m, l, k) *
                           load(&p->b, p->b_data, batch, d->transpose_b ? j : l, d->transpose_b ? l : j) * scale(d->mode_b, d->scales_b, j, n, l, k);
                store((int32_t)p->d.type, p->d_data, batch * p->d.batch + i + j * p->d.stride, finish(p, batch, i, j, sum));
            }
}

cublaslt_status cublasLtMatmul(cublaslt_handle handle, cublaslt_desc desc, const void *alpha, const void *a, cublaslt_layout a_layout, const void *b, cublaslt_layout b_layout,
                               const void *beta, const void *c, cublaslt_layout c_layout, void *d, cublaslt_layout d_layout, const cublaslt_algorithm *algorithm,
                               void *workspace, size_t workspace_bytes, void *stream) {
    const product p = {*desc, *a_layout, *b_layout, *d_layout, a, b, c, d, *(const float *)alpha, *(const float *)beta};
    if ((uintptr_t)workspace % 256 != 0) return CUBLASLT_INVALID_VALUE;
    if (handle == NULL || c_layout->type != d_layout->type || !is_product(desc, a_layout, b_layout, d_layout) || algorithm->opaque[0] < 1 || algorithm->opaque[0] > 2)
        return CUBLASLT_INVALID_VALUE;
    memset(workspace, 0xff, workspace_bytes < 4096 ? workspace_bytes : 4096);   /* the library's own */
    fake_cuda_put(stream, run, &p, sizeof p);
    return CUBLASLT_OK;
}
