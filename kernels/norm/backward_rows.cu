/* layer_norm_backward and rms_norm_backward on Hopper and later, of rows up to 8192: every operand is read once.
 *
 *   a block: teams of threads, a row each, one row after the other; a team is a warp where it can be, so that its sums take no barrier. While a row is worked on, the next one is on its way
 *   row      gmem -> smem by cp.async, where each thread reads its own pieces; sums over the team, together; dx -> gmem; what belongs to a column is added up in its thread's
 *            registers. What is added to dx (plus) is asked for when the row's work begins, and used at its end
 *   the end  columns of teams -> smem, added in order -> gmem, of each block; a second launch adds blocks, in order
 *
 * Rows that lie in words of 16 bytes have entries of their own (words), without a line of what others need: a row's way is 500 instructions, and jumps over more than that cost their fetching. Such an entry
 * is there twice: for rows one pitch apart, and for those that only the nest's axes find, as a gradient of attention that is read by heads. All sums are in an order that the shape, the strides, where in 16
 * bytes operands begin, and the chip alone decide. In fp32: of rows with numbers beyond 2^60 squares overflow, as in norm_rows.cu.
 * Squares are around the row's mean, or where a warp has a row of 16 bits around the mean of its first piece, which saves a round of shuffles and loses at most cols / PIECE units of the last place of
 * fp32. Resources: shared memory for two rows of each team and the weight (BACKWARD_* in backward_rows.h). Speed: README.md. */
#include "kernels/gpu/ptx/half.cuh"
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/norm/backward_rows.h"

enum { DX, X, DY, PLUS };
enum { NO_WORDS, WORDS, WORDS_NESTED };   /* how rows lie (words): otherwise, in words of 16 bytes one pitch apart, or in words as the nest has them */

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

/* Is word k of the thread in the row? Only of the last piece it may not be. */
INLINE bool is_inside(const int pieces, const int format, const norm_backward_rows_arguments *a, const team_place *t, const int k) {
    return k < (pieces - 1) * (format == CUDA_f32 ? 2 : 1) || word_col(format, t, k) < a->cols;
}

/* Bytes to where row begins in operand k, of rows in words that are not one pitch apart. */
INLINE int64_t nested_row(const norm_backward_rows_arguments *a, int row, const int k) {
    uint32_t left = (uint32_t)row;
    int64_t at = 0;
#pragma unroll 1
    for (int axis = a->nest.rank - 1; axis > 0; axis--) {
        const uint32_t outer = __umulhi(left, a->sizes[axis].by) >> a->sizes[axis].shift;
        at += (int64_t)(int)(left - outer * (uint32_t)a->nest.dims[axis]) * a->pitches[k][axis];
        left = outer;
    }
    return at + (int64_t)(int)left * a->pitches[k][0];
}

/* Where row begins in operand k. */
INLINE uint64_t row_of(const int words, const norm_backward_rows_arguments *a, const int format, const cuda_array *array, int row, const int k) {
    if (words) return array->data + (uint64_t)(words == WORDS ? (int64_t)row * a->pitches[k][0] : nested_row(a, row, k));
    if (a->nest.rank <= 1) return row_data(array, format, row * a->nest.strides[k][0]);
    int64_t at[4];
    nest_offsets(&a->nest, row, 4, at);
    return row_data(array, format, at[k]);
}

INLINE float float_of(uint32_t bits) { return __uint_as_float(bits); }

/* ---- rows in shared memory ---- */

/* A team's: rows of x and of dy, two each, then one of plus; behind those of all teams the weight, as fp32, which all share. room: where this thread's part of the team's first row begins. */
enum { ROOM_X = 0, ROOM_DY = 2, ROOM_PLUS = 4 };
INLINE uint32_t row_bytes(const int pieces, const int format, const team_place *t) { return (uint32_t)(pieces * t->group * (format == CUDA_f32 ? 32 : 16)); }
INLINE uint32_t room_of(const int pieces, const int format, const team_place *t, uint32_t room, int number) { return room + (uint32_t)number * row_bytes(pieces, format, t); }
INLINE uint32_t word_room(const team_place *t, uint32_t row, const int k) { return row + (uint32_t)(k * t->group * 16); }

/* The thread's words of the row that begins at data are on their way, or there already where rows do not lie so. Those behind its end are not touched. */
INLINE void bring_row(const int pieces, const int format, const bool words, const norm_backward_rows_arguments *a, const team_place *t, uint64_t data, int64_t step, uint32_t to) {
    if (words) {
        EACH_WORD(k) {
            if (is_inside(pieces, format, a, t, k)) cp_async_stream(word_room(t, to, k), (const void *)(data + (uint64_t)((k * t->group + t->lane) * 16)), 16);
        }
        return;
    }
#pragma unroll 1
    for (int q = 0; q < 2 * pieces; q++) {
        const int col = quad_col(format, t, q);
        float x[QUAD];
        EACH_OF_QUAD(i) x[i] = col + i < a->cols ? element_at(format, data, (col + i) * step) : 0;
        if (format == CUDA_f32) st_shared_f32x4(word_room(t, to, q), x[0], x[1], x[2], x[3]);
        else st_shared_u32x2(word_room(t, to, q / 2) + q % 2 * 8, pack_pair(format, x[0], x[1]), pack_pair(format, x[2], x[3]));
    }
}

/* Four of the weight from col on, 1 where there is none: all loads before anything waits for one. */
INLINE void weight_quad(const bool words, const norm_backward_rows_arguments *a, int col, float *w) {
    EACH_OF_QUAD(i) w[i] = a->has_weight ? 0 : 1;
    if (!a->has_weight || col >= a->cols) return;
    if (words && a->weight.format == CUDA_f32) {
        const float4 quad = *(const float4 *)((const float *)a->weight.data + col);
        w[0] = quad.x, w[1] = quad.y, w[2] = quad.z, w[3] = quad.w;
    } else if (words) {
        const uint2 pairs = *(const uint2 *)((const uint16_t *)a->weight.data + col);
        unpack_pair(a->weight.format, pairs.x, w);
        unpack_pair(a->weight.format, pairs.y, w + 2);
    } else {
        EACH_OF_QUAD(i) if (col + i < a->cols) w[i] = element_at(a->weight.format, a->weight.data, (col + i) * a->weight_step);
    }
}

/* Zeros behind the row's end, where nothing else is written, and the weight. weights: where it begins. */
INLINE void fill_room(const int pieces, const int format, const bool words, const norm_backward_rows_arguments *a, const team_place *t, uint32_t weights, uint32_t room) {
    EACH_WORD(k) {
        if (is_inside(pieces, format, a, t, k)) continue;
        for (int i = 0; i < BACKWARD_ROWS; i++) st_shared_u32x4(word_room(t, room_of(pieces, format, t, room, i), k), make_uint4(0, 0, 0, 0));
    }
#pragma unroll 1
    for (int place = (int)threadIdx.x; place < 2 * pieces * t->group; place += (int)blockDim.x) {
        const team_place other = {t->group, 0, place % t->group, 0, 0};
        const int q = place / t->group;
        float w[QUAD];
        weight_quad(words, a, quad_col(format, &other, q), w);
        st_shared_f32x4(weights + (uint32_t)place * 16, w[0], w[1], w[2], w[3]);
    }
}

INLINE void take_f32(uint32_t at, float *x) {
    const uint4 bits = ld_shared_u32x4(at);
    x[0] = float_of(bits.x), x[1] = float_of(bits.y), x[2] = float_of(bits.z), x[3] = float_of(bits.w);
}
/* Quad q of a row, in order: what a load of 16-bit elements has of two stays in words. */
INLINE void take_quad(const int format, const team_place *t, uint32_t row, const int q, uint4 *words, float *x) {
    if (format == CUDA_f32) {
        take_f32(word_room(t, row, q), x);
        return;
    }
    if (q % 2 == 0) *words = ld_shared_u32x4(word_room(t, row, q / 2));
    unpack_pair(format, q % 2 ? words->z : words->x, x);
    unpack_pair(format, q % 2 ? words->w : words->y, x + 2);
}

/* The thread's elements to the row that begins at data; what does not lie in words, one by one from a row's room that is no longer needed. */
INLINE void store_row(const int pieces, const int format, const bool in_words, const norm_backward_rows_arguments *a, const team_place *t, uint64_t data, int64_t step, uint32_t row, float x[][QUAD]) {
    EACH_WORD(k) {
        const uint4 words = format == CUDA_f32 ? make_uint4(__float_as_uint(x[k][0]), __float_as_uint(x[k][1]), __float_as_uint(x[k][2]), __float_as_uint(x[k][3]))
                                               : make_uint4(pack_pair(format, x[2 * k][0], x[2 * k][1]), pack_pair(format, x[2 * k][2], x[2 * k][3]), pack_pair(format, x[2 * k + 1][0], x[2 * k + 1][1]),
                                                            pack_pair(format, x[2 * k + 1][2], x[2 * k + 1][3]));
        if (!in_words) st_shared_u32x4(word_room(t, row, k), words);
        else if (is_inside(pieces, format, a, t, k)) *(uint4 *)(data + (uint64_t)((k * t->group + t->lane) * 16)) = words;
    }
    if (in_words) return;
#pragma unroll 1
    for (int e = 0; e < pieces * PIECE; e++) {
        const int k = e / word_elements(format), i = e % word_elements(format), col = word_col(format, t, k) + i;
        if (col >= a->cols) break;
        if (format == CUDA_f32) ((float *)data)[col * step] = ld_shared_f32(word_room(t, row, k) + i * 4);
        else ((uint16_t *)data)[col * step] = (uint16_t)(ld_shared_u32(word_room(t, row, k) + i / 2 * 4) >> (i % 2 * 16));
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
        return __shfl_sync(~0u, s.of[0], (int)threadIdx.x % 32 - t->lane) * a->by_first;
    }
    EACH_QUAD(q) EACH_OF_QUAD(i) s.of[0] += x[q][i];
    add_team(1, t, room, &s);
    return s.of[0] * a->by_count;
}

/* What a thread adds up of its columns: of dweight, of dbias. */
typedef struct backward_columns { float weight[QUADS_MOST][QUAD], bias[QUADS_MOST][QUAD]; } backward_columns;

/* odd: which of the two rows that are there. rooms: of the row's two sums. */
INLINE void work_row(const int pieces, const int format, const int words, const bool centred, const norm_backward_rows_arguments *a, const team_place *t, uint32_t weights, uint32_t room, int odd, int row,
                     float4 (*rooms)[BACKWARD_WARPS_MOST], backward_columns *columns) {
    const uint32_t x_at = room_of(pieces, format, t, room, ROOM_X + odd), dy_at = room_of(pieces, format, t, room, ROOM_DY + odd);
    float x[QUADS_MOST][QUAD], dy[QUAD], w[QUAD];
    uint4 taken;
    team_sums s = {{0, 0, 0, 0}};   /* squares, along the gradient; of what is around the middle, of the gradient */
    EACH_QUAD(q) take_quad(format, t, x_at, q, &taken, x[q]);
    if (centred) {
        const float middle = middle_of(pieces, format, a, t, rooms[0], x);
        EACH_QUAD(q) EACH_OF_QUAD(i) x[q][i] -= middle;
        if (!a->is_whole) EACH_QUAD(q) EACH_OF_QUAD(i) x[q][i] = quad_col(format, t, q) + i < a->cols ? x[q][i] : 0;
    }
    EACH_QUAD(q) {
        take_quad(format, t, dy_at, q, &taken, dy);
        take_f32(word_room(t, weights, q), w);
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
        take_quad(format, t, dy_at, q, &taken, dy);
        take_f32(word_room(t, weights, q), w);
        EACH_OF_QUAD(i) {
            const float n = fmaf(x[q][i], rstd, less_low);
            columns->weight[q][i] = fmaf(dy[i], n, columns->weight[q][i]);
            if (centred) columns->bias[q][i] += dy[i];
            x[q][i] = fmaf(n, less_along, fmaf(dy[i] * w[i], rstd, less_shift));   /* rstd (g - shift - n along) */
        }
    }
    if (a->has_plus) {
        if (words) cp_async_wait(0);
        EACH_QUAD(q) {
            if (!is_inside(pieces, format, a, t, format == CUDA_f32 ? q : q / 2)) continue;
            take_quad(format, t, room_of(pieces, format, t, room, ROOM_PLUS), q, &taken, dy);
            EACH_OF_QUAD(i) x[q][i] += dy[i];
        }
    }
    store_row(pieces, format, words, a, t, row_of(words, a, format, &a->dx, row, DX), a->steps[DX], dy_at, x);
}

/* ---- columns ---- */

/* The block's sums, its teams' in order, four columns for each thread. kept: of each team its columns, in place of the rows, of which none is on its way by now. */
INLINE void store_columns(const int pieces, const int format, const bool centred, const norm_backward_rows_arguments *a, const team_place *t, const backward_columns *columns, float *kept) {
    const int team_cols = t->group * pieces * PIECE, count = centred ? 2 : 1, quads = a->padded / QUAD;
    float *of_team = kept + t->number * count * team_cols;
    __syncthreads();
    EACH_QUAD(q) {
        const int col = quad_col(format, t, q);
        *(float4 *)(of_team + col) = make_float4(columns->weight[q][0], columns->weight[q][1], columns->weight[q][2], columns->weight[q][3]);
        if (centred) *(float4 *)(of_team + team_cols + col) = make_float4(columns->bias[q][0], columns->bias[q][1], columns->bias[q][2], columns->bias[q][3]);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < count * quads; i += (int)blockDim.x) {
        const float *from = kept + (i < quads ? i * QUAD : team_cols + (i - quads) * QUAD);
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int team = 0; team < a->teams; team++) {
            const float4 x = *(const float4 *)(from + team * count * team_cols);
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
        *(float4 *)(a->sums + ((int64_t)blockIdx.x * count * quads + i) * QUAD) = sum;
    }
}

INLINE void bring_rows(const int pieces, const int format, const int words, const norm_backward_rows_arguments *a, const team_place *t, uint32_t room, int row, int odd) {
    const int there = row < a->rows ? row : 0;   /* what is not there is worked on as row 0, and goes nowhere */
    bring_row(pieces, format, words, a, t, row_of(words, a, format, &a->x, there, X), a->steps[X], room_of(pieces, format, t, room, ROOM_X + odd));
    bring_row(pieces, format, words, a, t, row_of(words, a, format, &a->dy, there, DY), a->steps[DY], room_of(pieces, format, t, room, ROOM_DY + odd));
}

INLINE void norm_backward(const int pieces, const int format, const int words, const bool centred, const norm_backward_rows_arguments *a) {
    extern __shared__ __align__(16) uint8_t room_bytes[];
    __shared__ float4 rooms[4][BACKWARD_WARPS_MOST];
    const team_place t = place_team(pieces, a);
    const uint32_t base = shared_address(room_bytes), lane_bytes = (uint32_t)t.lane * 16, room = base + (uint32_t)(t.number * (a->has_plus ? BACKWARD_ROWS + 1 : BACKWARD_ROWS)) * row_bytes(pieces, format, &t) + lane_bytes;
    backward_columns columns;
    EACH_QUAD(q) EACH_OF_QUAD(i) columns.weight[q][i] = columns.bias[q][i] = 0;
    grid_release();
    grid_wait();
    if ((int)blockIdx.x * a->teams < a->rows) bring_rows(pieces, format, words, a, &t, room, (int)blockIdx.x * a->teams + t.number, 0);
    if (words) cp_async_commit();
    fill_room(pieces, format, words, a, &t, base + a->rows_bytes, room);
    __syncthreads();
#pragma unroll 1
    for (int first = (int)blockIdx.x * a->teams, odd = 0; first < a->rows; odd ^= 1) {
        const int row = first + t.number;
        first += (int)gridDim.x * a->teams;
        if (a->has_plus && row < a->rows) bring_row(pieces, format, words, a, &t, row_of(words, a, format, &a->plus, row, PLUS), a->steps[PLUS], room_of(pieces, format, &t, room, ROOM_PLUS));
        if (first < a->rows) bring_rows(pieces, format, words, a, &t, room, first + t.number, odd ^ 1);
        if (words) {
            cp_async_commit();
            cp_async_wait(1);
        }
        work_row(pieces, format, words, centred, a, &t, base + a->rows_bytes + lane_bytes, room, odd, row, rooms + 2 * odd, &columns);
    }
    store_columns(pieces, format, centred, a, &t, &columns, (float *)(void *)room_bytes);
}

#define ENTRY(name, pieces, threads, format, words, centred)                                                                               \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ norm_backward_rows_arguments arguments) {        \
        if ((words) == WORDS && arguments.nest.rank > 1) norm_backward(pieces, format, WORDS_NESTED, centred, &arguments);                \
        else norm_backward(pieces, format, words, centred, &arguments);                                                                   \
    }
#define ENTRY_WORDS(format, kind, pieces, centred) ENTRY(norm_backward_##format##_##kind##_##pieces, pieces, BACKWARD_THREADS(pieces, centred), CUDA_##format, WORDS, centred)
#define ENTRIES_OF(format, kind, centred)                                                                           \
    ENTRY_WORDS(format, kind, 1, centred)                                                                           \
    ENTRY_WORDS(format, kind, 2, centred)                                                                           \
    ENTRY_WORDS(format, kind, 3, centred)                                                                           \
    ENTRY(norm_backward_##format##_##kind##_any, 2, BACKWARD_ANY_THREADS, CUDA_##format, NO_WORDS, centred)
#define ENTRIES(format) ENTRIES_OF(format, rms, false) ENTRIES_OF(format, layer, true)
#define ENTRIES_16(format) ENTRIES(format) ENTRY_WORDS(format, rms, 4, false) ENTRY_WORDS(format, layer, 4, true)

ENTRIES(f32)
ENTRIES_16(bf16)
ENTRIES_16(f16)

/* The sums of blocks: a block for 32 columns, of dweight (number 0) or dbias; each warp adds those of every sixteenth block, and what they have is added in order. */
extern "C" __global__ void __launch_bounds__(BACKWARD_SUM_WARPS * 32) norm_backward_sums(const __grid_constant__ norm_backward_rows_arguments arguments) {
    __shared__ float of_warps[BACKWARD_SUM_WARPS][BACKWARD_SUM_COLS];
    const norm_backward_rows_arguments *a = &arguments;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, col = (int)blockIdx.x * BACKWARD_SUM_COLS + lane, number = (int)blockIdx.y;
    enum { AT_ONCE = 10 };
    float sum = 0;
    grid_release();
    grid_wait();
#pragma unroll 1
    for (int first = warp; first < a->blocks; first += AT_ONCE * BACKWARD_SUM_WARPS) {
        float x[AT_ONCE];   /* all on their way together */
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int block = first + k * BACKWARD_SUM_WARPS;
            x[k] = block < a->blocks && col < a->cols ? a->sums[((int64_t)block * gridDim.y + number) * a->padded + col] : 0;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) sum += x[k];
    }
    of_warps[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || col >= a->cols) return;
#pragma unroll
    for (int i = 1; i < BACKWARD_SUM_WARPS; i++) sum += of_warps[i][lane];
    if (number == 0) store_double(&a->dweight, col * a->dweight_step, (double)sum);
    else store_double(&a->dbias, col * a->dbias_step, (double)sum);
}
