/* Copies between tensors of any strides, where 16 bytes lie side by side in both, and transposes through tiles in shared memory where elements do in neither the same
 * axis:
 *
 *     from [rows, cols], a warp reads 32 columns of a row -> smem [64][32 + 1] words -> a warp writes 32 rows of a column, to [cols, rows]
 *
 * Elements of 2 bytes go through in pairs, so that a warp moves 128 bytes at a time, where both sides lie in pairs. Resources: 8 or 17 KiB of shared memory. Speed:
 * README.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/move/move_cuda.h"
#include "kernels/move/pieces.cuh"

#define INLINE static __device__ __forceinline__

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) move_words(const __grid_constant__ copy_arguments arguments) {
    grid_release();
    grid_wait();
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[2];
        nest_offsets(&arguments.nest, i, 2, at);
        ((uint4 *)arguments.to.data)[at[0]] = ((const uint4 *)arguments.from.data)[at[1]];
    }
}

/* Behind launches that it need not wait for to begin. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS) move_pieces_early(const __grid_constant__ piece_arguments arguments) {
    grid_release();
    grid_wait();
    copy_piece(&arguments.pieces[blockIdx.x]);
}

/* Where a tile begins: element offsets of its matrices, and its first row and column. */
typedef struct tile_place { int64_t to, from, row, col; } tile_place;

INLINE tile_place place_tile(const tile_arguments *a, int64_t tile, int tile_cols) {
    int64_t per_matrix = (int64_t)a->row_tiles * a->col_tiles, matrix = tile / per_matrix, at[2];
    int inside = (int)(tile - matrix * per_matrix);
    nest_offsets(&a->nest, matrix, 2, at);
    tile_place p = {at[0], at[1], (int64_t)(inside / a->col_tiles) * TILE_ROWS, (int64_t)(inside % a->col_tiles) * tile_cols};
    return p;
}
INLINE int64_t tile_count(const tile_arguments *a) { return a->nest.count * a->row_tiles * a->col_tiles; }

enum { WARPS = CUDA_THREADS / 32 };

#define MOVE_TILES(name, type)                                                                                                               \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ tile_arguments arguments) {                      \
        __shared__ type held[TILE_ROWS][TILE_COLS + 1];                                                                                      \
        const tile_arguments *a = &arguments;                                                                                                \
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;                                                                          \
        grid_release();                                                                                                                      \
        grid_wait();                                                                                                                         \
        for (int64_t tile = blockIdx.x; tile < tile_count(a); tile += gridDim.x) {                                                           \
            tile_place p = place_tile(a, tile, TILE_COLS);                                                                                   \
            const type *from = (const type *)a->from.data + p.from;                                                                          \
            type *to = (type *)a->to.data + p.to, x[TILE_ROWS / WARPS];                                                                      \
            _Pragma("unroll") for (int k = 0; k < TILE_ROWS / WARPS; k++) {                                                                  \
                int64_t row = p.row + warp + k * WARPS, col = p.col + lane;                                                                  \
                x[k] = row < a->rows && col < a->cols ? from[row * a->from_row + col] : 0;                                                   \
            }                                                                                                                                \
            _Pragma("unroll") for (int k = 0; k < TILE_ROWS / WARPS; k++) held[warp + k * WARPS][lane] = x[k];                               \
            __syncthreads();                                                                                                                 \
            _Pragma("unroll") for (int k = 0; k < TILE_ROWS / WARPS; k++) {                                                                  \
                int inside = k % 2 * 32 + lane, of_tile = warp + k / 2 * WARPS;                                                              \
                int64_t row = p.row + inside, col = p.col + of_tile;                                                                         \
                if (row < a->rows && col < a->cols) to[col * a->to_col + row] = held[inside][of_tile];                                       \
            }                                                                                                                                \
            __syncthreads();                                                                                                                 \
        }                                                                                                                                    \
    }
MOVE_TILES(move_tiles_1, uint8_t)
MOVE_TILES(move_tiles_2, uint16_t)
MOVE_TILES(move_tiles_4, uint32_t)
MOVE_TILES(move_tiles_8, uint64_t)

/* Elements of 2 bytes; rows, columns and all strides are even. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS) move_tiles_pairs(const __grid_constant__ tile_arguments arguments) {
    __shared__ uint32_t held[TILE_ROWS][TILE_COLS + 1];
    const tile_arguments *a = &arguments;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    grid_release();
    grid_wait();
    for (int64_t tile = blockIdx.x; tile < tile_count(a); tile += gridDim.x) {
        tile_place p = place_tile(a, tile, 2 * TILE_COLS);
        const uint16_t *from = (const uint16_t *)a->from.data + p.from;
        uint16_t *to = (uint16_t *)a->to.data + p.to;
        uint32_t x[TILE_ROWS / WARPS];
#pragma unroll
        for (int k = 0; k < TILE_ROWS / WARPS; k++) {
            int64_t row = p.row + warp + k * WARPS, col = p.col + 2 * lane;
            x[k] = row < a->rows && col < a->cols ? *(const uint32_t *)(from + row * a->from_row + col) : 0;
        }
#pragma unroll
        for (int k = 0; k < TILE_ROWS / WARPS; k++) held[warp + k * WARPS][lane] = x[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE_COLS / WARPS; k++) {
            int pair = warp + k * WARPS;
            int64_t row = p.row + 2 * lane, col = p.col + 2 * pair;
            uint32_t even = held[2 * lane][pair], odd = held[2 * lane + 1][pair];
            if (row >= a->rows || col >= a->cols) continue;
            *(uint32_t *)(to + col * a->to_col + row) = __byte_perm(even, odd, 0x5410);
            *(uint32_t *)(to + (col + 1) * a->to_col + row) = __byte_perm(even, odd, 0x7632);
        }
        __syncthreads();
    }
}
