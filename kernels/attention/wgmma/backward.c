/* The gradients of attention by wgmma: the host half of backward.cuh. Which calls it takes, and three launches: statistics of queries, dk and dv, dq. Pure: knows no driver. */
#include "kernels/attention/wgmma/backward.h"

#include "kernels/attention/backward_host.h"
#include "kernels/attention/host.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

/* ---- entries ---- */

typedef struct backward_entry {
    const char *entry;
    int of_keys, width, value_width, others, stages;
} backward_entry;

/* Narrower ones first. */
static const backward_entry entries[] = {
#define BACKWARD_TILE(name, ...) {"attention_backward_" #name, __VA_ARGS__},
#include "kernels/attention/wgmma/backward_tiles.def"
#undef BACKWARD_TILE
};

static const backward_entry *find_entry(const op_call *call, bool of_keys) {
    for (size_t i = 0; i < COUNT_OF(entries); i++)
        if ((entries[i].of_keys != 0) == of_keys && call->in[ATTENTION_BACKWARD_Q]->dims[3] <= entries[i].width && call->in[ATTENTION_BACKWARD_V]->dims[3] <= entries[i].value_width) return &entries[i];
    return NULL;
}

/* ---- what is taken ---- */

enum { WIDEST = 128 };

static bool is_even(const dw_tensor *x) {
    for (int axis = 0; axis < 3; axis++)
        if (x->dims[axis] > 1 && x->strides[axis] % 2 != 0) return false;
    return (x->dims[3] < 2 || x->strides[3] == 1) && (uintptr_t)x->data % 4 == 0;
}

const char *attention_backward_wgmma_refuses(const kernel_problem *problem, text *why) {
    static const char *const names[] = {"q", "k", "v", "out", "lse", "dout"};
    int64_t width, value_width;
    for (int i = 0; i <= ATTENTION_BACKWARD_DOUT; i++) {
        if (i == ATTENTION_BACKWARD_LSE || problem->in[i]->format == DW_FORMAT_bf16) continue;
        text_printf(why, "%s is %s, and its products are of bf16", names[i], dw_format_name(problem->in[i]->format));
        return text_string(why);
    }
    for (int i = ATTENTION_BACKWARD_MASK; i < problem->n_in; i++)
        if (problem->in[i] != NULL) return i == ATTENTION_BACKWARD_MASK ? "there is a mask" : "there is a bias";
    if (op_attr_real(problem->attrs, OP_ATTR_softcap) > 0) return "scores are capped";
    if (!dim_is_constant(problem->in[ATTENTION_BACKWARD_Q]->dims[3], &width) || !dim_is_constant(problem->in[ATTENTION_BACKWARD_V]->dims[3], &value_width)) return "the heads' widths are not known at plan time";
    if (width % 8 == 0 && value_width % 8 == 0 && width > 0 && value_width > 0 && width <= WIDEST && value_width <= WIDEST) return NULL;
    text_printf(why, "heads are %lld and %lld wide; it takes multiples of 8 up to %d", (long long)width, (long long)value_width, WIDEST);
    return text_string(why);
}

static int64_t tiles_of(int64_t rows) { return base_ceil_div(rows, BACKWARD_OWN); }

const char *attention_backward_wgmma_takes(const kernel_run *run, text *why) {
    const dw_tensor *q = run->call.in[ATTENTION_BACKWARD_Q], *k = run->call.in[ATTENTION_BACKWARD_K];
    const int64_t heads = q->dims[0] * q->dims[1], rows = q->dims[2] > k->dims[2] ? q->dims[2] : k->dims[2];
    if (heads == 0 || q->dims[2] == 0 || k->dims[2] == 0) return kernel_because(why, "there are no queries, or no keys");
    static const int in_maps[] = {ATTENTION_BACKWARD_Q, ATTENTION_BACKWARD_K, ATTENTION_BACKWARD_V, ATTENTION_BACKWARD_DOUT};
    for (size_t i = 0; i < COUNT_OF(in_maps); i++)
        if (!attention_has_map(run->call.in[in_maps[i]])) return kernel_because(why, "operand %d does not lie in pieces of 16 bytes", in_maps[i]);
    if (!is_even(run->call.in[ATTENTION_BACKWARD_OUT]) || !is_even(run->call.out[0]) || !is_even(run->call.out[1]) || !is_even(run->call.out[2])) return kernel_because(why, "out or a result does not lie in pairs");
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
    return 14e-6 + (double)base_ceil_div(tiles, run->chip->units) * (is_wide ? 6e-6 : 4.5e-6) + 1.4 * work.flops / (chip_flops(run->chip, DW_FORMAT_bf16) * (is_wide ? 0.75 : 0.55));
}

static int64_t padded_rows(const op_call *call) { return call->in[0]->dims[0] * call->in[0]->dims[1] * tiles_of(call->in[0]->dims[2]) * BACKWARD_OWN; }

size_t attention_backward_wgmma_workspace(const kernel_run *run) { return (size_t)padded_rows(&run->call) * 2 * sizeof(float); }

/* ---- launches ---- */

/* The offset of the queries and so much more, as far as queries and keys are counted. */
static int32_t shift_of(int64_t offset, int64_t more) {
    const int64_t bound = INT32_MAX / 2, shift = offset + more;
    return (int32_t)(shift > bound ? bound : shift < -bound ? -bound : shift);
}

static dw_status start(const kernel_run *run, const char *entry, kernel_launch *launch, attention_backward_wgmma_arguments **arguments) {
    attention_backward_wgmma_arguments *g = *arguments = cuda_launch(launch, "attention_backward_sm90", entry, sizeof *g);
    attention_backward_arguments *p = &g->call;
    TRY(attention_backward_take(launch, run, p));
    g->end_shift = p->causal ? shift_of(p->offset, 1) : p->ahead > 0 ? shift_of(p->offset, p->ahead) : INT32_MAX / 2;
    g->begin_shift = p->window > 0 ? shift_of(p->offset, 1 - p->window) : -INT32_MAX / 2;
    g->padded = (int32_t)(tiles_of(p->queries) * BACKWARD_OWN);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &g->lse, 0);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &g->share, padded_rows(&run->call) * (int64_t)sizeof(float));
    return DW_OK;
}

static dw_status add_statistics(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    attention_backward_wgmma_arguments *g;
    TRY(start(run, "attention_backward_statistics", &launch, &g));
    cuda_grid_items(&launch, padded_rows(&run->call) * 32);
    return launcher->add(launcher, &launch);
}

static uint32_t shared_bytes(const backward_entry *e) {
    const int rows = BACKWARD_OWN + e->stages * e->others;
    return (uint32_t)(rows * (e->width + e->value_width) * 2 + (e->of_keys ? e->stages * e->others * 8 : 0) + BACKWARD_BARRIER_BYTES);
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
    TRY(add_statistics(run, launcher));
    TRY(add_tiles(run, true, launcher));
    return add_tiles(run, false, launcher);
}
