/* grouped_outer by tcgen05: out [g] [m,n] = a [rows of g, m]^T b [rows of g, n], bf16 and f16, sums in fp32. A thread block for each tile of each group; operands are read as they lie, as columns of k.
 *
 *   warp 0, one thread   empty[s] -> TMA boxes of 64 rows x 64 columns: two of a, tile_n / 64 of b -> full[s]                  ring of OUTER_STAGES in smem
 *   warp 1, one thread   full[s] -> 4 tcgen05.mma of 128 x tile_n x 16 -> commit empty[s] ..  -> commit done
 *   warps 2 to 5         done -> sums: tmem -> registers -> gmem
 *
 * A group may begin at any row, which a box does, too. Its last block of 64 rows holds rows of the next group behind it: warps 2 to 5 make those zeros in smem, of a and of b, as they may be anything:
 * warp 1 waits for full[s] -> partial, these clear -> cleared, warp 1 multiplies. A group without rows gives zeros. The simplest thing that is right: no epilogue runs under the products of another tile but those of
 * another thread block. Speed: not measured, as no Blackwell was there. */
#include "kernels/gemm/outer.h"
#include "kernels/gemm/tcgen05/epilogue.cuh"
#include "kernels/gpu/pipe/ring.cuh"
#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/tma_boxes.cuh"

enum { ELEMENT_BF16, ELEMENT_F16, BOX_COLS = 64, BOX_BYTES = OUTER_DEPTH * 128, A_BOXES = OUTER_TILE_M / BOX_COLS, ROW_BYTES = 128, STORE_THREADS = OUTER_TCGEN05_THREADS - 64 };

/* The constants of an entry. */
typedef struct outer_shape { int element, tile_n; } outer_shape;

INLINE constexpr int stage_bytes(const outer_shape s) { return (A_BOXES + s.tile_n / BOX_COLS) * BOX_BYTES; }

/* Rows [begin, end) of a and b in blocks of OUTER_DEPTH, and the tile's first row and column. */
typedef struct outer_tile { int begin, end, blocks, row, col; } outer_tile;

/* partial, cleared: of the last block. tmem: the sums' columns. */
typedef struct outer_place {
    uint32_t data, done, partial, cleared, tmem;
    ring_barriers ring;
} outer_place;

INLINE uint32_t stage_at(const outer_place *p, const outer_shape s, int stage) { return p->data + stage * stage_bytes(s); }

/* Of the last block the rows that are the group's; OUTER_DEPTH: all. */
INLINE int rows_of_last(const outer_tile *tile) { return tile->end - tile->begin - (tile->blocks - 1) * OUTER_DEPTH; }

/* ---- warp 0 ---- */

INLINE void load_blocks(const outer_arguments *g, const outer_shape s, const outer_place *p, const outer_tile *tile) {
    ring_turn turn = ring_writer();
#pragma unroll 1
    for (int block = 0; block < tile->blocks; block++, ring_next(&turn, OUTER_STAGES)) {
        const uint32_t to = stage_at(p, s, turn.stage);
        const int row = tile->begin + block * OUTER_DEPTH;
        ring_wait_empty(p->ring, turn);
        const uint32_t full = ring_expect_full(p->ring, turn, stage_bytes(s));
#pragma unroll
        for (int i = 0; i < A_BOXES; i++) tma_load_2d(to + i * BOX_BYTES, (const tensor_map *)g->map_a, full, tile->row + i * BOX_COLS, row, TMA_EVICT_NORMAL);
#pragma unroll
        for (int i = 0; i < s.tile_n / BOX_COLS; i++) tma_load_2d(to + (A_BOXES + i) * BOX_BYTES, (const tensor_map *)g->map_b, full, tile->col + i * BOX_COLS, row, TMA_EVICT_NORMAL);
    }
}

/* ---- warp 1 ---- */

/* PTX ISA, "Instruction descriptor": fp32 sums, types of a and b, both turned, N, M. */
INLINE constexpr uint32_t descriptor_of(const outer_shape s) {
    const uint32_t type = s.element == ELEMENT_BF16;
    return 1u << 4 | type << 7 | type << 10 | 1u << 15 | 1u << 16 | (uint32_t)(s.tile_n / 8) << 17 | (uint32_t)(OUTER_TILE_M / 16) << 24;
}

/* A step of 16 rows is 2048 bytes of a box. */
INLINE void multiply_block(const outer_shape s, const outer_place *p, int stage, bool is_first) {
    const uint64_t a = tcgen05_turned_descriptor(stage_at(p, s, stage)), b = tcgen05_turned_descriptor(stage_at(p, s, stage) + A_BOXES * BOX_BYTES);
#pragma unroll
    for (int step = 0; step < OUTER_DEPTH / 16; step++) tcgen05_mma_f16(p->tmem, a + 16 * ROW_BYTES / 16 * step, b + 16 * ROW_BYTES / 16 * step, descriptor_of(s), step > 0 || !is_first);
    tcgen05_commit(ring_empty(p->ring, stage));
}

INLINE void multiply_blocks(const outer_shape s, const outer_place *p, const outer_tile *tile) {
    ring_turn turn = ring_reader();
#pragma unroll 1
    for (int block = 0; block < tile->blocks; block++, ring_next(&turn, OUTER_STAGES)) {
        ring_wait_full(p->ring, turn);
        if (block == tile->blocks - 1 && rows_of_last(tile) < OUTER_DEPTH) {
            mbarrier_arrive(p->partial);
            mbarrier_wait(p->cleared, 0);
        }
        multiply_block(s, p, turn.stage, block == 0);
    }
    tcgen05_commit(p->done);
}

/* ---- warps 2 to 5 ---- */

/* Rows of the last block that are not the group's become zeros, of all boxes. */
INLINE void clear_rows(const outer_shape s, const outer_place *p, const outer_tile *tile) {
    const int count = rows_of_last(tile), boxes = stage_bytes(s) / BOX_BYTES, words = (OUTER_DEPTH - count) * ROW_BYTES / 16;
    const uint32_t stage = stage_at(p, s, (tile->blocks - 1) % OUTER_STAGES);
    mbarrier_wait(p->partial, 0);
    for (int i = threadIdx.x - 64; i < boxes * words; i += STORE_THREADS) st_shared_u32x4(stage + i / words * BOX_BYTES + count * ROW_BYTES + i % words * 16, make_uint4(0, 0, 0, 0));
    fence_proxy_async();
    mbarrier_arrive(p->cleared);
}

/* A thread has a row of the tile. */
INLINE void store_sums(const outer_arguments *g, const outer_shape s, const outer_place *p, const outer_tile *tile) {
    const int lanes = threadIdx.x / 32 % 4 * 32, row = tile->row + lanes + (int)threadIdx.x % 32;
    const int format = g->out.format == CUDA_f32 ? MATMUL_f32 : g->out.format == CUDA_bf16 ? MATMUL_bf16 : MATMUL_f16;
    matmul_epilogue e;
    e.out = (uint64_t)g->out.data + blockIdx.z * g->out_group * (format == MATMUL_f32 ? 4 : 2);
    e.out_row_stride = g->out_row;
    e.out_format = format;
    row_place place = {row, g->m, 0, g->n, 0, 0};
#pragma unroll 1
    for (int col = 0; col < s.tile_n; col += TCGEN05_CHUNK) {
        float values[TCGEN05_CHUNK];
        place.col = tile->col + col;
        EACH_COLUMN values[i] = 0;
        if (tile->blocks > 0) load_sums(p->tmem + (lanes << 16) + col, values);
        if (row < g->m) row_store(&e, values, place);
    }
}

/* ---- all together ---- */

/* false: the offsets do not ascend within the rows. */
INLINE bool find_tile(const outer_arguments *g, const outer_shape s, outer_tile *tile) {
    const int32_t *offsets = (const int32_t *)g->offsets.data;
    tile->begin = blockIdx.z > 0 ? offsets[(blockIdx.z - 1) * g->offsets_step] : 0;
    tile->end = offsets[blockIdx.z * g->offsets_step];
    tile->blocks = (tile->end - tile->begin + OUTER_DEPTH - 1) / OUTER_DEPTH;
    tile->row = (int)blockIdx.y * OUTER_TILE_M;
    tile->col = (int)blockIdx.x * s.tile_n;
    return tile->begin >= 0 && tile->end >= tile->begin && tile->end <= g->rows;
}

INLINE void init_barriers(const outer_place *p) {
    ring_init(p->ring, OUTER_STAGES, 1, 1);
    mbarrier_init(p->done, 1);
    mbarrier_init(p->partial, 1);
    mbarrier_init(p->cleared, STORE_THREADS);
    fence_mbarrier_init();
}

INLINE void grouped_outer(const outer_arguments *g, const outer_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    outer_place p;
    outer_tile tile;
    p.data = shared_address(shared);
    p.ring = ring_at(p.data + OUTER_STAGES * stage_bytes(s), OUTER_STAGES);
    p.done = ring_end(p.ring, OUTER_STAGES), p.partial = p.done + BARRIER_BYTES, p.cleared = p.partial + BARRIER_BYTES;
    const uint32_t tmem_at = p.cleared + BARRIER_BYTES;
    if (!find_tile(g, s, &tile)) {
        fault_raise(&g->fault, CUDA_FAULT_OFFSETS, tile.end, g->rows);
        return;
    }
    if (threadIdx.x == 0) init_barriers(&p);
    if (warp == 1) {
        tmem_alloc(tmem_at, s.tile_n);
        tmem_relinquish();
    }
    __syncthreads();
    tcgen05_fence_after();
    p.tmem = ld_shared_u32(tmem_at);
    if (warp == 0) {
        if (elect_one()) load_blocks(g, s, &p, &tile);
        __syncwarp();
    } else if (warp == 1) {
        if (elect_one()) multiply_blocks(s, &p, &tile);
        __syncwarp();
    } else {
        if (tile.blocks > 0 && rows_of_last(&tile) < OUTER_DEPTH) clear_rows(s, &p, &tile);
        mbarrier_wait(p.done, 0);
        __syncwarp();
        tcgen05_fence_after();
        store_sums(g, s, &p, &tile);
        tcgen05_fence_before();
    }
    __syncthreads();
    tcgen05_fence_after();
    if (warp == 1) tmem_dealloc(p.tmem, s.tile_n);
}

#define OUTER_ENTRY(name, element, tile_n)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(OUTER_TCGEN05_THREADS, 1) name(const __grid_constant__ outer_arguments arguments) {                       \
        constexpr outer_shape shape = {element, tile_n};                                                                                               \
        grouped_outer(&arguments, shape);                                                                                                              \
    }
OUTER_ENTRY(grouped_outer_tcgen05_bf16_n128, ELEMENT_BF16, 128)
OUTER_ENTRY(grouped_outer_tcgen05_bf16_n256, ELEMENT_BF16, 256)
OUTER_ENTRY(grouped_outer_tcgen05_f16_n128, ELEMENT_F16, 128)
OUTER_ENTRY(grouped_outer_tcgen05_f16_n256, ELEMENT_F16, 256)
