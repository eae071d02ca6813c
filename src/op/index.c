/* Ops that read or write at places named by integer tensors: take, gather, scatter, index, index_put. Negative indices count from the end;
 * an index outside its axis is an error that names it, and nothing beyond the tensor is touched. Writes happen in row-major order of the
 * index tensor: of several to one place the last stays, or all are added one at a time. */
#include "op/family.h"

/* ---- inference ---- */

static dw_status infer_take(op_infer *infer) {
    const op_type *x = infer->in[0], *i = infer->in[1];
    int64_t axis = op_attr_int(infer->attrs, OP_ATTR_axis);
    TRY(op_check_axis(infer, axis, x->rank));
    TRY(op_check_integer(infer, "i", i));
    if (op_attr_int(infer->attrs, OP_ATTR_frozen) < 0) return base_fail(infer->context, DW_INVALID, "take: frozen is %lld; count rows from the front", (long long)op_attr_int(infer->attrs, OP_ATTR_frozen));
    for (int a = 0; a < axis; a++) TRY(op_add_axis(infer, infer->out, x->dims[a]));
    for (int a = 0; a < i->rank; a++) TRY(op_add_axis(infer, infer->out, i->dims[a]));
    for (int a = (int)axis + 1; a < x->rank; a++) TRY(op_add_axis(infer, infer->out, x->dims[a]));
    return DW_OK;
}

static dw_status infer_gather(op_infer *infer) {
    const op_type *x = infer->in[0], *i = infer->in[1];
    int64_t axis = op_attr_int(infer->attrs, OP_ATTR_axis);
    TRY(op_check_axis(infer, axis, x->rank));
    TRY(op_check_integer(infer, "i", i));
    TRY(op_check_rank(infer, "i", i, x->rank, x->rank));
    for (int a = 0; a < x->rank; a++) {
        if (a != axis) TRY(op_check_le_axis(infer, a, "i", i, "x", x));
        TRY(op_add_axis(infer, infer->out, i->dims[a]));
    }
    return DW_OK;
}

static dw_status infer_scatter(op_infer *infer) {
    const op_type *x = infer->in[0], *i = infer->in[1], *y = infer->in[2];
    TRY(infer_gather(infer));
    TRY(op_check_same_format(infer, "x", x, "y", y));
    TRY(op_check_rank(infer, "y", y, x->rank, x->rank));
    for (int a = 0; a < x->rank; a++) TRY(op_check_le_axis(infer, a, "i", i, "y", y));
    *infer->out = *x;
    return DW_OK;
}

/* The shape of x[.., i0, i1, ..] into out, whose format is set. */
static dw_status infer_places(op_infer *infer, int first_index, op_type *out) {
    const op_type *x = infer->in[0];
    int64_t axis = op_attr_int(infer->attrs, OP_ATTR_axis);
    int indices = infer->n_in - first_index;
    TRY(op_check_axis(infer, axis, x->rank));
    if (axis + indices > x->rank)
        return base_fail(infer->context, DW_MISMATCH, "%s: %d index tensors from axis %lld on, x has rank %d", infer->op->name, indices, (long long)axis, x->rank);
    op_type places = {.format = DW_FORMAT_i64};
    for (int i = 0; i < indices; i++) {
        const op_type *index = infer->in[first_index + i];
        if (index == NULL) return base_fail(infer->context, DW_INVALID, "%s: operand %d is absent", infer->op->name, first_index + i);
        TRY(op_check_integer(infer, "an index tensor", index));
        TRY(op_check_broadcast(infer, &places, index, &places));
    }
    for (int a = 0; a < axis; a++) TRY(op_add_axis(infer, out, x->dims[a]));
    for (int a = 0; a < places.rank; a++) TRY(op_add_axis(infer, out, places.dims[a]));
    for (int a = (int)axis + indices; a < x->rank; a++) TRY(op_add_axis(infer, out, x->dims[a]));
    return DW_OK;
}

static dw_status infer_index_put(op_infer *infer) {
    const op_type *x = infer->in[0], *values = infer->in[1];
    op_type region = {.format = x->format};
    TRY(op_check_same_format(infer, "x", x, "values", values));
    TRY(infer_places(infer, 2, &region));
    TRY(op_check_broadcasts_to(infer, "values ", values, region.rank, region.dims));
    *infer->out = *x;
    return DW_OK;
}

dw_status index_infer(op_infer *infer) {
    TRY(op_check_element(infer, "x", infer->in[0]));
    infer->out->format = infer->in[0]->format;
    switch (infer->op->id) {
    case OP_take: return infer_take(infer);
    case OP_gather: return infer_gather(infer);
    case OP_scatter: return infer_scatter(infer);
    case OP_index: return infer_places(infer, 1, infer->out);
    default: return infer_index_put(infer);
    }
}

/* ---- reference ---- */

/* The index at an offset, counted from the front. */
static dw_status load_index(const op_call *call, const dw_tensor *indices, int64_t offset, int axis, int64_t size, int64_t *index) {
    int64_t given = op_load_int_at(indices, offset);
    *index = given < 0 ? given + size : given;
    if (*index >= 0 && *index < size) return DW_OK;
    return base_fail(call->context, DW_INVALID, "%s: index %lld is outside axis %d, which has size %lld", call->op->name, (long long)given, axis, (long long)size);
}

static void put(const dw_tensor *to, int64_t to_offset, const dw_tensor *from, int64_t from_offset, bool accumulate) {
    if (!accumulate) op_copy_at(to, to_offset, from, from_offset);
    else if (op_is_integer(to->format))
        op_store_int_at(to, to_offset, (int64_t)((uint64_t)op_load_int_at(to, to_offset) + (uint64_t)op_load_int_at(from, from_offset)));
    else op_store_at(to, to_offset, op_load_at(to, to_offset) + op_load_at(from, from_offset));
}

static void copy_whole(const dw_tensor *to, const dw_tensor *from) {
    walk w;
    walk_start(&w, to->rank, to->dims);
    walk_add(&w, to);
    walk_add(&w, from);
    for (; w.left > 0; walk_next(&w)) op_copy_at(to, w.offset[0], from, w.offset[1]);
}

static dw_status take_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *i = call->in[1], *out = call->out[0];
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    int64_t x_strides[DW_MAX_RANK] = {0}, i_strides[DW_MAX_RANK] = {0};
    for (int a = 0; a < axis; a++) x_strides[a] = x->strides[a];
    for (int a = 0; a < i->rank; a++) i_strides[axis + a] = i->strides[a];
    for (int a = axis + 1; a < x->rank; a++) x_strides[a + i->rank - 1] = x->strides[a];
    walk w;
    walk_start(&w, out->rank, out->dims);
    int at_out = walk_add(&w, out), at_x = walk_add_strides(&w, x_strides), at_i = walk_add_strides(&w, i_strides);
    for (; w.left > 0; walk_next(&w)) {
        int64_t index;
        TRY(load_index(call, i, w.offset[at_i], axis, x->dims[axis], &index));
        op_copy_at(out, w.offset[at_out], x, w.offset[at_x] + index * x->strides[axis]);
    }
    return DW_OK;
}

/* i reaches no further than other on any axis but skipped, which inference could not prove for symbols. */
static dw_status check_covers(const op_call *call, const dw_tensor *i, const char *name, const dw_tensor *other, int skipped) {
    for (int a = 0; a < i->rank; a++)
        if (a != skipped && i->dims[a] > other->dims[a])
            return base_fail(call->context, DW_MISMATCH, "%s: axis %d of i has size %lld, that of %s %lld", call->op->name, a, (long long)i->dims[a], name,
                             (long long)other->dims[a]);
    return DW_OK;
}

static dw_status gather_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *i = call->in[1], *out = call->out[0];
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    TRY(check_covers(call, i, "x", x, axis));
    int64_t strides[DW_MAX_RANK] = {0};
    for (int a = 0; a < x->rank; a++) strides[a] = a == axis ? 0 : x->strides[a];
    walk w;
    walk_start(&w, i->rank, i->dims);
    int at_out = walk_add(&w, out), at_i = walk_add(&w, i), at_x = walk_add_strides(&w, strides);
    for (; w.left > 0; walk_next(&w)) {
        int64_t index;
        TRY(load_index(call, i, w.offset[at_i], axis, x->dims[axis], &index));
        op_copy_at(out, w.offset[at_out], x, w.offset[at_x] + index * x->strides[axis]);
    }
    return DW_OK;
}

static dw_status scatter_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *i = call->in[1], *y = call->in[2], *out = call->out[0];
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    bool accumulate = op_attr_bool(call->attrs, OP_ATTR_accumulate);
    TRY(check_covers(call, i, "x", x, axis));
    TRY(check_covers(call, i, "y", y, -1));
    copy_whole(out, x);
    int64_t strides[DW_MAX_RANK] = {0};
    for (int a = 0; a < out->rank; a++) strides[a] = a == axis ? 0 : out->strides[a];
    walk w;
    walk_start(&w, i->rank, i->dims);
    int at_out = walk_add_strides(&w, strides), at_i = walk_add(&w, i), at_y = walk_add_strides(&w, y->strides);
    for (; w.left > 0; walk_next(&w)) {
        int64_t index;
        TRY(load_index(call, i, w.offset[at_i], axis, x->dims[axis], &index));
        put(out, w.offset[at_out] + index * out->strides[axis], y, w.offset[at_y], accumulate);
    }
    return DW_OK;
}

/* The places that index tensors name in a tensor: a walk over them, one slot for the tensor and one for each index tensor. */
typedef struct places {
    walk walk;
    int at_tensor, at_index, axis, first_index, indices;
} places;

static void places_start(const op_call *call, const dw_tensor *tensor, int first_index, places *places) {
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis), indices = call->n_in - first_index, rank = 0;
    int64_t dims[DW_MAX_RANK], strides[DW_MAX_RANK] = {0};
    for (int i = 0; i < indices; i++)
        if (call->in[first_index + i]->rank > rank) rank = call->in[first_index + i]->rank;
    for (int a = 0; a < axis; a++) {
        dims[a] = tensor->dims[a];
        strides[a] = tensor->strides[a];
    }
    for (int a = 0; a < rank; a++) dims[axis + a] = 1;
    for (int i = 0; i < indices; i++) {
        const dw_tensor *index = call->in[first_index + i];
        for (int a = 0; a < index->rank; a++)
            if (index->dims[a] != 1) dims[axis + rank - index->rank + a] = index->dims[a];
    }
    int rest = tensor->rank - axis - indices;
    for (int a = 0; a < rest; a++) {
        dims[axis + rank + a] = tensor->dims[axis + indices + a];
        strides[axis + rank + a] = tensor->strides[axis + indices + a];
    }
    walk_start(&places->walk, axis + rank + rest, dims);
    places->at_tensor = walk_add_strides(&places->walk, strides);
    places->at_index = places->walk.count;
    for (int i = 0; i < indices; i++) {
        const dw_tensor *index = call->in[first_index + i];
        int64_t index_strides[DW_MAX_RANK] = {0};
        for (int a = 0; a < index->rank; a++)
            index_strides[axis + rank - index->rank + a] = index->dims[a] == 1 ? 0 : index->strides[a];
        walk_add_strides(&places->walk, index_strides);
    }
    places->axis = axis;
    places->first_index = first_index;
    places->indices = indices;
}

/* The offset in tensor of the walk's present place. */
static dw_status places_offset(const op_call *call, const dw_tensor *tensor, const places *places, int64_t *offset) {
    *offset = places->walk.offset[places->at_tensor];
    for (int i = 0; i < places->indices; i++) {
        int axis = places->axis + i;
        int64_t index;
        TRY(load_index(call, call->in[places->first_index + i], places->walk.offset[places->at_index + i], axis, tensor->dims[axis], &index));
        *offset += index * tensor->strides[axis];
    }
    return DW_OK;
}

static dw_status index_read(const op_call *call) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    places places;
    places_start(call, x, 1, &places);
    int at_out = walk_add(&places.walk, out);
    for (; places.walk.left > 0; walk_next(&places.walk)) {
        int64_t offset;
        TRY(places_offset(call, x, &places, &offset));
        op_copy_at(out, places.walk.offset[at_out], x, offset);
    }
    return DW_OK;
}

static dw_status index_put_reference(const op_call *call) {
    const dw_tensor *values = call->in[1], *out = call->out[0];
    bool accumulate = op_attr_bool(call->attrs, OP_ATTR_accumulate);
    copy_whole(out, call->in[0]);
    places places;
    places_start(call, out, 2, &places);
    int at_values = walk_add(&places.walk, values);
    for (; places.walk.left > 0; walk_next(&places.walk)) {
        int64_t offset;
        TRY(places_offset(call, out, &places, &offset));
        put(out, offset, values, places.walk.offset[at_values], accumulate);
    }
    return DW_OK;
}

dw_status index_reference(const op_call *call) {
    switch (call->op->id) {
    case OP_take: return take_reference(call);
    case OP_gather: return gather_reference(call);
    case OP_scatter: return scatter_reference(call);
    case OP_index: return index_read(call);
    default: return index_put_reference(call);
    }
}

/* Of x, what reads take from it: as much as they write, or all of it. */
void index_work(const op_call *call, op_work *work) {
    op_work_each(call, 0, work);
    bool writes = call->op->id == OP_scatter || call->op->id == OP_index_put;
    if (!writes) op_work_reads(call, 0, op_tensor_bytes(call->out[0]), work);
}
