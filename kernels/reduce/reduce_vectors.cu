/* Reductions of f32, bf16 and f16 in vectors of eight: over rows that lie side by side, by a warp or a block each, and over other axes where what stays lies side by side.
 *
 *     rows:      a warp or a block reads a part of a row, 4 pieces a thread in flight     -> shuffles, smem -> a result, or a partial one of many
 *     columns:   8 threads read 64 columns of a line, 32 such groups take lines in turns of 4 or 8 -> smem -> 64 results, or partial ones of many, which the last block of the tile to come joins
 *
 * Where that leaves multiprocessors idle, each result is made in parts. Those of rows a second launch puts together, in order, as the last block does those of columns. Eight elements (columns: four) are added in fp32, all else in double; the order depends on the
 * shape, the strides and the number of multiprocessors alone, of rows also on where in 16 bytes each begins. Resources: up to 18 KiB of shared memory. Speed: README.md. */
#include "kernels/gpu/ptx/global.cuh"
#include "kernels/gpu/rows/row_chunks.cuh"
#include "kernels/reduce/reduce_cuda.h"

enum { WARPS = CUDA_THREADS / 32, ROWS_AT_ONCE = 4, QUARTERS = CUDA_THREADS / REDUCE_TILE, AT_ONCE = 8 /* parts of a column in a thread's registers */ };

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

/* Eight columns of so many of the thread's next four lines, step bytes apart; more than four are four. */
INLINE void load_four(const int format, uint64_t from, int64_t step, int64_t lines, row_values *values) {
#pragma unroll
    for (int k = 0; k < ROWS_AT_ONCE; k++, from += step) {
        if (k >= lines) continue;
        if (format == CUDA_f32) piece_of_words(((const uint4 *)from)[0], ((const uint4 *)from)[1], values->x[k]);
        else values->words[k] = *(const uint4 *)from;
    }
}

/* Those of four lines are joined in fp32, then to the totals. */
INLINE void join_four(int function, float x[ROWS_AT_ONCE][PIECE], double *totals) {
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

/* So many lines in words, at most four: what is not there changes nothing. */
INLINE void join_words(const int format, int function, const row_values *values, int64_t lines, double *totals) {
    float x[ROWS_AT_ONCE][PIECE];
#pragma unroll
    for (int k = 0; k < ROWS_AT_ONCE; k++) {
        piece_floats(format, values, k, x[k]);
        if (k >= lines) EACH_OF_PIECE(i) x[k][i] = nothing_of(function);
    }
    join_four(function, x, totals);
}

/* All of the thread's lines, four at a time, of which the last may not all be there. In words, where they lie so: loads of four, or eight of 16 bits, that nothing stands between. */
INLINE void join_lines(const int format, const reduce_vector_arguments *a, uint64_t data, const row_place *p, int64_t line, int64_t end, double *totals) {
    enum { FOUR = ROWS_AT_ONCE * REDUCE_GROUPS };
    const int function = a->function;
    const int64_t line_bytes = a->inner.strides[0][0] * element_size(format), step = line_bytes * REDUCE_GROUPS;
    const uint64_t from = data + (uint64_t)((int64_t)p->first * element_size(format));
    row_values values;
    if (is_whole_piece(p, 0) && a->inner.rank == 1 && (from | (uint64_t)line_bytes) % 16 == 0) {
        int64_t left = (end - line + REDUCE_GROUPS - 1) / REDUCE_GROUPS;
#pragma unroll 1
        for (; format != CUDA_f32 && left > ROWS_AT_ONCE; line += 2 * FOUR, left -= 2 * ROWS_AT_ONCE) {
            row_values more;
            load_four(format, from + (uint64_t)(line * line_bytes), step, ROWS_AT_ONCE, &values);
            load_four(format, from + (uint64_t)((line + FOUR) * line_bytes), step, left - ROWS_AT_ONCE, &more);
            join_words(format, function, &values, ROWS_AT_ONCE, totals);
            join_words(format, function, &more, left - ROWS_AT_ONCE, totals);
        }
#pragma unroll 1
        for (; left > 0; line += FOUR, left -= ROWS_AT_ONCE) {
            load_four(format, from + (uint64_t)(line * line_bytes), step, left, &values);
            join_words(format, function, &values, left, totals);
        }
        return;
    }
#pragma unroll 1
    for (; line < end; line += FOUR) {
        float x[ROWS_AT_ONCE][PIECE];
#pragma unroll
        for (int k = 0; k < ROWS_AT_ONCE; k++) {
            EACH_OF_PIECE(i) x[k][i] = nothing_of(function);
            if (line + k * REDUCE_GROUPS < end) load_piece(format, data + (uint64_t)(inner_offset(a, line + k * REDUCE_GROUPS) * element_size(format)), 1, p, 0, 0, x[k]);
        }
        join_four(function, x, totals);
    }
}

/* The threads' sums, held by their groups, become the block's, in the threads of its columns. */
INLINE double join_groups(int function, double (*held)[REDUCE_TILE]) {
    const int column = (int)threadIdx.x % REDUCE_TILE, quarter = (int)threadIdx.x / REDUCE_TILE;
    double total = held[quarter][column];
    for (int i = quarter + QUARTERS; i < REDUCE_GROUPS; i += QUARTERS) total = join(function, total, held[i][column]);
    held[quarter][column] = total;   /* where it was the first to read */
    __syncthreads();
    for (int i = 1; i < QUARTERS; i++) total = join(function, total, held[i][column]);
    return total;
}

/* Is this the last of so many blocks to come, all of whom have written before? Its counter is left at 0, for the next launch. */
INLINE bool comes_last(uint32_t *counter, uint32_t blocks) {
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atom_add_acq_rel(counter, 1) == blocks - 1;
        if (is_last) *counter = 0;
    }
    __syncthreads();
    return is_last;
}

/* A tile's columns over its parts, in order, in the first threads. */
INLINE double join_parts(int function, const double *parts, int64_t splits, double (*held)[REDUCE_TILE]) {
    const int column = (int)threadIdx.x % REDUCE_TILE, quarter = (int)threadIdx.x / REDUCE_TILE;
    double total = start_of(function);
#pragma unroll 1
    for (int64_t split = quarter; split < splits; split += QUARTERS * AT_ONCE) {
        double x[AT_ONCE];   /* all on their way together */
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) x[k] = split + k * QUARTERS < splits ? parts[(split + k * QUARTERS) * REDUCE_TILE + column] : start_of(function);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) total = join(function, total, x[k]);
    }
    held[quarter][column] = total;
    __syncthreads();
    for (int i = 1; i < QUARTERS; i++) total = join(function, total, held[i][column]);
    return total;
}

INLINE void reduce_columns(const int format, const reduce_vector_arguments *a) {
    __shared__ double held[REDUCE_GROUPS][REDUCE_TILE];
    const int lane = (int)threadIdx.x % REDUCE_LANES, group = (int)threadIdx.x / REDUCE_LANES, function = a->function;
    const int64_t width = a->outer.dims[a->outer.rank - 1], line_pieces = (width + PIECE - 1) / PIECE, tiles = gridDim.x / a->splits;
    const int64_t split = blockIdx.x / tiles, tile = blockIdx.x % tiles, first = tile * REDUCE_LANES;   /* blocks side by side read lines side by side */
    const int64_t piece = first + lane, line = piece / line_pieces;
    const int64_t begin = split * a->part, end = min(a->length, begin + a->part);
    const row_place p = {0, (int)width, (int)(piece % line_pieces) * PIECE, 32};
    double totals[PIECE], *parts = (double *)a->partial + tile * a->splits * REDUCE_TILE;
    EACH_OF_PIECE(i) totals[i] = start_of(function);
    if (line * width < a->outer.count && begin < end) {
        int64_t at[2];
        nest_offsets(&a->outer, line * width, 2, at);
        join_lines(format, a, row_data(&a->x, format, at[1]), &p, begin + group, end, totals);
    }
    EACH_OF_PIECE(i) held[group][i * REDUCE_LANES + lane] = totals[i];
    __syncthreads();
    double total = join_groups(function, held);
    if (a->splits > 1) {
        if (threadIdx.x < REDUCE_TILE) parts[split * REDUCE_TILE + threadIdx.x] = total;
        if (!comes_last(a->counters + tile, (uint32_t)a->splits)) return;
        total = join_parts(function, parts, a->splits, held);
    }
    if (threadIdx.x >= REDUCE_TILE) return;
    const int64_t its_piece = first + threadIdx.x % REDUCE_LANES, its_line = its_piece / line_pieces, column = its_piece % line_pieces * PIECE + threadIdx.x / REDUCE_LANES;
    if (its_line * width < a->outer.count && column < width) store_result(a, its_line * width + column, 0, 1, total);
}
static_assert((int)ROWS_AT_ONCE == (int)PIECES_MOST && REDUCE_GROUPS * REDUCE_LANES == CUDA_THREADS, "lines are held as pieces; every thread is of a group");

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
    ENTRY(reduce_columns_##format, reduce_columns, CUDA_##format, REDUCE_RESIDENT)

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
