/* Ops that update many tensors at once: adamw, parameters and their two moments after a step of an optimiser, and accumulate, sums of gradients. Other optimisers are graphs of other ops. */
#include "op/family.h"
#include "op/optimizer.h"

static dw_status check_scalar(op_infer *infer, const char *name, int operand) {
    const op_type *type = infer->in[operand];
    TRY(op_check_rank(infer, name, type, 0, 0));
    return infer->op->id == OP_adamw && operand == ADAMW_STEP ? op_check_integer(infer, name, type) : op_check_float(infer, name, type);
}

static dw_status check_share(op_infer *infer, op_attr_id id) {
    const double value = op_attr_real(infer->attrs, id);
    if (value >= 0 && value < 1) return DW_OK;
    return base_fail(infer->context, DW_INVALID, "%s: %s is %g, it must be at least 0 and below 1", infer->op->name, op_attr_name(id), value);
}

/* All operands of a group are there, of one shape. */
static dw_status check_update(op_infer *infer, int group, const char *const *names) {
    const int own = op_update_results(infer->op->id) + 1;
    const op_type *first = infer->in[op_update_operand(infer->op->id, group, 0)];
    for (int i = 0; i < own; i++) {
        const int operand = op_update_operand(infer->op->id, group, i);
        const op_type *type = operand < infer->n_in ? infer->in[operand] : NULL;
        if (type == NULL) return base_fail(infer->context, DW_INVALID, "%s: operand %d, %s of tensor %d, is absent and must be there", infer->op->name, operand, names[i], group);
        TRY(op_check_number(infer, names[i], type));
        TRY(op_check_float(infer, names[i], type));
        TRY(op_check_rank(infer, names[i], type, first->rank, first->rank));
        for (int axis = 0; axis < first->rank; axis++) TRY(op_check_same_axis(infer, axis, names[0], first, names[i], type));
        if (i < own - 1) infer->out[group * (own - 1) + i] = *type;
    }
    return DW_OK;
}

dw_status optimizer_infer(op_infer *infer) {
    static const char *const names[] = {"p", "m", "v", "g"};
    for (int group = 0; group < op_update_groups(OP_adamw, infer->n_in); group++) TRY(check_update(infer, group, names));
    TRY(check_scalar(infer, "rate", ADAMW_RATE));
    TRY(check_scalar(infer, "step", ADAMW_STEP));
    if (infer->n_in > ADAMW_SCALE && infer->in[ADAMW_SCALE] != NULL) TRY(check_scalar(infer, "scale", ADAMW_SCALE));
    TRY(check_share(infer, OP_ATTR_beta1));
    return check_share(infer, OP_ATTR_beta2);
}

static void step_group(const op_call *call, const adamw_step *step, int group) {
    const dw_tensor *const *before = &call->in[op_update_operand(OP_adamw, group, ADAMW_P)], *const *after = &call->out[3 * group];
    int from[4], to[3];
    walk w;
    walk_start(&w, before[0]->rank, before[0]->dims);
    for (int i = 0; i < 4; i++) from[i] = walk_add(&w, before[i]);
    for (int i = 0; i < 3; i++) to[i] = walk_add(&w, after[i]);
    for (; w.left > 0; walk_next(&w)) {
        double value[4];
        for (int i = 0; i < 4; i++) value[i] = op_load_at(before[i], w.offset[from[i]]);
        if (step->stays) {
            for (int i = 0; i < 3; i++) op_copy_at(after[i], w.offset[to[i]], before[i], w.offset[from[i]]);
            continue;
        }
        ADAMW_ELEMENT(double, sqrt, step, value[0], value[1], value[2], value[3]);
        for (int i = 0; i < 3; i++) op_store_at(after[i], w.offset[to[i]], value[i]);
    }
}

dw_status optimizer_reference(const op_call *call) {
    const dw_tensor *scale = op_operand(call, ADAMW_SCALE);
    const adamw_step step = adamw_step_of(op_attr_real(call->attrs, OP_ATTR_beta1), op_attr_real(call->attrs, OP_ATTR_beta2), op_attr_real(call->attrs, OP_ATTR_eps),
                                          op_attr_real(call->attrs, OP_ATTR_decay), op_load_at(call->in[ADAMW_RATE], 0), (double)op_load_int_at(call->in[ADAMW_STEP], 0),
                                          scale != NULL ? op_load_at(scale, 0) : 1);
    for (int group = 0; group < op_update_groups(OP_adamw, call->n_in); group++) step_group(call, &step, group);
    return DW_OK;
}

/* Elements of all that is updated. */
static double updated_elements(const op_call *call, op_id op) {
    double elements = 0;
    for (int group = 0; group < op_update_groups(op, call->n_in); group++) elements += (double)op_tensor_count(call->in[op_update_operand(op, group, 0)]);
    return elements;
}

void optimizer_work(const op_call *call, op_work *work) {
    op_work_each(call, 0, work);
    work->flops = 14 * updated_elements(call, OP_adamw);
}

/* ---- accumulate ---- */

dw_status sums_infer(op_infer *infer) {
    static const char *const names[] = {"sum", "g"};
    for (int group = 0; group < op_update_groups(OP_accumulate, infer->n_in); group++) TRY(check_update(infer, group, names));
    return check_scalar(infer, "factor", SUMS_FACTOR);
}

static void add_group(const op_call *call, double factor, int group) {
    const dw_tensor *const *own = &call->in[op_update_operand(OP_accumulate, group, SUMS_SUM)], *out = call->out[group];
    const bool wide = own[SUMS_SUM]->format == DW_FORMAT_f64;
    walk w;
    walk_start(&w, out->rank, out->dims);
    const int sum = walk_add(&w, own[SUMS_SUM]), g = walk_add(&w, own[SUMS_G]), to = walk_add(&w, out);
    for (; w.left > 0; walk_next(&w)) {
        const double share = op_load_at(own[SUMS_G], w.offset[g]) * factor, before = op_load_at(own[SUMS_SUM], w.offset[sum]);
        if (factor == 0) op_copy_at(out, w.offset[to], own[SUMS_SUM], w.offset[sum]);
        else op_store_at(out, w.offset[to], wide ? before + share : (double)((float)before + (float)share));
    }
}

dw_status sums_reference(const op_call *call) {
    const double factor = op_load_at(call->in[SUMS_FACTOR], 0);
    for (int group = 0; group < op_update_groups(OP_accumulate, call->n_in); group++) add_group(call, factor, group);
    return DW_OK;
}

void sums_work(const op_call *call, op_work *work) {
    op_work_each(call, 0, work);
    work->flops = 2 * updated_elements(call, OP_accumulate);
}
