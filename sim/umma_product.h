/* The arithmetic of tcgen05.mma: codes to numbers, and sums as the units are published to add (microsoft/MMA-Sim, arXiv 2511.10909). */
#ifndef SIM_UMMA_PRODUCT_H
#define SIM_UMMA_PRODUCT_H

#include "umma_descriptor.h"

enum { UMMA_MAX_ROWS = 256, UMMA_MAX_K = 128, UMMA_MAX_SCALES = 4 };

/* Numbers of A's rows or of B's columns, k each; from codes of each element's own bits. */
typedef struct umma_numbers umma_numbers;
/* Thread-local storage, one for A (which 0) and one for B. Nothing is set. */
umma_numbers *umma_numbers_of(int which, const umma_product *p);
/* Line r, a row of A or a column of B, from k codes; lost: it has bytes that nobody wrote, and counts as NaN. scales: bytes of the line's scales, p->scales of them. */
void umma_set_line(umma_numbers *numbers, const umma_product *p, int line, const uint32_t *codes, bool lost, const uint8_t *scales);
/* Which columns a line of a sparse A has, 64 in each word: products of the others count for nothing. Before its sums. */
void umma_set_there(umma_numbers *numbers, int line, const uint64_t there[2]);
/* Row `row` of A times columns of B from `first` on, plus cells of D with its type: count of them, which become the results. */
void umma_sum_row(const umma_product *p, const umma_numbers *a, int row, const umma_numbers *b, int first, uint32_t *cells, int count);
/* A cell of D times 2^-scale. */
uint32_t umma_scaled(const umma_product *p, uint32_t c, int scale);

int umma_type_bits(umma_type type);

#endif
