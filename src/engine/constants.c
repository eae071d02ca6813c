/* What depends on weights alone is computed once, and again when they change: quantised weights, merged projections, folded tables, packed panels.
 * A constant's key is the expression that it is (plan.h), so the plans of a model share it. */
#include "engine/engine.h"

#include <string.h>

void engine_constants_init(engine_constants *constants, dw_context *context)
{
    *constants = (engine_constants){.context = context};
    arena_init(&constants->arena, context);
    map_init(&constants->by_key, &constants->arena);
    map_init(&constants->on_device, &constants->arena);
}

void engine_constants_free(engine_constants *constants)
{
    for (size_t i = 0; i < constants->by_key.count; i++) {
        engine_constant *constant = constants->by_key.entries[i].value;
        base_release(constants->context, constant->owned, constant->owned_bytes, ENGINE_ALIGN);
    }
    for (size_t i = 0; i < constants->on_device.count; i++) {
        engine_constant *constant = constants->on_device.entries[i].value;
        constants->device->calls->release(constants->device, constant->owned, constant->owned_bytes);
    }
    arena_free(&constants->arena);
}

void engine_constants_move(engine_constants *to, engine_constants *from)
{
    *to = *from;
    to->by_key.arena = to->on_device.arena = &to->arena;
    engine_constants_init(from, from->context);
}

dw_status engine_constants_add(engine_constants *constants, const engine_constant *constant)
{
    engine_constant *kept = arena_new(&constants->arena, 1, sizeof *kept);
    dw_status status = kept ? DW_OK : DW_NO_MEMORY;
    if (status == DW_OK) {
        *kept = *constant;
        kept->key = arena_text(&constants->arena, constant->key);
        status = kept->key ? map_set(&constants->by_key, constant->key, kept) : DW_NO_MEMORY;
    }
    if (status != DW_OK) base_release(constants->context, constant->owned, constant->owned_bytes, ENGINE_ALIGN);
    return status;
}

const engine_constant *engine_constants_find(const engine_constants *constants, const char *key)
{
    const engine_constant *own = map_find(&constants->by_key, key);
    return own != NULL || constants->known == NULL ? own : map_find(&constants->known->by_key, key);
}

const engine_constant *engine_constants_find_there(const engine_constants *constants, const char *key)
{
    const engine_constant *own = map_find(&constants->on_device, key);
    return own != NULL || constants->known == NULL ? own : map_find(&constants->known->on_device, key);
}

static dw_status read_parts(device *device, const dw_tensor *from, const num_parts *parts, const dw_tensor *to)
{
    TRY(device->calls->read(device, to->data, from->data, parts->data_bytes));
    if (parts->scale_bytes > 0) TRY(device->calls->read(device, to->scales, from->scales, parts->scale_bytes));
    if (parts->second_bytes > 0) TRY(device->calls->read(device, to->second, from->second, parts->second_bytes));
    return device->calls->synchronize(device);
}

dw_status engine_constants_fetch(const engine_constants *constants, const char *key, engine_constant *made)
{
    const engine_constant *there = engine_constants_find_there(constants, key);
    if (there == NULL) return base_fail(constants->context, DW_INTERNAL, "constant %s is nowhere", key);
    const dw_tensor *tensor = &there->tensor;
    num_parts parts;
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts))
        return base_fail(constants->context, DW_LIMIT, "the bytes of constant %s overflow", key);
    *made = (engine_constant){.key = key, .bytes = parts.total_bytes, .owned_bytes = parts.total_bytes + 1};
    TRY(base_alloc(constants->context, made->owned_bytes, ENGINE_ALIGN, &made->owned));
    op_tensor_init(&made->tensor, tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, made->owned);
    dw_status status = read_parts(constants->device, tensor, &parts, &made->tensor);
    if (status != DW_OK) base_release(constants->context, made->owned, made->owned_bytes, ENGINE_ALIGN);
    return status;
}
