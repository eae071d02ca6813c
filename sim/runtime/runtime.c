/* The calls of CUDA's runtime that programs compiled by nvcc make, over the driver's: libcudart.so.13 for programs that run on the simulated driver, since the toolkit's own runtime
 * speaks to the vendor's driver alone. Streams and events are the driver's; there is one device. Calls that are not here are missing when the program is loaded, and
 * not quietly answered. */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A fatbin of the program, loaded when something of it is first used. */
typedef struct module { const void *image; CUlibrary library; struct module *next; } module;
/* What the program calls by an address of its own: a kernel, or a variable. */
typedef struct symbol { const void *host; const char *name; module *module; CUkernel kernel; CUdeviceptr address; size_t bytes; bool is_kernel; struct symbol *next; } symbol;
typedef struct configuration { dim3 grid, block; size_t shared_bytes; cudaStream_t stream; } configuration;

enum { CONFIGURATIONS = 16 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static module *modules;
static symbol *symbols;
static bool started;
static _Thread_local cudaError_t last_error;
static _Thread_local configuration configurations[CONFIGURATIONS];
static _Thread_local int configuration_count;

/* The numbers of errors are the same for both interfaces. */
static cudaError_t note(CUresult result) {
    if (result != CUDA_SUCCESS) last_error = (cudaError_t)result;
    return (cudaError_t)result;
}

static CUresult start(void) {
    CUcontext context;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!started) {
        result = cuInit(0);
        if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, 0);
        if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
        started = result == CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

#define DRIVER(call)                                            \
    do {                                                        \
        CUresult started_ = start();                            \
        return note(started_ == CUDA_SUCCESS ? (call) : started_); \
    } while (0)

/* ---- what the compiler's host code registers ---- */

void **__cudaRegisterFatBinary(void *image);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *thread, void *block, void *block_size, void *grid_size, int *warp_size);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t bytes, int constant, int global);
char __cudaInitModule(void **handle);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *image) {
    module *made = calloc(1, sizeof *made);
    if (made == NULL) abort();
    made->image = image;
    pthread_mutex_lock(&lock);
    made->next = modules;
    modules = made;
    pthread_mutex_unlock(&lock);
    return (void **)made;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }   /* the process ends */

char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

static void add_symbol(void **handle, const void *host, const char *name, size_t bytes, bool is_kernel) {
    symbol *made = calloc(1, sizeof *made);
    if (made == NULL) abort();
    *made = (symbol){.host = host, .name = name, .module = (module *)(void *)handle, .bytes = bytes, .is_kernel = is_kernel};
    pthread_mutex_lock(&lock);
    made->next = symbols;
    symbols = made;
    pthread_mutex_unlock(&lock);
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *thread, void *block, void *block_size, void *grid_size, int *warp_size) {
    (void)device, (void)limit, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)warp_size;
    add_symbol(handle, host, name, 0, true);
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t bytes, int constant, int global) {
    (void)device, (void)external, (void)constant, (void)global;
    add_symbol(handle, host, name, bytes, false);
}

static CUresult resolve(const void *host, bool is_kernel, symbol **found) {
    CUresult result = start();
    pthread_mutex_lock(&lock);
    symbol *s = symbols;
    while (s != NULL && (s->host != host || s->is_kernel != is_kernel)) s = s->next;
    if (s == NULL && result == CUDA_SUCCESS) result = is_kernel ? (CUresult)cudaErrorInvalidDeviceFunction : (CUresult)cudaErrorInvalidSymbol;
    if (result == CUDA_SUCCESS && s->module->library == NULL) result = cuLibraryLoadData(&s->module->library, s->module->image, NULL, NULL, 0, NULL, NULL, 0);
    if (result == CUDA_SUCCESS && is_kernel && s->kernel == NULL) result = cuLibraryGetKernel(&s->kernel, s->module->library, s->name);
    if (result == CUDA_SUCCESS && !is_kernel && s->address == 0) result = cuModuleGetGlobal(&s->address, NULL, (CUmodule)(void *)s->module->library, s->name);
    pthread_mutex_unlock(&lock);
    *found = s;
    return result;
}

static CUresult function_of(const void *host, CUfunction *function) {
    symbol *found;
    CUresult result = resolve(host, true, &found);
    return result == CUDA_SUCCESS ? cuKernelGetFunction(function, found->kernel) : result;
}

/* ---- launches ---- */

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
    if (configuration_count == CONFIGURATIONS) return 1;
    configurations[configuration_count++] = (configuration){grid, block, shared_bytes, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
    if (configuration_count == 0) return note((CUresult)cudaErrorMissingConfiguration);
    const configuration *top = &configurations[--configuration_count];
    *grid = top->grid;
    *block = top->block;
    *shared_bytes = top->shared_bytes;
    *(cudaStream_t *)stream = top->stream;
    return cudaSuccess;
}

/* A kernel of the runtime is the address that the program knows it by, until it is launched. */
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    *kernel = (cudaKernel_t)(uintptr_t)host;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream) {
    CUfunction function;
    CUresult result = function_of(host, &function);
    if (result == CUDA_SUCCESS) result = cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared_bytes, (CUstream)stream, arguments, NULL);
    return note(result);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream) {
    return cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream) {
    return cudaLaunchKernel(host, grid, block, arguments, shared_bytes, stream);
}

static CUlaunchConfig driver_config(const cudaLaunchConfig_t *c) {
    return (CUlaunchConfig){.gridDimX = c->gridDim.x, .gridDimY = c->gridDim.y, .gridDimZ = c->gridDim.z, .blockDimX = c->blockDim.x, .blockDimY = c->blockDim.y, .blockDimZ = c->blockDim.z,
                            .sharedMemBytes = (unsigned)c->dynamicSmemBytes, .hStream = (CUstream)c->stream, .attrs = (CUlaunchAttribute *)(void *)c->attrs, .numAttrs = c->numAttrs};
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **arguments) {
    CUfunction function;
    const CUlaunchConfig driver = driver_config(config);
    CUresult result = function_of(host, &function);
    return note(result == CUDA_SUCCESS ? cuLaunchKernelEx(&driver, function, arguments, NULL) : result);
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
    CUfunction function;
    CUresult result = function_of(host, &function);
    if (result == CUDA_SUCCESS && attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;   /* a hint */
    return note(result == CUDA_SUCCESS ? cuFuncSetAttribute(function, (CUfunction_attribute)attribute, value) : result);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host) {
    CUfunction function;
    int shared = 0, local = 0, most = 0;
    memset(attributes, 0, sizeof *attributes);
    CUresult result = function_of(host, &function);
    if (result == CUDA_SUCCESS) result = cuFuncGetAttribute(&shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function);
    if (result == CUDA_SUCCESS) result = cuFuncGetAttribute(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
    if (result == CUDA_SUCCESS) result = cuFuncGetAttribute(&attributes->numRegs, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
    if (result == CUDA_SUCCESS) result = cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
    if (result == CUDA_SUCCESS) result = cuFuncGetAttribute(&attributes->ptxVersion, CU_FUNC_ATTRIBUTE_PTX_VERSION, function);
    if (result == CUDA_SUCCESS) result = cuFuncGetAttribute(&attributes->maxDynamicSharedSizeBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function);
    attributes->sharedSizeBytes = (size_t)shared;
    attributes->localSizeBytes = (size_t)local;
    attributes->maxThreadsPerBlock = most;
    attributes->binaryVersion = attributes->ptxVersion;
    return note(result);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads, size_t shared_bytes) {
    CUfunction function;
    CUresult result = function_of(host, &function);
    return note(result == CUDA_SUCCESS ? cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared_bytes) : result);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads, size_t shared_bytes, unsigned flags) {
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, host, threads, shared_bytes);
}

cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *host, const cudaLaunchConfig_t *config) {
    CUfunction function;
    const CUlaunchConfig driver = driver_config(config);
    CUresult result = function_of(host, &function);
    return note(result == CUDA_SUCCESS ? cuOccupancyMaxActiveClusters(clusters, function, &driver) : result);
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    CUdeviceptr pointer = 0;
    CUresult result = start();
    if (result == CUDA_SUCCESS && bytes > 0) result = cuMemAlloc(&pointer, bytes);
    *memory = (void *)(uintptr_t)pointer;
    return note(result);
}

cudaError_t cudaFree(void *memory) { DRIVER(memory == NULL ? CUDA_SUCCESS : cuMemFree((CUdeviceptr)(uintptr_t)memory)); }
cudaError_t cudaMallocHost(void **memory, size_t bytes) { DRIVER(cuMemAllocHost(memory, bytes)); }
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags) { DRIVER(cuMemHostAlloc(memory, bytes, flags)); }
cudaError_t cudaFreeHost(void *memory) { DRIVER(memory == NULL ? CUDA_SUCCESS : cuMemFreeHost(memory)); }

cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream) {
    (void)stream;
    return cudaMalloc(memory, bytes);
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream) {
    (void)stream;
    return cudaFree(memory);
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all) { DRIVER(cuMemGetInfo(left, all)); }

/* Addresses of host and device are of one space, so the direction says nothing new. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    (void)kind;
    DRIVER(cuMemcpy((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    DRIVER(cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, (CUstream)stream));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) { DRIVER(cuMemsetD8((CUdeviceptr)(uintptr_t)to, (unsigned char)value, bytes)); }

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    DRIVER(cuMemsetD8Async((CUdeviceptr)(uintptr_t)to, (unsigned char)value, bytes, (CUstream)stream));
}

cudaError_t cudaGetSymbolAddress(void **address, const void *host) {
    symbol *found;
    CUresult result = resolve(host, false, &found);
    if (result == CUDA_SUCCESS) *address = (void *)(uintptr_t)found->address;
    return note(result);
}

cudaError_t cudaGetSymbolSize(size_t *bytes, const void *host) {
    symbol *found;
    CUresult result = resolve(host, false, &found);
    if (result == CUDA_SUCCESS) *bytes = found->bytes;
    return note(result);
}

static cudaError_t copy_symbol(const void *host, void *there, const void *here, size_t bytes, size_t offset) {
    symbol *found;
    CUresult result = resolve(host, false, &found);
    if (result == CUDA_SUCCESS && (offset > found->bytes || bytes > found->bytes - offset)) result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) return note(result);
    return here != NULL ? cudaMemcpy((void *)(uintptr_t)(found->address + offset), here, bytes, cudaMemcpyDefault) : cudaMemcpy(there, (void *)(uintptr_t)(found->address + offset), bytes, cudaMemcpyDefault);
}

cudaError_t cudaMemcpyToSymbol(const void *host, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
    (void)kind;
    return copy_symbol(host, NULL, from, bytes, offset);
}

cudaError_t cudaMemcpyFromSymbol(void *to, const void *host, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
    (void)kind;
    return copy_symbol(host, to, NULL, bytes, offset);
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *count) { DRIVER(cuDeviceGetCount(count)); }
cudaError_t cudaGetDevice(int *device) { DRIVER(cuDeviceGet(device, 0)); }
cudaError_t cudaSetDevice(int device) { DRIVER(device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE); }
cudaError_t cudaSetDeviceFlags(unsigned flags) { DRIVER(((void)flags, CUDA_SUCCESS)); }
cudaError_t cudaDeviceSynchronize(void) { DRIVER(cuCtxSynchronize()); }
cudaError_t cudaDeviceReset(void) { DRIVER(cuCtxSynchronize()); }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) { DRIVER(cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device)); }
cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) { DRIVER(cuCtxSetLimit((CUlimit)limit, value)); }
cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) { DRIVER(cuCtxGetLimit(value, (CUlimit)limit)); }

cudaError_t cudaDriverGetVersion(int *version) { return note(cuDriverGetVersion(version)); }

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* What the driver does not tell is 0. */
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
    };
    const struct { size_t *to; CUdevice_attribute attribute; } sizes[] = {
        {&p->sharedMemPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK}, {&p->sharedMemPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
        {&p->sharedMemPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR}, {&p->reservedSharedMemPerBlock, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK},
        {&p->totalConstMem, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY},
    };
    memset(p, 0, sizeof *p);
    CUresult result = start();
    if (result == CUDA_SUCCESS) result = cuDeviceGetName(p->name, sizeof p->name, device);
    if (result == CUDA_SUCCESS) result = cuDeviceTotalMem(&p->totalGlobalMem, device);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && result == CUDA_SUCCESS; i++) result = cuDeviceGetAttribute(numbers[i].to, numbers[i].attribute, device);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && result == CUDA_SUCCESS; i++) {
        int value = 0;
        result = cuDeviceGetAttribute(&value, sizes[i].attribute, device);
        *sizes[i].to = (size_t)value;
    }
    return note(result);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *found) {
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult result = start();
    if (result == CUDA_SUCCESS) result = cuGetProcAddress(name, function, (int)version, flags, &status);
    if (found != NULL) *found = (enum cudaDriverEntryPointQueryResult)status;
    return note(result);
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

/* ---- errors ---- */

cudaError_t cudaPeekAtLastError(void) { return last_error; }

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error) {
    const char *words = NULL;
    return cuGetErrorString((CUresult)error, &words) == CUDA_SUCCESS ? words : "an error of the CUDA runtime";
}

const char *cudaGetErrorName(cudaError_t error) {
    const char *name = NULL;
    return cuGetErrorName((CUresult)error, &name) == CUDA_SUCCESS ? name : "cudaErrorUnknown";
}
