/* What a trainer would do, as facts: its programs by phase, what gradients read that the forward part has left, what is made again, and memory. The trainer's graphs are made and planned as a trainer makes
 * them; nothing is run. Words are made of the facts in explain_train_text.c. */
#include "lab/explain.h"

#include <string.h>

#include "train/train.h"

typedef struct program { const char *name; dw_model *model; } program;

/* The programs of a trainer, and what decided about them. */
typedef struct training {
    dw_context *context;
    arena arena;
    dw_graph *source;
    dw_trainer_options options;
    train_rules rules;
    ir_weights *masters;
    train_graphs graphs;
    const char *whole;               /* why logits are whole; NULL: nothing is in the way */
    program programs[2];
    int count;
} training;

/* ---- phases ---- */

static const char forward[] = "fprop";
static const char prepare[] = "prepare";
static const char *phase_of(const plan_step *step) { return step->at_update ? prepare : step->node->origin.phase != NULL ? step->node->origin.phase : forward; }
static bool is_gradient(const char *phase) { return strcmp(phase, forward) != 0 && strcmp(phase, prepare) != 0 && strcmp(phase, "update") != 0; }

/* A row for each phase, in the order in which programs have them. */
static json_t *phases_json(const plan *plan) {
    static const char *const phases[] = {prepare, forward, "again", "dgrad", "wgrad", "update"};
    json_t *rows = json_array();
    for (size_t p = 0; p < COUNT_OF(phases); p++) {
        double seconds = 0, flops = 0;
        int steps = 0;
        for (int i = plan->load_count; i < plan->step_count; i++) {
            const plan_step *step = &plan->steps[i];
            op_work work;
            if (strcmp(phase_of(step), phases[p]) != 0) continue;
            steps++;
            seconds += step->seconds;
            if ((op_get(step->node->op)->traits & OP_TRAIT_CONTRACTION) && ir_work(plan->graph, step->node, plan->typical, &work) == DW_OK) flops += work.flops;
        }
        if (steps > 0) json_array_append_new(rows, json_pack("{s:s, s:i, s:f, s:f}", "phase", phases[p], "steps", steps, "us", seconds * 1e6, "flops", flops));
    }
    return rows;
}

/* ---- what is kept, what is made again ---- */

static bool has_memory(const plan_value *v) { return v->place == PLAN_WORKSPACE && v->base == NULL && v->first >= 0; }

/* Logits of a loss, or their gradient, by value index of what has the memory. */
static void mark_logits(const plan *plan, bool *is_logits) {
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const ir_node *node = plan->steps[i].node;
        if (node->op != OP_cross_entropy && node->op != OP_cross_entropy_backward) continue;
        is_logits[plan_value_of(ir_in(node, 0))->root->index] = true;
        if (node->op == OP_cross_entropy_backward) is_logits[plan_value_of(ir_out(node))->root->index] = true;
    }
}

static void add_bytes(json_t *row, const char *name, double bytes) { json_object_set_new(row, name, json_integer((json_int_t)(json_number_value(json_object_get(row, name)) + bytes))); }

/* The row of the layer that the module is in, "" of those in none. */
static json_t *layer_row(json_t *layers, const char *module) {
    char name[256];
    size_t i;
    json_t *row;
    if (module == NULL) module = "";
    snprintf(name, sizeof name, "%.*s", (int)pass_layer_length(module), module);
    json_array_foreach(layers, i, row)
        if (strcmp(json_string_value(json_object_get(row, "layer")), name) == 0) return row;
    row = json_pack("{s:s, s:i, s:i, s:f, s:{}}", "layer", name, "kept_bytes", 0, "again_bytes", 0, "again_us", 0.0, "ops");
    json_array_append_new(layers, row);
    return row;
}

static void add_kept(json_t *facts, json_t *layers, const plan_binding *binding, const bool *is_logits) {
    const plan *plan = binding->plan;
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        if (!has_memory(v)) continue;
        const plan_step *made = &plan->steps[v->first], *read = &plan->steps[v->last];
        const double bytes = (double)binding->bytes[i];
        if (is_logits[i]) {
            add_bytes(facts, "logits_bytes", bytes);
            if (bytes > json_number_value(json_object_get(facts, "logits_largest_bytes"))) json_object_set_new(facts, "logits_largest_bytes", json_integer((json_int_t)bytes));
            continue;
        }
        if (strcmp(phase_of(made), forward) != 0 || !is_gradient(phase_of(read))) continue;
        if (ir_is_weight(v->value)) {
            add_bytes(facts, "weights_bytes", bytes);
            continue;
        }
        json_t *row = layer_row(layers, made->node->origin.module);
        add_bytes(facts, "bytes", bytes);
        add_bytes(facts, "values", 1);
        add_bytes(row, "kept_bytes", bytes);
        add_bytes(json_object_get(row, "ops"), op_get(v->value->node->op)->name, bytes);
    }
}

static void add_again(json_t *facts, json_t *layers, const plan_binding *binding) {
    const plan *plan = binding->plan;
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        if (!ir_is_again(step->node)) continue;
        json_t *row = layer_row(layers, step->node->origin.module);
        const double us = step->seconds * 1e6;
        add_bytes(facts, "again_steps", 1);
        json_object_set_new(row, "again_us", json_real(json_number_value(json_object_get(row, "again_us")) + us));
        json_object_set_new(facts, "again_us", json_real(json_number_value(json_object_get(facts, "again_us")) + us));
        for (int k = 0; k < step->node->n_out; k++) {
            const plan_value *v = plan_value_of(step->node->out[k]);
            if (has_memory(v)) add_bytes(row, "again_bytes", (double)binding->bytes[v->index]);
            if (has_memory(v)) add_bytes(facts, "again_bytes", (double)binding->bytes[v->index]);
        }
    }
}

/* The step at which most is alive, and how much that is. */
static json_t *peak_json(const plan_binding *binding) {
    const plan *plan = binding->plan;
    double most = 0;
    int at = -1;
    for (int i = plan->load_count; i < plan->step_count; i++) {
        double alive = 0;
        for (int k = 0; k < plan->value_count; k++)
            if (has_memory(&plan->values[k]) && plan->values[k].first <= i && plan->values[k].last >= i) alive += (double)binding->bytes[k];
        if (alive <= most) continue;
        most = alive;
        at = i;
    }
    if (at < 0) return json_null();
    const ir_node *node = plan->steps[at].node;
    return json_pack("{s:I, s:i, s:s, s:s, s:s}", "bytes", (json_int_t)most, "value", ir_out(node)->id, "op", op_get(node->op)->name, "phase", phase_of(&plan->steps[at]), "module",
                     node->origin.module != NULL ? node->origin.module : "");
}

static dw_status program_json(training *t, const program *p, json_t **result) {
    const plan *plan = p->model->full.plan;
    json_t *facts = json_pack("{s:s, s:o, s:o}", "name", p->name, "phases", phases_json(plan), "plan", explain_plan(plan)), *kept = json_object(), *layers = json_array();
    bool *is_logits;
    plan_binding binding;
    pool *pool;
    uint64_t prepared, packed;
    *result = facts;
    json_object_set_new(facts, "kept", kept);
    json_object_set_new(kept, "layers", layers);
    TRY_NEW(is_logits, &t->arena, plan->value_count);
    TRY(base_pool(t->context, &pool));
    TRY(plan_binding_create(t->context, plan, &binding));
    dw_status status = plan_bind(&binding, plan->typical);
    if (status == DW_OK) {
        plan_size_scratch(&binding, pool, NULL);
        mark_logits(plan, is_logits);
        add_kept(kept, layers, &binding, is_logits);
        add_again(kept, layers, &binding);
        json_object_set_new(facts, "peak", peak_json(&binding));
        status = engine_weigh_prepared(plan, &prepared, &packed);
    }
    if (status == DW_OK) {
        add_bytes(kept, "prepared_bytes", (double)prepared);
        add_bytes(kept, "packed_bytes", (double)packed);
        json_object_set_new(facts, "workspace_bytes", json_integer((json_int_t)(base_align_up(binding.value_bytes, ENGINE_ALIGN) + base_align_up(binding.scratch_bytes, ENGINE_ALIGN) + prepared + packed)));
    }
    plan_binding_destroy(&binding);
    return status;
}

/* ---- memory ---- */

static double state_bytes(const plan *plan, const ir_value *state) {
    dw_tensor tensor;
    num_parts parts;
    if (op_tensor_bind(plan->context, &state->type, plan->typical, NULL, &tensor) != DW_OK) return 0;
    return num_layout(tensor.format, tensor.scale_layout, tensor.rank, tensor.dims, &parts) ? (double)parts.total_bytes : 0;
}

/* The trained parameters, sums of gradients, what optimisers keep, and what the model itself does. States that both programs have are there once. */
static json_t *states_json(const training *t) {
    json_t *row = json_pack("{s:i, s:i, s:i, s:i}", "parameters", 0, "gradients", 0, "optimisers", 0, "buffers", 0);
    const ir_graph *micro = t->programs[0].model->full.plan->graph;
    for (int p = 0; p < t->count; p++) {
        const plan *plan = t->programs[p].model->full.plan;
        for (size_t i = 0; i < plan->graph->state_count; i++) {
            const ir_value *state = plan->graph->states[i], *of_source = map_find(&t->source->names, state->name);
            if (p > 0 && map_find(&micro->names, state->name) != NULL) continue;
            const bool is_sum = strncmp(state->name, TRAIN_GRADIENT, strlen(TRAIN_GRADIENT)) == 0;
            add_bytes(row, is_sum ? "gradients" : state->trained ? "parameters" : of_source != NULL ? "buffers" : "optimisers", state_bytes(plan, state));
        }
    }
    return row;
}

static json_t *memory_json(const training *t, const json_t *programs) {
    double workspace = 0, states = 0;
    json_t *row = states_json(t), *program, *bytes;
    const char *name;
    size_t i;
    json_object_foreach(row, name, bytes) states += json_number_value(bytes);
    json_array_foreach((json_t *)(uintptr_t)programs, i, program) workspace += json_number_value(json_object_get(program, "workspace_bytes"));
    json_t *facts = json_pack("{s:o, s:I, s:I}", "states", row, "workspace_bytes", (json_int_t)workspace, "bytes", (json_int_t)(states + workspace));
    return facts;
}

/* ---- the whole ---- */

static json_t *logits_json(const training *t) {
    const train_chunks *chunks = &t->graphs.chunks;
    if (chunks->rows == 0) return json_null();
    const bool whole = t->whole != NULL || chunks->count < 2;
    json_t *row = json_pack("{s:I, s:I, s:i, s:I}", "rows", (json_int_t)chunks->rows, "cols", (json_int_t)chunks->cols, "parts", whole ? 1 : chunks->count, "whole_bytes", (json_int_t)chunks->bytes);
    json_object_set_new(row, "because", json_string(t->whole != NULL          ? t->whole
                                                    : t->options.chunks > 0   ? "asked for"
                                                    : chunks->count > 1       ? "they and their gradient would take more than 256 MiB"
                                                                              : "they and their gradient take 256 MiB or less, or are fewer than 2048 rows"));
    return row;
}

static dw_status facts_of_training(training *t, json_t **result) {
    const dw_model *micro = t->programs[0].model;
    json_t *programs = json_array(), *facts;
    text chip;
    text_init(&chip, t->context);
    chip_print(&chip, &micro->chip);
    *result = facts = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:o, s:o}", "file", t->source->name, "chip", micro->chip.name, "capabilities", text_string(&chip), "precision",
                                micro->precision, "loss", t->graphs.loss, "optimizer", t->options.optimizer != NULL ? t->options.optimizer : "adamw", "recompute", t->options.recompute, "accumulate",
                                t->options.accumulate, "logits", logits_json(t), "programs", programs);
    text_free(&chip);
    for (int i = 0; i < t->count; i++) {
        json_t *row = NULL;
        const dw_status status = program_json(t, &t->programs[i], &row);
        json_array_append_new(programs, row);
        TRY(status);
    }
    json_object_set_new(facts, "policy", json_string(micro->policy_report));
    json_object_set_new(facts, "memory", memory_json(t, programs));
    return DW_OK;
}

static dw_status make_models(training *t, const char *chip) {
    const dw_trainer_options *options = &t->options;
    dw_model_options micro = {.precision = options->precision, .policy = options->policy, .device = chip != NULL ? NULL : options->device, .dims = options->dims, .kernels = options->kernels, .chip = chip,
                              .flags = DW_MODEL_PLAN_ONLY | (t->graphs.sums ? ENGINE_MODEL_PREPARES : 0)};
    const dw_model_options update = {.device = micro.device, .chip = chip, .flags = DW_MODEL_PLAN_ONLY};
    ir_graph *graph = t->graphs.micro, *second = t->graphs.update;
    t->graphs.micro = t->graphs.update = NULL;
    dw_status status = dw_model_create(t->context, graph, &micro, &t->programs[0].model);
    if (second == NULL) return status;
    if (status == DW_OK) return dw_model_create(t->context, second, &update, &t->programs[1].model);
    ir_graph_destroy(second);
    return status;
}

static dw_status plan_training(training *t, const char *chip) {
    TRY(train_check_options(t->context, &t->options));
    if (chip != NULL) t->options.device = chip;     /* what graphs are made by, too */
    TRY(train_rules_parse(&t->arena, t->options.optimizer, &t->rules));
    TRY(ir_weights_create(t->context, &t->masters));
    TRY(train_build(t->source, &t->options, &t->rules, t->masters, &t->graphs));
    t->whole = map_find(&t->graphs.micro->notes, "logits.whole");
    t->whole = t->whole != NULL ? arena_text(&t->arena, t->whole) : NULL;
    t->graphs.loss = arena_text(&t->arena, t->graphs.loss);
    t->count = t->graphs.update != NULL ? 2 : 1;
    t->programs[0].name = t->count > 1 || t->graphs.sums ? "micro" : "step";
    t->programs[1].name = "update";
    TRY(make_models(t, chip));
    return t->graphs.loss != NULL ? DW_OK : DW_NO_MEMORY;
}

static void free_training(training *t) {
    for (int i = 0; i < 2; i++) dw_model_destroy(t->programs[i].model);
    ir_graph_destroy(t->graphs.micro);
    ir_graph_destroy(t->graphs.update);
    ir_graph_destroy(t->source);
    ir_weights_destroy(t->masters);
    arena_free(&t->arena);
}

static dw_status print_facts(training *t, json_t *facts, int json, dw_sink sink, void *user) {
    text out;
    if (json) return explain_emit_json(t->context, json_incref(facts), sink, user);
    text_init(&out, t->context);
    words_print_training(&out, facts);
    const dw_status status = text_status(&out);
    if (status == DW_OK) sink(user, text_string(&out), out.length);
    text_free(&out);
    return status;
}

dw_status dw_trainer_explain(dw_context *context, dw_graph *graph, const dw_trainer_options *options, const char *chip, int json, dw_sink sink, void *user) {
    const size_t failed = base_failed_allocations(context);
    training t = {.context = context, .source = graph, .options = options != NULL ? *options : (dw_trainer_options){0}};
    json_t *facts = NULL;
    arena_init(&t.arena, context);
    dw_status status = plan_training(&t, chip);
    if (status == DW_OK) status = facts_of_training(&t, &facts);
    if (status == DW_OK && base_failed_allocations(context) != failed) status = base_fail(context, DW_NO_MEMORY, "the facts of the training do not fit in memory");
    if (status == DW_OK) status = print_facts(&t, facts, json, sink, user);
    json_decref(facts);
    free_training(&t);
    return status;
}
