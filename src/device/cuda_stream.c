/* Streams of callers: the device's work goes to them for a while, in the order in which it is started whatever the stream. A stream that is being captured
 * receives no work; its graph gets ours as a child, and is the caller's to launch and to put in order. */
#include "device/cuda.h"

static dw_status ask_capture(device *device, cuda_stream stream, cuda_graph *graph) {
    const cuda_driver *driver = &cuda_state_of(device)->driver;
    cuda_capture_status status = CUDA_CAPTURE_NONE;
    const cuda_node *before;
    const cuda_edge *edges;
    size_t count;
    uint64_t id;
    *graph = NULL;
    CUDA_TRY(device->context, driver, StreamGetCaptureInfo_v3, stream, &status, &id, graph, &before, &edges, &count);
    if (status == CUDA_CAPTURE_BROKEN) return base_fail(device->context, DW_INVALID, "the stream's capture was invalidated by an earlier call: end it");
    if (status != CUDA_CAPTURE_ACTIVE) *graph = NULL;
    return DW_OK;
}

static dw_status begin(device *device, cuda_stream stream) {
    cuda_state *state = cuda_state_of(device);
    TRY(ask_capture(device, stream, &state->captured));
    if (state->captured == NULL) CUDA_TRY(device->context, &state->driver, StreamWaitEvent, stream, state->done, 0);
    state->current = stream;
    return DW_OK;
}

dw_status cuda_follow(device *device, void *stream, bool *captured) {
    cuda_state *state = cuda_state_of(device);
    TRY(cuda_enter(device));
    dw_status status = begin(device, stream);
    if (status != DW_OK) state->captured = NULL;
    *captured = state->captured != NULL;
    cuda_leave(device);
    return status;
}

static dw_status end(device *device, cuda_stream stream) {
    cuda_state *state = cuda_state_of(device);
    if (state->captured != NULL) return DW_OK;
    CUDA_TRY(device->context, &state->driver, EventRecord, state->done, stream);
    CUDA_TRY(device->context, &state->driver, StreamWaitEvent, state->stream, state->done, 0);
    return DW_OK;
}

dw_status cuda_lead(device *device) {
    cuda_state *state = cuda_state_of(device);
    cuda_stream stream = state->current;
    state->current = state->stream;
    TRY(cuda_enter(device));
    dw_status status = end(device, stream);
    state->captured = NULL;
    cuda_leave(device);
    return status;
}

dw_status cuda_add_captured(device *device, cuda_graph graph) {
    cuda_state *state = cuda_state_of(device);
    cuda_capture_status status;
    const cuda_node *before;
    const cuda_edge *edges;
    cuda_graph into;
    cuda_node node;
    size_t count;
    uint64_t id;
    CUDA_TRY(device->context, &state->driver, StreamGetCaptureInfo_v3, state->current, &status, &id, &into, &before, &edges, &count);
    CUDA_TRY(device->context, &state->driver, GraphAddChildGraphNode, &node, into, before, count, graph);
    CUDA_TRY(device->context, &state->driver, StreamUpdateCaptureDependencies_v2, state->current, &node, NULL, 1, CUDA_CAPTURE_SET_DEPENDENCIES);
    return DW_OK;
}
