/* Attention as a graph of operations that cuDNN fuses: two products with scale, masks and softmax between them, in the form that its engines look for. Names no engine and
 * launches nothing.
 *
 *     s = q k^T;  s = s * scale;  [s = row + shift >= col ? s : -inf];  [s = col + window > row ? s : -inf]
 *     m = max s;  e = exp(s - m);  l = sum e;  m + log l;  p = e / l, in the operands' type;  out = p v
 *
 * Nothing reads m + log l, but without it engines take the graph for an attention that stores its scores.
 */
#include <math.h>

#include "kernels/library/cudnn.h"

dw_status cudnn_fail(dw_context *context, const cudnn *dnn, cudnn_status status, const char *call, const char *what) {
    char said[512] = "";
    const char *name = dnn->GetErrorString(status);
    dnn->GetLastErrorString(said, sizeof said);
    for (char *at = said; *at != '\0'; at++)
        if (*at == '\n') *at = ' ';
    const bool memory = status == CUDNN_HOST_MEMORY || status == CUDNN_DEVICE_MEMORY;
    return base_fail(context, memory ? DW_NO_MEMORY : DW_UNSUPPORTED, "%s for %s failed: %s (%d)%s%s", call, what, name ? name : "a status without a name", (int)status,
                     said[0] != '\0' ? ": " : "", said);
}

enum { DESCS = 96, OPERATIONS = 24 };

typedef struct graph_builder {
    dw_context *context;
    const cudnn *dnn;
    const cudnn_sizes *sizes;
    cudnn_desc descs[DESCS], operations[OPERATIONS];
    int desc_count, operation_count;
    int64_t next_id;
} graph_builder;

/* ---- descriptors ---- */

static dw_status make(graph_builder *g, cudnn_kind kind, const char *what, cudnn_desc *desc) {
    if (g->desc_count == DESCS) return base_fail(g->context, DW_INTERNAL, "cuDNN: an attention has more than %d descriptors", DESCS);
    CUDNN_TRY(g->context, g->dnn, what, BackendCreateDescriptor, kind, desc);
    g->descs[g->desc_count++] = *desc;
    return DW_OK;
}

static dw_status set(graph_builder *g, cudnn_desc desc, const char *what, cudnn_attribute attribute, cudnn_type type, int64_t count, const void *values) {
    CUDNN_TRY(g->context, g->dnn, what, BackendSetAttribute, desc, attribute, type, count, values);
    return DW_OK;
}

static dw_status set_desc(graph_builder *g, cudnn_desc desc, const char *what, cudnn_attribute attribute, cudnn_desc value) {
    return value == NULL ? DW_OK : set(g, desc, what, attribute, CUDNN_AS_DESC, 1, &value);
}

static dw_status finish(graph_builder *g, cudnn_desc desc, const char *what) {
    CUDNN_TRY(g->context, g->dnn, what, BackendFinalize, desc);
    return DW_OK;
}

/* ---- tensors ---- */

typedef enum tensor_place { GIVEN, BY_VALUE, INNER } tensor_place;   /* in device memory; a number on the host; never stored */

static dw_status tensor(graph_builder *g, tensor_place place, int64_t id, cudnn_data type, const int64_t *dims, const int64_t *strides, cudnn_desc *desc) {
    static const char what[] = "a tensor";
    const bool inner = place == INNER, by_value = place == BY_VALUE;
    const int64_t alignment = CUDNN_OPERAND_ALIGN;
    TRY(make(g, CUDNN_TENSOR, what, desc));
    TRY(set(g, *desc, what, CUDNN_TENSOR_DATA, CUDNN_AS_DATA, 1, &type));
    TRY(set(g, *desc, what, CUDNN_TENSOR_DIMS, CUDNN_AS_INT64, 4, dims));
    TRY(set(g, *desc, what, CUDNN_TENSOR_STRIDES, CUDNN_AS_INT64, 4, strides));
    TRY(set(g, *desc, what, CUDNN_TENSOR_ID, CUDNN_AS_INT64, 1, &id));
    TRY(set(g, *desc, what, CUDNN_TENSOR_ALIGNMENT, CUDNN_AS_INT64, 1, &alignment));
    TRY(set(g, *desc, what, CUDNN_TENSOR_IS_VIRTUAL, CUDNN_AS_BOOL, 1, &inner));
    TRY(set(g, *desc, what, CUDNN_TENSOR_IS_BY_VALUE, CUDNN_AS_BOOL, 1, &by_value));
    return finish(g, *desc, what);
}

static dw_status operand(graph_builder *g, int64_t id, int64_t heads, int64_t rows, int64_t width, const int64_t *strides, cudnn_desc *desc) {
    const int64_t dims[] = {g->sizes->batches, heads, rows, width}, all[] = {strides[0], strides[1], strides[2], 1};
    return tensor(g, GIVEN, id, (cudnn_data)g->sizes->type, dims, all, desc);
}

static dw_status number(graph_builder *g, int64_t id, cudnn_data type, cudnn_desc *desc) {
    static const int64_t ones[] = {1, 1, 1, 1};
    return tensor(g, BY_VALUE, id, type, ones, ones, desc);
}

/* [b,h,s,t], or one for each row: [b,h,s,1]. */
static dw_status scores(graph_builder *g, cudnn_data type, int64_t columns, cudnn_desc *desc) {
    const cudnn_sizes *z = g->sizes;
    const int64_t dims[] = {z->batches, z->heads, z->queries, columns}, strides[] = {z->heads * z->queries * columns, z->queries * columns, columns, 1};
    return tensor(g, INNER, g->next_id++, type, dims, strides, desc);
}

/* ---- operations ---- */

static dw_status add_operation(graph_builder *g, cudnn_desc operation, const char *what) {
    if (g->operation_count == OPERATIONS) return base_fail(g->context, DW_INTERNAL, "cuDNN: an attention has more than %d operations", OPERATIONS);
    TRY(finish(g, operation, what));
    g->operations[g->operation_count++] = operation;
    return DW_OK;
}

static dw_status multiply(graph_builder *g, cudnn_desc a, cudnn_desc b, cudnn_desc c) {
    static const char what[] = "a product";
    const cudnn_data math = CUDNN_F32;
    cudnn_desc desc, operation;
    TRY(make(g, CUDNN_MATMUL, what, &desc));
    TRY(set(g, desc, what, CUDNN_MATMUL_MATH, CUDNN_AS_DATA, 1, &math));
    TRY(finish(g, desc, what));
    TRY(make(g, CUDNN_OPERATION_MATMUL, what, &operation));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_MATMUL_A, a));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_MATMUL_B, b));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_MATMUL_C, c));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_MATMUL_DESC, desc));
    return add_operation(g, operation, what);
}

/* y = mode(x, b), or t ? x : b; b and t may be NULL. */
typedef struct pointwise { cudnn_pointwise mode; cudnn_data math; int64_t axis; cudnn_desc x, b, t, y; } pointwise;

static dw_status apply(graph_builder *g, const pointwise *p) {
    static const char what[] = "a pointwise operation";
    cudnn_desc desc, operation;
    TRY(make(g, CUDNN_POINTWISE, what, &desc));
    TRY(set(g, desc, what, CUDNN_POINTWISE_MODE, CUDNN_AS_POINTWISE, 1, &p->mode));
    TRY(set(g, desc, what, CUDNN_POINTWISE_MATH, CUDNN_AS_DATA, 1, &p->math));
    if (p->mode == CUDNN_INDEX) TRY(set(g, desc, what, CUDNN_POINTWISE_AXIS, CUDNN_AS_INT64, 1, &p->axis));
    TRY(finish(g, desc, what));
    TRY(make(g, CUDNN_OPERATION_POINTWISE, what, &operation));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_POINTWISE_DESC, desc));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_POINTWISE_X, p->x));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_POINTWISE_B, p->b));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_POINTWISE_T, p->t));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_POINTWISE_Y, p->y));
    return add_operation(g, operation, what);
}

static dw_status reduce(graph_builder *g, cudnn_reduction mode, cudnn_desc x, cudnn_desc y) {
    static const char what[] = "a reduction";
    const cudnn_data math = CUDNN_F32;
    cudnn_desc desc, operation;
    TRY(make(g, CUDNN_REDUCTION, what, &desc));
    TRY(set(g, desc, what, CUDNN_REDUCTION_MODE, CUDNN_AS_REDUCTION, 1, &mode));
    TRY(set(g, desc, what, CUDNN_REDUCTION_MATH, CUDNN_AS_DATA, 1, &math));
    TRY(finish(g, desc, what));
    TRY(make(g, CUDNN_OPERATION_REDUCTION, what, &operation));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_REDUCTION_X, x));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_REDUCTION_Y, y));
    TRY(set_desc(g, operation, what, CUDNN_OPERATION_REDUCTION_DESC, desc));
    return add_operation(g, operation, what);
}

/* ---- masks ---- */

static dw_status index_along(graph_builder *g, cudnn_desc x, int64_t axis, cudnn_desc *y) {
    TRY(scores(g, CUDNN_I32, g->sizes->keys, y));
    return apply(g, &(pointwise){.mode = CUDNN_INDEX, .math = CUDNN_F32, .axis = axis, .x = x, .y = *y});
}

static dw_status moved(graph_builder *g, int64_t id, cudnn_data type, cudnn_desc *index) {
    cudnn_desc by, y;
    TRY(number(g, id, type, &by));
    TRY(scores(g, type, g->sizes->keys, &y));
    TRY(apply(g, &(pointwise){.mode = CUDNN_ADD, .math = type, .x = *index, .b = by, .y = y}));
    *index = y;
    return DW_OK;
}

/* Of *s those where a and b compare; the others become hidden. */
static dw_status keep(graph_builder *g, cudnn_pointwise comparison, cudnn_desc a, cudnn_desc b, cudnn_desc hidden, cudnn_desc *s) {
    cudnn_desc seen, y;
    TRY(scores(g, CUDNN_BOOL, g->sizes->keys, &seen));
    TRY(apply(g, &(pointwise){.mode = comparison, .math = CUDNN_BOOL, .x = a, .b = b, .y = seen}));
    TRY(scores(g, CUDNN_F32, g->sizes->keys, &y));
    TRY(apply(g, &(pointwise){.mode = CUDNN_SELECT, .math = CUDNN_F32, .x = *s, .b = hidden, .t = seen, .y = y}));
    *s = y;
    return DW_OK;
}

/* Each mask has indices of its own: so engines expect them. */
static dw_status mask(graph_builder *g, cudnn_desc *s) {
    cudnn_desc row, col, hidden;
    if (!g->sizes->bounded && !g->sizes->windowed) return DW_OK;
    TRY(number(g, CUDNN_ID_HIDDEN, CUDNN_F32, &hidden));
    if (g->sizes->bounded) {
        const cudnn_desc x = *s;
        TRY(index_along(g, x, 2, &row));
        TRY(index_along(g, x, 3, &col));
        if (g->sizes->shift != 0) TRY(moved(g, CUDNN_ID_SHIFT, CUDNN_I32, &row));
        TRY(keep(g, CUDNN_NOT_LESS, row, col, hidden, s));
    }
    if (g->sizes->windowed) {
        const cudnn_desc x = *s;
        TRY(index_along(g, x, 2, &row));
        TRY(index_along(g, x, 3, &col));
        TRY(moved(g, CUDNN_ID_WINDOW, CUDNN_F32, &col));
        TRY(keep(g, CUDNN_GREATER, col, row, hidden, s));
    }
    return DW_OK;
}

/* ---- the whole ---- */

static dw_status soften(graph_builder *g, cudnn_desc s, cudnn_desc *p) {
    cudnn_desc most, less, powers, sum, log_sum, end;
    TRY(scores(g, CUDNN_F32, 1, &most));
    TRY(reduce(g, CUDNN_MAX, s, most));
    TRY(scores(g, CUDNN_F32, g->sizes->keys, &less));
    TRY(apply(g, &(pointwise){.mode = CUDNN_SUB, .math = CUDNN_F32, .x = s, .b = most, .y = less}));
    TRY(scores(g, CUDNN_F32, g->sizes->keys, &powers));
    TRY(apply(g, &(pointwise){.mode = CUDNN_EXP, .math = CUDNN_F32, .x = less, .y = powers}));
    TRY(scores(g, CUDNN_F32, 1, &sum));
    TRY(reduce(g, CUDNN_SUM, powers, sum));
    TRY(scores(g, CUDNN_F32, 1, &log_sum));
    TRY(apply(g, &(pointwise){.mode = CUDNN_LOG, .math = CUDNN_F32, .x = sum, .y = log_sum}));
    TRY(scores(g, CUDNN_F32, 1, &end));
    TRY(apply(g, &(pointwise){.mode = CUDNN_ADD, .math = CUDNN_F32, .x = most, .b = log_sum, .y = end}));
    TRY(scores(g, (cudnn_data)g->sizes->type, g->sizes->keys, p));
    return apply(g, &(pointwise){.mode = CUDNN_DIV, .math = CUDNN_F32, .x = powers, .b = sum, .y = *p});
}

static dw_status add_operations(graph_builder *g) {
    const cudnn_sizes *z = g->sizes;
    const int64_t shared = z->heads / z->shared_heads, transposed[] = {z->k[0], z->k[1], 1, z->k[2]};
    const int64_t k_dims[] = {z->batches, shared, z->width, z->keys};
    cudnn_desc q, k, v, out, scale, products, s, p;
    TRY(operand(g, CUDNN_ID_Q, z->heads, z->queries, z->width, z->q, &q));
    TRY(tensor(g, GIVEN, CUDNN_ID_K, (cudnn_data)z->type, k_dims, transposed, &k));
    TRY(operand(g, CUDNN_ID_V, shared, z->keys, z->value_width, z->v, &v));
    TRY(operand(g, CUDNN_ID_OUT, z->heads, z->queries, z->value_width, z->out, &out));
    TRY(scores(g, CUDNN_F32, z->keys, &products));
    TRY(multiply(g, q, k, products));
    TRY(number(g, CUDNN_ID_SCALE, CUDNN_F32, &scale));
    TRY(scores(g, CUDNN_F32, z->keys, &s));
    TRY(apply(g, &(pointwise){.mode = CUDNN_MUL, .math = CUDNN_F32, .x = products, .b = scale, .y = s}));
    TRY(mask(g, &s));
    TRY(soften(g, s, &p));
    return multiply(g, p, v, out);
}

static dw_status add_graph(graph_builder *g, cudnn_desc *graph) {
    static const char what[] = "the graph of an attention";
    TRY(add_operations(g));
    CUDNN_TRY(g->context, g->dnn, what, BackendCreateDescriptor, CUDNN_OPERATION_GRAPH, graph);
    TRY(set(g, *graph, what, CUDNN_GRAPH_HANDLE, CUDNN_AS_HANDLE, 1, &g->dnn->handle));
    TRY(set(g, *graph, what, CUDNN_GRAPH_OPERATIONS, CUDNN_AS_DESC, g->operation_count, g->operations));
    return finish(g, *graph, what);
}

dw_status cudnn_attention_graph(dw_context *context, const cudnn *dnn, const cudnn_sizes *sizes, cudnn_desc *graph) {
    graph_builder g = {.context = context, .dnn = dnn, .sizes = sizes, .next_id = CUDNN_ID_INNER};
    *graph = NULL;
    dw_status status = add_graph(&g, graph);
    if (status != DW_OK && *graph != NULL) {
        dnn->BackendDestroyDescriptor(*graph);
        *graph = NULL;
    }
    while (g.desc_count > 0) dnn->BackendDestroyDescriptor(g.descs[--g.desc_count]);
    return status;
}
