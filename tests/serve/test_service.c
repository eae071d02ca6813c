/* The service's door on the carried model: what is asked for wrongly, what is told, threads, faults and facts. */
#include "deepwell/serve.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/session.h"
#include "support/support.h"

enum { MADE = 12, EVENTS = 4096, WORDS = 8 };   /* WORDS: of a mask of the model, whose ids are bytes */

static const int64_t PROMPT[] = {40, 41, 42, 43, 44, 45, 46, 47};

typedef struct stage {
    dw_context *context;
    dw_model *model;
} stage;

static int setup(void **state) {
    stage *stage = calloc(1, sizeof *stage);
    *state = stage;
    if (dw_context_create(&(dw_context_options){.threads = 2}, &stage->context) != DW_OK) return -1;
    return dw_model_open(stage->context, "models/kjv.pt2", &(dw_model_options){.flags = DW_MODEL_GENERATE_ONLY}, &stage->model) == DW_OK ? 0 : -1;
}

static int teardown(void **state) {
    stage *stage = *state;
    dw_model_destroy(stage->model);
    dw_context_destroy(stage->context);
    free(stage);
    return 0;
}

static dw_service *service_of(const stage *stage, const dw_service_options *options) {
    dw_service *service;
    assert_ok(stage->context, dw_service_create(stage->context, stage->model, options, &service));
    return service;
}

static dw_request request_of(int64_t tokens) { return (dw_request){.count = 8, .ids = PROMPT, .tokens = tokens}; }

static uint64_t submit(const stage *stage, dw_service *service, const dw_request *request) {
    uint64_t id;
    assert_ok(stage->context, dw_service_submit(stage->context, service, request, &id));
    return id;
}

/* Steps until all is done; how many events there were. */
static int run(const stage *stage, dw_service *service, dw_event *events) {
    int count = 0, busy = 1;
    while (busy) {
        assert_ok(stage->context, dw_service_step(stage->context, service, &busy));
        count += dw_service_poll(service, events + count, EVENTS - count);
    }
    return count;
}

static void tokens_are_those_of_one_call(void **state) {
    const stage *stage = *state;
    static dw_event events[EVENTS];
    int64_t ids[MADE], made;
    dw_session *session;
    assert_ok(stage->context, dw_session_create(stage->context, stage->model, &(dw_session_options){.max_tokens = 64}, &session));
    dw_service *service = service_of(stage, NULL);
    for (int drawn = 0; drawn < 2; drawn++) {
        const dw_generate_options how = {.tokens = MADE, .temperature = drawn, .seed = 3};
        assert_ok(stage->context, dw_session_generate(session, 8, PROMPT, &how, ids, &made, NULL));
        dw_request request = request_of(MADE);
        request.temperature = drawn;
        request.seed = 3;
        const uint64_t id = submit(stage, service, &request);
        assert_int_equal(run(stage, service, events), MADE);
        for (int i = 0; i < MADE; i++) {
            assert_int_equal(events[i].request, id);
            assert_int_equal(events[i].id, ids[i]);
            assert_int_equal(events[i].index, i);
            assert_true(isnan(events[i].logprob));
            assert_int_equal(events[i].end, i + 1 < MADE ? DW_END_NONE : DW_END_LENGTH);
        }
    }
    dw_service_destroy(service);
    dw_session_destroy(session);
}

static void what_makes_no_sense_is_refused(void **state) {
    const stage *stage = *state;
    dw_context *context = stage->context;
    const struct { dw_request request; dw_status status; const char *part; } cases[] = {
        {{.count = 0, .tokens = 1}, DW_INVALID, "at least one token"},
        {{.count = 1, .ids = (int64_t[]){1 << 20}, .tokens = 1}, DW_INVALID, "prompt id 1048576 at 0 is outside the vocabulary of"},
        {{.count = 1, .ids = (int64_t[]){-1}, .tokens = 1}, DW_INVALID, "prompt id -1 at 0"},
        {{.count = 1, .ids = PROMPT, .tokens = 0}, DW_INVALID, "0 tokens"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .temperature = NAN}, DW_INVALID, "temperature"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .temperature = -1}, DW_INVALID, "temperature -1"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .top_p = 1.5}, DW_INVALID, "top_p 1.5"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .top_k = -2}, DW_INVALID, "top_k -2"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .min_p = 2}, DW_INVALID, "min_p 2"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .repetition = -1}, DW_INVALID, "repetition -1"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .presence = INFINITY}, DW_INVALID, "presence"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .frequency = NAN}, DW_INVALID, "frequency"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .deadline_s = NAN}, DW_INVALID, "deadline_s"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .bias_count = 1, .bias_ids = (int64_t[]){1 << 20}, .bias = (float[]){1}}, DW_INVALID, "bias 0 is of id 1048576"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .bias_count = 1, .bias_ids = (int64_t[]){1}, .bias = (float[]){NAN}}, DW_INVALID, "bias 0"},
        {{.count = 1, .ids = PROMPT, .tokens = 1, .top_logprobs = 1 << 20}, DW_LIMIT, "1048576 of the likeliest"},
        {{.count = 1, .ids = PROMPT, .tokens = 64}, DW_LIMIT, "max_tokens of 64"},
        {{.count = 1, .ids = PROMPT, .tokens = INT64_MAX}, DW_LIMIT, "max_tokens of 64"},
    };
    static dw_event events[EVENTS];
    dw_service *service = service_of(stage, &(dw_service_options){.context = 64, .queue = 3});
    const dw_request good = request_of(MADE);
    uint64_t id;
    submit(stage, service, &good);
    for (size_t i = 0; i < COUNT_OF(cases); i++) test_assert_fails(context, dw_service_submit(context, service, &cases[i].request, &id), cases[i].status, cases[i].part);
    test_assert_fails(context, dw_service_cancel(context, service, 77), DW_NOT_FOUND, "no request 77");
    assert_int_equal(run(stage, service, events), MADE);
    for (int i = 0; i < 3; i++) submit(stage, service, &good);
    test_assert_fails(context, dw_service_submit(context, service, &good, &id), DW_LIMIT, "the queue is full: 3 requests");
    assert_int_equal(run(stage, service, events), 3 * MADE);
    test_assert_fails(context, dw_service_cancel(context, service, events[0].request), DW_NOT_FOUND, "or it has ended");
    dw_service_destroy(service);
    dw_service *none = NULL;
    test_assert_fails(context, dw_service_create(context, stage->model, &(dw_service_options){.page_tokens = 48}, &none), DW_INVALID, "pages of 48 tokens");
    test_assert_fails(context, dw_service_create(context, stage->model, &(dw_service_options){.rows = -1}, &none), DW_INVALID, "-1 rows");
    test_assert_fails(context, dw_service_create(context, stage->model, &(dw_service_options){.cache_bytes = 1}, &none), DW_LIMIT, "holds no page of 64 tokens");
    assert_null(none);
    service = service_of(stage, &(dw_service_options){.cache_bytes = 1000000, .context = 512});
    const dw_request large = request_of(500);
    test_assert_fails(context, dw_service_submit(context, service, &large, &id), DW_LIMIT, "pages of 64 tokens, the cache has");
    dw_service_destroy(service);
}

static void ends_are_told(void **state) {
    const stage *stage = *state;
    static dw_event events[EVENTS];
    dw_service *service = service_of(stage, &(dw_service_options){.rows = 2, .context = 64});
    dw_request request = request_of(MADE);
    submit(stage, service, &request);
    assert_int_equal(run(stage, service, events), MADE);
    request.stop_ids = (int64_t[]){events[3].id};
    request.stop_count = 1;
    int64_t first = 0;
    while (events[first].id != events[3].id) first++;
    submit(stage, service, &request);
    assert_int_equal(run(stage, service, events), first + 1);
    assert_int_equal(events[first].end, DW_END_STOP);
    request = request_of(MADE);
    request.deadline_s = 1e-9;
    submit(stage, service, &request);
    assert_int_equal(run(stage, service, events), 1);
    assert_int_equal(events[0].end, DW_END_DEADLINE);
    assert_int_equal(events[0].id, -1);
    dw_service_destroy(service);
}

static void pages_of_a_cancelled_text_are_free_before_the_next_run(void **state) {
    const stage *stage = *state;
    static dw_event events[EVENTS];
    dw_service *service = service_of(stage, &(dw_service_options){.context = 256});
    const dw_request request = request_of(100);
    dw_service_facts facts;
    int busy;
    const uint64_t id = submit(stage, service, &request);
    for (int i = 0; i < 5; i++) assert_ok(stage->context, dw_service_step(stage->context, service, &busy));
    dw_service_measure(service, &facts);
    assert_true(facts.pages_used > 0);
    assert_int_equal(facts.running, 1);
    assert_ok(stage->context, dw_service_cancel(stage->context, service, id));
    assert_ok(stage->context, dw_service_step(stage->context, service, &busy));
    assert_int_equal(busy, 0);
    dw_service_measure(service, &facts);
    assert_int_equal(facts.pages_used, 0);
    assert_int_equal(facts.running, 0);
    assert_int_equal(facts.cancelled, 1);
    const int count = dw_service_poll(service, events, EVENTS);
    assert_int_equal(count, 5);
    assert_int_equal(events[4].end, DW_END_CANCELLED);   /* with the last token, which nobody had polled */
    dw_service_destroy(service);
}

/* 64 texts that begin with the same 2048 tokens. */
static void a_shared_beginning_is_read_once(void **state) {
    const stage *stage = *state;
    enum { TEXTS = 64, SHARED = 2048, OWN = 5 };
    static dw_event events[EVENTS];
    static const int64_t budgets[] = {64, 512, 4096};
    for (size_t b = 0; b < COUNT_OF(budgets); b++) {
        dw_service *service = service_of(stage, &(dw_service_options){.rows = TEXTS, .run_tokens = budgets[b], .page_tokens = b == 0 ? 16 : 64, .context = SHARED + OWN + 2, .cache_bytes = 1 << 27});
        int64_t ids[SHARED + OWN];
        dw_service_facts facts;
        for (int text = 0; text < TEXTS; text++) {
            for (int i = 0; i < SHARED + OWN; i++) ids[i] = i < SHARED ? 20 + i % 50 : 20 + (text * 7 + i) % 50;
            const dw_request request = {.count = SHARED + OWN, .ids = ids, .tokens = 2};
            submit(stage, service, &request);
        }
        assert_int_equal(run(stage, service, events), 2 * TEXTS);
        dw_service_measure(service, &facts);
        assert_int_equal(facts.prefix_hits, TEXTS - 1);
        assert_int_equal(facts.prefix_tokens, (TEXTS - 1) * SHARED);
        assert_int_equal(facts.read_tokens, SHARED + TEXTS * (OWN + 1));
        dw_service_destroy(service);
    }
}

/* ---- what an encoder is given ---- */

enum { HEARD = 3, WORDS_HEARD = 9 };

/* Texts of an encoder-decoder, each with words of its own, in a service together: ids of each are those of one call. One that is given nothing ends alone. */
static void texts_with_encoders_go_together(void **state) {
    (void)state;
    static dw_event events[EVENTS];
    const char *path = TEST_FIXTURES_DIR "/t5.pt2";
    dw_context *context;
    dw_model *model;
    dw_session *session;
    int64_t words[HEARD][WORDS_HEARD], made_ids[HEARD][MADE], made;
    uint64_t requests[HEARD], deaf;
    dw_named_tensor inputs[HEARD];
    if (access(path, R_OK) != 0) skip();   /* no exported models */
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 2}, &context), DW_OK);
    assert_ok(context, dw_model_open(context, path, &(dw_model_options){.flags = DW_MODEL_GENERATE_ONLY}, &model));
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.max_tokens = 64, .dims = "s=9"}, &session));
    const struct stage stage = {context, model};
    dw_service *service = service_of(&stage, &(dw_service_options){.context = 64, .rows = 2, .dims = "s=9"});
    dw_service_facts facts;
    for (int i = 0; i < HEARD; i++) {
        const int64_t dims[] = {1, WORDS_HEARD - 3 * i};
        const dw_generate_options how = {.tokens = MADE, .temperature = i % 2, .seed = (uint64_t)i, .inputs = &inputs[i], .input_count = 1};
        for (int k = 0; k < WORDS_HEARD; k++) words[i][k] = 7 + 31 * i + 5 * k;
        inputs[i].name = "input_ids";
        assert_true(op_tensor_init(&inputs[i].tensor, DW_FORMAT_i64, DW_SCALE_plain, 2, dims, words[i]));
        assert_ok(context, dw_session_generate(session, 8, PROMPT, &how, made_ids[i], &made, NULL));
        assert_int_equal(made, MADE);
        dw_request request = request_of(MADE);
        request.temperature = i % 2;
        request.seed = (uint64_t)i;
        request.inputs = &inputs[i];
        request.input_count = 1;
        requests[i] = submit(&stage, service, &request);
        memset(words[i], 0, i > 0 ? sizeof words[i] : 0);   /* what was submitted is a copy */
    }
    const dw_request without = request_of(MADE);
    deaf = submit(&stage, service, &without);
    const int count = run(&stage, service, events);
    int64_t told[HEARD] = {0}, faults = 0;
    for (int e = 0; e < count; e++) {
        faults += events[e].request == deaf && events[e].end == DW_END_FAULT;
        for (int i = 0; i < HEARD; i++)
            if (events[e].request == requests[i]) assert_int_equal(events[e].id, made_ids[i][told[i]++]);
    }
    for (int i = 0; i < HEARD; i++) assert_int_equal(told[i], MADE);
    assert_int_equal(faults, 1);
    dw_service_measure(service, &facts);
    assert_null(facts.alone);
    assert_int_equal(facts.faults, 1);
    dw_service_destroy(service);
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* ---- draws ---- */

static int allow_one(void *user, int64_t last_id, uint32_t *bits) {
    int64_t *seen = user;
    const int64_t id = 20 + ++seen[0];
    if (seen[0] > 1) assert_int_equal(last_id, id - 1);
    if (seen[0] == 1) assert_int_equal(last_id, -1);
    memset(bits, 0, WORDS * sizeof *bits);
    bits[id / 32] |= UINT32_C(1) << id % 32;
    return 0;
}

static int allow_none(void *user, int64_t last_id, uint32_t *bits) {
    (void)last_id;
    memset(bits, 0, WORDS * sizeof *bits);
    return *(int *)user;
}

static void draws_are_as_asked(void **state) {
    const stage *stage = *state;
    static dw_event events[EVENTS];
    dw_service *service = service_of(stage, &(dw_service_options){.context = 64});
    dw_request request = request_of(1);
    request.logprobs = 1;
    request.top_logprobs = 3;
    int busy;
    submit(stage, service, &request);
    assert_ok(stage->context, dw_service_step(stage->context, service, &busy));
    assert_int_equal(dw_service_poll(service, events, EVENTS), 1);   /* what an event points to is there until the next poll */
    assert_int_equal(events[0].top_count, 3);
    assert_int_equal(events[0].top_ids[0], events[0].id);
    assert_true(events[0].logprob < 0 && events[0].logprob == events[0].top_logprobs[0] && events[0].top_logprobs[0] >= events[0].top_logprobs[1]);
    const int64_t likeliest = events[0].id, second = events[0].top_ids[1];
    request.bias_ids = &likeliest;
    request.bias = (float[]){-INFINITY};
    request.bias_count = 1;
    submit(stage, service, &request);
    assert_int_equal(run(stage, service, events), 1);
    assert_int_equal(events[0].id, second);
    int64_t seen = 0;
    request = request_of(5);
    request.mask = allow_one;
    request.user = &seen;
    submit(stage, service, &request);
    const int count = run(stage, service, events);
    assert_int_equal(count, 5);
    for (int i = 0; i < 5; i++) assert_int_equal(events[i].id, 21 + i);
    request.mask = allow_none;
    for (int answer = 0; answer < 2; answer++) {
        request.user = &answer;
        submit(stage, service, &request);
        assert_int_equal(run(stage, service, events), 1);
        assert_int_equal(events[0].end, DW_END_MASK);
        assert_int_equal(events[0].id, -1);
    }
    dw_service_destroy(service);
}

/* ---- threads ---- */

typedef struct sender { dw_service *service; int number; int64_t made, ended; } sender;

enum { SENDERS = 4, SENT = 40 };

static void *send_requests(void *argument) {
    sender *sender = argument;
    dw_context *context;
    if (dw_context_create(NULL, &context) != DW_OK) return NULL;
    for (int i = 0; i < SENT; i++) {
        const dw_request request = {.count = 1 + (sender->number + i) % 8, .ids = PROMPT, .tokens = 1 + i % 9, .temperature = i % 2, .seed = (uint64_t)i};
        uint64_t id;
        while (dw_service_submit(context, sender->service, &request, &id) == DW_LIMIT) {}
        if (i % 5 == 0) dw_service_cancel(context, sender->service, id);
        dw_service_facts facts;
        if (i % 7 == 0) dw_service_measure(sender->service, &facts);
    }
    dw_context_destroy(context);
    return NULL;
}

static void requests_come_from_any_thread(void **state) {
    const stage *stage = *state;
    static dw_event events[64];
    dw_service *service = service_of(stage, &(dw_service_options){.rows = 4, .context = 64, .queue = 20, .page_tokens = 16});
    pthread_t threads[SENDERS];
    sender senders[SENDERS];
    int ended = 0, busy;
    assert_ok(stage->context, dw_service_start(stage->context, service));
    test_assert_fails(stage->context, dw_service_step(stage->context, service, &busy), DW_INVALID, "thread of its own");
    test_assert_fails(stage->context, dw_service_start(stage->context, service), DW_INVALID, "runs already");
    for (int i = 0; i < SENDERS; i++) {
        senders[i] = (sender){.service = service, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, send_requests, &senders[i]), 0);
    }
    while (ended < SENDERS * SENT) {
        struct pollfd fd = {dw_service_fd(service), POLLIN, 0};
        assert_int_equal(poll(&fd, 1, 60000), 1);
        const int count = dw_service_poll(service, events, COUNT_OF(events));
        for (int i = 0; i < count; i++) ended += events[i].end != DW_END_NONE;
    }
    for (int i = 0; i < SENDERS; i++) pthread_join(threads[i], NULL);
    dw_service_facts facts;
    dw_service_measure(service, &facts);
    assert_int_equal(facts.submitted, SENDERS * SENT);
    assert_ok(stage->context, dw_service_stop(stage->context, service, 1));
    dw_service_measure(service, &facts);
    assert_int_equal(facts.ended, SENDERS * SENT);
    assert_int_equal(facts.pages_used, 0);
    dw_service_destroy(service);
}

static void what_is_left_at_the_end_is_told(void **state) {
    const stage *stage = *state;
    static dw_event events[EVENTS];
    dw_service *service = service_of(stage, &(dw_service_options){.rows = 1, .context = 512});
    dw_request request = request_of(400);
    for (int i = 0; i < 3; i++) submit(stage, service, &request);
    assert_ok(stage->context, dw_service_start(stage->context, service));
    assert_ok(stage->context, dw_service_stop(stage->context, service, 0));
    const int count = dw_service_poll(service, events, EVENTS);
    int stopped = 0;
    for (int i = 0; i < count; i++) stopped += events[i].end == DW_END_STOPPED;
    assert_true(stopped >= 2);
    assert_ok(stage->context, dw_service_start(stage->context, service));
    request.tokens = 3;
    submit(stage, service, &request);
    assert_ok(stage->context, dw_service_stop(stage->context, service, 60));
    assert_int_equal(dw_service_poll(service, events, EVENTS), 3);
    assert_int_equal(events[2].end, DW_END_LENGTH);
    test_assert_fails(stage->context, dw_service_stop(stage->context, service, 0), DW_INVALID, "does not run");
    dw_service_destroy(service);
}

/* ---- faults and updates, on a small graph ---- */

static const char SMALL[] = "graph g\n  symbol b 1..4\n  symbol s 1..256\n  input ids i64[b,s]\n  param t f32[8,4]\n  %1 = take t, ids {axis=0}\n  %2 = sin %1\n"
                            "  %3 = reshape %2 {shape=[b,s,2,2]}\n  %4 = transpose %3 {order=[0,2,1,3]}\n  %5 = attention %4, %4, %4 {scale=1.5,causal=true}\n"
                            "  %6 = transpose %5 {order=[0,2,1,3]}\n  %7 = reshape %6 {shape=[b,s,4]}\n  %8 = matmul %7, t {bt=true}\n  output logits %8\n";

/* sin, of numbers below 1000; others are a fault. */
static dw_status sine(const dw_kernel_call *call) {
    const float *x = call->inputs[0]->data;
    float *y = call->outputs[0]->data;
    (void)call->user;
    for (int64_t i = 0, count = op_tensor_count(call->outputs[0]); i < count; i++) {
        if (x[i] >= 1000) return DW_INVALID;
        y[i] = sinf(x[i]);
    }
    return DW_OK;
}

static dw_model *small_model(dw_context *context, float *weights, dw_registry **registry) {
    const dw_named_tensor weight = {"t", {.format = DW_FORMAT_f32, .rank = 2, .dims = {8, 4}, .strides = {4, 1}, .data = weights}};
    dw_graph *graph;
    dw_model *model;
    assert_ok(context, dw_registry_create(context, registry));
    assert_ok(context, dw_registry_add(*registry, &(dw_kernel_options){.name = "mine", .op = "sin", .run = sine}));
    assert_ok(context, dw_graph_parse(context, "g", SMALL, strlen(SMALL), &graph));
    assert_ok(context, dw_graph_bind(graph, 1, &weight));
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.registry = *registry, .flags = DW_MODEL_GENERATE_ONLY}, &model));
    return model;
}

static void fill(float *weights, int seed) {
    for (int i = 0; i < 32; i++) weights[i] = i >= 28 ? 1000.0f : (float)((i * 7 + seed) % 11) / 4 - 1;
}

/* Id 7 is a fault wherever it is looked up, so its logits are made the least. */
static dw_request small_request(const int64_t *ids, int64_t count) {
    static const int64_t seventh[] = {7};
    static const float never[] = {-INFINITY};
    return (dw_request){.count = count, .ids = ids, .tokens = 20, .temperature = 1, .seed = 4, .bias_ids = seventh, .bias = never, .bias_count = 1};
}

static void take_ids(const dw_event *events, int count, uint64_t request, int64_t *ids, dw_end *end) {
    int made = 0;
    *end = DW_END_NONE;
    for (int i = 0; i < count; i++) {
        if (events[i].request != request) continue;
        if (events[i].id >= 0) ids[made++] = events[i].id;
        *end = events[i].end;
    }
    ids[made] = -1;
}

static void a_fault_ends_its_own_text(void **state) {
    const stage *stage = *state;
    static dw_event events[EVENTS];
    float weights[32];
    dw_registry *registry;
    int64_t alone[21], together[21];
    const int64_t good[] = {1, 2, 3, 4}, bad[] = {1, 2, 7};
    dw_end end;
    fill(weights, 0);
    dw_model *model = small_model(stage->context, weights, &registry);
    const struct stage small = {stage->context, model};
    dw_service *service = service_of(&small, &(dw_service_options){.context = 64, .flags = DW_SERVICE_NO_SHARING});
    const dw_request first = small_request(good, 4), other = small_request(bad, 3);
    uint64_t id = submit(&small, service, &first);
    take_ids(events, run(&small, service, events), id, alone, &end);
    assert_int_equal(end, DW_END_LENGTH);
    id = submit(&small, service, &first);
    const uint64_t faulty = submit(&small, service, &other), third = submit(&small, service, &first);
    int busy, count = 0, messages = 0;
    for (busy = 1; busy;) {
        assert_ok(stage->context, dw_service_step(stage->context, service, &busy));
        const int now = dw_service_poll(service, events + count, EVENTS - count);
        for (int i = count; i < count + now; i++) messages += events[i].message != NULL && strstr(events[i].message, "mine") != NULL;
        count += now;
    }
    assert_int_equal(messages, 1);
    take_ids(events, count, faulty, together, &end);
    assert_int_equal(end, DW_END_FAULT);
    assert_int_equal(together[0], -1);
    for (int i = 0; i < 2; i++) {
        take_ids(events, count, i == 0 ? id : third, together, &end);
        assert_int_equal(end, DW_END_LENGTH);
        assert_memory_equal(together, alone, sizeof alone);
    }
    dw_service_facts facts;
    dw_service_measure(service, &facts);
    assert_int_equal(facts.faults, 1);
    assert_int_equal(facts.pages_used, 0);
    dw_service_destroy(service);
    dw_model_destroy(model);
    dw_registry_destroy(registry);
}

static void what_old_weights_made_is_not_shared(void **state) {
    const stage *stage = *state;
    static dw_event events[EVENTS];
    float weights[32], others[32];
    dw_registry *registry;
    int64_t before[21], after[21], fresh[21], ids[40];
    dw_service_facts facts;
    dw_end end;
    fill(weights, 0);
    fill(others, 5);
    for (int i = 0; i < 40; i++) ids[i] = i % 7;
    dw_model *model = small_model(stage->context, weights, &registry);
    const struct stage small = {stage->context, model};
    const dw_service_options options = {.context = 64, .page_tokens = 16};
    const dw_request request = small_request(ids, 40);
    const dw_named_tensor weight = {"t", {.format = DW_FORMAT_f32, .rank = 2, .dims = {8, 4}, .strides = {4, 1}, .data = others}};
    dw_service *service = service_of(&small, &options);
    for (int i = 0; i < 2; i++) {
        const uint64_t id = submit(&small, service, &request);
        take_ids(events, run(&small, service, events), id, before, &end);
    }
    dw_service_measure(service, &facts);
    assert_int_equal(facts.prefix_hits, 1);
    assert_ok(stage->context, dw_model_update(model, 1, &weight));
    uint64_t id = submit(&small, service, &request);
    take_ids(events, run(&small, service, events), id, after, &end);
    dw_service_measure(service, &facts);
    assert_int_equal(facts.prefix_hits, 1);
    dw_service_destroy(service);
    service = service_of(&small, &options);
    id = submit(&small, service, &request);
    take_ids(events, run(&small, service, events), id, fresh, &end);
    assert_memory_equal(after, fresh, sizeof fresh);
    assert_memory_not_equal(after, before, sizeof before);
    dw_service_destroy(service);
    dw_model_destroy(model);
    dw_registry_destroy(registry);
}

static dw_status serve_some(dw_context *context, void *argument) {
    const dw_service_options options = {.rows = 2, .context = 64, .page_tokens = 16, .queue = 4};
    dw_service *service;
    dw_event events[16];
    uint64_t id;
    int busy = 1;
    TRY(dw_service_create(context, argument, &options, &service));
    dw_status status = DW_OK;
    for (int i = 0; i < 2 && status == DW_OK; i++) {
        dw_request request = request_of(3);
        request.temperature = i;
        request.repetition = i ? 1.1 : 0;
        request.top_logprobs = i;
        status = dw_service_submit(context, service, &request, &id);
    }
    while (busy && status == DW_OK) {
        status = dw_service_step(context, service, &busy);
        const int count = dw_service_poll(service, events, COUNT_OF(events));
        for (int i = 0; i < count && status == DW_OK; i++)
            if (events[i].end == DW_END_FAULT) status = base_fail(context, DW_NO_MEMORY, "%s", events[i].message);
    }
    dw_service_destroy(service);
    return status;
}

/* Each allocation fails once. Where that is in a run, the texts are run again one by one, and nobody notices. */
static void memory_may_end_anywhere(void **state) {
    const stage *stage = *state;
    int refused = 0;
    bool done = false;
    for (size_t at = 1; !done; at++) {
        test_memory memory = {.fail_at = at};
        dw_context *context = test_context_create(&memory, 1);
        const dw_status status = context != NULL ? serve_some(context, stage->model) : DW_NO_MEMORY;
        if (status != DW_OK && status != DW_NO_MEMORY) fail_msg("allocation %zu failed: %s", at, dw_context_error(context));
        refused += status == DW_NO_MEMORY;
        dw_context_destroy(context);
        assert_int_equal(memory.live_count, 0);
        done = status == DW_OK && memory.calls < at;
    }
    if (refused < 10) fail_msg("%d allocations are none of a service", refused);
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MILLION 20000   /* which is one thread's work, and takes it fifty times as long */
#endif
#endif
#ifndef MILLION
#define MILLION 1000000
#endif

/* A million short requests: what is allocated stays as it was after the first thousands. */
static void memory_does_not_grow(void **state) {
    enum { REQUESTS = MILLION, OPEN = 256 };
    static dw_event events[2 * OPEN];
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    float weights[32];
    dw_registry *registry;
    dw_service *service;
    size_t settled = 0;
    fill(weights, 0);
    (void)state;
    dw_model *model = small_model(context, weights, &registry);
    assert_ok(context, dw_service_create(context, model, &(dw_service_options){.rows = OPEN, .run_tokens = 4 * OPEN, .context = 32, .page_tokens = 16, .queue = 2 * OPEN}, &service));
    for (int64_t sent = 0, open = 0, ended = 0; ended < REQUESTS;) {
        int busy;
        for (; open < OPEN && sent < REQUESTS; open++, sent++) {
            const int64_t ids[] = {sent % 7, sent / 7 % 7, sent / 49 % 7};
            uint64_t id;
            assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 1 + sent % 3, .ids = ids, .tokens = 1}, &id));
        }
        assert_ok(context, dw_service_step(context, service, &busy));
        const int count = dw_service_poll(service, events, COUNT_OF(events));
        for (int i = 0; i < count; i++) ended += events[i].end != DW_END_NONE;
        open = sent - ended;
        if (settled == 0 && ended > REQUESTS / 100) settled = memory.peak_bytes;
    }
    assert_int_equal(memory.peak_bytes, settled);
    dw_service_destroy(service);
    dw_model_destroy(model);
    dw_registry_destroy(registry);
    dw_context_destroy(context);
    assert_int_equal(memory.live_count, 0);
}

static void add_piece(void *user, const char *piece, size_t length) { text_add_n(user, piece, length); }

static void facts_are_json_too(void **state) {
    const stage *stage = *state;
    text words;
    text_init(&words, stage->context);
    dw_service *service = service_of(stage, NULL);
    assert_ok(stage->context, dw_service_print(stage->context, service, add_piece, &words));
    assert_non_null(strstr(text_string(&words), "\"waiting\": 0, "));
    assert_non_null(strstr(text_string(&words), "\"alone\": null}"));
    text_free(&words);
    dw_service_destroy(service);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tokens_are_those_of_one_call, setup, teardown),
        cmocka_unit_test_setup_teardown(what_makes_no_sense_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(ends_are_told, setup, teardown),
        cmocka_unit_test_setup_teardown(pages_of_a_cancelled_text_are_free_before_the_next_run, setup, teardown),
        cmocka_unit_test_setup_teardown(a_shared_beginning_is_read_once, setup, teardown),
        cmocka_unit_test(texts_with_encoders_go_together),
        cmocka_unit_test_setup_teardown(draws_are_as_asked, setup, teardown),
        cmocka_unit_test_setup_teardown(requests_come_from_any_thread, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_left_at_the_end_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(facts_are_json_too, setup, teardown),
        cmocka_unit_test_setup_teardown(a_fault_ends_its_own_text, setup, teardown),
        cmocka_unit_test_setup_teardown(what_old_weights_made_is_not_shared, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_may_end_anywhere, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_does_not_grow, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
