/* What touching tensors costs, for the work models of the families. Knows no op. */
#include "op/family.h"

/* Where an axis has stride 0, all of it is one place. */
double op_tensor_bytes(const dw_tensor *tensor) {
    num_parts parts;
    int64_t dims[DW_MAX_RANK];
    for (int i = 0; i < tensor->rank; i++) dims[i] = tensor->dims[i] > 1 && tensor->strides[i] == 0 && !dw_format_is_block(tensor->format) ? 1 : tensor->dims[i];
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, dims, &parts)) return 0;
    return (double)parts.data_bytes + (double)parts.scale_bytes + (double)parts.second_bytes;
}

/* Is the operand one of those before it? */
static bool is_repeated(const op_call *call, int operand) {
    for (int i = 0; i < operand; i++)
        if (call->in[i] == call->in[operand]) return true;
    return false;
}

double op_bytes_read(const op_call *call, const op_work *work, int operand) {
    if (call->in[operand] == NULL || is_repeated(call, operand)) return 0;
    return op_tensor_bytes(call->in[operand]) - (operand < OP_WORK_OPERANDS ? work->unread[operand] : 0);
}

void op_work_each(const op_call *call, double flops, op_work *work) {
    *work = (op_work){0};
    for (int i = 0; i < call->n_in; i++) work->bytes_read += op_bytes_read(call, work, i);
    for (int i = 0; i < call->n_out; i++) work->bytes_written += op_tensor_bytes(call->out[i]);
    work->flops = flops * (double)op_tensor_count(call->out[0]);
}

void op_work_reads(const op_call *call, int operand, double bytes, op_work *work) {
    const double before = op_bytes_read(call, work, operand);
    if (bytes >= before) return;
    work->unread[operand] += before - bytes;
    work->bytes_read -= before - bytes;
}
