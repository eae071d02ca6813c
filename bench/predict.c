/* What products would take on Blackwell by the bound of tiles (src/kernel/tiles.h): no measurement, and no kernel is run. Usage: predict CHIP prints bench/predictions/CHIP.json.
 *
 * What is not known of a chip is an interval: the clock under load, and what the L2 cache gives. Each product is predicted by the best tile at the good ends and at the bad ones; and again for
 * tiles one below the other that share b by multicast, of which nobody knows whether it relieves the cache. A launch's fixed time is in it, as events measure it. */
#include <stdio.h>
#include <string.h>

#include "kernel/kernel.h"

/* ---- tiles ---- */

enum { SHARED_BYTES = 227 * 1024, RESULT_BYTES = 32 * 1024 };
static const int pair_columns[] = {256, 192, 128, 64}, single_columns[] = {256, 192, 128, 64, 32, 16};

/* kinds of products, by their operands */
typedef struct kind { const char *name; int bits, scale_block; } kind;
static const kind kinds[] = {{"bf16", 16, 0}, {"fp8", 8, 0}, {"mxfp8", 8, 32}, {"nvfp4", 4, 16}};

typedef struct size { int64_t m, n, k; } size;
static const size sizes[] = {
    {8192, 8192, 8192}, {4096, 4096, 4096}, {512, 7168, 2048},
#define PEER_H200(m, n, k, ...) {m, n, k},
#include "../tests/kernel/peers_h200.def"
#undef PEER_H200
};

/* ---- the ends of what is not known ---- */

typedef struct end { double clock_hz, l2_bytes_per_s; } end;
static const end good = {1.86e9, 20e12}, bad = {1.5e9, 17e12};

static chip_caps chip_at(const chip_caps *chip, const end *e) {
    chip_caps own = *chip;
    own.rates[CHIP_RATE_clock].expected = e->clock_hz;
    own.rates[CHIP_RATE_operands].expected = e->l2_bytes_per_s / e->clock_hz / chip->units;
    return own;
}

/* ---- the best tile ---- */

typedef struct best { kernel_tiles tiles; kernel_tiles_bound bound; } best;

/* A stage: a's and b's 128 bytes of k of a block, and their scales. */
static int stages_of(const kernel_tiles *t, const kind *k) {
    const int rows = t->m / t->blocks, scales = k->scale_block > 0 ? (rows + t->n) * (KERNEL_K_BLOCK * 8 / k->bits / k->scale_block) : 0;
    return (SHARED_BYTES - RESULT_BYTES) / ((rows + t->n / t->blocks) * KERNEL_K_BLOCK + scales);
}

/* Of tiles within a hundredth of each other the first: the largest. */
static void try_tile(int blocks, int columns, const kind *k, const size *s, int share, const chip_caps *chip, best *b) {
    kernel_tiles t = {.m = 128 * blocks, .n = columns, .blocks = blocks, .share_b = share, .accumulators = 2, .raster = 8};
    const kernel_product p = {.m = s->m, .n = s->n, .k = s->k, .bits = {k->bits, k->bits}, .scale_block = k->scale_block, .result_bytes = 2};
    kernel_tiles_bound bound;
    t.stages = stages_of(&t, k);
    kernel_tiles_bound_of(&t, &p, chip, &bound);
    if (b->bound.seconds > 0 && bound.seconds > 0.99 * b->bound.seconds) return;
    *b = (best){t, bound};
}

static best best_of(const kind *k, const size *s, const end *e, int share, const chip_caps *chip) {
    const chip_caps own = chip_at(chip, e);
    best b = {0};
    for (size_t i = 0; i < COUNT_OF(pair_columns); i++) try_tile(2, pair_columns[i], k, s, share, &own, &b);
    for (size_t i = 0; i < COUNT_OF(single_columns); i++) try_tile(1, single_columns[i], k, s, share, &own, &b);
    return b;
}

/* ---- the file ---- */

static void print_tile(const best *b) { printf("\"%d x %d%s\"", b->tiles.m, b->tiles.n, b->tiles.blocks == 2 ? " of a pair" : ""); }

static void print_product(const kind *k, const size *s, const chip_caps *chip, bool last) {
    const best g = best_of(k, s, &good, 1, chip), w = best_of(k, s, &bad, 1, chip), shared_g = best_of(k, s, &good, 2, chip), shared_w = best_of(k, s, &bad, 2, chip);
    const double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k;
    printf("  {\"operands\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"predicted_us\": [%.1f, %.1f], \"predicted_tflops\": [%.0f, %.0f], \"predicted_part_of_matrix_rate\": [%.3f, %.3f], ", k->name,
           (long long)s->m, (long long)s->n, (long long)s->k, 1e6 * g.bound.seconds, 1e6 * w.bound.seconds, 1e-12 * flops / g.bound.seconds, 1e-12 * flops / w.bound.seconds, g.bound.part, w.bound.part);
    printf("\"predicted_us_with_b_shared\": [%.1f, %.1f], \"tiles\": [", 1e6 * shared_g.bound.seconds, 1e6 * shared_w.bound.seconds);
    print_tile(&g);
    printf(", ");
    print_tile(&w);
    printf("], \"binds\": [\"%s\", \"%s\"]}%s\n", kernel_resource_words(g.bound.limit), kernel_resource_words(w.bound.limit), last ? "" : ",");
}

static bool is_seen(size_t index) {
    for (size_t i = 0; i < index; i++)
        if (memcmp(&sizes[i], &sizes[index], sizeof sizes[i]) == 0) return true;
    return false;
}

int main(int count, char **words) {
    dw_context *context;
    chip_caps chip;
    if (count != 2 || dw_context_create(NULL, &context) != DW_OK) {
        fprintf(stderr, "usage: predict CHIP\n");
        return 2;
    }
    if (chip_find(context, words[1], 0, &chip) != DW_OK || !kernel_tiles_known(&chip) || !chip_has(&chip, CHIP_tcgen05)) {
        fprintf(stderr, "predict: '%s' is no chip with tcgen05 of the table\n", words[1]);
        return 2;
    }
    printf("{\"chip\": \"%s\",\n \"what\": \"predicted by the bound of tiles (src/kernel/tiles.h), before anybody measured: of each pair the good end and the bad one of what is not known\",\n", chip.name);
    printf(" \"clock_ghz\": [%.2f, %.2f], \"l2_tbytes_per_s\": [%.0f, %.0f], \"fixed_us\": %.1f,\n \"products\": [\n", 1e-9 * good.clock_hz, 1e-9 * bad.clock_hz,
           1e-12 * good.l2_bytes_per_s, 1e-12 * bad.l2_bytes_per_s, 1e6 * chip.rates[CHIP_RATE_fixed].expected);
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            if (!is_seen(i)) print_product(&kinds[k], &sizes[i], &chip, k + 1 == COUNT_OF(kinds) && i + 1 == COUNT_OF(sizes));
    printf(" ]}\n");
    dw_context_destroy(context);
    return 0;
}
