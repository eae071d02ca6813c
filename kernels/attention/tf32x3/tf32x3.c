/* Attention of many queries in f32 by three products of tf32: the host half of tf32x3.cu. Pure: knows no driver. */
#include "kernels/attention/tf32x3/tf32x3.h"

#include "kernels/attention/host.h"
#include "kernels/attention/results.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

#include <math.h>

typedef struct tf32x3_entry {
    const char *entry;
    int depth, keys, warps, slabs, split;
    bool general;
    int resident;
} tf32x3_entry;

static const tf32x3_entry entries[] = {
#define ATTENTION_TF32X3(name, depth, keys, warps, slabs, split, general, resident) {"attention_tf32x3_" #name, depth, keys, warps, slabs, split, general, resident},
#include "kernels/attention/tf32x3/tf32x3.def"
#undef ATTENTION_TF32X3
};

enum { MOST_WIDTH = 128, SLAB = 16, PIECE = 4, MOST_GRID = 65535 };   /* PIECE: elements of 16 bytes; GRID: along its last two axes */

/* ---- what is taken, how long ---- */

const char *attention_tf32x3_refuses(const kernel_problem *problem, text *why) {
    const op_type *q = problem->in[ATTENTION_Q], *k = problem->in[ATTENTION_K], *v = problem->in[ATTENTION_V], *out = problem->out[0], *bias = problem->n_in > ATTENTION_BIAS ? problem->in[ATTENTION_BIAS] : NULL;
    int64_t width, value_width;
    const char *reason = attention_refuses_cached(problem);
    if (reason != NULL) return reason;
    if (q->format != DW_FORMAT_f32 || k->format != DW_FORMAT_f32 || v->format != DW_FORMAT_f32 || out->format != DW_FORMAT_f32) {
        text_printf(why, "q is %s, k %s, v %s and the result %s; all must be f32", dw_format_name(q->format), dw_format_name(k->format), dw_format_name(v->format), dw_format_name(out->format));
        return text_string(why);
    }
    if (bias != NULL && bias->format != DW_FORMAT_f32 && bias->format != DW_FORMAT_bf16 && bias->format != DW_FORMAT_f16) return "the bias is not f32, bf16 or f16";
    if (!dim_is_constant(k->dims[3], &width) || !dim_is_constant(v->dims[3], &value_width)) return "the heads' widths are not known at plan time";
    if (width % PIECE == 0 && value_width % PIECE == 0 && width > 0 && value_width > 0 && width <= MOST_WIDTH && value_width <= MOST_WIDTH) return NULL;
    text_printf(why, "heads are %lld and %lld wide; it takes multiples of %d up to %d", (long long)width, (long long)value_width, PIECE, MOST_WIDTH);
    return text_string(why);
}

static int queries_of(const tf32x3_entry *e) { return SLAB * e->warps * e->slabs; }
static int64_t tiles_of(const op_call *call, const tf32x3_entry *e) { return base_ceil_div(call->in[ATTENTION_Q]->dims[2], queries_of(e)); }
static int64_t blocks_of(const op_call *call, const tf32x3_entry *e) { return call->in[ATTENTION_Q]->dims[0] * call->in[ATTENTION_Q]->dims[1] * tiles_of(call, e); }
static uint32_t shared_bytes(const tf32x3_entry *e) { return (uint32_t)(4 * e->depth * (queries_of(e) * (1 + e->split) + 4 * e->keys)); }

/* The first that takes the widths, for which there is room, and whose tiles fill the chip; else the last of fewer queries. */
static const tf32x3_entry *find_entry(const kernel_run *run) {
    const op_call *call = &run->call;
    const int64_t width = call->in[ATTENTION_Q]->dims[3], value_width = call->in[ATTENTION_V]->dims[3];
    const bool general = attention_is_general(call) || op_operand(call, ATTENTION_TABLE) != NULL;
    const tf32x3_entry *found = NULL;
    for (const tf32x3_entry *e = entries; e < entries + COUNT_OF(entries); e++) {
        if (e->depth < width || e->depth < value_width || e->general != general || shared_bytes(e) + TF32X3_VIEW_BYTES > run->chip->shared_bytes) continue;
        if (found != NULL && e->depth > found->depth) break;
        found = e;
        if (blocks_of(call, e) >= (int64_t)e->resident * run->chip->units) break;
    }
    return found;
}

/* Parts of the chip's rate of products in bf16 at which blocks of keys go by: measured on an H200; other chips' mma.sync has other shares of it. */
#define HOPPER_SHARE 0.06
#define BLACKWELL_SHARE 0.03
#define OTHER_SHARE 0.1

double attention_tf32x3_seconds(const kernel_run *run) {
    const tf32x3_entry *e = find_entry(run);
    const chip_caps *chip = run->chip;
    if (e == NULL) return HUGE_VAL;
    const double share = chip_has(chip, CHIP_wgmma) ? HOPPER_SHARE : chip_has(chip, CHIP_tcgen05) ? BLACKWELL_SHARE : OTHER_SHARE;
    const double room = (double)e->resident * chip->units, tiles = (double)tiles_of(&run->call, e), all = (double)blocks_of(&run->call, e), waves = all > room ? all / room : 1;
    const double flops = 4.0 * queries_of(e) * e->keys * e->depth;
    double blocks = (double)base_ceil_div(attention_slots(&run->call), e->keys) * attention_texts_of(&run->call, queries_of(e));
    if (op_attr_bool(run->call.attrs, OP_ATTR_causal) && tiles > 1) blocks = blocks * (tiles + 1) / (2 * tiles);
    return 4e-6 + waves * blocks * flops / (share * chip_flops(chip, DW_FORMAT_bf16) / room);
}

/* Bytes of the least tile for such widths. */
static uint32_t least_bytes(const op_call *call) {
    const int64_t width = call->in[ATTENTION_Q]->dims[3], value_width = call->in[ATTENTION_V]->dims[3];
    uint32_t least = UINT32_MAX;
    for (const tf32x3_entry *e = entries; e < entries + COUNT_OF(entries); e++)
        if (e->depth >= width && e->depth >= value_width && shared_bytes(e) < least) least = shared_bytes(e);
    return least + TF32X3_VIEW_BYTES;
}

const char *attention_tf32x3_takes(const kernel_run *run, text *why) {
    const dw_tensor *q = run->call.in[ATTENTION_Q];
    const tf32x3_entry *e = find_entry(run);
    dw_tensor out;
    op_attention_by_heads(&run->call, &out);
    if (!attention_lies_in_pieces(q) || !attention_lies_in_pieces(run->call.in[ATTENTION_K]) || !attention_lies_in_pieces(run->call.in[ATTENTION_V])) return kernel_because(why, "an operand does not lie in pieces of 16 bytes");
    if (!attention_lies_in_pieces(&out)) return kernel_because(why, "the result does not lie in pieces of 16 bytes");
    if (e == NULL) return kernel_because(why, "a tile needs %u bytes of shared memory, and %s has %zu for a block", least_bytes(&run->call), run->chip->name, run->chip->shared_bytes);
    if (q->dims[0] > MOST_GRID || tiles_of(&run->call, e) > MOST_GRID) return kernel_because(why, "%lld batches, or %lld queries, are more than it counts to", (long long)q->dims[0], (long long)q->dims[2]);
    return attention_counts_refusal(run, blocks_of(&run->call, e), why);
}

/* ---- the launch ---- */

dw_status attention_tf32x3_shape(const kernel_run *run, kernel_launcher *launcher) {
    attention_heads by_heads;
    run = attention_by_heads(run, &by_heads);
    const dw_tensor *q = run->call.in[ATTENTION_Q];
    const tf32x3_entry *e = find_entry(run);
    kernel_launch launch;
    attention_tf32x3_arguments *g = cuda_launch(&launch, "attention_tf32x3", e->entry, sizeof *g);
    TRY(attention_take(&launch, run, &g->call));
    if (run->call.n_out > 1) {
        cuda_take_array(&launch, run, KERNEL_RESULT + 1, &g->lse);
        for (int axis = 0; axis < 3; axis++) g->lse_strides[axis] = run->call.out[1]->strides[axis];
        g->has_lse = true;
    }
    g->sink_scale = 1 / g->call.scale;
    cuda_grid(&launch, q->dims[1], q->dims[0], tiles_of(&run->call, e));
    launch.block[0] = (uint32_t)(32 * e->warps);
    launch.shared_bytes = shared_bytes(e);
    return launcher->add(launcher, &launch);
}
