/* What a GPU is, by the driver and the chip table. A GPU whose name and number of multiprocessors are a row's has the row's capabilities as they
 * stand, so a plan made for the row runs on it. */
#include "device/cuda.h"

#include <ctype.h>
#include <string.h>

/* "NVIDIA GeForce RTX 4090" has the word "rtx4090": letters and digits count, and what surrounds the word is neither. */
static bool names_chip(const char *model, const char *chip) {
    char plain[sizeof((chip_caps *)0)->model];
    size_t length = 0, wanted = strlen(chip);
    bool begins[sizeof plain];
    for (const char *at = model; *at != '\0' && length + 1 < sizeof plain; at++) {
        if (!isalnum((unsigned char)*at)) continue;
        begins[length] = at == model || !isalnum((unsigned char)at[-1]);
        plain[length++] = (char)tolower((unsigned char)*at);
    }
    plain[length] = '\0';
    for (size_t i = 0; i + wanted <= length; i++) {
        bool ends = i + wanted == length || begins[i + wanted] || !isalnum((unsigned char)plain[i + wanted]);
        if (begins[i] && ends && memcmp(plain + i, chip, wanted) == 0) return true;
    }
    return false;
}

/* CUDA 13 calls sm_101 sm_110. */
static int arch_of(int major, int minor) {
    int arch = major * 10 + minor;
    return arch == 101 ? 110 : arch;
}

static dw_status ask(dw_context *context, const cuda_driver *driver, cuda_device device, cuda_device_attribute attribute, int *value) {
    CUDA_TRY(context, driver, DeviceGetAttribute, value, attribute, device);
    return DW_OK;
}

/* The row of that architecture that the GPU's name names, or the first; -1 when there is none. */
static int find_row(int arch, const char *model) {
    int first = -1;
    for (int i = 0; i < chip_count(); i++) {
        chip_caps caps;
        chip_row_caps(i, 0, &caps);
        if (caps.kind != CHIP_GPU || caps.arch != arch) continue;
        if (names_chip(model, caps.name)) return i;
        if (first < 0) first = i;
    }
    return first;
}

dw_status cuda_probe(dw_context *context, const cuda_driver *driver, cuda_device device, chip_caps *caps) {
    char model[sizeof caps->model];
    int major, minor, units;
    size_t bytes;
    CUDA_TRY(context, driver, DeviceGetName, model, sizeof model, device);
    TRY(ask(context, driver, device, CUDA_DEVICE_CAPABILITY_MAJOR, &major));
    TRY(ask(context, driver, device, CUDA_DEVICE_CAPABILITY_MINOR, &minor));
    TRY(ask(context, driver, device, CUDA_DEVICE_MULTIPROCESSORS, &units));
    CUDA_TRY(context, driver, DeviceTotalMem_v2, &bytes, device);
    int row = find_row(arch_of(major, minor), model);
    if (row < 0)
        return base_fail(context, DW_UNSUPPORTED, "the GPU %s has compute capability %d.%d, which is no row of the chip table: add one to chip.def", model, major, minor);
    chip_row_caps(row, 0, caps);
    snprintf(caps->model, sizeof caps->model, "%s", model);
    if (units == caps->units && names_chip(model, caps->name)) return DW_OK;
    if (units != caps->units) chip_scale(caps, units);
    caps->memory_bytes = bytes;
    if (!names_chip(model, caps->name)) snprintf(caps->name, sizeof caps->name, "sm_%d", caps->arch);
    return DW_OK;
}
