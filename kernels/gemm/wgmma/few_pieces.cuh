/* The end of a product of few rows: pieces of a tile's sums through factors and post list to results, a warp each. */
#ifndef KERNELS_GEMM_WGMMA_FEW_PIECES_CUH
#define KERNELS_GEMM_WGMMA_FEW_PIECES_CUH

#include "kernels/gemm/wgmma/few.h"
#include "kernels/gemm/wgmma/store.cuh"

enum { PIECES_ACROSS = FEW_ROWS / FEW_PIECE };

/* First row of a; first columns of its two halves within the tile, and of the first one in the result. Of columns that a step joins half are of either half of the tile. */
typedef struct few_piece { int row, first, other, col; } few_piece;

INLINE few_piece piece_of(const matmul_epilogue *e, int tile_col, int number) {
    const bool halves = e->halving >= 0;
    few_piece piece;
    piece.row = number / PIECES_ACROSS * FEW_PIECE;
    piece.first = number % PIECES_ACROSS * (halves ? FEW_PIECE / 2 : FEW_PIECE);
    piece.other = halves ? piece.first + FEW_ROWS / 2 : piece.first + FEW_PIECE / 2;
    piece.col = tile_col + piece.first;
    return piece;
}

/* values 4 j + 2 i + e: of row lane / 4 + 8 i, column 2 (lane % 4) + e of half j. */
INLINE void finish_piece(const matmul_epilogue *e, const few_piece *piece, float values[8], int m, int n) {
    const bool halves = e->halving >= 0;
    const int lane = threadIdx.x % 32, row = piece->row + lane / 4, col = piece->col + lane % 4 * 2, end = halves ? e->half : n, jump = halves ? e->half - FEW_PIECE / 2 : 0;
    apply_factors(e, 8, values, row, col, jump, m, n);
    apply_steps(e, 0, 8, values, row, col, jump, m, n);
    store_pairs(e, 4, values, row, col, m, end);
    if (!halves) store_pairs(e, 4, values + 4, row, col + FEW_PIECE / 2, m, end);
}

#endif
