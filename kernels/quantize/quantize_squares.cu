/* quantize into fp8_128x128 in one pass: a thread block to a square of 128 x 128 elements, which it holds in registers (row_parts.cuh), as e4m3 codes under one fp32 scale. Bit for bit as num does it.
 * Squares at the edges of a matrix have fewer rows and columns.
 *
 *     gmem x [128,128] -> reg, 4 pieces of 8 elements a thread -> largest of the thread block, through smem -> scale, codes -> gmem
 *
 * Resources: 512 threads, 64 bytes of shared memory. Speed: README.md. */
#include "kernels/quantize/blocks.cuh"
#include "kernels/quantize/quantize_rows.h"

enum { SIDE = 128, PIECES_OF_ROW = SIDE / PIECE, ROWS_AT_A_TIME = ROW_THREADS_MOST / PIECES_OF_ROW };
static_assert(ROWS_AT_A_TIME * PIECES_MOST == SIDE, "a thread block holds a square");

/* Where a thread works: its rows of the matrix are row, row + ROWS_AT_A_TIME, .. up to rows; its columns begin at place.first. */
typedef struct square_place { row_place place; int64_t matrix; int row, rows; } square_place;

INLINE square_place place_square(const quantize_squares_arguments *a) {
    const uint32_t down = (uint32_t)a->rows + SIDE - 1, across = (uint32_t)a->cols + SIDE - 1, of_matrix = down / SIDE * (across / SIDE), inside = blockIdx.x % of_matrix;
    const int top = (int)(inside / (across / SIDE)) * SIDE, left = (int)(inside % (across / SIDE)) * SIDE;
    square_place s;
    s.matrix = blockIdx.x / of_matrix;
    s.row = top + (int)threadIdx.x / PIECES_OF_ROW, s.rows = min(top + SIDE, a->rows);
    s.place = {0, a->cols, left + (int)threadIdx.x % PIECES_OF_ROW * PIECE, 1};
    return s;
}

/* A piece of a row, zeros behind its end. */
INLINE void load_piece(const int format, uint64_t data, int64_t step, bool in_words, const row_place *p, const int c, row_values *values) {
    row_values one;
    if (!in_words) load_values(1, format, data, step, p, &one);
    else if (format == CUDA_f32) load_pieces(1, format, data, 1, p, one.x);
    else load_words(1, (const uint4 *)data + p->first / PIECE, p, one.words);
    values->words[c] = one.words[0];
    EACH_OF_PIECE(i) values->x[c][i] = one.x[0][i];
}

INLINE void quantize_square(const int format, const quantize_squares_arguments *a, row_room *room) {
    const square_place s = place_square(a);
    const int pieces = PIECES_MOST;
    int64_t at[1];
    row_values values;
    nest_offsets(&a->matrices, s.matrix, 1, at);
    const uint64_t matrix = row_data(&a->x, format, at[0]), row_bytes = (uint64_t)a->row_stride * (format == CUDA_f32 ? 4 : 2);
    const bool in_words = row_bytes % 16 == 0 && lies_in_pieces(matrix, a->x_step, &s.place);
    float most = 0;
    grid_release();
    grid_wait();
    EACH_PIECE(c) {
        row_place p = s.place;
        if (s.row + c * ROWS_AT_A_TIME >= s.rows) p.cols = 0;
        load_piece(format, matrix + (uint64_t)(s.row + c * ROWS_AT_A_TIME) * row_bytes, a->x_step, in_words, &p, c, &values);
    }
    EACH_PIECE(c) most = max_nan(most, values_amax(format, &values, c));
    most = row_max(most, ROW_THREADS_MOST, room);
    if (threadIdx.x == 0) ((float *)a->out.scales)[rows_scale_index(&a->out, s.matrix * a->rows + s.row, s.place.first)] = fp8_scale(most);
    const float inverse[1] = {fp8_inverse(most)};
    EACH_PIECE(c) {
        row_place p = s.place;
        row_values one;
        if (s.row + c * ROWS_AT_A_TIME >= s.rows) continue;
        one.words[0] = values.words[c];
        EACH_OF_PIECE(i) one.x[0][i] = values.x[c][i];
        p.row = (int)s.matrix * a->rows + s.row + c * ROWS_AT_A_TIME;
        store_codes(1, CUDA_e4m3, format, false, false, &a->out, &p, &one, inverse);
    }
}

#define ENTRY(format)                                                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS_MOST, CUDA_##format == CUDA_f32 ? 1 : 2) quantize_squares_##format(const __grid_constant__ quantize_squares_arguments arguments) { \
        __shared__ row_room room;                                                                                                                                              \
        quantize_square(CUDA_##format, &arguments, &room);                                                                                                                     \
    }

ENTRY(f32)
ENTRY(bf16)
ENTRY(f16)
