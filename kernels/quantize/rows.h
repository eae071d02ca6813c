/* Rows in block formats at speed: the same bits as num_quantize_rows, for what is common; compiled once for each instruction set from rows_loops.h. */
#ifndef QUANTIZE_ROWS_H
#define QUANTIZE_ROWS_H

#include "chip/chip.h"
#include "num/num.h"
#include "op/op.h"

/* One row of a matrix in the plain scale layout. */
typedef struct quantize_row {
    dw_format format;
    const float *x;
    int64_t cols;
    num_scaling scaling;
    uint8_t *data;
    void *scales;
    float *second;
} quantize_row;

/* false: nothing was decided, num_quantize_rows has to do it. So it is for NaN and infinities, ragged blocks, and FP6. */
typedef bool (*quantize_row_function)(const quantize_row *row);

bool quantize_row_portable(const quantize_row *row);
#if defined(__x86_64__)
bool quantize_row_avx2(const quantize_row *row);
bool quantize_row_avx512(const quantize_row *row);
#endif

/* The best that the chip has. */
quantize_row_function quantize_row_of(const chip_caps *chip);
/* What it takes all threads of a CPU to quantise elements that they have at hand. */
double quantize_rows_seconds(const chip_caps *chip, dw_format to, num_round round, int64_t elements);
/* Zeroes the scales of a result whose scales lie in tiles: rows do not write what pads them. */
void quantize_clear_tiles(const dw_tensor *out);
/* x, elements side by side, becomes that row of out, a matrix of a row-wise format (rows of all batches counted through): what num_quantize_rows does. */
void quantize_one_row(quantize_row_function fast, const float *x, const num_scaling *scaling, const num_matrix *out, int64_t row);

#endif
