/* The runtime's calls on the device, streams and events. */
#include "runtime.h"

#include <cudaProfiler.h>
#include <cuda_profiler_api.h>

#include <string.h>

cudaError_t cudaGetDeviceCount(int *count) { DRIVER(cuDeviceGetCount(count)); }
cudaError_t cudaGetDevice(int *device) { DRIVER(cuDeviceGet(device, 0)); }
cudaError_t cudaSetDevice(int device) { DRIVER(device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE); }
cudaError_t cudaSetDeviceFlags(unsigned flags) { DRIVER(((void)flags, CUDA_SUCCESS)); }
cudaError_t cudaDeviceSynchronize(void) { DRIVER(cuCtxSynchronize()); }
cudaError_t cudaDeviceReset(void) { DRIVER(cuDevicePrimaryCtxReset(0)); }
cudaError_t cudaInitDevice(int device, unsigned flags, unsigned more) { DRIVER(((void)flags, (void)more, device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE)); }
cudaError_t cudaGetDeviceFlags(unsigned *flags) { DRIVER(cuCtxGetFlags(flags)); }
cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache config) { DRIVER(cuCtxSetCacheConfig((CUfunc_cache)config)); }
cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device) { DRIVER(cuDeviceGetPCIBusId(text, room, device)); }
cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) { DRIVER(cuDeviceGetByPCIBusId(device, text)); }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { DRIVER(cuDeviceCanAccessPeer(can, device, peer)); }
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) { DRIVER(((void)peer, (void)flags, CUDA_ERROR_INVALID_DEVICE)); }
cudaError_t cudaDeviceDisablePeerAccess(int peer) { DRIVER(((void)peer, CUDA_ERROR_INVALID_DEVICE)); }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { DRIVER(cuCtxGetStreamPriorityRange(least, greatest)); }
cudaError_t cudaCtxResetPersistingL2Cache(void) { DRIVER(cuCtxResetPersistingL2Cache()); }
cudaError_t cudaProfilerStart(void) { DRIVER(cuProfilerStart()); }
cudaError_t cudaProfilerStop(void) { DRIVER(cuProfilerStop()); }

cudaError_t cudaChooseDevice(int *device, const struct cudaDeviceProp *wanted) {
    (void)wanted;
    return cudaGetDevice(device);
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) { DRIVER(cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device)); }
cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) { DRIVER(cuCtxSetLimit((CUlimit)limit, value)); }
cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) { DRIVER(cuCtxGetLimit(value, (CUlimit)limit)); }

cudaError_t cudaDriverGetVersion(int *version) { return runtime_note(cuDriverGetVersion(version)); }

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* What the driver does not report is 0. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    const struct { int *to; CUdevice_attribute attribute; } numbers[] = {
        {&p->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR}, {&p->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
        {&p->multiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT}, {&p->warpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
        {&p->maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK}, {&p->maxThreadsPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
        {&p->maxThreadsDim[0], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X}, {&p->maxThreadsDim[1], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y}, {&p->maxThreadsDim[2], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z},
        {&p->maxGridSize[0], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X}, {&p->maxGridSize[1], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y}, {&p->maxGridSize[2], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z},
        {&p->regsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK}, {&p->regsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR},
        {&p->l2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE}, {&p->memoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
        {&p->unifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING}, {&p->cooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
        {&p->clusterLaunch, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH}, {&p->maxBlocksPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR},
        {&p->canMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY}, {&p->concurrentKernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS},
        {&p->managedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY}, {&p->concurrentManagedAccess, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
        {&p->hostRegisterSupported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED}, {&p->canUseHostPointerForRegisteredMem, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM},
        {&p->memoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
    };
    const struct { size_t *to; CUdevice_attribute attribute; } sizes[] = {
        {&p->sharedMemPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK}, {&p->sharedMemPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
        {&p->sharedMemPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR}, {&p->reservedSharedMemPerBlock, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK},
        {&p->totalConstMem, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY}, {&p->memPitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH},
    };
    memset(p, 0, sizeof *p);
    CUresult result = runtime_start();
    if (result == CUDA_SUCCESS) result = cuDeviceGetName(p->name, sizeof p->name, device);
    if (result == CUDA_SUCCESS) result = cuDeviceTotalMem(&p->totalGlobalMem, device);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && result == CUDA_SUCCESS; i++) result = cuDeviceGetAttribute(numbers[i].to, numbers[i].attribute, device);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && result == CUDA_SUCCESS; i++) {
        int value = 0;
        result = cuDeviceGetAttribute(&value, sizes[i].attribute, device);
        *sizes[i].to = (size_t)value;
    }
    return runtime_note(result);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *found) {
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult result = runtime_start();
    if (result == CUDA_SUCCESS) result = cuGetProcAddress(name, function, (int)version, flags, &status);
    if (found != NULL) *found = (enum cudaDriverEntryPointQueryResult)status;
    return runtime_note(result);
}

cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *found) {
    return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, found);
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreate(cudaStream_t *stream) { DRIVER(cuStreamCreate((CUstream *)stream, CU_STREAM_DEFAULT)); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { DRIVER(cuStreamCreate((CUstream *)stream, flags)); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) { DRIVER(cuStreamCreateWithPriority((CUstream *)stream, flags, priority)); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { DRIVER(cuStreamDestroy((CUstream)stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { DRIVER(cuStreamSynchronize((CUstream)stream)); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { DRIVER(cuStreamQuery((CUstream)stream)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { DRIVER(cuStreamWaitEvent((CUstream)stream, (CUevent)event, flags)); }
cudaError_t cudaEventCreate(cudaEvent_t *event) { DRIVER(cuEventCreate((CUevent *)event, CU_EVENT_DEFAULT)); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { DRIVER(cuEventCreate((CUevent *)event, flags)); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { DRIVER(cuEventDestroy((CUevent)event)); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { DRIVER(cuEventRecord((CUevent)event, (CUstream)stream)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { DRIVER(cuEventSynchronize((CUevent)event)); }
cudaError_t cudaEventQuery(cudaEvent_t event) { DRIVER(cuEventQuery((CUevent)event)); }

/* No time passes on the simulated driver, which says so; the result is 0 for those who do not look. */
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    *milliseconds = 0;
    DRIVER(cuEventElapsedTime(milliseconds, (CUevent)begin, (CUevent)end));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { DRIVER(cuEventRecordWithFlags((CUevent)event, (CUstream)stream, flags)); }
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) { DRIVER(cuStreamGetFlags((CUstream)stream, flags)); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { DRIVER(cuStreamGetPriority((CUstream)stream, priority)); }
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) { DRIVER(cuStreamGetId((CUstream)stream, id)); }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user) { DRIVER(cuLaunchHostFunc((CUstream)stream, function, user)); }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *user, unsigned flags) { DRIVER(cuStreamAddCallback((CUstream)stream, (CUstreamCallback)function, user, flags)); }

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    CUstreamCaptureStatus driver = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = runtime_start();
    if (result == CUDA_SUCCESS) result = cuStreamIsCapturing((CUstream)stream, &driver);
    *status = (enum cudaStreamCaptureStatus)driver;
    return runtime_note(result);
}
