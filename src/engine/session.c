/* Sessions: the memory of runs, and runs. Everything is allocated when the session is made; a run binds sizes if they are new,
 * attaches pointers and executes the steps in order. */
#include "engine/engine.h"

#include <string.h>
#include <time.h>

double engine_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- runners ---- */

static dw_status make_runner(dw_session *session, const engine_program *program, engine_runner *runner) {
    const ir_graph *graph = program->plan->graph;
    runner->program = program;
    TRY_NEW(runner->symbols, &session->arena, dim_symbol_count(graph->dims) + 1);
    TRY_NEW(runner->most, &session->arena, dim_symbol_count(graph->dims) + 1);
    TRY_NEW(runner->inputs, &session->arena, graph->input_count);
    TRY_NEW(runner->outputs, &session->arena, graph->output_count);
    TRY_NEW(runner->states, &session->arena, graph->state_count);
    TRY_NEW(runner->state_bytes, &session->arena, graph->state_count);
    if (session->device != NULL && !(session->flags & DW_SESSION_DEVICE_MEMORY)) {
        TRY_NEW(runner->staged_inputs, &session->arena, graph->input_count);
        TRY_NEW(runner->staged_outputs, &session->arena, graph->output_count);
    }
    for (int i = 0; session->device != NULL && i < ENGINE_BINDINGS; i++)
        TRY_NEW(runner->slots[i].recorded, &session->arena, ENGINE_RECORDED + graph->input_count + graph->output_count);
    for (int i = 0; i < ENGINE_BINDINGS; i++) TRY(plan_binding_create(session->context, program->plan, &runner->slots[i].binding));
    return plan_layout_create(program->plan, &session->arena, &runner->layout);
}

/* Memory that steps read and write: the device's, or the host's. */
static dw_status take_memory(dw_session *session, size_t bytes, void **memory) {
    if (session->device != NULL) return session->device->calls->alloc(session->device, bytes, memory);
    return base_alloc(session->context, bytes, ENGINE_ALIGN, memory);
}

static void release_memory(dw_session *session, void *memory, size_t bytes) {
    if (session->device != NULL) session->device->calls->release(session->device, memory, bytes);
    else base_release(session->context, memory, bytes, ENGINE_ALIGN);
}

/* Makes the states at the sizes in runner->symbols; their memory stays for the life of the session. */
static dw_status make_states(dw_session *session, engine_runner *runner) {
    const ir_graph *graph = runner->program->plan->graph;
    for (size_t i = 0; i < graph->state_count; i++) {
        dw_tensor tensor;
        num_parts parts;
        TRY(op_tensor_bind(session->context, &graph->states[i]->type, runner->symbols, NULL, &tensor));
        if (!num_layout(tensor.format, tensor.scale_layout, tensor.rank, tensor.dims, &parts))
            return base_fail(session->context, DW_LIMIT, "the bytes of state %s overflow", graph->states[i]->name);
        TRY(take_memory(session, parts.total_bytes + 1, &runner->states[i]));
        runner->state_bytes[i] = parts.total_bytes;
    }
    return DW_OK;
}

static dw_status reset_states(dw_session *session, engine_runner *runner) {
    if (runner->program == NULL) return DW_OK;
    const ir_graph *graph = runner->program->plan->graph;
    device *device = session->device;
    for (size_t i = 0; i < graph->state_count; i++) {
        const ir_weight *initial = graph->states[i]->weight;
        void *state = runner->states[i];
        size_t bytes = runner->state_bytes[i];
        if (device != NULL && initial != NULL) TRY(device->calls->write(device, state, initial->tensor.data, bytes));
        else if (device != NULL) TRY(device->calls->fill(device, state, 0, bytes));
        else if (initial != NULL) memcpy(state, initial->tensor.data, bytes);
        else memset(state, 0, bytes);
        TRY(base_poll(session->context));   /* large caches take their time */
    }
    return device != NULL ? device->calls->synchronize(device) : DW_OK;
}

static void free_runner(dw_session *session, engine_runner *runner) {
    if (runner->program == NULL) return;
    size_t count = runner->program->plan->graph->state_count;
    for (size_t i = 0; runner->states != NULL && i < count; i++)
        release_memory(session, runner->states[i], runner->state_bytes[i] + 1);
    engine_stage_free(session, runner);
    for (int i = 0; i < ENGINE_BINDINGS; i++) plan_binding_destroy(&runner->slots[i].binding);
}

dw_status engine_bind(dw_session *session, engine_runner *runner, plan_binding **binding) {
    size_t symbols = (size_t)dim_symbol_count(runner->program->plan->graph->dims);
    engine_slot *oldest = &runner->slots[0];
    *binding = NULL;
    for (int i = 0; i < ENGINE_BINDINGS; i++) {
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
        plan_size_scratch(&oldest->binding, session->pool);
        *binding = &oldest->binding;
    }
    return DW_OK;
}

static size_t workspace_of(const plan_binding *binding) {
    return base_align_up(binding->value_bytes, ENGINE_ALIGN) + base_align_up(binding->scratch_bytes, ENGINE_ALIGN);
}

static dw_status check_workspace(dw_session *session, const plan_binding *binding) {
    if (workspace_of(binding) <= session->workspace_bytes) return DW_OK;
    return base_fail(session->context, DW_LIMIT, "a run at these sizes needs %zu bytes of workspace, the session reserved %zu: create it with larger dims",
                     workspace_of(binding), session->workspace_bytes);
}

dw_status engine_execute(dw_session *session, engine_runner *runner, plan_binding *binding) {
    const plan *plan = runner->program->plan;
    TRY(check_workspace(session, binding));
    if (session->device != NULL) return engine_execute_remote(session, runner, binding);
    plan_bases bases = {.workspace = session->workspace,
                        .inputs = runner->inputs,
                        .outputs = runner->outputs,
                        .states = runner->states,
                        .constants = runner->program->constants,
                        .packed = runner->program->packed,
                        .pool = session->pool};
    plan_attach(binding, &bases);
    for (int i = plan->load_count; i < plan->step_count; i++) {
        kernel_run *run = &binding->calls[i].run;
        run->call.context = session->context;
        double start = runner->profile ? engine_now() : 0;
        dw_status status = plan->steps[i].row->run(run);
        if (runner->profile) runner->profile[i] += engine_now() - start;
        if (status != DW_OK)
            return base_fail_at(session->context, status, "step %d, %%%d %s", i - plan->load_count + 1, plan->steps[i].node->out[0]->id,
                                plan->steps[i].row->name);
        TRY(base_poll(session->context));
    }
    return DW_OK;
}

/* ---- public ---- */

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

static dw_status reserve_full(dw_session *session, const dw_session_options *options) {
    engine_runner *runner = &session->full;
    const plan *plan = runner->program->plan;
    memcpy(runner->symbols, plan->typical, (size_t)dim_symbol_count(plan->graph->dims) * sizeof *runner->symbols);
    TRY(plan_read_dims(session->context, plan->graph, options->dims, runner->symbols));
    TRY(engine_reserve_up_to(session, runner));
    memcpy(runner->most, runner->symbols, (size_t)dim_symbol_count(plan->graph->dims) * sizeof *runner->most);
    return make_states(session, runner);
}

/* What was bound before was placed under another layout (NULL: each size under its own). */
static void set_layout(engine_runner *runner, const plan_layout *layout) {
    for (int i = 0; i < ENGINE_BINDINGS; i++) {
        runner->slots[i].binding.layout = layout;
        runner->slots[i].binding.bound = false;
    }
}

/* From here on all sizes that were reserved for lie under one layout. */
static dw_status settle(dw_session *session, engine_runner *runner, size_t *bytes) {
    if (runner->program == NULL) return DW_OK;
    TRY(plan_layout_place(&runner->layout));
    set_layout(runner, &runner->layout);
    size_t needed = base_align_up(runner->layout.value_bytes, ENGINE_ALIGN) + base_align_up(runner->scratch_bytes, ENGINE_ALIGN);
    if (needed > *bytes) *bytes = needed;
    return session->device != NULL ? engine_stage_create(session, runner) : DW_OK;
}

static dw_status check_flags(dw_session *session, const dw_session_options *options) {
    if (!(options->flags & DW_SESSION_DEVICE_MEMORY)) return DW_OK;
    if (session->device == NULL || session->device->calls->follow == NULL)
        return base_fail(session->context, DW_INVALID, "a session on device memory needs a model that is made for a GPU: set dw_model_options.device to cuda");
    if (options->max_tokens > 0)
        return base_fail(session->context, DW_INVALID, "generation reads its logits on the host: make another session for it, without DW_SESSION_DEVICE_MEMORY");
    session->flags = options->flags;
    return DW_OK;
}

static dw_status build(dw_session *session, const dw_session_options *options) {
    const dw_model *model = session->model;
    size_t bytes = 0;
    TRY(base_pool(session->context, &session->pool));
    if (model->device != NULL) TRY(device_open(session->context, model->device_name, &session->device));
    TRY(check_flags(session, options));
    if (model->full.plan != NULL) {
        TRY(make_runner(session, &model->full, &session->full));
        TRY(reserve_full(session, options));
    }
    if (options->max_tokens > 0) {
        session->max_tokens = options->max_tokens;
        if (model->step.plan != NULL) TRY(make_runner(session, &model->step, &session->step));
        if (model->prelude.plan != NULL) TRY(make_runner(session, &model->prelude, &session->prelude));
        TRY(engine_generation_create(session, options));
        if (session->step.program != NULL) TRY(make_states(session, &session->step));
    }
    TRY(settle(session, &session->full, &bytes));
    TRY(settle(session, &session->step, &bytes));
    TRY(settle(session, &session->prelude, &bytes));
    TRY(take_memory(session, bytes + ENGINE_ALIGN, &session->workspace));
    session->workspace_bytes = bytes;
    return dw_session_reset(session);
}

dw_status dw_session_create(dw_context *context, const dw_model *model, const dw_session_options *options, dw_session **result) {
    static const dw_session_options none = {0};
    void *memory;
    *result = NULL;
    if (model->flags & DW_MODEL_PLAN_ONLY)
        return base_fail(context, DW_INVALID, "the model was opened for planning only: open it without DW_MODEL_PLAN_ONLY to run it");
    TRY(base_alloc(context, sizeof(dw_session), _Alignof(max_align_t), &memory));
    dw_session *session = memory;
    *session = (dw_session){.context = context, .model = model};
    arena_init(&session->arena, context);
    dw_status status = build(session, options ? options : &none);
    if (status != DW_OK) {
        dw_session_destroy(session);
        return status;
    }
    *result = session;
    return DW_OK;
}

void dw_session_destroy(dw_session *session) {
    if (session == NULL) return;
    dw_context *context = session->context;
    if (session->enqueued) session->device->calls->synchronize(session->device);
    free_runner(session, &session->full);
    free_runner(session, &session->step);
    free_runner(session, &session->prelude);
    release_memory(session, session->workspace, session->workspace_bytes + ENGINE_ALIGN);
    for (size_t i = 0; i < session->kept_count; i++) release_memory(session, session->kept[i].memory, session->kept[i].bytes);
    device_close(session->device);
    base_release(context, session->generation, session->generation_bytes, ENGINE_ALIGN);
    arena_free(&session->arena);
    base_release(context, session, sizeof *session, _Alignof(max_align_t));
}

dw_status dw_session_reset(dw_session *session) {
    TRY(reset_states(session, &session->full));
    return reset_states(session, &session->step);
}

uint64_t dw_session_workspace_bytes(const dw_session *session) { return session->workspace_bytes; }

static dw_status prepare(dw_session *session, int input_count, const dw_named_tensor *inputs, plan_binding **binding) {
    const dw_tensor *ordered[ENGINE_MAX_INPUTS];
    if (session->full.program == NULL)
        return base_fail(session->context, DW_INVALID, "the model was opened for generation only: open it without DW_MODEL_GENERATE_ONLY to run it");
    const struct plan *plan = session->full.program->plan;
    const ir_graph *graph = plan->graph;
    TRY(engine_match(session->context, plan, input_count, inputs, ordered, session->full.symbols));
    for (size_t i = 0; i < graph->input_count; i++) {
        if (ordered[i]->data != NULL && !op_tensor_is_contiguous(ordered[i]))
            return base_fail(session->context, DW_MISMATCH, "input %s is not contiguous", graph->inputs[i]->name);
        session->full.inputs[i] = ordered[i]->data;
    }
    return engine_bind(session, &session->full, binding);
}

/* A graph that the caller has captured runs on the workspace that there was. */
static dw_status make_room_to_keep(dw_session *session) {
    engine_memory *grown = arena_grow(&session->arena, session->kept, session->kept_count, &session->kept_room, sizeof *grown);
    if (grown == NULL) return DW_NO_MEMORY;
    session->kept = grown;
    return DW_OK;
}

static dw_status widen(dw_session *session, engine_runner *runner) {
    size_t bytes = session->workspace_bytes;
    void *workspace;
    TRY(engine_reserve_up_to(session, runner));
    TRY(settle(session, runner, &bytes));
    if (bytes <= session->workspace_bytes) return DW_OK;
    if (session->captured) TRY(make_room_to_keep(session));
    if (session->device != NULL) TRY(session->device->calls->synchronize(session->device));   /* runs on streams are using the one that goes */
    TRY(take_memory(session, bytes + ENGINE_ALIGN, &workspace));
    if (session->captured) session->kept[session->kept_count++] = (engine_memory){session->workspace, session->workspace_bytes + ENGINE_ALIGN};
    else release_memory(session, session->workspace, session->workspace_bytes + ENGINE_ALIGN);
    session->workspace = workspace;
    session->workspace_bytes = bytes;
    return DW_OK;
}

/* The layout before is kept until all is there. */
static dw_status reserve_more(dw_session *session, engine_runner *runner, arena *kept) {
    plan_layout before, *layout = &runner->layout;
    size_t count = (size_t)layout->plan->value_count, scratch_bytes = runner->scratch_bytes;
    TRY(plan_layout_create(layout->plan, kept, &before));
    memcpy(before.bytes, layout->bytes, count * sizeof *before.bytes);
    memcpy(before.offsets, layout->offsets, count * sizeof *before.offsets);
    before.value_bytes = layout->value_bytes;
    set_layout(runner, NULL);
    dw_status status = widen(session, runner);
    if (status == DW_OK) return DW_OK;
    memcpy(layout->bytes, before.bytes, count * sizeof *before.bytes);
    memcpy(layout->offsets, before.offsets, count * sizeof *before.offsets);
    layout->value_bytes = before.value_bytes;
    runner->scratch_bytes = scratch_bytes;
    set_layout(runner, layout);
    return status;
}

dw_status dw_session_reserve(dw_session *session, int input_count, const dw_named_tensor *inputs) {
    const dw_tensor *ordered[ENGINE_MAX_INPUTS];
    engine_runner *runner = &session->full;
    if (runner->program == NULL)
        return base_fail(session->context, DW_INVALID, "the model was opened for generation only: open it without DW_MODEL_GENERATE_ONLY to run it");
    const struct plan *plan = runner->program->plan;
    int symbols = dim_symbol_count(plan->graph->dims);
    TRY(engine_match(session->context, plan, input_count, inputs, ordered, runner->symbols));
    for (int i = 0; i < symbols; i++)
        if (runner->most[i] > runner->symbols[i]) runner->symbols[i] = runner->most[i];
    arena kept;
    arena_init(&kept, session->context);
    dw_status status = reserve_more(session, runner, &kept);
    arena_free(&kept);
    if (status == DW_OK) memcpy(runner->most, runner->symbols, (size_t)symbols * sizeof *runner->most);
    return status;
}

dw_status dw_session_shapes(dw_session *session, int input_count, const dw_named_tensor *inputs, dw_named_tensor *outputs) {
    plan_binding *binding;
    TRY(prepare(session, input_count, inputs, &binding));
    const ir_graph *graph = binding->plan->graph;
    for (size_t i = 0; i < graph->output_count; i++) {
        outputs[i].name = graph->outputs[i].name;
        TRY(op_tensor_bind(session->context, &graph->outputs[i].value->type, binding->symbols, NULL, &outputs[i].tensor));
    }
    return DW_OK;
}

static dw_status take_outputs(dw_session *session, plan_binding *binding, int count, const dw_named_tensor *given) {
    const ir_graph *graph = binding->plan->graph;
    for (size_t i = 0; i < graph->output_count; i++) {
        const dw_named_tensor *output = NULL;
        for (int k = 0; k < count; k++)
            if (strcmp(given[k].name, graph->outputs[i].name) == 0) output = &given[k];
        if (output == NULL) return base_fail(session->context, DW_MISMATCH, "output %s is missing", graph->outputs[i].name);
        dw_tensor expected;
        TRY(op_tensor_bind(session->context, &graph->outputs[i].value->type, binding->symbols, NULL, &expected));
        bool fits = output->tensor.format == expected.format && output->tensor.rank == expected.rank && op_tensor_is_contiguous(&output->tensor);
        for (int d = 0; fits && d < expected.rank; d++) fits = output->tensor.dims[d] == expected.dims[d];
        if (!fits)
            return base_fail(session->context, DW_MISMATCH, "output %s is not contiguous memory of the shape that dw_session_shapes tells",
                             output->name);
        session->full.outputs[i] = output->tensor.data;
    }
    return DW_OK;
}

dw_status dw_session_run(dw_session *session, int input_count, const dw_named_tensor *inputs, int output_count, const dw_named_tensor *outputs) {
    plan_binding *binding;
    if (session->flags & DW_SESSION_DEVICE_MEMORY)
        return base_fail(session->context, DW_INVALID, "the session was made for tensors in the device's memory: run it by dw_session_enqueue");
    TRY(prepare(session, input_count, inputs, &binding));
    TRY(take_outputs(session, binding, output_count, outputs));
    return engine_execute(session, &session->full, binding);
}

dw_status dw_session_enqueue(dw_session *session, void *stream, int input_count, const dw_named_tensor *inputs, int output_count,
                             const dw_named_tensor *outputs) {
    plan_binding *binding;
    if (session->device == NULL || session->device->calls->follow == NULL)
        return base_fail(session->context, DW_INVALID, "the model was made for the CPU, which has no streams: run it by dw_session_run");
    TRY(prepare(session, input_count, inputs, &binding));
    TRY(take_outputs(session, binding, output_count, outputs));
    TRY(check_workspace(session, binding));
    return engine_execute_stream(session, &session->full, binding, stream);
}
