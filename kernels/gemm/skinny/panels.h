/* The arguments of the products of panels.cuh: read by the host half, which fills them in, and by the device half. */
#ifndef KERNELS_GEMM_SKINNY_PANELS_H
#define KERNELS_GEMM_SKINNY_PANELS_H

#include "kernels/gemm/skinny/panel.h"

/* Stages of the block's ring at most, rows of b in each, and bytes of a step of them; steps of k whose part of a a warp keeps; blocks that share k at most, and panels whose sums wait
 * for those of the other blocks at a time. */
enum { PANELS_STAGES = 8, PANELS_STAGE_ROWS = PANEL_COLS / 2, PANELS_STEP_BYTES = PANELS_STAGE_ROWS * 128, PANELS_STEPS = 4, PANELS_SHARE = 8, PANELS_ROUND = 8 };

typedef struct panels_arguments {
    MATMUL_ALIGNED(128) uint64_t map_b[16];     /* steps of k by rows by 64 of k: boxes of a stage */
    skinny_arguments product;
    int32_t panels, each;         /* of all of b, and of a cluster */
    int32_t share;                /* blocks of a cluster, which share k */
    int32_t slice;                /* steps of k of a block */
    int32_t stages;
} panels_arguments;

/* Bytes of a panel's sums, of a warp or of all. */
#define PANELS_SUM_BYTES(tiles) ((tiles) * 8 * PANEL_COLS * 4)

#endif
