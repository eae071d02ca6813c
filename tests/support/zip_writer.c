/* Local headers, data, directory, end (PKWARE APPNOTE 6.3.10). */
#include "support/zip_writer.h"

#include <string.h>
#include <libdeflate.h>

static void put(text *out, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        char byte = (char)(i < 8 ? value >> (8 * i) : 0);
        text_add_n(out, &byte, 1);
    }
}

/* What both headers of an entry say, from the version to the lengths of name and extra field. */
static void put_fields(text *out, const char *name, uint32_t checksum, size_t length, const zip_lie *lie) {
    put(out, 0, 4);
    put(out, (uint64_t)lie->method, 2);
    put(out, 0, 4);
    put(out, checksum ^ lie->checksum, 4);
    put(out, length + (uint64_t)lie->claim, 4);
    put(out, length + (uint64_t)lie->claim, 4);
    put(out, strlen(name), 2);
    put(out, 0, 2);
}

void zip_writer_start(zip_writer *writer, text *out) {
    *writer = (zip_writer){.out = out, .base = out->length};
    text_init(&writer->directory, out->context);
}

void zip_writer_add(zip_writer *writer, const char *name, const void *bytes, size_t length, const zip_lie *lie) {
    static const zip_lie truth = {0};
    uint32_t checksum = libdeflate_crc32(0, bytes, length);
    if (lie == NULL) lie = &truth;
    put(&writer->directory, 0x02014b50, 4);
    put(&writer->directory, 0, 2);
    put_fields(&writer->directory, name, checksum, length, lie);
    put(&writer->directory, 0, 10);
    put(&writer->directory, writer->out->length - writer->base + (uint64_t)lie->move, 4);
    text_add(&writer->directory, name);
    put(writer->out, 0x04034b50, 4);
    put_fields(writer->out, name, checksum, length, lie);
    text_add(writer->out, name);
    text_add_n(writer->out, bytes, length);
    writer->count++;
}

void zip_writer_finish(zip_writer *writer) {
    size_t begin = writer->out->length - writer->base;
    text_add_n(writer->out, text_string(&writer->directory), writer->directory.length);
    put(writer->out, 0x06054b50, 4);
    put(writer->out, 0, 4);
    put(writer->out, (uint64_t)writer->count, 2);
    put(writer->out, (uint64_t)writer->count, 2);
    put(writer->out, writer->directory.length, 4);
    put(writer->out, begin, 4);
    put(writer->out, 0, 2);
    text_free(&writer->directory);
}
