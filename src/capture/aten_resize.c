/* Rules of interpolation along axes of known size: each axis is multiplied by a constant matrix of weights. Coordinates and kernels as in
 * PyTorch's aten/src/ATen/native/UpSample.h. */
#include <math.h>
#include <string.h>

#include "capture/program.h"

typedef enum kernel { KERNEL_NEAREST, KERNEL_NEAREST_EXACT, KERNEL_LINEAR, KERNEL_CUBIC, KERNEL_LINEAR_SMOOTH, KERNEL_CUBIC_SMOOTH } kernel;

/* Along one axis. */
typedef struct resize { kernel kernel; int64_t from, to; double step; bool corners; } resize;

/* The cubic convolution kernel with parameter a at distance x. */
static double cubic(double x, double a) {
    x = fabs(x);
    if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
    return 0;
}

static int64_t within(int64_t index, int64_t size) { return index < 0 ? 0 : index >= size ? size - 1 : index; }

/* With antialiasing the kernel is as wide as the step, and the weights of what lies inside add up to 1. */
static void fill_smooth_row(const resize *r, int64_t i, double *row) {
    const double wide = r->step > 1 ? r->step : 1, reach = (r->kernel == KERNEL_CUBIC_SMOOTH ? 2 : 1) * wide, centre = r->step * ((double)i + 0.5);
    int64_t first = (int64_t)(centre - reach + 0.5), end = (int64_t)(centre + reach + 0.5);
    double sum = 0;
    if (first < 0) first = 0;
    if (end > r->from) end = r->from;
    for (int64_t k = first; k < end; k++) {
        const double distance = ((double)k - centre + 0.5) / wide;
        row[k] = r->kernel == KERNEL_CUBIC_SMOOTH ? cubic(distance, -0.5) : fmax(0, 1 - fabs(distance));
        sum += row[k];
    }
    for (int64_t k = first; k < end && sum != 0; k++) row[k] /= sum;
}

/* Weights of the inputs for output i, added to row[from]. */
static void fill_row(const resize *r, int64_t i, double *row) {
    if (r->kernel == KERNEL_LINEAR_SMOOTH || r->kernel == KERNEL_CUBIC_SMOOTH) {
        fill_smooth_row(r, i, row);
        return;
    }
    double at = r->corners ? r->step * (double)i : r->step * ((double)i + 0.5) - 0.5;
    if (r->kernel == KERNEL_NEAREST || r->kernel == KERNEL_NEAREST_EXACT) {
        row[within((int64_t)floor(r->step * ((double)i + (r->kernel == KERNEL_NEAREST ? 0 : 0.5))), r->from)] = 1;
        return;
    }
    if (r->kernel == KERNEL_LINEAR && at < 0) at = 0;
    int64_t first = (int64_t)floor(at);
    for (int64_t tap = -1; tap <= 2; tap++) {
        double distance = at - (double)(first + tap);
        double weight = r->kernel == KERNEL_CUBIC ? cubic(distance, -0.75) : fmax(0, 1 - fabs(distance));
        row[within(first + tap, r->from)] += weight;
    }
}

enum { MATRIX_MAX = 1 << 22, STEP_MAX = 1 << 30 };   /* the second: coordinates are far within 64 bits */

/* The matrix [to, from] as a constant of x's format. */
static dw_status weight_matrix(capture_call *call, const resize *r, dw_format format, ir_value **matrix) {
    dw_tensor tensor;
    double *row;
    int64_t dims[] = {r->to, r->from};
    if (r->to > MATRIX_MAX / r->from) return capture_fail(call, DW_LIMIT, "an axis resized from %lld to %lld", (long long)r->from, (long long)r->to);
    TRY(ir_add_constant(call->graph, NULL, format, 2, dims, matrix, &tensor));
    TRY_NEW(row, &call->capture->arena, r->from);
    for (int64_t i = 0; i < r->to; i++) {
        memset(row, 0, (size_t)r->from * sizeof *row);
        fill_row(r, i, row);
        for (int64_t k = 0; k < r->from; k++) op_tensor_store(&tensor, (int64_t[]){i, k}, row[k]);
    }
    return DW_OK;
}

/* x with axis resized: the axis goes last, is multiplied, and goes back. */
static dw_status resize_axis(capture_call *call, ir_value *x, int axis, const resize *r, ir_value **result) {
    ir_value *matrix;
    int last = x->type.rank - 1;
    *result = x;
    if (r->from == r->to && r->step == 1) return DW_OK;
    TRY(weight_matrix(call, r, x->type.format, &matrix));
    TRY(capture_emit_swap(call->graph, x, axis, last, &x));
    op_attr attr = op_set_bool(OP_ATTR_bt, true);
    TRY(ir_emit(call->graph, OP_matmul, 2, (ir_value *[]){x, matrix}, 1, &attr, &x));
    return capture_emit_swap(call->graph, x, axis, last, result);
}

static kernel kernel_of(const char *target) {
    if (strstr(target, "_aa.") != NULL) return strstr(target, "cubic") != NULL ? KERNEL_CUBIC_SMOOTH : KERNEL_LINEAR_SMOOTH;
    if (strstr(target, "exact") != NULL) return KERNEL_NEAREST_EXACT;
    if (strstr(target, "nearest") != NULL) return KERNEL_NEAREST;
    return strstr(target, "cubic") != NULL ? KERNEL_CUBIC : KERNEL_LINEAR;
}

/* The factor given for spatial axis i, or 0: "scale_factors" as a list, or an argument of its own per axis. */
static dw_status read_factor(capture_call *call, int i, int axes, double *factor) {
    static const char *const names[] = {"scales_h", "scales_w"};
    const capture_arg *list = capture_find_arg(call, "scale_factors");
    *factor = 0;
    if (list != NULL && list->kind == ARG_REALS && i < list->count) *factor = list->reals[i];
    const char *name = axes == 1 ? "scales" : names[i];
    return list == NULL && capture_has(call, name) ? capture_real_arg(call, name, factor) : DW_OK;
}

dw_status capture_rule_resize(capture_call *call) {
    ir_value *x;
    bool corners = false;
    const char *target = call->row->target;
    int axes = strstr(target, "1d") != NULL ? 1 : 2;
    TRY(capture_value_arg(call, call->arg_names[0], &x));
    if (capture_has(call, "align_corners")) TRY(capture_bool_arg(call, "align_corners", &corners));
    if (x->type.rank != axes + 2 || call->types[0].rank != x->type.rank) return capture_fail(call, DW_CORRUPT, "an input with %d axes", x->type.rank);
    if (!capture_is_float(x->type.format)) return capture_fail(call, DW_UNSUPPORTED, "an input of integers");
    for (int i = 0; i < axes; i++) {
        resize r = {.kernel = kernel_of(target), .corners = corners};
        double factor;
        TRY(read_factor(call, i, axes, &factor));
        bool known = dim_is_constant(x->type.dims[2 + i], &r.from) && dim_is_constant(call->types[0].dims[2 + i], &r.to);
        if (!known || r.from < 1 || r.to < 1) return capture_fail(call, DW_UNSUPPORTED, "an axis of dynamic size; export with a fixed size of the image");
        r.step = factor > 0 ? 1 / factor : (double)r.from / (double)r.to;
        if (!(r.step <= STEP_MAX)) return capture_fail(call, DW_CORRUPT, "a scale factor of %g", factor);
        if (corners) r.step = r.to > 1 ? (double)(r.from - 1) / (double)(r.to - 1) : 0;
        if (corners && r.from == r.to) r.step = 1;
        TRY(resize_axis(call, x, 2 + i, &r, &x));
    }
    return capture_result(call, 0, x);
}
