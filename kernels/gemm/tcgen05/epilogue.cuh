/* From sums in tensor memory to results in registers: factors, the post list, stores of a row. A thread has one row and TCGEN05_CHUNK neighbouring columns, as tcgen05.ld 32x32b gives
 * them. What is computed of them: compute.cuh. */
#ifndef KERNELS_GEMM_TCGEN05_EPILOGUE_CUH
#define KERNELS_GEMM_TCGEN05_EPILOGUE_CUH

#include "kernels/gpu/ptx/tcgen05.cuh"
#include "kernels/gemm/tcgen05/compute.cuh"

/* A row of the result and the first of the thread's columns; rows, end: of the result, or the row behind the group's last. What is outside is computed, from operands taken as 0, and not
 * stored. bias: the row of a bias that has several: the result's, or the group's number; factors: number of column 0's factor. */
typedef struct row_place { int row, rows, col, end, bias, factors; } row_place;

/* ---- operands ---- */

INLINE bool lies_in_words(uint64_t address, int col, int end) { return address % 16 == 0 && col + TCGEN05_CHUNK <= end; }

/* Word number i of 16 bytes of an operand's neighbours. */
INLINE void unpack_word(const int format, const int i, const uint4 word, float *x) {
    const uint32_t part[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (format == MATMUL_f32) {
            x[4 * i + k] = __uint_as_float(part[k]);
        } else {
            const float2 pair = pair_of(format, part[k]);
            x[8 * i + 2 * k] = pair.x, x[8 * i + 2 * k + 1] = pair.y;
        }
    }
}

/* A thread's columns as words of 16 bytes: 4 of f32, 2 of the others. */
INLINE constexpr int row_words(const int size) { return TCGEN05_CHUNK * size / 16; }

/* Neighbours of an operand whose columns lie side by side at a multiple of 16 bytes. */
INLINE void load_words(const int format, uint64_t from, float *x) {
#pragma unroll
    for (int i = 0; i < row_words(format == MATMUL_f32 ? 4 : 2); i++) unpack_word(format, i, ((const uint4 *)from)[i], x);
}

/* The operand of a step that was brought to a warp's box of 32 rows by 128 bytes in shared memory, before it is needed; word: the number of the row's word there that the thread's columns begin with. step -1: there
 * is none. */
typedef struct row_brought { int step; uint32_t box; int word; } row_brought;

/* Words of a lane's row lie as those of results do, swizzled. */
INLINE uint32_t box_word(uint32_t box, int row, int word) { return box + row * 128 + (word ^ row % 8) * 16; }
/* Word number word + i, of the place of word: a multiple of the power of two that i is below. */
INLINE uint32_t next_word(uint32_t place, int i) { return place ^ i * 16; }

INLINE void load_brought(const int format, const row_brought *brought, float *x) {
    const uint32_t from = box_word(brought->box, threadIdx.x % 32, brought->word);
#pragma unroll
    for (int i = 0; i < row_words(format == MATMUL_f32 ? 4 : 2); i++) unpack_word(format, i, ld_shared_u32x4(next_word(from, i)), x);
}

INLINE void row_operand(const matmul_step *step, float *values, const row_place p, const row_brought *brought) {
    const int size = step->format == MATMUL_f32 ? 4 : 2;
    const int row = step->step == MATMUL_POST_bias ? p.bias : p.row;
    const uint64_t from = step->data + (row * step->row_stride + p.col) * size;
    float x[TCGEN05_CHUNK];
    if (p.row >= p.rows) return;
    if (brought != 0 && p.col + TCGEN05_CHUNK <= p.end) {
        if (step->format == MATMUL_f32) load_brought(MATMUL_f32, brought, x);
        else if (step->format == MATMUL_bf16) load_brought(MATMUL_bf16, brought, x);
        else load_brought(MATMUL_f16, brought, x);
    } else if (step->col_stride == 1 && lies_in_words(from, p.col, p.end)) {
        if (step->format == MATMUL_f32) load_words(MATMUL_f32, from, x);
        else if (step->format == MATMUL_bf16) load_words(MATMUL_bf16, from, x);
        else load_words(MATMUL_f16, from, x);
    } else {
        EACH_COLUMN x[i] = p.col + i < p.end ? load_operand(step, row * step->row_stride + (p.col + i) * step->col_stride) : 0;
    }
    if (step->step == MATMUL_POST_mul) multiply_each(values, x);
    else add_each(values, x);
}

/* ---- steps ---- */

INLINE void row_step(const matmul_step *step, float *values, const row_place p, const row_brought *brought) {
    const bool takes = step->step == MATMUL_POST_bias || step->step == MATMUL_POST_add || step->step == MATMUL_POST_mul;
    if (takes) row_operand(step, values, p, brought);
    else activate(step->step, values);
}

/* What a row's sums are multiplied by, whatever the column. */
INLINE float row_factor(const matmul_epilogue *e, int row, int rows) {
    float all = e->alpha;
    for (int i = 0; i < 2; i++)
        if (e->alpha_at[i] != 0) all *= *(const float *)e->alpha_at[i];
    return e->row_factors != 0 ? all * factor_at(e->row_factors, row, row < rows) : all;
}

INLINE void multiply_factors(const matmul_epilogue *e, float factor, float *values, const row_place p) {
    const uint64_t from = e->col_factors + (p.factors + p.col) * 4ll;
    float x[TCGEN05_CHUNK];
    multiply_all(values, factor);
    if (e->col_factors == 0) return;
    if (lies_in_words(from, p.col, p.end)) load_words(MATMUL_f32, from, x);
    else EACH_COLUMN x[i] = factor_at(e->col_factors, p.factors + p.col + i, p.col + i < p.end);
    multiply_each(values, x);
}

/* ---- all together ---- */

/* Of sums that the warp has not touched since it last waited for any: there is nothing to order. */
INLINE void pass_on_sums(uint32_t barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive_cluster(barrier);
}

/* What is passed on once sums have been loaded: an mbarrier in the cluster's window that one lane arrives at; 0: nobody waits. */
INLINE void release_sums(uint32_t barrier) {
    if (barrier == 0) return;
    tcgen05_fence_before();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive_cluster(barrier);
}

INLINE void load_sums(uint32_t sums, float *values) {
    uint32_t raw[TCGEN05_CHUNK];
    __syncwarp();
    tmem_load_x16(raw, sums);
    tmem_wait_load();
    EACH_COLUMN values[i] = __uint_as_float(raw[i]);
}

/* Sums that were loaded before any result is computed: the first count parts. is_up: of those that a step joins others with. */
enum { MOST_AHEAD = 3 };
typedef struct sums_ahead {
    int count;
    bool is_up;
    float x[MOST_AHEAD][TCGEN05_CHUNK];
} sums_ahead;

/* Where a part's sums lie in tensor memory; those that a step joins them with lie up columns further on. release: told behind the last load. ahead: NULL, or those of the first parts, of which this is number turn. */
typedef struct row_sums {
    uint32_t at;
    int up;
    uint32_t release;
    const sums_ahead *ahead;
    int turn;
} row_sums;

INLINE void bring_sums(const row_sums *s, bool is_up, float *values) {
    const sums_ahead *ahead = s->ahead;
    if (ahead == 0 || s->turn >= ahead->count || is_up != ahead->is_up) load_sums(s->at + (is_up ? s->up : 0), values);
    else if (s->turn == 0) EACH_COLUMN values[i] = ahead->x[0][i];
    else if (s->turn == 1) EACH_COLUMN values[i] = ahead->x[1][i];
    else EACH_COLUMN values[i] = ahead->x[2][i];
}

/* Sums to results, by a warp. Where a step halves, those that it joins them with are first brought as far as that step, and the steps in front of it are then done again with the others: so their code is
 * there once. brought: NULL where no operand ever is. */
INLINE void row_results(const matmul_epilogue *e, const row_sums *sums, float factor, float *values, row_place p, const row_brought *brought) {
    bool is_up = e->halving >= 0;
    float others[TCGEN05_CHUNK];
    row_place here = p;
    if (is_up) here.col += e->half, here.end += e->half;
    bring_sums(sums, is_up, values);
    if (!is_up) release_sums(sums->release);
    multiply_factors(e, factor, values, here);
#pragma unroll 1
    for (int number = 0; number < e->count; number++) {
        if (number != e->halving) {
            row_step(&e->steps[number], values, here, brought != 0 && number == brought->step ? brought : 0);
        } else if (is_up) {
            EACH_COLUMN others[i] = values[i];
            here = p;
            is_up = false;
            bring_sums(sums, false, values);
            release_sums(sums->release);
            multiply_factors(e, factor, values, here);
            number = -1;
        } else {
            gate(e->steps[number].step, values, others);
        }
    }
}

INLINE void row_pack(const int format, const float *values, uint4 *words) {
    uint32_t x[TCGEN05_CHUNK];
    if (format == MATMUL_f32) {
        EACH_COLUMN x[i] = __float_as_uint(values[i]);
    } else {
#pragma unroll
        for (int i = 0; i < TCGEN05_CHUNK / 2; i++) x[i] = format == MATMUL_bf16 ? cvt_bf16x2(values[2 * i], values[2 * i + 1]) : cvt_f16x2(values[2 * i], values[2 * i + 1]);
    }
#pragma unroll
    for (int i = 0; i < row_words(format == MATMUL_f32 ? 4 : 2); i++) words[i] = make_uint4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}

/* Results of a known format. */
INLINE void row_store_as(const int format, const matmul_epilogue *e, const float *values, const row_place p) {
    const int size = format == MATMUL_f32 ? 4 : 2;
    const uint64_t to = e->out + (p.row * e->out_row_stride + p.col) * size;
    uint4 words[row_words(4)];
    row_pack(format, values, words);
    if (lies_in_words(to, p.col, p.end)) {
#pragma unroll
        for (int i = 0; i < row_words(size); i++) ((uint4 *)to)[i] = words[i];
        return;
    }
    EACH_COLUMN {
        const uint4 word = words[i * size / 16];
        const uint32_t part = i * size / 4 % 4 == 0 ? word.x : i * size / 4 % 4 == 1 ? word.y : i * size / 4 % 4 == 2 ? word.z : word.w;
        if (p.col + i >= p.end) continue;
        if (size == 4) ((uint32_t *)to)[i] = part;
        else ((uint16_t *)to)[i] = (uint16_t)(part >> i % 2 * 16);
    }
}

INLINE void row_store(const matmul_epilogue *e, const float *values, const row_place p) {
    if (e->out_format == MATMUL_f32) row_store_as(MATMUL_f32, e, values, p);
    else if (e->out_format == MATMUL_bf16) row_store_as(MATMUL_bf16, e, values, p);
    else row_store_as(MATMUL_f16, e, values, p);
}

#endif
