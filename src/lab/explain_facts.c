/* Facts of a model and of its plans, as JSON. Words are made of them elsewhere (explain_text.c). */
#include "lab/explain.h"

#include <string.h>

static json_t *shape_json(dw_context *context, const dim_table *dims, const char *name, const op_type *type) {
    text shape;
    text_init(&shape, context);
    op_type_print(&shape, dims, type);
    json_t *row = json_pack("{s:s, s:s}", "name", name, "type", text_string(&shape));
    text_free(&shape);
    return row;
}

static json_t *symbols_json(const plan *plan) {
    json_t *symbols = json_array();
    for (int i = 0; i < dim_symbol_count(plan->graph->dims); i++) {
        int64_t min, max;
        if (strncmp(dim_symbol_name(plan->graph->dims, i), DIM_RANK, strlen(DIM_RANK)) == 0) continue;   /* a place, no size */
        dim_symbol_range(plan->graph->dims, i, &min, &max);
        json_t *row = json_pack("{s:s, s:I, s:I}", "name", dim_symbol_name(plan->graph->dims, i), "min", (json_int_t)min, "typical",
                                (json_int_t)plan->typical[i]);
        if (max != DIM_UNBOUNDED) json_object_set_new(row, "max", json_integer(max));
        json_array_append_new(symbols, row);
    }
    return symbols;
}

/* Ops by how often they occur. */
static json_t *ops_json(const ir_graph *graph) {
    int counts[OP_COUNT] = {0};
    json_t *ops = json_object();
    for (const ir_node *node = graph->first; node != NULL; node = node->next) counts[node->op]++;
    for (int i = 0; i < OP_COUNT; i++)
        if (counts[i] > 0) json_object_set_new(ops, op_get((op_id)i)->name, json_integer(counts[i]));
    return ops;
}

static void count_params(const ir_graph *graph, int64_t *elements, int64_t *bytes) {
    *elements = *bytes = 0;
    for (size_t i = 0; i < graph->param_count; i++) {
        const op_type *type = &graph->params[i]->type;
        int64_t count = 1, dim;
        for (int d = 0; d < type->rank; d++)
            if (dim_is_constant(type->dims[d], &dim)) count *= dim;
        *elements += count;
        *bytes += count * dw_format_bits(type->format) / 8;
    }
}

/* FLOPs of a run at the typical sizes; the work of contractions counts, as that of the rest is memory. */
static double count_flops(const plan *plan) {
    double flops = 0;
    for (const ir_node *node = plan->graph->first; node != NULL; node = node->next) {
        op_work work;
        bool counts = (op_get(node->op)->traits & OP_TRAIT_CONTRACTION) && plan_value_of(ir_out(node))->key == NULL;
        if (counts && ir_work(plan->graph, node, plan->typical, &work) == DW_OK) flops += work.flops;
    }
    return flops;
}

static json_t *generation_json(const dw_model *model) {
    if (model->step.plan != NULL) return json_string("yes");
    return engine_keeps_cache(model) ? json_string("yes, its own") : json_sprintf("no: %s", model->no_step);
}

static json_t *sharing_json(const dw_model *model) {
    const char *alone = engine_alone(model);
    return alone == NULL ? json_string("yes") : json_sprintf("no: %s", alone);
}

static json_t *summary_json(const dw_model *model) {
    const plan *plan = model->full.plan ? model->full.plan : model->step.plan;
    const ir_graph *graph = model->captured ? model->captured : plan->graph;
    int64_t elements, bytes;
    count_params(graph, &elements, &bytes);
    double flops = count_flops(plan);
    json_t *facts = json_pack("{s:s, s:s, s:I, s:I, s:f, s:o, s:o}", "file", model->file, "graph", graph->name, "parameters", (json_int_t)elements,
                              "parameter_bytes", (json_int_t)bytes, "flops", flops, "symbols", symbols_json(plan), "ops", ops_json(graph));
    json_t *inputs = json_array(), *outputs = json_array(), *notes = json_object();
    for (size_t i = 0; i < graph->input_count; i++)
        json_array_append_new(inputs, shape_json(model->context, graph->dims, graph->inputs[i]->name, &graph->inputs[i]->type));
    for (size_t i = 0; i < graph->output_count; i++)
        json_array_append_new(outputs, shape_json(model->context, graph->dims, graph->outputs[i].name, &graph->outputs[i].value->type));
    for (size_t i = 0; i < graph->notes.count; i++)
        json_object_set_new(notes, graph->notes.entries[i].key, json_string(graph->notes.entries[i].value));
    json_object_set_new(facts, "inputs", inputs);
    json_object_set_new(facts, "outputs", outputs);
    json_object_set_new(facts, "notes", notes);
    json_object_set_new(facts, "fused_ops", ops_json(plan->graph));
    json_object_set_new(facts, "cached_generation", generation_json(model));
    json_object_set_new(facts, "shared_generation", sharing_json(model));
    return facts;
}

/* Words and verdicts that many steps have are one value each: a plan of a small file has tens of thousands of steps, each with a verdict on every kernel of its op. */
typedef struct shared { json_t *words, *refusals; } shared;

static json_t *word(const shared *shared, const char *text) {
    json_t *found = json_object_get(shared->words, text);
    if (found == NULL && json_object_set_new(shared->words, text, json_string(text)) == 0) found = json_object_get(shared->words, text);
    return json_incref(found);
}

static json_t *refusal(const plan *plan, const shared *shared, const kernel_verdict *verdict) {
    text key;
    text_init(&key, plan->context);
    text_printf(&key, "%s\n%s", kernel_verdict_name(verdict), verdict->reason);
    json_t *found = json_object_get(shared->refusals, text_string(&key));
    if (found == NULL) {
        json_t *made = json_pack("{s:o, s:s}", "kernel", word(shared, kernel_verdict_name(verdict)), "refused", verdict->reason);
        if (json_object_set_new(shared->refusals, text_string(&key), made) == 0) found = made;
    }
    text_free(&key);
    return json_incref(found);
}

static json_t *verdicts_json(const plan *plan, const shared *shared, const plan_step *step) {
    json_t *rows = json_array();
    for (int i = 0; i < step->verdict_count; i++) {
        const kernel_verdict *v = &step->verdicts[i];
        if (v->way != NULL ? v->way == step->picked : v->row == step->row) continue;
        if (v->reason != NULL) json_array_append_new(rows, refusal(plan, shared, v));
        else json_array_append_new(rows, json_pack("{s:o, s:f, s:b}", "kernel", word(shared, kernel_verdict_name(v)), "us", v->seconds * 1e6, "by_name", v->way != NULL && kernel_way_is(v->way, KERNEL_WAY_NAMED)));
    }
    return rows;
}

/* The formats that a step multiplies or makes. */
static const char *format_of(const ir_node *node) {
    bool contraction = (op_get(node->op)->traits & OP_TRAIT_CONTRACTION) && node->n_in > 1 && ir_in(node, 1) != NULL;
    return dw_format_name((contraction ? ir_in(node, 1) : ir_out(node))->type.format);
}

/* What a chain is made of: "mul,add,tanh", and the exported names of these where they have some. */
static void add_members(json_t *row, const plan *plan, const ir_node *node) {
    text ops;
    text_init(&ops, plan->context);
    for (const char *at = ir_attr_text(node, OP_ATTR_steps); *at != '\0'; at += strcspn(at, ";"), at += *at == ';')
        text_printf(&ops, "%s%.*s", ops.length > 0 ? "," : "", (int)strcspn(at, "("), at);
    json_object_set_new(row, "members", json_string(text_string(&ops)));
    if (node->origin.name != NULL) json_object_set_new(row, "names", json_string(node->origin.name));
    text_free(&ops);
}

/* What the step would run if the plan were not invariant, and how much longer it takes because it is; nothing where that is the same. */
static void add_passed_over(json_t *row, const plan *plan, const plan_step *step) {
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    kernel_choice free;
    arena scratch;
    if (!plan->invariant || step->at_load || step->way != NULL) return;
    plan_problem(plan, step, in, out, &problem);
    problem.invariant = false;
    arena_init(&scratch, plan->context);
    if (kernel_choose(&scratch, &problem, NULL, NULL, &free) == DW_OK && (free.row != step->row || free.way != step->picked || free.seconds < step->seconds * 0.999)) {
        json_object_set_new(row, "passed_over", json_string(free.way != NULL ? free.way->name : free.row->name));
        json_object_set_new(row, "invariant_us", json_real((step->seconds - free.seconds) * 1e6));
    }
    arena_free(&scratch);
}

static json_t *step_json(const plan *plan, const shared *shared, const plan_step *step) {
    op_work work = {0};
    const ir_node *node = step->node;
    ir_work(plan->graph, node, plan->typical, &work);
    json_t *row = json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:b, s:f, s:f, s:o, s:s?, s:o}", "value", ir_out(node)->id, "op", word(shared, op_get(node->op)->name),
                            "kernel", word(shared, step->picked != NULL ? step->picked->name : step->row->name), "format", word(shared, format_of(node)), "module",
                            word(shared, node->origin.module ? node->origin.module : ""), "role", word(shared, node->origin.role ? node->origin.role : ""),
                            "at_load", step->at_load, "us", step->seconds * 1e6, "flops", work.flops, "memory",
                            word(shared, plan_place_name(plan_value_of(ir_out(node))->place)), "because", step->because, "others", verdicts_json(plan, shared, step));
    if (step->picked != NULL) json_object_set_new(row, "row", word(shared, step->row->name));
    if (step->at_update || node->origin.phase != NULL) json_object_set_new(row, "phase", word(shared, step->at_update ? "prepare" : node->origin.phase));
    if (node->op == OP_chain) add_members(row, plan, node);
    add_passed_over(row, plan, step);
    return row;
}

/* ---- what bounds steps ---- */

/* Of a product by tiles what binds its kernel, and the part of the matrix instructions' rate that is left. */
static void add_tiles(const kernel_row *row, const kernel_run *run, json_t *step) {
    kernel_tiles_bound bound;
    if (!kernel_pick_bound(row, run, &bound)) return;
    json_object_set_new(step, "binds", json_string(kernel_resource_words(bound.limit)));
    json_object_set_new(step, "matrix_rate_share", json_real(bound.part));
}

/* The least that a step can take at the sizes of the binding, and the sum. */
static void add_bounds(const plan_binding *binding, json_t *steps, json_t *facts) {
    const plan *plan = binding->plan;
    double sum = 0;
    for (int i = plan->load_count; i < plan->step_count; i++) {
        kernel_bound bound;
        kernel_bound_of(&binding->calls[i].run, lab_far_operands(plan->steps[i].node), &bound);
        json_object_set_new(json_array_get(steps, (size_t)i), "bound_us", json_real(bound.seconds * 1e6));
        add_tiles(plan->steps[i].row, &binding->calls[i].run, json_array_get(steps, (size_t)i));
        sum += bound.seconds;
    }
    json_object_set_new(facts, "bound_us", json_real(sum * 1e6));
}

/* Steps between which a launch is saved at the sizes of the binding take as much less. */
static void mend_estimates(const plan_binding *binding, json_t *steps, json_t *facts) {
    const plan *plan = binding->plan;
    double sum = json_number_value(json_object_get(facts, "us"));
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const double seconds = plan_call_seconds(binding, i);
        json_object_set_new(json_array_get(steps, (size_t)i), "us", json_real(seconds * 1e6));
        sum += (seconds - plan->steps[i].seconds) * 1e6;
    }
    json_object_set_new(facts, "us", json_real(sum));
}

/* ---- what steps launch ---- */

typedef struct recorder { kernel_launcher launcher; json_t *names; const shared *shared; } recorder;

static dw_status record_name(kernel_launcher *launcher, const kernel_launch *launch) {
    const recorder *r = (const recorder *)launcher;
    json_array_append_new(r->names, word(r->shared, launch->entry));
    return DW_OK;
}

/* What goes around a step's kernel at the sizes of the binding. */
static void add_parts(const kernel_row *row, const kernel_run *run, const shared *shared, json_t *step) {
    text words;
    text_init(&words, run->call.context);
    kernel_describe_parts(row, run, &words);
    if (words.length > 0 && text_status(&words) == DW_OK) json_object_set_new(step, "around", word(shared, text_string(&words)));
    text_free(&words);
}

/* The kernels that a GPU's steps launch at the sizes of the binding, in the order of the launches: which of its kernels a row launches is decided by the sizes. */
static void add_launches(const plan_binding *binding, const shared *shared, json_t *steps) {
    const plan *plan = binding->plan;
    lab_lend_addresses(binding, true);
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const kernel_row *row = plan->steps[i].row;
        recorder recorder = {{record_name}, json_array(), shared};
        if (row->device == CHIP_GPU) kernel_shape(row, &binding->calls[i].run, &recorder.launcher);
        if (json_array_size(recorder.names) > 0) json_object_set(json_array_get(steps, (size_t)i), "launches", recorder.names);
        json_decref(recorder.names);
        add_parts(row, &binding->calls[i].run, shared, json_array_get(steps, (size_t)i));
    }
    lab_lend_addresses(binding, false);
}

/* ---- which way, at which sizes ---- */

enum { MOST_SIZE = 8192 };            /* of symbols that have no end */

/* All symbols of a plan as large as that, brought into their ranges. */
static void set_sizes(const plan *plan, int64_t size, int64_t *symbols) {
    for (int i = 0; i < dim_symbol_count(plan->graph->dims); i++) {
        int64_t min, max;
        dim_symbol_range(plan->graph->dims, i, &min, &max);
        symbols[i] = size < min ? min : size > max ? max : size;
    }
}

/* [{"sizes": 1, "kernel": ..}, {"sizes": 64, ..}]: the ways of the step, in front of each the sizes from which on it is picked; one whose way never changes has none. */
static void add_way(json_t *step, const shared *shared, int64_t size, const char *name) {
    json_t *ways = json_object_get(step, "ways"), *last = json_array_get(ways, json_array_size(ways) - 1);
    if (ways == NULL) json_object_set_new(step, "ways", ways = json_array());
    if (last != NULL && strcmp(json_string_value(json_object_get(last, "kernel")), name) == 0) return;
    json_array_append_new(ways, json_pack("{s:I, s:o}", "sizes", (json_int_t)size, "kernel", word(shared, name)));
}

/* A way that was asked for is refused at sizes that it does not take. */
static const char *picked_name(const plan *plan, int step, const kernel_run *run) {
    const kernel_row *row = plan->steps[step].row;
    const char *name = kernel_runs_as(row, run);
    return name == row->name ? "refused" : name;
}

static void add_ways(plan_binding *binding, const shared *shared, json_t *steps) {
    const plan *plan = binding->plan;
    int64_t *symbols = arena_new(&binding->arena, (size_t)dim_symbol_count(plan->graph->dims) + 1, sizeof *symbols);
    for (int64_t size = 1; symbols != NULL && size <= MOST_SIZE; size *= 2) {
        set_sizes(plan, size, symbols);
        if (plan_bind(binding, symbols) != DW_OK) continue;
        for (int i = plan->load_count; i < plan->step_count; i++)
            if (plan->steps[i].picked != NULL) add_way(json_array_get(steps, (size_t)i), shared, size, picked_name(plan, i, &binding->calls[i].run));
    }
    for (size_t i = 0; i < json_array_size(steps); i++)
        if (json_array_size(json_object_get(json_array_get(steps, i), "ways")) == 1) json_object_del(json_array_get(steps, i), "ways");
}

json_t *explain_plan(const plan *plan) {
    const shared shared = {.words = json_object(), .refusals = json_object()};
    json_t *steps = json_array();
    double seconds = 0, flops = 0, reference = 0;
    int views = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        json_array_append_new(steps, step_json(plan, &shared, step));
        op_work work;
        if (step->at_load || ir_work(plan->graph, step->node, plan->typical, &work) != DW_OK) continue;
        seconds += step->seconds;
        if (op_get(step->node->op)->traits & OP_TRAIT_CONTRACTION) flops += work.flops;
        if ((op_get(step->node->op)->traits & OP_TRAIT_CONTRACTION) && step->row->reference) reference += work.flops;
    }
    for (int i = 0; i < plan->value_count; i++) views += plan->values[i].view;
    json_t *facts = json_pack("{s:o, s:f, s:f, s:f, s:i, s:i, s:i}", "steps", steps, "us", seconds * 1e6, "flops", flops, "reference_flops_share",
                              flops > 0 ? reference / flops : 0.0, "views", views, "steps_at_load", plan->load_count, "steps_per_run",
                              plan->step_count - plan->load_count);
    json_object_set_new(facts, "symbols", symbols_json(plan));
    if (plan->split != NULL) json_object_set_new(facts, "split", json_string(plan->split));
    plan_binding binding;
    if (plan_binding_create(plan->context, plan, &binding) == DW_OK) {
        if (plan_bind(&binding, plan->typical) == DW_OK) {
            json_object_set_new(facts, "workspace_bytes", json_integer((json_int_t)binding.value_bytes));
            add_bounds(&binding, steps, facts);
            mend_estimates(&binding, steps, facts);
            add_launches(&binding, &shared, steps);
            add_ways(&binding, &shared, steps);
        }
        plan_binding_destroy(&binding);
    }
    json_decref(shared.words);
    json_decref(shared.refusals);
    return facts;
}

/* How much of its text each layer's cache keeps. */
static json_t *caches_json(const plan *step) {
    json_t *rows = json_array();
    for (size_t i = 0; i < step->graph->state_count; i++) {
        const ir_value *state = step->graph->states[i];
        const ir_node *reader = NULL, *writer = state->next->kind == IR_RESULT ? state->next->node : NULL;
        int symbol;
        if (writer == NULL || (writer->op != OP_cache_write && writer->op != OP_cache_update)) continue;
        for (const ir_use *use = state->next->uses; use != NULL; use = use->next)
            if (use->node->op == OP_attention && (reader == NULL || ir_int(use->node, OP_ATTR_window) > ir_int(reader, OP_ATTR_window))) reader = use->node;
        json_t *row = shape_json(step->graph->context, step->graph->dims, state->name, &state->type);
        json_object_set_new(row, "module", json_string(writer->origin.module ? writer->origin.module : ""));
        const ir_value *table = reader != NULL ? ir_in(reader, ATTENTION_TABLE) : NULL;
        const bool whole = table == NULL && dim_is_symbol(state->type.dims[2], &symbol);
        const int64_t window = table != NULL ? incremental_reach_of(table) : whole || reader == NULL ? 0 : ir_int(reader, OP_ATTR_window);
        json_object_set_new(row, "window", json_integer((json_int_t)window));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* Bytes of weights in the form that runs: what whole runs and generation both read is there once. */
static json_t *weights_json(const dw_model *model) {
    engine_weights weights;
    if (engine_weigh(model, &weights) != DW_OK) return NULL;
    return json_pack("{s:I, s:I, s:I}", "bytes", (json_int_t)weights.all, "of_runs", (json_int_t)weights.runs, "of_generation", (json_int_t)weights.generation);
}

static json_t *explain_json(const dw_model *model) {
    text chip;
    text_init(&chip, model->context);
    chip_print(&chip, &model->chip);
    json_t *facts = json_pack("{s:s, s:s, s:s, s:s, s:s}", "file", model->file, "chip", model->chip.name, "capabilities", text_string(&chip),
                              "precision", model->precision, "not_fused", model->fusion_notes);
    text_free(&chip);
    json_object_set_new(facts, "gpu_code", json_boolean(kernel_lacks_images() == NULL));
    if (model->fused != NULL && map_find(&model->fused->notes, PASS_PADDING) != NULL)
        json_object_set_new(facts, "padding", json_string(map_find(&model->fused->notes, PASS_PADDING)));
    if (model->captured != NULL) json_object_set_new(facts, "captured_ops", ops_json(model->captured));
    if (model->fused != NULL) json_object_set_new(facts, "fused_ops", ops_json(model->fused));
    if (model->full.plan != NULL) json_object_set_new(facts, "plan", explain_plan(model->full.plan));
    if (model->prelude.plan != NULL) json_object_set_new(facts, "prelude_plan", explain_plan(model->prelude.plan));
    if (model->step.plan != NULL) json_object_set_new(facts, "step_plan", explain_plan(model->step.plan));
    if (model->step.plan != NULL) json_object_set_new(facts, "caches", caches_json(model->step.plan));
    json_t *beside = explain_beside(model);
    if (beside != NULL) json_object_set_new(facts, "beside", beside);
    json_object_set_new(facts, "cached_generation", generation_json(model));
    json_object_set_new(facts, "shared_generation", sharing_json(model));
    json_object_set_new(facts, "weights", weights_json(model));
    json_object_set_new(facts, "policy", json_string(model->policy_report));
    json_t *ranks = explain_ranks(model);
    if (ranks != NULL) json_object_set_new(facts, "ranks", ranks);
    return facts;
}

json_t *facts_of(const dw_model *model, dw_print what) {
    size_t failed = base_failed_allocations(model->context);
    json_t *facts = what == DW_PRINT_SUMMARY ? summary_json(model) : explain_json(model);
    if (base_failed_allocations(model->context) == failed) return facts;
    json_decref(facts);
    return NULL;
}
