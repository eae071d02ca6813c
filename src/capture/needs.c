/* What operators need of sizes and no trace says. Attention has one value and one column of the mask for every key, but PyTorch's shape function
 * for it compares nothing: a trace with caches as inputs has a symbol for the length of each, and no guard between them.
 *
 *     scaled_dot_product_attention(query, key [b,h,k1+1,d], value [b,h,v1+1,d], attn_mask [b,1,1,k0+1])      k1, v1 and k0 are one symbol
 *
 * Where sizes that must be equal differ otherwise, shape inference finds it. */
#include "capture/program.h"

#include <string.h>

enum { DEPTH_MAX = 32 };

/* The recorded sizes of the argument of this name; NULL when there is none. */
static const json_t *sizes_of(const json_t *tensor_values, const json_t *node, const char *name) {
    size_t index;
    json_t *input;
    json_array_foreach(json_object_get(node, "inputs"), index, input) {
        const char *given = json_string_value(json_object_get(input, "name"));
        if (given == NULL || strcmp(given, name) != 0) continue;
        const json_t *arg = json_object_get(input, "arg"), *tensor = json_object_get(arg, "as_tensor");
        if (tensor == NULL) tensor = json_object_get(json_object_get(arg, "as_optional_tensor"), "as_tensor");
        const char *value = json_string_value(json_object_get(tensor, "name"));
        return value == NULL ? NULL : json_object_get(json_object_get(tensor_values, value), "sizes");
    }
    return NULL;
}

/* The size of an axis counted from the end; NULL when there is none. */
static const json_t *from_end(const json_t *sizes, size_t axis) {
    size_t rank = json_array_size(sizes);
    return axis <= rank ? json_array_get(sizes, rank - axis) : NULL;
}

static dw_status read_attention(capture *capture, const json_t *tensor_values, const json_t *node) {
    const json_t *keys = from_end(sizes_of(tensor_values, node, "key"), 2), *values = from_end(sizes_of(tensor_values, node, "value"), 2);
    const json_t *mask = from_end(sizes_of(tensor_values, node, "attn_mask"), 1);
    if (keys == NULL) return DW_OK;
    if (values != NULL) TRY(capture_unite_sizes(capture, keys, values));
    return mask == NULL ? DW_OK : capture_unite_sizes(capture, keys, mask);
}

static dw_status read_graph(capture *capture, const json_t *graph, int depth) {
    const json_t *tensor_values = json_object_get(graph, "tensor_values");
    size_t index, place;
    json_t *node, *input;
    json_array_foreach(json_object_get(graph, "nodes"), index, node) {
        const char *target = json_string_value(json_object_get(node, "target"));
        if (target != NULL && strstr(target, "scaled_dot_product") != NULL) TRY(read_attention(capture, tensor_values, node));
        json_array_foreach(json_object_get(node, "inputs"), place, input) {
            const json_t *inner = json_object_get(json_object_get(json_object_get(input, "arg"), "as_graph"), "graph");
            if (inner != NULL && depth < DEPTH_MAX) TRY(read_graph(capture, inner, depth + 1));
        }
    }
    return DW_OK;
}

dw_status capture_read_needs(capture *capture, const json_t *graph) { return read_graph(capture, graph, 0); }
