/* What both halves of a load ask of it: what is there, what must run, how much memory is held, and views. */
#include "engine/load.h"

bool load_has(const loading *load, const char *key)
{
    return map_find(&load->constants->by_key, key) != NULL || map_find(&load->constants->on_device, key) != NULL;
}

bool load_must_run(const loading *load, const ir_node *node)
{
    for (int i = 0; i < node->n_out; i++) {
        const plan_value *v = plan_value_of(node->out[i]);
        if (load->wanted[v->index] && !load_has(load, v->key)) return true;
    }
    return false;
}

dw_status load_hold(loading *load, const plan_value *v, size_t bytes)
{
    if (bytes > load->limit - load->held)
        return base_fail(load->constants->context, DW_LIMIT,
                         "constant %%%d (%s) of %zu bytes: what is computed from weights may take %zu bytes in this model, sixteen times its weights and 256 MiB", v->value->id,
                         op_get(v->value->node ? v->value->node->op : OP_cast)->name, bytes, load->limit);
    load->held += bytes;
    return DW_OK;
}

dw_status load_view(const loading *load, const plan_value *v, const dw_tensor *base, dw_tensor *view)
{
    dw_context *context = load->constants->context;
    const ir_node *node = v->value->node;
    const dw_tensor *in[] = {base}, *out[] = {view};
    TRY(op_tensor_bind(context, &v->value->type, load->symbols, NULL, view));
    op_call call = {.context = context, .op = op_get(node->op), .attrs = &node->attrs, .symbols = load->symbols, .n_in = 1, .in = in, .n_out = 1, .out = out};
    dw_tensor strided;
    if (!op_tensor_view(&call, &strided)) return base_fail(context, DW_INTERNAL, "no strides express constant view %%%d", v->value->id);
    *view = strided;
    return DW_OK;
}
