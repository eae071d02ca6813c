/* The products of ring.cuh where a and b are codes of e4m3: b with a scale for each 128 x 128 and a with one for each 128, or both with one for each 32; or a is what those are quantised from.
 *
 *   b    gmem -> a ring in smem of each warp, by bulk copies: a stage is a piece of up to 4 KiB of a row, or two neighbouring rows in entries for rows of one strip (2048)
 *   a    gmem -> reg, 8 elements of each strip a thread; where it comes in bf16 or f16: normalised (vector_norm.cuh) if there is a norm, quantised, bit for bit as quantize does it -> as halves, which
 *        have all numbers of e4m3, to smem in the order of fragments -> reg, a strip at a time, or once where a row is no longer
 *   sums by mma.sync of halves, to which codes of b are converted: of two rows of b eight lines of 128 codes each are the 16 rows of its first operand, the same lines of a the 8 columns of its second
 *        one, so that a line meets its own on the diagonals. The rest of the result is not read. Of blocks of 128 one sum is a block, of blocks of 32 two units of 16 are -> times both scales -> lanes by
 *        shuffles -> as in ring.cuh
 *
 * A step is one of eight, in which line i of eight has unit step ^ i of its 16 codes: the units lie in different banks then. A strip's two times eight lines are, of blocks of 128, the first eight and the others;
 * of blocks of 32 the even and the odd ones, so that a lane has neighbouring scales.
 * Resources: half of a multiprocessor's shared memory; registers: 108, for longer rows 93, of blocks of 32 121. Speed: bench/results/h200/skinny.md. */
#ifndef KERNELS_GEMM_SKINNY_RING_CODES_CUH
#define KERNELS_GEMM_SKINNY_RING_CODES_CUH

#include "kernels/gemm/skinny/ring.cuh"
#include "kernels/gemm/skinny/ring_codes.h"

/* MX: 1: scales are codes of blocks of 32; a constant of the image. Multiplications whose code lies side by side: what MX does needs more registers. */
enum { CODES_STEPS = 8, CODES_STRIP_BLOCKS = 16, CODES_STEP_BYTES = 512, CODES_TOGETHER = MX ? 1 : 2 };

INLINE bool codes_halve(const ring_codes_arguments *c) { return c->ring.product.epilogue.halving >= 0; }

/* ---- the ring ---- */

/* Stages go by twos: of the same piece of neighbouring rows, or of columns that a step joins, and of whole rows each has two neighbours. The next one to bring, and where it lies. left: rows of each of two halves
 * where a step joins them, else of both stages, from those of this one on. */
typedef struct codes_cursor { uint64_t from; int left, side, chunk; } codes_cursor;

INLINE codes_cursor codes_begin(const ring_codes_arguments *c, const ring_place *p) {
    const skinny_arguments *g = &c->ring.product;
    const codes_cursor at = {g->b.data + p->first * g->b.row_bytes, codes_halve(c) ? p->rows / 2 : p->rows, 0, 0};
    return at;
}

/* Of the rows left, how many lie in front of the second stage's: those of the first one; where a step joins two halves the stages count their own. */
INLINE int rows_between(const ring_codes_arguments *c, const int whole) { return codes_halve(c) ? 0 : whole ? 2 : 1; }

INLINE uint32_t stage_bytes_of(const ring_codes_arguments *c, const int whole, const codes_cursor *at) {
    if (whole) return min(2, at->left - at->side * rows_between(c, whole)) * CODES_STRIP;
    return min(c->ring.chunk_bytes, c->ring.product.k - at->chunk * c->ring.chunk_bytes);
}

INLINE void next_stage(const ring_codes_arguments *c, const int whole, codes_cursor *at) {
    const int between = rows_between(c, whole);
    if (at->side == 0 && at->left > between) {
        at->side = 1;
        at->from += c->further;
        return;
    }
    if (at->side == 1) at->from -= c->further;
    at->side = 0;
    if (!whole) {
        at->from += c->ring.chunk_bytes;
        if (++at->chunk < c->ring.chunks) return;
        at->chunk = 0;
        at->from -= c->ring.chunks * c->ring.chunk_bytes;
    }
    at->from += c->advance;
    at->left -= between + (whole ? 2 : 1);
}

/* Starts the copy of a stage, if there is one, by one lane. */
INLINE void bring_stage(const ring_codes_arguments *c, const int whole, const ring_place *p, int stage, uint64_t policy, codes_cursor *at) {
    if (at->left <= 0) return;
    if (threadIdx.x % 32 == 0) {
        const uint32_t bytes = stage_bytes_of(c, whole, at), full = p->full + stage * BARRIER_BYTES;
        mbarrier_arrive_expect(full, bytes);
        bulk_load_policy(p->data + stage * c->ring.chunk_bytes, at->from, bytes, full, policy);
    }
    next_stage(c, whole, at);
}

INLINE void fill_stages(const ring_codes_arguments *c, const int whole, const ring_place *p, uint64_t policy, codes_cursor *ahead) {
#pragma unroll 1
    for (int i = 0; i < c->ring.stages; i++) bring_stage(c, whole, p, i, policy, ahead);
}

/* Of two rows, what this lane has of a strip's scales: of blocks of 128 those lane / 4 and 8 further, fp32; of blocks of 32 the eight from lane / 4 * 8 on, four codes to a word. */
typedef struct codes_scales { uint32_t first[2], second[2]; } codes_scales;

/* Codes of scales that are not there: 1. */
enum { CODES_ONES = 0x7f7f7f7f };

INLINE void load_block_scales(const skinny_arguments *g, int row, int strip, uint32_t to[2]) {
    const matmul_scales *x = &g->b.scales;
    const int lane = threadIdx.x % 32;
    if (MX) {
        const int of_row = x->tiled ? row / 128 * x->row_step + row % 32 * 16 + row % 128 / 32 * 4 : row * x->row_step, quad = strip * (CODES_STRIP / 128) + lane / 4 * 2;
#pragma unroll
        for (int i = 0; i < 2; i++) to[i] = (quad + i) * 4 < x->cols ? *(const uint32_t *)(x->data + (of_row + (quad + i) * x->quad_step)) : (uint32_t)CODES_ONES;
    } else {
        const int block = strip * CODES_STRIP_BLOCKS + lane / 4;
        const uint32_t *scales = (const uint32_t *)x->data + (row / 128 * x->row_step + block);
#pragma unroll
        for (int i = 0; i < 2; i++) to[i] = block + i * 8 < x->cols ? scales[i * 8] : 0;
    }
}

/* Of row `row` and of that `further` rows on, or of the last one where they are not there. */
INLINE codes_scales load_scales_of(const skinny_arguments *g, int row, int further, int strip) {
    const int last = g->n - 1;
    codes_scales s;
    load_block_scales(g, min(row, last), strip, s.first);
    load_block_scales(g, min(row + further, last), strip, s.second);
    return s;
}

/* ---- a ---- */

INLINE uint32_t codes_of_a(const ring_codes_arguments *c) {
    extern __shared__ __align__(1024) uint8_t shared[];
    return shared_address(shared) + c->at;
}
/* Of blocks of 128 fp32; of 32 codes. */
INLINE uint8_t *scales_of_a(void) {
    __shared__ __align__(16) uint8_t of_blocks[CODES_MOST / 32];
    return of_blocks;
}
static_assert(CODES_MOST / 128 * 4 == CODES_MOST / 32, "both kinds of scales have as many bytes");

/* This thread's eight codes of a strip. A unit of 16 is one of eight of a line of 128; of a step 32 lanes have 16 bytes: two pairs of one of eight lines, and two of another one. */
INLINE void store_codes_of_a(const ring_codes_arguments *c, int strip, uint2 eight) {
    const int thread = threadIdx.x, line = thread / 16, column = MX ? line / 2 : line % 8, half = MX ? line % 2 : line / 8;
    const int step = thread / 2 % 8 ^ column, place = (column * 4 + thread % 2 * 2) ^ step;
    const uint32_t to = codes_of_a(c) + strip * CODES_A_BYTES + step * CODES_STEP_BYTES + half * 8;
    st_shared_u32x2(to + place * 16, halves_of_e4m3(eight.x, 0), halves_of_e4m3(eight.x, 1));
    st_shared_u32x2(to + (place ^ 1) * 16, halves_of_e4m3(eight.y, 0), halves_of_e4m3(eight.y, 1));
}

/* A strip's fragments of each step: of the one line of column lane / 4 in .x and .y, of the other one in .z and .w; and their scales. */
INLINE void read_strip(const ring_codes_arguments *c, int strip, uint4 a[CODES_STEPS], uint32_t scales[2]) {
    const int lane = threadIdx.x % 32;
    const uint32_t from = codes_of_a(c) + strip * CODES_A_BYTES, *of_blocks = (const uint32_t *)scales_of_a() + strip * CODES_STRIP_BLOCKS;
#pragma unroll
    for (int step = 0; step < CODES_STEPS; step++) a[step] = ld_shared_u32x4(from + step * CODES_STEP_BYTES + (lane ^ step) * 16);
#pragma unroll
    for (int i = 0; i < 2; i++) scales[i] = of_blocks[MX ? lane / 4 * 2 + i : lane / 4 + i * 8];
}

/* Eight of a's numbers as they come, from unit number `unit` of 8 on; behind a norm, what that has left of them. */
INLINE uint4 load_eight(const skinny_arguments *g, int unit) {
    if (unit * 8 >= g->k) return make_uint4(0, 0, 0, 0);
    if (has_norm(g)) return ld_shared_u32x4(normed_row(g) + unit * 16);
    if (g->quantised != 0) return ((const uint4 *)g->a.data)[unit];
    const uint2 codes = ((const uint2 *)g->a.data)[unit];
    return make_uint4(codes.x, codes.y, 0, 0);
}

/* Of a block's largest magnitude even lanes get fp8_scale, odd ones fp8_inverse, by one division. */
INLINE float scale_or_inverse(float most) {
    const bool is_even = threadIdx.x % 2 == 0;
    const float bounded = rules_fp8_bounded(most);
    return rules_is_nan(most) ? NOT_A_NUMBER : (is_even ? bounded : 448.0f) / (is_even ? 448.0f : bounded);
}

/* Eight elements to codes, and the scale of their block: fp32 in even lanes, or a code. */
INLINE uint2 quantise_eight(int format, uint4 raw, uint32_t *scale) {
    float x[8], inverse;
    floats_of_unit(format, raw, x);
    uint32_t bits = largest_of_unit(x);
#pragma unroll
    for (int step = (MX ? 4 : 16) / 2; step > 0; step /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, step));
    if (MX) {
        *scale = rules_mx_scale(__uint_as_float(bits), largest_code(MATMUL_e4m3), 0);
        inverse = rules_mx_inverse(*scale);
    } else {
        const float own = scale_or_inverse(__uint_as_float(bits)), others = __shfl_xor_sync(~0u, own, 1);
        inverse = threadIdx.x % 2 == 0 ? others : own;
        *scale = __float_as_uint(own);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] *= inverse;
    return codes_e4m3(x);
}

/* The scale of a's block where that comes as codes; what is not there has one that its zeros may be multiplied by. */
INLINE uint32_t load_scale_of_a(const skinny_arguments *g, int block) {
    if (block >= g->a.scales.cols) return MX ? CODES_ONES & 0xff : 0;
    const int64_t at = scale_index(&g->a.scales, scales_of_row(&g->a.scales, 0), block);
    return MX ? ((const uint8_t *)g->a.scales.data)[at] : ((const uint32_t *)g->a.scales.data)[at];
}

/* All of a to shared memory, strips in whole, by all threads; a barrier must follow. */
INLINE void bring_codes_of_a(const ring_codes_arguments *c, const int whole) {
    enum { MOST = CODES_MOST / CODES_STRIP, STRIP_UNITS = CODES_STRIP / 8 };
    static_assert(STRIP_UNITS == SKINNY_VECTOR_WARPS * 32, "a thread has one unit of a strip");
    const skinny_arguments *g = &c->ring.product;
    const int units = MX ? 4 : 16;           /* of a block */
    uint4 raw[MOST];
#pragma unroll
    for (int i = 0; i < (whole ? 1 : MOST); i++) raw[i] = load_eight(g, i * STRIP_UNITS + (int)threadIdx.x);
#pragma unroll
    for (int i = 0; i < (whole ? 1 : MOST); i++) {
        const int block = (i * STRIP_UNITS + (int)threadIdx.x) / units;
        if (i >= c->strips) break;
        uint2 eight = make_uint2(raw[i].x, raw[i].y);
        uint32_t scale;
        if (g->quantised != 0) eight = quantise_eight(g->a.format, raw[i], &scale);
        else scale = load_scale_of_a(g, block);
        store_codes_of_a(c, i, eight);
        if (threadIdx.x % units != 0) continue;
        if (MX) scales_of_a()[block] = (uint8_t)scale;
        else ((uint32_t *)scales_of_a())[block] = scale;
    }
}

/* ---- products ---- */

/* Codes x of the first row's lines and y of the second's, times a's. */
INLINE void multiply_codes_of(uint32_t x, uint32_t y, uint32_t low, uint32_t high, float d[4]) {
    mma_f16(d, halves_of_e4m3(x, 0), halves_of_e4m3(y, 0), halves_of_e4m3(x, 1), halves_of_e4m3(y, 1), low, high);
}

/* What the diagonal has of row 0 or 1 of two. */
INLINE float on_diagonal(const float d[4], const int row) { return threadIdx.x / 4 % 2 == 0 ? d[row * 2] : d[row * 2 + 1]; }

/* Of blocks of 128: what a row has of two of them, in d[0] and d[1], of even and odd steps. */
INLINE float scaled_sum(const float d[2][2][4], const int row, const uint32_t of_a[2], const uint32_t of_b[2]) {
    float own[2], by[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        own[i] = on_diagonal(d[i][0], row) + on_diagonal(d[i][1], row);
        by[i] = __uint_as_float(of_a[i]) * __uint_as_float(of_b[i]);
    }
    return fmaf(own[0], by[0], own[1] * by[1]);
}

/* The four scales of a word in the order of steps, of which two have a block: unit step ^ column lies in block step / 2 ^ column / 2. */
INLINE uint32_t in_order_of_steps(uint32_t word) {
    const uint32_t two_columns = threadIdx.x % 32 / 8;
    return prmt(word, 0, 0x3210 ^ two_columns * 0x1111);
}

/* Are all codes of scales from 64 to 190, so that products of two of them are powers of two that fp32 has? */
INLINE bool are_near(uint32_t word) {
    const uint32_t more = word + 0x01010101;
    return (~((word ^ word << 1) & (more ^ more << 1)) & 0x80808080) == 0;
}

/* sum + x times the powers of two of two codes of scales; far: of any codes. */
INLINE float times_scales(const bool far, float x, uint32_t of_a, uint32_t of_b, float sum) {
    const uint32_t both = of_a + of_b;
    if (!far) return fmaf(x, __uint_as_float((both - 127) << 23), sum);
    if (of_a == 0xff || of_b == 0xff) return __uint_as_float(0x7fffffff);
    return sum + x * float_of_e8m0(both / 2) * float_of_e8m0(both - both / 2);
}

/* Of two rows' strips, `left` bytes of which are there. nothing: the address of a unit of zeros. Only lanes l with l % 4 == l / 8 get something that means anything. */
INLINE void multiply_strips(const bool far, const uint4 a[CODES_STEPS], const uint32_t of_a[2], const codes_scales *of_b, uint32_t first, uint32_t second, int left, uint32_t nothing, float sums[2]) {
    const int lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;      /* matrices: units of a step of the one lines and of the other ones, and those of the next step */
    const int place = (MX ? row * 2 + matrix % 2 : row + matrix % 2 * 8) * 128 + (matrix / 2 ^ row) * 16;
    float d[2][2][4] = {{{0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}}};
#pragma unroll
    for (int step = 0; step < CODES_STEPS; step += 2) {
        const int at = place ^ step * 16;
        const uint4 x = ldmatrix_x4(at < left ? first + at : nothing), y = ldmatrix_x4(at < left ? second + at : nothing);
        if (!MX) {
            multiply_codes_of(x.x, y.x, a[step].x, a[step].y, d[0][0]);
            multiply_codes_of(x.y, y.y, a[step].z, a[step].w, d[1][0]);
            multiply_codes_of(x.z, y.z, a[step + 1].x, a[step + 1].y, d[0][1]);
            multiply_codes_of(x.w, y.w, a[step + 1].z, a[step + 1].w, d[1][1]);
            continue;
        }
        float of_block[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        multiply_codes_of(x.x, y.x, a[step].x, a[step].y, of_block[0]);
        multiply_codes_of(x.y, y.y, a[step].z, a[step].w, of_block[1]);
        multiply_codes_of(x.z, y.z, a[step + 1].x, a[step + 1].y, of_block[0]);
        multiply_codes_of(x.w, y.w, a[step + 1].z, a[step + 1].w, of_block[1]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t own = of_a[i] >> step * 4 & 0xff;
            sums[0] = times_scales(far, on_diagonal(of_block[i], 0), own, of_b->first[i] >> step * 4 & 0xff, sums[0]);
            sums[1] = times_scales(far, on_diagonal(of_block[i], 1), own, of_b->second[i] >> step * 4 & 0xff, sums[1]);
        }
    }
    if (MX) return;
    sums[0] += scaled_sum(d, 0, of_a, of_b->first);
    sums[1] += scaled_sum(d, 1, of_a, of_b->second);
}

/* The same, by what the scales are. */
INLINE void multiply_scaled(const uint4 a[CODES_STEPS], const uint32_t of_a[2], const codes_scales *of_b, uint32_t first, uint32_t second, int left, uint32_t nothing, float sums[2]) {
    if (!MX) {
        multiply_strips(false, a, of_a, of_b, first, second, left, nothing, sums);
        return;
    }
    uint32_t own[2];
    codes_scales others;
    bool is_near = true;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        is_near = is_near && are_near(of_a[i]) && are_near(of_b->first[i]) && are_near(of_b->second[i]);
        own[i] = in_order_of_steps(of_a[i]);
        others.first[i] = in_order_of_steps(of_b->first[i]);
        others.second[i] = in_order_of_steps(of_b->second[i]);
    }
    if (__all_sync(~0u, is_near)) multiply_strips(false, a, own, &others, first, second, left, nothing, sums);
    else multiply_strips(true, a, own, &others, first, second, left, nothing, sums);
}

/* Two sums, or four, over the lanes of the diagonal, which 4, 9 and 18 take to each other. Lane 0 gets the first, 4 the second, 9 the third, 13 the fourth. */
INLINE float add_two(const float sums[2]) {
    const bool is_first = threadIdx.x / 4 % 2 == 0;
    float all = (is_first ? sums[0] : sums[1]) + __shfl_xor_sync(~0u, is_first ? sums[1] : sums[0], 4);
    all += __shfl_xor_sync(~0u, all, 9);
    return all + __shfl_xor_sync(~0u, all, 18);
}
INLINE float add_four(const float sums[4]) {
    const bool is_first = threadIdx.x / 4 % 2 == 0, is_low = threadIdx.x % 2 == 0;
    const float low = (is_first ? sums[0] : sums[1]) + __shfl_xor_sync(~0u, is_first ? sums[1] : sums[0], 4);
    const float high = (is_first ? sums[2] : sums[3]) + __shfl_xor_sync(~0u, is_first ? sums[3] : sums[2], 4);
    const float all = (is_low ? low : high) + __shfl_xor_sync(~0u, is_low ? high : low, 9);
    return all + __shfl_xor_sync(~0u, all, 18);
}

/* ---- the rows of a warp ---- */

/* What both kinds of rows are given. ahead: the next stage to bring. */
typedef struct codes_state { uint64_t policy; uint32_t nothing; codes_cursor ahead; ring_turn turn; } codes_state;

INLINE uint32_t wait_for_stage(const ring_arguments *r, const ring_place *p, ring_turn turn) {
    mbarrier_wait(p->full + turn.stage * BARRIER_BYTES, turn.phase);
    return p->data + turn.stage * r->chunk_bytes;
}

INLINE void release_stage(const ring_codes_arguments *c, const int whole, const ring_place *p, codes_state *s) {
    __syncwarp();
    bring_stage(c, whole, p, s->turn.stage, s->policy, &s->ahead);
    ring_next(&s->turn, c->ring.stages);
}

/* Rows of one strip, four at a time: of two stages, each of which has two. scales: of the first four. Returns the sum of this lane's row. */
INLINE float multiply_whole_rows(const ring_codes_arguments *c, const ring_place *p, codes_scales scales[2], codes_state *s) {
    const skinny_arguments *g = &c->ring.product;
    const bool halves = codes_halve(c);
    const int step = halves ? 2 : 4, further = halves ? g->epilogue.half : 2, lane = threadIdx.x % 32;
    const int in_four = lane % 4, from = halves ? in_four / 2 * 4 + in_four % 2 * 9 : in_four % 2 * 4 + in_four / 2 * 9;
    int left = halves ? p->rows / 2 : p->rows, row = p->first;
    uint4 a[CODES_STEPS];
    uint32_t of_a[2];
    float own = 0;
    read_strip(c, 0, a, of_a);
#pragma unroll 1
    for (int number = 0; left > 0; number += 4, left -= step) {
        float sums[4] = {0, 0, 0, 0};
        row += step;
#pragma unroll CODES_TOGETHER
        for (int side = 0; side < 2; side++) {
            const int rows = side == 1 && !halves ? left - 2 : left;
            const codes_scales own_scales = scales[0];
            float two[2] = {0, 0};
            if (rows <= 0) break;
            scales[0] = scales[1];
            scales[1] = load_scales_of(g, row + side * further, 1, 0);
            const uint32_t first = wait_for_stage(&c->ring, p, s->turn);
            multiply_scaled(a, of_a, &own_scales, first, rows > 1 ? first + CODES_STRIP : first, CODES_STRIP, s->nothing, two);
            release_stage(c, 1, p, s);
#pragma unroll
            for (int i = 0; i < 4; i++) sums[i] = side == i / 2 ? two[i % 2] : sums[i];
        }
        const float moved = __shfl_sync(~0u, add_four(sums), from);
        own = lane / 4 == number / 4 ? moved : own;
    }
    return own;
}

/* Longer rows, two at a time: of two stages, each of which has up to two strips of one. */
INLINE float multiply_long_rows(const ring_codes_arguments *c, const ring_place *p, codes_scales scales[2], codes_state *s) {
    const skinny_arguments *g = &c->ring.product;
    const bool halves = codes_halve(c);
    const int further = halves ? g->epilogue.half : 1, step = halves ? 1 : 2, lane = threadIdx.x % 32;
    int row = p->first;
    float own = 0;
#pragma unroll 1
    for (int number = 0; number < p->rows; number += 2) {
        const bool both = number + 1 < p->rows;
        float sums[2] = {0, 0};
#pragma unroll 1
        for (int chunk = 0; chunk < c->ring.chunks; chunk++) {
            const bool is_last = chunk + 1 == c->ring.chunks;
            const int next = is_last ? 0 : chunk * 2 + 2, next_row = is_last ? row + step : row, left = g->k - chunk * c->ring.chunk_bytes;
            ring_turn other = s->turn;
            ring_next(&other, c->ring.stages);
            const uint32_t first = wait_for_stage(&c->ring, p, s->turn), second = both ? wait_for_stage(&c->ring, p, other) : first;
#pragma unroll CODES_TOGETHER
            for (int i = 0; i < 2; i++) {
                const codes_scales own_scales = scales[0];
                uint4 a[CODES_STEPS];
                uint32_t of_a[2];
                scales[0] = scales[1];
                scales[1] = load_scales_of(g, next_row, further, next + i);
                if (left <= i * CODES_STRIP) continue;
                read_strip(c, chunk * 2 + i, a, of_a);
                multiply_scaled(a, of_a, &own_scales, first + i * CODES_STRIP, second + i * CODES_STRIP, left - i * CODES_STRIP, s->nothing, sums);
            }
            release_stage(c, 0, p, s);
            if (both) release_stage(c, 0, p, s);
        }
        row += step;
        const float moved = __shfl_sync(~0u, add_two(sums), lane % 2 * 4);
        own = lane / 2 == number / 2 ? moved : own;
    }
    return own;
}

/* ---- all of it ---- */

/* Of the warp's first rows. */
INLINE void load_first_scales(const ring_codes_arguments *c, const int whole, const ring_place *p, codes_scales scales[2]) {
    const skinny_arguments *g = &c->ring.product;
    const int half = g->epilogue.half;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (whole) scales[i] = load_scales_of(g, p->first + i * (codes_halve(c) ? half : 2), 1, 0);
        else scales[i] = load_scales_of(g, p->first, codes_halve(c) ? half : 1, i);
    }
}

/* whole: 1: rows of b are a strip, and a stage is two of them. */
INLINE void matmul_ring_codes(const ring_codes_arguments *c, const int whole) {
    __shared__ uint4 zeros;
    const ring_arguments *r = &c->ring;
    const skinny_arguments *g = &r->product;
    const ring_place p = ring_place_of(r);
    const int lane = threadIdx.x % 32;
    codes_state s = {policy_first(), shared_address(&zeros), codes_begin(c, &p), ring_reader()};
    codes_scales scales[2];
    norm_pieces columns;
    grid_release();
    if (threadIdx.x == 0) zeros = make_uint4(0, 0, 0, 0);
    ring_open(r, &p);
    if (g->b_is_constant) {
        fill_stages(c, whole, &p, s.policy, &s.ahead);
        load_first_scales(c, whole, &p, scales);
    }
    if (has_norm(g)) columns = load_columns(g);
    grid_wait();
    if (!g->b_is_constant) {
        fill_stages(c, whole, &p, s.policy, &s.ahead);
        load_first_scales(c, whole, &p, scales);
    }
    if (has_norm(g)) normalise_row(g, &columns);
    bring_codes_of_a(c, whole);
    const ring_early early = ring_load_early(r, &p, lane);
    __syncthreads();
    ring_end_rows(r, &p, &early, lane, whole ? multiply_whole_rows(c, &p, scales, &s) : multiply_long_rows(c, &p, scales, &s));
}

#define RING_CODES_ENTRY(name, whole)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(SKINNY_VECTOR_WARPS * 32, 2) name(const __grid_constant__ ring_codes_arguments arguments) { \
        matmul_ring_codes(&arguments, whole);                                                                                                  \
    }

#endif
