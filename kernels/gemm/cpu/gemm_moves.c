/* Operands brought into the form of panels and rows, in plain C: what instruction sets have that bring none of their own, and what packs where any may multiply. */
#include <string.h>

#include "kernels/gemm/cpu/gemm.h"

/* By blocks, so that lines of both sides are used while they are near. */
void gemm_turn(const void *from, ptrdiff_t from_bytes, int64_t rows, int64_t cols, void *to, ptrdiff_t to_bytes) {
    enum { BLOCK = 16 };
    for (int64_t c0 = 0; c0 < cols; c0 += BLOCK) {
        int64_t c1 = c0 + BLOCK < cols ? c0 + BLOCK : cols;
        for (int64_t r = 0; r < rows; r++) {
            const uint8_t *source = (const uint8_t *)from + r * from_bytes;
            for (int64_t c = c0; c < c1; c++) memcpy((uint8_t *)to + c * to_bytes + 4 * r, source + 4 * c, 4);
        }
    }
}

void gemm_pair_rows(const uint16_t *even, const uint16_t *odd, int64_t count, uint16_t *to) {
    for (int64_t i = 0; i < count; i++) {
        to[2 * i] = even[i];
        to[2 * i + 1] = odd[i];
    }
}
