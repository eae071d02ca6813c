/* Constant folding. What depends on no input, and is small, is evaluated here by the ops' references. Sizes and their arithmetic become size expressions (fold_size.c).
 * Comparisons of places along an axis are decided (fold_range.c). Steps that change nothing are removed (fold_identity.c).
 *
 *     const  const.0 i64[3] = 1, 2, 3            const  const.1 i64[3] = 2, 3, 4
 *     %1 = fill {shape=[],value=1,to=i64}   ->   output y const.1
 *     %2 = add const.0, %1
 *     output y %2
 *
 * Parameters of the model are not read: what depends on them, and what is larger than options->fold_bytes, is evaluated once at load. */
#include "pass/clean/fold.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define DEFAULT_FOLD_BYTES 65536
#define EXACT 0x1p53      /* integers up to here are doubles */

/* Steps of references, of one node and of all nodes of a graph together: a second or so, and less than 64 MB of constants. */
#define MAX_NODE_WORK  0x1p23
#define MAX_GRAPH_WORK 0x1p26

typedef struct folder {
    ir_graph *graph;
    size_t limit;
    arena scratch;          /* of one node */
} folder;

/* ---- evaluation ---- */

static bool fits(const folder *folder, const op_type *type) {
    int64_t dims[DW_MAX_RANK];
    num_parts parts;
    if (dw_format_is_block(type->format)) return false;
    for (int i = 0; i < type->rank; i++) {
        if (!dim_is_constant(type->dims[i], &dims[i])) return false;
    }
    return num_layout(type->format, type->scale_layout, type->rank, dims, &parts) && parts.total_bytes <= folder->limit;
}

static dw_status new_tensor(folder *folder, const op_type *type, dw_tensor **tensor) {
    int64_t dims[DW_MAX_RANK];
    num_parts parts;
    for (int i = 0; i < type->rank; i++) dim_is_constant(type->dims[i], &dims[i]);
    num_layout(type->format, type->scale_layout, type->rank, dims, &parts);
    TRY_NEW(*tensor, &folder->scratch, 1);
    void *memory = arena_new(&folder->scratch, parts.total_bytes, 1);
    if (memory == NULL) return DW_NO_MEMORY;
    op_tensor_init(*tensor, type->format, type->scale_layout, type->rank, dims, memory);
    return DW_OK;
}

static dw_status evaluate(folder *folder, const ir_node *node, const dw_tensor *const *in, dw_tensor **out) {
    const op_def *def = op_get(node->op);
    const dw_tensor *results[FOLD_MAX_OUT];
    for (int i = 0; i < node->n_out; i++) results[i] = out[i];
    op_call call = {.context = folder->graph->context, .op = def, .attrs = &node->attrs, .n_in = node->n_in, .in = in, .n_out = node->n_out, .out = results};
    return def->reference(&call);
}

/* Has the node the place of a rank in its attributes? It is known at load, and not before. */
static bool needs_rank(const ir_node *node) {
    for (int i = 0; i < node->attrs.count; i++) {
        const op_attr *attr = &node->attrs.items[i];
        const op_attr_kind kind = op_attr_kind_of(attr->id);
        const dim *dims = kind == OP_KIND_DIM ? &attr->dim : attr->dims;
        const int count = kind == OP_KIND_DIM ? 1 : kind == OP_KIND_DIMS ? attr->count : 0;
        for (int k = 0; k < count; k++) {
            if (!dim_is_constant(dims[k], NULL)) return true;
        }
    }
    return false;
}

/* The data of a value that is a constant of this graph and small: NULL when it is not. */
static dw_status read_constant(folder *folder, const ir_value *value, const dw_tensor **tensor) {
    *tensor = NULL;
    if (!ir_is_constant(value) || !fits(folder, &value->type)) return DW_OK;
    if (value->kind == IR_PARAM) {
        const ir_weight *weight = value->weight;
        *tensor = weight != NULL && weight->tensor.data != NULL && fold_may_read(value) ? &weight->tensor : NULL;
        if (*tensor != NULL) ir_rely_on(value);
        return DW_OK;
    }
    if (value->kind != IR_RESULT || (op_get(value->node->op)->traits & OP_TRAIT_CREATE) == 0 || needs_rank(value->node)) return DW_OK;
    dw_tensor *made;
    TRY(new_tensor(folder, &value->type, &made));
    TRY(evaluate(folder, value->node, NULL, &made));
    *tensor = made;
    return DW_OK;
}

static bool is_integer(const dw_tensor *tensor) {
    num_class class = num_info(tensor->format)->class;
    return class == NUM_BOOL || class == NUM_SIGNED || class == NUM_UNSIGNED;
}

/* Is every element the same number, one that a fill can hold? */
static bool is_uniform(const dw_tensor *tensor, double *number) {
    int64_t index[DW_MAX_RANK] = {0};
    int64_t count = op_tensor_count(tensor);
    if (count == 0) return false;
    int64_t integer = is_integer(tensor) ? op_tensor_load_int(tensor, index) : 0;
    *number = is_integer(tensor) ? (double)integer : op_tensor_load(tensor, index);
    if (is_integer(tensor) && fabs(*number) > EXACT) return false;
    for (int64_t i = 1; i < count; i++) {
        op_tensor_next(tensor, index);
        if (is_integer(tensor)) {
            if (op_tensor_load_int(tensor, index) != integer) return false;
        } else {
            double other = op_tensor_load(tensor, index);
            if (!(other == *number && !signbit(other) == !signbit(*number)) && !(isnan(other) && isnan(*number))) return false;
        }
    }
    return true;
}

/* The model's tensor that a node of constants reads; NULL: none. */
static const char *model_tensor_of(const ir_node *node) {
    const char *name = NULL;
    for (int i = 0; name == NULL && i < node->n_in; i++) {
        if (ir_in(node, i) != NULL && ir_in(node, i)->kind == IR_PARAM) name = ir_model_tensor(ir_in(node, i));
    }
    return name;
}

/* A fill, or a new constant, with the elements of tensor. */
static dw_status emit_constant(folder *folder, const ir_value *like, const dw_tensor *tensor, ir_value **constant) {
    double number;
    if (is_uniform(tensor, &number)) TRY(fold_fill(folder->graph, like, number, constant));
    if (*constant != NULL) return DW_OK;
    dw_tensor made;
    num_parts parts;
    TRY(ir_add_constant(folder->graph, model_tensor_of(like->node), tensor->format, tensor->rank, tensor->dims, constant, &made));
    num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts);
    if (parts.total_bytes > 0) memcpy(made.data, tensor->data, parts.total_bytes);
    return DW_OK;
}

/* Is there room in the graph's budget for evaluating the node? It is spent then. */
static bool spend(const folder *folder, const ir_node *node) {
    op_work work;
    if (ir_work(folder->graph, node, NULL, &work) != DW_OK) return false;
    double steps = 1 + work.flops + work.bytes_read + work.bytes_written;
    if (!(steps <= MAX_NODE_WORK) || !(folder->graph->folded + steps <= MAX_GRAPH_WORK)) return false;
    folder->graph->folded += steps;
    return true;
}

/* A node of constants; same gets all its results. */
static dw_status fold_constants(folder *folder, const ir_node *node, ir_value **same) {
    const dw_tensor *in[FOLD_MAX_IN] = {NULL};
    dw_tensor *out[FOLD_MAX_OUT];
    bool is_constant = node->n_in > 0 && !needs_rank(node);
    for (int i = 0; i < node->n_out; i++) is_constant = is_constant && ir_is_constant(node->out[i]) && fits(folder, &node->out[i]->type);
    for (int i = 0; is_constant && i < node->n_in; i++) {
        if (node->in[i].value == NULL) continue;
        TRY(read_constant(folder, node->in[i].value, &in[i]));
        is_constant = in[i] != NULL;
    }
    if (!is_constant || !spend(folder, node)) return DW_OK;
    for (int i = 0; i < node->n_out; i++) TRY(new_tensor(folder, &node->out[i]->type, &out[i]));
    dw_status status = evaluate(folder, node, in, out);
    if (status != DW_OK) return status == DW_NO_MEMORY ? status : DW_OK;   /* a failure, such as a division by zero, stays with the run */
    for (int i = 0; i < node->n_out; i++) TRY(emit_constant(folder, node->out[i], out[i], &same[i]));
    return DW_OK;
}

/* A pointwise op whose operands are one number each, of any shape: evaluated on scalars. */
static dw_status fold_uniform(folder *folder, const ir_node *node, ir_value **same) {
    const dw_tensor *in[FOLD_MAX_IN];
    dw_tensor *out;
    const int64_t index[1] = {0};
    if ((op_get(node->op)->traits & OP_TRAIT_POINTWISE) == 0 || dw_format_is_block(node->out[0]->type.format)) return DW_OK;
    for (int i = 0; i < node->n_in; i++) {
        const ir_value *value = node->in[i].value;
        op_type scalar = {.format = value->type.format};
        dw_tensor *made;
        double number;
        if (!fold_number(value, &number)) return DW_OK;
        TRY(new_tensor(folder, &scalar, &made));
        if (is_integer(made)) op_tensor_store_int(made, index, (int64_t)number);
        else op_tensor_store(made, index, number);
        in[i] = made;
    }
    op_type scalar = {.format = node->out[0]->type.format};
    double number;
    TRY(new_tensor(folder, &scalar, &out));
    dw_status status = evaluate(folder, node, in, &out);
    if (status != DW_OK) return status == DW_NO_MEMORY ? status : DW_OK;
    return is_uniform(out, &number) ? fold_fill(folder->graph, node->out[0], number, same) : DW_OK;
}

/* ---- the pass ---- */

/* What each result is the same as; NULL in same[0] when the node stays. */
static dw_status fold_node(folder *folder, ir_node *node, ir_value **same) {
    for (int i = 0; i < node->n_out; i++) same[i] = NULL;
    ir_cursor_before(folder->graph, node);
    TRY(fold_sizes(folder->graph, node, same));
    if (same[0] == NULL) TRY(fold_uniform(folder, node, same));
    if (same[0] == NULL) TRY(fold_constants(folder, node, same));
    if (same[0] == NULL) TRY(fold_ranges(folder->graph, node, same));
    if (same[0] == NULL) TRY(fold_identity(folder->graph, node, same));
    return DW_OK;
}

static dw_status fold_nodes(folder *folder, bool *changed) {
    ir_graph *graph = folder->graph;
    ir_node *node = graph->first;
    while (node != NULL) {
        ir_node *previous = node->previous, *next = node->next;
        ir_value *same[FOLD_MAX_OUT];
        TRY(fold_node(folder, node, same));
        arena_free(&folder->scratch);
        if (same[0] != NULL) {
            for (int i = 0; i < node->n_out; i++) {
                assert(op_type_equal(&node->out[i]->type, &same[i]->type));
                ir_replace(graph, node->out[i], same[i]);
            }
            TRY(ir_remove(graph, node));
            *changed = true;
            next = previous != NULL ? previous->next : graph->first;   /* what was emitted may fold on */
        }
        node = next;
    }
    return DW_OK;
}

dw_status pass_fold(ir_graph *graph, const pass_options *options, bool *changed) {
    *changed = false;
    folder folder = {.graph = graph, .limit = options->fold_bytes > 0 ? options->fold_bytes : DEFAULT_FOLD_BYTES};
    arena_init(&folder.scratch, graph->context);
    dw_status status = fold_nodes(&folder, changed);
    arena_free(&folder.scratch);
    return status;
}
