/* The arguments of the tiles of mxfp8 by mxfp8 whose codes are multiplied as they are (folded_tiles.cuh). Read by the host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_GEMM_WGMMA_FOLDED_TILES_H
#define KERNELS_GEMM_WGMMA_FOLDED_TILES_H

#include "kernels/gemm/arguments.h"
#include "kernels/gemm/rows.h"

/* A tile has so many rows of a and of b, its columns; a stage of the ring so much of k. Eight warps multiply, one loads, others make factors: of a slot of scales, which belongs to so many stages, each in turn,
 * and there are as many of them as the ring has slots. Two thread blocks share a multiprocessor. */
enum { FOLDED_TILE_ROWS = 64, FOLDED_TILE_COLS = 32, FOLDED_TILE_DEPTH = 128, FOLDED_TILE_STAGES = 8, FOLDED_TILE_SLOT = 4, FOLDED_TILE_MAKERS = FOLDED_TILE_STAGES / FOLDED_TILE_SLOT };
enum { FOLDED_TILE_THREADS = 32 * (8 + 1 + FOLDED_TILE_MAKERS) };
/* Bytes of a stage: codes of b and behind them of a; factors of rows [64][4], of columns [4][32] twice, and a word behind them. */
enum { FOLDED_TILE_CODES = (FOLDED_TILE_ROWS + FOLDED_TILE_COLS) * FOLDED_TILE_DEPTH, FOLDED_TILE_FACTORS = (FOLDED_TILE_ROWS + 2 * FOLDED_TILE_COLS) * 16 + 16 };
enum { FOLDED_TILE_SHARED = FOLDED_TILE_STAGES * (FOLDED_TILE_CODES + FOLDED_TILE_FACTORS + 16) };
/* Rows of a that there may be. */
enum { FOLDED_TILE_MOST = 512 };

/* out [m,n] = epilogue(a [m,k] b [n,k]^T). map_a: boxes of a_rows rows by FOLDED_TILE_DEPTH of k; map_b: boxes of half a tile's columns by as much. */
typedef struct matmul_folded_tiles_arguments {
    MATMUL_ALIGNED(128) uint64_t map_a[16];
    uint64_t map_b[16];
    matmul_epilogue epilogue;
    matmul_scales scales, a_scales; /* of b; of a */
    int32_t m, n, k;
    int32_t a_rows;
    int32_t units_m;              /* tiles one below the other */
    int32_t splits;               /* blocks of a cluster, which share a tile's k */
    int32_t b_is_constant;        /* no launch of the run writes b: it is asked for before the launches in front have ended */
} matmul_folded_tiles_arguments;

#ifndef __CUDACC__
#include "kernel/kernel.h"

/* How a call is divided: thread blocks that share a tile's k, a cluster; microseconds. number: of a variant, which is one of these, from 0 on; -1: the one of least estimate. */
typedef struct folded_division { int splits; double us; } folded_division;
folded_division folded_tiles_divide(const kernel_run *run, int number);
/* The name of variant number number, NULL past the last. */
const char *folded_tiles_variant(int number);
dw_status folded_tiles_multiply(const kernel_run *run, kernel_launcher *launcher, const folded_division *d);
#endif

#endif
