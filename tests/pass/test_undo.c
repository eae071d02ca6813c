/* A rewrite that does not check is undone: the graph is what it was, a note says why, and the model still opens. One that broke the graph is an error. */
#include "support/support.h"

#include <string.h>

#include "pass/fuse/fuse.h"

static const char words[] = "graph g\n  input x f32[3,4]\n  input y f32[3,4]\n  %1 = exp x at \"first\"\n  %2 = add %1, y\n  %3 = neg %2\n  output z %3\n";

static ir_graph *parse(dw_context *context) {
    ir_graph *graph;
    if (ir_parse(context, "g", words, strlen(words), NULL, &graph) != DW_OK) fail_msg("%s", dw_context_error(context));
    return graph;
}

/* Emits a constant, and of it a sum that does not broadcast. */
static dw_status emit_what_does_not_fit(ir_graph *graph, ir_value **made) {
    ir_value *five;
    dw_tensor data;
    TRY(ir_add_constant(graph, NULL, DW_FORMAT_f32, 1, (int64_t[]){5}, &five, &data));
    TRY(ir_emit_1(graph, OP_exp, five, &five));
    return ir_emit_2(graph, OP_add, five, graph->inputs[0], made);
}

static dw_status never_fits(ir_graph *graph, ir_node *node, bool *changed) {
    ir_value *made;
    if (node->op != OP_exp) return DW_OK;
    fuse_cursor(graph, node, node);
    TRY(emit_what_does_not_fit(graph, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}

static dw_status breaks_first(ir_graph *graph, ir_node *node, bool *changed) {
    ir_value *row, *made;
    (void)changed;
    if (node->op != OP_neg) return DW_OK;
    fuse_cursor(graph, node, node);
    TRY(ir_emit_slice(graph, ir_in(node, 0), 0, dim_constant(graph->dims, 0), dim_constant(graph->dims, 1), 1, &row));
    ir_set_operand(node, 0, row);   /* the result is of three rows still */
    return emit_what_does_not_fit(graph, &made);
}

static void what_does_not_check_is_undone(void **state) {
    dw_context *context = *state;
    ir_graph *graph = parse(context);
    text before, after;
    text_init(&before, context);
    text_init(&after, context);
    assert_int_equal(ir_print(graph, &before), DW_OK);
    for (int turn = 0; turn < 2; turn++) {
        bool changed = false;
        if (fuse_each(graph, "trial", never_fits, &changed) != DW_OK) fail_msg("%s", dw_context_error(context));
        assert_false(changed);
    }
    const char *note = map_find(&graph->notes, PASS_UNDONE "trial.first");
    assert_non_null(note);
    assert_non_null(strstr(note, "fusion trial is undone, as what it makes does not check: MISMATCH: add"));
    assert_int_equal(graph->param_count, 0);
    graph->notes.count = 0;   /* the only one */
    assert_int_equal(ir_check(graph), DW_OK);
    assert_int_equal(ir_print(graph, &after), DW_OK);
    assert_string_equal(text_string(&after), text_string(&before));
    text_free(&before);
    text_free(&after);
    ir_graph_destroy(graph);
}

static void a_broken_graph_is_an_error(void **state) {
    dw_context *context = *state;
    ir_graph *graph = parse(context);
    bool changed = false;
    test_assert_fails(context, fuse_each(graph, "trial", breaks_first, &changed), DW_MISMATCH, "fusion trial: MISMATCH: add");
    ir_graph_destroy(graph);
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_does_not_check_is_undone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_broken_graph_is_an_error, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
