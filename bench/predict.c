/* What products and attention by tiles of tcgen05 would take on Blackwell, by what bounds them (src/kernel/tiles.h, attend.h): no measurement, and no kernel is run. Usage: predict CHIP prints
 * bench/predictions/CHIP.json.
 *
 * What is not known of a chip is an interval: the clock under load, and what the L2 cache gives. Each call is predicted by the entry that the kernel's way would take at the good ends, and
 * at the bad ones. A launch's fixed time is in it, as events measure it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"

static const char PRODUCTS[] = "cuda_matmul_tcgen05_tiles", ATTENTION[] = "cuda_attention_tcgen05";
typedef struct pair { const char *a, *b; } pair;
static const pair operands[] = {{"bf16", "bf16"}, {"fp8_tensor", "fp8_tensor"}, {"fp8_1x128", "fp8_128x128"}, {"mxfp8@tile128x4", "mxfp8@tile128x4"}, {"nvfp4@tile128x4", "nvfp4@tile128x4"}};

typedef struct size { int64_t m, n, k; } size;
static const size sizes[] = {
    {8192, 8192, 8192}, {4096, 4096, 4096}, {512, 7168, 2048},
#define PEER_H200(m, n, k, ...) {m, n, k},
#include "../tests/kernel/peers_h200.def"
#undef PEER_H200
};

/* 32768 tokens of hidden width 2048, as public tables have them, and heads as models have them. */
typedef struct heads { int64_t batches, heads, groups, keys, width, value_width; bool causal; } heads;
static const heads attentions[] = {
    {2, 16, 16, 16384, 128, 128, false}, {2, 16, 16, 16384, 128, 128, true}, {8, 16, 16, 4096, 128, 128, false}, {8, 16, 16, 4096, 128, 128, true}, {32, 16, 16, 1024, 128, 128, false},
    {32, 16, 16, 1024, 128, 128, true}, {2, 32, 32, 16384, 64, 64, false}, {2, 32, 32, 16384, 64, 64, true}, {8, 32, 32, 4096, 64, 64, false}, {8, 32, 32, 4096, 64, 64, true},
    {32, 32, 32, 1024, 64, 64, false}, {32, 32, 32, 1024, 64, 64, true}, {4, 32, 8, 8192, 128, 128, true}, {1, 64, 8, 8192, 64, 64, true}, {4, 16, 16, 8192, 192, 128, true},
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

/* ---- a call ---- */

typedef struct prediction { kernel_tiles_bound bound; char entry[64]; } prediction;
typedef struct recorder { kernel_launcher launcher; prediction *of; } recorder;

static dw_status record(kernel_launcher *launcher, const kernel_launch *launch) {
    const recorder *r = (const recorder *)launcher;
    snprintf(r->of->entry, sizeof r->of->entry, "%s", launch->entry);
    return DW_OK;
}

static void predict(dw_context *context, const char *way, const char *line, const end *e, const chip_caps *chip, prediction *p) {
    static const int64_t no_symbols[1] = {0};
    const chip_caps own = chip_at(chip, e);
    arena arena;
    dim_table *dims;
    kernel_case c;
    kernel_choice choice;
    kernel_typical typical;
    recorder recorder = {{record}, p};
    arena_init(&arena, context);
    must(context, dim_table_create(context, &dims));
    must(context, kernel_case_parse(&arena, dims, "predict", 1, line, &c));
    const kernel_problem problem = {.context = context, .op = c.op, .attrs = &c.attrs, .post = c.post, .n_in = c.n_in, .n_out = c.n_out, .in = c.in, .out = c.out, .constant_in = c.constant,
                                    .dims = c.dims, .symbols = no_symbols, .chip = &own};
    must(context, kernel_choose(&arena, &problem, NULL, way, &choice));
    if (!kernel_at_typical(&problem, choice.ways, &typical) || !kernel_pick_bound(choice.row, &typical.run, &p->bound)) {
        fprintf(stderr, "predict: nothing is known of what bounds %s\n", line);
        exit(1);
    }
    must(context, kernel_shape(choice.row, &typical.run, &recorder.launcher));
    dim_table_destroy(dims);
    arena_free(&arena);
}

/* What a call is predicted to take, behind what says which call it is. Of products also inside the kernel, without a launch. */
static void print_prediction(dw_context *context, const char *way, const char *line, double flops, const chip_caps *chip, bool last) {
    prediction g, w;
    predict(context, way, line, &good, chip, &g);
    predict(context, way, line, &bad, chip, &w);
    printf("\"predicted_us\": [%.1f, %.1f], \"predicted_tflops\": [%.0f, %.0f], \"predicted_part_of_matrix_rate\": [%.3f, %.3f], ", 1e6 * g.bound.seconds, 1e6 * w.bound.seconds,
           1e-12 * flops / g.bound.seconds, 1e-12 * flops / w.bound.seconds, g.bound.part, w.bound.part);
    if (g.bound.inside_s > 0) printf("\"inside_us\": [%.1f, %.1f], \"inside_part_of_matrix_rate\": [%.3f, %.3f], ", 1e6 * g.bound.inside_s, 1e6 * w.bound.inside_s, g.bound.inside_part, w.bound.inside_part);
    printf("\"entries\": [\"%s\", \"%s\"], \"binds\": [\"%s\", \"%s\"]}%s\n", g.entry, w.entry, kernel_resource_words(g.bound.limit), kernel_resource_words(w.bound.limit), last ? "" : ",");
}

static void print_product(dw_context *context, pair operand, const size *s, const chip_caps *chip, bool last) {
    char line[256];
    snprintf(line, sizeof line, "matmul %s[%lld,%lld] %s[%lld,%lld] bt=true to=bf16", operand.a, (long long)s->m, (long long)s->k, operand.b, (long long)s->n, (long long)s->k);
    printf("  {\"operands\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, ", operand.a, (long long)s->m, (long long)s->n, (long long)s->k);
    print_prediction(context, PRODUCTS, line, 2.0 * (double)s->m * (double)s->n * (double)s->k, chip, last);
}

/* Its operations are those of the pairs that are seen. */
static void print_attention(dw_context *context, const heads *h, const chip_caps *chip, bool last) {
    char line[256];
    const double rows = (double)(h->batches * h->heads * h->keys), seen = h->causal ? ((double)h->keys + 1) / 2 : (double)h->keys;
    snprintf(line, sizeof line, "attention bf16[%lld,%lld,%lld,%lld] bf16[%lld,%lld,%lld,%lld] bf16[%lld,%lld,%lld,%lld] scale=0.1%s", (long long)h->batches, (long long)h->heads, (long long)h->keys,
             (long long)h->width, (long long)h->batches, (long long)h->groups, (long long)h->keys, (long long)h->width, (long long)h->batches, (long long)h->groups, (long long)h->keys,
             (long long)h->value_width, h->causal ? " causal=true" : "");
    printf("  {\"operands\": \"bf16\", \"batches\": %lld, \"heads\": %lld, \"heads_of_keys\": %lld, \"tokens\": %lld, \"width\": %lld, \"width_of_values\": %lld, \"causal\": %s, ", (long long)h->batches,
           (long long)h->heads, (long long)h->groups, (long long)h->keys, (long long)h->width, (long long)h->value_width, h->causal ? "true" : "false");
    print_prediction(context, ATTENTION, line, 2.0 * rows * seen * (double)(h->width + h->value_width), chip, last);
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
    printf("{\"chip\": \"%s\", \"ways\": [\"%s\", \"%s\"],\n \"what\": \"predicted by what bounds the kernels (src/kernel/tiles.h, attend.h), before anybody measured: of each pair the good end and the bad one of what is not known\",\n",
           chip.name, PRODUCTS, ATTENTION);
    printf(" \"clock_ghz\": [%.2f, %.2f], \"l2_tbytes_per_s\": [%.0f, %.0f], \"fixed_us\": %.1f,\n \"products\": [\n", 1e-9 * good.clock_hz, 1e-9 * bad.clock_hz, 1e-12 * good.l2_bytes_per_s,
           1e-12 * bad.l2_bytes_per_s, 1e6 * chip.rates[CHIP_RATE_fixed].expected);
    for (size_t k = 0; k < COUNT_OF(operands); k++)
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            if (!is_seen(i)) print_product(context, operands[k], &sizes[i], &chip, k + 1 == COUNT_OF(operands) && i + 1 == COUNT_OF(sizes));
    printf(" ],\n \"attention\": [\n");
    for (size_t i = 0; i < COUNT_OF(attentions); i++) print_attention(context, &attentions[i], &chip, i + 1 == COUNT_OF(attentions));
    printf(" ]}\n");
    dw_context_destroy(context);
    return 0;
}
