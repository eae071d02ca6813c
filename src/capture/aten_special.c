/* Rules of functions that are made of others: inverse and hyperbolic ones, thresholds, distances. What fp32 steps would spoil is computed in
 * f64 and rounded once. */
#include <math.h>
#include <string.h>

#include "capture/program.h"

/* ---- steps ---- */

static const double half_turn = 3.14159265358979323846;

static dw_status number(capture_call *call, op_id op, ir_value *x, double y, ir_value **result) { return capture_emit_number(call->graph, op, x, y, result); }

/* number op x */
static dw_status from_number(capture_call *call, op_id op, double y, ir_value *x, ir_value **result) {
    ir_value *scalar;
    TRY(ir_emit_scalar(call->graph, x->type.format, y, &scalar));
    return ir_emit_2(call->graph, op, scalar, x, result);
}

static dw_status choose(capture_call *call, ir_value *condition, ir_value *yes, ir_value *no, ir_value **result) {
    return ir_emit(call->graph, OP_where, 3, (ir_value *[]){condition, yes, no}, 0, NULL, result);
}

static dw_status read_exact(capture_call *call, const char *name, ir_value **x) {
    TRY(capture_value_arg(call, name, x));
    return ir_emit_cast(call->graph, *x, DW_FORMAT_f64, x);
}

/* ---- angles ---- */

dw_status capture_rule_tan(capture_call *call) {
    ir_value *x, *cosine;
    TRY(read_exact(call, "self", &x));
    TRY(ir_emit_1(call->graph, OP_cos, x, &cosine));
    TRY(ir_emit_1(call->graph, OP_sin, x, &x));
    TRY(ir_emit_2(call->graph, OP_div, x, cosine, &x));
    return capture_result(call, 0, x);
}

/* asin x = atan(x / sqrt((1 - x) (1 + x))), acos x = 2 atan(sqrt((1 - x) / (1 + x))) */
dw_status capture_rule_arc(capture_call *call) {
    ir_value *x, *less, *more;
    const bool cosine = strstr(call->row->target, "acos") != NULL;
    TRY(read_exact(call, "self", &x));
    TRY(from_number(call, OP_sub, 1, x, &less));
    TRY(number(call, OP_add, x, 1, &more));
    TRY(ir_emit_2(call->graph, cosine ? OP_div : OP_mul, less, more, &more));
    TRY(ir_emit_1(call->graph, OP_sqrt, more, &more));
    if (!cosine) TRY(ir_emit_2(call->graph, OP_div, x, more, &more));
    TRY(ir_emit_1(call->graph, OP_atan, more, &x));
    if (cosine) TRY(number(call, OP_mul, x, 2, &x));
    return capture_result(call, 0, x);
}

/* atan(y / x), half a turn further where x < 0; 0 of two zeros with x >= 0 */
dw_status capture_rule_atan2(capture_call *call) {
    ir_value *y, *x, *angle, *turn, *negative, *below, *both, *zero, *half, *back;
    TRY(read_exact(call, "self", &y));
    TRY(read_exact(call, "other", &x));
    TRY(ir_emit_2(call->graph, OP_div, y, x, &angle));
    TRY(ir_emit_1(call->graph, OP_atan, angle, &angle));
    TRY(ir_emit_scalar(call->graph, DW_FORMAT_f64, 0, &zero));
    TRY(ir_emit_scalar(call->graph, DW_FORMAT_f64, half_turn, &half));
    TRY(ir_emit_scalar(call->graph, DW_FORMAT_f64, -half_turn, &back));
    TRY(ir_emit_2(call->graph, OP_lt, x, zero, &negative));
    TRY(ir_emit_2(call->graph, OP_lt, y, zero, &below));
    TRY(choose(call, below, back, half, &turn));
    TRY(choose(call, negative, turn, zero, &turn));
    TRY(ir_emit_1(call->graph, OP_abs, x, &x));
    TRY(ir_emit_1(call->graph, OP_abs, y, &y));
    TRY(ir_emit_2(call->graph, OP_maximum, x, y, &x));
    TRY(ir_emit_2(call->graph, OP_eq, x, zero, &both));
    TRY(choose(call, both, zero, angle, &angle));
    TRY(ir_emit_2(call->graph, OP_add, angle, turn, &angle));
    return capture_result(call, 0, angle);
}

/* (e^x - e^-x) / 2, (e^x + e^-x) / 2 */
dw_status capture_rule_hyperbolic(capture_call *call) {
    ir_value *x, *up, *down;
    TRY(read_exact(call, "self", &x));
    TRY(ir_emit_1(call->graph, OP_exp, x, &up));
    TRY(ir_emit_1(call->graph, OP_neg, x, &down));
    TRY(ir_emit_1(call->graph, OP_exp, down, &down));
    TRY(ir_emit_2(call->graph, call->row->op, up, down, &x));
    TRY(number(call, OP_mul, x, 0.5, &x));
    return capture_result(call, 0, x);
}

/* asinh x = sign x log(|x| + sqrt(x^2 + 1)), acosh x = log(x + sqrt(x^2 - 1)) */
dw_status capture_rule_area(capture_call *call) {
    ir_value *x, *size, *root, *sign;
    const bool cosine = strstr(call->row->target, "acosh") != NULL;
    TRY(read_exact(call, "self", &x));
    TRY(ir_emit_1(call->graph, OP_sign, x, &sign));
    TRY(ir_emit_1(call->graph, OP_abs, x, &size));
    if (cosine) size = x;
    TRY(ir_emit_2(call->graph, OP_mul, x, x, &root));
    TRY(number(call, OP_add, root, cosine ? -1 : 1, &root));
    TRY(ir_emit_1(call->graph, OP_sqrt, root, &root));
    TRY(ir_emit_2(call->graph, OP_add, size, root, &size));
    TRY(ir_emit_1(call->graph, OP_log, size, &size));
    if (!cosine) TRY(ir_emit_2(call->graph, OP_mul, sign, size, &size));
    return capture_result(call, 0, size);
}

/* log(up / down) * factor, where up = x + a and down = b - x: atanh and logit */
static dw_status log_ratio(capture_call *call, ir_value *x, double a, double factor) {
    ir_value *up, *down;
    TRY(number(call, OP_add, x, a, &up));
    TRY(from_number(call, OP_sub, 1, x, &down));
    TRY(ir_emit_2(call->graph, OP_div, up, down, &x));
    TRY(ir_emit_1(call->graph, OP_log, x, &x));
    if (factor != 1) TRY(number(call, OP_mul, x, factor, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_atanh(capture_call *call) {
    ir_value *x;
    TRY(read_exact(call, "self", &x));
    return log_ratio(call, x, 1, 0.5);
}

dw_status capture_rule_logit(capture_call *call) {
    ir_value *x;
    double eps;
    TRY(read_exact(call, "self", &x));
    if (capture_has(call, "eps")) {
        TRY(capture_real_arg(call, "eps", &eps));
        TRY(number(call, OP_maximum, x, eps, &x));
        TRY(number(call, OP_minimum, x, 1 - eps, &x));
    }
    return log_ratio(call, x, 0, 1);
}

/* max + log(e^(x - max) + e^(y - max)); two equal infinities stay */
dw_status capture_rule_logaddexp(capture_call *call) {
    ir_value *x, *y, *top, *same;
    TRY(read_exact(call, "self", &x));
    TRY(read_exact(call, "other", &y));
    TRY(ir_emit_2(call->graph, OP_maximum, x, y, &top));
    TRY(ir_emit_2(call->graph, OP_eq, x, y, &same));
    TRY(ir_emit_2(call->graph, OP_sub, x, y, &y));
    TRY(ir_emit_1(call->graph, OP_abs, y, &y));
    TRY(ir_emit_1(call->graph, OP_neg, y, &y));
    TRY(ir_emit_scalar(call->graph, DW_FORMAT_f64, 0, &x));
    TRY(choose(call, same, x, y, &y));
    TRY(ir_emit_1(call->graph, OP_exp, y, &y));
    TRY(number(call, OP_add, y, 1, &y));
    TRY(ir_emit_1(call->graph, OP_log, y, &y));
    TRY(ir_emit_2(call->graph, OP_add, top, y, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_erfc(capture_call *call) {
    ir_value *x;
    TRY(read_exact(call, "self", &x));
    TRY(ir_emit_1(call->graph, OP_erf, x, &x));
    TRY(from_number(call, OP_sub, 1, x, &x));
    return capture_result(call, 0, x);
}

/* ---- what is finite ---- */

dw_status capture_rule_isfinite(capture_call *call) {
    ir_value *x, *nan;
    TRY(capture_value_arg(call, "self", &x));
    if (!capture_is_float(x->type.format)) TRY(ir_emit_cast(call->graph, x, DW_FORMAT_f32, &x));
    TRY(ir_emit_1(call->graph, OP_isnan, x, &nan));
    TRY(ir_emit_1(call->graph, OP_isinf, x, &x));
    TRY(ir_emit_2(call->graph, OP_or, nan, x, &x));
    TRY(ir_emit_1(call->graph, OP_not, x, &x));
    return capture_result(call, 0, x);
}

/* Infinities of one sign: where they are. */
dw_status capture_rule_is_signed_inf(capture_call *call) {
    ir_value *x;
    const double infinity = strstr(call->row->target, "neginf") != NULL ? -INFINITY : INFINITY;
    TRY(capture_value_arg(call, "self", &x));
    if (!capture_is_float(x->type.format)) TRY(ir_emit_cast(call->graph, x, DW_FORMAT_f32, &x));
    TRY(number(call, OP_eq, x, infinity, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_nan_to_num(capture_call *call) {
    static const char *const names[] = {"nan", "posinf", "neginf"};
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    if (!capture_is_float(x->type.format)) return capture_result(call, 0, x);
    const double max = num_info(x->type.format)->max, values[] = {0, max, -max};
    for (int i = 0; i < 3; i++) {
        double value = values[i];
        ir_value *there, *instead;
        if (capture_has(call, names[i])) TRY(capture_real_arg(call, names[i], &value));
        TRY(i == 0 ? ir_emit_1(call->graph, OP_isnan, x, &there) : number(call, OP_eq, x, i == 1 ? INFINITY : -INFINITY, &there));
        TRY(ir_emit_scalar(call->graph, x->type.format, value, &instead));
        TRY(choose(call, there, instead, x, &x));
    }
    return capture_result(call, 0, x);
}

/* ---- thresholds ---- */

/* x where test holds, else other */
static dw_status keep_where(capture_call *call, ir_value *x, ir_value *test, double other) {
    ir_value *instead;
    TRY(ir_emit_scalar(call->graph, x->type.format, other, &instead));
    TRY(choose(call, test, x, instead, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_threshold(capture_call *call) {
    ir_value *x, *test;
    double threshold, value;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_real_arg(call, "threshold", &threshold));
    TRY(capture_real_arg(call, "value", &value));
    TRY(number(call, OP_gt, x, threshold, &test));
    return keep_where(call, x, test, value);
}

/* x outside [-lambd, lambd], else 0; softly: nearer to 0 by lambd */
dw_status capture_rule_shrink(capture_call *call) {
    ir_value *x, *size, *test;
    double lambd;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_real_arg(call, "lambd", &lambd));
    TRY(ir_emit_1(call->graph, OP_abs, x, &size));
    TRY(number(call, OP_gt, size, lambd, &test));
    if (strstr(call->row->target, "soft") != NULL) {
        ir_value *sign;
        TRY(ir_emit_1(call->graph, OP_sign, x, &sign));
        TRY(number(call, OP_mul, sign, lambd, &sign));
        TRY(ir_emit_2(call->graph, OP_sub, x, sign, &x));
    }
    return keep_where(call, x, test, 0);
}

/* x > 0 ? x : weight * x, a weight for each channel */
dw_status capture_rule_prelu(capture_call *call) {
    ir_value *x, *weight, *negative, *test;
    dim dims[DW_MAX_RANK];
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_value_arg(call, "weight", &weight));
    if (weight->type.rank == 1 && !capture_dim_is(weight->type.dims[0], 1) && x->type.rank > 1) {
        for (int i = 0; i < x->type.rank; i++) TRY_DIM(call->capture->context, dims[i], dim_constant(call->dims, 1));
        dims[1] = weight->type.dims[0];
        TRY(ir_emit_reshape(call->graph, weight, x->type.rank, dims, &weight));
    }
    TRY(ir_emit_2(call->graph, OP_mul, x, weight, &negative));
    TRY(number(call, OP_gt, x, 0, &test));
    TRY(choose(call, test, x, negative, &x));
    return capture_result(call, 0, x);
}

/* scale * (x > 0 ? x : alpha * (e^(inner * x) - 1)); selu's numbers are those of its paper */
static dw_status exponential(capture_call *call, double alpha, double inner, double scale) {
    ir_value *x, *negative, *test;
    TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_cast(call->graph, x, DW_FORMAT_f64, &negative));
    if (inner != 1) TRY(number(call, OP_mul, negative, inner, &negative));
    TRY(ir_emit_1(call->graph, OP_exp, negative, &negative));
    TRY(number(call, OP_sub, negative, 1, &negative));
    TRY(number(call, OP_mul, negative, alpha, &negative));
    TRY(ir_emit_cast(call->graph, negative, x->type.format, &negative));
    TRY(number(call, OP_gt, x, 0, &test));
    TRY(choose(call, test, x, negative, &x));
    if (scale != 1) TRY(number(call, OP_mul, x, scale, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_elu(capture_call *call) {
    double alpha, scale, inner;
    TRY(capture_real_arg(call, "alpha", &alpha));
    TRY(capture_real_arg(call, "scale", &scale));
    TRY(capture_real_arg(call, "input_scale", &inner));
    return exponential(call, alpha, inner, scale);
}

dw_status capture_rule_celu(capture_call *call) {
    double alpha;
    TRY(capture_real_arg(call, "alpha", &alpha));
    return exponential(call, alpha, 1 / alpha, 1);
}

dw_status capture_rule_selu(capture_call *call) { return exponential(call, 1.6732632423543772848, 1, 1.0507009873554804934); }

/* ---- distances ---- */

/* x . y / max(|x| |y|, eps) along an axis */
dw_status capture_rule_cosine_similarity(capture_call *call) {
    ir_value *in[2], *product, *norms[2];
    double eps;
    int axis;
    TRY(capture_value_arg(call, "x1", &in[0]));
    TRY(capture_value_arg(call, "x2", &in[1]));
    TRY(ir_emit_2(call->graph, OP_mul, in[0], in[1], &product));
    TRY(capture_axis_arg(call, "dim", product->type.rank, &axis));
    TRY(capture_real_arg(call, "eps", &eps));
    TRY(capture_emit_reduce(call->graph, OP_sum, product, 1, &(int64_t){axis}, false, &product));
    for (int i = 0; i < 2; i++) {
        int own = axis - (product->type.rank + 1 - in[i]->type.rank);
        if (own < 0) return capture_fail(call, DW_UNSUPPORTED, "an axis that one operand lacks");
        TRY(ir_emit_2(call->graph, OP_mul, in[i], in[i], &norms[i]));
        TRY(capture_emit_reduce(call->graph, OP_sum, norms[i], 1, &(int64_t){own}, false, &norms[i]));
        TRY(ir_emit_1(call->graph, OP_sqrt, norms[i], &norms[i]));
        TRY(number(call, OP_maximum, norms[i], eps, &norms[i]));
    }
    TRY(ir_emit_2(call->graph, OP_mul, norms[0], norms[1], &norms[0]));
    TRY(ir_emit_2(call->graph, OP_div, product, norms[0], &product));
    return capture_result(call, 0, product);
}

/* [..,m,d] and [..,n,d] -> [..,m,n], the p-norm of each difference */
dw_status capture_rule_cdist(capture_call *call) {
    ir_value *x, *y;
    double p;
    TRY(capture_value_arg(call, "x1", &x));
    TRY(capture_value_arg(call, "x2", &y));
    TRY(capture_real_arg(call, "p", &p));
    if (p != 1 && p != 2) return capture_fail(call, DW_UNSUPPORTED, "the %g-norm; 1 and 2 are supported", p);
    TRY(capture_emit_unsqueeze(call->graph, x, x->type.rank - 1, &x));
    TRY(capture_emit_unsqueeze(call->graph, y, y->type.rank - 2, &y));
    TRY(ir_emit_2(call->graph, OP_sub, x, y, &x));
    TRY(p == 1 ? ir_emit_1(call->graph, OP_abs, x, &x) : ir_emit_2(call->graph, OP_mul, x, x, &x));
    TRY(capture_emit_reduce(call->graph, OP_sum, x, 1, &(int64_t){x->type.rank - 1}, false, &x));
    if (p == 2) TRY(ir_emit_1(call->graph, OP_sqrt, x, &x));
    return capture_result(call, 0, x);
}

/* (x - y)^2 or |x - y|, their mean (1), their sum (2), or each (0) */
dw_status capture_rule_loss(capture_call *call) {
    ir_value *x, *y;
    int64_t reduction, axes[DW_MAX_RANK];
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_value_arg(call, "target", &y));
    TRY(capture_int_arg(call, "reduction", &reduction));
    TRY(ir_emit_2(call->graph, OP_sub, x, y, &x));
    TRY(call->row->op == OP_abs ? ir_emit_1(call->graph, OP_abs, x, &x) : ir_emit_2(call->graph, OP_mul, x, x, &x));
    for (int i = 0; i < x->type.rank; i++) axes[i] = i;
    if (reduction != 0 && x->type.rank > 0) TRY(capture_emit_reduce(call->graph, reduction == 1 ? OP_mean : OP_sum, x, x->type.rank, axes, false, &x));
    return capture_result(call, 0, x);
}

/* ---- places in a sorted list ---- */

/* How many of the boundaries [..,n] are below x (with right: not above it). */
static dw_status count_below(capture_call *call, ir_value *x, ir_value *boundaries, bool right, ir_value **result) {
    dw_format format = capture_promote(x->type.format, x->type.rank, boundaries->type.format, boundaries->type.rank);
    TRY(ir_emit_cast(call->graph, x, format, &x));
    TRY(ir_emit_cast(call->graph, boundaries, format, &boundaries));
    TRY(capture_emit_unsqueeze(call->graph, x, x->type.rank, &x));
    if (boundaries->type.rank > 1) TRY(capture_emit_unsqueeze(call->graph, boundaries, boundaries->type.rank - 1, &boundaries));
    TRY(ir_emit_2(call->graph, right ? OP_le : OP_lt, boundaries, x, &x));
    return capture_emit_reduce(call->graph, OP_sum, x, 1, &(int64_t){x->type.rank - 1}, false, result);
}

dw_status capture_rule_bucketize(capture_call *call) {
    ir_value *x, *boundaries;
    bool right = false;
    const char *name = capture_find_arg(call, "boundaries") != NULL ? "boundaries" : "sorted_sequence";
    const char *side;
    const capture_arg *self = capture_find_arg(call, "self");
    TRY(capture_value_arg(call, name, &boundaries));
    TRY(capture_operand_arg(call, "self", self->kind == ARG_TENSOR ? self->tensor->type.format : boundaries->type.format, &x));
    if (capture_has(call, "right")) TRY(capture_bool_arg(call, "right", &right));
    if (capture_has(call, "side")) {
        TRY(capture_text_arg(call, "side", &side));
        right = right || strcmp(side, "right") == 0;
    }
    if (capture_has(call, "sorter")) return capture_fail(call, DW_UNSUPPORTED, "a sorter");
    TRY(count_below(call, x, boundaries, right, &x));
    return capture_result(call, 0, x);
}

/* Is each element one of the others? */
dw_status capture_rule_isin(capture_call *call) {
    ir_value *x, *tests;
    bool invert;
    dim all;
    const capture_arg *list = capture_find_arg(call, "test_elements");
    TRY(capture_value_arg(call, "elements", &x));
    const dw_format format = list->kind == ARG_TENSOR ? capture_promote(x->type.format, 1, list->tensor->type.format, 1) : x->type.format;
    TRY(capture_operand_arg(call, "test_elements", format, &tests));
    TRY(capture_bool_arg(call, "invert", &invert));
    TRY(ir_emit_cast(call->graph, x, format, &x));
    TRY_DIM(call->capture->context, all, dim_product(call->dims, tests->type.dims, tests->type.rank));
    TRY(ir_emit_reshape(call->graph, tests, 1, &all, &tests));
    TRY(capture_emit_unsqueeze(call->graph, x, x->type.rank, &x));
    TRY(ir_emit_2(call->graph, OP_eq, x, tests, &x));
    TRY(capture_emit_reduce(call->graph, OP_any, x, 1, &(int64_t){x->type.rank - 1}, false, &x));
    if (invert) TRY(ir_emit_1(call->graph, OP_not, x, &x));
    return capture_result(call, 0, x);
}

/* As often as repeats says along an axis; the length is known from the shapes. Element j is the one before whose end j lies. */
dw_status capture_rule_repeat_each(capture_call *call) {
    ir_value *x = NULL, *repeats, *at;
    dim length;
    int axis = 0;
    TRY(capture_value_arg(call, "repeats", &repeats));
    if (!capture_has(call, "output_size")) return capture_rule_data_size(call);
    TRY(capture_dim_arg(call, "output_size", &length));
    if (repeats->type.rank != 1) return capture_fail(call, DW_UNSUPPORTED, "repeats with %d axes", repeats->type.rank);
    if (capture_has(call, "self")) TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_cast(call->graph, repeats, DW_FORMAT_i64, &repeats));
    TRY(capture_emit_attr(call->graph, OP_cumsum, repeats, op_set_int(OP_ATTR_axis, 0), &repeats));
    TRY(capture_emit_index(call->graph, 1, 0, length, DW_FORMAT_i64, &at));
    TRY(count_below(call, at, repeats, true, &at));
    if (x == NULL) return capture_result(call, 0, at);
    if (capture_has(call, "dim")) {
        TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    } else {
        dim all;
        TRY_DIM(call->capture->context, all, dim_product(call->dims, x->type.dims, x->type.rank));
        TRY(ir_emit_reshape(call->graph, x, 1, &all, &x));
    }
    op_attr attr = op_set_int(OP_ATTR_axis, axis);
    TRY(ir_emit(call->graph, OP_take, 2, (ir_value *[]){x, at}, 1, &attr, &x));
    return capture_result(call, 0, x);
}
