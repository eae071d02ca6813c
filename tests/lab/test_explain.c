/* explain says what runs: the kernels that the steps of a GPU's plan launch at its sizes, whichever row was chosen. Plans alone; no device is opened. */
#include "support/support.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "support/session.h"

static const char PRODUCT[] =
    "graph g\n  symbol m 1..\n  input x bf16[m,256]\n  param w bf16[512,256]\n  %1 = matmul x, w {bt=true,to=f32}\n  %2 = softmax %1 {axis=1}\n  output y %2\n";

static void take_words(void *user, const char *bytes, size_t length) { text_printf(user, "%.*s", (int)length, bytes); }

typedef struct expectation { const char *chip, *dims, *kernels, *launches; } expectation;

static const expectation expectations[] = {
    {"h200", "m=1", NULL, "launches matmul_stream_bf16_m1; by sizes 1.. cuda_matmul_skinny, 32.. cuda_matmul_wgmma\n"},
    {"h200", "m=2", NULL, "launches matmul_panel_bf16_m8; by sizes"},
    {"h200", "m=1", "matmul=cuda_matmul_wgmma", "launches matmul_bf16_m64n32 (predicted: "},
    {"h200", "m=4096", NULL, "launches matmul_bf16_m128n128pair; by sizes"},
    {"rtx5090", "m=1", NULL, "launches matmul_stream_bf16_m16_small; by sizes"},
    {"rtx5090", "m=40", "matmul=cuda_matmul_skinny", "launches matmul_stream_bf16_m64_small; by sizes 1.. cuda_matmul_skinny, 128.. refused\n"},
    {"b200", "m=4096", NULL, "launches matmul_tcgen05_half_m256n192; by sizes 1.. cuda_matmul_skinny"},
    {"b200", "m=4096", "matmul=cuda_matmul_tcgen05", "% of the matrix rate, bound by epilogues and beginnings)\n"},
    {"h200", "m=4096", NULL, "launches softmax_rows_f32_1\n"},
    {"cpu-avx2", "m=4096", NULL, NULL},
};

/* What explain prints of the product; the caller frees words. */
static void explain(dw_context *context, const dw_model_options *options, int json, text *words) {
    static float w[512 * 256 / 2];
    dw_graph *graph;
    dw_model *model;
    assert_ok(context, dw_graph_parse(context, "g", PRODUCT, strlen(PRODUCT), &graph));
    dw_named_tensor weight = {"w", {.format = DW_FORMAT_bf16, .rank = 2, .dims = {512, 256}, .strides = {256, 1}, .data = w}};
    assert_ok(context, dw_graph_bind(graph, 1, &weight));
    assert_ok(context, dw_model_create(context, graph, options, &model));
    text_init(words, context);
    assert_ok(context, dw_model_print(model, DW_PRINT_EXPLAIN, json, take_words, words));
    dw_model_destroy(model);
}

static void explain_tells_what_steps_launch(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(expectations); i++) {
        const expectation *e = &expectations[i];
        dw_context *context;
        text words;
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        explain(context, &(dw_model_options){.flags = DW_MODEL_PLAN_ONLY, .chip = e->chip, .dims = e->dims, .kernels = e->kernels}, 0, &words);
        if ((strstr(text_string(&words), e->launches != NULL ? e->launches : "launches") != NULL) != (e->launches != NULL)) fail_msg("%s", text_string(&words));
        text_free(&words);
        dw_context_destroy(context);
    }
}

/* ---- what it costs to be invariant ---- */

/* One row of the product is the skinny kernel's, whose sums follow from the number of rows; of many rows nothing is passed over. */
static void explain_names_what_an_invariant_plan_passes_over(void **state) {
    static const struct { const char *dims; bool passes; } rows[] = {{"m=1", true}, {"m=4096", false}};
    (void)state;
    for (size_t i = 0; i < 2 * COUNT_OF(rows); i++) {
        const unsigned invariant = i % 2 == 0 ? DW_MODEL_INVARIANT : 0;
        dw_context *context;
        text words;
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        explain(context, &(dw_model_options){.flags = DW_MODEL_PLAN_ONLY | invariant, .chip = "h200", .dims = rows[i / 2].dims}, 0, &words);
        const char *told = strstr(text_string(&words), "passed over, to be invariant: cuda_matmul_skinny; by estimate ");
        if ((told != NULL) != (invariant != 0 && rows[i / 2].passes)) fail_msg("%s", text_string(&words));
        if (told != NULL) assert_non_null(strstr(told, " us more for it\n"));
        text_free(&words);
        dw_context_destroy(context);
    }
}

/* ---- beside other precisions ---- */

static json_t *facts_in(dw_context *context, const char *chip, const char *precision, const char *policy, const char *kernels) {
    text words;
    explain(context, &(dw_model_options){.flags = DW_MODEL_PLAN_ONLY, .chip = chip, .dims = "m=64", .precision = precision, .policy = policy, .kernels = kernels}, 1, &words);
    json_t *facts = json_loads(text_string(&words), 0, NULL);
    text_free(&words);
    assert_non_null(facts);
    return facts;
}

static double us_of(const json_t *owner) { return json_real_value(json_object_get(json_object_get(owner, "plan"), "us")); }

/* Each row says what explain itself says of that precision. */
static void costs_beside_are_those_of_the_other_plans(void **state) {
    (void)state;
    static const char *const names[] = {"mxfp8", "bf16", "mxfp8-weights"};
    dw_context *context;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    json_t *facts = facts_in(context, "h200", "mxfp8", NULL, NULL), *rows = json_object_get(facts, "beside");
    assert_int_equal(json_array_size(rows), 3);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        json_t *other = facts_in(context, "h200", names[i], NULL, NULL), *row = json_array_get(rows, i);
        assert_string_equal(json_string_value(json_object_get(row, "precision")), names[i]);
        assert_true(us_of(row) > 0);
        assert_true(fabs(us_of(row) - us_of(other)) < 1e-6 * us_of(other));
        json_decref(other);
    }
    json_decref(facts);
    dw_context_destroy(context);
}

/* Layers that take longer with their quantisers than in bf16 are told, and no other: a large product gains what its quantiser takes. */
static void layers_that_are_slower_than_in_bf16_are_told(void **state) {
    static const char text_of[] = "graph g\n  symbol m 1..4096\n  input x bf16[m,1024]\n  param w bf16[1024,1024]\n  param u bf16[16384,1024]\n  %1 = matmul x, w {bt=true} at \"layers.3.small\"\n"
                                  "  %2 = relu %1\n  %3 = matmul %2, u {bt=true} at \"layers.3.large\"\n  output y %3\n";
    static const struct { const char *dims, *policy; bool small, large; } cases[] = {
        {"m=128", NULL, true, false}, {"m=4096", NULL, true, false},
        {"m=128", "layers.*.small = bf16\n* = fp8", false, false},      /* as the words say: it quantises for the large one now, and that is no precision of its own */
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        dw_context *context;
        text words;
        size_t k;
        json_t *layer;
        bool small = false, large = false;
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        text_init(&words, context);
        dw_model *model = model_of_text(context, text_of, &(dw_model_options){.flags = DW_MODEL_PLAN_ONLY, .chip = "h200", .dims = cases[i].dims, .precision = cases[i].policy == NULL ? "fp8" : NULL, .policy = cases[i].policy});
        assert_ok(context, dw_model_print(model, DW_PRINT_EXPLAIN, 1, take_words, &words));
        json_t *facts = json_loads(text_string(&words), 0, NULL), *own = json_object_get(json_array_get(json_object_get(facts, "beside"), 0), "plan");
        json_array_foreach(json_object_get(own, "slower"), k, layer) {
            const char *name = json_string_value(json_object_get(layer, "layers"));
            small = small || strcmp(name, "layers.*.small") == 0;
            large = large || strcmp(name, "layers.*.large") == 0;
            assert_true(json_real_value(json_object_get(layer, "us")) > json_real_value(json_object_get(layer, "bf16_us")));
        }
        if (small != cases[i].small || large != cases[i].large) fail_msg("%s: %s", cases[i].dims, text_string(&words));
        json_decref(facts);
        text_free(&words);
        dw_model_destroy(model);
        dw_context_destroy(context);
    }
}

static void a_policy_is_beside_bf16_and_what_is_not_quantised_beside_nothing(void **state) {
    (void)state;
    dw_context *context;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    json_t *by_rule = facts_in(context, "h200", NULL, "* = nvfp4", NULL), *plain = facts_in(context, "h200", "bf16", NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(by_rule, "beside")), 2);
    assert_null(json_object_get(plain, "beside"));
    json_decref(by_rule);
    json_decref(plain);
    dw_context_destroy(context);
}

/* A kernel that was asked for and does not take the other precision: its reason is told, and the model explained all the same. */
static void a_precision_that_cannot_be_planned_says_why(void **state) {
    (void)state;
    dw_context *context;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    json_t *facts = facts_in(context, "cpu-avx2", "mxfp8", NULL, "matmul=matmul_fp8_avx2"), *row = json_array_get(json_object_get(facts, "beside"), 1);
    assert_non_null(strstr(json_string_value(json_object_get(row, "refused")), "matmul_fp8_avx2"));
    json_decref(facts);
    dw_context_destroy(context);
}

/* Attention that is in fp32, as exported, while layers are not: what bf16 would take is told beside it, and is what explain says of that rule. Where it is asked for, or layers are fp32, too, nothing is. */
static void scores_in_fp32_are_beside_those_in_bf16(void **state) {
    static const char heads[] = "graph g\n  symbol s 1..\n  input x f32[2,8,s,64]\n  %1 = attention x, x, x {scale=0.125,causal=true}\n  output y %1\n";
    static const char *const asked[] = {"bf16", "role:scores=bf16,bf16", "fp32"};
    double us[COUNT_OF(asked)], beside = 0;
    size_t told[COUNT_OF(asked)];
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(asked); i++) {
        dw_graph *graph;
        dw_model *model;
        text words;
        assert_ok(context, dw_graph_parse(context, "g", heads, strlen(heads), &graph));
        assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.flags = DW_MODEL_PLAN_ONLY, .chip = "h200", .dims = "s=2048", .precision = asked[i]}, &model));
        text_init(&words, context);
        assert_ok(context, dw_model_print(model, DW_PRINT_EXPLAIN, 1, take_words, &words));
        json_t *facts = json_loads(text_string(&words), 0, NULL), *rows = json_object_get(facts, "beside");
        told[i] = json_array_size(rows);
        us[i] = us_of(facts);
        if (i == 0) beside = us_of(json_array_get(rows, 1));
        json_decref(facts);
        text_free(&words);
        dw_model_destroy(model);
    }
    assert_int_equal(told[0], 2);
    assert_int_equal(told[1] + told[2], 0);
    assert_true(fabs(beside - us[1]) < 1e-6 * us[1]);
    assert_true(us[1] < us[0] / 2 && us[0] == us[2]);
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(explain_tells_what_steps_launch),
        cmocka_unit_test(scores_in_fp32_are_beside_those_in_bf16),
        cmocka_unit_test(explain_names_what_an_invariant_plan_passes_over),
        cmocka_unit_test(costs_beside_are_those_of_the_other_plans),
        cmocka_unit_test(layers_that_are_slower_than_in_bf16_are_told),
        cmocka_unit_test(a_policy_is_beside_bf16_and_what_is_not_quantised_beside_nothing),
        cmocka_unit_test(a_precision_that_cannot_be_planned_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
