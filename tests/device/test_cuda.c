/* The CUDA device on a stand-in for the driver (tests/cuda), which records calls, fails the one that it is told to and runs plain kernels on the host: what
 * is called in what order, that runs allocate nothing, that every failure is an error with the call's name, and that all is given back. */
#include "support/support.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>

#include "device/cuda.h"
#include "engine/engine.h"
#include "support/driver.h"
#include "support/session.h"

static void begin_log(void) { fake->calls = fake->launches = 0; }

/* ---- opening ---- */

static void a_driver_that_is_not_there_is_named(void **state) {
    (void)state;
    dw_context *context = context_of();
    device *device;
    test_assert_fails(context, device_open(context, "cuda:0,driver=libnothing.so", &device), DW_UNSUPPORTED, "libnothing.so");
    dw_context_destroy(context);
}

static void a_library_that_is_no_driver_is_refused(void **state) {
    (void)state;
    dw_context *context = context_of();
    device *device;
    test_assert_fails(context, device_open(context, "cuda:0,driver=libm.so.6", &device), DW_UNSUPPORTED, "is no CUDA driver");
    dw_context_destroy(context);
}

static void a_gpu_that_is_not_there_is_an_error(void **state) {
    (void)state;
    dw_context *context = context_of();
    device *device;
    test_assert_fails(context, device_open(context, "cuda:3,driver=" DRIVER, &device), DW_NOT_FOUND, "the driver sees 1 GPU, counted from 0");
    test_assert_fails(context, device_open(context, "cuda,driver=" DRIVER ",3", &device), DW_INVALID, "expected cuda, cuda:N");
    test_assert_fails(context, device_open(context, "cuda:x", &device), DW_INVALID, "expected cuda, cuda:N");
    test_assert_fails(context, device_open(context, "sim", &device), DW_INVALID, "device 'sim': which chip is simulated?");
    test_assert_fails(context, device_open(context, "sim:,seed=3", &device), DW_INVALID, "device 'sim:,seed=3': which chip is simulated?");
    test_assert_fails(context, device_open(context, "sim:h300", &device), DW_NOT_FOUND, "chip 'h300' is not known; choose one of a100,");
    test_assert_fails(context, device_open(context, "sim:cpu-avx2", &device), DW_INVALID, "cpu-avx2 is no GPU: name one, as sim:h200");
    test_assert_fails(context, device_open(context, "cpu:mmx", &device), DW_NOT_FOUND, "device 'cpu:mmx' is not known; choose cpu, or one of its levels: cpu:");
    assert_int_equal(device_open(context, "cuda,driver=" DRIVER, &device), DW_OK);
    device_close(device);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

static void chips_are_told_apart(void **state) {
    (void)state;
    static const struct { const char *name; int major, minor, units; const char *chip; int arch; } gpus[] = {
        {"NVIDIA A100-SXM4-80GB", 8, 0, 108, "a100", 80},      {"NVIDIA GeForce RTX 3090", 8, 6, 82, "rtx3090", 86},
        {"NVIDIA L40S", 8, 9, 142, "l40s", 89},                {"NVIDIA GeForce RTX 4090", 8, 9, 128, "rtx4090", 89},
        {"NVIDIA H100 80GB HBM3", 9, 0, 132, "h100", 90},      {"NVIDIA H200", 9, 0, 132, "h200", 90},
        {"NVIDIA B200", 10, 0, 148, "b200", 100},              {"NVIDIA GB200", 10, 0, 148, "gb200", 100},
        {"NVIDIA B300 SXM6 AC", 10, 3, 148, "b300", 103},      {"NVIDIA Thor", 10, 1, 20, "thor", 110},
        {"NVIDIA Thor", 11, 0, 20, "thor", 110},               {"NVIDIA GeForce RTX 5090", 12, 0, 170, "rtx5090", 120},
        {"NVIDIA GB10", 12, 1, 48, "gb10", 121},               {"NVIDIA RTX PRO 6000 Blackwell Server Edition", 12, 0, 188, "rtxpro6000", 120},
        {"NVIDIA Rubin", 10, 7, 224, "rubin", 107},
        {"NVIDIA H800", 9, 0, 132, "sm_90", 90},
    };
    dw_context *context = context_of();
    const fake_cuda_control before = *fake;
    for (size_t i = 0; i < COUNT_OF(gpus); i++) {
        device *device;
        fake->name = gpus[i].name;
        fake->major = gpus[i].major;
        fake->minor = gpus[i].minor;
        fake->units = gpus[i].units;
        assert_ok(context, device_open(context, DEVICE_NAME, &device));
        assert_string_equal(device->caps.name, gpus[i].chip);
        assert_int_equal(device->caps.arch, gpus[i].arch);
        chip_caps row;
        if (chip_find(context, gpus[i].chip, 0, &row) == DW_OK) assert_true(chip_hash(&row) == chip_hash(&device->caps));
        device_close(device);
    }
    fake->name = "NVIDIA T4";
    fake->major = 7;
    fake->minor = 5;
    device *device;
    test_assert_fails(context, device_open(context, DEVICE_NAME, &device), DW_UNSUPPORTED, "compute capability 7.5");
    fake->name = before.name;
    fake->major = before.major;
    fake->minor = before.minor;
    fake->units = before.units;
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* ---- runs ---- */

static void a_run_is_one_graph_launch(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, graph_text, &(dw_model_options){.device = DEVICE_NAME});
    dw_session *session = session_of(context, model, "s=6");
    evaluation *oracle;
    assert_ok(context, evaluation_create(model->captured, &oracle));
    const int64_t sizes[] = {6, 3, 6};
    begin_log();
    for (size_t i = 0; i < COUNT_OF(sizes); i++) assert_runs_as_references(context, session, oracle, model->captured, &sizes[i], RUN_SMALL_INTEGERS, i);
    assert_int_equal(count_calls("GraphLaunch"), 3);
    assert_int_equal(count_calls("GraphInstantiate"), 2);   /* one for each size */
    assert_int_equal(count_calls("LaunchKernelEx"), 0);
    assert_int_equal(count_calls("MemAlloc"), 0);
    assert_int_equal(fake->launches, 6);
    begin_log();
    assert_runs_as_references(context, session, oracle, model->captured, &sizes[0], RUN_SMALL_INTEGERS, 9);
    static const char *const expected[] = {"MemcpyHtoDAsync", "GraphLaunch", "MemcpyDtoHAsync", "StreamSynchronize"};
    assert_int_equal(fake->calls, COUNT_OF(expected));
    for (size_t i = 0; i < COUNT_OF(expected); i++) assert_string_equal(fake->log[i], expected[i]);
    evaluation_destroy(oracle);
    dw_session_destroy(session);
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* A kernel of the stand-in takes 1 ms, recording an event a quarter: what the events between steps cost is taken off again. */
static void steps_are_timed_apart_and_add_up(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, graph_text, &(dw_model_options){.device = DEVICE_NAME});
    dw_session *session = session_of(context, model, "s=6");
    double steps[2];
    device_times times = {.steps = steps};
    plan_binding *binding;
    run_io io;
    const int64_t size = 6;
    run_io_create(&io, model->captured, &size, RUN_SMALL_INTEGERS, 1);
    run_io_add_outputs(&io, session);
    fake->kernel_ms = 1;
    fake->event_ms = 0.25;
    assert_ok(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs));
    assert_ok(context, engine_bind(session, &session->full, &binding));
    const int before = fake->live;
    begin_log();
    assert_ok(context, engine_time_on_device(session, &session->full, binding, 3, &times));
    assert_int_equal(count_calls("GraphLaunch"), 3 * 4);   /* each of three graphs once more than counts */
    assert_int_equal(fake->live, before);
    assert_int_equal(times.launches, 2);
    assert_true(fabs(times.whole - 2.25e-3) < 1e-8 && fabs(times.apart - 2.25e-3) < 1e-8 && fabs(times.per_look - 0.125e-3) < 1e-8);
    assert_true(fabs(steps[0] - 1.125e-3) < 1e-8 && fabs(steps[1] - 1.125e-3) < 1e-8);
    fake->kernel_ms = fake->event_ms = 0;
    run_io_free(&io);
    dw_session_destroy(session);
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* Five sizes in turn take one place more than a session keeps bound: the graph that gives way is patched, not made anew. */
static void another_size_patches_a_graph(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, graph_text, &(dw_model_options){.device = DEVICE_NAME});
    dw_session *session = session_of(context, model, "s=40");
    evaluation *oracle;
    assert_ok(context, evaluation_create(model->captured, &oracle));
    begin_log();
    for (int64_t s = 20; s < 30; s++) assert_runs_as_references(context, session, oracle, model->captured, &s, RUN_SMALL_INTEGERS, (uint64_t)s);
    assert_int_equal(count_calls("GraphInstantiate"), ENGINE_BINDINGS);
    assert_true(count_calls("GraphExecKernelNodeSetParams") > 0);
    evaluation_destroy(oracle);
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

static void a_fault_names_the_step(void **state) {
    (void)state;
    static const char text[] = "graph g\n  input x f32[5,3]\n  input i i64[2]\n  %1 = neg x\n  %2 = take %1, i {axis=0}\n  output y %2\n";
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, text, &(dw_model_options){.device = DEVICE_NAME});
    dw_session *session = session_of(context, model, "");
    float x[15] = {0}, y[6];
    int64_t index[2] = {1, 7};
    const dw_named_tensor inputs[] = {{"x", {.format = DW_FORMAT_f32, .rank = 2, .dims = {5, 3}, .strides = {3, 1}, .data = x}},
                                      {"i", {.format = DW_FORMAT_i64, .rank = 1, .dims = {2}, .strides = {1}, .data = index}}};
    const dw_named_tensor output = {"y", {.format = DW_FORMAT_f32, .rank = 2, .dims = {2, 3}, .strides = {3, 1}, .data = y}};
    test_assert_fails(context, dw_session_run(session, 2, inputs, 1, &output), DW_INVALID, "index 7 is outside its axis, which has size 5 (step 2, %2 cuda_take)");
    index[1] = -5;
    assert_ok(context, dw_session_run(session, 2, inputs, 1, &output));
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

static void offsets_of_groups_that_do_not_ascend_within_the_rows_are_faults(void **state) {
    (void)state;
    static const char text[] = "graph g\n  input x f32[5,3]\n  input w f32[2,4,3]\n  input o i32[2]\n  %1 = grouped_matmul x, w, o {bt=true}\n  output y %1\n";
    static const struct { int32_t offsets[2]; const char *words; } cases[] = {{{3, 2}, "an offset is 2;"}, {{2, 6}, "an offset is 6;"}, {{-1, 2}, "an offset is -1;"}};
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, text, &(dw_model_options){.device = DEVICE_NAME});
    dw_session *session = session_of(context, model, "");
    float x[15] = {0}, w[24] = {0}, y[20];
    int32_t offsets[2] = {5, 5};
    const dw_named_tensor inputs[] = {{"x", {.format = DW_FORMAT_f32, .rank = 2, .dims = {5, 3}, .strides = {3, 1}, .data = x}},
                                      {"w", {.format = DW_FORMAT_f32, .rank = 3, .dims = {2, 4, 3}, .strides = {12, 3, 1}, .data = w}},
                                      {"o", {.format = DW_FORMAT_i32, .rank = 1, .dims = {2}, .strides = {1}, .data = offsets}}};
    const dw_named_tensor output = {"y", {.format = DW_FORMAT_f32, .rank = 2, .dims = {5, 4}, .strides = {4, 1}, .data = y}};
    assert_ok(context, dw_session_run(session, 3, inputs, 1, &output));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        memcpy(offsets, cases[i].offsets, sizeof offsets);
        test_assert_fails(context, dw_session_run(session, 3, inputs, 1, &output), DW_INVALID, cases[i].words);
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* Wherever in the run the token is that lies outside; what is inside again works again. */
static void a_token_outside_of_its_cache_is_a_fault(void **state) {
    (void)state;
    enum { TOKENS = 11 };
    static const char text[] = "graph g\n  input x f32[3,1,4,2]\n  input y f32[1,1,11,2]\n  input r i64[11]\n  input p i64[11]\n  %1 = cache_write x, y, r, p\n  output z %1\n";
    static const struct { int token; int64_t row, position; const char *words; } cases[] = {
        {0, 3, 0, "index 3 is outside its axis, which has size 3"}, {6, -2, 2, "index -2 is outside its axis, which has size 3"}, {10, 0, -4, "index -4 is outside its axis, which has size 4"}};
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, text, &(dw_model_options){.device = DEVICE_NAME});
    dw_session *session = session_of(context, model, "");
    float x[24] = {0}, y[2 * TOKENS], z[24];
    int64_t row[TOKENS] = {0}, position[TOKENS];
    for (int i = 0; i < 2 * TOKENS; i++) y[i] = (float)(i / 2);
    for (int i = 0; i < TOKENS; i++) position[i] = i;
    const dw_named_tensor inputs[] = {{"x", {.format = DW_FORMAT_f32, .rank = 4, .dims = {3, 1, 4, 2}, .strides = {8, 8, 2, 1}, .data = x}},
                                      {"y", {.format = DW_FORMAT_f32, .rank = 4, .dims = {1, 1, TOKENS, 2}, .strides = {2 * TOKENS, 2 * TOKENS, 2, 1}, .data = y}},
                                      {"r", {.format = DW_FORMAT_i64, .rank = 1, .dims = {TOKENS}, .strides = {1}, .data = row}},
                                      {"p", {.format = DW_FORMAT_i64, .rank = 1, .dims = {TOKENS}, .strides = {1}, .data = position}}};
    const dw_named_tensor output = {"z", {.format = DW_FORMAT_f32, .rank = 4, .dims = {3, 1, 4, 2}, .strides = {8, 8, 2, 1}, .data = z}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const int token = cases[i].token;
        row[token] = cases[i].row;
        position[token] = cases[i].position;
        test_assert_fails(context, dw_session_run(session, 4, inputs, 1, &output), DW_INVALID, cases[i].words);
        row[token] = 0;
        position[token] = token;
    }
    assert_ok(context, dw_session_run(session, 4, inputs, 1, &output));
    static const float last[4] = {8, 9, 10, 7};   /* of positions 0 to 10 in a ring of four */
    for (int i = 0; i < 8; i++) assert_true(z[i] == last[i / 2]);
    for (int i = 0; i < TOKENS; i++) row[i] = i < 9 ? 0 : -1;
    assert_ok(context, dw_session_run(session, 4, inputs, 1, &output));
    static const float of_text[4] = {8, 5, 6, 7};   /* of positions 0 to 8: the others are of no text */
    for (int i = 0; i < 8; i++) assert_true(z[i] == of_text[i / 2]);
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* Of two rows with pages of four: what lies outside of the table, or is no page, is a fault of writes and of attention; -1 is none. */
static void a_page_that_is_none_is_a_fault(void **state) {
    (void)state;
    static const char text[] = "graph g\n  input x f32[3,1,4,2]\n  input y f32[1,1,1,2]\n  input r i64[1]\n  input p i64[1]\n  input t i32[2,2]\n  %1 = cache_write x, y, r, p, t\n"
                               "  %2 = attention y, %1, %1, -, -, -, r, p, t {scale=1,causal=true}\n  output z %2\n";
    static const struct { int64_t row, position; int32_t second; const char *words; } cases[] = {
        {1, 5, 2, NULL}, {1, 5, -1, NULL}, {-1, 99, 7, NULL}, {1, 3, 7, NULL},   /* what no token reads may hold anything */
        {1, 5, 3, "index 3 is outside its axis, which has size 3"}, {1, 5, -2, "index -2 is outside its axis, which has size 3"},
        {2, 0, 2, "index 2 is outside its axis, which has size 2"}, {1, 8, 2, "index 8 is outside its axis, which has size 8"}};
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, text, &(dw_model_options){.device = DEVICE_NAME});
    dw_session *session = session_of(context, model, "");
    float x[24] = {0}, y[2] = {3, 4}, z[2];
    int64_t row[1], position[1];
    int32_t table[4] = {0, 1, 1, 2};
    const dw_named_tensor inputs[] = {{"x", {.format = DW_FORMAT_f32, .rank = 4, .dims = {3, 1, 4, 2}, .strides = {8, 8, 2, 1}, .data = x}},
                                      {"y", {.format = DW_FORMAT_f32, .rank = 4, .dims = {1, 1, 1, 2}, .strides = {2, 2, 2, 1}, .data = y}},
                                      {"r", {.format = DW_FORMAT_i64, .rank = 1, .dims = {1}, .strides = {1}, .data = row}},
                                      {"p", {.format = DW_FORMAT_i64, .rank = 1, .dims = {1}, .strides = {1}, .data = position}},
                                      {"t", {.format = DW_FORMAT_i32, .rank = 2, .dims = {2, 2}, .strides = {2, 1}, .data = table}}};
    const dw_named_tensor output = {"z", {.format = DW_FORMAT_f32, .rank = 4, .dims = {1, 1, 1, 2}, .strides = {2, 2, 2, 1}, .data = z}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        row[0] = cases[i].row;
        position[0] = cases[i].position;
        table[3] = cases[i].second;
        if (cases[i].words == NULL) {
            assert_ok(context, dw_session_run(session, 5, inputs, 1, &output));
            for (int c = 0; c < 2; c++) assert_int_equal(z[c] > 0, cases[i].row >= 0 && (cases[i].second >= 0 || cases[i].position < 4));
        } else {
            test_assert_fails(context, dw_session_run(session, 5, inputs, 1, &output), DW_INVALID, cases[i].words);
        }
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* ---- streams of the caller's: the stand-in's device memory is the host's ---- */

static char stream_a, stream_b;

typedef struct mlp { _Alignas(16) float x[48], w[128], b[16], y[96]; dw_named_tensor inputs[3], output; } mlp;

/* s rows of x, and what they give in y. */
static void fill_mlp(mlp *io, int64_t s, float first) {
    for (int i = 0; i < 48; i++) io->x[i] = first + (float)(i % 5);
    for (int i = 0; i < 128; i++) io->w[i] = (float)(i % 7 - 3);
    for (int i = 0; i < 16; i++) io->b[i] = (float)(i % 3);
    for (int i = 0; i < 96; i++) io->y[i] = -1;
    io->inputs[0] = (dw_named_tensor){"x", {.format = DW_FORMAT_f32, .rank = 2, .dims = {s, 8}, .strides = {8, 1}, .data = io->x}};
    io->inputs[1] = (dw_named_tensor){"w", {.format = DW_FORMAT_f32, .rank = 2, .dims = {8, 16}, .strides = {16, 1}, .data = io->w}};
    io->inputs[2] = (dw_named_tensor){"b", {.format = DW_FORMAT_f32, .rank = 1, .dims = {16}, .strides = {1}, .data = io->b}};
    io->output = (dw_named_tensor){"y", {.format = DW_FORMAT_f32, .rank = 2, .dims = {s, 16}, .strides = {16, 1}, .data = io->y}};
}

static void assert_mlp(const mlp *io) {
    for (int64_t r = 0; r < io->output.tensor.dims[0]; r++)
        for (int c = 0; c < 16; c++) {
            float sum = io->b[c];
            for (int k = 0; k < 8; k++) sum += io->x[r * 8 + k] * io->w[k * 16 + c];
            assert_true(io->y[r * 16 + c] == (sum > 0 ? sum : 0));
        }
}

static dw_session *stream_session(dw_context *context, const dw_model *model, const char *dims) {
    dw_session *session;
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = dims, .flags = DW_SESSION_DEVICE_MEMORY}, &session));
    return session;
}

static void a_run_on_a_stream_copies_and_waits_for_nothing(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, graph_text, &(dw_model_options){.device = DEVICE_NAME});
    dw_session *session = stream_session(context, model, "s=6");
    mlp io, other;
    fill_mlp(&io, 6, 1);
    fill_mlp(&other, 6, -3);
    begin_log();
    assert_ok(context, dw_session_enqueue(session, &stream_a, 3, io.inputs, 1, &io.output));
    assert_ptr_equal(fake->stream, &stream_a);
    assert_mlp(&io);
    assert_int_equal(count_calls("MemcpyHtoDAsync") + count_calls("MemcpyDtoHAsync") + count_calls("MemAlloc"), 0);
    assert_int_equal(count_calls("StreamSynchronize") + count_calls("EventSynchronize") + count_calls("CtxSynchronize"), 0);
    begin_log();
    io.x[3] = 9;
    assert_ok(context, dw_session_enqueue(session, NULL, 3, io.inputs, 1, &io.output));
    assert_null(fake->stream);
    assert_mlp(&io);
    static const char *const expected[] = {"StreamGetCaptureInfo", "StreamWaitEvent", "GraphLaunch", "EventRecord", "StreamWaitEvent"};
    assert_int_equal(fake->calls, COUNT_OF(expected));
    for (size_t i = 0; i < COUNT_OF(expected); i++) assert_string_equal(fake->log[i], expected[i]);
    begin_log();
    assert_ok(context, dw_session_enqueue(session, &stream_b, 3, other.inputs, 1, &other.output));   /* elsewhere: patched, not made anew */
    assert_mlp(&other);
    assert_int_equal(count_calls("GraphInstantiate"), 0);
    assert_true(count_calls("GraphExecKernelNodeSetParams") > 0);
    assert_ok(context, dw_session_synchronize(session));
    dw_session_destroy(session);
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

/* What products in parts count in: graphs that were captured from two sessions may be launched side by side. */
static void sessions_count_in_memory_of_their_own(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, graph_text, &(dw_model_options){.device = DEVICE_NAME});
    dw_session *sessions[2] = {stream_session(context, model, "s=6"), stream_session(context, model, "s=6")};
    kernel_launch launch = {.slot_count = 1, .slots = {{.kind = KERNEL_SLOT_COUNTERS}}, .argument_bytes = 8};
    uint64_t counters[2], zeros[KERNEL_COUNTER_BYTES / 8] = {0};
    for (int i = 0; i < 2; i++) {
        assert_ok(context, cuda_fill_slots(sessions[i]->device, NULL, 0, &launch));
        memcpy(&counters[i], launch.arguments, sizeof counters[i]);
        assert_memory_equal((const void *)(uintptr_t)counters[i], zeros, sizeof zeros);   /* the stand-in's memory is the host's */
    }
    assert_true(counters[0] + KERNEL_COUNTER_BYTES <= counters[1] || counters[1] + KERNEL_COUNTER_BYTES <= counters[0]);
    for (int i = 0; i < 2; i++) dw_session_destroy(sessions[i]);
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

static void a_stream_wants_a_gpu_and_its_memory(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, graph_text, &(dw_model_options){.device = DEVICE_NAME}), *host = model_of_text(context, graph_text, NULL);
    dw_session *session = stream_session(context, model, "s=6"), *of_host = session_of(context, host, "s=6"), *none;
    mlp io;
    fill_mlp(&io, 5, 1);
    test_assert_fails(context, dw_session_run(session, 3, io.inputs, 1, &io.output), DW_INVALID, "run it by dw_session_enqueue");
    test_assert_fails(context, dw_session_enqueue(of_host, NULL, 3, io.inputs, 1, &io.output), DW_INVALID, "was made for the CPU");
    assert_ok(context, dw_session_synchronize(of_host));
    test_assert_fails(context, dw_session_create(context, host, &(dw_session_options){.flags = DW_SESSION_DEVICE_MEMORY}, &none), DW_INVALID, "made for a GPU");
    io.inputs[0].tensor.data = io.x + 1;
    test_assert_fails(context, dw_session_enqueue(session, NULL, 3, io.inputs, 1, &io.output), DW_MISMATCH, "input x is at");
    io.inputs[0].tensor.data = NULL;
    test_assert_fails(context, dw_session_enqueue(session, NULL, 3, io.inputs, 1, &io.output), DW_INVALID, "input x has no memory");
    dw_session_destroy(session);
    dw_session_destroy(of_host);
    dw_model_destroy(model);
    dw_model_destroy(host);
    dw_context_destroy(context);
}

typedef struct captures {
    cuda_result (*create)(cuda_graph *graph, unsigned flags);
    cuda_result (*instantiate)(cuda_graph_exec *exec, cuda_graph graph, cuda_instantiate_params *params);
    cuda_result (*launch)(cuda_graph_exec exec, cuda_stream stream);
    cuda_result (*destroy_exec)(cuda_graph_exec exec);
    cuda_result (*destroy)(cuda_graph graph);
} captures;

static captures find_captures(void) {
    static const char *const names[] = {"cuGraphCreate", "cuGraphInstantiateWithParams", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy"};
    void *library = dlopen(DRIVER, RTLD_NOW), *found[COUNT_OF(names)];
    captures calls;
    for (size_t i = 0; i < COUNT_OF(names); i++) found[i] = dlsym(library, names[i]);
    _Static_assert(sizeof found == sizeof calls, "one address for each call");
    memcpy(&calls, found, sizeof calls);
    return calls;
}

/* Two runs into one graph of the caller's, one before the session has run and one after; then the graph runs on what is there by then. */
static void a_captured_stream_gets_child_graphs(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, graph_text, &(dw_model_options){.device = DEVICE_NAME});
    dw_session *session = stream_session(context, model, "s=2");
    const captures calls = find_captures();
    cuda_graph graph;
    cuda_graph_exec exec;
    mlp first, second, later;
    fill_mlp(&first, 3, 1);
    fill_mlp(&second, 3, 2);
    fill_mlp(&later, 6, 2);
    assert_int_equal(calls.create(&graph, 0), CUDA_OK);
    fake->capturing = &stream_a;
    fake->captured = graph;
    begin_log();
    assert_ok(context, dw_session_reserve(session, 3, first.inputs));
    assert_true(count_calls("MemAlloc") > 0);
    begin_log();
    assert_ok(context, dw_session_enqueue(session, &stream_a, 3, first.inputs, 1, &first.output));
    assert_int_equal(fake->launches + count_calls("EventRecord") + count_calls("StreamSynchronize"), 0);
    fake->captured = NULL;
    assert_ok(context, dw_session_enqueue(session, &stream_a, 3, first.inputs, 1, &first.output));
    assert_mlp(&first);
    fake->captured = graph;
    assert_ok(context, dw_session_reserve(session, 3, second.inputs));
    assert_ok(context, dw_session_enqueue(session, &stream_a, 3, second.inputs, 1, &second.output));
    fake->captured = NULL;
    assert_ok(context, dw_session_enqueue(session, &stream_a, 3, first.inputs, 1, &first.output));
    assert_ok(context, dw_session_reserve(session, 3, later.inputs));   /* the workspace that the graph uses stays */
    assert_ok(context, dw_session_enqueue(session, &stream_a, 3, later.inputs, 1, &later.output));
    assert_mlp(&later);
    memset(first.y, 0xff, sizeof first.y);
    first.x[1] = 17;
    assert_int_equal(calls.instantiate(&exec, graph, NULL), CUDA_OK);
    assert_int_equal(calls.launch(exec, (cuda_stream)(void *)&stream_a), CUDA_OK);
    assert_mlp(&first);
    assert_mlp(&second);
    assert_int_equal(calls.destroy_exec(exec), CUDA_OK);
    assert_int_equal(calls.destroy(graph), CUDA_OK);
    dw_session_destroy(session);
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

static void a_fault_on_a_stream_comes_with_a_later_call(void **state) {
    (void)state;
    static const char text[] = "graph g\n  input x f32[5,3]\n  input i i64[2]\n  %1 = neg x\n  %2 = take %1, i {axis=0}\n  output y %2\n";
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, text, &(dw_model_options){.device = DEVICE_NAME});
    dw_session *session = stream_session(context, model, "");
    _Alignas(16) float x[15] = {0}, y[6];
    _Alignas(16) int64_t index[2] = {1, 7};
    const dw_named_tensor inputs[] = {{"x", {.format = DW_FORMAT_f32, .rank = 2, .dims = {5, 3}, .strides = {3, 1}, .data = x}},
                                      {"i", {.format = DW_FORMAT_i64, .rank = 1, .dims = {2}, .strides = {1}, .data = index}}};
    const dw_named_tensor output = {"y", {.format = DW_FORMAT_f32, .rank = 2, .dims = {2, 3}, .strides = {3, 1}, .data = y}};
    static const char words[] = "index 7 is outside its axis, which has size 5 (step 2, %2 cuda_take)";
    assert_ok(context, dw_session_enqueue(session, NULL, 2, inputs, 1, &output));
    test_assert_fails(context, dw_session_enqueue(session, NULL, 2, inputs, 1, &output), DW_INVALID, words);
    assert_ok(context, dw_session_enqueue(session, NULL, 2, inputs, 1, &output));
    test_assert_fails(context, dw_session_synchronize(session), DW_INVALID, words);
    index[1] = 2;
    assert_ok(context, dw_session_enqueue(session, NULL, 2, inputs, 1, &output));
    assert_ok(context, dw_session_synchronize(session));
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* ---- failures ---- */

static dw_status run_once(dw_context *context) {
    dw_graph *graph = NULL;
    dw_model *model = NULL;
    dw_session *session = NULL;
    _Alignas(16) float x[16] = {1}, w[128] = {2}, b[16] = {3}, y[32];
    const dw_named_tensor inputs[] = {{"x", {.format = DW_FORMAT_f32, .rank = 2, .dims = {2, 8}, .strides = {8, 1}, .data = x}},
                                      {"w", {.format = DW_FORMAT_f32, .rank = 2, .dims = {8, 16}, .strides = {16, 1}, .data = w}},
                                      {"b", {.format = DW_FORMAT_f32, .rank = 1, .dims = {16}, .strides = {1}, .data = b}}};
    const dw_named_tensor output = {"y", {.format = DW_FORMAT_f32, .rank = 2, .dims = {2, 16}, .strides = {16, 1}, .data = y}};
    dw_status status = ir_parse(context, "text", graph_text, strlen(graph_text), NULL, &graph);
    if (status == DW_OK) status = dw_model_create(context, graph, &(dw_model_options){.device = DEVICE_NAME}, &model);
    if (status == DW_OK) status = dw_session_create(context, model, &(dw_session_options){.dims = "s=2"}, &session);
    if (status == DW_OK) status = dw_session_run(session, 3, inputs, 1, &output);
    if (status == DW_OK) status = dw_session_enqueue(session, NULL, 3, inputs, 1, &output);
    dw_session_destroy(session);
    dw_model_destroy(model);
    return status;
}

static void every_call_of_the_driver_may_fail(void **state) {
    (void)state;
    dw_context *context = context_of();
    begin_log();
    assert_ok(context, run_once(context));
    int calls = fake->calls, failed = 0;
    assert_in_range(calls, 20, 200);
    for (int at = 1; at <= calls; at++) {
        begin_log();
        fake->fail_at = at;
        dw_status status = run_once(context);
        fake->fail_at = 0;
        if (fake->live != 0) fail_msg("%d things are left when call %d fails: %s", fake->live, at, fake->log[at - 1]);
        if (status == DW_OK) continue;   /* giving back has no error to return */
        failed++;
        if (strstr(dw_context_error(context), fake->log[at - 1]) == NULL && strcmp(fake->log[at - 1], "DriverGetVersion") != 0)
            fail_msg("call %d, %s: the error is '%s'", at, fake->log[at - 1], dw_context_error(context));
    }
    assert_in_range(failed, calls / 2, calls);
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_driver_that_is_not_there_is_named),
        cmocka_unit_test(a_library_that_is_no_driver_is_refused),
        cmocka_unit_test(a_gpu_that_is_not_there_is_an_error),
        cmocka_unit_test(chips_are_told_apart),
        cmocka_unit_test(a_run_is_one_graph_launch),
        cmocka_unit_test(steps_are_timed_apart_and_add_up),
        cmocka_unit_test(another_size_patches_a_graph),
        cmocka_unit_test(a_fault_names_the_step),
        cmocka_unit_test(offsets_of_groups_that_do_not_ascend_within_the_rows_are_faults),
        cmocka_unit_test(a_token_outside_of_its_cache_is_a_fault),
        cmocka_unit_test(a_page_that_is_none_is_a_fault),
        cmocka_unit_test(a_run_on_a_stream_copies_and_waits_for_nothing),
        cmocka_unit_test(sessions_count_in_memory_of_their_own),
        cmocka_unit_test(a_stream_wants_a_gpu_and_its_memory),
        cmocka_unit_test(a_captured_stream_gets_child_graphs),
        cmocka_unit_test(a_fault_on_a_stream_comes_with_a_later_call),
        cmocka_unit_test(every_call_of_the_driver_may_fail),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
