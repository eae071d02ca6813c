/* Rules of reductions, scans, sorting and softmax. */
#include <math.h>
#include <string.h>

#include "capture/program.h"

static bool keeps(capture_call *call) {
    const capture_arg *keep = capture_find_arg(call, "keepdim");
    return keep != NULL && keep->kind == ARG_BOOL && keep->truth;
}

/* Over the axes of "dim", or all. */
static dw_status reduce(capture_call *call, op_id op, ir_value *x, ir_value **result) {
    int64_t axes[DW_MAX_RANK];
    int count;
    TRY(capture_axes_arg(call, "dim", x->type.rank, &count, axes));
    if (x->type.rank == 0) return *result = x, DW_OK;
    return capture_emit_reduce(call->graph, op, x, count, axes, keeps(call), result);
}

dw_status capture_rule_reduce(capture_call *call) {
    ir_value *x;
    op_id op = call->row->op;
    TRY(capture_value_arg(call, "self", &x));
    bool adds = op == OP_sum || op == OP_mean || op == OP_prod;
    if (adds) TRY(ir_emit_cast(call->graph, x, capture_result_format(call, 0, x->type.format), &x));
    if (op == OP_any || op == OP_all) TRY(ir_emit_cast(call->graph, x, DW_FORMAT_bool, &x));
    TRY(reduce(call, op, x, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_count_nonzero(capture_call *call) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    TRY(ir_emit_cast(call->graph, x, DW_FORMAT_bool, &x));
    TRY(ir_emit_cast(call->graph, x, DW_FORMAT_i64, &x));
    TRY(reduce(call, OP_sum, x, &x));
    return capture_result(call, 0, x);
}

/* The index of the extreme along one axis; over all elements the tensor is flattened first. */
static dw_status find_extreme(capture_call *call, op_id op, ir_value *x, ir_value **result) {
    int axis = 0;
    op_attr attrs[] = {op_set_int(OP_ATTR_axis, 0), op_set_bool(OP_ATTR_keep, true)};
    if (capture_has(call, "dim")) {
        TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    }
    if (!capture_has(call, "dim") || x->type.rank == 0) {
        dim all;
        TRY_DIM(call->capture->context, all, dim_product(call->dims, x->type.dims, x->type.rank));
        TRY(ir_emit_reshape(call->graph, x, 1, &all, &x));
    }
    attrs[0].integer = axis;
    return ir_emit(call->graph, op, 1, &x, keeps(call) && capture_has(call, "dim") ? 2 : 1, attrs, result);
}

dw_status capture_rule_arg_extreme(capture_call *call) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    TRY(find_extreme(call, call->row->op, x, &x));
    return capture_result(call, 0, x);
}

/* max.dim, min.dim: values and indices */
dw_status capture_rule_extreme(capture_call *call) {
    ir_value *x, *values, *indices;
    TRY(capture_value_arg(call, "self", &x));
    TRY(reduce(call, call->row->op, x, &values));
    TRY(find_extreme(call, call->row->op == OP_amax ? OP_argmax : OP_argmin, x, &indices));
    TRY(capture_result(call, 0, values));
    return capture_result(call, 1, indices);
}

/* ---- moments ---- */

/* The number of elements that a reduction over the axes adds, as a scalar. */
static dw_status reduced_count(capture_call *call, const op_type *type, int count, const int64_t *axes, double less, ir_value **result) {
    dim product;
    TRY_DIM(call->capture->context, product, dim_constant(call->dims, 1));
    for (int i = 0; i < count; i++) TRY_DIM(call->capture->context, product, dim_mul(call->dims, product, type->dims[axes[i]]));
    TRY(ir_emit_size(call->graph, product, result));
    TRY(ir_emit_cast(call->graph, *result, type->format, result));
    return less != 0 ? capture_emit_number(call->graph, OP_sub, *result, less, result) : DW_OK;
}

static dw_status read_correction(capture_call *call, double *correction) {
    bool unbiased = true;
    *correction = 1;
    if (capture_has(call, "correction")) return capture_real_arg(call, "correction", correction);
    if (capture_has(call, "unbiased")) TRY(capture_bool_arg(call, "unbiased", &unbiased));
    *correction = unbiased;
    return DW_OK;
}

/* sum((x - mean)^2) / (n - correction), and the mean */
static dw_status variance(capture_call *call, ir_value *x, ir_value **result, ir_value **mean) {
    int64_t axes[DW_MAX_RANK];
    int count;
    double correction;
    ir_value *kept, *n;
    TRY(read_correction(call, &correction));
    TRY(capture_axes_arg(call, "dim", x->type.rank, &count, axes));
    TRY(capture_emit_reduce(call->graph, OP_mean, x, count, axes, true, &kept));
    TRY(capture_emit_reduce(call->graph, OP_mean, x, count, axes, keeps(call), mean));
    TRY(ir_emit_2(call->graph, OP_sub, x, kept, &kept));
    TRY(ir_emit_2(call->graph, OP_mul, kept, kept, &kept));
    if (correction == 0) return capture_emit_reduce(call->graph, OP_mean, kept, count, axes, keeps(call), result);
    TRY(reduced_count(call, &x->type, count, axes, correction, &n));
    TRY(capture_emit_reduce(call->graph, OP_sum, kept, count, axes, keeps(call), &kept));
    return ir_emit_2(call->graph, OP_div, kept, n, result);
}

dw_status capture_rule_var(capture_call *call) {
    ir_value *x, *mean;
    TRY(capture_value_arg(call, "self", &x));
    TRY(variance(call, x, &x, &mean));
    TRY(capture_result(call, 0, x));
    return capture_result(call, 1, mean);
}

dw_status capture_rule_std(capture_call *call) {
    ir_value *x, *mean;
    TRY(capture_value_arg(call, "self", &x));
    TRY(variance(call, x, &x, &mean));
    TRY(ir_emit_1(call->graph, OP_sqrt, x, &x));
    return capture_result(call, 0, x);
}

/* max + log(sum(exp(x - max))) */
dw_status capture_rule_logsumexp(capture_call *call) {
    ir_value *x, *top, *kept;
    int64_t axes[DW_MAX_RANK];
    int count;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_axes_arg(call, "dim", x->type.rank, &count, axes));
    TRY(capture_emit_reduce(call->graph, OP_amax, x, count, axes, true, &kept));
    TRY(capture_emit_reduce(call->graph, OP_amax, x, count, axes, keeps(call), &top));
    TRY(ir_emit_2(call->graph, OP_sub, x, kept, &x));
    TRY(ir_emit_1(call->graph, OP_exp, x, &x));
    TRY(capture_emit_reduce(call->graph, OP_sum, x, count, axes, keeps(call), &x));
    TRY(ir_emit_1(call->graph, OP_log, x, &x));
    TRY(ir_emit_2(call->graph, OP_add, top, x, &x));
    return capture_result(call, 0, x);
}

/* The 1, 2 and infinity norms. */
dw_status capture_rule_vector_norm(capture_call *call) {
    ir_value *x;
    double order = 2;
    const char *name = capture_find_arg(call, "ord") != NULL ? "ord" : "p";
    TRY(capture_value_arg(call, "self", &x));
    if (capture_has(call, name)) TRY(capture_real_arg(call, name, &order));
    if (order == 2) {
        TRY(ir_emit_2(call->graph, OP_mul, x, x, &x));
        TRY(reduce(call, OP_sum, x, &x));
        TRY(ir_emit_1(call->graph, OP_sqrt, x, &x));
    } else if (order == 1 || isinf(order)) {
        TRY(ir_emit_1(call->graph, OP_abs, x, &x));
        TRY(reduce(call, order == 1 ? OP_sum : order > 0 ? OP_amax : OP_amin, x, &x));
    } else {
        return capture_fail(call, DW_UNSUPPORTED, "the %g-norm; 1, 2 and inf are supported", order);
    }
    return capture_result(call, 0, x);
}

/* ---- softmax ---- */

/* Along the last axis, where rows lie side by side. */
dw_status capture_rule_softmax(capture_call *call) {
    ir_value *x;
    int axis;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    TRY(ir_emit_cast(call->graph, x, capture_result_format(call, 0, x->type.format), &x));
    const int last = x->type.rank > 0 ? x->type.rank - 1 : 0;
    TRY(capture_emit_swap(call->graph, x, axis, last, &x));
    TRY(capture_emit_attr(call->graph, call->row->op, x, op_set_int(OP_ATTR_axis, last), &x));
    TRY(capture_emit_swap(call->graph, x, axis, last, &x));
    return capture_result(call, 0, x);
}

/* ---- scans and sorting ---- */

dw_status capture_rule_cumsum(capture_call *call) {
    ir_value *x;
    int axis;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    dw_format format = capture_result_format(call, 0, x->type.format);
    TRY(ir_emit_cast(call->graph, x, capture_is_float(format) ? format : DW_FORMAT_i64, &x));
    if (x->type.rank > 0) TRY(capture_emit_attr(call->graph, OP_cumsum, x, op_set_int(OP_ATTR_axis, axis), &x));
    return capture_result(call, 0, x);
}

/* x[1:] - x[:-1] along an axis, something before or after joined first */
dw_status capture_rule_diff(capture_call *call) {
    ir_value *parts[3], *x, *from, *to;
    int64_t n;
    int axis, count = 0;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_int_arg(call, "n", &n));
    TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    if (n != 1 || x->type.rank == 0) return capture_fail(call, DW_UNSUPPORTED, "differences of order %lld", (long long)n);
    if (capture_has(call, "prepend")) TRY(capture_operand_arg(call, "prepend", x->type.format, &parts[count++]));
    parts[count++] = x;
    if (capture_has(call, "append")) TRY(capture_operand_arg(call, "append", x->type.format, &parts[count++]));
    op_attr attr = op_set_int(OP_ATTR_axis, axis);
    if (count > 1) TRY(ir_emit(call->graph, OP_concat, count, parts, 1, &attr, &x));
    dim size = x->type.dims[axis], zero, one, last;
    TRY_DIM(call->capture->context, zero, dim_constant(call->dims, 0));
    TRY_DIM(call->capture->context, one, dim_constant(call->dims, 1));
    TRY_DIM(call->capture->context, last, dim_sub(call->dims, size, one));
    TRY(ir_emit_slice(call->graph, x, axis, one, size, 1, &from));
    TRY(ir_emit_slice(call->graph, x, axis, zero, last, 1, &to));
    TRY(ir_emit_2(call->graph, from->type.format == DW_FORMAT_bool ? OP_xor : OP_sub, from, to, &x));
    return capture_result(call, 0, x);
}

/* values and indices; argsort has the indices alone */
static dw_status sort(capture_call *call, ir_value **x, ir_value **indices) {
    int axis;
    bool descending;
    TRY(capture_value_arg(call, "self", x));
    TRY(capture_axis_arg(call, "dim", (*x)->type.rank, &axis));
    TRY(capture_bool_arg(call, "descending", &descending));
    if ((*x)->type.rank == 0) return capture_fail(call, DW_UNSUPPORTED, "a tensor without axes");
    op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_bool(OP_ATTR_descending, true)};
    TRY(ir_emit(call->graph, OP_sort, 1, (ir_value *[]){*x}, descending ? 2 : 1, attrs, x));
    *indices = (*x)->node->out[1];
    return DW_OK;
}

dw_status capture_rule_sort(capture_call *call) {
    ir_value *x, *indices;
    TRY(sort(call, &x, &indices));
    TRY(capture_result(call, 0, x));
    return capture_result(call, 1, indices);
}

dw_status capture_rule_argsort(capture_call *call) {
    ir_value *x, *indices;
    TRY(sort(call, &x, &indices));
    return capture_result(call, 0, indices);
}

dw_status capture_rule_topk(capture_call *call) {
    ir_value *x;
    dim length;
    int axis;
    bool largest;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_dim_arg(call, "k", &length));
    TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    TRY(capture_bool_arg(call, "largest", &largest));
    if (x->type.rank == 0) return capture_fail(call, DW_UNSUPPORTED, "a tensor without axes");
    op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_dim(OP_ATTR_length, length), op_set_bool(OP_ATTR_largest, true)};
    TRY(ir_emit(call->graph, OP_topk, 1, (ir_value *[]){x}, largest ? 3 : 2, attrs, &x));
    TRY(capture_result(call, 0, x));
    return capture_result(call, 1, x->node->out[1]);
}

/* ---- counting ---- */

static dw_status count_integers(capture_call *call, ir_value *x, dim length) {
    dim all;
    TRY(ir_emit_cast(call->graph, x, DW_FORMAT_i64, &x));
    TRY_DIM(call->capture->context, all, dim_product(call->dims, x->type.dims, x->type.rank));
    TRY(ir_emit_reshape(call->graph, x, 1, &all, &x));
    TRY(capture_emit_attr(call->graph, OP_bincount, x, op_set_dim(OP_ATTR_length, length), &x));
    return capture_result(call, 0, x);
}

/* n bins over [0, n - 1] count the integers below n, each in a bin of its own. */
dw_status capture_rule_histc(capture_call *call) {
    ir_value *x;
    double min, max;
    int64_t bins;
    dim length;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_int_arg(call, "bins", &bins));
    TRY(capture_real_arg(call, "min", &min));
    TRY(capture_real_arg(call, "max", &max));
    if (min != 0 || max != (double)(bins - 1) || bins < 1) return capture_fail(call, DW_UNSUPPORTED, "%lld bins over [%g, %g]; only integers from 0 to bins - 1 are counted", (long long)bins, min, max);
    TRY_DIM(call->capture->context, length, dim_constant(call->dims, bins));
    return count_integers(call, x, length);
}

dw_status capture_rule_bincount(capture_call *call) {
    ir_value *x;
    TRY(capture_value_arg(call, "self", &x));
    if (capture_has(call, "weights")) return capture_fail(call, DW_UNSUPPORTED, "weights");
    if (call->result_count < 1 || call->types[0].rank != 1 || !dim_is_constant(call->types[0].dims[0], NULL)) return capture_fail(call, DW_UNSUPPORTED, "a number of bins that depends on the data");
    return count_integers(call, x, call->types[0].dims[0]);
}

/* x[.., None] == 0, 1, .., classes - 1 */
dw_status capture_rule_one_hot(capture_call *call) {
    ir_value *x, *classes;
    int64_t count;
    dim length;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_int_arg(call, "num_classes", &count));
    if (count < 0) return capture_fail(call, DW_UNSUPPORTED, "a number of classes that depends on the data");
    TRY_DIM(call->capture->context, length, dim_constant(call->dims, count));
    TRY(capture_emit_unsqueeze(call->graph, x, x->type.rank, &x));
    TRY(capture_emit_index(call->graph, 1, 0, length, x->type.format, &classes));
    TRY(ir_emit_2(call->graph, OP_eq, x, classes, &x));
    return capture_result(call, 0, x);
}
