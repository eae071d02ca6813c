#include "kernels/library/symbols.h"

#include <dlfcn.h>
#include <string.h>

dw_status library_find_symbols(dw_context *context, void *loaded, const library_symbol *symbols, size_t count, void *functions) {
    for (size_t i = 0; i < count; i++) {
        void *address = dlsym(loaded, symbols[i].name);
        if (address == NULL) return base_fail(context, DW_UNSUPPORTED, "it has no %s", symbols[i].name);
        memcpy((uint8_t *)functions + symbols[i].at, &address, sizeof address);   /* ISO C converts no object pointer to a function's */
    }
    return DW_OK;
}
