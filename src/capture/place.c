/* Where tensors lie in foreign bytes: extents without overflow, and copies of the few that are misaligned. */
#include "capture/place.h"

#include <string.h>

typedef struct copy {
    dw_context *context;
    size_t bytes;           /* of the whole allocation, this header included */
} copy;

enum { COPY_HEADER = 64 };

static void release_copy(void *owner) {
    copy *made = owner;
    base_release(made->context, made, made->bytes, COPY_HEADER);
}

bool place_extent(const dw_tensor *tensor, size_t *bytes) {
    int64_t last = 0, count = 1;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->dims[i] < 0 || tensor->strides[i] < 0 || !base_mul_i64(count, tensor->dims[i], &count)) return false;
    }
    *bytes = 0;
    if (count == 0) return true;
    for (int i = 0; i < tensor->rank; i++) {
        int64_t step;
        if (!base_mul_i64(tensor->dims[i] - 1, tensor->strides[i], &step) || !base_add_i64(last, step, &last)) return false;
    }
    if (last == INT64_MAX) return false;
    return base_mul_size((size_t)last + 1, (size_t)dw_format_bits(tensor->format) / 8, bytes);
}

bool place_contiguous(dw_tensor *tensor) {
    int64_t stride = 1;
    for (int i = tensor->rank; i-- > 0;) {
        tensor->strides[i] = stride;
        if (tensor->dims[i] < 0 || !base_mul_i64(stride, tensor->dims[i] > 0 ? tensor->dims[i] : 1, &stride)) return false;
    }
    return true;
}

static size_t common_divisor(size_t a, size_t b) {
    while (b != 0) {
        size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Of the distances in bytes between elements. */
static size_t common_distance(const dw_tensor *tensor, size_t distance) {
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->dims[i] > 1) distance = common_divisor((size_t)tensor->strides[i] * ((size_t)dw_format_bits(tensor->format) / 8), distance);
    }
    return distance;
}

/* Elements begin at first + n * distance, later + n * distance: apart where those of one end before those of the other begin. */
bool place_overlaps(const dw_tensor *a, const dw_tensor *b) {
    size_t a_bytes, b_bytes;
    if (a->data == NULL || b->data == NULL) return false;
    if (!place_extent(a, &a_bytes) || !place_extent(b, &b_bytes) || a_bytes == 0 || b_bytes == 0) return false;
    if ((uintptr_t)a->data > (uintptr_t)b->data) return place_overlaps(b, a);
    size_t apart = (size_t)((uintptr_t)b->data - (uintptr_t)a->data), distance = common_distance(b, common_distance(a, 0));
    if (apart >= a_bytes) return false;
    if (distance == 0) return true;
    size_t rest = apart % distance, a_width = (size_t)dw_format_bits(a->format) / 8, b_width = (size_t)dw_format_bits(b->format) / 8;
    return rest < a_width || distance - rest < b_width;
}

dw_status place_align(ir_weights *weights, const void *bytes, size_t length, size_t align, const void **aligned) {
    *aligned = bytes;
    if (length == 0 || (uintptr_t)bytes % align == 0) return DW_OK;
    size_t total;
    if (!base_add_size(length, COPY_HEADER, &total)) return base_fail(weights->context, DW_LIMIT, "a tensor of %zu bytes is too large", length);
    void *memory;
    TRY(base_alloc(weights->context, total, COPY_HEADER, &memory));
    copy *made = memory;
    *made = (copy){.context = weights->context, .bytes = total};
    uint8_t *data = (uint8_t *)memory + COPY_HEADER;
    memcpy(data, bytes, length);
    TRY(ir_weights_own(weights, (ir_storage){.bytes = data, .length = length, .release = release_copy, .owner = made}));
    *aligned = data;
    return DW_OK;
}

typedef struct mapping { dw_context *context; file_map file; } mapping;

static void release_mapping(void *owner) {
    mapping *map = owner;
    file_map_close(&map->file);
    base_release(map->context, map, sizeof *map, _Alignof(mapping));
}

dw_status place_map(dw_context *context, const char *path, ir_weights *weights, file_map *file) {
    void *memory;
    TRY(base_alloc(context, sizeof(mapping), _Alignof(mapping), &memory));
    mapping *map = memory;
    *map = (mapping){.context = context};
    dw_status status = file_map_open(context, path, &map->file);
    if (status != DW_OK) {
        base_release(context, map, sizeof *map, _Alignof(mapping));
        return status;
    }
    *file = map->file;
    return ir_weights_own(weights, (ir_storage){.bytes = map->file.bytes, .length = map->file.length, .release = release_mapping, .owner = map});
}
