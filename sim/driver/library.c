/* The driver's calls on code that are made of others: images in files, what a library holds, suggestions of a block's size, cooperative launches. */
#include "driver.h"

#include <stdlib.h>

/* ---- libraries ---- */

cuda_result cuModuleLoad(cuda_library *module, const char *path) {
    file_map file;
    cuda_result result = driver_enter();
    char *image = NULL;
    if (result == CUDA_OK && (module == NULL || path == NULL)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) result = driver_fail(file_map_open(sim_driver.context, path, &file), CUDA_FILE_NOT_FOUND);
    if (result == CUDA_OK) {
        image = calloc(file.length + 1, 1);   /* texts end with a zero */
        if (image == NULL) result = CUDA_OUT_OF_MEMORY;
        else memcpy(image, file.bytes, file.length);
        file_map_close(&file);
    }
    driver_leave(result);
    if (result == CUDA_OK) result = cuModuleLoadData(module, image);
    free(image);
    return result;
}

cuda_result cuModuleLoadFatBinary(cuda_library *module, const void *image) { return cuModuleLoadData(module, image); }

cuda_result cuLibraryLoadFromFile(cuda_library *library, const char *path, int *jit_options, void **jit_values, unsigned jit_count, int *options, void **values, unsigned count) {
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return cuModuleLoad(library, path);
}

/* A library and its module are one thing here. */
cuda_result cuLibraryGetModule(cuda_library *module, cuda_library library) {
    if (module == NULL || library == NULL) return CUDA_INVALID_VALUE;
    *module = library;
    return CUDA_OK;
}

cuda_result cuLibraryGetGlobal(cuda_pointer *address, size_t *bytes, cuda_library library, const char *name) { return cuModuleGetGlobal_v2(address, bytes, library, name); }

cuda_result cuLibraryGetKernelCount(unsigned *count, cuda_library library) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK && (count == NULL || library == NULL)) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK) {
        *count = 0;
        for (size_t i = 0; i < library->module->function_count; i++) *count += library->module->functions[i]->entry;
    }
    return driver_leave(result);
}

cuda_result cuLibraryEnumerateKernels(cuda_kernel *kernels, unsigned count, cuda_library library) {
    if (kernels == NULL || library == NULL) return CUDA_INVALID_VALUE;
    unsigned found = 0;
    for (size_t i = 0; i < library->module->function_count && found < count; i++) {
        const ptx_function *f = library->module->functions[i];
        if (!f->entry) continue;
        cuda_result result = cuLibraryGetKernel(&kernels[found++], library, f->name);
        if (result != CUDA_OK) return result;
    }
    return CUDA_OK;
}

cuda_result cuKernelGetName(const char **name, cuda_kernel kernel) { return cuFuncGetName(name, (cuda_function)(void *)kernel); }
cuda_result cuFuncGetParamInfo(cuda_function function, size_t index, size_t *offset, size_t *bytes) { return cuKernelGetParamInfo((cuda_kernel)(void *)function, index, offset, bytes); }

cuda_result cuFuncGetModule(cuda_library *module, cuda_function function) {
    if (module == NULL || function == NULL) return CUDA_INVALID_VALUE;
    *module = function->library;
    return CUDA_OK;
}

/* ---- occupancy ---- */

cuda_result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, cuda_function function, int threads, size_t shared_bytes, unsigned flags) {
    (void)flags;
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared_bytes);
}

/* The largest of the sizes that keep the most threads on a multiprocessor. */
cuda_result cuOccupancyMaxPotentialBlockSize(int *blocks, int *threads, cuda_function function, size_t (*shared_bytes_of)(int threads), size_t shared_bytes, int most) {
    int limit = 0, best = 0;
    if (blocks == NULL || threads == NULL) return CUDA_INVALID_VALUE;
    cuda_result result = cuFuncGetAttribute(&limit, CUDA_FUNCTION_MAX_THREADS, function);
    if (most > 0 && most < limit) limit = most;
    *blocks = *threads = 0;
    for (int size = limit; size > 0 && result == CUDA_OK; size = (size - 1) / LANES * LANES) {
        int resident = 0;
        result = cuOccupancyMaxActiveBlocksPerMultiprocessor(&resident, function, size, shared_bytes_of != NULL ? shared_bytes_of(size) : shared_bytes);
        if (resident * size <= best) continue;
        best = resident * size;
        *threads = size;
        *blocks = resident * sim_driver.options.sm_count;
    }
    return result;
}

/* The largest power of two up to 8, or 16 where the function allows it, of which a cluster finds room. */
cuda_result cuOccupancyMaxPotentialClusterSize(int *ctas, cuda_function function, const cuda_launch_config *config) {
    if (ctas == NULL || function == NULL || config == NULL) return CUDA_INVALID_VALUE;
    cuda_launch_attribute attribute = {.id = CUDA_LAUNCH_CLUSTER, .value.cluster = {1, 1, 1}};
    cuda_launch_config with = *config;
    with.attributes = &attribute;
    with.attribute_count = 1;
    *ctas = 0;
    for (unsigned size = 1; size <= (function->non_portable_cluster ? 16u : 8u); size *= 2) {
        int clusters = 0;
        attribute.value.cluster.x = size;
        cuda_result result = cuOccupancyMaxActiveClusters(&clusters, function, &with);
        if (result != CUDA_OK) return result;
        if (clusters > 0) *ctas = (int)size;
    }
    return CUDA_OK;
}

cuda_result cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, cuda_function function, int blocks, int threads) {
    int fixed = 0;
    if (bytes == NULL || blocks < 1 || threads < 1) return CUDA_INVALID_VALUE;
    cuda_result result = cuFuncGetAttribute(&fixed, CUDA_FUNCTION_SHARED_BYTES, function);
    if (result != CUDA_OK) return result;
    size_t room = (sim_driver.options.shared_limit + SIM_SHARED_RESERVED) / (size_t)blocks / 128 * 128, taken = (size_t)fixed + SIM_SHARED_RESERVED;
    *bytes = room > taken ? room - taken : 0;
    return CUDA_OK;
}

/* ---- launches ---- */

cuda_result cuLaunchCooperativeKernel(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                                      unsigned shared_bytes, cuda_stream stream, void **parameters) {
    cuda_launch_attribute attribute = {.id = CUDA_LAUNCH_COOPERATIVE, .value.cooperative = 1};
    const cuda_launch_config config = {.grid_x = grid_x, .grid_y = grid_y, .grid_z = grid_z, .block_x = block_x, .block_y = block_y, .block_z = block_z,
                                       .shared_bytes = shared_bytes, .stream = stream, .attributes = &attribute, .attribute_count = 1};
    return cuLaunchKernelEx(&config, function, parameters, NULL);
}
