/* What is made of trained parameters when these have changed, once for all runs until they change again: casts, quantised and packed weights. Its values keep their places in the workspace from run to
 * run. Which runs are the first after an update is the engine's. */
#include "plan/internal.h"

#include <string.h>

/* No run changes a trained parameter. */
static bool leaves_parameters(const ir_graph *graph)
{
    for (size_t i = 0; i < graph->state_count; i++)
        if (graph->states[i]->trained && graph->states[i]->next != graph->states[i]) return false;
    return true;
}

/* Outputs and next values of states are made by each run, whatever they are made of. */
static bool is_prepared(const plan *plan, const ir_node *node)
{
    for (int i = 0; i < node->n_out; i++)
        if (node->out[i]->rate != IR_RATE_UPDATE || plan_is_result(plan->graph, node->out[i])) return false;
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) != NULL && !plan_stays(plan, ir_in(node, i))) return false;
    return true;
}

void plan_find_prepared(plan *plan)
{
    plan->prepares = plan->prepares && leaves_parameters(plan->graph);
    for (ir_node *node = plan->graph->first; plan->prepares && node != NULL; node = node->next)
        for (int i = 0; is_prepared(plan, node) && i < node->n_out; i++) plan_value_of(node->out[i])->prepared = true;
}

/* ---- packed operands ---- */

static const plan_pack *find_pack(const plan *plan, const plan_value *value, const kernel_packing *packing)
{
    for (int i = 0; i < plan->pack_count; i++) {
        const plan_pack *pack = &plan->packs[i];
        if (pack->value == value && strcmp(pack->packing->name, packing->name) == 0 && memcmp(pack->packing->numbers, packing->numbers, sizeof packing->numbers) == 0) return pack;
    }
    return NULL;
}

dw_status plan_find_packs(plan *plan)
{
    TRY_NEW(plan->packs, &plan->arena, plan->step_count + 1);
    plan->pack_count = 0;
    plan->pack_bytes = 0;
    for (int i = plan->run_first; i < plan->step_count; i++) {
        plan_step *step = &plan->steps[i];
        if (step->packing == NULL || step->pack_key != NULL) continue;
        const plan_value *value = plan_value_of(ir_in(step->node, step->row->packs));
        step->pack = find_pack(plan, value, step->packing);
        if (step->pack != NULL) continue;
        plan->packs[plan->pack_count] = (plan_pack){.value = value, .packing = step->packing, .offset = plan->pack_bytes};
        step->pack = &plan->packs[plan->pack_count++];
        plan->pack_bytes += base_align_up(step->packing->bytes, 64);
    }
    return DW_OK;
}

/* ---- lives ---- */

/* Packed operands are read when all is made; what runs read plain lies where nothing else ever does. */
void plan_keep_prepared(plan *plan)
{
    for (int i = plan->run_first; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        for (int k = 0; k < step->node->n_in; k++) {
            if (ir_in(step->node, k) == NULL) continue;
            const plan_value *v = plan_value_of(ir_in(step->node, k));
            if (!v->prepared) continue;
            const bool is_packed = step->pack != NULL && step->row->packs == k;
            const int last = is_packed ? plan->run_first - 1 : plan->step_count - 1;
            if (v->root->last < last) v->root->last = last;
        }
    }
}
