/* The logits by which sparse attention picks keys, written out, become one op: they are sums over heads, and nothing of the size of queries x heads x keys is stored then. It runs behind the derivation of
 * the cached step and of gradients, which read what it was written as.
 *
 *     %1 = reshape q {shape=[b,m*h,d]}; %2 = matmul %1, k {bt=true}; %3 = reshape %2 {shape=[b,m,h,n]}
 *     %4 = relu %3; %5 = reshape w {shape=[b,m,h,1]}; %6 = mul %4, %5
 *     %7 = sum %6 {axes=[2]}                                              ->   %1 = mqa_logits q, k, w
 *
 * Heads may lie in front of queries or behind them, and their sum may be a product with the weights. Numbers on the way become the scale, factors of keys the op's; casts that lose nothing are left out. */
#include "pass/fuse/fuse.h"

enum { RANK = 4, MAX_STEPS = 8 };

/* From the sum down to the product of queries and keys. Axes of the values on the way are told by those of the product's scores: axes[i] is where axis i of the value at hand lies there. */
typedef struct spelled {
    ir_graph *graph;
    const ir_node *root;
    ir_value *positive;              /* [..], what is weighed and summed */
    int head_axis, key_axis;         /* of it */
    ir_value *weights;               /* positive's shape without key_axis, broadcast */
    double scale;
    ir_value *factor;                /* of keys, over the scores' axes; NULL: none there */
    int axes[RANK], rank;
    const ir_value *scores;          /* [b,x,y,n] or [x,y,n], queries and heads in either order */
    ir_node *product;
    int batch, query, head;          /* axes of scores; batch -1: none */
} spelled;

static bool is_one(dim d) {
    int64_t size;
    return dim_is_constant(d, &size) && size == 1;
}

static bool is_exact(dw_format from, dw_format to) {
    const num_format *a = num_info(from), *b = num_info(to);
    return a->class == NUM_FLOAT && b->class == NUM_FLOAT && a->bits >= 8 && a->exponent_bits <= b->exponent_bits && a->mantissa_bits <= b->mantissa_bits;
}

static bool is_plain_product(const ir_node *node) {
    return node != NULL && !ir_bool(node, OP_ATTR_at) && op_attr_text(&node->attrs, OP_ATTR_post)[0] == '\0' && !dw_format_is_block(ir_out(node)->type.format);
}

/* ---- the sum ---- */

/* Does y have one number where x has a key, and of every other axis as many as x or one? aligned: its shape without that axis. */
static bool is_weight_of(const ir_value *y, const ir_value *x, int key_axis) {
    const int lead = x->type.rank - y->type.rank;
    if (lead < 0) return false;
    for (int i = 0; i < y->type.rank; i++) {
        const dim size = y->type.dims[i];
        if (!is_one(size) && (lead + i == key_axis || size != x->type.dims[lead + i])) return false;
    }
    return key_axis < lead || is_one(y->type.dims[key_axis - lead]);
}

static bool leads_to_relu(const ir_value *value, int steps) {
    if (steps == 0 || value->kind != IR_RESULT) return false;
    const ir_node *node = value->node;
    if (node->op == OP_relu) return true;
    if (node->op == OP_transpose || node->op == OP_cast) return leads_to_relu(ir_in(node, 0), steps - 1);
    return node->op == OP_mul && (leads_to_relu(ir_in(node, 0), steps - 1) || leads_to_relu(ir_in(node, 1), steps - 1));
}

/* sum over one axis of positive * weights: which axis the keys are is told later, by the product. */
static bool read_sum(spelled *s, int operand) {
    const int64_t *axes;
    const ir_node *mul = fuse_def_single(s->graph, ir_in(s->root, 0), OP_mul);
    if (mul == NULL || op_attr_ints(&s->root->attrs, OP_ATTR_axes, &axes) != 1) return false;
    s->positive = ir_in(mul, operand);
    s->weights = ir_in(mul, 1 - operand);
    s->head_axis = (int)axes[0];
    return s->positive->type.rank == ir_out(mul)->type.rank;
}

/* A product over heads with one row, or column, of weights. */
static bool read_product(spelled *s, int operand) {
    if (!is_plain_product(s->root)) return false;
    s->positive = ir_in(s->root, operand);
    s->weights = ir_in(s->root, 1 - operand);
    const int rank = s->positive->type.rank, heads_last = operand == 0 || ir_bool(s->root, OP_ATTR_bt);
    if (rank < 3 || s->weights->type.rank != rank) return false;
    const int weights_last = operand == 1 || ir_bool(s->root, OP_ATTR_bt);
    s->head_axis = heads_last ? rank - 1 : rank - 2;
    if (!is_one(s->weights->type.dims[weights_last ? rank - 2 : rank - 1])) return false;
    for (int i = 0; i < rank - 2; i++)
        if (s->weights->type.dims[i] != s->positive->type.dims[i]) return false;
    return true;
}

/* ---- from there down to the product ---- */

static bool is_factor_of_keys(const ir_value *y, const ir_value *x) {
    for (int i = 0; i < y->type.rank - 1; i++)
        if (!is_one(y->type.dims[i]) && (i > 0 || y->type.rank != x->type.rank || y->type.rank < RANK)) return false;
    return y->type.rank > 0 && y->type.rank <= x->type.rank && y->type.dims[y->type.rank - 1] == x->type.dims[x->type.rank - 1];
}

/* A factor of x, in front of its relu or behind. */
static bool read_factor(spelled *s, const ir_node *mul, bool behind, ir_value **x) {
    double number;
    if (fuse_with_number(mul, &number, x)) {
        if (!op_type_equal(&(*x)->type, &ir_out(mul)->type) || (behind && !(number > 0))) return false;
        s->scale *= number;
        return true;
    }
    for (int i = 0; i < 2 && !behind && s->factor == NULL; i++) {
        *x = ir_in(mul, i);
        if (!op_type_equal(&(*x)->type, &ir_out(mul)->type) || !is_factor_of_keys(ir_in(mul, 1 - i), *x)) continue;
        s->factor = ir_in(mul, 1 - i);
        return true;
    }
    return false;
}

static bool turn(spelled *s, const ir_node *transpose) {
    const int64_t *order;
    op_attr_ints(&transpose->attrs, OP_ATTR_order, &order);
    for (int i = 0; i < s->rank; i++) s->axes[i] = (int)order[s->axes[i]];
    return s->factor == NULL;
}

/* The product whose result is x, or whose rows x takes apart. */
static ir_node *product_of(const spelled *s, const ir_value *x) {
    const ir_node *reshape = fuse_def_single(s->graph, x, OP_reshape);
    const ir_value *rows = reshape != NULL ? ir_in(reshape, 0) : x;
    ir_node *product = fuse_def_single(s->graph, rows, OP_matmul);
    const int rank = x->type.rank;
    if (!is_plain_product(product) || ir_is_weight(ir_in(product, 1))) return NULL;
    if (reshape == NULL) return product;
    if (rows->type.rank != rank - 1 || rows->type.dims[rank - 2] != x->type.dims[rank - 1] || (rank == RANK && rows->type.dims[0] != x->type.dims[0])) return NULL;
    return product;
}

static bool read_scores(spelled *s) {
    ir_value *value = s->positive;
    bool found = false;
    s->scale = 1;
    s->rank = value->type.rank;
    for (int i = 0; i < s->rank && i < RANK; i++) s->axes[i] = i;
    for (int step = 0; step < MAX_STEPS && s->rank >= 3 && s->rank <= RANK; step++) {
        if (value->kind != IR_RESULT || !fuse_is_single_use(s->graph, value)) return false;
        const ir_node *node = value->node;
        if (found && (s->product = product_of(s, value)) != NULL) {
            s->scores = value;
            return true;
        }
        switch (node->op) {
        case OP_relu:
            if (found) return false;
            found = true;
            value = ir_in(node, 0);
            break;
        case OP_mul:
            if (!read_factor(s, node, !found, &value)) return false;
            break;
        case OP_transpose:
            if (!turn(s, node)) return false;
            value = ir_in(node, 0);
            break;
        case OP_cast:
            value = ir_in(node, 0);
            if (!fuse_is_float(value->type.format) || !fuse_is_float(ir_out(node)->type.format)) return false;
            break;
        default: return false;
        }
    }
    return false;
}

/* Which axes of the scores are what: keys are the last, heads those that are summed, the batch is that by which keys differ. */
static bool read_axes(spelled *s) {
    const ir_value *a = ir_in(s->product, 0), *b = ir_in(s->product, 1), *scores = s->scores;
    const bool flat = s->product != scores->node;
    s->head = s->axes[s->head_axis];
    if (s->head == s->rank - 1) return false;
    for (int i = 0; i < s->rank; i++)
        if (s->axes[i] == s->rank - 1) s->key_axis = i;
    s->batch = -1;
    if (flat && (a->type.rank != s->rank - 1 || b->type.rank != s->rank - 1)) return false;
    if (!flat && a->type.rank != s->rank) return false;
    for (int i = 0; i < s->rank - 1 && !flat; i++)
        if (a->type.dims[i] != scores->type.dims[i]) return false;
    if (s->rank == RANK && flat) s->batch = 0;
    for (int i = 0, lead = s->rank - b->type.rank; i < b->type.rank - 2 && !flat; i++) {
        if (is_one(b->type.dims[i])) continue;
        if (s->batch >= 0) return false;
        s->batch = lead + i;
    }
    if (s->rank == RANK && s->batch < 0) s->batch = s->head == 0 ? 1 : 0;
    if (s->batch == s->head || (s->rank == 3 && s->batch >= 0)) return false;
    for (int i = 0; i < s->rank - 1; i++)
        if (i != s->batch && i != s->head) s->query = i;
    return s->factor == NULL || s->factor->type.rank < RANK || is_one(s->factor->type.dims[0]) || s->batch == 0;
}

/* ---- operands ---- */

/* The same numbers in the narrowest format that they come in. */
static dw_status narrow(ir_graph *graph, ir_value *value, ir_value **result) {
    const ir_node *node = value->kind == IR_RESULT ? value->node : NULL;
    ir_value *inner;
    *result = value;
    if (node == NULL) return DW_OK;
    if (node->op == OP_cast && is_exact(ir_in(node, 0)->type.format, value->type.format)) return narrow(graph, ir_in(node, 0), result);
    if (node->op != OP_reshape && node->op != OP_transpose) return DW_OK;
    TRY(narrow(graph, ir_in(node, 0), &inner));
    if (inner->type.format == value->type.format) return DW_OK;
    return ir_emit(graph, node->op, 1, &inner, node->attrs.count, node->attrs.items, result);
}

static dim batch_of(const spelled *s) { return s->batch >= 0 ? s->scores->type.dims[s->batch] : dim_constant(s->graph->dims, 1); }

/* [x,y,..] or [b,x,y,..], axes of the scores, to [b,m,h,..]; more: how many axes follow, 0 or 1. */
static dw_status order(const spelled *s, ir_value *value, int more, ir_value **result) {
    const int64_t to[2][RANK] = {{s->query, s->head, 2}, {s->batch, s->query, s->head, 3}};
    dim dims[RANK];
    TRY(ir_emit_transpose(s->graph, value, to[s->batch >= 0], &value));
    int rank = 0;
    if (s->batch < 0) dims[rank++] = batch_of(s);
    for (int i = 0; i < s->rank - 1 + more; i++) dims[rank++] = value->type.dims[i];
    return ir_emit_reshape(s->graph, value, rank, dims, result);
}

static dw_status make_q(const spelled *s, ir_value **q) {
    ir_value *a = ir_in(s->product, 0);
    dim dims[RANK];
    for (int i = 0; i < s->rank - 1; i++) dims[i] = s->scores->type.dims[i];
    dims[s->rank - 1] = a->type.dims[a->type.rank - 1];
    TRY(narrow(s->graph, a, &a));
    TRY(ir_emit_reshape(s->graph, a, s->rank, dims, &a));
    return order(s, a, 1, q);
}

/* Axes of size 1 that a reshape put in front of the last two. */
static ir_value *without_units(ir_value *value) {
    const ir_node *reshape = ir_def(value, OP_reshape);
    if (reshape == NULL) return value;
    ir_value *x = ir_in(reshape, 0);
    const int less = value->type.rank - x->type.rank;
    int next = x->type.rank - 1;
    if (less <= 0 || x->type.rank < 2) return value;
    for (int i = value->type.rank - 1; i >= 0; i--) {
        if (next >= 0 && value->type.dims[i] == x->type.dims[next]) next--;
        else if (!is_one(value->type.dims[i]) || i >= value->type.rank - 2) return value;
    }
    return next < 0 ? x : value;
}

static bool swaps_last(const ir_node *transpose) {
    const int64_t *to;
    const int rank = op_attr_ints(&transpose->attrs, OP_ATTR_order, &to);
    for (int i = 0; i < rank - 2; i++)
        if (to[i] != i) return false;
    return rank >= 2 && to[rank - 1] == rank - 2;
}

/* k [..,n,d] where it is a factor [..,n,1] times something: that, and the factor. */
static void split_factor(ir_value **k, ir_value **factor) {
    const ir_node *mul = ir_def(*k, OP_mul);
    for (int i = 0; mul != NULL && i < 2; i++) {
        ir_value *x = ir_in(mul, i), *y = ir_in(mul, 1 - i);
        const int rank = y->type.rank;
        bool fits = op_type_equal(&x->type, &(*k)->type) && rank == x->type.rank && is_one(y->type.dims[rank - 1]) && !is_one(x->type.dims[rank - 1]);
        for (int axis = 0; fits && axis < rank - 1; axis++) fits = y->type.dims[axis] == x->type.dims[axis];
        if (!fits) continue;
        *k = x;
        *factor = y;
        return;
    }
}

/* x, in whose shape all but its last `kept` axes are the batch or nothing, to [b,..]. */
static dw_status with_batch(const spelled *s, ir_value *x, int kept, ir_value **result) {
    dim dims[3] = {dim_constant(s->graph->dims, 1)};
    bool has_batch = false;
    for (int i = 0; i < x->type.rank - kept; i++) {
        if (is_one(x->type.dims[i])) continue;
        dims[0] = x->type.dims[i];
        has_batch = true;
    }
    for (int i = 0; i < kept; i++) dims[1 + i] = x->type.dims[x->type.rank - kept + i];
    TRY(ir_emit_reshape(s->graph, x, kept + 1, dims, &x));
    dims[0] = batch_of(s);
    *result = x;
    return has_batch || is_one(dims[0]) ? DW_OK : ir_emit_broadcast(s->graph, x, kept + 1, dims, result);
}

static dw_status make_k(const spelled *s, ir_value **k, ir_value **factor) {
    ir_value *value = without_units(ir_in(s->product, 1)), *of_rows = NULL;
    if (!ir_bool(s->product, OP_ATTR_bt)) {
        const ir_node *transpose = ir_def(value, OP_transpose);
        int64_t to[RANK];
        for (int i = 0; i < value->type.rank; i++) to[i] = i < value->type.rank - 2 ? i : 2 * value->type.rank - 3 - i;
        if (transpose != NULL && swaps_last(transpose)) value = ir_in(transpose, 0);
        else TRY(ir_emit_transpose(s->graph, value, to, &value));
    }
    value = without_units(value);
    if (s->factor == NULL) split_factor(&value, &of_rows);
    TRY(narrow(s->graph, value, &value));
    TRY(with_batch(s, value, 2, k));
    *factor = NULL;
    if (s->factor != NULL) return with_batch(s, s->factor, 1, factor);
    if (of_rows == NULL) return DW_OK;
    TRY(ir_emit_reshape(s->graph, of_rows, of_rows->type.rank - 1, of_rows->type.dims, &of_rows));
    return with_batch(s, of_rows, 1, factor);
}

/* The weights over the axes of positive without the keys', then in the order of the op. */
static dw_status make_weights(const spelled *s, ir_value **weights) {
    ir_value *value = s->weights;
    const op_type *whole = &s->positive->type;
    dim dims[RANK], sizes[RANK];
    int rank = 0, role[RANK];
    const int lead = whole->rank - value->type.rank;
    for (int i = 0; i < whole->rank; i++) {
        if (i == s->key_axis) continue;
        const bool is_product = s->root->op == OP_matmul;
        dims[rank] = is_product ? whole->dims[i] : i < lead ? dim_constant(s->graph->dims, 1) : value->type.dims[i - lead];
        sizes[rank] = whole->dims[i];
        role[rank++] = s->axes[i];
    }
    TRY(ir_emit_reshape(s->graph, value, rank, dims, &value));
    TRY(ir_emit_broadcast(s->graph, value, rank, sizes, &value));
    int64_t to[RANK];
    for (int i = 0; i < rank; i++) to[role[i]] = i;    /* first the order of the scores */
    TRY(ir_emit_transpose(s->graph, value, to, &value));
    return order(s, value, 0, weights);
}

/* [b,m,n] in the order of the root's axes, and in its shape. */
static dw_status make_result(const spelled *s, ir_value *made, ir_value **result) {
    const op_type *shape = &ir_out(s->root)->type;
    int64_t to[RANK];
    dim dims[RANK];
    int rank = 0;
    if (s->batch < 0) {
        for (int i = 0; i < 2; i++) dims[i] = made->type.dims[1 + i];
        TRY(ir_emit_reshape(s->graph, made, 2, dims, &made));
    }
    const int before = s->batch >= 0 ? 1 : 0;
    for (int i = 0; i < s->rank; i++) {
        if (i == s->head_axis) continue;
        to[rank++] = s->axes[i] == s->batch ? 0 : s->axes[i] == s->query ? before : before + 1;
    }
    TRY(ir_emit_transpose(s->graph, made, to, &made));
    return ir_emit_reshape(s->graph, made, shape->rank, shape->dims, result);
}

static dw_status rewrite(const spelled *s, ir_value **result) {
    ir_value *in[MQA_OPERANDS] = {NULL};
    op_attr attrs[2];
    int count = 0;
    if (s->scale != 1) attrs[count++] = op_set_real(OP_ATTR_scale, s->scale);
    attrs[count++] = op_set_format(OP_ATTR_to, ir_out(s->root)->type.format);
    TRY(make_q(s, &in[MQA_Q]));
    TRY(make_k(s, &in[MQA_K], &in[MQA_FACTOR]));
    TRY(make_weights(s, &in[MQA_WEIGHTS]));
    if (attrs[0].id > attrs[count - 1].id) {
        const op_attr first = attrs[0];
        attrs[0] = attrs[1];
        attrs[1] = first;
    }
    TRY(ir_emit(s->graph, OP_mqa_logits, in[MQA_FACTOR] != NULL ? MQA_FACTOR + 1 : MQA_FACTOR, in, count, attrs, result));
    return make_result(s, *result, result);
}

static dw_status fuse_mqa_logits(ir_graph *graph, ir_node *node, bool *changed) {
    const dw_format format = ir_out(node)->type.format;
    if ((node->op != OP_sum && node->op != OP_matmul) || !fuse_is_float(format) || format == DW_FORMAT_f64) return DW_OK;
    for (int operand = 0; operand < 2; operand++) {
        spelled s = {.graph = graph, .root = node};
        ir_value *result;
        if (!(node->op == OP_sum ? read_sum(&s, operand) : read_product(&s, operand)) || !leads_to_relu(s.positive, MAX_STEPS)) continue;
        if (!read_scores(&s) || !read_axes(&s)) continue;
        if (node->op == OP_sum && !is_weight_of(s.weights, s.positive, s.key_axis)) continue;
        fuse_cursor(graph, node, node);
        TRY(rewrite(&s, &result));
        return fuse_replace(graph, ir_out(node), result, changed);
    }
    return DW_OK;
}

/* Ops for which the caller named or registered a kernel stay. */
dw_status pass_mqa_logits(ir_graph *graph, const pass_options *options, bool *changed) {
    *changed = false;
    if (options->alone != NULL && (options->alone[OP_matmul] || options->alone[OP_relu])) return DW_OK;
    return fuse_each(graph, "mqa_logits", fuse_mqa_logits, changed);
}
