/* Reductions of f32, bf16 and f16 in vectors of eight: over rows that lie side by side, by a warp or a block each, and over other axes where what stays lies side by side.
 *
 *     rows:      a warp or a block reads a part of a row, 4 pieces a thread in flight     -> shuffles, smem -> a result, or a partial one of many
 *     columns:   a warp reads 256 columns of a line, 8 warps take lines in turns of 4     -> smem           -> 256 results, or partial ones
 *
 * Where results are few, each is made in parts, which a second launch puts together. Eight elements (columns: four) are added in fp32, all else in double; the order depends on the shape and the number of
 * multiprocessors alone. Resources: up to 16 KiB of shared memory. Speed: README.md. */
#include "kernels/gpu/rows/row_chunks.cuh"
#include "kernels/reduce/reduce_cuda.h"

enum { WARPS = CUDA_THREADS / 32, ROWS_AT_ONCE = 4 };

/* The least and all are found as the largest of negated numbers. */
INLINE bool is_negated(int function) { return function == REDUCE_amin || function == REDUCE_all || function == REDUCE_argmin; }
INLINE bool is_truth(int function) { return function == REDUCE_any || function == REDUCE_all; }
INLINE bool adds(int function) { return function == REDUCE_sum || function == REDUCE_mean; }

INLINE double start_of(int function) { return adds(function) ? 0 : function == REDUCE_prod ? 1 : -(double)INFINITE; }
/* What changes nothing, as an element. */
INLINE float nothing_of(int function) { return adds(function) || function == REDUCE_any ? 0 : function == REDUCE_prod || function == REDUCE_all ? 1 : is_negated(function) ? INFINITE : -INFINITE; }
INLINE double join(int function, double x, double y) {
    if (adds(function)) return x + y;
    if (function == REDUCE_prod) return x * y;
    return x != x || x > y ? x : y;
}
INLINE float turn_element(int function, float x) {
    if (is_truth(function)) x = x != 0;
    return is_negated(function) ? -x : x;
}

INLINE double join_piece(int function, double total, const float *x) {
    if (adds(function)) return total + (double)(((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])));
    if (function == REDUCE_prod) {
        EACH_OF_PIECE(i) total *= (double)x[i];
        return total;
    }
    float most = turn_element(function, x[0]);
#pragma unroll
    for (int i = 1; i < PIECE; i++) most = max_nan(most, turn_element(function, x[i]));
    return join(function, total, (double)most);
}

/* The result, or a part of it: number split of so many. */
INLINE void store_result(const reduce_vector_arguments *a, int64_t result, int64_t split, int64_t splits, double total) {
    const int function = a->function;
    if (splits > 1) {
        ((double *)a->partial)[split * a->outer.count + result] = total;
        return;
    }
    int64_t at[2];
    nest_offsets(&a->outer, result, 2, at);
    if (is_negated(function)) total = -total;
    store_real(&a->out, at[0], function == REDUCE_mean ? total / (double)a->length : total);
}

/* ---- rows ---- */

/* The thread's place in its part of a row that begins at data. */
INLINE row_place place_in_row(const reduce_vector_arguments *a, const int format, uint64_t data, int64_t split) {
    const int shift = (int)(data % 16) / element_size(format);
    row_place p = {0, 0, 0, a->group};
    p.first = (int)(split * a->part) + ((int)threadIdx.x & (a->group - 1)) * PIECE - shift;
    p.cols = (int)min(a->length, (split + 1) * a->part - shift);
    return p;
}
INLINE int64_t item_of_group(const reduce_vector_arguments *a) { return (int64_t)blockIdx.x * (CUDA_THREADS / a->group) + (int)threadIdx.x / a->group; }

INLINE double lanes_join(int function, double x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = join(function, x, __shfl_xor_sync(~0u, x, step));
    return x;
}

INLINE void reduce_row(const int format, const reduce_vector_arguments *a) {
    __shared__ double of_warp[WARPS];
    const int pieces = PIECES_MOST, function = a->function;
    const int64_t item = item_of_group(a), result = item / a->splits, split = item % a->splits;
    if (result >= a->outer.count) return;   /* all of a group's threads together */
    int64_t at[2];
    nest_offsets(&a->outer, result, 2, at);
    const uint64_t data = row_data(&a->x, format, at[1]);
    row_place p = place_in_row(a, format, data, split);
    double total = start_of(function);
#pragma unroll 1
    for (int64_t done = 0; done < a->part; done += (int64_t)a->group * PIECES_MOST * PIECE, p.first += a->group * PIECES_MOST * PIECE) {
        row_values values;
        load_turn(format, data, 1, &p, nothing_of(function), &values);
        EACH_PIECE(c) {
            float x[PIECE];
            piece_floats(format, &values, c, x);
            total = join_piece(function, total, x);
        }
    }
    total = lanes_join(function, total);
    if (a->group > 32) {
        if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = total;
        __syncthreads();
        total = of_warp[0];
        for (int i = 1; i < WARPS; i++) total = join(function, total, of_warp[i]);
    }
    if (((int)threadIdx.x & (a->group - 1)) == 0) store_result(a, result, split, a->splits, total);
}

/* ---- where the largest element of a row is ---- */

typedef struct best { float value; int64_t index; } best;

/* The first of the largest; a NaN is larger than all numbers. */
INLINE best better(best x, best y) {
    const bool x_is_nan = x.value != x.value, y_is_nan = y.value != y.value;
    const bool same = x_is_nan || y_is_nan ? x_is_nan && y_is_nan : x.value == y.value;
    if (same) return x.index < y.index ? x : y;
    return x_is_nan || x.value > y.value ? x : y;
}

INLINE void store_best(const reduce_vector_arguments *a, int64_t result, int64_t split, int64_t splits, best found) {
    if (splits > 1) {
        ((double *)a->partial)[split * a->outer.count + result] = (double)found.value;
        ((int64_t *)a->partial)[(a->splits + split) * a->outer.count + result] = found.index;
        return;
    }
    int64_t at[2];
    nest_offsets(&a->outer, result, 2, at);
    const bool is_number = !a->finite || found.value - found.value == 0;
    store_int(&a->out, at[0], is_number ? found.index : found.value < 0 ? -2 : -1);
}

INLINE best lanes_best(best x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const best other = {__shfl_xor_sync(~0u, x.value, step), (int64_t)__shfl_xor_sync(~0u, (long long)x.index, step)};
        x = better(x, other);
    }
    return x;
}

INLINE void find_in_row(const int format, const reduce_vector_arguments *a) {
    __shared__ best of_warp[WARPS];
    const int pieces = PIECES_MOST;
    const bool negates = is_negated(a->function);
    const int64_t item = item_of_group(a), result = item / a->splits, split = item % a->splits;
    if (result >= a->outer.count) return;
    int64_t at[2];
    nest_offsets(&a->outer, result, 2, at);
    const uint64_t data = row_data(&a->x, format, at[1]);
    row_place p = place_in_row(a, format, data, split);
    best found = {-INFINITE, INT64_MAX};
#pragma unroll 1
    for (int64_t done = 0; done < a->part; done += (int64_t)a->group * PIECES_MOST * PIECE, p.first += a->group * PIECES_MOST * PIECE) {
        row_values values;
        load_turn(format, data, 1, &p, negates ? INFINITE : -INFINITE, &values);
        EACH_PIECE(c) {
            float x[PIECE], most;
            piece_floats(format, &values, c, x);
            EACH_OF_PIECE(i) x[i] = negates ? -x[i] : x[i];
            most = x[0];
#pragma unroll
            for (int i = 1; i < PIECE; i++) most = max_nan(most, x[i]);
            if (!(most > found.value) && (most == most || found.value != found.value) && found.index != INT64_MAX) continue;
            EACH_OF_PIECE(i) {
                const best one = {x[i], piece_col(&p, c) + i};
                if (is_inside(&p, c, i)) found = better(found, one);
            }
        }
    }
    found = lanes_best(found);
    if (a->group > 32) {
        if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = found;
        __syncthreads();
        found = of_warp[0];
        for (int i = 1; i < WARPS; i++) found = better(found, of_warp[i]);
    }
    if (((int)threadIdx.x & (a->group - 1)) == 0) store_best(a, result, split, a->splits, found);
}

/* ---- columns ---- */

INLINE int64_t inner_offset(const reduce_vector_arguments *a, int64_t line) {
    int64_t at[1];
    if (a->inner.rank == 1) return line * a->inner.strides[0][0];
    nest_offsets(&a->inner, line, 1, at);
    return at[0];
}

/* Eight columns of four of the warp's lines. */
INLINE void load_lines(const int format, const reduce_vector_arguments *a, uint64_t data, const row_place *p, bool in_words, int64_t line, int64_t end, row_values *values) {
    const int function = a->function;
#pragma unroll
    for (int k = 0; k < ROWS_AT_ONCE; k++) {
        const float nothing = nothing_of(function);
        const uint64_t from = data + (uint64_t)(inner_offset(a, min(line + k * WARPS, end - 1)) * element_size(format));
        if (in_words && format == CUDA_f32) {
            piece_of_words(((const uint4 *)from)[p->first / 4], ((const uint4 *)from)[p->first / 4 + 1], values->x[k]);
        } else if (in_words) {
            values->words[k] = ((const uint4 *)from)[p->first / PIECE];
        } else {
            float x[PIECE];
            load_piece(format, from, 1, p, 0, 0, x);
            if (format != CUDA_f32) values->words[k] = pack_halves(format, x);
            else EACH_OF_PIECE(i) values->x[k][i] = x[i];
        }
        if (line + k * WARPS < end) continue;
        if (format != CUDA_f32) values->words[k] = make_uint4(pack_pair(format, nothing, nothing), pack_pair(format, nothing, nothing), pack_pair(format, nothing, nothing), pack_pair(format, nothing, nothing));
        else EACH_OF_PIECE(i) values->x[k][i] = nothing;
    }
}

/* All of the warp's lines. */
INLINE void join_lines(const int format, const reduce_vector_arguments *a, uint64_t data, const row_place *p, int64_t begin, int64_t end, double *totals) {
    const int function = a->function;
    const bool in_words = is_whole_piece(p, 0) && a->inner.rank == 1 && ((data + (uint64_t)(p->first * element_size(format))) | (uint64_t)(a->inner.strides[0][0] * element_size(format))) % 16 == 0;
#pragma unroll 1
    for (int64_t line = begin; line < end; line += WARPS * ROWS_AT_ONCE) {
        row_values values;
        float x[ROWS_AT_ONCE][PIECE];
        load_lines(format, a, data, p, in_words, line, end, &values);
#pragma unroll
        for (int k = 0; k < ROWS_AT_ONCE; k++) piece_floats(format, &values, k, x[k]);
        if (adds(function)) {
            EACH_OF_PIECE(i) totals[i] += (double)((x[0][i] + x[1][i]) + (x[2][i] + x[3][i]));
        } else if (function == REDUCE_prod) {
            EACH_OF_PIECE(i) totals[i] *= (double)x[0][i] * (double)x[1][i] * ((double)x[2][i] * (double)x[3][i]);
        } else {
            EACH_OF_PIECE(i) {
                float most = turn_element(function, x[0][i]);
#pragma unroll
                for (int k = 1; k < ROWS_AT_ONCE; k++) most = max_nan(most, turn_element(function, x[k][i]));
                totals[i] = join(function, totals[i], (double)most);
            }
        }
    }
}

INLINE void reduce_columns(const int format, const reduce_vector_arguments *a) {
    __shared__ double held[WARPS][PIECE][32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, function = a->function;
    const int64_t width = a->outer.dims[a->outer.rank - 1], line_pieces = (width + PIECE - 1) / PIECE, tiles = gridDim.x / a->splits;
    const int64_t split = blockIdx.x / tiles, piece = blockIdx.x % tiles * 32 + lane, line = piece / line_pieces;   /* blocks side by side read lines side by side */
    const bool is_there = line * width < a->outer.count;
    const row_place p = {0, (int)width, (int)(piece % line_pieces) * PIECE, 32};
    double totals[PIECE];
    EACH_OF_PIECE(i) totals[i] = start_of(function);
    if (is_there) {
        int64_t at[2];
        nest_offsets(&a->outer, line * width, 2, at);
        join_lines(format, a, row_data(&a->x, format, at[1]), &p, split * a->part + warp, min(a->length, (split + 1) * a->part), totals);
    }
    EACH_OF_PIECE(i) held[warp][i][lane] = totals[i];
    __syncthreads();
    if (!is_there) return;
    double total = held[0][warp][lane];   /* a warp takes column number warp of each piece */
    for (int i = 1; i < WARPS; i++) total = join(function, total, held[i][warp][lane]);
    if (p.first + warp < p.cols) store_result(a, line * width + p.first + warp, split, a->splits, total);
}
static_assert((int)WARPS == (int)PIECE && (int)ROWS_AT_ONCE == (int)PIECES_MOST, "a warp for each column of a piece; lines are held as pieces");

/* ---- parts ---- */

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) reduce_join(const __grid_constant__ reduce_vector_arguments arguments) {
    grid_release();
    grid_wait();
    const int64_t result = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const bool finds = arguments.function == REDUCE_argmax || arguments.function == REDUCE_argmin;
    if (result >= arguments.outer.count) return;
    double total = start_of(arguments.function);
    best found = {-INFINITE, INT64_MAX};
    for (int64_t split = threadIdx.x % 32; split < arguments.splits; split += 32) {
        const double part = ((const double *)arguments.partial)[split * arguments.outer.count + result];
        if (finds) {
            const best other = {(float)part, ((const int64_t *)arguments.partial)[(arguments.splits + split) * arguments.outer.count + result]};
            found = better(found, other);
        } else {
            total = join(arguments.function, total, part);
        }
    }
    if (finds) {
        found = lanes_best(found);
        if (threadIdx.x % 32 == 0) store_best(&arguments, result, 0, 1, found);
    } else {
        total = lanes_join(arguments.function, total);
        if (threadIdx.x % 32 == 0) store_result(&arguments, result, 0, 1, total);
    }
}

#define ENTRY(name, function, format, blocks) \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS, blocks) name(const __grid_constant__ reduce_vector_arguments arguments) { \
        grid_release();                                                                                                                   \
        grid_wait();                                                                                                                      \
        function(format, &arguments);                                                                                                     \
    }
#define ENTRIES(format)                                                \
    ENTRY(reduce_rows_##format, reduce_row, CUDA_##format, 3)          \
    ENTRY(reduce_found_##format, find_in_row, CUDA_##format, 3)        \
    ENTRY(reduce_columns_##format, reduce_columns, CUDA_##format, 2)

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
