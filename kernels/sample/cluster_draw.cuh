/* sample by clusters: the draw among the ids that are kept. */
#ifndef KERNELS_SAMPLE_CLUSTER_DRAW_CUH
#define KERNELS_SAMPLE_CLUSTER_DRAW_CUH

#include "kernels/sample/cluster_cut.cuh"
#include "kernels/sample/cluster_share.cuh"

#define LN_2 0.693147181f
#define SLACK 1e-3f                    /* more than fast arithmetic is off by */
/* Of the scores of ids e^-s times the sum of their masses are above s, on average, and as good as never none: of so much less than the sum's logarithm 10 are, and none in one of 22,000 draws. */
#define BELOW_SUM 2.3f
#define LOWER 4.0f

/* Ids of a lower score, or a lower rank of an equal one, are not listed. */
typedef struct contest { float score; unsigned long long rank; } contest;

/* What was listed of all blocks: is there any, had a block no room for its, and the one of them that this thread holds; rank 0: none. */
typedef struct listed { bool any, too_many; unsigned long long rank; float x; } listed;

/* The rank of an id's score; 0: min_p leaves it out. */
INLINE unsigned long long score_of(const sample_chunk *c, float x, int id, uint32_t word) {
    const float heat = heat_of(c, x);
    return heat < c->room->least ? 0 : rank_of(SAMPLING_ADD(heat, sampling_noise(word)), id);
}

INLINE philox_words words_of(const sample_chunk *c, int id) { return sampling_words(c->room->seed, c->room->draw, (uint32_t)id / WORDS); }

INLINE uint32_t word_of(const sample_chunk *c, int id) {
    const philox_words words = words_of(c, id);
    const uint32_t even = id % 4 < 2 ? words.word[0] : words.word[2], odd = id % 4 < 2 ? words.word[1] : words.word[3];
    return id % 2 == 0 ? even : odd;
}

/* -log(u), u cut off behind 23 bits, which makes it more: at least the noise of a word and of all larger ones, as u is at most -log(1 - u). */
INLINE float most_noise(uint32_t word) { return -LN_2 * lg2(__uint_as_float(word >> 9 | 0x3f800000u) - 1.0f); }

/* The noise, less than SLACK below it; and little above but at both ends, where u has few bits or 1 - u has. */
INLINE float fast_noise(uint32_t word) {
    const float u = (float)(word >> 8) * 5.96046448e-8f, less = u < 0.01f ? fmaf(u * u, 0.5f, u) : -LN_2 * lg2(1.0f - u);
    return word < 1u << 20 ? most_noise(word) : u > 0.9999f ? -2.2f : -LN_2 * lg2(less);
}

INLINE void list_four(const sample_chunk *c, const contest *t, int at, const philox_words *words) {
#pragma unroll 1
    for (int i = 0; i < WORDS && at + i < c->here; i++) {
        const uint32_t word = i < 2 ? (i == 0 ? words->word[0] : words->word[1]) : (i == 2 ? words->word[2] : words->word[3]);
        const float x = kept_at(c, at + i), heat = heat_of(c, x);
        if (!(x > -INFINITE) || heat < c->room->least || heat + fast_noise(word) + SLACK < t->score) continue;
        const uint32_t place = atomicAdd(&c->room->listed, 1);
        if (place < LISTED) c->room->ids[place] = at + i;
    }
}

/* Of what was listed, a thread each: the rank where it is high enough. */
INLINE void rank_listed(const sample_chunk *c, const contest *t) {
    __syncthreads();
    if (threadIdx.x >= min(c->room->listed, (uint32_t)LISTED)) return;
    const int at = c->room->ids[threadIdx.x];
    const float x = kept_at(c, at);
    const unsigned long long rank = score_of(c, x, c->first + at, word_of(c, c->first + at));
    c->room->ranks[threadIdx.x] = rank < t->rank ? 0 : rank;
    c->room->logits[threadIdx.x] = x;
}

/* Lists what can win. Four scores are bounded by their largest logit and their most noise together, few of them by themselves, and exact ones computed when all is listed, as a thread of a warp would hold up
 * the others by hundreds of instructions. The heat by the reciprocal of the temperature is off by less than SLACK where it is above -1000. */
INLINE listed list_scores(const sample_chunk *c, const contest *t) {
    const float over = fminf(c->over, 1e30f), reach = fmaxf(c->room->least, t->score - SAMPLING_MOST_NOISE) - SLACK;
#pragma unroll 1
    for (int at = (int)threadIdx.x * WORDS; at < c->here; at += STEP) {
        float x[WORDS];
        kept_four(c, at, x);
        const float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), heat = fmaxf((most - c->largest) * over, -1000.0f);
        if (!(most > -INFINITE) || heat < reach) continue;
        const philox_words words = words_of(c, c->first + at);
        const uint32_t word = min(min(words.word[0], words.word[1]), min(words.word[2], words.word[3]));
        if (heat + SLACK + most_noise(word) >= t->score) list_four(c, t, at, &words);
    }
    rank_listed(c, t);
    meet();
    listed all = {false, false, 0, 0};
    const uint32_t own = threadIdx.x / LISTED, place = threadIdx.x % LISTED;
    for (uint32_t block = 0; block < c->blocks; block++) {
        const uint32_t count = word_of_block(&c->room->listed, block);
        all.too_many |= count > LISTED;
        if (block != own || place >= count) continue;
        const uint32_t *rank = (const uint32_t *)&c->room->ranks[place];
        all.rank = (unsigned long long)word_of_block(rank + 1, block) << 32 | word_of_block(rank, block);
        all.x = __uint_as_float(word_of_block(&c->room->logits[place], block));
    }
    all.any = __syncthreads_or(all.rank != 0);
    return all;
}

INLINE void set_rank(contest *t, unsigned long long rank) {
    t->rank = rank;
    t->score = rank == 0 ? -INFINITE : logit_of_order((uint32_t)(rank >> 32));
}

INLINE void set_score(contest *t, float score) { set_rank(t, (unsigned long long)sampling_order(score) << 32); }

/* The list is empty again. */
INLINE void begin_list(const sample_chunk *c) {
    meet();
    if (threadIdx.x == 0) c->room->listed = 0;
    __syncthreads();
}

/* The list of the highest scores: neither empty nor too long. Where the score to begin with is too high it becomes lower, and then none; where too many reach it, the highest of those for which there
 * was room, which is above some that were listed. */
INLINE listed list_highest(const sample_chunk *c, contest *t) {
    bool was_lowered = false;
    for (;;) {
        const listed all = list_scores(c, t);
        if (all.any && !all.too_many) return all;
        if (all.any) set_rank(t, block_most(c, all.rank));
        else if (all.too_many) set_score(t, t->score + 4 * SLACK);   /* so many are that close to it */
        else if (was_lowered) set_rank(t, 0);
        else set_score(t, t->score - LOWER);
        was_lowered = !all.any;
        begin_list(c);
    }
}

/* The id of the thread's rank becomes a pivot; of rank 0, which nobody has, no id, with nothing in front of it. */
INLINE void show_pivot(const sample_chunk *c, int which, unsigned long long rank, const listed *own) {
    const pivot none = {INFINITE, -1}, mine = {own->x, id_of(rank)};
    if (rank == 0 ? threadIdx.x == 0 : rank == own->rank) c->room->pivots[which] = rank == 0 ? none : mine;
}

/* What is known of top_p: the sum of all masses where it was computed exactly, else 0; about what is in front of the foremost id that is not kept; how often sums were gathered. */
typedef struct share_state { double all; float front; int turn; } share_state;

/* Which of the pivots is the first that top_p keeps; PIVOTS: none of them. */
INLINE int first_kept(const sample_arguments *a, const sample_chunk *c, bool exact, share_state *state) {
    const pivot pivots[PIVOTS] = {c->room->pivots[0], c->room->pivots[1]};
    for (;; exact = true) {
        const mass_sums sums = gather_masses(c, pivots, exact, ++state->turn);
        bool is_sure = true;
        if (exact && state->all == 0) state->all = sums.of[ALL];
#pragma unroll
        for (int k = 0; k < PIVOTS; k++) {
            const verdict kept = pivots[k].id < 0 ? OUT : verdict_of((double)c->room->settings.top_p, sums.of[k], exact ? state->all : sums.of[ALL], (double)a->count, exact);
            if (is_sure && kept == IN) return k;
            is_sure = is_sure && kept == OUT;
            if (pivots[k].id >= 0) state->front = fminf(state->front, (float)sums.of[k]);
        }
        if (is_sure) return PIVOTS;
    }
}

/* The id of the highest score of those listed that top_p keeps; -1: it keeps none. Then what is behind the foremost of them has gone, and so have they. */
INLINE int choose_kept(const sample_arguments *a, const sample_chunk *c, listed *own, share_state *state) {
    const bool is_fast = c->over > 1e-30f && c->over < 1e30f;
    cut foremost = {0, NONE};
    state->front = INFINITE;
    for (;;) {
        unsigned long long ranks[PIVOTS], before = ~0ull;
#pragma unroll
        for (int k = 0; k < PIVOTS; k++) {
            if (k > 0) __syncthreads();
            before = ranks[k] = block_most(c, own->rank < before ? own->rank : 0);
            show_pivot(c, k, ranks[k], own);
        }
        if (ranks[0] == 0 && state->all > 0) break;
        __syncthreads();
        const int which = first_kept(a, c, !is_fast || state->all > 0 || ranks[0] == 0, state);   /* before anything goes, all masses are summed exactly */
        if (which < PIVOTS) return c->room->pivots[which].id;
#pragma unroll
        for (int k = 0; k < PIVOTS; k++) {
            const cut other = {sampling_order(c->room->pivots[k].x), c->room->pivots[k].id - 1};
            if (ranks[k] != 0 && (other.order > foremost.order || (other.order == foremost.order && other.last < foremost.last))) foremost = other;
        }
        if (own->rank != 0 && !is_in_front(&foremost, own->x, id_of(own->rank))) own->rank = 0;
    }
    drop_behind(c, &foremost);
    return -1;
}

INLINE int draw_among(const sample_arguments *a, const sample_chunk *c) {
    const sampling_settings *s = &c->room->settings;
    const bool by_share = s->top_p > 0 && s->top_p < 1, is_cut = s->top_k >= 1 && s->top_k < (float)a->count;
    contest t;
    float sum = fmaxf(c->room->all.share, 1.0f);              /* of masses, about, in those of the largest */
    share_state state = {0, 0, 0};
    if (is_cut) sum = fminf(sum, s->top_k);
    if (is_cut && s->top_k <= LISTED) set_rank(&t, 0);
    else set_score(&t, LN_2 * lg2(sum) - BELOW_SUM);
    for (;;) {
        listed own = list_highest(c, &t);
        const int id = by_share ? choose_kept(a, c, &own, &state) : id_of(block_most(c, own.rank));
        if (id >= 0) return id;
        set_score(&t, LN_2 * lg2(fmaxf(state.front * (1 / SAMPLING_MASS_UNITS), 1.0f)) - BELOW_SUM);
        begin_list(c);
    }
}

#endif
