/* A view at sizes that are known: its strides and its place in what it is a view of. Decides nothing about which values are views (layout.c). */
#include "plan/internal.h"

/* An address that stands for "the first byte of the base" while only offsets are known. */
#define NOMINAL ((uint8_t *)4096)

dw_status plan_see_view(const plan_binding *binding, const plan_value *v, const dw_tensor *base, dw_tensor *view, size_t *offset, bool *is_one)
{
    dw_context *context = binding->context;
    const ir_node *node = v->value->node;
    dw_tensor seen = *base;
    seen.data = NOMINAL;
    const dw_tensor *in[] = {&seen}, *out[] = {view};
    TRY(op_tensor_bind(context, &v->value->type, binding->symbols, NULL, view));
    op_call call = {.context = context, .op = op_get(node->op), .attrs = &node->attrs, .symbols = binding->symbols,
                    .n_in = 1, .in = in, .n_out = 1, .out = out};
    dw_tensor made = *view;
    *is_one = op_tensor_view(&call, &made);
    if (!*is_one) return DW_OK;
    *view = made;
    *offset = (size_t)((uint8_t *)made.data - NOMINAL);
    return DW_OK;
}
