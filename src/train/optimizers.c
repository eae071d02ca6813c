/* Optimisers as nodes: each function emits what a step makes of a parameter and its gradient, with what it keeps between steps as states that begin with zeros. */
#include "train/train.h"

#include <math.h>
#include <string.h>

double train_setting(const train_rule *rule, const char *name) {
    for (int i = 0; i < rule->count; i++)
        if (strcmp(rule->settings[i].name, name) == 0) return rule->settings[i].value;
    return 0;
}

/* ---- small nodes ---- */

static dw_status times(train_emitter *e, ir_value *x, double number, ir_value **result) {
    ir_value *factor;
    TRY(ir_emit_scalar(e->graph, x->type.format, number, &factor));
    return ir_emit_2(e->graph, OP_mul, x, factor, result);
}

/* x times a scalar value. */
static dw_status times_value(train_emitter *e, ir_value *x, ir_value *scalar, ir_value **result) {
    ir_value *factor;
    TRY(ir_emit_cast(e->graph, scalar, x->type.format, &factor));
    return ir_emit_2(e->graph, OP_mul, x, factor, result);
}

/* a x + b y */
static dw_status mix(train_emitter *e, double a, ir_value *x, double b, ir_value *y, ir_value **result) {
    ir_value *left, *right;
    TRY(times(e, x, a, &left));
    TRY(times(e, y, b, &right));
    return ir_emit_2(e->graph, OP_add, left, right, result);
}

/* A state of the parameter's shape, in f32 (f64 for f64), "sgd.buffer.<parameter>". */
static dw_status add_state(train_emitter *e, const char *prefix, const ir_value *param, ir_value **state) {
    op_type type = param->type;
    if (type.format != DW_FORMAT_f64) type.format = DW_FORMAT_f32;
    const char *name = arena_printf(&e->graph->arena, "%s%s", prefix, param->name);
    if (name == NULL) return DW_NO_MEMORY;
    return ir_add_state(e->graph, name, &type, NULL, state);
}

/* The state becomes value where it may change; else it stays. */
static dw_status change(train_emitter *e, ir_value *state, ir_value *value) {
    ir_value *next;
    TRY(ir_emit_cast(e->graph, value, state->type.format, &value));
    TRY(ir_emit(e->graph, OP_where, 3, (ir_value *[]){e->may_change, value, state}, 0, NULL, &next));
    ir_set_next(state, next);
    return DW_OK;
}

/* The clipped mean gradient, in the format of what the optimiser keeps. */
static dw_status scaled(train_emitter *e, const ir_value *param, ir_value *gradient, ir_value **result) {
    TRY(ir_emit_cast(e->graph, gradient, param->type.format == DW_FORMAT_f64 ? DW_FORMAT_f64 : DW_FORMAT_f32, &gradient));
    return times_value(e, gradient, e->scale, result);
}

/* p (1 - rate decay) */
static dw_status decayed_by(train_emitter *e, ir_value *param, double decay, ir_value **result) {
    ir_value *share, *one, *kept;
    *result = param;
    if (decay == 0) return DW_OK;
    TRY(times(e, e->rate, decay, &share));
    TRY(ir_emit_scalar(e->graph, share->type.format, 1, &one));
    TRY(ir_emit_2(e->graph, OP_sub, one, share, &kept));
    return times_value(e, param, kept, result);
}

/* ---- the optimisers ---- */

static dw_status optimizer_sgd(train_emitter *e, const train_rule *rule, bool decayed, ir_value *param, ir_value *gradient) {
    const double momentum = train_setting(rule, "momentum"), decay = decayed ? train_setting(rule, "decay") : 0;
    ir_value *d, *step, *next;
    TRY(scaled(e, param, gradient, &d));
    if (decay != 0) TRY(mix(e, 1, d, decay, param, &d));
    if (momentum != 0) {
        ir_value *buffer, *sum;
        TRY(add_state(e, "sgd.buffer.", param, &buffer));
        TRY(mix(e, momentum, buffer, 1, d, &sum));
        TRY(change(e, buffer, sum));
        if (train_setting(rule, "nesterov") != 0) TRY(mix(e, 1, d, momentum, sum, &d));
        else d = sum;
    }
    TRY(times_value(e, d, e->rate, &step));
    TRY(ir_emit_2(e->graph, OP_sub, param, step, &next));
    return change(e, param, next);
}

/* The next values of as many parameters as one op takes. */
static dw_status emit_adamw(train_emitter *e, train_pending *pending) {
    const train_rule *rule = pending->rule;
    ir_value *in[ADAMW_OPERANDS + 4 * TRAIN_UPDATED], *next;
    const op_attr attrs[] = {op_set_real(OP_ATTR_eps, train_setting(rule, "eps")), op_set_real(OP_ATTR_beta1, train_setting(rule, "beta1")),
                             op_set_real(OP_ATTR_beta2, train_setting(rule, "beta2")), op_set_real(OP_ATTR_decay, pending->decayed ? train_setting(rule, "decay") : 0)};
    if (pending->count == 0) return DW_OK;
    in[ADAMW_RATE] = e->rate;
    in[ADAMW_STEP] = e->step;
    in[ADAMW_SCALE] = e->scale;
    for (int i = 0; i < pending->count; i++) {
        in[op_update_operand(OP_adamw, i, ADAMW_P)] = pending->params[i];
        in[op_update_operand(OP_adamw, i, ADAMW_M)] = pending->m[i];
        in[op_update_operand(OP_adamw, i, ADAMW_V)] = pending->v[i];
        in[op_update_operand(OP_adamw, i, ADAMW_G)] = pending->gradients[i];
    }
    TRY(ir_emit(e->graph, OP_adamw, op_update_operand(OP_adamw, pending->count, 0), in, COUNT_OF(attrs), attrs, &next));
    for (int i = 0; i < pending->count; i++) {
        ir_set_next(pending->params[i], next->node->out[3 * i]);
        ir_set_next(pending->m[i], next->node->out[3 * i + 1]);
        ir_set_next(pending->v[i], next->node->out[3 * i + 2]);
    }
    pending->count = 0;
    return DW_OK;
}

static dw_status find_pending(train_emitter *e, const train_rule *rule, bool decayed, train_pending **found) {
    for (train_pending *p = e->pending; p != NULL; p = p->next) {
        if (p->rule != rule || p->decayed != decayed) continue;
        *found = p;
        return DW_OK;
    }
    TRY_NEW(*found, &e->graph->arena, 1);
    **found = (train_pending){.rule = rule, .decayed = decayed, .next = e->pending};
    e->pending = *found;
    return DW_OK;
}

dw_status train_emit_pending(train_emitter *e) {
    for (train_pending *p = e->pending; p != NULL; p = p->next) TRY(emit_adamw(e, p));
    return DW_OK;
}

static dw_status optimizer_adamw(train_emitter *e, const train_rule *rule, bool decayed, ir_value *param, ir_value *gradient) {
    train_pending *pending;
    TRY(find_pending(e, rule, decayed, &pending));
    const int i = pending->count;
    pending->params[i] = param;
    pending->gradients[i] = gradient;
    TRY(add_state(e, "adamw.m.", param, &pending->m[i]));
    TRY(add_state(e, "adamw.v.", param, &pending->v[i]));
    pending->count++;
    return pending->count == TRAIN_UPDATED ? emit_adamw(e, pending) : DW_OK;
}

static dw_status product(train_emitter *e, ir_value *a, ir_value *b, bool bt, ir_value **result) {
    const op_attr turned = op_set_bool(OP_ATTR_bt, true);
    return ir_emit(e->graph, OP_matmul, 2, (ir_value *[]){a, b}, bt ? 1 : 0, &turned, result);
}

/* x, at least as wide as high, with its singular values brought near to 1: x <- a x + (b x x' + c (x x')^2) x, whose numbers are those of Jordan and others, "Muon", 2024. */
static dw_status orthogonalise(train_emitter *e, ir_value *x, int steps, ir_value **result) {
    static const double a = 3.4445, b = -4.7750, c = 2.0315, least = 1e-7;
    const int64_t axes[] = {0, 1};
    const op_attr over = op_set_ints(OP_ATTR_axes, 2, axes);
    ir_value *squares, *norm, *floor;
    TRY(ir_emit_2(e->graph, OP_mul, x, x, &squares));
    TRY(ir_emit(e->graph, OP_sum, 1, &squares, 1, &over, &norm));
    TRY(ir_emit_1(e->graph, OP_sqrt, norm, &norm));
    TRY(ir_emit_scalar(e->graph, x->type.format, least, &floor));
    TRY(ir_emit_2(e->graph, OP_maximum, norm, floor, &norm));
    TRY(ir_emit_2(e->graph, OP_div, x, norm, &x));
    for (int i = 0; i < steps; i++) {
        ir_value *gram, *square, *turned, *moved;
        TRY(product(e, x, x, true, &gram));
        TRY(product(e, gram, gram, false, &square));
        TRY(mix(e, b, gram, c, square, &turned));
        TRY(product(e, turned, x, false, &moved));
        TRY(mix(e, a, x, 1, moved, &x));
    }
    *result = x;
    return DW_OK;
}

static dw_status optimizer_muon(train_emitter *e, const train_rule *rule, bool decayed, ir_value *param, ir_value *gradient) {
    static const int64_t swap[] = {1, 0};
    const double momentum = train_setting(rule, "momentum");
    int64_t rows, cols;
    ir_value *d, *buffer, *average, *looked, *step, *kept, *next;
    if (!dim_is_constant(param->type.dims[0], &rows) || !dim_is_constant(param->type.dims[1], &cols))
        return base_fail(e->graph->context, DW_UNSUPPORTED, "muon: the sizes of parameter %s are not known", param->name);
    TRY(scaled(e, param, gradient, &d));
    TRY(add_state(e, "muon.buffer.", param, &buffer));
    TRY(mix(e, momentum, buffer, 1 - momentum, d, &average));
    TRY(change(e, buffer, average));
    looked = average;
    if (train_setting(rule, "nesterov") != 0) TRY(mix(e, 1 - momentum, d, momentum, average, &looked));
    if (rows > cols) TRY(ir_emit_transpose(e->graph, looked, swap, &looked));
    TRY(orthogonalise(e, looked, (int)train_setting(rule, "steps"), &step));
    if (rows > cols) TRY(ir_emit_transpose(e->graph, step, swap, &step));
    TRY(times_value(e, step, e->rate, &step));
    const double wide = rows > cols && cols > 0 ? sqrt((double)rows / (double)cols) : 1, rms = 0.2 * sqrt((double)(rows > cols ? rows : cols));
    TRY(times(e, step, train_setting(rule, "match_rms") != 0 ? rms : wide, &step));
    TRY(decayed_by(e, param, decayed ? train_setting(rule, "decay") : 0, &kept));
    TRY(ir_emit_2(e->graph, OP_sub, kept, step, &next));
    return change(e, param, next);
}

/* ---- the rows ---- */

const train_optimizer *train_optimizer_get(int index) {
    static const train_optimizer rows[] = {
#define OPTIMIZER(name, settings, of_matrices, meaning) {#name, settings, meaning, of_matrices, optimizer_##name},
#include "train/optimizer.def"
#undef OPTIMIZER
    };
    return index >= 0 && (size_t)index < COUNT_OF(rows) ? &rows[index] : NULL;
}
