/* The gradient of quantize, dequantize and tile_scales: straight through, as if nothing were rounded. Where a number was clipped, it has its gradient all the same. The gradient of a value in blocks
 * has the format of what it came from. */
#include "pass/gradient/gradient.h"

dw_status gradient_quantize(gradient *g, const ir_node *node) { return gradient_add(g, ir_in(node, 0), gradient_of(g, node, 0)); }
