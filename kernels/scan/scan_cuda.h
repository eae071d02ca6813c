/* The arguments of the GPU scans, sorts and counts. */
#ifndef KERNELS_SCAN_CUDA_H
#define KERNELS_SCAN_CUDA_H

#include "kernels/pointwise/chain_few.h"

typedef struct cumsum_arguments {
    cuda_nest nest;               /* lines: out, x */
    cuda_array out, x;
    int64_t count, out_step, x_step;
    int32_t exclusive;
} cumsum_arguments;

typedef struct order_arguments {
    cuda_nest nest;               /* lines: values, x, indices */
    cuda_array values, x, indices;
    int64_t count, length, values_step, x_step, indices_step;
    int32_t descending;
} order_arguments;

/* topk whose values have steps: slot 0 is the value, slot 1 + i what step i makes of a thread's. */
enum { CHOOSE_OF_INDICES, CHOOSE_OF_X, CHOOSE_OF_Y, CHOOSE_OF_VALUES, CHOOSE_ARRAYS };   /* of the nest */
enum { CHOOSE_SLOTS = 1 + CHAIN_STEPS, CHOOSE_LENGTH = 32 };
typedef struct choose_arguments {
    cuda_nest nest;               /* lines */
    cuda_array values, x, y, indices;
    int64_t values_step, x_step, y_step, indices_step;
    int32_t count, length, results;   /* elements of a line of x, of the indices and of the values, which are 1 or as many */
    int32_t descending;
    int32_t by_softmax;           /* a line of x is its softmax */
    int32_t y_is_x;               /* the values are those of that line */
    int32_t steps;
    few_code codes[CHAIN_STEPS];
} choose_arguments;

/* By warps (topk_rows.cu, choose_rows.cu): lines of so many elements at most, of which so many are asked for. */
enum { TOPK_COUNT = 512, TOPK_LENGTH = 32 };

/* In tiles (scan_blocks.cu). */
enum { SORT_TILE = 4096, SORT_THREADS = 512, SORT_PAIR_BYTES = 12 };

typedef struct sort_arguments {
    cuda_nest nest;               /* lines: values, x, indices */
    cuda_array values, x, indices;
    int64_t values_step, x_step, indices_step;
    int64_t count;                /* elements of a line, or pairs that a round before left */
    int64_t tiles;                /* of a line; 1: several lines may share a tile, */
    int64_t segment;              /* each in so many pairs, a power of 2 */
    int64_t kept;                 /* pairs of a tile that go on, or elements of the result */
    int64_t size, stride;         /* of a step */
    uint64_t from_keys, from_places;   /* 0: x */
    uint64_t to_keys, to_places;  /* 0: the result */
    int32_t descending;
    int32_t alternates;           /* every other tile descends, as what merges them wants */
} sort_arguments;

typedef struct bincount_arguments {
    cuda_nest nest;               /* x */
    cuda_array out, x;
    int64_t length, out_step;
} bincount_arguments;

#endif
