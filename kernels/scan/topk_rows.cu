/* topk of short lines, a warp each: routers' choices.
 *
 *     elements become keys of 32 bits that order as they do, lane l holds elements l, l + 32, ..
 *     for each of the result: the largest key of the warp, the first element that has it; it leaves
 *
 * f32, bf16, f16 and integers of at most 32 bits, under any strides; at most 32 results, which the lanes write side by side. Resources: no shared memory. Speed: README.md. */
#include "kernels/gpu/ptx/warp.cuh"
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/scan/scan_cuda.h"

/* Bits that order as the element does: NaN above all numbers, zeros equal. */
INLINE uint32_t key_of(const cuda_array *x, int64_t at) {
    if (is_integer(x->format)) return (uint32_t)load_int(x, at) ^ 1u << 31;
    const float value = element_at(x->format, x->data, at);
    if (value != value) return ~0u;
    const uint32_t bits = (uint32_t)__float_as_int(value == 0 ? 0.0f : value);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

/* EACH keys a lane. What has left has bit e of gone set. */
#define TOPK_ROWS(name, EACH)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ order_arguments arguments) {                   \
        const order_arguments *a = &arguments;                                                                                             \
        const int lane = (int)threadIdx.x % 32;                                                                                            \
        grid_release();                                                                                                                    \
        grid_wait();                                                                                                                       \
        for (int64_t line = item_first() / 32; line < a->nest.count; line += item_step() / 32) {                                           \
            int64_t at[3];                                                                                                                 \
            uint32_t keys[EACH], gone = 0, mine = 0;                                                                                       \
            nest_offsets(&a->nest, line, 3, at);                                                                                           \
            _Pragma("unroll") for (int e = 0; e < EACH; e++) {                                                                             \
                const int place = e * 32 + lane;                                                                                           \
                keys[e] = 0;                                                                                                               \
                if (place >= a->count) gone |= 1u << e;                                                                                    \
                else keys[e] = key_of(&a->x, at[1] + place * a->x_step) ^ (a->descending ? 0 : ~0u);                                       \
            }                                                                                                                              \
            for (int k = 0; k < (int)a->length; k++) {                                                                                     \
                uint32_t best = 0, first = ~0u;                                                                                            \
                _Pragma("unroll") for (int e = 0; e < EACH; e++) best = max(best, gone >> e & 1 ? 0 : keys[e]);                            \
                best = redux_max(best);                                                                                                    \
                _Pragma("unroll") for (int e = EACH - 1; e >= 0; e--) if ((gone >> e & 1) == 0 && keys[e] == best) first = e * 32 + lane;  \
                first = redux_min(first);                                                                                                  \
                if ((int)first % 32 == lane) gone |= 1u << first / 32;                                                                     \
                if (k == lane) mine = first;                                                                                               \
            }                                                                                                                              \
            if (lane >= (int)a->length) continue;                                                                                          \
            copy_element(&a->values, at[0] + lane * a->values_step, &a->x, at[1] + (int64_t)mine * a->x_step);                             \
            store_int(&a->indices, at[2] + lane * a->indices_step, (int64_t)mine);                                                         \
        }                                                                                                                                  \
    }
TOPK_ROWS(scan_topk_64, 2)
TOPK_ROWS(scan_topk_128, 4)
TOPK_ROWS(scan_topk_256, 8)
TOPK_ROWS(scan_topk_512, 16)
