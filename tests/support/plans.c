#include "support/plans.h"

#include "support/support.h"

#include <string.h>

void plans_ok(dw_context *context, dw_status status) {
    if (status != DW_OK) fail_msg("%s", dw_context_error(context));
}

chip_caps plans_chip(dw_context *context, const char *name) {
    chip_caps chip;
    plans_ok(context, chip_find(context, name, 0, &chip));
    return chip;
}

plan *plans_compile(dw_context *context, const char *words, const chip_caps *chip, const char *kernels) {
    ir_graph *graph;
    plan *made;
    plans_ok(context, ir_parse(context, "text", words, strlen(words), NULL, &graph));
    plans_ok(context, plan_compile(graph, &(plan_options){.chip = chip, .kernels = kernels}, &made));
    return made;
}

bool plans_has_place(const plan_value *v) { return v->place == PLAN_WORKSPACE && v->base == NULL && v->first >= 0; }

void plans_assert_apart(const plan_binding *binding, uint64_t seed) {
    const plan *plan = binding->plan;
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *a = &plan->values[i];
        if (!plans_has_place(a)) continue;
        assert_true(binding->offsets[i] % 64 == 0 && binding->offsets[i] + binding->bytes[i] <= binding->value_bytes);
        for (int k = 0; k < i; k++) {
            const plan_value *b = &plan->values[k];
            if (!plans_has_place(b) || a->last < b->first || b->last < a->first) continue;
            bool apart = binding->offsets[i] + binding->bytes[i] <= binding->offsets[k] || binding->offsets[k] + binding->bytes[k] <= binding->offsets[i];
            if (!apart) fail_msg("graph %llu: %%%d and %%%d are alive together and overlap", (unsigned long long)seed, a->value->id, b->value->id);
        }
    }
}

typedef struct counter { kernel_launcher launcher; int count; } counter;

static dw_status count_launch(kernel_launcher *launcher, const kernel_launch *launch) {
    (void)launch;
    ((counter *)launcher)->count++;
    return DW_OK;
}

int plans_launches(dw_context *context, const plan *plan, const plan_binding *binding) {
    counter counter = {{count_launch}, 0};
    for (int i = plan->load_count; i < plan->step_count; i++) plans_ok(context, kernel_shape(plan->steps[i].row, &binding->calls[i].run, &counter.launcher));
    return counter.count;
}
