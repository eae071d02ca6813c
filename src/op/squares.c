/* sum_squares: the sum of the squares of all elements of all operands, as the norm of gradients is the root of. */
#include "op/family.h"

dw_status squares_infer(op_infer *infer) {
    infer->out->format = DW_FORMAT_f32;
    for (int i = 0; i < infer->n_in; i++) {
        TRY(op_check_number(infer, "an operand", infer->in[i]));
        TRY(op_check_float(infer, "an operand", infer->in[i]));
        if (infer->in[i]->format == DW_FORMAT_f64) infer->out->format = DW_FORMAT_f64;
    }
    return DW_OK;
}

dw_status squares_reference(const op_call *call) {
    double sum = 0;
    for (int i = 0; i < call->n_in; i++) {
        walk w;
        walk_start(&w, call->in[i]->rank, call->in[i]->dims);
        const int x = walk_add(&w, call->in[i]);
        for (; w.left > 0; walk_next(&w)) {
            const double value = op_load_at(call->in[i], w.offset[x]);
            sum += value * value;
        }
    }
    op_store_at(call->out[0], 0, sum);
    return DW_OK;
}

void squares_work(const op_call *call, op_work *work) {
    op_work_each(call, 0, work);
    for (int i = 0; i < call->n_in; i++) work->flops += 2 * (double)op_tensor_count(call->in[i]);
}
