/* softmax and log_softmax of rows that are longer than a block's registers hold, as vocabularies are: a cluster shares a row, which is read once, kept in shared memory where that
 * is large enough (row_chunks.cuh), and written once: its largest; the sum of powers; the result. Numbers and their bounds are those of softmax_rows.cu. Registers and speed: README.md. */
#include "kernels/gpu/rows/row_chunks.cuh"
#include "kernels/softmax/softmax_rows.h"

#define LOG2_E 1.44269504f

INLINE void softmax_chunk(const int format, const softmax_long_arguments *a, chunk_room *rooms) {
    const uint64_t data = row_data(&a->x, format, chunk_row_offset(&a->chunks, 1));
    const row_chunk chunk = place_chunk(&a->chunks, format, data, false);
    const int pieces = PIECES_MOST;
    row_values values;
    float most = -INFINITE, sum = 0;
    EACH_TURN(chunk, t) {
        const row_place p = turn_place(&chunk, t);
        load_turn(format, data, a->x_step, &p, -INFINITE, &values);
        keep_turn(format, &chunk, t, &p, &values);
        EACH_PIECE(c) {
            float x[PIECE];
            piece_floats(format, &values, c, x);
            EACH_OF_PIECE(i) most = max_nan(most, x[i]);
        }
    }
    most = chunk_max(&chunk, most, &rooms[0]);
    EACH_TURN(chunk, t) {
        const row_place p = turn_place(&chunk, t);
        EACH_PIECE(c) {
            float x[PIECE], of_piece = 0;
            take_piece(format, &chunk, t, c, data, a->x_step, &p, -INFINITE, x);
            EACH_OF_PIECE(i) of_piece += ex2((x[i] - most) * LOG2_E);
            sum += of_piece;
        }
    }
    sum = chunk_sum(&chunk, sum, &rooms[1]);
    chunks_arrive(&chunk);
    const float low = a->is_log ? logf(sum) : 0, scale = 1 / sum;
    const uint64_t out = row_data(&a->out, format, chunk_row_offset(&a->chunks, 0));
    EACH_TURN(chunk, t) {
        const row_place p = turn_place(&chunk, t);
        EACH_PIECE(c) {
            float x[PIECE];
            take_piece(format, &chunk, t, c, data, a->x_step, &p, -INFINITE, x);
            if (a->is_log) EACH_OF_PIECE(i) x[i] = x[i] - most - low;
            else EACH_OF_PIECE(i) x[i] = most == -INFINITE ? 0 : ex2((x[i] - most) * LOG2_E) * scale;
            store_piece(format, out, a->out_step, &p, c, x);
        }
    }
    chunks_wait(&chunk);
}

#define ENTRY(name, format)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(CHUNK_THREADS_MOST, 3) name(const __grid_constant__ softmax_long_arguments arguments) {     \
        __shared__ chunk_room rooms[2];                                                                                                    \
        grid_release();                                                                                                                    \
        grid_wait();                                                                                                                       \
        softmax_chunk(format, &arguments, rooms);                                                                                          \
    }

ENTRY(softmax_long_f32, CUDA_f32)
ENTRY(softmax_long_bf16, CUDA_bf16)
ENTRY(softmax_long_f16, CUDA_f16)
