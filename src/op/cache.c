/* cache_write: the keys or values of new tokens, of any rows, into a cache of several rows. A cache shorter than its text is a ring: a new
 * token takes the place of the one t before it. */
#include "op/family.h"

dw_status cache_infer(op_infer *infer) {
    static const char *const names[] = {"x", "y", "row", "position"};
    const op_type *x = infer->in[CACHE_X], *y = infer->in[CACHE_Y];
    for (int i = 0; i < 4; i++) {
        const op_type *type = infer->in[i];
        if (type == NULL) return base_fail(infer->context, DW_INVALID, "cache_write: %s is absent", names[i]);
        TRY(op_check_rank(infer, names[i], type, i < 2 ? 4 : 1, i < 2 ? 4 : 1));
        TRY(i < 2 ? op_check_element(infer, names[i], type) : op_check_integer(infer, names[i], type));
        if (i >= 2) TRY(op_check_same(infer, "s of y", y->dims[2], names[i], type->dims[0]));
    }
    int64_t rows;
    TRY(op_check_same_format(infer, "x", x, "y", y));
    if (!dim_is_constant(y->dims[0], &rows) || rows != 1)
        return base_fail(infer->context, DW_MISMATCH, "cache_write: axis 0 of y must be 1: the tokens of all rows lie along axis 2");
    TRY(op_check_same_axis(infer, 1, "x", x, "y", y));
    TRY(op_check_same_axis(infer, 3, "x", x, "y", y));
    *infer->out = *x;
    return DW_OK;
}

dw_status cache_reference(const op_call *call) {
    const dw_tensor *x = call->in[CACHE_X], *y = call->in[CACHE_Y], *rows = call->in[CACHE_ROW], *positions = call->in[CACHE_POSITION], *out = call->out[0];
    for (int64_t i = 0; i < y->dims[2]; i++) {
        int64_t row = op_load_int_at(rows, i * rows->strides[0]), position = op_load_int_at(positions, i * positions->strides[0]);
        if (row >= 0 && row < x->dims[0] && position >= 0 && x->dims[2] > 0) continue;
        return base_fail(call->context, DW_INVALID, "cache_write: token %lld goes to row %lld, position %lld; the cache has %lld rows of %lld", (long long)i,
                         (long long)row, (long long)position, (long long)x->dims[0], (long long)x->dims[2]);
    }
    walk w;
    walk_start(&w, 4, x->dims);
    int at_x = walk_add(&w, x), at_out = walk_add(&w, out);
    for (; w.left > 0; walk_next(&w)) op_copy_at(out, w.offset[at_out], x, w.offset[at_x]);
    for (int64_t i = 0; i < y->dims[2]; i++) {
        int64_t row = op_load_int_at(rows, i * rows->strides[0]), slot = op_load_int_at(positions, i * positions->strides[0]) % x->dims[2];
        for (int64_t g = 0; g < x->dims[1]; g++) {
            int64_t to = row * out->strides[0] + g * out->strides[1] + slot * out->strides[2], from = g * y->strides[1] + i * y->strides[2];
            for (int64_t c = 0; c < x->dims[3]; c++) op_copy_at(out, to + c * out->strides[3], y, from + c * y->strides[3]);
        }
    }
    return DW_OK;
}

/* What is written; the rest of x stays where it is. */
void cache_work(const op_call *call, op_work *work) {
    op_work_each(call, 0, work);
    op_work_reads(call, CACHE_X, 0, work);
    work->bytes_written = op_tensor_bytes(call->in[CACHE_Y]);
}
