/* Of a model that is cut over ranks: how each layer is, why, and what a rank sends. */
#include "lab/explain.h"

#include <string.h>


/* What a rank sends at least of one collective at the typical sizes. Of a sum each element goes round twice but for its own part; of what is gathered each rank's part goes to all others. */
static double sent_bytes(const plan *plan, const ir_node *node) {
    const double ranks = (double)op_attr_int(&node->attrs, OP_ATTR_ranks);
    dw_tensor tensor;
    if (op_tensor_bind(plan->context, &ir_in(node, 0)->type, plan->typical, NULL, &tensor) != DW_OK) return 0;
    const double bytes = op_tensor_bytes(&tensor);
    switch (node->op) {
    case OP_all_reduce: return 2 * bytes * (ranks - 1) / ranks;
    case OP_all_gather: return bytes * (ranks - 1);
    default: return bytes * (ranks - 1) / ranks;
    }
}

static void add_plan(json_t *plans, const char *of, const plan *plan) {
    double bytes = 0, seconds = 0;
    int count = 0;
    if (plan == NULL) return;
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        if (!op_has(step->node->op, OP_TRAIT_COLLECTIVE)) continue;
        bytes += sent_bytes(plan, step->node);
        seconds += step->seconds;
        count++;
    }
    json_array_append_new(plans, json_pack("{s:s, s:i, s:f, s:f}", "of", of, "collectives", count, "sent_bytes", bytes, "us", seconds * 1e6));
}

json_t *explain_ranks(const dw_model *model) {
    const char *mesh = model->options.comm != NULL ? dw_comm_mesh(model->options.comm) : model->options.mesh;
    if (mesh == NULL) return NULL;
    json_t *facts = json_pack("{s:s, s:s}", "mesh", mesh, "splits", model->split_report), *plans = json_array();
    add_plan(plans, "a whole run", model->full.plan);
    add_plan(plans, "what is computed once for each text", model->prelude.plan);
    add_plan(plans, "the cached step", model->step.plan);
    json_object_set_new(facts, "sent", plans);
    return facts;
}

void words_print_ranks(text *out, const json_t *facts) {
    size_t index;
    const json_t *one;
    text_printf(out, "ranks %s: each layer's split\n%s", json_string_value(json_object_get(facts, "mesh")), json_string_value(json_object_get(facts, "splits")));
    json_array_foreach(json_object_get(facts, "sent"), index, one) {
        text_printf(out, "  %s: %lld collectives, in which a rank sends %.1f kB or more; %.1f us estimated\n", json_string_value(json_object_get(one, "of")),
                    (long long)json_integer_value(json_object_get(one, "collectives")), json_number_value(json_object_get(one, "sent_bytes")) / 1e3, json_number_value(json_object_get(one, "us")));
    }
}
