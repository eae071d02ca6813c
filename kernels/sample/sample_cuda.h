/* The arguments of the GPU kernels of sample. */
#ifndef KERNELS_SAMPLE_CUDA_H
#define KERNELS_SAMPLE_CUDA_H

#include "kernels/gpu/arguments.h"

typedef struct sample_arguments {
    cuda_array logits, settings, draw;
    cuda_array row, counts, bias, mask;           /* data 0: absent */
    cuda_array ids, logs, best_ids, best_logs;
    int64_t rows, count, length, picked_rows, mask_words;
} sample_arguments;

#endif
