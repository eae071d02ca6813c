/* What a model would take in other precisions, by the same estimates at the same sizes. A precision that was asked for is taken, whatever it costs; who asked for it can see here when it costs more. */
#include "lab/explain.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

char *explain_pattern(const char *module) {
    char *pattern = malloc(strlen(module) + 1), *to = pattern;
    if (pattern == NULL) return NULL;
    for (const char *at = module; *at != '\0';) {
        if (!isdigit((unsigned char)*at) || (at > module && at[-1] != '.')) {
            *to++ = *at++;
            continue;
        }
        *to++ = '*';
        while (isdigit((unsigned char)*at)) at++;
    }
    *to = '\0';
    return pattern;
}

static void add_to(json_t *object, const char *key, double more) { json_object_set_new(object, key, json_real(json_number_value(json_object_get(object, key)) + more)); }

/* The launch that quantises operand 0 of the product, and is counted with the first that reads it; -1: none. */
static int quantiser_of(const plan *plan, const ir_node *product) {
    const ir_value *x = ir_in(product, 0);
    const plan_step *made = x->kind == IR_RESULT && x->node->op == OP_quantize ? x->node->mark : NULL;
    for (const ir_use *use = x->uses; made != NULL && use != NULL; use = use->next)
        if (use->node->order < product->order) return -1;
    return made != NULL && !made->at_load ? (int)(made - plan->steps) : -1;
}

/* What the step takes, if it is a product with a weight, goes to its layers: {"encoder.*.fc1": {"us": .., "count": .., "quantised": how many have a weight in blocks}}. */
static void add_layer(json_t *layers, const plan_binding *binding, int step) {
    const ir_node *node = binding->plan->steps[step].node;
    const char *module = node->origin.module;
    if ((node->op != OP_matmul && node->op != OP_grouped_matmul) || module == NULL || *module == '\0' || !ir_is_weight(ir_in(node, 1))) return;
    const int quantiser = quantiser_of(binding->plan, node);
    char *pattern = explain_pattern(module);
    if (pattern == NULL) return;
    if (json_object_get(layers, pattern) == NULL) json_object_set_new(layers, pattern, json_object());
    add_to(json_object_get(layers, pattern), "us", (plan_call_seconds(binding, step) + (quantiser >= 0 ? plan_call_seconds(binding, quantiser) : 0)) * 1e6);
    add_to(json_object_get(layers, pattern), "count", 1);
    add_to(json_object_get(layers, pattern), "quantised", dw_format_is_block(ir_in(node, 1)->type.format) ? 1 : 0);
    free(pattern);
}

/* A run of the plan at its typical sizes; quantisers: what its steps that only quantise take of it; layers: what its products with weights do, with what quantises for them. */
static dw_status estimate(const plan *plan, double *us, double *quantisers, json_t *layers) {
    plan_binding binding;
    TRY(plan_binding_create(plan->context, plan, &binding));
    const dw_status status = plan_bind(&binding, plan->typical);
    *us = *quantisers = 0;
    for (int i = plan->load_count; status == DW_OK && i < plan->step_count; i++) {
        const double seconds = plan_call_seconds(&binding, i);
        *us += seconds * 1e6;
        if (plan->steps[i].node->op == OP_quantize) *quantisers += seconds * 1e6;
        add_layer(layers, &binding, i);
    }
    plan_binding_destroy(&binding);
    return status;
}

static dw_status add_plan(json_t *row, const char *name, const plan *plan) {
    double us, quantisers;
    if (plan == NULL) return DW_OK;
    json_t *layers = json_object();
    const dw_status status = estimate(plan, &us, &quantisers, layers);
    if (status != DW_OK) {
        json_decref(layers);
        return status;
    }
    json_object_set_new(row, name, json_pack("{s:f, s:f, s:o}", "us", us, "quantize_us", quantisers, "layers", layers));
    return DW_OK;
}

/* Quantised layers that take longer than in bf16, those of a pattern together: one that a rule keeps in bf16 takes longer, too, where it quantises its result for the next. Nothing is changed for it: a
 * precision that was asked for is taken. */
static void add_slower(json_t *own, const json_t *plain) {
    json_t *layers = json_object_get(own, "layers"), *others = json_object_get(plain, "layers"), *slower = json_array(), *layer;
    const char *pattern;
    json_object_foreach(layers, pattern, layer) {
        const json_t *other = json_object_get(others, pattern);
        const double us = json_number_value(json_object_get(layer, "us")), least = json_number_value(json_object_get(other, "us")), count = json_number_value(json_object_get(layer, "count"));
        if (other == NULL || count != json_number_value(json_object_get(other, "count")) || json_number_value(json_object_get(layer, "quantised")) == 0 || us <= least) continue;
        json_array_append_new(slower, json_pack("{s:s, s:i, s:f, s:f}", "layers", pattern, "count", (int)count, "us", us, "bf16_us", least));
    }
    if (own != NULL) json_object_set_new(own, "slower", slower);
    else json_decref(slower);
}

/* has_bf16: the second row is that of bf16. */
static void compare_layers(json_t *rows, bool has_bf16) {
    static const char *const plans[] = {"plan", "step_plan"};
    size_t i;
    json_t *row;
    for (size_t k = 0; k < COUNT_OF(plans); k++) {
        if (has_bf16) add_slower(json_object_get(json_array_get(rows, 0), plans[k]), json_object_get(json_array_get(rows, 1), plans[k]));
        json_array_foreach(rows, i, row) json_object_del(json_object_get(row, plans[k]), "layers");
    }
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

/* Those that the option leaves open, "fp8 or fp8-weights", each for all layers; of one that leaves nothing open its form of weights alone. */
static void add_others(json_t *rows, const dw_model *model, const char *asked) {
    const bool is_open = strstr(asked, " or ") != NULL;
    for (const char *at = asked; at != NULL;) {
        const char *end = strstr(at, " or ");
        const int length = end != NULL ? (int)(end - at) : (int)strlen(at);
        char name[64] = "";
        if (length < (int)sizeof name - 16) snprintf(name, sizeof name, "%.*s%s", length, at, is_open ? "" : "-weights");
        if (pass_precision_find(name) != NULL && strcmp(name, "bf16") != 0) json_array_append_new(rows, beside_row(model, name));
        at = end != NULL ? end + strlen(" or ") : NULL;
    }
}

json_t *explain_beside(const dw_model *model) {
    const char *asked = model->options.precision;
    const bool is_open = asked != NULL && strstr(asked, " or ") != NULL, is_told = is_open || is_quantised(model->full.plan) || is_quantised(model->step.plan);
    text narrow;
    text_init(&narrow, model->context);
    const bool narrows = model->fused != NULL && engine_narrow_scores(model, &narrow) == DW_OK && narrow.length > 0;
    if (model->fused == NULL || (!is_told && !narrows)) {
        text_free(&narrow);
        return NULL;
    }
    json_t *rows = json_array(), *own = json_pack("{s:s}", "precision", model->precision);
    json_array_append_new(rows, own);
    if (add_plans(own, model) != DW_OK) json_object_set_new(own, "refused", json_string(dw_context_error(model->context)));
    if (is_told) json_array_append_new(rows, beside_row(model, "bf16"));
    if (is_told && asked != NULL) add_others(rows, model, asked);
    if (narrows) json_array_append_new(rows, beside_row(model, text_string(&narrow)));
    text_free(&narrow);
    compare_layers(rows, is_told);
    return rows;
}
