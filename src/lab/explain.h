/* What explain.c, explain_facts.c and explain_text.c share: facts of a model as JSON, and words made of them. */
#ifndef LAB_EXPLAIN_H
#define LAB_EXPLAIN_H

#include <jansson.h>

#include "lab/lab.h"

/* All the facts that DW_PRINT_SUMMARY or DW_PRINT_EXPLAIN print, or NULL: never some of them because memory ran out on the way. */
json_t *facts_of(const dw_model *model, dw_print what);

void words_print_summary(text *out, const json_t *facts);
void words_print_explain(text *out, const json_t *facts);

#endif
