/* What a generation is given once: the prelude (pass/step/incremental.h) turns the caller's inputs, an encoder's, into what every step reads. */
#include "engine/engine.h"

#include <inttypes.h>
#include <string.h>

static int64_t *size_by_name(const engine_runner *runner, const char *name, int64_t *sizes) {
    int index = dim_symbol_find(runner->program->plan->graph->dims, name);
    return index < 0 ? NULL : &sizes[index];
}

/* The most that dims says: read for the whole graph already, where there is one. */
static dw_status read_sizes(dw_session *session, const char *dims, int64_t *sizes) {
    const plan *plan = session->prelude.program->plan;
    const dim_table *table = plan->graph->dims;
    memcpy(sizes, plan->typical, (size_t)dim_symbol_count(table) * sizeof *sizes);
    if (session->full.program == NULL) return plan_read_dims(session->context, plan->graph, dims, sizes);
    for (int i = 0; i < dim_symbol_count(table); i++) {
        const int64_t *known = size_by_name(&session->full, dim_symbol_name(table, i), session->full.symbols);
        if (known != NULL) sizes[i] = *known;
    }
    return DW_OK;
}

dw_status engine_prelude_create(dw_session *session, const char *dims, const char *batch) {
    engine_runner *runner = &session->prelude;
    TRY_NEW(session->prelude_most, &session->arena, dim_symbol_count(runner->program->plan->graph->dims));
    TRY(read_sizes(session, dims, session->prelude_most));
    int64_t *rows = batch ? size_by_name(runner, batch, session->prelude_most) : NULL;
    if (rows != NULL) *rows = 1;
    memcpy(runner->symbols, session->prelude_most, (size_t)dim_symbol_count(runner->program->plan->graph->dims) * sizeof *runner->symbols);
    return engine_reserve_up_to(session, runner);
}

void engine_prelude_sizes(const dw_session *session, const engine_runner *runner, int64_t *sizes) {
    const dim_table *dims = session->prelude.program->plan->graph->dims;
    for (int i = 0; i < dim_symbol_count(dims); i++) {
        int64_t *size = size_by_name(runner, dim_symbol_name(dims, i), sizes);
        if (size != NULL) *size = session->prelude.symbols[i];
    }
}

void engine_prelude_least(const dw_session *session, const engine_runner *runner, int64_t *sizes) {
    if (session->prelude.program == NULL) return;
    const dim_table *given = session->prelude.program->plan->graph->dims, *dims = runner->program->plan->graph->dims;
    int64_t most;
    for (int i = 0; i < dim_symbol_count(given); i++) {
        const int symbol = dim_symbol_find(dims, dim_symbol_name(given, i));
        if (symbol >= 0) dim_symbol_range(dims, symbol, &sizes[symbol], &most);
    }
}

dw_status engine_prelude_widen(dw_session *session, int count, const dw_named_tensor *inputs, const engine_runner *runner, int64_t *sizes) {
    if (session->prelude.program == NULL) return DW_OK;
    const plan *plan = session->prelude.program->plan;
    const dw_tensor *ordered[ENGINE_MAX_INPUTS];
    int64_t own[ENGINE_MAX_SYMBOLS];
    memcpy(own, session->prelude_most, (size_t)dim_symbol_count(plan->graph->dims) * sizeof *own);
    TRY(engine_match(session->context, plan, count, inputs, ordered, own));
    for (int i = 0; i < dim_symbol_count(plan->graph->dims); i++) {
        int64_t *size = size_by_name(runner, dim_symbol_name(plan->graph->dims, i), sizes);
        const int64_t here = own[i] < session->prelude_most[i] ? own[i] : session->prelude_most[i];   /* what is more is refused when it is read */
        if (size != NULL && here > *size) *size = here;
    }
    return DW_OK;
}

/* Do the inputs' sizes give the symbol its value? Others, the number of tokens, are nothing to the prelude. */
static bool is_told(const ir_graph *graph, int symbol) {
    for (size_t i = 0; i < graph->input_count; i++) {
        const op_type *type = &graph->inputs[i]->type;
        for (int axis = 0, index; axis < type->rank; axis++) {
            if (dim_is_symbol(type->dims[axis], &index) && index == symbol) return true;
        }
    }
    return false;
}

static dw_status prepare(dw_session *session, int input_count, const dw_named_tensor *inputs, plan_binding **made) {
    engine_runner *runner = &session->prelude;
    const plan *plan = runner->program->plan;
    const ir_graph *graph = plan->graph;
    const dw_tensor *ordered[ENGINE_MAX_INPUTS];
    TRY(engine_match(session->context, plan, input_count, inputs, ordered, runner->symbols));
    for (size_t i = 0; i < graph->input_count; i++) {
        if (!op_tensor_is_contiguous(ordered[i])) return base_fail(session->context, DW_MISMATCH, "input %s is not contiguous", graph->inputs[i]->name);
        runner->inputs[i] = ordered[i]->data;
    }
    for (int i = 0; i < dim_symbol_count(graph->dims); i++) {
        if (runner->symbols[i] <= session->prelude_most[i] || !is_told(graph, i)) continue;
        return base_fail(session->context, DW_LIMIT, "the given inputs have %s=%" PRId64 ", this session generates with at most %" PRId64 "%s",
                         dim_symbol_name(graph->dims, i), runner->symbols[i], session->prelude_most[i],
                         session->prelude_most[i] == 1 ? ", one prompt at a time" : ": create it with larger dims");
    }
    TRY(engine_bind(session, runner, made));
    return engine_check_workspace(session, *made);
}

dw_status engine_prelude_run(dw_session *session, int input_count, const dw_named_tensor *inputs, plan_binding **made) {
    const dw_status status = prepare(session, input_count, inputs, made);
    return status == DW_OK ? engine_execute(session, &session->prelude, *made) : engine_cannot_run(session, &session->prelude, status);
}
