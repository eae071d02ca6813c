/* quantize into formats whose blocks lie within a row, in one pass: rows in registers (row_parts.cuh), blocks by shuffles (blocks.cuh). Rows whose scales depend on
 * all of the row are held whole; of others parts of up to 8192 elements are worked on apart. Registers and speed: README.md. */
#include "kernels/quantize/blocks.cuh"
#include "kernels/quantize/quantize_rows.h"

INLINE void quantize_part(const int pieces, const int format, const bool searches, const quantize_rows_arguments *a, row_room *room) {
    row_place p = place_part(&a->division);
    second_level second = {1, 1};
    row_values values;
    load_values(pieces, format, row_data(&a->x, format, row_offset(&a->division, &p, 0)), a->x_step, &p, &values);
    if (a->given != 0) {
        second.decode = *(const float *)a->given;
        second.encode = rules_nv_encode_of(second.decode);
        if (blockIdx.x == 0 && threadIdx.x == 0) *(float *)a->out.rows.second = second.decode;
    }
    store_quantized(pieces, format, searches, false, &a->out, &p, &values, second, room);
}

#define ENTRY(name, pieces, format, searches)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS_MOST, 1) name(const __grid_constant__ quantize_rows_arguments arguments) {                   \
        __shared__ row_room room;                                                                                                                       \
        quantize_part(pieces, format, searches, &arguments, &room);                                                                                     \
    }
#define ENTRIES(format)                                                            \
    ENTRY(quantize_rows_##format##_1, 1, CUDA_##format, false)                     \
    ENTRY(quantize_rows_##format##_4, PIECES_MOST, CUDA_##format, false)           \
    ENTRY(quantize_rows_##format##_1_search, 1, CUDA_##format, true)               \
    ENTRY(quantize_rows_##format##_4_search, PIECES_MOST, CUDA_##format, true)

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
