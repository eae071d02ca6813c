/* The arguments of the kernels of chains on GPUs. */
#ifndef KERNELS_CHAIN_CUDA_H
#define KERNELS_CHAIN_CUDA_H

#include <stdalign.h>

#include "kernels/pointwise/pointwise_cuda.h"

enum { CHAIN_STEPS = 16, CHAIN_OPERANDS = 8, CHAIN_READS = 3 };

/* ---- any format, lying in any way (pointwise.cu): the steps as they are, each by the function of its op ---- */

enum { CHAIN_WIDTH = 4 };     /* elements of a thread */

enum { CHAIN_OPERAND, CHAIN_RESULT, CHAIN_NUMBER };                                  /* what a step reads, as op_chain_kind */
enum { CHAIN_FLOAT, CHAIN_DOUBLE, CHAIN_INTEGER, CHAIN_CAST, CHAIN_WHERE };          /* how it is computed */

typedef struct chain_read {
    uint8_t kind, index;
    uint8_t format, element_bytes;
    uint32_t unused;
    uint64_t number;              /* an int64, or the bits of a double or a float */
} chain_read;
typedef struct chain_step {
    chain_read in[CHAIN_READS];
    uint8_t function, by, is_bool, count;
    uint8_t format, element_bytes, unused[2];
} chain_step;

typedef struct chain_arguments {
    cuda_nest nest;               /* the result, then the operands */
    cuda_array out, in[CHAIN_OPERANDS];
    cuda_fault_place fault;
    int32_t operands, count;
    chain_step steps[CHAIN_STEPS];
} chain_arguments;

/* ---- vectors of eight elements (chain_vectors.cu, chain_packed.cu, chain_tiles.cu): instructions of a machine with one accumulator and slots ---- */

enum { CHAIN_VECTORS = 2, CHAIN_PACKED = 4 };   /* of a thread; in chain_packed.cu */
enum { CHAIN_PACKED_BLOCKS = 2 };               /* of chain_packed.cu a multiprocessor */

/* What an instruction reads. */
enum { CHAIN_FROM_NOTHING, CHAIN_FROM_NUMBER, CHAIN_FROM_OPERAND, CHAIN_FROM_SLOT, CHAIN_FROM_ACCUMULATOR };

/* accumulator = function(accumulator, y); rounded; kept. Functions beside POINTWISE_*, of which POINTWISE_COUNT is the accumulator itself. */
enum {
    CHAIN_LOAD = POINTWISE_COUNT + 1,   /* y */
    CHAIN_SELECT,                       /* accumulator != 0 ? y : z */
    CHAIN_ADD_NUMBER,                   /* accumulator + y_number, y unread; the most frequent ones have the shortest way */
    CHAIN_MUL_NUMBER
};
typedef struct chain_code {
    uint8_t function, y, y_index;
    uint8_t keep;                 /* in slot keep - 1; 0: nowhere */
    uint8_t rounds;               /* to this format; CUDA_f32: not at all */
    uint8_t z, z_index;
    uint8_t is_wide;              /* y_number is not rounded to the format of packed values */
    float y_number, z_number;
} chain_code;

enum { CHAIN_CODES = 2 * CHAIN_STEPS };   /* two a step at the most: a load or a change of sign, and the function */

/* How an operand's eight elements lie: one for all, side by side at a multiple of 16 bytes, step apart, or step apart along lines that vectors cross;
 * of tiles: in a slot before the program runs. */
enum { CHAIN_REPEATS, CHAIN_DENSE, CHAIN_APART, CHAIN_ACROSS, CHAIN_HELD };

typedef struct chain_vector_arguments {
    cuda_nest nest;               /* of vectors, or of elements where vectors cross from row to row: the result, then the operands */
    cuda_array out, in[CHAIN_OPERANDS];
    int64_t steps[CHAIN_OPERANDS];
    uint8_t lies[CHAIN_OPERANDS];
    int32_t operands, count;
    int32_t crosses;              /* vectors cross from row to row of a result that lies in one line */
    int64_t vectors;
    int64_t elements;             /* of a space that is one line, or whose result lies in one, whose last vector may be short */
    alignas(16) chain_code codes[CHAIN_CODES];
} chain_vector_arguments;

/* ---- tiles of vectors (chain_tiles.cu): columns along the last axis, rows along the one where operands lie side by side that do not along the last ---- */

enum { CHAIN_TILE_BITS = 12, CHAIN_MOST_ROWS = 6, CHAIN_LEAST_ROWS = 4 };   /* logarithms: of a tile's elements, and of its rows */

/* An operand whose tile comes to the slot of the same number before the program runs. */
typedef struct chain_hold {
    uint8_t operand;
    uint8_t by_rows;              /* neighbouring lanes read neighbouring rows, else columns */
    uint8_t width;                /* elements of a column that come at a time, in 4 bytes: 1 or 2 */
    uint8_t unused;
} chain_hold;

typedef struct chain_tile_arguments {
    chain_vector_arguments chain; /* nest: axes outside of the tiles; vectors: as many as they have */
    int64_t rows, cols;
    int64_t row_steps[1 + CHAIN_OPERANDS], col_steps[1 + CHAIN_OPERANDS];   /* the result, then the operands */
    chain_hold holds[CHAIN_OPERANDS];
    int32_t hold_count;
    int32_t in_vectors;           /* the result's rows are of whole vectors at multiples of 16 bytes */
} chain_tile_arguments;

#endif
