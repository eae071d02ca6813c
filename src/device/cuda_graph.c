/* Device graphs: the launches of a run as one thing to start. The graph is a chain of nodes, one for each launch: a kernel, or the graph that a library's call
 * puts into a stream. Recording a run again compares each launch with the node that has its place: what differs in arguments or grid alone is patched into the
 * executable graph, anything else makes it anew. So a run whose sizes and addresses are those of the run before costs one call of the driver. */
#include "device/cuda.h"

#include <string.h>

dw_status cuda_graph_create(device *device, device_graph **result) {
    void *memory;
    *result = NULL;
    TRY(base_alloc(device->context, sizeof **result, _Alignof(max_align_t), &memory));
    *result = memory;
    **result = (device_graph){0};
    arena_init(&(*result)->arena, device->context);
    return DW_OK;
}

static void drop_exec(device *device, device_graph *graph) {
    const cuda_driver *driver = &cuda_state_of(device)->driver;
    if (graph->exec != NULL) driver->GraphExecDestroy(graph->exec);
    if (graph->graph != NULL) driver->GraphDestroy(graph->graph);
    graph->exec = NULL;
    graph->graph = NULL;
}

static void set_child(device *device, graph_node *node, cuda_graph child) {
    if (node->child != NULL) cuda_state_of(device)->driver.GraphDestroy(node->child);
    node->child = child;
}

static void shrink(device *device, device_graph *graph, size_t count) {
    for (size_t i = count; i < graph->count; i++) set_child(device, graph->nodes[i], NULL);
    graph->count = count;
}

void cuda_graph_release(device *device, device_graph *graph) {
    if (graph == NULL) return;
    if (graph->count > 0 && cuda_enter(device) == DW_OK) {
        if (graph->graph != NULL) cuda_state_of(device)->driver.StreamSynchronize(cuda_state_of(device)->stream);
        drop_exec(device, graph);
        shrink(device, graph, 0);
        cuda_leave(device);
    }
    arena_free(&graph->arena);
    base_release(device->context, graph, sizeof *graph, _Alignof(max_align_t));
}

dw_status cuda_graph_begin(device *device, device_graph *graph) {
    (void)device;
    graph->place = 0;
    graph->step = 0;
    graph->differs = graph->exec == NULL;
    return DW_OK;
}

static cuda_kernel_node node_of(const graph_node *node, void **parameters) {
    const kernel_launch *l = &node->launch;
    parameters[0] = (void *)(uintptr_t)l->arguments;
    return (cuda_kernel_node){.function = node->function, .grid_x = l->grid[0], .grid_y = l->grid[1], .grid_z = l->grid[2], .block_x = l->block[0],
                              .block_y = l->block[1], .block_z = l->block[2], .shared_bytes = l->shared_bytes, .parameters = parameters};
}

/* Can a node of a become one of b? Its attributes stay as they are. */
static bool can_become(const kernel_launch *a, const kernel_launch *b) {
    return a->entry == b->entry && a->image == b->image && a->library == b->library && a->argument_bytes == b->argument_bytes && a->overlaps == b->overlaps &&
           memcmp(a->cluster, b->cluster, sizeof a->cluster) == 0 && memcmp(a->preferred, b->preferred, sizeof a->preferred) == 0 && a->shared_bytes == b->shared_bytes && memcmp(a->block, b->block, sizeof a->block) == 0;
}

static bool is_same(const kernel_launch *a, const kernel_launch *b) {
    return memcmp(a->grid, b->grid, sizeof a->grid) == 0 && memcmp(a->arguments, b->arguments, a->argument_bytes) == 0;
}

static dw_status patch(device *device, device_graph *graph, const graph_node *node) {
    void *parameters[1];
    cuda_kernel_node params = node_of(node, parameters);
    CUDA_TRY(device->context, &cuda_state_of(device)->driver, GraphExecKernelNodeSetParams_v2, graph->exec, node->node, &params);
    return DW_OK;
}

/* What a library puts into a stream may have another form at other sizes, which no executable graph can adopt. */
static dw_status record_call(device *device, device_graph *graph, graph_node *node) {
    cuda_graph child;
    TRY(cuda_library_capture(device, &node->launch, &child));
    set_child(device, node, child);
    if (!graph->differs && cuda_state_of(device)->driver.GraphExecChildGraphNodeSetParams(graph->exec, node->node, child) != CUDA_OK) graph->differs = true;
    return DW_OK;
}

static dw_status new_node(device_graph *graph, graph_node **node) {
    const uintptr_t align = _Alignof(graph_node);   /* as its arguments may hold tensor maps, more than an arena's */
    uint8_t *room = arena_new(&graph->arena, 1, sizeof(graph_node) + align);
    *node = NULL;
    if (room == NULL) return DW_NO_MEMORY;
    *node = (graph_node *)(room + (-(uintptr_t)room & (align - 1)));
    (*node)->child = NULL;
    return DW_OK;
}

static dw_status next_place(device *device, device_graph *graph, graph_node **node) {
    if (graph->place == graph->count) {
        graph_node **grown = arena_grow(&graph->arena, graph->nodes, graph->count, &graph->capacity, sizeof *grown), *made;
        if (grown == NULL) return DW_NO_MEMORY;
        graph->nodes = grown;
        TRY(new_node(graph, &made));
        graph->nodes[graph->count++] = made;
        graph->differs = true;
    }
    (void)device;
    *node = graph->nodes[graph->place++];
    return DW_OK;
}

typedef struct graph_launcher {
    kernel_launcher launcher;
    device *device;
    device_graph *graph;
    const kernel_run *run;
} graph_launcher;

static dw_status record(kernel_launcher *launcher, const kernel_launch *given) {
    graph_launcher *to = (graph_launcher *)launcher;
    graph_node *node;
    kernel_launch launch = *given;
    TRY(kernel_launch_check(to->device->context, &launch, &to->device->caps));
    TRY(cuda_fill_slots(to->device, to->run, to->graph->step, &launch));
    TRY(next_place(to->device, to->graph, &node));
    node->step = to->graph->step;
    const bool can_stay = !to->graph->differs && can_become(&node->launch, &launch);
    if (can_stay && is_same(&node->launch, &launch)) return DW_OK;
    to->graph->differs = !can_stay;
    node->launch = launch;
    if (launch.library != NULL) return record_call(to->device, to->graph, node);
    set_child(to->device, node, NULL);
    return can_stay ? patch(to->device, to->graph, node) : cuda_find_entry(to->device, &launch, &node->function);
}

/* Nodes that say something else than the executable graph does must not be taken for it: behind a failure it is made anew. */
static dw_status made_or_dropped(device *device, device_graph *graph, dw_status status) {
    if (status != DW_OK) drop_exec(device, graph);
    return status;
}

dw_status cuda_graph_add(device *device, device_graph *graph, const kernel_row *row, kernel_run *run) {
    graph_launcher launcher = {{record}, device, graph, run};
    run->chip = &device->caps;
    graph->step++;
    return made_or_dropped(device, graph, kernel_shape(row, run, &launcher.launcher));
}

/* ---- what a graph carries ---- */

/* The node at one end of the graph does that launch from now on. */
static dw_status carry_at(device *device, device_graph *graph, graph_node **end, const kernel_launch *launch) {
    graph_node *node = *end;
    if (node != NULL) {
        if (is_same(&node->launch, launch)) return DW_OK;
        node->launch = *launch;
        return graph->differs ? DW_OK : patch(device, graph, node);
    }
    TRY(new_node(graph, &node));
    TRY(cuda_find_entry(device, launch, &node->function));
    node->launch = *launch;
    node->step = 0;
    *end = node;
    graph->differs = true;
    return DW_OK;
}

dw_status cuda_graph_carry(device *device, device_graph *graph, int first_count, const kernel_piece *first, int last_count, const kernel_piece *last, bool *done) {
    kernel_launch launches[2];
    *done = cuda_state_of(device)->carries && graph->place > 0 && kernel_carry(&device->caps, first_count, first, false, &launches[0]) && kernel_carry(&device->caps, last_count, last, true, &launches[1]);
    if (!*done) {
        if (graph->first == NULL) return DW_OK;
        kernel_carry(&device->caps, 0, NULL, false, &launches[0]);
        kernel_carry(&device->caps, 0, NULL, true, &launches[1]);
    }
    if (graph->place != graph->count || graph->exec == NULL) graph->differs = true;
    dw_status status = carry_at(device, graph, &graph->first, &launches[0]);
    if (status == DW_OK) status = carry_at(device, graph, &graph->last, &launches[1]);
    return made_or_dropped(device, graph, status);
}

/* A launch may begin early after a kernel of ours alone: a library's calls have no place where others could hang. */
bool cuda_graph_is_early(const graph_node *before, const graph_node *node) { return node->launch.overlaps && node->child == NULL && before->child == NULL; }

static cuda_edge edge_between(const graph_node *before, const graph_node *node) {
    if (!cuda_graph_is_early(before, node)) return (cuda_edge){0};
    return (cuda_edge){.from_port = CUDA_PORT_PROGRAMMATIC, .type = CUDA_EDGE_PROGRAMMATIC};
}

dw_status cuda_graph_add_node(device *device, cuda_graph graph, const graph_node *node, const graph_node *previous, const cuda_node *before, cuda_node *made) {
    const cuda_driver *driver = &cuda_state_of(device)->driver;
    const kernel_launch *launch = &node->launch;
    void *parameters[1];
    if (node->child != NULL) {
        CUDA_TRY(device->context, driver, GraphAddChildGraphNode, made, graph, before, before ? 1 : 0, node->child);
        return DW_OK;
    }
    cuda_node_params params = {.type = CUDA_NODE_KERNEL, .kernel = node_of(node, parameters)};
    const cuda_edge edge = previous != NULL ? edge_between(previous, node) : (cuda_edge){0};
    CUDA_TRY(device->context, driver, GraphAddNode_v2, made, graph, before, before ? &edge : NULL, before ? 1 : 0, &params);
    if (launch->cluster[0] == 0) return DW_OK;
    const cuda_launch_value value = {.cluster = {launch->cluster[0], launch->cluster[1], launch->cluster[2]}};
    CUDA_TRY(device->context, driver, GraphKernelNodeSetAttribute, *made, CUDA_LAUNCH_CLUSTER, &value);
    if (launch->preferred[0] == 0) return DW_OK;
    const cuda_launch_value preferred = {.cluster = {launch->preferred[0], launch->preferred[1], launch->preferred[2]}};
    CUDA_TRY(device->context, driver, GraphKernelNodeSetAttribute, *made, CUDA_LAUNCH_PREFERRED_CLUSTER, &preferred);
    return DW_OK;
}

/* A node behind *previous, which it becomes; NULL: nothing is in front of it. What is carried first is there before any launch begins: some read what a caller passes in before they wait. */
static dw_status append(device *device, device_graph *graph, graph_node *node, const graph_node **previous) {
    const graph_node *beside = *previous != graph->first ? *previous : NULL;
    TRY(cuda_graph_add_node(device, graph->graph, node, beside, *previous != NULL ? &(*previous)->node : NULL, &node->node));
    *previous = node;
    return DW_OK;
}

/* The nodes that were recorded, as a new executable graph. One that is running ends before the driver frees it. */
static dw_status instantiate(device *device, device_graph *graph) {
    cuda_state *state = cuda_state_of(device);
    cuda_instantiate_params params = {.flags = CUDA_INSTANTIATE_UPLOAD, .upload_stream = state->current};
    drop_exec(device, graph);
    shrink(device, graph, graph->place);
    CUDA_TRY(device->context, &state->driver, GraphCreate, &graph->graph, 0);
    const graph_node *previous = NULL;
    if (graph->first != NULL) TRY(append(device, graph, graph->first, &previous));
    for (size_t i = 0; i < graph->count; i++) TRY(append(device, graph, graph->nodes[i], &previous));
    if (graph->last != NULL) TRY(append(device, graph, graph->last, &previous));
    CUDA_TRY(device->context, &state->driver, GraphInstantiateWithParams, &graph->exec, graph->graph, &params);
    return DW_OK;
}

static dw_status chain(device *device, cuda_graph to, const device_graph *graph) {
    cuda_node nodes[2] = {NULL, NULL};
    for (size_t i = 0; i < graph->count; i++)
        TRY(cuda_graph_add_node(device, to, graph->nodes[i], i > 0 ? graph->nodes[i - 1] : NULL, i > 0 ? &nodes[(i - 1) % 2] : NULL, &nodes[i % 2]));
    return cuda_add_captured(device, to);
}

/* A graph of the nodes that were recorded, copied into the caller's. The executable one keeps what it can run. */
static dw_status capture(device *device, device_graph *graph) {
    const cuda_driver *driver = &cuda_state_of(device)->driver;
    cuda_graph made;
    if (graph->differs) drop_exec(device, graph);
    shrink(device, graph, graph->place);
    if (graph->count == 0) return DW_OK;
    CUDA_TRY(device->context, driver, GraphCreate, &made, 0);
    dw_status status = chain(device, made, graph);
    driver->GraphDestroy(made);
    return status;
}

dw_status cuda_graph_ready(device *device, device_graph *graph) {
    if (graph->place != graph->count || graph->exec == NULL) graph->differs = true;
    const dw_status status = graph->differs ? instantiate(device, graph) : DW_OK;
    graph->differs = false;
    if (status == DW_OK) return DW_OK;
    drop_exec(device, graph);
    return base_fail_at(device->context, status, "a device graph of %zu launches", graph->count);
}

dw_status cuda_graph_launch(device *device, device_graph *graph) {
    cuda_state *state = cuda_state_of(device);
    if (graph->place != graph->count) graph->differs = true;
    if (state->captured != NULL) return capture(device, graph);
    TRY(cuda_graph_ready(device, graph));
    if (graph->count == 0) return DW_OK;
    CUDA_TRY(device->context, &state->driver, GraphLaunch, graph->exec, state->current);
    return DW_OK;
}
