/* What the host halves of products of few rows by wgmma share: how a call is divided, how long it takes, the launches (few.cuh). Pure: knows no driver. */
#ifndef KERNELS_GEMM_WGMMA_FEW_HOST_H
#define KERNELS_GEMM_WGMMA_FEW_HOST_H

#include "kernels/gemm/host.h"
#include "kernels/gemm/wgmma/few.h"

/* Microseconds, by entry: of the launches; of a step of k, where as many thread blocks run as find room; and of each part that is written and added. alone: what a step takes of that where no two blocks share a multiprocessor.
 * cluster: what clusters take to add their blocks' sums; 0: there are none. tile: of each tile, once. */
typedef struct few_times { double start[4], step[4], part[4], alone, cluster, tile; } few_times;

/* The entries of a kind of products, with room for 16, 32, 64 and, where they have it, 128 rows. */
typedef struct few_entries {
    int kind;                     /* one of few.h */
    const char *image, *names[4];
    const few_times *us;
} few_entries;

/* Whether operands of these entries, NULL: of none, are taken as they lie; and the sizes of a call, up to so many rows, of k a multiple of a number: NULL, or why not. */
const char *few_refuses(const kernel_problem *problem, const few_entries *entries, text *why);
const char *few_takes(const kernel_run *run, int64_t most, int multiple, text *why);
/* Bytes in front of the parts, where a product has a's rows in the workspace and behind them their factors, and a bound of those of all. */
int64_t few_factors_at(const kernel_run *run);
int64_t few_rows_bytes(const kernel_run *run);
size_t few_parts_bytes(const kernel_run *run);
double few_seconds(const kernel_run *run, const few_entries *entries);

/* The product and, where thread blocks share k, the launch that adds their sums. before: bytes of the workspace in front of the parts. */
dw_status few_multiply(const kernel_run *run, kernel_launcher *launcher, const few_entries *entries, int64_t before);

#endif
