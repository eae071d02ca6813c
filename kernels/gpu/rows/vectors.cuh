/* Vectors of eight elements that lie side by side, as fp32 in registers: f32, bf16, f16 (and bool as a result). The nest counts vectors; host.h makes it so. */
#ifndef KERNELS_GPU_ROWS_VECTORS_CUH
#define KERNELS_GPU_ROWS_VECTORS_CUH

#include "kernels/gpu/rows/row_parts.cuh"

static_assert((int)PIECE == (int)CUDA_VECTOR, "a vector is a piece");

INLINE uint4 load_uint4(const cuda_array *array, int64_t at, const int bytes) { return *(const uint4 *)(array->data + (uint64_t)at * bytes); }
INLINE void store_uint4(const cuda_array *array, int64_t at, const int bytes, uint4 words) { *(uint4 *)(array->data + (uint64_t)at * bytes) = words; }

INLINE void load_vector_of(const int format, const cuda_array *array, int64_t at, float *x) {
    if (format != CUDA_f32) {
        unpack_halves(format, load_uint4(array, at, 2), x);
        return;
    }
    uint4 low = load_uint4(array, at, 4), high = load_uint4(array, at + 4, 4);
    uint32_t bits[PIECE] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    EACH_OF_PIECE(i) x[i] = __uint_as_float(bits[i]);
}

/* step 0: one element for all eight. */
INLINE void load_vector(const cuda_array *array, int64_t at, int step, float *x) {
    if (step == 0) {
        float one = element_at(array->format, array->data, at);
        EACH_OF_PIECE(i) x[i] = one;
    } else if (array->format == CUDA_f32) {
        load_vector_of(CUDA_f32, array, at, x);
    } else if (array->format == CUDA_bf16) {
        load_vector_of(CUDA_bf16, array, at, x);
    } else {
        load_vector_of(CUDA_f16, array, at, x);
    }
}

INLINE void store_vector(const cuda_array *array, int64_t at, const float *x) {
    if (array->format == CUDA_f32) {
        float4 *to = (float4 *)array->data + at / 4;
        to[0] = make_float4(x[0], x[1], x[2], x[3]);
        to[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else if (array->format == CUDA_bf16) {
        store_uint4(array, at, 2, pack_halves(CUDA_bf16, x));
    } else if (array->format == CUDA_f16) {
        store_uint4(array, at, 2, pack_halves(CUDA_f16, x));
    } else {
        uint32_t low = 0, high = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) low |= (uint32_t)(x[i] != 0) << (8 * i), high |= (uint32_t)(x[4 + i] != 0) << (8 * i);
        *(uint2 *)(array->data + (uint64_t)at) = make_uint2(low, high);
    }
}

#endif
