/* matmul by wgmma for few rows and weights of 8 and 4 bits: the host half of decoded.cuh. Which products it takes, how a call is divided, how long it takes, the launch. Pure: knows no driver. */
#include "kernels/gemm/wgmma/decoded.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/host.h"

/* ---- entries ---- */

typedef struct decoded_weights { dw_format b; const char *image, *entries[4]; int bits, scale_words; } decoded_weights;

#define ENTRIES(name) "matmul_decoded_" #name "_sm90", {"matmul_decoded_" #name "_m16", "matmul_decoded_" #name "_m32", "matmul_decoded_" #name "_m64", "matmul_decoded_" #name "_m128"}
static const decoded_weights all_weights[] = {
    {DW_FORMAT_fp8_tensor, ENTRIES(e4m3), 8, 0},
    {DW_FORMAT_fp8_row, ENTRIES(e4m3), 8, 0},
    {DW_FORMAT_mxfp8, ENTRIES(mxfp8), 8, 1},
    {DW_FORMAT_mxfp8_e5m2, ENTRIES(mxfp8_e5m2), 8, 1},
    {DW_FORMAT_mxfp4, ENTRIES(mxfp4), 4, 1},
    {DW_FORMAT_nvfp4, ENTRIES(nvfp4), 4, 2},
    {DW_FORMAT_nvfp4_row, ENTRIES(nvfp4), 4, 2},
};

static const decoded_weights *weights_of(dw_format b) {
    for (size_t i = 0; i < COUNT_OF(all_weights); i++)
        if (all_weights[i].b == b) return &all_weights[i];
    return NULL;
}

/* Are elements of a, times the scales of blocks that are codes, numbers of bf16, but for the smallest and largest (docs/formats.md)? */
static bool is_exact(dw_format a) {
    const num_format *info = num_info(a);
    return a == DW_FORMAT_bf16 || (info->class == NUM_BLOCK && (info->cols == 0 || info->scale != DW_FORMAT_f32));
}

/* ---- what is taken ---- */

const char *matmul_decoded_refuses(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    if (weights_of(b->format) == NULL || !is_exact(a->format)) {
        text_printf(why, "%s times %s is not one of its products", dw_format_name(a->format), dw_format_name(b->format));
        return text_string(why);
    }
    if (op_attr_bool(problem->attrs, OP_ATTR_at)) return "a is stored with k first";
    if (!op_attr_bool(problem->attrs, OP_ATTR_bt)) return "b is stored with n last; it is read as [n,k]";
    return matmul_reject_result(problem, why);
}

const char *matmul_decoded_takes(const kernel_run *run, text *why) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t m = kernel_result_rows(&run->call), n = b->dims[b->rank - 2], k = a->dims[a->rank - 1];
    if (m > DECODED_MOST) return kernel_because(why, "it takes up to %d rows, and there are %lld", (int)DECODED_MOST, (long long)m);
    if (k == 0 || k % DECODED_DEPTH != 0) return kernel_because(why, "k = %lld is no multiple of %d", (long long)k, (int)DECODED_DEPTH);
    return n > 0 && n < INT32_MAX / 2 && k < INT32_MAX / 8 ? NULL : kernel_because(why, "n is 0, or k or n beyond what it counts to");
}

int64_t matmul_decoded_rows(const kernel_run *run) {
    (void)run;
    return DECODED_MOST;
}

/* ---- how a call is divided, how long it takes ---- */

/* size: which entry; m: rows that it has room for; splits: thread blocks that share a tile's k. */
typedef struct decoded_division { int size, m, splits; int64_t tiles, stages; double us; } decoded_division;

/* Microseconds, fitted to an H200 (bench/results/h200/decoded.md): of the launches; by entry of a stage, where as many thread blocks run as find room; and of each part that is written and added. */
#define START_US 2.5
static const double stage_us[4] = {1.3, 1.37, 1.57, 1.1}, part_us[4] = {0.045, 0.045, 0.045, 0.056};

/* k is divided where that takes less. */
static decoded_division divide(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *out = run->call.out[0];
    const int64_t m = kernel_result_rows(&run->call), cols = out->dims[out->rank - 1];
    decoded_division d = {.m = DECODED_LEAST, .splits = 1, .stages = a->dims[a->rank - 1] / DECODED_DEPTH};
    while (d.m < m && d.m < DECODED_MOST) d.m *= 2, d.size++;
    d.tiles = base_ceil_div(cols, matmul_halves_columns(&run->post) ? DECODED_ROWS / 2 : DECODED_ROWS);
    const int64_t room = run->chip->units * (d.m <= DECODED_SHARED_MOST ? 2 : 1);
    for (int splits = 1; splits <= DECODED_SPLITS && splits <= d.stages; splits++) {
        if (splits > 1 && d.tiles * splits > room) break;
        const double us = START_US + (double)(base_ceil_div(d.tiles * splits, room) * base_ceil_div(d.stages, splits)) * stage_us[d.size] + (splits > 1 ? part_us[d.size] * (double)(d.tiles * splits) : 0);
        if (splits == 1 || us < d.us) d.splits = splits, d.us = us;
    }
    return d;
}

double matmul_decoded_seconds(const kernel_run *run) { return 1e-6 * divide(run).us; }

/* ---- the launches ---- */

/* Bytes of a's rows in b's order, and of the sums behind them. */
static int64_t rows_bytes(const kernel_run *run) {
    const int64_t rows = kernel_result_rows(&run->call);
    return base_ceil_div((rows < DECODED_MOST ? rows : DECODED_MOST) * run->call.in[0]->dims[run->call.in[0]->rank - 1] * 2, 128) * 128;
}

/* The parts of as many blocks as run at a time: one or two to a multiprocessor, of the rows that an entry has room for. Monotone in rows, as how k is divided is not. */
size_t matmul_decoded_workspace(const kernel_run *run) {
    const int64_t rows = kernel_result_rows(&run->call);
    int64_t most = 2 * DECODED_LEAST;
    while (most < 2 * rows && most < DECODED_MOST) most *= 2;
    return (size_t)(rows_bytes(run) + run->chip->units * most * DECODED_ROWS * 4);
}

static void take_map(kernel_launch *launch, kernel_map map, const void *field) {
    launch->maps[launch->map_count] = map;
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

static dw_status order_rows(const kernel_run *run, kernel_launcher *launcher, int bits) {
    const dw_tensor *a = run->call.in[0];
    kernel_launch launch;
    decoded_rows_arguments *g = cuda_launch(&launch, "matmul_decoded_around", "matmul_decoded_rows", sizeof *g);
    g->m = (int32_t)kernel_result_rows(&run->call);
    g->k = (int32_t)a->dims[a->rank - 1];
    g->bits = bits;
    matmul_take_rows(&launch, run, 0, &g->a);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &g->to, 0);
    cuda_grid(&launch, base_ceil_div((int64_t)g->m * (g->k / DECODED_ITEM), DECODED_ROWS_THREADS), 1, 1);
    launch.block[0] = DECODED_ROWS_THREADS;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}

/* With what NVFP4's products lack. */
static void take_epilogue(kernel_launch *launch, const kernel_run *run, const decoded_weights *weights, matmul_epilogue *epilogue) {
    matmul_take_epilogue(launch, run, 2, epilogue);
    if (weights->scale_words == 2) epilogue->alpha = 65536;
}

static dw_status multiply(const kernel_run *run, kernel_launcher *launcher, const decoded_weights *weights) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const decoded_division d = divide(run);
    kernel_launch launch;
    matmul_decoded_arguments *g = cuda_launch(&launch, weights->image, weights->entries[d.size], sizeof *g);
    g->m = (int32_t)kernel_result_rows(&run->call);
    g->n = (int32_t)b->dims[b->rank - 2];
    g->k = (int32_t)a->dims[a->rank - 1];
    g->b_is_constant = (run->constant_in >> 1 & 1) != 0;
    take_epilogue(&launch, run, weights, &g->epilogue);
    if (weights->scale_words > 0) matmul_take_scales(&launch, run, 1, &g->scales);
    const uint64_t a_bytes = (uint64_t)g->k * 2, b_bytes = (uint64_t)g->k * (uint64_t)weights->bits / 8;
    take_map(&launch, (kernel_map){.operand = KERNEL_WORKSPACE, .type = KERNEL_MAP_BF16, .rank = 2, .swizzle = KERNEL_SWIZZLE_128, .promotion = KERNEL_PROMOTION_256,
                                   .dims = {(uint64_t)g->k, (uint64_t)g->m}, .strides = {a_bytes}, .box = {DECODED_DEPTH / 2, (uint32_t)d.m}}, g->map_a);
    take_map(&launch, (kernel_map){.operand = 1, .type = KERNEL_MAP_BYTE, .rank = 2, .swizzle = weights->bits == 8 ? KERNEL_SWIZZLE_128 : KERNEL_SWIZZLE_64, .promotion = KERNEL_PROMOTION_256,
                                   .dims = {b_bytes, (uint64_t)g->n}, .strides = {b_bytes}, .box = {DECODED_DEPTH * (uint32_t)weights->bits / 8, DECODED_ROWS / 2}}, g->map_b);
    g->splits = d.splits;
    if (d.splits > 1) cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &g->parts, rows_bytes(run));
    cuda_grid(&launch, d.tiles * d.splits, 1, 1);
    launch.block[0] = DECODED_THREADS;
    launch.shared_bytes = (uint32_t)DECODED_SHARED_BYTES(weights->bits, weights->scale_words, d.m);
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}

static dw_status join_parts(const kernel_run *run, kernel_launcher *launcher, const decoded_weights *weights) {
    const decoded_division d = divide(run);
    kernel_launch launch;
    decoded_join_arguments *g = cuda_launch(&launch, "matmul_decoded_around", "matmul_decoded_join", sizeof *g);
    if (d.splits == 1) return DW_OK;
    g->m = (int32_t)kernel_result_rows(&run->call);
    g->n = (int32_t)run->call.in[1]->dims[run->call.in[1]->rank - 2];
    g->rows = d.m;
    g->splits = d.splits;
    g->pieces = (int32_t)(d.tiles * (d.m / DECODED_PIECE) * (DECODED_ROWS / DECODED_PIECE));
    take_epilogue(&launch, run, weights, &g->epilogue);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &g->parts, rows_bytes(run));
    cuda_grid(&launch, base_ceil_div(g->pieces, DECODED_JOIN_THREADS / 32), 1, 1);
    launch.block[0] = DECODED_JOIN_THREADS;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}

dw_status matmul_decoded_shape(const kernel_run *run, kernel_launcher *launcher) {
    const decoded_weights *weights = weights_of(run->call.in[1]->format);
    dw_status status = order_rows(run, launcher, weights->bits);
    if (status == DW_OK) status = multiply(run, launcher, weights);
    return status == DW_OK ? join_parts(run, launcher, weights) : status;
}
