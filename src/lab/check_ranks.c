/* A model on several ranks beside the same whole: outputs, and the weights that a rank has. Every rank calls it; the first one runs the whole model, too, and tells. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lab/lab.h"

/* Sums in another order, of fp32. */
#define BOUND 1e-5

typedef struct side { dw_model *model; dw_session *session; dw_named_tensor *outputs; } side;

typedef struct check {
    dw_context *context;
    arena arena;
    const dw_model_options *options;
    side whole, part;               /* of ranks but the first the whole is planned alone, for the inputs */
    dw_named_tensor *inputs;
    int input_count;
    json_t *facts;
    bool is_exact, holds;           /* is_exact: nothing is quantised, so a bound holds */
} check;

static bool is_first(const check *check) { return dw_comm_rank(check->options->comm) == 0; }

static dw_status open_sides(check *check, const char *file) {
    dw_model_options whole = *check->options;
    whole.comm = NULL;
    whole.shard = NULL;
    if (!is_first(check)) whole.flags |= DW_MODEL_PLAN_ONLY;
    TRY(dw_model_open(check->context, file, check->options, &check->part.model));
    return dw_model_open(check->context, file, &whole, &check->whole.model);
}

static dw_status choose_inputs(check *check, int count, const dw_named_tensor *inputs) {
    const plan *plan = check->whole.model->full.plan;
    if (plan == NULL) return base_fail(check->context, DW_UNSUPPORTED, "%s has no whole run to check", check->whole.model->file);
    check->input_count = count > 0 ? count : (int)plan->graph->input_count;
    if (count > 0) return check->inputs = (dw_named_tensor *)(uintptr_t)inputs, DW_OK;
    TRY_NEW(check->inputs, &check->arena, check->input_count);
    return lab_random_inputs(&check->arena, plan, plan->typical, check->inputs);
}

static dw_status run(check *check, side *side) {
    char dims[512];
    const int count = dw_model_output_count(side->model);
    TRY(dw_model_sizes(side->model, check->input_count, check->inputs, dims, sizeof dims));
    TRY(dw_session_create(check->context, side->model, &(dw_session_options){.dims = dims}, &side->session));
    TRY_NEW(side->outputs, &check->arena, count);
    TRY(dw_session_shapes(side->session, check->input_count, check->inputs, side->outputs));
    for (int i = 0; i < count; i++) {
        uint64_t bytes;
        TRY(dw_tensor_bytes(check->context, &side->outputs[i].tensor, &bytes));
        side->outputs[i].tensor.data = arena_new(&check->arena, (size_t)bytes + 1, 1);
        if (side->outputs[i].tensor.data == NULL) return DW_NO_MEMORY;
    }
    return dw_session_run(side->session, check->input_count, check->inputs, count, side->outputs);
}

/* ---- what is told ---- */

static dw_status values_of(check *check, const dw_tensor *tensor, float **values) {
    const int64_t count = op_tensor_count(tensor);
    TRY_NEW(*values, &check->arena, count);
    for (int64_t i = 0; i < count; i++) (*values)[i] = (float)num_load(tensor->format, tensor->data, i);
    return DW_OK;
}

static dw_status compare(check *check) {
    json_t *outputs = json_array();
    json_object_set_new(check->facts, "outputs", outputs);
    for (int i = 0; i < dw_model_output_count(check->whole.model); i++) {
        const dw_named_tensor *whole = &check->whole.outputs[i];
        float *x, *reference;
        num_error error;
        TRY(values_of(check, &check->part.outputs[i].tensor, &x));
        TRY(values_of(check, &whole->tensor, &reference));
        num_compare(x, reference, op_tensor_count(&whole->tensor), &error);
        json_array_append_new(outputs, json_pack("{s:s, s:f, s:f, s:f}", "output", whole->name, "relative", error.relative, "max_abs", error.max_abs, "max_reference", error.max_ref));
        check->holds = check->holds && (!check->is_exact || error.relative <= BOUND);
    }
    return DW_OK;
}

static dw_status emit(const check *check, int json, dw_sink sink, void *user) {
    text out;
    size_t index;
    const json_t *one;
    text_init(&out, check->context);
    if (json) {
        char *words = json_dumps(check->facts, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        text_printf(&out, "%s\n", words != NULL ? words : "");
        free(words);
    } else {
        text_printf(&out, "%s, precision %s, on the ranks %s beside the whole%s\n  output                                   relative     largest off  of largest\n", check->whole.model->file,
                    check->whole.model->precision, dw_comm_mesh(check->options->comm), json_is_true(json_object_get(check->facts, "random_inputs")) ? ", on random inputs" : "");
        json_array_foreach(json_object_get(check->facts, "outputs"), index, one) {
            text_printf(&out, "  %-40s %.2e     %.2e     %.2e\n", json_string_value(json_object_get(one, "output")), json_number_value(json_object_get(one, "relative")),
                        json_number_value(json_object_get(one, "max_abs")), json_number_value(json_object_get(one, "max_reference")));
        }
        text_printf(&out, "weights of a rank: %.2f MB; of the whole: %.2f MB\n", json_number_value(json_object_get(check->facts, "weight_bytes")) / 1e6,
                    json_number_value(json_object_get(check->facts, "whole_weight_bytes")) / 1e6);
        if (!check->is_exact) text_add(&out, "sums in another order may round to another code, so no bound is held against a precision of few bits\n");
    }
    dw_status status = text_status(&out);
    if (status == DW_OK) sink(user, text_string(&out), out.length);
    text_free(&out);
    return status;
}

static dw_status run_check(check *check, const char *file, int count, const dw_named_tensor *inputs, int json, dw_sink sink, void *user) {
    TRY(open_sides(check, file));
    check->is_exact = (check->options->precision == NULL || strcmp(check->options->precision, "fp32") == 0) && check->options->policy == NULL;
    TRY(choose_inputs(check, count, inputs));
    TRY(run(check, &check->part));
    if (!is_first(check)) return DW_OK;
    TRY(run(check, &check->whole));
    check->facts = json_pack("{s:s, s:s, s:s, s:b, s:I, s:I}", "file", check->whole.model->file, "precision", check->whole.model->precision, "mesh", dw_comm_mesh(check->options->comm), "random_inputs",
                             count == 0, "weight_bytes", (json_int_t)dw_model_weight_bytes(check->part.model), "whole_weight_bytes", (json_int_t)dw_model_weight_bytes(check->whole.model));
    TRY(compare(check));
    TRY(emit(check, json, sink, user));
    if (check->holds) return DW_OK;
    return base_fail(check->context, DW_MISMATCH, "%s on the ranks %s gives other outputs than the whole model: off by more than %g", file, dw_comm_mesh(check->options->comm), BOUND);
}

dw_status lab_check_ranks(dw_context *context, const char *file, const dw_model_options *options, int input_count, const dw_named_tensor *inputs, int json, dw_sink sink, void *user) {
    check check = {.context = context, .options = options, .holds = true};
    arena_init(&check.arena, context);
    const dw_status status = run_check(&check, file, input_count, inputs, json, sink, user);
    dw_session_destroy(check.part.session);
    dw_session_destroy(check.whole.session);
    dw_model_destroy(check.part.model);
    dw_model_destroy(check.whole.model);
    json_decref(check.facts);
    arena_free(&check.arena);
    return status;
}
