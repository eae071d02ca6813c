/* Attention of wide keys that many heads share (the latent ones of multi-head latent attention, absorbed: 576 columns, of which values are the first 512), on tensor cores: tiles of 32 or 64 rows, which are queries x
 * heads, past keys and values that go by once.
 *
 *   a cluster   one tile; its blocks take a part of the keys each
 *   a block     8 warps, a ring: TMA -> k [32, 576] smem, in chunks of 64 columns; v is its first 8 chunks, or comes by a stage of its own
 *   scores      a group of 16 rows has 2 or 4 warps, which share columns and keys: products [16, 32] = q (reg) k^T (smem) by mma.sync -> smem -> each has all of the group's, for what is largest
 *               -> weights of 16 or 8 keys each -> smem, for all warps
 *   values      a warp has 64 columns: sums [rows, 64] reg += weights (smem) v (smem) by mma.sync
 *   at the end  sums lie in smem; blocks add up each other's, always in the same order
 *
 *     warps:   | values i, products i + 1 | meet by groups | weights i + 1 | meet, all | values i + 1, ..
 *     warp 0:                                                              | asks for what stages have room for
 *
 * Scores, softmax and sums in fp32, as the decoding attention has them (decode.cu): weights are rounded to the operands' format, their sum is not; hidden keys may hold anything; a result that is NaN while its row's sum
 * is none is made again without the keys of no weight. A row's bits do not depend on the others of its tile, but for a row that is made again: no weight times a value that another row sees, and that is NaN or
 * infinite, is NaN.
 * Registers and shared memory: README.md. Not measured. */
#include "kernels/attention/decode/join.cuh"
#include "kernels/attention/decode/latent.cuh"
#include "kernels/gpu/ptx/tma.cuh"

/* ---- keys ---- */

/* Pieces come by the ring: blocks of keys, or of keys and of values by turns (apart). The number of the piece that block i's keys or values are. */
INLINE int keys_piece(bool apart, int i) { return apart ? 2 * i : i; }
INLINE int values_piece(bool apart, int i) { return apart ? 2 * i + 1 : i; }

/* A half of a block of keys, of which only what the tile's queries see is looked up in the table: another has row -1, as has a page that is not there. */
INLINE attention_slot half_at(const attention_arguments *p, latent_smem m, int slot) {
    const int slots = (int)p->keys, begin = (int)ld_shared_u32(m.tile), count = (int)ld_shared_u32(m.tile + 4), from = slot < begin ? slot - begin + slots : slot - begin;
    if (slot >= slots || (from >= count && from + KEYS / 2 <= slots)) return (attention_slot){-1, 0};
    return slot_of(p, cache_left(m), slot);
}

/* Pieces from .. until - 1, by warp 0. Of halves with row -1 and past the last slot are zeros. */
INLINE void ask(const attention_latent_arguments *g, const latent_shape s, latent_smem m, const decode_walk *walk, bool apart, int from, int until) {
    const attention_arguments *p = &g->decode.call;
    const int lane = threadIdx.x % 32, boxes = g->boxes;
    const uint64_t policy = g->decode.parts * g->decode.bunches == 1 ? TMA_EVICT_FIRST : TMA_EVICT_NORMAL;
#pragma unroll 1
    for (int piece = from; piece < until; piece++) {
        const bool is_values = apart && piece % 2 != 0;
        const int stage = piece % s.stages, slot = first_slot(walk, apart ? piece / 2 : piece), chunks = is_values ? VALUE_CHUNKS : CHUNKS, chunk = lane / boxes, box = lane % boxes;
        const uint32_t full = m.full + BARRIER_BYTES * stage;
        attention_slot at[2];
        at[0] = boxes == 1 ? slot_of(p, cache_left(m), slot) : half_at(p, m, slot);
        at[1] = boxes == 1 ? at[0] : half_at(p, m, slot + KEYS / 2);
        if (lane == 0) {
            st_shared_u32(m.gone + stage * 4, (uint32_t)(at[0].row < 0) | (uint32_t)(at[1].row < 0) << 1);
            mbarrier_arrive_expect(full, chunks * CHUNK_BYTES);
        }
        __syncwarp();
        const int row = box == 0 ? at[0].row : at[1].row;
        if (chunk < chunks)
            tma_load_4d(stage_at(m, stage) + chunk * CHUNK_BYTES + box * (KEYS / 2) * ROW_BYTES, (const tensor_map *)(is_values ? g->decode.map_v : g->decode.map_k), full, chunk * CHUNK_COLS,
                        box == 0 ? at[0].slot : at[1].slot, group_left(m), row < 0 ? p->pages : row, policy);
    }
}

/* ---- scores and weights ---- */

/* As in decode.cu: only a score that is GROWTH powers of 2 above the one that weights are relative to takes its place. */
enum { GROWTH = 8 };

INLINE float unit_of(const latent_shape s) { return s.general ? LOG2_E : 1; }
INLINE float sink_unit(const latent_shape s) { return s.general ? 1 : LOG2_E; }

/* What the two rows of a lane have come to, lane / 4 of its group and 8 further. */
typedef struct latent_rows { float max[2], sum[2]; } latent_rows;

INLINE int row_at(latent_warp w, int r) { return w.group * GROUP + (int)threadIdx.x % 32 / 4 + 8 * r; }

INLINE void leave_views(const attention_decode_arguments *g, const latent_shape s, latent_smem m, const decode_tile *tile) {
    const int row = threadIdx.x;
    attention_view view = {0, 0, 0, 0};
    if (row < LATENT_GROWN_BYTES / 4) st_shared_u32(m.grown + row * 4, 0);
    if (row >= s.rows) return;
    if (row < tile->rows) view = view_of_row(g, tile, row);
    st_shared_u32x4(m.views + row * 16, make_uint4((uint32_t)view.start, (uint32_t)view.count, (uint32_t)view.base, 0));
    st_shared_u32(m.again + row * 4, 0);
}

/* Products become scores; -inf where the key is hidden. */
INLINE void finish_scores(const attention_decode_arguments *g, const latent_shape s, latent_smem m, latent_warp w, int slot, uint32_t gone, float (*scores)[4]) {
    const attention_arguments *p = &g->call;
    const int slots = (int)p->keys;
    if (!s.general) {
        const float factor = p->scale * LOG2_E;
#pragma unroll
        for (int i = 0; i < 4 * BUNCHES; i++) scores[i / 4][i % 4] *= factor;
    }
    if (!s.general && gone == 0 && is_inner(m, slot, slots)) return;
    const decode_tile tile = tile_left(m);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint4 view = ld_shared_u32x4(m.views + row_at(w, r) * 16);
        attention_extra extra = {0, 0};
        if (s.general) extra = extra_of(p, tile.view.cache, head_of(&tile, row_at(w, r)), query_of(&tile, row_at(w, r)));
#pragma unroll
        for (int i = 0; i < 2 * BUNCHES; i++) {
            float *score = &scores[i / 2][2 * r + i % 2];
            const int at = slot + i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
            int from = at - (int)view.x;
            if (from < 0) from += slots;
            if ((gone >> (i / (KEYS / 8)) & 1) != 0 || from >= (int)view.y || at >= slots) *score = -INFINITE;
            else if (s.general) *score = score_of(p, *score, extra, (int)view.z + from);
        }
    }
}

/* The largest of the lanes that have the same rows. */
INLINE float most_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

/* Scores become weights of the warp's own keys, and what sums are to shrink by; of all warps that share the rows the same. */
INLINE void soften(const latent_shape s, latent_smem m, latent_warp w, latent_rows *rows, int parity, float (*scores)[4]) {
    const int lane = threadIdx.x % 32;
    const float unit = unit_of(s), growth = GROWTH / unit;
    float top[2] = {-INFINITE, -INFINITE};
#pragma unroll
    for (int i = 0; i < 4 * BUNCHES; i++) top[i % 4 / 2] = fmaxf(top[i % 4 / 2], scores[i / 4][i % 4]);
    const bool grows = __any_sync(0xffffffff, top[0] > rows->max[0] + growth || top[1] > rows->max[1] + growth);
    if (grows) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float most = most_of_row(top[r]);
            float down = 1;
            if (most > rows->max[r] + growth) {
                down = shrink(rows->max[r], most, unit);
                rows->max[r] = most;
            }
            rows->sum[r] *= down;
            if (w.part == 0 && lane % 4 == 0) st_shared_f32(m.shrinks + (uint32_t)((parity * s.rows + row_at(w, r)) * 4), down);
        }
    }
    if (w.part == 0 && lane == 0) st_shared_u32(m.grown + (uint32_t)(parity * 16 + w.group * 4), grows);
#pragma unroll
    for (int own = 0; own < weighed(s); own++) {
        const int bunch = w.part * weighed(s) + own;
        float weights[4] = {0, 0, 0, 0};
#pragma unroll
        for (int n = own; n < BUNCHES; n += weighed(s))
#pragma unroll
            for (int i = 0; i < 4; i++) weights[i] = n == bunch ? scores[n][i] : weights[i];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float max = rows->max[i / 2];
            weights[i] = weight_of(weights[i], max == -INFINITE ? 0 : max, unit);
        }
        rows->sum[0] += weights[0] + weights[1];
        rows->sum[1] += weights[2] + weights[3];
        leave_weights(s, m, w, parity, bunch, weights);
    }
}

/* Of a group's warps, whose barriers come behind that of all. */
INLINE void meet_of_group(const latent_shape s, latent_warp w) { barrier_sync(1 + w.group, 32 * sharers(s)); }

/* ---- all keys of a block ---- */

INLINE void attend(const attention_latent_arguments *g, const latent_shape s, latent_smem m, const decode_walk *walk, latent_rows *rows, float (*sums)[8][4]) {
    const attention_arguments *p = &g->decode.call;
    const latent_warp w = warp_of(s);
    const ring_barriers ring = {m.full, 0};
    const int blocks = walk->end;
    const bool apart = !g->alike || p->k.data != p->v.data;
    uint4 q[STEPS];
    if (threadIdx.x < 32) ask(g, s, m, walk, apart, 0, min(keys_piece(apart, blocks), s.stages));
    take_q(p, m, w, q);
#pragma unroll 1
    for (int i = -1; i < blocks; i++) {
        if (i >= 0) {
            const ring_turn turn = ring_reader_turn((uint32_t)values_piece(apart, i), s.stages);
            if (apart) ring_wait_full(ring, turn);
            shrink_sums(s, m, i & 1, sums);
            add_values(s, m, i & 1, stage_at(m, turn.stage), sums);
        }
        if (i + 1 < blocks) {
            const ring_turn turn = ring_reader_turn((uint32_t)keys_piece(apart, i + 1), s.stages);
            float products[BUNCHES][4], scores[BUNCHES][4];
            ring_wait_full(ring, turn);
            multiply_keys(s, w, q, stage_at(m, turn.stage), products);
            leave_products(s, m, products);
            meet_of_group(s, w);
            sum_products(s, m, w, products, scores);
            finish_scores(&g->decode, s, m, w, first_slot(walk, i + 1), p->page != 0 ? ld_shared_u32(m.gone + turn.stage * 4) : 0, scores);
            soften(s, m, w, rows, i + 1 & 1, scores);
        }
        __syncthreads();              /* weights are there, and the values in front of them and their own keys have been read: with keys apart two pieces, but for the first one */
        if (threadIdx.x < 32) ask(g, s, m, walk, apart, s.stages + max(apart ? 2 * i + 1 : i, 0), min(keys_piece(apart, blocks), s.stages + (apart ? 2 * i + 3 : i + 1)));
    }
}

/* ---- sums of sums ---- */

/* What the block has come to into shared memory, for all blocks of the cluster. */
INLINE void leave_sums(const latent_shape s, latent_smem m, const decode_tile *tile, const latent_rows *rows, float (*sums)[8][4]) {
    const latent_warp w = warp_of(s);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = row_at(w, r);
        float sum = rows->sum[r];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        if (lane % 4 == 0) st_shared_f32(m.totals + (uint32_t)((w.part * s.rows + row) * 4), sum);
        if (lane % 4 == 0 && w.part == 0) st_shared_f32(m.ends + (uint32_t)row * 8, rows->max[r]);
    }
#pragma unroll
    for (int i = 0; i < 2 * groups(s); i++) {
        const int row = i / 2 * GROUP + lane / 4 + i % 2 * 8;
        if (row >= tile->rows) continue;
#pragma unroll
        for (int n = 0; n < 8; n++) st_shared_f32x2(m.ring + (uint32_t)((row * PITCH + warp * CHUNK_COLS + n * 8 + lane % 4 * 2) * 4), sums[i / 2][n][2 * (i % 2)], sums[i / 2][n][2 * (i % 2) + 1]);
    }
    __syncthreads();
    if ((int)threadIdx.x >= s.rows) return;
    float total = 0;
#pragma unroll
    for (int part = 0; part < sharers(s); part++) total += ld_shared_f32(m.totals + (uint32_t)((part * s.rows + (int)threadIdx.x) * 4));
    st_shared_f32(m.ends + threadIdx.x * 8 + 4, total);
}

/* Four columns of a row over all blocks; end: the largest score, and the sum of weights with the sink's, which is one more key without a value. */
INLINE decode_part join_blocks(const attention_decode_arguments *g, const latent_shape s, const decode_sums *left, const decode_tile *tile, int row, int col) {
    const attention_arguments *p = &g->call;
    const float unit = unit_of(s), sink = p->has_sink ? scaled_sink(load_float(&p->sink, head_of(tile, row) * p->sink_stride), sink_unit(s)) : -INFINITE;
    decode_part all = {{sink, 0}, {0, 0, 0, 0}};
#pragma unroll 4
    for (int from = 0; from < g->splits; from++) all.end.x = fmaxf(all.end.x, ld_cluster_f32(end_of_part(left, from, row)));
#pragma unroll 4
    for (int from = 0; from < g->splits; from++) {
        const decode_part part = part_of(left, from, row, col);
        add_part(&all, &part, all.end.x, unit);
    }
    all.end.y += sink_weight(sink, all.end.x, unit);
    return all;
}

INLINE int64_t out_at(const attention_arguments *p, const decode_tile *tile, int row) {
    return tile->batch * p->out_strides[0] + head_of(tile, row) * p->out_strides[1] + query_of(tile, row) * p->out_strides[2];
}

INLINE uint16_t half_of(const attention_arguments *p, float x) { return (uint16_t)(p->out.format == CUDA_bf16 ? cvt_bf16x2(x, 0) : cvt_f16x2(x, 0)); }

/* The results of every `splits`-th row. */
INLINE void join_rows(const attention_decode_arguments *g, const latent_shape s, latent_smem m, const decode_sums *left, const decode_tile *tile, int rank) {
    const attention_arguments *p = &g->call;
    enum { QUADS = LATENT_VALUE_WIDTH / 4 };
#pragma unroll 1
    for (int quad = threadIdx.x;; quad += THREADS) {
        const int row = rank + g->splits * (quad / QUADS), col = quad % QUADS * 4;
        if (row >= tile->rows) return;
        if (col >= p->value_width) continue;
        const decode_part all = join_blocks(g, s, left, tile, row, col);
        const float y[4] = {all.sums.x, all.sums.y, all.sums.z, all.sums.w}, total = all.end.y;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (col + i >= p->value_width) continue;
            if (y[i] != y[i] && total == total) st_shared_u32(m.again + row * 4, 1);
            ((uint16_t *)p->out.data)[out_at(p, tile, row) + (col + i) * p->out_strides[3]] = half_of(p, total == 0 ? 0 : __fdividef(y[i], total));
        }
    }
}

/* Columns of a row that have come to NaN once more, by a warp, from memory and without the keys of no weight. */
INLINE void repeat_row(const attention_decode_arguments *g, const latent_shape s, const decode_sums *left, const decode_tile *tile, int row) {
    enum { COLUMNS = LATENT_VALUE_WIDTH / 32 };
    const attention_arguments *p = &g->call;
    const int lane = threadIdx.x % 32, keys = (int)p->keys;
    const attention_view view = view_of_row(g, tile, row);
    const attention_extra extra = extra_of(p, view.cache, head_of(tile, row), query_of(tile, row));
    const uint64_t q = q_of_row(p, tile, row), k = p->k.data + 2 * tile->group * p->k_strides[1], v = p->v.data + 2 * tile->group * p->v_strides[1];
    const decode_part end = join_blocks(g, s, left, tile, row, 0);
    const float shift = end.end.x == -INFINITE ? 0 : end.end.x;
    float sums[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) sums[i] = 0;
#pragma unroll 1
    for (int from = 0; from < view.count; from++) {
        const int slot = view.start + from;
        const attention_slot at = slot_of(p, view.cache, slot < keys ? slot : slot - keys);
        if (at.row < 0) continue;
        const uint64_t of_k = k + 2 * (at.row * p->k_strides[0] + at.slot * p->k_strides[2]), of_v = v + 2 * (at.row * p->v_strides[0] + at.slot * p->v_strides[2]);
        float product = 0;
#pragma unroll 1
        for (int i = lane; i < p->width; i += 32) product = fmaf(load_half(s.element, q + 2 * i), load_half(s.element, of_k + 2 * i), product);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) product += __shfl_xor_sync(0xffffffff, product, step);
        const float score = s.general ? score_of(p, product, extra, view.base + from) : product * p->scale * LOG2_E, weight = weight_of(score, shift, unit_of(s));
        if (weight == 0) continue;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if (lane + 32 * i < p->value_width) sums[i] = fmaf(weight, load_half(s.element, of_v + 2 * (lane + 32 * i)), sums[i]);
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        uint16_t *out = (uint16_t *)p->out.data + out_at(p, tile, row) + (lane + 32 * i) * p->out_strides[3];
        if (lane + 32 * i >= p->value_width) continue;
        const float y = load_half(p->out.format == CUDA_bf16 ? ELEMENT_BF16 : ELEMENT_F16, (uint64_t)out);
        if (y != y) *out = half_of(p, __fdividef(sums[i], end.end.y));
    }
}

/* ---- a block ---- */

/* Clusters of a bunch of queries lie along x of the grid, tiles of heads along y. */
INLINE void attention_latent(const attention_latent_arguments *arguments, const latent_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const attention_decode_arguments *g = &arguments->decode;
    const latent_smem m = smem_of(s, shared_address(shared));
    const int rank = (int)cluster_rank();
    float sums[MOST_GROUPS][8][4];
    if (threadIdx.x == 0) {
        const ring_barriers ring = {m.full, 0};
        tma_prefetch((const tensor_map *)g->map_k);
        tma_prefetch((const tensor_map *)g->map_v);
        ring_init(ring, s.stages, 1, 0);
        fence_mbarrier_init();
    }
    grid_release();
    grid_wait();
    decode_tile tile = tile_at(g, (int)cluster_number(), (int)blockIdx.y, s.rows);
    see_tile(&g->call, &tile);
    leave_views(g, s, m, &tile);
    if (threadIdx.x == 0) leave_tile(g, m, &tile);
#pragma unroll
    for (int i = 0; i < 32 * groups(s); i++) sums[i / 32][i % 32 / 4][i % 4] = 0;
    const decode_walk all = walk_of(g, tile.view, rank, KEYS), walk = {KEYS, all.first + all.begin, all.count, 0, all.end - all.begin};
    latent_rows rows = {{-INFINITE, -INFINITE}, {0, 0}};
    __syncthreads();
    attend(arguments, s, m, &walk, &rows, sums);
    tile = tile_left(m);
    leave_sums(s, m, &tile, &rows, sums);
    barrier_of_blocks(g->splits);
    const decode_sums left = {m.ends, m.ring, 1, s.rows, PITCH};
    join_rows(g, s, m, &left, &tile, rank);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x / 32; rank + g->splits * i < tile.rows; i += WARPS)
        if (ld_shared_u32(m.again + (rank + g->splits * i) * 4) != 0) repeat_row(g, s, &left, &tile, rank + g->splits * i);
    if (g->splits > 1) {          /* nobody leaves whose smem others still read */
        cluster_arrive();
        cluster_wait();
    }
}

#define LATENT(name, element, rows, stages, general, cycles)                                                                                      \
    static_assert(rows * PITCH * 4 <= stages * LATENT_STAGE_BYTES, "sums lie where the stages were");                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_latent_##name(const __grid_constant__ attention_latent_arguments arguments) { \
        const latent_shape shape = {element, rows, stages, general};                                                                              \
        attention_latent(&arguments, shape);                                                                                                      \
    }

#define ATTENTION_LATENT(name, ...) LATENT(bf16_##name, ELEMENT_BF16, __VA_ARGS__)
#include "kernels/attention/decode/latent.def"
#undef ATTENTION_LATENT
#define ATTENTION_LATENT(name, ...) LATENT(f16_##name, ELEMENT_F16, __VA_ARGS__)
#include "kernels/attention/decode/latent.def"
#undef ATTENTION_LATENT
