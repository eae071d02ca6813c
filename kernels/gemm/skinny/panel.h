/* The arguments of the products of panel.cuh: read by the host half, which fills them in, and by the device half. */
#ifndef KERNELS_GEMM_SKINNY_PANEL_H
#define KERNELS_GEMM_SKINNY_PANEL_H

#include "kernels/gemm/skinny/skinny.h"

/* Warps of a block, log2; rows of b in a panel; bytes and k of a step of it; steps of a warp at most, all of which lie in shared memory; rows of a at most. */
enum { PANEL_WARPS_LOG2 = 3, PANEL_WARPS = 1 << PANEL_WARPS_LOG2, PANEL_COLS = 16, PANEL_STEP_BYTES = PANEL_COLS * 128, PANEL_STEP_K = 64, PANEL_STEPS = 6, PANEL_ROWS = 16 };

typedef struct panel_arguments {
    skinny_arguments product;
    int32_t panels;               /* of all of b */
    int32_t wide;                 /* log2 of a block's warps that have a panel each; the others share k */
    int32_t steps;                /* of k */
    int32_t warp_bytes;           /* of shared memory for a warp: its steps, and where they lay its sums */
} panel_arguments;

#endif
