/* Of attention by tcgen05: the warps that correct sums in tensor memory, a thread a row: they scale them where a row's largest score has grown, and make results of them. */
#ifndef KERNELS_ATTENTION_TCGEN05_CORRECT_CUH
#define KERNELS_ATTENTION_TCGEN05_CORRECT_CUH

#include "kernels/attention/tcgen05/blocks.cuh"

enum { PART = 32 };               /* columns of sums that are in registers at a time */

/* What softmax says: read at once, so that it may say the next. */
INLINE float2 listen(const attend_place *p, int tile, int row, uint32_t phase) {
    mbarrier_wait(ring_full(p->said_ring, tile), phase);
    const float2 said = ld_shared_f32x2(p->said + (tile * ATTEND_ROWS + row) * 8);
    arrive(ring_empty(p->said_ring, tile));
    return said;
}

/* Sums of the thread's row. Products of the block before have ended, as scores that were issued behind them have come, or as was waited for. */
INLINE void scale_sums(const attend_shape s, uint32_t sums, float factor) {
    if (!agreed(factor != 1)) return;
    tcgen05_fence_after();
#pragma unroll 1
    for (int i = 0; i < s.value_width; i += PART) {
        uint32_t raw[PART];
        tmem_load_x32(raw, sums + i);
        tmem_wait_load();
#pragma unroll
        for (int k = 0; k < PART; k++) raw[k] = __float_as_uint(shrunk(__uint_as_float(raw[k]), factor));
        tmem_store_words_x32(sums + i, raw);
    }
    tmem_wait_store();
}

/* ---- rows that are done once more ---- */

/* What a row came to. */
typedef struct ended_row { int query; float max, sum; } ended_row;

INLINE ended_row row_of_lane(const ended_row *row, int lane) {
    const ended_row other = {__shfl_sync(0xffffffff, row->query, lane), __shfl_sync(0xffffffff, row->max, lane), __shfl_sync(0xffffffff, row->sum, lane)};
    return other;
}

/* A row of q or k. Of codes: where its scales lie, with mxfp8 those of its blocks; factor: of e4m3 its scale. */
typedef struct operand_row { uint64_t elements, scales; float factor; } operand_row;

INLINE operand_row row_of_q(const attention_tcgen05_arguments *g, const attend_shape s, int batch, int head, int query) {
    const attention_arguments *p = &g->call;
    const int64_t row = ((int64_t)batch * p->heads + head) * p->queries + query;
    operand_row q = {p->q.data + 2 * (batch * p->q_strides[0] + head * p->q_strides[1] + query * p->q_strides[2]), 0, 1};
    if (s.codes != ATTEND_HALVES) q.elements = p->q.data + row * p->width;
    if (s.codes == ATTEND_E4M3) q.factor = factor_at(g->q_scales, row);
    if (s.codes == ATTEND_MXFP8) q.scales = g->q_scales + row * row_scales(p);
    return q;
}

INLINE operand_row row_of_k(const attention_tcgen05_arguments *g, const attend_shape s, attention_slot at, int head) {
    const attention_arguments *p = &g->call;
    const int64_t shared = head / (int)p->shared_heads, heads = head_of_keys(p, at.row, head), row = heads * keys_of_head(p, s) + at.slot;
    operand_row k = {p->k.data + 2 * (at.row * p->k_strides[0] + shared * p->k_strides[1] + at.slot * p->k_strides[2]), 0, 1};
    if (s.codes != ATTEND_HALVES) k.elements = p->k.data + row * p->width;
    if (s.codes == ATTEND_E4M3) k.factor = factor_at(g->k_scales, heads * (last_key_scale(p, s) + 1) + at.slot / CODES_KEYS);
    if (s.codes == ATTEND_MXFP8) k.scales = g->k_scales + row * row_scales(p);
    return k;
}

INLINE float number_of(const attend_shape s, const operand_row *row, int i) {
    if (s.codes == ATTEND_HALVES) return load_half(s.element, row->elements + 2 * i);
    const float code = e4m3_at(row->elements, i);
    return s.codes == ATTEND_MXFP8 ? code * small_from_e8m0(((const uint8_t *)row->scales)[i / ATTEND_SCALED]) : code;
}

/* Of a product of q and one key all lanes' parts. */
INLINE float product_of(const attention_arguments *p, const attend_shape s, const operand_row *q, const operand_row *k) {
    float product = 0;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < (int)p->width; i += 32) product = fmaf(number_of(s, q, i), number_of(s, k, i), product);
#pragma unroll 1
    for (int step = 16; step > 0; step /= 2) product += __shfl_xor_sync(0xffffffff, product, step);
    return s.codes == ATTEND_E4M3 ? product * q->factor * k->factor : product;
}

/* What a query sees: of a whole warp the same query. */
INLINE attention_view seen_by(const attention_tcgen05_arguments *g, const attend_shape s, int batch, int query) {
    if (s.texts) return view_of(&g->call, batch, query);
    const int begin = keys_begin(g, query), end = keys_end(g, query);
    const attention_view view = {begin, max(end - begin, 0), begin, batch};
    return view;
}

/* The weight of a product of q and the key at a position. */
INLINE float weight_again(const attention_arguments *p, const attend_shape s, float product, attention_extra extra, int position, float max) {
    if (is_scaled(s)) return weight_of(score_of(p, product, extra, position), max, LOG2_E);
    if (s.scores == ATTENTION_MASKED && *(const uint8_t *)(extra.mask + position * p->mask_strides[3]) == 0) return 0;
    return ex2(fmaf(product, p->scale * LOG2_E, -max * (p->scale * LOG2_E)));
}

/* A row by one warp, straight from memory and without the keys of no weight, into its place among the results, columns from `from` on, as many as are staged at a time. */
INLINE void repeat_row(const attention_tcgen05_arguments *g, const attend_shape s, const attend_unit *u, const ended_row *row, uint32_t out, int row_of_tile, const int from) {
    const attention_arguments *p = &g->call;
    const int batch = batch_of(g, u), head = head_of(g, u), lane = threadIdx.x % 32;
    const attention_view view = seen_by(g, s, batch, row->query);
    const attention_extra extra = extra_of(p, view.cache, head, row->query);
    const int64_t shared = head / (int)p->shared_heads;
    const operand_row q = row_of_q(g, s, batch, head, row->query);
    const uint64_t v = p->v.data + 2 * shared * p->v_strides[1];
    const float max = row->max == -INFINITE ? 0 : row->max;
#pragma unroll 1
    for (int col = from + lane; agreed(col < min((int)p->value_width, from + attend_out_columns(s.sizes) * ATTEND_COLUMN)); col += 32) {
        float total = 0;
#pragma unroll 1
        for (int i = 0; i < view.count; i++) {
            attention_slot at = {view.cache, view.start + i < (int)p->keys ? view.start + i : view.start + i - (int)p->keys};
            if (s.texts) at = slot_of(p, at.row, at.slot);
            if (at.row < 0) continue;
            const operand_row k = row_of_k(g, s, at, head);
            const float weight = weight_again(p, s, product_of(p, s, &q, &k), extra, view.base + i, max);
            if (weight != 0 && col < (int)p->value_width) total = fmaf(weight, load_half(s.element, v + 2 * (at.row * p->v_strides[0] + at.slot * p->v_strides[2] + col)), total);
        }
        const float y = row->sum == 0 ? 0 : total / row->sum;   /* a row that sees nothing is 0 */
        const uint32_t at = out + (col - from) / ATTEND_COLUMN * ATTEND_COLUMN_BYTES + row_of_tile * ROW_BYTES + ((col % ATTEND_COLUMN / 8 ^ row_of_tile % 8) << 4) + col % 8 * 2;
        if (col < (int)p->value_width) st_shared_u16(at, (uint16_t)(p->out.format == CUDA_bf16 ? cvt_bf16x2(y, 0) : cvt_f16x2(y, 0)));
    }
}

/* ---- results ---- */

/* Sums over their row's sum to the staging, those of columns from `from` on, as many as are staged at a time; true where one is NaN while their row's sum is not: a key of no weight holds one, or an infinity. */
INLINE bool stage_results(const attention_tcgen05_arguments *g, const attend_shape s, uint32_t sums, bool any, float sum, uint32_t out, int row_of_tile, const int from) {
    const bool is_bf16 = g->call.out.format == CUDA_bf16;
    const float factor = sum == 0 ? 0 : 1 / sum;
    bool wrong = false;
#pragma unroll 1
    for (int part = 0; part < attend_out_columns(s.sizes) * ATTEND_COLUMN; part += PART) {
        uint32_t raw[PART];
#pragma unroll
        for (int i = 0; i < PART; i++) raw[i] = 0;
        if (any && from + part < s.value_width) {
            tmem_load_x32(raw, sums + from + part);
            tmem_wait_load();
        }
#pragma unroll
        for (int i = 0; i < PART; i += 8) {
            uint32_t words[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float x = __uint_as_float(raw[i + 2 * k]), y = __uint_as_float(raw[i + 2 * k + 1]);
                wrong |= !(x <= y || x > y);   /* one of the two is NaN: one test of both */
                words[k] = is_bf16 ? cvt_bf16x2(x * factor, y * factor) : cvt_f16x2(x * factor, y * factor);
            }
            const int chunk = (part + i) / 8;
            st_shared_u32x4(out + chunk / 8 * ATTEND_COLUMN_BYTES + row_of_tile * ROW_BYTES + ((chunk % 8 ^ row_of_tile % 8) << 4), make_uint4(words[0], words[1], words[2], words[3]));
        }
    }
    return wrong && sum == sum;
}

/* The logarithm of the sum of e^score. */
INLINE void store_lse(const attention_tcgen05_arguments *g, const attend_shape s, const attend_unit *u, const ended_row *row) {
    if (!g->has_lse || row->query >= (int)g->call.queries) return;
    const int64_t at = batch_of(g, u) * g->lse_strides[0] + head_of(g, u) * g->lse_strides[1] + row->query * g->lse_strides[2];
    const float max = is_scaled(s) ? row->max : row->max * g->call.scale;
    store_float(&g->lse, at, max < INFINITE ? max + logf(row->sum) : NOT_A_NUMBER);
}

INLINE void repeat_rows(const attention_tcgen05_arguments *g, const attend_shape s, const attend_unit *u, const ended_row *row, uint32_t out, int first_row, bool wrong, const int from) {
    uint32_t left = __ballot_sync(0xffffffff, wrong && row->query < (int)g->call.queries);
    __syncwarp();
#pragma unroll 1
    while (left != 0) {
        const int lane = __ffs((int)left) - 1;
        const ended_row other = row_of_lane(row, lane);
        repeat_row(g, s, u, &other, out, first_row + lane, from);
        left &= left - 1;
    }
}

/* ---- units ---- */

/* Of a thread's rows, parities of barriers. */
typedef struct correct_turns { uint32_t said[ATTEND_TILES], whole[ATTEND_TILES], out[2]; } correct_turns;

/* The end of a unit of a tile. any: has it blocks? */
INLINE void finish_tile(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p, const attend_unit *u, const int tile, bool any, int warp, uint32_t sums, correct_turns *turns) {
    const int row_of_tile = warp * 32 + threadIdx.x % 32;
    const float2 end = listen(p, tile, row_of_tile, turns->said[tile]);
    turns->said[tile] ^= 1;
    const ended_row row = {u->first + tile * ATTEND_ROWS + row_of_tile, end.y, end.y != end.y ? NOT_A_NUMBER : end.x};
    if (any) {
        wait_for_tmem(p->sums + tile * BARRIER_BYTES, turns->whole[tile]);
        turns->whole[tile] ^= 1;
    }
#pragma unroll
    for (int part = 0; part < attend_out_parts(s.sizes); part++) {
        const int slot = (tile * attend_out_parts(s.sizes) + part) % s.outs, from = part * attend_out_columns(s.sizes) * ATTEND_COLUMN;
        const uint32_t out = p->out + slot * attend_out_bytes(s.sizes);
        if (!s.blocks) {
            mbarrier_wait(ring_empty(p->out_ring, slot), turns->out[slot]);
            turns->out[slot] ^= 1;
        }
        const bool wrong = stage_results(g, s, sums + tile * ATTEND_SUMS_STEP, any, row.sum, out, row_of_tile, from);
        if (from == 0) store_lse(g, s, u, &row);
        if (agreed(wrong)) repeat_rows(g, s, u, &row, out, warp * 32, wrong, from);
        if (s.blocks) {
            __syncwarp();
            store_blocks(g, u, row.query, out, row_of_tile);
            __syncwarp();
            continue;
        }
        fence_proxy_async();
        arrive(ring_full(p->out_ring, slot));
    }
}

INLINE void correct_units(const attention_tcgen05_arguments *g, const attend_shape s, const attend_place *p) {
    const int warp = threadIdx.x / 32 % TILE_WARPS, row_of_tile = warp * 32 + threadIdx.x % 32;
    const uint32_t sums = p->tmem + ATTEND_SUMS + (warp * 32 << 16);
    correct_turns turns = {{0, 0}, {0, 0}, {1, 1}};
    bool any = false;
    int place = 0;
    attend_unit u;
    for (int number = 0; next_unit(g, s, p, number, &u); number++) {
        any = u.begin < u.end || (any && !u.opens);
#pragma unroll 1
        for (int block = u.begin; block < u.end; block++) {
#pragma unroll
            for (int tile = 0; tile < ATTEND_TILES; tile++) {
                if (tile >= u.tiles) break;
                if (!is_begin(&u, block)) {
                    const float factor = listen(p, tile, row_of_tile, turns.said[tile]).x;
                    turns.said[tile] ^= 1;
                    if (s.tiles == 1) {   /* the block's scores were multiplied in front of the last block's values */
                        mbarrier_wait(p->sums + tile * BARRIER_BYTES, turns.whole[tile]);
                        turns.whole[tile] ^= 1;
                    }
                    scale_sums(s, sums + tile * ATTEND_SUMS_STEP, factor);
                }
                arrive_behind_tmem(p->ready + (s.tiles == 1 ? place : tile) * BARRIER_BYTES);
                place ^= 1;
            }
        }
        if (!u.closes) continue;
#pragma unroll
        for (int tile = 0; tile < ATTEND_TILES; tile++)
            if (tile < u.tiles) finish_tile(g, s, p, &u, tile, any, warp, sums, &turns);
    }
}

#endif
