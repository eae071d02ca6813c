/* Kernels of the caller's are handed the op as it is: operands, epilogue, attributes with sizes as numbers; and their failure is the run's. Post steps that one does not apply run
 * behind it, and one that nothing took is warned of. */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
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

/* ---- post lists ---- */

/* y = x w^T, and nothing else. */
static dw_status multiply(const dw_kernel_call *call) {
    const dw_tensor *x = call->inputs[0], *w = call->inputs[1], *y = call->outputs[0];
    int *calls = call->user;
    ++*calls;
    if (call->input_count != 2 || call->post[0] != '\0' || strstr(call->attributes, "post") != NULL) return DW_INVALID;
    for (int64_t i = 0; i < y->dims[0]; i++)
        for (int64_t j = 0; j < y->dims[1]; j++) {
            double sum = 0;
            for (int64_t k = 0; k < x->dims[1]; k++) sum += op_tensor_load(x, (int64_t[]){i, k}) * op_tensor_load(w, (int64_t[]){j, k});
            op_tensor_store(y, (int64_t[]){i, j}, sum);
        }
    return DW_OK;
}

typedef struct list { const char *operands, *post, *format; } list;

static const list lists[] = {
    {", b", "bias", "f32"},         {", b", "bias,gelu", "f32"},    {"", "gelu", "f32"},           {"", "gelu_tanh", "f32"},  {"", "quick_gelu", "f32"},  {"", "silu", "f32"},
    {"", "relu", "f32"},            {"", "tanh", "f32"},            {"", "sigmoid", "f32"},        {", r", "mul", "f32"},     {", b, r", "bias,relu,add", "f32"},
    {"", "swiglu", "f32"},          {", b", "bias,geglu", "f32"},   {"", "geglu_tanh", "f32"},     {"", "reglu", "f32"},      {", b, h", "bias,swiglu,add", "f32"},
    {", b, r", "bias,gelu,mul", "bf16"}, {", b", "bias,swiglu", "bf16"}, {", b, h", "bias,reglu,mul", "f16"},
};

static dw_model *model_of_list(dw_context *context, const list *list, const dw_registry *registry) {
    static float w[12 * 4], b[12];
    char words[512];
    dw_graph *graph;
    dw_model *model;
    for (int i = 0; i < 12 * 4; i++) w[i] = (float)(i * 7 % 11 - 5) / 8;
    for (int i = 0; i < 12; i++) b[i] = (float)(i % 5 - 2) / 4;
    snprintf(words, sizeof words,
             "graph g\n  symbol s 1..8\n  input x f32[s,4]\n  input r f32[s,12]\n  input h f32[s,6]\n  param w f32[12,4]\n  param b f32[12]\n"
             "  %%1 = matmul x, w%s {bt=true,post=\"%s\",to=%s} at \"mlp.up\"\n  %%2 = cast %%1 {to=f32}\n  output y %%2\n",
             list->operands, list->post, list->format);
    assert_ok(context, dw_graph_parse(context, "g", words, strlen(words), &graph));
    dw_named_tensor weights[] = {{"w", {.format = DW_FORMAT_f32, .rank = 2, .dims = {12, 4}, .strides = {4, 1}, .data = w}},
                                 {"b", {.format = DW_FORMAT_f32, .rank = 1, .dims = {12}, .strides = {1}, .data = b}}};
    assert_ok(context, dw_graph_bind(graph, 2, weights));
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.registry = registry}, &model));
    return model;
}

static void run_list(dw_context *context, dw_model *model, run_io *io) {
    dw_session *session = session_of(context, model, "s=3");
    run_io_create(io, model->captured, (int64_t[]){3}, RUN_SMALL_INTEGERS, 1);
    run_io_add_outputs(io, session);
    assert_ok(context, dw_session_run(session, io->input_count, io->inputs, io->output_count, io->outputs));
    dw_session_destroy(session);
}

static void explain(dw_context *context, const dw_model *model, text *words);

/* What a list leaves to the kernel's own rounding: an operation of fp32, or of the result's format, which is rounded once more. */
static void post_steps_that_a_kernel_does_not_apply_run_behind_it(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        int calls = 0;
        dw_context *context;
        dw_registry *registry;
        run_io own, plain;
        text words;
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        assert_ok(context, dw_registry_create(context, &registry));
        assert_ok(context, dw_registry_add(registry, &(dw_kernel_options){.name = "mine", .precision = "f32", .run = multiply, .user = &calls}));
        dw_model *with = model_of_list(context, &lists[i], registry), *without = model_of_list(context, &lists[i], NULL);
        run_list(context, with, &own);
        run_list(context, without, &plain);
        assert_int_equal(calls, 1);
        const dw_tensor *a = run_io_output(&own, "y"), *b = run_io_output(&plain, "y");
        const double bound = strcmp(lists[i].format, "f32") == 0 ? 1e-6 : ldexp(1, -7);
        for (int64_t k = 0; k < op_tensor_count(a); k++) {
            const double x = ((const float *)a->data)[k], y = ((const float *)b->data)[k];
            if (fabs(x - y) > bound * fmax(1, fabs(y))) fail_msg("%s: element %lld is %.9g, without the kernel it is %.9g", lists[i].post, (long long)k, x, y);
        }
        explain(context, with, &words);
        if (strstr(text_string(&words), "mlp.up: post list") == NULL || strstr(text_string(&words), "runs behind mine: it applies no post list") == NULL) fail_msg("%s", text_string(&words));
        text_free(&words);
        run_io_free(&own);
        run_io_free(&plain);
        dw_model_destroy(with);
        dw_model_destroy(without);
        dw_registry_destroy(registry);
        dw_context_destroy(context);
    }
}

static void take_words(void *user, const char *bytes, size_t length) { text_printf(user, "%.*s", (int)length, bytes); }

static void explain(dw_context *context, const dw_model *model, text *words) {
    text_init(words, context);
    assert_ok(context, dw_model_print(model, DW_PRINT_EXPLAIN, 0, take_words, words));
}

/* ---- kernels that nothing took ---- */

typedef struct warnings { int count; char last[1024]; } warnings;

static void keep_warning(void *user, dw_log_level level, const char *line) {
    warnings *seen = user;
    if (level != DW_LOG_WARNING) return;
    seen->count++;
    strncpy(seen->last, line, sizeof seen->last - 1);
}

static void a_kernel_that_nothing_took_is_warned_of(void **state) {
    (void)state;
    static const struct { dw_kernel_options options; const char *words; } cases[] = {
        {{.name = "mine", .precision = "mxfp8", .run = multiply}, "registered kernel mine runs no matmul of graph g: operand 0 is f32, it takes mxfp8 (mlp.up)"},
        {{.name = "mine", .min_size = 1 << 20, .run = multiply}, "registered kernel mine runs no matmul of graph g: the least size is 48, below its minimum of 1048576 (mlp.up)"},
        {{.name = "mine", .op = "conv", .run = multiply}, "registered kernel mine runs no conv of graph g: there is no conv"},
        {{.name = "mine", .run = multiply}, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        warnings seen = {0};
        int calls = 0;
        dw_context *context;
        dw_registry *registry;
        dw_kernel_options options = cases[i].options;
        options.user = &calls;
        assert_int_equal(dw_context_create(&(dw_context_options){.log = keep_warning, .log_user = &seen}, &context), DW_OK);
        assert_ok(context, dw_registry_create(context, &registry));
        assert_ok(context, dw_registry_add(registry, &options));
        dw_model *model = model_of_list(context, &lists[1], registry);
        assert_int_equal(seen.count, cases[i].words != NULL);
        if (cases[i].words != NULL) assert_string_equal(seen.last, cases[i].words);
        text words;
        explain(context, model, &words);
        assert_int_equal(strstr(text_string(&words), "runs behind mine") != NULL, cases[i].words == NULL);
        text_free(&words);
        dw_model_destroy(model);
        dw_registry_destroy(registry);
        dw_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_kernel_is_told_the_op_with_sizes_as_numbers), cmocka_unit_test(post_steps_that_a_kernel_does_not_apply_run_behind_it),
                                       cmocka_unit_test(a_kernel_that_nothing_took_is_warned_of)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
