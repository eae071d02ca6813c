/* What is read soon (flash.h) is fetched into the second cache, a row at a time, while something else is multiplied. Only files whose names end in an instruction set of x86 include it. */
#ifndef KERNELS_ATTENTION_CPU_FETCH_H
#define KERNELS_ATTENTION_CPU_FETCH_H

#include <immintrin.h>

#include "kernels/attention/cpu/flash.h"
#include "kernels/cpu/simd.h"

/* Row `row` of what is read next, and those from `row` on. false: there is none. */
SIMD_INLINE bool fetch(const flash_next *next, int64_t row) {
    for (; next != NULL && row >= next->rows; next = next->then) row -= next->rows;
    if (next == NULL) return false;
    for (int64_t i = 0; i < next->bytes; i += 64) _mm_prefetch(next->data + row * next->stride + i, _MM_HINT_T1);
    return true;
}
SIMD_INLINE void fetch_rest(const flash_next *next, int64_t row) {
    while (fetch(next, row)) row++;
}

#endif
