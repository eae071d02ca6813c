/* Rules of operators that make values out of sizes and numbers. Memory that PyTorch leaves uninitialised is zero here. */
#include <math.h>

#include "capture/program.h"

/* ---- fills ---- */

/* The shape: the argument size, or that of self. */
static dw_status read_shape(capture_call *call, int *rank, const dim **dims) {
    capture_tensor *self;
    if (capture_find_arg(call, "size") != NULL) {
        TRY(capture_dims_arg(call, "size", rank, dims));
    } else {
        TRY(capture_tensor_arg(call, "self", &self));
        *rank = self->type.rank;
        *dims = self->type.dims;
    }
    if (*rank > DW_MAX_RANK) return capture_fail(call, DW_UNSUPPORTED, "a tensor with %d axes; at most %d are supported", *rank, DW_MAX_RANK);
    return DW_OK;
}

static dw_status fill(capture_call *call, double value, dw_format fallback) {
    const dim *dims;
    int rank;
    dw_format format;
    ir_value *made;
    TRY(read_shape(call, &rank, &dims));
    const capture_arg *self = capture_find_arg(call, "self");
    if (self != NULL && self->kind == ARG_TENSOR) fallback = self->tensor->type.format;
    TRY(capture_format_arg(call, "dtype", capture_result_format(call, 0, fallback), &format));
    TRY(capture_emit_fill(call->graph, rank, dims, value, format, &made));
    return capture_result(call, 0, made);
}

dw_status capture_rule_zeros(capture_call *call) { return fill(call, 0, DW_FORMAT_f32); }
dw_status capture_rule_ones(capture_call *call) { return fill(call, 1, DW_FORMAT_f32); }

/* The value may be a number or a tensor of one element. */
dw_status capture_rule_full(capture_call *call) {
    const char *name = capture_find_arg(call, "fill_value") != NULL ? "fill_value" : "value";
    const capture_arg *value = capture_find_arg(call, name);
    ir_value *made;
    const dim *dims;
    double number;
    int rank;
    if (value->kind == ARG_REAL || value->kind == ARG_BOOL || (value->kind == ARG_INT && dim_is_constant(value->integer, NULL))) {
        TRY(capture_real_arg(call, name, &number));
        return fill(call, number, DW_FORMAT_f32);
    }
    TRY(read_shape(call, &rank, &dims));
    TRY(capture_operand_arg(call, name, capture_result_format(call, 0, DW_FORMAT_f32), &made));
    TRY(capture_emit_reshape_scalar(call->graph, made, &made));
    TRY(ir_emit_broadcast(call->graph, made, rank, dims, &made));
    return capture_result(call, 0, made);
}

dw_status capture_rule_scalar_tensor(capture_call *call) {
    ir_value *made;
    TRY(capture_operand_arg(call, "s", capture_result_format(call, 0, DW_FORMAT_f32), &made));
    return capture_result(call, 0, made);
}

dw_status capture_rule_eye(capture_call *call) {
    dim rows, columns;
    ir_value *i, *j;
    TRY(capture_dim_arg(call, "n", &rows));
    columns = rows;
    if (capture_has(call, "m")) TRY(capture_dim_arg(call, "m", &columns));
    TRY(capture_emit_index(call->graph, 2, 0, rows, DW_FORMAT_i64, &i));
    TRY(capture_emit_index(call->graph, 2, 1, columns, DW_FORMAT_i64, &j));
    TRY(ir_emit_2(call->graph, OP_eq, i, j, &i));
    return capture_result(call, 0, i);
}

/* ---- ranges ---- */

static dw_status integer_range(capture_call *call, dim start, dim end, int64_t step) {
    dim length, by, more;
    ir_value *made;
    dw_format format = capture_result_format(call, 0, DW_FORMAT_i64);
    if (step == 0 || step == INT64_MIN) return capture_fail(call, DW_CORRUPT, "a step of %lld", (long long)step);
    if (step > 0) TRY_DIM(call->capture->context, length, dim_sub(call->dims, end, start));
    else TRY_DIM(call->capture->context, length, dim_sub(call->dims, start, end));
    int64_t size = step > 0 ? step : -step;
    TRY_DIM(call->capture->context, by, dim_constant(call->dims, size));
    TRY_DIM(call->capture->context, more, dim_constant(call->dims, size - 1));
    TRY_DIM(call->capture->context, length, dim_add(call->dims, length, more));
    TRY_DIM(call->capture->context, length, dim_floordiv(call->dims, length, by));
    op_attr attrs[] = {op_set_dim(OP_ATTR_length, length), op_set_dim(OP_ATTR_start, start), op_set_int(OP_ATTR_step, step),
                       op_set_format(OP_ATTR_to, capture_is_float(format) ? DW_FORMAT_i64 : format)};
    TRY(ir_emit(call->graph, OP_iota, 0, NULL, COUNT_OF(attrs), attrs, &made));
    return capture_result(call, 0, made);
}

/* start + step * i in f64, rounded once */
static dw_status real_range(capture_call *call, double start, double step, dim length) {
    ir_value *made;
    TRY(capture_emit_index(call->graph, 1, 0, length, DW_FORMAT_f64, &made));
    TRY(capture_emit_number(call->graph, OP_mul, made, step, &made));
    TRY(capture_emit_number(call->graph, OP_add, made, start, &made));
    return capture_result(call, 0, made);
}

static bool is_integer(const capture_call *call, const char *name) {
    const capture_arg *arg = capture_find_arg(call, name);
    return arg == NULL || arg->kind == ARG_INT || arg->kind == ARG_NONE;
}

/* A step of 1 may be spelled 1.0. */
static bool is_whole(const capture_call *call, const char *name) {
    const capture_arg *arg = capture_find_arg(call, name);
    return is_integer(call, name) || (arg->kind == ARG_REAL && fabs(arg->real) < 1e9 && arg->real == floor(arg->real));
}

static dw_status whole_arg(capture_call *call, const char *name, int64_t *value) {
    const capture_arg *arg = capture_find_arg(call, name);
    if (arg->kind != ARG_REAL) return capture_int_arg(call, name, value);
    *value = (int64_t)arg->real;
    return DW_OK;
}

dw_status capture_rule_arange(capture_call *call) {
    if (is_integer(call, "start") && is_integer(call, "end") && is_whole(call, "step")) {
        dim start, end;
        int64_t step = 1;
        TRY_DIM(call->capture->context, start, dim_constant(call->dims, 0));
        if (capture_has(call, "start")) TRY(capture_dim_arg(call, "start", &start));
        if (capture_has(call, "step")) TRY(whole_arg(call, "step", &step));
        TRY(capture_dim_arg(call, "end", &end));
        return integer_range(call, start, end, step);
    }
    double start = 0, end, step = 1;
    dim length;
    if (capture_has(call, "start")) TRY(capture_real_arg(call, "start", &start));
    if (capture_has(call, "step")) TRY(capture_real_arg(call, "step", &step));
    TRY(capture_real_arg(call, "end", &end));
    double count = ceil((end - start) / step);
    if (!(count >= 0 && count < 1e15)) return capture_fail(call, DW_CORRUPT, "a range from %g to %g by %g", start, end, step);
    TRY_DIM(call->capture->context, length, dim_constant(call->dims, (int64_t)count));
    return real_range(call, start, step, length);
}

/* start + step * i, integers */
dw_status capture_rule_prims_iota(capture_call *call) {
    dim length, start;
    int64_t step;
    ir_value *made;
    dw_format format = capture_result_format(call, 0, DW_FORMAT_i64);
    TRY(capture_dim_arg(call, "length", &length));
    TRY(capture_dim_arg(call, "start", &start));
    TRY(capture_int_arg(call, "step", &step));
    op_attr attrs[] = {op_set_dim(OP_ATTR_length, length), op_set_dim(OP_ATTR_start, start), op_set_int(OP_ATTR_step, step),
                       op_set_format(OP_ATTR_to, capture_is_float(format) ? DW_FORMAT_i64 : format)};
    TRY(ir_emit(call->graph, OP_iota, 0, NULL, COUNT_OF(attrs), attrs, &made));
    return capture_result(call, 0, made);
}

dw_status capture_rule_linspace(capture_call *call) {
    double start, end;
    int64_t steps;
    dim length;
    TRY(capture_real_arg(call, "start", &start));
    TRY(capture_real_arg(call, "end", &end));
    TRY(capture_int_arg(call, "steps", &steps));
    TRY_DIM(call->capture->context, length, dim_constant(call->dims, steps));
    return real_range(call, start, steps > 1 ? (end - start) / (double)(steps - 1) : 0, length);
}
