/* Small constructions that several rules share: promotion, exact numbers, reductions, axes, products. */
#include "capture/program.h"

#include <math.h>
#include <string.h>

bool capture_dim_is(dim d, int64_t value) {
    int64_t known;
    return dim_is_constant(d, &known) && known == value;
}

/* ---- formats ---- */

static int category(dw_format format) {
    num_class class = num_info(format)->class;
    return class == NUM_BOOL ? 0 : class == NUM_UNSIGNED || class == NUM_SIGNED ? 1 : 2;
}

bool capture_is_float(dw_format format) { return category(format) == 2; }

/* torch.promote_types: the smallest format that holds both. */
static dw_format join(dw_format a, dw_format b) {
    int category_a = category(a), category_b = category(b);
    if (a == b) return a;
    if (category_a != category_b) return category_a > category_b ? a : b;
    int bits_a = dw_format_bits(a), bits_b = dw_format_bits(b);
    if (bits_a == bits_b) return category_a == 2 ? DW_FORMAT_f32 : DW_FORMAT_i16;   /* f16 and bf16; u8 and i8 */
    return bits_a > bits_b ? a : b;
}

dw_format capture_promote(dw_format a, int rank_a, dw_format b, int rank_b) {
    int kind_a = rank_a > 0 ? 2 : rank_a == 0, kind_b = rank_b > 0 ? 2 : rank_b == 0;
    if (kind_a == kind_b) return join(a, b);
    dw_format strong = kind_a > kind_b ? a : b, weak = kind_a > kind_b ? b : a;
    if (category(strong) >= category(weak)) return strong;
    return kind_a + kind_b < 2 || kind_a == 0 || kind_b == 0 ? (category(weak) == 2 ? DW_FORMAT_f32 : DW_FORMAT_i64) : weak;
}

static bool is_exact(dw_format format, double number) {
    return isnan(number) || num_decode(format, num_encode(format, number, false)) == number;
}

dw_status capture_emit_number(ir_graph *graph, op_id op, ir_value *x, double number, ir_value **result) {
    dw_format format = x->type.format;
    bool widen = capture_is_float(format) && dw_format_bits(format) < 32 && !is_exact(format, number);
    ir_value *scalar;
    if (widen) TRY(ir_emit_cast(graph, x, DW_FORMAT_f32, &x));
    TRY(ir_emit_scalar(graph, x->type.format, number, &scalar));
    TRY(ir_emit_2(graph, op, x, scalar, result));
    return widen && (*result)->type.format != DW_FORMAT_bool ? ir_emit_cast(graph, *result, format, result) : DW_OK;
}

/* ---- axes ---- */

dw_status capture_emit_attr(ir_graph *graph, op_id op, ir_value *x, op_attr attr, ir_value **result) {
    return ir_emit(graph, op, 1, &x, 1, &attr, result);
}

dw_status capture_emit_reduce(ir_graph *graph, op_id op, ir_value *x, int count, const int64_t *axes, bool keep, ir_value **result) {
    op_attr attrs[] = {op_set_ints(OP_ATTR_axes, count, axes), op_set_bool(OP_ATTR_keep, true)};
    return ir_emit(graph, op, 1, &x, keep ? 2 : 1, attrs, result);
}

dw_status capture_emit_unsqueeze(ir_graph *graph, ir_value *x, int axis, ir_value **result) {
    dim dims[DW_MAX_RANK + 1];
    int rank = x->type.rank;
    if (rank == DW_MAX_RANK) return base_fail(graph->context, DW_UNSUPPORTED, "a tensor with more than %d axes", DW_MAX_RANK);
    for (int i = 0; i < rank; i++) dims[i < axis ? i : i + 1] = x->type.dims[i];
    TRY_DIM(graph->context, dims[axis], dim_constant(graph->dims, 1));
    return ir_emit_reshape(graph, x, rank + 1, dims, result);
}

dw_status capture_emit_squeeze(ir_graph *graph, ir_value *x, int axis, ir_value **result) {
    dim dims[DW_MAX_RANK];
    for (int i = 0, at = 0; i < x->type.rank; i++) {
        if (i != axis) dims[at++] = x->type.dims[i];
    }
    return ir_emit_reshape(graph, x, x->type.rank - 1, dims, result);
}

dw_status capture_emit_swap(ir_graph *graph, ir_value *x, int a, int b, ir_value **result) {
    int64_t order[DW_MAX_RANK];
    *result = x;
    if (a == b) return DW_OK;
    for (int i = 0; i < x->type.rank; i++) order[i] = i == a ? b : i == b ? a : i;
    return ir_emit_transpose(graph, x, order, result);
}

/* ---- products ---- */

ir_value *capture_untransposed(const ir_value *value) {
    const ir_node *node = ir_def(value, OP_transpose);
    const int64_t *order;
    int rank = value->type.rank;
    if (node == NULL || rank < 2) return NULL;
    op_attr_ints(&node->attrs, OP_ATTR_order, &order);
    for (int i = 0; i < rank - 2; i++) {
        if (order[i] != i) return NULL;
    }
    return order[rank - 2] == rank - 1 ? ir_in(node, 0) : NULL;
}

dw_status capture_emit_matmul(ir_graph *graph, ir_value *a, ir_value *b, ir_value *bias, ir_value **result) {
    ir_value *stored = capture_untransposed(b);
    ir_value *in[] = {a, stored != NULL ? stored : b, bias};
    op_attr attrs[2];
    int count = 0;
    if (stored != NULL) attrs[count++] = op_set_bool(OP_ATTR_bt, true);
    if (bias != NULL) attrs[count++] = op_set_text(OP_ATTR_post, "bias");
    return ir_emit(graph, OP_matmul, bias != NULL ? 3 : 2, in, count, attrs, result);
}

/* ---- new values ---- */

dw_status capture_emit_fill(ir_graph *graph, int rank, const dim *dims, double value, dw_format format, ir_value **result) {
    op_attr attrs[] = {op_set_dims(OP_ATTR_shape, rank, dims), op_set_real(OP_ATTR_value, value), op_set_format(OP_ATTR_to, format)};
    return ir_emit(graph, OP_fill, 0, NULL, COUNT_OF(attrs), attrs, result);
}

dw_status capture_emit_reshape_scalar(ir_graph *graph, ir_value *x, ir_value **result) {
    return ir_emit_reshape(graph, x, 0, NULL, result);
}

dw_status capture_emit_index(ir_graph *graph, int rank, int axis, dim length, dw_format format, ir_value **result) {
    dim zero, one, dims[DW_MAX_RANK];
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    op_attr attrs[] = {op_set_dim(OP_ATTR_length, length), op_set_dim(OP_ATTR_start, zero), op_set_int(OP_ATTR_step, 1), op_set_format(OP_ATTR_to, format)};
    TRY(ir_emit(graph, OP_iota, 0, NULL, COUNT_OF(attrs), attrs, result));
    for (int i = 0; i < rank; i++) dims[i] = i == axis ? length : one;
    return ir_emit_reshape(graph, *result, rank, dims, result);
}

dw_status capture_emit_pad(ir_graph *graph, ir_value *x, const int64_t *before, const int64_t *after, double value, ir_value **result) {
    dim front[DW_MAX_RANK], back[DW_MAX_RANK];
    bool pads = false;
    for (int i = 0; i < x->type.rank; i++) {
        if (before[i] < 0 || after[i] < 0) {
            dim start, end = x->type.dims[i], less;
            TRY_DIM(graph->context, start, dim_constant(graph->dims, before[i] < 0 ? -before[i] : 0));
            TRY_DIM(graph->context, less, dim_constant(graph->dims, after[i] < 0 ? -after[i] : 0));
            TRY_DIM(graph->context, end, dim_sub(graph->dims, end, less));
            TRY(ir_emit_slice(graph, x, i, start, end, 1, &x));
        }
        TRY_DIM(graph->context, front[i], dim_constant(graph->dims, before[i] > 0 ? before[i] : 0));
        TRY_DIM(graph->context, back[i], dim_constant(graph->dims, after[i] > 0 ? after[i] : 0));
        pads = pads || before[i] > 0 || after[i] > 0;
    }
    *result = x;
    op_attr attrs[] = {op_set_dims(OP_ATTR_before, x->type.rank, front), op_set_dims(OP_ATTR_after, x->type.rank, back), op_set_real(OP_ATTR_value, value)};
    return pads ? ir_emit(graph, OP_pad, 1, (ir_value *[]){x}, COUNT_OF(attrs), attrs, result) : DW_OK;
}

dw_status capture_emit_flip(ir_graph *graph, ir_value *x, int axis, ir_value **result) {
    dim size = x->type.dims[axis], one, last;
    ir_value *index;
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    TRY_DIM(graph->context, last, dim_sub(graph->dims, size, one));
    op_attr attrs[] = {op_set_dim(OP_ATTR_length, size), op_set_dim(OP_ATTR_start, last), op_set_int(OP_ATTR_step, -1), op_set_format(OP_ATTR_to, DW_FORMAT_i64)};
    TRY(ir_emit(graph, OP_iota, 0, NULL, COUNT_OF(attrs), attrs, &index));
    op_attr attr = op_set_int(OP_ATTR_axis, axis);
    return ir_emit(graph, OP_take, 2, (ir_value *[]){x, index}, 1, &attr, result);
}

dw_status capture_broadcast_dims(capture_call *call, const op_type *a, const op_type *b, op_type *result) {
    int rank = a->rank > b->rank ? a->rank : b->rank;
    op_type made = {.format = a->format, .rank = rank};
    for (int i = 1; i <= rank; i++) {
        dim of_a = i <= a->rank ? a->dims[a->rank - i] : NULL, of_b = i <= b->rank ? b->dims[b->rank - i] : NULL;
        if (of_a != NULL && of_b != NULL && of_a != of_b && !capture_dim_is(of_a, 1) && !capture_dim_is(of_b, 1)) {
            return capture_fail(call, DW_MISMATCH, "its operands' shapes do not broadcast along axis %d", rank - i);
        }
        made.dims[rank - i] = of_a == NULL || (of_b != NULL && capture_dim_is(of_a, 1)) ? of_b : of_a;
    }
    *result = made;
    return DW_OK;
}
