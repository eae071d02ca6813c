/* Rules that join, repeat, pad, look up and write at indices. */
#include <math.h>
#include <string.h>

#include "capture/program.h"

/* ---- joining ---- */

enum { CONCAT_MAX = 64 };   /* operands of one concat */

static dw_status concat(ir_graph *graph, int count, ir_value **values, int axis, ir_value **result) {
    while (count > 1) {
        int joined = 0;
        for (int i = 0; i < count; i += CONCAT_MAX) {
            int n = count - i < CONCAT_MAX ? count - i : CONCAT_MAX;
            op_attr attr = op_set_int(OP_ATTR_axis, axis);
            ir_value *part = values[i];
            if (n > 1) TRY(ir_emit(graph, OP_concat, n, values + i, 1, &attr, &part));
            values[joined++] = part;
        }
        count = joined;
    }
    *result = values[0];
    return DW_OK;
}

/* The tensors in one format. PyTorch lets empty tensors of one axis join anything: they are left out. */
static dw_status read_parts(capture_call *call, int *count, ir_value ***values) {
    capture_tensor *const *tensors;
    int given;
    TRY(capture_tensors_arg(call, "tensors", &given, &tensors));
    TRY_NEW(*values, &call->capture->arena, given);
    *count = 0;
    if (given == 0 || tensors[0] == NULL) return capture_fail(call, DW_CORRUPT, "no tensors to join");
    dw_format format = tensors[0]->type.format;
    for (int i = 1; i < given; i++) {
        if (tensors[i] == NULL) return capture_fail(call, DW_CORRUPT, "tensor %d of the list is missing", i);
        format = capture_promote(format, tensors[0]->type.rank, tensors[i]->type.format, tensors[0]->type.rank);
    }
    format = capture_result_format(call, 0, format);
    for (int i = 0; i < given; i++) {
        const op_type *type = &tensors[i]->type;
        if (type->rank == 1 && capture_dim_is(type->dims[0], 0) && given > 1) continue;
        ir_value *value;
        TRY(capture_read(call->capture, tensors[i], &value));
        TRY(ir_emit_cast(call->graph, value, format, &(*values)[(*count)++]));
    }
    return *count > 0 ? DW_OK : capture_fail(call, DW_UNSUPPORTED, "only empty tensors are joined");
}

dw_status capture_rule_cat(capture_call *call) {
    ir_value **values, *joined;
    int count, axis;
    TRY(read_parts(call, &count, &values));
    TRY(capture_axis_arg(call, "dim", values[0]->type.rank, &axis));
    TRY(concat(call->graph, count, values, axis, &joined));
    return capture_result(call, 0, joined);
}

dw_status capture_rule_stack(capture_call *call) {
    ir_value **values, *joined;
    int count, axis;
    TRY(read_parts(call, &count, &values));
    TRY(capture_axis_arg(call, "dim", values[0]->type.rank + 1, &axis));
    for (int i = 0; i < count; i++) TRY(capture_emit_unsqueeze(call->graph, values[i], axis, &values[i]));
    TRY(concat(call->graph, count, values, axis, &joined));
    return capture_result(call, 0, joined);
}

/* ---- repeating ---- */

/* Axis repeated as a whole (outer) or element by element: an axis more, broadcast, merged. */
static dw_status repeat_axis(ir_graph *graph, ir_value *x, int axis, dim times, bool outer, ir_value **result) {
    dim dims[DW_MAX_RANK + 1], merged[DW_MAX_RANK];
    int rank = x->type.rank, at = outer ? axis : axis + 1;
    for (int i = 0; i < rank; i++) merged[i] = x->type.dims[i];
    TRY_DIM(graph->context, merged[axis], dim_mul(graph->dims, x->type.dims[axis], times));
    TRY(capture_emit_unsqueeze(graph, x, at, &x));
    for (int i = 0; i <= rank; i++) dims[i] = i == at ? times : x->type.dims[i];
    TRY(ir_emit_broadcast(graph, x, rank + 1, dims, &x));
    return ir_emit_reshape(graph, x, rank, merged, result);
}

dw_status capture_rule_repeat(capture_call *call) {
    ir_value *x;
    const dim *times;
    dim dims[DW_MAX_RANK];
    int count;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_dims_arg(call, call->arg_names[1], &count, &times));
    int rank = count > x->type.rank ? count : x->type.rank, own = rank - x->type.rank;
    if (rank > DW_MAX_RANK) return capture_fail(call, DW_UNSUPPORTED, "a tensor with %d axes; at most %d are supported", rank, DW_MAX_RANK);
    for (int i = 0; i < rank; i++) {
        if (i >= own) dims[i] = x->type.dims[i - own];
        else TRY_DIM(call->capture->context, dims[i], dim_constant(call->dims, 1));
    }
    TRY(ir_emit_reshape(call->graph, x, rank, dims, &x));
    for (int i = 0; i < count; i++) {
        int axis = rank - count + i;
        if (!capture_dim_is(times[i], 1)) TRY(repeat_axis(call->graph, x, axis, times[i], true, &x));
    }
    return capture_result(call, 0, x);
}

dw_status capture_rule_repeat_interleave(capture_call *call) {
    ir_value *x;
    dim times;
    int axis = 0;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_dim_arg(call, "repeats", &times));
    if (capture_has(call, "dim")) {
        TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    } else {
        dim all;
        TRY_DIM(call->capture->context, all, dim_product(call->dims, x->type.dims, x->type.rank));
        TRY(ir_emit_reshape(call->graph, x, 1, &all, &x));
    }
    if (x->type.rank == 0) return capture_fail(call, DW_UNSUPPORTED, "a tensor without axes");
    TRY(repeat_axis(call->graph, x, axis, times, false, &x));
    return capture_result(call, 0, x);
}

/* [size - shift, size) before [0, size - shift) */
static dw_status roll_axis(capture_call *call, ir_value *x, int axis, int64_t shift, ir_value **result) {
    dim size = x->type.dims[axis], zero, cut;
    int64_t known;
    ir_value *parts[2];
    *result = x;
    if (dim_is_constant(size, &known)) {
        shift = known > 0 ? shift % known : 0;
        if (shift < 0) shift += known;
    }
    if (shift == 0) return DW_OK;
    if (shift == INT64_MIN) return capture_fail(call, DW_CORRUPT, "a shift of %lld", (long long)shift);
    TRY_DIM(call->capture->context, zero, dim_constant(call->dims, 0));
    TRY_DIM(call->capture->context, cut, dim_constant(call->dims, -shift));
    if (shift > 0) TRY_DIM(call->capture->context, cut, dim_add(call->dims, size, cut));
    TRY(ir_emit_slice(call->graph, x, axis, cut, size, 1, &parts[0]));
    TRY(ir_emit_slice(call->graph, x, axis, zero, cut, 1, &parts[1]));
    return concat(call->graph, 2, parts, axis, result);
}

dw_status capture_rule_roll(capture_call *call) {
    ir_value *x;
    int64_t shifts[DW_MAX_RANK], axes[DW_MAX_RANK];
    int count, count_axes = 0;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_ints_arg(call, "shifts", &count, shifts));
    if (capture_has(call, "dims")) TRY(capture_ints_arg(call, "dims", &count_axes, axes));
    if (count != count_axes) return capture_fail(call, DW_UNSUPPORTED, "a roll over the flattened tensor; name the axes");
    for (int i = 0; i < count; i++) {
        if (axes[i] < 0) axes[i] += x->type.rank;
        if (axes[i] < 0 || axes[i] >= x->type.rank) return capture_fail(call, DW_CORRUPT, "dims names no axis");
        TRY(roll_axis(call, x, (int)axes[i], shifts[i], &x));
    }
    return capture_result(call, 0, x);
}

static dw_status take(ir_graph *graph, ir_value *x, ir_value *index, int axis, ir_value **result) {
    op_attr attr = op_set_int(OP_ATTR_axis, axis);
    return ir_emit(graph, OP_take, 2, (ir_value *[]){x, index}, 1, &attr, result);
}

dw_status capture_rule_flip(capture_call *call) {
    ir_value *x;
    int64_t axes[DW_MAX_RANK];
    int count;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_axes_arg(call, "dims", x->type.rank, &count, axes));
    for (int i = 0; i < count; i++) TRY(capture_emit_flip(call->graph, x, (int)axes[i], &x));
    return capture_result(call, 0, x);
}

/* ---- padding ---- */

/* Pairs (before, after) from the last axis on; negative ones cut. */
dw_status capture_rule_pad(capture_call *call) {
    ir_value *x;
    const dim *pairs;
    const char *mode = "constant";
    double value = 0;
    int count;
    dim before[DW_MAX_RANK], after[DW_MAX_RANK], zero;
    bool pads = false;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_dims_arg(call, "pad", &count, &pairs));
    if (capture_has(call, "mode")) TRY(capture_text_arg(call, "mode", &mode));
    if (strcmp(mode, "constant") != 0) return capture_pad_by_mode(call, mode);
    if (capture_has(call, "value")) TRY(capture_real_arg(call, "value", &value));
    if (count % 2 != 0 || count / 2 > x->type.rank) return capture_fail(call, DW_CORRUPT, "%d numbers for %d axes", count, x->type.rank);
    TRY_DIM(call->capture->context, zero, dim_constant(call->dims, 0));
    for (int i = 0; i < x->type.rank; i++) before[i] = after[i] = zero;
    for (int i = 0; i < count / 2; i++) {
        int axis = x->type.rank - 1 - i;
        dim begin = zero, end = x->type.dims[axis];
        if (dim_always_lt(call->dims, pairs[2 * i], zero)) TRY_DIM(call->capture->context, begin, dim_sub(call->dims, zero, pairs[2 * i]));
        else before[axis] = pairs[2 * i];
        if (dim_always_lt(call->dims, pairs[2 * i + 1], zero)) TRY_DIM(call->capture->context, end, dim_add(call->dims, end, pairs[2 * i + 1]));
        else after[axis] = pairs[2 * i + 1];
        if (begin != zero || end != x->type.dims[axis]) TRY(ir_emit_slice(call->graph, x, axis, begin, end, 1, &x));
        pads = pads || before[axis] != zero || after[axis] != zero;
    }
    op_attr attrs[] = {op_set_dims(OP_ATTR_before, x->type.rank, before), op_set_dims(OP_ATTR_after, x->type.rank, after), op_set_real(OP_ATTR_value, value)};
    if (pads) TRY(ir_emit(call->graph, OP_pad, 1, (ir_value *[]){x}, COUNT_OF(attrs), attrs, &x));
    return capture_result(call, 0, x);
}

/* ---- lookups ---- */

static dw_status integer_index(capture_call *call, ir_value *index, ir_value **result) {
    if (index->type.format == DW_FORMAT_bool) return capture_fail(call, DW_UNSUPPORTED, "a boolean mask as index: the size of its result depends on the data");
    return ir_emit_cast(call->graph, index, index->type.format == DW_FORMAT_u8 ? DW_FORMAT_i64 : index->type.format, result);
}

dw_status capture_rule_embedding(capture_call *call) {
    ir_value *weight, *index;
    TRY(capture_value_arg(call, "weight", &weight));
    TRY(capture_value_arg(call, "indices", &index));
    int64_t padding, rows;
    TRY(capture_int_arg(call, "padding_idx", &padding));
    if (padding < 0 && padding != -1 && dim_is_constant(weight->type.dims[0], &rows)) padding += rows;     /* torch.export writes none as -1 */
    TRY(integer_index(call, index, &index));
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, 0), op_set_int(OP_ATTR_frozen, padding)};
    TRY(ir_emit(call->graph, OP_take, 2, (ir_value *[]){weight, index}, padding < 0 ? 1 : 2, attrs, &index));
    return capture_result(call, 0, index);
}

dw_status capture_rule_index_select(capture_call *call) {
    ir_value *x, *index;
    int axis;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    TRY(capture_value_arg(call, "index", &index));
    TRY(take(call->graph, x, index, axis, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_gather(capture_call *call) {
    ir_value *x, *index;
    int axis;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    TRY(capture_value_arg(call, "index", &index));
    op_attr attr = op_set_int(OP_ATTR_axis, axis);
    TRY(ir_emit(call->graph, OP_gather, 2, (ir_value *[]){x, index}, 1, &attr, &x));
    return capture_result(call, 0, x);
}

/* Index tensors by axis; absent axes are taken whole. */
typedef struct places {
    int count, first;               /* of the index tensors, and their first axis */
    bool neighbours;                /* their axes follow one another */
    int axes[DW_MAX_RANK];
    ir_value *index[DW_MAX_RANK];
} places;

static dw_status read_places(capture_call *call, int rank, places *at) {
    capture_tensor *const *tensors;
    int given;
    TRY(capture_tensors_arg(call, "indices", &given, &tensors));
    if (given > rank) return capture_fail(call, DW_CORRUPT, "%d indices for %d axes", given, rank);
    *at = (places){.neighbours = true};
    for (int i = 0; i < given; i++) {
        if (tensors[i] == NULL) continue;
        ir_value *index;
        TRY(capture_read(call->capture, tensors[i], &index));
        TRY(integer_index(call, index, &index));
        if (at->count > 0 && at->axes[at->count - 1] != i - 1) at->neighbours = false;
        at->axes[at->count] = i;
        at->index[at->count++] = index;
    }
    at->first = at->count > 0 ? at->axes[0] : 0;
    return DW_OK;
}

/* Indexed axes first, then the others, as PyTorch has it when they are not neighbours. */
static void order_places(const places *at, int rank, int64_t *order) {
    int next = at->count;
    for (int i = 0; i < at->count; i++) order[i] = at->axes[i];
    for (int i = 0; i < rank; i++) {
        bool indexed = false;
        for (int k = 0; k < at->count; k++) indexed = indexed || at->axes[k] == i;
        if (!indexed) order[next++] = i;
    }
}

dw_status capture_rule_index(capture_call *call) {
    ir_value *in[DW_MAX_RANK + 1], *x;
    places at;
    TRY(capture_value_arg(call, "self", &x));
    TRY(read_places(call, x->type.rank, &at));
    if (at.count == 0) return capture_result(call, 0, x);
    if (!at.neighbours) {
        int64_t order[DW_MAX_RANK];
        order_places(&at, x->type.rank, order);
        TRY(ir_emit_transpose(call->graph, x, order, &x));
        at.first = 0;
    }
    in[0] = x;
    for (int i = 0; i < at.count; i++) in[i + 1] = at.index[i];
    op_attr attr = op_set_int(OP_ATTR_axis, at.first);
    TRY(ir_emit(call->graph, at.count == 1 ? OP_take : OP_index, at.count + 1, in, 1, &attr, &x));
    return capture_result(call, 0, x);
}

/* ---- writes at indices ---- */

static dw_status index_put(ir_graph *graph, ir_value *x, ir_value *values, int count, ir_value *const *index, int axis, bool accumulate, ir_value **result) {
    ir_value *in[DW_MAX_RANK + 2] = {x, values};
    op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_bool(OP_ATTR_accumulate, true)};
    for (int i = 0; i < count; i++) in[i + 2] = index[i];
    return ir_emit(graph, OP_index_put, count + 2, in, accumulate ? 2 : 1, attrs, result);
}

/* x[mask] = one value for all, or rows in order. mask covers the leading axes of x. */
static dw_status masked_put(capture_call *call, ir_value *x, ir_value *mask, ir_value *value) {
    dim dims[DW_MAX_RANK];
    if (mask->type.rank > x->type.rank) return capture_fail(call, DW_CORRUPT, "a mask with more axes than what it is for");
    if (value->type.rank == x->type.rank - mask->type.rank + 1 && !capture_dim_is(value->type.dims[0], 1)) {
        TRY(capture_emit_masked_rows(call, x, mask, value, &x));
        return capture_result(call, 0, x);
    }
    while (value->type.rank > x->type.rank - mask->type.rank) TRY(capture_emit_squeeze(call->graph, value, 0, &value));
    for (int i = 0; i < x->type.rank; i++) {
        if (i < mask->type.rank) dims[i] = mask->type.dims[i];
        else TRY_DIM(call->capture->context, dims[i], dim_constant(call->dims, 1));
    }
    TRY(ir_emit_reshape(call->graph, mask, x->type.rank, dims, &mask));
    TRY(ir_emit(call->graph, OP_where, 3, (ir_value *[]){mask, value, x}, 0, NULL, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_index_put(capture_call *call) {
    ir_value *x, *values;
    capture_tensor *const *tensors;
    int given;
    bool accumulate;
    places at;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_operand_arg(call, "values", x->type.format, &values));
    TRY(capture_bool_arg(call, "accumulate", &accumulate));
    TRY(capture_tensors_arg(call, "indices", &given, &tensors));
    if (given == 1 && tensors[0] != NULL && tensors[0]->type.format == DW_FORMAT_bool && !accumulate) {
        ir_value *mask;
        TRY(capture_read(call->capture, tensors[0], &mask));
        return masked_put(call, x, mask, values);
    }
    TRY(read_places(call, x->type.rank, &at));
    if (at.count == 0) return capture_fail(call, DW_UNSUPPORTED, "a write without indices");
    if (at.neighbours) {
        TRY(index_put(call->graph, x, values, at.count, at.index, at.first, accumulate, &x));
        return capture_result(call, 0, x);
    }
    int64_t order[DW_MAX_RANK], back[DW_MAX_RANK];
    order_places(&at, x->type.rank, order);
    for (int i = 0; i < x->type.rank; i++) back[order[i]] = i;
    TRY(ir_emit_transpose(call->graph, x, order, &x));
    TRY(index_put(call->graph, x, values, at.count, at.index, 0, accumulate, &x));
    TRY(ir_emit_transpose(call->graph, x, back, &x));
    return capture_result(call, 0, x);
}

/* Whole slices along one axis are written, or added with a factor. */
static dw_status index_along(capture_call *call, const char *source, bool accumulate) {
    ir_value *x, *index, *values;
    double alpha = 1;
    int axis;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    TRY(capture_value_arg(call, "index", &index));
    if (index->type.rank == 0) TRY(capture_emit_unsqueeze(call->graph, index, 0, &index));
    TRY(capture_operand_arg(call, source, x->type.format, &values));
    if (capture_has(call, "alpha")) TRY(capture_real_arg(call, "alpha", &alpha));
    if (alpha != 1) TRY(capture_emit_number(call->graph, OP_mul, values, alpha, &values));
    TRY(index_put(call->graph, x, values, 1, &index, axis, accumulate, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_index_copy(capture_call *call) { return index_along(call, "source", false); }
dw_status capture_rule_index_add(capture_call *call) { return index_along(call, "source", true); }
dw_status capture_rule_index_fill(capture_call *call) { return index_along(call, "value", false); }

static dw_status scatter(capture_call *call, bool accumulate) {
    ir_value *x, *index, *values;
    int axis;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    TRY(capture_value_arg(call, "index", &index));
    const char *name = capture_find_arg(call, "src") != NULL ? "src" : "value";
    TRY(capture_operand_arg(call, name, x->type.format, &values));
    if (values->type.rank != index->type.rank) TRY(ir_emit_broadcast(call->graph, values, index->type.rank, index->type.dims, &values));
    op_attr attrs[] = {op_set_int(OP_ATTR_axis, axis), op_set_bool(OP_ATTR_accumulate, true)};
    TRY(ir_emit(call->graph, OP_scatter, 3, (ir_value *[]){x, index, values}, accumulate ? 2 : 1, attrs, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_scatter(capture_call *call) { return scatter(call, false); }
dw_status capture_rule_scatter_add(capture_call *call) { return scatter(call, true); }

/* Along an axis: which of the elements of index are i, for each i of x: [.., n, m], and src likewise with identity elsewhere. */
static dw_status spread_by_index(capture_call *call, const ir_value *x, int axis, ir_value *index, ir_value *src, double identity, ir_value **hits, ir_value **parts) {
    ir_value *at, *other;
    TRY(capture_emit_index(call->graph, x->type.rank + 1, axis, x->type.dims[axis], index->type.format, &at));
    TRY(capture_emit_unsqueeze(call->graph, index, axis, &index));
    TRY(capture_emit_unsqueeze(call->graph, src, axis, &src));
    TRY(ir_emit_2(call->graph, OP_eq, index, at, hits));
    TRY(ir_emit_scalar(call->graph, src->type.format, identity, &other));
    return ir_emit(call->graph, OP_where, 3, (ir_value *[]){*hits, src, other}, 0, NULL, parts);
}

static dw_status read_scatter(capture_call *call, ir_value **x, ir_value **index, ir_value **src, int *axis) {
    TRY(capture_value_arg(call, "self", x));
    TRY(capture_axis_arg(call, "dim", (*x)->type.rank, axis));
    TRY(capture_value_arg(call, "index", index));
    TRY(capture_operand_arg(call, "src", (*x)->type.format, src));
    for (int i = 0; i < (*index)->type.rank; i++) {
        dim zero;
        if (i != *axis && (*index)->type.dims[i] != (*x)->type.dims[i]) return capture_fail(call, DW_UNSUPPORTED, "an index that does not reach over axis %d", i);
        TRY_DIM(call->capture->context, zero, dim_constant(call->dims, 0));
        if ((*src)->type.dims[i] != (*index)->type.dims[i]) TRY(ir_emit_slice(call->graph, *src, i, zero, (*index)->type.dims[i], 1, src));
    }
    return DW_OK;
}

/* Sums are the op; what else is gathered at one place is reduced over a table of hits. */
dw_status capture_rule_scatter_reduce(capture_call *call) {
    static const struct { const char *name; op_id reduce, join; double identity; } kinds[] = {
        {"sum", OP_sum, OP_add, 0}, {"add", OP_sum, OP_add, 0}, {"mean", OP_sum, OP_add, 0}, {"prod", OP_prod, OP_mul, 1}, {"multiply", OP_prod, OP_mul, 1},
        {"amax", OP_amax, OP_maximum, -INFINITY}, {"amin", OP_amin, OP_minimum, INFINITY}};
    const char *reduce;
    bool include = true;
    ir_value *x, *index, *src, *hits, *parts, *any, *count;
    int axis;
    size_t kind = 0;
    TRY(capture_text_arg(call, "reduce", &reduce));
    if (capture_has(call, "include_self")) TRY(capture_bool_arg(call, "include_self", &include));
    while (kind < COUNT_OF(kinds) && strcmp(kinds[kind].name, reduce) != 0) kind++;
    if (kind == COUNT_OF(kinds)) return capture_fail(call, DW_UNSUPPORTED, "reduce '%.20s'", reduce);
    if (kind < 2 && include) return scatter(call, true);
    TRY(read_scatter(call, &x, &index, &src, &axis));
    double identity = kinds[kind].identity;
    if (isinf(identity) && !capture_is_float(x->type.format)) {
        const int bits = dw_format_bits(x->type.format);
        const double top = x->type.format == DW_FORMAT_bool ? 1 : x->type.format == DW_FORMAT_u8 ? 255 : ldexp(1, bits > 53 ? 53 : bits - 1) - 1;
        identity = identity > 0 ? top : x->type.format == DW_FORMAT_bool || x->type.format == DW_FORMAT_u8 ? 0 : -top;
    }
    const int64_t last = axis + 1;
    TRY(spread_by_index(call, x, axis, index, src, identity, &hits, &parts));
    TRY(capture_emit_reduce(call->graph, kinds[kind].reduce, parts, 1, &last, false, &parts));
    TRY(ir_emit_cast(call->graph, parts, x->type.format, &parts));
    TRY(capture_emit_reduce(call->graph, OP_any, hits, 1, &last, false, &any));
    if (include) TRY(ir_emit_2(call->graph, kinds[kind].join, x, parts, &parts));
    if (strcmp(reduce, "mean") == 0) {
        TRY(capture_emit_reduce(call->graph, OP_sum, hits, 1, &last, false, &count));
        TRY(ir_emit_cast(call->graph, count, x->type.format, &count));
        TRY(capture_emit_number(call->graph, include ? OP_add : OP_maximum, count, 1, &count));
        TRY(ir_emit_2(call->graph, capture_is_float(x->type.format) ? OP_div : OP_floordiv, parts, count, &parts));
    }
    TRY(ir_emit(call->graph, OP_where, 3, (ir_value *[]){any, parts, x}, 0, NULL, &x));
    return capture_result(call, 0, x);
}

/* ---- triangles ---- */

dw_status capture_rule_triangle(capture_call *call) {
    ir_value *x;
    dim offset;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_dim_arg(call, "diagonal", &offset));
    TRY(capture_emit_attr(call->graph, call->row->op, x, op_set_dim(OP_ATTR_offset, offset), &x));
    return capture_result(call, 0, x);
}
