/* Writes zip archives by hand: local headers, data, directory, end. Checksums are zero: the reader under test does not look at them. */
#include "support/support.h"

#include <string.h>

#include "capture/zip.h"
#include "support/archives.h"

static void put(text *out, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        char byte = (char)(i < 8 ? value >> (8 * i) : 0);
        text_add_n(out, &byte, 1);
    }
}

static const archive_change *find_change(const char *name, int count, const archive_change *changes) {
    const char *slash = strchr(name, '/');
    for (int i = 0; i < count; i++) {
        if (strcmp(changes[i].name, slash != NULL ? slash + 1 : name) == 0) return &changes[i];
    }
    return NULL;
}

/* The entry's bytes after its change. */
static void write_data(text *out, const zip_entry *entry, const archive_change *change) {
    const char *bytes = (const char *)entry->bytes;
    if (change->contents != NULL) {
        text_add(out, change->contents);
        return;
    }
    if (change->find == NULL) {
        text_add_n(out, bytes, entry->length);
        return;
    }
    size_t at = 0, length = strlen(change->find);
    while (at + length <= entry->length && memcmp(bytes + at, change->find, length) != 0) at++;
    if (at + length > entry->length) fail_msg("'%s' has no '%s'", entry->name, change->find);
    text_add_n(out, bytes, at);
    text_add(out, change->put);
    text_add_n(out, bytes + at + length, entry->length - at - length);
}

/* What both headers of an entry say, from the version to the lengths of name and extra field. */
static void write_fields(text *out, const archive_change *change, size_t length, const char *name) {
    put(out, 0, 2);
    put(out, 0, 2);
    put(out, (uint64_t)change->method, 2);
    put(out, 0, 8);
    put(out, length + (size_t)change->claim, 4);
    put(out, length + (size_t)change->claim, 4);
    put(out, strlen(name), 2);
    put(out, 0, 2);
}

static void write_entry(text *out, text *directory, const zip_entry *entry, const archive_change *change) {
    text data;
    char name[256];
    const char *slash = strchr(entry->name, '/');
    size_t begin = out->length;
    text_init(&data, out->context);
    write_data(&data, entry, change);
    snprintf(name, sizeof name, "%s", entry->name);
    if (change->rename != NULL) snprintf(name, sizeof name, "%.*s/%s", (int)(slash - entry->name), entry->name, change->rename);
    put(out, 0x04034b50, 4);
    write_fields(out, change, data.length, name);
    text_add(out, name);
    text_add_n(out, text_string(&data), data.length);
    put(directory, 0x02014b50, 4);
    put(directory, 0, 2);
    write_fields(directory, change, data.length, name);
    put(directory, 0, 10);
    put(directory, begin + (size_t)change->move, 4);
    text_add(directory, name);
    text_free(&data);
}

void archive_rebuild(dw_context *context, const void *bytes, size_t length, int count, const archive_change *changes, text *made) {
    static const archive_change none = {.name = ""};
    arena arena;
    zip_archive archive;
    text directory;
    int entries = 0;
    arena_init(&arena, context);
    text_init(&directory, context);
    assert_int_equal(zip_open(context, "the original", bytes, length, &arena, &archive), DW_OK);
    for (size_t i = 0; i < archive.count; i++) {
        const archive_change *change = find_change(archive.entries[i].name, count, changes);
        if (change != NULL && change->remove) continue;
        write_entry(made, &directory, &archive.entries[i], change != NULL ? change : &none);
        entries++;
    }
    size_t begin = made->length;
    text_add_n(made, text_string(&directory), directory.length);
    put(made, 0x06054b50, 4);
    put(made, 0, 4);
    put(made, (uint64_t)entries, 2);
    put(made, (uint64_t)entries, 2);
    put(made, directory.length, 4);
    put(made, begin, 4);
    put(made, 0, 2);
    assert_int_equal(text_status(made), DW_OK);
    text_free(&directory);
    arena_free(&arena);
}
