/* matmul: a [..,m,k] times b [..,k,n], batch axes broadcast, a post list on the sums. contract.c says what block formats mean. */
#include "op/family.h"

/* Formats that go together: b in a's floating-point format or in any other one (weights alone in low precision), or both in blocks. */
dw_status op_check_factors(op_infer *infer, const op_type *a, const op_type *b, bool k_last_in_a, bool k_last_in_b) {
    if (op_is_block(a->format)) {
        if (!op_is_block(b->format))
            return base_fail(infer->context, DW_UNSUPPORTED, "%s: a is %s, b is %s; quantize b or dequantize a", infer->op->name,
                             dw_format_name(a->format), dw_format_name(b->format));
        if (!k_last_in_a)
            return base_fail(infer->context, DW_UNSUPPORTED, "%s: a is %s, whose blocks run along its last axis, and at makes that m; k must be the last axis",
                             infer->op->name, dw_format_name(a->format));
    } else {
        TRY(op_check_number(infer, "a", a));
        TRY(op_check_float(infer, "a", a));
    }
    if (!op_is_block(b->format)) return op_check_float(infer, "b", b);
    if (k_last_in_b) return DW_OK;
    return base_fail(infer->context, DW_UNSUPPORTED, "%s: b is %s, whose blocks run along its last axis, which is n; store it as [n,k] and set bt",
                     infer->op->name, dw_format_name(b->format));
}

dw_status op_check_product_format(op_infer *infer, const op_type *a, dw_format *format) {
    dw_format to = op_attr_format(infer->attrs, OP_ATTR_to);
    *format = to != DW_FORMAT_COUNT ? to : op_is_block(a->format) ? DW_FORMAT_f32 : a->format;
    if (to == DW_FORMAT_COUNT || (op_is_float(to) && num_info(to)->bits >= 16)) return DW_OK;
    return base_fail(infer->context, DW_INVALID, "%s: to is %s; it must be f64, f32, f16 or bf16", infer->op->name, dw_format_name(to));
}

dw_status matmul_infer(op_infer *infer) {
    const op_type *a = infer->in[0], *b = infer->in[1];
    bool at = op_attr_bool(infer->attrs, OP_ATTR_at), bt = op_attr_bool(infer->attrs, OP_ATTR_bt);
    TRY(op_check_rank(infer, "a", a, 2, DW_MAX_RANK));
    TRY(op_check_rank(infer, "b", b, 2, DW_MAX_RANK));
    TRY(op_check_factors(infer, a, b, !at, bt));
    dim m = a->dims[a->rank - (at ? 1 : 2)], k = a->dims[a->rank - (at ? 2 : 1)];
    dim n = b->dims[b->rank - (bt ? 2 : 1)], k_of_b = b->dims[b->rank - (bt ? 1 : 2)];
    TRY(op_check_same(infer, "k of a", k, "k of b", k_of_b));
    op_type batch_a = *a, batch_b = *b;
    batch_a.rank -= 2;
    batch_b.rank -= 2;
    TRY(op_check_product_format(infer, a, &infer->out->format));
    TRY(op_check_broadcast(infer, &batch_a, &batch_b, infer->out));
    TRY(op_add_axis(infer, infer->out, m));
    TRY(op_add_axis(infer, infer->out, n));
    return op_post_infer(infer, 2, NULL, infer->out);
}

dw_status matmul_reference(const op_call *call) {
    const dw_tensor *a = call->in[0], *b = call->in[1], *out = call->out[0];
    bool at = op_attr_bool(call->attrs, OP_ATTR_at), bt = op_attr_bool(call->attrs, OP_ATTR_bt);
    int rank = out->rank;
    walk w;
    walk_start(&w, rank, out->dims);
    bool empty = w.left == 0;
    walk_skip(&w, rank - 1);
    walk_skip(&w, rank - 2);
    int at_out = walk_add(&w, out), at_a = walk_add(&w, a), at_b = walk_add(&w, b);
    op_post_run post;
    TRY(op_post_run_start(call, 2, b->dims[b->rank - (bt ? 2 : 1)], &w, &post));
    for (; !empty && w.left > 0; walk_next(&w)) {
        op_product product = {
            .a = op_rows_of(a, w.offset[at_a], !at),
            .b = op_rows_of(b, w.offset[at_b], bt),
            .k = a->dims[a->rank - (at ? 2 : 1)],
            .post = &post,
            .out = out,
            .out_offset = w.offset[at_out],
            .out_row_stride = out->strides[rank - 2],
            .out_col_stride = out->strides[rank - 1],
        };
        op_product_rows(&product, 0, out->dims[rank - 2], out->dims[rank - 1]);
    }
    return DW_OK;
}

/* 2 m n k for each batch, n before the post list halves it; what the list costs is not counted. */
void matmul_work(const op_call *call, op_work *work) {
    const dw_tensor *a = call->in[0], *b = call->in[1], *out = call->out[0];
    bool at = op_attr_bool(call->attrs, OP_ATTR_at), bt = op_attr_bool(call->attrs, OP_ATTR_bt);
    op_work_each(call, 0, work);
    work->flops = 2.0 * (double)b->dims[b->rank - (bt ? 2 : 1)] * (double)a->dims[a->rank - (at ? 2 : 1)];
    for (int i = 0; i < out->rank - 1; i++) work->flops *= (double)out->dims[i];
}
