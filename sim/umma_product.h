/* The arithmetic of tcgen05.mma: codes to numbers, and sums as the units are published to add (microsoft/MMA-Sim, arXiv 2511.10909). */
#ifndef SIM_UMMA_PRODUCT_H
#define SIM_UMMA_PRODUCT_H

#include "umma_descriptor.h"

enum { UMMA_MAX_ROWS = 256, UMMA_MAX_K = 64, UMMA_MAX_SCALES = 4 };

/* Numbers of an operand's rows, [rows][k]; from codes of each element's own bits. */
typedef struct umma_numbers umma_numbers;
/* NULL: no memory. Thread-local storage: there are two, one for A and one for B. */
umma_numbers *umma_numbers_of(int which);
/* Row r from k codes; lost: the row has bytes that nobody wrote, and counts as NaN. scales: bytes of the row's scales, p->scales of them. */
void umma_set_row(umma_numbers *numbers, const umma_product *p, umma_type type, bool negate, int row, const uint32_t *codes, bool lost, const uint8_t *scales);
/* Row a of A times row b of B plus c, which is a cell of D with its type. */
uint32_t umma_sum(const umma_product *p, const umma_numbers *a, int row_a, const umma_numbers *b, int row_b, uint32_t c);
/* A cell of D times 2^-scale. */
uint32_t umma_scaled(const umma_product *p, uint32_t c, int scale);

int umma_type_bits(umma_type type);

#endif
