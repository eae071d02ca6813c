/* Chooses the kernel of each node: the cheapest that accepts, or the one that was asked for. */
#include "plan/internal.h"

#include <string.h>

dw_status plan_new_steps(plan *plan)
{
    ir_graph *graph = plan->graph;
    int count = 0;
    for (ir_node *node = graph->first; node != NULL; node = node->next) count++;
    TRY_NEW(plan->steps, &plan->arena, count);
    plan->step_count = 0;
    for (int phase = 0; phase < 3; phase++) {
        for (ir_node *node = graph->first; node != NULL; node = node->next) {
            const plan_value *result = plan_value_of(ir_out(node));
            const bool at_update = result->updated, at_load = result->key != NULL && !at_update;
            if (phase != (at_load ? 0 : at_update ? 1 : 2)) continue;
            plan_step *step = &plan->steps[plan->step_count++];
            *step = (plan_step){.node = node, .at_load = at_load, .at_update = at_update};
            node->mark = step;
            const op_def *op = op_get(node->op);
            if (strstr(op->attributes, "post") != NULL)
                TRY(op_post_parse(plan->context, ir_attr_text(node, OP_ATTR_post), &step->post));
        }
        if (phase == 0) plan->load_count = plan->step_count;
        if (phase == 1) plan->run_first = plan->step_count;
    }
    return DW_OK;
}

/* The weight and all that its packed form depends on. */
static dw_status pack_key(plan *plan, const char *weight, const kernel_packing *packing, const char **key)
{
    text words;
    text_init(&words, plan->context);
    text_printf(&words, "%s>%s", weight, packing->name);
    for (size_t i = 0; i < COUNT_OF(packing->numbers); i++) text_printf(&words, " %lld", (long long)packing->numbers[i]);
    dw_status status = text_status(&words);
    if (status == DW_OK && (*key = arena_text(&plan->arena, text_string(&words))) == NULL) status = DW_NO_MEMORY;
    text_free(&words);
    return status;
}

/* Trained parameters in fp32 are packed by each run: their panels would take as much again for each way in which they are read, and a step of GPT-2 was not faster for it. */
enum { MOST_PREPARED = 16 };   /* bits of an element */

dw_status plan_set_row(plan *plan, plan_step *step, const kernel_row *row, uint32_t ways)
{
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    kernel_typical typical;
    kernel_packing *packing;
    dw_tensor weight;
    step->row = row;
    step->ways = ways;
    for (int i = 0; i < step->tuned_count; i++)
        if (step->tuned[i].way != NULL) step->ways |= UINT32_C(1) << (step->tuned[i].way - row->ways);
    step->pack_key = NULL;
    step->packing = NULL;
    step->picked = NULL;
    plan_problem(plan, step, in, out, &problem);
    problem.context = plan->context;
    if (step->ways != 0 && kernel_at_typical(&problem, step->ways, &typical)) {
        typical.run.tuned = step->tuned;
        typical.run.tuned_count = step->tuned_count;
        TRY(kernel_pick(row, &typical.run, &step->picked));
    }
    if (step->at_load || step->at_update || row->packs < 0 || row->packs >= step->node->n_in) return DW_OK;
    const ir_value *operand = ir_in(step->node, row->packs);
    const plan_value *v = operand != NULL ? plan_value_of(operand) : NULL;
    if (v == NULL || v->key == NULL || (v->updated && dw_format_bits(operand->type.format) > MOST_PREPARED)) return DW_OK;
    TRY(op_tensor_bind(plan->context, in[row->packs], plan->typical, NULL, &weight));
    TRY_NEW(packing, &plan->arena, 1);
    if (!row->packing(&problem, &weight, packing)) return base_fail(plan->context, DW_LIMIT, "the packed form of %s for %s overflows", v->key, row->name);
    step->packing = packing;
    return pack_key(plan, v->key, packing, &step->pack_key);
}

/* "op=kernel,op=kernel" is well formed and names ops that there are. */
static dw_status check_kernels(const plan *plan, const char *kernels)
{
    for (const char *at = kernels; at != NULL && *at != '\0';) {
        size_t size = strcspn(at, ","), length = strcspn(at, "=,");
        char name[64];
        if (length == 0 || length + 1 >= size || at[length] != '=' || length >= sizeof name)
            return base_fail(plan->context, DW_INVALID, "kernels \"%s\": expected op=kernel, comma-separated", kernels);
        memcpy(name, at, length);
        name[length] = '\0';
        if (op_find(name) == OP_COUNT) return base_fail(plan->context, DW_NOT_FOUND, "kernels \"%s\": there is no op named %s", kernels, name);
        at += size + (at[size] == ',');
    }
    return DW_OK;
}

/* Is it the name of a row of the op for the plan's GPU, or of a way? */
static bool is_of_device(const plan *plan, op_id op, const char *name)
{
    for (int i = 0; i < kernel_count(); i++)
        if (kernel_at(i)->op == op && kernel_at(i)->device == plan->chip.kind && kernel_is_named(kernel_at(i), name)) return true;
    return false;
}

dw_status plan_asked_kernel(plan *plan, const char *kernels, const plan_step *step, const char **name)
{
    const char *op = op_get(step->node->op)->name;
    *name = NULL;
    size_t length = strlen(op);
    for (const char *at = kernels; at != NULL && *at != '\0';) {
        const char *end = strchr(at, ',');
        size_t size = end ? (size_t)(end - at) : strlen(at);
        if (size > length && strncmp(at, op, length) == 0 && at[length] == '=') {
            *name = arena_text_n(&plan->arena, at + length + 1, size - length - 1);
            if (*name == NULL) return DW_NO_MEMORY;
            if (step->at_load && plan->load_chip.kind != plan->chip.kind && is_of_device(plan, step->node->op, *name)) *name = NULL;
            return DW_OK;
        }
        at = end ? end + 1 : NULL;
    }
    return DW_OK;
}

/* The verdicts of a step, with each reason once: thousands of nodes are refused for a few reasons. */
static dw_status keep_verdicts(plan *plan, map *reasons, const kernel_choice *choice, plan_step *step)
{
    kernel_verdict *kept;
    TRY_NEW(kept, &plan->arena, choice->verdict_count);
    for (int i = 0; i < choice->verdict_count; i++) {
        kept[i] = choice->verdicts[i];
        if (kept[i].reason == NULL) continue;
        char *reason = map_find(reasons, kept[i].reason);
        if (reason == NULL) {
            reason = arena_text(&plan->arena, kept[i].reason);
            if (reason == NULL) return DW_NO_MEMORY;
            TRY(map_set(reasons, reason, reason));
        }
        kept[i].reason = reason;
    }
    step->verdicts = kept;
    step->verdict_count = choice->verdict_count;
    return DW_OK;
}

/* The caller's kernels come before what was measured of ours. */
static dw_status has_registered(const plan *plan, const kernel_registry *registry, const kernel_problem *problem, bool *has)
{
    kernel_problem asked = *problem;
    text why;
    asked.context = plan->context;
    *has = false;
    text_init(&why, plan->context);
    for (int i = 0; registry != NULL && i < registry->count && !*has; i++) {
        const kernel_row *row = &registry->rows[i];
        *has = row->op == problem->op->id && row->device == problem->chip->kind && kernel_refusal(row, NULL, &asked, &why) == NULL;
    }
    dw_status status = text_status(&why);
    text_free(&why);
    return status;
}

static dw_status choose_step(plan *plan, const plan_options *options, arena *scratch, map *reasons, plan_step *step)
{
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    kernel_choice choice;
    const char *asked, *measured = NULL;
    bool registered = false;
    plan_problem(plan, step, in, out, &problem);
    TRY(plan_asked_kernel(plan, options->kernels, step, &asked));
    if (asked != NULL) step->because = "asked for";
    if (asked == NULL && options->tuning != NULL) TRY(has_registered(plan, options->registry, &problem, &registered));
    if (asked == NULL && options->tuning != NULL && !registered) TRY(plan_take_tuned(plan, options->tuning, scratch, &problem, step, &measured));
    dw_status status = kernel_choose(scratch, &problem, options->registry, asked != NULL ? asked : measured, &choice);
    if (status != DW_OK)
        return base_fail_at(plan->context, status, "op %%%d %s, %s", step->node->out[0]->id, problem.op->name,
                            step->node->origin.module ? step->node->origin.module : "no module");
    step->seconds = choice.seconds;
    if (asked != NULL) step->way = kernel_find_way(choice.row, asked);
    TRY(keep_verdicts(plan, reasons, &choice, step));
    return plan_set_row(plan, step, choice.row, choice.ways);
}

dw_status plan_choose(plan *plan, const void *argument)
{
    map reasons;
    map_init(&reasons, &plan->arena);
    TRY(check_kernels(plan, ((const plan_options *)argument)->kernels));
    TRY(plan_new_steps(plan));
    for (int i = 0; i < plan->step_count; i++) {
        arena scratch;
        arena_init(&scratch, plan->context);
        dw_status status = choose_step(plan, argument, &scratch, &reasons, &plan->steps[i]);
        arena_free(&scratch);
        if (status != DW_OK) return status;
    }
    return DW_OK;
}
