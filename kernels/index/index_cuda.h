/* The arguments of the GPU kernels that read and write at places named by integer tensors. */
#ifndef KERNELS_INDEX_CUDA_H
#define KERNELS_INDEX_CUDA_H

#include "kernels/gpu/arguments.h"

enum { INDEX_MOST = 8 };

typedef struct read_arguments {
    cuda_nest nest;               /* out, x, then each index tensor */
    cuda_array out, x, index[INDEX_MOST];
    int64_t sizes[INDEX_MOST], strides[INDEX_MOST];   /* of the axes of x that they name */
    int32_t indices;
    cuda_fault_place fault;
} read_arguments;

/* Elements that indices name one by one: eight side by side of the result a thread, and the same of LOOK_UP_REPEATS steps of an axis along which those indices repeat that differ from element to element. */
enum { LOOK_UP_INDICES = 2, LOOK_UP_REPEATS = 4 };
typedef struct look_up_arguments {
    cuda_nest nest;               /* out, x, then each index tensor: of vectors, without that axis */
    cuda_array out, x, index[LOOK_UP_INDICES];
    int64_t sizes[LOOK_UP_INDICES], strides[LOOK_UP_INDICES];   /* of the axes of x that they name */
    int64_t x_step, steps[LOOK_UP_INDICES];                     /* from element to element; 0: one index for all eight */
    int64_t repeats, repeat_steps[2 + LOOK_UP_INDICES];         /* of that axis; 1: there is none */
    int32_t indices;
    int32_t in_pairs[LOOK_UP_INDICES];                          /* i64 side by side at multiples of 16 bytes */
    cuda_fault_place fault;
} look_up_arguments;

/* Each item of items writes to other elements than every other; the places of one are written in order. */
typedef struct write_arguments {
    cuda_nest items;              /* out, values, then each index tensor */
    cuda_nest places;             /* the same */
    cuda_array out, values, index[INDEX_MOST];
    int64_t sizes[INDEX_MOST], strides[INDEX_MOST];   /* of the axes of out */
    int32_t indices, accumulate;
    cuda_fault_place fault;
} write_arguments;

/* Where the elements that a place adds to begin, and its values; and its combination of indices, UINT32_MAX where one lies outside. */
typedef struct index_place { int64_t to, values; uint32_t key, unused; } index_place;

/* The same for all places together. Of those that write to one element the last stays, whose number is found first; of sums the first place adds up all that have its combination of indices. */
typedef struct place_arguments {
    write_arguments write;        /* of words: strides of out and values are those of words of 16 bytes */
    uint64_t last;                /* uint32, for each combination of indices: number + 1 of the last place that has it, of sums the count of places less the number of the first; zeros at first */
    uint64_t counts;              /* of sums: uint32, how many places have it; zeros at first */
    uint64_t places;              /* of sums: index_place, for each place */
    int32_t in_words;
} place_arguments;

#endif
