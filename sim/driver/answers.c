/* Calls of sim/driver/other_calls.def that only answer questions, or set what the simulator has no use for: limits, flags, priorities, names. */
#include "driver.h"

#include <stdlib.h>

enum { LIMIT_COUNT = 16, LOADS_EAGERLY = 1, API_VERSION = 3020 };

static size_t limits[LIMIT_COUNT] = {1024, 1 << 20, 1 << 23, 2, 2048};   /* stack, printf's buffer, heap, depth and count of device launches */

static cuda_result answer(bool possible) {
    cuda_result result = driver_enter();
    return driver_leave(result != CUDA_OK ? result : possible ? CUDA_OK : CUDA_INVALID_VALUE);
}

static cuda_result answer_int(int *to, int value) {
    if (to != NULL) *to = value;
    return answer(to != NULL);
}

cuda_result cuCtxGetApiVersion(cuda_context context, unsigned *version) {
    (void)context;
    return answer_int((int *)version, API_VERSION);
}

cuda_result cuCtxGetFlags(unsigned *flags) { return answer_int((int *)flags, 0); }

cuda_result cuCtxGetLimit(size_t *value, int limit) {
    bool known = value != NULL && limit >= 0 && limit < LIMIT_COUNT;
    if (known) *value = limits[limit];
    return answer(known);
}

cuda_result cuCtxSetLimit(int limit, size_t value) {
    bool known = limit >= 0 && limit < LIMIT_COUNT;
    if (known) limits[limit] = value;
    return answer(known);
}

cuda_result cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least != NULL) *least = 0;
    if (greatest != NULL) *greatest = 0;
    return answer(true);
}

cuda_result cuDeviceComputeCapability(int *major, int *minor, cuda_device device) {
    cuda_result result = cuDeviceGetAttribute(major, CUDA_DEVICE_CAPABILITY_MAJOR, device);
    return result == CUDA_OK ? cuDeviceGetAttribute(minor, CUDA_DEVICE_CAPABILITY_MINOR, device) : result;
}

cuda_result cuDeviceGetPCIBusId(char *text, int room, cuda_device device) {
    bool fits = text != NULL && room >= 13 && device == 0;
    if (fits) snprintf(text, (size_t)room, "0000:00:00.0");
    return answer(fits);
}

cuda_result cuDeviceCanAccessPeer(int *can, cuda_device device, cuda_device peer) {
    (void)device;
    (void)peer;
    return answer_int(can, 0);
}

cuda_result cuDevicePrimaryCtxGetState(cuda_device device, unsigned *flags, int *active) {
    if (flags != NULL) *flags = 0;
    if (active != NULL) *active = 1;
    return answer(device == 0 && flags != NULL && active != NULL);
}

cuda_result cuDevicePrimaryCtxSetFlags_v2(cuda_device device, unsigned flags) {
    (void)flags;
    return answer(device == 0);
}

/* What lies in memory stays there; a finding is forgotten. */
cuda_result cuDevicePrimaryCtxReset_v2(cuda_device device) { return cuDevicePrimaryCtxRelease_v2(device); }

cuda_result cuDeviceGetByPCIBusId(cuda_device *device, const char *text) {
    char own[16];
    if (device == NULL || text == NULL) return CUDA_INVALID_VALUE;
    cuda_result result = cuDeviceGetPCIBusId(own, sizeof own, 0);
    if (result != CUDA_OK) return result;
    return strcmp(text, own) == 0 || strcmp(text, own + strlen("0000:")) == 0 ? cuDeviceGet(device, 0) : CUDA_INVALID_DEVICE;
}

/* There is one device, and it has no peers. */
cuda_result cuDeviceGetP2PAttribute(int *value, int attribute, cuda_device device, cuda_device peer) {
    (void)value, (void)attribute, (void)device, (void)peer;
    return CUDA_INVALID_DEVICE;
}

cuda_result cuCtxEnablePeerAccess(cuda_context peer, unsigned flags) {
    (void)peer, (void)flags;
    return CUDA_INVALID_CONTEXT;
}

cuda_result cuCtxDisablePeerAccess(cuda_context peer) {
    (void)peer;
    return CUDA_INVALID_CONTEXT;
}

cuda_result cuCtxSetCacheConfig(int config) {
    (void)config;
    return answer(true);
}

cuda_result cuCtxGetCacheConfig(int *config) { return answer_int(config, 0); }
cuda_result cuCtxResetPersistingL2Cache(void) { return answer(true); }
cuda_result cuProfilerStart(void) { return answer(true); }
cuda_result cuProfilerStop(void) { return answer(true); }

cuda_result cuModuleGetLoadingMode(int *mode) { return answer_int(mode, LOADS_EAGERLY); }

cuda_result cuFuncSetCacheConfig(cuda_function function, int config) {
    (void)config;
    return answer(function != NULL);
}

cuda_result cuFuncGetName(const char **name, cuda_function function) {
    bool known = name != NULL && function != NULL;
    if (known) *name = function->function->name;
    return answer(known);
}

cuda_result cuMemGetAddressRange_v2(cuda_pointer *base, size_t *bytes, cuda_pointer pointer) {
    cuda_result result = driver_enter();
    const sim_allocation *a = result == CUDA_OK ? sim_memory_find(&sim_driver.memory, pointer) : NULL;
    if (result == CUDA_OK && a == NULL) result = CUDA_NOT_FOUND;
    if (a != NULL && base != NULL) *base = a->address;
    if (a != NULL && bytes != NULL) *bytes = a->bytes;
    return driver_leave(result);
}

cuda_result cuStreamGetPriority(cuda_stream stream, int *priority) {
    (void)stream;
    return answer_int(priority, 0);
}

cuda_result cuStreamGetCtx(cuda_stream stream, cuda_context *context) {
    (void)stream;
    return cuCtxGetCurrent(context);
}

cuda_result cuStreamGetFlags(cuda_stream stream, unsigned *flags) {
    (void)stream;
    return answer_int((int *)flags, 0);
}

cuda_result cuStreamIsCapturing(cuda_stream stream, cuda_capture_status *status) {
    (void)stream;
    if (status != NULL) *status = CUDA_CAPTURE_NONE;
    return answer(status != NULL);
}
