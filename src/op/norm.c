/* Normalisations: layer_norm and rms_norm over the last axis, group_norm, softmax, log_softmax. Statistics in double, in two passes.
 * A residual is added first and the sum rounded to x's format: that sum is the second result, and it is what is normalised.
 * A result in a block format is what quantize makes of the result in x's format. */
#include "op/family.h"

#include <math.h>

/* ---- inference ---- */

static dw_status check_column(op_infer *infer, int operand, const char *name, dim size) {
    if (operand >= infer->n_in || infer->in[operand] == NULL) return DW_OK;
    const op_type *type = infer->in[operand];
    TRY(op_check_float(infer, name, type));
    TRY(op_check_element(infer, name, type));
    TRY(op_check_rank(infer, name, type, 1, 1));
    return op_check_same(infer, "the size of the normalised axis", size, name, type->dims[0]);
}

static dw_status check_to(op_infer *infer, dw_format to) {
    if (op_is_block(to)) return op_check_row_blocks(infer, to);
    TRY(op_check_to(infer, to));
    const op_type type = {.format = to};
    return op_check_float(infer, "the result", &type);
}

static dw_status infer_rows(op_infer *infer) {
    const op_type *x = infer->in[0];
    bool is_layer = infer->op->id == OP_layer_norm;
    int residual = is_layer ? 3 : 2;
    TRY(op_check_rank(infer, "x", x, 1, DW_MAX_RANK));
    TRY(check_column(infer, 1, "weight", x->dims[x->rank - 1]));
    if (is_layer) TRY(check_column(infer, 2, "bias", x->dims[x->rank - 1]));
    infer->out[0] = *x;
    dw_format to = op_attr_format(infer->attrs, OP_ATTR_to);
    if (to != DW_FORMAT_COUNT) {
        TRY(check_to(infer, to));
        infer->out[0].format = to;
    }
    if (op_attr_bool(infer->attrs, OP_ATTR_search) && !num_can_search(infer->out[0].format))
        return base_fail(infer->context, DW_INVALID, "%s: scales of %s cannot be searched for, only those over e2m1 elements; leave search out", infer->op->name,
                         dw_format_name(infer->out[0].format));
    if (infer->n_out == 1) return DW_OK;
    const op_type *r = infer->in[residual];
    TRY(op_check_same_format(infer, "x", x, "residual", r));
    TRY(op_check_rank(infer, "residual", r, x->rank, x->rank));
    for (int i = 0; i < x->rank; i++) TRY(op_check_same_axis(infer, i, "x", x, "residual", r));
    infer->out[1] = *x;
    return DW_OK;
}

static dw_status infer_group_norm(op_infer *infer) {
    const op_type *x = infer->in[0];
    int64_t groups = op_attr_int(infer->attrs, OP_ATTR_groups), channels;
    TRY(op_check_rank(infer, "x", x, 2, DW_MAX_RANK));
    if (groups < 1) return base_fail(infer->context, DW_INVALID, "group_norm: groups is %lld, it must be 1 or more", (long long)groups);
    if (dim_is_constant(x->dims[1], &channels) && channels % groups != 0)
        return base_fail(infer->context, DW_MISMATCH, "group_norm: x has %lld channels, groups is %lld, which does not divide them", (long long)channels, (long long)groups);
    TRY(check_column(infer, 1, "weight", x->dims[1]));
    TRY(check_column(infer, 2, "bias", x->dims[1]));
    *infer->out = *x;
    return DW_OK;
}

dw_status norm_infer(op_infer *infer) {
    const op_type *x = infer->in[0];
    TRY(op_check_number(infer, "x", x));
    TRY(op_check_float(infer, "x", x));
    if (infer->op->id == OP_group_norm) return infer_group_norm(infer);
    if (infer->op->id == OP_layer_norm || infer->op->id == OP_rms_norm) return infer_rows(infer);
    TRY(op_check_axis(infer, op_attr_int(infer->attrs, OP_ATTR_axis), x->rank));
    *infer->out = *x;
    return DW_OK;
}

/* ---- layer_norm, rms_norm ---- */

static double column_at(const dw_tensor *column, int64_t i, double absent) {
    return column != NULL ? op_load_at(column, i * column->strides[0]) : absent;
}

/* A row of numbers in a tensor. */
typedef struct line { const dw_tensor *tensor; int64_t offset, stride, count; } line;

static double line_at(const line *x, int64_t i) { return op_load_at(x->tensor, x->offset + i * x->stride); }

/* The mean (0 when not centred) and 1 / sqrt(mean of squares around it + eps). */
static void line_moments(const line *x, bool centred, double eps, double *mean, double *scale) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; centred && i < x->count; i++) sum += line_at(x, i);
    *mean = centred ? sum / (double)x->count : 0;
    for (int64_t i = 0; i < x->count; i++) squares += (line_at(x, i) - *mean) * (line_at(x, i) - *mean);
    *scale = 1 / sqrt(squares / (double)x->count + eps);
}

/* The rows of one call, one at a time. */
typedef struct norm_rows {
    const dw_tensor *sum, *weight, *bias;    /* sum: what is normalised */
    bool centred;
    double eps, mean, scale;                 /* mean and scale: of row */
    int64_t current;
    line row;
} norm_rows;

static void start_row(norm_rows *rows, int64_t offset) {
    int last = rows->sum->rank - 1;
    rows->row = (line){rows->sum, offset, rows->sum->strides[last], rows->sum->dims[last]};
    line_moments(&rows->row, rows->centred, rows->eps, &rows->mean, &rows->scale);
}

static double normalised_at(const norm_rows *rows, int64_t i) {
    return (line_at(&rows->row, i) - rows->mean) * rows->scale * column_at(rows->weight, i, 1) + column_at(rows->bias, i, 0);
}

/* Element i of row number index, rounded to x's format: what a result in a block format is made of. */
static float rounded_at(void *argument, int64_t index, int64_t i) {
    norm_rows *rows = argument;
    if (index != rows->current) {
        int64_t offset = 0, rest = index;
        for (int axis = rows->sum->rank - 2; axis >= 0; axis--) {
            offset += rest % rows->sum->dims[axis] * rows->sum->strides[axis];
            rest /= rows->sum->dims[axis];
        }
        start_row(rows, offset);
        rows->current = index;
    }
    dw_format format = rows->sum->format;
    return (float)num_decode(format, num_encode(format, normalised_at(rows, i), false));
}

static void add_residual(const dw_tensor *x, const dw_tensor *residual, const dw_tensor *sum) {
    walk w;
    walk_start(&w, x->rank, x->dims);
    int at_x = walk_add(&w, x), at_residual = walk_add(&w, residual), at_sum = walk_add(&w, sum);
    for (; w.left > 0; walk_next(&w)) op_store_at(sum, w.offset[at_sum], op_load_at(x, w.offset[at_x]) + op_load_at(residual, w.offset[at_residual]));
}

static dw_status rows_reference(const op_call *call) {
    bool is_layer = call->op->id == OP_layer_norm;
    const dw_tensor *x = call->in[0], *residual = op_operand(call, is_layer ? 3 : 2), *out = call->out[0];
    norm_rows rows = {
        .sum = residual != NULL ? call->out[1] : x,
        .weight = op_operand(call, 1),
        .bias = is_layer ? op_operand(call, 2) : NULL,
        .centred = is_layer,
        .eps = op_attr_real(call->attrs, OP_ATTR_eps),
        .current = -1,
    };
    if (residual != NULL) add_residual(x, residual, rows.sum);
    if (op_is_block(out->format)) return op_quantize_elements(call, out, rounded_at, &rows);
    int last = x->rank - 1;
    walk w;
    walk_start(&w, x->rank, x->dims);
    bool empty = w.left == 0;
    walk_skip(&w, last);
    int at_out = walk_add(&w, out), at_sum = walk_add(&w, rows.sum);
    for (; !empty && w.left > 0; walk_next(&w)) {
        start_row(&rows, w.offset[at_sum]);
        for (int64_t i = 0; i < rows.row.count; i++) op_store_at(out, w.offset[at_out] + i * out->strides[last], normalised_at(&rows, i));
    }
    return DW_OK;
}

/* ---- group_norm ---- */

/* The channels of one group in one batch element, as a walk; slot 0 is x, slot 1 the result. */
static walk group_elements(const dw_tensor *x, const dw_tensor *out, int64_t channels) {
    int64_t dims[DW_MAX_RANK];
    for (int i = 1; i < x->rank; i++) dims[i - 1] = i == 1 ? channels : x->dims[i];
    walk w;
    walk_start(&w, x->rank - 1, dims);
    walk_add_strides(&w, x->strides + 1);
    walk_add_strides(&w, out->strides + 1);
    return w;
}

static void normalise_group(const op_call *call, int64_t batch, int64_t group, int64_t channels) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    int64_t at_x = batch * x->strides[0] + group * channels * x->strides[1], at_out = batch * out->strides[0] + group * channels * out->strides[1];
    double sum = 0, squares = 0, count = (double)group_elements(x, out, channels).left;
    for (walk w = group_elements(x, out, channels); w.left > 0; walk_next(&w)) sum += op_load_at(x, at_x + w.offset[0]);
    double mean = sum / count;
    for (walk w = group_elements(x, out, channels); w.left > 0; walk_next(&w)) {
        double away = op_load_at(x, at_x + w.offset[0]) - mean;
        squares += away * away;
    }
    double scale = 1 / sqrt(squares / count + op_attr_real(call->attrs, OP_ATTR_eps));
    for (walk w = group_elements(x, out, channels); w.left > 0; walk_next(&w)) {
        int64_t channel = group * channels + w.index[0];
        double value = (op_load_at(x, at_x + w.offset[0]) - mean) * scale;
        op_store_at(out, at_out + w.offset[1], value * column_at(op_operand(call, 1), channel, 1) + column_at(op_operand(call, 2), channel, 0));
    }
}

static dw_status group_reference(const op_call *call) {
    const dw_tensor *x = call->in[0];
    int64_t groups = op_attr_int(call->attrs, OP_ATTR_groups);
    if (x->dims[1] % groups != 0)
        return base_fail(call->context, DW_MISMATCH, "group_norm: x has %lld channels, groups is %lld, which does not divide them", (long long)x->dims[1], (long long)groups);
    for (int64_t batch = 0; batch < x->dims[0]; batch++)
        for (int64_t group = 0; group < groups; group++) normalise_group(call, batch, group, x->dims[1] / groups);
    return DW_OK;
}

/* ---- softmax ---- */

/* The largest; NaN if any is. */
static double line_max(const line *x) {
    double max = -INFINITY;
    for (int64_t i = 0; i < x->count; i++) {
        double value = line_at(x, i);
        if (isnan(value)) return value;
        if (value > max) max = value;
    }
    return max;
}

static void softmax_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    bool is_log = call->op->id == OP_log_softmax;
    walk w;
    walk_start(&w, x->rank, x->dims);
    bool empty = w.left == 0;
    walk_skip(&w, axis);
    int at_x = walk_add(&w, x), at_out = walk_add(&w, out);
    for (; !empty && w.left > 0; walk_next(&w)) {
        line row = {x, w.offset[at_x], x->strides[axis], x->dims[axis]};
        double max = line_max(&row), sum = 0;
        for (int64_t i = 0; i < row.count; i++) sum += exp(line_at(&row, i) - max);
        for (int64_t i = 0; i < row.count; i++) {
            double value = line_at(&row, i) - max;
            value = is_log ? value - log(sum) : max == -INFINITY ? 0 : exp(value) / sum;
            op_store_at(out, w.offset[at_out] + i * out->strides[axis], value);
        }
    }
}

dw_status norm_reference(const op_call *call) {
    if (call->op->id == OP_group_norm) return group_reference(call);
    if (call->op->id == OP_layer_norm || call->op->id == OP_rms_norm) return rows_reference(call);
    softmax_reference(call);
    return DW_OK;
}

/* About five operations an element, and two more to quantise it. */
void norm_work(const op_call *call, op_work *work) { op_work_each(call, op_is_block(call->out[0]->format) ? 7 : 5, work); }
