/* Attention in fp32 of many queries, and of operands that do not lie in pieces of 16 bytes: the host half of tile.cu. Pure: knows no driver. */
#include "kernels/attention/tile/tile.h"

#include "kernels/attention/host.h"
#include "kernels/attention/results.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

/* ---- what is taken, how long ---- */

const char *attention_tile_refuses(const kernel_problem *problem, text *why) {
    op_type types[2];
    const op_type *in[ATTENTION_OPERANDS];
    const kernel_problem plain = attention_without_blocks(problem, types, in);
    const char *reason = attention_refuses_cached(problem);
    return reason != NULL ? reason : attention_reject_fp32(&plain, why);
}

/* Tiles of 64 queries go through their blocks of keys at such parts of the chip's rate, measured on an H200: registers of wider heads leave room for one thread block. */
#define NARROW_SHARE 0.165
#define WIDE_SHARE 0.11

double attention_tile_seconds(const kernel_run *run) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V];
    const chip_caps *chip = run->chip;
    const double share = v->dims[3] <= 64 ? NARROW_SHARE : WIDE_SHARE;
    const bool causal = op_attr_bool(run->call.attrs, OP_ATTR_causal);
    double tiles = (double)base_ceil_div(q->dims[2], TILE_QUERIES), all = tiles * (double)(q->dims[0] * q->dims[1]), waves = all > chip->units ? all / chip->units : 1;
    double blocks = (double)base_ceil_div(attention_slots(&run->call), TILE_KEYS) * attention_texts_of(&run->call, TILE_QUERIES), flops = 2.0 * TILE_QUERIES * TILE_KEYS * (double)(k->dims[3] + v->dims[3]);
    if (causal && tiles > 1) blocks = blocks * (tiles + 1) / (2 * tiles);
    return 4e-6 + waves * blocks * flops / (share * chip_flops(chip, DW_FORMAT_f32) / chip->units);
}

/* Columns of v that a tile's threads make. */
static int tile_columns(const dw_tensor *v) { return v->dims[3] <= 64 ? 64 : v->dims[3] <= 128 ? 128 : 256; }
static uint32_t tile_bytes(const dw_tensor *q, const dw_tensor *v) { return (uint32_t)(4 * (2 * q->dims[3] * TILE_PITCH + TILE_KEYS * tile_columns(v) + TILE_KEYS * TILE_PITCH)); }

/* Has a block room for a tile, and for what its queries see? Heads of more than about 90 columns want more than chips with 99 KB have. */
static bool has_tile(const chip_caps *chip, const dw_tensor *q, const dw_tensor *v) { return tile_bytes(q, v) + TILE_VIEW_BYTES <= chip->shared_bytes; }

static int64_t tiles_of(const dw_tensor *q) { return base_ceil_div(q->dims[2], TILE_QUERIES); }

const char *attention_tile_takes(const kernel_run *run, text *why) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *v = run->call.in[ATTENTION_V];
    if (has_tile(run->chip, q, v)) return attention_counts_refusal(run, q->dims[0] * q->dims[1] * tiles_of(q), why);
    return kernel_because(why, "a tile needs %u bytes of shared memory, and %s has %zu for a block", tile_bytes(q, v) + TILE_VIEW_BYTES, run->chip->name, run->chip->shared_bytes);
}

/* ---- the launch ---- */

dw_status attention_tile_shape(const kernel_run *run, kernel_launcher *launcher) {
    attention_heads by_heads;
    run = attention_by_heads(run, &by_heads);
    const dw_tensor *q = run->call.in[ATTENTION_Q], *v = run->call.in[ATTENTION_V];
    const int columns = tile_columns(v);
    kernel_launch launch;
    attention_tile_arguments *g = cuda_launch(&launch, "attention_tile", columns == 64 ? "attention_tile_64" : columns == 128 ? "attention_tile_128" : "attention_tile_256", sizeof *g);
    TRY(attention_take(&launch, run, &g->call));
    attention_take_blocks(&launch, run, &g->call, &g->blocks);
    g->tiles = (int32_t)tiles_of(q);
    cuda_grid(&launch, q->dims[0] * q->dims[1] * g->tiles, 1, 1);
    launch.block[0] = TILE_THREADS;
    launch.shared_bytes = tile_bytes(q, v);
    return launcher->add(launcher, &launch);
}
