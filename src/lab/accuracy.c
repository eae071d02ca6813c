/* The cost of a precision in accuracy: the file in fp32 beside the same in the asked precision, layer by layer and at the outputs.
 * accumulated: the layer inside the low-precision model; isolated: the layer fed from fp32. A layer is a product with a weight; it is known
 * by its module. Three graphs of the same fused graph run on the same inputs (pass_probe). */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/lab.h"

#define LAYER "check."
#define ACTIVATION "activation."

/* One graph, run. */
typedef struct probe {
    plan *plan;
    dw_named_tensor *outputs;
    int output_count;
} probe;

typedef struct check {
    dw_context *context;
    dw_model *model;
    arena arena;
    engine_constants constants;
    probe exact, low, isolated;
    dw_named_tensor *inputs;
    int input_count;
} check;

/* ---- running the three graphs ---- */

static const ir_node *product_behind(const ir_value *value) {
    while (value->kind == IR_RESULT && value->node->op != OP_matmul && value->node->op != OP_grouped_matmul) {
        if (value->node->op != OP_cast && value->node->op != OP_reshape) return NULL;
        value = ir_in(value->node, 0);
    }
    return value->kind == IR_RESULT ? value->node : NULL;
}

/* What each isolated layer quantises becomes an output too, so that what overflows and underflows can be counted. */
static dw_status add_activations(ir_graph *graph) {
    for (size_t i = 0, count = graph->output_count; i < count; i++) {
        if (strncmp(graph->outputs[i].name, LAYER, strlen(LAYER)) != 0) continue;
        const ir_node *product = product_behind(graph->outputs[i].value);
        ir_node *rounding = product ? ir_def(ir_in(product, 0), OP_quantize) : NULL;
        if (product && rounding == NULL) rounding = ir_def(ir_in(product, 0), OP_cast);
        if (rounding == NULL || ir_in(rounding, 0)->type.format != DW_FORMAT_f32) continue;
        const char *name = arena_printf(&graph->arena, ACTIVATION "%s", graph->outputs[i].name + strlen(LAYER));
        if (name == NULL) return DW_NO_MEMORY;
        TRY(ir_add_output(graph, name, ir_in(rounding, 0)));
    }
    return DW_OK;
}

static dw_status run_plan(check *check, probe *probe) {
    dw_model shown = *check->model;   /* a model with this plan for its whole runs */
    engine_program program = {.plan = probe->plan};
    dw_session *session;
    pool *pool;
    char sizes[512];
    shown.full = program;
    shown.step = (engine_program){0};
    shown.flags = 0;
    TRY(base_pool(check->context, &pool));
    TRY(engine_load(&check->constants, pool, &shown.full));
    TRY(dw_model_sizes(&shown, check->input_count, check->inputs, sizes, sizeof sizes));
    TRY(dw_session_create(check->context, &shown, &(dw_session_options){.dims = sizes}, &session));
    dw_status status = dw_session_shapes(session, check->input_count, check->inputs, probe->outputs);
    for (int i = 0; i < probe->output_count && status == DW_OK; i++) {
        uint64_t bytes = (uint64_t)op_tensor_count(&probe->outputs[i].tensor) * (uint64_t)dw_format_bits(probe->outputs[i].tensor.format) / 8;
        probe->outputs[i].tensor.data = arena_new(&check->arena, (size_t)bytes + 1, 1);
        if (probe->outputs[i].tensor.data == NULL) status = DW_NO_MEMORY;
    }
    if (status == DW_OK) status = dw_session_run(session, check->input_count, check->inputs, probe->output_count, probe->outputs);
    dw_session_destroy(session);
    return status;
}

static dw_status make_plan(check *check, pass_policy *policy, pass_probe what, const dw_model_options *options, probe *probe) {
    ir_graph *graph;
    TRY(engine_lower(check->model, check->model->fused, policy, what, &graph));
    dw_status status = what == PASS_PROBE_ISOLATED ? add_activations(graph) : DW_OK;
    if (status != DW_OK) {
        ir_graph_destroy(graph);
        return status;
    }
    TRY(plan_compile(graph, &(plan_options){.chip = &check->model->chip, .precision = "check", .dims = options->dims}, &probe->plan));
    probe->output_count = (int)probe->plan->graph->output_count;
    TRY_NEW(probe->outputs, &check->arena, probe->output_count);
    return DW_OK;
}

static dw_status make_probe(check *check, const char *precision, const char *rules, pass_probe what, const dw_model_options *options, probe *probe) {
    pass_policy *policy;
    TRY(pass_policy_create(check->context, precision, "policy", rules, &policy));
    dw_status status = engine_settle(check->model, policy);
    if (status == DW_OK) status = make_plan(check, policy, what, options, probe);
    pass_policy_destroy(policy);
    return status;
}

/* ---- comparing ---- */

static const dw_tensor *find_output(const probe *probe, const char *name) {
    for (int i = 0; i < probe->output_count; i++) {
        if (strcmp(probe->outputs[i].name, name) == 0) return &probe->outputs[i].tensor;
    }
    return NULL;
}

/* The tensor's values as fp32; f32 tensors as they are. */
static dw_status values_of(check *check, const dw_tensor *tensor, const float **values) {
    float *copy;
    *values = tensor->data;
    if (tensor->format == DW_FORMAT_f32) return DW_OK;
    TRY_NEW(copy, &check->arena, op_tensor_count(tensor));
    for (int64_t i = 0; i < op_tensor_count(tensor); i++) copy[i] = (float)num_load(tensor->format, tensor->data, i);
    *values = copy;
    return DW_OK;
}

static dw_status compare(check *check, const dw_tensor *x, const dw_tensor *reference, num_error *error) {
    const float *a, *b;
    TRY(values_of(check, x, &a));
    TRY(values_of(check, reference, &b));
    num_compare(a, b, op_tensor_count(reference), error);
    return DW_OK;
}

static json_t *place_json(const dw_tensor *tensor, int64_t flat) {
    json_t *place = json_array();
    int64_t index[DW_MAX_RANK];
    for (int i = tensor->rank - 1; i >= 0; i--) {
        index[i] = tensor->dims[i] > 0 ? flat % tensor->dims[i] : 0;
        if (tensor->dims[i] > 0) flat /= tensor->dims[i];
    }
    for (int i = 0; i < tensor->rank; i++) json_array_append_new(place, json_integer((json_int_t)index[i]));
    return place;
}

static json_t *error_json(const num_error *error, const dw_tensor *tensor) {
    return json_pack("{s:o, s:o, s:f, s:f, s:o, s:I, s:I}", "relative", json_real(error->relative), "sqnr_db",
                     error->sqnr_db < 1e9 ? json_real(error->sqnr_db) : json_null(), "max_abs", error->max_abs, "max_reference", error->max_ref,
                     "max_at", place_json(tensor, error->max_index), "nan", (json_int_t)error->nan_count, "inf", (json_int_t)error->inf_count);
}

/* One block before and after quantisation. What was clipped is the largest of its block; smaller elements may be subnormal and so be off by more. */
static void count_block(const float *x, const float *back, int64_t count, double step, int64_t *over, int64_t *under) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (fabs((double)back[i]) > largest) largest = fabs((double)back[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        double size = fabs((double)x[i]), kept = fabs((double)back[i]);
        if (size > 0 && kept == 0) ++*under;
        else if (kept > 0 && kept == largest && size > kept * (1 + step / 2)) ++*over;
    }
}

/* Elements of x [.., cols] that the quantiser clips to its largest code, and those that it makes zero. */
static dw_status count_lost(check *check, dw_format format, const dw_tensor *x, int64_t *over, int64_t *under) {
    int64_t count = op_tensor_count(x), cols = x->rank > 0 ? x->dims[x->rank - 1] : 1, rows = cols > 0 ? count / cols : 0;
    *over = *under = 0;
    if (!dw_format_is_block(format)) {
        num_range(format, x->data, count, over, under);
        return DW_OK;
    }
    num_parts parts;
    uint8_t *memory;
    float *back;
    if (!num_layout(format, DW_SCALE_plain, 2, (int64_t[]){rows, cols}, &parts))
        return base_fail(check->context, DW_LIMIT, "an activation overflows");
    TRY_NEW(memory, &check->arena, parts.total_bytes + 1);
    TRY_NEW(back, &check->arena, count);
    num_matrix matrix = {.format = format,
                         .rows = rows,
                         .cols = cols,
                         .data = memory,
                         .scales = memory + parts.scale_offset,
                         .second = parts.second_bytes ? (float *)(void *)(memory + parts.second_offset) : NULL};
    num_quantize(x->data, cols, num_can_search(format) ? NUM_ROUND_SEARCH : NUM_ROUND_UP, false, &matrix);   /* as the precision pass has it */
    num_dequantize(&matrix, back, cols);
    int64_t block = num_info(format)->cols > 0 ? num_info(format)->cols : cols;
    double step = 1.0 /
                  (double)(1u << num_info(num_info(format)->element)->mantissa_bits); /* an ulp, relative: more than half of it below x is clipping */
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t start = 0; start < cols; start += block) {
            int64_t end = start + block < cols ? start + block : cols;
            count_block((const float *)x->data + row * cols + start, back + row * cols + start, end - start, step, over, under);
        }
    }
    return DW_OK;
}

/* The attention whose keys and values a rule for caches rounds, behind an output; NULL: it is a product's. */
static const ir_node *attention_behind(const ir_value *value) {
    while (value->kind == IR_RESULT && value->node->op == OP_cast) value = ir_in(value->node, 0);
    return ir_def(value, OP_attention);
}

static dw_format activation_format(const probe *isolated, const char *layer) {
    const ir_graph *graph = isolated->plan->graph;
    for (size_t i = 0; i < graph->output_count; i++) {
        if (strcmp(graph->outputs[i].name, layer) != 0) continue;
        const ir_node *attention = attention_behind(graph->outputs[i].value), *product = attention != NULL ? NULL : product_behind(graph->outputs[i].value);
        if (attention != NULL) return ir_in(attention, ATTENTION_K)->type.format;
        return product ? ir_in(product, 0)->type.format : DW_FORMAT_f32;
    }
    return DW_FORMAT_f32;
}

static const char *weight_format(const probe *isolated, const char *layer) {
    const ir_graph *graph = isolated->plan->graph;
    for (size_t i = 0; i < graph->output_count; i++) {
        const bool is_layer = strcmp(graph->outputs[i].name, layer) == 0;
        const ir_node *product = is_layer ? product_behind(graph->outputs[i].value) : NULL;
        if (is_layer && attention_behind(graph->outputs[i].value) != NULL) return "-";
        if (product != NULL) return dw_format_name(ir_in(product, 1)->type.format);
    }
    return "?";
}

static dw_status layer_json(check *check, const char *name, const dw_tensor *exact, json_t *layers) {
    const dw_tensor *low = find_output(&check->low, name), *isolated = find_output(&check->isolated, name);
    const char *layer = name + strlen(LAYER);
    num_error accumulated, alone;
    int64_t over = 0, under = 0;
    if (low == NULL || isolated == NULL) return DW_OK;
    TRY(compare(check, low, exact, &accumulated));
    TRY(compare(check, isolated, exact, &alone));
    char *activation = arena_printf(&check->arena, ACTIVATION "%s", layer);
    if (activation == NULL) return DW_NO_MEMORY;
    const dw_tensor *x = find_output(&check->isolated, activation);
    dw_format format = activation_format(&check->isolated, name);
    if (x != NULL) TRY(count_lost(check, format, x, &over, &under));
    json_array_append_new(layers, json_pack("{s:s, s:s, s:s, s:o, s:o, s:I, s:I}", "layer", layer, "weight", weight_format(&check->isolated, name),
                                            "activation", dw_format_name(format), "isolated", error_json(&alone, exact), "accumulated",
                                            error_json(&accumulated, exact), "overflow", (json_int_t)over, "underflow", (json_int_t)under));
    return DW_OK;
}

static dw_status compare_all(check *check, json_t *facts) {
    json_t *layers = json_array(), *outputs = json_array();
    json_object_set_new(facts, "layers", layers);
    json_object_set_new(facts, "outputs", outputs);
    for (int i = 0; i < check->exact.output_count; i++) {
        const dw_named_tensor *exact = &check->exact.outputs[i];
        const dw_tensor *low = find_output(&check->low, exact->name);
        num_error error;
        if (strncmp(exact->name, LAYER, strlen(LAYER)) == 0) {
            TRY(layer_json(check, exact->name, &exact->tensor, layers));
            continue;
        }
        if (low == NULL) continue;
        TRY(compare(check, low, &exact->tensor, &error));
        json_object_set_new(facts, "precision", json_string(check->model->precision));
        json_array_append_new(outputs, json_pack("{s:s, s:o}", "output", exact->name, "error", error_json(&error, &exact->tensor)));
    }
    return DW_OK;
}

/* ---- words ---- */

static double real_of(const json_t *error, const char *key) { return json_number_value(json_object_get(error, key)); }

static double isolated_of(const json_t *layer) { return real_of(json_object_get(layer, "isolated"), "relative"); }

/* The layers of largest isolated error, the largest first; those without error are none. */
static void print_costliest(text *out, const json_t *layers) {
    const json_t *largest[3] = {NULL};
    size_t i;
    json_t *row;
    json_array_foreach(layers, i, row) {
        const json_t *moved = isolated_of(row) > 0 ? row : NULL;
        for (size_t k = 0; k < COUNT_OF(largest) && moved != NULL; k++) {
            if (largest[k] != NULL && isolated_of(moved) <= isolated_of(largest[k])) continue;
            const json_t *other = largest[k];
            largest[k] = moved;
            moved = other;
        }
    }
    for (size_t k = 0; k < COUNT_OF(largest) && largest[k] != NULL; k++) {
        text_printf(out, "%s%s (%.3e)", k == 0 ? "cost most alone: " : ", ", json_string_value(json_object_get(largest[k], "layer")), isolated_of(largest[k]));
    }
    if (largest[0] != NULL) text_add(out, "\n");
}

static void print_errors(text *out, const json_t *facts) {
    size_t i;
    json_t *row;
    text_printf(out, "%-40s %-12s %-12s %11s %8s %11s %8s %10s %10s %6s\n", "layer", "weight", "activation", "isolated", "dB", "accumulated", "dB",
                "overflow", "underflow", "NaN");
    json_array_foreach(json_object_get(facts, "layers"), i, row) {
        const json_t *isolated = json_object_get(row, "isolated"), *accumulated = json_object_get(row, "accumulated");
        text_printf(out, "%-40s %-12s %-12s %11.3e %8.1f %11.3e %8.1f %10lld %10lld %6lld\n", json_string_value(json_object_get(row, "layer")),
                    json_string_value(json_object_get(row, "weight")), json_string_value(json_object_get(row, "activation")),
                    real_of(isolated, "relative"), real_of(isolated, "sqnr_db"), real_of(accumulated, "relative"), real_of(accumulated, "sqnr_db"),
                    (long long)json_integer_value(json_object_get(row, "overflow")), (long long)json_integer_value(json_object_get(row, "underflow")),
                    (long long)(json_integer_value(json_object_get(isolated, "nan")) + json_integer_value(json_object_get(isolated, "inf"))));
    }
    json_array_foreach(json_object_get(facts, "outputs"), i, row) {
        const json_t *error = json_object_get(row, "error");
        char *place = json_dumps(json_object_get(error, "max_at"), JSON_COMPACT);
        text_printf(out, "output %s: relative error %.3e, SQNR %.1f dB, largest error %.3e (of values up to %.3e) at %s, %lld NaN, %lld infinite\n",
                    json_string_value(json_object_get(row, "output")), real_of(error, "relative"), real_of(error, "sqnr_db"),
                    real_of(error, "max_abs"), real_of(error, "max_reference"), place ? place : "?",
                    (long long)json_integer_value(json_object_get(error, "nan")), (long long)json_integer_value(json_object_get(error, "inf")));
        free(place);
    }
}

/* ---- public ---- */

static dw_status choose_inputs(check *check, int count, const dw_named_tensor *inputs) {
    const plan *plan = check->exact.plan;
    check->input_count = (int)plan->graph->input_count;
    if (count > 0) {
        check->inputs = (dw_named_tensor *)(uintptr_t)inputs;
        check->input_count = count;
        return DW_OK;
    }
    TRY_NEW(check->inputs, &check->arena, check->input_count);
    return lab_random_inputs(&check->arena, plan, plan->typical, check->inputs);
}

/* The model is planned only, and then computed with. */
static dw_status check_weights(const check *check) {
    pool *pool;
    ir_weights *weights = check->model->fused->weights;
    TRY(base_pool(check->context, &pool));
    return weights != NULL ? ir_weights_check(weights, pool) : DW_OK;
}

static dw_status run_check(check *check, const dw_model_options *options, int count, const dw_named_tensor *inputs, json_t *facts) {
    TRY(check_weights(check));
    TRY(make_probe(check, "role:cache=fp32,fp32", NULL, PASS_PROBE_LAYERS, options, &check->exact));
    TRY(make_probe(check, options->precision, options->policy, PASS_PROBE_LAYERS, options, &check->low));
    TRY(make_probe(check, options->precision, options->policy, PASS_PROBE_ISOLATED, options, &check->isolated));
    TRY(choose_inputs(check, count, inputs));
    TRY(run_plan(check, &check->exact));
    TRY(run_plan(check, &check->low));
    TRY(run_plan(check, &check->isolated));
    return compare_all(check, facts);
}

static dw_status emit(check *check, const json_t *facts, int json, dw_sink sink, void *user) {
    text out;
    text_init(&out, check->context);
    if (json) {
        char *words = json_dumps(facts, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        text_add(&out, words ? words : "");
        text_add(&out, "\n");
        free(words);
    } else {
        text_printf(&out, "%s in %s, against fp32%s\n", check->model->file, check->model->precision,
                    json_is_true(json_object_get(facts, "random_inputs")) ? ", on random inputs" : "");
        print_errors(&out, facts);
        print_costliest(&out, json_object_get(facts, "layers"));
    }
    dw_status status = text_status(&out);
    if (status == DW_OK) sink(user, text_string(&out), out.length);
    text_free(&out);
    return status;
}

/* check->model is open. */
static dw_status check_model(check *check, const dw_model_options *options, int input_count, const dw_named_tensor *inputs, int json, dw_sink sink,
                             void *user) {
    const char *file = check->model->file;
    if (check->model->fused == NULL)
        return base_fail(check->context, DW_UNSUPPORTED, "%s is compiled and holds no fp32 weights: check the .pt2 it was made from", file);
    arena_init(&check->arena, check->context);
    engine_constants_init(&check->constants, check->context);
    check->constants.device = check->model->device;
    json_t *facts = json_pack("{s:s, s:b}", "file", file, "random_inputs", input_count == 0);
    dw_status status = run_check(check, options, input_count, inputs, facts);
    if (status == DW_OK) status = emit(check, facts, json, sink, user);
    json_decref(facts);
    plan_destroy(check->exact.plan);
    plan_destroy(check->low.plan);
    plan_destroy(check->isolated.plan);
    engine_constants_free(&check->constants);
    arena_free(&check->arena);
    return status;
}

static dw_status need_precision(dw_context *context, const dw_model_options *options) {
    if (options->precision != NULL || options->policy != NULL) return DW_OK;
    return base_fail(context, DW_INVALID, "check compares a precision with fp32: give --precision or --policy");
}

dw_status dw_check(dw_context *context, const char *file, const dw_model_options *options, int input_count, const dw_named_tensor *inputs, int json,
                   dw_sink sink, void *user) {
    check check = {.context = context};
    dw_model_options asked = *options;
    asked.flags |= DW_MODEL_PLAN_ONLY;
    if (options->comm != NULL) return lab_check_ranks(context, file, options, input_count, inputs, json, sink, user);
    TRY(need_precision(context, options));
    TRY(dw_model_open(context, file, &asked, &check.model));
    dw_status status = check_model(&check, options, input_count, inputs, json, sink, user);
    dw_model_destroy(check.model);
    return status;
}

dw_status dw_check_graph(dw_context *context, dw_graph *graph, const dw_model_options *options, int input_count, const dw_named_tensor *inputs, int json,
                         dw_sink sink, void *user) {
    check check = {.context = context};
    dw_model_options asked = *options;
    asked.flags |= DW_MODEL_PLAN_ONLY;
    dw_status status = need_precision(context, options);
    if (status != DW_OK) {
        dw_graph_destroy(graph);
        return status;
    }
    TRY(dw_model_create(context, graph, &asked, &check.model));
    status = check_model(&check, options, input_count, inputs, json, sink, user);
    dw_model_destroy(check.model);
    return status;
}
