/* Constants on a device that has memory of its own: each is brought there once per model, whatever plans read it. */
#include "engine/engine.h"

/* The three parts of a tensor, which may lie apart, into one piece of device memory. */
static dw_status write_parts(device *device, const dw_tensor *from, const num_parts *parts, const dw_tensor *to) {
    TRY(device->calls->write(device, to->data, from->data, parts->data_bytes));
    if (parts->scale_bytes > 0) TRY(device->calls->write(device, to->scales, from->scales, parts->scale_bytes));
    return parts->second_bytes > 0 ? device->calls->write(device, to->second, from->second, parts->second_bytes) : DW_OK;
}

static dw_status bring(engine_constants *constants, const char *key, const dw_tensor *tensor, dw_tensor *there) {
    device *device = constants->device;
    num_parts parts;
    engine_constant *kept = map_find(&constants->on_device, key);
    if (kept != NULL) {
        *there = kept->tensor;
        return DW_OK;
    }
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts))
        return base_fail(constants->context, DW_LIMIT, "the bytes of constant %s overflow", key);
    TRY_NEW(kept, &constants->arena, 1);
    *kept = (engine_constant){.key = key, .bytes = parts.total_bytes, .owned_bytes = parts.total_bytes + 1};
    TRY(device->calls->alloc(device, kept->owned_bytes, &kept->owned));
    dw_status status = map_set(&constants->on_device, key, kept);
    if (status != DW_OK) {
        device->calls->release(device, kept->owned, kept->owned_bytes);
        return status;
    }
    op_tensor_init(&kept->tensor, tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, kept->owned);
    *there = kept->tensor;
    return write_parts(device, tensor, &parts, there);
}

dw_status engine_upload(engine_constants *constants, engine_program *program) {
    const plan *plan = program->plan;
    if (constants->device == NULL) return DW_OK;
    TRY_NEW(program->on_device, &constants->arena, plan->value_count);
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        if (v->place != PLAN_CONSTANT || v->view || v->base != NULL) continue;
        TRY(bring(constants, v->key, &program->constants[i], &program->on_device[i]));
        TRY(base_poll(constants->context));
    }
    return constants->device->calls->synchronize(constants->device);
}
