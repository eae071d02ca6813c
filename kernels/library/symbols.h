/* The functions of a library that was loaded at run time. */
#ifndef KERNELS_LIBRARY_SYMBOLS_H
#define KERNELS_LIBRARY_SYMBOLS_H

#include "kernel/kernel.h"

/* A function of the library's, and where its address goes: bytes from the begin of the structure that holds them. */
typedef struct library_symbol {
    const char *name;
    size_t at;
} library_symbol;

/* Fills functions in. DW_UNSUPPORTED, with the name, where the library lacks one. */
dw_status library_find_symbols(dw_context *context, void *loaded, const library_symbol *symbols, size_t count, void *functions);

#endif
