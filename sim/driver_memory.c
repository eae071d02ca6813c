/* The driver's calls on memory: allocations, copies, fills, what a pointer is. */
#include "driver.h"

#include <stdlib.h>

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

static cuda_result release(cuda_pointer memory) {
    pthread_mutex_lock(&sim_driver.lock);   /* also after a finding */
    if (memory == 0 || !sim_driver.started) return driver_leave(CUDA_OK);
    if (sim_memory_release(&sim_driver.memory, memory)) return driver_leave(CUDA_OK);
    return driver_leave(driver_say(CUDA_INVALID_VALUE, "0x%llx is freed, and is no allocation's address", (unsigned long long)memory));
}

cuda_result cuMemAlloc_v2(cuda_pointer *memory, size_t bytes) { return allocate(memory, bytes); }
cuda_result cuMemFree_v2(cuda_pointer memory) { return release(memory); }

cuda_result cuMemAllocFromPoolAsync(cuda_pointer *memory, size_t bytes, cuda_memory_pool pool, cuda_stream stream) {
    (void)pool;
    (void)stream;
    return allocate(memory, bytes);
}

cuda_result cuMemFreeAsync(cuda_pointer memory, cuda_stream stream) {
    (void)stream;
    return release(memory);
}

cuda_result cuMemAllocHost_v2(void **memory, size_t bytes) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (memory == NULL || bytes == 0)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) result = driver_fail(sim_memory_alloc_host(&sim_driver.memory, bytes, memory), CUDA_OUT_OF_MEMORY);
    return driver_leave(result);
}

cuda_result cuMemFreeHost(void *memory) { return release((cuda_pointer)(uintptr_t)memory); }

cuda_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (free_bytes == NULL || total_bytes == NULL)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) {
        *free_bytes = sim_driver.memory.limit - sim_driver.memory.used;
        *total_bytes = sim_driver.memory.limit;
    }
    return driver_leave(result);
}

/* A pool keeps nothing: what is freed is gone. */
cuda_result cuMemPoolCreate(cuda_memory_pool *pool, const cuda_memory_pool_props *props) {
    if (pool == NULL || props == NULL) return CUDA_INVALID_VALUE;
    *pool = (cuda_memory_pool)(void *)&sim_driver;
    return CUDA_OK;
}

cuda_result cuMemPoolDestroy(cuda_memory_pool pool) { return pool != NULL ? CUDA_OK : CUDA_INVALID_VALUE; }

cuda_result cuMemPoolSetAttribute(cuda_memory_pool pool, cuda_memory_pool_attribute attribute, void *value) {
    (void)attribute;
    return pool != NULL && value != NULL ? CUDA_OK : CUDA_INVALID_VALUE;
}

cuda_result cuMemPoolTrimTo(cuda_memory_pool pool, size_t bytes) {
    (void)bytes;
    return pool != NULL ? CUDA_OK : CUDA_INVALID_VALUE;
}

/* ---- copies and fills ---- */

static sim_allocation *range(cuda_pointer address, size_t bytes, const char *what) {
    sim_allocation *a = sim_memory_range(&sim_driver.memory, address, bytes);
    if (a == NULL) {
        driver_say(CUDA_INVALID_VALUE, "%s %zu bytes at 0x%llx, which do not lie in one allocation", what, bytes, (unsigned long long)address);
    }
    return a;
}

/* Under the lock. One of each pair is given. What was never written stays so in the copy. */
cuda_result driver_copy(cuda_pointer to_device, void *to_host, cuda_pointer from_device, const void *from_host, size_t bytes) {
    sim_allocation *to = NULL, *from = NULL;
    if (bytes == 0) return CUDA_OK;
    if (to_host == NULL && (to = range(to_device, bytes, "a copy writes")) == NULL) return CUDA_INVALID_VALUE;
    if (from_host == NULL && (from = range(from_device, bytes, "a copy reads")) == NULL) return CUDA_INVALID_VALUE;
    size_t to_at = to != NULL ? (size_t)(to_device - to->address) : 0, from_at = from != NULL ? (size_t)(from_device - from->address) : 0;
    memmove(to != NULL ? (void *)(to->host + to_at) : to_host, from != NULL ? (const void *)(from->host + from_at) : from_host, bytes);
    if (to != NULL && from != NULL) memmove(to->shadow + to_at, from->shadow + from_at, bytes);
    else if (to != NULL) memset(to->shadow + to_at, SHADOW_WRITTEN, bytes);
    return CUDA_OK;
}

cuda_result driver_set(cuda_pointer to, uint32_t value, int element_bytes, size_t count) {
    if (count == 0) return CUDA_OK;
    if (count > SIZE_MAX / 4 || to % (unsigned)element_bytes != 0) return CUDA_INVALID_VALUE;
    size_t bytes = count * (size_t)element_bytes;
    sim_allocation *a = range(to, bytes, "a fill writes");
    if (a == NULL) return CUDA_INVALID_VALUE;
    uint8_t *at = a->host + (to - a->address);
    for (size_t i = 0; i < count; i++) memcpy(at + i * (size_t)element_bytes, &value, (size_t)element_bytes);
    memset(a->shadow + (to - a->address), SHADOW_WRITTEN, bytes);
    return CUDA_OK;
}

static cuda_result copy(cuda_pointer to_device, void *to_host, cuda_pointer from_device, const void *from_host, size_t bytes) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK) result = driver_copy(to_device, to_host, from_device, from_host, bytes);
    return driver_leave(result);
}

static cuda_result set(cuda_pointer to, uint32_t value, int element_bytes, size_t count) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK) result = driver_set(to, value, element_bytes, count);
    return driver_leave(result);
}

cuda_result cuMemcpyHtoD_v2(cuda_pointer to, const void *from, size_t bytes) { return from != NULL || bytes == 0 ? copy(to, NULL, 0, from, bytes) : CUDA_INVALID_VALUE; }
cuda_result cuMemcpyDtoH_v2(void *to, cuda_pointer from, size_t bytes) { return to != NULL || bytes == 0 ? copy(0, to, from, NULL, bytes) : CUDA_INVALID_VALUE; }
cuda_result cuMemcpyDtoD_v2(cuda_pointer to, cuda_pointer from, size_t bytes) { return copy(to, NULL, from, NULL, bytes); }
cuda_result cuMemsetD8_v2(cuda_pointer to, unsigned char value, size_t count) { return set(to, value, 1, count); }
cuda_result cuMemsetD32_v2(cuda_pointer to, unsigned value, size_t count) { return set(to, value, 4, count); }

cuda_result cuMemcpyHtoDAsync_v2(cuda_pointer to, const void *from, size_t bytes, cuda_stream stream) {
    (void)stream;
    return cuMemcpyHtoD_v2(to, from, bytes);
}

cuda_result cuMemcpyDtoHAsync_v2(void *to, cuda_pointer from, size_t bytes, cuda_stream stream) {
    (void)stream;
    return cuMemcpyDtoH_v2(to, from, bytes);
}

cuda_result cuMemcpyDtoDAsync_v2(cuda_pointer to, cuda_pointer from, size_t bytes, cuda_stream stream) {
    (void)stream;
    return copy(to, NULL, from, NULL, bytes);
}

cuda_result cuMemsetD8Async(cuda_pointer to, unsigned char value, size_t count, cuda_stream stream) {
    (void)stream;
    return set(to, value, 1, count);
}

cuda_result cuMemsetD32Async(cuda_pointer to, unsigned value, size_t count, cuda_stream stream) {
    (void)stream;
    return set(to, value, 4, count);
}

cuda_result cuPointerGetAttributes(unsigned count, cuda_pointer_attribute *attributes, void **values, cuda_pointer pointer) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (attributes == NULL || values == NULL)) result = CUDA_INVALID_VALUE;
    if (result != CUDA_OK) return driver_leave(result);
    const sim_allocation *a = sim_memory_find(&sim_driver.memory, pointer);
    bool device = a != NULL && !a->of_host;
    for (unsigned i = 0; i < count; i++) {   /* of what is no device memory: zeros, as the driver gives */
        void *context = device ? &sim_driver : NULL;
        switch (attributes[i]) {
        case CUDA_POINTER_CONTEXT: memcpy(values[i], &context, sizeof context); break;
        case CUDA_POINTER_MEMORY_TYPE: *(unsigned *)values[i] = device ? CUDA_MEMORY_DEVICE : 0; break;
        case CUDA_POINTER_DEVICE_POINTER: *(cuda_pointer *)values[i] = device ? pointer : 0; break;
        case CUDA_POINTER_IS_MANAGED: *(unsigned *)values[i] = 0; break;
        case CUDA_POINTER_DEVICE_ORDINAL: *(int *)values[i] = device ? 0 : -2; break;
        default: result = CUDA_NOT_SUPPORTED; break;
        }
    }
    return driver_leave(result);
}
