/* Of attention by wgmma: from sums to results, rows that are done once more, and a warpgroup's tile as a whole. */
#ifndef KERNELS_ATTENTION_WGMMA_RESULTS_CUH
#define KERNELS_ATTENTION_WGMMA_RESULTS_CUH

#include "kernels/attention/wgmma/attend.cuh"

/* ---- results ---- */

/* Element i of a row of q or k. */
INLINE float load_number(const attention_shape s, uint64_t row, int i) {
    if (s.codes) return e4m3_at(row, i);
    return load_half(s.element, row + 2 * i);
}

/* A row of the tile once more, by one warp, straight from memory and without the keys of no weight, into its place among the results. */
INLINE void repeat_row(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int row, float max, float sum, float factor) {
    const attention_arguments *p = &g->call;
    attention_view view = s.stays && !walks(s) ? plain_view_of(g, tile.batch, tile.first + row) : load_view(m.rows, row);
    int lane = threadIdx.x % 32, slots = (int)p->keys;
    int64_t group = tile.head / (int)p->shared_heads;
    const int bytes = s.codes ? 1 : 2;
    const float second_k = s.cached ? rows_second(&blocks_of(g)->k, 0) : 1, second_v = s.cached ? rows_second(&blocks_of(g)->v, 0) : 1;
    uint64_t q = p->q.data + bytes * (tile.batch * p->q_strides[0] + tile.head * p->q_strides[1] + (tile.first + row) * p->q_strides[2]);
    const uint64_t k = p->k.data + bytes * group * p->k_strides[1], v = p->v.data + 2 * group * p->v_strides[1];
    attention_extra extra = extra_of(p, view.cache, tile.head, tile.first + row);
    float unit = s.codes ? unit_of(p, s) * factor : unit_of(p, s), shift = max == -INFINITE ? 0 : is_scaled(s) ? max : max * unit;
#pragma unroll 1
    for (int first = 0; first < s.value_width; first += 32) {
        int col = first + lane;
        float total = 0;
#pragma unroll 1
        for (int from = 0; agreed(from < view.count); from++) {
            attention_slot at = {view.cache, view.start + from < slots ? view.start + from : view.start + from - slots};
            if (s.paged) at = slot_of(p, at.row, at.slot);
            if (s.paged && agreed(at.row < 0)) continue;
            const int64_t in_blocks = s.cached ? row_in_blocks(p, at, (int)group) : 0;
            const uint64_t key = k + bytes * (at.row * p->k_strides[0] + at.slot * p->k_strides[2]), value = v + 2 * (at.row * p->v_strides[0] + at.slot * p->v_strides[2]);
            float product = 0;
#pragma unroll 1
            for (int i = 0; i < (int)p->width; i += 32)
                if (i + lane < (int)p->width) product = fmaf(load_number(s, q, i + lane), s.cached ? rows_scaled(&blocks_of(g)->k, in_blocks, i + lane) : load_number(s, key, i + lane), product);
            for (int step = 16; step > 0; step /= 2) product += __shfl_xor_sync(0xffffffff, product, step);
            if (s.cached) product *= second_k;
            if (s.codes) product *= ((const float *)codes_of(g)->k_scales)[(at.row * (int)(p->heads / p->shared_heads) + group) * ((slots + CODES_KEYS - 1) / CODES_KEYS) + at.slot / CODES_KEYS];
            if (is_scaled(s)) product = score_of(p, product, extra, view.base + from);
            if (s.scores == ATTENTION_MASKED && !is_unmasked(p, extra, view.base + from)) product = -INFINITE;
            float weight = is_scaled(s) ? weight_of(product, shift, unit) : ex2(fmaf(product, unit, -shift));
            if (weight != 0 && col < p->value_width) total = fmaf(weight, s.cached ? rows_scaled(&blocks_of(g)->v, in_blocks, col) : load_half(s.element, value + 2 * col), total);
        }
        if (s.cached) total *= second_v;
        uint32_t at = m.out + col / CHUNK_COLS * (s.groups * 64 * ROW_BYTES) + row * ROW_BYTES + ((col % CHUNK_COLS / 8 ^ row % 8) << 4) + col % 8 * 2;
        const float y = sum == 0 ? 0 : total / sum;   /* a row that sees nothing is 0 */
        st_shared_u16(at, (uint16_t)(p->out.format == CUDA_bf16 ? cvt_bf16x2(y, 0) : cvt_f16x2(y, 0)));
    }
}

/* A warp's 16 rows of results in a format that the compiler knows. */
INLINE void stage_rows(const int element, const attention_shape s, attention_smem m, int first_row, const float *sums) {
    const int lane = threadIdx.x % 32, to_row = first_row + lane % 16;
#pragma unroll
    for (int i = 0; i < chunks_of(s.value_width) * CHUNK_COLS / 16; i++) {   /* behind the last column zeros: a box of TMA is read as a whole */
        const float *x = sums + 8 * i;
        const uint32_t at = m.out + i / 4 * (s.groups * 64 * ROW_BYTES) + to_row * ROW_BYTES + (((i % 4 * 2 + lane / 16) ^ to_row % 8) << 4);
        if (16 * i >= s.value_width) stmatrix_x4(at, 0, 0, 0, 0);
        else stmatrix_x4(at, pack_pair(element, x[0], x[1]), pack_pair(element, x[2], x[3]), pack_pair(element, x[4], x[5]), pack_pair(element, x[6], x[7]));
    }
}

/* Results, already divided, rounded to this warp's part of the staging; rows with a NaN that no score explains once more. wrong: has this thread such values? */
INLINE void stage_results(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, const attention_rows *rows, int first_row, const float *sums,
                          bool wrong) {
    if (g->call.out.format == CUDA_bf16) stage_rows(ELEMENT_BF16, s, m, first_row, sums);
    else stage_rows(ELEMENT_F16, s, m, first_row, sums);
    if (!__any_sync(0xffffffff, wrong)) return;
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        int from = i % 8 * 4, half = i / 8;
        float max = __shfl_sync(0xffffffff, half ? rows->max[1] : rows->max[0], from), sum = __shfl_sync(0xffffffff, half ? rows->sum[1] : rows->sum[0], from);
        const float factor = s.codes ? __shfl_sync(0xffffffff, half ? rows->factor[1] : rows->factor[0], from) : 1;
        if (agreed(sum == sum)) repeat_row(g, s, m, tile, first_row + i, max, sum, factor);
    }
    __syncwarp();
}

/* Results in blocks, from registers. A row that is done once more goes over the staging, rounded as it is to be. */
INLINE void store_quantised(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, const attention_rows *rows, int first_row, float *sums,
                            bool wrong) {
    const attention_arguments *p = &g->call;
    const bool is_bf16 = p->out.format == CUDA_bf16;
    const int lane = threadIdx.x % 32, row = first_row + lane / 4, begin = tile.batch * (int)p->queries, col = tile.head * (int)p->value_width;
    if (__any_sync(0xffffffff, wrong)) {
        stage_results(g, s, m, tile, rows, first_row, sums, wrong);
#pragma unroll
        for (int i = 0; i < s.value_width / 2; i += 2) {
            int from = row + (i >> 1 & 1) * 8;
            uint32_t pair = ld_shared_u32(m.out + i / 32 * (s.groups * 64 * ROW_BYTES) + from * ROW_BYTES + ((i / 4 % 8 ^ from % 8) << 4) + lane % 4 * 4);
            sums[i] = is_bf16 ? __uint_as_float(pair << 16) : cvt_f32_f16((uint16_t)pair);
            sums[i + 1] = is_bf16 ? __uint_as_float(pair & 0xffff0000) : cvt_f32_f16((uint16_t)(pair >> 16));
        }
    }
    block_results to = {p->out.data, g->scales, g->out_row_stride, g->scale_row_stride, p->out.format, g->block};
    store_blocks(&to, sums, begin + tile.first + row, col, begin + (int)p->queries, col + (int)p->value_width);
}

/* What a row's scores in registers are to be multiplied by. */
INLINE float scale_of_row(const attention_wgmma_arguments *g, const attention_shape s, const attention_rows *rows, const int half) {
    return s.codes ? g->call.scale * rows->factor[half] : g->call.scale;
}

/* The logarithm of the sum of e^score of each row, by the first of its four threads. */
INLINE void store_lse(const attention_wgmma_arguments *g, const attention_shape s, attention_tile tile, const attention_rows *rows, int first_row) {
    if (!g->has_lse || threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int query = tile.first + first_row + threadIdx.x % 32 / 4 + 8 * half;
        const float max = is_scaled(s) ? rows->max[half] : rows->max[half] * scale_of_row(g, s, rows, half);
        if (query < (int)g->call.queries)
            store_float(&g->lse, tile.batch * g->lse_strides[0] + tile.head * g->lse_strides[1] + query * g->lse_strides[2], max < INFINITE ? max + logf(rows->sum[half]) : NOT_A_NUMBER);
    }
}

/* Is one of a thread's sums NaN while its row's sum is not? Few tiles come to where each is looked at: a sum times 0 is 0 unless it is NaN or infinite. Without branches, of which there would be one for each sum. */
INLINE bool has_wrong(const attention_shape s, const attention_rows *rows, const float *sums) {
    float odd[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) odd[i & 1] = fmaf(sums[i], 0, odd[i & 1]);
    if (!__any_sync(0xffffffff, odd[0] + odd[1] != 0)) return false;
    int nans[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) nans[i >> 1 & 1] |= sums[i] != sums[i];
    return ((nans[0] & (rows->sum[0] == rows->sum[0])) | (nans[1] & (rows->sum[1] == rows->sum[1]))) != 0;
}

/* Sums become results, over their rows' sums; true where a thread has some that are NaN while their rows' sums are not. */
INLINE bool divide(const attention_wgmma_arguments *g, const attention_shape s, attention_rows *rows, float *sums) {
    const float second = s.cached == CACHED_NVFP4 ? rows_second(&blocks_of(g)->v, 0) : 1;
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = rows->sum[half];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        if (rows->max[half] != rows->max[half]) sum = NOT_A_NUMBER;
        rows->sum[half] = sum;
        factors[half] = sum == 0 ? 0 : second / sum;
    }
    const bool wrong = has_wrong(s, rows, sums);
#pragma unroll
    for (int i = 0; i < s.value_width / 2; i++) sums[i] *= factors[i >> 1 & 1];
    return wrong;
}

/* Staged rows from `first` on to memory: as many as the map has boxes for. By one thread. */
INLINE void store_staged(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int first) {
#pragma unroll
    for (int i = 0; i < chunks_of(s.value_width); i++)
        tma_store_4d((const tensor_map *)g->map_out, m.out + i * (s.groups * 64 * ROW_BYTES) + first * ROW_BYTES, i * CHUNK_COLS, tile.first + first, tile.head, tile.batch);
    tma_commit();
}

/* Sums over their rows' sums, through smem to memory, or into blocks. */
INLINE void store_results(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, attention_rows *rows, int group, float *sums) {
    const int thread = threadIdx.x % 128, first_row = group * 64 + thread / 32 * 16;
    const bool wrong = divide(g, s, rows, sums);
    store_lse(g, s, tile, rows, first_row);
    barrier_sync(GROUP_BARRIER + group, 128);   /* all warps' products have read q */
    if (s.quantised) {
        store_quantised(g, s, m, tile, rows, first_row, sums, wrong);
        return;
    }
    stage_results(g, s, m, tile, rows, first_row, sums, wrong);
    fence_proxy_async();
    barrier_sync(GROUP_BARRIER + group, 128);
    if (thread != 0) return;
    store_staged(g, s, m, tile, group * 64);
    tma_wait_read(0);
}

/* A row's largest score and sum before any key: those of its sink. first: the thread's first query. */
INLINE void begin_rows(const attention_wgmma_arguments *g, const attention_shape s, attention_tile tile, int first, attention_rows *rows) {
    const attention_arguments *p = &g->call;
    const float sink = p->has_sink ? load_float(&p->sink, tile.head * p->sink_stride) : -INFINITE;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int query = first + 8 * half;
        float factor = 1;
        if (s.codes && query < (int)p->queries) factor = ((const float *)codes_of(g)->q_scales)[(int64_t)(tile.batch * (int)p->heads + tile.head) * p->queries + query];
        rows->factor[half] = factor < LEAST_FACTOR ? LEAST_FACTOR : factor;
        rows->max[half] = p->has_sink && !is_scaled(s) ? sink / scale_of_row(g, s, rows, half) : sink;
        rows->sum[half] = threadIdx.x % 4 == 0 ? lone_sink_weight(sink) : 0;
    }
}

/* What the thread's two rows see. row: the first of them. */
INLINE void load_views(attention_smem m, int row, attention_rows *rows) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const attention_view view = load_view(m.rows, row + 8 * half);
        rows->start[half] = view.start;
        rows->count[half] = view.count;
        rows->base[half] = view.base;
    }
}

INLINE void attend_tile(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int group) {
    int row = group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    attention_rows rows;
    float sums[128];
    load_views(m, row, &rows);
    begin_rows(g, s, tile, tile.first + row, &rows);
    attention_turns turns = {ring_reader(), ring_reader(), ring_reader()};
    attend(g, s, m, tile, &rows, group, row, 0, &turns, sums);
    store_results(g, s, m, tile, &rows, group, sums);
}

#endif
