/* A trainer made and destroyed, and what it keeps read and written. Steps are in step.c, files in checkpoint.c. */
#include "train/train.h"

#include <math.h>
#include <string.h>

/* ---- making ---- */

dw_status train_check_options(dw_context *context, dw_trainer_options *options) {
    if (!(options->clip >= 0 && options->clip < 1e30)) return base_fail(context, DW_INVALID, "clip is %g: give the largest norm of gradients, or 0 for none", options->clip);
    if (options->accumulate < 0 || options->accumulate > 1 << 20) return base_fail(context, DW_INVALID, "accumulate is %d: give the micro-batches of a step, 1 to 1048576", options->accumulate);
    if (!(options->loss_scale >= 0 && options->loss_scale < 1e30)) return base_fail(context, DW_INVALID, "loss_scale is %g: give a factor above 0, or 0 for the usual", options->loss_scale);
    if (options->chunks < 0 || options->chunks > 64) return base_fail(context, DW_INVALID, "chunks is %d: give the parts of the logits, 1 to 64, or 0 for as many as their size asks for", options->chunks);
    if (options->accumulate == 0) options->accumulate = 1;
    if (options->recompute == NULL) options->recompute = TRAIN_RECOMPUTE;
    return DW_OK;
}

static dw_status keep_options(dw_trainer *trainer, const dw_trainer_options *options) {
    dw_trainer_options *kept = &trainer->options;
    const char **const strings[] = {&kept->loss, &kept->trained, &kept->optimizer, &kept->decayed, &kept->recompute, &kept->precision, &kept->policy, &kept->device, &kept->dims, &kept->kernels};
    *kept = *options;
    TRY(train_check_options(trainer->context, kept));
    trainer->accumulate = kept->accumulate;
    for (size_t i = 0; i < COUNT_OF(strings); i++) {
        if (*strings[i] == NULL) continue;
        *strings[i] = arena_text(&trainer->arena, *strings[i]);
        if (*strings[i] == NULL) return DW_NO_MEMORY;
    }
    return DW_OK;
}

static dw_status make_models(dw_trainer *trainer, train_graphs *graphs) {
    const dw_trainer_options *options = &trainer->options;
    const dw_model_options model = {.precision = options->precision, .policy = options->policy, .device = options->device, .dims = options->dims, .kernels = options->kernels,
                                    .flags = (options->flags & DW_TRAINER_VERIFY ? DW_MODEL_VERIFY : 0) | (graphs->sums ? ENGINE_MODEL_PREPARES : 0)};
    const dw_model_options plain = {.device = options->device, .flags = model.flags & ~ENGINE_MODEL_PREPARES};   /* an update has no layers */
    ir_graph *micro = graphs->micro, *update = graphs->update;
    dw_status status = DW_OK;
    graphs->micro = graphs->update = NULL;
    if (!train_is_on_cpu(options) && (options->flags & DW_TRAINER_RAISE)) status = ir_graph_clone(micro, &trainer->watched);
    if (status == DW_OK) status = dw_model_create(trainer->context, micro, &model, &trainer->micro_model);
    else ir_graph_destroy(micro);
    if (update == NULL) return status;
    if (status == DW_OK) return dw_model_create(trainer->context, update, &plain, &trainer->update_model);
    ir_graph_destroy(update);
    return status;
}

static dw_status make_sessions(dw_trainer *trainer) {
    TRY(engine_session_create(trainer->context, trainer->micro_model, &(dw_session_options){.dims = trainer->options.dims}, &(engine_paging){0}, &trainer->micro));
    if (trainer->update_model == NULL) return DW_OK;
    return engine_session_beside(trainer->context, trainer->update_model, &(dw_session_options){0}, trainer->micro, &trainer->update);
}

static dw_status build(dw_trainer *trainer, const dw_trainer_options *options) {
    train_graphs graphs;
    pool *pool;
    TRY(keep_options(trainer, options));
    TRY(base_pool(trainer->context, &pool));
    if (trainer->source->weights != NULL) TRY(ir_weights_check(trainer->source->weights, pool));
    TRY(ir_hash(trainer->source, &trainer->hash));
    TRY(train_rules_parse(&trainer->arena, trainer->options.optimizer, &trainer->rules));
    TRY(ir_weights_create(trainer->context, &trainer->masters));
    TRY(train_build(trainer->source, &trainer->options, &trainer->rules, trainer->masters, &graphs));
    trainer->has_norm = graphs.has_norm;
    trainer->sums = graphs.sums;
    trainer->loss_scale = graphs.loss_scale;
    trainer->loss = arena_text(&trainer->arena, graphs.loss);
    if (trainer->loss == NULL) {
        ir_graph_destroy(graphs.micro);
        ir_graph_destroy(graphs.update);
        return DW_NO_MEMORY;
    }
    TRY(make_models(trainer, &graphs));
    return make_sessions(trainer);
}

dw_status dw_trainer_create(dw_context *context, dw_graph *graph, const dw_trainer_options *options, dw_trainer **result) {
    static const dw_trainer_options defaults;
    void *memory;
    *result = NULL;
    dw_status status = base_alloc(context, sizeof(dw_trainer), _Alignof(max_align_t), &memory);
    if (status != DW_OK) {
        dw_graph_destroy(graph);
        return status;
    }
    dw_trainer *trainer = memory;
    *trainer = (dw_trainer){.context = context, .source = graph};
    arena_init(&trainer->arena, context);
    status = build(trainer, options != NULL ? options : &defaults);
    if (status != DW_OK) {
        dw_trainer_destroy(trainer);
        return status;
    }
    *result = trainer;
    return DW_OK;
}

void dw_trainer_destroy(dw_trainer *trainer) {
    if (trainer == NULL) return;
    dw_context *context = trainer->context;
    engine_session_destroy(trainer->update);   /* whose states are those of micro */
    engine_session_destroy(trainer->micro);
    dw_model_destroy(trainer->update_model);
    dw_model_destroy(trainer->micro_model);
    ir_graph_destroy(trainer->watched);
    ir_graph_destroy(trainer->source);
    ir_weights_destroy(trainer->masters);
    arena_free(&trainer->arena);
    base_release(context, trainer, sizeof *trainer, _Alignof(max_align_t));
}

/* ---- what it keeps: the states of micro, then those that the update alone has ---- */

int train_count(const dw_trainer *trainer) {
    int count = engine_state_count(trainer->micro);
    dw_named_tensor state;
    for (int i = 0; trainer->update != NULL && i < engine_state_count(trainer->update); i++)
        if (engine_state_at(trainer->update, i, &state) == DW_OK && engine_state_find(trainer->micro, state.name) < 0) count++;
    return count;
}

dw_status train_at(const dw_trainer *trainer, int index, train_kept *kept) {
    const int own = engine_state_count(trainer->micro);
    *kept = (train_kept){.session = trainer->micro, .index = index};
    if (index < own) return engine_state_at(trainer->micro, index, &kept->state);
    kept->session = trainer->update;
    index -= own;
    for (kept->index = 0; kept->index < engine_state_count(trainer->update); kept->index++) {
        TRY(engine_state_at(trainer->update, kept->index, &kept->state));
        if (engine_state_find(trainer->micro, kept->state.name) < 0 && index-- == 0) return DW_OK;
    }
    return base_fail(trainer->context, DW_INVALID, "there is no such tensor: there are %d", train_count(trainer));
}

dw_status train_find(const dw_trainer *trainer, const char *name, train_kept *kept) {
    dw_session *const sessions[] = {trainer->micro, trainer->update};
    for (int i = 0; i < 2 && sessions[i] != NULL; i++) {
        *kept = (train_kept){.session = sessions[i], .index = engine_state_find(sessions[i], name)};
        if (kept->index >= 0) return engine_state_at(kept->session, kept->index, &kept->state);
    }
    return base_fail(trainer->context, DW_NOT_FOUND, "the trainer keeps no tensor named '%s'", name);
}

static dw_status check_bytes(const dw_trainer *trainer, const train_kept *kept, size_t bytes) {
    uint64_t needed;
    TRY(dw_tensor_bytes(trainer->context, &kept->state.tensor, &needed));
    if (needed == bytes) return DW_OK;
    return base_fail(trainer->context, DW_MISMATCH, "tensor %s has %llu bytes, there are %zu", kept->state.name, (unsigned long long)needed, bytes);
}

int dw_trainer_tensor_count(const dw_trainer *trainer) { return train_count(trainer); }

dw_status dw_trainer_tensor_at(const dw_trainer *trainer, int index, dw_named_tensor *tensor) {
    train_kept kept;
    if (index < 0 || index >= train_count(trainer)) return base_fail(trainer->context, DW_INVALID, "there is no tensor %d: there are %d", index, train_count(trainer));
    TRY(train_at(trainer, index, &kept));
    *tensor = kept.state;
    return DW_OK;
}

dw_status dw_trainer_read(dw_trainer *trainer, const char *name, void *data, size_t bytes) {
    train_kept kept;
    TRY(train_find(trainer, name, &kept));
    TRY(check_bytes(trainer, &kept, bytes));
    return engine_state_read(kept.session, kept.index, data);
}

dw_status dw_trainer_write(dw_trainer *trainer, const char *name, const void *data, size_t bytes) {
    train_kept kept;
    TRY(train_find(trainer, name, &kept));
    TRY(check_bytes(trainer, &kept, bytes));
    return engine_state_write(kept.session, kept.index, data);
}

/* ---- asking ---- */

uint64_t dw_trainer_seed(const dw_trainer *trainer) { return trainer->options.seed; }

dw_status dw_trainer_print(const dw_trainer *trainer, dw_sink sink, void *user) {
    text words;
    text_init(&words, trainer->context);
    dw_status status = plan_print(trainer->micro_model->full.plan, &words);
    if (status == DW_OK && trainer->update_model != NULL) status = plan_print(trainer->update_model->full.plan, &words);
    if (status == DW_OK) status = text_status(&words);
    if (status == DW_OK) sink(user, text_string(&words), words.length);
    text_free(&words);
    return status;
}

void dw_trainer_bytes(const dw_trainer *trainer, uint64_t *kept, uint64_t *workspace) {
    *kept = 0;
    *workspace = dw_session_workspace_bytes(trainer->micro) + (trainer->update != NULL ? dw_session_workspace_bytes(trainer->update) : 0);
    for (int i = 0; i < train_count(trainer); i++) {
        train_kept state;
        uint64_t bytes = 0;
        if (train_at(trainer, i, &state) == DW_OK && dw_tensor_bytes(trainer->context, &state.state.tensor, &bytes) == DW_OK) *kept += bytes;
    }
}
