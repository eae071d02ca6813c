/* Rules of views: reshapes, permutations, slices, splits, expansion. What PyTorch may alias stays a view here, so that writes find their way. */
#include <string.h>

#include "capture/program.h"

/* ---- reshapes ---- */

dw_status capture_is_contiguous(capture_call *call, const capture_tensor *x, bool *contiguous) {
    const json_t *strides = json_object_get(x->meta, "strides");
    *contiguous = true;
    if (!json_is_array(strides) || json_array_size(strides) != (size_t)x->type.rank) return DW_OK;
    dim expected, stride;
    TRY_DIM(call->capture->context, expected, dim_constant(call->dims, 1));
    for (int i = x->type.rank; *contiguous && i-- > 0;) {
        TRY(capture_read_size(call->capture, json_array_get(strides, (size_t)i), &stride));
        if (capture_dim_is(x->type.dims[i], 1)) continue;
        *contiguous = stride == expected;
        TRY_DIM(call->capture->context, expected, dim_mul(call->dims, expected, x->type.dims[i]));
    }
    return DW_OK;
}

/* Are the new dims the old ones but for axes of size 1? Then a reshape is a view whatever the strides are. */
static bool only_ones_differ(const op_type *from, int rank, const dim *dims) {
    int a = 0, b = 0;
    for (;;) {
        while (a < from->rank && capture_dim_is(from->dims[a], 1)) a++;
        while (b < rank && capture_dim_is(dims[b], 1)) b++;
        if (a == from->rank || b == rank) return a == from->rank && b == rank;
        if (from->dims[a++] != dims[b++]) return false;
    }
}

static dw_status to_shape(capture_call *call, capture_tensor *x, int rank, const dim *dims) {
    bool contiguous;
    capture_tensor *view;
    TRY(capture_is_contiguous(call, x, &contiguous));
    if (contiguous || only_ones_differ(&x->type, rank, dims)) {
        TRY(capture_view_reshape(call->capture, x, rank, dims, &view));
        return capture_result_tensor(call, 0, view);
    }
    ir_value *value;
    TRY(capture_read(call->capture, x, &value));
    TRY(ir_emit_reshape(call->graph, value, rank, dims, &value));
    return capture_result(call, 0, value);
}

/* The dims asked for, with -1 resolved. */
static dw_status read_shape(capture_call *call, const char *name, const op_type *of, int *rank, dim *dims) {
    const dim *given;
    dim total, known;
    int open = -1;
    TRY(capture_dims_arg(call, name, rank, &given));
    if (*rank > DW_MAX_RANK) return capture_fail(call, DW_UNSUPPORTED, "a tensor with %d axes; at most %d are supported", *rank, DW_MAX_RANK);
    TRY_DIM(call->capture->context, known, dim_constant(call->dims, 1));
    for (int i = 0; i < *rank; i++) {
        dims[i] = given[i];
        if (capture_dim_is(given[i], -1)) open = i;
        else TRY_DIM(call->capture->context, known, dim_mul(call->dims, known, given[i]));
    }
    if (open < 0) return DW_OK;
    TRY_DIM(call->capture->context, total, dim_product(call->dims, of->dims, of->rank));
    dims[open] = dim_divide_exact(call->dims, total, known);
    if (dims[open] == NULL && call->result_count > 0 && call->types[0].rank == *rank) dims[open] = call->types[0].dims[open];
    return dims[open] != NULL ? DW_OK : capture_fail(call, DW_UNSUPPORTED, "the axis given as -1 has a size that is not known");
}

dw_status capture_rule_view(capture_call *call) {
    capture_tensor *x;
    dim dims[DW_MAX_RANK];
    int rank;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(read_shape(call, call->arg_names[1], &x->type, &rank, dims));
    return to_shape(call, x, rank, dims);
}

dw_status capture_rule_view_as(capture_call *call) {
    capture_tensor *x, *other;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(capture_tensor_arg(call, "other", &other));
    return to_shape(call, x, other->type.rank, other->type.dims);
}

dw_status capture_rule_flatten(capture_call *call) {
    capture_tensor *x;
    int first, last, rank = 0;
    dim dims[DW_MAX_RANK];
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(capture_axis_arg(call, "start_dim", x->type.rank, &first));
    TRY(capture_axis_arg(call, "end_dim", x->type.rank, &last));
    if (last < first) return capture_fail(call, DW_CORRUPT, "start_dim is after end_dim");
    for (int i = 0; i < first; i++) dims[rank++] = x->type.dims[i];
    TRY_DIM(call->capture->context, dims[rank], dim_product(call->dims, x->type.dims + first, x->type.rank > 0 ? last - first + 1 : 0));
    rank++;
    for (int i = last + 1; i < x->type.rank; i++) dims[rank++] = x->type.dims[i];
    return to_shape(call, x, rank, dims);
}

dw_status capture_rule_unflatten(capture_call *call) {
    capture_tensor *x;
    int axis, split, rank = 0;
    dim dims[2 * DW_MAX_RANK], parts[DW_MAX_RANK];
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    TRY(read_shape(call, "sizes", &(op_type){.rank = 1, .dims = {x->type.dims[axis]}}, &split, parts));
    if (x->type.rank - 1 + split > DW_MAX_RANK) return capture_fail(call, DW_UNSUPPORTED, "a tensor with more than %d axes", DW_MAX_RANK);
    for (int i = 0; i < axis; i++) dims[rank++] = x->type.dims[i];
    for (int i = 0; i < split; i++) dims[rank++] = parts[i];
    for (int i = axis + 1; i < x->type.rank; i++) dims[rank++] = x->type.dims[i];
    return to_shape(call, x, rank, dims);
}

dw_status capture_rule_contiguous(capture_call *call) {
    capture_tensor *x, *view;
    bool contiguous;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(capture_is_contiguous(call, x, &contiguous));
    if (contiguous) {
        TRY(capture_view_alias(call->capture, x, &view));
        return capture_result_tensor(call, 0, view);
    }
    ir_value *value;
    TRY(capture_read(call->capture, x, &value));
    return capture_result(call, 0, value);
}

static dw_status reshape_view(capture_call *call, capture_tensor *x, int rank, const dim *dims) {
    capture_tensor *view;
    TRY(capture_view_reshape(call->capture, x, rank, dims, &view));
    return capture_result_tensor(call, 0, view);
}

dw_status capture_rule_unsqueeze(capture_call *call) {
    capture_tensor *x;
    dim dims[DW_MAX_RANK];
    int axis;
    TRY(capture_tensor_arg(call, "self", &x));
    if (x->type.rank == DW_MAX_RANK) return capture_fail(call, DW_UNSUPPORTED, "a tensor with more than %d axes", DW_MAX_RANK);
    TRY(capture_axis_arg(call, "dim", x->type.rank + 1, &axis));
    for (int i = 0; i < x->type.rank; i++) dims[i < axis ? i : i + 1] = x->type.dims[i];
    TRY_DIM(call->capture->context, dims[axis], dim_constant(call->dims, 1));
    return reshape_view(call, x, x->type.rank + 1, dims);
}

/* Without axes all; only axes of size 1 go. */
dw_status capture_rule_squeeze(capture_call *call) {
    capture_tensor *x;
    dim dims[DW_MAX_RANK];
    int64_t axes[DW_MAX_RANK];
    int count, rank = 0, next = 0;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(capture_axes_arg(call, "dim", x->type.rank, &count, axes));
    for (int i = 0; i < x->type.rank; i++) {
        bool named = next < count && axes[next] == i;
        if (named) next++;
        if (!named || !capture_dim_is(x->type.dims[i], 1)) dims[rank++] = x->type.dims[i];
    }
    return reshape_view(call, x, rank, dims);
}

/* ---- permutations ---- */

static dw_status permute(capture_call *call, capture_tensor *x, const int64_t *order) {
    capture_tensor *view;
    TRY(capture_view_transpose(call->capture, x, order, &view));
    return capture_result_tensor(call, 0, view);
}

static dw_status swap_axes(capture_call *call, capture_tensor *x, int a, int b) {
    int64_t order[DW_MAX_RANK];
    for (int i = 0; i < x->type.rank; i++) order[i] = i == a ? b : i == b ? a : i;
    return permute(call, x, order);
}

dw_status capture_rule_transpose(capture_call *call) {
    capture_tensor *x;
    int a, b;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(capture_axis_arg(call, call->arg_names[1], x->type.rank, &a));
    TRY(capture_axis_arg(call, call->arg_names[2], x->type.rank, &b));
    return swap_axes(call, x, a, b);
}

/* t of at most two axes, mT of the last two */
dw_status capture_rule_transpose_last(capture_call *call) {
    capture_tensor *x;
    TRY(capture_tensor_arg(call, "self", &x));
    int rank = x->type.rank;
    return swap_axes(call, x, rank < 2 ? 0 : rank - 2, rank < 2 ? 0 : rank - 1);
}

dw_status capture_rule_reverse_axes(capture_call *call) {
    capture_tensor *x;
    int64_t order[DW_MAX_RANK];
    TRY(capture_tensor_arg(call, "self", &x));
    for (int i = 0; i < x->type.rank; i++) order[i] = x->type.rank - 1 - i;
    return permute(call, x, order);
}

/* Axes as given, each once. */
static dw_status read_axes(capture_call *call, const char *name, int rank, int *count, int64_t *axes) {
    bool seen[DW_MAX_RANK] = {false};
    TRY(capture_ints_arg(call, name, count, axes));
    for (int i = 0; i < *count; i++) {
        if (axes[i] < 0) axes[i] += rank;
        if (axes[i] < 0 || axes[i] >= rank || seen[axes[i]]) return capture_fail(call, DW_CORRUPT, "'%s' names no axis, or one twice", name);
        seen[axes[i]] = true;
    }
    return DW_OK;
}

dw_status capture_rule_permute(capture_call *call) {
    capture_tensor *x;
    int64_t order[DW_MAX_RANK];
    int count;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(read_axes(call, "dims", x->type.rank, &count, order));
    if (count != x->type.rank) return capture_fail(call, DW_CORRUPT, "%d axes of %d are named", count, x->type.rank);
    return permute(call, x, order);
}

dw_status capture_rule_movedim(capture_call *call) {
    capture_tensor *x;
    int64_t from[DW_MAX_RANK], to[DW_MAX_RANK], order[DW_MAX_RANK];
    bool placed[DW_MAX_RANK] = {false}, moved[DW_MAX_RANK] = {false};
    int count, count_to, next = 0;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(read_axes(call, "source", x->type.rank, &count, from));
    TRY(read_axes(call, "destination", x->type.rank, &count_to, to));
    if (count != count_to) return capture_fail(call, DW_CORRUPT, "source and destination have different lengths");
    for (int i = 0; i < count; i++) {
        order[to[i]] = from[i];
        placed[to[i]] = moved[from[i]] = true;
    }
    for (int i = 0; i < x->type.rank; i++) {
        if (placed[i]) continue;
        while (moved[next]) next++;
        order[i] = next++;
    }
    return permute(call, x, order);
}

/* ---- expansion ---- */

dw_status capture_rule_expand(capture_call *call) {
    capture_tensor *x, *view;
    const dim *given;
    dim dims[DW_MAX_RANK];
    int rank;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(capture_dims_arg(call, "size", &rank, &given));
    if (rank > DW_MAX_RANK || rank < x->type.rank) return capture_fail(call, DW_UNSUPPORTED, "expansion of %d axes to %d", x->type.rank, rank);
    for (int i = 0; i < rank; i++) {
        int own = i - (rank - x->type.rank);
        bool keep = own >= 0 && (capture_dim_is(given[i], -1) || !capture_dim_is(x->type.dims[own], 1));
        dims[i] = keep ? x->type.dims[own] : given[i];
    }
    TRY(capture_view_broadcast(call->capture, x, rank, dims, &view));
    return capture_result_tensor(call, 0, view);
}

dw_status capture_rule_expand_as(capture_call *call) {
    capture_tensor *x, *other, *view;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(capture_tensor_arg(call, "other", &other));
    TRY(capture_view_broadcast(call->capture, x, other->type.rank, other->type.dims, &view));
    return capture_result_tensor(call, 0, view);
}

/* ---- slices ---- */

/* A bound counted from the front and kept within [0, size]. */
static dw_status wrap_bound(capture_call *call, dim given, dim size, dim *bound) {
    dim_table *dims = call->dims;
    dim zero;
    int64_t least, most, known;
    TRY_DIM(call->capture->context, zero, dim_constant(dims, 0));
    *bound = given;
    if (dim_is_constant(given, &known) && known == INT64_MAX) return *bound = size, DW_OK;
    dim_range(dims, given, &least, &most);
    if (most < 0) {
        TRY_DIM(call->capture->context, *bound, dim_add(dims, given, size));
        if (!dim_always_le(dims, zero, *bound)) TRY_DIM(call->capture->context, *bound, dim_max(dims, *bound, zero));
        return DW_OK;
    }
    if (least < 0 && !dim_is_constant(given, NULL)) TRY_DIM(call->capture->context, *bound, dim_max(dims, given, zero));   /* s - 1 and the like, which torch has found not negative */
    if (!dim_always_le(dims, *bound, size)) TRY_DIM(call->capture->context, *bound, dim_min(dims, *bound, size));
    return DW_OK;
}

/* The recorded size, where it says that the bounds need no clamping. */
static dw_status trust_recorded(capture_call *call, int axis, dim size, int64_t step, dim given_start, dim given_end, dim *start, dim *end) {
    dim length;
    int64_t known;
    if (step != 1 || call->types[0].format == DW_FORMAT_COUNT || call->types[0].rank <= axis) return DW_OK;
    if (dim_is_constant(given_end, &known) && (known == INT64_MAX || known < 0)) given_end = *end;
    if (dim_is_constant(given_start, &known) && known < 0) given_start = *start;
    TRY_DIM(call->capture->context, length, dim_sub(call->dims, given_end, given_start));
    if (length != call->types[0].dims[axis] || length == size) return DW_OK;
    *start = given_start;
    *end = given_end;
    return DW_OK;
}

static dw_status read_slice(capture_call *call, const op_type *of, int *axis, dim *start, dim *end, int64_t *step) {
    dim given_start, given_end;
    TRY(capture_axis_arg(call, "dim", of->rank, axis));
    if (of->rank == 0) return capture_fail(call, DW_CORRUPT, "a slice of a tensor without axes");
    dim size = of->dims[*axis];
    TRY(capture_int_arg(call, "step", step));
    if (*step <= 0) return capture_fail(call, DW_UNSUPPORTED, "a step of %lld", (long long)*step);
    TRY_DIM(call->capture->context, given_start, dim_constant(call->dims, 0));
    given_end = size;
    if (capture_has(call, "start")) TRY(capture_dim_arg(call, "start", &given_start));
    if (capture_has(call, "end")) TRY(capture_dim_arg(call, "end", &given_end));
    TRY(wrap_bound(call, given_start, size, start));
    TRY(wrap_bound(call, given_end, size, end));
    if (dim_always_lt(call->dims, *end, *start)) *end = *start;
    return trust_recorded(call, *axis, size, *step, given_start, given_end, start, end);
}

dw_status capture_rule_slice(capture_call *call) {
    capture_tensor *x, *view;
    dim start, end;
    int64_t step;
    int axis;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(read_slice(call, &x->type, &axis, &start, &end, &step));
    TRY(capture_view_slice(call->capture, x, axis, start, end, step, &view));
    return capture_result_tensor(call, 0, view);
}

/* x with src where the slice is: a write into a copy. */
static dw_status write_slice(capture_call *call, int axis, dim start, dim end, int64_t step, bool selected) {
    capture_tensor *x, *copy, *view;
    ir_value *value, *from;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(capture_read(call->capture, x, &value));
    TRY(capture_fresh(call->capture, value, &copy));
    TRY(capture_operand_arg(call, "src", x->type.format, &from));
    if (selected) TRY(capture_emit_unsqueeze(call->graph, from, axis, &from));
    TRY(capture_view_slice(call->capture, copy, axis, start, end, step, &view));
    if (!op_type_equal(&from->type, &view->type)) TRY(ir_emit_broadcast(call->graph, from, view->type.rank, view->type.dims, &from));
    TRY(capture_write(call->capture, view, from));
    return capture_result_tensor(call, 0, copy);
}

dw_status capture_rule_slice_scatter(capture_call *call) {
    capture_tensor *x;
    dim start, end;
    int64_t step;
    int axis;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(read_slice(call, &x->type, &axis, &start, &end, &step));
    return write_slice(call, axis, start, end, step, false);
}

static dw_status read_select(capture_call *call, const op_type *of, int *axis, dim *start, dim *end) {
    dim one;
    int64_t known;
    TRY(capture_axis_arg(call, "dim", of->rank, axis));
    if (of->rank == 0) return capture_fail(call, DW_CORRUPT, "a selection from a tensor without axes");
    TRY(capture_dim_arg(call, "index", start));
    if (dim_is_constant(*start, &known) && known < 0) TRY_DIM(call->capture->context, *start, dim_add(call->dims, *start, of->dims[*axis]));
    TRY_DIM(call->capture->context, one, dim_constant(call->dims, 1));
    TRY_DIM(call->capture->context, *end, dim_add(call->dims, *start, one));
    return DW_OK;
}

/* The slice, without its axis. */
static dw_status select_view(capture_call *call, capture_tensor *x, int axis, dim start, dim end, capture_tensor **view) {
    dim dims[DW_MAX_RANK];
    TRY(capture_view_slice(call->capture, x, axis, start, end, 1, view));
    for (int i = 0, at = 0; i < x->type.rank; i++) {
        if (i != axis) dims[at++] = x->type.dims[i];
    }
    return capture_view_reshape(call->capture, *view, x->type.rank - 1, dims, view);
}

dw_status capture_rule_select(capture_call *call) {
    capture_tensor *x, *view;
    dim start, end;
    int axis;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(read_select(call, &x->type, &axis, &start, &end));
    TRY(select_view(call, x, axis, start, end, &view));
    return capture_result_tensor(call, 0, view);
}

dw_status capture_rule_select_scatter(capture_call *call) {
    capture_tensor *x;
    dim start, end;
    int axis;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(read_select(call, &x->type, &axis, &start, &end));
    return write_slice(call, axis, start, end, 1, true);
}

dw_status capture_rule_narrow(capture_call *call) {
    capture_tensor *x, *view;
    dim start, length, end;
    int axis;
    int64_t known;
    TRY(capture_tensor_arg(call, "self", &x));
    TRY(capture_axis_arg(call, "dim", x->type.rank, &axis));
    TRY(capture_dim_arg(call, "start", &start));
    TRY(capture_dim_arg(call, "length", &length));
    if (x->type.rank > 0 && dim_is_constant(start, &known) && known < 0) TRY_DIM(call->capture->context, start, dim_add(call->dims, start, x->type.dims[axis]));
    TRY_DIM(call->capture->context, end, dim_add(call->dims, start, length));
    TRY(capture_view_slice(call->capture, x, axis, start, end, 1, &view));
    return capture_result_tensor(call, 0, view);
}

/* ---- splits ---- */

/* Neighbouring slices of the given sizes, one for each result. */
static dw_status split(capture_call *call, capture_tensor *x, int axis, const dim *sizes) {
    dim start, end;
    TRY_DIM(call->capture->context, start, dim_constant(call->dims, 0));
    for (int i = 0; i < call->result_count; i++, start = end) {
        capture_tensor *view;
        TRY_DIM(call->capture->context, end, dim_add(call->dims, start, sizes[i]));
        TRY(capture_view_slice(call->capture, x, axis, start, end, 1, &view));
        TRY(capture_result_tensor(call, i, view));
    }
    return DW_OK;
}

static dw_status read_split(capture_call *call, capture_tensor **x, int *axis, dim **sizes) {
    TRY(capture_tensor_arg(call, "self", x));
    TRY(capture_axis_arg(call, "dim", (*x)->type.rank, axis));
    if ((*x)->type.rank == 0) return capture_fail(call, DW_CORRUPT, "a split of a tensor without axes");
    TRY_NEW(*sizes, &call->capture->arena, call->result_count);
    return DW_OK;
}

dw_status capture_rule_split_sizes(capture_call *call) {
    capture_tensor *x;
    dim *unused;
    const dim *sizes;
    int axis, count;
    TRY(read_split(call, &x, &axis, &unused));
    TRY(capture_dims_arg(call, "split_sizes", &count, &sizes));
    if (count != call->result_count) return capture_fail(call, DW_CORRUPT, "%d sizes for %d results", count, call->result_count);
    return split(call, x, axis, sizes);
}

/* The size of every part but the last, which takes what is left. */
static dw_status split_evenly(capture_call *call, capture_tensor *x, int axis, dim size, dim *sizes) {
    dim left = x->type.dims[axis];
    for (int i = 0; i < call->result_count; i++) {
        sizes[i] = i == call->result_count - 1 ? left : size;
        TRY_DIM(call->capture->context, left, dim_sub(call->dims, left, sizes[i]));
    }
    return split(call, x, axis, sizes);
}

dw_status capture_rule_split(capture_call *call) {
    capture_tensor *x;
    dim *sizes, size;
    int axis;
    TRY(read_split(call, &x, &axis, &sizes));
    TRY(capture_dim_arg(call, "split_size", &size));
    return split_evenly(call, x, axis, size, sizes);
}

/* ceil(size / chunks) each */
dw_status capture_rule_chunk(capture_call *call) {
    capture_tensor *x;
    dim *sizes, chunks, size, one;
    int axis;
    TRY(read_split(call, &x, &axis, &sizes));
    TRY(capture_dim_arg(call, "chunks", &chunks));
    TRY_DIM(call->capture->context, one, dim_constant(call->dims, 1));
    TRY_DIM(call->capture->context, size, dim_add(call->dims, x->type.dims[axis], chunks));
    TRY_DIM(call->capture->context, size, dim_sub(call->dims, size, one));
    TRY_DIM(call->capture->context, size, dim_floordiv(call->dims, size, chunks));
    return split_evenly(call, x, axis, size, sizes);
}

/* The first parts are one longer where the size does not divide. */
dw_status capture_rule_tensor_split(capture_call *call) {
    capture_tensor *x;
    dim *sizes;
    int axis;
    int64_t sections, size;
    TRY(read_split(call, &x, &axis, &sizes));
    TRY(capture_int_arg(call, "sections", &sections));
    if (!dim_is_constant(x->type.dims[axis], &size) || sections != call->result_count) return capture_fail(call, DW_UNSUPPORTED, "a dynamic axis");
    for (int64_t i = 0; i < sections; i++) {
        TRY_DIM(call->capture->context, sizes[i], dim_constant(call->dims, size / sections + (i < size % sections)));
    }
    return split(call, x, axis, sizes);
}

dw_status capture_rule_unbind(capture_call *call) {
    capture_tensor *x;
    dim *unused, start, end;
    int axis;
    TRY(read_split(call, &x, &axis, &unused));
    for (int i = 0; i < call->result_count; i++) {
        capture_tensor *view;
        TRY_DIM(call->capture->context, start, dim_constant(call->dims, i));
        TRY_DIM(call->capture->context, end, dim_constant(call->dims, i + 1));
        TRY(select_view(call, x, axis, start, end, &view));
        TRY(capture_result_tensor(call, i, view));
    }
    return DW_OK;
}

/* Vectors as the axes of a grid; "xy" exchanges the first two. */
dw_status capture_rule_meshgrid(capture_call *call) {
    capture_tensor *const *tensors;
    const char *indexing = "ij";
    dim dims[DW_MAX_RANK];
    int count;
    TRY(capture_tensors_arg(call, "tensors", &count, &tensors));
    if (capture_has(call, "indexing")) TRY(capture_text_arg(call, "indexing", &indexing));
    bool exchanged = strcmp(indexing, "xy") == 0 && count >= 2;
    if (count > DW_MAX_RANK || count > call->result_count) return capture_fail(call, DW_UNSUPPORTED, "a grid with %d axes", count);
    for (int i = 0; i < count; i++) {
        if (tensors[i] == NULL || tensors[i]->type.rank > 1) return capture_fail(call, DW_CORRUPT, "operand %d is not a vector", i);
        int axis = exchanged && i < 2 ? 1 - i : i;
        if (tensors[i]->type.rank == 1) dims[axis] = tensors[i]->type.dims[0];
        else TRY_DIM(call->capture->context, dims[axis], dim_constant(call->dims, 1));
    }
    for (int i = 0; i < count; i++) {
        dim own[DW_MAX_RANK];
        capture_tensor *view;
        int axis = exchanged && i < 2 ? 1 - i : i;
        for (int a = 0; a < count; a++) TRY_DIM(call->capture->context, own[a], dim_constant(call->dims, 1));
        own[axis] = dims[axis];
        TRY(capture_view_reshape(call->capture, tensors[i], count, own, &view));
        TRY(capture_view_broadcast(call->capture, view, count, dims, &view));
        TRY(capture_result_tensor(call, i, view));
    }
    return DW_OK;
}

/* Axis i of self is axis broadcast_dimensions[i] of the shape; the others repeat. */
dw_status capture_rule_broadcast_in_dim(capture_call *call) {
    ir_value *x;
    const dim *shape;
    dim dims[DW_MAX_RANK];
    int64_t axes[DW_MAX_RANK];
    int rank, count;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_dims_arg(call, "shape", &rank, &shape));
    TRY(capture_ints_arg(call, "broadcast_dimensions", &count, axes));
    if (rank > DW_MAX_RANK || count != x->type.rank) return capture_fail(call, DW_CORRUPT, "%d axes for an operand with %d", count, x->type.rank);
    for (int i = 0; i < rank; i++) TRY_DIM(call->capture->context, dims[i], dim_constant(call->dims, 1));
    for (int i = 0; i < count; i++) {
        if (axes[i] < 0 || axes[i] >= rank || (i > 0 && axes[i] <= axes[i - 1])) return capture_fail(call, DW_CORRUPT, "broadcast_dimensions that do not ascend");
        dims[axes[i]] = x->type.dims[i];
    }
    TRY(ir_emit_reshape(call->graph, x, rank, dims, &x));
    TRY(ir_emit_broadcast(call->graph, x, rank, shape, &x));
    return capture_result(call, 0, x);
}

/* Every operand in the shape that they broadcast to together. */
dw_status capture_rule_broadcast_tensors(capture_call *call) {
    capture_tensor *const *tensors;
    int count;
    op_type shape = {.rank = 0};
    TRY(capture_tensors_arg(call, "tensors", &count, &tensors));
    if (count > call->result_count) return capture_fail(call, DW_CORRUPT, "%d operands and %d results", count, call->result_count);
    for (int i = 0; i < count; i++) {
        if (tensors[i] == NULL) return capture_fail(call, DW_CORRUPT, "operand %d is absent", i);
        TRY(capture_broadcast_dims(call, &shape, &tensors[i]->type, &shape));
    }
    for (int i = 0; i < count; i++) {
        capture_tensor *view;
        TRY(capture_view_broadcast(call->capture, tensors[i], shape.rank, shape.dims, &view));
        TRY(capture_result_tensor(call, i, view));
    }
    return DW_OK;
}
