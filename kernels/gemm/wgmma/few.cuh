/* What products by wgmma of few rows share, whose first operand are rows of b: the constants of an entry, the ring of stages in shared memory and its loads, the scales of b's rows, and what
 * becomes of sums. The bodies that multiply: decoded.cuh, folded.cuh, half.cuh.
 *
 *   warp 8, one thread   empty[s] -> TMA b 2 x [64, a stage's k], a -> full[s]      ring of stages in smem
 *   warps 0 to 7         multiply 16 rows of b each; each warp brings its rows' scales
 *   sums                 reg -> smem -> epilogue -> gmem; of a cluster that shares k, smem of all -> epilogue; of more blocks that share k, smem -> gmem, and a launch behind adds them (few_around.cu)
 *
 * A block of threads computes one tile, or its part of k; two blocks share a multiprocessor where a has few rows, so one's start and end lie under the other's loads. */
#ifndef KERNELS_GEMM_WGMMA_FEW_CUH
#define KERNELS_GEMM_WGMMA_FEW_CUH

#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/wgmma.cuh"
#include "kernels/gemm/rows.cuh"
#include "kernels/gemm/wgmma/few.h"
#include "kernels/gemm/wgmma/few_pieces.cuh"

/* The constants of an entry. m: rows of a that it has room for: 16, 32, 64 or 128. */
typedef struct few_shape { int kind, m; } few_shape;

INLINE constexpr int scale_words(const few_shape s) { return FEW_SCALE_WORDS(s.kind); }
INLINE constexpr int steps_of_stage(const few_shape s) { return FEW_STEPS(s.kind, s.m); }
INLINE constexpr int row_bytes(const few_shape s) { return FEW_DEPTH(s.kind, s.m) * FEW_BITS(s.kind) / 8; }
INLINE constexpr int b_bytes(const few_shape s) { return FEW_B_BYTES(s.kind, s.m); }
INLINE constexpr int stage_bytes(const few_shape s) { return FEW_STAGE_BYTES(s.kind, s.m); }
INLINE constexpr int stage_count(const few_shape s) { return FEW_STAGES(s.kind, s.m); }

/* Places in shared memory. */
typedef struct few_ring { uint32_t data, factors, scales; ring_barriers stages; } few_ring;

INLINE few_ring ring_of(const few_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    few_ring ring;
    ring.data = shared_address(shared);
    ring.factors = ring.data + stage_count(s) * stage_bytes(s);
    ring.scales = ring.factors + stage_count(s) * FEW_FACTOR_BYTES(s.kind, s.m);
    ring.stages = ring_at(ring.scales + FEW_SCALE_BYTES(s.kind), stage_count(s));
    return ring;
}

/* The tile of this block: first column of its lower and upper 64 rows of b, and of the result; and its stages of k. */
typedef struct few_tile { int col, up; schedule_range range; } few_tile;

INLINE few_tile tile_of(const matmul_few_arguments *g, const few_shape s) {
    const bool halves = g->epilogue.halving >= 0;
    few_tile tile;
    tile.col = blockIdx.x / g->splits * (halves ? FEW_ROWS / 2 : FEW_ROWS);
    tile.up = tile.col + (halves ? g->epilogue.half : FEW_ROWS / 2);
    tile.range = schedule_part(ceil_div(g->k, FEW_DEPTH(s.kind, s.m)), g->splits, blockIdx.x % g->splits, 1);
    return tile;
}

/* ---- loads: one thread ---- */

INLINE void load_b(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, const few_tile *tile, int block, const ring_turn turn) {
    const tensor_map *map = (const tensor_map *)g->map_b;
    const uint32_t to = ring->data + turn.stage * stage_bytes(s), full = ring_expect_full(ring->stages, turn, stage_bytes(s));
    tma_load_2d(to, map, full, block * row_bytes(s), tile->col, TMA_EVICT_FIRST);
    tma_load_2d(to + b_bytes(s) / 2, map, full, block * row_bytes(s), tile->up, TMA_EVICT_FIRST);
}

INLINE void load_a(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, int block, const ring_turn turn) {
    const uint32_t to = ring->data + turn.stage * stage_bytes(s) + b_bytes(s);
#pragma unroll
    for (int i = 0; i < FEW_A_BOXES(s.kind, s.m); i++)
        tma_load_2d(to + i * s.m * ROW_BYTES, (const tensor_map *)g->map_a, ring_full(ring->stages, turn.stage), block * FEW_DEPTH(s.kind, s.m) + i * CHUNK, 0, TMA_EVICT_LAST);
}

INLINE void load_all(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, const few_tile *tile) {
    const int first = tile->range.first, end = tile->range.end, ahead = min(stage_count(s), end - first);
    ring_turn turn = ring_writer();
    if (!g->b_is_constant) grid_wait();
    for (int i = 0; i < ahead; i++) {
        load_b(g, s, ring, tile, first + i, turn);
        ring_next(&turn, stage_count(s));
    }
    grid_wait();
    turn = ring_writer();
    for (int i = 0; i < ahead; i++) {
        load_a(g, s, ring, first + i, turn);
        ring_next(&turn, stage_count(s));
    }
    for (int block = first + ahead; block < end; block++) {
        ring_wait_empty(ring->stages, turn);
        load_b(g, s, ring, tile, block, turn);
        load_a(g, s, ring, block, turn);
        ring_next(&turn, stage_count(s));
    }
}

/* ---- scales: each warp brings those of its own 16 rows of b; of rows behind the last, the last one's ---- */

/* Row lane % 16 of the warp's within the tile, and where its scales begin. */
INLINE int own_row(void) { return threadIdx.x / 32 * 16 + threadIdx.x % 16; }
INLINE const uint8_t *own_scales(const matmul_few_arguments *g, const few_tile *tile) {
    const int own = own_row(), row = own < FEW_ROWS / 2 ? tile->col + own : tile->up + own - FEW_ROWS / 2;
    return (const uint8_t *)g->scales.data + scales_of_row(&g->scales, min(row, g->n - 1));
}

/* ---- results ---- */

/* Sums as they are stored: [row of a][row of the tile]. */
INLINE uint32_t sum_place(const few_ring *ring, int row, int col) { return ring->data + (row * FEW_SUM_PITCH + col) * 4; }

INLINE void leave_sums(const few_shape s, const few_ring *ring, const float *sums) {
    const int lane = threadIdx.x % 32, col = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < s.m / 2; i++) st_shared_f32(sum_place(ring, i / 4 * 8 + lane % 4 * 2 + i % 2, col + i / 2 % 2 * 8), sums[i]);
}

/* Each warp takes a piece at a time. */
INLINE void store_results(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, const few_tile *tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < s.m / FEW_PIECE * PIECES_ACROSS; i += FEW_WARPS) {
        const few_piece piece = piece_of(&g->epilogue, tile->col, i);
        float values[8];
        if (piece.row >= g->m) break;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 two = ld_shared_f32x2(sum_place(ring, piece.row + lane / 4 + j % 2 * 8, (j / 2 == 0 ? piece.first : piece.other) + lane % 4 * 2));
            values[2 * j] = two.x, values[2 * j + 1] = two.y;
        }
        finish_piece(&g->epilogue, &piece, values, g->m, g->n);
    }
}

/* The same of a cluster, whose blocks share the pieces: their sums are added in the order of their k. */
INLINE void store_results_of_cluster(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, const few_tile *tile) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int i = warp * g->splits + cluster_rank(); i < s.m / FEW_PIECE * PIECES_ACROSS; i += FEW_WARPS * g->splits) {
        const few_piece piece = piece_of(&g->epilogue, tile->col, i);
        float values[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (piece.row >= g->m) break;
#pragma unroll 4
        for (int block = 0; block < g->splits; block++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 two = ld_cluster_f32x2(cluster_map(sum_place(ring, piece.row + lane / 4 + j % 2 * 8, (j / 2 == 0 ? piece.first : piece.other) + lane % 4 * 2), block));
                values[2 * j] += two.x, values[2 * j + 1] += two.y;
            }
        finish_piece(&g->epilogue, &piece, values, g->m, g->n);
    }
}

/* This block's part of the sums. */
INLINE void store_part(const matmul_few_arguments *g, const few_shape s, const few_ring *ring) {
    float4 *to = (float4 *)g->parts + (int64_t)blockIdx.x * s.m * (FEW_ROWS / 4);
#pragma unroll
    for (int i = threadIdx.x; i < s.m * (FEW_ROWS / 4); i += FEW_WARPS * 32) {
        const uint4 four = ld_shared_u32x4(sum_place(ring, i / (FEW_ROWS / 4), i % (FEW_ROWS / 4) * 4));
        to[i] = make_float4(__uint_as_float(four.x), __uint_as_float(four.y), __uint_as_float(four.z), __uint_as_float(four.w));
    }
}

/* ---- the life of a block of threads ---- */

/* The warps that multiply, and whoever loads, from here on have a ring. */
INLINE void begin_block(const matmul_few_arguments *g, const few_shape s, const few_ring *ring) {
    if (threadIdx.x == 0) {
        ring_init(ring->stages, stage_count(s), FEW_FACTOR_BYTES(s.kind, s.m) > 0 ? 2 : 1, FEW_WARPS);
        fence_mbarrier_init();
    }
    if (threadIdx.x == FEW_WARPS * 32) {
        tma_prefetch((const tensor_map *)g->map_a);
        tma_prefetch((const tensor_map *)g->map_b);
    }
    __syncthreads();
}

/* Sums of all blocks of the cluster lie in their shared memory; and nobody reads them any more. All warps come here. */
INLINE bool is_clustered(const matmul_few_arguments *g) { return g->splits > 1 && g->parts == 0; }
INLINE void meet_cluster(void) {
    cluster_arrive();
    cluster_wait();
}

/* Warps that have no sums. */
INLINE void end_beside(const matmul_few_arguments *g) {
    if (!is_clustered(g)) return;
    __syncwarp();
    meet_cluster();
    meet_cluster();
}

/* The warp that loads, to its end. */
INLINE void run_loads(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, const few_tile *tile) {
    if (elect_one()) load_all(g, s, ring, tile);
    __syncwarp();
    grid_wait();
    grid_release();
    end_beside(g);
}

/* The warps that multiply, behind their last product. */
INLINE void end_tile(const matmul_few_arguments *g, const few_shape s, const few_ring *ring, const few_tile *tile, const float *sums) {
    barrier_sync(1, FEW_WARPS * 32);         /* nobody reads the ring any more */
    leave_sums(s, ring, sums);
    if (is_clustered(g)) {
        __syncwarp();
        meet_cluster();
        grid_wait();
        store_results_of_cluster(g, s, ring, tile);
        __syncwarp();
        meet_cluster();
        return;
    }
    barrier_sync(1, FEW_WARPS * 32);
    grid_wait();
    if (g->splits > 1) store_part(g, s, ring);
    else store_results(g, s, ring, tile);
}

#endif
