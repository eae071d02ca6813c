/* What host halves of skinny products, and of others that do the norm in front of them, share. */
#include "kernels/gemm/skinny/host.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/gemm/host.h"

bool skinny_is_in_units(const dw_tensor *x) {
    return (uintptr_t)x->data % 16 == 0 && x->dims[x->rank - 1] % 8 == 0 && (x->rank < 2 || x->dims[x->rank - 2] <= 1 || x->strides[x->rank - 2] % 8 == 0);
}

dw_format skinny_column_format(const kernel_norm *norm) { return norm->columns[0] != NULL ? norm->columns[0]->format : norm->columns[1] != NULL ? norm->columns[1]->format : DW_FORMAT_f32; }

const char *skinny_columns_refusal(const kernel_run *run, text *why) {
    const dw_format x = run->call.in[0]->format, format = skinny_column_format(run->norm);
    for (int i = 0; i < 2; i++)
        if (run->norm->columns[i] != NULL && (run->norm->columns[i]->format != format || (format != x && format != DW_FORMAT_f32)))
            return kernel_because(why, "a norm's weight and bias are not both f32 or both %s, as a is", dw_format_name(x));
    return NULL;
}

void skinny_take_norm(kernel_launch *launch, const kernel_run *run, int64_t at, skinny_norm *norm) {
    const dw_tensor *a = run->call.in[0];
    *norm = (skinny_norm){.at = (int32_t)at, .centred = run->norm->centred, .columns = matmul_format(skinny_column_format(run->norm)), .group = (int32_t)row_parts_threads(run, kernel_result_rows(&run->call), a->dims[a->rank - 1]).group,
                          .by_count = (float)(1.0 / (double)a->dims[a->rank - 1]), .eps = (float)run->norm->eps};
    if (run->norm->columns[0] != NULL) cuda_slot(launch, KERNEL_SLOT_DATA, KERNEL_NORM, &norm->weight, 0);
    if (run->norm->columns[1] != NULL) cuda_slot(launch, KERNEL_SLOT_DATA, KERNEL_NORM + 1, &norm->bias, 0);
}

void skinny_take_product(kernel_launch *launch, const kernel_run *run, int64_t m, skinny_arguments *g) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    g->m = (int32_t)m;
    g->n = (int32_t)b->dims[b->rank - 2];
    g->k = (int32_t)a->dims[a->rank - 1];
    g->quantised = run->quantises ? (int32_t)run->quantised : 0;
    g->searches = run->searches;
    g->b_is_constant = (run->constant_in >> 1 & 1) != 0;
    matmul_take_rows(launch, run, 0, &g->a);
    matmul_take_rows(launch, run, 1, &g->b);
}

double skinny_norm_us(const kernel_run *run) { return run->norm == NULL ? 0 : run->norm->centred ? 0.9 : 0.6; }
