/* Products of one row by weights of fp8_128x128 and mxfp8 that come through rings in shared memory: the host half of ring_codes.cuh. Which calls it takes, how long they take, how one is divided, the launch. Pure: knows
 * no driver. */
#include "kernels/gemm/host.h"
#include "kernels/gemm/skinny/host.h"
#include "kernels/gemm/skinny/ring_codes.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

/* span: rows of b in a stage; strips: of a row; stages of a warp's ring, fewer than 2: it does not fit. at, normed: where a's strips lie behind the rings, and the normalised row behind those. */
typedef struct codes_division { int span, strips, chunks, stages; int64_t chunk_bytes, at, normed, shared_bytes; } codes_division;

static codes_division divide(const kernel_run *run) {
    enum { ALIGNED = 128 };
    const dw_tensor *a = run->call.in[0];
    const int64_t k = a->dims[a->rank - 1], normed = run->norm != NULL ? base_ceil_div(k, 8) * 16 : 0;
    codes_division d = {.span = k == CODES_STRIP ? 2 : 1, .strips = (int)base_ceil_div(k, CODES_STRIP), .chunks = 1};
    const int64_t codes = d.strips * CODES_A_BYTES;
    if (d.span == 1) d.chunks = (int)base_ceil_div(k, CODES_STAGE_BYTES);
    d.chunk_bytes = d.chunks > 1 ? CODES_STAGE_BYTES : base_ceil_div(k * d.span, ALIGNED) * ALIGNED;
    d.stages = ring_stages(ring_room(run->chip) - codes - normed, d.chunk_bytes);
    d.at = SKINNY_VECTOR_WARPS * d.stages * d.chunk_bytes;
    d.normed = d.at + codes;
    d.shared_bytes = d.normed + normed;
    return d;
}

/* By formats of a in the product and of b: the image, which has the name of one of its entries, and the entry for rows of one strip. units: k is a multiple of so many; most: elements of b. start, of whole rows
 * and of others, in microseconds, and share of the bandwidth: as chains of the product alone take them on an H200, from 2048 x 2048 to 28672 x 4096; of which mxfp8 takes the largest in more than
 * the kernel in f16 (bench/results/h200/skinny.md). */
typedef struct codes_entries { dw_format a, b; int units; int64_t most; double start[2], share; const char *image, *whole; } codes_entries;

static const codes_entries *entries_of(const kernel_run *run) {
    static const codes_entries all[] = {
        {DW_FORMAT_fp8_1x128, DW_FORMAT_fp8_128x128, 16, INT64_MAX, {2.7, 4.2}, 0.97, "matmul_ring_e4m3_block", "matmul_ring_e4m3_block_whole"},
        {DW_FORMAT_mxfp8, DW_FORMAT_mxfp8, 128, 40 * 1000 * 1000, {2.8, 4.6}, 0.79, "matmul_ring_mxfp8", "matmul_ring_mxfp8_whole"},
    };
    const dw_format a = run->quantises ? run->quantised : run->call.in[0]->format;
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (all[i].a == a && all[i].b == run->call.in[1]->format) return &all[i];
    return NULL;
}

/* Not shorter rows than bf16's by rings (skinny.c), nor smaller weights; a norm only where its threads have a piece of 8 elements each. */
bool ring_codes_takes(const kernel_run *run) {
    enum { LEAST_ROWS = 2048, SHORT = 2048 };
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const codes_entries *entries = entries_of(run);
    const int64_t k = a->dims[a->rank - 1];
    if (run->chip->shared_bytes < SKINNY_ROOM || kernel_result_rows(&run->call) != 1 || entries == NULL || run->searches) return false;
    if (k < SHORT || k > CODES_MOST || k % entries->units != 0 || b->dims[b->rank - 2] < LEAST_ROWS || op_tensor_count(b) > entries->most || !skinny_is_in_units(a) || !skinny_is_in_units(b) || (uintptr_t)b->scales % 4 != 0) return false;
    if (run->norm != NULL && k > SKINNY_VECTOR_PIECES) return false;
    const ring_share share = ring_share_of(run);
    return divide(run).stages >= 2 && !ring_is_full(run, &share);
}

double ring_codes_seconds(const kernel_run *run) {
    const codes_entries *entries = entries_of(run);
    const double bytes = (double)op_tensor_count(run->call.in[1]) * dw_format_bits(run->call.in[1]->format) / 8;
    return 1e-6 * (entries->start[divide(run).span == 1] + skinny_norm_us(run)) + bytes / (chip_bytes_per_s(run->chip) * entries->share);
}

dw_status ring_codes_launch(const kernel_run *run, kernel_launcher *launcher) {
    const codes_division d = divide(run);
    const ring_share share = ring_share_of(run);
    const codes_entries *entries = entries_of(run);
    const bool halves = matmul_halves_columns(&run->post);
    kernel_launch launch;
    ring_codes_arguments *c = cuda_launch(&launch, entries->image, d.span == 2 ? entries->whole : entries->image, sizeof *c);
    skinny_arguments *g = &c->ring.product;
    ring_take(&launch, run, &share, d.chunks, d.chunk_bytes, d.stages, &c->ring);
    if (run->norm != NULL) skinny_take_norm(&launch, run, d.normed, &g->norm);
    c->further = (halves ? g->n / 2 : d.span) * g->b.row_bytes;
    c->advance = (halves ? d.span : 2 * d.span) * g->b.row_bytes;
    c->strips = d.strips;
    c->at = (int32_t)d.at;
    launch.shared_bytes = (uint32_t)d.shared_bytes;
    return launcher->add(launcher, &launch);
}
