/* grouped_outer by wgmma: out [g] [m,n] = a [rows of g, m]^T b [rows of g, n], bf16 and f16, sums in fp32. A thread block for each tile of each group; operands are read as they lie, as k-major columns.
 *
 *   warpgroup 0, one thread   empty[s] -> TMA boxes of 64 rows x 64 columns: two of a, tile_n / 64 of b -> full[s]     ring of OUTER_STAGES in smem
 *   warpgroups 1, 2           full[s] -> wgmma m64n(tile_n) of 64 columns of a each -> empty[s];  at the end sums -> gmem
 *
 * A group may begin at any row, which a box does, too. Its last block of 64 rows holds rows of the next group behind it: those become zeros in smem, of a and of b, as they may be anything. A group without
 * rows gives zeros. Registers: 24 (loads), 240. Speed on an H100 (2026-11-27): 326 to 357 TFLOP/s with 8 groups
 * (bench/results/h200/grouped.md). */
#include "kernels/gemm/outer.h"
#include "kernels/gpu/pipe/ring.cuh"
#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/gpu/ptx/wgmma.cuh"

enum { ELEMENT_BF16, ELEMENT_F16, BOX_COLS = 64, BOX_BYTES = OUTER_DEPTH * 128, A_BOXES = OUTER_TILE_M / BOX_COLS, ROW_BYTES = 128 };

/* The constants of an entry. */
typedef struct outer_shape { int element, tile_n; } outer_shape;

INLINE int stage_bytes(const outer_shape s) { return (A_BOXES + s.tile_n / BOX_COLS) * BOX_BYTES; }

/* Rows [begin, end) of a and b, and the tile's first row and column. */
typedef struct outer_tile { int begin, end, row, col; } outer_tile;

INLINE int blocks_of(const outer_tile *tile) { return (tile->end - tile->begin + OUTER_DEPTH - 1) / OUTER_DEPTH; }

INLINE void load_blocks(const outer_arguments *g, const outer_shape s, uint32_t data, ring_barriers ring, const outer_tile *tile) {
    ring_turn turn = ring_writer();
#pragma unroll 1
    for (int block = 0; block < blocks_of(tile); block++, ring_next(&turn, OUTER_STAGES)) {
        const uint32_t to = data + turn.stage * stage_bytes(s);
        const int row = tile->begin + block * OUTER_DEPTH;
        ring_wait_empty(ring, turn);
        const uint32_t full = ring_expect_full(ring, turn, stage_bytes(s));
#pragma unroll
        for (int i = 0; i < A_BOXES; i++) tma_load_2d(to + i * BOX_BYTES, (const tensor_map *)g->map_a, full, tile->row + i * BOX_COLS, row, TMA_EVICT_NORMAL);
#pragma unroll
        for (int i = 0; i < s.tile_n / BOX_COLS; i++) tma_load_2d(to + (A_BOXES + i) * BOX_BYTES, (const tensor_map *)g->map_b, full, tile->col + i * BOX_COLS, row, TMA_EVICT_NORMAL);
    }
}

/* Rows from `count` on of all boxes of a stage become zeros, by both warpgroups that multiply. */
INLINE void clear_rows(const outer_shape s, uint32_t stage, int count) {
    const int boxes = stage_bytes(s) / BOX_BYTES, words = (OUTER_DEPTH - count) * ROW_BYTES / 16;
    for (int i = threadIdx.x - 128; i < boxes * words; i += 256) st_shared_u32x4(stage + i / words * BOX_BYTES + count * ROW_BYTES + i % words * 16, make_uint4(0, 0, 0, 0));
    fence_proxy_async();
    barrier_sync(1, 256);
}

/* One block of 64 rows into d, as one wgmma group. */
INLINE void issue_block(const outer_shape s, float *d, uint32_t a_boxes, uint32_t b_boxes) {
    uint64_t a = wgmma_descriptor_columns(a_boxes, BOX_BYTES), b = wgmma_descriptor_columns(b_boxes, BOX_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < OUTER_DEPTH / 16; step++, a += ROW_BYTES, b += ROW_BYTES) {
        if (s.element == ELEMENT_BF16 && s.tile_n == 128) wgmma_n128_bf16_both_turned(d, a, b, 1);
        if (s.element == ELEMENT_BF16 && s.tile_n == 256) wgmma_n256_bf16_both_turned(d, a, b, 1);
        if (s.element == ELEMENT_F16 && s.tile_n == 128) wgmma_n128_f16_both_turned(d, a, b, 1);
        if (s.element == ELEMENT_F16 && s.tile_n == 256) wgmma_n256_f16_both_turned(d, a, b, 1);
    }
    wgmma_commit();
}

INLINE void release(ring_barriers ring, ring_turn turn) {
    if (threadIdx.x % 32 == 0) ring_arrive_empty(ring, turn);
}

/* The sums of 64 rows of the tile. */
INLINE void multiply_blocks(const outer_shape s, uint32_t data, ring_barriers ring, const outer_tile *tile, int group, float *sums) {
    ring_turn turn = ring_reader(), before = turn;
#pragma unroll
    for (int i = 0; i < s.tile_n / 2; i++) sums[i] = 0;
#pragma unroll 1
    for (int block = 0; __any_sync(0xffffffff, block < blocks_of(tile)); block++, ring_next(&turn, OUTER_STAGES)) {
        const uint32_t stage = data + turn.stage * stage_bytes(s);
        const int left = tile->end - tile->begin - block * OUTER_DEPTH;
        ring_wait_full(ring, turn);
        if (__any_sync(0xffffffff, left < OUTER_DEPTH)) clear_rows(s, stage, left);
        issue_block(s, sums, stage + group * BOX_BYTES, stage + A_BOXES * BOX_BYTES);
        wgmma_wait(1);
        if (__any_sync(0xffffffff, block > 0)) release(ring, before);
        before = turn;
    }
    wgmma_wait(0);
    if (__any_sync(0xffffffff, tile->end > tile->begin)) release(ring, before);
}

/* Columns come in pairs: n is a multiple of 8. */
INLINE void store_sums(const outer_arguments *g, const outer_shape s, const outer_tile *tile, int group, const float *sums) {
    const int row = tile->row + group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, col = tile->col + threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t at = blockIdx.z * g->out_group + (row + 8 * half) * g->out_row + col;
        if (row + 8 * half >= g->m) continue;
#pragma unroll
        for (int j = 0; j < s.tile_n / 8; j++) {
            const float x = sums[4 * j + 2 * half], y = sums[4 * j + 2 * half + 1];
            if (col + 8 * j >= g->n) continue;
            if (g->out.format == CUDA_f32) *(float2 *)((float *)g->out.data + at + 8 * j) = make_float2(x, y);
            else *(uint32_t *)((uint16_t *)g->out.data + at + 8 * j) = g->out.format == CUDA_bf16 ? cvt_bf16x2(x, y) : cvt_f16x2(x, y);
        }
    }
}

INLINE void grouped_outer(const outer_arguments *g, const outer_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t data = shared_address(shared);
    const ring_barriers ring = ring_at(data + OUTER_STAGES * stage_bytes(s), OUTER_STAGES);
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    outer_tile tile = {0, 0, (int)blockIdx.y * OUTER_TILE_M, (int)blockIdx.x * s.tile_n};
    tile.begin = blockIdx.z > 0 ? ((const int32_t *)g->offsets.data)[(blockIdx.z - 1) * g->offsets_step] : 0;
    tile.end = ((const int32_t *)g->offsets.data)[blockIdx.z * g->offsets_step];
    if (tile.begin < 0 || tile.end < tile.begin || tile.end > g->rows) {
        fault_raise(&g->fault, CUDA_FAULT_OFFSETS, tile.end, g->rows);
        return;
    }
    if (threadIdx.x == 0) {
        ring_init(ring, OUTER_STAGES, 1, 8);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (role == 0) {
        setmaxnreg_dec(24);
        if (threadIdx.x < 32 && elect_one()) load_blocks(g, s, data, ring, &tile);
    } else {
        float sums[128];
        setmaxnreg_inc(240);
        multiply_blocks(s, data, ring, &tile, role - 1, sums);
        store_sums(g, s, &tile, role - 1, sums);
    }
}

#define OUTER_ENTRY(name, element, tile_n)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(OUTER_THREADS, 1) name(const __grid_constant__ outer_arguments arguments) {          \
        const outer_shape shape = {element, tile_n};                                                                                    \
        grouped_outer(&arguments, shape);                                                                                                \
    }
OUTER_ENTRY(grouped_outer_bf16_n128, ELEMENT_BF16, 128)
OUTER_ENTRY(grouped_outer_bf16_n256, ELEMENT_BF16, 256)
OUTER_ENTRY(grouped_outer_f16_n128, ELEMENT_F16, 128)
OUTER_ENTRY(grouped_outer_f16_n256, ELEMENT_F16, 256)
