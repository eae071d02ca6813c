/* Reads the entries of an archive and writes them again, changed. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "capture/zip.h"
#include "support/archives.h"
#include "support/zip_writer.h"

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

static void write_entry(zip_writer *writer, const zip_entry *entry, const archive_change *change) {
    const zip_lie lie = {.method = change->method, .claim = change->claim, .move = change->move, .checksum = change->checksum};
    const char *slash = strchr(entry->name, '/');
    char name[256];
    text data;
    text_init(&data, writer->out->context);
    write_data(&data, entry, change);
    snprintf(name, sizeof name, "%s", entry->name);
    if (change->rename != NULL) snprintf(name, sizeof name, "%.*s/%s", (int)(slash - entry->name), entry->name, change->rename);
    zip_writer_add(writer, name, text_string(&data), data.length, &lie);
    text_free(&data);
}

void archive_rebuild(dw_context *context, const void *bytes, size_t length, int count, const archive_change *changes, text *made) {
    static const archive_change none = {.name = ""};
    arena arena;
    zip_archive archive;
    zip_writer writer;
    arena_init(&arena, context);
    zip_writer_start(&writer, made);
    assert_int_equal(zip_open(context, "the original", bytes, length, &arena, &archive), DW_OK);
    for (size_t i = 0; i < archive.count; i++) {
        const archive_change *change = find_change(archive.entries[i].name, count, changes);
        if (change != NULL && change->remove) continue;
        write_entry(&writer, &archive.entries[i], change != NULL ? change : &none);
    }
    zip_writer_finish(&writer);
    assert_int_equal(text_status(made), DW_OK);
    arena_free(&arena);
}
