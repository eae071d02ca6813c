/* The parts of the pass precision: caches of keys and values, and what parts tell of layers. */
#ifndef PASS_PRECISION_TOLD_H
#define PASS_PRECISION_TOLD_H

#include "pass/pass.h"

/* Where the policy has a rule for role:cache: the caches of a cached step get its format, and in a whole graph the keys and values of causal attention are rounded to it (caches.c). */
dw_status precision_caches(ir_graph *graph, const pass_options *options);
/* An output "check.<layer>". */
dw_status precision_add_probe(ir_graph *graph, const char *layer, ir_value *value);
/* A line of the report, if there is one. */
void precision_report(const pass_options *options, const char *layer, const char *role, const char *precision, const char *rule);

#endif
