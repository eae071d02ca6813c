/* The public face of safetensors files. */
#include "deepwell/tensors.h"

#include "capture/capture.h"

struct dw_tensors {
    dw_context *context;
    ir_weights weights;
};

dw_status dw_tensors_open(dw_context *context, const char *file, dw_tensors **tensors) {
    void *memory;
    *tensors = NULL;
    TRY(base_alloc(context, sizeof(dw_tensors), _Alignof(max_align_t), &memory));
    dw_tensors *opened = memory;
    opened->context = context;
    ir_weights_init(&opened->weights, context);
    dw_status status = safetensors_open(context, file, &opened->weights);
    if (status != DW_OK) {
        dw_tensors_close(opened);
        return status;
    }
    *tensors = opened;
    return DW_OK;
}

void dw_tensors_close(dw_tensors *tensors) {
    if (tensors == NULL) return;
    ir_weights_free(&tensors->weights);
    base_release(tensors->context, tensors, sizeof *tensors, _Alignof(max_align_t));
}

int dw_tensors_count(const dw_tensors *tensors) { return (int)tensors->weights.by_name.count; }

dw_named_tensor dw_tensors_at(const dw_tensors *tensors, int index) {
    const ir_weight *weight = tensors->weights.by_name.entries[index].value;
    return (dw_named_tensor){.name = weight->name, .tensor = weight->tensor};
}

dw_status dw_tensors_write(dw_context *context, const char *file, int count, const dw_named_tensor *tensors) {
    arena arena;
    arena_init(&arena, context);
    const char **names = arena_new(&arena, (size_t)count, sizeof *names);
    const dw_tensor **pointers = arena_new(&arena, (size_t)count, sizeof *pointers);
    dw_status status = names && pointers ? DW_OK : DW_NO_MEMORY;
    for (int i = 0; status == DW_OK && i < count; i++) {
        names[i] = tensors[i].name;
        pointers[i] = &tensors[i].tensor;
    }
    if (status == DW_OK) status = safetensors_write(context, file, count, names, pointers, NULL);
    arena_free(&arena);
    return status;
}
