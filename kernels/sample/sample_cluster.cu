/* sample on GPUs with clusters: the blocks of one share a row, each reads its chunk once and keeps it in shared memory.
 *
 *     gmem -> smem   logits as bias, mask and counts make them, in fp32. Where there is none of these the copy engine brings them as they come, all pieces at once, and threads read
 *                    each piece when it is there
 *     reading        the likeliest, and the largest and the sum of e^x of the logits as they come. The likeliest alone needs no more
 *     cuts           11 bits of the ordered logit at a time: a histogram of counts or masses in each block, which all blocks add up and walk down; equal ones at the cut by their ids
 *     draw           4 ids a thread and Philox counter; noise only where a word could be enough beside the noise of the likeliest
 *
 * Counts and masses are integers, so any order of adding gives the same, and ids are those of op/sampling.h. Masses have 30 bits and are added in two halves of 15, as a block has fewer than 2^16 ids.
 * Resources: 4 bytes an id of the chunk, or 2, and 18 KiB. Speed: README.md. */
#include "kernels/gpu/ptx/bulk.cuh"
#include "kernels/gpu/ptx/warp.cuh"
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/sample/sample_cuda.h"
#include "op/sampling.h"

#define LOG2_E 1.44269504f

enum { THREADS = SAMPLE_CLUSTER_THREADS, WARPS = THREADS / 32, DIGIT = 11, BUCKETS = 1 << DIGIT, ORDER = 32, WORDS = 4, NONE = 0x7fffffff };
enum { OF_THREAD = BUCKETS / THREADS, HALF = 15 };
enum { STEP = THREADS * WORDS, AHEAD = 2, COPY = STEP * AHEAD, COPIES = (SAMPLE_CLUSTER_MOST + COPY - 1) / COPY };   /* ids that a block reads in a step, and that come as one copy */
static_assert(OF_THREAD == 4, "a thread reads its buckets as one vector");

/* What a block shows the others; each is written once between two meetings of the cluster. */
typedef struct shown { float largest, sum; uint32_t bad, high, low, count; } shown;

/* What was read: the largest logit and the sum of e^x as they come, the likeliest as they are kept, and its id; bad: some are NaN or +inf. */
typedef struct reading { float largest, sum, best; int id; uint32_t bad; } reading;

/* Where a cut lies, and what is in front of its bucket. */
typedef struct found { int bucket; unsigned long long before, inside; } found;

typedef struct cluster_room {
    __align__(16) uint32_t low[BUCKETS], high[BUCKETS];
    unsigned long long of_warp[WARPS];
    uint64_t piece_full[COPIES];  /* mbarriers: a piece's bytes are there; each is used once */
    float warp_largest[WARPS], warp_sum[WARPS];
    reading all;
    unsigned long long best;
    shown show[4];
    found cut;
    int last;
} cluster_room;

/* A block's part of a row. */
typedef struct sample_chunk {
    void *kept;                   /* smem [here] */
    int format;                   /* of kept */
    cluster_room *room;
    int64_t row, picked;
    int first, here;              /* ids */
    int copied;                   /* ids that the copy engine brings; 0: none */
    uint32_t rank, blocks;
    sampling_settings settings;
    float largest;
    uint32_t order;               /* the last id that is kept: those of a larger order, of the same one ids up to last */
    int last;
} sample_chunk;

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
            else if (a->counts.data != 0) x = sampling_penalise(x, ((const int32_t *)a->counts.data)[c->picked * a->count + id], &c->settings);
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
    return a->logits.data + (uint64_t)(c->row * a->count + c->first) * (format == CUDA_f32 ? 4 : 2);
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

INLINE uint32_t weight_of(const sample_chunk *c, float x, const bool masses) { return masses ? (uint32_t)sampling_mass(sampling_heat(x, c->largest, c->settings.temperature)) : 1; }

INLINE void fill_buckets(const sample_chunk *c, int bits, uint32_t order, const bool masses) {
    const int shift = bits > DIGIT ? bits - DIGIT : 0;
    cluster_room *room = c->room;
    for (int i = threadIdx.x; i < BUCKETS; i += THREADS) room->low[i] = room->high[i] = 0;
    if (threadIdx.x == 0) room->cut.bucket = -1;
    __syncthreads();
#pragma unroll 2
    for (int i = threadIdx.x; i < c->here; i += THREADS) {
        const float x = kept_at(c, i);
        const uint32_t own = sampling_order(x);
        if (!is_kept(c, x, c->first + i) || (bits < ORDER && (own ^ order) >> bits != 0)) continue;
        const uint32_t weight = weight_of(c, x, masses), bucket = own >> shift & (BUCKETS - 1);
        atomicAdd(&room->low[bucket], masses ? weight & ((1u << HALF) - 1) : weight);
        if (masses && weight >> HALF != 0) atomicAdd(&room->high[bucket], weight >> HALF);
    }
    meet();
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

/* Keeps the fewest ids from the front on whose sum is at least wanted, or the share of all where they are masses; fewer than that are all kept. */
INLINE void cut_at(sample_chunk *c, unsigned long long wanted, const bool masses) {
    uint32_t order = 0;
    unsigned long long before = 0, inside = 0, sums[OF_THREAD], all;
    for (int bits = ORDER; bits > 0; bits = bits > DIGIT ? bits - DIGIT : 0) {
        fill_buckets(c, bits, order, masses);
        add_buckets(c, masses, sums);
        unsigned long long front = before + in_front(c, sums[0] + sums[1] + sums[2] + sums[3], &all);
        if (masses && bits == ORDER) wanted = (unsigned long long)ceil((double)c->settings.top_p * (double)all);
#pragma unroll
        for (int i = 0; i < OF_THREAD; i++) {
            if (front < wanted && front + sums[i] >= wanted) {
                const found here = {BUCKETS - 1 - OF_THREAD * (int)threadIdx.x - i, front, sums[i]};
                c->room->cut = here;
            }
            front += sums[i];
        }
        meet();                       /* all have read the buckets, too */
        if (c->room->cut.bucket < 0) return;
        order |= (uint32_t)c->room->cut.bucket << (bits > DIGIT ? bits - DIGIT : 0);
        before = c->room->cut.before;
        inside = c->room->cut.inside;
        __syncthreads();
    }
    const float x = small_float((int32_t)(order ^ (order >> 31 != 0 ? 0x80000000u : 0xffffffffu)));
    const unsigned long long each = weight_of(c, x, masses), ties = (wanted - before + each - 1) / each;
    const int last = ties * each == inside ? NONE : find_tie(c, order, ties);
    c->last = order == c->order ? min(c->last, last) : last;
    c->order = order;
}

/* ---- the draw ---- */

/* Words whose noise may be enough are at most so large: u is at most -log(1 - u), which is e^-noise. */
INLINE uint32_t most_word(float missing) {
    missing -= 1e-3f;
    return missing <= 0 ? 0xffffffffu : (uint32_t)(sampling_exp(-missing) * 4294967040.0f) + 1024;
}

INLINE int draw_among(const sample_arguments *a, const sample_chunk *c, int likeliest) {
    const int64_t *numbers = (const int64_t *)a->draw.data + 2 * c->row;
    const uint64_t seed = (uint64_t)numbers[0], draw = (uint64_t)numbers[1];
    const float least = sampling_least_heat(c->settings.min_p);
    float most = sampling_noise(sampling_words(seed, draw, (uint32_t)likeliest / WORDS).word[likeliest % WORDS]);   /* its heat is 0 */
    unsigned long long best = rank_of(most, likeliest);
    for (int at = (int)threadIdx.x * WORDS; at < c->here; at += THREADS * WORDS) {
        bool any = false;
        float heat[WORDS];
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const float x = at + i < c->here ? kept_at(c, at + i) : -INFINITE;
            heat[i] = is_kept(c, x, c->first + at + i) ? sampling_heat(x, c->largest, c->settings.temperature) : -INFINITE;
            if (heat[i] < least) heat[i] = -INFINITE;
            any = any || heat[i] + SAMPLING_MOST_NOISE >= most;
        }
        if (!any) continue;
        const philox_words words = sampling_words(seed, draw, (uint32_t)(c->first + at) / WORDS);
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            if (heat[i] == -INFINITE || words.word[i] > most_word(most - heat[i])) continue;
            const float score = SAMPLING_ADD(heat[i], sampling_noise(words.word[i]));
            const unsigned long long rank = rank_of(score, c->first + at + i);
            if (rank > best) best = rank, most = score;
        }
    }
    return id_of(cluster_most(c, best, 3));
}

/* ---- results ---- */

INLINE float logit_of(const int format, const sample_arguments *a, const sample_chunk *c, int id) { return element_at(format, a->logits.data, c->row * a->count + id); }

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
        ((int64_t *)a->best_ids.data)[c->row * a->length + k] = none ? -1 : id_of(before);
        ((float *)a->best_logs.data)[c->row * a->length + k] = none ? NOT_A_NUMBER : logit_of(format, a, c, id_of(before)) - log_sum;
    }
}

INLINE int choose(const sample_arguments *a, sample_chunk *c) {
    const sampling_settings *s = &c->settings;
    const unsigned long long best = c->room->best;
    const uint32_t order = (uint32_t)(best >> 32);
    c->largest = small_float((int32_t)(order ^ (order >> 31 != 0 ? 0x80000000u : 0xffffffffu)));
    if (best == 0 || c->largest == -INFINITE) return SAMPLING_NOTHING_LEFT;
    if (s->temperature == 0) return id_of(best);
    if (s->top_k >= 1 && s->top_k < (float)a->count) cut_at(c, (unsigned long long)s->top_k, false);
    if (s->top_p > 0 && s->top_p < 1) cut_at(c, 0, true);
    return draw_among(a, c, id_of(best));
}

INLINE bool read_settings(const sample_arguments *a, sample_chunk *c) {
    c->settings = sampling_settings_of((const float *)a->settings.data + c->row * SAMPLING_SETTINGS);
    c->picked = a->row.data != 0 ? load_int(&a->row, c->row) : c->row;
    return sampling_are_good(&c->settings) && c->picked >= -1 && c->picked < a->picked_rows;
}

INLINE void sample_chunked(const int format, const sample_arguments *a, cluster_room *room) {
    extern __shared__ __align__(16) float kept[];
    sample_chunk c = {kept, format == CUDA_f32 || adjusts_logits(a) ? CUDA_f32 : format, room};
    reading all = {-INFINITE, 0, -INFINITE, NONE, 0};
    int id = SAMPLING_BAD_SETTINGS;
    float log_sum = 0;
    c.rank = cluster_rank();
    c.blocks = cluster_blocks();
    c.row = (int64_t)(blockIdx.x / c.blocks);
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
        log_sum = all.largest + logf(all.sum);
        id = all.bad ? (int)SAMPLING_NOT_FINITE : choose(a, &c);
    } else {
        await_chunk(&c);
    }
    if (a->length > 0) meet();
    store_best(format, a, &c, log_sum, id < 0);
    if (c.rank == 0 && threadIdx.x == 0) {
        ((int64_t *)a->ids.data)[c.row] = id;
        ((float *)a->logs.data)[c.row] = id < 0 ? NOT_A_NUMBER : logit_of(format, a, &c, id) - log_sum;
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
