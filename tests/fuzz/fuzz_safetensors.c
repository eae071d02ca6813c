/* Fuzzes safetensors: any bytes are refused with a message, or every tensor lies inside them. */
#include <stdlib.h>

#include "capture/capture.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void touch(const ir_weight *weight) {
    const dw_tensor *tensor = &weight->tensor;
    volatile double sum = 0;
    for (int64_t i = 0, count = op_tensor_count(tensor); i < count && i < 4096; i++) sum += num_load(tensor->format, tensor->data, i);
    if (op_tensor_count(tensor) > 0) sum += num_load(tensor->format, tensor->data, op_tensor_count(tensor) - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    dw_context *context;
    ir_weights weights;
    if (dw_context_create(NULL, &context) != DW_OK) return 0;
    ir_weights_init(&weights, context);
    dw_status status = safetensors_read(context, "fuzz", bytes, length, &weights);
    if (status == DW_INTERNAL || (status != DW_OK && dw_context_error(context)[0] == '\0')) abort();
    for (size_t i = 0; status == DW_OK && i < weights.by_name.count; i++) touch(weights.by_name.entries[i].value);
    ir_weights_free(&weights);
    dw_context_destroy(context);
    return 0;
}
