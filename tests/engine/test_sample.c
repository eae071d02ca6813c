/* The choice of a token beside its meaning spelled out: all logits in order, softmax in double, one draw. Rows have equal logits, infinite ones and NaN among them. */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/generation.h"

enum { MOST = 3000, ROWS = 2, ROUNDS = 40 };

/* Room for generation's choice among logits of this format, and the row that is chosen from, in fp32. */
typedef struct bench {
    generation g;
    float row[MOST], maxima[MOST / GENERATION_BLOCK + 1];
    candidate candidates[MOST], spare[MOST];
    double weights[MOST];
    uint32_t logits[ROWS * MOST];
} bench;

/* Fills the second row. */
static void fill(bench *bench, dw_format format, int64_t vocabulary, double spread, uint64_t seed) {
    bench->g = (generation){.vocabulary = vocabulary, .logits_format = format, .next = -1, .maxima = bench->maxima, .candidates = bench->candidates, .spare = bench->spare, .weights = bench->weights, .results = {bench->logits}};
    memset(bench->logits, 0x7f, sizeof bench->logits);   /* what is beside the row is larger than all of it */
    for (int64_t i = 0; i < vocabulary; i++) {
        num_store(format, bench->logits, vocabulary + i, spread * (double)num_random_normal(seed, (uint64_t)i), false);
        bench->row[i] = (float)num_load(format, bench->logits, vocabulary + i);
    }
}

static void put(bench *bench, int64_t id, float value) {
    num_store(bench->g.logits_format, bench->logits, bench->g.vocabulary + id, (double)value, false);
    bench->row[id] = (float)num_load(bench->g.logits_format, bench->logits, bench->g.vocabulary + id);
}

static int64_t likeliest(const bench *bench) {
    int64_t best = 0;
    for (int64_t i = 1; i < bench->g.vocabulary; i++)
        if (!isnan(bench->row[best]) && (isnan(bench->row[i]) || bench->row[i] > bench->row[best])) best = i;
    return best;
}

static int compare(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int64_t drawn(const bench *bench, const dw_generate_options *how, uint64_t seed, uint64_t draw) {
    static candidate order[MOST];
    const int64_t all = bench->g.vocabulary, k = how->top_k > 0 && how->top_k < all ? how->top_k : all;
    double mass = 0, kept = 0, sum = 0;
    int64_t among = 0, i = 0;
    for (int64_t id = 0; id < all; id++) order[id] = (candidate){bench->row[id], (int32_t)id};
    qsort(order, (size_t)all, sizeof *order, compare);
    for (int64_t n = 0; n < k; n++) mass += exp((double)(order[n].logit - order[0].logit) / how->temperature);
    const double limit = how->top_p > 0 && how->top_p < 1 ? how->top_p * mass : mass;
    for (; among < k && kept < limit; among++) kept += exp((double)(order[among].logit - order[0].logit) / how->temperature);
    const double target = (double)num_random_uniform(seed, draw) * kept;
    for (; i + 1 < among; i++) {
        sum += exp((double)(order[i].logit - order[0].logit) / how->temperature);
        if (sum > target) break;
    }
    return order[i].id;
}

static const dw_format formats[] = {DW_FORMAT_f32, DW_FORMAT_bf16, DW_FORMAT_f16};
static const int64_t vocabularies[] = {1, 2, 63, 64, 65, 128, 1000, MOST};

static int64_t pick(const bench *bench, const dw_generate_options *how, uint64_t seed) { return generation_pick(&bench->g, 1, how, seed, 7); }

static void greedy_takes_the_first_of_the_largest(void **state) {
    (void)state;
    static bench bench;
    static const float special[] = {INFINITY, -INFINITY, NAN};
    const dw_generate_options greedy = {0}, warm = {.temperature = 1, .top_k = 3};
    for (size_t f = 0; f < COUNT_OF(formats); f++)
        for (size_t v = 0; v < COUNT_OF(vocabularies); v++)
            for (uint64_t round = 0; round < ROUNDS; round++) {
                const int64_t count = vocabularies[v];
                fill(&bench, formats[f], count, 3, round);
                const int64_t at = (int64_t)(num_random(1, round) % (uint64_t)count), other = (int64_t)(num_random(2, round) % (uint64_t)count);
                if (round % 4 == 1) put(&bench, at, bench.row[likeliest(&bench)]);
                if (round % 4 > 1) put(&bench, at, special[round % 3]), put(&bench, other, special[round % 3]);
                assert_int_equal(pick(&bench, &greedy, 0), likeliest(&bench));
                if (!isfinite(bench.row[likeliest(&bench)])) assert_int_equal(pick(&bench, &warm, round), likeliest(&bench));   /* no probabilities there */
            }
    fill(&bench, DW_FORMAT_f32, 200, 1, 0);
    for (int64_t i = 0; i < 200; i++) put(&bench, i, -INFINITY);
    assert_int_equal(pick(&bench, &greedy, 0), 0);
    assert_int_equal(pick(&bench, &warm, 0), 0);
}

static void draws_are_those_of_all_logits_in_order(void **state) {
    (void)state;
    static bench bench;
    static const double temperatures[] = {1e-310, 0.01, 0.7, 1, 5, 1e30}, shares[] = {0, 0.3, 0.95, 1};
    static const int tops[] = {0, 1, 2, 5, 40, 50, 900, MOST};
    static const double spreads[] = {0.01, 2, 30};
    for (uint64_t round = 0; round < 6; round++)
        for (size_t v = 0; v < COUNT_OF(vocabularies); v++) {
            fill(&bench, formats[round % 3], vocabularies[v], spreads[(round + v) % 3], round);
            if (round > 2) put(&bench, (int64_t)round % vocabularies[v], -INFINITY);
            if (!isfinite(bench.row[likeliest(&bench)])) continue;
            for (size_t i = 0; i < COUNT_OF(temperatures) * COUNT_OF(shares) * COUNT_OF(tops); i++) {
                const dw_generate_options how = {.temperature = temperatures[i % COUNT_OF(temperatures)], .top_p = shares[i / COUNT_OF(temperatures) % COUNT_OF(shares)],
                                                 .top_k = tops[i / COUNT_OF(temperatures) / COUNT_OF(shares)]};
                const int64_t got = pick(&bench, &how, i), want = drawn(&bench, &how, i, 7);
                if (got != want)
                    fail_msg("%s, %d logits, temperature %g, top_k %d, top_p %g: %d instead of %d", dw_format_name(formats[round % 3]), (int)vocabularies[v], how.temperature, how.top_k,
                             how.top_p, (int)got, (int)want);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_the_largest),
        cmocka_unit_test(draws_are_those_of_all_logits_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
