/* From a file to plans: capture, fusion, and a plan for whole runs and for the cached step (lower.c), by what the policy leaves open once that is settled (settle.c). */
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

#include "capture/capture.h"
#include "device/device.h"
#include "pass/pass.h"

/* ---- capture ---- */

static bool is_zip(const uint8_t *bytes, size_t length) { return length >= 4 && memcmp(bytes, "PK\3\4", 4) == 0; }

static dw_status capture_text(dw_model *model, const char *file, const file_map *bytes, const dw_model_options *options)
{
    if (options->weights != NULL) TRY(safetensors_open(model->context, options->weights, &model->weights));
    return ir_parse(model->context, file, (const char *)bytes->bytes, bytes->length, &model->weights, &model->captured);
}

static bool has_shape_of(const dw_tensor *a, const dw_tensor *b)
{
    bool same = a->format == b->format && a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++) same = a->dims[i] == b->dims[i];
    return same;
}

/* Parameters of an archive take their numbers from tensors of the same names, as training writes them. */
static dw_status replace_weights(dw_model *model, const char *file, const char *path)
{
    TRY(safetensors_open(model->context, path, &model->replaced));
    for (size_t i = 0; i < model->replaced.by_name.count; i++) {
        const ir_weight *from = model->replaced.by_name.entries[i].value;
        ir_value *value = map_find(&model->captured->names, from->name);
        if (value == NULL || (value->kind != IR_PARAM && value->kind != IR_STATE) || value->weight == NULL)
            return base_fail(model->context, DW_NOT_FOUND, "%s has no parameter named '%s', which %s has", file, from->name, path);
        if (!has_shape_of(&from->tensor, &value->weight->tensor))
            return base_fail(model->context, DW_MISMATCH, "%s: tensor '%s' is of another format or shape than the parameter of %s", path, from->name, file);
        value->weight->tensor = from->tensor;
    }
    return DW_OK;
}

dw_status engine_capture(dw_model *model, const char *file, const dw_model_options *options)
{
    file_map bytes;
    TRY(file_map_open(model->context, file, &bytes));
    bool zip = is_zip(bytes.bytes, bytes.length);
    dw_status status = zip ? capture_pt2(model->context, file, NULL, &model->weights, &model->captured) : capture_text(model, file, &bytes, options);
    if (status == DW_OK && zip && options->weights != NULL) status = replace_weights(model, file, options->weights);
    file_map_close(&bytes);
    return status;
}

/* ---- plans ---- */

static dw_status open_device(dw_model *model, const char *name)
{
    model->device_name = arena_text(&model->arena, name);
    if (model->device_name == NULL) return DW_NO_MEMORY;
    TRY(device_open(model->context, name, &model->device));
    model->chip = model->device->caps;
    model->constants.device = model->device;
    return DW_OK;
}

dw_status engine_find_chip(dw_model *model, const dw_model_options *options)
{
    if (options->chip == NULL) {
        const char *device = options->device ? options->device : "cpu", *colon = strchr(device, ':');
        if (strncmp(device, "cpu", 3) != 0 || (device[3] != '\0' && device[3] != ':')) return open_device(model, device);
        return device_probe_cpu(model->context, colon ? colon + 1 : "", dw_context_threads(model->context), &model->chip);
    }
    if (!(model->flags & DW_MODEL_PLAN_ONLY)) return base_fail(model->context, DW_INVALID, "chip %s: a plan for another chip is not run", options->chip);
    return chip_find(model->context, options->chip, 0, &model->chip);
}

static dw_status plan_program(dw_model *model, const ir_graph *fused, pass_policy *policy, engine_program *program)
{
    TRY(engine_plan_alone(model, fused, policy, model->options.dims, &program->plan));
    return engine_place(model, program->plan);
}

static dw_status plan_generation(dw_model *model, pass_policy *policy)
{
    ir_graph *step = NULL, *prelude = NULL;
    TRY(engine_make_steps(model, engine_step_cache(model), &step, &prelude));
    dw_status status = DW_OK;
    if (step != NULL) status = plan_program(model, step, policy, &model->step);
    if (status == DW_OK && prelude != NULL) status = plan_program(model, prelude, policy, &model->prelude);
    ir_graph_destroy(step);
    ir_graph_destroy(prelude);
    return status;
}

/* The prelude is that of the step in rows. */
static dw_status plan_pages(dw_model *model, pass_policy *policy)
{
    ir_graph *step = NULL, *prelude = NULL;
    TRY(engine_make_steps(model, STEP_CACHE_PAGES, &step, &prelude));
    const dw_status status = plan_program(model, step, policy, &model->paged);
    ir_graph_destroy(step);
    ir_graph_destroy(prelude);
    return status;
}

static dw_status plan_all(dw_model *model, pass_policy *policy)
{
    if (model->flags & (DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY)) TRY(plan_generation(model, policy));
    if ((model->flags & DW_MODEL_GENERATE_ONLY) && model->step.plan != NULL) return DW_OK;
    return plan_program(model, model->fused, policy, &model->full);
}

/* "op=kernel,.." and the caller's own kernels name ops that have to stay what they are. */
static void find_alone(dw_model *model, const char *kernels)
{
    for (int i = 0; model->registry != NULL && i < model->registry->count; i++) model->alone[model->registry->rows[i].op] = true;
    for (const char *at = kernels; at != NULL && *at != '\0';) {
        const size_t length = strcspn(at, "=,"), size = strcspn(at, ",");
        for (int i = 0; i < OP_COUNT; i++) {
            const char *name = op_get((op_id)i)->name;
            if (strlen(name) == length && memcmp(name, at, length) == 0) model->alone[i] = true;
        }
        at += size + (at[size] == ',');
    }
}

/* tells: rules that changed none of the plans are warned of. */
static dw_status plan_by_policy(dw_model *model, dw_status (*make)(dw_model *, pass_policy *), bool tells)
{
    const dw_model_options *options = &model->options;
    pass_policy *policy = NULL;
    bool asked = options->precision != NULL || options->policy != NULL;
    if (asked) TRY(pass_policy_create(model->context, options->precision, "policy", options->policy, &policy));
    model->precision = arena_text(&model->arena, asked ? pass_policy_words(policy) : "as exported");
    dw_status status = model->precision != NULL ? engine_splits_create(model, &model->splits) : DW_NO_MEMORY;
    if (status == DW_OK && policy != NULL) status = engine_settle(model, policy);
    if (status == DW_OK) status = make(model, policy);
    if (status == DW_OK && policy != NULL && tells) pass_policy_warn(policy);
    pass_splits_destroy(model->splits);
    model->splits = NULL;
    pass_policy_destroy(policy);
    return status;
}

/* ---- kernels of the caller's that nothing took ---- */

static bool is_taken(const plan *plan, const kernel_row *row)
{
    for (int i = 0; plan != NULL && i < plan->step_count; i++)
        if (plan->steps[i].row == row) return true;
    return false;
}

/* Why the row did not accept the step; NULL: it was not tried. */
static const char *refusal_of(const plan_step *step, const kernel_row *row)
{
    for (int i = 0; i < step->verdict_count; i++)
        if (step->verdicts[i].row == row) return step->verdicts[i].reason != NULL ? step->verdicts[i].reason : "another one was chosen";
    return NULL;
}

/* "blocks.0.mlp.up, blocks.0.mlp.down and 22 more": the steps that the row refused for that reason, each layer once, whichever plans it is in. */
static dw_status add_layers(const plan *const plans[3], const kernel_row *row, const char *reason, arena *scratch, text *words)
{
    enum { NAMED = 8 };
    map layers;
    map_init(&layers, scratch);
    for (int p = 0; p < 3; p++)
        for (int i = 0; plans[p] != NULL && i < plans[p]->step_count; i++) {
            const plan_step *step = &plans[p]->steps[i];
            const char *refused = refusal_of(step, row), *layer = step->node->origin.module;
            if (refused == NULL || strcmp(refused, reason) != 0) continue;
            if (layer == NULL || layer[0] == '\0') layer = arena_printf(scratch, "%%%d", ir_out(step->node)->id);
            if (layer == NULL) return DW_NO_MEMORY;
            TRY(map_set(&layers, layer, scratch));
        }
    for (size_t i = 0; i < layers.count && i < NAMED; i++) text_printf(words, "%s%s", i > 0 ? ", " : "", layers.entries[i].key);
    if (layers.count > NAMED) text_printf(words, " and %zu more", layers.count - NAMED);
    return text_status(words);
}

/* Each reason once, with the layers that it is of. */
static dw_status add_refusals(const plan *const plans[3], const kernel_row *row, arena *scratch, text *words)
{
    map seen;
    map_init(&seen, scratch);
    for (int p = 0; p < 3; p++)
        for (int i = 0; plans[p] != NULL && i < plans[p]->step_count; i++) {
            const char *reason = refusal_of(&plans[p]->steps[i], row);
            if (reason == NULL || map_find(&seen, reason) != NULL) continue;
            TRY(map_set(&seen, reason, scratch));
            text_printf(words, "%s%s (", words->length > 0 ? "; " : "", reason);
            TRY(add_layers(plans, row, reason, scratch, words));
            text_add(words, ")");
        }
    return text_status(words);
}

static dw_status warn_unused(dw_model *model, const kernel_row *row)
{
    const plan *const plans[] = {model->full.plan, model->prelude.plan, model->step.plan};
    const char *op = op_get(row->op)->name;
    arena scratch;
    text words;
    for (size_t i = 0; i < COUNT_OF(plans); i++)
        if (is_taken(plans[i], row)) return DW_OK;
    arena_init(&scratch, model->context);
    text_init(&words, model->context);
    dw_status status = add_refusals(plans, row, &scratch, &words);
    if (status == DW_OK && words.length == 0) {
        if (row->device != model->chip.kind) text_printf(&words, "it runs on the CPU, and the model on %s", model->chip.name);
        else text_printf(&words, "there is no %s", op);
        status = text_status(&words);
    }
    if (status == DW_OK) base_log(model->context, DW_LOG_WARNING, "registered kernel %s runs no %s of graph %s: %s", row->name, op, model->captured->name, text_string(&words));
    text_free(&words);
    arena_free(&scratch);
    return status;
}

static dw_status load_generation(dw_model *model, pool *pool)
{
    if (model->step.plan != NULL) TRY(engine_load(&model->constants, pool, &model->step));
    return model->prelude.plan != NULL ? engine_load(&model->constants, pool, &model->prelude) : DW_OK;
}

dw_status engine_compile(dw_model *model, const dw_model_options *options)
{
    pool *pool;
    TRY(engine_find_chip(model, options));
    find_alone(model, options->kernels);
    TRY(plan_by_policy(model, plan_all, true));
    for (int i = 0; model->registry != NULL && i < model->registry->count; i++) TRY(warn_unused(model, &model->registry->rows[i]));
    if (model->flags & DW_MODEL_PLAN_ONLY) return DW_OK;
    TRY(base_pool(model->context, &pool));
    if (model->fused->weights != NULL) TRY(ir_weights_check(model->fused->weights, pool));
    TRY(load_generation(model, pool));
    return model->full.plan != NULL ? engine_load(&model->constants, pool, &model->full) : DW_OK;
}

dw_status engine_compile_beside(dw_model *model, const dw_model *that)
{
    model->file = that->file;
    model->chip = that->chip;
    find_alone(model, model->options.kernels);
    TRY(ir_graph_clone(that->fused, &model->fused));
    return plan_by_policy(model, plan_all, false);
}

dw_status engine_compile_generation(dw_model *model)
{
    pool *pool;
    TRY(plan_by_policy(model, plan_generation, false));
    if (model->flags & DW_MODEL_PLAN_ONLY) return DW_OK;
    TRY(base_pool(model->context, &pool));
    return load_generation(model, pool);
}

dw_status engine_add_pages(dw_model *model)
{
    dw_context *context = model->context;
    const size_t failed = base_failed_allocations(context);
    pool *pool;
    if (model->chip.kind == CHIP_CPU || model->step.plan == NULL || model->fused == NULL || model->paged.plan != NULL) return DW_OK;
    dw_status status = plan_by_policy(model, plan_pages, false);
    if (status == DW_OK) status = base_pool(context, &pool);
    if (status == DW_OK) status = engine_load(&model->constants, pool, &model->paged);
    if (status == DW_OK && base_failed_allocations(context) != failed) status = base_fail(context, DW_NO_MEMORY, "memory ran out while pages were added to %s; free memory", model->file);
    if (status == DW_OK) return DW_OK;
    plan_destroy(model->paged.plan);
    model->paged = (engine_program){0};
    return status;
}
