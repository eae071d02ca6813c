/* Generation of an encoder-decoder: what the encoder gives is computed once, and the tokens are those of whole runs. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "support/session.h"

static const char pair[] =
    "graph pair\n"
    "  symbol b 1..4\n"
    "  symbol e 1..16\n"
    "  symbol s 1..32\n"
    "  input sound f32[b,e,4]\n"
    "  input ids i64[b,s]\n"
    "  const const.0 f32[7,4] = -0.79, -1.19, -0.31, -1.04, -1.30, -0.30, 1.25, 0.90, 0.80, -0.83, 0.11, -0.67, -0.98, -1.18, "
    "-0.86, 1.28, 0.99, 0.92, 0.90, -0.92, -0.57, 0.38, 0.70, 1.06, 1.14, -1.24, 0.32, 0.52\n"
    "  const const.1 f32[4,4] = 0.02, -0.97, -0.08, -1.23, 1.30, 1.10, 0.14, -0.60, "
    "1.23, 0.22, 1.15, 1.04, 0.03, -0.26, 0.30, -0.21\n"
    "  const const.2 f32[4,4] = -1.02, -0.58, 0.94, -1.37, -1.36, 0.38, -0.66, 0.10, "
    "-0.09, -0.47, 1.49, -0.91, -0.26, -0.89, 0.40, -0.67\n"
    "  %1 = matmul sound, const.1 {bt=true}\n"
    "  %2 = reshape %1 {shape=[b,e,2,2]}\n"
    "  %3 = transpose %2 {order=[0,2,1,3]}\n"
    "  %4 = matmul sound, const.2 {bt=true}\n"
    "  %5 = reshape %4 {shape=[b,e,2,2]}\n"
    "  %6 = transpose %5 {order=[0,2,1,3]}\n"
    "  %7 = take const.0, ids {axis=0}\n"
    "  %8 = reshape %7 {shape=[b,s,2,2]}\n"
    "  %9 = transpose %8 {order=[0,2,1,3]}\n"
    "  %10 = attention %9, %9, %9 {scale=0.5,causal=true}\n"
    "  %11 = attention %10, %3, %6 {scale=0.5}\n"
    "  %12 = transpose %11 {order=[0,2,1,3]}\n"
    "  %13 = reshape %12 {shape=[b,s,4]}\n"
    "  %14 = matmul %13, const.0 {bt=true}\n"
    "  output logits %14\n"
    "  output heard %6\n";

enum { SOUND = 9, TOKENS = 10, VOCABULARY = 7 };

static dw_named_tensor sound_of(float *data, int64_t rows, int64_t length) {
    dw_named_tensor sound = {.name = "sound"};
    for (int64_t i = 0; i < rows * length * 4; i++) data[i] = num_random_normal(7, (uint64_t)(i + length));
    assert_true(op_tensor_init(&sound.tensor, DW_FORMAT_f32, DW_SCALE_plain, 3, (const int64_t[]){rows, length, 4}, data));
    return sound;
}

/* The next token by a run of the whole graph. */
static int64_t next_token(dw_context *context, dw_session *session, const dw_named_tensor *sound, int64_t *sequence, int64_t length) {
    float logits[32 * VOCABULARY], heard[SOUND * 4];
    dw_named_tensor inputs[2] = {*sound, {.name = "ids"}}, outputs[2];
    assert_true(op_tensor_init(&inputs[1].tensor, DW_FORMAT_i64, DW_SCALE_plain, 2, (const int64_t[]){1, length}, sequence));
    assert_ok(context, dw_session_shapes(session, 2, inputs, outputs));
    outputs[0].tensor.data = logits;
    outputs[1].tensor.data = heard;
    assert_ok(context, dw_session_run(session, 2, inputs, 2, outputs));
    const float *last = logits + (length - 1) * VOCABULARY;
    int64_t best = 0;
    for (int64_t i = 1; i < VOCABULARY; i++) best = last[i] > last[best] ? i : best;
    return best;
}

static void assert_generates_as_runs(dw_context *context, dw_session *session, int64_t length, int64_t prompt_count) {
    float data[SOUND * 4];
    int64_t sequence[32] = {3, 1, 5, 2}, ids[TOKENS], made;
    const dw_named_tensor sound = sound_of(data, 1, length);
    const dw_generate_options options = {.tokens = TOKENS, .inputs = &sound, .input_count = 1};
    assert_ok(context, dw_session_generate(session, prompt_count, sequence, &options, ids, &made, NULL));
    assert_int_equal(made, TOKENS);
    for (int64_t i = 0; i < TOKENS; i++) {
        sequence[prompt_count + i] = next_token(context, session, &sound, sequence, prompt_count + i);
        assert_int_equal(ids[i], sequence[prompt_count + i]);
    }
}

/* The graph by way of a file. */
static dw_model *open_graph_on(dw_context *context, const char *device, const char *graph, unsigned flags) {
    char path[512];
    dw_model *model;
    snprintf(path, sizeof path, "%s/tests/given-%ld.graph", TEST_BUILD_DIR, (long)getpid());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(graph, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_ok(context, dw_model_open(context, path, &(dw_model_options){.flags = flags, .device = device}, &model));
    assert_int_equal(unlink(path), 0);
    return model;
}

static dw_model *open_graph(dw_context *context, const char *graph, unsigned flags) { return open_graph_on(context, NULL, graph, flags); }

static dw_model *open_pair(dw_context *context) { return open_graph(context, pair, DW_MODEL_GENERATE); }

static dw_session *open_session(dw_context *context, const dw_model *model) {
    dw_session *session;
    assert_true(dw_model_can_generate(model, NULL));
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = "b=1,e=9,s=16", .max_tokens = 16}, &session));
    return session;
}

static void tokens_are_those_of_whole_runs(void **state) {
    dw_context *context = *state;
    const dw_model_options options = {.flags = DW_MODEL_GENERATE};
    dw_model *model = open_pair(context), *opened;
    char path[512];
    snprintf(path, sizeof path, "%s/tests/given-%ld.dw", TEST_BUILD_DIR, (long)getpid());
    assert_ok(context, dw_model_save(model, path));
    assert_ok(context, dw_model_open(context, path, &options, &opened));
    assert_int_equal(unlink(path), 0);
    dw_session *sessions[] = {open_session(context, model), open_session(context, opened)};
    for (size_t i = 0; i < COUNT_OF(sessions); i++) {
        assert_generates_as_runs(context, sessions[i], SOUND, 3);
        assert_generates_as_runs(context, sessions[i], 2, 1);
        assert_generates_as_runs(context, sessions[i], 5, 4);
        dw_session_destroy(sessions[i]);
    }
    dw_model_destroy(opened);
    dw_model_destroy(model);
}

/* pair with a decoder whose tokens see those after them. */
static char *without_step(void) {
    static char graph[sizeof pair];
    memcpy(graph, pair, sizeof pair);
    char *causal = strstr(graph, ",causal=true");
    assert_non_null(causal);
    memmove(causal, causal + strlen(",causal=true"), strlen(causal + strlen(",causal=true")) + 1);
    return graph;
}

/* Without a cached step whole runs on the same inputs make the tokens. */
static void what_has_no_step_recomputes(void **state) {
    dw_context *context = *state;
    const char *reason;
    const unsigned flags[] = {DW_MODEL_GENERATE, DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY};
    for (int i = 0; i < 2; i++) {
        dw_model *model = open_graph(context, without_step(), flags[i]);
        dw_session *session;
        assert_false(dw_model_can_generate(model, &reason));
        assert_non_null(strstr(reason, "sees those after it"));
        assert_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = "b=1,e=9,s=16", .max_tokens = 16}, &session));
        assert_generates_as_runs(context, session, SOUND, 3);
        assert_generates_as_runs(context, session, 2, 1);
        float data[2 * 16 * 4];
        int64_t prompt[1] = {1}, ids[2], made;
        dw_generate_options options = {.tokens = 2};
        test_assert_fails(context, dw_session_generate(session, 1, prompt, &options, ids, &made, NULL), DW_MISMATCH, "sound is missing");
        dw_named_tensor sound = sound_of(data, 1, 16);
        options.inputs = &sound;
        options.input_count = 1;
        test_assert_fails(context, dw_session_generate(session, 1, prompt, &options, ids, &made, NULL), DW_LIMIT, "e=16, this session generates with at most 9");
        sound = sound_of(data, 2, 4);
        test_assert_fails(context, dw_session_generate(session, 1, prompt, &options, ids, &made, NULL), DW_LIMIT, "at most 1, one prompt at a time");
        char sizes[64];
        sound = sound_of(data, 1, 5);
        if (i == 1) assert_ok(context, dw_model_sizes(model, 1, &sound, sizes, sizeof sizes));
        if (i == 1) assert_non_null(strstr(sizes, "e=5"));
        dw_session_destroy(session);
        dw_model_destroy(model);
    }
}

/* Callers give the encoder's inputs and the prompt, and are told of nothing else. */
static void inputs_of_the_step_are_not_told(void **state) {
    dw_context *context = *state;
    dw_model *model = open_graph(context, pair, DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY);
    const char *shape;
    assert_int_equal(dw_model_input_count(model), 2);
    assert_string_equal(dw_model_input(model, 0, &shape), "sound");
    assert_string_equal(shape, "f32[b,e,4]");
    assert_string_equal(dw_model_input(model, 1, &shape), "ids");
    assert_null(dw_model_input(model, 2, NULL));
    dw_model_destroy(model);
}

/* Prompts with sounds of their own, of other lengths, together, twice, and alone: the second time rows hold what other sounds have left behind shorter ones. */
static void hear_their_own(dw_context *context, const char *device, int64_t first[][TOKENS]) {
    enum { COUNT = 3 };
    dw_model *model = open_graph_on(context, device, pair, DW_MODEL_GENERATE);
    dw_session *session;
    const int64_t lengths[2][COUNT] = {{9, 2, 5}, {3, 9, 1}}, prompt[] = {3, 1, 5, 2};
    float data[COUNT][SOUND * 4];
    int64_t alone[TOKENS], made;
    dw_named_tensor sounds[COUNT];
    dw_prompt prompts[COUNT];
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = "b=1,e=9,s=16", .max_tokens = 16, .rows = COUNT, .chunk = 4}, &session));
    for (int turn = 0; turn < 2; turn++) {
        int64_t(*ids)[TOKENS] = first + turn * COUNT;
        for (int i = 0; i < COUNT; i++) {
            sounds[i] = sound_of(data[i], 1, lengths[turn][i]);
            prompts[i] = (dw_prompt){.count = 1 + i, .ids = prompt, .inputs = &sounds[i], .input_count = 1, .made_ids = ids[i]};
        }
        const dw_generate_options options = {.tokens = TOKENS};
        assert_ok(context, dw_session_generate_batch(session, COUNT, prompts, &options, NULL));
        for (int i = 0; i < COUNT; i++) {
            const dw_generate_options own = {.tokens = TOKENS, .inputs = &sounds[i], .input_count = 1};
            assert_ok(context, dw_session_generate(session, 1 + i, prompt, &own, alone, &made, NULL));
            assert_int_equal(prompts[i].made, made);
            assert_memory_equal(alone, ids[i], sizeof alone);
        }
    }
    for (size_t i = 0; device != NULL && i < session->prelude.program->plan->graph->output_count; i++) assert_null(session->prelude.outputs[i]);   /* the host sees none of it */
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void each_prompt_hears_its_own(void **state) {
    int64_t here[6][TOKENS], there[6][TOKENS];
    hear_their_own(*state, NULL, here);
    if (kernel_lacks_images() != NULL) skip();
    hear_their_own(*state, "sim:h200", there);
    assert_memory_equal(here, there, sizeof here);
}

/* Encoder and decoder of one text at a time, whose results have no row for each. */
static void one_text_hears_on_a_device(void **state) {
    if (kernel_lacks_images() != NULL) skip();
    dw_context *context = *state;
    static const char *const devices[] = {NULL, "sim:h200"};
    int64_t ids[2][2][TOKENS], made;
    for (int i = 0; i < 2; i++) {
        char graph[sizeof pair];
        memcpy(graph, pair, sizeof pair);
        memcpy(strstr(graph, "symbol b 1..4"), "symbol b 1..1", strlen("symbol b 1..1"));
        dw_model *model = open_graph_on(context, devices[i], graph, DW_MODEL_GENERATE);
        dw_session *session = open_session(context, model);
        for (int turn = 0; turn < 2; turn++) {
            float data[SOUND * 4];
            const dw_named_tensor sound = sound_of(data, 1, turn == 0 ? SOUND : 4);
            const int64_t prompt[] = {3, 1};
            assert_ok(context, dw_session_generate(session, 2, prompt, &(dw_generate_options){.tokens = TOKENS, .inputs = &sound, .input_count = 1}, ids[i][turn], &made, NULL));
            assert_int_equal(made, TOKENS);
        }
        dw_session_destroy(session);
        dw_model_destroy(model);
    }
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
}

static void inputs_that_do_not_fit_are_refused(void **state) {
    dw_context *context = *state;
    dw_model *model = open_pair(context);
    dw_session *session = open_session(context, model);
    float data[2 * 16 * 4];
    int64_t prompt[2] = {1, 2}, ids[2], made;
    test_assert_fails(context, dw_session_generate(session, 2, prompt, &(dw_generate_options){.tokens = 2}, ids, &made, NULL), DW_MISMATCH, "sound is missing");
    dw_named_tensor sound = sound_of(data, 1, 16);
    const dw_generate_options options = {.tokens = 2, .inputs = &sound, .input_count = 1};
    test_assert_fails(context, dw_session_generate(session, 2, prompt, &options, ids, &made, NULL), DW_LIMIT, "e=16, this session generates with at most 9");
    sound = sound_of(data, 2, 4);
    test_assert_fails(context, dw_session_generate(session, 2, prompt, &options, ids, &made, NULL), DW_LIMIT, "b=2, this session generates with at most 1");
    sound = sound_of(data, 1, 4);
    sound.name = "noise";
    test_assert_fails(context, dw_session_generate(session, 2, prompt, &options, ids, &made, NULL), DW_MISMATCH, "noise is no input");
    sound.name = "sound";
    assert_ok(context, dw_session_generate(session, 2, prompt, &options, ids, &made, NULL));
    assert_int_equal(made, 2);
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static int setup(void **state) { return dw_context_create(&(dw_context_options){.threads = 2}, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tokens_are_those_of_whole_runs, setup, teardown),
        cmocka_unit_test_setup_teardown(what_has_no_step_recomputes, setup, teardown),
        cmocka_unit_test_setup_teardown(inputs_of_the_step_are_not_told, setup, teardown),
        cmocka_unit_test_setup_teardown(each_prompt_hears_its_own, setup, teardown),
        cmocka_unit_test_setup_teardown(one_text_hears_on_a_device, setup, teardown),
        cmocka_unit_test_setup_teardown(inputs_that_do_not_fit_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
