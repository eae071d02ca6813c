/* Gradients by the public interface: a graph with its loss, the graph that dw_graph_gradient makes of it, and a run of that. */
#include "support/support.h"

#include <string.h>

#include "deepwell/deepwell.h"

static dw_context *context;

static void ok(dw_status status) {
    if (status != DW_OK) fail_msg("%s", dw_context_error(context));
}

/* loss = sum(x * w), w [2,3] as its memory's strides have it. */
static void run(const dw_tensor *w, const char *device, float *loss, float gradient[6]) {
    dw_graph *graph, *gradients;
    dw_model *model;
    dw_session *session;
    dw_value *x, *param, *product, *sum;
    float numbers[6] = {1, 10, 100, 1000, 10000, 100000};
    ok(dw_graph_create(context, "g", &graph));
    ok(dw_graph_input(graph, "x", "f32[2,3]", &x));
    ok(dw_graph_param(graph, "w", w, &param));
    ok(dw_graph_op(graph, "mul", "", 2, (dw_value *[]){x, param}, 1, &product));
    ok(dw_graph_op(graph, "sum", "axes=[0,1]", 1, &product, 1, &sum));
    ok(dw_graph_output(graph, "loss", sum));
    ok(dw_graph_gradient(graph, NULL, &gradients));
    ok(dw_model_create(context, gradients, &(dw_model_options){.device = device}, &model));
    assert_string_equal(dw_model_note(model, "loss"), "loss");
    ok(dw_session_create(context, model, NULL, &session));
    const dw_named_tensor in = {"x", {.format = DW_FORMAT_f32, .rank = 2, .dims = {2, 3}, .strides = {3, 1}, .data = numbers}};
    const dw_named_tensor out[] = {{"loss", {.format = DW_FORMAT_f32, .data = loss}},
                                   {"grad.w", {.format = DW_FORMAT_f32, .rank = 2, .dims = {2, 3}, .strides = {3, 1}, .data = gradient}}};
    ok(dw_session_run(session, 1, &in, 2, out));
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_graph_destroy(graph);
}

static void parameters_lie_as_they_please(void **state) {
    float rows[6] = {1, 2, 3, 4, 5, 6}, columns[6] = {1, 4, 2, 5, 3, 6}, loss, gradient[6];
    const float expected[6] = {1, 10, 100, 1000, 10000, 100000};
    const dw_tensor tensors[] = {{.format = DW_FORMAT_f32, .rank = 2, .dims = {2, 3}, .strides = {3, 1}, .data = rows},
                                 {.format = DW_FORMAT_f32, .rank = 2, .dims = {2, 3}, .strides = {1, 2}, .data = columns}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        run(&tensors[i], NULL, &loss, gradient);
        assert_true(loss == 654321);
        assert_memory_equal(gradient, expected, sizeof expected);
    }
}

static int setup(void **state) {
    (void)state;
    return dw_context_create(NULL, &context);
}

static int teardown(void **state) {
    (void)state;
    dw_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(parameters_lie_as_they_please, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
