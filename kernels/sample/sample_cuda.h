/* The arguments of the GPU kernels of sample. */
#ifndef KERNELS_SAMPLE_CUDA_H
#define KERNELS_SAMPLE_CUDA_H

#include "kernels/gpu/arguments.h"

/* By clusters (sample_cluster.cu): threads of a block; blocks that share a row at most, and that a multiprocessor has registers for; ids of a block at most; and what it needs of shared memory beside its ids. */
enum { SAMPLE_CLUSTER_THREADS = 512, SAMPLE_CLUSTER_BLOCKS = 8, SAMPLE_CLUSTER_TOGETHER = 2, SAMPLE_CLUSTER_MOST = (1 << 16) - 8, SAMPLE_CLUSTER_ROOM = 12 << 10 };

typedef struct sample_arguments {
    cuda_array logits, settings, draw;
    cuda_array row, counts, bias, mask;           /* data 0: absent */
    cuda_array ids, logs, best_ids, best_logs;
    int64_t rows, count, length, picked_rows, mask_words;
    int32_t chunk;                                /* ids of a block of a cluster, a multiple of 4 */
} sample_arguments;

#endif
