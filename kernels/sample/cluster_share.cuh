/* sample by clusters: top_p. An id is kept where what is in front of it has less than the share of all masses. So no cut is sought: the few ids that could be drawn ask, PIVOTS at a time, what is in
 * front of them. Sums by fast arithmetic answer that but where they are closer to the share than they are off; then masses are summed as sampling_mass defines them, which doubles hold exactly. */
#ifndef KERNELS_SAMPLE_CLUSTER_SHARE_CUH
#define KERNELS_SAMPLE_CLUSTER_SHARE_CUH

#include "kernels/sample/cluster_watch.cuh"

#define MASS_OFF 4e-5                  /* more than the share by which a sum of fast masses is off; and each is up to a unit more, as units are cut off */

/* The quotient of sampling_heat. Where nothing under- or overflows, what a product by the rounded reciprocal misses is made up by its remainders, the last of which is exact: then the sum is the quotient
 * rounded once (Markstein, IBM J. Res. Dev. 34, 1990). */
INLINE float heat_of(const sample_chunk *c, float x) {
    const float t = c->room->settings.temperature, a = SAMPLING_SUB(x, c->largest);
    if (!c->room->divides) return SAMPLING_DIV(a, t);
    const float q = SAMPLING_MUL(a, c->room->over), near = fmaf(fmaf(-q, t, a), c->room->over, q);
    return fmaf(fmaf(-near, t, a), c->room->over, near);
}

/* Differences of logits are then 0 or at least 2^-54; of finite ones below -2^61, as masks are, the quotient may overflow and what is made up be no number: they have no mass and no score. */
INLINE bool divides_safely(float temperature, float largest) {
    const float size = fabsf(largest);
    return temperature > 1e-9f && temperature < 1e9f && size > 1e-9f && size < 1e18f;
}

/* A share of the largest. */
INLINE float fast_mass(const sample_chunk *c, float x) { return ex2((x - c->largest) * c->scale); }

/* The number next below: what is above it is at least x. */
INLINE float below(float x) { return logit_of_order(sampling_order(x) - 1 - (x == 0)); }

/* Of a four. One that ends before a pivot has equal ones in front of it, others have not; but for the pivot's own. */
INLINE void sum_four(const sample_chunk *c, const pivot *pivots, const float *less, int at, const float *x, float *sums) {
    float above[PIVOTS];
#pragma unroll
    for (int k = 0; k < PIVOTS; k++) above[k] = c->first + at + WORDS <= pivots[k].id ? less[k] : pivots[k].x;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const float mass = fast_mass(c, x[i]);
        sums[ALL] += mass;
#pragma unroll
        for (int k = 0; k < PIVOTS; k++)
            if (x[i] > above[k]) sums[k] += mass;
    }
}

/* Of the thread's ids, by fast arithmetic. */
INLINE void sum_fast(const sample_chunk *c, const pivot *pivots, float *sums) {
    float less[PIVOTS];
    walk w = begin_walk(c);
#pragma unroll
    for (int k = 0; k < SUMS; k++) sums[k] = 0;
#pragma unroll
    for (int k = 0; k < PIVOTS; k++) less[k] = below(pivots[k].x);
#pragma unroll 1
    while (has_step(c, &w)) {
        float x[WORDS];
        int at;
        if (is_near(c, &w)) {
            at = near_step(&w);
            near_four(c, at, x);
        } else {
            at = far_step(c, &w, x);
        }
        sum_four(c, pivots, less, at, x, sums);
    }
#pragma unroll
    for (int k = 0; k < PIVOTS; k++) {
        const pivot p = c->room->pivots[k];
        const int at = p.id - c->first, four = at / WORDS * WORDS;
        if (at < 0 || at >= c->here || (uint32_t)four / WORDS % THREADS != threadIdx.x) continue;
        for (int i = four; i < at; i++) sums[k] += kept_at(c, i) == p.x ? fast_mass(c, p.x) : 0;
    }
}

/* As they are defined. */
INLINE mass_sums sum_exactly(const sample_chunk *c, const pivot *pivots) {
    mass_sums sums = {{0}};
#pragma unroll 1
    for (int i = thread(); i < c->here; i += THREADS) {
        const float x = kept_at(c, i);
        if (!(x > -INFINITE)) continue;
        const double mass = (double)sampling_mass(heat_of(c, x));
        sums.of[ALL] += mass;
#pragma unroll
        for (int k = 0; k < PIVOTS; k++) sums.of[k] += x > pivots[k].x || (x == pivots[k].x && c->first + i < pivots[k].id) ? mass : 0;
    }
    return sums;
}

INLINE double warp_total(double x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

/* Of all blocks, to all threads. turn: another one each time, as blocks read what others show until they meet again. */
INLINE mass_sums gather_masses(const sample_chunk *c, const pivot *pivots, bool exact, int turn) {
    cluster_room *room = c->room;
    const int own = thread(), lane = own % 32, warp = own / 32;
    mass_sums sums;
    if (exact) {
        sums = sum_exactly(c, pivots);
#pragma unroll
        for (int k = 0; k < SUMS; k++) sums.of[k] = warp_total(sums.of[k]);
    } else {
        float fast[SUMS];
        sum_fast(c, pivots, fast);
#pragma unroll
        for (int k = 0; k < SUMS; k++) sums.of[k] = (double)(warp_sum_f32(fast[k]) * SAMPLING_MASS_UNITS);
    }
    if (lane == 0) room->of_warps[warp] = sums;
    __syncthreads();
    if (warp < SUMS) {
        const double of_block = warp_total(room->of_warps[lane].of[warp]);
        if (lane < (int)cluster_blocks()) show_words(place_of_block(&room->sums[turn % 2][cluster_rank()].of[warp], (uint32_t)lane), (unsigned long long)__double_as_longlong(of_block));
    }
    meet();
#pragma unroll
    for (int k = 0; k < SUMS; k++) sums.of[k] = room->sums[turn % 2][0].of[k];
    for (uint32_t i = 1; i < cluster_blocks(); i++) {
#pragma unroll
        for (int k = 0; k < SUMS; k++) sums.of[k] += room->sums[turn % 2][i].of[k];
    }
    return sums;
}

typedef enum verdict { OUT, IN, UNSURE } verdict;

/* Is an id kept that has so much in front of it, of all masses of count ids? */
INLINE verdict verdict_of(double share, double front, double all, double count, bool exact) {
    if (exact) return front < ceil(share * all) ? IN : OUT;
    if (front * (1 + MASS_OFF) < share * (all * (1 - MASS_OFF) - count)) return IN;
    return front * (1 - MASS_OFF) - count >= share * all * (1 + MASS_OFF) + 1 ? OUT : UNSURE;
}

#endif
