/* The archive that torch.export.save writes: its records, its weights in place, its program. Format:
 * https://docs.pytorch.org/docs/stable/export/pt2_archive.html and torch/export/pt2_archive/_package.py. Reads no pickles. */
#include "capture/capture.h"

#include <jansson.h>
#include <string.h>

#include "capture/place.h"
#include "capture/program.h"
#include "capture/zip.h"

typedef struct archive {
    dw_context *context;
    const char *path;           /* of the file, for messages */
    arena arena;
    zip_archive zip;
    const char *root;           /* the folder that all records lie in */
    const char *model;
    ir_weights *weights;
    map sealed;                 /* names of the records that have a seal: several weights may lie in one */
} archive;

/* ---- records ---- */

/* The record of that name under the root; NULL when there is none (or no memory for the name). */
static const zip_entry *find_record(archive *archive, const char *folder, const char *name) {
    const char *path = arena_printf(&archive->arena, "%s/%s%s", archive->root, folder, name);
    return path == NULL ? NULL : zip_find(&archive->zip, path);
}

static bool record_is(const zip_entry *entry, const char *text) {
    return entry != NULL && entry->length >= strlen(text) && memcmp(entry->bytes, text, strlen(text)) == 0;
}

static dw_status find_root(archive *archive) {
    const char *first = archive->zip.count > 0 ? archive->zip.entries[0].name : "";
    const char *slash = strchr(first, '/');
    archive->root = arena_text_n(&archive->arena, first, slash != NULL ? (size_t)(slash - first) : 0);
    return archive->root != NULL ? DW_OK : DW_NO_MEMORY;
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* Archives of other kinds, by what only they hold. */
static dw_status check_kind(archive *archive) {
    static const struct { const char *end, *what; } others[] = {
        {"serialized_exported_program.json", "an archive of torch before 2.6; re-save it with torch >= 2.9"},
        {"data.pkl", "a pickle of torch.save or torch.jit.save, not of torch.export.save; export the module with torch >= 2.9"},
    };
    for (size_t i = 0; i < archive->zip.count; i++) {
        for (size_t k = 0; k < COUNT_OF(others); k++) {
            if (ends_with(archive->zip.entries[i].name, others[k].end)) return base_fail(archive->context, DW_UNSUPPORTED, "%s: this is %s", archive->path, others[k].what);
        }
    }
    if (record_is(find_record(archive, "", "archive_format"), "pt2")) return DW_OK;
    return base_fail(archive->context, DW_CORRUPT, "%s: the record archive_format does not say pt2; this is no archive of torch.export.save", archive->path);
}

static dw_status check_records(archive *archive) {
    TRY(check_kind(archive));
    const zip_entry *version = find_record(archive, "", "archive_version"), *order = find_record(archive, "", "byteorder");
    if (version != NULL && !(version->length >= 1 && version->bytes[0] == '0' && (version->length == 1 || version->bytes[1] == '\n'))) {
        return base_fail(archive->context, DW_UNSUPPORTED, "%s: archive_version is '%.*s'; version 0 is supported: re-save with torch >= 2.9", archive->path,
                         (int)(version->length < 16 ? version->length : 16), (const char *)version->bytes);
    }
    if (order == NULL || record_is(order, "little")) return DW_OK;
    return base_fail(archive->context, DW_UNSUPPORTED, "%s: byteorder is '%.*s'; only little-endian archives are supported: re-save it on a little-endian machine",
                     archive->path, (int)(order->length < 16 ? order->length : 16), (const char *)order->bytes);
}

/* Which models/<name>.json is meant. */
static dw_status find_model(archive *archive, const char *wanted, const zip_entry **entry) {
    const char *folder = arena_printf(&archive->arena, "%s/models/", archive->root), *only = NULL;
    if (folder == NULL) return DW_NO_MEMORY;
    int count = 0;
    for (size_t i = 0; i < archive->zip.count; i++) {
        const char *name = archive->zip.entries[i].name;
        if (strncmp(name, folder, strlen(folder)) != 0 || !ends_with(name, ".json")) continue;
        only = arena_text_n(&archive->arena, name + strlen(folder), strlen(name) - strlen(folder) - strlen(".json"));
        if (only == NULL) return DW_NO_MEMORY;
        count++;
    }
    archive->model = wanted != NULL ? wanted : count == 1 ? only : "model";
    const char *file = arena_printf(&archive->arena, "%s.json", archive->model);
    if (file == NULL) return DW_NO_MEMORY;
    *entry = find_record(archive, "models/", file);
    if (*entry != NULL) return DW_OK;
    return base_fail(archive->context, DW_NOT_FOUND, "%s: there is no model '%s' among the %d of the archive", archive->path, archive->model, count);
}

/* ---- weights ---- */

/* A folder of tensors: parameters and buffers, or constants. */
typedef struct payload { const char *folder, *config, *pickle; bool buffers; } payload;

static const payload payloads[] = {
    {"data/weights/", "_weights_config.json", ".pt", false},
    {"data/constants/", "_constants_config.json", ".pt", true},
};

static dw_status bad_weight(const archive *archive, dw_status status, const char *name, const char *why) {
    return base_fail(archive->context, status, "%s: weight '%s' %s", archive->path, name, why);
}

/* Integers of a TensorMeta: sizes, strides. */
static bool read_integers(const json_t *list, int count, int64_t *values) {
    if (!json_is_array(list) || json_array_size(list) != (size_t)count) return false;
    for (int i = 0; i < count; i++) {
        const json_t *value = json_object_get(json_array_get(list, (size_t)i), "as_int");
        if (!json_is_integer(value)) return false;
        values[i] = json_integer_value(value);
    }
    return true;
}

/* Formats that have no row here are left out: an error only when the program uses the tensor. */
static dw_status read_meta(const archive *archive, const char *name, const json_t *meta, dw_tensor *tensor, int64_t *offset, bool *known) {
    const json_t *sizes = json_object_get(meta, "sizes"), *strides = json_object_get(meta, "strides");
    const json_t *at = json_object_get(json_object_get(meta, "storage_offset"), "as_int");
    *known = false;
    if (!json_is_array(sizes)) return bad_weight(archive, DW_CORRUPT, name, "has no sizes; the archive is damaged");
    if (json_array_size(sizes) > DW_MAX_RANK) return DW_OK;
    json_int_t dtype = json_integer_value(json_object_get(meta, "dtype"));
    *tensor = (dw_tensor){.format = dtype == CAPTURE_COMPLEX64 ? DW_FORMAT_f32 : capture_format_of(dtype), .rank = (int)json_array_size(sizes)};
    if (tensor->format == DW_FORMAT_COUNT) return DW_OK;
    if (!read_integers(sizes, tensor->rank, tensor->dims)) return bad_weight(archive, DW_CORRUPT, name, "has sizes that are no integers; the archive is damaged");
    if (strides != NULL && !json_is_null(strides)) {
        if (!read_integers(strides, tensor->rank, tensor->strides)) return bad_weight(archive, DW_CORRUPT, name, "has strides that are no integers; the archive is damaged");
    } else if (!place_contiguous(tensor)) {
        return bad_weight(archive, DW_CORRUPT, name, "has sizes whose product overflows; the archive is damaged");
    }
    *offset = json_is_integer(at) ? json_integer_value(at) : 0;
    *known = true;
    return DW_OK;
}

/* The tensor over its storage, every element within it. */
static dw_status place_tensor(archive *archive, const char *name, const zip_entry *storage, dw_tensor *tensor, int64_t offset, const void **read_from) {
    size_t element = (size_t)dw_format_bits(tensor->format) / 8, extent, begin, end;
    bool fits = offset >= 0 && place_extent(tensor, &extent) && base_mul_size((size_t)offset, element, &begin) && base_add_size(begin, extent, &end);
    if (!fits || (extent > 0 && end > storage->length)) {
        return base_fail(archive->context, DW_CORRUPT, "%s: weight '%s' reaches beyond its record '%s' of %zu bytes; the archive is damaged or was saved from fake tensors",
                         archive->path, name, storage->name, storage->length);
    }
    if (extent == 0) begin = 0;
    const void *aligned;
    TRY(place_align(archive->weights, storage->bytes + begin, extent, element, &aligned));
    tensor->data = (void *)aligned;
    *read_from = aligned != storage->bytes + begin ? storage->bytes + begin : NULL;
    return DW_OK;
}

static dw_status add_tensor(archive *archive, const payload *payload, const char *name, const json_t *entry, const zip_entry *storage, dw_tensor *tensor, int64_t offset) {
    ir_weight *weight;
    const void *read_from = NULL;
    TRY(place_tensor(archive, name, storage, tensor, offset, &read_from));
    TRY(ir_weights_add(archive->weights, name, tensor, &weight));
    weight->read_from = read_from;
    weight->buffer = payload->buffers || !json_is_true(json_object_get(entry, "is_param"));
    return DW_OK;
}

/* Pairs of fp32 become two weights, every second number of the storage each. */
static dw_status add_complex(archive *archive, const payload *payload, const char *name, const json_t *entry, const zip_entry *storage, dw_tensor *tensor, int64_t offset) {
    bool fits = base_mul_i64(offset, 2, &offset);
    for (int i = 0; i < tensor->rank; i++) fits = fits && base_mul_i64(tensor->strides[i], 2, &tensor->strides[i]);
    if (!fits || offset == INT64_MAX) return bad_weight(archive, DW_CORRUPT, name, "has strides that overflow; the archive is damaged");
    for (int part = 0; part < 2; part++) {
        const char *part_name = arena_printf(&archive->arena, "%s%s", name, capture_part_names[part]);
        if (part_name == NULL) return DW_NO_MEMORY;
        TRY(add_tensor(archive, payload, part_name, entry, storage, tensor, offset + part));
    }
    return DW_OK;
}

static dw_status seal_record(archive *archive, const zip_entry *record) {
    if (map_find(&archive->sealed, record->name) != NULL) return DW_OK;
    TRY(map_set(&archive->sealed, record->name, archive));
    return ir_weights_seal(archive->weights, &(ir_seal){archive->path, record->name, record->bytes, record->length, record->checksum, zip_sum_of});
}

static dw_status add_weight(archive *archive, const payload *payload, const char *name, const json_t *entry) {
    const char *path = json_string_value(json_object_get(entry, "path_name"));
    const json_t *meta = json_object_get(entry, "tensor_meta");
    if (json_is_true(json_object_get(entry, "use_pickle"))) {
        return bad_weight(archive, DW_UNSUPPORTED, name, "is a pickled tensor subclass; unwrap it (torch.nn.utils.parametrize or torchao's unwrap_tensor_subclass) and export again");
    }
    if (path == NULL) return bad_weight(archive, DW_CORRUPT, name, "names no record; the archive is damaged");
    if (!json_is_object(meta)) return DW_OK;        /* a custom object: an error where the program uses it */
    const zip_entry *storage = find_record(archive, payload->folder, path);
    if (storage == NULL) return base_fail(archive->context, DW_CORRUPT, "%s: weight '%s' lies in the record '%s', which the archive lacks", archive->path, name, path);
    dw_tensor tensor;
    int64_t offset;
    bool known;
    TRY(read_meta(archive, name, meta, &tensor, &offset, &known));
    if (!known) return DW_OK;
    TRY(seal_record(archive, storage));
    bool is_complex = json_integer_value(json_object_get(meta, "dtype")) == CAPTURE_COMPLEX64;
    return is_complex ? add_complex(archive, payload, name, entry, storage, &tensor, offset) : add_tensor(archive, payload, name, entry, storage, &tensor, offset);
}

static dw_status read_payload(archive *archive, const payload *payload) {
    const char *file = arena_printf(&archive->arena, "%s%s", archive->model, payload->config);
    const char *pickle = arena_printf(&archive->arena, "%s%s", archive->model, payload->pickle);
    if (file == NULL || pickle == NULL) return DW_NO_MEMORY;
    const zip_entry *entry = find_record(archive, payload->folder, file);
    if (entry == NULL && find_record(archive, payload->folder, pickle) != NULL) {
        return base_fail(archive->context, DW_UNSUPPORTED, "%s: %s%s is a pickle, as torch before 2.9 wrote it; re-save with torch >= 2.9", archive->path, payload->folder, pickle);
    }
    if (entry == NULL) return base_fail(archive->context, DW_CORRUPT, "%s: the record %s%s is missing; the archive is damaged or was saved with torch < 2.9", archive->path, payload->folder, file);
    TRY(zip_check(archive->context, archive->path, entry));
    json_error_t error;
    json_t *config = json_loadb((const char *)entry->bytes, entry->length, JSON_REJECT_DUPLICATES, &error);
    const json_t *tensors = json_object_get(config, "config");
    dw_status status = DW_OK;
    if (!json_is_object(tensors)) {
        status = base_fail(archive->context, DW_CORRUPT, "%s: the record %s%s is not a payload configuration: %s; the archive is damaged", archive->path, payload->folder,
                           file, config == NULL ? error.text : "no config");
    }
    const char *name;
    json_t *tensor;
    json_object_foreach((json_t *)tensors, name, tensor) {
        if (status == DW_OK) status = add_weight(archive, payload, name, tensor);
    }
    json_decref(config);
    return status;
}

/* ---- the whole ---- */

static dw_status add_notes(archive *archive, ir_graph *graph) {
    const zip_entry *tokenizer = find_record(archive, "extra/", "tokenizer");
    if (tokenizer == NULL) return DW_OK;
    TRY(zip_check(archive->context, archive->path, tokenizer));
    size_t length = tokenizer->length;
    while (length > 0 && (tokenizer->bytes[length - 1] == '\n' || tokenizer->bytes[length - 1] == ' ')) length--;
    char *text = arena_text_n(&graph->arena, (const char *)tokenizer->bytes, length);
    return text != NULL ? map_set(&graph->notes, "tokenizer", text) : DW_NO_MEMORY;
}

static dw_status read_archive(archive *archive, const capture_options *options, const void *bytes, size_t length, ir_graph **graph) {
    const zip_entry *program;
    TRY(zip_open(archive->context, archive->path, bytes, length, &archive->arena, &archive->zip));
    TRY(find_root(archive));
    TRY(check_records(archive));
    TRY(find_model(archive, options != NULL ? options->model : NULL, &program));
    TRY(zip_check(archive->context, archive->path, program));
    for (size_t i = 0; i < COUNT_OF(payloads); i++) TRY(read_payload(archive, &payloads[i]));
    TRY(capture_program(archive->context, archive->path, (const char *)program->bytes, program->length, archive->weights, graph));
    dw_status status = add_notes(archive, *graph);
    if (status == DW_OK) return DW_OK;
    ir_graph_destroy(*graph);
    *graph = NULL;
    return status;
}

dw_status capture_pt2_read(dw_context *context, const char *source, const void *bytes, size_t length, const capture_options *options,
                           ir_weights *weights, ir_graph **graph) {
    archive archive = {.context = context, .path = source, .weights = weights};
    *graph = NULL;
    arena_init(&archive.arena, context);
    map_init(&archive.sealed, &archive.arena);
    dw_status status = read_archive(&archive, options, bytes, length, graph);
    bool is_placed = status == DW_OK || status == DW_NO_MEMORY || strstr(dw_context_error(context), source) != NULL;
    if (!is_placed) base_fail_at(context, status, "%s", source);   /* the op reports shapes that do not fit, without the file's name */
    arena_free(&archive.arena);
    return status;
}

dw_status capture_pt2(dw_context *context, const char *path, const capture_options *options, ir_weights *weights, ir_graph **graph) {
    file_map file;
    *graph = NULL;
    TRY(place_map(context, path, weights, &file));
    return capture_pt2_read(context, path, file.bytes, file.length, options, weights, graph);
}
