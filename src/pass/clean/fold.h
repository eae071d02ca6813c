/* What the files of constant folding share. Each rule looks at one node and gives the value that its first result is the same as, or NULL;
 * a rule may emit nodes before it. The origin of the node is already that of new nodes. */
#ifndef PASS_CLEAN_FOLD_H
#define PASS_CLEAN_FOLD_H

#include "pass/pass.h"

enum { FOLD_MAX_IN = 64, FOLD_MAX_OUT = 48 };   /* of any op */

/* ---- fold_value.c ---- */

/* May folding read the data of this param? Constants and buffers; parameters of the model keep their names. */
bool fold_may_read(const ir_value *param);
/* ir_is_scalar, but of what folding may read. */
bool fold_number(const ir_value *value, double *number);
/* A fill with the type of like; NULL in *fill for formats that a fill cannot have. */
dw_status fold_fill(ir_graph *graph, const ir_value *like, double number, ir_value **fill);
/* x with the shape of like: x itself, or broadcast; NULL in *same when the formats differ. */
dw_status fold_as(ir_graph *graph, ir_value *x, const ir_value *like, ir_value **same);

/* ---- rules ---- */

/* The integer that every element of an i64 value is, as an expression of sizes: NULL in *size when it is none. */
dw_status fold_size_of(ir_graph *graph, const ir_value *value, dim *size);
dw_status fold_sizes(ir_graph *graph, const ir_node *node, ir_value **same);        /* fold_size.c: arithmetic and comparisons of sizes */
dw_status fold_ranges(ir_graph *graph, const ir_node *node, ir_value **same);       /* fold_range.c: integers that are places along an axis */
dw_status fold_identity(ir_graph *graph, const ir_node *node, ir_value **same);     /* fold_identity.c: steps that change nothing */

#endif
