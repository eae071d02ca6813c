/* Kinds of products by tcgen05: what the host halves ask of formats, and their tensor maps. The kinds themselves are for device code, too. */
#ifndef KERNELS_GEMM_TCGEN05_KINDS_H
#define KERNELS_GEMM_TCGEN05_KINDS_H

/* Operands of bf16 and f16; of e4m3 with scales of rows, columns and tensors; of e4m3 with an fp32 scale by block of 128 of k; of e4m3 or e5m2, e2m1 and e2m1 with block scales. */
typedef enum tcgen05_kind { KIND_HALF, KIND_E4M3, KIND_E4M3_BLOCK, KIND_MXFP8, KIND_MXFP4, KIND_NVFP4, KIND_COUNT } tcgen05_kind;

#ifndef __CUDACC__
#include "kernel/kernel.h"
#include "kernels/gemm/tcgen05/tiles.h"

/* element_bits: of a; b_bits: of b, which are fewer where mxfp4 is padded to bytes on its way to shared memory. scale_block: elements of a scale that the matrix instructions apply, 0: there are none; scale_tiles: tiles of 4
 * scales a row that a row's 128 bytes have; formats: types of the instruction descriptor. */
typedef struct tcgen05_product {
    tcgen05_kind kind;
    int element_bits, b_bits, scale_block, scale_tiles;
    uint32_t formats;
} tcgen05_product;

/* false: there is no such product. */
bool tcgen05_product_of(dw_format a, dw_format b, tcgen05_product *product);
/* Why no kernel multiplies these operands, whatever their sizes; NULL: some do. */
const char *tcgen05_refuses_operands(const kernel_problem *problem, tcgen05_product *product, text *why);
/* Why tiles by TMA do not: of rows of k, and of how scales lie. */
const char *tcgen05_refuses_layout(const kernel_problem *problem, const tcgen05_product *product, text *why);
/* Why no tile runs a product's steps that join columns, or writes its result in blocks. */
const char *tcgen05_no_tile(const tcgen05_product *product, bool blocks);
/* tcgen05_refuses_operands of a matmul, or why not its result and post list. */
const char *tcgen05_refuses(const kernel_problem *problem, tcgen05_product *product, text *why);
static inline bool tcgen05_pads_b(const tcgen05_product *product) { return product->b_bits < product->element_bits; }
/* The instruction descriptor's types where the operands change places. */
static inline uint32_t tcgen05_swapped_formats(uint32_t formats) { return (formats >> 10 & 7) << 7 | (formats >> 7 & 7) << 10; }
/* Bytes of a row of k elements of a. */
static inline int64_t tcgen05_row_bytes(const tcgen05_product *product, int64_t k) { return (k * product->element_bits + 7) / 8; }
/* A tensor map of operand 0 or 1 into a field of the arguments: boxes of 128 bytes of shared memory by box_rows, swizzled by 128 bytes; row_bytes: of a. */
void tcgen05_take_map(kernel_launch *launch, int operand, const tcgen05_product *product, int64_t rows, int64_t row_bytes, int box_rows, const void *field);
/* The addresses of fp32 scales by block of k. */
void tcgen05_take_block_scales(kernel_launch *launch, int64_t k, matmul_tiles_arguments *g);
/* Of the scales of operand 0 or 1, in tiles of 128 rows by 4 (512 bytes), of which row_tiles lie one below the other: boxes of box_tiles side by side. */
void tcgen05_take_scales(kernel_launch *launch, const kernel_run *run, int operand, int64_t row_tiles, int box_tiles, const void *field);
/* Of a result [m,n]: boxes of 128 bytes by a warp's 32 rows. */
void tcgen05_take_result(kernel_launch *launch, const kernel_run *run, int64_t m, int64_t n, const void *field);
#endif

#endif
