/* One plan at work in a session: its bindings, states and workspace, and a run of its steps in order. A run binds sizes if they are new, attaches pointers, and
 * executes. What has memory of its own besides the host's is in device_run.c. */
#include "engine/engine.h"

#include <string.h>

dw_status engine_memory_create(dw_session *session, size_t bytes, void **memory) {
    if (session->device != NULL) return session->device->calls->alloc(session->device, bytes, memory);
    return base_alloc(session->context, bytes, ENGINE_ALIGN, memory);
}

void engine_memory_free(dw_session *session, void *memory, size_t bytes) {
    if (session->device != NULL) session->device->calls->release(session->device, memory, bytes);
    else base_release(session->context, memory, bytes, ENGINE_ALIGN);
}

dw_status engine_runner_create(dw_session *session, const engine_program *program, int slots, engine_runner *runner) {
    const ir_graph *graph = program->plan->graph;
    runner->program = program;
    TRY_NEW(runner->slots, &session->arena, slots);
    runner->slot_count = slots;
    TRY_NEW(runner->symbols, &session->arena, dim_symbol_count(graph->dims) + 1);
    TRY_NEW(runner->most, &session->arena, dim_symbol_count(graph->dims) + 1);
    TRY_NEW(runner->inputs, &session->arena, graph->input_count);
    TRY_NEW(runner->outputs, &session->arena, graph->output_count);
    TRY_NEW(runner->states, &session->arena, graph->state_count);
    TRY_NEW(runner->state_bytes, &session->arena, graph->state_count);
    TRY_NEW(runner->lent, &session->arena, graph->state_count);
    if (session->device != NULL && !(session->flags & DW_SESSION_DEVICE_MEMORY)) {
        TRY_NEW(runner->staged_inputs, &session->arena, graph->input_count);
        TRY_NEW(runner->staged_outputs, &session->arena, graph->output_count);
    }
    for (int i = 0; session->device != NULL && i < slots; i++)
        TRY_NEW(runner->slots[i].recorded, &session->arena, ENGINE_RECORDED + graph->input_count + graph->output_count);
    for (int i = 0; i < slots; i++) TRY(plan_binding_create(session->context, program->plan, &runner->slots[i].binding));
    return plan_layout_create(program->plan, &session->arena, &runner->layout);
}

/* The memory that lender's whole runs have for the state; NULL: none. */
static void *lent_state(const dw_session *lender, const ir_value *state, size_t bytes) {
    const ir_graph *graph = lender->full.program->plan->graph;
    for (size_t i = 0; i < graph->state_count; i++)
        if (strcmp(graph->states[i]->name, state->name) == 0 && graph->states[i]->type.format == state->type.format && lender->full.state_bytes[i] == bytes) return lender->full.states[i];
    return NULL;
}

dw_status engine_states_create(dw_session *session, engine_runner *runner) {
    const ir_graph *graph = runner->program->plan->graph;
    for (size_t i = 0; i < graph->state_count; i++) {
        dw_tensor tensor;
        num_parts parts;
        TRY(op_tensor_bind(session->context, &graph->states[i]->type, runner->symbols, NULL, &tensor));
        if (!num_layout(tensor.format, tensor.scale_layout, tensor.rank, tensor.dims, &parts))
            return base_fail(session->context, DW_LIMIT, "the bytes of state %s overflow", graph->states[i]->name);
        runner->state_bytes[i] = parts.total_bytes;
        if (session->lender != NULL) runner->states[i] = lent_state(session->lender, graph->states[i], parts.total_bytes);
        runner->lent[i] = runner->states[i] != NULL;
        if (!runner->lent[i]) TRY(engine_memory_create(session, parts.total_bytes + 1, &runner->states[i]));
    }
    return DW_OK;
}

/* A state that begins with what a device has. */
static dw_status begin_there(dw_session *session, const ir_weight *initial, void *state, size_t bytes) {
    if (session->device == NULL || !device_is_named(session->device, initial->place))
        return base_fail(session->context, DW_UNSUPPORTED, "state %s lies in the memory of %s, and the model does not run there: give it in the host's memory", initial->name, initial->place);
    return session->device->calls->copy(session->device, state, initial->there, bytes);
}

/* Rows of memory that is not contiguous, as the state has them. */
static dw_status begin_strided(dw_session *session, const ir_weight *initial, void *state, size_t bytes) {
    dw_tensor copy;
    void *memory = state;
    if (session->device != NULL) TRY(base_alloc(session->context, bytes, ENGINE_ALIGN, &memory));
    op_tensor_init(&copy, initial->tensor.format, DW_SCALE_plain, initial->tensor.rank, initial->tensor.dims, memory);
    int64_t index[DW_MAX_RANK] = {0};
    const int64_t count = op_tensor_count(&copy);
    const size_t size = (size_t)dw_format_bits(copy.format) / 8;
    for (int64_t i = 0; i < count; i++) {
        int64_t from = 0;
        for (int axis = 0; axis < copy.rank; axis++) from += index[axis] * initial->tensor.strides[axis];
        memcpy((char *)memory + (size_t)i * size, (const char *)initial->tensor.data + from * (int64_t)size, size);
        op_tensor_next(&copy, index);
    }
    if (session->device == NULL) return DW_OK;
    const dw_status status = session->device->calls->write(session->device, state, memory, bytes);
    base_release(session->context, memory, bytes, ENGINE_ALIGN);
    return status;
}

/* A trained state is a parameter: it has data. */
static dw_status check_initial(const dw_session *session, const ir_value *state) {
    if (!state->trained || (state->weight != NULL && (state->weight->tensor.data != NULL || state->weight->place != NULL))) return DW_OK;
    if (state->weight != NULL && op_tensor_count(&state->weight->tensor) == 0) return DW_OK;
    return base_fail(session->context, DW_INVALID, "the parameter '%s' is trained and has no data: a graph in text form gets it by dw_graph_bind, or from the weights file", state->name);
}

dw_status engine_states_reset(dw_session *session, engine_runner *runner) {
    if (runner->program == NULL) return DW_OK;
    const ir_graph *graph = runner->program->plan->graph;
    device *device = session->device;
    engine_prepared_changed(session);
    for (size_t i = 0; i < graph->state_count; i++) {
        const ir_weight *initial = graph->states[i]->weight;
        void *state = runner->states[i];
        size_t bytes = runner->state_bytes[i];
        if (runner->lent[i]) continue;
        TRY(check_initial(session, graph->states[i]));
        if (initial != NULL && initial->place != NULL) TRY(begin_there(session, initial, state, bytes));
        else if (initial != NULL && !dw_format_is_block(initial->tensor.format) && !op_tensor_is_contiguous(&initial->tensor)) TRY(begin_strided(session, initial, state, bytes));
        else if (device != NULL && initial != NULL) TRY(device->calls->write(device, state, initial->tensor.data, bytes));
        else if (device != NULL) TRY(device->calls->fill(device, state, 0, bytes));
        else if (initial != NULL) memcpy(state, initial->tensor.data, bytes);
        else memset(state, 0, bytes);
        TRY(base_poll(session->context));   /* large caches take their time */
    }
    return device != NULL ? device->calls->synchronize(device) : DW_OK;
}

void engine_runner_free(dw_session *session, engine_runner *runner) {
    if (runner->program == NULL) return;
    size_t count = runner->program->plan->graph->state_count;
    for (size_t i = 0; runner->lent != NULL && i < count; i++)
        if (!runner->lent[i]) engine_memory_free(session, runner->states[i], runner->state_bytes[i] + 1);
    engine_stage_free(session, runner);
    for (int i = 0; i < runner->slot_count; i++) plan_binding_destroy(&runner->slots[i].binding);
}

static kernel_comm *comm_of(const dw_session *session) { return session->model->options.comm != NULL ? comm_kernels(session->model->options.comm) : NULL; }

static bool is_collective(const plan_step *step) { return op_has(step->node->op, OP_TRAIT_COLLECTIVE); }

/* The other ranks get to know of a failure in front of step from, or at it, where they meet next. */
static void tell_ranks(dw_session *session, const engine_runner *runner, int from, dw_status status) {
    const plan *plan = runner->program->plan;
    dw_comm *comm = session->model->options.comm;
    for (int i = from; comm != NULL && i < plan->step_count; i++)
        if (is_collective(&plan->steps[i])) comm_tell(comm, session->context, op_attr_text(&plan->steps[i].node->attrs, OP_ATTR_over), (uint32_t)(from - plan->load_count + 1), status);
}

dw_status engine_cannot_run(dw_session *session, const engine_runner *runner, dw_status status) {
    dw_comm *comm = session->model->options.comm;
    if (comm == NULL || runner->program == NULL) return status;
    comm_begin(comm);
    tell_ranks(session, runner, runner->program->plan->load_count, status);
    return status;
}

dw_status engine_bind(dw_session *session, engine_runner *runner, plan_binding **binding) {
    size_t symbols = (size_t)dim_symbol_count(runner->program->plan->graph->dims);
    engine_slot *oldest = &runner->slots[0];
    *binding = NULL;
    for (int i = 0; i < runner->slot_count; i++) {
        engine_slot *slot = &runner->slots[i];
        if (slot->binding.bound && memcmp(slot->binding.symbols, runner->symbols, symbols * sizeof *runner->symbols) == 0) *binding = &slot->binding;
        if (*binding == &slot->binding) oldest = slot;
        if (*binding != NULL) break;
        if (slot->used < oldest->used) oldest = slot;
    }
    oldest->used = ++runner->clock;
    if (*binding == NULL) {
        oldest->is_recorded = false;
        TRY(plan_bind(&oldest->binding, runner->symbols));
        plan_size_scratch(&oldest->binding, session->pool, comm_of(session));
        *binding = &oldest->binding;
    }
    return DW_OK;
}

static size_t workspace_of(const plan_binding *binding) {
    return base_align_up(binding->value_bytes, ENGINE_ALIGN) + base_align_up(binding->scratch_bytes, ENGINE_ALIGN);
}

dw_status engine_check_workspace(dw_session *session, const plan_binding *binding) {
    if (workspace_of(binding) <= session->workspace_bytes) return DW_OK;
    return base_fail(session->context, DW_LIMIT, "a run at these sizes needs %zu bytes of workspace, the session reserved %zu: create it with larger dims",
                     workspace_of(binding), session->workspace_bytes);
}

/* Where the run stopped: the step, and of what ranks do together the layer. */
static dw_status fail_step(dw_session *session, const plan *plan, int index, dw_status status) {
    const plan_step *step = &plan->steps[index];
    const char *module = is_collective(step) ? step->node->origin.module : NULL;
    return base_fail_at(session->context, status, "step %d, %%%d %s%s%s", index - plan->load_count + 1, step->node->out[0]->id, step->row->name, module != NULL ? ", " : "", module != NULL ? module : "");
}

/* *stopped: the step that failed, or in front of which the run was cancelled. */
static dw_status run_steps(dw_session *session, engine_runner *runner, plan_binding *binding, int *stopped) {
    const plan *plan = runner->program->plan;
    for (int i = plan->run_first; i < plan->step_count; i++) {
        kernel_run *run = &binding->calls[i].run;
        run->call.context = session->context;
        runner->reached = i + 1;
        double start = runner->profile ? base_now() : 0;
        dw_status status = kernel_execute(plan->steps[i].row, run);
        if (runner->profile) runner->profile[i] += base_now() - start;
        *stopped = i;
        if (status != DW_OK) return fail_step(session, plan, i, status);
        *stopped = i + 1;
        if (runner->watch != NULL && runner->watch(runner->watcher, &plan->steps[i], &run->call)) return DW_OK;
        TRY(base_poll(session->context));
    }
    return DW_OK;
}

dw_status engine_execute(dw_session *session, engine_runner *runner, plan_binding *binding) {
    const plan *plan = runner->program->plan;
    int stopped = plan->run_first;
    bool is_seen;
    TRY(engine_check_workspace(session, binding));
    runner->reached = plan->load_count;
    if (runner == &session->full) TRY(engine_prepare(session, &is_seen));
    if (runner == &session->full && is_seen) return DW_OK;
    if (session->lender != NULL) engine_prepared_changed(session);
    runner->reached = plan->load_count + (session->device != NULL);
    if (session->device != NULL) return engine_execute_on_device(session, runner, binding);
    plan_bases bases = {.workspace = session->workspace,
                        .inputs = runner->inputs,
                        .outputs = runner->outputs,
                        .states = runner->states,
                        .constants = runner->program->constants,
                        .packed = runner->program->packed,
                        .pool = session->pool};
    plan_attach(binding, &bases);
    if (session->model->options.comm != NULL) comm_begin(session->model->options.comm);
    const dw_status status = run_steps(session, runner, binding, &stopped);
    if (status != DW_OK) tell_ranks(session, runner, stopped, status);
    return status;
}

dw_status engine_reserve(dw_session *session, engine_runner *runner) {
    plan_binding *binding;
    TRY(engine_bind(session, runner, &binding));
    plan_layout_widen(&runner->layout, binding);
    engine_stage_widen(runner, binding);
    if (binding->scratch_bytes > runner->scratch_bytes) runner->scratch_bytes = binding->scratch_bytes;
    return DW_OK;
}

/* Sizes at which the graph means nothing (a division by 0) are no runs to reserve for. */
static dw_status reserve_if_possible(dw_session *session, engine_runner *runner) {
    dw_status status = engine_reserve(session, runner);
    return status == DW_NO_MEMORY || status == DW_CANCELLED ? status : DW_OK;
}

/* A kernel's scratch is largest where each size is at one of its ends (kernel.h): all at their most, one at its least, all at their least. */
dw_status engine_reserve_up_to(dw_session *session, engine_runner *runner) {
    const dim_table *dims = runner->program->plan->graph->dims;
    int64_t most[ENGINE_MAX_SYMBOLS], min, max;
    int count = dim_symbol_count(dims);
    if (count > ENGINE_MAX_SYMBOLS)
        return base_fail(session->context, DW_LIMIT, "the model has %d symbolic sizes, at most %d can be bound", count, ENGINE_MAX_SYMBOLS);
    memcpy(most, runner->symbols, (size_t)count * sizeof *most);
    TRY(plan_layout_widen_up_to(&runner->layout, most));
    TRY(engine_reserve(session, runner));
    for (int i = 0; i < count; i++) {
        dim_symbol_range(dims, i, &min, &max);
        runner->symbols[i] = min;
        TRY(reserve_if_possible(session, runner));
        runner->symbols[i] = most[i];
    }
    for (int i = 0; i < count; i++) dim_symbol_range(dims, i, &runner->symbols[i], &max);
    TRY(reserve_if_possible(session, runner));
    memcpy(runner->symbols, most, (size_t)count * sizeof *most);
    return DW_OK;
}
