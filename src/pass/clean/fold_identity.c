/* Steps that change nothing, bit for bit. What holds for real numbers alone is not here: x + 0.0 turns -0.0 into 0.0 (x + -0.0 and
 * x - 0.0 are exact), 0 * x is not 0 for an infinity, (x + a) + b rounds twice. A NaN stays a NaN; its payload may change.
 *
 *     %1 = mul x, 1            ->   x             %1 = cast x {to=f32}, %2 = cast %1 {to=bf16}, x bf16      ->   x
 *     %1 = where true, x, y    ->   x             %1 = transpose x, %2 = transpose %1                       ->   %1 = transpose x */
#include "pass/clean/fold.h"

#include <math.h>

static bool is_whole(dw_format format) {
    num_class class = num_info(format)->class;
    return class == NUM_BOOL || class == NUM_SIGNED || class == NUM_UNSIGNED;
}

/* ---- arithmetic with a constant operand ---- */

/* Does op leave x as it is when its operand at index is that number everywhere? */
static bool is_neutral(op_id op, int index, dw_format format, double number) {
    bool is_zero = number == 0.0;
    switch (op) {
    case OP_add: return is_zero && (is_whole(format) || signbit(number));
    case OP_sub: return is_zero && index == 1 && (is_whole(format) || !signbit(number));
    case OP_mul: return number == 1.0;
    case OP_div:
    case OP_pow: return number == 1.0 && index == 1;
    case OP_floordiv: return number == 1.0 && index == 1 && is_whole(format);
    case OP_and: return number == 1.0 && format == DW_FORMAT_bool;
    case OP_or:
    case OP_xor: return is_zero && is_whole(format);
    default: return false;
    }
}

/* Does op give that number whatever its other operand is? */
static bool is_absorbing(op_id op, dw_format format, double number) {
    bool is_zero = number == 0.0;
    switch (op) {
    case OP_mul: return is_zero && is_whole(format);
    case OP_and: return is_zero && is_whole(format);
    case OP_add:
    case OP_or: return number == 1.0 && format == DW_FORMAT_bool;
    default: return false;
    }
}

static dw_status fold_arithmetic(ir_graph *graph, const ir_node *node, ir_value **same) {
    ir_value *x = node->in[0].value, *y = node->in[1].value;
    const ir_value *out = node->out[0];
    bool is_choice = node->op == OP_minimum || node->op == OP_maximum || node->op == OP_and || node->op == OP_or;
    if (x == y && is_choice) return fold_as(graph, x, out, same);
    double number;
    if (fold_number(y, &number)) {
        if (is_neutral(node->op, 1, x->type.format, number)) return fold_as(graph, x, out, same);
        if (is_absorbing(node->op, x->type.format, number)) return fold_fill(graph, out, number, same);
    }
    if (fold_number(x, &number)) {
        if (is_neutral(node->op, 0, y->type.format, number)) return fold_as(graph, y, out, same);
        if (is_absorbing(node->op, y->type.format, number)) return fold_fill(graph, out, number, same);
    }
    return DW_OK;
}

/* f(f(x)) = x */
static dw_status fold_involution(const ir_node *node, ir_value **same) {
    const ir_node *inner = ir_def(node->in[0].value, node->op);
    if (inner != NULL) *same = inner->in[0].value;
    return DW_OK;
}

/* not (x = y) is x != y, of NaN too. */
static dw_status fold_not(ir_graph *graph, const ir_node *node, ir_value **same) {
    ir_value *x = node->in[0].value;
    const ir_node *equal = ir_def(x, OP_eq), *other = ir_def(x, OP_ne), *inner = equal != NULL ? equal : other;
    if (inner == NULL) return fold_involution(node, same);
    ir_value *const in[] = {inner->in[0].value, inner->in[1].value};
    return ir_emit(graph, equal != NULL ? OP_ne : OP_eq, 2, in, 0, NULL, same);
}

/* ---- casts ---- */

/* Is every value of from also one of to? */
static bool is_exact(dw_format from, dw_format to) {
    const num_format *a = num_info(from), *b = num_info(to);
    if (a->class == NUM_BOOL) return b->class != NUM_BLOCK && b->class != NUM_SCALE;
    int a_bits = a->class == NUM_SIGNED ? a->bits - 1 : a->bits;         /* of an integer's magnitude */
    int b_bits = b->class == NUM_SIGNED ? b->bits - 1 : b->bits;
    if (a->class == NUM_UNSIGNED || a->class == NUM_SIGNED) {
        if (b->class == NUM_FLOAT) return a_bits <= b->mantissa_bits + 1 && ldexp(1.0, a_bits) <= b->max;
        if (b->class == NUM_UNSIGNED) return a->class == NUM_UNSIGNED && a_bits <= b_bits;
        return b->class == NUM_SIGNED && a_bits <= b_bits;
    }
    if (a->class != NUM_FLOAT || b->class != NUM_FLOAT) return false;
    int a_least = 1 - a->bias - a->mantissa_bits, b_least = 1 - b->bias - b->mantissa_bits;    /* exponents of the least subnormals */
    bool has_specials = (!a->has_infinity || b->has_infinity) && (a->nan == NUM_NAN_NONE || b->nan != NUM_NAN_NONE);
    return has_specials && a->mantissa_bits <= b->mantissa_bits && a->max <= b->max && a_least >= b_least;
}

static bool is_view_of_one(const ir_node *node) { return (op_get(node->op)->traits & OP_TRAIT_VIEW) != 0 && node->n_in == 1; }

/* What was cast to a format that holds all of it, seen through views: the value of that format; NULL: there is none. Elements of less than a byte have no views. */
static ir_value *below_views(ir_value *x, dw_format format) {
    if (num_info(format)->bits < 8) return NULL;
    while (x->kind == IR_RESULT && is_view_of_one(x->node)) x = x->node->in[0].value;
    const ir_node *cast = ir_def(x, OP_cast);
    return cast != NULL && cast->in[0].value->type.format == format && is_exact(format, x->type.format) ? cast->in[0].value : NULL;
}

/* The views between value and what below_views finds, of that. */
static dw_status emit_views(ir_graph *graph, ir_value *value, ir_value *narrow, ir_value **made) {
    const ir_node *node = value->node;
    *made = narrow;
    if (!is_view_of_one(node)) return DW_OK;
    ir_value *from;
    TRY(emit_views(graph, node->in[0].value, narrow, &from));
    return ir_emit(graph, node->op, 1, &from, node->attrs.count, node->attrs.items, made);
}

static dw_status fold_cast(ir_graph *graph, const ir_node *node, ir_value **same) {
    ir_value *x = node->in[0].value;
    dw_format to = node->out[0]->type.format;
    if (x->type.format == to) {
        *same = x;
        return DW_OK;
    }
    ir_value *narrow = below_views(x, to);
    if (narrow != NULL) return emit_views(graph, x, narrow, same);
    const ir_node *inner = ir_def(x, OP_cast);
    if (inner == NULL || !is_exact(inner->in[0].value->type.format, x->type.format)) return DW_OK;
    return ir_emit_cast(graph, inner->in[0].value, to, same);
}

/* ---- choices ---- */

/* Is condition, for a row of some x, "every element is -inf"? Then that x; else NULL. */
static const ir_value *blind_rows(const ir_value *condition, int axis) {
    const ir_node *negation = ir_def(condition, OP_not), *reduce = ir_def(condition, OP_all);
    if (negation != NULL) reduce = ir_def(negation->in[0].value, OP_any);
    const int64_t *axes;
    if (reduce == NULL || op_attr_ints(&reduce->attrs, OP_ATTR_axes, &axes) != 1 || axes[0] != axis || !ir_bool(reduce, OP_ATTR_keep)) return NULL;
    const ir_value *low = reduce->in[0].value;
    op_id test = OP_eq;
    if (negation != NULL) {
        const ir_node *inner = ir_def(low, OP_not);
        if (inner == NULL) test = OP_ne;
        else low = inner->in[0].value;
    }
    const ir_node *compare = ir_def(low, test);
    for (int i = 0; compare != NULL && i < 2; i++) {
        double number;
        if (fold_number(compare->in[i].value, &number) && isinf(number) && number < 0) return compare->in[1 - i].value;
    }
    return NULL;
}

/* Below casts to formats that hold every value of the one before. */
static const ir_value *below_casts(const ir_value *value) {
    for (const ir_node *cast; (cast = ir_def(value, OP_cast)) != NULL && is_exact(cast->in[0].value->type.format, value->type.format);) value = cast->in[0].value;
    return value;
}

/* A softmax that is 0 in rows of -inf, as PyTorch spells out its attention: the op gives zeros there anyway. */
static ir_value *blind_softmax(ir_value *blind, ir_value *zero, ir_value *seen) {
    double number;
    const ir_node *softmax = ir_def(seen, OP_cast);
    softmax = ir_def(softmax != NULL ? softmax->in[0].value : seen, OP_softmax);
    if (softmax == NULL || !fold_number(zero, &number) || number != 0) return NULL;
    const ir_value *scores = softmax->in[0].value, *x = blind_rows(blind, (int)ir_int(softmax, OP_ATTR_axis));
    return x != NULL && below_casts(x) == below_casts(scores) ? seen : NULL;
}

static dw_status fold_where(ir_graph *graph, const ir_node *node, ir_value **same) {
    double condition;
    ir_value *x = node->in[1].value, *y = node->in[2].value, *softmax = blind_softmax(node->in[0].value, x, y);
    if (softmax != NULL) return fold_as(graph, softmax, node->out[0], same);
    if (fold_number(node->in[0].value, &condition)) return fold_as(graph, condition != 0.0 ? x : y, node->out[0], same);
    return x == y ? fold_as(graph, x, node->out[0], same) : DW_OK;
}

/* ---- views ---- */

static dw_status fold_transpose(ir_graph *graph, const ir_node *node, ir_value **same) {
    ir_value *x = node->in[0].value;
    const int64_t *order, *inner_order;
    int64_t both[DW_MAX_RANK];
    int rank = op_attr_ints(&node->attrs, OP_ATTR_order, &order);
    bool is_identity = true;
    for (int i = 0; i < rank; i++) is_identity = is_identity && order[i] == i;
    if (is_identity) {
        *same = x;
        return DW_OK;
    }
    const ir_node *inner = ir_def(x, OP_transpose);
    if (inner == NULL) return DW_OK;
    op_attr_ints(&inner->attrs, OP_ATTR_order, &inner_order);
    for (int i = 0; i < rank; i++) both[i] = inner_order[order[i]];
    return ir_emit_transpose(graph, inner->in[0].value, both, same);
}

static dw_status fold_slice(ir_graph *graph, const ir_node *node, ir_value **same) {
    ir_value *x = node->in[0].value;
    int64_t axis = ir_int(node, OP_ATTR_axis), step = ir_int(node, OP_ATTR_step), from;
    dim start = op_attr_dim(&node->attrs, OP_ATTR_start), end = op_attr_dim(&node->attrs, OP_ATTR_end);
    if (step == 1 && dim_is_constant(start, &from) && from == 0 && end == x->type.dims[axis]) {
        *same = x;
        return DW_OK;
    }
    const ir_node *inner = ir_def(x, OP_slice);
    if (inner == NULL || ir_int(inner, OP_ATTR_axis) != axis || ir_int(inner, OP_ATTR_step) != 1) return DW_OK;
    dim inner_start = op_attr_dim(&inner->attrs, OP_ATTR_start);
    TRY_DIM(graph->context, start, dim_add(graph->dims, start, inner_start));
    TRY_DIM(graph->context, end, dim_add(graph->dims, end, inner_start));
    if (!dim_always_le(graph->dims, end, inner->in[0].value->type.dims[axis])) return DW_OK;   /* each slice alone may be fine for all that is known */
    ir_value *sliced;
    TRY(ir_emit_slice(graph, inner->in[0].value, (int)axis, start, end, step, &sliced));
    return fold_as(graph, sliced, node->out[0], same);
}

static dw_status fold_view(ir_graph *graph, const ir_node *node, ir_value **same) {
    ir_value *x = node->in[0].value;
    const ir_value *out = node->out[0];
    const ir_node *inner;
    if (ir_def(x, OP_fill) != NULL) return fold_fill(graph, out, ir_real(x->node, OP_ATTR_value), same);
    switch (node->op) {
    case OP_transpose: return fold_transpose(graph, node, same);
    case OP_slice: return fold_slice(graph, node, same);
    case OP_reshape:
    case OP_broadcast:
        if (op_type_equal(&x->type, &out->type)) {
            *same = x;
            return DW_OK;
        }
        inner = ir_def(x, node->op);
        if (inner == NULL) return DW_OK;
        if (node->op == OP_broadcast) return ir_emit_broadcast(graph, inner->in[0].value, out->type.rank, out->type.dims, same);
        return ir_emit_reshape(graph, inner->in[0].value, out->type.rank, out->type.dims, same);
    default: return DW_OK;
    }
}

static bool is_zero_padding(const ir_node *node) {
    const op_attr_id sides[] = {OP_ATTR_before, OP_ATTR_after};
    for (size_t side = 0; side < COUNT_OF(sides); side++) {
        const dim *dims;
        int count = op_attr_dims(&node->attrs, sides[side], &dims);
        for (int i = 0; i < count; i++) {
            int64_t size;
            if (!dim_is_constant(dims[i], &size) || size != 0) return false;
        }
    }
    return true;
}

dw_status fold_identity(ir_graph *graph, const ir_node *node, ir_value **same) {
    *same = NULL;
    switch (node->op) {
    case OP_cast: return fold_cast(graph, node, same);
    case OP_where: return fold_where(graph, node, same);
    case OP_neg: return fold_involution(node, same);
    case OP_not: return fold_not(graph, node, same);
    case OP_concat:
        if (node->n_in == 1 && op_type_equal(&node->out[0]->type, &node->in[0].value->type)) *same = node->in[0].value;   /* of nvfp4 it has another format */
        return DW_OK;
    case OP_pad:
        if (is_zero_padding(node)) *same = node->in[0].value;
        return DW_OK;
    default: break;
    }
    unsigned traits = op_get(node->op)->traits;
    if ((traits & OP_TRAIT_VIEW) != 0) return fold_view(graph, node, same);
    if ((traits & OP_TRAIT_POINTWISE) != 0 && node->n_in == 2) return fold_arithmetic(graph, node, same);
    return DW_OK;
}
