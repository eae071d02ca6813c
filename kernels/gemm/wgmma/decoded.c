/* matmul by wgmma for few rows and weights of 8 and 4 bits: the host half of decoded.cuh. Which products it takes, how long they take, the launches. Pure: knows no driver. */
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/skinny/host.h"
#include "kernels/gemm/wgmma/few_host.h"
#include "kernels/gpu/rows/host.h"

#include <math.h>

/* Fitted to an H200 (bench/results/h200/decoded.md): weights of 8 bits; other weights of 4 bits, of 128 rows not measured. NVFP4 by rows of bf16 has the times that it had with stages of 128 of k, but of
 * 128 rows the start of weights of 8 bits, which was not measured of it. */
static const few_times times = {{2.5, 2.5, 2.5, 4.7}, {1.3, 1.37, 1.57, 1.1}, {0.045, 0.045, 0.045, 0.056}, 1, 5.5, 0}, narrow_times = {{2.2, 2.2, 2.2, 2.2}, {0.38, 0.55, 0.72, 1}, {0.048, 0.055, 0.048, 0.056}, 0.81, 0.6, 0.068};

/* ---- entries ---- */

typedef struct decoded_weights { dw_format b; few_entries entries; } decoded_weights;

#define ENTRIES(kind, name, us) {kind, "matmul_decoded_" #name "_sm90", {"matmul_decoded_" #name "_m16", "matmul_decoded_" #name "_m32", "matmul_decoded_" #name "_m64", "matmul_decoded_" #name "_m128"}, us}
static const decoded_weights all_weights[] = {
    {DW_FORMAT_fp8_tensor, ENTRIES(DECODED_E4M3, e4m3, &times)},
    {DW_FORMAT_fp8_row, ENTRIES(DECODED_E4M3, e4m3, &times)},
    {DW_FORMAT_mxfp8, ENTRIES(DECODED_MXFP8, mxfp8, &times)},
    {DW_FORMAT_mxfp8_e5m2, ENTRIES(DECODED_MXFP8_E5M2, mxfp8_e5m2, &times)},
    {DW_FORMAT_mxfp4, ENTRIES(DECODED_MXFP4, mxfp4, &narrow_times)},
    {DW_FORMAT_nvfp4, ENTRIES(DECODED_NVFP4, nvfp4, &times)},
    {DW_FORMAT_nvfp4_row, ENTRIES(DECODED_NVFP4, nvfp4, &times)},
};
static const few_entries halves = ENTRIES(DECODED_HALVES, halves, &narrow_times);

static bool is_nv(dw_format format) { return format == DW_FORMAT_nvfp4 || format == DW_FORMAT_nvfp4_row; }

/* f16 has the range of NVFP4, not of bf16. */
static const few_entries *entries_of(dw_format a, dw_format b) {
    if (is_nv(a) && is_nv(b)) return &halves;
    for (size_t i = 0; i < COUNT_OF(all_weights); i++)
        if (all_weights[i].b == b) return &all_weights[i].entries;
    return NULL;
}

static const few_entries *entries_for(const kernel_run *run) { return entries_of(run->quantises ? run->quantised : run->call.in[0]->format, run->call.in[1]->format); }

/* Are elements of a, times the scales of blocks that are codes, numbers of bf16, but for the smallest and largest (docs/formats.md)? */
static bool is_exact(dw_format a) {
    const num_format *info = num_info(a);
    return a == DW_FORMAT_bf16 || (info->class == NUM_BLOCK && (info->cols == 0 || info->scale != DW_FORMAT_f32));
}

/* ---- what is taken ---- */

const char *matmul_decoded_refuses(const kernel_problem *problem, text *why) {
    const dw_format a = problem->in[0]->format;
    return few_refuses(problem, is_exact(a) ? entries_of(a, problem->in[1]->format) : NULL, why);
}

/* Why a, which comes in front of a quantiser, or of a norm and a quantiser, is not brought through these here. */
static const char *making_refusal(const kernel_run *run, text *why) {
    const dw_tensor *x = run->call.in[0];
    if (!run->quantises) return kernel_because(why, "a norm alone it does not do");
    if (x->format != DW_FORMAT_bf16 && x->format != DW_FORMAT_f16) return kernel_because(why, "it quantises operands in bf16 and f16, and a is %s", dw_format_name(x->format));
    if (FEW_BITS(entries_for(run)->kind) != 4 || (run->quantised != DW_FORMAT_nvfp4_row && run->quantised != DW_FORMAT_mxfp4)) return kernel_because(why, "it quantises to nvfp4_row and mxfp4, by weights of 4 bits");
    if (row_is_long(x->dims[x->rank - 1])) return kernel_because(why, "rows that it quantises are longer than threads hold of them elsewhere");
    return run->norm != NULL ? skinny_columns_refusal(run, why) : NULL;
}

const char *matmul_decoded_takes(const kernel_run *run, text *why) {
    const char *reason = few_takes(run, FEW_MOST, FEW_STEP, why);
    return reason == NULL && (run->quantises || run->norm != NULL) ? making_refusal(run, why) : reason;
}

int64_t matmul_decoded_rows(const kernel_run *run) {
    (void)run;
    return FEW_MOST;
}

/* What quantising rows takes longer than bringing them into order does, and what a norm takes beside it: measured with rows of 2048 and 8192, 16 and 64 of them, scales searched for; norms with rows of 2048 alone. Blocks of the product, which bring their weights meanwhile, make it wait. */
static double making_us(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0];
    const double thousands = (double)a->dims[a->rank - 1] / 1024, rows = (double)kernel_result_rows(&run->call), tiles = (double)run->call.in[1]->dims[run->call.in[1]->rank - 2] / FEW_ROWS;
    if (!run->quantises) return 0;
    return 0.3 + 0.025 * tiles + 0.36 * thousands * (1 + rows / 64) * (run->searches ? 1 : 0.5) + (run->norm != NULL ? 2.3 * fmax(1, thousands / 2) : 0);
}

double matmul_decoded_seconds(const kernel_run *run) { return few_seconds(run, entries_for(run)) + 1e-6 * making_us(run); }

/* ---- the launches ---- */

/* a's rows in b's order, and the parts behind them. */
size_t matmul_decoded_workspace(const kernel_run *run) { return (size_t)few_rows_bytes(run) + few_parts_bytes(run); }

static dw_status make_rows(const kernel_run *run, kernel_launcher *launcher, bool is_half) {
    const dw_tensor *a = run->call.in[0];
    kernel_launch launch;
    static const char *const names[2][2][2] = {{{"matmul_few_made_nvfp4", "matmul_few_made_nvfp4_norm"}, {"matmul_few_made_nvfp4_search", "matmul_few_made_nvfp4_search_norm"}},
                                               {{"matmul_few_made_mxfp4", "matmul_few_made_mxfp4_norm"}, {"matmul_few_made_mxfp4_search", "matmul_few_made_mxfp4_search_norm"}}};
    few_made_arguments *g = cuda_launch(&launch, "matmul_few_made", names[run->quantised == DW_FORMAT_mxfp4][run->searches][run->norm != NULL], sizeof *g);
    g->m = (int32_t)kernel_result_rows(&run->call);
    g->k = (int32_t)a->dims[a->rank - 1];
    g->parts = (int32_t)base_ceil_div(g->k, 8 * FEW_MADE_THREADS);
    g->halves = is_half;
    matmul_take_rows(&launch, run, 0, &g->a);
    if (run->norm != NULL) {
        skinny_take_norm(&launch, run, 0, &g->norm);
        launch.shared_bytes = (uint32_t)FEW_NORM_BYTES(g->k, dw_format_bits(skinny_column_format(run->norm)) / 8);
    }
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &g->to, 0);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &g->factors, few_factors_at(run));
    cuda_grid(&launch, (int64_t)g->m * g->parts, 1, 1);
    launch.block[0] = FEW_MADE_THREADS;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}

static dw_status order_rows(const kernel_run *run, kernel_launcher *launcher, int kind) {
    const dw_tensor *a = run->call.in[0];
    kernel_launch launch;
    few_rows_arguments *g = cuda_launch(&launch, "matmul_few_around", "matmul_few_rows", sizeof *g);
    g->m = (int32_t)kernel_result_rows(&run->call);
    g->k = (int32_t)a->dims[a->rank - 1];
    g->bits = FEW_BITS(kind);
    g->halves = kind == DECODED_HALVES;
    matmul_take_rows(&launch, run, 0, &g->a);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &g->to, 0);
    cuda_grid(&launch, base_ceil_div((int64_t)g->m * (g->k / FEW_ITEM), FEW_ROWS_THREADS), 1, 1);
    launch.block[0] = FEW_ROWS_THREADS;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}

dw_status matmul_decoded_shape(const kernel_run *run, kernel_launcher *launcher) {
    const few_entries *entries = entries_for(run);
    const dw_status status = run->quantises ? make_rows(run, launcher, entries->kind == DECODED_HALVES) : order_rows(run, launcher, entries->kind);
    return status == DW_OK ? few_multiply(run, launcher, entries, few_rows_bytes(run)) : status;
}
