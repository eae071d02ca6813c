/* See panel.h: the choice among instruction sets. */
#include "panel.h"

#include <stddef.h>
#include <string.h>

const panel_isa *panel_isa_at(int index) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && index-- == 0) {
        return &panel_isa_avx512;
    }
    if (__builtin_cpu_supports("avx2") && index-- == 0) return &panel_isa_avx2;
#endif
    return index == 0 ? &panel_isa_portable : NULL;
}

static bool is_plain;

void panel_set_plain(bool plain) { is_plain = plain; }
const panel_isa *panel_isa_now(void) { return is_plain ? &panel_isa_plain : panel_isa_at(0); }

void panel_codes(const uint32_t *codes, int stride, int columns, int count, uint32_t *panels) {
    for (int first = 0; first < columns; first += PANEL_COLUMNS, panels += count * PANEL_COLUMNS) {
        const int there = columns - first < PANEL_COLUMNS ? columns - first : PANEL_COLUMNS;
        if (there < PANEL_COLUMNS) memset(panels, 0, sizeof *panels * (size_t)(count * PANEL_COLUMNS));
        for (int i = 0; i < count; i++) {
            for (int column = 0; column < there; column++) panels[i * PANEL_COLUMNS + column] = codes[(first + column) * stride + i];
        }
    }
}

enum { WIDE_EXPONENT = 8 };   /* bits, of formats whose numbers may be far apart */

bool panel_decode_row(const product_format *f, const uint32_t *codes, int k, bool negate, float *value, int16_t *place, int *base) {
    const int lines = panel_padded(k) / PANEL_COLUMNS;
    uint16_t special[PANEL_MAX_K / PANEL_COLUMNS];
    uint32_t any = 0;
    const panel_isa *isa = panel_isa_now();
    isa->decode(f, codes, lines, negate, value, place, special);
    for (int i = 0; i < lines; i++) any |= special[i] & ((1u << (k < PANEL_COLUMNS ? k : PANEL_COLUMNS)) - 1);   /* of 8 codes, 16 were decoded */
    for (int i = k; i < lines * PANEL_COLUMNS; i++) place[i] = PANEL_ZERO;
    *base = f->exponent_bits == WIDE_EXPONENT ? isa->center(value, place, lines) : 0;
    return any == 0;
}

uint32_t panel_decode_columns(const product_format *f, const uint32_t *codes, int stride, int columns, int k, bool negate, float *value, int16_t *place, int *base) {
    uint32_t panel[PANEL_COLUMNS * PANEL_MAX_K], any = 0;
    uint16_t special[PANEL_MAX_K];
    panel_codes(codes, stride, columns, k, panel);
    const panel_isa *isa = panel_isa_now();
    isa->decode(f, panel, k, negate, value, place, special);
    for (int i = 0; i < k; i++) any |= special[i];
    *base = f->exponent_bits == WIDE_EXPONENT ? isa->center(value, place, k) : 0;
    return any;
}
