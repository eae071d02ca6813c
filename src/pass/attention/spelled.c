/* Attention spelled out becomes the op, with its masks and biases as operands as they stand:
 *
 *     %1 = matmul q, kt; %2 = mul %1, 0.25; %3 = where mask, %2, -inf; %4 = softmax %3; %5 = matmul %4, v
 *     %5 = attention q, k, v, mask {scale=0.25}
 *
 * Matched backwards from the last product by what the ops between do to the scores, in any order that keeps the meaning: factors on the
 * scores, on q or on k; factors of each head or query; a soft cap; masks chosen or added; casts; heads merged into the batch; the largest
 * score subtracted first; a column of sinks beside the scores. A score that a finite number replaces is not hidden for good: a row of
 * nothing else averages all keys. So such a mask is a bias until it is read. What resembles attention but cannot be is noted with the
 * reason. Masks are read later (masks.c). */
#include "pass/attention/attention.h"
#include "pass/clean/fold.h"
#include "pass/fuse/fuse.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { MAX_STEPS = 32, MAX_PARTS = 16 };

/* Finite scores this low stay what they are, whatever is added to them in fp32. */
#define ABSORBING (-1e30)

/* A mask or bias met on the way, with the shape of the scores there. */
typedef struct part {
    ir_value *value;
    const op_type *scores; /* what the scores are there */
    bool adds;             /* a bias */
    double factor;         /* .. that the scores get after it */
    bool hides;            /* a truth that is true where a key is hidden */
    double low;            /* what hidden scores become */
} part;

typedef struct spelled {
    ir_graph *graph;
    ir_node *product;      /* softmax times v */
    ir_node *scores;       /* q times k */
    double factor;         /* of the scores so far, from the softmax downwards */
    double softcap;
    part parts[MAX_PARTS]; /* from the softmax on: the last is put over the scores first */
    int part_count, bias_count;
    ir_value *sink;        /* the extra column of scores, [1,h,1,1]; NULL: none */
    bool cut;              /* the column was cut off behind the softmax */
    ir_value *rows;        /* a factor of the scores that does not vary along the keys; NULL: none */
    int rows_rank;         /* of the scores there */
    bool rows_divide;      /* .. or a divisor */
    bool has_batch;
    dim batch[2];          /* b and h, where some shape on the way has them */
    const char *obstacle;  /* why this is no attention op; NULL: none so far */
    op_id strange;         /* the op that scores may not pass, where that is why; else OP_COUNT */
} spelled;

/* ---- small questions --------------------------------------------------------------------------------------------------- */

static dim last_dim(const ir_value *value, int from_end) {
    return value->type.dims[value->type.rank - from_end];
}

static bool same_shape(const ir_value *a, const ir_value *b) {
    if (a->type.rank != b->type.rank) return false;
    for (int i = 0; i < a->type.rank; i++) {
        if (a->type.dims[i] != b->type.dims[i]) return false;
    }
    return true;
}

/* Is one operand a number? Then the other is *x. A divisor counts as a factor. */
static bool is_scaled(const ir_node *node, ir_value **x, double *factor) {
    if (node == NULL || (node->op != OP_mul && node->op != OP_div)) return false;
    if (ir_is_scalar(ir_in(node, 1), factor)) {
        *x = ir_in(node, 0);
        if (node->op == OP_div) *factor = 1 / *factor;
    } else if (node->op == OP_mul && ir_is_scalar(ir_in(node, 0), factor)) {
        *x = ir_in(node, 1);
    } else {
        return false;
    }
    return *factor > 0 && same_shape(*x, ir_out(node));
}

/* So low that no score lies below it: the lowest number of f16 is not in a wider format. */
static bool is_low(const ir_value *value) {
    double number;
    return ir_is_scalar(value, &number) && (number <= ABSORBING || (number == -65504 && value->type.format == DW_FORMAT_f16));
}

/* Batch and heads of four axes, or of five, where windows are an axis of their own and part of the batch; false where the axes do not say. */
static bool read_batch(dim_table *dims, const op_type *type, dim batch[2]) {
    if (type->rank != 4 && type->rank != 5) return false;
    batch[0] = type->rank == 4 ? type->dims[0] : dim_product(dims, type->dims, 2);
    batch[1] = type->dims[type->rank - 3];
    return batch[0] != NULL;
}

/* A reshape that touches only what stands before the last two axes; four or five of them separate batch and heads. */
static bool is_batch_reshape(spelled *spelled, const ir_node *node) {
    const ir_value *x = ir_in(node, 0), *y = ir_out(node);
    if (x->type.rank < 3 || y->type.rank < 3 || last_dim(x, 1) != last_dim(y, 1) || last_dim(x, 2) != last_dim(y, 2)) return false;
    const op_type *telling = x->type.rank == 4 || y->type.rank < 4 ? &x->type : &y->type;
    spelled->has_batch = read_batch(spelled->graph->dims, telling, spelled->batch) || spelled->has_batch;
    return true;
}

/* ---- from the softmax down to q k^T ------------------------------------------------------------------------------------------ */

/* Does a product of two activations lie behind value, through ops that scores may pass? */
static bool leads_to_scores(const ir_value *value, int steps) {
    if (steps == 0 || value == NULL || value->kind != IR_RESULT) return false;
    const ir_node *node = value->node;
    switch (node->op) {
    case OP_matmul: return value->type.rank >= 3 && ir_in(node, 1)->kind != IR_PARAM && ir_in(node, 1)->type.rank >= 3;
    case OP_add:
    case OP_mul: return leads_to_scores(ir_in(node, 0), steps - 1) || leads_to_scores(ir_in(node, 1), steps - 1);
    case OP_where: return leads_to_scores(ir_in(node, 1), steps - 1) || leads_to_scores(ir_in(node, 2), steps - 1);
    case OP_concat:
    case OP_div:
    case OP_sub:
    case OP_maximum:
    case OP_tanh:
    case OP_cast:
    case OP_reshape:
    case OP_broadcast: return leads_to_scores(ir_in(node, 0), steps - 1);
    default: return false;
    }
}

static bool add_part(spelled *spelled, part part) {
    if (spelled->softcap > 0) {
        spelled->obstacle = "a mask or bias is added before the soft cap";
        return false;
    }
    if (spelled->cut && spelled->sink == NULL) {
        spelled->obstacle = "a mask or bias is added to the extra column too";
        return false;
    }
    if (spelled->part_count == MAX_PARTS) {
        spelled->obstacle = "it adds too many masks and biases";
        return false;
    }
    spelled->parts[spelled->part_count++] = part;
    spelled->bias_count += part.adds;
    return true;
}

static bool step_where(spelled *spelled, const ir_node *node, ir_value **x) {
    const bool first = is_low(ir_in(node, 1)), second = is_low(ir_in(node, 2));
    if (first == second) return false;
    *x = ir_in(node, first ? 2 : 1);
    if (!same_shape(*x, ir_out(node))) return false;
    part part = {.value = ir_in(node, 0), .scores = &(*x)->type, .hides = first};
    ir_is_scalar(ir_in(node, first ? 1 : 2), &part.low);
    if (spelled->rows != NULL) {
        spelled->obstacle = "a mask stands before a factor of each row";
        return false;
    }
    if (part.low > ABSORBING) {
        if (spelled->bias_count > 0) {
            spelled->obstacle = "a bias is added to hidden scores, which are finite";
            return false;
        }
        part.low = -FLT_MAX;   /* all that are hidden are equal, and stay so when the scores are added: a row of nothing else averages all keys */
    }
    return add_part(spelled, part);
}

enum { TABLE_MAX = 1 << 22 };

/* Is value a part of a table of zeros and ones that the model carries? */
static bool is_zero_one(const ir_value *value) {
    while (value->kind == IR_RESULT && (value->node->op == OP_cast || (op_get(value->node->op)->traits & OP_TRAIT_VIEW) != 0)) value = ir_in(value->node, 0);
    if (value->kind != IR_PARAM || value->weight == NULL || value->weight->tensor.data == NULL || !fold_may_read(value)) return false;
    const dw_tensor *table = &value->weight->tensor;
    int64_t index[DW_MAX_RANK] = {0}, count = 1;
    for (int i = 0; i < table->rank; i++) {
        if (table->dims[i] < 1 || table->dims[i] > TABLE_MAX / count) return false;
        count *= table->dims[i];
    }
    for (; count > 0; count--) {
        const double element = op_tensor_load(table, index);
        if (element != 0 && element != 1) return false;
        for (int i = table->rank; i-- > 0 && ++index[i] == table->dims[i];) index[i] = 0;
    }
    return true;
}

/* x * t + low * (1 - t), t of zeros and ones: what t hides becomes low. */
static bool step_table(spelled *spelled, const ir_node *node, ir_value **x) {
    for (int side = 0; side < 2; side++) {
        const ir_node *shown = ir_def(ir_in(node, side), OP_mul), *hidden = ir_def(ir_in(node, 1 - side), OP_mul);
        double low, one;
        ir_value *rest;
        for (int i = 0; shown != NULL && hidden != NULL && i < 2; i++) {
            ir_value *table = ir_in(shown, i), *scores = ir_in(shown, 1 - i);
            if (!fuse_with_number(hidden, &low, &rest) || low > -1000 || !same_shape(scores, ir_out(node))) continue;
            const ir_node *less = ir_def(rest, OP_sub);
            if (less == NULL || !ir_is_scalar(ir_in(less, 0), &one) || one != 1 || ir_in(less, 1) != table || !is_zero_one(table)) continue;
            *x = scores;
            return add_part(spelled, (part){.value = table, .scores = &scores->type, .low = low});
        }
    }
    return false;
}

static bool step_add(spelled *spelled, const ir_node *node, ir_value **x) {
    if (step_table(spelled, node, x)) return true;
    const int side = leads_to_scores(ir_in(node, 0), MAX_STEPS) && same_shape(ir_in(node, 0), ir_out(node)) ? 0 : 1;
    *x = ir_in(node, side);
    if (!same_shape(*x, ir_out(node))) return false;
    if (spelled->rows != NULL) {
        spelled->obstacle = "a bias is added before a factor of each row";
        return false;
    }
    return add_part(spelled, (part){.value = ir_in(node, 1 - side), .scores = &(*x)->type, .adds = true, .factor = spelled->factor});
}

/* cap * tanh(x / cap), seen from the factor. */
static bool step_softcap(spelled *spelled, ir_value *tanh_value, double cap, ir_value **x) {
    double inner;
    while (ir_def(tanh_value, OP_cast) != NULL) tanh_value = ir_in(tanh_value->node, 0);
    const ir_node *node = ir_def(tanh_value, OP_tanh);
    if (node == NULL) return false;
    if (spelled->factor != 1 || spelled->softcap > 0 || spelled->rows != NULL) return false;
    if (!is_scaled(ir_in(node, 0)->node, x, &inner)) {
        *x = ir_in(node, 0);
        inner = 1;
    }
    spelled->softcap = cap;
    spelled->factor = cap * inner;   /* 1 where it is a soft cap of unscaled scores */
    return true;
}

/* The scores and one column that is the same for all queries of a head, where the column is cut off again behind the softmax. */
static bool step_sink(spelled *spelled, const ir_node *node, ir_value **x) {
    if (!spelled->cut || spelled->sink != NULL || spelled->factor != 1 || spelled->softcap > 0 || node->n_in != 2) return false;
    if (ir_int(node, OP_ATTR_axis) != ir_out(node)->type.rank - 1 || ir_out(node)->type.rank != 4) return false;
    ir_value *column = ir_in(node, 1);
    while (ir_def(column, OP_broadcast) != NULL) column = ir_in(column->node, 0);
    const dim *dims = column->type.dims;
    int64_t one[3];
    if (column->type.rank != 4 || dims[1] != ir_in(node, 0)->type.dims[1]) return false;
    if (!dim_is_constant(dims[0], &one[0]) || !dim_is_constant(dims[2], &one[1]) || !dim_is_constant(dims[3], &one[2])) return false;
    if (one[0] != 1 || one[1] != 1 || one[2] != 1) return false;
    spelled->sink = column;
    *x = ir_in(node, 0);
    return true;
}

/* A factor or divisor of each row, [h,1,1] and the like: q can carry it. */
static bool step_rows(spelled *spelled, const ir_node *node, ir_value **x) {
    const int side = node->op == OP_div || same_shape(ir_in(node, 0), ir_out(node)) ? 0 : 1;
    ir_value *scores = ir_in(node, side), *rows = ir_in(node, 1 - side);
    int64_t one;
    if (!same_shape(scores, ir_out(node)) || rows->type.rank == 0 || !dim_is_constant(last_dim(rows, 1), &one) || one != 1) return false;
    if (spelled->rows != NULL) return false;
    spelled->rows = rows;
    spelled->rows_rank = scores->type.rank;
    spelled->rows_divide = node->op == OP_div;
    *x = scores;
    return true;
}

/* One op on the way from the softmax to the scores; *x moves to its operand. false: this op ends the way. */
static bool step(spelled *spelled, ir_value **x) {
    const ir_node *node = (*x)->node;
    double factor;
    ir_value *inner;
    switch (node->op) {
    case OP_cast: *x = ir_in(node, 0); return true;
    case OP_broadcast:
        if (!same_shape(ir_in(node, 0), *x)) return false;
        *x = ir_in(node, 0);
        return true;
    case OP_reshape:
        if (!is_batch_reshape(spelled, node)) return false;
        *x = ir_in(node, 0);
        return true;
    case OP_maximum:
        if (!is_low(ir_in(node, 1))) return false;
        *x = ir_in(node, 0);
        return true;
    case OP_where: return step_where(spelled, node, x);
    case OP_concat: return step_sink(spelled, node, x);
    case OP_add: return step_add(spelled, node, x);
    case OP_mul:
    case OP_div:
        if (!is_scaled(node, &inner, &factor)) return step_rows(spelled, node, x);
        if (step_softcap(spelled, inner, factor, x)) return true;
        spelled->factor *= factor;
        *x = inner;
        return true;
    default: return false;
    }
}

static bool walk_to_scores(spelled *spelled, ir_value *x) {
    for (int i = 0; i < MAX_STEPS; i++) {
        if (x->kind != IR_RESULT) return false;
        if (x->node->op == OP_matmul) {
            spelled->scores = x->node;
            if (spelled->cut && spelled->sink == NULL) spelled->obstacle = "its weights are cut";
            return spelled->obstacle == NULL;
        }
        if (!step(spelled, &x)) {
            if (spelled->obstacle == NULL && leads_to_scores(x, MAX_STEPS)) spelled->strange = x->node->op;
            return false;
        }
    }
    return false;
}

/* ---- q, k and v ---------------------------------------------------------------------------------------------------------------- */

/* Factors that stand on q or k belong to the scores. */
static ir_value *without_factor(spelled *spelled, ir_value *x) {
    double factor;
    ir_value *inner;
    while (x->kind == IR_RESULT && is_scaled(x->node, &inner, &factor)) {
        spelled->factor *= factor;
        x = inner;
    }
    return x;
}

/* x before it was made wider to the format of the scores, where it had that format before: products are exact either way. */
static ir_value *without_upcast(ir_value *x, dw_format format) {
    const ir_node *node = ir_def(x, OP_cast);
    return x->type.format == DW_FORMAT_f32 && node != NULL && ir_in(node, 0)->type.format == format ? ir_in(node, 0) : x;
}

/* x with its last two axes exchanged; transposes that meet become one, or none. */
static dw_status swap_last(ir_graph *graph, ir_value *x, ir_value **swapped) {
    const int rank = x->type.rank;
    int64_t order[DW_MAX_RANK];
    bool straight = true;
    const ir_node *node = ir_def(x, OP_transpose);
    const int64_t *inner = NULL;
    if (node != NULL) op_attr_ints(&node->attrs, OP_ATTR_order, &inner);
    for (int i = 0; i < rank; i++) {
        const int at = i == rank - 1 ? rank - 2 : i == rank - 2 ? rank - 1 : i;
        order[i] = inner == NULL ? at : inner[at];
        straight = straight && order[i] == i;
    }
    *swapped = node == NULL ? x : ir_in(node, 0);
    return straight ? DW_OK : ir_emit_transpose(graph, *swapped, order, swapped);
}

/* [b*h, m, n] as [b, h, m, n]: the value that was merged, where there is one. */
static dw_status split_batch(const spelled *spelled, ir_value *x, ir_value **four) {
    const dim dims[4] = {spelled->batch[0], spelled->batch[1], last_dim(x, 2), last_dim(x, 1)};
    for (ir_value *at = x; at != NULL; at = ir_def(at, OP_reshape) == NULL ? NULL : ir_in(at->node, 0)) {
        if (at->type.rank != 4) continue;
        bool same = true;
        for (int i = 0; i < 4; i++) same = same && at->type.dims[i] == dims[i];
        if (same) return *four = at, DW_OK;
    }
    return ir_emit_reshape(spelled->graph, x, 4, dims, four);
}

/* [b,w,h,m,n], windows w an axis of their own, as [b*w,h,m,n]. */
static dw_status merge_batch(ir_graph *graph, ir_value *x, ir_value **four) {
    dim dims[4];
    TRY_DIM(graph->context, dims[0], dim_product(graph->dims, x->type.dims, 2));
    memcpy(dims + 1, x->type.dims + 2, 3 * sizeof *dims);
    return ir_emit_reshape(graph, x, 4, dims, four);
}

/* A part of scores [b,w,h,s,t], windows w an axis of their own, for scores [b*w,h,s,t]. */
static dw_status merge_windows(const spelled *spelled, const op_type *scores, ir_value *x, ir_value **four) {
    ir_graph *graph = spelled->graph;
    dim dims[5];
    bool varies = false;
    for (int i = 0; i < 5; i++) {
        const int own = i - 5 + x->type.rank;
        int64_t one;
        TRY_DIM(graph->context, dims[i], dim_constant(graph->dims, 1));
        if (own < 0) continue;
        dims[i] = x->type.dims[own];
        varies |= i < 2 && (!dim_is_constant(dims[i], &one) || one != 1);
    }
    if (!varies) return ir_emit_reshape(graph, x, 4, dims + 1, four);
    dims[0] = scores->dims[0];
    dims[1] = scores->dims[1];
    TRY(ir_emit_broadcast(graph, x, 5, dims, &x));
    TRY_DIM(graph->context, dims[1], dim_product(graph->dims, dims, 2));
    return ir_emit_reshape(graph, x, 4, dims + 1, four);
}

/* A mask or bias that broadcasts to scores of three or five axes, for scores of four. */
static dw_status split_part(const spelled *spelled, const part *part, ir_value *x, ir_value **four) {
    int64_t one;
    if (part->scores->rank == 4 || x->type.rank < 3) return *four = x, DW_OK;
    if (part->scores->rank == 5) return merge_windows(spelled, part->scores, x, four);
    if (!dim_is_constant(x->type.dims[0], &one) || one != 1) return split_batch(spelled, x, four);
    const dim dims[4] = {x->type.dims[0], x->type.dims[0], x->type.dims[1], x->type.dims[2]};
    return ir_emit_reshape(spelled->graph, x, 4, dims, four);
}

/* Batch and heads: those of q, or for products of three axes those of a shape on the way, or by a reshape of q; else each batch entry is one head. */
static dw_status find_batch(spelled *spelled, const ir_value *q) {
    if (read_batch(spelled->graph->dims, &q->type, spelled->batch) || spelled->has_batch) return DW_OK;
    const ir_node *node = ir_def(q, OP_reshape);
    const ir_value *from = node == NULL ? NULL : ir_in(node, 0);
    if (from != NULL && from->type.rank == 4 && last_dim(from, 1) == last_dim(q, 1) && last_dim(from, 2) == last_dim(q, 2)) {
        spelled->batch[0] = from->type.dims[0];
        spelled->batch[1] = from->type.dims[1];
        return DW_OK;
    }
    spelled->batch[0] = q->type.dims[0];
    TRY_DIM(spelled->graph->context, spelled->batch[1], dim_constant(spelled->graph->dims, 1));
    return DW_OK;
}

/* Does the part separate batch and heads as the attention does, as far as it varies along them? */
static bool part_fits(const spelled *spelled, const part *part) {
    const op_type *x = &part->value->type, *scores = part->scores;
    dim batch[2];
    if (x->rank < 3 || scores->rank == 3) return true;
    if (!read_batch(spelled->graph->dims, scores, batch)) return false;
    for (int axis = 0; axis < x->rank - 2; axis++) {
        const int is_head = axis == x->rank - 3;
        int64_t one;
        if (dim_is_constant(x->dims[axis], &one) && one == 1) continue;
        if (batch[is_head] != spelled->batch[is_head]) return false;
    }
    return true;
}

static bool parts_fit(spelled *spelled) {
    bool fit = true;
    for (int i = 0; i < spelled->part_count; i++) fit = fit && part_fits(spelled, &spelled->parts[i]);
    if (!fit) spelled->obstacle = "a mask or bias tells batch and heads apart otherwise than the products";
    return fit;
}

/* Do two operands of a product agree in all axes but the last two? */
static bool same_batch(const ir_value *a, const ir_value *b) {
    for (int i = 0; i < a->type.rank - 2; i++) {
        if (a->type.dims[i] != b->type.dims[i]) return false;
    }
    return true;
}

static bool products_fit(spelled *spelled) {
    const ir_value *q = ir_in(spelled->scores, 0), *k = ir_in(spelled->scores, 1), *v = ir_in(spelled->product, 1);
    const int rank = q->type.rank;
    if (dw_format_is_block(q->type.format)) {
        spelled->obstacle = "q is in blocks";
    } else if (ir_bool(spelled->scores, OP_ATTR_at) || ir_bool(spelled->product, OP_ATTR_at) || spelled->scores->n_in > 2 || spelled->product->n_in > 2) {
        spelled->obstacle = "its products are transposed or fused already";
    } else if (rank < 3 || rank > 5 || k->type.rank != rank || v->type.rank != ir_in(spelled->product, 0)->type.rank ||
               v->type.rank < 3 || v->type.rank > 5 || (v->type.rank == 5) != (rank == 5)) {
        spelled->obstacle = "its products have other than 3, 4 or 5 axes";
    } else if (!same_batch(q, k) || (rank == 5 && !same_batch(q, v))) {
        spelled->obstacle = "q and k differ in batch or heads";
    } else if (!same_batch(ir_in(spelled->product, 0), v)) {
        spelled->obstacle = "v has another batch or other heads than its weights";
    } else if (q->type.format != k->type.format || (k->type.format != v->type.format && k->type.format != DW_FORMAT_f32)) {
        spelled->obstacle = "q, k and v differ in format";
    } else if (spelled->rows != NULL && spelled->rows_rank != rank) {
        spelled->obstacle = "a factor of each row stands where heads and batch are merged otherwise than in q";
    }
    return spelled->obstacle == NULL;
}

/* ---- the op ------------------------------------------------------------------------------------------------------------------------ */

/* q and k that were widened to f32 for the scores are taken as they were; else v is widened too. */
static dw_status match_formats(ir_graph *graph, ir_value **in) {
    const dw_format format = in[ATTENTION_V]->type.format;
    if (in[ATTENTION_K]->type.format == format) return DW_OK;
    ir_value *q = without_upcast(in[ATTENTION_Q], format), *k = without_upcast(in[ATTENTION_K], format);
    if (q->type.format != format || k->type.format != format) {
        return ir_emit_cast(graph, in[ATTENTION_V], in[ATTENTION_K]->type.format, &in[ATTENTION_V]);
    }
    in[ATTENTION_Q] = q;
    in[ATTENTION_K] = k;
    return DW_OK;
}

/* Masks joined by and, biases by add, each with the four axes of the scores. */
typedef struct joined { ir_value *mask, *bias; } joined;

/* One more mask, or a bias where hidden scores are finite: what it hides has its low score, whatever was put over the scores before. */
static dw_status join_mask(const spelled *spelled, const part *part, joined *joined) {
    ir_graph *graph = spelled->graph;
    ir_value *x, *low, *shown = joined->bias;
    TRY(ir_emit_cast(graph, part->value, DW_FORMAT_bool, &x));
    TRY(split_part(spelled, part, x, &x));
    if (isinf(part->low)) {
        if (part->hides) TRY(ir_emit_1(graph, OP_not, x, &x));
        if (joined->mask != NULL) TRY(ir_emit_2(graph, OP_and, joined->mask, x, &x));
        joined->mask = x;
        return DW_OK;
    }
    if (shown == NULL) TRY(ir_emit_scalar(graph, DW_FORMAT_f32, 0, &shown));
    TRY(ir_emit_cast(graph, shown, DW_FORMAT_f32, &shown));
    TRY(ir_emit_scalar(graph, DW_FORMAT_f32, part->low, &low));
    ir_value *in[3] = {x, part->hides ? low : shown, part->hides ? shown : low};
    TRY(ir_emit(graph, OP_where, 3, in, 0, NULL, &joined->bias));
    if (joined->mask == NULL) return DW_OK;
    if (!part->hides) TRY(ir_emit_1(graph, OP_not, x, &x));
    return ir_emit_2(graph, OP_or, joined->mask, x, &joined->mask);
}

static dw_status join_bias(const spelled *spelled, const part *part, joined *joined) {
    ir_graph *graph = spelled->graph;
    ir_value *x, *factor;
    TRY(split_part(spelled, part, part->value, &x));
    if (part->factor != 1) {
        TRY(ir_emit_scalar(graph, x->type.format, part->factor, &factor));
        TRY(ir_emit_2(graph, OP_mul, x, factor, &x));
    }
    if (joined->bias != NULL) {
        if (joined->bias->type.format != x->type.format) {
            TRY(ir_emit_cast(graph, x, DW_FORMAT_f32, &x));
            TRY(ir_emit_cast(graph, joined->bias, DW_FORMAT_f32, &joined->bias));
        }
        TRY(ir_emit_2(graph, OP_add, joined->bias, x, &x));
    }
    joined->bias = x;
    return DW_OK;
}

static dw_status join_parts(const spelled *spelled, ir_value **mask, ir_value **bias) {
    joined joined = {NULL, NULL};
    for (int i = spelled->part_count; i-- > 0;) {
        const part *part = &spelled->parts[i];
        TRY(part->adds ? join_bias(spelled, part, &joined) : join_mask(spelled, part, &joined));
    }
    *mask = joined.mask;
    *bias = joined.bias;
    return DW_OK;
}

static dw_status emit_attention(spelled *spelled, ir_value **in) {
    ir_graph *graph = spelled->graph;
    ir_value *result, *out = ir_out(spelled->product);
    ir_cursor_before(graph, spelled->product);
    if (spelled->rows != NULL) {
        ir_value *rows;
        TRY(ir_emit_cast(graph, spelled->rows, in[ATTENTION_Q]->type.format, &rows));
        TRY(ir_emit_2(graph, spelled->rows_divide ? OP_div : OP_mul, in[ATTENTION_Q], rows, &in[ATTENTION_Q]));
    }
    for (int i = ATTENTION_Q; i <= ATTENTION_V; i++) {
        const bool turned = i == ATTENTION_K ? !ir_bool(spelled->scores, OP_ATTR_bt) : i == ATTENTION_V && ir_bool(spelled->product, OP_ATTR_bt);
        if (in[i]->type.rank == 3) TRY(split_batch(spelled, in[i], &in[i]));
        if (i != ATTENTION_V) in[i] = without_factor(spelled, in[i]);
        if (turned) TRY(swap_last(graph, in[i], &in[i]));
        if (i != ATTENTION_V) in[i] = without_factor(spelled, in[i]);
        if (in[i]->type.rank == 5) TRY(merge_batch(graph, in[i], &in[i]));
    }
    TRY(match_formats(graph, in));
    TRY(join_parts(spelled, &in[ATTENTION_MASK], &in[ATTENTION_BIAS]));
    if (spelled->sink != NULL) TRY(ir_emit_reshape(graph, spelled->sink, 1, &spelled->sink->type.dims[1], &in[ATTENTION_SINK]));

    op_attr attrs[3] = {op_set_real(OP_ATTR_scale, spelled->factor)};
    int count = 1;
    if (spelled->softcap > 0) attrs[count++] = op_set_real(OP_ATTR_softcap, spelled->softcap);
    if (out->type.format != in[0]->type.format) attrs[count++] = op_set_format(OP_ATTR_to, out->type.format);
    int n_in = ATTENTION_OPERANDS;
    while (in[n_in - 1] == NULL) n_in--;
    TRY(ir_emit(graph, OP_attention, n_in, in, count, attrs, &result));
    result->node->origin.role = "attention";
    if (out->type.rank != 4) TRY(ir_emit_reshape(graph, result, out->type.rank, out->type.dims, &result));
    ir_replace(graph, out, result);
    return ir_remove(graph, spelled->product);
}

/* Is the last column cut off? */
static bool is_cut(const spelled *spelled, const ir_node *node) {
    if (node->op != OP_slice || ir_int(node, OP_ATTR_axis) != ir_out(node)->type.rank - 1 || ir_int(node, OP_ATTR_step) != 1) return false;
    int64_t start, more;
    const dim rest = dim_sub(spelled->graph->dims, last_dim(ir_in(node, 0), 1), last_dim(ir_out(node), 1));
    return rest != NULL && dim_is_constant(rest, &more) && more == 1 && dim_is_constant(op_attr_dim(&node->attrs, OP_ATTR_start), &start) &&
           start == 0;
}

/* The softmax behind the left operand of a product, through casts and merged heads. */
static ir_value *find_softmax(spelled *spelled, ir_value *p) {
    for (int i = 0; i < MAX_STEPS && p->kind == IR_RESULT; i++) {
        ir_value *x = fuse_softmax_operand(p);
        if (x != NULL) {
            if (ir_def(p, OP_div) == NULL && ir_use_count(spelled->graph, p) > 1) spelled->obstacle = "its weights are used elsewhere";
            return x;
        }
        const ir_node *node = p->node;
        if (is_cut(spelled, node) && !spelled->cut) {
            spelled->cut = true;
            p = ir_in(node, 0);
            continue;
        }
        if (node->op != OP_cast && !(node->op == OP_reshape && is_batch_reshape(spelled, node)) &&
            !(node->op == OP_broadcast && same_shape(ir_in(node, 0), p))) return NULL;
        p = ir_in(node, 0);
    }
    return NULL;
}

static dw_status fuse_product(ir_graph *graph, ir_node *product, bool *changed) {
    spelled spelled = {.graph = graph, .product = product, .factor = 1, .strange = OP_COUNT};
    ir_value *x = find_softmax(&spelled, ir_in(product, 0));
    if (x == NULL || ir_out(product)->type.rank < 3) return DW_OK;
    if (spelled.obstacle == NULL && walk_to_scores(&spelled, x) && products_fit(&spelled)) {
        ir_value *in[ATTENTION_OPERANDS] = {without_factor(&spelled, ir_in(spelled.scores, 0)), without_factor(&spelled, ir_in(spelled.scores, 1)), ir_in(product, 1)};
        TRY(find_batch(&spelled, in[ATTENTION_Q]));
        if (parts_fit(&spelled)) {
            TRY(emit_attention(&spelled, in));
            *changed = true;
            return DW_OK;
        }
    }
    if (spelled.strange != OP_COUNT) return attention_note(graph, product, "is not fused: its scores pass through %s", op_get(spelled.strange)->name);
    if (spelled.obstacle == NULL) return DW_OK;
    return attention_note(graph, product, "is not fused: %s", spelled.obstacle);
}

dw_status attention_fuse_spelled(ir_graph *graph, bool *changed) {
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (node->op != OP_matmul || node->n_in < 2) continue;
        const fuse_attempt attempt = fuse_begin(graph, "attention", node);
        TRY(fuse_end(&attempt, fuse_product(graph, node, changed)));
    }
    return DW_OK;
}
