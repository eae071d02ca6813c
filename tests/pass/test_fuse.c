/* The property that fusion has: it never changes what a graph means. Graphs are made of the spellings that fusions look for, each with a chance
 * that a number, an operand or an order is another one: most still are what they seem, some only almost. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "pass/pass.h"
#include "support/evaluate.h"

/* Some of these graphs amplify rounding without bound: the mean of what is centred is nothing but rounding, and a quotient's divisor may be.
 * How much, is seen by perturbing the inputs by PERTURBATION: an output may change by MARGIN times what that changes, and where that is more
 * than MAX_NOISE, nothing is to be seen. A wrong fusion is off by some hundredths at least. */
#define PERTURBATION 1e-6
#define MARGIN 30
#define MIN_ERROR 1e-4
#define MAX_NOISE 3e-4

enum { GRAPHS = 1500, PIECES = 4, MAX_VALUES = 128, CHANGED_ONE_IN = 24 };

typedef struct generator {
    ir_graph *graph;
    uint64_t seed, counter;
    ir_value *values[MAX_VALUES];
    int count;
    dw_status status;               /* of the first failure; later steps do nothing */
} generator;

static int pick(generator *g, int count) { return (int)(num_random(g->seed, g->counter++) % (uint64_t)count); }

static bool chance(generator *g) { return pick(g, CHANGED_ONE_IN) == 0; }

/* value, or seldom another one of its type. */
static ir_value *mostly(generator *g, ir_value *value) {
    if (value == NULL || !chance(g)) return value;
    ir_value *other = g->values[pick(g, g->count)];
    return op_type_equal(&other->type, &value->type) ? other : value;
}

static ir_value *keep(generator *g, dw_status status, ir_value *const *value) {
    if (status != DW_OK && g->status == DW_OK) g->status = status;
    if (g->status != DW_OK) return NULL;
    if (g->count < MAX_VALUES) g->values[g->count++] = *value;
    return *value;
}

static ir_value *one(generator *g, op_id op, ir_value *x) {
    ir_value *y = NULL;
    if (g->status != DW_OK) return NULL;
    return keep(g, ir_emit_1(g->graph, op, x, &y), &y);
}

/* The operands of sums and products in either order. */
static ir_value *two(generator *g, op_id op, ir_value *x, ir_value *y) {
    ir_value *z = NULL;
    if (g->status != DW_OK) return NULL;
    x = mostly(g, x);
    y = mostly(g, y);
    bool swap = (op == OP_add || op == OP_mul) && pick(g, 2);
    return keep(g, ir_emit_2(g->graph, op, swap ? y : x, swap ? x : y, &z), &z);
}

/* The number, or seldom another of those that matter. */
static ir_value *number(generator *g, double value) {
    const double others[] = {0.0, 0.5, 1.0, 2.0, 3.0, -1.0, 0.044715, 1.702, 0.7071067811865476, 0.7978845608028654};
    ir_value *scalar = NULL;
    if (g->status != DW_OK) return NULL;
    if (chance(g)) value = others[pick(g, COUNT_OF(others))];
    return keep(g, ir_emit_scalar(g->graph, DW_FORMAT_f32, value, &scalar), &scalar);
}

static ir_value *mean(generator *g, ir_value *x) {
    ir_value *y = NULL;
    if (g->status != DW_OK) return NULL;
    int64_t axis = x->type.rank - 1;
    op_attr attrs[] = {op_set_ints(OP_ATTR_axes, 1, &axis), op_set_bool(OP_ATTR_keep, true)};
    return keep(g, ir_emit(g->graph, OP_mean, 1, &x, COUNT_OF(attrs), attrs, &y), &y);
}

static ir_value *slice(generator *g, ir_value *x, int64_t start, int64_t end) {
    ir_value *y = NULL;
    if (g->status != DW_OK) return NULL;
    if (chance(g)) {
        int64_t size = end - start;
        start = pick(g, (int)(8 - size) + 1);
        end = start + size;
    }
    return keep(g, ir_emit_slice(g->graph, x, x->type.rank - 1, dim_constant(g->graph->dims, start), dim_constant(g->graph->dims, end), 1, &y), &y);
}

static ir_value *concat(generator *g, ir_value *x, ir_value *y) {
    ir_value *z = NULL;
    if (g->status != DW_OK) return NULL;
    op_attr axis = op_set_int(OP_ATTR_axis, x->type.rank - 1);
    return keep(g, ir_emit(g->graph, OP_concat, 2, (ir_value *[]){x, y}, 1, &axis, &z), &z);
}

/* ---- spellings, of x f32[2,s,8] ---- */

static ir_value *square(generator *g, ir_value *x) { return pick(g, 2) ? two(g, OP_mul, x, x) : two(g, OP_pow, x, number(g, 2)); }

static ir_value *gelu(generator *g, ir_value *x) {
    ir_value *inner;
    bool is_tanh = pick(g, 2);
    if (is_tanh) {
        ir_value *cube = pick(g, 2) ? two(g, OP_pow, x, number(g, 3)) : two(g, OP_mul, x, square(g, x));
        inner = two(g, OP_mul, number(g, 0.7978845608028654), two(g, OP_add, x, two(g, OP_mul, cube, number(g, 0.044715))));
    } else {
        inner = pick(g, 2) ? two(g, OP_div, x, number(g, 1.4142135623730951)) : two(g, OP_mul, x, number(g, 0.7071067811865476));
    }
    ir_value *sum = two(g, OP_add, one(g, is_tanh ? OP_tanh : OP_erf, inner), number(g, 1));
    switch (pick(g, 3)) {
    case 0: return two(g, OP_mul, two(g, OP_mul, x, number(g, 0.5)), sum);
    case 1: return two(g, OP_div, two(g, OP_mul, x, sum), number(g, 2));
    default: return two(g, OP_mul, x, two(g, OP_mul, sum, number(g, 0.5)));
    }
}

static ir_value *silu(generator *g, ir_value *x) {
    if (pick(g, 2)) return two(g, OP_mul, x, one(g, OP_sigmoid, mostly(g, x)));
    return two(g, OP_div, x, two(g, OP_add, one(g, OP_exp, one(g, OP_neg, mostly(g, x))), number(g, 1)));
}

static ir_value *norm(generator *g, ir_value *x, ir_value *vector, bool centred) {
    if (centred) x = two(g, OP_sub, x, mean(g, mostly(g, x)));
    ir_value *variance = two(g, OP_add, mean(g, square(g, x)), number(g, 1e-5));
    x = pick(g, 2) ? two(g, OP_mul, x, one(g, OP_rsqrt, variance)) : two(g, OP_div, x, one(g, OP_sqrt, variance));
    if (pick(g, 4) > 0) x = two(g, OP_mul, x, vector);
    return centred && pick(g, 4) > 0 ? two(g, OP_add, x, vector) : x;
}

static ir_value *rotary(generator *g, ir_value *x, ir_value *cosine, ir_value *sine) {
    ir_value *first = slice(g, x, 0, 4), *second = slice(g, x, 4, 8);
    if (pick(g, 2)) return two(g, OP_add, two(g, OP_mul, x, cosine), two(g, OP_mul, concat(g, one(g, OP_neg, second), first), sine));
    ir_value *c = slice(g, cosine, 0, 4), *s = slice(g, sine, 0, 4);
    return concat(g, two(g, OP_sub, two(g, OP_mul, first, c), two(g, OP_mul, second, s)), two(g, OP_add, two(g, OP_mul, second, c), two(g, OP_mul, first, s)));
}

static ir_value *linear(generator *g, ir_value *x, ir_value *weight, ir_value *vector) {
    const op_id activations[] = {OP_relu, OP_silu, OP_gelu, OP_gelu_tanh, OP_quick_gelu, OP_tanh, OP_sigmoid};
    op_attr bt = op_set_bool(OP_ATTR_bt, pick(g, 2));
    ir_value *y = NULL;
    if (g->status != DW_OK) return NULL;
    keep(g, ir_emit(g->graph, OP_matmul, 2, (ir_value *[]){x, weight}, 1, &bt, &y), &y);
    if (pick(g, 2)) y = two(g, OP_add, y, vector);
    if (pick(g, 2)) y = one(g, activations[pick(g, COUNT_OF(activations))], y);
    if (g->status == DW_OK && pick(g, 3) == 0) {
        ir_value *up = NULL;
        keep(g, ir_emit(g->graph, OP_matmul, 2, (ir_value *[]){x, weight}, 1, &bt, &up), &up);
        y = two(g, OP_mul, one(g, OP_silu, y), up);
    }
    return pick(g, 2) ? two(g, OP_add, y, x) : y;
}

static dw_status generate(dw_context *context, uint64_t seed, ir_graph **graph) {
    generator g = {.seed = seed};
    dim s, two_of, eight;
    TRY(ir_graph_create(context, "random", graph));
    g.graph = *graph;
    TRY_DIM(context, s, dim_symbol(g.graph->dims, "s", 1, 8));
    TRY_DIM(context, two_of, dim_constant(g.graph->dims, 2));
    TRY_DIM(context, eight, dim_constant(g.graph->dims, 8));
    const op_type wide = {.format = DW_FORMAT_f32, .rank = 3, .dims = {two_of, s, eight}}, table = {.format = DW_FORMAT_f32, .rank = 2, .dims = {s, eight}},
                  square = {.format = DW_FORMAT_f32, .rank = 2, .dims = {eight, eight}}, column = {.format = DW_FORMAT_f32, .rank = 1, .dims = {eight}};
    ir_value *x, *other, *cosine, *sine, *weight, *vector;
    TRY(ir_add_input(g.graph, "x", &wide, &x));
    TRY(ir_add_input(g.graph, "other", &wide, &other));
    TRY(ir_add_input(g.graph, "cosine", &table, &cosine));
    TRY(ir_add_input(g.graph, "sine", &table, &sine));
    TRY(ir_add_param(g.graph, "weight", &square, NULL, &weight));
    TRY(ir_add_param(g.graph, "vector", &column, NULL, &vector));
    g.values[g.count++] = x;
    g.values[g.count++] = other;
    for (int i = 0; i < PIECES; i++) {
        switch (pick(&g, 6)) {
        case 0: x = gelu(&g, x); break;
        case 1: x = silu(&g, x); break;
        case 2: x = norm(&g, x, vector, true); break;
        case 3: x = norm(&g, x, vector, false); break;
        case 4: x = rotary(&g, x, cosine, sine); break;
        default: x = linear(&g, x, weight, vector); break;
        }
        TRY(g.status);
        if (pick(&g, 3) == 0) x = two(&g, OP_add, x, other);
    }
    TRY(g.status);
    for (int i = 0; i < 2; i++) {       /* what else is read must not be fused away */
        ir_value *also = g.values[pick(&g, g.count)];
        if (pick(&g, 2)) TRY(ir_add_output(g.graph, i == 0 ? "a" : "b", also));
    }
    TRY(ir_add_output(g.graph, "y", x));
    ir_renumber(g.graph);
    return ir_check(g.graph);
}

/* ---- the property ---- */

/* Normal numbers, each off by a random part of perturbation. */
static dw_status bind_inputs(evaluation *evaluation, const ir_graph *graph, double perturbation) {
    for (size_t i = 0; i < graph->input_count + graph->param_count; i++) {
        const ir_value *value = i < graph->input_count ? graph->inputs[i] : graph->params[i - graph->input_count];
        uint64_t seed = base_hash(value->name, strlen(value->name), 0);
        int64_t dims[DW_MAX_RANK], index[DW_MAX_RANK] = {0};
        dw_tensor tensor;
        for (int axis = 0; axis < value->type.rank; axis++) {
            if (!dim_is_constant(value->type.dims[axis], &dims[axis])) dims[axis] = 5;
        }
        TRY(evaluation_bind_new(evaluation, value->name, value->type.rank, dims, &tensor));
        for (int64_t j = 0; j < op_tensor_count(&tensor); j++) {
            double off = 1.0 + perturbation * (2.0 * (double)num_random_uniform(seed + 1, (uint64_t)j) - 1.0);
            op_tensor_store(&tensor, index, off * (double)num_random_normal(seed, (uint64_t)j));
            op_tensor_next(&tensor, index);
        }
    }
    return DW_OK;
}

static dw_status evaluate(const ir_graph *graph, double perturbation, evaluation **made) {
    TRY(evaluation_create(graph, made));
    TRY(evaluation_set_symbol(*made, "s", 5));
    TRY(bind_inputs(*made, graph, perturbation));
    return evaluation_run(*made);
}

static void show_graph(const ir_graph *graph, const char *title) {
    text text;
    text_init(&text, graph->context);
    ir_print(graph, &text);
    print_error("%s:\n%s", title, text_string(&text));
    text_free(&text);
}

static int count_nodes(const ir_graph *graph) {
    int count = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) count++;
    return count;
}

/* 1 + tanh x is 0 in fp32 where a fused gelu still knows a small number: quotients of these are no test. */
static bool is_finite(const dw_tensor *tensor) {
    int64_t index[DW_MAX_RANK] = {0};
    for (int64_t j = 0; j < op_tensor_count(tensor); j++) {
        if (!isfinite(op_tensor_load(tensor, index))) return false;
        op_tensor_next(tensor, index);
    }
    return true;
}

/* Compares all outputs; returns how many told something. */
static int compare(const ir_graph *before, const ir_graph *after, uint64_t seed) {
    evaluation *expected = NULL, *perturbed = NULL, *made = NULL;
    int compared = 0;
    dw_status status = evaluate(before, 0.0, &expected);
    if (status == DW_OK) status = evaluate(before, PERTURBATION, &perturbed);
    if (status == DW_OK) status = evaluate(after, 0.0, &made);
    if (status != DW_OK) fail_msg("graph %llu: %s", (unsigned long long)seed, dw_context_error(before->context));
    for (size_t i = 0; i < before->output_count; i++) {
        const dw_tensor *exact = evaluation_value(expected, before->outputs[i].value);
        double noise = tensor_error(evaluation_value(perturbed, before->outputs[i].value), exact);
        if (!(noise <= MAX_NOISE) || !is_finite(exact)) continue;
        double error = tensor_error(evaluation_value(made, after->outputs[i].value), exact);
        compared++;
        if (error <= MARGIN * noise + MIN_ERROR) continue;
        show_graph(before, "before");
        show_graph(after, "after");
        fail_msg("graph %llu: output %s changes, relative error %g; a perturbation changes it by %g", (unsigned long long)seed, before->outputs[i].name, error, noise);
    }
    evaluation_destroy(expected);
    evaluation_destroy(perturbed);
    evaluation_destroy(made);
    return compared;
}

static void fusion_keeps_what_random_graphs_mean(void **state) {
    (void)state;
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    const pass_options options = {.check = true};
    int removed = 0, compared = 0;
    for (uint64_t seed = 0; seed < GRAPHS; seed++) {
        ir_graph *before, *after;
        if (generate(context, seed, &before) != DW_OK) fail_msg("graph %llu: %s", (unsigned long long)seed, dw_context_error(context));
        dw_status status = ir_graph_clone(before, &after);
        if (status == DW_OK) status = pass_run(after, PASS_STAGE_CLEAN | PASS_STAGE_FUSE | PASS_STAGE_MERGE, &options);
        if (status != DW_OK) fail_msg("graph %llu: %s", (unsigned long long)seed, dw_context_error(context));
        compared += compare(before, after, seed);
        removed += count_nodes(before) - count_nodes(after);
        ir_graph_destroy(before);
        ir_graph_destroy(after);
    }
    assert_true(removed > 10 * GRAPHS);      /* the graphs are such that fusions apply, */
    assert_true(compared > GRAPHS);          /* and such that it shows */
    dw_context_destroy(context);
    assert_int_equal(memory.live_count, 0);
}

/* ---- memory ---- */

static const char block[] =
    "graph block\n  symbol s 1..8\n  input x f32[2,s,8]\n  input cos f32[s,4]\n  input sin f32[s,4]\n  param v bf16[8]\n"
    "  param wq f32[8,8]\n  param wk f32[4,8]\n  param wv f32[4,8]\n  param wo f32[8,8]\n  param wg f32[16,8]\n  param wu f32[16,8]\n  param wd f32[16,8]\n"
    "  %1 = fill {shape=[],value=1e-05,to=f32}\n  %2 = mul x, x\n  %3 = mean %2 {axes=[2],keep=true}\n  %4 = add %3, %1\n  %5 = rsqrt %4\n"
    "  %6 = mul x, %5\n  %7 = cast v {to=f32}\n  %8 = mul %7, %6\n  %9 = matmul %8, wq {bt=true} at \"attn.q\"\n  %10 = matmul %8, wk {bt=true} at \"attn.k\"\n"
    "  %11 = matmul %8, wv {bt=true} at \"attn.v\"\n  %12 = reshape %9 {shape=[2,s,2,4]}\n  %13 = reshape %10 {shape=[2,s,1,4]}\n"
    "  %14 = reshape %11 {shape=[2,s,1,4]}\n  %15 = transpose %12 {order=[0,2,1,3]}\n  %16 = transpose %13 {order=[0,2,1,3]}\n"
    "  %17 = transpose %14 {order=[0,2,1,3]}\n  %18 = slice %15 {axis=3,start=0,end=2,step=1}\n  %19 = slice %15 {axis=3,start=2,end=4,step=1}\n"
    "  %20 = neg %19\n  %21 = concat %20, %18 {axis=3}\n  %22 = mul %21, sin\n  %23 = mul %15, cos\n  %24 = add %23, %22\n"
    "  %25 = attention %24, %16, %17 {scale=0.5,causal=true}\n  %26 = transpose %25 {order=[0,2,1,3]}\n  %27 = reshape %26 {shape=[2,s,8]}\n"
    "  %28 = matmul %27, wo {bt=true} at \"attn.o\"\n  %29 = add x, %28\n  %30 = matmul %29, wg {bt=true} at \"mlp.g\"\n  %31 = sigmoid %30\n"
    "  %32 = mul %30, %31\n  %33 = matmul %29, wu {bt=true} at \"mlp.u\"\n  %34 = mul %32, %33\n  %35 = matmul %34, wd at \"mlp.d\"\n  output y %35\n";

static dw_status run_all_stages(dw_context *context, void *argument) {
    pass_policy *policy = NULL;
    ir_graph *graph;
    text report;
    TRY(ir_parse(context, "block", block, sizeof block - 1, NULL, &graph));
    text_init(&report, context);
    dw_status status = pass_policy_create(context, "mxfp8", NULL, NULL, &policy);
    const pass_options options = {.check = true, .policy = policy, .probe = *(const pass_probe *)argument, .report = &report};
    if (status == DW_OK) status = pass_run(graph, PASS_STAGE_ALL, &options);
    if (status == DW_OK) status = text_status(&report);
    text_free(&report);
    pass_policy_destroy(policy);
    ir_graph_destroy(graph);
    return status;
}

static void every_allocation_of_all_stages_may_fail(void **state) {
    (void)state;
    for (pass_probe probe = PASS_PROBE_NONE; probe <= PASS_PROBE_ISOLATED; probe++) test_every_allocation(run_all_stages, &probe);
}

static void the_block_ends_in_these_ops(void **state) {
    (void)state;
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    const pass_options options = {.check = true};
    static const op_id expected[] = {OP_rms_norm, OP_concat, OP_matmul, OP_slice, OP_slice, OP_slice, OP_reshape, OP_reshape, OP_reshape, OP_transpose, OP_transpose,
                                     OP_transpose, OP_rotary, OP_attention, OP_transpose, OP_reshape, OP_matmul, OP_concat, OP_matmul, OP_transpose, OP_matmul};   /* the last weight is stored [k,n] */
    ir_graph *graph;
    if (ir_parse(context, "block", block, sizeof block - 1, NULL, &graph) != DW_OK || pass_run(graph, PASS_STAGE_ALL, &options) != DW_OK)
        fail_msg("%s", dw_context_error(context));
    size_t count = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next, count++) {
        if (count < COUNT_OF(expected) && node->op == expected[count]) continue;
        show_graph(graph, "after");
        fail_msg("node %zu is %s", count, op_get(node->op)->name);
    }
    assert_int_equal(count, COUNT_OF(expected));
    ir_graph_destroy(graph);
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fusion_keeps_what_random_graphs_mean),
        cmocka_unit_test(the_block_ends_in_these_ops),
        cmocka_unit_test(every_allocation_of_all_stages_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
