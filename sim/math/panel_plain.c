/* Sums as a program without matrix units makes them: one product after another is added to an fp32, rounded to the nearest each time. Not what any unit does; it tells what
 * the units' own rules are worth. */
#include "panel.h"

#include "num/num.h"
#include "real.h"

enum { POINT = 8 };   /* of packed ones: two bits of each product's factors of a half, three of each scale */

static uint32_t add(uint32_t c, double product) {
    const float sum = (float)((double)f32_from(c) + product);
    return isnan(sum) ? F32_NAN : f32_bits(sum);
}

static void sum_floats(const panel_sum *s) {
    for (int column = 0; column < s->columns; column++) {
        const int at = panel_at(column, s->k), base = s->bases[column / PANEL_COLUMNS];
        const int scale = (s->scales > 0 ? s->row_scales.exponent[0] + s->panel_scales.exponent[column] : 0) + (s->row_base == PANEL_FAR ? 0 : s->row_base) + (base == PANEL_FAR ? 0 : base);
        uint32_t c = s->half ? f32_bits(num_f16_to_f32((uint16_t)s->c[column])) : s->c[column];
        for (int i = 0; i < s->k; i++) {
            const double product = (double)s->row.value[i] * (double)s->panels.value[at + i * PANEL_COLUMNS];
            if (product != 0) c = add(c, ldexp(product, scale));
        }
        s->c[column] = s->half ? num_f32_to_f16(f32_from(c)) : c;
    }
}

static void sum_packed(const panel_sum *s) {
    const int each = s->k / s->scales;
    for (int column = 0; column < s->columns; column++) {
        const int at = panel_at(column, s->k), scale_at = panel_at(column, s->scales);
        uint32_t c = s->c[column];
        for (int i = 0; i < s->k; i++) {
            const int of = i / each, scale = scale_at + of * PANEL_COLUMNS;
            const int64_t product = (int64_t)s->whole_row[i] * s->whole_panels[at + i * PANEL_COLUMNS] * s->row_scales.significand[of] * s->panel_scales.significand[scale];
            if (product != 0) c = add(c, ldexp((double)product, s->row_scales.exponent[of] + s->panel_scales.exponent[scale] - POINT));
        }
        s->c[column] = c;
    }
}

static void sum_integers(const panel_sum *s) { panel_isa_portable.integers(s); }

static void decode(const product_format *f, const uint32_t *codes, int lines, bool negate, float *value, int16_t *place, uint16_t *special) {
    panel_isa_portable.decode(f, codes, lines, negate, value, place, special);
}

static int center(float *value, const int16_t *place, int lines) { return panel_isa_portable.center(value, place, lines); }

const panel_isa panel_isa_plain = {"plain fp32", sum_floats, sum_packed, sum_integers, decode, center};
