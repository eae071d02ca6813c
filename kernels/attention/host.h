/* What the host halves of the GPU attentions share. */
#ifndef KERNELS_ATTENTION_HOST_H
#define KERNELS_ATTENTION_HOST_H

#include "kernel/kernel.h"
#include "kernels/attention/arguments.h"
#include "kernels/attention/in_blocks.h"

/* Operands, attributes and slots of a call; arguments lie in the launch's. MISMATCH when the heads of k do not divide those of q. */
dw_status attention_take(kernel_launch *launch, const kernel_run *run, attention_arguments *arguments);
/* Without rows and positions: query i sees keys from i + begin up to i + end, of those that there are. */
void attention_shifts(const attention_arguments *arguments, int32_t *begin, int32_t *end);
/* The same of keys and values in blocks, where they are; strides of k and v then are those of the elements, whatever the tensors say. */
void attention_take_blocks(kernel_launch *launch, const kernel_run *run, attention_arguments *arguments, attention_blocks *blocks);
/* Steps of the elements of an operand in blocks, which lie in order. */
void attention_lie_as_a_whole(const dw_tensor *x, int64_t strides[4]);
/* The problem with k and v that are in blocks as numbers of fp32, for what refuses by formats: as they are where a kernel reads no blocks. types holds two types, in the operands. */
kernel_problem attention_without_blocks(const kernel_problem *problem, op_type *types, const op_type **in);
/* Of a plan that is invariant queries of a cache, which come few and many at a time, are for the kernels that take each by itself, and all others for tiles; why not, or NULL. */
const char *attention_refuses_cached(const kernel_problem *problem);
const char *attention_refuses_uncached(const kernel_problem *problem);
/* Keys that a row of the cache, or of the table, has room for. */
int64_t attention_slots(const op_call *call);
/* For estimates: texts whose keys a tile of so many queries goes over one after another. Where `row` names each query's text and there are no more queries than rows of caches, each is taken for another text's; more of them
 * for those of one. */
double attention_texts_of(const op_call *call, int64_t queries);
/* Rows of the cache, or of the table. */
int64_t attention_rows(const op_call *call);
/* Are scores more than products times a positive scale? */
bool attention_is_general(const op_call *call);

/* Does each row of a tensor in f32, or in 16 bits, lie in whole pieces of 16 bytes? A view may begin anywhere. */
bool attention_lies_in_pieces(const dw_tensor *x);

/* The map of an operand of 16 bits in boxes of 64 columns x rows, at a field of the launch's arguments; four axes, of one element where it repeats or has none. */
void attention_take_map(kernel_launch *launch, const kernel_run *run, int index, int rows, const void *field);

/* Can a tensor map describe it: an operand of 16 bits and four axes, which begins at a multiple of 16 bytes, whose rows are neighbouring elements, and whose other axes step by multiples of 16 bytes? */
bool attention_has_map(const dw_tensor *x);

/* Of heads whose q and k are multiplied as codes: they fill a row of a swizzle at most. */
enum { ATTENTION_CODES_WIDTH = 128 };
/* Why a call is not one of a q and a k of these formats of codes, a v in bf16 and results of 16 bits, and of heads that are multiples of 16 wide, values of 8; NULL: it is one. */
const char *attention_refuses_codes(const kernel_problem *problem, dw_format q, dw_format k, text *why);
/* Why scores of codes, or of keys in blocks, are more than products times a positive scale that position alone hides; NULL: they are not. */
const char *attention_refuses_scores_of_codes(const kernel_problem *problem);
/* Codes lie as a whole: why no tensor maps describe v and the result, or there are no keys; NULL: they do. */
const char *attention_lacks_code_maps(const op_call *call, text *why);
/* The map of q's or k's codes, in boxes of rows that are filled up to the width of a swizzle, and the address of their scales, at fields of the launch's arguments. */
void attention_take_codes(kernel_launch *launch, const kernel_run *run, int index, int rows, const void *map, const void *scales);

/* Why a call is not one of 16-bit operands and results whose heads are multiples of 8 up to 256 wide; NULL: it is one. The second: of one result. */
const char *attention_reject_half_operands(const kernel_problem *problem, text *why);
const char *attention_reject_halves(const kernel_problem *problem, text *why);
/* The first with other widths of keys and of values. */
const char *attention_reject_halves_beyond(const kernel_problem *problem, int most_width, int most_value_width, text *why);
/* The same of f32, bf16 and f16 with heads up to 256 wide. */
const char *attention_reject_fp32(const kernel_problem *problem, text *why);
/* Why no tensor maps describe q, k, v and the result, or there are no keys; NULL: they do. */
const char *attention_lacks_maps(const op_call *call, text *why);
/* Why there are no keys, or more of them or of thread blocks than kernels count to; NULL: neither. */
const char *attention_counts_refusal(const kernel_run *run, int64_t blocks, text *why);

#endif
