/* See panel.h: the choice among instruction sets. */
#include "panel.h"

#include <stddef.h>

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

void panel_put(panel_numbers row, int count, int column, int32_t *significand, int32_t *exponent) {
    int at = panel_at(column, count);
    for (int i = 0; i < count; i++, at += PANEL_COLUMNS) {
        significand[at] = row.significand[i];
        exponent[at] = row.exponent[i];
    }
}
