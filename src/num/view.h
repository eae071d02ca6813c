/* Matrices in a block format with the sizes that follow from the format: where block.c and quantize.c find things. */
#ifndef NUM_VIEW_H
#define NUM_VIEW_H

#include "num/num.h"

typedef struct num_view {
    const num_format *f;
    const num_matrix *m;
    size_t row_bytes;
    int64_t matrices, rows, cols;       /* a format with one scale over everything is one matrix */
    int64_t block_rows, block_cols;     /* a block that is the whole matrix or row may be empty */
    int64_t row_blocks, col_blocks;
    int64_t scale_rows, scale_cols;     /* of one matrix, as stored */
} num_view;

num_view num_view_of(const num_matrix *m);
/* Zeroes data and scales: the padding of what will be written. */
void num_view_clear(const num_view *v);

static inline int64_t num_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Index of a block's scale. */
static inline size_t num_view_scale(const num_view *v, int64_t matrix, int64_t row_block, int64_t col_block) {
    size_t first = (size_t)matrix * (size_t)v->scale_rows * (size_t)v->scale_cols;
    return first + num_scale_index(v->m->layout, row_block, col_block, v->scale_cols);
}

/* A row's data; row counts through all matrices. */
static inline uint8_t *num_view_row(const num_view *v, int64_t row) { return v->m->data + (size_t)row * v->row_bytes; }

#endif
