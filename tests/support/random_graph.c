/* Random graphs; see random_graph.h. */
#include "support/random_graph.h"

#include <stdio.h>

enum { MAX_VALUES = 256, STEPS = 60 };

typedef struct generator {
    ir_graph *graph;
    uint64_t seed, counter;
    ir_value *values[MAX_VALUES];
    int count;
} generator;

static int pick(generator *g, int count) { return (int)(num_random(g->seed, g->counter++) % (uint64_t)count); }

static ir_value *pick_value(generator *g) { return g->values[pick(g, g->count)]; }

/* A value of that format, the first try or any. */
static ir_value *pick_format(generator *g, dw_format format) {
    for (int tries = 0; tries < 20; tries++) {
        ir_value *value = pick_value(g);
        if (value->type.format == format) return value;
    }
    return NULL;
}

static void add(generator *g, ir_value *value) {
    if (g->count < MAX_VALUES) g->values[g->count++] = value;
}

static dw_status add_sources(generator *g) {
    ir_graph *graph = g->graph;
    dim symbol, four, one;
    ir_value *value;
    TRY_DIM(graph->context, symbol, dim_symbol(graph->dims, "s", 1, 8));
    TRY_DIM(graph->context, four, dim_constant(graph->dims, 4));
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    const op_type types[] = {
        {.format = DW_FORMAT_f32, .rank = 2, .dims = {symbol, four}},
        {.format = DW_FORMAT_f32, .rank = 2, .dims = {four, four}},
        {.format = DW_FORMAT_bf16, .rank = 2, .dims = {one, four}},
        {.format = DW_FORMAT_i64, .rank = 1, .dims = {symbol}},
        {.format = DW_FORMAT_bool, .rank = 2, .dims = {symbol, one}},
    };
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        char name[16];
        snprintf(name, sizeof name, "x%zu", i);
        TRY(ir_add_input(graph, name, &types[i], &value));
        add(g, value);
    }
    TRY(ir_add_param(graph, "w", &types[1], NULL, &value));
    add(g, value);
    const dw_format formats[] = {DW_FORMAT_f32, DW_FORMAT_bf16, DW_FORMAT_i64};
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        dw_tensor tensor;
        TRY(ir_add_constant(graph, NULL, formats[i], 1, (int64_t[]){4}, &value, &tensor));
        for (int64_t j = 0; j < 4; j++) op_tensor_store(&tensor, &j, (double)pick(g, 4) - 1);
        add(g, value);
    }
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        const double numbers[] = {0, -0.0, 1, 2, -1};
        TRY(ir_emit_scalar(graph, formats[i], numbers[pick(g, COUNT_OF(numbers))], &value));
        add(g, value);
    }
    TRY(ir_emit_size(graph, symbol, &value));
    add(g, value);
    TRY(ir_emit_size(graph, four, &value));
    add(g, value);
    op_attr iota[] = {op_set_dim(OP_ATTR_start, one), op_set_int(OP_ATTR_step, 2), op_set_dim(OP_ATTR_length, four), op_set_format(OP_ATTR_to, DW_FORMAT_i64)};
    TRY(ir_emit(graph, OP_iota, 0, NULL, COUNT_OF(iota), iota, &value));
    add(g, value);
    return DW_OK;
}

static dw_status emit_view(generator *g, ir_value *x, ir_value **y) {
    ir_graph *graph = g->graph;
    dim dims[DW_MAX_RANK], all, zero, one;
    int64_t order[DW_MAX_RANK];
    int rank = x->type.rank;
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    switch (pick(g, 5)) {
    case 0:
        TRY_DIM(graph->context, all, dim_product(graph->dims, x->type.dims, rank));
        return ir_emit_reshape(graph, x, 1, &all, y);
    case 1:
        for (int i = 0; i < rank; i++) {   /* a permutation, grown by one */
            int at = pick(g, i + 1);
            order[i] = order[at];
            order[at] = i;
        }
        return ir_emit_transpose(graph, x, order, y);
    case 2:
        for (int i = 0; i < rank; i++) dims[i + 1] = x->type.dims[i];
        dims[0] = pick(g, 2) ? one : pick_value(g)->type.dims[0];
        return dims[0] != NULL && rank < 4 ? ir_emit_broadcast(graph, x, rank + 1, dims, y) : DW_INVALID;
    case 3: return rank > 0 ? ir_emit_slice(graph, x, 0, pick(g, 2) ? zero : one, x->type.dims[0], 1 + pick(g, 2), y) : DW_INVALID;
    default: return ir_emit_broadcast(graph, x, rank, x->type.dims, y);
    }
}

static dw_status emit_reduction(generator *g, ir_value *x, ir_value **y) {
    const op_id ops[] = {OP_sum, OP_mean, OP_amax, OP_softmax, OP_cumsum};
    op_id op = ops[pick(g, COUNT_OF(ops))];
    int64_t axis = x->type.rank > 0 ? pick(g, x->type.rank) : 0;
    if (op == OP_softmax || op == OP_cumsum) {
        op_attr attr = op_set_int(OP_ATTR_axis, axis);
        return ir_emit(g->graph, op, 1, &x, 1, &attr, y);
    }
    op_attr attrs[] = {op_set_ints(OP_ATTR_axes, 1, &axis), op_set_bool(OP_ATTR_keep, pick(g, 2))};
    return ir_emit(g->graph, op, 1, &x, COUNT_OF(attrs), attrs, y);
}

/* One node, or a failure that leaves the graph as it is: not every choice fits its operands. */
static dw_status emit_something(generator *g, ir_value **y) {
    const op_id unary[] = {OP_neg, OP_abs, OP_exp, OP_not, OP_relu, OP_sin, OP_floor, OP_isnan};
    const op_id binary[] = {OP_add, OP_sub, OP_mul, OP_div, OP_minimum, OP_maximum, OP_eq, OP_lt, OP_ge, OP_and, OP_or, OP_xor};
    const dw_format formats[] = {DW_FORMAT_f32, DW_FORMAT_bf16, DW_FORMAT_f16, DW_FORMAT_f64, DW_FORMAT_i64, DW_FORMAT_i32, DW_FORMAT_bool};
    ir_value *x = pick_value(g), *z = pick_format(g, x->type.format), *condition;
    switch (pick(g, 9)) {
    case 0: return ir_emit_1(g->graph, unary[pick(g, COUNT_OF(unary))], x, y);
    case 1:
    case 2: return z != NULL ? ir_emit_2(g->graph, binary[pick(g, COUNT_OF(binary))], x, z, y) : DW_INVALID;
    case 3: return emit_view(g, x, y);
    case 4: return emit_reduction(g, x, y);
    case 5: {
        op_attr to = op_set_format(OP_ATTR_to, formats[pick(g, COUNT_OF(formats))]);
        return ir_emit(g->graph, OP_cast, 1, &x, 1, &to, y);
    }
    case 6: {   /* there and back */
        op_attr to = op_set_format(OP_ATTR_to, formats[pick(g, COUNT_OF(formats))]), back = op_set_format(OP_ATTR_to, x->type.format);
        ir_value *there;
        TRY(ir_emit(g->graph, OP_cast, 1, &x, 1, &to, &there));
        return ir_emit(g->graph, OP_cast, 1, &there, 1, &back, y);
    }
    case 7:
        condition = pick_format(g, DW_FORMAT_bool);
        return condition != NULL && z != NULL ? ir_emit(g->graph, OP_where, 3, (ir_value *[]){condition, x, z}, 0, NULL, y) : DW_INVALID;
    default: {
        op_attr bt = op_set_bool(OP_ATTR_bt, pick(g, 2));
        return z != NULL ? ir_emit(g->graph, OP_matmul, 2, (ir_value *[]){x, z}, 1, &bt, y) : DW_INVALID;
    }
    }
}

/* States of types that values often have; each begins with zeros. */
static dw_status add_states(generator *g, int count) {
    ir_graph *graph = g->graph;
    dim four;
    TRY_DIM(graph->context, four, dim_constant(graph->dims, 4));
    for (int i = 0; i < count; i++) {
        op_type type = {.format = i % 3 == 2 ? DW_FORMAT_i64 : DW_FORMAT_f32, .rank = i % 3 == 2 ? 1 : 2, .dims = {four, four}};
        ir_value *value;
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        TRY(ir_add_state(graph, name, &type, NULL, &value));
        add(g, value);
    }
    return DW_OK;
}

/* The next value of a state: any value of its type, of what came late more often; other states' present values among them. */
static void set_next(generator *g, ir_value *state) {
    for (int tries = 0; tries < 40; tries++) {
        int half = g->count / 2;
        ir_value *value = g->values[tries < 20 ? half + pick(g, g->count - half) : pick(g, g->count)];
        if (!op_type_equal(&value->type, &state->type)) continue;
        ir_set_next(state, value);
        return;
    }
}

static dw_status generate(generator *g, int states) {
    TRY(add_sources(g));
    TRY(add_states(g, states));
    for (int i = 0; i < STEPS; i++) {
        ir_value *value;
        if (emit_something(g, &value) == DW_OK) add(g, value);
    }
    for (int i = 0; i < g->count; i++) {
        char name[16];
        snprintf(name, sizeof name, "y%d", i);
        if (pick(g, 3) == 0) TRY(ir_add_output(g->graph, name, g->values[i]));
    }
    for (size_t i = 0; i < g->graph->state_count; i++) set_next(g, g->graph->states[i]);
    ir_renumber(g->graph);
    return DW_OK;
}

dw_status random_graph(dw_context *context, uint64_t seed, int states, ir_graph **graph) {
    generator g = {.seed = seed};
    TRY(ir_graph_create(context, "random", graph));
    g.graph = *graph;
    return generate(&g, states);
}
