/* The arguments of the kernels of chains on GPUs. */
#ifndef KERNELS_CHAIN_CUDA_H
#define KERNELS_CHAIN_CUDA_H

#include "kernels/pointwise/pointwise_cuda.h"

enum { CHAIN_STEPS = 16, CHAIN_OPERANDS = 8, CHAIN_READS = 3 };

/* ---- an element a thread (pointwise.cu): the steps as they are, each by the function of its op ---- */

enum { CHAIN_OPERAND, CHAIN_RESULT, CHAIN_NUMBER };                                  /* what a step reads, as op_chain_kind */
enum { CHAIN_FLOAT, CHAIN_DOUBLE, CHAIN_INTEGER, CHAIN_CAST, CHAIN_WHERE };          /* how it is computed */

typedef struct chain_read {
    uint8_t kind, index;
    uint8_t format, element_bytes;
    uint32_t unused;
    uint64_t number;              /* the bits of an element */
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

/* ---- eight elements a thread (chain_vectors.cu): instructions of a machine with one accumulator and slots ---- */

/* What an instruction reads. */
enum { CHAIN_FROM_NOTHING, CHAIN_FROM_NUMBER, CHAIN_FROM_OPERAND, CHAIN_FROM_SLOT, CHAIN_FROM_ACCUMULATOR };

/* accumulator = function(accumulator, y), or of (y, accumulator) where swapped; rounded; kept. Functions beside POINTWISE_*: */
enum { CHAIN_LOAD = POINTWISE_COUNT + 1, CHAIN_SELECT };   /* y; accumulator != 0 ? y : z. POINTWISE_COUNT: the accumulator itself */
typedef struct chain_code {
    uint8_t function, swapped;
    uint8_t rounds;               /* to this format; CUDA_f32: not at all */
    uint8_t keep;                 /* in slot keep - 1; 0: nowhere */
    uint8_t y, y_index, z, z_index;
    float y_number, z_number;
} chain_code;

enum { CHAIN_CODES = 3 * CHAIN_STEPS };   /* a load before, and a rounding behind each step, at the most */

/* How an operand's eight elements lie: one for all, side by side at a multiple of 16 bytes, or step apart. */
enum { CHAIN_REPEATS, CHAIN_DENSE, CHAIN_APART };

typedef struct chain_vector_arguments {
    cuda_nest nest;               /* of vectors: the result, then the operands */
    cuda_array out, in[CHAIN_OPERANDS];
    int64_t steps[CHAIN_OPERANDS];
    uint8_t lies[CHAIN_OPERANDS];
    int32_t operands, count;
    int64_t elements;             /* of a nest of one axis, whose last vector may be short */
    chain_code codes[CHAIN_CODES];
} chain_vector_arguments;

#endif
