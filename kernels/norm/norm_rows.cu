/* layer_norm and rms_norm, with what quantises the result, in one pass: a row is read once, kept in registers (row_parts.cuh) and written once, in any format
 * (blocks.cuh). A result in a block format is rounded to x's format first. With a residual the sum is rounded to x's format, stored, and normalised.
 * Statistics in fp32 in two passes over registers: the mean, then squares around it, with the mean's own rounding taken out. Registers and speed: README.md. */
#include "kernels/norm/norm_rows.h"
#include "kernels/quantize/blocks.cuh"

/* What is added to a row's elements, and what they are multiplied by then. */
typedef struct moments { float low, scale; } moments;

/* With the mean of a row that has one taken from its elements. Its own rounding is left to low, so that numbers far from 0 lose nothing. */
INLINE moments row_moments(const int pieces, const norm_rows_arguments *a, const row_place *p, float x[][PIECE], row_room *rooms) {
    float low = 0, squares = 0;
    if (a->centred) {
        float sum = 0, away = 0;
        EACH_PIECE(c) EACH_OF_PIECE(i) sum += x[c][i];
        float mean = row_sum(sum, p->group, &rooms[0]) * a->by_count;
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] -= mean;
        zero_tail(pieces, p, x);
        EACH_PIECE(c) EACH_OF_PIECE(i) away += x[c][i];
        low = row_sum(away, p->group, &rooms[1]) * a->by_count;
    }
    EACH_PIECE(c) EACH_OF_PIECE(i) squares = fmaf(x[c][i], x[c][i], squares);
    float variance = row_sum(squares, p->group, &rooms[2]) * a->by_count - low * low;
    return (moments){-low, rsqrtf((variance < 0 ? 0 : variance) + a->eps)};
}

/* The sum with the residual, rounded to x's format: also stored. */
INLINE void add_residual(const int pieces, const int format, const norm_rows_arguments *a, const row_place *p, float x[][PIECE]) {
    float r[PIECES_MOST][PIECE];
    load_pieces(pieces, format, row_data(&a->residual, format, row_offset(&a->division, p, 3)), a->residual_step, p, r);
    EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] += r[c][i];
    round_pieces(pieces, format, x);
    store_pieces(pieces, format, row_data(&a->sum, format, row_offset(&a->division, p, 2)), a->sum_step, p, x);
}

/* weight and bias: most often of x's format, or f32. */
INLINE void take_columns(const int pieces, const int format, const bool multiplies, const cuda_array *columns, int64_t step, const row_place *p, float x[][PIECE]) {
    float y[PIECES_MOST][PIECE];
    if (columns->format == format) {
        load_pieces(pieces, format, columns->data, step, p, y);
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = multiplies ? x[c][i] * y[c][i] : x[c][i] + y[c][i];
    } else if (columns->format == CUDA_f32) {
        load_pieces(pieces, CUDA_f32, columns->data, step, p, y);
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = multiplies ? x[c][i] * y[c][i] : x[c][i] + y[c][i];
    } else {
        load_elements(pieces, columns->format, columns->data, step, p, y);
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = multiplies ? x[c][i] * y[c][i] : x[c][i] + y[c][i];
    }
}

INLINE void norm_row(const int pieces, const int format, const bool searches, const norm_rows_arguments *a, row_room *rooms) {
    row_place p = place_part(&a->division);
    float x[PIECES_MOST][PIECE];
    load_pieces(pieces, format, row_data(&a->x, format, row_offset(&a->division, &p, 1)), a->x_step, &p, x);
    if (a->has_residual) add_residual(pieces, format, a, &p, x);
    moments m = row_moments(pieces, a, &p, x, rooms);
    EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = fmaf(x[c][i], m.scale, m.low * m.scale);
    if (a->has_weight) take_columns(pieces, format, true, &a->weight, a->weight_step, &p, x);
    if (a->has_bias) take_columns(pieces, format, false, &a->bias, a->bias_step, &p, x);
    if (a->out.rows.scale_format != CUDA_FORMAT_COUNT) round_pieces(pieces, format, x);
    zero_tail(pieces, &p, x);
    second_level none = {1, 1};
    store_part(pieces, searches, &a->out, row_offset(&a->division, &p, 0), &p, x, none, rooms + 3);
}

#define ENTRY(name, bound, pieces, format, searches)                                                            \
    extern "C" __global__ void bound name(const __grid_constant__ norm_rows_arguments arguments) {              \
        __shared__ row_room rooms[4];                                                                           \
        norm_row(pieces, format, searches, &arguments, rooms);                                                  \
    }
/* 80 registers: six blocks of 128 threads on a multiprocessor, which with rows of 4096 have 48 KiB of loads on their way. ptxas needs more of them for Blackwell. */
#if __CUDA_ARCH__ == 900
#define BOUND_MANY __maxnreg__(80)
#else
#define BOUND_MANY __maxnreg__(96)
#endif
#define BOUND __launch_bounds__(ROW_THREADS_MOST, 1)
#define ENTRIES(format)                                                                   \
    ENTRY(norm_rows_##format##_1, BOUND, 1, CUDA_##format, false)                         \
    ENTRY(norm_rows_##format##_4, BOUND_MANY, PIECES_MOST, CUDA_##format, false)     \
    ENTRY(norm_rows_##format##_1_search, BOUND, 1, CUDA_##format, true)                   \
    ENTRY(norm_rows_##format##_4_search, BOUND, PIECES_MOST, CUDA_##format, true)

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
