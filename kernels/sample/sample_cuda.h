/* The arguments of the GPU kernels of sample. */
#ifndef KERNELS_SAMPLE_CUDA_H
#define KERNELS_SAMPLE_CUDA_H

#include "kernels/gpu/arguments.h"

/* By clusters (sample_cluster.cu): threads of a block, which has a multiprocessor to itself; blocks that share a row at most; ids that a block keeps at most; and what it needs of shared memory beside them. */
enum { SAMPLE_CLUSTER_THREADS = 1024, SAMPLE_CLUSTER_BLOCKS = 8, SAMPLE_CLUSTER_MOST = 1 << 17, SAMPLE_CLUSTER_ROOM = 16 << 10 };

typedef struct sample_arguments {
    cuda_array logits, settings, draw;
    cuda_array row, counts, bias, mask;           /* data 0: absent */
    cuda_array ids, logs, best_ids, best_logs;
    int64_t rows, count, length, picked_rows, mask_words;
    int32_t chunk, kept;                          /* ids of a block of a cluster, and those that it keeps at most; multiples of 8 */
} sample_arguments;

typedef struct tally_arguments {
    cuda_array counts, ids, row;
    int64_t count, rows, cols;                    /* ids; of counts */
} tally_arguments;

#endif
