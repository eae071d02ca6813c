/* One piece by one block. All its words are on their way at once: they may come from the host's memory, which is a microsecond away. */
#ifndef KERNELS_MOVE_PIECES_CUH
#define KERNELS_MOVE_PIECES_CUH

#include "kernels/gpu/plain/device.cuh"
#include "kernels/move/pieces.h"

typedef struct __align__(16) piece_word { uint64_t low, high; } piece_word;

DEVICE void copy_piece(const piece *p) {
    for (uint32_t i = threadIdx.x; i < p->words; i += blockDim.x) {
        if (p->word_bytes == 16) ((piece_word *)p->to)[i] = ((const piece_word *)p->from)[i];
        else if (p->word_bytes == 8) ((uint64_t *)p->to)[i] = ((const uint64_t *)p->from)[i];
        else if (p->word_bytes == 4) ((uint32_t *)p->to)[i] = ((const uint32_t *)p->from)[i];
        else ((uint8_t *)p->to)[i] = ((const uint8_t *)p->from)[i];
    }
}

#endif
