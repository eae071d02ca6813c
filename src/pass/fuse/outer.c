/* Outer products, as angles of rotary embeddings are, are pointwise: of a vector along one axis and one along another. Spelled as products of matrices, transposed behind, and put
 * together of equal halves, they become one pointwise op of what they are made of, which chains take in.
 *
 *     %1 = matmul f, x              f const f32[8,1], x f32[b,1,s]             %1 = reshape x {shape=[b,s,1]}
 *     %2 = transpose %1 {order=[0,2,1]}                                        %2 = concat f', f' {axis=2}           f' = f as [1,1,8]; known at load
 *     %3 = concat %2, %2 {axis=2}                                       ->     %3 = mul %1, %2
 *     output y %3                                                              output y %3
 *
 * A product of one term is rounded as the multiplication is, but for the sign of a zero, which a sum that begins at zero loses. */
#include "pass/clean/fold.h"
#include "pass/fuse/fuse.h"

enum { MOST_PARTS = 8 };          /* of a concat */

static bool is_one(dim size) {
    int64_t value;
    return dim_is_constant(size, &value) && value == 1;
}

/* Axes are counted from the last one; those that a value does not have are of one. */
static bool is_one_from_last(const op_type *type, int from_last) { return from_last >= type->rank || is_one(type->dims[type->rank - 1 - from_last]); }

bool fuse_is_outer(const ir_node *node) {
    const op_type *type = &ir_out(node)->type;
    if (!op_has(node->op, OP_TRAIT_POINTWISE) || node->n_in < 2) return false;
    for (int i = 0; i < node->n_in; i++) {
        bool is_less = false;
        for (int k = 0; k < type->rank; k++) is_less = is_less || (is_one_from_last(&ir_in(node, i)->type, k) && !is_one_from_last(type, k));
        if (!is_less) return false;
    }
    return true;
}

/* ---- a product of one term ---- */

/* Below views and casts: what is repeated over a batch that no graph knows is a weight as well. */
static const ir_value *base_of(const ir_value *value) {
    while (value->kind == IR_RESULT && (op_has(value->node->op, OP_TRAIT_VIEW) || value->node->op == OP_cast)) value = ir_in(value->node, 0);
    return value;
}

/* Is it known before any input, and of no layer, to whose weights a policy may give a format? Buffers and numbers of the program are so. */
static bool is_factor(const ir_value *value) {
    const ir_value *base = base_of(value);
    if (base->kind == IR_PARAM) return fold_may_read(base);
    return base->kind == IR_RESULT && op_has(base->node->op, OP_TRAIT_CREATE);
}

/* Products of two activations are attention's, or come to be; those of gradients have the format of their layer. */
static bool has_one_term(const ir_node *node) {
    if (node->op != OP_matmul || node->n_in != 2 || node->origin.phase != NULL || *ir_attr_text(node, OP_ATTR_post) != '\0') return false;
    const ir_value *a = ir_in(node, 0), *b = ir_in(node, 1);
    if (!is_factor(a) && !is_factor(b)) return false;
    if (ir_is_weight(base_of(a)) && !is_factor(a)) return false;
    if (ir_is_weight(base_of(b)) && !is_factor(b)) return false;
    return is_one(a->type.dims[a->type.rank - (ir_bool(node, OP_ATTR_at) ? 2 : 1)]);
}

/* The format in which the one product is rounded as the sum is: that of all three, else f32, in which products of 16 bits are exact. COUNT: there is none. */
static dw_format common_format(const ir_node *node) {
    const dw_format formats[] = {ir_out(node)->type.format, ir_in(node, 0)->type.format, ir_in(node, 1)->type.format};
    bool is_same = true;
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        if (!fuse_is_float(formats[i])) return DW_FORMAT_COUNT;
        is_same = is_same && formats[i] == formats[0];
    }
    if (is_same) return formats[0];
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (formats[i] == DW_FORMAT_f64) return DW_FORMAT_COUNT;
    return DW_FORMAT_f32;
}

/* Is value along its last two axes what it was repeated from, and along the others that or as long as the other operand? Then both have the same products. */
static bool may_repeat(const ir_value *value, const ir_value *source, const ir_value *other) {
    for (int i = 0; i < value->type.rank; i++) {
        const dim size = value->type.dims[value->type.rank - 1 - i];
        const bool has = i < source->type.rank && source->type.dims[source->type.rank - 1 - i] == size;
        const bool other_has = i >= 2 && i < other->type.rank && other->type.dims[other->type.rank - 1 - i] == size;
        if (!has && !other_has) return false;
    }
    return true;
}

/* A column [..,m,1] or a row [..,1,n] in that format, without the repeats that the other operand makes, too. */
static dw_status emit_factor(ir_graph *graph, ir_value *value, const ir_value *other, bool is_column, dw_format format, ir_value **factor) {
    const ir_node *repeat = ir_def(value, OP_broadcast);
    if (repeat != NULL && may_repeat(value, ir_in(repeat, 0), other)) value = ir_in(repeat, 0);
    const op_type *type = &value->type;
    dim dims[DW_MAX_RANK], one;
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    const int rank = type->rank < 2 ? 2 : type->rank;
    for (int i = 0; i < rank; i++) dims[rank - 1 - i] = i < type->rank ? type->dims[type->rank - 1 - i] : one;
    const dim size = is_one(dims[rank - 1]) ? dims[rank - 2] : dims[rank - 1];
    dims[rank - 2] = is_column ? size : one;
    dims[rank - 1] = is_column ? one : size;
    TRY(ir_emit_reshape(graph, value, rank, dims, factor));
    return ir_emit_cast(graph, *factor, format, factor);
}

dw_status fuse_matmul_outer(ir_graph *graph, ir_node *node, bool *changed) {
    const dw_format format = has_one_term(node) ? common_format(node) : DW_FORMAT_COUNT;
    ir_value *a, *b, *made;
    if (format == DW_FORMAT_COUNT) return DW_OK;
    fuse_cursor(graph, node, node);
    TRY(emit_factor(graph, ir_in(node, 0), ir_in(node, 1), true, format, &a));
    TRY(emit_factor(graph, ir_in(node, 1), a, false, format, &b));
    TRY(ir_emit_2(graph, OP_mul, a, b, &made));
    TRY(ir_emit_cast(graph, made, ir_out(node)->type.format, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}

/* ---- transposes ---- */

/* Do axes of more than one come in the same order, behind the transpose of a result of that rank? Then it is a reshape of the operand. */
static bool keeps_order(const ir_value *operand, int rank, const int64_t *order) {
    int64_t last = -1;
    for (int i = 0; i < rank; i++) {
        if (is_one_from_last(&operand->type, rank - 1 - (int)order[i])) continue;
        if (order[i] < last) return false;
        last = order[i];
    }
    return true;
}

static dw_status emit_turned(ir_graph *graph, ir_value *operand, int rank, const int64_t *order, ir_value **turned) {
    dim dims[DW_MAX_RANK], one;
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    *turned = operand;
    if (operand->type.rank == 0) return DW_OK;
    const int missing = rank - operand->type.rank;
    for (int i = 0; i < rank; i++) dims[i] = order[i] < missing ? one : operand->type.dims[order[i] - missing];
    return ir_emit_reshape(graph, operand, rank, dims, turned);
}

dw_status fuse_transpose_outer(ir_graph *graph, ir_node *node, bool *changed) {
    ir_value *in[OP_CHAIN_READS], *made;
    const int64_t *order;
    if (node->op != OP_transpose || ir_in(node, 0)->kind != IR_RESULT || !fuse_is_single_use(graph, ir_in(node, 0))) return DW_OK;
    const ir_node *made_by = ir_in(node, 0)->node;
    const int rank = op_attr_ints(&node->attrs, OP_ATTR_order, &order);
    if (!fuse_is_outer(made_by)) return DW_OK;
    for (int i = 0; i < made_by->n_in; i++)
        if (!keeps_order(ir_in(made_by, i), rank, order)) return DW_OK;
    fuse_cursor(graph, node, made_by);
    for (int i = 0; i < made_by->n_in; i++) TRY(emit_turned(graph, ir_in(made_by, i), rank, order, &in[i]));
    TRY(ir_emit(graph, made_by->op, made_by->n_in, in, made_by->attrs.count, made_by->attrs.items, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}

/* ---- parts put together ---- */

/* Do all parts have constants as operand k, of the shape that the part has along the axis? from_last: the axis. */
static bool are_constants(const ir_node *concat, int k, int from_last) {
    const ir_value *first = ir_in(ir_in(concat, 0)->node, k);
    for (int i = 0; i < concat->n_in; i++) {
        const ir_value *value = ir_in(ir_in(concat, i)->node, k);
        const op_type *type = &value->type, *part = &ir_in(concat, i)->type;
        if (!ir_is_constant(value) || type->rank != first->type.rank || from_last >= type->rank) return false;
        for (int j = 0; j < type->rank; j++) {
            const dim expected = j == from_last ? part->dims[part->rank - 1 - j] : first->type.dims[type->rank - 1 - j];
            if (type->dims[type->rank - 1 - j] != expected) return false;
        }
    }
    return true;
}

/* Is operand k of all parts the same value, which does not change along the axis? */
static bool is_along(const ir_node *concat, int k, int from_last) {
    const ir_value *first = ir_in(ir_in(concat, 0)->node, k);
    for (int i = 1; i < concat->n_in; i++)
        if (ir_in(ir_in(concat, i)->node, k) != first) return false;
    return is_one_from_last(&first->type, from_last);
}

static bool are_alike(const ir_node *concat) {
    const ir_value *first = ir_in(concat, 0);
    for (int i = 0; i < concat->n_in; i++) {
        const ir_value *value = ir_in(concat, i);
        if (value->kind != IR_RESULT || !op_has(value->node->op, OP_TRAIT_POINTWISE) || value->node->op != first->node->op) return false;
        if (value->type.format != first->type.format || !op_attrs_equal(&value->node->attrs, &first->node->attrs)) return false;
    }
    return true;
}

dw_status fuse_concat_outer(ir_graph *graph, ir_node *node, bool *changed) {
    if (node->op != OP_concat || node->n_in < 2 || node->n_in > MOST_PARTS || !are_alike(node)) return DW_OK;
    const int from_last = ir_out(node)->type.rank - 1 - (int)ir_int(node, OP_ATTR_axis);
    const ir_node *part = ir_in(node, 0)->node;
    ir_value *in[OP_CHAIN_READS], *of_parts[MOST_PARTS], *made;
    int constants = 0;
    for (int k = 0; k < part->n_in; k++) {
        const bool is_constant = are_constants(node, k, from_last);
        if (!is_constant && !is_along(node, k, from_last)) return DW_OK;
        constants += is_constant;
    }
    if (constants == 0 || constants == part->n_in) return DW_OK;
    fuse_cursor(graph, node, part);
    for (int k = 0; k < part->n_in; k++) {
        in[k] = ir_in(part, k);
        if (!are_constants(node, k, from_last)) continue;
        for (int i = 0; i < node->n_in; i++) of_parts[i] = ir_in(ir_in(node, i)->node, k);
        const op_attr axis = op_set_int(OP_ATTR_axis, in[k]->type.rank - 1 - from_last);
        TRY(ir_emit(graph, OP_concat, node->n_in, of_parts, 1, &axis, &in[k]));
    }
    TRY(ir_emit(graph, part->op, part->n_in, in, part->attrs.count, part->attrs.items, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}
