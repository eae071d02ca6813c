/* matmul by wgmma for few rows and weights of 8 and 4 bits: the host half of decoded.cuh. Which products it takes, how long they take, the launches. Pure: knows no driver. */
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/wgmma/few_host.h"

/* Fitted to an H200 (bench/results/h200/decoded.md). */
static const few_times times = {2.5, {1.3, 1.37, 1.57, 1.1}, {0.045, 0.045, 0.045, 0.056}, 1};

/* ---- entries ---- */

typedef struct decoded_weights { dw_format b; few_entries entries; } decoded_weights;

#define ENTRIES(kind, name) {kind, "matmul_decoded_" #name "_sm90", {"matmul_decoded_" #name "_m16", "matmul_decoded_" #name "_m32", "matmul_decoded_" #name "_m64", "matmul_decoded_" #name "_m128"}, &times}
static const decoded_weights all_weights[] = {
    {DW_FORMAT_fp8_tensor, ENTRIES(DECODED_E4M3, e4m3)},
    {DW_FORMAT_fp8_row, ENTRIES(DECODED_E4M3, e4m3)},
    {DW_FORMAT_mxfp8, ENTRIES(DECODED_MXFP8, mxfp8)},
    {DW_FORMAT_mxfp8_e5m2, ENTRIES(DECODED_MXFP8_E5M2, mxfp8_e5m2)},
    {DW_FORMAT_mxfp4, ENTRIES(DECODED_MXFP4, mxfp4)},
    {DW_FORMAT_nvfp4, ENTRIES(DECODED_NVFP4, nvfp4)},
    {DW_FORMAT_nvfp4_row, ENTRIES(DECODED_NVFP4, nvfp4)},
};

static const few_entries *weights_of(dw_format b) {
    for (size_t i = 0; i < COUNT_OF(all_weights); i++)
        if (all_weights[i].b == b) return &all_weights[i].entries;
    return NULL;
}

/* Are elements of a, times the scales of blocks that are codes, numbers of bf16, but for the smallest and largest (docs/formats.md)? */
static bool is_exact(dw_format a) {
    const num_format *info = num_info(a);
    return a == DW_FORMAT_bf16 || (info->class == NUM_BLOCK && (info->cols == 0 || info->scale != DW_FORMAT_f32));
}

/* ---- what is taken ---- */

const char *matmul_decoded_refuses(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    if (weights_of(b->format) == NULL || !is_exact(a->format)) {
        text_printf(why, "%s times %s is not one of its products", dw_format_name(a->format), dw_format_name(b->format));
        return text_string(why);
    }
    if (op_attr_bool(problem->attrs, OP_ATTR_at)) return "a is stored with k first";
    if (!op_attr_bool(problem->attrs, OP_ATTR_bt)) return "b is stored with n last; it is read as [n,k]";
    return matmul_reject_result(problem, why);
}

const char *matmul_decoded_takes(const kernel_run *run, text *why) { return few_takes(run, weights_of(run->call.in[1]->format)->kind, why); }

int64_t matmul_decoded_rows(const kernel_run *run) {
    (void)run;
    return FEW_MOST;
}

double matmul_decoded_seconds(const kernel_run *run) { return few_seconds(run, weights_of(run->call.in[1]->format)); }

/* ---- the launches ---- */

/* a's rows in b's order, and the parts behind them. */
size_t matmul_decoded_workspace(const kernel_run *run) { return (size_t)few_rows_bytes(run) + few_parts_bytes(run); }

static dw_status order_rows(const kernel_run *run, kernel_launcher *launcher, int bits) {
    const dw_tensor *a = run->call.in[0];
    kernel_launch launch;
    few_rows_arguments *g = cuda_launch(&launch, "matmul_few_around", "matmul_few_rows", sizeof *g);
    g->m = (int32_t)kernel_result_rows(&run->call);
    g->k = (int32_t)a->dims[a->rank - 1];
    g->bits = bits;
    matmul_take_rows(&launch, run, 0, &g->a);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &g->to, 0);
    cuda_grid(&launch, base_ceil_div((int64_t)g->m * (g->k / FEW_ITEM), FEW_ROWS_THREADS), 1, 1);
    launch.block[0] = FEW_ROWS_THREADS;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}

dw_status matmul_decoded_shape(const kernel_run *run, kernel_launcher *launcher) {
    const few_entries *entries = weights_of(run->call.in[1]->format);
    const dw_status status = order_rows(run, launcher, FEW_BITS(entries->kind));
    return status == DW_OK ? few_multiply(run, launcher, entries, few_rows_bytes(run)) : status;
}
