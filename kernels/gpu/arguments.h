/* What plain GPU kernels are given of tensors: read by the host halves, which fill it in, and by the device halves. Plain C that nvcc takes, too. */
#ifndef KERNELS_GPU_ARGUMENTS_H
#define KERNELS_GPU_ARGUMENTS_H

#include <stdint.h>

/* Formats by their place in format.def, as enum constants without the rest of the library. */
enum {
#define DW_ELEMENT(name, bits, class, exponent, mantissa, bias, infinity, nan, max, doc) CUDA_##name,
#define DW_BLOCK(name, element, scale, rows, cols, second, doc) CUDA_##name,
#include "deepwell/format.def"
#undef DW_ELEMENT
#undef DW_BLOCK
    CUDA_FORMAT_COUNT
};

enum { CUDA_RANK = 8, CUDA_OPERANDS = 10, CUDA_THREADS = 256, CUDA_VECTOR = 8 };

/* Elements somewhere in memory; where each one lies is a nest's business. */
typedef struct cuda_array {
    uint64_t data;                /* written by the device */
    int32_t format, element_bytes;
} cuda_array;

/* An index space and the strides, in elements, of up to CUDA_OPERANDS arrays in it. Axis rank - 1 runs fastest. */
typedef struct cuda_nest {
    int32_t rank;
    int32_t narrow;               /* every number of an element fits in 32 bits */
    int64_t count;
    int64_t dims[CUDA_RANK];
    int64_t strides[CUDA_OPERANDS][CUDA_RANK];
} cuda_nest;

/* Rows of a matrix operand in any format: element l of row r at r * row_stride + l * k_stride, counted in elements from data. Of block formats rows are
 * whole and l runs along them; scales are found by row block and column block. */
typedef struct cuda_rows {
    uint64_t data, scales, second;
    int32_t format;               /* of the elements, */
    int32_t scale_format;         /* and of the scales; CUDA_FORMAT_COUNT: none */
    int32_t tiled;                /* scales lie in tiles of 128 x 4 */
    int32_t second_kind;          /* 0: none, 1: one, 2: one per row */
    int64_t row_stride, k_stride;
    int64_t row_bytes;            /* of packed formats */
    int64_t block_rows, block_cols, scale_rows, scale_cols;
    int64_t matrix_rows;          /* rows before the scales of the next matrix begin */
} cuda_rows;

/* Where a fault is reported (kernel_fault_place), written by the device. */
enum {
    CUDA_FAULT_NONE,
#define FAULT(name, words) CUDA_FAULT_##name,
#include "kernel/fault.def"
#undef FAULT
};
typedef struct cuda_fault_place { uint64_t fault; uint32_t step, unused; } cuda_fault_place;
typedef struct cuda_fault { uint32_t kind, step; int64_t value, limit; } cuda_fault;

#endif
