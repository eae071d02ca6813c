/* The runtime's calls on memory: allocations of all kinds, copies, fills, variables. */
#include "runtime.h"

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    CUdeviceptr pointer = 0;
    CUresult result = runtime_start();
    if (result == CUDA_SUCCESS && bytes > 0) result = cuMemAlloc(&pointer, bytes);
    *memory = (void *)(uintptr_t)pointer;
    return runtime_note(result);
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
    CUdeviceptr at;
    size_t bytes;
    CUresult result = runtime_variable(host, &at, &bytes);
    if (result == CUDA_SUCCESS) *address = (void *)(uintptr_t)at;
    return runtime_note(result);
}

cudaError_t cudaGetSymbolSize(size_t *bytes, const void *host) {
    CUdeviceptr at;
    return runtime_note(runtime_variable(host, &at, bytes));
}

static cudaError_t copy_symbol(const void *host, void *there, const void *here, size_t bytes, size_t offset) {
    CUdeviceptr at;
    size_t room;
    CUresult result = runtime_variable(host, &at, &room);
    if (result == CUDA_SUCCESS && (offset > room || bytes > room - offset)) result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) return runtime_note(result);
    return here != NULL ? cudaMemcpy((void *)(uintptr_t)(at + offset), here, bytes, cudaMemcpyDefault) : cudaMemcpy(there, (void *)(uintptr_t)(at + offset), bytes, cudaMemcpyDefault);
}

cudaError_t cudaMemcpyToSymbol(const void *host, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
    (void)kind;
    return copy_symbol(host, NULL, from, bytes, offset);
}

cudaError_t cudaMemcpyFromSymbol(void *to, const void *host, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
    (void)kind;
    return copy_symbol(host, to, NULL, bytes, offset);
}

cudaError_t cudaMemcpyToSymbolAsync(const void *host, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)stream;
    return cudaMemcpyToSymbol(host, from, bytes, offset, kind);
}

cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *host, size_t bytes, size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)stream;
    return cudaMemcpyFromSymbol(to, host, bytes, offset, kind);
}

/* ---- rows and boxes ---- */

static CUDA_MEMCPY3D rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height) {
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = (CUdeviceptr)(uintptr_t)from, .srcPitch = from_pitch, .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                           .dstDevice = (CUdeviceptr)(uintptr_t)to, .dstPitch = to_pitch, .WidthInBytes = width, .Height = height, .Depth = 1};
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind) {
    const CUDA_MEMCPY3D copy = rows(to, to_pitch, from, from_pitch, width, height);
    (void)kind;
    DRIVER(cuMemcpy3D(&copy));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    const CUDA_MEMCPY3D copy = rows(to, to_pitch, from, from_pitch, width, height);
    (void)kind;
    DRIVER(cuMemcpy3DAsync(&copy, (CUstream)stream));
}

static CUDA_MEMCPY3D box(const struct cudaMemcpy3DParms *p) {
    return (CUDA_MEMCPY3D){
        .srcXInBytes = p->srcPos.x, .srcY = p->srcPos.y, .srcZ = p->srcPos.z, .srcMemoryType = p->srcArray != NULL ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED, .srcArray = (CUarray)p->srcArray,
        .srcDevice = (CUdeviceptr)(uintptr_t)p->srcPtr.ptr, .srcPitch = p->srcPtr.pitch, .srcHeight = p->srcPtr.ysize,
        .dstXInBytes = p->dstPos.x, .dstY = p->dstPos.y, .dstZ = p->dstPos.z, .dstMemoryType = p->dstArray != NULL ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED, .dstArray = (CUarray)p->dstArray,
        .dstDevice = (CUdeviceptr)(uintptr_t)p->dstPtr.ptr, .dstPitch = p->dstPtr.pitch, .dstHeight = p->dstPtr.ysize,
        .WidthInBytes = p->extent.width, .Height = p->extent.height, .Depth = p->extent.depth};
}

cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *parameters) {
    if (parameters == NULL) return runtime_note(CUDA_ERROR_INVALID_VALUE);
    const CUDA_MEMCPY3D copy = box(parameters);
    DRIVER(cuMemcpy3D(&copy));
}

cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *parameters, cudaStream_t stream) {
    if (parameters == NULL) return runtime_note(CUDA_ERROR_INVALID_VALUE);
    const CUDA_MEMCPY3D copy = box(parameters);
    DRIVER(cuMemcpy3DAsync(&copy, (CUstream)stream));
}

cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) { DRIVER(cuMemsetD2D8((CUdeviceptr)(uintptr_t)to, pitch, (unsigned char)value, width, height)); }

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    DRIVER(cuMemsetD2D8Async((CUdeviceptr)(uintptr_t)to, pitch, (unsigned char)value, width, height, (CUstream)stream));
}

cudaError_t cudaMemset3D(struct cudaPitchedPtr to, int value, struct cudaExtent extent) {
    CUresult result = runtime_start();
    for (size_t z = 0; z < extent.depth && result == CUDA_SUCCESS; z++) {
        result = cuMemsetD2D8((CUdeviceptr)(uintptr_t)to.ptr + z * to.pitch * to.ysize, to.pitch, (unsigned char)value, extent.width, extent.height);
    }
    return runtime_note(result);
}

cudaError_t cudaMallocPitch(void **memory, size_t *pitch, size_t width, size_t height) {
    CUdeviceptr pointer = 0;
    CUresult result = runtime_start();
    if (result == CUDA_SUCCESS) result = cuMemAllocPitch(&pointer, pitch, width, height, 4);
    *memory = (void *)(uintptr_t)pointer;
    return runtime_note(result);
}

cudaError_t cudaMalloc3D(struct cudaPitchedPtr *memory, struct cudaExtent extent) {
    *memory = (struct cudaPitchedPtr){.xsize = extent.width, .ysize = extent.height};
    return cudaMallocPitch(&memory->ptr, &memory->pitch, extent.width, extent.height * extent.depth);
}

/* ---- memory of host and device ---- */

cudaError_t cudaMallocManaged(void **memory, size_t bytes, unsigned flags) {
    CUdeviceptr pointer = 0;
    CUresult result = runtime_start();
    if (result == CUDA_SUCCESS) result = cuMemAllocManaged(&pointer, bytes, flags);
    *memory = (void *)(uintptr_t)pointer;
    return runtime_note(result);
}

cudaError_t cudaMemPrefetchAsync(const void *memory, size_t bytes, struct cudaMemLocation location, unsigned flags, cudaStream_t stream) {
    DRIVER(cuMemPrefetchAsync((CUdeviceptr)(uintptr_t)memory, bytes, (CUmemLocation){.type = (CUmemLocationType)location.type, .id = location.id}, flags, (CUstream)stream));
}

cudaError_t cudaMemAdvise(const void *memory, size_t bytes, enum cudaMemoryAdvise advice, struct cudaMemLocation location) {
    DRIVER(cuMemAdvise((CUdeviceptr)(uintptr_t)memory, bytes, (CUmem_advise)advice, (CUmemLocation){.type = (CUmemLocationType)location.type, .id = location.id}));
}

cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void *memory, size_t bytes, unsigned flags) {
    DRIVER(cuStreamAttachMemAsync((CUstream)stream, (CUdeviceptr)(uintptr_t)memory, bytes, flags));
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags) { DRIVER(cuMemHostRegister(memory, bytes, flags)); }
cudaError_t cudaHostUnregister(void *memory) { DRIVER(cuMemHostUnregister(memory)); }
cudaError_t cudaHostGetDevicePointer(void **address, void *memory, unsigned flags) { DRIVER(cuMemHostGetDevicePointer((CUdeviceptr *)address, memory, flags)); }
cudaError_t cudaHostGetFlags(unsigned *flags, void *memory) { DRIVER(cuMemHostGetFlags(flags, memory)); }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory) {
    unsigned type = 0, managed = 0;
    int device = 0;
    CUdeviceptr there = 0;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *values[] = {&type, &managed, &device, &there};
    CUresult result = runtime_start();
    if (result == CUDA_SUCCESS) result = cuPointerGetAttributes(4, names, values, (CUdeviceptr)(uintptr_t)memory);
    *attributes = (struct cudaPointerAttributes){.type = managed != 0 ? cudaMemoryTypeManaged : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                                                         : cudaMemoryTypeUnregistered, .device = type != 0 ? device : -1, .devicePointer = (void *)(uintptr_t)there};
    if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = (void *)(uintptr_t)memory;
    return runtime_note(result);
}

/* ---- pools: the driver's one, which keeps nothing ---- */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) { DRIVER(cuDeviceGetDefaultMemPool((CUmemoryPool *)pool, device)); }
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) { DRIVER(cuDeviceGetMemPool((CUmemoryPool *)pool, device)); }
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) { DRIVER(cuDeviceSetMemPool(device, (CUmemoryPool)pool)); }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) { DRIVER(cuMemPoolSetAttribute((CUmemoryPool)pool, (CUmemPool_attribute)attribute, value)); }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) { DRIVER(cuMemPoolGetAttribute((CUmemoryPool)pool, (CUmemPool_attribute)attribute, value)); }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) { DRIVER(cuMemPoolTrimTo((CUmemoryPool)pool, bytes)); }

cudaError_t cudaMallocFromPoolAsync(void **memory, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
    (void)pool;
    return cudaMallocAsync(memory, bytes, stream);
}
