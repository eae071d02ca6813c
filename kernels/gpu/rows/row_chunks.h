/* What kernels are given whose rows are longer than a block's registers hold (row_chunks.cuh): a cluster of blocks shares a row. Filled in by row_chunks.c. */
#ifndef KERNELS_GPU_ROWS_ROW_CHUNKS_H
#define KERNELS_GPU_ROWS_ROW_CHUNKS_H

#include "kernels/gpu/rows/row_parts.h"

enum {
    ROW_BLOCKS_MOST = 8,          /* of a cluster, which is what every chip with clusters has */
    CHUNK_THREADS_MOST = 256      /* of a block */
};

typedef struct row_chunks {
    cuda_nest nest;               /* rows, and where each operand's begin */
    int32_t cols;
    int32_t pieces;               /* of a block: whole blocks of every format */
    int32_t is_kept;              /* a chunk lies in shared memory from its first reading on; else it is read again, from the second-level cache at best */
} row_chunks;

#endif
