/* The products of ring.cuh where b is codes of e2m1 with scales by block, and a the same or what is quantised to it, by each block of threads for itself: sums of a scale block are integers.
 *
 *   b    gmem -> a ring in smem of each warp, by bulk copies: a stage is up to four whole rows, their codes and behind them their scales, as they lie
 *   a    gmem -> normalised (vector_norm.cuh) if there is a norm -> its largest magnitude over the block -> codes and scales, eight elements to a thread; or gmem -> codes and scales -> smem: a byte for an element, twice its number, and
 *        scales in fp32
 *   sums a unit of 16 bytes of b is 32 k: words of eight codes become bytes by two looks into tables, and dp4a adds their products with a's; a block's sum times both scales is added in fp32, exactly multiplied ->
 *        four rows' sums by shuffles -> lane i of a warp has its row i -> epilogue -> gmem
 *
 * A table has a number for each magnitude, the bits 0 to 2 of a code. prmt looks four codes up, and where a code's bit 3, its sign, is set, it gives the sign of the table's byte instead: 0. So with twice the number
 * where it is positive, and less the number in any case, the two add up to the number, and dp4a multiplies and adds either by chains of its own.
 *
 * Of mxfp4 the scales of a whose products with sums of integers might be no numbers of fp32 are held so much less, with all others of the row, and the result is multiplied by that at the end.
 * One block a multiprocessor. Resources: half of a multiprocessor's shared memory at most, up to 91 registers on sm_90 and 95 on sm_100f. Speed: bench/results/h200/skinny.md. */
#ifndef KERNELS_GEMM_SKINNY_RING_NIBBLES_CUH
#define KERNELS_GEMM_SKINNY_RING_NIBBLES_CUH

#include "kernels/gpu/ptx/bytes.cuh"
#include "kernels/gpu/ptx/warp.cuh"
#include "kernels/gemm/skinny/quantised_codes.cuh"
#include "kernels/gemm/skinny/ring.cuh"
#include "kernels/gemm/skinny/ring_nibbles.h"

INLINE constexpr int block_depth(const codes_shape s) { return is_nv(s) ? 16 : 32; }

/* ---- the ring ---- */

/* Starts the copy of the warp's rows from number *from on, as many as a stage has, if there are any, by one lane. Where a step halves, stages of several rows have those of the first half first, and then as many of the other one. */
INLINE void bring_rows(const nibbles_arguments *n, const codes_shape s, const ring_place *p, int stage, uint64_t policy, int *from) {
    const skinny_arguments *g = &n->ring.product;
    const bool halves = g->epilogue.halving >= 0;
    const int count = min(n->rows, p->rows - *from), parts = halves && n->rows > 1 ? 2 : 1, each = count / parts, code_bytes = g->k / 2, scale_bytes = g->k / block_depth(s);
    if (count <= 0) return;
    if (threadIdx.x % 32 == 0) {
        const uint32_t data = p->data + stage * n->ring.chunk_bytes, full = p->full + stage * BARRIER_BYTES;
        mbarrier_arrive_expect(full, count * (code_bytes + scale_bytes));
#pragma unroll 1
        for (int i = 0; i < parts; i++) {
            const int64_t row = p->first + (halves ? *from / 2 + (parts == 2 ? i : *from % 2) * g->epilogue.half : *from);
            bulk_load_policy(data + i * each * code_bytes, g->b.data + row * code_bytes, each * code_bytes, full, policy);
            bulk_load_policy(data + n->rows * code_bytes + i * each * scale_bytes, g->b.scales.data + row * scale_bytes, each * scale_bytes, full, policy);
        }
    }
    *from += n->rows;
}

INLINE void fill_stages(const nibbles_arguments *n, const codes_shape s, const ring_place *p, uint64_t policy, int *ahead) {
#pragma unroll 1
    for (int i = 0; i < n->ring.stages; i++) bring_rows(n, s, p, i, policy, ahead);
}

/* ---- a ---- */

/* Twice the numbers of eight codes as signed bytes. */
INLINE uint2 bytes_of_codes(uint32_t word) {
    uint32_t bytes[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t four = word >> i * 16, negative = prmt_signs(0x03020100, 0x0c080604, four ^ 0x8888);
        bytes[i] = prmt_signs(0x03020100, 0x0c080604, four) | ((0x80808080 - negative) ^ 0x80808080);
    }
    return make_uint2(bytes[0], bytes[1]);
}

/* How much less scales are held, by the exponent of the row's largest magnitude: 2^(largest - 4) times a sum of integers below 2^13 is a number then, and 2^(-127 - 2 - 16), the least there is, is one of fp32, too. */
INLINE int held_less(int largest) { return max(largest - 112, 0); }

/* A quarter of what the code of a's scale stands for, as both elements are twice theirs; of mxfp4 over 2^exponent. */
INLINE float factor_of_scale(const codes_shape s, uint32_t code, int exponent) {
    if (is_nv(s)) return cvt_f32_f16((uint16_t)cvt_f16x2_e4m3x2((uint16_t)code)) * 0.25f;
    const int by = -exponent - 2;
    return float_of_e8m0(code) * power_of_two(by / 2) * power_of_two(by - by / 2);
}

/* The largest number of the block's. */
INLINE uint32_t largest_of_threads(uint32_t most) {
    __shared__ uint32_t of_warp[SKINNY_VECTOR_WARPS];
    most = redux_max(most);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SKINNY_VECTOR_WARPS; i++) most = max(most, of_warp[i]);
    return most;
}

/* A piece of a, its codes and that of its scale, into shared memory. From a's place on: of each 32 k the first 16 bytes, then of each the others, and scales. */
INLINE void store_piece(const skinny_arguments *g, const codes_shape s, int piece, uint32_t word, uint32_t scale, int exponent) {
    const uint32_t at = normed_row(g);
    const uint2 bytes = bytes_of_codes(word);
    st_shared_u32x2(at + piece / 2 % 2 * (g->k / 2) + piece / 4 * 16 + piece % 2 * 8, bytes.x, bytes.y);
    if (piece % lanes_of(s) == 0) st_shared_f32(at + g->k + piece / lanes_of(s) * 4, factor_of_scale(s, scale, exponent));
}

enum { NIBBLES_THREADS = SKINNY_VECTOR_WARPS * 32 };

/* Where a comes as it is meant. Returns what all sums are multiplied by. */
INLINE float bring_codes(const skinny_arguments *g, const codes_shape s) {
    const uint8_t *scales = (const uint8_t *)g->a.scales.data;
    int exponent = 0;
    if (!is_nv(s)) {
        uint32_t most = 0;
        for (int block = threadIdx.x; block < g->k / block_depth(s); block += NIBBLES_THREADS) {
            const uint32_t code = scales[scale_index(&g->a.scales, 0, block)];
            most = max(most, code == 0xff ? 0 : code);
        }
        exponent = held_less((int)largest_of_threads(most) - 125);
    }
#pragma unroll 1
    for (int piece = threadIdx.x; piece * NIBBLES_PIECE < g->k; piece += NIBBLES_THREADS)
        store_piece(g, s, piece, ((const uint32_t *)g->a.data)[piece], scales[scale_index(&g->a.scales, 0, piece / lanes_of(s))], exponent);
    return is_nv(s) ? 1 : power_of_two(exponent);
}

/* A piece that is there, and zeros behind them. */
INLINE uint4 load_piece_of_a(const skinny_arguments *g, int piece) { return piece * NIBBLES_PIECE < g->k ? ((const uint4 *)g->a.data)[piece] : make_uint4(0, 0, 0, 0); }

INLINE uint32_t with_largest(const skinny_arguments *g, const uint4 raw, uint32_t most) {
    float x[8];
    floats_of_halves_unit(g->a.format, raw, x);
    return max(most, largest_for_row(MATMUL_nvfp4_row, x));
}

/* Where it comes in bf16 or f16, or a norm has left it in shared memory, a piece to a thread, which makes room for what it is quantised to. The same. */
INLINE float quantise_row(const skinny_arguments *g, const codes_shape s) {
    uint4 raw[NIBBLES_PIECES];
    uint32_t most = 0;
    if (has_norm(g)) {
        raw[0] = (int)threadIdx.x * NIBBLES_PIECE < g->k ? ld_shared_u32x4(normed_row(g) + threadIdx.x * 16) : make_uint4(0, 0, 0, 0);
        most = with_largest(g, raw[0], 0);
    } else {
#pragma unroll
        for (int j = 0; j < NIBBLES_PIECES; j++) raw[j] = load_piece_of_a(g, threadIdx.x + j * NIBBLES_THREADS);
#pragma unroll
        for (int j = 0; j < NIBBLES_PIECES; j++)
            if (j * NIBBLES_THREADS * NIBBLES_PIECE < g->k) most = with_largest(g, raw[j], most);
    }
    const float of_row = __uint_as_float(largest_of_threads(most));
    const int exponent = held_less((int)(__float_as_uint(of_row) >> 23) - 127);
    const second_level second = second_of_row(s, of_row);
    const uint32_t inverses = normed_row(g) + g->k + g->k / 4;
    uint4 own = raw[0];
    if (s.tabled) {
        store_inverses(inverses, second);
        __syncthreads();
    }
#pragma unroll 1
    for (int piece = threadIdx.x; piece / NIBBLES_THREADS * NIBBLES_THREADS * NIBBLES_PIECE < g->k;) {
        float x[8];
        uint32_t word;
        floats_of_halves_unit(g->a.format, own, x);
        const uint32_t code = quantised_unit(s, second, inverses, x, &word);
        if (piece * NIBBLES_PIECE < g->k) store_piece(g, s, piece, word, code, exponent);
        piece += NIBBLES_THREADS;
        own = load_piece_of_a(g, piece);      /* of a norm there is none */
    }
    return is_nv(s) ? row_scale(MATMUL_nvfp4_row, of_row) : power_of_two(exponent);
}

/* ---- products ---- */

/* 32 k of a, and their scales, of which mxfp4 has one. */
typedef struct nibbles_unit { uint4 low, high; float scales[2]; } nibbles_unit;

INLINE nibbles_unit read_unit_of_a(const skinny_arguments *g, const codes_shape s, int unit) {
    const uint32_t at = normed_row(g);
    nibbles_unit a = {ld_shared_u32x4(at + unit * 16), ld_shared_u32x4(at + g->k / 2 + unit * 16), {0, 0}};
    if (is_nv(s)) {
        const float2 two = ld_shared_f32x2(at + g->k + unit * 8);
        a.scales[0] = two.x, a.scales[1] = two.y;
    } else {
        a.scales[0] = ld_shared_f32(at + g->k + unit * 4);
    }
    return a;
}

/* The numbers of magnitudes, times two: 0 1 2 3 4 6 8 12; twice that, and less that. Their lower words lie in registers: an instruction has room for one constant. */
typedef struct nibbles_tables { uint32_t twice, less; } nibbles_tables;

/* By way of shared memory, as the compiler would make constants anew for each instruction. to: there. */
INLINE void store_tables(nibbles_tables *to) {
    if (threadIdx.x != 0) return;
    to->twice = 0x06040200;
    to->less = 0xfdfeff00;
}

INLINE nibbles_tables load_tables(const nibbles_tables *from) {
    const nibbles_tables t = {ld_shared_u32(shared_address(&from->twice)), ld_shared_u32(shared_address(&from->less))};
    return t;
}

/* Sums of integers begin with the bits of 3 * 2^22, so that they end as those of a float which is that much more. */
#define NIBBLES_ONES 12582912.0f
INLINE float float_of_sum(int32_t sum) { return __int_as_float(sum) - NIBBLES_ONES; }

/* sum and what a unit's two halves add to it. scales: the codes of b's. */
INLINE float add_halves(const codes_shape s, const nibbles_unit *a, int32_t first, int32_t second, uint32_t scales, float sum) {
    float both[2];
    if (!is_nv(s)) return fmaf((float_of_sum(first) + float_of_sum(second)) * a->scales[0], float_of_e8m0(scales), sum);
    floats_of_halves(cvt_f16x2_e4m3x2((uint16_t)scales), both);
    sum = fmaf(float_of_sum(first), both[0] * a->scales[0], sum);
    return fmaf(float_of_sum(second), both[1] * a->scales[1], sum);
}

/* This lane's part of the products of `rows` rows of a stage. data: the first one's codes, scales: and its scales. Words of all rows and of both halves of a unit are multiplied side by side, each by two chains of dp4a. */
INLINE void multiply_rows(const skinny_arguments *g, const codes_shape s, const nibbles_tables *t, const int rows, uint32_t data, uint32_t scales, float *sums) {
    const int code_bytes = g->k / 2, scale_bytes = g->k / block_depth(s);
#pragma unroll 1
    for (int unit = threadIdx.x % 32; unit < g->k / NIBBLES_DEPTH; unit += 32) {
        const nibbles_unit a = read_unit_of_a(g, s, unit);
        uint4 codes[NIBBLES_ROWS];
        uint32_t of_block[NIBBLES_ROWS];
        int32_t twice[NIBBLES_ROWS][2], less[NIBBLES_ROWS][2];
#pragma unroll
        for (int r = 0; r < rows; r++) {
            codes[r] = ld_shared_u32x4(data + r * code_bytes + unit * 16);
            of_block[r] = is_nv(s) ? ld_shared_u16(scales + r * scale_bytes + unit * 2) : ld_shared_u8(scales + r * scale_bytes + unit);
            twice[r][0] = twice[r][1] = __float_as_int(NIBBLES_ONES);
            less[r][0] = less[r][1] = 0;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)         /* four codes of each half at a time */
#pragma unroll
            for (int r = 0; r < rows; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint32_t four = word_of(codes[r], half * 2 + i / 2) >> i % 2 * 16, of_a = word_of(half == 0 ? a.low : a.high, i);
                    twice[r][half] = dp4a(prmt_signs(t->twice, 0x18100c08, four), of_a, twice[r][half]);
                    less[r][half] = dp4a(prmt_signs(t->less, 0xf4f8fafc, four & 0x7777), of_a, less[r][half]);
                }
#pragma unroll
        for (int r = 0; r < rows; r++) sums[r] = add_halves(s, &a, twice[r][0] + less[r][0], twice[r][1] + less[r][1], of_block[r], sums[r]);
    }
}

/* Lane l gets the sum over all lanes of row l / 8. */
INLINE float rows_to_lanes(const float sums[NIBBLES_ROWS]) {
    const bool high = threadIdx.x & 16, odd = threadIdx.x & 8;
    const float even_row = (high ? sums[2] : sums[0]) + __shfl_xor_sync(~0u, high ? sums[0] : sums[2], 16), odd_row = (high ? sums[3] : sums[1]) + __shfl_xor_sync(~0u, high ? sums[1] : sums[3], 16);
    float y = (odd ? odd_row : even_row) + __shfl_xor_sync(~0u, odd ? even_row : odd_row, 8);
#pragma unroll
    for (int step = 4; step > 0; step /= 2) y += __shfl_xor_sync(~0u, y, step);
    return y;
}

/* The sums of a stage of count rows, each in one lane, in the order of results: where a step halves, a column of the first half and that of the other one beside it. */
INLINE float multiply_stage(const nibbles_arguments *n, const codes_shape s, const nibbles_tables *t, int count, uint32_t data, int from) {
    const skinny_arguments *g = &n->ring.product;
    const uint32_t scales = data + n->rows * (g->k / 2);
    float sums[NIBBLES_ROWS] = {0, 0, 0, 0}, one = 0;
    if (count == NIBBLES_ROWS) {
        multiply_rows(g, s, t, NIBBLES_ROWS, data, scales, sums);
    } else {
        if (count & 2) multiply_rows(g, s, t, 2, data, scales, sums);
        if (count & 1) multiply_rows(g, s, t, 1, data + (count - 1) * (g->k / 2), scales + (count - 1) * (g->k / block_depth(s)), &one);
        if (count == 1) sums[0] = one;
        if (count == 3) sums[2] = one;
    }
    const int own = (int)threadIdx.x % 32 - from, row = g->epilogue.halving < 0 ? own : own % 2 * (count / 2) + own / 2;
    return __shfl_sync(~0u, rows_to_lanes(sums), (row & 3) * 8);
}

/* ---- all of it ---- */

INLINE void matmul_nibbles(const nibbles_arguments *n, const codes_shape s) {
    __shared__ nibbles_tables words;
    const ring_arguments *r = &n->ring;
    const skinny_arguments *g = &r->product;
    const ring_place p = ring_place_of(r);
    const int lane = threadIdx.x % 32;
    const uint64_t policy = policy_first();
    int ahead = 0;
    norm_pieces columns;
    grid_release();
    store_tables(&words);
    ring_open(r, &p);
    if (g->b_is_constant) fill_stages(n, s, &p, policy, &ahead);
    if (has_norm(g)) columns = load_columns(g);
    grid_wait();
    if (!g->b_is_constant) fill_stages(n, s, &p, policy, &ahead);
    ring_early early = ring_load_early(r, &p, lane);
    if (has_norm(g)) normalise_row(g, &columns);
    early.factors[0] *= g->quantised != 0 ? quantise_row(g, s) : bring_codes(g, s);
    __syncthreads();
    const nibbles_tables tables = load_tables(&words);
    ring_turn turn = ring_reader();
    float own = 0;
#pragma unroll 1
    for (int from = 0; from < p.rows; from += n->rows) {
        const int count = min(n->rows, p.rows - from);
        mbarrier_wait(p.full + turn.stage * BARRIER_BYTES, turn.phase);
        const float y = multiply_stage(n, s, &tables, count, p.data + turn.stage * r->chunk_bytes, from);
        own = lane >= from && lane < from + count ? y : own;
        __syncwarp();
        bring_rows(n, s, &p, turn.stage, policy, &ahead);
        ring_next(&turn, r->stages);
    }
    ring_end_rows(r, &p, &early, lane, own);
}

/* Bounds are for a warp more than a block has: 112 registers at most. */
#define NIBBLES_ENTRY(name, format, searches)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(SKINNY_VECTOR_WARPS * 32 + 32, 2) name(const __grid_constant__ nibbles_arguments arguments) { \
        const codes_shape shape = {format, searches, searches && format == MATMUL_nvfp4_row};                                                  \
        matmul_nibbles(&arguments, shape);                                                                                                     \
    }

#endif
