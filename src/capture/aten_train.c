/* What models do in training alone: dropout, and losses over classes.
 *
 * A graph that draws has one more input, DW_RANDOM_DRAW: the seed, and the number of the step. Each place that draws has a site of its own, numbered in the order of the program, so
 * no two drop the same elements; the same input gives the same bits (op dropout). PyTorch's own generators are not followed. */
#include "capture/program.h"

/* ---- dropout ---- */

static dw_status draw_input(capture *capture, ir_value **draw) {
    op_type type = {.format = DW_FORMAT_i64, .rank = 1};
    if (capture->draw == NULL) {
        TRY_DIM(capture->context, type.dims[0], dim_constant(capture->graph->dims, 2));
        TRY(ir_add_input(capture->graph, DW_RANDOM_DRAW, &type, &capture->draw));
    }
    *draw = capture->draw;
    return DW_OK;
}

dw_status capture_emit_dropout(capture_call *call, ir_value *x, double p, ir_value **result) {
    ir_value *draw = NULL;
    const op_attr attrs[] = {op_set_real(OP_ATTR_probability, p), op_set_int(OP_ATTR_site, call->capture->draws++)};
    if (!(p >= 0 && p <= 1)) return capture_fail(call, DW_INVALID, "dropout with a probability of %g; it must be from 0 to 1", p);
    TRY(draw_input(call->capture, &draw));
    return ir_emit(call->graph, OP_dropout, 2, (ir_value *[]){x, draw}, COUNT_OF(attrs), attrs, result);
}

static dw_status read_dropout(capture_call *call, double *p, bool *drops) {
    TRY(capture_real_arg(call, "p", p));
    *drops = true;
    if (capture_has(call, "train")) TRY(capture_bool_arg(call, "train", drops));      /* None of native_dropout: it trains */
    *drops = *drops && *p != 0;
    return DW_OK;
}

/* In the second result, of native_dropout, is true what is kept. */
dw_status capture_rule_dropout(capture_call *call) {
    double p;
    bool drops;
    ir_value *x, *kept, *zero;
    TRY(read_dropout(call, &p, &drops));
    if (!drops && call->result_count < 2) return capture_rule_alias(call);
    TRY(capture_value_arg(call, "input", &x));
    TRY(capture_emit_fill(call->graph, x->type.rank, x->type.dims, 1, x->type.format, &kept));
    if (drops) {
        const int64_t site = call->capture->draws;
        TRY(capture_emit_dropout(call, x, p, &x));
        call->capture->draws = site;
        if (call->result_count > 1) TRY(capture_emit_dropout(call, kept, p, &kept));
        call->capture->draws = site + 1;
    }
    TRY(capture_result(call, 0, x));
    if (call->result_count < 2) return DW_OK;
    TRY(ir_emit_scalar(call->graph, kept->type.format, 0, &zero));
    TRY(ir_emit_2(call->graph, OP_ne, kept, zero, &kept));
    return capture_result(call, 1, kept);
}

/* Whole channels. */
dw_status capture_rule_feature_dropout(capture_call *call) {
    double p;
    bool drops;
    ir_value *x, *kept;
    dim dims[DW_MAX_RANK];
    TRY(read_dropout(call, &p, &drops));
    if (!drops) return capture_rule_alias(call);
    TRY(capture_value_arg(call, "input", &x));
    if (x->type.rank < 2) return capture_fail(call, DW_CORRUPT, "'input' has fewer than 2 axes");
    for (int i = 0; i < x->type.rank; i++) {
        dims[i] = x->type.dims[i];
        if (i > 1) TRY_DIM(call->capture->context, dims[i], dim_constant(call->dims, 1));
    }
    TRY(capture_emit_fill(call->graph, x->type.rank, dims, 1, x->type.format, &kept));
    TRY(capture_emit_dropout(call, kept, p, &kept));
    TRY(ir_emit_2(call->graph, OP_mul, x, kept, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_alpha_dropout(capture_call *call) {
    double p;
    bool drops;
    TRY(read_dropout(call, &p, &drops));
    if (drops) return capture_fail(call, DW_UNSUPPORTED, "alpha dropout in training; use nn.Dropout, or call .eval() before torch.export.export");
    return capture_rule_alias(call);
}

/* ---- losses over classes ---- */

enum { REDUCTION_NONE, REDUCTION_MEAN, REDUCTION_SUM };

/* logits [..,v] and what else a call says of them. */
typedef struct target {
    ir_value *logits, *labels, *weight;      /* labels [..]; weight [v], NULL: none */
    ir_value *counts;                        /* bool [..]: labels that are not ignored */
    int64_t ignore, reduction;
    double smoothing;
} target;

/* The classes, axis 1 of more than one, as the last axis. */
static dw_status classes_last(capture_call *call, ir_value *x, ir_value **result) {
    int64_t order[DW_MAX_RANK];
    const int rank = x->type.rank;
    *result = x;
    if (rank < 3) return DW_OK;
    for (int i = 0; i < rank; i++) order[i] = i == 0 ? 0 : i == rank - 1 ? 1 : i + 1;
    return ir_emit_transpose(call->graph, x, order, result);
}

static dw_status read_target(capture_call *call, target *t) {
    ir_value *ignored;
    *t = (target){0};
    TRY(capture_value_arg(call, "self", &t->logits));
    TRY(capture_value_arg(call, "target", &t->labels));
    TRY(capture_optional_arg(call, "weight", &t->weight));
    TRY(capture_int_arg(call, "reduction", &t->reduction));
    TRY(capture_int_arg(call, "ignore_index", &t->ignore));
    if (t->logits->type.rank < 1) return capture_fail(call, DW_CORRUPT, "'self' has no axis of classes");
    if (t->reduction < REDUCTION_NONE || t->reduction > REDUCTION_SUM) return capture_fail(call, DW_CORRUPT, "reduction %lld", (long long)t->reduction);
    if (capture_is_float(t->labels->type.format)) return DW_OK;
    TRY(classes_last(call, t->logits, &t->logits));
    TRY(ir_emit_scalar(call->graph, t->labels->type.format, (double)t->ignore, &ignored));
    return ir_emit_2(call->graph, OP_ne, t->labels, ignored, &t->counts);
}

static dw_format wide_of(const ir_value *x) { return dw_format_bits(x->type.format) < 32 ? DW_FORMAT_f32 : x->type.format; }

static dw_status emit_total(ir_graph *graph, ir_value *x, ir_value **result) {
    static const int64_t axes[DW_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    *result = x;
    return x->type.rank == 0 ? DW_OK : capture_emit_reduce(graph, OP_sum, x, x->type.rank, axes, false, result);
}

/* Of labels that count the number of each by weights, of others 0. */
static dw_status emit_weights(capture_call *call, const target *t, dw_format format, ir_value **result) {
    ir_value *zero, *label = t->labels;
    const op_attr axis = op_set_int(OP_ATTR_axis, 0);
    if (t->weight == NULL) return ir_emit_cast(call->graph, t->counts, format, result);
    TRY(ir_emit_scalar(call->graph, label->type.format, 0, &zero));
    TRY(ir_emit(call->graph, OP_where, 3, (ir_value *[]){t->counts, label, zero}, 0, NULL, &label));
    TRY(ir_emit(call->graph, OP_take, 2, (ir_value *[]){t->weight, label}, 1, &axis, result));
    TRY(ir_emit_cast(call->graph, *result, format, result));
    TRY(ir_emit_scalar(call->graph, format, 0, &zero));
    return ir_emit(call->graph, OP_where, 3, (ir_value *[]){t->counts, *result, zero}, 0, NULL, result);
}

/* The sum of weights: of labels that count, where there are none. */
static dw_status emit_weight_sum(capture_call *call, const target *t, dw_format format, ir_value **result) {
    ir_value *weights;
    if (t->weight != NULL) {
        TRY(emit_weights(call, t, format, &weights));
        return emit_total(call->graph, weights, result);
    }
    TRY(ir_emit_cast(call->graph, t->counts, DW_FORMAT_i64, &weights));
    TRY(emit_total(call->graph, weights, result));
    return ir_emit_cast(call->graph, *result, format, result);
}

static dw_status reduce(capture_call *call, const target *t, ir_value *loss, ir_value **result) {
    ir_value *sum;
    *result = loss;
    if (t->reduction == REDUCTION_NONE) return DW_OK;
    TRY(emit_total(call->graph, loss, result));
    if (t->reduction == REDUCTION_SUM) return DW_OK;
    TRY(emit_weight_sum(call, t, loss->type.format, &sum));
    return ir_emit_2(call->graph, OP_div, *result, sum, result);
}

static dw_status emit_cross_entropy(capture_call *call, const target *t, double smoothing, ir_value **loss) {
    op_attr attrs[2] = {op_set_int(OP_ATTR_ignore, t->ignore)};
    int count = 1;
    if (smoothing != 0) attrs[count++] = op_set_real(OP_ATTR_smoothing, smoothing);
    return ir_emit(call->graph, OP_cross_entropy, 2, (ir_value *[]){t->logits, t->labels}, count, attrs, loss);
}

/* Of each row -sum over classes of log_softmax(logits) * factors. */
static dw_status emit_against(capture_call *call, ir_value *logits, ir_value *factors, int axis, ir_value **loss) {
    const dw_format format = wide_of(logits);
    const op_attr along = op_set_int(OP_ATTR_axis, axis);
    TRY(ir_emit_cast(call->graph, logits, format, loss));
    TRY(ir_emit(call->graph, OP_log_softmax, 1, (ir_value *[]){*loss}, 1, &along, loss));
    TRY(ir_emit_cast(call->graph, factors, format, &factors));
    TRY(ir_emit_2(call->graph, OP_mul, *loss, factors, loss));
    TRY(capture_emit_reduce(call->graph, OP_sum, *loss, 1, &(int64_t){axis}, false, loss));
    return ir_emit_1(call->graph, OP_neg, *loss, loss);
}

/* With weights, the part of the smoothing is weighed by class, not by label. */
static dw_status emit_weighted(capture_call *call, const target *t, ir_value **loss) {
    ir_value *weights, *shared, *zero, *classes;
    TRY(emit_cross_entropy(call, t, 0, loss));
    TRY(emit_weights(call, t, (*loss)->type.format, &weights));
    TRY(ir_emit_2(call->graph, OP_mul, *loss, weights, loss));
    if (t->smoothing == 0) return DW_OK;
    TRY(emit_against(call, t->logits, t->weight, t->logits->type.rank - 1, &shared));
    TRY(ir_emit_scalar(call->graph, shared->type.format, 0, &zero));
    TRY(ir_emit(call->graph, OP_where, 3, (ir_value *[]){t->counts, shared, zero}, 0, NULL, &shared));
    TRY(ir_emit_size(call->graph, t->logits->type.dims[t->logits->type.rank - 1], &classes));
    TRY(ir_emit_cast(call->graph, classes, shared->type.format, &classes));
    TRY(capture_emit_number(call->graph, OP_mul, shared, t->smoothing, &shared));
    TRY(ir_emit_2(call->graph, OP_div, shared, classes, &shared));
    TRY(capture_emit_number(call->graph, OP_mul, *loss, 1 - t->smoothing, loss));
    return ir_emit_2(call->graph, OP_add, *loss, shared, loss);
}

/* Targets that are probabilities, of the shape of logits; the mean is that over rows. */
static dw_status emit_probabilities(capture_call *call, const target *t, ir_value **loss) {
    const int axis = t->logits->type.rank > 1 ? 1 : 0;
    ir_value *factors, *classes, *weight = t->weight, *rows;
    dim dims[DW_MAX_RANK], one, elements;
    TRY(ir_emit_cast(call->graph, t->labels, wide_of(t->logits), &factors));
    if (t->smoothing != 0) {
        TRY(ir_emit_size(call->graph, t->logits->type.dims[axis], &classes));
        TRY(ir_emit_cast(call->graph, classes, factors->type.format, &classes));
        TRY(ir_emit_1(call->graph, OP_reciprocal, classes, &classes));
        TRY(capture_emit_number(call->graph, OP_mul, classes, t->smoothing, &classes));
        TRY(capture_emit_number(call->graph, OP_mul, factors, 1 - t->smoothing, &factors));
        TRY(ir_emit_2(call->graph, OP_add, factors, classes, &factors));
    }
    if (weight != NULL) {
        TRY_DIM(call->capture->context, one, dim_constant(call->dims, 1));
        for (int i = axis; i < t->logits->type.rank; i++) dims[i - axis] = i == axis ? weight->type.dims[0] : one;
        TRY(ir_emit_cast(call->graph, weight, factors->type.format, &weight));
        TRY(ir_emit_reshape(call->graph, weight, t->logits->type.rank - axis, dims, &weight));
        TRY(ir_emit_2(call->graph, OP_mul, factors, weight, &factors));
    }
    TRY(emit_against(call, t->logits, factors, axis, loss));
    if (t->reduction == REDUCTION_NONE) return DW_OK;
    TRY_DIM(call->capture->context, elements, dim_product(call->dims, (*loss)->type.dims, (*loss)->type.rank));
    TRY(emit_total(call->graph, *loss, loss));
    if (t->reduction == REDUCTION_SUM) return DW_OK;
    TRY(ir_emit_size(call->graph, elements, &rows));
    TRY(ir_emit_cast(call->graph, rows, (*loss)->type.format, &rows));
    return ir_emit_2(call->graph, OP_div, *loss, rows, loss);
}

dw_status capture_rule_cross_entropy(capture_call *call) {
    target t;
    ir_value *loss;
    TRY(read_target(call, &t));
    TRY(capture_real_arg(call, "label_smoothing", &t.smoothing));
    if (t.counts == NULL) {
        TRY(emit_probabilities(call, &t, &loss));
        return capture_result(call, 0, loss);
    }
    if (t.weight != NULL) TRY(emit_weighted(call, &t, &loss));
    else TRY(emit_cross_entropy(call, &t, t.smoothing, &loss));
    TRY(reduce(call, &t, loss, &loss));
    return capture_result(call, 0, loss);
}

/* Of logarithms of probabilities. Where they are a log_softmax over the classes, it is the cross entropy of its operand. */
static dw_status emit_picked(capture_call *call, target *t, ir_value **loss) {
    const ir_node *node = ir_def(t->logits, OP_log_softmax);
    const int last = t->logits->type.rank - 1;
    const op_attr axis = op_set_int(OP_ATTR_axis, last);
    ir_value *label, *weights, *zero;
    if (node != NULL && ir_int(node, OP_ATTR_axis) == last) {
        t->logits = ir_in(node, 0);
        return emit_weighted(call, t, loss);
    }
    TRY(ir_emit_scalar(call->graph, t->labels->type.format, 0, &zero));
    TRY(ir_emit(call->graph, OP_where, 3, (ir_value *[]){t->counts, t->labels, zero}, 0, NULL, &label));
    TRY(capture_emit_unsqueeze(call->graph, label, last, &label));
    TRY(ir_emit(call->graph, OP_gather, 2, (ir_value *[]){t->logits, label}, 1, &axis, loss));
    TRY(capture_emit_squeeze(call->graph, *loss, last, loss));
    TRY(ir_emit_cast(call->graph, *loss, wide_of(t->logits), loss));
    TRY(ir_emit_1(call->graph, OP_neg, *loss, loss));
    TRY(emit_weights(call, t, (*loss)->type.format, &weights));
    TRY(ir_emit_2(call->graph, OP_mul, *loss, weights, loss));
    TRY(ir_emit_scalar(call->graph, (*loss)->type.format, 0, &zero));
    return ir_emit(call->graph, OP_where, 3, (ir_value *[]){t->counts, *loss, zero}, 0, NULL, loss);
}

/* The second result of nll_loss_forward is the sum of the weights. */
dw_status capture_rule_nll_loss(capture_call *call) {
    target t;
    ir_value *loss, *sum;
    TRY(read_target(call, &t));
    if (t.counts == NULL) return capture_fail(call, DW_CORRUPT, "'target' has no integers");
    TRY(emit_picked(call, &t, &loss));
    TRY(reduce(call, &t, loss, &loss));
    TRY(capture_result(call, 0, loss));
    if (call->result_count < 2) return DW_OK;
    TRY(emit_weight_sum(call, &t, wide_of(loss), &sum));
    return capture_result(call, 1, sum);
}
