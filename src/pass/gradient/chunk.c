/* The logits of a loss, rows at a time: a product with a weight whose rows only a cross_entropy reads becomes several products of a part of the rows each, before gradients are derived, and each part's
 * gradient is moved to directly behind its loss afterwards. So neither the logits nor their gradient are ever there as a whole. No product is computed twice where the loss is a weighted sum of
 * the rows' losses; else each part's logits are made again (again.c).
 *
 *     %1 = matmul x, w {bt=true}                  %1 = slice x {axis=0,start=0,end=t/2}
 *     %2:2 = cross_entropy %1, labels             %2 = matmul %1, w {bt=true}
 *                                          ->     %3 = slice labels {..}
 *                                                 %4:2 = cross_entropy %2, %3
 *                                                 ..                               the gradient of %4, of %2, and what they add to that of w
 *                                                 %9 = slice x {axis=0,start=t/2,end=t}
 *                                                 ..
 *                                                 %17 = concat %4, %12 {axis=0}
 *
 * Rows that kernels do not read well, as their length is no multiple of a word, become longer: the weight gets rows of zeros, and the loss is told how many logits are of classes.
 *
 *     %1 = matmul x, w {bt=true}                  %1 = pad w {after=[7,0]}
 *     %2:2 = cross_entropy %1, labels    ->       %2 = matmul x, %1 {bt=true}
 *                                                 %3:2 = cross_entropy %2, labels {classes=..} */
#include "pass/gradient/gradient.h"

#include <string.h>

enum { LONGEST = 16 };                  /* ops between the product and the loss */

/* From the product's node to that in front of the loss. */
typedef struct path { ir_node *nodes[LONGEST]; int count; } path;

static int last_axis(const ir_value *value) { return value->type.rank - 1; }

static bool has_same_shape(const ir_value *a, const ir_value *b) {
    bool same = a->type.rank == b->type.rank;
    for (int i = 0; same && i < a->type.rank; i++) same = a->type.dims[i] == b->type.dims[i];
    return same;
}

/* Does it move whole rows? */
static bool moves_rows(const ir_node *node) {
    const ir_value *x = node->n_in > 0 ? ir_in(node, 0) : NULL, *y = ir_out(node);
    if (x == NULL || x->type.rank < 1 || y->type.rank < 1 || x->type.dims[last_axis(x)] != y->type.dims[last_axis(y)]) return false;
    return node->op == OP_reshape || (node->op == OP_slice && ir_int(node, OP_ATTR_axis) < last_axis(x));
}

/* The operand whose elements it maps one by one, the others being numbers or a row; -1: it is not such an op. */
static int mapped_operand(const ir_node *node) {
    int mapped = -1;
    if ((op_get(node->op)->traits & OP_TRAIT_POINTWISE) == 0) return -1;
    for (int i = 0; i < node->n_in; i++) {
        const ir_value *value = ir_in(node, i);
        if (value == NULL) return -1;
        if (mapped < 0 && has_same_shape(value, ir_out(node)) && value->type.rank > 1) mapped = i;
        else if (value->type.rank > 1) return -1;
    }
    return mapped;
}

static bool is_head(const ir_node *node) {
    if (node->op != OP_matmul || ir_bool(node, OP_ATTR_at) || ir_attr_text(node, OP_ATTR_post)[0] != '\0') return false;
    return ir_in(node, 1)->type.rank == 2 && ir_in(node, 0)->type.rank >= 2 && !dw_format_is_block(ir_in(node, 0)->type.format);
}

/* NULL: the path was found; else why there is none. */
static const char *find_path(const ir_graph *graph, const ir_node *loss, path *path) {
    ir_node *nodes[LONGEST];
    int count = 0;
    for (const ir_value *value = ir_in(loss, 0);;) {
        if (value->kind != IR_RESULT) return "the logits are no product's";
        if (ir_use_count(graph, value) != 1) return "the logits have another use than the loss";
        ir_node *node = value->node;
        if (count == LONGEST) return "there are too many steps between the product and the loss";
        nodes[count++] = node;
        if (is_head(node)) break;
        const int mapped = mapped_operand(node);
        if (mapped < 0 && !moves_rows(node)) return "between the product and the loss stands an op that does not keep rows apart";
        value = ir_in(node, mapped < 0 ? 0 : mapped);
    }
    path->count = count;
    for (int i = 0; i < count; i++) path->nodes[i] = nodes[count - 1 - i];
    return NULL;
}

/* ---- parts ---- */

typedef struct head {
    ir_graph *graph;
    ir_node *loss;
    path path;
    ir_value *x, *labels;               /* [t,k], [t] */
    ir_value *weight;                   /* of the product */
    op_attr attrs[4];                   /* of the loss of a part */
    int attr_count;
    dim rows;
} head;

static dw_status product_of_rows(ir_graph *graph, const ir_value *value, int axes, dim *rows) {
    TRY_DIM(graph->context, *rows, dim_constant(graph->dims, 1));
    for (int i = 0; i < axes; i++) TRY_DIM(graph->context, *rows, dim_mul(graph->dims, *rows, value->type.dims[i]));
    return DW_OK;
}

/* The product's rows as they reach the loss: what moves rows of logits moves rows of x. */
static dw_status gather_rows(head *h) {
    ir_graph *graph = h->graph;
    dim dims[DW_MAX_RANK];
    h->x = ir_in(h->path.nodes[0], 0);
    const dim width = h->x->type.dims[last_axis(h->x)];
    for (int i = 1; i < h->path.count; i++) {
        const ir_node *node = h->path.nodes[i];
        const op_type *to = &ir_out(node)->type;
        if (mapped_operand(node) >= 0) continue;
        graph->origin = node->origin;
        if (node->op == OP_slice) {
            TRY(ir_emit(graph, OP_slice, 1, (ir_value *[]){h->x}, node->attrs.count, node->attrs.items, &h->x));
            continue;
        }
        for (int axis = 0; axis < to->rank - 1; axis++) dims[axis] = to->dims[axis];
        dims[to->rank - 1] = width;
        TRY(ir_emit_reshape(graph, h->x, to->rank, dims, &h->x));
    }
    h->labels = ir_in(h->loss, 1);
    TRY(product_of_rows(graph, h->labels, h->labels->type.rank, &h->rows));
    graph->origin = h->loss->origin;
    TRY(ir_emit_reshape(graph, h->x, 2, (dim[]){h->rows, width}, &h->x));
    return ir_emit_reshape(graph, h->labels, 1, &h->rows, &h->labels);
}

static dw_status emit_part(const head *h, dim start, dim end, gradient_part *part) {
    ir_graph *graph = h->graph;
    ir_value *x, *labels, *in[3], *loss;
    const ir_node *product = h->path.nodes[0];
    graph->origin = product->origin;
    TRY(ir_emit_slice(graph, h->x, 0, start, end, 1, &x));
    TRY(ir_emit(graph, OP_matmul, 2, (ir_value *[]){x, h->weight}, product->attrs.count, product->attrs.items, &x));
    part->made[part->made_count++] = x->node;
    for (int i = 1; i < h->path.count; i++) {
        const ir_node *node = h->path.nodes[i];
        const int mapped = mapped_operand(node);
        if (mapped < 0) continue;
        graph->origin = node->origin;
        for (int k = 0; k < node->n_in; k++) in[k] = k == mapped ? x : ir_in(node, k);
        TRY(ir_emit(graph, node->op, node->n_in, in, node->attrs.count, node->attrs.items, &x));
        part->made[part->made_count++] = x->node;
    }
    graph->origin = h->loss->origin;
    TRY(ir_emit_slice(graph, h->labels, 0, start, end, 1, &labels));
    TRY(ir_emit(graph, OP_cross_entropy, 2, (ir_value *[]){x, labels}, h->attr_count, h->attrs, &loss));
    part->loss = loss->node;
    return DW_OK;
}

/* The parts' results one behind another, in place of the whole's. */
static dw_status join(const head *h, const gradient_part *parts, int count, int result) {
    ir_value *pieces[GRADIENT_CHUNKS], *whole;
    const ir_value *of = h->loss->out[result];
    const op_attr along = op_set_int(OP_ATTR_axis, 0);
    if (ir_use_count(h->graph, of) == 0) return DW_OK;
    for (int i = 0; i < count; i++) pieces[i] = parts[i].loss->out[result];
    whole = pieces[0];
    if (count > 1) TRY(ir_emit(h->graph, OP_concat, count, pieces, 1, &along, &whole));
    TRY(ir_emit_reshape(h->graph, whole, of->type.rank, of->type.dims, &whole));
    ir_replace(h->graph, h->loss->out[result], whole);
    return DW_OK;
}

/* Does the op make numbers of zeros, and has slopes there that are numbers, whatever the length of a row? */
static bool takes_zeros(const ir_node *node) {
    for (int i = 0; i < node->n_in; i++)
        if (i != mapped_operand(node) && ir_in(node, i)->type.rank > 0) return false;
    return node->op == OP_cast || node->op == OP_tanh || node->op == OP_mul || node->op == OP_add || node->op == OP_sub || (node->op == OP_div && mapped_operand(node) == 0);
}

/* How many columns are missing to a multiple; 0 where what stands between the product and the loss allows none, or the loss counts fewer than there are already. */
static int64_t missing_columns(const head *h, int multiple) {
    const ir_node *product = h->path.nodes[0];
    int64_t columns;
    if (multiple < 2 || op_attrs_get(&h->loss->attrs, OP_ATTR_classes) != NULL || !dim_is_constant(ir_out(product)->type.dims[last_axis(ir_out(product))], &columns)) return 0;
    for (int i = 1; i < h->path.count; i++)
        if (mapped_operand(h->path.nodes[i]) >= 0 && !takes_zeros(h->path.nodes[i])) return 0;
    return (multiple - columns % multiple) % multiple;
}

static dw_status widen(head *h, int64_t columns) {
    ir_graph *graph = h->graph;
    const ir_node *product = h->path.nodes[0];
    dim before[2], after[2];
    int64_t classes;
    dim_is_constant(ir_out(product)->type.dims[last_axis(ir_out(product))], &classes);
    for (int i = 0; i < 2; i++) TRY_DIM(graph->context, before[i], dim_constant(graph->dims, 0));
    memcpy(after, before, sizeof after);
    dim *added = &after[ir_bool(product, OP_ATTR_bt) ? 0 : 1];
    TRY_DIM(graph->context, *added, dim_constant(graph->dims, columns));
    const op_attr pad[] = {op_set_dims(OP_ATTR_before, 2, before), op_set_dims(OP_ATTR_after, 2, after), op_set_real(OP_ATTR_value, 0)};
    graph->origin = product->origin;
    h->attrs[h->attr_count++] = op_set_int(OP_ATTR_classes, classes);
    return ir_emit(graph, OP_pad, 1, (ir_value *[]){h->weight}, COUNT_OF(pad), pad, &h->weight);
}

static dw_status split(head *h, int count, int multiple, gradient_part *parts) {
    ir_graph *graph = h->graph;
    dim start, end, number, parts_dim;
    ir_cursor_before(graph, h->loss);
    TRY(gather_rows(h));
    const int64_t missing = missing_columns(h, multiple);
    h->weight = ir_in(h->path.nodes[0], 1);
    while (h->attr_count < h->loss->attrs.count && h->attr_count < (int)COUNT_OF(h->attrs) - 1) {
        h->attrs[h->attr_count] = h->loss->attrs.items[h->attr_count];
        h->attr_count++;
    }
    if (missing > 0) TRY(widen(h, missing));
    TRY_DIM(graph->context, start, dim_constant(graph->dims, 0));
    TRY_DIM(graph->context, parts_dim, dim_constant(graph->dims, count));
    for (int i = 0; i < count; i++, start = end) {
        TRY_DIM(graph->context, number, dim_constant(graph->dims, i + 1));
        TRY_DIM(graph->context, end, dim_mul(graph->dims, h->rows, number));
        if (i + 1 < count) TRY_DIM(graph->context, end, dim_floordiv(graph->dims, end, parts_dim));
        else end = h->rows;
        TRY(emit_part(h, start, end, &parts[i]));
    }
    TRY(join(h, parts, count, 0));
    TRY(join(h, parts, count, 1));
    TRY(ir_remove(graph, h->loss));
    for (int i = h->path.count - 1; i >= 0; i--) TRY(ir_remove(graph, h->path.nodes[i]));
    return DW_OK;
}

dw_status gradient_chunk(ir_graph *graph, int count, int multiple, arena *scratch, gradient_chunks *chunks) {
    size_t capacity = 0;
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        head h = {.graph = graph, .loss = node};
        next = node->next;
        if (node->op != OP_cross_entropy) continue;
        const char *why = find_path(graph, node, &h.path);
        if (why != NULL && count == 1) continue;
        if (why != NULL) {
            TRY(ir_set_note(graph, GRADIENT_LOGITS_WHOLE, why));
            continue;
        }
        chunks->items = arena_grow(scratch, chunks->items, chunks->count, &capacity, sizeof *chunks->items);
        if (chunks->items == NULL) return DW_NO_MEMORY;
        gradient_chunked *made = &chunks->items[chunks->count++];
        made->count = count;
        TRY_NEW(made->parts, scratch, count);
        for (int i = 0; i < count; i++) TRY_NEW(made->parts[i].made, scratch, LONGEST + 1);
        TRY(split(&h, count, multiple, made->parts));
    }
    ir_cursor_end(graph);
    graph->origin = (ir_origin){0};
    ir_renumber(graph);
    return DW_OK;
}

bool gradient_is_of_logits(const ir_value *part) {
    if (part->kind != IR_RESULT) return false;
    for (int i = 0; i < part->node->n_in && i < 2; i++) {
        const ir_value *value = ir_in(part->node, i);
        for (int k = 0; k < LONGEST && value != NULL && value->kind == IR_RESULT && value->node->op != OP_cross_entropy_backward && value->node->n_in > 0; k++) {
            if ((op_get(value->node->op)->traits & (OP_TRAIT_POINTWISE | OP_TRAIT_VIEW)) == 0) break;
            value = ir_in(value->node, 0);
        }
        if (ir_def(value, OP_cross_entropy_backward) != NULL) return true;
    }
    return false;
}

/* ---- order, once gradients are derived ---- */

typedef struct moving {
    ir_graph *graph;
    bool *placed;                       /* by order: stands in front of the part, or belongs to it */
    bool *seen;
    ir_node **open;
} moving;

static ir_node *backward_of(const ir_node *loss) {
    for (const ir_use *use = loss->out[1]->uses; use != NULL; use = use->next)
        if (use->node->op == OP_cross_entropy_backward) return use->node;
    return NULL;
}

/* Does node need what is computed behind limit in the forward part, but for what is placed? */
static bool waits(const moving *m, ir_node *node, int limit) {
    size_t depth = 0;
    memset(m->seen, 0, (size_t)m->graph->last->order * sizeof *m->seen);
    m->open[depth++] = node;
    m->seen[node->order - 1] = true;
    while (depth > 0) {
        const ir_node *at = m->open[--depth];
        for (int i = 0; i < at->n_in; i++) {
            const ir_value *value = ir_in(at, i);
            if (value == NULL || value->kind != IR_RESULT || m->seen[value->node->order - 1] || m->placed[value->node->order - 1]) continue;
            if (value->node->op == OP_cross_entropy || (value->node->order > limit && value->node->op == OP_matmul)) return true;
            m->seen[value->node->order - 1] = true;
            m->open[depth++] = value->node;
        }
    }
    return false;
}

static bool has_all(const moving *m, const ir_node *node) {
    for (int i = 0; i < node->n_in; i++) {
        const ir_value *value = ir_in(node, i);
        if (value != NULL && value->kind == IR_RESULT && !m->placed[value->node->order - 1]) return false;
    }
    return true;
}

static void move_before(ir_graph *graph, ir_node *node, ir_node *at) {
    if (node == at) return;
    if (node->previous != NULL) node->previous->next = node->next;
    else graph->first = node->next;
    if (node->next != NULL) node->next->previous = node->previous;
    else graph->last = node->previous;
    node->previous = at->previous;
    node->next = at;
    if (at->previous != NULL) at->previous->next = node;
    else graph->first = node;
    at->previous = node;
}

/* The gradient of the part's logits, and what uses it: up to sums and products, and the sums of these with those of parts before. */
static void move_part(const moving *m, ir_node *backward, ir_node *at) {
    const unsigned ends = OP_TRAIT_CONTRACTION | OP_TRAIT_REDUCE;
    size_t count = 0;
    m->open[count++] = backward;
    m->placed[backward->order - 1] = true;
    for (size_t i = 0; i < count; i++) {
        ir_node *node = m->open[i];
        const bool is_end = (op_get(node->op)->traits & ends) != 0, is_sum = i > 0 && node->op == OP_add;
        move_before(m->graph, node, at);
        for (const ir_use *use = ir_out(node)->uses; use != NULL; use = use->next) {
            ir_node *user = use->node;
            if (m->placed[user->order - 1] || !has_all(m, user)) continue;
            if ((is_end || is_sum) ? user->op != OP_add : (op_get(user->op)->traits & (ends | OP_TRAIT_POINTWISE | OP_TRAIT_VIEW)) == 0) continue;
            m->placed[user->order - 1] = true;
            m->open[count++] = user;
        }
    }
}

/* The numbers that the part's gradient is multiplied by come with it: they are no one's but the loss's. */
static void place_needs(const moving *m, ir_node *backward) {
    for (int i = 0; i < m->graph->last->order; i++) m->placed[i] = m->placed[i] || m->seen[i];
    m->placed[backward->order - 1] = false;
}

static dw_status order_parts(moving *m, const gradient_chunked *chunked, gradient_chunks *chunks, arena *scratch) {
    for (int i = 0; i < chunked->count; i++) {
        const gradient_part *part = &chunked->parts[i];
        ir_node *backward = backward_of(part->loss);
        if (backward == NULL) continue;
        for (const ir_node *node = m->graph->first; node != NULL; node = node->next)
            if (node->origin.phase == NULL && node->order <= part->loss->order) m->placed[node->order - 1] = true;
        if (waits(m, backward, part->loss->order)) {
            for (int k = 0; k < part->made_count; k++) {
                chunks->again = arena_grow(scratch, chunks->again, chunks->again_count, &chunks->again_capacity, sizeof *chunks->again);
                if (chunks->again == NULL) return DW_NO_MEMORY;
                chunks->again[chunks->again_count++] = part->made[k];
            }
            continue;
        }
        place_needs(m, backward);
        move_part(m, backward, part->loss->next);
    }
    return DW_OK;
}

dw_status gradient_order_chunks(ir_graph *graph, arena *scratch, gradient_chunks *chunks) {
    moving m = {.graph = graph};
    if (chunks->count == 0) return DW_OK;
    ir_renumber(graph);
    TRY_NEW(m.placed, scratch, graph->last->order);
    TRY_NEW(m.seen, scratch, graph->last->order);
    TRY_NEW(m.open, scratch, graph->last->order);
    for (size_t i = 0; i < chunks->count; i++) TRY(order_parts(&m, &chunks->items[i], chunks, scratch));
    return ir_sort(graph);          /* what a part needs comes in front of it */
}
