/* Makes a plan of a graph: a kernel for each node; which views are mere strides; which results are written into an operand's memory; where each value
 * is. Not offsets: sizes are unknown here (bind.c). */
#include "plan/internal.h"

#include <string.h>

void plan_destroy(plan *plan)
{
    if (plan == NULL) return;
    dw_context *context = plan->context;
    ir_graph_destroy(plan->graph);
    arena_free(&plan->arena);
    base_release(context, plan, sizeof *plan, _Alignof(max_align_t));
}

/* Weights are prepared on the host, whatever the plan runs on. */
static dw_status set_chip(plan *plan, const chip_caps *chip)
{
    plan->chip = plan->load_chip = *chip;
    return chip->kind == CHIP_CPU ? DW_OK : chip_find(plan->context, "cpu-portable", 0, &plan->load_chip);
}

dw_status plan_create(ir_graph *graph, const chip_caps *chip, plan **result)
{
    dw_context *context = graph->context;
    void *memory;
    *result = NULL;
    dw_status status = base_alloc(context, sizeof(plan), _Alignof(max_align_t), &memory);
    if (status != DW_OK) {
        ir_graph_destroy(graph);
        return status;
    }
    plan *plan = memory;
    *plan = (struct plan){.context = context, .graph = graph};
    arena_init(&plan->arena, context);
    status = set_chip(plan, chip);
    if (status != DW_OK) {
        plan_destroy(plan);
        return status;
    }
    *result = plan;
    return DW_OK;
}

/* ---- results: outputs and next-states ---- */

static bool is_view(const ir_node *node) { return (op_get(node->op)->traits & OP_TRAIT_VIEW) != 0; }

/* Sets last_read of all values that have a number; those of nodes added since are read by nobody. */
static void find_reads(plan *plan)
{
    for (int i = 0; i < plan->value_count; i++) plan->values[i].last_read = 0;
    for (const ir_node *node = plan->graph->last; node != NULL; node = node->previous) {
        const plan_value *result = plan_value_of(ir_out(node));
        int last = is_view(node) && result != NULL && result->last_read > node->order ? result->last_read : node->order;
        for (int i = 0; i < node->n_in; i++) {
            plan_value *v = ir_in(node, i) != NULL ? plan_value_of(ir_in(node, i)) : NULL;
            if (v != NULL && v->last_read < last) v->last_read = last;
        }
    }
}

/* Is value base itself, or a view of it? */
static bool is_of(const ir_value *value, const ir_value *base)
{
    int order = base->kind == IR_RESULT ? base->node->order : 0;
    while (value != base && value->kind == IR_RESULT && value->node->order > order && is_view(value->node)) value = ir_in(value->node, 0);
    return value == base;
}

/* May the node write its result over operand, which it reads in that slot: does it read it, or a view of it, in no other, and nobody later? */
static bool dies_at(const ir_value *operand, const ir_node *node, int slot)
{
    if (plan_value_of(operand)->last_read > node->order) return false;
    for (int i = 0; i < node->n_in; i++)
        if (i != slot && ir_in(node, i) != NULL && is_of(ir_in(node, i), operand)) return false;
    return true;
}

/* Is the next value of state a result that is nothing else? */
static bool has_own_next(const ir_graph *graph, const ir_value *state)
{
    const ir_value *next = state->next;
    return next->kind == IR_RESULT && !ir_is_output(graph, next) && next->next_count == 1;
}

/* Can the step that makes the next value write it to the state's memory, as the present value has been read by then? */
static bool writes_straight(const ir_graph *graph, const ir_value *state)
{
    return has_own_next(graph, state) && plan_value_of(state)->last_read < state->next->node->order;
}

/* Is the new value of state written over the old one by the node that makes it? */
static bool updates_in_place(const ir_graph *graph, const ir_value *state)
{
    const ir_value *next = state->next;
    if (!has_own_next(graph, state)) return false;
    const plan_step *step = next->node->mark;
    int slot = step != NULL && step->row != NULL ? kernel_in_place(step->row, step->ways, next->type.format, next->result) : -1;
    return slot >= 0 && slot < next->node->n_in && ir_in(next->node, slot) == state && dies_at(state, next->node, slot) && op_type_equal(&state->type, &next->type);
}

/* A copy of value at the end of the graph, which the engine may place where it likes. */
static dw_status emit_copy(ir_graph *graph, ir_value *value, ir_value **copy)
{
    ir_cursor_end(graph);
    graph->origin = value->kind == IR_RESULT ? value->node->origin : (ir_origin){0};
    op_attr shape = op_set_dims(OP_ATTR_shape, value->type.rank, value->type.dims);
    return ir_emit(graph, OP_reshape, 1, (ir_value *[]){value}, 1, &shape, copy);
}

static dw_status copy_next(ir_graph *graph, ir_value *state)
{
    ir_value *copy;
    TRY(emit_copy(graph, state->next, &copy));
    ir_set_next(state, copy);
    return DW_OK;
}

static const ir_value *view_root(const ir_value *value)
{
    while (value->kind == IR_RESULT && is_view(value->node)) value = ir_in(value->node, 0);
    return value;
}

/* Is output i a result that its step can write straight to the caller's memory? */
static bool is_own_output(const ir_graph *graph, size_t i)
{
    const ir_value *value = graph->outputs[i].value;
    if (value->kind != IR_RESULT || value->next_count > 0) return false;
    for (size_t k = 0; value->output_count > 1 && k < i; k++)
        if (graph->outputs[k].value == value) return false;
    return true;
}

static dw_status isolate_outputs(ir_graph *graph, bool *changed)
{
    for (size_t i = 0; i < graph->output_count; i++) {
        ir_value *copy;
        if (is_own_output(graph, i)) continue;
        TRY(emit_copy(graph, graph->outputs[i].value, &copy));
        ir_set_output(graph, i, copy);
        *changed = true;
    }
    ir_renumber(graph);
    return DW_OK;
}

/* A copy that is never a mere view: padded by nothing. */
static dw_status emit_taken(ir_graph *graph, ir_value *value, ir_value **copy)
{
    dim none[DW_MAX_RANK];
    int rank = value->type.rank;
    for (int i = 0; i < rank; i++) TRY_DIM(graph->context, none[i], dim_constant(graph->dims, 0));
    ir_cursor_end(graph);
    const op_attr attrs[] = {op_set_dims(OP_ATTR_before, rank, none), op_set_dims(OP_ATTR_after, rank, none), op_set_real(OP_ATTR_value, 0)};
    return ir_emit(graph, OP_pad, 1, (ir_value *[]){value}, COUNT_OF(attrs), attrs, copy);
}

/* Is the state written where nothing will read its present value any more? */
static bool is_written_well(const ir_graph *graph, const ir_value *state)
{
    return state->next == state || writes_straight(graph, state) || updates_in_place(graph, state);
}

/* Next values that are (views of) present values of states are read before any state is written, so that states may swap:
 *     next a b                  %1 = pad b; %2 = pad a              read both,
 *     next b a                  next a: reshape %1; next b: %2      write both
 * A state that is read so is read at the end, so nothing before that may write it any more: again, until nothing changes. */
static dw_status isolate_states(plan *plan, bool *changed)
{
    ir_graph *graph = plan->graph;
    bool *copied, again = true;
    TRY_NEW(copied, &plan->arena, graph->state_count);
    find_reads(plan);
    while (again) {
        again = false;
        for (size_t i = 0; i < graph->state_count; i++) {
            ir_value *state = graph->states[i];
            if (copied[i] || is_written_well(graph, state)) continue;
            copied[i] = again = *changed = true;
            const ir_value *root = view_root(state->next);
            if (root->kind != IR_STATE) continue;
            ir_value *taken;
            TRY(emit_taken(graph, state->next, &taken));
            ir_set_next(state, taken);
            plan_value_of(root)->last_read = taken->node->order;
        }
        ir_renumber(graph);
    }
    for (size_t i = 0; i < graph->state_count; i++)
        if (copied[i] && !writes_straight(graph, graph->states[i])) TRY(copy_next(graph, graph->states[i]));
    ir_renumber(graph);
    return DW_OK;
}

/* Before: outputs and next-states may be inputs, constants, states, or one value twice.
 * After: each is a result of its own, made by a step that can write straight to where it belongs. */
static dw_status isolate_results(plan *plan, bool *changed)
{
    *changed = false;
    TRY(isolate_outputs(plan->graph, changed));
    return isolate_states(plan, changed);
}

/* ---- in place, places, lives ---- */

static void place_results(plan *plan)
{
    ir_graph *graph = plan->graph;
    for (size_t i = 0; i < graph->output_count; i++) {
        plan_value *v = plan_value_of(graph->outputs[i].value);
        v->place = PLAN_OUTPUT;
        v->slot = (int)i;
    }
    for (size_t i = 0; i < graph->state_count; i++) {
        ir_value *state = graph->states[i];
        if (state->next == state) continue;
        plan_value *v = plan_value_of(state->next);
        v->place = PLAN_STATE;
        v->slot = (int)i;
        if (updates_in_place(graph, state)) v->base = plan_value_of(state);
    }
}

/* May the step read value for another operand, too, which it makes of that itself? Its blocks read all of it then, while others write results. */
static bool is_read_besides(const plan *plan, const plan_step *step, const ir_value *value)
{
    for (int i = 0; i < plan->plain_count; i++) {
        const plan_plain *plain = &plan->plains[i];
        if (&plan->steps[plan_reader_of(plan, plain->read)] == step && plain->source != NULL && is_of(plain->source->value, value)) return true;
    }
    return false;
}

static void reuse_operand(const plan *plan, const plan_step *step, int number)
{
    int slot = kernel_in_place(step->row, step->ways, step->node->out[number]->type.format, number);
    if (slot < 0 || slot >= step->node->n_in || ir_in(step->node, slot) == NULL) return;
    plan_value *result = plan_value_of(step->node->out[number]), *operand = plan_value_of(ir_in(step->node, slot));
    if (result->place != PLAN_WORKSPACE || operand->place != PLAN_WORKSPACE || operand->view || operand->taken != NULL) return;
    if (!result->contiguous || !operand->contiguous || !op_type_equal(&result->value->type, &operand->value->type)) return;
    if (plan_is_result(plan->graph, operand->value) || !dies_at(operand->value, step->node, slot) || is_read_besides(plan, step, operand->value)) return;
    result->base = operand;
}

static void reuse_operands(plan *plan)
{
    for (int i = plan->run_first; i < plan->step_count; i++)
        for (int k = 0; k < plan->steps[i].node->n_out; k++) reuse_operand(plan, &plan->steps[i], k);
}

/* Bases come before what lies in them. */
static void find_roots(plan *plan)
{
    for (int i = 0; i < plan->value_count; i++) {
        plan_value *v = &plan->values[i];
        v->root = v->base != NULL ? v->base->root : v;
    }
}

static void mark_lives(plan *plan)
{
    for (int i = plan->run_first; i < plan->step_count; i++) {
        const ir_node *node = plan->steps[i].node;
        for (int k = 0; k < node->n_out; k++) {
            plan_value *root = plan_value_of(node->out[k])->root;
            if (root->first < 0) root->first = i;
            root->last = i;
        }
        for (int k = 0; k < node->n_in; k++)
            if (ir_in(node, k) != NULL) plan_value_of(ir_in(node, k))->root->last = i;
    }
    for (int i = 0; i < plan->plain_count; i++) {
        const plan_plain *plain = &plan->plains[i];
        if (plain->beside && plain->value->root->first > plain->made) plain->value->root->first = plain->made;
        const int read = plan_reader_of(plan, plain->read), last = plain->takes && plain->value->root->last > read ? plain->value->root->last : read;
        if (plain->source != NULL && plain->source->root->last < last) plain->source->root->last = last;
        for (int k = 0; k < UPDATE_OPERANDS; k++) {
            const ir_value *operand = plan_written_operand(plan, plain, k);
            if (operand != NULL && plan_value_of(operand)->root->last < last) plan_value_of(operand)->root->last = last;
        }
    }
}

static bool is_read_plain(const plan_value *value)
{
    for (const ir_use *use = value->value->uses; use != NULL; use = use->next) {
        const plan_step *step = use->node->mark;
        if (step == NULL) {   /* a view: who reads that? */
            if (plan_value_of(ir_out(use->node))->read_plain) return true;
        } else if (!step->at_load && !(step->at_update && value->updated) && !(step->pack_key && step->row->packs == use->index)) {
            return true;
        }
    }
    return false;
}

/* Views live where their base lives; what is made of weights and read only in packed form, or only while it is made, is nowhere. */
static void settle_places(plan *plan)
{
    for (int i = plan->value_count - 1; i >= 0; i--) {   /* views come after what they are of */
        plan_value *v = &plan->values[i];
        v->read_plain = is_read_plain(v);
        if (v->key != NULL && v->place == PLAN_CONSTANT && !v->read_plain) v->place = PLAN_NOWHERE;
    }
    for (int i = 0; i < plan->value_count; i++)
        if (plan->values[i].view) plan->values[i].place = plan->values[i].root->place;
}

/* ---- the whole ---- */

dw_status plan_finish(plan *plan, dw_status (*choose)(struct plan *, const void *), const void *argument)
{
    ir_renumber(plan->graph);
    TRY(plan_number_values(plan));
    TRY(plan_find_constants(plan));
    TRY(choose(plan, argument));
    bool changed;
    TRY(isolate_results(plan, &changed));
    if (changed) {
        TRY(plan_number_values(plan));
        TRY(plan_find_constants(plan));
            TRY(choose(plan, argument));
    }
    plan_lay_out(plan);
    TRY(plan_drop_views(plan));
    TRY(plan_find_plains(plan));
    find_reads(plan);
    plan_keep_sources(plan);
    place_results(plan);
    reuse_operands(plan);
    find_roots(plan);
    settle_places(plan);
    mark_lives(plan);
    return DW_OK;
}

dw_status plan_compile(ir_graph *graph, const plan_options *options, plan **result)
{
    plan *plan;
    *result = NULL;
    TRY(plan_create(graph, options->chip, &plan));
    plan->invariant = options->invariant;
    plan->prepares = options->prepares;
    plan->precision = arena_text(&plan->arena, options->precision ? options->precision : "");
    int symbols = dim_symbol_count(graph->dims);
    plan->typical = arena_new(&plan->arena, (size_t)symbols + 1, sizeof *plan->typical);
    dw_status status = plan->precision && plan->typical ? DW_OK : DW_NO_MEMORY;
    if (status == DW_OK) {
        plan_typical_dims(graph, plan->typical);
        status = plan_read_dims(graph->context, graph, options->dims, plan->typical);
    }
    if (status == DW_OK) status = plan_split_posts(plan, options);
    if (status == DW_OK) status = plan_tile_scales(plan);
    if (status == DW_OK) status = plan_finish(plan, plan_choose, options);
    if (status != DW_OK) {
        plan_destroy(plan);
        return status;
    }
    *result = plan;
    return DW_OK;
}
