/* The arguments of the kernels that stream weights past few rows: read by the host half, which fills them in, and by the device half. */
#ifndef KERNELS_GEMM_SKINNY_SKINNY_H
#define KERNELS_GEMM_SKINNY_SKINNY_H

#include "kernels/gemm/arguments.h"
#include "kernels/gemm/rows.h"

/* A step: 128 bytes of each of 16 rows of b. */
enum { SKINNY_STEP_BYTES = 128, SKINNY_SUM_PITCH = 20, SKINNY_SPLITS = 8 };
/* By an entry's tiles of 8 rows of a: warps of a block, stages of each warp's ring. Small entries are for chips with less than SKINNY_ROOM of shared memory for a block:
 * of 2 and of 8 tiles, they fit into 99 KB with any weights. */
#define SKINNY_WARPS(tiles, small) ((small) ? ((tiles) <= 2 ? 8 : 4) : (tiles) <= 2 ? 16 : 8)
#define SKINNY_STAGES(tiles, small) ((small) || (tiles) == 2 ? 3 : 4)
enum { SKINNY_ROOM = 226 * 1024 };
/* Of one row of a (vector.cuh, codes.cuh), whose warps have two rows of b, or four in wide entries: warps of a block, and units of 16 bytes of a row of b that a lane has at most. */
enum { SKINNY_VECTOR_WARPS = 8 };
#define SKINNY_VECTOR_UNITS(rows) (16 / (rows))
#define SKINNY_CODES_UNITS(rows) (8 / (rows))
/* Bytes of a's codes and their scales in shared memory, where a block quantises a. */
#define SKINNY_CODES_BYTES(k) (((k) + 127) / 128 * 132)
/* Of rows in groups: at most so many, so that their list has a place for each. */
enum { SKINNY_GROUP_ROWS = 16, SKINNY_LIST_BYTES = SKINNY_GROUP_ROWS * 16 + 16 };

/* Of products in f16: the largest magnitudes of rows that they quantise, of each warp; what lies between each 32 k of a in shared memory. */
enum { SKINNY_AMAX_BYTES = 64, SKINNY_NARROW_PAD = 16 };

/* What a block does to a's rows before anything else: it normalises them, in bf16 or f16, and rounds to that. Of one row by vector_norm.cuh the normalised row lies from at on, [k], and nothing else does. Others: They, weight and bias lie in shared memory from at on: [m][k], and
 * one below the other those of weight and bias that are there; behind them three times SKINNY_NORM_PARTS sums of each row. */
typedef struct skinny_norm {
    uint64_t weight, bias;        /* addresses, or 0; no launch of the run writes them */
    int32_t at;                   /* from the first byte; 0, but for one row: a comes as it is */
    int32_t centred;              /* the mean is taken from a row first */
    int32_t columns;              /* format of weight and bias: a's, or f32 */
    int32_t group;                /* threads that norm_rows.cu would have for a row, in whose order sums are added; 0: a comes as it is */
    float by_count, eps;          /* by_count: 1 / k */
} skinny_norm;
/* A row's sums, by warps of norm_rows.cu; bytes of all of it, of which there are so many at most; and how many rows, so that each has a warp. */
enum { SKINNY_NORM_PARTS = 16, SKINNY_NORM_MOST = 64 * 1024, SKINNY_NORM_ROWS = 16 };
#define SKINNY_NORM_BYTES(m, k, column_bytes) ((int64_t)(k) * ((int64_t)(m) * 2 + (column_bytes)) + (int64_t)(m) * (3 * SKINNY_NORM_PARTS * 4))

/* out [m,n] = epilogue(a [m,k] b [n,k]^T), or of groups of rows with a b each. */
typedef struct skinny_arguments {
    matmul_epilogue epilogue;
    matmul_rows a, b;
    skinny_norm norm;
    int32_t m, n, k;
    int32_t planes;               /* bf16 numbers whose sum an element of a is: 1, 2 (f16) or 3 (f32); 1 where products are in f16 */
    int32_t quantised;            /* products in f16: the format that a, which is bf16 or f16, is quantised to; 0: it comes as it is meant */
    int32_t searches;             /* and its scales are searched for */
    int32_t ranged;               /* products in f16: a's numbers are brought into its range by powers of two */
    int32_t across;               /* warps of a block side by side along n, a power of two; the others share k, as do the blocks of a cluster, a power of two */
    int32_t width;                /* of these warps, those that have columns: 16 each (8 where a step halves) */
    int32_t tiles;                /* of width times as many columns */
    int32_t steps;                /* of k */
    int32_t slab_steps;           /* of k whose part of a lies in shared memory at a time */
    int32_t b_is_constant;        /* no launch of the run writes b: the ring is filled before the launches in front have ended */
    int32_t parts, span;          /* of one row of a: warps that share k, and units that a lane has of a row */
    int32_t ahead;                /* then: bytes of each row behind the ring that are brought to the second-level cache meanwhile */
    matmul_groups groups;         /* of the entries for groups: b is their matrices one below the other, and tiles are those of one */
} skinny_arguments;

#endif
