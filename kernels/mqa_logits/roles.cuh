/* What the kernels by tiles have in common: places in shared memory, and the warps that load, that tell of items, and that write -inf. */
#ifndef KERNELS_MQA_LOGITS_ROLES_CUH
#define KERNELS_MQA_LOGITS_ROLES_CUH

#include "kernels/gpu/ptx/bulk.cuh"
#include "kernels/gpu/ptx/half.cuh"
#include "kernels/gpu/ptx/tma_boxes.cuh"
#include "kernels/mqa_logits/tiles.h"
#include "kernels/mqa_logits/view.cuh"

/* The constants of an entry. heads, width: what q is padded to; block, stages: keys of a stage; maxima: see takes_max; rows, row_bytes: of q's tile, and of a row of q or k in smem; scales: tiles of 4 scales
 * of 128 rows that a row's scales take, 0: there are none; scale_block: elements of a scale. */
typedef struct mqa_shape { int heads, width, block, stages, maxima, rows, row_bytes, scales, scale_block; } mqa_shape;
INLINE constexpr int queries_of(const mqa_shape s) { return s.rows / s.heads; }
INLINE constexpr int boxes_of(const mqa_shape s) { return s.block / MQA_BOX; }

/* Addresses in smem. */
typedef struct mqa_smem {
    uint32_t q, k, q_scales, k_scales, work, factors, pages, end;   /* q_scales, k_scales: of a stage [scales][2][512 bytes], and half of that; factors: of the keys of each stage, fp32; pages: of each of its boxes, -1: it is not there */
    ring_barriers q_ring, k_ring;
} mqa_smem;

INLINE mqa_smem smem_of(const mqa_shape s, uint32_t base) {
    mqa_smem m;
    m.q = base;
    m.k = m.q + MQA_Q_STAGES * s.rows * s.row_bytes;
    m.q_scales = m.k + s.stages * s.block * s.row_bytes;
    m.k_scales = m.q_scales + MQA_Q_STAGES * 2 * s.scales * MQA_SCALE_TILE;
    m.q_ring = ring_at(m.k_scales + s.stages * s.scales * MQA_SCALE_TILE, MQA_Q_STAGES);
    m.k_ring = ring_at(ring_end(m.q_ring, MQA_Q_STAGES), s.stages);
    m.work = ring_end(m.k_ring, s.stages);
    m.factors = m.work + MQA_Q_STAGES * MQA_WORK_BYTES;
    m.pages = m.factors + s.stages * s.block * 4;
    m.end = m.pages + s.stages * boxes_of(s) * 4;
    return m;
}

/* What all threads of the warp agree on: see kernels/attention/wgmma. */
INLINE bool agreed(bool x) { return __any_sync(0xffffffff, x); }

/* Items go around the thread blocks forth and back, the last ones first. Where queries see keys up to their own, all thread blocks so get about as many blocks of keys, and the few items of the last round are small.
 * Not below g->items: there are no more. */
INLINE int item_of_round(int round) { return round * (int)gridDim.x + (round % 2 == 0 ? (int)blockIdx.x : (int)(gridDim.x - 1 - blockIdx.x)); }
INLINE mqa_item item_at(const mqa_tiles_arguments *g, const mqa_shape s, int number) { return mqa_item_at(&g->call, g->tiles, g->chunks, g->chunk, queries_of(s), g->items - 1 - number); }

/* relu of a column of scores is max(x, 0), or else x + |x| with half the weight, as maxima go at half the rate of sums: of each four times eight columns the first `maxima` times eight are maxima. */
INLINE bool takes_max(const mqa_shape s, int column) { return column / 8 % 4 < s.maxima; }
INLINE float positive(const mqa_shape s, float x, int column) { return takes_max(s, column) ? max_nan(x, 0) : x + fabsf(x); }

/* Whether the copy engine brings factors, too: they lie side by side in whole 16 bytes, and behind the last key none is of a warp that has keys (32 by tcgen05, 16 by wgmma), as a stage keeps those that it had there. Else a
 * warp's threads do. */
INLINE bool copies_factors(const mqa_arguments *p) {
    const bool lie = p->factor_strides[1] == 1 && p->factor.data % 16 == 0 && p->factor_strides[0] % 4 == 0 && (p->has_table || p->keys % 32 == 0);
    return !p->has_factor || lie;
}

/* What a stage of keys is filled by: TMA, who brings factors, and of 4 bits who brings scales. */
INLINE int loaders_of(const mqa_arguments *p, const mqa_shape s) { return 1 + (copies_factors(p) ? 1 : 32) + (s.scales > 0); }

/* By all threads, in front of all: factors of 1 where there are none, else numbers where nothing is brought. */
INLINE void begin_factors(const mqa_arguments *p, const mqa_shape s, mqa_smem m, const int threads) {
    for (int i = (int)threadIdx.x; i < s.stages * s.block; i += threads) st_shared_f32(m.factors + 4 * i, p->has_factor ? 0.0f : 1.0f);
    fence_proxy_async();
}

/* The factor of a key of a stage, times the scale of all. */
INLINE float factor_at(mqa_smem m, const mqa_shape s, int stage, int own, float scale) { return scale * ld_shared_f32(m.factors + (stage * s.block + own) * 4); }

/* ---- loads: a warp for q and keys, and one for what a stage of keys has besides ---- */

INLINE int slot_of(const mqa_arguments *p, int position) { return p->has_table ? position % (int)p->page : position; }

/* Of one box, by one thread. page -1: its page is not there, and behind the last page there are zeros. */
INLINE void load_box(const mqa_tiles_arguments *g, const mqa_shape s, mqa_smem m, int stage, int box, int position, int page, uint32_t full) {
    tma_load_3d(m.k + (stage * s.block + box * MQA_BOX) * s.row_bytes, (const tensor_map *)g->map_k, full, 0, slot_of(&g->call, position), page < 0 ? (int)g->call.pages : page, TMA_EVICT_LAST);
}

/* Of one box, by the warp: 0 where there is no key. */
INLINE void load_factors(const mqa_arguments *p, const mqa_shape s, mqa_smem m, int stage, int box, int position, int page) {
    const int slot = slot_of(p, position);
#pragma unroll
    for (int own = (int)threadIdx.x % 32; own < MQA_BOX; own += 32) {
        const bool is_key = page >= 0 && position + own < (int)p->keys;
        const float *from = (const float *)p->factor.data + (is_key ? page * p->factor_strides[0] + (slot + own) * p->factor_strides[1] : 0);
        cp_async(m.factors + (stage * s.block + box * MQA_BOX + own) * 4, from, 4, is_key ? 4 : 0);
    }
}

/* Bytes of a box's factors that the copy engine brings; without pages the first box is the block. */
INLINE int factor_bytes(const mqa_arguments *p, const mqa_shape s, int box, int position, int page) {
    const int left = (int)p->keys - position, count = p->has_table ? MQA_BOX : min(s.block, left);
    return p->has_factor && page >= 0 && left > 0 && box < (p->has_table ? boxes_of(s) : 1) ? 4 * count : 0;
}

/* What a stage of keys has besides them, by the warp. page: of box number lane % boxes. */
INLINE void fill_factors(const mqa_tiles_arguments *g, const mqa_shape s, mqa_smem m, ring_turn turn, int position, int page) {
    const mqa_arguments *p = &g->call;
    const int lane = (int)threadIdx.x % 32, boxes = boxes_of(s);
    if (lane < boxes) st_shared_u32(m.pages + 4 * (turn.stage * boxes + lane), (uint32_t)page);
    __syncwarp();                 /* before one lane says that they are there */
    if (copies_factors(p)) {
        const int from = position + lane * MQA_BOX, size = factor_bytes(p, s, lane, from, page), count = __popc(__ballot_sync(0xffffffff, size > 0));
        if (lane == 0) ring_expect_full(m.k_ring, turn, p->has_table ? count * MQA_BOX * 4 : size);
        __syncwarp();
        if (size > 0) bulk_load(m.factors + (turn.stage * s.block + lane * MQA_BOX) * 4, p->factor.data + 4 * (page * p->factor_strides[0] + slot_of(p, from)), (uint32_t)size, ring_full(m.k_ring, turn.stage));
        return;
    }
#pragma unroll
    for (int box = 0; box < boxes; box++) load_factors(p, s, m, turn.stage, box, position + box * MQA_BOX, __shfl_sync(0xffffffff, page, box));
    cp_async_arrive(ring_full(m.k_ring, turn.stage));
}

/* ---- scales of 4 bits: tiles of 128 rows by 4 scales, in which row r's word is number r / 32 of lane r % 32, as tcgen05.cp reads them ---- */

/* Scales [4 tile, 4 tile + 4) of a row, 0 behind the last one; row -1: it is not there. */
INLINE uint32_t scale_word(const cuda_rows *rows, int64_t row, const int tile) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) word |= row >= 0 && 4 * tile + i < (int)rows->scale_cols ? (uint32_t)__ldg((const uint8_t *)(rows->scales + row * rows->scale_cols + 4 * tile + i)) << 8 * i : 0;
    return word;
}

/* A lane's four rows of a tile, by a warp. */
INLINE void store_scale_tile(const cuda_rows *rows, const int64_t *four, const int tile, uint32_t to) {
    const uint32_t words[4] = {scale_word(rows, four[0], tile), scale_word(rows, four[1], tile), scale_word(rows, four[2], tile), scale_word(rows, four[3], tile)};
    st_shared_u32x4(to + threadIdx.x % 32 * 16, make_uint4(words[0], words[1], words[2], words[3]));
}

/* Of a block of keys, and who is told of it. */
INLINE void fill_scales(const mqa_tiles_arguments *g, const mqa_shape s, mqa_smem m, ring_turn turn, int position, int page_of_box) {
    const mqa_arguments *p = &g->call;
    int64_t rows[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int own = 32 * i + (int)threadIdx.x % 32, key = position + own, page = __shfl_sync(0xffffffff, page_of_box, 32 * i / MQA_BOX), slot = slot_of(p, key);
        rows[i] = page >= 0 && key < (int)p->keys ? (int64_t)page * (p->has_table ? p->page : p->keys) + slot : -1;
    }
#pragma unroll
    for (int tile = 0; tile < s.scales; tile++) store_scale_tile(&g->k, rows, tile, m.k_scales + (turn.stage * s.scales + tile) * MQA_SCALE_TILE);
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring_arrive_full(m.k_ring, turn);
}

/* Of an item's rows of q, with zeros where an entry's heads are not there. */
INLINE void store_q_scales(const mqa_tiles_arguments *g, const mqa_shape s, mqa_smem m, mqa_item item, int stage) {
    const mqa_arguments *p = &g->call;
#pragma unroll
    for (int part = 0; part < 2; part++) {
        int64_t rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int own = 128 * part + 32 * i + (int)threadIdx.x % 32, query = item.first + own / s.heads, head = own % s.heads;
            const bool there = own < s.rows && query < (int)p->queries && head < (int)p->heads;
            rows[i] = there ? ((int64_t)item.batch * p->queries + query) * p->heads + head : -1;
        }
#pragma unroll
        for (int tile = 0; tile < s.scales; tile++) store_scale_tile(&g->q, rows, tile, m.q_scales + ((stage * s.scales + tile) * 2 + part) * MQA_SCALE_TILE);
    }
    fence_proxy_async();
}

/* The keys, by a thread for each box; without pages the first box is the block. */
INLINE void fill_keys(const mqa_tiles_arguments *g, const mqa_shape s, mqa_smem m, ring_turn turn, int position, int page) {
    const int lane = (int)threadIdx.x % 32;
    if (lane == 0) ring_expect_full(m.k_ring, turn, s.block * s.row_bytes);
    __syncwarp();
    if (lane < (g->call.has_table ? boxes_of(s) : 1)) load_box(g, s, m, turn.stage, lane, position + lane * MQA_BOX, page, ring_full(m.k_ring, turn.stage));
}

/* Pages are looked up for 32 boxes at a time, one a lane. of_keys: the keys, else what a stage has besides. */
INLINE void load_blocks(const mqa_tiles_arguments *g, const mqa_shape s, mqa_smem m, const bool of_keys, mqa_item item, mqa_work work, uint32_t *number) {
    const int lane = (int)threadIdx.x % 32, boxes = boxes_of(s);
    for (int base = 0; base < work.count; base += 32 / boxes) {
        const int own = min(work.first * s.block + (base * boxes + lane) * MQA_BOX, (work.first + work.count) * s.block - MQA_BOX);
        const int found = own < (int)g->call.keys ? mqa_page_of(&g->call, item.batch, own) : -1;
        for (int i = base; i < min(base + 32 / boxes, work.count); i++, ++*number) {
            const ring_turn turn = ring_writer_turn(*number, s.stages);
            const int page = __shfl_sync(0xffffffff, found, (i - base) * boxes + lane % boxes), position = (work.first + i) * s.block;
            ring_wait_empty(m.k_ring, turn);
            if (of_keys) fill_keys(g, s, m, turn, position, page);
            else fill_factors(g, s, m, turn, position, page);
            if (!of_keys && s.scales > 0) fill_scales(g, s, m, turn, position, page);
        }
        __syncwarp();
    }
}

/* The blocks of all items, and with the keys the items' q. */
INLINE void load_items(const mqa_tiles_arguments *g, const mqa_shape s, mqa_smem m, const bool of_keys) {
    const int bytes = s.rows * s.row_bytes;
    ring_turn turn = ring_writer();
    uint32_t number = 0;
    for (int round = 0, at; (at = item_of_round(round)) < g->items; round++) {
        const mqa_item item = item_at(g, s, at);
        mqa_range range;
        const mqa_work work = mqa_find_work(&g->call, item, queries_of(s), s.block, &range);
        if (work.count == 0) continue;
        if (of_keys && threadIdx.x % 32 == 0) {
            ring_wait_empty(m.q_ring, turn);
            const uint32_t full = ring_expect_full(m.q_ring, turn, bytes);
            tma_load_4d(m.q + turn.stage * bytes, (const tensor_map *)g->map_q, full, 0, 0, item.first, item.batch, TMA_EVICT_FIRST);
        }
        __syncwarp();
        load_blocks(g, s, m, of_keys, item, work, &number);
        ring_next(&turn, MQA_Q_STAGES);
    }
    if (!of_keys || threadIdx.x % 32 != 0) return;
    ring_wait_empty(m.q_ring, turn);
    ring_arrive_full(m.q_ring, turn);
}

/* ---- weights and ranges: a warp. Behind the last item comes one without blocks ---- */

INLINE uint32_t work_at(mqa_smem m, int stage) { return m.work + stage * MQA_WORK_BYTES; }
INLINE uint32_t ranges_at(mqa_smem m, int stage) { return work_at(m, stage) + MQA_WEIGHT_BYTES; }

INLINE void store_work(mqa_smem m, int stage, mqa_item item, mqa_work work) {
    const uint32_t to = ranges_at(m, stage) + MQA_RANGES_BYTES;
    st_shared_u32x4(to, make_uint4((uint32_t)item.batch, (uint32_t)item.first, (uint32_t)item.begin, (uint32_t)item.end));
    st_shared_u32x4(to + 16, make_uint4((uint32_t)work.first, (uint32_t)work.count, (uint32_t)work.low, (uint32_t)work.high));
}
INLINE mqa_work load_work(mqa_smem m, int stage, mqa_item *item) {
    const uint32_t from = ranges_at(m, stage) + MQA_RANGES_BYTES;
    const uint4 x = ld_shared_u32x4(from), y = ld_shared_u32x4(from + 16);
    const mqa_item found = {(int)x.x, (int)x.y, (int)x.z, (int)x.w};
    const mqa_work work = {(int)y.x, (int)y.y, (int)y.z, (int)y.w};
    *item = found;
    return work;
}

/* Weights as relu wants them. */
INLINE void store_weights(const mqa_arguments *p, const mqa_shape s, mqa_item item, uint32_t to) {
    for (int i = (int)threadIdx.x % 32; i < s.rows; i += 32) {
        const int query = item.first + i / s.heads, head = i % s.heads;
        const bool there = query < (int)p->queries && head < (int)p->heads;
        const float weight = there ? load_float(&p->weights, item.batch * p->weight_strides[0] + query * p->weight_strides[1] + head * p->weight_strides[2]) : 0;
        st_shared_f32(to + 4 * i, takes_max(s, i) ? weight : 0.5f * weight);
    }
}

INLINE void tell_items(const mqa_tiles_arguments *g, const mqa_shape s, mqa_smem m) {
    const int lane = (int)threadIdx.x % 32;
    ring_turn turn = ring_writer();
    for (int round = 0, at; (at = item_of_round(round)) < g->items; round++) {
        const mqa_item item = item_at(g, s, at);
        mqa_range range;
        const mqa_work work = mqa_find_work(&g->call, item, queries_of(s), s.block, &range);
        if (work.count == 0) continue;
        const uint32_t ranges = ranges_at(m, turn.stage);
        ring_wait_empty(m.q_ring, turn);
        store_weights(&g->call, s, item, work_at(m, turn.stage));
        if (s.scales > 0) store_q_scales(g, s, m, item, turn.stage);
        if (lane < queries_of(s)) st_shared_u32x2(ranges + lane * MQA_RANGE_BYTES, (uint32_t)range.begin, (uint32_t)range.end);
        if (lane == 0) store_work(m, turn.stage, item, work);
        __syncwarp();
        if (lane == 0) ring_arrive_full(m.q_ring, turn);
        ring_next(&turn, MQA_Q_STAGES);
    }
    if (lane != 0) return;
    const mqa_item end = {0, 0, 0, 0};
    const mqa_work none = {0, 0, 0, 0};
    ring_wait_empty(m.q_ring, turn);
    store_work(m, turn.stage, end, none);
    ring_arrive_full(m.q_ring, turn);
}

/* ---- -inf: some warps, of which this is thread number `thread` ---- */

INLINE void clean_items(const mqa_tiles_arguments *g, const mqa_shape s, int thread, const int threads) {
    for (int round = 0, at; (at = item_of_round(round)) < g->items; round++) {
        const mqa_item item = item_at(g, s, at);
        mqa_range range;
        const mqa_work work = mqa_find_work(&g->call, item, queries_of(s), s.block, &range);
        mqa_clean_item(&g->call, item, work, queries_of(s), s.block, thread, threads);
    }
}

#endif
