/* Attention of few queries: the entries of stream.def. */
#include "kernels/attention/attention_stream.cuh"

#define ATTENTION_STREAM(name, element, lanes, chunks, heads, blocks) STREAM(attention_stream_##name, ELEMENT_##element, lanes, chunks, heads, blocks)
#include "kernels/attention/stream.def"
