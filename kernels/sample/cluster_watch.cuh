/* sample by clusters: what a draw could give, found while a row is read. Of the scores of ids e^-s times the sum of their masses are above s, so what is not near the sum of those that were read is not the
 * highest of these. The sum is looked at where what was read has doubled. Fast arithmetic bounds scores from above; exact ones are computed of what is listed, when the largest logit is known. */
#ifndef KERNELS_SAMPLE_CLUSTER_WATCH_CUH
#define KERNELS_SAMPLE_CLUSTER_WATCH_CUH

#include "kernels/sample/cluster_chunk.cuh"

#define LN_2 0.693147181f
#define SLACK 1e-3f                    /* more than fast arithmetic is off by */
/* Of the scores of ids e^-s times the sum of their masses are above s, on average, and as good as never none: of so much less than the sum's logarithm 10 are, and none in one of 22,000 draws. */
#define BELOW_SUM 2.3f
#define LOWER 4.0f

/* Is it on; the largest logit that was read before, and the score over it that is looked for, which a logit reaches with the most noise there is from reach on; what makes heat of a difference. */
typedef struct watch { bool is_on; float largest, score, reach, over; } watch;

INLINE float warp_sum_f32(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

/* The largest of a warp's lanes, and their sums of powers of it together, to all of them; NaN of what has one. */
INLINE void join_sums(float *largest, float *sum, float scale) {
    const float most = logit_of_order(redux_max(sampling_order(*largest)));
    *sum = warp_sum_f32(*largest > -INFINITE ? *sum * ex2((*largest - most) * scale) : *sum);
    *largest = most;
}

/* The words of sampling_words: counters of a row differ in one word, so parts of the first two rounds are the same. Then come the keys of the others. */
INLINE void begin_noise(cluster_room *room, uint64_t seed, uint64_t draw) {
    const uint32_t key_0 = (uint32_t)seed, key_1 = (uint32_t)(seed >> 32);
    const uint64_t of_draw = mul_wide(PHILOX_MULTIPLY_1, (uint32_t)(draw >> 32)), second = mul_wide(PHILOX_MULTIPLY_0, (uint32_t)(of_draw >> 32) ^ (uint32_t)draw ^ key_0);
    room->noise[0] = key_1;
    room->noise[1] = (uint32_t)of_draw ^ (key_0 + PHILOX_KEY_0);
    room->noise[2] = (uint32_t)(second >> 32) ^ (key_1 + PHILOX_KEY_1);
    room->noise[3] = (uint32_t)second;
    for (uint32_t round = 2; round < PHILOX_ROUNDS; round++) {
        room->noise[2 * round] = key_0 + round * PHILOX_KEY_0;
        room->noise[2 * round + 1] = key_1 + round * PHILOX_KEY_1;
    }
}

INLINE void noise_round(philox_words *x, uint32_t key_0, uint32_t key_1) {
    const uint64_t a = mul_wide(PHILOX_MULTIPLY_0, x->word[0]), b = mul_wide(PHILOX_MULTIPLY_1, x->word[2]);
    const philox_words next = {{(uint32_t)(b >> 32) ^ x->word[1] ^ key_0, (uint32_t)b, (uint32_t)(a >> 32) ^ x->word[3] ^ key_1, (uint32_t)a}};
    *x = next;
}

INLINE philox_words words_of(const sample_chunk *c, int id) {
    const uint32_t from = c->room_address + (uint32_t)offsetof(cluster_room, noise);
    const uint4 begin = ld_shared_u32x4(from);
    const uint64_t a = mul_wide(PHILOX_MULTIPLY_0, (uint32_t)id / WORDS), b = mul_wide(PHILOX_MULTIPLY_1, (uint32_t)(a >> 32) ^ begin.x);
    philox_words x = {{(uint32_t)(b >> 32) ^ begin.y, (uint32_t)b, (uint32_t)a ^ begin.z, begin.w}};
#pragma unroll
    for (int round = 2; round < PHILOX_ROUNDS; round += 2) {
        const uint4 keys = ld_shared_u32x4(from + (uint32_t)round * 8);
        noise_round(&x, keys.x, keys.y);
        noise_round(&x, keys.z, keys.w);
    }
    return x;
}

/* -log(u), u cut off behind 23 bits, which makes it more: at least the noise of a word and of all larger ones, as u is at most -log(1 - u). */
INLINE float most_noise(uint32_t word) { return -LN_2 * lg2(__uint_as_float(word >> 9 | 0x3f800000u) - 1.0f); }

/* Of a four the least word, whose noise is the most. */
INLINE uint32_t least_word(const philox_words *words) { return min(min(words->word[0], words->word[1]), min(words->word[2], words->word[3])); }

/* By what all threads of the block have read. */
INLINE void raise_watch(const sample_chunk *c, const reading *r, watch *w, int turn) {
    cluster_room *room = c->room;
    const int half = __popc(turn) % 2;           /* turns are 0, 1, 3, 7 and so on: another half each time, as slow threads still read the one before */
    float share = r->share, best = r->best;
    join_sums(&best, &share, c->scale);
    if (threadIdx.x % 32 == 0) room->best_so_far[half][threadIdx.x / 32] = best, room->share_so_far[half][threadIdx.x / 32] = share;
    __syncthreads();
    best = room->best_so_far[half][threadIdx.x % WARPS];
    share = room->share_so_far[half][threadIdx.x % WARPS];
    join_sums(&best, &share, c->scale);
    w->largest = best;
    if (w->largest == -INFINITE) return;
    w->score = LN_2 * lg2(fmaxf(share, 1.0f)) - BELOW_SUM;
    w->reach = fmaxf(room->least, w->score - SAMPLING_MOST_NOISE) - SLACK;
}

/* Lists a four that could have such a score. Scores are bounded by the largest logit and the most noise together; the heat by the reciprocal of the temperature is off by less than SLACK where it is above -1000. */
INLINE void watch_four(const sample_chunk *c, const watch *w, int at, const float *x) {
    const float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), heat = fmaxf((most - w->largest) * w->over, -1000.0f);
    if (!(most > -INFINITE) || heat < w->reach) return;
    const philox_words words = words_of(c, c->first + at);
    if (heat + SLACK + most_noise(least_word(&words)) < w->score) return;
    const uint32_t place = atomicAdd(&c->room->watching, 1);
    if (place < THREADS) c->room->watched[place] = at;
}

#endif
