/* Rules of pooling. Averages are convolutions with equal taps, maxima go over shifted slices; runs that an adaptive pooling cuts unevenly
 * are products with a constant matrix. */
#include <math.h>
#include <string.h>

#include "capture/program.h"

/* ---- windows ---- */

enum { SPATIAL_MAX = 2, WINDOW_MAX = 64, SPAN_MAX = 1 << 20 };

/* Windows of a pooling with what ceil_mode adds behind the padding, so that the last window is whole. */
typedef struct pooling {
    capture_windows w;
    int64_t sizes[DW_MAX_RANK], more[DW_MAX_RANK];
    int first;              /* spatial axis of the input */
    bool pads, ceils;
} pooling;

/* How far the last window of ceil_mode reaches beyond the padded axis. A window must begin on the input or on the padding before it. */
static dw_status read_ceil(capture_call *call, pooling *p, int i, dim size) {
    const int64_t stride = p->w.stride[i], reach = p->w.dilation[i] * (p->sizes[i] - 1) + 1;
    int64_t known;
    if (dim_is_constant(size, &known)) {
        const int64_t room = known + 2 * p->w.padding[i] - reach;
        if (room < 0) return capture_fail(call, DW_CORRUPT, "a window of %lld on an axis of %lld", (long long)reach, (long long)known);
        int64_t last = (room + stride - 1) / stride * stride;
        if (last >= known + p->w.padding[i]) last -= stride;
        p->more[i] = last > room ? last - room : 0;
    } else if (p->w.padding[i] + stride <= reach) {
        p->more[i] = stride - 1;
    } else {
        return capture_fail(call, DW_UNSUPPORTED, "ceil_mode on an axis of dynamic size with windows apart");
    }
    p->ceils = p->ceils || p->more[i] > 0;
    return DW_OK;
}

static dw_status read_pooling(capture_call *call, const ir_value *x, pooling *p) {
    bool ceil_mode;
    *p = (pooling){.w.axes = strstr(call->row->target, "1d") != NULL ? 1 : SPATIAL_MAX};
    TRY(capture_spatial_arg(call, "kernel_size", p->w.axes, 1, p->sizes));
    TRY(capture_spatial_arg(call, "stride", p->w.axes, 0, p->w.stride));
    TRY(capture_spatial_arg(call, "padding", p->w.axes, 0, p->w.padding));
    TRY(capture_spatial_arg(call, "dilation", p->w.axes, 1, p->w.dilation));
    TRY(capture_bool_arg(call, "ceil_mode", &ceil_mode));
    p->first = x->type.rank - p->w.axes;
    if (p->first < 0) return capture_fail(call, DW_CORRUPT, "an input with %d axes", x->type.rank);
    for (int i = 0; i < p->w.axes; i++) {
        if (p->w.stride[i] == 0) p->w.stride[i] = p->sizes[i];
        bool sane = p->sizes[i] >= 1 && p->sizes[i] < SPAN_MAX && p->w.stride[i] >= 1 && p->w.stride[i] < SPAN_MAX && p->w.dilation[i] >= 1 &&
                    p->w.dilation[i] < SPAN_MAX && p->w.padding[i] >= 0 && p->w.padding[i] < SPAN_MAX;
        if (!sane) return capture_fail(call, DW_CORRUPT, "windows of %lld by %lld", (long long)p->sizes[i], (long long)p->w.stride[i]);
        p->pads = p->pads || p->w.padding[i] != 0;
        if (ceil_mode) TRY(read_ceil(call, p, i, x->type.dims[p->first + i]));
    }
    return DW_OK;
}

/* x with value around its spatial axes: the padding, and what ceil_mode adds. */
static dw_status pad_windows(capture_call *call, const pooling *p, ir_value *x, double value, bool padding, bool more, ir_value **result) {
    int64_t before[DW_MAX_RANK] = {0}, after[DW_MAX_RANK] = {0};
    for (int i = 0; i < p->w.axes; i++) {
        before[p->first + i] = padding ? p->w.padding[i] : 0;
        after[p->first + i] = before[p->first + i] + (more ? p->more[i] : 0);
    }
    return capture_emit_pad(call->graph, x, before, after, value, result);
}

/* ---- averages ---- */

/* Sums over windows times factor, channel by channel. */
static dw_status sum_windows(capture_call *call, const pooling *p, ir_value *x, double factor, ir_value **result) {
    dim dims[2 + SPATIAL_MAX];
    int64_t channels;
    ir_value *taps;
    if (!dim_is_constant(x->type.dims[1], &channels)) return capture_fail(call, DW_UNSUPPORTED, "a dynamic number of channels");
    capture_windows w = p->w;
    dims[0] = x->type.dims[1];
    TRY_DIM(call->capture->context, dims[1], dim_constant(call->dims, 1));
    for (int i = 0; i < w.axes; i++) {
        w.padding[i] = 0;
        TRY_DIM(call->capture->context, dims[2 + i], dim_constant(call->dims, p->sizes[i]));
    }
    TRY(capture_emit_fill(call->graph, w.axes + 2, dims, factor, x->type.format, &taps));
    return capture_emit_conv(call->graph, &w, channels, x, taps, NULL, result);
}

/* Divided by the size of the window, of its part that is no padding, or by a number that is given. */
dw_status capture_rule_avg_pool(capture_call *call) {
    ir_value *x, *ones, *sums;
    pooling p;
    bool include;
    double divisor = 1;
    TRY(capture_value_arg(call, "self", &x));
    TRY(read_pooling(call, x, &p));
    TRY(capture_bool_arg(call, "count_include_pad", &include));
    for (int i = 0; i < p.w.axes; i++) divisor *= (double)p.sizes[i];
    const bool given = capture_has(call, "divisor_override");
    if (given) TRY(capture_real_arg(call, "divisor_override", &divisor));
    const bool single = p.first == 1;
    if (single) TRY(capture_emit_unsqueeze(call->graph, x, 0, &x));
    p.first += single;
    if (p.first != 2) return capture_fail(call, DW_UNSUPPORTED, "an input that is not [b,c,..]");
    TRY(pad_windows(call, &p, x, 0, true, true, &sums));
    TRY(sum_windows(call, &p, sums, 1 / divisor, &sums));
    if (!given && (p.ceils || (p.pads && !include))) {
        dim dims[DW_MAX_RANK];
        memcpy(dims, x->type.dims, sizeof dims);
        TRY_DIM(call->capture->context, dims[0], dim_constant(call->dims, 1));
        TRY(capture_emit_fill(call->graph, x->type.rank, dims, 1, x->type.format, &ones));
        if (include) TRY(pad_windows(call, &p, ones, 1, true, false, &ones));
        TRY(pad_windows(call, &p, ones, 0, !include, true, &ones));
        TRY(sum_windows(call, &p, ones, 1 / divisor, &ones));
        TRY(ir_emit_2(call->graph, OP_div, sums, ones, &sums));
    }
    if (single) TRY(capture_emit_squeeze(call->graph, sums, 0, &sums));
    return capture_result(call, 0, sums);
}

/* ---- maxima ---- */

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

/* The values; where the largest element was is not a result. */
dw_status capture_rule_max_pool(capture_call *call) {
    ir_value *x;
    pooling p;
    TRY(capture_value_arg(call, "self", &x));
    TRY(read_pooling(call, x, &p));
    if ((p.pads || p.ceils) && !capture_is_float(x->type.format)) return capture_fail(call, DW_UNSUPPORTED, "padded windows of integers");
    TRY(pad_windows(call, &p, x, -INFINITY, true, true, &x));
    for (int i = 0; i < p.w.axes; i++) {
        if (p.sizes[i] > WINDOW_MAX) return capture_fail(call, DW_UNSUPPORTED, "windows of %lld elements", (long long)p.sizes[i]);
        TRY(max_along(call, x, p.first + i, p.sizes[i], p.w.stride[i], p.w.dilation[i], &x));
    }
    return capture_result(call, 0, x);
}

/* ---- adaptive ---- */

/* One axis cut into runs of the given size, each reduced to one element. */
static dw_status pool_runs(capture_call *call, op_id op, ir_value *x, int axis, int64_t run, ir_value **result) {
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

/* Where run i of `runs` over size elements begins; it ends at run_start(i + 1) rounded up. */
static int64_t run_start(int64_t i, int64_t size, int64_t runs) { return i * size / runs; }
static int64_t run_end(int64_t i, int64_t size, int64_t runs) { return ((i + 1) * size + runs - 1) / runs; }

enum { MATRIX_MAX = 1 << 22, RUNS_MAX = 64 };

/* Uneven runs: averages by a matrix [runs,size]. */
static dw_status average_runs(capture_call *call, ir_value *x, int axis, int64_t size, int64_t runs, ir_value **result) {
    dw_tensor tensor;
    ir_value *matrix;
    int last = x->type.rank - 1;
    if (size > MATRIX_MAX / runs) return capture_fail(call, DW_LIMIT, "an axis of %lld pooled to %lld", (long long)size, (long long)runs);
    TRY(ir_add_constant(call->graph, NULL, x->type.format, 2, (int64_t[]){runs, size}, &matrix, &tensor));
    for (int64_t i = 0; i < runs; i++) {
        const int64_t start = run_start(i, size, runs), end = run_end(i, size, runs);
        for (int64_t k = 0; k < size; k++) op_tensor_store(&tensor, (int64_t[]){i, k}, k >= start && k < end ? 1.0 / (double)(end - start) : 0);
    }
    TRY(capture_emit_swap(call->graph, x, axis, last, &x));
    op_attr attr = op_set_bool(OP_ATTR_bt, true);
    TRY(ir_emit(call->graph, OP_matmul, 2, (ir_value *[]){x, matrix}, 1, &attr, &x));
    return capture_emit_swap(call->graph, x, axis, last, result);
}

/* Uneven runs: the maximum of each, joined. */
static dw_status max_runs(capture_call *call, ir_value *x, int axis, int64_t size, int64_t runs, ir_value **result) {
    ir_value *parts[RUNS_MAX];
    if (runs > RUNS_MAX) return capture_fail(call, DW_UNSUPPORTED, "%lld uneven runs", (long long)runs);
    for (int64_t i = 0; i < runs; i++) {
        dim start, end;
        TRY_DIM(call->capture->context, start, dim_constant(call->dims, run_start(i, size, runs)));
        TRY_DIM(call->capture->context, end, dim_constant(call->dims, run_end(i, size, runs)));
        TRY(ir_emit_slice(call->graph, x, axis, start, end, 1, &parts[i]));
        TRY(capture_emit_reduce(call->graph, OP_amax, parts[i], 1, &(int64_t){axis}, true, &parts[i]));
    }
    op_attr attr = op_set_int(OP_ATTR_axis, axis);
    return ir_emit(call->graph, OP_concat, (int)runs, parts, 1, &attr, result);
}

static dw_status adaptive_axis(capture_call *call, op_id op, ir_value *x, int axis, int64_t runs, ir_value **result) {
    int64_t size;
    *result = x;
    if (runs == 1) return capture_emit_reduce(call->graph, op, x, 1, &(int64_t){axis}, true, result);
    if (!dim_is_constant(x->type.dims[axis], &size)) return capture_fail(call, DW_UNSUPPORTED, "an axis of dynamic size; export with a fixed size of the image");
    if (runs < 1 || runs > size * (int64_t)SPAN_MAX || size < 1) return capture_fail(call, DW_UNSUPPORTED, "an output size of %lld", (long long)runs);
    if (runs == size) return DW_OK;
    if (size % runs == 0) return pool_runs(call, op, x, axis, size / runs, result);
    return op == OP_mean ? average_runs(call, x, axis, size, runs, result) : max_runs(call, x, axis, size, runs, result);
}

/* A size of None keeps the axis: the list then has no entry that could be read, and the results say so. */
dw_status capture_rule_adaptive_pool(capture_call *call) {
    ir_value *x;
    int axes = strstr(call->row->target, "1d") != NULL ? 1 : strstr(call->row->target, "2d") != NULL ? 2 : 3;
    TRY(capture_value_arg(call, "self", &x));
    if (axes > x->type.rank || call->types[0].rank != x->type.rank) return capture_fail(call, DW_CORRUPT, "%d sizes for %d axes", axes, x->type.rank);
    for (int axis = x->type.rank - axes; axis < x->type.rank; axis++) {
        int64_t size;
        if (call->types[0].dims[axis] == x->type.dims[axis]) continue;
        if (!dim_is_constant(call->types[0].dims[axis], &size)) return capture_fail(call, DW_UNSUPPORTED, "an output of dynamic size");
        TRY(adaptive_axis(call, call->row->op, x, axis, size, &x));
    }
    return capture_result(call, 0, x);
}
