/* Convolutions of bf16 and f16 by wgmma: out [o, places] = w [o, k] x [k, places] for each group, where k runs over segments of a window (wgmma.h) and a box of places is brought straight from x as
 * conv_layout.cu lays it out: patches are never written.
 *
 *   warpgroup 0, one thread   empty[s] -> TMA w box [tile_m, 128 B], x box [images, lines, cols; 128 B] -> full[s]      ring of stages in smem
 *   warpgroups 1, 2           full[s] -> wgmma m64 -> empty[s];  at the end of a tile: bias -> smem, 16 rows a warp -> out, runs of places
 *
 * Persistent: the ring runs on from tile to tile, so the loads of the next one overlap the end of the one before. Tiles are counted with outputs fastest, so that those in flight share their places.
 * Registers: 40 (loads), 232 (products). Speed: README.md. */
#include "kernels/conv/wgmma.h"
#include "kernels/gpu/pipe/ring.cuh"
#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gpu/ptx/tma_boxes.cuh"
#include "kernels/gpu/ptx/wgmma.cuh"

enum { ROW_BYTES = 128, WARPS = 8, MOST_VALUES = 128 };

/* The constants of an entry. */
typedef struct conv_tile { int format, m, n, stages; } conv_tile;

/* Columns of a warpgroup's products. */
INLINE constexpr int wave_cols(const conv_tile s) { return s.m == 64 ? s.n / 2 : s.n; }
INLINE constexpr int stage_bytes(const conv_tile s) { return (s.m + s.n) * ROW_BYTES; }

/* Where a tile begins. */
typedef struct conv_unit { int group, output, image, line, col; } conv_unit;

INLINE conv_unit unit_of(const conv_wgmma_arguments *g, const conv_tile s, int number) {
    conv_unit u;
    const int m = number % g->tiles_m, x = number / g->tiles_m, y = x / g->tiles_x, b = y / g->tiles_y;
    u.output = m * s.m;
    u.col = (x - y * g->tiles_x) * g->box_cols;
    u.line = (y - b * g->tiles_y) * g->box_lines;
    u.group = b / g->tiles_b;
    u.image = (b - u.group * g->tiles_b) * g->box_images;
    return u;
}

/* ---- loads: one thread ---- */

INLINE void load_units(const conv_wgmma_arguments *g, const conv_tile s, uint32_t data, ring_barriers ring) {
    const tensor_map *map_w = (const tensor_map *)g->map_w, *map_x = (const tensor_map *)g->map_x;
    const uint32_t bytes = (s.m + g->box_cols * g->box_lines * g->box_images) * ROW_BYTES;
    ring_turn at = ring_writer();
    for (int number = blockIdx.x; number < g->units; number += gridDim.x) {
        const conv_unit u = unit_of(g, s, number);
        for (int segment = 0; segment < g->segments; segment++) {
            const int line = segment / g->line_segments, col = u.col + (segment - line * g->line_segments) * g->step_x;
            for (int block = 0; block < g->blocks; block++) {
                const uint32_t w = data + at.stage * stage_bytes(s), x = w + s.m * ROW_BYTES;
                ring_wait_empty(ring, at);
                const uint32_t full = ring_expect_full(ring, at, bytes);
                tma_load_3d(w, map_w, full, block * CONV_K, segment, u.group * g->outputs + u.output, TMA_EVICT_NORMAL);
                tma_load_5d(x, map_x, full, block * CONV_K, col, u.line, line, u.group * g->batches + u.image, TMA_EVICT_NORMAL);
                ring_next(&at, s.stages);
            }
        }
    }
}

/* ---- products: two warpgroups ---- */

INLINE void multiply(const conv_tile s, float *d, uint64_t a, uint64_t b, int accumulate) {
    if (wave_cols(s) == 256 && s.format == CUDA_bf16) wgmma_n256_bf16(d, a, b, accumulate);
    if (wave_cols(s) == 256 && s.format == CUDA_f16) wgmma_n256_f16(d, a, b, accumulate);
    if (wave_cols(s) == 128 && s.format == CUDA_bf16) wgmma_n128_bf16(d, a, b, accumulate);
    if (wave_cols(s) == 128 && s.format == CUDA_f16) wgmma_n128_f16(d, a, b, accumulate);
}

/* All of k of a tile; one block's group is in flight behind the one that is issued. */
INLINE void multiply_unit(const conv_wgmma_arguments *g, const conv_tile s, uint32_t data, ring_barriers ring, ring_turn *at, int group, float *sums) {
    const int count = g->segments * g->blocks, a_row = s.m == 64 ? 0 : group * 64, b_row = s.m + (s.m == 64 ? group * wave_cols(s) : 0);
    ring_turn behind = *at;
#pragma unroll 1
    for (int block = 0; block < count; block++) {
        const uint32_t stage = data + at->stage * stage_bytes(s);
        const uint64_t a = wgmma_descriptor(stage + a_row * ROW_BYTES), b = wgmma_descriptor(stage + b_row * ROW_BYTES);
        ring_wait_full(ring, *at);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++) multiply(s, sums, a + 2 * step, b + 2 * step, step > 0 || block > 0);
        wgmma_commit();
        ring_next(at, s.stages);
        wgmma_wait(1);
        if (block == 0) continue;
        if (threadIdx.x % 32 == 0) ring_arrive_empty(ring, behind);
        ring_next(&behind, s.stages);
    }
    wgmma_wait(0);
    if (threadIdx.x % 32 == 0) ring_arrive_empty(ring, behind);
}

/* ---- results ---- */

INLINE uint32_t pack_pair(const int format, float low, float high) { return format == CUDA_bf16 ? cvt_bf16x2(low, high) : cvt_f16x2(low, high); }

/* 16 rows of 128 columns of a warp, with their bias, into its staging. */
INLINE void stage_results(const int format, uint32_t staging, const float *sums, const float *bias) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = staging + lane / 4 * CONV_STAGED_PITCH + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < CONV_STAGED_COLS / 8; i++) {
        st_shared_u32(at + 16 * i, pack_pair(format, sums[4 * i] + bias[0], sums[4 * i + 1] + bias[0]));
        st_shared_u32(at + 8 * CONV_STAGED_PITCH + 16 * i, pack_pair(format, sums[4 * i + 2] + bias[1], sums[4 * i + 3] + bias[1]));
    }
}

/* The rows that are outputs, from column first of the tile on, of which valid are places: so many at a time as lie side by side for certain. */
INLINE void store_staged(const conv_wgmma_arguments *g, const conv_unit *u, const int run, uint32_t staging, int output, int first, int valid) {
    const int plane = g->places_x * g->places_y, chunks = CONV_STAGED_COLS / run;
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < 16 * chunks; i += 32) {
        const int row = i / chunks, col = i % chunks * run, place = first + col, image = g->box_images > 1 ? place / plane : 0;
        if (output + row >= g->outputs || place >= valid) continue;
        const int64_t at = ((int64_t)(u->image + image) * g->groups * g->outputs + u->group * g->outputs + output + row) * plane + u->line * g->places_x + u->col + place - image * plane;
        const uint32_t from = staging + row * CONV_STAGED_PITCH + col * 2;
        if (run == 8) *(uint4 *)(g->out.data + at * 2) = ld_shared_u32x4(from);
        else if (run == 2) *(uint32_t *)(g->out.data + at * 2) = ld_shared_u32(from);
        else *(uint16_t *)(g->out.data + at * 2) = (uint16_t)(ld_shared_u32(from & ~3u) >> (from & 2) * 8);
    }
}

INLINE float bias_of(const conv_wgmma_arguments *g, const int format, const conv_unit *u, int output) {
    if (!g->has_bias || output >= g->outputs) return 0;
    const uint16_t half = ((const uint16_t *)g->bias.data)[(u->group * g->outputs + output) * g->bias_step];
    return format == CUDA_bf16 ? __uint_as_float((uint32_t)half << 16) : cvt_f32_f16(half);
}

INLINE void store_unit(const conv_wgmma_arguments *g, const conv_tile s, const conv_unit *u, uint32_t staging, int group, const float *sums) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, output = u->output + (s.m == 64 ? 0 : group * 64) + warp * 16, first = s.m == 64 ? group * wave_cols(s) : 0;
    const int valid = min(g->box_images, g->batches - u->image) * min(g->box_lines, g->places_y - u->line) * min(g->box_cols, g->places_x - u->col);
    const float bias[] = {bias_of(g, s.format, u, output + lane / 4), bias_of(g, s.format, u, output + lane / 4 + 8)};
    if (output >= g->outputs) return;
#pragma unroll
    for (int part = 0; part < wave_cols(s) / CONV_STAGED_COLS; part++) {
        __syncwarp();
        stage_results(s.format, staging, sums + part * (CONV_STAGED_COLS / 2), bias);
        __syncwarp();
        const int col = first + part * CONV_STAGED_COLS;
        if (g->run == 8) store_staged(g, u, 8, staging, output, col, valid);
        else if (g->run == 2) store_staged(g, u, 2, staging, output, col, valid);
        else store_staged(g, u, 1, staging, output, col, valid);
    }
}

INLINE void multiply_units(const conv_wgmma_arguments *g, const conv_tile s, uint32_t data, ring_barriers ring, int group) {
    const uint32_t staging = data + s.stages * stage_bytes(s) + (threadIdx.x / 32 - 4) * 16 * CONV_STAGED_PITCH;
    ring_turn at = ring_reader();
    for (int number = blockIdx.x; number < g->units; number += gridDim.x) {
        const conv_unit u = unit_of(g, s, number);
        float sums[MOST_VALUES];
        multiply_unit(g, s, data, ring, &at, group, sums);
        store_unit(g, s, &u, staging, group, sums);
    }
}

/* Rows of the stages that no box fills are multiplied, too, and go nowhere: they hold zeros, so that what they hold is known. */
INLINE void clear_rest(const conv_wgmma_arguments *g, const conv_tile s, uint32_t data) {
    const int rows = g->box_cols * g->box_lines * g->box_images, words = (s.n - rows) * (ROW_BYTES / 16);
    const uint4 zeros = {0, 0, 0, 0};
    for (int stage = 0; stage < s.stages; stage++)
        for (int i = threadIdx.x; i < words; i += CONV_WGMMA_THREADS) st_shared_u32x4(data + stage * stage_bytes(s) + (s.m + rows) * ROW_BYTES + i * 16, zeros);
    fence_proxy_async();
}

INLINE void convolve(const conv_wgmma_arguments *g, const conv_tile s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t data = shared_address(shared);
    const ring_barriers ring = ring_at(data + s.stages * stage_bytes(s) + CONV_STAGING_BYTES, s.stages);
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        ring_init(ring, s.stages, 1, WARPS);
        fence_mbarrier_init();
        tma_prefetch((const tensor_map *)g->map_w);
        tma_prefetch((const tensor_map *)g->map_x);
    }
    clear_rest(g, s, data);
    __syncthreads();
    grid_release();
    grid_wait();
    if (role == 0) {
        setmaxnreg_dec(40);
        if (threadIdx.x == 0) load_units(g, s, data, ring);
    } else {
        setmaxnreg_inc(232);
        multiply_units(g, s, data, ring, role - 1);
    }
}

#define ENTRY(name, tile_format, tile_m, tile_n, tile_stages)                                                                                  \
    extern "C" __global__ void __launch_bounds__(CONV_WGMMA_THREADS, 1) name(const __grid_constant__ conv_wgmma_arguments arguments) {         \
        constexpr conv_tile s = {tile_format, tile_m, tile_n, tile_stages};                                                                    \
        convolve(&arguments, s);                                                                                                               \
    }
#define CONV_TILE(name, m, n, stages, ...) ENTRY(conv_bf16_##name, CUDA_bf16, m, n, stages) ENTRY(conv_f16_##name, CUDA_f16, m, n, stages)
#include "kernels/conv/wgmma.def"
#undef CONV_TILE
