/* e4m3 by e4m3 on Hopper, brought to fp32 every 128 of k: factors of rows, columns and tensors are the epilogue's. The entries of tiles.def. */
#include "kernels/gemm/wgmma/tma.cuh"

#define MATMUL_TILE_BYTE(name, tile_m, tile_n, stages, boxes, pair, splits, block_us, tile_us) MATMUL_TMA(matmul_e4m3_##name, TMA_E4M3, tile_m, tile_n, stages, boxes, pair, splits, 0)
#define MATMUL_GROUPS_BYTE(name, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) MATMUL_TMA_GROUPS(matmul_e4m3_##name, TMA_E4M3, tile_m, tile_n, stages, boxes, pair, 0)
#define MATMUL_BLOCKS_BYTE(name, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) \
    MATMUL_TMA_BLOCKS(matmul_e4m3_##name, TMA_E4M3, tile_m, tile_n, stages, boxes, pair, 0)
#include "kernels/gemm/wgmma/tiles.def"
