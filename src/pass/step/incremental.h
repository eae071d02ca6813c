/* From a causal graph over whole sequences to one over the tokens that are new, for generation. */
#ifndef PASS_STEP_INCREMENTAL_H
#define PASS_STEP_INCREMENTAL_H

#include "ir/ir.h"

/* Names in a step graph that are not the model's. */
#define STEP_INPUT_ROW "step.row"              /* i64[s]: the text of each new token */
#define STEP_INPUT_POSITION "step.position"    /* i64[s]: its place in that text */
#define STEP_INPUT_TABLE "step.table"          /* i32[cache_rows,cache_entries]: the pages of each text, -1 where there is none; of further groups of caches "step.table.1", .. */
#define STEP_INPUT_LAST "step.last"            /* i64[cache_ends]: the new tokens that outputs are wanted of, where as many as there are: all in their order; only after pass_last_token */
#define STEP_OUTPUT_NEXT "step.next"           /* i64: of each row of the logits the likeliest token; only after pass_next_token */
#define STEP_NOTE_VOCABULARY "step.vocabulary" /* of a step that is cut over ranks each of which has a part of the logits, its place times their number on: how many all have; else there is no such note */
#define STEP_SYMBOL_ROWS "cache_rows"          /* texts that the caches have room for */
#define STEP_SYMBOL_MAX "cache_max"            /* tokens that a text may have */
#define STEP_SYMBOL_CHUNK "cache_chunk"        /* the most new tokens of one text in a run */
#define STEP_SYMBOL_TOTAL "cache_total"        /* positions that inputs over the sequence have: more than any position of the run */
#define STEP_SYMBOL_ENDS "cache_ends"
#define STEP_SYMBOL_PAGES "cache_pages"        /* pages that caches of a group have: "cache_pages.1", .. of further groups; */
#define STEP_SYMBOL_SLOTS "cache_slots"        /* tokens of a page; */
#define STEP_SYMBOL_ENTRIES "cache_entries"    /* pages that a text may have */
#define STEP_GIVEN "given."                    /* "given.<n>" */
#define STEP_GIVEN_LAST ".last"                /* "given.<n>.last" i64[s]: the last key of given.<n> in the text of each new token */

/* Where keys and values lie: each text's in a row of its own, or in pages, which texts may share. */
typedef enum step_cache { STEP_CACHE_ROWS, STEP_CACHE_PAGES } step_cache;

/* The step graph of a causal language model whose attention is fused (pass fuse_attention, then dead). It takes new tokens of several texts at a
 * time, in any mixture, one behind another along the sequence:
 *
 * - the symbol of the sequence length (named as in graph) now counts the new tokens, and the batch is 1;
 * - the token input and everything made of it has the new tokens alone; step.row and step.position say whose and which each of them is. Every other
 *   input over the sequence (attention_mask, position_ids) has cache_total positions, the same for all texts;
 * - keys and values of each attention live in states "cache.<n>" [cache_rows,..,cache_max,..]. Where only the last w keys are ever seen the cache is
 *   a ring of min(cache_max, w - 1 + cache_chunk). The caller keeps positions < cache_max, gives each text its tokens in order, and at
 *   most cache_chunk of them in a run;
 * - in pages, states are [cache_pages,..,cache_slots,..], and step.table says where the tokens of a text lie. Caches of which the same last keys are seen are a group, with a table of
 *   its own, since pages that nobody sees any more may go to other texts. The first group has step.table and cache_pages, the next ones step.table.1 and cache_pages.1, ..
 *
 * What depends on inputs that are neither tokens nor run along them (the encoder and the cross keys and values of an encoder-decoder) is
 * computed once, by *prelude: its inputs are those inputs, its outputs "given.<n>" are inputs of the step by the same names. Those that only
 * attention reads have one row for each text, [cache_rows,..]; where they run along an axis of the encoder, given.<n>.last says how far. Outputs of
 * graph that are such values are left out. *prelude is NULL where nothing is given. Where other nodes read what is given the step serves one text.
 *
 * *step is NULL where the graph is not local along the sequence but for causal attention; then why names the op, its module and the reason. */
dw_status pass_incremental(const ir_graph *graph, step_cache cache, ir_graph **step, ir_graph **prelude, text *why);

/* Of a step in pages: how many of the last keys the caches of this table are read for; 0: all. */
int64_t incremental_reach_of(const ir_value *table);

/* Restricts the outputs of a step along the new tokens to those that the input step.last lists, as far up the graph as it goes: all
 * behind the last attention is computed for so many tokens. */
dw_status pass_last_token(ir_graph *graph, bool *changed);

/* Takes all outputs off a step but its logits, and adds the likeliest token of each of their rows: the first of equal ones; below 0 where its logit is no number, as the op sample says it.
 * Where there are no logits nothing changes. */
dw_status pass_next_token(ir_graph *graph);

/* Which output is the logits: the first floating-point output of two or three axes whose last has a fixed size; -1: none. */
int incremental_find_logits(const ir_graph *graph, int64_t *vocabulary);

/* The input of token ids: of the integer inputs by which a table is looked up the first along whose last axis, the sequence, the first
 * output runs; where none is so (only the last token comes out) the first of them. NULL: none. */
ir_value *incremental_find_tokens(const ir_graph *graph);

#endif
