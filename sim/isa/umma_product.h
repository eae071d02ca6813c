/* The arithmetic of tcgen05.mma: codes to numbers, and sums as the units are published to add (microsoft/MMA-Sim, arXiv 2511.10909). */
#ifndef SIM_ISA_UMMA_PRODUCT_H
#define SIM_ISA_UMMA_PRODUCT_H

#include "umma_descriptor.h"

enum { UMMA_MAX_ROWS = 256, UMMA_MAX_K = 128, UMMA_MAX_SCALES = 4 };

/* Numbers of A's rows (which 0), UMMA_MAX_K apart, or of B's columns (1), in panels (panel.h): of floats values and places, of integers and packed operands whole numbers
 * (twice the value of packed ones). Who fills it in writes each line's k codes, of its elements' own bits, and nan: the line has bytes that nobody wrote. */
typedef struct umma_numbers {
    uint32_t code[UMMA_MAX_ROWS][UMMA_MAX_K];
    uint64_t there[UMMA_MAX_ROWS][2];   /* of a sparse A: which columns a row has, 64 in each word; products of the others count for nothing */
    bool nan[UMMA_MAX_ROWS], finite[UMMA_MAX_ROWS], all_finite;
    int which;
    float value[UMMA_MAX_ROWS * UMMA_MAX_K];
    int16_t place[UMMA_MAX_ROWS * UMMA_MAX_K];
    int base[UMMA_MAX_ROWS];            /* of each row, or panel */
    int32_t whole[UMMA_MAX_ROWS * UMMA_MAX_K];
    int32_t scale_significand[UMMA_MAX_ROWS * UMMA_MAX_SCALES], scale_exponent[UMMA_MAX_ROWS * UMMA_MAX_SCALES];
} umma_numbers;

/* Thread-local storage. */
umma_numbers *umma_numbers_of(int which);
/* The line's scales, p->scales bytes; a NaN among them makes the line one. */
void umma_set_scales(umma_numbers *numbers, const umma_product *p, int line, const uint8_t *scales);
/* From codes to numbers: a row of A, and all columns of B, once scales are set. */
void umma_set_row(umma_numbers *numbers, const umma_product *p, int row);
void umma_set_columns(umma_numbers *numbers, const umma_product *p);
/* Row `row` of A times columns of B from `first` on, plus cells of D with its type: count of them, which become the results. */
void umma_sum_row(const umma_product *p, const umma_numbers *a, int row, const umma_numbers *b, int first, uint32_t *cells, int count);
/* A cell of D times 2^-scale. */
uint32_t umma_scaled(const umma_product *p, uint32_t c, int scale);

int umma_type_bits(umma_type type);

#endif
