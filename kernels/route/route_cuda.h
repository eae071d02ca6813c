/* The arguments of the GPU routing kernels. */
#ifndef KERNELS_ROUTE_CUDA_H
#define KERNELS_ROUTE_CUDA_H

#include "kernels/common/cuda/arguments.h"

typedef struct dispatch_arguments {
    cuda_array ids, rows, place, offsets;
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
