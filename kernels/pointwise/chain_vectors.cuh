/* What the kernels of chains share (chain_packed.cu, and by chain_steps.cuh chain_vectors.cu and chain_tiles.cu): places of vectors of eight elements, and operands that do not lie in them. */
#ifndef KERNELS_POINTWISE_CHAIN_VECTORS_CUH
#define KERNELS_POINTWISE_CHAIN_VECTORS_CUH

#include "kernels/pointwise/chain_cuda.h"
#include "kernels/pointwise/functions.cuh"

static_assert(sizeof(chain_code) == 16, "an instruction is a load");

INLINE float chain_element_at(const cuda_array *array, int64_t at) {
    return array->format == CUDA_bool ? (float)(((const uint8_t *)array->data)[at] != 0) : element_at(array->format, array->data, at);
}

INLINE void push_value(float *x, float one) {
#pragma unroll
    for (int i = 1; i < PIECE; i++) x[i - 1] = x[i];
    x[PIECE - 1] = one;
}

/* Elements step apart, the first size of eight; the others repeat the last. */
INLINE void load_apart(const cuda_array *array, int64_t at, int64_t step, int size, float *x) {
#pragma unroll 1
    for (int k = 0; k < PIECE; k++) push_value(x, chain_element_at(array, at + min(k, size - 1) * step));
}

INLINE void load_bools(const cuda_array *array, int64_t at, float *x) {
    const uint2 bytes = *(const uint2 *)(array->data + (uint64_t)at);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = (bytes.x >> (8 * i) & 0xff) != 0, x[4 + i] = (bytes.y >> (8 * i) & 0xff) != 0;
}

/* The offset of item i of the nest, a vector or an element, in one of its arrays. */
INLINE int64_t chain_offset(const cuda_nest *nest, int64_t i, int array) {
    if (nest->rank == 1) return i * nest->strides[array][0];
    int64_t offset = 0;
    if (nest->narrow) {
        uint32_t left = (uint32_t)i;
        for (int axis = nest->rank - 1; axis > 0; axis--) {
            const uint32_t size = (uint32_t)nest->dims[axis], next = left / size;
            offset += (left - next * size) * nest->strides[array][axis];
            left = next;
        }
        return offset + left * nest->strides[array][0];
    }
    for (int axis = nest->rank - 1; axis > 0; axis--) {
        offset += i % nest->dims[axis] * nest->strides[array][axis];
        i /= nest->dims[axis];
    }
    return offset + i * nest->strides[array][0];
}

/* An element of operand k where vectors cross from row to row; */
static __device__ __noinline__ float element_across(const chain_vector_arguments *a, int k, int64_t element) {
    return chain_element_at(&a->in[k], chain_offset(&a->nest, element, 1 + k));
}
/* and all eight, of which the first size are there. */
INLINE void load_across(const chain_vector_arguments *a, int k, int64_t vector, int size, float *x) {
#pragma unroll 1
    for (int i = 0; i < PIECE; i++) push_value(x, element_across(a, k, vector * PIECE + min(i, size - 1)));
}

/* Elements of a vector: all eight but at the end of a space that is one line. */
INLINE int vector_size(const chain_vector_arguments *a, const bool crosses, int64_t vector) {
    return !crosses && a->nest.rank > 1 ? PIECE : (int)min((int64_t)PIECE, a->elements - vector * PIECE);
}

/* Where a vector begins in an array that lies in vectors, the result (0) or operand k (1 + k). */
INLINE int64_t vector_offset(const chain_vector_arguments *a, const bool crosses, int64_t vector, int array) {
    return crosses ? vector * PIECE : chain_offset(&a->nest, vector, array);
}

/* The first size elements of a vector to the result, one by one. */
INLINE void store_apart(const cuda_array *out, int64_t at, int size, float *x) {
#pragma unroll 1
    for (int k = 0; k < size; k++) {
        store_float(out, at + k, x[0]);
        push_value(x, 0);
    }
}

/* An instruction in one load. */
INLINE chain_code code_at(const chain_vector_arguments *a, int c) {
    const uint4 words = ((const uint4 *)a->codes)[c];
    chain_code code;
    memcpy(&code, &words, sizeof code);
    return code;
}

#endif
