/* Which splits are chosen for known shapes of models: Megatron's. And cutting a graph of 32 layers takes no time worth speaking of. The graphs have no weights; nothing is computed. */
#include "pass/pass.h"
#include "plan/plan.h"
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct shape {
    const char *name;
    int ranks;
    long long hidden, heads, keys, width, ff, vocabulary, experts;   /* keys: heads of keys; experts 0: one mlp for all tokens */
    bool gated, biased;
    const char *splits;             /* of the first layer, and of what is around the layers */
    const char *lines;              /* of a policy of splits; NULL: none */
    chip_link link;
    const char *dims;               /* for estimates; NULL: the usual ones */
} shape;

/* The text of a graph: params, and nodes by number. */
typedef struct writer {
    const shape *shape;
    text params, nodes;
    int id;
} writer;

static void add_param(writer *w, const char *name, int layer, long long experts, long long n, long long k) {
    text_printf(&w->params, "  param %s.%d f32[", name, layer);
    if (experts > 0) text_printf(&w->params, "%lld,", experts);
    if (n > 0) text_printf(&w->params, "%lld,", n);
    text_printf(&w->params, "%lld]\n", k);
}

/* "%7 = op .." */
static int add(writer *w, const char *format, ...) BASE_PRINTF(2, 3);
static int add(writer *w, const char *format, ...) {
    char words[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    text_printf(&w->nodes, "  %%%d = %s\n", ++w->id, words);
    return w->id;
}

/* x [b,s,k] with a weight [n,k], and a bias where the shape has them; added: what post adds, or 0. */
static int add_product(writer *w, const char *name, int layer, const char *module, int x, long long n, long long k, const char *post, int added) {
    char operands[96] = "", steps[64] = "";
    add_param(w, name, layer, 0, n, k);
    if (w->shape->biased) {
        char bias[32];
        snprintf(bias, sizeof bias, "%sb", name);
        add_param(w, bias, layer, 0, 0, n);
        snprintf(operands, sizeof operands, ", %sb.%d", name, layer);
        snprintf(steps, sizeof steps, "bias");
    }
    if (*post != '\0') snprintf(steps + strlen(steps), sizeof steps - strlen(steps), "%s%s", *steps != '\0' ? "," : "", post);
    if (added > 0) snprintf(operands + strlen(operands), sizeof operands - strlen(operands), ", %%%d", added);
    return add(w, "matmul %%%d, %s.%d%s {bt=true%s%s%s} at \"layers.%d.%s\"", x, name, layer, operands, *steps != '\0' ? ",post=\"" : "", steps, *steps != '\0' ? "\"" : "", layer, module);
}

static int add_heads(writer *w, const char *name, int layer, const char *module, int x, long long heads) {
    const int y = add_product(w, name, layer, module, x, heads * w->shape->width, w->shape->hidden, "", 0);
    const int z = add(w, "reshape %%%d {shape=[b,s,%lld,%lld]}", y, heads, w->shape->width);
    return add(w, "transpose %%%d {order=[0,2,1,3]}", z);
}

static int add_attention(writer *w, int layer, int x) {
    const shape *s = w->shape;
    const int y = add(w, "rms_norm %%%d {eps=1e-05}", x);
    const int q = add_heads(w, "q", layer, "attn.q", y, s->heads), k = add_heads(w, "k", layer, "attn.k", y, s->keys), v = add_heads(w, "v", layer, "attn.v", y, s->keys);
    const int a = add(w, "attention %%%d, %%%d, %%%d {scale=0.1,causal=true} at \"layers.%d.attn\"", q, k, v, layer);
    const int t = add(w, "transpose %%%d {order=[0,2,1,3]}", a);
    const int r = add(w, "reshape %%%d {shape=[b,s,%lld]}", t, s->heads * s->width);
    return add_product(w, "o", layer, "attn.o", r, s->hidden, s->heads * s->width, "add", x);
}

static int add_mlp(writer *w, int layer, int x) {
    const shape *s = w->shape;
    const int y = add(w, "rms_norm %%%d {eps=1e-05}", x);
    int up = add_product(w, "up", layer, "mlp.up", y, s->ff, s->hidden, s->gated ? "" : "gelu", 0);
    if (s->gated) up = add(w, "mul %%%d, %%%d", add_product(w, "gate", layer, "mlp.gate", y, s->ff, s->hidden, "silu", 0), up);
    return add_product(w, "down", layer, "mlp.down", up, s->hidden, s->ff, "add", x);
}

static int add_experts(writer *w, int layer, int x) {
    const shape *s = w->shape;
    add_param(w, "router", layer, 0, s->experts, s->hidden);
    add_param(w, "eup", layer, s->experts, s->ff, s->hidden);
    add_param(w, "egate", layer, s->experts, s->ff, s->hidden);
    add_param(w, "edown", layer, s->experts, s->hidden, s->ff);
    const int n = add(w, "rms_norm %%%d {eps=1e-05}", x), y = add(w, "reshape %%%d {shape=[b*s,%lld]}", n, s->hidden);
    const int r = add(w, "matmul %%%d, router.%d {bt=true} at \"layers.%d.router\"", y, layer, layer);
    text_printf(&w->nodes, "  %%%d, %%%d = topk %%%d {axis=1,length=2,largest=true}\n", w->id + 1, w->id + 2, r);
    const int scores = w->id + 1, ids = w->id += 2;
    text_printf(&w->nodes, "  %%%d, %%%d, %%%d = dispatch %%%d {length=%lld} at \"layers.%d.experts\"\n", w->id + 1, w->id + 2, w->id + 3, ids, s->experts, layer);
    const int rows = w->id + 1, places = w->id + 2, offsets = w->id += 3;
    const int t = add(w, "take %%%d, %%%d {axis=0}", y, rows);
    const int up = add(w, "grouped_matmul %%%d, eup.%d, %%%d {bt=true} at \"layers.%d.experts.up\"", t, layer, offsets, layer);
    const int gate = add(w, "grouped_matmul %%%d, egate.%d, %%%d {bt=true,post=\"silu\"} at \"layers.%d.experts.gate\"", t, layer, offsets, layer);
    const int m = add(w, "mul %%%d, %%%d", gate, up);
    const int down = add(w, "grouped_matmul %%%d, edown.%d, %%%d {bt=true} at \"layers.%d.experts.down\"", m, layer, offsets, layer);
    const int c = add(w, "combine %%%d, %%%d, %%%d", down, places, scores);
    const int z = add(w, "reshape %%%d {shape=[b,s,%lld]}", c, s->hidden);
    return add(w, "add %%%d, %%%d", x, z);
}

static ir_graph *graph_of(dw_context *context, const shape *shape, int layers) {
    writer w = {.shape = shape};
    text whole;
    ir_graph *graph;
    text_init(&w.params, context);
    text_init(&w.nodes, context);
    text_init(&whole, context);
    add_param(&w, "words", 0, 0, shape->vocabulary, shape->hidden);
    add_param(&w, "head", 0, 0, shape->vocabulary, shape->hidden);
    int x = add(&w, "take words.0, ids {axis=0} at \"embed\"");
    for (int i = 0; i < layers; i++) {
        x = add_attention(&w, i, x);
        x = shape->experts > 0 ? add_experts(&w, i, x) : add_mlp(&w, i, x);
    }
    x = add(&w, "rms_norm %%%d {eps=1e-05}", x);
    x = add(&w, "matmul %%%d, head.0 {bt=true} at \"lm_head\"", x);
    text_printf(&whole, "graph known\n  symbol b 1..\n  symbol s 1..\n  input ids i64[b,s]\n%s%s  output logits %%%d\n", text_string(&w.params), text_string(&w.nodes), x);
    const dw_status status = ir_parse(context, shape->name, text_string(&whole), whole.length, NULL, &graph);
    if (status != DW_OK) fail_msg("%s: %s", shape->name, dw_context_error(context));
    text_free(&w.params);
    text_free(&w.nodes);
    text_free(&whole);
    return graph;
}

/* "embed vocabulary, attn.q column, ..": each line that is of no layer or of the first. */
static void shorten(const char *told, char *splits, size_t size) {
    size_t used = 0;
    splits[0] = '\0';
    while (*told != '\0') {
        char layer[128], split[32];
        if (sscanf(told, " %127s %31s", layer, split) != 2) break;
        const char *name = strncmp(layer, "layers.0.", 9) == 0 ? layer + 9 : layer;
        if (strncmp(name, "layers.", 7) != 0) used += (size_t)snprintf(splits + used, size - used, "%s%s %s", used > 0 ? ", " : "", name, split);
        told = strchr(told, '\n') + 1;
    }
}

static int count_words(const char *text, const char *words) {
    int found = 0;
    while ((text = strstr(text, words)) != NULL) found++, text++;
    return found;
}

/* chip NULL: no estimates, so all is cut that can be. */
static ir_graph *cut(dw_context *context, const shape *shape, int layers, const char *chip, text *told) {
    pass_splits *splits;
    chip_caps caps;
    ir_graph *graph = graph_of(context, shape, layers);
    pass_options options = {.check = layers <= 2};
    plan_options planned = {.chip = &caps, .dims = shape->dims};
    const pass_estimates estimates = {.user = &planned, .sizes = plan_estimate_sizes, .seconds = plan_estimate};
    if (chip != NULL) {
        if (chip_find(context, chip, 0, &caps) != DW_OK) fail_msg("%s", dw_context_error(context));
        caps.link = shape->link;
        options.estimates = &estimates;
    }
    if (pass_splits_create(context, "tp", shape->ranks, NULL, shape->lines, &splits) != DW_OK) fail_msg("%s", dw_context_error(context));
    options.splits = splits;
    options.told = told;
    if (pass_run(graph, PASS_STAGE_SHARD, &options) != DW_OK) fail_msg("%s: %s", shape->name, dw_context_error(context));
    pass_splits_destroy(splits);
    return graph;
}

#define DENSE "embed vocabulary, attn.q column, attn.k column, attn.v column, attn heads, attn.o row, "
#define MEGATRON DENSE "mlp.up column, mlp.down row, lm_head vocabulary"
#define GATED DENSE "mlp.up column, mlp.gate column, mlp.down row, lm_head vocabulary"
#define EXPERTS DENSE "router whole, experts experts, lm_head vocabulary"

static const shape shapes[] = {
    /* name            ranks hidden heads keys width     ff  words experts gated  biased */
    {"gpt2-xl",            2, 1600,   25,  25,  64,   6400,  50257,   0, false, true,  MEGATRON, NULL, CHIP_LINK_threads, NULL},
    {"opt-66b",            8, 9216,   72,  72, 128,  36864,  50272,   0, false, true,  MEGATRON, NULL, CHIP_LINK_threads, NULL},
    {"gpt-neox-20b",       4, 6144,   64,  64,  96,  24576,  50432,   0, false, true,  MEGATRON, NULL, CHIP_LINK_threads, NULL},
    {"llama-2-7b",         2, 4096,   32,  32, 128,  11008,  32000,   0, true,  false, GATED, NULL, CHIP_LINK_threads, NULL},
    {"llama-3-8b",         4, 4096,   32,   8, 128,  14336, 128256,   0, true,  false, GATED, NULL, CHIP_LINK_threads, NULL},
    {"llama-3-70b",        8, 8192,   64,   8, 128,  28672, 128256,   0, true,  false, GATED, NULL, CHIP_LINK_threads, NULL},
    {"llama-3-405b",      16, 16384, 128,   8, 128,  53248, 128256,   0, true,  false, GATED, NULL, CHIP_LINK_threads, NULL},
    {"mistral-7b",         3, 4096,   32,   8, 128,  14336,  32000,   0, true,  false, GATED, NULL, CHIP_LINK_threads, NULL},
    {"gemma-2-27b",        8, 4608,   32,  16, 128,  36864, 256000,   0, true,  false, GATED, NULL, CHIP_LINK_threads, NULL},
    {"falcon-7b",          2, 4544,   71,   1,  64,  18176,  65024,   0, false, false,
     "embed vocabulary, attn.q column, attn.k whole, attn.v whole, attn heads, attn.o row, mlp.up column, mlp.down row, lm_head vocabulary", NULL, CHIP_LINK_threads, NULL},   /* one head of keys, which all ranks have */
    {"mixtral-8x7b",       4, 4096,   32,   8, 128,  14336,  32000,   8, true,  false, EXPERTS, NULL, CHIP_LINK_threads, NULL},
    {"qwen3-30b-a3b",      8, 2048,   32,   4, 128,    768, 151936, 128, true,  false, EXPERTS, NULL, CHIP_LINK_threads, NULL},
};

static void splits_of_known_shapes_are_megatrons(void **state) {
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        char splits[1024];
        text told;
        text_init(&told, context);
        ir_graph *graph = cut(context, &shapes[i], 2, NULL, &told);
        shorten(text_string(&told), splits, sizeof splits);
        if (strcmp(splits, shapes[i].splits) != 0) fail_msg("%s on %d ranks:\n  %s\nexpected\n  %s", shapes[i].name, shapes[i].ranks, splits, shapes[i].splits);
        text_free(&told);
        ir_graph_destroy(graph);
    }
    dw_context_destroy(context);
}

static int count(const ir_graph *graph, op_id op) {
    int found = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) found += node->op == op;
    return found;
}

/* Two sums a layer, the embedding's, and logits put together; no more. */
static void ranks_tell_each_other_twice_a_layer(void **state) {
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        ir_graph *graph = cut(context, &shapes[i], 2, NULL, NULL);
        assert_int_equal(count(graph, OP_all_reduce), 5);
        assert_int_equal(count(graph, OP_all_gather), 1);
        ir_graph_destroy(graph);
    }
    dw_context_destroy(context);
}

/* By estimates for a CPU, too; and each sum and each of the logits says what the other ways take. */
static void splits_that_take_the_least_time_are_megatrons(void **state) {
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        char splits[1024];
        text told;
        text_init(&told, context);
        ir_graph *graph = cut(context, &shapes[i], 2, "cpu-avx512bf16", &told);
        shorten(text_string(&told), splits, sizeof splits);
        if (strcmp(splits, shapes[i].splits) != 0) fail_msg("%s on %d ranks:\n%s", shapes[i].name, shapes[i].ranks, text_string(&told));
        assert_int_equal(count_words(text_string(&told), "us in all with what is cut together"), 5);   /* of two layers two each, and of logits */
        text_free(&told);
        ir_graph_destroy(graph);
    }
    dw_context_destroy(context);
}

/* Of so few numbers each rank computes all, sooner than it asks the others; and what a line names, or 'all', is cut nevertheless. */
static void what_is_sooner_computed_than_sent_stays_whole(void **state) {
    static const char *const lines[] = {NULL, "all", "*.mlp.* = whole\n*.o = row"};
    static const char *const expected[] = {"embed vocabulary, attn.q whole, attn.k whole, attn.v whole, attn.o whole, mlp.up whole, mlp.gate whole, mlp.down whole, lm_head whole", GATED,
                                           DENSE "mlp.up whole, mlp.gate whole, mlp.down whole, lm_head whole"};
    static const int less[] = {15, 0, 1};
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        const shape small = {"small", 2, 32, 4, 4, 8, 64, 96, 0, true, false, expected[i], lines[i], CHIP_LINK_threads, NULL};
        char splits[1024];
        text told;
        text_init(&told, context);
        ir_graph_destroy(cut(context, &small, 2, "cpu-avx512bf16", &told));
        shorten(text_string(&told), splits, sizeof splits);
        assert_string_equal(splits, small.splits);
        assert_int_equal(count_words(text_string(&told), "less time: "), less[i]);
        text_free(&told);
    }
    dw_context_destroy(context);
}

/* What threads cut, as they meet in no time, processes leave whole. */
static void a_slow_link_cuts_less(void **state) {
    static const char *const expected[] = {GATED, "embed vocabulary, attn.q whole, attn.k whole, attn.v whole, attn.o whole, mlp.up whole, mlp.gate whole, mlp.down whole, lm_head whole"};
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    for (chip_link link = CHIP_LINK_threads; link <= CHIP_LINK_engine; link++) {
        const shape shape = {"of the carried model", 2, 256, 4, 4, 64, 512, 512, 0, true, false, expected[link], NULL, link, NULL};
        char splits[1024];
        text told;
        text_init(&told, context);
        ir_graph_destroy(cut(context, &shape, 1, "cpu-avx512bf16", &told));
        shorten(text_string(&told), splits, sizeof splits);
        if (strcmp(splits, shape.splits) != 0) fail_msg("%s:\n%s", chip_link_get(link)->name, text_string(&told));
        text_free(&told);
    }
    dw_context_destroy(context);
}

/* Of many tokens residuals and norms take longer than one more meeting: then each rank has some. Of one token, or where an engine is slow to meet, all have all. And lines say what estimates do not. */
static void sums_are_by_tokens_where_that_takes_less_time(void **state) {
    static const struct { const char *dims, *lines; chip_link link; bool by_tokens; } cases[] = {
        {"b=1,s=4096", NULL, CHIP_LINK_threads, true},        {"b=1,s=1", NULL, CHIP_LINK_threads, false},          {"b=1,s=128", NULL, CHIP_LINK_engine, false},
        {"b=1,s=4096", "sums = whole", CHIP_LINK_threads, false}, {"b=1,s=1", "sums = tokens", CHIP_LINK_threads, true}, {"b=1,s=4096", "*.attn.o = row\n*.down = row", CHIP_LINK_threads, false},
    };
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const shape shape = {"long", 4, 256, 4, 4, 64, 768, 4096, 0, true, false, NULL, cases[i].lines, cases[i].link, cases[i].dims};
        text told;
        text_init(&told, context);
        ir_graph *graph = cut(context, &shape, 8, "cpu-avx512bf16", &told);
        const int scattered = count(graph, OP_reduce_scatter), sums = count(graph, OP_all_reduce);
        if (cases[i].by_tokens ? scattered != 16 || sums != 1 : scattered != 0) fail_msg("%s%s%s, %s: %d sums by tokens, %d whole\n%s", cases[i].dims, cases[i].lines != NULL ? ", " : "", cases[i].lines != NULL ? cases[i].lines : "", chip_link_get(cases[i].link)->name, scattered, sums, text_string(&told));
        assert_int_equal(count_words(text_string(&told), "us for sums, residuals and norms of all layers by tokens"), cases[i].by_tokens && cases[i].lines == NULL ? 16 : 0);
        text_free(&told);
        ir_graph_destroy(graph);
    }
    dw_context_destroy(context);
}

static void a_graph_of_32_layers_is_cut_in_half_a_second(void **state) {
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(shapes); i += 5) {
        const char *chip = i > 0 ? "cpu-avx512bf16" : NULL;
        const clock_t start = clock();
        ir_graph_destroy(cut(context, &shapes[i], 32, chip, NULL));
        const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        printf("%s: %.3f s with the writing and reading of its text\n", shapes[i].name, seconds);
        if (getenv("DEEPWELL_SANITIZE") == NULL || getenv("DEEPWELL_SANITIZE")[0] == '\0') assert_true(seconds <= 0.5);
    }
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_of_known_shapes_are_megatrons),
        cmocka_unit_test(splits_that_take_the_least_time_are_megatrons),
        cmocka_unit_test(what_is_sooner_computed_than_sent_stays_whole),
        cmocka_unit_test(a_slow_link_cuts_less),
        cmocka_unit_test(ranks_tell_each_other_twice_a_layer),
        cmocka_unit_test(sums_are_by_tokens_where_that_takes_less_time),
        cmocka_unit_test(a_graph_of_32_layers_is_cut_in_half_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
