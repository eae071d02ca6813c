/* sample by clusters: the draw among the ids that are kept. */
#ifndef KERNELS_SAMPLE_CLUSTER_DRAW_CUH
#define KERNELS_SAMPLE_CLUSTER_DRAW_CUH

#include "kernels/sample/cluster_cut.cuh"
#include "kernels/sample/cluster_share.cuh"
#include "kernels/sample/cluster_watch.cuh"

/* Ids of a lower score, or a lower rank of an equal one, are not listed. */
typedef struct contest { float score; unsigned long long rank; } contest;

/* What was listed of all blocks: is there any, had a block no room for its. */
typedef struct listed { bool any, too_many; } listed;

/* The rank of an id's score; 0: min_p leaves it out, or its quotient has overflowed. */
INLINE unsigned long long score_of(const sample_chunk *c, float x, int id, uint32_t word) {
    const float heat = heat_of(c, x);
    return !(heat >= c->room->least) ? 0 : rank_of(SAMPLING_ADD(heat, sampling_noise(word)), id);
}

INLINE uint32_t word_of(const sample_chunk *c, int id) {
    const philox_words words = words_of(c, id);
    const uint32_t even = id % 4 < 2 ? words.word[0] : words.word[2], odd = id % 4 < 2 ? words.word[1] : words.word[3];
    return id % 2 == 0 ? even : odd;
}

/* Of a four the ids that can win, by fast arithmetic as of all four. Those that are that close to what min_p leaves out are asked exactly: what is listed has a rank, or lists that are too long would be made for ever. */
INLINE void list_four(const sample_chunk *c, const contest *t, int at, const philox_words *words) {
    float x[WORDS];
    kept_four(c, at, x);
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const float heat = fmaxf((x[i] - c->largest) * fminf(c->room->over, 1e30f), -1000.0f);
        if (!(x[i] > -INFINITE) || heat + SLACK < c->room->least || heat + SLACK + most_noise(words->word[i]) < t->score) continue;
        if (heat - SLACK < c->room->least && !(heat_of(c, x[i]) >= c->room->least)) continue;
        const uint32_t place = atomicAdd(&c->room->listed, 1);
        if (place < c->room->candidates) c->room->ids[place] = at + i;
    }
}

/* Of what was listed, a thread each: the rank where it is high enough, to all blocks. */
INLINE void rank_listed(const sample_chunk *c, const contest *t) {
    cluster_room *room = c->room;
    __syncthreads();
    if (threadIdx.x < cluster_blocks()) show_word(place_of_block(&room->listed_by[cluster_rank()], threadIdx.x), room->listed);
    if (threadIdx.x >= min(room->listed, c->room->candidates)) return;
    const int at = room->ids[threadIdx.x];
    const float x = kept_at(c, at);
    const unsigned long long rank = score_of(c, x, c->first + at, word_of(c, c->first + at));
    const uint32_t place = cluster_rank() * c->room->candidates + threadIdx.x;
    for (uint32_t i = 0; i < cluster_blocks(); i++) {
        show_words(place_of_block(&room->ranks[place], i), rank < t->rank ? 0 : rank);
        st_cluster_f32(place_of_block(&room->logits[place], i), x);
    }
}

/* Of the fours that were listed while the row was read the ids that can win. */
INLINE void list_watched(const sample_chunk *c, const contest *t) {
    if (threadIdx.x >= c->room->watching) return;
    const int at = c->room->watched[threadIdx.x];
    const philox_words words = words_of(c, c->first + at);
    list_four(c, t, at, &words);
}

/* Lists what can win. Four scores are bounded by their largest logit and their most noise together, few of them by themselves, and exact ones computed when all is listed, as a thread of a warp would hold up
 * the others by hundreds of instructions. The heat by the reciprocal of the temperature is off by less than SLACK where it is above -1000. */
INLINE void list_fours(const sample_chunk *c, const contest *t) {
    const float over = fminf(c->room->over, 1e30f), reach = fmaxf(c->room->least, t->score - SAMPLING_MOST_NOISE) - SLACK;
#pragma unroll 1
    for (int at = thread() * WORDS; at < c->here; at += STEP) {
        float x[WORDS];
        kept_four(c, at, x);
        const float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), heat = fmaxf((most - c->largest) * over, -1000.0f);
        if (!(most > -INFINITE) || heat < reach) continue;
        const philox_words words = words_of(c, c->first + at);
        if (heat + SLACK + most_noise(least_word(&words)) >= t->score) list_four(c, t, at, &words);
    }
}

/* The rank of the candidate that is the thread's; 0: it has none. */
INLINE unsigned long long own_rank(const sample_chunk *c) {
    const int own = thread();
    return own < LISTED ? c->room->ranks[own] : 0;
}

/* was_watched: as the row was read, for a score that is not above this one; where there was room. */
INLINE listed list_scores(const sample_chunk *c, const contest *t, bool was_watched) {
    if (was_watched && c->room->watching <= THREADS) list_watched(c, t);
    else list_fours(c, t);
    rank_listed(c, t);
    meet();
    listed all = {false, false};
    const uint32_t block = threadIdx.x / c->room->candidates, place = threadIdx.x % c->room->candidates;
    for (uint32_t i = 0; i < cluster_blocks(); i++) all.too_many |= c->room->listed_by[i] > c->room->candidates;
    if (threadIdx.x < LISTED && (block >= cluster_blocks() || place >= c->room->listed_by[block])) c->room->ranks[thread()] = 0;
    all.any = __syncthreads_or(own_rank(c) != 0);
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
INLINE void list_highest(const sample_chunk *c, contest *t, bool was_watched) {
    bool was_lowered = false;
    for (;; was_watched = false) {
        const listed all = list_scores(c, t, was_watched);
        if (all.any && !all.too_many) return;
        if (all.any) set_rank(t, block_most(c, own_rank(c)));
        else if (all.too_many) set_score(t, t->score + 4 * SLACK);   /* so many are that close to it */
        else if (was_lowered) set_rank(t, 0);
        else set_score(t, t->score - LOWER);
        was_lowered = !all.any;
        begin_list(c);
    }
}

/* The highest of the ranks that threads hold become pivots; where there are fewer, no ids, with nothing in front of them. How many ranks there are. */
INLINE int show_pivots(const sample_chunk *c) {
    cluster_room *room = c->room;
    const unsigned long long own = own_rank(c);
    const pivot none = {INFINITE, -1};
    const int count = __syncthreads_count(own != 0);
    if (threadIdx.x < PIVOTS && (int)threadIdx.x >= count) room->pivots[threadIdx.x] = none;
    if (own != 0) {
        int higher = 0;
        for (uint32_t block = 0; block < cluster_blocks(); block++) {
            const uint32_t from = block * room->candidates, end = from + min(room->candidates, room->listed_by[block]);
            for (uint32_t i = from; i < end; i++) higher += room->ranks[i] > own;
        }
        const pivot mine = {room->logits[thread()], id_of(own)};
        if (higher < PIVOTS) room->pivots[higher] = mine;
    }
    __syncthreads();
    return count;
}

/* What is known of top_p: was the sum of all masses computed exactly; about what is in front of the foremost id that is not kept; how often sums were gathered. */
typedef struct share_state { bool has_all; float front; int turn; } share_state;

/* Which of the pivots is the first that top_p keeps; PIVOTS: none of them. */
INLINE int first_kept(const sample_arguments *a, const sample_chunk *c, bool exact, share_state *state) {
    pivot pivots[PIVOTS];
#pragma unroll
    for (int k = 0; k < PIVOTS; k++) pivots[k] = c->room->pivots[k];
    for (;; exact = true) {
        const mass_sums sums = gather_masses(c, pivots, exact, ++state->turn);
        bool is_sure = true;
        double all = sums.of[ALL];
        if (exact && state->has_all) all = c->room->all;
        else if (exact && threadIdx.x == 0) c->room->all = all;   /* read when the cluster has met again */
        state->has_all |= exact;
#pragma unroll
        for (int k = 0; k < PIVOTS; k++) {
            const verdict kept = pivots[k].id < 0 ? OUT : verdict_of((double)c->room->settings.top_p, sums.of[k], all, (double)a->count, exact);
            if (is_sure && kept == IN) return k;
            is_sure = is_sure && kept == OUT;
            if (pivots[k].id >= 0) state->front = fminf(state->front, (float)sums.of[k]);
        }
        if (is_sure) return PIVOTS;
    }
}

/* The id of the highest score of those listed that top_p keeps; -1: it keeps none. Then what is behind the foremost of them has gone, and so have they. */
INLINE int choose_kept(const sample_arguments *a, const sample_chunk *c, share_state *state) {
    const bool is_fast = c->room->over > 1e-30f && c->room->over < 1e30f;
    cut foremost = {0, NONE};
    state->front = INFINITE;
    for (;;) {
        const int left = show_pivots(c);
        if (left == 0 && state->has_all) break;
        const int which = first_kept(a, c, !is_fast || state->has_all || left == 0, state);   /* before anything goes, all masses are summed exactly */
        if (which < PIVOTS) return c->room->pivots[which].id;
#pragma unroll
        for (int k = 0; k < PIVOTS; k++) {
            const cut other = {sampling_order(c->room->pivots[k].x), c->room->pivots[k].id - 1};
            if (k < left && (other.order > foremost.order || (other.order == foremost.order && other.last < foremost.last))) foremost = other;
        }
        const unsigned long long own = own_rank(c);
        if (own != 0 && !is_in_front(&foremost, c->room->logits[thread()], id_of(own))) c->room->ranks[thread()] = 0;
    }
    drop_behind(c, &foremost);
    return -1;
}

INLINE int draw_among(const sample_arguments *a, const sample_chunk *c, float share, bool was_watched) {
    const sampling_settings *s = &c->room->settings;
    const bool by_share = s->top_p > 0 && s->top_p < 1, is_cut = keeps_first(a, c);
    contest t;
    float sum = fmaxf(share, 1.0f);              /* of masses, about, in those of the largest */
    share_state state = {0, 0, 0};
    if (is_cut) sum = fminf(sum, s->top_k);
    if (is_cut && s->top_k <= (float)c->room->candidates) set_rank(&t, 0);
    else set_score(&t, LN_2 * lg2(sum) - BELOW_SUM);
    for (;; was_watched = false) {
        list_highest(c, &t, was_watched);
        const int id = by_share ? choose_kept(a, c, &state) : id_of(block_most(c, own_rank(c)));
        if (id >= 0) return id;
        set_score(&t, LN_2 * lg2(fmaxf(state.front * (1 / SAMPLING_MASS_UNITS), 1.0f)) - BELOW_SUM);
        begin_list(c);
    }
}

#endif
