/* Times of a device graph by the GPU's own clock. Three copies of the graph run in turns, each with nodes that record events:
 *     whole   event, launches as they are, event
 *     apart   event, the same launches, but steps wait for each other, event
 *     steps   event, a step, event, a step, event, ..
 * An event between two steps costs time of its own. What steps then take more than apart is shared out among them and taken off, so that they add up to apart. Launches within a step overlap as they
 * ever do. Nothing is copied, and the host is in none of it. */
#include "device/cuda.h"

#include <stdlib.h>

typedef enum timed { TIMED_WHOLE, TIMED_APART, TIMED_STEPS, TIMED_COUNT } timed;

typedef struct timed_graph {
    cuda_graph graph;
    cuda_graph_exec exec;
    cuda_event *events;           /* the first before everything, others behind a step each, or the second behind everything */
    size_t event_count;
} timed_graph;

typedef struct timing {
    device *device;
    device_graph *from;
    arena arena;
    timed_graph graphs[TIMED_COUNT];
    double *seconds[TIMED_COUNT]; /* [between two events][run] */
    int runs;
} timing;

static const cuda_driver *driver_of(const timing *t) { return &cuda_state_of(t->device)->driver; }

static bool begins_step(const device_graph *graph, size_t i) { return i > 0 && graph->nodes[i]->step != graph->nodes[i - 1]->step; }

/* Steps that launch anything. */
static size_t busy_steps(const device_graph *graph) {
    size_t count = 1;
    for (size_t i = 1; i < graph->place; i++) count += begins_step(graph, i);
    return count;
}

/* ---- making ---- */

static dw_status add_event(const timing *t, timed_graph *made, const cuda_node *before, cuda_node *node) {
    cuda_event *event = &made->events[made->event_count];
    CUDA_TRY(t->device->context, driver_of(t), EventCreate, event, 0);
    made->event_count++;
    cuda_node_params params = {.type = CUDA_NODE_EVENT, .record = {*event}};
    CUDA_TRY(t->device->context, driver_of(t), GraphAddNode_v2, node, made->graph, before, NULL, before != NULL ? 1 : 0, &params);
    return DW_OK;
}

/* Node i behind *last, which it becomes. */
static dw_status add_launch(const timing *t, timed kind, size_t i, timed_graph *made, cuda_node *last) {
    const graph_node *previous = i > 0 ? t->from->nodes[i - 1] : NULL;
    const cuda_node before = *last;
    cuda_node between = before;
    if (kind != TIMED_WHOLE && begins_step(t->from, i)) previous = NULL;
    if (kind == TIMED_STEPS && begins_step(t->from, i)) TRY(add_event(t, made, &before, &between));
    return cuda_graph_add_node(t->device, made->graph, t->from->nodes[i], previous, &between, last);
}

static dw_status make(timing *t, timed kind) {
    timed_graph *made = &t->graphs[kind];
    cuda_node last, end;
    cuda_instantiate_params params = {.flags = CUDA_INSTANTIATE_UPLOAD, .upload_stream = cuda_state_of(t->device)->stream};
    const size_t spans = kind == TIMED_STEPS ? busy_steps(t->from) : 1;
    TRY_NEW(made->events, &t->arena, spans + 1);
    TRY_NEW(t->seconds[kind], &t->arena, spans * (size_t)t->runs);
    CUDA_TRY(t->device->context, driver_of(t), GraphCreate, &made->graph, 0);
    TRY(add_event(t, made, NULL, &last));
    for (size_t i = 0; i < t->from->place; i++) TRY(add_launch(t, kind, i, made, &last));
    TRY(add_event(t, made, &last, &end));
    CUDA_TRY(t->device->context, driver_of(t), GraphInstantiateWithParams, &made->exec, made->graph, &params);
    return DW_OK;
}

static void drop(timing *t) {
    driver_of(t)->StreamSynchronize(cuda_state_of(t->device)->stream);
    for (int kind = 0; kind < TIMED_COUNT; kind++) {
        timed_graph *made = &t->graphs[kind];
        if (made->exec != NULL) driver_of(t)->GraphExecDestroy(made->exec);
        if (made->graph != NULL) driver_of(t)->GraphDestroy(made->graph);
        for (size_t i = 0; i < made->event_count; i++) driver_of(t)->EventDestroy_v2(made->events[i]);
    }
    arena_free(&t->arena);
}

/* ---- running ---- */

/* run below 0: it does not count. */
static dw_status run_one(timing *t, timed kind, int run) {
    const timed_graph *made = &t->graphs[kind];
    CUDA_TRY(t->device->context, driver_of(t), GraphLaunch, made->exec, cuda_state_of(t->device)->stream);
    CUDA_TRY(t->device->context, driver_of(t), StreamSynchronize, cuda_state_of(t->device)->stream);
    for (size_t i = 0; run >= 0 && i + 1 < made->event_count; i++) {
        float milliseconds;
        CUDA_TRY(t->device->context, driver_of(t), EventElapsedTime, &milliseconds, made->events[i], made->events[i + 1]);
        t->seconds[kind][i * (size_t)t->runs + (size_t)run] = (double)milliseconds * 1e-3;
    }
    return base_poll(t->device->context);
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(timing *t, timed kind, size_t span) {
    double *seconds = &t->seconds[kind][span * (size_t)t->runs];
    qsort(seconds, (size_t)t->runs, sizeof *seconds, compare);
    return seconds[t->runs / 2];
}

static void tell(timing *t, device_times *times) {
    const size_t spans = busy_steps(t->from);
    double sum = 0;
    times->whole = median(t, TIMED_WHOLE, 0);
    times->apart = median(t, TIMED_APART, 0);
    for (size_t i = 0, span = 0; i < t->from->place; i++) {
        if (i > 0 && !begins_step(t->from, i)) continue;
        sum += times->steps[t->from->nodes[i]->step - 1] = median(t, TIMED_STEPS, span++);
    }
    times->per_look = sum > times->apart ? (sum - times->apart) / (double)spans : 0;
    double left = 0;
    for (size_t i = 0; i < times->step_count; i++) left += times->steps[i] = times->steps[i] > times->per_look ? times->steps[i] - times->per_look : 0;
    for (size_t i = 0; i < times->step_count && left > 0; i++) times->steps[i] *= times->apart / left;   /* medians of parts are not parts of the median */
}

static dw_status measure(timing *t, device_times *times) {
    for (int kind = 0; kind < TIMED_COUNT; kind++) TRY(make(t, (timed)kind));
    for (int run = -1; run < t->runs; run++)
        for (int kind = 0; kind < TIMED_COUNT; kind++) TRY(run_one(t, (timed)kind, run));
    tell(t, times);
    return DW_OK;
}

dw_status cuda_graph_time(device *device, device_graph *graph, int runs, device_times *times) {
    timing t = {.device = device, .from = graph, .runs = runs > 0 ? runs : 1};
    if (cuda_state_of(device)->driver.is_simulated) return base_fail(device->context, DW_UNSUPPORTED, "a simulated device has no times");
    if (graph->exec == NULL && graph->place > 0) return base_fail(device->context, DW_INVALID, "a graph is timed after it was launched");
    if (times->step_count != graph->step) return base_fail(device->context, DW_INTERNAL, "a graph of %u steps is timed as one of %zu", (unsigned)graph->step, times->step_count);
    *times = (device_times){.steps = times->steps, .step_count = times->step_count, .launches = (int)graph->place};
    for (size_t i = 0; i < times->step_count; i++) times->steps[i] = 0;
    if (graph->place == 0) return DW_OK;
    for (size_t i = 1; i < graph->place; i++) times->early += cuda_graph_is_early(graph->nodes[i - 1], graph->nodes[i]);
    arena_init(&t.arena, device->context);
    dw_status status = measure(&t, times);
    drop(&t);
    return status;
}
