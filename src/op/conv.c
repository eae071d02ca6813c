/* conv: cross-correlation in one or two dimensions, with stride, zero padding, dilation and groups. */
#include "op/family.h"

/* ---- inference ---- */

enum { SPATIAL_MAX = 1 << 24 };   /* of stride, padding and dilation: sums stay in range */

/* A list attribute with one number >= min for each spatial axis. */
static dw_status spatial(op_infer *infer, op_attr_id id, int axes, int64_t min, const int64_t **values) {
    int count = op_attr_ints(infer->attrs, id, values);
    if (count != axes)
        return base_fail(infer->context, DW_INVALID, "conv: %s has %d numbers, x has %d spatial axes", op_attr_name(id), count, axes);
    for (int i = 0; i < count; i++)
        if ((*values)[i] < min || (*values)[i] > SPATIAL_MAX)
            return base_fail(infer->context, DW_INVALID, "conv: %s[%d] is %lld, it must be %lld to %d", op_attr_name(id), i, (long long)(*values)[i],
                             (long long)min, SPATIAL_MAX);
    return DW_OK;
}

typedef struct windows { const int64_t *stride, *padding, *dilation; } windows;

/* floor((size + 2 padding - dilation (taps - 1) - 1) / stride) + 1 along a spatial axis */
static dw_status window_count(op_infer *infer, const windows *w, int axis, dim *count) {
    dim_table *dims = infer->dims;
    dim term;
    TRY_DIM(infer->context, term, dim_constant(dims, 2 * w->padding[axis] + w->dilation[axis] - 1));
    TRY_DIM(infer->context, *count, dim_add(dims, infer->in[0]->dims[2 + axis], term));
    TRY_DIM(infer->context, term, dim_constant(dims, w->dilation[axis]));
    TRY_DIM(infer->context, term, dim_mul(dims, infer->in[1]->dims[2 + axis], term));
    TRY_DIM(infer->context, *count, dim_sub(dims, *count, term));
    TRY_DIM(infer->context, term, dim_constant(dims, w->stride[axis]));
    TRY_DIM(infer->context, *count, dim_floordiv(dims, *count, term));
    TRY_DIM(infer->context, term, dim_constant(dims, 1));
    TRY_DIM(infer->context, *count, dim_add(dims, *count, term));
    return DW_OK;
}

static dw_status check_channels(op_infer *infer, const op_type *x, const op_type *weight, int64_t groups) {
    int64_t outputs;
    dim factor, channels;
    if (groups < 1) return base_fail(infer->context, DW_INVALID, "conv: groups is %lld, it must be 1 or more", (long long)groups);
    TRY_DIM(infer->context, factor, dim_constant(infer->dims, groups));
    TRY_DIM(infer->context, channels, dim_mul(infer->dims, weight->dims[1], factor));
    TRY(op_check_same(infer, "c of x", x->dims[1], "c of w times groups", channels));
    if (dim_is_constant(weight->dims[0], &outputs) && outputs % groups != 0)
        return base_fail(infer->context, DW_MISMATCH, "conv: w has %lld outputs, groups is %lld, which does not divide them", (long long)outputs, (long long)groups);
    return DW_OK;
}

dw_status conv_infer(op_infer *infer) {
    const op_type *x = infer->in[0], *weight = infer->in[1];
    windows w;
    TRY(op_check_number(infer, "x", x));
    TRY(op_check_float(infer, "x", x));
    TRY(op_check_same_format(infer, "x", x, "w", weight));
    TRY(op_check_rank(infer, "x", x, 3, 4));
    TRY(op_check_rank(infer, "w", weight, x->rank, x->rank));
    int axes = x->rank - 2;
    TRY(spatial(infer, OP_ATTR_stride, axes, 1, &w.stride));
    TRY(spatial(infer, OP_ATTR_padding, axes, 0, &w.padding));
    TRY(spatial(infer, OP_ATTR_dilation, axes, 1, &w.dilation));
    TRY(check_channels(infer, x, weight, op_attr_int(infer->attrs, OP_ATTR_groups)));
    if (infer->n_in == 3 && infer->in[2] != NULL) {
        TRY(op_check_same_format(infer, "x", x, "bias", infer->in[2]));
        TRY(op_check_rank(infer, "bias", infer->in[2], 1, 1));
        TRY(op_check_same(infer, "o of w", weight->dims[0], "the size of bias", infer->in[2]->dims[0]));
    }
    op_type *out = infer->out;
    out->format = x->format;
    TRY(op_add_axis(infer, out, x->dims[0]));
    TRY(op_add_axis(infer, out, weight->dims[0]));
    for (int i = 0; i < axes; i++) {
        dim count = NULL;
        TRY(window_count(infer, &w, i, &count));
        TRY(op_add_axis(infer, out, count));
    }
    return DW_OK;
}

/* ---- reference ---- */

/* The sum over channels and taps for the output that out is at. */
static double window_sum(const op_call *call, const walk *out) {
    const dw_tensor *x = call->in[0], *weight = call->in[1];
    const int64_t *stride, *padding, *dilation;
    op_attr_ints(call->attrs, OP_ATTR_stride, &stride);
    op_attr_ints(call->attrs, OP_ATTR_padding, &padding);
    op_attr_ints(call->attrs, OP_ATTR_dilation, &dilation);
    int64_t output = out->index[1], outputs = weight->dims[0] / op_attr_int(call->attrs, OP_ATTR_groups);
    int64_t first_channel = output / outputs * weight->dims[1];
    double sum = 0;
    walk taps;
    walk_start(&taps, weight->rank - 1, weight->dims + 1);
    walk_add_strides(&taps, weight->strides + 1);
    for (; taps.left > 0; walk_next(&taps)) {
        int64_t at = out->index[0] * x->strides[0] + (first_channel + taps.index[0]) * x->strides[1];
        bool inside = true;
        for (int i = 0; i < x->rank - 2; i++) {
            int64_t place = out->index[2 + i] * stride[i] - padding[i] + taps.index[1 + i] * dilation[i];
            inside = inside && place >= 0 && place < x->dims[2 + i];
            at += place * x->strides[2 + i];
        }
        if (inside) sum += op_load_at(x, at) * op_load_at(weight, output * weight->strides[0] + taps.offset[0]);
    }
    return sum;
}

dw_status conv_reference(const op_call *call) {
    const dw_tensor *bias = call->n_in > 2 ? call->in[2] : NULL, *out = call->out[0];
    if (call->in[1]->dims[0] % op_attr_int(call->attrs, OP_ATTR_groups) != 0)
        return base_fail(call->context, DW_MISMATCH, "conv: w has %lld outputs, which groups does not divide", (long long)call->in[1]->dims[0]);
    walk w;
    walk_start(&w, out->rank, out->dims);
    walk_add(&w, out);
    for (; w.left > 0; walk_next(&w)) {
        double sum = window_sum(call, &w);
        op_store_at(out, w.offset[0], bias != NULL ? sum + op_load_at(bias, w.index[1] * bias->strides[0]) : sum);
    }
    return DW_OK;
}

/* A multiply-add for each output, channel and tap, padding included. */
void conv_work(const op_call *call, op_work *work) {
    const dw_tensor *weight = call->in[1];
    double taps = 2;
    for (int i = 1; i < weight->rank; i++) taps *= (double)weight->dims[i];
    op_work_each(call, taps, work);
}
