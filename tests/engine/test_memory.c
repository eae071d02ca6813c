/* What sessions promise beside values, on the carried model: no allocation in runs, the same bits at any number of threads, sessions that do
 * not see each other, states that reset, and room that is reserved for all sizes. */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/session.h"

static const char CARRIED[] = TEST_SOURCE_DIR "/models/kjv.pt2";
static const char TEXT[] = "In the beginning God created the heaven and the earth. And the earth was without form, and void;";

static dw_model *open_carried(dw_context *context, unsigned flags) {
    dw_model *model;
    assert_ok(context, dw_model_open(context, CARRIED, &(dw_model_options){.flags = flags}, &model));
    return model;
}

/* Rows of TEXT from different places. */
static void create_ids(run_io *io, const dw_model *model, int64_t rows, int64_t tokens) {
    *io = (run_io){.input_count = 1};
    io->inputs[0].name = dw_model_input(model, 0, NULL);
    int64_t *ids = malloc((size_t)(rows * tokens + 1) * sizeof *ids);
    assert_non_null(ids);
    assert_true(op_tensor_init(&io->inputs[0].tensor, DW_FORMAT_i64, DW_SCALE_plain, 2, (int64_t[]){rows, tokens}, ids));
    for (int64_t i = 0; i < rows * tokens; i++) ids[i] = TEXT[(i + 7 * (i / tokens)) % (int64_t)(sizeof TEXT - 1)];
}

static void run(dw_context *context, dw_session *session, run_io *io) {
    assert_ok(context, dw_session_run(session, io->input_count, io->inputs, io->output_count, io->outputs));
}

static void assert_same(const run_io *a, const run_io *b) {
    for (int i = 0; i < a->output_count; i++)
        if (!tensor_is_same(&a->outputs[i].tensor, &b->outputs[i].tensor)) fail_msg("output %s differs", a->outputs[i].name);
}

static void runs_have_the_same_bits_at_any_number_of_threads(void **state) {
    (void)state;
    run_io first;
    for (int threads = 1; threads <= 3; threads++) {
        dw_context *context;
        run_io io;
        assert_int_equal(dw_context_create(&(dw_context_options){.threads = threads}, &context), DW_OK);
        dw_model *model = open_carried(context, 0);
        dw_session *session = session_of(context, model, "b=2,s=37");
        for (int turn = 0; turn < 2; turn++) {
            create_ids(&io, model, 2, 37);
            io.inputs[0].name = "input_ids";   /* outlives the model */
            run_io_add_outputs(&io, session);
            run(context, session, &io);
            if (threads == 1 && turn == 0) first = io;
            else assert_same(&first, &io);
            if (threads != 1 || turn != 0) run_io_free(&io);
        }
        for (int i = 0; i < first.output_count; i++) first.outputs[i].name = "logits";
        dw_session_destroy(session);
        dw_model_destroy(model);
        dw_context_destroy(context);
    }
    run_io_free(&first);
}

static void runs_and_generation_allocate_nothing(void **state) {
    (void)state;
    enum { TOKENS = 12 };
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 2);
    dw_model *model = open_carried(context, DW_MODEL_GENERATE);
    dw_session *session;
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = "b=2,s=24", .max_tokens = 32}, &session));
    run_io io[5];
    for (int i = 0; i < 5; i++) {
        create_ids(&io[i], model, 1 + i % 2, 24 - 5 * i);
        run_io_add_outputs(&io[i], session);
    }
    int64_t ids[TOKENS], made, prompt[20];
    for (int i = 0; i < 20; i++) prompt[i] = TEXT[i];
    size_t before = memory.calls;
    for (int i = 0; i < 10; i++) run(context, session, &io[i % 5]);
    assert_ok(context, dw_session_generate(session, 20, prompt, &(dw_generate_options){.tokens = TOKENS}, ids, &made, NULL));
    assert_ok(context, dw_session_generate(session, 3, prompt, &(dw_generate_options){.tokens = TOKENS, .temperature = 1, .top_k = 5}, ids, &made, NULL));
    assert_ok(context, dw_session_reset(session));
    assert_int_equal(memory.calls - before, 0);
    for (int i = 0; i < 5; i++) run_io_free(&io[i]);
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
    assert_int_equal(memory.live_count, 0);
}

/* A thousand runs of random batch and sequence: far more sizes than a session keeps bindings of, none allocates, and each gives the bits of a session that
 * has run nothing else. */
static void a_thousand_runs_of_random_sizes_are_right_and_allocate_nothing(void **state) {
    (void)state;
    enum { ROWS = 4, TOKENS = 12, RUNS = 1000 };
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 2);
    dw_model *model = open_carried(context, 0);
    static run_io expected[ROWS][TOKENS], io[ROWS][TOKENS];
    for (int64_t rows = 1; rows <= ROWS; rows++)
        for (int64_t tokens = 1; tokens <= TOKENS; tokens++) {
            char dims[64];
            snprintf(dims, sizeof dims, "b=%d,s=%d", (int)rows, (int)tokens);
            dw_session *alone = session_of(context, model, dims);
            create_ids(&expected[rows - 1][tokens - 1], model, rows, tokens);
            create_ids(&io[rows - 1][tokens - 1], model, rows, tokens);
            run_io_add_outputs(&expected[rows - 1][tokens - 1], alone);
            run_io_add_outputs(&io[rows - 1][tokens - 1], alone);
            run(context, alone, &expected[rows - 1][tokens - 1]);
            dw_session_destroy(alone);
        }
    dw_session *session = session_of(context, model, "b=4,s=12");
    size_t before = memory.calls;
    for (uint64_t i = 0; i < RUNS; i++) {
        uint64_t rows = num_random(3, 2 * i) % ROWS, tokens = num_random(3, 2 * i + 1) % TOKENS;
        run(context, session, &io[rows][tokens]);
        assert_same(&expected[rows][tokens], &io[rows][tokens]);
    }
    assert_int_equal(memory.calls - before, 0);
    for (int i = 0; i < ROWS * TOKENS; i++) {
        run_io_free(&expected[i / TOKENS][i % TOKENS]);
        run_io_free(&io[i / TOKENS][i % TOKENS]);
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
    assert_int_equal(memory.live_count, 0);
}

/* Rows of bf16 are copied where k is odd, and read where they lie where it is even. */
static void products_along_a_size_have_room_at_all_of_them(void **state) {
    static const char words[] = "graph g\n  symbol s 1..64\n  input x bf16[3,s,s]\n  input y bf16[3,s,4]\n  input z bf16[8,2,s]\n  input ends i32[8]\n  input b bf16[8,s,4]\n"
                                "  %1 = matmul x, y\n  output p %1\n  %2 = reshape z {shape=[16,s]}\n  %3 = grouped_matmul %2, b, ends\n  output q %3\n";
    dw_context *context = *state;
    dw_model *model = model_of_text(context, words, NULL);
    for (int64_t most = 12; most <= 64; most += 52) {
        char dims[32];
        snprintf(dims, sizeof dims, "s=%lld", (long long)most);
        dw_session *session = session_of(context, model, dims);
        for (int64_t s = 1; s <= most; s++) {
            run_io io;
            run_io_create(&io, model->full.plan->graph, &s, RUN_SMALL_INTEGERS, 1);
            for (int i = 0; i < io.input_count; i++)
                if (strcmp(io.inputs[i].name, "ends") == 0) memset(io.inputs[i].tensor.data, 0, 8 * sizeof(int32_t));
            run_io_add_outputs(&io, session);
            assert_ok(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs));
            run_io_free(&io);
        }
        dw_session_destroy(session);
    }
    dw_model_destroy(model);
}

static void sizes_beyond_those_reserved_are_refused(void **state) {
    dw_context *context = *state;
    dw_model *model = open_carried(context, DW_MODEL_GENERATE);
    dw_session *session;
    run_io io;
    int64_t ids[8], made, prompt[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = "b=1,s=16", .max_tokens = 12}, &session));
    create_ids(&io, model, 4, 64);
    run_io_add_outputs(&io, session);
    test_assert_fails(context, dw_session_run(session, 1, io.inputs, io.output_count, io.outputs), DW_LIMIT, "of workspace");
    run_io_free(&io);
    create_ids(&io, model, 1, 16);
    run_io_add_outputs(&io, session);
    run(context, session, &io);   /* still usable */
    run_io_free(&io);
    test_assert_fails(context, dw_session_generate(session, 8, prompt, &(dw_generate_options){.tokens = 5}, ids, &made, NULL), DW_LIMIT, "max_tokens of 12");
    assert_int_equal(made, 0);
    assert_ok(context, dw_session_generate(session, 8, prompt, &(dw_generate_options){.tokens = 4}, ids, &made, NULL));
    assert_int_equal(made, 4);
    dw_session_destroy(session);
    dw_model_destroy(model);
}

/* Every size up to the reserved ones finds room, whatever order they come in. */
static void all_sizes_up_to_those_reserved_have_room(void **state) {
    dw_context *context = *state;
    dw_model *model = open_carried(context, 0);
    dw_session *session = session_of(context, model, "b=3,s=20");
    for (int64_t rows = 1; rows <= 3; rows++)
        for (int64_t tokens = 1; tokens <= 20; tokens += 1 + rows) {
            run_io io;
            create_ids(&io, model, rows, tokens);
            run_io_add_outputs(&io, session);
            run(context, session, &io);
            run_io_free(&io);
        }
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void sessions_of_one_model_do_not_see_each_other(void **state) {
    dw_context *context = *state, *other;
    enum { TOKENS = 6 };
    int64_t prompt_a[] = {'I', 'n', ' ', 't', 'h', 'e'}, prompt_b[] = {'A', 'n', 'd'}, alone[2][TOKENS], together[2][TOKENS], made;
    const dw_generate_options options = {.tokens = TOKENS};
    dw_session *a, *b;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &other), DW_OK);
    dw_model *model = open_carried(context, DW_MODEL_GENERATE);
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = "s=8", .max_tokens = 16}, &a));
    assert_ok(context, dw_session_generate(a, 6, prompt_a, &options, alone[0], &made, NULL));
    assert_ok(context, dw_session_generate(a, 3, prompt_b, &options, alone[1], &made, NULL));
    assert_ok(other, dw_session_create(other, model, &(dw_session_options){.dims = "s=9", .max_tokens = 16}, &b));
    run_io io[2], again;
    create_ids(&io[0], model, 1, 8);
    create_ids(&io[1], model, 1, 5);
    for (int i = 0; i < 2; i++) run_io_add_outputs(&io[i], a);
    run(context, a, &io[0]);
    run(context, a, &io[1]);
    assert_ok(context, dw_session_generate(a, 6, prompt_a, &options, together[0], &made, NULL));
    create_ids(&again, model, 1, 8);
    run_io_add_outputs(&again, b);
    run(other, b, &again);
    assert_same(&io[0], &again);
    assert_ok(other, dw_session_generate(b, 3, prompt_b, &options, together[1], &made, NULL));
    assert_memory_equal(alone, together, sizeof alone);
    run_io_free(&again);
    for (int i = 0; i < 2; i++) run_io_free(&io[i]);
    dw_session_destroy(b);
    dw_session_destroy(a);
    dw_model_destroy(model);
    dw_context_destroy(other);
}

static void states_interleave_and_reset(void **state) {
    dw_context *context = *state;
    static const char text[] = "graph g\n  input x f32[3]\n  state k f32[3]\n  %1 = add k, x\n  next k %1\n  output y %1\n";
    dw_model *model = model_of_text(context, text, NULL);
    dw_session *a = session_of(context, model, NULL), *b = session_of(context, model, NULL);
    float x[3] = {1, 2, 3}, y[3];
    dw_named_tensor in = {"x", {0}}, out = {"y", {0}};
    assert_true(op_tensor_init(&in.tensor, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){3}, x));
    assert_true(op_tensor_init(&out.tensor, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){3}, y));
    for (int i = 1; i <= 3; i++) {
        assert_ok(context, dw_session_run(a, 1, &in, 1, &out));
        assert_true(y[0] == (float)i && y[2] == (float)(3 * i));
        if (i == 2) {
            assert_ok(context, dw_session_run(b, 1, &in, 1, &out));
            assert_true(y[0] == 1);
        }
    }
    assert_ok(context, dw_session_reset(a));
    assert_ok(context, dw_session_run(a, 1, &in, 1, &out));
    assert_true(y[0] == 1);
    assert_ok(context, dw_session_run(b, 1, &in, 1, &out));
    assert_true(y[0] == 2);
    dw_session_destroy(a);
    dw_session_destroy(b);
    dw_model_destroy(model);
}

/* ---- inputs that do not fit ---- */

static void all_that_does_not_fit_is_said_at_once(void **state) {
    dw_context *context = *state;
    static const char text[] =
        "graph g\n  symbol s 1..8\n  input x f32[s,4]\n  input y i64[s]\n  input z f32[2]\n  input w f32[s]\n  %1 = reshape z {shape=[2]}\n  output o %1\n  output p x\n"
        "  output q y\n  output r w\n";
    static const char *const parts[] = {"z is missing",  "nonsense is no input of the model", "y is f32, the model takes i64", "axis 1 of x is 5, the model takes 4",
                                        "w has rank 2, the model takes 1", "axis 0 of x (s) is 9, it is at most 8"};
    dw_model *model = model_of_text(context, text, NULL);
    dw_session *session = session_of(context, model, "s=8");
    dw_named_tensor in[5] = {{"x", {0}}, {"y", {0}}, {"w", {0}}, {"nonsense", {0}}, {"z", {0}}}, out[4];
    const int64_t shapes[5][2] = {{9, 5}, {9, 0}, {9, 9}, {1, 0}, {2, 0}};
    const int ranks[5] = {2, 1, 2, 1, 1};
    float memory[200] = {0};
    for (int i = 0; i < 5; i++) assert_true(op_tensor_init(&in[i].tensor, DW_FORMAT_f32, DW_SCALE_plain, ranks[i], shapes[i], memory));
    assert_int_equal(dw_session_shapes(session, 4, in, out), DW_MISMATCH);
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (strstr(dw_context_error(context), parts[i]) == NULL) fail_msg("'%s' is not in: %s", parts[i], dw_context_error(context));
    in[3] = in[0];
    test_assert_fails(context, dw_session_shapes(session, 5, in, out), DW_MISMATCH, "x is given twice");
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static int setup(void **state) { return dw_context_create(&(dw_context_options){.threads = 2}, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

/* A session made for little, given more and more room; its results are those of one made for all of it. */
static void a_session_reserves_more_and_keeps_what_it_had(void **state) {
    (void)state;
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 2);
    dw_model *model = open_carried(context, 0);
    dw_session *small = session_of(context, model, "b=1,s=8"), *large = session_of(context, model, "b=3,s=40");
    static const int64_t sizes[][2] = {{1, 8}, {3, 4}, {1, 40}, {3, 40}, {2, 17}, {1, 8}};
    int failed = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        run_io io, expected;
        create_ids(&io, model, sizes[i][0], sizes[i][1]);
        create_ids(&expected, model, sizes[i][0], sizes[i][1]);
        run_io_add_outputs(&io, small);
        run_io_add_outputs(&expected, large);
        run(context, large, &expected);
        dw_status status = dw_session_run(small, 1, io.inputs, io.output_count, io.outputs);
        if (status != DW_OK) {
            failed++;
            test_assert_fails(context, status, DW_LIMIT, "of workspace");
            uint64_t before = dw_session_workspace_bytes(small);
            memory.fail_at = memory.calls + 2;   /* whatever it is that fails */
            test_assert_fails(context, dw_session_reserve(small, 1, io.inputs), DW_NO_MEMORY, "could not be allocated");
            memory.fail_at = 0;
            assert_int_equal(dw_session_workspace_bytes(small), before);
            assert_ok(context, dw_session_reserve(small, 1, io.inputs));
            assert_true(dw_session_workspace_bytes(small) > before);
            run(context, small, &io);
        }
        assert_same(&io, &expected);
        run_io_free(&io);
        run_io_free(&expected);
    }
    assert_in_range(failed, 2, 4);
    size_t calls = memory.calls;
    run_io io;
    create_ids(&io, model, 3, 40);
    run_io_add_outputs(&io, small);
    run(context, small, &io);
    assert_int_equal(memory.calls, calls);
    io.inputs[0].tensor.rank = 1;
    test_assert_fails(context, dw_session_reserve(small, 1, io.inputs), DW_MISMATCH, "rank 1");
    run_io_free(&io);
    dw_session_destroy(small);
    dw_session_destroy(large);
    dw_model_destroy(model);
    dw_context_destroy(context);
    assert_int_equal(memory.live_count, 0);
}

/* Of twelve weights each is made bf16 and packed before the next one is: more than one is there twice at no time. */
static void weights_are_packed_one_after_another(void **state) {
    enum { LAYERS = 12, WIDTH = 512, ONE = WIDTH * WIDTH * 2 };
    const int64_t dims[] = {WIDTH, WIDTH};
    test_memory memory = {.calls = 0};
    dw_context *context = test_context_create(&memory, 1);
    ir_weights *weights;
    ir_graph *graph;
    dw_model *model;
    text source;
    (void)state;
    assert_ok(context, ir_weights_create(context, &weights));
    text_init(&source, context);
    text_printf(&source, "graph packed\n  symbol s 1..64\n  input x f32[s,%d]\n", WIDTH);
    for (int i = 0; i < LAYERS; i++) {
        ir_weight *weight;
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        text_printf(&source, "  param %s f32[%d,%d]\n", name, WIDTH, WIDTH);
        assert_ok(context, ir_weights_new(weights, name, DW_FORMAT_f32, 2, dims, &weight));
    }
    for (int i = 0; i < LAYERS; i++) {
        if (i == 0) text_printf(&source, "  %%1 = matmul x, w0 {bt=true}\n");
        else text_printf(&source, "  %%%d = matmul %%%d, w%d {bt=true}\n", i + 1, i, i);
    }
    text_printf(&source, "  output y %%%d\n", LAYERS);
    assert_ok(context, ir_parse(context, "packed", text_string(&source), source.length, weights, &graph));
    graph->own_weights = weights;
    const size_t before = memory.peak_bytes = memory.live_bytes;
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.precision = "bf16"}, &model));
    assert_true(dw_model_weight_bytes(model) >= (uint64_t)LAYERS * ONE);
    assert_true(memory.peak_bytes - before < (LAYERS + 2) * (size_t)ONE);
    dw_model_destroy(model);
    text_free(&source);
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_reserves_more_and_keeps_what_it_had),
        cmocka_unit_test(runs_have_the_same_bits_at_any_number_of_threads),
        cmocka_unit_test(runs_and_generation_allocate_nothing),
        cmocka_unit_test(weights_are_packed_one_after_another),
        cmocka_unit_test(a_thousand_runs_of_random_sizes_are_right_and_allocate_nothing),
        cmocka_unit_test_setup_teardown(sizes_beyond_those_reserved_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(all_sizes_up_to_those_reserved_have_room, setup, teardown),
        cmocka_unit_test_setup_teardown(products_along_a_size_have_room_at_all_of_them, setup, teardown),
        cmocka_unit_test_setup_teardown(sessions_of_one_model_do_not_see_each_other, setup, teardown),
        cmocka_unit_test_setup_teardown(states_interleave_and_reset, setup, teardown),
        cmocka_unit_test_setup_teardown(all_that_does_not_fit_is_said_at_once, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
