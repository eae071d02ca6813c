/* Products of one row by weights of fp8_128x128 and mxfp8 that come through rings in shared memory: the host half of ring_codes.cuh. Which calls it takes, how long they take, how one is divided, the launch. Pure: knows
 * no driver. */

#include "kernels/gemm/host.h"
#include "kernels/gemm/skinny/host.h"
#include "kernels/gemm/skinny/ring_codes.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

/* span: rows of b in a stage; strips: of a row; each: columns of the result that a warp has at least, rest: warps that have one more; stages of a warp's ring, 0: it does not fit. at, normed: where a's
 * strips lie behind the rings, and the normalised row behind those. */
typedef struct codes_division { int span, strips, chunks, chunk_bytes, stages, each, rest; int64_t blocks, at, normed, shared_bytes; } codes_division;

/* One block a multiprocessor, with half of its shared memory, so that the next launch's finds room beside it. */
static codes_division divide_codes(const kernel_run *run) {
    enum { KEPT_BYTES = 1024, FIXED_BYTES = 1024, ALIGNED = 128 };       /* of a block's shared memory, for the driver, and what has a fixed size in it */
    const chip_caps *chip = run->chip;
    const dw_tensor *a = run->call.in[0], *out = run->call.out[0];
    const int64_t k = a->dims[a->rank - 1], cols = out->dims[out->rank - 1], wanted = base_ceil_div(cols, SKINNY_VECTOR_WARPS);
    codes_division d = {.span = k == CODES_STRIP ? 2 : 1, .strips = (int)base_ceil_div(k, CODES_STRIP), .chunks = 1, .blocks = wanted < chip->units ? wanted : chip->units};
    if (d.span == 1) d.chunks = (int)base_ceil_div(k, CODES_STAGE_BYTES);
    d.chunk_bytes = (int)(base_ceil_div(k * d.span, ALIGNED) * ALIGNED);
    if (d.chunks > 1) d.chunk_bytes = CODES_STAGE_BYTES;
    const int64_t warps = d.blocks * SKINNY_VECTOR_WARPS, codes = d.strips * CODES_A_BYTES, normed = run->norm != NULL ? base_ceil_div(k, 8) * 16 : 0;
    const int64_t room = ((int64_t)chip->shared_bytes + KEPT_BYTES) / 2 - KEPT_BYTES - FIXED_BYTES - codes - normed, stages = room > 0 ? room / (SKINNY_VECTOR_WARPS * d.chunk_bytes) : 0;
    d.stages = (int)(stages < RING_STAGES ? stages : RING_STAGES);
    d.each = (int)(cols / warps);
    d.rest = (int)(cols % warps);
    d.at = SKINNY_VECTOR_WARPS * (int64_t)d.stages * d.chunk_bytes;
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
    const int64_t k = a->dims[a->rank - 1], most = matmul_halves_columns(&run->post) ? RING_ROWS / 2 : RING_ROWS;
    if (run->chip->shared_bytes < SKINNY_ROOM || kernel_result_rows(&run->call) != 1 || entries == NULL || run->searches) return false;
    if (k < SHORT || k > CODES_MOST || k % entries->units != 0 || b->dims[b->rank - 2] < LEAST_ROWS || op_tensor_count(b) > entries->most || !skinny_is_in_units(a) || !skinny_is_in_units(b) || (uintptr_t)b->scales % 4 != 0) return false;
    if (run->norm != NULL && k > SKINNY_VECTOR_PIECES) return false;
    const codes_division d = divide_codes(run);
    return d.stages >= 2 && d.each + (d.rest > 0) <= most;
}

double ring_codes_seconds(const kernel_run *run) {
    static const double NORM_US = 0.6;
    const codes_entries *entries = entries_of(run);
    const double bytes = (double)op_tensor_count(run->call.in[1]) * dw_format_bits(run->call.in[1]->format) / 8;
    return 1e-6 * (entries->start[divide_codes(run).span == 1] + (run->norm != NULL ? NORM_US : 0)) + bytes / (chip_bytes_per_s(run->chip) * entries->share);
}

dw_status ring_codes_launch(const kernel_run *run, kernel_launcher *launcher) {
    const codes_division d = divide_codes(run);
    const codes_entries *entries = entries_of(run);
    const bool halves = matmul_halves_columns(&run->post);
    kernel_launch launch;
    ring_codes_arguments *c = cuda_launch(&launch, entries->image, d.span == 2 ? entries->whole : entries->image, sizeof *c);
    skinny_arguments *g = &c->ring.product;
    matmul_take_epilogue(&launch, run, 2, &g->epilogue);
    skinny_take_product(&launch, run, 1, g);
    g->b_is_constant = (run->constant_in >> 1 & 1) != 0;
    if (run->norm != NULL) skinny_take_norm(&launch, run, d.normed, &g->norm);
    c->ring.each = d.each;
    c->ring.rest = d.rest;
    c->ring.chunks = d.chunks;
    c->ring.chunk_bytes = d.chunk_bytes;
    c->ring.stages = d.stages;
    c->further = (halves ? g->n / 2 : d.span) * g->b.row_bytes;
    c->advance = (halves ? d.span : 2 * d.span) * g->b.row_bytes;
    c->strips = d.strips;
    c->at = (int32_t)d.at;
    cuda_grid(&launch, d.blocks, 1, 1);
    launch.block[0] = SKINNY_VECTOR_WARPS * 32;
    launch.shared_bytes = (uint32_t)d.shared_bytes;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}
