/* Fuzzes fatbins: refused with a message, or text that ends where it says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/ptx.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    dw_context *context;
    fatbin_ptx ptx;
    if (dw_context_create(NULL, &context) != DW_OK) return 0;
    dw_status status = fatbin_find_ptx(context, bytes, length, 90, &ptx);
    if (status != DW_OK && dw_context_error(context)[0] == '\0') abort();
    if (status == DW_OK && (ptx.length >= ptx.room || strlen(ptx.text) != ptx.length)) abort();
    if (status == DW_OK) fatbin_release(context, &ptx);
    dw_context_destroy(context);
    return 0;
}
