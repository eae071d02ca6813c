/* The arguments of the products by wgmma that decode weights of 8 and 4 bits in registers, and of what is launched around them: read by the host half, which fills them in, and by the
 * device halves. Plain C that nvcc takes, too. */
#ifndef KERNELS_GEMM_WGMMA_DECODED_H
#define KERNELS_GEMM_WGMMA_DECODED_H

#include "kernels/gemm/arguments.h"
#include "kernels/gemm/rows.h"

/* A block of threads has so many rows of b, eight warps that multiply, and one that loads; a stage of its ring is so much of k; at most so many blocks share a tile's k; an entry has room for so many rows of a, or more, and a has at most so many. */
enum { DECODED_ROWS = 128, DECODED_WARPS = 8, DECODED_THREADS = DECODED_WARPS * 32 + 32, DECODED_DEPTH = 128, DECODED_SPLITS = 16, DECODED_LEAST = 16, DECODED_MOST = 128 };
/* Two blocks share a multiprocessor where a has up to so many rows. */
enum { DECODED_SHARED_MOST = 64 };
/* By bits of b's elements and rows of a, m: bytes of a stage, b and behind it a; stages; stages of the ring of scales, words for each row of b. */
#define DECODED_B_BYTES(bits) (DECODED_ROWS * DECODED_DEPTH * (bits) / 8)
#define DECODED_A_BYTES(m) ((m) * DECODED_DEPTH * 2)
#define DECODED_STAGE_BYTES(bits, m) (DECODED_B_BYTES(bits) + DECODED_A_BYTES(m))
#define DECODED_STAGES(bits, m) ((m) <= 16 ? ((bits) == 8 ? 5 : 8) : (m) <= 32 ? ((bits) == 8 ? 4 : 6) : (m) <= 64 ? ((bits) == 8 ? 3 : 4) : ((bits) == 8 ? 4 : 5))
enum { DECODED_SCALE_STAGES = 8 };
#define DECODED_SCALE_BYTES(words) (DECODED_ROWS * 4 * (words))
/* Sums of a tile, [m][DECODED_SUM_PITCH] floats, lie where the ring was. */
enum { DECODED_SUM_PITCH = DECODED_ROWS + 4 };
#define DECODED_SHARED_BYTES(bits, words, m) (DECODED_STAGES(bits, m) * (DECODED_STAGE_BYTES(bits, m) + 16) + DECODED_SCALE_STAGES * DECODED_SCALE_BYTES(words))

/* out [m,n] = epilogue(a [m,k] b [n,k]^T). map_a: of a as bf16 in b's order of k (decoded_around.cu), boxes of the entry's rows by 64 of k; map_b: boxes of 64 rows of b by DECODED_DEPTH of k. */
typedef struct matmul_decoded_arguments {
    MATMUL_ALIGNED(128) uint64_t map_a[16];
    uint64_t map_b[16];
    matmul_epilogue epilogue;
    matmul_scales scales;         /* of b */
    int32_t m, n, k;
    int32_t b_is_constant;        /* no launch of the run writes b: it is asked for before the launches in front have ended */
    int32_t splits;               /* blocks that share a tile's k; of more than one a launch behind (decoded_around.cu) adds their sums, and this one has no epilogue: */
    uint64_t parts;               /* float [tile][split][the entry's rows][DECODED_ROWS] */
} matmul_decoded_arguments;

/* to [m,k] bf16: a's rows in the order in which pairs of b come, which is by bits of b's elements. A thread has DECODED_ITEM of k. */
enum { DECODED_ITEM = 32, DECODED_ROWS_THREADS = 128 };
typedef struct decoded_rows_arguments {
    matmul_rows a;
    uint64_t to;
    int32_t m, k;
    int32_t bits;
} decoded_rows_arguments;

/* out = epilogue(the sums of a tile's parts, in their order). A warp has DECODED_PIECE rows of a by as many columns of b. */
enum { DECODED_PIECE = 16, DECODED_JOIN_THREADS = 128 };
typedef struct decoded_join_arguments {
    matmul_epilogue epilogue;
    uint64_t parts;               /* as of the product */
    int32_t m, n;
    int32_t rows, splits, pieces; /* rows of a part; parts of a tile; pieces of all tiles */
} decoded_join_arguments;

#endif
