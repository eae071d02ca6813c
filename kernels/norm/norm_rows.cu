/* layer_norm and rms_norm, with what quantises the result, in one pass: a row is read once, kept in registers (row_parts.cuh) and written once, in any format
 * (blocks.cuh). A result in a block format is rounded to x's format first, and that may be written, too. With a residual the sum is rounded to x's format, stored, and normalised.
 * Registers and speed: README.md. */
#include "kernels/norm/moments.cuh"
#include "kernels/quantize/blocks.cuh"

/* The sum with the residual, rounded to x's format: also stored. */
INLINE void add_residual(const int pieces, const int format, const norm_rows_arguments *a, const row_place *p, float x[][PIECE]) {
    float r[PIECES_MOST][PIECE];
    load_pieces(pieces, format, row_data(&a->residual, format, row_offset(&a->division, p, 3)), a->residual_step, p, r);
    EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] += r[c][i];
    round_pieces(pieces, format, x);
    store_pieces(pieces, format, row_data(&a->sum, format, row_offset(&a->division, p, 2)), a->sum_step, p, x);
}

/* weight or bias: most often of x's format, or f32. */
INLINE void load_columns(const int pieces, const int format, const cuda_array *columns, int64_t step, const row_place *p, float y[][PIECE]) {
    if (columns->format == format) load_pieces(pieces, format, columns->data, step, p, y);
    else if (columns->format == CUDA_f32) load_pieces(pieces, CUDA_f32, columns->data, step, p, y);
    else load_elements(pieces, columns->format, columns->data, step, p, y);
}

INLINE void multiply_columns(const int pieces, const float y[][PIECE], float x[][PIECE]) { EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] *= y[c][i]; }
INLINE void add_columns(const int pieces, const float y[][PIECE], float x[][PIECE]) { EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] += y[c][i]; }

/* A piece of weight and bias has room in registers beside the row's: it is asked for before the row, and where no launch writes it before the launches in front have ended. */
INLINE void norm_row(const int pieces, const int format, const bool searches, const norm_rows_arguments *a, row_room *rooms) {
    row_place p = place_part(&a->division);
    float x[PIECES_MOST][PIECE], weight[PIECES_MOST][PIECE], bias[PIECES_MOST][PIECE];
    grid_release();
    if (!a->columns_are_constant) grid_wait();
    if (pieces == 1 && a->has_weight) load_columns(pieces, format, &a->weight, a->weight_step, &p, weight);
    if (pieces == 1 && a->has_bias) load_columns(pieces, format, &a->bias, a->bias_step, &p, bias);
    if (a->columns_are_constant) grid_wait();
    load_pieces(pieces, format, row_data(&a->x, format, row_offset(&a->division, &p, 1)), a->x_step, &p, x);
    if (a->has_residual) add_residual(pieces, format, a, &p, x);
    moments m = row_moments(pieces, a->centred, a, &p, x, rooms);
    EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = fmaf(x[c][i], m.scale, m.low * m.scale);
    if (pieces > 1 && a->has_weight) load_columns(pieces, format, &a->weight, a->weight_step, &p, weight);
    if (a->has_weight) multiply_columns(pieces, weight, x);
    if (pieces > 1 && a->has_bias) load_columns(pieces, format, &a->bias, a->bias_step, &p, bias);
    if (a->has_bias) add_columns(pieces, bias, x);
    if (a->out.rows.scale_format == CUDA_FORMAT_COUNT) {
        store_plain(pieces, &a->out, row_offset(&a->division, &p, 0), &p, x);
        return;
    }
    if (a->has_plain) store_plain(pieces, &a->plain, row_offset(&a->division, &p, 0), &p, x);
    row_values values;
    second_level none = {1, 1};
    zero_tail(pieces, &p, x);
    round_values(pieces, format, x, &values);
    store_quantized(pieces, format, searches, false, &a->out, &p, &values, none, rooms + 3);
}

#define ENTRY(name, bound, pieces, format, searches)                                                            \
    extern "C" __global__ void bound name(const __grid_constant__ norm_rows_arguments arguments) {              \
        __shared__ row_room rooms[4];                                                                           \
        norm_row(pieces, format, searches, &arguments, rooms);                                                  \
    }
/* With 80 registers six blocks of 128 threads are on a multiprocessor, which with rows of 4096 in fp32 have 96 KiB of loads on their way. ptxas needs more of them for
 * 16-bit elements, whose dense rows are norm_dense.cu's, and for Blackwell. */
#define BOUND_MANY(format) __maxnreg__(__CUDA_ARCH__ == 900 && format == CUDA_f32 ? 80 : 96)
#define BOUND __launch_bounds__(ROW_THREADS_MOST, 1)
#define ENTRIES(format)                                                                   \
    ENTRY(norm_rows_##format##_1, BOUND, 1, CUDA_##format, false)                         \
    ENTRY(norm_rows_##format##_4, BOUND_MANY(CUDA_##format), PIECES_MOST, CUDA_##format, false) \
    ENTRY(norm_rows_##format##_1_search, BOUND, 1, CUDA_##format, true)                   \
    ENTRY(norm_rows_##format##_4_search, BOUND, PIECES_MOST, CUDA_##format, true)

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
