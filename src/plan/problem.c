/* A step of a plan as the problem that kernels are asked about. */
#include "plan/internal.h"

void plan_problem(const plan *plan, const plan_step *step, const op_type **in, const op_type **out, kernel_problem *problem)
{
    const ir_node *node = step->node;
    *problem = (kernel_problem){
        .op = op_get(node->op), .attrs = &node->attrs, .post = step->post, .n_in = node->n_in, .n_out = node->n_out,
        .in = in, .out = out, .dims = plan->graph->dims, .symbols = plan->typical, .chip = step->at_load ? &plan->load_chip : &plan->chip, .invariant = plan->invariant,
    };
    for (int i = 0; i < node->n_in; i++) {
        const ir_value *value = ir_in(node, i);
        in[i] = value ? &value->type : NULL;
        if (value && plan_value_of(value)->key != NULL) problem->constant_in |= 1u << (i & 31);
    }
    for (int i = 0; i < node->n_out; i++) out[i] = &node->out[i]->type;
}
