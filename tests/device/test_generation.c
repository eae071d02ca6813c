/* Generation on a GPU, here the stand-in for the driver: what is copied in a step, how many tokens go into a run, and that all texts are those of the CPU. */
#include "support/support.h"

#include <string.h>

#include "deepwell/serve.h"
#include "engine/engine.h"
#include "serve/scheduler.h"
#include "support/driver.h"
#include "support/session.h"

#define TABLE "const t f32[8,4] = 1,2,-1,3, -2,1,0.5,1, 3,-1,2,-2, 0.25,1,-3,1, -1,-1,2,1, 2,0.5,1,-2, -3,1,1,0.5, 0.5,-2,1,2"
#define HEADS "  %1 = take t, ids {axis=0}\n  %2 = reshape %1 {shape=[b,s,2,2]}\n  %3 = transpose %2 {order=[0,2,1,3]}\n  %4 = sin %3\n"
#define LOGITS "  %8 = transpose %5 {order=[0,2,1,3]}\n  %9 = reshape %8 {shape=[b,s,4]}\n  %10 = matmul %9, t {bt=true}\n  output logits %10\n"
/* Keys come out too, as exporters leave them there. */
static const char ALL[] = "graph g\n  symbol b 1..64\n  symbol s 1..16384\n  input ids i64[b,s]\n  " TABLE "\n" HEADS "  %5 = attention %3, %4, %4 {scale=1.5,causal=true}\n" LOGITS
                          "  output keys %4\n";
/* Its cache is a ring. */
static const char WINDOWED[] = "graph g\n  symbol b 1..64\n  symbol s 1..16384\n  input ids i64[b,s]\n  " TABLE "\n" HEADS
                               "  %5 = attention %3, %4, %4 {scale=1.5,causal=true,window=5}\n" LOGITS;
static const char WIDE[] = "graph g\n  symbol b 1..64\n  symbol s 1..16384\n  input ids i64[b,s]\n  " TABLE "\n" HEADS
                           "  %5 = attention %3, %4, %4 {scale=1.5,causal=true,window=1500}\n" LOGITS;
/* A mask of keys, which generation feeds with ones. */
static const char MASKED[] = "graph g\n  symbol b 1..64\n  symbol s 1..16384\n  input ids i64[b,s]\n  input attention_mask i64[b,s]\n  " TABLE "\n" HEADS
                             "  %6 = cast attention_mask {to=bool}\n  %7 = reshape %6 {shape=[b,1,1,s]}\n  %5 = attention %3, %4, %4, %7 {scale=1.5,causal=true}\n" LOGITS;
/* No step is possible: each token takes a run of the whole graph. */
static const char MIXED[] = "graph g\n  symbol b 1..64\n  symbol s 1..1000\n  input ids i64[b,s]\n  " TABLE
                            "\n  %1 = take t, ids {axis=0}\n  %2 = mean %1 {axes=[1],keep=true}\n  %3 = add %1, %2\n  %4 = sin %3\n  %5 = matmul %4, t {bt=true}\n"
                            "  output logits %5\n  output inner %4\n";
/* Reads what an encoder would give, computed once for each text. */
static const char HEARD[] = "graph g\n  symbol b 1..4\n  symbol e 1..2048\n  symbol s 1..64\n  input sound f32[b,e,4]\n  input ids i64[b,s]\n  " TABLE
                            "\n  %1 = sin sound\n  %2 = reshape %1 {shape=[b,e,1,4]}\n  %3 = transpose %2 {order=[0,2,1,3]}\n  %4 = cos sound\n"
                            "  %5 = reshape %4 {shape=[b,e,1,4]}\n  %6 = transpose %5 {order=[0,2,1,3]}\n  %7 = take t, ids {axis=0}\n  %8 = reshape %7 {shape=[b,s,1,4]}\n"
                            "  %9 = transpose %8 {order=[0,2,1,3]}\n  %10 = attention %9, %9, %9 {scale=0.5,causal=true}\n  %11 = attention %10, %3, %6 {scale=2}\n"
                            "  %12 = transpose %11 {order=[0,2,1,3]}\n  %13 = reshape %12 {shape=[b,s,4]}\n  %14 = matmul %13, t {bt=true}\n  output logits %14\n";
enum { VOCABULARY = 8, TEXTS = 16, MADE = 5 };

static void begin_log(void) { fake->calls = fake->launches = 0; }

static dw_model *open_model(dw_context *context, const char *text, const char *device) {
    return model_of_text(context, text, &(dw_model_options){.flags = DW_MODEL_GENERATE_ONLY, .device = device});
}

static dw_session *open_session(dw_context *context, const dw_model *model, int64_t room, int64_t rows, int64_t chunk) {
    dw_session *session;
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.max_tokens = room, .rows = rows, .chunk = chunk}, &session));
    return session;
}

/* Prompts number first and on, of these lengths, and what is made of them. */
static void generate(dw_context *context, dw_session *session, int first, int count, const int64_t *lengths, double temperature, int64_t *ids) {
    int64_t start[TEXTS][1100];
    dw_prompt prompts[TEXTS];
    for (int i = 0; i < count; i++) {
        for (int64_t k = 0; k < lengths[i]; k++) start[i][k] = (int64_t)(num_random((uint64_t)(first + i), (uint64_t)k) % VOCABULARY);
        prompts[i] = (dw_prompt){.count = lengths[i], .ids = start[i], .seed = (uint64_t)(first + i), .made_ids = ids + MADE * i};
    }
    assert_ok(context, dw_session_generate_batch(session, count, prompts, &(dw_generate_options){.tokens = MADE, .temperature = temperature}, NULL));
    for (int i = 0; i < count; i++) assert_int_equal(prompts[i].made, MADE);
}

static void a_step_of_generation_takes_one_copy_each_way(void **state) {
    (void)state;
    dw_context *context = context_of();
    static const char *const texts[] = {ALL, WINDOWED, MASKED};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        dw_model *model = open_model(context, texts[i], DEVICE_NAME);
        dw_session *session = open_session(context, model, 48, 2, 0);
        const ir_graph *step = model->step.plan->graph;
        assert_int_equal(step->output_count, 2);   /* no keys */
        assert_string_equal(step->outputs[1].name, STEP_OUTPUT_NEXT);
        assert_int_equal(dw_model_output_count(model), 1);
        assert_string_equal(dw_model_output(model, 0, NULL), "logits");
        int64_t ids[2 * MADE];
        for (int drawn = 0; drawn < 2; drawn++) {
            generate(context, session, 0, 2, (int64_t[]){3, 9}, drawn, ids);
            begin_log();
            generate(context, session, 0, 2, (int64_t[]){3, 9}, drawn, ids);
            assert_int_equal(count_calls("GraphLaunch"), MADE);
            assert_int_equal(count_calls("MemcpyHtoDAsync"), drawn ? 2 * MADE : MADE);   /* draws have settings, */
            assert_int_equal(count_calls("MemcpyDtoHAsync"), drawn ? 2 * MADE : MADE);   /* and logarithms of probabilities */
            assert_int_equal(count_calls("LaunchKernelEx"), drawn ? MADE : 0);
            assert_int_equal(count_calls("StreamSynchronize"), 0);
            assert_int_equal(count_calls("EventSynchronize"), MADE);
            assert_int_equal(count_calls("MemcpyDtoDAsync"), MADE - 1);   /* ids that the host does not know when the run starts */
            assert_int_equal(count_calls("GraphInstantiate"), 0);
        }
        dw_session_destroy(session);
        dw_model_destroy(model);
    }
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* Texts that hear this and that, more than there are places for: ids of all of them. */
static void generate_heard(dw_context *context, dw_session *session, int64_t *ids) {
    enum { HEARERS = 5, LONGEST = 9 };
    static const int64_t lengths[HEARERS] = {LONGEST, 2, 5, LONGEST, 1}, start[3] = {1, 6, 2};
    static float sounds[HEARERS][LONGEST * 4];
    dw_named_tensor inputs[HEARERS];
    dw_prompt prompts[HEARERS];
    for (int i = 0; i < HEARERS; i++) {
        for (int64_t k = 0; k < lengths[i] * 4; k++) sounds[i][k] = 2 * num_random_normal((uint64_t)i, (uint64_t)k);
        inputs[i].name = "sound";
        assert_true(op_tensor_init(&inputs[i].tensor, DW_FORMAT_f32, DW_SCALE_plain, 3, (const int64_t[]){1, lengths[i], 4}, sounds[i]));
        prompts[i] = (dw_prompt){.count = 1 + i % 3, .ids = start, .inputs = &inputs[i], .input_count = 1, .made_ids = ids + MADE * i};
    }
    assert_ok(context, dw_session_generate_batch(session, HEARERS, prompts, &(dw_generate_options){.tokens = MADE}, NULL));
}

/* What a text hears is brought when a text begins, and not with every step. */
static void what_is_given_comes_once(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *gpu = open_model(context, HEARD, DEVICE_NAME), *cpu = open_model(context, HEARD, NULL);
    for (int64_t rows = 1; rows < 4; rows++) {
        int64_t ids[5 * MADE], cpu_ids[5 * MADE];
        const dw_session_options options = {.dims = "b=1,e=1200", .max_tokens = 16, .rows = rows};
        dw_session *session, *plain;
        assert_ok(context, dw_session_create(context, gpu, &options, &session));
        assert_ok(context, dw_session_create(context, cpu, &options, &plain));
        generate_heard(context, plain, cpu_ids);
        for (int round = 0; round < 2; round++) {
            begin_log();
            generate_heard(context, session, ids);
            assert_memory_equal(ids, cpu_ids, sizeof ids);
        }
        /* each of the five: one copy for the encoder, two for what it gave; and one for each run */
        assert_in_range(count_calls("MemcpyHtoDAsync"), 5 + 2, 5 * 3 + count_calls("GraphLaunch") - 5);
        dw_session_destroy(session);
        dw_session_destroy(plain);
    }
    dw_model_destroy(gpu);
    dw_model_destroy(cpu);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* Of the whole graph's logits the last row comes to the host, and nothing of its other outputs. */
static void a_run_of_all_tokens_brings_one_row(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *gpu = open_model(context, MIXED, DEVICE_NAME), *cpu = open_model(context, MIXED, NULL);
    dw_session *session, *plain;
    const dw_session_options options = {.dims = "b=1,s=48", .max_tokens = 48};
    assert_ok(context, dw_session_create(context, gpu, &options, &session));
    assert_ok(context, dw_session_create(context, cpu, &options, &plain));
    for (int drawn = 0; drawn < 2; drawn++) {
        int64_t ids[MADE], cpu_ids[MADE];
        const int64_t length = 9;
        begin_log();
        generate(context, session, 0, 1, &length, drawn, ids);
        assert_int_equal(count_calls("MemcpyDtoHAsync"), MADE);
        generate(context, plain, 0, 1, &length, drawn, cpu_ids);
        assert_memory_equal(ids, cpu_ids, sizeof ids);
    }
    dw_session_destroy(session);
    dw_session_destroy(plain);
    dw_model_destroy(gpu);
    dw_model_destroy(cpu);
    dw_context_destroy(context);
}

/* Prompts share runs, whatever their lengths; of one that is beyond what a run takes the rest comes in the next. */
static void prompts_share_runs(void **state) {
    (void)state;
    dw_context *context = context_of();
    static const struct { const char *text; int64_t chunk; int runs; } cases[] = {{ALL, 0, 1}, {ALL, 700, 6}, {WINDOWED, 0, 3}};
    static const int64_t lengths[TEXTS] = {1, 40, 513, 2, 1033, 600, 3, 77, 8, 250, 1, 1024, 5, 300, 90, 16};   /* 3963 */
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t ids[TEXTS * MADE], alone[MADE], cpu_ids[TEXTS * MADE];
        dw_model *gpu = open_model(context, cases[i].text, DEVICE_NAME), *cpu = open_model(context, cases[i].text, NULL);
        dw_session *session = open_session(context, gpu, 1100, TEXTS, cases[i].chunk), *plain = open_session(context, cpu, 1100, TEXTS, 0);
        begin_log();
        generate(context, session, 0, TEXTS, lengths, 0, ids);
        assert_int_equal(count_calls("GraphLaunch"), cases[i].runs + MADE - 1);
        generate(context, plain, 0, TEXTS, lengths, 0, cpu_ids);
        assert_memory_equal(ids, cpu_ids, sizeof ids);
        for (int k = 0; k < TEXTS; k += 3) {
            generate(context, session, k, 1, &lengths[k], 0, alone);
            assert_memory_equal(ids + k * MADE, alone, sizeof alone);
        }
        dw_session_destroy(session);
        dw_session_destroy(plain);
        dw_model_destroy(gpu);
        dw_model_destroy(cpu);
    }
    dw_context_destroy(context);
}

/* Text i has i + 1 tokens. */
static int ends_in_turn(void *user, int prompt, int64_t id) {
    int *heard = user;
    (void)id;
    return ++heard[prompt] == prompt + 1;
}

static void end_in_turn(dw_context *context, dw_session *session, int64_t *ids) {
    int64_t start[TEXTS][4];
    int heard[TEXTS] = {0};
    dw_prompt prompts[TEXTS];
    memset(ids, 0, TEXTS * TEXTS * sizeof *ids);
    for (int i = 0; i < TEXTS; i++) {
        for (int k = 0; k < 4; k++) start[i][k] = (int64_t)(num_random((uint64_t)i, (uint64_t)k) % VOCABULARY);
        prompts[i] = (dw_prompt){.count = 4, .ids = start[i], .made_ids = ids + TEXTS * i};
    }
    assert_ok(context, dw_session_generate_batch(session, TEXTS, prompts, &(dw_generate_options){.tokens = TEXTS, .on_prompt_token = ends_in_turn, .user = heard}, NULL));
    for (int i = 0; i < TEXTS; i++) assert_int_equal(prompts[i].made, i + 1);
}

/* Their numbers of new tokens are those of a ladder, and all of it stays bound. */
static void texts_that_end_one_after_another_need_few_graphs(void **state) {
    (void)state;
    enum { RUNGS = 7, PROMPTS = 1 };   /* 2, 3, 4, 6, 8, 12, 16: the last text runs beside the one before it */
    dw_context *context = context_of();
    dw_model *gpu = open_model(context, ALL, DEVICE_NAME), *cpu = open_model(context, ALL, NULL);
    dw_session *session = open_session(context, gpu, 64, TEXTS, 0), *plain = open_session(context, cpu, 64, TEXTS, 0);
    int64_t ids[TEXTS * TEXTS], cpu_ids[TEXTS * TEXTS];
    begin_log();
    end_in_turn(context, session, ids);
    assert_int_equal(count_calls("GraphInstantiate"), RUNGS + PROMPTS);
    end_in_turn(context, plain, cpu_ids);
    assert_memory_equal(ids, cpu_ids, sizeof ids);
    begin_log();
    end_in_turn(context, session, ids);
    assert_int_equal(count_calls("GraphInstantiate"), 0);
    assert_memory_equal(ids, cpu_ids, sizeof ids);
    dw_session_destroy(session);
    dw_session_destroy(plain);
    dw_model_destroy(gpu);
    dw_model_destroy(cpu);
    dw_context_destroy(context);
}

/* ---- services ---- */

enum { SERVED = 12, SERVED_MADE = 9 };

/* What some of the texts ask for: the likeliest, draws, or a mask. */
typedef enum wish { GREEDY, DRAWS, MASKS } wish;

/* Neither the id in front nor the two behind it: an id that was not known yet when it was asked would give others. */
static int forbid_near(void *user, int64_t last_id, uint32_t *bits) {
    (void)user;
    for (int i = 0; i < 3 && last_id >= 0; i++) bits[0] &= ~(UINT32_C(1) << (last_id + i) % VOCABULARY);
    return 0;
}

static void submit_served(dw_context *context, dw_service *service, wish wish, uint64_t *requests) {
    for (int i = 0; i < SERVED; i++) {
        int64_t ids[64];
        const dw_request request = {.count = 1 + i * 23 % 60, .ids = ids, .tokens = 1 + i % SERVED_MADE, .temperature = wish == DRAWS && i % 3 == 2, .seed = (uint64_t)i, .mask = wish == MASKS && i % 4 == 3 ? forbid_near : NULL};
        for (int k = 0; k < 64; k++) ids[k] = (int64_t)(num_random((uint64_t)(i % 4), (uint64_t)k) % VOCABULARY);
        assert_ok(context, dw_service_submit(context, service, &request, &requests[i]));
    }
}

/* What all texts got; -1 behind the last. */
static void serve(dw_context *context, const char *text, const char *device, wish wish, int64_t *made_ids) {
    static dw_event events[256];
    const dw_service_options options = {.rows = 5, .run_tokens = 40, .context = 72, .page_tokens = 16, .cache_bytes = 1 << 20};
    uint64_t requests[SERVED];
    dw_service *service;
    dw_service_facts facts;
    dw_model *model = open_model(context, text, device);
    begin_log();
    assert_ok(context, dw_service_create(context, model, &options, &service));
    const int rungs = count_calls("GraphInstantiate");
    assert_true(device == NULL || (rungs > 5 && rungs <= ENGINE_LADDER));
    begin_log();
    for (int i = 0; i < SERVED * (SERVED_MADE + 1); i++) made_ids[i] = -1;
    submit_served(context, service, wish, requests);
    for (int busy = 1; busy;) {
        assert_ok(context, dw_service_step(context, service, &busy));
        const int count = dw_service_poll(service, events, COUNT_OF(events));
        for (int e = 0; e < count; e++) {
            int i = 0;
            while (requests[i] != events[e].request) i++;
            assert_null(events[e].message);
            if (events[e].id >= 0) made_ids[i * (SERVED_MADE + 1) + events[e].index] = events[e].id;
        }
    }
    dw_service_measure(service, &facts);
    assert_true(facts.prefix_hits > 0);
    if (device != NULL) assert_int_equal(count_calls("GraphLaunch"), facts.runs);
    assert_int_equal(count_calls("GraphInstantiate"), 0);
    assert_int_equal(count_calls("GraphExecKernelNodeSetParams"), 0);
    dw_service_destroy(service);
    dw_model_destroy(model);
}

/* Runs have one of a few numbers of tokens, whose graphs are there when the service is. */
static void no_graph_is_made_while_texts_wait(void **state) {
    (void)state;
    dw_context *context = context_of();
    static const char *const texts[] = {ALL, WINDOWED, MASKED};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        static int64_t there[SERVED * (SERVED_MADE + 1)], here[SERVED * (SERVED_MADE + 1)];
        serve(context, texts[i], DEVICE_NAME, DRAWS, there);
        serve(context, texts[i], NULL, DRAWS, here);
        assert_memory_equal(there, here, sizeof here);
    }
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* Two runs on their way, copies and kernels done as late as a GPU may: ids are the same. */
static void work_may_be_done_late(void **state) {
    (void)state;
    dw_context *context = context_of();
    static const char *const texts[] = {ALL, WINDOWED, MASKED};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        static int64_t there[SERVED * (SERVED_MADE + 1)], here[SERVED * (SERVED_MADE + 1)];
        const wish wish = i == 1 ? DRAWS : GREEDY;
        serve(context, texts[i], NULL, wish, here);
        for (unsigned seed = 1; seed <= 5; seed++) {
            fake->late = seed;
            serve(context, texts[i], DEVICE_NAME, wish, there);
            fake->late = 0;
            assert_memory_equal(there, here, sizeof here);
        }
    }
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* A mask is asked for when the id in front of it is here, so a run with such a text waits, and those of the others go ahead before and behind. */
static void a_mask_waits_for_the_id_in_front_of_it(void **state) {
    (void)state;
    static int64_t there[SERVED * (SERVED_MADE + 1)], here[SERVED * (SERVED_MADE + 1)], free_ids[SERVED * (SERVED_MADE + 1)];
    dw_context *context = context_of();
    serve(context, ALL, NULL, GREEDY, free_ids);
    serve(context, ALL, NULL, MASKS, here);
    assert_memory_not_equal(here, free_ids, sizeof here);
    for (unsigned seed = 0; seed <= 2; seed++) {
        fake->late = seed;
        serve(context, ALL, DEVICE_NAME, MASKS, there);
        fake->late = 0;
        assert_memory_equal(there, here, sizeof here);
    }
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* An id that only one of both tables has: a kernel reports it in the middle of a run. */
static const char SHORT[] = "graph g\n  symbol b 1..64\n  symbol s 1..16384\n  input ids i64[b,s]\n  " TABLE "\n  const u f32[7,4] = 1,2,-1,3, -2,1,0.5,1, 3,-1,2,-2, 0.25,1,-3,1, -1,-1,2,1, 2,0.5,1,-2, -3,1,1,0.5\n"
                            "  const bias f32[8] = 0,0,0,0,0,0,0,-1000\n  %1 = take t, ids {axis=0}\n  %2 = take u, ids {axis=0}\n  %3 = add %1, %2\n  %4 = reshape %3 {shape=[b,s,2,2]}\n"
                            "  %5 = transpose %4 {order=[0,2,1,3]}\n  %6 = attention %5, %5, %5 {scale=1.5,causal=true}\n  %7 = transpose %6 {order=[0,2,1,3]}\n  %8 = reshape %7 {shape=[b,s,4]}\n"
                            "  %9 = matmul %8, t {bt=true}\n  %10 = add %9, bias\n  output logits %10\n";

/* Three texts, the second of which has the id; what each made, and how it ended. */
static void serve_short(dw_context *context, dw_model *model, bool with_fault, int64_t made[3][SERVED_MADE], dw_end *ends) {
    dw_event events[64];
    dw_service *service;
    uint64_t requests[3];
    assert_ok(context, dw_service_create(context, model, &(dw_service_options){.rows = 3, .context = 32, .page_tokens = 16, .cache_bytes = 1 << 16, .flags = DW_SERVICE_NO_SHARING}, &service));
    for (int i = 0; i < 3; i++) {
        const int64_t ids[] = {1 + i, 2, i == 1 && with_fault ? 7 : 3};
        assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 3, .ids = ids, .tokens = SERVED_MADE}, &requests[i]));
    }
    for (int busy = 1; busy;) {
        assert_ok(context, dw_service_step(context, service, &busy));
        const int count = dw_service_poll(service, events, COUNT_OF(events));
        for (int e = 0; e < count; e++) {
            int i = 0;
            while (requests[i] != events[e].request) i++;
            if (events[e].id >= 0) made[i][events[e].index] = events[e].id;
            if (events[e].end != DW_END_NONE) ends[i] = events[e].end;
            if (events[e].end == DW_END_FAULT) assert_non_null(strstr(events[e].message, "index 7 is outside"));
        }
    }
    dw_service_facts facts;
    dw_service_measure(service, &facts);
    assert_int_equal(facts.faults, with_fault);
    assert_int_equal(facts.pages_used, 0);
    dw_service_destroy(service);
}

/* The text whose kernel it is ends with its words, and the others, whose runs were ahead, as if nothing had been. */
static void a_fault_of_a_kernel_ends_its_own_text(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = open_model(context, SHORT, DEVICE_NAME);
    for (unsigned seed = 0; seed <= 2; seed++) {
        int64_t whole[3][SERVED_MADE] = {{0}}, made[3][SERVED_MADE] = {{0}};
        dw_end ends[3];
        fake->late = seed;
        serve_short(context, model, false, whole, ends);
        for (int i = 0; i < 3; i++) assert_int_equal(ends[i], DW_END_LENGTH);
        serve_short(context, model, true, made, ends);
        fake->late = 0;
        for (int i = 0; i < 3; i++) assert_int_equal(ends[i], i == 1 ? DW_END_FAULT : DW_END_LENGTH);
        for (int i = 0; i < 3; i += 2) assert_memory_equal(made[i], whole[i], sizeof made[i]);
    }
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* Runs from a prompt of 200 tokens to its first one, while three texts make tokens; ids: of all. */
static int64_t runs_of_a_prompt(dw_context *context, const char *device, int64_t ids[4][64], int64_t *meanwhile) {
    enum { OTHERS = 3, PROMPT = 200 };
    static dw_event events[256];
    int64_t prompt[PROMPT], made[OTHERS + 1] = {0}, before = 0, runs = 0;
    uint64_t requests[OTHERS + 1] = {0};
    dw_service_facts facts;
    dw_service *service;
    dw_model *model = open_model(context, ALL, device);
    assert_ok(context, dw_service_create(context, model, &(dw_service_options){.rows = 4, .run_tokens = 64, .context = 256, .page_tokens = 16, .cache_bytes = 1 << 20, .flags = DW_SERVICE_NO_SHARING}, &service));
    for (int k = 0; k < PROMPT; k++) prompt[k] = (int64_t)(num_random(3, (uint64_t)k) % VOCABULARY);
    for (int i = 0; i < OTHERS; i++) assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 2 + i, .ids = prompt, .tokens = 40}, &requests[i]));
    for (int busy = 1; busy;) {
        assert_ok(context, dw_service_step(context, service, &busy));
        const int count = dw_service_poll(service, events, COUNT_OF(events));
        dw_service_measure(service, &facts);
        for (int e = 0; e < count; e++) {
            int i = 0;
            while (requests[i] != events[e].request) i++;
            if (events[e].id >= 0) ids[i][made[i]++] = events[e].id;
        }
        if (made[OTHERS] > 0 && runs == 0) runs = facts.runs - before, *meanwhile = made[0] - *meanwhile;
        if (made[2] == 0 || requests[OTHERS] != 0) continue;
        before = facts.runs, *meanwhile = made[0];
        assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = PROMPT, .ids = prompt, .tokens = 3}, &requests[OTHERS]));
    }
    dw_service_destroy(service);
    dw_model_destroy(model);
    return runs;
}

/* Of 64 tokens of a run a CPU gives the prompt 61. A GPU's texts have every other run, and the prompt's runs have 48 tokens, but for the rest of 8, which is few. */
static void prompts_and_tokens_have_turns_on_a_gpu(void **state) {
    (void)state;
    dw_context *context = context_of();
    static int64_t here[4][64], there[4][64];
    int64_t cpu_tokens = 0, tokens = 0;
    const int64_t cpu_runs = runs_of_a_prompt(context, NULL, here, &cpu_tokens), runs = runs_of_a_prompt(context, DEVICE_NAME, there, &tokens);
    assert_int_equal(cpu_runs, 4);
    assert_in_range(runs, 9, 11);                 /* two more are under way */
    assert_in_range(tokens, 4, 7);
    assert_memory_equal(there, here, sizeof here);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* Three texts make tokens while a prompt of 200 is read, one of whose ids is a fault of its turn's run: the runs from there to its end. */
static int64_t runs_beside_a_prompt(dw_context *context, dw_model *model, bool with_fault, int64_t made[3][64]) {
    enum { OTHERS = 3, PROMPT = 200, TOKENS = 40 };
    static dw_event events[256];
    int64_t prompt[PROMPT], counts[OTHERS + 1] = {0};
    uint64_t requests[OTHERS + 1] = {0};
    int64_t begin = 0, runs = 0;
    dw_end ends[OTHERS + 1] = {DW_END_NONE};
    dw_service_facts facts;
    dw_service *service;
    for (int k = 0; k < PROMPT; k++) prompt[k] = (int64_t)(num_random(5, (uint64_t)k) % 7);
    if (with_fault) prompt[10] = 7;
    assert_ok(context, dw_service_create(context, model, &(dw_service_options){.rows = OTHERS + 1, .run_tokens = 64, .context = 256, .page_tokens = 16, .cache_bytes = 1 << 20, .flags = DW_SERVICE_NO_SHARING}, &service));
    for (int i = 0; i < OTHERS; i++) assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 2 + i, .ids = (int64_t[]){1, 2, 3, 4}, .tokens = TOKENS}, &requests[i]));
    for (int busy = 1; busy;) {
        assert_ok(context, dw_service_step(context, service, &busy));
        const int count = dw_service_poll(service, events, COUNT_OF(events));
        dw_service_measure(service, &facts);
        for (int e = 0; e < count; e++) {
            int i = 0;
            while (requests[i] != events[e].request) i++;
            if (events[e].id >= 0 && i < OTHERS) made[i][counts[i]] = events[e].id;
            counts[i] += events[e].id >= 0;
            if (events[e].end != DW_END_NONE) ends[i] = events[e].end;
            if (events[e].end != DW_END_NONE && i == OTHERS) runs = facts.runs - begin;
        }
        if (counts[OTHERS - 1] == 0 || requests[OTHERS] != 0) continue;
        begin = facts.runs;
        assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = PROMPT, .ids = prompt, .tokens = 3}, &requests[OTHERS]));
    }
    for (int i = 0; i < OTHERS; i++) assert_int_equal(ends[i], DW_END_LENGTH);
    assert_int_equal(ends[OTHERS], with_fault ? DW_END_FAULT : DW_END_LENGTH);
    dw_service_measure(service, &facts);
    assert_int_equal(facts.faults, with_fault);
    assert_int_equal(facts.pages_used, 0);
    dw_service_destroy(service);
    return runs;
}

/* The run that failed is repeated, not the one that was planned behind it, which has none of the prompt: so its text ends at once. */
static void a_fault_in_a_prompts_turn_ends_its_text(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = open_model(context, SHORT, DEVICE_NAME);
    for (unsigned seed = 0; seed <= 2; seed++) {
        static int64_t whole[3][64], made[3][64];
        fake->late = seed;
        assert_in_range(runs_beside_a_prompt(context, model, false, whole), 8, 16);
        const int64_t runs = runs_beside_a_prompt(context, model, true, made);
        fake->late = 0;
        assert_in_range(runs, 0, 8);     /* its turn comes, fails, and what was under way goes one by one */
        assert_memory_equal(made, whole, sizeof made);
    }
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* What prompts have of a run is a size that is bound, however many sizes there are; and where nearly all of a run is for tokens, prompts have runs of their own nevertheless. */
static void prompts_have_a_size_of_their_own(void **state) {
    static const struct { int64_t rows, run_tokens; } services[] = {{4, 64}, {64, 2048}, {65, 1024}, {5, 5}, {3, 3}};
    (void)state;
    dw_context *context = context_of();
    dw_model *model = open_model(context, ALL, DEVICE_NAME);
    for (size_t i = 0; i < COUNT_OF(services); i++) {
        dw_service *service;
        const dw_service_options options = {.rows = services[i].rows, .run_tokens = services[i].run_tokens, .context = 64, .page_tokens = 16, .cache_bytes = 1 << 20};
        assert_ok(context, dw_service_create(context, model, &options, &service));
        const generation *g = service_scheduler(service)->g;
        const int64_t most = generation_prompts_most(g);
        bool is_bound = false;
        for (int k = 0; k < g->rung_count; k++) is_bound |= g->rungs[k] == most;
        assert_true(is_bound && most > 0 && most < g->run_most);
        dw_service_destroy(service);
    }
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* Texts end, or the service is not made: nothing hangs, nothing stays. */
static void any_call_of_the_driver_may_fail_in_a_service(void **state) {
    (void)state;
    dw_context *context = context_of();
    int refused = 0;
    dw_model *model = open_model(context, ALL, DEVICE_NAME);
    const int before = fake->live;
    bool done = false;
    for (int at = 1; !done; at++) {
        dw_event events[16];
        dw_service *service;
        uint64_t request;
        const int64_t ids[] = {1, 2, 3};
        begin_log();
        fake->fail_at = at;
        if (dw_service_create(context, model, &(dw_service_options){.rows = 2, .run_tokens = 3, .context = 16, .page_tokens = 16, .cache_bytes = 1 << 16}, &service) != DW_OK) {
            refused++;
        } else {
            for (int i = 0; i < 2; i++) assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 3, .ids = ids, .tokens = 4, .temperature = i}, &request));
            int busy = 1, ended = 0;
            for (int steps = 0; busy && steps < 100 && dw_service_step(context, service, &busy) == DW_OK; steps++)
                for (int i = dw_service_poll(service, events, COUNT_OF(events)); i-- > 0;) ended += events[i].end != DW_END_NONE;
            assert_int_equal(ended, 2);
            dw_service_destroy(service);
        }
        done = fake->calls < at;
        fake->fail_at = 0;
        assert_int_equal(fake->live, before);
    }
    assert_true(refused > 10);
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* The workspace of a run is bounded by the memory that there is. */
static void runs_are_as_long_as_the_memory_allows(void **state) {
    (void)state;
    dw_context *context = context_of();
    const size_t memory = fake->memory_bytes;
    const char *const name = fake->name;
    fake->name = "NVIDIA A30";   /* no row of its own, whose memory it would be taken to have */
    static const struct { const char *text; size_t bytes; int64_t room, rows, chunk, expected_run, expected_chunk; } cases[] = {
        {ALL, (size_t)80 << 30, 1000, 16, 0, 8192, 1024},      {ALL, (size_t)80 << 30, 1000, 4, 0, 4000, 1024},   {ALL, (size_t)80 << 30, 12000, 1, 0, 8192, 8192},
        {ALL, (size_t)80 << 30, 1000, 16, 300, 300, 300},      {WINDOWED, (size_t)80 << 30, 1000, 16, 0, 8192, 512}, {WINDOWED, (size_t)80 << 30, 12000, 1, 0, 8192, 512},
        {WIDE, (size_t)80 << 30, 1700, 16, 0, 8192, 1792},     {WIDE, (size_t)80 << 30, 5000, 16, 0, 8192, 512},
        {ALL, 600000, 1000, 16, 0, 2048, 1024},       {ALL, 230000, 12000, 1, 0, 512, 512},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        fake->memory_bytes = cases[i].bytes;
        dw_model *model = open_model(context, cases[i].text, DEVICE_NAME);
        dw_session *session = open_session(context, model, cases[i].room, cases[i].rows, cases[i].chunk);
        const generation *g = session->generation;
        if (g->run_most != cases[i].expected_run || g->chunk != cases[i].expected_chunk)
            fail_msg("case %zu: runs of %d tokens, %d of a text, in %zu bytes", i, (int)g->run_most, (int)g->chunk, (size_t)dw_session_workspace_bytes(session));
        dw_session_destroy(session);
        dw_model_destroy(model);
    }
    fake->memory_bytes = memory;
    fake->name = name;
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_of_generation_takes_one_copy_each_way),
        cmocka_unit_test(what_is_given_comes_once),
        cmocka_unit_test(a_run_of_all_tokens_brings_one_row),
        cmocka_unit_test(prompts_share_runs),
        cmocka_unit_test(texts_that_end_one_after_another_need_few_graphs),
        cmocka_unit_test(no_graph_is_made_while_texts_wait),
        cmocka_unit_test(work_may_be_done_late),
        cmocka_unit_test(a_mask_waits_for_the_id_in_front_of_it),
        cmocka_unit_test(a_fault_of_a_kernel_ends_its_own_text),
        cmocka_unit_test(prompts_and_tokens_have_turns_on_a_gpu),
        cmocka_unit_test(prompts_have_a_size_of_their_own),
        cmocka_unit_test(a_fault_in_a_prompts_turn_ends_its_text),
        cmocka_unit_test(any_call_of_the_driver_may_fail_in_a_service),
        cmocka_unit_test(runs_are_as_long_as_the_memory_allows),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
