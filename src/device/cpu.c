/* The CPU as a device: memory is host memory, a kernel is a function that the context's pool helps to run. */
#include "device/device.h"

#include <assert.h>
#include <string.h>

#define MEMORY_ALIGN 64
#define PAGE_ALIGN 4096       /* of large blocks, so that the system may use huge pages */
#define LARGE_BYTES ((size_t)1 << 20)

static size_t align_of(size_t bytes) { return bytes >= LARGE_BYTES ? PAGE_ALIGN : MEMORY_ALIGN; }

static void cpu_close(device *device) { base_release(device->context, device, sizeof *device, _Alignof(struct device)); }

static dw_status cpu_alloc(device *device, size_t bytes, void **memory) { return base_alloc(device->context, bytes, align_of(bytes), memory); }

static void cpu_release(device *device, void *memory, size_t bytes) { base_release(device->context, memory, bytes, align_of(bytes)); }

static dw_status cpu_copy(device *device, void *to, const void *from, size_t bytes) {
    (void)device;
    if (bytes > 0 && to != from) memmove(to, from, bytes);
    return DW_OK;
}

static dw_status cpu_copy_rows(device *device, const device_rows *rows) {
    (void)device;
    device_copy_host_rows(rows);
    return DW_OK;
}

static dw_status cpu_fill(device *device, void *to, int byte, size_t bytes) {
    (void)device;
    if (bytes > 0) memset(to, byte, bytes);
    return DW_OK;
}

static dw_status cpu_run(device *device, const kernel_row *row, kernel_run *run) {
    assert(row->device == CHIP_CPU);
    run->pool = device->pool;
    run->chip = &device->caps;
    return kernel_execute(row, run);
}

static dw_status cpu_synchronize(device *device) {
    (void)device;
    return DW_OK;
}

static const device_calls cpu_calls = {
    .close = cpu_close,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .write = cpu_copy,
    .read = cpu_copy,
    .copy = cpu_copy,
    .copy_rows = cpu_copy_rows,
    .fill = cpu_fill,
    .run = cpu_run,
    .synchronize = cpu_synchronize,
};

void device_copy_host_rows(const device_rows *rows) {
    for (size_t i = 0; i < rows->count; i++) memcpy((char *)rows->to + i * rows->to_pitch, (const char *)rows->from + i * rows->from_pitch, rows->bytes);
}

dw_status device_cpu_open(dw_context *context, const char *detail, device **result) {
    *result = NULL;
    chip_caps caps;
    pool *pool;
    TRY(device_probe_cpu(context, detail, dw_context_threads(context), &caps));
    TRY(base_pool(context, &pool));
    void *memory;
    TRY(base_alloc(context, sizeof **result, _Alignof(device), &memory));
    *result = memory;
    **result = (device){.calls = &cpu_calls, .context = context, .caps = caps, .host_memory = true, .pool = pool};
    return DW_OK;
}
