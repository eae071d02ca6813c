/* The text form of a graph, written. Reading is parse.c. */
#include "ir/internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CONST_ELEMENTS = 64 };

/* ---- names and numbers ---- */

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/* Does the scanner read it as one name? inf and nan are numbers. */
static bool is_plain_name(const char *name) {
    if (!is_letter(name[0]) || strcmp(name, "inf") == 0 || strcmp(name, "nan") == 0) return false;
    for (const char *at = name; *at != '\0'; at++) {
        if (!is_letter(*at) && (*at < '0' || *at > '9') && *at != '.' && *at != '$') return false;
    }
    return true;
}

static void print_name(text *text, const char *name) {
    if (is_plain_name(name)) text_add(text, name);
    else text_json_string(text, name);
}

void ir_print_value(text *text, const ir_value *value) {
    if (value->kind == IR_RESULT) text_printf(text, "%%%d", value->id);
    else print_name(text, value->name);
}

void ir_print_place(text *text, const ir_node *node) {
    text_printf(text, "op %s", op_get(node->op)->name);
    for (int i = 0; i < node->n_out; i++) text_printf(text, "%s%%%d", i == 0 ? " " : ", ", node->out[i]->id);
    if (node->origin.module != NULL) text_printf(text, ", module \"%s\"", node->origin.module);
    if (node->origin.name != NULL) text_printf(text, ", name \"%s\"", node->origin.name);
}

/* ---- attributes ---- */

static void print_attr(text *text, const dim_table *dims, const op_attr *attr) {
    text_printf(text, "%s=", op_attr_name(attr->id));
    switch (op_attr_kind_of(attr->id)) {
    case OP_KIND_INT: text_printf(text, "%lld", (long long)attr->integer); break;
    case OP_KIND_BOOL: text_add(text, attr->integer ? "true" : "false"); break;
    case OP_KIND_REAL: op_number_print(text, DW_FORMAT_f64, attr->real); break;
    case OP_KIND_TEXT: text_json_string(text, attr->text); break;
    case OP_KIND_FORMAT: text_add(text, dw_format_name(attr->format)); break;
    case OP_KIND_DIM: dim_print(text, dims, attr->dim); break;
    case OP_KIND_INTS:
        text_add(text, "[");
        for (int i = 0; i < attr->count; i++) text_printf(text, "%s%lld", i > 0 ? "," : "", (long long)attr->integers[i]);
        text_add(text, "]");
        break;
    case OP_KIND_DIMS:
        text_add(text, "[");
        for (int i = 0; i < attr->count; i++) {
            if (i > 0) text_add(text, ",");
            dim_print(text, dims, attr->dims[i]);
        }
        text_add(text, "]");
        break;
    }
}

static void print_attrs(text *text, const dim_table *dims, const op_attrs *attrs) {
    if (attrs->count == 0) return;
    text_add(text, " {");
    for (int i = 0; i < attrs->count; i++) {
        if (i > 0) text_add(text, ",");
        print_attr(text, dims, &attrs->items[i]);
    }
    text_add(text, "}");
}

static void print_origin(text *text, const ir_origin *origin) {
    const char *const keys[] = {" at ", " type ", " name "};
    const char *const values[] = {origin->module, origin->type, origin->name};
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        if (values[i] == NULL) continue;
        text_add(text, keys[i]);
        text_json_string(text, values[i]);
    }
    if (origin->role != NULL) {
        text_add(text, " role ");
        print_name(text, origin->role);
    }
    if (origin->phase == NULL) return;
    text_add(text, " phase ");
    print_name(text, origin->phase);
}

/* ---- lines ---- */

static bool is_const(const ir_value *param, const ir_print_options *options) {
    if (param->weight == NULL || param->weight->tensor.data == NULL || dw_format_is_block(param->type.format)) return false;
    if (options->without_data && !ir_is_made(param)) return false;
    return op_tensor_count(&param->weight->tensor) <= MAX_CONST_ELEMENTS;
}

static void print_elements(text *text, const dw_tensor *tensor) {
    num_class class = num_info(tensor->format)->class;
    int64_t index[DW_MAX_RANK] = {0};
    int64_t count = op_tensor_count(tensor);
    text_add(text, " =");
    for (int64_t i = 0; i < count; i++) {
        text_add(text, i > 0 ? ", " : " ");
        if (class == NUM_FLOAT || class == NUM_SCALE) op_number_print(text, tensor->format, op_tensor_load(tensor, index));
        else text_printf(text, "%lld", (long long)op_tensor_load_int(tensor, index));
        op_tensor_next(tensor, index);
    }
}

static void print_named(text *text, const ir_graph *graph, const char *keyword, const ir_value *value) {
    text_printf(text, "  %-6s ", keyword);
    print_name(text, value->name);
    text_add(text, " ");
    op_type_print(text, graph->dims, &value->type);
}

static void print_symbol(text *text, const dim_table *dims, int index) {
    int64_t min, max;
    dim_symbol_range(dims, index, &min, &max);
    text_printf(text, "  symbol %s %lld..", dim_symbol_name(dims, index), (long long)min);
    if (max != DIM_UNBOUNDED) text_printf(text, "%lld", (long long)max);
    text_add(text, "\n");
}

static void print_reference(text *text, const ir_value *value, const ir_print_options *options) {
    if (value == NULL) text_add(text, "-");
    else if (value->kind == IR_RESULT && options->ids != NULL) text_printf(text, "%%%d", options->ids[value->id]);
    else ir_print_value(text, value);
}

static void print_node(text *text, const ir_graph *graph, const ir_node *node, const ir_print_options *options) {
    for (int i = 0; i < node->n_out; i++) {
        text_add(text, i == 0 ? "  " : ", ");
        print_reference(text, node->out[i], options);
    }
    text_printf(text, " = %s", op_get(node->op)->name);
    for (int i = 0; i < node->n_in; i++) {
        text_add(text, i == 0 ? " " : ", ");
        print_reference(text, node->in[i].value, options);
    }
    print_attrs(text, graph->dims, &node->attrs);
    if (!options->without_origins) print_origin(text, &node->origin);
    text_add(text, "\n");
}

dw_status ir_print_with(const ir_graph *graph, const ir_print_options *options, text *text) {
    text_add(text, "graph ");
    print_name(text, graph->name);
    text_add(text, "\n");
    for (size_t i = 0; i < graph->notes.count; i++) {
        if (options->without_example && strcmp(graph->notes.entries[i].key, IR_NOTE_EXAMPLE) == 0) continue;
        text_add(text, "  note   ");
        print_name(text, graph->notes.entries[i].key);
        text_add(text, " ");
        text_json_string(text, graph->notes.entries[i].value);
        text_add(text, "\n");
    }
    for (int i = 0; i < dim_symbol_count(graph->dims); i++) print_symbol(text, graph->dims, i);
    for (size_t i = 0; i < graph->input_count; i++) {
        print_named(text, graph, "input", graph->inputs[i]);
        text_add(text, "\n");
    }
    for (size_t i = 0; i < graph->param_count; i++) {
        const ir_value *param = graph->params[i];
        bool has_data = is_const(param, options);
        print_named(text, graph, has_data ? "const" : "param", param);
        if (has_data) print_elements(text, &param->weight->tensor);
        text_add(text, "\n");
    }
    for (size_t i = 0; i < graph->state_count; i++) {
        print_named(text, graph, "state", graph->states[i]);
        if (graph->states[i]->trained) text_add(text, " trained");
        text_add(text, "\n");
    }
    for (const ir_node *node = graph->first; node != NULL; node = node->next) print_node(text, graph, node, options);
    for (size_t i = 0; i < graph->state_count; i++) {
        const ir_value *state = graph->states[i];
        if (state->next == state) continue;
        text_add(text, "  next   ");
        print_name(text, state->name);
        text_add(text, " ");
        print_reference(text, state->next, options);
        text_add(text, "\n");
    }
    for (size_t i = 0; i < graph->output_count; i++) {
        text_add(text, "  output ");
        print_name(text, graph->outputs[i].name);
        text_add(text, " ");
        print_reference(text, graph->outputs[i].value, options);
        text_add(text, "\n");
    }
    return text_status(text);
}

dw_status ir_print(const ir_graph *graph, text *text) {
    static const ir_print_options everything;
    return ir_print_with(graph, &everything, text);
}

dw_status ir_print_without_example(const ir_graph *graph, text *text) {
    static const ir_print_options options = {.without_example = true};
    return ir_print_with(graph, &options, text);
}
