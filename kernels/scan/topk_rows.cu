/* topk of short lines, a warp each (topk_rows.cuh).
 *
 * f32, bf16, f16 and integers of at most 32 bits, under any strides; at most 32 results, which the lanes write side by side. Resources: no shared memory. Speed: README.md. */
#include "kernels/scan/scan_cuda.h"
#include "kernels/scan/topk_rows.cuh"

INLINE void topk_rows(const int each, const order_arguments *a) {
    const int lane = (int)threadIdx.x % 32;
    grid_release();
    grid_wait();
    for (int64_t line = item_first() / 32; line < a->nest.count; line += item_step() / 32) {
        int64_t at[3];
        uint32_t keys[TOPK_KEYS];
        nest_offsets(&a->nest, line, 3, at);
#pragma unroll
        for (int e = 0; e < each; e++) keys[e] = e * 32 + lane < a->count ? key_of(&a->x, at[1] + (e * 32 + lane) * a->x_step) ^ (a->descending ? 0 : ~0u) : 0;
        const uint32_t mine = pick_elements(each, keys, (int)a->count, (int)a->length);
        if (lane >= (int)a->length) continue;
        copy_element(&a->values, at[0] + lane * a->values_step, &a->x, at[1] + (int64_t)mine * a->x_step);
        store_int(&a->indices, at[2] + lane * a->indices_step, (int64_t)mine);
    }
}

#define TOPK_ROWS(name, each) \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ order_arguments arguments) { topk_rows(each, &arguments); }
TOPK_ROWS(scan_topk_64, 2)
TOPK_ROWS(scan_topk_128, 4)
TOPK_ROWS(scan_topk_256, 8)
TOPK_ROWS(scan_topk_512, 16)
