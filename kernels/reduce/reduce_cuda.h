/* The arguments of the GPU reductions. */
#ifndef KERNELS_REDUCE_CUDA_H
#define KERNELS_REDUCE_CUDA_H

#include "kernels/gpu/arguments.h"

enum { REDUCE_sum, REDUCE_mean, REDUCE_prod, REDUCE_amax, REDUCE_amin, REDUCE_any, REDUCE_all, REDUCE_argmax, REDUCE_argmin };

typedef struct reduce_arguments {
    cuda_nest outer;              /* out, x: one item a result */
    cuda_nest inner;              /* x: what goes into one */
    cuda_array out, x;
    int32_t function;
    int32_t together;             /* a block works on each result; else a thread does */
    int32_t finite;               /* of an index: the attribute */
} reduce_arguments;

/* In vectors (reduce_vectors.cu). A block has a tile of columns, of which a group of threads reads a piece each. */
enum { REDUCE_LANES = 8, REDUCE_GROUPS = CUDA_THREADS / REDUCE_LANES, REDUCE_TILE = REDUCE_LANES * CUDA_VECTOR, REDUCE_RESIDENT = 2 /* blocks that a multiprocessor has registers for */ };
typedef struct reduce_vector_arguments {
    cuda_nest outer;              /* out, x: one item a result */
    cuda_nest inner;              /* x: what goes into one; of rows one axis, side by side */
    cuda_array out, x;
    int64_t length;               /* elements that go into a result */
    int64_t part, splits;         /* of them at once; how many parts a result has */
    uint64_t partial;             /* of rows double[splits][results]; then, of indices, int64[splits][results]; of columns double[tiles][splits][REDUCE_TILE] */
    uint32_t *counters;           /* of each tile of columns: the parts that have come */
    int32_t function;
    int32_t group;                /* threads of a row: a warp, or all of a block */
    int32_t finite;               /* of an index: the attribute */
} reduce_vector_arguments;

#endif
