/* Rules of elementwise operators: arithmetic, comparison, selection, activations. Formats follow the recorded result, as PyTorch promoted it. */
#include <math.h>

#include "capture/program.h"

/* ---- formats of operands ---- */

static dw_format arg_format(const capture_call *call, const char *name, int *rank) {
    const capture_arg *arg = capture_find_arg(call, name);
    *rank = -1;
    if (arg == NULL || arg->kind == ARG_INT) return DW_FORMAT_i64;
    if (arg->kind == ARG_BOOL) return DW_FORMAT_bool;
    if (arg->kind != ARG_TENSOR) return DW_FORMAT_f32;
    *rank = arg->tensor->type.rank;
    return arg->tensor->type.format;
}

/* The format in which two arguments meet. */
static dw_format common_format(const capture_call *call, const char *a, const char *b) {
    int rank_a, rank_b;
    dw_format format_a = arg_format(call, a, &rank_a), format_b = arg_format(call, b, &rank_b);
    return capture_promote(format_a, rank_a, format_b, rank_b);
}

/* Is the argument a known number, and which? */
static bool known_number(const capture_call *call, const char *name, double *number) {
    const capture_arg *arg = capture_find_arg(call, name);
    int64_t integer;
    if (arg == NULL) return false;
    if (arg->kind == ARG_REAL) return *number = arg->real, true;
    if (arg->kind == ARG_BOOL) return *number = arg->truth, true;
    if (arg->kind != ARG_INT || !dim_is_constant(arg->integer, &integer)) return false;
    *number = (double)integer;
    return true;
}

/* a op b in one format; b may be a number. */
static dw_status emit_binary(capture_call *call, op_id op, const char *a, const char *b, dw_format format, ir_value **result) {
    ir_value *x, *y;
    double number;
    TRY(capture_operand_arg(call, a, format, &x));
    if (known_number(call, b, &number) && (op_get(op)->traits & OP_TRAIT_PREDICATE) == 0) return capture_emit_number(call->graph, op, x, number, result);
    TRY(capture_operand_arg(call, b, format, &y));
    return ir_emit_2(call->graph, op, x, y, result);
}

/* ---- one operand ---- */

/* PREDICATE ops look at the operand as it is; others compute in the result's format. */
dw_status capture_rule_unary(capture_call *call) {
    ir_value *x;
    op_id op = call->row->op;
    TRY(capture_value_arg(call, call->arg_names[0], &x));
    if ((op_get(op)->traits & OP_TRAIT_PREDICATE) == 0) TRY(ir_emit_cast(call->graph, x, capture_result_format(call, 0, x->type.format), &x));
    else if (!capture_is_float(x->type.format)) TRY(ir_emit_cast(call->graph, x, DW_FORMAT_f32, &x));   /* integers are neither NaN nor infinite */
    TRY(ir_emit_1(call->graph, op, x, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_logical_not(capture_call *call) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_cast(call->graph, x, DW_FORMAT_bool, &x));
    TRY(ir_emit_1(call->graph, OP_not, x, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_square(capture_call *call) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_2(call->graph, OP_mul, x, x, &x));
    return capture_result(call, 0, x);
}

/* Functions that fp32 steps would spoil near 0 are computed in f64 and rounded once. */
static dw_status log_of(capture_call *call, double add, double divide) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_cast(call->graph, x, DW_FORMAT_f64, &x));
    if (add != 0) TRY(capture_emit_number(call->graph, OP_add, x, add, &x));
    TRY(ir_emit_1(call->graph, OP_log, x, &x));
    if (divide != 1) TRY(capture_emit_number(call->graph, OP_div, x, divide, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_log1p(capture_call *call) { return log_of(call, 1, 1); }
dw_status capture_rule_log2(capture_call *call) { return log_of(call, 0, log(2.0)); }
dw_status capture_rule_log10(capture_call *call) { return log_of(call, 0, log(10.0)); }

dw_status capture_rule_expm1(capture_call *call) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_cast(call->graph, x, DW_FORMAT_f64, &x));
    TRY(ir_emit_1(call->graph, OP_exp, x, &x));
    TRY(capture_emit_number(call->graph, OP_sub, x, 1, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_exp2(capture_call *call) {
    ir_value *x, *two;
    TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_cast(call->graph, x, capture_result_format(call, 0, x->type.format), &x));
    TRY(ir_emit_scalar(call->graph, x->type.format, 2, &two));
    TRY(ir_emit_2(call->graph, OP_pow, two, x, &x));
    return capture_result(call, 0, x);
}

/* ---- two operands ---- */

dw_status capture_rule_binary(capture_call *call) {
    ir_value *x;
    dw_format format = capture_result_format(call, 0, common_format(call, call->arg_names[0], call->arg_names[1]));
    TRY(emit_binary(call, call->row->op, call->arg_names[0], call->arg_names[1], format, &x));
    return capture_result(call, 0, x);
}

/* self op alpha * other, or with the two exchanged */
static dw_status add_scaled(capture_call *call, const char *first, const char *second) {
    ir_value *x, *y;
    double alpha = 1, number;
    dw_format format = capture_result_format(call, 0, common_format(call, first, second));
    if (capture_has(call, "alpha")) TRY(capture_real_arg(call, "alpha", &alpha));
    if (alpha == 1) {
        TRY(emit_binary(call, call->row->op, first, second, format, &x));
        return capture_result(call, 0, x);
    }
    TRY(capture_operand_arg(call, first, format, &x));
    if (known_number(call, second, &number)) {
        TRY(capture_emit_number(call->graph, call->row->op, x, number * alpha, &x));
        return capture_result(call, 0, x);
    }
    TRY(capture_operand_arg(call, second, format, &y));
    TRY(capture_emit_number(call->graph, OP_mul, y, alpha, &y));
    TRY(ir_emit_2(call->graph, call->row->op, x, y, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_add(capture_call *call) { return add_scaled(call, "self", "other"); }

dw_status capture_rule_rsub(capture_call *call) {
    double alpha = 1;
    if (capture_has(call, "alpha")) TRY(capture_real_arg(call, "alpha", &alpha));
    if (alpha != 1) return capture_fail(call, DW_UNSUPPORTED, "alpha is %g; only 1 is supported", alpha);
    return add_scaled(call, "other", "self");
}

/* sign(x) * floor(|x|), for a quotient rounded toward zero */
static dw_status truncate(ir_graph *graph, ir_value *x, ir_value **result) {
    ir_value *sign;
    TRY(ir_emit_1(graph, OP_sign, x, &sign));
    TRY(ir_emit_1(graph, OP_abs, x, &x));
    TRY(ir_emit_1(graph, OP_floor, x, &x));
    return ir_emit_2(graph, OP_mul, sign, x, result);
}

dw_status capture_rule_div(capture_call *call) {
    const char *mode = NULL;
    ir_value *x;
    dw_format format = capture_result_format(call, 0, common_format(call, "self", "other"));
    if (capture_has(call, "rounding_mode")) TRY(capture_text_arg(call, "rounding_mode", &mode));
    if (mode != NULL && mode[0] == 'f') {
        TRY(emit_binary(call, OP_floordiv, "self", "other", format, &x));
    } else if (mode != NULL) {
        TRY(emit_binary(call, OP_div, "self", "other", capture_is_float(format) ? format : DW_FORMAT_f64, &x));
        TRY(truncate(call->graph, x, &x));
    } else {
        TRY(emit_binary(call, OP_div, "self", "other", format, &x));
    }
    return capture_result(call, 0, x);
}

dw_status capture_rule_trunc(capture_call *call) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    if (capture_is_float(x->type.format)) TRY(truncate(call->graph, x, &x));
    return capture_result(call, 0, x);
}

/* x - y * trunc(x / y), in f64 for exactness of the quotient */
dw_status capture_rule_fmod(capture_call *call) {
    ir_value *x, *y, *quotient;
    TRY(capture_operand_arg(call, "self", DW_FORMAT_f64, &x));
    TRY(capture_operand_arg(call, "other", DW_FORMAT_f64, &y));
    TRY(ir_emit_2(call->graph, OP_div, x, y, &quotient));
    TRY(truncate(call->graph, quotient, &quotient));
    TRY(ir_emit_2(call->graph, OP_mul, y, quotient, &y));
    TRY(ir_emit_2(call->graph, OP_sub, x, y, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_compare(capture_call *call) {
    ir_value *x;
    dw_format format = common_format(call, "self", "other");
    TRY(emit_binary(call, call->row->op, "self", "other", format, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_logical(capture_call *call) {
    ir_value *x;
    TRY(emit_binary(call, call->row->op, "self", "other", DW_FORMAT_bool, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_pow(capture_call *call) {
    ir_value *x, *y;
    double number;
    const char *base = call->arg_names[0], *exponent = call->arg_names[1];
    dw_format format = capture_result_format(call, 0, common_format(call, base, exponent));
    TRY(capture_operand_arg(call, base, format, &x));
    if (known_number(call, exponent, &number)) {
        TRY(capture_emit_number(call->graph, OP_pow, x, number, &x));
    } else {
        TRY(capture_operand_arg(call, exponent, format, &y));
        TRY(ir_emit_2(call->graph, OP_pow, x, y, &x));
    }
    return capture_result(call, 0, x);
}

/* ---- selection ---- */

static dw_status emit_where(capture_call *call, ir_value *condition, ir_value *yes, ir_value *no, ir_value **result) {
    TRY(ir_emit_cast(call->graph, condition, DW_FORMAT_bool, &condition));
    return ir_emit(call->graph, OP_where, 3, (ir_value *[]){condition, yes, no}, 0, NULL, result);
}

dw_status capture_rule_where(capture_call *call) {
    ir_value *condition, *yes, *no;
    dw_format format = capture_result_format(call, 0, common_format(call, "self", "other"));
    TRY(capture_value_arg(call, "condition", &condition));
    TRY(capture_operand_arg(call, "self", format, &yes));
    TRY(capture_operand_arg(call, "other", format, &no));
    TRY(emit_where(call, condition, yes, no, &yes));
    return capture_result(call, 0, yes);
}

dw_status capture_rule_masked_fill(capture_call *call) {
    ir_value *x, *mask, *value;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_value_arg(call, "mask", &mask));
    TRY(capture_operand_arg(call, "value", x->type.format, &value));
    TRY(emit_where(call, mask, value, x, &x));
    return capture_result(call, 0, x);
}

static dw_status bound_by(capture_call *call, op_id op, const char *name, ir_value **x) {
    ir_value *bound;
    double number;
    if (!capture_has(call, name)) return DW_OK;
    if (known_number(call, name, &number)) return capture_emit_number(call->graph, op, *x, number, x);
    TRY(capture_operand_arg(call, name, (*x)->type.format, &bound));
    return ir_emit_2(call->graph, op, *x, bound, x);
}

static dw_status clamp(capture_call *call, const char *min, const char *max) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_cast(call->graph, x, capture_result_format(call, 0, x->type.format), &x));
    TRY(bound_by(call, OP_maximum, min, &x));
    TRY(bound_by(call, OP_minimum, max, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_clamp(capture_call *call) { return clamp(call, "min", "max"); }
dw_status capture_rule_hardtanh(capture_call *call) { return clamp(call, "min_val", "max_val"); }

/* ---- activations ---- */

dw_status capture_rule_gelu(capture_call *call) {
    ir_value *x;
    const char *approximate;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_text_arg(call, "approximate", &approximate));
    TRY(ir_emit_1(call->graph, approximate[0] == 't' ? OP_gelu_tanh : OP_gelu, x, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_softplus(capture_call *call) {
    ir_value *x;
    double beta;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_real_arg(call, "beta", &beta));
    if (beta != 1) TRY(capture_emit_number(call->graph, OP_mul, x, beta, &x));
    TRY(ir_emit_1(call->graph, OP_softplus, x, &x));
    if (beta != 1) TRY(capture_emit_number(call->graph, OP_div, x, beta, &x));
    return capture_result(call, 0, x);
}

/* x > 0 ? x : negative(x) */
static dw_status where_positive(capture_call *call, ir_value *x, ir_value *negative) {
    ir_value *zero, *positive;
    TRY(ir_emit_scalar(call->graph, x->type.format, 0, &zero));
    TRY(ir_emit_2(call->graph, OP_gt, x, zero, &positive));
    TRY(emit_where(call, positive, x, negative, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_leaky_relu(capture_call *call) {
    ir_value *x, *negative;
    double slope;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_real_arg(call, "negative_slope", &slope));
    TRY(capture_emit_number(call->graph, OP_mul, x, slope, &negative));
    return where_positive(call, x, negative);
}

/* min(max(x + 3, 0), 6) / 6 */
static dw_status hard_sigmoid(ir_graph *graph, ir_value *x, ir_value **result) {
    TRY(capture_emit_number(graph, OP_add, x, 3, &x));
    TRY(capture_emit_number(graph, OP_maximum, x, 0, &x));
    TRY(capture_emit_number(graph, OP_minimum, x, 6, &x));
    return capture_emit_number(graph, OP_div, x, 6, result);
}

dw_status capture_rule_hardsigmoid(capture_call *call) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    TRY(hard_sigmoid(call->graph, x, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_hardswish(capture_call *call) {
    ir_value *x, *gate;
    TRY(capture_value_arg(call, "self", &x));
    TRY(hard_sigmoid(call->graph, x, &gate));
    TRY(ir_emit_2(call->graph, OP_mul, x, gate, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_relu6(capture_call *call) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_1(call->graph, OP_relu, x, &x));
    TRY(capture_emit_number(call->graph, OP_minimum, x, 6, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_mish(capture_call *call) {
    ir_value *x, *gate;
    TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_1(call->graph, OP_softplus, x, &gate));
    TRY(ir_emit_1(call->graph, OP_tanh, gate, &gate));
    TRY(ir_emit_2(call->graph, OP_mul, x, gate, &x));
    return capture_result(call, 0, x);
}

/* -softplus(-x) */
dw_status capture_rule_log_sigmoid(capture_call *call) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_1(call->graph, OP_neg, x, &x));
    TRY(ir_emit_1(call->graph, OP_softplus, x, &x));
    TRY(ir_emit_1(call->graph, OP_neg, x, &x));
    return capture_result(call, 0, x);
}

/* self + value * (tensor1 op tensor2) */
dw_status capture_rule_addcmul(capture_call *call) {
    ir_value *x, *a, *b;
    double value;
    TRY(capture_value_arg(call, "self", &x));
    dw_format format = capture_result_format(call, 0, x->type.format);
    TRY(capture_operand_arg(call, "self", format, &x));
    TRY(capture_operand_arg(call, "tensor1", format, &a));
    TRY(capture_operand_arg(call, "tensor2", format, &b));
    TRY(capture_real_arg(call, "value", &value));
    TRY(ir_emit_2(call->graph, call->row->op, a, b, &a));
    if (value != 1) TRY(capture_emit_number(call->graph, OP_mul, a, value, &a));
    TRY(ir_emit_2(call->graph, OP_add, x, a, &x));
    return capture_result(call, 0, x);
}

/* self + weight * (end - self) */
dw_status capture_rule_lerp(capture_call *call) {
    ir_value *x, *end, *weight;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_operand_arg(call, "end", x->type.format, &end));
    TRY(ir_emit_2(call->graph, OP_sub, end, x, &end));
    TRY(capture_operand_arg(call, "weight", x->type.format, &weight));
    TRY(ir_emit_2(call->graph, OP_mul, weight, end, &end));
    TRY(ir_emit_2(call->graph, OP_add, x, end, &x));
    return capture_result(call, 0, x);
}

/* ---- formats, copies, nothing at all ---- */

/* Checks and hints: what they assert, the types recorded have already. */
dw_status capture_rule_ignore(capture_call *call) {
    (void)call;
    return DW_OK;
}

dw_status capture_rule_alias(capture_call *call) {
    capture_tensor *x, *view;
    TRY(capture_tensor_arg(call, call->arg_names[0], &x));
    TRY(capture_view_alias(call->capture, x, &view));
    ir_value *value;
    TRY(capture_read(call->capture, view, &value));
    return capture_result_tensor(call, 0, view);
}

dw_status capture_rule_detach(capture_call *call) {
    capture_tensor *x, *view;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(capture_view_detach(call->capture, x, &view));
    return capture_result_tensor(call, 0, view);
}

dw_status capture_rule_clone(capture_call *call) {
    ir_value *x;
    TRY(capture_value_arg(call, call->arg_names[0], &x));
    return capture_result(call, 0, x);
}

/* The same dtype gives the tensor itself, unless a copy is asked for. */
dw_status capture_rule_to(capture_call *call) {
    capture_tensor *x;
    bool copy = false;
    TRY(capture_tensor_arg(call, "self", &x));
    if (capture_has(call, "copy")) TRY(capture_bool_arg(call, "copy", &copy));
    dw_format format = capture_result_format(call, 0, DW_FORMAT_COUNT);
    if (format == DW_FORMAT_COUNT) return capture_fail(call, DW_UNSUPPORTED, "a dtype that has no format here");
    return format == x->type.format && !copy ? capture_rule_alias(call) : capture_rule_clone(call);
}

/* The other tensor in self's dtype and shape: what copy_ leaves in self. */
dw_status capture_rule_copy(capture_call *call) {
    ir_value *x, *from;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_operand_arg(call, "src", x->type.format, &from));
    if (from->type.rank != x->type.rank || !op_type_equal(&from->type, &x->type)) TRY(ir_emit_broadcast(call->graph, from, x->type.rank, x->type.dims, &from));
    return capture_result(call, 0, from);
}
