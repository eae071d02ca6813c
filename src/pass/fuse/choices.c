/* What follows the values of a topk and needs no more than the others of their line becomes its steps, as a router makes weights of the scores that it has chosen:
 *
 *     %1, %2 = topk x {axis=1,length=8}                   %1, %2 = choose x, y {axis=1,length=8,steps="sum(x0);div(x0,t0);cast(t1,bf16)"}
 *     %3 = gather y, %2 {axis=1}
 *     %4 = sum %3 {axes=[1],keep=true}            ->      output w %1
 *     %5 = div %3, %4                                     output e %2
 *     %6 = cast %5 {to=bf16}
 *     output w %6
 *     output e %2
 *
 * The values may be those of x itself. Pointwise ops of numbers, casts, sums and softmax along the axis are taken, up to the last value that alone leads on. Lines are short, as those that kernels keep
 * in registers: what precedes the choice stays. Runs behind the derivation of the cached step, which reads the ops. */
#include "pass/fuse/fuse.h"

#include <string.h>

enum {
    MOST_BETWEEN = 64,            /* nodes that are looked at behind the choice */
    MOST_COUNT = 512,             /* elements of a line */
    MOST_KNOWN = 32
};

/* A value that steps make: of step index, or the chosen values themselves (-1). Views of one are it, too. */
typedef struct known { ir_value *value; int step; } known;

typedef struct choice {
    ir_graph *graph;
    ir_node *topk;
    ir_value *values, *from;      /* what steps begin with, and y or NULL */
    int axis;
    known known[MOST_KNOWN];
    int known_count;
    ir_node *nodes[OP_CHAIN_STEPS];
    op_chain chain;
} choice;

static bool is_real(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

/* Is the value's shape that of a line's values, or with one in their place? */
static bool has_dims(const choice *c, const ir_value *value, bool *one) {
    const op_type *type = &value->type, *line = &c->values->type;
    int64_t size;
    if (type->rank != line->rank) return false;
    for (int i = 0; i < type->rank; i++)
        if (i != c->axis && type->dims[i] != line->dims[i]) return false;
    *one = dim_is_constant(type->dims[c->axis], &size) && size == 1;
    return *one || type->dims[c->axis] == line->dims[c->axis];
}

static const known *find_known(const choice *c, const ir_value *value) {
    for (int i = 0; i < c->known_count; i++)
        if (c->known[i].value == value) return &c->known[i];
    return NULL;
}

static bool know(choice *c, ir_value *value, int step) {
    if (c->known_count == MOST_KNOWN) return false;
    c->known[c->known_count++] = (known){value, step};
    return true;
}

/* ---- growing ---- */

static bool read_operand(const choice *c, ir_value *value, op_chain_read *read) {
    const known *known = find_known(c, value);
    bool one;
    *read = (op_chain_read){.kind = OP_CHAIN_NUMBER, .format = value->type.format};
    if (!is_real(value->type.format)) return false;
    if (known == NULL) return fuse_own_number(value, &read->number);
    if (!has_dims(c, value, &one)) return false;   /* a sum without its axis */
    read->kind = known->step < 0 ? OP_CHAIN_OPERAND : OP_CHAIN_STEP;
    read->index = known->step < 0 ? 0 : known->step;
    return true;
}

/* A sum along the line, whose axis may go. */
static bool is_line_sum(const choice *c, const ir_node *node) {
    const int64_t *axes;
    bool one;
    return node->op == OP_sum && op_attr_ints(&node->attrs, OP_ATTR_axes, &axes) == 1 && axes[0] == c->axis && has_dims(c, ir_in(node, 0), &one) &&
           ir_in(node, 0)->type.dims[c->axis] == c->values->type.dims[c->axis] && ir_out(node)->type.format == ir_in(node, 0)->type.format;
}

static bool joins(const choice *c, const ir_node *node, op_chain_step *step) {
    const double x[OP_CHAIN_READS] = {1, 1, 1};
    double value;
    bool one, reads_line = false;
    if (c->chain.count == OP_CHAIN_STEPS || node->n_in > OP_CHAIN_READS || node->n_out != 1 || !is_real(ir_out(node)->type.format)) return false;
    *step = (op_chain_step){.op = node->op, .n_in = node->n_in, .to = op_attr_format(&node->attrs, OP_ATTR_to), .format = ir_out(node)->type.format};
    for (int i = 0; i < node->n_in; i++) {
        if (ir_in(node, i) == NULL || ir_in(node, i)->type.format != ir_in(node, 0)->type.format || !read_operand(c, ir_in(node, i), &step->in[i])) return false;
        reads_line |= step->in[i].kind != OP_CHAIN_NUMBER;
    }
    if (!reads_line) return false;
    if (node->op == OP_sum) return is_line_sum(c, node);
    if (node->op == OP_softmax) return ir_int(node, OP_ATTR_axis) == c->axis && ir_out(node)->type.dims[c->axis] == c->values->type.dims[c->axis] && has_dims(c, ir_out(node), &one);
    return (node->op == OP_cast || op_pointwise_value(node->op, node->n_in, x, &value)) && has_dims(c, ir_out(node), &one);
}

/* A view of one number a line: it in another shape. */
static bool is_same(const choice *c, const ir_node *node) {
    bool one;
    const known *known = node->op == OP_reshape || node->op == OP_broadcast ? find_known(c, ir_in(node, 0)) : NULL;
    if (known == NULL || known->step < 0 || !has_dims(c, ir_out(node), &one)) return false;
    return (node->op == OP_broadcast && has_dims(c, ir_in(node, 0), &one) && one) || (node->op == OP_reshape && one && c->chain.steps[known->step].op == OP_sum);
}

static void grow(choice *c) {
    int left = MOST_BETWEEN;
    for (ir_node *node = c->values->node->next; node != NULL && left-- > 0; node = node->next) {
        op_chain_step step;
        if (joins(c, node, &step)) {
            if (!know(c, ir_out(node), c->chain.count)) return;
            c->nodes[c->chain.count] = node;
            c->chain.steps[c->chain.count++] = step;
        } else if (is_same(c, node) && !know(c, ir_out(node), find_known(c, ir_in(node, 0))->step)) {
            return;
        }
    }
}

/* ---- the last one ---- */

/* Which steps lead to the last. */
static unsigned steps_to(const op_chain *chain, int last) {
    unsigned needed = 1u << last;
    for (int i = last; i >= 0; i--)
        for (int k = 0; (needed >> i & 1) != 0 && k < chain->steps[i].n_in; k++)
            if (chain->steps[i].in[k].kind == OP_CHAIN_STEP) needed |= 1u << chain->steps[i].in[k].index;
    return needed;
}

static bool is_needed(const choice *c, const ir_node *node, unsigned needed) {
    for (int i = 0; i < c->chain.count; i++)
        if ((needed >> i & 1) != 0 && c->nodes[i] == node) return true;
    return false;
}

/* Is the value read by those steps alone, or by views of it that are? */
static bool stays_within(const choice *c, const ir_value *value, unsigned needed) {
    if (value->output_count + value->next_count > 0) return false;
    for (const ir_use *use = value->uses; use != NULL; use = use->next) {
        if (is_needed(c, use->node, needed)) continue;
        const known *view = use->node->n_out == 1 ? find_known(c, ir_out(use->node)) : NULL;
        if (view == NULL || c->nodes[view->step] == use->node) return false;   /* a step that leads elsewhere */
        if (!stays_within(c, ir_out(use->node), needed)) return false;
    }
    return true;
}

static bool may_end(const choice *c, int last, unsigned needed) {
    bool one;
    const ir_value *end = ir_out(c->nodes[last]);
    if (c->chain.steps[last].op != OP_sum && (!has_dims(c, end, &one) || end->type.dims[c->axis] != c->values->type.dims[c->axis])) return false;
    if (!stays_within(c, c->values, needed)) return false;
    for (int i = 0; i < last; i++)
        if ((needed >> i & 1) != 0 && !stays_within(c, ir_out(c->nodes[i]), needed)) return false;
    return true;
}

/* Only those steps, numbered anew. */
static void keep_steps(op_chain *chain, unsigned needed) {
    int places[OP_CHAIN_STEPS], count = 0;
    for (int i = 0; i < chain->count; i++) {
        if ((needed >> i & 1) == 0) continue;
        op_chain_step step = chain->steps[i];
        for (int k = 0; k < step.n_in; k++)
            if (step.in[k].kind == OP_CHAIN_STEP) step.in[k].index = places[step.in[k].index];
        places[i] = count;
        chain->steps[count++] = step;
    }
    chain->count = count;
}

/* ---- rewriting ---- */

/* The scores whose softmax along the axis, the last one, the choice alone reads. */
static ir_value *softmax_operand(const choice *c) {
    ir_node *node = fuse_def_single(c->graph, ir_in(c->topk, 0), OP_softmax);
    return node != NULL && ir_int(node, OP_ATTR_axis) == c->axis && c->axis == ir_out(node)->type.rank - 1 ? ir_in(node, 0) : NULL;
}

static dw_status rewrite(choice *c, ir_value *end, bool *changed) {
    ir_graph *graph = c->graph;
    ir_node *topk = c->topk;
    ir_value *scores = softmax_operand(c), *in[] = {scores != NULL ? scores : ir_in(topk, 0), c->from}, *made, *as_end;
    op_attr attrs[OP_ATTR_COUNT];
    text steps;
    int count = 0;
    text_init(&steps, graph->context);
    op_chain_print(&steps, &c->chain);
    dw_status status = text_status(&steps);
    for (int i = 0; i < topk->attrs.count; i++) attrs[count++] = topk->attrs.items[i];
    if (scores != NULL) attrs[count++] = op_set_bool(OP_ATTR_softmax, true);
    if (c->chain.count > 0) attrs[count++] = op_set_text(OP_ATTR_steps, text_string(&steps));
    fuse_cursor(graph, topk, topk);
    if (status == DW_OK) status = ir_emit(graph, OP_choose, c->from != NULL ? 2 : 1, in, count, attrs, &made);
    text_free(&steps);
    TRY(status);
    ir_value *places = made->node->out[1];
    as_end = made;
    if (end->type.rank != made->type.rank) TRY(ir_emit_reshape(graph, made, end->type.rank, end->type.dims, &as_end));
    ir_replace(graph, topk->out[1], places);
    return fuse_replace(graph, end, as_end, changed);
}

/* The only gather of y at the places that are chosen, where nothing reads the values of x. */
static ir_node *find_gather(const ir_node *topk, int axis) {
    ir_node *found = NULL;
    for (const ir_use *use = topk->out[1]->uses; use != NULL; use = use->next) {
        ir_node *node = use->node;
        if (node->op != OP_gather || use->index != 1 || ir_int(node, OP_ATTR_axis) != axis) continue;
        const ir_value *y = ir_in(node, 0);
        const op_type *x = &ir_in(topk, 0)->type;
        const bool is_like_x = y->type.rank == x->rank && memcmp(y->type.dims, x->dims, (size_t)x->rank * sizeof *x->dims) == 0 && is_real(y->type.format);
        const bool is_there = y->kind != IR_RESULT || y->node->order < topk->order;
        if (found != NULL || !is_like_x || !is_there) return NULL;
        found = node;
    }
    return found;
}

static dw_status fuse_choices(ir_graph *graph, ir_node *node, bool *changed) {
    choice c = {.graph = graph, .topk = node, .axis = (int)ir_int(node, OP_ATTR_axis)};
    int64_t count, length;
    if (node->op != OP_topk || !is_real(ir_in(node, 0)->type.format)) return DW_OK;
    if (!dim_is_constant(ir_in(node, 0)->type.dims[c.axis], &count) || count > MOST_COUNT || !dim_is_constant(ir_out(node)->type.dims[c.axis], &length) || length < 1 || length > OP_LINE) return DW_OK;
    ir_node *gather = ir_use_count(graph, node->out[0]) == 0 ? find_gather(node, c.axis) : NULL;
    c.values = gather != NULL ? ir_out(gather) : node->out[0];
    c.from = gather != NULL ? ir_in(gather, 0) : NULL;
    know(&c, c.values, -1);
    grow(&c);
    for (int last = c.chain.count - 1; last >= 0; last--) {
        const unsigned needed = steps_to(&c.chain, last);
        if (!may_end(&c, last, needed)) continue;
        ir_value *end = ir_out(c.nodes[last]);
        keep_steps(&c.chain, needed);
        return rewrite(&c, end, changed);
    }
    c.chain.count = 0;
    return gather != NULL || softmax_operand(&c) != NULL ? rewrite(&c, c.values, changed) : DW_OK;
}

/* Ops for which the caller named or registered a kernel stay, all that might join. */
dw_status pass_choices(ir_graph *graph, const pass_options *options, bool *changed) {
    *changed = false;
    for (int op = 0; options->alone != NULL && op < OP_COUNT; op++)
        if (options->alone[op] && (op == OP_topk || op == OP_gather || op == OP_sum || op == OP_softmax || op_has((op_id)op, OP_TRAIT_POINTWISE))) return DW_OK;
    return fuse_each(graph, "choices", fuse_choices, changed);
}
