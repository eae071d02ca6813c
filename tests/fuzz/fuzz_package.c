/* Fuzzes compiled models: any bytes are refused with a message, or the model opens and makes a session; alone, and as rank 1 of two, whose mesh may be another than the file's.
 * Once as they are, and once with the hash of the header and the sums of constants put right, so that what is read behind them is reached. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"
#include "deepwell/deepwell.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

/* The other rank does what this one does. */
static int all_gather(void *user, int axis, const void *part, void *parts, size_t bytes) {
    (void)user;
    (void)axis;
    for (int i = 0; i < 2; i++) memcpy((uint8_t *)parts + (size_t)i * bytes, part, bytes);
    return DW_OK;
}

static int all_to_all(void *user, int axis, const void *parts, void *received, size_t bytes) {
    (void)user;
    (void)axis;
    memcpy(received, parts, 2 * bytes);
    return DW_OK;
}

static void open_and_prepare(dw_context *context, const char *path, dw_comm *comm) {
    dw_model *model;
    dw_session *session;
    dw_status status = dw_model_open(context, path, &(dw_model_options){.flags = DW_MODEL_GENERATE, .comm = comm}, &model);
    if (status == DW_INTERNAL || (status != DW_OK && dw_context_error(context)[0] == '\0')) {
        fprintf(stderr, "%s\n", dw_context_error(context));
        abort();
    }
    if (status != DW_OK) return;
    if (dw_session_create(context, model, NULL, &session) == DW_OK) dw_session_destroy(session);
    dw_model_destroy(model);
}

static void open_file(const uint8_t *bytes, size_t length) {
    char path[64];
    dw_context *context;
    int file = memfd_create("fuzz", 0);
    if (file < 0) return;
    for (size_t at = 0; at < length;) {
        ssize_t wrote = write(file, bytes + at, length - at);
        if (wrote <= 0) abort();
        at += (size_t)wrote;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (dw_context_create(&(dw_context_options){.threads = 1}, &context) == DW_OK) {
        dw_comm *comm;
        open_and_prepare(context, path, NULL);
        if (dw_comm_create(context, "cpu", &(dw_comm_options){.rank = 1, .world = 2, .engine = &(dw_collectives){.all_gather = all_gather, .all_to_all = all_to_all}}, &comm) != DW_OK) abort();
        open_and_prepare(context, path, comm);
        dw_comm_destroy(comm);
        dw_context_destroy(context);
    }
    close(file);
}

static uint64_t *sum_at(uint8_t *sums, size_t i) { return (uint64_t *)(void *)(sums + 8 * i); }

/* Of constants whose lines are still such, and lie in the file. */
static void put_sums_right(uint8_t *file, size_t length, size_t data, const char *header) {
    const char *said = strstr(header, "\nsums ");
    size_t count = said != NULL ? strtoull(said + 6, NULL, 10) : 0, sum = 0, ranks = strtoull(header + 6, NULL, 10);
    if (count == 0 || data > length || count > (length - data) / 8 - 1) return;
    uint8_t *sums = file + length - 8 * (count + 1);
    if ((uintptr_t)sums % 8 != 0) return;
    for (const char *line = header; (line = strstr(line, "\nconstant \"")) != NULL; line++) {
        size_t begin, bytes;
        char whose[8];
        const char *rest = strstr(line + 11, "\" p");
        if (rest == NULL || sscanf(rest + 2, "%*s %7s %zu %zu", whose, &begin, &bytes) != 3) return;
        for (size_t rank = 0; rank < (strcmp(whose, "each") == 0 ? ranks : 1) && sum < count; rank++, sum++, begin += (bytes + 63) / 64 * 64) {
            if (begin > length - data || bytes > length - data - begin) return;
            *sum_at(sums, sum) = base_hash(file + data + begin, bytes, 0);
        }
    }
    *sum_at(sums, count) = base_hash(sums, 8 * count, 0);
}

static void put_right(uint8_t *file, size_t length, size_t head, size_t header) {
    char *text = calloc(1, header + 16);
    if (text == NULL) abort();
    memcpy(text, file + head, header);
    put_sums_right(file, length, (head + header + 63) / 64 * 64, text);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    enum { HEAD = 32, HEADER_BYTES = 16, HASH = 24 };   /* src/engine/package.c */
    uint64_t header = 0, hash;
    open_file(bytes, length);
    if (length < HEAD) return 0;
    memcpy(&header, bytes + HEADER_BYTES, sizeof header);
    if (header > length - HEAD) return 0;
    uint8_t *copy = malloc(length);
    if (copy == NULL) abort();
    memcpy(copy, bytes, length);
    hash = base_hash(copy + HEAD, (size_t)header, 0);
    memcpy(copy + HASH, &hash, sizeof hash);
    put_right(copy, length, HEAD, (size_t)header);
    open_file(copy, length);
    free(copy);
    return 0;
}
