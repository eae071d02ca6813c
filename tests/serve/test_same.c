/* A text's bits do not depend on what its session did before: calls in random order, and among them sessions of other room, give each prompt the logits and ids that it got the first time. On the CPU, on the stand-in
 * for the driver, and a few on a simulated H200, whose kernels divide keys by what a row of the cache holds.
 *     test_serve_same --device cuda --large [--calls 1000] [--format bf16] [--seed 1] [--for SECONDS]
 * does calls of a decoder on that device alone, in bf16 and with its cache in fp8: so many in one session, and a quarter as many in others of more room. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/decoder.h"
#include "support/driver.h"
#include "support/session.h"

enum { CALLS = 12, MOST = 3, LONGEST = 700, MADE = 16, VOCABULARY = 32, ROOM = 4096 };

/* A layer that sees all keys, and one whose cache is a ring where there are enough of them; heads of 64, two that share keys. */
static const char GRAPH[] =
    "graph g\n  symbol b 1..8\n  symbol s 1..4096\n  input ids i64[b,s]\n  param t %s[32,128]\n  %%1 = take t, ids {axis=0}\n"
    "  %%2 = reshape %%1 {shape=[b,s,2,64]}\n  %%3 = transpose %%2 {order=[0,2,1,3]}\n  %%9 = slice %%3 {axis=1,start=0,end=1,step=1}\n  %%4 = attention %%3, %%9, %%9 {scale=0.2,causal=true}\n"
    "  %%5 = attention %%4, %%9, %%9 {scale=0.2,causal=true,window=40}\n  %%6 = transpose %%5 {order=[0,2,1,3]}\n  %%7 = reshape %%6 {shape=[b,s,128]}\n"
    "  %%8 = matmul %%7, t {bt=true}\n  %%10 = cast %%8 {to=f32}\n  output logits %%10\n";

static uint64_t next(uint64_t *random) { return (*random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407)) >> 33; }

static dw_model *make_model(dw_context *context, const char *device, dw_format format) {
    static uint8_t weights[32 * 128 * 4];
    char text[1400];
    dw_named_tensor weight = {"t", {.format = format, .rank = 2, .dims = {32, 128}, .strides = {128, 1}, .data = weights}};
    dw_graph *graph;
    dw_model *model;
    uint64_t random = 5;
    for (int i = 0; i < 32 * 128; i++) num_store(format, weights, i, (double)((int64_t)next(&random) % 4001 - 2000) / 1500, true);
    snprintf(text, sizeof text, GRAPH, dw_format_name(format));
    assert_ok(context, dw_graph_parse(context, "g", text, strlen(text), &graph));
    assert_ok(context, dw_graph_bind(graph, 1, &weight));
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.device = device, .flags = DW_MODEL_GENERATE_ONLY}, &model));
    return model;
}

/* Prompts that are asked for together: count of them, from number first on, and tokens new ones of each; and what came of the call the first time. */
typedef struct call { int first, count; int64_t tokens; double temperature; bool is_known; uint64_t bits; int64_t ids[MOST][MADE]; } call;

/* What calls are made of, and what was done. */
typedef struct world {
    dw_context *context;
    dw_model *model;
    int64_t longest, vocabulary;
    uint64_t seed, random;
    int64_t done, tokens, prompt_tokens;
    call calls[CALLS];
} world;

static int64_t length_of(const world *w, int prompt) { return 1 + (int64_t)((uint64_t)prompt * 2654435761u % (uint64_t)w->longest); }

/* The logits of its last run: of a text that was begun, or that decodes. */
static uint64_t logits_of(dw_session *session, int count) {
    const generation *g = session->generation;
    engine_runner *runner = generation_runner(session);
    const int64_t ends = generation_ends(session);
    const size_t bytes = (size_t)(ends < count ? ends : count) * (size_t)g->vocabulary * sizeof(float);
    float *logits = malloc(bytes);
    assert_non_null(logits);
    if (session->device != NULL) assert_int_equal(engine_stage_read(session, runner, (size_t)g->output, 0, bytes, logits), DW_OK);
    else memcpy(logits, g->results[g->output], bytes);
    const uint64_t bits = base_hash(logits, bytes, 0);
    free(logits);
    return bits;
}

/* The first difference of what came of the call from what came of it the first time. */
static void compare(const world *w, const call *c, uint64_t bits, int64_t (*ids)[MADE]) {
    char words[160];
    snprintf(words, sizeof words, "call %lld of seed %llu", (long long)w->done + 1, (unsigned long long)w->seed);
    for (int i = 0; i < c->count; i++)
        for (int64_t k = 0; k < c->tokens; k++)
            if (ids[i][k] != c->ids[i][k])
                fail_msg("%s, %d prompts from number %d on: token %d of prompt %d, which has %d ids, is %d, and was %d the first time", words, c->count, c->first, (int)k, c->first + i,
                         (int)length_of(w, c->first + i), (int)ids[i][k], (int)c->ids[i][k]);
    if (bits != c->bits) fail_msg("%s, %d prompts from number %d on, %d new tokens: the last logits have other bits than the first time", words, c->count, c->first, (int)c->tokens);
}

static void run_call(world *w, dw_session *session, call *c) {
    static int64_t prompt[MOST][LONGEST];
    int64_t ids[MOST][MADE];
    dw_prompt prompts[MOST];
    for (int i = 0; i < c->count; i++) {
        const int64_t length = length_of(w, c->first + i);
        for (int64_t k = 0; k < length; k++) prompt[i][k] = (int64_t)(num_random((uint64_t)(c->first + i), (uint64_t)k) % (uint64_t)w->vocabulary);
        prompts[i] = (dw_prompt){.count = length, .ids = prompt[i], .seed = (uint64_t)i, .made_ids = ids[i]};
        w->prompt_tokens += length;
    }
    assert_ok(w->context, dw_session_generate_batch(session, c->count, prompts, &(dw_generate_options){.tokens = c->tokens, .temperature = c->temperature}, NULL));
    const uint64_t bits = logits_of(session, c->count);
    if (c->is_known) compare(w, c, bits, ids);
    w->tokens += c->count * c->tokens;
    w->done++;
    c->is_known = true;
    c->bits = bits;
    for (int i = 0; i < c->count; i++) memcpy(c->ids[i], ids[i], (size_t)c->tokens * sizeof *ids[i]);
}

/* So many calls in one session with room for so many rows of so many tokens, by the clock until then; 0: until they are done. */
static void run_calls(world *w, int64_t count, int64_t rows, int64_t room, double until) {
    dw_session *session;
    assert_ok(w->context, dw_session_create(w->context, w->model, &(dw_session_options){.max_tokens = room < ROOM ? room : ROOM, .rows = rows}, &session));
    for (int64_t i = 0; i < count && (i == 0 || until == 0 || base_now() < until); i++) run_call(w, session, &w->calls[next(&w->random) % CALLS]);
    dw_session_destroy(session);
}

/* most_new: each call makes from 1 to so many tokens. */
static void make_calls(world *w, int64_t most_new) {
    for (int i = 0; i < CALLS; i++) w->calls[i] = (call){.first = i, .count = i % 3 == 2 ? MOST : 1, .tokens = 1 + i % most_new};
}

/* Sessions that have room for the calls and ever more, in turns with calls. */
static void calls_in_any_order(const char *device, dw_format format, int count, int64_t longest) {
    static world w;
    int64_t room = longest + 8;
    w = (world){.longest = longest, .vocabulary = VOCABULARY, .seed = 9, .random = 9};
    assert_int_equal(dw_context_create(NULL, &w.context), DW_OK);
    w.model = make_model(w.context, device, format);
    make_calls(&w, 4);
    for (int i = 0; i < 4; i++, room *= 3) run_calls(&w, count / 4, MOST + i, room, 0);
    dw_model_destroy(w.model);
    dw_context_destroy(w.context);
}

static void a_thousand_calls_on_the_cpu_in_any_order(void **state) {
    (void)state;
    calls_in_any_order(NULL, DW_FORMAT_f32, 1000, 60);
}

static void a_thousand_calls_on_the_stand_in_in_any_order(void **state) {
    (void)state;
    if (fake == NULL) skip();
    calls_in_any_order(DEVICE_NAME, DW_FORMAT_f32, 1000, 4);
}

static void calls_on_a_simulated_gpu_in_any_order(void **state) {
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    calls_in_any_order("sim:h200", DW_FORMAT_f32, 24, 200);
    calls_in_any_order("sim:h200", DW_FORMAT_bf16, 24, 300);
}

/* ---- of a decoder, on the device that was asked for ---- */

static decoder_options options = {.sizes = &DECODER_SMALL, .format = -1, .count = 1000, .seed = 1};

static void calls_of(const decoder *decoder, const decoder_format *format) {
    static world w;
    const bool is_large = options.sizes == &DECODER_LARGE;
    const double begin = base_now(), until = options.seconds > 0 ? begin + options.seconds / (options.format < 0 ? DECODER_FORMATS : 1) : 0;
    w = (world){.longest = is_large ? LONGEST : 90, .vocabulary = options.sizes->vocabulary, .seed = options.seed, .random = options.seed * 2 + 1};
    assert_int_equal(dw_context_create(NULL, &w.context), DW_OK);
    w.model = decoder_open(w.context, decoder, &(dw_model_options){.device = options.device, .precision = format->precision, .flags = DW_MODEL_GENERATE_ONLY});
    make_calls(&w, is_large ? MADE : 4);
    for (int i = 3; i < CALLS; i += 4) w.calls[i].temperature = 0.9;
    const double opened = base_now();
    run_calls(&w, options.count, MOST, w.longest + MADE, until);
    const int64_t first = w.done;
    for (int i = 1; i <= 2; i++) run_calls(&w, options.count / 8, MOST + i, 3 * i * w.longest, until);
    int known = 0;
    for (int i = 0; i < CALLS; i++) known += w.calls[i].is_known;
    print_message("same, %s, %s: %lld calls of %lld in one session and %lld in two of more room (seed %llu), %lld tokens made behind %lld of prompts, in %.1f s and %.1f of opening: each has the ids and the last logits of its first time, to the bit; %d kinds of calls\n",
                  options.device, format->name, (long long)first, (long long)options.count, (long long)(w.done - first), (unsigned long long)w.seed, (long long)w.tokens, (long long)w.prompt_tokens, base_now() - opened, opened - begin, known);
    dw_model_destroy(w.model);
    dw_context_destroy(w.context);
}

static void calls_of_a_decoder_in_any_order(void **state) {
    (void)state;
    decoder *decoder = decoder_create(options.sizes);
    for (int i = 0; i < DECODER_FORMATS; i++)
        if (options.format < 0 || options.format == i) calls_of(decoder, &DECODER_FORMAT[i]);
    decoder_destroy(decoder);
}

static void a_hundred_calls_of_a_decoder_on_the_cpu(void **state) {
    const decoder_options before = options;
    options.device = "cpu";
    options.count = 100;
    calls_of_a_decoder_in_any_order(state);
    options = before;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hundred_calls_of_a_decoder_on_the_cpu),
        cmocka_unit_test(a_thousand_calls_on_the_cpu_in_any_order),
        cmocka_unit_test(a_thousand_calls_on_the_stand_in_in_any_order),
        cmocka_unit_test(calls_on_a_simulated_gpu_in_any_order),
    };
    const struct CMUnitTest asked[] = {cmocka_unit_test(calls_of_a_decoder_in_any_order)};
    if (!decoder_read_options(argc, argv, "calls", &options)) return 2;
    return options.device != NULL ? cmocka_run_group_tests(asked, NULL, NULL) : cmocka_run_group_tests(tests, open_driver, NULL);
}
