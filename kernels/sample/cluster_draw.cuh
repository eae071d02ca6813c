/* sample by clusters: the draw among the ids that are kept. */
#ifndef KERNELS_SAMPLE_CLUSTER_DRAW_CUH
#define KERNELS_SAMPLE_CLUSTER_DRAW_CUH

#include "kernels/sample/cluster_cut.cuh"

#define LN_2 0.693147181f
#define SLACK 1e-3f                    /* more than fast arithmetic is off by */

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

/* Four ids' logits, words and bounds; false, and no words, where none of them can win against the score. */
INLINE bool read_bounds(const sample_chunk *c, const contest *t, int at, float score, float *x, philox_words *words, float *bound) {
    kept_four(c, at, x);
    if (are_hopeless(c, t, x, score)) return false;
    *words = sampling_words(t->seed, t->draw, (uint32_t)(c->first + at) / WORDS);
    bounds_of(c, t, at, x, words, bound);
    return true;
}

/* The two highest bounds of the thread's ids, and the id of the first. */
INLINE void find_highest(const sample_chunk *c, contest *t, float score) {
    t->best = t->second = -INFINITE;
    t->id = -1;
#pragma unroll 1
    for (int at = (int)threadIdx.x * WORDS; at < c->here; at += STEP) {
        float x[WORDS], bound[WORDS];
        philox_words words;
        if (!read_bounds(c, t, at, score, x, &words, bound)) continue;
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
        philox_words words;
        if (!read_bounds(c, t, at, score, x, &words, bound)) continue;
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

#endif
