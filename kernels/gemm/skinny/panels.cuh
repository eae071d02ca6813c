/* Products of 2 to 16 rows of a by more of b than panel.cuh has room for: panels one after another, and a stays in registers.
 *
 *   b     panels of 16 rows in two stages of 8, each of all of the block's k: gmem -> a ring of the block in smem -> reg -> mma.sync, 8 of b's rows being the 8 of its shape and a's the 16. A stage is one TMA load of
 *         up to 32 KiB: smaller ones take longer. As many stages as there are before the launches in front have ended, where no launch of the run writes b
 *   a     gmem -> reg, once: a warp has the same steps of k of each panel
 *   sums  reg -> smem of each warp -> added over the warps, in their order -> epilogue -> gmem. Where blocks share k: -> smem of the block, for up to PANELS_ROUND panels -> added over the cluster's blocks, in their
 *         order
 *
 * 8 warps, which share k, and half of which in turn end a panel. The first of them brings rows into a stage that all have read. k is permuted alike in a and b: a lane's unit of 8 k is the pairs of two products. A step
 * that halves: the panel's second stage is of the second half. Resources: half of a multiprocessor's shared memory. Speed: bench/results/h200/skinny.md. */
#ifndef KERNELS_GEMM_SKINNY_PANELS_CUH
#define KERNELS_GEMM_SKINNY_PANELS_CUH

#include "kernels/gemm/skinny/panel.cuh"
#include "kernels/gemm/skinny/panels.h"
#include "kernels/gpu/pipe/ring.cuh"
#include "kernels/gpu/ptx/tma_boxes.cuh"

/* first, count: panels of the cluster; rank: of the block; k: the first of the block's; from, to: steps of the warp, counted in the block's. */
typedef struct panels_place { int first, count, rank, k, from, to; } panels_place;

INLINE panels_place panels_place_of(const panels_arguments *p) {
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), cluster = (int)blockIdx.x / p->share, rank = (int)blockIdx.x - cluster * p->share, first = cluster * p->each, each = (p->slice + PANEL_WARPS - 1) / PANEL_WARPS;
    const panels_place at = {first, min(p->each, p->panels - first), rank, rank * p->slice * PANEL_STEP_K, warp * each, min((warp + 1) * each, min(p->slice, p->product.k / PANEL_STEP_K - rank * p->slice))};
    return at;
}

/* ---- b ---- */

/* A stage's rows of b, number `number` of the block's stages, by one thread; nothing behind the last. data: the first stage. */
INLINE void bring_rows(const panels_arguments *p, const panels_place *at, uint32_t data, const ring_barriers ring, int stage, int number) {
    const bool halves = p->product.epilogue.halving >= 0;
    const int panel = at->first + number / 2, row = halves ? number % 2 * p->product.epilogue.half + panel * 8 : panel * 16 + number % 2 * 8;
    const uint32_t bytes = p->slice * PANELS_STEP_BYTES, full = ring.full + stage * BARRIER_BYTES;
    if (number >= 2 * at->count) return;
    mbarrier_arrive_expect(full, bytes);
    tma_load_3d(data + stage * bytes, (const tensor_map *)p->map_b, full, 0, row, at->k / PANEL_STEP_K, TMA_EVICT_FIRST);
}

INLINE void fill_stages(const panels_arguments *p, const panels_place *at, uint32_t data, const ring_barriers ring) {
#pragma unroll 1
    for (int i = 0; i < p->stages; i++) bring_rows(p, at, data, ring, i, i);
}

/* ---- products ---- */

/* A step of a as the fragments of its four products, of rows lane / 4 and 8 further: of units 2 (lane % 4) and the next each half. */
typedef struct panels_rows { uint4 of[2][2]; } panels_rows;

INLINE uint4 load_row_unit(const uint8_t *row, int unit, bool is_there) { return is_there ? *(const uint4 *)(row + unit * 16) : make_uint4(0, 0, 0, 0); }

INLINE panels_rows load_rows(const skinny_arguments *g, const panels_place *at, const int tiles, int step) {
    panels_rows x;
    const int row = threadIdx.x % 32 / 4;
    const uint8_t *a = (const uint8_t *)g->a.data + at->k * 2, *lower = a + min(row, g->m - 1) * g->a.row_bytes, *upper = a + min(row + 8, g->m - 1) * g->a.row_bytes;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int unit = step * 8 + threadIdx.x % 4 * 2 + i;
        const uint4 low = load_row_unit(lower, unit, step < at->to), high = load_row_unit(upper, unit, step < at->to && tiles > 1);
        x.of[i][0] = make_uint4(low.x, high.x, low.y, high.y);
        x.of[i][1] = make_uint4(low.z, high.z, low.w, high.w);
    }
    return x;
}

INLINE void multiply_pair(const int weights, float d[4], const uint4 a, uint32_t low, uint32_t high) {
    if (weights == SKINNY_F16) mma_f16(d, a.x, a.y, a.z, a.w, low, high);
    else mma_bf16(d, a.x, a.y, a.z, a.w, low, high);
}

/* from: the step in the stage; unit: this lane's first in row lane / 4 of it. Two sums, as a product waits for the one in front that adds to the same. */
INLINE void multiply_step(const int weights, uint32_t from, uint32_t unit, const panels_rows *a, float sums[2][4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint4 b = ld_shared_u32x4(from + (unit ^ i * 16));
        multiply_pair(weights, sums[0], a->of[i][0], b.x, b.y);
        multiply_pair(weights, sums[1], a->of[i][1], b.z, b.w);
    }
}

/* ---- sums ---- */

/* Word of a sum in its place: lanes that write side by side, and threads that read, have banks of their own. */
INLINE int sum_word(int row, int place) { return (row * PANEL_COLS + place) ^ (row / 2 % 2 * 8); }

INLINE void leave_sums(const int tiles, uint32_t to, const float sums[2][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < tiles; i++) st_shared_f32x2(to + sum_word(lane / 4 + i * 8, half * 8 + lane % 4 * 2) * 4, sums[half][i * 2], sums[half][i * 2 + 1]);
}

INLINE float add_panel_warps(const int tiles, uint32_t from) {
    float y = 0;
#pragma unroll
    for (int warp = 0; warp < PANEL_WARPS; warp++) y += ld_shared_f32(from + warp * PANELS_SUM_BYTES(tiles));
    return y;
}

INLINE float add_panel_blocks(uint32_t place, int blocks) {
    float y = 0;
#pragma unroll 1
    for (int rank = 0; rank < blocks; rank++) y += ld_cluster_f32(cluster_map(place, rank));
    return y;
}

/* ---- the end ---- */

/* Result number i of the panels from `panel` on: of each, row by row, 16 columns, or 8 where a step halves. */
INLINE panel_result panels_result_at(const skinny_arguments *g, const int tiles, int panel, int i) {
    const bool halves = g->epilogue.halving >= 0;
    const int of_row = halves ? 3 : 4, of_panel = of_row + (tiles == 1 ? 3 : 4);      /* log2 of results */
    panel_result r = {i >> of_panel, i & ((1 << of_row) - 1), (i & ((1 << of_panel) - 1)) >> of_row};
    r.col = ((panel + r.panel) << of_row) + r.place;
    r.is_there = r.row < g->m && r.col < (halves ? g->epilogue.half : g->n);
    return r;
}

INLINE int panel_results(const skinny_arguments *g, const int tiles) { return tiles * 8 * (g->epilogue.halving >= 0 ? 8 : 16); }

/* A panel's sums of warps to results, by half of the block's warps. A place of sums is written again two panels further: by those who read it behind a
 * barrier of theirs, by the others behind the next panel's, to which those come when they have read. */
INLINE void end_panel(const skinny_arguments *g, const int tiles, uint32_t of_warps, int panel) {
    const float2 none = {0, 0};
    const float all = factor_of_all(&g->epilogue);
#pragma unroll 1
    for (int i = threadIdx.x % (PANEL_WARPS * 16); i < panel_results(g, tiles); i += PANEL_WARPS * 16) {
        const panel_result r = panels_result_at(g, tiles, panel, i);
        if (!r.is_there) continue;
        const float y = add_panel_warps(tiles, of_warps + sum_word(r.row, r.place) * 4), u = g->epilogue.halving >= 0 ? add_panel_warps(tiles, of_warps + sum_word(r.row, r.place + 8) * 4) : 0;
        finish_result(&g->epilogue, none, false, all * y, all * u, &r);
    }
}

/* An arrival at a barrier of each block of the cluster, behind what the block's warps have done with shared memory; and their wait for all blocks'. */
INLINE void meet_blocks(const panels_arguments *p, uint32_t barrier, uint32_t phase) {
    __syncthreads();
    if ((int)threadIdx.x < p->share) mbarrier_release_cluster(cluster_map(barrier, threadIdx.x));
    mbarrier_acquire_cluster(barrier, phase);
}

/* Those of `count` panels from `panel` on, of which the cluster's blocks have each a share of the results. What a thread's first result reads is asked for while blocks wait for each other. met: barriers, of sums that are
 * there, and of sums that have been read; phase: theirs. */
INLINE void end_round(const panels_arguments *p, const int tiles, uint32_t of_block, uint32_t met, uint32_t phase, int rank, int panel, int count) {
    const skinny_arguments *g = &p->product;
    const matmul_epilogue *e = &g->epilogue;
    const int first = rank * PANEL_WARPS * 32 + (int)threadIdx.x, results = count * panel_results(g, tiles);
    panel_result r = panels_result_at(g, tiles, panel, first);
    r.is_there = r.is_there && first < results;
    const float2 early = load_early_operands(e, &r);
    const float all = factor_of_all(e);
    meet_blocks(p, met, phase);
#pragma unroll 1
    for (int i = first; i < results; i += p->share * PANEL_WARPS * 32) {
        if (i != first) r = panels_result_at(g, tiles, panel, i);
        if (!r.is_there) continue;
        const uint32_t from = of_block + r.panel * PANELS_SUM_BYTES(tiles);
        const float y = add_panel_blocks(from + sum_word(r.row, r.place) * 4, p->share), u = e->halving >= 0 ? add_panel_blocks(from + sum_word(r.row, r.place + 8) * 4, p->share) : 0;
        finish_result(e, early, i == first, all * y, all * u, &r);
    }
    meet_blocks(p, met + BARRIER_BYTES, phase);     /* before a block ends, or has other sums where these are read */
}

/* ---- all of it ---- */

INLINE void multiply_panels(const panels_arguments *p, const panels_place *at, const int weights, const int tiles, uint32_t data, const ring_barriers ring, uint32_t met) {
    const skinny_arguments *g = &p->product;
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), stage_bytes = p->slice * PANELS_STEP_BYTES;
    const uint32_t of_warps = data + p->stages * stage_bytes, of_block = of_warps + PANEL_WARPS * PANELS_SUM_BYTES(tiles), unit = lane / 4 * 128 + (lane % 4 * 2 ^ lane / 4) * 16;
    panels_rows a[PANELS_STEPS];
#pragma unroll
    for (int i = 0; i < PANELS_STEPS; i++) a[i] = load_rows(g, at, tiles, at->from + i);
    ring_turn turn = ring_reader();
#pragma unroll 1
    for (int panel = 0, round = 0, phase = 0; panel < at->count; panel++) {
        float sums[2][4];
#pragma unroll
        for (int side = 0; side < 2; side++) {
            float parts[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
            ring_wait_full(ring, turn);
#pragma unroll
            for (int i = 0; i < PANELS_STEPS; i++)
                if (at->from + i < at->to) multiply_step(weights, data + turn.stage * stage_bytes + (at->from + i) * PANELS_STEP_BYTES, unit, &a[i], parts);
            __syncwarp();
            if (lane == 0) ring_arrive_empty(ring, turn);
            if (threadIdx.x == 0) {
                ring_wait_empty(ring, turn);
                bring_rows(p, at, data, ring, turn.stage, panel * 2 + side + p->stages);
            }
            ring_next(&turn, p->stages);
#pragma unroll
            for (int i = 0; i < 4; i++) sums[side][i] = parts[0][i] + parts[1][i];
        }
        if (p->share == 1) {
            const uint32_t place = of_warps + panel % 2 * PANEL_WARPS * PANELS_SUM_BYTES(tiles);
            leave_sums(tiles, place + warp * PANELS_SUM_BYTES(tiles), sums);
            if (warp / (PANEL_WARPS / 2) == panel % 2) {
                barrier_sync(1 + panel % 2, PANEL_WARPS * 32);
                end_panel(g, tiles, place, at->first + panel);
                barrier_sync(3 + panel % 2, PANEL_WARPS * 16);
            } else barrier_arrive(1 + panel % 2, PANEL_WARPS * 32);
            continue;
        }
        if (panel > 0) __syncthreads();               /* the sums in front have been read */
        leave_sums(tiles, of_warps + warp * PANELS_SUM_BYTES(tiles), sums);
        __syncthreads();
        if ((int)threadIdx.x * 4 < PANELS_SUM_BYTES(tiles)) st_shared_f32(of_block + round * PANELS_SUM_BYTES(tiles) + threadIdx.x * 4, add_panel_warps(tiles, of_warps + threadIdx.x * 4));
        if (++round < PANELS_ROUND && panel + 1 < at->count) continue;
        end_round(p, tiles, of_block, met, phase, at->rank, at->first + panel - (round - 1), round);
        round = 0;
        phase ^= 1;
    }
}

INLINE void matmul_panels(const panels_arguments *p, const int weights, const int tiles) {
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ uint64_t barriers[2 * PANELS_STAGES + 2];
    const panels_place at = panels_place_of(p);
    const uint32_t data = shared_address(shared), met = shared_address(barriers + 2 * PANELS_STAGES);
    const ring_barriers ring = ring_at(shared_address(barriers), p->stages);
    grid_release();
    if (threadIdx.x == 0) {
        tma_prefetch((const tensor_map *)p->map_b);
        ring_init(ring, p->stages, 1, PANEL_WARPS);
        mbarrier_init(met, p->share);
        mbarrier_init(met + BARRIER_BYTES, p->share);
        fence_mbarrier_init();
        if (p->product.b_is_constant) fill_stages(p, &at, data, ring);
    }
    __syncthreads();
    if (p->share > 1) {           /* barriers of all blocks are there before one arrives at another's */
        cluster_arrive_relaxed();
        cluster_wait();
    }
    grid_wait();
    if (threadIdx.x == 0 && !p->product.b_is_constant) fill_stages(p, &at, data, ring);
    multiply_panels(p, &at, weights, tiles, data, ring, met);
}

#define PANELS_ENTRY(name, weights, tiles)                                                                                         \
    extern "C" __global__ void __launch_bounds__(PANEL_WARPS * 32, 2) name(const __grid_constant__ panels_arguments arguments) { \
        matmul_panels(&arguments, weights, tiles);                                                                                 \
    }

#endif
