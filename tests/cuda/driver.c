/* A stand-in for the CUDA driver: records every call, fails the one it is told to, counts what is not given back, and runs the plain kernels on the host
 * (host.h), and in their order what stand-ins for libraries put into its stream (cublaslt.c). It is no model of a GPU: it knows neither clusters nor tensor maps, and refuses launches that ask for them. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "device/cuda_abi.h"
#include "tests/cuda/control.h"
#include "tests/cuda/host.h"

#define CUDA_CALL(name, since, need, parameters) cuda_result cu##name parameters;
#include "device/cuda.def"
#undef CUDA_CALL

/* A chip whose features plain kernels do not need: kernels that need those of a later one have no host twin. */
fake_cuda_control fake_cuda = {.name = "NVIDIA A100-SXM4-80GB", .major = 8, .minor = 0, .units = 108, .version = 13000, .memory_bytes = (size_t)80 << 30, .library_version = 130000, .cudnn_version = 91900};

#define ENTER(name)                                                                                  \
    do {                                                                                             \
        if (fake_cuda.calls < FAKE_CUDA_LOG) fake_cuda.log[fake_cuda.calls] = name;                  \
        if (++fake_cuda.calls == fake_cuda.fail_at) return CUDA_UNKNOWN;                             \
        if (fake_cuda.lost_at > 0 && fake_cuda.calls >= fake_cuda.lost_at) return CUDA_UNKNOWN;      \
    } while (0)

/* ---- threads of a block, as coroutines ---- */

host_index threadIdx, blockIdx, blockDim, gridDim;

enum { MOST_THREADS = 1024, STACK_BYTES = 256 << 10 };
typedef void (*kernel_function)(const void *arguments);

static struct {
    ucontext_t first;             /* where a coroutine is entered from, once; after that jumps are cheaper */
    jmp_buf scheduler, threads[MOST_THREADS];
    bool started[MOST_THREADS], done[MOST_THREADS];
    uint8_t *stacks;
    unsigned current;
    bool inside;                  /* a coroutine: barriers yield */
    kernel_function function;
    const void *arguments;
} block;

static void set_thread(unsigned number) {
    block.current = number;
    threadIdx = (host_index){number % blockDim.x, number / blockDim.x % blockDim.y, number / blockDim.x / blockDim.y};
}

void host_barrier(void) {
    if (!block.inside) {
        fprintf(stderr, "fake CUDA: a thread met a barrier that thread 0 did not\n");
        abort();
    }
    if (_setjmp(block.threads[block.current]) == 0) _longjmp(block.scheduler, 1);
}

static void thread_main(void) {
    block.function(block.arguments);
    block.done[block.current] = true;
    _longjmp(block.scheduler, 1);
}

static void start_thread(unsigned number) {
    block.started[number] = block.done[number] = false;
}

static void enter(unsigned number) {
    getcontext(&block.first);
    block.first.uc_stack.ss_sp = block.stacks + (size_t)number * STACK_BYTES;
    block.first.uc_stack.ss_size = STACK_BYTES;
    block.first.uc_link = NULL;
    block.started[number] = true;
    makecontext(&block.first, thread_main, 0);
    setcontext(&block.first);
}

static void resume(unsigned number) {
    set_thread(number);
    block.inside = true;
    if (_setjmp(block.scheduler) == 0) {
        if (block.started[number]) _longjmp(block.threads[number], 1);
        enter(number);
    }
    block.inside = false;
}

/* A barrier is for all threads: where thread 0 meets none, the others are plain calls. */
static void run_block(unsigned threads) {
    start_thread(0);
    resume(0);
    if (block.done[0]) {
        for (unsigned i = 1; i < threads; i++) {
            set_thread(i);
            block.function(block.arguments);
        }
        return;
    }
    for (unsigned i = 1; i < threads; i++) {
        start_thread(i);
        resume(i);
    }
    for (bool left = true; left;) {
        left = false;
        for (unsigned i = 0; i < threads; i++) {
            if (block.done[i]) continue;
            resume(i);
            left = left || !block.done[i];
        }
    }
}

static cuda_result run_kernel(kernel_function function, const void *arguments, const unsigned *grid, const unsigned *threads) {
    unsigned count = threads[0] * threads[1] * threads[2];
    if (count == 0 || count > MOST_THREADS || grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535) return CUDA_INVALID_VALUE;
    if (block.stacks == NULL) block.stacks = malloc((size_t)MOST_THREADS * STACK_BYTES);
    block.function = function;
    block.arguments = arguments;
    gridDim = (host_index){grid[0], grid[1], grid[2]};
    blockDim = (host_index){threads[0], threads[1], threads[2]};
    fake_cuda.launches++;
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                blockIdx = (host_index){x, y, z};
                run_block(count);
            }
    return CUDA_OK;
}

/* ---- what there is ---- */

struct cuda_function_st { kernel_function run; size_t bytes; struct cuda_function_st *next; char name[64]; };
struct cuda_node_st { cuda_kernel_node params; void *arguments; struct cuda_node_st *next; cuda_graph graph; cuda_event event; };   /* event: it records this, and is no kernel */
struct cuda_event_st { double at; bool is_done, is_timed; };
struct cuda_graph_st { struct cuda_node_st *first, *last; };
struct cuda_graph_exec_st { struct cuda_node_st *first, *last; };   /* copies; extra of a copy is the node that it was made from */

/* While a stream is being captured, some calls are for threads alone that say that they know of it. */
static cuda_capture_mode capture_mode = CUDA_CAPTURE_GLOBAL;
static bool is_forbidden(void) { return fake_cuda.captured != NULL && capture_mode != CUDA_CAPTURE_RELAXED; }

static cuda_graph own_capture;        /* what is put into the device's stream goes there while it is not NULL */
static char a_context, a_stream, a_library, a_pool;
static struct cuda_function_st *functions;

/* FAKE_CUDA_GPU="NVIDIA H200:9:0:132" says what GPU it is, to programs that do not set it themselves. */
static void read_gpu(void) {
    static char name[128];
    const char *gpu = getenv("FAKE_CUDA_GPU");
    int major, minor, units;
    if (gpu == NULL || sscanf(gpu, "%127[^:]:%d:%d:%d", name, &major, &minor, &units) != 4) return;
    fake_cuda.name = name;
    fake_cuda.major = major;
    fake_cuda.minor = minor;
    fake_cuda.units = units;
}

cuda_result cuInit(unsigned flags) {
    ENTER("Init");
    read_gpu();
    return flags == 0 ? CUDA_OK : CUDA_INVALID_VALUE;
}
cuda_result cuDriverGetVersion(int *version) { ENTER("DriverGetVersion"); *version = fake_cuda.version; return CUDA_OK; }
cuda_result cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, cuda_symbol_status *status) {
    ENTER("GetProcAddress");
    (void)symbol, (void)version, (void)flags;
    *function = NULL;
    *status = CUDA_SYMBOL_NOT_FOUND;
    return CUDA_NOT_FOUND;
}
cuda_result cuGetErrorName(cuda_result error, const char **name) { *name = error == CUDA_UNKNOWN ? "CUDA_ERROR_UNKNOWN" : "CUDA_ERROR"; return CUDA_OK; }
cuda_result cuGetErrorString(cuda_result error, const char **words) { *words = error == CUDA_UNKNOWN ? "unknown error" : "error"; return CUDA_OK; }
cuda_result cuLogsRegisterCallback(cuda_log_callback callback, void *user, cuda_log_handle *handle) {
    ENTER("LogsRegisterCallback");
    (void)callback, (void)user;
    *handle = NULL;
    return CUDA_OK;
}
cuda_result cuDeviceGetCount(int *count) { ENTER("DeviceGetCount"); *count = 1; return CUDA_OK; }
cuda_result cuDeviceGet(cuda_device *device, int ordinal) { ENTER("DeviceGet"); *device = ordinal; return ordinal == 0 ? CUDA_OK : CUDA_INVALID_DEVICE; }
cuda_result cuDeviceGetName(char *name, int room, cuda_device device) { ENTER("DeviceGetName"); (void)device; snprintf(name, (size_t)room, "%s", fake_cuda.name); return CUDA_OK; }
cuda_result cuDeviceGetUuid_v2(cuda_uuid *uuid, cuda_device device) { ENTER("DeviceGetUuid"); (void)device; memset(uuid, 0, sizeof *uuid); return CUDA_OK; }
cuda_result cuDeviceTotalMem_v2(size_t *bytes, cuda_device device) { ENTER("DeviceTotalMem"); (void)device; *bytes = fake_cuda.memory_bytes; return CUDA_OK; }
cuda_result cuDeviceGetAttribute(int *value, cuda_device_attribute attribute, cuda_device device) {
    ENTER("DeviceGetAttribute");
    (void)device;
    switch (attribute) {
    case CUDA_DEVICE_CAPABILITY_MAJOR: *value = fake_cuda.major; return CUDA_OK;
    case CUDA_DEVICE_CAPABILITY_MINOR: *value = fake_cuda.minor; return CUDA_OK;
    case CUDA_DEVICE_MULTIPROCESSORS: *value = fake_cuda.units; return CUDA_OK;
    case CUDA_DEVICE_UNIFIED_ADDRESSING: *value = !fake_cuda.apart; return CUDA_OK;
    default: *value = 0; return CUDA_OK;
    }
}
cuda_result cuDevicePrimaryCtxRetain(cuda_context *context, cuda_device device) {
    ENTER("DevicePrimaryCtxRetain");
    (void)device;
    fake_cuda.live++;
    *context = (cuda_context)(void *)&a_context;
    return CUDA_OK;
}
cuda_result cuDevicePrimaryCtxRelease_v2(cuda_device device) { (void)device; fake_cuda.live--; ENTER("DevicePrimaryCtxRelease"); return CUDA_OK; }
cuda_result cuCtxPushCurrent_v2(cuda_context context) { (void)context; return CUDA_OK; }
cuda_result cuCtxPopCurrent_v2(cuda_context *context) { *context = (cuda_context)(void *)&a_context; return CUDA_OK; }
cuda_result cuCtxSynchronize(void) { ENTER("CtxSynchronize"); return CUDA_OK; }

cuda_result cuLibraryLoadData(cuda_library *library, const void *code, int *jit_options, void **jit_values, unsigned jit_count, int *options, void **values, unsigned count) {
    ENTER("LibraryLoadData");
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    uint32_t magic;
    memcpy(&magic, code, sizeof magic);
    if (magic != 0xba55ed50) return CUDA_INVALID_IMAGE;
    fake_cuda.live++;
    *library = (cuda_library)(void *)&a_library;
    return CUDA_OK;
}
cuda_result cuLibraryUnload(cuda_library library) { (void)library; fake_cuda.live--; ENTER("LibraryUnload"); return CUDA_OK; }
cuda_result cuLibraryGetKernel(cuda_kernel *kernel, cuda_library library, const char *name) {
    ENTER("LibraryGetKernel");
    (void)library;
    for (struct cuda_function_st *f = functions; f != NULL; f = f->next)
        if (strcmp(f->name, name) == 0) {
            *kernel = (cuda_kernel)(void *)f;
            return CUDA_OK;
        }
    Dl_info here;
    char bytes_name[80];
    snprintf(bytes_name, sizeof bytes_name, "%s_bytes", name);
    if (dladdr(&fake_cuda, &here) == 0) return CUDA_NOT_FOUND;
    void *self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD), *run = self ? dlsym(self, name) : NULL, *bytes = self ? dlsym(self, bytes_name) : NULL;
    if (run == NULL || bytes == NULL) return CUDA_NOT_FOUND;
    struct cuda_function_st *made = calloc(1, sizeof *made);   /* kept for the life of the process */
    memcpy(&made->run, &run, sizeof run);
    made->bytes = *(const size_t *)bytes;
    snprintf(made->name, sizeof made->name, "%s", name);
    made->next = functions;
    functions = made;
    *kernel = (cuda_kernel)(void *)made;
    return CUDA_OK;
}
cuda_result cuKernelGetFunction(cuda_function *function, cuda_kernel kernel) { ENTER("KernelGetFunction"); *function = (cuda_function)(void *)kernel; return CUDA_OK; }
cuda_result cuKernelGetAttribute(int *value, cuda_function_attribute attribute, cuda_kernel kernel, cuda_device device) {
    ENTER("KernelGetAttribute");
    (void)attribute, (void)kernel, (void)device;
    *value = 0;
    return CUDA_OK;
}
cuda_result cuKernelSetAttribute(cuda_function_attribute attribute, int value, cuda_kernel kernel, cuda_device device) {
    ENTER("KernelSetAttribute");
    (void)attribute, (void)value, (void)kernel, (void)device;
    return CUDA_OK;
}
cuda_result cuKernelGetParamInfo(cuda_kernel kernel, size_t index, size_t *offset, size_t *bytes) {
    ENTER("KernelGetParamInfo");
    *offset = 0;
    *bytes = ((struct cuda_function_st *)(void *)kernel)->bytes;
    return index == 0 ? CUDA_OK : CUDA_INVALID_VALUE;
}
cuda_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, cuda_function function, int threads, size_t shared_bytes) {
    ENTER("OccupancyMaxActiveBlocksPerMultiprocessor");
    (void)function, (void)threads, (void)shared_bytes;
    *blocks = 1;
    return CUDA_OK;
}
cuda_result cuOccupancyMaxActiveClusters(int *clusters, cuda_function function, const cuda_launch_config *config) {
    ENTER("OccupancyMaxActiveClusters");
    (void)function, (void)config;
    *clusters = 1;
    return CUDA_OK;
}
/* ---- work that is done later ---- */

/* What one stream still has to do, in order: nothing where fake_cuda.late is 0, else a part of it is done at each call, and all that is waited for. Memory of the host that is pinned is read and
 * written then, other memory is read at once. */
typedef enum late_kind { LATE_COPY, LATE_FILL, LATE_KERNEL, LATE_EVENT } late_kind;
typedef struct late_work {
    late_kind kind;
    void *to;
    const void *from;
    void *own;                    /* a copy of what is read: freed behind it */
    size_t bytes;
    int value;
    bool flips;
    kernel_function run;
    unsigned grid[3], threads[3];
    cuda_event event;
} late_work;
enum { MOST_LATE = 1 << 16, MOST_PINNED = 256 };
static struct { late_work works[MOST_LATE]; size_t first, end; } late;
static void *pinned[MOST_PINNED];
static size_t pinned_bytes[MOST_PINNED];
static cuda_result late_error;

/* The clock of the stand-in: a kernel takes as long as fake_cuda says, and so does an event. */
static double clock_ms;
static void record_event(cuda_event event) {
    clock_ms += fake_cuda.event_ms;
    event->at = clock_ms;
    event->is_done = true;
}

static void do_work(const late_work *work) {
    cuda_result result = CUDA_OK;
    if (work->kind == LATE_COPY) memmove(work->to, work->from, work->bytes);
    if (work->kind == LATE_COPY && work->flips) *(uint8_t *)work->to ^= (uint8_t)fake_cuda.flip;
    if (work->kind == LATE_FILL) memset(work->to, work->value, work->bytes);
    if (work->kind == LATE_EVENT) record_event(work->event);
    if (work->kind == LATE_KERNEL) result = run_kernel(work->run, work->from, work->grid, work->threads);
    if (work->kind == LATE_KERNEL) clock_ms += fake_cuda.kernel_ms;
    if (result != CUDA_OK && late_error == CUDA_OK) late_error = result;
    free(work->own);
}

static cuda_result take_error(void) {
    const cuda_result error = late_error;
    late_error = CUDA_OK;
    return error;
}

/* All of it, or as much as comes before this event. */
static cuda_result catch_up(cuda_event until) {
    while (late.first < late.end && (until == NULL || !until->is_done)) do_work(&late.works[late.first++]);
    if (late.first == late.end) late.first = late.end = 0;
    return take_error();
}

static cuda_result add_work(late_work work) {
    if (late.end == MOST_LATE) catch_up(NULL);
    late.works[late.end++] = work;
    if (fake_cuda.late == 0) return catch_up(NULL);
    for (; late.first < late.end && fake_cuda.late / 65536 % 3 == 0; fake_cuda.late = fake_cuda.late * 1664525 + 1013904223) do_work(&late.works[late.first++]);
    fake_cuda.late = fake_cuda.late * 1664525 + 1013904223;
    return CUDA_OK;
}

static void *copy_of(const void *from, size_t bytes) { return memcpy(malloc(bytes > 0 ? bytes : 1), from, bytes); }

static bool is_pinned(const void *memory) {
    for (int i = 0; i < MOST_PINNED; i++)
        if (pinned[i] != NULL && (const uint8_t *)memory >= (uint8_t *)pinned[i] && (const uint8_t *)memory < (uint8_t *)pinned[i] + pinned_bytes[i]) return true;
    return false;
}

static cuda_result add_kernel(const cuda_kernel_node *params, const void *arguments) {
    late_work work = {.kind = LATE_KERNEL, .run = params->function->run, .grid = {params->grid_x, params->grid_y, params->grid_z}, .threads = {params->block_x, params->block_y, params->block_z}};
    work.from = work.own = copy_of(arguments, params->function->bytes);
    return add_work(work);
}

/* ---- launches ---- */

cuda_result cuLaunchKernelEx(const cuda_launch_config *config, cuda_function function, void **parameters, void **extra) {
    ENTER("LaunchKernelEx");
    (void)extra;
    if (config->attribute_count > 0) return CUDA_NOT_SUPPORTED;
    const cuda_kernel_node node = {.function = function, .grid_x = config->grid_x, .grid_y = config->grid_y, .grid_z = config->grid_z, .block_x = config->block_x, .block_y = config->block_y, .block_z = config->block_z};
    return add_kernel(&node, parameters[0]);
}

/* ---- memory: poisoned with what a NaN is made of ---- */

cuda_result cuMemAlloc_v2(cuda_pointer *memory, size_t bytes) {
    ENTER("MemAlloc");
    if (is_forbidden()) return CUDA_CAPTURE_UNSUPPORTED;
    void *made = fake_cuda.is_full ? NULL : aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (made == NULL) return CUDA_OUT_OF_MEMORY;
    memset(made, 0xff, bytes);
    fake_cuda.live++;
    *memory = (cuda_pointer)(uintptr_t)made;
    return CUDA_OK;
}
cuda_result cuMemFree_v2(cuda_pointer memory) {
    catch_up(NULL);
    fake_cuda.live -= memory != 0;
    free((void *)(uintptr_t)memory);
    ENTER("MemFree");
    return CUDA_OK;
}
cuda_result cuMemAllocHost_v2(void **memory, size_t bytes) {
    ENTER("MemAllocHost");
    int at = 0;
    while (at < MOST_PINNED && pinned[at] != NULL) at++;
    if (at == MOST_PINNED) return CUDA_OUT_OF_MEMORY;
    *memory = pinned[at] = malloc(bytes);
    pinned_bytes[at] = bytes;
    fake_cuda.live++;
    return CUDA_OK;
}
cuda_result cuMemFreeHost(void *memory) {
    catch_up(NULL);
    for (int i = 0; i < MOST_PINNED; i++)
        if (pinned[i] == memory) pinned[i] = NULL;
    fake_cuda.live--;
    free(memory);
    ENTER("MemFreeHost");
    return CUDA_OK;
}
cuda_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) { ENTER("MemGetInfo"); *free_bytes = *total_bytes = fake_cuda.memory_bytes; return CUDA_OK; }
#define AT(pointer) ((void *)(uintptr_t)(pointer))
cuda_result cuMemcpyHtoDAsync_v2(cuda_pointer to, const void *from, size_t bytes, cuda_stream stream) {
    ENTER("MemcpyHtoDAsync");
    (void)stream;
    void *own = is_pinned(from) ? NULL : copy_of(from, bytes);
    return add_work((late_work){.kind = LATE_COPY, .to = AT(to), .from = own != NULL ? own : from, .own = own, .bytes = bytes});
}
cuda_result cuMemcpyDtoHAsync_v2(void *to, cuda_pointer from, size_t bytes, cuda_stream stream) {
    ENTER("MemcpyDtoHAsync");
    (void)stream;
    return add_work((late_work){.kind = LATE_COPY, .to = to, .from = AT(from), .bytes = bytes, .flips = true});
}
cuda_result cuMemcpyDtoDAsync_v2(cuda_pointer to, cuda_pointer from, size_t bytes, cuda_stream stream) {
    ENTER("MemcpyDtoDAsync");
    (void)stream;
    return add_work((late_work){.kind = LATE_COPY, .to = AT(to), .from = AT(from), .bytes = bytes});
}
cuda_result cuMemcpy3DAsync_v2(const cuda_copy *copy, cuda_stream stream) {
    ENTER("Memcpy3DAsync");
    (void)stream;
    if (fake_cuda.refuses_pitches && copy->height > 1 && (copy->from_pitch > copy->width_bytes || copy->to_pitch > copy->width_bytes)) return CUDA_INVALID_VALUE;
    if (copy->from_type != CUDA_MEMORY_DEVICE || copy->to_type != CUDA_MEMORY_DEVICE || copy->depth != 1 || copy->from_pitch < copy->width_bytes || copy->to_pitch < copy->width_bytes) return CUDA_INVALID_VALUE;
    for (size_t row = 0; row < copy->height; row++) {
        const cuda_result result = add_work((late_work){.kind = LATE_COPY, .to = AT(copy->to_device + row * copy->to_pitch), .from = AT(copy->from_device + row * copy->from_pitch), .bytes = copy->width_bytes});
        if (result != CUDA_OK) return result;
    }
    return CUDA_OK;
}
cuda_result cuMemsetD8Async(cuda_pointer to, unsigned char value, size_t count, cuda_stream stream) {
    ENTER("MemsetD8Async");
    (void)stream;
    return add_work((late_work){.kind = LATE_FILL, .to = AT(to), .value = value, .bytes = count});
}
cuda_result cuMemsetD32Async(cuda_pointer to, unsigned value, size_t count, cuda_stream stream) {
    ENTER("MemsetD32Async");
    (void)stream;
    catch_up(NULL);
    for (size_t i = 0; i < count; i++) ((unsigned *)AT(to))[i] = value;
    return CUDA_OK;
}
cuda_result cuMemAllocFromPoolAsync(cuda_pointer *memory, size_t bytes, cuda_memory_pool pool, cuda_stream stream) { (void)pool, (void)stream; return cuMemAlloc_v2(memory, bytes); }
cuda_result cuMemFreeAsync(cuda_pointer memory, cuda_stream stream) { (void)stream; return cuMemFree_v2(memory); }
cuda_result cuMemPoolCreate(cuda_memory_pool *pool, const cuda_memory_pool_props *props) { ENTER("MemPoolCreate"); (void)props; *pool = (cuda_memory_pool)(void *)&a_pool; fake_cuda.live++; return CUDA_OK; }
cuda_result cuMemPoolDestroy(cuda_memory_pool pool) { (void)pool; fake_cuda.live--; ENTER("MemPoolDestroy"); return CUDA_OK; }
cuda_result cuMemPoolSetAttribute(cuda_memory_pool pool, cuda_memory_pool_attribute attribute, void *value) { ENTER("MemPoolSetAttribute"); (void)pool, (void)attribute, (void)value; return CUDA_OK; }
cuda_result cuMemPoolTrimTo(cuda_memory_pool pool, size_t bytes) { ENTER("MemPoolTrimTo"); (void)pool, (void)bytes; return CUDA_OK; }
cuda_result cuPointerGetAttributes(unsigned count, cuda_pointer_attribute *attributes, void **values, cuda_pointer pointer) {
    ENTER("PointerGetAttributes");
    (void)count, (void)attributes, (void)values, (void)pointer;
    return CUDA_INVALID_VALUE;
}

/* ---- streams and events: there is one stream ---- */

cuda_result cuStreamCreateWithPriority(cuda_stream *stream, unsigned flags, int priority) { ENTER("StreamCreateWithPriority"); (void)flags, (void)priority; *stream = (cuda_stream)(void *)&a_stream; fake_cuda.live++; return CUDA_OK; }
cuda_result cuStreamDestroy_v2(cuda_stream stream) { (void)stream; fake_cuda.live--; ENTER("StreamDestroy"); return CUDA_OK; }
cuda_result cuStreamSynchronize(cuda_stream stream) { ENTER("StreamSynchronize"); (void)stream; return is_forbidden() ? CUDA_CAPTURE_UNSUPPORTED : catch_up(NULL); }
cuda_result cuStreamWaitEvent(cuda_stream stream, cuda_event event, unsigned flags) { ENTER("StreamWaitEvent"); (void)stream, (void)event, (void)flags; return CUDA_OK; }
cuda_result cuStreamBeginCapture_v2(cuda_stream stream, cuda_capture_mode mode) {
    ENTER("StreamBeginCapture");
    (void)mode;
    if (own_capture != NULL || stream != (cuda_stream)(void *)&a_stream) return CUDA_INVALID_VALUE;
    own_capture = calloc(1, sizeof *own_capture);
    fake_cuda.live++;
    return CUDA_OK;
}
cuda_result cuStreamEndCapture(cuda_stream stream, cuda_graph *graph) {
    *graph = own_capture;
    own_capture = NULL;
    ENTER("StreamEndCapture");
    return *graph != NULL && stream == (cuda_stream)(void *)&a_stream ? CUDA_OK : CUDA_INVALID_VALUE;
}
cuda_result cuStreamGetCaptureInfo_v3(cuda_stream stream, cuda_capture_status *status, uint64_t *id, cuda_graph *graph, const cuda_node **dependencies, const cuda_edge **edges, size_t *count) {
    ENTER("StreamGetCaptureInfo");
    const bool active = fake_cuda.captured != NULL && fake_cuda.capturing == (void *)stream;
    *status = active ? CUDA_CAPTURE_ACTIVE : CUDA_CAPTURE_NONE;
    if (!active) return CUDA_OK;
    *id = 1;
    *graph = fake_cuda.captured;
    *edges = NULL;
    *dependencies = &(*graph)->last;
    *count = (*graph)->last != NULL;
    return CUDA_OK;
}
cuda_result cuStreamUpdateCaptureDependencies_v2(cuda_stream stream, cuda_node *dependencies, const cuda_edge *edges, size_t count, unsigned flags) {
    ENTER("StreamUpdateCaptureDependencies");
    (void)edges;
    if (fake_cuda.capturing != (void *)stream || count != 1 || flags != CUDA_CAPTURE_SET_DEPENDENCIES) return CUDA_INVALID_VALUE;
    return dependencies[0] == ((cuda_graph)fake_cuda.captured)->last ? CUDA_OK : CUDA_INVALID_VALUE;
}
cuda_result cuThreadExchangeStreamCaptureMode(cuda_capture_mode *mode) {
    cuda_capture_mode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_OK;
}
cuda_result cuEventCreate(cuda_event *event, unsigned flags) { ENTER("EventCreate"); *event = calloc(1, sizeof **event); (*event)->is_timed = (flags & CUDA_EVENT_NO_TIMING) == 0; fake_cuda.live++; return CUDA_OK; }
cuda_result cuEventRecord(cuda_event event, cuda_stream stream) { ENTER("EventRecord"); (void)stream; event->is_done = false; return add_work((late_work){.kind = LATE_EVENT, .event = event}); }
cuda_result cuEventSynchronize(cuda_event event) { ENTER("EventSynchronize"); return catch_up(event); }
cuda_result cuEventElapsedTime(float *milliseconds, cuda_event start, cuda_event end) {
    ENTER("EventElapsedTime");
    if (!start->is_timed || !end->is_timed || !start->is_done || !end->is_done) return CUDA_INVALID_HANDLE;
    *milliseconds = (float)(end->at - start->at);
    return CUDA_OK;
}
cuda_result cuEventDestroy_v2(cuda_event event) { catch_up(NULL); free(event); fake_cuda.live--; ENTER("EventDestroy"); return CUDA_OK; }
cuda_result cuTensorMapEncodeTiled(cuda_tensor_map *map, cuda_tensor_type type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                   const uint32_t *element_strides, cuda_tensor_interleave interleave, cuda_tensor_swizzle swizzle, cuda_tensor_promotion promotion, cuda_tensor_fill fill) {
    ENTER("TensorMapEncodeTiled");
    (void)type, (void)rank, (void)dims, (void)strides, (void)box, (void)element_strides, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    *map = (cuda_tensor_map){{(uint64_t)(uintptr_t)address}};
    return CUDA_OK;
}
cuda_result cuTensorMapReplaceAddress(cuda_tensor_map *map, void *address) { ENTER("TensorMapReplaceAddress"); map->opaque[0] = (uint64_t)(uintptr_t)address; return CUDA_OK; }

/* ---- graphs: chains of kernels ---- */

static struct cuda_node_st *new_node(const cuda_kernel_node *params) {
    struct cuda_node_st *node = calloc(1, sizeof *node);
    if (params == NULL) return node;
    node->params = *params;
    node->arguments = malloc(params->function->bytes);
    memcpy(node->arguments, params->parameters[0], params->function->bytes);
    return node;
}
static void append(struct cuda_graph_st *graph, struct cuda_node_st *node) {
    if (graph->last != NULL) graph->last->next = node;
    else graph->first = node;
    graph->last = node;
}
static void free_nodes(struct cuda_node_st *node) {
    while (node != NULL) {
        struct cuda_node_st *next = node->next;
        free(node->arguments);
        free(node);
        node = next;
    }
}
cuda_result cuGraphCreate(cuda_graph *graph, unsigned flags) { ENTER("GraphCreate"); (void)flags; *graph = calloc(1, sizeof **graph); fake_cuda.live++; return CUDA_OK; }
cuda_result cuGraphDestroy(cuda_graph graph) { free_nodes(graph->first); free(graph); fake_cuda.live--; ENTER("GraphDestroy"); return CUDA_OK; }
cuda_result cuGraphAddNode_v2(cuda_node *node, cuda_graph graph, const cuda_node *dependencies, const cuda_edge *edges, size_t count, cuda_node_params *params) {
    ENTER("GraphAddNode");
    if (params->type != CUDA_NODE_KERNEL && params->type != CUDA_NODE_EVENT) return CUDA_NOT_SUPPORTED;
    if (graph->last == NULL ? count != 0 : count != 1 || dependencies[0] != graph->last) return CUDA_INVALID_VALUE;
    *node = new_node(params->type == CUDA_NODE_KERNEL ? &params->kernel : NULL);
    if (params->type == CUDA_NODE_EVENT) (*node)->event = params->record.event;
    if (edges != NULL && edges[0].type != CUDA_EDGE_PROGRAMMATIC) fake_cuda.full_edges++;
    append(graph, *node);
    return CUDA_OK;
}
void fake_cuda_put(void *stream, void (*run)(const void *arguments), const void *arguments, size_t bytes) {
    catch_up(NULL);
    struct cuda_function_st *function = calloc(1, sizeof *function);   /* kept for the life of the process */
    *function = (struct cuda_function_st){.run = run, .bytes = bytes, .next = NULL, .name = "library"};
    fake_cuda.stream = stream;
    if (own_capture == NULL) {
        run(arguments);
        return;
    }
    void *parameters[] = {(void *)(uintptr_t)arguments};
    append(own_capture, new_node(&(cuda_kernel_node){.function = function, .grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = 1, .block_y = 1, .block_z = 1, .parameters = parameters}));
}
cuda_result cuGraphAddChildGraphNode(cuda_node *node, cuda_graph graph, const cuda_node *dependencies, size_t count, cuda_graph child) {
    ENTER("GraphAddChildGraphNode");
    if (graph->last == NULL ? count != 0 : count != 1 || dependencies[0] != graph->last) return CUDA_INVALID_VALUE;
    for (struct cuda_node_st *at = child->first; at != NULL; at = at->next) {   /* its kernels in a row, and the last stands for it */
        void *parameters[] = {at->arguments};
        cuda_kernel_node copied = at->params;
        copied.parameters = parameters;
        append(graph, new_node(&copied));
    }
    *node = graph->last;
    return CUDA_OK;
}
cuda_result cuGraphKernelNodeSetAttribute(cuda_node node, cuda_launch_attribute_id id, const cuda_launch_value *value) {
    ENTER("GraphKernelNodeSetAttribute");
    (void)node, (void)id, (void)value;
    return CUDA_NOT_SUPPORTED;
}
cuda_result cuGraphInstantiateWithParams(cuda_graph_exec *exec, cuda_graph graph, cuda_instantiate_params *params) {
    ENTER("GraphInstantiate");
    (void)params;
    *exec = calloc(1, sizeof **exec);
    fake_cuda.live++;
    for (struct cuda_node_st *node = graph->first; node != NULL; node = node->next) {
        void *parameters[] = {node->arguments};
        cuda_kernel_node copied = node->params;
        copied.parameters = parameters;
        struct cuda_node_st *copy = new_node(node->event != NULL ? NULL : &copied);
        copy->event = node->event;
        copy->params.extra = (void **)(void *)node;
        if ((*exec)->last != NULL) (*exec)->last->next = copy;
        else (*exec)->first = copy;
        (*exec)->last = copy;
    }
    return CUDA_OK;
}
cuda_result cuGraphUpload(cuda_graph_exec exec, cuda_stream stream) { ENTER("GraphUpload"); (void)exec, (void)stream; return CUDA_OK; }
cuda_result cuGraphLaunch(cuda_graph_exec exec, cuda_stream stream) {
    ENTER("GraphLaunch");
    if (fake_cuda.captured != NULL && fake_cuda.capturing == (void *)stream) return CUDA_CAPTURE_UNSUPPORTED;
    fake_cuda.stream = stream;
    for (const struct cuda_node_st *node = exec->first; node != NULL; node = node->next) {
        const cuda_result result = node->event != NULL ? add_work((late_work){.kind = LATE_EVENT, .event = node->event}) : add_kernel(&node->params, node->arguments);
        if (result != CUDA_OK) return result;
    }
    return CUDA_OK;
}
cuda_result cuGraphExecKernelNodeSetParams_v2(cuda_graph_exec exec, cuda_node node, const cuda_kernel_node *params) {
    ENTER("GraphExecKernelNodeSetParams");
    for (struct cuda_node_st *at = exec->first; at != NULL; at = at->next) {
        if ((struct cuda_node_st *)(void *)at->params.extra != node) continue;
        if (at->params.function != params->function) return CUDA_INVALID_VALUE;
        at->params = *params;
        at->params.extra = (void **)(void *)node;
        memcpy(at->arguments, params->parameters[0], params->function->bytes);
        return CUDA_OK;
    }
    return CUDA_INVALID_VALUE;
}
cuda_result cuGraphExecChildGraphNodeSetParams(cuda_graph_exec exec, cuda_node node, cuda_graph child) {
    ENTER("GraphExecChildGraphNodeSetParams");
    for (struct cuda_node_st *at = exec->first; at != NULL; at = at->next) {
        if ((struct cuda_node_st *)(void *)at->params.extra != node) continue;
        if (child->first == NULL || child->first != child->last || at->params.function->run != child->first->params.function->run) return CUDA_UPDATE_FAILURE;
        memcpy(at->arguments, child->first->arguments, at->params.function->bytes);
        return CUDA_OK;
    }
    return CUDA_INVALID_VALUE;
}
cuda_result cuGraphExecMemcpyNodeSetParams(cuda_graph_exec exec, cuda_node node, const cuda_copy *params, cuda_context context) { ENTER("GraphExecMemcpyNodeSetParams"); (void)exec, (void)node, (void)params, (void)context; return CUDA_NOT_SUPPORTED; }
cuda_result cuGraphExecMemsetNodeSetParams(cuda_graph_exec exec, cuda_node node, const cuda_memset_v1 *params, cuda_context context) { ENTER("GraphExecMemsetNodeSetParams"); (void)exec, (void)node, (void)params, (void)context; return CUDA_NOT_SUPPORTED; }
cuda_result cuGraphExecUpdate_v2(cuda_graph_exec exec, cuda_graph graph, cuda_update_result *result) { ENTER("GraphExecUpdate"); (void)exec, (void)graph; result->result = 1; return CUDA_UPDATE_FAILURE; }
cuda_result cuGraphExecDestroy(cuda_graph_exec exec) { free_nodes(exec->first); free(exec); fake_cuda.live--; ENTER("GraphExecDestroy"); return CUDA_OK; }
