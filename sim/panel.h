/* Sums of products for many columns side by side, as SIMD: the same bits as product.h's sums, one at a time, which they are held to by tests/sim/test_panel.c.
 *
 * The columns' operand lies in panels of 16: [columns / 16][k][16], the last one filled up with zeros. Numbers are significands with their sign and exponents,
 * as in product.h; a zero has the exponent PANEL_ZERO. All are finite: who has others sums those one at a time. Integers and packed elements of 4 bits are
 * significands alone. */
#ifndef SIM_PANEL_H
#define SIM_PANEL_H

#include "product.h"

enum { PANEL_COLUMNS = 16, PANEL_MAX_K = 128, PANEL_MAX_SCALES = 4, PANEL_ZERO = -16384 };

typedef struct panel_numbers { const int32_t *significand, *exponent; } panel_numbers;

/* A row times all columns. */
typedef struct panel_sum {
    int k, columns;                 /* columns: a multiple of 16 */
    panel_numbers row, panels;      /* the row's significands are moved to the left by fraction less both significands' bits (panel_move) */
    int fraction, result_bits;      /* as product_sum has them */
    bool half;                      /* of floats: results are bits of fp16, rounded to the nearest */
    bool saturate;                  /* of integers */
    int group;                      /* of packed ones: so many products are added exactly, a multiple of 16 */
    int scales;                     /* of packed ones: of the row, [scales], and of the columns, [columns / 16][scales][16]; significands in units of 1/8 */
    panel_numbers row_scales, panel_scales;
    uint32_t *c;                    /* [columns]: what is added to, fp32 (of halves too) or integers; then the results */
} panel_sum;

/* What an instruction set provides. */
typedef struct panel_isa {
    const char *name;
    void (*floats)(const panel_sum *sum);
    void (*packed)(const panel_sum *sum);    /* as product_sum_terms, of exact sums of a group's products */
    void (*integers)(const panel_sum *sum);
    /* Codes to numbers, significands moved; false: some are not finite, and have no meaning here. */
    bool (*decode)(const product_format *f, const uint32_t *codes, int count, bool negate, int move, int32_t *significand, int32_t *exponent);
} panel_isa;

extern const panel_isa panel_isa_portable;
#if defined(__x86_64__)
extern const panel_isa panel_isa_avx2, panel_isa_avx512;
#endif
extern const panel_isa panel_isa_plain;     /* panel_plain.c: other sums than the units' */
/* The index-th that this machine has, the best first; NULL: there are no more. */
const panel_isa *panel_isa_at(int index);
/* That which sums now: the machine's best, or the plain one. Set before anything runs. */
const panel_isa *panel_isa_now(void);
void panel_set_plain(bool plain);

static inline int panel_move(int significand_bits, int fraction) { return fraction - 2 * significand_bits; }
/* Where column, in panels of so many lines, has its first number; the next ones lie 16 apart. */
static inline int panel_at(int column, int lines) { return column / PANEL_COLUMNS * lines * PANEL_COLUMNS + column % PANEL_COLUMNS; }
static inline int panel_padded(int columns) { return (columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS * PANEL_COLUMNS; }
/* Lays a row of count numbers into the panels as that column. */
void panel_put(panel_numbers row, int count, int column, int32_t *significand, int32_t *exponent);

#endif
