/* The arguments of grouped_outer by wgmma and by tcgen05: read by their host half, which fills them in, and by the device halves. Plain C that nvcc takes, too. */
#ifndef KERNELS_GEMM_OUTER_H
#define KERNELS_GEMM_OUTER_H

#include "kernels/gemm/arguments.h"

enum { OUTER_TILE_M = 128, OUTER_DEPTH = 64, OUTER_STAGES = 4, OUTER_THREADS = 384, OUTER_TCGEN05_THREADS = 192, OUTER_BARRIER_BYTES = 128 };

/* Maps of a [t,m] and b [t,n]: boxes of 64 columns by OUTER_DEPTH rows. */
typedef struct outer_arguments {
    MATMUL_ALIGNED(128) uint64_t map_a[16];
    uint64_t map_b[16];
    cuda_array offsets, out;
    int64_t offsets_step, out_group, out_row;   /* elements from one to the next */
    int32_t rows, m, n;           /* rows: of a and b */
    cuda_fault_place fault;
} outer_arguments;

#endif
