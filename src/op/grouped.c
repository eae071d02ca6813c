/* grouped_matmul: rows of a in consecutive groups, each times its own matrix of b, as the experts of a mixture do; or in padded groups, each of as many rows, of which the first are its own. grouped_outer: for
 * each group the product of its rows of a, transposed, with its rows of b, as the gradients of the experts' weights are; rows in no group have no part, and a group without rows gives 0. */
#include "op/family.h"

#include <math.h>

static dw_status check_offsets(op_infer *infer, const op_type *offsets) {
    TRY(op_check_rank(infer, "offsets", offsets, 1, 1));
    if (offsets->format == DW_FORMAT_i32) return DW_OK;
    return base_fail(infer->context, DW_MISMATCH, "%s: offsets is %s, it must be i32", infer->op->name, dw_format_name(offsets->format));
}

/* Each group has as many rows. */
static dw_status check_padded(op_infer *infer, dim rows, dim groups) {
    if (op_attrs_get(infer->attrs, OP_ATTR_padded) == NULL) return DW_OK;
    const int64_t expected = op_attr_int(infer->attrs, OP_ATTR_padded);
    int64_t count;
    dim each;
    if (expected < 1) return base_fail(infer->context, DW_INVALID, "%s: padded is %lld; a group is expected to have 1 row or more", infer->op->name, (long long)expected);
    if (dim_is_constant(groups, &count) && count == 0) return DW_OK;
    TRY(dim_divide(infer->dims, rows, groups, &each));
    if (each != NULL) return DW_OK;
    return base_fail(infer->context, DW_MISMATCH, "%s: the rows of a are no multiple of the number of groups, and padded groups have as many rows each", infer->op->name);
}

static dw_status infer_matmul(op_infer *infer) {
    const op_type *a = infer->in[0], *b = infer->in[1], *offsets = infer->in[2];
    bool bt = op_attr_bool(infer->attrs, OP_ATTR_bt);
    TRY(op_check_rank(infer, "a", a, 2, 2));
    TRY(op_check_rank(infer, "b", b, 3, 3));
    TRY(check_offsets(infer, offsets));
    TRY(op_check_factors(infer, a, b, true, bt));
    TRY(op_check_same(infer, "k of a", a->dims[1], "k of b", b->dims[bt ? 2 : 1]));
    TRY(op_check_same(infer, "the number of groups of b", b->dims[0], "that of offsets", offsets->dims[0]));
    TRY(check_padded(infer, a->dims[0], b->dims[0]));
    TRY(op_check_product_format(infer, a, &infer->out->format));
    TRY(op_add_axis(infer, infer->out, a->dims[0]));
    TRY(op_add_axis(infer, infer->out, b->dims[bt ? 1 : 2]));
    return op_post_infer(infer, 3, b->dims[0], infer->out);
}

static dw_status infer_outer(op_infer *infer) {
    const op_type *a = infer->in[0], *b = infer->in[1], *offsets = infer->in[2];
    const dw_format to = op_attr_format(infer->attrs, OP_ATTR_to);
    for (int i = 0; i < 2; i++) {
        TRY(op_check_rank(infer, i == 0 ? "a" : "b", infer->in[i], 2, 2));
        TRY(op_check_number(infer, i == 0 ? "a" : "b", infer->in[i]));
        TRY(op_check_float(infer, i == 0 ? "a" : "b", infer->in[i]));
    }
    TRY(check_offsets(infer, offsets));
    TRY(op_check_same(infer, "rows of a", a->dims[0], "rows of b", b->dims[0]));
    if (to != DW_FORMAT_COUNT) TRY(op_check_to(infer, to));
    infer->out->format = to != DW_FORMAT_COUNT ? to : a->format;
    TRY(op_check_float(infer, "the result", infer->out));
    TRY(op_add_axis(infer, infer->out, offsets->dims[0]));
    TRY(op_add_axis(infer, infer->out, a->dims[1]));
    return op_add_axis(infer, infer->out, b->dims[1]);
}

dw_status grouped_infer(op_infer *infer) { return infer->op->id == OP_grouped_matmul ? infer_matmul(infer) : infer_outer(infer); }

int64_t op_rows_apart(const op_call *call) {
    const int64_t groups = call->in[2]->dims[0];
    return op_attr_int(call->attrs, OP_ATTR_padded) > 0 && groups > 0 ? call->in[0]->dims[0] / groups : 0;
}

dw_status op_group_rows(const op_call *call, int64_t group, int64_t *begin, int64_t *end) {
    const dw_tensor *offsets = call->in[2];
    const int64_t rows = call->in[0]->dims[0], apart = op_rows_apart(call), offset = op_load_int_at(offsets, group * offsets->strides[0]);
    if (apart > 0) {
        *begin = group * apart, *end = *begin + offset;
        if (offset >= 0 && offset <= apart) return DW_OK;
        return base_fail(call->context, DW_INVALID, "%s: offsets[%lld] is %lld; of padded groups it must be from 0 to %lld (the rows of each)", call->op->name, (long long)group, (long long)offset,
                         (long long)apart);
    }
    *begin = group > 0 ? op_load_int_at(offsets, (group - 1) * offsets->strides[0]) : 0, *end = offset;
    if (*end >= *begin && *end <= rows) return DW_OK;
    return base_fail(call->context, DW_INVALID, "%s: offsets[%lld] is %lld; it must be from %lld (the one before) to %lld (the rows of a)", call->op->name, (long long)group,
                     (long long)*end, (long long)*begin, (long long)rows);
}

static void clear_rows(const dw_tensor *out, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++)
        for (int64_t col = 0; col < out->dims[1]; col++) op_store_at(out, row * out->strides[0] + col * out->strides[1], 0);
}

static dw_status make_rows(const op_call *call) {
    const dw_tensor *a = call->in[0], *b = call->in[1], *out = call->out[0];
    bool bt = op_attr_bool(call->attrs, OP_ATTR_bt);
    const int64_t apart = op_rows_apart(call), rows = a->dims[0];
    int64_t cleared = 0, b_strides[DW_MAX_RANK] = {0};      /* cleared: rows in front of it are done */
    op_strides(b, b_strides);
    walk w;
    walk_start(&w, 2, out->dims);
    op_post_run post;
    TRY(op_post_run_start(call, 3, b->dims[bt ? 1 : 2], &w, &post));
    for (int64_t group = 0; group < b->dims[0]; group++) {
        int64_t begin, end;
        TRY(op_group_rows(call, group, &begin, &end));
        op_product product = {
            .a = op_rows_of(a, 0, true),
            .b = op_rows_of(b, group * b_strides[0], bt),
            .k = a->dims[1],
            .group = group,
            .post = &post,
            .out = out,
            .out_row_stride = out->strides[0],
            .out_col_stride = out->strides[1],
        };
        op_product_rows(&product, begin, end, 0, out->dims[1]);
        cleared = apart > 0 ? begin + apart : end;
        clear_rows(out, end, cleared);
    }
    clear_rows(out, cleared, rows);
    return DW_OK;
}

static dw_status make_matrices(const op_call *call) {
    const dw_tensor *a = call->in[0], *b = call->in[1], *out = call->out[0];
    static const op_attrs none = {0};
    walk w;
    op_call plain = *call;
    op_post_run post;
    plain.attrs = &none;
    plain.n_in = 3;
    walk_start(&w, 3, out->dims);
    TRY(op_post_run_start(&plain, 3, b->dims[1], &w, &post));
    for (int64_t group = 0; group < out->dims[0]; group++) {
        int64_t begin, end;
        TRY(op_group_rows(call, group, &begin, &end));
        op_product product = {
            .a = op_rows_of(a, begin * a->strides[0], false),
            .b = op_rows_of(b, begin * b->strides[0], false),
            .k = end - begin,
            .post = &post,
            .out = out,
            .out_offset = group * out->strides[0],
            .out_row_stride = out->strides[1],
            .out_col_stride = out->strides[2],
        };
        op_product_rows(&product, 0, out->dims[1], 0, out->dims[2]);
    }
    return DW_OK;
}

dw_status grouped_reference(const op_call *call) { return call->op->id == OP_grouped_matmul ? make_rows(call) : make_matrices(call); }

static void work_of_outer(const op_call *call, op_work *work) {
    const dw_tensor *a = call->in[0], *b = call->in[1];
    op_work_each(call, 0, work);
    work->flops = 2.0 * (double)a->dims[0] * (double)a->dims[1] * (double)b->dims[1];
}

double op_group_rows_expected(const op_call *call) {
    const double rows = (double)call->in[0]->dims[0], apart = (double)op_rows_apart(call);
    return apart > 0 ? rows / apart * fmin(apart, (double)op_attr_int(call->attrs, OP_ATTR_padded)) : rows;
}

double op_groups_filled(const op_call *call) {
    const double rows = (double)call->in[0]->dims[0], groups = (double)call->in[2]->dims[0];
    return op_rows_apart(call) > 0 || groups <= 1 ? groups : groups * (1 - pow(1 - 1 / groups, rows));
}

/* 2 t n k: as if every row were in a group, or as many as padded groups are expected to have, which are the rows that are read; the data alone know. All rows are written. */
static void work_of_matmul(const op_call *call, op_work *work) {
    const dw_tensor *a = call->in[0], *b = call->in[1];
    const double groups = (double)b->dims[0], rows = op_group_rows_expected(call), filled = groups > 1 ? op_groups_filled(call) / groups : 1;
    bool bt = op_attr_bool(call->attrs, OP_ATTR_bt);
    op_work_each(call, 0, work);
    op_work_reads(call, 1, filled * op_tensor_bytes(b), work);
    if (op_rows_apart(call) > 0) op_work_reads(call, 0, rows / (double)a->dims[0] * op_tensor_bytes(a), work);
    work->flops = 2.0 * rows * (double)a->dims[1] * (double)b->dims[bt ? 1 : 2];
}

void grouped_work(const op_call *call, op_work *work) {
    if (call->op->id == OP_grouped_matmul) work_of_matmul(call, work);
    else work_of_outer(call, work);
}
