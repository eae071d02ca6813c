/* What runs are given: the caller's inputs, and the trainer's own scalars. */
#include "train/train.h"

#include <string.h>

enum { OWN_INPUTS = 6 };   /* at most */

static bool reads(const dw_session *session, const char *name) {
    const ir_graph *graph = session->full.program->plan->graph;
    for (size_t i = 0; i < graph->input_count; i++)
        if (strcmp(graph->inputs[i]->name, name) == 0) return true;
    return false;
}

static void give(const dw_session *session, const char *name, dw_format format, void *data, int *count, dw_named_tensor *inputs) {
    if (reads(session, name)) inputs[(*count)++] = (dw_named_tensor){name, {.format = format, .data = data}};
}

/* What the run draws by: other numbers for each micro-batch, the same after a checkpoint. A caller may give it, to draw what it wants. */
static void give_draw(const dw_trainer *trainer, const dw_session *session, train_exchange *x, int *count, dw_named_tensor *inputs) {
    for (int i = 0; i < *count; i++)
        if (strcmp(inputs[i].name, DW_RANDOM_DRAW) == 0) return;
    x->draw[0] = (int64_t)trainer->options.seed;
    x->draw[1] = trainer->calls;
    if (reads(session, DW_RANDOM_DRAW)) inputs[(*count)++] = (dw_named_tensor){DW_RANDOM_DRAW, {.format = DW_FORMAT_i64, .rank = 1, .dims = {2}, .strides = {1}, .data = x->draw}};
}

dw_status train_gather(const dw_trainer *trainer, arena *arena, const dw_session *session, int given, const dw_named_tensor *inputs, train_exchange *x, int *count, dw_named_tensor **all) {
    TRY_NEW(*all, arena, (size_t)given + OWN_INPUTS);
    for (int i = 0; i < given; i++) (*all)[i] = inputs[i];
    *count = given;
    x->scale = (float)trainer->loss_scale;
    x->step = trainer->step + 1;
    give(session, TRAIN_RATE, DW_FORMAT_f32, &x->rate, count, *all);
    give(session, TRAIN_STEP, DW_FORMAT_i64, &x->step, count, *all);
    give(session, TRAIN_FACTOR, DW_FORMAT_f32, &x->factor, count, *all);
    give(session, TRAIN_SCALE, DW_FORMAT_f32, &x->scale, count, *all);
    give_draw(trainer, session, x, count, *all);
    return DW_OK;
}
