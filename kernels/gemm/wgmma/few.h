/* The arguments of the products by wgmma of few rows by many of b, which are the first operand: those that decode weights in registers (decoded.cuh), those of codes of 8 bits as they are
 * (folded.cuh), those of 16 bits (half.cuh), and what is launched around them. Read by the host half, which fills them in, and by the device halves. Plain C that nvcc takes, too. */
#ifndef KERNELS_GEMM_WGMMA_FEW_H
#define KERNELS_GEMM_WGMMA_FEW_H

#include "kernels/gemm/arguments.h"
#include "kernels/gemm/rows.h"
#include "kernels/gemm/skinny/skinny.h"

/* The kinds of products: b is decoded to bf16, as is a by a launch in front of it; NVFP4 of both to f16, which has all their numbers; or codes e4m3 of both are multiplied as they are: without scales of blocks, with scales in e8m0 of 32 of k of
 * both, with scales in fp32 of 128 of k of a's rows and of 128 x 128 of b; or both are bf16, or f16. */
enum { DECODED_E4M3, DECODED_MXFP8, DECODED_MXFP8_E5M2, DECODED_MXFP4, DECODED_NVFP4, DECODED_HALVES, FOLDED_E4M3, FOLDED_MXFP8, FOLDED_FP8, HALF_BF16, HALF_F16 };
#define FEW_IS_HALF(kind) ((kind) >= HALF_BF16)
#define FEW_FOLDS(kind) ((kind) >= FOLDED_E4M3 && !FEW_IS_HALF(kind))
#define FEW_BITS(kind) (FEW_IS_HALF(kind) ? 16 : (kind) == DECODED_MXFP4 || (kind) == DECODED_NVFP4 || (kind) == DECODED_HALVES ? 4 : 8)
/* Words of scales of each row of b and FEW_STEP of k, which the warps that multiply bring. */
#define FEW_SCALE_WORDS(kind) (FEW_IS_HALF(kind) || (kind) == DECODED_E4M3 || (kind) == FOLDED_E4M3 || (kind) == FOLDED_FP8 ? 0 : (kind) == DECODED_NVFP4 || (kind) == DECODED_HALVES ? 2 : 1)
/* Bytes of a stage's factors, floats that a warp of their own makes (folded.cuh): of each 32 of k of a's rows; or of a's rows for both halves of the tile. */
#define FEW_FACTOR_BYTES(kind, m) ((kind) == FOLDED_MXFP8 ? 16 * (m) : (kind) == FOLDED_FP8 ? 8 * (m) : 0)

/* A block of threads has so many rows of b, eight warps that multiply, one that loads, and one for factors where there are some; which take so much of k at a time; at most so many blocks
 * share a tile's k, as a cluster at most so many; an entry has room for so many rows of a, or more, and a has at most so many. */
enum { FEW_ROWS = 128, FEW_WARPS = 8, FEW_STEP = 128, FEW_HALF_STEP = 64, FEW_SPLITS = 16, FEW_CLUSTER = 2, FEW_HALF_CLUSTER = 8, FEW_LEAST = 16, FEW_MOST = 128 };
#define FEW_STEP_OF(kind) (FEW_IS_HALF(kind) ? FEW_HALF_STEP : FEW_STEP)
#define FEW_THREADS(kind) (32 * (FEW_WARPS + 1 + (FEW_FACTOR_BYTES(kind, 1) > 0)))
/* Two blocks share a multiprocessor where a has up to so many rows. Codes as they are, and operands of 16 bits: at most as many. */
enum { FEW_SHARED_MOST = 64, FOLDED_MOST = FEW_SHARED_MOST, HALF_MOST = FEW_SHARED_MOST };
/* By kind and rows of a, m: steps of a stage of the ring, of 4 bits as many as make lines of 128 bytes where a leaves room for stages enough; its bytes, b and behind it a; stages. */
#define FEW_STEPS(kind, m) (FEW_BITS(kind) == 4 && (m) <= 32 ? 2 : 1)
#define FEW_DEPTH(kind, m) (FEW_STEP_OF(kind) * FEW_STEPS(kind, m))
#define FEW_B_BYTES(kind, m) (FEW_ROWS * FEW_DEPTH(kind, m) * FEW_BITS(kind) / 8)
#define FEW_A_BYTES(kind, m) ((m) * FEW_DEPTH(kind, m) * (FEW_FOLDS(kind) ? 1 : 2))
/* a comes in boxes of 128 bytes of k. */
#define FEW_A_BOXES(kind, m) (FEW_A_BYTES(kind, m) / ((m) * 128))
#define FEW_STAGE_BYTES(kind, m) (FEW_B_BYTES(kind, m) + FEW_A_BYTES(kind, m))
#define FEW_STAGES(kind, m)                                                                                                    \
    (FEW_IS_HALF(kind) ? ((m) <= 16 ? 6 : (m) <= 32 ? 5 : 4)                                                                    \
     : FEW_FOLDS(kind) ? ((m) <= 32 ? 5 : 4)                                                                                    \
                     : (m) <= 16 ? (FEW_BITS(kind) == 8 ? 5 : 4) : (m) <= 32 ? (FEW_BITS(kind) == 8 ? 4 : 3) : (m) <= 64 ? (FEW_BITS(kind) == 8 ? 3 : 4) : (FEW_BITS(kind) == 8 ? 4 : 5))
/* Bytes of the scales of b's rows: of so many steps, a step's words of all rows side by side; or, folded, of so many slots, 16 bytes of each row, four stages' words. */
enum { DECODED_SCALE_STEPS = 8, FOLDED_SLOTS = 3, FOLDED_SLOT_STAGES = 4, FOLDED_SLOT_BYTES = FEW_ROWS * 16 };
#define DECODED_SCALE_BYTES(kind) (FEW_ROWS * 4 * FEW_SCALE_WORDS(kind))
#define FEW_SCALE_BYTES(kind) ((kind) == FOLDED_MXFP8 ? FOLDED_SLOTS * FOLDED_SLOT_BYTES : DECODED_SCALE_STEPS * DECODED_SCALE_BYTES(kind))
/* Sums of a tile, [m][FEW_SUM_PITCH] floats, lie where the ring was. */
enum { FEW_SUM_PITCH = FEW_ROWS + 4 };
#define FEW_SHARED_BYTES(kind, m) (FEW_STAGES(kind, m) * (FEW_STAGE_BYTES(kind, m) + FEW_FACTOR_BYTES(kind, m) + 16) + FEW_SCALE_BYTES(kind))

/* out [m,n] = epilogue(a [m,k] b [n,k]^T). map_a: of a as bf16, or f16, in b's order of k (few_around.cu), or as it lies, boxes of the entry's rows by 64 of k, or of its codes, boxes of as many rows by FEW_STEP of k;
 * map_b: boxes of 64 rows of b by a stage's k. */
typedef struct matmul_few_arguments {
    MATMUL_ALIGNED(128) uint64_t map_a[16];
    uint64_t map_b[16];
    matmul_epilogue epilogue;
    matmul_scales scales, a_scales; /* of b's blocks; of a's, where codes are multiplied as they are */
    int32_t m, n, k;
    int32_t b_is_constant;        /* no launch of the run writes b: it is asked for before the launches in front have ended */
    int32_t splits;               /* blocks that share a tile's k: a cluster, which adds their sums in its shared memory; or */
    uint64_t parts;               /* not 0: a launch behind (few_around.cu) adds them, and this one has no epilogue: float [tile][split][the entry's rows][FEW_ROWS] */
} matmul_few_arguments;

/* to [m,k] bf16, or f16: a's rows in the order in which pairs of b come, which is by bits of b's elements. A thread has FEW_ITEM of k. */
enum { FEW_ITEM = 32, FEW_ROWS_THREADS = 128 };
typedef struct few_rows_arguments {
    matmul_rows a;
    uint64_t to;
    int32_t m, k;
    int32_t bits;
    int32_t halves;               /* to is f16: a is NVFP4, and b is decoded to f16 */
} few_rows_arguments;

/* The same from rows in bf16 or f16, which are normalised and quantised first. A thread has 8 of k, a block FEW_MADE_THREADS times as many of a row. */
enum { FEW_MADE_THREADS = 128 };
typedef struct few_made_arguments {
    matmul_rows a;
    skinny_norm norm;             /* where the entry has one */
    uint64_t to, factors;         /* factors: float [m], of the rows, where the format has them */
    int32_t m, k;
    int32_t parts;                /* blocks of a row */
    int32_t halves;
} few_made_arguments;
/* Of the row, weight and bias, and the sums. */
#define FEW_NORM_BYTES(k, column_bytes) ((k) * (2 + 2 * (column_bytes)) + 3 * SKINNY_NORM_PARTS * 4)

/* out = epilogue(the sums of a tile's parts, in their order). A warp, or a block, has FEW_PIECE rows of a by as many columns of b. */
enum { FEW_PIECE = 16, FEW_JOIN_THREADS = 128 };
typedef struct few_join_arguments {
    matmul_epilogue epilogue;
    uint64_t parts;               /* as of the product */
    int32_t m, n;
    int32_t rows, splits;         /* rows of a part; parts of a tile */
    int32_t pieces, shares;       /* of all tiles; warps that share a piece's parts: 1, or all of a block */
} few_join_arguments;

#endif
