/* The parts of the pass that makes every spelling of attention one op (attention.c). */
#ifndef PASS_ATTENTION_ATTENTION_H
#define PASS_ATTENTION_ATTENTION_H

#include "analysis/analysis.h"

/* matmul, scale, masks, softmax, matmul becomes attention with its masks and biases as operands (spelled.c). */
dw_status attention_fuse_spelled(ir_graph *graph, bool *changed);
/* Numbers that q and k are multiplied by become a part of the scale (factors.c). */
dw_status attention_take_factors(ir_graph *graph, ir_node *node, bool *changed);
/* k and v that repeat each head for a group of queries become the heads themselves (heads.c). */
dw_status attention_ungroup_heads(value_analysis *analysis, ir_node *node, bool *changed);
/* Mask and bias operands become attributes as far as their formulas allow; then another node takes the place of node (masks.c). */
dw_status attention_read_masks(value_analysis *analysis, ir_node *node, bool *changed);
/* Keeps a sentence about this attention for those who ask why: the note "attention.<module>" (note.c). */
dw_status attention_note(ir_graph *graph, const ir_node *node, const char *format, ...) BASE_PRINTF(3, 4);

/* The quantize behind an attention becomes the format of its result: of the pass merge, when formats are chosen (attention.c). */
dw_status fuse_attention_quantize(ir_graph *graph, ir_node *node, bool *changed);

#endif
