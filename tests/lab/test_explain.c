/* explain says what runs: the kernels that the steps of a GPU's plan launch at its sizes, whichever row was chosen. Plans alone; no device is opened. */
#include "support/support.h"

#include <string.h>

#include "support/session.h"

static const char PRODUCT[] =
    "graph g\n  symbol m 1..\n  input x bf16[m,256]\n  param w bf16[512,256]\n  %1 = matmul x, w {bt=true,to=f32}\n  %2 = softmax %1 {axis=1}\n  output y %2\n";

static void take_words(void *user, const char *bytes, size_t length) { text_printf(user, "%.*s", (int)length, bytes); }

typedef struct expectation { const char *chip, *dims, *kernels, *launches; } expectation;

static const expectation expectations[] = {
    {"h200", "m=1", NULL, "launches matmul_stream_bf16_m1; by sizes 1.. cuda_matmul_skinny, 128.. cuda_matmul_wgmma\n"},
    {"h200", "m=2", NULL, "launches matmul_stream_bf16_m8; by sizes"},
    {"h200", "m=1", "matmul=cuda_matmul_wgmma", "launches matmul_bf16_m64n32 (predicted: "},
    {"h200", "m=4096", NULL, "launches matmul_bf16_m128n128pair; by sizes"},
    {"rtx5090", "m=1", NULL, "launches matmul_stream_bf16_m16_small; by sizes"},
    {"rtx5090", "m=40", "matmul=cuda_matmul_skinny", "launches matmul_stream_bf16_m64_small; by sizes 1.. cuda_matmul_skinny, 128.. refused\n"},
    {"b200", "m=4096", NULL, "launches matmul_tcgen05_half_m256n192; by sizes 1.. cuda_matmul_skinny"},
    {"b200", "m=4096", "matmul=cuda_matmul_tcgen05", "% of the matrix rate, bound by epilogues and beginnings)\n"},
    {"h200", "m=4096", NULL, "launches softmax_rows_f32_1\n"},
    {"cpu-avx2", "m=4096", NULL, NULL},
};

static void explain_tells_what_steps_launch(void **state) {
    (void)state;
    static float w[512 * 256 / 2];
    for (size_t i = 0; i < COUNT_OF(expectations); i++) {
        const expectation *e = &expectations[i];
        dw_context *context;
        dw_graph *graph;
        dw_model *model;
        text words;
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        assert_ok(context, dw_graph_parse(context, "g", PRODUCT, strlen(PRODUCT), &graph));
        dw_named_tensor weight = {"w", {.format = DW_FORMAT_bf16, .rank = 2, .dims = {512, 256}, .strides = {256, 1}, .data = w}};
        assert_ok(context, dw_graph_bind(graph, 1, &weight));
        assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.flags = DW_MODEL_PLAN_ONLY, .chip = e->chip, .dims = e->dims, .kernels = e->kernels}, &model));
        text_init(&words, context);
        assert_ok(context, dw_model_print(model, DW_PRINT_EXPLAIN, 0, take_words, &words));
        if ((strstr(text_string(&words), e->launches != NULL ? e->launches : "launches") != NULL) != (e->launches != NULL)) fail_msg("%s", text_string(&words));
        text_free(&words);
        dw_model_destroy(model);
        dw_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(explain_tells_what_steps_launch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
