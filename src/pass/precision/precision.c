/* Precision made explicit: each product with a weight gets operands in the formats that the policy chooses for it, its result stays in the
 * format it had. What is no product with a weight keeps its format: embeddings, norms, softmax, the scores and sums of attention; caches get the format that a rule of
 * their own says (caches.c), and so may queries and keys (scores.c). A constant that no
 * parameter or buffer of the model went into is no weight: such are the matrices by which capture writes Fourier transforms and interpolation.
 *
 *     %1 = matmul x, w {bt=true}             %1 = quantize x {to=nvfp4_row,search=true}
 *     output y %1                      ->    %2 = quantize w {to=nvfp4,search=true}
 *                                            %3 = matmul %1, %2 {to=f32,bt=true}
 *                                            output y %3
 *
 * In a graph with gradients the products of weights' gradients have no weight, and attention has products too, which its gradient makes again: where the policy says bf16 of their layer, they get operands in bf16
 * and give back the formats that they had. Other precisions leave them as they are.
 *
 *     %1, %2 = attention q, k, v {lse=true}               %1 = cast q {to=bf16}; ..
 *     ..                                            ->    %4, %5 = attention %1, %2, %3 {lse=true}; %6 = cast %4 {to=f32}
 *     %3 = matmul x, d {at=true} phase wgrad              %9 = matmul %7, %8 {at=true,to=f32} phase wgrad
 *
 * Blocks run along k, so a weight stored [k,n] is transposed first; both are computed once, at load. In four bits scales are searched for the least
 * error, those of activations too, which lose more than weights do by the plain rule. Equal quantisations of one activation become one by cse. The graph's note "precision" says the policy, and that this pass is done. */
#include "pass/fuse/fuse.h"
#include "pass/precision/told.h"

#include <stdio.h>
#include <string.h>

#define NOTE "precision"

typedef struct lowering {
    ir_graph *graph;
    const pass_options *options;
    arena scratch;
    map layers;                     /* names given so far */
    int ordinal;
    bool is_trained;                /* it has gradients, and no probes */
} lowering;

/* ---- names of layers ---- */

/* The parameter at the bottom of a weight. */
static const char *weight_name(const ir_value *value) {
    while (value->kind == IR_RESULT && value->node->n_in > 0 && ir_in(value->node, 0) != NULL) value = ir_in(value->node, 0);
    return value->kind == IR_PARAM ? value->name : NULL;
}

/* The module path, else the weight's name without ".weight", else a number; equal names get "#2" behind them, but for those of gradients, which go as their layer does. */
static dw_status name_layer(lowering *lowering, const ir_node *node, const char **name) {
    const char *base = node->origin.module;
    lowering->ordinal++;
    if (base == NULL || *base == '\0') {
        base = weight_name(ir_in(node, 1));
        const char *suffix = base != NULL ? strstr(base, ".weight") : NULL;
        if (suffix != NULL && suffix[strlen(".weight")] == '\0') base = arena_text_n(&lowering->scratch, base, (size_t)(suffix - base));
        else if (base == NULL) base = arena_printf(&lowering->scratch, "%s.%d", op_get(node->op)->name, lowering->ordinal);
    }
    *name = base;
    if (node->origin.phase != NULL) return base != NULL ? DW_OK : DW_NO_MEMORY;
    for (int i = 2; *name != NULL && map_find(&lowering->layers, *name) != NULL; i++) *name = arena_printf(&lowering->scratch, "%s#%d", base, i);
    return *name != NULL ? map_set(&lowering->layers, *name, lowering) : DW_NO_MEMORY;
}

/* ---- operands ---- */

static dw_status swap_last_axes(ir_graph *graph, ir_value *value, ir_value **swapped) {
    int64_t order[DW_MAX_RANK];
    int rank = value->type.rank;
    for (int i = 0; i < rank; i++) order[i] = i;
    order[rank - 1] = rank - 2;
    order[rank - 2] = rank - 1;
    return ir_emit_transpose(graph, value, order, swapped);
}

/* Doubles become f32: no sum of narrow products has more. */
static dw_format at_most_f32(dw_format format) { return format == DW_FORMAT_f64 ? DW_FORMAT_f32 : format; }

static dw_status emit_at_most_f32(ir_graph *graph, ir_value **value) {
    return *value != NULL ? ir_emit_cast(graph, *value, at_most_f32((*value)->type.format), value) : DW_OK;
}

/* A cast, behind which reshapes go, so that a value which one product reads in its shape and another as rows is cast once, and what makes a weight longer. None of what was widened. */
static dw_status emit_cast(ir_graph *graph, ir_value *value, dw_format to, ir_value **made) {
    if (precision_is_narrow(value, to)) return precision_emit_narrow(graph, value, to, made);
    const ir_node *pad = ir_is_weight(value) ? ir_def(value, OP_pad) : NULL;
    if (pad != NULL && ir_real(pad, OP_ATTR_value) == 0) {
        TRY(emit_cast(graph, ir_in(pad, 0), to, made));
        return ir_emit(graph, OP_pad, 1, (ir_value *[]){*made}, pad->attrs.count, pad->attrs.items, made);
    }
    const ir_node *reshape = ir_def(value, OP_reshape);
    if (reshape == NULL || value->type.format == to) return ir_emit_cast(graph, value, to, made);
    TRY(emit_cast(graph, ir_in(reshape, 0), to, made));
    return ir_emit_reshape(graph, *made, value->type.rank, value->type.dims, made);
}

/* value in that format: a cast or a quantisation of it before it was widened. */
static dw_status emit_as(ir_graph *graph, ir_value *value, dw_format to, ir_value **made) {
    op_attr attrs[2] = {op_set_format(OP_ATTR_to, to), op_set_bool(OP_ATTR_search, true)};
    value = fuse_skip_widening(value);
    TRY(emit_at_most_f32(graph, &value));
    if (!dw_format_is_block(to)) return emit_cast(graph, value, to, made);
    return ir_emit(graph, OP_quantize, 1, &value, num_can_search(to) ? 2 : 1, attrs, made);
}

/* ---- the product ---- */

static bool is_plain_bf16(const pass_precision_row *precision) { return precision->weight == DW_FORMAT_bf16 && precision->activation == DW_FORMAT_bf16; }

static bool is_weighted(const ir_node *node) {
    return (node->op == OP_matmul || node->op == OP_grouped_matmul) && ir_is_weight(ir_in(node, 1)) && !ir_is_weight(ir_in(node, 0)) &&
           fuse_is_float(ir_in(node, 0)->type.format) && fuse_is_float(ir_in(node, 1)->type.format);
}

/* Marks every value that a parameter, buffer or input of the model went into. */
static void mark_of_model(const ir_graph *graph) {
    for (size_t i = 0; i < graph->input_count; i++) graph->inputs[i]->mark = graph->inputs[i];
    for (size_t i = 0; i < graph->state_count; i++) graph->states[i]->mark = graph->states[i];
    for (size_t i = 0; i < graph->param_count; i++) graph->params[i]->mark = ir_model_tensor(graph->params[i]) != NULL ? graph->params[i] : NULL;
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        void *mark = NULL;
        for (int i = 0; mark == NULL && i < node->n_in; i++) mark = ir_in(node, i) != NULL ? ir_in(node, i)->mark : NULL;
        for (int i = 0; i < node->n_out; i++) node->out[i]->mark = mark;
    }
}

/* Attributes with the operands' orders and the result's format as given. */
static int copy_attrs(const ir_node *node, bool at, bool bt, dw_format to, op_attr *attrs) {
    int count = 0;
    for (int i = 0; i < node->attrs.count; i++) {
        op_attr_id id = node->attrs.items[i].id;
        if (id != OP_ATTR_to && id != OP_ATTR_at && id != OP_ATTR_bt) attrs[count++] = node->attrs.items[i];
    }
    attrs[count++] = op_set_format(OP_ATTR_to, to);
    if (at) attrs[count++] = op_set_bool(OP_ATTR_at, true);
    if (bt) attrs[count++] = op_set_bool(OP_ATTR_bt, true);
    return count;
}

/* The product in that precision, before node. to: of its result, and of tensors of its shape that its post list reads. */
static dw_status emit_product(ir_graph *graph, ir_node *node, const pass_precision_row *precision, dw_format to, ir_value **result) {
    ir_value *in[64];
    op_attr attrs[OP_ATTR_COUNT];
    bool at = ir_bool(node, OP_ATTR_at), bt = ir_bool(node, OP_ATTR_bt);
    ir_cursor_before(graph, node);
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i);
    if (at && dw_format_is_block(precision->activation)) {
        TRY(swap_last_axes(graph, in[0], &in[0]));
        at = false;
    }
    if (!bt && dw_format_is_block(precision->weight)) {
        in[1] = fuse_skip_widening(in[1]);
        TRY(swap_last_axes(graph, in[1], &in[1]));
        bt = true;
    }
    TRY(emit_as(graph, in[0], precision->activation, &in[0]));
    TRY(emit_as(graph, in[1], precision->weight, &in[1]));
    for (int i = 2; i < node->n_in; i++) {
        const bool is_whole = to == DW_FORMAT_bf16 && in[i] != NULL && in[i]->type.format == DW_FORMAT_f32 && op_type_equal(&in[i]->type, &ir_out(node)->type);
        TRY(is_whole ? emit_cast(graph, in[i], to, &in[i]) : emit_at_most_f32(graph, &in[i]));
    }
    int count = copy_attrs(node, at, bt, to, attrs);
    TRY(ir_emit(graph, node->op, node->n_in, in, count, attrs, result));
    return ir_emit_cast(graph, *result, ir_out(node)->type.format, result);
}

/* ---- probes ---- */

/* A residual added at the end would hide the layer's own error: it becomes a node of its own. */
static dw_status split_residual(ir_graph *graph, ir_node **node) {
    op_post_list list;
    const char *post = ir_attr_text(*node, OP_ATTR_post), *comma = strrchr(post, ',');
    TRY(op_post_parse(graph->context, post, &list));
    if (list.count == 0 || list.steps[list.count - 1] != OP_POST_add) return DW_OK;
    ir_value *in[64], *made, *sum;
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    for (int i = 0; i < (*node)->n_in; i++) in[i] = ir_in(*node, i);
    for (int i = 0; i < (*node)->attrs.count; i++) {
        if ((*node)->attrs.items[i].id != OP_ATTR_post) attrs[count++] = (*node)->attrs.items[i];
    }
    if (comma != NULL) {
        const char *rest = arena_text_n(&graph->arena, post, (size_t)(comma - post));
        if (rest == NULL) return DW_NO_MEMORY;
        attrs[count++] = op_set_text(OP_ATTR_post, rest);
    }
    int last = (*node)->n_in - 1;
    bool changed = false;
    ir_cursor_before(graph, *node);
    TRY(ir_emit(graph, (*node)->op, last, in, count, attrs, &made));
    TRY(ir_emit_cast(graph, in[last], made->type.format, &in[last]));
    TRY(ir_emit_2(graph, OP_add, made, in[last], &sum));
    TRY(fuse_replace(graph, ir_out(*node), sum, &changed));
    *node = made->node;
    return split_residual(graph, node);
}

/* ---- what gradients have besides ---- */

/* A product of two values of a run, the gradient of a weight. */
static bool is_of_weight(const ir_node *node) {
    return (node->op == OP_matmul || node->op == OP_grouped_outer) && node->origin.phase != NULL && !ir_is_weight(ir_in(node, 0)) && !ir_is_weight(ir_in(node, 1)) &&
           fuse_is_float(ir_in(node, 0)->type.format) && fuse_is_float(ir_in(node, 1)->type.format);
}

/* Attention whose gradient is taken, and that gradient. */
static bool is_trained_attention(const ir_node *node) {
    return (node->op == OP_attention && node->n_out > 1 && fuse_is_float(ir_in(node, ATTENTION_K)->type.format)) || node->op == OP_attention_backward;
}

/* Which operands are multiplied, bit i: operand i. */
static unsigned multiplied_by(op_id op) {
    const unsigned of_forward = 1u << ATTENTION_Q | 1u << ATTENTION_K | 1u << ATTENTION_V;
    return op == OP_attention ? of_forward : of_forward | 1u << ATTENTION_BACKWARD_OUT | 1u << ATTENTION_BACKWARD_DOUT;
}

/* The call with bf16 operands; its results have the formats that follow, and are cast to those that they had. */
static dw_status replace_attention(ir_graph *graph, ir_node *node) {
    ir_value *in[ATTENTION_OPERANDS], *made, *same;
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    bool changed = false;
    ir_cursor_before(graph, node);
    for (int i = 0; i < node->n_in; i++) {
        in[i] = ir_in(node, i);
        if ((multiplied_by(node->op) >> i & 1) != 0) TRY(emit_as(graph, in[i], DW_FORMAT_bf16, &in[i]));
    }
    for (int i = 0; i < node->attrs.count; i++)
        if (node->attrs.items[i].id != OP_ATTR_to) attrs[count++] = node->attrs.items[i];
    TRY(ir_emit(graph, node->op, node->n_in, in, count, attrs, &made));
    ir_node *const narrow = made->node;
    for (int i = 0; i < node->n_out; i++) {
        TRY(ir_emit_cast(graph, narrow->out[i], node->out[i]->type.format, &same));
        TRY(fuse_replace(graph, node->out[i], same, &changed));
    }
    return DW_OK;
}

static dw_status lower_gradient(lowering *lowering, ir_node *node) {
    const char *layer, *rule, *role = node->origin.role;
    ir_value *made;
    bool changed = false;
    if (lowering->options->probe != PASS_PROBE_NONE) return DW_OK;
    TRY(name_layer(lowering, node, &layer));
    const pass_precision_row *precision;
    TRY(pass_policy_choose(lowering->options->policy, layer, role, NULL, &precision, &rule));
    if (!is_plain_bf16(precision)) return DW_OK;
    precision_report(lowering->options, layer, role, precision->name, rule);
    if (is_trained_attention(node)) return replace_attention(lowering->graph, node);
    TRY(emit_product(lowering->graph, node, precision, at_most_f32(ir_out(node)->type.format), &made));
    return fuse_replace(lowering->graph, ir_out(node), made, &changed);
}

/* ---- layers ---- */

static dw_status lower_layer(lowering *lowering, ir_node *node) {
    ir_graph *graph = lowering->graph;
    const char *layer, *rule, *role = node->origin.role;
    TRY(name_layer(lowering, node, &layer));
    if (ir_in(node, 1)->mark == NULL) {
        precision_report(lowering->options, layer, role, "fp32", "no weight: the matrix is made of no parameter or buffer of the model");
        return DW_OK;
    }
    const pass_precision_row *precision;
    TRY(pass_policy_choose(lowering->options->policy, layer, role, weight_name(ir_in(node, 1)), &precision, &rule));
    precision_report(lowering->options, layer, role, precision->name, rule);
    if (lowering->options->probe != PASS_PROBE_NONE) TRY(split_residual(graph, &node));
    ir_value *const result = ir_out(node), *made = result;
    if (precision->weight != DW_FORMAT_f32) {
        const bool is_narrow = lowering->is_trained && is_plain_bf16(precision) && precision_gives_narrow(graph, node);
        TRY(emit_product(graph, node, precision, is_narrow ? DW_FORMAT_bf16 : at_most_f32(result->type.format), &made));
    }
    return precision_take_place(graph, lowering->options, layer, result, made);
}

static dw_status lower_layers(lowering *lowering) {
    ir_graph *graph = lowering->graph;
    mark_of_model(graph);
    for (size_t i = 0; i < graph->state_count; i++) lowering->is_trained = lowering->is_trained || (graph->states[i]->trained && lowering->options->probe == PASS_PROBE_NONE);
    if (lowering->is_trained && pass_policy_open(lowering->options->policy) > 1)
        return base_fail(graph->context, DW_UNSUPPORTED, "precision '%s': a model that is trained has one precision for each layer; leave none open by 'or'", pass_policy_words(lowering->options->policy));
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (is_weighted(node)) TRY(lower_layer(lowering, node));
        else if (is_of_weight(node) || is_trained_attention(node)) TRY(lower_gradient(lowering, node));
        else if (lowering->is_trained && (op_get(node->op)->traits & OP_TRAIT_POINTWISE) != 0) TRY(precision_round(graph, node));
        else if (lowering->is_trained && node->op == OP_sum) TRY(precision_sum(graph, node));
        else if (lowering->is_trained && (node->op == OP_cross_entropy || node->op == OP_cross_entropy_backward)) TRY(precision_loss(graph, node));
    }
    TRY(precision_caches(graph, lowering->options));
    TRY(precision_scores(graph, lowering->options));
    return ir_set_note(graph, NOTE, pass_policy_words(lowering->options->policy));
}

dw_status pass_precision(ir_graph *graph, const pass_options *options, bool *changed) {
    *changed = false;
    if (options->policy == NULL || map_find(&graph->notes, NOTE) != NULL) return DW_OK;
    lowering lowering = {.graph = graph, .options = options};
    arena_init(&lowering.scratch, graph->context);
    map_init(&lowering.layers, &lowering.scratch);
    dw_status status = lower_layers(&lowering);
    arena_free(&lowering.scratch);
    *changed = true;
    return status;
}
