/* The end of a product whose weights were decoded: pieces of a tile's sums through factors and post list to results, a warp each. */
#ifndef KERNELS_GEMM_WGMMA_DECODED_PIECES_CUH
#define KERNELS_GEMM_WGMMA_DECODED_PIECES_CUH

#include "kernels/gemm/wgmma/decoded.h"
#include "kernels/gemm/wgmma/store.cuh"

enum { PIECES_ACROSS = DECODED_ROWS / DECODED_PIECE };

/* First row of a; first columns of its two halves within the tile, and of the first one in the result. Of columns that a step joins half are of either half of the tile. */
typedef struct decoded_piece { int row, first, other, col; } decoded_piece;

INLINE decoded_piece piece_of(const matmul_epilogue *e, int tile_col, int number) {
    const bool halves = e->halving >= 0;
    decoded_piece piece;
    piece.row = number / PIECES_ACROSS * DECODED_PIECE;
    piece.first = number % PIECES_ACROSS * (halves ? DECODED_PIECE / 2 : DECODED_PIECE);
    piece.other = halves ? piece.first + DECODED_ROWS / 2 : piece.first + DECODED_PIECE / 2;
    piece.col = tile_col + piece.first;
    return piece;
}

/* values 4 j + 2 i + e: of row lane / 4 + 8 i, column 2 (lane % 4) + e of half j. */
INLINE void finish_piece(const matmul_epilogue *e, const decoded_piece *piece, float values[8], int m, int n) {
    const bool halves = e->halving >= 0;
    const int lane = threadIdx.x % 32, row = piece->row + lane / 4, col = piece->col + lane % 4 * 2, end = halves ? e->half : n, jump = halves ? e->half - DECODED_PIECE / 2 : 0;
    apply_factors(e, 8, values, row, col, jump, m, n);
    apply_steps(e, 0, 8, values, row, col, jump, m, n);
    store_pairs(e, 4, values, row, col, m, end);
    if (!halves) store_pairs(e, 4, values + 4, row, col + DECODED_PIECE / 2, m, end);
}

#endif
