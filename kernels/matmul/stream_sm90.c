/* matmul past few rows on Hopper and later: the host half of stream_sm90.cuh. Which products it takes, how a call is divided, the launch. For more rows than it
 * takes a call is the plain kernel's. Pure: knows no driver. */
#include "kernels/matmul/stream_sm90.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"
#include "kernels/matmul/matmul_host.h"

/* ---- what is taken ---- */

typedef struct stream_weights { dw_format b; const char *image, *entries[4]; } stream_weights;

#define ENTRIES(name) "matmul_stream_" #name, {"matmul_stream_" #name "_m8", "matmul_stream_" #name "_m16", "matmul_stream_" #name "_m32", "matmul_stream_" #name "_m64"}
static const stream_weights all_weights[] = {
    {DW_FORMAT_bf16, ENTRIES(bf16)},
    {DW_FORMAT_f16, ENTRIES(f16)},
    {DW_FORMAT_fp8_tensor, ENTRIES(e4m3)},
    {DW_FORMAT_fp8_row, ENTRIES(e4m3)},
    {DW_FORMAT_fp8_1x128, ENTRIES(e4m3_block)},
    {DW_FORMAT_fp8_128x128, ENTRIES(e4m3_block)},
    {DW_FORMAT_mxfp8, ENTRIES(mxfp8)},
    {DW_FORMAT_mxfp8_e5m2, ENTRIES(mxfp8_e5m2)},
    {DW_FORMAT_mxfp4, ENTRIES(mxfp4)},
    {DW_FORMAT_nvfp4, ENTRIES(nvfp4)},
    {DW_FORMAT_nvfp4_row, ENTRIES(nvfp4)},
};

static const stream_weights *weights_of(dw_format b) {
    for (size_t i = 0; i < COUNT_OF(all_weights); i++)
        if (all_weights[i].b == b) return &all_weights[i];
    return NULL;
}

/* How many rows of a one row is; 0: it is not taken with weights b. */
static int planes_of(dw_format a, dw_format b) {
    switch (a) {
    case DW_FORMAT_f32: return b == DW_FORMAT_f16 ? 0 : 3;
    case DW_FORMAT_f16: return b == DW_FORMAT_f16 ? 1 : 2;
    case DW_FORMAT_bf16:
    case DW_FORMAT_mxfp8:
    case DW_FORMAT_mxfp8_e5m2:
    case DW_FORMAT_mxfp4:
    case DW_FORMAT_nvfp4:
    case DW_FORMAT_nvfp4_row:
    case DW_FORMAT_fp8_tensor:
    case DW_FORMAT_fp8_row: return b != DW_FORMAT_f16;
    case DW_FORMAT_fp8_1x128: return b == DW_FORMAT_fp8_1x128 || b == DW_FORMAT_fp8_128x128;
    default: return 0;
    }
}

static int64_t most_rows(dw_format a, dw_format b) { return 64 / planes_of(a, b); }

static const char *reject_products(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    if (weights_of(b->format) == NULL || planes_of(a->format, b->format) == 0) {
        text_printf(why, "%s times %s is not one of its products", dw_format_name(a->format), dw_format_name(b->format));
        return text_string(why);
    }
    if (op_attr_bool(problem->attrs, OP_ATTR_at)) return "a is stored with k first";
    if (!op_attr_bool(problem->attrs, OP_ATTR_bt)) return "b is stored with n last; it is read as [n,k]";
    return matmul_reject_result(problem, why);
}

const char *matmul_stream_reject(const kernel_problem *problem, text *why) {
    const char *reason = reject_products(problem, why);
    return reason != NULL ? reason : matmul_cuda_reject(problem, why);
}

/* ---- how a call is divided ---- */

/* across: warps of a block side by side along n; splits: blocks of a cluster, which share k; slab_steps: of k whose part of a is in shared memory at a time. */
typedef struct stream_division { int size, across, splits, steps, slab_steps; int64_t tiles, blocks; uint32_t shared_bytes; } stream_division;

static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

/* Words of scales that a thread brings with each step of a row. */
static int scale_words(dw_format b) {
    if (!dw_format_is_block(b) || num_info(b)->cols == 0) return 0;
    return dw_format_bits(b) == 4 ? 2 : 1;
}

/* rows: of a, planes counted. cols: of the result. Of few rows blocks are narrow along n, so that there are many; of more they are wide, as each reads all of a.
 * Clusters share k where tiles are fewer than half the multiprocessors, or where a block's part of a would not fit (of few rows, beside another block). */
static stream_division divide(dw_format b, int64_t m, int planes, int64_t cols, bool halves, int64_t k, int multiprocessors) {
    enum { MOST_BYTES = 226 * 1024, HALF_BYTES = 113 * 1024 };
    int64_t rows = m * planes, depth = STREAM_STEP_BYTES * 8 / dw_format_bits(b), step_bytes = depth * 2 * rows + m * 4;
    stream_division d = {.size = rows <= 8 ? 0 : rows <= 16 ? 1 : rows <= 32 ? 2 : 3, .across = rows <= 2 ? 2 : rows <= 8 ? 4 : 8};
    d.steps = (int)ceil_div(k, depth);
    d.tiles = ceil_div(cols, (halves ? 8 : 16) * d.across);
    int64_t along = STREAM_WARPS / d.across, sums = (d.size <= 1 ? 2 : 1) * (STREAM_WARPS * (8ll << d.size) * STREAM_SUM_PITCH * 4 + m * 64 * d.across);
    int64_t fixed = STREAM_STAGES * STREAM_THREADS * (64 + 8 * scale_words(b)) + sums + 16;
    for (d.splits = 1; d.splits < STREAM_SPLITS && d.steps >= 2 * d.splits * along; d.splits *= 2)
        if (2 * d.tiles * d.splits >= multiprocessors && fixed + ceil_div(d.steps, d.splits) * step_bytes <= (rows <= 8 ? HALF_BYTES : MOST_BYTES)) break;
    d.slab_steps = (int)ceil_div(d.steps, d.splits);
    if (fixed + d.slab_steps * step_bytes > MOST_BYTES) d.slab_steps = MOST_BYTES - fixed > step_bytes ? (int)((MOST_BYTES - fixed) / step_bytes) : 1;
    d.shared_bytes = (uint32_t)(fixed + d.slab_steps * step_bytes);
    int64_t slots = multiprocessors * (d.shared_bytes <= HALF_BYTES && d.size <= 1 ? 2 : 1) / d.splits;
    d.blocks = (d.tiles < slots ? d.tiles : slots) * d.splits;
    return d;
}

/* Microseconds: the start, and the bytes of b at the rate that was measured of a chip of 4.8 TB/s (README.md). Less than 0: it does not take them. */
double matmul_stream_us(const chip_caps *chip, dw_format a, dw_format b, int64_t m, int64_t n, int64_t k) {
    int planes = planes_of(a, b);
    if (planes == 0 || weights_of(b) == NULL || m > most_rows(a, b)) return -1;
    int64_t rows = m * planes;
    int bits = dw_format_bits(b);
    double bytes = (double)n * (double)num_row_bytes(b, k), share = rows <= 2 ? (bits == 16 ? 0.67 : bits == 8 ? 0.48 : 0.36) : rows <= 8 ? (bits == 4 ? 0.2 : 0.27) : rows <= 16 ? 0.2 : 0.06;
    return 4 + 1e6 * bytes / (chip->bytes_per_s * share);
}

double matmul_stream_cost(const kernel_problem *problem) {
    dw_tensor in[KERNEL_MAX_OPERANDS], out[KERNEL_MAX_RESULTS];
    const dw_tensor *in_pointers[KERNEL_MAX_OPERANDS], *out_pointers[KERNEL_MAX_RESULTS];
    op_call call;
    int64_t most = 1, m = 1;
    const op_type *result = problem->out[0];
    for (int i = 0; i < result->rank - 1; i++) {
        int64_t least_size, most_size;
        dim_range(problem->dims, result->dims[i], &least_size, &most_size);
        most = most_size > 0 && most <= 64 ? most * (most_size < 65 ? most_size : 65) : most;
    }
    double plain = matmul_cuda_cost(problem);
    if (most > most_rows(problem->in[0]->format, problem->in[1]->format)) return plain;
    if (problem->symbols == NULL || kernel_problem_call(problem, in, out, in_pointers, out_pointers, &call) != DW_OK) return plain;
    for (int i = 0; i < out[0].rank - 1; i++) m *= out[0].dims[i];
    double us = matmul_stream_us(problem->chip, in[0].format, in[1].format, m, in[1].dims[in[1].rank - 2], in[0].dims[in[0].rank - 1]);
    return us < 0 ? plain : 1e-6 * us;
}

size_t matmul_stream_workspace(const kernel_run *run) { return matmul_cuda_workspace(run); }

/* ---- the launch ---- */

static dw_status launch_stream(const kernel_run *run, kernel_launcher *launcher, int64_t m) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    const stream_weights *weights = weights_of(b->format);
    int64_t n = b->dims[b->rank - 2], k = a->dims[a->rank - 1], cols = out->dims[out->rank - 1];
    bool halves = matmul_halves_columns(&run->post);
    int planes = planes_of(a->format, b->format);
    stream_division d = divide(b->format, m, planes, cols, halves, k, run->chip->units);
    kernel_launch launch;
    stream_arguments *g = cuda_launch(&launch, weights->image, weights->entries[d.size], sizeof *g);
    matmul_take_epilogue(&launch, run, &g->epilogue);
    if (b->format == DW_FORMAT_nvfp4 || b->format == DW_FORMAT_nvfp4_row) g->epilogue.alpha = 65536;
    g->m = (int32_t)m;
    g->n = (int32_t)n;
    g->k = (int32_t)k;
    g->planes = planes;
    g->across = d.across;
    g->tiles = (int32_t)d.tiles;
    g->steps = d.steps;
    g->slab_steps = d.slab_steps;
    matmul_take_rows(&launch, run, 0, &g->a);
    matmul_take_rows(&launch, run, 1, &g->b);
    cuda_grid(&launch, d.blocks, 1, 1);
    if (d.splits > 1) launch.cluster[0] = (uint32_t)d.splits, launch.cluster[1] = launch.cluster[2] = 1;
    launch.block[0] = STREAM_THREADS;
    launch.shared_bytes = d.shared_bytes;
    return launcher->add(launcher, &launch);
}

bool matmul_stream_takes(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    int64_t m = 1, n = b->dims[b->rank - 2], k = a->dims[a->rank - 1];
    for (int i = 0; i < out->rank - 1; i++) m *= out->dims[i];
    if (planes_of(a->format, b->format) == 0 || weights_of(b->format) == NULL || m > most_rows(a->format, b->format)) return false;
    return k > 0 && n < INT32_MAX / 2 && k < INT32_MAX / 4;
}

dw_status matmul_stream_shape(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *out = run->call.out[0];
    int64_t m = 1;
    for (int i = 0; i < out->rank - 1; i++) m *= out->dims[i];
    if (m == 0 || out->dims[out->rank - 1] == 0) return DW_OK;
    return matmul_stream_takes(run) ? launch_stream(run, launcher, m) : matmul_cuda_shape(run, launcher);
}
