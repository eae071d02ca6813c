/* layer_norm_backward and rms_norm_backward on Hopper and later, of rows up to 8192: every operand is read once.
 *
 *   a block: teams of threads, a row each, one row after the other; a team is a warp where it can be, so that its sums take no barrier. While a row is worked on, the next one is on its way
 *   row      gmem -> smem by cp.async, where each thread reads its own pieces; sums over the team, together; dx -> gmem; what belongs to a column is added up in its thread's
 *            registers. What is added to dx (plus) is asked for when the row's work begins, and used at its end
 *   the end  columns of teams -> smem, added in order -> each block of a cluster adds a part of the columns over the cluster -> gmem -> of the blocks with this part the last to come adds it over clusters
 *
 * All sums are in an order that the sizes and the chip alone decide: the last to come adds what the others wrote, too. In fp32: of rows with numbers beyond 2^60 squares overflow, as in norm_rows.cu.
 * Squares are around the row's mean, or where a warp has a row of 16 bits around the mean of its first piece, which saves a round of shuffles and loses at most cols / PIECE units of the last place of
 * fp32. Resources: shared memory for two rows of each team and the weight (BACKWARD_* in backward_rows.h). Speed: README.md. */
#include "kernels/gpu/ptx/global.cuh"
#include "kernels/gpu/ptx/half.cuh"
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/norm/backward_rows.h"

enum { DX, X, DY, PLUS };

/* ---- teams ---- */

/* Where this thread stands, which no row changes. A team of 32 threads or fewer has no warps of its own. */
typedef struct team_place {
    int group;                    /* threads of a team: of three pieces each and more a warp, which the compiler then knows */
    int number, lane;             /* of the block's teams; of the team's threads */
    int warps, first_warp;        /* of the team */
} team_place;

INLINE int group_of(const int pieces, const norm_backward_rows_arguments *a) { return pieces > 2 ? 32 : a->group; }
INLINE team_place place_team(const int pieces, const norm_backward_rows_arguments *a) {
    const int group = group_of(pieces, a), number = (int)threadIdx.x / group, warps = group / 32;
    return (team_place){group, number, (int)threadIdx.x - number * group, warps, number * warps};
}

typedef struct team_sums { float of[4]; } team_sums;

/* Every thread of a team gets its sums. room: of the block's warps, used by every other sum. */
INLINE void add_team(const int count, const team_place *t, float4 *room, team_sums *x) {
    if (t->warps > 0) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
#pragma unroll
            for (int i = 0; i < count; i++) x->of[i] += __shfl_xor_sync(~0u, x->of[i], step);
    } else {
#pragma unroll 1
        for (int step = t->group / 2; step > 0; step /= 2)
#pragma unroll
            for (int i = 0; i < count; i++) x->of[i] += __shfl_xor_sync(~0u, x->of[i], step);
    }
    if (t->warps <= 1) return;
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = make_float4(x->of[0], count > 1 ? x->of[1] : 0, count > 2 ? x->of[2] : 0, count > 3 ? x->of[3] : 0);
    barrier_sync(1 + t->number, t->group);
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
INLINE int word_col(const int format, const team_place *t, int k) { return (k * t->group + t->lane) * word_elements(format); }
INLINE int quad_col(const int format, const team_place *t, int q) {
    return format == CUDA_f32 ? word_col(format, t, q) : word_col(format, t, q / 2) + q % 2 * QUAD;
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
INLINE uint32_t weight_room(const norm_backward_rows_arguments *a, const team_place *t, uint32_t base, int q) { return base + a->rows_bytes + (uint32_t)((q * t->group + t->lane) * 16); }

/* The thread's words of the row that begins at data are on their way, or there already where they do not lie so. Those behind its end are not touched. */
INLINE void bring_row(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, uint64_t data, int64_t step, uint32_t to) {
    if (lies_in_words(format, a, data, step)) {
        EACH_WORD(k) {
            const int col = word_col(format, t, k);
            if (col < a->cols) cp_async_stream(word_room(to, k), (const void *)(data + (uint64_t)col * (format == CUDA_f32 ? 4 : 2)), 16);
        }
        return;
    }
#pragma unroll 1
    for (int q = 0; q < 2 * pieces; q++) {
        const int col = quad_col(format, t, q);
        float x[QUAD];
        EACH_OF_QUAD(i) x[i] = col + i < a->cols ? element_at(format, data, (col + i) * step) : 0;
        if (format == CUDA_f32) st_shared_f32x4(word_room(to, q), x[0], x[1], x[2], x[3]);
        else st_shared_u32x2(word_room(to, q / 2) + q % 2 * 8, pack_pair(format, x[0], x[1]), pack_pair(format, x[2], x[3]));
    }
}

/* Zeros behind the row's end, where nothing else is written, and the weight, 1 where there is none. base: where the block's memory begins. */
INLINE void fill_room(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, uint32_t base, uint32_t room) {
    EACH_WORD(k) {
        if (word_col(format, t, k) < a->cols) continue;
        for (int i = 0; i < BACKWARD_ROWS; i++) st_shared_u32x4(word_room(room_of(a, room, i), k), make_uint4(0, 0, 0, 0));
    }
#pragma unroll 1
    for (int place = (int)threadIdx.x; place < 2 * pieces * t->group; place += (int)blockDim.x) {
        const team_place other = {t->group, 0, place % t->group, 0, 0};
        const int q = place / t->group, col = quad_col(format, &other, q);
        float w[QUAD];
        EACH_OF_QUAD(i) w[i] = !a->has_weight ? 1 : col + i < a->cols ? element_at(a->weight.format, a->weight.data, (col + i) * a->weight_step) : 0;
        st_shared_f32x4(weight_room(a, &other, base, q), w[0], w[1], w[2], w[3]);
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
        const int col = word_col(format, t, k);
        const uint4 words = format == CUDA_f32 ? make_uint4(__float_as_uint(x[k][0]), __float_as_uint(x[k][1]), __float_as_uint(x[k][2]), __float_as_uint(x[k][3]))
                                               : make_uint4(pack_pair(format, x[2 * k][0], x[2 * k][1]), pack_pair(format, x[2 * k][2], x[2 * k][3]), pack_pair(format, x[2 * k + 1][0], x[2 * k + 1][1]),
                                                            pack_pair(format, x[2 * k + 1][2], x[2 * k + 1][3]));
        if (!in_words) st_shared_u32x4(word_room(row, k), words);
        else if (col < a->cols) *(uint4 *)(data + (uint64_t)col * (format == CUDA_f32 ? 4 : 2)) = words;
    }
    if (in_words) return;
#pragma unroll 1
    for (int e = 0; e < pieces * PIECE; e++) {
        const int k = e / word_elements(format), i = e % word_elements(format), col = word_col(format, t, k) + i;
        if (col >= a->cols) break;
        if (format == CUDA_f32) ((float *)data)[col * step] = ld_shared_f32(word_room(row, k) + i * 4);
        else ((uint16_t *)data)[col * step] = (uint16_t)(ld_shared_u32(word_room(row, k) + i / 2 * 4) >> (i % 2 * 16));
    }
}

/* ---- a row's work ---- */

/* Is a number near a row's mean enough, which a warp has without another round of shuffles? */
INLINE bool is_near_enough(const int format, const team_place *t) { return format != CUDA_f32 && t->warps <= 1; }

/* What is near a row's mean, the same in all of its threads: the mean but for its rounding, or that of the row's first piece. */
INLINE float middle_of(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, float4 *room, float x[][QUAD]) {
    team_sums s = {{0}};
    if (is_near_enough(format, t)) {
        EACH_OF_QUAD(i) s.of[0] += x[0][i] + x[1][i];
        return __shfl_sync(~0u, s.of[0], (int)threadIdx.x % 32 - t->lane) * (1.0f / min(a->cols, PIECE));
    }
    EACH_QUAD(q) EACH_OF_QUAD(i) s.of[0] += x[q][i];
    add_team(1, t, room, &s);
    return s.of[0] * a->by_count;
}

/* What a thread adds up of its columns: of dweight, of dbias. */
typedef struct backward_columns { float weight[QUADS_MOST][QUAD], bias[QUADS_MOST][QUAD]; } backward_columns;

/* odd: which of the two rows that are there. rooms: of the row's two sums. */
INLINE void work_row(const int pieces, const int format, const bool centred, const norm_backward_rows_arguments *a, const team_place *t, uint32_t base, uint32_t room, int odd, int row,
                     float4 (*rooms)[BACKWARD_WIDE_THREADS / 32], backward_columns *columns) {
    const uint32_t x_at = room_of(a, room, ROOM_X + odd), dy_at = room_of(a, room, ROOM_DY + odd);
    float x[QUADS_MOST][QUAD], dy[QUAD], w[QUAD];
    uint4 words;
    team_sums s = {{0, 0, 0, 0}};   /* squares, along the gradient; of what is around the middle, of the gradient */
    EACH_QUAD(q) take_quad(format, x_at, q, &words, x[q]);
    if (centred) {
        const float middle = middle_of(pieces, format, a, t, rooms[0], x);
        EACH_QUAD(q) EACH_OF_QUAD(i) x[q][i] -= middle;
        if (!a->is_whole) EACH_QUAD(q) EACH_OF_QUAD(i) x[q][i] = quad_col(format, t, q) + i < a->cols ? x[q][i] : 0;
    }
    EACH_QUAD(q) {
        take_quad(format, dy_at, q, &words, dy);
        take_f32(weight_room(a, t, base, q), w);
        EACH_OF_QUAD(i) {
            const float g = dy[i] * w[i];
            s.of[0] = fmaf(x[q][i], x[q][i], s.of[0]);
            s.of[1] = fmaf(x[q][i], g, s.of[1]);
            if (centred) s.of[2] += x[q][i], s.of[3] += g;
        }
    }
    add_team(centred ? 4 : 2, t, rooms[1], &s);
    if (row >= a->rows) return;
    /* low: the mean, from the middle */
    const float low = s.of[2] * a->by_count, variance = s.of[0] * a->by_count - low * low, rstd = rsqrtf((variance < 0 ? 0 : variance) + a->eps);
    const float along = (s.of[1] - low * s.of[3]) * rstd * a->by_count, less_low = -low * rstd, less_shift = -(s.of[3] * a->by_count) * rstd, less_along = -along * rstd;
    EACH_QUAD(q) {
        if (pieces > 2 && q % 2 == 0) __syncwarp();   /* or the compiler asks for all pieces at once, and has no registers for them */
        take_quad(format, dy_at, q, &words, dy);
        take_f32(weight_room(a, t, base, q), w);
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
            if (quad_col(format, t, q) >= a->cols) continue;
            take_quad(format, room_of(a, room, ROOM_PLUS), q, &words, dy);
            EACH_OF_QUAD(i) x[q][i] += dy[i];
        }
    }
    store_row(pieces, format, a, t, row_of(a, format, &a->dx, row, DX), a->steps[DX], dy_at, x);
}

/* ---- columns ---- */

/* A block's sums of one kind, number 0 or 1: its teams' in order, a column for each thread, one next to the other. kept: of each team its columns. Only who adds a column reads it before the cluster meets. */
INLINE void add_teams(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, const int number, float sums[][QUAD], float *kept, float *shown) {
    const int team_cols = t->group * pieces * PIECE;
    __syncthreads();
    EACH_QUAD(q) *(float4 *)(kept + t->number * team_cols + quad_col(format, t, q)) = make_float4(sums[q][0], sums[q][1], sums[q][2], sums[q][3]);
    __syncthreads();
    for (int col = (int)threadIdx.x; col < a->cols; col += (int)blockDim.x) {
        float sum = 0;
#pragma unroll 8
        for (int team = 0; team < a->teams; team++) sum += kept[team * team_cols + col];
        shown[number * a->cols + col] = sum;
    }
}

/* number: which of the columns' sums, those of dweight in front of those of dbias. */
INLINE void store_column(const norm_backward_rows_arguments *a, int number, float sum) {
    if (number < a->cols) store_double(&a->dweight, number * a->dweight_step, (double)sum);
    else store_double(&a->dbias, (number - a->cols) * a->dbias_step, (double)sum);
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

/* Columns' sums from first on, over all clusters. */
INLINE void add_clusters(const norm_backward_rows_arguments *a, int first, int end, int count) {
    enum { AT_ONCE = 16 };
    for (int number = first + (int)threadIdx.x; number < end; number += (int)blockDim.x) {
        float sum = 0;
#pragma unroll 1
        for (int from = 0; from < a->clusters; from += AT_ONCE) {
            float x[AT_ONCE];   /* all on their way together */
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) x[k] = from + k < a->clusters ? a->sums[(int64_t)(from + k) * count + number] : 0;
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) sum += x[k];
        }
        store_column(a, number, sum);
    }
}

/* The sums over all blocks of this block's part of the columns, of which shown has what its rows add. */
INLINE void join_blocks(const norm_backward_rows_arguments *a, const float *shown) {
    const uint32_t blocks = cluster_blocks(), rank = cluster_rank();
    const int count = (a->centred ? 2 : 1) * a->cols, first = (int)rank * a->part, end = min(count, first + a->part), cluster = (int)(blockIdx.x / blocks);
    cluster_arrive();
    cluster_wait();
    for (int number = first + (int)threadIdx.x; number < end; number += (int)blockDim.x) {
        float sum = 0;
#pragma unroll 8
        for (uint32_t i = 0; i < blocks; i++) sum += ld_cluster_f32(cluster_map(shared_address(&shown[number]), i));
        if (a->clusters == 1) store_column(a, number, sum);
        else a->sums[(int64_t)cluster * count + number] = sum;
    }
    cluster_arrive();   /* no block ends while its sums are read */
    if (a->clusters > 1 && comes_last(a->counters + rank, (uint32_t)a->clusters)) add_clusters(a, first, end, count);
    cluster_wait();
}

INLINE void bring_rows(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, uint32_t room, int row, int odd) {
    const int there = row < a->rows ? row : 0;   /* what is not there is worked on as row 0, and goes nowhere */
    bring_row(pieces, format, a, t, row_of(a, format, &a->x, there, X), a->steps[X], room_of(a, room, ROOM_X + odd));
    bring_row(pieces, format, a, t, row_of(a, format, &a->dy, there, DY), a->steps[DY], room_of(a, room, ROOM_DY + odd));
}

INLINE void norm_backward(const int pieces, const int format, const bool centred, const norm_backward_rows_arguments *a) {
    extern __shared__ __align__(16) uint8_t room_bytes[];
    __shared__ float4 rooms[4][BACKWARD_WIDE_THREADS / 32];
    const team_place t = place_team(pieces, a);
    const uint32_t base = shared_address(room_bytes), room = base + threadIdx.x * 16;
    backward_columns columns;
    EACH_QUAD(q) EACH_OF_QUAD(i) columns.weight[q][i] = columns.bias[q][i] = 0;
    grid_release();
    grid_wait();
    if ((int)blockIdx.x * a->teams < a->rows) bring_rows(pieces, format, a, &t, room, (int)blockIdx.x * a->teams + t.number, 0);
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
    float *kept = (float *)(void *)room_bytes, *shown = kept + a->teams * t.group * pieces * PIECE;   /* in place of the rows, of which none is on its way by now, and the weight */
    add_teams(pieces, format, a, &t, 0, columns.weight, kept, shown);
    if (centred) add_teams(pieces, format, a, &t, 1, columns.bias, kept, shown);
    join_blocks(a, shown);
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
#define ENTRIES_16(format)                                                                                          \
    ENTRIES(format)                                                                                                 \
    ENTRY(norm_backward_##format##_rms_4, 4, BACKWARD_MORE_THREADS, CUDA_##format, false)                           \
    ENTRY(norm_backward_##format##_layer_4, 4, BACKWARD_MORE_THREADS, CUDA_##format, true)

ENTRIES(f32)
ENTRIES_16(bf16)
ENTRIES_16(f16)
