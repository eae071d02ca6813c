/* layer_norm and rms_norm, with what quantises the result, of rows that are longer than a block's registers hold: a cluster shares a row, which is read once, kept in shared memory
 * where that is large enough (row_chunks.cuh), and written once. Sums are those of moments.cuh; what else norm_rows.cu says of roundings holds here. Registers and speed: README.md. */
#include "kernels/gpu/rows/row_chunks.cuh"
#include "kernels/norm/norm_rows.h"
#include "kernels/quantize/blocks.cuh"

/* What is normalised: x, or its sum with the residual once that is there. */
typedef struct row_source {
    uint64_t data;
    int64_t step;
} row_source;

typedef struct long_moments { float mean, low, scale; } long_moments;

/* Pass 1: x, or the sum, rounded to x's format and stored. Returns the thread's sum, or that of squares where nothing is centred. */
INLINE float read_row(const int format, const norm_long_arguments *a, const row_chunk *chunk, uint64_t data, const row_source *source) {
    const int pieces = PIECES_MOST;
    const uint64_t residual = a->has_residual ? row_data(&a->residual, format, chunk_row_offset(&a->chunks, 3)) : 0;
    float total = 0;
    bring_chunk(format, chunk, data, a->x_step, 0);
    EACH_TURN(*chunk, t) {
        const row_place p = turn_place(chunk, t);
        row_values residuals;
        if (a->has_residual) load_turn(format, residual, a->residual_step, &p, 0, &residuals);
        EACH_PIECE(c) {
            float x[PIECE], of_piece = 0;
            take_piece(format, chunk, t, c, data, a->x_step, &p, 0, x);
            if (a->has_residual) {
                float r[PIECE];
                piece_floats(format, &residuals, c, r);
                EACH_OF_PIECE(i) x[i] += r[i];
                if (format != CUDA_f32) unpack_halves(format, pack_halves(format, x), x);
                store_piece(format, source->data, source->step, &p, c, x);
                if (chunk->kept != 0 && has_room(chunk, &p, c)) keep_piece(format, chunk, t, c, x);
            }
            EACH_OF_PIECE(i) of_piece = a->centred ? of_piece + x[i] : fmaf(x[i], x[i], of_piece);
            total += of_piece;
        }
    }
    return total;
}

/* Pass 2 of rows that have a mean: squares around it, with the mean's own rounding taken out. */
INLINE long_moments row_moments(const int format, const norm_long_arguments *a, const row_chunk *chunk, const row_source *source, float total, chunk_room *rooms) {
    const int pieces = PIECES_MOST;
    long_moments m = {0, 0, 0};
    total = chunk_sum(chunk, total, &rooms[0]) * a->by_count;
    if (a->centred) {
        float away = 0, squares = 0;
        m.mean = total;
        EACH_TURN(*chunk, t) {
            const row_place p = turn_place(chunk, t);
            EACH_PIECE(c) {
                float x[PIECE], of_piece = 0, squares_of_piece = 0;
                take_piece(format, chunk, t, c, source->data, source->step, &p, 0, x);
                EACH_OF_PIECE(i) {
                    x[i] = is_inside(&p, c, i) ? x[i] - m.mean : 0;
                    of_piece += x[i];
                    squares_of_piece = fmaf(x[i], x[i], squares_of_piece);
                }
                away += of_piece;
                squares += squares_of_piece;
            }
        }
        m.low = chunk_sum(chunk, away, &rooms[1]) * a->by_count;
        total = chunk_sum(chunk, squares, &rooms[2]) * a->by_count - m.low * m.low;
    }
    m.scale = rsqrtf((total < 0 ? 0 : total) + a->eps);
    return m;
}

/* weight and bias: most often of x's format, or f32. */
INLINE void load_column_piece(const int format, const cuda_array *columns, int64_t step, const row_place *p, const int c, float *y) {
    if (columns->format == format) load_piece(format, columns->data, step, p, c, 0, y);
    else load_piece(columns->format, columns->data, step, p, c, 0, y);
}

/* A piece of the result in fp32. */
INLINE void norm_piece(const int format, const norm_long_arguments *a, const row_chunk *chunk, const row_source *source, long_moments m, int t, const int c, const row_place *p, float *x) {
    float y[PIECE];
    take_piece(format, chunk, t, c, source->data, source->step, p, 0, x);
    EACH_OF_PIECE(i) x[i] = fmaf(x[i] - m.mean, m.scale, -m.low * m.scale);
    if (a->has_weight) {
        load_column_piece(format, &a->weight, a->weight_step, p, c, y);
        EACH_OF_PIECE(i) x[i] *= y[i];
    }
    if (a->has_bias) {
        load_column_piece(format, &a->bias, a->bias_step, p, c, y);
        EACH_OF_PIECE(i) x[i] += y[i];
    }
}

/* Are weight and bias 16-bit elements of x's format? Then those of a turn are on their way together. */
INLINE bool has_words(const int format, const norm_long_arguments *a) {
    return format != CUDA_f32 && (!a->has_weight || a->weight.format == format) && (!a->has_bias || a->bias.format == format);
}

/* A turn of the result, rounded to x's format; 0 outside of the row. */
INLINE void norm_turn(const int format, const norm_long_arguments *a, const row_chunk *chunk, const row_source *source, long_moments m, int t, const row_place *p, row_values *values) {
    const int pieces = PIECES_MOST;
    const bool in_words = has_words(format, a);
    row_values weights, biases;
    if (in_words && a->has_weight) load_turn(format, a->weight.data, a->weight_step, p, 0, &weights);
    if (in_words && a->has_bias) load_turn(format, a->bias.data, a->bias_step, p, 0, &biases);
    EACH_PIECE(c) {
        float x[PIECE], y[PIECE];
        if (in_words) {
            take_piece(format, chunk, t, c, source->data, source->step, p, 0, x);
            EACH_OF_PIECE(i) x[i] = fmaf(x[i] - m.mean, m.scale, -m.low * m.scale);
            if (a->has_weight) {
                piece_floats(format, &weights, c, y);
                EACH_OF_PIECE(i) x[i] *= y[i];
            }
            if (a->has_bias) {
                piece_floats(format, &biases, c, y);
                EACH_OF_PIECE(i) x[i] += y[i];
            }
        } else {
            norm_piece(format, a, chunk, source, m, t, c, p, x);
        }
        EACH_OF_PIECE(i) x[i] = is_inside(p, c, i) ? x[i] : 0;
        if (format != CUDA_f32) values->words[c] = pack_halves(format, x);
        else EACH_OF_PIECE(i) values->x[c][i] = x[i];
    }
}

/* The row as it is: in x's format by turns, in another piece by piece, as it is rounded once. */
INLINE void store_row_plain(const int format, const norm_long_arguments *a, const row_chunk *chunk, const row_source *source, long_moments m) {
    const int pieces = PIECES_MOST;
    const uint64_t out = a->out.rows.data + (uint64_t)chunk_row_offset(&a->chunks, 0) * (uint64_t)element_size(a->out.format);
    EACH_TURN(*chunk, t) {
        const row_place p = turn_place(chunk, t);
        if (has_words(format, a) && a->out.format == format) {
            row_values values;
            norm_turn(format, a, chunk, source, m, t, &p, &values);
            store_turn(format, out, a->out.step, &p, &values);
        } else {
            EACH_PIECE(c) {
                float x[PIECE];
                norm_piece(format, a, chunk, source, m, t, c, &p, x);
                store_piece(a->out.format, out, a->out.step, &p, c, x);
            }
        }
    }
}

INLINE void store_row_quantized(const int format, const norm_long_arguments *a, const row_chunk *chunk, const row_source *source, long_moments m, chunk_room *room) {
    const int pieces = PIECES_MOST;
    const second_level none = {1, 1};
    const bool by_row = is_scaled_by_row(a->out.format);
    row_values values;
    float most = 0;
#pragma unroll 1
    for (int pass = by_row ? 0 : 1; pass < 2; pass++) {   /* one loop for both, as a turn is long code */
        EACH_TURN(*chunk, t) {
            const row_place p = turn_place(chunk, t);
            norm_turn(format, a, chunk, source, m, t, &p, &values);
            if (pass == 0) most = max_nan(most, largest_for_row(pieces, format, &a->out, &values));
            else if (by_row) store_scaled_by_row(pieces, format, &a->out, &p, &values, most);
            else store_quantized(pieces, format, false, false, &a->out, &p, &values, none, NULL);
        }
        if (pass == 0) most = chunk_max(chunk, most, room);
    }
}

INLINE void norm_chunk(const int format, const norm_long_arguments *a, chunk_room *rooms) {
    const int pieces = PIECES_MOST;
    const bool is_plain = a->out.rows.scale_format == CUDA_FORMAT_COUNT;
    const uint64_t data = row_data(&a->x, format, chunk_row_offset(&a->chunks, 1));
    row_source source = {data, a->x_step};
    if (a->has_residual) source.data = row_data(&a->sum, format, chunk_row_offset(&a->chunks, 2)), source.step = a->sum_step;
    const row_chunk chunk = place_chunk(&a->chunks, format, data, !is_plain);
    const float total = read_row(format, a, &chunk, data, &source);
    const long_moments m = row_moments(format, a, &chunk, &source, total, rooms);
    if (!is_plain) {
        store_row_quantized(format, a, &chunk, &source, m, &rooms[3]);
    } else {
        store_row_plain(format, a, &chunk, &source, m);
    }
    chunks_arrive(&chunk);
    chunks_wait(&chunk);
}

#define ENTRY(name, format)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(CHUNK_THREADS_MOST, 2) name(const __grid_constant__ norm_long_arguments arguments) {   \
        __shared__ chunk_room rooms[4];                                                                                                 \
        grid_release();                                                                                                                 \
        grid_wait();                                                                                                                    \
        norm_chunk(format, &arguments, rooms);                                                                                          \
    }

ENTRY(norm_long_f32, CUDA_f32)
ENTRY(norm_long_bf16, CUDA_bf16)
ENTRY(norm_long_f16, CUDA_f16)
