/* Named tensors in host memory and the storages they lie in. Does not read files: who does hands the storage over. */
#include "ir/internal.h"

#include <inttypes.h>
#include <string.h>

#define WEIGHT_ALIGN 64

typedef struct owned_memory { dw_context *context; void *memory; size_t bytes; } owned_memory;

static void release_memory(void *owner) {
    owned_memory *owned = owner;
    base_release(owned->context, owned->memory, owned->bytes, WEIGHT_ALIGN);
}

void ir_weights_init(ir_weights *weights, dw_context *context) {
    *weights = (ir_weights){.context = context};
    arena_init(&weights->arena, context);
    map_init(&weights->by_name, &weights->arena);
}

void ir_weights_free(ir_weights *weights) {
    for (size_t i = weights->storage_count; i-- > 0;) {
        if (weights->storages[i].release != NULL) weights->storages[i].release(weights->storages[i].owner);
    }
    arena_free(&weights->arena);
    ir_weights_init(weights, weights->context);
}

dw_status ir_weights_create(dw_context *context, ir_weights **weights) {
    void *memory;
    *weights = NULL;
    TRY(base_alloc(context, sizeof **weights, _Alignof(ir_weights), &memory));
    *weights = memory;
    ir_weights_init(*weights, context);
    return DW_OK;
}

void ir_weights_destroy(ir_weights *weights) {
    if (weights == NULL) return;
    ir_weights_free(weights);
    base_release(weights->context, weights, sizeof *weights, _Alignof(ir_weights));
}

dw_status ir_weights_own(ir_weights *weights, ir_storage storage) {
    ir_storage *grown = arena_grow(&weights->arena, weights->storages, weights->storage_count, &weights->storage_capacity, sizeof storage);
    if (grown == NULL) {
        if (storage.release != NULL) storage.release(storage.owner);
        return DW_NO_MEMORY;
    }
    weights->storages = grown;
    weights->storages[weights->storage_count++] = storage;
    return DW_OK;
}

dw_status ir_weights_add(ir_weights *weights, const char *name, const dw_tensor *tensor, ir_weight **weight) {
    *weight = NULL;
    if (map_find(&weights->by_name, name) != NULL) {
        return base_fail(weights->context, DW_INVALID, "there is a weight named '%s' already; names of weights are unique", name);
    }
    ir_weight *made;
    TRY_NEW(made, &weights->arena, 1);
    made->name = arena_text(&weights->arena, name);
    if (made->name == NULL) return DW_NO_MEMORY;
    made->tensor = *tensor;
    TRY(map_set(&weights->by_name, name, made));
    *weight = made;
    return DW_OK;
}

dw_status ir_weights_new(ir_weights *weights, const char *name, dw_format format, int rank, const int64_t *dims, ir_weight **weight) {
    *weight = NULL;
    num_parts parts;
    if (!num_layout(format, DW_SCALE_plain, rank, dims, &parts)) {
        return base_fail(weights->context, DW_LIMIT, "weight '%s': the size of a tensor of its shape overflows", name);
    }
    owned_memory *owned;
    TRY_NEW(owned, &weights->arena, 1);
    *owned = (owned_memory){.context = weights->context, .bytes = parts.total_bytes > 0 ? parts.total_bytes : WEIGHT_ALIGN};
    TRY(base_alloc(weights->context, owned->bytes, WEIGHT_ALIGN, &owned->memory));
    memset(owned->memory, 0, owned->bytes);
    TRY(ir_weights_own(weights, (ir_storage){owned->memory, owned->bytes, release_memory, owned}));
    dw_tensor tensor;
    if (!op_tensor_init(&tensor, format, DW_SCALE_plain, rank, dims, owned->memory)) {
        return base_fail(weights->context, DW_LIMIT, "weight '%s': the size of a tensor of its shape overflows", name);
    }
    return ir_weights_add(weights, name, &tensor, weight);
}

ir_weight *ir_weights_find(const ir_weights *weights, const char *name) { return map_find(&weights->by_name, name); }

/* ---- seals ---- */

dw_status ir_weights_seal(ir_weights *weights, const ir_seal *seal) {
    ir_seal *grown = arena_grow(&weights->arena, weights->seals, weights->seal_count, &weights->seal_capacity, sizeof *grown);
    if (grown == NULL) return DW_NO_MEMORY;
    weights->seals = grown;
    ir_seal *own = &weights->seals[weights->seal_count];
    *own = *seal;
    own->file = arena_text(&weights->arena, seal->file);
    own->record = arena_text(&weights->arena, seal->record);
    if (own->file == NULL || own->record == NULL) return DW_NO_MEMORY;
    weights->seal_count++;
    return DW_OK;
}

typedef struct checking { const ir_seal *seals; uint64_t *found; } checking;

static void sum_record(void *argument, int64_t i, int worker) {
    const checking *checking = argument;
    const ir_seal *seal = &checking->seals[i];
    (void)worker;
    checking->found[i] = seal->sum_of(seal->bytes, seal->length);
}

dw_status ir_weights_check(ir_weights *weights, pool *pool) {
    enum { TOGETHER = 64 };     /* records, between which somebody may end it */
    uint64_t found[TOGETHER];
    for (size_t i = 0; i < weights->seal_count; i++) {
        const ir_seal *seal = &weights->seals[i];
        if (i % TOGETHER == 0) {
            const size_t left = weights->seal_count - i;
            TRY(base_poll(weights->context));
            pool_run(pool, (int64_t)(left < TOGETHER ? left : TOGETHER), sum_record, &(checking){seal, found});
        }
        if (found[i % TOGETHER] == seal->sum) continue;
        return base_fail(weights->context, DW_CORRUPT, "%s: the %zu bytes of '%s' are not those that were written: their checksum is %08" PRIx64 ", and the file says %08" PRIx64 "; the file is damaged: copy it again, or make it anew",
                         seal->file, seal->length, seal->record, found[i % TOGETHER], seal->sum);
    }
    weights->seal_count = 0;
    return DW_OK;
}
