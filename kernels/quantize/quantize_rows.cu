/* quantize into formats whose blocks lie within a row, in one pass: rows in registers (row_parts.cuh), blocks by shuffles (blocks.cuh). Rows whose scales depend on
 * all of the row are held whole; of others parts of up to 8192 elements are worked on apart. Where a scale serves the tensor, its largest magnitude is found by a launch
 * before. Registers and speed: README.md. */
#include "kernels/quantize/blocks.cuh"
#include "kernels/quantize/quantize_rows.h"

INLINE void quantize_part(const int pieces, const int format, const bool searches, const quantize_rows_arguments *a, row_room *room) {
    row_place p = place_part(&a->division);
    second_level second = {1, 1};
    row_values values;
    grid_release();
    grid_wait();
    load_values(pieces, format, row_data(&a->x, format, row_offset(&a->division, &p, 0)), a->x_step, &p, &values);
    if (a->given != 0) {
        second.decode = *(const float *)a->given;
        second.encode = rules_nv_encode_of(second.decode);
        if (blockIdx.x == 0 && threadIdx.x == 0) *(float *)a->out.rows.second = second.decode;
    }
    if (a->amax != 0) {
        float most = __int_as_float(*(const int32_t *)a->amax);
        bool is_first = blockIdx.x == 0 && threadIdx.x == 0;
        if (a->out.format == CUDA_fp8_tensor) {
            float scale = fp8_scale(most), inverse[PIECES_MOST];
            if (is_first) *(float *)a->out.rows.scales = scale;
            EACH_PIECE(c) inverse[c] = fp8_inverse(most);
            store_codes(pieces, CUDA_e4m3, format, false, false, &a->out.rows, &p, &values, inverse);
            return;
        }
        second.encode = rules_nv_encode(most);
        second.decode = 1.0f / second.encode;
        if (is_first) *(float *)a->out.rows.second = second.decode;
    }
    store_quantized(pieces, format, searches, false, &a->out, &p, &values, second, room);
}

/* Magnitudes order as their bits do; a NaN, the largest, counts for FP8 alone. */
INLINE void tensor_amax(const int pieces, const int format, const quantize_rows_arguments *a, row_room *room) {
    row_place p = place_part(&a->division);
    row_values values;
    float most = 0;
    grid_release();
    grid_wait();
    load_values(pieces, format, row_data(&a->x, format, row_offset(&a->division, &p, 0)), a->x_step, &p, &values);
    if (a->out.format == CUDA_fp8_tensor) EACH_PIECE(c) most = max_nan(most, values_amax(format, &values, c));
    else most = largest_without_nan(pieces, format, &values);
    most = row_max(most, p.group, room);
    if (p.cols > 0 && (p.group > 32 ? threadIdx.x == 0 : (threadIdx.x & (p.group - 1)) == 0)) atomicMax((int32_t *)a->amax, __float_as_int(most));
}

#define AMAX_ENTRY(name, pieces, format)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS_MOST, 1) name(const __grid_constant__ quantize_rows_arguments arguments) {                  \
        __shared__ row_room room;                                                                                                                       \
        tensor_amax(pieces, format, &arguments, &room);                                                                                                 \
    }
#define ENTRY(name, pieces, format, searches)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS_MOST, 1) name(const __grid_constant__ quantize_rows_arguments arguments) {                   \
        __shared__ row_room room;                                                                                                                       \
        quantize_part(pieces, format, searches, &arguments, &room);                                                                                     \
    }
#define ENTRIES(format)                                                            \
    AMAX_ENTRY(quantize_rows_##format##_1_amax, 1, CUDA_##format)                  \
    AMAX_ENTRY(quantize_rows_##format##_4_amax, PIECES_MOST, CUDA_##format)        \
    ENTRY(quantize_rows_##format##_1, 1, CUDA_##format, false)                     \
    ENTRY(quantize_rows_##format##_4, PIECES_MOST, CUDA_##format, false)           \
    ENTRY(quantize_rows_##format##_1_search, 1, CUDA_##format, true)               \
    ENTRY(quantize_rows_##format##_4_search, PIECES_MOST, CUDA_##format, true)

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
