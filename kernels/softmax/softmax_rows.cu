/* softmax and log_softmax in one pass: a row is read once, kept in registers (row_parts.cuh) and written once. A row whose largest is -inf gives zeros (softmax);
 * sums are fp32. Registers and speed: README.md. */
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/softmax/softmax_rows.h"

/* Its error is one of the exponent's rounding, which is small wherever e^x is not. */
INLINE float exp_of(float x) { return ex2(x * 1.44269504f); }

INLINE void softmax_row(const int pieces, const int format, const softmax_rows_arguments *a, row_room *rooms) {
    row_place p = place_part(&a->division);
    float x[PIECES_MOST][PIECE], most = -INFINITE, sum = 0;
    grid_release();
    grid_wait();
    load_pieces(pieces, format, row_data(&a->x, format, row_offset(&a->division, &p, 1)), a->x_step, &p, x);
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
    store_pieces(pieces, format, row_data(&a->out, format, row_offset(&a->division, &p, 0)), a->out_step, &p, x);
}

#define ENTRY(name, pieces, format)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS_MOST, 1) name(const __grid_constant__ softmax_rows_arguments arguments) {         \
        __shared__ row_room rooms[2];                                                                                                        \
        softmax_row(pieces, format, &arguments, rooms);                                                                                      \
    }
#define ENTRIES(format)                                        \
    ENTRY(softmax_rows_##format##_1, 1, CUDA_##format)         \
    ENTRY(softmax_rows_##format##_4, PIECES_MOST, CUDA_##format)

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
