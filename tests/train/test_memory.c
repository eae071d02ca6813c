/* What a step keeps and makes again: the same bits whatever is made again, logits in parts, memory that is reserved and no more, and what explain says of all that. */
#include "support/support.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deepwell/deepwell.h"

enum { WIDTH = 32, HIDDEN = 64, VOCABULARY = 200, BATCH = 4, LENGTH = 8, LAYERS = 2, MOST_WEIGHTS = 40, MOST_ELEMENTS = VOCABULARY * HIDDEN };

/* A model of two layers in a format: embedding, attention and an mlp with their norms, a head with a bias, and the mean loss. */
typedef struct model {
    char text[16384];
    size_t used;
    int count;
    dw_named_tensor weights[MOST_WEIGHTS];
    char names[MOST_WEIGHTS][32];
    uint32_t data[MOST_WEIGHTS][MOST_ELEMENTS];
} model;

static void add(model *m, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    m->used += (size_t)vsnprintf(m->text + m->used, sizeof m->text - m->used, format, arguments);
    va_end(arguments);
    assert_true(m->used < sizeof m->text);
}

static void add_weight(model *m, const char *format, int64_t rows, int64_t cols, const char *name, ...) {
    va_list arguments;
    dw_tensor *tensor = &m->weights[m->count].tensor;
    assert_true(m->count < MOST_WEIGHTS);
    va_start(arguments, name);
    vsnprintf(m->names[m->count], sizeof m->names[0], name, arguments);
    va_end(arguments);
    *tensor = (dw_tensor){.format = dw_format_find(format), .rank = rows > 0 ? 2 : 1, .dims = {rows > 0 ? rows : cols, cols}, .strides = {rows > 0 ? cols : 1, 1}, .data = m->data[m->count]};
    m->weights[m->count].name = m->names[m->count];
    unsigned seed = 17u * (unsigned)m->count + 1;
    for (int64_t i = 0; i < (rows > 0 ? rows : 1) * cols; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float value = (float)(seed >> 8) / (float)(1 << 24) - (rows > 0 ? 0.5f : -0.5f);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (dw_format_bits(tensor->format) == 32) m->data[m->count][i] = bits;
        else ((uint16_t *)m->data[m->count])[i] = (uint16_t)(bits >> 16);    /* bf16 */
    }
    if (rows > 0) add(m, "  param %s %s[%d,%d]\n", m->names[m->count], format, (int)rows, (int)cols);
    else add(m, "  param %s %s[%d]\n", m->names[m->count], format, (int)cols);
    m->count++;
}

static void add_layer(model *m, int i, int at) {
    static const char *const of[] = {"q", "k", "v"};
    add(m, "  %%%d = layer_norm %%%d, n%d, nb%d {eps=1e-5} at \"blocks.%d.norm\" role norm\n", at + 1, at, i, i, i);
    for (int k = 0; k < 3; k++) {
        add(m, "  %%%d = matmul %%%d, %s%d {bt=true} at \"blocks.%d.attn.%s\" role attention\n", at + 2 + 3 * k, at + 1, of[k], i, i, of[k]);
        add(m, "  %%%d = reshape %%%d {shape=[b,s,2,16]} at \"blocks.%d.attn\"\n", at + 3 + 3 * k, at + 2 + 3 * k, i);
        add(m, "  %%%d = transpose %%%d {order=[0,2,1,3]} at \"blocks.%d.attn\"\n", at + 4 + 3 * k, at + 3 + 3 * k, i);
    }
    add(m, "  %%%d = attention %%%d, %%%d, %%%d {causal=true,scale=0.25} at \"blocks.%d.attn\" role attention\n", at + 11, at + 4, at + 7, at + 10, i);
    add(m, "  %%%d = transpose %%%d {order=[0,2,1,3]} at \"blocks.%d.attn\"\n  %%%d = reshape %%%d {shape=[b,s,32]} at \"blocks.%d.attn\"\n", at + 12, at + 11, i, at + 13, at + 12, i);
    add(m, "  %%%d = matmul %%%d, o%d {bt=true} at \"blocks.%d.attn.o\" role attention\n  %%%d = add %%%d, %%%d at \"blocks.%d\"\n", at + 14, at + 13, i, i, at + 15, at, at + 14, i);
    add(m, "  %%%d = layer_norm %%%d, m%d, mb%d {eps=1e-5} at \"blocks.%d.norm\" role norm\n", at + 16, at + 15, i, i, i);
    add(m, "  %%%d = matmul %%%d, up%d {bt=true} at \"blocks.%d.mlp.up\" role mlp\n  %%%d = add %%%d, ub%d at \"blocks.%d.mlp.up\"\n", at + 17, at + 16, i, i, at + 18, at + 17, i, i);
    add(m, "  %%%d = gelu %%%d at \"blocks.%d.mlp\"\n  %%%d = matmul %%%d, down%d {bt=true} at \"blocks.%d.mlp.down\" role mlp\n", at + 19, at + 18, i, at + 20, at + 19, i, i);
    add(m, "  %%%d = add %%%d, %%%d at \"blocks.%d\"\n", at + 21, at + 15, at + 20, i);
}

static void build(model *m, const char *format) {
    memset(m, 0, sizeof *m);
    add(m, "graph layers\n  symbol b 1..64\n  symbol s 1..64\n  input ids i64[b,s]\n  input labels i64[b,s]\n");
    add_weight(m, format, VOCABULARY, WIDTH, "table");
    for (int i = 0; i < LAYERS; i++) {
        static const char *const vectors[] = {"n", "nb", "m", "mb"}, *const matrices[] = {"q", "k", "v", "o"};
        for (int k = 0; k < 4; k++) add_weight(m, format, 0, WIDTH, "%s%d", vectors[k], i);
        for (int k = 0; k < 4; k++) add_weight(m, format, WIDTH, WIDTH, "%s%d", matrices[k], i);
        add_weight(m, format, HIDDEN, WIDTH, "up%d", i);
        add_weight(m, format, 0, HIDDEN, "ub%d", i);
        add_weight(m, format, WIDTH, HIDDEN, "down%d", i);
    }
    add_weight(m, format, VOCABULARY, WIDTH, "head");
    add_weight(m, format, 0, VOCABULARY, "hb");
    add(m, "  %%1 = take table, ids {axis=0} at \"embed\" role embedding\n");
    for (int i = 0; i < LAYERS; i++) add_layer(m, i, 1 + 21 * i);
    const int at = 1 + 21 * LAYERS;
    add(m, "  %%%d = matmul %%%d, head {bt=true} at \"head\" role lm_head\n  %%%d = add %%%d, hb at \"head\"\n  %%%d = cast %%%d {to=f32}\n", at + 1, at, at + 2, at + 1, at + 3, at + 2);
    add(m, "  %%%d = reshape %%%d {shape=[b*s,200]}\n  %%%d = reshape labels {shape=[b*s]}\n", at + 4, at + 3, at + 5, at + 4);
    add(m, "  %%%d, %%%d = cross_entropy %%%d, %%%d {ignore=-1}\n  %%%d = mean %%%d {axes=[0]}\n", at + 6, at + 7, at + 4, at + 5, at + 8, at + 6);
}

static dw_graph *graph_of(dw_context *context, model *m, const char *loss) {
    dw_graph *graph;
    char text[sizeof m->text + 256];
    snprintf(text, sizeof text, "%s%s", m->text, loss);
    if (dw_graph_parse(context, "layers", text, strlen(text), &graph) != DW_OK || dw_graph_bind(graph, m->count, m->weights) != DW_OK) fail_msg("%s", dw_context_error(context));
    return graph;
}

static const char mean_loss[] = "  output loss %51\n";
static const char squared_loss[] = "  %52 = mul %51, %51\n  output loss %52\n";      /* whose gradient needs all of it */

static dw_trainer *trainer_of(dw_context *context, model *m, const char *loss, const dw_trainer_options *options) {
    dw_trainer *trainer;
    if (dw_trainer_create(context, graph_of(context, m, loss), options, &trainer) != DW_OK) fail_msg("%s", dw_context_error(context));
    return trainer;
}

/* The last loss. */
static double train(dw_context *context, dw_trainer *trainer, int batch, int steps, double rate) {
    int64_t ids[64 * LENGTH], labels[64 * LENGTH];
    dw_train_result result = {0};
    for (int t = 0; t < steps; t++) {
        for (int i = 0; i < batch * LENGTH; i++) {
            ids[i] = (i * 7 + t * 11) % VOCABULARY;
            labels[i] = i % 5 == 0 ? -1 : (i * 3 + t) % VOCABULARY;
        }
        const dw_tensor shape = {.format = DW_FORMAT_i64, .rank = 2, .dims = {batch, LENGTH}, .strides = {LENGTH, 1}, .data = ids};
        dw_named_tensor inputs[] = {{"ids", shape}, {"labels", shape}};
        inputs[1].tensor.data = labels;
        if (dw_trainer_step(trainer, 2, inputs, rate, &result) != DW_OK) fail_msg("%s", dw_context_error(context));
    }
    return result.loss;
}

static void read_all(const model *m, dw_trainer *trainer, uint32_t (*weights)[MOST_ELEMENTS]) {
    for (int i = 0; i < m->count; i++) {
        const dw_tensor *t = &m->weights[i].tensor;
        assert_int_equal(dw_trainer_read(trainer, m->names[i], weights[i], (size_t)(t->dims[0] * (t->rank > 1 ? t->dims[1] : 1)) * sizeof(float)), DW_OK);
    }
}

static model m;
static uint32_t first[MOST_WEIGHTS][MOST_ELEMENTS], other[MOST_WEIGHTS][MOST_ELEMENTS];

/* ---- claims ---- */

static void what_is_made_again_has_the_same_bits(void **state) {
    static const char *const levels[] = {"none", "cheap", "attention", "block", "blocks.0.* = none, block", "role:attention=none, blocks.1*=block, cheap"}, *const formats[] = {"f32", "bf16"};
    for (int f = 0; f < 2; f++) {
        build(&m, formats[f]);
        for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
            for (int accumulate = 1; accumulate <= 2; accumulate++) {
                static double losses[2];
                static uint32_t wanted[2][MOST_WEIGHTS][MOST_ELEMENTS];
                dw_trainer *trainer = trainer_of(*state, &m, mean_loss, &(dw_trainer_options){.recompute = levels[i], .chunks = 1, .accumulate = accumulate, .flags = DW_TRAINER_VERIFY});
                const double loss = train(*state, trainer, BATCH, 4, 0.01);
                memset(other, 0, sizeof other);
                read_all(&m, trainer, other);
                if (i == 0) losses[accumulate - 1] = loss;
                if (i == 0) memcpy(wanted[accumulate - 1], other, sizeof other);
                if (loss != losses[accumulate - 1] || memcmp(wanted[accumulate - 1], other, sizeof other) != 0) fail_msg("%s, recompute '%s', accumulate %d: other bits than without", formats[f], levels[i], accumulate);
                dw_trainer_destroy(trainer);
            }
        }
    }
}

/* Sums in another order, over three steps. Of a loss that is no sum of the rows' the logits are made again. */
static void logits_in_parts_give_the_same_step(void **state) {
    static const char *const losses[] = {mean_loss, squared_loss};
    build(&m, "f32");
    for (int l = 0; l < 2; l++) {
        dw_trainer *whole = trainer_of(*state, &m, losses[l], &(dw_trainer_options){.chunks = 1, .optimizer = "sgd"});
        const double loss = train(*state, whole, BATCH, 3, 1e-3);
        read_all(&m, whole, first);
        for (int chunks = 2; chunks <= 40; chunks += 19) {
            static uint32_t again[MOST_WEIGHTS][MOST_ELEMENTS];
            for (int run = 0; run < 2; run++) {
                dw_trainer *parts = trainer_of(*state, &m, losses[l], &(dw_trainer_options){.chunks = chunks, .optimizer = "sgd", .flags = DW_TRAINER_VERIFY});
                assert_true(fabs(train(*state, parts, BATCH, 3, 1e-3) - loss) <= 1e-5 * loss);
                read_all(&m, parts, run == 0 ? other : again);
                dw_trainer_destroy(parts);
            }
            assert_memory_equal(other, again, sizeof other);
            for (int i = 0; i < m.count; i++) {
                for (int k = 0; k < MOST_ELEMENTS; k++) {
                    float a, b;
                    memcpy(&a, &first[i][k], sizeof a);
                    memcpy(&b, &other[i][k], sizeof b);
                    if (fabsf(a - b) > 1e-4f * (1 + fabsf(a))) fail_msg("%d parts, %s element %d: %g, whole %g", chunks, m.names[i], k, (double)b, (double)a);
                }
            }
        }
        dw_trainer_destroy(whole);
    }
}

static uint64_t workspace_of(dw_context *context, const dw_trainer_options *options) {
    uint64_t kept, workspace;
    dw_trainer *trainer = trainer_of(context, &m, mean_loss, options);
    dw_trainer_bytes(trainer, &kept, &workspace);
    dw_trainer_destroy(trainer);
    return workspace;
}

static void less_is_kept_the_more_is_made_again(void **state) {
    static const char *const levels[] = {"none", "cheap", "attention", "block"};
    uint64_t before = UINT64_MAX;
    build(&m, "f32");
    for (int i = 0; i < 4; i++) {
        const uint64_t bytes = workspace_of(*state, &(dw_trainer_options){.recompute = levels[i], .dims = "b=64,s=8"});
        if (bytes >= before) fail_msg("recompute %s takes %llu bytes, the level before %llu", levels[i], (unsigned long long)bytes, (unsigned long long)before);
        before = bytes;
    }
    const dw_trainer_options whole = {.recompute = "none", .chunks = 1, .dims = "b=64,s=8"}, parts = {.recompute = "none", .chunks = 4, .dims = "b=64,s=8"};
    assert_true(workspace_of(*state, &parts) < workspace_of(*state, &whole));
}

/* All that a trainer takes of memory with the sizes of its steps is the workspace that it tells, and a step takes nothing besides but a list of its inputs. */
/* Weights that are prepared once for several micro-batches lie in what was reserved, too; while they are made, a step takes a table of the plan's values besides. */
static void the_peak_of_a_step_is_what_is_reserved(void **state) {
    static const dw_trainer_options kinds[] = {{.chunks = 2}, {.chunks = 2, .accumulate = 2, .precision = "bf16"}, {.chunks = 2, .accumulate = 2, .precision = "mxfp8"}};
    static const size_t besides[] = {16384, 1 << 18, 1 << 18};
    static const char *const dims[] = {"b=4,s=8", "b=64,s=8"};
    size_t live[2];
    uint64_t workspace[2], kept;
    (void)state;
    build(&m, "f32");
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 2; i++) {
            test_memory memory = {0};
            dw_context *context = test_context_create(&memory, 2);
            dw_trainer_options options = kinds[k];
            options.dims = dims[i];
            dw_trainer *trainer = trainer_of(context, &m, mean_loss, &options);
            dw_trainer_bytes(trainer, &kept, &workspace[i]);
            live[i] = memory.live_bytes;
            memory.peak_bytes = live[i];
            train(context, trainer, i == 0 ? 4 : 64, 4, 0.01);
            assert_int_equal(memory.live_bytes, live[i]);
            if (memory.peak_bytes > live[i] + besides[k]) fail_msg("kind %d, %s: %zu bytes besides what is reserved", k, dims[i], memory.peak_bytes - live[i]);
            dw_trainer_destroy(trainer);
            dw_context_destroy(context);
        }
        assert_int_equal(live[1] - live[0], workspace[1] - workspace[0]);
    }
}

static char said[1 << 20];
static size_t said_length;
static void hear(void *user, const char *text, size_t length) {
    (void)user;
    assert_true(said_length + length < sizeof said);
    memcpy(said + said_length, text, length);
    said[said_length += length] = '\0';
}

static void says(dw_context *context, const dw_trainer_options *options, const char *chip, const char *words) {
    said_length = 0;
    if (dw_trainer_explain(context, graph_of(context, &m, mean_loss), options, chip, 0, hear, NULL) != DW_OK) fail_msg("%s", dw_context_error(context));
    if (strstr(said, words) == NULL) fail_msg("'%s' is not said:\n%.3000s", words, said);
}

static void explain_tells_phases_memory_and_reasons(void **state) {
    char words[64];
    build(&m, "f32");
    const dw_trainer_options options = {.dims = "b=64,s=8", .recompute = "block", .chunks = 2};
    says(*state, &options, NULL, "in 2 parts one after the other, as asked for");
    static const char *const parts[] = {"\n  fprop ", "\n  again ", "\n  dgrad ", "\n  wgrad ", "\n  update ", "blocks.1 ", "recompute: block", "program step, by phase"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strstr(said, parts[i]) == NULL) fail_msg("'%s' is not said:\n%.3000s", parts[i], said);
    snprintf(words, sizeof words, "workspace %.1f\n", (double)workspace_of(*state, &options) / 1e6);
    says(*state, &options, NULL, words);
    says(*state, &(dw_trainer_options){.dims = "b=64,s=8"}, NULL, "whole: they and their gradient take 256 MiB or less");
    says(*state, &(dw_trainer_options){.accumulate = 2}, NULL, "program update, by phase");
    said_length = 0;
    assert_int_equal(dw_trainer_explain(*state, graph_of(*state, &m, mean_loss), NULL, NULL, 1, hear, NULL), DW_OK);
    assert_true(said[0] == '{' && strstr(said, "\"phase\": \"wgrad\"") != NULL);
}

static void a_bad_level_is_refused(void **state) {
    static const struct { dw_trainer_options options; dw_status status; const char *words; } bad[] = {
        {{.recompute = "all"}, DW_NOT_FOUND, "there is no 'all'; there are none, cheap, attention, block"},
        {{.recompute = "block,none"}, DW_SYNTAX, "two levels"},
        {{.recompute = "= block"}, DW_SYNTAX, "'= block'"},
        {{.recompute = "blocks.9.* = block"}, DW_NOT_FOUND, "no module that the pattern 'blocks.9.*' matches"},
        {{.recompute = ""}, DW_NOT_FOUND, "there is no ''"},
        {{.chunks = -1}, DW_INVALID, "chunks is -1"},
        {{.chunks = 65}, DW_INVALID, "chunks is 65"},
    };
    build(&m, "f32");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dw_trainer *trainer;
        test_assert_fails(*state, dw_trainer_create(*state, graph_of(*state, &m, mean_loss), &bad[i].options, &trainer), bad[i].status, bad[i].words);
        test_assert_fails(*state, dw_trainer_explain(*state, graph_of(*state, &m, mean_loss), &bad[i].options, NULL, 0, hear, NULL), bad[i].status, bad[i].words);
    }
}

static dw_status explain_once(dw_context *context, void *argument) {
    static const char text[] = "graph small\n  input x f32[4,3]\n  input labels i64[4]\n  param a f32[5,3]\n  param head f32[7,5]\n  %1 = matmul x, a {bt=true} at \"blocks.0.up\"\n  %2 = gelu %1 at \"blocks.0\"\n"
                               "  %3 = matmul %2, head {bt=true}\n  %4, %5 = cross_entropy %3, labels\n  %6 = mean %4 {axes=[0]}\n  output loss %6\n";
    static float numbers[35];
    const dw_named_tensor weights[] = {{"a", {.format = DW_FORMAT_f32, .rank = 2, .dims = {5, 3}, .strides = {3, 1}, .data = numbers}}, {"head", {.format = DW_FORMAT_f32, .rank = 2, .dims = {7, 5}, .strides = {5, 1}, .data = numbers}}};
    dw_graph *graph;
    (void)argument;
    said_length = 0;
    dw_status status = dw_graph_parse(context, "small", text, sizeof text - 1, &graph);
    if (status != DW_OK) return status;
    status = dw_graph_bind(graph, 2, weights);
    if (status == DW_OK) return dw_trainer_explain(context, graph, &(dw_trainer_options){.recompute = "block", .chunks = 2}, NULL, 0, hear, NULL);
    dw_graph_destroy(graph);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    test_every_allocation(explain_once, NULL);
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }
static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_made_again_has_the_same_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(logits_in_parts_give_the_same_step, setup, teardown),
        cmocka_unit_test_setup_teardown(less_is_kept_the_more_is_made_again, setup, teardown),
        cmocka_unit_test(the_peak_of_a_step_is_what_is_reserved),
        cmocka_unit_test_setup_teardown(explain_tells_phases_memory_and_reasons, setup, teardown),
        cmocka_unit_test_setup_teardown(a_bad_level_is_refused, setup, teardown),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
