/* The parts of the pass that makes every spelling of attention one op (fuse_attention.c). */
#ifndef PASS_ATTENTION_H
#define PASS_ATTENTION_H

#include "pass/mask.h"

/* Operands of the attention op. */
enum { ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_MASK, ATTENTION_BIAS, ATTENTION_SINK, ATTENTION_ROW, ATTENTION_POSITION, ATTENTION_OPERANDS };

/* matmul, scale, masks, softmax, matmul becomes attention with its masks and biases as operands (attention_spelled.c). */
dw_status attention_fuse_spelled(ir_graph *graph, bool *changed);
/* k and v that repeat each head for a group of queries become the heads themselves (attention_heads.c). */
dw_status attention_ungroup_heads(value_analysis *analysis, ir_node *node, bool *changed);
/* Mask and bias operands become attributes as far as their formulas allow; then another node takes the place of node (attention_masks.c). */
dw_status attention_read_masks(value_analysis *analysis, ir_node *node, bool *changed);
/* Keeps a sentence about this attention for those who ask why: the note "attention.<module>". */
dw_status attention_note(ir_graph *graph, const ir_node *node, const char *format, ...) BASE_PRINTF(3, 4);

#endif
