/* sample by clusters: top_k and top_p, by histograms of counts or masses that all blocks add up. */
#ifndef KERNELS_SAMPLE_CLUSTER_CUT_CUH
#define KERNELS_SAMPLE_CLUSTER_CUT_CUH

#include "kernels/sample/cluster_chunk.cuh"

#define LARGEST 3.40282347e38f
enum { LOWEST = 1 << 23 };            /* the order of the lowest finite number */

INLINE bool is_kept(const sample_chunk *c, float x, int id) {
    const uint32_t order = sampling_order(x);
    return x > -INFINITE && (order > c->order || (order == c->order && id <= c->last));
}

/* The quotient of sampling_heat. Where nothing under- or overflows, what a product by the rounded reciprocal misses is made up by its remainders, the last of which is exact: then the sum is the quotient
 * rounded once (Markstein, IBM J. Res. Dev. 34, 1990). */
INLINE float heat_of(const sample_chunk *c, float x) {
    const float t = c->room->settings.temperature, a = SAMPLING_SUB(x, c->largest);
    if (!c->divides) return SAMPLING_DIV(a, t);
    const float q = SAMPLING_MUL(a, c->over), near = fmaf(fmaf(-q, t, a), c->over, q);
    return fmaf(fmaf(-near, t, a), c->over, near);
}

/* Differences of logits are then 0 or at least 2^-54, and at most 2^61. */
INLINE bool divides_safely(float temperature, float largest) {
    const float size = fabsf(largest);
    return temperature > 1e-9f && temperature < 1e9f && size > 1e-9f && size < 1e18f;
}

INLINE uint32_t mass_of(const sample_chunk *c, float x) { return (uint32_t)sampling_mass(heat_of(c, x)); }
INLINE uint32_t weight_of(const sample_chunk *c, float x, const bool masses) { return masses ? mass_of(c, x) : 1; }

/* How many steps a logit is below the largest. The difference, its product, what is taken from it and what is cut off each are monotone in x. */
INLINE float step_of(const sample_chunk *c, float x) { return fminf(c->largest - x, LARGEST) * c->steps; }

/* What bucket it would be, by steps; below 0 it is in front of the interval. */
INLINE float place_of(const sample_chunk *c, const interval *in, float x) { return (step_of(c, x) - in->from) * in->finer; }

/* The highest order whose place is at least this one; LOWEST - 1 where no finite logit is so low. */
INLINE uint32_t order_at_place(const sample_chunk *c, const interval *in, float place) {
    uint32_t low = LOWEST - 1, high = sampling_order(c->largest);
    while (low < high) {
        const uint32_t middle = high - (high - low) / 2;
        if (place_of(c, in, logit_of_order(middle)) >= place) low = middle;
        else high = middle - 1;
    }
    return low;
}

INLINE void clear_buckets(const sample_chunk *c) {
    const found none = {-1, 0, 0};
    const mass_sums nothing = {0, 0};
    for (int i = threadIdx.x; i < BUCKETS; i += THREADS) c->room->low[i] = c->room->high[i] = 0;
    if (threadIdx.x == 0) c->room->cut = none, c->room->sums = nothing;
    __syncthreads();
}

/* A logit's weight in its bucket, in two halves where it is a mass. */
INLINE void add_weight(cluster_room *room, int bucket, uint32_t weight, const bool masses) {
    atomicAdd(&room->low[bucket], masses ? weight & ((1u << HALF) - 1) : weight);
    if (masses && weight >> HALF != 0) atomicAdd(&room->high[bucket], weight >> HALF);
}

INLINE bool is_out(const sample_chunk *c, bool all, float x, int at) { return !(x > -INFINITE) || !(all || is_kept(c, x, c->first + at)); }

/* Logits by steps. The largest are in the last bucket, where a walk from the likeliest on begins, as of orders. */
INLINE void fill_by_steps(const sample_chunk *c, const interval *in, const bool masses) {
    const bool all = c->order == 0;
    mass_sums sums = {0, 0};
    clear_buckets(c);
#pragma unroll 1
    for (int at = (int)threadIdx.x * WORDS; at < c->here; at += STEP) {
        float x[WORDS];
        kept_four(c, at, x);
#pragma unroll
        for (int pair = 0; pair < WORDS; pair += 2) {
            uint32_t weight[2];
#pragma unroll
            for (int i = 0; i < 2; i++) weight[i] = is_out(c, all, x[pair + i], at + pair + i) ? 0 : weight_of(c, x[pair + i], masses);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float place = place_of(c, in, x[pair + i]);
                if (masses) sums.all += weight[i], sums.front += place < 0 ? weight[i] : 0;
                if (weight[i] != 0 && place >= 0 && place < (float)BUCKETS) add_weight(c->room, BUCKETS - 1 - (int)place, weight[i], masses);
            }
        }
    }
    if (masses) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sums.all += __shfl_xor_sync(~0u, sums.all, step), sums.front += __shfl_xor_sync(~0u, sums.front, step);
        if (threadIdx.x % 32 == 0) atomicAdd(&c->room->sums.all, sums.all), atomicAdd(&c->room->sums.front, sums.front);
    }
    meet();
}

INLINE void fill_by_orders(const sample_chunk *c, const interval *in, const bool masses) {
    const bool all = c->order == 0;
    clear_buckets(c);
#pragma unroll 1
    for (int at = (int)threadIdx.x * WORDS; at < c->here; at += STEP) {
        float x[WORDS];
        kept_four(c, at, x);
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const uint32_t own = sampling_order(x[i]);
            if (own < in->low || own > in->high || is_out(c, all, x[i], at + i)) continue;
            add_weight(c->room, (int)((own - in->low) >> in->shift), weight_of(c, x[i], masses), masses);
        }
    }
    meet();
}

/* Where the cut by masses is about: a histogram by steps of what they are to 2^-20 of the largest, by fast arithmetic. Nothing but where to look first depends on it. */
INLINE void fill_roughly(const sample_chunk *c) {
    const bool all = c->order == 0;
    const float over = fminf(c->over, 1e30f) * LOG2_E;
    clear_buckets(c);
#pragma unroll 1
    for (int at = (int)threadIdx.x * WORDS; at < c->here; at += STEP) {
        float x[WORDS];
        kept_four(c, at, x);
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const float step = step_of(c, x[i]), magic = 8388608;   /* 2^23: the sum has its integer in its low bits */
            const uint32_t weight = __float_as_uint(fmaf(ex2((x[i] - c->largest) * over), 1048576, magic)) & 0x7fffff;
            if (step < (float)BUCKETS && weight != 0 && !is_out(c, all, x[i], at + i)) atomicAdd(&c->room->low[BUCKETS - 1 - (int)step], weight);
        }
    }
    meet();
}

/* What all blocks have summed, to all threads. */
INLINE mass_sums gather_sums(const sample_chunk *c) {
    const uint32_t lane = threadIdx.x % 32;
    mass_sums sums = {0, 0};
    if (lane < c->blocks) {
        const uint32_t *words = (const uint32_t *)&c->room->sums;
        sums.all = word_of_block(words, lane) | (unsigned long long)word_of_block(words + 1, lane) << 32;
        sums.front = word_of_block(words + 2, lane) | (unsigned long long)word_of_block(words + 3, lane) << 32;
    }
#pragma unroll
    for (int step = SAMPLE_CLUSTER_BLOCKS / 2; step > 0; step /= 2) sums.all += __shfl_xor_sync(~0u, sums.all, step), sums.front += __shfl_xor_sync(~0u, sums.front, step);
    sums.all = __shfl_sync(~0u, sums.all, 0);
    sums.front = __shfl_sync(~0u, sums.front, 0);
    return sums;
}

/* The thread's buckets of all blocks, the largest first. */
INLINE void add_buckets(const sample_chunk *c, const bool masses, unsigned long long *sums) {
    const int first = BUCKETS - OF_THREAD * ((int)threadIdx.x + 1);
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) sums[i] = 0;
    for (uint32_t block = 0; block < c->blocks; block++) {
        const float4 low = ld_cluster_f32x4(cluster_map(shared_address(&c->room->low[first]), block));
        const uint32_t of_low[OF_THREAD] = {__float_as_uint(low.w), __float_as_uint(low.z), __float_as_uint(low.y), __float_as_uint(low.x)};
#pragma unroll
        for (int i = 0; i < OF_THREAD; i++) sums[i] += of_low[i];
        if (!masses) continue;
        const float4 high = ld_cluster_f32x4(cluster_map(shared_address(&c->room->high[first]), block));
        const uint32_t of_high[OF_THREAD] = {__float_as_uint(high.w), __float_as_uint(high.z), __float_as_uint(high.y), __float_as_uint(high.x)};
#pragma unroll
        for (int i = 0; i < OF_THREAD; i++) sums[i] += (unsigned long long)of_high[i] << HALF;
    }
}

/* The sum of what threads in front of this one have; of_all is that of all threads. Between two uses the cluster meets. */
INLINE unsigned long long in_front(const sample_chunk *c, unsigned long long own, unsigned long long *of_all) {
    unsigned long long up_to = own, front = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const unsigned long long other = __shfl_up_sync(~0u, up_to, step);
        if ((int)threadIdx.x % 32 >= step) up_to += other;
    }
    if (threadIdx.x % 32 == 31) c->room->of_warp[threadIdx.x / 32] = up_to;
    __syncthreads();
    *of_all = 0;
    for (int i = 0; i < WARPS; i++) {
        if (i < (int)threadIdx.x / 32) front += c->room->of_warp[i];
        *of_all += c->room->of_warp[i];
    }
    return front + up_to - own;
}

/* Of the ids that have the order of the cut the one whose number, from 1 on, is wanted. */
INLINE int find_tie(const sample_chunk *c, uint32_t order, unsigned long long wanted) {
    const int stretch = (c->here + THREADS - 1) / THREADS, first = (int)threadIdx.x * stretch, end = min(c->here, first + stretch);
    unsigned long long own = 0, all, before;
    for (int i = first; i < end; i++) own += is_kept(c, kept_at(c, i), c->first + i) && sampling_order(kept_at(c, i)) == order;
    before = in_front(c, own, &all);
    if (threadIdx.x == 0) {
        c->room->show[2].count = (uint32_t)all;
        c->room->last = -1;
    }
    meet();
    for (uint32_t i = 0; i < c->rank; i++) before += word_of_block(&c->room->show[2].count, i);
    if (before < wanted && before + own >= wanted) {
        int last = first;
        for (int i = first; before < wanted; i++) {
            before += is_kept(c, kept_at(c, i), c->first + i) && sampling_order(kept_at(c, i)) == order;
            last = c->first + i;
        }
        c->room->last = last;
    }
    meet();
    int last = -1;
    for (uint32_t i = 0; i < c->blocks; i++) last = max(last, (int)word_of_block(&c->room->last, i));
    return last;
}

/* Orders from low to high; low is above high where there are none. */
INLINE interval orders_between(uint32_t low, uint32_t high) {
    const interval in = {low, high, max(0, 32 - DIGIT - __clz((int)(high - low))), false, 0, 0};
    return in;
}

/* So many steps below the largest logit from one on; all that have a mass are BUCKETS. */
INLINE interval steps_from(float first, float count) {
    const interval in = {0, 0, 0, true, first, (float)BUCKETS / count};
    return in;
}

/* The orders of these places, to all threads. */
INLINE interval orders_of_places(const sample_chunk *c, const interval *in, int first, int end) {
    if (threadIdx.x < 2) c->room->edges[threadIdx.x] = order_at_place(c, in, (float)(threadIdx.x == 0 ? end : first));
    __syncthreads();
    return orders_between(c->room->edges[0] + 1, c->room->edges[1]);
}

INLINE interval orders_of_bucket(const sample_chunk *c, const interval *in, int bucket) {
    if (in->by_steps) return orders_of_places(c, in, BUCKETS - 1 - bucket, BUCKETS - bucket);
    const uint32_t low = in->low + ((uint32_t)bucket << in->shift);
    return orders_between(low, min(in->high, low + ((1u << in->shift) - 1)));
}

/* Which bucket has the cut, to all threads: the one that takes what is in front of it and before up to wanted. share: wanted is this share of all buckets. */
INLINE found find_bucket(const sample_chunk *c, unsigned long long before, unsigned long long wanted, float share, const bool masses, unsigned long long *all) {
    unsigned long long sums[OF_THREAD];
    add_buckets(c, masses, sums);
    unsigned long long front = before + in_front(c, sums[0] + sums[1] + sums[2] + sums[3], all);
    if (share > 0) wanted = (unsigned long long)ceil((double)share * (double)*all);
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) {
        if (front < wanted && front + sums[i] >= wanted) {
            const found here = {BUCKETS - 1 - OF_THREAD * (int)threadIdx.x - i, front, sums[i]};
            c->room->cut = here;
        }
        front += sums[i];
    }
    meet();                           /* all have read the buckets, too */
    const found cut = c->room->cut;
    __syncthreads();
    return cut;
}

/* Keeps the fewest ids from the front on whose sum is at least wanted, or the share of all where they are masses; fewer than that are all kept. First, buckets are equal steps below the largest
 * logit, as the upper bits of most ids of a row are alike and their additions would wait for each other. Of masses, a rough histogram says which three steps to look at: then few are added to
 * buckets, and where the cut turns out to be elsewhere all steps are looked at. What is too low for steps has no mass; where counts do not reach wanted in front of it, the cut is there. Then the
 * orders of the bucket that has the cut are divided, until there is one or all that are in it are wanted. */
INLINE void cut_at(sample_chunk *c, unsigned long long wanted, const bool masses) {
    unsigned long long before = 0, all;
    interval in = steps_from(0, (float)BUCKETS);
    c->steps = fminf((float)BUCKETS / (-SAMPLING_LEAST_MASS * c->room->settings.temperature), 1e30f);
    if (masses) {
        fill_roughly(c);
        const found about = find_bucket(c, 0, 0, c->room->settings.top_p, false, &all);
        in = steps_from((float)max(0, BUCKETS - 2 - about.bucket), 3);
    }
    for (;;) {
        if (in.by_steps) fill_by_steps(c, &in, masses);
        else fill_by_orders(c, &in, masses);
        if (in.by_steps && masses) {
            const mass_sums sums = gather_sums(c);
            wanted = (unsigned long long)ceil((double)c->room->settings.top_p * (double)sums.all);
            before = sums.front;
        }
        const found cut = find_bucket(c, before, wanted, 0, masses, &all);
        if (cut.bucket < 0) {
            if (!in.by_steps) return;
            if (in.finer != 1) {
                in = steps_from(0, (float)BUCKETS);
                continue;
            }
            in = orders_between(LOWEST, orders_of_places(c, &in, BUCKETS, BUCKETS + 1).high);
            before += all;
            continue;
        }
        before = cut.before;
        in = orders_of_bucket(c, &in, cut.bucket);
        const unsigned long long each = weight_of(c, logit_of_order(in.low), masses);   /* the least that one in it weighs */
        if (wanted + each <= before + cut.inside && in.low < in.high) continue;
        const unsigned long long ties = (wanted - before + each - 1) / each;
        const int last = wanted + each > before + cut.inside ? NONE : find_tie(c, in.low, ties);
        const uint32_t order = max(in.low, c->order);   /* the lowest orders of the interval may be out by a cut in front */
        c->last = order == c->order ? min(c->last, last) : last;
        c->order = order;
        return;
    }
}

#endif
