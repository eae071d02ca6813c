/* Sizes of a convolution from its call. */
#include "kernels/conv/conv.h"

static void two(const op_call *call, op_attr_id id, int axes, int64_t absent, int64_t values[2]) {
    const int64_t *given;
    op_attr_ints(call->attrs, id, &given);
    values[0] = axes == 2 ? given[0] : absent;
    values[1] = given[axes - 1];
}

void conv_shape_of(const op_call *call, conv_shape *s) {
    const dw_tensor *x = call->in[0], *weight = call->in[1], *out = call->out[0];
    int axes = x->rank - 2, last = x->rank - 1;
    *s = (conv_shape){.x = x, .weight = weight, .out = out, .bias = call->n_in > 2 ? call->in[2] : NULL};
    s->batches = x->dims[0];
    s->groups = op_attr_int(call->attrs, OP_ATTR_groups);
    s->channels = weight->dims[1];
    s->outputs = weight->dims[0] / s->groups;
    s->size[1] = x->dims[last];
    s->taps[1] = weight->dims[last];
    s->places[1] = out->dims[last];
    s->size[0] = axes == 2 ? x->dims[2] : 1;
    s->taps[0] = axes == 2 ? weight->dims[2] : 1;
    s->places[0] = axes == 2 ? out->dims[2] : 1;
    two(call, OP_ATTR_stride, axes, 1, s->stride);
    two(call, OP_ATTR_padding, axes, 0, s->padding);
    two(call, OP_ATTR_dilation, axes, 1, s->dilation);
    for (int i = 0; i < 2; i++) {
        s->x_strides[i] = x->strides[i];
        s->out_strides[i] = out->strides[i];
    }
    s->x_strides[2] = axes == 2 ? x->strides[2] : 0;
    s->x_strides[3] = x->strides[last];
    s->out_strides[2] = axes == 2 ? out->strides[2] : 0;
    s->out_strides[3] = out->strides[last];
}
