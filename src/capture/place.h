/* What the readers of weight files share: tensors placed in foreign bytes, checked against them. */
#ifndef CAPTURE_PLACE_H
#define CAPTURE_PLACE_H

#include "ir/ir.h"

/* Bytes from the first to one past the last element of a tensor (data is not read); 0 when it has no elements.
 * false: the sizes or strides are negative or overflow. */
bool place_extent(const dw_tensor *tensor, size_t *bytes);
/* May an element of one lie in the bytes of an element of the other? Neither has negative strides. true for some that only interleave in more than one way. */
bool place_overlaps(const dw_tensor *a, const dw_tensor *b);
/* *aligned = bytes, or a copy of them that weights owns when they are not aligned to align. */
dw_status place_align(ir_weights *weights, const void *bytes, size_t length, size_t align, const void **aligned);
/* Maps a whole file read-only; weights owns the mapping. */
dw_status place_map(dw_context *context, const char *path, ir_weights *weights, file_map *file);
/* Row-major strides for the dims that are set. false: overflow. */
bool place_contiguous(dw_tensor *tensor);

#endif
