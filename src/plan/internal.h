/* What the files of this layer share among themselves. */
#ifndef PLAN_INTERNAL_H
#define PLAN_INTERNAL_H

#include "plan/plan.h"

/* compile.c */
dw_status plan_create(ir_graph *graph, const chip_caps *chip, plan **result);   /* takes the graph over in any case */
/* Everything after the kernels are known; choose fills plan->steps for all nodes. */
dw_status plan_finish(plan *plan, dw_status (*choose)(struct plan *, const void *), const void *argument);

/* values.c: a plan_value for every value of the graph, which is its mark; and those that are known when weights are, with their keys */
dw_status plan_number_values(plan *plan);
dw_status plan_find_constants(plan *plan);

/* Outputs and next values of states are made anew by each run: they lie where the caller and the session want them. */
bool plan_is_result(const ir_graph *graph, const ir_value *value);

/* choose.c: a step for every node, views included; each node's mark is its step. argument: plan_options. */
dw_status plan_choose(plan *plan, const void *argument);
dw_status plan_new_steps(plan *plan);                    /* steps without rows, those at load first */
/* The step runs row by one of these ways, where it has ways; row may have the step's weight packed. */
dw_status plan_set_row(plan *plan, plan_step *step, const kernel_row *row, uint32_t ways);

/* The kernel that "op=kernel,.." asks for of the step, or NULL. Steps at load are no matter of a GPU's kernels. */
dw_status plan_asked_kernel(plan *plan, const char *kernels, const plan_step *step, const char **name);

/* split.c */
dw_status plan_split_posts(plan *plan, const plan_options *options);
/* Block scales of products' operands in tiles, where a kernel of the chip wants them so (tiled.c). */
dw_status plan_tile_scales(plan *plan);

/* tuning.c: *kernel is the row of what was measured to be the fastest for the step at the typical sizes, and the step gets what was measured of its ways; NULL: nothing was measured. */
dw_status plan_take_tuned(plan *plan, const plan_tuning *tuning, arena *scratch, const kernel_problem *problem, plan_step *step, const char **kernel);
/* Entries "16:way,128:way/variant" of a row, for the step. INVALID: it has no such way or variant for the problem. */
dw_status plan_read_tuned(plan *plan, const kernel_row *row, const kernel_problem *problem, const char *words, plan_step *step);

/* layout.c: which views are strides, and which results are laid out for their reader. */
void plan_lay_out(plan *plan);
dw_status plan_drop_views(plan *plan);                   /* removes the steps of views that need none */

/* view.c: v as a view of base, which may lie otherwise than its base does; false in *is_one: no strides express it. */
dw_status plan_see_view(const plan_binding *binding, const plan_value *v, const dw_tensor *base, dw_tensor *view, size_t *offset, bool *is_one);

/* plain.c: fills plan->plains, once steps and views are what they stay; what their sources' lives become; and which of them stay plain at the sizes of the binding, whose tensors
 * and bytes it sets; *moved: some have other bytes than before. */
dw_status plan_find_plains(plan *plan);
void plan_keep_sources(plan *plan);
dw_status plan_bind_plains(plan_binding *binding, bool *moved);
/* Bytes of a value that may be plain, so many bytes being those of its type at the largest sizes. */
size_t plan_plain_room(const plan_value *value, size_t bytes);

/* What may read the operands of a step: it, or attention that may do it. */
int plan_reader_of(const plan *plan, int step);
/* Operand `index` of the write that attention may do, which is read then; NULL: it is absent, or a cache, which is written in place. */
const ir_value *plan_written_operand(const plan *plan, const plan_plain *plain, int index);

/* Of an attention: are its keys and values what a write of its own tokens, of the same rows, positions and pages, makes of caches? */
bool plan_adds_tokens(const ir_node *node);

/* memory.c: does the value take up workspace of its own? */
bool plan_needs_place(const plan_value *value);

/* dims.c: INVALID when the size lies outside the symbol's range */
dw_status plan_check_size(dw_context *context, const ir_graph *graph, int symbol, int64_t size);

/* print.c */
void plan_attrs_print(text *text, const dim_table *dims, const op_attrs *attrs);

#endif
