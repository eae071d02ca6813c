/* The simulated driver: what it is, its options, errors, devices and contexts. */
#include "driver.h"
#include "sim/math/panel.h"

#include <errno.h>
#include <stdlib.h>

driver sim_driver = {.lock = PTHREAD_MUTEX_INITIALIZER, .spares = {.lock = PTHREAD_MUTEX_INITIALIZER}};

/* ---- messages ---- */

static void tell(cuda_log_level level, const char *text) {
    char message[2048];
    if (sim_driver.log == NULL) {
        fprintf(stderr, "deepwell-sim: %s\n", text);
        return;
    }
    snprintf(message, sizeof message, "%s", text);
    sim_driver.log(sim_driver.log_user, level, message, strlen(message));
}

cuda_result driver_say(cuda_result result, const char *format, ...) {
    char text[1536];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tell(CUDA_LOG_ERROR, text);
    return result;
}

cuda_result driver_fail(dw_status status, cuda_result result) {
    if (status == DW_OK) return CUDA_OK;
    tell(CUDA_LOG_ERROR, dw_context_error(sim_driver.context));
    return status == DW_NO_MEMORY ? CUDA_OUT_OF_MEMORY : result;
}

static const struct { cuda_result result; const char *name, *words; } errors[] = {
    {CUDA_OK, "CUDA_SUCCESS", "no error"},
    {CUDA_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {CUDA_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {CUDA_FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {CUDA_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {CUDA_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {CUDA_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {CUDA_COOPERATIVE_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {CUDA_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure: the simulator's finding says what"},
    {CUDA_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported by the simulator"},
    {CUDA_UPDATE_FAILURE, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed"},
    {CUDA_INVALID_CLUSTER_SIZE, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"},
    {CUDA_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

cuda_result cuGetErrorName(cuda_result error, const char **name) {
    for (size_t i = 0; i < COUNT_OF(errors) && name != NULL; i++) {
        if (errors[i].result == error) {
            *name = errors[i].name;
            return CUDA_OK;
        }
    }
    if (name != NULL) *name = NULL;
    return CUDA_INVALID_VALUE;
}

cuda_result cuGetErrorString(cuda_result error, const char **words) {
    for (size_t i = 0; i < COUNT_OF(errors) && words != NULL; i++) {
        if (errors[i].result == error) {
            *words = errors[i].words;
            return CUDA_OK;
        }
    }
    if (words != NULL) *words = NULL;
    return CUDA_INVALID_VALUE;
}

cuda_result cuLogsRegisterCallback(cuda_log_callback callback, void *user, cuda_log_handle *handle) {
    pthread_mutex_lock(&sim_driver.lock);
    sim_driver.log = callback;
    sim_driver.log_user = user;
    if (handle != NULL) *handle = NULL;
    return driver_leave(CUDA_OK);
}

/* ---- options ---- */

static bool read_number(const char *text, uint64_t *value) {
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    *value = number;
    return errno == 0 && end != text && *end == '\0' && text[0] != '-';
}

static cuda_result read_option(char *option, sim_options *o) {
    char *value = strchr(option, '=');
    uint64_t number = 0;
    if (value == NULL) return driver_say(CUDA_INVALID_VALUE, "option '%s' has no value; write name=value", option);
    *value++ = '\0';
    bool is_number = read_number(value, &number), off = strcmp(value, "off") == 0, on = strcmp(value, "on") == 0;
    if (strncmp(option, "trace", 5) == 0) {
        const char *wrong = sim_trace_option(&sim_driver.trace, option, value);
        return wrong == NULL ? CUDA_OK : driver_say(CUDA_INVALID_VALUE, "option '%s=%s': %s", option, value, wrong);
    }
    if (strcmp(option, "seed") == 0 && is_number) o->seed = number;
    else if (strcmp(option, "budget") == 0 && is_number) o->budget = number;
    else if (strcmp(option, "threads") == 0 && is_number && number >= 1 && number <= 1024) o->threads = (int)number;
    else if (strcmp(option, "races") == 0 && (on || off)) o->races = on;
    else if (strcmp(option, "uninitialised") == 0 && (on || off)) o->uninitialised = on;
    else if (strcmp(option, "lanes") == 0 && (strcmp(value, "routed") == 0 || strcmp(value, "strict") == 0)) o->lanes_routed = strcmp(value, "routed") == 0;
    else if (strcmp(option, "units") == 0 && is_number && number >= 1 && number <= 4096) o->sm_count = (int)number;
    else if (strcmp(option, "ptx") == 0) snprintf(sim_driver.replacement, sizeof sim_driver.replacement, "%s", value);
    else if (strcmp(option, "sums") == 0 && (strcmp(value, "fp32") == 0 || strcmp(value, "units") == 0)) panel_set_plain(strcmp(value, "fp32") == 0);
    else if (strcmp(option, "loads") == 0 && (strcmp(value, "done") == 0 || strcmp(value, "strict") == 0)) o->loads_done = strcmp(value, "done") == 0;
    else if (strcmp(option, "stores") == 0 && (strcmp(value, "done") == 0 || strcmp(value, "strict") == 0)) o->stores_done = strcmp(value, "done") == 0;
    else if (strcmp(option, "digest") == 0) snprintf(sim_driver.digest, sizeof sim_driver.digest, "%s", value);
    else if (strcmp(option, "exit") == 0 && (strcmp(value, "early") == 0 || strcmp(value, "strict") == 0)) o->exit_early = strcmp(value, "early") == 0;
    else if (strcmp(option, "phases") == 0 && (strcmp(value, "unseen") == 0 || strcmp(value, "strict") == 0)) o->phases_unseen = strcmp(value, "unseen") == 0;
    else if (strcmp(option, "registers") == 0 && (strcmp(value, "unlimited") == 0 || strcmp(value, "warps") == 0 || strcmp(value, "strict") == 0)) {
        o->registers_unlimited = strcmp(value, "unlimited") == 0;
        o->registers_by_warp = strcmp(value, "warps") == 0;
    }
    else if (strcmp(option, "inits") == 0 && (strcmp(value, "unfenced") == 0 || strcmp(value, "strict") == 0)) o->inits_unfenced = strcmp(value, "unfenced") == 0;
    else if (strcmp(option, "proxies") == 0 && (strcmp(value, "one") == 0 || strcmp(value, "strict") == 0)) o->proxies_one = strcmp(value, "one") == 0;
    else if (strcmp(option, "fences") == 0 && (strcmp(value, "implied") == 0 || strcmp(value, "strict") == 0)) o->fences_implied = strcmp(value, "implied") == 0;
    else if (strcmp(option, "declines") == 0 && is_number && number <= 100) o->declines = (int)number;
    else if (strcmp(option, "clusters") == 0 && (strcmp(value, "mixed") == 0 || strcmp(value, "preferred") == 0 || strcmp(value, "regular") == 0)) {
        o->clusters = value[0] == 'm' ? SIM_CLUSTERS_MIXED : value[0] == 'p' ? SIM_CLUSTERS_PREFERRED : SIM_CLUSTERS_REGULAR;
    }
    else if (strcmp(option, "late") == 0 && is_number) sim_driver.late = true, sim_driver.late_seed = number;
    else if (strcmp(option, "times") == 0 && (strcmp(value, "zero") == 0 || strcmp(value, "refused") == 0)) sim_driver.times_zero = strcmp(value, "zero") == 0;
    else if (strcmp(option, "fail_alloc") == 0 && is_number) sim_driver.fail_alloc = (int64_t)number;
    else if (strcmp(option, "fail_launch") == 0 && is_number) sim_driver.fail_launch = (int64_t)number;
    else {
        return driver_say(CUDA_INVALID_VALUE, "option '%s=%s' is not understood; there are seed=N, budget=N, threads=N, races=on|off, uninitialised=on|off, lanes=strict|routed, sums=units|fp32, loads=strict|done, stores=strict|done, exit=strict|early, phases=strict|unseen, inits=strict|unfenced, proxies=strict|one, fences=strict|implied, declines=N, clusters=mixed|preferred|regular, late=N, times=refused|zero, units=N, ptx=FILE, digest=FILE, trace=LAUNCH, trace_cta=X:Y:Z, trace_warp=N, trace_lines=N, trace_file=FILE, fail_alloc=N, fail_launch=N",
                          option, value);
    }
    return CUDA_OK;
}

int deepwell_sim_configure(const char *options) {
    int refused = 0;
    pthread_mutex_lock(&sim_driver.lock);
    if (options == NULL || strlen(options) >= sizeof sim_driver.configured) {
        refused = 1;
    } else if (sim_driver.started && strcmp(options, sim_driver.configured) != 0) {
        refused = sim_driver.memory.count > 0;
        if (refused == 0) {   /* nobody uses what there was */
            sim_memory_free(&sim_driver.memory);
            sim_spares_free(&sim_driver.spares);
            dw_context_destroy(sim_driver.context);
            sim_driver.context = NULL;
            sim_trace_close(&sim_driver.trace);
            sim_driver.started = false;
            sim_driver.broken = CUDA_OK;
        }
    }
    if (refused == 0) snprintf(sim_driver.configured, sizeof sim_driver.configured, "%s", options);
    pthread_mutex_unlock(&sim_driver.lock);
    return refused;
}

static cuda_result start(void) {
    char text[sizeof sim_driver.configured], *rest = NULL;
    const char *given = sim_driver.configured[0] != '\0' ? sim_driver.configured : getenv("DEEPWELL_SIM");
    snprintf(text, sizeof text, "%s", given != NULL ? given : "");
    char *chip = strtok_r(text, ",", &rest);
    if (chip == NULL) return driver_say(CUDA_NO_DEVICE, "which chip? Set DEEPWELL_SIM to one, as in DEEPWELL_SIM=h200,seed=3");
    sim_driver.replacement[0] = sim_driver.digest[0] = '\0';
    sim_driver.trace = (sim_trace){0};
    sim_driver.epoch = 0;
    sim_driver.times_zero = false;
    sim_driver.late = false;
    panel_set_plain(false);
    sim_options o = {.budget = 1ull << 32, .races = true, .uninitialised = true, .declines = -1};
    for (char *option = strtok_r(NULL, ",", &rest); option != NULL; option = strtok_r(NULL, ",", &rest)) {
        cuda_result result = read_option(option, &o);
        if (result != CUDA_OK) return result;
    }
    if (!sim_trace_open(&sim_driver.trace)) return driver_say(CUDA_INVALID_VALUE, "option 'trace_file=%s': %s", sim_driver.trace.path, strerror(errno));
    dw_context_options context_options = {.threads = o.threads};
    if (dw_context_create(&context_options, &sim_driver.context) != DW_OK) return CUDA_OUT_OF_MEMORY;
    dw_status status = chip_find(sim_driver.context, chip, 1, &sim_driver.chip);
    if (status == DW_OK && sim_driver.chip.kind != CHIP_GPU) status = base_fail(sim_driver.context, DW_INVALID, "%s is no GPU", chip);
    if (status != DW_OK) {
        driver_fail(status, CUDA_NO_DEVICE);
        dw_context_destroy(sim_driver.context);
        sim_driver.context = NULL;
        return CUDA_NO_DEVICE;
    }
    if (o.sm_count > 0) sim_driver.chip.units = o.sm_count;
    o.sm_count = sim_driver.chip.units;
    o.arch = sim_driver.chip.arch;
    o.shared_limit = sim_driver.chip.shared_bytes;
    sim_driver.options = o;
    sim_memory_init(&sim_driver.memory, sim_driver.context, sim_driver.chip.memory_bytes);
    sim_driver.started = true;
    return CUDA_OK;
}

cuda_result driver_enter(void) {
    pthread_mutex_lock(&sim_driver.lock);
    if (!sim_driver.started) return CUDA_NOT_INITIALIZED;
    return sim_driver.broken;
}

cuda_result driver_leave(cuda_result result) {
    pthread_mutex_unlock(&sim_driver.lock);
    return result;
}

cuda_result cuInit(unsigned flags) {
    pthread_mutex_lock(&sim_driver.lock);
    if (flags != 0) return driver_leave(CUDA_INVALID_VALUE);
    return driver_leave(sim_driver.started ? CUDA_OK : start());
}

cuda_result cuDriverGetVersion(int *version) {
    if (version == NULL) return CUDA_INVALID_VALUE;
    *version = 13000;
    return CUDA_OK;
}

/* ---- devices ---- */

cuda_result cuDeviceGetCount(int *count) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && count != NULL) *count = 1;
    return driver_leave(result != CUDA_OK ? result : count != NULL ? CUDA_OK : CUDA_INVALID_VALUE);
}

cuda_result cuDeviceGet(cuda_device *device, int ordinal) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && device == NULL) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK && ordinal != 0) result = CUDA_INVALID_DEVICE;
    if (result == CUDA_OK) *device = 0;
    return driver_leave(result);
}

cuda_result cuDeviceGetName(char *name, int room, cuda_device device) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (name == NULL || room < 1 || device != 0)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) snprintf(name, (size_t)room, "Deepwell simulated %s", sim_driver.chip.name);
    return driver_leave(result);
}

cuda_result cuDeviceGetUuid_v2(cuda_uuid *uuid, cuda_device device) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (uuid == NULL || device != 0)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) {
        memset(uuid, 0, sizeof *uuid);
        memcpy(uuid->bytes, "deepwell-sim", 12);
        uuid->bytes[15] = (char)sim_driver.chip.arch;
    }
    return driver_leave(result);
}

cuda_result cuDeviceTotalMem_v2(size_t *bytes, cuda_device device) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (bytes == NULL || device != 0)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) *bytes = sim_driver.memory.limit;
    return driver_leave(result);
}

/* Attributes whose numbers nobody here has a name for: limits that are the same on every chip of the table. */
static int other_attribute(int attribute) {
    switch (attribute) {
    case 2: case 3: return 1024;      /* block x, y */
    case 4: return 64;                /* block z */
    case 8: return 49152;             /* shared memory of a block without opting in */
    case 9: return 65536;             /* constant memory */
    case 10: return LANES;
    case 11: return INT32_MAX;        /* pitch */
    case 19: return 1;                /* maps host memory */
    case 31: return 1;                /* concurrent kernels */
    case 83: case 89: return 1;       /* managed memory, also while kernels run */
    case 91: case 99: return 1;       /* registered host memory, at its own address */
    case 92: case 93: case 122: return 1;   /* streams write values */
    case 12: case 82: return 65536;   /* registers of a block, of a multiprocessor */
    case 39: return 2048;             /* threads of a multiprocessor */
    case CUDA_DEVICE_UNIFIED_ADDRESSING: return 1;
    case 95: return 1;                /* cooperative launch */
    case 106: return 32;              /* blocks of a multiprocessor */
    case 111: return SIM_SHARED_RESERVED;
    default: return 0;
    }
}

cuda_result cuDeviceGetAttribute(int *value, cuda_device_attribute attribute, cuda_device device) {
    cuda_result result = driver_enter();
    const chip_caps *chip = &sim_driver.chip;
    if (result == CUDA_OK && (value == NULL || device != 0 || (int)attribute < 1 || (int)attribute > 200)) result = CUDA_INVALID_VALUE;
    if (result != CUDA_OK) return driver_leave(result);
    switch (attribute) {
    case CUDA_DEVICE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CUDA_DEVICE_MAX_GRID_X: *value = INT32_MAX; break;
    case CUDA_DEVICE_MAX_GRID_Y: case CUDA_DEVICE_MAX_GRID_Z: *value = 65535; break;
    case CUDA_DEVICE_CLOCK_KHZ: *value = (int)(chip->clock_hz / 1000); break;
    case CUDA_DEVICE_MULTIPROCESSORS: *value = chip->units; break;
    case CUDA_DEVICE_MEMORY_CLOCK_KHZ: *value = (int)(chip->rates[CHIP_RATE_memory].nominal / (2.0 * 6144 / 8) / 1000); break;   /* with the width below, the row's bandwidth */
    case CUDA_DEVICE_MEMORY_BUS_BITS: *value = 6144; break;
    case CUDA_DEVICE_L2_BYTES: *value = (int)chip->cache_bytes; break;
    case CUDA_DEVICE_CAPABILITY_MAJOR: *value = chip->arch / 10; break;
    case CUDA_DEVICE_CAPABILITY_MINOR: *value = chip->arch % 10; break;
    case CUDA_DEVICE_SHARED_BYTES_PER_MULTIPROCESSOR: *value = (int)chip->shared_bytes + SIM_SHARED_RESERVED; break;
    case CUDA_DEVICE_SHARED_BYTES_PER_BLOCK: *value = (int)chip->shared_bytes; break;
    case CUDA_DEVICE_MEMORY_POOLS: *value = 1; break;
    case CUDA_DEVICE_CLUSTER_LAUNCH: *value = chip->arch >= 90; break;
    default: *value = other_attribute((int)attribute); break;
    }
    return driver_leave(CUDA_OK);
}

/* ---- contexts: there is one ---- */

static cuda_context the_context(void) { return (cuda_context)(void *)&sim_driver; }

static cuda_result give_context(cuda_context *context, cuda_device device) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (context == NULL || device != 0)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) *context = the_context();
    return driver_leave(result);
}

static cuda_result accept_context(cuda_context context) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && context != NULL && context != the_context()) result = CUDA_INVALID_CONTEXT;
    return driver_leave(result);
}

cuda_result cuDevicePrimaryCtxRetain(cuda_context *context, cuda_device device) { return give_context(context, device); }
cuda_result cuCtxGetCurrent(cuda_context *context) { return give_context(context, 0); }
cuda_result cuCtxPopCurrent_v2(cuda_context *context) { return context != NULL ? give_context(context, 0) : accept_context(NULL); }
cuda_result cuCtxPushCurrent_v2(cuda_context context) { return accept_context(context); }
cuda_result cuCtxSetCurrent(cuda_context context) { return accept_context(context); }
cuda_result cuCtxDestroy_v2(cuda_context context) { return accept_context(context); }

cuda_result cuCtxCreate_v2(cuda_context *context, unsigned flags, cuda_device device) {
    (void)flags;
    return give_context(context, device);
}

cuda_result cuCtxGetDevice(cuda_device *device) { return cuDeviceGet(device, 0); }
