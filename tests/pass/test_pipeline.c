/* The pipeline as a whole, and the property that every cleaning pass has: a random graph means the same, bit for bit, before and after. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "pass/pass.h"
#include "support/evaluate.h"
#include "support/random_graph.h"

enum { GRAPHS = 400 };

/* ---- the property ---- */

/* Numbers on which careless identities fail, among normal ones. */
static dw_status bind_inputs(evaluation *evaluation, const ir_graph *graph) {
    const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, 1e-40, -1e30, 65520.0, 0.1};
    TRY(evaluation_set_symbol(evaluation, "s", 5));
    for (size_t i = 0; i < graph->input_count; i++) {
        const ir_value *input = graph->inputs[i];
        int64_t dims[DW_MAX_RANK], index[DW_MAX_RANK] = {0};
        dw_tensor tensor;
        if (num_info(input->type.format)->class != NUM_FLOAT) continue;
        for (int axis = 0; axis < input->type.rank; axis++) {
            if (!dim_is_constant(input->type.dims[axis], &dims[axis])) dims[axis] = 5;
        }
        TRY(evaluation_bind_new(evaluation, input->name, input->type.rank, dims, &tensor));
        for (int64_t j = 0; j < op_tensor_count(&tensor); j++) {
            uint64_t choice = num_random(i, (uint64_t)j) % (2 * COUNT_OF(special));
            op_tensor_store(&tensor, index, choice < COUNT_OF(special) ? special[choice] : (double)num_random_normal(i, (uint64_t)j));
            op_tensor_next(&tensor, index);
        }
    }
    return evaluation_bind_random(evaluation, 3);
}

static evaluation *evaluate(const ir_graph *graph) {
    evaluation *made;
    dw_status status = evaluation_create(graph, &made);
    if (status == DW_OK) status = bind_inputs(made, graph);
    if (status == DW_OK) status = evaluation_run(made);
    if (status != DW_OK) fail_msg("%s", dw_context_error(graph->context));
    return made;
}

static void show_graph(const ir_graph *graph, const char *title) {
    text text;
    text_init(&text, graph->context);
    ir_print(graph, &text);
    print_error("%s:\n%s", title, text_string(&text));
    text_free(&text);
}

static void assert_same_outputs(const ir_graph *before, const evaluation *expected, const ir_graph *after, uint64_t seed, const char *what) {
    evaluation *made = evaluate(after);
    for (size_t i = 0; i < before->output_count; i++) {
        const dw_tensor *a = evaluation_value(expected, before->outputs[i].value), *b = evaluation_value(made, after->outputs[i].value);
        if (tensor_is_same(a, b)) continue;
        show_graph(before, "before");
        show_graph(after, "after");
        fail_msg("graph %llu: output %s changes by %s, relative error %g", (unsigned long long)seed, before->outputs[i].name, what, tensor_error(b, a));
    }
    evaluation_destroy(made);
}

static void cleaning_keeps_every_bit_of_random_graphs(void **state) {
    dw_context *context = *state;
    static const char *const names[] = {"fold", "cse", "dead", NULL};
    const pass_options options = {.check = true};
    int removed = 0;
    for (uint64_t seed = 0; seed < GRAPHS; seed++) {
        ir_graph *before, *after;
        assert_int_equal(random_graph(context, seed, 0, &before), DW_OK);
        if (ir_check(before) != DW_OK) fail_msg("%s", dw_context_error(context));
        evaluation *expected = evaluate(before);
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            bool changed;
            assert_int_equal(ir_graph_clone(before, &after), DW_OK);
            dw_status status = names[i] != NULL ? pass_run_one(after, pass_find(names[i]), &options, &changed) : pass_run(after, PASS_STAGE_CLEAN, &options);
            if (status != DW_OK) fail_msg("graph %llu: %s", (unsigned long long)seed, dw_context_error(context));
            assert_same_outputs(before, expected, after, seed, names[i] != NULL ? names[i] : "the cleaning stage");
            removed += before->last->order - (after->last != NULL ? after->last->order : 0);
            ir_graph_destroy(after);
        }
        evaluation_destroy(expected);
        ir_graph_destroy(before);
    }
    assert_true(removed > GRAPHS);   /* the graphs are such that passes have work */
}

static void random_graphs_survive_their_text(void **state) {
    dw_context *context = *state;
    for (uint64_t seed = 0; seed < GRAPHS; seed++) {
        ir_graph *before, *after;
        text first, second;
        assert_int_equal(random_graph(context, seed, 0, &before), DW_OK);
        text_init(&first, context);
        text_init(&second, context);
        assert_int_equal(ir_print(before, &first), DW_OK);
        if (ir_parse(context, "random", text_string(&first), first.length, NULL, &after) != DW_OK) fail_msg("%s", dw_context_error(context));
        assert_int_equal(ir_print(after, &second), DW_OK);
        assert_string_equal(text_string(&first), text_string(&second));
        evaluation *expected = evaluate(before);
        assert_same_outputs(before, expected, after, seed, "printing and parsing");
        evaluation_destroy(expected);
        text_free(&first);
        text_free(&second);
        ir_graph_destroy(after);
        ir_graph_destroy(before);
    }
}

/* ---- the pipeline ---- */

static const char small[] =
    "graph g\n  symbol s 1..8\n  input x f32[s]\n  const const.0 f32[2] = 1, 2\n  const const.1 i64[2] = 1, 0\n  const const.2 i64[2] = 0, 1\n"
    "  %1 = size {size=s}\n  %2 = add %1, %1\n  %3 = add const.0, const.0\n  %4 = floordiv const.1, const.2\n  %5 = exp x\n  %6 = exp x\n"
    "  %7 = add %5, %6\n  output n %2\n  output c %3\n  output y %7\n";

static ir_graph *parse_small(dw_context *context) {
    ir_graph *graph;
    if (ir_parse(context, "small", small, strlen(small), NULL, &graph) != DW_OK) fail_msg("%s", dw_context_error(context));
    return graph;
}

static void count_shown(void *user, const char *pass, const char *graph) {
    assert_string_equal(pass, "cse");
    assert_non_null(strstr(graph, "graph g\n"));
    ++*(int *)user;
}

static void a_stage_runs_until_nothing_changes_and_shows_what_is_asked_for(void **state) {
    dw_context *context = *state;
    int shown = 0;
    pass_options options = {.check = true, .dump = "cse", .show = count_shown, .user = &shown};
    ir_graph *graph = parse_small(context);
    if (pass_run(graph, PASS_STAGE_CLEAN, &options) != DW_OK) fail_msg("%s", dw_context_error(context));
    assert_int_equal(shown, 2);
    text text;
    text_init(&text, context);
    assert_int_equal(ir_print(graph, &text), DW_OK);
    assert_string_equal(text_string(&text),
                        "graph g\n  symbol s 1..8\n  input  x f32[s]\n  const  const.3 f32[2] = 2, 4\n"
                        "  %1 = size {size=2*s}\n  %2 = exp x\n  %3 = add %2, %2\n  output n %1\n  output c const.3\n  output y %3\n");
    text_free(&text);
    options.dump = "no_such_pass";
    test_assert_fails(context, pass_run(graph, PASS_STAGE_CLEAN, &options), DW_NOT_FOUND, "no pass 'no_such_pass'");
    ir_graph_destroy(graph);
}

static void a_division_by_zero_is_not_folded(void **state) {
    dw_context *context = *state;
    const pass_options options = {.check = true};
    bool changed;
    ir_graph *graph = parse_small(context);
    assert_int_equal(pass_run_one(graph, pass_find("fold"), &options, &changed), DW_OK);
    int divisions = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) divisions += node->op == OP_floordiv;
    assert_int_equal(divisions, 1);
    ir_graph_destroy(graph);
}

static void buffers_are_read_and_parameters_are_not(void **state) {
    dw_context *context = *state;
    static const char source[] = "graph g\n  param b f32[80]\n  param p f32[80]\n  %1 = neg b\n  %2 = neg p\n  output x %1\n  output y %2\n";
    const pass_options options = {.check = true}, small_options = {.check = true, .fold_bytes = 256};
    ir_weights weights;
    ir_weight *weight;
    ir_graph *graph;
    bool changed;
    ir_weights_init(&weights, context);
    const char *const names[] = {"b", "p"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ir_weights_new(&weights, names[i], DW_FORMAT_f32, 1, (int64_t[]){80}, &weight), DW_OK);
        for (int64_t j = 0; j < 80; j++) op_tensor_store(&weight->tensor, &j, (double)j);
        weight->buffer = i == 0;
    }
    assert_int_equal(ir_parse(context, "s", source, strlen(source), &weights, &graph), DW_OK);
    assert_int_equal(pass_run_one(graph, pass_find("fold"), &small_options, &changed), DW_OK);
    assert_false(changed);
    assert_int_equal(pass_run_one(graph, pass_find("fold"), &options, &changed), DW_OK);
    assert_true(changed);
    assert_string_equal(graph->outputs[0].value->name, "const.0.b");
    assert_ptr_equal(graph->outputs[0].value->weight, ir_weights_find(&weights, "const.0.b"));
    assert_true(op_tensor_load(&graph->outputs[0].value->weight->tensor, (int64_t[]){79}) == -79.0);
    assert_non_null(ir_def(graph->outputs[1].value, OP_neg));
    ir_graph_destroy(graph);
    ir_weights_free(&weights);
}

static dw_status clean_small(dw_context *context, void *argument) {
    ir_graph *graph;
    const pass_options options = {.check = true};
    (void)argument;
    TRY(ir_parse(context, "small", small, strlen(small), NULL, &graph));
    dw_status status = pass_run(graph, PASS_STAGE_CLEAN, &options);
    ir_graph_destroy(graph);
    return status;
}

static void every_allocation_of_cleaning_may_fail(void **state) {
    (void)state;
    test_every_allocation(clean_small, NULL);
}

static void passes_are_found_by_name(void **state) {
    (void)state;
    for (int i = 0; pass_get(i) != NULL; i++) assert_ptr_equal(pass_find(pass_get(i)->name), pass_get(i));
    assert_null(pass_find("nonsense"));
    assert_null(pass_get(-1));
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cleaning_keeps_every_bit_of_random_graphs, setup, teardown),
        cmocka_unit_test_setup_teardown(random_graphs_survive_their_text, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stage_runs_until_nothing_changes_and_shows_what_is_asked_for, setup, teardown),
        cmocka_unit_test_setup_teardown(a_division_by_zero_is_not_folded, setup, teardown),
        cmocka_unit_test_setup_teardown(buffers_are_read_and_parameters_are_not, setup, teardown),
        cmocka_unit_test(every_allocation_of_cleaning_may_fail),
        cmocka_unit_test(passes_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
