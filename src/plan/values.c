/* The values of a plan: numbered, and those that are known when weights are found, each with the expression that it is as its key. Weights are parameters, which stay from load on or until
 * dw_model_update, and of a plan that prepares the states that are trained. */
#include "plan/internal.h"

/* ---- values ---- */

static void add_value(plan *plan, ir_value *value, plan_place place, int slot)
{
    plan_value *v = &plan->values[plan->value_count];
    *v = (plan_value){.value = value, .index = plan->value_count++, .place = place, .slot = slot, .contiguous = true, .first = -1, .last = -1};
    value->mark = v;
}

dw_status plan_number_values(plan *plan)
{
    ir_graph *graph = plan->graph;
    size_t count = graph->input_count + graph->param_count + graph->state_count;
    for (ir_node *node = graph->first; node != NULL; node = node->next) count += (size_t)node->n_out;
    TRY_NEW(plan->values, &plan->arena, count);
    plan->value_count = 0;
    for (size_t i = 0; i < graph->input_count; i++) add_value(plan, graph->inputs[i], PLAN_INPUT, (int)i);
    for (size_t i = 0; i < graph->param_count; i++) add_value(plan, graph->params[i], PLAN_CONSTANT, (int)i);
    for (size_t i = 0; i < graph->state_count; i++) add_value(plan, graph->states[i], PLAN_STATE, (int)i);
    for (ir_node *node = graph->first; node != NULL; node = node->next)
        for (int i = 0; i < node->n_out; i++) add_value(plan, node->out[i], PLAN_WORKSPACE, 0);
    return DW_OK;
}

/* ---- constants ---- */

static bool has_symbols(const op_type *type)
{
    for (int i = 0; i < type->rank; i++)
        if (!dim_is_constant(type->dims[i], NULL)) return true;
    return false;
}

/* Those of a rank's place are no symbols here: they are known at load. */
static bool attrs_have_symbols(const op_attrs *attrs)
{
    for (int i = 0; i < attrs->count; i++) {
        const op_attr *attr = &attrs->items[i];
        op_attr_kind kind = op_attr_kind_of(attr->id);
        if (kind == OP_KIND_DIM && !dim_is_settled(attr->dim)) return true;
        if (kind == OP_KIND_DIMS)
            for (int d = 0; d < attr->count; d++)
                if (!dim_is_settled(attr->dims[d])) return true;
    }
    return false;
}

bool plan_is_result(const ir_graph *graph, const ir_value *value)
{
    return ir_is_output(graph, value) || value->next_count > 0;
}

static bool node_is_constant(const ir_graph *graph, const ir_node *node)
{
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i].value != NULL && plan_value_of(node->in[i].value)->key == NULL) return false;
    for (int i = 0; i < node->n_out; i++)
        if (has_symbols(&node->out[i]->type) || plan_is_result(graph, node->out[i])) return false;
    return !attrs_have_symbols(&node->attrs);
}

/* The key of a result: op, attributes and operands' keys, hashed. Equal expressions over the same weights have equal keys in every plan. */
static dw_status constant_key(plan *plan, const ir_node *node, int result, const char **key)
{
    text words;
    text_init(&words, plan->context);
    text_printf(&words, "%s.%d", op_get(node->op)->name, result);
    for (int i = 0; i < node->n_in; i++)
        text_printf(&words, ",%s", node->in[i].value ? plan_value_of(node->in[i].value)->key : "-");
    plan_attrs_print(&words, plan->graph->dims, &node->attrs);
    dw_status status = text_status(&words);
    if (status == DW_OK) {
        *key = arena_printf(&plan->arena, "%s:%016llx", op_get(node->op)->name,
                            (unsigned long long)base_hash(text_string(&words), words.length, 0));
        if (*key == NULL) status = DW_NO_MEMORY;
    }
    text_free(&words);
    return status;
}

/* No run changes a trained parameter. */
static bool leaves_parameters(const ir_graph *graph)
{
    for (size_t i = 0; i < graph->state_count; i++)
        if (graph->states[i]->trained && graph->states[i]->next != graph->states[i]) return false;
    return true;
}

static bool is_updated(const ir_node *node)
{
    bool updated = false;
    for (int i = 0; i < node->n_in; i++) updated |= ir_in(node, i) != NULL && plan_value_of(ir_in(node, i))->updated;
    return updated;
}

dw_status plan_find_constants(plan *plan)
{
    plan->prepares = plan->prepares && leaves_parameters(plan->graph);
    for (int i = 0; i < plan->value_count; i++) {
        plan_value *v = &plan->values[i];
        v->updated = plan->prepares && v->value->kind == IR_STATE && v->value->trained;
        if (v->updated || v->value->kind == IR_PARAM) v->key = v->value->name;
    }
    for (ir_node *node = plan->graph->first; node != NULL; node = node->next) {
        if (!node_is_constant(plan->graph, node)) continue;
        for (int i = 0; i < node->n_out; i++) {
            plan_value *v = plan_value_of(node->out[i]);
            TRY(constant_key(plan, node, i, &v->key));
            v->place = PLAN_CONSTANT;
            v->updated = is_updated(node);
        }
    }
    return DW_OK;
}
