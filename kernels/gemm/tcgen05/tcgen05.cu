/* out [m,n] = epilogue(a [m,k] b [n,k]^T) by tcgen05, plainly: a block for each tile of 128 x 128, sums in tensor memory. bf16, f16, e4m3; mxfp8, mxfp4 and
 * nvfp4 with their block scales in the tensor core. Where a step of the post list halves, the tile is 64 columns and the 64 that belong to them.
 *
 *   warp 0, one thread   empty[s] -> TMA a box [128, 128 B], b boxes 2 x [64, 128 B] -> full[s]                       ring of stages in smem
 *   warp 1, one thread   full[s] -> tcgen05.cp scales smem -> tmem, 4 tcgen05.mma smem x smem -> tmem, commit -> empty[s];  at the end commit -> done
 *   warps 2 to 5         empty[s] -> scales (and operands whose rows TMA cannot take) gmem -> smem -> full[s];  done -> tmem -> epilogue -> gmem
 *
 * smem of a stage: a [128, 128 B] and b [128, 128 B], swizzled by 128 bytes; scales of a, then of b: `scale_tiles` tiles [32][4 groups of 32 rows][4] bytes.
 * tmem: sums [128 lanes, 128 columns]; of each stage 4 columns for each tile of scales. Resources: 1 block a multiprocessor. Speed: not measured. */
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/tcgen05.cuh"
#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/gpu/pipe/schedule.cuh"
#include "kernels/gemm/tcgen05/epilogue.cuh"
#include "kernels/gemm/tcgen05/kinds.h"
#include "kernels/gemm/tcgen05/tcgen05.h"

enum { HALF_TILE = TCGEN05_TILE / 2, STEPS = 4, SUM_COLUMNS = TCGEN05_TILE, LOADERS = 128, FIRST_LOADER = 64 };

/* The constants of an entry; everything in here is known to the compiler. scale_tiles: of one operand and stage; 0: there are no scales. */
typedef struct tcgen05_shape { int kind, scale_tiles, tmem_columns; } tcgen05_shape;

typedef struct tcgen05_place {
    uint32_t operands, scales, done;   /* smem; done: a barrier */
    ring_barriers ring;
    uint32_t tmem;
    int row, col, up;             /* of the tile: first row, first columns of its two halves */
    int end, blocks;              /* columns of the result; stages' worth of k */
} tcgen05_place;

INLINE uint32_t stage_operand(const tcgen05_place *p, int stage, int which) { return p->operands + (2 * stage + which) * TCGEN05_OPERAND_BYTES; }
INLINE uint32_t stage_scales(const tcgen05_place *p, const tcgen05_shape s, int stage, int which) {
    return p->scales + (2 * stage + which) * s.scale_tiles * TCGEN05_SCALE_TILE;
}
INLINE uint32_t tmem_scales(const tcgen05_place *p, const tcgen05_shape s, int stage, int which) { return p->tmem + SUM_COLUMNS + (2 * stage + which) * s.scale_tiles * 4; }

/* ---- warp 0: what TMA brings ---- */

INLINE void load_stage(const matmul_tcgen05_arguments *g, const tcgen05_shape s, const tcgen05_place *p, int block) {
    const tensor_map *map_a = (const tensor_map *)g->map_a, *map_b = (const tensor_map *)g->map_b;
    const ring_turn turn = ring_writer_turn(block, TCGEN05_STAGES);
    int stage = turn.stage, x = block * (s.kind == KIND_HALF ? TCGEN05_ROW_BYTES / 2 : TCGEN05_ROW_BYTES);
    uint32_t b = stage_operand(p, stage, 1);
    ring_wait_empty(p->ring, turn);
    const uint32_t full = ring_expect_full(p->ring, turn, (g->a.by_tma + g->b.by_tma) * TCGEN05_OPERAND_BYTES);
    if (g->a.by_tma) tma_load_2d(stage_operand(p, stage, 0), map_a, full, x, p->row, TMA_EVICT_NORMAL);
    if (!g->b.by_tma) return;
    tma_load_2d(b, map_b, full, x, p->col, TMA_EVICT_NORMAL);
    tma_load_2d(b + TCGEN05_OPERAND_BYTES / 2, map_b, full, x, p->up, TMA_EVICT_NORMAL);
}

/* ---- warps 2 to 5: what threads bring ---- */

/* A row's scales of a stage. Row r of the tile lies at r % 32 * 16 + r / 32 * 4 of each tile; what is outside is 0, a finite scale of nothing. */
INLINE void load_row_scales(const tcgen05_operand *o, const tcgen05_shape s, uint32_t to, int block, int tile_row, int row) {
    const uint8_t *scales = (const uint8_t *)o->scales;
#pragma unroll
    for (int tile = 0; tile < s.scale_tiles; tile++) {
        uint32_t word = 0;
        for (int i = 0; i < 4; i++) {
            int64_t at = (block * s.scale_tiles + tile) * 4 + i;
            if (row >= o->rows || at >= o->blocks) continue;
            if (o->tiled) at = (row / 128 * (o->scale_cols / 4) + at / 4) * TCGEN05_SCALE_TILE + row % 32 * 16 + row % 128 / 32 * 4 + at % 4;
            else at += row * o->scale_cols;
            word |= (uint32_t)scales[at] << (8 * i);
        }
        st_shared_u32(to + tile * TCGEN05_SCALE_TILE + tile_row % 32 * 16 + tile_row / 32 * 4, word);
    }
}

/* A row's 128 bytes of a stage as the engine would swizzle them: 16 bytes number c lie at c xor row % 8. */
INLINE void load_row_bytes(const tcgen05_operand *o, uint32_t to, int k_bytes, int block, int tile_row, int row) {
    const uint8_t *data = (const uint8_t *)o->data + row * o->row_bytes;
#pragma unroll 1
    for (int chunk = 0; chunk < TCGEN05_ROW_BYTES / 16; chunk++) {
        uint32_t words[4] = {0, 0, 0, 0};
        for (int i = 0; i < 16; i++) {
            int at = block * TCGEN05_ROW_BYTES + chunk * 16 + i;
            if (row < o->rows && at < k_bytes) words[i / 4] |= (uint32_t)data[at] << (i % 4 * 8);
        }
        st_shared_u32x4(to + tile_row * TCGEN05_ROW_BYTES + (chunk ^ tile_row % 8) * 16, make_uint4(words[0], words[1], words[2], words[3]));
    }
}

INLINE void load_by_threads(const matmul_tcgen05_arguments *g, const tcgen05_shape s, const tcgen05_place *p, int block) {
    const ring_turn turn = ring_writer_turn(block, TCGEN05_STAGES);
    int stage = turn.stage, thread = threadIdx.x - FIRST_LOADER, rows[2] = {p->row + thread, thread < HALF_TILE ? p->col + thread : p->up + thread - HALF_TILE};
    const tcgen05_operand *operands[2] = {&g->a, &g->b};
    ring_wait_empty(p->ring, turn);
    for (int which = 0; which < 2; which++) {
        if (s.scale_tiles > 0) load_row_scales(operands[which], s, stage_scales(p, s, stage, which), block, thread, rows[which]);
        if (!operands[which]->by_tma) load_row_bytes(operands[which], stage_operand(p, stage, which), g->k_bytes, block, thread, rows[which]);
    }
    fence_proxy_async();
    ring_arrive_full(p->ring, turn);
}

/* ---- warp 1: products ---- */

/* PTX ISA, "Instruction descriptor": fp32 sums (dense) or ue8m0 scales, M and N; of block scales, which of a column's four bytes count. */
INLINE uint32_t descriptor_of(const tcgen05_shape s, uint32_t formats, int step) {
    uint32_t size = formats | TCGEN05_TILE / 8 << 17, id = s.kind == KIND_MXFP8 ? step : s.kind == KIND_MXFP4 ? step % 2 * 2 : 0;
    if (s.scale_tiles == 0) return size | 1 << 4 | TCGEN05_TILE / 16 << 24;
    return size | (s.kind != KIND_NVFP4) << 23 | TCGEN05_TILE / 128 << 27 | id << 4 | id << 29;
}

INLINE void multiply_stage(const matmul_tcgen05_arguments *g, const tcgen05_shape s, const tcgen05_place *p, int block) {
    const ring_turn turn = ring_reader_turn(block, TCGEN05_STAGES);
    int stage = turn.stage;
    uint64_t a = tcgen05_descriptor(stage_operand(p, stage, 0)), b = tcgen05_descriptor(stage_operand(p, stage, 1));
    uint32_t scales_a = tmem_scales(p, s, stage, 0), scales_b = tmem_scales(p, s, stage, 1);
    ring_wait_full(p->ring, turn);
    tcgen05_fence_after();
#pragma unroll
    for (int tile = 0; tile < 2 * s.scale_tiles; tile++) {
        tcgen05_copy_scales(scales_a + 4 * tile, tcgen05_rows_descriptor(stage_scales(p, s, stage, 0) + tile * TCGEN05_SCALE_TILE));
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        int tile = s.kind == KIND_NVFP4 ? step : s.kind == KIND_MXFP4 ? step / 2 : 0, accumulate = block > 0 || step > 0;
        uint32_t idesc = descriptor_of(s, g->formats, step), of_a = scales_a + 4 * tile, of_b = scales_b + 4 * tile;
        if (s.kind == KIND_HALF) tcgen05_mma_f16(p->tmem, a + 2 * step, b + 2 * step, idesc, accumulate);
        if (s.kind == KIND_E4M3) tcgen05_mma_f8(p->tmem, a + 2 * step, b + 2 * step, idesc, accumulate);
        if (s.kind == KIND_MXFP8) tcgen05_mma_mxf8(p->tmem, a + 2 * step, b + 2 * step, idesc, of_a, of_b, accumulate);
        if (s.kind == KIND_MXFP4) tcgen05_mma_mxf4(p->tmem, a + 2 * step, b + 2 * step, idesc, of_a, of_b, accumulate);
        if (s.kind == KIND_NVFP4) tcgen05_mma_nvf4(p->tmem, a + 2 * step, b + 2 * step, idesc, of_a, of_b, accumulate);
    }
    tcgen05_commit(ring_empty(p->ring, stage));
}

/* ---- warps 2 to 5: results ---- */

INLINE void store_tile(const matmul_tcgen05_arguments *g, const tcgen05_place *p) {
    const matmul_epilogue *e = &g->epilogue;
    const int lanes = threadIdx.x / 32 % 4 * 32, columns = e->halving >= 0 ? HALF_TILE : TCGEN05_TILE;
    const int row = p->row + lanes + (int)threadIdx.x % 32;
    row_place place = {row, g->a.rows, 0, p->end, row, 0};
    const float factor = row_factor(e, place.row, place.rows);
#pragma unroll 1
    for (int col = 0; col < columns; col += TCGEN05_CHUNK) {
        float values[TCGEN05_CHUNK];
        place.col = p->col + col;
        const row_sums sums = {p->tmem + (lanes << 16) + col, HALF_TILE, 0, 0, 0};
        row_results(e, &sums, factor, values, place, 0);
        if (place.row < place.rows) row_store(e, values, place);
    }
}

/* ---- all together ---- */

INLINE tcgen05_place place_tile(const matmul_tcgen05_arguments *g, const tcgen05_shape s, uint32_t shared) {
    const matmul_epilogue *e = &g->epilogue;
    int tiles_m = ceil_div(g->a.rows, TCGEN05_TILE), halves = e->halving >= 0;
    tcgen05_place p;
    p.operands = shared;
    p.scales = p.operands + TCGEN05_STAGES * 2 * TCGEN05_OPERAND_BYTES;
    p.ring = ring_at(p.scales + TCGEN05_STAGES * 2 * s.scale_tiles * TCGEN05_SCALE_TILE, TCGEN05_STAGES);
    p.done = ring_end(p.ring, TCGEN05_STAGES);
    p.row = blockIdx.x % tiles_m * TCGEN05_TILE;
    p.col = blockIdx.x / tiles_m * (halves ? HALF_TILE : TCGEN05_TILE);
    p.up = halves ? p.col + e->half : p.col + HALF_TILE;
    p.end = halves ? e->half : g->b.rows;
    p.blocks = ceil_div(g->k_bytes, TCGEN05_ROW_BYTES);
    return p;
}

INLINE void matmul_tcgen05(const matmul_tcgen05_arguments *g, const tcgen05_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    tcgen05_place p = place_tile(g, s, shared_address(shared));
    uint32_t tmem_at = p.done + BARRIER_BYTES;
    int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), threads_load = s.scale_tiles > 0 || !g->a.by_tma || !g->b.by_tma;
    if (threadIdx.x == 0) {
        ring_init(p.ring, TCGEN05_STAGES, 1 + (threads_load ? LOADERS : 0), 1);
        mbarrier_init(p.done, 1);
        fence_mbarrier_init();
    }
    if (warp == 1) {
        tmem_alloc(tmem_at, s.tmem_columns);
        tmem_relinquish();
    }
    tcgen05_fence_before();
    __syncthreads();
    tcgen05_fence_after();
    p.tmem = ld_shared_u32(tmem_at);
    grid_wait();
    if (warp == 0) {
        if (elect_one())
            for (int block = 0; block < p.blocks; block++) load_stage(g, s, &p, block);
        __syncwarp();
    } else if (warp == 1) {
        if (elect_one()) {
            for (int block = 0; block < p.blocks; block++) multiply_stage(g, s, &p, block);
            tcgen05_commit(p.done);
        }
        __syncwarp();
    } else {
        if (threads_load)
            for (int block = 0; block < p.blocks; block++) load_by_threads(g, s, &p, block);
        mbarrier_wait(p.done, 0);
        __syncwarp();
        tcgen05_fence_after();
        store_tile(g, &p);
        tcgen05_fence_before();
    }
    __syncthreads();
    tcgen05_fence_after();
    if (warp == 1) tmem_dealloc(p.tmem, s.tmem_columns);
}

#define MATMUL_TCGEN05(name, kind, scale_tiles, tmem_columns)                                                                            \
    extern "C" __global__ void __launch_bounds__(TCGEN05_THREADS, 1) name(const __grid_constant__ matmul_tcgen05_arguments arguments) {    \
        const tcgen05_shape shape = {kind, scale_tiles, tmem_columns};                                                                   \
        matmul_tcgen05(&arguments, shape);                                                                                               \
    }

MATMUL_TCGEN05(matmul_half_sm100, KIND_HALF, 0, 128)
MATMUL_TCGEN05(matmul_e4m3_sm100, KIND_E4M3, 0, 128)
MATMUL_TCGEN05(matmul_mxfp8_sm100, KIND_MXFP8, 1, 256)
MATMUL_TCGEN05(matmul_mxfp4_sm100, KIND_MXFP4, 2, 256)
MATMUL_TCGEN05(matmul_nvfp4_sm100, KIND_NVFP4, 4, 256)
