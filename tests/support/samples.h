/* Inputs on which conversions from fp32 are tested: every boundary between two results of a format with its neighbours in both signs, all
 * bf16 numbers, special values, and then pseudo-random bit patterns, up to any number. */
#ifndef SUPPORT_SAMPLES_H
#define SUPPORT_SAMPLES_H

#include <stdint.h>

#include "deepwell/format.h"

/* How many of a format's samples are not random. */
int64_t samples_fixed_count(dw_format format);
/* The first count samples of an element format of up to 16 bits, the fixed ones first; count is at least the fixed count. */
void samples_fill(dw_format format, float *x, int64_t count);

#endif
