/* Runs on a device with memory of its own: inputs are brought there, small ones in one copy, all steps are one device graph and one launch, outputs that are wanted are
 * brought back. A binding that runs again with the sizes and addresses that it had costs no more than that; others patch its graph.
 *
 * A copy of the driver's begins and ends late: 5 us around the 2 that few bytes take. So where the host does not wait for a run, the graph itself carries its inputs and results from and to pinned memory, by a launch at
 * each end. What is too long for that is copied, and so is everything where kernels do not reach the host's memory. */
#include "engine/engine.h"

#include <string.h>

enum { PARCEL_INPUT = 16384 };   /* bytes: larger inputs are copied by themselves */

/* ---- what the device works ---- */

static dw_status add_work(dw_session *session, void *begin, void *end) {
    double seconds;
    if (begin == NULL) return DW_OK;
    TRY(session->device->calls->elapsed(session->device, begin, end, &seconds));
    session->worked_s += seconds;
    return DW_OK;
}

static dw_status set_mark(dw_session *session, void *mark) { return mark != NULL ? session->device->calls->mark(session->device, mark) : DW_OK; }

dw_status engine_time_runs(dw_session *session) {
    device *device = session->device;
    if (device == NULL || device->calls->elapsed == NULL || session->begin != NULL) return DW_OK;
    TRY(device->calls->mark_create(device, DEVICE_MARK_TIMED, &session->begin));
    TRY(device->calls->mark_create(device, DEVICE_MARK_TIMED, &session->end));
    TRY(set_mark(session, session->begin));
    TRY(set_mark(session, session->end));
    TRY(device->calls->await(device, session->end));
    TRY(add_work(session, session->begin, session->end));   /* has it a clock? */
    session->worked_s = 0;
    return DW_OK;
}

void engine_time_free(dw_session *session) {
    if (session->begin != NULL) session->device->calls->mark_release(session->device, session->begin);
    if (session->end != NULL) session->device->calls->mark_release(session->device, session->end);
}

/* ---- staging ---- */

void engine_stage_widen(engine_runner *runner, const plan_binding *binding) {
    const ir_graph *graph = binding->plan->graph;
    if (runner->staged_inputs == NULL) return;
    for (size_t i = 0; i < graph->input_count; i++) {
        size_t bytes = binding->bytes[plan_value_of(graph->inputs[i])->index];
        if (bytes > runner->staged_inputs[i].bytes) runner->staged_inputs[i].bytes = bytes;
    }
    for (size_t i = 0; i < graph->output_count; i++) {
        size_t bytes = binding->bytes[plan_value_of(graph->outputs[i].value)->index];
        if (bytes > runner->staged_outputs[i].bytes) runner->staged_outputs[i].bytes = bytes;
    }
}

/* Of new memory: it is released where that fails. */
static dw_status clear_room(device *device, void *memory, size_t bytes) {
    const dw_status status = device->calls->fill(device, memory, 0, bytes);
    if (status != DW_OK) device->calls->release(device, memory, bytes);
    return status;
}

static dw_status make_room(device *device, engine_stage *stage) {
    void *memory;
    if (stage->memory != NULL && stage->bytes <= stage->room) return DW_OK;
    TRY(device->calls->alloc(device, stage->bytes + 1, &memory));
    if (stage->is_made) TRY(clear_room(device, memory, stage->bytes + 1));
    device->calls->release(device, stage->memory, stage->room + 1);
    stage->memory = memory;
    stage->room = stage->bytes;
    stage->held = 0;
    return DW_OK;
}

static void free_parcel(dw_session *session, engine_parcel *parcel) {
    session->device->calls->release(session->device, parcel->memory, parcel->room);
    base_release(session->context, parcel->host, parcel->room, ENGINE_ALIGN);
    *parcel = (engine_parcel){0};
}

/* Room for all small inputs at their largest. */
static dw_status make_parcel(dw_session *session, engine_runner *runner) {
    const ir_graph *graph = runner->program->plan->graph;
    size_t room = 0;
    for (size_t i = 0; i < graph->input_count; i++) {
        const engine_stage *stage = &runner->staged_inputs[i];
        if (!stage->is_kept && !stage->is_made) room += base_align_up(stage->bytes < PARCEL_INPUT ? stage->bytes : PARCEL_INPUT, ENGINE_ALIGN);
    }
    if (room <= runner->parcel.room) return DW_OK;
    free_parcel(session, &runner->parcel);
    TRY(base_alloc(session->context, room, ENGINE_ALIGN, &runner->parcel.host));
    runner->parcel.room = room;
    return session->device->calls->alloc(session->device, room, &runner->parcel.memory);
}

void engine_stage_keep(engine_runner *runner, size_t index) {
    if (runner->staged_inputs != NULL) runner->staged_inputs[index].is_kept = true;
}

void engine_stage_changed(engine_runner *runner, size_t index) {
    if (runner->staged_inputs != NULL) runner->staged_inputs[index].held = 0;
}

void engine_stage_made(engine_runner *runner, size_t index) { runner->staged_inputs[index].is_made = true; }

dw_status engine_stage_create(dw_session *session, engine_runner *runner) {
    const ir_graph *graph = runner->program->plan->graph;
    device *device = session->device;
    if (runner->staged_inputs != NULL) TRY(make_parcel(session, runner));
    for (size_t i = 0; runner->staged_inputs != NULL && i < graph->input_count; i++) TRY(make_room(device, &runner->staged_inputs[i]));
    for (size_t i = 0; runner->staged_outputs != NULL && i < graph->output_count; i++) TRY(make_room(device, &runner->staged_outputs[i]));
    for (int i = 0; device->calls->graph_create != NULL && i < runner->slot_count; i++)
        if (runner->slots[i].graph == NULL) TRY(device->calls->graph_create(device, &runner->slots[i].graph));
    return DW_OK;
}

dw_status engine_stage_read(dw_session *session, const engine_runner *runner, size_t index, size_t offset, size_t bytes, void *to) {
    TRY(session->device->calls->read(session->device, to, (const uint8_t *)runner->staged_outputs[index].memory + offset, bytes));
    return session->device->calls->synchronize(session->device);
}

static void free_flights(dw_session *session, engine_runner *runner) {
    for (int i = 0; i < ENGINE_FLIGHTS; i++) {
        engine_flight *flight = &runner->flights[i];
        if (flight->begin != NULL) session->device->calls->mark_release(session->device, flight->begin);
        if (flight->mark != NULL) session->device->calls->mark_release(session->device, flight->mark);
        if (flight->host != NULL) session->device->calls->unpin(session->device, flight->host);
        if (flight->draws != NULL) session->device->calls->unpin(session->device, flight->draws);
        if (flight->there != NULL) session->device->calls->release(session->device, flight->there, engine_sampler_device_bytes(session->sampler));
        *flight = (engine_flight){0};
    }
}

dw_status engine_flights_create(dw_session *session, engine_runner *runner, size_t output) {
    const ir_graph *graph = runner->program->plan->graph;
    device *device = session->device;
    size_t bytes = runner->parcel.room;
    if (device->calls->pin == NULL || device->calls->graph_create == NULL || runner->staged_inputs == NULL)
        return base_fail(session->context, DW_UNSUPPORTED, "runs that the host does not wait for need a GPU and inputs in the host's memory");
    for (size_t i = 0; i < graph->input_count; i++)
        if (!runner->staged_inputs[i].is_made) bytes += base_align_up(runner->staged_inputs[i].room, ENGINE_ALIGN);
    for (int i = 0; i < ENGINE_FLIGHTS; i++) {
        engine_flight *flight = &runner->flights[i];
        if (flight->mark != NULL) continue;
        TRY(device->calls->pin(device, bytes + runner->staged_outputs[output].room + 1, &flight->host));
        flight->result = (uint8_t *)flight->host + bytes;
        TRY(device->calls->pin(device, engine_sampler_device_bytes(session->sampler), &flight->draws));
        TRY(device->calls->alloc(device, engine_sampler_device_bytes(session->sampler), &flight->there));
        if (session->begin != NULL) TRY(device->calls->mark_create(device, DEVICE_MARK_TIMED, &flight->begin));
        TRY(device->calls->mark_create(device, session->begin != NULL ? DEVICE_MARK_TIMED : DEVICE_MARK, &flight->mark));
    }
    return DW_OK;
}

void engine_stage_free(dw_session *session, engine_runner *runner) {
    const ir_graph *graph = runner->program->plan->graph;
    device *device = session->device;
    if (device == NULL) return;
    for (int i = 0; i < runner->slot_count; i++)
        if (runner->slots[i].graph != NULL) device->calls->graph_release(device, runner->slots[i].graph);
    free_flights(session, runner);
    free_parcel(session, &runner->parcel);
    for (size_t i = 0; runner->staged_inputs != NULL && i < graph->input_count; i++)
        device->calls->release(device, runner->staged_inputs[i].memory, runner->staged_inputs[i].room + 1);
    for (size_t i = 0; runner->staged_outputs != NULL && i < graph->output_count; i++)
        device->calls->release(device, runner->staged_outputs[i].memory, runner->staged_outputs[i].room + 1);
}

/* ---- a run ---- */

static dw_status check_room(dw_session *session, const char *name, size_t bytes, const engine_stage *stage) {
    if (bytes <= stage->room) return DW_OK;
    return base_fail(session->context, DW_LIMIT, "%s has %zu bytes, the session reserved %zu: create it with larger dims", name, bytes, stage->room);
}

dw_status engine_stage_check(dw_session *session, const engine_runner *runner, size_t index, size_t bytes) {
    return check_room(session, runner->program->plan->graph->inputs[index]->name, bytes, &runner->staged_inputs[index]);
}

/* An input that is large, or stays what it is. late: where pinned memory of the host has room for it; NULL: it comes from where it is. */
static dw_status bring_input(dw_session *session, const void *from, size_t bytes, engine_stage *stage, uint8_t **late) {
    if (stage->is_kept && stage->held >= bytes) return DW_OK;
    if (late != NULL && bytes > 0) {
        memcpy(*late, from, bytes);
        from = *late;
        *late += base_align_up(bytes, ENGINE_ALIGN);
    }
    stage->held = 0;
    TRY(session->device->calls->write(session->device, stage->memory, from, bytes));
    stage->held = bytes;
    return DW_OK;
}

/* Puts small ones side by side, and brings the others. pinned: the host's memory that they wait in; NULL: the parcel's. *packed: bytes of the small ones, which have to be brought yet. */
static dw_status pack_inputs(dw_session *session, engine_runner *runner, const plan_binding *binding, uint8_t *pinned, void **inputs, size_t *packed) {
    const ir_graph *graph = binding->plan->graph;
    const engine_parcel *parcel = &runner->parcel;
    uint8_t *host = pinned != NULL ? pinned : parcel->host, *late = host + parcel->room;
    size_t at = 0;
    for (size_t i = 0; i < graph->input_count; i++) {
        engine_stage *stage = &runner->staged_inputs[i];
        const size_t bytes = binding->bytes[plan_value_of(graph->inputs[i])->index];
        TRY(check_room(session, graph->inputs[i]->name, bytes, stage));
        if (stage->is_made) {
            inputs[i] = stage->memory;
        } else if (stage->is_kept || bytes == 0 || bytes > PARCEL_INPUT) {
            TRY(bring_input(session, runner->inputs[i], bytes, stage, pinned != NULL ? &late : NULL));
            inputs[i] = stage->memory;
        } else {
            memcpy(host + at, runner->inputs[i], bytes);
            inputs[i] = (uint8_t *)parcel->memory + at;
            at += base_align_up(bytes, ENGINE_ALIGN);
        }
    }
    *packed = at;
    return DW_OK;
}

/* Before this returns the host's memory is read. */
static dw_status bring_inputs(dw_session *session, engine_runner *runner, const plan_binding *binding, void **inputs) {
    size_t packed;
    TRY(pack_inputs(session, runner, binding, NULL, inputs, &packed));
    return session->device->calls->write(session->device, runner->parcel.memory, runner->parcel.host, packed);
}

static dw_status place_outputs(dw_session *session, engine_runner *runner, const plan_binding *binding, void **outputs) {
    const ir_graph *graph = binding->plan->graph;
    for (size_t i = 0; i < graph->output_count; i++) {
        TRY(check_room(session, graph->outputs[i].name, binding->bytes[plan_value_of(graph->outputs[i].value)->index], &runner->staged_outputs[i]));
        outputs[i] = runner->staged_outputs[i].memory;
    }
    return DW_OK;
}

static dw_status bring_outputs(dw_session *session, engine_runner *runner, const plan_binding *binding) {
    const ir_graph *graph = binding->plan->graph;
    for (size_t i = 0; i < graph->output_count; i++) {
        size_t bytes = binding->bytes[plan_value_of(graph->outputs[i].value)->index];
        if (runner->outputs[i] != NULL) TRY(session->device->calls->read(session->device, runner->outputs[i], runner->staged_outputs[i].memory, bytes));
    }
    return DW_OK;
}

static dw_status fail_step(dw_session *session, const plan *plan, dw_status status, int step) {
    return base_fail_at(session->context, status, "step %d, %%%d %s", step - plan->load_count + 1, plan->steps[step].node->out[0]->id, plan->steps[step].row->name);
}

/* Is the slot's graph that of these addresses? If not, they are what it will be made of. */
static bool has_recorded(const dw_session *session, engine_slot *slot, const plan_bases *bases) {
    const ir_graph *graph = slot->binding.plan->graph;
    void *fixed[ENGINE_RECORDED] = {bases->workspace, (void *)(uintptr_t)bases->constants, (void *)(uintptr_t)session->model->updates};
    bool same = slot->is_recorded;
    void **at = slot->recorded;
    for (size_t i = 0; i < ENGINE_RECORDED + graph->input_count + graph->output_count; i++) {
        void *now = i < ENGINE_RECORDED                        ? fixed[i]
                    : i < ENGINE_RECORDED + graph->input_count ? bases->inputs[i - ENGINE_RECORDED]
                                                               : bases->outputs[i - ENGINE_RECORDED - graph->input_count];
        same = same && at[i] == now;
        at[i] = now;
    }
    return same;
}

static dw_status record(dw_session *session, engine_slot *slot, const plan_bases *bases) {
    const plan *plan = slot->binding.plan;
    device *device = session->device;
    if (has_recorded(session, slot, bases)) return DW_OK;
    slot->is_recorded = false;
    plan_attach(&slot->binding, bases);
    TRY(device->calls->graph_begin(device, slot->graph));
    for (int i = plan->run_first; i < plan->step_count; i++) {
        kernel_run *run = &slot->binding.calls[i].run;
        run->call.context = session->context;
        dw_status status = device->calls->graph_add(device, slot->graph, plan->steps[i].row, run);
        if (status != DW_OK) return fail_step(session, plan, status, i);
    }
    return DW_OK;
}

/* In front of the graph's launch, and behind it. */
enum { CARRIED_FIRST, CARRIED_LAST, CARRIED };
typedef struct carried { kernel_piece pieces[CARRIED][KERNEL_PIECES]; int count[CARRIED]; } carried;

/* The graph is recorded, and its next launch carries those pieces; NULL: none, and nothing is done. *done: as device.h says. */
static dw_status make_carry(dw_session *session, engine_slot *slot, const carried *c, bool *done) {
    static const carried nothing;
    const device_calls *calls = session->device->calls;
    const bool was_recorded = slot->is_recorded, asks = c != NULL;
    *done = false;
    if (calls->graph_carry == NULL || (c == NULL && !slot->carries)) return DW_OK;
    if (c == NULL) c = &nothing;
    slot->is_recorded = false;
    TRY(calls->graph_carry(session->device, slot->graph, c->count[CARRIED_FIRST], c->pieces[CARRIED_FIRST], c->count[CARRIED_LAST], c->pieces[CARRIED_LAST], done));
    slot->is_recorded = was_recorded;
    slot->carries = *done && c->count[CARRIED_FIRST] + c->count[CARRIED_LAST] > 0;
    *done = *done && asks;
    return DW_OK;
}

static dw_status start_graph(dw_session *session, engine_slot *slot) {
    slot->is_recorded = false;
    TRY(session->device->calls->graph_launch(session->device, slot->graph));
    slot->is_recorded = true;
    return DW_OK;
}

/* begin: the mark in front of it; NULL: none. */
static dw_status launch_graph(dw_session *session, engine_slot *slot, const plan_bases *bases, void *begin) {
    bool done;
    TRY(record(session, slot, bases));
    TRY(make_carry(session, slot, NULL, &done));
    TRY(set_mark(session, begin));
    return start_graph(session, slot);
}

/* One by one, each waited for: for devices without graphs, and for profiles. */
static dw_status run_steps(dw_session *session, engine_runner *runner, plan_binding *binding, const plan_bases *bases) {
    const plan *plan = binding->plan;
    device *device = session->device;
    plan_attach(binding, bases);
    for (int i = plan->run_first; i < plan->step_count; i++) {
        kernel_run *run = &binding->calls[i].run;
        run->call.context = session->context;
        double start = base_now();
        dw_status status = device->calls->run(device, plan->steps[i].row, run);
        if (status == DW_OK) status = device->calls->synchronize(device);
        if (status != DW_OK) return fail_step(session, plan, status, i);
        if (runner->profile) runner->profile[i] += base_now() - start;
    }
    return DW_OK;
}

static engine_slot *slot_of(engine_runner *runner, const plan_binding *binding) {
    for (int i = 0; i < runner->slot_count; i++)
        if (&runner->slots[i].binding == binding) return &runner->slots[i];
    return NULL;
}

static plan_bases bases_of(const dw_session *session, const engine_runner *runner, void *const *inputs, void *const *outputs) {
    return (plan_bases){.workspace = session->workspace, .inputs = inputs, .outputs = outputs, .states = runner->states,
                        .constants = runner->program->on_device, .packed = NULL, .pool = session->pool};
}

/* Which step a kernel's fault is of. */
static dw_status name_step(dw_session *session, const plan *plan, dw_status status) {
    const int step = plan->load_count + (int)session->device->fault_step - 1;
    return step >= plan->load_count && step < plan->step_count ? fail_step(session, plan, status, step) : status;
}

dw_status engine_execute_on_device(dw_session *session, engine_runner *runner, plan_binding *binding) {
    const plan *plan = binding->plan;
    device *device = session->device;
    engine_slot *slot = slot_of(runner, binding);
    void *inputs[ENGINE_MAX_INPUTS], *outputs[ENGINE_MAX_INPUTS];
    if (plan->graph->input_count > ENGINE_MAX_INPUTS || plan->graph->output_count > ENGINE_MAX_INPUTS)
        return base_fail(session->context, DW_LIMIT, "a model with more than %d inputs or outputs on a device", ENGINE_MAX_INPUTS);
    TRY(bring_inputs(session, runner, binding, inputs));
    TRY(place_outputs(session, runner, binding, outputs));
    const plan_bases bases = bases_of(session, runner, inputs, outputs);
    const bool has_graph = slot->graph != NULL && runner->profile == NULL;
    if (!has_graph) TRY(set_mark(session, session->begin));
    TRY(has_graph ? launch_graph(session, slot, &bases, session->begin) : run_steps(session, runner, binding, &bases));
    TRY(bring_outputs(session, runner, binding));
    TRY(set_mark(session, session->end));
    dw_status status = device->calls->synchronize(device);
    if (status == DW_OK) TRY(add_work(session, session->begin, session->end));
    return status == DW_OK ? base_poll(session->context) : name_step(session, plan, status);
}

/* ---- runs that the host does not wait for ---- */

static bool add_piece(carried *c, int end, void *to, const void *from, size_t bytes) {
    if (bytes == 0) return true;
    if (c->count[end] == KERNEL_PIECES) return false;
    c->pieces[end][c->count[end]++] = (kernel_piece){to, from, bytes};
    return true;
}

/* The small inputs, but for what links say, and that. at: where the linked input lies among them. false: it is more than can be carried. */
static bool add_inputs(const engine_runner *runner, const uint8_t *pinned, size_t packed, size_t at, const void *output, int link_count, const engine_link *links, carried *c) {
    uint8_t *to = runner->parcel.memory;
    size_t done = 0;
    for (int i = 0; i < link_count; i++) {
        const size_t place = at + links[i].to;
        if (place < done || place + links[i].bytes > packed) return false;
        if (!add_piece(c, CARRIED_FIRST, to + done, pinned + done, place - done)) return false;
        if (!add_piece(c, CARRIED_FIRST, to + place, (const uint8_t *)output + links[i].from, links[i].bytes)) return false;
        done = place + links[i].bytes;
    }
    return add_piece(c, CARRIED_FIRST, to + done, pinned + done, packed - done);
}

/* The same by copies, in this order. */
static dw_status copy_inputs(dw_session *session, const engine_runner *runner, const uint8_t *pinned, size_t packed, void *input, const void *output, int link_count, const engine_link *links,
                             const kernel_piece *asked) {
    device *device = session->device;
    TRY(device->calls->write(device, runner->parcel.memory, pinned, packed));
    TRY(device->calls->write(device, asked->to, asked->from, asked->bytes));
    for (int i = 0; i < link_count; i++) TRY(device->calls->copy(device, (uint8_t *)input + links[i].to, (const uint8_t *)output + links[i].from, links[i].bytes));
    return DW_OK;
}

/* To the host, in order with all that was started. */
static dw_status bring_back(dw_session *session, int count, const kernel_piece *pieces) {
    device *device = session->device;
    bool done = false;
    if (device->calls->carry != NULL) TRY(device->calls->carry(device, count, pieces, &done));
    for (int i = 0; i < count && !done; i++) TRY(device->calls->read(device, pieces[i].to, pieces[i].from, pieces[i].bytes));
    return DW_OK;
}

dw_status engine_launch(dw_session *session, engine_runner *runner, plan_binding *binding, engine_flight *flight, size_t input, size_t output, int link_count, const engine_link *links,
                        const engine_drawing *drawing) {
    device *device = session->device;
    engine_slot *slot = slot_of(runner, binding);
    void *inputs[ENGINE_MAX_INPUTS], *outputs[ENGINE_MAX_INPUTS];
    size_t packed;
    bool done = false;
    TRY(pack_inputs(session, runner, binding, flight->host, inputs, &packed));
    TRY(place_outputs(session, runner, binding, outputs));
    const bool draws = drawing->sampler != NULL;
    kernel_piece asked = {0}, back[SAMPLER_PIECES + 1];
    int count = 0;
    if (draws) engine_sampler_send(drawing->sampler, drawing->rows, flight->there, flight->draws, &asked);
    const kernel_piece result = {flight->result, outputs[output], binding->bytes[plan_value_of(binding->plan->graph->outputs[output].value)->index]};
    const plan_bases bases = bases_of(session, runner, inputs, outputs);
    carried c = {.count = {0}};
    TRY(record(session, slot, &bases));
    const size_t at = (size_t)((uintptr_t)inputs[input] - (uintptr_t)runner->parcel.memory);   /* of an input elsewhere beyond what is packed */
    const bool can = add_inputs(runner, flight->host, packed, at, outputs[output], link_count, links, &c) && add_piece(&c, CARRIED_FIRST, asked.to, asked.from, asked.bytes);
    if (!draws) add_piece(&c, CARRIED_LAST, result.to, result.from, result.bytes);
    TRY(make_carry(session, slot, can ? &c : NULL, &done));
    TRY(set_mark(session, flight->begin));   /* the host has all but the launch to do: where the device stands still, it does so in front of the mark, but for that */
    if (!done) TRY(copy_inputs(session, runner, flight->host, packed, inputs[input], outputs[output], link_count, links, &asked));
    TRY(start_graph(session, slot));
    flight->made = (sampler_made){0};
    if (draws) TRY(engine_sampler_launch(drawing->sampler, outputs[drawing->logits], drawing->rows, outputs[output], flight->there, flight->draws, &flight->made, back, &count));
    if (draws || !done) back[count++] = result;
    if (count > 0) TRY(bring_back(session, count, back));
    return device->calls->mark(device, flight->mark);
}

dw_status engine_land(dw_session *session, const engine_runner *runner, const engine_flight *flight) {
    const dw_status status = session->device->calls->await(session->device, flight->mark);
    if (status == DW_OK) TRY(add_work(session, flight->begin, flight->mark));
    return status == DW_OK ? base_poll(session->context) : name_step(session, runner->program->plan, status);
}

dw_status engine_ready_on_device(dw_session *session, engine_runner *runner, plan_binding *binding) {
    engine_slot *slot = slot_of(runner, binding);
    void *inputs[ENGINE_MAX_INPUTS], *outputs[ENGINE_MAX_INPUTS];
    if (slot->graph == NULL) return DW_OK;
    TRY(bring_inputs(session, runner, binding, inputs));
    TRY(place_outputs(session, runner, binding, outputs));
    const plan_bases bases = bases_of(session, runner, inputs, outputs);
    bool done;
    TRY(record(session, slot, &bases));
    TRY(make_carry(session, slot, &(carried){.count = {0}}, &done));   /* what runs ahead asks for that is made, too */
    TRY(session->device->calls->graph_ready(session->device, slot->graph));
    slot->is_recorded = true;
    return DW_OK;
}

dw_status engine_time_on_device(dw_session *session, engine_runner *runner, const plan_binding *binding, int runs, device_times *times) {
    const engine_slot *slot = slot_of(runner, binding);
    const plan *plan = binding->plan;
    if (slot == NULL || slot->graph == NULL || !slot->is_recorded) return base_fail(session->context, DW_INVALID, "a run is timed after it was made, on a device that has graphs");
    if (plan->run_first > plan->load_count) return base_fail(session->context, DW_UNSUPPORTED, "a plan that prepares weights is timed step by step alone");
    times->step_count = (size_t)(plan->step_count - plan->load_count);
    dw_status status = session->device->calls->graph_time(session->device, slot->graph, runs, times);
    return status == DW_OK ? DW_OK : name_step(session, plan, status);
}

/* ---- on a stream of the caller's ---- */

/* Kernels read 16 bytes at a time, and so does TMA. */
static dw_status check_addresses(dw_session *session, const engine_runner *runner, const plan_binding *binding) {
    const ir_graph *graph = binding->plan->graph;
    for (size_t i = 0; i < graph->input_count + graph->output_count; i++) {
        const bool in = i < graph->input_count;
        const void *address = in ? runner->inputs[i] : runner->outputs[i - graph->input_count];
        const ir_value *value = in ? graph->inputs[i] : graph->outputs[i - graph->input_count].value;
        const char *name = in ? graph->inputs[i]->name : graph->outputs[i - graph->input_count].name;
        if ((uintptr_t)address % DEVICE_ALIGN != 0)
            return base_fail(session->context, DW_MISMATCH, "%s %s is at %p; memory of a GPU is taken at multiples of %d bytes: copy it to such a place", in ? "input" : "output",
                             name, address, DEVICE_ALIGN);
        if (address == NULL && binding->bytes[plan_value_of(value)->index] > 0)
            return base_fail(session->context, DW_INVALID, "%s %s has no memory", in ? "input" : "output", name);
    }
    return DW_OK;
}

/* A run before it, on whatever stream, may have met something by now. */
static dw_status check_runs_before(dw_session *session, const engine_runner *runner) {
    dw_status status = session->device->calls->poll(session->device);
    if (status == DW_OK) return DW_OK;
    return base_fail_at(session->context, name_step(session, runner->program->plan, status), "an earlier run on a stream");
}

dw_status engine_execute_stream(dw_session *session, engine_runner *runner, plan_binding *binding, void *stream) {
    device *device = session->device;
    engine_slot *slot = slot_of(runner, binding);
    const plan_bases bases = bases_of(session, runner, runner->inputs, runner->outputs);
    bool captured, is_seen;
    TRY(check_runs_before(session, runner));
    TRY(check_addresses(session, runner, binding));
    TRY(device->calls->follow(device, stream, &captured));
    session->enqueued = true;
    session->captured = session->captured || captured;
    dw_status status = engine_prepare(session, &is_seen);
    if (session->lender != NULL) engine_prepared_changed(session);
    if (status == DW_OK) status = launch_graph(session, slot, &bases, NULL);
    const dw_status ended = device->calls->lead(device);
    return status == DW_OK ? ended : status;
}

dw_status dw_session_synchronize(dw_session *session) {
    if (session->device == NULL) return DW_OK;
    dw_status status = session->device->calls->synchronize(session->device);
    return status == DW_OK || session->full.program == NULL ? status : name_step(session, session->full.program->plan, status);
}
