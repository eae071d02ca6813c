/* Tiles by wgmma of one element format: the entries of tiles.def, by the constants of the image's row: ENTRIES: their names are matmul_<ENTRIES>_..; ELEMENT: one of tile.cuh; and which
 * tiles they are: HALF: bf16 by bf16 or f16 by f16, with fp32 sums; TURNED: the same of a [k,m], b [k,n] or both, and of rows in groups with b [k,n]; BYTE: e4m3 by e4m3, brought to fp32 every 128 of k, where factors of rows, columns and tensors are the epilogue's;
 * SCALED: e4m3 with fp32 scales, of a by 1 x 128 and of b by 128 x 128. */
#include "kernels/gemm/wgmma/tma.cuh"

#define JOIN(entries, name) matmul_##entries##_##name
#define NAMED(entries, name) JOIN(entries, name)

#if defined(HALF)
#define MATMUL_TILE_HALF(name, tile_m, tile_n, stages, boxes, pair, splits, ...) MATMUL_TMA_ENTRY(NAMED(ENTRIES, name), ELEMENT, tile_m, tile_n, stages, boxes, pair, splits, 0, 0, 0, 0, 0, 0)
#define MATMUL_TURNS_HALF(name, tile_m, tile_n, stages, boxes, pair, ...) MATMUL_TMA_ENTRY(NAMED(ENTRIES, name), ELEMENT, tile_m, tile_n, stages, boxes, pair, 1, 0, 0, 0, 1, 0, 0)
#define MATMUL_GROUPS_HALF(name, tile_m, tile_n, stages, boxes, pair, ...) MATMUL_TMA_ENTRY(NAMED(ENTRIES, name##_groups), ELEMENT, tile_m, tile_n, stages, boxes, pair, 1, 0, 1, 0, 0, 0, 0)
#elif defined(TURNED)
#define MATMUL_TURNED_HALF(name, a_turned, b_turned, tile_m, tile_n, stages, boxes, pair, splits, ...) \
    MATMUL_TMA_ENTRY(NAMED(ENTRIES, name), ELEMENT, tile_m, tile_n, stages, boxes, pair, splits, 0, 0, 0, 0, a_turned, b_turned)
#define MATMUL_GROUPS_TURNED(name, tile_m, tile_n, stages, boxes, pair, ...) MATMUL_TMA_ENTRY(NAMED(ENTRIES, name##_groups), ELEMENT, tile_m, tile_n, stages, boxes, pair, 1, 0, 1, 0, 0, 0, 1)
#elif defined(BYTE)
#define MATMUL_TILE_BYTE(name, tile_m, tile_n, stages, boxes, pair, splits, ...) MATMUL_TMA_ENTRY(NAMED(ENTRIES, name), ELEMENT, tile_m, tile_n, stages, boxes, pair, splits, 0, 0, 0, 0, 0, 0)
#define MATMUL_GROUPS_BYTE(name, tile_m, tile_n, stages, boxes, pair, ...) MATMUL_TMA_ENTRY(NAMED(ENTRIES, name##_groups), ELEMENT, tile_m, tile_n, stages, boxes, pair, 1, 0, 1, 0, 0, 0, 0)
#define MATMUL_BLOCKS_BYTE(name, tile_m, tile_n, stages, boxes, pair, ...) MATMUL_TMA_ENTRY(NAMED(ENTRIES, name##_blocks), ELEMENT, tile_m, tile_n, stages, boxes, pair, 1, 0, 0, 1, 0, 0, 0)
#elif defined(SCALED)
#define MATMUL_TILE_SCALED(name, parts, tile_m, tile_n, stages, boxes, pair, splits, ...) \
    MATMUL_TMA_ENTRY(NAMED(ENTRIES, name), ELEMENT, tile_m, tile_n, stages, boxes, pair, splits, parts, 0, 0, 0, 0, 0)
#define MATMUL_GROUPS_SCALED(name, parts, tile_m, tile_n, stages, boxes, pair, ...) \
    MATMUL_TMA_ENTRY(NAMED(ENTRIES, name##_groups), ELEMENT, tile_m, tile_n, stages, boxes, pair, 1, parts, 1, 0, 0, 0, 0)
#define MATMUL_BLOCKS_SCALED(name, parts, tile_m, tile_n, stages, boxes, pair, ...) \
    MATMUL_TMA_ENTRY(NAMED(ENTRIES, name##_blocks), ELEMENT, tile_m, tile_n, stages, boxes, pair, 1, parts, 0, 1, 0, 0, 0)
#endif
#include "kernels/gemm/wgmma/tiles.def"
