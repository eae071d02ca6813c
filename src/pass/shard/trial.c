/* A trial of a cut: what each node takes in the place of which something was made, by the estimates of who plans, and which nodes are cut together. Changes no graph.
 *
 *     %1 = matmul x, up        column    a group of three: it is cut as one or not at all. What a collective takes is the group's whose parts it puts together,
 *     %2 = silu %1                       whoever reads that first
 *     %3 = matmul %2, down     row  */
#include "pass/shard/shard.h"

static dw_status estimate(const sharding *sharding, const ir_node *node, double *seconds) {
    const pass_estimates *estimates = sharding->options->estimates;
    *seconds = 0;
    if (ir_is_constant(ir_out(node))) return DW_OK;
    return estimates->seconds(estimates->user, sharding->graph, node, sharding->trial->sizes, seconds);
}

dw_status shard_trial_begin(sharding *sharding) {
    shard_trial *trial = sharding->trial;
    ir_graph *graph = sharding->graph;
    const pass_estimates *estimates = sharding->options->estimates;
    int count = 0;
    if (trial == NULL) return DW_OK;
    for (ir_node *node = graph->first; node != NULL; node = node->next) count++;
    TRY_NEW(trial->sizes, &sharding->arena, dim_symbol_count(graph->dims) + 1);
    TRY_NEW(trial->nodes, &sharding->arena, count + 1);
    TRY_NEW(trial->seconds, &sharding->arena, count + 1);
    TRY_NEW(trial->whole, &sharding->arena, count + 1);
    TRY_NEW(trial->group, &sharding->arena, count + 1);
    TRY_NEW(trial->is_cut, &sharding->arena, count + 1);
    TRY(estimates->sizes(estimates->user, graph, trial->sizes));
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        const int at = trial->count++;
        trial->nodes[at] = node;
        trial->group[at] = at;
        node->mark = &trial->nodes[at];
        TRY(estimate(sharding, node, &trial->whole[at]));
    }
    return DW_OK;
}

static int number_of(const shard_trial *trial, const ir_node *node) { return (int)((ir_node **)node->mark - trial->nodes); }

int shard_trial_group(const shard_trial *trial, int node) {
    while (trial->group[node] != node) node = trial->group[node];
    return node;
}

static void join(shard_trial *trial, int a, int b) {
    a = shard_trial_group(trial, a);
    b = shard_trial_group(trial, b);
    if (a < b) trial->group[b] = a;
    else trial->group[a] = b;
}

/* With those whose parts it goes on with. */
static void join_makers(sharding *sharding, const ir_node *node) {
    shard_trial *trial = sharding->trial;
    const int at = number_of(trial, node);
    trial->is_cut[at] = shard_of(sharding, ir_out(node))->local != ir_out(node);
    for (int i = 0; trial->is_cut[at] && i < node->n_in; i++) {
        const ir_value *value = ir_in(node, i);
        if (value != NULL && value->kind == IR_RESULT && shard_of(sharding, ir_in(node, i))->place.kind != SHARD_WHOLE) join(trial, at, number_of(trial, value->node));
    }
}

dw_status shard_trial_add(sharding *sharding, ir_node *before, ir_node *node) {
    shard_trial *trial = sharding->trial;
    if (trial == NULL) return DW_OK;
    if (node != NULL) join_makers(sharding, node);
    for (ir_node *made = before != NULL ? before->next : sharding->graph->first; made != node; made = made->next) {
        double seconds;
        TRY(estimate(sharding, made, &seconds));
        const ir_value *told = op_has(made->op, OP_TRAIT_COLLECTIVE) ? ir_in(made, 0) : NULL;
        const bool is_makers = told != NULL && told->kind == IR_RESULT && told->node->mark != NULL;
        made->mark = is_makers ? told->node->mark : node != NULL ? node->mark : NULL;
        if (made->mark != NULL) trial->seconds[number_of(trial, made)] += seconds;
    }
    if (node == NULL) return DW_OK;
    const int at = number_of(trial, node);
    if (!trial->is_cut[at]) trial->seconds[at] += trial->whole[at];
    return DW_OK;
}
