/* out [m,n] = epilogue(a [m,k] b [n,k]^T) in bf16 or f16 for up to 64 rows of a, of any k that is whole lines of 16 bytes. Bound by reading b once. The body of the entries of half.cu, which gives it its constants; loads
 * and ends are few.cuh's.
 *
 *   warps 0 to 7         smem -> wgmma m64n(m)k16, b being its first operand and a its second one, both in smem -> sums in registers -> empty[s] of the stage before
 *
 * What is asked of b is under way before the launches in front have ended, where no launch of the run writes b: as much as the ring holds, 64 to 96 KiB a block, and two blocks share a multiprocessor. Where a tile for each 128 rows of
 * b leaves multiprocessors idle, a cluster shares a tile's k. Speed: not measured. */
#ifndef KERNELS_GEMM_WGMMA_HALF_CUH
#define KERNELS_GEMM_WGMMA_HALF_CUH

#include "kernels/gemm/wgmma/few.cuh"

INLINE void multiply_halves(const few_shape s, float *sums, uint64_t b, uint64_t a) {
    if (s.kind == HALF_F16) {
        if (s.m == 16) wgmma_n16_f16(sums, b, a, 1);
        if (s.m == 32) wgmma_n32_f16(sums, b, a, 1);
        if (s.m == 64) wgmma_n64_f16(sums, b, a, 1);
        return;
    }
    if (s.m == 16) wgmma_n16_bf16(sums, b, a, 1);
    if (s.m == 32) wgmma_n32_bf16(sums, b, a, 1);
    if (s.m == 64) wgmma_n64_bf16(sums, b, a, 1);
}

/* Of k behind its end a stage has zeros. */
INLINE void multiply_all(const few_shape s, const few_ring *ring, const few_tile *tile, float *sums) {
    const int group = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) / 4;
    ring_turn turn = ring_reader();
    uint32_t ended = 0;           /* the barrier of the stage before this one */
    if (tile->range.first >= tile->range.end) return;   /* here and not by the loop, of which ptxas then has products wait (its C7515) */
#pragma unroll 1
    for (int block = tile->range.first; block < tile->range.end; block++) {
        const uint32_t data = ring->data + turn.stage * stage_bytes(s);
        const uint64_t b = wgmma_descriptor(data + group * (b_bytes(s) / 2)), a = wgmma_descriptor(data + b_bytes(s));
        ring_wait_full(ring->stages, turn);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < FEW_HALF_STEP / 16; step++) multiply_halves(s, sums, b + 2 * step, a + 2 * step);
        wgmma_commit();
        wgmma_wait(1);
        __syncwarp();
        if (ended != 0 && threadIdx.x % 32 == 0) mbarrier_arrive(ended);
        ended = ring_empty(ring->stages, turn.stage);
        ring_next(&turn, stage_count(s));
    }
    wgmma_wait(0);
}

INLINE void matmul_halves(const matmul_few_arguments *g, const few_shape s) {
    const few_ring ring = ring_of(s);
    const few_tile tile = tile_of(g, s);
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    begin_block(g, s, &ring);
    if (warp == FEW_WARPS) {
        run_loads(g, s, &ring, &tile);
        return;
    }
    float sums[HALF_MOST / 2];
#pragma unroll
    for (int i = 0; i < s.m / 2; i++) sums[i] = 0;
    multiply_all(s, &ring, &tile, sums);
    end_tile(g, s, &ring, &tile, sums);
}

#define MATMUL_HALF_ENTRY(name, kind, m)                                                                                           \
    extern "C" __global__ void __launch_bounds__(FEW_THREADS(kind), 2) name(const __grid_constant__ matmul_few_arguments arguments) { \
        const few_shape shape = {kind, m};                                                                                         \
        matmul_halves(&arguments, shape);                                                                                          \
    }

#endif
