/* What products by tiles of tcgen05 would take on Blackwell, by what bounds them (src/kernel/tiles.h): no measurement, and no kernel is run. Usage: predict CHIP prints
 * bench/predictions/CHIP.json.
 *
 * What is not known of a chip is an interval: the clock under load, and what the L2 cache gives. Each product is predicted by the tile that the kernel's way would take at the good ends, and
 * at the bad ones. A launch's fixed time is in it, as events measure it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"

static const char WAY[] = "cuda_matmul_tcgen05_tiles";
typedef struct pair { const char *a, *b; } pair;
static const pair operands[] = {{"bf16", "bf16"}, {"fp8_tensor", "fp8_tensor"}, {"fp8_1x128", "fp8_128x128"}, {"mxfp8@tile128x4", "mxfp8@tile128x4"}, {"nvfp4@tile128x4", "nvfp4@tile128x4"}};

typedef struct size { int64_t m, n, k; } size;
static const size sizes[] = {
    {8192, 8192, 8192}, {4096, 4096, 4096}, {512, 7168, 2048},
#define PEER_H200(m, n, k, ...) {m, n, k},
#include "../tests/kernel/peers_h200.def"
#undef PEER_H200
};

static void must(dw_context *context, dw_status status) {
    if (status == DW_OK) return;
    fprintf(stderr, "predict: %s\n", dw_context_error(context));
    exit(1);
}

/* ---- the ends of what is not known ---- */

typedef struct end { double clock_hz, l2_bytes_per_s; } end;
static const end good = {1.86e9, 20e12}, bad = {1.5e9, 17e12};

static chip_caps chip_at(const chip_caps *chip, const end *e) {
    chip_caps own = *chip;
    own.rates[CHIP_RATE_clock].expected = e->clock_hz;
    own.rates[CHIP_RATE_operands].expected = e->l2_bytes_per_s / e->clock_hz / chip->units;
    return own;
}

/* ---- a product ---- */

typedef struct prediction { kernel_tiles_bound bound; char entry[64]; } prediction;
typedef struct recorder { kernel_launcher launcher; prediction *of; } recorder;

static dw_status record(kernel_launcher *launcher, const kernel_launch *launch) {
    const recorder *r = (const recorder *)launcher;
    snprintf(r->of->entry, sizeof r->of->entry, "%s", launch->entry);
    return DW_OK;
}

static void predict(dw_context *context, pair operand, const size *s, const end *e, const chip_caps *chip, prediction *p) {
    static const int64_t no_symbols[1] = {0};
    const chip_caps own = chip_at(chip, e);
    arena arena;
    dim_table *dims;
    kernel_case c;
    kernel_choice choice;
    kernel_typical typical;
    char line[256];
    recorder recorder = {{record}, p};
    snprintf(line, sizeof line, "matmul %s[%lld,%lld] %s[%lld,%lld] bt=true to=bf16", operand.a, (long long)s->m, (long long)s->k, operand.b, (long long)s->n, (long long)s->k);
    arena_init(&arena, context);
    must(context, dim_table_create(context, &dims));
    must(context, kernel_case_parse(&arena, dims, "predict", 1, line, &c));
    const kernel_problem problem = {.context = context, .op = c.op, .attrs = &c.attrs, .post = c.post, .n_in = c.n_in, .n_out = c.n_out, .in = c.in, .out = c.out, .constant_in = c.constant,
                                    .dims = c.dims, .symbols = no_symbols, .chip = &own};
    must(context, kernel_choose(&arena, &problem, NULL, WAY, &choice));
    if (!kernel_at_typical(&problem, choice.ways, &typical) || !kernel_pick_bound(choice.row, &typical.run, &p->bound)) {
        fprintf(stderr, "predict: nothing is known of what bounds %s\n", line);
        exit(1);
    }
    must(context, kernel_shape(choice.row, &typical.run, &recorder.launcher));
    dim_table_destroy(dims);
    arena_free(&arena);
}

static void print_product(dw_context *context, pair operand, const size *s, const chip_caps *chip, bool last) {
    prediction g, w;
    const double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k;
    predict(context, operand, s, &good, chip, &g);
    predict(context, operand, s, &bad, chip, &w);
    printf("  {\"operands\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"predicted_us\": [%.1f, %.1f], \"predicted_tflops\": [%.0f, %.0f], \"predicted_part_of_matrix_rate\": [%.3f, %.3f], ", operand.a,
           (long long)s->m, (long long)s->n, (long long)s->k, 1e6 * g.bound.seconds, 1e6 * w.bound.seconds, 1e-12 * flops / g.bound.seconds, 1e-12 * flops / w.bound.seconds, g.bound.part, w.bound.part);
    printf("\"entries\": [\"%s\", \"%s\"], \"binds\": [\"%s\", \"%s\"]}%s\n", g.entry, w.entry, kernel_resource_words(g.bound.limit), kernel_resource_words(w.bound.limit), last ? "" : ",");
}

/* ---- the file ---- */

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
    printf("{\"chip\": \"%s\", \"way\": \"%s\",\n \"what\": \"predicted by what bounds the kernel (src/kernel/tiles.h), before anybody measured: of each pair the good end and the bad one of what is not known\",\n",
           chip.name, WAY);
    printf(" \"clock_ghz\": [%.2f, %.2f], \"l2_tbytes_per_s\": [%.0f, %.0f], \"fixed_us\": %.1f,\n \"products\": [\n", 1e-9 * good.clock_hz, 1e-9 * bad.clock_hz, 1e-12 * good.l2_bytes_per_s,
           1e-12 * bad.l2_bytes_per_s, 1e6 * chip.rates[CHIP_RATE_fixed].expected);
    for (size_t k = 0; k < COUNT_OF(operands); k++)
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            if (!is_seen(i)) print_product(context, operands[k], &sizes[i], &chip, k + 1 == COUNT_OF(operands) && i + 1 == COUNT_OF(sizes));
    printf(" ]}\n");
    dw_context_destroy(context);
    return 0;
}
