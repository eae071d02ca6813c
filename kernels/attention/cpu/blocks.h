/* Queries, keys and values in blocks within rows (fp8_1x128, MX, nvfp4), keys in fp8_128x128, too: parts of their rows as numbers. The tensors lie as a whole, so element numbers are row-major. */
#ifndef KERNELS_ATTENTION_CPU_BLOCKS_H
#define KERNELS_ATTENTION_CPU_BLOCKS_H

#include "kernels/attention/cpu/flash.h"
#include "op/op.h"

/* The tensor with the strides that its elements lie by. */
dw_tensor blocks_as_they_lie(const dw_tensor *tensor);
/* count elements from number `from` on, of one row: times scales and second level, in fp32. */
void blocks_floats(const dw_tensor *tensor, int64_t from, int64_t count, float *to);
/* The same of `rows` rows that follow each other, stride apart in to, as bf16, exactly: times scales of MX and nvfp4, whose second level is left out; without those that are fp32 (blocks_has_factors). A
 * row's elements begin with a block of MX or nvfp4. */
void blocks_codes(const flash_pairs *isa, const dw_tensor *tensor, int64_t from, int64_t rows, int64_t count, uint16_t *to, int64_t stride);
/* Are scales numbers that bf16 does not hold, so that they are factors of scores and weights? */
bool blocks_has_factors(dw_format format);
/* Where it has them: the scales of the element's block in `rows` rows that follow each other. */
void blocks_factors(const dw_tensor *tensor, int64_t element, int64_t rows, float *to);
/* The second level; 1 where there is none. */
float blocks_second(const dw_tensor *tensor);

#endif
