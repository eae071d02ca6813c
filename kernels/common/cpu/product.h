/* What matmul, grouped_matmul and conv share around the product core: which panels and which arithmetic two formats ask for, A brought into
 * the form that microkernels read, and operands of post lists as strides. */
#ifndef CPU_PRODUCT_H
#define CPU_PRODUCT_H

#include "kernels/common/cpu/gemm.h"

/* The arithmetic for a times b: bf16 products when both are bf16 or blocks, else fp32. false: no panel holds b, or a is not read here. */
bool product_compute(dw_format a, dw_format b, gemm_compute *compute);
bool product_has_operand_format(dw_format format);   /* of post operands, and of results: f32, bf16, f16 */
bool product_has_halves(const op_post_list *post);

/* A [rows][k] as the core reads it. Rows of all batches are counted through. */
typedef struct product_rows {
    gemm_compute compute;
    int64_t rows, k, stride;          /* stride of what is made, elements, padded with zeros */
    size_t bytes;                     /* of what is made; 0: A is read where it lies */
} product_rows;

/* rank 2 or more; k_axis, row_axis: axes of a. in_place: A may be read where it lies if its memory allows. */
void product_rows_init(product_rows *rows, const dw_tensor *a, gemm_compute compute, gemm_panel panel, int row_axis, int k_axis);
/* Brings A into to, rows->bytes long. */
void product_rows_run(const product_rows *rows, const dw_tensor *a, int row_axis, int k_axis, pool *pool, void *to);

#endif
