/* What the host halves of the gradients of attention on GPUs share: filling in arguments. Pure: knows no driver. */
#include "kernels/attention/backward_host.h"

#include "kernels/gpu/host/host.h"

/* An operand or result, and as many strides as it has axes. */
static void take(kernel_launch *launch, const kernel_run *run, int index, cuda_array *array, int64_t *strides) {
    const dw_tensor *x = kernel_operand(run, index);
    cuda_take_array(launch, run, index, array);
    for (int axis = 0; axis < x->rank; axis++) strides[axis] = x->strides[axis];
}

static void take_operands(kernel_launch *launch, const kernel_run *run, attention_backward_arguments *a) {
    take(launch, run, ATTENTION_BACKWARD_Q, &a->q, a->q_strides);
    take(launch, run, ATTENTION_BACKWARD_K, &a->k, a->k_strides);
    take(launch, run, ATTENTION_BACKWARD_V, &a->v, a->v_strides);
    take(launch, run, ATTENTION_BACKWARD_OUT, &a->out, a->out_strides);
    take(launch, run, ATTENTION_BACKWARD_LSE, &a->lse, a->lse_strides);
    take(launch, run, ATTENTION_BACKWARD_DOUT, &a->dout, a->dout_strides);
    take(launch, run, KERNEL_RESULT, &a->dq, a->dq_strides);
    take(launch, run, KERNEL_RESULT + 1, &a->dk, a->dk_strides);
    take(launch, run, KERNEL_RESULT + 2, &a->dv, a->dv_strides);
}

/* Who sees what. A window as wide as the numbers of keys and offsets may be is none. */
static void take_view(kernel_launch *launch, const kernel_run *run, const op_attention_view *view, attention_backward_arguments *a) {
    const int64_t far = INT64_C(1) << 61;
    a->causal = view->causal;
    a->window = view->window < far ? view->window : 0;
    a->ahead = view->ahead < far ? view->ahead : 0;
    a->offset = view->offset;
    a->has_mask = view->mask != NULL;
    a->has_bias = view->bias != NULL;
    if (view->mask != NULL) cuda_take_array(launch, run, ATTENTION_BACKWARD_MASK, &a->mask);
    if (view->bias != NULL) cuda_take_array(launch, run, ATTENTION_BACKWARD_BIAS, &a->bias);
    for (int axis = 0; axis < 4; axis++) {
        a->mask_strides[axis] = view->mask_strides[axis];
        a->bias_strides[axis] = view->bias_strides[axis];
    }
}

static void take_dbias(kernel_launch *launch, const kernel_run *run, attention_backward_arguments *a) {
    const dw_tensor *dbias = run->call.out[3];
    cuda_take_array(launch, run, KERNEL_RESULT + 3, &a->dbias);
    for (int axis = 0; axis < 4; axis++) {
        const int own = axis - (4 - dbias->rank);
        a->bias_dims[axis] = own < 0 ? 1 : dbias->dims[own];
        a->dbias_strides[axis] = own < 0 || dbias->dims[own] == 1 ? 0 : dbias->strides[own];
    }
}

dw_status attention_backward_take(kernel_launch *launch, const kernel_run *run, attention_backward_arguments *a) {
    const dw_tensor *q = run->call.in[ATTENTION_BACKWARD_Q], *k = run->call.in[ATTENTION_BACKWARD_K], *v = run->call.in[ATTENTION_BACKWARD_V], *in[ATTENTION_OPERANDS];
    const op_call forward = op_attention_forward(&run->call, in);
    op_attention_view view;
    TRY(op_attention_view_of(&forward, &view));
    a->batches = q->dims[0];
    a->heads = q->dims[1];
    a->groups = k->dims[1];
    a->shared_heads = q->dims[1] / k->dims[1];
    a->queries = q->dims[2];
    a->keys = k->dims[2];
    a->width = q->dims[3];
    a->value_width = v->dims[3];
    a->scale = (float)op_attr_real(run->call.attrs, OP_ATTR_scale);
    a->softcap = (float)op_attr_real(run->call.attrs, OP_ATTR_softcap);
    take_operands(launch, run, a);
    take_view(launch, run, &view, a);
    if (run->call.n_out > 3) take_dbias(launch, run, a);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &a->rows, 0);
    return DW_OK;
}

size_t attention_backward_row_bytes(const kernel_run *run) {
    const dw_tensor *q = run->call.in[ATTENTION_BACKWARD_Q];
    return base_align_up((size_t)(q->dims[0] * q->dims[1] * q->dims[2]) * sizeof(attention_backward_row), 128);
}
