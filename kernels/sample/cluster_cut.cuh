/* sample by clusters: top_k, by histograms of counts that all blocks add up. */
#ifndef KERNELS_SAMPLE_CLUSTER_CUT_CUH
#define KERNELS_SAMPLE_CLUSTER_CUT_CUH

#include "kernels/sample/cluster_chunk.cuh"

enum { LOWEST = 1 << 23 };            /* the order of the lowest finite number */

/* What lies behind the cut is out from here on. Each thread looks at the ids that it reads later. */
INLINE void drop_behind(const sample_chunk *c, const cut *end) {
    if (threadIdx.x == 0) c->room->end = *end;
#pragma unroll 1
    for (int at = thread() * WORDS; at < c->near; at += STEP) {
        float x[WORDS];
        near_four(c, at, x);
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            if (x[i] > -INFINITE && !is_in_front(end, x[i], c->first + at + i)) keep(c, at + i, -INFINITE);
    }
    __syncthreads();                  /* all see the end of what is not kept */
}

/* How many steps a logit is below the largest. The difference, its product and what is cut off each are monotone in x. */
INLINE float step_of(const sample_chunk *c, float x, float steps) { return fminf(c->largest - x, LARGEST) * steps; }

/* The highest order that is at least so many steps below the largest; LOWEST - 1 where no finite logit is so low. */
INLINE uint32_t order_at_step(const sample_chunk *c, float steps, float step) {
    uint32_t low = LOWEST - 1, high = sampling_order(c->largest);
    while (low < high) {
        const uint32_t middle = high - (high - low) / 2;
        if (step_of(c, logit_of_order(middle), steps) >= step) low = middle;
        else high = middle - 1;
    }
    return low;
}

INLINE void clear_buckets(const sample_chunk *c) {
    for (int i = threadIdx.x; i < BUCKETS; i += THREADS) c->room->buckets[i] = 0;
    __syncthreads();
}

/* The largest are in the last bucket, where a walk from the likeliest on begins. */
INLINE void fill_buckets(const sample_chunk *c, const interval *in, float steps) {
    clear_buckets(c);
#pragma unroll 1
    for (int at = thread() * WORDS; at < c->here; at += STEP) {
        float x[WORDS];
        kept_four(c, at, x);
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const uint32_t own = sampling_order(x[i]);
            const float step = step_of(c, x[i], steps);
            if (!(x[i] > -INFINITE) || (in->by_steps ? step >= (float)BUCKETS : own < in->low || own > in->high)) continue;
            atomicAdd(&c->room->buckets[in->by_steps ? BUCKETS - 1 - (int)step : (int)((own - in->low) >> in->shift)], 1);
        }
    }
    meet();
}

/* The thread's buckets of all blocks, the largest first. */
INLINE void add_buckets(const sample_chunk *c, uint32_t *sums) {
    const int first = BUCKETS - OF_THREAD * (thread() + 1);
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) sums[i] = 0;
    if (first < 0) return;
    for (uint32_t block = 0; block < cluster_blocks(); block++) {
        const float4 four = ld_cluster_f32x4(cluster_map(shared_address(&c->room->buckets[first]), block));
        const uint32_t of_block[OF_THREAD] = {__float_as_uint(four.w), __float_as_uint(four.z), __float_as_uint(four.y), __float_as_uint(four.x)};
#pragma unroll
        for (int i = 0; i < OF_THREAD; i++) sums[i] += of_block[i];
    }
}

/* The sum of what threads in front of this one have. Between two uses the cluster meets. */
INLINE uint32_t in_front(const sample_chunk *c, uint32_t own) {
    uint32_t up_to = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, up_to, step);
        if ((int)threadIdx.x % 32 >= step) up_to += other;
    }
    if (threadIdx.x % 32 == 31) c->room->of_warp[thread() / 32] = up_to;
    __syncthreads();
    return redux_add(threadIdx.x % 32 < threadIdx.x / 32 ? (uint32_t)c->room->of_warp[threadIdx.x % 32] : 0) + up_to - own;
}

/* Of the ids that have the order of the cut the one whose number, from 1 on, is wanted. */
INLINE int find_tie(const sample_chunk *c, uint32_t order, uint32_t wanted) {
    const int stretch = (c->here + THREADS - 1) / THREADS, first = (int)threadIdx.x * stretch, end = min(c->here, first + stretch);
    uint32_t own = 0, before;
    for (int i = first; i < end; i++) own += sampling_order(kept_at(c, i)) == order;
    before = in_front(c, own);
    if (threadIdx.x == THREADS - 1) c->room->show[2].count = before + own;
    meet();
    for (uint32_t i = 0; i < cluster_rank(); i++) before += word_of_block(&c->room->show[2].count, i);
    if (before < wanted && before + own >= wanted) {
        int last = first;
        for (int i = first; before < wanted; i++) {
            before += sampling_order(kept_at(c, i)) == order;
            last = c->first + i;
        }
        c->room->cut.last = last;
    }
    meet();
    int last = -1;
    for (uint32_t i = 0; i < cluster_blocks(); i++) last = max(last, (int)word_of_block(&c->room->cut.last, i));
    return last;
}

/* Orders from low to high; low is above high where there are none. */
INLINE interval orders_between(uint32_t low, uint32_t high) {
    const interval in = {low, high, max(0, 32 - DIGIT - __clz((int)(high - low))), false};
    return in;
}

/* The orders from so many steps below the largest to before so many more, to all threads. */
INLINE interval orders_of_steps(const sample_chunk *c, float steps, int first, int end) {
    if (threadIdx.x < 2) c->room->edges[threadIdx.x] = order_at_step(c, steps, (float)(threadIdx.x == 0 ? end : first));
    __syncthreads();
    return orders_between(c->room->edges[0] + 1, c->room->edges[1]);
}

INLINE interval orders_of_bucket(const sample_chunk *c, const interval *in, float steps, int bucket) {
    if (in->by_steps) return orders_of_steps(c, steps, BUCKETS - 1 - bucket, BUCKETS - bucket);
    const uint32_t low = in->low + ((uint32_t)bucket << in->shift);
    return orders_between(low, min(in->high, low + ((1u << in->shift) - 1)));
}

/* The bucket that takes what is in front of it and before up to wanted, to all threads. */
INLINE found find_bucket(const sample_chunk *c, uint32_t before, uint32_t wanted) {
    uint32_t sums[OF_THREAD];
    add_buckets(c, sums);
    uint32_t front = before + in_front(c, sums[0] + sums[1] + sums[2] + sums[3]);
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) {
        if (front < wanted && front + sums[i] >= wanted) {
            const found here = {BUCKETS - 1 - OF_THREAD * (int)threadIdx.x - i, front, sums[i], -1};
            c->room->cut = here;
        }
        front += sums[i];
    }
    if (threadIdx.x == THREADS - 1 && front < wanted) {
        const found none = {-1, front, 0, -1};
        c->room->cut = none;
    }
    meet();                           /* all have read the buckets, too */
    return c->room->cut;
}

INLINE bool keeps_first(const sample_arguments *a, const sample_chunk *c) { return c->room->settings.top_k >= 1 && c->room->settings.top_k < (float)a->count; }

/* Keeps so many ids from the front on, or all where there are fewer. First, buckets are equal steps below the largest logit, as the upper bits of most ids of a row are alike and their additions would
 * wait for each other. Where steps do not reach wanted, the cut is behind them. Then the orders of the bucket that has the cut are divided, until there is one or all that are in it are wanted. */
INLINE void keep_first(const sample_chunk *c, uint32_t wanted) {
    const float steps = fminf((float)BUCKETS / (-SAMPLING_LEAST_MASS * c->room->settings.temperature), 1e30f);
    uint32_t before = 0;
    interval in = {0, 0, 0, true};
    for (;;) {
        fill_buckets(c, &in, steps);
        const found found = find_bucket(c, before, wanted);
        before = found.before;
        if (found.bucket < 0) {
            if (!in.by_steps) return;
            in = orders_between(LOWEST, orders_of_steps(c, steps, BUCKETS, BUCKETS + 1).high);
            continue;
        }
        in = orders_of_bucket(c, &in, steps, found.bucket);
        if (wanted < before + found.inside && in.low < in.high) continue;
        const cut end = {in.low, wanted == before + found.inside ? NONE : find_tie(c, in.low, wanted - before)};
        drop_behind(c, &end);
        return;
    }
}

#endif
