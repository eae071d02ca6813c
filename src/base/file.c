/* Files: read-only mappings of whole files, and writers whose file appears whole or not at all. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITER_BUFFER_BYTES 65536
#define NAMES_TRIED 100

struct file_writer {
    dw_context *context;
    arena arena;              /* holds the writer and its names */
    const char *path, *temporary;
    int descriptor;
    dw_status status;         /* of the first write that failed */
    uint64_t offset;          /* bytes added */
    size_t buffered;
    uint8_t buffer[WRITER_BUFFER_BYTES];
};

/* For a system call that just failed on path. */
static dw_status fail_errno(dw_context *context, const char *verb, const char *path) {
    int error = errno;
    dw_status status = error == ENOENT || error == ENOTDIR ? DW_NOT_FOUND : error == ENOMEM ? DW_NO_MEMORY : DW_IO;
    return base_fail(context, status, "%s: cannot %s: %s", path, verb, strerror(error));
}

static dw_status map_descriptor(dw_context *context, const char *path, int descriptor, file_map *file) {
    struct stat facts;
    if (fstat(descriptor, &facts) != 0) return fail_errno(context, "read its size", path);
    if (!S_ISREG(facts.st_mode)) {
        return base_fail(context, DW_IO, "%s: is a %s, not a file", path, S_ISDIR(facts.st_mode) ? "folder" : "device or pipe");
    }
    if ((uintmax_t)facts.st_size > SIZE_MAX / 2) return base_fail(context, DW_LIMIT, "%s: does not fit the address space", path);
    file->length = (size_t)facts.st_size;
    file->bytes = (const uint8_t *)"";
    if (file->length == 0) return DW_OK;   /* an empty file has no mapping */
    void *mapped = mmap(NULL, file->length, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapped == MAP_FAILED) return fail_errno(context, "map", path);
    file->handle = mapped;
    file->bytes = mapped;
    return DW_OK;
}

dw_status file_map_open(dw_context *context, const char *path, file_map *file) {
    *file = (file_map){0};
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);   /* a pipe without a writer is refused, not waited for */
    if (descriptor < 0) return fail_errno(context, "open", path);
    dw_status status = map_descriptor(context, path, descriptor, file);
    close(descriptor);
    if (status != DW_OK) *file = (file_map){0};
    return status;
}

void file_map_close(file_map *file) {
    if (file->handle != NULL) munmap(file->handle, file->length);
    *file = (file_map){0};
}

static dw_status writer_open(file_writer *writer) {
    struct stat facts;
    if (stat(writer->path, &facts) == 0 && !S_ISREG(facts.st_mode)) {
        return base_fail(writer->context, DW_IO, "%s: is a %s and cannot be replaced by a file; give another name", writer->path,
                         S_ISDIR(facts.st_mode) ? "folder" : "device or pipe");
    }
    for (int attempt = 0; attempt < NAMES_TRIED; attempt++) {
        writer->temporary = arena_printf(&writer->arena, "%s.%ld.%d.tmp", writer->path, (long)getpid(), attempt);
        if (writer->temporary == NULL) return DW_NO_MEMORY;
        writer->descriptor = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (writer->descriptor >= 0) return DW_OK;
        if (errno != EEXIST) return fail_errno(writer->context, "create", writer->path);
    }
    return base_fail(writer->context, DW_IO, "%s: exists, as do %d others like it; remove them", writer->temporary, NAMES_TRIED - 1);
}

static void writer_free(file_writer *writer) {
    arena held = writer->arena;   /* the writer lies in it */
    arena_free(&held);
}

dw_status file_writer_create(dw_context *context, const char *path, file_writer **result) {
    *result = NULL;
    arena arena;
    arena_init(&arena, context);
    file_writer *writer = arena_new(&arena, 1, sizeof *writer);
    if (writer == NULL) return DW_NO_MEMORY;
    writer->context = context;
    writer->arena = arena;
    writer->descriptor = -1;
    writer->path = arena_text(&writer->arena, path);
    dw_status status = writer->path == NULL ? DW_NO_MEMORY : writer_open(writer);
    if (status != DW_OK) {
        writer_free(writer);
        return status;
    }
    *result = writer;
    return DW_OK;
}

static void write_all(file_writer *writer, const uint8_t *bytes, size_t length) {
    while (length > 0 && writer->status == DW_OK) {
        ssize_t written = write(writer->descriptor, bytes, length);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) {
            writer->status = fail_errno(writer->context, "write", writer->path);
            return;
        }
        bytes += written;
        length -= (size_t)written;
    }
}

static void flush_buffer(file_writer *writer) {
    write_all(writer, writer->buffer, writer->buffered);
    writer->buffered = 0;
}

dw_status file_writer_add(file_writer *writer, const void *bytes, size_t length) {
    writer->offset += length;
    if (length > WRITER_BUFFER_BYTES - writer->buffered) flush_buffer(writer);
    if (length > WRITER_BUFFER_BYTES) {
        write_all(writer, bytes, length);
    } else if (length > 0) {
        memcpy(writer->buffer + writer->buffered, bytes, length);
        writer->buffered += length;
    }
    return writer->status;
}

dw_status file_writer_pad(file_writer *writer, size_t align) {
    static const uint8_t zeros[256];
    size_t over = align == 0 ? 0 : (size_t)(writer->offset % align);
    for (size_t left = over == 0 ? 0 : align - over; left > 0;) {
        size_t length = left < sizeof zeros ? left : sizeof zeros;
        TRY(file_writer_add(writer, zeros, length));
        left -= length;
    }
    return DW_OK;
}

uint64_t file_writer_offset(const file_writer *writer) { return writer->offset; }

dw_status file_writer_commit(file_writer *writer) {
    flush_buffer(writer);
    dw_status status = writer->status;
    if (status == DW_OK && fsync(writer->descriptor) != 0) status = fail_errno(writer->context, "flush", writer->path);
    if (close(writer->descriptor) != 0 && status == DW_OK) status = fail_errno(writer->context, "close", writer->path);
    if (status == DW_OK && rename(writer->temporary, writer->path) != 0) {
        status = fail_errno(writer->context, "rename its temporary file to it", writer->path);
    }
    if (status != DW_OK) unlink(writer->temporary);
    writer_free(writer);
    return status;
}

void file_writer_abandon(file_writer *writer) {
    if (writer == NULL) return;
    close(writer->descriptor);
    unlink(writer->temporary);
    writer_free(writer);
}
