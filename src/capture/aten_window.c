/* Rules that read a tensor by computed places: strided windows, patches as columns and back, padding by the tensor itself, diagonals,
 * sampling at points. What they read they copy: a write to the copy that PyTorch would carry through is refused. */
#include <math.h>
#include <string.h>

#include "capture/program.h"

static dw_status take(ir_graph *graph, ir_value *x, ir_value *index, int axis, ir_value **result) {
    op_attr attr = op_set_int(OP_ATTR_axis, axis);
    return ir_emit(graph, OP_take, 2, (ir_value *[]){x, index}, 1, &attr, result);
}

static dw_status flatten_from(capture_call *call, ir_value *x, int axis, ir_value **result) {
    dim dims[DW_MAX_RANK];
    memcpy(dims, x->type.dims, (size_t)axis * sizeof *dims);
    TRY_DIM(call->capture->context, dims[axis], dim_product(call->dims, x->type.dims + axis, x->type.rank - axis));
    return ir_emit_reshape(call->graph, x, axis + 1, dims, result);
}

/* sum plus index * step along one axis of a tensor of that rank; sum NULL: nothing yet */
static dw_status add_index(capture_call *call, ir_value *sum, int rank, int axis, dim length, int64_t step, ir_value **result) {
    ir_value *index;
    TRY(capture_emit_index(call->graph, rank, axis, length, DW_FORMAT_i64, &index));
    if (step != 1) TRY(capture_emit_number(call->graph, OP_mul, index, (double)step, &index));
    if (sum == NULL) return *result = index, DW_OK;
    return ir_emit_2(call->graph, OP_add, sum, index, result);
}

/* ---- strides ---- */

/* Elements at offset + sum of index * stride of what lies in row-major order. */
dw_status capture_rule_as_strided(capture_call *call) {
    capture_tensor *self;
    ir_value *x, *at = NULL;
    const dim *sizes;
    int64_t strides[DW_MAX_RANK], offset = 0;
    int rank, count;
    TRY(capture_tensor_arg(call, "self", &self));
    TRY(capture_read(call->capture, self, &x));
    TRY(capture_dims_arg(call, "size", &rank, &sizes));
    TRY(capture_ints_arg(call, "stride", &count, strides));
    if (capture_has(call, "storage_offset")) TRY(capture_int_arg(call, "storage_offset", &offset));
    bool rows;
    TRY(capture_is_contiguous(call, self, &rows));
    if (rank != count || rank > DW_MAX_RANK) return capture_fail(call, DW_CORRUPT, "%d sizes and %d strides", rank, count);
    if (!rows || (self->root != self && self->view != VIEW_ALIAS && self->view != VIEW_RESHAPE)) {
        return capture_fail(call, DW_UNSUPPORTED, "strides over a tensor that is a part of another or not in row-major order");
    }
    TRY(flatten_from(call, x, 0, &x));
    for (int i = 0; i < rank; i++) TRY(add_index(call, at, rank, i, sizes[i], strides[i], &at));
    if (at == NULL) TRY(ir_emit_scalar(call->graph, DW_FORMAT_i64, 0, &at));
    if (offset != 0) TRY(capture_emit_number(call->graph, OP_add, at, (double)offset, &at));
    TRY(take(call->graph, x, at, 0, &x));
    return capture_result_copy(call, 0, x, self);
}

/* Tensor.unfold: windows along an axis, their elements on a new last axis. */
dw_status capture_rule_unfold(capture_call *call) {
    capture_tensor *self;
    ir_value *x, *at;
    int64_t size, step, order[DW_MAX_RANK];
    int axis;
    dim width, by, length;
    TRY(capture_tensor_arg(call, "self", &self));
    TRY(capture_read(call->capture, self, &x));
    TRY(capture_axis_arg(call, "dimension", x->type.rank, &axis));
    TRY(capture_int_arg(call, "size", &size));
    TRY(capture_int_arg(call, "step", &step));
    if (x->type.rank == 0 || x->type.rank == DW_MAX_RANK || step <= 0 || size < 0) return capture_fail(call, DW_UNSUPPORTED, "windows of %lld by %lld", (long long)size, (long long)step);
    TRY_DIM(call->capture->context, width, dim_constant(call->dims, size));
    TRY_DIM(call->capture->context, by, dim_constant(call->dims, step));
    TRY_DIM(call->capture->context, length, dim_sub(call->dims, x->type.dims[axis], width));
    TRY_DIM(call->capture->context, length, dim_add(call->dims, length, by));
    TRY_DIM(call->capture->context, length, dim_floordiv(call->dims, length, by));
    TRY(add_index(call, NULL, 2, 0, length, step, &at));
    TRY(add_index(call, at, 2, 1, width, 1, &at));
    TRY(take(call->graph, x, at, axis, &x));
    for (int i = 0, next = 0; i < x->type.rank; i++) {
        if (i != axis + 1) order[next++] = i;
    }
    order[x->type.rank - 1] = axis + 1;
    TRY(ir_emit_transpose(call->graph, x, order, &x));
    return capture_result_copy(call, 0, x, self);
}

/* The diagonal of two axes, on a new last axis. */
dw_status capture_rule_diagonal(capture_call *call) {
    capture_tensor *self;
    ir_value *x, *at;
    int64_t offset, sizes[2], order[DW_MAX_RANK];
    int first, second, next = 0;
    dim length;
    TRY(capture_tensor_arg(call, "self", &self));
    TRY(capture_read(call->capture, self, &x));
    TRY(capture_axis_arg(call, "dim1", x->type.rank, &first));
    TRY(capture_axis_arg(call, "dim2", x->type.rank, &second));
    TRY(capture_int_arg(call, "offset", &offset));
    bool known = dim_is_constant(x->type.dims[first], &sizes[0]) && dim_is_constant(x->type.dims[second], &sizes[1]);
    if (first == second || x->type.rank < 2) return capture_fail(call, DW_CORRUPT, "the diagonal of one axis");
    int64_t rows = known ? sizes[0] + (offset < 0 ? offset : 0) : 0, columns = known ? sizes[1] - (offset > 0 ? offset : 0) : 0;
    if (known) {
        TRY_DIM(call->capture->context, length, dim_constant(call->dims, rows < columns ? (rows > 0 ? rows : 0) : columns > 0 ? columns : 0));
    } else if (x->type.dims[first] == x->type.dims[second] && offset == 0) {
        length = x->type.dims[first];
    } else {
        return capture_fail(call, DW_UNSUPPORTED, "the diagonal of axes of dynamic size that differ");
    }
    for (int i = 0; i < x->type.rank; i++) {
        if (i != first && i != second) order[next++] = i;
    }
    order[next++] = first;
    order[next] = second;
    TRY(ir_emit_transpose(call->graph, x, order, &x));
    ir_value *in[3] = {x};
    for (int i = 0; i < 2; i++) {
        TRY(add_index(call, NULL, 1, 0, length, 1, &at));
        const int64_t start = i == 0 ? (offset < 0 ? -offset : 0) : offset > 0 ? offset : 0;
        if (start != 0) TRY(capture_emit_number(call->graph, OP_add, at, (double)start, &at));
        in[i + 1] = at;
    }
    op_attr attr = op_set_int(OP_ATTR_axis, x->type.rank - 2);
    TRY(ir_emit(call->graph, OP_index, 3, in, 1, &attr, &x));
    return capture_result_copy(call, 0, x, self);
}

/* ---- patches ---- */

typedef struct patches { int64_t taps[2], dilation[2], padding[2], stride[2]; dim counts[2]; } patches;

static dw_status read_patches(capture_call *call, dim height, dim width, patches *p) {
    const dim sizes[2] = {height, width};
    TRY(capture_spatial_arg(call, "kernel_size", 2, 1, p->taps));
    TRY(capture_spatial_arg(call, "dilation", 2, 1, p->dilation));
    TRY(capture_spatial_arg(call, "padding", 2, 0, p->padding));
    TRY(capture_spatial_arg(call, "stride", 2, 1, p->stride));
    for (int i = 0; i < 2; i++) {
        dim term;
        bool sane = p->taps[i] >= 1 && p->dilation[i] >= 1 && p->padding[i] >= 0 && p->stride[i] >= 1 && p->taps[i] < 1 << 20 && p->dilation[i] < 1 << 20 &&
                    p->padding[i] < 1 << 20 && p->stride[i] < 1 << 20;
        if (!sane) return capture_fail(call, DW_CORRUPT, "windows of %lld by %lld", (long long)p->taps[i], (long long)p->stride[i]);
        TRY_DIM(call->capture->context, term, dim_constant(call->dims, 2 * p->padding[i] - p->dilation[i] * (p->taps[i] - 1) - 1 + p->stride[i]));
        TRY_DIM(call->capture->context, p->counts[i], dim_add(call->dims, sizes[i], term));
        TRY_DIM(call->capture->context, term, dim_constant(call->dims, p->stride[i]));
        TRY_DIM(call->capture->context, p->counts[i], dim_floordiv(call->dims, p->counts[i], term));
    }
    return DW_OK;
}

/* Along one axis: [taps, counts], the place of each tap of each window. */
static dw_status tap_places(capture_call *call, const patches *p, int i, ir_value **result) {
    dim taps;
    ir_value *at;
    TRY_DIM(call->capture->context, taps, dim_constant(call->dims, p->taps[i]));
    TRY(add_index(call, NULL, 2, 0, taps, p->dilation[i], &at));
    return add_index(call, at, 2, 1, p->counts[i], p->stride[i], result);
}

/* [b,c,h,w] -> [b, c * taps, windows]; without a batch likewise */
dw_status capture_rule_im2col(capture_call *call) {
    ir_value *x, *at;
    patches p;
    TRY(capture_value_arg(call, "self", &x));
    bool single = x->type.rank == 3;
    if (single) TRY(capture_emit_unsqueeze(call->graph, x, 0, &x));
    if (x->type.rank != 4) return capture_fail(call, DW_CORRUPT, "an input with %d axes", x->type.rank);
    TRY(read_patches(call, x->type.dims[2], x->type.dims[3], &p));
    TRY(capture_emit_pad(call->graph, x, (int64_t[]){0, 0, p.padding[0], p.padding[1]}, (int64_t[]){0, 0, p.padding[0], p.padding[1]}, 0, &x));
    TRY(tap_places(call, &p, 1, &at));
    TRY(take(call->graph, x, at, 3, &x));                                       /* [b,c,h,kw,nw] */
    TRY(tap_places(call, &p, 0, &at));
    TRY(take(call->graph, x, at, 2, &x));                                       /* [b,c,kh,nh,kw,nw] */
    TRY(ir_emit_transpose(call->graph, x, (int64_t[]){0, 1, 2, 4, 3, 5}, &x));
    dim dims[3] = {x->type.dims[0]};
    TRY_DIM(call->capture->context, dims[1], dim_product(call->dims, x->type.dims + 1, 3));
    TRY_DIM(call->capture->context, dims[2], dim_product(call->dims, x->type.dims + 4, 2));
    TRY(ir_emit_reshape(call->graph, x, 3, dims, &x));
    if (single) TRY(capture_emit_squeeze(call->graph, x, 0, &x));
    return capture_result(call, 0, x);
}

/* The way back: each element is the sum of the taps that lie on it. Windows side by side only move. */
dw_status capture_rule_col2im(capture_call *call) {
    ir_value *x, *zeros, *rows, *columns;
    const dim *size;
    patches p;
    int count;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_dims_arg(call, "output_size", &count, &size));
    bool single = x->type.rank == 2;
    if (single) TRY(capture_emit_unsqueeze(call->graph, x, 0, &x));
    if (x->type.rank != 3 || count != 2) return capture_fail(call, DW_CORRUPT, "an input with %d axes", x->type.rank);
    TRY(read_patches(call, size[0], size[1], &p));
    dim dims[6] = {x->type.dims[0]}, taps;
    TRY_DIM(call->capture->context, taps, dim_constant(call->dims, p.taps[0] * p.taps[1]));
    dims[1] = dim_divide_exact(call->dims, x->type.dims[1], taps);
    if (dims[1] == NULL) return capture_fail(call, DW_CORRUPT, "channels that the window does not divide");
    for (int i = 0; i < 2; i++) {
        TRY_DIM(call->capture->context, dims[2 + i], dim_constant(call->dims, p.taps[i]));
        dims[4 + i] = p.counts[i];
    }
    TRY(ir_emit_reshape(call->graph, x, 6, dims, &x));                          /* [b,c,kh,kw,nh,nw] */
    dim out[4] = {dims[0], dims[1], size[0], size[1]}, more;
    bool tiles = true;
    for (int i = 0; i < 2; i++) tiles = tiles && p.padding[i] == 0 && p.dilation[i] == 1 && p.stride[i] == p.taps[i];
    for (int i = 0; tiles && i < 2; i++) {
        TRY_DIM(call->capture->context, more, dim_mul(call->dims, dims[2 + i], dims[4 + i]));
        tiles = more == size[i];
    }
    TRY(ir_emit_transpose(call->graph, x, tiles ? (int64_t[]){0, 1, 4, 2, 5, 3} : (int64_t[]){0, 1, 2, 4, 3, 5}, &x));
    if (!tiles) {
        for (int i = 0; i < 2; i++) {
            TRY_DIM(call->capture->context, more, dim_constant(call->dims, 2 * p.padding[i]));
            TRY_DIM(call->capture->context, out[2 + i], dim_add(call->dims, size[i], more));
        }
        TRY(capture_emit_fill(call->graph, 4, out, 0, x->type.format, &zeros));
        TRY(tap_places(call, &p, 0, &rows));
        TRY(tap_places(call, &p, 1, &columns));
        for (int i = 0; i < 2; i++) TRY(capture_emit_unsqueeze(call->graph, rows, rows->type.rank, &rows));      /* [kh,nh,1,1] */
        op_attr attrs[] = {op_set_int(OP_ATTR_axis, 2), op_set_bool(OP_ATTR_accumulate, true)};
        TRY(ir_emit(call->graph, OP_index_put, 4, (ir_value *[]){zeros, x, rows, columns}, COUNT_OF(attrs), attrs, &x));
        const int64_t cut[4] = {0, 0, -p.padding[0], -p.padding[1]};
        TRY(capture_emit_pad(call->graph, x, cut, cut, 0, &x));
    } else {
        TRY(ir_emit_reshape(call->graph, x, 4, out, &x));
    }
    if (single) TRY(capture_emit_squeeze(call->graph, x, 0, &x));
    return capture_result(call, 0, x);
}

/* [.., c*r*r, h, w] <-> [.., c, h*r, w*r] */
dw_status capture_rule_pixel_shuffle(capture_call *call) {
    ir_value *x;
    bool back = strstr(call->row->target, "unshuffle") != NULL;
    int64_t r;
    dim by, dims[6], batch;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_int_arg(call, back ? "downscale_factor" : "upscale_factor", &r));
    op_type type = x->type;
    int rank = type.rank;
    if (rank < 3 || r < 1 || r > 1 << 20) return capture_fail(call, DW_CORRUPT, "an input with %d axes", rank);
    TRY_DIM(call->capture->context, batch, dim_product(call->dims, type.dims, rank - 3));
    TRY_DIM(call->capture->context, by, dim_constant(call->dims, r));
    const dim c = type.dims[rank - 3], h = type.dims[rank - 2], w = type.dims[rank - 1];
    if (back) {
        dim parts[6] = {batch, c, dim_divide_exact(call->dims, h, by), by, dim_divide_exact(call->dims, w, by), by};
        memcpy(dims, parts, sizeof dims);
    } else {
        dim less = dim_divide_exact(call->dims, c, by);
        dim parts[6] = {batch, less == NULL ? NULL : dim_divide_exact(call->dims, less, by), by, by, h, w};
        memcpy(dims, parts, sizeof dims);
    }
    for (int i = 0; i < 6; i++) {
        if (dims[i] == NULL) return capture_fail(call, DW_UNSUPPORTED, "a factor of %lld that does not divide the sizes", (long long)r);
    }
    TRY(ir_emit_reshape(call->graph, x, 6, dims, &x));
    TRY(ir_emit_transpose(call->graph, x, back ? (int64_t[]){0, 1, 3, 5, 2, 4} : (int64_t[]){0, 1, 4, 2, 5, 3}, &x));
    const dim *d = x->type.dims;
    if (back) {
        TRY_DIM(call->capture->context, type.dims[rank - 3], dim_product(call->dims, d + 1, 3));
        type.dims[rank - 2] = d[4];
        type.dims[rank - 1] = d[5];
    } else {
        type.dims[rank - 3] = d[1];
        TRY_DIM(call->capture->context, type.dims[rank - 2], dim_mul(call->dims, d[2], d[3]));
        TRY_DIM(call->capture->context, type.dims[rank - 1], dim_mul(call->dims, d[4], d[5]));
    }
    TRY(ir_emit_reshape(call->graph, x, rank, type.dims, &x));
    return capture_result(call, 0, x);
}

/* ---- padding by the tensor itself ---- */

typedef enum fill_mode { FILL_REFLECT, FILL_REPLICATE, FILL_CIRCULAR } fill_mode;

/* Index i - before of an axis of n elements, brought back into it: n - 1 - |n - 1 - |i||, or clamped, or modulo n. */
static dw_status pad_axis(capture_call *call, ir_value *x, int axis, dim before, dim after, fill_mode mode, ir_value **result) {
    dim length, zero, one, last, start;
    ir_value *at, *end;
    TRY_DIM(call->capture->context, zero, dim_constant(call->dims, 0));
    TRY_DIM(call->capture->context, one, dim_constant(call->dims, 1));
    *result = x;
    if (before == zero && after == zero) return DW_OK;
    TRY_DIM(call->capture->context, length, dim_add(call->dims, x->type.dims[axis], before));
    TRY_DIM(call->capture->context, length, dim_add(call->dims, length, after));
    TRY_DIM(call->capture->context, start, dim_sub(call->dims, zero, before));
    TRY_DIM(call->capture->context, last, dim_sub(call->dims, x->type.dims[axis], one));
    op_attr attrs[] = {op_set_dim(OP_ATTR_length, length), op_set_dim(OP_ATTR_start, start), op_set_int(OP_ATTR_step, 1), op_set_format(OP_ATTR_to, DW_FORMAT_i64)};
    TRY(ir_emit(call->graph, OP_iota, 0, NULL, COUNT_OF(attrs), attrs, &at));
    TRY(ir_emit_size(call->graph, mode == FILL_CIRCULAR ? x->type.dims[axis] : last, &end));
    if (mode == FILL_REFLECT) {
        for (int i = 0; i < 2; i++) {
            TRY(ir_emit_1(call->graph, OP_abs, at, &at));
            TRY(ir_emit_2(call->graph, OP_sub, end, at, &at));
        }
    } else if (mode == FILL_REPLICATE) {
        TRY(capture_emit_number(call->graph, OP_maximum, at, 0, &at));
        TRY(ir_emit_2(call->graph, OP_minimum, at, end, &at));
    } else {
        TRY(ir_emit_2(call->graph, OP_remainder, at, end, &at));
    }
    return take(call->graph, x, at, axis, result);
}

static dw_status pad_all(capture_call *call, const char *name, fill_mode mode) {
    ir_value *x;
    const dim *pairs;
    int count;
    TRY(capture_value_arg(call, "self", &x));
    TRY(capture_dims_arg(call, name, &count, &pairs));
    if (count % 2 != 0 || count / 2 > x->type.rank) return capture_fail(call, DW_CORRUPT, "%d numbers for %d axes", count, x->type.rank);
    for (int i = 0; i < count / 2; i++) TRY(pad_axis(call, x, x->type.rank - 1 - i, pairs[2 * i], pairs[2 * i + 1], mode, &x));
    return capture_result(call, 0, x);
}

dw_status capture_rule_pad_itself(capture_call *call) {
    return pad_all(call, "padding", strstr(call->row->target, "reflection") != NULL ? FILL_REFLECT : FILL_REPLICATE);
}

dw_status capture_pad_by_mode(capture_call *call, const char *mode) {
    static const struct { const char *name; fill_mode mode; } modes[] = {{"reflect", FILL_REFLECT}, {"replicate", FILL_REPLICATE}, {"circular", FILL_CIRCULAR}};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        if (strcmp(modes[i].name, mode) == 0) return pad_all(call, "pad", modes[i].mode);
    }
    return capture_fail(call, DW_UNSUPPORTED, "mode '%.20s'", mode);
}

/* ---- sampling ---- */

/* Coordinates of -1 to 1 as places on an axis of size elements. */
static dw_status unnormalise(capture_call *call, ir_value *grid, int which, dim size, bool corners, ir_value **result) {
    dim start, end;
    ir_value *n, *x;
    const int axis = grid->type.rank - 1;
    TRY_DIM(call->capture->context, start, dim_constant(call->dims, which));
    TRY_DIM(call->capture->context, end, dim_constant(call->dims, which + 1));
    TRY(ir_emit_slice(call->graph, grid, axis, start, end, 1, &x));
    TRY(capture_emit_squeeze(call->graph, x, axis, &x));                        /* [b,m,n] */
    TRY(ir_emit_size(call->graph, size, &n));
    TRY(ir_emit_cast(call->graph, n, x->type.format, &n));
    if (corners) TRY(capture_emit_number(call->graph, OP_sub, n, 1, &n));
    TRY(capture_emit_number(call->graph, OP_add, x, 1, &x));
    TRY(ir_emit_2(call->graph, OP_mul, x, n, &x));
    if (!corners) TRY(capture_emit_number(call->graph, OP_sub, x, 1, &x));
    return capture_emit_number(call->graph, OP_mul, x, 0.5, result);
}

/* The place as an index that lies on the axis, and the share of it that counts: 0 outside where what is outside is zero. */
static dw_status on_axis(capture_call *call, ir_value *place, dim size, bool zeros, ir_value **index, ir_value **share) {
    ir_value *last, *inside;
    dim one, end;
    TRY_DIM(call->capture->context, one, dim_constant(call->dims, 1));
    TRY_DIM(call->capture->context, end, dim_sub(call->dims, size, one));
    TRY(ir_emit_size(call->graph, end, &last));
    TRY(ir_emit_cast(call->graph, last, place->type.format, &last));
    TRY(capture_emit_number(call->graph, OP_maximum, place, 0, index));
    TRY(ir_emit_2(call->graph, OP_minimum, *index, last, index));
    if (zeros) {
        TRY(ir_emit_2(call->graph, OP_eq, *index, place, &inside));
        TRY(ir_emit_cast(call->graph, inside, (*share)->type.format, &inside));
        TRY(ir_emit_2(call->graph, OP_mul, *share, inside, share));
    }
    return ir_emit_cast(call->graph, *index, DW_FORMAT_i64, index);
}

/* Elements of x [b,c,h*w] at row * width + column, each [b,m,n]: [b,c,m*n]. */
static dw_status sample(capture_call *call, ir_value *x, ir_value *row, ir_value *column, dim width, ir_value **result) {
    ir_value *w;
    TRY(ir_emit_size(call->graph, width, &w));
    TRY(ir_emit_2(call->graph, OP_mul, row, w, &row));
    TRY(ir_emit_2(call->graph, OP_add, row, column, &row));
    TRY(flatten_from(call, row, 1, &row));
    TRY(capture_emit_unsqueeze(call->graph, row, 1, &row));
    dim dims[3] = {x->type.dims[0], x->type.dims[1], row->type.dims[2]};
    TRY(ir_emit_broadcast(call->graph, row, 3, dims, &row));
    op_attr attr = op_set_int(OP_ATTR_axis, 2);
    return ir_emit(call->graph, OP_gather, 2, (ir_value *[]){x, row}, 1, &attr, result);
}

enum { SAMPLE_BILINEAR, SAMPLE_NEAREST, OUTSIDE_ZEROS = 0, OUTSIDE_BORDER };

/* x [b,c,h,w] at the points of grid [b,m,n,2] (width first): nearest, or the weighted four around each. */
dw_status capture_rule_grid_sample(capture_call *call) {
    ir_value *x, *grid, *place[2], *low[2], *sum = NULL;
    int64_t mode, outside;
    bool corners;
    TRY(capture_value_arg(call, "input", &x));
    TRY(capture_value_arg(call, "grid", &grid));
    TRY(capture_int_arg(call, "interpolation_mode", &mode));
    TRY(capture_int_arg(call, "padding_mode", &outside));
    TRY(capture_bool_arg(call, "align_corners", &corners));
    if (x->type.rank != 4 || mode > SAMPLE_NEAREST || outside > OUTSIDE_BORDER) {
        return capture_fail(call, DW_UNSUPPORTED, "sampling other than bilinear or nearest of [b,c,h,w] with zeros or the border outside");
    }
    const dim sizes[2] = {x->type.dims[3], x->type.dims[2]};
    dim dims[4] = {x->type.dims[0], x->type.dims[1], grid->type.dims[1], grid->type.dims[2]};
    TRY(flatten_from(call, x, 2, &x));
    for (int i = 0; i < 2; i++) {
        TRY(unnormalise(call, grid, i, sizes[i], corners, &place[i]));
        if (outside == OUTSIDE_BORDER) {
            ir_value *last;
            TRY(ir_emit_size(call->graph, sizes[i], &last));
            TRY(ir_emit_cast(call->graph, last, place[i]->type.format, &last));
            TRY(capture_emit_number(call->graph, OP_sub, last, 1, &last));
            TRY(capture_emit_number(call->graph, OP_maximum, place[i], 0, &place[i]));
            TRY(ir_emit_2(call->graph, OP_minimum, place[i], last, &place[i]));
        }
        TRY(ir_emit_1(call->graph, mode == SAMPLE_NEAREST ? OP_round : OP_floor, place[i], &low[i]));
    }
    for (int corner = 0; corner < (mode == SAMPLE_NEAREST ? 1 : 4); corner++) {
        ir_value *index[2], *share[2], *part;
        for (int i = 0; i < 2; i++) {
            const bool far = i == 0 ? corner % 2 : corner / 2;
            ir_value *at = low[i];
            if (far) TRY(capture_emit_number(call->graph, OP_add, at, 1, &at));
            TRY(ir_emit_2(call->graph, OP_sub, place[i], at, &share[i]));
            TRY(ir_emit_1(call->graph, OP_abs, share[i], &share[i]));
            if (mode == SAMPLE_NEAREST) TRY(capture_emit_number(call->graph, OP_mul, share[i], 0, &share[i]));
            TRY(ir_emit_1(call->graph, OP_neg, share[i], &share[i]));
            TRY(capture_emit_number(call->graph, OP_add, share[i], 1, &share[i]));
            TRY(on_axis(call, at, sizes[i], outside == OUTSIDE_ZEROS, &index[i], &share[i]));
        }
        TRY(sample(call, x, index[1], index[0], sizes[0], &part));
        TRY(ir_emit_2(call->graph, OP_mul, share[0], share[1], &share[0]));
        TRY(flatten_from(call, share[0], 1, &share[0]));
        TRY(capture_emit_unsqueeze(call->graph, share[0], 1, &share[0]));
        TRY(ir_emit_2(call->graph, OP_mul, part, share[0], &part));
        if (sum != NULL) TRY(ir_emit_2(call->graph, OP_add, sum, part, &part));
        sum = part;
    }
    TRY(ir_emit_reshape(call->graph, sum, 4, dims, &sum));
    return capture_result(call, 0, sum);
}
