/* The arguments of the kernel that dequantises operands in front of the tiles: read by the host half, which fills them in, and by the device half. */
#ifndef KERNELS_GEMM_DEQUANTISE_DEQUANTISE_H
#define KERNELS_GEMM_DEQUANTISE_DEQUANTISE_H

#include "kernels/gemm/arguments.h"
#include "kernels/gemm/rows.h"

enum { DEQUANTISE_THREADS = 256, DEQUANTISE_UNIT = 8 };

/* Up to two operands [count[i],k] to rows of bf16 at to[i], each as long as k rounded up to whole units, times the planes. The threads of a block lie 2^across along a row, and
 * the first blocks[0] blocks take operand 0. */
typedef struct dequantise_arguments {
    matmul_rows rows[2];
    uint64_t to[2];
    int32_t count[2], blocks[2];
    int32_t k, across;
    int32_t planes;               /* 2: of operand 1 what bf16 holds of each element, and behind it, along the row, what is left of it; operand 0 lies twice */
    int32_t group_rows;           /* 0, or of operand 1: the rows of a matrix. It is then from matrix groups.first on, and only where the group has rows */
    int32_t group_spill;          /* rows of a matrix that are made all the same: a tile of the matrix in front of it may end in them */
    matmul_groups groups;
} dequantise_arguments;

#endif
