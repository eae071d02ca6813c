/* The device half of cuda_matmul.c: inputs, the plain meaning of a product in double, and the comparison. Shares no arithmetic with the kernels that it is
 * held against; slow. */
#include <stdint.h>

#include "bench/cuda_matmul.h"

static __device__ uint32_t mix(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ULL;
    return (uint32_t)(x ^ x >> 33);
}

static __device__ float gauss(uint64_t at, uint64_t seed) {
    float u = (mix(2 * at + seed * 0x9e3779b97f4a7c15ULL) + 1.0f) * 2.3283e-10f, v = mix(2 * at + 1 + seed * 0x9e3779b97f4a7c15ULL) * 2.3283e-10f;
    return sqrtf(-2 * logf(fminf(u, 0.99999994f))) * cospif(2 * v);
}

static __device__ double decode_small(unsigned code, int exponent_bits, int mantissa_bits, int bias) {
    int mantissa = code & ((1 << mantissa_bits) - 1), exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
    double magnitude = exponent == 0 ? scalbn((double)mantissa, 1 - bias - mantissa_bits) : scalbn((double)(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
}

static __device__ double decode(int format, const void *data, int64_t at) {
    switch (format) {
    case MATMUL_f32: return ((const float *)data)[at];
    case MATMUL_bf16: return __uint_as_float((uint32_t)((const uint16_t *)data)[at] << 16);
    case MATMUL_f16: return decode_small(((const uint16_t *)data)[at], 5, 10, 15);
    case MATMUL_e4m3: return decode_small(((const uint8_t *)data)[at], 4, 3, 7);
    case MATMUL_e2m1: return decode_small(((const uint8_t *)data)[at / 2] >> at % 2 * 4 & 15, 2, 1, 1);
    case MATMUL_e8m0: return scalbn(1.0, ((const uint8_t *)data)[at] - 127);
    }
    return 0;
}

static __device__ double element(const bench_operand *x, int64_t row, int64_t col) {
    double value = decode(x->element, (const void *)x->data, row * x->row_stride + col);
    if (x->scale_format == MATMUL_FORMAT_COUNT) return value;
    int64_t scale_row = x->block_rows > 0 ? row / x->block_rows : 0, scale_col = x->block_cols > 0 ? col / x->block_cols : 0;
    value *= decode(x->scale_format, (const void *)x->scales, scale_row * x->scale_stride + scale_col);
    if (x->second_kind == 1) value *= *(const float *)x->second;
    if (x->second_kind == 2) value *= ((const float *)x->second)[row];
    return value;
}

static __device__ double post(int step, double y, double x) {
    switch (step) {
    case MATMUL_POST_bias:
    case MATMUL_POST_add: return y + x;
    case MATMUL_POST_mul: return y * x;
    case MATMUL_POST_relu: case MATMUL_POST_reglu: return y < 0 ? 0 : y;
    case MATMUL_POST_silu: case MATMUL_POST_swiglu: return y / (1 + exp(-y));
    case MATMUL_POST_gelu: case MATMUL_POST_geglu: return 0.5 * y * (1 + erf(y * 0.70710678118654752));
    case MATMUL_POST_gelu_tanh: case MATMUL_POST_geglu_tanh: return 0.5 * y * (1 + tanh(0.79788456080286536 * (y + 0.044715 * y * y * y)));
    case MATMUL_POST_quick_gelu: return y / (1 + exp(-1.702 * y));
    case MATMUL_POST_tanh: return tanh(y);
    case MATMUL_POST_sigmoid: return 1 / (1 + exp(-y));
    }
    return y;
}

static __device__ double sum_at(const bench_reference *g, int64_t row, int64_t col) {
    double sum = 0;
    for (int64_t i = 0; i < g->k; i++) sum += element(&g->a, row, i) * element(&g->b, col, i);
    return sum * g->epilogue.alpha;
}

static __device__ double step_at(const matmul_step *s, double y, int64_t row, int64_t col) {
    return post(s->step, y, s->data != 0 ? decode(s->format, (const void *)s->data, row * s->row_stride + col * s->col_stride) : 0);
}

/* Rows 0, row_step, 2 row_step.. of the result; out [rows][n_out] double. */
extern "C" __global__ void bench_reference_kernel(const __grid_constant__ bench_reference g) {
    const matmul_epilogue *e = &g.epilogue;
    int64_t n_out = e->halving >= 0 ? e->half : g.n, at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (g.m + g.row_step - 1) / g.row_step * n_out) return;
    int64_t row = at / n_out * g.row_step, col = at % n_out;
    double y = sum_at(&g, row, col);
    int first = e->halving >= 0 ? e->halving : e->count;
    for (int i = 0; i < first; i++) y = step_at(&e->steps[i], y, row, col);
    if (e->halving >= 0) {
        double up = sum_at(&g, row, col + e->half);
        for (int i = 0; i < first; i++) up = step_at(&e->steps[i], up, row, col + e->half);
        y = post(e->steps[first].step, y, 0) * up;
        for (int i = first + 1; i < e->count; i++) y = step_at(&e->steps[i], y, row, col);
    }
    ((double *)g.out)[at] = y;
}

/* result[0]: largest magnitude of the reference, result[1]: largest error beyond half a unit in the last place of the result's format, as bits of floats;
 * result[2]: how many elements are no numbers or were not written; result[3]: elements written outside. */
extern "C" __global__ void bench_compare_kernel(const __grid_constant__ bench_reference g) {
    const matmul_epilogue *e = &g.epilogue;
    int64_t n_out = e->halving >= 0 ? e->half : g.n, rows = (g.m + g.row_step - 1) / g.row_step, at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned *result = (unsigned *)g.result;
    if (at < g.guard && ((const uint8_t *)e->out)[(g.m - 1) * e->out_row_stride * g.out_bytes + n_out * g.out_bytes + at] != 0xff) atomicAdd(&result[3], 1u);
    if (at >= rows * n_out) return;
    double expected = ((const double *)g.out)[at], got = decode(e->out_format, (const void *)e->out, at / n_out * g.row_step * e->out_row_stride + at % n_out);
    double error = fabs(got - expected) - (e->out_format == MATMUL_f32 ? 0 : fabs(expected) * (e->out_format == MATMUL_bf16 ? 1.0 / 256 : 1.0 / 2048));
    atomicMax(&result[0], __float_as_uint((float)fabs(expected)));
    if (!(fabs(got) < 1e30)) atomicAdd(&result[2], 1u);
    else if (error > 0) atomicMax(&result[1], __float_as_uint((float)error));
}

extern "C" __global__ void bench_fill_kernel(uint64_t data, int format, int64_t count, uint64_t seed) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        float x = gauss(i, seed);
        switch (format) {
        case MATMUL_f32: ((float *)data)[i] = x; break;
        case MATMUL_bf16: ((uint16_t *)data)[i] = (uint16_t)(__float_as_uint(x) + 0x8000 >> 16); break;
        case MATMUL_f16: {
            uint32_t bits = __float_as_uint(fmaxf(fabsf(x), 0.001f));   /* truncated; normal in f16 */
            ((uint16_t *)data)[i] = (uint16_t)((x < 0 ? 0x8000 : 0) | ((bits >> 13) - (112 << 10)));
            break;
        }
        case MATMUL_e4m3: {
            uint32_t bits = __float_as_uint(fminf(fmaxf(fabsf(x) * 100, 0.02f), 440));
            ((uint8_t *)data)[i] = (uint8_t)((x < 0 ? 0x80 : 0) | ((bits >> 20) - (120 << 3)));
            break;
        }
        case MATMUL_e2m1: ((uint8_t *)data)[i] = (uint8_t)mix(i * 7 + seed); break;      /* pairs: count is of bytes */
        case MATMUL_e8m0: ((uint8_t *)data)[i] = (uint8_t)(116 + mix(i * 5 + seed) % 8); break;
        case MATMUL_FORMAT_COUNT: ((float *)data)[i] = 0.005f + 0.01f * (mix(i + seed) * 2.3283e-10f); break;   /* positive scales */
        case MATMUL_FORMAT_COUNT + 1: ((uint8_t *)data)[i] = (uint8_t)(8 + mix(i * 3 + seed) % 64); break;      /* positive e4m3 scales */
        }
    }
}
