/* Tiles whose blocks of k are several blocks' or pairs': how the sums of their parts come together. Each warp for results has 32 rows of the tile, and knows nothing of other warps.
 *
 *   sums of a part there -> counted as computed -> not the last of the tile's parts: tmem -> registers -> workspace -> counted as lying there
 *                                               -> the last one: until all others lie there; the sum of all parts in ascending order of k -> tmem, and the epilogue as of a whole tile
 *
 * Which part comes last differs from run to run, the order in which sums are added does not: so results are the same bits in each. Who waits does so for parts that are computed already and are on
 * their way to memory, never for a block that has not begun; and it leaves the counters as it found them, zeros. Where parts begin: tile.cuh. */
#ifndef KERNELS_GEMM_TCGEN05_PARTS_CUH
#define KERNELS_GEMM_TCGEN05_PARTS_CUH

#include "kernels/gpu/ptx/global.cuh"
#include "kernels/gemm/tcgen05/tile.cuh"

/* Columns that are added at a time: as many words of each thread are on their way from memory. */
INLINE constexpr int join_columns(const tiles_shape s) { return s.n < 64 ? s.n : 64; }

/* The warp's sums of a range's part, in the workspace: its lane's first word of 4 columns; the next 4 are 32 words on. is_first: it is the unit's first part. */
INLINE uint4 *part_of_range(const matmul_tiles_arguments *g, const tiles_shape s, int range, bool is_first, int side, int rank, int warp) {
    const int64_t place = (((2 * range + is_first) * s.pairs + side) * s.pair + rank) * 4 + warp;
    return (uint4 *)g->parts.sums + place * (s.n / 4 * 32) + threadIdx.x % 32;
}

/* Of count columns those of there that a tile multiplies: of swapped operands perhaps fewer. */
INLINE void load_columns(const int count, int there, uint32_t sums, uint32_t *raw) {
#pragma unroll
    for (int i = 0; i < count; i += 16)
        if (i < there) tmem_load_x16(raw + i, sums + i);
    tmem_wait_load_of(raw, count);
}

/* Of the columns from col on, as many as join_columns, those that a tile multiplies. */
INLINE int columns_there(const tiles_shape s, int columns, int col) { return s.swapped ? columns - col : join_columns(s); }

INLINE void write_part(const tiles_shape s, int columns, uint32_t sums, uint4 *to) {
    const int count = join_columns(s);
    uint32_t raw[64];
#pragma unroll 1
    for (int col = 0; col < columns; col += count) {
        const int there = columns_there(s, columns, col);
        load_columns(count, there, sums + col, raw);
#pragma unroll
        for (int i = 0; i < count / 4; i++)
            if (4 * i < there) to[(col / 4 + i) * 32] = make_uint4(raw[4 * i], raw[4 * i + 1], raw[4 * i + 2], raw[4 * i + 3]);
    }
}

/* own: the range whose part lies in tensor memory. */
INLINE void add_parts(const matmul_tiles_arguments *g, const tiles_shape s, uint32_t sums, int first, int last, int own, int side, int rank, int warp) {
    const int count = join_columns(s), columns = tile_columns(g, s);
    float values[64];
    uint32_t raw[64];
#pragma unroll 1
    for (int col = 0; col < columns; col += count) {
        const int there = columns_there(s, columns, col);
#pragma unroll
        for (int i = 0; i < count; i++) values[i] = 0;
#pragma unroll 1
        for (int range = first; range <= last; range++) {
            const uint4 *from = part_of_range(g, s, range, range == first, side, rank, warp) + col / 4 * 32;
            if (range == own) {
                load_columns(count, there, sums + col, raw);
            } else {
#pragma unroll
                for (int i = 0; i < count / 4; i++) {
                    if (4 * i >= there) continue;
                    const uint4 word = from[i * 32];
                    raw[4 * i] = word.x, raw[4 * i + 1] = word.y, raw[4 * i + 2] = word.z, raw[4 * i + 3] = word.w;
                }
            }
#pragma unroll
            for (int i = 0; i < count; i++) values[i] += __uint_as_float(raw[i]);
        }
#pragma unroll
        for (int i = 0; i < count; i += 16)
            if (i < there) tmem_store_x16(sums + col + i, values + i);
    }
    tmem_wait_store();
}

/* A warp's sums of a unit, or of the part of it that this block has. true: those of the whole unit lie in tensor memory; false: another one stores the results, and release was told. */
INLINE bool join_parts(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p, const tiles_turn *turn, int warp, uint32_t sums, uint32_t release) {
    const matmul_parts *parts = &g->parts;
    const int own = own_range(s), begin = turn->unit * g->blocks;
    const bool is_leader = threadIdx.x % 32 == 0;
    if (turn->from == 0 && turn->upto == g->blocks) return true;
    const int first = range_of(parts, begin), last = range_of(parts, begin + g->blocks - 1);
    uint32_t *computed = (uint32_t *)parts->counters + (((turn->unit * s.pairs + p->side) * s.pair + p->rank) * 4 + warp) * 2, *written = computed + 1, before = 0;
    if (is_leader) before = atom_add_relaxed(computed, 1);
    before = __shfl_sync(0xffffffff, before, 0);
    if (before < last - first) {
        write_part(s, tile_columns(g, s), sums, part_of_range(g, s, own, own == first, p->side, p->rank, warp));
        release_sums(release);
        __syncwarp();
        if (is_leader) red_add_release(written, 1);
        return false;
    }
    if (is_leader)
        while (ld_acquire(written) < last - first) continue;
    if (is_leader) *(uint2 *)computed = make_uint2(0, 0);   /* the next launch's, as all have counted */
    __syncwarp();
    add_parts(g, s, sums, first, last, own, p->side, p->rank, warp);
    return true;
}

#endif
