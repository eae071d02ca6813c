/* Attention of few queries: the entries of splitkv.def. */
#include "kernels/attention/splitkv/splitkv.cuh"

#define ATTENTION_SPLITKV(name, element, lanes, chunks, heads, blocks) SPLITKV(attention_stream_##name, ELEMENT_##element, lanes, chunks, heads, blocks)
#include "kernels/attention/splitkv/splitkv.def"
