/* What explain.c, explain_facts.c, explain_beside.c and explain_text.c share: facts of a model as JSON, and words made of them. */
#ifndef LAB_EXPLAIN_H
#define LAB_EXPLAIN_H

#include <jansson.h>

#include "lab/lab.h"

/* All the facts that DW_PRINT_SUMMARY or DW_PRINT_EXPLAIN print, or NULL: never some of them because memory ran out on the way. */
json_t *facts_of(const dw_model *model, dw_print what);

/* explain_beside.c: of a quantised model [{"precision": "fp8", "plan": {"us": .., "quantize_us": ..}, "step_plan": {..}}, {"precision": "bf16", ..}, ..], itself first, then bf16 and those that its option leaves open or its form of weights alone, then itself with scores in bf16 where these are in fp32; or "refused": why it could
 * not be planned. NULL for others, and for compiled files, which hold no graph before precision. The first row's plans have "slower": [{"layers": "encoder.*.fc2", "count": 12, "us": .., "bf16_us": ..}, ..],
 * quantised products that take longer with what quantises for them than in bf16. */
json_t *explain_beside(const dw_model *model);
/* The module path with a '*' for each number in it, as policies name layers; NULL: there is no memory. The caller frees it. */
char *explain_pattern(const char *module);
/* explain_facts.c: a plan's steps with kernels and reasons, its sizes, estimates and workspace. */
json_t *explain_plan(const plan *plan);
/* explain_train.c: {"programs": [{"name": "micro", "plan": {..}, "phases": [..]}, ..], "kept": {..}, "memory": {..}, ..} as words (explain_train_text.c). */
void words_print_training(text *out, const json_t *facts);
/* explain.c: takes facts, which may be NULL. */
dw_status explain_emit_json(dw_context *context, json_t *facts, dw_sink sink, void *user);

/* explain_ranks.c: {"mesh": "tp=2", "splits": [{"layers": "blocks.*.mlp.up", "split": "column", "reason": .., "count": 4}, ..], "runs": [{"of": "a whole run", "us": .., "whole_us": ..}, ..], "times": by layers, ..};
 * NULL: the model is not cut. */
json_t *explain_ranks(const dw_model *model);
void words_print_ranks(text *out, const json_t *facts);

/* A plan under a title (explain_text.c). */
void words_print_plan(text *out, const char *title, const json_t *facts);
void words_print_summary(text *out, const json_t *facts);
void words_print_explain(text *out, const json_t *facts);

#endif
