/* Rules of convolutions: in one and two dimensions as they are, in three as sums over the frames of a window, transposed ones as convolutions
 * of the input spread out. */
#include <string.h>

#include "capture/program.h"

enum { SPATIAL_MAX = 2, SPAN_MAX = 1 << 20 };

dw_status capture_spatial_arg(capture_call *call, const char *name, int axes, int64_t fallback, int64_t *values) {
    int count = 0;
    if (capture_has(call, name)) TRY(capture_ints_arg(call, name, &count, values));
    if (count > 1 && count != axes) return capture_fail(call, DW_CORRUPT, "'%s' has %d numbers for %d axes", name, count, axes);
    for (int i = count; i < axes; i++) values[i] = count > 0 ? values[0] : fallback;
    return DW_OK;
}

/* Padding "same" keeps the size: what does not divide by two goes behind, as a pad of its own. */
static dw_status read_padding(capture_call *call, const ir_value *weight, capture_windows *w, ir_value **x) {
    const capture_arg *arg = capture_find_arg(call, "padding");
    dim before[DW_MAX_RANK], after[DW_MAX_RANK];
    bool uneven = false;
    if (arg == NULL || arg->kind != ARG_TEXT) return capture_spatial_arg(call, "padding", w->axes, 0, w->padding);
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

dw_status capture_emit_conv(ir_graph *graph, const capture_windows *w, int64_t groups, ir_value *x, ir_value *weight, ir_value *bias, ir_value **result) {
    op_attr attrs[] = {op_set_ints(OP_ATTR_stride, w->axes, w->stride), op_set_ints(OP_ATTR_padding, w->axes, w->padding),
                       op_set_ints(OP_ATTR_dilation, w->axes, w->dilation), op_set_int(OP_ATTR_groups, groups)};
    return ir_emit(graph, OP_conv, bias != NULL ? 3 : 2, (ir_value *[]){x, weight, bias}, COUNT_OF(attrs), attrs, result);
}

/* The role of a convolution in the form of a product, whatever part its module plays: policies leave it as they leave other convolutions. */
static const char product_role[] = "convolution";

/* One window that covers the whole input, in any number of axes: a linear layer on patches. */
static bool covers_input(const capture_windows *w, const ir_value *x, const ir_value *weight) {
    for (int i = 0; i < w->axes; i++) {
        if (x->type.dims[2 + i] != weight->type.dims[2 + i] || w->padding[i] != 0 || w->dilation[i] != 1) return false;
    }
    return true;
}

static dw_status emit_patch(capture_call *call, const capture_windows *w, ir_value *x, ir_value *weight, ir_value *bias, ir_value **result) {
    dim dims[DW_MAX_RANK], wide[2];
    for (int i = 0; i < w->axes; i++) TRY_DIM(call->capture->context, dims[2 + i], dim_constant(call->dims, 1));
    TRY_DIM(call->capture->context, wide[1], dim_product(call->dims, x->type.dims + 1, x->type.rank - 1));
    wide[0] = dims[0] = x->type.dims[0];
    dims[1] = weight->type.dims[0];
    TRY(ir_emit_reshape(call->graph, x, 2, wide, &x));
    wide[0] = weight->type.dims[0];
    TRY(ir_emit_reshape(call->graph, weight, 2, wide, &weight));
    op_attr attrs[] = {op_set_bool(OP_ATTR_bt, true), op_set_text(OP_ATTR_post, "bias")};
    call->graph->origin.role = product_role;
    TRY(ir_emit(call->graph, OP_matmul, bias != NULL ? 3 : 2, (ir_value *[]){x, weight, bias}, bias != NULL ? 2 : 1, attrs, &x));
    return ir_emit_reshape(call->graph, x, 2 + w->axes, dims, result);
}

/* ---- three dimensions ---- */

enum { FRAMES_MAX = 64 };

/* [b,c,t,h,w] as [b*t,c,h,w]. */
static dw_status frames_to_batch(capture_call *call, ir_value *x, ir_value **result) {
    dim dims[4];
    TRY(ir_emit_transpose(call->graph, x, (int64_t[]){0, 2, 1, 3, 4}, &x));
    TRY_DIM(call->capture->context, dims[0], dim_product(call->dims, x->type.dims, 2));
    memcpy(dims + 1, x->type.dims + 2, 3 * sizeof *dims);
    return ir_emit_reshape(call->graph, x, 4, dims, result);
}

static dw_status frames_from_batch(capture_call *call, ir_value *x, dim batch, dim frames, ir_value **result) {
    dim dims[5] = {batch, frames, x->type.dims[1], x->type.dims[2], x->type.dims[3]};
    TRY(ir_emit_reshape(call->graph, x, 5, dims, &x));
    return ir_emit_transpose(call->graph, x, (int64_t[]){0, 2, 1, 3, 4}, result);
}

/* Frames k, k + stride, .. of x, count of them, times the k-th frame of the kernel. */
static dw_status emit_frame(capture_call *call, const capture_windows *w, int64_t groups, ir_value *x, ir_value *weight, ir_value *bias, int64_t k,
                            dim count, ir_value **result) {
    const capture_windows flat = {.axes = 2, .stride = {w->stride[1], w->stride[2]}, .padding = {w->padding[1], w->padding[2]},
                                  .dilation = {w->dilation[1], w->dilation[2]}};
    dim start, end, step, next;
    TRY_DIM(call->capture->context, start, dim_constant(call->dims, k * w->dilation[0]));
    TRY_DIM(call->capture->context, step, dim_constant(call->dims, w->stride[0]));
    TRY_DIM(call->capture->context, end, dim_mul(call->dims, count, step));
    TRY_DIM(call->capture->context, next, dim_constant(call->dims, k * w->dilation[0] + 1 - w->stride[0]));
    TRY_DIM(call->capture->context, end, dim_add(call->dims, end, next));
    TRY(ir_emit_slice(call->graph, x, 2, start, end, w->stride[0], &x));
    TRY(frames_to_batch(call, x, &x));
    TRY_DIM(call->capture->context, start, dim_constant(call->dims, k));
    TRY_DIM(call->capture->context, end, dim_constant(call->dims, k + 1));
    TRY(ir_emit_slice(call->graph, weight, 2, start, end, 1, &weight));
    TRY(capture_emit_squeeze(call->graph, weight, 2, &weight));
    return capture_emit_conv(call->graph, &flat, groups, x, weight, bias, result);
}

/* A sum over the frames of the window, each a convolution in two dimensions with time among the batch. */
static dw_status emit_conv3d(capture_call *call, const capture_windows *w, int64_t groups, ir_value *x, ir_value *weight, ir_value *bias, ir_value **result) {
    int64_t frames, pads[5] = {0, 0, w->padding[0], 0, 0};
    dim count, reach, step, batch = x->type.dims[0];
    if (!dim_is_constant(weight->type.dims[2], &frames) || frames > FRAMES_MAX) return capture_fail(call, DW_UNSUPPORTED, "a window over more than %d frames", FRAMES_MAX);
    TRY(capture_emit_pad(call->graph, x, pads, pads, 0, &x));
    TRY_DIM(call->capture->context, reach, dim_constant(call->dims, w->dilation[0] * (frames - 1) + 1 - w->stride[0]));
    TRY_DIM(call->capture->context, count, dim_sub(call->dims, x->type.dims[2], reach));
    TRY_DIM(call->capture->context, step, dim_constant(call->dims, w->stride[0]));
    TRY_DIM(call->capture->context, count, dim_floordiv(call->dims, count, step));
    for (int64_t k = 0; k < frames; k++) {
        ir_value *part;
        TRY(emit_frame(call, w, groups, x, weight, k == 0 ? bias : NULL, k, count, &part));
        if (k > 0) TRY(ir_emit_2(call->graph, OP_add, *result, part, &part));
        *result = part;
    }
    return frames_from_batch(call, *result, batch, count, result);
}

/* ---- transposed ---- */

/* Each element of axis followed by stride - 1 zeros, but the last. */
static dw_status spread_axis(capture_call *call, ir_value *x, int axis, int64_t stride, ir_value **result) {
    int64_t before[DW_MAX_RANK] = {0}, after[DW_MAX_RANK] = {0};
    dim dims[DW_MAX_RANK], zero, end, more;
    int rank = x->type.rank;
    *result = x;
    if (stride == 1) return DW_OK;
    memcpy(dims, x->type.dims, (size_t)rank * sizeof *dims);
    TRY_DIM(call->capture->context, more, dim_constant(call->dims, stride));
    TRY_DIM(call->capture->context, dims[axis], dim_mul(call->dims, dims[axis], more));
    after[axis + 1] = stride - 1;
    TRY(capture_emit_unsqueeze(call->graph, x, axis + 1, &x));
    TRY(capture_emit_pad(call->graph, x, before, after, 0, &x));
    TRY(ir_emit_reshape(call->graph, x, rank, dims, &x));
    TRY_DIM(call->capture->context, zero, dim_constant(call->dims, 0));
    TRY_DIM(call->capture->context, more, dim_constant(call->dims, stride - 1));
    TRY_DIM(call->capture->context, end, dim_sub(call->dims, dims[axis], more));
    return ir_emit_slice(call->graph, x, axis, zero, end, 1, result);
}

/* The kernel [i,o/groups,taps..] of a transposed convolution as the kernel [o,i/groups,taps..] of the plain one, taps in reverse. */
static dw_status turn_kernel(capture_call *call, ir_value *weight, int64_t groups, ir_value **result) {
    dim dims[DW_MAX_RANK], each;
    int64_t order[DW_MAX_RANK];
    int rank = weight->type.rank;
    TRY_DIM(call->capture->context, dims[0], dim_constant(call->dims, groups));
    each = dim_divide_exact(call->dims, weight->type.dims[0], dims[0]);
    if (each == NULL) return capture_fail(call, DW_CORRUPT, "groups do not divide the input's channels");
    dims[1] = each;
    for (int i = 1; i < rank; i++) dims[i + 1] = weight->type.dims[i];
    for (int i = 0; i <= rank; i++) order[i] = i == 1 ? 2 : i == 2 ? 1 : i;
    TRY(ir_emit_reshape(call->graph, weight, rank + 1, dims, &weight));
    TRY(ir_emit_transpose(call->graph, weight, order, &weight));
    TRY_DIM(call->capture->context, dims[1], dim_product(call->dims, weight->type.dims, 2));
    for (int i = 2; i <= rank; i++) dims[i] = weight->type.dims[i];
    TRY(ir_emit_reshape(call->graph, weight, rank, dims + 1, &weight));
    for (int i = 2; i < rank; i++) {
        if (!capture_dim_is(weight->type.dims[i], 1)) TRY(capture_emit_flip(call->graph, weight, i, &weight));
    }
    return *result = weight, DW_OK;
}

/* Windows side by side: every input element makes a tile of its own, by one product. */
static dw_status emit_tiles(capture_call *call, int axes, ir_value *x, ir_value *weight, ir_value **result) {
    dim dims[DW_MAX_RANK], wide[2];
    int64_t order[DW_MAX_RANK];
    int rank = 0, at = 0;
    for (int i = 0; i < axes + 2; i++) order[i] = i == 0 ? 0 : i <= axes ? i + 1 : 1;
    TRY(ir_emit_transpose(call->graph, x, order, &x));                                 /* [b,n..,c] */
    wide[0] = weight->type.dims[0];
    TRY_DIM(call->capture->context, wide[1], dim_product(call->dims, weight->type.dims + 1, axes + 1));
    TRY(ir_emit_reshape(call->graph, weight, 2, wide, &weight));
    for (int i = 0; i <= axes; i++) dims[rank++] = x->type.dims[i];
    ir_value *stored;
    TRY(capture_value_arg(call, "weight", &stored));
    for (int i = 1; i < axes + 2; i++) dims[rank++] = stored->type.dims[i];            /* [b,n..,o,taps..] */
    call->graph->origin.role = product_role;
    TRY(capture_emit_matmul(call->graph, x, weight, NULL, &x));
    TRY(ir_emit_reshape(call->graph, x, rank, dims, &x));
    order[at++] = 0;
    order[at++] = axes + 1;
    for (int i = 0; i < axes; i++) {
        order[at++] = 1 + i;
        order[at++] = axes + 2 + i;
    }
    TRY(ir_emit_transpose(call->graph, x, order, &x));                                 /* [b,o,n,taps,..] */
    dim out[DW_MAX_RANK] = {x->type.dims[0], x->type.dims[1]};
    for (int i = 0; i < axes; i++) TRY_DIM(call->capture->context, out[2 + i], dim_mul(call->dims, x->type.dims[2 + 2 * i], x->type.dims[3 + 2 * i]));
    return ir_emit_reshape(call->graph, x, axes + 2, out, result);
}

static dw_status add_channels(capture_call *call, ir_value *x, ir_value *bias, ir_value **result) {
    dim dims[DW_MAX_RANK];
    *result = x;
    if (bias == NULL) return DW_OK;
    for (int i = 0; i < x->type.rank; i++) TRY_DIM(call->capture->context, dims[i], dim_constant(call->dims, 1));
    dims[1] = bias->type.dims[0];
    TRY(ir_emit_reshape(call->graph, bias, x->type.rank, dims, &bias));
    return ir_emit_2(call->graph, OP_add, x, bias, result);
}

static dw_status emit_transposed(capture_call *call, capture_windows *w, int64_t groups, ir_value *x, ir_value *weight, ir_value *bias, ir_value **result) {
    int64_t more[DW_MAX_RANK], before[DW_MAX_RANK] = {0}, after[DW_MAX_RANK] = {0};
    bool tiles = groups == 1;
    if (w->axes > SPATIAL_MAX) return capture_fail(call, DW_UNSUPPORTED, "a transposed convolution over %d axes", w->axes);
    TRY(capture_spatial_arg(call, "output_padding", w->axes, 0, more));
    for (int i = 0; i < w->axes; i++) {
        int64_t taps;
        if (!dim_is_constant(weight->type.dims[2 + i], &taps)) return capture_fail(call, DW_UNSUPPORTED, "a kernel of dynamic size");
        tiles = tiles && taps == w->stride[i] && w->padding[i] == 0 && w->dilation[i] == 1 && more[i] == 0;
        before[2 + i] = w->dilation[i] * (taps - 1) - w->padding[i];
        after[2 + i] = before[2 + i] + more[i];
    }
    if (tiles) {
        TRY(emit_tiles(call, w->axes, x, weight, &x));
        return add_channels(call, x, bias, result);
    }
    for (int i = 0; i < w->axes; i++) TRY(spread_axis(call, x, 2 + i, w->stride[i], &x));
    for (int i = 0; i < w->axes; i++) {
        w->stride[i] = 1;
        w->padding[i] = 0;
    }
    TRY(capture_emit_pad(call->graph, x, before, after, 0, &x));
    TRY(turn_kernel(call, weight, groups, &weight));
    return capture_emit_conv(call->graph, w, groups, x, weight, bias, result);
}

/* ---- the rule ---- */

static dw_status emit_any(capture_call *call, capture_windows *w, int64_t groups, ir_value *x, ir_value *weight, ir_value *bias, ir_value **result) {
    bool transposed = strstr(call->row->target, "conv_transpose") != NULL;
    if (capture_has(call, "transposed")) TRY(capture_bool_arg(call, "transposed", &transposed));
    if (transposed) return emit_transposed(call, w, groups, x, weight, bias, result);
    if (w->axes <= SPATIAL_MAX) return capture_emit_conv(call->graph, w, groups, x, weight, bias, result);
    if (w->axes > 3) return capture_fail(call, DW_UNSUPPORTED, "a convolution over %d axes", w->axes);
    return groups == 1 && covers_input(w, x, weight) ? emit_patch(call, w, x, weight, bias, result) : emit_conv3d(call, w, groups, x, weight, bias, result);
}

dw_status capture_rule_conv(capture_call *call) {
    ir_value *x, *weight, *bias;
    int64_t groups;
    TRY(capture_value_arg(call, "input", &x));
    TRY(capture_value_arg(call, "weight", &weight));
    TRY(capture_optional_arg(call, "bias", &bias));
    TRY(capture_int_arg(call, "groups", &groups));
    capture_windows w = {.axes = weight->type.rank - 2};
    if (w.axes < 1 || groups < 1) return capture_fail(call, DW_CORRUPT, "a kernel with %d axes in %lld groups", weight->type.rank, (long long)groups);
    dw_format format = capture_result_format(call, 0, x->type.format);
    TRY(ir_emit_cast(call->graph, x, format, &x));
    TRY(ir_emit_cast(call->graph, weight, format, &weight));
    if (bias != NULL) TRY(ir_emit_cast(call->graph, bias, format, &bias));
    bool single = x->type.rank == weight->type.rank - 1;    /* no batch */
    if (single) TRY(capture_emit_unsqueeze(call->graph, x, 0, &x));
    if (x->type.rank != weight->type.rank) return capture_fail(call, DW_CORRUPT, "input and kernel have %d and %d axes", x->type.rank, weight->type.rank);
    TRY(capture_spatial_arg(call, "stride", w.axes, 1, w.stride));
    TRY(capture_spatial_arg(call, "dilation", w.axes, 1, w.dilation));
    TRY(read_padding(call, weight, &w, &x));
    for (int i = 0; i < w.axes; i++) {
        bool sane = w.stride[i] >= 1 && w.dilation[i] >= 1 && w.padding[i] >= 0 && w.stride[i] < SPAN_MAX && w.dilation[i] < SPAN_MAX && w.padding[i] < SPAN_MAX;
        if (!sane) return capture_fail(call, DW_CORRUPT, "stride %lld, padding %lld, dilation %lld", (long long)w.stride[i], (long long)w.padding[i], (long long)w.dilation[i]);
    }
    TRY(emit_any(call, &w, groups, x, weight, bias, &x));
    if (single) TRY(capture_emit_squeeze(call->graph, x, 0, &x));
    return capture_result(call, 0, x);
}
