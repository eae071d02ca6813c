/* Rows of groups, from offsets in device memory, and the rows of no group. */
#ifndef KERNELS_GEMM_GROUP_ROWS_CUH
#define KERNELS_GEMM_GROUP_ROWS_CUH

#include "kernels/gpu/plain/device.cuh"
#include "kernels/gemm/epilogue.cuh"

/* The group's rows are [begin, end) of m; false, and a fault: its offset does not lie between the one before it and m, or between 0 and the rows of a padded group. */
INLINE bool rows_of_group(const matmul_groups *groups, int group, int m, int *begin, int *end) {
    const int32_t *offsets = (const int32_t *)groups->offsets;
    const int offset = offsets[group], apart = groups->apart;
    *begin = apart > 0 ? group * apart : group > 0 ? offsets[group - 1] : 0;
    *end = apart > 0 ? *begin + offset : offset;
    if (*begin >= 0 && *end >= *begin && (apart > 0 ? offset <= apart : offset <= m)) return true;
    fault_raise(&groups->fault, CUDA_FAULT_OFFSETS, offset, apart > 0 ? apart : m);
    return false;
}

/* Is the row one of its padded group's? */
INLINE bool is_in_group(const matmul_groups *groups, int row) {
    const int group = row / groups->apart;
    return row - group * groups->apart < ((const int32_t *)groups->offsets)[group];
}

/* Rows that belong to no group become zeros, by one warp of each block. */
INLINE void clear_rest(const matmul_epilogue *e, const matmul_groups *groups, int m) {
    const int64_t row_bytes = e->out_row_stride * (e->out_format == MATMUL_f32 ? 4 : 2);
    const bool padded = groups->apart > 0;
    int from = padded ? 0 : ((const int32_t *)groups->offsets)[groups->end - 1];
    if (!groups->clears || from < 0) return;
#pragma unroll 1
    for (int row = from + blockIdx.x; row < m; row += gridDim.x) {
        if (padded && is_in_group(groups, row)) continue;
        uint8_t *to = (uint8_t *)e->out + row * row_bytes;
        if (e->by_tma)
            for (int64_t i = threadIdx.x % 32 * 16; i < row_bytes; i += 512) *(uint4 *)(to + i) = make_uint4(0, 0, 0, 0);
        else
            for (int64_t i = threadIdx.x % 32 * 2; i < row_bytes; i += 64) *(uint16_t *)(to + i) = 0;
    }
}

#endif
