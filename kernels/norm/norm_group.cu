/* group_norm of f32, bf16 and f16 where a group lies side by side: chunks of 8192 elements, a block each, which keeps its chunk in registers.
 *
 *     a group of one chunk:   x -> reg; mean, squares around it -> out                                            (norm_group)
 *     of more:                x -> reg; the chunk's sum, and squares around its own mean -> workspace             (norm_group_sums)
 *                             all chunks' sums -> the group's mean and scale; x again, from the cache -> out      (norm_group_chunks)
 *
 * Statistics are double: squares around a mean are put together with what that mean is away from the group's, so nothing is lost where means are large. Their order depends on the shape alone.
 * Resources: 128 bytes of shared memory. Speed: README.md. */
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/norm/norm_group.h"

enum { WARPS = CUDA_THREADS / 32 };

typedef struct group_room { double of_warp[2][WARPS]; } group_room;
typedef struct group_moments { double mean, scale; } group_moments;

/* Of all threads of the block. A room is for two sums, one after the other. */
INLINE double block_sum(double x, group_room *room, int number) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    if (threadIdx.x % 32 == 0) room->of_warp[number][threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < WARPS; i++) x += room->of_warp[number][i];
    return x;
}

/* Where this thread works in a chunk of the group. */
INLINE row_place place_in_chunk(const group_rows_arguments *a, int chunk) {
    row_place p = {0, 0, 0, CUDA_THREADS};
    p.first = chunk * GROUP_CHUNK + (int)threadIdx.x * PIECE;
    p.cols = min(a->length, (chunk + 1) * GROUP_CHUNK);
    return p;
}

/* The chunk's sum, and the squares around its mean. */
INLINE void chunk_sums(const int format, const row_place *p, int count, const row_values *values, group_room *room, double *sum, double *squares) {
    const int pieces = PIECES_MOST;
    double total = 0, away = 0;
    EACH_PIECE(c) {
        float x[PIECE];
        piece_floats(format, values, c, x);
        EACH_OF_PIECE(i) total += (double)x[i];       /* zeros behind the end */
    }
    *sum = block_sum(total, room, 0);
    const double mean = *sum / count;
    EACH_PIECE(c) {
        float x[PIECE];
        piece_floats(format, values, c, x);
        EACH_OF_PIECE(i) {
            const double d = piece_col(p, c) + i < p->cols ? (double)x[i] - mean : 0;
            away = fma(d, d, away);
        }
    }
    *squares = block_sum(away, room, 1);
}

/* Weight and bias of the channel of element col of the group; on to the next one. */
typedef struct group_channel { int number, left; float weight, bias; } group_channel;

INLINE void read_channel(const group_rows_arguments *a, int group, group_channel *c) {
    const int64_t at = (int64_t)group * a->channels + c->number;
    c->weight = a->has_weight && c->number < a->channels ? element_at(a->weight.format, a->weight.data, at * a->weight_step) : 1;
    c->bias = a->has_bias && c->number < a->channels ? element_at(a->bias.format, a->bias.data, at * a->bias_step) : 0;
}
INLINE group_channel channel_at(const group_rows_arguments *a, int group, int col) {
    group_channel c = {col / a->per_channel, 0, 1, 0};
    c.left = (c.number + 1) * a->per_channel - col;
    read_channel(a, group, &c);
    return c;
}
INLINE void next_element(const group_rows_arguments *a, int group, group_channel *c) {
    if (--c->left > 0) return;
    c->number++;
    c->left = a->per_channel;
    read_channel(a, group, c);
}

/* (x - mean) scale weight + bias, in fp32 with the mean in two parts; in double where the scale is near the ends of fp32's range. */
INLINE void store_chunk(const int format, const group_rows_arguments *a, const row_place *p, int64_t item, group_moments m, row_values *values) {
    const int pieces = PIECES_MOST, group = (int)(item % a->groups);
    const float high = (float)m.mean, low = (float)(m.mean - (double)high), scale = (float)m.scale;
    const bool is_plain = scale > 0x1p-100f && scale < 0x1p100f, whole = a->per_channel % PIECE == 0;
    EACH_PIECE(c) {
        if (piece_col(p, c) >= p->cols) continue;
        float x[PIECE];
        piece_floats(format, values, c, x);
        group_channel channel = channel_at(a, group, piece_col(p, c));
        EACH_OF_PIECE(i) {
            if (is_plain) x[i] = fmaf((x[i] - high - low) * scale, channel.weight, channel.bias);
            else x[i] = (float)(((double)x[i] - m.mean) * m.scale * (double)channel.weight + (double)channel.bias);
            if (!whole) next_element(a, group, &channel);
        }
        if (format != CUDA_f32) values->words[c] = pack_halves(format, x);
        else EACH_OF_PIECE(i) values->x[c][i] = x[i];
    }
    const uint64_t out = row_data(&a->out, format, item * a->length);
    if (format == CUDA_f32) {
        store_pieces(pieces, CUDA_f32, out, 1, p, values->x);
    } else if (lies_in_pieces(out, 1, p)) {
        store_words(pieces, (uint4 *)out + p->first / PIECE, p, values->words);
    } else {
        float x[PIECES_MOST][PIECE];
        EACH_PIECE(c) unpack_halves(format, values->words[c], x[c]);
        store_elements(pieces, format, out, 1, p, x);
    }
}

INLINE void load_chunk(const int format, const group_rows_arguments *a, const row_place *p, int64_t item, row_values *values) {
    load_values(PIECES_MOST, format, row_data(&a->x, format, item * a->length), 1, p, values);
}

INLINE double *partial_of(const group_rows_arguments *a, int64_t item, int chunk) { return (double *)a->partial + (item * a->chunks + chunk) * 2; }
INLINE int elements_of(const group_rows_arguments *a, int chunk) { return min(GROUP_CHUNK, a->length - chunk * GROUP_CHUNK); }

INLINE group_moments moments_of(const group_rows_arguments *a, double mean, double squares) {
    const group_moments m = {mean, 1 / sqrt(squares / a->length + a->eps)};
    return m;
}

/* Of a group of several chunks. */
INLINE group_moments join_chunks(const group_rows_arguments *a, int64_t item, group_room *room) {
    double sum = 0, squares = 0;
    for (int i = threadIdx.x; i < a->chunks; i += CUDA_THREADS) sum += partial_of(a, item, i)[0];
    const double mean = block_sum(sum, room, 0) / a->length;
    for (int i = threadIdx.x; i < a->chunks; i += CUDA_THREADS) {
        const double *const part = partial_of(a, item, i), away = part[0] / elements_of(a, i) - mean;
        squares += part[1] + away * away * elements_of(a, i);
    }
    return moments_of(a, mean, block_sum(squares, room, 1));
}

INLINE void norm_whole(const int format, const group_rows_arguments *a, group_room *room) {
    const row_place p = place_in_chunk(a, 0);
    row_values values;
    double sum, squares;
    load_chunk(format, a, &p, blockIdx.x, &values);
    chunk_sums(format, &p, a->length, &values, room, &sum, &squares);
    store_chunk(format, a, &p, blockIdx.x, moments_of(a, sum / a->length, squares), &values);
}

INLINE void norm_sums(const int format, const group_rows_arguments *a, group_room *room) {
    const int64_t item = blockIdx.x / a->chunks;
    const int chunk = (int)(blockIdx.x - item * a->chunks);
    const row_place p = place_in_chunk(a, chunk);
    row_values values;
    double sum, squares;
    load_chunk(format, a, &p, item, &values);
    chunk_sums(format, &p, elements_of(a, chunk), &values, room, &sum, &squares);
    if (threadIdx.x > 0) return;
    partial_of(a, item, chunk)[0] = sum;
    partial_of(a, item, chunk)[1] = squares;
}

INLINE void norm_chunks(const int format, const group_rows_arguments *a, group_room *room) {
    const int64_t item = blockIdx.x / a->chunks;
    const row_place p = place_in_chunk(a, (int)(blockIdx.x - item * a->chunks));
    row_values values;
    load_chunk(format, a, &p, item, &values);
    const group_moments m = join_chunks(a, item, room);
    store_chunk(format, a, &p, item, m, &values);
}

#define ENTRY(name, function, format)                                                                                           \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ group_rows_arguments arguments) {   \
        __shared__ group_room room;                                                                                             \
        grid_release();                                                                                                         \
        grid_wait();                                                                                                            \
        function(format, &arguments, &room);                                                                                    \
    }
#define ENTRIES(format)                                          \
    ENTRY(norm_group_##format, norm_whole, CUDA_##format)        \
    ENTRY(norm_group_sums_##format, norm_sums, CUDA_##format)    \
    ENTRY(norm_group_chunks_##format, norm_chunks, CUDA_##format)

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
