/* The driver's calls on code: libraries, kernels, their attributes, and launches. */
#include "driver.h"
#include "sim/machine/race.h"

#include <stdlib.h>

/* ---- libraries ---- */

/* Behind the first ".entry" of a text: the kernel's name; its length, 0 where there is none. */
static const char *first_kernel(const char *text, size_t *length) {
    const char *at = strstr(text, ".entry");
    *length = 0;
    if (at == NULL) return text;
    at += strlen(".entry");
    at += strspn(at, " \t\r\n");
    *length = strcspn(at, " \t\r\n(");
    return at;
}

static bool has_kernel(const char *text, const char *name, size_t length) {
    size_t found;
    for (const char *at = first_kernel(text, &found); found > 0; at = first_kernel(at, &found)) {
        if (found == length && memcmp(at, name, length) == 0) return true;
    }
    return false;
}

/* Option ptx=FILE: the file's text takes the place of that of an image which has the kernel that the file names first. */
static dw_status replace_text(fatbin_ptx *ptx) {
    file_map file;
    size_t length;
    fatbin_ptx other;
    if (sim_driver.replacement[0] == '\0') return DW_OK;
    TRY(file_map_open(sim_driver.context, sim_driver.replacement, &file));
    dw_status status = fatbin_find_ptx(sim_driver.context, file.bytes, file.length, sim_driver.chip.arch, &other);
    file_map_close(&file);
    if (status != DW_OK) return status;
    const char *name = first_kernel(other.text, &length);
    if (length == 0) status = base_fail(sim_driver.context, DW_SYNTAX, "%s, of option ptx=, has no kernel", sim_driver.replacement);
    bool taken = status == DW_OK && has_kernel(ptx->text, name, length);
    fatbin_release(sim_driver.context, taken ? ptx : &other);
    if (taken) *ptx = other;
    return status;
}

static cuda_result load(cuda_library *library, const void *image) {
    fatbin_ptx ptx;
    struct cuda_library_st *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_OUT_OF_MEMORY;
    dw_status status = fatbin_find_ptx(sim_driver.context, image, SIZE_MAX, sim_driver.chip.arch, &ptx);
    if (status != DW_OK) {
        free(made);
        return driver_fail(status, status == DW_CORRUPT ? CUDA_INVALID_IMAGE : CUDA_NO_BINARY_FOR_GPU);
    }
    status = replace_text(&ptx);
    if (status != DW_OK) {
        fatbin_release(sim_driver.context, &ptx);
        free(made);
        return driver_fail(status, CUDA_INVALID_PTX);
    }
    status = ptx_parse(sim_driver.context, "ptx", ptx.text, ptx.length, &made->module);
    for (size_t i = 0; status == DW_OK && ptx.machine != NULL && i < made->module->function_count; i++) {
        ptx_function *f = made->module->functions[i];
        if (f->entry) f->machine = cubin_find_registers(ptx.machine, ptx.machine_length, f->name);
    }
    fatbin_release(sim_driver.context, &ptx);
    if (status == DW_OK) {
        int arch = made->module->arch, chip = sim_driver.chip.arch;
        char suffix = made->module->arch_suffix;
        bool fits = suffix == 'a' ? arch == chip : suffix == 'f' ? arch / 10 == chip / 10 && arch <= chip : arch <= chip;
        if (!fits) status = base_fail(sim_driver.context, DW_MISMATCH, "the PTX is for %s, and %s is sm_%d", made->module->target, sim_driver.chip.name, chip);
    }
    if (status == DW_OK) status = sim_place_variables(sim_driver.context, made->module, &sim_driver.memory);
    if (status != DW_OK) {
        ptx_destroy(made->module);
        free(made);
        return driver_fail(status, status == DW_MISMATCH ? CUDA_NO_BINARY_FOR_GPU : CUDA_INVALID_PTX);
    }
    *library = made;
    return CUDA_OK;
}

static void unload(struct cuda_library_st *library) {
    for (size_t f = 0; f <= library->module->function_count; f++) {
        size_t count = f == 0 ? library->module->variable_count : library->module->functions[f - 1]->variable_count;
        ptx_variable **variables = f == 0 ? library->module->variables : library->module->functions[f - 1]->variables;
        for (size_t i = 0; i < count; i++) {
            if (variables[i]->space != PTX_GLOBAL && variables[i]->space != PTX_CONST) continue;
            sim_allocation *a = sim_memory_find(&sim_driver.memory, variables[i]->address);
            if (a == NULL) continue;
            a->name[0] = '\0';
            sim_memory_release(&sim_driver.memory, variables[i]->address);
        }
    }
    while (library->functions != NULL) {
        struct cuda_function_st *next = library->functions->next;
        free(library->functions);
        library->functions = next;
    }
    ptx_destroy(library->module);
    free(library);
}

static cuda_result find_kernel(cuda_function *function, cuda_library library, const char *name) {
    *function = NULL;
    for (struct cuda_function_st *f = library->functions; f != NULL; f = f->next) {
        if (strcmp(f->function->name, name) == 0) {
            *function = f;
            return CUDA_OK;
        }
    }
    ptx_function *found = ptx_find_function(library->module, name);
    if (found == NULL || !found->entry) return driver_say(CUDA_NOT_FOUND, "the module has no kernel %s", name);
    sim_code *code;
    dw_status status = sim_decode(sim_driver.context, library->module, found, &code);
    if (status != DW_OK) return driver_fail(status, status == DW_UNSUPPORTED ? CUDA_NOT_SUPPORTED : CUDA_INVALID_PTX);
    struct cuda_function_st *f = calloc(1, sizeof *f);
    if (f == NULL) return CUDA_OUT_OF_MEMORY;
    *f = (struct cuda_function_st){.function = found, .code = code, .library = library, .next = library->functions};
    library->functions = f;
    *function = f;
    return CUDA_OK;
}

cuda_result cuLibraryLoadData(cuda_library *library, const void *code, int *jit_options, void **jit_values, unsigned jit_count, int *options, void **values, unsigned count) {
    (void)jit_options;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (library == NULL || code == NULL)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) result = load(library, code);
    return driver_leave(result);
}

cuda_result cuLibraryUnload(cuda_library library) {
    pthread_mutex_lock(&sim_driver.lock);
    if (library == NULL) return driver_leave(CUDA_INVALID_HANDLE);
    driver_finish();
    unload(library);
    return driver_leave(CUDA_OK);
}

/* A kernel and its function are one thing here. */
cuda_result cuLibraryGetKernel(cuda_kernel *kernel, cuda_library library, const char *name) {
    cuda_function function;
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (kernel == NULL || library == NULL || name == NULL)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) result = find_kernel(&function, library, name);
    if (result == CUDA_OK) *kernel = (cuda_kernel)(void *)function;
    return driver_leave(result);
}

cuda_result cuKernelGetFunction(cuda_function *function, cuda_kernel kernel) {
    if (function == NULL || kernel == NULL) return CUDA_INVALID_VALUE;
    *function = (cuda_function)(void *)kernel;
    return CUDA_OK;
}

cuda_result cuModuleLoadData(cuda_library *module, const void *image) { return cuLibraryLoadData(module, image, NULL, NULL, 0, NULL, NULL, 0); }

cuda_result cuModuleLoadDataEx(cuda_library *module, const void *image, unsigned count, int *options, void **values) {
    return cuLibraryLoadData(module, image, options, values, count, NULL, NULL, 0);
}

cuda_result cuModuleUnload(cuda_library module) { return cuLibraryUnload(module); }

cuda_result cuModuleGetFunction(cuda_function *function, cuda_library module, const char *name) {
    cuda_kernel kernel;
    cuda_result result = cuLibraryGetKernel(&kernel, module, name);
    return result == CUDA_OK ? cuKernelGetFunction(function, kernel) : result;
}

cuda_result cuModuleGetGlobal_v2(cuda_pointer *address, size_t *bytes, cuda_library module, const char *name) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (module == NULL || name == NULL)) result = CUDA_INVALID_VALUE;
    if (result != CUDA_OK) return driver_leave(result);
    const ptx_variable *v = ptx_find_variable(module->module, name);
    if (v == NULL || (v->space != PTX_GLOBAL && v->space != PTX_CONST)) return driver_leave(CUDA_NOT_FOUND);
    if (address != NULL) *address = v->address;
    if (bytes != NULL) *bytes = v->bytes;
    return driver_leave(CUDA_OK);
}

/* ---- attributes ---- */

enum { DEFAULT_SHARED = 49152, ASSUMED_REGISTERS = 32, GRID_BARRIER_BYTES = 8 };

static size_t static_shared(const struct cuda_function_st *f) { return f->code->shared_bytes - SIM_SHARED_RESERVED; }

static cuda_result get_attribute(int *value, cuda_function_attribute attribute, const struct cuda_function_st *f) {
    const int *most = f->function->max_threads[0] > 0 ? f->function->max_threads : f->function->required_threads;
    switch (attribute) {
    case CUDA_FUNCTION_MAX_THREADS: *value = most[0] > 0 ? most[0] * most[1] * most[2] : 1024; break;
    case CUDA_FUNCTION_SHARED_BYTES: *value = (int)static_shared(f); break;
    case CUDA_FUNCTION_LOCAL_BYTES: *value = (int)f->code->stack_bytes; break;
    case CUDA_FUNCTION_REGISTERS: *value = f->function->machine.count > 0 ? f->function->machine.count : f->function->max_registers > 0 ? f->function->max_registers : ASSUMED_REGISTERS; break;
    case CUDA_FUNCTION_PTX_VERSION: case CUDA_FUNCTION_BINARY_VERSION: *value = f->library->module->arch; break;
    case CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES: *value = f->max_dynamic_shared > 0 ? f->max_dynamic_shared : DEFAULT_SHARED - (int)static_shared(f); break;
    case CUDA_FUNCTION_NON_PORTABLE_CLUSTER: *value = f->non_portable_cluster; break;
    default: return CUDA_INVALID_VALUE;
    }
    return CUDA_OK;
}

static cuda_result set_attribute(struct cuda_function_st *f, cuda_function_attribute attribute, int value) {
    if (attribute == CUDA_FUNCTION_NON_PORTABLE_CLUSTER) {
        f->non_portable_cluster = value != 0;
        return CUDA_OK;
    }
    if (attribute != CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES) return CUDA_INVALID_VALUE;
    if (value < 0 || (size_t)value + static_shared(f) > sim_driver.options.shared_limit) {
        return driver_say(CUDA_INVALID_VALUE, "%.160s: %d bytes of dynamic shared memory and %zu static; the chip has %zu for a block", f->function->name, value, static_shared(f),
                          sim_driver.options.shared_limit);
    }
    f->max_dynamic_shared = value;
    return CUDA_OK;
}

cuda_result cuFuncGetAttribute(int *value, cuda_function_attribute attribute, cuda_function function) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (value == NULL || function == NULL)) result = CUDA_INVALID_VALUE;
    return driver_leave(result == CUDA_OK ? get_attribute(value, attribute, function) : result);
}

cuda_result cuFuncSetAttribute(cuda_function function, cuda_function_attribute attribute, int value) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && function == NULL) result = CUDA_INVALID_VALUE;
    return driver_leave(result == CUDA_OK ? set_attribute(function, attribute, value) : result);
}

cuda_result cuKernelGetAttribute(int *value, cuda_function_attribute attribute, cuda_kernel kernel, cuda_device device) {
    return device == 0 ? cuFuncGetAttribute(value, attribute, (cuda_function)(void *)kernel) : CUDA_INVALID_DEVICE;
}

cuda_result cuKernelSetAttribute(cuda_function_attribute attribute, int value, cuda_kernel kernel, cuda_device device) {
    return device == 0 ? cuFuncSetAttribute((cuda_function)(void *)kernel, attribute, value) : CUDA_INVALID_DEVICE;
}

cuda_result cuKernelGetParamInfo(cuda_kernel kernel, size_t index, size_t *offset, size_t *bytes) {
    cuda_result result = driver_enter();
    const struct cuda_function_st *f = (cuda_function)(void *)kernel;
    if (result == CUDA_OK && (f == NULL || offset == NULL || index >= (size_t)f->function->param_count)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) {
        *offset = f->function->params[index]->address;
        if (bytes != NULL) *bytes = f->function->params[index]->bytes;
    }
    return driver_leave(result);
}

/* By threads, shared memory and, where machine code came with the PTX, registers. */
static int blocks_per_unit(const struct cuda_function_st *f, int threads, size_t shared) {
    size_t each = static_shared(f) + shared + SIM_SHARED_RESERVED, room = sim_driver.options.shared_limit + SIM_SHARED_RESERVED;
    int by_threads = threads > 0 ? 2048 / ((threads + LANES - 1) / LANES * LANES) : 0, by_shared = (int)(room / each);
    int blocks = by_threads < by_shared ? by_threads : by_shared, by_registers = sim_blocks_by_registers(f->function, (uint64_t)(threads > 0 ? threads : 0));
    if (by_registers < blocks) blocks = by_registers;
    return blocks < 32 ? blocks : 32;
}

cuda_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, cuda_function function, int threads, size_t shared_bytes) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (blocks == NULL || function == NULL || threads < 1)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) *blocks = blocks_per_unit(function, threads, shared_bytes);
    return driver_leave(result);
}

void driver_set_attribute(driver_launch *launch, cuda_launch_attribute_id id, const cuda_launch_value *value) {
    const uint32_t size[3] = {value->cluster.x, value->cluster.y, value->cluster.z};
    if (id == CUDA_LAUNCH_COOPERATIVE) launch->cooperative = value->cooperative != 0;
    if (id == CUDA_LAUNCH_PREFERRED_CLUSTER) memcpy(launch->preferred, size, sizeof size);
    if (id != CUDA_LAUNCH_CLUSTER) return;
    memcpy(launch->cluster, size, sizeof size);
    launch->sized = true;
}

/* What the kernel itself says, then the attributes. */
static void read_attributes(const cuda_launch_config *config, const ptx_function *f, driver_launch *launch) {
    launch->sized = f->cluster[0] > 0;
    for (int i = 0; i < 3; i++) launch->cluster[i] = launch->sized ? (uint32_t)f->cluster[i] : 1;
    for (unsigned i = 0; i < config->attribute_count; i++) driver_set_attribute(launch, config->attributes[i].id, &config->attributes[i].value);
}

cuda_result cuOccupancyMaxActiveClusters(int *clusters, cuda_function function, const cuda_launch_config *config) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (clusters == NULL || function == NULL || config == NULL)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) {
        driver_launch launch = {0};
        read_attributes(config, function->function, &launch);
        int ctas = (int)sim_ctas_of(launch.cluster), most = function->non_portable_cluster ? 16 : 8;
        int per_unit = blocks_per_unit(function, (int)(config->block_x * config->block_y * config->block_z), config->shared_bytes);
        *clusters = ctas < 1 || ctas > most ? 0 : per_unit * sim_driver.options.sm_count / ctas;
    }
    return driver_leave(result);
}

/* ---- launches ---- */

/* extra: pairs of a key and a value, ended by 0: 1 a buffer of all parameters, 2 its size. */
static cuda_result gather_params(const struct cuda_function_st *f, void **parameters, void **extra, uint8_t *params) {
    if (parameters == NULL && extra != NULL) {
        const void *buffer = NULL;
        size_t bytes = 0;
        for (void **at = extra; *at != NULL; at += 2) {
            if (at[0] == (void *)1) buffer = at[1];
            if (at[0] == (void *)2) bytes = *(const size_t *)at[1];
        }
        if (buffer == NULL || bytes < f->code->param_bytes) return driver_say(CUDA_INVALID_VALUE, "%.160s: %zu bytes of parameters, where %zu are declared", f->function->name, bytes, f->code->param_bytes);
        memcpy(params, buffer, f->code->param_bytes);
        return CUDA_OK;
    }
    for (int i = 0; i < f->function->param_count; i++) {
        if (parameters == NULL || parameters[i] == NULL) return driver_say(CUDA_INVALID_VALUE, "%.160s: parameter %d of %d is not given", f->function->name, i, f->function->param_count);
        memcpy(params + f->function->params[i]->address, parameters[i], f->function->params[i]->bytes);
    }
    return CUDA_OK;
}

cuda_result driver_prepare(const cuda_launch_config *config, cuda_function f, void **parameters, void **extra, driver_launch *launch) {
    *launch = (driver_launch){.function = f, .grid = {config->grid_x, config->grid_y, config->grid_z}, .block = {config->block_x, config->block_y, config->block_z},
                              .shared_bytes = config->shared_bytes};
    read_attributes(config, f->function, launch);
    size_t allowed = f->max_dynamic_shared > 0 ? (size_t)f->max_dynamic_shared : DEFAULT_SHARED - static_shared(f);
    if (static_shared(f) > DEFAULT_SHARED && f->max_dynamic_shared == 0) allowed = 0;
    if (launch->shared_bytes > allowed) {
        return driver_say(CUDA_INVALID_VALUE, "%.160s: %zu bytes of dynamic shared memory, and %zu are allowed: set the function's attribute for more", f->function->name,
                          launch->shared_bytes, allowed);
    }
    if (launch->cooperative) {
        uint64_t blocks = (uint64_t)config->grid_x * config->grid_y * config->grid_z, threads = (uint64_t)config->block_x * config->block_y * config->block_z;
        uint64_t room = threads <= 1024 ? (uint64_t)blocks_per_unit(f, (int)threads, config->shared_bytes) * (uint64_t)sim_driver.options.sm_count : blocks;
        if (blocks > room) {
            return driver_say(CUDA_COOPERATIVE_TOO_LARGE, "%.160s: a cooperative launch of %llu blocks, and the chip holds %llu of them at a time", f->function->name,
                              (unsigned long long)blocks, (unsigned long long)room);
        }
    }
    launch->params = calloc(1, f->code->param_bytes + 1);
    if (launch->params == NULL) return CUDA_OUT_OF_MEMORY;
    cuda_result result = gather_params(f, parameters, extra, launch->params);
    if (result != CUDA_OK) {
        free(launch->params);
        launch->params = NULL;
    }
    return result;
}

static void print_text(void *user, const char *text) {
    (void)user;
    fputs(text, stdout);
}

/* Space to note who touched what. */
static void watch_races(uint64_t epoch) {
    for (size_t i = 0; i < sim_driver.memory.count; i++) {
        if (race_must_clear(epoch)) race_clear(sim_driver.memory.allocations[i]);
        race_watch(sim_driver.memory.allocations[i]);
    }
}

static void write_digest(const sim_launch *l) {
    FILE *file = fopen(sim_driver.digest, "a");
    if (file == NULL) return;
    fprintf(file, "%s %016llx\n", l->code->function->name, (unsigned long long)l->digest);
    fclose(file);
}

/* Space to note who wrote what. */
static cuda_result watch_overlap(void) {
    for (size_t i = 0; i < sim_driver.memory.count; i++)
        if (!sim_early_watch(sim_driver.memory.allocations[i])) return CUDA_OUT_OF_MEMORY;
    return CUDA_OK;
}

static cuda_result check_size(const struct cuda_function_st *f, const uint32_t size[3], const char *name) {
    if (sim_ctas_of(size) <= 8 || f->non_portable_cluster) return CUDA_OK;
    return driver_say(CUDA_INVALID_CLUSTER_SIZE, "%.160s: %s of %llu CTAs; more than 8 need the attribute that allows a size that is not portable", f->function->name, name,
                      (unsigned long long)sim_ctas_of(size));
}

/* Of two sizes there are clusters on chips of sm_100 and sm_110 alone, where the launch says the regular one, too; elsewhere all have that. */
static cuda_result read_sizes(const driver_launch *launch, sim_launch *l) {
    const ptx_function *f = launch->function->function;
    const bool two = launch->sized && sim_ctas_of(launch->preferred) > 0 && sim_driver.chip.arch >= 100 && sim_driver.chip.arch < 120;
    memcpy(l->cluster, launch->cluster, sizeof l->cluster);
    memcpy(l->preferred, two ? launch->preferred : launch->cluster, sizeof l->preferred);
    for (int i = 0; i < 3; i++) {
        if (f->cluster[0] == 0 || launch->cluster[i] == (uint32_t)f->cluster[i]) continue;
        return driver_say(CUDA_INVALID_CLUSTER_SIZE, "%.160s: .reqnctapercluster asks for clusters of %dx%dx%d, not %ux%ux%u", f->name, f->cluster[0], f->cluster[1], f->cluster[2], launch->cluster[0],
                          launch->cluster[1], launch->cluster[2]);
    }
    cuda_result result = check_size(launch->function, l->cluster, "clusters");
    return result == CUDA_OK ? check_size(launch->function, l->preferred, "preferred clusters") : result;
}

cuda_result driver_execute(const driver_launch *launch, const driver_overlap *overlap) {
    if (sim_driver.fail_launch > 0 && --sim_driver.fail_launch == 0) {
        return driver_say(CUDA_LAUNCH_FAILED, "the launch of %s fails, as the option fail_launch asks", launch->function->function->name);
    }
    sim_launch l = {.context = sim_driver.context, .code = launch->function->code, .memory = &sim_driver.memory, .options = &sim_driver.options, .spares = &sim_driver.spares,
                    .dynamic_shared = launch->shared_bytes, .params = launch->params, .epoch = ++sim_driver.epoch, .print = print_text};
    if (overlap != NULL) {
        l.early = overlap->early;
        l.chain = overlap->chain != 0 ? overlap->chain : l.epoch;
        if (watch_overlap() != CUDA_OK) return CUDA_OUT_OF_MEMORY;
    }
    memcpy(l.grid, launch->grid, sizeof l.grid);
    memcpy(l.block, launch->block, sizeof l.block);
    cuda_result sized = read_sizes(launch, &l);
    if (sized != CUDA_OK) return sized;
    uint64_t barrier = 0;
    if (launch->cooperative) {
        cuda_result allocated = driver_fail(sim_memory_alloc(&sim_driver.memory, GRID_BARRIER_BYTES, &barrier), CUDA_OUT_OF_MEMORY);
        if (allocated != CUDA_OK) return allocated;
        driver_set(barrier, 0, 1, GRID_BARRIER_BYTES);
        l.grid_barrier = barrier;
    }
    bool traced;
    if (sim_trace_launch(&sim_driver.trace, &l, &traced) != DW_OK) return driver_fail(DW_NOT_FOUND, CUDA_INVALID_VALUE);
    if (traced) l.trace = &sim_driver.trace;
    if (sim_driver.options.races && (uint64_t)l.grid[0] * l.grid[1] * l.grid[2] > 1) watch_races(l.epoch);
    l.digests = sim_driver.digest[0] != '\0';
    dw_status status = sim_run(&l);
    if (barrier != 0) sim_memory_release(&sim_driver.memory, barrier);
    if (l.digests) write_digest(&l);
    sim_trace_launched(&sim_driver.trace, &l);
    sim_driver.warp_instructions += l.executed;
    sim_driver.thread_instructions += l.thread_instructions;
    if (status == DW_OK) return CUDA_OK;
    cuda_result result = driver_fail(status, l.finding.made ? CUDA_LAUNCH_FAILED : CUDA_INVALID_VALUE);
    if (l.finding.made) sim_driver.broken = result;
    return result;
}

static cuda_result run_launch(void *data) { return driver_execute(data, NULL); }

static void drop_launch(void *data) {
    driver_launch *launch = data;
    free(launch->params);
    free(launch);
}

static cuda_result ask_launch(const driver_launch *launch) {
    driver_launch *copy = malloc(sizeof *copy);
    if (copy == NULL) {
        free(launch->params);
        return CUDA_OUT_OF_MEMORY;
    }
    *copy = *launch;
    return driver_ask(&(driver_work){run_launch, drop_launch, copy});
}

cuda_result cuLaunchKernelEx(const cuda_launch_config *config, cuda_function function, void **parameters, void **extra) {
    driver_launch launch;
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (config == NULL || function == NULL || (config->attribute_count > 0 && config->attributes == NULL))) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) result = driver_prepare(config, function, parameters, extra, &launch);
    return driver_leave(result == CUDA_OK ? ask_launch(&launch) : result);
}

cuda_result cuLaunchKernel(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                           cuda_stream stream, void **parameters, void **extra) {
    const cuda_launch_config config = {.grid_x = grid_x, .grid_y = grid_y, .grid_z = grid_z, .block_x = block_x, .block_y = block_y, .block_z = block_z,
                                       .shared_bytes = shared_bytes, .stream = stream};
    return cuLaunchKernelEx(&config, function, parameters, extra);
}
