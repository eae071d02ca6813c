/* Graphs as a whole: created, copied, destroyed; their inputs, params, states, outputs and notes. Nodes are made in node.c. */
#include "ir/internal.h"

#include <string.h>

dw_status ir_graph_create(dw_context *context, const char *name, ir_graph **graph) {
    *graph = NULL;
    void *memory;
    TRY(base_alloc(context, sizeof **graph, _Alignof(ir_graph), &memory));
    ir_graph *made = memory;
    *made = (ir_graph){.context = context, .next_id = 1};
    arena_init(&made->arena, context);
    map_init(&made->names, &made->arena);
    map_init(&made->output_names, &made->arena);
    map_init(&made->notes, &made->arena);
    map_init(&made->texts, &made->arena);
    dw_status status = dim_table_create(context, &made->dims);
    if (status == DW_OK) {
        made->name = arena_text(&made->arena, name);
        if (made->name == NULL) status = DW_NO_MEMORY;
    }
    if (status != DW_OK) {
        ir_graph_destroy(made);
        return status;
    }
    *graph = made;
    return DW_OK;
}

void ir_graph_destroy(ir_graph *graph) {
    if (graph == NULL) return;
    if (graph->dims != NULL) dim_table_destroy(graph->dims);
    arena_free(&graph->arena);
    ir_weights_destroy(graph->own_weights);
    base_release(graph->context, graph, sizeof *graph, _Alignof(ir_graph));
}

dw_status ir_set_note(ir_graph *graph, const char *name, const char *text) {
    char *copy = arena_text(&graph->arena, text);
    if (copy == NULL) return DW_NO_MEMORY;
    return map_set(&graph->notes, name, copy);
}

/* ---- named values ---- */

static const char *const kind_names[] = {[IR_INPUT] = "input", [IR_PARAM] = "param", [IR_STATE] = "state", [IR_RESULT] = "result"};

/* values[0..count) with room for one more. */
static dw_status grow(ir_graph *graph, ir_value ***values, size_t count, size_t *capacity) {
    ir_value **grown = arena_grow(&graph->arena, *values, count, capacity, sizeof *grown);
    if (grown == NULL) return DW_NO_MEMORY;
    *values = grown;
    return DW_OK;
}

static dw_status check_type(const ir_graph *graph, ir_kind kind, const char *name, const op_type *type) {
    if (type->rank < 0 || type->rank > DW_MAX_RANK) {
        return base_fail(graph->context, DW_LIMIT, "%s '%s' has rank %d; the largest is %d", kind_names[kind], name, type->rank, DW_MAX_RANK);
    }
    for (int i = 0; i < type->rank; i++) {
        int64_t size;
        bool is_constant = dim_is_constant(type->dims[i], &size);
        if (is_constant && size < 0) {
            return base_fail(graph->context, DW_INVALID, "%s '%s': size %lld of axis %d is negative", kind_names[kind], name, (long long)size, i);
        }
        if (kind == IR_PARAM && !is_constant) {
            return base_fail(graph->context, DW_INVALID, "param '%s': the size of axis %d holds a symbol; params have constant sizes, an input may have any", name, i);
        }
    }
    return DW_OK;
}

static dw_status add_named(ir_graph *graph, ir_kind kind, const char *name, const op_type *type, ir_value **value) {
    TRY(check_type(graph, kind, name, type));
    const ir_value *other = map_find(&graph->names, name);
    if (other != NULL) {
        return base_fail(graph->context, DW_INVALID, "%s '%s': there is a%s %s of that name already; inputs, params and states have unique names",
                         kind_names[kind], name, other->kind == IR_INPUT ? "n" : "", kind_names[other->kind]);
    }
    ir_value *made;
    TRY_NEW(made, &graph->arena, 1);
    made->kind = kind;
    made->type = *type;
    made->rate = kind == IR_PARAM ? IR_RATE_LOAD : IR_RATE_RUN;
    made->name = arena_text(&graph->arena, name);
    if (made->name == NULL) return DW_NO_MEMORY;
    TRY(map_set(&graph->names, name, made));
    *value = made;
    return DW_OK;
}

dw_status ir_match_weight(const ir_graph *graph, const op_type *type, const ir_weight *weight) {
    const dw_tensor *tensor = &weight->tensor;
    bool fits = tensor->format == type->format && tensor->rank == type->rank && tensor->scale_layout == type->scale_layout;
    for (int i = 0; fits && i < type->rank; i++) {
        int64_t size;
        fits = !dim_is_constant(type->dims[i], &size) || size == tensor->dims[i];
    }
    if (fits) return DW_OK;
    text wanted, shape;
    text_init(&wanted, graph->context);
    text_init(&shape, graph->context);
    op_type_print(&wanted, graph->dims, type);
    for (int i = 0; i < tensor->rank; i++) text_printf(&shape, i > 0 ? ",%lld" : "%lld", (long long)tensor->dims[i]);
    dw_status status = base_fail(graph->context, DW_MISMATCH, "'%s' is %s in the graph, but its weight is %s[%s]%s; take the weights that belong to the graph",
                                 weight->name, text_string(&wanted), dw_format_name(tensor->format), text_string(&shape),
                                 tensor->scale_layout != type->scale_layout ? " with another scale layout" : "");
    text_free(&wanted);
    text_free(&shape);
    return status;
}

dw_status ir_add_input(ir_graph *graph, const char *name, const op_type *type, ir_value **value) {
    *value = NULL;
    TRY(grow(graph, &graph->inputs, graph->input_count, &graph->input_capacity));
    TRY(add_named(graph, IR_INPUT, name, type, value));
    graph->inputs[graph->input_count++] = *value;
    return DW_OK;
}

dw_status ir_add_param(ir_graph *graph, const char *name, const op_type *type, ir_weight *weight, ir_value **value) {
    *value = NULL;
    if (weight != NULL) TRY(ir_match_weight(graph, type, weight));
    TRY(grow(graph, &graph->params, graph->param_count, &graph->param_capacity));
    TRY(add_named(graph, IR_PARAM, name, type, value));
    (*value)->weight = weight;
    graph->params[graph->param_count++] = *value;
    return DW_OK;
}

dw_status ir_add_state(ir_graph *graph, const char *name, const op_type *type, ir_weight *initial, ir_value **value) {
    *value = NULL;
    if (initial != NULL) {
        TRY(ir_match_weight(graph, type, initial));
        if (strcmp(initial->name, name) != 0) {
            return base_fail(graph->context, DW_INVALID, "state '%s' cannot begin with weight '%s'; a state begins with the weight of its own name", name, initial->name);
        }
    }
    TRY(grow(graph, &graph->states, graph->state_count, &graph->state_capacity));
    TRY(add_named(graph, IR_STATE, name, type, value));
    (*value)->weight = initial;
    (*value)->next = *value;
    graph->states[graph->state_count++] = *value;
    return DW_OK;
}

dw_status ir_train(ir_graph *graph, ir_value *param) {
    TRY(grow(graph, &graph->states, graph->state_count, &graph->state_capacity));
    for (size_t i = 0; i < graph->param_count; i++) {
        if (graph->params[i] != param) continue;
        memmove(&graph->params[i], &graph->params[i + 1], (graph->param_count - i - 1) * sizeof *graph->params);
        graph->param_count--;
        break;
    }
    graph->states[graph->state_count++] = param;
    param->kind = IR_STATE;
    param->next = param;
    param->trained = true;
    param->rate = IR_RATE_UPDATE;
    return DW_OK;
}

dw_status ir_add_output(ir_graph *graph, const char *name, ir_value *value) {
    if (map_find(&graph->output_names, name) != NULL) {
        return base_fail(graph->context, DW_INVALID, "there is an output named '%s' already; names of outputs are unique", name);
    }
    ir_output *grown = arena_grow(&graph->arena, graph->outputs, graph->output_count, &graph->output_capacity, sizeof *grown);
    if (grown == NULL) return DW_NO_MEMORY;
    graph->outputs = grown;
    char *copy = arena_text(&graph->arena, name);
    if (copy == NULL) return DW_NO_MEMORY;
    TRY(map_set(&graph->output_names, name, copy));
    graph->outputs[graph->output_count++] = (ir_output){copy, value};
    value->output_count++;
    return DW_OK;
}

/* ---- constants ---- */

dw_status ir_new_local_weight(ir_graph *graph, const char *name, dw_format format, int rank, const int64_t *dims, ir_weight **weight) {
    *weight = NULL;
    num_parts parts;
    dw_tensor tensor;
    if (!num_layout(format, DW_SCALE_plain, rank, dims, &parts)) {
        return base_fail(graph->context, DW_LIMIT, "constant '%s': the size of a tensor of its shape overflows", name);
    }
    void *memory = arena_new(&graph->arena, parts.total_bytes, 1);
    if (memory == NULL) return DW_NO_MEMORY;
    if (!op_tensor_init(&tensor, format, DW_SCALE_plain, rank, dims, memory)) {
        return base_fail(graph->context, DW_LIMIT, "constant '%s': the size of a tensor of its shape overflows", name);
    }
    ir_weight *made;
    TRY_NEW(made, &graph->arena, 1);
    made->name = arena_text(&graph->arena, name);
    if (made->name == NULL) return DW_NO_MEMORY;
    made->tensor = tensor;
    made->is_local = true;
    *weight = made;
    return DW_OK;
}

dw_status ir_add_constant(ir_graph *graph, const char *of, dw_format format, int rank, const int64_t *dims, ir_value **value, dw_tensor *tensor) {
    *value = NULL;
    const char *name;
    do {
        name = arena_printf(&graph->arena, "const.%d%s%s", graph->const_id++, of != NULL ? "." : "", of != NULL ? of : "");
        if (name == NULL) return DW_NO_MEMORY;
    } while (map_find(&graph->names, name) != NULL || (graph->weights != NULL && ir_weights_find(graph->weights, name) != NULL));
    op_type type = {.format = format, .rank = rank};
    for (int i = 0; i < rank; i++) TRY_DIM(graph->context, type.dims[i], dim_constant(graph->dims, dims[i]));
    ir_weight *weight;
    if (graph->weights != NULL) {
        TRY(ir_weights_new(graph->weights, name, format, rank, dims, &weight));
    } else {
        TRY(ir_new_local_weight(graph, name, format, rank, dims, &weight));
    }
    TRY(ir_add_param(graph, name, &type, weight, value));
    *tensor = weight->tensor;
    return DW_OK;
}

/* ---- copies ---- */

typedef struct cloner {
    const ir_graph *from;
    ir_graph *to;
    ir_value **results;      /* by id of from's results */
} cloner;

static ir_value *copied(const cloner *cloner, const ir_value *value) {
    if (value == NULL) return NULL;
    return value->kind == IR_RESULT ? cloner->results[value->id] : map_find(&cloner->to->names, value->name);
}

static dw_status copy_type(const cloner *cloner, const op_type *type, op_type *copy) {
    *copy = *type;
    for (int i = 0; i < type->rank; i++) {
        TRY_DIM(cloner->to->context, copy->dims[i], dim_rewrite(cloner->to->dims, cloner->from->dims, type->dims[i], NULL));
    }
    return DW_OK;
}

/* The same weight, or a copy of one that lies in from's arena. */
static dw_status copy_weight(const cloner *cloner, ir_weight *weight, ir_weight **copy) {
    *copy = weight;
    if (weight == NULL || !weight->is_local) return DW_OK;
    const dw_tensor *tensor = &weight->tensor;
    TRY(ir_new_local_weight(cloner->to, weight->name, tensor->format, tensor->rank, tensor->dims, copy));
    num_parts parts;
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts)) {
        return base_fail(cloner->to->context, DW_LIMIT, "constant '%s': the size of a tensor of its shape overflows", weight->name);
    }
    if (parts.total_bytes > 0) memcpy((*copy)->tensor.data, tensor->data, parts.total_bytes);
    return DW_OK;
}

static dw_status copy_names(const cloner *cloner) {
    const ir_graph *from = cloner->from;
    ir_graph *to = cloner->to;
    ir_value *value;
    ir_weight *weight;
    op_type type;
    for (size_t i = 0; i < from->notes.count; i++) TRY(ir_set_note(to, from->notes.entries[i].key, from->notes.entries[i].value));
    for (int i = 0; i < dim_symbol_count(from->dims); i++) {
        int64_t min, max;
        dim symbol;
        dim_symbol_range(from->dims, i, &min, &max);
        TRY_DIM(to->context, symbol, dim_symbol(to->dims, dim_symbol_name(from->dims, i), min, max));
    }
    for (size_t i = 0; i < from->input_count; i++) {
        TRY(copy_type(cloner, &from->inputs[i]->type, &type));
        TRY(ir_add_input(to, from->inputs[i]->name, &type, &value));
    }
    for (size_t i = 0; i < from->param_count; i++) {
        TRY(copy_type(cloner, &from->params[i]->type, &type));
        TRY(copy_weight(cloner, from->params[i]->weight, &weight));
        TRY(ir_add_param(to, from->params[i]->name, &type, weight, &value));
    }
    for (size_t i = 0; i < from->state_count; i++) {
        TRY(copy_type(cloner, &from->states[i]->type, &type));
        TRY(copy_weight(cloner, from->states[i]->weight, &weight));
        TRY(ir_add_state(to, from->states[i]->name, &type, weight, &value));
        value->trained = from->states[i]->trained;
        value->rate = from->states[i]->rate;
    }
    return DW_OK;
}

static dw_status copy_node(cloner *cloner, const ir_node *node) {
    ir_graph *to = cloner->to;
    op_attrs attrs;
    op_type types[IR_MAX_OUT];
    ir_node *made;
    TRY(ir_copy_attrs(to, cloner->from->dims, node->attrs.count, node->attrs.items, &attrs));
    for (int i = 0; i < node->n_out; i++) TRY(copy_type(cloner, &node->out[i]->type, &types[i]));
    TRY(ir_intern(to, node->origin.module, &to->origin.module));
    TRY(ir_intern(to, node->origin.type, &to->origin.type));
    TRY(ir_intern(to, node->origin.name, &to->origin.name));
    TRY(ir_intern(to, node->origin.role, &to->origin.role));
    TRY(ir_intern(to, node->origin.phase, &to->origin.phase));
    TRY(ir_new_node(to, node->op, &attrs, node->n_in, node->n_out, types, &made));
    made->order = node->order;
    for (int i = 0; i < node->n_in; i++) ir_set_operand(made, i, copied(cloner, node->in[i].value));
    ir_update_rate(made);
    for (int i = 0; i < node->n_out; i++) {
        made->out[i]->id = node->out[i]->id;
        cloner->results[node->out[i]->id] = made->out[i];
    }
    return DW_OK;
}

static dw_status copy_all(cloner *cloner) {
    const ir_graph *from = cloner->from;
    ir_graph *to = cloner->to;
    to->weights = from->weights;
    TRY(copy_names(cloner));
    for (const ir_node *node = from->first; node != NULL; node = node->next) TRY(copy_node(cloner, node));
    for (size_t i = 0; i < from->state_count; i++) ir_set_next(to->states[i], copied(cloner, from->states[i]->next));
    for (size_t i = 0; i < from->output_count; i++) TRY(ir_add_output(to, from->outputs[i].name, copied(cloner, from->outputs[i].value)));
    to->origin = (ir_origin){0};
    to->next_id = from->next_id;
    to->const_id = from->const_id;
    to->folded = from->folded;
    return DW_OK;
}

dw_status ir_graph_clone(const ir_graph *graph, ir_graph **copy) {
    *copy = NULL;
    cloner cloner = {.from = graph};
    size_t bytes = (size_t)graph->next_id * sizeof *cloner.results;
    void *results;
    TRY(base_alloc(graph->context, bytes, 16, &results));
    cloner.results = results;
    memset(results, 0, bytes);
    dw_status status = ir_graph_create(graph->context, graph->name, &cloner.to);
    if (status == DW_OK) status = copy_all(&cloner);
    base_release(graph->context, results, bytes, 16);
    if (status != DW_OK) {
        ir_graph_destroy(cloner.to);
        return status;
    }
    *copy = cloner.to;
    return DW_OK;
}
