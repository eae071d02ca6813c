/* The driver's calls that copy and fill memory: bytes, rows of a pitch, boxes of three dimensions. What was never written stays so in the copy. */
#include "driver.h"

#include <stdlib.h>

static sim_allocation *range(cuda_pointer address, size_t bytes, const char *what) {
    sim_allocation *a = sim_memory_range(&sim_driver.memory, address, bytes);
    if (a == NULL) {
        driver_say(CUDA_INVALID_VALUE, "%s %zu bytes at 0x%llx, which do not lie in one allocation", what, bytes, (unsigned long long)address);
    }
    return a;
}

cuda_result driver_copy(cuda_pointer to_device, void *to_host, cuda_pointer from_device, const void *from_host, size_t bytes) {
    sim_allocation *to = NULL, *from = NULL;
    if (bytes == 0) return CUDA_OK;
    if (to_host == NULL && (to = range(to_device, bytes, "a copy writes")) == NULL) return CUDA_INVALID_VALUE;
    if (from_host == NULL && (from = range(from_device, bytes, "a copy reads")) == NULL) return CUDA_INVALID_VALUE;
    size_t to_at = to != NULL ? (size_t)(to_device - to->address) : 0, from_at = from != NULL ? (size_t)(from_device - from->address) : 0;
    memmove(to != NULL ? (void *)(to->host + to_at) : to_host, from != NULL ? (const void *)(from->host + from_at) : from_host, bytes);
    if (to != NULL && from != NULL) memmove(to->shadow + to_at, from->shadow + from_at, bytes);
    else if (to != NULL) memset(to->shadow + to_at, SHADOW_WRITTEN, bytes);
    return CUDA_OK;
}

/* Either side may be host memory, as addresses are of one space. */
static cuda_result copy_unified(cuda_pointer to, cuda_pointer from, size_t bytes) {
    bool to_device = sim_memory_find(&sim_driver.memory, to) != NULL, from_device = sim_memory_find(&sim_driver.memory, from) != NULL;
    if (bytes > 0 && (to == 0 || from == 0)) return CUDA_INVALID_VALUE;
    if (!to_device && !from_device) {
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
        return CUDA_OK;
    }
    return driver_copy(to, to_device ? NULL : (void *)(uintptr_t)to, from, from_device ? NULL : (const void *)(uintptr_t)from, bytes);
}

static cuda_pointer side(cuda_memory_type type, const void *host, cuda_pointer device) { return type == CUDA_MEMORY_HOST ? (cuda_pointer)(uintptr_t)host : device; }

/* All that a copy of the box could fail for but its rows. */
static cuda_result check_box(const cuda_copy *c) {
    const size_t most_pitch = INT32_MAX;      /* CU_DEVICE_ATTRIBUTE_MAX_PITCH */
    if (c->from_type == CUDA_MEMORY_ARRAY || c->to_type == CUDA_MEMORY_ARRAY) return driver_say(CUDA_NOT_SUPPORTED, "copies of CUDA arrays are not modelled");
    if (c->from_pitch > most_pitch || c->to_pitch > most_pitch) return CUDA_INVALID_VALUE;
    if (c->height > 1 && ((c->from_pitch > 0 && c->width_bytes > c->from_pitch) || (c->to_pitch > 0 && c->width_bytes > c->to_pitch))) return CUDA_INVALID_VALUE;
    return CUDA_OK;
}

typedef cuda_result each_row(cuda_pointer to, cuda_pointer from, size_t bytes);

static cuda_result box_rows(const cuda_copy *c, each_row *row) {
    size_t from_pitch = c->from_pitch > 0 ? c->from_pitch : c->width_bytes, to_pitch = c->to_pitch > 0 ? c->to_pitch : c->width_bytes;
    size_t height = c->height > 0 ? c->height : 1, depth = c->depth > 0 ? c->depth : 1;
    size_t from_height = c->from_height > 0 ? c->from_height : height, to_height = c->to_height > 0 ? c->to_height : height;
    cuda_pointer from = side(c->from_type, c->from_host, c->from_device), to = side(c->to_type, c->to_host, c->to_device);
    for (size_t z = 0; z < depth; z++) {
        for (size_t y = 0; y < height; y++) {
            size_t from_at = ((c->from_z + z) * from_height + c->from_y + y) * from_pitch + c->from_x_bytes, to_at = ((c->to_z + z) * to_height + c->to_y + y) * to_pitch + c->to_x_bytes;
            cuda_result result = row(to + to_at, from + from_at, c->width_bytes);
            if (result != CUDA_OK) return result;
        }
    }
    return CUDA_OK;
}

cuda_result driver_copy_box(const cuda_copy *c) {
    const cuda_result result = check_box(c);
    return result == CUDA_OK ? box_rows(c, copy_unified) : result;
}

cuda_result driver_set(cuda_pointer to, uint32_t value, int element_bytes, size_t count) {
    if (count == 0) return CUDA_OK;
    if (count > SIZE_MAX / 4 || to % (unsigned)element_bytes != 0) return CUDA_INVALID_VALUE;
    size_t bytes = count * (size_t)element_bytes;
    sim_allocation *a = range(to, bytes, "a fill writes");
    if (a == NULL) return CUDA_INVALID_VALUE;
    uint8_t *at = a->host + (to - a->address);
    for (size_t i = 0; i < count; i++) memcpy(at + i * (size_t)element_bytes, &value, (size_t)element_bytes);
    memset(a->shadow + (to - a->address), SHADOW_WRITTEN, bytes);
    return CUDA_OK;
}

cuda_result driver_set_rows(const cuda_memset_node *s) {
    for (size_t row = 0; row < (s->height > 0 ? s->height : 1); row++) {
        cuda_result result = driver_set(s->to + row * s->pitch, s->value, (int)s->element_bytes, s->width);
        if (result != CUDA_OK) return result;
    }
    return CUDA_OK;
}

/* ---- put off ---- */

typedef struct late_copy { cuda_pointer to_device, from_device; void *to_host; const void *from_host; size_t bytes; uint8_t staged[]; } late_copy;
typedef struct late_set { cuda_pointer to; uint32_t value; int element_bytes; size_t count; } late_set;

static cuda_result run_copy(void *data) {
    const late_copy *c = data;
    return driver_copy(c->to_device, c->to_host, c->from_device, c->from_host, c->bytes);
}

static cuda_result run_copy_box(void *data) { return driver_copy_box(data); }

static cuda_result run_set(void *data) {
    const late_set *s = data;
    return driver_set(s->to, s->value, s->element_bytes, s->count);
}

static bool is_pinned(const void *host) {
    const sim_allocation *a = sim_memory_find(&sim_driver.memory, (cuda_pointer)(uintptr_t)host);
    return a != NULL && a->origin != SIM_OF_DEVICE;
}

/* Pinned memory is read and written when the copy is done. Other memory of the host is read when it is asked for, and written before the call returns, so all before it is done then. */
static cuda_result ask_copy(cuda_pointer to_device, void *to_host, cuda_pointer from_device, const void *from_host, size_t bytes) {
    cuda_result result = driver_enter();
    if (result != CUDA_OK) return driver_leave(result);
    if (!sim_driver.late || (to_host != NULL && !is_pinned(to_host))) {
        result = driver_finish();
        return driver_leave(result == CUDA_OK ? driver_copy(to_device, to_host, from_device, from_host, bytes) : result);
    }
    const bool stages = from_host != NULL && !is_pinned(from_host);
    if (bytes > 0 && ((to_host == NULL && range(to_device, bytes, "a copy writes") == NULL) || (from_host == NULL && range(from_device, bytes, "a copy reads") == NULL)))
        return driver_leave(CUDA_INVALID_VALUE);
    late_copy *c = malloc(sizeof *c + (stages ? bytes : 0));
    if (c == NULL) return driver_leave(CUDA_OUT_OF_MEMORY);
    *c = (late_copy){to_device, from_device, to_host, stages ? c->staged : from_host, bytes};
    if (stages) memcpy(c->staged, from_host, bytes);
    return driver_leave(driver_ask(&(driver_work){run_copy, free, c}));
}

static cuda_result check_row(cuda_pointer to, cuda_pointer from, size_t bytes) {
    return range(to, bytes, "a copy writes") != NULL && range(from, bytes, "a copy reads") != NULL ? CUDA_OK : CUDA_INVALID_VALUE;
}

/* Between memory of the device; a box with a side of the host's is copied before the call returns. */
static cuda_result ask_copy_box(const cuda_copy *c) {
    cuda_result result = driver_enter();
    if (result != CUDA_OK) return driver_leave(result);
    if (c == NULL) return driver_leave(CUDA_INVALID_VALUE);
    if (c->width_bytes == 0 || c->height == 0 || c->depth == 0) return driver_leave(CUDA_OK);
    if (!sim_driver.late || c->from_type != CUDA_MEMORY_DEVICE || c->to_type != CUDA_MEMORY_DEVICE) {
        result = driver_finish();
        return driver_leave(result == CUDA_OK ? driver_copy_box(c) : result);
    }
    result = check_box(c);
    if (result == CUDA_OK) result = box_rows(c, check_row);
    if (result != CUDA_OK) return driver_leave(result);
    cuda_copy *copy = malloc(sizeof *copy);
    if (copy == NULL) return driver_leave(CUDA_OUT_OF_MEMORY);
    *copy = *c;
    return driver_leave(driver_ask(&(driver_work){run_copy_box, free, copy}));
}

static cuda_result ask_set(cuda_pointer to, uint32_t value, int element_bytes, size_t count) {
    cuda_result result = driver_enter();
    if (result != CUDA_OK) return driver_leave(result);
    if (!sim_driver.late) return driver_leave(driver_set(to, value, element_bytes, count));
    late_set *s = malloc(sizeof *s);
    if (s == NULL) return driver_leave(CUDA_OUT_OF_MEMORY);
    *s = (late_set){to, value, element_bytes, count};
    return driver_leave(driver_ask(&(driver_work){run_set, free, s}));
}

/* ---- the calls: those of no stream are done behind all that was put off ---- */

static cuda_result copy(cuda_pointer to_device, void *to_host, cuda_pointer from_device, const void *from_host, size_t bytes) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK) result = driver_finish();
    if (result == CUDA_OK) result = driver_copy(to_device, to_host, from_device, from_host, bytes);
    return driver_leave(result);
}

cuda_result cuMemcpy(cuda_pointer to, cuda_pointer from, size_t bytes) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK) result = driver_finish();
    if (result == CUDA_OK) result = copy_unified(to, from, bytes);
    return driver_leave(result);
}

cuda_result cuMemcpyAsync(cuda_pointer to, cuda_pointer from, size_t bytes, cuda_stream stream) {
    (void)stream;
    return cuMemcpy(to, from, bytes);
}

cuda_result cuMemcpyHtoD_v2(cuda_pointer to, const void *from, size_t bytes) { return from != NULL || bytes == 0 ? copy(to, NULL, 0, from, bytes) : CUDA_INVALID_VALUE; }
cuda_result cuMemcpyDtoH_v2(void *to, cuda_pointer from, size_t bytes) { return to != NULL || bytes == 0 ? copy(0, to, from, NULL, bytes) : CUDA_INVALID_VALUE; }
cuda_result cuMemcpyDtoD_v2(cuda_pointer to, cuda_pointer from, size_t bytes) { return copy(to, NULL, from, NULL, bytes); }

cuda_result cuMemcpyHtoDAsync_v2(cuda_pointer to, const void *from, size_t bytes, cuda_stream stream) {
    (void)stream;
    return from != NULL || bytes == 0 ? ask_copy(to, NULL, 0, from, bytes) : CUDA_INVALID_VALUE;
}

cuda_result cuMemcpyDtoHAsync_v2(void *to, cuda_pointer from, size_t bytes, cuda_stream stream) {
    (void)stream;
    return to != NULL || bytes == 0 ? ask_copy(0, to, from, NULL, bytes) : CUDA_INVALID_VALUE;
}

cuda_result cuMemcpyDtoDAsync_v2(cuda_pointer to, cuda_pointer from, size_t bytes, cuda_stream stream) {
    (void)stream;
    return ask_copy(to, NULL, from, NULL, bytes);
}

cuda_result cuMemcpy3D_v2(const cuda_copy *c) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK) result = driver_finish();
    if (result == CUDA_OK && c == NULL) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK && c->width_bytes > 0 && c->height > 0 && c->depth > 0) result = driver_copy_box(c);
    return driver_leave(result);
}

cuda_result cuMemcpy3DAsync_v2(const cuda_copy *c, cuda_stream stream) {
    (void)stream;
    return ask_copy_box(c);
}

cuda_result cuMemcpy2D_v2(const cuda_copy_2d *c) {
    if (c == NULL) return CUDA_INVALID_VALUE;
    const cuda_copy box = {.from_x_bytes = c->from_x_bytes, .from_y = c->from_y, .from_type = c->from_type, .from_host = c->from_host, .from_device = c->from_device,
                           .from_array = c->from_array, .from_pitch = c->from_pitch, .to_x_bytes = c->to_x_bytes, .to_y = c->to_y, .to_type = c->to_type, .to_host = c->to_host,
                           .to_device = c->to_device, .to_array = c->to_array, .to_pitch = c->to_pitch, .width_bytes = c->width_bytes, .height = c->height, .depth = 1};
    return cuMemcpy3D_v2(&box);
}

cuda_result cuMemcpy2DUnaligned_v2(const cuda_copy_2d *c) { return cuMemcpy2D_v2(c); }

cuda_result cuMemcpy2DAsync_v2(const cuda_copy_2d *c, cuda_stream stream) {
    (void)stream;
    return cuMemcpy2D_v2(c);
}

/* ---- fills ---- */

static cuda_result set(cuda_pointer to, uint32_t value, int element_bytes, size_t count) {
    cuda_result result = driver_enter();
    if (result == CUDA_OK) result = driver_finish();
    if (result == CUDA_OK) result = driver_set(to, value, element_bytes, count);
    return driver_leave(result);
}

static cuda_result set_rows(cuda_pointer to, size_t pitch, uint32_t value, unsigned element_bytes, size_t width, size_t height) {
    const cuda_memset_node rows = {.to = to, .pitch = pitch, .value = value, .element_bytes = element_bytes, .width = width, .height = height};
    cuda_result result = driver_enter();
    if (result == CUDA_OK) result = driver_finish();
    if (result == CUDA_OK && height > 1 && pitch / element_bytes < width) result = CUDA_INVALID_VALUE;
    if (result == CUDA_OK && width > 0 && height > 0) result = driver_set_rows(&rows);
    return driver_leave(result);
}

cuda_result cuMemsetD8_v2(cuda_pointer to, unsigned char value, size_t count) { return set(to, value, 1, count); }
cuda_result cuMemsetD16_v2(cuda_pointer to, unsigned short value, size_t count) { return set(to, value, 2, count); }
cuda_result cuMemsetD32_v2(cuda_pointer to, unsigned value, size_t count) { return set(to, value, 4, count); }
cuda_result cuMemsetD2D8_v2(cuda_pointer to, size_t pitch, unsigned char value, size_t width, size_t height) { return set_rows(to, pitch, value, 1, width, height); }
cuda_result cuMemsetD2D16_v2(cuda_pointer to, size_t pitch, unsigned short value, size_t width, size_t height) { return set_rows(to, pitch, value, 2, width, height); }
cuda_result cuMemsetD2D32_v2(cuda_pointer to, size_t pitch, unsigned value, size_t width, size_t height) { return set_rows(to, pitch, value, 4, width, height); }

cuda_result cuMemsetD8Async(cuda_pointer to, unsigned char value, size_t count, cuda_stream stream) {
    (void)stream;
    return ask_set(to, value, 1, count);
}

cuda_result cuMemsetD16Async(cuda_pointer to, unsigned short value, size_t count, cuda_stream stream) {
    (void)stream;
    return ask_set(to, value, 2, count);
}

cuda_result cuMemsetD32Async(cuda_pointer to, unsigned value, size_t count, cuda_stream stream) {
    (void)stream;
    return ask_set(to, value, 4, count);
}

cuda_result cuMemsetD2D8Async(cuda_pointer to, size_t pitch, unsigned char value, size_t width, size_t height, cuda_stream stream) {
    (void)stream;
    return set_rows(to, pitch, value, 1, width, height);
}

cuda_result cuMemsetD2D16Async(cuda_pointer to, size_t pitch, unsigned short value, size_t width, size_t height, cuda_stream stream) {
    (void)stream;
    return set_rows(to, pitch, value, 2, width, height);
}

cuda_result cuMemsetD2D32Async(cuda_pointer to, size_t pitch, unsigned value, size_t width, size_t height, cuda_stream stream) {
    (void)stream;
    return set_rows(to, pitch, value, 4, width, height);
}
