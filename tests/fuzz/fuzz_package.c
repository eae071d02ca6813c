/* Fuzzes compiled models: any bytes are refused with a message, or the model opens and makes a session; alone, and as rank 1 of two, whose mesh may be another than the file's.
 * Once as they are, and once with the hash of the header put right, so that what is read behind it is reached. */
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
    open_file(copy, length);
    free(copy);
    return 0;
}
