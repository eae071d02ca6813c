/* Integers that are places along an axis of known size: a comparison that their range decides becomes a fill, a minimum or maximum that never chooses goes. So go the masks of experts that nobody has,
 * which routers spell out for models whose experts are shared out.
 *
 *     %1, %2 = topk x [t,8] {length=2}
 *     %3 = ge %2, 8                    ->    false
 *     %4 = minimum %2, 7               ->    %2 */
#include "pass/clean/fold.h"

typedef struct range { int64_t low, high; } range;

/* The places along the axis of node's operand; false: their number is not known, or there are none. */
static bool places_of(const ir_node *node, int64_t axis, range *r) {
    int64_t size;
    if (!dim_is_constant(ir_in(node, 0)->type.dims[axis], &size) || size < 1) return false;
    *r = (range){0, size - 1};
    return true;
}

/* The largest number of an integer format; -1 of others. */
static int64_t largest_of(dw_format format) {
    const num_format *info = num_info(format);
    if (info->class != NUM_SIGNED && info->class != NUM_UNSIGNED) return -1;
    const int bits = info->class == NUM_SIGNED ? info->bits - 1 : info->bits;
    return bits >= 63 ? INT64_MAX : ((int64_t)1 << bits) - 1;
}

/* Places below casts that hold them all, views, and orders of them. */
static bool range_of(const ir_value *value, range *r) {
    enum { STEPS = 16 };
    int64_t most = INT64_MAX;
    for (int step = 0; step < STEPS; step++) {
        const ir_node *node = value->kind == IR_RESULT ? value->node : NULL;
        const int64_t largest = largest_of(value->type.format);
        if (node == NULL || largest < 0) return false;
        if (largest < most) most = largest;
        const bool orders = node->op == OP_sort || node->op == OP_topk || node->op == OP_choose;
        if (orders && value == node->out[1]) return places_of(node, ir_int(node, OP_ATTR_axis), r) && r->high <= most;
        if (!orders && node->op != OP_cast && (op_get(node->op)->traits & OP_TRAIT_VIEW) == 0) return false;
        value = ir_in(node, 0);
    }
    return false;
}

static bool compare(op_id op, double x, double y) {
    switch (op) {
    case OP_lt: return x < y;
    case OP_le: return x <= y;
    case OP_gt: return x > y;
    default: return x >= y;
    }
}

/* -1: the range does not decide it. */
static int decided(op_id op, const range *r, double number, bool number_first) {
    if (op == OP_eq || op == OP_ne) return number < (double)r->low || number > (double)r->high ? op == OP_ne : -1;
    const bool low = number_first ? compare(op, number, (double)r->low) : compare(op, (double)r->low, number);
    const bool high = number_first ? compare(op, number, (double)r->high) : compare(op, (double)r->high, number);
    return low == high ? low : -1;
}

dw_status fold_ranges(ir_graph *graph, const ir_node *node, ir_value **same) {
    const bool compares = node->op == OP_eq || node->op == OP_ne || node->op == OP_lt || node->op == OP_le || node->op == OP_gt || node->op == OP_ge;
    *same = NULL;
    if (!compares && node->op != OP_minimum && node->op != OP_maximum) return DW_OK;
    for (int i = 0; i < 2; i++) {
        ir_value *x = ir_in(node, i);
        double number;
        range r;
        if (!fold_number(ir_in(node, 1 - i), &number) || !range_of(x, &r)) continue;
        const int answer = compares ? decided(node->op, &r, number, i == 1) : -1;
        if (answer >= 0) return fold_fill(graph, ir_out(node), answer, same);
        const bool never_chooses = node->op == OP_minimum ? number >= (double)r.high : node->op == OP_maximum && number <= (double)r.low;
        return never_chooses ? fold_as(graph, x, ir_out(node), same) : DW_OK;
    }
    return DW_OK;
}
