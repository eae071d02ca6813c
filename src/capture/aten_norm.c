/* Rules of normalisations, convolutions and pooling. */
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
    TRY(capture_int_arg(call, "num_groups", &groups));
    TRY(capture_real_arg(call, "eps", &eps));
    TRY(ir_emit_cast(call->graph, x, capture_result_format(call, 0, x->type.format), &x));
    op_attr attrs[] = {op_set_int(OP_ATTR_groups, groups), op_set_real(OP_ATTR_eps, eps)};
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

/* ---- convolution ---- */

enum { SPATIAL_MAX = 2 };

typedef struct windows { int axes; int64_t stride[DW_MAX_RANK], padding[DW_MAX_RANK], dilation[DW_MAX_RANK]; } windows;

/* A list with one number for each spatial axis; a single number holds for all. */
static dw_status read_spatial(capture_call *call, const char *name, int axes, int64_t fallback, int64_t *values) {
    int count = 0;
    if (capture_has(call, name)) TRY(capture_ints_arg(call, name, &count, values));
    if (count > 1 && count != axes) return capture_fail(call, DW_CORRUPT, "'%s' has %d numbers for %d axes", name, count, axes);
    for (int i = count; i < axes; i++) values[i] = count > 0 ? values[0] : fallback;
    return DW_OK;
}

/* Padding "same" keeps the size: what does not divide by two goes behind, as a pad of its own. */
static dw_status read_padding(capture_call *call, const ir_value *weight, windows *w, ir_value **x) {
    const capture_arg *arg = capture_find_arg(call, "padding");
    dim before[DW_MAX_RANK], after[DW_MAX_RANK];
    bool uneven = false;
    if (arg == NULL || arg->kind != ARG_TEXT) return read_spatial(call, "padding", w->axes, 0, w->padding);
    for (int i = 0; i < w->axes; i++) w->padding[i] = 0;
    if (strcmp(arg->text, "valid") == 0) return DW_OK;
    if (strcmp(arg->text, "same") != 0) return capture_fail(call, DW_UNSUPPORTED, "padding '%.20s'", arg->text);
    for (int i = 0; i < (*x)->type.rank; i++) {
        int64_t taps, more = 0;
        if (i >= 2) {
            if (!dim_is_constant(weight->type.dims[i], &taps)) return capture_fail(call, DW_UNSUPPORTED, "a kernel of dynamic size");
            int64_t total = w->dilation[i - 2] * (taps - 1);
            w->padding[i - 2] = total / 2;
            more = total % 2;
        }
        uneven = uneven || more != 0;
        TRY_DIM(call->capture->context, before[i], dim_constant(call->dims, 0));
        TRY_DIM(call->capture->context, after[i], dim_constant(call->dims, more));
    }
    op_attr attrs[] = {op_set_dims(OP_ATTR_before, (*x)->type.rank, before), op_set_dims(OP_ATTR_after, (*x)->type.rank, after), op_set_real(OP_ATTR_value, 0)};
    return uneven ? ir_emit(call->graph, OP_pad, 1, (ir_value *[]){*x}, COUNT_OF(attrs), attrs, x) : DW_OK;
}

static dw_status emit_conv(ir_graph *graph, const windows *w, int64_t groups, ir_value *x, ir_value *weight, ir_value *bias, ir_value **result) {
    op_attr attrs[] = {op_set_ints(OP_ATTR_stride, w->axes, w->stride), op_set_ints(OP_ATTR_padding, w->axes, w->padding),
                       op_set_ints(OP_ATTR_dilation, w->axes, w->dilation), op_set_int(OP_ATTR_groups, groups)};
    return ir_emit(graph, OP_conv, bias != NULL ? 3 : 2, (ir_value *[]){x, weight, bias}, COUNT_OF(attrs), attrs, result);
}

/* One window that covers the whole input, in any number of axes: a linear layer on patches. */
static dw_status emit_patch(capture_call *call, const windows *w, ir_value *x, ir_value *weight, ir_value *bias, ir_value **result) {
    dim dims[DW_MAX_RANK], wide[2];
    for (int i = 0; i < w->axes; i++) {
        bool covers = x->type.dims[2 + i] == weight->type.dims[2 + i] && w->padding[i] == 0 && w->dilation[i] == 1;
        if (!covers) return capture_fail(call, DW_UNSUPPORTED, "a convolution over %d axes whose window does not cover the whole input", w->axes);
        TRY_DIM(call->capture->context, dims[2 + i], dim_constant(call->dims, 1));
    }
    TRY_DIM(call->capture->context, wide[1], dim_product(call->dims, x->type.dims + 1, x->type.rank - 1));
    wide[0] = dims[0] = x->type.dims[0];
    dims[1] = weight->type.dims[0];
    TRY(ir_emit_reshape(call->graph, x, 2, wide, &x));
    wide[0] = weight->type.dims[0];
    TRY(ir_emit_reshape(call->graph, weight, 2, wide, &weight));
    op_attr attrs[] = {op_set_bool(OP_ATTR_bt, true), op_set_text(OP_ATTR_post, "bias")};
    TRY(ir_emit(call->graph, OP_matmul, bias != NULL ? 3 : 2, (ir_value *[]){x, weight, bias}, bias != NULL ? 2 : 1, attrs, &x));
    return ir_emit_reshape(call->graph, x, 2 + w->axes, dims, result);
}

dw_status capture_rule_conv(capture_call *call) {
    ir_value *x, *weight, *bias;
    int64_t groups;
    bool transposed = false;
    TRY(capture_value_arg(call, "input", &x));
    TRY(capture_value_arg(call, "weight", &weight));
    TRY(capture_optional_arg(call, "bias", &bias));
    TRY(capture_int_arg(call, "groups", &groups));
    if (capture_has(call, "transposed")) TRY(capture_bool_arg(call, "transposed", &transposed));
    if (transposed) return capture_fail(call, DW_UNSUPPORTED, "a transposed convolution");
    windows w = {.axes = weight->type.rank - 2};
    if (w.axes < 1) return capture_fail(call, DW_CORRUPT, "a kernel with %d axes", weight->type.rank);
    dw_format format = capture_result_format(call, 0, x->type.format);
    TRY(ir_emit_cast(call->graph, x, format, &x));
    TRY(ir_emit_cast(call->graph, weight, format, &weight));
    if (bias != NULL) TRY(ir_emit_cast(call->graph, bias, format, &bias));
    bool single = x->type.rank == weight->type.rank - 1;    /* no batch */
    if (single) TRY(capture_emit_unsqueeze(call->graph, x, 0, &x));
    if (x->type.rank != weight->type.rank) return capture_fail(call, DW_CORRUPT, "input and kernel have %d and %d axes", x->type.rank, weight->type.rank);
    TRY(read_spatial(call, "stride", w.axes, 1, w.stride));
    TRY(read_spatial(call, "dilation", w.axes, 1, w.dilation));
    TRY(read_padding(call, weight, &w, &x));
    TRY(w.axes > SPATIAL_MAX ? emit_patch(call, &w, x, weight, bias, &x) : emit_conv(call->graph, &w, groups, x, weight, bias, &x));
    if (single) TRY(capture_emit_squeeze(call->graph, x, 0, &x));
    return capture_result(call, 0, x);
}

/* ---- pooling ---- */

/* One axis cut into runs of the given size, each reduced to one element. */
static dw_status pool_axis(capture_call *call, op_id op, ir_value *x, int axis, int64_t run, ir_value **result) {
    dim dims[DW_MAX_RANK + 1], size, count;
    int64_t inner = axis + 1;
    if (x->type.rank == DW_MAX_RANK) return capture_fail(call, DW_UNSUPPORTED, "a tensor with %d axes", DW_MAX_RANK);
    TRY_DIM(call->capture->context, size, dim_constant(call->dims, run));
    count = dim_divide_exact(call->dims, x->type.dims[axis], size);
    if (count == NULL) return capture_fail(call, DW_UNSUPPORTED, "windows of %lld that do not divide axis %d", (long long)run, axis);
    for (int i = 0; i < x->type.rank; i++) dims[i <= axis ? i : i + 1] = x->type.dims[i];
    dims[axis] = count;
    dims[axis + 1] = size;
    TRY(ir_emit_reshape(call->graph, x, x->type.rank + 1, dims, &x));
    return capture_emit_reduce(call->graph, op, x, 1, &inner, false, result);
}

dw_status capture_rule_adaptive_avg_pool(capture_call *call) {
    ir_value *x;
    int64_t sizes[DW_MAX_RANK], known;
    int count;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_ints_arg(call, "output_size", &count, sizes));
    if (count > x->type.rank) return capture_fail(call, DW_CORRUPT, "%d sizes for %d axes", count, x->type.rank);
    for (int i = 0; i < count; i++) {
        int64_t axis = x->type.rank - count + i;
        if (sizes[i] == 1) {
            TRY(capture_emit_reduce(call->graph, OP_mean, x, 1, &axis, true, &x));
        } else if (!dim_is_constant(x->type.dims[axis], &known) || sizes[i] < 1 || known % sizes[i] != 0) {
            return capture_fail(call, DW_UNSUPPORTED, "an output size of %lld, which does not divide the input's", (long long)sizes[i]);
        } else if (known != sizes[i]) {
            TRY(pool_axis(call, OP_mean, x, (int)axis, known / sizes[i], &x));
        }
    }
    return capture_result(call, 0, x);
}

/* Windows side by side are cut out; others average by a convolution with equal taps. */
dw_status capture_rule_avg_pool(capture_call *call) {
    ir_value *x, *taps;
    int64_t sizes[DW_MAX_RANK], channels;
    windows w;
    bool ceil_mode, include;
    int count;
    double window = 1;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_ints_arg(call, "kernel_size", &count, sizes));
    w.axes = strstr(call->row->target, "1d") != NULL ? 1 : 2;
    TRY(read_spatial(call, "kernel_size", w.axes, 1, sizes));
    TRY(read_spatial(call, "stride", w.axes, 0, w.stride));
    TRY(read_spatial(call, "padding", w.axes, 0, w.padding));
    TRY(capture_bool_arg(call, "ceil_mode", &ceil_mode));
    TRY(capture_bool_arg(call, "count_include_pad", &include));
    bool pads = false;
    dim dims[2 + SPATIAL_MAX];
    for (int i = 0; i < w.axes; i++) {
        if (w.stride[i] == 0) w.stride[i] = sizes[i];
        w.dilation[i] = 1;
        window *= (double)sizes[i];
        pads = pads || w.padding[i] != 0;
        TRY_DIM(call->capture->context, dims[2 + i], dim_constant(call->dims, sizes[i]));
    }
    if (ceil_mode || capture_has(call, "divisor_override")) return capture_fail(call, DW_UNSUPPORTED, "ceil_mode or divisor_override");
    if (x->type.rank != w.axes + 2 || !dim_is_constant(x->type.dims[1], &channels)) return capture_fail(call, DW_UNSUPPORTED, "an input that is not [b,c,..] with a constant c");
    dims[0] = x->type.dims[1];
    TRY_DIM(call->capture->context, dims[1], dim_constant(call->dims, 1));
    TRY(capture_emit_fill(call->graph, w.axes + 2, dims, 1 / window, x->type.format, &taps));
    ir_value *ones, *share;
    TRY(emit_conv(call->graph, &w, channels, x, taps, NULL, &share));
    if (pads && !include) {     /* divided by the share of each window that is no padding */
        TRY(capture_emit_fill(call->graph, x->type.rank, x->type.dims, 1, x->type.format, &ones));
        TRY(emit_conv(call->graph, &w, channels, ones, taps, NULL, &ones));
        TRY(ir_emit_2(call->graph, OP_div, share, ones, &share));
    }
    return capture_result(call, 0, share);
}

/* One axis: the largest of the elements k, k + stride, .. for each k of the window. */
static dw_status max_along(capture_call *call, ir_value *x, int axis, int64_t window, int64_t stride, int64_t dilation, ir_value **result) {
    dim count, first, end, reach, by;
    ir_value *part;
    TRY_DIM(call->capture->context, by, dim_constant(call->dims, stride));
    TRY_DIM(call->capture->context, reach, dim_constant(call->dims, dilation * (window - 1) + 1 - stride));
    TRY_DIM(call->capture->context, count, dim_sub(call->dims, x->type.dims[axis], reach));
    TRY_DIM(call->capture->context, count, dim_floordiv(call->dims, count, by));
    for (int64_t k = 0; k < window; k++) {
        TRY_DIM(call->capture->context, first, dim_constant(call->dims, k * dilation));
        TRY_DIM(call->capture->context, end, dim_constant(call->dims, k * dilation + 1 - stride));     /* one past the last that is taken */
        TRY_DIM(call->capture->context, reach, dim_mul(call->dims, count, by));
        TRY_DIM(call->capture->context, end, dim_add(call->dims, end, reach));
        TRY(ir_emit_slice(call->graph, x, axis, first, end, stride, &part));
        if (k > 0) TRY(ir_emit_2(call->graph, OP_maximum, *result, part, &part));
        *result = part;
    }
    return DW_OK;
}

enum { WINDOW_MAX = 64 };

dw_status capture_rule_max_pool(capture_call *call) {
    ir_value *x;
    int64_t sizes[DW_MAX_RANK];
    windows w = {.axes = strstr(call->row->target, "1d") != NULL ? 1 : 2};
    bool ceil_mode, pads = false;
    dim before[DW_MAX_RANK], after[DW_MAX_RANK];
    TRY(capture_value_arg(call, "self", &x));
    TRY(read_spatial(call, "kernel_size", w.axes, 1, sizes));
    TRY(read_spatial(call, "stride", w.axes, 0, w.stride));
    TRY(read_spatial(call, "padding", w.axes, 0, w.padding));
    TRY(read_spatial(call, "dilation", w.axes, 1, w.dilation));
    TRY(capture_bool_arg(call, "ceil_mode", &ceil_mode));
    int first = x->type.rank - w.axes;
    if (ceil_mode || first < 0) return capture_fail(call, DW_UNSUPPORTED, "ceil_mode");
    for (int i = 0; i < x->type.rank; i++) {
        int64_t padding = i >= first ? w.padding[i - first] : 0;
        TRY_DIM(call->capture->context, before[i], dim_constant(call->dims, padding));
        after[i] = before[i];
        pads = pads || padding != 0;
    }
    op_attr attrs[] = {op_set_dims(OP_ATTR_before, x->type.rank, before), op_set_dims(OP_ATTR_after, x->type.rank, after), op_set_real(OP_ATTR_value, -INFINITY)};
    if (pads && !capture_is_float(x->type.format)) return capture_fail(call, DW_UNSUPPORTED, "padded windows of integers");
    if (pads) TRY(ir_emit(call->graph, OP_pad, 1, (ir_value *[]){x}, COUNT_OF(attrs), attrs, &x));
    for (int i = 0; i < w.axes; i++) {
        int64_t stride = w.stride[i] != 0 ? w.stride[i] : sizes[i];
        bool small = sizes[i] >= 1 && sizes[i] <= WINDOW_MAX && stride >= 1 && stride < 1 << 20 && w.dilation[i] >= 1 && w.dilation[i] < 1 << 20;
        if (!small) return capture_fail(call, DW_UNSUPPORTED, "windows of %lld elements", (long long)sizes[i]);
        TRY(max_along(call, x, first + i, sizes[i], stride, w.dilation[i], &x));
    }
    return capture_result(call, 0, x);
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
