/* A few bytes from place to place: what the kernels (move.cu, pieces.cu) are given. */
#ifndef KERNELS_MOVE_PIECES_H
#define KERNELS_MOVE_PIECES_H

#include "kernels/gpu/arguments.h"

enum { PIECES = 64 };

/* words: of so many bytes, 16, 8, 4 or 1, which divide both addresses. */
typedef struct piece { uint64_t to, from; uint32_t words, word_bytes; } piece;
/* A block each. */
typedef struct piece_arguments { piece pieces[PIECES]; } piece_arguments;

#endif
