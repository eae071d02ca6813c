/* Entry points by name: every call of the driver that there is. */
#include "driver.h"

#include <string.h>

typedef void (*entry_point)(void);

static const struct { const char *name; entry_point function; } entries[] = {
#define CUDA_CALL(name, since, needed, parameters) {"cu" #name, (entry_point)cu##name},
#include "device/cuda.def"
#undef CUDA_CALL
#define SIM_CALL(name, parameters) {"cu" #name, (entry_point)cu##name},
#include "other_calls.def"
#undef SIM_CALL
};

/* "cuMemAlloc" is cuMemAlloc_v2. */
static bool is_called(const char *name, const char *symbol) {
    size_t length = strlen(symbol);
    if (strncmp(name, symbol, length) != 0) return false;
    return name[length] == '\0' || (name[length] == '_' && name[length + 1] == 'v' && name[length + 2] >= '0' && name[length + 2] <= '9');
}

cuda_result cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, cuda_symbol_status *status) {
    (void)version;
    (void)flags;
    if (symbol == NULL || function == NULL) return CUDA_INVALID_VALUE;
    *function = NULL;
    for (size_t i = 0; i < COUNT_OF(entries) && *function == NULL; i++) {
        if (is_called(entries[i].name, symbol)) memcpy(function, &entries[i].function, sizeof *function);
    }
    if (status != NULL) *status = *function != NULL ? CUDA_SYMBOL_FOUND : CUDA_SYMBOL_NOT_FOUND;
    return *function != NULL ? CUDA_OK : CUDA_NOT_FOUND;
}
