/* Attention of few queries: the entries of splitkv.def. */
#include "kernels/attention/splitkv/splitkv.cuh"

#define ATTENTION_STREAM(name, element, lanes, chunks, heads, blocks) STREAM(attention_stream_##name, ELEMENT_##element, lanes, chunks, heads, blocks)
#include "kernels/attention/splitkv/splitkv.def"
