/* matmul by tcgen05: the host half of tcgen05.cu. Which products its entries take, and the launch. Pure: knows no driver. */
#include "kernels/gemm/tcgen05/tcgen05.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/host.h"
#include "kernels/gemm/tcgen05/kinds.h"

static const char *const entries[KIND_COUNT] = {[KIND_HALF] = "matmul_half_sm100", [KIND_E4M3] = "matmul_e4m3_sm100", [KIND_MXFP8] = "matmul_mxfp8_sm100", [KIND_MXFP4] = "matmul_mxfp4_sm100",
                                               [KIND_NVFP4] = "matmul_nvfp4_sm100"};

/* ---- what is taken ---- */

const char *matmul_tcgen05_refuses(const kernel_problem *problem, text *why) {
    tcgen05_product product;
    const char *reason = tcgen05_refuses(problem, &product, why);
    if (reason != NULL) return reason;
    if (entries[product.kind] == NULL) return "only the tiles of tcgen05 apply fp32 scales by block of k";
    if (tcgen05_pads_b(&product)) return "mxfp8 times mxfp4 needs elements that are padded to bytes";
    return problem->in[0]->rank > 2 && problem->in[0]->scale_layout == DW_SCALE_tile128x4 ? "a has batches, and tiles of scales for each" : NULL;
}

/* ---- how long ---- */

/* Lines of the L1 cache, which looks one up in a cycle, that a warp's 32 rows lie in. */
static double lines_of_rows(int64_t row_bytes) {
    const int64_t lines = base_ceil_div(32 * row_bytes, 128);
    return lines < 32 ? (double)lines : 32;
}

/* Of the scales of a k-block: four warps load each operand's byte by byte, a row a lane. */
static double scale_cycles(const kernel_run *run, const tcgen05_product *e, int64_t k) {
    double lines = 0;
    for (int i = 0; i < 2 && e->scale_block > 0; i++) {
        const bool tiled = run->call.in[i]->scale_layout == DW_SCALE_tile128x4;
        lines += 4.0 * 4 * e->scale_tiles * lines_of_rows(tiled ? 16 : base_ceil_div(k, e->scale_block));
    }
    return lines;
}

/* What its code is, as its machine code is counted (README.md): both warps that issue are far from binding. Results are stored a row a lane: 16 bytes at a time, or, where rows are no multiples of
 * that, one by one. */
static kernel_tiles tiles_of_run(const kernel_run *run, const tcgen05_product *e, int64_t k) {
    const dw_tensor *out = run->call.out[0];
    const int columns = matmul_halves_columns(&run->post) ? TCGEN05_TILE / 2 : TCGEN05_TILE;
    const int64_t row_bytes = out->dims[out->rank - 1] * dw_format_bits(out->format) / 8;
    const double stores = row_bytes % 16 == 0 ? columns * dw_format_bits(out->format) / 128.0 : columns;
    return (kernel_tiles){.m = TCGEN05_TILE, .n = TCGEN05_TILE, .stages = TCGEN05_STAGES, .accumulators = 1, .restarts = true, .multiply = 95, .load = 40, .scale_cycles = scale_cycles(run, e, k),
                          .epilogue_cycles = 4.0 * stores * lines_of_rows(row_bytes)};
}

bool matmul_tcgen05_bound(const kernel_run *run, kernel_tiles_bound *bound) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t k = a->dims[a->rank - 1];
    tcgen05_product e;
    if (!kernel_tiles_known(run->chip) || !tcgen05_product_of(a->format, b->format, &e)) return false;
    const kernel_product product = {.m = kernel_result_rows(&run->call), .n = b->dims[b->rank - 2], .k = k, .bits = {e.element_bits, e.element_bits}, .scale_block = e.scale_block,
                                    .result_bytes = dw_format_bits(run->call.out[0]->format) / 8};
    const kernel_tiles tiles = tiles_of_run(run, &e, k);
    kernel_tiles_bound_of(&tiles, &product, run->chip, bound);
    return true;
}

/* A chip of whose tensor units nobody knows the rate has the vendor's rates alone. */
double matmul_tcgen05_seconds(const kernel_run *run) {
    kernel_tiles_bound bound;
    return matmul_tcgen05_bound(run, &bound) ? bound.seconds : kernel_run_roofline(run, run->call.in[0]->format, 1, 1);
}

/* ---- which sizes ---- */

static int64_t tiles_of(const kernel_run *run) {
    const dw_tensor *out = run->call.out[0];
    return base_ceil_div(kernel_result_rows(&run->call), TCGEN05_TILE) * base_ceil_div(out->dims[out->rank - 1], matmul_halves_columns(&run->post) ? TCGEN05_TILE / 2 : TCGEN05_TILE);
}

const char *matmul_tcgen05_takes(const kernel_run *run, text *why) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t m = kernel_result_rows(&run->call), n = b->dims[b->rank - 2], k = a->dims[a->rank - 1];
    if (m <= INT32_MAX / 2 && n <= INT32_MAX / 2 && k <= INT32_MAX / 4 && tiles_of(run) <= INT32_MAX) return NULL;
    return kernel_because(why, "%lld x %lld x %lld is more than it counts to", (long long)m, (long long)n, (long long)k);
}

/* ---- the launch ---- */

static void take_operand(kernel_launch *launch, const kernel_run *run, int index, const tcgen05_product *e, int64_t rows, int64_t k, tcgen05_operand *o) {
    o->rows = (int32_t)rows;
    o->row_bytes = tcgen05_row_bytes(e, k);
    o->by_tma = o->row_bytes % 16 == 0;
    cuda_slot(launch, KERNEL_SLOT_DATA, index, &o->data, 0);
    if (e->scale_block == 0) return;
    o->tiled = run->call.in[index]->scale_layout == DW_SCALE_tile128x4;
    o->blocks = (int32_t)base_ceil_div(k, e->scale_block);
    o->scale_cols = o->tiled ? base_ceil_div(o->blocks, 4) * 4 : o->blocks;
    cuda_slot(launch, KERNEL_SLOT_SCALES, index, &o->scales, 0);
}

static uint32_t shared_bytes(const tcgen05_product *e) {
    enum { BARRIERS = 2 * TCGEN05_STAGES + 1, ADDRESS_OF_SUMS = 8 };
    return (uint32_t)(TCGEN05_STAGES * 2 * (TCGEN05_OPERAND_BYTES + e->scale_tiles * TCGEN05_SCALE_TILE) + BARRIERS * 8 + ADDRESS_OF_SUMS);
}

dw_status matmul_tcgen05_shape(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t m = kernel_result_rows(&run->call), n = b->dims[b->rank - 2], k = a->dims[a->rank - 1];
    tcgen05_product product;
    kernel_launch launch;
    tcgen05_product_of(a->format, b->format, &product);
    matmul_tcgen05_arguments *g = cuda_launch(&launch, "matmul_sm100", entries[product.kind], sizeof *g);
    matmul_take_epilogue(&launch, run, 2, &g->epilogue);
    take_operand(&launch, run, 0, &product, m, k, &g->a);
    take_operand(&launch, run, 1, &product, n, k, &g->b);
    g->k_bytes = (int32_t)g->a.row_bytes;
    g->formats = product.formats;
    if (g->a.by_tma) tcgen05_take_map(&launch, 0, &product, m, g->a.row_bytes, TCGEN05_TILE, g->map_a);
    if (g->b.by_tma) tcgen05_take_map(&launch, 1, &product, n, g->b.row_bytes, TCGEN05_TILE / 2, g->map_b);
    cuda_grid(&launch, tiles_of(run), 1, 1);
    launch.block[0] = TCGEN05_THREADS;
    launch.shared_bytes = shared_bytes(&product);
    return launcher->add(launcher, &launch);
}
