/* Sums of products for many columns side by side, as SIMD: the same bits as product.h's sums, one at a time, which they are held to by tests/sim/test_panel.c.
 *
 * The columns' operand lies in panels of 16: [columns / 16][k][16], the last one filled up with zeros. Of floats there are their values, and the places that sums
 * align them by: the exponent of the leading bit's place, of subnormal numbers that of the smallest normal one, of zeros PANEL_ZERO. All are finite: who has others
 * sums those one at a time. Values of a row, and of a panel, stand in units of a power of two, the base, so that products of fp32 have room. Integers are themselves, packed elements
 * of 4 bits twice their values. */
#ifndef SIM_MATH_PANEL_H
#define SIM_MATH_PANEL_H

#include "product.h"

enum { PANEL_COLUMNS = 16, PANEL_MAX_K = 128, PANEL_MAX_SCALES = 4, PANEL_ZERO = -16384, PANEL_FAR = 1 << 20 };

typedef struct panel_floats { const float *value; const int16_t *place; } panel_floats;
typedef struct panel_scales { const int32_t *significand, *exponent; } panel_scales;

/* A row times all columns. */
typedef struct panel_sum {
    int k, columns;                 /* multiples of 4, and of 16 */
    panel_floats row, panels;       /* of floats */
    int row_base;                   /* values are in units of 2^base; PANEL_FAR: of 1, and too far apart for products in fp32 */
    const int *bases;               /* of the panels, [columns / 16] */
    const int32_t *whole_row, *whole_panels;   /* of integers and packed ones */
    int significand_bits, fraction, result_bits;   /* of floats: as product_sum has them */
    bool half;                      /* of floats: c are codes of fp16, and results are rounded to the nearest */
    bool saturate;                  /* of integers */
    int group;                      /* of packed ones: so many products are added exactly, a multiple of 16 */
    int scales;                     /* of the row, [scales], and of the columns, [columns / 16][scales][16]; of floats one, whose exponent counts, or none; of packed ones in units of 1/8 */
    panel_scales row_scales, panel_scales;
    uint32_t *c;                    /* [columns]: what is added to, fp32, fp16 or integers; then the results */
} panel_sum;

/* What an instruction set provides. */
typedef struct panel_isa {
    const char *name;
    void (*floats)(const panel_sum *sum);
    void (*packed)(const panel_sum *sum);    /* as product_sum_terms, of exact sums of a group's products */
    void (*integers)(const panel_sum *sum);
    /* Lines of 16 codes to floats; special[line]: which of the 16 are not finite, as bits. Those have no meaning. */
    void (*decode)(const product_format *f, const uint32_t *codes, int lines, bool negate, float *value, int16_t *place, uint16_t *special);
    /* Chooses the base of such lines, and moves their values there. */
    int (*center)(float *value, const int16_t *place, int lines);
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

/* Where column, in panels of so many lines, has its first number; the next ones lie 16 apart. */
static inline int panel_at(int column, int lines) { return column / PANEL_COLUMNS * lines * PANEL_COLUMNS + column % PANEL_COLUMNS; }
static inline int panel_padded(int columns) { return (columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS * PANEL_COLUMNS; }
/* Columns of count codes each, one behind another `stride` apart, side by side in panels; the last panel is filled up with zeros. */
void panel_codes(const uint32_t *codes, int stride, int columns, int count, uint32_t *panels);

/* k codes, with room for panel_padded(k) of them and of what they become, to a row's floats. false: some are not finite. */
bool panel_decode_row(const product_format *f, const uint32_t *codes, int k, bool negate, float *value, int16_t *place, int *base);
/* Up to 16 columns of k codes each, `stride` apart, to a panel. Returns those that are not finite, as bits. */
uint32_t panel_decode_columns(const product_format *f, const uint32_t *codes, int stride, int columns, int k, bool negate, float *value, int16_t *place, int *base);

#endif
