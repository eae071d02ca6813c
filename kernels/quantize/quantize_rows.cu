/* quantize into formats whose blocks lie within a row, in one pass: rows in registers (row_parts.cuh), blocks by shuffles (blocks.cuh). Rows whose scales depend on
 * all of the row are held whole; of others parts of up to 8192 elements are worked on apart. Registers and speed: README.md. */
#include "kernels/quantize/blocks.cuh"
#include "kernels/quantize/quantize_rows.h"

INLINE void quantize_part(const int pieces, const bool halves, const bool searches, const quantize_rows_arguments *a, int64_t part, row_room *room) {
    row_place p = place_part(&a->division, part);
    second_level second = {1, 1};
    float x[PIECES_MOST][PIECE];
    int64_t at[1];
    part_offsets(&a->division, &p, 1, at);
    load_pieces(pieces, halves, &a->x, at[0], a->x_step, &p, x);
    if (a->given != 0) {
        second.decode = *(const float *)a->given;
        second.encode = rules_nv_encode_of(second.decode);
        if (part == 0 && threadIdx.x == 0) *(float *)a->out.rows.second = second.decode;
    }
    store_part(pieces, searches, &a->out, 0, &p, x, second, room);
}

#define QUANTIZE(name, pieces, halves, searches)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS_MOST, 1) name(const __grid_constant__ quantize_rows_arguments arguments) {                   \
        __shared__ row_room room;                                                                                                                       \
        quantize_part(pieces, halves, searches, &arguments, (int64_t)blockIdx.x * parts_of_block(&arguments.division), &room);                          \
    }

QUANTIZE(quantize_rows_16_1, 1, true, false)
QUANTIZE(quantize_rows_16_4, PIECES_MOST, true, false)
QUANTIZE(quantize_rows_32_1, 1, false, false)
QUANTIZE(quantize_rows_32_4, PIECES_MOST, false, false)
QUANTIZE(quantize_rows_16_1_search, 1, true, true)
QUANTIZE(quantize_rows_16_4_search, PIECES_MOST, true, true)
QUANTIZE(quantize_rows_32_1_search, 1, false, true)
QUANTIZE(quantize_rows_32_4_search, PIECES_MOST, false, true)
