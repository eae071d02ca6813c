/* The oracle itself: symbols from shapes, states across runs, what does not fit. */
#include "support/evaluate.h"

#include <string.h>

#include "support/support.h"

static const char counter[] =
    "graph g\n  symbol s 1..8\n  input x f32[s,2]\n  state total f32[2]\n"
    "  %1 = sum x {axes=[0]}\n  %2 = add total, %1\n  %3 = size {size=2*s}\n  next total %2\n  output y %2\n  output before total\n  output n %3\n";

typedef struct fixture {
    dw_context *context;
    ir_graph *graph;
    evaluation *evaluation;
} fixture;

static void ok(fixture *f, dw_status status) {
    if (status != DW_OK) fail_msg("%s", dw_context_error(f->context));
}

static int setup(void **state) {
    static fixture made;
    made = (fixture){0};
    *state = &made;
    if (dw_context_create(NULL, &made.context) != DW_OK) return -1;
    if (ir_parse(made.context, "counter", counter, strlen(counter), NULL, &made.graph) != DW_OK) return -1;
    return evaluation_create(made.graph, &made.evaluation) == DW_OK ? 0 : -1;
}

static int teardown(void **state) {
    fixture *f = *state;
    evaluation_destroy(f->evaluation);
    ir_graph_destroy(f->graph);
    dw_context_destroy(f->context);
    return 0;
}

static void bind(fixture *f, float *data, int64_t rows) {
    dw_tensor x;
    assert_true(op_tensor_init(&x, DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){rows, 2}, data));
    ok(f, evaluation_bind(f->evaluation, "x", &x));
}

static double at(const dw_tensor *tensor, int64_t index) { return op_tensor_load(tensor, &index); }

static void states_live_across_runs_until_reset(void **state) {
    fixture *f = *state;
    float data[] = {1, 2, 3, 4};
    bind(f, data, 2);
    for (int run = 1; run <= 3; run++) {
        ok(f, evaluation_run(f->evaluation));
        assert_true(at(evaluation_output(f->evaluation, "y"), 0) == 4 * run);
        assert_true(at(evaluation_output(f->evaluation, "before"), 1) == 6 * (run - 1));
        assert_true(at(evaluation_state(f->evaluation, "total"), 1) == 6 * run);
    }
    evaluation_reset(f->evaluation);
    ok(f, evaluation_run(f->evaluation));
    assert_true(at(evaluation_output(f->evaluation, "y"), 0) == 4);
}

static void symbols_come_from_shapes_anew_in_each_run(void **state) {
    fixture *f = *state;
    float data[] = {1, 2, 3, 4, 5, 6};
    for (int64_t rows = 1; rows <= 3; rows++) {
        bind(f, data, rows);
        ok(f, evaluation_run(f->evaluation));
        assert_int_equal(evaluation_symbols(f->evaluation)[0], rows);
        assert_int_equal(op_tensor_load_int(evaluation_output(f->evaluation, "n"), NULL), 2 * rows);
    }
}

static void what_does_not_fit_is_told(void **state) {
    fixture *f = *state;
    dw_tensor wrong;
    float data[6] = {0};
    test_assert_fails(f->context, evaluation_run(f->evaluation), DW_INVALID, "symbol 's' has no value");
    ok(f, evaluation_set_symbol(f->evaluation, "s", 2));
    test_assert_fails(f->context, evaluation_run(f->evaluation), DW_NOT_FOUND, "'x' is not bound");
    bind(f, data, 3);
    test_assert_fails(f->context, evaluation_run(f->evaluation), DW_MISMATCH, "axis 0 of 'x' has size 3 instead of 2");
    assert_true(op_tensor_init(&wrong, DW_FORMAT_i32, DW_SCALE_plain, 2, (int64_t[]){2, 2}, data));
    ok(f, evaluation_bind(f->evaluation, "x", &wrong));
    test_assert_fails(f->context, evaluation_run(f->evaluation), DW_MISMATCH, "i32 of rank 2 instead of f32 of rank 2");
    test_assert_fails(f->context, evaluation_bind(f->evaluation, "z", &wrong), DW_NOT_FOUND, "'z'");
    test_assert_fails(f->context, evaluation_set_symbol(f->evaluation, "t", 1), DW_NOT_FOUND, "'t'");
}

static void random_data_is_the_same_for_the_same_seed(void **state) {
    fixture *f = *state;
    ok(f, evaluation_bind_random(f->evaluation, 7));
    ok(f, evaluation_run(f->evaluation));
    evaluation *again;
    ok(f, evaluation_create(f->graph, &again));
    ok(f, evaluation_bind_random(again, 7));
    ok(f, evaluation_run(again));
    assert_true(tensor_is_same(evaluation_output(again, "y"), evaluation_output(f->evaluation, "y")));
    assert_true(at(evaluation_output(again, "y"), 0) != 0.0);
    evaluation_destroy(again);
}

static void errors_of_tensors(void **state) {
    (void)state;
    float a[] = {3, 4}, b[] = {3, 5}, negative_zero[] = {-0.0f, 4}, zero[] = {0, 4};
    dw_tensor x, y;
    assert_true(op_tensor_init(&x, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){2}, b));
    assert_true(op_tensor_init(&y, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){2}, a));
    assert_true(tensor_error(&x, &y) == 0.2);
    assert_true(tensor_error(&y, &y) == 0.0);
    assert_true(tensor_is_same(&y, &y));
    assert_false(tensor_is_same(&x, &y));
    x.data = negative_zero, y.data = zero;
    assert_false(tensor_is_same(&x, &y));
    assert_true(tensor_error(&x, &y) == 0.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(states_live_across_runs_until_reset, setup, teardown),
        cmocka_unit_test_setup_teardown(symbols_come_from_shapes_anew_in_each_run, setup, teardown),
        cmocka_unit_test_setup_teardown(what_does_not_fit_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(random_data_is_the_same_for_the_same_seed, setup, teardown),
        cmocka_unit_test(errors_of_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
