/* Fuzzes compiled models: any bytes are refused with a message, or the model opens and makes a session. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "deepwell/deepwell.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void open_and_prepare(dw_context *context, const char *path) {
    dw_model *model;
    dw_session *session;
    dw_status status = dw_model_open(context, path, &(dw_model_options){.flags = DW_MODEL_GENERATE}, &model);
    if (status == DW_INTERNAL || (status != DW_OK && dw_context_error(context)[0] == '\0')) {
        fprintf(stderr, "%s\n", dw_context_error(context));
        abort();
    }
    if (status != DW_OK) return;
    if (dw_session_create(context, model, NULL, &session) == DW_OK) dw_session_destroy(session);
    dw_model_destroy(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    char path[64];
    dw_context *context;
    int file = memfd_create("fuzz", 0);
    if (file < 0) return 0;
    for (size_t at = 0; at < length;) {
        ssize_t wrote = write(file, bytes + at, length - at);
        if (wrote <= 0) abort();
        at += (size_t)wrote;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (dw_context_create(&(dw_context_options){.threads = 1}, &context) == DW_OK) {
        open_and_prepare(context, path);
        dw_context_destroy(context);
    }
    close(file);
    return 0;
}
