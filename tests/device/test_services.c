/* Services on a GPU, here the stand-in for the driver: which graphs there are, runs that are ahead, what has turns, what fails, and that all texts are those of the CPU. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "deepwell/serve.h"
#include "device/text_graphs.h"
#include "serve/scheduler.h"

enum { SERVED = 12, SERVED_MADE = 9 };

/* What some of the texts ask for: the likeliest, draws, a mask; penalties and biases, which a device has tables of; the likeliest ids told; penalties of some where others have masks, whose runs are the host's;
 * and penalties where pages are short, so that texts give theirs back while a token of theirs is on its way. */
typedef enum wish { GREEDY, DRAWS, MASKS, TABLES, TOLD, MIXED, CROWDED, WISHES } wish;

/* Neither the id in front nor the two behind it: an id that was not known yet when it was asked would give others. */
static int forbid_near(void *user, int64_t last_id, uint32_t *bits) {
    (void)user;
    for (int i = 0; i < 3 && last_id >= 0; i++) bits[0] &= ~(UINT32_C(1) << (last_id + i) % VOCABULARY);
    return 0;
}

static const int64_t BIASED[] = {2, 5};
static const float BIASES[] = {-INFINITY, 1.5f};

static void submit_served(dw_context *context, dw_service *service, wish wish, uint64_t *requests) {
    for (int i = 0; i < SERVED; i++) {
        int64_t ids[64];
        dw_request request = {.count = 1 + i * 23 % 60, .ids = ids, .tokens = 1 + i % SERVED_MADE, .temperature = wish != GREEDY && wish != MASKS && i % 3 == 2, .seed = (uint64_t)i};
        if ((wish == MASKS || wish == MIXED) && i % 4 == 3) request.mask = forbid_near;
        if ((wish == TABLES || wish == MIXED || wish == CROWDED) && i % 4 != 1) request.presence = 0.7, request.frequency = 3, request.repetition = 1 + 0.2 * (i % 3);
        if (wish == TABLES && i % 5 > 2) request.bias_ids = BIASED, request.bias = BIASES, request.bias_count = COUNT_OF(BIASED);
        if (wish == TOLD) request.top_logprobs = i % 4;
        if (wish == MIXED || wish == CROWDED) request.tokens = wish == MIXED && i % 4 == 3 ? 2 : SERVED_MADE;
        for (int k = 0; k < 64; k++) ids[k] = (int64_t)(num_random((uint64_t)(i % 4), (uint64_t)k) % VOCABULARY);
        assert_ok(context, dw_service_submit(context, service, &request, &requests[i]));
    }
}

/* What all texts got; -1 behind the last. */
static void serve(dw_context *context, const char *text, const char *device, wish wish, int64_t *made_ids) {
    static dw_event events[256];
    const dw_service_options options = {.rows = 5, .run_tokens = 40, .context = 72, .page_tokens = 16, .cache_bytes = wish == CROWDED ? 5 << 9 : 1 << 20};
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
            if (events[e].id < 0) continue;
            int64_t *made = &made_ids[i * (SERVED_MADE + 1) + events[e].index];
            *made = events[e].id;
            assert_int_equal(events[e].top_count, wish == TOLD ? i % 4 : 0);
            for (int k = 0; k < events[e].top_count; k++) *made = *made * 10 + events[e].top_ids[k];
        }
    }
    dw_service_measure(service, &facts);
    assert_true(facts.prefix_hits > 0);
    assert_int_equal(facts.preemptions > 0, wish == CROWDED);
    if (device != NULL && wish != MASKS && wish != MIXED && !fake->apart) assert_int_equal(count_calls("MemcpyDtoHAsync"), 0);   /* no logits come to the host */
    if (device != NULL) assert_int_equal(count_calls("GraphLaunch"), facts.runs);
    assert_int_equal(count_calls("GraphInstantiate"), 0);
    assert_true(count_calls("GraphExecKernelNodeSetParams") <= 2 * facts.runs);   /* what a run's graph carries at its ends */
    if (device != NULL && !fake->apart) assert_int_equal(count_calls("MemcpyDtoDAsync"), 0);
    dw_service_destroy(service);
    dw_model_destroy(model);
}

/* A service on the device, whose work is done as late as the seed says, makes the ids in here. */
static void serve_as_here(dw_context *context, const char *text, wish wish, unsigned late, const int64_t *here) {
    static int64_t there[SERVED * (SERVED_MADE + 1)];
    fake->late = late;
    serve(context, text, DEVICE_NAME, wish, there);
    fake->late = 0;
    assert_memory_equal(there, here, sizeof there);
}

/* Runs have one of a few numbers of tokens, whose graphs are there when the service is. */
static void no_graph_is_made_while_texts_wait(void **state) {
    (void)state;
    dw_context *context = context_of();
    static const char *const texts[] = {ALL, WINDOWED, MASKED};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        static int64_t here[SERVED * (SERVED_MADE + 1)];
        serve(context, texts[i], NULL, DRAWS, here);
        serve_as_here(context, texts[i], DRAWS, 0, here);
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
        static int64_t here[SERVED * (SERVED_MADE + 1)];
        const wish wish = i == 1 ? DRAWS : GREEDY;
        serve(context, texts[i], NULL, wish, here);
        for (unsigned seed = 1; seed <= 5; seed++) {
            fake->apart = seed == 5;   /* what graphs carry is copied there */
            serve_as_here(context, texts[i], wish, seed, here);
        }
        fake->apart = 0;
    }
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* A mask is asked for when the id in front of it is here, so a run with such a text waits, and those of the others go ahead before and behind. */
static void a_mask_waits_for_the_id_in_front_of_it(void **state) {
    (void)state;
    static int64_t here[SERVED * (SERVED_MADE + 1)], free_ids[SERVED * (SERVED_MADE + 1)];
    dw_context *context = context_of();
    serve(context, ALL, NULL, GREEDY, free_ids);
    serve(context, ALL, NULL, MASKS, here);
    assert_memory_not_equal(here, free_ids, sizeof here);
    for (unsigned seed = 0; seed <= 2; seed++) serve_as_here(context, ALL, MASKS, seed, here);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* Counts follow what is drawn on the device, ahead of the host, and are the host's again behind a run of its own. */
static void penalties_and_biases_are_the_devices(void **state) {
    (void)state;
    dw_context *context = context_of();
    for (wish wish = TABLES; wish < WISHES; wish++) {
        static int64_t here[SERVED * (SERVED_MADE + 1)], plain[SERVED * (SERVED_MADE + 1)];
        const char *const text = wish == MIXED ? WINDOWED : ALL;
        serve(context, text, NULL, wish == MIXED ? MASKS : DRAWS, plain);
        serve(context, text, NULL, wish, here);
        assert_memory_not_equal(here, plain, sizeof here);
        for (unsigned seed = 0; seed <= 2; seed++) serve_as_here(context, text, wish, seed, here);
    }
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* A device that has no room for counts ends the text that wants them, and says what they take. */
static void counts_without_room_end_their_text(void **state) {
    (void)state;
    dw_context *context = context_of();
    const int64_t ids[] = {1, 2, 3};
    dw_model *model = open_model(context, ALL, DEVICE_NAME);
    dw_service *service;
    dw_event events[32];
    uint64_t requests[2];
    int told = 0;
    assert_ok(context, dw_service_create(context, model, &(dw_service_options){.rows = 2, .run_tokens = 8, .context = 16, .page_tokens = 16, .cache_bytes = 1 << 16}, &service));
    fake->is_full = 1;
    for (int i = 0; i < 2; i++) assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 3, .ids = ids, .tokens = 4, .presence = i}, &requests[i]));
    for (int busy = 1; busy;) {
        assert_ok(context, dw_service_step(context, service, &busy));
        for (int i = dw_service_poll(service, events, COUNT_OF(events)); i-- > 0;) {
            if (events[i].end == DW_END_NONE) continue;
            const bool wants = events[i].request == requests[1];
            assert_int_equal(events[i].end, wants ? DW_END_FAULT : DW_END_LENGTH);
            if (wants) assert_non_null(strstr(events[i].message, "counts of tokens, for penalties, of 2 texts take 64 bytes"));
            told++;
        }
    }
    assert_int_equal(told, 2);
    fake->is_full = 0;
    dw_service_destroy(service);
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* An id that only one of both tables has: a kernel reports it in the middle of a run. */
static const char SHORT[] = "graph g\n  symbol b 1..64\n  symbol s 1..16384\n  input ids i64[b,s]\n  " TABLE "\n  const u f32[7,4] = 1,2,-1,3, -2,1,0.5,1, 3,-1,2,-2, 0.25,1,-3,1, -1,-1,2,1, 2,0.5,1,-2, -3,1,1,0.5\n"
                            "  const bias f32[8] = 0,0,0,0,0,0,0,-1000\n  %1 = take t, ids {axis=0}\n  %2 = take u, ids {axis=0}\n  %3 = add %1, %2\n  %4 = reshape %3 {shape=[b,s,2,2]}\n"
                            "  %5 = transpose %4 {order=[0,2,1,3]}\n  %6 = attention %5, %5, %5 {scale=1.5,causal=true}\n  %7 = transpose %6 {order=[0,2,1,3]}\n  %8 = reshape %7 {shape=[b,s,4]}\n"
                            "  %9 = matmul %8, t {bt=true}\n  %10 = add %9, bias\n  output logits %10\n";

/* Three texts, the second of which has the id; what each made, and how it ended. */
static void serve_short(dw_context *context, dw_model *model, bool with_fault, double penalty, int64_t made[3][SERVED_MADE], dw_end *ends) {
    dw_event events[64];
    dw_service *service;
    uint64_t requests[3];
    assert_ok(context, dw_service_create(context, model, &(dw_service_options){.rows = 3, .context = 32, .page_tokens = 16, .cache_bytes = 1 << 16, .flags = DW_SERVICE_NO_SHARING}, &service));
    for (int i = 0; i < 3; i++) {
        const int64_t ids[] = {1 + i, 2, i == 1 && with_fault ? 7 : 3};
        assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 3, .ids = ids, .tokens = SERVED_MADE, .presence = penalty, .frequency = penalty}, &requests[i]));
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
    for (unsigned seed = 0; seed <= 5; seed++) {
        int64_t whole[3][SERVED_MADE] = {{0}}, made[3][SERVED_MADE] = {{0}};
        const double penalty = seed > 2 ? 0.6 : 0;   /* by counts on the device, which are the host's behind the fault */
        dw_end ends[3];
        fake->late = seed % 3;
        serve_short(context, model, false, penalty, whole, ends);
        for (int i = 0; i < 3; i++) assert_int_equal(ends[i], DW_END_LENGTH);
        serve_short(context, model, true, penalty, made, ends);
        fake->late = 0;
        for (int i = 0; i < 3; i++) assert_int_equal(ends[i], i == 1 ? DW_END_FAULT : DW_END_LENGTH);
        for (int i = 0; i < 3; i += 2) assert_memory_equal(made[i], whole[i], sizeof made[i]);
    }
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* The ids of two long texts, the second of which comes while the first is being continued; -1 behind the last. */
enum { LONG = 2200, LONG_MADE = 16 };
static void serve_long(dw_context *context, const char *device, int64_t made[2][LONG_MADE]) {
    static int64_t ids[2][LONG];
    dw_event events[64];
    dw_service *service;
    uint64_t requests[2] = {0, 0};
    dw_model *model = open_model(context, SHORT, device);
    assert_ok(context, dw_service_create(context, model, &(dw_service_options){.rows = 2, .run_tokens = 4096, .context = LONG + 64, .page_tokens = 64, .cache_bytes = 1 << 22, .flags = DW_SERVICE_NO_SHARING}, &service));
    for (int i = 0; i < 2 * LONG; i++) ids[i / LONG][i % LONG] = (int64_t)(num_random(9, (uint64_t)i) % (VOCABULARY - 1));
    for (int i = 0; i < 2 * LONG_MADE; i++) made[i / LONG_MADE][i % LONG_MADE] = -1;
    assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = LONG, .ids = ids[0], .tokens = LONG_MADE}, &requests[0]));
    for (int busy = 1, is_second = 0; busy;) {
        assert_ok(context, dw_service_step(context, service, &busy));
        const int count = dw_service_poll(service, events, COUNT_OF(events));
        for (int e = 0; e < count; e++) {
            assert_null(events[e].message);
            if (events[e].id >= 0) made[events[e].request == requests[1]][events[e].index] = events[e].id;
        }
        if (is_second || made[0][3] < 0) continue;
        assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = LONG, .ids = ids[1], .tokens = 4}, &requests[1]));
        is_second = busy = 1;
    }
    dw_service_destroy(service);
    dw_model_destroy(model);
}

/* So many ids lie outside of what graphs carry: with an id that the host does not know among them a run's inputs and its result are copied, though its graph carried the prompt's before. */
static void a_graph_that_has_carried_may_have_to_be_fed_by_copies(void **state) {
    (void)state;
    static int64_t here[2][LONG_MADE], there[2][LONG_MADE];
    dw_context *context = context_of();
    serve_long(context, NULL, here);
    serve_long(context, DEVICE_NAME, there);
    assert_memory_equal(there, here, sizeof here);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* What came of a prompt of 200 tokens among texts that make tokens: the texts' ids, how the prompt ended, and from there where it came to its first token, or its end, the runs and the first text's tokens. */
enum { OTHERS_MOST = 36, OTHERS_MADE = 40, PROMPT = 200 };
typedef struct crowd { int64_t ids[OTHERS_MOST + 1][OTHERS_MADE], runs, tokens; dw_end end; } crowd;

/* fault: its place of an id that is a kernel's fault; -1: none. */
static void serve_crowd(dw_context *context, dw_model *model, int others, int64_t run_tokens, int fault, crowd *made) {
    static dw_event events[512];
    const dw_service_options options = {.rows = others + 1, .run_tokens = run_tokens, .context = 256, .page_tokens = 16, .cache_bytes = 1 << 20, .flags = DW_SERVICE_NO_SHARING};
    int64_t prompt[PROMPT], counts[OTHERS_MOST + 1] = {0}, runs = 0, tokens = 0;
    uint64_t requests[OTHERS_MOST + 1] = {0};
    dw_service_facts facts;
    dw_service *service;
    bool is_over = false;
    *made = (crowd){.end = DW_END_NONE};
    for (int k = 0; k < PROMPT; k++) prompt[k] = (int64_t)(num_random(3, (uint64_t)k) % (VOCABULARY - 1));
    assert_ok(context, dw_service_create(context, model, &options, &service));
    for (int i = 0; i < others; i++) assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 2 + i % 3, .ids = prompt, .tokens = OTHERS_MADE}, &requests[i]));
    if (fault >= 0) prompt[fault] = VOCABULARY - 1;
    for (int busy = 1; busy;) {
        assert_ok(context, dw_service_step(context, service, &busy));
        const int count = dw_service_poll(service, events, COUNT_OF(events));
        dw_service_measure(service, &facts);
        for (int e = 0; e < count; e++) {
            int i = 0;
            while (requests[i] != events[e].request) i++;
            if (events[e].id >= 0) made->ids[i][counts[i]++] = events[e].id;
            if (events[e].end != DW_END_NONE && i < others) assert_int_equal(events[e].end, DW_END_LENGTH);
            if (events[e].end != DW_END_NONE && i == others) made->end = events[e].end;
        }
        if (!is_over && (counts[others] > 0 || made->end != DW_END_NONE)) is_over = true, made->runs = facts.runs - runs, made->tokens = counts[0] - tokens;
        if (counts[others - 1] == 0 || requests[others] != 0) continue;
        runs = facts.runs, tokens = counts[0];
        assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = PROMPT, .ids = prompt, .tokens = 3}, &requests[others]));
    }
    assert_int_equal(facts.faults, fault >= 0);
    assert_int_equal(facts.pages_used, 0);
    dw_service_destroy(service);
}

/* Of 64 tokens of a run a CPU gives the prompt 61. A GPU's texts have every other run, and the prompt's runs have 48 tokens, but for the rest of 8, which is few. Where decoding texts leave a token of each run,
 * a prompt has runs of its own nevertheless: of 27 of 37 tokens. */
static void prompts_and_tokens_have_turns_on_a_gpu(void **state) {
    (void)state;
    static crowd here, there;
    dw_context *context = context_of();
    dw_model *cpu = open_model(context, ALL, NULL), *gpu = open_model(context, ALL, DEVICE_NAME);
    serve_crowd(context, cpu, 3, 64, -1, &here);
    serve_crowd(context, gpu, 3, 64, -1, &there);
    assert_int_equal(here.runs, 4);
    assert_in_range(there.runs, 9, 11);           /* two more are under way */
    assert_in_range(there.tokens, 4, 7);
    assert_memory_equal(there.ids, here.ids, sizeof here.ids);
    serve_crowd(context, cpu, OTHERS_MOST, OTHERS_MOST + 1, -1, &here);
    serve_crowd(context, gpu, OTHERS_MOST, OTHERS_MOST + 1, -1, &there);
    assert_in_range(there.runs, 14, 18);
    assert_memory_equal(there.ids, here.ids, sizeof here.ids);
    dw_model_destroy(gpu);
    dw_model_destroy(cpu);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* The run that failed is repeated, not the one that was planned behind it, which has none of the prompt: so its text ends at once. */
static void a_fault_in_a_prompts_turn_ends_its_text(void **state) {
    (void)state;
    static crowd whole, with_fault;
    dw_context *context = context_of();
    dw_model *model = open_model(context, SHORT, DEVICE_NAME);
    for (unsigned seed = 0; seed <= 2; seed++) {
        fake->late = seed;
        serve_crowd(context, model, 3, 64, -1, &whole);
        serve_crowd(context, model, 3, 64, 10, &with_fault);
        fake->late = 0;
        assert_int_equal(whole.end, DW_END_LENGTH);
        assert_int_equal(with_fault.end, DW_END_FAULT);
        assert_in_range(with_fault.runs, 0, 8);   /* its turn comes, fails, and what was under way goes one by one */
        assert_memory_equal(with_fault.ids, whole.ids, 3 * sizeof *whole.ids);
    }
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* What prompts have of a run is a size that is bound, however many sizes there are. */
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
        if (dw_service_create(context, model, &(dw_service_options){.rows = 2, .run_tokens = 3, .context = 16, .page_tokens = 16, .cache_bytes = 1 << 16, .flags = DW_SERVICE_TIMES_DEVICE}, &service) != DW_OK) {
            refused++;
        } else {
            for (int i = 0; i < 2; i++) assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 3, .ids = ids, .tokens = 4, .temperature = i, .presence = 1 - i, .top_logprobs = i}, &request));
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

/* A context that is lost ends all texts with what the driver says, whichever call is the first to fail, and those that are asked for later. */
static void a_lost_context_ends_all_texts_with_its_words(void **state) {
    (void)state;
    dw_context *context = context_of();
    const int64_t ids[] = {1, 2, 3};
    int behind = 0;
    for (bool any = true; any;) {
        dw_model *model = open_model(context, ALL, DEVICE_NAME);
        dw_event events[16];
        dw_service *service;
        uint64_t request;
        int busy = 1, ended = 0, asked = 2;
        any = false;
        assert_ok(context, dw_service_create(context, model, &(dw_service_options){.rows = 2, .run_tokens = 3, .context = 16, .page_tokens = 16, .cache_bytes = 1 << 16, .flags = behind % 2 ? DW_SERVICE_TIMES_DEVICE : 0}, &service));
        for (int i = 0; i < 2; i++) assert_ok(context, dw_service_submit(context, service, &(dw_request){.count = 3, .ids = ids, .tokens = 4, .temperature = i, .presence = 1 - i, .top_logprobs = i}, &request));
        begin_log();
        fake->lost_at = ++behind;
        for (int steps = 0; ended < asked && steps < 200; steps++) {
            if (dw_service_step(context, service, &busy) != DW_OK) fail_msg("call %d: %s", behind, dw_context_error(context));
            for (int i = dw_service_poll(service, events, COUNT_OF(events)); i-- > 0;) {
                ended += events[i].end != DW_END_NONE;
                if (events[i].end != DW_END_FAULT) continue;
                assert_non_null(strstr(events[i].message, "CUDA_ERROR_UNKNOWN"));
                any = true;
            }
            if (ended == 2 && asked == 2 && any && dw_service_submit(context, service, &(dw_request){.count = 3, .ids = ids, .tokens = 2}, &request) == DW_OK) asked++;
        }
        assert_int_equal(ended, asked);
        dw_service_destroy(service);
        dw_model_destroy(model);
        fake->lost_at = 0;
        fake->live = 0;               /* what a lost context had is not given back */
    }
    assert_true(behind > 20);
    dw_context_destroy(context);
}

/* What the device worked by the facts, in the milliseconds of the stand-in's clock; runs and launches of kernels. */
typedef struct work { double ms; int64_t runs; int launches, marks; } work;

static work work_of(dw_context *context, dw_model *model, wish wish, unsigned flags) {
    static dw_event events[256];
    uint64_t requests[SERVED];
    dw_service *service;
    dw_service_facts facts;
    const dw_service_options options = {.rows = 5, .run_tokens = 40, .context = 72, .page_tokens = 16, .cache_bytes = 1 << 20, .flags = flags};
    assert_ok(context, dw_service_create(context, model, &options, &service));
    begin_log();
    submit_served(context, service, wish, requests);
    for (int busy = 1; busy;) {
        assert_ok(context, dw_service_step(context, service, &busy));
        for (int i = dw_service_poll(service, events, COUNT_OF(events)); i-- > 0;) assert_null(events[i].message);
    }
    dw_service_measure(service, &facts);
    const work done = {facts.device_s * 1e3, facts.runs, fake->launches, count_calls("EventRecord")};
    dw_service_destroy(service);
    return done;
}

/* All that kernels take, and nothing else: neither what the host does between runs, nor what two runs have in common where one is started before the other has ended. Where a graph's ends are copied, copies take no time here. */
static void a_service_says_how_long_the_device_worked(void **state) {
    static const wish wishes[] = {GREEDY, DRAWS, MASKS};
    (void)state;
    dw_context *context = context_of();
    dw_model *model = open_model(context, ALL, DEVICE_NAME);
    fake->kernel_ms = 0.5;
    fake->event_ms = 0.125;
    for (unsigned seed = 0; seed < 12; seed++) {
        const wish wish = wishes[seed % COUNT_OF(wishes)];
        fake->late = seed < 3 ? 0 : seed;
        fake->apart = seed >= 9;
        const work timed = work_of(context, model, wish, DW_SERVICE_TIMES_DEVICE | (seed % 2 ? DW_SERVICE_NO_LOOKAHEAD : 0));
        assert_true(fabs(timed.ms - (0.5 * timed.launches + 0.125 * (double)timed.runs)) < 1e-6 * timed.ms);   /* a run's last event is a part of it */
        assert_int_equal(timed.marks, 2 * timed.runs);
        const work untimed = work_of(context, model, wish, seed % 2 ? DW_SERVICE_NO_LOOKAHEAD : 0);
        assert_true(untimed.ms == 0);
        assert_in_range(untimed.marks, 0, untimed.runs);
        fake->late = 0;
    }
    fake->kernel_ms = fake->event_ms = 0;
    fake->apart = 0;
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* Of a GPU whose memory the largest run alone takes, other rows or caches would not help. */
static void runs_without_room_are_refused(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_service *service;
    const size_t before = fake->memory_bytes;
    dw_model *model = open_model(context, SHORT, DEVICE_NAME);
    fake->memory_bytes = 20000;
    test_assert_fails(context, dw_service_create(context, model, &(dw_service_options){.rows = 2, .run_tokens = 4096, .context = 4096, .page_tokens = 64, .cache_bytes = 1 << 16}, &service), DW_LIMIT, "take fewer tokens of a run");
    fake->memory_bytes = before;
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_graph_is_made_while_texts_wait),
        cmocka_unit_test(work_may_be_done_late), cmocka_unit_test(a_graph_that_has_carried_may_have_to_be_fed_by_copies),
        cmocka_unit_test(a_mask_waits_for_the_id_in_front_of_it),
        cmocka_unit_test(penalties_and_biases_are_the_devices), cmocka_unit_test(counts_without_room_end_their_text),
        cmocka_unit_test(a_fault_of_a_kernel_ends_its_own_text),
        cmocka_unit_test(prompts_and_tokens_have_turns_on_a_gpu),
        cmocka_unit_test(prompts_have_a_size_of_their_own),
        cmocka_unit_test(a_fault_in_a_prompts_turn_ends_its_text),
        cmocka_unit_test(any_call_of_the_driver_may_fail_in_a_service), cmocka_unit_test(a_service_says_how_long_the_device_worked),
        cmocka_unit_test(a_lost_context_ends_all_texts_with_its_words), cmocka_unit_test(runs_without_room_are_refused),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
