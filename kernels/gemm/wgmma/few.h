/* The arguments of the products by wgmma of few rows by many of b, which are the first operand: those that decode weights in registers (decoded.cuh), those of codes of 8 bits as they are
 * (folded.cuh), and what is launched around them. Read by the host half, which fills them in, and by the device halves. Plain C that nvcc takes, too. */
#ifndef KERNELS_GEMM_WGMMA_FEW_H
#define KERNELS_GEMM_WGMMA_FEW_H

#include "kernels/gemm/arguments.h"
#include "kernels/gemm/rows.h"

/* The kinds of products: b is decoded to bf16, as is a by a launch in front of it; or codes e4m3 of both are multiplied as they are: without scales of blocks, with scales in e8m0 of 32 of k of
 * both, with scales in fp32 of 128 of k of a's rows and of 128 x 128 of b. */
enum { DECODED_E4M3, DECODED_MXFP8, DECODED_MXFP8_E5M2, DECODED_MXFP4, DECODED_NVFP4, FOLDED_E4M3, FOLDED_MXFP8, FOLDED_FP8 };
#define FEW_FOLDS(kind) ((kind) >= FOLDED_E4M3)
#define FEW_BITS(kind) ((kind) == DECODED_MXFP4 || (kind) == DECODED_NVFP4 ? 4 : 8)
/* Words of scales of each row of b that a stage has, which the warps that multiply bring. */
#define FEW_SCALE_WORDS(kind) ((kind) == DECODED_E4M3 || (kind) == FOLDED_E4M3 || (kind) == FOLDED_FP8 ? 0 : (kind) == DECODED_NVFP4 ? 2 : 1)
/* Bytes of a stage's factors, floats that a warp of their own makes (folded.cuh): of each 32 of k of a's rows; or of a's rows for both halves of the tile. */
#define FEW_FACTOR_BYTES(kind, m) ((kind) == FOLDED_MXFP8 ? 16 * (m) : (kind) == FOLDED_FP8 ? 8 * (m) : 0)

/* A block of threads has so many rows of b, eight warps that multiply, one that loads, and one for factors where there are some; a stage of its ring is so much of k; at most so many blocks
 * share a tile's k; an entry has room for so many rows of a, or more, and a has at most so many. */
enum { FEW_ROWS = 128, FEW_WARPS = 8, FEW_DEPTH = 128, FEW_SPLITS = 16, FEW_LEAST = 16, FEW_MOST = 128 };
#define FEW_THREADS(kind) (32 * (FEW_WARPS + 1 + (FEW_FACTOR_BYTES(kind, 1) > 0)))
/* Two blocks share a multiprocessor where a has up to so many rows. Codes as they are: at most as many. */
enum { FEW_SHARED_MOST = 64, FOLDED_MOST = FEW_SHARED_MOST };
#define FEW_MOST_OF(kind) (FEW_FOLDS(kind) ? FOLDED_MOST : FEW_MOST)
/* By kind and rows of a, m: bytes of a stage, b and behind it a; stages. */
#define FEW_B_BYTES(kind) (FEW_ROWS * FEW_DEPTH * FEW_BITS(kind) / 8)
#define FEW_A_BYTES(kind, m) ((m) * FEW_DEPTH * (FEW_FOLDS(kind) ? 1 : 2))
#define FEW_STAGE_BYTES(kind, m) (FEW_B_BYTES(kind) + FEW_A_BYTES(kind, m))
#define FEW_STAGES(kind, m)                                                                                                    \
    (FEW_FOLDS(kind) ? ((m) <= 32 ? 5 : 4)                                                                                      \
                     : (m) <= 16 ? (FEW_BITS(kind) == 8 ? 5 : 8) : (m) <= 32 ? (FEW_BITS(kind) == 8 ? 4 : 6) : (m) <= 64 ? (FEW_BITS(kind) == 8 ? 3 : 4) : (FEW_BITS(kind) == 8 ? 4 : 5))
/* Bytes of the scales of b's rows: of so many stages, a stage's words of all rows side by side; or, folded, of so many slots, 16 bytes of each row, four stages' words. */
enum { DECODED_SCALE_STAGES = 8, FOLDED_SLOTS = 3, FOLDED_SLOT_STAGES = 4, FOLDED_SLOT_BYTES = FEW_ROWS * 16 };
#define DECODED_SCALE_BYTES(kind) (FEW_ROWS * 4 * FEW_SCALE_WORDS(kind))
#define FEW_SCALE_BYTES(kind) ((kind) == FOLDED_MXFP8 ? FOLDED_SLOTS * FOLDED_SLOT_BYTES : DECODED_SCALE_STAGES * DECODED_SCALE_BYTES(kind))
/* Sums of a tile, [m][FEW_SUM_PITCH] floats, lie where the ring was. */
enum { FEW_SUM_PITCH = FEW_ROWS + 4 };
#define FEW_SHARED_BYTES(kind, m) (FEW_STAGES(kind, m) * (FEW_STAGE_BYTES(kind, m) + FEW_FACTOR_BYTES(kind, m) + 16) + FEW_SCALE_BYTES(kind))

/* out [m,n] = epilogue(a [m,k] b [n,k]^T). map_a: of a as bf16 in b's order of k (few_around.cu), boxes of the entry's rows by 64 of k, or of its codes, boxes of as many rows by FEW_DEPTH of k;
 * map_b: boxes of 64 rows of b by FEW_DEPTH of k. */
typedef struct matmul_few_arguments {
    MATMUL_ALIGNED(128) uint64_t map_a[16];
    uint64_t map_b[16];
    matmul_epilogue epilogue;
    matmul_scales scales, a_scales; /* of b's blocks; of a's, where codes are multiplied as they are */
    int32_t m, n, k;
    int32_t b_is_constant;        /* no launch of the run writes b: it is asked for before the launches in front have ended */
    int32_t splits;               /* blocks that share a tile's k; of more than one a launch behind (few_around.cu) adds their sums, and this one has no epilogue: */
    uint64_t parts;               /* float [tile][split][the entry's rows][FEW_ROWS] */
} matmul_few_arguments;

/* to [m,k] bf16: a's rows in the order in which pairs of b come, which is by bits of b's elements. A thread has FEW_ITEM of k. */
enum { FEW_ITEM = 32, FEW_ROWS_THREADS = 128 };
typedef struct few_rows_arguments {
    matmul_rows a;
    uint64_t to;
    int32_t m, k;
    int32_t bits;
} few_rows_arguments;

/* out = epilogue(the sums of a tile's parts, in their order). A warp has FEW_PIECE rows of a by as many columns of b. */
enum { FEW_PIECE = 16, FEW_JOIN_THREADS = 128 };
typedef struct few_join_arguments {
    matmul_epilogue epilogue;
    uint64_t parts;               /* as of the product */
    int32_t m, n;
    int32_t rows, splits, pieces; /* rows of a part; parts of a tile; pieces of all tiles */
} few_join_arguments;

#endif
