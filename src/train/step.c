/* Steps: micro-batches run one after the other, their gradients added up where a step is of several, and parameters updated. What is not finite changes nothing. */
#include "train/train.h"

#include <math.h>
#include <string.h>

enum { SCALE_GROWS = 2000 };   /* good steps until the loss scale is doubled */

static dw_tensor scalar(dw_format format, void *data) { return (dw_tensor){.format = format, .data = data}; }

static dw_status run(dw_session *session, int input_count, const dw_named_tensor *inputs, int output_count, const dw_named_tensor *outputs) {
    dw_status status = dw_session_run(session, input_count, inputs, output_count, outputs);
    if (status != DW_LIMIT) return status;
    TRY(dw_session_reserve(session, input_count, inputs));
    return dw_session_run(session, input_count, inputs, output_count, outputs);
}

/* One run of micro: its loss, and its norm where it has one. */
static dw_status run_micro(dw_trainer *trainer, int given, const dw_named_tensor *inputs, train_exchange *x, double *loss) {
    const ir_graph *graph = trainer->micro->full.program->plan->graph;
    dw_named_tensor outputs[2] = {{trainer->loss, {0}}, {TRAIN_NORM, scalar(DW_FORMAT_f32, &x->norm)}}, *all;
    int count;
    arena arena;
    arena_init(&arena, trainer->context);
    dw_status status = train_gather(trainer, &arena, trainer->micro, given, inputs, x, &count, &all);
    for (size_t i = 0; i < graph->output_count; i++)
        if (status == DW_OK && strcmp(graph->outputs[i].name, trainer->loss) == 0)
            status = op_tensor_bind(trainer->context, &graph->outputs[i].value->type, trainer->micro->full.symbols, x->loss, &outputs[0].tensor);
    if (status == DW_OK) status = run(trainer->micro, count, all, trainer->has_norm ? 2 : 1, outputs);
    if (status == DW_OK) *loss = op_tensor_load(&outputs[0].tensor, (int64_t[DW_MAX_RANK]){0});
    arena_free(&arena);
    return status;
}

static dw_status clear_sums(dw_trainer *trainer) {
    for (int i = 0; trainer->sums && i < engine_state_count(trainer->micro); i++) {
        dw_named_tensor state;
        TRY(engine_state_at(trainer->micro, i, &state));
        if (strncmp(state.name, TRAIN_GRADIENT, strlen(TRAIN_GRADIENT)) == 0) TRY(engine_state_clear(trainer->micro, i));
    }
    return DW_OK;
}

static float factor_of(const dw_trainer *trainer) { return (float)(1 / (trainer->accumulate * (trainer->loss_scale > 0 ? trainer->loss_scale : 1))); }

static dw_status check_whole(const dw_trainer *trainer) {
    if (!trainer->torn) return DW_OK;
    return base_fail(trainer->context, DW_INVALID, "a run failed while it changed parameters, so they are of no step: resume a checkpoint");
}

/* A run failed. What it has written is known where nothing was updated yet. */
static dw_status give_up(dw_trainer *trainer, const dw_session *session, dw_status status) {
    const bool only_sums = session == trainer->micro && trainer->sums;
    trainer->done = 0;
    if (!only_sums && engine_run_wrote(session)) trainer->torn = true;
    return status;
}

/* After a step of a scaled loss. */
static void adapt_scale(dw_trainer *trainer, bool skipped) {
    if (trainer->loss_scale <= 0) return;
    trainer->good = skipped ? 0 : trainer->good + 1;
    if (skipped && trainer->loss_scale > 1) trainer->loss_scale /= 2;
    if (trainer->good < SCALE_GROWS || trainer->loss_scale > 1e30) return;
    trainer->loss_scale *= 2;
    trainer->good = 0;
}

/* Is it an error that this is not finite? A scaled loss may have overflowed where it would not have. */
static bool raises(const dw_trainer *trainer, double loss, double norm) {
    if (!(trainer->options.flags & DW_TRAINER_RAISE) || (isfinite(loss) && isfinite(norm))) return false;
    return !isfinite(loss) || trainer->loss_scale <= 1;
}

static dw_status update(dw_trainer *trainer, train_exchange *x, double *norm) {
    const dw_named_tensor output = {TRAIN_NORM, scalar(DW_FORMAT_f32, &x->norm)};
    dw_named_tensor *all;
    int count;
    arena arena;
    arena_init(&arena, trainer->context);
    x->factor = isfinite(trainer->sum) ? 1.0f : NAN;   /* the sums are means already */
    dw_status status = train_gather(trainer, &arena, trainer->update, 0, NULL, x, &count, &all);
    if (status == DW_OK) status = run(trainer->update, count, all, 1, &output);
    arena_free(&arena);
    if (status != DW_OK) return give_up(trainer, trainer->update, status);
    *norm = x->norm;
    return DW_OK;
}

dw_status dw_trainer_step(dw_trainer *trainer, int input_count, const dw_named_tensor *inputs, double rate, dw_train_result *result) {
    train_exchange x = {.rate = (float)rate, .factor = factor_of(trainer)};
    dw_train_result made = {0};
    TRY(check_whole(trainer));
    if (!(rate >= 0 && rate < 1e30)) return base_fail(trainer->context, DW_INVALID, "the rate is %g: it must be a number from 0", rate);
    if (trainer->done == 0) {
        trainer->sum = 0;
        TRY(clear_sums(trainer));
    }
    dw_status status = run_micro(trainer, input_count, inputs, &x, &made.loss);
    if (status != DW_OK) return give_up(trainer, trainer->micro, status);
    if (raises(trainer, made.loss, trainer->has_norm ? x.norm : 0)) {
        trainer->done = 0;
        return train_blame(trainer, input_count, inputs);
    }
    trainer->calls++;
    trainer->done++;
    trainer->sum += made.loss;
    made.mean_loss = trainer->sum / trainer->done;
    made.updated = trainer->done == trainer->accumulate;
    if (made.updated) {
        made.norm = x.norm;
        trainer->done = 0;
        if (trainer->update != NULL) TRY(update(trainer, &x, &made.norm));
        made.skipped = !isfinite(made.norm) || !isfinite(made.mean_loss);
        if (!made.skipped) trainer->step++;
        adapt_scale(trainer, made.skipped);
    }
    made.step = trainer->step;
    if (result != NULL) *result = made;
    return DW_OK;
}

dw_status dw_trainer_loss(dw_trainer *trainer, int input_count, const dw_named_tensor *inputs, double *loss) {
    train_exchange x = {.factor = trainer->sums ? 0 : NAN};   /* nothing is added to gradients that the caller may still read */
    TRY(check_whole(trainer));
    TRY(train_check_between(trainer, "computes a loss"));
    dw_status status = run_micro(trainer, input_count, inputs, &x, loss);
    return status == DW_OK ? DW_OK : give_up(trainer, trainer->micro, status);
}

dw_status train_check_between(const dw_trainer *trainer, const char *what) {
    TRY(check_whole(trainer));
    if (trainer->done == 0) return DW_OK;
    return base_fail(trainer->context, DW_INVALID, "a trainer %s between steps, and %d of %d micro-batches of this one are done", what, trainer->done, trainer->accumulate);
}
