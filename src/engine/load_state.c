/* What both halves of a load ask of it: what is there, what must run, how much memory is held, and views. */
#include "engine/load.h"

bool load_is_of(const loading *load, const plan_value *v) { return v->key != NULL && v->updated == (load->trains != NULL); }

bool load_has(const loading *load, const plan_value *v)
{
    if (load->trains != NULL && v->updated) return false;
    return engine_constants_find(load->constants, v->key) != NULL || engine_constants_find_there(load->constants, v->key) != NULL;
}

int load_first(const loading *load) { return load->trains != NULL ? load->program->plan->load_count : 0; }

int load_end(const loading *load) { return load->trains != NULL ? load->program->plan->run_first : load->program->plan->load_count; }

void *load_take_room(load_room *room, size_t bytes)
{
    const size_t taken = base_align_up(bytes, ENGINE_ALIGN);
    if (room->memory == NULL || taken < bytes || taken > room->bytes - room->used) return NULL;
    void *memory = room->memory + room->used;
    room->used += taken;
    room->count++;
    return memory;
}

void load_leave_room(load_room *room)
{
    if (--room->count == 0) room->used = 0;
}

bool load_must_run(const loading *load, const ir_node *node)
{
    for (int i = 0; i < node->n_out; i++) {
        const plan_value *v = plan_value_of(node->out[i]);
        if (load->wanted[v->index] && !load_has(load, v)) return true;
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
