/* What the backward part makes again: a node that reads a value of the forward part, which is not kept, reads a copy of it instead, made in front of the first that does, of copies of what it is
 * made of, down to what is kept. So the value's memory is free from its last forward reader on. Copies have the phase "again", and the bits of what they are copies of: the pass cse leaves them alone,
 * and fusions treat a product that has a copy as one whose result has two readers (fuse/linear.c).
 *
 *     %1 = matmul x, w {bt=true}                                %1 = matmul x, w {bt=true}
 *     %2 = gelu %1                                              %2 = gelu %1
 *     %3 = matmul %2, v {bt=true}                        ->     %3 = matmul %2, v {bt=true}
 *     ..                                                        ..
 *     %9 = matmul %8, %2 {at=true} phase wgrad                  %9 = gelu %1 phase again
 *                                                               %10 = matmul %8, %9 {at=true} phase wgrad */
#include "pass/gradient/gradient.h"

#include <string.h>

enum { UNKNOWN, YES, NO };

/* Of a forward node, by its order. */
typedef struct fate {
    gradient_level level;
    const char *unit;               /* interned: the layer, or the attention of one, that it is made again with; NULL: none */
    bool leaves;                    /* something else of the forward part reads a result of it, so that is kept where it is needed */
    bool needed;                    /* the backward part reads it, or a view of it */
    int cheap;                      /* may it be made again by itself? */
    ir_node *copy;
} fate;

typedef struct remaking {
    ir_graph *graph;
    fate *fates;
    int count;                      /* of nodes that there were */
    const char *phase;
} remaking;

static bool is_forward(const ir_node *node) { return node->origin.phase == NULL; }
static bool is_view(const ir_node *node) { return (op_get(node->op)->traits & OP_TRAIT_VIEW) != 0; }
static fate *fate_of(const remaking *r, const ir_node *node) { return &r->fates[node->order - 1]; }

/* Of a value that is computed in a run by the forward part, what makes it; else NULL. */
static ir_node *maker_of(const ir_value *value) {
    return value != NULL && value->kind == IR_RESULT && value->rate == IR_RATE_RUN && is_forward(value->node) ? value->node : NULL;
}

/* ---- layers ---- */

static dw_status name_unit(ir_graph *graph, const char *module, size_t length, const char *suffix, const char **unit) {
    const char *name = arena_printf(&graph->arena, "%.*s%s", (int)length, module, suffix);
    return name != NULL ? ir_intern(graph, name, unit) : DW_NO_MEMORY;
}

static bool is_role(const ir_node *node, const char *role) { return node->origin.role != NULL && strcmp(node->origin.role, role) == 0; }

/* Does what attention computes go through it: is it a view or the like of nothing else? */
static bool follows_attention(const remaking *r, const ir_node *node, const char *unit) {
    if ((op_get(node->op)->traits & (OP_TRAIT_VIEW | OP_TRAIT_POINTWISE | OP_TRAIT_ROWWISE)) == 0 || node->origin.role != NULL) return false;
    bool any = false;
    for (int i = 0; i < node->n_in; i++) {
        const ir_node *maker = maker_of(ir_in(node, i));
        if (maker == NULL) continue;
        if (fate_of(r, maker)->unit != unit) return false;
        any = true;
    }
    return any;
}

static dw_status find_unit(const remaking *r, const ir_node *node) {
    fate *fate = fate_of(r, node);
    const char *module = node->origin.module != NULL ? node->origin.module : "", *unit;
    const size_t length = pass_layer_length(module);
    if (length == 0 || fate->level < GRADIENT_RECOMPUTE_attention) return DW_OK;
    TRY(name_unit(r->graph, module, length, fate->level == GRADIENT_RECOMPUTE_block ? "" : " attention", &unit));
    if (fate->level == GRADIENT_RECOMPUTE_block || is_role(node, "attention") || follows_attention(r, node, unit)) fate->unit = unit;
    return DW_OK;
}

/* ---- what is needed, what leaves ---- */

static dw_status find_units(const remaking *r, const gradient_recompute *rules) {
    for (const ir_node *node = r->graph->first; node != NULL; node = node->next) {
        if (!is_forward(node) || ir_out(node)->rate != IR_RATE_RUN) continue;
        fate_of(r, node)->level = gradient_recompute_of(rules, node);
        TRY(find_unit(r, node));
    }
    return DW_OK;
}

static void look_at_uses(const remaking *r, const ir_node *node) {
    fate *fate = fate_of(r, node);
    for (int i = 0; i < node->n_out; i++) {
        const ir_value *value = node->out[i];
        if (value->output_count > 0 || value->next_count > 0) fate->leaves = true;
        for (const ir_use *use = value->uses; use != NULL; use = use->next) {
            if (!is_forward(use->node)) fate->needed = true;
            else if (is_view(use->node) && fate_of(r, use->node)->needed) fate->needed = true;
            if (is_forward(use->node) && fate->unit != NULL && fate_of(r, use->node)->unit != fate->unit) fate->leaves = true;
        }
    }
}

/* A few operations for each element: less than to write it and to read it again. */
static bool is_cheap(const ir_node *node) {
    const unsigned traits = OP_TRAIT_POINTWISE | OP_TRAIT_VIEW | OP_TRAIT_NORM | OP_TRAIT_ROWWISE | OP_TRAIT_CREATE;
    const bool is_number = num_info(ir_out(node)->type.format)->class == NUM_FLOAT;     /* what is none, as ids are and masks, is small */
    return (op_get(node->op)->traits & traits) != 0 && node->n_out == 1 && ir_out(node)->output_count == 0 && is_number;
}

/* May it be made again by itself: is what it is made of kept anyway, or made again in the same way? A view of what is kept is. */
static bool is_made_cheaply(const remaking *r, const ir_node *node) {
    fate *fate = fate_of(r, node);
    if (fate->cheap != UNKNOWN) return fate->cheap == YES;
    bool is = fate->level >= GRADIENT_RECOMPUTE_cheap && is_cheap(node);
    for (int i = 0; is && i < node->n_in; i++) {
        const ir_node *maker = maker_of(ir_in(node, i));
        if (maker != NULL && !is_made_cheaply(r, maker)) is = fate_of(r, maker)->needed && !is_view(node);
    }
    fate->cheap = is ? YES : NO;
    return is;
}

/* ---- copies ---- */

/* for_copy: a value that one node alone reads is not kept for a copy of that, whatever its level, but made again with it: a product that two read would not take in what follows it, and have other
 * bits. */
static bool is_kept(const remaking *r, const ir_node *maker, bool for_copy) {
    const fate *fate = fate_of(r, maker);
    if (is_made_cheaply(r, maker)) return false;
    return fate->leaves || (fate->unit == NULL && (fate->needed || !for_copy || ir_use_count(r->graph, ir_out(maker)) > 1));
}

static dw_status copy_of(const remaking *r, ir_value *value, bool for_copy, ir_value **copy) {
    ir_node *maker = maker_of(value);
    *copy = value;
    if (maker == NULL || is_kept(r, maker, for_copy)) return DW_OK;
    fate *fate = fate_of(r, maker);
    if (fate->copy == NULL) {
        ir_value **in, *made;
        TRY_NEW(in, &r->graph->arena, maker->n_in + 1);
        for (int i = 0; i < maker->n_in; i++)
            if (ir_in(maker, i) != NULL) TRY(copy_of(r, ir_in(maker, i), true, &in[i]));
        r->graph->origin = maker->origin;
        r->graph->origin.phase = r->phase;
        TRY(ir_emit(r->graph, maker->op, maker->n_in, in, maker->attrs.count, maker->attrs.items, &made));
        fate->copy = made->node;
    }
    *copy = fate->copy->out[value->result];
    return DW_OK;
}

static dw_status remake(const remaking *r) {
    ir_graph *graph = r->graph;
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        if (is_forward(node)) continue;
        for (int i = 0; i < node->n_in; i++) {
            ir_value *copy;
            if (ir_in(node, i) == NULL) continue;
            ir_cursor_before(graph, node);
            TRY(copy_of(r, ir_in(node, i), false, &copy));
            if (copy != ir_in(node, i)) ir_set_operand(node, i, copy);
        }
    }
    return DW_OK;
}

static dw_status make_again(remaking *r, arena *scratch, const gradient_recompute *rules, ir_node *const *forced, size_t forced_count) {
    TRY_NEW(r->fates, scratch, r->count);
    TRY(ir_intern(r->graph, "again", &r->phase));
    TRY(find_units(r, rules));
    for (size_t i = 0; i < forced_count; i++) fate_of(r, forced[i])->unit = "";       /* each by itself: nothing else of that unit reads it */
    for (const ir_node *node = r->graph->last; node != NULL; node = node->previous)
        if (is_forward(node)) look_at_uses(r, node);
    for (size_t i = 0; i < forced_count; i++) fate_of(r, forced[i])->leaves = false;
    return remake(r);
}

dw_status gradient_make_again(ir_graph *graph, const gradient_recompute *rules, ir_node *const *forced, size_t forced_count) {
    remaking r = {.graph = graph};
    arena scratch;
    ir_renumber(graph);
    r.count = graph->last != NULL ? graph->last->order : 0;
    arena_init(&scratch, graph->context);
    const dw_status status = make_again(&r, &scratch, rules, forced, forced_count);
    arena_free(&scratch);
    ir_cursor_end(graph);
    graph->origin = (ir_origin){0};
    return status;
}
