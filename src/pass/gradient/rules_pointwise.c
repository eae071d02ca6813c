/* The gradients of pointwise ops that a line of text does not say. */
#include "pass/gradient/gradient.h"


/* Through formats of at least 16 bits; what is rounded to integers or truth has none. */
dw_status gradient_cast(gradient *g, const ir_node *node) { return gradient_add(g, ir_in(node, 0), gradient_of(g, node, 0)); }
