/* The driver's calls on memory: allocations of the device, the host and both, pools, what a pointer is. */
#include "driver.h"

#include <stdlib.h>

enum { PITCH_ALIGN = 512 };

static uint64_t release_threshold;

/* ---- allocations ---- */

static cuda_result allocate(cuda_pointer *memory, size_t bytes) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (memory == NULL || bytes == 0)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK && sim_driver.fail_alloc > 0 && --sim_driver.fail_alloc == 0) {
        result = driver_say(CUDA_OUT_OF_MEMORY, "allocation of %zu bytes fails, as the option fail_alloc asks", bytes);
    }
    if (result == CUDA_OK) result = driver_fail(sim_memory_alloc(&sim_driver.memory, bytes, memory), CUDA_OUT_OF_MEMORY);
    return driver_leave(result);
}

/* Memory of either of two origins. Also after a finding. */
static cuda_result release(cuda_pointer memory, sim_origin origin, sim_origin other) {
    pthread_mutex_lock(&sim_driver.lock);
    if (memory == 0 || !sim_driver.started) return driver_leave(CUDA_OK);
    driver_finish();
    const sim_allocation *a = sim_memory_find(&sim_driver.memory, memory);
    if (a != NULL && a->origin != origin && a->origin != other) {
        return driver_leave(driver_say(CUDA_INVALID_VALUE, "0x%llx is freed by a call for memory of another kind than its own", (unsigned long long)memory));
    }
    if (a != NULL && sim_memory_release(&sim_driver.memory, memory)) return driver_leave(CUDA_OK);
    return driver_leave(driver_say(CUDA_INVALID_VALUE, "0x%llx is freed, and is no allocation's address", (unsigned long long)memory));
}

cuda_result cuMemAlloc_v2(cuda_pointer *memory, size_t bytes) { return allocate(memory, bytes); }
cuda_result cuMemFree_v2(cuda_pointer memory) { return release(memory, SIM_OF_DEVICE, SIM_MANAGED); }

cuda_result cuMemAllocFromPoolAsync(cuda_pointer *memory, size_t bytes, cuda_memory_pool pool, cuda_stream stream) {
    (void)pool;
    (void)stream;
    return allocate(memory, bytes);
}

cuda_result cuMemFreeAsync(cuda_pointer memory, cuda_stream stream) {
    (void)stream;
    return release(memory, SIM_OF_DEVICE, SIM_OF_DEVICE);
}

cuda_result cuMemAllocAsync(cuda_pointer *memory, size_t bytes, cuda_stream stream) {
    (void)stream;
    return allocate(memory, bytes);
}

static cuda_result allocate_host(void **memory, size_t bytes, sim_origin origin) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (memory == NULL || bytes == 0)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) result = driver_fail(sim_memory_alloc_host(&sim_driver.memory, bytes, origin, memory), CUDA_OUT_OF_MEMORY);
    return driver_leave(result);
}

cuda_result cuMemAllocHost_v2(void **memory, size_t bytes) { return allocate_host(memory, bytes, SIM_OF_HOST); }

cuda_result cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    (void)flags;   /* all of it is portable and mapped */
    return allocate_host(memory, bytes, SIM_OF_HOST);
}

cuda_result cuMemFreeHost(void *memory) { return release((cuda_pointer)(uintptr_t)memory, SIM_OF_HOST, SIM_OF_HOST); }

/* Host and device see the same bytes at the same address. */
cuda_result cuMemAllocManaged(cuda_pointer *memory, size_t bytes, unsigned flags) {
    void *host;
    if (memory == NULL || (flags != CUDA_ATTACH_GLOBAL && flags != CUDA_ATTACH_HOST)) return CUDA_INVALID_VALUE;
    cuda_result result = allocate_host(&host, bytes, SIM_MANAGED);
    if (result == CUDA_OK) *memory = (cuda_pointer)(uintptr_t)host;
    return result;
}

/* Rows stand 512 bytes apart or a multiple of that. */
cuda_result cuMemAllocPitch_v2(cuda_pointer *memory, size_t *pitch, size_t width_bytes, size_t height, unsigned element_bytes) {
    if (memory == NULL || pitch == NULL || width_bytes == 0 || height == 0 || width_bytes > INT32_MAX || height > SIZE_MAX / 2 / INT32_MAX) return CUDA_INVALID_VALUE;
    if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) return CUDA_INVALID_VALUE;
    *pitch = base_align_up(width_bytes, PITCH_ALIGN);
    return allocate(memory, *pitch * height);
}

cuda_result cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) {
    (void)flags;
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (memory == NULL || bytes == 0)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) result = driver_fail(sim_memory_register(&sim_driver.memory, memory, bytes), CUDA_ALREADY_REGISTERED);
    return driver_leave(result);
}

cuda_result cuMemHostUnregister(void *memory) {
    const cuda_pointer address = (cuda_pointer)(uintptr_t)memory;
    pthread_mutex_lock(&sim_driver.lock);
    driver_finish();
    const sim_allocation *a = sim_memory_find(&sim_driver.memory, address);
    bool known = a != NULL && a->origin == SIM_REGISTERED && sim_memory_release(&sim_driver.memory, address);
    return driver_leave(known ? CUDA_OK : CUDA_NOT_REGISTERED);
}

static const sim_allocation *find_of_host(const void *memory) {
    const sim_allocation *a = sim_memory_find(&sim_driver.memory, (cuda_pointer)(uintptr_t)memory);
    return a != NULL && a->origin != SIM_OF_DEVICE ? a : NULL;
}

cuda_result cuMemHostGetDevicePointer_v2(cuda_pointer *address, void *memory, unsigned flags) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (address == NULL || flags != 0 || find_of_host(memory) == NULL)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) *address = (cuda_pointer)(uintptr_t)memory;
    return driver_leave(result);
}

cuda_result cuMemHostGetFlags(unsigned *flags, void *memory) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (flags == NULL || find_of_host(memory) == NULL)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) *flags = CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED;
    return driver_leave(result);
}

/* Where pages lie, and for whom, changes no value. */
static cuda_result advise(cuda_pointer memory, size_t bytes) {
    cuda_result result = driver_enter();
    const sim_allocation *a = result == CUDA_OK ? sim_memory_range(&sim_driver.memory, memory, bytes) : NULL;
    if (result == CUDA_OK && (a == NULL || a->origin != SIM_MANAGED)) result = driver_say(CUDA_INVALID_VALUE, "%zu bytes at 0x%llx are no managed memory", bytes, (unsigned long long)memory);
    return driver_leave(result);
}

cuda_result cuMemPrefetchAsync_v2(cuda_pointer memory, size_t bytes, cuda_memory_location location, unsigned flags, cuda_stream stream) {
    (void)location, (void)stream;
    return flags != 0 ? CUDA_INVALID_VALUE : advise(memory, bytes);
}

cuda_result cuMemAdvise_v2(cuda_pointer memory, size_t bytes, int advice, cuda_memory_location location) {
    (void)advice, (void)location;
    return advise(memory, bytes);
}

cuda_result cuStreamAttachMemAsync(cuda_stream stream, cuda_pointer memory, size_t bytes, unsigned flags) {
    (void)stream, (void)flags;
    return advise(memory, bytes > 0 ? bytes : 1);
}

cuda_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (free_bytes == NULL || total_bytes == NULL)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) {
        *free_bytes = sim_driver.memory.limit - sim_driver.memory.used;
        *total_bytes = sim_driver.memory.limit;
    }
    return driver_leave(result);
}

/* A pool keeps nothing: what is freed is gone. All are one. */
cuda_result cuMemPoolCreate(cuda_memory_pool *pool, const cuda_memory_pool_props *props) {
    if (pool == NULL || props == NULL) return CUDA_INVALID_VALUE;
    *pool = (cuda_memory_pool)(void *)&sim_driver;
    return CUDA_OK;
}

cuda_result cuMemPoolDestroy(cuda_memory_pool pool) { return pool != NULL ? CUDA_OK : CUDA_INVALID_VALUE; }

cuda_result cuDeviceGetDefaultMemPool(cuda_memory_pool *pool, cuda_device device) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (pool == NULL || device != 0)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) *pool = (cuda_memory_pool)(void *)&sim_driver;
    return driver_leave(result);
}

cuda_result cuDeviceGetMemPool(cuda_memory_pool *pool, cuda_device device) { return cuDeviceGetDefaultMemPool(pool, device); }

cuda_result cuDeviceSetMemPool(cuda_device device, cuda_memory_pool pool) { return device == 0 && pool != NULL ? CUDA_OK : CUDA_INVALID_VALUE; }

/* They say when memory that is free is kept, and that is never. */
cuda_result cuMemPoolSetAttribute(cuda_memory_pool pool, cuda_memory_pool_attribute attribute, void *value) {
    if (pool == NULL || value == NULL) return CUDA_INVALID_VALUE;
    if (attribute == CUDA_POOL_RELEASE_THRESHOLD) memcpy(&release_threshold, value, sizeof release_threshold);
    return CUDA_OK;
}

cuda_result cuMemPoolGetAttribute(cuda_memory_pool pool, cuda_memory_pool_attribute attribute, void *value) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (pool == NULL || value == NULL)) result = CUDA_INVALID_VALUE;
    if (result != CUDA_OK) return driver_leave(result);
    switch ((int)attribute) {
    case 1: case 2: case 3: *(int *)value = 1; break;   /* what may be used again, which all of it may */
    case CUDA_POOL_RELEASE_THRESHOLD: memcpy(value, &release_threshold, sizeof release_threshold); break;
    case CUDA_POOL_RESERVED_BYTES: case CUDA_POOL_USED_BYTES: *(uint64_t *)value = sim_driver.memory.used; break;
    case CUDA_POOL_RESERVED_MOST: case CUDA_POOL_USED_MOST: *(uint64_t *)value = sim_driver.memory.used_most; break;
    default: result = CUDA_NOT_SUPPORTED; break;
    }
    return driver_leave(result);
}

cuda_result cuMemPoolTrimTo(cuda_memory_pool pool, size_t bytes) {
    (void)bytes;
    return pool != NULL ? CUDA_OK : CUDA_INVALID_VALUE;
}

/* ---- what a pointer is ---- */

/* CUDA_NOT_SUPPORTED for what the simulator has no answer to. */
static cuda_result describe(void *value, cuda_pointer_attribute attribute, const sim_allocation *a, cuda_pointer pointer) {
    void *context = a != NULL ? &sim_driver : NULL;
    bool known = a != NULL, of_host = known && a->origin != SIM_OF_DEVICE;
    switch ((int)attribute) {
    case CUDA_POINTER_CONTEXT: memcpy(value, &context, sizeof context); break;
    case CUDA_POINTER_MEMORY_TYPE: *(unsigned *)value = !known ? 0 : a->origin == SIM_OF_HOST || a->origin == SIM_REGISTERED ? CUDA_MEMORY_HOST : CUDA_MEMORY_DEVICE; break;
    case CUDA_POINTER_DEVICE_POINTER: *(cuda_pointer *)value = known ? pointer : 0; break;
    case CUDA_POINTER_HOST_POINTER: *(uint64_t *)value = of_host ? pointer : 0; return of_host || !known ? CUDA_OK : CUDA_INVALID_VALUE;
    case CUDA_POINTER_BUFFER_ID: *(uint64_t *)value = known ? a->address : 0; break;
    case CUDA_POINTER_IS_MANAGED: *(unsigned *)value = known && a->origin == SIM_MANAGED; break;
    case CUDA_POINTER_DEVICE_ORDINAL: *(int *)value = known ? 0 : -2; break;
    case CUDA_POINTER_RANGE_START: *(cuda_pointer *)value = known ? a->address : 0; break;
    case CUDA_POINTER_RANGE_SIZE: *(size_t *)value = known ? a->bytes : 0; break;
    default: return CUDA_NOT_SUPPORTED;
    }
    return CUDA_OK;
}

/* Of what is not known: zeros, as the driver gives. */
cuda_result cuPointerGetAttributes(unsigned count, cuda_pointer_attribute *attributes, void **values, cuda_pointer pointer) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (attributes == NULL || values == NULL)) result = CUDA_INVALID_VALUE;
    if (result != CUDA_OK) return driver_leave(result);
    const sim_allocation *a = sim_memory_find(&sim_driver.memory, pointer);
    for (unsigned i = 0; i < count; i++) {
        if (describe(values[i], attributes[i], a, pointer) == CUDA_NOT_SUPPORTED) result = CUDA_NOT_SUPPORTED;
    }
    return driver_leave(result);
}

cuda_result cuPointerGetAttribute(void *value, cuda_pointer_attribute attribute, cuda_pointer pointer) {
    cuda_result result = driver_enter();
    const sim_allocation *a = result == CUDA_OK ? sim_memory_find(&sim_driver.memory, pointer) : NULL;
    if (result == CUDA_OK && (value == NULL || a == NULL)) result = CUDA_INVALID_VALUE;
    return driver_leave(result == CUDA_OK ? describe(value, attribute, a, pointer) : result);
}
