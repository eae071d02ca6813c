/* softmax and log_softmax in one pass: a row is read once, kept in registers (row_parts.cuh) and written once. A row whose largest is -inf gives zeros (softmax);
 * sums are fp32. Registers and speed: README.md. */
#include "kernels/common/cuda/row_parts.cuh"
#include "kernels/softmax/softmax_rows.h"

/* Its error is one of the exponent's rounding, which is small wherever e^x is not. */
INLINE float exp_of(float x) { return ex2(x * 1.44269504f); }

INLINE void softmax_row(const int pieces, const bool halves, const softmax_rows_arguments *a, int64_t part, row_room *rooms) {
    row_place p = place_part(&a->division, part);
    float x[PIECES_MOST][PIECE], most = -INFINITE, sum = 0;
    int64_t at[2];
    part_offsets(&a->division, &p, 2, at);
    load_pieces(pieces, halves, &a->x, at[1], a->x_step, &p, x);
    EACH_PIECE(c) EACH_OF_PIECE(i) most = piece_col(&p, c) + i < p.cols ? max_nan(most, x[c][i]) : most;
    most = row_max(most, p.group, &rooms[0]);
    EACH_PIECE(c) EACH_OF_PIECE(i) {
        float away = x[c][i] - most, power = exp_of(away);
        sum += piece_col(&p, c) + i < p.cols ? power : 0;
        x[c][i] = a->is_log ? away : power;
    }
    sum = row_sum(sum, p.group, &rooms[1]);
    if (a->is_log) {
        float low = logf(sum);
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] -= low;
    } else {
        float scale = 1 / sum;
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = most == -INFINITE ? 0 : x[c][i] * scale;
    }
    store_pieces(pieces, a->out.data, a->out.format, at[0], a->out_step, &p, x);
}

#define SOFTMAX(name, pieces, halves)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS_MOST, 1) name(const __grid_constant__ softmax_rows_arguments arguments) {         \
        __shared__ row_room rooms[2];                                                                                                        \
        softmax_row(pieces, halves, &arguments, (int64_t)blockIdx.x * parts_of_block(&arguments.division), rooms);                           \
    }

SOFTMAX(softmax_rows_16_1, 1, true)
SOFTMAX(softmax_rows_16_4, PIECES_MOST, true)
SOFTMAX(softmax_rows_32_1, 1, false)
SOFTMAX(softmax_rows_32_4, PIECES_MOST, false)
