/* The arguments of the GPU quantisers, and what norms use of them. */
#ifndef KERNELS_QUANTIZE_CUDA_H
#define KERNELS_QUANTIZE_CUDA_H

#include "kernels/gpu/arguments.h"

enum { QUANTIZE_PARTS = 256 };    /* partial maxima of a tensor */

typedef struct quantize_arguments {
    cuda_nest nest;               /* rows of x, of all matrices */
    cuda_array x;
    cuda_rows out;
    uint64_t partial;             /* int32 [QUANTIZE_PARTS]: bits of the largest magnitudes of parts of x; where one scale serves the tensor */
    cuda_array given;             /* the second level, when it is an operand */
    float level;                  /* it, when it is a number; else 0 */
    int64_t x_step, rows, cols;   /* rows of all matrices */
    int64_t row_blocks, col_blocks;   /* of a matrix */
    int32_t element_bits, floors, searches, has_given, over_tensor;
} quantize_arguments;

typedef struct clear_arguments { uint64_t bytes; int64_t count; } clear_arguments;

enum { DEQUANTIZE_WIDTH = 16 };   /* elements of a thread of dequantize_vectors.cu: no block has fewer columns */

typedef struct dequantize_arguments {
    cuda_nest nest;               /* out, by rows */
    cuda_array out;
    cuda_rows x;
    int64_t rows, cols, out_step;
} dequantize_arguments;

#endif
