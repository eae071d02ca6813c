/* Products of one row by rings in shared memory, in 16 bits, and what those of codes share with them: the host half of ring.cuh. Which calls it takes, how one is divided, how long it takes, the launch. Pure: knows no
 * driver. */
#include "kernels/gemm/skinny/ring.h"

#include "kernels/gemm/host.h"
#include "kernels/gemm/skinny/host.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

/* ---- what rings share ---- */

ring_share ring_share_of(const kernel_run *run) {
    const dw_tensor *out = run->call.out[0];
    const int64_t cols = out->dims[out->rank - 1], wanted = base_ceil_div(cols, SKINNY_VECTOR_WARPS), blocks = wanted < run->chip->units ? wanted : run->chip->units, warps = blocks * SKINNY_VECTOR_WARPS;
    return (ring_share){(int)(cols / warps), (int)(cols % warps), blocks};
}

bool ring_is_full(const kernel_run *run, const ring_share *share) { return (share->each + (share->rest > 0)) << matmul_halves_columns(&run->post) > RING_ROWS; }

int64_t ring_room(const chip_caps *chip) {
    enum { KEPT_BYTES = 1024, FIXED_BYTES = 1024 };       /* of a block's shared memory, for the driver, and what has a fixed size in it */
    return ((int64_t)chip->shared_bytes + KEPT_BYTES) / 2 - KEPT_BYTES - FIXED_BYTES;
}

int ring_stages(int64_t room, int64_t stage_bytes) {
    const int64_t stages = room > 0 ? room / (SKINNY_VECTOR_WARPS * stage_bytes) : 0;
    return (int)(stages < RING_STAGES ? stages : RING_STAGES);
}

void ring_take(kernel_launch *launch, const kernel_run *run, const ring_share *share, int chunks, int64_t stage_bytes, int stages, ring_arguments *r) {
    skinny_arguments *g = &r->product;
    matmul_take_epilogue(launch, run, 2, &g->epilogue);
    skinny_take_product(launch, run, 1, g);
    r->each = share->each;
    r->rest = share->rest;
    r->chunks = chunks;
    r->chunk_bytes = (int32_t)stage_bytes;
    r->stages = stages;
    cuda_grid(launch, share->blocks, 1, 1);
    launch->block[0] = SKINNY_VECTOR_WARPS * 32;
    launch->overlaps = true;
}

/* ---- weights in 16 bits ---- */

/* chunks, chunk_bytes: pieces of a row of b; stages of a warp's ring, fewer than 2: it does not fit. */
typedef struct ring_division { int chunks, stages; int64_t chunk_bytes; } ring_division;

static ring_division divide(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0];
    const int64_t bytes = a->dims[a->rank - 1] * 2, chunks = base_ceil_div(bytes, RING_CHUNK_BYTES), chunk_bytes = base_ceil_div(base_ceil_div(bytes, chunks), 512) * 512;
    return (ring_division){(int)chunks, ring_stages(ring_room(run->chip) - bytes, chunk_bytes), chunk_bytes};
}

/* Measured (bench/results/h200/skinny.md): a step of Llama-1B takes less where all products of a layer go by rings, though the two small ones take more alone; rows shorter than theirs take more in steps of GPT-2, longer
 * ones alone, and more rows than a warp has lanes, as of logits, in both steps. */
bool ring_takes(const kernel_run *run) {
    enum { LEAST_ROWS = 2048, SHORT = 2048, LONG = 8192 };
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t k = a->dims[a->rank - 1];
    if (run->chip->shared_bytes < SKINNY_ROOM || kernel_result_rows(&run->call) != 1 || run->quantises || a->format != b->format || (b->format != DW_FORMAT_bf16 && b->format != DW_FORMAT_f16)) return false;
    if (k < SHORT || k > LONG || b->dims[b->rank - 2] < LEAST_ROWS || !skinny_is_in_units(a) || !skinny_is_in_units(b)) return false;
    if (run->norm != NULL && k > SKINNY_VECTOR_PIECES) return false;
    const ring_share share = ring_share_of(run);
    return divide(run).stages >= 2 && !ring_is_full(run, &share);
}

/* As chains of the product alone take an H200 (bench/results/h200/skinny.md). */
double ring_seconds(const kernel_run *run) {
    static const double START_US = 2.8;
    return 1e-6 * (START_US + skinny_norm_us(run)) + (double)op_tensor_count(run->call.in[1]) * 2 / (chip_bytes_per_s(run->chip) * 0.97);
}

dw_status ring_launch(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *a = run->call.in[0];
    const ring_division d = divide(run);
    const ring_share share = ring_share_of(run);
    const int64_t at = SKINNY_VECTOR_WARPS * d.stages * d.chunk_bytes;
    kernel_launch launch;
    ring_arguments *r = cuda_launch(&launch, "matmul_ring", a->format == DW_FORMAT_f16 ? "matmul_ring_f16" : "matmul_ring_bf16", sizeof *r);
    ring_take(&launch, run, &share, d.chunks, d.chunk_bytes, d.stages, r);
    if (run->norm != NULL) skinny_take_norm(&launch, run, at, &r->product.norm);
    r->product.norm.at = (int32_t)at;
    launch.shared_bytes = (uint32_t)(at + a->dims[a->rank - 1] * 2);
    return launcher->add(launcher, &launch);
}
