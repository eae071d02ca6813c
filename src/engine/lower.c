/* From a captured graph to one in a precision, and to its plan: the passes in their stages, and the cached step. Decides nothing about which graphs a model has (compile.c). */
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

#include "pass/pass.h"

/* ---- passes ---- */

static pass_options options_of(const dw_model *model) { return (pass_options){.check = (model->flags & DW_MODEL_VERIFY) != 0}; }

/* The notes "attention.<module>" and "undone.<fusion>.<module>", in which the fusions say what they left alone, and why. */
static void print_note(text *words, const map_entry *note)
{
    static const char attention[] = "attention.", undone[] = PASS_UNDONE;
    const char *module = NULL, *unnamed = "attention";
    if (strncmp(note->key, attention, sizeof attention - 1) == 0) module = note->key + sizeof attention - 1;
    if (strncmp(note->key, undone, sizeof undone - 1) == 0 && (module = strchr(note->key + sizeof undone - 1, '.')) != NULL) {
        module++;
        unnamed = "no module";
    }
    if (module != NULL) text_printf(words, "  %s: %s\n", *module ? module : unnamed, (const char *)note->value);
}

/* What is lowered has the notes of what was fused, and more. */
static dw_status gather_notes(dw_model *model, const ir_graph *graph)
{
    text words;
    text_init(&words, model->context);
    for (size_t i = 0; i < graph->notes.count; i++) print_note(&words, &graph->notes.entries[i]);
    dw_status status = text_status(&words);
    if (status == DW_OK && words.length > strlen(model->fusion_notes)) {
        const char *kept = arena_text(&model->arena, text_string(&words));
        if (kept != NULL) model->fusion_notes = kept;
        else status = DW_NO_MEMORY;
    }
    text_free(&words);
    return status;
}

dw_status engine_fuse(dw_model *model)
{
    const ir_graph *captured = model->captured;
    pass_options options = options_of(model);
    if (captured->output_count == 0 && captured->state_count == 0)
        return base_fail(model->context, DW_INVALID, "graph '%s' has no output and no state, so nothing of it would be computed: name a result by a line 'output y %%1'", captured->name);
    TRY(ir_graph_clone(model->captured, &model->fused));
    TRY(pass_run(model->fused, PASS_STAGE_CLEAN | PASS_STAGE_FUSE, &options));
    return gather_notes(model, model->fused);
}

/* Keeps the words of the first graph that was lowered: the others have the same layers. */
static dw_status keep_report(dw_model *model, const text *report)
{
    TRY(text_status(report));
    if (model->policy_report[0] != '\0') return DW_OK;
    model->policy_report = arena_text(&model->arena, text_string(report));
    return model->policy_report != NULL ? DW_OK : DW_NO_MEMORY;
}

/* How a line of it begins: layer and split. */
static size_t split_length(const char *line)
{
    int length = 0;
    sscanf(line, " %*s %*s%n", &length);
    return length > 0 ? (size_t)length : strcspn(line, "\n");
}

static bool has_line(const char *report, const char *line)
{
    const size_t length = split_length(line);
    for (const char *at = report; *at != '\0'; at += strcspn(at, "\n"), at += *at == '\n')
        if (strncmp(at, line, length) == 0 && split_length(at) == length) return true;
    return false;
}

/* Of all graphs: a model may have layers that runs alone have, or its cached step. */
static dw_status keep_splits(dw_model *model, const text *told)
{
    text all;
    TRY(text_status(told));
    text_init(&all, model->context);
    text_add(&all, model->split_report);
    for (const char *at = text_string(told); *at != '\0'; at += strcspn(at, "\n"), at += *at == '\n')
        if (!has_line(model->split_report, at)) text_add_n(&all, at, strcspn(at, "\n") + 1);
    dw_status status = text_status(&all);
    if (status == DW_OK) model->split_report = arena_text(&model->arena, text_string(&all));
    text_free(&all);
    return status == DW_OK && model->split_report == NULL ? DW_NO_MEMORY : status;
}

/* Did the caller register kernels for that op? */
static bool has_own(const dw_model *model, op_id op)
{
    for (int i = 0; model->registry != NULL && i < model->registry->count; i++)
        if (model->registry->rows[i].op == op) return true;
    return false;
}

static plan_options plan_options_of(const dw_model *model, const plan_tuning *tuning)
{
    const dw_model_options *options = &model->options;
    return (plan_options){.chip = &model->chip, .registry = model->registry, .precision = model->precision, .dims = options->dims, .kernels = options->kernels, .tuning = tuning,
                          .invariant = (model->flags & DW_MODEL_INVARIANT) != 0, .prepares = (model->flags & ENGINE_MODEL_PREPARES) != 0, .alone = model->alone};
}

dw_status engine_lower(dw_model *model, const ir_graph *fused, pass_policy *policy, pass_probe probe, ir_graph **lowered)
{
    pass_options pass = options_of(model);
    plan_options planned = plan_options_of(model, NULL);
    const pass_estimates estimates = {.user = &planned, .sizes = plan_estimate_sizes, .seconds = plan_estimate};
    text report, told;
    text_init(&report, model->context);
    text_init(&told, model->context);
    pass.policy = policy;
    pass.splits = model->splits;
    pass.estimates = &estimates;
    pass.told = &told;
    pass.probe = probe;
    pass.report = &report;
    pass.alone = model->alone;
    pass.plain_products = has_own(model, OP_matmul);
    pass.plain_attention = has_own(model, OP_attention);
    dw_status status = ir_graph_clone(fused, lowered);
    if (status == DW_OK) status = pass_run(*lowered, PASS_STAGE_PRECISION | PASS_STAGE_SHARD | PASS_STAGE_MERGE | PASS_STAGE_CLEAN | PASS_STAGE_CHAIN, &pass);
    if (status == DW_OK) status = keep_report(model, &report);
    if (status == DW_OK) status = keep_splits(model, &told);
    if (status == DW_OK) status = gather_notes(model, *lowered);
    text_free(&report);
    text_free(&told);
    if (status == DW_OK) return DW_OK;
    ir_graph_destroy(*lowered);
    *lowered = NULL;
    return status;
}

/* ---- the cached step ---- */

dw_status engine_make_steps(dw_model *model, step_cache cache, ir_graph **step, ir_graph **prelude)
{
    text why;
    text_init(&why, model->context);
    bool changed;
    const pass_options options = options_of(model);
    dw_status status = pass_incremental(model->fused, cache, step, prelude, &why);
    if (status == DW_OK && *step != NULL) status = pass_run(*step, PASS_STAGE_INCREMENTAL, &options);
    if (status == DW_OK && *step != NULL) status = pass_last_token(*step, &changed);
    if (status == DW_OK && *step != NULL) status = pass_next_token(*step);
    if (status == DW_OK && *step == NULL) {
        model->no_step = arena_text(&model->arena, text_string(&why));
        if (model->no_step == NULL) status = DW_NO_MEMORY;
    }
    text_free(&why);
    if (status != DW_OK) {
        ir_graph_destroy(*step);
        ir_graph_destroy(*prelude);
        *step = *prelude = NULL;
    }
    return status;
}

step_cache engine_step_cache(const dw_model *model) { return model->chip.kind == CHIP_CPU ? STEP_CACHE_PAGES : STEP_CACHE_ROWS; }

/* ---- plans ---- */

dw_status engine_plan_alone(dw_model *model, const ir_graph *fused, pass_policy *policy, const char *dims, plan **result)
{
    ir_graph *lowered;
    plan_tuning *tuning;
    TRY(engine_tuning_read(model, model->options.tuning, model->options.tuning_name, &tuning));
    TRY(engine_lower(model, fused, policy, PASS_PROBE_NONE, &lowered));
    plan_options planned = plan_options_of(model, tuning);
    planned.dims = dims;
    return plan_compile(lowered, &planned, result);
}
