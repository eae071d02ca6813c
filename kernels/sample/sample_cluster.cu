/* sample on GPUs with clusters: the blocks of one share a row, each reads its chunk once and keeps it in shared memory.
 *
 *     gmem -> smem   logits as bias, mask and counts make them, in fp32. Where there is none of these the copy engine brings them as they come, all pieces at once, and threads read
 *                    each piece when it is there
 *     reading        the likeliest, and the largest and the sum of e^x of the logits as they come. The likeliest alone needs no more
 *     cuts           histograms of counts or masses in each block, which all blocks add up and walk down: 2048 equal steps below the largest logit, then 11 bits at a time of the ordered
 *                    logits in the step that has the cut; equal ones at the cut by their ids
 *     draw           4 ids a thread and Philox counter; each id's score is bounded from above by fast arithmetic, and the exact one computed of the highest bound of each thread
 *
 * Counts and masses are integers, so any order of adding gives the same, and ids are those of op/sampling.h. Masses have 30 bits and are added in two halves of 15, as a block has fewer than 2^16 ids.
 * Resources: 4 bytes an id of the chunk, or 2, and 18 KiB. Speed: README.md. */
#include "kernels/gpu/ptx/bulk.cuh"
#include "kernels/gpu/ptx/warp.cuh"
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/sample/sample_cuda.h"
#include "op/sampling.h"

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f
#define LARGEST 3.40282347e38f

enum { THREADS = SAMPLE_CLUSTER_THREADS, WARPS = THREADS / 32, DIGIT = 11, BUCKETS = 1 << DIGIT, WORDS = 4, NONE = 0x7fffffff };
enum { OF_THREAD = BUCKETS / THREADS, HALF = 15 };
enum { STEP = THREADS * WORDS, AHEAD = 2, COPY = STEP * AHEAD, COPIES = (SAMPLE_CLUSTER_MOST + COPY - 1) / COPY };   /* ids that a block reads in a step, and that come as one copy */
#define SLACK 1e-3f                    /* more than fast arithmetic is off by */
enum { LOWEST = 1 << 23 };            /* the order of the lowest finite number */
static_assert(OF_THREAD == 4, "a thread reads its buckets as one vector");

/* What a block shows the others; each is written once between two meetings of the cluster. */
typedef struct shown { float largest, sum; uint32_t bad, high, low, count; } shown;

/* What was read: the largest logit and the sum of e^x as they come, the likeliest as they are kept, and its id; bad: some are NaN or +inf. */
typedef struct reading { float largest, sum, best; int id; uint32_t bad; } reading;

/* Where a cut lies, and what is in front of its bucket. */
typedef struct found { int bucket; unsigned long long before, inside; } found;

/* What is divided into buckets: logits below the largest, from so many steps on, a bucket being 1 / finer of a step; or the orders from low to high by 2^shift. */
typedef struct interval { uint32_t low, high; int shift; bool by_steps; float from, finer; } interval;
/* Masses, of all ids or in front of an interval. */
typedef struct mass_sums { unsigned long long all, front; } mass_sums;

typedef struct cluster_room {
    __align__(16) uint32_t low[BUCKETS], high[BUCKETS];
    unsigned long long of_warp[WARPS];
    uint64_t piece_full[COPIES];  /* mbarriers: a piece's bytes are there; each is used once */
    float warp_largest[WARPS], warp_sum[WARPS];
    sampling_settings settings;
    reading all;
    unsigned long long best;
    shown show[4];
    found cut;
    uint32_t edges[2];
    mass_sums sums;
    int last;
} cluster_room;

/* A block's part of a row. */
typedef struct sample_chunk {
    void *kept;                   /* smem [here] */
    int format;                   /* of kept */
    cluster_room *room;
    int64_t picked;
    int first, here;              /* ids */
    int copied;                   /* ids that the copy engine brings; 0: none */
    uint32_t rank, blocks;
    float largest, over;          /* over: 1 / temperature */
    bool divides;                 /* heats are computed by it */
    float steps;                  /* for each logit below the largest */
    uint32_t order;               /* the last id that is kept: those of a larger order, of the same one ids up to last */
    int last;
} sample_chunk;

INLINE int64_t row_of(const sample_chunk *c) { return blockIdx.x / c->blocks; }

INLINE void meet(void) {
    cluster_arrive();
    cluster_wait();
}

INLINE uint32_t word_of_block(const void *place, uint32_t rank) { return __float_as_uint(ld_cluster_f32(cluster_map(shared_address(place), rank))); }

INLINE unsigned long long rank_of(float x, int id) { return (unsigned long long)sampling_order(x) << 32 | (0xffffffffu - (uint32_t)id); }
INLINE int id_of(unsigned long long rank) { return (int)(0xffffffffu - (uint32_t)rank); }

INLINE unsigned long long warp_most(unsigned long long x) {
    const uint32_t high = redux_max((uint32_t)(x >> 32)), low = redux_max((uint32_t)(x >> 32) == high ? (uint32_t)x : 0);
    return (unsigned long long)high << 32 | low;
}

/* The largest of the cluster, to all its threads. place: which of the things shown; the next use of the same one is two meetings later. */
INLINE unsigned long long cluster_most(const sample_chunk *c, unsigned long long x, int place) {
    cluster_room *room = c->room;
    x = warp_most(x);
    if (threadIdx.x % 32 == 0) room->of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x < 32) {
        x = warp_most(threadIdx.x < WARPS ? room->of_warp[threadIdx.x] : 0);
        room->show[place].high = (uint32_t)(x >> 32);
        room->show[place].low = (uint32_t)x;
    }
    meet();
    x = 0;
    for (uint32_t i = 0; i < c->blocks; i++) {
        const unsigned long long other = (unsigned long long)word_of_block(&room->show[place].high, i) << 32 | word_of_block(&room->show[place].low, i);
        x = other > x ? other : x;
    }
    return x;
}

/* ---- reading ---- */

INLINE bool adjusts_logits(const sample_arguments *a) { return a->bias.data != 0 || a->mask.data != 0 || a->counts.data != 0; }

INLINE float kept_at(const sample_chunk *c, int i) {
    if (c->format == CUDA_f32) return ((const float *)c->kept)[i];
    const uint16_t bits = ((const uint16_t *)c->kept)[i];
    return c->format == CUDA_bf16 ? __uint_as_float((uint32_t)bits << 16) : cvt_f32_f16(bits);
}

INLINE void keep(const sample_chunk *c, int i, float x) {
    if (c->format == CUDA_f32) ((float *)c->kept)[i] = x;
    else ((uint16_t *)c->kept)[i] = (uint16_t)pack_pair(c->format, x, 0);
}

INLINE void keep_four(const sample_chunk *c, int at, const float *x) {
    if (c->format == CUDA_f32) ((float4 *)c->kept)[at / WORDS] = make_float4(x[0], x[1], x[2], x[3]);
    else ((uint2 *)c->kept)[at / WORDS] = make_uint2(pack_pair(c->format, x[0], x[1]), pack_pair(c->format, x[2], x[3]));
}

INLINE void raise_to(reading *r, float most) {
    if (!(most > r->largest)) return;
    r->sum *= ex2((r->largest - most) * LOG2_E);
    r->largest = most;
}

/* Logits that are all there, as they come: so many fours, one of each step from id at on. NaN and +inf are seen in the sum and the largest, behind all. */
INLINE void take_plain(const sample_chunk *c, int at, const float x[][WORDS], const int fours, reading *r) {
    float most = -INFINITE, sum = 0;
#pragma unroll
    for (int k = 0; k < fours; k++) most = fmaxf(most, fmaxf(fmaxf(x[k][0], x[k][1]), fmaxf(x[k][2], x[k][3])));
    raise_to(r, most);
    if (r->largest == -INFINITE) {
#pragma unroll
        for (int k = 0; k < fours; k++) r->sum += x[k][0] + x[k][1] + x[k][2] + x[k][3] == -INFINITE ? 0 : NOT_A_NUMBER;
        return;
    }
#pragma unroll
    for (int k = 0; k < fours; k++) {
        float e[WORDS];
#pragma unroll
        for (int i = 0; i < WORDS; i++) e[i] = ex2((x[k][i] - r->largest) * LOG2_E);
        sum += (e[0] + e[1]) + (e[2] + e[3]);
    }
    r->sum += sum;
    if (!(most > r->best)) return;
    r->best = most;
#pragma unroll
    for (int k = fours - 1; k >= 0; k--) {
#pragma unroll
        for (int i = WORDS - 1; i >= 0; i--)
            if (x[k][i] == most) r->id = c->first + at + k * STEP + i;
    }
}

/* Four logits from id on, those that are there. */
INLINE void take_four(const sample_arguments *a, const sample_chunk *c, int at, const float x4[][WORDS], reading *r) {
    const float *raw = x4[0];
    const bool adjusts = c->picked >= 0 && adjusts_logits(a);
    if (!adjusts && at + WORDS <= c->here) {
        keep_four(c, at, raw);
        take_plain(c, at, x4, 1, r);
        return;
    }
    raise_to(r, fmaxf(fmaxf(raw[0], raw[1]), fmaxf(raw[2], raw[3])));
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        float x = raw[i];
        if (at + i >= c->here) break;
        r->bad |= !(x < INFINITE);
        if (r->largest > -INFINITE) r->sum += ex2((x - r->largest) * LOG2_E);
        if (adjusts) {
            const int64_t id = c->first + at + i;
            if (a->bias.data != 0) x = SAMPLING_ADD(x, ((const float *)a->bias.data)[c->picked * a->count + id]);
            if (a->mask.data != 0 && (((const uint32_t *)a->mask.data)[c->picked * a->mask_words + id / 32] >> (id % 32) & 1) == 0) x = -INFINITE;
            else if (a->counts.data != 0) x = sampling_penalise(x, ((const int32_t *)a->counts.data)[c->picked * a->count + id], &c->room->settings);
            r->bad |= !(x < INFINITE);
        }
        keep(c, at + i, x);
        if (x > r->best) r->best = x, r->id = c->first + at + i;
    }
}

/* Logits from memory: 16 bytes at a time where they lie so. */
INLINE void load_four(const int format, uint64_t data, bool in_words, int at, int here, float *x) {
    if (in_words && at + WORDS <= here && format == CUDA_f32) {
        const float4 four = ((const float4 *)data)[at / WORDS];
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else if (in_words && at + WORDS <= here) {
        const uint2 four = ((const uint2 *)data)[at / WORDS];
        unpack_pair(format, four.x, x);
        unpack_pair(format, four.y, x + 2);
    } else {
#pragma unroll
        for (int i = 0; i < WORDS; i++) x[i] = at + i < here ? element_at(format, data, at + i) : -INFINITE;
    }
}

/* Four logits that the copy engine has brought. */
INLINE void load_kept(const int format, const sample_chunk *c, int at, float *x) {
    if (format == CUDA_f32) {
        const float4 four = ((const float4 *)c->kept)[at / WORDS];
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
        const uint2 four = ((const uint2 *)c->kept)[at / WORDS];
        unpack_pair(format, four.x, x);
        unpack_pair(format, four.y, x + 2);
    }
}

INLINE uint64_t chunk_address(const int format, const sample_arguments *a, const sample_chunk *c) {
    return a->logits.data + (uint64_t)(row_of(c) * a->count + c->first) * (format == CUDA_f32 ? 4 : 2);
}

/* Starts the copies of what is kept as it comes and lies in whole 16 bytes; ids behind the last of these are read by threads. One thread starts them, and all of them set copied. */
INLINE void copy_chunk(const int format, const sample_arguments *a, sample_chunk *c) {
    const int bytes = format == CUDA_f32 ? 4 : 2, in_16 = 16 / bytes;
    const uint64_t from = chunk_address(format, a, c);
    c->copied = from % 16 == 0 && !adjusts_logits(a) ? c->here / in_16 * in_16 : 0;
    if (threadIdx.x != 0) return;
    for (int at = 0; at < c->copied; at += COPY) {
        const uint32_t size = (uint32_t)(min(COPY, c->copied - at) * bytes), full = shared_address(&c->room->piece_full[at / COPY]);
        mbarrier_arrive_expect(full, size);
        bulk_load(shared_address(c->kept) + (uint32_t)(at * bytes), from + (uint64_t)at * bytes, size, full);
    }
}

INLINE void read_chunk(const int format, const sample_arguments *a, const sample_chunk *c, reading *r) {
    const uint64_t data = chunk_address(format, a, c);
    const bool in_words = data % (WORDS * (format == CUDA_f32 ? 4 : 2)) == 0;
    for (int piece = 0; piece < c->here; piece += COPY) {   /* all threads wait for all pieces, as they read those of others later */
        const int base = piece + (int)threadIdx.x * WORDS;
        float x[AHEAD][WORDS];
        if (piece < c->copied) mbarrier_wait(shared_address(&c->room->piece_full[piece / COPY]), 0);
        if (base + (AHEAD - 1) * STEP + WORDS <= c->copied) {
#pragma unroll
            for (int k = 0; k < AHEAD; k++) load_kept(format, c, base + k * STEP, x[k]);
            take_plain(c, base, x, AHEAD, r);
            continue;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = base + k * STEP;
            if (at + WORDS <= c->copied) load_kept(format, c, at, x[k]);
            else load_four(format, data, in_words, at, c->here, x[k]);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) take_four(a, c, base + k * STEP, x + k, r);
    }
}

/* No block ends while bytes are on the way to it. */
INLINE void await_chunk(const sample_chunk *c) {
    for (int piece = 0; piece < c->copied; piece += COPY) mbarrier_wait(shared_address(&c->room->piece_full[piece / COPY]), 0);
}

/* The largest and the sum of what several have read; -inf and 0 of nothing, and NaN of what has one. */
INLINE void add_reading(reading *r, float largest, float sum) {
    const float most = fmaxf(r->largest, largest);
    if (most == -INFINITE) {
        r->sum += sum;
        return;
    }
    r->sum = r->sum * ex2((r->largest - most) * LOG2_E) + sum * ex2((largest - most) * LOG2_E);
    r->largest = most;
}

/* Of what the first so many lanes hold, to all lanes of the warp. */
INLINE unsigned long long warp_reading(const int lanes, reading *r, unsigned long long best) {
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) {
        add_reading(r, __shfl_xor_sync(~0u, r->largest, step), __shfl_xor_sync(~0u, r->sum, step));
        r->bad |= __shfl_xor_sync(~0u, r->bad, step);
    }
    return warp_most(best);
}

/* What all blocks have read, to all their threads. */
INLINE void gather_readings(const sample_chunk *c, reading *r) {
    cluster_room *room = c->room;
    const int lane = (int)threadIdx.x % 32;
    r->bad |= !(r->largest < INFINITE) || r->sum != r->sum;
    unsigned long long best = warp_reading(32, r, r->best > -INFINITE ? rank_of(r->best, r->id) : 0);
    if (lane == 0) {
        room->warp_largest[threadIdx.x / 32] = r->largest;
        room->warp_sum[threadIdx.x / 32] = r->sum;
        room->of_warp[threadIdx.x / 32] = best;
    }
    const uint32_t bad = (uint32_t)__syncthreads_or((int)r->bad);
    if (threadIdx.x < 32) {
        reading all = {lane < WARPS ? room->warp_largest[lane] : -INFINITE, lane < WARPS ? room->warp_sum[lane] : 0, 0, 0, bad};
        best = warp_reading(WARPS, &all, lane < WARPS ? room->of_warp[lane] : 0);
        const shown mine = {all.largest, all.sum, bad, (uint32_t)(best >> 32), (uint32_t)best, 0};
        if (lane == 0) room->show[0] = mine;
    }
    meet();
    if (threadIdx.x < 32) {
        reading all = {-INFINITE, 0, 0, 0, 0};
        best = 0;
        if (lane < (int)c->blocks) {
            const shown *other = &room->show[0];
            all.largest = __uint_as_float(word_of_block(&other->largest, lane));
            all.sum = __uint_as_float(word_of_block(&other->sum, lane));
            all.bad = word_of_block(&other->bad, lane);
            best = (unsigned long long)word_of_block(&other->high, lane) << 32 | word_of_block(&other->low, lane);
        }
        best = warp_reading(SAMPLE_CLUSTER_BLOCKS, &all, best);
        if (lane == 0) room->all = all, room->best = best;
    }
    __syncthreads();
    *r = room->all;
}

/* ---- cuts ---- */

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

/* Four logits that are kept in shared memory, -inf behind the last. */
INLINE void kept_four(const sample_chunk *c, int at, float *x) {
    if (at + WORDS <= c->here) {
        load_kept(c->format, c, at, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) x[i] = at + i < c->here ? kept_at(c, at + i) : -INFINITE;
}

/* The number that orders as the logits do, back to the logit. */
INLINE float logit_of_order(uint32_t order) { return small_float((int32_t)(order ^ (order >> 31 != 0 ? 0x80000000u : 0xffffffffu))); }

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

/* Logits by steps, the least bucket first counted from behind: the largest logits are in the last one. */
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

/* ---- the draw ---- */

/* What decides between the ids of a thread: no score is above its bound. */
typedef struct contest { uint64_t seed, draw; float over, least, lowest, best, second; int id; } contest;

/* Bounds of the scores of four ids; -inf of what is out. The heat by the reciprocal of the temperature is off by less than SLACK where it is above -1000, and -log(u) is at least the noise, as u is
 * at most -log(1 - u): little more where u is small. u is cut off behind 23 bits. */
INLINE void bounds_of(const sample_chunk *c, const contest *t, int at, const float *x, const philox_words *words, float *bound) {
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const float heat = fmaxf((x[i] - c->largest) * t->over, -1000.0f), u = __uint_as_float(words->word[i] >> 9 | 0x3f800000u) - 1.0f;
        const bool is_in = x[i] > t->lowest || (x[i] == t->lowest && c->first + at + i <= c->last);
        bound[i] = is_in && heat >= t->least - SLACK ? heat + SLACK - LN_2 * lg2(u) : -INFINITE;
    }
}

/* Can none of the four win against a score, whatever their noise is? */
INLINE bool are_hopeless(const sample_chunk *c, const contest *t, const float *x, float score) {
    return (fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])) - c->largest) * t->over + SAMPLING_MOST_NOISE + SLACK < score;
}

/* The rank of an id's score; 0: min_p leaves it out. */
INLINE unsigned long long score_of(const sample_chunk *c, const contest *t, float x, int id, uint32_t word) {
    const float heat = heat_of(c, x);
    return heat < t->least ? 0 : rank_of(SAMPLING_ADD(heat, sampling_noise(word)), id);
}

INLINE uint32_t word_of(const contest *t, int id) {
    const philox_words words = sampling_words(t->seed, t->draw, (uint32_t)id / WORDS);
    const uint32_t even = id % 4 < 2 ? words.word[0] : words.word[2], odd = id % 4 < 2 ? words.word[1] : words.word[3];
    return id % 2 == 0 ? even : odd;
}

/* The two highest bounds of the thread's ids, and the id of the first. */
INLINE void find_highest(const sample_chunk *c, contest *t, float score) {
    t->best = t->second = -INFINITE;
    t->id = -1;
#pragma unroll 1
    for (int at = (int)threadIdx.x * WORDS; at < c->here; at += STEP) {
        float x[WORDS], bound[WORDS];
        kept_four(c, at, x);
        if (are_hopeless(c, t, x, score)) continue;
        const philox_words words = sampling_words(t->seed, t->draw, (uint32_t)(c->first + at) / WORDS);
        bounds_of(c, t, at, x, &words, bound);
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            t->second = fmaxf(t->second, fminf(t->best, bound[i]));
            if (bound[i] > t->best) t->best = bound[i], t->id = at + i;
        }
    }
}

/* The highest score of the thread's ids whose bounds are at least as high as one that is known. */
INLINE unsigned long long score_all(const sample_chunk *c, const contest *t, float score, unsigned long long most) {
#pragma unroll 1
    for (int at = (int)threadIdx.x * WORDS; at < c->here; at += STEP) {
        float x[WORDS], bound[WORDS];
        kept_four(c, at, x);
        if (are_hopeless(c, t, x, score)) continue;
        const philox_words words = sampling_words(t->seed, t->draw, (uint32_t)(c->first + at) / WORDS);
        bounds_of(c, t, at, x, &words, bound);
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            if (bound[i] < score) continue;
            const unsigned long long rank = score_of(c, t, x[i], c->first + at + i, words.word[i]);
            most = rank > most ? rank : most;
        }
    }
    return most;
}

/* The highest of the block, to all its threads; once. */
INLINE float block_highest(const sample_chunk *c, float x) {
    x = logit_of_order(redux_max(sampling_order(x)));
    if (threadIdx.x % 32 == 0) c->room->warp_largest[threadIdx.x / 32] = x;
    __syncthreads();
    return logit_of_order(redux_max(sampling_order(c->room->warp_largest[threadIdx.x % WARPS])));
}

/* Each thread computes the score of the one of its ids that has the highest bound. Only where another of its bounds reaches the highest score of the block are those computed, too. */
INLINE int draw_among(const sample_arguments *a, const sample_chunk *c) {
    const int likeliest = id_of(c->room->best);
    const int64_t *numbers = (const int64_t *)a->draw.data + 2 * row_of(c);
    contest t = {(uint64_t)numbers[0], (uint64_t)numbers[1], fminf(c->over, 1e30f), sampling_least_heat(c->room->settings.min_p), c->order == 0 ? -INFINITE : logit_of_order(c->order)};
    const float known = sampling_noise(word_of(&t, likeliest));   /* its heat is 0 */
    find_highest(c, &t, known);
    unsigned long long rank = t.id < 0 ? 0 : score_of(c, &t, kept_at(c, t.id), c->first + t.id, word_of(&t, c->first + t.id));
    const float most = block_highest(c, rank == 0 ? known : fmaxf(known, logit_of_order((uint32_t)(rank >> 32))));
    if (t.second >= most) rank = score_all(c, &t, most, rank);
    return id_of(cluster_most(c, max(rank, rank_of(known, likeliest)), 3));
}

/* ---- results ---- */

INLINE float logit_of(const int format, const sample_arguments *a, const sample_chunk *c, int id) { return element_at(format, a->logits.data, row_of(c) * a->count + id); }

/* The likeliest by the logits as they come, one after the other. */
INLINE void store_best(const int format, const sample_arguments *a, const sample_chunk *c, float log_sum, const bool none) {
    unsigned long long before = ~0ull;
    for (int k = 0; k < (int)a->length; k++) {
        unsigned long long best = 0;
        for (int i = threadIdx.x; i < c->here && !none; i += THREADS) {
            const unsigned long long rank = rank_of(logit_of(format, a, c, c->first + i), c->first + i);
            if (rank < before && rank > best) best = rank;
        }
        before = cluster_most(c, best, k % 2);
        if (c->rank != 0 || threadIdx.x != 0) continue;
        ((int64_t *)a->best_ids.data)[row_of(c) * a->length + k] = none ? -1 : id_of(before);
        ((float *)a->best_logs.data)[row_of(c) * a->length + k] = none ? NOT_A_NUMBER : logit_of(format, a, c, id_of(before)) - log_sum;
    }
}

INLINE int choose(const sample_arguments *a, sample_chunk *c) {
    const sampling_settings *s = &c->room->settings;
    const unsigned long long best = c->room->best;
    c->largest = logit_of_order((uint32_t)(best >> 32));
    if (best == 0 || c->largest == -INFINITE) return SAMPLING_NOTHING_LEFT;
    if (s->temperature == 0) return id_of(best);
    c->over = 1.0f / s->temperature;
    c->divides = divides_safely(s->temperature, c->largest);
    if (s->top_k >= 1 && s->top_k < (float)a->count) cut_at(c, (unsigned long long)s->top_k, false);
    if (s->top_p > 0 && s->top_p < 1) cut_at(c, 0, true);
    return draw_among(a, c);
}

INLINE bool read_settings(const sample_arguments *a, sample_chunk *c) {
    const sampling_settings settings = sampling_settings_of((const float *)a->settings.data + row_of(c) * SAMPLING_SETTINGS);
    if (threadIdx.x == 0) c->room->settings = settings;
    __syncthreads();
    c->picked = a->row.data != 0 ? load_int(&a->row, row_of(c)) : row_of(c);
    return sampling_are_good(&settings) && c->picked >= -1 && c->picked < a->picked_rows;
}

INLINE void sample_chunked(const int format, const sample_arguments *a, cluster_room *room) {
    extern __shared__ __align__(16) float kept[];
    sample_chunk c = {kept, format == CUDA_f32 || adjusts_logits(a) ? CUDA_f32 : format, room};
    reading all = {-INFINITE, 0, -INFINITE, NONE, 0};
    int id = SAMPLING_BAD_SETTINGS;
    c.rank = cluster_rank();
    c.blocks = cluster_blocks();
    c.first = (int)c.rank * a->chunk;
    c.here = max(0, min(a->chunk, (int)a->count - c.first));
    c.last = NONE;
    if (threadIdx.x == 0) {
        for (int i = 0; i < COPIES; i++) mbarrier_init(shared_address(&room->piece_full[i]), 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    grid_release();
    grid_wait();
    copy_chunk(format, a, &c);
    if (read_settings(a, &c)) {
        read_chunk(format, a, &c, &all);
        gather_readings(&c, &all);
        id = all.bad ? (int)SAMPLING_NOT_FINITE : choose(a, &c);
    } else {
        await_chunk(&c);
    }
    const float log_sum = id == SAMPLING_BAD_SETTINGS ? 0 : room->all.largest + logf(room->all.sum);
    if (a->length > 0) meet();
    store_best(format, a, &c, log_sum, id < 0);
    if (c.rank == 0 && threadIdx.x == 0) {
        ((int64_t *)a->ids.data)[row_of(&c)] = id;
        ((float *)a->logs.data)[row_of(&c)] = id < 0 ? NOT_A_NUMBER : logit_of(format, a, &c, id) - log_sum;
    }
    meet();                           /* no block ends while another one reads what it shows */
}

#define ENTRY(name, format)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) name(const __grid_constant__ sample_arguments arguments) {                     \
        __shared__ cluster_room room;                                                                                                      \
        sample_chunked(format, &arguments, &room);                                                                                         \
    }

ENTRY(sample_cluster_f32, CUDA_f32)
ENTRY(sample_cluster_bf16, CUDA_bf16)
ENTRY(sample_cluster_f16, CUDA_f16)
