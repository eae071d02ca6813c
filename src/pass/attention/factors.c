/* A number that q or k is multiplied by becomes a part of the scale of the scores:
 *
 *     %1 = mul q, 0.125; %2 = reshape %1; %3 = transpose %2; attention %3, k, v {scale=1}
 *     %1 = reshape q;    %2 = transpose %1;                  attention %2, k, v {scale=0.125}
 *
 * The number may stand anywhere below views, casts and rotations, as all of them commute with it. By a power of two the scores are the same but where products leave the
 * range of their format; by any other number they lack one rounding of q. What else reads the product keeps it as it is. */
#include "pass/attention/attention.h"
#include "pass/fuse/fuse.h"

#include <math.h>

enum { MAX_CHAIN = 24 };

/* Of a product or quotient with a positive number that is as large as its operand. */
static bool is_scaled(const ir_node *node, double *factor, ir_value **x) {
    if ((node->op != OP_mul && node->op != OP_div) || !fuse_with_number(node, factor, x)) return false;
    if (node->op == OP_div && *x != ir_in(node, 0)) return false;
    if (node->op == OP_div) *factor = 1 / *factor;
    return *factor > 0 && isfinite(*factor) && fuse_is_float((*x)->type.format) && op_type_equal(&(*x)->type, &ir_out(node)->type);
}

/* What the node makes of a multiple of its first operand is that multiple. Of rotations the first operand alone is turned. */
static bool is_linear(const ir_node *node) {
    if (node->op == OP_rotary || (op_get(node->op)->traits & OP_TRAIT_VIEW) != 0) return true;
    return node->op == OP_cast && fuse_is_float(ir_in(node, 0)->type.format) && fuse_is_float(ir_out(node)->type.format);
}

/* The product with a number behind the operand, which reaches attention alone; NULL: there is none. */
static ir_node *find_scaled(const ir_graph *graph, const ir_value *x, double *factor, ir_value **inner) {
    for (int i = 0; i < MAX_CHAIN && x->kind == IR_RESULT && fuse_is_single_use(graph, x); i++) {
        if (is_scaled(x->node, factor, inner)) return x->node;
        if (!is_linear(x->node)) return NULL;
        x = ir_in(x->node, 0);
    }
    return NULL;
}

dw_status attention_take_factors(ir_graph *graph, ir_node *node, bool *changed) {
    for (int i = ATTENTION_Q; i <= ATTENTION_K; i++) {
        double factor;
        ir_value *inner;
        const ir_node *scaled = find_scaled(graph, ir_in(node, i), &factor, &inner);
        if (scaled == NULL) continue;
        const double scale = op_attr_real(&node->attrs, OP_ATTR_scale) * factor;
        if (!isfinite(scale) || scale == 0) continue;
        TRY(ir_set_attr(graph, node, op_set_real(OP_ATTR_scale, scale)));
        TRY(fuse_replace(graph, ir_out(scaled), inner, changed));
    }
    return DW_OK;
}
