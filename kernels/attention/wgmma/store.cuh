/* The end of a tile, in the attention kernel by wgmma: sums over their rows' sums, rounded, through shared memory and TMA, or in blocks of e4m3 straight from registers. */
#ifndef KERNELS_ATTENTION_WGMMA_STORE_CUH
#define KERNELS_ATTENTION_WGMMA_STORE_CUH

#include "kernels/attention/wgmma/soften.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/quantize/blocks_wgmma.cuh"

/* Named barriers: ORDER + i opens the products of warpgroup i, GROUP_BARRIER + i is met by its threads. */
enum { ORDER = 1, GROUP_BARRIER = 5 };

/* Where the pair of columns from col on of a row of the tile is staged. */
INLINE uint32_t staged(const attention_shape s, attention_smem m, int row, int col) {
    return m.out + col / CHUNK_COLS * (s.groups * 64 * ROW_BYTES) + row * ROW_BYTES + ((col % CHUNK_COLS / 8 ^ row % 8) << 4) + col % 8 * 2;
}

/* A row of the tile and what it sees, in memory. */
typedef struct row_source {
    attention_view view;
    attention_extra extra;
    uint64_t q, k, v;
} row_source;

INLINE row_source source_of(const attention_wgmma_arguments *g, const attention_shape s, attention_work work, int row) {
    const attention_arguments *p = &g->call;
    const int query = work.first + row, begin = begin_of(g, query);
    const attention_view interval = {begin, end_of(g, query) - begin, begin, work.batch};
    const int64_t group = work.head / (int)p->shared_heads;
    row_source x;
    x.view = s.placed ? view_of(p, work.batch, query) : interval;
    x.extra = extra_of(p, x.view.cache, work.head, query);
    x.q = p->q.data + 2 * (work.batch * p->q_strides[0] + work.head * p->q_strides[1] + query * p->q_strides[2]);
    x.k = p->k.data + 2 * (x.view.cache * p->k_strides[0] + group * p->k_strides[1]);
    x.v = p->v.data + 2 * (x.view.cache * p->v_strides[0] + group * p->v_strides[1]);
    return x;
}

INLINE int slot_of(const attention_arguments *p, const row_source *x, int from) {
    const int slots = (int)p->keys;
    return x->view.start + from < slots ? x->view.start + from : x->view.start + from - slots;
}

/* The score of the key `from` behind the first that the row sees, or the product (ATTENTION_PLAIN); by one warp. */
INLINE float score_at(const attention_arguments *p, const attention_shape s, const row_source *x, int from) {
    const int lane = threadIdx.x % 32, slot = slot_of(p, x, from);
    float product = 0;
#pragma unroll 1
    for (int at = 0; at < (int)p->width; at += 32)
        if (at + lane < (int)p->width) product = fmaf(load_half(s.element, x->q + 2 * (at + lane)), load_half(s.element, x->k + 2 * (slot * p->k_strides[2] + at + lane)), product);
    for (int step = 16; step > 0; step /= 2) product += __shfl_xor_sync(0xffffffff, product, step);
    return s.scores != ATTENTION_PLAIN ? score_of(p, product, x->extra, x->view.base + from) : product;
}

/* The largest score of a row and the sum of its weights, of which hidden keys were not multiplied although nothing else has weight. */
INLINE void weigh_row(const attention_wgmma_arguments *g, const attention_shape s, attention_work work, int row, float *max, float *sum) {
    const attention_arguments *p = &g->call;
    const row_source x = source_of(g, s, work, row);
    const float sink = p->has_sink ? load_float(&p->sink, work.head * p->sink_stride) : -INFINITE;
    *max = sink;
#pragma unroll 1
    for (int from = 0; agreed(from < x.view.count); from++) *max = fmaxf(*max, score_at(p, s, &x, from));
    *sum = sink_weight(sink, *max, LOG2_E);
#pragma unroll 1
    for (int from = 0; agreed(from < x.view.count); from++) *sum += weight_of(score_at(p, s, &x, from), *max == -INFINITE ? 0 : *max, LOG2_E);
}

/* A row of the tile once more, by one warp, straight from memory and without the keys of no weight, into its place among the results. */
INLINE void repeat_row(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_work work, int row, float max, float sum) {
    const attention_arguments *p = &g->call;
    const row_source x = source_of(g, s, work, row);
    const float unit = unit_of(p, s), shift = max == -INFINITE ? 0 : s.scores != ATTENTION_PLAIN ? max : max * unit;
#pragma unroll 1
    for (int first = 0; first < s.value_width; first += 32) {
        const int col = first + threadIdx.x % 32;
        float total = 0;
#pragma unroll 1
        for (int from = 0; agreed(from < x.view.count); from++) {
            const float score = score_at(p, s, &x, from), weight = s.scores != ATTENTION_PLAIN ? weight_of(score, shift, unit) : ex2(fmaf(score, unit, -shift));
            if (weight != 0 && col < p->value_width) total = fmaf(weight, load_half(s.element, x.v + 2 * (slot_of(p, &x, from) * p->v_strides[2] + col)), total);
        }
        const float y = sum == 0 ? 0 : total / sum;   /* a row that sees nothing is 0 */
        st_shared_u16(staged(s, m, row, col), (uint16_t)(p->out.format == CUDA_bf16 ? cvt_bf16x2(y, 0) : cvt_f16x2(y, 0)));
    }
}

/* Results, already divided, rounded to this warp's part of the staging; rows with a NaN that no score explains, and those that lack hidden keys, once more. wrong: has this thread such values? */
INLINE void stage_results(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_work work, const attention_rows *rows, int first_row, const float *sums,
                          bool wrong) {
    const int lane = threadIdx.x % 32, to_row = first_row + lane % 16;
    const bool is_bf16 = g->call.out.format == CUDA_bf16;
#pragma unroll
    for (int i = 0; i < s.value_width / 16; i++) {
        const float *x = sums + 8 * i;
        const uint32_t at = staged(s, m, to_row, i * 16 + lane / 16 * 8);
        if (is_bf16) stmatrix_x4(at, cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]), cvt_bf16x2(x[4], x[5]), cvt_bf16x2(x[6], x[7]));
        else stmatrix_x4(at, cvt_f16x2(x[0], x[1]), cvt_f16x2(x[2], x[3]), cvt_f16x2(x[4], x[5]), cvt_f16x2(x[6], x[7]));
    }
    if (!__any_sync(0xffffffff, wrong)) return;
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        const int from = i % 8 * 4, half = i / 8;
        float max = __shfl_sync(0xffffffff, half ? rows->max[1] : rows->max[0], from), sum = __shfl_sync(0xffffffff, half ? rows->sum[1] : rows->sum[0], from);
        const bool lacks = s.scores == ATTENTION_KEYS && rows->late && !(max > SETTLED);
        if (agreed(work.first + first_row + i >= (int)g->call.queries || (sum != sum && !lacks))) continue;
        if (agreed(lacks)) weigh_row(g, s, work, first_row + i, &max, &sum);
        repeat_row(g, s, m, work, first_row + i, max, sum);
    }
    __syncwarp();
}

/* Results in blocks, from registers. A row that is done once more goes over the staging, rounded as it is to be. */
INLINE void store_quantised(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_work work, const attention_rows *rows, int first_row, float *sums,
                            bool wrong) {
    const attention_arguments *p = &g->call;
    const bool is_bf16 = p->out.format == CUDA_bf16;
    const int lane = threadIdx.x % 32, row = first_row + lane / 4, begin = work.batch * (int)p->queries, col = work.head * (int)p->value_width;
    if (__any_sync(0xffffffff, wrong)) {
        stage_results(g, s, m, work, rows, first_row, sums, wrong);
#pragma unroll
        for (int i = 0; i < s.value_width / 2; i += 2) {
            const uint32_t pair = ld_shared_u32(staged(s, m, row + (i >> 1 & 1) * 8, i / 4 * 8 + lane % 4 * 2));
            sums[i] = is_bf16 ? __uint_as_float(pair << 16) : cvt_f32_f16((uint16_t)pair);
            sums[i + 1] = is_bf16 ? __uint_as_float(pair & 0xffff0000) : cvt_f32_f16((uint16_t)(pair >> 16));
        }
        __syncwarp();
    }
    const block_results to = {p->out.data, g->scales, g->out_row_stride, g->scale_row_stride, p->out.format, g->block};
    store_blocks(&to, sums, begin + work.first + row, col, begin + (int)p->queries, col + (int)p->value_width);
}

/* A warp's 16 rows of results. Staged apart from q, the loads of the next tile run under this; else q is released behind it. */
INLINE void store_results(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_work work, attention_rows *rows, int group, float *sums) {
    const int first_row = group * 64 + threadIdx.x % 128 / 32 * 16;
    const bool is_first_lane = threadIdx.x % 32 == 0;
    float factors[2];
    bool wrong = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = rows->sum[half];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        if (rows->max[half] != rows->max[half]) sum = NOT_A_NUMBER;
        rows->sum[half] = sum;
        wrong = wrong || (s.scores == ATTENTION_KEYS && rows->late && !(rows->max[half] > SETTLED));
        factors[half] = sum == 0 ? 0 : rcp(sum);
    }
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) {
        wrong = wrong || (sums[i] != sums[i] && rows->sum[i >> 1 & 1] == rows->sum[i >> 1 & 1]);
        sums[i] *= factors[i >> 1 & 1];
    }
    if (!s.apart) barrier_sync(GROUP_BARRIER + group, 128);   /* all warps' products have read q */
    if (s.quantised) {
        store_quantised(g, s, m, work, rows, first_row, sums, wrong);
        return;
    }
    if (s.apart && is_first_lane) tma_wait_read(0);
    __syncwarp();
    stage_results(g, s, m, work, rows, first_row, sums, wrong);
    fence_proxy_async();
    __syncwarp();
    if (!is_first_lane) return;
#pragma unroll
    for (int i = 0; i < s.value_width / CHUNK_COLS; i++)
        tma_store_4d((const tensor_map *)g->map_out, staged(s, m, first_row, 0) + i * (s.groups * 64 * ROW_BYTES), i * CHUNK_COLS, work.first + first_row, work.head, work.batch);
    tma_commit();
    if (!s.apart) tma_wait_read(0);
}

#endif
