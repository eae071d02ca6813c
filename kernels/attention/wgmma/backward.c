/* The gradients of attention with a mask or a bias by wgmma: the host half of backward.cuh. Which calls it takes, and three launches: statistics of queries, dk and dv, dq; in front of them a mask's squares, and behind them the
 * plain kernel's of the bias's gradient. Pure: knows no driver. */
#include "kernels/attention/wgmma/backward.h"

#include "kernels/attention/backward_host.h"
#include "kernels/attention/host.h"
#include "kernels/attention/wgmma/backward_host.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

/* ---- entries ---- */

typedef struct backward_entry {
    dw_format format;
    const char *image, *entry;
    int of_keys, width, value_width, others, stages, more;
} backward_entry;

/* Narrower ones first. */
static const backward_entry entries[] = {
#define BACKWARD_TILE(name, ...) {DW_FORMAT_bf16, "attention_backward_bf16_sm90", "attention_backward_bf16_" #name, __VA_ARGS__},
#include "kernels/attention/wgmma/backward_tiles.def"
#undef BACKWARD_TILE
#define BACKWARD_TILE(name, ...) {DW_FORMAT_f16, "attention_backward_f16_sm90", "attention_backward_f16_" #name, __VA_ARGS__},
#include "kernels/attention/wgmma/backward_tiles.def"
#undef BACKWARD_TILE
};

/* What decides on weights besides position. */
static int more_of(const op_call *call) { return op_operand(call, ATTENTION_BACKWARD_BIAS) != NULL ? BACKWARD_GENERAL : BACKWARD_MASKED; }

static const backward_entry *find_entry(const op_call *call, bool of_keys) {
    const dw_tensor *q = call->in[ATTENTION_BACKWARD_Q], *v = call->in[ATTENTION_BACKWARD_V];
    for (size_t i = 0; i < COUNT_OF(entries); i++) {
        const backward_entry *e = &entries[i];
        if (e->format == q->format && (e->of_keys != 0) == of_keys && e->more == more_of(call) && q->dims[3] <= e->width && v->dims[3] <= e->value_width) return e;
    }
    return NULL;
}

/* ---- what is taken ---- */

enum { WIDEST = 128 };

static bool is_even(const dw_tensor *x) {
    for (int axis = 0; axis < 3; axis++)
        if (x->dims[axis] > 1 && x->strides[axis] % 2 != 0) return false;
    return (x->dims[3] < 2 || x->strides[3] == 1) && (uintptr_t)x->data % 4 == 0;
}

const char *attention_backward_wgmma_rejects(const kernel_problem *problem, text *why) {
    static const char *const names[] = {"q", "k", "v", "out", "lse", "dout"};
    const op_type *mask = problem->n_in > ATTENTION_BACKWARD_MASK ? problem->in[ATTENTION_BACKWARD_MASK] : NULL, *bias = problem->n_in > ATTENTION_BACKWARD_BIAS ? problem->in[ATTENTION_BACKWARD_BIAS] : NULL;
    const dw_format format = problem->in[ATTENTION_BACKWARD_Q]->format;
    int64_t width, value_width;
    for (int i = 0; i <= ATTENTION_BACKWARD_DOUT; i++) {
        if (i == ATTENTION_BACKWARD_LSE || (problem->in[i]->format == format && (format == DW_FORMAT_bf16 || format == DW_FORMAT_f16))) continue;
        return kernel_because(why, "%s is %s; it takes all of bf16, or all of f16", names[i], dw_format_name(problem->in[i]->format));
    }
    if (mask != NULL && mask->format != DW_FORMAT_bool) return kernel_because(why, "the mask is %s; it takes bool", dw_format_name(mask->format));
    if (bias != NULL && bias->format != DW_FORMAT_f32 && bias->format != DW_FORMAT_bf16 && bias->format != DW_FORMAT_f16) return kernel_because(why, "the bias is %s; it takes f32, bf16 and f16", dw_format_name(bias->format));
    if (op_attr_real(problem->attrs, OP_ATTR_softcap) > 0) return "scores are capped";
    if (!dim_is_constant(problem->in[ATTENTION_BACKWARD_Q]->dims[3], &width) || !dim_is_constant(problem->in[ATTENTION_BACKWARD_V]->dims[3], &value_width)) return "the heads' widths are not known at plan time";
    if (width % 8 == 0 && value_width % 8 == 0 && width > 0 && value_width > 0 && width <= WIDEST && value_width <= WIDEST) return NULL;
    text_printf(why, "heads are %lld and %lld wide; it takes multiples of 8 up to %d", (long long)width, (long long)value_width, WIDEST);
    return text_string(why);
}

const char *attention_backward_wgmma_refuses(const kernel_problem *problem, text *why) {
    const bool has_mask = problem->n_in > ATTENTION_BACKWARD_MASK && problem->in[ATTENTION_BACKWARD_MASK] != NULL, has_bias = problem->n_in > ATTENTION_BACKWARD_BIAS && problem->in[ATTENTION_BACKWARD_BIAS] != NULL;
    return has_mask || has_bias ? attention_backward_wgmma_rejects(problem, why) : "there is neither a mask nor a bias";
}

static int64_t tiles_of(int64_t rows) { return base_ceil_div(rows, BACKWARD_OWN); }

/* ---- the workspace: where its parts begin, in bytes ---- */

static int64_t padded_rows(const op_call *call) { return call->in[0]->dims[0] * call->in[0]->dims[1] * tiles_of(call->in[0]->dims[2]) * BACKWARD_OWN; }

int64_t attention_backward_wgmma_rows_threads(const op_call *call) { return padded_rows(call) * (call->in[ATTENTION_BACKWARD_V]->dims[3] <= 64 ? 8 : 16); }

/* Squares of a mask, and how they lie; of none 0. */
static int64_t squares_of(const op_call *call, int32_t dims[4], int32_t steps[4]) {
    const dw_tensor *mask = op_operand(call, ATTENTION_BACKWARD_MASK), *q = call->in[ATTENTION_BACKWARD_Q], *k = call->in[ATTENTION_BACKWARD_K];
    const int64_t all[] = {q->dims[0], q->dims[1], base_ceil_div(q->dims[2], BACKWARD_SQUARE), base_ceil_div(k->dims[2], BACKWARD_SQUARE)};
    int64_t count = 1;
    for (int axis = 3; axis >= 0; axis--) {
        const int own = mask != NULL ? axis - (4 - mask->rank) : -1;
        const bool repeats = own < 0 || mask->dims[own] == 1;
        dims[axis] = repeats ? 1 : (int32_t)all[axis];
        steps[axis] = repeats ? 0 : (int32_t)count;
        count *= dims[axis];
    }
    return mask != NULL ? count : 0;
}

typedef struct backward_places { int64_t lse, share, part, squares, bytes; } backward_places;

static backward_places places_of(const kernel_run *run) {
    int32_t dims[4], steps[4];
    const int64_t vector = padded_rows(&run->call) * (int64_t)sizeof(float);
    backward_places p;
    p.lse = run->call.n_out > 3 ? (int64_t)attention_backward_row_bytes(run) : 0;   /* behind what the bias's gradient keeps */
    p.share = p.lse + vector;
    p.part = p.share + vector;
    p.squares = p.part + (more_of(&run->call) == BACKWARD_GENERAL ? vector : 0);
    p.bytes = p.squares + squares_of(&run->call, dims, steps);
    return p;
}

size_t attention_backward_wgmma_workspace(const kernel_run *run) { return (size_t)places_of(run).bytes; }

/* ---- which sizes, how long ---- */

const char *attention_backward_wgmma_takes(const kernel_run *run, text *why) {
    const dw_tensor *q = run->call.in[ATTENTION_BACKWARD_Q], *k = run->call.in[ATTENTION_BACKWARD_K];
    const int64_t heads = q->dims[0] * q->dims[1], rows = q->dims[2] > k->dims[2] ? q->dims[2] : k->dims[2];
    if (heads == 0 || q->dims[2] == 0 || k->dims[2] == 0) return kernel_because(why, "there are no queries, or no keys");
    static const int in_maps[] = {ATTENTION_BACKWARD_Q, ATTENTION_BACKWARD_K, ATTENTION_BACKWARD_V, ATTENTION_BACKWARD_DOUT};
    for (size_t i = 0; i < COUNT_OF(in_maps); i++)
        if (!attention_has_map(run->call.in[in_maps[i]])) return kernel_because(why, "operand %d does not lie in pieces of 16 bytes", in_maps[i]);
    if (!is_even(run->call.in[ATTENTION_BACKWARD_OUT]) || !is_even(run->call.out[0]) || !is_even(run->call.out[1]) || !is_even(run->call.out[2])) return kernel_because(why, "out or a result does not lie in pairs");
    int32_t dims[4], steps[4];
    if (squares_of(&run->call, dims, steps) > INT32_MAX / 64) return kernel_because(why, "the mask has more squares of %d than it counts to", BACKWARD_SQUARE);
    if (rows <= INT32_MAX / 4 && heads <= INT32_MAX / (tiles_of(rows) * BACKWARD_OWN)) return NULL;
    return kernel_because(why, "%lld rows of %lld heads are more than it counts to", (long long)rows, (long long)heads);
}

/* Three launches, what each thread block waits for at its ends, and seven products where the op counts five at a share of the chip's rate: fitted to an H100 (bench/results/h200/attention.md), to 15 % but for
 * calls of few tiles. */
double attention_backward_wgmma_seconds(const kernel_run *run) {
    const dw_tensor *q = run->call.in[ATTENTION_BACKWARD_Q], *k = run->call.in[ATTENTION_BACKWARD_K];
    const bool is_wide = q->dims[3] > 64 || run->call.in[ATTENTION_BACKWARD_V]->dims[3] > 64;
    const int64_t tiles = q->dims[0] * (q->dims[1] * tiles_of(q->dims[2]) + k->dims[1] * tiles_of(k->dims[2]));
    op_work work;
    run->call.op->work(&run->call, &work);
    const double times = more_of(&run->call) == BACKWARD_GENERAL ? 4 : 2;   /* of what position alone took: by one call each */
    const double bias_s = run->call.n_out > 3 ? attention_backward_plain_seconds(run) / 2 : 0;
    return 14e-6 + (double)base_ceil_div(tiles, run->chip->units) * (is_wide ? 6e-6 : 4.5e-6) + times * 1.4 * work.flops / (chip_flops(run->chip, DW_FORMAT_bf16) * (is_wide ? 0.75 : 0.55)) + bias_s;
}

/* ---- launches ---- */

/* The offset of the queries and so much more, as far as queries and keys are counted. */
static int32_t shift_of(int64_t offset, int64_t more) {
    const int64_t bound = INT32_MAX / 2, shift = offset + more;
    return (int32_t)(shift > bound ? bound : shift < -bound ? -bound : shift);
}

dw_status attention_backward_wgmma_take(kernel_launch *launch, const kernel_run *run, attention_backward_wgmma_arguments *g) {
    attention_backward_arguments *p = &g->call;
    TRY(attention_backward_take(launch, run, p));
    g->end_shift = p->causal ? shift_of(p->offset, 1) : p->ahead > 0 ? shift_of(p->offset, p->ahead) : INT32_MAX / 2;
    g->begin_shift = p->window > 0 ? shift_of(p->offset, 1 - p->window) : -INT32_MAX / 2;
    g->padded = (int32_t)(tiles_of(p->queries) * BACKWARD_OWN);
    return DW_OK;
}

static dw_status start(const kernel_run *run, const char *entry, kernel_launch *launch, attention_backward_wgmma_arguments **arguments) {
    const backward_places places = places_of(run);
    attention_backward_wgmma_arguments *g = *arguments = cuda_launch(launch, find_entry(&run->call, true)->image, entry, sizeof *g);
    TRY(attention_backward_wgmma_take(launch, run, g));
    g->is_general = more_of(&run->call) == BACKWARD_GENERAL;
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &g->lse, places.lse);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &g->share, places.share);
    if (g->is_general) cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &g->part, places.part);
    if (squares_of(&run->call, g->square_dims, g->square_steps) > 0) cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &g->squares, places.squares);
    return DW_OK;
}

/* A launch of so many threads. */
static dw_status add_threads(const kernel_run *run, const char *bf16, const char *f16, int64_t count, kernel_launcher *launcher) {
    kernel_launch launch;
    attention_backward_wgmma_arguments *g;
    TRY(start(run, run->call.in[ATTENTION_BACKWARD_Q]->format == DW_FORMAT_bf16 ? bf16 : f16, &launch, &g));
    cuda_grid_items(&launch, count);
    return launcher->add(launcher, &launch);
}

static uint32_t shared_bytes(const backward_entry *e) {
    const int rows = BACKWARD_OWN + e->stages * e->others;
    return (uint32_t)(rows * (e->width + e->value_width) * 2 + (e->of_keys ? e->stages * e->others * (e->more == BACKWARD_GENERAL ? 12 : 8) : 0) + BACKWARD_BARRIER_BYTES);
}

/* Heads whose tiles fill the chip about once: those read the same rows of the other side. */
static int64_t heads_together(const kernel_run *run, int64_t tiles) {
    const int64_t together = base_ceil_div((int64_t)run->chip->units, tiles);
    return together > 0 ? together : 1;
}

static dw_status add_tiles(const kernel_run *run, bool of_keys, kernel_launcher *launcher) {
    const backward_entry *e = find_entry(&run->call, of_keys);
    const int own = BACKWARD_OWN, q_rows = of_keys ? e->others : own, k_rows = of_keys ? own : e->others;
    const dw_tensor *x = run->call.in[of_keys ? ATTENTION_BACKWARD_K : ATTENTION_BACKWARD_Q];
    kernel_launch launch;
    attention_backward_wgmma_arguments *g;
    TRY(start(run, e->entry, &launch, &g));
    attention_take_map(&launch, run, ATTENTION_BACKWARD_Q, q_rows, g->map_q);
    attention_take_map(&launch, run, ATTENTION_BACKWARD_K, k_rows, g->map_k);
    attention_take_map(&launch, run, ATTENTION_BACKWARD_V, k_rows, g->map_v);
    attention_take_map(&launch, run, ATTENTION_BACKWARD_DOUT, q_rows, g->map_dout);
    g->tiles = (int32_t)tiles_of(x->dims[2]);
    g->heads_together = (int32_t)heads_together(run, g->tiles);
    cuda_grid(&launch, x->dims[0] * x->dims[1] * g->tiles, 1, 1);
    launch.block[0] = BACKWARD_THREADS;
    launch.shared_bytes = shared_bytes(e);
    return launcher->add(launcher, &launch);
}

dw_status attention_backward_wgmma_shape(const kernel_run *run, kernel_launcher *launcher) {
    int32_t dims[4], steps[4];
    const int64_t squares = squares_of(&run->call, dims, steps);
    TRY(add_threads(run, "attention_backward_bf16_statistics", "attention_backward_f16_statistics", attention_backward_wgmma_rows_threads(&run->call), launcher));
    if (squares > 0) TRY(add_threads(run, "attention_backward_bf16_squares", "attention_backward_f16_squares", squares * 32, launcher));
    TRY(add_tiles(run, true, launcher));
    TRY(add_tiles(run, false, launcher));
    return attention_backward_bias_shape(run, launcher);
}
