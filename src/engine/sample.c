/* The choice of a token: the likeliest, or a draw among the best. */
#include <math.h>

#include "engine/generation.h"

static float logit_at(const generation *g, int64_t row, int64_t id) {
    int64_t index = row * g->vocabulary + id;
    const void *logits = g->results[g->output];
    if (g->logits_format == DW_FORMAT_f32) return ((const float *)logits)[index];
    return (float)num_load(g->logits_format, logits, index);
}

static bool ranks_before(candidate a, candidate b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

/* Sorts the best count candidates to the front (selection by a heap of all: best first). */
static void sift(candidate *heap, int64_t size, int64_t root) {
    for (int64_t child; (child = 2 * root + 1) < size; root = child) {
        if (child + 1 < size && ranks_before(heap[child + 1], heap[child])) child++;
        if (!ranks_before(heap[child], heap[root])) return;
        candidate swap = heap[root];
        heap[root] = heap[child];
        heap[child] = swap;
    }
}

static int64_t pick_greedy(const generation *g, int64_t row) {
    int64_t best = 0;
    for (int64_t i = 1; i < g->vocabulary; i++)
        if (logit_at(g, row, i) > logit_at(g, row, best)) best = i;
    return best;
}

/* Softmax at a temperature over the top_k best, cut where their mass reaches top_p, then one draw. Candidates leave the heap best first, so
 * only as many are ordered as are needed; the mass of all k is known before the cut. */
static int64_t pick_sampled(generation *g, int64_t row, const dw_generate_options *options, uint64_t seed, uint64_t draw) {
    candidate *heap = g->candidates;
    int64_t count = g->vocabulary, k = options->top_k > 0 && options->top_k < count ? options->top_k : count;
    for (int64_t i = 0; i < count; i++) heap[i] = (candidate){logit_at(g, row, i), (int32_t)i};
    for (int64_t i = count / 2 - 1; i >= 0; i--) sift(heap, count, i);
    float best = heap[0].logit;
    double mass = 0;
    for (int64_t i = 0; i < k; i++) {   /* taken candidates gather at the end of the array, best last */
        candidate taken = heap[0];
        mass += exp((double)(taken.logit - best) / options->temperature);
        heap[0] = heap[count - 1 - i];
        heap[count - 1 - i] = taken;
        sift(heap, count - 1 - i, 0);
    }
    double limit = options->top_p > 0 && options->top_p < 1 ? options->top_p * mass : mass, kept = 0;
    int64_t last = 0;
    for (; last < k && kept < limit; last++) kept += exp((double)(heap[count - 1 - last].logit - best) / options->temperature);
    double target = (double)num_random_uniform(seed, draw) * kept, sum = 0;
    for (int64_t i = 0; i < last; i++) {
        sum += exp((double)(heap[count - 1 - i].logit - best) / options->temperature);
        if (sum > target) return heap[count - 1 - i].id;
    }
    return heap[count - last].id;
}

int64_t generation_pick(generation *g, int64_t row, const dw_generate_options *options, uint64_t seed, uint64_t draw) {
    return options->temperature > 0 ? pick_sampled(g, row, options, seed, draw) : pick_greedy(g, row);
}
