/* The CUDA driver, loaded at run time: one binary serves machines with a GPU and without. Every call is looked up by the name that cuda.def gives. */
#include "device/cuda.h"

#include <dlfcn.h>
#include <string.h>

enum { REQUIRED, OPTIONAL };
typedef struct cuda_symbol { const char *name; int since, need; size_t at; } cuda_symbol;

static const cuda_symbol symbols[] = {
#define CUDA_CALL(name, since, need, parameters) {"cu" #name, since, need, offsetof(cuda_driver, name)},
#include "device/cuda.def"
#undef CUDA_CALL
};

dw_status cuda_fail(dw_context *context, const cuda_driver *driver, cuda_result result, const char *call) {
    const char *name = NULL, *words = NULL;
    driver->GetErrorName(result, &name);
    driver->GetErrorString(result, &words);
    return base_fail(context, result == CUDA_OUT_OF_MEMORY ? DW_NO_MEMORY : DW_UNSUPPORTED, "%s failed: %s (%d), %s", call, name ? name : "an error without a name",
                     (int)result, words ? words : "no words for it");
}

static dw_status find_symbols(dw_context *context, cuda_driver *driver) {
    for (size_t i = 0; i < COUNT_OF(symbols); i++) {
        void *address = dlsym(driver->library, symbols[i].name);
        memcpy((uint8_t *)driver + symbols[i].at, &address, sizeof address);   /* ISO C converts no object pointer to a function's */
    }
    if (driver->DriverGetVersion == NULL || driver->DriverGetVersion(&driver->version) != CUDA_OK)
        return base_fail(context, DW_UNSUPPORTED, "%s is no CUDA driver: it does not tell its version", driver->path);
    for (size_t i = 0; i < COUNT_OF(symbols); i++) {
        void *address;
        memcpy(&address, (uint8_t *)driver + symbols[i].at, sizeof address);
        if (address != NULL || symbols[i].need == OPTIONAL) continue;
        return base_fail(context, DW_UNSUPPORTED, "the CUDA driver %s is too old: it is of CUDA %d.%d and lacks %s, which came with %d.%d; install a newer driver",
                         driver->path, driver->version / 1000, driver->version % 1000 / 10, symbols[i].name, symbols[i].since / 1000, symbols[i].since % 1000 / 10);
    }
    return DW_OK;
}

static dw_status pass_options(dw_context *context, const cuda_driver *driver, const char *options) {
    int (*configure)(const char *);
    void *address = dlsym(driver->library, "deepwell_sim_configure");
    memcpy(&configure, &address, sizeof address);
    if (address == NULL) return base_fail(context, DW_INVALID, "the driver %s takes no options ('%s')", driver->path, options);
    if (configure(options) == 0) return DW_OK;
    return base_fail(context, DW_INVALID, "%s cannot be set to '%s': the text is too long, or it was set to another one in this process", driver->path, options);
}

dw_status cuda_driver_open(arena *arena, const char *path, const char *options, cuda_driver *driver) {
    dw_context *context = arena->context;
    *driver = (cuda_driver){.path = arena_text(arena, path)};
    if (driver->path == NULL) return DW_NO_MEMORY;
    driver->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL)
        return base_fail(context, DW_UNSUPPORTED, "%s cannot be loaded: %s; %s", options != NULL ? "the simulator" : "the CUDA driver", dlerror(),
                         options != NULL ? "libdeepwell-sim.so lies beside libdeepwell.so, or beside the program that holds the library: build deepwell-sim"
                                         : "a machine with an NVIDIA GPU and its driver has it");
    dw_status status = find_symbols(context, driver);
    if (status == DW_OK && options != NULL) status = pass_options(context, driver, options);
    driver->is_simulated = dlsym(driver->library, "deepwell_sim_configure") != NULL;
    cuda_result result = status == DW_OK ? driver->Init(0) : CUDA_OK;
    if (result != CUDA_OK) status = cuda_fail(context, driver, result, "cuInit");
    if (result != CUDA_OK && options != NULL) status = base_fail_at(context, status, "%s, set to '%s'", path, options);
    if (status != DW_OK) cuda_driver_close(driver);
    return status;
}

/* The real driver keeps threads and tables beyond any use of it, so a library that was used stays loaded for the life of the process. */
void cuda_driver_close(cuda_driver *driver) { driver->library = NULL; }
