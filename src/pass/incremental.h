/* From a causal graph over whole sequences to one over the tokens that are new, for generation. */
#ifndef PASS_INCREMENTAL_H
#define PASS_INCREMENTAL_H

#include "ir/ir.h"

/* The step graph of a causal language model whose attention is fused (pass fuse_attention, then dead):
 *
 * - the symbol of the sequence length (named as in graph) now counts the new tokens, "past" those before them, "max" those that fit;
 * - the token input and everything made of it has the new tokens alone; every other input over the sequence (attention_mask,
 *   position_ids) has the whole history, past + new tokens;
 * - keys and values of each attention live in states "cache.<n>" of max tokens, new ones written at past; the caller keeps
 *   past + new tokens <= max, and passes past = 0 first.
 *
 * What depends on inputs that are neither tokens nor run along them (the encoder and the cross keys and values of an encoder-decoder) is
 * computed once, by *prelude: its inputs are those inputs, its outputs "given.<n>" are inputs of the step by the same names. Outputs of
 * graph that are such values are left out. *prelude is NULL where nothing is given.
 *
 * *step is NULL where the graph is not local along the sequence but for causal attention; then why names the op, its module and the reason. */
dw_status pass_incremental(const ir_graph *graph, ir_graph **step, ir_graph **prelude, text *why);

/* Restricts the outputs along the sequence of the token input to the last token, as far up the graph as it goes: the last attention takes one
 * query, and all behind it is computed for one token. Works on a graph over whole sequences and on a step graph. */
dw_status pass_last_token(ir_graph *graph, bool *changed);

/* The input of token ids: of the integer inputs by which a table is looked up the first along whose last axis, the sequence, the first
 * output runs; where none is so (only the last token comes out) the first of them. NULL: none. */
ir_value *incremental_find_tokens(const ir_graph *graph);

#endif
