/* The gradients of attention by wgmma where there is a mask or a bias (of position alone: joined.cuh, which shares much of this): the body of the entries of backward.cu, which gives it its constants. A thread block owns 128 rows of one head, keys or queries, and the rows of the other side that they
 * see, or are seen by, go by in blocks. x and y: keys and values, or queries and dout.
 *
 *   the last warpgroup, one thread   empty -> TMA x, y of the others [others, width] (and lse and dout . out of queries) -> full       stages in smem, in columns of 64
 *   warpgroups 0, 1                  64 rows each:
 *       scores [64, others] = x x^T, dweights [64, others] = y y^T    wgmma, smem x smem
 *       weights = 2^(scores - lse)                                    registers, fp32
 *       of keys:  dv += weights y                                     wgmma, registers (bf16) x smem, the others as they lie
 *       pulls = weights (dweights - dout . out)                       registers
 *       dk or dq += pulls x                                           wgmma, registers (bf16) x smem
 *
 * Products of the next block are issued while the last one of this block runs, which holds its stage until then. Warpgroups run freely: the powers of 2 of one fall under the products of the other.
 * Sums stay in registers, and each has one order: no atomics, nothing of the size of the scores anywhere. So scores and dweights are made twice, once for each side: 7 products instead of 5.
 *
 * A mask or a bias comes element by element from memory. Of the mask a launch in front makes squares of 64 x 64: blocks that it hides are not loaded, and of those that it lets be
 * seen as a whole it is not read.
 *
 * Pairs that are not seen have weight 0. A block that a warpgroup does not see at all is passed over; one that it sees all of is not masked. Where an operand is not finite, gradients of what is not
 * seen in such a block may be NaN, too.
 *
 * Registers: 24 (loads), 240. Speed: README.md. */
#ifndef KERNELS_ATTENTION_WGMMA_BACKWARD_CUH
#define KERNELS_ATTENTION_WGMMA_BACKWARD_CUH

#include "kernels/attention/scores.cuh"
#include "kernels/attention/wgmma/backward.h"
#include "kernels/gpu/pipe/schedule.cuh"
#include "kernels/gpu/ptx/bulk.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gpu/ptx/math.cuh"
#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/gpu/ptx/wgmma.cuh"

enum { ROW_BYTES = 128, CHUNK_COLS = 64, GROUP_ROWS = 64 };

/* The constants of an entry; everything in here is known to the compiler. */
typedef struct backward_shape { int element, of_keys, width, value_width, others, stages, more; } backward_shape;

/* Addresses in smem: of the rows that the block owns, and of the stages of the others. */
typedef struct backward_smem { uint32_t x, y, others_x, others_y, lse, share, part, own_full; ring_barriers ring; } backward_smem;

typedef struct backward_tile { int batch, head, first; } backward_tile;

INLINE constexpr bool is_general(const backward_shape s) { return s.more == BACKWARD_GENERAL; }

INLINE bool agreed(bool x) { return __any_sync(0xffffffff, x); }

/* ---- who sees whom ---- */

/* Rows [begin, end) of the other side. */
typedef struct row_range { int begin, end; } row_range;

/* Those that see, or are seen by, a row of this side. Both ends ascend with the row. */
INLINE row_range seen_of(const attention_backward_wgmma_arguments *g, const backward_shape s, int row) {
    row_range range = {max(row + g->begin_shift, 0), min(row + g->end_shift, (int)g->call.keys)};
    if (s.of_keys) range.begin = max(row - g->end_shift + 1, 0), range.end = min(row - g->begin_shift + 1, (int)g->call.queries);
    return range;
}

/* Blocks of the others that one of the tile's rows sees. */
INLINE row_range blocks_of(const attention_backward_wgmma_arguments *g, const backward_shape s, int first) {
    const int rows = (int)(s.of_keys ? g->call.keys : g->call.queries), begin = seen_of(g, s, first).begin, end = seen_of(g, s, min(first + BACKWARD_OWN, rows) - 1).end;
    const row_range blocks = {begin / s.others, begin < end ? (end + s.others - 1) / s.others : begin / s.others};
    return blocks;
}

/* Heads in bunches. Of keys the first tiles are seen by the most queries of a causal mask, of queries the last ones see the most. */
INLINE backward_tile tile_of_number(const attention_backward_wgmma_arguments *g, const backward_shape s, int number) {
    const int heads = (int)(s.of_keys ? g->call.groups : g->call.heads);
    const schedule_place place = schedule_in_bands(number, (int)g->call.batches * heads, g->tiles, g->heads_together);
    const backward_tile tile = {place.row / heads, place.row % heads, (s.of_keys ? place.col : g->tiles - 1 - place.col) * BACKWARD_OWN};
    return tile;
}

/* Heads of the other side that a tile goes through: of keys those that share them. */
INLINE int first_head(const attention_backward_wgmma_arguments *g, const backward_shape s, int head) { return s.of_keys ? head * (int)g->call.shared_heads : head / (int)g->call.shared_heads; }
INLINE int head_count(const attention_backward_wgmma_arguments *g, const backward_shape s) { return s.of_keys ? (int)g->call.shared_heads : 1; }

/* ---- masks and biases ---- */

/* What the mask lets a warpgroup's 64 rows see of a block of the others: one of BACKWARD_NONE, _SOME and _ALL; any: does the thread block see any of it? */
typedef struct square_view { int own, any; } square_view;

/* Of 64 rows from `row` on of this side, and the block; head: of queries. */
INLINE int square_of(const attention_backward_wgmma_arguments *g, const backward_shape s, int batch, int head, int row, int other) {
    const int query = s.of_keys ? other : row, key = s.of_keys ? row : other;
    if (query >= (int)g->call.queries || key >= (int)g->call.keys) return BACKWARD_NONE;
    const int32_t *steps = g->square_steps;
    return __ldg((const uint8_t *)g->squares + batch * steps[0] + head * steps[1] + query / BACKWARD_SQUARE * steps[2] + key / BACKWARD_SQUARE * steps[3]);
}

INLINE square_view squares_of(const attention_backward_wgmma_arguments *g, const backward_shape s, backward_tile tile, int head, int other, int group) {
    if (!g->call.has_mask) {
        const square_view all = {BACKWARD_ALL, BACKWARD_ALL};
        return all;
    }
    const int first = square_of(g, s, tile.batch, head, tile.first, other), second = square_of(g, s, tile.batch, head, tile.first + GROUP_ROWS, other);
    const square_view view = {group == 0 ? first : second, first | second};
    return view;
}

/* ---- loads, by one thread ---- */

/* rows x cols in columns of 64. */
INLINE void load_rows(const void *map, uint32_t to, uint32_t full, int rows, int cols, int row, int head, int batch, uint64_t cache) {
#pragma unroll
    for (int i = 0; i < cols / CHUNK_COLS; i++) tma_load_4d(to + i * rows * ROW_BYTES, (const tensor_map *)map, full, i * CHUNK_COLS, row, head, batch, cache);
}

INLINE void load_others(const attention_backward_wgmma_arguments *g, const backward_shape s, backward_smem m, backward_tile tile, row_range blocks) {
    const void *own_x = s.of_keys ? g->map_k : g->map_q, *own_y = s.of_keys ? g->map_v : g->map_dout, *map_x = s.of_keys ? g->map_q : g->map_k, *map_y = s.of_keys ? g->map_dout : g->map_v;
    const int x_bytes = s.others * s.width * 2, y_bytes = s.others * s.value_width * 2, row_bytes = s.others * 4, vectors = !s.of_keys ? 0 : is_general(s) ? 3 : 2;
    ring_turn turn = ring_writer();
    mbarrier_arrive_expect(m.own_full, BACKWARD_OWN * (s.width + s.value_width) * 2);
    load_rows(own_x, m.x, m.own_full, BACKWARD_OWN, s.width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
    load_rows(own_y, m.y, m.own_full, BACKWARD_OWN, s.value_width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
#pragma unroll 1
    for (int i = 0; i < head_count(g, s); i++) {
        const int head = first_head(g, s, tile.head) + i;
        const int64_t rows = (int64_t)(tile.batch * (int)g->call.heads + head) * g->padded;
#pragma unroll 1
        for (int block = blocks.begin; block < blocks.end; block++) {
            if (squares_of(g, s, tile, s.of_keys ? head : tile.head, block * s.others, 0).any == BACKWARD_NONE) continue;
            ring_wait_empty(m.ring, turn);
            const uint32_t full = ring_expect_full(m.ring, turn, x_bytes + y_bytes + vectors * row_bytes);
            load_rows(map_x, m.others_x + turn.stage * x_bytes, full, s.others, s.width, block * s.others, head, tile.batch, TMA_EVICT_LAST);
            load_rows(map_y, m.others_y + turn.stage * y_bytes, full, s.others, s.value_width, block * s.others, head, tile.batch, TMA_EVICT_LAST);
            if (vectors > 0) bulk_load(m.lse + turn.stage * row_bytes, g->lse + (rows + block * s.others) * 4, row_bytes, full);
            if (vectors > 1) bulk_load(m.share + turn.stage * row_bytes, g->share + (rows + block * s.others) * 4, row_bytes, full);
            if (vectors > 2) bulk_load(m.part + turn.stage * row_bytes, g->part + (rows + block * s.others) * 4, row_bytes, full);
            ring_next(&turn, s.stages);
        }
    }
}

/* ---- products ---- */

/* d [64, others] = own [64, width] others^T, as one group. */
INLINE void multiply_rows(const backward_shape s, const int width, float *d, uint32_t own, uint32_t others) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < width / 16; step++) {
        const uint64_t a = wgmma_descriptor(own + step / 4 * BACKWARD_OWN * ROW_BYTES) + step % 4 * 2, b = wgmma_descriptor(others + step / 4 * s.others * ROW_BYTES) + step % 4 * 2;
        if (s.element == ELEMENT_F16) wgmma_n64_f16(d, a, b, step > 0);
        else wgmma_n64_bf16(d, a, b, step > 0);
    }
    wgmma_commit();
}

/* sums [64, width] += factors [64, others] others, as one group. */
INLINE void add_rows(const backward_shape s, const int width, float *sums, const uint32_t *factors, uint32_t others) {
    uint64_t b = wgmma_descriptor_columns(others, s.others * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < s.others / 16; step++, b += 16 * ROW_BYTES / 16) {
        if (s.element == ELEMENT_F16 && width == 64) wgmma_n64_f16_columns(sums, factors + 4 * step, b, 1);
        else if (s.element == ELEMENT_F16) wgmma_n128_f16_columns(sums, factors + 4 * step, b, 1);
        else if (width == 64) wgmma_n64_bf16_columns(sums, factors + 4 * step, b, 1);
        else wgmma_n128_bf16_columns(sums, factors + 4 * step, b, 1);
    }
    wgmma_commit();
}

/* ---- a block of the others ---- */

/* Of the thread's two rows: what they see, and of queries lse and dout . out. */
typedef struct backward_rows { int begin[2], count[2]; float lse[2], share[2], part[2]; } backward_rows;

/* Products become weights. lse: the block's, smem. */
INLINE void soften(const backward_shape s, float unit, const backward_rows *rows, uint32_t lse, float *scores) {
#pragma unroll
    for (int i = 0; i < s.others / 2; i += 4) {
        float2 of = {0, 0};
        if (s.of_keys) of = ld_shared_f32x2(lse + (i * 2 + threadIdx.x % 4 * 2) * 4);
#pragma unroll
        for (int j = 0; j < 4; j++) scores[i + j] = ex2(fmaf(scores[i + j], unit, -(s.of_keys ? (j % 2 == 0 ? of.x : of.y) : rows->lse[j / 2])));
    }
}

/* The thread's element i of a block that begins at `first`: its row, of two, and its column, which is a row of the other side. */
INLINE constexpr int row_of(const int i) { return i >> 1 & 1; }
INLINE int column_of(const int i, int first) { return first + (int)threadIdx.x % 4 * 2 + i / 4 * 8 + (i & 1); }

/* A pair of the thread's, seen by position. at: of the tile's first query and key in the mask or the bias, in elements; row: the thread's first one. */
INLINE int64_t element_at(const backward_shape s, const int64_t *strides, int row, int column) {
    return s.of_keys ? column * strides[2] + row * strides[3] : row * strides[2] + column * strides[3];
}

INLINE bool is_in_view(const backward_rows *rows, const int i, int column) { return (uint32_t)(column - rows->begin[row_of(i)]) < (uint32_t)rows->count[row_of(i)]; }

/* Which pairs the mask lets be seen, a bit each, of those that are seen by position. mask: of the head. */
INLINE uint32_t read_mask(const attention_backward_wgmma_arguments *g, const backward_shape s, const backward_rows *rows, uint64_t mask, int row, int first) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < s.others / 2; i++) {
        const int column = column_of(i, first);
        if (is_in_view(rows, i, column) && __ldg((const uint8_t *)(mask + element_at(s, g->call.mask_strides, row + 8 * row_of(i), column))) != 0) bits |= 1u << i;
    }
    return bits;
}

/* Products become weights where there is a bias. lse, part: the block's, smem; bias: of the head. */
INLINE void soften_general(const attention_backward_wgmma_arguments *g, const backward_shape s, const backward_rows *rows, uint32_t lse, uint32_t part, uint64_t bias, int row, int first, float *scores) {
    const attention_backward_arguments *p = &g->call;
#pragma unroll
    for (int i = 0; i < s.others / 2; i += 4) {
        const int at = (i * 2 + (int)threadIdx.x % 4 * 2) * 4;
        float2 of = {0, 0}, parts = {0, 0};
        if (s.of_keys) of = ld_shared_f32x2(lse + at), parts = ld_shared_f32x2(part + at);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int column = column_of(i + j, first);
            float score = scores[i + j] * p->scale;
            if (is_in_view(rows, i + j, column)) score = biased(score, load_bias(p->bias.format, bias + element_at(s, p->bias_strides, row + 8 * row_of(i + j), column) * p->bias.element_bytes));
            const float from = s.of_keys ? (j % 2 == 0 ? of.x : of.y) : rows->lse[j / 2], share = s.of_keys ? (j % 2 == 0 ? parts.x : parts.y) : rows->part[j / 2];
            scores[i + j] = ex2((score - from) * LOG2_E) * share;
        }
    }
}

/* Weights of pairs without a bit become 0. */
INLINE void hide_bits(const backward_shape s, uint32_t bits, float *weights) {
#pragma unroll
    for (int i = 0; i < s.others / 2; i++)
        if ((bits >> i & 1) == 0) weights[i] = 0;
}

/* Weights of pairs that are not seen become 0. first: the block's first row. */
INLINE void hide(const backward_shape s, const backward_rows *rows, int first, float *weights) {
    const int col = first + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < s.others / 2; i++)
        if ((uint32_t)(col + i / 4 * 8 + (i & 1) - rows->begin[i >> 1 & 1]) >= (uint32_t)rows->count[i >> 1 & 1]) weights[i] = 0;
}

/* dweights become pulls. */
INLINE void pull(const backward_shape s, const backward_rows *rows, uint32_t share, const float *weights, float *dweights) {
#pragma unroll
    for (int i = 0; i < s.others / 2; i += 4) {
        float2 of = {0, 0};
        if (s.of_keys) of = ld_shared_f32x2(share + (i * 2 + threadIdx.x % 4 * 2) * 4);
#pragma unroll
        for (int j = 0; j < 4; j++) dweights[i + j] = weights[i + j] * (dweights[i + j] - (s.of_keys ? (j % 2 == 0 ? of.x : of.y) : rows->share[j / 2]));
    }
}

/* As the first operand of a product: pairs of the others, of each step of 16. */
INLINE void pack(const backward_shape s, const float *x, uint32_t *pairs) {
#pragma unroll
    for (int i = 0; i < s.others / 4; i++) pairs[i] = s.element == ELEMENT_F16 ? cvt_f16x2(x[2 * i], x[2 * i + 1]) : cvt_bf16x2(x[2 * i], x[2 * i + 1]);
}

INLINE void release(const ring_barriers ring, ring_turn turn) {
    if (threadIdx.x % 32 == 0) ring_arrive_empty(ring, turn);
}

/* Are registers so few that scores and dweights are not both under way beside the pulls of the block before? */
INLINE constexpr bool is_tight(const backward_shape s) { return s.of_keys && s.width + s.value_width > 128; }

/* The sums of a warpgroup's 64 rows from row `first` on: of x dq or dk, without the scale, and of y dv. */
INLINE void make_sums(const attention_backward_wgmma_arguments *g, const backward_shape s, backward_smem m, backward_tile tile, row_range blocks, int group, const backward_rows *rows, float *of_x, float *of_y) {
    const int first = tile.first + group * GROUP_ROWS, x_bytes = s.others * s.width * 2, y_bytes = s.others * s.value_width * 2;
    const row_range begins = seen_of(g, s, first), ends = seen_of(g, s, first + GROUP_ROWS - 1);
    const uint32_t x = m.x + group * GROUP_ROWS * ROW_BYTES, y = m.y + group * GROUP_ROWS * ROW_BYTES;
    const float unit = g->call.scale * LOG2_E;
    const int own_row = first + (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4;
    ring_turn turn = ring_reader(), before = turn;
    bool holds = false;
#pragma unroll 1
    for (int i = 0; agreed(i < head_count(g, s)); i++) {
        const int head = s.of_keys ? first_head(g, s, tile.head) + i : tile.head;
        const uint64_t mask = g->call.mask.data + tile.batch * g->call.mask_strides[0] + head * g->call.mask_strides[1];
        const uint64_t bias = g->call.bias.data + (tile.batch * g->call.bias_strides[0] + head * g->call.bias_strides[1]) * g->call.bias.element_bytes;
#pragma unroll 1
        for (int block = blocks.begin; agreed(block < blocks.end); block++) {
            const int row = block * s.others;
            const square_view view = squares_of(g, s, tile, head, row, group);
            if (agreed(view.any == BACKWARD_NONE)) continue;
            const uint32_t others_x = m.others_x + turn.stage * x_bytes, others_y = m.others_y + turn.stage * y_bytes;
            float scores[64], dweights[64];
            uint32_t factors[32];
            ring_wait_full(m.ring, turn);
            if (agreed(view.own == BACKWARD_NONE || row >= ends.end || row + s.others <= begins.begin)) {
                wgmma_wait(0);
                if (agreed(holds)) release(m.ring, before);
                holds = false;
                release(m.ring, turn);
                ring_next(&turn, s.stages);
                continue;
            }
            multiply_rows(s, s.width, scores, x, others_x);
            if (!is_tight(s)) multiply_rows(s, s.value_width, dweights, y, others_y);
            const bool reads_mask = agreed(view.own == BACKWARD_SOME);
            uint32_t bits = 0;
            if (reads_mask) bits = read_mask(g, s, rows, mask, own_row, row);
            if (is_tight(s)) wgmma_wait(0);
            else wgmma_wait(1);
            if (agreed(holds)) release(m.ring, before);
            if (is_tight(s)) multiply_rows(s, s.value_width, dweights, y, others_y);
            if (is_general(s)) soften_general(g, s, rows, m.lse + turn.stage * s.others * 4, m.part + turn.stage * s.others * 4, bias, own_row, row, scores);
            else soften(s, unit, rows, m.lse + turn.stage * s.others * 4, scores);
            if (agreed(row < ends.begin || row + s.others > begins.end)) hide(s, rows, row, scores);
            if (reads_mask) hide_bits(s, bits, scores);
            if (s.of_keys) {
                pack(s, scores, factors);
                add_rows(s, s.value_width, of_y, factors, others_y);
                wgmma_wait(1);
            } else {
                wgmma_wait(0);
            }
            uint32_t pulls[32];
            pull(s, rows, m.share + turn.stage * s.others * 4, scores, dweights);
            pack(s, dweights, pulls);
            add_rows(s, s.width, of_x, pulls, others_x);
            before = turn;
            holds = true;
            ring_next(&turn, s.stages);
        }
    }
    wgmma_wait(0);
    if (agreed(holds)) release(m.ring, before);
}

/* ---- results ---- */

/* Among four lanes: value i of lane j becomes value j of lane i. */
INLINE void turn_quads(uint32_t *x) {
    const bool is_odd = (threadIdx.x & 1) != 0, is_high = (threadIdx.x & 2) != 0;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t got = __shfl_xor_sync(0xffffffff, is_odd ? x[i] : x[i + 1], 1);
        x[i] = is_odd ? got : x[i], x[i + 1] = is_odd ? x[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t got = __shfl_xor_sync(0xffffffff, is_high ? x[i] : x[i + 2], 2);
        x[i] = is_high ? got : x[i], x[i + 2] = is_high ? x[i + 2] : got;
    }
}

/* Eight numbers of 16 bits, at a multiple of 4 bytes. */
INLINE void store_eight(uint16_t *at, const uint32_t *pairs) {
    if ((uint64_t)at % 16 == 0) {
        *(uint4 *)at = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) ((uint32_t *)at)[i] = pairs[i];
}

/* sums [64, width] x factor to rows of gmem from row `first` on, of which there are count. Of 32 columns each lane of four stores eight. */
INLINE void store_rows(const int element, const cuda_array *array, const int64_t strides[4], backward_tile tile, int first, int count, int cols, const int width, float factor, const float *sums) {
    const int row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 8;
    uint16_t *to = (uint16_t *)array->data + tile.batch * strides[0] + tile.head * strides[1] + col;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint16_t *at = to + (row + 8 * half) * strides[2];
#pragma unroll
        for (int j = 0; j < width / 8; j += 4) {
            uint32_t pairs[4];
#pragma unroll
            for (int i = 0; i < 4; i++) pairs[i] = (element == ELEMENT_F16 ? cvt_f16x2 : cvt_bf16x2)(sums[4 * (j + i) + 2 * half] * factor, sums[4 * (j + i) + 2 * half + 1] * factor);
            turn_quads(pairs);
            if (row + 8 * half < count && 8 * j + col < cols) store_eight(at + 8 * j, pairs);
        }
    }
}

INLINE void make_tile(const attention_backward_wgmma_arguments *g, const backward_shape s, backward_smem m, backward_tile tile, row_range blocks, int group) {
    const int first = tile.first + group * GROUP_ROWS, row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, count = (int)(s.of_keys ? g->call.keys : g->call.queries);
    float of_x[64], of_y[64];
    backward_rows rows;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const row_range seen = seen_of(g, s, row + 8 * half);
        const int64_t at = (int64_t)(tile.batch * (int)g->call.heads + tile.head) * g->padded + row + 8 * half;
        rows.begin[half] = seen.begin;
        rows.count[half] = row + 8 * half >= count ? 0 : max(seen.end - seen.begin, 0);
        rows.lse[half] = s.of_keys ? 0 : ((const float *)g->lse)[at];
        rows.share[half] = s.of_keys ? 0 : ((const float *)g->share)[at];
        rows.part[half] = s.of_keys || !is_general(s) ? 1 : ((const float *)g->part)[at];
    }
#pragma unroll
    for (int i = 0; i < s.width / 2; i++) of_x[i] = 0;
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) of_y[i] = 0;
    mbarrier_wait(m.own_full, 0);
    make_sums(g, s, m, tile, blocks, group, &rows, of_x, of_y);
    if (s.of_keys) store_rows(s.element, &g->call.dv, g->call.dv_strides, tile, first, count, (int)g->call.value_width, s.value_width, 1, of_y);
    if (s.of_keys) store_rows(s.element, &g->call.dk, g->call.dk_strides, tile, first, count, (int)g->call.width, s.width, g->call.scale, of_x);
    else store_rows(s.element, &g->call.dq, g->call.dq_strides, tile, first, count, (int)g->call.width, s.width, g->call.scale, of_x);
}

/* ---- a thread block ---- */

INLINE backward_smem smem_of(const backward_shape s, uint32_t base) {
    backward_smem m;
    m.x = base;
    m.y = m.x + BACKWARD_OWN * s.width * 2;
    m.others_x = m.y + BACKWARD_OWN * s.value_width * 2;
    m.others_y = m.others_x + s.stages * s.others * s.width * 2;
    m.lse = m.others_y + s.stages * s.others * s.value_width * 2;
    m.share = m.lse + (s.of_keys ? s.stages * s.others * 4 : 0);
    m.part = m.share + (s.of_keys ? s.stages * s.others * 4 : 0);
    m.own_full = m.part + (s.of_keys && is_general(s) ? s.stages * s.others * 4 : 0);
    m.ring = ring_at(m.own_full + BARRIER_BYTES, s.stages);
    return m;
}

INLINE void attention_backward(const attention_backward_wgmma_arguments *g, const backward_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const backward_smem m = smem_of(s, shared_address(shared));
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    const backward_tile tile = tile_of_number(g, s, blockIdx.x);
    const row_range blocks = blocks_of(g, s, tile.first);
    if (threadIdx.x == 0) {
        mbarrier_init(m.own_full, 1);
        ring_init(m.ring, s.stages, 1, 8);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (role == 2) {
        setmaxnreg_dec(24);
        if (threadIdx.x / 32 == 8 && elect_one()) load_others(g, s, m, tile, blocks);
    } else {
        setmaxnreg_inc(240);
        make_tile(g, s, m, tile, blocks, role);
    }
}

/* ---- statistics: 8 or 16 lanes for each query, those of the padding, too ---- */

/* The part of a query whose keys are all hidden by finite numbers: one over the sum of e^(score - lse), where lse has lost how many there are. By one lane, as such rows are seldom long. */
INLINE float part_of_hidden(const attention_backward_wgmma_arguments *g, const int element, int batch, int head, int query, float lse) {
    const attention_backward_arguments *p = &g->call;
    const uint64_t q = p->q.data + 2 * (batch * p->q_strides[0] + head * p->q_strides[1] + query * p->q_strides[2]), k = p->k.data + 2 * (batch * p->k_strides[0] + head / p->shared_heads * p->k_strides[1]);
    const uint64_t mask = p->mask.data + batch * p->mask_strides[0] + head * p->mask_strides[1] + query * p->mask_strides[2];
    const int64_t bias = batch * p->bias_strides[0] + head * p->bias_strides[1] + query * p->bias_strides[2];
    float sum = 0;
#pragma unroll 1
    for (int key = max(query + g->begin_shift, 0); key < min(query + g->end_shift, (int)p->keys); key++) {
        float product = 0;
        if (p->has_mask && *(const uint8_t *)(mask + key * p->mask_strides[3]) == 0) continue;
#pragma unroll 1
        for (int i = 0; i < (int)p->width; i++) product = fmaf(load_half(element, q + 2 * i), load_half(element, k + 2 * (key * p->k_strides[2] + i)), product);
        const float score = product * p->scale;
        sum += ex2(((p->has_bias ? biased(score, load_bias(p->bias.format, p->bias.data + (bias + key * p->bias_strides[3]) * p->bias.element_bytes)) : score) - lse) * LOG2_E);
    }
    return 1 / sum;
}

/* What two elements of dout and out add to dout . out. */
INLINE float add_share(const int element, uint32_t a, uint32_t b, float share) {
    if (element == ELEMENT_F16) return fmaf(cvt_f32_f16((uint16_t)(a >> 16)), cvt_f32_f16((uint16_t)(b >> 16)), fmaf(cvt_f32_f16((uint16_t)a), cvt_f32_f16((uint16_t)b), share));
    share = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), share);
    return fmaf(__uint_as_float(a & 0xffff0000), __uint_as_float(b & 0xffff0000), share);
}

/* The lane's part of a row's dout . out. lanes: that share the row. */
INLINE float share_of(const int element, const uint32_t *out, const uint32_t *dout, int width, int lane, int lanes, bool is_wide) {
    float share = 0;
    for (int i = lane; is_wide && i < width / 8; i += lanes) {
        const uint4 a = __ldcs((const uint4 *)out + i), b = __ldcs((const uint4 *)dout + i);
        share = add_share(element, a.w, b.w, add_share(element, a.z, b.z, add_share(element, a.y, b.y, add_share(element, a.x, b.x, share))));
    }
    for (int i = lane; !is_wide && i < width / 2; i += lanes) share = add_share(element, out[i], dout[i], share);
    return share;
}

/* Rows of out and dout at multiples of 16 bytes? */
INLINE bool has_pieces(const attention_backward_arguments *p) {
    const uint64_t out = p->out_strides[0] | p->out_strides[1] | p->out_strides[2], dout = p->dout_strides[0] | p->dout_strides[1] | p->dout_strides[2];
    return (p->out.data | p->dout.data | (out | dout) * 2) % 16 == 0;
}

INLINE void make_statistics(const attention_backward_wgmma_arguments *g, const int element) {
    const attention_backward_arguments *p = &g->call;
    const int lanes = p->value_width <= 64 ? 8 : 16, at_once = 32 / lanes, lane = threadIdx.x % 32 % lanes, thread = (int)(blockIdx.x * blockDim.x + threadIdx.x), threads = (int)(gridDim.x * blockDim.x);
    const int rows = (int)(p->batches * p->heads) * g->padded;
    const bool is_wide = has_pieces(p);
    for (int i = thread; i < g->turn_count; i += threads) ((uint32_t *)g->turns)[i] = 0;
    for (int first = thread / 32 * at_once; first < rows; first += threads / 32 * at_once) {
        const int row = first + (int)threadIdx.x % 32 / lanes, query = row % g->padded, head = row / g->padded % (int)p->heads, batch = row / g->padded / (int)p->heads;
        const bool is_there = row < rows && query < (int)p->queries;
        const uint32_t *out = (const uint32_t *)((const uint16_t *)p->out.data + batch * p->out_strides[0] + head * p->out_strides[1] + query * p->out_strides[2]);
        const uint32_t *dout = (const uint32_t *)((const uint16_t *)p->dout.data + batch * p->dout_strides[0] + head * p->dout_strides[1] + query * p->dout_strides[2]);
        float share = is_there ? share_of(element, out, dout, (int)p->value_width, lane, lanes, is_wide) : 0;
#pragma unroll
        for (int step = 8; step > 0; step /= 2)
            if (step < lanes) share += __shfl_xor_sync(0xffffffff, share, step);
        if (lane != 0 || row >= rows) continue;
        const float lse = is_there ? ((const float *)p->lse.data)[batch * p->lse_strides[0] + head * p->lse_strides[1] + query * p->lse_strides[2]] : -INFINITE;
        ((float *)g->lse)[row] = lse == -INFINITE ? INFINITE : g->is_general ? lse : lse * LOG2_E;
        ((float *)g->share)[row] = share;
        if (g->is_general) ((float *)g->part)[row] = lse > -INFINITE && lse <= OP_ATTENTION_HIDES ? part_of_hidden(g, element, batch, head, query, lse) : 1;
    }
}

/* ---- a mask's squares: a warp for each ---- */

INLINE void make_squares(const attention_backward_wgmma_arguments *g) {
    const attention_backward_arguments *p = &g->call;
    const int lane = threadIdx.x % 32, warps = (int)(gridDim.x * blockDim.x / 32), *dims = g->square_dims, count = dims[0] * dims[1] * dims[2] * dims[3];
    for (int square = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32; square < count; square += warps) {
        const int of_keys = square % dims[3], of_queries = square / dims[3] % dims[2], head = square / dims[3] / dims[2] % dims[1], batch = square / dims[3] / dims[2] / dims[1];
        const int queries = p->mask_strides[2] == 0 ? 1 : min((int)p->queries - of_queries * BACKWARD_SQUARE, (int)BACKWARD_SQUARE), keys = p->mask_strides[3] == 0 ? 1 : min((int)p->keys - of_keys * BACKWARD_SQUARE, (int)BACKWARD_SQUARE);
        const uint64_t mask = p->mask.data + batch * p->mask_strides[0] + head * p->mask_strides[1] + of_queries * BACKWARD_SQUARE * p->mask_strides[2] + of_keys * BACKWARD_SQUARE * p->mask_strides[3];
        bool any = false, all = true;
        for (int query = 0; query < queries; query++) {
            for (int key = lane; key < keys; key += 32) {
                const bool seen = __ldg((const uint8_t *)(mask + query * p->mask_strides[2] + key * p->mask_strides[3])) != 0;
                any = any || seen;
                all = all && seen;
            }
        }
        any = __any_sync(0xffffffff, any);
        all = __all_sync(0xffffffff, all);
        if (lane == 0) ((uint8_t *)g->squares)[square] = (uint8_t)(all ? BACKWARD_ALL : any ? BACKWARD_SOME : BACKWARD_NONE);
    }
}

#endif
