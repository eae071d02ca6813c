/* layer_norm and rms_norm, with what quantises the result, in one pass: a row is read once, kept in registers (row_parts.cuh) and written once, in any format
 * (blocks.cuh). A result in a block format is rounded to x's format first. With a residual the sum is rounded to x's format, stored, and normalised.
 * Statistics in fp32 in two passes over registers: the mean, then squares around it, with the mean's own rounding taken out. Registers and speed: README.md. */
#include "kernels/norm/norm_rows.h"
#include "kernels/quantize/blocks.cuh"

/* What is added to a row's elements, and what they are multiplied by then. */
typedef struct moments { float low, scale; } moments;

/* With the mean of a row that has one taken from its elements. Its own rounding is left to low, so that numbers far from 0 lose nothing. */
INLINE moments row_moments(const int pieces, const norm_rows_arguments *a, const row_place *p, float x[][PIECE], row_room *rooms) {
    float by_count = 1 / (float)p->cols, low = 0, squares = 0;
    if (a->centred) {
        float sum = 0, away = 0;
        EACH_PIECE(c) EACH_OF_PIECE(i) sum += x[c][i];
        float mean = row_sum(sum, p->group, &rooms[0]) * by_count;
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] -= mean;
        zero_tail(pieces, p, x);
        EACH_PIECE(c) EACH_OF_PIECE(i) away += x[c][i];
        low = row_sum(away, p->group, &rooms[1]) * by_count;
    }
    EACH_PIECE(c) EACH_OF_PIECE(i) squares = fmaf(x[c][i], x[c][i], squares);
    float variance = row_sum(squares, p->group, &rooms[2]) * by_count - low * low;
    return (moments){-low, 1 / sqrtf((variance < 0 ? 0 : variance) + a->eps)};
}

/* The sum with the residual, rounded to x's format: also stored. */
INLINE void add_residual(const int pieces, const bool halves, const norm_rows_arguments *a, const int64_t *at, const row_place *p, float x[][PIECE]) {
    float r[PIECES_MOST][PIECE];
    load_pieces(pieces, halves, &a->residual, at[3], a->residual_step, p, r);
    EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] += r[c][i];
    if (halves) round_pieces(pieces, a->x.format, x);
    store_pieces(pieces, a->sum.data, a->sum.format, at[2], a->sum_step, p, x);
}

INLINE void load_columns(const int pieces, const cuda_array *array, int64_t step, const row_place *p, float y[][PIECE]) {
    if (array->format == CUDA_f32) load_pieces(pieces, false, array, 0, step, p, y);
    else load_pieces(pieces, true, array, 0, step, p, y);
}

INLINE void normalise(const int pieces, const norm_rows_arguments *a, moments m, const row_place *p, float x[][PIECE]) {
    float y[PIECES_MOST][PIECE], add = m.low * m.scale;
    EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = a->centred ? fmaf(x[c][i], m.scale, add) : x[c][i] * m.scale;
    if (a->has_weight) {
        load_columns(pieces, &a->weight, a->weight_step, p, y);
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] *= y[c][i];
    }
    if (a->has_bias) {
        load_columns(pieces, &a->bias, a->bias_step, p, y);
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] += y[c][i];
    }
}

INLINE void norm_row(const int pieces, const bool halves, const bool searches, const norm_rows_arguments *a, int64_t part, row_room *rooms) {
    row_place p = place_part(&a->division, part);
    float x[PIECES_MOST][PIECE];
    int64_t at[4];
    part_offsets(&a->division, &p, 4, at);
    load_pieces(pieces, halves, &a->x, at[1], a->x_step, &p, x);
    if (a->has_residual) add_residual(pieces, halves, a, at, &p, x);
    moments m = row_moments(pieces, a, &p, x, rooms);
    normalise(pieces, a, m, &p, x);
    if (halves && a->out.rows.scale_format != CUDA_FORMAT_COUNT) round_pieces(pieces, a->x.format, x);
    zero_tail(pieces, &p, x);
    second_level none = {1, 1};
    store_part(pieces, searches, &a->out, at[0], &p, x, none, rooms + 3);
}

#define NORM(name, pieces, halves, searches)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS_MOST, 1) name(const __grid_constant__ norm_rows_arguments arguments) {             \
        __shared__ row_room rooms[4];                                                                                                         \
        norm_row(pieces, halves, searches, &arguments, (int64_t)blockIdx.x * parts_of_block(&arguments.division), rooms);                     \
    }

NORM(norm_rows_16_1, 1, true, false)
NORM(norm_rows_16_4, PIECES_MOST, true, false)
NORM(norm_rows_32_1, 1, false, false)
NORM(norm_rows_32_4, PIECES_MOST, false, false)
NORM(norm_rows_16_1_search, 1, true, true)
NORM(norm_rows_16_4_search, PIECES_MOST, true, true)
NORM(norm_rows_32_1_search, 1, false, true)
NORM(norm_rows_32_4_search, PIECES_MOST, false, true)
