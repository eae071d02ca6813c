/* The structs of DLPack, version 0.8, as its dlpack.h lays them out, and their types beside our formats. */
#ifndef DLPACK_H
#define DLPACK_H

#include <stdint.h>

#include "deepwell/format.h"

typedef struct dl_device { int32_t type, id; } dl_device;
typedef struct dl_type { uint8_t code, bits; uint16_t lanes; } dl_type;
typedef struct dl_tensor { void *data; dl_device device; int32_t rank; dl_type type; int64_t *shape, *strides; uint64_t offset; } dl_tensor;
typedef struct dl_managed { dl_tensor tensor; void *manager; void (*release)(struct dl_managed *self); } dl_managed;

enum { DL_CPU = 1, DL_CUDA_HOST = 3, DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };

/* tensor.c. Formats that DLPack has no type for (8 bits all) are bytes. */
void core_dl_type(dw_format format, dl_type *type);

#endif
