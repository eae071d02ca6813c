/* What the host halves of the tiles by wgmma share, with groups and without: which products there are entries for, and filling in their arguments. */
#ifndef KERNELS_GEMM_WGMMA_TILES_H
#define KERNELS_GEMM_WGMMA_TILES_H

#include "kernels/gemm/host.h"
#include "kernels/gemm/wgmma/wgmma.h"

/* What two formats share: the entries' element, and how scales are applied. */
typedef enum wgmma_kind { WGMMA_BF16, WGMMA_F16, WGMMA_E4M3, WGMMA_E4M3_BLOCK, WGMMA_NONE } wgmma_kind;
static inline int wgmma_element_bytes(wgmma_kind kind) { return kind <= WGMMA_F16 ? 2 : 1; }

/* The entries that take both operands. */
wgmma_kind wgmma_kind_of(dw_format a, dw_format b);
/* Why there is no such product, of operands 0 and 1 with k last; NULL: there is. */
const char *wgmma_reject_products(const kernel_problem *problem, text *why);

/* A tensor map of the first rows of an operand or of the result (KERNEL_RESULT) into a field of the arguments: boxes of 128 bytes by box_rows. */
void wgmma_take_map(kernel_launch *launch, const kernel_run *run, int operand, int64_t rows, int box_rows, const void *field);
void wgmma_take_block_scales(kernel_launch *launch, matmul_wgmma_arguments *arguments);

#endif
