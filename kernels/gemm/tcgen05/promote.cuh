/* e4m3 with fp32 scales by block of 128 of k: a's for each row, b's for 128 columns each. The matrix instructions know no such scales, so each block of k has sums of its own in tensor memory, of
 * which there are two, in turns: while the products of one are under way, threads multiply those of the other by both scales and add them up in registers.
 *
 *   warp 2         slots: scales of four blocks of k of the block's rows and of the tile's columns, by cp.async                    -> scale_slots
 *   warps 4 to 11  scale_slots, sums_full -> tmem -> registers += scales * sums -> sums_empty .. -> tmem, as another kind's sums -> epilogue
 *
 * A row is two threads', of warps w and w + 4. Each has two spans of n / 4 columns: side by side, or, where a step joins columns c and c + n / 2, n / 2 apart, so that a thread has both. */
#ifndef KERNELS_GEMM_TCGEN05_PROMOTE_CUH
#define KERNELS_GEMM_TCGEN05_PROMOTE_CUH

#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gpu/ptx/tcgen05.cuh"
#include "kernels/gemm/tcgen05/tile.cuh"

/* ---- warp 2: scales ---- */

/* Scales of one row, or of one part of the columns, for the blocks of k of a slot: floats from from on, of which valid are there; in_quads: all four lie in memory, side by side at a multiple of 16
 * bytes. */
INLINE void load_quad(uint32_t to, const float *from, int valid, bool in_quads) {
    if (in_quads) {
        cp_async(to, from, 16, 16);
        return;
    }
#pragma unroll
    for (int i = 0; i < TILES_SLOT_BLOCKS; i++)
        if (i < valid) cp_async(to + 4 * i, from + i, 4, 4);
}

/* The row of b's scales that part number part of the tile's columns has. Columns behind the last are not stored, whatever their scale. */
INLINE int part_scales(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_tile *tile, int part) {
    const int column = part * tiles_part_columns(s.sizes), at = column < s.n / 2 ? tile->col + column : tile->up + column - s.n / 2;
    return min(at, g->n - 1) / 128 + (s.groups ? (tile->group - g->groups.first) * ceil_div(g->n, 128) : 0);
}

INLINE uint32_t slot_at(const tiles_place *p, const tiles_shape s, int slot) { return p->slots + slot * tiles_slot_bytes(s.sizes); }

INLINE void load_block_scales(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p) {
    const float *a = (const float *)g->a_scales, *b = (const float *)g->b_scales;
    const int lane = threadIdx.x % 32, parts = s.n / tiles_part_columns(s.sizes);
    const bool in_quads = g->scale_stride % TILES_SLOT_BLOCKS == 0 && (g->a_scales | g->b_scales) % 16 == 0;
    ring_turn turn = ring_writer();
    tiles_turn at;
    for (bool more = first_turn(g, s, p, &at); more; more = next_turn(g, s, p, &at)) {
        const tiles_tile tile = tile_at(g, s, &at, p, p->rank);
        const float *columns = b + (int64_t)part_scales(g, s, &tile, lane % parts) * g->scale_stride;
#pragma unroll 1
        for (int block = 0; block < g->blocks; block += TILES_SLOT_BLOCKS) {
            const uint32_t slot = slot_at(p, s, turn.stage);
            ring_wait_empty(p->scale_slots, turn);
#pragma unroll 1
            for (int row = lane; row < TILES_ROWS; row += 32)
                load_quad(slot + row * 16, a + (int64_t)min(tile.row + row, g->m - 1) * g->scale_stride + block, g->blocks - block, in_quads);
            if (lane < parts) load_quad(slot + (TILES_ROWS + lane) * 16, columns + block, g->blocks - block, in_quads);
            cp_async_arrive(ring_full(p->scale_slots, turn.stage));
            ring_next(&turn, TILES_SLOTS);
        }
    }
}

/* ---- warps 4 to 11: sums ---- */

/* Columns that are loaded at a time, and the thread's of a tile. */
INLINE constexpr int promote_chunk(const tiles_shape s) { return s.n / 4 < 32 ? s.n / 4 : 32; }
INLINE constexpr int promote_columns(const tiles_shape s) { return s.n / 2; }
enum { PROMOTE_MOST = 128 };

/* First column of a thread's chunk number i. group: of the two warps that have the row. */
INLINE int promote_column(const tiles_shape s, bool halves, int group, int i) {
    const int span = s.n / 4, at = i * promote_chunk(s);
    return (halves ? at / span * (s.n / 2) + group * span : group * (s.n / 2) + at / span * span) + at % span;
}

INLINE void load_chunk(const tiles_shape s, uint32_t sums, uint32_t *raw) {
#pragma unroll
    for (int i = 0; i < promote_chunk(s); i += 16) tmem_load_x16(raw + i, sums + i);
}

/* A thread's turns in the rings of sums and of slots of scales. */
typedef struct promote_turns { ring_turn sums, slots; int second; } promote_turns;

/* One block of k. sums: of the thread's row; scales: of the block of k, the row's and from parts on those of columns. release: told behind the last load; 0: the sums are kept. */
INLINE void promote_block(const tiles_shape s, bool halves, int group, uint32_t sums, uint32_t row_scale, uint32_t parts, uint32_t release, float *values) {
    const float row = ld_shared_f32(row_scale);
    uint32_t raw[2][32];
    const int chunk = promote_chunk(s), chunks = promote_columns(s) / chunk;
    load_chunk(s, sums + promote_column(s, halves, group, 0), raw[0]);
#pragma unroll
    for (int i = 0; i < chunks; i++) {
        const int column = promote_column(s, halves, group, i);
        const float factor = row * ld_shared_f32(parts + column / tiles_part_columns(s.sizes) * 16);
        tmem_wait_load_of(raw[i % 2], chunk);
        if (i + 1 < chunks) load_chunk(s, sums + promote_column(s, halves, group, i + 1), raw[(i + 1) % 2]);
        else release_sums(release);
#pragma unroll
        for (int k = 0; k < chunk; k++) values[i * chunk + k] = fmaf(factor, __uint_as_float(raw[i % 2][k]), values[i * chunk + k]);
    }
}

/* All blocks of k of a tile. The sums then lie where those of the last block lay: their address. */
INLINE uint32_t promote_tile(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p, int warp, promote_turns *turns) {
    const bool halves = g->epilogue.halving >= 0;
    const int group = warp / 4, row = warp % 4 * 32 + threadIdx.x % 32;
    float values[PROMOTE_MOST];
    uint32_t sums = 0;
#pragma unroll
    for (int i = 0; i < promote_columns(s); i++) values[i] = 0;
#pragma unroll 1
    for (int block = 0; block < g->blocks; block++) {
        const int quarter = block % TILES_SLOT_BLOCKS;
        const bool is_last = block == g->blocks - 1;
        const uint32_t slot = slot_at(p, s, turns->slots.stage) + quarter * 4;
        sums = p->tmem + (turns->second ? tiles_second_sums(s.sizes) : 0) + (warp % 4 * 32 << 16);
        if (quarter == 0) ring_wait_full(p->scale_slots, turns->slots);
        ring_wait_full(p->sums, turns->sums);
        tcgen05_fence_after();
        promote_block(s, halves, group, sums, slot + row * 16, slot + TILES_ROWS * 16, is_last ? 0 : counting(s, ring_empty(p->sums, turns->sums.stage)), values);
        if (quarter == TILES_SLOT_BLOCKS - 1 || is_last) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) ring_arrive_empty(p->scale_slots, turns->slots);
            ring_next(&turns->slots, TILES_SLOTS);
        }
        if (is_last) break;
        ring_next(&turns->sums, 2);
        turns->second ^= 1;
    }
#pragma unroll
    for (int i = 0; i < promote_columns(s); i += 16) tmem_store_x16(sums + promote_column(s, halves, group, i / promote_chunk(s)) + i % promote_chunk(s), values + i);
    tmem_wait_store();
    return sums;
}

#endif
