/* cross_entropy and its gradient on Hopper and later: a block for each row, which is read once. Of 16 and 32 bits, in words of 16 bytes wherever the row begins in memory
 * (row_chunks.cuh says how); what lies otherwise element by element.
 *
 *   loss      a thread keeps its largest logit and the sum of exponentials below it, which is brought down when a larger one comes; a block adds those of its threads in double. Of 16 bits the next
 *             turn's logits are on their way meanwhile
 *   gradient  from the logarithm of the sum, a piece at a time: gmem -> reg -> gmem
 *
 * Exponentials in fp32, of differences from the largest. A label outside the classes has a loss of NaN, and a row of NaN as its gradient. Speed: README.md. */
#include "kernels/gpu/rows/row_chunks.cuh"
#include "kernels/loss/loss_rows.h"

#define LOG2_E 1.4426950408889634f

/* This thread's pieces of the row that begins at data, turn by turn. Pieces begin where 16 bytes begin. */
INLINE row_place loss_place(const int format, const int threads, uint64_t data, int count) {
    const int shift = (int)(data % 16) / element_size(format);
    return (row_place){0, count, (int)threadIdx.x * PIECE - shift, threads};
}
INLINE int turn_columns(const row_place *p) { return PIECES_MOST * p->group * PIECE; }
INLINE int loss_turns(const row_place *p) { return (p->cols - p->first + (int)threadIdx.x * PIECE + turn_columns(p) - 1) / turn_columns(p); }

/* A thread's part of a row: its largest element, which is NaN if any is, and the sum of exponentials of the others' differences from it; plain: of the elements. */
typedef struct loss_part { float most, sum, plain; } loss_part;

/* What exponents are counted from: infinities leave none. */
INLINE float base_of(float most) { return most == -INFINITE ? 0 : most; }

INLINE void take_values(const int format, const row_place *p, const bool is_smoothed, const row_values *values, loss_part *part) {
    float most = part->most, added = 0;
#pragma unroll
    for (int c = 0; c < PIECES_MOST; c++) {
        float x[PIECE];
        piece_floats(format, values, c, x);
        EACH_OF_PIECE(i) most = max_nan(most, x[i]);
    }
    const float base = base_of(most);
#pragma unroll
    for (int c = 0; c < PIECES_MOST; c++) {
        float x[PIECE];
        if (piece_col(p, c) >= p->cols) continue;   /* the end of the row: what is not there adds nothing */
        piece_floats(format, values, c, x);
        EACH_OF_PIECE(i) added += ex2((x[i] - base) * LOG2_E);
    }
    part->sum = part->sum * ex2((part->most - base) * LOG2_E) + added;
    part->most = most;
    if (!is_smoothed) return;
#pragma unroll
    for (int c = 0; c < PIECES_MOST; c++) {
        float x[PIECE];
        piece_floats(format, values, c, x);
        EACH_OF_PIECE(i) part->plain += is_inside(p, c, i) ? x[i] : 0;
    }
}

/* Of all threads of the block, in their order; every thread gets them. */
typedef struct loss_sums { float most; double sum, plain; } loss_sums;

INLINE double add_lanes(double x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

INLINE loss_sums add_parts(const loss_part *part) {
    __shared__ float mosts[LOSS_ROW_THREADS / 32];
    __shared__ double sums[LOSS_ROW_THREADS / 32], plains[LOSS_ROW_THREADS / 32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float own = lanes_max(part->most, 32);
    const double sum = add_lanes((double)(part->sum * ex2((part->most - base_of(own)) * LOG2_E))), plain = add_lanes((double)part->plain);
    if (lane == 0) mosts[warp] = own, sums[warp] = sum, plains[warp] = plain;
    __syncthreads();
    loss_sums all = {mosts[0], 0, 0};
    for (int i = 1; i < LOSS_ROW_THREADS / 32; i++) all.most = max_nan(all.most, mosts[i]);
    for (int i = 0; i < LOSS_ROW_THREADS / 32; i++) {
        all.sum += sums[i] * (double)ex2((mosts[i] - base_of(all.most)) * LOG2_E);
        all.plain += plains[i];
    }
    return all;
}

INLINE void loss_rows(const int format, const loss_arguments *a) {
    int64_t at[4];
    grid_release();
    grid_wait();
    nest_offsets(&a->nest, blockIdx.x, 4, at);
    const uint64_t row = row_data(&a->logits, format, at[1]);
    const bool is_smoothed = a->smoothing > 0;
    row_place p = loss_place(format, LOSS_ROW_THREADS, row, (int32_t)a->count);
    loss_part part = {-INFINITE, 0, 0};
    row_values values, next;
    int turns = loss_turns(&p);
    load_turn(format, row, a->step, &p, -INFINITE, &next);
#pragma unroll 1
    for (; turns > 1; turns--) {
        const row_place here = p;
        values = next;
        p.first += turn_columns(&p);
        if (format != CUDA_f32) load_turn(format, row, a->step, &p, -INFINITE, &next);
        take_values(format, &here, is_smoothed, &values, &part);
        if (format == CUDA_f32) load_turn(format, row, a->step, &p, -INFINITE, &next);
    }
    take_values(format, &p, is_smoothed, &next, &part);
    const loss_sums all = add_parts(&part);
    if (threadIdx.x > 0) return;
    const int64_t label = load_int(&a->labels, at[0]);
    const bool is_infinite = all.most == -INFINITE || all.most == INFINITE;
    const double most = all.most, low = is_infinite ? 0 : log(all.sum);     /* the two apart, as what is near 0 is lost beside a large one */
    double loss = 0;
    if (!a->has_ignore || label != a->ignore) {
        const double own = label < 0 || label >= (int32_t)a->count ? (double)NOT_A_NUMBER : (double)element_at(format, row, label * a->step);
        loss = a->smoothing > 0 ? most + low - (1 - a->smoothing) * own - a->smoothing * (all.plain / (double)(int32_t)a->count) : most - own + low;
    }
    store_double(&a->made, at[2], loss);
    store_double(&a->lse, at[3], most + low);
}

INLINE void loss_gradients(const int format, const loss_arguments *a) {
    int64_t at[5];
    grid_release();
    grid_wait();
    nest_offsets(&a->nest, blockIdx.x, 5, at);
    const uint64_t row = row_data(&a->logits, format, at[1]), to = row_data(&a->made, format, at[2]);
    const int64_t label = load_int(&a->labels, at[0]);
    const float lse = (float)load_double(&a->lse, at[3]), shared = (float)(a->smoothing / (double)(int32_t)a->count), own = (float)(1 - a->smoothing);
    const bool counts = !a->has_ignore || label != a->ignore, is_class = label >= 0 && label < (int32_t)a->count;
    const float d = !counts ? 0 : is_class ? (float)load_double(&a->d, at[4]) : NOT_A_NUMBER;
    const int classes = (int32_t)a->count;
    row_place p = loss_place(format, LOSS_THREADS, row, (int32_t)a->columns);
    for (int turn = loss_turns(&p); turn > 0; turn--, p.first += turn_columns(&p)) {
        row_values values;
        load_turn(format, row, a->step, &p, 0, &values);
#pragma unroll
        for (int c = 0; c < PIECES_MOST; c++) {
            float x[PIECE];
            piece_floats(format, &values, c, x);
            EACH_OF_PIECE(i) x[i] = counts && piece_col(&p, c) + i < classes ? d * (ex2((x[i] - lse) * LOG2_E) - (piece_col(&p, c) + i == label ? own : 0) - shared) : 0;
            store_piece(format, to, a->made_step, &p, c, x);
        }
    }
}

#define ENTRIES(format)                                                                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(LOSS_ROW_THREADS, 3) loss_rows_##format(const __grid_constant__ loss_arguments arguments) { loss_rows(CUDA_##format, &arguments); }                   \
    extern "C" __global__ void __launch_bounds__(LOSS_THREADS) loss_gradients_##format(const __grid_constant__ loss_arguments arguments) { loss_gradients(CUDA_##format, &arguments); }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
