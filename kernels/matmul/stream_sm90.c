/* matmul past few rows on Hopper and later: the host half of stream_sm90.cuh. Which products it takes, how a call is divided, the launch. For more rows than it
 * takes a call is the plain kernel's; with rows in groups, too. Pure: knows no driver. */
#include "kernels/matmul/stream_sm90.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"
#include "kernels/matmul/matmul_host.h"

/* ---- what is taken ---- */

/* groups: the entries for rows in groups, of weights for which the tiles are not as fast. */
typedef struct stream_weights { dw_format b; const char *image, *entries[4], *groups[2]; } stream_weights;

#define ENTRIES(name) "matmul_stream_" #name, {"matmul_stream_" #name "_m8", "matmul_stream_" #name "_m16", "matmul_stream_" #name "_m32", "matmul_stream_" #name "_m64"}
#define GROUPS(name) {"matmul_stream_" #name "_m8_groups", "matmul_stream_" #name "_m16_groups"}
static const stream_weights all_weights[] = {
    {DW_FORMAT_bf16, ENTRIES(bf16), {NULL, NULL}},
    {DW_FORMAT_f16, ENTRIES(f16), {NULL, NULL}},
    {DW_FORMAT_fp8_tensor, ENTRIES(e4m3), GROUPS(e4m3)},
    {DW_FORMAT_fp8_row, ENTRIES(e4m3), GROUPS(e4m3)},
    {DW_FORMAT_fp8_1x128, ENTRIES(e4m3_block), {NULL, NULL}},
    {DW_FORMAT_fp8_128x128, ENTRIES(e4m3_block), {NULL, NULL}},
    {DW_FORMAT_mxfp8, ENTRIES(mxfp8), GROUPS(mxfp8)},
    {DW_FORMAT_mxfp8_e5m2, ENTRIES(mxfp8_e5m2), GROUPS(mxfp8_e5m2)},
    {DW_FORMAT_mxfp4, ENTRIES(mxfp4), GROUPS(mxfp4)},
    {DW_FORMAT_nvfp4, ENTRIES(nvfp4), GROUPS(nvfp4)},
    {DW_FORMAT_nvfp4_row, ENTRIES(nvfp4), GROUPS(nvfp4)},
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
    if (weights_of(b->format) == NULL || planes_of(a->format, b->format) == 0 || (problem->op->id == OP_grouped_matmul && weights_of(b->format)->groups[0] == NULL)) {
        text_printf(why, "%s times %s is not one of its products", dw_format_name(a->format), dw_format_name(b->format));
        return text_string(why);
    }
    if (op_attr_bool(problem->attrs, OP_ATTR_at)) return "a is stored with k first";
    if (!op_attr_bool(problem->attrs, OP_ATTR_bt)) return "b is stored with n last; it is read as [n,k]";
    return problem->op->id == OP_grouped_matmul ? matmul_reject_post(problem, 3, why) : matmul_reject_result(problem, why);
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

/* rows: of a, planes counted. cols: of the result. groups: 0, or how many. Of few rows blocks are narrow along n, so that there are many; of more they are wide, as each reads all of a.
 * Clusters share k where tiles are fewer than half the multiprocessors, or where a block's part of a would not fit (of few rows, beside another block). */
static stream_division divide(dw_format b, int64_t m, int planes, int64_t cols, bool halves, int64_t k, int64_t groups, int multiprocessors) {
    enum { MOST_BYTES = 226 * 1024, HALF_BYTES = 113 * 1024 };
    int64_t rows = m * planes, depth = STREAM_STEP_BYTES * 8 / dw_format_bits(b), step_bytes = depth * 2 * rows + m * 4;
    stream_division d = {.size = rows <= 8 ? 0 : rows <= 16 ? 1 : rows <= 32 ? 2 : 3, .across = rows <= 2 ? 2 : rows <= 8 ? 4 : 8};
    d.steps = (int)ceil_div(k, depth);
    d.tiles = ceil_div(cols, (halves ? 8 : 16) * d.across);
    const int64_t all_tiles = d.tiles * (groups > 0 ? (groups < m ? groups : m) : 1);
    int64_t along = STREAM_WARPS / d.across, sums = (d.size <= 1 ? 2 : 1) * (STREAM_WARPS * (8ll << d.size) * STREAM_SUM_PITCH * 4 + m * 64 * d.across);
    int64_t fixed = STREAM_STAGES * STREAM_THREADS * (64 + 8 * scale_words(b)) + sums + 16 + (groups > 0 ? STREAM_LIST_BYTES : 0);
    for (d.splits = 1; d.splits < STREAM_SPLITS && d.steps >= 2 * d.splits * along; d.splits *= 2)
        if (2 * all_tiles * d.splits >= multiprocessors && fixed + ceil_div(d.steps, d.splits) * step_bytes <= (rows <= 8 ? HALF_BYTES : MOST_BYTES)) break;
    d.slab_steps = (int)ceil_div(d.steps, d.splits);
    if (fixed + d.slab_steps * step_bytes > MOST_BYTES) d.slab_steps = MOST_BYTES - fixed > step_bytes ? (int)((MOST_BYTES - fixed) / step_bytes) : 1;
    d.shared_bytes = (uint32_t)(fixed + d.slab_steps * step_bytes);
    int64_t slots = multiprocessors * (d.shared_bytes <= HALF_BYTES && d.size <= 1 ? 2 : 1) / d.splits;
    d.blocks = (all_tiles < slots ? all_tiles : slots) * d.splits;
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

double grouped_stream_us(const chip_caps *chip, dw_format a, dw_format b, int64_t m, int64_t n, int64_t k) {
    const stream_weights *weights = weights_of(b);
    if (weights == NULL || weights->groups[0] == NULL || m * planes_of(a, b) > STREAM_GROUP_ROWS) return -1;
    return matmul_stream_us(chip, a, b, m, n, k);
}

/* Of few rows in all that are possible; else of the plain kernel. */
static double cost_of(const kernel_problem *problem, bool grouped) {
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
    const dw_format a = problem->in[0]->format, b = problem->in[1]->format;
    if (most > (grouped ? STREAM_GROUP_ROWS / planes_of(a, b) : most_rows(a, b))) return plain;
    if (problem->symbols == NULL || kernel_problem_call(problem, in, out, in_pointers, out_pointers, &call) != DW_OK) return plain;
    for (int i = 0; i < out[0].rank - 1; i++) m *= out[0].dims[i];
    const int64_t n = in[1].dims[in[1].rank - 2], k = in[0].dims[in[0].rank - 1];
    const int64_t busy = grouped && m < in[1].dims[0] ? m : grouped ? in[1].dims[0] : 1;
    double us = grouped ? grouped_stream_us(problem->chip, a, b, m, busy * n, k) : matmul_stream_us(problem->chip, a, b, m, n, k);
    return us < 0 ? plain : 1e-6 * us;
}

double matmul_stream_cost(const kernel_problem *problem) { return cost_of(problem, false); }

size_t matmul_stream_workspace(const kernel_run *run) { return matmul_cuda_workspace(run); }

/* ---- the launch ---- */

static dw_status launch_stream(const kernel_run *run, kernel_launcher *launcher, int64_t m, int64_t groups) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    const stream_weights *weights = weights_of(b->format);
    int64_t n = b->dims[b->rank - 2], k = a->dims[a->rank - 1], cols = out->dims[out->rank - 1];
    bool halves = matmul_halves_columns(&run->post);
    int planes = planes_of(a->format, b->format);
    stream_division d = divide(b->format, m, planes, cols, halves, k, groups, run->chip->units);
    kernel_launch launch;
    stream_arguments *g = cuda_launch(&launch, weights->image, groups > 0 ? weights->groups[d.size] : weights->entries[d.size], sizeof *g);
    matmul_take_epilogue(&launch, run, groups > 0 ? 3 : 2, &g->epilogue);
    if (groups > 0) matmul_take_groups(&launch, run, 0, groups, &g->groups);
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
    return matmul_stream_takes(run) ? launch_stream(run, launcher, m, 0) : matmul_cuda_shape(run, launcher);
}

/* ---- rows in groups ---- */

const char *grouped_stream_reject(const kernel_problem *problem, text *why) {
    int64_t groups, n;
    const op_type *b = problem->in[1];
    const char *reason = reject_products(problem, why);
    if (reason != NULL) return reason;
    if (!dim_is_constant(b->dims[0], &groups) || !dim_is_constant(b->dims[1], &n)) return "n or the number of groups is not known at plan time";
    if (groups == 0) return "there are no groups";
    if (n > INT32_MAX / 2 / groups) return "the rows of all groups' b are more than this kernel counts to";
    return matmul_cuda_reject(problem, why);
}

double grouped_stream_cost(const kernel_problem *problem) { return cost_of(problem, true); }
size_t grouped_stream_workspace(const kernel_run *run) { return matmul_cuda_workspace(run); }

dw_status grouped_stream_shape(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t m = a->dims[0], k = a->dims[1];
    if (m == 0 || run->call.out[0]->dims[1] == 0) return DW_OK;
    const bool takes = m * planes_of(a->format, b->format) <= STREAM_GROUP_ROWS && k > 0 && k < INT32_MAX / 4;
    return takes ? launch_stream(run, launcher, m, b->dims[0]) : grouped_cuda_shape(run, launcher);
}
