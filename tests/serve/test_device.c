/* Texts at work on a GPU, simulated: caches are pages there, too, which texts share, give back and get again, and ids are those of the CPU. */
#include "deepwell/serve.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/session.h"
#include "support/support.h"

enum { TEXTS = 6, COUNT = 40, MADE = 10, EVENTS = 256 };

/* A layer that sees all keys and one that sees the last 20, heads of 16. */
static const char GRAPH[] =
    "graph g\n  symbol b 1..4\n  symbol s 1..256\n  input ids i64[b,s]\n  param t f32[32,32]\n  %1 = take t, ids {axis=0}\n"
    "  %2 = reshape %1 {shape=[b,s,2,16]}\n  %3 = transpose %2 {order=[0,2,1,3]}\n  %4 = attention %3, %3, %3 {scale=0.7,causal=true}\n"
    "  %5 = attention %4, %4, %4 {scale=0.7,causal=true,window=20}\n  %6 = transpose %5 {order=[0,2,1,3]}\n  %7 = reshape %6 {shape=[b,s,32]}\n"
    "  %8 = matmul %7, t {bt=true}\n  output logits %8\n";

typedef struct outcome { int64_t ids[TEXTS][MADE]; float logs[TEXTS][MADE]; int64_t made[TEXTS]; dw_service_facts facts; } outcome;

static dw_model *make_model(dw_context *context, const char *device) {
    static float weights[32 * 32];
    const dw_named_tensor weight = {"t", {.format = DW_FORMAT_f32, .rank = 2, .dims = {32, 32}, .strides = {32, 1}, .data = weights}};
    dw_graph *graph;
    dw_model *model;
    uint64_t random = 5;
    for (int i = 0; i < 32 * 32; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        weights[i] = (float)((int64_t)(random >> 40) % 4001 - 2000) / 1500;
    }
    assert_ok(context, dw_graph_parse(context, "g", GRAPH, strlen(GRAPH), &graph));
    assert_ok(context, dw_graph_bind(graph, 1, &weight));
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.device = device, .flags = DW_MODEL_GENERATE_ONLY}, &model));
    return model;
}

/* Texts that begin alike, the even ones greedy, the others drawn and with logprobs. */
static void submit_all(dw_context *context, dw_service *service, uint64_t *requests) {
    for (int text = 0; text < TEXTS; text++) {
        int64_t ids[COUNT];
        for (int i = 0; i < COUNT; i++) ids[i] = i < 35 ? (i * 5 + i / 7) % 32 : (text * 11 + i) % 32;
        const dw_request asked = {.count = COUNT - text % 3, .ids = ids, .tokens = MADE, .temperature = text % 2, .seed = (uint64_t)text, .logprobs = text % 2};
        assert_ok(context, dw_service_submit(context, service, &asked, &requests[text]));
    }
}

static outcome serve(const char *device, const dw_service_options *options) {
    static dw_event events[EVENTS];
    outcome got = {0};
    dw_context *context;
    dw_service *service;
    uint64_t requests[TEXTS];
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    dw_model *model = make_model(context, device);
    assert_ok(context, dw_service_create(context, model, options, &service));
    submit_all(context, service, requests);
    for (int busy = 1; busy;) {
        assert_ok(context, dw_service_step(context, service, &busy));
        const int count = dw_service_poll(service, events, EVENTS);
        for (int i = 0; i < count; i++) {
            int text = 0;
            while (requests[text] != events[i].request) text++;
            assert_null(events[i].message);
            if (events[i].id < 0) continue;
            got.ids[text][got.made[text]] = events[i].id;
            got.logs[text][got.made[text]++] = events[i].logprob;
        }
    }
    dw_service_measure(service, &got.facts);
    dw_service_destroy(service);
    dw_model_destroy(model);
    dw_context_destroy(context);
    return got;
}

static void check_same(const outcome *there, const outcome *here) {
    for (int text = 0; text < TEXTS; text++) {
        assert_int_equal(there->made[text], MADE);
        assert_memory_equal(there->ids[text], here->ids[text], sizeof here->ids[text]);
        for (int i = 0; i < MADE; i++) assert_true(text % 2 == 0 ? isnan(there->logs[text][i]) : fabsf(there->logs[text][i] - here->logs[text][i]) < 1e-4f);   /* sums in another order */
    }
}

static void texts_share_pages_on_a_gpu(void **state) {
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    const dw_service_options options = {.rows = 4, .context = 64, .page_tokens = 16, .cache_bytes = 1 << 20};
    const outcome there = serve("sim:h200", &options), here = serve(NULL, &options);
    check_same(&there, &here);
    assert_null(there.facts.alone);
    assert_true(there.facts.pages > 0 && there.facts.prefix_hits > 0 && there.facts.pages_released > 0);
    assert_int_equal(there.facts.pages, here.facts.pages);
    assert_int_equal(there.facts.prefix_tokens, here.facts.prefix_tokens);
    assert_int_equal(there.facts.read_tokens, here.facts.read_tokens);
    assert_int_equal(there.facts.pages_used, 0);
}

/* Two runs are on their way, and their memory is used again. On a device that does all of it late, and that does it by itself now and then, ids are the same. */
static void a_slow_device_gives_the_same_ids(void **state) {
    static const char *const devices[] = {"sim:h200,late=0", "sim:h200,late=1", "sim:h200,late=2"};
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    const dw_service_options options = {.rows = 4, .context = 64, .page_tokens = 16, .cache_bytes = 1 << 20};
    const outcome here = serve(NULL, &options);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        const outcome there = serve(devices[i], &options);
        check_same(&there, &here);
    }
}

static void texts_give_pages_back_on_a_gpu(void **state) {
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    const dw_service_options small = {.rows = 4, .context = 64, .page_tokens = 16, .cache_bytes = 10 * 2048, .run_tokens = 24};
    const outcome there = serve("sim:h200", &small), here = serve(NULL, &small);
    check_same(&there, &here);
    assert_true(there.facts.preemptions > 0);
    assert_int_equal(there.facts.preemptions, here.facts.preemptions);
}

/* Steps until the request has a token; how many runs that took. */
static int64_t runs_until_token(dw_context *context, dw_service *service, uint64_t request) {
    static dw_event events[EVENTS];
    dw_service_facts before, after;
    bool has_one = false;
    dw_service_measure(service, &before);
    for (int busy = 1; busy && !has_one;) {
        assert_ok(context, dw_service_step(context, service, &busy));
        const int count = dw_service_poll(service, events, EVENTS);
        for (int i = 0; i < count; i++) has_one = has_one || (events[i].request == request && events[i].id >= 0);
    }
    assert_true(has_one);
    dw_service_measure(service, &after);
    return after.runs - before.runs;
}

/* The runs in which a prompt of 200 tokens is read, 32 at a time, while another text waits for its next token. */
static int64_t runs_of_prompt_beside_a_text(int64_t rows) {
    const dw_service_options options = {.rows = rows, .context = 256, .page_tokens = 16, .cache_bytes = 1 << 22, .run_tokens = 32};
    int64_t ids[200];
    dw_context *context;
    dw_service *service;
    uint64_t shorter, longer;
    for (int i = 0; i < 200; i++) ids[i] = (i * 7 + i / 5) % 32;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    dw_model *model = make_model(context, "sim:h200");
    assert_ok(context, dw_service_create(context, model, &options, &service));
    assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 3, .ids = ids + 100, .tokens = 120}, &shorter));
    runs_until_token(context, service, shorter);
    assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 200, .ids = ids, .tokens = 1}, &longer));
    const int64_t runs = runs_until_token(context, service, longer);
    dw_service_destroy(service);
    dw_model_destroy(model);
    dw_context_destroy(context);
    return runs;
}

/* The layer that sees the last 20 tokens has pages for 160 of two rows: the prompt is read all the same before the text beside it has made its 120 tokens. */
static void a_prompt_beyond_the_pages_of_a_window_is_read_beside_a_text(void **state) {
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    assert_true(runs_of_prompt_beside_a_text(2) < 40);
}

/* A greedy text whose logits are no numbers ends with the reason, on a GPU, too, where they stay. */
static void logits_that_are_no_numbers_end_a_text_on_a_gpu(void **state) {
    static const struct { const char *number, *message; } cases[] = {{"nan", "a logit is NaN or infinite"}, {"inf", "a logit is NaN or infinite"}, {"-inf", "no id is left"}};
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[2048];
        dw_context *context;
        dw_graph *graph;
        dw_model *model;
        dw_service *service;
        dw_event event;
        uint64_t request;
        int busy;
        snprintf(text, sizeof text, "graph g\n  symbol b 1..4\n  symbol s 1..64\n  input ids i64[b,s]\n  const t f32[2,3] = 1, 2, 3, 4, 5, 6\n  %%1 = take t, ids {axis=0}\n"
                 "  %%2 = fill {shape=[],value=%s,to=f32}\n  %%3 = add %%1, %%2\n  output logits %%3\n", cases[i].number);
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        assert_ok(context, dw_graph_parse(context, "g", text, strlen(text), &graph));
        assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.device = "sim:h200", .flags = DW_MODEL_GENERATE_ONLY}, &model));
        assert_ok(context, dw_service_create(context, model, &(dw_service_options){.context = 16}, &service));
        assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 1, .ids = (int64_t[]){1}, .tokens = 3}, &request));
        for (busy = 1; busy;) assert_ok(context, dw_service_step(context, service, &busy));
        assert_int_equal(dw_service_poll(service, &event, 1), 1);
        assert_int_equal(event.end, DW_END_FAULT);
        assert_int_equal(event.id, -1);
        assert_non_null(strstr(event.message, cases[i].message));
        dw_service_destroy(service);
        dw_model_destroy(model);
        dw_context_destroy(context);
    }
}

/* Caches that a GPU has no room for are refused before any is made, with what would fit: an H200 has 141 GB, of which a device keeps 65536 bytes of counters, and a text of 16,000 tokens takes 4.2 MB. */
static void caches_without_room_are_refused(void **state) {
    static const char graph_text[] = "graph g\n  symbol b 1..4\n  symbol s 1..16384\n  input ids i64[b,s]\n  const t f32[2,4] = 1, 2, 3, 4, 5, 6, 7, 8\n  %1 = take t, ids {axis=0}\n"
                                     "  %2 = reshape %1 {shape=[b,s,1,4]}\n  %3 = transpose %2 {order=[0,2,1,3]}\n  %4 = broadcast %3 {shape=[b,1,s,4]}\n"
                                     "  %5 = concat %4, %4, %4, %4, %4, %4, %4, %4, %4, %4, %4, %4, %4, %4, %4, %4 {axis=3}\n  %6 = attention %5, %5, %5 {scale=0.7,causal=true}\n  %7 = reshape %6 {shape=[b,s,64]}\n  output logits %7\n";
    dw_context *context;
    dw_graph *graph;
    dw_model *model;
    dw_session *session;
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_ok(context, dw_graph_parse(context, "g", graph_text, strlen(graph_text), &graph));
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.device = "sim:h200", .flags = DW_MODEL_GENERATE_ONLY}, &model));
    test_assert_fails(context, dw_session_create(context, model, &(dw_session_options){.max_tokens = 16000, .rows = 40000}, &session), DW_LIMIT, "rows=40000 of 16000 tokens need 167772.2 MB for caches");
    assert_non_null(strstr(dw_context_error(context), "140999.9 MB free: take fewer rows, 33614 fit"));
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* Pages take the bytes that the caller gave them: fewer rows would not make room. */
static void pages_without_room_are_refused(void **state) {
    dw_context *context;
    dw_service *service;
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    dw_model *model = make_model(context, "sim:h200");
    const dw_service_options options = {.rows = 4, .context = 64, .page_tokens = 16, .cache_bytes = UINT64_C(200) * 1000 * 1000 * 1000};
    test_assert_fails(context, dw_service_create(context, model, &options, &service), DW_LIMIT, "free: give the cache fewer bytes, 14");
    dw_model_destroy(model);
    dw_context_destroy(context);
}

static void gather(void *user, const char *text, size_t length) {
    char *told = user;
    strncat(told, text, length < 65535 - strlen(told) ? length : 0);
}

/* dw_check_device holds the text of a service beside that of the CPU, too. */
static void the_step_with_pages_is_checked(void **state) {
    static char told[65536];
    dw_context *context;
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_ok(context, dw_check_device(context, TEST_FIXTURES_DIR "/llama.pt2", &(dw_model_options){.device = "sim:h200", .precision = "bf16"}, 0, NULL, 0, gather, told));
    assert_non_null(strstr(told, "greedy text of a service in 2 pages: 4 tokens, all the same"));   /* one for each text, and no more */
    dw_context_destroy(context);
}

/* A simulated GPU has no clock: who asks for its times is told so. With the option that says 0 it runs, and ids are the same. */
static void a_gpu_without_a_clock_is_not_timed(void **state) {
    const dw_service_options options = {.rows = 2, .run_tokens = 32, .context = COUNT + MADE, .page_tokens = 16, .cache_bytes = 1 << 18, .flags = DW_SERVICE_TIMES_DEVICE};
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    dw_context *context;
    dw_service *service;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    dw_model *model = make_model(context, "sim:h200");
    test_assert_fails(context, dw_service_create(context, model, &options, &service), DW_UNSUPPORTED, "cuEventElapsedTime");
    dw_model_destroy(model);
    dw_context_destroy(context);
    const outcome here = serve(NULL, &options), there = serve("sim:h200,times=zero", &options);
    assert_memory_equal(there.ids, here.ids, sizeof here.ids);
    assert_true(here.facts.device_s == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_share_pages_on_a_gpu),
        cmocka_unit_test(a_slow_device_gives_the_same_ids),
        cmocka_unit_test(texts_give_pages_back_on_a_gpu),
        cmocka_unit_test(a_prompt_beyond_the_pages_of_a_window_is_read_beside_a_text),
        cmocka_unit_test(logits_that_are_no_numbers_end_a_text_on_a_gpu),
        cmocka_unit_test(caches_without_room_are_refused),
        cmocka_unit_test(pages_without_room_are_refused),
        cmocka_unit_test(the_step_with_pages_is_checked),
        cmocka_unit_test(a_gpu_without_a_clock_is_not_timed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
