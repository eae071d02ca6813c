/* sample by clusters: a row is read once; the likeliest, the largest and the sum of e^x are found on the way, and what a draw could give is listed. */
#ifndef KERNELS_SAMPLE_CLUSTER_READ_CUH
#define KERNELS_SAMPLE_CLUSTER_READ_CUH

#include "kernels/sample/cluster_watch.cuh"

INLINE void raise_to(float *largest, float *sum, float most, float scale) {
    if (!(most > *largest)) return;
    *sum *= ex2((*largest - most) * scale);
    *largest = most;
}

/* A four as it comes. NaN and +inf are seen in the sum and the largest, behind all. Of masses the largest of each four is taken: their sum is at least a quarter of what all have. */
INLINE void take_plain(const sample_chunk *c, int at, const float *x, reading *r) {
    const float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    float e[WORDS];
    if (most > r->largest) {
        r->sum *= ex2((r->largest - most) * LOG2_E);
        r->share *= ex2((r->largest - most) * c->scale);
        r->largest = most;
#pragma unroll
        for (int i = WORDS - 1; i >= 0; i--)
            if (x[i] == most) r->id = c->first + at + i;
    }
    const float over = fmaxf(r->largest, -LARGEST);   /* where all are -inf none has a share of it */
#pragma unroll
    for (int i = 0; i < WORDS; i++) e[i] = ex2((x[i] - over) * LOG2_E);
    r->sum += (e[0] + e[1]) + (e[2] + e[3]);
    r->share += ex2((most - over) * c->scale);
}

/* Four logits of the row from id on, adjusted where that is asked for, those that are there. */
INLINE void adjust_four(const sample_arguments *a, const sample_chunk *c, int at, const float *raw, reading *r) {
    raise_to(&r->largest, &r->sum, fmaxf(fmaxf(raw[0], raw[1]), fmaxf(raw[2], raw[3])), LOG2_E);
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        float x = raw[i];
        if (at + i >= c->near) break;
        r->bad |= !(x < INFINITE);
        if (r->largest > -INFINITE) r->sum += ex2((x - r->largest) * LOG2_E);
        const int64_t id = c->first + at + i;
        if (a->bias.data != 0) x = SAMPLING_ADD(x, ((const float *)a->bias.data)[c->picked * a->count + id]);
        if (a->mask.data != 0 && (((const uint32_t *)a->mask.data)[c->picked * a->mask_words + id / 32] >> (id % 32) & 1) == 0) x = -INFINITE;
        else if (a->counts.data != 0) x = sampling_penalise(x, ((const int32_t *)a->counts.data)[c->picked * a->count + id], &c->room->settings);
        r->bad |= !(x < INFINITE);
        keep(c, at + i, x);
        const bool is_best = x > r->best;
        if (c->scale > 0) {
            raise_to(&r->best, &r->share, x, c->scale);
            if (x > -INFINITE) r->share += ex2((x - r->best) * c->scale);
        }
        if (is_best) r->best = x, r->id = c->first + at + i;
    }
}

/* A four that no copy brings, -inf behind the last. */
INLINE void keep_some(const sample_chunk *c, int at, const float *x) {
    if (at + WORDS <= c->near) {
        keep_four(c, at, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        if (at + i < c->near) keep(c, at + i, x[i]);
}

/* Starts the copies of what is kept as it comes and lies in whole 16 bytes, and brings the rest near. What is behind the last 16 bytes is read by threads. One thread starts them, and all of them set copied. */
INLINE void copy_chunk(const int format, const sample_arguments *a, sample_chunk *c, uint64_t data) {
    const int bytes = format == CUDA_f32 ? 4 : 2, in_16 = 16 / bytes;
    c->copied = data % 16 == 0 && !adjusts_logits(a) ? c->near / in_16 * in_16 : 0;
    if (threadIdx.x != 0) return;
    for (int at = 0; at < c->copied; at += STEP) {
        const uint32_t size = (uint32_t)(min(STEP, c->copied - at) * bytes), full = shared_address(&c->room->piece_full[at / STEP]);
        mbarrier_arrive_expect(full, size);
        bulk_load(shared_address(c->kept) + (uint32_t)(at * bytes), data + (uint64_t)at * bytes, size, full);
    }
    const int far = (c->here - c->near) / in_16 * in_16;
    if (c->copied > 0 && far > 0) prefetch_bytes((const void *)(data + (uint64_t)c->near * bytes), (uint32_t)(far * bytes));
}

/* All threads wait for all copies, as they read those of others later. */
INLINE void read_chunk(const int format, const sample_arguments *a, const sample_chunk *c, watch *w, reading *r) {
    const bool adjusts = c->picked >= 0 && adjusts_logits(a);
    const uint32_t full = c->room_address + (uint32_t)offsetof(cluster_room, piece_full);
    walk step = begin_walk(c);
#pragma unroll 1
    while (has_step(c, &step)) {
        float x[WORDS];
        int at;
        const bool is_first = (step.step & (step.step + 1)) == 0;
        if (is_near(c, &step)) {
            if (step.near < c->copied) mbarrier_wait(full + (uint32_t)step.near / STEP * 8, 0);
            at = near_step(&step);
            if (at + WORDS <= c->copied) {
                load_kept(format, c, at, x);
            } else {
                load_four(format, c, at, c->near, x);
                if (adjusts) {
                    adjust_four(a, c, at, x, r);
                    continue;
                }
                keep_some(c, at, x);
            }
        } else {
            at = far_step(c, &step, x);
        }
        take_plain(c, at, x, r);
        if (!w->is_on) continue;
        if (is_first) raise_watch(c, r, w, step.step - 1);
        watch_four(c, w, at, x);
    }
    if (!adjusts) r->best = r->largest;
}

/* No block ends while bytes are on the way to it. */
INLINE void await_chunk(const sample_chunk *c) {
    for (int at = 0; at < c->copied; at += STEP) mbarrier_wait(shared_address(&c->room->piece_full[at / STEP]), 0);
}

/* Of what the lanes hold, to all of them. */
INLINE unsigned long long warp_reading(const sample_chunk *c, reading *r, unsigned long long best) {
    join_sums(&r->largest, &r->sum, LOG2_E);
    if (c->scale > 0) join_sums(&r->best, &r->share, c->scale);
    return warp_most(best);
}

/* What all blocks have read, to all their threads. Blocks have begun when the cluster's first meeting, which they came to at their start, is over. */
INLINE void gather_readings(const sample_chunk *c, reading *r) {
    cluster_room *room = c->room;
    const int lane = (int)threadIdx.x % 32;
    r->bad |= !(r->largest < INFINITE) || r->sum != r->sum;
    unsigned long long best = warp_reading(c, r, r->best > -INFINITE ? rank_of(r->best, r->id) : 0);
    if (lane == 0) {
        room->warp_largest[threadIdx.x / 32] = r->largest;
        room->warp_sum[threadIdx.x / 32] = r->sum;
        room->warp_best[threadIdx.x / 32] = r->best;
        room->warp_share[threadIdx.x / 32] = r->share;
        room->of_warp[threadIdx.x / 32] = best;
    }
    r->bad = (uint32_t)__syncthreads_or((int)r->bad);
    cluster_wait();
    if (threadIdx.x < 32) {
        reading own = {room->warp_largest[lane], room->warp_sum[lane], room->warp_best[lane], room->warp_share[lane], 0, r->bad};
        best = warp_reading(c, &own, room->of_warp[lane]);
        if (lane < (int)cluster_blocks()) {
            const uint32_t place = place_of_block(&room->read_by[cluster_rank()], (uint32_t)lane);
            st_cluster_f32(place + offsetof(shown, largest), own.largest);
            st_cluster_f32(place + offsetof(shown, sum), own.sum);
            st_cluster_f32(place + offsetof(shown, best), own.best);
            st_cluster_f32(place + offsetof(shown, share), own.share);
            show_word(place + offsetof(shown, bad), own.bad);
            show_word(place + offsetof(shown, high), (uint32_t)(best >> 32));
            show_word(place + offsetof(shown, low), (uint32_t)best);
        }
    }
    meet();
    reading all = {-INFINITE, 0, -INFINITE, 0, NONE, 0};
    best = 0;
    for (uint32_t i = 0; i < cluster_blocks(); i++) {
        const shown *other = &room->read_by[i];
        const unsigned long long others = (unsigned long long)other->high << 32 | other->low;
        all.largest = fmaxf(all.largest, other->largest);
        all.best = fmaxf(all.best, other->best);
        all.bad |= other->bad;
        best = others > best ? others : best;
    }
    for (uint32_t i = 0; i < cluster_blocks(); i++) {
        const shown *other = &room->read_by[i];
        all.sum += other->largest > -INFINITE ? other->sum * ex2((other->largest - all.largest) * LOG2_E) : 0;
        all.share += other->best > -INFINITE ? other->share * ex2((other->best - all.best) * c->scale) : 0;
    }
    *r = all;
    r->best = best == 0 ? -INFINITE : logit_of_order((uint32_t)(best >> 32));
    r->id = best == 0 ? NONE : id_of(best);
}

#endif
