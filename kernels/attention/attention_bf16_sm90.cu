/* bf16 attention on Hopper: the entries of tiles_sm90.def. */
#include "kernels/attention/attention_sm90.cuh"

#define ATTENTION_TILE(name, groups, width, value_width, keys, blocks, scores, quantised) \
    ATTENTION(attention_bf16_##name, ELEMENT_BF16, groups, width, value_width, keys, blocks, scores, quantised)
#include "kernels/attention/tiles_sm90.def"
