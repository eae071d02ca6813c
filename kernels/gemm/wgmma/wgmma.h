/* The arguments of the tiles by wgmma: read by their host halves, which fill them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_GEMM_WGMMA_WGMMA_H
#define KERNELS_GEMM_WGMMA_WGMMA_H

#include "kernels/gemm/arguments.h"

enum { MATMUL_THREADS = 384 };
/* Shared memory: a ring of stages, each a tile of a and of b, 128 bytes of k wide, and two barriers; boxes of results, of which each warpgroup has some; columns'
 * factors and biases; and for scales by block a ring of slots, each with those of four blocks of k and two barriers. */
enum { MATMUL_BOX_BYTES = 8192, MATMUL_COLUMN_BYTES = 2048, MATMUL_SLOTS = 4, MATMUL_SLOT_BLOCKS = 4 };
/* Of groups besides: a ring of told tiles, 16 bytes and two barriers each. */
enum { MATMUL_TOLD = 4, MATMUL_TOLD_BYTES = MATMUL_TOLD * 32 };
/* Rows of a result's box that are stored at a time. */
#define MATMUL_OUT_ROWS(groups) ((groups) ? 64 : 16)
#define MATMUL_SLOT_BYTES(tile_m) (((tile_m) + 4) * MATMUL_SLOT_BLOCKS * 4)
#define MATMUL_SHARED_BYTES(tile_m, tile_n, stages, boxes, scaled) \
    ((stages) * (((tile_m) + (tile_n)) * 128 + 16) + (boxes) * 2 * MATMUL_BOX_BYTES + MATMUL_COLUMN_BYTES + (scaled) * MATMUL_SLOTS * (MATMUL_SLOT_BYTES(tile_m) + 16))

/* out [m,n] = epilogue(a [m,k] b [n,k]^T). Maps of a: boxes of 128 bytes by a_rows; of b: by half the tile's columns; of out: 128 bytes by
 * MATMUL_OUT_ROWS. Scales by block, fp32: of a one per row and 128 of k, of b one per 128 rows and 128 of k. */
typedef struct matmul_wgmma_arguments {
    MATMUL_ALIGNED(128) uint64_t map_a[16];           /* tensor maps */
    uint64_t map_b[16], map_out[16];
    matmul_epilogue epilogue;
    uint64_t a_scales, b_scales;
    int64_t a_scale_stride, b_scale_stride;           /* floats from one row (of blocks) to the next */
    int32_t m, n, k;
    int32_t units_m, units_n;     /* units of a column of the result and of a row: tiles, or pairs of them one below the other */
    int32_t a_rows;               /* rows of the boxes of a: those of the tile, or, where m is less, m rounded up to 8; of groups a part of the tile's */
    matmul_groups groups;         /* of the entries for groups, whose map of b holds the matrices of groups first to end - 1 one below the other */
} matmul_wgmma_arguments;

#ifndef __CUDACC__
/* The name of the entry that a product of these sizes gets, of element bf16, f16 or e4m3, the last with scales by block or without; n_out: columns of the result,
 * of which a step that halves leaves half. */
const char *matmul_wgmma_entry(int element, int scaled, int64_t m, int64_t n_out, int64_t k, int halves, int multiprocessors);
#endif

#endif
