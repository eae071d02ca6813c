/* Tiles whose blocks of k are several blocks' or pairs': how the sums of their parts come together. Each warp for results has 32 rows of the tile, and knows nothing of other warps.
 *
 *   sums of a part there -> counted as computed -> not the last of the tile's parts: tmem -> registers -> workspace -> counted as lying there
 *                                               -> the last one: until all others lie there; the sum of all parts in ascending order of k -> tmem, and the epilogue as of a whole tile
 *
 * Which part comes last differs from run to run, the order in which sums are added does not: so results are the same bits in each. Who waits does so for parts that are computed already and are on
 * their way to memory, never for a block that has not begun; and it leaves the counters as it found them, zeros. Where parts begin: tile.cuh.
 * Where the next tile's sums share columns with these, those columns go to registers first, and are handed back: so the next products wait neither until sums are written nor until others' are added. */
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

/* A warp's sums, in tensor memory but for those of shared columns, which are the tile's last ones where results are computed downwards, else its first. */
typedef struct parts_sums { uint32_t tmem; bool downwards; sums_ahead ahead; } parts_sums;

INLINE constexpr bool keeps_ahead(const tiles_shape s) { return parts_ahead(s) > 0 && !s.swapped; }

/* Is part number i of the columns from col on in registers: as number i of the tile's first ones, or as one of its last, which are counted from the end? */
INLINE constexpr int from_end(const tiles_shape s, const int i) { return join_columns(s) / TILES_PART - 1 - i; }
INLINE bool is_first(const tiles_shape s, const parts_sums *sums, int col, const int i) { return keeps_ahead(s) && i < parts_ahead(s) && !sums->downwards && col == 0; }
INLINE bool is_last(const tiles_shape s, const parts_sums *sums, int col, const int i) {
    return keeps_ahead(s) && from_end(s, i) < parts_ahead(s) && sums->downwards && col == s.n - join_columns(s);
}

INLINE void copy_to_words(uint32_t *words, const float *x) {
#pragma unroll
    for (int i = 0; i < TILES_PART; i++) words[i] = __float_as_uint(x[i]);
}

INLINE void copy_part(float *to, const float *x) {
#pragma unroll
    for (int i = 0; i < TILES_PART; i++) to[i] = x[i];
}

/* The columns from col on; of swapped operands those of there that a tile multiplies. */
INLINE void load_columns(const tiles_shape s, int there, const parts_sums *sums, int col, uint32_t *raw) {
#pragma unroll
    for (int i = 0; i < join_columns(s) / TILES_PART; i++) {
        if (is_first(s, sums, col, i)) copy_to_words(raw + TILES_PART * i, sums->ahead.x[i % MOST_AHEAD]);
        else if (is_last(s, sums, col, i)) copy_to_words(raw + TILES_PART * i, sums->ahead.x[from_end(s, i) % MOST_AHEAD]);
        else if (TILES_PART * i < there) tmem_load_x16(raw + TILES_PART * i, sums->tmem + col + TILES_PART * i);
    }
    tmem_wait_load_of(raw, join_columns(s));
}

/* The sums of all parts, to where those of one were. */
INLINE void store_columns_back(const tiles_shape s, int there, parts_sums *sums, int col, const float *values) {
#pragma unroll
    for (int i = 0; i < join_columns(s) / TILES_PART; i++) {
        if (is_first(s, sums, col, i)) copy_part(sums->ahead.x[i % MOST_AHEAD], values + TILES_PART * i);
        else if (is_last(s, sums, col, i)) copy_part(sums->ahead.x[from_end(s, i) % MOST_AHEAD], values + TILES_PART * i);
        else if (TILES_PART * i < there) tmem_store_x16(sums->tmem + col + TILES_PART * i, values + TILES_PART * i);
    }
}

/* Of the columns from col on, as many as join_columns, those that a tile multiplies. */
INLINE int columns_there(const tiles_shape s, int columns, int col) { return s.swapped ? columns - col : join_columns(s); }

INLINE void write_part(const tiles_shape s, int columns, const parts_sums *sums, uint4 *to) {
    const int count = join_columns(s);
    uint32_t raw[64];
#pragma unroll 1
    for (int col = 0; col < columns; col += count) {
        const int there = columns_there(s, columns, col);
        load_columns(s, there, sums, col, raw);
#pragma unroll
        for (int i = 0; i < count / 4; i++)
            if (4 * i < there) to[(col / 4 + i) * 32] = make_uint4(raw[4 * i], raw[4 * i + 1], raw[4 * i + 2], raw[4 * i + 3]);
    }
}

/* own: the range whose part is there. */
INLINE void add_parts(const matmul_tiles_arguments *g, const tiles_shape s, parts_sums *sums, int first, int last, int own, int side, int rank, int warp) {
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
                load_columns(s, there, sums, col, raw);
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
        store_columns_back(s, there, sums, col, values);
    }
    tmem_wait_store();
}

/* A warp's sums of a unit, or of the part of it that this block has. true: those of the whole unit are there; false: another one stores the results, and release was told. */
INLINE bool join_parts(const matmul_tiles_arguments *g, const tiles_shape s, const tiles_place *p, const tiles_turn *turn, int warp, parts_sums *sums, uint32_t release) {
    const bool halves = g->epilogue.halving >= 0;
    const matmul_parts *parts = &g->parts;
    const int own = own_range(s), begin = turn->unit * g->blocks;
    const bool is_leader = threadIdx.x % 32 == 0;
    if (!s.swapped) sums->ahead = load_ahead(s, sums->tmem, (halves ? s.n / 2 : s.n) / TILES_PART, halves, sums->downwards, true, release);
    if (turn->from == 0 && turn->upto == g->blocks) return true;
    const int first = range_of(parts, begin), last = range_of(parts, begin + g->blocks - 1);
    uint32_t *computed = (uint32_t *)parts->counters + (((turn->unit * s.pairs + p->side) * s.pair + p->rank) * 4 + warp) * 2, *written = computed + 1, before = 0;
    if (is_leader) before = atom_add_relaxed(computed, 1);
    before = __shfl_sync(0xffffffff, before, 0);
    if (before < last - first) {
        write_part(s, tile_columns(g, s), sums, part_of_range(g, s, own, own == first, p->side, p->rank, warp));
        if (!keeps_ahead(s)) release_sums(release);
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
