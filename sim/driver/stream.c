/* The driver's calls on streams and events. Work is done when it is asked for, or with option late=N later, in an order that every program must accept (late.c). Nothing has a duration; asking for one
 * is an error. */
#include "driver.h"

#include <stdlib.h>

struct cuda_stream_st { unsigned flags; };
struct cuda_event_st { bool timed, recorded; uint64_t ticket; };   /* ticket: complete when so much is done */

static cuda_result check(void) { return driver_leave(driver_enter()); }

/* UINT64_MAX: all. */
static cuda_result wait_for(uint64_t ticket) {
    cuda_result result = driver_enter();
    return driver_leave(result == CUDA_OK ? driver_wait(ticket) : result);
}

static cuda_result query(uint64_t ticket) {
    cuda_result result = driver_enter();
    if (result != CUDA_OK) return driver_leave(result);
    driver_go_on();
    result = sim_driver.broken;
    return driver_leave(result != CUDA_OK || driver_is_done(ticket) ? result : CUDA_NOT_READY);
}

cuda_result cuStreamCreateWithPriority(cuda_stream *stream, unsigned flags, int priority) {
    (void)priority;
    cuda_result result = check();
    if (result != CUDA_OK || stream == NULL) return result != CUDA_OK ? result : CUDA_INVALID_VALUE;
    *stream = calloc(1, sizeof **stream);
    if (*stream == NULL) return CUDA_OUT_OF_MEMORY;
    (*stream)->flags = flags;
    return CUDA_OK;
}

cuda_result cuStreamCreate(cuda_stream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

cuda_result cuStreamDestroy_v2(cuda_stream stream) {
    if (stream == NULL) return CUDA_INVALID_HANDLE;
    wait_for(UINT64_MAX);
    free(stream);
    return CUDA_OK;
}

cuda_result cuStreamSynchronize(cuda_stream stream) {
    (void)stream;
    return wait_for(UINT64_MAX);
}

cuda_result cuCtxSynchronize(void) { return wait_for(UINT64_MAX); }

/* A finding is forgotten with the context that it broke. */
cuda_result cuDevicePrimaryCtxRelease_v2(cuda_device device) {
    pthread_mutex_lock(&sim_driver.lock);
    if (device != 0) return driver_leave(CUDA_INVALID_DEVICE);
    driver_finish();                  /* or it would be done among what is asked of the next context */
    sim_driver.broken = CUDA_OK;
    sim_spares_free(&sim_driver.spares);
    return driver_leave(sim_driver.started ? CUDA_OK : CUDA_NOT_INITIALIZED);
}

cuda_result cuStreamQuery(cuda_stream stream) {
    (void)stream;
    return query(UINT64_MAX);
}

cuda_result cuStreamWaitEvent(cuda_stream stream, cuda_event event, unsigned flags) {
    (void)stream;
    (void)flags;
    return event != NULL ? check() : CUDA_INVALID_HANDLE;
}

/* A host function in a stream is called at once, behind all that was asked for before. */
cuda_result cuLaunchHostFunc(cuda_stream stream, cuda_host_function function, void *user) {
    (void)stream;
    cuda_result result = wait_for(UINT64_MAX);
    if (result != CUDA_OK || function == NULL) return result != CUDA_OK ? result : CUDA_INVALID_VALUE;
    function(user);
    return CUDA_OK;
}

cuda_result cuStreamAddCallback(cuda_stream stream, cuda_stream_callback function, void *user, unsigned flags) {
    cuda_result result = wait_for(UINT64_MAX);
    if (result == CUDA_OK && (function == NULL || flags != 0)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) function(stream, CUDA_OK, user);
    return result;
}

cuda_result cuStreamGetId(cuda_stream stream, uint64_t *id) {
    if (id == NULL) return CUDA_INVALID_VALUE;
    *id = (uint64_t)(uintptr_t)stream;
    return check();
}

cuda_result cuStreamWriteValue32_v2(cuda_stream stream, cuda_pointer to, uint32_t value, unsigned flags) {
    (void)flags;
    return to % 4 != 0 ? CUDA_INVALID_VALUE : cuMemsetD32Async(to, value, 1, stream);
}

cuda_result cuStreamWriteValue64_v2(cuda_stream stream, cuda_pointer to, uint64_t value, unsigned flags) {
    (void)stream, (void)flags;
    return to % 8 != 0 ? CUDA_INVALID_VALUE : cuMemcpyHtoD_v2(to, &value, sizeof value);
}

cuda_result cuStreamBeginCapture_v2(cuda_stream stream, cuda_capture_mode mode) {
    (void)stream;
    (void)mode;
    return driver_say(CUDA_NOT_SUPPORTED, "capturing of streams is not modelled: what is captured are calls of vendors' libraries, which know no simulator");
}

cuda_result cuStreamEndCapture(cuda_stream stream, cuda_graph *graph) {
    (void)stream;
    if (graph != NULL) *graph = NULL;
    return CUDA_INVALID_VALUE;   /* the stream is not being captured */
}

/* No stream is ever being captured. */
cuda_result cuStreamGetCaptureInfo_v3(cuda_stream stream, cuda_capture_status *status, uint64_t *id, cuda_graph *graph, const cuda_node **dependencies, const cuda_edge **edges,
                                      size_t *count) {
    (void)stream;
    if (status == NULL) return CUDA_INVALID_VALUE;
    *status = CUDA_CAPTURE_NONE;
    if (id != NULL) *id = 0;
    if (graph != NULL) *graph = NULL;
    if (dependencies != NULL) *dependencies = NULL;
    if (edges != NULL) *edges = NULL;
    if (count != NULL) *count = 0;
    return check();
}

cuda_result cuStreamUpdateCaptureDependencies_v2(cuda_stream stream, cuda_node *dependencies, const cuda_edge *edges, size_t count, unsigned flags) {
    (void)stream;
    (void)dependencies;
    (void)edges;
    (void)count;
    (void)flags;
    return CUDA_INVALID_VALUE;   /* the stream is not being captured */
}

cuda_result cuThreadExchangeStreamCaptureMode(cuda_capture_mode *mode) {
    static _Thread_local cuda_capture_mode current = CUDA_CAPTURE_GLOBAL;
    if (mode == NULL) return CUDA_INVALID_VALUE;
    cuda_capture_mode before = current;
    current = *mode;
    *mode = before;
    return CUDA_OK;
}

cuda_result cuEventCreate(cuda_event *event, unsigned flags) {
    cuda_result result = check();
    if (result != CUDA_OK || event == NULL) return result != CUDA_OK ? result : CUDA_INVALID_VALUE;
    *event = calloc(1, sizeof **event);
    if (*event == NULL) return CUDA_OUT_OF_MEMORY;
    (*event)->timed = (flags & CUDA_EVENT_NO_TIMING) == 0;
    return CUDA_OK;
}

cuda_result cuEventRecord(cuda_event event, cuda_stream stream) {
    (void)stream;
    if (event == NULL) return CUDA_INVALID_HANDLE;
    const cuda_result result = driver_enter();
    event->recorded = true;
    event->ticket = driver_ticket();
    return driver_leave(result);
}

cuda_result cuEventRecordWithFlags(cuda_event event, cuda_stream stream, unsigned flags) {
    (void)flags;
    return cuEventRecord(event, stream);
}

cuda_result cuEventSynchronize(cuda_event event) { return event != NULL ? wait_for(event->ticket) : CUDA_INVALID_HANDLE; }
cuda_result cuEventQuery(cuda_event event) { return event != NULL ? query(event->ticket) : CUDA_INVALID_HANDLE; }

cuda_result cuEventElapsedTime(float *milliseconds, cuda_event start, cuda_event end) {
    if (!sim_driver.times_zero) return driver_say(CUDA_NOT_SUPPORTED, "the simulator is no model of time: it has no elapsed time (option times=zero: say 0, for programs that go on only then)");
    if (milliseconds == NULL) return CUDA_INVALID_VALUE;
    if (start == NULL || end == NULL || !start->recorded || !end->recorded || !start->timed || !end->timed) return CUDA_INVALID_HANDLE;
    *milliseconds = 0;
    return query(start->ticket > end->ticket ? start->ticket : end->ticket);
}

cuda_result cuEventElapsedTime_v2(float *milliseconds, cuda_event start, cuda_event end) { return cuEventElapsedTime(milliseconds, start, end); }

cuda_result cuEventDestroy_v2(cuda_event event) {
    if (event == NULL) return CUDA_INVALID_HANDLE;
    free(event);
    return CUDA_OK;
}
