/* What every rule needs of a node: its arguments by name, defaults included, and its results. */
#include "capture/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POSITIONAL = 1 };       /* ArgumentKind of the schema */

/* ---- arguments from JSON ---- */

static dw_status dangling(capture_call *call, const char *name) {
    return capture_fail(call, DW_CORRUPT, "'%.100s' is the name of no value before this node; the program is damaged", name != NULL ? name : "(none)");
}

static dw_status read_tensor(capture_call *call, const json_t *from, capture_tensor **tensor) {
    const char *name = json_string_value(json_object_get(from, "name"));
    *tensor = name == NULL ? NULL : map_find(&call->scope->tensors, name);
    return *tensor != NULL ? DW_OK : dangling(call, name);
}

/* {"as_tensor": {"name": ..}} or {"as_none": ..} */
static dw_status read_optional_tensor(capture_call *call, const json_t *from, capture_tensor **tensor) {
    const json_t *there = json_object_get(from, "as_tensor");
    *tensor = NULL;
    return json_is_object(there) ? read_tensor(call, there, tensor) : DW_OK;
}

static const json_t *find_symbol(const capture_scope *scope, const char *name, bool is_float) {
    for (; scope != NULL && name != NULL; scope = scope->outer) {
        const json_t *found = json_object_get(is_float ? scope->sym_floats : scope->sym_ints, name);
        if (found != NULL) return found;
    }
    return NULL;
}

static capture_tensor *find_item(const capture_scope *scope, const char *name) {
    capture_tensor *item = NULL;
    for (; item == NULL && scope != NULL && name != NULL; scope = scope->outer) item = map_find(&scope->items, name);
    return item;
}

/* {"as_int": ..} or {"as_name": ..}; NULL where the size is known from the data alone. */
static dw_status read_sym_int(capture_call *call, const json_t *from, dim *value) {
    if (json_is_integer(json_object_get(from, "as_int"))) return capture_read_size(call->capture, from, value);
    const char *name = json_string_value(json_object_get(from, "as_name"));
    const json_t *symbol = find_symbol(call->scope, name, false);
    if (symbol == NULL) return dangling(call, name);
    if (capture_needs_data(call->capture, symbol)) return *value = NULL, DW_OK;
    return capture_read_size(call->capture, symbol, value);
}

static const char data_size[] = "a number that only the data tell";

/* A number that was taken from a tensor stands for that tensor; other numbers known from the data alone stay opaque. */
static dw_status read_one_sym_int(capture_call *call, const json_t *from, capture_arg *arg) {
    dim size;
    TRY(read_sym_int(call, from, &size));
    *arg = (capture_arg){.kind = ARG_INT, .integer = size};
    if (size != NULL) return DW_OK;
    capture_tensor *item = find_item(call->scope, json_string_value(json_object_get(from, "as_name")));
    *arg = item != NULL ? (capture_arg){.kind = ARG_TENSOR, .tensor = item, .is_item = true} : (capture_arg){.kind = ARG_OPAQUE, .text = data_size};
    return DW_OK;
}

static dw_status read_real(capture_call *call, const json_t *from, double *value) {
    static const struct { const char *name; double value; } words[] = {{"Infinity", INFINITY}, {"-Infinity", -INFINITY}, {"NaN", NAN}};
    const char *word = json_string_value(from);
    for (size_t i = 0; word != NULL && i < COUNT_OF(words); i++) {
        if (strcmp(word, words[i].name) == 0) {
            *value = words[i].value;
            return DW_OK;
        }
    }
    if (!json_is_number(from)) return capture_fail(call, DW_CORRUPT, "an argument that should be a number is none");
    *value = json_number_value(from);
    return DW_OK;
}

/* A symbolic float is known when it is written as a number, or as a size that is one. */
static dw_status read_sym_float(capture_call *call, const json_t *from, capture_arg *arg) {
    const json_t *known = json_object_get(from, "as_float");
    const json_t *symbol = find_symbol(call->scope, json_string_value(json_object_get(from, "as_name")), true);
    capture_tensor *item = find_item(call->scope, json_string_value(json_object_get(from, "as_name")));
    if (known == NULL) known = json_object_get(symbol, "as_float");
    if (item != NULL) return *arg = (capture_arg){.kind = ARG_TENSOR, .tensor = item, .is_item = true}, DW_OK;
    arg->kind = ARG_REAL;
    if (known != NULL) return read_real(call, known, &arg->real);
    *arg = (capture_arg){.kind = ARG_OPAQUE, .text = "a floating-point number computed from sizes"};
    return DW_OK;
}

typedef dw_status (*size_reader)(capture_call *call, const json_t *from, dim *value);

static dw_status read_int(capture_call *call, const json_t *from, dim *value) {
    if (!json_is_integer(from)) return capture_fail(call, DW_CORRUPT, "an argument that should be an integer is none");
    TRY_DIM(call->capture->context, *value, dim_constant(call->dims, json_integer_value(from)));
    return DW_OK;
}

static dw_status read_sizes(capture_call *call, const json_t *list, size_reader read, capture_arg *arg) {
    size_t count = json_array_size(list);
    dim *values;
    TRY_NEW(values, &call->capture->arena, count);
    for (size_t i = 0; i < count; i++) {
        TRY(read(call, json_array_get(list, i), &values[i]));
        if (values[i] == NULL) return *arg = (capture_arg){.kind = ARG_OPAQUE, .text = data_size}, DW_OK;
    }
    *arg = (capture_arg){.kind = ARG_INTS, .count = (int)count, .integers = values};
    return DW_OK;
}

static dw_status read_reals(capture_call *call, const json_t *list, capture_arg *arg) {
    size_t count = json_array_size(list);
    double *values;
    TRY_NEW(values, &call->capture->arena, count);
    for (size_t i = 0; i < count; i++) TRY(read_real(call, json_array_get(list, i), &values[i]));
    *arg = (capture_arg){.kind = ARG_REALS, .count = (int)count, .reals = values};
    return DW_OK;
}

typedef dw_status (*tensor_reader)(capture_call *call, const json_t *from, capture_tensor **tensor);

static dw_status read_tensors(capture_call *call, const json_t *list, tensor_reader read, capture_arg *arg) {
    size_t count = json_array_size(list);
    *arg = (capture_arg){.kind = ARG_TENSORS, .count = (int)count};
    TRY_NEW(arg->tensors, &call->capture->arena, count);
    for (size_t i = 0; i < count; i++) TRY(read(call, json_array_get(list, i), &arg->tensors[i]));
    return DW_OK;
}

/* The union's one member is the kind. Kinds that no rule here reads stay opaque: an error only where a rule needs them. */
static dw_status read_arg(capture_call *call, const json_t *from, capture_arg *arg) {
    const char *tag = json_object_iter_key(json_object_iter((json_t *)from));
    const json_t *value = tag == NULL ? NULL : json_object_get(from, tag);
    if (tag == NULL) return capture_fail(call, DW_CORRUPT, "an argument without a value");
    if (strcmp(tag, "as_none") == 0) return *arg = (capture_arg){.kind = ARG_NONE}, DW_OK;
    if (strcmp(tag, "as_tensor") == 0) return arg->kind = ARG_TENSOR, read_tensor(call, value, &arg->tensor);
    if (strcmp(tag, "as_tensors") == 0) return read_tensors(call, value, read_tensor, arg);
    if (strcmp(tag, "as_optional_tensors") == 0) return read_tensors(call, value, read_optional_tensor, arg);
    if (strcmp(tag, "as_optional_tensor") == 0) {
        TRY(read_optional_tensor(call, value, &arg->tensor));
        arg->kind = arg->tensor != NULL ? ARG_TENSOR : ARG_NONE;
        return DW_OK;
    }
    if (strcmp(tag, "as_int") == 0) return arg->kind = ARG_INT, read_int(call, value, &arg->integer);
    if (strcmp(tag, "as_sym_int") == 0) return read_one_sym_int(call, value, arg);
    if (strcmp(tag, "as_ints") == 0) return read_sizes(call, value, read_int, arg);
    if (strcmp(tag, "as_sym_ints") == 0) return read_sizes(call, value, read_sym_int, arg);
    if (strcmp(tag, "as_float") == 0) return arg->kind = ARG_REAL, read_real(call, value, &arg->real);
    if (strcmp(tag, "as_sym_float") == 0) return read_sym_float(call, value, arg);
    if (strcmp(tag, "as_floats") == 0) return read_reals(call, value, arg);
    if (strcmp(tag, "as_bool") == 0) return *arg = (capture_arg){.kind = ARG_BOOL, .truth = json_is_true(value)}, DW_OK;
    if (strcmp(tag, "as_string") == 0 && json_is_string(value)) return *arg = (capture_arg){.kind = ARG_TEXT, .text = json_string_value(value)}, DW_OK;
    if (strcmp(tag, "as_scalar_type") == 0) return *arg = (capture_arg){.kind = ARG_FORMAT, .format = capture_format_of(json_integer_value(value))}, DW_OK;
    if (strcmp(tag, "as_memory_format") == 0 || strcmp(tag, "as_layout") == 0 || strcmp(tag, "as_device") == 0) return arg->kind = ARG_IGNORED, DW_OK;
    *arg = (capture_arg){.kind = ARG_OPAQUE, .text = tag};
    return DW_OK;
}

/* ---- arguments from the row ---- */

/* The literal behind '=' in a row. */
static dw_status read_default(capture_call *call, const char *literal, capture_arg *arg) {
    *arg = (capture_arg){.kind = ARG_NONE};
    if (strcmp(literal, "None") == 0) return DW_OK;
    if (strcmp(literal, "True") == 0 || strcmp(literal, "False") == 0) return arg->kind = ARG_BOOL, arg->truth = literal[0] == 'T', DW_OK;
    if (strcmp(literal, "[]") == 0) return arg->kind = ARG_INTS, DW_OK;
    if (literal[0] == '\'') {
        arg->kind = ARG_TEXT;
        arg->text = arena_text_n(&call->capture->arena, literal + 1, strlen(literal) - 2);
        return arg->text == NULL ? DW_NO_MEMORY : DW_OK;
    }
    if (strpbrk(literal, ".e") != NULL) return arg->kind = ARG_REAL, arg->real = strtod(literal, NULL), DW_OK;
    arg->kind = ARG_INT;
    TRY_DIM(call->capture->context, arg->integer, dim_constant(call->dims, strtoll(literal, NULL, 10)));
    return DW_OK;
}

/* "self, other, *, alpha=1" -> names, and the defaults into args; those without one are ARG_NONE. */
static dw_status read_row(capture_call *call) {
    char *at = arena_text(&call->capture->arena, call->row->arguments);
    const char **names;
    TRY_NEW(names, &call->capture->arena, CAPTURE_MAX_ARGS);
    if (at == NULL) return DW_NO_MEMORY;
    call->arg_names = names;
    while (*at != '\0') {
        char *end = at + strcspn(at, ","), *rest = *end == ',' ? end + 1 + strspn(end + 1, " ") : end;
        *end = '\0';
        char *literal = strchr(at, '=');
        if (literal != NULL) *literal++ = '\0';
        if (strcmp(at, "*") != 0) {
            capture_arg *arg = &call->args[call->arg_count];
            names[call->arg_count++] = at;
            if (literal != NULL) TRY(read_default(call, literal, arg));
            else *arg = (capture_arg){.kind = ARG_NONE};
        }
        at = rest;
    }
    return DW_OK;
}

dw_status capture_read_args(capture_call *call) {
    TRY(read_row(call));
    const json_t *inputs = json_object_get(call->node, "inputs");
    size_t position;
    json_t *input;
    json_array_foreach(inputs, position, input) {
        const char *name = json_string_value(json_object_get(input, "name"));
        int index = 0;
        while (index < call->arg_count && (name == NULL || strcmp(call->arg_names[index], name) != 0)) index++;
        bool positional = name == NULL || name[0] == '\0' || json_integer_value(json_object_get(input, "kind")) == POSITIONAL;
        if (index == call->arg_count && positional && position < (size_t)call->arg_count) index = (int)position;
        capture_arg arg = {.kind = ARG_NONE};
        TRY(read_arg(call, json_object_get(input, "arg"), &arg));
        if (index < call->arg_count) {
            call->args[index] = arg;
        } else if (arg.kind != ARG_NONE && arg.kind != ARG_IGNORED && !(arg.kind == ARG_BOOL && !arg.truth)) {
            return capture_fail(call, DW_UNSUPPORTED, "argument '%.60s' is not supported", name != NULL ? name : "?");
        }
    }
    return DW_OK;
}

/* ---- asking for arguments ---- */

const capture_arg *capture_find_arg(const capture_call *call, const char *name) {
    for (int i = 0; i < call->arg_count; i++) {
        if (strcmp(call->arg_names[i], name) == 0) return &call->args[i];
    }
    return NULL;
}

bool capture_has(const capture_call *call, const char *name) {
    const capture_arg *arg = capture_find_arg(call, name);
    return arg != NULL && arg->kind != ARG_NONE;
}

/* The argument, of one of two kinds. */
static dw_status need(capture_call *call, const char *name, capture_arg_kind kind, capture_arg_kind other, const char *what, const capture_arg **arg) {
    *arg = capture_find_arg(call, name);
    if (*arg != NULL && ((*arg)->kind == kind || (*arg)->kind == other)) return DW_OK;
    if (*arg == NULL || (*arg)->kind == ARG_NONE) return capture_fail(call, DW_CORRUPT, "argument '%s' is missing", name);
    if ((*arg)->kind == ARG_OPAQUE || (*arg)->is_item) {
        return capture_fail(call, DW_UNSUPPORTED, "argument '%s' is %s", name, (*arg)->is_item ? data_size : (*arg)->text);
    }
    return capture_fail(call, DW_UNSUPPORTED, "argument '%s' is not %s", name, what);
}

dw_status capture_tensor_arg(capture_call *call, const char *name, capture_tensor **tensor) {
    const capture_arg *arg;
    TRY(need(call, name, ARG_TENSOR, ARG_TENSOR, "a tensor", &arg));
    *tensor = arg->tensor;
    return DW_OK;
}

dw_status capture_value_arg(capture_call *call, const char *name, ir_value **value) {
    capture_tensor *tensor;
    TRY(capture_tensor_arg(call, name, &tensor));
    return capture_read(call->capture, tensor, value);
}

dw_status capture_optional_arg(capture_call *call, const char *name, ir_value **value) {
    *value = NULL;
    return capture_has(call, name) ? capture_value_arg(call, name, value) : DW_OK;
}

dw_status capture_operand_arg(capture_call *call, const char *name, dw_format format, ir_value **value) {
    const capture_arg *arg = capture_find_arg(call, name);
    int64_t integer;
    if (arg != NULL && arg->kind == ARG_REAL) return ir_emit_scalar(call->graph, format, arg->real, value);
    if (arg != NULL && arg->kind == ARG_BOOL) return ir_emit_scalar(call->graph, format, arg->truth, value);
    if (arg != NULL && arg->kind == ARG_INT) {
        if (dim_is_constant(arg->integer, &integer)) return ir_emit_scalar(call->graph, format, (double)integer, value);
        TRY(ir_emit_size(call->graph, arg->integer, value));
    } else {
        TRY(capture_value_arg(call, name, value));
    }
    return ir_emit_cast(call->graph, *value, format, value);
}

dw_status capture_tensors_arg(capture_call *call, const char *name, int *count, capture_tensor *const **tensors) {
    const capture_arg *arg;
    TRY(need(call, name, ARG_TENSORS, ARG_TENSORS, "a list of tensors", &arg));
    *count = arg->count;
    *tensors = arg->tensors;
    return DW_OK;
}

dw_status capture_dim_arg(capture_call *call, const char *name, dim *value) {
    const capture_arg *arg;
    TRY(need(call, name, ARG_INT, ARG_INT, "an integer", &arg));
    *value = arg->integer;
    return DW_OK;
}

dw_status capture_dims_arg(capture_call *call, const char *name, int *count, const dim **values) {
    const capture_arg *arg;
    TRY(need(call, name, ARG_INTS, ARG_INT, "a list of integers", &arg));
    *count = arg->kind == ARG_INT ? 1 : arg->count;
    *values = arg->kind == ARG_INT ? &arg->integer : arg->integers;
    return DW_OK;
}

dw_status capture_int_arg(capture_call *call, const char *name, int64_t *value) {
    dim size;
    TRY(capture_dim_arg(call, name, &size));
    return dim_is_constant(size, value) ? DW_OK : capture_fail(call, DW_UNSUPPORTED, "argument '%s' depends on a dynamic size; it must be a constant", name);
}

dw_status capture_ints_arg(capture_call *call, const char *name, int *count, int64_t *values) {
    const dim *sizes;
    TRY(capture_dims_arg(call, name, count, &sizes));
    if (*count > DW_MAX_RANK) return capture_fail(call, DW_UNSUPPORTED, "argument '%s' has %d entries; at most %d are supported", name, *count, DW_MAX_RANK);
    for (int i = 0; i < *count; i++) {
        if (!dim_is_constant(sizes[i], &values[i])) return capture_fail(call, DW_UNSUPPORTED, "argument '%s' depends on a dynamic size; it must be constant", name);
    }
    return DW_OK;
}

static dw_status wrap_axis(capture_call *call, const char *name, int rank, int64_t given, int *axis) {
    int64_t wrapped = given < 0 ? given + (rank > 0 ? rank : 1) : given;
    if (wrapped < 0 || wrapped >= (rank > 0 ? rank : 1)) {
        return capture_fail(call, DW_CORRUPT, "%s=%lld is no axis of a tensor with %d axes", name, (long long)given, rank);
    }
    *axis = (int)wrapped;
    return DW_OK;
}

dw_status capture_axis_arg(capture_call *call, const char *name, int rank, int *axis) {
    int64_t given;
    TRY(capture_int_arg(call, name, &given));
    return wrap_axis(call, name, rank, given, axis);
}

dw_status capture_axes_arg(capture_call *call, const char *name, int rank, int *count, int64_t *axes) {
    int64_t given[DW_MAX_RANK];
    bool chosen[DW_MAX_RANK] = {false};
    int n = 0;
    if (capture_has(call, name)) TRY(capture_ints_arg(call, name, &n, given));
    for (int i = 0; i < n; i++) {
        int axis = 0;
        TRY(wrap_axis(call, name, rank, given[i], &axis));
        chosen[axis] = true;
    }
    *count = 0;
    for (int i = 0; i < rank; i++) {
        if (n == 0 || chosen[i]) axes[(*count)++] = i;
    }
    return DW_OK;
}

dw_status capture_real_arg(capture_call *call, const char *name, double *value) {
    const capture_arg *arg = capture_find_arg(call, name);
    int64_t integer;
    if (arg != NULL && arg->kind == ARG_BOOL) return *value = arg->truth, DW_OK;
    TRY(need(call, name, ARG_REAL, ARG_INT, "a number", &arg));
    if (arg->kind == ARG_REAL) return *value = arg->real, DW_OK;
    if (!dim_is_constant(arg->integer, &integer)) return capture_fail(call, DW_UNSUPPORTED, "argument '%s' depends on a dynamic size; it must be a constant", name);
    *value = (double)integer;
    return DW_OK;
}

dw_status capture_bool_arg(capture_call *call, const char *name, bool *value) {
    const capture_arg *arg;
    TRY(need(call, name, ARG_BOOL, ARG_BOOL, "true or false", &arg));
    *value = arg->truth;
    return DW_OK;
}

dw_status capture_text_arg(capture_call *call, const char *name, const char **value) {
    const capture_arg *arg;
    TRY(need(call, name, ARG_TEXT, ARG_TEXT, "a string", &arg));
    *value = arg->text;
    return DW_OK;
}

dw_status capture_format_arg(capture_call *call, const char *name, dw_format fallback, dw_format *value) {
    const capture_arg *arg = capture_find_arg(call, name);
    *value = fallback;
    if (arg != NULL && arg->kind == ARG_FORMAT) *value = arg->format;
    return *value != DW_FORMAT_COUNT ? DW_OK : capture_fail(call, DW_UNSUPPORTED, "a dtype that has no format here");
}

/* ---- results ---- */

dw_format capture_result_format(const capture_call *call, int index, dw_format fallback) {
    if (index >= call->result_count || call->types[index].format == DW_FORMAT_COUNT) return fallback;
    return call->types[index].format;
}

dw_status capture_result_tensor(capture_call *call, int index, capture_tensor *tensor) {
    if (index < call->result_count) call->results[index] = tensor;
    return DW_OK;
}

dw_status capture_result_copy(capture_call *call, int index, ir_value *value, capture_tensor *of) {
    if (index >= call->result_count) return DW_OK;
    TRY(capture_result(call, index, value));
    call->results[index]->is_copy = true;
    of->root->is_copied = true;
    return DW_OK;
}

dw_status capture_result(capture_call *call, int index, ir_value *value) {
    if (index >= call->result_count) return DW_OK;
    TRY(ir_emit_cast(call->graph, value, capture_result_format(call, index, value->type.format), &value));
    return capture_fresh(call->capture, value, &call->results[index]);
}
