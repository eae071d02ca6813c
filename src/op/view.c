/* Views: reshape, transpose, broadcast, slice. The reference copies; op_tensor_view gives the strides that make a copy needless. */
#include "op/family.h"

#include <string.h>

/* Have its elements no addresses of their own? */
static bool is_packed(const dw_tensor *x) { return op_is_block(x->format) || num_info(x->format)->bits < 8; }

/* ---- inference ---- */

static dw_status infer_reshape(op_infer *infer) {
    const op_type *x = infer->in[0];
    const dim *shape;
    int rank = op_attr_dims(infer->attrs, OP_ATTR_shape, &shape);
    op_type *out = infer->out;
    for (int i = 0; i < rank; i++) TRY(op_add_axis(infer, out, shape[i]));
    dim before, after;
    TRY_DIM(infer->context, before, dim_product(infer->dims, x->dims, x->rank));
    TRY_DIM(infer->context, after, dim_product(infer->dims, out->dims, out->rank));
    return op_check_same(infer, "the number of elements of x", before, "that of shape", after);
}

static dw_status infer_transpose(op_infer *infer) {
    const op_type *x = infer->in[0];
    const int64_t *order;
    int rank = op_attr_ints(infer->attrs, OP_ATTR_order, &order);
    if (rank != x->rank)
        return base_fail(infer->context, DW_MISMATCH, "transpose: x has rank %d, order has %d axes", x->rank, rank);
    bool seen[DW_MAX_RANK] = {false};
    for (int i = 0; i < rank; i++) {
        if (order[i] < 0 || order[i] >= rank || seen[order[i]])
            return base_fail(infer->context, DW_INVALID, "transpose: order[%d] is %lld; order names each of the axes 0 to %d once", i,
                             (long long)order[i], rank - 1);
        seen[order[i]] = true;
        TRY(op_add_axis(infer, infer->out, x->dims[order[i]]));
    }
    return DW_OK;
}

static dw_status infer_broadcast(op_infer *infer) {
    const dim *shape;
    int rank = op_attr_dims(infer->attrs, OP_ATTR_shape, &shape);
    for (int i = 0; i < rank; i++) TRY(op_add_axis(infer, infer->out, shape[i]));
    return op_check_broadcasts_to(infer, "", infer->in[0], rank, shape);
}

/* ceil((end - start) / step) */
static dw_status infer_slice(op_infer *infer) {
    const op_type *x = infer->in[0];
    int64_t axis = op_attr_int(infer->attrs, OP_ATTR_axis), step = op_attr_int(infer->attrs, OP_ATTR_step);
    TRY(op_check_axis(infer, axis, x->rank));
    if (step <= 0) return base_fail(infer->context, DW_INVALID, "slice: step is %lld, it must be 1 or more", (long long)step);
    dim start = op_attr_dim(infer->attrs, OP_ATTR_start), end = op_attr_dim(infer->attrs, OP_ATTR_end), zero, length;
    TRY_DIM(infer->context, zero, dim_constant(infer->dims, 0));
    if (dim_always_lt(infer->dims, start, zero)) return base_fail(infer->context, DW_INVALID, "slice: start is negative; count from the front");
    TRY(op_check_le(infer, "start", start, "end", end));
    TRY(op_check_le(infer, "end", end, "the size of the axis", x->dims[axis]));
    TRY_DIM(infer->context, length, dim_sub(infer->dims, end, start));
    if (step > 1) {
        dim by, more;
        TRY_DIM(infer->context, by, dim_constant(infer->dims, step));
        TRY_DIM(infer->context, more, dim_constant(infer->dims, step - 1));
        TRY_DIM(infer->context, length, dim_add(infer->dims, length, more));
        TRY_DIM(infer->context, length, dim_floordiv(infer->dims, length, by));
    }
    *infer->out = *x;
    infer->out->dims[axis] = length;
    return DW_OK;
}

/* Does a reshape keep every axis? Then it is a copy, which tensors in blocks have, too. */
static bool keeps_shape(const op_infer *infer) {
    const op_type *x = infer->in[0];
    const dim *shape;
    if (infer->op->id != OP_reshape || op_attr_dims(infer->attrs, OP_ATTR_shape, &shape) != x->rank) return false;
    for (int i = 0; i < x->rank; i++)
        if (shape[i] != x->dims[i]) return false;
    return true;
}

static dw_status check_whole_blocks(op_infer *infer, const char *what, dim at, int64_t block) {
    dim by, rest;
    int64_t number;
    TRY_DIM(infer->context, by, dim_constant(infer->dims, block));
    TRY_DIM(infer->context, rest, dim_mod(infer->dims, at, by));
    if (dim_is_constant(rest, &number) && number == 0) return DW_OK;
    text words;
    text_init(&words, infer->context);
    dim_print(&words, infer->dims, at);
    base_fail(infer->context, DW_INVALID, "slice: %s is %s, which does not always lie between two blocks of %s, which are of %lld elements along axis %lld; cut at a multiple of that", what, text_string(&words),
              dw_format_name(infer->in[0]->format), (long long)block, (long long)op_attr_int(infer->attrs, OP_ATTR_axis));
    text_free(&words);
    return DW_INVALID;
}

/* Of a tensor in blocks: whole blocks, every one of them, with the scales that they have. */
static dw_status check_blocks(op_infer *infer) {
    const op_type *x = infer->in[0];
    const num_format *info = num_info(x->format);
    const int64_t axis = op_attr_int(infer->attrs, OP_ATTR_axis), step = op_attr_int(infer->attrs, OP_ATTR_step);
    const dim end = op_attr_dim(infer->attrs, OP_ATTR_end);
    TRY(op_check_axis(infer, axis, x->rank));
    if (step != 1) return base_fail(infer->context, DW_INVALID, "slice: step is %lld, of a tensor in blocks it must be 1", (long long)step);
    if (x->scale_layout != DW_SCALE_plain) return base_fail(infer->context, DW_INVALID, "slice: the scales of x lie in tiles; slice it before they do");
    const int64_t block = axis == x->rank - 1 ? info->cols : axis == x->rank - 2 ? info->rows : 1;
    if (block <= 1) return DW_OK;
    TRY(check_whole_blocks(infer, "start", op_attr_dim(infer->attrs, OP_ATTR_start), block));
    return end == x->dims[axis] ? DW_OK : check_whole_blocks(infer, "end", end, block);
}

dw_status view_infer(op_infer *infer) {
    if (keeps_shape(infer)) {
        *infer->out = *infer->in[0];
        return DW_OK;
    }
    if (infer->op->id == OP_slice && op_is_block(infer->in[0]->format)) {
        TRY(check_blocks(infer));
        return infer_slice(infer);
    }
    TRY(op_check_element(infer, "x", infer->in[0]));
    infer->out->format = infer->in[0]->format;
    if (infer->op->id == OP_reshape) return infer_reshape(infer);
    if (infer->op->id == OP_transpose) return infer_transpose(infer);
    if (infer->op->id == OP_broadcast) return infer_broadcast(infer);
    return infer_slice(infer);
}

/* ---- strides ---- */

/* Strides of out (a reshape of x): runs of axes of x that lie like one axis are cut into axes of out. false: some axis of out would cross a gap. */
static bool reshape_strides(const dw_tensor *x, dw_tensor *out) {
    int64_t run_size = 1, out_size = 1;
    int next = out->rank - 1;
    if (op_tensor_count(x) == 0) {
        for (int i = 0; i < out->rank; i++) out->strides[i] = 1;
        return true;
    }
    int64_t run_stride = x->rank > 0 ? x->strides[x->rank - 1] : 1;
    for (int axis = x->rank - 1; axis >= 0; axis--) {
        run_size *= x->dims[axis];
        bool run_goes_on = axis > 0 && (x->dims[axis - 1] == 1 || x->strides[axis - 1] == run_size * run_stride);
        if (run_goes_on) continue;
        for (; next >= 0 && (out_size < run_size || out->dims[next] == 1); next--) {
            out->strides[next] = out_size * run_stride;
            out_size *= out->dims[next];
        }
        if (out_size != run_size) return false;
        if (axis > 0) run_stride = x->strides[axis - 1];
        run_size = out_size = 1;
    }
    for (; next >= 0; next--) out->strides[next] = 1;   /* axes of size 1 in front */
    return true;
}

/* 0 <= start and the last index taken < size, which inference could not prove for symbols. */
static bool slice_start(const op_call *call, const dw_tensor *out, int64_t *start) {
    int64_t axis = op_attr_int(call->attrs, OP_ATTR_axis), step = op_attr_int(call->attrs, OP_ATTR_step);
    if (dim_eval(call->context, op_attr_dim(call->attrs, OP_ATTR_start), call->symbols, start) != DW_OK) return false;
    int64_t count = out->dims[axis], size = call->in[0]->dims[axis];
    return *start >= 0 && (count == 0 || (*start < size && count - 1 <= (size - 1 - *start) / step));
}

bool op_tensor_view(const op_call *call, dw_tensor *view) {
    const dw_tensor *x = call->in[0];
    dw_tensor out = *call->out[0];
    out.data = x->data;
    if (is_packed(x)) return false;
    if (call->op->id == OP_reshape) {
        if (!reshape_strides(x, &out)) return false;
    } else if (call->op->id == OP_transpose) {
        const int64_t *order;
        op_attr_ints(call->attrs, OP_ATTR_order, &order);
        for (int i = 0; i < out.rank; i++) out.strides[i] = x->strides[order[i]];
    } else if (call->op->id == OP_broadcast) {
        int lead = out.rank - x->rank;
        for (int i = 0; i < out.rank; i++) out.strides[i] = i < lead || x->dims[i - lead] == 1 ? 0 : x->strides[i - lead];
    } else if (call->op->id == OP_slice) {
        int64_t start, axis = op_attr_int(call->attrs, OP_ATTR_axis);
        if (!slice_start(call, &out, &start)) return false;
        for (int i = 0; i < out.rank; i++) out.strides[i] = x->strides[i];
        out.strides[axis] *= op_attr_int(call->attrs, OP_ATTR_step);
        if (x->data != NULL && op_tensor_count(&out) > 0)
            out.data = (uint8_t *)x->data + start * x->strides[axis] * (num_info(x->format)->bits / 8);
    } else {
        return false;
    }
    *view = out;
    return true;
}

/* ---- reference ---- */

static void copy_all(const dw_tensor *to, const dw_tensor *from) {
    walk w;
    walk_start(&w, to->rank, to->dims);
    walk_add(&w, to);
    walk_add(&w, from);
    for (; w.left > 0; walk_next(&w)) op_copy_at(to, w.offset[0], from, w.offset[1]);
}

/* Row-major order on both sides, whatever the strides. */
static void copy_in_order(const dw_tensor *to, const dw_tensor *from) {
    walk w_to, w_from;
    walk_start(&w_to, to->rank, to->dims);
    walk_start(&w_from, from->rank, from->dims);
    walk_add(&w_to, to);
    walk_add(&w_from, from);
    for (; w_to.left > 0; walk_next(&w_to), walk_next(&w_from)) op_copy_at(to, w_to.offset[0], from, w_from.offset[0]);
}

static void copy_bytes(void *to, const void *from, size_t bytes) {
    if (bytes > 0) memcpy(to, from, bytes);
}

/* A tensor whose elements have no addresses of their own, in the same shape. */
static void copy_packed(const dw_tensor *to, const dw_tensor *from) {
    num_parts parts;
    if (!num_layout(from->format, from->scale_layout, from->rank, from->dims, &parts)) return;
    copy_bytes(to->data, from->data, parts.data_bytes);
    copy_bytes(to->scales, from->scales, parts.scale_bytes);
    copy_bytes(to->second, from->second, parts.second_bytes);
}

/* count items of so many bytes each, out of groups of from_count of them, into groups of count: from item start of each group on. */
static void copy_groups(void *to, const void *from, size_t bytes, int64_t groups, int64_t start, int64_t count, int64_t from_count) {
    if (bytes == 0 || count == 0) return;   /* what a format does not have has no address either */
    for (int64_t i = 0; i < groups; i++)
        copy_bytes((uint8_t *)to + (size_t)(i * count) * bytes, (const uint8_t *)from + (size_t)(i * from_count + start) * bytes, (size_t)count * bytes);
}

/* Rows, or whole blocks of all rows, of a tensor in blocks. Of one row of blocks or of scales the bytes follow each other, and so do rows, and matrices. */
static dw_status slice_blocks(const op_call *call) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    const num_format *info = num_info(x->format);
    const num_matrix from = op_tensor_matrix(x), to = op_tensor_matrix(out);
    const int64_t axis = op_attr_int(call->attrs, OP_ATTR_axis), size = x->dims[axis], count = out->dims[axis];
    const size_t scale = (size_t)num_info(info->scale)->bits / 8;
    int64_t start, groups = 1;
    num_parts of_x, of_out;
    TRY(dim_eval(call->context, op_attr_dim(call->attrs, OP_ATTR_start), call->symbols, &start));
    if (start < 0 || count > size || start > size - count) return base_fail(call->context, DW_INVALID, "slice: start or end lies outside the axis, which has size %lld", (long long)size);
    if (!num_layout(x->format, x->scale_layout, x->rank, x->dims, &of_x) || !num_layout(out->format, out->scale_layout, out->rank, out->dims, &of_out))
        return base_fail(call->context, DW_LIMIT, "slice: x is too large to address");
    for (int64_t i = 0; i < axis && i < x->rank - 1; i++) groups *= x->dims[i];
    if (axis == x->rank - 1) {
        const int64_t rows = from.batches * from.rows;
        for (int64_t row = 0; row < rows; row++)
            copy_bytes(to.data + (size_t)row * num_row_bytes(to.format, to.cols), from.data + (size_t)row * num_row_bytes(from.format, from.cols) + num_row_bytes(from.format, start), num_row_bytes(to.format, to.cols));
        if (info->cols > 0) copy_groups(to.scales, from.scales, scale, from.batches * of_x.scale_rows, start / info->cols, of_out.scale_cols, of_x.scale_cols);
        else copy_bytes(to.scales, from.scales, of_out.scale_bytes);
        copy_bytes(to.second, from.second, of_out.second_bytes);
        return DW_OK;
    }
    int64_t lines = 1;   /* rows behind the axis */
    for (int64_t i = axis + 1; i < x->rank - 1; i++) lines *= x->dims[i];
    copy_groups(to.data, from.data, num_row_bytes(from.format, from.cols) * (size_t)lines, groups, start, count, size);
    const int64_t block = axis == x->rank - 2 && info->rows > 1 ? info->rows : 1;
    const size_t line = scale * (size_t)of_x.scale_cols * (axis == x->rank - 2 ? 1 : (size_t)(of_x.scale_rows * (lines / (from.rows > 0 ? from.rows : 1))));
    if (info->rows == 0) copy_bytes(to.scales, from.scales, of_out.scale_bytes);
    else copy_groups(to.scales, from.scales, line, groups, start / block, base_ceil_div(count, block), base_ceil_div(size, block));
    if (info->second == 2) copy_groups(to.second, from.second, sizeof(float) * (size_t)lines, groups, start, count, size);
    else copy_bytes(to.second, from.second, of_out.second_bytes);
    return DW_OK;
}

dw_status view_reference(const op_call *call) {
    dw_tensor view;
    if (call->op->id == OP_slice && op_is_block(call->in[0]->format)) return slice_blocks(call);
    if (is_packed(call->in[0])) copy_packed(call->out[0], call->in[0]);
    else if (call->op->id == OP_reshape) copy_in_order(call->out[0], call->in[0]);
    else if (op_tensor_view(call, &view)) copy_all(call->out[0], &view);
    else return base_fail(call->context, DW_INVALID, "%s: start or end lies outside the axis, which has size %lld", call->op->name,
                          (long long)call->in[0]->dims[op_attr_int(call->attrs, OP_ATTR_axis)]);
    return DW_OK;
}

/* Of the copy that the reference makes: what is read is what is written. */
void view_work(const op_call *call, op_work *work) {
    op_work_each(call, 0, work);
    op_work_reads(call, 0, op_tensor_bytes(call->out[0]), work);
}
