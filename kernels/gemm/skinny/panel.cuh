/* Products of 2 to 16 rows of a, where a and b are both bf16 or both f16 and their rows are whole units of 16 bytes: what vector.cuh is for one row. A launch of a step is nearly all latency, so a goes
 * from where it lies to registers without a barrier, and little is computed in front of the products.
 *
 *   b     a panel of 16 rows, by steps of 128 bytes of each: gmem -> smem of each warp -> reg -> mma.sync, b's rows being the 16 of its shape and a's the 8. All of it is asked for before the launches in front have ended, where no
 *         launch of the run writes b
 *   a     gmem -> reg, a lane's units of two steps ahead; warps side by side read the same ones, by way of L1
 *   sums  reg -> smem of each warp -> added over the warps that share k, in their order -> epilogue -> gmem
 *
 * 8 warps: some side by side with a panel each, the others share k. k is permuted alike in a and b: a lane's unit of 8 k is the pairs of two products. A step that halves: the panel's upper
 * eight rows are the second half's. Resources: two blocks a multiprocessor, of up to 96 KB of shared memory each. Speed: bench/results/h200/skinny.md. */
#ifndef KERNELS_GEMM_SKINNY_PANEL_CUH
#define KERNELS_GEMM_SKINNY_PANEL_CUH

#include "kernels/gemm/skinny/panel.h"
#include "kernels/gemm/skinny/skinny.cuh"

/* first: of the block's panels; panel: the warp's, which may be none; from, to: the warp's steps of k. */
typedef struct panel_place { int first, panel, from, to; } panel_place;

INLINE panel_place panel_place_of(const panel_arguments *p) {
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), part = warp >> p->wide, log2 = PANEL_WARPS_LOG2 - p->wide, first = (int)blockIdx.x << p->wide, panel = first + (warp & ((1 << p->wide) - 1));
    const panel_place at = {first, panel, p->steps * part >> log2, panel < p->panels ? p->steps * (part + 1) >> log2 : p->steps * part >> log2};
    return at;
}

/* ---- b ---- */

/* All steps of the warp, a group of copies each, PANEL_STEPS groups in all: a lane brings 16 bytes lane % 8 of rows lane / 8, and 4, 8, 12 further; zeros behind the end of k. */
INLINE void load_panel(const panel_arguments *p, const panel_place *at, uint32_t to, uint64_t policy) {
    const skinny_arguments *g = &p->product;
    const bool halves = g->epilogue.halving >= 0;
    const int lane = threadIdx.x % 32, left = at->panel * (halves ? 8 : 16);
    const uint8_t *from[2];
    int further[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int begin = halves && i == 1 ? g->epilogue.half : 0, last = halves && i == 0 ? g->epilogue.half - 1 : g->n - 1, row = min(begin + left + (halves ? 0 : 8 * i) + lane / 8, last);
        from[i] = (const uint8_t *)g->b.data + row * g->b.row_bytes + (at->from * 128 + lane % 8 * 16);
        further[i] = min(4, last - row) * (int)g->b.row_bytes;
    }
    to += lane / 8 * 128 + (lane % 8 ^ swizzle(lane / 8)) * 16;
#pragma unroll 1
    for (int step = at->from; step < at->from + PANEL_STEPS; step++) {
        if (step < at->to) {
            const int valid = step * PANEL_STEP_K + lane % 8 * 8 < g->k ? 16 : 0;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint8_t *x = valid ? from[i] : (const uint8_t *)g->b.data;
                cp_async_policy(to + i * 1024, x, valid, policy);
                cp_async_policy((to ^ 32) + i * 1024 + 512, valid ? x + further[i] : x, valid, policy);
                from[i] += 128;
            }
            to += PANEL_STEP_BYTES;
        }
        cp_async_commit();
    }
}

/* ---- a ---- */

/* A step of it, of this lane's rows lane / 4 and 8 further: 16 bytes lane % 4 of either half of 128; zeros from step `to` on. */
typedef struct panel_units { uint4 of[2][2]; } panel_units;

INLINE panel_units load_units(const skinny_arguments *g, const int tiles, int step, int to) {
    panel_units x;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < tiles; tile++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int unit = step * 8 + i * 4 + lane % 4;
            x.of[tile][i] = make_uint4(0, 0, 0, 0);
            if (step < to && unit * 8 < g->k) x.of[tile][i] = *(const uint4 *)(g->a.data + min(tile * 8 + lane / 4, g->m - 1) * g->a.row_bytes + unit * 16);
        }
    return x;
}

/* ---- products ---- */

/* A step of a panel out of shared memory: of rows lane / 4 and 8 further 16 bytes lane % 4 of either half of 128. part: where this lane's first unit lies in a step. */
INLINE uint32_t panel_part(void) {
    const uint32_t lane = threadIdx.x % 32, row = lane / 4;
    return row * 128 + (lane % 4 ^ swizzle(row)) * 16;
}
INLINE void read_step(uint32_t from, uint32_t part, uint4 low[2], uint4 high[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        low[i] = ld_shared_u32x4(from + (i == 0 ? part : part ^ 64));
        high[i] = ld_shared_u32x4(from + (i == 0 ? part : part ^ 64) + 1024);
    }
}

/* A step: rows lane / 4 of b's panel (low) and 8 further (high). */
INLINE void multiply_units(const int weights, const int tiles, const uint4 low[2], const uint4 high[2], const panel_units *x, float sums[][4]) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int tile = 0; tile < tiles; tile++) {
            const uint4 a = x->of[tile][i];
            if (weights == SKINNY_F16) {
                mma_f16(sums[tile], low[i].x, high[i].x, low[i].y, high[i].y, a.x, a.y);
                mma_f16(sums[tile], low[i].z, high[i].z, low[i].w, high[i].w, a.z, a.w);
            } else {
                mma_bf16(sums[tile], low[i].x, high[i].x, low[i].y, high[i].y, a.x, a.y);
                mma_bf16(sums[tile], low[i].z, high[i].z, low[i].w, high[i].w, a.z, a.w);
            }
        }
}

/* This warp's sums, [row of a][SKINNY_SUM_PITCH]. */
INLINE void leave_panel(const int tiles, uint32_t to, const float sums[][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < tiles; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) st_shared_f32(to + ((i * 8 + lane % 4 * 2 + j % 2) * SKINNY_SUM_PITCH + lane / 4 + j / 2 * 8) * 4, sums[i][j]);
}

/* ---- the end ---- */

/* Result number i of the block, of whose panels each has 8 or 16 columns. place: of its sum in the panel. */
typedef struct panel_result { int panel, place, row, col; bool is_there; } panel_result;

INLINE panel_result result_at(const panel_arguments *p, const panel_place *at, int i) {
    const matmul_epilogue *e = &p->product.epilogue;
    const bool halves = e->halving >= 0;
    const int of_panel = halves ? 3 : 4, across = i & ((1 << (of_panel + p->wide)) - 1);
    panel_result r = {across >> of_panel, across & ((1 << of_panel) - 1), i >> (of_panel + p->wide)};
    r.col = ((at->first + r.panel) << of_panel) + r.place;
    r.is_there = r.row < p->product.m && r.col < (halves ? e->half : p->product.n);
    return r;
}

/* The sum at a place of a panel, over its warps in their order. */
INLINE float sum_of_warps(const panel_arguments *p, uint32_t shared, const panel_result *r, int place) {
    uint32_t from = shared + r->panel * p->warp_bytes + (r->row * SKINNY_SUM_PITCH + place) * 4;
    float y = 0;
#pragma unroll 4
    for (int warp = r->panel; warp < PANEL_WARPS; warp += 1 << p->wide) {
        y += ld_shared_f32(from);
        from += p->warp_bytes << p->wide;
    }
    return y;
}

/* Operands of the first two steps, asked for before the products, of a thread's first result; not in front of a step that halves, which wants two. */
INLINE bool is_early_step(const matmul_epilogue *e, const int s) { return s < e->count && s > e->halving && e->steps[s].data != 0; }

INLINE float panel_operand(const matmul_step *step, int row, int col) { return load_operand(step, (step->step == MATMUL_POST_bias ? 0 : row) * step->row_stride + col * step->col_stride); }

INLINE float2 load_early_operands(const matmul_epilogue *e, const panel_result *r) {
    float2 early = {0, 0};
    if (r->is_there && is_early_step(e, 0)) early.x = panel_operand(&e->steps[0], r->row, r->col);
    if (r->is_there && is_early_step(e, 1)) early.y = panel_operand(&e->steps[1], r->row, r->col);
    return early;
}

/* u: the sum of the column half further on, where a step halves. is_first: early's operands are the result's. */
INLINE void finish_result(const matmul_epilogue *e, float2 early, bool is_first, float y, float u, const panel_result *r) {
    const bool halves = e->halving >= 0;
    y = with_factors(e, y, 1, r->row, r->col);
    if (halves) u = with_factors(e, u, 1, r->row, r->col + e->half);
#pragma unroll 1
    for (int s = 0; s < e->count; s++) {
        const matmul_step *step = &e->steps[s];
        float x = 0;
        if (s == e->halving) {
            apply_halving(step->step, 1, &y, &u);
            continue;
        }
        if (is_first && s < 2 && s > e->halving) x = s == 0 ? early.x : early.y;
        else if (step->data != 0) x = panel_operand(step, r->row, r->col);
        y = apply_step_to(step->step, y, x);
        if (s < e->halving) u = apply_step_to(step->step, u, step->data != 0 ? panel_operand(step, r->row, r->col + e->half) : 0);
    }
    store_result(e, y, r->row, r->col);
}

/* alpha, and where it lies in memory. */
INLINE float factor_of_all(const matmul_epilogue *e) {
    float all = e->alpha;
    for (int i = 0; i < 2; i++)
        if (e->alpha_at[i] != 0) all *= *(const float *)e->alpha_at[i];
    return all;
}

/* ---- all of it ---- */

INLINE void matmul_panel(const panel_arguments *p, const int weights, const int tiles) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const skinny_arguments *g = &p->product;
    const panel_place at = panel_place_of(p);
    const uint32_t base = shared_address(shared), own = base + threadIdx.x / 32 * p->warp_bytes, part = panel_part();
    const uint64_t policy = policy_first();
    grid_release();
    if (!g->b_is_constant) grid_wait();
    load_panel(p, &at, own, policy);
    if (g->b_is_constant) grid_wait();
    panel_units now = load_units(g, tiles, at.from, at.to), next = load_units(g, tiles, at.from + 1, at.to);
    panel_result result = result_at(p, &at, (int)threadIdx.x);
    const float2 early = load_early_operands(&g->epilogue, &result);
    const float all = factor_of_all(&g->epilogue);
    float sums[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll 1
    for (int step = at.from; step < at.to; step++) {
        const panel_units later = load_units(g, tiles, step + 2, at.to);
        uint4 low[2], high[2];
        cp_async_wait(PANEL_STEPS - 1);
        cp_async_commit();        /* a group of none: the next wait is for the next step */
        __syncwarp();
        read_step(own + (step - at.from) * PANEL_STEP_BYTES, part, low, high);
        multiply_units(weights, tiles, low, high, &now, sums);
        now = next;
        next = later;
    }
    __syncwarp();                 /* all lanes have read the steps, where the sums come to lie */
    leave_panel(tiles, own, sums);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; result.row < g->m; i += PANEL_WARPS * 32, result = result_at(p, &at, i)) {
        if (!result.is_there) continue;
        const float y = sum_of_warps(p, base, &result, result.place), u = g->epilogue.halving >= 0 ? sum_of_warps(p, base, &result, result.place + 8) : 0;
        finish_result(&g->epilogue, early, i == (int)threadIdx.x, all * y, all * u, &result);
    }
}

#define PANEL_ENTRY(name, weights, tiles)                                                                                             \
    extern "C" __global__ void __launch_bounds__(PANEL_WARPS * 32, 2) name(const __grid_constant__ panel_arguments arguments) { \
        matmul_panel(&arguments, weights, tiles);                                                                                     \
    }

#endif
