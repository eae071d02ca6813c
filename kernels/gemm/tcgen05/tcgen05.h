/* The arguments of the tiles by tcgen05, and what their two halves must agree on. Plain C that nvcc takes, too. */
#ifndef KERNELS_GEMM_TCGEN05_TCGEN05_H
#define KERNELS_GEMM_TCGEN05_TCGEN05_H

#include "kernels/gemm/arguments.h"

/* A tile of out; stages of 128 bytes of k, of a and of b; threads: two warps that issue, four that bring scales and store results. */
enum { TCGEN05_TILE = 128, TCGEN05_STAGES = 4, TCGEN05_ROW_BYTES = 128, TCGEN05_THREADS = 192 };
/* Of a stage: bytes of an operand, and of its scales: tiles of 512 bytes, one for each 4 scales of a row. At most 4 tiles (NVFP4). */
enum { TCGEN05_OPERAND_BYTES = TCGEN05_TILE * TCGEN05_ROW_BYTES, TCGEN05_SCALE_TILE = 512 };

/* One operand [rows, k]: elements side by side along k, rows of row_bytes. Scales of one byte, scale_cols of them stored for a row, plain or in tiles. */
typedef struct tcgen05_operand {
    uint64_t data, scales;
    int64_t row_bytes, scale_cols;
    int32_t rows, blocks;         /* blocks: scales of a row */
    int32_t by_tma;            /* rows are multiples of 16 bytes, and the tensor map is there; else threads bring the elements */
    int32_t tiled;                /* scales lie as tile128x4 */
} tcgen05_operand;

/* out [m,n] = epilogue(a [m,k] b [n,k]^T). Maps: boxes of 128 bytes by 128 rows of a and 64 of b, bytes or elements of 16 bits. */
typedef struct matmul_tcgen05_arguments {
    MATMUL_ALIGNED(128) uint64_t map_a[16];           /* tensor maps */
    uint64_t map_b[16];
    matmul_epilogue epilogue;
    tcgen05_operand a, b;
    int32_t k_bytes;              /* of a row, without what pads it */
    uint32_t formats;             /* the instruction descriptor's types of a and b */
} matmul_tcgen05_arguments;

#endif
