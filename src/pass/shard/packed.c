/* Products whose results are taken apart become a product for each part, so that each can be cut by heads of its own. (What shares its operand is merged again behind the pass.)
 *
 *     %1 = matmul x, w {bt=true}                     n 1536          %1 = slice w {axis=0,start=0,end=512}; %2 = matmul x, %1 {bt=true}
 *     %2 = slice %1 {axis=2,start=0,end=512}                   ->    ..
 *     %3 = slice %1 {axis=2,start=512,end=1024}
 *
 * The same where the parts are made by an axis of their own, [b,s,3,h,d], moved about and taken one by one. */
#include "pass/shard/shard.h"

#include <string.h>

#include "pass/fuse/fuse.h"

/* One part: columns [start, end) of the product, and the value that is made of them in place of what a slice gives. */
typedef struct part { int64_t start, end; ir_node *slice; } part;
enum { MAX_PARTS = 16 };

typedef struct packed {
    ir_node *product;
    ir_node *reshape, *transpose;   /* between the product and the slices; NULL: there is none */
    int axis;                       /* of the parts, in what the slices read */
    int count;
    part parts[MAX_PARTS];
} packed;

static bool constant_slice(const ir_node *slice, int64_t *start, int64_t *end) {
    return dim_is_constant(op_attr_dim(&slice->attrs, OP_ATTR_start), start) && dim_is_constant(op_attr_dim(&slice->attrs, OP_ATTR_end), end) && ir_int(slice, OP_ATTR_step) == 1 && *end > *start;
}

/* Is every use of value a slice along that axis, none of which meets another? width: columns of the product for each place on the axis. */
static bool read_slices(const ir_value *value, int axis, int64_t width, packed *packed) {
    packed->count = 0;
    if (value->output_count > 0 || value->use_count < 2) return false;
    for (const ir_use *use = value->uses; use != NULL; use = use->next) {
        int64_t start, end;
        if (use->node->op != OP_slice || ir_int(use->node, OP_ATTR_axis) != axis || !constant_slice(use->node, &start, &end) || packed->count == MAX_PARTS) return false;
        for (int i = 0; i < packed->count; i++)
            if (start * width < packed->parts[i].end && packed->parts[i].start < end * width) return false;
        packed->parts[packed->count++] = (part){start * width, end * width, use->node};
    }
    return true;
}

/* [.., n] -> [.., parts, rest..]: the axis that begins the last one's. */
static int first_of_last(const ir_node *reshape) {
    const op_type *x = &ir_in(reshape, 0)->type, *y = &ir_out(reshape)->type;
    const shard_step step = shard_follow(reshape, 0, x->rank - 1);
    return step.axis >= 0 && step.axis < y->rank - 1 && step.times == 1 ? step.axis : -1;
}

/* A product whose steps are of constant columns alone. */
static bool can_be_cut(ir_graph *graph, const ir_node *node) {
    int64_t n;
    if (!shard_is_weighted(node) || node->op != OP_matmul || !fuse_has_plain_post(graph, node)) return false;
    for (int i = 2; i < node->n_in; i++)
        if (ir_in(node, i)->type.rank != 1) return false;
    return shard_constant_size(ir_out(node), ir_out(node)->type.rank - 1, &n);
}

static bool read_packed(ir_node *node, packed *packed) {
    *packed = (struct packed){.product = node, .axis = ir_out(node)->type.rank - 1};
    return read_slices(ir_out(node), packed->axis, 1, packed);
}

/* [.., n] -> reshape -> transpose? -> slices of one place each. */
static bool read_spread(ir_node *node, packed *packed) {
    int64_t n, places;
    const ir_value *value = ir_out(node);
    *packed = (struct packed){.product = node};
    if (value->use_count != 1 || value->output_count > 0) return false;
    packed->reshape = value->uses->node;
    if (packed->reshape->op != OP_reshape || !shard_constant_size(value, value->type.rank - 1, &n)) return false;
    packed->axis = first_of_last(packed->reshape);
    value = ir_out(packed->reshape);
    if (packed->axis < 0 || !shard_constant_size(value, packed->axis, &places)) return false;
    if (value->use_count == 1 && value->output_count == 0 && value->uses->node->op == OP_transpose) {
        packed->transpose = value->uses->node;
        packed->axis = shard_follow(packed->transpose, 0, packed->axis).axis;
        value = ir_out(packed->transpose);
    }
    return read_slices(value, packed->axis, n / places, packed);
}

/* ---- a product for each part ---- */

/* Rows [start, end) of the weight, or of what lies along the columns. */
static dw_status cut_rows(ir_graph *graph, ir_value *value, int axis, int64_t start, int64_t end, ir_value **part) {
    const ir_node *quantize = ir_def(value, OP_quantize);
    dim from, to;
    TRY_DIM(graph->context, from, dim_constant(graph->dims, start));
    TRY_DIM(graph->context, to, dim_constant(graph->dims, end));
    if (quantize != NULL && quantize->n_in == 1 && axis == value->type.rank - 2) {
        const num_format *info = num_info(value->type.format);
        if (info->rows == 1 && info->second != 1) {   /* a row's codes are its own */
            ir_value *cut;
            TRY(cut_rows(graph, ir_in(quantize, 0), axis, start, end, &cut));
            return ir_emit(graph, OP_quantize, 1, &cut, quantize->attrs.count, quantize->attrs.items, part);
        }
    }
    return ir_emit_slice(graph, value, axis, from, to, 1, part);
}

/* Are parts of the weight cut between blocks? */
static bool lies_between_blocks(const packed *packed) {
    const num_format *info = num_info(ir_in(packed->product, 1)->type.format);
    for (int i = 0; info->class == NUM_BLOCK && info->rows > 1 && i < packed->count; i++)
        if (packed->parts[i].start % info->rows != 0 || packed->parts[i].end % info->rows != 0) return false;
    return true;
}

/* The part's columns in the shape that the slice gives them. */
static dw_status emit_shape(ir_graph *graph, const packed *packed, const part *part, ir_value **value) {
    if (packed->reshape == NULL) return DW_OK;
    const op_type *shape = &ir_out(packed->reshape)->type;
    const int64_t *order;
    dim dims[DW_MAX_RANK];
    const int axis = first_of_last(packed->reshape);
    for (int i = 0; i < shape->rank; i++) dims[i] = shape->dims[i];
    dims[axis] = ir_out(part->slice)->type.dims[packed->axis];
    TRY(ir_emit_reshape(graph, *value, shape->rank, dims, value));
    if (packed->transpose == NULL) return DW_OK;
    op_attr_ints(&packed->transpose->attrs, OP_ATTR_order, &order);
    return ir_emit_transpose(graph, *value, order, value);
}

static dw_status emit_part(ir_graph *graph, const packed *packed, const part *part) {
    const ir_node *product = packed->product;
    ir_value *in[64], *made;
    const ir_origin origin = product->origin;
    ir_cursor_before(graph, part->slice);
    graph->origin = origin;
    in[0] = ir_in(product, 0);
    TRY(cut_rows(graph, ir_in(product, 1), shard_n_axis(product), part->start, part->end, &in[1]));
    for (int i = 2; i < product->n_in; i++) TRY(cut_rows(graph, ir_in(product, i), 0, part->start, part->end, &in[i]));
    TRY(ir_emit(graph, product->op, product->n_in, in, product->attrs.count, product->attrs.items, &made));
    TRY(emit_shape(graph, packed, part, &made));
    ir_replace(graph, ir_out(part->slice), made);
    return ir_remove(graph, part->slice);
}

/* Can what reads a part go on with some of it? */
static bool helps(sharding *sharding, const packed *packed) {
    for (int i = 0; i < packed->count; i++) {
        ir_value *value = ir_out(packed->parts[i].slice);
        for (int axis = 0; axis < value->type.rank; axis++)
            if ((packed->reshape != NULL || axis == packed->axis) && shard_wish_of(sharding, value, axis).good) return true;
    }
    return false;
}

static bool is_kept_whole(const sharding *sharding, const ir_node *node) {
    const char *rule;
    const pass_split split = pass_splits_choose(sharding->splits, node->origin.module, node->origin.role, &rule);
    return (split == PASS_SPLIT_chosen ? shard_preferred(sharding->splits, node->origin.module, &rule) : split) == PASS_SPLIT_whole;
}

dw_status shard_cut_packed(sharding *sharding, bool *changed) {
    ir_graph *graph = sharding->graph;
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        packed packed;
        next = node->next;
        if (!can_be_cut(graph, node) || (!read_packed(node, &packed) && !read_spread(node, &packed))) continue;
        if (!helps(sharding, &packed) || !lies_between_blocks(&packed) || is_kept_whole(sharding, node)) continue;
        for (int i = 0; i < packed.count; i++) {
            while (next != NULL && (next == packed.parts[i].slice || next == packed.reshape || next == packed.transpose)) next = next->next;
            TRY(emit_part(graph, &packed, &packed.parts[i]));
        }
        ir_node *const read[] = {packed.transpose, packed.reshape, node};   /* by nobody any more */
        for (size_t i = 0; i < COUNT_OF(read); i++)
            if (read[i] != NULL) TRY(ir_remove(graph, read[i]));
        *changed = true;
    }
    return DW_OK;
}
