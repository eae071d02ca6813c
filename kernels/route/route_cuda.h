/* The arguments of the GPU routing kernels. */
#ifndef KERNELS_ROUTE_CUDA_H
#define KERNELS_ROUTE_CUDA_H

#include "kernels/gpu/arguments.h"

/* In blocks (route_blocks.cu): ids of a block, its threads, and the most experts that its shared memory has counts for. */
enum { DISPATCH_CHUNK = 4096, DISPATCH_THREADS = 512, DISPATCH_EXPERTS = 1024 };
#define DISPATCH_SHARED_BYTES(experts) ((DISPATCH_THREADS / 32 + 1) * ((experts) + 1) * 4)

typedef struct dispatch_arguments {
    cuda_array ids, rows, place, offsets;
    uint64_t counts;              /* of each chunk, in blocks, where there is more than one: uint32 [chunks][experts + 1] */
    int64_t tokens, choices, experts;
    int64_t ids_token, ids_choice, rows_step, place_token, place_choice, offsets_step;
} dispatch_arguments;

typedef struct combine_arguments {
    cuda_array out, y, place, weights;
    int64_t tokens, cols, choices, y_rows;
    int64_t out_token, out_col, y_row, y_col, place_token, place_choice, weights_token, weights_choice;
    cuda_fault_place fault;
} combine_arguments;

#endif
