/* dw_graph_gradient: which loss, which parameters, and the passes around the derivation. */
#include "pass/gradient/gradient.h"

#include <string.h>

/* ---- the loss ---- */

static bool is_loss(const ir_value *value) {
    const num_format *info = num_info(value->type.format);
    int64_t size;
    for (int i = 0; i < value->type.rank; i++) {
        if (!dim_is_constant(value->type.dims[i], &size) || size != 1) return false;
    }
    return info->class == NUM_FLOAT && info->bits >= 16;
}

/* "logits f32[b,s,64], hidden f32[b,s,8]" */
static void list_outputs(const ir_graph *graph, bool losses, text *words) {
    for (size_t i = 0; i < graph->output_count; i++) {
        if (losses && !is_loss(graph->outputs[i].value)) continue;
        text_printf(words, "%s%s ", words->length > 0 ? ", " : "", graph->outputs[i].name);
        op_type_print(words, graph->dims, &graph->outputs[i].value->type);
    }
}

static dw_status fail_loss(const ir_graph *graph, dw_status code, bool losses, const char *what, const char *name) {
    text words;
    text_init(&words, graph->context);
    list_outputs(graph, losses, &words);
    const dw_status status = base_fail(graph->context, code, "graph '%s' %s%s: its outputs%s are %s", graph->name, what, name, losses ? " that may be the loss" : "", text_string(&words));
    text_free(&words);
    return status;
}

static dw_status find_loss(const ir_graph *graph, const char *name, const ir_output **loss) {
    int count = 0;
    for (size_t i = 0; i < graph->output_count; i++) {
        const ir_output *output = &graph->outputs[i];
        if (name == NULL ? !is_loss(output->value) : strcmp(name, output->name) != 0) continue;
        *loss = output;
        count++;
    }
    if (name != NULL && count == 0) return fail_loss(graph, DW_NOT_FOUND, false, "has no output named ", name);
    if (name != NULL && !is_loss((*loss)->value)) return fail_loss(graph, DW_INVALID, false, "has no gradient of an output with more than one element, and a loss is one floating-point number, but asked for is ", name);
    if (count == 0) return fail_loss(graph, DW_INVALID, false, "has no loss, an output that is one floating-point number; export the model with its loss", "");
    return count == 1 ? DW_OK : fail_loss(graph, DW_INVALID, true, "has several outputs that are one floating-point number; name the loss", "");
}

/* ---- what is trained ---- */

static bool may_be_trained(const ir_value *param) {
    const num_format *info = num_info(param->type.format);
    return info->class == NUM_FLOAT && info->bits >= 16 && !ir_is_made(param) && (param->weight == NULL || !param->weight->buffer);
}

/* Each pattern names an input that has gradients. */
static dw_status check_inputs(const ir_graph *graph, const char *patterns) {
    for (const char *at = patterns; at != NULL;) {
        const size_t length = strcspn(at, ",");
        bool matches = false;
        for (size_t i = 0; !matches && i < graph->input_count; i++) matches = gradient_is_asked_for(graph->inputs[i], patterns) && pass_matches(at, length, graph->inputs[i]->name);
        if (!matches) return base_fail(graph->context, DW_NOT_FOUND, "graph '%s' has no floating-point input that the pattern '%.*s' matches", graph->name, (int)length, at);
        at = at[length] == ',' ? at + length + 1 : NULL;
    }
    return DW_OK;
}

/* Each pattern names something that can be trained. */
static dw_status check_patterns(const ir_graph *graph, const char *patterns) {
    for (const char *at = patterns;; at++) {
        const size_t length = strcspn(at, ",");
        bool matches = false;
        for (size_t i = 0; !matches && i < graph->param_count; i++) matches = may_be_trained(graph->params[i]) && pass_matches(at, length, graph->params[i]->name);
        for (size_t i = 0; !matches && i < graph->state_count; i++) matches = graph->states[i]->trained && pass_matches(at, length, graph->states[i]->name);
        if (!matches) {
            return base_fail(graph->context, DW_NOT_FOUND, "graph '%s' has no floating-point parameter, which is no buffer, that the pattern '%.*s' matches", graph->name, (int)length, at);
        }
        at += length;
        if (*at == '\0') return DW_OK;
    }
}

/* The params that are trained become states, so that no pass reads their numbers. */
static dw_status train(ir_graph *graph, const char *patterns, const char *inputs) {
    if (patterns == NULL && inputs != NULL) return DW_OK;
    if (patterns != NULL) TRY(check_patterns(graph, patterns));
    for (size_t i = graph->state_count; patterns != NULL && i-- > 0;) {
        ir_value *state = graph->states[i];
        if (state->trained && !pass_is_listed(patterns, state->name)) return base_fail(graph->context, DW_UNSUPPORTED, "state '%s' is trained, and the patterns '%s' leave it out; take it from the graph", state->name, patterns);
    }
    for (size_t i = 0; i < graph->param_count;) {
        ir_value *param = graph->params[i];
        if (may_be_trained(param) && (patterns == NULL || pass_is_listed(patterns, param->name))) TRY(ir_train(graph, param));
        else i++;
    }
    bool any = false;
    for (size_t i = 0; i < graph->state_count; i++) any = any || graph->states[i]->trained;
    if (!any) return base_fail(graph->context, DW_INVALID, "graph '%s' has no floating-point parameter that is no buffer, so there is nothing to train", graph->name);
    ir_renumber(graph);
    return DW_OK;
}

/* ---- the whole ---- */

static dw_status check_first(const ir_graph *graph) {
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        if (node->origin.phase != NULL) {
            return base_fail(graph->context, DW_UNSUPPORTED, "graph '%s' computes gradients already (op %s, phase %s): gradients of gradients are not supported", graph->name,
                             op_get(node->op)->name, node->origin.phase);
        }
    }
    return DW_OK;
}

/* A module's parts as one op each, which take nothing in. */
static dw_status find_structure(ir_graph *graph) {
    const pass_options passes = {0};
    TRY(gradient_open(graph));
    TRY(pass_run(graph, PASS_STAGE_CLEAN | PASS_STAGE_STRUCTURE, &passes));
    return gradient_open(graph);    /* what became a product by its structure has its bias again */
}

/* From the graph with its loss to gradients: logits in parts before, what is made again afterwards. */
static dw_status derive(ir_graph *graph, const dw_gradient_options *options, const char **name, arena *scratch) {
    gradient_recompute rules;
    gradient_chunks chunks = {0};
    gradient_cuts cuts = {0};
    const ir_output *loss;
    TRY(find_loss(graph, options->loss, &loss));
    *name = loss->name;
    TRY(gradient_cut(graph, options->inputs, scratch, &cuts));
    TRY(find_structure(graph));
    TRY(gradient_read_recompute(scratch, options->recompute, &rules));
    TRY(gradient_check_recompute(graph, &rules));
    if (options->merged) TRY(gradient_merge(graph));
    if (options->chunks > 1 || options->columns > 1) TRY(gradient_chunk(graph, options->chunks > 1 ? options->chunks : 1, options->columns, scratch, &chunks));
    TRY(find_loss(graph, *name, &loss));
    TRY(gradient_derive(graph, loss, options->inputs));
    TRY(gradient_order_chunks(graph, scratch, &chunks));
    TRY(gradient_make_again(graph, &rules, chunks.again, chunks.again_count));
    return gradient_rejoin(graph, &cuts);
}

static dw_status make(ir_graph *graph, const dw_gradient_options *options) {
    const pass_options passes = {0};
    const char *name;
    arena scratch;
    if (options->chunks < 0 || options->chunks > GRADIENT_CHUNKS) return base_fail(graph->context, DW_INVALID, "chunks is %d: give a number of parts of the logits, 1 to %d", options->chunks, GRADIENT_CHUNKS);
    if (options->columns < 0 || options->columns > GRADIENT_COLUMNS) return base_fail(graph->context, DW_INVALID, "columns is %d: give a number of columns, 1 to %d, of which rows of logits become multiples", options->columns, GRADIENT_COLUMNS);
    TRY(check_first(graph));
    TRY(check_inputs(graph, options->inputs));
    TRY(train(graph, options->trained, options->inputs));
    arena_init(&scratch, graph->context);
    const dw_status status = derive(graph, options, &name, &scratch);
    arena_free(&scratch);
    TRY(status);
    ir_renumber(graph);
    TRY(pass_run(graph, PASS_STAGE_CLEAN, &passes));
    return ir_set_note(graph, "loss", name);
}

dw_status dw_graph_gradient(const dw_graph *graph, const dw_gradient_options *options, dw_graph **gradients) {
    static const dw_gradient_options defaults;
    const size_t failed = base_failed_allocations(graph->context);
    ir_graph *made;
    *gradients = NULL;
    TRY(ir_graph_clone(graph, &made));
    dw_status status = make(made, options != NULL ? options : &defaults);
    if (status == DW_OK && base_failed_allocations(graph->context) != failed) status = base_fail(graph->context, DW_NO_MEMORY, "the gradients of graph '%s' do not fit in memory", graph->name);
    if (status != DW_OK) {
        ir_graph_destroy(made);
        return status;
    }
    *gradients = made;
    return DW_OK;
}
