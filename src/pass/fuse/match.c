/* What fusions share: how a pattern is recognised, and how what it becomes takes its place. Fuses nothing itself. */
#include "pass/fuse/fuse.h"

#include <math.h>

/* ---- rewriting ---- */

bool fuse_is_used(const ir_graph *graph, const ir_node *node) {
    for (int i = 0; i < node->n_out; i++) {
        if (ir_use_count(graph, node->out[i]) > 0) return true;
    }
    return false;
}

bool fuse_is_in_graph(const ir_graph *graph, const ir_node *node) { return node->previous != NULL || graph->first == node; }

/* Removes node and what it alone used. */
static dw_status prune(ir_graph *graph, ir_node *node) {
    if (!fuse_is_in_graph(graph, node) || fuse_is_used(graph, node)) return DW_OK;
    ir_value *in[64];
    int count = node->n_in;
    for (int i = 0; i < count; i++) in[i] = ir_in(node, i);
    TRY(ir_remove(graph, node));
    for (int i = 0; i < count; i++) {
        if (in[i] != NULL && in[i]->kind == IR_RESULT) TRY(prune(graph, in[i]->node));
    }
    return DW_OK;
}

dw_status fuse_replace(ir_graph *graph, ir_value *value, ir_value *same, bool *changed) {
    if (!op_type_equal(&value->type, &same->type)) return same->kind == IR_RESULT ? prune(graph, same->node) : DW_OK;
    ir_replace(graph, value, same);
    *changed = true;
    return value->kind == IR_RESULT ? prune(graph, value->node) : DW_OK;
}

void fuse_cursor(ir_graph *graph, ir_node *root, const ir_node *telling) {
    ir_cursor_before(graph, root);
    graph->origin = telling->origin;
}

/* ---- matching ---- */

bool fuse_own_number(const ir_value *value, double *number) {
    const ir_value *base = value;
    while (base->kind == IR_RESULT && ((op_get(base->node->op)->traits & OP_TRAIT_VIEW) != 0 || base->node->op == OP_cast)) base = ir_in(base->node, 0);
    const bool is_own = base->kind == IR_PARAM ? ir_is_made(base) && ir_model_tensor(base) == NULL : ir_def(base, OP_fill) != NULL;
    return is_own && ir_is_scalar(value, number);
}

bool fuse_is_single_use(const ir_graph *graph, const ir_value *value) { return ir_use_count(graph, value) == 1; }

ir_node *fuse_def_single(const ir_graph *graph, const ir_value *value, op_id op) {
    ir_node *node = ir_def(value, op);
    return node != NULL && fuse_is_single_use(graph, value) ? node : NULL;
}

bool fuse_is_float(dw_format format) {
    const num_format *info = num_info(format);
    return info->class == NUM_FLOAT && info->bits >= 16;
}

/* f16 and bf16 hold numbers that the other does not. */
static bool is_widening(dw_format from, dw_format to) {
    return fuse_is_float(from) && fuse_is_float(to) && num_info(from)->bits < num_info(to)->bits;
}

ir_value *fuse_skip_widening(ir_value *value) {
    for (ir_node *cast; (cast = ir_def(value, OP_cast)) != NULL && is_widening(ir_in(cast, 0)->type.format, value->type.format);) value = ir_in(cast, 0);
    return value;
}

bool fuse_is_number(const ir_value *value, double number) {
    double found;
    return ir_is_scalar(value, &found) && fabs(found - number) <= 1e-6 * fabs(number);
}

bool fuse_with_number(const ir_node *node, double *number, ir_value **other) {
    for (int i = 0; i < 2; i++) {
        if (!ir_is_scalar(ir_in(node, i), number)) continue;
        *other = ir_in(node, 1 - i);
        return true;
    }
    return false;
}

bool fuse_last_axis(const ir_value *value, int64_t *size) {
    return value->type.rank > 0 && dim_is_constant(value->type.dims[value->type.rank - 1], size);
}

dw_status fuse_column(ir_graph *graph, ir_value *value, dim n, ir_value **column) {
    *column = NULL;
    value = fuse_skip_widening(value);
    for (ir_node *node; (node = ir_def(value, OP_broadcast)) != NULL;) {
        const op_type *from = &ir_in(node, 0)->type;
        if (from->rank == 0 || from->dims[from->rank - 1] != n) return DW_OK;
        value = ir_in(node, 0);
    }
    if (value->type.rank == 0 || value->type.dims[value->type.rank - 1] != n || !fuse_is_float(value->type.format)) return DW_OK;
    for (int i = 0; i < value->type.rank - 1; i++) {
        int64_t size;
        if (!dim_is_constant(value->type.dims[i], &size) || size != 1) return DW_OK;
    }
    const ir_node *reshape = ir_def(value, OP_reshape);
    if (reshape != NULL && ir_in(reshape, 0)->type.rank == 1) value = ir_in(reshape, 0);
    return ir_emit_reshape(graph, value, 1, &n, column);
}

bool fuse_span_of(ir_value *value, fuse_span *span) {
    int64_t size;
    if (!fuse_last_axis(value, &size)) return false;
    *span = (fuse_span){value, 0, size, 1};
    const ir_node *slice = ir_def(value, OP_slice);
    if (slice == NULL || ir_int(slice, OP_ATTR_axis) != value->type.rank - 1) return true;
    if (!dim_is_constant(op_attr_dim(&slice->attrs, OP_ATTR_start), &span->start)) return false;
    span->source = ir_in(slice, 0);
    span->step = ir_int(slice, OP_ATTR_step);
    span->end = span->start + size * span->step;
    return true;
}

dw_format fuse_blocks(const ir_node *quantize) {
    if (quantize->op != OP_quantize || ir_in(quantize, 1) != NULL || ir_bool(quantize, OP_ATTR_floor) || ir_bool(quantize, OP_ATTR_search)) return DW_FORMAT_COUNT;
    const dw_format to = ir_out(quantize)->type.format;
    const num_format *info = num_info(to);
    return info->class == NUM_BLOCK && info->rows == 1 && info->cols > 0 && info->second == 0 ? to : DW_FORMAT_COUNT;
}
