/* Which runs are the first after an update of weights, and the operands that are packed then. The steps that a plan has for it are run by who runs the others (runner.c, device_run.c). */
#include "engine/engine.h"

dw_status engine_pack(dw_session *session, const engine_runner *runner, const plan_binding *binding) {
    const plan *plan = runner->program->plan;
    for (int i = 0; i < plan->pack_count; i++) {
        const plan_pack *pack = &plan->packs[i];
        TRY(pack->packing->run(pack->packing, session->context, session->pool, &binding->tensors[pack->value->index], (uint8_t *)runner->packs + pack->offset));
        TRY(base_poll(session->context));
    }
    return DW_OK;
}

bool engine_begin_prepared(dw_session *session, const plan_binding *binding) {
    const bool is_prepared = session->prepared == binding && session->prepared_updates == session->model->updates;
    session->prepared = NULL;
    if (session->lender != NULL) session->lender->prepared = NULL;
    return is_prepared;
}

void engine_end_prepared(dw_session *session, const plan_binding *binding) {
    session->prepared = binding->plan->prepares ? binding : NULL;
    session->prepared_updates = session->model->updates;
}
