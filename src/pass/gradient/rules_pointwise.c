/* The gradients of pointwise ops that a line of text does not say. */
#include "pass/gradient/gradient.h"

#include <string.h>

/* Through formats of at least 16 bits; what is rounded to integers or truth has none. */
dw_status gradient_cast(gradient *g, const ir_node *node) { return gradient_add(g, ir_in(node, 0), gradient_of(g, node, 0)); }

/* With t = tanh(u), u = sqrt(2 / pi) (x + 0.044715 x^3): d ((1 + t) + x (1 - t^2) u') / 2. */
dw_status gradient_gelu_tanh(gradient *g, const ir_node *node) {
    static const char slope[] = "mul(0.7978845608028654,add(1,mul(0.134145,mul(x0,x0))))";
    static const char t[] = "tanh(mul(0.7978845608028654,mul(x0,add(1,mul(0.044715,mul(x0,x0))))))";
    const char *text = arena_printf(&g->scratch, "mul(mul(0.5,d),add(add(1,%s),mul(mul(x0,%s),sub(1,mul(%s,%s)))))", t, slope, t, t);
    ir_value *made;
    if (text == NULL) return DW_NO_MEMORY;
    TRY(gradient_emit_text(g, node, text, strlen(text), gradient_of(g, node, 0), &made));
    return gradient_add(g, ir_in(node, 0), made);
}
