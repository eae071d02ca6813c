/* Integers of any format, one by one: indices, rows, ids. */
#ifndef KERNELS_CPU_INTEGERS_H
#define KERNELS_CPU_INTEGERS_H

#include "op/op.h"

/* offset: in elements. */
static inline int64_t cpu_load_integer(const dw_tensor *tensor, int64_t offset) {
    switch (tensor->format) {
    case DW_FORMAT_i64: return ((const int64_t *)tensor->data)[offset];
    case DW_FORMAT_i32: return ((const int32_t *)tensor->data)[offset];
    case DW_FORMAT_i16: return ((const int16_t *)tensor->data)[offset];
    case DW_FORMAT_i8: return ((const int8_t *)tensor->data)[offset];
    case DW_FORMAT_bool: return ((const uint8_t *)tensor->data)[offset] != 0;
    default: return ((const uint8_t *)tensor->data)[offset];
    }
}

#endif
