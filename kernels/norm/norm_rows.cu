/* layer_norm and rms_norm, with what quantises the result, in one pass: a row is read once, kept in registers (row_parts.cuh) and written once, in any format
 * (blocks.cuh). A result in a block format is rounded to x's format first. With a residual the sum is rounded to x's format, stored, and normalised.
 * Statistics in fp32 in two passes over registers: the mean, then squares around it, with the mean's own rounding taken out. Registers and speed: README.md. */
#include "kernels/norm/norm_rows.h"
#include "kernels/quantize/blocks.cuh"

/* What is taken from each element, in two parts so that numbers far from 0 lose nothing, and what it is multiplied by. */
typedef struct moments { float mean, low, scale; } moments;

INLINE moments row_moments(const int pieces, const norm_rows_arguments *a, const row_place *p, float x[][PIECE], row_room *rooms) {
    float count = (float)p->cols, sum = 0, away = 0, squares = 0;
    moments m = {0, 0, 0};
    if (a->centred) {
        EACH_PIECE(c) EACH_OF_PIECE(i) sum += x[c][i];
        m.mean = row_sum(sum, p->group, &rooms[0]) / count;
        EACH_PIECE(c) {
            if (piece_col(p, c) >= p->cols) continue;
            EACH_OF_PIECE(i) {
                float d = piece_col(p, c) + i < p->cols ? x[c][i] - m.mean : 0;
                away += d;
                squares = fmaf(d, d, squares);
            }
        }
        m.low = row_sum(away, p->group, &rooms[1]) / count;
    } else {
        EACH_PIECE(c) EACH_OF_PIECE(i) squares = fmaf(x[c][i], x[c][i], squares);
    }
    squares = row_sum(squares, p->group, &rooms[2]) / count - m.low * m.low;
    m.scale = 1 / sqrtf((squares < 0 ? 0 : squares) + a->eps);
    return m;
}

/* The sum with the residual, rounded to x's format: also stored. */
INLINE void add_residual(const int pieces, const bool halves, const norm_rows_arguments *a, const int64_t *at, const row_place *p, float x[][PIECE]) {
    float r[PIECES_MOST][PIECE];
    load_pieces(pieces, halves, &a->residual, at[3], a->residual_step, p, r);
    EACH_PIECE(c) {
        EACH_OF_PIECE(i) x[c][i] += r[c][i];
        if (halves) round_piece(a->sum.format, x[c]);
        store_piece(a->sum.data, a->sum.format, at[2], a->sum_step, p, c, x[c]);
    }
}

INLINE void normalise(const norm_rows_arguments *a, moments m, const row_place *p, int c, float *x) {
    float column[PIECE];
    EACH_OF_PIECE(i) x[i] = (x[i] - m.mean - m.low) * m.scale;
    if (a->has_weight) {
        load_piece(&a->weight, a->weight_step, p, c, column);
        EACH_OF_PIECE(i) x[i] *= column[i];
    }
    if (a->has_bias) {
        load_piece(&a->bias, a->bias_step, p, c, column);
        EACH_OF_PIECE(i) x[i] += column[i];
    }
}

INLINE void norm_row(const int pieces, const bool halves, const norm_rows_arguments *a, int64_t part, row_room *rooms) {
    row_place p = place_part(&a->division, part);
    float x[PIECES_MOST][PIECE];
    int64_t at[4];
    nest_offsets(&a->division.nest, p.row, 4, at);
    load_pieces(pieces, halves, &a->x, at[1], a->x_step, &p, x);
    if (a->has_residual) add_residual(pieces, halves, a, at, &p, x);
    moments m = row_moments(pieces, a, &p, x, rooms);
    bool is_rounded = halves && a->out.rows.scale_format != CUDA_FORMAT_COUNT;
    EACH_PIECE(c) {
        normalise(a, m, &p, c, x[c]);
        if (is_rounded) round_piece(a->x.format, x[c]);
        EACH_OF_PIECE(i) x[c][i] = piece_col(&p, c) + i < p.cols ? x[c][i] : 0;
    }
    second_level second = {1, 1};
    store_part(pieces, &a->out, at[0], &p, x, second, rooms + 3);
}

#define NORM(name, pieces, halves)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS_MOST, 1) name(const __grid_constant__ norm_rows_arguments arguments) {                \
        __shared__ row_room rooms[5];                                                                                                         \
        norm_row(pieces, halves, &arguments, (int64_t)blockIdx.x * parts_of_block(&arguments.division), rooms);                               \
    }

NORM(norm_rows_16_1, 1, true)
NORM(norm_rows_16_4, PIECES_MOST, true)
NORM(norm_rows_32_1, 1, false)
NORM(norm_rows_32_4, PIECES_MOST, false)
