/* A text's bits do not depend on what its session did before, and those of an invariant model on nothing but the text (here on the CPU; on a simulated GPU by test_invariant.c): calls in random order, and among them sessions of other room, give each prompt the logits and ids that it got the first time. On the
 * CPU, on the stand-in for the driver, and a few on a simulated H200, whose kernels divide keys by what a row of the cache holds. */
#include "deepwell/serve.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/driver.h"
#include "support/session.h"

enum { PROMPTS = 12, LONGEST = 700, MOST = 3, VOCABULARY = 32 };

/* A layer that sees all keys, and one whose cache is a ring where there are enough of them; heads of 64, two that share keys. */
static const char GRAPH[] =
    "graph g\n  symbol b 1..8\n  symbol s 1..4096\n  input ids i64[b,s]\n  param t %s[32,128]\n  %%1 = take t, ids {axis=0}\n"
    "  %%2 = reshape %%1 {shape=[b,s,2,64]}\n  %%3 = transpose %%2 {order=[0,2,1,3]}\n  %%9 = slice %%3 {axis=1,start=0,end=1,step=1}\n  %%4 = attention %%3, %%9, %%9 {scale=0.2,causal=true}\n"
    "  %%5 = attention %%4, %%9, %%9 {scale=0.2,causal=true,window=40}\n  %%6 = transpose %%5 {order=[0,2,1,3]}\n  %%7 = reshape %%6 {shape=[b,s,128]}\n"
    "  %%8 = matmul %%7, t {bt=true}\n  %%10 = cast %%8 {to=f32}\n  output logits %%10\n";

static uint64_t next(uint64_t *random) { return (*random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407)) >> 33; }

static dw_model *make_model(dw_context *context, const char *device, dw_format format, unsigned flags) {
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
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.device = device, .flags = DW_MODEL_GENERATE_ONLY | flags}, &model));
    return model;
}

/* What prompt number i is; a call has count of them, from the first on, and tokens new ones. */
typedef struct call { int first, count; int64_t tokens; uint64_t bits; bool is_known; int64_t ids[MOST][8]; } call;

static int64_t length_of(int prompt, int64_t longest) { return 1 + (int64_t)((uint64_t)prompt * 2654435761u % (uint64_t)longest); }

/* The logits of its last run: of a text that was begun, or that decodes. */
static uint64_t logits_of(dw_session *session, int count) {
    const generation *g = session->generation;
    engine_runner *runner = generation_runner(session);
    float logits[MOST * VOCABULARY];
    const size_t bytes = (size_t)count * VOCABULARY * sizeof *logits;
    if (session->device != NULL) assert_int_equal(engine_stage_read(session, runner, (size_t)g->output, 0, bytes, logits), DW_OK);
    else memcpy(logits, g->results[g->output], bytes);
    return base_hash(logits, bytes, 0);
}

static void run_call(dw_context *context, dw_session *session, call *c, int64_t longest) {
    static int64_t prompt[MOST][LONGEST];
    int64_t ids[MOST][8];
    dw_prompt prompts[MOST];
    for (int i = 0; i < c->count; i++) {
        const int64_t length = length_of(c->first + i, longest);
        for (int64_t k = 0; k < length; k++) prompt[i][k] = (int64_t)(num_random((uint64_t)(c->first + i), (uint64_t)k) % VOCABULARY);
        prompts[i] = (dw_prompt){.count = length, .ids = prompt[i], .seed = (uint64_t)i, .made_ids = ids[i]};
    }
    assert_ok(context, dw_session_generate_batch(session, c->count, prompts, &(dw_generate_options){.tokens = c->tokens}, NULL));
    const uint64_t bits = logits_of(session, c->count);
    if (c->is_known && c->bits != bits) fail_msg("%d prompts from number %d on, %d new tokens: their logits have other bits than the first time", c->count, c->first, (int)c->tokens);
    for (int i = 0; i < c->count && c->is_known; i++) assert_memory_equal(ids[i], c->ids[i], (size_t)c->tokens * sizeof *ids[i]);
    c->is_known = true;
    c->bits = bits;
    for (int i = 0; i < c->count; i++) memcpy(c->ids[i], ids[i], (size_t)c->tokens * sizeof *ids[i]);
}

/* Sessions that have room for the calls and ever more, in turns with calls. */
static void calls_in_any_order(const char *device, dw_format format, int count, int64_t longest) {
    static call calls[PROMPTS];
    dw_context *context;
    dw_session *session = NULL;
    uint64_t random = 9;
    int64_t room = longest + 8, rows = MOST;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    dw_model *model = make_model(context, device, format, 0);
    for (int i = 0; i < PROMPTS; i++) calls[i] = (call){.first = i, .count = i % 3 == 2 ? MOST : 1, .tokens = 1 + i % 4};
    for (int i = 0; i < count; i++) {
        if (i % (count / 4) == 0) {
            dw_session_destroy(session);
            assert_ok(context, dw_session_create(context, model, &(dw_session_options){.max_tokens = room, .rows = rows}, &session));
            room *= 3, rows++;
            if (room > 4096) room = 4096;
        }
        run_call(context, session, &calls[next(&random) % PROMPTS], longest);
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* ---- invariant ---- */

enum { EVENTS = 256, MADE = 6 };
typedef struct told { int64_t ids[MADE]; float logs[MADE]; int64_t made; } told;

/* One schedule of a service: texts come in turns with runs, in any order, some of them twice. */
static void run_schedule(dw_context *context, dw_model *model, int64_t longest, const dw_service_options *options, int count, const int *texts, uint64_t *random, told *first) {
    static dw_event events[EVENTS];
    static int64_t prompt[LONGEST];
    dw_service *service;
    uint64_t requests[PROMPTS];
    told got[PROMPTS] = {0};
    int begun = 0;
    assert_ok(context, dw_service_create(context, model, options, &service));
    for (int busy = 1; busy || begun < count;) {
        while (begun < count && next(random) % 3 > 0) {
            const int64_t length = length_of(texts[begun], longest);
            for (int64_t k = 0; k < length; k++) prompt[k] = (int64_t)(num_random(k < 40 ? 7 : (uint64_t)texts[begun], (uint64_t)k) % VOCABULARY);   /* they begin alike */
            const dw_request asked = {.count = length, .ids = prompt, .tokens = MADE, .temperature = texts[begun] % 2, .seed = (uint64_t)texts[begun], .logprobs = 1};
            assert_ok(context, dw_service_submit(context, service, &asked, &requests[begun++]));
        }
        assert_ok(context, dw_service_step(context, service, &busy));
        for (int i = dw_service_poll(service, events, EVENTS), at = 0; at < i; at++) {
            int text = 0;
            while (requests[text] != events[at].request) text++;
            if (events[at].message != NULL) fail_msg("%s", events[at].message);
            if (events[at].id < 0) continue;
            got[text].ids[got[text].made] = events[at].id;
            got[text].logs[got[text].made++] = events[at].logprob;
        }
    }
    dw_service_destroy(service);
    for (int i = 0; i < count; i++) {
        told *known = &first[texts[i]];
        assert_int_equal(got[i].made, MADE);
        if (known->made == 0) *known = got[i];
        if (memcmp(known, &got[i], sizeof *known) != 0) fail_msg("text %d has other ids or logprobs among %d in runs of %d than the first time", texts[i], count, (int)options->run_tokens);
    }
}

static void schedules(const char *device, dw_format format, int count, int64_t longest) {
    static const int64_t pages[] = {16, 32, 64, 128};
    dw_context *context;
    told first[PROMPTS] = {0};
    uint64_t random = 3;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    dw_model *model = make_model(context, device, format, DW_MODEL_INVARIANT);
    for (int i = 0; i < count; i++) {
        int texts[PROMPTS], most = 1 + (int)(next(&random) % (i % 2 ? PROMPTS : 2));
        for (int k = 0; k < most; k++) texts[k] = (int)(next(&random) % PROMPTS);
        const dw_service_options options = {.rows = 1 + (int64_t)(next(&random) % 6), .context = longest + MADE + (int64_t)(next(&random) % 600), .page_tokens = pages[next(&random) % 4],
                                            .cache_bytes = 8 << 20, .run_tokens = 8 + (int64_t)(next(&random) % (i % 3 ? 20 : 500))};
        run_schedule(context, model, longest, &options, most, texts, &random, first);
    }
    dw_model_destroy(model);
    dw_context_destroy(context);
}

static void two_hundred_schedules_on_the_cpu(void **state) {
    (void)state;
    schedules(NULL, DW_FORMAT_f32, 200, 90);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_calls_on_the_cpu_in_any_order),
        cmocka_unit_test(a_thousand_calls_on_the_stand_in_in_any_order),
        cmocka_unit_test(calls_on_a_simulated_gpu_in_any_order),
        cmocka_unit_test(two_hundred_schedules_on_the_cpu),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
