/* Graphs built and changed by calls: weights, nodes, order, clones, checks that find what is broken, and size. Text is in test_cases.c. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "ir/ir.h"

typedef struct fixture {
    test_memory memory;
    dw_context *context;
    ir_graph *graph;
} fixture;

static int setup(void **state) {
    static fixture made;
    made = (fixture){0};
    made.context = test_context_create(&made.memory, 1);
    *state = &made;
    return ir_graph_create(made.context, "g", &made.graph) == DW_OK ? 0 : -1;
}

static int teardown(void **state) {
    fixture *f = *state;
    ir_graph_destroy(f->graph);
    dw_context_destroy(f->context);
    return f->memory.live_count == 0 ? 0 : -1;
}

static void ok(fixture *f, dw_status status) {
    if (status != DW_OK) fail_msg("%s", dw_context_error(f->context));
}

static op_type type_of(fixture *f, dw_format format, int rank, const int64_t *dims) {
    op_type type = {.format = format, .rank = rank};
    for (int i = 0; i < rank; i++) {
        type.dims[i] = dim_constant(f->graph->dims, dims[i]);
        assert_non_null(type.dims[i]);
    }
    return type;
}

static ir_value *input(fixture *f, const char *name, int64_t size) {
    op_type type = type_of(f, DW_FORMAT_f32, 1, &size);
    ir_value *value;
    ok(f, ir_add_input(f->graph, name, &type, &value));
    return value;
}

static ir_value *emit_1(fixture *f, op_id op, ir_value *x) {
    ir_value *y;
    ok(f, ir_emit_1(f->graph, op, x, &y));
    return y;
}

static ir_value *emit_2(fixture *f, op_id op, ir_value *x, ir_value *y) {
    ir_value *z;
    ok(f, ir_emit_2(f->graph, op, x, y, &z));
    return z;
}

static void assert_prints(fixture *f, const ir_graph *graph, const char *expected) {
    text text;
    text_init(&text, f->context);
    ok(f, ir_print(graph, &text));
    assert_string_equal(text_string(&text), expected);
    text_free(&text);
}

static ir_graph *parse(fixture *f, const char *source, ir_weights *weights) {
    ir_graph *graph;
    ok(f, ir_parse(f->context, "test", source, strlen(source), weights, &graph));
    return graph;
}

/* ---- weights ---- */

static void release_flag(void *owner) { *(int *)owner += 1; }

static void weights_release_their_storages_once(void **state) {
    fixture *f = *state;
    int released = 0;
    ir_weights weights;
    ir_weights_init(&weights, f->context);
    ok(f, ir_weights_own(&weights, (ir_storage){NULL, 0, release_flag, &released}));
    ok(f, ir_weights_own(&weights, (ir_storage){NULL, 0, NULL, NULL}));
    ir_weights_free(&weights);
    assert_int_equal(released, 1);
    ir_weights_free(&weights);
    assert_int_equal(released, 1);
}

static void a_storage_is_released_when_it_cannot_be_kept(void **state) {
    (void)state;
    for (size_t fail_at = 2;; fail_at++) {
        test_memory memory = {.fail_at = fail_at};
        dw_context *context = test_context_create(&memory, 1);
        int released = 0;
        ir_weights weights;
        ir_weights_init(&weights, context);
        dw_status status = ir_weights_own(&weights, (ir_storage){NULL, 0, release_flag, &released});
        assert_int_equal(released, status != DW_OK);
        ir_weights_free(&weights);
        assert_int_equal(released, 1);
        dw_context_destroy(context);
        if (status == DW_OK) break;
    }
}

static void a_new_weight_is_zero_and_its_name_is_taken(void **state) {
    fixture *f = *state;
    ir_weights weights;
    ir_weight *weight, *again;
    int64_t dims[] = {3, 5}, index[] = {2, 4};
    ir_weights_init(&weights, f->context);
    ok(f, ir_weights_new(&weights, "w", DW_FORMAT_bf16, 2, dims, &weight));
    assert_true(op_tensor_load(&weight->tensor, index) == 0.0);
    assert_ptr_equal(ir_weights_find(&weights, "w"), weight);
    assert_null(ir_weights_find(&weights, "v"));
    test_assert_fails(f->context, ir_weights_new(&weights, "w", DW_FORMAT_bf16, 2, dims, &again), DW_INVALID, "'w' already");
    int64_t huge[] = {INT64_MAX, INT64_MAX};
    test_assert_fails(f->context, ir_weights_new(&weights, "h", DW_FORMAT_f32, 2, huge, &again), DW_LIMIT, "overflows");
    ir_weights_free(&weights);
}

static void params_take_their_weights_by_name_and_must_agree(void **state) {
    fixture *f = *state;
    static const char source[] = "graph g\n  param w f32[70]\n  state k f32[2]\n  output y w\n";
    ir_weights weights;
    ir_weight *weight;
    ir_graph *graph = NULL;
    int64_t dims[] = {70}, two[] = {2};
    ir_weights_init(&weights, f->context);
    test_assert_fails(f->context, ir_parse(f->context, "file", source, strlen(source), &weights, &graph), DW_NOT_FOUND, "'w' is not among the weights (file:2)");
    assert_null(graph);
    ok(f, ir_weights_new(&weights, "w", DW_FORMAT_f32, 1, dims, &weight));
    ok(f, ir_weights_new(&weights, "k", DW_FORMAT_f32, 1, two, &weight));
    graph = parse(f, source, &weights);
    assert_ptr_equal(graph->params[0]->weight, ir_weights_find(&weights, "w"));
    assert_ptr_equal(graph->states[0]->weight, weight);
    ir_graph_destroy(graph);
    static const char other[] = "graph g\n  param w bf16[70]\n";
    test_assert_fails(f->context, ir_parse(f->context, "file", other, strlen(other), &weights, &graph), DW_MISMATCH, "bf16[70] in the graph, but its weight is f32[70]");
    ir_weights_free(&weights);
}

static void constants_join_the_weights_and_must_agree_with_them(void **state) {
    fixture *f = *state;
    static const char source[] = "graph g\n  const const.0 i64[2] = 1, 2\n  output y const.0\n";
    static const char other[] = "graph g\n  const const.0 i64[2] = 1, 3\n";
    ir_weights weights;
    ir_weights_init(&weights, f->context);
    ir_graph *first = parse(f, source, &weights), *second = parse(f, source, &weights), *third;
    assert_non_null(ir_weights_find(&weights, "const.0"));
    assert_ptr_equal(first->params[0]->weight, second->params[0]->weight);
    test_assert_fails(f->context, ir_parse(f->context, "x", other, strlen(other), &weights, &third), DW_MISMATCH, "other elements");
    ir_graph_destroy(first);
    ir_graph_destroy(second);
    ir_weights_free(&weights);
}

/* ---- building ---- */

static void a_failed_emit_names_op_operands_and_origin(void **state) {
    fixture *f = *state;
    ir_value *x = input(f, "x", 4), *y = input(f, "y", 5), *z;
    f->graph->origin = (ir_origin){.module = "blocks.3.mlp", .name = "add_2"};
    test_assert_fails(f->context, ir_emit_2(f->graph, OP_add, x, y, &z), DW_MISMATCH, "(op add of x f32[4], y f32[5], module \"blocks.3.mlp\", name \"add_2\")");
    assert_null(z);
    assert_null(f->graph->first);
}

static void attributes_may_come_in_any_order_once(void **state) {
    fixture *f = *state;
    ir_value *x = input(f, "x", 4), *y;
    op_attr attrs[] = {op_set_bool(OP_ATTR_largest, true), op_set_dim(OP_ATTR_length, dim_constant(f->graph->dims, 2)), op_set_int(OP_ATTR_axis, 0)};
    ok(f, ir_emit(f->graph, OP_topk, 1, &x, 3, attrs, &y));
    assert_int_equal(y->node->attrs.items[0].id, OP_ATTR_axis);
    assert_int_equal(y->node->n_out, 2);
    op_attr twice[] = {op_set_int(OP_ATTR_axis, 0), op_set_int(OP_ATTR_axis, 0)};
    test_assert_fails(f->context, ir_emit(f->graph, OP_softmax, 1, &x, 2, twice, &y), DW_INVALID, "axis is given twice");
    ok(f, ir_check(f->graph));
}

static void short_forms_emit_what_they_say(void **state) {
    fixture *f = *state;
    ir_value *x = input(f, "x", 6), *y;
    dim dims[] = {dim_constant(f->graph->dims, 2), dim_constant(f->graph->dims, 3)}, one = dim_constant(f->graph->dims, 1);
    dim wide[] = {dims[0], dims[0], dims[1]};
    int64_t order[] = {1, 0};
    ok(f, ir_emit_cast(f->graph, x, DW_FORMAT_f32, &y));
    assert_ptr_equal(y, x);
    ok(f, ir_emit_cast(f->graph, x, DW_FORMAT_bf16, &y));
    ok(f, ir_emit_reshape(f->graph, y, 2, dims, &y));
    ok(f, ir_emit_broadcast(f->graph, y, 3, wide, &y));
    ok(f, ir_emit_slice(f->graph, y, 0, one, dims[0], 1, &y));
    ok(f, ir_emit_reshape(f->graph, y, 2, dims, &y));
    ok(f, ir_emit_transpose(f->graph, y, order, &y));
    ok(f, ir_emit_scalar(f->graph, DW_FORMAT_bf16, 0.5, &x));
    ok(f, ir_emit_2(f->graph, OP_mul, y, x, &y));
    ok(f, ir_emit_size(f->graph, dims[1], &x));
    ok(f, ir_add_output(f->graph, "y", y));
    ok(f, ir_check(f->graph));
    assert_prints(f, f->graph,
                  "graph g\n"
                  "  input  x f32[6]\n"
                  "  %1 = cast x {to=bf16}\n"
                  "  %2 = reshape %1 {shape=[2,3]}\n"
                  "  %3 = broadcast %2 {shape=[2,2,3]}\n"
                  "  %4 = slice %3 {axis=0,start=1,end=2,step=1}\n"
                  "  %5 = reshape %4 {shape=[2,3]}\n"
                  "  %6 = transpose %5 {order=[1,0]}\n"
                  "  %7 = fill {shape=[],value=0.5,to=bf16}\n"
                  "  %8 = mul %6, %7\n"
                  "  %9 = size {size=3}\n"
                  "  output y %8\n");
}

static void a_state_begins_with_the_weight_of_its_name(void **state) {
    fixture *f = *state;
    ir_weights weights;
    ir_weight *weight;
    ir_value *value;
    int64_t dims[] = {4};
    op_type type = type_of(f, DW_FORMAT_f32, 1, dims);
    ir_weights_init(&weights, f->context);
    ok(f, ir_weights_new(&weights, "k", DW_FORMAT_f32, 1, dims, &weight));
    test_assert_fails(f->context, ir_add_state(f->graph, "other", &type, weight, &value), DW_INVALID, "the weight of its own name");
    ok(f, ir_add_state(f->graph, "k", &type, weight, &value));
    assert_ptr_equal(value->next, value);
    ir_weights_free(&weights);
}

static void constants_get_free_names(void **state) {
    fixture *f = *state;
    ir_value *value;
    dw_tensor tensor;
    int64_t dims[] = {2}, index[] = {1};
    input(f, "const.1", 4);
    for (int i = 0; i < 2; i++) {
        ok(f, ir_add_constant(f->graph, NULL, DW_FORMAT_f32, 1, dims, &value, &tensor));
        op_tensor_store(&tensor, index, 3.0 + i);
    }
    assert_string_equal(value->name, "const.2");
    assert_true(op_tensor_load(&value->weight->tensor, index) == 4.0);
    assert_true(value->weight->is_local);
}

/* ---- changing ---- */

static void replace_reaches_nodes_outputs_and_states(void **state) {
    fixture *f = *state;
    ir_value *x = input(f, "x", 4), *y = input(f, "y", 4), *kept;
    int64_t dims[] = {4};
    op_type type = type_of(f, DW_FORMAT_f32, 1, dims);
    ok(f, ir_add_state(f->graph, "k", &type, NULL, &kept));
    ir_value *a = emit_1(f, OP_exp, x), *b = emit_2(f, OP_add, a, a);
    ir_set_next(kept, a);
    ok(f, ir_add_output(f->graph, "out", a));
    assert_int_equal(ir_use_count(f->graph, a), 4);
    assert_true(ir_is_output(f->graph, a));
    ir_replace(f->graph, a, y);
    assert_int_equal(ir_use_count(f->graph, a), 0);
    assert_int_equal(ir_use_count(f->graph, y), 4);
    assert_ptr_equal(kept->next, y);
    assert_ptr_equal(ir_in(b->node, 1), y);
    ir_replace(f->graph, kept, x);
    assert_ptr_equal(kept->next, y);
    ok(f, ir_check(f->graph));
}

static void only_what_is_unused_can_be_removed(void **state) {
    fixture *f = *state;
    int64_t dims[] = {4};
    op_type type = type_of(f, DW_FORMAT_f32, 1, dims);
    ir_value *x = input(f, "x", 4), *w, *k;
    ok(f, ir_add_param(f->graph, "w", &type, NULL, &w));
    ok(f, ir_add_state(f->graph, "k", &type, NULL, &k));
    ir_value *a = emit_2(f, OP_add, x, w), *b = emit_2(f, OP_add, a, k);
    test_assert_fails(f->context, ir_remove(f->graph, a->node), DW_INTERNAL, "still used (%1, by op add %2)");
    test_assert_fails(f->context, ir_remove_param(f->graph, w), DW_INTERNAL, "still used");
    test_assert_fails(f->context, ir_remove_state(f->graph, k), DW_INTERNAL, "still used");
    ok(f, ir_remove(f->graph, b->node));
    ok(f, ir_remove(f->graph, a->node));
    ok(f, ir_remove_param(f->graph, w));
    ok(f, ir_remove_state(f->graph, k));
    assert_null(f->graph->first);
    assert_null(f->graph->last);
    ok(f, ir_check(f->graph));
    ok(f, ir_add_param(f->graph, "w", &type, NULL, &w));
    assert_prints(f, f->graph, "graph g\n  input  x f32[4]\n  param  w f32[4]\n");
}

static void the_cursor_places_nodes_and_lends_its_origin(void **state) {
    fixture *f = *state;
    ir_value *x = input(f, "x", 4);
    f->graph->origin.module = "m";
    ir_value *a = emit_1(f, OP_exp, x);
    f->graph->origin.module = "n";
    ir_value *b = emit_1(f, OP_exp, a);
    ir_cursor_before(f->graph, b->node);
    ir_value *c = emit_1(f, OP_neg, a);
    assert_ptr_equal(c->node->next, b->node);
    assert_string_equal(c->node->origin.module, "n");
    ir_cursor_after(f->graph, a->node);
    ir_value *d = emit_1(f, OP_abs, a);
    assert_ptr_equal(a->node->next, d->node);
    assert_string_equal(d->node->origin.module, "m");
    ok(f, ir_remove(f->graph, c->node));
    ir_cursor_end(f->graph);
    ir_value *e = emit_1(f, OP_sin, b);
    assert_ptr_equal(f->graph->last, e->node);
    ok(f, ir_check(f->graph));
    ir_renumber(f->graph);
    assert_int_equal(d->id, 2);
    assert_int_equal(b->node->order, 3);
}

static void a_new_attribute_changes_the_type_after_infer(void **state) {
    fixture *f = *state;
    ir_value *y = emit_1(f, OP_neg, input(f, "x", 4));
    ok(f, ir_emit_cast(f->graph, y, DW_FORMAT_bf16, &y));
    ir_value *z = emit_1(f, OP_exp, y);
    ok(f, ir_set_attr(f->graph, y->node, op_set_format(OP_ATTR_to, DW_FORMAT_f16)));
    assert_int_equal(y->type.format, DW_FORMAT_bf16);
    test_assert_fails(f->context, ir_check(f->graph), DW_INTERNAL, "not what inference gives (op cast %2)");
    ok(f, ir_infer_all(f->graph));
    assert_int_equal(z->type.format, DW_FORMAT_f16);
    ok(f, ir_check(f->graph));
}

static void sort_moves_as_little_as_needed(void **state) {
    fixture *f = *state;
    ir_value *x = input(f, "x", 4);
    ir_value *a = emit_1(f, OP_exp, x), *b = emit_1(f, OP_neg, x), *c = emit_1(f, OP_abs, x), *d = emit_1(f, OP_sin, c);
    ir_set_operand(a->node, 0, d);
    test_assert_fails(f->context, ir_check(f->graph), DW_INTERNAL, "not made before it (op exp %1)");
    ok(f, ir_sort(f->graph));
    ok(f, ir_check(f->graph));
    const ir_value *expected[] = {c, d, a, b};
    const ir_node *node = f->graph->first;
    for (size_t i = 0; i < COUNT_OF(expected); i++, node = node->next) assert_ptr_equal(node, expected[i]->node);
    assert_null(node);
    ok(f, ir_sort(f->graph));
    assert_ptr_equal(f->graph->first, c->node);
}

static void sort_finds_a_cycle_and_changes_nothing(void **state) {
    fixture *f = *state;
    ir_value *x = input(f, "x", 4);
    ir_value *a = emit_1(f, OP_exp, x), *b = emit_1(f, OP_neg, a);
    ir_set_operand(a->node, 0, b);
    test_assert_fails(f->context, ir_sort(f->graph), DW_INTERNAL, "cycle through op exp %1");
    assert_ptr_equal(f->graph->first, a->node);
    assert_ptr_equal(f->graph->last, b->node);
    ir_set_operand(a->node, 0, x);
    ok(f, ir_check(f->graph));
}

/* ---- asking ---- */

static void constants_are_what_no_input_state_or_symbol_reaches(void **state) {
    fixture *f = *state;
    ir_graph *graph = parse(f,
                            "graph g\n  symbol s 1..8\n  input x f32[4]\n  param w f32[4]\n  state k f32[4]\n"
                            "  %1 = exp w\n  %2 = add %1, x\n  %3 = add w, k\n  %4 = size {size=s}\n  %5 = size {size=4}\n"
                            "  %6 = fill {shape=[s],value=0,to=f32}\n  %7 = fill {shape=[4],value=0,to=f32}\n  %8 = add %7, w\n",
                            NULL);
    const bool expected[] = {true, false, false, false, true, false, true, true};
    int i = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) assert_int_equal(ir_is_constant(ir_out(node)), expected[i++]);
    ir_replace(graph, graph->params[0], graph->inputs[0]);
    ir_renumber(graph);
    assert_false(ir_is_constant(ir_out(graph->first)));
    assert_false(ir_is_constant(ir_out(graph->last)));
    ok(f, ir_check(graph));
    ir_graph_destroy(graph);
}

static void trained_states_are_known_after_an_update(void **state) {
    fixture *f = *state;
    ir_graph *graph = parse(f,
                            "graph g\n  symbol s 1..8\n  input x f32[4]\n  param w f32[4]\n  state k f32[4]\n  state t f32[4] trained\n"
                            "  %1 = exp w\n  %2 = add %1, t\n  %3 = add %2, k\n  %4 = add %2, x\n  %5 = mul t, t\n  %6 = slice t {axis=0,start=0,end=min(s,4),step=1}\n",
                            NULL);
    const ir_rate expected[] = {IR_RATE_LOAD, IR_RATE_UPDATE, IR_RATE_RUN, IR_RATE_RUN, IR_RATE_UPDATE, IR_RATE_RUN};
    int i = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) assert_int_equal(ir_out(node)->rate, expected[i++]);
    assert_false(ir_is_constant(graph->states[1]));
    assert_true(ir_is_weight(graph->states[1]) && ir_is_weight(ir_out(graph->first)) && !ir_is_weight(graph->states[0]));
    ok(f, ir_train(graph, graph->params[0]));
    ir_renumber(graph);
    assert_int_equal(graph->param_count, 0);
    assert_string_equal(graph->states[2]->name, "w");
    assert_int_equal(ir_out(graph->first)->rate, IR_RATE_UPDATE);
    ok(f, ir_check(graph));
    ir_graph_destroy(graph);
}

static void numbers_are_seen_through_views_and_casts(void **state) {
    fixture *f = *state;
    ir_graph *graph = parse(f,
                            "graph g\n  symbol s 1..8\n  input x f32[4]\n  const same f32[2] = 0.1, 0.1\n  const mixed f32[2] = 1, 2\n  const signs f32[2] = 0, -0.0\n"
                            "  %1 = fill {shape=[s],value=0.1,to=f32}\n  %2 = reshape %1 {shape=[1,s]}\n  %3 = cast %2 {to=bf16}\n"
                            "  %4 = cast %3 {to=i32}\n  %5 = cast %1 {to=bool}\n  %6 = size {size=7}\n  %7 = size {size=s}\n"
                            "  %8 = reshape same {shape=[2,1]}\n  %9 = neg same\n  %10 = reshape mixed {shape=[2,1]}\n  %11 = reshape signs {shape=[2,1]}\n",
                            NULL);
    const double expected[] = {(double)0.1f, (double)0.1f, 0.10009765625, 0, 1, 7, NAN, (double)0.1f, NAN, NAN, NAN};
    int i = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next, i++) {
        double number = NAN;
        bool found = ir_is_scalar(ir_out(node), &number);
        assert_int_equal(found, !isnan(expected[i]));
        if (found) assert_true(number == expected[i]);
    }
    double number;
    assert_false(ir_is_scalar(graph->inputs[0], &number));
    assert_null(ir_def(graph->inputs[0], OP_exp));
    assert_non_null(ir_def(ir_out(graph->first), OP_fill));
    ir_graph_destroy(graph);
}

static void work_counts_flops_with_the_symbols_bound(void **state) {
    fixture *f = *state;
    ir_graph *graph = parse(f, "graph g\n  symbol s 1..8\n  input x f32[s,16]\n  param w f32[16,32]\n  %1 = matmul x, w\n  output y %1\n", NULL);
    int64_t symbols[] = {4};
    op_work work;
    ok(f, ir_work(graph, graph->first, symbols, &work));
    assert_true(work.flops == 2.0 * 4 * 16 * 32);
    assert_true(work.bytes_read == 4.0 * (4 * 16 + 16 * 32));
    assert_true(work.bytes_written == 4.0 * 4 * 32);
    ir_graph_destroy(graph);
}

/* ---- clones, hashes, checks ---- */

static void a_clone_outlives_its_original(void **state) {
    fixture *f = *state;
    static const char source[] =
        "graph g\n  note   a \"b\"\n  symbol s 1..8\n  input  x f32[s,2]\n  const  const.0 f32[2] = 1, 2\n  state  k f32[2]\n"
        "  %1 = mul x, const.0 at \"m\" role mlp\n  %2 = slice %1 {axis=0,start=0,end=s-1,step=1}\n  %3 = exp k\n  next   k %3\n  output y %2\n";
    ir_graph *graph = parse(f, source, NULL), *clone;
    ok(f, ir_graph_clone(graph, &clone));
    ir_graph_destroy(graph);
    ok(f, ir_check(clone));
    assert_prints(f, clone, source);
    ir_graph_destroy(clone);
}

static void a_hash_tells_meaning_and_not_origin_or_ids(void **state) {
    fixture *f = *state;
    static const char *const sources[] = {
        "graph g\n  input x f32[4]\n  param w f32[2]\n  const const.0 f32[] = 1\n  %1 = exp x\n  output y %1\n",
        "graph g\n  input x f32[4]\n  param w f32[2]\n  const const.0 f32[] = 1\n  %8 = exp x at \"m\"\n  output y %8\n",
        "graph g\n  input x f32[4]\n  const w f32[2] = 1, 2\n  const const.0 f32[] = 1\n  %1 = exp x\n  output y %1\n",
        "graph g\n  note example \"s=512\"\n  input x f32[4]\n  param w f32[2]\n  const const.0 f32[] = 1\n  %1 = exp x\n  output y %1\n",
        "graph g\n  note parallel \"s=512\"\n  input x f32[4]\n  param w f32[2]\n  const const.0 f32[] = 1\n  %1 = exp x\n  output y %1\n",
        "graph g\n  input x f32[4]\n  param w f32[2]\n  const const.0 f32[] = 2\n  %1 = exp x\n  output y %1\n",
        "graph g\n  input x f32[4]\n  param w f32[2]\n  const const.0 f32[] = 1\n  %1 = neg x\n  output y %1\n",
        "graph g\n  input x f32[4]\n  param w f32[3]\n  const const.0 f32[] = 1\n  %1 = exp x\n  output y %1\n",
    };
    uint64_t hashes[COUNT_OF(sources)];
    for (size_t i = 0; i < COUNT_OF(sources); i++) {
        ir_graph *graph = parse(f, sources[i], NULL);
        ok(f, ir_hash(graph, &hashes[i]));
        ir_graph_destroy(graph);
        if (i < 4) assert_true(hashes[i] == hashes[0]);
        else for (size_t j = 0; j < i; j++) assert_true(hashes[i] != hashes[j]);
    }
}

static void check_finds_what_is_broken(void **state) {
    fixture *f = *state;
    ir_value *x = input(f, "x", 4), *y = input(f, "y", 4), *k;
    int64_t five = 5;
    op_type type = type_of(f, DW_FORMAT_f32, 1, &five);
    ok(f, ir_add_state(f->graph, "k", &type, NULL, &k));
    ir_value *a = emit_1(f, OP_exp, x), *b = emit_1(f, OP_neg, a);
    ok(f, ir_add_output(f->graph, "out", b));
    ok(f, ir_check(f->graph));

    b->node->in[0].value = y;
    test_assert_fails(f->context, ir_check(f->graph), DW_INTERNAL, "uses of a result are not linked (op exp %1)");
    b->node->in[0].value = a;
    a->id = 2;
    test_assert_fails(f->context, ir_check(f->graph), DW_INTERNAL, "(op neg %2)");
    a->id = 1;
    a->rate = IR_RATE_LOAD;
    test_assert_fails(f->context, ir_check(f->graph), DW_INTERNAL, "said to be known before its operands");
    a->rate = IR_RATE_RUN;
    k->next = a;
    test_assert_fails(f->context, ir_check(f->graph), DW_INTERNAL, "next value of a state has another type ('k')");
    k->next = k;
    x->name = "y";
    test_assert_fails(f->context, ir_check(f->graph), DW_INTERNAL, "a name is not unique ('y')");
    x->name = "x";
    f->graph->last = a->node;
    test_assert_fails(f->context, ir_check(f->graph), DW_INTERNAL, "another end");
    f->graph->last = b->node;
    ir_use *use = x->uses;
    x->uses = NULL;
    test_assert_fails(f->context, ir_check(f->graph), DW_INTERNAL, "the uses of a named value are not linked ('x')");
    x->use_count = 0;
    test_assert_fails(f->context, ir_check(f->graph), DW_INTERNAL, "more or fewer uses than operands");
    x->uses = use;
    x->use_count = 1;
    f->graph->outputs[0].value = a;
    test_assert_fails(f->context, ir_check(f->graph), DW_INTERNAL, "not counted at their values");
    f->graph->outputs[0].value = b;
    ok(f, ir_check(f->graph));
}

/* ---- size and memory ---- */

/* Linear in every step: quadratic ones would take minutes here and run into the test's time limit. */
static void twenty_thousand_nodes_are_quick(void **state) {
    fixture *f = *state;
    enum { NODES = 20000 };
    ir_value *x = input(f, "x", 4), *last = x;
    for (int i = 0; i < NODES; i++) last = i % 2 == 0 ? emit_1(f, OP_neg, last) : emit_2(f, OP_add, last, x);
    ok(f, ir_add_output(f->graph, "y", last));
    ok(f, ir_check(f->graph));
    ok(f, ir_sort(f->graph));
    ir_graph *clone, *parsed;
    ok(f, ir_graph_clone(f->graph, &clone));
    text text;
    text_init(&text, f->context);
    ok(f, ir_print(clone, &text));
    parsed = parse(f, text_string(&text), NULL);
    ok(f, ir_check(parsed));
    ir_replace(parsed, parsed->inputs[0], ir_out(parsed->first));
    ir_graph_destroy(parsed);
    ir_graph_destroy(clone);
    text_free(&text);
}

static dw_status every_call(dw_context *context, void *argument) {
    static const char source[] =
        "graph g\n  note a \"b\"\n  symbol s 1..8\n  input x f32[s,2]\n  const const.0 f32[2] = 1, 2\n  state k f32[2]\n"
        "  %1 = mul x, const.0 at \"m\" role mlp\n  %2, %3 = topk %1 {axis=1,length=1,largest=true}\n  %4 = exp k\n  next k %4\n  output y %2\n";
    ir_weights weights;
    ir_graph *graph = NULL, *clone = NULL;
    text text;
    uint64_t hash;
    (void)argument;
    ir_weights_init(&weights, context);
    text_init(&text, context);
    dw_status status = ir_parse(context, "s", source, strlen(source), &weights, &graph);
    if (status == DW_OK) status = ir_graph_clone(graph, &clone);
    if (status == DW_OK) status = ir_sort(clone);
    if (status == DW_OK) status = ir_check(clone);
    if (status == DW_OK) status = ir_print(clone, &text);
    if (status == DW_OK) status = ir_hash(clone, &hash);
    text_free(&text);
    ir_graph_destroy(clone);
    ir_graph_destroy(graph);
    ir_weights_free(&weights);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    test_every_allocation(every_call, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(weights_release_their_storages_once, setup, teardown),
        cmocka_unit_test(a_storage_is_released_when_it_cannot_be_kept),
        cmocka_unit_test_setup_teardown(a_new_weight_is_zero_and_its_name_is_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(params_take_their_weights_by_name_and_must_agree, setup, teardown),
        cmocka_unit_test_setup_teardown(constants_join_the_weights_and_must_agree_with_them, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_emit_names_op_operands_and_origin, setup, teardown),
        cmocka_unit_test_setup_teardown(attributes_may_come_in_any_order_once, setup, teardown),
        cmocka_unit_test_setup_teardown(short_forms_emit_what_they_say, setup, teardown),
        cmocka_unit_test_setup_teardown(a_state_begins_with_the_weight_of_its_name, setup, teardown),
        cmocka_unit_test_setup_teardown(constants_get_free_names, setup, teardown),
        cmocka_unit_test_setup_teardown(replace_reaches_nodes_outputs_and_states, setup, teardown),
        cmocka_unit_test_setup_teardown(only_what_is_unused_can_be_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(the_cursor_places_nodes_and_lends_its_origin, setup, teardown),
        cmocka_unit_test_setup_teardown(a_new_attribute_changes_the_type_after_infer, setup, teardown),
        cmocka_unit_test_setup_teardown(sort_moves_as_little_as_needed, setup, teardown),
        cmocka_unit_test_setup_teardown(sort_finds_a_cycle_and_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(constants_are_what_no_input_state_or_symbol_reaches, setup, teardown),
        cmocka_unit_test_setup_teardown(trained_states_are_known_after_an_update, setup, teardown),
        cmocka_unit_test_setup_teardown(numbers_are_seen_through_views_and_casts, setup, teardown),
        cmocka_unit_test_setup_teardown(work_counts_flops_with_the_symbols_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(a_clone_outlives_its_original, setup, teardown),
        cmocka_unit_test_setup_teardown(a_hash_tells_meaning_and_not_origin_or_ids, setup, teardown),
        cmocka_unit_test_setup_teardown(check_finds_what_is_broken, setup, teardown),
        cmocka_unit_test_setup_teardown(twenty_thousand_nodes_are_quick, setup, teardown),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
