/* out [m,n] = epilogue(a [m,k] b [n,k]^T) for up to 64 rows of a, where the elements of both are e4m3, which are multiplied as they are: what scales of blocks mean is multiplied into sums.
 * Bound by reading b once. The body of the entries of folded.cu, which gives it its constants; loads and ends are few.cuh's.
 *
 *   warps 0 to 7         smem -> wgmma m64n(m)k32, b being its first operand and a its second one, both in smem -> parts, in registers; a part times its factors is added to the sums in fp32
 *   warp 9               block scales of a: gmem -> floats -> the stage's factors in smem -> full[s]
 *
 * A part is of as much of k as has one scale: 32 in mxfp8, one instruction; of others 64. Up to 32 rows of a two parts are under way at a time, so that one is folded while the other one is multiplied.
 * mxfp8: a part times 2^b times 2^a is exact but for what is beyond fp32's range. A part of 32 products is between 2^-18 and 2^23, so where b's exponents are within 64 of 0 the first product is, too. A warp
 * whose rows have others folds the stage by a slower way, in which 2^b is two factors, one on either side of 2^a: of an exponent within 64 of 0 itself and 1, as a large 2^a between two halves would be beyond
 * the range where the product is not; of another one two of about half of it.
 * The tensor core adds products of 8 bits in shorter sums than fp32 (docs/precision.md): each part is one, and what is added to it afterwards is fp32.
 * Speed: README.md. */
#ifndef KERNELS_GEMM_WGMMA_FOLDED_CUH
#define KERNELS_GEMM_WGMMA_FOLDED_CUH

#include "kernels/gemm/wgmma/few.cuh"
#include "kernels/gemm/wgmma/folded_codes.cuh"

/* Parts of a stage's k, instructions of each, and parts under way at a time. */
enum { MOST_PARTS = 2 };
INLINE constexpr int folds_of(const few_shape s) { return s.kind == FOLDED_MXFP8 ? 4 : 2; }
INLINE constexpr int steps_of(const few_shape s) { return 4 / folds_of(s); }
INLINE constexpr int parts_of(const few_shape s) { return s.m > 32 ? 1 : MOST_PARTS; }

/* ---- factors: one warp, a lane the same rows all along; of rows behind the last, the last one's ---- */

/* Floats of a stage: of mxfp8 [4][m], of each 32 of k; of fp8 [2][m], of the lower and upper 64 columns of the tile, b's scale times a's. */
INLINE uint32_t stage_factors(const few_shape s, const few_ring *ring, int stage) { return ring->factors + stage * FEW_FACTOR_BYTES(s.kind, s.m); }

/* Stages whose scales are asked for at a time. */
enum { FACTOR_AHEAD = 4 };
INLINE constexpr int rows_of_a(const few_shape s) { return (s.m + 31) / 32; }

/* Scales of block number block of k of the row at place: of mxfp8 a word, four codes; of fp8 a float. */
INLINE uint32_t word_of_scales(const few_shape s, const matmul_scales *scales, int64_t place, int block) {
    if (s.kind == FOLDED_MXFP8) return *(const uint32_t *)((const uint8_t *)scales->data + place + (int64_t)block * scales->quad_step);
    return ((const uint32_t *)scales->data)[place + (int64_t)(block >> 2) * scales->quad_step + (block & 3)];
}

INLINE void leave_factors(const few_shape s, uint32_t to, const uint32_t *of_a, const uint32_t *of_b) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < rows_of_a(s); i++) {
        if (lane + 32 * i >= s.m) continue;
#pragma unroll
        for (int number = 0; number < (s.kind == FOLDED_MXFP8 ? 4 : 2); number++)
            st_shared_f32(to + (number * s.m + lane + 32 * i) * 4, s.kind == FOLDED_MXFP8 ? float_of_e8m0(of_a[i] >> (8 * number) & 0xff) : __uint_as_float(of_a[i]) * __uint_as_float(of_b[number]));
    }
}

INLINE void make_factors(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, const few_tile *tile) {
    const int lane = threadIdx.x % 32, end = tile->range.end;
    int64_t places[FOLDED_MOST / 32], of_b[2];
    uint32_t a[FACTOR_AHEAD][FOLDED_MOST / 32], b[FACTOR_AHEAD][2];
    ring_turn turn = ring_writer();
#pragma unroll
    for (int i = 0; i < rows_of_a(s); i++) places[i] = scales_of_row(&g->a_scales, min(lane + 32 * i, g->m - 1));
    if (s.kind == FOLDED_FP8) of_b[0] = scales_of_row(&g->scales, min(tile->col, g->n - 1)), of_b[1] = scales_of_row(&g->scales, min(tile->up, g->n - 1));
    grid_wait();
#pragma unroll 1
    for (int first = tile->range.first; first < end; first += FACTOR_AHEAD) {
#pragma unroll
        for (int j = 0; j < FACTOR_AHEAD; j++) {
            const int block = min(first + j, end - 1);
#pragma unroll
            for (int i = 0; i < rows_of_a(s); i++) a[j][i] = word_of_scales(s, &g->a_scales, places[i], block);
#pragma unroll
            for (int i = 0; i < 2 && s.kind == FOLDED_FP8; i++) b[j][i] = word_of_scales(s, &g->scales, of_b[i], block);
        }
#pragma unroll
        for (int j = 0; j < FACTOR_AHEAD; j++) {
            if (first + j >= end) break;
            ring_wait_empty(ring->stages, turn);
            leave_factors(s, stage_factors(s, ring, turn.stage), a[j], b[j]);
            __syncwarp();
            if (lane == 0) ring_arrive_full(ring->stages, turn);
            ring_next(&turn, stage_count(s));
        }
    }
}

/* ---- b's scales: 16 bytes of a row at a time, a slot, by two lanes a row ---- */

/* from: the lane's row; to: its half of the row's 16 bytes in the first slot; words: that a row has. */
typedef struct folded_scales { const uint8_t *from; uint32_t to; int words; bool in_one; } folded_scales;

INLINE folded_scales scales_of(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, const few_tile *tile) {
    folded_scales scales = {0, ring->scales + own_row() * 16 + threadIdx.x % 32 / 16 * 8, tile->range.end, false};
    if (s.kind == FOLDED_MXFP8) scales.from = own_scales(g, tile);
    scales.in_one = g->scales.quad_step == 4 && ((g->scales.data | (uint64_t)g->scales.row_step | (uint64_t)g->scales.cols) % 16) == 0;
    return scales;
}

/* Slot number number of a row's scales, counted from k = 0, as a group. */
INLINE void bring_slot(const matmul_few_arguments *g, const folded_scales *scales, int number) {
    const int half = threadIdx.x % 32 / 16;
    const uint32_t to = scales->to + number % FOLDED_SLOTS * FOLDED_SLOT_BYTES;
    if (scales->in_one) {
        if (half == 0 && number * 4 < scales->words) cp_async_stream(to, scales->from + (int64_t)number * 16, 16);
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int word = number * 4 + half * 2 + i;
            if (word < scales->words) cp_async(to + i * 4, scales->from + (int64_t)word * g->scales.quad_step, 4, 4);
        }
    }
    cp_async_commit();
}

/* The first slots but one; and with each slot's first stage, or the tile's, one more: behind it the stage's words are there. block: number of a stage, from k = 0. */
INLINE void bring_first(const matmul_few_arguments *g, const folded_scales *scales, const few_tile *tile) {
    for (int i = 0; i < FOLDED_SLOTS - 1; i++) bring_slot(g, scales, tile->range.first / FOLDED_SLOT_STAGES + i);
}
INLINE void bring_next(const matmul_few_arguments *g, const folded_scales *scales, const few_tile *tile, int block) {
    if (block % FOLDED_SLOT_STAGES != 0 && block != tile->range.first) return;
    bring_slot(g, scales, block / FOLDED_SLOT_STAGES + FOLDED_SLOTS - 1);
    cp_async_wait(FOLDED_SLOTS - 1);
    __syncwarp();
}

/* The word of row own of the tile's, of stage number block. */
INLINE uint32_t scales_at(const few_ring *ring, int own, int block) {
    return ring->scales + block / FOLDED_SLOT_STAGES % FOLDED_SLOTS * FOLDED_SLOT_BYTES + own * 16 + block % FOLDED_SLOT_STAGES * 4;
}

/* ---- products: eight warps ---- */

INLINE void multiply_codes(const few_shape s, float *part, uint64_t b, uint64_t a, int accumulate) {
    if (s.m == 16) wgmma_n16_e4m3(part, b, a, accumulate);
    if (s.m == 32) wgmma_n32_e4m3(part, b, a, accumulate);
    if (s.m == 64) wgmma_n64_e4m3(part, b, a, accumulate);
}

/* Part number number of a stage, as a group. */
INLINE void issue_part(const few_shape s, const int number, uint64_t b, uint64_t a, float *part) {
    const int first = number * steps_of(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps_of(s); step++) multiply_codes(s, part, b + 2 * (first + step), a + 2 * (first + step), step > 0);
    wgmma_commit();
}

INLINE void wait_parts(const int pending) {
    if (pending == 0) wgmma_wait(0);
    else wgmma_wait(1);
}

/* A part to the sums. of_a: factors of this lane's first column and further ones; words: of mxfp8 scales of its rows g and g + 8 of b, of which those number number are the part's. */
INLINE void fold_part(const few_shape s, uint32_t of_a, const uint32_t words[2], const int number, const float *part, float *sums) {
    const float rows[2] = {near_factor(words[0], number), near_factor(words[1], number)};
#pragma unroll
    for (int i = 0; i < s.m / 2; i += 4) {
        float2 two = make_float2(1, 1);
        if (s.kind != FOLDED_E4M3) two = ld_shared_f32x2(of_a + i * 8);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (s.kind == FOLDED_E4M3) sums[i + j] += part[i + j];
            else sums[i + j] = fmaf(s.kind == FOLDED_MXFP8 ? part[i + j] * rows[j / 2] : part[i + j], j % 2 == 0 ? two.x : two.y, sums[i + j]);
        }
    }
}

/* The same of mxfp8 where factors of b may be any: as two each, the second of which is 1 where the code is within 64 of 0. */
INLINE void fold_part_far(const few_shape s, uint32_t of_a, const uint32_t words[2], const int number, const float *part, float *sums) {
    float halves[2], rest[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float2 two = two_factors(words[row] >> (8 * number) & 0xff);
        halves[row] = two.x, rest[row] = two.y;
    }
#pragma unroll
    for (int i = 0; i < s.m / 2; i += 4) {
        const float2 two = ld_shared_f32x2(of_a + i * 8);
#pragma unroll
        for (int j = 0; j < 4; j++) sums[i + j] = fmaf(part[i + j] * halves[j / 2] * (j % 2 == 0 ? two.x : two.y), rest[j / 2], sums[i + j]);
    }
}

INLINE void multiply_all(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, const few_tile *tile, float *sums) {
    const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), group = warp / 4, row = warp * 16 + lane / 4;
    const uint32_t place_a = (lane % 4 * 2 + (s.kind == FOLDED_FP8 ? group * s.m : 0)) * 4;
    const folded_scales bring = scales_of(g, s, ring, tile);
    ring_turn turn = ring_reader();
    float parts[MOST_PARTS][FOLDED_MOST / 2];
    if (!g->b_is_constant) grid_wait();
    if (s.kind == FOLDED_MXFP8) bring_first(g, &bring, tile);
#pragma unroll 1
    for (int block = tile->range.first; block < tile->range.end; block++) {
        const uint32_t data = ring->data + turn.stage * stage_bytes(s), of_a = stage_factors(s, ring, turn.stage) + place_a;
        const uint64_t b = wgmma_descriptor(data + group * (b_bytes(s) / 2)), a = wgmma_descriptor(data + b_bytes(s));
        uint32_t words[2] = {0, 0};
        bool far = false;
        if (s.kind == FOLDED_MXFP8) {
            bring_next(g, &bring, tile, block);
#pragma unroll
            for (int i = 0; i < 2; i++) words[i] = ld_shared_u32(scales_at(ring, row + i * 8, block));
            far = __any_sync(0xffffffff, (far_codes(words[0]) | far_codes(words[1])) != 0);
        }
        ring_wait_full(ring->stages, turn);
#pragma unroll
        for (int i = 0; i < parts_of(s); i++) issue_part(s, i, b, a, parts[i]);
#pragma unroll
        for (int i = 0; i < folds_of(s); i++) {
            float *part = parts[i % parts_of(s)];
            const uint32_t from = of_a + (s.kind == FOLDED_MXFP8 ? i * s.m * 4 : 0);
            wait_parts(min(parts_of(s), folds_of(s) - i) - 1);
            if (far) fold_part_far(s, from, words, i, part, sums);
            else fold_part(s, from, words, i, part, sums);
            if (i + parts_of(s) < folds_of(s)) issue_part(s, i + parts_of(s), b, a, part);
        }
        __syncwarp();
        if (lane == 0) ring_arrive_empty(ring->stages, turn);
        ring_next(&turn, stage_count(s));
    }
}

INLINE void matmul_folded(const matmul_few_arguments *g, const few_shape s) {
    const few_ring ring = ring_of(s);
    const few_tile tile = tile_of(g, s);
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    begin_block(g, s, &ring);
    if (warp == FEW_WARPS) {
        run_loads(g, s, &ring, &tile);
        return;
    }
    if (warp > FEW_WARPS) {
        make_factors(g, s, &ring, &tile);
        end_beside(g);
        return;
    }
    float sums[FOLDED_MOST / 2];
#pragma unroll
    for (int i = 0; i < s.m / 2; i++) sums[i] = 0;
    multiply_all(g, s, &ring, &tile, sums);
    end_tile(g, s, &ring, &tile, sums);
}

#define MATMUL_FOLDED_ENTRY(name, kind, m)                                                                                         \
    extern "C" __global__ void __launch_bounds__(FEW_THREADS(kind), 2) name(const __grid_constant__ matmul_few_arguments arguments) { \
        const few_shape shape = {kind, m};                                                                                         \
        matmul_folded(&arguments, shape);                                                                                          \
    }

#endif
