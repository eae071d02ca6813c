/* Attention by wgmma of one format: the entries of tiles.def, by the constants of the image's row: ENTRIES: their names are attention_<ENTRIES>_..; ELEMENT: one of scores.cuh. */
#include "kernels/attention/wgmma/wgmma.cuh"

#define JOIN(entries, name) attention_##entries##_##name
#define NAMED(entries, name) JOIN(entries, name)
#define ATTENTION_TILE(name, groups, width, value_width, keys, blocks, scores, paged, quantised) \
    ATTENTION(NAMED(ENTRIES, name), ELEMENT, groups, width, value_width, keys, blocks, scores, paged, quantised)
#include "kernels/attention/wgmma/tiles.def"
