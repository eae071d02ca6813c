/* A convolution whose windows lie side by side, as of patch embeddings: each element of the input is in one window, so it is a product of patches with the weight.
 *
 *     %1 = conv x [2,3,32,48], w [64,3,16,16], c {stride=[16,16]}       %1 = reshape x [2,3,2,16,3,16]; %2 = transpose %1 {order=[0,2,4,1,3,5]}
 *                                                                 ->    %3 = reshape %2 [2,6,768]; %4 = reshape w [64,768]
 *                                                                       %5 = matmul %3, %4, c {bt=true,post="bias"}
 *                                                                       %6 = transpose %5 {order=[0,2,1]}; %7 = reshape %6 [2,64,2,3]
 *
 * Sums are the same, in the same order. The product keeps the role of a convolution, so policies leave it as they leave others. */
#include "pass/fuse/fuse.h"

enum { AXES_MAX = 2 };

/* The windows of each spatial axis; false: they do not lie side by side, or are not known to. */
static bool find_windows(ir_graph *graph, const ir_node *conv, dim *windows) {
    const int64_t *stride, *padding, *dilation;
    const op_type *x = &ir_in(conv, 0)->type, *weight = &ir_in(conv, 1)->type;
    const int axes = op_attr_ints(&conv->attrs, OP_ATTR_stride, &stride);
    op_attr_ints(&conv->attrs, OP_ATTR_padding, &padding);
    op_attr_ints(&conv->attrs, OP_ATTR_dilation, &dilation);
    for (int i = 0; i < axes; i++) {
        int64_t taps, size;
        if (!dim_is_constant(weight->dims[2 + i], &taps) || taps != stride[i] || padding[i] != 0 || (dilation[i] != 1 && taps != 1)) return false;
        windows[i] = dim_is_constant(x->dims[2 + i], &size) ? dim_constant(graph->dims, size / taps) : dim_divide_exact(graph->dims, x->dims[2 + i], weight->dims[2 + i]);
        if (windows[i] == NULL) return false;
    }
    return true;
}

/* What lies behind the last whole window goes. */
static dw_status cut_rest(ir_graph *graph, ir_value *x, const op_type *weight, const dim *windows, ir_value **whole) {
    *whole = x;
    for (int i = 2; i < weight->rank; i++) {
        dim start, end;
        TRY_DIM(graph->context, start, dim_constant(graph->dims, 0));
        TRY_DIM(graph->context, end, dim_mul(graph->dims, windows[i - 2], weight->dims[i]));
        if (end != x->type.dims[i]) TRY(ir_emit_slice(graph, *whole, i, start, end, 1, whole));
    }
    return DW_OK;
}

/* x [b,c,n*k..] as patches [b,n..,c*k..], the axes n as one. */
static dw_status emit_patches(ir_graph *graph, const ir_node *conv, ir_value *x, const dim *windows, ir_value **patches) {
    const op_type *weight = &ir_in(conv, 1)->type;
    const int axes = weight->rank - 2;
    dim split[2 + 2 * AXES_MAX] = {x->type.dims[0], x->type.dims[1]}, flat[3] = {x->type.dims[0]};
    int64_t order[2 + 2 * AXES_MAX] = {0};
    order[1 + axes] = 1;
    for (int i = 0; i < axes; i++) {
        split[2 + 2 * i] = windows[i];
        split[3 + 2 * i] = weight->dims[2 + i];
        order[1 + i] = 2 + 2 * i;
        order[2 + axes + i] = 3 + 2 * i;
    }
    TRY_DIM(graph->context, flat[1], dim_product(graph->dims, windows, axes));
    TRY_DIM(graph->context, flat[2], dim_product(graph->dims, weight->dims + 1, 1 + axes));
    TRY(ir_emit_reshape(graph, x, 2 + 2 * axes, split, &x));
    TRY(ir_emit_transpose(graph, x, order, &x));
    return ir_emit_reshape(graph, x, 3, flat, patches);
}

dw_status fuse_patches(ir_graph *graph, ir_node *node, bool *changed) {
    dim windows[AXES_MAX], flat[2];
    ir_value *x, *in[3];
    if (node->op != OP_conv || ir_int(node, OP_ATTR_groups) != 1 || ir_in(node, 0)->type.format == DW_FORMAT_f64) return DW_OK;
    if (!ir_is_weight(ir_in(node, 1)) || ir_is_weight(ir_in(node, 0)) || !find_windows(graph, node, windows)) return DW_OK;
    const bool has_bias = node->n_in == 3 && ir_in(node, 2) != NULL;
    const op_attr attrs[] = {op_set_bool(OP_ATTR_bt, true), op_set_text(OP_ATTR_post, "bias")};
    fuse_cursor(graph, node, node);
    TRY(cut_rest(graph, ir_in(node, 0), &ir_in(node, 1)->type, windows, &x));
    TRY(emit_patches(graph, node, x, windows, &in[0]));
    flat[0] = ir_in(node, 1)->type.dims[0];
    flat[1] = in[0]->type.dims[2];
    TRY(ir_emit_reshape(graph, ir_in(node, 1), 2, flat, &in[1]));
    in[2] = has_bias ? ir_in(node, 2) : NULL;
    graph->origin.role = "convolution";
    TRY(ir_emit(graph, OP_matmul, has_bias ? 3 : 2, in, has_bias ? 2 : 1, attrs, &x));
    graph->origin.role = node->origin.role;
    TRY(ir_emit_transpose(graph, x, (int64_t[]){0, 2, 1}, &x));
    TRY(ir_emit_reshape(graph, x, ir_out(node)->type.rank, ir_out(node)->type.dims, &x));
    return fuse_replace(graph, ir_out(node), x, changed);
}
