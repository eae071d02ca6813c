/* From the exported program's JSON to a graph: inputs, nodes in order with nested graphs inlined, outputs and mutations.
 * What no rule can capture is collected and reported at once, when the outputs depend on it. */
#include "capture/program.h"

#include <string.h>

enum { SCHEMA_MAJOR = 8, NESTING_MAX = 32, PLACES_SHOWN = 3, NOTED = 12 };

/* An operator without a row: how often, and where first. */
typedef struct missing { int count, places; const char *place[PLACES_SHOWN]; } missing;

static dw_status corrupt(const capture *capture, const char *what) {
    return base_fail(capture->context, DW_CORRUPT, "%s: %s; the exported program is damaged", capture->source, what);
}

/* ---- origins ---- */

/* The innermost of "key,path,class;key,path,class": its path without "slice(..)" steps, and the last word of its class. */
static dw_status read_origin(capture *capture, const json_t *node, ir_origin *origin) {
    const char *stack = json_string_value(json_object_get(json_object_get(node, "metadata"), "nn_module_stack"));
    const char *name = json_string_value(json_object_get(node, "name"));
    arena *arena = &capture->graph->arena;
    if (name != NULL && (origin->name = arena_text(arena, name)) == NULL) return DW_NO_MEMORY;
    if (stack == NULL || stack[0] == '\0') return DW_OK;
    origin->role = capture_role_of(stack);
    const char *last = strrchr(stack, ';');
    last = last != NULL ? last + 1 : stack;
    const char *path = strchr(last, ','), *type = strrchr(last, ',');
    if (path == NULL || path == type) return DW_OK;
    char *module = arena_text_n(arena, path + 1, (size_t)(type - path - 1));
    if (module == NULL) return DW_NO_MEMORY;
    for (char *step; (step = strstr(module, ".slice(")) != NULL;) {
        char *end = strchr(step, ')');
        if (end == NULL) break;
        memmove(step, end + 1, strlen(end + 1) + 1);
    }
    const char *word = strrchr(type, '.');
    origin->module = module[0] != '\0' ? module : NULL;
    origin->type = arena_text(arena, word != NULL ? word + 1 : type + 1);
    return origin->type != NULL ? DW_OK : DW_NO_MEMORY;
}

/* ---- what could not be captured ---- */

static dw_status note_missing(capture *capture, const char *target) {
    missing *entry = map_find(&capture->missing, target);
    if (entry == NULL) {
        TRY_NEW(entry, &capture->arena, 1);
        TRY(map_set(&capture->missing, target, entry));
    }
    const char *module = capture->graph->origin.module;
    entry->count++;
    for (int i = 0; i < entry->places; i++) {
        if (module == NULL || strcmp(entry->place[i], module) == 0) return DW_OK;
    }
    if (module != NULL && entry->places < PLACES_SHOWN) entry->place[entry->places++] = module;
    return DW_OK;
}

/* Only NOTED of them are reported one by one: a program may have thousands. */
static dw_status note_text(capture *capture, const char *message) {
    if (capture->unsupported_count++ < NOTED) text_printf(&capture->unsupported, "%s%s", capture->unsupported_count > 1 ? "; " : "", message);
    return text_status(&capture->unsupported);
}

/* The last message, which says why one node could not be captured, without its status. */
static dw_status note_unsupported(capture *capture) {
    const char *message = dw_context_error(capture->context), *text = strstr(message, ": ");
    return note_text(capture, text != NULL ? text + 2 : message);
}

static dw_status report_unsupported(capture *capture) {
    text list;
    text_init(&list, capture->context);
    for (size_t i = 0; i < capture->missing.count; i++) {
        const missing *entry = capture->missing.entries[i].value;
        text_printf(&list, "%s%s (%d %s", i > 0 ? ", " : "", capture->missing.entries[i].key, entry->count, entry->count == 1 ? "time" : "times");
        for (int p = 0; p < entry->places; p++) text_printf(&list, "%s%s", p > 0 ? ", " : ": ", entry->place[p]);
        text_add(&list, ")");
    }
    if (capture->unsupported_count > NOTED) text_printf(&capture->unsupported, "; and %zu more like these", capture->unsupported_count - NOTED);
    dw_status status = text_status(&list);
    if (status == DW_OK && capture->missing.count > 0) {
        status = base_fail(capture->context, DW_UNSUPPORTED, "%s: %zu %s not supported: %s%s%s (`deepwell inspect --operators` lists those that are; `run_decompositions({})` "
                           "on the exported program spells many others out in them)",
                           capture->source, capture->missing.count, capture->missing.count == 1 ? "operator is" : "operators are", text_string(&list),
                           capture->unsupported_count > 0 ? "; and " : "", text_string(&capture->unsupported));
    } else if (status == DW_OK) {
        status = base_fail(capture->context, DW_UNSUPPORTED, "%s", text_string(&capture->unsupported));
    }
    text_free(&list);
    return status;
}

/* ---- nodes ---- */

static bool is_poisoned(const capture_tensor *tensor) { return tensor != NULL && (tensor->poisoned || tensor->root->poisoned); }

/* A result that its operator's rule does not compute is reported when something uses it. */
static dw_status meet_poison(capture *capture, capture_tensor *tensor, bool *poisoned) {
    if (!is_poisoned(tensor)) return DW_OK;
    *poisoned = true;
    const char *message = tensor->unset;
    tensor->unset = NULL;
    return message != NULL ? note_text(capture, message) : DW_OK;
}

static dw_status find_poison(capture_call *call, bool *poisoned) {
    *poisoned = false;
    for (int i = 0; i < call->arg_count; i++) {
        const capture_arg *arg = &call->args[i];
        if (arg->kind == ARG_TENSOR) TRY(meet_poison(call->capture, arg->tensor, poisoned));
        for (int t = 0; arg->kind == ARG_TENSORS && t < arg->count; t++) TRY(meet_poison(call->capture, arg->tensors[t], poisoned));
    }
    return DW_OK;
}

static dw_status count_results(capture *capture, const json_t *outputs, int *count) {
    size_t index;
    json_t *output;
    size_t total = 0;
    json_array_foreach(outputs, index, output) {
        const json_t *list = json_object_get(output, "as_tensors");
        if (json_is_object(json_object_get(output, "as_tensor")) || json_object_get(output, "as_none") != NULL) total++;
        total += json_array_size(list);
    }
    if (total > 1 << 16) return base_fail(capture->context, DW_LIMIT, "%s: a node has %zu results", capture->source, total);
    *count = (int)total;
    return DW_OK;
}

static void place_result(capture_call *call, int *at, const json_t *tensor) {
    const char *name = json_string_value(json_object_get(tensor, "name"));
    call->result_names[*at] = name;
    call->result_metas[*at] = name == NULL ? NULL : json_object_get(call->scope->tensor_values, name);
    call->types[*at].format = DW_FORMAT_COUNT;
    (*at)++;
}

static dw_status read_results(capture_call *call) {
    arena *arena = &call->capture->arena;
    const json_t *outputs = json_object_get(call->node, "outputs");
    TRY(count_results(call->capture, outputs, &call->result_count));
    TRY_NEW(call->types, arena, call->result_count);
    TRY_NEW(call->result_names, arena, call->result_count);
    TRY_NEW(call->result_metas, arena, call->result_count);
    TRY_NEW(call->results, arena, call->result_count);
    int at = 0;
    size_t index, within;
    json_t *output, *item;
    json_array_foreach(outputs, index, output) {
        const json_t *one = json_object_get(output, "as_tensor");
        if (json_is_object(one) || json_object_get(output, "as_none") != NULL) place_result(call, &at, one);
        json_array_foreach(json_object_get(output, "as_tensors"), within, item) place_result(call, &at, item);
    }
    for (int i = 0; i < call->result_count; i++) {
        if (call->result_metas[i] != NULL) TRY(capture_read_type(call->capture, call->result_metas[i], call->result_names[i], &call->types[i]));
    }
    return DW_OK;
}

static dw_status check_result(capture_call *call, int index) {
    const op_type *recorded = &call->types[index], *made = &call->results[index]->type;
    if (recorded->format == DW_FORMAT_COUNT) return DW_OK;
    bool same = made->rank == recorded->rank && made->format == recorded->format;
    for (int i = 0; same && i < made->rank; i++) {
        int64_t a, b;
        same = !dim_is_constant(made->dims[i], &a) || !dim_is_constant(recorded->dims[i], &b) || a == b;
    }
    if (same) return DW_OK;
    text types;
    text_init(&types, call->capture->context);
    op_type_print(&types, call->dims, recorded);
    text_add(&types, ", its operands give ");
    op_type_print(&types, call->dims, made);
    dw_status status = text_status(&types);
    if (status == DW_OK) status = capture_fail(call, DW_CORRUPT, "result %d is recorded as %s; the program is damaged", index, text_string(&types));
    text_free(&types);
    return status;
}

static dw_status name_unset(capture_call *call, int index) {
    char *message = arena_printf(&call->capture->arena, "%s: %s: result %d is not computed here, and something needs it (node '%s')",
                                 call->capture->source, call->target, index, call->name);
    call->results[index]->unset = message;
    return message == NULL ? DW_NO_MEMORY : DW_OK;
}

/* Makes the results known by name; those that no rule has set are poisoned. */
static dw_status bind_results(capture_call *call, bool poisoned) {
    for (int i = 0; i < call->result_count; i++) {
        if (call->result_names[i] == NULL) continue;
        if (poisoned || call->results[i] == NULL) {
            TRY(capture_poison(call->capture, &call->results[i]));
            if (!poisoned) TRY(name_unset(call, i));
        } else {
            TRY(check_result(call, i));
        }
        if (call->results[i]->name == NULL) call->results[i]->name = call->result_names[i];
        if (call->results[i]->meta == NULL) call->results[i]->meta = call->result_metas[i];
        if (map_find(&call->scope->tensors, call->result_names[i]) != NULL) return capture_fail(call, DW_CORRUPT, "the name '%.100s' is given twice", call->result_names[i]);
        TRY(map_set(&call->scope->tensors, call->result_names[i], call->results[i]));
    }
    return DW_OK;
}

/* The first result becomes the new value of the first argument, and stands for it. */
static dw_status write_in_place(capture_call *call) {
    capture_tensor *self = call->args[0].kind == ARG_TENSOR ? call->args[0].tensor : NULL, *made = call->result_count > 0 ? call->results[0] : NULL;
    ir_value *value, *old;
    if (self == NULL || made == NULL) return capture_fail(call, DW_CORRUPT, "an operator that writes in place has nothing to write to");
    TRY(capture_read(call->capture, made, &value));
    TRY(capture_read(call->capture, self, &old));
    TRY(ir_emit_cast(call->graph, value, self->type.format, &value));
    if (!op_type_equal(&value->type, &self->type)) TRY(ir_emit_broadcast(call->graph, value, self->type.rank, self->type.dims, &value));
    if (value != old) TRY(capture_write(call->capture, self, value));
    call->results[0] = self;
    return DW_OK;
}

/* A write that is not known leaves nothing of the storage to rely on. */
static void poison_written(capture_call *call, bool in_place) {
    if (in_place && call->args[0].kind == ARG_TENSOR) call->args[0].tensor->root->poisoned = true;
}

static dw_status run_rule(capture_call *call, bool in_place) {
    dw_status status = capture_read_args(call);
    bool poisoned = false;
    if (status == DW_OK) status = find_poison(call, &poisoned);
    if (poisoned) {
        TRY(status);
        poison_written(call, in_place);
        return bind_results(call, true);
    }
    bool complex = status == DW_OK && capture_has_complex(call);
    if (complex && in_place) status = capture_fail(call, DW_UNSUPPORTED, "a write to a complex tensor");
    if (status == DW_OK) status = complex ? capture_run_complex(call) : call->row->rule(call);
    if (status == DW_OK && in_place) status = write_in_place(call);
    if (status == DW_OK) return bind_results(call, false);
    if (status != DW_UNSUPPORTED) return status;
    TRY(note_unsupported(call->capture));
    poison_written(call, in_place);
    return bind_results(call, true);
}

static bool is_symbolic(const char *target) {
    static const char *const prefixes[] = {"_operator.", "math.", "torch.sym_", "builtins."};
    for (size_t i = 0; i < COUNT_OF(prefixes); i++) {
        if (strncmp(target, prefixes[i], strlen(prefixes[i])) == 0) return true;
    }
    return false;
}

static dw_status walk_graph(capture *capture, capture_scope *scope, const json_t *graph);

static dw_status open_scope(capture *capture, const json_t *graph, capture_scope *outer, capture_scope *scope) {
    *scope = (capture_scope){.tensor_values = json_object_get(graph, "tensor_values"), .sym_ints = json_object_get(graph, "sym_int_values"),
                             .sym_floats = json_object_get(graph, "sym_float_values"), .outer = outer};
    map_init(&scope->tensors, &capture->arena);
    map_init(&scope->items, &capture->arena);
    if (json_is_array(json_object_get(graph, "nodes")) && json_is_object(scope->tensor_values)) return DW_OK;
    return corrupt(capture, "a graph has no nodes or no tensor_values");
}

/* A tensor under another name in the inner (or outer) graph. */
static dw_status pass_tensor(capture_call *call, const json_t *from, const capture_scope *there, const json_t *as, capture_scope *here) {
    const char *name = json_string_value(json_object_get(json_object_get(from, "as_tensor"), "name"));
    const char *inner = json_string_value(json_object_get(json_object_get(as, "as_tensor"), "name"));
    if (inner == NULL) return DW_OK;     /* a number or nothing: known by value */
    capture_tensor *tensor = name == NULL ? NULL : map_find(&there->tensors, name);
    if (tensor == NULL) return capture_fail(call, DW_CORRUPT, "'%.100s' of a nested graph has no value; the program is damaged", inner);
    return map_set(&here->tensors, inner, tensor);
}

/* The results of an inlined graph, in order, lists flattened. detached: no gradient flows through them. */
static dw_status pass_results(capture_call *call, const json_t *inner_outputs, const capture_scope *scope, bool detached) {
    for (int i = 0; i < call->result_count; i++) {
        if (call->result_names[i] == NULL) continue;
        const char *name = json_string_value(json_object_get(json_object_get(json_array_get(inner_outputs, (size_t)i), "as_tensor"), "name"));
        call->results[i] = name == NULL ? NULL : map_find(&scope->tensors, name);
        if (call->results[i] == NULL) return capture_fail(call, DW_CORRUPT, "result '%.100s' is none of the nested graph's outputs", call->result_names[i]);
        if (detached && !is_poisoned(call->results[i])) TRY(capture_view_detach(call->capture, call->results[i], &call->results[i]));
        call->types[i].format = DW_FORMAT_COUNT;    /* checked inside */
        call->result_metas[i] = NULL;
    }
    bool poisoned = false;
    for (int i = 0; i < call->result_count; i++) poisoned = poisoned || is_poisoned(call->results[i]);
    return bind_results(call, poisoned);
}

/* wrap_with_set_grad_enabled(mode, graph, inputs..) and its kin run one graph once: its nodes are taken as if they stood here. */
static dw_status inline_graph(capture_call *call) {
    static const char *const wraps[] = {"torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.wrap_with_autocast",
                                        "torch.ops.higher_order.invoke_subgraph", "torch.ops.higher_order.wrap", "torch.ops.higher_order.tag_activation_checkpoint"};
    capture *capture = call->capture;
    const json_t *inputs = json_object_get(call->node, "inputs"), *graph = NULL;
    size_t first = 0, known = 0;
    while (known < COUNT_OF(wraps) && strcmp(wraps[known], call->target) != 0) known++;
    for (; first < json_array_size(inputs) && graph == NULL; first++) {
        graph = json_object_get(json_object_get(json_object_get(json_array_get(inputs, first), "arg"), "as_graph"), "graph");
    }
    if (known == COUNT_OF(wraps) || graph == NULL) {
        TRY(note_missing(capture, call->target + strlen("torch.ops.")));
        return bind_results(call, true);
    }
    if (capture->depth == NESTING_MAX) return capture_fail(call, DW_LIMIT, "graphs are nested more than %d deep", NESTING_MAX);
    const json_t *names = json_object_get(graph, "inputs");
    size_t count = json_array_size(names), given = json_array_size(inputs) - first;
    if (given > count) first += given - count;      /* invoke_subgraph has an identifier before its operands */
    capture_scope scope;
    TRY(open_scope(capture, graph, call->scope, &scope));
    for (size_t i = 0; i < count; i++) {
        TRY(pass_tensor(call, json_object_get(json_array_get(inputs, first + i), "arg"), call->scope, json_array_get(names, i), &scope));
    }
    ir_origin origin = call->graph->origin;
    capture->depth++;
    TRY(walk_graph(capture, &scope, graph));
    capture->depth--;
    call->graph->origin = origin;
    const bool is_without = known == 0 && json_is_false(json_object_get(json_object_get(json_array_get(inputs, 0), "arg"), "as_bool"));     /* torch.no_grad */
    return pass_results(call, json_object_get(graph, "outputs"), &scope, is_without);
}

static bool makes_symbol(const json_t *node) {
    const json_t *outputs = json_object_get(node, "outputs");
    size_t index;
    json_t *output;
    json_array_foreach(outputs, index, output) {
        if (json_object_get(output, "as_sym_int") != NULL || json_object_get(output, "as_sym_float") != NULL || json_object_get(output, "as_sym_bool") != NULL) return true;
    }
    return false;
}

static dw_status run_node(capture *capture, capture_scope *scope, const json_t *node) {
    static const char prefix[] = "torch.ops.";
    const char *target = json_string_value(json_object_get(node, "target"));
    if (target == NULL) return corrupt(capture, "a node has no target");
    if (is_symbolic(target)) return DW_OK;      /* its result stands among the symbolic values */
    ir_origin origin = {.module = NULL};
    TRY(read_origin(capture, node, &origin));
    if (origin.module != NULL || capture->depth == 0) capture->graph->origin = origin;
    else capture->graph->origin.name = origin.name;
    capture_call call = {.capture = capture, .graph = capture->graph, .dims = capture->graph->dims, .scope = scope, .node = node, .target = target,
                         .name = origin.name != NULL ? origin.name : "?"};
    TRY(read_results(&call));
    if (strncmp(target, "torch.ops.higher_order.", strlen("torch.ops.higher_order.")) == 0) return inline_graph(&call);
    const char *name = strncmp(target, prefix, sizeof prefix - 1) == 0 ? target + sizeof prefix - 1 : target;
    bool in_place;
    call.row = capture_find_row(name, &in_place);
    call.target = name;
    if (call.row != NULL) return run_rule(&call, in_place);
    TRY(note_missing(capture, name));
    if (in_place || makes_symbol(node)) return report_unsupported(capture);
    return bind_results(&call, true);
}

static dw_status walk_graph(capture *capture, capture_scope *scope, const json_t *graph) {
    size_t index;
    json_t *node;
    json_array_foreach(json_object_get(graph, "nodes"), index, node) {
        if (index % 256 == 0) TRY(base_poll(capture->context));
        TRY(run_node(capture, scope, node));
    }
    return DW_OK;
}

/* ---- inputs ---- */

static dw_status add_user_input(capture *capture, capture_scope *scope, const json_t *arg) {
    const char *name = json_string_value(json_object_get(json_object_get(arg, "as_tensor"), "name"));
    if (name == NULL) {
        const char *symbol = json_string_value(json_object_get(json_object_get(arg, "as_sym_int"), "as_name"));
        if (symbol == NULL) return DW_OK;       /* a constant of the export */
        return base_fail(capture->context, DW_UNSUPPORTED, "%s: input '%s' is a number; export it as a tensor or as a constant", capture->source, symbol);
    }
    const json_t *meta = json_object_get(scope->tensor_values, name);
    op_type type;
    TRY(capture_read_type(capture, meta, name, &type));
    if (type.format == DW_FORMAT_COUNT) {
        return base_fail(capture->context, DW_UNSUPPORTED, "%s: input '%s' has a dtype that has no format here (ScalarType %lld)", capture->source, name,
                         (long long)json_integer_value(json_object_get(meta, "dtype")));
    }
    ir_value *value;
    capture_tensor *tensor;
    TRY(ir_add_input(capture->graph, name, &type, &value));
    TRY(capture_root(capture, HOME_INPUT, name, &type, value, &tensor));
    tensor->meta = meta;
    tensor->name = name;
    return map_set(&scope->tensors, name, tensor);
}

/* A complex weight: two real ones. */
static dw_status add_complex_input(capture *capture, op_type type, const char *weight_name, capture_tensor **tensor) {
    capture_tensor *parts[2];
    type.format = DW_FORMAT_f32;
    for (int i = 0; i < 2; i++) {
        const char *name = arena_printf(&capture->arena, "%s%s", weight_name, capture_part_names[i]);
        if (name == NULL) return DW_NO_MEMORY;
        const ir_weight *weight = ir_weights_find(capture->weights, name);
        if (weight == NULL) return base_fail(capture->context, DW_NOT_FOUND, "%s: the program uses the weight '%s', which the file does not hold", capture->source, name);
        TRY(capture_root(capture, HOME_WEIGHT, name, &type, NULL, &parts[i]));
        parts[i]->type.rank = weight->tensor.rank;
        for (int a = 0; a < weight->tensor.rank; a++) TRY_DIM(capture->context, parts[i]->type.dims[a], dim_constant(capture->graph->dims, weight->tensor.dims[a]));
    }
    *tensor = parts[0];
    parts[0]->imaginary = parts[1];
    return DW_OK;
}

/* A weight under the name that the graph has for it. Its own dtype and shape count, and must be those that the program was traced with. */
static dw_status add_weight_input(capture *capture, capture_scope *scope, const char *name, const char *weight_name) {
    capture_tensor *tensor = NULL;
    const ir_weight *weight = ir_weights_find(capture->weights, weight_name);
    const json_t *meta = json_object_get(scope->tensor_values, name);
    op_type type;
    TRY(capture_read_type(capture, meta, name, &type));
    bool same = weight == NULL || (weight->tensor.format == type.format && weight->tensor.rank == type.rank);
    for (int i = 0; weight != NULL && same && i < type.rank; i++) same = capture_dim_is(type.dims[i], weight->tensor.dims[i]);
    if (!same) {
        return base_fail(capture->context, DW_CORRUPT, "%s: the weight '%s' has another dtype or shape than the program says; the archive is damaged",
                         capture->source, weight_name);
    }
    if (weight == NULL && json_integer_value(json_object_get(meta, "dtype")) == CAPTURE_COMPLEX64) {
        TRY(add_complex_input(capture, type, weight_name, &tensor));
    } else if (weight == NULL && type.format == DW_FORMAT_COUNT) {
        TRY(capture_poison(capture, &tensor));
    } else {
        TRY(capture_root(capture, HOME_WEIGHT, weight_name, &type, NULL, &tensor));
        TRY(map_set(&capture->roots, weight_name, tensor));
    }
    tensor->meta = meta;
    tensor->name = name;
    return map_set(&scope->tensors, name, tensor);
}

/* How each kind of weight among the input specs names its tensor. */
static const struct { const char *kind, *name; bool is_parameter; } weight_specs[] = {
    {"parameter", "parameter_name", true}, {"buffer", "buffer_name", false}, {"tensor_constant", "tensor_constant_name", false},
};

static dw_status add_input(capture *capture, capture_scope *scope, const json_t *spec) {
    const json_t *user = json_object_get(spec, "user_input");
    if (json_is_object(user)) return add_user_input(capture, scope, json_object_get(user, "arg"));
    for (size_t i = 0; i < COUNT_OF(weight_specs); i++) {
        const json_t *weight = json_object_get(spec, weight_specs[i].kind);
        if (!json_is_object(weight)) continue;
        const char *name = json_string_value(json_object_get(json_object_get(weight, "arg"), "name"));
        const char *weight_name = json_string_value(json_object_get(weight, weight_specs[i].name));
        if (name == NULL || weight_name == NULL) return corrupt(capture, "an input spec lacks a name");
        ir_weight *data = ir_weights_find(capture->weights, weight_name);
        if (data != NULL) data->buffer = !weight_specs[i].is_parameter;
        return add_weight_input(capture, scope, name, weight_name);
    }
    return DW_OK;       /* tokens, custom objects, constants: a node that needs one finds no such tensor */
}

/* ---- outputs ---- */

static dw_status find_output(capture *capture, const capture_scope *scope, const char *name, ir_value **value) {
    capture_tensor *tensor = name == NULL ? NULL : map_find(&scope->tensors, name);
    if (tensor == NULL) return base_fail(capture->context, DW_CORRUPT, "%s: output '%s' is no value of the program; it is damaged", capture->source, name != NULL ? name : "?");
    if (tensor->imaginary != NULL) return base_fail(capture->context, DW_UNSUPPORTED, "%s: output '%s' is complex; give its parts by torch.view_as_real", capture->source, name);
    bool poisoned = false;
    TRY(meet_poison(capture, tensor, &poisoned));
    if (!poisoned) return capture_read(capture, tensor, value);
    if (capture->missing.count > 0 || capture->unsupported_count > 0) return report_unsupported(capture);
    return base_fail(capture->context, DW_UNSUPPORTED, "%s: output '%s' depends on a tensor whose dtype has no format here", capture->source, name);
}

static dw_status add_user_output(capture *capture, const capture_scope *scope, const json_t *arg) {
    const char *name = json_string_value(json_object_get(json_object_get(arg, "as_tensor"), "name"));
    ir_value *value;
    if (name == NULL) return DW_OK;             /* None, or a constant of the export */
    for (size_t i = 0; i < capture->graph->output_count; i++) {
        if (strcmp(capture->graph->outputs[i].name, name) == 0) return DW_OK;   /* the same tensor given twice */
    }
    TRY(find_output(capture, scope, name, &value));
    return ir_add_output(capture->graph, name, value);
}

/* Mutations that a functionalised export lists instead of doing them. */
static const struct { const char *kind, *name; } mutation_specs[] = {
    {"buffer_mutation", "buffer_name"}, {"parameter_mutation", "parameter_name"}, {"user_input_mutation", "user_input_name"},
};

static dw_status add_mutation(capture *capture, const capture_scope *scope, const json_t *spec, const char *name_key) {
    const char *name = json_string_value(json_object_get(spec, name_key));
    const char *from = json_string_value(json_object_get(json_object_get(spec, "arg"), "name"));
    capture_tensor *root = name == NULL ? NULL : map_find(&capture->roots, name);
    ir_value *value;
    if (root == NULL && name != NULL) root = map_find(&scope->tensors, name);
    if (root == NULL) return corrupt(capture, "a mutation names no buffer, parameter or input");
    TRY(find_output(capture, scope, from, &value));
    if (!op_type_equal(&value->type, &root->type)) return corrupt(capture, "a mutation changes the dtype or shape of what it mutates");
    return capture_write(capture, root, value);
}

static dw_status add_output(capture *capture, const capture_scope *scope, const json_t *spec) {
    for (size_t i = 0; i < COUNT_OF(mutation_specs); i++) {
        const json_t *mutation = json_object_get(spec, mutation_specs[i].kind);
        if (json_is_object(mutation)) return add_mutation(capture, scope, mutation, mutation_specs[i].name);
    }
    const json_t *user = json_object_get(spec, "user_output");
    if (json_is_object(user)) return add_user_output(capture, scope, json_object_get(user, "arg"));
    if (json_object_get(spec, "token") != NULL) return DW_OK;
    const char *kind = json_object_iter_key(json_object_iter((json_t *)spec));
    return base_fail(capture->context, DW_UNSUPPORTED, "%s: an output of kind '%s': training graphs cannot be captured; export the module in eval mode",
                     capture->source, kind != NULL ? kind : "none");
}

/* ---- the whole ---- */

static dw_status check_version(capture *capture) {
    const json_t *version = json_object_get(capture->program, "schema_version");
    const json_t *major = json_object_get(version, "major");
    if (!json_is_integer(major)) return corrupt(capture, "schema_version is missing");
    if (json_integer_value(major) == SCHEMA_MAJOR) return DW_OK;
    return base_fail(capture->context, DW_UNSUPPORTED, "%s: schema version %lld.%lld of the exported program; version %d is supported: re-save with torch >= 2.9",
                     capture->source, (long long)json_integer_value(major), (long long)json_integer_value(json_object_get(version, "minor")), SCHEMA_MAJOR);
}

/* What nothing uses: asserts' operands, sizes, views that were derived again. */
static dw_status remove_dead(ir_graph *graph) {
    for (ir_node *node = graph->last, *previous; node != NULL; node = previous) {
        int uses = 0;
        previous = node->previous;
        for (int i = 0; i < node->n_out; i++) uses += ir_use_count(graph, node->out[i]);
        if (uses == 0) TRY(ir_remove(graph, node));
    }
    for (size_t i = graph->param_count; i-- > 0;) {
        if (ir_use_count(graph, graph->params[i]) == 0) TRY(ir_remove_param(graph, graph->params[i]));
    }
    return DW_OK;
}

static dw_status build_graph(capture *capture) {
    const json_t *module = json_object_get(capture->program, "graph_module"), *graph = json_object_get(module, "graph");
    const json_t *signature = json_object_get(module, "signature"), *item;
    capture_scope scope;
    size_t index;
    TRY(check_version(capture));
    TRY(open_scope(capture, graph, NULL, &scope));
    TRY(capture_name_symbols(capture));
    TRY(capture_read_guards(capture));
    TRY(capture_read_needs(capture, graph));
    json_array_foreach(json_object_get(signature, "input_specs"), index, item) TRY(add_input(capture, &scope, item));
    TRY(walk_graph(capture, &scope, graph));
    capture->graph->origin = (ir_origin){.module = NULL};
    json_array_foreach(json_object_get(signature, "output_specs"), index, item) TRY(add_output(capture, &scope, item));
    TRY(capture_finish_writes(capture));
    if (capture->graph->output_count == 0) return corrupt(capture, "the program has no outputs");
    if (capture->missing.count + capture->unsupported_count > 0) {
        report_unsupported(capture);
        base_log(capture->context, DW_LOG_WARNING, "no output depends on this: %s", dw_context_error(capture->context));
    }
    TRY(remove_dead(capture->graph));
    capture_find_roles(capture->graph);
    ir_renumber(capture->graph);
    TRY(capture_note_example(capture, scope.tensor_values));
    return ir_check(capture->graph);
}

static dw_status capture_json(dw_context *context, const char *source, const json_t *program, ir_weights *weights, ir_graph **graph) {
    capture capture = {.context = context, .source = source, .weights = weights, .program = program};
    arena_init(&capture.arena, context);
    text_init(&capture.unsupported, context);
    map_init(&capture.symbols, &capture.arena);
    map_init(&capture.parsed, &capture.arena);
    map_init(&capture.roots, &capture.arena);
    map_init(&capture.missing, &capture.arena);
    dw_status status = ir_graph_create(context, "model", &capture.graph);
    if (status == DW_OK) {
        capture.graph->weights = weights;
        status = build_graph(&capture);
    }
    if (status != DW_OK) ir_graph_destroy(capture.graph);
    else *graph = capture.graph;
    text_free(&capture.unsupported);
    arena_free(&capture.arena);
    return status;
}

dw_status capture_program(dw_context *context, const char *source, const char *json, size_t length, ir_weights *weights, ir_graph **graph) {
    json_error_t error;
    *graph = NULL;
    json_t *program = json_loadb(json, length, 0, &error);
    if (!json_is_object(program)) {
        json_decref(program);
        return base_fail(context, DW_CORRUPT, "%s: the exported program is not a JSON object: %s (line %d)", source,
                         program == NULL ? error.text : "another value", program == NULL ? error.line : 1);
    }
    dw_status status = capture_json(context, source, program, weights, graph);
    json_decref(program);
    return status;
}
