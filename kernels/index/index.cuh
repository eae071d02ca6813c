/* Indices of axes, checked. */
#ifndef KERNELS_INDEX_CUH
#define KERNELS_INDEX_CUH

#include "kernels/gpu/plain/device.cuh"
#include "kernels/index/index_cuda.h"

/* An index from the front; -1 and a fault when it lies outside. */
DEVICE int64_t load_index(const cuda_array *index, int64_t at, int64_t size, const cuda_fault_place *fault) {
    int64_t given = load_int(index, at), from_front = given < 0 ? given + size : given;
    if (from_front >= 0 && from_front < size) return from_front;
    fault_raise(fault, CUDA_FAULT_INDEX, given, size);
    return -1;
}

/* Element i of the result: where it lies there (at[0]), and the element of x that it is; -1: an index lies outside. */
DEVICE int64_t read_place(const read_arguments *a, int64_t i, int64_t *at) {
    nest_offsets(&a->nest, i, 2 + a->indices, at);
    int64_t from = at[1];
    int outside = 0;
    for (int k = 0; k < a->indices; k++) {
        int64_t index = load_index(&a->index[k], at[2 + k], a->sizes[k], &a->fault);
        outside |= index < 0;
        from += index * a->strides[k];
    }
    return outside ? -1 : from;
}

#endif
