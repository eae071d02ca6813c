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
