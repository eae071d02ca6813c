/* What the host halves of mqa_logits on GPUs share: filling in arguments. Pure: knows no driver. */
#include "kernels/mqa_logits/host.h"

#include "kernels/gpu/host/host.h"

/* An operand that may be absent; -> is it there? */
static int32_t take(kernel_launch *launch, const kernel_run *run, int index, cuda_array *array, int64_t *strides) {
    const dw_tensor *x = cuda_operand(run, index);
    if (x == NULL) return 0;
    cuda_take_array(launch, run, index, array);
    for (int axis = 0; axis < x->rank; axis++) strides[axis] = x->strides[axis];
    return 1;
}

void mqa_take(kernel_launch *launch, const kernel_run *run, mqa_arguments *arguments) {
    const op_mqa_view view = op_mqa_view_of(&run->call);
    const dw_tensor *q = run->call.in[MQA_Q];
    take(launch, run, MQA_WEIGHTS, &arguments->weights, arguments->weight_strides);
    take(launch, run, KERNEL_RESULT, &arguments->out, arguments->out_strides);
    arguments->has_factor = take(launch, run, MQA_FACTOR, &arguments->factor, arguments->factor_strides);
    arguments->has_start = take(launch, run, MQA_START, &arguments->start, arguments->start_strides);
    arguments->has_end = take(launch, run, MQA_END, &arguments->end, arguments->end_strides);
    arguments->has_table = take(launch, run, MQA_TABLE, &arguments->table, arguments->table_strides);
    arguments->batches = q->dims[0];
    arguments->queries = q->dims[1];
    arguments->heads = q->dims[2];
    arguments->width = q->dims[3];
    arguments->keys = view.keys;
    arguments->page = view.page;
    arguments->pages = view.pages;
    arguments->scale = (float)view.scale;
    cuda_take_fault(launch, &arguments->fault);
}
