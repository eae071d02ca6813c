/* sample by clusters: a row is read once; the likeliest, the largest and the sum of e^x are found on the way. */
#ifndef KERNELS_SAMPLE_CLUSTER_READ_CUH
#define KERNELS_SAMPLE_CLUSTER_READ_CUH

#include "kernels/sample/cluster_chunk.cuh"

INLINE void raise_to(float *largest, float *sum, float most, float scale) {
    if (!(most > *largest)) return;
    *sum *= ex2((*largest - most) * scale);
    *largest = most;
}

/* The largest and the sum of what several have read; -inf and 0 of nothing, and NaN of what has one. */
INLINE void add_sum(float *largest, float *sum, float other, float other_sum, float scale) {
    const float most = fmaxf(*largest, other);
    if (most == -INFINITE) {
        *sum += other_sum;
        return;
    }
    *sum = *sum * ex2((*largest - most) * scale) + other_sum * ex2((other - most) * scale);
    *largest = most;
}

/* Logits that are all there, as they come: so many fours, one of each step from id at on. NaN and +inf are seen in the sum and the largest, behind all. Of masses the largest of each four is taken:
 * their sum is at least a quarter of what all have. */
INLINE void take_plain(const sample_chunk *c, int at, const float x[][WORDS], const int fours, reading *r) {
    float most = -INFINITE, sum = 0, of_four[AHEAD];
#pragma unroll
    for (int k = 0; k < fours; k++) {
        of_four[k] = fmaxf(fmaxf(x[k][0], x[k][1]), fmaxf(x[k][2], x[k][3]));
        most = fmaxf(most, of_four[k]);
    }
    raise_to(&r->largest, &r->sum, most, LOG2_E);
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
    const bool is_best = most > r->best;
    if (c->scale > 0) {
        raise_to(&r->best, &r->share, most, c->scale);
#pragma unroll
        for (int k = 0; k < fours; k++) r->share += ex2((of_four[k] - r->best) * c->scale);
    }
    if (!is_best) return;
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
    raise_to(&r->largest, &r->sum, fmaxf(fmaxf(raw[0], raw[1]), fmaxf(raw[2], raw[3])), LOG2_E);
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
        const bool is_best = x > r->best;
        if (c->scale > 0) {
            raise_to(&r->best, &r->share, x, c->scale);
            if (x > -INFINITE) r->share += ex2((x - r->best) * c->scale);
        }
        if (is_best) r->best = x, r->id = c->first + at + i;
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

/* Of what the first so many lanes hold, to all lanes of the warp. */
INLINE unsigned long long warp_reading(const sample_chunk *c, const int lanes, reading *r, unsigned long long best) {
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) {
        add_sum(&r->largest, &r->sum, __shfl_xor_sync(~0u, r->largest, step), __shfl_xor_sync(~0u, r->sum, step), LOG2_E);
        if (c->scale > 0) add_sum(&r->best, &r->share, __shfl_xor_sync(~0u, r->best, step), __shfl_xor_sync(~0u, r->share, step), c->scale);
        r->bad |= __shfl_xor_sync(~0u, r->bad, step);
    }
    return warp_most(best);
}

/* What all blocks have read, to all their threads. */
INLINE void gather_readings(const sample_chunk *c, reading *r) {
    cluster_room *room = c->room;
    const int lane = (int)threadIdx.x % 32;
    r->bad |= !(r->largest < INFINITE) || r->sum != r->sum;
    unsigned long long best = warp_reading(c, 32, r, r->best > -INFINITE ? rank_of(r->best, r->id) : 0);
    if (lane == 0) {
        room->warp_largest[threadIdx.x / 32] = r->largest;
        room->warp_sum[threadIdx.x / 32] = r->sum;
        room->warp_best[threadIdx.x / 32] = r->best;
        room->warp_share[threadIdx.x / 32] = r->share;
        room->of_warp[threadIdx.x / 32] = best;
    }
    const uint32_t bad = (uint32_t)__syncthreads_or((int)r->bad);
    if (threadIdx.x < 32) {
        reading all = {-INFINITE, 0, -INFINITE, 0, 0, bad};
        if (lane < WARPS) all.largest = room->warp_largest[lane], all.sum = room->warp_sum[lane], all.best = room->warp_best[lane], all.share = room->warp_share[lane];
        best = warp_reading(c, WARPS, &all, lane < WARPS ? room->of_warp[lane] : 0);
        const shown mine = {all.largest, all.sum, all.best, all.share, bad, (uint32_t)(best >> 32), (uint32_t)best, 0};
        if (lane == 0) room->show[0] = mine;
    }
    meet();
    if (threadIdx.x < 32) {
        reading all = {-INFINITE, 0, -INFINITE, 0, 0, 0};
        best = 0;
        if (lane < (int)c->blocks) {
            const shown *other = &room->show[0];
            all.largest = __uint_as_float(word_of_block(&other->largest, lane));
            all.sum = __uint_as_float(word_of_block(&other->sum, lane));
            all.best = __uint_as_float(word_of_block(&other->best, lane));
            all.share = __uint_as_float(word_of_block(&other->share, lane));
            all.bad = word_of_block(&other->bad, lane);
            best = (unsigned long long)word_of_block(&other->high, lane) << 32 | word_of_block(&other->low, lane);
        }
        best = warp_reading(c, SAMPLE_CLUSTER_BLOCKS, &all, best);
        if (lane == 0) room->all = all, room->best = best;
    }
    __syncthreads();
    *r = room->all;
}

#endif
