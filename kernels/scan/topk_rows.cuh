/* The choice of a line's first elements by a warp (topk_rows.cu, choose_rows.cu).
 *
 *     elements become keys of 32 bits that order as they do, lane l holds elements l, l + 32, ..
 *     for each of the result: the largest key of the warp, the first element that has it; it leaves */
#ifndef KERNELS_SCAN_TOPK_ROWS_CUH
#define KERNELS_SCAN_TOPK_ROWS_CUH

#include "kernels/gpu/ptx/warp.cuh"
#include "kernels/gpu/rows/row_parts.cuh"

enum { TOPK_KEYS = 16 };          /* a lane, at most */

/* Bits that order as the number does: NaN above all numbers, zeros equal. */
INLINE uint32_t key_of_number(float value) {
    if (value != value) return ~0u;
    const uint32_t bits = (uint32_t)__float_as_int(value == 0 ? 0.0f : value);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}
INLINE uint32_t key_of(const cuda_array *x, int64_t at) { return is_integer(x->format) ? (uint32_t)load_int(x, at) ^ 1u << 31 : key_of_number(element_at(x->format, x->data, at)); }

/* The index of the element that is lane's place in the order. keys: each a lane; where there is no element any. */
INLINE uint32_t pick_elements(const int each, const uint32_t *keys, int count, int length) {
    const int lane = (int)threadIdx.x % 32;
    uint32_t gone = 0, mine = 0;     /* what has left has bit e of gone set */
#pragma unroll
    for (int e = 0; e < each; e++) gone |= (uint32_t)(e * 32 + lane >= count) << e;
    for (int k = 0; k < length; k++) {
        uint32_t best = 0, first = ~0u;
#pragma unroll
        for (int e = 0; e < each; e++) best = max(best, gone >> e & 1 ? 0 : keys[e]);
        best = redux_max(best);
#pragma unroll
        for (int e = each - 1; e >= 0; e--)
            if ((gone >> e & 1) == 0 && keys[e] == best) first = e * 32 + lane;
        first = redux_min(first);
        if ((int)first % 32 == lane) gone |= 1u << first / 32;
        if (k == lane) mine = first;
    }
    return mine;
}

#endif
