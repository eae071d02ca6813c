/* matmul: a [..,m,k] times b [..,k,n], batch axes broadcast, a post list on the sums. contract.c says what block formats mean as operands; a result in a block
 * format is what quantize makes of the result in via. */
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

static dw_status check_result(op_infer *infer, const op_type *a, dw_format *format) {
    bool in_blocks;
    TRY(op_check_via(infer, &in_blocks));
    if (!in_blocks) return op_check_product_format(infer, a, format);
    *format = op_attr_format(infer->attrs, OP_ATTR_to);
    return DW_OK;
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
    TRY(check_result(infer, a, &infer->out->format));
    TRY(op_check_broadcast(infer, &batch_a, &batch_b, infer->out));
    TRY(op_add_axis(infer, infer->out, m));
    TRY(op_add_axis(infer, infer->out, n));
    return op_post_infer(infer, 2, NULL, infer->out);
}

/* The products of one call, a matrix of the result after the other. */
typedef struct matrices {
    const op_call *call;
    walk w;
    int at_out, at_a, at_b;
    op_post_run post;
} matrices;

static dw_status start(const op_call *call, matrices *m) {
    const dw_tensor *b = call->in[1], *out = call->out[0];
    m->call = call;
    walk_start(&m->w, out->rank, out->dims);
    walk_skip(&m->w, out->rank - 1);
    walk_skip(&m->w, out->rank - 2);
    m->at_out = walk_add(&m->w, out);
    m->at_a = walk_add(&m->w, call->in[0]);
    m->at_b = walk_add(&m->w, b);
    return op_post_run_start(call, 2, b->dims[b->rank - (op_attr_bool(call->attrs, OP_ATTR_bt) ? 2 : 1)], &m->w, &m->post);
}

/* The product of the walk's matrix, but for where its results go. */
static op_product product_of(const matrices *m) {
    const op_call *call = m->call;
    const dw_tensor *a = call->in[0];
    bool at = op_attr_bool(call->attrs, OP_ATTR_at), bt = op_attr_bool(call->attrs, OP_ATTR_bt);
    return (op_product){
        .a = op_rows_of(a, m->w.offset[m->at_a], !at),
        .b = op_rows_of(call->in[1], m->w.offset[m->at_b], bt),
        .k = a->dims[a->rank - (at ? 2 : 1)],
        .post = &m->post,
    };
}

enum { ROWS = 128 };              /* that are computed together, where a result is quantised: those of the tallest block */

/* Rows in the format that they are quantised from. */
typedef struct row_part {
    matrices *matrices;
    int64_t matrix, first;        /* first: row of the matrix; -1 before there is any */
    dw_tensor values;             /* [ROWS,n] */
} row_part;

static float rounded_at(void *argument, int64_t line, int64_t col) {
    row_part *part = argument;
    matrices *m = part->matrices;
    const dw_tensor *out = m->call->out[0];
    const int64_t rows = out->dims[out->rank - 2], cols = out->dims[out->rank - 1], row = line % rows, first = row / ROWS * ROWS;
    if (line / rows != part->matrix || first != part->first) {
        for (; part->matrix < line / rows; part->matrix++) walk_next(&m->w);
        op_product product = product_of(m);
        product.out = &part->values;
        product.out_offset = -first * cols;
        product.out_row_stride = cols;
        product.out_col_stride = 1;
        op_product_rows(&product, first, first + ROWS < rows ? first + ROWS : rows, 0, cols);
        part->first = first;
    }
    return (float)op_load_at(&part->values, (row - first) * cols + col);
}

/* A result in blocks. */
static dw_status quantised_reference(matrices *m, const dw_tensor *out) {
    const int64_t dims[] = {ROWS, out->dims[out->rank - 1]};
    const size_t bytes = (size_t)dims[0] * ((size_t)dims[1] + 1) * sizeof(float);   /* as many as any format has that results are quantised from */
    void *memory;
    TRY(base_alloc(m->call->context, bytes, 64, &memory));
    row_part part = {.matrices = m, .first = -1};
    op_tensor_init(&part.values, op_via(m->call->attrs), DW_SCALE_plain, 2, dims, memory);
    const dw_status status = op_quantize_elements(m->call, out, rounded_at, &part);
    base_release(m->call->context, memory, bytes, 64);
    return status;
}

dw_status matmul_reference(const op_call *call) {
    const dw_tensor *out = call->out[0];
    int rank = out->rank;
    matrices m;
    TRY(start(call, &m));
    if (op_is_block(out->format)) return quantised_reference(&m, out);
    bool empty = op_tensor_count(out) == 0;
    for (; !empty && m.w.left > 0; walk_next(&m.w)) {
        op_product product = product_of(&m);
        product.out = out;
        product.out_offset = m.w.offset[m.at_out];
        product.out_row_stride = out->strides[rank - 2];
        product.out_col_stride = out->strides[rank - 1];
        op_product_rows(&product, 0, out->dims[rank - 2], 0, out->dims[rank - 1]);
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
