/* Results on their way to global memory by boxes of 32 rows by 128 bytes: each warp stages its own rows in shared memory, and the copy engine stores them. */
#ifndef KERNELS_GEMM_TCGEN05_STORE_CUH
#define KERNELS_GEMM_TCGEN05_STORE_CUH

#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/gemm/tcgen05/epilogue.cuh"
#include "kernels/gemm/tcgen05/tiles.h"

/* A warp's boxes are taken in turn; lane 0 issues all stores, and waits for them. count is a constant of the entry: 1 or 2. */
typedef struct store_boxes {
    int count, next;
    uint32_t place;               /* of the warp's boxes, smem */
} store_boxes;

/* Are a tile's results whole boxes of a result that a tensor map describes? */
INLINE bool store_is_staged(const matmul_epilogue *e, int columns) { return e->by_tma && columns % (e->out_format == MATMUL_f32 ? 32 : 64) == 0; }

/* The box that is filled next, once the last store has read it. */
INLINE void store_begin_box(store_boxes *boxes) {
    boxes->next = boxes->next + 1 < boxes->count ? boxes->next + 1 : 0;
    if (threadIdx.x % 32 == 0) {
        if (boxes->count == 1) tma_wait_read(0);
        else tma_wait_read(1);
    }
    __syncwarp();
}

/* 16 columns of a lane's row, number part of the box's, swizzled as the map of out is: 16 bytes number c of row r lie at c xor r % 8. */
INLINE void store_stage(const int format, uint32_t box, int part, const float *values) {
    const int lane = threadIdx.x % 32, count = row_words(format == MATMUL_f32 ? 4 : 2);
    uint4 words[row_words(4)];
    row_pack(format, values, words);
#pragma unroll
    for (int i = 0; i < count; i++) st_shared_u32x4(box + lane * 128 + ((part * count + i) ^ lane % 8) * 16, words[i]);
}

/* Part number turn of a tile, in the order in which they come: its results of columns [part * 16, part * 16 + 16), from column col of out and the warp's first row on. The parts of a
 * box come one after the other, in either direction. */
INLINE void store_part(const matmul_epilogue *e, const tensor_map *map, store_boxes *boxes, const float *values, int turn, int part, int row, int col) {
    const int each = e->out_format == MATMUL_f32 ? 2 : 4;
    if (turn % each == 0) store_begin_box(boxes);
    const uint32_t box = boxes->place + boxes->next * TILES_BOX_BYTES;
    if (e->out_format == MATMUL_f32) store_stage(MATMUL_f32, box, part % each, values);
    else if (e->out_format == MATMUL_bf16) store_stage(MATMUL_bf16, box, part % each, values);
    else store_stage(MATMUL_f16, box, part % each, values);
    if (turn % each != each - 1) return;
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    tma_store_2d(map, box, col + part / each * each * TCGEN05_CHUNK, row);
    tma_commit();
}

#endif
