/* The laboratory: everything that measures, checks and explains models and kernels. It uses the engine; the engine never includes it, and a program that only
 * runs models needs none of it. The calls of deepwell/model.h from dw_bench on are here, and dw_model_print and dw_probe. */
#ifndef LAB_LAB_H
#define LAB_LAB_H

#include "engine/engine.h"

/* random_inputs.c: inputs of the plan's typical sizes, in the arena: normal numbers, true, and integers that every table looked up by them has. */
dw_status lab_random_inputs(arena *arena, const plan *plan, const int64_t *symbols, dw_named_tensor *inputs);
/* Outputs with room for their values at these sizes. */
dw_status lab_new_outputs(arena *arena, const plan *plan, const int64_t *symbols, dw_named_tensor *outputs);

/* bench.c: the most tokens of a text that the cached step can hold, prompt included. */
int64_t lab_step_room(const plan *step);

/* report_facts.c: bits of a step's operands that come from main memory in each run, whatever was run before: weights, caches, inputs. For kernel_bound_of. */
uint64_t lab_far_operands(const ir_node *node);

/* report_facts.c: what is computed in place is seen to be by its address. Values of a binding that is never run have none, so those that share memory get one for as long as launches are recorded;
 * nobody reads there. lent false: they have none again. */
void lab_lend_addresses(const plan_binding *binding, bool lent);

/* bench_op.c: is this an op's line ("matmul f32[7,96] ..") rather than a file? and its times. */
bool lab_is_op_line(const char *line);
dw_status lab_bench_op(dw_context *context, const char *line, const char *device, int json, dw_sink sink, void *user);

/* check_ranks.c: dw_check of a model with a communicator. */
dw_status lab_check_ranks(dw_context *context, const char *file, const dw_model_options *options, int input_count, const dw_named_tensor *inputs, int json, dw_sink sink, void *user);

/* profile.c: where the time of one plan goes, by kernel and format: calls, share, rates. */
struct json_t;
struct json_t *lab_profile_json(const plan *plan, const double *seconds, int runs, const int64_t *symbols);
void lab_profile_print(text *out, const struct json_t *rows);

#endif
