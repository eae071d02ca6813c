/* What the host halves of the Hopper tiles share, with groups and without: which products there are entries for, and filling in their arguments. */
#ifndef KERNELS_GEMM_WGMMA_TILES_H
#define KERNELS_GEMM_WGMMA_TILES_H

#include "kernels/gemm/host.h"

/* What two formats share: the entries' element, and how scales are applied. */
typedef enum sm90_kind { SM90_BF16, SM90_F16, SM90_E4M3, SM90_E4M3_BLOCK, SM90_NONE } sm90_kind;
static inline int sm90_element_bytes(sm90_kind kind) { return kind <= SM90_F16 ? 2 : 1; }

/* What is multiplied: the kind of entry, and which operands are decoded for it. */
typedef struct sm90_product { sm90_kind kind; bool decodes[2]; } sm90_product;
sm90_product sm90_product_of(dw_format a, dw_format b, int64_t k);
/* Why there is no such product, of operands 0 and 1 with k last; NULL: there is. */
const char *sm90_reject_products(const kernel_problem *problem, text *why);

/* A tensor map of rows by cols elements into a field of the arguments: boxes of 128 bytes by box_rows. view says of what, and from where on. */
void sm90_take_map(kernel_launch *launch, kernel_map view, dw_format format, int64_t cols, int64_t rows, int64_t row_stride, int box_rows, const void *field);
void sm90_take_block_scales(kernel_launch *launch, matmul_sm90_arguments *arguments);

#endif
