/* Axes: where the elements lie that an operand's part gives. One function for each rule of shard.def; looking ahead (wish.c) and cutting (shard.c) ask the same ones. */
#include "pass/shard/shard.h"

static const shard_step nowhere = {-1, 1, 1};

static shard_step at(int axis) { return (shard_step){axis, 1, 1}; }

bool shard_constant_size(const ir_value *value, int axis, int64_t *size) { return axis >= 0 && axis < value->type.rank && dim_is_constant(value->type.dims[axis], size) && *size > 1; }

static bool is_one(dim d) {
    int64_t one;
    return dim_is_constant(d, &one) && one == 1;
}

/* Axes are aligned at the last one; an operand of size 1 gives to all. */
static shard_step follow_pointwise(const ir_node *node, int index, int axis) {
    const op_type *x = &ir_in(node, index)->type, *y = &ir_out(node)->type;
    const int to = axis + y->rank - x->rank;
    return to >= 0 && x->dims[axis] == y->dims[to] ? at(to) : nowhere;
}

/* Axes of both sides in groups of equal products, from the last on. In its group an axis goes on when those in front of it are 1: then it cuts the group in one piece, as the first axis of the other side
 * that is not 1 does. */
static shard_step follow_reshape(const ir_node *node, int index, int axis) {
    const op_type *x = &ir_in(node, index)->type, *y = &ir_out(node)->type;
    int i = x->rank, j = y->rank;
    while (i > 0 && j > 0) {
        int64_t a = 1, b = 1;
        bool constant = true, symbol = false;
        int from = i, to = j;
        if (x->dims[i - 1] == y->dims[j - 1]) {
            i--, j--;
            if (axis == i) return at(j);
            continue;
        }
        do {
            int64_t size;
            if (a <= b ? i == 0 : j == 0) {
                if (a == b) break;
                return nowhere;
            }
            const dim next = a <= b ? x->dims[--i] : y->dims[--j];
            constant = dim_is_constant(next, &size) && size > 0;
            if (!constant || !base_mul_i64(a <= b ? a : b, size, a <= b ? &a : &b)) symbol = true;
        } while (!symbol && (a != b || a == 1));
        if (axis >= i && axis < from) {
            int64_t times = 1, per = 1, size;
            if (symbol) return nowhere;
            for (int k = i; k < axis; k++)
                if (!is_one(x->dims[k])) return nowhere;
            for (int k = axis + 1; k < from; k++) times *= dim_is_constant(x->dims[k], &size) ? size : 1;
            while (j < to && is_one(y->dims[j])) j++;
            for (int k = j + 1; k < to; k++) per *= dim_is_constant(y->dims[k], &size) ? size : 1;
            return j < to ? (shard_step){j, times, per} : nowhere;
        }
        if (symbol) return nowhere;
    }
    return nowhere;
}

static shard_step follow_transpose(const ir_node *node, int index, int axis) {
    const int64_t *order;
    const int count = op_attr_ints(&node->attrs, OP_ATTR_order, &order);
    (void)index;
    for (int i = 0; i < count; i++)
        if (order[i] == axis) return at(i);
    return nowhere;
}

static shard_step follow_broadcast(const ir_node *node, int index, int axis) { return follow_pointwise(node, index, axis); }

/* All axes but the one that the op is about. */
static shard_step follow_other_axes(const ir_node *node, int index, int axis) {
    (void)index;
    return axis != ir_int(node, OP_ATTR_axis) ? at(axis) : nowhere;
}

static shard_step follow_pad(const ir_node *node, int index, int axis) {
    const dim *before, *after;
    int64_t a, b;
    (void)index;
    op_attr_dims(&node->attrs, OP_ATTR_before, &before);
    op_attr_dims(&node->attrs, OP_ATTR_after, &after);
    return dim_is_constant(before[axis], &a) && dim_is_constant(after[axis], &b) && a == 0 && b == 0 ? at(axis) : nowhere;
}

/* Axes of the table beside the one that is looked up along. */
static shard_step follow_take(const ir_node *node, int index, int axis) {
    const int along = (int)ir_int(node, OP_ATTR_axis);
    if (index != 0 || axis == along) return nowhere;
    return at(axis < along ? axis : axis + ir_in(node, 1)->type.rank - 1);
}

static shard_step follow_reduce(const ir_node *node, int index, int axis) {
    const int64_t *axes;
    const int count = op_attr_ints(&node->attrs, OP_ATTR_axes, &axes);
    int before = 0;
    (void)index;
    for (int i = 0; i < count; i++) {
        if (axes[i] == axis) return nowhere;
        before += axes[i] < axis;
    }
    return at(ir_bool(node, OP_ATTR_keep) ? axis : axis - before);
}

/* x and a residual of its shape; weights lie along the last axis. */
static shard_step follow_rows(const ir_node *node, int index, int axis) {
    const ir_value *x = ir_in(node, 0);
    const bool is_like = ir_in(node, index)->type.rank == x->type.rank && (index == 0 || ir_in(node, index)->type.dims[axis] == x->type.dims[axis]);
    return is_like && axis < x->type.rank - 1 ? at(axis) : nowhere;
}

static shard_step follow_rotary(const ir_node *node, int index, int axis) {
    const op_type *x = &ir_in(node, index)->type, *y = &ir_out(node)->type;
    const int to = axis + y->rank - x->rank;
    return to >= 0 && to < y->rank - 2 && x->dims[axis] == y->dims[to] ? at(to) : nowhere;
}

/* Batches of both, rows of a, columns of b. What post takes is aligned with the result. Of steps that take pairs of columns none goes on with some columns. */
static shard_step follow_matmul(const ir_node *node, int index, int axis) {
    const op_type *x = &ir_in(node, index)->type, *y = &ir_out(node)->type, *b = &ir_in(node, 1)->type;
    const int to = axis + y->rank - x->rank;
    const bool turned = index == 0 ? ir_bool(node, OP_ATTR_at) : index == 1 && ir_bool(node, OP_ATTR_bt);
    const bool of_columns = index == 1 ? axis == b->rank - (turned ? 2 : 1) : index > 1 && to == y->rank - 1;
    if (of_columns && b->dims[b->rank - (ir_bool(node, OP_ATTR_bt) ? 2 : 1)] != y->dims[y->rank - 1]) return nowhere;
    if (index > 1 || axis < x->rank - 2) return to >= 0 && x->dims[axis] == y->dims[to] ? at(to) : nowhere;
    if (index == 0) return axis == x->rank - (turned ? 1 : 2) ? at(y->rank - 2) : nowhere;
    return axis == x->rank - (turned ? 2 : 1) ? at(y->rank - 1) : nowhere;
}

/* Heads; of keys and values there may be fewer. */
static shard_step follow_attention(const ir_node *node, int index, int axis) {
    const op_type *x = &ir_in(node, index)->type, *q = &ir_in(node, ATTENTION_Q)->type;
    int64_t heads, of_keys;
    if (ir_bool(node, OP_ATTR_joined) || ir_bool(node, OP_ATTR_lse)) return nowhere;
    if (index == ATTENTION_Q) return axis == 1 ? at(1) : nowhere;
    if (index == ATTENTION_SINK) return axis == 0 ? at(1) : nowhere;
    if (index == ATTENTION_K || index == ATTENTION_V) {
        if (axis != 1 || !dim_is_constant(q->dims[1], &heads) || !dim_is_constant(x->dims[1], &of_keys) || of_keys < 1 || heads % of_keys != 0) return nowhere;
        return (shard_step){1, heads / of_keys, 1};
    }
    if (index == ATTENTION_MASK || index == ATTENTION_BIAS) return axis + 4 - x->rank == 1 && x->dims[axis] == q->dims[1] ? at(1) : nowhere;
    return nowhere;
}

static shard_step follow_cache(const ir_node *node, int index, int axis) {
    (void)node;
    return (index == CACHE_X || index == CACHE_Y) && axis == 1 ? at(1) : nowhere;
}

/* Rows; and whole blocks of rows that need nobody else's largest number. */
static shard_step follow_quantize(const ir_node *node, int index, int axis) {
    const op_type *x = &ir_in(node, index)->type;
    const num_format *info = num_info(node->op == OP_quantize ? ir_out(node)->type.format : x->format);
    if (index != 0 || info->rows == 0 || info->second == 1) return nowhere;
    if (axis < x->rank - 1) return axis < x->rank - 2 || info->rows == 1 ? at(axis) : nowhere;
    return info->cols > 0 && info->rows == 1 && info->second == 0 ? at(axis) : nowhere;
}

typedef shard_step (*follow_function)(const ir_node *node, int index, int axis);
enum { DROPS, KEEPS };

static const struct { follow_function follow; int padding; } rows[OP_COUNT] = {
#define SHARD(op, rule, padding) [OP_##op] = {follow_##rule, padding},
#include "pass/shard/shard.def"
#undef SHARD
};

bool shard_has_rule(op_id op) { return rows[op].follow != NULL; }
/* A norm of zeros is 0 times 1 / sqrt(eps). By a number that is not 0 zeros may be divided, and raised to one that is not negative. */
bool shard_keeps_padding(const ir_node *node) {
    double number;
    if (node->op == OP_div && ir_is_scalar(ir_in(node, 1), &number)) return number != 0;
    if (node->op == OP_pow && ir_is_scalar(ir_in(node, 1), &number)) return number >= 0;
    const bool is_norm = node->op == OP_layer_norm || node->op == OP_rms_norm;
    return rows[node->op].padding == KEEPS && !(is_norm && (float)ir_real(node, OP_ATTR_eps) <= 0);
}

shard_step shard_follow_any(const ir_node *node, int index, int axis) {
    return rows[node->op].follow != NULL && ir_in(node, index) != NULL ? rows[node->op].follow(node, index, axis) : nowhere;
}

shard_step shard_follow(const ir_node *node, int index, int axis) {
    int64_t size;
    return ir_in(node, index) != NULL && shard_constant_size(ir_in(node, index), axis, &size) ? shard_follow_any(node, index, axis) : nowhere;
}

int shard_axis_to(const ir_node *node, int index, int axis, shard_step *step) {
    for (int i = 0; ir_in(node, index) != NULL && i < ir_in(node, index)->type.rank; i++) {
        *step = shard_follow(node, index, i);
        if (step->axis == axis) return i;
    }
    return -1;
}
