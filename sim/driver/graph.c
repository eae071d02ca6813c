/* The driver's calls on graphs: nodes in the order they were added, which their dependencies cannot contradict, run one after another. */
#include "driver.h"

#include <stdlib.h>

struct cuda_node_st {
    cuda_node_type type;
    driver_launch launch;
    cuda_copy copy;
    cuda_memset_node set;
    cuda_graph child;              /* the node's own copy */
    size_t index, chain;           /* its place in the graph; of launches that overlap, that of the first of them */
    bool early, followed;          /* it begins before the one that it depends on has ended; another begins so after it */
    uint64_t epoch;                /* of its launch */
    const struct cuda_node_st *origin;
    struct cuda_node_st *next;
};

struct cuda_graph_st { struct cuda_node_st *first, **last; size_t count; };
struct cuda_graph_exec_st { struct cuda_graph_st graph; };

static void init(struct cuda_graph_st *graph) { *graph = (struct cuda_graph_st){.last = &graph->first}; }

static void empty(struct cuda_graph_st *graph) {
    while (graph->first != NULL) {
        struct cuda_node_st *next = graph->first->next;
        free(graph->first->launch.params);
        if (graph->first->child != NULL) {
            empty(graph->first->child);
            free(graph->first->child);
        }
        free(graph->first);
        graph->first = next;
    }
}

static struct cuda_node_st *append(struct cuda_graph_st *graph, cuda_node_type type) {
    struct cuda_node_st *node = calloc(1, sizeof *node);
    if (node == NULL) return NULL;
    node->type = type;
    node->index = node->chain = graph->count;
    *graph->last = node;
    graph->last = &node->next;
    graph->count++;
    return node;
}

static cuda_result copy_graph(struct cuda_graph_st *to, const struct cuda_graph_st *from) {
    for (const struct cuda_node_st *n = from->first; n != NULL; n = n->next) {
        struct cuda_node_st *node = append(to, n->type), *next;
        if (node == NULL) return CUDA_OUT_OF_MEMORY;
        next = node->next;
        *node = *n;
        node->next = next;
        node->origin = n;
        node->launch.params = NULL;
        node->child = NULL;
        if (n->launch.params != NULL) {
            size_t bytes = n->launch.function->code->param_bytes + 1;
            node->launch.params = malloc(bytes);
            if (node->launch.params == NULL) return CUDA_OUT_OF_MEMORY;
            memcpy(node->launch.params, n->launch.params, bytes);
        }
        if (n->child != NULL) {
            node->child = malloc(sizeof *node->child);
            if (node->child == NULL) return CUDA_OUT_OF_MEMORY;
            init(node->child);
            cuda_result result = copy_graph(node->child, n->child);
            if (result != CUDA_OK) return result;
        }
    }
    return CUDA_OK;
}

static cuda_result run_kernel(const struct cuda_graph_st *graph, struct cuda_node_st *n) {
    const struct cuda_node_st *first = graph->first;
    while (first->index != n->chain) first = first->next;
    const driver_overlap overlap = {.early = n->early, .chain = n->early ? first->epoch : 0};
    n->epoch = sim_driver.epoch + 1;
    return driver_execute(&n->launch, n->early || n->followed ? &overlap : NULL);
}

static cuda_result run_graph(struct cuda_graph_st *graph) {
    for (struct cuda_node_st *n = graph->first; n != NULL; n = n->next) {
        cuda_result result = CUDA_OK;
        if (n->type == CUDA_NODE_KERNEL) result = run_kernel(graph, n);
        if (n->type == CUDA_NODE_MEMCPY) result = driver_copy_box(&n->copy);
        if (n->type == CUDA_NODE_MEMSET) result = driver_set_rows(&n->set);
        if (n->type == CUDA_NODE_GRAPH) result = run_graph(n->child);
        if (result != CUDA_OK) return result;
    }
    return CUDA_OK;
}

static cuda_result run_late(void *data) { return run_graph(data); }

static void drop_late(void *data) {
    empty(data);
    free(data);
}

/* What is put off stays as it is now, whatever becomes of the executable graph. */
static cuda_result ask_graph(struct cuda_graph_st *graph) {
    if (!sim_driver.late) return run_graph(graph);
    struct cuda_graph_st *copy = malloc(sizeof *copy);
    if (copy == NULL) return CUDA_OUT_OF_MEMORY;
    init(copy);
    const cuda_result result = copy_graph(copy, graph);
    if (result != CUDA_OK) {
        drop_late(copy);
        return result;
    }
    return driver_ask(&(driver_work){run_late, drop_late, copy});
}

/* ---- graphs ---- */

cuda_result cuGraphCreate(cuda_graph *graph, unsigned flags) {
    if (graph == NULL || flags != 0) return CUDA_INVALID_VALUE;
    *graph = malloc(sizeof **graph);
    if (*graph == NULL) return CUDA_OUT_OF_MEMORY;
    init(*graph);
    return CUDA_OK;
}

cuda_result cuGraphDestroy(cuda_graph graph) {
    if (graph == NULL) return CUDA_INVALID_HANDLE;
    empty(graph);
    free(graph);
    return CUDA_OK;
}

static cuda_result prepare_node(const cuda_kernel_node *k, driver_launch *launch) {
    const cuda_launch_config config = {.grid_x = k->grid_x, .grid_y = k->grid_y, .grid_z = k->grid_z, .block_x = k->block_x, .block_y = k->block_y, .block_z = k->block_z,
                                       .shared_bytes = k->shared_bytes};
    cuda_function f = k->function != NULL ? k->function : (cuda_function)(void *)k->kernel;
    return f != NULL ? driver_prepare(&config, f, k->parameters, k->extra, launch) : CUDA_INVALID_VALUE;
}

static cuda_result add_node(cuda_node *node, cuda_graph graph, const cuda_node_params *params) {
    driver_launch launch = {0};
    cuda_result result = CUDA_OK;
    switch (params->type) {
    case CUDA_NODE_KERNEL: result = prepare_node(&params->kernel, &launch); break;
    case CUDA_NODE_MEMCPY: case CUDA_NODE_EMPTY: break;
    case CUDA_NODE_MEMSET:
        if (params->memset.element_bytes != 1 && params->memset.element_bytes != 2 && params->memset.element_bytes != 4) result = CUDA_INVALID_VALUE;
        break;
    case CUDA_NODE_GRAPH: return cuGraphAddChildGraphNode(node, graph, NULL, 0, params->graph.graph);
    default: return driver_say(CUDA_NOT_SUPPORTED, "graph nodes of type %d are not modelled", (int)params->type);
    }
    if (result != CUDA_OK) return result;
    *node = append(graph, params->type);
    if (*node == NULL) {
        free(launch.params);
        return CUDA_OUT_OF_MEMORY;
    }
    (*node)->launch = launch;
    if (params->type == CUDA_NODE_MEMCPY) (*node)->copy = params->memcpy.copy;
    if (params->type == CUDA_NODE_MEMSET) (*node)->set = params->memset;
    return CUDA_OK;
}

/* A programmatic edge lets the node begin before the other has ended, and so before those that the other need not wait for. */
static cuda_result overlap_nodes(cuda_node node, const cuda_node *dependencies, const cuda_edge *edges, size_t count) {
    for (size_t i = 0; edges != NULL && i < count; i++) {
        if (edges[i].type != CUDA_EDGE_PROGRAMMATIC) continue;
        if (node->type != CUDA_NODE_KERNEL || dependencies[i]->type != CUDA_NODE_KERNEL) return driver_say(CUDA_INVALID_VALUE, "a programmatic edge between nodes that are not both kernels");
        node->early = dependencies[i]->followed = true;
        if (dependencies[i]->chain < node->chain) node->chain = dependencies[i]->chain;
    }
    return CUDA_OK;
}

cuda_result cuGraphAddNode_v2(cuda_node *node, cuda_graph graph, const cuda_node *dependencies, const cuda_edge *edges, size_t count, cuda_node_params *params) {
    if (node == NULL || graph == NULL || params == NULL || (count > 0 && dependencies == NULL)) return CUDA_INVALID_VALUE;
    if (params->type == CUDA_NODE_GRAPH) return add_node(node, graph, params);
    cuda_result result = driver_enter();
    if (result == CUDA_OK) result = add_node(node, graph, params);
    if (result == CUDA_OK) result = overlap_nodes(*node, dependencies, edges, count);
    return driver_leave(result);
}

cuda_result cuGraphAddChildGraphNode(cuda_node *node, cuda_graph graph, const cuda_node *dependencies, size_t count, cuda_graph child) {
    if (node == NULL || graph == NULL || child == NULL || (count > 0 && dependencies == NULL)) return CUDA_INVALID_VALUE;
    *node = append(graph, CUDA_NODE_GRAPH);
    if (*node == NULL) return CUDA_OUT_OF_MEMORY;
    (*node)->child = malloc(sizeof *(*node)->child);
    if ((*node)->child == NULL) return CUDA_OUT_OF_MEMORY;
    init((*node)->child);
    return copy_graph((*node)->child, child);
}

cuda_result cuGraphKernelNodeSetAttribute(cuda_node node, cuda_launch_attribute_id id, const cuda_launch_value *value) {
    if (node == NULL || value == NULL || node->type != CUDA_NODE_KERNEL) return CUDA_INVALID_VALUE;
    driver_set_attribute(&node->launch, id, value);
    return CUDA_OK;
}

/* ---- executable graphs ---- */

cuda_result cuGraphInstantiateWithParams(cuda_graph_exec *exec, cuda_graph graph, cuda_instantiate_params *params) {
    if (exec == NULL || graph == NULL || params == NULL) return CUDA_INVALID_VALUE;
    *exec = malloc(sizeof **exec);
    if (*exec == NULL) return CUDA_OUT_OF_MEMORY;
    init(&(*exec)->graph);
    params->result = 0;
    params->failed_node = NULL;
    cuda_result result = copy_graph(&(*exec)->graph, graph);
    if (result != CUDA_OK) {
        cuGraphExecDestroy(*exec);
        *exec = NULL;
    }
    return result;
}

cuda_result cuGraphUpload(cuda_graph_exec exec, cuda_stream stream) {
    (void)stream;
    return exec != NULL ? CUDA_OK : CUDA_INVALID_HANDLE;
}

cuda_result cuGraphLaunch(cuda_graph_exec exec, cuda_stream stream) {
    (void)stream;
    cuda_result result = driver_enter();
    if (result == CUDA_OK && exec == NULL) result = CUDA_INVALID_HANDLE;
    return driver_leave(result == CUDA_OK ? ask_graph(&exec->graph) : result);
}

static struct cuda_node_st *find_node(cuda_graph_exec exec, cuda_node node, cuda_node_type type) {
    for (struct cuda_node_st *n = exec != NULL ? exec->graph.first : NULL; n != NULL; n = n->next) {
        if (n->origin == node && n->type == type) return n;
    }
    return NULL;
}

cuda_result cuGraphExecKernelNodeSetParams_v2(cuda_graph_exec exec, cuda_node node, const cuda_kernel_node *params) {
    struct cuda_node_st *n = find_node(exec, node, CUDA_NODE_KERNEL);
    driver_launch launch;
    if (n == NULL || params == NULL) return CUDA_INVALID_VALUE;
    cuda_result result = driver_enter();
    if (result == CUDA_OK) result = prepare_node(params, &launch);
    if (result == CUDA_OK) {
        memcpy(launch.cluster, n->launch.cluster, sizeof launch.cluster);
        memcpy(launch.preferred, n->launch.preferred, sizeof launch.preferred);
        launch.sized = n->launch.sized;
        launch.cooperative = n->launch.cooperative;
        free(n->launch.params);
        n->launch = launch;
    }
    return driver_leave(result);
}

cuda_result cuGraphExecMemcpyNodeSetParams(cuda_graph_exec exec, cuda_node node, const cuda_copy *params, cuda_context context) {
    struct cuda_node_st *n = find_node(exec, node, CUDA_NODE_MEMCPY);
    (void)context;
    if (n == NULL || params == NULL) return CUDA_INVALID_VALUE;
    n->copy = *params;
    return CUDA_OK;
}

cuda_result cuGraphExecMemsetNodeSetParams(cuda_graph_exec exec, cuda_node node, const cuda_memset_v1 *params, cuda_context context) {
    struct cuda_node_st *n = find_node(exec, node, CUDA_NODE_MEMSET);
    if (n == NULL || params == NULL) return CUDA_INVALID_VALUE;
    n->set = (cuda_memset_node){params->to, params->pitch, params->value, params->element_bytes, params->width, params->height, context};
    return CUDA_OK;
}

cuda_result cuGraphExecChildGraphNodeSetParams(cuda_graph_exec exec, cuda_node node, cuda_graph child) {
    (void)exec;
    (void)node;
    (void)child;
    return driver_say(CUDA_NOT_SUPPORTED, "child graphs of an executable graph are not changed here: they would be calls of vendors' libraries, which know no simulator");
}

static bool same_shape(const struct cuda_graph_st *a, const struct cuda_graph_st *b) {
    const struct cuda_node_st *m = a->first, *n = b->first;
    for (; m != NULL && n != NULL; m = m->next, n = n->next) {
        if (m->type != n->type || (m->type == CUDA_NODE_KERNEL && m->launch.function != n->launch.function)) return false;
        if (m->child != NULL && !same_shape(m->child, n->child)) return false;
    }
    return m == NULL && n == NULL;
}

cuda_result cuGraphExecUpdate_v2(cuda_graph_exec exec, cuda_graph graph, cuda_update_result *result) {
    if (exec == NULL || graph == NULL || result == NULL) return CUDA_INVALID_VALUE;
    *result = (cuda_update_result){0};
    if (!same_shape(&exec->graph, graph)) {
        result->result = 1;
        return CUDA_UPDATE_FAILURE;
    }
    struct cuda_graph_st fresh;
    init(&fresh);
    cuda_result copied = copy_graph(&fresh, graph);
    if (copied != CUDA_OK) {
        empty(&fresh);
        return copied;
    }
    const struct cuda_node_st *old = exec->graph.first;
    for (struct cuda_node_st *n = fresh.first; n != NULL; n = n->next, old = old->next) n->origin = old->origin;
    empty(&exec->graph);
    exec->graph = fresh;
    if (exec->graph.first == NULL) exec->graph.last = &exec->graph.first;
    return CUDA_OK;
}

cuda_result cuGraphExecDestroy(cuda_graph_exec exec) {
    if (exec == NULL) return CUDA_INVALID_HANDLE;
    empty(&exec->graph);
    free(exec);
    return CUDA_OK;
}
