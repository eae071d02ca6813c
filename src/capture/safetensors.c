/* safetensors files, read by mapping and written whole. The format: https://huggingface.co/docs/safetensors, "Format".
 * Does not interpret names or metadata: quantised checkpoints are another file's matter. */
#include "capture/capture.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "capture/place.h"

static const struct { const char *name; dw_format format; } dtypes[] = {
    {"BOOL", DW_FORMAT_bool}, {"U8", DW_FORMAT_u8},   {"I8", DW_FORMAT_i8},   {"I16", DW_FORMAT_i16},   {"I32", DW_FORMAT_i32},
    {"I64", DW_FORMAT_i64},   {"F64", DW_FORMAT_f64}, {"F32", DW_FORMAT_f32}, {"F16", DW_FORMAT_f16},   {"BF16", DW_FORMAT_bf16},
    {"F8_E4M3", DW_FORMAT_e4m3}, {"F8_E5M2", DW_FORMAT_e5m2}, {"F8_E8M0", DW_FORMAT_e8m0},
};

#define HEADER_BYTES_MAX (100u << 20)   /* as the reference reader has it */

/* ---- reading ---- */

typedef struct reader {
    dw_context *context;
    const char *source;
    ir_weights *weights;
    const uint8_t *data;        /* what follows the header */
    uint64_t length;
} reader;

/* One tensor's claim to the bytes [begin, end). */
typedef struct claim { uint64_t begin, end; const char *name; } claim;

static dw_status parse_offset(const reader *r, const char *name, const json_t *offsets, size_t index, uint64_t *offset) {
    const json_t *item = json_array_get(offsets, index);
    if (!json_is_integer(item) || json_integer_value(item) < 0 || (uint64_t)json_integer_value(item) > r->length) {
        return base_fail(r->context, DW_CORRUPT, "%s: tensor '%s': data_offsets[%zu] is not an offset within the %llu bytes of data; the file is damaged",
                         r->source, name, index, (unsigned long long)r->length);
    }
    *offset = (uint64_t)json_integer_value(item);
    return DW_OK;
}

static dw_status parse_shape(const reader *r, const char *name, const json_t *shape, dw_tensor *tensor) {
    if (!json_is_array(shape)) return base_fail(r->context, DW_CORRUPT, "%s: tensor '%s' has no shape", r->source, name);
    if (json_array_size(shape) > DW_MAX_RANK) {
        return base_fail(r->context, DW_UNSUPPORTED, "%s: tensor '%s' has %zu axes; at most %d are supported", r->source, name,
                         json_array_size(shape), DW_MAX_RANK);
    }
    tensor->rank = (int)json_array_size(shape);
    for (int i = 0; i < tensor->rank; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return base_fail(r->context, DW_CORRUPT, "%s: tensor '%s': axis %d is not a size", r->source, name, i);
        }
        tensor->dims[i] = json_integer_value(size);
    }
    return DW_OK;
}

static dw_status parse_tensor(const reader *r, const char *name, const json_t *entry, claim *claimed) {
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (dtype == NULL || !json_is_array(offsets) || json_array_size(offsets) != 2) {
        return base_fail(r->context, DW_CORRUPT, "%s: tensor '%s' lacks dtype or data_offsets; the header is damaged", r->source, name);
    }
    size_t row = 0;
    while (row < COUNT_OF(dtypes) && strcmp(dtypes[row].name, dtype) != 0) row++;
    if (row == COUNT_OF(dtypes)) {
        return base_fail(r->context, DW_UNSUPPORTED, "%s: tensor '%s' has dtype %s, which is not supported; convert or remove it", r->source, name, dtype);
    }
    dw_tensor tensor = {.format = dtypes[row].format};
    TRY(parse_shape(r, name, json_object_get(entry, "shape"), &tensor));
    TRY(parse_offset(r, name, offsets, 0, &claimed->begin));
    TRY(parse_offset(r, name, offsets, 1, &claimed->end));
    claimed->name = name;
    size_t bytes;
    if (claimed->end < claimed->begin || !place_contiguous(&tensor) || !place_extent(&tensor, &bytes) || bytes != claimed->end - claimed->begin) {
        return base_fail(r->context, DW_CORRUPT, "%s: tensor '%s': the shape and dtype do not take the bytes %llu to %llu that data_offsets gives it; the header lies",
                         r->source, name, (unsigned long long)claimed->begin, (unsigned long long)claimed->end);
    }
    const void *at;
    TRY(place_align(r->weights, r->data + claimed->begin, bytes, (size_t)dw_format_bits(tensor.format) / 8, &at));
    tensor.data = (void *)at;
    ir_weight *weight;
    return ir_weights_add(r->weights, name, &tensor, &weight);
}

static int compare_claims(const void *a, const void *b) {
    const claim *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Every byte belongs to exactly one tensor, as the format demands. */
static dw_status check_cover(const reader *r, claim *claims, size_t count) {
    if (count > 1) qsort(claims, count, sizeof *claims, compare_claims);
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (claims[i].begin < at) {
            return base_fail(r->context, DW_CORRUPT, "%s: tensor '%s' begins at byte %llu, inside another tensor; the header lies", r->source,
                             claims[i].name, (unsigned long long)claims[i].begin);
        }
        if (claims[i].begin > at) {
            return base_fail(r->context, DW_CORRUPT, "%s: bytes %llu to %llu before tensor '%s' belong to no tensor; the header lies", r->source,
                             (unsigned long long)at, (unsigned long long)claims[i].begin, claims[i].name);
        }
        at = claims[i].end;
    }
    if (at == r->length) return DW_OK;
    return base_fail(r->context, DW_CORRUPT, "%s: %llu bytes after the last tensor belong to none; the header lies", r->source,
                     (unsigned long long)(r->length - at));
}

static dw_status parse_header(const reader *r, json_t *header) {
    arena arena;
    arena_init(&arena, r->context);
    size_t count = 0;
    claim *claims = arena_new(&arena, json_object_size(header), sizeof *claims);
    dw_status status = claims == NULL ? DW_NO_MEMORY : DW_OK;
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry) {
        if (status != DW_OK || strcmp(name, "__metadata__") == 0) continue;
        status = parse_tensor(r, name, entry, &claims[count++]);
    }
    if (status == DW_OK) status = check_cover(r, claims, count);
    arena_free(&arena);
    return status;
}

dw_status safetensors_read(dw_context *context, const char *source, const void *bytes, size_t length, ir_weights *weights) {
    uint64_t header_bytes = 0;
    const uint8_t *at = bytes;
    if (length < 8) return base_fail(context, DW_CORRUPT, "%s: %zu bytes are too few for a safetensors file; it is truncated or something else", source, length);
    for (int i = 0; i < 8; i++) header_bytes |= (uint64_t)at[i] << (8 * i);
    if (header_bytes > length - 8 || header_bytes > HEADER_BYTES_MAX) {
        return base_fail(context, DW_CORRUPT, "%s: the header claims %llu bytes, the file has %zu; it is truncated or no safetensors file", source,
                         (unsigned long long)header_bytes, length);
    }
    json_error_t error;
    json_t *header = json_loadb((const char *)at + 8, (size_t)header_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(header)) {
        json_decref(header);
        return base_fail(context, DW_CORRUPT, "%s: the header is not a JSON object: %s (byte %d); the file is damaged or no safetensors file", source,
                         header == NULL ? error.text : "another value", header == NULL ? error.position : 0);
    }
    reader r = {.context = context, .source = source, .weights = weights, .data = at + 8 + header_bytes, .length = length - 8 - header_bytes};
    dw_status status = parse_header(&r, header);
    json_decref(header);
    return status;
}

dw_status safetensors_open(dw_context *context, const char *path, ir_weights *weights) {
    file_map file;
    TRY(place_map(context, path, weights, &file));
    return safetensors_read(context, path, file.bytes, file.length, weights);
}

/* ---- writing ---- */

static const char *dtype_name(dw_format format) {
    for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
        if (dtypes[i].format == format) return dtypes[i].name;
    }
    return NULL;
}

static size_t element_bytes(const dw_tensor *tensor) { return (size_t)dw_format_bits(tensor->format) / 8; }

/* Elements of wider formats first, so that each tensor is aligned without holes. */
static dw_status order_tensors(dw_context *context, arena *arena, int count, const char *const *names, const dw_tensor *const *tensors, int **order) {
    TRY_NEW(*order, arena, count);
    int placed = 0;
    for (size_t bytes = 8; bytes > 0; bytes /= 2) {
        for (int i = 0; i < count; i++) {
            if (dtype_name(tensors[i]->format) == NULL) {
                return base_fail(context, DW_UNSUPPORTED, "tensor '%s' is %s, which a safetensors file cannot hold; convert it to f32", names[i],
                                 dw_format_name(tensors[i]->format));
            }
            if (element_bytes(tensors[i]) == bytes) (*order)[placed++] = i;
        }
    }
    return DW_OK;
}

static dw_status print_header(dw_context *context, text *header, int count, const int *order, const char *const *names,
                              const dw_tensor *const *tensors, const char *const *metadata) {
    uint64_t at = 0;
    const char *separator = "";
    text_add(header, "{");
    if (metadata != NULL && metadata[0] != NULL) {
        text_add(header, "\"__metadata__\":{");
        for (int i = 0; metadata[i] != NULL; i += 2) {
            text_add(header, i > 0 ? "," : "");
            text_json_string(header, metadata[i]);
            text_add(header, ":");
            text_json_string(header, metadata[i + 1]);
        }
        text_add(header, "}");
        separator = ",";
    }
    for (int i = 0; i < count; i++) {
        const dw_tensor *tensor = tensors[order[i]];
        dw_tensor packed = *tensor;
        size_t bytes;
        if (!place_contiguous(&packed) || !place_extent(&packed, &bytes)) {
            return base_fail(context, DW_LIMIT, "tensor '%s' is too large for a file", names[order[i]]);
        }
        text_add(header, separator);
        text_json_string(header, names[order[i]]);
        text_printf(header, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(tensor->format));
        for (int axis = 0; axis < tensor->rank; axis++) text_printf(header, "%s%lld", axis > 0 ? "," : "", (long long)tensor->dims[axis]);
        text_printf(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + bytes));
        at += bytes;
        separator = ",";
    }
    text_add(header, "}");
    while (header->status == DW_OK && (header->length + 8) % 64 != 0) text_add(header, " ");
    return text_status(header);
}

/* The elements of a strided tensor in row-major order, through a small buffer. */
static dw_status write_strided(file_writer *writer, const dw_tensor *tensor, size_t count) {
    uint8_t buffer[4096];
    size_t element = element_bytes(tensor), held = 0;
    int64_t index[DW_MAX_RANK] = {0};
    const uint8_t *at = tensor->data;
    for (size_t i = 0; i < count; i++) {
        int64_t offset = 0;
        for (int axis = 0; axis < tensor->rank; axis++) offset += index[axis] * tensor->strides[axis];
        memcpy(buffer + held, at + offset * (int64_t)element, element);
        held += element;
        if (held + element > sizeof buffer) {
            TRY(file_writer_add(writer, buffer, held));
            held = 0;
        }
        for (int axis = tensor->rank; axis-- > 0;) {
            if (++index[axis] < tensor->dims[axis]) break;
            index[axis] = 0;
        }
    }
    return held > 0 ? file_writer_add(writer, buffer, held) : DW_OK;
}

static dw_status write_tensor(file_writer *writer, const dw_tensor *tensor) {
    dw_tensor packed = *tensor;
    size_t bytes;
    bool same = place_contiguous(&packed) && place_extent(&packed, &bytes);
    if (!same || bytes == 0) return DW_OK;   /* the header has refused what overflows */
    for (int i = 0; i < tensor->rank; i++) same = same && (tensor->dims[i] == 1 || tensor->strides[i] == packed.strides[i]);
    if (same) return file_writer_add(writer, tensor->data, bytes);
    return write_strided(writer, tensor, bytes / element_bytes(tensor));
}

static dw_status write_file(file_writer *writer, const text *header, int count, const int *order, const dw_tensor *const *tensors) {
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)header->length >> (8 * i));
    TRY(file_writer_add(writer, length, sizeof length));
    TRY(file_writer_add(writer, header->bytes, header->length));
    for (int i = 0; i < count; i++) TRY(write_tensor(writer, tensors[order[i]]));
    return DW_OK;
}

static dw_status write_all(dw_context *context, const char *path, text *header, arena *arena, int count, const char *const *names,
                           const dw_tensor *const *tensors, const char *const *metadata) {
    int *order;
    TRY(order_tensors(context, arena, count, names, tensors, &order));
    TRY(print_header(context, header, count, order, names, tensors, metadata));
    file_writer *writer;
    TRY(file_writer_create(context, path, &writer));
    dw_status status = write_file(writer, header, count, order, tensors);
    if (status == DW_OK) return file_writer_commit(writer);
    file_writer_abandon(writer);
    return status;
}

dw_status safetensors_write(dw_context *context, const char *path, int count, const char *const *names, const dw_tensor *const *tensors,
                            const char *const *metadata) {
    text header;
    arena arena;
    text_init(&header, context);
    arena_init(&arena, context);
    dw_status status = write_all(context, path, &header, &arena, count, names, tensors, metadata);
    if (status != DW_OK && status != DW_CANCELLED) base_fail_at(context, status, "writing %s", path);
    arena_free(&arena);
    text_free(&header);
    return status;
}
