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

/* rows: of b in a stage; stages of a warp's ring, 0: it does not fit; most_rows: of b that a warp has. */
typedef struct nibbles_division { int rows, stages, most_rows; int64_t stage_bytes; uint32_t shared_bytes; } nibbles_division;

/* A stage has 4 KiB of codes, or a row. */
static nibbles_division divide(const kernel_run *run, const ring_share *share) {
    enum { STAGE_BYTES = 4096 };
    const dw_tensor *b = run->call.in[1];
    const int64_t k = b->dims[b->rank - 1], of_a = run->norm != NULL && 2 * k > NIBBLES_BYTES(k) ? 2 * k : NIBBLES_BYTES(k);
    const row_bytes bytes = row_bytes_of(b);
    nibbles_division d = {.rows = NIBBLES_ROWS, .most_rows = (share->each + (share->rest > 0)) << matmul_halves_columns(&run->post)};
    while (d.rows > 1 && (d.rows / 2 >= d.most_rows || d.rows * bytes.codes > STAGE_BYTES)) d.rows /= 2;
    d.stage_bytes = d.rows * (bytes.codes + bytes.scales);
    const int wanted = (int)base_ceil_div(d.most_rows, d.rows);
    d.stages = ring_stages(ring_room(run->chip) - of_a, d.stage_bytes);
    if (d.stages > wanted) d.stages = wanted;
    d.shared_bytes = (uint32_t)(SKINNY_VECTOR_WARPS * d.stages * d.stage_bytes + of_a);
    return d;
}

static bool is_nv(dw_format format) { return format == DW_FORMAT_nvfp4 || format == DW_FORMAT_nvfp4_row; }

bool ring_nibbles_takes(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const dw_format format = run->quantises ? run->quantised : a->format;
    if (!(is_nv(format) && is_nv(b->format)) && !(format == DW_FORMAT_mxfp4 && b->format == DW_FORMAT_mxfp4)) return false;
    if (kernel_result_rows(&run->call) != 1 || run->chip->shared_bytes < SKINNY_ROOM) return false;
    const int64_t k = a->dims[a->rank - 1];
    if (k > NIBBLES_PIECES * SKINNY_VECTOR_PIECES || row_bytes_of(b).scales * num_info(b->format)->cols != k || row_bytes_of(b).scales % 16 != 0) return false;
    if (b->scale_layout != DW_SCALE_plain || (run->quantises && !skinny_is_in_units(a)) || ((uintptr_t)a->data | (uintptr_t)b->data | (uintptr_t)b->scales) % 16 != 0 || (run->norm != NULL && k > SKINNY_VECTOR_PIECES)) return false;
    const ring_share share = ring_share_of(run);
    const nibbles_division d = divide(run, &share);
    return !ring_is_full(run, &share) && d.stages > 0 && (d.stages > 1 || d.most_rows <= d.rows);
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
    const ring_share share = ring_share_of(run);
    const nibbles_division d = divide(run, &share);
    const int64_t at = SKINNY_VECTOR_WARPS * d.stages * d.stage_bytes;
    kernel_launch launch;
    nibbles_arguments *n = cuda_launch(&launch, "matmul_ring_nibbles", entries[run->call.in[1]->format == DW_FORMAT_mxfp4][run->searches], sizeof *n);
    skinny_arguments *g = &n->ring.product;
    ring_take(&launch, run, &share, 1, d.stage_bytes, d.stages, &n->ring);
    if (run->norm != NULL) skinny_take_norm(&launch, run, at, &g->norm);
    g->norm.at = (int32_t)at;
    n->rows = d.rows;
    launch.shared_bytes = d.shared_bytes;
    return launcher->add(launcher, &launch);
}
