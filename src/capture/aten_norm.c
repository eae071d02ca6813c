/* Rules of normalisations, and of gates. */
#include <math.h>
#include <string.h>

#include "capture/program.h"

/* ---- norms over the last axes ---- */

/* x with the normalised axes merged into one, and the parameters likewise. */
static dw_status merge_normalised(capture_call *call, int count, ir_value **x, ir_value **weight, ir_value **bias) {
    dim dims[DW_MAX_RANK];
    int rank = (*x)->type.rank - count + 1;
    if (count == 1) return DW_OK;
    for (int i = 0; i < rank - 1; i++) dims[i] = (*x)->type.dims[i];
    TRY_DIM(call->capture->context, dims[rank - 1], dim_product(call->dims, (*x)->type.dims + rank - 1, count));
    TRY(ir_emit_reshape(call->graph, *x, rank, dims, x));
    if (*weight != NULL) TRY(ir_emit_reshape(call->graph, *weight, 1, &dims[rank - 1], weight));
    if (*bias != NULL) TRY(ir_emit_reshape(call->graph, *bias, 1, &dims[rank - 1], bias));
    return DW_OK;
}

static dw_status normalise(capture_call *call, op_id op, double eps) {
    ir_value *x, *weight, *bias = NULL;
    const dim *shape;
    int count;
    TRY(capture_value_arg(call, "input", &x));
    TRY(capture_optional_arg(call, "weight", &weight));
    if (op == OP_layer_norm) TRY(capture_optional_arg(call, "bias", &bias));
    TRY(capture_dims_arg(call, "normalized_shape", &count, &shape));
    if (count < 1 || count > x->type.rank) return capture_fail(call, DW_CORRUPT, "normalized_shape has %d axes, the input %d", count, x->type.rank);
    op_type type = x->type;
    TRY(ir_emit_cast(call->graph, x, capture_result_format(call, 0, type.format), &x));
    TRY(merge_normalised(call, count, &x, &weight, &bias));
    op_attr attr = op_set_real(OP_ATTR_eps, eps);
    TRY(ir_emit(call->graph, op, bias != NULL ? 3 : weight != NULL ? 2 : 1, (ir_value *[]){x, weight, bias}, 1, &attr, &x));
    TRY(ir_emit_reshape(call->graph, x, type.rank, type.dims, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_layer_norm(capture_call *call) {
    double eps;
    TRY(capture_real_arg(call, "eps", &eps));
    return normalise(call, OP_layer_norm, eps);
}

/* Without eps: the distance of 1 to the next number of the input's format. */
dw_status capture_rule_rms_norm(capture_call *call) {
    double eps;
    if (capture_has(call, "eps")) {
        TRY(capture_real_arg(call, "eps", &eps));
    } else {
        capture_tensor *x;
        TRY(capture_tensor_arg(call, "input", &x));
        eps = ldexp(1, -num_info(x->type.format)->mantissa_bits);
    }
    return normalise(call, OP_rms_norm, eps);
}

dw_status capture_rule_group_norm(capture_call *call) {
    ir_value *x, *weight, *bias;
    int64_t groups;
    double eps;
    TRY(capture_value_arg(call, "input", &x));
    TRY(capture_optional_arg(call, "weight", &weight));
    TRY(capture_optional_arg(call, "bias", &bias));
    TRY(capture_int_arg(call, capture_find_arg(call, "group") != NULL ? "group" : "num_groups", &groups));
    TRY(capture_real_arg(call, "eps", &eps));
    TRY(ir_emit_cast(call->graph, x, capture_result_format(call, 0, x->type.format), &x));
    op_attr attrs[] = {op_set_int(OP_ATTR_groups, groups), op_set_real(OP_ATTR_eps, eps)};
    TRY(ir_emit(call->graph, OP_group_norm, bias != NULL ? 3 : weight != NULL ? 2 : 1, (ir_value *[]){x, weight, bias}, COUNT_OF(attrs), attrs, &x));
    return capture_result(call, 0, x);
}

/* Each channel of each element of the batch by itself: groups of one channel. */
dw_status capture_rule_instance_norm(capture_call *call) {
    ir_value *x, *weight, *bias;
    int64_t channels;
    double eps;
    bool own = true;
    if (capture_has(call, "use_input_stats")) TRY(capture_bool_arg(call, "use_input_stats", &own));
    if (!own) return capture_rule_batch_norm(call);
    TRY(capture_value_arg(call, "input", &x));
    TRY(capture_optional_arg(call, "weight", &weight));
    TRY(capture_optional_arg(call, "bias", &bias));
    TRY(capture_real_arg(call, "eps", &eps));
    if (x->type.rank < 2 || !dim_is_constant(x->type.dims[1], &channels)) return capture_fail(call, DW_UNSUPPORTED, "a dynamic number of channels");
    const bool whole_batch = strstr(call->row->target, "no_stats") != NULL;
    if (whole_batch && !capture_dim_is(x->type.dims[0], 1)) return capture_fail(call, DW_UNSUPPORTED, "batch statistics: call .eval() before torch.export.export");
    op_attr attrs[] = {op_set_int(OP_ATTR_groups, channels), op_set_real(OP_ATTR_eps, eps)};
    TRY(ir_emit(call->graph, OP_group_norm, bias != NULL ? 3 : weight != NULL ? 2 : 1, (ir_value *[]){x, weight, bias}, COUNT_OF(attrs), attrs, &x));
    return capture_result(call, 0, x);
}

/* A parameter per channel, to be combined with x [b,c,..]. */
static dw_status per_channel(capture_call *call, const char *name, const ir_value *x, ir_value **value) {
    dim dims[DW_MAX_RANK];
    TRY(capture_optional_arg(call, name, value));
    if (*value == NULL) return DW_OK;
    for (int i = 0; i < x->type.rank; i++) TRY_DIM(call->capture->context, dims[i], dim_constant(call->dims, 1));
    dims[1] = x->type.dims[1];
    TRY(ir_emit_cast(call->graph, *value, x->type.format, value));
    return ir_emit_reshape(call->graph, *value, x->type.rank, dims, value);
}

/* With the statistics of training: (x - mean) / sqrt(var + eps) * weight + bias */
dw_status capture_rule_batch_norm(capture_call *call) {
    ir_value *x, *mean, *var, *weight, *bias;
    bool training = false;
    double eps;
    TRY(capture_value_arg(call, "input", &x));
    if (capture_has(call, "training")) TRY(capture_bool_arg(call, "training", &training));
    TRY(capture_real_arg(call, "eps", &eps));
    if (x->type.rank < 2) return capture_fail(call, DW_CORRUPT, "an input with fewer than 2 axes");
    TRY(per_channel(call, "running_mean", x, &mean));
    TRY(per_channel(call, "running_var", x, &var));
    TRY(per_channel(call, "weight", x, &weight));
    TRY(per_channel(call, "bias", x, &bias));
    if (training || mean == NULL || var == NULL) return capture_fail(call, DW_UNSUPPORTED, "batch statistics: call .eval() before torch.export.export");
    TRY(ir_emit_2(call->graph, OP_sub, x, mean, &x));
    TRY(capture_emit_number(call->graph, OP_add, var, eps, &var));
    TRY(ir_emit_1(call->graph, OP_rsqrt, var, &var));
    if (weight != NULL) TRY(ir_emit_2(call->graph, OP_mul, var, weight, &var));
    TRY(ir_emit_2(call->graph, OP_mul, x, var, &x));
    if (bias != NULL) TRY(ir_emit_2(call->graph, OP_add, x, bias, &x));
    return capture_result(call, 0, x);
}

/* v * (g / |v|), the norm over all axes but one */
dw_status capture_rule_weight_norm(capture_call *call) {
    ir_value *v, *g, *norm;
    int64_t axes[DW_MAX_RANK];
    int axis, count = 0;
    TRY(capture_value_arg(call, "v", &v));
    TRY(capture_value_arg(call, "g", &g));
    TRY(capture_axis_arg(call, "dim", v->type.rank, &axis));
    for (int i = 0; i < v->type.rank; i++) {
        if (i != axis) axes[count++] = i;
    }
    TRY(ir_emit_2(call->graph, OP_mul, v, v, &norm));
    TRY(capture_emit_reduce(call->graph, OP_sum, norm, count, axes, true, &norm));
    TRY(ir_emit_1(call->graph, OP_sqrt, norm, &norm));
    TRY(ir_emit_2(call->graph, OP_div, g, norm, &g));
    TRY(ir_emit_2(call->graph, OP_mul, v, g, &v));
    return capture_result(call, 0, v);
}

/* ---- gates ---- */

/* The first half of an axis times the sigmoid of the second. */
dw_status capture_rule_glu(capture_call *call) {
    ir_value *x, *gate;
    int axis;
    dim zero, two, half;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    TRY_DIM(call->capture->context, zero, dim_constant(call->dims, 0));
    TRY_DIM(call->capture->context, two, dim_constant(call->dims, 2));
    half = x->type.rank == 0 ? NULL : dim_divide_exact(call->dims, x->type.dims[axis], two);
    if (half == NULL) return capture_fail(call, DW_UNSUPPORTED, "an axis of odd size");
    TRY(ir_emit_slice(call->graph, x, axis, half, x->type.dims[axis], 1, &gate));
    TRY(ir_emit_slice(call->graph, x, axis, zero, half, 1, &x));
    TRY(ir_emit_1(call->graph, OP_sigmoid, gate, &gate));
    TRY(ir_emit_2(call->graph, OP_mul, x, gate, &x));
    return capture_result(call, 0, x);
}
