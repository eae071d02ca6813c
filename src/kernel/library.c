/* The libraries of vendors that kernels may call. They are loaded by the device; which rows call them, and how, is kernels/library's. */
#include "kernel/kernel.h"

#define LIBRARY(name, ...)                                                         \
    dw_status name##_open(dw_context *context, void *loaded, void **own);          \
    void name##_close(dw_context *context, void *own);                             \
    void name##_tell_version(const void *own, char *words, size_t size);
#include "kernels/library.def"
#undef LIBRARY

static const kernel_library libraries[] = {
#define LIBRARY(name, ...) {#name, CHIP_##name, {__VA_ARGS__}, name##_open, name##_close, name##_tell_version},
#include "kernels/library.def"
#undef LIBRARY
};
_Static_assert(COUNT_OF(libraries) <= KERNEL_LIBRARIES, "a device has room for fewer libraries");

const kernel_library *kernel_library_at(int index) { return index < (int)COUNT_OF(libraries) ? &libraries[index] : NULL; }
