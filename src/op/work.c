/* What touching tensors costs, for the work models of the families. Knows no op. */
#include "op/family.h"

double op_tensor_bytes(const dw_tensor *tensor) {
    num_parts parts;
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts)) return 0;
    return (double)parts.data_bytes + (double)parts.scale_bytes + (double)parts.second_bytes;
}

void op_work_each(const op_call *call, double flops, op_work *work) {
    *work = (op_work){0};
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] != NULL) work->bytes_read += op_tensor_bytes(call->in[i]);
    for (int i = 0; i < call->n_out; i++) work->bytes_written += op_tensor_bytes(call->out[i]);
    work->flops = flops * (double)op_tensor_count(call->out[0]);
}
