/* The gradients of attention by wgmma: the body of the entries of backward.cu, which gives it its constants. A thread block owns 128 rows of one head, keys or queries, and the rows of the other side that they
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
 * Pairs that are not seen have weight 0. A block that a warpgroup does not see at all is passed over; one that it sees all of is not masked. Where an operand is not finite, gradients of what is not
 * seen in such a block may be NaN, too.
 *
 * Registers: 24 (loads), 240. Speed: README.md. */
#ifndef KERNELS_ATTENTION_WGMMA_BACKWARD_CUH
#define KERNELS_ATTENTION_WGMMA_BACKWARD_CUH

#include "kernels/attention/wgmma/backward.h"
#include "kernels/gpu/pipe/schedule.cuh"
#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/ptx/bulk.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gpu/ptx/math.cuh"
#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/gpu/ptx/wgmma.cuh"

#define LOG2_E 1.4426950408889634f

enum { ROW_BYTES = 128, CHUNK_COLS = 64, GROUP_ROWS = 64 };

/* The constants of an entry; everything in here is known to the compiler. */
typedef struct backward_shape { int of_keys, width, value_width, others, stages; } backward_shape;

/* Addresses in smem: of the rows that the block owns, and of the stages of the others. */
typedef struct backward_smem { uint32_t x, y, others_x, others_y, lse, share, own_full; ring_barriers ring; } backward_smem;

typedef struct backward_tile { int batch, head, first; } backward_tile;

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
INLINE backward_tile tile_of_block(const attention_backward_wgmma_arguments *g, const backward_shape s) {
    const int heads = (int)(s.of_keys ? g->call.groups : g->call.heads);
    const schedule_place place = schedule_in_bands(blockIdx.x, (int)g->call.batches * heads, g->tiles, g->heads_together);
    const backward_tile tile = {place.row / heads, place.row % heads, (s.of_keys ? place.col : g->tiles - 1 - place.col) * BACKWARD_OWN};
    return tile;
}

/* Heads of the other side that a tile goes through: of keys those that share them. */
INLINE int first_head(const attention_backward_wgmma_arguments *g, const backward_shape s, int head) { return s.of_keys ? head * (int)g->call.shared_heads : head / (int)g->call.shared_heads; }
INLINE int head_count(const attention_backward_wgmma_arguments *g, const backward_shape s) { return s.of_keys ? (int)g->call.shared_heads : 1; }

/* ---- loads, by one thread ---- */

/* rows x cols in columns of 64. */
INLINE void load_rows(const void *map, uint32_t to, uint32_t full, int rows, int cols, int row, int head, int batch, uint64_t cache) {
#pragma unroll
    for (int i = 0; i < cols / CHUNK_COLS; i++) tma_load_4d(to + i * rows * ROW_BYTES, (const tensor_map *)map, full, i * CHUNK_COLS, row, head, batch, cache);
}

INLINE void load_others(const attention_backward_wgmma_arguments *g, const backward_shape s, backward_smem m, backward_tile tile, row_range blocks) {
    const void *own_x = s.of_keys ? g->map_k : g->map_q, *own_y = s.of_keys ? g->map_v : g->map_dout, *map_x = s.of_keys ? g->map_q : g->map_k, *map_y = s.of_keys ? g->map_dout : g->map_v;
    const int x_bytes = s.others * s.width * 2, y_bytes = s.others * s.value_width * 2, row_bytes = s.others * 4;
    ring_turn turn = ring_writer();
    mbarrier_arrive_expect(m.own_full, BACKWARD_OWN * (s.width + s.value_width) * 2);
    load_rows(own_x, m.x, m.own_full, BACKWARD_OWN, s.width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
    load_rows(own_y, m.y, m.own_full, BACKWARD_OWN, s.value_width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
#pragma unroll 1
    for (int i = 0; i < head_count(g, s); i++) {
        const int head = first_head(g, s, tile.head) + i;
        const int64_t rows = (int64_t)(tile.batch * (int)g->call.heads + head) * g->padded;
#pragma unroll 1
        for (int block = blocks.begin; block < blocks.end; block++, ring_next(&turn, s.stages)) {
            ring_wait_empty(m.ring, turn);
            const uint32_t full = ring_expect_full(m.ring, turn, x_bytes + y_bytes + (s.of_keys ? 2 * row_bytes : 0));
            load_rows(map_x, m.others_x + turn.stage * x_bytes, full, s.others, s.width, block * s.others, head, tile.batch, TMA_EVICT_LAST);
            load_rows(map_y, m.others_y + turn.stage * y_bytes, full, s.others, s.value_width, block * s.others, head, tile.batch, TMA_EVICT_LAST);
            if (!s.of_keys) continue;
            bulk_load(m.lse + turn.stage * row_bytes, g->lse + (rows + block * s.others) * 4, row_bytes, full);
            bulk_load(m.share + turn.stage * row_bytes, g->share + (rows + block * s.others) * 4, row_bytes, full);
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
        if (s.others == 64) wgmma_n64_bf16(d, a, b, step > 0);
        else wgmma_n128_bf16(d, a, b, step > 0);
    }
    wgmma_commit();
}

/* sums [64, width] += factors [64, others] others, as one group. */
INLINE void add_rows(const backward_shape s, const int width, float *sums, const uint32_t *factors, uint32_t others) {
    uint64_t b = wgmma_descriptor_columns(others, s.others * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < s.others / 16; step++, b += 16 * ROW_BYTES / 16) {
        if (width == 64) wgmma_n64_bf16_columns(sums, factors + 4 * step, b, 1);
        else wgmma_n128_bf16_columns(sums, factors + 4 * step, b, 1);
    }
    wgmma_commit();
}

/* ---- a block of the others ---- */

/* Of the thread's two rows: what they see, and of queries lse and dout . out. */
typedef struct backward_rows { int begin[2], count[2]; float lse[2], share[2]; } backward_rows;

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
    for (int i = 0; i < s.others / 4; i++) pairs[i] = cvt_bf16x2(x[2 * i], x[2 * i + 1]);
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
    ring_turn turn = ring_reader(), before = turn;
    bool holds = false;
#pragma unroll 1
    for (int i = 0; agreed(i < head_count(g, s)); i++) {
#pragma unroll 1
        for (int block = blocks.begin; agreed(block < blocks.end); block++, ring_next(&turn, s.stages)) {
            const int row = block * s.others;
            const uint32_t others_x = m.others_x + turn.stage * x_bytes, others_y = m.others_y + turn.stage * y_bytes;
            float scores[64], dweights[64];
            uint32_t factors[32];
            ring_wait_full(m.ring, turn);
            if (agreed(row >= ends.end || row + s.others <= begins.begin)) {
                wgmma_wait(0);
                if (agreed(holds)) release(m.ring, before);
                holds = false;
                release(m.ring, turn);
                continue;
            }
            multiply_rows(s, s.width, scores, x, others_x);
            if (!is_tight(s)) multiply_rows(s, s.value_width, dweights, y, others_y);
            if (is_tight(s)) wgmma_wait(0);
            else wgmma_wait(1);
            if (agreed(holds)) release(m.ring, before);
            if (is_tight(s)) multiply_rows(s, s.value_width, dweights, y, others_y);
            soften(s, unit, rows, m.lse + turn.stage * s.others * 4, scores);
            if (agreed(row < ends.begin || row + s.others > begins.end)) hide(s, rows, row, scores);
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
        }
    }
    wgmma_wait(0);
    if (agreed(holds)) release(m.ring, before);
}

/* ---- results ---- */

/* sums [64, width] x factor to rows of gmem from row `first` on, of which there are count. */
INLINE void store_rows(const cuda_array *array, const int64_t strides[4], backward_tile tile, int first, int count, int cols, const int width, float factor, const float *sums) {
    const int row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
    uint16_t *to = (uint16_t *)array->data + tile.batch * strides[0] + tile.head * strides[1] + col;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (row + 8 * half >= count) continue;
        uint16_t *at = to + (row + 8 * half) * strides[2];
#pragma unroll
        for (int j = 0; j < width / 8; j++)
            if (8 * j < cols) *(uint32_t *)(at + 8 * j) = cvt_bf16x2(sums[4 * j + 2 * half] * factor, sums[4 * j + 2 * half + 1] * factor);
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
        rows.count[half] = max(seen.end - seen.begin, 0);
        rows.lse[half] = s.of_keys ? 0 : ((const float *)g->lse)[at];
        rows.share[half] = s.of_keys ? 0 : ((const float *)g->share)[at];
    }
#pragma unroll
    for (int i = 0; i < s.width / 2; i++) of_x[i] = 0;
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) of_y[i] = 0;
    mbarrier_wait(m.own_full, 0);
    make_sums(g, s, m, tile, blocks, group, &rows, of_x, of_y);
    if (s.of_keys) store_rows(&g->call.dv, g->call.dv_strides, tile, first, count, (int)g->call.value_width, s.value_width, 1, of_y);
    if (s.of_keys) store_rows(&g->call.dk, g->call.dk_strides, tile, first, count, (int)g->call.width, s.width, g->call.scale, of_x);
    else store_rows(&g->call.dq, g->call.dq_strides, tile, first, count, (int)g->call.width, s.width, g->call.scale, of_x);
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
    m.own_full = m.share + (s.of_keys ? s.stages * s.others * 4 : 0);
    m.ring = ring_at(m.own_full + BARRIER_BYTES, s.stages);
    return m;
}

INLINE void attention_backward(const attention_backward_wgmma_arguments *g, const backward_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const backward_smem m = smem_of(s, shared_address(shared));
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    const backward_tile tile = tile_of_block(g, s);
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

/* ---- statistics: a warp for each query, those of the padding, too ---- */

INLINE void make_statistics(const attention_backward_wgmma_arguments *g) {
    const attention_backward_arguments *p = &g->call;
    const int lane = threadIdx.x % 32, warps = (int)(gridDim.x * blockDim.x / 32), rows = (int)(p->batches * p->heads) * g->padded;
    for (int row = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows; row += warps) {
        const int query = row % g->padded, head = row / g->padded % (int)p->heads, batch = row / g->padded / (int)p->heads;
        const bool is_there = query < (int)p->queries;
        const uint32_t *out = (const uint32_t *)((const uint16_t *)p->out.data + batch * p->out_strides[0] + head * p->out_strides[1] + query * p->out_strides[2]);
        const uint32_t *dout = (const uint32_t *)((const uint16_t *)p->dout.data + batch * p->dout_strides[0] + head * p->dout_strides[1] + query * p->dout_strides[2]);
        float share = 0;
        for (int i = lane; is_there && i < (int)p->value_width / 2; i += 32) {
            const uint32_t a = out[i], b = dout[i];
            share = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), share);
            share = fmaf(__uint_as_float(a & 0xffff0000), __uint_as_float(b & 0xffff0000), share);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) share += __shfl_xor_sync(0xffffffff, share, step);
        if (lane != 0) continue;
        const float lse = is_there ? ((const float *)p->lse.data)[batch * p->lse_strides[0] + head * p->lse_strides[1] + query * p->lse_strides[2]] : -INFINITE;
        ((float *)g->lse)[row] = lse == -INFINITE ? INFINITE : lse * LOG2_E;
        ((float *)g->share)[row] = share;
    }
}

#endif
