/* Sessions: the memory of runs, and runs by name. Everything is allocated when the session is made, or when more is reserved; the runs themselves are in runner.c. */
#include "engine/engine.h"

#include <string.h>

static dw_status reserve_full(dw_session *session, const dw_session_options *options) {
    engine_runner *runner = &session->full;
    const plan *plan = runner->program->plan;
    memcpy(runner->symbols, plan->typical, (size_t)dim_symbol_count(plan->graph->dims) * sizeof *runner->symbols);
    TRY(plan_read_dims(session->context, plan->graph, options->dims, runner->symbols));
    TRY(engine_reserve_up_to(session, runner));
    memcpy(runner->most, runner->symbols, (size_t)dim_symbol_count(plan->graph->dims) * sizeof *runner->most);
    return engine_states_create(session, runner);
}

/* What was bound before was placed under another layout (NULL: each size under its own). */
static void set_layout(engine_runner *runner, const plan_layout *layout) {
    for (int i = 0; i < runner->slot_count; i++) {
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
        const engine_program *program;
        TRY(engine_prepared_create(session, &program));
        TRY(engine_runner_create(session, program, ENGINE_BINDINGS, &session->full));
        TRY(reserve_full(session, options));
    }
    if (options->max_tokens > 0) {
        session->max_tokens = options->max_tokens;
        const engine_program *step = session->paging.is_shared && model->paged.plan != NULL ? &model->paged : &model->step;
        const int sizes = session->device != NULL ? ENGINE_LADDER : ENGINE_BINDINGS;
        if (step->plan != NULL) TRY(engine_runner_create(session, step, sizes, &session->step));
        if (model->prelude.plan != NULL) TRY(engine_runner_create(session, &model->prelude, ENGINE_BINDINGS, &session->prelude));
        TRY(engine_generation_create(session, options));
        if (session->step.program != NULL) TRY(engine_states_create(session, &session->step));
    }
    TRY(settle(session, &session->full, &bytes));
    TRY(settle(session, &session->step, &bytes));
    TRY(settle(session, &session->prelude, &bytes));
    TRY(engine_memory_create(session, bytes + ENGINE_ALIGN, &session->workspace));
    session->workspace_bytes = bytes;
    TRY(dw_session_reset(session));
    TRY(engine_prepare(session, &(bool){false}));   /* its memory is there from now on */
    return options->max_tokens > 0 ? generation_make_ready(session) : DW_OK;
}

static dw_status create(dw_context *context, const dw_model *model, const dw_session_options *options, const engine_paging *paging, dw_session *lender, dw_session **result) {
    static const dw_session_options none = {0};
    void *memory;
    *result = NULL;
    if (model->flags & DW_MODEL_PLAN_ONLY)
        return base_fail(context, DW_INVALID, "the model was opened for planning only: open it without DW_MODEL_PLAN_ONLY to run it");
    TRY(base_alloc(context, sizeof(dw_session), _Alignof(max_align_t), &memory));
    dw_session *session = memory;
    *session = (dw_session){.context = context, .model = model, .paging = *paging, .lender = lender};
    arena_init(&session->arena, context);
    engine_constants_init(&session->prepared, context);
    dw_status status = build(session, options ? options : &none);
    if (status != DW_OK) {
        engine_session_destroy(session);
        return status;
    }
    *result = session;
    return DW_OK;
}

dw_status engine_session_create(dw_context *context, const dw_model *model, const dw_session_options *options, const engine_paging *paging, dw_session **result) {
    return create(context, model, options, paging, NULL, result);
}

dw_status engine_session_beside(dw_context *context, const dw_model *model, const dw_session_options *options, dw_session *lender, dw_session **result) {
    return create(context, model, options, &(engine_paging){0}, lender, result);
}

void engine_session_destroy(dw_session *session) {
    if (session == NULL) return;
    dw_context *context = session->context;
    if (session->enqueued) session->device->calls->synchronize(session->device);
    engine_runner_free(session, &session->full);
    engine_runner_free(session, &session->step);
    engine_runner_free(session, &session->prelude);
    engine_memory_free(session, session->workspace, session->workspace_bytes + ENGINE_ALIGN);
    for (size_t i = 0; i < session->kept_count; i++) engine_memory_free(session, session->kept[i].memory, session->kept[i].bytes);
    engine_prepared_free(session);
    engine_time_free(session);
    engine_sampler_destroy(session->sampler);
    device_close(session->device);
    base_release(context, session->generation, session->generation_bytes, ENGINE_ALIGN);
    arena_free(&session->arena);
    base_release(context, session, sizeof *session, _Alignof(max_align_t));
}

dw_status dw_session_reset(dw_session *session) {
    TRY(engine_states_reset(session, &session->full));
    return engine_states_reset(session, &session->step);
}

uint64_t dw_session_workspace_bytes(const dw_session *session) {
    return session->workspace_bytes + session->prepared_bytes;
}

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
    TRY(engine_memory_create(session, bytes + ENGINE_ALIGN, &workspace));
    if (session->captured) session->kept[session->kept_count++] = (engine_memory){session->workspace, session->workspace_bytes + ENGINE_ALIGN};
    else engine_memory_free(session, session->workspace, session->workspace_bytes + ENGINE_ALIGN);
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

static dw_status set_outputs(dw_session *session, plan_binding *binding, int count, const dw_named_tensor *given) {
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
            return base_fail(session->context, DW_MISMATCH, "output %s is not contiguous memory of the shape that dw_session_shapes returns",
                             output->name);
        session->full.outputs[i] = output->tensor.data;
    }
    return DW_OK;
}

dw_status dw_session_run(dw_session *session, int input_count, const dw_named_tensor *inputs, int output_count, const dw_named_tensor *outputs) {
    plan_binding *binding;
    if (session->flags & DW_SESSION_DEVICE_MEMORY)
        return base_fail(session->context, DW_INVALID, "the session was made for tensors in the device's memory: run it by dw_session_enqueue");
    session->full.reached = 0;
    dw_status status = prepare(session, input_count, inputs, &binding);
    if (status == DW_OK) status = set_outputs(session, binding, output_count, outputs);
    if (status == DW_OK) status = engine_check_workspace(session, binding);
    return status == DW_OK ? engine_execute(session, &session->full, binding) : engine_cannot_run(session, &session->full, status);
}

dw_status engine_run_watched(dw_session *session, int input_count, const dw_named_tensor *inputs, int output_count, const dw_named_tensor *outputs,
                             bool (*watch)(void *user, const plan_step *step, const op_call *call), void *user) {
    if (session->device != NULL) return base_fail(session->context, DW_INVALID, "steps are looked at on the CPU alone");
    session->full.watch = watch;
    session->full.watcher = user;
    dw_status status = dw_session_run(session, input_count, inputs, output_count, outputs);
    session->full.watch = NULL;
    return status;
}

dw_status dw_session_enqueue(dw_session *session, void *stream, int input_count, const dw_named_tensor *inputs, int output_count,
                             const dw_named_tensor *outputs) {
    plan_binding *binding;
    if (session->device == NULL || session->device->calls->follow == NULL)
        return base_fail(session->context, DW_INVALID, "the model was made for the CPU, which has no streams: run it by dw_session_run");
    TRY(prepare(session, input_count, inputs, &binding));
    TRY(set_outputs(session, binding, output_count, outputs));
    TRY(engine_check_workspace(session, binding));
    return engine_execute_stream(session, &session->full, binding, stream);
}
