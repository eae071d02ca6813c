/* The list of device kinds, and opening one by name. */
#include "device/device.h"

#include <stdio.h>
#include <string.h>

typedef struct device_kind {
    const char *name, *meaning;
    dw_status (*open)(dw_context *context, const char *detail, device **device);
} device_kind;

static const device_kind kinds[] = {
#define DEVICE(name, open, meaning) {#name, meaning, open},
#include "device/device.def"
#undef DEVICE
};

int device_kind_count(void) { return (int)COUNT_OF(kinds); }
const char *device_kind_name(int index) { return kinds[index].name; }
const char *device_kind_meaning(int index) { return kinds[index].meaning; }

/* "cuda,libraries=none" -> "cuda:0" */
static void write_place(const char *name, char place[64]) {
    const size_t length = strcspn(name, ",");
    snprintf(place, 64, "%.*s%s", (int)length, name, memchr(name, ':', length) == NULL ? ":0" : "");
}

static dw_status open_kind(const device_kind *kind, dw_context *context, const char *name, const char *detail, device **result) {
    TRY(kind->open(context, detail, result));
    write_place(name, (*result)->place);
    return DW_OK;
}

bool device_is_named(const device *device, const char *name) {
    char place[64];
    write_place(name, place);
    return strcmp(place, device->place) == 0;
}

dw_status device_open(dw_context *context, const char *name, device **result) {
    *result = NULL;
    size_t length = strcspn(name, ":,");
    const char *detail = name[length] == ':' ? name + length + 1 : name + length;     /* "cuda,libraries=none" is the first of its kind */
    char list[256] = "";
    for (int i = 0; i < device_kind_count(); i++) {
        if (strlen(kinds[i].name) == length && memcmp(kinds[i].name, name, length) == 0) return open_kind(&kinds[i], context, name, detail, result);
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", kinds[i].name);
    }
    return base_fail(context, DW_NOT_FOUND, "device '%s' is not known; choose one of %s", name, list);
}

void device_close(device *device) {
    if (device != NULL) device->calls->close(device);
}

bool device_is_simulated(const device *device) {
    char words[64];
    return device != NULL && device->calls->driver != NULL && !device->calls->driver(device, words, sizeof words);
}
