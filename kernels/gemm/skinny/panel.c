/* Skinny products of 2 to 16 rows in 16 bits: the host half of panel.cuh. Which it takes, how a call is divided, how long it takes, the launch. Pure: knows no driver. */
#include "kernels/gemm/skinny/panel.h"

#include <math.h>

#include "kernels/gemm/host.h"
#include "kernels/gemm/skinny/host.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

/* ---- what panels share ---- */

bool panel_may_take(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t m = kernel_result_rows(&run->call);
    if (run->chip->shared_bytes < SKINNY_ROOM || m < 2 || m > PANEL_ROWS || run->quantises || run->norm != NULL || a->format != b->format || (b->format != DW_FORMAT_bf16 && b->format != DW_FORMAT_f16)) return false;
    return skinny_is_in_units(a) && skinny_is_in_units(b);
}

double panel_bytes_seconds(const kernel_run *run) {
    const dw_tensor *b = run->call.in[1], *out = run->call.out[0];
    return ((double)op_tensor_count(b) * 2 + (double)op_tensor_count(out) * dw_format_bits(out->format) / 8) / (chip_bytes_per_s(run->chip) * 0.9);
}

void panel_take(kernel_launch *launch, const kernel_run *run, skinny_arguments *g) {
    matmul_take_epilogue(launch, run, 2, &g->epilogue);
    skinny_take_product(launch, run, kernel_result_rows(&run->call), g);
    launch->block[0] = PANEL_WARPS * 32;
    launch->overlaps = true;
}

/* ---- all of a warp's steps at once ---- */

/* As panel_arguments has them. of_warp: steps that a warp has at most. */
typedef struct panel_division { int panels, wide, steps, of_warp; int64_t blocks; } panel_division;

/* Blocks of the kernel that a multiprocessor holds at a time. */
enum { PANEL_RESIDENT = 2 };

/* Panels side by side where there are more of them than blocks find room at a time. */
static panel_division divide(const chip_caps *chip, int64_t cols, bool halves, int64_t k) {
    panel_division d = {.panels = (int)base_ceil_div(cols, halves ? PANEL_COLS / 2 : PANEL_COLS), .steps = (int)base_ceil_div(k, PANEL_STEP_K)};
    while (d.wide < PANEL_WARPS_LOG2 && d.panels > (int64_t)PANEL_RESIDENT * chip->units << d.wide) d.wide++;
    d.blocks = base_ceil_div(d.panels, 1 << d.wide);
    d.of_warp = (int)base_ceil_div(d.steps, PANEL_WARPS >> d.wide);
    return d;
}

static panel_division division_of(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *out = run->call.out[0];
    return divide(run->chip, out->dims[out->rank - 1], matmul_halves_columns(&run->post), a->dims[a->rank - 1]);
}

bool panel_takes(const kernel_run *run) {
    if (!panel_may_take(run)) return false;
    const panel_division d = division_of(run);
    return d.of_warp <= PANEL_STEPS && d.blocks <= (int64_t)PANEL_RESIDENT * run->chip->units;
}

/* As steps of GPT-2 and Llama-1B with 4, 6 and 16 texts on an H200 take them, less what overlaps (bench/results/h200/skinny.md), but no less than its bytes take. */
double panel_seconds(const kernel_run *run) {
    const double step_us = kernel_result_rows(&run->call) > 8 ? 0.8 : 0.5;
    return fmax(1e-6 * (2.3 + step_us * division_of(run).of_warp), panel_bytes_seconds(run));
}

dw_status panel_launch(const kernel_run *run, kernel_launcher *launcher) {
    const int64_t m = kernel_result_rows(&run->call);
    const panel_division d = division_of(run);
    const bool is_f16 = run->call.in[0]->format == DW_FORMAT_f16;
    kernel_launch launch;
    panel_arguments *p = cuda_launch(&launch, "matmul_panel", m <= 8 ? (is_f16 ? "matmul_panel_f16_m8" : "matmul_panel_bf16_m8") : is_f16 ? "matmul_panel_f16_m16" : "matmul_panel_bf16_m16", sizeof *p);
    panel_take(&launch, run, &p->product);
    p->panels = d.panels;
    p->wide = d.wide;
    p->steps = d.steps;
    p->warp_bytes = d.of_warp * PANEL_STEP_BYTES;
    cuda_grid(&launch, d.blocks, 1, 1);
    launch.shared_bytes = (uint32_t)(PANEL_WARPS * p->warp_bytes);
    return launcher->add(launcher, &launch);
}
