/* Fuzzes fatbins: refused with a message, or text that ends where it says, and machine code that tells a possible number of registers or none; the bytes as machine code, too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/ptx/ptx.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void read_registers(const uint8_t *bytes, size_t length) {
    const cubin_registers found = cubin_find_registers(bytes, length, "test");
    if (found.count < 0 || found.count > 255 || found.limit < 0 || found.limit > 255) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    dw_context *context;
    fatbin_ptx ptx;
    if (dw_context_create(NULL, &context) != DW_OK) return 0;
    dw_status status = fatbin_find_ptx(context, bytes, length, 90, &ptx);
    if (status != DW_OK && dw_context_error(context)[0] == '\0') abort();
    if (status == DW_OK && (ptx.length >= ptx.room || strlen(ptx.text) != ptx.length)) abort();
    if (status == DW_OK && ptx.machine != NULL) read_registers(ptx.machine, ptx.machine_length);
    if (status == DW_OK) fatbin_release(context, &ptx);
    read_registers(bytes, length);
    dw_context_destroy(context);
    return 0;
}
