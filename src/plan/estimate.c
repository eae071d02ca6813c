/* What a single node takes, of a graph that is no plan yet: the seconds of the cheapest kernel that accepts it, for passes that choose by time; and what a step of a plan does. */
#include "plan/internal.h"

#include <math.h>
#include <string.h>

static void add_problem(const ir_graph *graph, const ir_node *node, const plan_options *options, const int64_t *symbols, const op_type **in, const op_type **out, kernel_problem *problem)
{
    *problem = (kernel_problem){.op = op_get(node->op), .attrs = &node->attrs, .n_in = node->n_in, .n_out = node->n_out, .in = in, .out = out,
                                .dims = graph->dims, .symbols = symbols, .chip = options->chip, .invariant = options->invariant};
    for (int i = 0; i < node->n_in; i++) {
        in[i] = ir_in(node, i) != NULL ? &ir_in(node, i)->type : NULL;
        if (ir_in(node, i) != NULL && ir_is_constant(ir_in(node, i))) problem->constant_in |= 1u << (i & 31);
    }
    for (int i = 0; i < node->n_out; i++) out[i] = &node->out[i]->type;
}

dw_status plan_estimate_sizes(void *user, const ir_graph *graph, int64_t *symbols)
{
    const plan_options *options = user;
    plan_typical_dims(graph, symbols);
    return plan_read_dims(graph->context, graph, options->dims, symbols);
}

dw_status plan_estimate(void *user, const ir_graph *graph, const ir_node *node, const int64_t *symbols, double *seconds)
{
    const plan_options *options = user;
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    kernel_choice choice;
    arena scratch;
    *seconds = 0;
    if (op_has(node->op, OP_TRAIT_VIEW)) return DW_OK;
    add_problem(graph, node, options, symbols, in, out, &problem);
    if (strstr(problem.op->attributes, "post") != NULL) TRY(op_post_parse(graph->context, ir_attr_text(node, OP_ATTR_post), &problem.post));
    arena_init(&scratch, graph->context);
    const dw_status status = kernel_choose(&scratch, &problem, options->registry, NULL, &choice);
    *seconds = status == DW_OK ? choice.seconds : INFINITY;
    arena_free(&scratch);
    return status == DW_UNSUPPORTED ? DW_OK : status;
}

/* Of the sizes that the plan was made for a step knows it already. */
static bool is_at_typical(const plan_binding *binding)
{
    const plan *plan = binding->plan;
    for (int i = 0; i < dim_symbol_count(plan->graph->dims); i++)
        if (binding->symbols[i] != plan->typical[i]) return false;
    return true;
}

double plan_call_seconds(const plan_binding *binding, int step)
{
    const plan_step *s = &binding->plan->steps[step];
    const kernel_run *run = &binding->calls[step].run;
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    if (s->row == NULL || s->node->n_in > KERNEL_MAX_OPERANDS || s->node->n_out > KERNEL_MAX_RESULTS) return s->seconds;
    if (!run->passes && !run->leaves_plain && !run->quantises && run->norm == NULL && run->write == NULL && is_at_typical(binding)) return s->seconds;
    plan_problem(binding->plan, s, in, out, &problem);
    problem.symbols = binding->symbols;
    problem.user = s->row->user;
    return kernel_run_seconds(s->row, &problem, run);
}
