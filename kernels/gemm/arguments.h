/* The arguments of the Hopper matmul kernels: read by the host halves, which fill them in, and by the device halves. Plain C that nvcc takes, too. */
#ifndef KERNELS_GEMM_ARGUMENTS_H
#define KERNELS_GEMM_ARGUMENTS_H

#include "kernels/gpu/arguments.h"

#ifdef __cplusplus
#define MATMUL_ALIGNED(bytes) alignas(bytes)
#else
#define MATMUL_ALIGNED(bytes) _Alignas(bytes)
#endif

/* Steps of a post list, and formats by their place in format.def, as enum constants without the rest of the library. */
enum {
#define OP_POST(name, operand, halves, meaning) MATMUL_POST_##name,
#include "op/post.def"
#undef OP_POST
    MATMUL_POST_COUNT
};
enum {
#define DW_ELEMENT(name, bits, class, exponent, mantissa, bias, infinity, nan, max, doc) MATMUL_##name,
#define DW_BLOCK(name, element, scale, rows, cols, second, doc) MATMUL_##name,
#include "deepwell/format.def"
#undef DW_ELEMENT
#undef DW_BLOCK
    MATMUL_FORMAT_COUNT
};

enum { MATMUL_STEPS = 8, MATMUL_THREADS = 384 };
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

/* One step: its operand x at data + row * row_stride + col * col_stride, in elements of f32, bf16 or f16. */
typedef struct matmul_step {
    uint64_t data;
    int64_t row_stride, col_stride;
    int32_t step, format;
} matmul_step;

/* What becomes of a finished sum y of row r and column c, in fp32 and in this order: times alpha; times each factor that is there (alpha_at[i][0],
 * row_factors[r], col_factors[c]); through the steps; rounded once to the format of out. half: n / 2 when step number halving joins columns c and c + half. */
typedef struct matmul_epilogue {
    float alpha;
    int32_t count, halving;       /* halving: -1, or the number of the step that halves */
    int32_t out_format;           /* f32, bf16, f16 */
    int32_t by_engine;            /* 1: out's rows are multiples of 16 bytes, and its tensor map is there; 0: stores of single elements */
    int32_t half;
    int32_t block;                /* 0, or: out is in blocks of so many e4m3 along a row, made of the result in out_format: 128, scales in fp32, or 32, scales in e8m0 */
    int64_t out_row_stride;       /* elements */
    uint64_t out;
    uint64_t scales;              /* of out in blocks */
    int64_t scale_row_stride;
    uint64_t alpha_at[2], row_factors, col_factors;   /* addresses of floats, or 0 */
    matmul_step steps[MATMUL_STEPS];
} matmul_epilogue;

/* Groups whose rows only the device knows: rows [offsets[g - 1], offsets[g]) of a times matrix g of b, for g from first to end - 1. */
typedef struct matmul_groups {
    uint64_t offsets;             /* int32, ascending, none beyond m: else a fault */
    int32_t first, end;
    int32_t clears;               /* 1: rows behind the last group become zeros */
    int32_t unused;
    cuda_fault_place fault;
} matmul_groups;

/* out [m,n] = epilogue(a [m,k] b [n,k]^T). Maps of a: boxes of 128 bytes by a_rows; of b: by half the tile's columns; of out: 128 bytes by
 * MATMUL_OUT_ROWS. Scales by block, fp32: of a one per row and 128 of k, of b one per 128 rows and 128 of k. */
typedef struct matmul_sm90_arguments {
    MATMUL_ALIGNED(128) uint64_t map_a[16];           /* tensor maps */
    uint64_t map_b[16], map_out[16];
    matmul_epilogue epilogue;
    uint64_t a_scales, b_scales;
    int64_t a_scale_stride, b_scale_stride;           /* floats from one row (of blocks) to the next */
    int32_t m, n, k;
    int32_t units_m, units_n;     /* units of a column of the result and of a row: tiles, or pairs of them one below the other */
    int32_t a_rows;               /* rows of the boxes of a: those of the tile, or, where m is less, m rounded up to 8; of groups a part of the tile's */
    matmul_groups groups;         /* of the entries for groups, whose map of b holds the matrices of groups first to end - 1 one below the other */
} matmul_sm90_arguments;

#ifndef __CUDACC__
/* The name of the entry that a product of these sizes gets, of element bf16, f16 or e4m3, the last with scales by block or without; n_out: columns of the result,
 * of which a step that halves leaves half. */
const char *matmul_sm90_entry(int element, int scaled, int64_t m, int64_t n_out, int64_t k, int halves, int multiprocessors);
#endif

#endif
