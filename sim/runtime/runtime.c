/* What the compiler's host code registers with CUDA's runtime, kernels and variables known by addresses of the program, and launches. */
#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A fatbin of the program, loaded when something of it is first used. */
typedef struct module { const void *image; CUlibrary library; struct module *next; } module;
/* What the program calls by an address of its own: a kernel, or a variable. */
typedef struct symbol { const void *host; const char *name; module *module; CUkernel kernel; CUdeviceptr address; size_t bytes; bool is_kernel, is_managed; struct symbol *next; } symbol;
typedef struct configuration { dim3 grid, block; size_t shared_bytes; cudaStream_t stream; } configuration;

enum { CONFIGURATIONS = 16 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static module *modules;
static symbol *symbols;
static bool started;
static _Thread_local cudaError_t last_error;
static _Thread_local configuration configurations[CONFIGURATIONS];
static _Thread_local int configuration_count;

cudaError_t runtime_note(CUresult result) {
    if (result != CUDA_SUCCESS) last_error = (cudaError_t)result;
    return (cudaError_t)result;
}

CUresult runtime_start(void) {
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

/* ---- what the compiler's host code registers ---- */

void **__cudaRegisterFatBinary(void *image);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *thread, void *block, void *block_size, void *grid_size, int *warp_size);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t bytes, int constant, int global);
void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int external, size_t bytes, int constant, int global);
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

static symbol *add_symbol(void **handle, const void *host, const char *name, size_t bytes, bool is_kernel) {
    symbol *made = calloc(1, sizeof *made);
    if (made == NULL) abort();
    *made = (symbol){.host = host, .name = name, .module = (module *)(void *)handle, .bytes = bytes, .is_kernel = is_kernel};
    pthread_mutex_lock(&lock);
    made->next = symbols;
    symbols = made;
    pthread_mutex_unlock(&lock);
    return made;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *thread, void *block, void *block_size, void *grid_size, int *warp_size) {
    (void)device, (void)limit, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)warp_size;
    add_symbol(handle, host, name, 0, true);
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t bytes, int constant, int global) {
    (void)device, (void)external, (void)constant, (void)global;
    add_symbol(handle, host, name, bytes, false);
}

/* host: a pointer of the program's, which is to hold the variable's address before the program follows it. */
void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int external, size_t bytes, int constant, int global) {
    (void)device, (void)external, (void)constant, (void)global;
    add_symbol(handle, (const void *)host, name, bytes, false)->is_managed = true;
}

/* Under the lock. */
static CUresult load(symbol *s) {
    CUresult result = CUDA_SUCCESS;
    if (s->module->library == NULL) result = cuLibraryLoadData(&s->module->library, s->module->image, NULL, NULL, 0, NULL, NULL, 0);
    if (result == CUDA_SUCCESS && s->is_kernel && s->kernel == NULL) result = cuLibraryGetKernel(&s->kernel, s->module->library, s->name);
    if (result == CUDA_SUCCESS && !s->is_kernel && s->address == 0) {
        result = cuLibraryGetGlobal(&s->address, NULL, s->module->library, s->name);
        if (result == CUDA_SUCCESS && s->is_managed) *(void **)(uintptr_t)s->host = (void *)(uintptr_t)s->address;
    }
    return result;
}

/* Called before the program's own code reaches a managed variable. */
char __cudaInitModule(void **handle) {
    CUresult result = runtime_start();
    pthread_mutex_lock(&lock);
    for (symbol *s = symbols; s != NULL && result == CUDA_SUCCESS; s = s->next) {
        if (s->is_managed && s->module == (module *)(void *)handle) result = load(s);
    }
    pthread_mutex_unlock(&lock);
    runtime_note(result);
    return result == CUDA_SUCCESS;
}

/* A managed variable is known by where its pointer leads, too, which is what the program's expressions say. */
static bool is_known_by(const symbol *s, const void *host) { return s->host == host || (s->is_managed && s->address != 0 && s->address == (CUdeviceptr)(uintptr_t)host); }

static CUresult resolve(const void *host, bool is_kernel, symbol **found) {
    CUresult result = runtime_start();
    pthread_mutex_lock(&lock);
    symbol *s = symbols;
    while (s != NULL && (!is_known_by(s, host) || s->is_kernel != is_kernel)) s = s->next;
    if (s == NULL && result == CUDA_SUCCESS) result = is_kernel ? (CUresult)cudaErrorInvalidDeviceFunction : (CUresult)cudaErrorInvalidSymbol;
    if (result == CUDA_SUCCESS) result = load(s);
    pthread_mutex_unlock(&lock);
    *found = s;
    return result;
}

CUresult runtime_variable(const void *host, CUdeviceptr *address, size_t *bytes) {
    symbol *found;
    CUresult result = resolve(host, false, &found);
    *address = result == CUDA_SUCCESS ? found->address : 0;
    *bytes = result == CUDA_SUCCESS ? found->bytes : 0;
    return result;
}

CUresult runtime_function(const void *host, CUfunction *function) {
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
    if (configuration_count == 0) return runtime_note((CUresult)cudaErrorMissingConfiguration);
    const configuration *top = &configurations[--configuration_count];
    *grid = top->grid;
    *block = top->block;
    *shared_bytes = top->shared_bytes;
    *(cudaStream_t *)stream = top->stream;
    return cudaSuccess;
}

/* A kernel of the runtime is the address that the program has for it, until it is launched. */
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    *kernel = (cudaKernel_t)(uintptr_t)host;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream) {
    CUfunction function;
    CUresult result = runtime_function(host, &function);
    if (result == CUDA_SUCCESS) result = cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared_bytes, (CUstream)stream, arguments, NULL);
    return runtime_note(result);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream) {
    return cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream) {
    CUfunction function;
    CUresult result = runtime_function(host, &function);
    if (result == CUDA_SUCCESS) result = cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared_bytes, (CUstream)stream, arguments);
    return runtime_note(result);
}

static CUlaunchConfig driver_config(const cudaLaunchConfig_t *c) {
    return (CUlaunchConfig){.gridDimX = c->gridDim.x, .gridDimY = c->gridDim.y, .gridDimZ = c->gridDim.z, .blockDimX = c->blockDim.x, .blockDimY = c->blockDim.y, .blockDimZ = c->blockDim.z,
                            .sharedMemBytes = (unsigned)c->dynamicSmemBytes, .hStream = (CUstream)c->stream, .attrs = (CUlaunchAttribute *)(void *)c->attrs, .numAttrs = c->numAttrs};
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **arguments) {
    CUfunction function;
    const CUlaunchConfig driver = driver_config(config);
    CUresult result = runtime_function(host, &function);
    return runtime_note(result == CUDA_SUCCESS ? cuLaunchKernelEx(&driver, function, arguments, NULL) : result);
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
    CUfunction function;
    CUresult result = runtime_function(host, &function);
    if (result == CUDA_SUCCESS && attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;   /* a hint */
    return runtime_note(result == CUDA_SUCCESS ? cuFuncSetAttribute(function, (CUfunction_attribute)attribute, value) : result);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host) {
    CUfunction function;
    int shared = 0, local = 0, most = 0;
    memset(attributes, 0, sizeof *attributes);
    CUresult result = runtime_function(host, &function);
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
    return runtime_note(result);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads, size_t shared_bytes) {
    CUfunction function;
    CUresult result = runtime_function(host, &function);
    return runtime_note(result == CUDA_SUCCESS ? cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared_bytes) : result);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads, size_t shared_bytes, unsigned flags) {
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, host, threads, shared_bytes);
}

cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *host, const cudaLaunchConfig_t *config) {
    CUfunction function;
    const CUlaunchConfig driver = driver_config(config);
    CUresult result = runtime_function(host, &function);
    return runtime_note(result == CUDA_SUCCESS ? cuOccupancyMaxActiveClusters(clusters, function, &driver) : result);
}

cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache config) {
    CUfunction function;
    CUresult result = runtime_function(host, &function);
    return runtime_note(result == CUDA_SUCCESS ? cuFuncSetCacheConfig(function, (CUfunc_cache)config) : result);
}

cudaError_t cudaFuncGetName(const char **name, const void *host) {
    CUfunction function;
    CUresult result = runtime_function(host, &function);
    return runtime_note(result == CUDA_SUCCESS ? cuFuncGetName(name, function) : result);
}

cudaError_t cudaFuncGetParamInfo(const void *host, size_t index, size_t *offset, size_t *bytes) {
    CUfunction function;
    CUresult result = runtime_function(host, &function);
    return runtime_note(result == CUDA_SUCCESS ? cuFuncGetParamInfo(function, index, offset, bytes) : result);
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *host) { return runtime_note(runtime_function(host, (CUfunction *)function)); }

cudaError_t cudaOccupancyMaxPotentialClusterSize(int *ctas, const void *host, const cudaLaunchConfig_t *config) {
    CUfunction function;
    const CUlaunchConfig driver = driver_config(config);
    CUresult result = runtime_function(host, &function);
    return runtime_note(result == CUDA_SUCCESS ? cuOccupancyMaxPotentialClusterSize(ctas, function, &driver) : result);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *host, int blocks, int threads) {
    CUfunction function;
    CUresult result = runtime_function(host, &function);
    return runtime_note(result == CUDA_SUCCESS ? cuOccupancyAvailableDynamicSMemPerBlock(bytes, function, blocks, threads) : result);
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
