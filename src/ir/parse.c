/* The text form of a graph, read. Every failure names source and line; nothing here trusts the text. Writing is print.c. */
#include "ir/internal.h"

#include <math.h>
#include <string.h>

enum { MAX_LIST = 64, MAX_CONST_ELEMENTS = 64 };

typedef struct parser {
    scanner *scanner;
    dw_context *context;
    ir_weights *weights;        /* NULL: params stay without data */
    ir_graph *graph;
    arena scratch;
    map results;                /* "7" -> ir_value of %7 */
} parser;

/* ---- values ---- */

static void result_key(int64_t id, char key[24]) { snprintf(key, 24, "%lld", (long long)id); }

/* A name, quoted or not. */
static dw_status parse_name(scanner *scanner, const char **name) {
    if (scanner->kind == SCAN_STRING) return scan_string(scanner, name);
    return scan_name(scanner, name);
}

/* %id or the name of an input, param or state. */
static dw_status parse_value(parser *parser, ir_value **value) {
    scanner *scanner = parser->scanner;
    if (scanner->kind == SCAN_VALUE) {
        char key[24];
        result_key(scanner->integer, key);
        *value = map_find(&parser->results, key);
        if (*value == NULL) return scan_fail(scanner, "expected a value of an earlier line; none above makes %%%s", key);
        return scan_next(scanner);
    }
    if (scanner->kind != SCAN_NAME && scanner->kind != SCAN_STRING) {
        return scan_fail(scanner, "expected a value: %%number, or the name of an input, param or state");
    }
    *value = map_find(&parser->graph->names, scanner->token);
    if (*value == NULL) return scan_fail(scanner, "expected the name of an input, param or state declared above");
    return scan_next(scanner);
}

/* ---- attributes ---- */

static dw_status parse_integers(parser *parser, op_attr *attr) {
    int64_t *integers;
    TRY_NEW(integers, &parser->scratch, MAX_LIST);
    attr->integers = integers;
    TRY(scan_expect(parser->scanner, "["));
    bool more = !scan_is(parser->scanner, "]");
    while (more) {
        if (attr->count == MAX_LIST) return scan_fail(parser->scanner, "expected ']': a list holds at most %d numbers", MAX_LIST);
        TRY(scan_integer(parser->scanner, &integers[attr->count++]));
        TRY(scan_accept(parser->scanner, ",", &more));
    }
    return scan_expect(parser->scanner, "]");
}

static dw_status parse_dims(parser *parser, op_attr *attr) {
    dim *dims;
    TRY_NEW(dims, &parser->scratch, MAX_LIST);
    attr->dims = dims;
    TRY(scan_expect(parser->scanner, "["));
    bool more = !scan_is(parser->scanner, "]");
    while (more) {
        if (attr->count == MAX_LIST) return scan_fail(parser->scanner, "expected ']': a list holds at most %d dimensions", MAX_LIST);
        TRY(dim_parse(parser->scanner, parser->graph->dims, &dims[attr->count++]));
        TRY(scan_accept(parser->scanner, ",", &more));
    }
    return scan_expect(parser->scanner, "]");
}

static dw_status parse_attr_value(parser *parser, op_attr *attr) {
    scanner *scanner = parser->scanner;
    switch (op_attr_kind_of(attr->id)) {
    case OP_KIND_INT: return scan_integer(scanner, &attr->integer);
    case OP_KIND_REAL: return scan_real(scanner, &attr->real);
    case OP_KIND_TEXT: return scan_string(scanner, &attr->text);
    case OP_KIND_DIM: return dim_parse(scanner, parser->graph->dims, &attr->dim);
    case OP_KIND_INTS: return parse_integers(parser, attr);
    case OP_KIND_DIMS: return parse_dims(parser, attr);
    case OP_KIND_BOOL:
        attr->integer = scan_is(scanner, "true");
        if (attr->integer == 0 && !scan_is(scanner, "false")) return scan_fail(scanner, "expected true or false for %s", op_attr_name(attr->id));
        return scan_next(scanner);
    case OP_KIND_FORMAT:
        attr->format = scanner->kind == SCAN_NAME ? dw_format_find(scanner->token) : DW_FORMAT_COUNT;
        if (attr->format == DW_FORMAT_COUNT) return scan_fail(scanner, "expected a number format for %s", op_attr_name(attr->id));
        return scan_next(scanner);
    }
    return base_fail(parser->context, DW_INTERNAL, "attribute %d is of no kind", (int)attr->id);
}

/* "{name=value,..}" when it is there; attrs has room for one of each. */
static dw_status parse_attrs(parser *parser, op_attr *attrs, int *count) {
    scanner *scanner = parser->scanner;
    bool more;
    TRY(scan_accept(scanner, "{", &more));
    if (!more) return DW_OK;
    more = !scan_is(scanner, "}");
    while (more) {
        op_attr attr = {.id = scanner->kind == SCAN_NAME ? op_attr_find(scanner->token) : OP_ATTR_COUNT};
        if (attr.id == OP_ATTR_COUNT) return scan_fail(scanner, "expected the name of an attribute");
        for (int i = 0; i < *count; i++) {
            if (attrs[i].id == attr.id) return scan_fail(scanner, "expected each attribute once");
        }
        TRY(scan_next(scanner));
        TRY(scan_expect(scanner, "="));
        TRY(parse_attr_value(parser, &attr));
        attrs[(*count)++] = attr;
        TRY(scan_accept(scanner, ",", &more));
    }
    return scan_expect(scanner, "}");
}

/* ---- nodes ---- */

static dw_status parse_origin(parser *parser) {
    ir_graph *graph = parser->graph;
    ir_origin origin = {0};
    struct { const char *keyword, **text; } parts[] = {
        {"at", &origin.module}, {"type", &origin.type}, {"name", &origin.name}, {"role", &origin.role},
        {"phase", &origin.phase},
    };
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        bool present;
        const char *text;
        TRY(scan_accept(parser->scanner, parts[i].keyword, &present));
        if (!present) continue;
        TRY(parse_name(parser->scanner, &text));
        TRY(ir_intern(graph, text, parts[i].text));
    }
    graph->origin = origin;
    return DW_OK;
}

static dw_status parse_operands(parser *parser, op_id op, ir_value **in, int *n_in) {
    bool more = op_get(op)->max_in > 0;
    while (more) {
        bool absent;
        if (*n_in == IR_MAX_IN) return scan_fail(parser->scanner, "expected at most %d operands", IR_MAX_IN);
        in[*n_in] = NULL;
        TRY(scan_accept(parser->scanner, "-", &absent));
        if (!absent) TRY(parse_value(parser, &in[*n_in]));
        ++*n_in;
        TRY(scan_accept(parser->scanner, ",", &more));
    }
    return DW_OK;
}

/* "%1, %2" */
static dw_status parse_results(parser *parser, int64_t *ids, int *count) {
    scanner *scanner = parser->scanner;
    bool more = true;
    while (more) {
        char key[24];
        if (scanner->kind != SCAN_VALUE) return scan_fail(scanner, "expected a result: %%number");
        if (*count == IR_MAX_OUT) return scan_fail(scanner, "expected at most %d results", IR_MAX_OUT);
        result_key(scanner->integer, key);
        bool taken = map_find(&parser->results, key) != NULL;
        for (int i = 0; i < *count; i++) taken = taken || ids[i] == scanner->integer;
        if (taken) return scan_fail(scanner, "expected a new value; %%%s is made above", key);
        ids[(*count)++] = scanner->integer;
        TRY(scan_next(scanner));
        TRY(scan_accept(scanner, ",", &more));
    }
    return DW_OK;
}

static dw_status parse_node(parser *parser) {
    scanner *scanner = parser->scanner;
    int64_t ids[IR_MAX_OUT];
    ir_value *in[IR_MAX_IN], *result;
    op_attr attrs[OP_ATTR_COUNT];
    int id_count = 0, n_in = 0, attr_count = 0;
    TRY(parse_results(parser, ids, &id_count));
    TRY(scan_expect(scanner, "="));
    op_id op = scanner->kind == SCAN_NAME ? op_find(scanner->token) : OP_COUNT;
    if (op == OP_COUNT) return scan_fail(scanner, "expected the name of an op");
    TRY(scan_next(scanner));
    TRY(parse_operands(parser, op, in, &n_in));
    TRY(parse_attrs(parser, attrs, &attr_count));
    TRY(parse_origin(parser));
    if (scanner->kind != SCAN_NEWLINE && scanner->kind != SCAN_END) return scan_fail(scanner, "expected the end of the line after %s", op_get(op)->name);
    TRY(ir_emit(parser->graph, op, n_in, in, attr_count, attrs, &result));
    if (result->node->n_out != id_count) {
        return base_fail(parser->context, DW_MISMATCH, "%s with these operands has %d results, %d are named", op_get(op)->name, result->node->n_out, id_count);
    }
    for (int i = 0; i < id_count; i++) {
        char key[24];
        result_key(ids[i], key);
        TRY(map_set(&parser->results, key, result->node->out[i]));
    }
    return DW_OK;
}

/* ---- named values ---- */

static dw_status parse_note(parser *parser) {
    const char *name, *value;
    TRY(parse_name(parser->scanner, &name));
    if (map_find(&parser->graph->notes, name) != NULL) return base_fail(parser->context, DW_INVALID, "note '%s' is given twice", name);
    TRY(scan_string(parser->scanner, &value));
    return ir_set_note(parser->graph, name, value);
}

static dw_status parse_symbol(parser *parser) {
    scanner *scanner = parser->scanner;
    const char *name;
    int64_t min, max = DIM_UNBOUNDED;
    dim symbol;
    TRY(scan_name(scanner, &name));
    if (dim_symbol_find(parser->graph->dims, name) >= 0) {
        return base_fail(parser->context, DW_INVALID, "symbol '%s' is known already; each is declared once, above the lines that use it", name);
    }
    TRY(scan_integer(scanner, &min));
    TRY(scan_expect(scanner, "."));
    TRY(scan_expect(scanner, "."));
    if (scanner->kind == SCAN_INTEGER) TRY(scan_integer(scanner, &max));
    if (min < 0 || max < min) {
        return base_fail(parser->context, DW_INVALID, "the range %lld..%lld of symbol '%s' is not allowed; give 0 <= min <= max", (long long)min, (long long)max, name);
    }
    TRY_DIM(parser->context, symbol, dim_symbol(parser->graph->dims, name, min, max));
    return DW_OK;
}

static dw_status parse_typed(parser *parser, const char **name, op_type *type) {
    TRY(parse_name(parser->scanner, name));
    return op_type_parse(parser->scanner, parser->graph->dims, type);
}

static dw_status parse_input(parser *parser) {
    const char *name;
    op_type type;
    ir_value *value;
    TRY(parse_typed(parser, &name, &type));
    return ir_add_input(parser->graph, name, &type, &value);
}

static dw_status parse_param(parser *parser) {
    const char *name;
    op_type type;
    ir_value *value;
    ir_weight *weight = NULL;
    TRY(parse_typed(parser, &name, &type));
    if (parser->weights != NULL) {
        weight = ir_weights_find(parser->weights, name);
        if (weight == NULL) return base_fail(parser->context, DW_NOT_FOUND, "param '%s' is not among the weights", name);
    }
    return ir_add_param(parser->graph, name, &type, weight, &value);
}

static dw_status parse_state(parser *parser) {
    const char *name;
    op_type type;
    ir_value *value;
    TRY(parse_typed(parser, &name, &type));
    bool trained;
    TRY(ir_add_state(parser->graph, name, &type, parser->weights != NULL ? ir_weights_find(parser->weights, name) : NULL, &value));
    TRY(scan_accept(parser->scanner, "trained", &trained));
    value->trained = trained;
    if (trained) value->rate = IR_RATE_UPDATE;
    return DW_OK;
}

/* ---- constants ---- */

static dw_status parse_element(parser *parser, const dw_tensor *tensor, const int64_t *index) {
    const num_format *info = num_info(tensor->format);
    if (info->class == NUM_FLOAT || info->class == NUM_SCALE) {
        double real;
        TRY(scan_real(parser->scanner, &real));
        op_tensor_store(tensor, index, real);
        return DW_OK;
    }
    int64_t integer;
    TRY(scan_integer(parser->scanner, &integer));
    double least = info->class == NUM_SIGNED ? -info->max - 1 : 0;
    if (info->bits < 64 && ((double)integer > info->max || (double)integer < least)) {
        return base_fail(parser->context, DW_INVALID, "%lld does not fit %s", (long long)integer, info->name);
    }
    op_tensor_store_int(tensor, index, integer);
    return DW_OK;
}

static dw_status parse_elements(parser *parser, const dw_tensor *tensor) {
    int64_t index[DW_MAX_RANK] = {0};
    int64_t count = op_tensor_count(tensor);
    TRY(scan_expect(parser->scanner, "="));
    for (int64_t i = 0; i < count; i++) {
        if (i > 0) TRY(scan_expect(parser->scanner, ","));
        TRY(parse_element(parser, tensor, index));
        op_tensor_next(tensor, index);
    }
    return DW_OK;
}

static bool same_elements(const dw_tensor *a, const dw_tensor *b) {
    int64_t index[DW_MAX_RANK] = {0};
    int64_t count = op_tensor_count(a);
    for (int64_t i = 0; i < count; i++) {
        double x = op_tensor_load(a, index), y = op_tensor_load(b, index);
        if (x != y && !(isnan(x) && isnan(y))) return false;
        if (x == 0 && signbit(x) != signbit(y)) return false;
        op_tensor_next(a, index);
    }
    return true;
}

/* Few elements of an element format, and constant sizes. */
static dw_status const_dims(parser *parser, const char *name, const op_type *type, int64_t *dims) {
    if (dw_format_is_block(type->format)) {
        return base_fail(parser->context, DW_INVALID, "const '%s': %s is a block format; constants in text have element formats", name, dw_format_name(type->format));
    }
    int64_t count = 1;
    for (int i = 0; i < type->rank; i++) {
        if (!dim_is_constant(type->dims[i], &dims[i])) return base_fail(parser->context, DW_INVALID, "const '%s': the size of axis %d is not a number", name, i);
        if (dims[i] < 0) return base_fail(parser->context, DW_INVALID, "const '%s': size %lld of axis %d is negative", name, (long long)dims[i], i);
        if (!base_mul_i64(count, dims[i], &count)) count = INT64_MAX;
    }
    if (count <= MAX_CONST_ELEMENTS) return DW_OK;
    return base_fail(parser->context, DW_LIMIT, "const '%s' has %lld elements; text holds at most %d, more are a param with weights", name, (long long)count, MAX_CONST_ELEMENTS);
}

static dw_status parse_const(parser *parser) {
    const char *name;
    op_type type;
    int64_t dims[DW_MAX_RANK];
    ir_value *value;
    ir_weight *weight;
    TRY(parse_typed(parser, &name, &type));
    TRY(const_dims(parser, name, &type, dims));
    ir_weight *known = parser->weights != NULL ? ir_weights_find(parser->weights, name) : NULL;
    if (parser->weights != NULL && known == NULL) {
        TRY(ir_weights_new(parser->weights, name, type.format, type.rank, dims, &weight));
    } else {
        TRY(ir_new_local_weight(parser->graph, name, type.format, type.rank, dims, &weight));
    }
    TRY(parse_elements(parser, &weight->tensor));
    if (known != NULL) {
        TRY(ir_match_weight(parser->graph, &type, known));
        if (!same_elements(&known->tensor, &weight->tensor)) {
            return base_fail(parser->context, DW_MISMATCH, "const '%s' has other elements than the weight of that name; take the weights that belong to the graph", name);
        }
        weight = known;
    }
    return ir_add_param(parser->graph, name, &type, weight, &value);
}

/* ---- what the nodes give ---- */

static dw_status parse_next(parser *parser) {
    const char *name;
    ir_value *value;
    TRY(parse_name(parser->scanner, &name));
    ir_value *state = map_find(&parser->graph->names, name);
    if (state == NULL || state->kind != IR_STATE) return base_fail(parser->context, DW_NOT_FOUND, "there is no state named '%s'", name);
    if (state->next != state) return base_fail(parser->context, DW_INVALID, "the next value of state '%s' is given twice", name);
    TRY(parse_value(parser, &value));
    if (!op_type_equal(&state->type, &value->type)) {
        text state_type, value_type;
        text_init(&state_type, parser->context);
        text_init(&value_type, parser->context);
        op_type_print(&state_type, parser->graph->dims, &state->type);
        op_type_print(&value_type, parser->graph->dims, &value->type);
        dw_status status = base_fail(parser->context, DW_MISMATCH, "state '%s' is %s, its next value is %s", name, text_string(&state_type), text_string(&value_type));
        text_free(&state_type);
        text_free(&value_type);
        return status;
    }
    ir_set_next(state, value);
    return DW_OK;
}

static dw_status parse_output(parser *parser) {
    const char *name;
    ir_value *value;
    TRY(parse_name(parser->scanner, &name));
    TRY(parse_value(parser, &value));
    return ir_add_output(parser->graph, name, value);
}

/* ---- the whole ---- */

static const struct { const char *keyword; dw_status (*parse)(parser *parser); } line_kinds[] = {
    {"note", parse_note}, {"symbol", parse_symbol}, {"input", parse_input}, {"param", parse_param}, {"const", parse_const},
    {"state", parse_state}, {"next", parse_next}, {"output", parse_output},
};

/* One line, if it is a graph line. */
static dw_status parse_line(parser *parser, bool *is_line) {
    scanner *scanner = parser->scanner;
    *is_line = true;
    if (scanner->kind == SCAN_VALUE) {
        TRY(parse_node(parser));
        return scan_end_of_line(scanner);
    }
    for (size_t i = 0; i < COUNT_OF(line_kinds); i++) {
        if (scanner->kind != SCAN_NAME || !scan_is(scanner, line_kinds[i].keyword)) continue;
        TRY(scan_next(scanner));
        TRY(line_kinds[i].parse(parser));
        return scan_end_of_line(scanner);
    }
    *is_line = false;
    return DW_OK;
}

/* The place behind the message, unless the scanner has named it already. */
static dw_status fail_at_line(const parser *parser, dw_status status, int line) {
    char place[256];
    int length = snprintf(place, sizeof place, "%.200s:%d", parser->scanner->source, line);
    if (length < 0 || status == DW_NO_MEMORY || strstr(dw_context_error(parser->context), place) != NULL) return status;
    return base_fail_at(parser->context, status, "%s", place);
}

static dw_status parse_lines(parser *parser) {
    bool more = true;
    while (more) {
        int line = parser->scanner->line;
        dw_status status = parse_line(parser, &more);
        if (status != DW_OK) return fail_at_line(parser, status, line);
    }
    parser->graph->origin = (ir_origin){0};
    return DW_OK;
}

dw_status ir_parse_at(scanner *scanner, ir_weights *weights, ir_graph **graph) {
    *graph = NULL;
    const char *name;
    while (scanner->kind == SCAN_NEWLINE) TRY(scan_next(scanner));
    if (!scan_is(scanner, "graph")) return scan_fail(scanner, "expected 'graph', as a graph in text begins (an export, .pt2, is a zip archive, and a compiled model, .dw, begins with DEEPWELL)");
    TRY(scan_next(scanner));
    TRY(parse_name(scanner, &name));
    TRY(scan_end_of_line(scanner));
    parser parser = {.scanner = scanner, .context = scanner->context, .weights = weights};
    TRY(ir_graph_create(scanner->context, name, &parser.graph));
    parser.graph->weights = weights;
    arena_init(&parser.scratch, scanner->context);
    map_init(&parser.results, &parser.scratch);
    dw_status status = parse_lines(&parser);
    arena_free(&parser.scratch);
    if (status != DW_OK) {
        ir_graph_destroy(parser.graph);
        return status;
    }
    *graph = parser.graph;
    return DW_OK;
}

dw_status ir_parse(dw_context *context, const char *source, const char *bytes, size_t length, ir_weights *weights, ir_graph **graph) {
    *graph = NULL;
    arena strings;
    scanner scanner;
    ir_graph *parsed = NULL;
    arena_init(&strings, context);
    dw_status status = scan_open(&scanner, &strings, source, bytes, length);
    if (status == DW_OK) status = ir_parse_at(&scanner, weights, &parsed);
    if (status == DW_OK && scanner.kind != SCAN_END) {
        status = scan_fail(&scanner, "expected a line of a graph: note, symbol, input, param, const, state, %%number, next or output");
    }
    arena_free(&strings);
    if (status != DW_OK) {
        ir_graph_destroy(parsed);
        return status;
    }
    *graph = parsed;
    return DW_OK;
}

dw_status ir_parse_attrs(ir_graph *graph, arena *lists, const char *text, op_attr *attrs, int *count) {
    scanner scanner;
    *count = 0;
    size_t length = strlen(text);
    char *braced = arena_printf(&graph->arena, "{%s}", text);
    if (braced == NULL) return DW_NO_MEMORY;
    TRY(scan_open(&scanner, &graph->arena, "attributes", braced, length + 2));
    parser parser = {.scanner = &scanner, .context = graph->context, .graph = graph, .scratch = *lists};
    dw_status status = parse_attrs(&parser, attrs, count);
    if (status == DW_OK && scanner.kind != SCAN_END) status = scan_fail(&scanner, "expected the end of the attributes");
    *lists = parser.scratch;
    return status;
}
