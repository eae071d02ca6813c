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
