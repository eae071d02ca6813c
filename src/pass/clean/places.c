/* Rows that are taken at places known before any input become views: of positions that count up, the rows from the first on; of one place for all, that row. Encoders look up positions and types of
 * tokens so. It runs behind the stage that makes the cached step, which finds the places of tokens by these lookups.
 *
 *     param  t f32[512,64]
 *     %1 = iota {length=s}               ->      %1 = slice t {axis=0,start=0,end=s}
 *     %2 = take t, %1 {axis=0}                   output y %1
 *     output y %2
 *
 * Only where no place can be outside the axis: else the run has to say so. */
#include "pass/clean/fold.h"

enum { NOWHERE = -1, LARGEST = 1 << 20 };

/* start at every element, or start + i along one axis. */
typedef struct places { int64_t start; int axis; } places;

/* ---- numbers of buffers ---- */

/* Do the elements count up along the axis alone (NOWHERE: along none) from the first one on? */
static bool counts_up(const dw_tensor *tensor, int axis) {
    int64_t index[DW_MAX_RANK] = {0};
    const int64_t count = op_tensor_count(tensor), start = op_tensor_load_int(tensor, index);
    for (int64_t i = 0; i < count; i++) {
        if (op_tensor_load_int(tensor, index) != start + (axis >= 0 ? index[axis] : 0)) return false;
        op_tensor_next(tensor, index);
    }
    return true;
}

static bool places_of_buffer(const ir_value *value, places *p) {
    const int64_t first[DW_MAX_RANK] = {0};
    if (value->weight == NULL || value->weight->tensor.data == NULL || !fold_may_read(value)) return false;
    const dw_tensor *tensor = &value->weight->tensor;
    const int64_t count = op_tensor_count(tensor);
    if (count < 1 || count > LARGEST) return false;
    p->start = op_tensor_load_int(tensor, first);
    for (p->axis = NOWHERE; p->axis < tensor->rank; p->axis++)
        if (counts_up(tensor, p->axis)) return true;
    return false;
}

/* ---- through views ---- */

/* Which axis of the result the axis of x is; NOWHERE: a reshape mixes it with others. */
static int axis_behind(const ir_value *x, const ir_value *out, int axis) {
    int found = NOWHERE;
    int64_t one;
    for (int i = 0; i < x->type.rank; i++)
        if (i != axis && !(dim_is_constant(x->type.dims[i], &one) && one == 1)) return NOWHERE;
    for (int i = 0; i < out->type.rank; i++) {
        if (dim_is_constant(out->type.dims[i], &one) && one == 1) continue;
        if (found != NOWHERE || out->type.dims[i] != x->type.dims[axis]) return NOWHERE;
        found = i;
    }
    return found;
}

static bool places_of(const ir_value *value, places *p);

static bool places_of_slice(const ir_node *node, places *p) {
    int64_t start;
    if (!places_of(ir_in(node, 0), p) || ir_int(node, OP_ATTR_step) != 1) return false;
    if (p->axis != ir_int(node, OP_ATTR_axis)) return true;
    if (!dim_is_constant(op_attr_dim(&node->attrs, OP_ATTR_start), &start)) return false;
    p->start += start;
    return true;
}

static bool places_of(const ir_value *value, places *p) {
    const ir_node *node = value->kind == IR_RESULT ? value->node : NULL;
    double number;
    int64_t start;
    if (num_info(value->type.format)->class != NUM_SIGNED) return false;
    if (value->kind == IR_PARAM) return places_of_buffer(value, p);
    if (node == NULL) return false;
    switch (node->op) {
    case OP_fill:
        number = ir_real(node, OP_ATTR_value);
        *p = (places){(int64_t)number, NOWHERE};
        return true;
    case OP_iota:
        *p = (places){0, 0};
        if (!dim_is_constant(op_attr_dim(&node->attrs, OP_ATTR_start), &start) || ir_int(node, OP_ATTR_step) != 1) return false;
        p->start = start;
        return true;
    case OP_slice: return places_of_slice(node, p);
    case OP_broadcast:
        if (!places_of(ir_in(node, 0), p)) return false;
        if (p->axis != NOWHERE) p->axis += value->type.rank - ir_in(node, 0)->type.rank;
        return true;
    case OP_reshape:
        if (!places_of(ir_in(node, 0), p)) return false;
        if (p->axis != NOWHERE) p->axis = axis_behind(ir_in(node, 0), value, p->axis);
        else return true;
        return p->axis != NOWHERE;
    default: return false;
    }
}

/* Whoever's data decided it. */
static void rely_on(const ir_value *value) {
    while (value->kind == IR_RESULT && value->node->n_in > 0) value = ir_in(value->node, 0);
    if (value->kind == IR_PARAM) ir_rely_on(value);
}

/* ---- lookups ---- */

/* x from the first place on along the axis, as many as size says; NULL: some may be outside. */
static dw_status cut(ir_graph *graph, ir_value *x, int axis, int64_t from, dim size, ir_value **result) {
    dim start, end;
    *result = NULL;
    if (from < 0) return DW_OK;
    TRY_DIM(graph->context, start, dim_constant(graph->dims, from));
    TRY_DIM(graph->context, end, dim_add(graph->dims, start, size));
    if (!dim_always_le(graph->dims, end, x->type.dims[axis])) return DW_OK;
    return ir_emit_slice(graph, x, axis, start, end, 1, result);
}

/* The rows that are taken, with those axes of i that count along none one long. */
static dw_status spread(ir_graph *graph, ir_value *rows, const ir_node *node, int axis, const places *p, ir_value **result) {
    const op_type *out = &ir_out(node)->type;
    dim dims[DW_MAX_RANK], one;
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    for (int i = 0; i < out->rank; i++) {
        const bool is_of_i = i >= axis && i < axis + ir_in(node, 1)->type.rank;
        dims[i] = is_of_i && i - axis != p->axis ? one : out->dims[i];
    }
    TRY(ir_emit_reshape(graph, rows, out->rank, dims, &rows));
    return ir_emit_broadcast(graph, rows, out->rank, out->dims, result);
}

static dw_status view_of_take(ir_graph *graph, const ir_node *node, ir_value **view) {
    places p;
    dim size;
    ir_value *rows;
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    *view = NULL;
    if (dw_format_is_block(ir_in(node, 0)->type.format) || !places_of(ir_in(node, 1), &p)) return DW_OK;
    TRY_DIM(graph->context, size, p.axis == NOWHERE ? dim_constant(graph->dims, 1) : ir_in(node, 1)->type.dims[p.axis]);
    TRY(cut(graph, ir_in(node, 0), axis, p.start, size, &rows));
    if (rows == NULL) return DW_OK;
    rely_on(ir_in(node, 1));
    return spread(graph, rows, node, axis, &p, view);
}

/* Along one axis, which the places count along, too; of the others the first ones are looked at. */
static dw_status view_of_gather(ir_graph *graph, const ir_node *node, ir_value **view) {
    places p;
    ir_value *x = ir_in(node, 0);
    const op_type *i = &ir_in(node, 1)->type;
    const int axis = (int)ir_int(node, OP_ATTR_axis);
    *view = NULL;
    if (dw_format_is_block(x->type.format) || !places_of(ir_in(node, 1), &p) || p.axis != axis) return DW_OK;
    for (int k = 0; k < i->rank && x != NULL; k++) TRY(cut(graph, x, k, k == axis ? p.start : 0, i->dims[k], &x));
    if (x != NULL) rely_on(ir_in(node, 1));
    *view = x;
    return DW_OK;
}

dw_status pass_places(ir_graph *graph, const pass_options *options, bool *changed) {
    (void)options;
    *changed = false;
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        ir_value *view = NULL;
        next = node->next;
        ir_cursor_before(graph, node);
        if (node->op == OP_take) TRY(view_of_take(graph, node, &view));
        if (node->op == OP_gather) TRY(view_of_gather(graph, node, &view));
        if (view == NULL) continue;
        ir_replace(graph, ir_out(node), view);
        TRY(ir_remove(graph, node));
        *changed = true;
    }
    return DW_OK;
}
