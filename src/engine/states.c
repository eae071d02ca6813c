/* States of a session's whole runs, by number and name: read, written and cleared between runs, wherever they lie. */
#include "engine/engine.h"

#include <string.h>

static const ir_graph *graph_of(const dw_session *session) { return session->full.program->plan->graph; }

int engine_state_count(const dw_session *session) { return (int)graph_of(session)->state_count; }

dw_status engine_state_at(const dw_session *session, int index, dw_named_tensor *state) {
    const ir_value *value = graph_of(session)->states[index];
    state->name = value->name;
    return op_tensor_bind(session->context, &value->type, session->full.most, NULL, &state->tensor);
}

int engine_state_find(const dw_session *session, const char *name) {
    const ir_graph *graph = graph_of(session);
    for (size_t i = 0; i < graph->state_count; i++)
        if (strcmp(graph->states[i]->name, name) == 0) return (int)i;
    return -1;
}

dw_status engine_state_read(dw_session *session, int index, void *to) {
    const engine_runner *runner = &session->full;
    if (session->device == NULL) {
        memcpy(to, runner->states[index], runner->state_bytes[index]);
        return DW_OK;
    }
    TRY(session->device->calls->synchronize(session->device));
    return session->device->calls->read(session->device, to, runner->states[index], runner->state_bytes[index]);
}

dw_status engine_state_write(dw_session *session, int index, const void *from) {
    const engine_runner *runner = &session->full;
    if (graph_of(session)->states[index]->trained) engine_prepared_changed(session);
    if (session->device == NULL) {
        memcpy(runner->states[index], from, runner->state_bytes[index]);
        return DW_OK;
    }
    TRY(session->device->calls->write(session->device, runner->states[index], from, runner->state_bytes[index]));
    return session->device->calls->synchronize(session->device);
}

dw_status engine_state_clear(dw_session *session, int index) {
    const engine_runner *runner = &session->full;
    if (graph_of(session)->states[index]->trained) engine_prepared_changed(session);
    if (session->device != NULL) return session->device->calls->fill(session->device, runner->states[index], 0, runner->state_bytes[index]);
    memset(runner->states[index], 0, runner->state_bytes[index]);
    return DW_OK;
}

bool engine_run_wrote(const dw_session *session) {
    const engine_runner *runner = &session->full;
    const plan *plan = runner->program->plan;
    if (session->device != NULL) return runner->reached > 0;
    for (int i = plan->load_count; i < runner->reached; i++)
        for (int k = 0; k < plan->steps[i].node->n_out; k++)
            if (plan_value_of(plan->steps[i].node->out[k])->root->place == PLAN_STATE) return true;
    return false;
}
