/* What a model would take in other precisions, by the same estimates at the same sizes. A precision that was asked for is taken, whatever it costs; who asked for it can see here when it costs more. */
#include "lab/explain.h"

#include <string.h>

double explain_seconds(const plan_binding *binding, int step) {
    const plan_step *s = &binding->plan->steps[step];
    const kernel_run *run = &binding->calls[step].run;
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    if (!run->passes && !run->leaves_plain && !run->quantises && run->norm == NULL) return s->seconds;
    plan_problem(binding->plan, s, in, out, &problem);
    return kernel_run_seconds(s->row, &problem, run);
}

/* A run of the plan at its typical sizes; quantisers: what its steps that only quantise take of it. */
static dw_status estimate(const plan *plan, double *us, double *quantisers) {
    plan_binding binding;
    TRY(plan_binding_create(plan->context, plan, &binding));
    const dw_status status = plan_bind(&binding, plan->typical);
    *us = *quantisers = 0;
    for (int i = plan->load_count; status == DW_OK && i < plan->step_count; i++) {
        const double seconds = explain_seconds(&binding, i);
        *us += seconds * 1e6;
        if (plan->steps[i].node->op == OP_quantize) *quantisers += seconds * 1e6;
    }
    plan_binding_destroy(&binding);
    return status;
}

static dw_status add_plan(json_t *row, const char *name, const plan *plan) {
    double us, quantisers;
    if (plan == NULL) return DW_OK;
    TRY(estimate(plan, &us, &quantisers));
    json_object_set_new(row, name, json_pack("{s:f, s:f}", "us", us, "quantize_us", quantisers));
    return DW_OK;
}

static dw_status add_plans(json_t *row, const dw_model *model) {
    TRY(add_plan(row, "plan", model->full.plan));
    return add_plan(row, "step_plan", model->step.plan);
}

/* A precision in which the model cannot be planned as it was asked for, such as with a kernel that does not take it, says why. */
static json_t *beside_row(const dw_model *model, const char *precision) {
    json_t *row = json_pack("{s:s}", "precision", precision);
    dw_model *other = NULL;
    dw_status status = engine_plan_in(model, precision, &other);
    if (status == DW_OK) status = add_plans(row, other);
    if (status != DW_OK) json_object_set_new(row, "refused", json_string(dw_context_error(model->context)));
    dw_model_destroy(other);
    return row;
}

/* Does a layer of the plan have a weight in blocks? */
static bool is_quantised(const plan *plan) {
    for (int i = 0; plan != NULL && i < plan->step_count; i++)
        if (plan->steps[i].node->op == OP_quantize) return true;
    return false;
}

json_t *explain_beside(const dw_model *model) {
    const char *asked = model->options.precision;
    if (model->fused == NULL || (!is_quantised(model->full.plan) && !is_quantised(model->step.plan))) return NULL;
    json_t *rows = json_array(), *own = json_pack("{s:s}", "precision", model->precision);
    json_array_append_new(rows, own);
    if (add_plans(own, model) != DW_OK) json_object_set_new(own, "refused", json_string(dw_context_error(model->context)));
    json_array_append_new(rows, beside_row(model, "bf16"));
    char weights[64];
    const int length = snprintf(weights, sizeof weights, "%s-weights", asked != NULL ? asked : "");
    if (length < (int)sizeof weights && pass_precision_find(weights) != NULL) json_array_append_new(rows, beside_row(model, weights));
    return rows;
}
