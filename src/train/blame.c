/* Where a number that is not finite comes from: the run is repeated on the CPU, and each step's results are looked at. Nothing changes by it: optimisers keep what was where the norm is not finite, and sums are
 * cleared before the next step. */
#include "train/train.h"

#include <math.h>
#include <string.h>

/* The first number of a tensor that is not finite. */
typedef struct found { bool is_there; double value; int64_t index[DW_MAX_RANK]; } found;

/* -inf is what masks are made of, so it counts only where hidden is asked for. */
static found look(const dw_tensor *tensor, bool hidden) {
    found found = {0};
    int64_t index[DW_MAX_RANK] = {0};
    if (tensor == NULL || tensor->data == NULL || dw_format_is_block(tensor->format) || num_info(tensor->format)->class != NUM_FLOAT) return found;
    for (int64_t left = op_tensor_count(tensor); left > 0; left--, op_tensor_next(tensor, index)) {
        const double value = op_tensor_load(tensor, index);
        if (isfinite(value) || (!hidden && value < 0)) continue;
        found.is_there = true;
        found.value = value;
        memcpy(found.index, index, sizeof index);
        return found;
    }
    return found;
}

static void print_found(text *words, const found *found, int rank) {
    text_real(words, found->value);
    text_add(words, " at [");
    for (int i = 0; i < rank; i++) text_printf(words, "%s%lld", i > 0 ? "," : "", (long long)found->index[i]);
    text_add(words, "]");
}

/* What watching has found. */
typedef struct culprit {
    bool is_there, hidden;
    found at;
    int rank, result;
    const ir_node *node;
} culprit;

static bool watch(void *user, const plan_step *step, const op_call *call) {
    culprit *culprit = user;
    for (int i = 0; i < call->n_out; i++) {
        culprit->at = look(call->out[i], culprit->hidden);
        if (!culprit->at.is_there) continue;
        culprit->is_there = true;
        culprit->rank = call->out[i]->rank;
        culprit->result = i;
        culprit->node = step->node;
        return true;
    }
    return false;
}

/* "op mul (mlp.act, exported as mul_3, dgrad): nan at [0,3]" */
static void print_culprit(text *words, const culprit *culprit) {
    const ir_origin *origin = &culprit->node->origin;
    text_printf(words, "the first result that is not finite is that of op %s", op_get(culprit->node->op)->name);
    if (origin->module != NULL && origin->module[0] != '\0') text_printf(words, ", module %s", origin->module);
    if (origin->name != NULL) text_printf(words, ", exported as %s", origin->name);
    text_add(words, ": ");
    print_found(words, &culprit->at, culprit->rank);
}

static dw_status read_states(dw_trainer *trainer, dw_session *to) {
    for (int i = 0; i < engine_state_count(to); i++) {
        dw_named_tensor state;
        train_kept kept;
        uint64_t bytes;
        void *memory;
        TRY(engine_state_at(to, i, &state));
        TRY(train_find(trainer, state.name, &kept));
        TRY(dw_tensor_bytes(trainer->context, &state.tensor, &bytes));
        TRY(base_alloc(trainer->context, (size_t)bytes + 1, ENGINE_ALIGN, &memory));
        dw_status status = engine_state_read(kept.session, kept.index, memory);
        if (status == DW_OK) status = engine_state_write(to, i, memory);
        base_release(trainer->context, memory, (size_t)bytes + 1, ENGINE_ALIGN);
        TRY(status);
    }
    return DW_OK;
}

/* A session of the same graph on the CPU. */
static dw_status beside(dw_trainer *trainer, dw_model **model, dw_session **session) {
    ir_graph *graph;
    TRY(ir_graph_clone(trainer->watched, &graph));
    const dw_model_options options = {.precision = trainer->options.precision, .policy = trainer->options.policy, .dims = trainer->options.dims};
    TRY(dw_model_create(trainer->context, graph, &options, model));
    TRY(engine_session_create(trainer->context, *model, &(dw_session_options){.dims = trainer->options.dims}, &(engine_paging){0}, session));
    return read_states(trainer, *session);
}

static dw_status run_watched(dw_trainer *trainer, arena *arena, dw_session *session, int input_count, const dw_named_tensor *inputs, culprit *culprit) {
    int count;
    dw_named_tensor *all, *outputs;
    const ir_graph *graph = session->full.program->plan->graph;
    double *values;
    train_exchange *x;
    TRY_NEW(x, arena, 1);
    x->factor = NAN;   /* nothing changes */
    TRY(train_gather(trainer, arena, session, input_count, inputs, x, &count, &all));
    TRY_NEW(outputs, arena, graph->output_count);
    TRY_NEW(values, arena, graph->output_count);
    TRY(dw_session_reserve(session, count, all));
    TRY(dw_session_shapes(session, count, all, outputs));
    for (size_t i = 0; i < graph->output_count; i++) outputs[i].tensor.data = &values[i];
    for (int hidden = 0; hidden < 2 && !culprit->is_there; hidden++) {
        culprit->hidden = hidden != 0;
        TRY(engine_run_watched(session, count, all, (int)graph->output_count, outputs, watch, culprit));
    }
    return DW_OK;
}

static bool blame_inputs(int input_count, const dw_named_tensor *inputs, text *words) {
    for (int i = 0; i < input_count; i++) {
        const found found = look(&inputs[i].tensor, true);
        if (!found.is_there) continue;
        text_printf(words, "input %s has ", inputs[i].name);
        print_found(words, &found, inputs[i].tensor.rank);
        return true;
    }
    return false;
}

dw_status train_blame(dw_trainer *trainer, int input_count, const dw_named_tensor *inputs) {
    text words;
    arena arena;
    culprit culprit = {0};
    dw_model *model = NULL;
    dw_session *session = trainer->micro;
    dw_status status = DW_OK;
    text_init(&words, trainer->context);
    arena_init(&arena, trainer->context);
    if (!blame_inputs(input_count, inputs, &words)) {
        if (trainer->watched != NULL) status = beside(trainer, &model, &session);
        if (status == DW_OK) status = run_watched(trainer, &arena, session, input_count, inputs, &culprit);
        if (culprit.is_there) print_culprit(&words, &culprit);
        else text_add(&words, "which op made it was not found");
    }
    if (status == DW_OK) status = text_status(&words);
    if (status == DW_OK) status = base_fail(trainer->context, DW_INVALID, "step %lld: the loss or a gradient is not finite: %s", (long long)trainer->step + 1, text_string(&words));
    if (session != trainer->micro) engine_session_destroy(session);
    dw_model_destroy(model);
    arena_free(&arena);
    text_free(&words);
    return status;
}
