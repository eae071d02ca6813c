/* Skinny products of 2 to 16 rows in 16 bits, panels one after another: the host half of panels.cuh. Which it takes, how a call is divided, how long it takes, the launch. Pure: knows no driver. */
#include "kernels/gemm/skinny/panels.h"

#include <math.h>

#include "kernels/gemm/host.h"
#include "kernels/gemm/skinny/host.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

/* As panels_arguments has them. */
typedef struct panels_division { int tiles, panels, each, share, slice, stages; int64_t blocks, shared_bytes; } panels_division;

/* As few blocks share k as keep their steps of a in registers. */
static panels_division divide(const chip_caps *chip, int64_t m, int64_t cols, bool halves, int64_t k) {
    panels_division d = {.tiles = m > 8 ? 2 : 1, .panels = (int)base_ceil_div(cols, halves ? PANEL_COLS / 2 : PANEL_COLS), .share = 1};
    const int64_t steps = base_ceil_div(k, PANEL_STEP_K);
    while (d.share < PANELS_SHARE && steps > d.share * PANEL_WARPS * PANELS_STEPS) d.share *= 2;
    d.slice = (int)base_ceil_div(steps, d.share);
    const int64_t clusters = chip->units >= d.share ? chip->units / d.share : 1;
    d.each = (int)base_ceil_div(d.panels, clusters);
    d.blocks = base_ceil_div(d.panels, d.each) * d.share;
    const int64_t sums = (PANEL_WARPS + (d.share == 1 ? PANEL_WARPS : d.each < PANELS_ROUND ? d.each : PANELS_ROUND)) * PANELS_SUM_BYTES(d.tiles), stages = (ring_room(chip) - sums) / (d.slice * PANELS_STEP_BYTES);
    d.stages = (int)(stages < PANELS_STAGES ? stages : PANELS_STAGES);
    d.shared_bytes = d.stages * d.slice * PANELS_STEP_BYTES + sums;
    return d;
}

static panels_division division_of(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *out = run->call.out[0];
    return divide(run->chip, kernel_result_rows(&run->call), out->dims[out->rank - 1], matmul_halves_columns(&run->post), a->dims[a->rank - 1]);
}

/* Measured (bench/results/h200/skinny.md): shorter slices of k, and more panels one after another, take longer than by the streams of skinny.cuh. */
bool panels_takes(const kernel_run *run) {
    enum { LEAST_SLICE = 20, MOST_PANELS = 16 };
    const dw_tensor *b = run->call.in[1];
    if (!panel_may_take(run) || b->dims[b->rank - 1] % PANEL_STEP_K != 0 || (b->dims[b->rank - 2] > 1 && b->strides[b->rank - 2] < b->dims[b->rank - 1])) return false;
    const panels_division d = division_of(run);
    return d.stages >= 2 && d.slice >= LEAST_SLICE && d.slice <= PANEL_WARPS * PANELS_STEPS && d.each <= MOST_PANELS;
}

/* As chains of products behind a norm take an H200, less 1 to 3 us, as in steps of Llama-1B with 4 to 16 texts (bench/results/h200/skinny.md): a norm behind a product takes less where it begins before the product's end. */
double panels_seconds(const kernel_run *run) {
    static const double START_US = 1.2, MEET_US = 3.9, PANEL_US = 1.65, STEP_US = 0.024;
    const panels_division d = division_of(run);
    return fmax(1e-6 * (START_US + (d.share > 1 ? MEET_US : 0) + d.each * (PANEL_US + STEP_US * d.slice)), panel_bytes_seconds(run));
}

dw_status panels_launch(const kernel_run *run, kernel_launcher *launcher) {
    const int64_t m = kernel_result_rows(&run->call);
    const panels_division d = division_of(run);
    const dw_tensor *b = run->call.in[1];
    const bool is_f16 = b->format == DW_FORMAT_f16;
    kernel_launch launch;
    panels_arguments *p = cuda_launch(&launch, "matmul_panels", m <= 8 ? (is_f16 ? "matmul_panels_f16_m8" : "matmul_panels_bf16_m8") : is_f16 ? "matmul_panels_f16_m16" : "matmul_panels_bf16_m16", sizeof *p);
    const skinny_arguments *g = &p->product;
    panel_take(&launch, run, &p->product);
    p->panels = d.panels;
    p->each = d.each;
    p->share = d.share;
    p->slice = d.slice;
    p->stages = d.stages;
    launch.maps[launch.map_count] = (kernel_map){.operand = 1, .type = KERNEL_MAP_BF16, .rank = 3, .swizzle = KERNEL_SWIZZLE_128, .promotion = KERNEL_PROMOTION_256,
                                                 .dims = {PANEL_STEP_K, (uint64_t)g->n, (uint64_t)(g->k / PANEL_STEP_K)}, .strides = {(uint64_t)(g->n > 1 ? b->strides[b->rank - 2] : g->k) * 2, PANEL_STEP_K * 2},
                                                 .box = {PANEL_STEP_K, PANELS_STAGE_ROWS, (uint32_t)d.slice}};
    cuda_slot(&launch, KERNEL_SLOT_MAP, launch.map_count++, p->map_b, 0);
    cuda_grid(&launch, d.blocks, 1, 1);
    if (d.share > 1) launch.cluster[0] = (uint32_t)d.share, launch.cluster[1] = launch.cluster[2] = 1;
    launch.shared_bytes = (uint32_t)d.shared_bytes;
    return launcher->add(launcher, &launch);
}
