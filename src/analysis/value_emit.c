/* Formulas become ops again: each expression a value with one axis per axis asked for, of size 1 where the expression does not vary. */
#include "analysis/value.h"

typedef struct emitter {
    value_analysis *analysis;
    ir_graph *graph;
    int rank;
    const dim *dims;
    dw_format real;      /* the format of REAL expressions */
} emitter;

static dw_status emit(const emitter *to, value_expr x, ir_value **value);

/* The shape of an expression whose indices are the bits of axes. */
static dw_status set_shape(const emitter *to, unsigned axes, dim *shape) {
    for (int i = 0; i < to->rank; i++) {
        if (axes & 1u << i) {
            shape[i] = to->dims[i];
        } else {
            TRY_DIM(to->graph->context, shape[i], dim_constant(to->graph->dims, 1));
        }
    }
    return DW_OK;
}

static dw_format format_of(const emitter *to, value_class class) {
    static const dw_format formats[] = {[VALUE_BOOL] = DW_FORMAT_bool, [VALUE_INT] = DW_FORMAT_i64};
    return class == VALUE_REAL ? to->real : formats[class];
}

static dw_status emit_index(const emitter *to, int axis, ir_value **value) {
    dim zero, shape[DW_MAX_RANK];
    TRY_DIM(to->graph->context, zero, dim_constant(to->graph->dims, 0));
    const op_attr attrs[] = {op_set_dim(OP_ATTR_length, to->dims[axis]), op_set_dim(OP_ATTR_start, zero), op_set_int(OP_ATTR_step, 1),
                             op_set_format(OP_ATTR_to, DW_FORMAT_i64)};
    ir_value *iota;
    TRY(ir_emit(to->graph, OP_iota, 0, NULL, COUNT_OF(attrs), attrs, &iota));
    TRY(set_shape(to, 1u << axis, shape));
    return ir_emit_reshape(to->graph, iota, to->rank, shape, value);
}

static dw_status emit_size(const emitter *to, dim size, ir_value **value) {
    int64_t constant;
    if (dim_is_constant(size, &constant)) return ir_emit_scalar(to->graph, DW_FORMAT_i64, (double)constant, value);
    return ir_emit_size(to->graph, size, value);
}

static dw_status emit_affine(const emitter *to, value_expr x, ir_value **value) {
    ir_graph *graph = to->graph;
    ir_value *sum = NULL;
    int64_t constant;
    if (x->count == 0 || !dim_is_constant(x->size, &constant) || constant != 0) TRY(emit_size(to, x->size, &sum));
    for (int i = 0; i < x->count; i++) {
        ir_value *term, *factor;
        TRY(emit(to, x->args[i], &term));
        if (term == NULL) return *value = NULL, DW_OK;
        if (!dim_is_constant(x->factors[i], &constant) || (constant != 1 && constant != -1)) {
            TRY(emit_size(to, x->factors[i], &factor));
            TRY(ir_emit_2(graph, OP_mul, term, factor, &term));
            constant = 1;
        }
        if (sum == NULL && constant == 1) {
            sum = term;
        } else if (sum == NULL) {
            TRY(ir_emit_1(graph, OP_neg, term, &sum));
        } else {
            TRY(ir_emit_2(graph, constant == 1 ? OP_add : OP_sub, sum, term, &sum));
        }
    }
    *value = sum;
    return DW_OK;
}

/* Does the lookup take its source as it lies, each axis by an index of the same size or at 0 of a single element? */
static bool is_plain_lookup(const emitter *to, value_expr x) {
    unsigned seen = 0;
    int last = -1;
    for (int i = 0; i < x->count; i++) {
        const value_expr arg = x->args[i];
        double number;
        int64_t size;
        if (value_is_number(arg, &number) && dim_is_constant(x->source->type.dims[i], &size) && size == 1) continue;
        if (arg->kind != VALUE_INDEX || (seen & 1u << arg->axis) || arg->axis < last || x->source->type.dims[i] != to->dims[arg->axis]) return false;
        seen |= 1u << arg->axis;
        last = arg->axis;
    }
    return true;
}

/* An index of a lookup. A choice around the lookup may leave it out of range where it is not taken: it must not count from the end then, for
 * where that is depends on the length. */
static dw_status emit_place(const emitter *to, value_expr x, ir_value **value) {
    ir_value *zero;
    dim low, high, none;
    TRY(emit(to, x, value));
    value_set_scope(to->analysis, to->rank, to->dims);
    TRY_DIM(to->graph->context, none, dim_constant(to->graph->dims, 0));
    const bool known = *value != NULL && value_range(to->analysis, x, &low, &high);
    if (!known || dim_always_le(to->graph->dims, none, low)) return value_status(to->analysis);
    TRY(ir_emit_scalar(to->graph, DW_FORMAT_i64, 0, &zero));
    return ir_emit_2(to->graph, OP_maximum, *value, zero, value);
}

static dw_status emit_lookup(const emitter *to, value_expr x, ir_value **value) {
    ir_graph *graph = to->graph;
    ir_value *source = (ir_value *)x->source, *in[DW_MAX_RANK + 1] = {source};
    const dw_format format = format_of(to, x->class);
    if (is_plain_lookup(to, x)) {
        dim shape[DW_MAX_RANK];
        TRY(set_shape(to, x->axes, shape));
        TRY(ir_emit_reshape(graph, source, to->rank, shape, value));
        return ir_emit_cast(graph, *value, format, value);
    }
    for (int i = 0; i < x->count; i++) {
        TRY(emit_place(to, x->args[i], &in[i + 1]));
        if (in[i + 1] == NULL) return *value = NULL, DW_OK;
    }
    const op_attr axis = op_set_int(OP_ATTR_axis, 0);
    TRY(ir_emit(graph, OP_index, x->count + 1, in, 1, &axis, value));
    return ir_emit_cast(graph, *value, format, value);
}

/* A running sum up to an index: along that axis. */
static dw_status emit_scan(const emitter *to, value_expr x, ir_value **value) {
    const value_expr last = x->args[1];
    ir_value *elements;
    *value = NULL;
    if (last->kind != VALUE_INDEX) return DW_OK;
    value_set_scope(to->analysis, to->rank, to->dims);
    const value_expr body = value_open_scan(to->analysis, x, last->axis);
    if (body == NULL || !(body->axes & 1u << last->axis)) return value_status(to->analysis);
    TRY(emit(to, body, &elements));
    if (elements == NULL) return DW_OK;
    const op_attr axis = op_set_int(OP_ATTR_axis, last->axis);
    return ir_emit(to->graph, OP_cumsum, 1, &elements, 1, &axis, value);
}

static dw_status emit(const emitter *to, value_expr x, ir_value **value) {
    ir_graph *graph = to->graph;
    ir_value *in[3] = {NULL}, *zero;
    *value = NULL;
    switch (x->kind) {
    case VALUE_CONSTANT: return ir_emit_scalar(graph, format_of(to, x->class), x->number, value);
    case VALUE_INDEX: return emit_index(to, x->axis, value);
    case VALUE_AFFINE: return emit_affine(to, x, value);
    case VALUE_LOOKUP: return emit_lookup(to, x, value);
    case VALUE_SCAN: return emit_scan(to, x, value);
    case VALUE_BOUND: return DW_OK;
    default: break;
    }
    for (int i = 0; i < x->count; i++) {
        TRY(emit(to, x->args[i], &in[i]));
        if (in[i] == NULL) return DW_OK;
    }
    switch (x->kind) {
    case VALUE_LE:
    case VALUE_EQ:
        TRY(ir_emit_scalar(graph, DW_FORMAT_i64, 0, &zero));
        return ir_emit_2(graph, x->kind == VALUE_LE ? OP_le : OP_eq, in[0], zero, value);
    case VALUE_AND: return ir_emit_2(graph, OP_and, in[0], in[1], value);
    case VALUE_OR: return ir_emit_2(graph, OP_or, in[0], in[1], value);
    case VALUE_NOT: return ir_emit_1(graph, OP_not, in[0], value);
    case VALUE_SELECT: return ir_emit(graph, OP_where, 3, in, 0, NULL, value);
    default: break;
    }
    if (x->op == OP_cast) {
        TRY(ir_emit_cast(graph, in[0], x->format, value));
    } else {
        TRY(ir_emit(graph, x->op, x->count, in, 0, NULL, value));
    }
    return ir_emit_cast(graph, *value, format_of(to, x->class), value);
}

dw_status value_emit(value_analysis *analysis, value_expr x, int rank, const dim *dims, dw_format format, ir_value **value) {
    const emitter to = {.analysis = analysis, .graph = analysis->graph, .rank = rank, .dims = dims,
                        .real = value_class_of(format) == VALUE_REAL ? format : DW_FORMAT_f32};
    TRY(emit(&to, x, value));
    if (*value == NULL) return DW_OK;
    dim shape[DW_MAX_RANK];
    TRY(set_shape(&to, (*value)->type.rank == 0 ? 0 : x->axes, shape));
    TRY(ir_emit_reshape(analysis->graph, *value, rank, shape, value));
    return ir_emit_cast(analysis->graph, *value, format, value);
}
