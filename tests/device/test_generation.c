/* Generation on a GPU, here the stand-in for the driver: what is copied in a step, how many tokens go into a run, and that all texts are those of the CPU. */
#include "support/support.h"

#include <string.h>

#include "device/text_graphs.h"
#include "engine/engine.h"

static const char WIDE[] = "graph g\n  symbol b 1..64\n  symbol s 1..16384\n  input ids i64[b,s]\n  " TABLE "\n" HEADS
                           "  %5 = attention %3, %4, %4 {scale=1.5,causal=true,window=1500}\n" LOGITS;
/* No step is possible: each token takes a run of the whole graph. */
static const char MIXED[] = "graph g\n  symbol b 1..64\n  symbol s 1..1000\n  input ids i64[b,s]\n  " TABLE
                            "\n  %1 = take t, ids {axis=0}\n  %2 = mean %1 {axes=[1],keep=true}\n  %3 = add %1, %2\n  %4 = sin %3\n  %5 = matmul %4, t {bt=true}\n"
                            "  output logits %5\n  output inner %4\n";
/* Reads what an encoder would give, computed once for each text. */
static const char HEARD[] = "graph g\n  symbol b 1..4\n  symbol e 1..2048\n  symbol s 1..64\n  input sound f32[b,e,4]\n  input ids i64[b,s]\n  " TABLE
                            "\n  %1 = sin sound\n  %2 = reshape %1 {shape=[b,e,2,2]}\n  %3 = transpose %2 {order=[0,2,1,3]}\n  %4 = cos sound\n"
                            "  %5 = reshape %4 {shape=[b,e,2,2]}\n  %6 = transpose %5 {order=[0,2,1,3]}\n  %7 = take t, ids {axis=0}\n  %8 = reshape %7 {shape=[b,s,2,2]}\n"
                            "  %9 = transpose %8 {order=[0,2,1,3]}\n  %10 = attention %9, %9, %9 {scale=0.5,causal=true}\n  %11 = attention %10, %3, %6 {scale=2}\n"
                            "  %12 = transpose %11 {order=[0,2,1,3]}\n  %13 = reshape %12 {shape=[b,s,4]}\n  %14 = matmul %13, t {bt=true}\n  output logits %14\n";
enum { TEXTS = 16, MADE = 5 };

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

/* Its graph carries what goes either way, by a launch at each end, which are patched as runs have pinned memory in turn; ids that are drawn come with their logarithms by another one. */
static void a_step_of_generation_takes_no_copies(void **state) {
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
            assert_int_equal(count_calls("MemcpyHtoDAsync"), 0);
            assert_int_equal(count_calls("MemcpyDtoHAsync"), 0);
            assert_int_equal(count_calls("LaunchKernelEx"), drawn ? 2 * MADE : 0);
            assert_in_range(count_calls("GraphExecKernelNodeSetParams"), MADE - 1, 2 * MADE);
            assert_int_equal(count_calls("StreamSynchronize"), 0);
            assert_int_equal(count_calls("EventSynchronize"), MADE);
            assert_int_equal(count_calls("MemcpyDtoDAsync"), 0);
            assert_int_equal(count_calls("GraphInstantiate"), 0);
        }
        dw_session_destroy(session);
        dw_model_destroy(model);
    }
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* The ids are the same. */
static void where_kernels_do_not_reach_the_host_a_step_takes_one_copy_each_way(void **state) {
    (void)state;
    dw_context *context = context_of();
    int64_t carried[2][2 * MADE], ids[2 * MADE];
    for (int apart = 0; apart < 2; apart++) {
        fake->apart = apart;
        dw_model *model = open_model(context, ALL, DEVICE_NAME);
        dw_session *session = open_session(context, model, 48, 2, 0);
        for (int drawn = 0; drawn < 2; drawn++) {
            begin_log();
            generate(context, session, 0, 2, (int64_t[]){3, 9}, drawn, apart ? ids : carried[drawn]);
            if (!apart) continue;
            assert_memory_equal(ids, carried[drawn], sizeof ids);
            assert_int_equal(count_calls("MemcpyHtoDAsync"), drawn ? 2 * MADE : MADE);   /* draws have settings, */
            assert_int_equal(count_calls("MemcpyDtoHAsync"), drawn ? 2 * MADE : MADE);   /* and logarithms of probabilities */
            assert_int_equal(count_calls("LaunchKernelEx"), drawn ? MADE : 0);
            assert_int_equal(count_calls("MemcpyDtoDAsync"), MADE - 1);   /* ids that the host does not know when the run starts */
        }
        dw_session_destroy(session);
        dw_model_destroy(model);
    }
    fake->apart = 0;
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
        /* each of the five: one copy for the encoder, at most two for what it gave */
        assert_in_range(count_calls("MemcpyHtoDAsync"), 5, 5 * 3);
        /* and on the device one for each of both tensors, for both heads together, of the three that are shorter than the longest */
        const int whole = count_calls("MemcpyDtoDAsync");
        assert_int_equal(count_calls("Memcpy3DAsync"), 3 * 2);
        /* where the driver refuses their pitches, one for each head */
        fake->refuses_pitches = 1;
        begin_log();
        generate_heard(context, session, ids);
        assert_memory_equal(ids, cpu_ids, sizeof ids);
        assert_int_equal(count_calls("MemcpyDtoDAsync"), whole + 3 * 2 * 2);
        fake->refuses_pitches = 0;
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
        cmocka_unit_test(a_step_of_generation_takes_no_copies),
        cmocka_unit_test(where_kernels_do_not_reach_the_host_a_step_takes_one_copy_each_way),
        cmocka_unit_test(what_is_given_comes_once),
        cmocka_unit_test(a_run_of_all_tokens_brings_one_row),
        cmocka_unit_test(prompts_share_runs),
        cmocka_unit_test(texts_that_end_one_after_another_need_few_graphs),
        cmocka_unit_test(runs_are_as_long_as_the_memory_allows),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
