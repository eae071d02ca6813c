/* The choice of a token from a row of logits on the host: the likeliest, where no device has computed it, or a draw among the best. A row is read once for the largest of each
 * block of it; what a draw looks at further are the blocks that hold candidates. */
#include <math.h>
#include <string.h>

#include "engine/generation.h"

enum { LANES = 16 };
enum { DIGIT_BITS = 11, DIGITS = 3, BUCKETS = 1 << DIGIT_BITS };   /* of a sort of 32-bit numbers */
enum { HEAP_SHARE = 16 };                                           /* more of the candidates than one in so many are sorted at once faster than taken one by one */

/* A block of a row in fp32, where it lies or in buffer; -inf stands behind the row's end. */
static const float *load_block(const generation *g, int64_t row, int64_t block, float *buffer) {
    const int64_t at = block * GENERATION_BLOCK, left = g->vocabulary - at, count = left < GENERATION_BLOCK ? left : GENERATION_BLOCK;
    const size_t index = (size_t)(row * g->vocabulary + at);
    const void *logits = g->results[g->output];
    if (g->logits_format == DW_FORMAT_f32 && count == GENERATION_BLOCK) return (const float *)logits + index;
    for (int64_t i = 0; i < count && g->logits_format == DW_FORMAT_f32; i++) buffer[i] = ((const float *)logits)[index + (size_t)i];
    if (g->logits_format == DW_FORMAT_bf16) num_bf16_to_f32_row((const uint16_t *)logits + index, buffer, count);
    if (g->logits_format == DW_FORMAT_f16) num_f16_to_f32_row((const uint16_t *)logits + index, buffer, count);
    for (int64_t i = count; i < GENERATION_BLOCK; i++) buffer[i] = -INFINITY;
    return buffer;
}

/* The largest of a block; NaN where one is in it. */
static float largest_of(const float *x) {
    float lanes[LANES], largest;
    int unordered[LANES] = {0}, any = 0;
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = -INFINITY;
    for (int i = 0; i < GENERATION_BLOCK; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            const float value = x[i + lane];
            lanes[lane] = value > lanes[lane] ? value : lanes[lane];
            unordered[lane] |= value != value;
        }
    largest = lanes[0];
    for (int lane = 0; lane < LANES; lane++) {
        largest = lanes[lane] > largest ? lanes[lane] : largest;
        any |= unordered[lane];
    }
    return any ? NAN : largest;
}

/* The first block of those with the largest number, which is NaN where there is one: as the op argmax orders them. maxima has each block's. */
static int64_t find_largest(const generation *g, int64_t row, float *maxima) {
    float buffer[GENERATION_BLOCK];
    int64_t best = 0;
    for (int64_t block = 0; block * GENERATION_BLOCK < g->vocabulary; block++) {
        maxima[block] = largest_of(load_block(g, row, block, buffer));
        if (!isnan(maxima[best]) && (isnan(maxima[block]) || maxima[block] > maxima[best])) best = block;
    }
    return best;
}

static int64_t first_largest(const generation *g, int64_t row, int64_t block) {
    float buffer[GENERATION_BLOCK];
    const float *x = load_block(g, row, block, buffer), largest = g->maxima[block];
    int64_t i = 0;
    while (isnan(largest) ? !isnan(x[i]) : x[i] != largest) i++;
    return block * GENERATION_BLOCK + i;
}

/* ---- draws ---- */

static bool ranks_before(candidate a, candidate b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

/* A heap of candidates, the best at its root. */
static void sift(candidate *heap, int64_t size, int64_t root) {
    for (int64_t child; (child = 2 * root + 1) < size; root = child) {
        if (child + 1 < size && ranks_before(heap[child + 1], heap[child])) child++;
        if (!ranks_before(heap[child], heap[root])) return;
        candidate swap = heap[root];
        heap[root] = heap[child];
        heap[child] = swap;
    }
}

/* The best count of size candidates go to the end of the array, best last. */
static void move_best(candidate *heap, int64_t size, int64_t count) {
    for (int64_t i = size / 2 - 1; i >= 0; i--) sift(heap, size, i);
    for (int64_t i = 0; i < count; i++) {
        const candidate taken = heap[0];
        heap[0] = heap[size - 1 - i];
        heap[size - 1 - i] = taken;
        sift(heap, size - 1 - i, 0);
    }
}

/* A number that orders as the logit does; zeros of both signs are one. */
static uint32_t order_of(float logit) {
    const float plain = logit + 0.0f;
    uint32_t bits;
    memcpy(&bits, &plain, sizeof bits);
    return bits ^ (bits >> 31 != 0 ? UINT32_MAX : UINT32_C(1) << 31);
}

static uint32_t digit_of(candidate c, int digit) { return order_of(c.logit) >> (digit * DIGIT_BITS) & (BUCKETS - 1); }

/* One digit, from the least on; equal ones keep their order. Where all are equal nothing moves: false. */
static bool sort_digit(const candidate *from, candidate *to, int64_t count, int digit) {
    int64_t starts[BUCKETS] = {0}, at = 0;
    for (int64_t i = 0; i < count; i++) starts[digit_of(from[i], digit)]++;
    if (starts[digit_of(from[0], digit)] == count) return false;
    for (int i = 0; i < BUCKETS; i++) {
        const int64_t size = starts[i];
        starts[i] = at;
        at += size;
    }
    for (int64_t i = 0; i < count; i++) to[starts[digit_of(from[i], digit)]++] = from[i];
    return true;
}

/* All candidates in order, best last: of equal logits the one with the least id, as they come with descending ids. */
static candidate *sort_all(const generation *g, int64_t count) {
    candidate *from = g->candidates, *to = g->spare;
    for (int digit = 0; digit < DIGITS; digit++) {
        if (!sort_digit(from, to, count, digit)) continue;
        candidate *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

/* No candidate of the k best lies below it that a draw can tell from none: k blocks reach it, so k logits do; and what lies further below the best than 37
 * temperatures has less than 2^-53 of its probability, which no sum from 1 on is changed by. */
static float least_logit(const generation *g, int64_t k, float best, double temperature) {
    const int64_t blocks = (g->vocabulary + GENERATION_BLOCK - 1) / GENERATION_BLOCK;
    const float near = nextafterf((float)((double)best - 37 * temperature), -INFINITY);
    if (k >= blocks) return near;
    for (int64_t i = 0; i < blocks; i++) g->candidates[i] = (candidate){g->maxima[i], (int32_t)i};
    move_best(g->candidates, blocks, k);
    const float reached = g->candidates[blocks - k].logit;
    return reached > near ? reached : near;
}

/* How many logits of the row are at least so large: candidates, with descending ids. */
static int64_t gather(const generation *g, int64_t row, float least) {
    float buffer[GENERATION_BLOCK];
    int64_t count = 0;
    for (int64_t block = (g->vocabulary - 1) / GENERATION_BLOCK; block >= 0; block--) {
        if (g->maxima[block] < least) continue;
        const float *x = load_block(g, row, block, buffer);
        const int64_t at = block * GENERATION_BLOCK, left = g->vocabulary - at;
        for (int64_t i = (left < GENERATION_BLOCK ? left : GENERATION_BLOCK) - 1; i >= 0; i--)
            if (x[i] >= least) g->candidates[count++] = (candidate){x[i], (int32_t)(at + i)};
    }
    return count;
}

/* The k best lie in front of best, the last; weights has room for them. uniform is below 1. */
static int64_t draw_among(const candidate *best, int64_t k, const dw_generate_options *options, double *weights, float uniform) {
    double mass = 0, kept = 0, sum;
    for (int64_t i = 0; i < k; i++) {
        weights[i] = exp((double)(best[-i].logit - best->logit) / options->temperature);
        mass += weights[i];
    }
    const double limit = options->top_p > 0 && options->top_p < 1 ? options->top_p * mass : mass;
    for (int64_t i = 0; i < k && kept < limit; i++) kept += weights[i];
    const double target = (double)uniform * kept;
    int64_t at = 0;
    for (sum = weights[0]; sum <= target; sum += weights[++at]) {}   /* ends at the latest where kept was reached: the sums are the same */
    return best[-at].id;
}

/* Softmax at a temperature over the top_k best, cut where their mass reaches top_p, then one draw: the mass of all k is known before the cut. A row with NaN or an
 * infinite best has no probabilities, and gives its largest. */
static int64_t pick_sampled(const generation *g, int64_t row, const dw_generate_options *options, uint64_t seed, uint64_t draw) {
    const int64_t first = find_largest(g, row, g->maxima);
    const float best = g->maxima[first];
    if (!isfinite(best)) return first_largest(g, row, first);
    const int64_t most = options->top_k > 0 && options->top_k < g->vocabulary ? options->top_k : g->vocabulary;
    const int64_t count = gather(g, row, least_logit(g, most, best, options->temperature)), k = most < count ? most : count;
    const candidate *ordered = g->candidates;
    if (k > count / HEAP_SHARE) ordered = sort_all(g, count);
    else move_best(g->candidates, count, k);
    return draw_among(ordered + count - 1, k, options, g->weights, num_random_uniform(seed, draw));
}

int64_t generation_pick(const generation *g, int64_t row, const dw_generate_options *options, uint64_t seed, uint64_t draw) {
    if (options->temperature > 0) return pick_sampled(g, row, options, seed, draw);
    return g->next >= 0 ? ((const int64_t *)g->results[g->next])[row] : first_largest(g, row, find_largest(g, row, g->maxima));
}
