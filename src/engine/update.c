/* Weights with new values: what was computed from them is computed again, beside what there is, which then goes. What does not depend on
 * them stays. Compiles nothing again: where values decided that, it refuses. */
#include "engine/engine.h"

#include <string.h>

typedef struct update {
    dw_model *model;
    arena arena;
    map changed;               /* names of weights -> their ir_weight */
    map stale;                 /* keys of constants that depend on them */
    ir_weight **weights;       /* by tensor */
    ir_weight *before;
} update;

/* ---- which ---- */

/* A weight by its name in the model's graph. */
static ir_weight *find_weight(const ir_graph *graph, const char *name) {
    ir_weight *weight = graph->weights != NULL ? ir_weights_find(graph->weights, name) : NULL;
    if (weight != NULL) return weight;
    const ir_value *value = map_find(&graph->names, name);
    return value != NULL && (value->kind == IR_PARAM || value->kind == IR_STATE) ? value->weight : NULL;
}

static bool same_shape(const dw_tensor *a, const dw_tensor *b) {
    bool same = a->format == b->format && a->scale_layout == b->scale_layout && a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++) same = a->dims[i] == b->dims[i];
    return same;
}

/* A weight in a device's memory is there again. */
static void put_weight(ir_weight *weight, const dw_tensor *tensor) {
    weight->tensor = *tensor;
    if (weight->place == NULL) return;
    weight->there = tensor->data;
    weight->tensor.data = NULL;
}

static dw_status find_all(update *update, int count, const dw_named_tensor *tensors) {
    const dw_model *model = update->model;
    TRY_NEW(update->weights, &update->arena, count);
    TRY_NEW(update->before, &update->arena, count);
    for (int i = 0; i < count; i++) {
        ir_weight *weight = find_weight(model->captured, tensors[i].name);
        if (weight == NULL) return base_fail(model->context, DW_NOT_FOUND, "%s has no weight named '%s'", model->file, tensors[i].name);
        if (weight->decides)
            return base_fail(model->context, DW_MISMATCH, "the values of weight '%s' decided how %s was compiled: compile it again", weight->name, model->file);
        if (!same_shape(&weight->tensor, &tensors[i].tensor))
            return base_fail(model->context, DW_MISMATCH, "weight '%s' has another format or shape than the one before: compile the model again", weight->name);
        if (weight->place != NULL && (!op_tensor_is_contiguous(&tensors[i].tensor) || (uintptr_t)tensors[i].tensor.data % DEVICE_ALIGN != 0))
            return base_fail(model->context, DW_INVALID, "weight '%s' on %s has gaps, or does not begin at a multiple of %d bytes: give a contiguous copy", weight->name, weight->place, DEVICE_ALIGN);
        update->weights[i] = weight;
        update->before[i] = *weight;
        TRY(map_set(&update->changed, weight->name, weight));
    }
    return DW_OK;
}

/* ---- what depends on them ---- */

static dw_status mark_stale(update *update, const engine_program *program) {
    const plan *plan = program->plan;
    bool *stale;
    if (plan == NULL) return DW_OK;
    TRY_NEW(stale, &update->arena, plan->value_count);
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        if (v->key == NULL) continue;
        if (v->value->kind == IR_PARAM) {
            stale[i] = v->value->weight != NULL && map_find(&update->changed, v->value->weight->name) != NULL;
        } else if (v->value->kind == IR_RESULT) {
            const ir_node *node = v->value->node;
            for (int k = 0; k < node->n_in; k++) stale[i] |= ir_in(node, k) != NULL && stale[plan_value_of(ir_in(node, k))->index];
        }
        if (stale[i]) TRY(map_set(&update->stale, v->key, update));
    }
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        if (step->pack_key != NULL && stale[plan_value_of(ir_in(step->node, step->row->packs))->index]) TRY(map_set(&update->stale, step->pack_key, update));
    }
    return DW_OK;
}

/* ---- again ---- */

enum { PROGRAMS = 4 };

/* All constants that stay, without their memory, which is still the old set's. */
static dw_status share(update *update, engine_constants *fresh) {
    const map *old = &update->model->constants.by_key;
    for (size_t i = 0; i < old->count; i++) {
        engine_constant constant = *(const engine_constant *)old->entries[i].value;
        if (map_find(&update->stale, constant.key) != NULL) continue;
        constant.owned = NULL;
        TRY(engine_constants_add(fresh, &constant));
    }
    return DW_OK;
}

static dw_status load_again(update *update, engine_constants *fresh, engine_program *programs) {
    pool *pool;
    TRY(base_pool(update->model->context, &pool));
    TRY(share(update, fresh));
    for (int i = 0; i < PROGRAMS; i++)
        if (programs[i].plan != NULL) TRY(engine_load(fresh, pool, &programs[i]));
    return DW_OK;
}

/* The memory of what stays changes hands; the rest goes with the old set. */
static void adopt_constants(update *update, engine_constants *fresh) {
    const map *old = &update->model->constants.by_key;
    for (size_t i = 0; i < old->count; i++) {
        engine_constant *from = old->entries[i].value;
        if (map_find(&update->stale, from->key) != NULL) continue;
        engine_constant *to = map_find(&fresh->by_key, from->key);
        to->owned = from->owned;
        to->owned_bytes = from->owned_bytes;
        from->owned = NULL;
    }
    engine_constants_free(&update->model->constants);
    engine_constants_move(&update->model->constants, fresh);
}

static dw_status recompute(update *update) {
    dw_model *model = update->model;
    engine_program *const all[PROGRAMS] = {&model->full, &model->step, &model->paged, &model->prelude};
    engine_program made[PROGRAMS];
    engine_constants fresh;
    for (int i = 0; i < PROGRAMS; i++) {
        made[i] = *all[i];
        TRY(mark_stale(update, all[i]));
    }
    engine_constants_init(&fresh, model->context);
    fresh.device = model->constants.device;   /* where everything is brought anew */
    dw_status status = load_again(update, &fresh, made);
    if (status != DW_OK) {
        engine_constants_free(&fresh);
        return status;
    }
    for (int i = 0; i < PROGRAMS; i++) *all[i] = made[i];
    model->updates++;
    adopt_constants(update, &fresh);
    return DW_OK;
}

static dw_status update_all(update *update, int count, const dw_named_tensor *tensors) {
    TRY(find_all(update, count, tensors));
    for (int i = 0; i < count; i++) put_weight(update->weights[i], &tensors[i].tensor);
    dw_status status = update->model->flags & DW_MODEL_PLAN_ONLY ? DW_OK : recompute(update);
    for (int i = 0; i < count && status != DW_OK; i++) *update->weights[i] = update->before[i];
    return status;
}

dw_status dw_model_update(dw_model *model, int tensor_count, const dw_named_tensor *tensors) {
    update update = {.model = model};
    if (model->captured == NULL)
        return base_fail(model->context, DW_UNSUPPORTED, "%s is compiled and holds its weights: update a model of the graph it was made from", model->file);
    arena_init(&update.arena, model->context);
    map_init(&update.changed, &update.arena);
    map_init(&update.stale, &update.arena);
    dw_status status = update_all(&update, tensor_count, tensors);
    arena_free(&update.arena);
    return status;
}
