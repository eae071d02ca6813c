/* Products of one row with weights in nvfp4 and mxfp4 by rings: the host half of ring_nibbles.cuh. Which calls it takes, how one is divided, the launch, the estimate. Pure: knows no driver. */
#include "kernels/gemm/skinny/ring_nibbles.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gemm/host.h"
#include "kernels/gemm/skinny/host.h"

/* Codes and scales of a row of b. */
typedef struct row_bytes { int64_t codes, scales; } row_bytes;

static row_bytes row_bytes_of(const dw_tensor *b) {
    const int64_t k = b->dims[b->rank - 1];
    return (row_bytes){k / 2, k / num_info(b->format)->cols};
}

/* rows: of b in a stage; stages 0: it does not fit. */
typedef struct nibbles_division { int each, rest, rows, stages, most_rows; int64_t blocks, stage_bytes; uint32_t shared_bytes; } nibbles_division;

/* One block a multiprocessor, with half of its shared memory, so that the next launch's finds room beside it. A stage has 4 KiB of codes, or a row. */
static nibbles_division divide(const kernel_run *run) {
    enum { KEPT_BYTES = 1024, FIXED_BYTES = 1024, STAGE_BYTES = 4096 };      /* of a block's shared memory, for the driver, and what it has besides the rings and a */
    const dw_tensor *b = run->call.in[1], *out = run->call.out[0];
    const int64_t k = b->dims[b->rank - 1], cols = out->dims[out->rank - 1], wanted = base_ceil_div(cols, SKINNY_VECTOR_WARPS);
    const int64_t of_a = run->norm != NULL && 2 * k > NIBBLES_BYTES(k) ? 2 * k : NIBBLES_BYTES(k), room = ((int64_t)run->chip->shared_bytes + KEPT_BYTES) / 2 - KEPT_BYTES - FIXED_BYTES - of_a;
    const int halves = matmul_halves_columns(&run->post);
    const row_bytes bytes = row_bytes_of(b);
    nibbles_division d = {.rows = NIBBLES_ROWS, .blocks = wanted < run->chip->units ? wanted : run->chip->units};
    const int64_t warps = d.blocks * SKINNY_VECTOR_WARPS;
    d.each = (int)(cols / warps);
    d.rest = (int)(cols % warps);
    d.most_rows = (d.each + (d.rest > 0)) << halves;
    while (d.rows > 1 && (d.rows / 2 >= d.most_rows || d.rows * bytes.codes > STAGE_BYTES)) d.rows /= 2;
    d.stage_bytes = d.rows * (bytes.codes + bytes.scales);
    const int64_t stages = room > 0 ? room / (SKINNY_VECTOR_WARPS * d.stage_bytes) : 0, wanted_stages = base_ceil_div(d.most_rows, d.rows);
    d.stages = (int)(stages < RING_STAGES ? stages : RING_STAGES);
    if (d.stages > wanted_stages) d.stages = (int)wanted_stages;
    d.shared_bytes = (uint32_t)(SKINNY_VECTOR_WARPS * d.stages * d.stage_bytes + of_a);
    return d;
}

static bool is_nv(dw_format format) { return format == DW_FORMAT_nvfp4 || format == DW_FORMAT_nvfp4_row; }

bool ring_nibbles_takes(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const dw_format format = run->quantises ? run->quantised : a->format;
    if (!(is_nv(format) && is_nv(b->format)) && !(format == DW_FORMAT_mxfp4 && b->format == DW_FORMAT_mxfp4)) return false;
    if ( kernel_result_rows(&run->call) != 1 || run->chip->shared_bytes < SKINNY_ROOM) return false;
    const int64_t k = a->dims[a->rank - 1];
    if (k > NIBBLES_PIECES * SKINNY_VECTOR_PIECES || row_bytes_of(b).scales * num_info(b->format)->cols != k || row_bytes_of(b).scales % 16 != 0) return false;
    if (b->scale_layout != DW_SCALE_plain || (run->quantises && !skinny_is_in_units(a)) || ((uintptr_t)a->data | (uintptr_t)b->data | (uintptr_t)b->scales) % 16 != 0 || (run->norm != NULL && k > SKINNY_VECTOR_PIECES)) return false;
    const nibbles_division d = divide(run);
    return d.most_rows <= RING_ROWS && d.stages > 0 && (d.stages > 1 || d.most_rows <= d.rows);
}

/* What quantising a takes, in microseconds: with a search as measured, 2048 and 8192 elements of both formats; without, guessed. */
static double quantising_us(const kernel_run *run, double thousands) {
    if (!run->quantises) return 0;
    if (!run->searches) return 0.3 + 0.1 * thousands;
    return run->quantised == DW_FORMAT_mxfp4 ? 0.13 + 0.23 * thousands : 0.63 + 0.4 * thousands;
}

/* As chains of the product alone take an H200 (bench/results/h200/skinny.md). */
double ring_nibbles_seconds(const kernel_run *run) {
    static const double START_US = 2.8, NORM_US = 0.3, THOUSAND_US = 0.15, SHARE = 0.6;
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const row_bytes bytes = row_bytes_of(b);
    const double thousands = 1e-3 * (double)a->dims[a->rank - 1];
    const double own = START_US + THOUSAND_US * thousands + quantising_us(run, thousands) + (run->norm != NULL ? NORM_US : 0);
    return 1e-6 * own + (double)b->dims[b->rank - 2] * (double)(bytes.codes + bytes.scales) / (chip_bytes_per_s(run->chip) * SHARE);
}

dw_status ring_nibbles_launch(const kernel_run *run, kernel_launcher *launcher) {
    static const char *const entries[2][2] = {{"matmul_ring_nvfp4", "matmul_ring_nvfp4_search"}, {"matmul_ring_mxfp4", "matmul_ring_mxfp4_search"}};
    const nibbles_division d = divide(run);
    const int64_t at = SKINNY_VECTOR_WARPS * d.stages * d.stage_bytes;
    kernel_launch launch;
    nibbles_arguments *n = cuda_launch(&launch, "matmul_ring_nibbles", entries[run->call.in[1]->format == DW_FORMAT_mxfp4][run->searches], sizeof *n);
    skinny_arguments *g = &n->ring.product;
    matmul_take_epilogue(&launch, run, 2, &g->epilogue);
    skinny_take_product(&launch, run, 1, g);
    g->b_is_constant = (run->constant_in >> 1 & 1) != 0;
    if (run->norm != NULL) skinny_take_norm(&launch, run, at, &g->norm);
    g->norm.at = (int32_t)at;
    n->ring.each = d.each;
    n->ring.rest = d.rest;
    n->ring.chunks = 1;
    n->ring.chunk_bytes = (int32_t)d.stage_bytes;
    n->ring.stages = d.stages;
    n->rows = d.rows;
    cuda_grid(&launch, d.blocks, 1, 1);
    launch.block[0] = SKINNY_VECTOR_WARPS * 32;
    launch.shared_bytes = d.shared_bytes;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}
