/* Libraries of vendors on the CUDA device, by stand-ins for the driver, for cuBLASLt and for cuDNN (tests/cuda): which are found, what of it is said, and their calls as
 * nodes of a run's graph. Whether products and attentions are right is conformance's (tests/conform/test_cuda.sh). */
#include "support/support.h"

#include <string.h>

#include "device/device.h"
#include "support/driver.h"
#include "support/session.h"

#define WITHOUT DEVICE_NAME
#define WITH WITHOUT ",libraries=" TEST_BUILD_DIR "/tests/libraries"

static void a_library_that_is_found_is_a_feature(void **state) {
    (void)state;
    char words[128];
    device *device;
    chip_caps row;
    dw_context *context = context_of();
    assert_ok(context, device_open(context, WITH, &device));
    assert_true(chip_has(&device->caps, CHIP_cublaslt));
    assert_true(device->calls->driver(device, words, sizeof words));
    assert_true(chip_has(&device->caps, CHIP_cudnn));
    assert_string_equal(words, "CUDA 13.0, cuBLASLt 13.0.0, cuDNN 9.19.0");
    assert_ok(context, chip_find(context, "a100", 0, &row));
    assert_true(chip_hash(&row) == chip_hash(&device->caps));   /* plans are good with and without it */
    device_close(device);
    assert_int_equal(fake->live, 0);
    assert_int_equal(fake->library_live, 0);
    dw_context_destroy(context);
}

static void a_library_that_is_absent_is_a_reason(void **state) {
    (void)state;
    dw_context *context = context_of();
    static const char *const names[] = {WITHOUT, WITHOUT ",libraries=none", "sim:h200"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        device *device;
        if (i == 2 && device_open(context, names[i], &device) != DW_OK) break;   /* a build without the simulator */
        if (i < 2) assert_ok(context, device_open(context, names[i], &device));
        assert_false(chip_has(&device->caps, CHIP_cublaslt));
        assert_false(chip_has(&device->caps, CHIP_cudnn));
        device_close(device);
    }
    dw_model *model;
    static const dw_model_options asked = {.device = WITHOUT, .kernels = "matmul=cuda_matmul_cublaslt"};
    dw_graph *graph;
    assert_ok(context, dw_graph_parse(context, "text", graph_text, strlen(graph_text), &graph));
    test_assert_fails(context, dw_model_create(context, graph, &asked, &model), DW_UNSUPPORTED, "needs the library cublaslt, which is not loaded");
    dw_context_destroy(context);
}

static void a_library_that_was_asked_for_is_there_or_an_error(void **state) {
    (void)state;
    device *device;
    dw_context *context = context_of();
    test_assert_fails(context, device_open(context, WITHOUT ",libraries=/nowhere", &device), DW_NOT_FOUND, "none was found there");
    test_assert_fails(context, device_open(context, WITHOUT ",libraries=abacus", &device), DW_NOT_FOUND, "expected none, a folder");
    test_assert_fails(context, device_open(context, WITHOUT ",libraries=", &device), DW_INVALID, "libraries=none, NAME or FOLDER");
    fake->library_version = 120805;
    test_assert_fails(context, device_open(context, WITH, &device), DW_UNSUPPORTED, "it is cuBLASLt 12.8.5");
    fake->library_version = 130000;
    assert_int_equal(fake->live, 0);
    assert_int_equal(fake->library_live, 0);
    dw_context_destroy(context);
}

static void its_calls_are_nodes_of_the_graph(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, graph_text, &(dw_model_options){.device = WITH, .kernels = "matmul=cuda_matmul_cublaslt"});
    dw_session *session = session_of(context, model, "s=40");
    evaluation *oracle;
    const int64_t first = 6;
    assert_ok(context, evaluation_create(model->captured, &oracle));
    fake->calls = fake->library_calls = fake->library_asked = 0;
    for (uint64_t i = 0; i < 3; i++) assert_runs_as_references(context, session, oracle, model->captured, &first, RUN_SMALL_INTEGERS, i);
    assert_int_equal(count_calls("StreamBeginCapture"), 1);
    assert_int_equal(count_calls("StreamEndCapture"), 1);
    assert_int_equal(count_calls("GraphAddChildGraphNode"), 1);
    assert_int_equal(count_calls("GraphLaunch"), 3);
    assert_int_equal(fake->library_calls, 3);
    for (int64_t s = 20; s < 30; s++) assert_runs_as_references(context, session, oracle, model->captured, &s, RUN_SMALL_INTEGERS, (uint64_t)s);
    assert_int_equal(count_calls("GraphInstantiate"), ENGINE_BINDINGS);
    assert_true(count_calls("GraphExecChildGraphNodeSetParams") > 0);
    const int asked = fake->library_asked;          /* once for each size: what was chosen is kept */
    assert_int_equal(asked, 11);
    for (int64_t s = 20; s < 30; s++) assert_runs_as_references(context, session, oracle, model->captured, &s, RUN_SMALL_INTEGERS, (uint64_t)s);
    assert_int_equal(fake->library_asked, asked);
    evaluation_destroy(oracle);
    dw_session_destroy(session);
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    assert_int_equal(fake->library_live, 0);
    dw_context_destroy(context);
}

/* What is added dies in the sum, so its memory could become the sum's; over it the library rounds the product before it adds. */
static void what_it_adds_lies_beside_the_sum(void **state) {
    static const char text[] = "graph sum\n  input x bf16[s,32]\n  input v bf16[32,32]\n  input w bf16[32,32]\n"
                               "  %1 = matmul x, v {bt=true}\n  %2 = exp x\n  %3 = matmul %2, w, %1 {bt=true, post=\"add\"}\n  %4 = matmul %3, v {bt=true}\n  output y %4\n";
    (void)state;
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, text, &(dw_model_options){.device = WITH, .kernels = "matmul=cuda_matmul_cublaslt"});
    dw_session *session = session_of(context, model, "s=40");
    evaluation *oracle;
    const int64_t s = 6;
    int sums = 0;
    for (int i = 0; i < model->full.plan->step_count; i++) {
        const plan_step *step = &model->full.plan->steps[i];
        if (step->node->op != OP_matmul || step->node->n_in < 3) continue;
        assert_null(plan_value_of(ir_out(step->node))->base);
        sums++;
    }
    assert_int_equal(sums, 1);
    assert_ok(context, evaluation_create(model->captured, &oracle));
    fake->library_calls = fake->library_over = 0;
    assert_runs_as_references(context, session, oracle, model->captured, &s, RUN_SMALL_INTEGERS, 1);
    assert_int_equal(fake->library_calls, 3);
    assert_int_equal(fake->library_over, 0);
    evaluation_destroy(oracle);
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

static void a_product_that_it_refuses_is_an_error(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, graph_text, &(dw_model_options){.device = WITH, .kernels = "matmul=cuda_matmul_cublaslt"});
    dw_session *session = session_of(context, model, "s=4");
    const int64_t s = 4;
    run_io io;
    run_io_create(&io, model->captured, &s, RUN_SMALL_INTEGERS, 1);
    run_io_add_outputs(&io, session);
    fake->library_refuses = 1;
    test_assert_fails(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs), DW_UNSUPPORTED, "cuBLASLt has nothing for this product");
    fake->library_refuses = 0;
    assert_ok(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs));
    run_io_free(&io);
    dw_session_destroy(session);
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    assert_int_equal(fake->library_live, 0);
    dw_context_destroy(context);
}

/* ---- attention ---- */

#define HOPPER_GRAPH(sizes, more)                                                                                                                        \
    "graph heads\n  input q bf16[1,4," sizes ",16]\n  input k bf16[1,2," sizes ",16]\n  input v bf16[1,2," sizes ",16]\n"                                    \
    "  %1 = attention q, k, v {scale=0.25, causal=true" more "}\n  output y %1\n"
static const dw_model_options by_cudnn = {.device = WITH, .kernels = "attention=cuda_attention_cudnn"};

static dw_status open_heads(dw_context *context, const char *text, const dw_model_options *options, dw_model **model) {
    dw_graph *graph;
    assert_ok(context, dw_graph_parse(context, "text", text, strlen(text), &graph));
    return dw_model_create(context, graph, options, model);
}

/* cuDNN's row asks for a Hopper GPU; the stand-in for the driver says that it is one. */
static void be_hopper(void) { fake->name = "NVIDIA H200", fake->major = 9, fake->minor = 0, fake->units = 132; }
static void be_ampere(void) { fake->name = "NVIDIA A100-SXM4-80GB", fake->major = 8, fake->minor = 0, fake->units = 108; }

static void an_attention_is_planned_once(void **state) {
    (void)state;
    dw_model *model;
    dw_context *context = context_of();
    be_hopper();
    assert_ok(context, open_heads(context, HOPPER_GRAPH("24", ""), &by_cudnn, &model));
    dw_session *session = session_of(context, model, "");
    fake->calls = fake->library_calls = 0;
    run_io io;
    run_io_create(&io, model->captured, NULL, RUN_SMALL_INTEGERS, 1);
    run_io_add_outputs(&io, session);
    const int before = fake->library_live;
    assert_ok(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs));
    const int live = fake->library_live;
    for (int i = 0; i < 3; i++) assert_ok(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs));
    assert_int_equal(fake->library_live, live);
    assert_int_equal(live - before, 2);   /* the handle and the plan */
    assert_int_equal(fake->library_calls, 4);
    assert_int_equal(count_calls("StreamBeginCapture"), 1);
    run_io_free(&io);
    dw_session_destroy(session);
    dw_model_destroy(model);
    assert_int_equal(fake->live, 0);
    assert_int_equal(fake->library_live, 0);
    be_ampere();
    dw_context_destroy(context);
}

static void an_attention_that_it_has_no_plan_for_is_refused(void **state) {
    static const char far[] = "graph heads\n  input q bf16[1,4,24,16]\n  input k bf16[1,2,24,16]\n"
                              "  %1 = attention q, k, k {scale=0.25, ahead=20, offset=9223372036854775800}\n  output y %1\n";
    (void)state;
    dw_model *model;
    dw_context *context = context_of();
    be_hopper();
    test_assert_fails(context, open_heads(context, HOPPER_GRAPH("s", ""), &by_cudnn, &model), DW_UNSUPPORTED, "the sizes are not known at plan time");
    test_assert_fails(context, open_heads(context, HOPPER_GRAPH("24", ", softcap=2.0"), &by_cudnn, &model), DW_UNSUPPORTED, "it has no softcap");
    test_assert_fails(context, open_heads(context, HOPPER_GRAPH("24", ", offset=-1"), &by_cudnn, &model), DW_UNSUPPORTED, "the offset is negative");
    test_assert_fails(context, open_heads(context, far, &by_cudnn, &model), DW_UNSUPPORTED, "or out of range");
    test_assert_fails(context, open_heads(context, HOPPER_GRAPH("24", ", window=3, offset=4"), &by_cudnn, &model), DW_UNSUPPORTED, "a window wants as many queries as keys");
    be_ampere();
    test_assert_fails(context, open_heads(context, HOPPER_GRAPH("24", ""), &by_cudnn, &model), DW_UNSUPPORTED, "needs tma");
    dw_context_destroy(context);
}

static void what_cudnn_says_is_passed_on(void **state) {
    (void)state;
    dw_model *model;
    dw_context *context = context_of();
    be_hopper();
    for (int i = 0; i < 2; i++) {
        assert_ok(context, open_heads(context, HOPPER_GRAPH("24", ""), &by_cudnn, &model));
        dw_session *session = session_of(context, model, "");
        run_io io;
        run_io_create(&io, model->captured, NULL, RUN_SMALL_INTEGERS, 1);
        run_io_add_outputs(&io, session);
        fake->library_refuses = i == 0;
        fake->cudnn_version = i == 0 ? 91900 : 90501;
        test_assert_fails(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs), DW_UNSUPPORTED,
                          i == 0 ? "it proposes nothing (cuDNN 91900 has no attention of q bf16[1,4,24,16]" : "it is cuDNN 9.5.1");
        fake->library_refuses = 0;
        fake->cudnn_version = 91900;
        assert_ok(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs));
        run_io_free(&io);
        dw_session_destroy(session);
        dw_model_destroy(model);
    }
    assert_int_equal(fake->library_live, 0);
    be_ampere();
    dw_context_destroy(context);
}

static void cudnn_is_not_chosen_by_estimate(void **state) {
    (void)state;
    dw_model *model;
    dw_context *context = context_of();
    be_hopper();
    assert_ok(context, open_heads(context, HOPPER_GRAPH("2048", ""), &(dw_model_options){.device = WITH}, &model));
    const plan *plan = model->full.plan;
    for (int i = 0; i < plan->step_count; i++) assert_true(plan->steps[i].picked == NULL || strcmp(plan->steps[i].picked->name, "cuda_attention_cudnn") != 0);
    dw_model_destroy(model);
    be_ampere();
    dw_context_destroy(context);
}

/* Whatever call of the driver fails, the run says so, and all is given back. */
static void every_failure_of_the_driver_is_an_error(void **state) {
    (void)state;
    dw_context *context = context_of();
    const int64_t s = 4;
    for (int at = 1;; at++) {
        dw_model *model = model_of_text(context, graph_text, &(dw_model_options){.device = WITH, .kernels = "matmul=cuda_matmul_cublaslt"});
        dw_session *session = session_of(context, model, "s=4");
        run_io io;
        run_io_create(&io, model->captured, &s, RUN_SMALL_INTEGERS, 1);
        run_io_add_outputs(&io, session);
        fake->calls = 0;
        fake->fail_at = at;
        dw_status status = dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs);
        const int calls = fake->calls;
        fake->fail_at = 0;
        run_io_free(&io);
        dw_session_destroy(session);
        dw_model_destroy(model);
        assert_int_equal(fake->live, 0);
        if (calls < at) {
            assert_int_equal(status, DW_OK);
            break;
        }
        assert_int_not_equal(status, DW_OK);
        assert_non_null(strstr(dw_context_error(context), "failed: CUDA_ERROR_UNKNOWN"));
    }
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_library_that_is_found_is_a_feature),
        cmocka_unit_test(a_library_that_is_absent_is_a_reason),
        cmocka_unit_test(a_library_that_was_asked_for_is_there_or_an_error),
        cmocka_unit_test(its_calls_are_nodes_of_the_graph),
        cmocka_unit_test(what_it_adds_lies_beside_the_sum),
        cmocka_unit_test(a_product_that_it_refuses_is_an_error),
        cmocka_unit_test(an_attention_is_planned_once),
        cmocka_unit_test(an_attention_that_it_has_no_plan_for_is_refused),
        cmocka_unit_test(what_cudnn_says_is_passed_on),
        cmocka_unit_test(cudnn_is_not_chosen_by_estimate),
        cmocka_unit_test(every_failure_of_the_driver_is_an_error),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
