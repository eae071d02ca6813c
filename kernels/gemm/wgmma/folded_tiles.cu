/* Tiles of mxfp8 by mxfp8 multiplied as they are: the entry of folded_tiles.cuh. */
#include "kernels/gemm/wgmma/folded_tiles.cuh"

extern "C" __global__ void __launch_bounds__(FOLDED_TILE_THREADS, 2) matmul_folded_tile(const __grid_constant__ matmul_folded_tiles_arguments arguments) { matmul_folded_tile_body(&arguments); }
