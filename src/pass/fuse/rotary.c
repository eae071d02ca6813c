/* Rotary position embedding written out: on halves or on neighbouring pairs, on all elements or the first ones, before or after the heads
 * are transposed. cos and sin may be anything that broadcasts.
 *
 *     %1 = slice q {0..8}, %2 = slice q {8..16}              %1 = rotary q, cos, sin {width=16}
 *     %3 = neg %2; %4 = concat %3, %1                        output y %1
 *     %5 = mul q, cos; %6 = mul %4, sin; %7 = add %5, %6  ->
 *     output y %7
 *
 * Slices of slices are one slice by the time this runs, so operands are compared as spans of what they are cut from. */
#include "pass/fuse/fuse.h"

/* ---- pieces ---- */

static bool is_last_axis(const ir_node *node) { return ir_int(node, OP_ATTR_axis) == ir_out(node)->type.rank - 1; }

/* What value is the negative of; NULL when it is none. */
static ir_value *negated(ir_value *value) {
    const ir_node *node = ir_def(value, OP_neg);
    if (node != NULL) return ir_in(node, 0);
    double number;
    ir_value *other;
    node = ir_def(value, OP_mul);
    return node != NULL && fuse_with_number(node, &number, &other) && number == -1.0 ? other : NULL;
}

/* A concat of two along the last axis. */
static ir_node *pair_of(ir_value *value) {
    ir_node *node = ir_def(value, OP_concat);
    return node != NULL && node->n_in == 2 && is_last_axis(node) ? node : NULL;
}

/* Does b begin in the same source where a ends, with the same size? */
static bool is_next(const fuse_span *a, const fuse_span *b) {
    return a->source == b->source && a->step == 1 && b->step == 1 && a->end == b->start && b->end - b->start == a->end - a->start;
}

static bool is_span(const fuse_span *a, const fuse_span *b) {
    return a->source == b->source && a->start == b->start && a->end == b->end && a->step == b->step;
}

/* Every second element of a span [start, start + 2h), as a value [.., h]: a slice of step 2, or one lane of [.., h, 2]. */
static bool lane_of(ir_value *value, fuse_span *pairs, int64_t *lane) {
    int64_t size;
    fuse_span span;
    if (!fuse_last_axis(value, &size) || size == 0) return false;
    if (fuse_span_of(value, &span) && span.step == 2) {
        /* the first lane starts the span; which lane this is, the caller finds by comparing two */
        *lane = span.start % 2;
        *pairs = (fuse_span){span.source, span.start - *lane, span.start - *lane + 2 * size, 1};
        return true;
    }
    const ir_node *reshape = ir_def(value, OP_reshape);
    if (reshape == NULL || !fuse_span_of(ir_in(reshape, 0), &span) || span.end - span.start != 1 || span.step != 1) return false;
    const ir_node *split = ir_def(span.source, OP_reshape);      /* [.., 2h] -> [.., h, 2] */
    int64_t two, half, whole;
    int rank = span.source->type.rank;
    if (split == NULL || !fuse_last_axis(span.source, &two) || two != 2 || ir_in(reshape, 0)->type.rank != value->type.rank + 1) return false;
    if (!dim_is_constant(span.source->type.dims[rank - 2], &half) || half != size) return false;
    fuse_span from;
    if (!fuse_last_axis(ir_in(split, 0), &whole) || whole != 2 * half || !fuse_span_of(ir_in(split, 0), &from) || from.step != 1) return false;
    *lane = span.start;
    *pairs = from;
    return true;
}

/* x[.., h, 1] side by side in a concat, flattened to [.., 2h]: the two of which value is made. */
static bool lanes_of(ir_value *value, ir_value *lanes[2]) {
    const ir_node *flatten = ir_def(value, OP_reshape);
    const ir_node *pair = flatten != NULL ? pair_of(ir_in(flatten, 0)) : NULL;
    int64_t size, one;
    if (pair == NULL || ir_out(pair)->type.rank != value->type.rank + 1 || !fuse_last_axis(value, &size)) return false;
    for (int i = 0; i < 2; i++) {
        ir_value *lane = ir_in(pair, i);
        const ir_node *widen = ir_def(lane, OP_reshape);
        int64_t half;
        if (widen == NULL || !fuse_last_axis(lane, &one) || one != 1 || ir_in(widen, 0)->type.rank != value->type.rank) return false;
        if (!fuse_last_axis(ir_in(widen, 0), &half) || 2 * half != size) return false;
        lanes[i] = ir_in(widen, 0);
    }
    return true;
}

/* ---- writing ---- */

/* The span as a value. */
static dw_status emit_span(ir_graph *graph, const fuse_span *span, ir_value **value) {
    int64_t size;
    dim start, end;
    *value = span->source;
    if (fuse_last_axis(span->source, &size) && span->start == 0 && span->end == size) return DW_OK;
    TRY_DIM(graph->context, start, dim_constant(graph->dims, span->start));
    TRY_DIM(graph->context, end, dim_constant(graph->dims, span->end));
    return ir_emit_slice(graph, span->source, span->source->type.rank - 1, start, end, 1, value);
}

static dw_status emit_rotary(ir_graph *graph, ir_node *root, ir_value *x, ir_value *cosine, ir_value *sine, int64_t width, bool interleaved, bool *changed) {
    op_attr attrs[] = {op_set_int(OP_ATTR_width, width), op_set_bool(OP_ATTR_interleaved, true)};
    ir_value *in[] = {x, cosine, sine}, *made;
    if (!fuse_is_float(x->type.format) || width < 2 || width % 2 != 0 || x->type.rank < 2) return DW_OK;
    TRY(ir_emit(graph, OP_rotary, 3, in, interleaved ? 2 : 1, attrs, &made));
    return fuse_replace(graph, ir_out(root), made, changed);
}

/* cos or sin of half the width as one of the whole: the values of both halves one after the other, or in turn. */
static dw_status emit_table(ir_graph *graph, ir_value *first, ir_value *second, bool interleaved, ir_value **table) {
    int rank = first->type.rank;
    ir_value *in[] = {first, second};
    dim dims[DW_MAX_RANK];
    op_attr axis = op_set_int(OP_ATTR_axis, interleaved ? rank : rank - 1);
    for (int i = 0; i < rank; i++) dims[i] = first->type.dims[i];
    TRY_DIM(graph->context, dims[rank], dim_constant(graph->dims, 1));
    for (int i = 0; interleaved && i < 2; i++) TRY(ir_emit_reshape(graph, in[i], rank + 1, dims, &in[i]));
    TRY(ir_emit(graph, OP_concat, 2, in, 1, &axis, table));
    if (!interleaved) return DW_OK;
    dim two;
    TRY_DIM(graph->context, two, dim_constant(graph->dims, 2));
    TRY_DIM(graph->context, dims[rank - 1], dim_mul(graph->dims, dims[rank - 1], two));
    return ir_emit_reshape(graph, *table, rank, dims, table);
}

/* ---- x * cos + rotated x * sin ---- */

/* Is rotated concat(-second half, first half) of x, or its pairs (-odd, even) in turn? */
static bool is_rotated(ir_value *rotated, ir_value *x, int64_t *width, bool *interleaved) {
    fuse_span whole, first, second;
    ir_value *low, *high, *lanes[2];
    int64_t even, odd;
    if (!fuse_span_of(x, &whole) || whole.step != 1) return false;
    *width = whole.end - whole.start;
    const ir_node *pair = pair_of(rotated);
    *interleaved = pair == NULL;
    if (pair != NULL) {
        high = negated(ir_in(pair, 0));
        low = ir_in(pair, 1);
        return high != NULL && fuse_span_of(low, &first) && fuse_span_of(high, &second) && is_next(&first, &second) && first.source == whole.source &&
               first.start == whole.start && second.end == whole.end;
    }
    if (!lanes_of(rotated, lanes) || (high = negated(lanes[0])) == NULL) return false;
    return lane_of(high, &second, &odd) && lane_of(lanes[1], &first, &even) && odd != even && is_span(&first, &second) &&
           ((first.source == whole.source && first.start == whole.start && first.end == whole.end) || (first.source == x && first.start == 0)) && even == 0;
}

dw_status fuse_rotary(ir_graph *graph, ir_node *node, bool *changed) {
    if (node->op != OP_add) return DW_OK;
    for (int order = 0; order < 8; order++) {
        const ir_node *straight = ir_def(ir_in(node, order & 1), OP_mul), *turned = ir_def(ir_in(node, 1 - (order & 1)), OP_mul);
        int64_t width;
        bool interleaved;
        if (straight == NULL || turned == NULL) return DW_OK;
        ir_value *x = ir_in(straight, (order >> 1) & 1), *cosine = ir_in(straight, 1 - ((order >> 1) & 1));
        ir_value *rotated = ir_in(turned, order >> 2), *sine = ir_in(turned, 1 - (order >> 2));
        if (!op_type_equal(&x->type, &ir_out(node)->type) || !is_rotated(rotated, x, &width, &interleaved)) continue;
        fuse_cursor(graph, node, node);
        return emit_rotary(graph, node, x, cosine, sine, width, interleaved, changed);
    }
    return DW_OK;
}

/* ---- rotated halves or lanes put together again ---- */

/* value = a * c + sign * b * s; the products' operands, in either order, are recognised by which one is of what is rotated. */
typedef struct turn { ir_value *a, *b, *cosine, *sine; } turn;

static bool read_product(ir_value *value, ir_value *x, ir_value **factor) {
    const ir_node *mul = ir_def(value, OP_mul);
    if (mul == NULL || (ir_in(mul, 0) != x && ir_in(mul, 1) != x)) return false;
    *factor = ir_in(mul, ir_in(mul, 0) == x ? 1 : 0);
    return true;
}

/* value as x * cosine - other * sine (op sub) or x * cosine + other * sine (op add). */
static bool read_turn(ir_value *value, op_id op, ir_value *x, ir_value *other, turn *read) {
    const ir_node *node = ir_def(value, op);
    if (node == NULL) return false;
    *read = (turn){.a = x, .b = other};
    for (int i = 0; i < (op == OP_add ? 2 : 1); i++) {
        if (read_product(ir_in(node, i), x, &read->cosine) && read_product(ir_in(node, 1 - i), other, &read->sine)) return true;
    }
    return false;
}

/* The tables must have the size of the half themselves, to be put side by side. */
static bool is_table(const ir_value *table, const ir_value *half) {
    int rank = table->type.rank;
    return rank > 0 && rank < DW_MAX_RANK && half->type.rank > 0 && table->type.dims[rank - 1] == half->type.dims[half->type.rank - 1];
}

/* low = x1 c - x2 s, high = x2 c' + x1 s': finds x1 among the factors of low's first product, x2 among those of its second. */
static bool read_turns(ir_value *low, ir_value *high, turn *first, turn *second) {
    const ir_node *sub = ir_def(low, OP_sub);
    const ir_node *left = sub != NULL ? ir_def(ir_in(sub, 0), OP_mul) : NULL, *right = sub != NULL ? ir_def(ir_in(sub, 1), OP_mul) : NULL;
    for (int i = 0; i < 4 && left != NULL && right != NULL; i++) {
        ir_value *x1 = ir_in(left, i & 1), *x2 = ir_in(right, i >> 1);
        if (!read_turn(low, OP_sub, x1, x2, first) || !read_turn(high, OP_add, x2, x1, second)) continue;
        const ir_value *tables[] = {first->cosine, first->sine, second->cosine, second->sine};
        bool all = true;
        for (int j = 0; j < 4; j++) all = all && is_table(tables[j], x1) && tables[j]->type.rank == tables[0]->type.rank;
        if (all && op_type_equal(&x1->type, &low->type) && op_type_equal(&x2->type, &high->type)) return true;
    }
    return false;
}

dw_status fuse_rotary_pairs(ir_graph *graph, ir_node *node, bool *changed) {
    ir_value *parts[2], *x, *cosine, *sine;
    const ir_node *pair = pair_of(ir_out(node));
    bool interleaved = pair == NULL;
    turn first, second;
    fuse_span low, high;
    int64_t even, odd;
    if (pair != NULL) {
        parts[0] = ir_in(pair, 0);
        parts[1] = ir_in(pair, 1);
    } else if (!lanes_of(ir_out(node), parts)) {
        return DW_OK;
    }
    if (!read_turns(parts[0], parts[1], &first, &second)) return DW_OK;
    if (interleaved) {
        if (!lane_of(first.a, &low, &even) || !lane_of(first.b, &high, &odd) || even != 0 || odd != 1 || !is_span(&low, &high)) return DW_OK;
    } else {
        if (!fuse_span_of(first.a, &low) || !fuse_span_of(first.b, &high) || !is_next(&low, &high)) return DW_OK;
        low.end = high.end;
    }
    if (low.source->type.rank != ir_out(node)->type.rank) return DW_OK;
    fuse_cursor(graph, node, node);
    TRY(emit_span(graph, &low, &x));
    TRY(emit_table(graph, first.cosine, second.cosine, interleaved, &cosine));
    TRY(emit_table(graph, first.sine, second.sine, interleaved, &sine));
    return emit_rotary(graph, node, x, cosine, sine, low.end - low.start, interleaved, changed);
}

/* ---- rotary of a part ---- */

dw_status fuse_rotary_partial(ir_graph *graph, ir_node *node, bool *changed) {
    const ir_node *pair = pair_of(ir_out(node));
    const ir_node *rotary = pair != NULL ? ir_def(ir_in(pair, 0), OP_rotary) : NULL;
    fuse_span turned, rest;
    ir_value *x;
    if (rotary == NULL || !fuse_span_of(ir_in(rotary, 0), &turned) || !fuse_span_of(ir_in(pair, 1), &rest)) return DW_OK;
    int64_t width = turned.end - turned.start;
    bool is_whole = turned.source == rest.source && turned.step == 1 && rest.step == 1 && turned.end == rest.start && ir_int(rotary, OP_ATTR_width) == width;
    if (!is_whole) return DW_OK;
    turned.end = rest.end;
    fuse_cursor(graph, node, rotary);
    TRY(emit_span(graph, &turned, &x));
    return emit_rotary(graph, node, x, ir_in(rotary, 1), ir_in(rotary, 2), width, ir_bool(rotary, OP_ATTR_interleaved), changed);
}

dw_status fuse_concat_empty(ir_graph *graph, ir_node *node, bool *changed) {
    if (node->op != OP_concat) return DW_OK;
    ir_value *in[64], *made;
    int count = 0;
    int64_t axis = ir_int(node, OP_ATTR_axis), size;
    for (int i = 0; i < node->n_in; i++) {
        bool is_empty = dim_is_constant(ir_in(node, i)->type.dims[axis], &size) && size == 0;
        if (!is_empty) in[count++] = ir_in(node, i);
    }
    if (count == 0 || count == node->n_in) return DW_OK;
    op_attr attr = op_set_int(OP_ATTR_axis, axis);
    fuse_cursor(graph, node, node);
    made = in[0];
    if (count > 1) TRY(ir_emit(graph, OP_concat, count, in, 1, &attr, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}
