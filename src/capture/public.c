/* The public face of capture: graphs that keep the weights they were captured with. */
#include <string.h>

#include "capture/capture.h"
#include "capture/place.h"

/* The graph keeps weights from now on; a failure leaves neither. */
static dw_status keep(ir_weights *weights, dw_status status, ir_graph **graph) {
    if (status == DW_OK) {
        (*graph)->weights = (*graph)->own_weights = weights;
        return DW_OK;
    }
    ir_graph_destroy(*graph);
    ir_weights_destroy(weights);
    *graph = NULL;
    return status;
}

static dw_status read_file(dw_context *context, const char *path, ir_weights *weights, ir_graph **graph) {
    file_map file;
    TRY(file_map_open(context, path, &file));
    bool zip = file.length >= 4 && memcmp(file.bytes, "PK\3\4", 4) == 0;
    dw_status status = zip ? capture_pt2(context, path, NULL, weights, graph) : ir_parse(context, path, (const char *)file.bytes, file.length, NULL, graph);   /* whose params dw_graph_bind gives data */
    file_map_close(&file);
    return status;
}

dw_status dw_graph_open(dw_context *context, const char *file, dw_graph **graph) {
    ir_weights *weights;
    *graph = NULL;
    TRY(ir_weights_create(context, &weights));
    return keep(weights, read_file(context, file, weights, graph), graph);
}

/* Any strides will do that reach no byte before data; block formats and those under 8 bits have none. */
static dw_status add_tensor(ir_weights *weights, const char *source, const dw_named_tensor *named, const char *place) {
    const dw_tensor *tensor = &named->tensor;
    ir_weight *weight;
    size_t extent;
    if (tensor->format < 0 || tensor->format >= DW_FORMAT_COUNT || tensor->rank < 0 || tensor->rank > DW_MAX_RANK)
        return base_fail(weights->context, DW_INVALID, "%s: tensor '%s' has format %d and rank %d: neither may lie outside its table", source, named->name,
                         (int)tensor->format, tensor->rank);
    bool plain = !dw_format_is_block(tensor->format) && dw_format_bits(tensor->format) >= 8;
    if (plain && !place_extent(tensor, &extent))
        return base_fail(weights->context, DW_INVALID, "%s: tensor '%s' has a negative size or stride, or its bytes overflow", source, named->name);
    if (plain && extent > 0 && tensor->data == NULL)
        return base_fail(weights->context, DW_INVALID, "%s: tensor '%s' has no memory", source, named->name);
    if (place == NULL) return ir_weights_add(weights, named->name, tensor, &weight);
    if (!op_tensor_is_contiguous(tensor) || (uintptr_t)tensor->data % 16 != 0)
        return base_fail(weights->context, DW_INVALID, "%s: tensor '%s' on %s has gaps, or does not begin at a multiple of 16 bytes: give a contiguous copy", source, named->name, place);
    TRY(ir_weights_add(weights, named->name, tensor, &weight));
    weight->place = arena_text(&weights->arena, place);
    weight->there = tensor->data;
    weight->tensor.data = NULL;
    return weight->place != NULL ? DW_OK : DW_NO_MEMORY;
}

dw_status dw_graph_program(dw_context *context, const char *source, const char *json, size_t length, int tensor_count, const dw_named_tensor *tensors,
                           const char *const *places, dw_graph **graph) {
    ir_weights *weights;
    dw_status status = DW_OK;
    *graph = NULL;
    TRY(ir_weights_create(context, &weights));
    for (int i = 0; i < tensor_count && status == DW_OK; i++) status = add_tensor(weights, source, &tensors[i], places != NULL ? places[i] : NULL);
    if (status == DW_OK) status = capture_program(context, source, json, length, weights, graph);
    return keep(weights, status, graph);
}
