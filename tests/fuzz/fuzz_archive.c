/* Fuzzes whole .pt2 archives: refused with a message, or a graph that passes its checks with its weights in place. The mutator changes the
 * contents of one entry and writes the zip around it anew, so that what is fuzzed lies behind the directory; now and then it changes any bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture/capture.h"
#include "capture/zip.h"
#include "num/num.h"
#include "support/zip_writer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t length, size_t room);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t length, size_t room, unsigned seed);

/* ---- the mutator ---- */

typedef struct dice { uint64_t seed, counter; } dice;

static size_t pick(dice *d, size_t count) { return count > 0 ? (size_t)(num_random(d->seed, d->counter++) % count) : 0; }

static void write_zip(text *out, const zip_archive *archive) {
    zip_writer writer;
    zip_writer_start(&writer, out);
    for (size_t i = 0; i < archive->count; i++) zip_writer_add(&writer, archive->entries[i].name, archive->entries[i].bytes, archive->entries[i].length, NULL);
    zip_writer_finish(&writer);
}

/* piece in place of removed bytes at at; false when there is no room. */
static bool replace(uint8_t *bytes, size_t *length, size_t room, size_t at, size_t removed, const char *piece, size_t size) {
    if (*length - removed + size > room) return false;
    memmove(bytes + at + size, bytes + at + removed, *length - at - removed);
    memcpy(bytes + at, piece, size);
    *length = *length - removed + size;
    return true;
}

static bool is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

/* Some number of the text becomes one that sizes break at. */
static bool change_number(dice *d, uint8_t *bytes, size_t *length, size_t room) {
    static const char *const numbers[] = {"0", "1", "-1", "2", "7", "255", "65536", "2147483647", "2147483648", "4294967296", "-9223372036854775808",
                                          "9223372036854775807", "9223372036854775808", "4611686018427387904", "1e308", "3.5", "null", "\"x\"", "[]", "{}"};
    size_t at = pick(d, *length), end = at;
    while (at < *length && !is_digit(bytes[at])) at++;
    for (end = at; end < *length && is_digit(bytes[end]);) end++;
    if (at == *length) return false;
    const char *number = numbers[pick(d, COUNT_OF(numbers))];
    return replace(bytes, length, room, at, end - at, number, strlen(number));
}

/* The bytes from an opening bracket at or behind at to the one that closes it; 0 when there is none. */
static size_t find_element(const uint8_t *bytes, size_t length, size_t *at) {
    int depth = 0;
    while (*at < length && bytes[*at] != '{' && bytes[*at] != '[') ++*at;
    for (size_t i = *at; i < length; i++) {
        if (bytes[i] == '{' || bytes[i] == '[') depth++;
        if (bytes[i] == '}' || bytes[i] == ']') depth--;
        if (depth == 0) return i + 1 - *at;
    }
    return 0;
}

/* One object or array of the text becomes a copy of another. */
static bool change_element(dice *d, uint8_t *bytes, size_t *length, size_t room) {
    size_t to = pick(d, *length), from = pick(d, *length);
    size_t removed = find_element(bytes, *length, &to), size = find_element(bytes, *length, &from);
    if (removed == 0 || size == 0) return false;
    char *piece = malloc(size);
    if (piece == NULL) return false;
    memcpy(piece, bytes + from, size);
    bool changed = replace(bytes, length, room, to, removed, piece, size);
    free(piece);
    return changed;
}

/* The contents of one entry, the texts more often; NULL when there is no memory. */
static uint8_t *change_entry(dice *d, zip_entry *entry, size_t room) {
    uint8_t *bytes = malloc(room);
    if (bytes == NULL) return NULL;
    memcpy(bytes, entry->bytes, entry->length);
    bool changed = false;
    for (size_t tries = 1 + pick(d, 3); entry->length > 0 && tries > 0; tries--) {
        switch (pick(d, 4)) {
        case 0: changed = change_number(d, bytes, &entry->length, room) || changed; break;
        case 1: changed = change_element(d, bytes, &entry->length, room) || changed; break;
        default: break;
        }
    }
    if (!changed) entry->length = LLVMFuzzerMutate(bytes, entry->length, room);
    entry->bytes = bytes;
    return bytes;
}

static size_t change_archive(dw_context *context, arena *arena, dice *d, uint8_t *bytes, size_t length, size_t room) {
    zip_archive archive;
    text made;
    if (pick(d, 16) == 0 || zip_open(context, "fuzz", bytes, length, arena, &archive) != DW_OK || archive.count == 0) return LLVMFuzzerMutate(bytes, length, room);
    zip_entry *entry = &archive.entries[pick(d, archive.count)];
    for (int i = 0; i < 8 && strstr(entry->name, ".json") == NULL; i++) entry = &archive.entries[pick(d, archive.count)];
    uint8_t *changed = change_entry(d, entry, room);
    text_init(&made, context);
    write_zip(&made, &archive);
    if (text_status(&made) == DW_OK && made.length <= room) {
        memcpy(bytes, text_string(&made), made.length);
        length = made.length;
    }
    text_free(&made);
    free(changed);
    return length;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t length, size_t room, unsigned seed) {
    dw_context *context;
    arena arena;
    dice d = {.seed = seed};
    if (dw_context_create(&(dw_context_options){.threads = 1}, &context) != DW_OK) return length;
    arena_init(&arena, context);
    length = change_archive(context, &arena, &d, bytes, length, room);
    arena_free(&arena);
    dw_context_destroy(context);
    return length;
}

/* ---- the target ---- */

static void require(dw_context *context, bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, dw_context_error(context));
    abort();
}

/* The bytes of every weight can be read. */
static unsigned touch(const ir_weights *weights) {
    unsigned sum = 0;
    for (size_t i = 0; i < weights->by_name.count; i++) {
        const dw_tensor *tensor = &((const ir_weight *)weights->by_name.entries[i].value)->tensor;
        if (op_tensor_count(tensor) < 1 || dw_format_is_block(tensor->format)) continue;
        int64_t last = 0;
        for (int axis = 0; axis < tensor->rank; axis++) last += (tensor->dims[axis] - 1) * tensor->strides[axis];
        sum += ((const uint8_t *)tensor->data)[0] + ((const uint8_t *)tensor->data)[last * dw_format_bits(tensor->format) / 8];
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    dw_context *context;
    ir_weights weights;
    ir_graph *graph;
    static volatile unsigned seen;
    if (dw_context_create(&(dw_context_options){.threads = 1}, &context) != DW_OK) return 0;
    ir_weights_init(&weights, context);
    dw_status status = capture_pt2_read(context, "fuzz.pt2", bytes, length, NULL, &weights, &graph);
    require(context, status != DW_INTERNAL, "an archive makes us contradict ourselves");
    if (status == DW_OK) require(context, ir_check(graph) == DW_OK, "a captured graph fails its check");
    else require(context, graph == NULL && strstr(dw_context_error(context), "fuzz.pt2") != NULL, "a refusal that does not name the file");
    seen += touch(&weights);
    ir_graph_destroy(graph);
    ir_weights_free(&weights);
    dw_context_destroy(context);
    return 0;
}
