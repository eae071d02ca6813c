/* How many bytes weights take in the form that runs: those of a model, and what a session makes of the states that it trains. */
#include "engine/engine.h"

/* What runs of a plan read of weights, or of trained states where updated says so: each key once, those in seen not again; as they are and packed. */
static dw_status add_weights(const plan *plan, bool updated, map *seen, uint64_t *plain, uint64_t *packed)
{
    for (int i = 0; plan != NULL && i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        dw_tensor tensor;
        num_parts parts;
        if (v->key == NULL || v->updated != updated || v->value->kind == IR_STATE || v->view || !v->read_plain || map_find(seen, v->key) != NULL) continue;
        TRY(op_tensor_bind(plan->context, &v->value->type, plan->typical, NULL, &tensor));   /* constants have no size that varies */
        if (num_layout(tensor.format, tensor.scale_layout, tensor.rank, tensor.dims, &parts)) *plain += parts.total_bytes;
        TRY(map_set(seen, v->key, seen));
    }
    for (int i = plan != NULL ? plan->load_count : 0; plan != NULL && i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        const plan_value *operand = plan_packed_operand(step);
        if (operand == NULL || operand->updated != updated || map_find(seen, step->pack_key) != NULL) continue;
        *packed += step->packing->bytes;
        TRY(map_set(seen, step->pack_key, seen));
    }
    return DW_OK;
}

static dw_status add_generation_weights(const dw_model *model, map *seen, uint64_t *bytes)
{
    TRY(add_weights(model->step.plan, false, seen, bytes, bytes));
    TRY(add_weights(model->paged.plan, false, seen, bytes, bytes));
    return add_weights(model->prelude.plan, false, seen, bytes, bytes);
}

dw_status engine_weigh(const dw_model *model, engine_weights *weights)
{
    arena scratch;
    map of_all, of_generation;
    *weights = (engine_weights){0};
    arena_init(&scratch, model->context);
    map_init(&of_all, &scratch);
    map_init(&of_generation, &scratch);
    dw_status status = add_weights(model->full.plan, false, &of_all, &weights->runs, &weights->runs);
    weights->all = weights->runs;
    if (status == DW_OK) status = add_generation_weights(model, &of_all, &weights->all);
    if (status == DW_OK) status = add_generation_weights(model, &of_generation, &weights->generation);
    arena_free(&scratch);
    return status;
}

dw_status engine_weigh_prepared(const plan *plan, uint64_t *plain, uint64_t *packed)
{
    arena scratch;
    map seen;
    *plain = *packed = 0;
    arena_init(&scratch, plan->context);
    map_init(&seen, &scratch);
    const dw_status status = add_weights(plan, true, &seen, plain, packed);
    arena_free(&scratch);
    return status;
}

uint64_t dw_model_weight_bytes(const dw_model *model)
{
    engine_weights weights;
    return engine_weigh(model, &weights) == DW_OK ? weights.all : 0;
}
