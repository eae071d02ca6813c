/* The public face of graphs: the same calls with text for types and attributes. */
#include "deepwell/graph.h"

#include <string.h>

#include "ir/internal.h"

dw_status dw_graph_create(dw_context *context, const char *name, dw_graph **graph) { return ir_graph_create(context, name, graph); }

dw_status dw_graph_parse(dw_context *context, const char *source, const char *text, size_t length, dw_graph **graph) {
    return ir_parse(context, source, text, length, NULL, graph);
}

void dw_graph_destroy(dw_graph *graph) { ir_graph_destroy(graph); }

dw_status dw_graph_input(dw_graph *graph, const char *name, const char *type, dw_value **value) {
    arena strings;
    scanner scanner;
    op_type parsed;
    *value = NULL;
    arena_init(&strings, graph->context);
    dw_status status = scan_open(&scanner, &strings, name, type, strlen(type));
    if (status == DW_OK) status = op_type_parse(&scanner, graph->dims, &parsed);
    if (status == DW_OK && scanner.kind != SCAN_END) status = scan_fail(&scanner, "expected the end of the type");
    if (status == DW_OK) status = ir_add_input(graph, name, &parsed, value);
    arena_free(&strings);
    return status;
}

/* The weight of a tensor of the caller's, in the graph's memory. */
static dw_status borrow(dw_graph *graph, const char *name, const dw_tensor *tensor, ir_weight **weight) {
    *weight = NULL;
    if (tensor->rank < 0 || tensor->rank > DW_MAX_RANK)
        return base_fail(graph->context, DW_INVALID, "tensor %s: rank %d is not in 0..%d", name, tensor->rank, DW_MAX_RANK);
    TRY_NEW(*weight, &graph->arena, 1);
    (*weight)->name = arena_text(&graph->arena, name);
    (*weight)->tensor = *tensor;
    return (*weight)->name != NULL ? DW_OK : DW_NO_MEMORY;
}

dw_status dw_graph_param(dw_graph *graph, const char *name, const dw_tensor *tensor, dw_value **value) {
    ir_weight *weight;
    op_type type = {.format = tensor->format, .scale_layout = tensor->scale_layout, .rank = tensor->rank};
    *value = NULL;
    TRY(borrow(graph, name, tensor, &weight));
    for (int i = 0; i < tensor->rank; i++) TRY_DIM(graph->context, type.dims[i], dim_constant(graph->dims, tensor->dims[i]));
    return ir_add_param(graph, name, &type, weight, value);
}

dw_status dw_graph_bind(dw_graph *graph, int tensor_count, const dw_named_tensor *tensors) {
    for (int i = 0; i < tensor_count; i++) {
        ir_value *value = map_find(&graph->names, tensors[i].name);
        ir_weight *weight;
        if (value == NULL || (value->kind != IR_PARAM && value->kind != IR_STATE))
            return base_fail(graph->context, DW_NOT_FOUND, "%s has no param or state named '%s'", graph->name, tensors[i].name);
        TRY(borrow(graph, tensors[i].name, &tensors[i].tensor, &weight));
        TRY(ir_match_weight(graph, &value->type, weight));
        value->weight = weight;
    }
    return DW_OK;
}

dw_status dw_graph_symbol(dw_graph *graph, const char *name, int64_t min, int64_t max) {
    dim symbol;
    int index;
    TRY_DIM(graph->context, symbol, dim_symbol(graph->dims, name, min, max));
    if (!dim_is_symbol(symbol, &index)) return DW_OK;   /* a range of one size */
    return dim_symbol_set_range(graph->dims, index, min, max);
}

dw_status dw_graph_op(dw_graph *graph, const char *op, const char *attributes, int operand_count, dw_value *const *operands, int result_count,
                      dw_value **results) {
    op_attr attrs[OP_ATTR_COUNT];
    arena strings;
    ir_value *first = NULL;
    int count;
    op_id id = op_find(op);
    if (id == OP_COUNT) return base_fail(graph->context, DW_NOT_FOUND, "there is no op named %s; docs/ops.md lists them", op);
    arena_init(&strings, graph->context);
    dw_status status = ir_parse_attrs(graph, &strings, attributes ? attributes : "", attrs, &count);
    if (status == DW_OK) status = ir_emit(graph, id, operand_count, operands, count, attrs, &first);
    arena_free(&strings);
    if (status != DW_OK) return status;
    if (first->node->n_out > result_count)
        return base_fail(graph->context, DW_INVALID, "%s has %d results, there is room for %d", op, first->node->n_out, result_count);
    for (int i = 0; i < result_count; i++) results[i] = i < first->node->n_out ? first->node->out[i] : NULL;
    return DW_OK;
}

dw_status dw_graph_output(dw_graph *graph, const char *name, dw_value *value) { return ir_add_output(graph, name, value); }

dw_status dw_graph_print(const dw_graph *graph, void (*sink)(void *user, const char *text, size_t length), void *user) {
    text words;
    text_init(&words, graph->context);
    dw_status status = ir_print(graph, &words);
    if (status == DW_OK) sink(user, text_string(&words), words.length);
    text_free(&words);
    return status;
}

int dw_graph_input_count(const dw_graph *graph) { return (int)graph->input_count; }
int dw_graph_output_count(const dw_graph *graph) { return (int)graph->output_count; }

static dw_status describe(const dw_graph *graph, const op_type *type, char *room, size_t size) {
    text words;
    text_init(&words, graph->context);
    op_type_print(&words, graph->dims, type);
    dw_status status = text_status(&words);
    if (status == DW_OK && words.length >= size)
        status = base_fail(graph->context, DW_LIMIT, "the type needs %zu bytes, there are %zu", words.length + 1, size);
    if (status == DW_OK) memcpy(room, text_string(&words), words.length + 1);
    text_free(&words);
    return status;
}

dw_status dw_graph_input_at(const dw_graph *graph, int index, const char **name, char *type, size_t size) {
    if (index < 0 || (size_t)index >= graph->input_count)
        return base_fail(graph->context, DW_INVALID, "%s has %zu inputs, none of index %d", graph->name, graph->input_count, index);
    *name = graph->inputs[index]->name;
    return describe(graph, &graph->inputs[index]->type, type, size);
}

dw_status dw_graph_output_at(const dw_graph *graph, int index, const char **name, char *type, size_t size) {
    if (index < 0 || (size_t)index >= graph->output_count)
        return base_fail(graph->context, DW_INVALID, "%s has %zu outputs, none of index %d", graph->name, graph->output_count, index);
    *name = graph->outputs[index].name;
    return describe(graph, &graph->outputs[index].value->type, type, size);
}
