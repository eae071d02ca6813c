/* Kernels of the caller's are handed the op as it is: operands, epilogue, attributes with sizes as numbers; and their failure is the run's. */
#include "support/support.h"

#include <string.h>

#include "support/session.h"

typedef struct seen { int calls; char attributes[256], post[64]; dw_status answer; } seen;

static dw_status look(const dw_kernel_call *call) {
    seen *seen = call->user;
    seen->calls++;
    strncpy(seen->attributes, call->attributes, sizeof seen->attributes - 1);
    strncpy(seen->post, call->post, sizeof seen->post - 1);
    const dw_tensor *y = call->outputs[0];
    float *data = y->data;
    for (int64_t i = 0, count = op_tensor_count(y); i < count; i++) data[i] = 7;
    return seen->answer;
}

typedef struct expectation { const char *op, *text, *attributes, *post; } expectation;

static const expectation expectations[] = {
    {"matmul", "  %1 = matmul x, w {bt=true,post=\"silu\"}\n", "{\"bt\":true}", "silu"},
    {"pad", "  %1 = pad x {before=[0,s],after=[2*s,0],value=-inf}\n", "{\"before\":[0,3],\"after\":[6,0],\"value\":\"-inf\"}", ""},
    {"pad", "  %1 = pad x {before=[1,1],after=[0,0],value=0.5}\n", "{\"before\":[1,1],\"after\":[0,0],\"value\":0.5}", ""},
    {"cast", "  %2 = neg x\n  %3 = cast %2 {to=bf16}\n  %1 = cast %3 {to=f32}\n", "{\"to\":\"f32\"}", ""},
    {"softmax", "  %1 = softmax x {axis=1}\n", "{\"axis\":1}", ""},
};

static void a_kernel_is_told_the_op_with_sizes_as_numbers(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(expectations); i++) {
        const expectation *expected = &expectations[i];
        char words[512];
        dw_context *context;
        dw_registry *registry;
        dw_graph *graph;
        dw_model *model;
        seen seen = {.answer = DW_OK};
        static float w[8 * 4];
        run_io io;
        snprintf(words, sizeof words, "graph g\n  symbol s 1..8\n  input x f32[s,4]\n  param w f32[8,4]\n%s  output y %%1\n", expected->text);
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        assert_ok(context, dw_registry_create(context, &registry));
        assert_ok(context, dw_registry_add(registry, &(dw_kernel_options){.name = "mine", .op = expected->op, .can_post = 1, .run = look, .user = &seen}));
        assert_ok(context, dw_graph_parse(context, "g", words, strlen(words), &graph));
        dw_named_tensor weight = {"w", {.format = DW_FORMAT_f32, .rank = 2, .dims = {8, 4}, .strides = {4, 1}, .data = w}};
        assert_ok(context, dw_graph_bind(graph, 1, &weight));
        assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.registry = registry}, &model));
        dw_session *session = session_of(context, model, "s=3");
        int64_t symbols[] = {3};
        run_io_create(&io, model->captured, symbols, RUN_SMALL_INTEGERS, 1);
        run_io_add_outputs(&io, session);
        assert_ok(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs));
        assert_true(seen.calls >= 1);
        assert_string_equal(seen.attributes, expected->attributes);
        assert_string_equal(seen.post, expected->post);
        assert_true(((float *)io.outputs[0].tensor.data)[0] == 7);
        seen.answer = DW_UNSUPPORTED;
        test_assert_fails(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs), DW_UNSUPPORTED, "kernel mine returned UNSUPPORTED");
        run_io_free(&io);
        dw_session_destroy(session);
        dw_model_destroy(model);
        dw_registry_destroy(registry);
        dw_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_kernel_is_told_the_op_with_sizes_as_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
