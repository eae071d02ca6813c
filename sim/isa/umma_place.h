/* Where a product's rows and columns lie in the tensor memory of its CTAs: the layouts A to G of PTX ISA 9.7.16.10.5. */
#ifndef SIM_ISA_UMMA_PLACE_H
#define SIM_ISA_UMMA_PLACE_H

#include "umma_descriptor.h"

/* Rows of A and of D, and rows of B, that each CTA holds. */
static inline int umma_rows(const umma_product *p) { return p->pair ? p->m / 2 : p->m; }
static inline int umma_columns(const umma_product *p) { return p->pair ? p->n / 2 : p->n; }

/* In how many parts D's columns lie, one lane group behind another: layouts E and B have 2, G has 4, the others 1 (PTX ISA 9.7.16.10.5). */
static inline int umma_parts(const umma_product *p) {
    if (p->pair) return p->m == 128 ? 2 : 1;
    return !p->weight_stationary ? 1 : p->m == 32 ? 4 : p->m == 64 ? 2 : 1;
}

/* Layout F: 16 lanes of each partition. */
static inline bool umma_is_half(const umma_product *p) { return !p->pair && !p->weight_stationary && p->m == 64; }

static inline int umma_lane(const umma_product *p, int row, int part, int first_lane) { return umma_is_half(p) ? first_lane + row % 16 + row / 16 * 32 : row + part * umma_rows(p); }

#endif
