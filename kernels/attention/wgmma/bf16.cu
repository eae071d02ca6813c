/* bf16 attention on Hopper: the entries of tiles.def. */
#include "kernels/attention/wgmma/wgmma.cuh"

#define ATTENTION_TILE(name, groups, width, value_width, keys, blocks, scores, quantised) \
    ATTENTION(attention_bf16_##name, ELEMENT_BF16, groups, width, value_width, keys, blocks, scores, quantised)
#include "kernels/attention/wgmma/tiles.def"
