/* out [m,n] = epilogue(a [m,k] b [n,k]^T) for up to 128 rows of a, by weights b of 8 and 4 bits, which are decoded in registers on their way into the tensor core. Bound by reading b
 * once. The body of the entries of decoded.cu, which gives it its constants; loads and ends are few.cuh's.
 *
 *   warps 0 to 7         16 rows of b each: smem -> ldmatrix -> decoded to pairs of bf16 -> wgmma m64n(m)k16, b being its first operand, in registers, and a its second one, in smem
 *
 * k is permuted within each 32, alike in a and b, so that a thread's pairs are what ldmatrix gives it: of 8 bits bytes 0 and 2, and 1 and 3, of a word; of 4 bits elements j and j + 4; in f16 those of 4 bits that are
 * even, two by two, and those that are odd. A launch in front (few_around.cu, few_made.cu) puts a into that order, as bf16, or f16.
 * An element times its block scale is exact in bf16, or rounded once (docs/formats.md). A code is moved to where bf16 has its bits, which makes it 2^-120 times as large (e4m3; see decoded_bias), and one product of pairs gives that back and
 * multiplies by the scale. Codes that are not finite, and scales so large that this factor has no number, take another path, which a warp chooses for each 64 of k. NVFP4's products carry 2^-16,
 * which alpha gives back.
 * NVFP4 of both is decoded to f16 (DECODED_HALVES), which has all its numbers times 2^-6: no case apart, and alpha gives back 2^6.
 * Speed: README.md. */
#ifndef KERNELS_GEMM_WGMMA_DECODED_CUH
#define KERNELS_GEMM_WGMMA_DECODED_CUH

#include "kernels/gemm/wgmma/few.cuh"
#include "kernels/gemm/wgmma/decoded_bits.cuh"

/* ---- scales: of each step a lane a word of a row ---- */

typedef struct few_scales { const uint8_t *from; uint32_t to; bool brings; } few_scales;

INLINE few_scales scales_of(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, const few_tile *tile) {
    const int half = threadIdx.x % 32 / 16;
    few_scales scales = {0, ring->scales + (own_row() * scale_words(s) + half) * 4, half < scale_words(s)};
    if (scale_words(s) > 0) scales.from = own_scales(g, tile) + (int64_t)(tile->range.first * steps_of_stage(s) * scale_words(s) + half) * g->scales.quad_step;
    return scales;
}

/* A stage's, from step at on, as a group. */
INLINE constexpr int groups_of_scales(const few_shape s) { return DECODED_SCALE_STEPS / steps_of_stage(s); }
INLINE void bring_scales(const matmul_few_arguments *g, const few_shape s, const few_scales *scales, int at, int count) {
    if (scale_words(s) == 0) return;
    const uint8_t *from = scales->from + (int64_t)at * scale_words(s) * g->scales.quad_step;
    const uint32_t to = scales->to + at % DECODED_SCALE_STEPS * DECODED_SCALE_BYTES(s.kind);
#pragma unroll
    for (int step = 0; step < steps_of_stage(s); step++)
        if (scales->brings && at + step < count) cp_async(to + step * DECODED_SCALE_BYTES(s.kind), from + (int64_t)(step * scale_words(s)) * g->scales.quad_step, 4, 4);
    cp_async_commit();
}

/* ---- decoding ---- */

/* A lane's codes of 32 of k: of two steps of 16, of rows g and g + 8. Of 4 bits one word of a row holds both steps. */
typedef struct decoded_codes { uint32_t of[2][2]; } decoded_codes;

/* What a row's 32 of k are multiplied by, number quarter of its words; of NVFP4 this lane's 16 of them. */
INLINE void factors_of(const few_shape s, const uint32_t words[2][2], const int quarter, uint32_t factors[2]) {
    if (s.kind == DECODED_E4M3) {
        factors[0] = factors[1] = 0x7b807b80;                 /* 2^120 */
    } else if (s.kind == DECODED_NVFP4) {
        const uint32_t shift = quarter % 2 * 16 + threadIdx.x % 4 / 2 * 8;
        const uint32_t codes = (words[0][quarter / 2] >> shift & 0xff) | (words[1][quarter / 2] >> shift & 0xff) << 8, both = cvt_f16x2_e4m3x2((uint16_t)codes);
        const float low = cvt_f32_f16((uint16_t)both) * 0x1p110f, high = cvt_f32_f16((uint16_t)(both >> 16)) * 0x1p110f;
        factors[0] = cvt_bf16x2(low, low), factors[1] = cvt_bf16x2(high, high);
    } else {
#pragma unroll
        for (int row = 0; row < 2; row++) factors[row] = prmt(words[row][0] + decoded_bias(s.kind) * 0x01010101u, 0, 0x0404 | quarter << 4 | quarter << 12) >> 1;
    }
}

/* pairs: of each step, as wgmma has its first operand: pairs of rows g and g + 8, and those 8 further. */
INLINE void decode(const few_shape s, const decoded_codes *codes, const uint32_t words[2][2], const int quarter, uint32_t pairs[8]) {
    uint32_t factors[2];
    factors_of(s, words, quarter, factors);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int step = i / 4, half = i / 2 % 2, row = i % 2;
        const uint32_t pair = bits_of(s.kind) == 4 ? pair_of_e2m1(codes->of[0][row], 2 * step + half) : raw_pair(s.kind, codes->of[step][row], half);
        pairs[i] = mul_bf16x2(pair, factors[row]);
    }
}

/* The same of any codes and scales. */
INLINE void decode_odd(const few_shape s, const decoded_codes *codes, const uint32_t words[2][2], const int quarter, uint32_t pairs[8]) {
    uint32_t factors[2];
    factors_of(s, words, quarter, factors);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int step = i / 4, half = i / 2 % 2, row = i % 2;
        const uint32_t pair = bits_of(s.kind) == 4 ? pair_of_e2m1(codes->of[0][row], 2 * step + half) : odd_pair(s.kind, codes->of[step][row], half);
        const uint32_t scale = pair_of_e8m0(words[row][0] >> (8 * quarter) & 0xff);
        if (s.kind == DECODED_E4M3) pairs[i] = pair;
        else if (s.kind == DECODED_NVFP4) pairs[i] = mul_bf16x2(pair, factors[row]);
        else pairs[i] = mul_bf16x2(s.kind == DECODED_MXFP4 ? mul_bf16x2(pair, 0x7e807e80) : pair, scale);   /* 2^126 */
    }
}

/* Of NVFP4 in f16 the scales of a row's 128 of k that this lane's codes have, of 32 of k each, as halves: words as they lie. */
INLINE void halves_of_scales(const uint32_t words[2], uint32_t halves[2]) {
    const uint32_t codes = prmt(words[0], words[1], threadIdx.x % 4 / 2 == 0 ? 0x6420 : 0x7531);
    halves[0] = halves_of_e4m3(codes, 0), halves[1] = halves_of_e4m3(codes, 1);
}

/* Pairs as decode has them: of the first step even elements of a word, of the second one odd ones. */
INLINE void decode_halves(const decoded_codes *codes, const uint32_t scales[2][2], const int quarter, uint32_t pairs[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int step = i / 4, half = i / 2 % 2, row = i % 2;
        pairs[i] = mul_f16x2(halves_of_e2m1(codes->of[0][row], step, half), half_twice(scales[row][quarter / 2], quarter % 2));
    }
}

/* ---- products: eight warps ---- */

INLINE void multiply_rows(const few_shape s, float *sums, const uint32_t *pairs, uint64_t a) {
    if (s.kind == DECODED_HALVES) {
        if (s.m == 16) wgmma_n16_f16_registers(sums, pairs, a, 1);
        if (s.m == 32) wgmma_n32_f16_registers(sums, pairs, a, 1);
        if (s.m == 64) wgmma_n64_f16_registers(sums, pairs, a, 1);
        if (s.m == 128) wgmma_n128_f16_registers(sums, pairs, a, 1);
        return;
    }
    if (s.m == 16) wgmma_n16_bf16_registers(sums, pairs, a, 1);
    if (s.m == 32) wgmma_n32_bf16_registers(sums, pairs, a, 1);
    if (s.m == 64) wgmma_n64_bf16_registers(sums, pairs, a, 1);
    if (s.m == 128) wgmma_n128_bf16_registers(sums, pairs, a, 1);
}

/* This lane's codes of a stage, by quarters of its k. from: the lane's row, at the 16 bytes that it names first. */
INLINE void read_codes(const few_shape s, uint32_t from, decoded_codes codes[4]) {
#pragma unroll
    for (int i = 0; i < bits_of(s.kind) / 2; i++) {
        const uint4 x = ldmatrix_x4(from ^ (i * 32));
        if (bits_of(s.kind) == 8) codes[i].of[0][0] = x.x, codes[i].of[0][1] = x.y, codes[i].of[1][0] = x.z, codes[i].of[1][1] = x.w;
        else codes[2 * i].of[0][0] = x.x, codes[2 * i].of[0][1] = x.y, codes[2 * i + 1].of[0][0] = x.z, codes[2 * i + 1].of[0][1] = x.w;
    }
}

/* What a warp's lanes read: their rows' codes, from the 16 bytes on that a lane names first, and their scales, from the ring's and the first step's on. */
typedef struct few_reads { uint32_t codes, scales; } few_reads;

INLINE few_reads reads_of(const few_shape s, const few_ring *ring) {
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16, named = row + lane % 16;
    const few_reads reads = {(uint32_t)named * row_bytes(s) + ((lane / 16 ^ (row_bytes(s) == 128 ? named & 7 : named >> 1 & 3)) << 4), ring->scales + (row + lane / 4) * 4 * scale_words(s)};
    return reads;
}

/* Half of a step to pairs. words: of the scales of rows g and g + 8; halves: of NVFP4 in f16. */
INLINE void decode_half(const few_shape s, const decoded_codes codes[2], const uint32_t words[2][2], const uint32_t halves[2][2], uint32_t odd, const int half, uint32_t pairs[16]) {
    if (s.kind == DECODED_HALVES) {
#pragma unroll
        for (int i = 0; i < 2; i++) decode_halves(&codes[i], halves, 2 * half + i, pairs + 8 * i);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8 && bits_of(s.kind) == 8; i++) odd |= odd_codes(s.kind, codes[i / 4].of[i / 2 % 2][i % 2]);
    if (__any_sync(0xffffffff, (odd & DECODED_ODD) != 0)) {   /* NVFP4 in bf16 has both ways alike: without a branch ptxas moves what decodes between products, and has them wait for each other (its C7513) */
#pragma unroll
        for (int i = 0; i < 2; i++) decode_odd(s, &codes[i], words, 2 * half + i, pairs + 8 * i);
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) decode(s, &codes[i], words, 2 * half + i, pairs + 8 * i);
    }
}

/* Step number step of a stage: codes and scales as reads has them, a from a on. ended: a barrier for the products before these, which have ended by the middle; 0: none waits for them. */
INLINE void multiply_step(const few_shape s, const few_reads *reads, const int step, uint64_t a, uint32_t ended, uint32_t pairs[2][16], float *sums) {
    uint32_t words[2][2] = {{0, 0}, {0, 0}}, halves[2][2], odd = 0;
    decoded_codes codes[4];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int word = 0; word < scale_words(s); word++) {
            words[i][word] = ld_shared_u32(reads->scales + step * DECODED_SCALE_BYTES(s.kind) + (i * 8 * scale_words(s) + word) * 4);
            odd |= odd_scales(s.kind, words[i][word]);
        }
    read_codes(s, reads->codes ^ (step * 64), codes);
#pragma unroll
    for (int i = 0; i < 2 && s.kind == DECODED_HALVES; i++) halves_of_scales(words[i], halves[i]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t *own = pairs[half];
        decode_half(s, codes + 2 * half, words, halves, odd, half, own);
#pragma unroll
        for (int i = 0; i < 16; i++) own[i] = (uint32_t)anew((int)own[i]);   /* decoded by here, and not between products, which would wait for each other */
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) multiply_rows(s, sums, own + 4 * i, a + half * (s.m * ROW_BYTES / 16) + 2 * i);
        wgmma_commit();
        wgmma_wait(1);
        if (half == 0 && ended != 0) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(ended);
        }
    }
}

INLINE void multiply_all(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, const few_tile *tile, float *sums) {
    const int first = tile->range.first * steps_of_stage(s), count = min(tile->range.end * steps_of_stage(s), g->k / FEW_STEP) - first;
    const few_reads all = reads_of(s, ring);
    const few_scales bring = scales_of(g, s, ring, tile);
    ring_turn turn = ring_reader();
    uint32_t ended = 0;           /* the barrier of the stage before this one */
    uint32_t pairs[2][16];        /* of half a step each, of which one is multiplied while the other one is made */
    if (count <= 0) return;       /* here and not by the loop, of which ptxas then has products wait (its C7515) */
    if (!g->b_is_constant) grid_wait();
    for (int i = 0; i < groups_of_scales(s) - 1; i++) bring_scales(g, s, &bring, i * steps_of_stage(s), count);
#pragma unroll 1
    for (int at = 0; at < count; at += steps_of_stage(s)) {
        const uint32_t b = ring->data + turn.stage * stage_bytes(s);
        const few_reads reads = {b + all.codes, all.scales + at % DECODED_SCALE_STEPS * DECODED_SCALE_BYTES(s.kind)};
        const uint64_t a = wgmma_descriptor(b + b_bytes(s));
        bring_scales(g, s, &bring, at + DECODED_SCALE_STEPS - steps_of_stage(s), count);
        if (scale_words(s) > 0) {
            if (steps_of_stage(s) == 1) cp_async_wait(DECODED_SCALE_STEPS - 1);
            else cp_async_wait(DECODED_SCALE_STEPS / 2 - 1);
            __syncwarp();
        }
        ring_wait_full(ring->stages, turn);
        multiply_step(s, &reads, 0, a, ended, pairs, sums);
        if (steps_of_stage(s) > 1 && at + 1 < count) multiply_step(s, &reads, 1, a + 2 * (s.m * ROW_BYTES / 16), 0, pairs, sums);
        ended = ring_empty(ring->stages, turn.stage);
        ring_next(&turn, stage_count(s));
    }
    wgmma_wait(0);
}

INLINE void matmul_decoded(const matmul_few_arguments *g, const few_shape s) {
    const few_ring ring = ring_of(s);
    const few_tile tile = tile_of(g, s);
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    begin_block(g, s, &ring);
    if (warp == FEW_WARPS) {
        run_loads(g, s, &ring, &tile);
        return;
    }
    float sums[FEW_MOST / 2];
#pragma unroll
    for (int i = 0; i < s.m / 2; i++) sums[i] = 0;
    multiply_all(g, s, &ring, &tile, sums);
    end_tile(g, s, &ring, &tile, sums);
}

#define MATMUL_DECODED_ENTRY(name, kind, m)                                                                                        \
    extern "C" __global__ void __launch_bounds__(FEW_THREADS(kind), (m) <= FEW_SHARED_MOST ? 2 : 1) name(const __grid_constant__ matmul_few_arguments arguments) { \
        const few_shape shape = {kind, m};                                                                                         \
        matmul_decoded(&arguments, shape);                                                                                         \
    }

#endif
