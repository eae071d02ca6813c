/* Named tensors in safetensors files: how inputs and outputs travel. */
#ifndef DEEPWELL_TENSORS_H
#define DEEPWELL_TENSORS_H

#include "deepwell/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A mapped file. */
typedef struct dw_tensors dw_tensors;

/* CORRUPT names the place when sizes, offsets or types lie. */
DW_API dw_status dw_tensors_open(dw_context *context, const char *file, dw_tensors **tensors);
DW_API void dw_tensors_close(dw_tensors *tensors);
DW_API int dw_tensors_count(const dw_tensors *tensors);
/* Borrowed: valid until the file is closed. */
DW_API dw_named_tensor dw_tensors_at(const dw_tensors *tensors, int index);
/* The file appears whole or not at all. */
DW_API dw_status dw_tensors_write(dw_context *context, const char *file, int count, const dw_named_tensor *tensors);

#ifdef __cplusplus
}
#endif
#endif
