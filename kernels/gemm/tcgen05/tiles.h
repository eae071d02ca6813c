/* The arguments of the tiles of tiles.def, and the places in shared and tensor memory that their two halves agree on. Plain C that nvcc takes, too. */
#ifndef KERNELS_GEMM_TCGEN05_TILES_H
#define KERNELS_GEMM_TCGEN05_TILES_H

#include "kernels/gemm/arguments.h"

/* Rows that a block multiplies; bytes of k in a stage; warps in front of those for results: one each for operands, products, scales and the schedule. */
enum { TILES_ROWS = 128, TILES_ROW_BYTES = 128, TILES_OTHER_WARPS = 4 };
/* A tile of scales: 128 rows by 4 scales of a byte. A box of results: 32 rows by 128 bytes. Where none are staged and steps may join columns: room for what warps tell each other. */
enum { TILES_SCALE_TILE = 512, TILES_BOX_BYTES = 4096, TILES_EXCHANGE_BYTES = 2048, TILES_SHARED_BYTES = 227 * 1024, TILES_MOST_STAGES = 12 };
/* What the second block of a pair hands over to the first one, where a step joins their columns: for each warp so many places of 16 rows by 32 columns, fp32, and two barriers each (swap.cuh). */
enum { TILES_HANDS = 2, TILES_HAND_BYTES = 16 * 32 * 4 };
/* Scales by block of k, which threads bring: slots of so many blocks of k, and slots. */
enum { TILES_SLOT_BLOCKS = 4, TILES_SLOTS = 3 };
/* Units that are asked for, or published, ahead; groups that a published tile counts to. */
enum { TILES_CLAIMS = 3, TILES_MOST_GROUPS = 1 << 24 };

/* Formulas, of numbers that device code knows when it is compiled. */
#ifdef __CUDACC__
#define TILES_FORMULA static constexpr __host__ __device__ __forceinline__
#else
#define TILES_FORMULA static inline
#endif

/* A row of tiles.def. scale_tiles: tiles of scales of 128 rows of a stage: 0 without scales, 1 of mxfp8, 2 of mxfp4, 4 of nvfp4. promotes: 1: each block of k has sums of its own, which threads
 * multiply by its scales and add up (promote.cuh). */
typedef struct tiles_sizes { int pair, n, boxes, scale_tiles, promotes; } tiles_sizes;

/* Warps for results: a row is a thread's, or where sums of blocks of k are added in registers the halves of one are two threads'. */
TILES_FORMULA int tiles_store_warps(const tiles_sizes s) { return s.promotes ? 8 : 4; }
TILES_FORMULA int tiles_threads(const tiles_sizes s) { return 32 * (TILES_OTHER_WARPS + tiles_store_warps(s)); }
/* Columns of a tile that are sure to have one scale by block of k: none of them lie in two blocks of 128 columns, as both halves of a tile begin at multiples of so many. */
TILES_FORMULA int tiles_part_columns(const tiles_sizes s) { return s.n >= 128 ? 64 : s.n / 2; }
/* A slot: scales of the block's rows, and of the parts of the tile's columns, of TILES_SLOT_BLOCKS blocks of k each. */
TILES_FORMULA int tiles_slot_bytes(const tiles_sizes s) { return (TILES_ROWS + s.n / tiles_part_columns(s)) * TILES_SLOT_BLOCKS * 4; }

/* Of swapped operands with scales: are the columns that a step joins a pair's two blocks'? The stages of these leave room for what is handed over. */
TILES_FORMULA int tiles_hands_over(const tiles_sizes s) { return s.boxes == 0 && s.scale_tiles > 0 && s.pair > 1 && s.n == 256; }

/* ---- shared memory ---- */

/* Of b, tiles of 128 rows that hold the scales of a tile's columns, which begin at a multiple of n. */
TILES_FORMULA int tiles_b_scale_tiles(const tiles_sizes s) { return (s.n + 127) / 128; }
/* A stage of a block: a [128, 128 B], b [n / pair, 128 B], each swizzled by 128 bytes; tiles of scales: of a [scale_tiles], of all columns of b [tiles_b_scale_tiles][scale_tiles]. A multiple of
 * 1024 bytes. */
TILES_FORMULA int tiles_operand_bytes(const tiles_sizes s) { return (TILES_ROWS + s.n / s.pair) * TILES_ROW_BYTES; }
TILES_FORMULA int tiles_scale_bytes(const tiles_sizes s) { return (1 + tiles_b_scale_tiles(s)) * s.scale_tiles * TILES_SCALE_TILE; }
TILES_FORMULA int tiles_stage_bytes(const tiles_sizes s) { return (tiles_operand_bytes(s) + tiles_scale_bytes(s) + 1023) / 1024 * 1024; }
/* Behind the stages: boxes of results; slots of scales, and two barriers each; claims, 16 bytes and two barriers each; three barriers a stage (full, empty, scales there), four of the sums; the address
 * of tensor memory. */
TILES_FORMULA int tiles_staging_bytes(const tiles_sizes s) {
    if (s.boxes > 0) return tiles_store_warps(s) * s.boxes * TILES_BOX_BYTES;
    return s.scale_tiles == 0 ? TILES_EXCHANGE_BYTES : tiles_hands_over(s) ? tiles_store_warps(s) * TILES_HANDS * (TILES_HAND_BYTES + 16) : 0;
}
TILES_FORMULA int tiles_slots_bytes(const tiles_sizes s) { return s.promotes ? TILES_SLOTS * (tiles_slot_bytes(s) + 16) : 0; }
TILES_FORMULA int tiles_barrier_bytes(int stages) { return TILES_CLAIMS * 32 + stages * 24 + 4 * 8 + 16; }
/* As many as there is room for. */
TILES_FORMULA int tiles_stages(const tiles_sizes s) {
    const int room = TILES_SHARED_BYTES - tiles_staging_bytes(s) - tiles_slots_bytes(s) - tiles_barrier_bytes(TILES_MOST_STAGES), fit = room / tiles_stage_bytes(s);
    return fit < TILES_MOST_STAGES ? fit : TILES_MOST_STAGES;
}
TILES_FORMULA int tiles_shared_bytes(const tiles_sizes s) { return tiles_stages(s) * tiles_stage_bytes(s) + tiles_staging_bytes(s) + tiles_slots_bytes(s) + tiles_barrier_bytes(tiles_stages(s)); }

/* ---- columns of tensor memory ----
 *
 * Those of a tile's sums twice, where they and the scales fit; else the two overlap in as many columns as the scales take, in whole parts. Scales of one stage: of a 4 columns a tile, of b 4
 * for each 128 columns and tile.
 *
 *   two whole      [sums 0: n][sums 1: n][scales]
 *   overlapping    [sums 0: n             ]
 *                             [sums 1: n             ][scales]     results of shared columns are loaded first: of sums 0 from the end on, of sums 1 from the beginning */
enum { TILES_TMEM = 512, TILES_PART = 16 };
TILES_FORMULA int tiles_scale_columns(const tiles_sizes s) { return (1 + tiles_b_scale_tiles(s)) * s.scale_tiles * 4; }
TILES_FORMULA int tiles_overlap(const tiles_sizes s) {
    return 2 * s.n + tiles_scale_columns(s) <= TILES_TMEM ? 0 : (tiles_scale_columns(s) + TILES_PART - 1) / TILES_PART * TILES_PART;
}
TILES_FORMULA int tiles_second_sums(const tiles_sizes s) { return s.n - tiles_overlap(s); }
TILES_FORMULA int tiles_scales_at(const tiles_sizes s) { return tiles_second_sums(s) + s.n; }
TILES_FORMULA int tiles_used_columns(const tiles_sizes s) { return tiles_scales_at(s) + tiles_scale_columns(s); }
/* The power of two that is allocated. */
TILES_FORMULA int tiles_tmem_columns(const tiles_sizes s) {
    int columns = 32;
    while (columns < tiles_used_columns(s)) columns *= 2;
    return columns;
}

/* Units whose blocks of k are divided into ranges, one for each block or pair, or for two pairs side by side, or for the first of them: the first `units` (divide.h). Ranges have share blocks of k, the first
 * `longer` ones one more. sums: in the workspace, the fp32 sums of parts [ranges][2][pairs][pair][4 warps][n / 4][32 lanes][4]: of a range first the part of the unit that it begins in, then that of
 * the unit that it ends in. counters: zeros in front of the launch and behind it [units][pairs][pair][4 warps][2]: how many parts are computed, and how many of them lie in sums. */
typedef struct matmul_parts {
    uint64_t sums, counters;
    int32_t units, share, longer, unused;
} matmul_parts;

/* out [m,n] = epilogue(a [m,k] b [n,k]^T). Maps: boxes of 128 bytes of k by 128 rows of a, and by the half of a tile's columns of b, bytes or elements of 16 bits; of results 128 bytes by 32
 * rows; of scales [tiles of 128 rows][tiles of a row][256 of 16 bits], boxes of scale_tiles tiles. With groups out's rows of
 * a group are those of a times its matrix of b [groups, n, k]; maps of b and its scales hold all matrices one below the other, and boxes of a have a_rows rows. */
typedef struct matmul_tiles_arguments {
    MATMUL_ALIGNED(128) uint64_t map_a[16];           /* tensor maps */
    uint64_t map_b[16], map_out[16], map_a_scales[16], map_b_scales[16];
    matmul_epilogue epilogue;
    int32_t m, n;
    int32_t blocks;               /* of k: 128 bytes of a row each */
    int32_t units_m, units_n;     /* units of a column of the result and of a row: the tiles of a block, or of a pair */
    int32_t band;                 /* units are taken in bands so many of them high */
    uint32_t formats;             /* the instruction descriptor's types of a and b */
    int32_t scale_rows, scale_step;   /* of a result in blocks: rows that have scales, padded ones too; 0: scales lie plainly, else tiles of a row that lie in tiles of 128 x 4 */
    int32_t b_row_bytes;          /* of b's 128 bytes of a row in shared memory those that TMA counts: 128, or 64 of mxfp4 beside mxfp8 */
    int32_t a_rows;               /* rows of boxes of what groups divide: 16, 32, 64 or 128 */
    int32_t result_bits;          /* of an element of a result in blocks: 8 or 4 */
    float level;                  /* of a result in nvfp4: its second level, which is also stored at second */
    uint64_t second;
    int32_t columns;              /* of a tile of swapped operands: rows of a, rounded up to whole instructions; with groups each tile has its own. There m counts rows of (a matrix of) b, n those of a, and map_a is b's */
    uint64_t a_scales, b_scales;  /* fp32 by block of k: of rows of a, and of 128 columns of b; scale_stride: from a row of them to the next */
    int32_t scale_stride;
    int32_t told;                 /* a bit for each block of a pair: whom a commit of a stage is told to */
    int32_t claims;               /* 0: block or pair number i takes units i, i + their number, ..; 1: there is one for each unit, and those that run claim the units of those that were not launched yet */
    matmul_groups groups;         /* of the entries for groups */
    matmul_parts parts;           /* of the entries for parts */
} matmul_tiles_arguments;

#ifndef __CUDACC__
#include "kernel/kernel.h"
/* A tile for the bound (src/kernel/tiles.h), with so many steps in the post list; its raster is the caller's. */
kernel_tiles tcgen05_tiles(const tiles_sizes *s, bool swapped, int steps);
/* Of the units that are computed at a time, the height at which they read the fewest rows of a and b. */
int64_t tcgen05_band(const tiles_sizes *s, int64_t units_m, int64_t units_n, int64_t at_a_time);
/* Does the tile run a step that joins columns c and c + half, where there is one? */
bool tcgen05_tile_runs(const tiles_sizes *s, bool halves, int64_t half);
/* The same of one whose operands are swapped: with scales, which come for 128 rows together, the halves are a pair's two blocks'. */
bool tcgen05_swapped_runs(const tiles_sizes *s, bool parts, bool halves, int64_t half);
#endif

#endif
