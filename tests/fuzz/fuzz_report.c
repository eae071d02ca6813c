/* Fuzzes the facts of a report: any bytes are refused with a message, or printed. */
#include <stdlib.h>

#include "base/base.h"
#include "deepwell/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void count(void *user, const char *words, size_t length) {
    (void)words;
    *(size_t *)user += length;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    static const dw_report_words words[] = {{0}, {.all = 1}, {.lines = 2}};
    dw_context *context;
    if (dw_context_create(NULL, &context) != DW_OK) return 0;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        size_t printed = 0;
        dw_status status = dw_report_print(context, (const char *)bytes, length, &words[i], count, &printed);
        if (status == DW_INTERNAL || (status == DW_OK) != (printed > 0) || (status != DW_OK && dw_context_error(context)[0] == '\0')) abort();
    }
    dw_context_destroy(context);
    return 0;
}
