/* adamw: a parameter and its two moments after a step of an optimiser. Other optimisers are graphs of other ops. */
#include "op/family.h"
#include "op/optimizer.h"

static dw_status check_scalar(op_infer *infer, const char *name, int operand) {
    const op_type *type = infer->in[operand];
    TRY(op_check_rank(infer, name, type, 0, 0));
    return operand == ADAMW_STEP ? op_check_integer(infer, name, type) : op_check_float(infer, name, type);
}

static dw_status check_share(op_infer *infer, op_attr_id id) {
    const double value = op_attr_real(infer->attrs, id);
    if (value >= 0 && value < 1) return DW_OK;
    return base_fail(infer->context, DW_INVALID, "%s: %s is %g, it must be at least 0 and below 1", infer->op->name, op_attr_name(id), value);
}

dw_status optimizer_infer(op_infer *infer) {
    static const char *const names[] = {"p", "m", "v", "g"};
    const op_type *p = infer->in[ADAMW_P];
    for (int i = ADAMW_P; i <= ADAMW_G; i++) {
        const op_type *type = infer->in[i];
        TRY(op_check_number(infer, names[i], type));
        TRY(op_check_float(infer, names[i], type));
        TRY(op_check_rank(infer, names[i], type, p->rank, p->rank));
        for (int axis = 0; axis < p->rank; axis++) TRY(op_check_same_axis(infer, axis, names[0], p, names[i], type));
        if (i < infer->n_out) infer->out[i] = *type;
    }
    TRY(check_scalar(infer, "rate", ADAMW_RATE));
    TRY(check_scalar(infer, "step", ADAMW_STEP));
    if (infer->n_in > ADAMW_SCALE && infer->in[ADAMW_SCALE] != NULL) TRY(check_scalar(infer, "scale", ADAMW_SCALE));
    TRY(check_share(infer, OP_ATTR_beta1));
    return check_share(infer, OP_ATTR_beta2);
}

dw_status optimizer_reference(const op_call *call) {
    const dw_tensor *p = call->in[ADAMW_P], *scale = op_operand(call, ADAMW_SCALE);
    const adamw_step step = adamw_step_of(op_attr_real(call->attrs, OP_ATTR_beta1), op_attr_real(call->attrs, OP_ATTR_beta2), op_attr_real(call->attrs, OP_ATTR_eps),
                                          op_attr_real(call->attrs, OP_ATTR_decay), op_load_at(call->in[ADAMW_RATE], 0), (double)op_load_int_at(call->in[ADAMW_STEP], 0),
                                          scale != NULL ? op_load_at(scale, 0) : 1);
    int from[4], to[3];
    walk w;
    walk_start(&w, p->rank, p->dims);
    for (int i = 0; i < 4; i++) from[i] = walk_add(&w, call->in[ADAMW_P + i]);
    for (int i = 0; i < 3; i++) to[i] = walk_add(&w, call->out[i]);
    for (; w.left > 0; walk_next(&w)) {
        double value[4];
        for (int i = 0; i < 4; i++) value[i] = op_load_at(call->in[ADAMW_P + i], w.offset[from[i]]);
        if (step.stays) {
            for (int i = 0; i < 3; i++) op_copy_at(call->out[i], w.offset[to[i]], call->in[ADAMW_P + i], w.offset[from[i]]);
            continue;
        }
        ADAMW_ELEMENT(double, sqrt, &step, value[0], value[1], value[2], value[3]);
        for (int i = 0; i < 3; i++) op_store_at(call->out[i], w.offset[to[i]], value[i]);
    }
    return DW_OK;
}

void optimizer_work(const op_call *call, op_work *work) { op_work_each(call, 14, work); }
