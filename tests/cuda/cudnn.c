/* A stand-in for cuDNN, in the same file as that for the driver: descriptors with whatever attributes are set, and graphs of products, pointwise operations and reductions that are
 * computed in doubles on the host, operation by operation. Of the real one's rules it keeps those that rows have to know; how fast anything is it does not know. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/library/cudnn_abi.h"
#include "num/small.h"
#include "tests/cuda/control.h"

#define CUDNN_CALL(returns, name, parameters) returns cudnn##name parameters;
#include "kernels/library/cudnn.def"
#undef CUDNN_CALL

extern fake_cuda_control fake_cuda;

enum { ATTRIBUTES = 12, VALUE_BYTES = 256, NODES = 32, OPERANDS = 8, WORKSPACE = 256 };

typedef struct tensor { int64_t id, dims[4], strides[4]; cudnn_data data; bool is_virtual, is_by_value; } tensor;
/* y = mode(x, b, t), or a product x b. */
typedef struct node { cudnn_kind kind; int32_t mode; int64_t axis; bool has_b, has_t; tensor x, b, t, y; } node;
typedef struct graph { int count; node nodes[NODES]; } graph;
typedef struct attribute { cudnn_attribute name; int64_t count; uint8_t bytes[VALUE_BYTES]; } attribute;
typedef struct desc { cudnn_kind kind; bool is_final; int count; attribute attributes[ATTRIBUTES]; graph *graph; } desc;

struct cudnn_handle_st { void *stream; };

/* ---- descriptors ---- */

size_t cudnnGetVersion(void) { return (size_t)fake_cuda.cudnn_version; }
const char *cudnnGetErrorString(cudnn_status status) { return status == CUDNN_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM"; }
void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "said by the stand-in"); }
cudnn_status cudnnCreate(cudnn_handle *handle) {
    fake_cuda.library_live++;
    *handle = calloc(1, sizeof **handle);
    return CUDNN_OK;
}
cudnn_status cudnnDestroy(cudnn_handle handle) {
    fake_cuda.library_live--;
    free(handle);
    return CUDNN_OK;
}
cudnn_status cudnnSetStream(cudnn_handle handle, void *stream) { handle->stream = stream; return CUDNN_OK; }

cudnn_status cudnnBackendCreateDescriptor(cudnn_kind kind, cudnn_desc *made) {
    desc *d = calloc(1, sizeof *d);
    d->kind = kind;
    fake_cuda.library_live++;
    *made = d;
    return CUDNN_OK;
}
cudnn_status cudnnBackendDestroyDescriptor(cudnn_desc given) {
    desc *d = given;
    fake_cuda.library_live--;
    free(d->graph);
    free(d);
    return CUDNN_OK;
}

static size_t bytes_of(cudnn_type type) {
    switch (type) {
    case CUDNN_AS_BOOL: return 1;
    case CUDNN_AS_HANDLE:
    case CUDNN_AS_INT64:
    case CUDNN_AS_ADDRESS:
    case CUDNN_AS_DESC: return 8;
    default: return 4;
    }
}

cudnn_status cudnnBackendSetAttribute(cudnn_desc given, cudnn_attribute name, cudnn_type type, int64_t count, const void *values) {
    desc *d = given;
    const size_t bytes = (size_t)count * bytes_of(type);
    if (d->is_final || bytes > VALUE_BYTES || d->count == ATTRIBUTES) return CUDNN_BAD_PARAM;
    attribute *a = &d->attributes[d->count++];
    a->name = name;
    a->count = count;
    memcpy(a->bytes, values, bytes);
    return CUDNN_OK;
}

static const attribute *find(const desc *d, cudnn_attribute name) {
    for (int i = 0; i < d->count; i++)
        if (d->attributes[i].name == name) return &d->attributes[i];
    return NULL;
}
static int32_t word(const desc *d, cudnn_attribute name) {
    const attribute *a = find(d, name);
    int32_t value = -1;
    if (a != NULL) memcpy(&value, a->bytes, sizeof value);
    return value;
}
static int64_t number(const desc *d, cudnn_attribute name) {
    const attribute *a = find(d, name);
    int64_t value = -1;
    if (a != NULL) memcpy(&value, a->bytes, sizeof value);
    return value;
}
static const desc *described(const desc *d, cudnn_attribute name) {
    const attribute *a = find(d, name);
    const desc *value = NULL;
    if (a != NULL) memcpy(&value, a->bytes, sizeof value);
    return value != NULL && value->is_final ? value : NULL;
}

/* ---- graphs ---- */

static bool take_tensor(const desc *operation, cudnn_attribute name, tensor *t) {
    const desc *d = described(operation, name);
    if (d == NULL || d->kind != CUDNN_TENSOR) return false;
    *t = (tensor){.id = number(d, CUDNN_TENSOR_ID), .data = (cudnn_data)word(d, CUDNN_TENSOR_DATA)};
    memcpy(t->dims, find(d, CUDNN_TENSOR_DIMS)->bytes, sizeof t->dims);
    memcpy(t->strides, find(d, CUDNN_TENSOR_STRIDES)->bytes, sizeof t->strides);
    t->is_virtual = find(d, CUDNN_TENSOR_IS_VIRTUAL)->bytes[0] != 0;
    t->is_by_value = find(d, CUDNN_TENSOR_IS_BY_VALUE)->bytes[0] != 0;
    return number(d, CUDNN_TENSOR_ALIGNMENT) >= 2;
}

static bool take_node(const desc *d, node *n) {
    const desc *how;
    n->kind = d->kind;
    switch (d->kind) {
    case CUDNN_OPERATION_MATMUL:
        n->has_b = take_tensor(d, CUDNN_OPERATION_MATMUL_B, &n->b);
        return described(d, CUDNN_OPERATION_MATMUL_DESC) != NULL && take_tensor(d, CUDNN_OPERATION_MATMUL_A, &n->x) && n->has_b && take_tensor(d, CUDNN_OPERATION_MATMUL_C, &n->y);
    case CUDNN_OPERATION_REDUCTION:
        how = described(d, CUDNN_OPERATION_REDUCTION_DESC);
        if (how != NULL) n->mode = word(how, CUDNN_REDUCTION_MODE);
        return how != NULL && take_tensor(d, CUDNN_OPERATION_REDUCTION_X, &n->x) && take_tensor(d, CUDNN_OPERATION_REDUCTION_Y, &n->y);
    case CUDNN_OPERATION_POINTWISE:
        how = described(d, CUDNN_OPERATION_POINTWISE_DESC);
        if (how == NULL) return false;
        n->mode = word(how, CUDNN_POINTWISE_MODE);
        n->axis = number(how, CUDNN_POINTWISE_AXIS);
        n->has_b = take_tensor(d, CUDNN_OPERATION_POINTWISE_B, &n->b);
        n->has_t = take_tensor(d, CUDNN_OPERATION_POINTWISE_T, &n->t);
        return take_tensor(d, CUDNN_OPERATION_POINTWISE_X, &n->x) && take_tensor(d, CUDNN_OPERATION_POINTWISE_Y, &n->y);
    default: return false;
    }
}

static graph *copy_graph(const graph *from) {
    graph *made = calloc(1, sizeof *made);
    if (from != NULL) *made = *from;
    return made;
}

static cudnn_status finish_graph(desc *d) {
    const attribute *operations = find(d, CUDNN_GRAPH_OPERATIONS);
    if (find(d, CUDNN_GRAPH_HANDLE) == NULL || operations == NULL || operations->count > NODES) return CUDNN_BAD_PARAM;
    d->graph = copy_graph(NULL);
    for (int64_t i = 0; i < operations->count; i++) {
        const desc *operation;
        memcpy(&operation, operations->bytes + 8 * i, sizeof operation);
        if (!operation->is_final || !take_node(operation, &d->graph->nodes[d->graph->count++])) return CUDNN_BAD_PARAM;
    }
    return CUDNN_OK;
}

/* An attention that keeps its scores out of memory is known by the end of its rows, max + log sum. */
static bool has_logarithm(const graph *g) {
    for (int i = 0; i < g->count; i++)
        if (g->nodes[i].kind == CUDNN_OPERATION_POINTWISE && g->nodes[i].mode == CUDNN_LOG) return true;
    return false;
}

static cudnn_status finish_plan(desc *d) {
    const desc *config = described(d, CUDNN_PLAN_CONFIG);
    if (find(d, CUDNN_PLAN_HANDLE) == NULL || config == NULL) return CUDNN_BAD_PARAM;
    if (!has_logarithm(config->graph)) return CUDNN_NOT_SUPPORTED;
    d->graph = copy_graph(config->graph);
    return CUDNN_OK;
}

cudnn_status cudnnBackendFinalize(cudnn_desc given) {
    desc *d = given;
    cudnn_status status = d->is_final ? CUDNN_BAD_PARAM : CUDNN_OK;
    if (status == CUDNN_OK && d->kind == CUDNN_OPERATION_GRAPH) status = finish_graph(d);
    if (status == CUDNN_OK && d->kind == CUDNN_PLAN) status = finish_plan(d);
    if (status == CUDNN_OK && d->kind == CUDNN_TENSOR && (find(d, CUDNN_TENSOR_DIMS) == NULL || find(d, CUDNN_TENSOR_STRIDES) == NULL)) status = CUDNN_BAD_PARAM;
    d->is_final = status == CUDNN_OK;
    return status;
}

/* One proposal for each graph, whose engine wants a workspace. */
cudnn_status cudnnBackendGetAttribute(cudnn_desc given, cudnn_attribute name, cudnn_type type, int64_t asked, int64_t *count, void *values) {
    const desc *d = given, *g;
    if (!d->is_final || asked < 1) return CUDNN_BAD_PARAM;
    *count = 1;
    if (d->kind == CUDNN_PLAN && name == CUDNN_PLAN_WORKSPACE_BYTES && type == CUDNN_AS_INT64) {
        *(int64_t *)values = WORKSPACE;
        return CUDNN_OK;
    }
    if (d->kind != CUDNN_HEURISTICS || name != CUDNN_HEURISTICS_RESULTS || (g = described(d, CUDNN_HEURISTICS_GRAPH)) == NULL) return CUDNN_BAD_PARAM;
    *count = fake_cuda.library_refuses ? 0 : 1;
    if (*count == 0) return CUDNN_OK;
    desc *config = *(desc **)values;
    config->graph = copy_graph(g->graph);
    config->is_final = true;
    return CUDNN_OK;
}

/* ---- execution ---- */

typedef struct execution { graph graph; int count; int64_t ids[OPERANDS]; void *addresses[OPERANDS]; uint32_t numbers[OPERANDS]; } execution;

/* What the inner tensors hold, by their ids. */
enum { INNER = 64 };
typedef struct state { const execution *e; double *inner[INNER]; } state;

static int64_t offset_of(const tensor *t, const int64_t *index) {
    int64_t offset = 0;
    for (int i = 0; i < 4; i++) offset += (t->dims[i] == 1 ? 0 : index[i]) * t->strides[i];
    return offset;
}

static int place_of(const execution *e, int64_t id) {
    for (int i = 0; i < e->count; i++)
        if (e->ids[i] == id) return i;
    return -1;
}

static double rounded(cudnn_data data, double value) {
    switch (data) {
    case CUDNN_F16: return small_from_f16((uint16_t)small_f16((float)value));
    case CUDNN_BF16: return small_from_bf16((uint16_t)small_bf16((float)value));
    default: return value;
    }
}

static double load(const state *s, const tensor *t, const int64_t *index) {
    const int64_t at = offset_of(t, index);
    if (t->is_virtual) return s->inner[t->id][at];
    const int place = place_of(s->e, t->id);
    if (t->is_by_value) {
        float real;
        int32_t integer;
        memcpy(&real, &s->e->numbers[place], sizeof real);
        memcpy(&integer, &s->e->numbers[place], sizeof integer);
        return t->data == CUDNN_I32 ? integer : (double)real;
    }
    const uint16_t element = ((const uint16_t *)s->e->addresses[place])[at];
    return t->data == CUDNN_F16 ? small_from_f16(element) : small_from_bf16(element);
}

static void store(const state *s, const tensor *t, const int64_t *index, double value) {
    const int64_t at = offset_of(t, index);
    if (t->is_virtual) s->inner[t->id][at] = rounded(t->data, value);
    else ((uint16_t *)s->e->addresses[place_of(s->e, t->id)])[at] = (uint16_t)(t->data == CUDNN_F16 ? small_f16((float)value) : small_bf16((float)value));
}

static double product(const state *s, const node *n, const int64_t *index) {
    double sum = 0;
    for (int64_t l = 0; l < n->x.dims[3]; l++) {
        const int64_t a[] = {index[0], index[1], index[2], l}, b[] = {index[0], index[1] * n->b.dims[1] / n->y.dims[1], l, index[3]};
        sum += load(s, &n->x, a) * load(s, &n->b, b);
    }
    return sum;
}

static double reduced(const state *s, const node *n, const int64_t *index) {
    double y = n->mode == CUDNN_MAX ? -INFINITY : 0;
    for (int64_t l = 0; l < n->x.dims[3]; l++) {
        const int64_t at[] = {index[0], index[1], index[2], l};
        const double x = load(s, &n->x, at);
        y = n->mode == CUDNN_MAX ? fmax(y, x) : y + x;
    }
    return y;
}

static double pointwise(const state *s, const node *n, const int64_t *index) {
    const double x = n->mode == CUDNN_INDEX ? (double)index[n->axis] : load(s, &n->x, index), b = n->has_b ? load(s, &n->b, index) : 0;
    switch ((cudnn_pointwise)n->mode) {
    case CUDNN_ADD: return x + b;
    case CUDNN_MUL: return x * b;
    case CUDNN_DIV: return x / b;
    case CUDNN_SUB: return x - b;
    case CUDNN_EXP: return exp(x);
    case CUDNN_LOG: return log(x);
    case CUDNN_GREATER: return x > b;
    case CUDNN_NOT_LESS: return x >= b;
    case CUDNN_INDEX: return x;
    case CUDNN_SELECT: return load(s, &n->t, index) != 0 ? x : b;
    }
    return NAN;
}

static void run_node(state *s, const node *n) {
    const int64_t *d = n->y.dims;
    int64_t i[4];
    if (n->y.is_virtual) s->inner[n->y.id] = calloc((size_t)(d[0] * d[1] * d[2] * d[3]), sizeof(double));
    for (i[0] = 0; i[0] < d[0]; i[0]++)
        for (i[1] = 0; i[1] < d[1]; i[1]++)
            for (i[2] = 0; i[2] < d[2]; i[2]++)
                for (i[3] = 0; i[3] < d[3]; i[3]++)
                    store(s, &n->y, i, n->kind == CUDNN_OPERATION_MATMUL ? product(s, n, i) : n->kind == CUDNN_OPERATION_REDUCTION ? reduced(s, n, i) : pointwise(s, n, i));
}

static void run(const void *arguments) {
    const execution *e = arguments;
    state s = {.e = e};
    fake_cuda.library_calls++;
    for (int i = 0; i < e->graph.count; i++) run_node(&s, &e->graph.nodes[i]);
    for (int i = 0; i < INNER; i++) free(s.inner[i]);
}

static bool is_given(const execution *e, const tensor *t) { return t->is_virtual ? t->id < INNER : place_of(e, t->id) >= 0; }

cudnn_status cudnnBackendExecute(cudnn_handle handle, cudnn_desc plan, cudnn_desc given) {
    const desc *p = plan, *pack = given;
    const attribute *ids = find(pack, CUDNN_PACK_IDS), *addresses = find(pack, CUDNN_PACK_ADDRESSES);
    uint8_t *workspace = (uint8_t *)(uintptr_t)number(pack, CUDNN_PACK_WORKSPACE);
    if (!p->is_final || !pack->is_final || ids == NULL || addresses == NULL || ids->count != addresses->count || ids->count > OPERANDS) return CUDNN_BAD_PARAM;
    execution e = {.graph = *p->graph, .count = (int)ids->count};
    memcpy(e.ids, ids->bytes, (size_t)ids->count * 8);
    memcpy(e.addresses, addresses->bytes, (size_t)ids->count * 8);
    for (int i = 0; i < e.graph.count; i++) {
        const node *n = &e.graph.nodes[i];
        if (!is_given(&e, &n->x) || !is_given(&e, &n->y) || (n->has_b && !is_given(&e, &n->b)) || (n->has_t && !is_given(&e, &n->t))) return CUDNN_BAD_PARAM;
        if (n->has_b && n->b.is_by_value) memcpy(&e.numbers[place_of(&e, n->b.id)], e.addresses[place_of(&e, n->b.id)], sizeof *e.numbers);
    }
    if ((uintptr_t)workspace % 256 != 0) return CUDNN_BAD_PARAM;
    memset(workspace, 0xff, WORKSPACE);   /* the library's own */
    fake_cuda_put(handle->stream, run, &e, sizeof e);
    return CUDNN_OK;
}
