/* sample by clusters: a row is read once; the likeliest, the largest and the sum of e^x are found on the way, and what a draw could give is listed. */
#ifndef KERNELS_SAMPLE_CLUSTER_READ_CUH
#define KERNELS_SAMPLE_CLUSTER_READ_CUH

#include "kernels/sample/cluster_watch.cuh"

#define FAR_ABOVE 40.0f               /* sums of e to that are far from overflow */
enum { AHEAD = 2 };                   /* of a thread's fours that no block keeps so many are on the way at a time */

/* From here on the sum is of e^x over that of another logit. */
INLINE void rebase(reading *r, float from) {
    r->sum *= ex2((r->from - from) * LOG2_E);
    r->from = from;
}

/* Adds e^x of a four as it comes, over that of a logit that is raised where one is far above it: seldom, so that threads do not wait for those of their warp that raise theirs. The largest of the four, but for NaN, which
 * is seen in the sum; +inf is seen in the largest, behind all. */
INLINE float add_four(const float *x, reading *r) {
    const float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    float e[WORDS];
    if (most > r->from + FAR_ABOVE) rebase(r, most);
#pragma unroll
    for (int i = 0; i < WORDS; i++) e[i] = ex2((x[i] - r->from) * LOG2_E);
    r->sum += (e[0] + e[1]) + (e[2] + e[3]);
    return most;
}

/* Is one of the four larger than all before? */
INLINE bool take_four(const float *x, reading *r) {
    const float most = add_four(x, r);
    const bool is_larger = most > r->best;
    r->best = fmaxf(r->best, most);
    return is_larger;
}

/* Which of a four is the first that is the largest. */
INLINE int first_of(const float *x, float most) {
    int which = WORDS - 1;
#pragma unroll
    for (int i = WORDS - 2; i >= 0; i--) which = x[i] == most ? i : which;
    return which;
}

/* Adds a mass to the sum of masses, which is in those of the largest logit. */
INLINE void take_mass(float x, float scale, reading *r) {
    const float over = fmaxf(r->best, -LARGEST), mass = ex2(-fabsf(x - over) * scale);   /* where all are -inf none has a share of it */
    r->share = fmaf(r->share, x > over ? mass : 1, x > over ? 1 : mass);
    r->best = fmaxf(r->best, x);
}

/* Four logits of the row from id on, adjusted where that is asked for, those that are there. */
INLINE void adjust_four(const sample_arguments *a, const sample_chunk *c, int at, const float *raw, reading *r) {
    r->largest = fmaxf(r->largest, add_four(raw, r));
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        float x = raw[i];
        if (at + i >= c->near) break;
        const int64_t id = c->first + at + i;
        if (a->bias.data != 0) x = SAMPLING_ADD(x, ((const float *)a->bias.data)[c->picked * a->count + id]);
        if (a->mask.data != 0 && (((const uint32_t *)a->mask.data)[c->picked * a->mask_words + id / 32] >> (id % 32) & 1) == 0) x = -INFINITE;
        else if (a->counts.data != 0) x = sampling_penalise(x, ((const int32_t *)a->counts.data)[c->picked * a->count + id], &c->room->settings);
        if (!(x < INFINITE)) r->sum = NOT_A_NUMBER;
        keep(c, at + i, x);
        r->id = x > r->best ? c->first + at + i : r->id;
        if (c->scale > 0) take_mass(x, c->scale, r);
        r->best = fmaxf(r->best, x);
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

/* A four of those that are kept, when its step is there. All threads wait for all copies, as they read those of others later. */
INLINE void read_near(const int format, const sample_chunk *c, int step, int at, float *x) {
    if (step < c->copied) mbarrier_wait(c->room_address + (uint32_t)offsetof(cluster_room, piece_full) + (uint32_t)step / STEP * 8, 0);
    if (at + WORDS <= c->copied) {
        load_kept(format, c, at, x);
    } else {
        load_four(format, c, at, c->near, x);
        keep_some(c, at, x);
    }
}

/* Where the likeliest is asked for: of what is kept and of what lies behind it, in turns, each by itself, as of equal ones the first wins. Of the former only the four is noted, and looked at again in the end. */
INLINE void read_likeliest(const int format, const sample_chunk *c, reading *r) {
    const int own = thread() * WORDS;
    int near = 0, far = c->near;
    reading behind = *r;
    float x[WORDS], next[AHEAD][WORDS];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (far + k * STEP < c->here) load_four(format, c, far + k * STEP + own, c->here, next[k]);
#pragma unroll 1
    while (near < c->near || far < c->here) {
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (near < c->near) {
                read_near(format, c, near, near + own, x);
                if (take_four(x, r)) r->id = near + own;
                near += STEP;
            }
            if (far < c->here) {
                if (take_four(next[k], &behind)) behind.id = c->first + far + own + first_of(next[k], behind.best);
                if (far + AHEAD * STEP < c->here) load_four(format, c, far + AHEAD * STEP + own, c->here, next[k]);
                far += STEP;
            }
        }
    }
    if (r->id < c->near) {
        near_four(c, r->id, x);
        r->id += c->first + first_of(x, r->best);
    }
    if (behind.best > r->best) r->id = behind.id;
    r->best = fmaxf(r->best, behind.best);
    rebase(r, fmaxf(r->from, behind.from));
    rebase(&behind, r->from);
    r->sum += behind.sum;
}

/* Where a draw is asked for. Of masses the largest of each four is taken: their sum is at least a quarter of what all have. */
INLINE void read_masses(const int format, const sample_chunk *c, watch *w, reading *r) {
    walk step = begin_walk(c);
#pragma unroll 1
    while (has_step(c, &step)) {
        float x[WORDS];
        const bool is_first = (step.step & (step.step + 1)) == 0;
        int at;
        if (is_near(c, &step)) {
            const int near = step.near;
            at = near_step(&step);
            read_near(format, c, near, at, x);
        } else {
            at = far_step(c, &step, x);
        }
        take_mass(add_four(x, r), c->scale, r);
        if (!w->is_on) continue;
        if (is_first) raise_watch(c, r, w, step.step - 1);
        watch_four(c, w, at, x);
    }
}

/* Where something changes the logits, all of which are kept. */
INLINE void read_adjusted(const int format, const sample_arguments *a, const sample_chunk *c, reading *r) {
#pragma unroll 1
    for (int at = thread() * WORDS; at < c->near; at += STEP) {
        float x[WORDS];
        load_four(format, c, at, c->near, x);
        adjust_four(a, c, at, x, r);
    }
}

INLINE void read_chunk(const int format, const sample_arguments *a, const sample_chunk *c, watch *w, reading *r) {
    const bool adjusts = c->picked >= 0 && adjusts_logits(a);
    if (adjusts) read_adjusted(format, a, c, r);
    else if (c->scale > 0) read_masses(format, c, w, r);
    else read_likeliest(format, c, r);
    if (!adjusts) r->largest = r->best;
    rebase(r, fmaxf(r->largest, -LARGEST));
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

/* What all blocks have read, to all their threads: each block sends its to all, and waits for theirs. */
INLINE void gather_readings(const sample_chunk *c, reading *r) {
    cluster_room *room = c->room;
    const int lane = (int)threadIdx.x % 32;
    if (!(r->largest < INFINITE)) r->sum = NOT_A_NUMBER;
    unsigned long long best = warp_reading(c, r, r->best > -INFINITE ? rank_of(r->best, r->id) : 0);
    if (lane == 0) {
        room->warp_largest[threadIdx.x / 32] = r->largest;
        room->warp_sum[threadIdx.x / 32] = r->sum;
        room->warp_best[threadIdx.x / 32] = r->best;
        room->warp_share[threadIdx.x / 32] = r->share;
        room->of_warp[thread() / 32] = best;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        reading own = {room->warp_largest[lane], room->warp_sum[lane], room->warp_best[lane], room->warp_share[lane], 0, 0};
        best = warp_reading(c, &own, room->of_warp[lane]);
        if (lane == 0) mbarrier_arrive_expect(c->room_address + (uint32_t)offsetof(cluster_room, read_full), cluster_blocks() * SENT);
        if (lane < (int)cluster_blocks()) {
            const uint32_t place = place_of_block(&room->read_by[cluster_rank()], (uint32_t)lane), full = place_of_block(&room->read_full, (uint32_t)lane);
            st_async_u32x2(place + offsetof(shown, largest), __float_as_uint(own.largest), __float_as_uint(own.sum), full);
            st_async_u32x2(place + offsetof(shown, best), __float_as_uint(own.best), __float_as_uint(own.share), full);
            st_async_u32x2(place + offsetof(shown, high), (uint32_t)(best >> 32), (uint32_t)best, full);
        }
    }
    mbarrier_acquire_cluster(c->room_address + (uint32_t)offsetof(cluster_room, read_full), 0);
    reading all = {-INFINITE, 0, -INFINITE, 0, 0, NONE};
    best = 0;
    for (uint32_t i = 0; i < cluster_blocks(); i++) {
        const shown *other = &room->read_by[i];
        const unsigned long long others = (unsigned long long)other->high << 32 | other->low;
        all.largest = fmaxf(all.largest, other->largest);
        all.best = fmaxf(all.best, other->best);
        best = others > best ? others : best;
    }
    for (uint32_t i = 0; i < cluster_blocks(); i++) {
        const shown *other = &room->read_by[i];
        all.sum += other->largest > -INFINITE ? other->sum * ex2((other->largest - all.largest) * LOG2_E) : other->sum;
        all.share += other->best > -INFINITE ? other->share * ex2((other->best - all.best) * c->scale) : 0;
    }
    *r = all;
    r->best = best == 0 ? -INFINITE : logit_of_order((uint32_t)(best >> 32));
    r->id = best == 0 ? NONE : id_of(best);
}

#endif
