/* Attention of many queries in f32 on tensor cores: of each number a high part in tf32 and what is left, of each product high x high + high x low + low x high. A warp makes 16 queries of one head, or 32.
 *
 *     q, or its two parts, as lanes read them, k [2][keys, depth], v [2][keys, depth], 16 bytes swizzled within 128: fp32 in smem
 *     for each block of keys that some query of the tile sees, while cp.async brings the next:
 *         scores = q k^T            16 queries x keys a warp, in registers; high products and others in sums of their own
 *         online softmax            4 lanes share a query; powers of 2
 *         sums = sums down + weights v    weights stay in registers: a lane's two neighbouring keys are k t and t + 4 of a product
 *
 * Tensor cores cut sums toward zero. So sums of values begin with each block and are added up in fp32 outside, and the small products do not pass through the large sums.
 *
 * A product with an infinity or a NaN comes out as NaN, as what is left of it is one. Scores of NaN are made again by multiply-adds. Where a sum is NaN and its weights' sum is not, the tile is made again with the
 * values' products by multiply-adds, without the keys of no weight. Speed: README.md. */
#include "kernels/attention/tf32x3/products.cuh"
#include "kernels/gpu/ptx/cluster.cuh"

/* Of a row: its maximum, and this lane's part of the sum of its weights. Rows g and g + 8 of each slab. */
typedef struct tile_rows { float max[2 * MOST_SLABS], sum[2 * MOST_SLABS], down[2 * MOST_SLABS]; } tile_rows;

/* ---- scores ---- */

/* Products become scores, but for a scale that is left to the powers of 2 where nothing is added; -inf of what a query does not see. */
INLINE void score_keys(const attention_arguments *p, const tile_place *place, const tf32x3_shape s, const tile_run *run, int first_query, int first, int stage, float (*products)[4], int slab) {
    const int slots = (int)p->keys, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row_of(s, slab, half);
        const attention_view view = place->views[row];
        const attention_extra extra = extra_of(p, view.cache, place->head, place->first + row);
        const int count = row >= first_query && row < run->end ? view.count : 0;
#pragma unroll
        for (int j = 0; j < s.keys / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int key = 8 * j + 2 * t + i, slot = first + key, from = slot < view.start ? slot - view.start + slots : slot - view.start;
                float *score = &products[j][2 * half + i];
                if (from >= count || slot >= slots || (s.general && p->page != 0 && !place->here[stage * TF32X3_MOST_KEYS + key])) *score = -INFINITE;
                else if (s.general) *score = score_of(p, *score, extra, view.base + from);
            }
    }
}

/* What the warp's rows see of a block of keys: nothing, some, or all of it. */
enum { SEES_NOTHING, SEES_SOME, SEES_ALL };
INLINE int seen_of(const attention_arguments *p, const tile_place *place, const tf32x3_shape s, const tile_run *run, int first_query, int first) {
    const int slots = (int)p->keys, row = ((int)threadIdx.x / 32 * s.slabs) * SLAB + (int)threadIdx.x % (SLAB * s.slabs);
    const attention_view view = place->views[row];
    const bool in_run = row >= first_query && row < run->end && view.count > 0;
    const bool some = in_run && (view.start + view.count > slots || (view.start < first + s.keys && view.start + view.count > first));
    const bool all = in_run && view.start <= first && view.start + view.count >= first + s.keys;
    if (!__any_sync(0xffffffff, some)) return SEES_NOTHING;
    return __all_sync(0xffffffff, all && first + s.keys <= slots) ? SEES_ALL : SEES_SOME;
}

INLINE float largest_of(const tf32x3_shape s, const float (*scores)[4], int half) {
    float top = -INFINITE;
#pragma unroll
    for (int j = 0; j < s.keys / 8; j++) top = max_nan(top, max_nan(scores[j][2 * half], scores[j][2 * half + 1]));
    return top;
}

/* Scores become weights; by how much earlier sums shrink. tops: the largest scores that the lane has. */
INLINE void soften(const tf32x3_shape s, float (*scores)[4], const float *tops, float unit, float *max, float *sum, float *down) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = fmaxf(max[half], tops[half]), part = 0;
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        const float shift = top == -INFINITE ? 0 : top;
        down[half] = shrink(max[half], top, unit);
        max[half] = top;
#pragma unroll
        for (int j = 0; j < s.keys / 8; j++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                scores[j][i] = weight_of(scores[j][i], shift, unit);
                part += scores[j][i];
            }
        sum[half] = fmaf(sum[half], down[half], part);
    }
}

/* What scores are multiplied by to be powers of 2. */
INLINE float unit_of(const attention_arguments *p, const tf32x3_shape s) { return s.general ? LOG2_E : p->scale * LOG2_E; }

/* Scores of a block, and their weights. A largest one that is NaN says that a product is. */
INLINE void weigh(const attention_arguments *p, const tile_place *place, const tf32x3_shape s, const tile_run *run, int first_query, int first, int stage, int seen, float (*weights)[MOST_TURNS][4], tile_rows *rows) {
    multiply_keys(place, s, stage, weights);
#pragma unroll
    for (int m = 0; m < s.slabs; m++) {
        float tops[2] = {largest_of(s, weights[m], 0), largest_of(s, weights[m], 1)};
        const bool odd = __any_sync(0xffffffff, tops[0] != tops[0] || tops[1] != tops[1]);
        if (odd) mend_products(p, place, s, stage, weights[m], m);
        if (s.general || seen != SEES_ALL) score_keys(p, place, s, run, first_query, first, stage, weights[m], m);
        if (s.general || seen != SEES_ALL || odd)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                tops[half] = -INFINITE;
#pragma unroll
                for (int j = 0; j < s.keys / 8; j++) tops[half] = fmaxf(tops[half], fmaxf(weights[m][j][2 * half], weights[m][j][2 * half + 1]));
            }
        soften(s, weights[m], tops, unit_of(p, s), &rows->max[2 * m], &rows->sum[2 * m], &rows->down[2 * m]);
    }
}

/* ---- results ---- */

/* Of rows that are bits of `rows_left`: 2 slab + half. */
INLINE void store_results(const attention_tf32x3_arguments *g, const tile_place *place, const tf32x3_shape s, const tile_rows *rows, uint32_t rows_left, const float *totals, float (*sums)[MOST_TILES][4]) {
    const attention_arguments *p = &g->call;
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2 * s.slabs; r++) {
        const int query = place->first + row_of(s, r / 2, r % 2);
        const float total = totals[r], max = rows->max[r], part = total == 0 ? 0 : 1 / total;
        if (query >= p->queries || (rows_left >> r & 1) == 0) continue;
        if (g->has_lse && t == 0)
            store_float(&g->lse, place->batch * g->lse_strides[0] + place->head * g->lse_strides[1] + query * g->lse_strides[2], max < INFINITE ? (s.general ? max : max * p->scale) + logf(total) : NOT_A_NUMBER);
        const int64_t at = place->batch * p->out_strides[0] + place->head * p->out_strides[1] + query * p->out_strides[2];
#pragma unroll
        for (int n = 0; n < s.depth / 8; n++) {
            const float *x = &sums[r / 2][n][r % 2 * 2];
            if (8 * n + 2 * t < p->value_width) *(float2 *)(p->out.data + 4 * (at + 8 * n + 2 * t)) = total == 0 ? make_float2(0, 0) : make_float2(x[0] * part, x[1] * part);
        }
    }
}

/* ---- a tile ---- */

/* Goes once over the tile's keys. */
INLINE void attend(const attention_tf32x3_arguments *g, const tile_place *place, const tf32x3_shape s, bool guarded, tile_rows *rows, float (*sums)[MOST_TILES][4]) {
    const attention_arguments *p = &g->call;
    const float own = p->has_sink ? load_float(&p->sink, place->head * p->sink_stride) : -INFINITE, sink = s.general ? own : scaled_sink(own, g->sink_scale);
    float weights[MOST_SLABS][MOST_TURNS][4];
#pragma unroll
    for (int r = 0; r < 2 * s.slabs; r++) {
        rows->max[r] = sink;
        rows->sum[r] = threadIdx.x % 4 == 0 ? lone_sink_weight(sink) : 0;
    }
#pragma unroll
    for (int m = 0; m < s.slabs; m++)
#pragma unroll
        for (int n = 0; n < s.depth / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[m][n][e] = 0;
#pragma unroll 1
    for (int first_query = 0; first_query < queries_of(s);) {
        const tile_run run = run_of(place, s, first_query, (int)p->keys);
        int stage = 0;
        __syncthreads();
        if (run.low < run.high) load_block(p, place, s, &run, run.low / s.keys * s.keys, 0);
#pragma unroll 1
        for (int first = run.low / s.keys * s.keys; first < run.high; first += s.keys, stage ^= 1) {
            cp_async_wait(0);
            __syncthreads();
            if (first + s.keys < run.high) load_block(p, place, s, &run, first + s.keys, stage ^ 1);
            const int seen = seen_of(p, place, s, &run, first_query, first);
            if (seen != SEES_NOTHING) {
                weigh(p, place, s, &run, first_query, first, stage, seen, weights, rows);
                float least = 1;
#pragma unroll
                for (int r = 0; r < 2 * s.slabs; r++) least = fminf(least, rows->down[r]);
                if (__any_sync(0xffffffff, least == 0)) clear_sums(s, rows->down, sums);
            }
            if (guarded) {
                __syncthreads();
                if (seen == SEES_NOTHING) continue;
#pragma unroll
                for (int m = 0; m < s.slabs; m++) add_guarded_values(place, s, stage, weights[m], &rows->down[2 * m], sums[m]);
            } else if (seen != SEES_NOTHING) add_values(place, s, stage, weights, rows->down, sums);
        }
        first_query = run.end;
    }
}

/* The sums of all weights of rows; bits of those whose sums of values have a NaN though these have none. */
INLINE uint32_t add_up(const tf32x3_shape s, const tile_rows *rows, float (*sums)[MOST_TILES][4], float *totals) {
    uint32_t odd_rows = 0;
#pragma unroll
    for (int r = 0; r < 2 * s.slabs; r++) {
        float total = rows->sum[r], all = 0;
        total += __shfl_xor_sync(0xffffffff, total, 2);
        total += __shfl_xor_sync(0xffffffff, total, 1);
        totals[r] = rows->max[r] != rows->max[r] ? NOT_A_NUMBER : total;
#pragma unroll
        for (int n = 0; n < s.depth / 8; n++) all = max_nan(all, max_nan(sums[r / 2][n][r % 2 * 2], sums[r / 2][n][r % 2 * 2 + 1]));
        const uint32_t odd_lanes = __ballot_sync(0xffffffff, all != all && total == total);
        if ((odd_lanes >> ((int)threadIdx.x % 32 & 28) & 15) != 0) odd_rows |= 1u << r;
    }
    return odd_rows;
}

INLINE void attention_tf32x3(const attention_tf32x3_arguments *g, const tf32x3_shape s) {
    extern __shared__ __align__(128) float shared[];
    __shared__ attention_view views[TF32X3_MOST_QUERIES];
    __shared__ uint8_t here[2 * TF32X3_MOST_KEYS];
    const attention_arguments *p = &g->call;
    const int rows_of_q = queries_of(s) * (1 + s.split), first = (int)(gridDim.z - 1 - blockIdx.z) * queries_of(s);   /* with a causal mask the longest first */
    const tile_place place = {shared, shared + rows_of_q * s.depth, shared + (rows_of_q + 2 * s.keys) * s.depth, views, here, (int)blockIdx.y, (int)blockIdx.x, (int)blockIdx.x / (int)p->shared_heads, first};
    float totals[2 * MOST_SLABS], sums[MOST_SLABS][MOST_TILES][4];
    uint32_t rows_left = ~0u;
    tile_rows rows;
    grid_wait();
    load_queries(p, &place, s);
    if ((int)threadIdx.x < queries_of(s)) views[threadIdx.x] = view_of(p, place.batch, place.first + (int)threadIdx.x);
    __syncthreads();
#pragma unroll 1
    for (int guarded = 0; guarded < 2; guarded++) {
        attend(g, &place, s, guarded != 0, &rows, sums);
        const uint32_t odd_rows = add_up(s, &rows, sums, totals);
        store_results(g, &place, s, &rows, guarded ? rows_left : ~odd_rows, totals, sums);
        rows_left = odd_rows;
        if (!__syncthreads_or(odd_rows != 0)) break;
    }
}

#define ATTENTION_TF32X3(name, depth, keys, warps, slabs, split, general, resident)                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * warps, resident) attention_tf32x3_##name(const __grid_constant__ attention_tf32x3_arguments arguments) {     \
        attention_tf32x3(&arguments, (tf32x3_shape){depth, keys, warps, slabs, split, general});                                                                  \
    }
#include "kernels/attention/tf32x3/tf32x3.def"
