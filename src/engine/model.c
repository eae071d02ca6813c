/* Models: opened from a file or a graph, compiled, loaded, and asked about. */
#include "engine/engine.h"

#include <string.h>

#include "capture/capture.h"

/* What generation that is added later is planned by. */
static dw_status keep_options(dw_model *model, const dw_model_options *options)
{
    dw_model_options *kept = &model->options;
    const char **const strings[] = {&kept->precision, &kept->policy, &kept->dims, &kept->kernels, &kept->tuning, &kept->tuning_name, &kept->mesh, &kept->shard};
    *kept = *options;
    kept->device = kept->chip = kept->weights = NULL;
    for (size_t i = 0; i < COUNT_OF(strings); i++) {
        if (*strings[i] == NULL) continue;
        *strings[i] = arena_text(&model->arena, *strings[i]);
        if (*strings[i] == NULL) return DW_NO_MEMORY;
    }
    return DW_OK;
}

static dw_status create_empty(dw_context *context, const dw_model_options *options, dw_model **result)
{
    void *memory;
    *result = NULL;
    TRY(base_alloc(context, sizeof(dw_model), _Alignof(max_align_t), &memory));
    dw_model *model = memory;
    *model = (dw_model){.context = context, .flags = options->flags, .no_step = ENGINE_NOT_ASKED, .precision = "", .fusion_notes = "", .policy_report = "", .split_report = "",
                        .registry = engine_registry_rows(options->registry)};
    arena_init(&model->arena, context);
    ir_weights_init(&model->weights, context);
    ir_weights_init(&model->replaced, context);
    engine_constants_init(&model->constants, context);
    dw_status status = keep_options(model, options);
    if (status == DW_OK) *result = model;
    else dw_model_destroy(model);
    return status;
}

void dw_model_destroy(dw_model *model)
{
    if (model == NULL) return;
    dw_context *context = model->context;
    plan_destroy(model->full.plan);
    plan_destroy(model->step.plan);
    plan_destroy(model->paged.plan);
    plan_destroy(model->prelude.plan);
    ir_graph_destroy(model->fused);
    ir_graph_destroy(model->captured);   /* whose weights the fused one reads */
    engine_constants_free(&model->constants);
    device_close(model->device);
    ir_weights_free(&model->weights);
    ir_weights_free(&model->replaced);
    file_map_close(&model->package);
    arena_free(&model->arena);
    base_release(context, model, sizeof *model, _Alignof(max_align_t));
}

static const ir_graph *graph_of(const dw_model *model) { return model->full.plan ? model->full.plan->graph : model->step.plan->graph; }

static dw_status print_shape(dw_model *model, const dim_table *dims, const op_type *type, const char **shape)
{
    text words;
    text_init(&words, model->context);
    op_type_print(&words, dims, type);
    dw_status status = text_status(&words);
    if (status == DW_OK) {
        *shape = arena_text(&model->arena, text_string(&words));
        if (*shape == NULL) status = DW_NO_MEMORY;
    }
    text_free(&words);
    return status;
}

/* Inputs and outputs of the step that are nobody's but generation's. */
static bool is_internal(const char *name) { return strncmp(name, STEP_GIVEN, strlen(STEP_GIVEN)) == 0 || strncmp(name, "step.", 5) == 0; }

static dw_status add_inputs(dw_model *model, const ir_graph *graph, bool step) {
    for (size_t i = 0; i < graph->input_count; i++) {
        const ir_value *input = graph->inputs[i];
        if (step && is_internal(input->name)) continue;
        model->input_names[model->input_count] = input->name;
        TRY(print_shape(model, graph->dims, &input->type, &model->input_shapes[model->input_count++]));
    }
    return DW_OK;
}

/* What goes in and comes out, in words: made here, as a model that is open does not change. Where there is the step alone, the inputs of the prelude
 * are the model's too. */
static dw_status describe(dw_model *model) {
    const ir_graph *graph = graph_of(model), *prelude = model->full.plan == NULL && model->prelude.plan != NULL ? model->prelude.plan->graph : NULL;
    const size_t most = graph->input_count + (prelude != NULL ? prelude->input_count : 0);
    TRY_NEW(model->input_names, &model->arena, most);
    TRY_NEW(model->input_shapes, &model->arena, most);
    TRY_NEW(model->output_names, &model->arena, graph->output_count);
    TRY_NEW(model->output_shapes, &model->arena, graph->output_count);
    if (prelude != NULL) TRY(add_inputs(model, prelude, false));
    TRY(add_inputs(model, graph, model->full.plan == NULL));
    for (size_t i = 0; i < graph->output_count; i++) {
        if (model->full.plan == NULL && is_internal(graph->outputs[i].name)) continue;
        model->output_names[model->output_count] = graph->outputs[i].name;
        TRY(print_shape(model, graph->dims, &graph->outputs[i].value->type, &model->output_shapes[model->output_count++]));
    }
    return DW_OK;
}

/* ---- ranks ---- */

/* Every collective of the plan is over an axis that the communicator's mesh has. */
static dw_status check_collectives(const dw_model *model, const plan *plan)
{
    const dw_comm *comm = model->options.comm;
    for (int i = plan != NULL ? plan->load_count : 0; plan != NULL && i < plan->step_count; i++) {
        const ir_node *node = plan->steps[i].node;
        const long long ranks = (long long)op_attr_int(&node->attrs, OP_ATTR_ranks);
        const char *over = op_attr_text(&node->attrs, OP_ATTR_over), *name = op_get(node->op)->name;
        if (!op_has(node->op, OP_TRAIT_COLLECTIVE) || (comm == NULL && (ranks == 1 || (model->flags & DW_MODEL_PLAN_ONLY)))) continue;
        if (comm == NULL)
            return base_fail(model->context, DW_INVALID, "%s %%%d is over %lld ranks of %s, and this rank is alone: give the model a communicator of such a mesh (dw_model_options.comm)", name,
                             ir_out(node)->id, ranks, over);
        const int axis = op_mesh_find(comm_mesh(comm), over);
        if (axis < 0) return base_fail(model->context, DW_MISMATCH, "%s %%%d is over '%s', which is no axis of the mesh %s", name, ir_out(node)->id, over, dw_comm_mesh(comm));
        if (comm_mesh(comm)->axes[axis].size != ranks)
            return base_fail(model->context, DW_MISMATCH, "%s %%%d is over %lld ranks of %s, and the mesh is %s", name, ir_out(node)->id, ranks, over, dw_comm_mesh(comm));
    }
    return DW_OK;
}

static dw_status hash_plan(const plan *plan, uint64_t *hash)
{
    text words;
    *hash = 0;
    if (plan == NULL) return DW_OK;
    text_init(&words, plan->context);
    dw_status status = plan_print(plan, &words);
    if (status == DW_OK) status = text_status(&words);
    if (status == DW_OK) *hash = base_hash(text_string(&words), words.length, 0);
    text_free(&words);
    return status;
}

/* Which collectives there are, and at which steps. */
static dw_status hash_collectives(const plan *plan, uint64_t *hash)
{
    text words;
    *hash = 0;
    if (plan == NULL) return DW_OK;
    text_init(&words, plan->context);
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const ir_node *node = plan->steps[i].node;
        if (!op_has(node->op, OP_TRAIT_COLLECTIVE)) continue;
        text_printf(&words, "%d %s %s %lld %s\n", i, op_get(node->op)->name, op_attr_text(&node->attrs, OP_ATTR_over), (long long)op_attr_int(&node->attrs, OP_ATTR_ranks), dw_format_name(ir_in(node, 0)->type.format));
    }
    const dw_status status = text_status(&words);
    if (status == DW_OK) *hash = base_hash(text_string(&words), words.length, 0);
    text_free(&words);
    return status;
}

/* Was the model parallel when it was captured? Then each rank has numbers of its own in it, and what all have in common is what they tell each other. */
static bool is_ranks_own(const dw_model *model) { return model->captured != NULL && map_find(&model->captured->notes, CAPTURE_PARALLEL) != NULL; }

static uint64_t hash_word(const char *word, uint64_t seed) { return word != NULL ? base_hash(word, strlen(word), seed) : base_hash("", 1, seed); }

static uint64_t hash_options(const dw_model_options *options)
{
    const char *const words[] = {options->precision, options->policy, options->dims, options->kernels, options->tuning, options->shard};
    uint64_t hash = options->flags;
    for (size_t i = 0; i < COUNT_OF(words); i++) hash = hash_word(words[i], hash);
    return hash;
}

static dw_status find_facts(const dw_model *model, comm_fact facts[COMM_FACTS])
{
    facts[0] = (comm_fact){"build of the library", engine_build_hash()};
    facts[1] = (comm_fact){"options of the model", hash_options(&model->options)};
    facts[2] = (comm_fact){"graph", 0};
    facts[3] = (comm_fact){"plan", 0};
    facts[4] = (comm_fact){"plan of the cached step", 0};
    facts[5] = (comm_fact){"plan of the prelude", 0};
    dw_status (*const hash)(const plan *, uint64_t *) = is_ranks_own(model) ? hash_collectives : hash_plan;
    if (model->captured != NULL && hash == hash_plan) TRY(ir_hash(model->captured, &facts[2].hash));
    TRY(hash(model->full.plan, &facts[3].hash));
    TRY(hash(model->step.plan, &facts[4].hash));
    return hash(model->prelude.plan, &facts[5].hash);
}

static dw_status check_plans(const dw_model *model)
{
    TRY(check_collectives(model, model->full.plan));
    TRY(check_collectives(model, model->step.plan));
    return check_collectives(model, model->prelude.plan);
}

/* All ranks have the same plans, or all have an error. One plan, one order of collectives: nothing else holds it. */
static dw_status agree(dw_context *context, const dw_model *model, dw_comm *comm, dw_status status)
{
    comm_fact facts[COMM_FACTS] = {{0}};
    if (status == DW_OK) status = check_plans(model);
    if (status == DW_OK && comm != NULL) status = find_facts(model, facts);
    return comm != NULL ? comm_agree(comm, context, "model", status, COMM_FACTS, facts) : status;
}

/* The model, or none if its making failed. An allocation that failed counts even if some proof or choice did without it: the model would not be the one
 * that enough memory gives. */
static dw_status finish(dw_model **model, dw_status status, size_t failed_before)
{
    dw_context *context = (*model)->context;
    if (status == DW_OK) status = describe(*model);
    if (status == DW_OK && base_failed_allocations(context) != failed_before) {
        status = base_fail(context, DW_NO_MEMORY, "memory ran out while %s was compiled; free memory or take a smaller model", (*model)->file);
    }
    status = agree(context, *model, (*model)->options.comm, status);
    if (status == DW_OK) return DW_OK;
    dw_model_destroy(*model);
    *model = NULL;
    return status;
}

dw_status engine_plan_in(const dw_model *model, const char *precision, dw_model **other)
{
    dw_model_options options = model->options;
    options.precision = precision;
    options.policy = NULL;
    options.flags = DW_MODEL_PLAN_ONLY | (model->flags & (DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY));
    TRY(create_empty(model->context, &options, other));
    dw_status status = engine_compile_beside(*other, model);
    if (status == DW_OK) return DW_OK;
    dw_model_destroy(*other);
    *other = NULL;
    return status;
}

/* ---- attention in fp32 ---- */

static bool has_fp32_scores(const ir_node *node) { return node->op == OP_attention && node->n_out == 1 && ir_in(node, ATTENTION_Q)->type.format == DW_FORMAT_f32; }

/* A run of the plan at its typical sizes, and the attention in fp32 of it. */
static double seconds_of(const plan *plan, double *scores)
{
    double all = *scores = 0;
    for (int i = plan->load_count; i < plan->step_count; i++) {
        all += plan->steps[i].seconds;
        if (has_fp32_scores(plan->steps[i].node)) *scores += plan->steps[i].seconds;
    }
    return all;
}

dw_status engine_narrow_scores(const dw_model *model, text *precision)
{
    const char *asked = model->options.precision;
    const plan *const plans[] = {model->full.plan, model->step.plan};
    const bool is_settled = asked == NULL || *asked == '\0' || strcmp(asked, "fp32") == 0 || strstr(asked, "role:scores") != NULL || model->options.policy != NULL;
    bool any = false;
    for (size_t p = 0; p < COUNT_OF(plans) && !is_settled; p++)
        for (int i = 0; plans[p] != NULL && i < plans[p]->step_count; i++) any = any || has_fp32_scores(plans[p]->steps[i].node);
    if (any) text_printf(precision, "role:scores=bf16,%s%s", model->step.plan != NULL && strstr(asked, "role:cache") == NULL ? "role:cache=bf16," : "", asked);
    return text_status(precision);
}

/* GPUs have no fast kernel for attention in fp32. Where layers were to be in fewer bits, it alone can be most of a run: then the model is planned with scores in bf16, too. Where that
 * cannot be, as with a kernel that was asked for and does not take them, there is nothing to tell. */
static dw_status warn_fp32_scores(const dw_model *model)
{
    const plan *plan = model->full.plan != NULL ? model->full.plan : model->step.plan;
    double scores, narrow_scores;
    dw_model *other = NULL;
    text precision;
    if (plan == NULL || model->chip.kind == CHIP_CPU || model->flags & DW_MODEL_PLAN_ONLY) return DW_OK;
    const double all = seconds_of(plan, &scores);
    if (scores <= all / 5) return DW_OK;
    text_init(&precision, model->context);
    dw_status status = engine_narrow_scores(model, &precision);
    if (status == DW_OK && precision.length > 0) status = engine_plan_in(model, text_string(&precision), &other);
    if (status == DW_OK && other != NULL) {
        const double narrow = seconds_of(model->full.plan != NULL ? other->full.plan : other->step.plan, &narrow_scores);
        if (narrow < 0.9 * all)
            base_log(model->context, DW_LOG_WARNING, "attention of %s is in fp32, as it was exported, and by estimate %.0f %% of a run: with the precision '%s' a run takes %.0f us for %.0f; an export in bf16 has such attention, too",
                     model->captured->name, 100 * scores / all, text_string(&precision), 1e6 * narrow, 1e6 * all);
    }
    dw_model_destroy(other);
    text_free(&precision);
    return status == DW_NO_MEMORY ? status : DW_OK;
}

/* fused -> plans, loaded, and what there is to tell of them. */
static dw_status compile(dw_model *model, const dw_model_options *options)
{
    TRY(engine_fuse(model));
    TRY(engine_compile(model, options));
    return warn_fp32_scores(model);
}

static dw_status open_file(dw_model *model, const char *file, const dw_model_options *options)
{
    file_map bytes;
    model->file = arena_text(&model->arena, file);
    if (model->file == NULL) return DW_NO_MEMORY;
    TRY(file_map_open(model->context, file, &bytes));
    bool package = engine_is_package(bytes.bytes, bytes.length);
    file_map_close(&bytes);
    if (package) return engine_package_open(model, file, options);
    TRY(engine_capture(model, file, options));
    return compile(model, options);
}

dw_status dw_model_open(dw_context *context, const char *file, const dw_model_options *options, dw_model **model)
{
    static const dw_model_options none = {0};
    if (options == NULL) options = &none;
    size_t failed = base_failed_allocations(context);
    const dw_status status = create_empty(context, options, model);
    if (status != DW_OK) return agree(context, NULL, options->comm, status);
    return finish(model, open_file(*model, file, options), failed);
}

dw_status dw_model_create(dw_context *context, dw_graph *graph, const dw_model_options *options, dw_model **model)
{
    static const dw_model_options none = {0};
    if (options == NULL) options = &none;
    size_t failed = base_failed_allocations(context);
    dw_status status = create_empty(context, options, model);
    if (status != DW_OK) {
        ir_graph_destroy(graph);
        return agree(context, NULL, options->comm, status);
    }
    (*model)->captured = graph;
    (*model)->file = graph->name;
    status = compile(*model, options);
    return finish(model, status, failed);
}

static void drop_generation(dw_model *model)
{
    plan_destroy(model->step.plan);
    plan_destroy(model->prelude.plan);
    model->step = model->prelude = (engine_program){0};
}

dw_status dw_model_add_generation(dw_model *model)
{
    dw_context *context = model->context;
    const char *no_step = model->no_step;
    const size_t failed = base_failed_allocations(context);
    if (model->flags & (DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY)) return DW_OK;
    dw_status status = model->captured != NULL ? engine_compile_generation(model) : engine_package_add_generation(model);
    if (status == DW_OK && base_failed_allocations(context) != failed) status = base_fail(context, DW_NO_MEMORY, "memory ran out while generation was added to %s; free memory", model->file);
    status = agree(context, model, model->options.comm, status);
    if (status == DW_OK) {
        model->flags |= DW_MODEL_GENERATE;
        return DW_OK;
    }
    drop_generation(model);
    model->no_step = no_step;
    return status;
}

/* ---- asking ---- */

int dw_model_input_count(const dw_model *model) { return model->input_count; }
int dw_model_output_count(const dw_model *model) { return model->output_count; }

const char *dw_model_input(const dw_model *model, int index, const char **shape) {
    if (index < 0 || index >= model->input_count) return NULL;
    if (shape != NULL) *shape = model->input_shapes[index];
    return model->input_names[index];
}

const char *dw_model_output(const dw_model *model, int index, const char **shape)
{
    if (index < 0 || index >= model->output_count) return NULL;
    if (shape != NULL) *shape = model->output_shapes[index];
    return model->output_names[index];
}

const char *dw_model_note(const dw_model *model, const char *name) { return map_find(&graph_of(model)->notes, name); }

int dw_model_can_generate(const dw_model *model, const char **reason) {
    const bool can = model->step.plan != NULL || engine_keeps_cache(model);
    if (reason != NULL) *reason = can ? "" : model->no_step;
    return can;
}
