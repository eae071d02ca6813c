/* What rules emit: expressions in text, sums over broadcast axes, spreads over reduced ones. Knows no op's rule. */
#include "pass/gradient/gradient.h"

#include <string.h>

/* ---- shapes ---- */

static bool is_one(dim d) {
    int64_t size;
    return dim_is_constant(d, &size) && size == 1;
}

dw_status gradient_emit_full(gradient *g, const ir_value *value, double number, ir_value **result) {
    const op_attr attrs[] = {op_set_dims(OP_ATTR_shape, value->type.rank, value->type.dims), op_set_real(OP_ATTR_value, number), op_set_format(OP_ATTR_to, value->type.format)};
    return ir_emit(g->graph, OP_fill, 0, NULL, COUNT_OF(attrs), attrs, result);
}

dw_status gradient_emit_sum(gradient *g, ir_value *x, int count, const int64_t *axes, ir_value **result) {
    const op_attr attr = op_set_ints(OP_ATTR_axes, count, axes);
    *result = x;
    return count == 0 ? DW_OK : ir_emit(g->graph, OP_sum, 1, &x, 1, &attr, result);
}

dw_status gradient_emit_unbroadcast(gradient *g, ir_value *x, int rank, const dim *dims, ir_value **result) {
    int64_t axes[DW_MAX_RANK];
    int count = 0;
    const int added = x->type.rank - rank;
    for (int i = 0; i < x->type.rank; i++) {
        if (i < added || (is_one(dims[i - added]) && !is_one(x->type.dims[i]))) axes[count++] = i;
    }
    TRY(gradient_emit_sum(g, x, count, axes, result));
    return ir_emit_reshape(g->graph, *result, rank, dims, result);
}

dw_status gradient_emit_spread(gradient *g, ir_value *x, const ir_value *whole, int count, const int64_t *axes, ir_value **result) {
    dim dims[DW_MAX_RANK];
    const int rank = whole->type.rank;
    for (int i = 0; i < rank; i++) dims[i] = whole->type.dims[i];
    for (int i = 0; i < count; i++) TRY_DIM(g->graph->context, dims[axes[i]], dim_constant(g->graph->dims, 1));
    TRY(ir_emit_reshape(g->graph, x, rank, dims, result));
    return ir_emit_broadcast(g->graph, *result, rank, whole->type.dims, result);
}

dw_status gradient_emit_reversed(gradient *g, ir_value *x, int axis, ir_value **result) {
    dim last, one;
    ir_value *places;
    TRY_DIM(g->graph->context, one, dim_constant(g->graph->dims, 1));
    TRY_DIM(g->graph->context, last, dim_sub(g->graph->dims, x->type.dims[axis], one));
    const op_attr attrs[] = {op_set_dim(OP_ATTR_length, x->type.dims[axis]), op_set_dim(OP_ATTR_start, last), op_set_int(OP_ATTR_step, -1), op_set_format(OP_ATTR_to, DW_FORMAT_i64)};
    const op_attr along = op_set_int(OP_ATTR_axis, axis);
    TRY(ir_emit(g->graph, OP_iota, 0, NULL, COUNT_OF(attrs), attrs, &places));
    return ir_emit(g->graph, OP_take, 2, (ir_value *[]){x, places}, 1, &along, result);
}

dw_status gradient_emit_count(gradient *g, dim size, dw_format format, ir_value **result) {
    int64_t known;
    if (dim_is_constant(size, &known)) return ir_emit_scalar(g->graph, format, (double)known, result);
    TRY(ir_emit_size(g->graph, size, result));
    return ir_emit_cast(g->graph, *result, format, result);
}

/* ---- expressions ---- */

enum { MAX_ARGUMENTS = 3, MAX_NAME = 32, MAX_DEPTH = 16 };

typedef struct expression {
    gradient *g;
    const ir_node *node;
    const char *at, *end;
    ir_value *d;
    dw_format format;           /* that it is computed in */
} expression;

/* A row of gradient.def that does not parse is our own mistake; the tests derive the gradient of each. */
static dw_status fail(const expression *e) {
    return base_fail(e->g->graph->context, DW_INTERNAL, "the row of op %s in gradient.def does not parse at '%.20s'", op_get(e->node->op)->name, e->at);
}

/* Truths and integers stay what they are. */
static dw_status read_value(expression *e, ir_value *value, ir_value **result) {
    if (value == NULL) return fail(e);
    *result = value;
    return num_info(value->type.format)->class == NUM_FLOAT ? ir_emit_cast(e->g->graph, value, e->format, result) : DW_OK;
}

static dw_status read_term(expression *e, int depth, ir_value **result);

/* What stands behind the name of an op. */
static dw_status read_call(expression *e, op_id op, int depth, ir_value **result) {
    ir_value *arguments[MAX_ARGUMENTS];
    int count = 0;
    do {
        e->at++;
        if (count == MAX_ARGUMENTS) return fail(e);
        TRY(read_term(e, depth + 1, &arguments[count++]));
    } while (e->at < e->end && *e->at == ',');
    if (e->at == e->end || *e->at != ')') return fail(e);
    e->at++;
    return ir_emit(e->g->graph, op, count, arguments, 0, NULL, result);
}

static dw_status read_term(expression *e, int depth, ir_value **result) {
    char name[MAX_NAME + 1];
    double number;
    const size_t length = strcspn(e->at, ",()|");
    if (length == 0 || length > MAX_NAME || e->at + length > e->end || depth > MAX_DEPTH) return fail(e);
    memcpy(name, e->at, length);
    name[length] = '\0';
    const op_id op = op_find(name);
    if (e->at + length < e->end && e->at[length] == '(') {
        if (op == OP_COUNT) return fail(e);
        e->at += length;
        return read_call(e, op, depth, result);
    }
    if (strcmp(name, "d") == 0) {
        TRY(read_value(e, e->d, result));
    } else if (strcmp(name, "y") == 0) {
        TRY(read_value(e, ir_out(e->node), result));
    } else if (name[0] == 'x' && name[1] >= '0' && name[1] <= '9' && name[2] == '\0') {
        TRY(read_value(e, ir_in(e->node, name[1] - '0'), result));
    } else if (text_read_real(name, length, &number)) {
        TRY(ir_emit_scalar(e->g->graph, e->format, number, result));
    } else {
        return fail(e);
    }
    e->at += length;
    return DW_OK;
}

dw_status gradient_emit_text(gradient *g, const ir_node *node, const char *text, size_t length, ir_value *d, ir_value **result) {
    int ops = 0;
    for (size_t i = 0; i < length; i++) ops += text[i] == '(';
    expression e = {.g = g, .node = node, .at = text, .end = text + length, .d = d, .format = d->type.format};
    if (ops > 1 && dw_format_bits(e.format) < 32) e.format = DW_FORMAT_f32;
    TRY(read_term(&e, 0, result));
    return e.at == e.end ? DW_OK : fail(&e);
}
