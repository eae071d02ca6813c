/* The tables of ops, attributes and post steps, and the text form of types. */
#include "support/support.h"

#include "op/op.h"

#include <math.h>
#include <string.h>

static void every_name_finds_its_row(void **state) {
    (void)state;
    for (int i = 0; i < OP_COUNT; i++) {
        const op_def *op = op_get((op_id)i);
        assert_int_equal(op->id, i);
        assert_int_equal(op_find(op->name), i);
        assert_true(op->min_in <= op->max_in && op->min_out <= op->max_out && op->min_out >= 1);
        assert_true(op->infer != NULL && op->reference != NULL && op->work != NULL);
    }
    for (int i = 0; i < OP_ATTR_COUNT; i++) assert_int_equal(op_attr_find(op_attr_name((op_attr_id)i)), i);
    assert_int_equal(op_find("adds"), OP_COUNT);
    assert_int_equal(op_attr_find(""), OP_ATTR_COUNT);
}

static void every_listed_attribute_exists(void **state) {
    (void)state;
    for (int i = 0; i < OP_COUNT; i++) {
        char word[64];
        for (const char *at = op_get((op_id)i)->attributes; *at != '\0'; at += strspn(at, "? ")) {
            size_t length = strcspn(at, "? ");
            snprintf(word, sizeof word, "%.*s", (int)length, at);
            if (op_attr_find(word) == OP_ATTR_COUNT) fail_msg("%s lists the attribute %s, which attr.def lacks", op_get((op_id)i)->name, word);
            at += length;
        }
    }
}

static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at++)
        if ((at == list || at[-1] == ' ') && strchr(" ?", at[length]) != NULL) return true;
    return false;
}

static void every_attribute_is_taken_by_some_op(void **state) {
    (void)state;
    for (int i = 0; i < OP_ATTR_COUNT; i++) {
        const char *name = op_attr_name((op_attr_id)i);
        bool taken = false;
        for (int j = 0; j < OP_COUNT && !taken; j++) taken = has_word(op_get((op_id)j)->attributes, name);
        if (!taken) fail_msg("no op takes the attribute %s", name);
    }
}

static void absent_attributes_read_as_nothing(void **state) {
    (void)state;
    op_attrs none = {0, NULL};
    const int64_t *integers;
    const dim *dims;
    assert_int_equal(op_attr_int(&none, OP_ATTR_axis), 0);
    assert_false(op_attr_bool(&none, OP_ATTR_keep));
    assert_true(op_attr_real(&none, OP_ATTR_eps) == 0.0);
    assert_string_equal(op_attr_text(&none, OP_ATTR_post), "");
    assert_int_equal(op_attr_format(&none, OP_ATTR_to), DW_FORMAT_COUNT);
    assert_null(op_attr_dim(&none, OP_ATTR_offset));
    assert_int_equal(op_attr_ints(&none, OP_ATTR_axes, &integers), 0);
    assert_int_equal(op_attr_dims(&none, OP_ATTR_shape, &dims), 0);
}

static void equal_attributes_compare_by_value(void **state) {
    (void)state;
    const int64_t one[] = {0, 2}, same[] = {0, 2}, other[] = {0, 1};
    const op_attr a[] = {op_set_ints(OP_ATTR_axes, 2, one), op_set_bool(OP_ATTR_keep, true)};
    const op_attr b[] = {op_set_ints(OP_ATTR_axes, 2, same), op_set_bool(OP_ATTR_keep, true)};
    const op_attr c[] = {op_set_ints(OP_ATTR_axes, 2, other), op_set_bool(OP_ATTR_keep, true)};
    const op_attr d[] = {op_set_text(OP_ATTR_post, "relu")}, e[] = {op_set_text(OP_ATTR_post, "silu")};
    assert_true(op_attrs_equal(&(op_attrs){2, a}, &(op_attrs){2, b}));
    assert_false(op_attrs_equal(&(op_attrs){2, a}, &(op_attrs){2, c}));
    assert_false(op_attrs_equal(&(op_attrs){2, a}, &(op_attrs){1, a}));
    assert_false(op_attrs_equal(&(op_attrs){1, d}, &(op_attrs){1, e}));
}

static void a_residual_makes_a_second_result(void **state) {
    (void)state;
    const op_attrs none = {0, NULL};
    const bool all[] = {true, true, true, true}, without_last[] = {true, true, true, false};
    assert_int_equal(op_result_count(OP_layer_norm, &none, 4, all), 2);
    assert_int_equal(op_result_count(OP_layer_norm, &none, 4, without_last), 1);
    assert_int_equal(op_result_count(OP_layer_norm, &none, 3, all), 1);
    assert_int_equal(op_result_count(OP_rms_norm, &none, 3, all), 2);
    assert_int_equal(op_result_count(OP_topk, &none, 1, all), 2);
    assert_int_equal(op_result_count(OP_group_norm, &none, 3, all), 1);
}

static void post_steps_round_like_the_functions_they_name(void **state) {
    (void)state;
    assert_true(op_post_apply(OP_POST_bias, 1.5f, 2.0f) == 3.5f);
    assert_true(op_post_apply(OP_POST_relu, -1.0f, 0) == 0.0f && isnan(op_post_apply(OP_POST_relu, NAN, 0)));
    assert_true(op_post_apply(OP_POST_swiglu, 1.0f, 2.0f) == 2.0f * op_post_apply(OP_POST_silu, 1.0f, 0));
    assert_true(op_post_apply(OP_POST_sigmoid, 0, 0) == 0.5f);
    assert_int_equal(op_post_operand_of(OP_POST_mul), OP_POST_FULL);
    assert_true(op_post_halves(OP_POST_reglu) && !op_post_halves(OP_POST_gelu));
}

static void a_step_is_found_by_its_op(void **state) {
    (void)state;
    for (int i = 0; i < OP_POST_COUNT; i++) {
        const op_post step = (op_post)i;
        assert_true(op_post_op(step) < OP_COUNT && op_has(op_post_op(step), OP_TRAIT_POINTWISE));
        if (op_post_operand_of(step) == OP_POST_NONE) assert_int_equal(op_post_of(op_post_op(step), op_post_halves(step)), step);
    }
    assert_int_equal(op_post_of(OP_tanh, true), OP_POST_COUNT);
    assert_int_equal(op_post_of(OP_add, false), OP_POST_COUNT);
}

/* Other layers bound differences by these. */
static void traits_do_not_contradict_each_other(void **state) {
    (void)state;
    for (int i = 0; i < OP_COUNT; i++) {
        const op_id op = (op_id)i;
        if (op_has(op, OP_TRAIT_EXACT) && op_has(op, OP_TRAIT_APPROXIMATE | OP_TRAIT_QUOTIENT | OP_TRAIT_TAILS)) fail_msg("%s is exact and is not", op_get(op)->name);
        if (op_has(op, OP_TRAIT_TAILS) && !op_has(op, OP_TRAIT_APPROXIMATE)) fail_msg("%s loses tails but is not approximate", op_get(op)->name);
        if (op_has(op, OP_TRAIT_ACTIVATION) && op_get(op)->max_in != 1) fail_msg("%s is an activation of several operands", op_get(op)->name);
    }
}

static void values_are_those_of_the_reference(void **state) {
    (void)state;
    const double x[] = {-7.5, 2.0};
    double value;
    assert_true(op_pointwise_value(OP_remainder, 2, x, &value) && value == 0.5);
    assert_true(op_pointwise_value(OP_relu, 1, x, &value) && value == 0.0);
    assert_false(op_pointwise_value(OP_xor, 2, x, &value));
    assert_false(op_pointwise_value(OP_relu, 2, x, &value));
    assert_false(op_pointwise_value(OP_cast, 1, x, &value));
}

/* A type is printed, parsed and printed again. */
static void types_survive_their_text(void **state) {
    (void)state;
    static const char *const texts[] = {"f32[]", "bf16[s0,4096]", "mxfp8@tile128x4[128,64]", "i64[2*b,s0+1]", "nvfp4_row[b,s0,32]", "bool[1,1,1,1,1,1,1,1]"};
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    dim_table *dims;
    assert_int_equal(dim_table_create(context, &dims), DW_OK);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        arena arena;
        scanner scanner;
        op_type type;
        text text;
        arena_init(&arena, context);
        text_init(&text, context);
        assert_int_equal(scan_open(&scanner, &arena, "type", texts[i], strlen(texts[i])), DW_OK);
        assert_int_equal(op_type_parse(&scanner, dims, &type), DW_OK);
        assert_int_equal(scanner.kind, SCAN_END);
        op_type_print(&text, dims, &type);
        assert_string_equal(text_string(&text), texts[i]);
        text_free(&text);
        arena_free(&arena);
    }
    dim_table_destroy(dims);
    dw_context_destroy(context);
}

static void broken_types_are_refused(void **state) {
    (void)state;
    static const struct { const char *text, *part; } cases[] = {
        {"f33[2]", "a number format is expected"}, {"[2]", "a type such as f32[2,3] is expected"}, {"f32", "'['"}, {"f32[2", "','"},
        {"mxfp8@tiled[2,32]", "plain or tile128x4"}, {"fp8_128x128@tile128x4[2,32]", "fp8_128x128 has no scales in layout tile128x4"},
        {"f32[1,1,1,1,1,1,1,1,1]", "at most 8 dimensions"}, {"f32[2,]", ""},
    };
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    dim_table *dims;
    assert_int_equal(dim_table_create(context, &dims), DW_OK);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        arena arena;
        scanner scanner;
        op_type type;
        arena_init(&arena, context);
        assert_int_equal(scan_open(&scanner, &arena, "type", cases[i].text, strlen(cases[i].text)), DW_OK);
        test_assert_fails(context, op_type_parse(&scanner, dims, &type), DW_SYNTAX, cases[i].part);
        arena_free(&arena);
    }
    dim_table_destroy(dims);
    dw_context_destroy(context);
}

/* Inference of a product with a symbol, a post list and a result that is printed; then one that fails. */
static dw_status infer_products(dw_context *context, void *argument) {
    (void)argument;
    dim_table *dims;
    TRY(dim_table_create(context, &dims));
    dim s = dim_symbol(dims, "s0", 1, 64), k = dim_constant(dims, 32), n = dim_constant(dims, 10), wrong = dim_constant(dims, 7);
    dw_status status = base_last_status(context);
    if (s != NULL && k != NULL && n != NULL && wrong != NULL) {
        op_type a = {.format = DW_FORMAT_f32, .rank = 2, .dims = {s, k}}, b = {.format = DW_FORMAT_f32, .rank = 2, .dims = {k, n}}, out;
        const op_type *in[] = {&a, &b};
        op_attr attr = op_set_text(OP_ATTR_post, "swiglu");
        op_attrs attrs = {1, &attr};
        op_infer infer = {context, dims, op_get(OP_matmul), &attrs, 2, in, 1, &out};
        status = op_infer_types(&infer);
        if (status == DW_OK) {
            assert_true(out.dims[0] == s && out.dims[1] == dim_constant(dims, 5));
            b.dims[0] = wrong;
            status = op_infer_types(&infer);
            assert_int_not_equal(status, DW_OK);
            if (status == DW_MISMATCH) status = DW_OK;
        }
    }
    dim_table_destroy(dims);
    return status;
}

static void inference_survives_failing_allocations(void **state) {
    (void)state;
    test_every_allocation(infer_products, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_finds_its_row),
        cmocka_unit_test(every_listed_attribute_exists),
        cmocka_unit_test(every_attribute_is_taken_by_some_op),
        cmocka_unit_test(absent_attributes_read_as_nothing),
        cmocka_unit_test(equal_attributes_compare_by_value),
        cmocka_unit_test(a_residual_makes_a_second_result),
        cmocka_unit_test(post_steps_round_like_the_functions_they_name), cmocka_unit_test(a_step_is_found_by_its_op), cmocka_unit_test(traits_do_not_contradict_each_other),
        cmocka_unit_test(values_are_those_of_the_reference),
        cmocka_unit_test(types_survive_their_text),
        cmocka_unit_test(broken_types_are_refused),
        cmocka_unit_test(inference_survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
