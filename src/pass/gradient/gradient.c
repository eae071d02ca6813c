/* Reverse mode: the nodes in front of a loss from the last to the first, each by the row of its op, and the sums of what meets at a value. What a row says is
 * in the files rules_*.c; which graph, loss and weights they are is public.c's. */
#include "pass/gradient/gradient.h"

#include <string.h>

/* ---- rows ---- */

/* Each row is a variable named by its op, so that op.def does not compile against fewer. */
#define GRADIENT_STOP(name, what) static const gradient_row row_##name = {0};
#define GRADIENT_TEXT(name, what) static const gradient_row row_##name = {.text = what};
#define GRADIENT_RULE(name, what) static const gradient_row row_##name = {.rule = gradient_##what};
#define GRADIENT_REFUSED(name, what) static const gradient_row row_##name = {.refused = what};
#define GRADIENT(name, kind, what) GRADIENT_##kind(name, what)
#include "pass/gradient/gradient.def"
#undef GRADIENT
#undef GRADIENT_STOP
#undef GRADIENT_TEXT
#undef GRADIENT_RULE
#undef GRADIENT_REFUSED

const gradient_row *gradient_row_of(op_id op) {
    static const gradient_row *const rows[] = {
#define OP(name, min_in, max_in, min_out, max_out, family, attributes, traits, meaning) [OP_##name] = &row_##name,
#include "op/op.def"
#undef OP
    };
    return rows[op];
}

static bool is_stop(const gradient_row *row) { return row->rule == NULL && row->text == NULL && row->refused == NULL; }

/* ---- what is wanted ---- */

/* Elements of at least 16 bits: others have no gradient of their format, and ops make them by steps. */
static bool is_number(dw_format format) {
    const num_format *info = num_info(format);
    return info->class == NUM_FLOAT && info->bits >= 16;
}

static void unmark(ir_value *const *values, size_t count) {
    for (size_t i = 0; i < count; i++) values[i]->mark = NULL;
}

/* Marks every value that depends on a trained state, or on an input that is asked for, by ops through which a gradient flows. */
static dw_status mark_wanted(gradient *g, const char *inputs) {
    ir_graph *graph = g->graph;
    unmark(graph->inputs, graph->input_count);
    unmark(graph->params, graph->param_count);
    unmark(graph->states, graph->state_count);
    for (size_t i = 0; i < graph->state_count; i++) {
        if (graph->states[i]->trained) TRY(gradient_want(g, graph->states[i]));
    }
    for (size_t i = 0; i < graph->input_count; i++) {
        if (gradient_is_asked_for(graph->inputs[i], inputs)) TRY(gradient_want(g, graph->inputs[i]));
    }
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        unmark(node->out, (size_t)node->n_out);
        bool flows = false;
        for (int i = 0; i < node->n_in; i++) flows = flows || gradient_wants(g, ir_in(node, i));
        if (!flows || is_stop(gradient_row_of(node->op))) continue;
        for (int i = 0; i < node->n_out; i++) {
            if (is_number(node->out[i]->type.format) || dw_format_is_block(node->out[i]->type.format)) TRY(gradient_want(g, node->out[i]));
        }
    }
    return DW_OK;
}

/* ---- one node ---- */

static dw_status apply_text(gradient *g, const ir_node *node, const char *text) {
    for (int i = 0; i < node->n_in; i++) {
        const size_t length = strcspn(text, "|");
        ir_value *made;
        if (*text != '-' && gradient_wants(g, ir_in(node, i))) {
            TRY(gradient_emit_text(g, node, text, length, gradient_of(g, node, 0), &made));
            TRY(gradient_add(g, ir_in(node, i), made));
        }
        text += length + (text[length] == '|');
    }
    return DW_OK;
}

/* A rule that forgets an operand would give a gradient that lacks a part. */
static dw_status apply_rule(gradient *g, const ir_node *node, gradient_rule rule) {
    size_t *before;
    TRY_NEW(before, &g->scratch, node->n_in);
    for (int i = 0; i < node->n_in; i++) before[i] = gradient_wants(g, ir_in(node, i)) ? gradient_part_count(ir_in(node, i)) : 0;
    TRY(rule(g, node));
    for (int i = 0; i < node->n_in; i++) {
        if (!gradient_wants(g, ir_in(node, i)) || gradient_part_count(ir_in(node, i)) > before[i]) continue;
        return base_fail(g->graph->context, DW_INTERNAL, "its rule gives operand %d no gradient", i);
    }
    return DW_OK;
}

/* The message of a failure names the op and its place. */
static dw_status apply(gradient *g, const ir_node *node) {
    const gradient_row *row = gradient_row_of(node->op);
    const ir_origin *origin = &node->origin;
    if (row->refused != NULL) return gradient_refuse(g, node, row->refused);
    g->graph->origin = node->origin;
    const dw_status status = row->rule != NULL ? apply_rule(g, node, row->rule) : apply_text(g, node, row->text);
    if (status == DW_OK || status == DW_NO_MEMORY || status == DW_UNSUPPORTED) return status;
    return base_fail_at(g->graph->context, status, "the gradient of op %s, module %s", op_get(node->op)->name, origin->module != NULL ? origin->module : "-");
}

static dw_status visit(gradient *g, const ir_node *node) {
    bool has_gradient = false;
    g->graph->origin = node->origin;
    for (int i = 0; i < node->n_out; i++) {
        if (!gradient_wants(g, node->out[i])) continue;
        ir_value *sum;
        TRY(gradient_sum_parts(g, node->out[i], &sum));
        has_gradient = has_gradient || sum != NULL;
    }
    return has_gradient ? apply(g, node) : DW_OK;
}

/* ---- the whole ---- */

static dw_status add_output(gradient *g, ir_value *of, const char *phase) {
    ir_value *sum;
    TRY(gradient_sum_parts(g, of, &sum));
    if (sum == NULL) TRY(gradient_emit_full(g, of, 0, &sum));
    gradient_set_phase(g, phase);
    const char *name = arena_printf(&g->scratch, "grad.%s", of->name);
    return name != NULL ? ir_add_output(g->graph, name, sum) : DW_NO_MEMORY;
}

static dw_status add_outputs(gradient *g) {
    ir_graph *graph = g->graph;
    graph->origin = (ir_origin){0};
    for (size_t i = 0; i < graph->state_count; i++)
        if (graph->states[i]->trained) TRY(add_output(g, graph->states[i], g->wgrad));
    for (size_t i = 0; i < graph->input_count; i++)
        if (gradient_wants(g, graph->inputs[i])) TRY(add_output(g, graph->inputs[i], g->dgrad));
    return DW_OK;
}

static dw_status derive(gradient *g, const ir_output *loss, const char *inputs) {
    ir_graph *graph = g->graph;
    ir_node *last = graph->last;
    ir_value *one;
    TRY(ir_intern(graph, "dgrad", &g->dgrad));
    TRY(ir_intern(graph, "wgrad", &g->wgrad));
    TRY(mark_wanted(g, inputs));
    if (!gradient_wants(g, loss->value)) {
        return base_fail(graph->context, DW_INVALID, "the loss '%s' depends on no trained parameter%s by ops that have gradients, so there is none to take", loss->name, inputs != NULL ? " and no input that is asked for" : "");
    }
    g->phased = last;
    TRY(gradient_emit_full(g, loss->value, 1, &one));
    TRY(gradient_add(g, loss->value, one));
    for (ir_node *node = last; node != NULL; node = node->previous) {
        TRY(base_poll(graph->context));
        TRY(visit(g, node));
    }
    return add_outputs(g);
}

dw_status gradient_derive(ir_graph *graph, const ir_output *loss, const char *inputs) {
    gradient g = {.graph = graph};
    const ir_output copy = *loss;               /* outputs are added */
    arena_init(&g.scratch, graph->context);
    ir_cursor_end(graph);
    if (graph->last == NULL) return base_fail(graph->context, DW_INVALID, "graph '%s' computes nothing, so there is no gradient to take", graph->name);
    const dw_status status = derive(&g, &copy, inputs);
    arena_free(&g.scratch);
    graph->origin = (ir_origin){0};
    return status;
}
