/* Number formats and tensors in host memory. Does not quantise: ops.h does. */
#ifndef DEEPWELL_FORMAT_H
#define DEEPWELL_FORMAT_H

#include "deepwell/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dw_format {
#define DW_ELEMENT(name, bits, class, exponent, mantissa, bias, infinity, nan, max, doc) DW_FORMAT_##name,
#define DW_BLOCK(name, element, scale, rows, cols, second, doc) DW_FORMAT_##name,
#include "deepwell/format.def"
#undef DW_ELEMENT
#undef DW_BLOCK
    DW_FORMAT_COUNT
} dw_format;

/* How block scales lie in memory. plain: [rows, blocks] row-major. tile128x4: the 512-byte tiles that tcgen05.cp and
 * cuBLASLt read (offset formula: cuBLAS "Block Scaling Factors Layout"), rows padded to 128, blocks to 4, padding zero. */
typedef enum dw_scale_layout { DW_SCALE_plain, DW_SCALE_tile128x4, DW_SCALE_LAYOUT_COUNT } dw_scale_layout;

#define DW_MAX_RANK 8

/* A tensor in memory that somebody else owns. strides count elements; block formats and formats under 8 bits are contiguous
 * (row-major, element 2i of FP4 in the low nibble, FP6 packed little-endian, each row of the last axis starting on a byte).
 * scales and second are NULL for element formats. */
typedef struct dw_tensor {
    dw_format format;
    dw_scale_layout scale_layout;
    int rank;
    int64_t dims[DW_MAX_RANK];
    int64_t strides[DW_MAX_RANK];
    void *data;
    void *scales;   /* one per block, in the format's scale format */
    float *second;  /* NVFP4: one (per tensor) or one per row */
} dw_tensor;

/* A tensor with the name that the export gave it. */
typedef struct dw_named_tensor {
    const char *name;
    dw_tensor tensor;
} dw_named_tensor;

/* "mxfp8"; "?" for a number that is no format. */
DW_API const char *dw_format_name(dw_format format);
/* NOT_FOUND-free lookup: DW_FORMAT_COUNT when no format has this name. */
DW_API dw_format dw_format_find(const char *name);
DW_API int dw_format_is_block(dw_format format);
/* Bits of one element (of a block format: of its elements, scales not counted). */
DW_API int dw_format_bits(dw_format format);

#ifdef __cplusplus
}
#endif
#endif
