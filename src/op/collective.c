/* What ranks do together: all_reduce, all_gather, reduce_scatter, all_to_all. A reference computes one rank's result from the operands of all (op_group). How these come to it is
 * not known here. */
#include "op/family.h"

#include <assert.h>
#include <string.h>

enum { VALUES = 64 };   /* ranks' elements that are looked at together */

bool op_collective_sums(const op_attrs *attrs) { return strcmp(op_attr_text(attrs, OP_ATTR_by), "sum") == 0; }

/* ---- inference ---- */

static dw_status check_over(op_infer *infer, int64_t *ranks) {
    const char *name = infer->op->name, *over = op_attr_text(infer->attrs, OP_ATTR_over), *by = op_attr_text(infer->attrs, OP_ATTR_by);
    op_mesh mesh;
    char axis[OP_MESH_NAME + 8];
    *ranks = op_attr_int(infer->attrs, OP_ATTR_ranks);
    if (*ranks < 1 || *ranks > OP_MESH_RANKS) return base_fail(infer->context, DW_INVALID, "%s: ranks is %lld, it must be 1 to %d", name, (long long)*ranks, OP_MESH_RANKS);
    snprintf(axis, sizeof axis, "%.*s=1", OP_MESH_NAME, over);
    if (op_mesh_parse(NULL, axis, &mesh) != DW_OK || strlen(over) >= OP_MESH_NAME)
        return base_fail(infer->context, DW_INVALID, "%s: over is '%.40s', it must be the name of an axis of a mesh, as tp", name, over);
    if (op_attrs_get(infer->attrs, OP_ATTR_by) == NULL || strcmp(by, "sum") == 0 || strcmp(by, "max") == 0) return DW_OK;
    return base_fail(infer->context, DW_INVALID, "%s: by is '%.40s', it must be sum or max", name, by);
}

/* Blocks within rows and scales that are a row's own, or elements. */
static dw_status check_gathered(op_infer *infer, int64_t axis) {
    const op_type *x = infer->in[0];
    const num_format *info = num_info(x->format);
    if (!op_is_block(x->format)) return op_check_element(infer, "x", x);
    if (info->rows != 1 || info->second == 1 || x->scale_layout != DW_SCALE_plain)
        return base_fail(infer->context, DW_UNSUPPORTED, "all_gather: x is %s, whose scales are not those of single rows in order; fp8_row, fp8_1x128, MX formats and nvfp4_row with plain scales are gathered",
                         info->name);
    if (axis < x->rank - 1) return DW_OK;
    return base_fail(infer->context, DW_UNSUPPORTED, "all_gather: x is %s, and its blocks lie along the last axis; gather along another, or dequantize it first", info->name);
}

/* *part = size of the axis / ranks. */
static dw_status divide(op_infer *infer, int64_t axis, int64_t ranks, dim *part) {
    dim count;
    TRY_DIM(infer->context, count, dim_constant(infer->dims, ranks));
    TRY(dim_divide(infer->dims, infer->in[0]->dims[axis], count, part));
    if (*part != NULL) return DW_OK;
    text size;
    text_init(&size, infer->context);
    dim_print(&size, infer->dims, infer->in[0]->dims[axis]);
    dw_status status = text_status(&size);
    if (status == DW_OK)
        status = base_fail(infer->context, DW_INVALID, "%s: axis %lld has size %s, which is not cut into %lld equal parts; pad it to a multiple of %lld", infer->op->name, (long long)axis,
                           text_string(&size), (long long)ranks, (long long)ranks);
    text_free(&size);
    return status;
}

static dw_status check_named_axis(op_infer *infer, const char *name, int64_t axis) {
    if (axis >= 0 && axis < infer->in[0]->rank) return DW_OK;
    return base_fail(infer->context, DW_INVALID, "%s: %s is %lld, x has rank %d; axes are counted from 0", infer->op->name, name, (long long)axis, infer->in[0]->rank);
}

static dw_status multiply(op_infer *infer, int64_t axis, int64_t ranks) {
    dim *size = &infer->out->dims[axis];
    TRY_DIM(infer->context, *size, dim_mul(infer->dims, *size, dim_constant(infer->dims, ranks)));
    return DW_OK;
}

static dw_status infer_all_to_all(op_infer *infer, int64_t ranks) {
    const int64_t split = op_attr_int(infer->attrs, OP_ATTR_split), concat = op_attr_int(infer->attrs, OP_ATTR_concat);
    TRY(op_check_element(infer, "x", infer->in[0]));
    TRY(check_named_axis(infer, "split", split));
    TRY(check_named_axis(infer, "concat", concat));
    TRY(divide(infer, split, ranks, &infer->out->dims[split]));
    return multiply(infer, concat, ranks);
}

static dw_status infer_all_gather(op_infer *infer, int64_t axis, int64_t ranks) {
    TRY(check_gathered(infer, axis));
    TRY(multiply(infer, axis, ranks));
    if (op_attrs_get(infer->attrs, OP_ATTR_length) == NULL) return DW_OK;
    const dim length = op_attr_dim(infer->attrs, OP_ATTR_length);
    TRY(op_check_le(infer, "0", dim_constant(infer->dims, 0), "length", length));
    TRY(op_check_le(infer, "length", length, "what all ranks have", infer->out->dims[axis]));
    infer->out->dims[axis] = length;
    return DW_OK;
}

static dw_status infer_reduce_scatter(op_infer *infer, int64_t axis, int64_t ranks) {
    dim *size = &infer->out->dims[axis];
    TRY(op_check_number(infer, "x", infer->in[0]));
    TRY_DIM(infer->context, *size, dim_add(infer->dims, *size, dim_constant(infer->dims, ranks - 1)));
    TRY_DIM(infer->context, *size, dim_floordiv(infer->dims, *size, dim_constant(infer->dims, ranks)));
    return DW_OK;
}

dw_status collective_infer(op_infer *infer) {
    const int64_t axis = op_attr_int(infer->attrs, OP_ATTR_axis);
    int64_t ranks;
    TRY(check_over(infer, &ranks));
    *infer->out = *infer->in[0];
    if (infer->op->id == OP_all_to_all) return infer_all_to_all(infer, ranks);
    if (infer->op->id != OP_all_reduce) TRY(op_check_axis(infer, axis, infer->in[0]->rank));
    if (infer->op->id == OP_all_gather) return infer_all_gather(infer, axis, ranks);
    return infer->op->id == OP_reduce_scatter ? infer_reduce_scatter(infer, axis, ranks) : op_check_number(infer, "x", infer->in[0]);
}

/* ---- the ranks' elements become one ---- */

/* A running sum or maximum: in f64 where the elements are, else in fp32. */
static double real_of_two(dw_format format, bool sums, double a, double b) {
    if (!sums) return a != a ? a : b != b ? b : a > b || (a == b && !(a == 0 && 1 / a < 1 / b)) ? a : b;
    return format == DW_FORMAT_f64 ? a + b : (double)((float)a + (float)b);
}

double op_collective_real(dw_format format, bool sums, int count, const double *values) {
    double made = values[0];
    for (int i = 1; i < count; i++) made = real_of_two(format, sums, made, values[i]);
    return made;
}

int64_t op_collective_int(dw_format format, bool sums, int count, const int64_t *values) {
    int64_t made = values[0];
    for (int i = 1; i < count; i++) {
        if (format == DW_FORMAT_bool) made = made != 0 || values[i] != 0;
        else if (sums) made = (int64_t)((uint64_t)made + (uint64_t)values[i]);
        else if (values[i] > made) made = values[i];
    }
    return made;
}

/* ---- reference ---- */

/* Element out_index of the result, which is at index of all operands. */
static void reduce_at(const op_call *call, const op_group *group, const int64_t *index, const int64_t *out_index) {
    const dw_tensor *out = call->out[0];
    const bool sums = op_collective_sums(call->attrs);
    double reals[VALUES];
    int64_t integers[VALUES];
    int held = 0;
    for (int i = 0; i < group->count; i++) {
        if (op_is_integer(out->format)) integers[held++] = op_tensor_load_int(&group->in[i], index);
        else reals[held++] = op_tensor_load(&group->in[i], index);
        if (held < VALUES && i + 1 < group->count) continue;
        if (op_is_integer(out->format)) integers[0] = op_collective_int(out->format, sums, held, integers);
        else reals[0] = op_collective_real(out->format, sums, held, reals);
        held = 1;
    }
    if (op_is_integer(out->format)) op_tensor_store_int(out, out_index, integers[0]);
    else op_tensor_store(out, out_index, reals[0]);
}

static void reduce_all(const op_call *call, const op_group *group) {
    const dw_tensor *out = call->out[0];
    const int axis = call->op->id == OP_reduce_scatter ? (int)op_attr_int(call->attrs, OP_ATTR_axis) : -1;
    int64_t out_index[DW_MAX_RANK] = {0}, index[DW_MAX_RANK];
    for (int64_t left = op_tensor_count(out); left > 0; left--) {
        memcpy(index, out_index, sizeof index);
        if (axis >= 0) index[axis] += group->rank * out->dims[axis];
        if (axis < 0 || index[axis] < call->in[0]->dims[axis]) reduce_at(call, group, index, out_index);
        else if (op_is_integer(out->format)) op_tensor_store_int(out, out_index, 0);
        else op_tensor_store(out, out_index, 0);
        op_tensor_next(out, out_index);
    }
}

void op_collective_box_of(const op_call *call, int rank, int from, const dw_tensor *in, op_collective_box *box) {
    const dw_tensor *out = call->out[0];
    const int64_t ranks = op_attr_int(call->attrs, OP_ATTR_ranks);
    const int split = call->op->id == OP_all_to_all ? (int)op_attr_int(call->attrs, OP_ATTR_split) : -1;
    const int concat = (int)op_attr_int(call->attrs, split >= 0 ? OP_ATTR_concat : OP_ATTR_axis);
    int64_t in_strides[DW_MAX_RANK], out_strides[DW_MAX_RANK];
    op_strides(in, in_strides);
    op_strides(out, out_strides);
    *box = (op_collective_box){0};
    for (int i = 0; i < in->rank; i++) box->dims[i] = in->dims[i];
    if (split >= 0) {
        box->dims[split] /= ranks;
        box->first_in = rank * box->dims[split] * in_strides[split];
    }
    const int64_t first = from * box->dims[concat], left = out->dims[concat] > first ? out->dims[concat] - first : 0;
    if (box->dims[concat] > left) box->dims[concat] = left;   /* of an all_gather with a length */
    box->first_out = left > 0 ? first * out_strides[concat] : 0;
}

static void move_boxes(const op_call *call, const op_group *group) {
    const dw_tensor *out = call->out[0];
    for (int from = 0; from < group->count; from++) {
        const dw_tensor *in = &group->in[from];
        op_collective_box box;
        walk w;
        op_collective_box_of(call, group->rank, from, in, &box);
        walk_start(&w, in->rank, box.dims);
        const int at_out = walk_add_strides(&w, out->strides), at_in = walk_add_strides(&w, in->strides);
        for (; w.left > 0; walk_next(&w)) op_copy_at(out, box.first_out + w.offset[at_out], in, box.first_in + w.offset[at_in]);
    }
}

/* So many bytes of each of outer parts of a tensor, behind those of the ranks before, in all of all bytes. */
static void gather_rows(void *to, const void *from, int at, int64_t outer, size_t bytes, size_t all) {
    const size_t first = (size_t)at * bytes, taken = first >= all ? 0 : all - first < bytes ? all - first : bytes;
    for (int64_t i = 0; i < outer; i++)
        if (taken > 0) memcpy((uint8_t *)to + (size_t)i * all + first, (const uint8_t *)from + (size_t)i * bytes, taken);
}

/* Codes, scales of blocks and factors of rows, each of which lies row after row. */
static void gather_blocks(const op_call *call, const op_group *group) {
    const dw_tensor *out = call->out[0];
    int64_t outer = 1;
    num_parts all;
    for (int i = 0; i < (int)op_attr_int(call->attrs, OP_ATTR_axis); i++) outer *= out->dims[i];
    if (outer == 0 || !num_layout(out->format, out->scale_layout, out->rank, out->dims, &all)) return;
    for (int from = 0; from < group->count; from++) {
        const dw_tensor *in = &group->in[from];
        num_parts part;
        if (!num_layout(in->format, in->scale_layout, in->rank, in->dims, &part)) continue;
        gather_rows(out->data, in->data, from, outer, part.data_bytes / (size_t)outer, all.data_bytes / (size_t)outer);
        gather_rows(out->scales, in->scales, from, outer, part.scale_bytes / (size_t)outer, all.scale_bytes / (size_t)outer);
        gather_rows(out->second, in->second, from, outer, part.second_bytes / (size_t)outer, all.second_bytes / (size_t)outer);
    }
}

dw_status op_collective_check(const op_call *call) {
    const dw_tensor *in = call->in[0], *out = call->out[0];
    const int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    if (call->op->id != OP_all_gather || op_attrs_get(call->attrs, OP_ATTR_length) == NULL) return DW_OK;
    const int64_t all = in->dims[axis] * op_attr_int(call->attrs, OP_ATTR_ranks);
    return out->dims[axis] <= all ? DW_OK : base_fail(call->context, DW_INVALID, "all_gather: length is %lld, and all ranks have %lld elements along axis %d", (long long)out->dims[axis], (long long)all, axis);
}

dw_status collective_reference(const op_call *call) {
    const int64_t ranks = op_attr_int(call->attrs, OP_ATTR_ranks);
    const op_group alone = {0, 1, call->in[0]}, *group = call->group != NULL ? call->group : &alone;
    if (group->count != ranks)
        return base_fail(call->context, DW_INVALID, "%s: it is over %lld ranks of %s, and %s; give the model a communicator of such a mesh (dw_model_options.comm)", call->op->name,
                         (long long)ranks, op_attr_text(call->attrs, OP_ATTR_over), call->group != NULL ? "other ones came" : "this rank is alone");
    TRY(op_collective_check(call));
    if (call->op->id == OP_all_reduce || call->op->id == OP_reduce_scatter) reduce_all(call, group);
    else if (op_is_block(call->out[0]->format)) gather_blocks(call, group);
    else move_boxes(call, group);
    return DW_OK;
}

/* An addition or comparison for each element of another rank, which are read as well. */
void collective_work(const op_call *call, op_work *work) {
    const double others = (double)op_attr_int(call->attrs, OP_ATTR_ranks) - 1, bytes = op_tensor_bytes(call->in[0]);
    const bool reduces = call->op->id == OP_all_reduce || call->op->id == OP_reduce_scatter;
    op_work_each(call, reduces ? others : 0, work);
    work->bytes_read += others * (call->op->id == OP_reduce_scatter || call->op->id == OP_all_to_all ? bytes / (others + 1) : bytes);
}
