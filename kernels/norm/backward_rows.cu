/* layer_norm_backward and rms_norm_backward on Hopper and later, of rows up to 8192: every operand is read once.
 *
 *   a block: teams of threads, a row each, one row after the other; where a thread has one piece, the next row is on its way while this one is worked on. Nothing else is loaded behind it, as
 *            loads end in order: the weight stays in registers, and what is added to dx (plus) is on its way before
 *   row      gmem -> reg; sums over the team, all but the mean together; dx -> gmem; what belongs to a column is added up in its thread's registers
 *   the end  columns of teams -> smem, added in order -> a block's sums in the workspace; a second kernel adds those of blocks in order
 *
 * In fp32: of rows with numbers beyond 2^60 squares overflow, as in norm_rows.cu. Resources: up to 33 KiB of shared memory. Speed: README.md. */
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/norm/backward_rows.h"

enum { DX, X, DY, PLUS };

/* ---- teams ---- */

/* Where this thread stands, which no row changes. A team of 32 threads or fewer has no warps of its own. */
typedef struct team_place {
    int number, first;            /* of the block's teams; the column of this thread's piece 0 */
    int warps, first_warp;        /* of the team */
} team_place;

INLINE team_place place_team(const norm_backward_rows_arguments *a) {
    const int number = (int)threadIdx.x / a->group, warps = a->group / 32;
    return (team_place){number, ((int)threadIdx.x - number * a->group) * PIECE, warps, number * warps};
}

typedef struct team_sums { float of[4]; } team_sums;

/* Every thread of a team gets its sums. room: of the block's warps, used by every other sum. */
INLINE void add_team(const int count, const norm_backward_rows_arguments *a, const team_place *t, float4 *room, team_sums *x) {
    if (t->warps > 0) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
#pragma unroll
            for (int i = 0; i < count; i++) x->of[i] += __shfl_xor_sync(~0u, x->of[i], step);
    } else {
#pragma unroll 1
        for (int step = a->group / 2; step > 0; step /= 2)
#pragma unroll
            for (int i = 0; i < count; i++) x->of[i] += __shfl_xor_sync(~0u, x->of[i], step);
    }
    if (t->warps <= 1) return;
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = make_float4(x->of[0], count > 1 ? x->of[1] : 0, count > 2 ? x->of[2] : 0, count > 3 ? x->of[3] : 0);
    barrier_sync(1 + t->number, a->group);
    float4 sum = room[t->first_warp];
#pragma unroll 1
    for (int i = 1; i < t->warps; i++) {
        const float4 other = room[t->first_warp + i];
        sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    x->of[0] = sum.x;
    if (count > 1) x->of[1] = sum.y, x->of[2] = sum.z, x->of[3] = sum.w;
}

/* ---- rows ---- */

INLINE row_place place_row(const norm_backward_rows_arguments *a, const team_place *t, int row) { return (row_place){row, row < a->rows ? a->cols : 0, t->first, a->group}; }

/* Where row begins in operand k. */
INLINE uint64_t row_of(const norm_backward_rows_arguments *a, const int format, const cuda_array *array, int row, const int k) {
    if (a->nest.rank <= 1) return row_data(array, format, row * a->nest.strides[k][0]);
    int64_t at[4];
    nest_offsets(&a->nest, row, 4, at);
    return row_data(array, format, at[k]);
}

typedef struct backward_row { row_values x, dy; } backward_row;

INLINE void fetch_row(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, int row, backward_row *r) {
    const row_place p = place_row(a, t, row);
    const int there = row < a->rows ? row : 0;
    load_values(pieces, format, row_of(a, format, &a->x, there, X), a->steps[X], &p, &r->x);
    load_values(pieces, format, row_of(a, format, &a->dy, there, DY), a->steps[DY], &p, &r->dy);
}

/* 1 where there is none. */
INLINE void load_weight(const int pieces, const norm_backward_rows_arguments *a, const row_place *p, float y[][PIECE]) {
    if (!a->has_weight) EACH_PIECE(c) EACH_OF_PIECE(i) y[c][i] = 1;
    else if (a->weight.format == CUDA_f32) load_pieces(pieces, CUDA_f32, a->weight.data, a->weight_step, p, y);
    else if (a->weight.format == CUDA_bf16) load_pieces(pieces, CUDA_bf16, a->weight.data, a->weight_step, p, y);
    else load_pieces(pieces, CUDA_f16, a->weight.data, a->weight_step, p, y);
}

/* What a thread adds up of its columns: of dweight, of dbias. */
typedef struct backward_columns { float weight[BACKWARD_PIECES][PIECE], bias[BACKWARD_PIECES][PIECE]; } backward_columns;

/* w: the weight; plus: of this row. rooms: of the row's two sums. */
INLINE void work_row(const int pieces, const int format, const bool centred, const norm_backward_rows_arguments *a, const team_place *t, const backward_row *r, float w[][PIECE], const row_values *plus, int row,
                     float4 (*rooms)[BACKWARD_THREADS / 32], backward_columns *columns) {
    const row_place p = place_row(a, t, row);
    float x[PIECES_MOST][PIECE], dy[PIECES_MOST][PIECE], g[PIECES_MOST][PIECE];
    team_sums s = {{0, 0, 0, 0}};
    EACH_PIECE(c) {
        piece_floats(format, &r->x, c, x[c]);
        piece_floats(format, &r->dy, c, dy[c]);
    }
    EACH_PIECE(c) EACH_OF_PIECE(i) g[c][i] = dy[c][i] * w[c][i];
    if (centred) {
        EACH_PIECE(c) EACH_OF_PIECE(i) s.of[0] += x[c][i];
        add_team(1, a, t, rooms[0], &s);
        const float mean = s.of[0] * a->by_count;
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] -= mean;
        zero_tail(pieces, &p, x);
        s.of[0] = 0;
    }
    EACH_PIECE(c) EACH_OF_PIECE(i) {
        if (centred) s.of[0] += x[c][i], s.of[2] += g[c][i];
        s.of[1] = fmaf(x[c][i], x[c][i], s.of[1]);
        s.of[3] = fmaf(x[c][i], g[c][i], s.of[3]);
    }
    add_team(4, a, t, rooms[1], &s);
    if (row >= a->rows) return;
    /* low: what the mean has lost by its own rounding */
    const float low = s.of[0] * a->by_count, variance = s.of[1] * a->by_count - low * low, rstd = rsqrtf((variance < 0 ? 0 : variance) + a->eps);
    const float shift = s.of[2] * a->by_count, along = (s.of[3] - low * s.of[2]) * rstd * a->by_count;
    EACH_PIECE(c) EACH_OF_PIECE(i) {
        const float n = (x[c][i] - low) * rstd;
        columns->weight[c][i] = fmaf(dy[c][i], n, columns->weight[c][i]);
        if (centred) columns->bias[c][i] += dy[c][i];
        x[c][i] = rstd * (g[c][i] - shift - n * along);
    }
    if (a->has_plus) {
        EACH_PIECE(c) {
            piece_floats(format, plus, c, g[c]);
            EACH_OF_PIECE(i) x[c][i] += g[c][i];
        }
    }
    store_pieces(pieces, format, row_of(a, format, &a->dx, row, DX), a->steps[DX], &p, x);
}

/* ---- columns ---- */

/* A block's sums of one kind, number 0 or 1: its teams' in order, a column for each thread, one next to the other. kept: of each thread its pieces. */
INLINE void store_columns(const int pieces, const norm_backward_rows_arguments *a, const int number, float sums[][PIECE], float *kept) {
    const int team_cols = a->group * pieces * PIECE;
    float *own = kept + threadIdx.x * PIECE;
    if (pieces > 1) own += (int)threadIdx.x / a->group * (team_cols - a->group * PIECE);
    __syncthreads();
    EACH_PIECE(c) {
        float4 *to = (float4 *)(own + c * a->group * PIECE);
        to[0] = make_float4(sums[c][0], sums[c][1], sums[c][2], sums[c][3]);
        to[1] = make_float4(sums[c][4], sums[c][5], sums[c][6], sums[c][7]);
    }
    __syncthreads();
    for (int col = (int)threadIdx.x; col < a->cols; col += (int)blockDim.x) {
        float sum = 0;
        for (int team = 0; team < a->teams; team++) sum += kept[team * team_cols + col];
        a->sums[((int64_t)blockIdx.x * 2 + number) * a->cols + col] = sum;
    }
}

INLINE void norm_backward(const int pieces, const int format, const bool centred, const norm_backward_rows_arguments *a, float *kept) {
    __shared__ float4 rooms[4][BACKWARD_THREADS / 32];
    const team_place t = place_team(a);
    const int sweep = (int)gridDim.x * a->teams;
    float w[PIECES_MOST][PIECE];
    row_values plus;
    backward_row next;
    backward_columns columns;
    EACH_PIECE(c) EACH_OF_PIECE(i) columns.weight[c][i] = columns.bias[c][i] = 0;
    grid_release();
    grid_wait();
    if (pieces == 1) {
        const row_place p = place_row(a, &t, 0);
        load_weight(pieces, a, &p, w);
        fetch_row(pieces, format, a, &t, (int)blockIdx.x * a->teams + t.number, &next);
    }
#pragma unroll 1
    for (int first = (int)blockIdx.x * a->teams, odd = 0; first < a->rows; first += sweep, odd ^= 1) {
        const row_place p = place_row(a, &t, first + t.number);
        backward_row r = next;
        if (pieces > 1) load_weight(pieces, a, &p, w);
        if (a->has_plus) load_values(pieces, format, row_of(a, format, &a->plus, p.cols > 0 ? p.row : 0, PLUS), a->steps[PLUS], &p, &plus);
        fetch_row(pieces, format, a, &t, pieces == 1 ? first + sweep + t.number : first + t.number, pieces == 1 ? &next : &r);
        work_row(pieces, format, centred, a, &t, &r, w, &plus, first + t.number, rooms + 2 * odd, &columns);
    }
    store_columns(pieces, a, 0, columns.weight, kept);
    if (centred) store_columns(pieces, a, 1, columns.bias, kept);
}

#define ENTRY(name, pieces, format, centred)                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BACKWARD_IS_NARROW(pieces, format) ? BACKWARD_NARROW_THREADS : BACKWARD_THREADS, BACKWARD_IS_NARROW(pieces, format) ? 2 : 1) name(const __grid_constant__ norm_backward_rows_arguments arguments) {                  \
        __shared__ __align__(16) float kept[BACKWARD_THREADS * pieces * PIECE];                                                                                             \
        norm_backward(pieces, format, centred, &arguments, kept);                                                                                             \
    }
#define ENTRIES(format)                                                          \
    ENTRY(norm_backward_##format##_rms_1, 1, CUDA_##format, false)               \
    ENTRY(norm_backward_##format##_rms_2, 2, CUDA_##format, false)               \
    ENTRY(norm_backward_##format##_layer_1, 1, CUDA_##format, true)              \
    ENTRY(norm_backward_##format##_layer_2, 2, CUDA_##format, true)

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)

/* The sums of blocks: a block for 32 columns; each warp adds those of every sixteenth block, and what they have is added in order. */
extern "C" __global__ void __launch_bounds__(BACKWARD_SUM_WARPS * 32) norm_backward_sums(const __grid_constant__ norm_backward_rows_arguments arguments) {
    __shared__ float of_warps[2][BACKWARD_SUM_WARPS][BACKWARD_SUM_COLS];
    const norm_backward_rows_arguments *a = &arguments;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, col = (int)blockIdx.x * BACKWARD_SUM_COLS + lane;
    float sums[2] = {0, 0};
    grid_release();
    grid_wait();
#pragma unroll 8
    for (int block = warp; block < a->blocks; block += BACKWARD_SUM_WARPS) {
        const float *from = a->sums + (int64_t)block * 2 * a->cols + col;
        if (col >= a->cols) break;
        sums[0] += from[0];
        if (a->centred) sums[1] += from[a->cols];
    }
    of_warps[0][warp][lane] = sums[0];
    of_warps[1][warp][lane] = sums[1];
    __syncthreads();
    if (warp >= 1 + a->centred || col >= a->cols) return;
    float sum = 0;
    for (int i = 0; i < BACKWARD_SUM_WARPS; i++) sum += of_warps[warp][i][lane];
    if (warp == 0) store_double(&a->dweight, col * a->dweight_step, (double)sum);
    else store_double(&a->dbias, col * a->dbias_step, (double)sum);
}
