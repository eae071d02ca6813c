/* e4m3 by e4m3 on Hopper with fp32 scales, of a by 1 x 128 and of b by 128 x 128. The entries of tiles.def. */
#include "kernels/gemm/wgmma/tma.cuh"

#define MATMUL_TILE_SCALED(name, parts, tile_m, tile_n, stages, boxes, pair, splits, block_us, tile_us) \
    MATMUL_TMA(matmul_e4m3_block_##name, TMA_E4M3, tile_m, tile_n, stages, boxes, pair, splits, parts)
#define MATMUL_GROUPS_SCALED(name, parts, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) \
    MATMUL_TMA_GROUPS(matmul_e4m3_block_##name, TMA_E4M3, tile_m, tile_n, stages, boxes, pair, parts)
#define MATMUL_BLOCKS_SCALED(name, parts, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) \
    MATMUL_TMA_BLOCKS(matmul_e4m3_block_##name, TMA_E4M3, tile_m, tile_n, stages, boxes, pair, parts)
#include "kernels/gemm/wgmma/tiles.def"
