/* Libraries of vendors on a device: which are found and opened, and their calls as work in a stream or as graphs. They call the driver by themselves, so none is
 * opened under a simulated one, nor, unless it is asked for, under a driver that was named. Knows no library by name. */
#include "device/cuda.h"

#include <dlfcn.h>
#include <string.h>

/* ---- opening ---- */

static dw_status load(device *device, const kernel_library *library, const char *folder, cuda_vendor *vendor) {
    char why[512] = "", path[4096];
    *vendor = (cuda_vendor){.library = library};
    for (size_t i = 0; i < COUNT_OF(library->files) && library->files[i] != NULL; i++) {
        if ((size_t)snprintf(path, sizeof path, "%s%s%s", folder, folder[0] != '\0' ? "/" : "", library->files[i]) >= sizeof path) continue;
        void *loaded = dlopen(path, RTLD_LAZY | RTLD_LOCAL);   /* stays loaded for the life of the process, as the driver does */
        if (loaded == NULL) {
            snprintf(why, sizeof why, "%s", dlerror());
            continue;
        }
        dw_status status = library->open(device->context, loaded, &vendor->own);
        if (status != DW_OK) return base_fail_at(device->context, status, "library %s", path);
        device->caps.features |= UINT64_C(1) << library->feature;
        return DW_OK;
    }
    return base_fail(device->context, DW_NOT_FOUND, "library %s cannot be loaded: %s", library->name, why);
}

/* asked: NULL or "": what is there; "none"; a library's name, which must be there; or a folder, in which some must be, and none that cannot be used. */
dw_status cuda_libraries_open(device *device, const char *asked) {
    cuda_state *state = cuda_state_of(device);
    const kernel_library *library;
    const bool all = asked == NULL || asked[0] == '\0', folder = !all && strchr(asked, '/') != NULL;
    bool known = false;
    if (!all && strcmp(asked, "none") == 0) return DW_OK;
    if (all && (state->driver.is_simulated || state->driver.is_named)) return DW_OK;
    if (state->driver.is_simulated)
        return base_fail(device->context, DW_INVALID, "libraries=%s: libraries of vendors call the GPU's own driver, and this device is simulated", asked);
    dw_status status = DW_OK;
    for (int i = 0; (library = kernel_library_at(i)) != NULL; i++) {
        if (!all && !folder && strcmp(asked, library->name) != 0) continue;
        status = load(device, library, folder ? asked : "", &state->vendors[i]);
        known = known || status == DW_OK || !folder;
        if (status == DW_NO_MEMORY || (status != DW_OK && !all && (!folder || status != DW_NOT_FOUND))) return status;
    }
    if (all || known) return DW_OK;
    if (folder) return base_fail_at(device->context, status, "libraries=%s: none was found there", asked);
    return base_fail(device->context, DW_NOT_FOUND, "libraries=%s: expected none, a folder (with a '/'), or a library's name; see chip features in 'deepwell probe'", asked);
}

void cuda_libraries_close(device *device) {
    cuda_state *state = cuda_state_of(device);
    for (int i = 0; i < KERNEL_LIBRARIES; i++)
        if (state->vendors[i].own != NULL) state->vendors[i].library->close(device->context, state->vendors[i].own);
}

void cuda_libraries_tell(const device *device, char *words, size_t size) {
    const cuda_state *state = cuda_state_of(device);
    for (int i = 0; i < KERNEL_LIBRARIES; i++) {
        char version[64];
        const size_t length = strlen(words);
        if (state->vendors[i].own == NULL) continue;
        state->vendors[i].library->tell_version(state->vendors[i].own, version, sizeof version);
        snprintf(words + length, size - length, ", %s", version);
    }
}

/* ---- calls ---- */

typedef dw_status (*library_function)(const kernel_library_call *call);

static dw_status call(device *device, const kernel_launch *launch, library_function function, cuda_stream stream) {
    const cuda_state *state = cuda_state_of(device);
    for (int i = 0; i < KERNEL_LIBRARIES; i++) {
        const cuda_vendor *vendor = &state->vendors[i];
        if (vendor->own == NULL || strcmp(vendor->library->name, launch->library) != 0) continue;
        const kernel_library_call made = {device->context, vendor->own, stream, launch->arguments};
        dw_status status = function(&made);
        return status == DW_OK ? DW_OK : base_fail_at(device->context, status, "kernel %s", launch->entry);
    }
    return base_fail(device->context, DW_UNSUPPORTED, "kernel %s calls %s, which %s does not have", launch->entry, launch->library, device->caps.model);
}

static dw_status prepare(device *device, const kernel_launch *launch) { return launch->prepare != NULL ? call(device, launch, launch->prepare, NULL) : DW_OK; }

dw_status cuda_library_enqueue(device *device, const kernel_launch *launch, cuda_stream stream) {
    TRY(prepare(device, launch));
    return call(device, launch, launch->enqueue, stream);
}

/* What the call would put into a stream, as a graph of its own. Nothing of it runs. */
dw_status cuda_library_capture(device *device, const kernel_launch *launch, cuda_graph *graph) {
    cuda_state *state = cuda_state_of(device);
    cuda_graph made = NULL;
    *graph = NULL;
    TRY(prepare(device, launch));
    CUDA_TRY(device->context, &state->driver, StreamBeginCapture_v2, state->stream, CUDA_CAPTURE_RELAXED);
    dw_status status = call(device, launch, launch->enqueue, state->stream);
    const cuda_result ended = state->driver.StreamEndCapture(state->stream, &made);
    if (status == DW_OK && ended != CUDA_OK) status = cuda_fail(device->context, &state->driver, ended, "cuStreamEndCapture");
    if (status != DW_OK && made != NULL) state->driver.GraphDestroy(made);
    else *graph = made;
    return status;
}
