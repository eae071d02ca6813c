/* layer_norm_backward and rms_norm_backward on Hopper and later, of rows up to 8192: every operand is read once.
 *
 *   a block: teams of threads, a row each, one row after the other; a team is a warp where it can be, so that its sums take no barrier. While a row is worked on, the next one is on its way
 *   row      gmem -> smem by cp.async, where each thread reads its own pieces; sums over the team, all but the mean together; dx -> gmem; what belongs to a column is added up in its thread's
 *            registers. What is added to dx (plus) is asked for when the row's work begins, and used at its end
 *   the end  columns of teams -> smem, added in order -> a block's sums in the workspace; a second kernel adds those of blocks in order
 *
 * In fp32: of rows with numbers beyond 2^60 squares overflow, as in norm_rows.cu. Resources: shared memory for two rows of each team and the weight (BACKWARD_* in backward_rows.h). Speed: README.md. */
#include "kernels/gpu/ptx/half.cuh"
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/norm/backward_rows.h"

enum { DX, X, DY, PLUS };

/* ---- teams ---- */

/* Where this thread stands, which no row changes. A team of 32 threads or fewer has no warps of its own. */
typedef struct team_place {
    int number, lane;             /* of the block's teams; of the team's threads */
    int warps, first_warp;        /* of the team */
} team_place;

INLINE team_place place_team(const norm_backward_rows_arguments *a) {
    const int number = (int)threadIdx.x / a->group, warps = a->group / 32;
    return (team_place){number, (int)threadIdx.x - number * a->group, warps, number * warps};
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

/* ---- elements of a thread ----
 *
 * Words of 16 bytes beside those of its neighbours in the team, so that a warp reads lines whole: of 16-bit formats a piece each, of f32 two for each piece. In registers they are quads, two for each
 * piece, of four elements side by side. */

#define EACH_WORD(k) _Pragma("unroll") for (int k = 0; k < pieces * (format == CUDA_f32 ? 2 : 1); k++)
#define EACH_QUAD(q) _Pragma("unroll") for (int q = 0; q < 2 * pieces; q++)
#define EACH_OF_QUAD(i) _Pragma("unroll") for (int i = 0; i < QUAD; i++)
enum { QUAD = 4, QUADS_MOST = 2 * BACKWARD_PIECES };

INLINE int word_elements(const int format) { return format == CUDA_f32 ? QUAD : PIECE; }
INLINE int word_col(const int format, const norm_backward_rows_arguments *a, const team_place *t, int k) { return (k * a->group + t->lane) * word_elements(format); }
INLINE int quad_col(const int format, const norm_backward_rows_arguments *a, const team_place *t, int q) {
    return format == CUDA_f32 ? word_col(format, a, t, q) : word_col(format, a, t, q / 2) + q % 2 * QUAD;
}

/* Where row begins in operand k. */
INLINE uint64_t row_of(const norm_backward_rows_arguments *a, const int format, const cuda_array *array, int row, const int k) {
    if (a->nest.rank <= 1) return row_data(array, format, row * a->nest.strides[k][0]);
    int64_t at[4];
    nest_offsets(&a->nest, row, 4, at);
    return row_data(array, format, at[k]);
}

INLINE bool lies_in_words(const int format, const norm_backward_rows_arguments *a, uint64_t data, int64_t step) { return step == 1 && (data % 16 | (uint64_t)(a->cols % word_elements(format))) == 0; }

INLINE float float_of(uint32_t bits) { return __uint_as_float(bits); }

/* ---- rows in shared memory ---- */

/* The block's: rows of x and of dy, two each, then one of plus; the weight, as fp32, which all teams share. room: where this thread's part of the first row begins. */
enum { ROOM_X = 0, ROOM_DY = 2, ROOM_PLUS = 4 };
INLINE uint32_t room_of(const norm_backward_rows_arguments *a, uint32_t room, int number) { return room + (uint32_t)number * a->row_bytes; }
INLINE uint32_t word_room(uint32_t row, const int k) { return row + (uint32_t)(k * (int)blockDim.x * 16); }
INLINE uint32_t weight_room(const norm_backward_rows_arguments *a, uint32_t base, int q, int lane) { return base + a->rows_bytes + (uint32_t)((q * a->group + lane) * 16); }

/* The thread's words of the row that begins at data are on their way, or there already where they do not lie so. Those behind its end are not touched. */
INLINE void bring_row(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, uint64_t data, int64_t step, uint32_t to) {
    if (lies_in_words(format, a, data, step)) {
        EACH_WORD(k) {
            const int col = word_col(format, a, t, k);
            if (col < a->cols) cp_async_stream(word_room(to, k), (const void *)(data + (uint64_t)col * (format == CUDA_f32 ? 4 : 2)), 16);
        }
        return;
    }
#pragma unroll 1
    for (int q = 0; q < 2 * pieces; q++) {
        const int col = quad_col(format, a, t, q);
        float x[QUAD];
        EACH_OF_QUAD(i) x[i] = col + i < a->cols ? element_at(format, data, (col + i) * step) : 0;
        if (format == CUDA_f32) st_shared_f32x4(word_room(to, q), x[0], x[1], x[2], x[3]);
        else st_shared_u32x2(word_room(to, q / 2) + q % 2 * 8, pack_pair(format, x[0], x[1]), pack_pair(format, x[2], x[3]));
    }
}

/* Zeros behind the row's end, where nothing else is written, and the weight, 1 where there is none. base: where the block's memory begins. */
INLINE void fill_room(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, uint32_t base, uint32_t room) {
    EACH_WORD(k) {
        if (word_col(format, a, t, k) < a->cols) continue;
        for (int i = 0; i < BACKWARD_ROWS; i++) st_shared_u32x4(word_room(room_of(a, room, i), k), make_uint4(0, 0, 0, 0));
    }
#pragma unroll 1
    for (int place = (int)threadIdx.x; place < 2 * pieces * a->group; place += (int)blockDim.x) {
        const team_place other = {0, place % a->group, 0, 0};
        const int q = place / a->group, col = quad_col(format, a, &other, q);
        float w[QUAD];
        EACH_OF_QUAD(i) w[i] = !a->has_weight ? 1 : col + i < a->cols ? element_at(a->weight.format, a->weight.data, (col + i) * a->weight_step) : 0;
        st_shared_f32x4(weight_room(a, base, q, other.lane), w[0], w[1], w[2], w[3]);
    }
}

INLINE void take_f32(uint32_t at, float *x) {
    const uint4 bits = ld_shared_u32x4(at);
    x[0] = float_of(bits.x), x[1] = float_of(bits.y), x[2] = float_of(bits.z), x[3] = float_of(bits.w);
}
/* Quad q of a row, in order: what a load of 16-bit elements has of two stays in words. */
INLINE void take_quad(const int format, uint32_t row, const int q, uint4 *words, float *x) {
    if (format == CUDA_f32) {
        take_f32(word_room(row, q), x);
        return;
    }
    if (q % 2 == 0) *words = ld_shared_u32x4(word_room(row, q / 2));
    unpack_pair(format, q % 2 ? words->z : words->x, x);
    unpack_pair(format, q % 2 ? words->w : words->y, x + 2);
}

/* The thread's elements to the row that begins at data; what does not lie in words, one by one from a row's room that is no longer needed. */
INLINE void store_row(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, uint64_t data, int64_t step, uint32_t row, float x[][QUAD]) {
    const bool in_words = lies_in_words(format, a, data, step);
    EACH_WORD(k) {
        const int col = word_col(format, a, t, k);
        const uint4 words = format == CUDA_f32 ? make_uint4(__float_as_uint(x[k][0]), __float_as_uint(x[k][1]), __float_as_uint(x[k][2]), __float_as_uint(x[k][3]))
                                               : make_uint4(pack_pair(format, x[2 * k][0], x[2 * k][1]), pack_pair(format, x[2 * k][2], x[2 * k][3]), pack_pair(format, x[2 * k + 1][0], x[2 * k + 1][1]),
                                                            pack_pair(format, x[2 * k + 1][2], x[2 * k + 1][3]));
        if (!in_words) st_shared_u32x4(word_room(row, k), words);
        else if (col < a->cols) *(uint4 *)(data + (uint64_t)col * (format == CUDA_f32 ? 4 : 2)) = words;
    }
    if (in_words) return;
#pragma unroll 1
    for (int e = 0; e < pieces * PIECE; e++) {
        const int k = e / word_elements(format), i = e % word_elements(format), col = word_col(format, a, t, k) + i;
        if (col >= a->cols) break;
        if (format == CUDA_f32) ((float *)data)[col * step] = ld_shared_f32(word_room(row, k) + i * 4);
        else ((uint16_t *)data)[col * step] = (uint16_t)(ld_shared_u32(word_room(row, k) + i / 2 * 4) >> (i % 2 * 16));
    }
}

/* ---- a row's work ---- */

/* What a thread adds up of its columns: of dweight, of dbias. */
typedef struct backward_columns { float weight[QUADS_MOST][QUAD], bias[QUADS_MOST][QUAD]; } backward_columns;

/* odd: which of the two rows that are there. rooms: of the row's two sums. */
INLINE void work_row(const int pieces, const int format, const bool centred, const norm_backward_rows_arguments *a, const team_place *t, uint32_t base, uint32_t room, int odd, int row,
                     float4 (*rooms)[BACKWARD_WIDE_THREADS / 32], backward_columns *columns) {
    const uint32_t x_at = room_of(a, room, ROOM_X + odd), dy_at = room_of(a, room, ROOM_DY + odd);
    const bool again = format != CUDA_f32 && pieces > 2 && centred;   /* x is read again, as registers are short */
    float x[QUADS_MOST][QUAD], dy[QUAD], w[QUAD], mean = 0;
    uint4 words, x_words;
    team_sums s = {{0, 0, 0, 0}};   /* squares, along the gradient; of the mean's rounding, of the gradient */
    EACH_QUAD(q) take_quad(format, x_at, q, &words, x[q]);
    if (centred) {
        EACH_QUAD(q) EACH_OF_QUAD(i) s.of[0] += x[q][i];
        add_team(1, a, t, rooms[0], &s);
        mean = s.of[0] * a->by_count;
        EACH_QUAD(q) EACH_OF_QUAD(i) x[q][i] -= mean;
        if (!a->is_whole) EACH_QUAD(q) EACH_OF_QUAD(i) x[q][i] = quad_col(format, a, t, q) + i < a->cols ? x[q][i] : 0;
        s.of[0] = 0;
    }
    EACH_QUAD(q) {
        take_quad(format, dy_at, q, &words, dy);
        take_f32(weight_room(a, base, q, t->lane), w);
        EACH_OF_QUAD(i) {
            const float g = dy[i] * w[i];
            s.of[0] = fmaf(x[q][i], x[q][i], s.of[0]);
            s.of[1] = fmaf(x[q][i], g, s.of[1]);
            if (centred) s.of[2] += x[q][i], s.of[3] += g;
        }
    }
    add_team(centred ? 4 : 2, a, t, rooms[1], &s);
    if (row >= a->rows) return;
    /* low: what the mean has lost by its own rounding */
    const float low = s.of[2] * a->by_count, variance = s.of[0] * a->by_count - low * low, rstd = rsqrtf((variance < 0 ? 0 : variance) + a->eps);
    const float along = (s.of[1] - low * s.of[3]) * rstd * a->by_count, less_low = -low * rstd, less_shift = -(s.of[3] * a->by_count) * rstd, less_along = -along * rstd;
    EACH_QUAD(q) {
        take_quad(format, dy_at, q, &words, dy);
        take_f32(weight_room(a, base, q, t->lane), w);
        if (again) {
            take_quad(format, x_at, q, &x_words, x[q]);
            EACH_OF_QUAD(i) x[q][i] -= mean;
        }
        EACH_OF_QUAD(i) {
            const float n = fmaf(x[q][i], rstd, less_low);
            columns->weight[q][i] = fmaf(dy[i], n, columns->weight[q][i]);
            if (centred) columns->bias[q][i] += dy[i];
            x[q][i] = fmaf(n, less_along, fmaf(dy[i] * w[i], rstd, less_shift));   /* rstd (g - shift - n along) */
        }
    }
    if (a->has_plus) {
        cp_async_wait(0);
        EACH_QUAD(q) {
            if (quad_col(format, a, t, q) >= a->cols) continue;
            take_quad(format, room_of(a, room, ROOM_PLUS), q, &words, dy);
            EACH_OF_QUAD(i) x[q][i] += dy[i];
        }
    }
    store_row(pieces, format, a, t, row_of(a, format, &a->dx, row, DX), a->steps[DX], dy_at, x);
}

/* ---- columns ---- */

/* A block's sums of one kind, number 0 or 1: its teams' in order, a column for each thread, one next to the other. kept: of each team its columns. */
INLINE void store_columns(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, const int number, float sums[][QUAD], float *kept) {
    const int team_cols = a->group * pieces * PIECE;
    __syncthreads();
    EACH_QUAD(q) *(float4 *)(kept + t->number * team_cols + quad_col(format, a, t, q)) = make_float4(sums[q][0], sums[q][1], sums[q][2], sums[q][3]);
    __syncthreads();
    for (int col = (int)threadIdx.x; col < a->cols; col += (int)blockDim.x) {
        float sum = 0;
#pragma unroll 8
        for (int team = 0; team < a->teams; team++) sum += kept[team * team_cols + col];
        a->sums[((int64_t)blockIdx.x * 2 + number) * a->cols + col] = sum;
    }
}

INLINE void bring_rows(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, uint32_t room, int row, int odd) {
    const int there = row < a->rows ? row : 0;   /* what is not there is worked on as row 0, and goes nowhere */
    bring_row(pieces, format, a, t, row_of(a, format, &a->x, there, X), a->steps[X], room_of(a, room, ROOM_X + odd));
    bring_row(pieces, format, a, t, row_of(a, format, &a->dy, there, DY), a->steps[DY], room_of(a, room, ROOM_DY + odd));
}

INLINE void norm_backward(const int pieces, const int format, const bool centred, const norm_backward_rows_arguments *a) {
    extern __shared__ __align__(16) uint8_t room_bytes[];
    __shared__ float4 rooms[4][BACKWARD_WIDE_THREADS / 32];
    const team_place t = place_team(a);
    const uint32_t base = shared_address(room_bytes), room = base + threadIdx.x * 16;
    backward_columns columns;
    EACH_QUAD(q) EACH_OF_QUAD(i) columns.weight[q][i] = columns.bias[q][i] = 0;
    grid_release();
    grid_wait();
    bring_rows(pieces, format, a, &t, room, (int)blockIdx.x * a->teams + t.number, 0);
    cp_async_commit();
    fill_room(pieces, format, a, &t, base, room);
    __syncthreads();
#pragma unroll 1
    for (int first = (int)blockIdx.x * a->teams, odd = 0; first < a->rows; odd ^= 1) {
        const int row = first + t.number;
        first += (int)gridDim.x * a->teams;
        if (a->has_plus && row < a->rows) bring_row(pieces, format, a, &t, row_of(a, format, &a->plus, row, PLUS), a->steps[PLUS], room_of(a, room, ROOM_PLUS));
        if (first < a->rows) bring_rows(pieces, format, a, &t, room, first + t.number, odd ^ 1);
        cp_async_commit();
        cp_async_wait(1);
        work_row(pieces, format, centred, a, &t, base, room, odd, row, rooms + 2 * odd, &columns);
    }
    float *kept = (float *)(void *)room_bytes;   /* in place of the rows, of which none is on its way by now */
    store_columns(pieces, format, a, &t, 0, columns.weight, kept);
    if (centred) store_columns(pieces, format, a, &t, 1, columns.bias, kept);
}

#define ENTRY(name, pieces, threads, format, centred)                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(threads, BACKWARD_RESIDENT(pieces, threads, centred)) name(const __grid_constant__ norm_backward_rows_arguments arguments) { \
        norm_backward(pieces, format, centred, &arguments);                                                                                                              \
    }
#define ENTRIES_OF(format, kind, centred)                                                                           \
    ENTRY(norm_backward_##format##_##kind##_1, 1, BACKWARD_THREADS, CUDA_##format, centred)                         \
    ENTRY(norm_backward_##format##_##kind##_2, 2, BACKWARD_THREADS, CUDA_##format, centred)                         \
    ENTRY(norm_backward_##format##_##kind##_3, 3, BACKWARD_THREADS, CUDA_##format, centred)                         \
    ENTRY(norm_backward_##format##_##kind##_wide, 2, BACKWARD_WIDE_THREADS, CUDA_##format, centred)
#define ENTRIES(format) ENTRIES_OF(format, rms, false) ENTRIES_OF(format, layer, true)

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)

/* The sums of blocks: a block for 32 columns, of dweight (number 0) or dbias; each warp adds those of every sixteenth block, and what they have is added in order. */
extern "C" __global__ void __launch_bounds__(BACKWARD_SUM_WARPS * 32) norm_backward_sums(const __grid_constant__ norm_backward_rows_arguments arguments) {
    __shared__ float of_warps[BACKWARD_SUM_WARPS][BACKWARD_SUM_COLS];
    const norm_backward_rows_arguments *a = &arguments;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, col = (int)blockIdx.x * BACKWARD_SUM_COLS + lane, number = (int)blockIdx.y;
    enum { AT_ONCE = 8 };
    float sum = 0;
    grid_release();
    grid_wait();
#pragma unroll 1
    for (int first = warp; first < a->blocks; first += AT_ONCE * BACKWARD_SUM_WARPS) {
        float x[AT_ONCE];   /* all on their way together */
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int block = first + k * BACKWARD_SUM_WARPS;
            x[k] = block < a->blocks && col < a->cols ? a->sums[((int64_t)block * 2 + number) * a->cols + col] : 0;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) sum += x[k];
    }
    of_warps[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || col >= a->cols) return;
    for (int i = 1; i < BACKWARD_SUM_WARPS; i++) sum += of_warps[i][lane];
    if (number == 0) store_double(&a->dweight, col * a->dweight_step, (double)sum);
    else store_double(&a->dbias, col * a->dbias_step, (double)sum);
}
