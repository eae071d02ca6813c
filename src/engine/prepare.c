/* What a session that trains makes of its states before runs: it has a set of constants of its own beside the model's, which the load fills again whenever the states have changed. That is known here;
 * the steps, and where they run, are load.c's. */
#include "engine/engine.h"

#include <string.h>

static const plan *plan_of(const dw_session *session) { return session->model->full.plan; }

static bool prepares(const dw_session *session) { return plan_of(session) != NULL && plan_of(session)->prepares; }

/* What the model has, which may have moved; what the session has itself stays. */
static void take_known(dw_session *session) {
    const engine_program *known = &session->model->full;
    engine_program *own = &session->own;
    for (int i = 0; i < known->plan->value_count; i++) {
        if (known->plan->values[i].updated) continue;
        own->constants[i] = known->constants[i];
        if (own->on_device != NULL) own->on_device[i] = known->on_device[i];
    }
    for (int i = 0; i < known->plan->step_count; i++) {
        const plan_value *packed = plan_packed_operand(&known->plan->steps[i]);
        if (packed != NULL && !packed->updated) own->packed[i] = known->packed[i];
    }
}

dw_status engine_prepared_create(dw_session *session, const engine_program **program) {
    const engine_program *known = &session->model->full;
    uint64_t plain, packed;
    *program = known;
    if (!prepares(session)) return DW_OK;
    engine_program *own = &session->own;
    own->plan = known->plan;
    TRY_NEW(own->constants, &session->arena, known->plan->value_count);
    TRY_NEW(own->packed, &session->arena, known->plan->step_count);
    if (session->device != NULL) TRY_NEW(own->on_device, &session->arena, known->plan->value_count);
    session->prepared.device = session->device;
    session->prepared.known = &session->model->constants;
    TRY(engine_weigh_prepared(known->plan, &plain, &packed));
    session->prepared_bytes = (size_t)(plain + packed);
    *program = own;
    return DW_OK;
}

void engine_prepared_free(dw_session *session) { engine_constants_free(&session->prepared); }

void engine_prepared_changed(dw_session *session) {
    session->is_prepared = false;
    if (session->lender != NULL) session->lender->is_prepared = false;
}

dw_status engine_prepare(dw_session *session, bool *stopped) {
    const uint64_t updates = session->model->updates;
    *stopped = false;
    if (!prepares(session) || (session->is_prepared && session->prepared_updates == updates && session->full.watch == NULL)) return DW_OK;
    session->is_prepared = false;
    take_known(session);
    TRY(engine_load_updated(&session->prepared, session, &session->own, stopped));
    session->is_prepared = !*stopped;
    session->prepared_updates = updates;
    return DW_OK;
}
