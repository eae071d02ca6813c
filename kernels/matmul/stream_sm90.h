/* The arguments of the kernels that stream weights past few rows: read by the host half, which fills them in, and by the device half. */
#ifndef KERNELS_MATMUL_STREAM_SM90_H
#define KERNELS_MATMUL_STREAM_SM90_H

#include "kernels/matmul/matmul_sm90.h"

/* A step: 128 bytes of each row of b, in two loads of 16 bytes by the four threads of a quad. */
enum { STREAM_THREADS = 256, STREAM_WARPS = 8, STREAM_STEP_BYTES = 128, STREAM_SUM_PITCH = 20, STREAM_SPLITS = 8, STREAM_STAGES = 4 };

/* How the scales of an operand lie: that of row r and column block c at r * row_step + (c / 4) * quad_step + c % 4, rows in tiles of 128 taking 128x4 apart. */
typedef struct stream_scales {
    uint64_t data;
    int32_t cols;                 /* column blocks of a row that are there */
    int32_t row_step, quad_step;  /* in scales */
    int32_t tiled;                /* rows lie as tile128x4 has them, and row_step is of 128 rows */
    int32_t row_blocks;           /* rows that share a scale: 1 or 128 */
} stream_scales;

/* out [m,n] = epilogue(a [m,k] b [n,k]^T). */
typedef struct stream_arguments {
    matmul_epilogue epilogue;
    uint64_t a, b;
    stream_scales a_scales, b_scales;
    int64_t a_row_bytes, b_row_bytes;
    int32_t a_format, a_scale;    /* of elements and of block scales in rows; MATMUL_FORMAT_COUNT: none, or a factor at the end */
    int32_t a_block;              /* columns of a block of a */
    int32_t m, n, k;
    int32_t planes;               /* bf16 numbers whose sum an element of a is: 1, 2 (f16) or 3 (f32) */
    int32_t across;               /* warps of a block side by side along n; the others share k */
    int32_t tiles;                /* of 16 (8 where a step halves) times across columns */
    int32_t steps;                /* of k */
    int32_t slab_steps;           /* of k whose part of a lies in shared memory at a time */
} stream_arguments;

#endif
