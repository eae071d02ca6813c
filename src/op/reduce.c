/* Reductions over axes. Sums of bool and integers are i64, as in PyTorch; floating-point ones accumulate in double, row-major, and are rounded once. */
#include "op/family.h"

#include <math.h>

typedef struct reduce_row {
    double real_start;
    double (*real)(double sum, double x);
    int64_t int_start;
    int64_t (*integer)(int64_t sum, int64_t x);
} reduce_row;

static double real_sum(double sum, double x) { return sum + x; }
static double real_prod(double sum, double x) { return sum * x; }
static double real_max(double sum, double x) { return isnan(sum) || sum > x ? sum : x; }
static double real_min(double sum, double x) { return isnan(sum) || sum < x ? sum : x; }
static double real_any(double sum, double x) { return sum != 0 || x != 0; }
static double real_all(double sum, double x) { return sum != 0 && x != 0; }
static int64_t int_sum(int64_t sum, int64_t x) { return (int64_t)((uint64_t)sum + (uint64_t)x); }
static int64_t int_prod(int64_t sum, int64_t x) { return (int64_t)((uint64_t)sum * (uint64_t)x); }
static int64_t int_max(int64_t sum, int64_t x) { return sum > x ? sum : x; }
static int64_t int_min(int64_t sum, int64_t x) { return sum < x ? sum : x; }
static int64_t int_any(int64_t sum, int64_t x) { return sum != 0 || x != 0; }
static int64_t int_all(int64_t sum, int64_t x) { return sum != 0 && x != 0; }

static const reduce_row rows[OP_COUNT] = {
    [OP_sum] = {0, real_sum, 0, int_sum},
    [OP_mean] = {0, real_sum, 0, NULL},
    [OP_prod] = {1, real_prod, 1, int_prod},
    [OP_amax] = {-INFINITY, real_max, INT64_MIN, int_max},
    [OP_amin] = {INFINITY, real_min, INT64_MAX, int_min},
    [OP_any] = {0, real_any, 0, int_any},
    [OP_all] = {1, real_all, 1, int_all},
};

/* With finite=true, instead of an index: as the ids of the op sample. */
enum { REDUCE_NO_NUMBER = -1, REDUCE_LOWEST = -2 };

static bool finds_index(op_id id) { return id == OP_argmax || id == OP_argmin; }

static bool needs_elements(op_id id) { return finds_index(id) || id == OP_amax || id == OP_amin; }

/* Marks the axes to be reduced. */
static dw_status reduced_axes(op_infer *infer, int rank, bool reduced[DW_MAX_RANK]) {
    for (int i = 0; i < DW_MAX_RANK; i++) reduced[i] = false;
    const int64_t one = op_attr_int(infer->attrs, OP_ATTR_axis), *axes = &one;
    int count = finds_index(infer->op->id) ? 1 : op_attr_ints(infer->attrs, OP_ATTR_axes, &axes);
    for (int i = 0; i < count; i++) {
        TRY(op_check_axis(infer, axes[i], rank));
        if (i > 0 && axes[i] <= axes[i - 1]) return base_fail(infer->context, DW_INVALID, "%s: axes must ascend", infer->op->name);
        reduced[axes[i]] = true;
    }
    return DW_OK;
}

/* The format that the result is asked for in. */
static dw_status check_to(op_infer *infer) {
    const dw_format to = op_attr_format(infer->attrs, OP_ATTR_to), from = infer->out->format;
    if (to == DW_FORMAT_COUNT) return DW_OK;
    infer->out->format = to;
    if (num_info(to)->class == NUM_FLOAT && num_info(to)->bits >= 16 && num_info(from)->class == NUM_FLOAT) return DW_OK;
    return base_fail(infer->context, DW_INVALID, "%s: to is %s and x is %s: both must be floating-point, of 16 bits or more", infer->op->name, dw_format_name(to), dw_format_name(infer->in[0]->format));
}

dw_status reduce_infer(op_infer *infer) {
    const op_type *x = infer->in[0];
    op_id id = infer->op->id;
    bool reduced[DW_MAX_RANK], keep = op_attr_bool(infer->attrs, OP_ATTR_keep);
    TRY(op_check_number(infer, "x", x));
    if (id == OP_mean) TRY(op_check_float(infer, "x", x));
    TRY(reduced_axes(infer, x->rank, reduced));
    bool is_sum = id == OP_sum || id == OP_prod;
    infer->out->format = infer->op->traits & OP_TRAIT_PREDICATE                                 ? DW_FORMAT_bool
                         : finds_index(id) || (is_sum && op_is_integer(x->format)) ? DW_FORMAT_i64
                                                                                                : x->format;
    TRY(check_to(infer));
    dim one;
    TRY_DIM(infer->context, one, dim_constant(infer->dims, 1));
    for (int i = 0; i < x->rank; i++) {
        int64_t size;
        if (reduced[i] && needs_elements(id) && dim_is_constant(x->dims[i], &size) && size == 0)
            return base_fail(infer->context, DW_INVALID, "%s: axis %d has size 0 and so no element to name", infer->op->name, i);
        if (!reduced[i]) TRY(op_add_axis(infer, infer->out, x->dims[i]));
        else if (keep) TRY(op_add_axis(infer, infer->out, one));
    }
    return DW_OK;
}

/* A walk over the results that knows where in x each one's elements begin, and the walk over those. */
typedef struct reduction {
    walk outer;
    int at_x, at_out;
    int rank;
    int64_t inner_dims[DW_MAX_RANK], strides[DW_MAX_RANK], count;
} reduction;

static void reduction_start(const op_call *call, reduction *r) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    const int64_t one = op_attr_int(call->attrs, OP_ATTR_axis), *axes = &one;
    int count = finds_index(call->op->id) ? 1 : op_attr_ints(call->attrs, OP_ATTR_axes, &axes);
    bool keep = op_attr_bool(call->attrs, OP_ATTR_keep);
    int64_t outer_dims[DW_MAX_RANK], out_strides[DW_MAX_RANK] = {0};
    r->rank = x->rank;
    r->count = 1;
    for (int i = 0, next = 0, of_out = 0; i < x->rank; i++) {
        bool reduced = next < count && axes[next] == i;
        next += reduced;
        outer_dims[i] = reduced ? 1 : x->dims[i];
        r->inner_dims[i] = reduced ? x->dims[i] : 1;
        r->count *= r->inner_dims[i];
        r->strides[i] = x->strides[i];
        if (!reduced) out_strides[i] = out->strides[of_out];
        if (!reduced || keep) of_out++;
    }
    walk_start(&r->outer, x->rank, outer_dims);
    r->at_x = walk_add_strides(&r->outer, r->strides);
    r->at_out = walk_add_strides(&r->outer, out_strides);
}

static walk reduction_elements(const reduction *r) {
    walk w;
    walk_start(&w, r->rank, r->inner_dims);
    walk_add_strides(&w, r->strides);
    return w;
}

static double reduce_reals(const op_call *call, const reduction *r) {
    const reduce_row *row = &rows[call->op->id];
    double sum = row->real_start;
    for (walk w = reduction_elements(r); w.left > 0; walk_next(&w))
        sum = row->real(sum, op_load_at(call->in[0], r->outer.offset[r->at_x] + w.offset[0]));
    return call->op->id == OP_mean ? sum / (double)r->count : sum;
}

static int64_t reduce_integers(const op_call *call, const reduction *r) {
    const reduce_row *row = &rows[call->op->id];
    int64_t sum = row->int_start;
    for (walk w = reduction_elements(r); w.left > 0; walk_next(&w))
        sum = row->integer(sum, op_load_int_at(call->in[0], r->outer.offset[r->at_x] + w.offset[0]));
    return sum;
}

/* The first largest (smallest); NaN counts as the largest of the largest and the smallest of the smallest. */
static int64_t reduce_index(const op_call *call, const reduction *r) {
    const dw_tensor *x = call->in[0];
    bool integer = op_is_integer(x->format), largest = call->op->id == OP_argmax;
    int64_t found = 0, index = 0, best_int = 0;
    double best = 0;
    for (walk w = reduction_elements(r); w.left > 0; walk_next(&w), index++) {
        int64_t offset = r->outer.offset[r->at_x] + w.offset[0];
        int64_t value_int = integer ? op_load_int_at(x, offset) : 0;
        double value = integer ? 0 : op_load_at(x, offset);
        bool better = integer ? (largest ? value_int > best_int : value_int < best_int)
                              : !isnan(best) && (isnan(value) || (largest ? value > best : value < best));
        if (index > 0 && !better) continue;
        found = index;
        best = value;
        best_int = value_int;
    }
    if (op_attr_bool(call->attrs, OP_ATTR_finite) && !isfinite(best)) return best < 0 ? REDUCE_LOWEST : REDUCE_NO_NUMBER;
    return found;
}

dw_status reduce_reference(const op_call *call) {
    const dw_tensor *out = call->out[0];
    bool by_index = finds_index(call->op->id), integer = op_is_integer(call->in[0]->format);
    reduction r;
    reduction_start(call, &r);
    if (r.count == 0 && r.outer.left > 0 && needs_elements(call->op->id))
        return base_fail(call->context, DW_INVALID, "%s: the reduced axes have size 0 and so no element to name", call->op->name);
    for (; r.outer.left > 0; walk_next(&r.outer)) {
        int64_t at = r.outer.offset[r.at_out];
        if (by_index) op_store_int_at(out, at, reduce_index(call, &r));
        else if (integer) op_store_int_at(out, at, reduce_integers(call, &r));
        else op_store_at(out, at, reduce_reals(call, &r));
    }
    return DW_OK;
}

/* An operation for each element read. */
void reduce_work(const op_call *call, op_work *work) {
    op_work_each(call, 0, work);
    work->flops = (double)op_tensor_count(call->in[0]);
}
