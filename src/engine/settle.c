/* Which of the precisions that a policy leaves open each layer takes ("fp8 or fp8-weights"): that in which its product, with what quantises for it, is estimated to take least, by plans of the model in each of them.
 * One answer for a model, so that all of its runs are of the same numbers: where it has a cached step by what a batch of texts takes, their prompts and some tokens of each that are decoded behind them, else by whole runs,
 * at typical sizes or those that the options say. So a little that each step saves does not outweigh prompts that take many times as long. Plans alone are looked at; nothing is loaded.
 *
 *     layers.0.q, .k, .v      one product, where they have one precision: they get one answer
 *     layers.0.gate, .up      read one quantised activation: they get one answer
 *     layers.0.down           by itself
 *
 * Where the plan of these answers takes longer than a plan of one precision, that one is taken for all: never is the sum of the estimates more than that of a precision that every rule leaves open. */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

/* A parameter at the bottom of a product's weight. */
typedef struct layer {
    const char *name;
    struct layer *lead;             /* of layers that get one answer: another of them, or itself */
    double seconds[PASS_OPEN];      /* with each precision, of products of which it came first */
    bool is_joined;
} layer;

enum { DECODED = 128 };             /* tokens behind a prompt */

typedef struct settling {
    dw_model *model;
    pass_policy *policy;
    const ir_graph *graph;          /* of the run that is looked at, */
    const char *dims, *run;         /* its sizes, and what it is called */
    const char *tokens;             /* of a cached step: the symbol of its tokens; NULL: it is a whole run */
    int64_t prompt;                 /* how many tokens the prompts have together */
    arena scratch;
    map layers;                     /* by name */
    double totals[PASS_OPEN];
} settling;

static layer *lead_of(layer *layer) {
    while (layer->lead != layer) layer = layer->lead;
    return layer;
}

static dw_status join(settling *s, const char *name, layer **lead) {
    layer *found = map_find(&s->layers, name);
    if (found == NULL) {
        TRY_NEW(found, &s->scratch, 1);
        found->name = arena_text(&s->scratch, name);
        if (found->name == NULL) return DW_NO_MEMORY;
        found->lead = found;
        TRY(map_set(&s->layers, found->name, found));
    }
    found = lead_of(found);
    if (*lead != NULL && *lead != found) {
        found->lead = *lead;
        (*lead)->is_joined = true;
    }
    if (*lead == NULL) *lead = found;
    return DW_OK;
}

/* The parameters of a weight: of weights that were put together each. */
static dw_status join_weight(settling *s, const ir_value *value, layer **lead) {
    if (value->kind == IR_PARAM) return join(s, value->name, lead);
    if (value->kind != IR_RESULT || value->node->n_in == 0) return DW_OK;
    const int count = value->node->op == OP_concat ? value->node->n_in : 1;
    for (int i = 0; i < count; i++)
        if (ir_in(value->node, i) != NULL) TRY(join_weight(s, ir_in(value->node, i), lead));
    return DW_OK;
}

static bool is_layer(const ir_node *node) { return (node->op == OP_matmul || node->op == OP_grouped_matmul) && ir_is_weight(ir_in(node, 1)); }

/* The step of a run that quantises what the product reads, once for all products that read it; NULL: none does. */
static const plan_step *quantiser_of(const plan *plan, const ir_node *product) {
    const ir_value *x = ir_in(product, 0);
    const plan_step *step = x->kind == IR_RESULT && x->node->op == OP_quantize ? x->node->mark : NULL;
    return step != NULL && step - plan->steps >= plan->run_first ? step : NULL;
}

/* times: how many runs there are. */
static dw_status add_product(settling *s, const plan_binding *binding, int step, int choice, double times) {
    const plan *plan = binding->plan;
    const ir_node *node = plan->steps[step].node;
    const plan_step *quantiser = quantiser_of(plan, node);
    layer *lead = NULL;
    bool is_first = true;
    TRY(join_weight(s, ir_in(node, 1), &lead));
    for (const ir_use *use = quantiser != NULL ? ir_in(node, 0)->uses : NULL; use != NULL; use = use->next) {
        is_first = is_first && use->node->order >= node->order;
        if (is_layer(use->node)) TRY(join_weight(s, ir_in(use->node, 1), &lead));
    }
    if (lead == NULL) return DW_OK;
    lead->seconds[choice] += times * plan_call_seconds(binding, step);
    if (quantiser != NULL && is_first) lead->seconds[choice] += times * plan_call_seconds(binding, (int)(quantiser - plan->steps));
    return DW_OK;
}

static dw_status add_runs(settling *s, plan_binding *binding, const int64_t *sizes, double times, int choice, double *total) {
    const plan *plan = binding->plan;
    dw_status status = plan_bind(binding, sizes);
    for (int i = plan->run_first; status == DW_OK && i < plan->step_count; i++) {
        *total += times * plan_call_seconds(binding, i);
        if (choice >= 0 && is_layer(plan->steps[i].node)) status = add_product(s, binding, i, choice, times);
    }
    return status;
}

/* The step's plan at the sizes of the prompts. */
static dw_status add_prompt(settling *s, plan_binding *binding, int choice, double *total) {
    const plan *plan = binding->plan;
    const int tokens = dim_symbol_find(plan->graph->dims, s->tokens);
    int64_t sizes[ENGINE_MAX_SYMBOLS], least, most;
    if (tokens < 0 || dim_symbol_count(plan->graph->dims) > ENGINE_MAX_SYMBOLS) return DW_OK;
    for (int i = 0; i < dim_symbol_count(plan->graph->dims); i++) sizes[i] = plan->typical[i];
    dim_symbol_range(plan->graph->dims, tokens, &least, &most);
    sizes[tokens] = s->prompt < least ? least : s->prompt > most ? most : s->prompt;
    return add_runs(s, binding, sizes, 1, choice, total);
}

static dw_status add_steps(settling *s, const plan *plan, int choice, double *total) {
    plan_binding binding;
    TRY(plan_binding_create(plan->context, plan, &binding));
    *total = 0;
    dw_status status = add_runs(s, &binding, plan->typical, s->tokens != NULL ? DECODED : 1, choice, total);
    if (status == DW_OK && s->tokens != NULL) status = add_prompt(s, &binding, choice, total);
    plan_binding_destroy(&binding);
    return status;
}

/* What a plan by the policy as it is now takes; of a trial, choice, its products are added to their layers. */
static dw_status weigh(settling *s, int choice, double *total) {
    dw_model *const model = s->model;
    const char *const fusion = model->fusion_notes, *const policy = model->policy_report, *const split = model->split_report;
    plan *made = NULL;
    dw_status status = engine_plan_alone(model, s->graph, s->policy, s->dims, &made);
    model->fusion_notes = fusion;
    model->policy_report = policy;
    model->split_report = split;
    if (status == DW_OK) status = add_steps(s, made, choice, total);
    plan_destroy(made);
    return status;
}

static int least_of(const double *seconds, int count) {
    int least = 0;
    for (int i = 1; i < count; i++)
        if (seconds[i] < seconds[least]) least = i;
    return least;
}

/* all: the choice of every layer; -1: each its own. */
static dw_status answer(settling *s, int open, int all) {
    pass_settled *settled;
    TRY_NEW(settled, &s->model->arena, s->layers.count);
    for (size_t i = 0; i < s->layers.count; i++) {
        const layer *own = s->layers.entries[i].value, *lead = lead_of(s->layers.entries[i].value);
        double seconds[PASS_OPEN] = {0};
        for (size_t k = 0; k < s->layers.count; k++)
            for (int c = 0; c < open && lead_of(s->layers.entries[k].value) == lead; c++) seconds[c] += ((layer *)s->layers.entries[k].value)->seconds[c];
        settled[i].weight = arena_text(&s->model->arena, own->name);
        settled[i].because = arena_printf(&s->model->arena, "%s%s%s", s->run, lead->is_joined ? "; with layers that share its launches" : "", all >= 0 ? "; all alike takes least" : "");
        if (settled[i].weight == NULL || settled[i].because == NULL) return DW_NO_MEMORY;
        settled[i].choice = all >= 0 ? all : least_of(seconds, open);
        memcpy(settled[i].seconds, seconds, sizeof seconds);
    }
    s->model->settled = settled;
    s->model->settled_count = (int)s->layers.count;
    return pass_policy_settle(s->policy, s->model->settled_count, settled);
}

static dw_status settle(settling *s) {
    const int open = pass_policy_open(s->policy);
    double mixed;
    for (int i = 0; i < open; i++) {
        pass_policy_try(s->policy, i);
        TRY(weigh(s, i, &s->totals[i]));
    }
    pass_policy_try(s->policy, 0);
    TRY(answer(s, open, -1));
    TRY(weigh(s, -1, &mixed));
    const int least = least_of(s->totals, open);
    return mixed > s->totals[least] ? answer(s, open, least) : DW_OK;
}

/* ---- sizes ---- */

/* How many texts a whole run has: the size in front of the tokens' of an input; and how many tokens in all. */
static dw_status count_texts(const dw_model *model, const char *tokens, int64_t *texts, int64_t *all) {
    const ir_graph *graph = model->fused;
    int64_t sizes[ENGINE_MAX_SYMBOLS];
    int batch, length;
    *texts = *all = 1;
    if (dim_symbol_count(graph->dims) > ENGINE_MAX_SYMBOLS) return DW_OK;
    plan_typical_dims(graph, sizes);
    TRY(plan_read_dims(model->context, graph, model->options.dims, sizes));
    for (size_t i = 0; i < graph->input_count; i++) {
        const op_type *type = &graph->inputs[i]->type;
        if (type->rank != 2 || !dim_is_symbol(type->dims[0], &batch) || !dim_is_symbol(type->dims[1], &length)) continue;
        if (strcmp(dim_symbol_name(graph->dims, length), tokens) == 0) *texts = sizes[batch], *all = sizes[length] > INT64_MAX / sizes[batch] ? INT64_MAX : sizes[batch] * sizes[length];
    }
    return DW_OK;
}

/* The options' sizes, but a token of each text; beside it, their prompts. */
static dw_status take_step(settling *s, const ir_graph *step) {
    const ir_value *row = map_find(&step->names, STEP_INPUT_ROW);
    const char *given = s->model->options.dims;
    int tokens;
    int64_t texts;
    s->graph = step;
    s->run = "a decoded token";
    if (row == NULL || !dim_is_symbol(row->type.dims[0], &tokens)) return DW_OK;
    TRY(count_texts(s->model, dim_symbol_name(step->dims, tokens), &texts, &s->prompt));
    s->tokens = arena_text(&s->scratch, dim_symbol_name(step->dims, tokens));
    s->run = arena_printf(&s->scratch, "prompts and %d decoded tokens of each", DECODED);
    if (s->tokens == NULL || s->run == NULL) return DW_NO_MEMORY;
    const char *const counted[] = {dim_symbol_name(step->dims, tokens), STEP_SYMBOL_ROWS, STEP_SYMBOL_ENDS};
    text dims;
    text_init(&dims, s->model->context);
    text_add(&dims, given != NULL ? given : "");
    for (size_t i = 0; i < COUNT_OF(counted); i++)
        if (dim_symbol_find(step->dims, counted[i]) >= 0) text_printf(&dims, "%s%s=%lld", dims.length > 0 ? "," : "", counted[i], (long long)texts);
    const dw_status status = text_status(&dims);
    if (status == DW_OK) s->dims = arena_text(&s->scratch, text_string(&dims));
    text_free(&dims);
    return status == DW_OK && s->dims == NULL ? DW_NO_MEMORY : status;
}

static dw_status make_step(dw_model *model, ir_graph **step) {
    const char *const no_step = model->no_step;
    ir_graph *prelude = NULL;
    *step = NULL;
    const dw_status status = engine_make_steps(model, engine_step_cache(model), step, &prelude);
    ir_graph_destroy(prelude);
    model->no_step = no_step;
    return status;
}

dw_status engine_settle(dw_model *model, pass_policy *policy) {
    ir_graph *step = NULL;
    settling s = {.model = model, .policy = policy, .graph = model->fused, .dims = model->options.dims, .run = "a whole run"};
    if (pass_policy_open(policy) == 1) return DW_OK;
    if (model->settled != NULL) return pass_policy_settle(policy, model->settled_count, model->settled);
    TRY(make_step(model, &step));
    arena_init(&s.scratch, model->context);
    map_init(&s.layers, &s.scratch);
    dw_status status = step != NULL ? take_step(&s, step) : DW_OK;
    if (status == DW_OK) status = settle(&s);
    arena_free(&s.scratch);
    ir_graph_destroy(step);
    return status;
}
