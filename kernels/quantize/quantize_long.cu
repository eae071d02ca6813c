/* quantize into formats with a scale for all of a row, of rows that are longer than a block's registers hold: a cluster shares a row, which is read once, kept in shared memory where
 * that is large enough (row_chunks.cuh), and written once. Registers and speed: README.md. */
#include "kernels/gpu/rows/row_chunks.cuh"
#include "kernels/quantize/blocks.cuh"
#include "kernels/quantize/quantize_rows.h"

INLINE void quantize_chunk(const int format, const quantize_long_arguments *a, chunk_room *room) {
    const int pieces = PIECES_MOST;
    const uint64_t data = row_data(&a->x, format, chunk_row_offset(&a->chunks, 0));
    const row_chunk chunk = place_chunk(&a->chunks, format, data, true);
    row_values values;
    float most = 0;
    bring_chunk(format, &chunk, data, a->x_step, 0);
    EACH_TURN(chunk, t) {
        const row_place p = turn_place(&chunk, t);
        take_turn(format, &chunk, t, data, a->x_step, &p, &values);
        most = max_nan(most, largest_for_row(pieces, format, &a->out, &values));
    }
    most = chunk_max(&chunk, most, room);
    chunks_arrive(&chunk);
    EACH_TURN(chunk, t) {
        const row_place p = turn_place(&chunk, t);
        take_turn(format, &chunk, t, data, a->x_step, &p, &values);
        store_scaled_by_row(pieces, format, &a->out, &p, &values, most);
    }
    chunks_wait(&chunk);
}

#define ENTRY(name, format)                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(CHUNK_THREADS_MOST, 3) name(const __grid_constant__ quantize_long_arguments arguments) {   \
        __shared__ chunk_room room;                                                                                                         \
        grid_release();                                                                                                                     \
        grid_wait();                                                                                                                        \
        quantize_chunk(format, &arguments, &room);                                                                                          \
    }

ENTRY(quantize_long_f32, CUDA_f32)
ENTRY(quantize_long_bf16, CUDA_bf16)
ENTRY(quantize_long_f16, CUDA_f16)
