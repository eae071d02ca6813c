/* Projections of one attention become one product before gradients are derived, so that their gradients are one product each, too: of what they read, and of their weights. What is made of weights is made
 * once after an update.
 *
 *     %1 = matmul x, wq {bt=true}                      %1 = concat wq, wk {axis=0}
 *     %2 = add %1, bq                                  %2 = matmul x, %1 {bt=true}
 *     %3 = matmul x, wk {bt=true}             ->       %3 = concat bq, bk {axis=0}
 *     %4 = add %3, bk                                  %4 = add %2, %3
 *                                                      %5 = slice %4 {axis=2,start=0,end=64,step=1}
 *                                                      %6 = slice %4 {axis=2,start=64,end=96,step=1}
 *
 * Only of the role attention, by weights that are trained and that nothing else reads, either all of them with a bias or none. Gate and up stay two: their gradients are taken element by element. */
#include "pass/gradient/gradient.h"

#include <string.h>

enum { MOST = 8 };

/* A projection: what it gives is its product, or that and a bias. */
typedef struct projection { ir_node *product, *sum; ir_value *weight, *bias; } projection;

static bool is_trained_alone(const ir_value *value, int rank) { return value != NULL && value->kind == IR_STATE && value->trained && value->type.rank == rank && value->use_count == 1; }

static bool is_attention(const ir_node *node) { return node->origin.role != NULL && strcmp(node->origin.role, "attention") == 0; }

/* x w, or x w and a trained vector, which alone reads the product. */
static bool read_projection(const ir_graph *graph, ir_node *product, projection *p) {
    *p = (projection){.product = product};
    if (product->op != OP_matmul || product->n_in != 2 || !is_attention(product) || ir_bool(product, OP_ATTR_at) || !is_trained_alone(ir_in(product, 1), 2)) return false;
    p->weight = ir_in(product, 1);
    const ir_value *made = ir_out(product);
    ir_node *user = ir_use_count(graph, made) == 1 && made->uses != NULL ? made->uses->node : NULL;
    if (user == NULL || user->op != OP_add || !op_type_equal(&made->type, &ir_out(user)->type)) return true;
    ir_value *other = ir_in(user, ir_in(user, 0) == made ? 1 : 0);
    if (!is_trained_alone(other, 1) || other->type.dims[0] != made->type.dims[made->type.rank - 1]) return true;
    p->sum = user;
    p->bias = other;
    return true;
}

static ir_value *result_of(const projection *p) { return ir_out(p->sum != NULL ? p->sum : p->product); }

static bool goes_with(const projection *a, const projection *b) {
    const char *m = a->product->origin.module, *n = b->product->origin.module;
    return pass_parent_length(m) > 0 && pass_are_siblings(m, n) && (a->bias != NULL) == (b->bias != NULL) && ir_bool(a->product, OP_ATTR_bt) == ir_bool(b->product, OP_ATTR_bt) && a->weight->type.format == b->weight->type.format &&
           ir_out(a->product)->type.format == ir_out(b->product)->type.format && (a->bias == NULL || a->bias->type.format == b->bias->type.format);
}

/* first and those that go with it, in the order of the graph; their number. */
static int collect(const ir_graph *graph, const projection *first, projection *all) {
    int count = 0;
    for (const ir_use *use = ir_in(first->product, 0)->uses; use != NULL; use = use->next) {
        projection other;
        if (use->index != 0 || !read_projection(graph, use->node, &other) || !goes_with(first, &other)) continue;
        if (count == MOST) return 0;
        int at = count++;
        for (; at > 0 && all[at - 1].product->order > other.product->order; at--) all[at] = all[at - 1];
        all[at] = other;
    }
    return count;
}

static dw_status emit_whole(ir_graph *graph, int count, const projection *all, ir_value **whole) {
    ir_value *parts[MOST], *weight, *bias;
    const ir_node *first = all[0].product;
    const op_attr along = op_set_int(OP_ATTR_axis, ir_bool(first, OP_ATTR_bt) ? 0 : 1), rows = op_set_int(OP_ATTR_axis, 0);
    for (int i = 0; i < count; i++) parts[i] = all[i].weight;
    TRY(ir_emit(graph, OP_concat, count, parts, 1, &along, &weight));
    TRY(ir_emit(graph, OP_matmul, 2, (ir_value *[]){ir_in(first, 0), weight}, first->attrs.count, first->attrs.items, whole));
    if (all[0].bias == NULL) return DW_OK;
    for (int i = 0; i < count; i++) parts[i] = all[i].bias;
    TRY(ir_emit(graph, OP_concat, count, parts, 1, &rows, &bias));
    return ir_emit_2(graph, OP_add, *whole, bias, whole);
}

static dw_status merge(ir_graph *graph, int count, const projection *all) {
    ir_value *whole, *part;
    ir_node *products[MOST];
    dim start, end;
    for (int i = 0; i < count; i++) products[i] = all[i].product;
    ir_cursor_before(graph, all[0].product);
    graph->origin = all[0].product->origin;
    TRY(pass_join_modules(graph, count, products, &graph->origin.module));
    TRY(emit_whole(graph, count, all, &whole));
    TRY_DIM(graph->context, start, dim_constant(graph->dims, 0));
    for (int i = 0; i < count; i++, start = end) {
        ir_value *result = result_of(&all[i]);
        graph->origin = all[i].product->origin;
        TRY_DIM(graph->context, end, dim_add(graph->dims, start, result->type.dims[result->type.rank - 1]));
        TRY(ir_emit_slice(graph, whole, whole->type.rank - 1, start, end, 1, &part));
        ir_replace(graph, result, part);
        if (all[i].sum != NULL) TRY(ir_remove(graph, all[i].sum));
        TRY(ir_remove(graph, all[i].product));
    }
    return DW_OK;
}

dw_status gradient_merge(ir_graph *graph) {
    projection first, all[MOST];
    ir_renumber(graph);
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (!read_projection(graph, node, &first)) continue;
        const int count = collect(graph, &first, all);
        if (count < 2) continue;
        TRY(merge(graph, count, all));
        ir_renumber(graph);
        next = graph->first;                /* those that went with it are gone */
    }
    ir_cursor_end(graph);
    graph->origin = (ir_origin){0};
    return DW_OK;
}
