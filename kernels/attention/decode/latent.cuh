/* The attention of latent keys: the constants of an entry, shared memory, queries in registers, and the two products of a block of keys. What becomes of scores: latent.cu. */
#ifndef KERNELS_ATTENTION_DECODE_LATENT_CUH
#define KERNELS_ATTENTION_DECODE_LATENT_CUH

#include "kernels/attention/decode/latent.h"
#include "kernels/attention/decode/rows.cuh"
#include "kernels/gpu/ptx/half.cuh"
#include "kernels/gpu/ptx/mma.cuh"

enum { WARPS = LATENT_WARPS, THREADS = 32 * WARPS, KEYS = LATENT_KEYS, ROW_BYTES = 128, CHUNK_COLS = 64, CHUNK_BYTES = KEYS * ROW_BYTES };
enum { CHUNKS = LATENT_WIDTH / CHUNK_COLS, VALUE_CHUNKS = LATENT_VALUE_WIDTH / CHUNK_COLS, PITCH = LATENT_VALUE_WIDTH + LATENT_PAD };
/* BUNCHES: of 8 keys, in a block. STEPS: of a product of a warp, which has every other 16 columns of keys. */
enum { GROUP = 16, BUNCHES = KEYS / 8, STEPS = LATENT_WIDTH / 16 / 2, MOST_GROUPS = 4 };

static_assert(VALUE_CHUNKS == WARPS, "each warp has the sums of a chunk of values");
static_assert(2 * CHUNKS <= 32, "a lane asks for each half of a chunk");

/* The constants of an entry. rows: of a tile, 32 or 64. */
typedef struct latent_shape { int element, rows, stages, general; } latent_shape;

INLINE int groups(const latent_shape s) { return s.rows / GROUP; }
INLINE int sharers(const latent_shape s) { return WARPS / groups(s); }              /* warps of a group of 16 rows */
INLINE int products(const latent_shape s) { return BUNCHES / (sharers(s) / 2); }    /* bunches of keys that a warp multiplies */
INLINE int weighed(const latent_shape s) { return BUNCHES / sharers(s); }           /* and whose weights it makes */

/* What a warp has of scores: a group of rows; of the columns every other 16, from number depth on; of a block's keys a half where four warps share the group, else all. */
typedef struct latent_warp { int group, part, depth, half; } latent_warp;

INLINE latent_warp warp_of(const latent_shape s) {
    const int warp = (int)threadIdx.x / 32, part = warp / groups(s);
    return (latent_warp){warp % groups(s), part, part % 2, part / 2};
}

/* Addresses in smem. ring: stages of keys [chunk of 64 columns][32 keys][128 bytes], or values alike; sums [rows][PITCH] come to lie there. products [warps][bunches][32 lanes] x 16 bytes; weights: of two blocks
 * [groups][16 keys][32 lanes] x 16 bytes, as lanes have them of the first operand; shrinks: of two blocks [rows]; views [rows]: start, count, base; ends [rows][2]; again [rows]; totals [sharers][rows]; gone: of stages, bit i:
 * half i of the keys is not there; grown: of two blocks, of each group whether its sums shrink; tile: a decode_tile, and which slots all of its rows see. */
typedef struct latent_smem { uint32_t ring, products, weights, shrinks, views, ends, again, totals, full, gone, grown, tile; } latent_smem;

INLINE latent_smem smem_of(const latent_shape s, uint32_t base) {
    latent_smem m;
    m.ring = base;
    m.products = m.ring + s.stages * LATENT_STAGE_BYTES;
    m.weights = m.products + LATENT_PRODUCT_BYTES(s.rows);
    m.shrinks = m.weights + LATENT_WEIGHT_BYTES(s.rows);
    m.views = m.shrinks + LATENT_SHRINK_BYTES(s.rows);
    m.ends = m.views + LATENT_VIEW_BYTES(s.rows);
    m.again = m.ends + LATENT_END_BYTES(s.rows);
    m.totals = m.again + LATENT_AGAIN_BYTES(s.rows);
    m.full = m.totals + LATENT_TOTAL_BYTES;
    m.gone = m.full + LATENT_BARRIER_BYTES;
    m.grown = m.gone + LATENT_GONE_BYTES;
    m.tile = m.grown + LATENT_GROWN_BYTES;
    return m;
}

INLINE uint32_t stage_at(latent_smem m, int stage) { return m.ring + (uint32_t)stage * LATENT_STAGE_BYTES; }

/* ---- the tile, which lies in shared memory as sums and queries take most registers ---- */

/* By one thread. inner: the slots that all rows see. */
INLINE void leave_tile(const attention_decode_arguments *g, latent_smem m, const decode_tile *tile) {
    const attention_view view = tile->view, first = view_of_row(g, tile, 0), last = view_of_row(g, tile, tile->rows - 1);
    const bool is_one = g->queries == 1;
    const int inner = is_one ? first.start : last.start, count = is_one ? first.count : first.start + first.count - last.start;
    st_shared_u32x4(m.tile, make_uint4((uint32_t)view.start, (uint32_t)view.count, (uint32_t)view.base, (uint32_t)view.cache));
    st_shared_u32x4(m.tile + 16, make_uint4((uint32_t)tile->batch, (uint32_t)tile->group, (uint32_t)tile->first_head, (uint32_t)tile->heads));
    st_shared_u32x4(m.tile + 32, make_uint4((uint32_t)tile->first_query, (uint32_t)tile->rows, (uint32_t)inner, (uint32_t)count));
}

INLINE decode_tile tile_left(latent_smem m) {
    const uint4 view = ld_shared_u32x4(m.tile), heads = ld_shared_u32x4(m.tile + 16);
    const float2 rows = ld_shared_f32x2(m.tile + 32);
    return (decode_tile){{(int)view.x, (int)view.y, (int)view.z, (int)view.w}, (int)heads.x, (int)heads.y, (int)heads.z, (int)heads.w, __float_as_int(rows.x), __float_as_int(rows.y)};
}

INLINE int cache_left(latent_smem m) { return (int)ld_shared_u32(m.tile + 12); }
INLINE int group_left(latent_smem m) { return (int)ld_shared_u32(m.tile + 20); }
/* Do all rows see all of the block of keys that begins at a slot? */
INLINE bool is_inner(latent_smem m, int slot, int slots) {
    const float2 inner = ld_shared_f32x2(m.tile + 40);
    int from = slot - __float_as_int(inner.x);
    if (from < 0) from += slots;
    return from + KEYS <= __float_as_int(inner.y) && slot + KEYS <= slots;
}

/* ---- products ---- */

INLINE uint32_t q_pair(const attention_arguments *p, uint64_t q, int col) { return q == 0 || col >= p->width ? 0 : *(const uint32_t *)(q + col * 2); }

/* Queries of the warp's rows and columns, as the first operand of its steps. */
INLINE void take_q(const attention_arguments *p, latent_smem m, latent_warp w, uint4 *q) {
    const decode_tile tile = tile_left(m);
    const int lane = threadIdx.x % 32, row = w.group * GROUP + lane / 4;
    const uint64_t low = row < tile.rows ? q_of_row(p, &tile, row) : 0, high = row + 8 < tile.rows ? q_of_row(p, &tile, row + 8) : 0;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const int col = (2 * step + w.depth) * 16 + lane % 4 * 2;
        q[step] = make_uint4(q_pair(p, low, col), q_pair(p, high, col), q_pair(p, low, col + 8), q_pair(p, high, col + 8));
    }
}

/* d += a b, of 16 x 16 and 16 x 8. */
INLINE void multiply(const latent_shape s, float *d, uint4 a, uint32_t b_low, uint32_t b_high) {
    if (s.element == ELEMENT_BF16) mma_bf16(d, a.x, a.y, a.z, a.w, b_low, b_high);
    else mma_f16(d, a.x, a.y, a.z, a.w, b_low, b_high);
}

/* Over the warp's columns. d [bunches][4]: of keys 2 (lane % 4) and the next, for rows lane / 4 and 8 further. */
INLINE void multiply_keys(const latent_shape s, latent_warp w, const uint4 *q, uint32_t stage, float (*d)[4]) {
    const int lane = threadIdx.x % 32, key = w.half * (KEYS / 2) + lane / 16 * 8 + lane % 8;
    const uint32_t at = stage + key * ROW_BYTES, place = (lane / 8 % 2 ^ lane % 8) << 4 ^ w.depth << 5;
#pragma unroll
    for (int i = 0; i < 4 * products(s); i++) d[i / 4][i % 4] = 0;
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int pair = 0; pair < products(s) / 2; pair++) {
            const uint4 k = ldmatrix_x4(at + step / 2 * CHUNK_BYTES + pair * 16 * ROW_BYTES + (place ^ step % 2 << 6));
            multiply(s, d[2 * pair], q[step], k.x, k.y);
            multiply(s, d[2 * pair + 1], q[step], k.z, k.w);
        }
}

INLINE uint32_t product_at(const latent_shape s, latent_smem m, int warp, int bunch) { return m.products + (uint32_t)(((warp * products(s) + bunch) * 32 + (int)threadIdx.x % 32) * 16); }

/* For the warps that share the rows. */
INLINE void leave_products(const latent_shape s, latent_smem m, float (*d)[4]) {
#pragma unroll
    for (int i = 0; i < products(s); i++) st_shared_f32x4(product_at(s, m, (int)threadIdx.x / 32, i), d[i][0], d[i][1], d[i][2], d[i][3]);
}

/* Over all columns, of all keys of the block: the same bits in all warps that share the rows. */
INLINE void sum_products(const latent_shape s, latent_smem m, latent_warp w, const float (*d)[4], float (*all)[4]) {
#pragma unroll
    for (int n = 0; n < BUNCHES; n++) {
        const int half = n / products(s), i = n % products(s), first = w.group + groups(s) * 2 * half;
        const bool is_own = products(s) == BUNCHES;
        const uint4 x = ld_shared_u32x4(product_at(s, m, is_own ? w.group + groups(s) * (1 - w.depth) : first, i));
        uint4 y = make_uint4(0, 0, 0, 0);
        if (!is_own) y = ld_shared_u32x4(product_at(s, m, first + groups(s), i));
        all[n][0] = __uint_as_float(x.x) + (is_own ? d[i][0] : __uint_as_float(y.x));
        all[n][1] = __uint_as_float(x.y) + (is_own ? d[i][1] : __uint_as_float(y.y));
        all[n][2] = __uint_as_float(x.z) + (is_own ? d[i][2] : __uint_as_float(y.z));
        all[n][3] = __uint_as_float(x.w) + (is_own ? d[i][3] : __uint_as_float(y.w));
    }
}

/* Weights of a bunch of keys, rounded, for all warps. parity: of the block. */
INLINE void leave_weights(const latent_shape s, latent_smem m, latent_warp w, int parity, int bunch, const float *weights) {
    const uint32_t to = m.weights + (uint32_t)(parity * (LATENT_WEIGHT_BYTES(s.rows) / 2) + (w.group * 2 + bunch / 2) * 512 + (int)threadIdx.x % 32 * 16 + bunch % 2 * 8);
    if (s.element == ELEMENT_BF16) st_shared_u32x2(to, cvt_bf16x2(weights[0], weights[1]), cvt_bf16x2(weights[2], weights[3]));
    else st_shared_u32x2(to, cvt_f16x2(weights[0], weights[1]), cvt_f16x2(weights[2], weights[3]));
}

/* sums [groups][8 columns x 8][4] of all rows and the warp's 64 columns: of columns 2 (lane % 4) and the next, of rows as scores. */
INLINE void add_values(const latent_shape s, latent_smem m, int parity, uint32_t stage, float (*sums)[8][4]) {
    const int lane = threadIdx.x % 32, key = lane / 8 % 2 * 8 + lane % 8;
    const uint32_t at = stage + (uint32_t)((int)threadIdx.x / 32 * CHUNK_BYTES + key * ROW_BYTES), place = (lane / 16 ^ lane % 8) << 4;
    const uint32_t weights = m.weights + (uint32_t)(parity * (LATENT_WEIGHT_BYTES(s.rows) / 2) + lane * 16);
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        uint4 a[MOST_GROUPS];
#pragma unroll
        for (int group = 0; group < groups(s); group++) a[group] = ld_shared_u32x4(weights + (group * 2 + step) * 512);
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const uint4 v = ldmatrix_x4_transposed(at + step * 16 * ROW_BYTES + (place ^ pair << 5));
#pragma unroll
            for (int group = 0; group < groups(s); group++) {
                multiply(s, sums[group][2 * pair], a[group], v.x, v.y);
                multiply(s, sums[group][2 * pair + 1], a[group], v.z, v.w);
            }
        }
    }
}

/* Sums of rows whose largest score has changed with a block. */
INLINE void shrink_sums(const latent_shape s, latent_smem m, int parity, float (*sums)[8][4]) {
    const int lane = threadIdx.x % 32;
    const uint4 flags = ld_shared_u32x4(m.grown + parity * 16);
    const uint32_t grown[MOST_GROUPS] = {flags.x, flags.y, flags.z, flags.w};
#pragma unroll
    for (int group = 0; group < groups(s); group++) {
        if (!grown[group]) continue;
        const uint32_t from = m.shrinks + (uint32_t)((parity * s.rows + group * GROUP + lane / 4) * 4);
        const float low = ld_shared_f32(from), high = ld_shared_f32(from + 32);
#pragma unroll
        for (int i = 0; i < 32; i++) sums[group][i / 4][i % 4] *= i % 4 < 2 ? low : high;
    }
}

#endif
