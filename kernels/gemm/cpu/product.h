/* What matmul, grouped_matmul and conv share around the product core: which panels and which arithmetic two formats ask for, A brought into
 * the form that microkernels read, and operands of post lists as strides. */
#ifndef KERNELS_GEMM_CPU_PRODUCT_H
#define KERNELS_GEMM_CPU_PRODUCT_H

#include "kernels/gemm/cpu/gemm.h"

/* The arithmetic for a times b: bf16 products when both are bf16 or blocks, else fp32. false: no panel holds b, or a is not read here. */
bool product_compute(dw_format a, dw_format b, gemm_compute *compute);
bool product_has_operand_format(dw_format format);   /* of post operands, and of results: f32, bf16, f16 */
bool product_has_halves(const op_post_list *post);
size_t product_element_bytes(dw_format format);      /* of an element format */

/* How b is packed beside an a of this format: [.., k, n], with bt=true [.., n, k]. false: not at all. */
bool product_pack_of(const op_attrs *attrs, const op_post_list *post, dw_format a, const dw_tensor *b, gemm_compute *compute, gemm_pack *pack);

/* What rows of kernel.def need whose operands 0 and 1 are a and b. first_post: the first operand of the post list; panels: the panels that the row is for,
 * bit by gemm_panel; other: why not when b's is another. */
const char *product_reject(const kernel_problem *problem, text *why, int first_post, unsigned panels, const char *other);
double product_cost(const kernel_problem *problem);
bool product_packing(const kernel_problem *problem, const dw_tensor *weight, kernel_packing *packing);

/* A [rows][k] as the core reads it. Rows of all batches are counted through. */
typedef struct product_rows {
    gemm_compute compute;
    int64_t rows, k, stride;          /* stride of what is made, elements, padded with zeros */
    size_t bytes;                     /* of what is made; 0: A is read where it lies */
    size_t room;                      /* .. at any k up to this one: rows of odd length are copied, even ones need not be */
} product_rows;

/* rank 2 or more; k_axis, row_axis: axes of a. in_place: A may be read where it lies if its memory allows. */
void product_rows_init(product_rows *rows, const dw_tensor *a, gemm_compute compute, gemm_panel panel, int row_axis, int k_axis);
/* What a run needs at these sizes or smaller ones. */
size_t product_rows_workspace(const product_rows *rows, const kernel_run *run);
/* Brings A into to, rows->bytes long. */
void product_rows_run(const product_rows *rows, const gemm_isa *isa, const dw_tensor *a, int row_axis, int k_axis, pool *pool, void *to);

#endif
