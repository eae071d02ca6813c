/* Structural fusion: rows of fuse.def over all nodes until none applies. The rows are in activation.c, norm.c, rotary.c,
 * patches.c and linear.c; attention has a pass of its own.
 *
 *     %1 = matmul x, w {bt=true}                %1 = matmul x, w, c {bt=true,post="bias,gelu"}
 *     %2 = add %1, c                     ->     output y %1
 *     %3 = gelu %2
 *     output y %3 */
#include "pass/fuse/fuse.h"

#include <math.h>

/* ---- rewriting ---- */

bool fuse_is_used(const ir_graph *graph, const ir_node *node) {
    for (int i = 0; i < node->n_out; i++) {
        if (ir_use_count(graph, node->out[i]) > 0) return true;
    }
    return false;
}

static bool is_in_graph(const ir_graph *graph, const ir_node *node) { return node->previous != NULL || graph->first == node; }

/* Removes node and what it alone used. */
static dw_status prune(ir_graph *graph, ir_node *node) {
    if (!is_in_graph(graph, node) || fuse_is_used(graph, node)) return DW_OK;
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

/* ---- the pass ---- */

static const struct { const char *name; fuse_function run; } rows[] = {
#define FUSE(name, meaning) {#name, fuse_##name},
#include "pass/fuse/fuse.def"
#undef FUSE
};

/* Behind a rewrite the order may be another until it is sorted. */
static dw_status attempt(ir_graph *graph, const char *fusion, fuse_function run, ir_node *node, bool *changed) {
    const fuse_attempt attempt = fuse_begin(graph, fusion, node);
    const dw_status status = run(graph, node, changed);
    if (status == DW_OK) return DW_OK;
    TRY(ir_sort(graph));
    return fuse_end(&attempt, status);
}

static dw_status run_each(ir_graph *graph, const char *fusion, arena *scratch, fuse_function run, bool *changed) {
    ir_node **nodes;
    size_t count = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) count++;
    TRY_NEW(nodes, scratch, count);
    count = 0;
    for (ir_node *node = graph->first; node != NULL; node = node->next) nodes[count++] = node;
    for (size_t i = 0; i < count; i++) {
        if (is_in_graph(graph, nodes[i]) && fuse_is_used(graph, nodes[i])) TRY(attempt(graph, fusion, run, nodes[i], changed));
    }
    return DW_OK;
}

dw_status fuse_each(ir_graph *graph, const char *fusion, fuse_function run, bool *changed) {
    arena scratch;
    arena_init(&scratch, graph->context);
    dw_status status = run_each(graph, fusion, &scratch, run, changed);
    arena_free(&scratch);
    return status;
}

static dw_status run_rows(ir_graph *graph, bool *changed) {
    for (size_t i = 0; i < COUNT_OF(rows);) {
        bool row_changed = false;
        dw_status status = fuse_each(graph, rows[i].name, rows[i].run, &row_changed);
        if (status != DW_OK) return status;
        *changed = *changed || row_changed;
        i = row_changed ? 0 : i + 1;
    }
    return DW_OK;
}

dw_status pass_fuse(ir_graph *graph, const pass_options *options, bool *changed) {
    (void)options;
    *changed = false;
    TRY(run_rows(graph, changed));
    return *changed ? ir_sort(graph) : DW_OK;
}
