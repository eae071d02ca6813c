/* bf16 by bf16 with fp32 sums on Hopper: the entries of tiles.def. */
#include "kernels/gemm/wgmma/tma.cuh"

#define MATMUL_TILE_HALF(name, tile_m, tile_n, stages, boxes, pair, splits, block_us, tile_us) MATMUL_TMA(matmul_bf16_##name, TMA_BF16, tile_m, tile_n, stages, boxes, pair, splits, 0)
#define MATMUL_GROUPS_HALF(name, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) MATMUL_TMA_GROUPS(matmul_bf16_##name, TMA_BF16, tile_m, tile_n, stages, boxes, pair, 0)
#include "kernels/gemm/wgmma/tiles.def"
