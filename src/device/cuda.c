/* NVIDIA GPUs through the driver interface: memory, copies, launches and graphs on a stream of its own or of the caller's, in the device's primary
 * context, which a PyTorch in this process uses, too. Knows a GPU by cuda.def alone, so a stand-in for the driver ("sim:b200") is the same device. */
#include "device/cuda.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One call of the driver in the device's context. */
#define IN_CONTEXT(device, call, ...)                                                                                        \
    do {                                                                                                                     \
        TRY(cuda_enter(device));                                                                                             \
        cuda_result in_context_ = cuda_state_of(device)->driver.call(__VA_ARGS__);                                           \
        cuda_leave(device);                                                                                                  \
        if (in_context_ != CUDA_OK) return cuda_fail((device)->context, &cuda_state_of(device)->driver, in_context_, "cu" #call); \
    } while (0)

static cuda_pointer address_of(const void *memory) { return (cuda_pointer)(uintptr_t)memory; }

static dw_status cuda_alloc(device *device, size_t bytes, void **memory) {
    cuda_pointer pointer = 0;
    *memory = NULL;
    if (bytes == 0) return DW_OK;
    TRY(cuda_enter(device));
    cuda_result result = cuda_state_of(device)->driver.MemAlloc_v2(&pointer, bytes);
    cuda_leave(device);
    if (result != CUDA_OK)
        return base_fail_at(device->context, cuda_fail(device->context, &cuda_state_of(device)->driver, result, "cuMemAlloc_v2"), "%zu bytes on %s", bytes, device->caps.model);
    *memory = (void *)(uintptr_t)pointer;
    return DW_OK;
}

static void cuda_release(device *device, void *memory, size_t bytes) {
    (void)bytes;
    if (memory == NULL || cuda_enter(device) != DW_OK) return;
    cuda_state_of(device)->driver.MemFree_v2(address_of(memory));
    cuda_leave(device);
}

static dw_status cuda_left(device *device, size_t *bytes) {
    size_t all;
    IN_CONTEXT(device, MemGetInfo_v2, bytes, &all);
    return DW_OK;
}

/* Returns when host memory may be changed. */
static dw_status cuda_write(device *device, void *to, const void *from_host, size_t bytes) {
    if (bytes == 0) return DW_OK;
    IN_CONTEXT(device, MemcpyHtoDAsync_v2, address_of(to), from_host, bytes, cuda_state_of(device)->current);
    return DW_OK;
}

static dw_status cuda_read(device *device, void *to_host, const void *from, size_t bytes) {
    if (bytes == 0) return DW_OK;
    IN_CONTEXT(device, MemcpyDtoHAsync_v2, to_host, address_of(from), bytes, cuda_state_of(device)->current);
    return DW_OK;
}

static dw_status cuda_move(device *device, void *to, const void *from, size_t bytes) {
    if (bytes == 0 || to == from) return DW_OK;
    IN_CONTEXT(device, MemcpyDtoDAsync_v2, address_of(to), address_of(from), bytes, cuda_state_of(device)->current);
    return DW_OK;
}

/* Pitches that the driver refuses, a row after the other: all beyond CU_DEVICE_ATTRIBUTE_MAX_PITCH (2^31 - 1), and of others that it did not make itself it promises none. */
static dw_status cuda_move_rows(device *device, const device_rows *rows) {
    if (rows->bytes == 0 || rows->count == 0) return DW_OK;
    const cuda_copy copy = {.from_type = CUDA_MEMORY_DEVICE, .from_device = address_of(rows->from), .from_pitch = rows->from_pitch, .from_height = rows->count, .to_type = CUDA_MEMORY_DEVICE,
                            .to_device = address_of(rows->to), .to_pitch = rows->to_pitch, .to_height = rows->count, .width_bytes = rows->bytes, .height = rows->count, .depth = 1};
    TRY(cuda_enter(device));
    const cuda_result result = cuda_state_of(device)->driver.Memcpy3DAsync_v2(&copy, cuda_state_of(device)->current);
    cuda_leave(device);
    if (result == CUDA_OK) return DW_OK;
    if (result != CUDA_INVALID_VALUE) return cuda_fail(device->context, &cuda_state_of(device)->driver, result, "cuMemcpy3DAsync_v2");
    for (size_t i = 0; i < rows->count; i++) TRY(cuda_move(device, (char *)rows->to + i * rows->to_pitch, (const char *)rows->from + i * rows->from_pitch, rows->bytes));
    return DW_OK;
}

static dw_status cuda_fill(device *device, void *to, int byte, size_t bytes) {
    if (bytes == 0) return DW_OK;
    IN_CONTEXT(device, MemsetD8Async, address_of(to), (unsigned char)byte, bytes, cuda_state_of(device)->current);
    return DW_OK;
}

/* Which fault a kernel has reported since the last time. */
static dw_status tell_fault(device *device) {
    kernel_fault *fault = cuda_state_of(device)->fault;
    if (fault->kind == KERNEL_FAULT_NONE) return DW_OK;
    text words;
    text_init(&words, device->context);
    kernel_fault_print(&words, fault);
    device->fault_step = fault->step;
    *fault = (kernel_fault){0};
    dw_status status = base_fail(device->context, DW_INVALID, "%s", text_string(&words));
    text_free(&words);
    return status;
}

static dw_status cuda_synchronize(device *device) {
    IN_CONTEXT(device, StreamSynchronize, cuda_state_of(device)->stream);
    return tell_fault(device);
}

/* ---- what the host does not wait for ---- */

static dw_status cuda_pin(device *device, size_t bytes, void **memory) {
    *memory = NULL;
    IN_CONTEXT(device, MemAllocHost_v2, memory, bytes);
    return DW_OK;
}

static void cuda_unpin(device *device, void *memory) {
    if (memory == NULL || cuda_enter(device) != DW_OK) return;
    cuda_state_of(device)->driver.MemFreeHost(memory);
    cuda_leave(device);
}

static dw_status cuda_mark_create(device *device, device_mark_kind kind, void **mark) {
    *mark = NULL;
    IN_CONTEXT(device, EventCreate, (cuda_event *)mark, kind == DEVICE_MARK_TIMED ? 0 : CUDA_EVENT_NO_TIMING);
    return DW_OK;
}

static void cuda_mark_release(device *device, void *mark) {
    if (mark == NULL || cuda_enter(device) != DW_OK) return;
    cuda_state_of(device)->driver.EventDestroy_v2(mark);
    cuda_leave(device);
}

static dw_status cuda_mark(device *device, void *mark) {
    IN_CONTEXT(device, EventRecord, mark, cuda_state_of(device)->current);
    return DW_OK;
}

static dw_status cuda_await(device *device, void *mark) {
    IN_CONTEXT(device, EventSynchronize, mark);
    return tell_fault(device);
}

static dw_status cuda_elapsed(device *device, void *first, void *last, double *seconds) {
    float milliseconds = 0;
    IN_CONTEXT(device, EventElapsedTime, &milliseconds, first, last);
    *seconds = (double)milliseconds * 1e-3;
    return DW_OK;
}

static bool cuda_tell_driver(const device *device, char *words, size_t size) {
    const cuda_driver *driver = &cuda_state_of(device)->driver;
    snprintf(words, size, "CUDA %d.%d", driver->version / 1000, driver->version % 1000 / 10);
    cuda_libraries_tell(device, words, size);
    return !driver->is_simulated;
}

/* The kind of a fault is there first, the rest when its kernel has ended. */
static dw_status cuda_poll(device *device) {
    const volatile kernel_fault *fault = cuda_state_of(device)->fault;
    return fault->kind == KERNEL_FAULT_NONE ? DW_OK : cuda_synchronize(device);
}

static dw_status cuda_start(device *device, device_graph *graph) {
    TRY(cuda_enter(device));
    dw_status status = cuda_graph_launch(device, graph);
    cuda_leave(device);
    return status;
}

static dw_status cuda_make_ready(device *device, device_graph *graph) {
    TRY(cuda_enter(device));
    dw_status status = cuda_graph_ready(device, graph);
    cuda_leave(device);
    return status;
}

static dw_status cuda_carry_in_graph(device *device, device_graph *graph, int first_count, const kernel_piece *first, int last_count, const kernel_piece *last, bool *done) {
    TRY(cuda_enter(device));
    dw_status status = cuda_graph_carry(device, graph, first_count, first, last_count, last, done);
    cuda_leave(device);
    return status;
}

static dw_status cuda_record(device *device, device_graph *graph, const kernel_row *row, kernel_run *run) {
    TRY(cuda_enter(device));
    dw_status status = cuda_graph_add(device, graph, row, run);
    cuda_leave(device);
    return status;
}

static dw_status cuda_time(device *device, device_graph *graph, int runs, device_times *times) {
    TRY(cuda_enter(device));
    dw_status status = cuda_graph_time(device, graph, runs, times);
    cuda_leave(device);
    return status == DW_OK ? cuda_synchronize(device) : status;
}

static void cuda_close(device *device) {
    cuda_state *state = cuda_state_of(device);
    dw_context *context = device->context;
    if (state != NULL && state->retained) {
        if (cuda_enter(device) == DW_OK) {
            if (state->stream != NULL) state->driver.StreamSynchronize(state->stream);
            cuda_libraries_close(device);
            for (size_t i = 0; i < state->libraries.count; i++) state->driver.LibraryUnload(state->libraries.entries[i].value);
            if (state->fault != NULL) state->driver.MemFreeHost(state->fault);
            if (state->counters != 0) state->driver.MemFree_v2(state->counters);
            if (state->done != NULL) state->driver.EventDestroy_v2(state->done);
            if (state->stream != NULL) state->driver.StreamDestroy_v2(state->stream);
            cuda_leave(device);
        }
        state->driver.DevicePrimaryCtxRelease_v2(state->ordinal);
    }
    if (state != NULL) {
        cuda_driver_close(&state->driver);
        arena_free(&state->arena);
        base_release(context, state, sizeof *state, _Alignof(cuda_state));
    }
    base_release(context, device, sizeof *device, _Alignof(struct device));
}

static const device_calls cuda_calls = {
    .close = cuda_close,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .left = cuda_left,
    .write = cuda_write,
    .read = cuda_read,
    .copy = cuda_move,
    .carry = cuda_carry,
    .copy_rows = cuda_move_rows,
    .fill = cuda_fill,
    .run = cuda_run_row,
    .synchronize = cuda_synchronize,
    .driver = cuda_tell_driver,
    .poll = cuda_poll,
    .follow = cuda_follow,
    .lead = cuda_lead,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .mark_create = cuda_mark_create,
    .mark_release = cuda_mark_release,
    .mark = cuda_mark,
    .await = cuda_await,
    .elapsed = cuda_elapsed,
    .graph_create = cuda_graph_create,
    .graph_begin = cuda_graph_begin,
    .graph_add = cuda_record,
    .graph_ready = cuda_make_ready,
    .graph_carry = cuda_carry_in_graph,
    .graph_launch = cuda_start,
    .graph_release = cuda_graph_release,
    .graph_time = cuda_time,
};

/* ---- opening ---- */

static dw_status open_libraries(device *device, const char *asked) {
    TRY(cuda_enter(device));
    dw_status status = cuda_libraries_open(device, asked);
    cuda_leave(device);
    return status;
}

static dw_status start(device *device, int number, const char *libraries) {
    cuda_state *state = cuda_state_of(device);
    const cuda_driver *driver = &state->driver;
    dw_context *context = device->context;
    int count;
    CUDA_TRY(context, driver, DeviceGetCount, &count);
    if (number >= count)
        return base_fail(context, DW_NOT_FOUND, "device cuda:%d: the driver sees %d GPU%s, counted from 0", number, count, count == 1 ? "" : "s");
    CUDA_TRY(context, driver, DeviceGet, &state->ordinal, number);
    TRY(cuda_probe(context, driver, state->ordinal, &device->caps));
    CUDA_TRY(context, driver, DevicePrimaryCtxRetain, &state->primary, state->ordinal);
    state->retained = true;
    int unified = 0;
    CUDA_TRY(context, driver, DeviceGetAttribute, &unified, CUDA_DEVICE_UNIFIED_ADDRESSING, state->ordinal);
    state->carries = unified != 0;
    void *fault = NULL;
    IN_CONTEXT(device, MemAllocHost_v2, &fault, sizeof(kernel_fault));
    state->fault = fault;
    *state->fault = (kernel_fault){0};
    IN_CONTEXT(device, EventCreate, &state->done, CUDA_EVENT_NO_TIMING);
    IN_CONTEXT(device, StreamCreateWithPriority, &state->stream, CUDA_STREAM_NON_BLOCKING, 0);
    state->current = state->stream;
    IN_CONTEXT(device, MemAlloc_v2, &state->counters, KERNEL_COUNTER_BYTES);
    IN_CONTEXT(device, MemsetD8Async, state->counters, 0, KERNEL_COUNTER_BYTES, state->stream);
    return open_libraries(device, libraries);
}

/* What a device's name says of it. */
typedef struct cuda_asked { const char *path, *options, *libraries; bool is_named; long number; } cuda_asked;

static dw_status open_driver(dw_context *context, const cuda_asked *asked, device **result) {
    void *memory, *own;
    *result = NULL;
    TRY(base_alloc(context, sizeof(device), _Alignof(device), &memory));
    device *made = memory;
    *made = (device){.calls = &cuda_calls, .context = context};
    dw_status status = base_alloc(context, sizeof(cuda_state), _Alignof(cuda_state), &own);
    if (status == DW_OK) {
        cuda_state *state = made->own = own;
        *state = (cuda_state){0};
        arena_init(&state->arena, context);
        map_init(&state->libraries, &state->arena);
        map_init(&state->functions, &state->arena);
        status = cuda_driver_open(&state->arena, asked->path, asked->options, &state->driver);
        state->driver.is_named = asked->is_named;
    }
    if (status == DW_OK) status = start(made, (int)asked->number, asked->libraries);
    if (status != DW_OK) {
        cuda_close(made);
        return status;
    }
    *result = made;
    return DW_OK;
}

/* Takes "key=value" off a list, which is cut into words; false: it is another one. */
static bool accept_option(char **at, const char *key, const char **value) {
    const size_t length = strlen(key);
    if (strncmp(*at, key, length) != 0 || (*at)[length] != '=' || (*at)[length + 1] == '\0' || (*at)[length + 1] == ',') return false;
    *value = *at + length + 1;
    *at += length + 1 + strcspn(*value, ",");
    if (**at == ',') *(*at)++ = '\0';
    return true;
}

static bool read_name(char *at, cuda_asked *asked) {
    if (*at >= '0' && *at <= '9') {
        asked->number = strtol(at, &at, 10);
        if (*at != ',' && *at != '\0') return false;
    }
    if (*at == ',') at++;
    while (*at != '\0') {
        if (accept_option(&at, "driver", &asked->path)) asked->is_named = true;
        else if (!accept_option(&at, "libraries", &asked->libraries)) return false;
    }
    return asked->number <= 4095;
}

/* detail: "", "1", "1,driver=/path/library.so", ",libraries=none". */
dw_status device_cuda_open(dw_context *context, const char *detail, device **result) {
    char words[4096];
    cuda_asked asked = {.path = "libcuda.so.1"};
    *result = NULL;
    if ((size_t)snprintf(words, sizeof words, "%s", detail) >= sizeof words || !read_name(words, &asked))
        return base_fail(context, DW_INVALID, "device 'cuda:%s': expected cuda, cuda:N, or behind these, with commas, driver=LIBRARY and libraries=none, NAME or FOLDER", detail);
    return open_driver(context, &asked, result);
}

/* The chip in front of the options is a GPU. */
static dw_status check_simulated(dw_context *context, const char *detail) {
    char name[64];
    chip_caps caps;
    const size_t length = strcspn(detail, ",");
    if (length == 0) return base_fail(context, DW_INVALID, "device 'sim%s%s': which chip is simulated? sim:h200, sim:b200 or another GPU of the chip table", detail[0] != '\0' ? ":" : "", detail);
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), detail);
    dw_status status = chip_find(context, name, 0, &caps);
    if (status != DW_OK) return base_fail_at(context, status, "device sim:%s", detail);
    return caps.kind == CHIP_GPU ? DW_OK : base_fail(context, DW_INVALID, "device 'sim:%s': %s is no GPU: name one, as sim:h200", detail, name);
}

/* The folder, with a '/' behind it, of the library that this code is in, or of the program that holds it: "" where the system does not say. */
static void own_folder(char *path, size_t size) {
    Dl_info place = {0};
    void *here;
    dw_status (*self)(dw_context *, const char *, device **) = device_sim_open;
    memcpy(&here, &self, sizeof here);
    const char *name = dladdr(here, &place) != 0 && place.dli_fname != NULL ? place.dli_fname : "";
    size_t length = strlen(name);
    if (strchr(name, '/') != NULL && length < size) {
        memcpy(path, name, length);
    } else {   /* a program that the shell found in PATH: its name is all that is known */
        const ssize_t read = readlink("/proc/self/exe", path, size - 1);
        length = read > 0 ? (size_t)read : 0;
    }
    path[length] = '\0';
    char *end = strrchr(path, '/');
    path[end != NULL ? end - path + 1 : 0] = '\0';
}

/* detail: the chip, and the simulator's options. The simulator lies beside this library. */
dw_status device_sim_open(dw_context *context, const char *detail, device **result) {
    static const char name[] = "libdeepwell-sim.so";
    char path[4096];
    *result = NULL;
    TRY(check_simulated(context, detail));
    own_folder(path, sizeof path - sizeof name);
    strcat(path, name);
    return open_driver(context, &(cuda_asked){.path = path, .options = detail}, result);
}
