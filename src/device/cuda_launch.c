/* Launches on the device: their functions, the addresses in their arguments, tensor maps, and starting one outside of a graph. */
#include "device/cuda.h"

#include <assert.h>
#include <string.h>

/* ---- functions ---- */

static dw_status load_image(device *device, const char *stem, cuda_library *library) {
    cuda_state *state = cuda_state_of(device);
    size_t bytes;
    const char *why;
    *library = map_find(&state->libraries, stem);
    if (*library != NULL) return DW_OK;
    const void *image = kernel_image(stem, &bytes, &why);
    if (image == NULL) return base_fail(device->context, DW_UNSUPPORTED, "GPU code '%s': %s", stem, why);
    cuda_result result = state->driver.LibraryLoadData(library, image, NULL, NULL, 0, NULL, NULL, 0);
    if (result != CUDA_OK)
        return base_fail_at(device->context, cuda_fail(device->context, &state->driver, result, "cuLibraryLoadData"), "GPU code '%s' on %s, driver of CUDA %d.%d", stem,
                            device->caps.model, state->driver.version / 1000, state->driver.version % 1000 / 10);
    return map_set(&state->libraries, stem, *library);
}

static dw_status find_function(device *device, const kernel_launch *launch, cuda_entry *entry) {
    cuda_state *state = cuda_state_of(device);
    cuda_library library;
    TRY(load_image(device, launch->image, &library));
    CUDA_TRY(device->context, &state->driver, LibraryGetKernel, &entry->kernel, library, launch->entry);
    CUDA_TRY(device->context, &state->driver, KernelGetFunction, &entry->function, entry->kernel);
    entry->shared_bytes = 0;   /* what a function may have unasked is 48 KiB less what it declares itself, which its launch does not say */
    return DW_OK;
}

/* More shared memory, and clusters of more blocks, than every chip has are allowed when a launch first needs them. */
static dw_status allow(device *device, const kernel_launch *launch, cuda_entry *entry) {
    cuda_state *state = cuda_state_of(device);
    if (launch->shared_bytes > entry->shared_bytes) {
        CUDA_TRY(device->context, &state->driver, KernelSetAttribute, CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, (int)launch->shared_bytes, entry->kernel, state->ordinal);
        entry->shared_bytes = launch->shared_bytes;
    }
    if (launch->cluster[0] * launch->cluster[1] * launch->cluster[2] > 8 && !entry->large_clusters) {
        CUDA_TRY(device->context, &state->driver, KernelSetAttribute, CUDA_FUNCTION_NON_PORTABLE_CLUSTER, 1, entry->kernel, state->ordinal);
        entry->large_clusters = true;
    }
    return DW_OK;
}

dw_status cuda_find_entry(device *device, const kernel_launch *launch, cuda_function *function) {
    cuda_state *state = cuda_state_of(device);
    cuda_entry *entry = map_find(&state->functions, launch->entry);
    dw_status status = DW_OK;
    if (entry == NULL) {
        TRY_NEW(entry, &state->arena, 1);
        status = find_function(device, launch, entry);
        if (status == DW_OK) status = map_set(&state->functions, launch->entry, entry);
    }
    if (status == DW_OK) status = allow(device, launch, entry);
    *function = entry->function;
    return status == DW_OK ? DW_OK : base_fail_at(device->context, status, "kernel %s", launch->entry);
}

/* ---- slots ---- */

static_assert((int)KERNEL_MAP_BYTE == CUDA_TENSOR_U8 && (int)KERNEL_MAP_F16 == CUDA_TENSOR_F16 && (int)KERNEL_MAP_F32 == CUDA_TENSOR_F32 && (int)KERNEL_MAP_BF16 == CUDA_TENSOR_BF16 &&
                  (int)KERNEL_MAP_PADDED_4 == CUDA_TENSOR_16U4_ALIGN16, "types of maps");
static_assert((int)KERNEL_SWIZZLE_NONE == CUDA_SWIZZLE_NONE && (int)KERNEL_SWIZZLE_64 == CUDA_SWIZZLE_64 && (int)KERNEL_SWIZZLE_128 == CUDA_SWIZZLE_128, "swizzles of maps");
static_assert((int)KERNEL_PROMOTION_NONE == CUDA_PROMOTION_NONE && (int)KERNEL_PROMOTION_128 == CUDA_PROMOTION_128 && (int)KERNEL_PROMOTION_256 == CUDA_PROMOTION_256, "promotions of maps");

static dw_status encode_map(device *device, const kernel_run *run, const kernel_map *map, void *to) {
    static const uint32_t ones[KERNEL_MAP_RANK] = {1, 1, 1, 1, 1};
    cuda_state *state = cuda_state_of(device);
    cuda_tensor_map encoded;
    const dw_tensor *operand = map->operand == KERNEL_WORKSPACE ? NULL : kernel_operand(run, map->operand);
    uint8_t *address = (uint8_t *)(operand == NULL ? run->workspace : map->of_scales ? operand->scales : operand->data) + map->offset;
    CUDA_TRY(device->context, &state->driver, TensorMapEncodeTiled, &encoded, (cuda_tensor_type)map->type, (uint32_t)map->rank, address, map->dims, map->strides, map->box,
             ones, CUDA_INTERLEAVE_NONE, (cuda_tensor_swizzle)map->swizzle, (cuda_tensor_promotion)map->promotion, (cuda_tensor_fill)map->fill);
    memcpy(to, &encoded, sizeof encoded);
    return DW_OK;
}

dw_status cuda_fill_slots(device *device, const kernel_run *run, uint32_t step, kernel_launch *launch) {
    for (int i = 0; i < launch->slot_count; i++) {
        const kernel_slot *slot = &launch->slots[i];
        uint8_t *to = launch->arguments + slot->at;
        const uint8_t *address = NULL;
        kernel_fault_place place = {(uint64_t)(uintptr_t)cuda_state_of(device)->fault, step, 0};
        switch ((kernel_slot_kind)slot->kind) {
        case KERNEL_SLOT_DATA: address = kernel_operand(run, slot->index)->data; break;
        case KERNEL_SLOT_SCALES: address = kernel_operand(run, slot->index)->scales; break;
        case KERNEL_SLOT_SECOND: address = (const uint8_t *)kernel_operand(run, slot->index)->second; break;
        case KERNEL_SLOT_WORKSPACE: address = run->workspace; break;
        case KERNEL_SLOT_COUNTERS: address = (const uint8_t *)(uintptr_t)cuda_state_of(device)->counters; break;
        case KERNEL_SLOT_FAULT: memcpy(to, &place, sizeof place); continue;
        case KERNEL_SLOT_MAP: TRY(encode_map(device, run, &launch->maps[slot->index], to)); continue;
        }
        uint64_t value = (uint64_t)(uintptr_t)address + (address ? (uint64_t)slot->offset : 0);
        memcpy(to, &value, sizeof value);
    }
    return DW_OK;
}

/* ---- outside of a graph ---- */

typedef struct stream_launcher {
    kernel_launcher launcher;
    device *device;
    const kernel_run *run;
} stream_launcher;

/* A kernel whose arguments are complete. */
static dw_status start_kernel(device *device, kernel_launch *launch) {
    cuda_state *state = cuda_state_of(device);
    cuda_function function;
    cuda_launch_attribute clusters[] = {{.id = CUDA_LAUNCH_CLUSTER, .value.cluster = {launch->cluster[0], launch->cluster[1], launch->cluster[2]}},
                                        {.id = CUDA_LAUNCH_PREFERRED_CLUSTER, .value.cluster = {launch->preferred[0], launch->preferred[1], launch->preferred[2]}}};
    TRY(cuda_find_entry(device, launch, &function));
    cuda_launch_config config = {launch->grid[0], launch->grid[1], launch->grid[2], launch->block[0], launch->block[1], launch->block[2], launch->shared_bytes,
                                 state->current, clusters, (launch->cluster[0] > 0) + (launch->preferred[0] > 0)};
    CUDA_TRY(device->context, &state->driver, LaunchKernelEx, &config, function, (void *[]){launch->arguments}, NULL);
    return DW_OK;
}

static dw_status launch_now(kernel_launcher *launcher, const kernel_launch *given) {
    stream_launcher *to = (stream_launcher *)launcher;
    kernel_launch launch = *given;
    TRY(cuda_fill_slots(to->device, to->run, 0, &launch));
    if (launch.library != NULL) return cuda_library_enqueue(to->device, &launch, cuda_state_of(to->device)->current);
    TRY(kernel_launch_check(to->device->context, &launch, &to->device->caps));
    return start_kernel(to->device, &launch);
}

dw_status cuda_carry(device *device, int count, const kernel_piece *pieces, bool *done) {
    kernel_launch launch;
    *done = cuda_state_of(device)->carries && kernel_carry(&device->caps, count, pieces, false, &launch);
    if (!*done || count == 0) return DW_OK;
    TRY(cuda_enter(device));
    dw_status status = start_kernel(device, &launch);
    cuda_leave(device);
    return status;
}

dw_status cuda_run_row(device *device, const kernel_row *row, kernel_run *run) {
    stream_launcher launcher = {{launch_now}, device, run};
    run->chip = &device->caps;
    TRY(cuda_enter(device));
    dw_status status = kernel_shape(row, run, &launcher.launcher);
    cuda_leave(device);
    return status;
}
