/* Views and writes become values. A tensor that is a view remembers its parent and how it reads it. A write to it puts the new value back
 * through every parent to the root. A view that is read after a write to its root is derived again.
 *
 *     a = zeros(4, 8); b = a[1:3]; b.add_(1)        %0 = fill {shape=[4,8]}     %1 = slice %0 {axis=0,start=1,end=3}
 *     return a * 2                                  %2 = add %1, 1              %3 = slice_scatter %0, %2 {axis=0,start=1}
 *                                                   %4 = mul %3, 2
 *
 * Knows nothing of aten operators. */
#include "capture/program.h"

#include <string.h>

#include "capture/place.h"

static dw_status new_tensor(capture *capture, capture_tensor **tensor) {
    TRY_NEW(*tensor, &capture->arena, 1);
    (*tensor)->root = *tensor;
    (*tensor)->next = capture->tensors;
    capture->tensors = *tensor;
    return DW_OK;
}

dw_status capture_fresh(capture *capture, ir_value *value, capture_tensor **tensor) {
    TRY(new_tensor(capture, tensor));
    (*tensor)->value = value;
    (*tensor)->type = value->type;
    return DW_OK;
}

dw_status capture_root(capture *capture, capture_home home, const char *name, const op_type *type, ir_value *value, capture_tensor **tensor) {
    TRY(new_tensor(capture, tensor));
    (*tensor)->home = home;
    (*tensor)->home_name = name;
    (*tensor)->type = *type;
    (*tensor)->value = value;
    return DW_OK;
}

dw_status capture_poison(capture *capture, capture_tensor **tensor) {
    TRY(new_tensor(capture, tensor));
    (*tensor)->poisoned = true;
    return DW_OK;
}

/* ---- reading ---- */

/* A param for a weight at its first use. */
static dw_status read_weight(capture *capture, capture_tensor *root) {
    ir_weight *weight = ir_weights_find(capture->weights, root->home_name);
    if (weight == NULL) {
        return base_fail(capture->context, DW_NOT_FOUND, "%s: the program uses the weight '%s', which the file does not hold", capture->source, root->home_name);
    }
    return ir_add_param(capture->graph, root->home_name, &root->type, weight, &root->value);
}

/* A reshape to the shape that it has: nothing but the mark. */
static dw_status emit_detached(ir_graph *graph, ir_value *of, ir_value **value) {
    const op_attr attrs[] = {op_set_dims(OP_ATTR_shape, of->type.rank, of->type.dims), op_set_bool(OP_ATTR_detached, true)};
    return ir_emit(graph, OP_reshape, 1, &of, COUNT_OF(attrs), attrs, value);
}

static dw_status apply_view(ir_graph *graph, const capture_tensor *view, ir_value *of, ir_value **value) {
    switch (view->view) {
    case VIEW_RESHAPE:   return ir_emit_reshape(graph, of, view->type.rank, view->type.dims, value);
    case VIEW_TRANSPOSE: return ir_emit_transpose(graph, of, view->order, value);
    case VIEW_BROADCAST: return ir_emit_broadcast(graph, of, view->type.rank, view->type.dims, value);
    case VIEW_SLICE:     return ir_emit_slice(graph, of, view->axis, view->start, view->end, view->step, value);
    case VIEW_DETACH:    return emit_detached(graph, of, value);
    case VIEW_NONE:
    case VIEW_ALIAS:     break;
    }
    *value = of;
    return DW_OK;
}

dw_status capture_read(capture *capture, capture_tensor *tensor, ir_value **value) {
    capture_tensor *root = tensor->root;
    if (root->value == NULL) TRY(read_weight(capture, root));
    if (tensor != root && (tensor->value == NULL || tensor->seen != root->writes)) {
        ir_value *parent;
        TRY(capture_read(capture, tensor->parent, &parent));
        TRY(apply_view(capture->graph, tensor, parent, &tensor->value));
        tensor->seen = root->writes;
    }
    *value = tensor->value;
    return DW_OK;
}

/* ---- writing ---- */

static dw_status emit_slice_scatter(ir_graph *graph, const capture_tensor *view, ir_value *into, ir_value *value, ir_value **result) {
    op_attr attrs[] = {op_set_int(OP_ATTR_axis, view->axis), op_set_dim(OP_ATTR_start, view->start), op_set_int(OP_ATTR_step, view->step)};
    return ir_emit(graph, OP_slice_scatter, 2, (ir_value *[]){into, value}, COUNT_OF(attrs), attrs, result);
}

/* The parent's value once its view holds value. */
static dw_status undo_view(capture *capture, const capture_tensor *view, ir_value *value, ir_value **result) {
    ir_graph *graph = capture->graph;
    const op_type *parent = &view->parent->type;
    int64_t order[DW_MAX_RANK];
    ir_value *into;
    switch (view->view) {
    case VIEW_RESHAPE:
        return ir_emit_reshape(graph, value, parent->rank, parent->dims, result);
    case VIEW_TRANSPOSE:
        for (int i = 0; i < parent->rank; i++) order[view->order[i]] = i;
        return ir_emit_transpose(graph, value, order, result);
    case VIEW_SLICE:
        TRY(capture_read(capture, view->parent, &into));
        return emit_slice_scatter(graph, view, into, value, result);
    case VIEW_BROADCAST:
        return base_fail(capture->context, DW_UNSUPPORTED, "a write into an expanded tensor, several elements of which are one in memory");
    case VIEW_DETACH:
    case VIEW_NONE:
    case VIEW_ALIAS:
        break;
    }
    *result = value;
    return DW_OK;
}

/* A weight that is written is no param but a state; what read the param reads the state. */
static dw_status make_state(capture *capture, capture_tensor *root) {
    ir_value *param, *stand_in, *state;
    ir_graph *graph = capture->graph;
    TRY(capture_read(capture, root, &param));
    ir_weight *weight = param->weight;
    TRY(capture_emit_fill(graph, root->type.rank, root->type.dims, 0, root->type.format, &stand_in));
    ir_replace(graph, param, stand_in);
    TRY(ir_remove_param(graph, param));
    TRY(ir_add_state(graph, root->home_name, &root->type, weight, &state));
    ir_replace(graph, stand_in, state);
    TRY(ir_remove(graph, stand_in->node));
    for (capture_tensor *t = capture->tensors; t != NULL; t = t->next) {
        if (t->value == param) t->value = state;
    }
    return DW_OK;
}

static dw_status note_first_write(capture *capture, capture_tensor *root) {
    if (root->writes > 0 || root->home == HOME_RESULT) return DW_OK;
    void *grown = arena_grow(&capture->arena, capture->written, capture->written_count, &capture->written_capacity, sizeof *capture->written);
    if (grown == NULL) return DW_NO_MEMORY;
    capture->written = grown;
    capture->written[capture->written_count++] = root;
    return root->home == HOME_WEIGHT ? make_state(capture, root) : DW_OK;
}

dw_status capture_write(capture *capture, capture_tensor *tensor, ir_value *value) {
    capture_tensor *root = tensor->root;
    if (root->is_copied || root->is_copy) {
        return base_fail(capture->context, DW_UNSUPPORTED, "%s: a write to a tensor that as_strided, unfold or diagonal views share; write before them, or to a clone",
                         capture->source);
    }
    TRY(note_first_write(capture, root));
    for (capture_tensor *at = tensor;; at = at->parent) {
        ir_value *above = value;
        if (at != root) TRY(undo_view(capture, at, value, &above));
        at->value = value;
        at->seen = root->writes + 1;
        if (at == root) break;
        value = above;
    }
    root->writes++;
    return DW_OK;
}

static bool shares_memory(const ir_weight *a, const ir_weight *b) {
    dw_tensor first = a->tensor, second = b->tensor;
    if (a->read_from != NULL) first.data = (void *)(uintptr_t)a->read_from;
    if (b->read_from != NULL) second.data = (void *)(uintptr_t)b->read_from;
    return place_overlaps(&first, &second);
}

/* A written weight is a state of its own, which no other weight would see change. */
static dw_status check_alone(const capture *capture, const capture_tensor *written) {
    const ir_weight *weight = ir_weights_find(capture->weights, written->home_name);
    for (const capture_tensor *t = capture->tensors; t != NULL && weight != NULL; t = t->next) {
        if (t == written || t->root != t || t->home != HOME_WEIGHT || t->value == NULL || strcmp(t->home_name, written->home_name) == 0) continue;
        const ir_weight *other = ir_weights_find(capture->weights, t->home_name);
        if (other == NULL || !shares_memory(weight, other)) continue;
        return base_fail(capture->context, DW_UNSUPPORTED, "%s: '%s' is written and shares its memory with '%s', which the program uses too; make one a clone, or a view of the other in forward",
                         capture->source, written->home_name, t->home_name);
    }
    return DW_OK;
}

dw_status capture_finish_writes(capture *capture) {
    for (size_t i = 0; i < capture->written_count; i++) {
        capture_tensor *root = capture->written[i];
        ir_value *value;
        TRY(capture_read(capture, root, &value));
        if (root->home == HOME_INPUT) {
            char *name = arena_printf(&capture->arena, "%s.next", root->home_name);
            if (name == NULL) return DW_NO_MEMORY;
            TRY(ir_add_output(capture->graph, name, value));
            continue;
        }
        TRY(check_alone(capture, root));
        ir_value *state = map_find(&capture->graph->names, root->home_name);
        ir_set_next(state, value);
    }
    return DW_OK;
}

/* ---- views ---- */

static dw_status new_view(capture *capture, capture_tensor *of, capture_view kind, capture_tensor **view) {
    TRY(new_tensor(capture, view));
    (*view)->root = of->root;
    (*view)->parent = of;
    (*view)->view = kind;
    (*view)->type = of->type;
    return DW_OK;
}

/* The node is made now, so that it has the origin of the view. */
static dw_status settle(capture *capture, capture_tensor *view) {
    ir_value *value;
    TRY(capture_read(capture, view, &value));
    view->type = value->type;
    return DW_OK;
}

static bool same_dims(const op_type *type, int rank, const dim *dims) {
    return type->rank == rank && (rank == 0 || memcmp(type->dims, dims, (size_t)rank * sizeof *dims) == 0);
}

dw_status capture_view_alias(capture *capture, capture_tensor *of, capture_tensor **view) { return new_view(capture, of, VIEW_ALIAS, view); }

dw_status capture_view_detach(capture *capture, capture_tensor *of, capture_tensor **view) {
    const bool is_number = num_info(of->type.format)->class == NUM_FLOAT;
    TRY(new_view(capture, of, is_number ? VIEW_DETACH : VIEW_ALIAS, view));
    return is_number ? settle(capture, *view) : DW_OK;
}

static dw_status view_shape(capture *capture, capture_tensor *of, capture_view kind, int rank, const dim *dims, capture_tensor **view) {
    TRY(new_view(capture, of, same_dims(&of->type, rank, dims) ? VIEW_ALIAS : kind, view));
    (*view)->type.rank = rank;
    memcpy((*view)->type.dims, dims, (size_t)rank * sizeof *dims);
    return settle(capture, *view);
}

dw_status capture_view_reshape(capture *capture, capture_tensor *of, int rank, const dim *dims, capture_tensor **view) {
    return view_shape(capture, of, VIEW_RESHAPE, rank, dims, view);
}

dw_status capture_view_broadcast(capture *capture, capture_tensor *of, int rank, const dim *dims, capture_tensor **view) {
    return view_shape(capture, of, VIEW_BROADCAST, rank, dims, view);
}

dw_status capture_view_transpose(capture *capture, capture_tensor *of, const int64_t *order, capture_tensor **view) {
    bool moves = false;
    for (int i = 0; i < of->type.rank; i++) moves = moves || order[i] != i;
    TRY(new_view(capture, of, moves ? VIEW_TRANSPOSE : VIEW_ALIAS, view));
    for (int i = 0; i < of->type.rank; i++) {
        (*view)->order[i] = order[i];
        (*view)->type.dims[i] = of->type.dims[order[i]];
    }
    return settle(capture, *view);
}

dw_status capture_view_slice(capture *capture, capture_tensor *of, int axis, dim start, dim end, int64_t step, capture_tensor **view) {
    bool whole = capture_dim_is(start, 0) && end == of->type.dims[axis] && step == 1;
    TRY(new_view(capture, of, whole ? VIEW_ALIAS : VIEW_SLICE, view));
    (*view)->axis = axis;
    (*view)->start = start;
    (*view)->end = end;
    (*view)->step = step;
    return settle(capture, *view);
}
