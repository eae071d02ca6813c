/* Products of few rows by wgmma: the host half of few.cuh, which those of decoded.c, folded.c and half.c share. */
#include "kernels/gemm/wgmma/few_host.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

const char *few_refuses(const kernel_problem *problem, const few_entries *entries, text *why) {
    if (entries == NULL) {
        text_printf(why, "%s times %s is not one of its products", dw_format_name(problem->in[0]->format), dw_format_name(problem->in[1]->format));
        return text_string(why);
    }
    if (op_attr_bool(problem->attrs, OP_ATTR_at)) return "a is stored with k first";
    if (!op_attr_bool(problem->attrs, OP_ATTR_bt)) return "b is stored with n last; it is read as [n,k]";
    return matmul_reject_result(problem, why);
}

const char *few_takes(const kernel_run *run, int64_t most, int multiple, text *why) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t m = kernel_result_rows(&run->call), n = b->dims[b->rank - 2], k = a->dims[a->rank - 1];
    if (m > most) return kernel_because(why, "it takes up to %lld rows, and there are %lld", (long long)most, (long long)m);
    if (k == 0 || k % multiple != 0) return kernel_because(why, "k = %lld is no multiple of %d", (long long)k, multiple);
    return n > 0 && n < INT32_MAX / 2 && k < INT32_MAX / 8 ? NULL : kernel_because(why, "n is 0, or k or n beyond what it counts to");
}

/* ---- how a call is divided, how long it takes ---- */

/* size: which entry; m: rows that it has room for; splits: thread blocks that share a tile's k, as a cluster or by parts in memory. */
typedef struct few_division { int size, m, splits; bool is_cluster; int64_t tiles, stages; double us; } few_division;

/* Rows that the least entry has room for, of tiles that a result has; thread blocks that run at a time. */
static few_division undivided(const kernel_run *run) {
    const dw_tensor *out = run->call.out[0];
    return (few_division){.m = FEW_LEAST, .splits = 1, .tiles = base_ceil_div(out->dims[out->rank - 1], matmul_halves_columns(&run->post) ? FEW_ROWS / 2 : FEW_ROWS)};
}

static int64_t room_of(const kernel_run *run, int m) { return run->chip->units * (m <= FEW_SHARED_MOST ? 2 : 1); }

/* So many blocks may share a tile's k. */
static int most_splits(const few_division *d, int kind, int64_t room) {
    const int limit = FEW_IS_HALF(kind) ? FEW_HALF_CLUSTER : FEW_SPLITS;
    const int64_t found = FEW_IS_HALF(kind) && room > 8 ? room - room / 8 : room;   /* by clusters, each of which lies within a group of some 14 to 18 multiprocessors */
    int most = 1;
    while (most < limit && most < d->stages && d->tiles * (most + 1) <= found) most++;
    return most;
}

/* k is divided where that takes less. */
static few_division divide(const kernel_run *run, const few_entries *entries) {
    const int64_t m = kernel_result_rows(&run->call), k = run->call.in[0]->dims[run->call.in[0]->rank - 1];
    const few_times *us = entries->us;
    few_division d = undivided(run);
    while (d.m < m && d.m < FEW_MOST) d.m *= 2, d.size++;
    d.stages = base_ceil_div(k, FEW_DEPTH(entries->kind, d.m));
    const int64_t room = room_of(run, d.m);
    for (int splits = 1; splits <= most_splits(&d, entries->kind, room); splits++) {
        const int64_t blocks = d.tiles * splits;
        const double step = blocks <= run->chip->units ? us->step[d.size] * us->alone : us->step[d.size] * (double)base_ceil_div(blocks, room);
        const bool is_cluster = splits > 1 && splits <= (FEW_IS_HALF(entries->kind) ? FEW_HALF_CLUSTER : FEW_CLUSTER) && us->cluster > 0;
        const double all = us->start[d.size] + us->tile * (double)d.tiles + (double)(base_ceil_div(d.stages, splits) * FEW_STEPS(entries->kind, d.m)) * step + (is_cluster ? us->cluster : splits > 1 ? us->part[d.size] * (double)blocks : 0);
        if (splits == 1 || all < d.us) d.splits = splits, d.is_cluster = is_cluster, d.us = all;
    }
    return d;
}

double few_seconds(const kernel_run *run, const few_entries *entries) { return 1e-6 * divide(run, entries).us; }

/* ---- the workspace ---- */

int64_t few_factors_at(const kernel_run *run) {
    const int64_t rows = kernel_result_rows(&run->call);
    return base_ceil_div((rows < FEW_MOST ? rows : FEW_MOST) * run->call.in[0]->dims[run->call.in[0]->rank - 1] * 2, 128) * 128;
}

int64_t few_rows_bytes(const kernel_run *run) { return few_factors_at(run) + FEW_MOST * (int64_t)sizeof(float); }

/* The parts of as many blocks as run at a time, one or two to a multiprocessor, of the rows that an entry has room for: so it is largest at an end of any range of sizes, as how k is divided is not. */
size_t few_parts_bytes(const kernel_run *run) {
    const int64_t rows = kernel_result_rows(&run->call);
    int64_t most = 2 * FEW_LEAST;
    while (most < 2 * rows && most < FEW_MOST) most *= 2;
    return (size_t)(run->chip->units * most * FEW_ROWS * 4);
}

/* ---- the launches ---- */

static void take_map(kernel_launch *launch, kernel_map map, const void *field) {
    launch->maps[launch->map_count] = map;
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

/* With what NVFP4's products lack, and the factors of rows that are quantised in front of the product. */
static void take_epilogue(kernel_launch *launch, const kernel_run *run, int kind, matmul_epilogue *epilogue) {
    matmul_take_epilogue(launch, run, 2, epilogue);
    if (kind == DECODED_NVFP4) epilogue->alpha = 65536;
    if (kind == DECODED_HALVES) epilogue->alpha = 64;
    if (run->quantises && run->quantised == DW_FORMAT_nvfp4_row) cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &epilogue->row_factors, few_factors_at(run));
}

/* The map of a: its rows as bf16 in the workspace, or as they lie; or its codes. */
static kernel_map map_of_a(const matmul_few_arguments *g, int kind, int rows) {
    const uint64_t bytes = (uint64_t)g->k * (FEW_FOLDS(kind) ? 1 : 2);
    return (kernel_map){.operand = FEW_FOLDS(kind) || FEW_IS_HALF(kind) ? 0 : KERNEL_WORKSPACE, .type = FEW_FOLDS(kind) ? KERNEL_MAP_BYTE : KERNEL_MAP_BF16, .rank = 2, .swizzle = KERNEL_SWIZZLE_128, .promotion = KERNEL_PROMOTION_256,
                        .dims = {(uint64_t)g->k, (uint64_t)g->m}, .strides = {bytes}, .box = {FEW_FOLDS(kind) ? FEW_STEP : FEW_STEP / 2, (uint32_t)rows}};
}

static dw_status multiply(const kernel_run *run, kernel_launcher *launcher, const few_entries *entries, const few_division *d, int64_t before) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int kind = entries->kind, bits = FEW_BITS(kind);
    const uint32_t row_bytes = (uint32_t)(FEW_DEPTH(kind, d->m) * bits / 8);
    kernel_launch launch;
    matmul_few_arguments *g = cuda_launch(&launch, entries->image, entries->names[d->size], sizeof *g);
    g->m = (int32_t)kernel_result_rows(&run->call);
    g->n = (int32_t)b->dims[b->rank - 2];
    g->k = (int32_t)a->dims[a->rank - 1];
    g->b_is_constant = (run->constant_in >> 1 & 1) != 0;
    take_epilogue(&launch, run, kind, &g->epilogue);
    if (FEW_SCALE_WORDS(kind) > 0 || FEW_FACTOR_BYTES(kind, 1) > 0) matmul_take_scales(&launch, run, 1, &g->scales);
    if (FEW_FACTOR_BYTES(kind, 1) > 0) matmul_take_scales(&launch, run, 0, &g->a_scales);
    const uint64_t b_bytes = (uint64_t)g->k * (uint64_t)bits / 8;
    take_map(&launch, map_of_a(g, kind, d->m), g->map_a);
    take_map(&launch, (kernel_map){.operand = 1, .type = KERNEL_MAP_BYTE, .rank = 2, .swizzle = row_bytes == 128 ? KERNEL_SWIZZLE_128 : KERNEL_SWIZZLE_64, .promotion = KERNEL_PROMOTION_256,
                                   .dims = {b_bytes, (uint64_t)g->n}, .strides = {b_bytes}, .box = {row_bytes, FEW_ROWS / 2}}, g->map_b);
    g->splits = d->splits;
    if (d->is_cluster) launch.cluster[0] = (uint32_t)d->splits, launch.cluster[1] = launch.cluster[2] = 1;
    else if (d->splits > 1) cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &g->parts, before);
    cuda_grid(&launch, d->tiles * d->splits, 1, 1);
    launch.block[0] = FEW_THREADS(kind);
    launch.shared_bytes = (uint32_t)FEW_SHARED_BYTES(kind, d->m);
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}

static dw_status join_parts(const kernel_run *run, kernel_launcher *launcher, int kind, const few_division *d, int64_t before) {
    kernel_launch launch;
    few_join_arguments *g = cuda_launch(&launch, "matmul_few_around", "matmul_few_join", sizeof *g);
    g->m = (int32_t)kernel_result_rows(&run->call);
    g->n = (int32_t)run->call.in[1]->dims[run->call.in[1]->rank - 2];
    g->rows = d->m;
    g->splits = d->splits;
    g->pieces = (int32_t)(d->tiles * (d->m / FEW_PIECE) * (FEW_ROWS / FEW_PIECE));
    g->shares = g->pieces <= 2 * run->chip->units && d->splits > FEW_JOIN_THREADS / 16 ? FEW_JOIN_THREADS / 32 : 1;
    take_epilogue(&launch, run, kind, &g->epilogue);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &g->parts, before);
    cuda_grid(&launch, base_ceil_div((int64_t)g->pieces * g->shares, FEW_JOIN_THREADS / 32), 1, 1);
    launch.block[0] = FEW_JOIN_THREADS;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}

dw_status few_multiply(const kernel_run *run, kernel_launcher *launcher, const few_entries *entries, int64_t before) {
    const few_division d = divide(run, entries);
    const dw_status status = multiply(run, launcher, entries, &d, before);
    return status != DW_OK || d.splits == 1 || d.is_cluster ? status : join_parts(run, launcher, entries->kind, &d, before);
}
