/* The simulator's own types of the driver interface beside cuda.h, where the toolkit is installed (the build says so: HAVE_CUDA_H). */
#include "support/support.h"

#include "sim/driver/other_calls.h"

#ifdef HAVE_CUDA_H

#include <cuda.h>

#define SAME_PLACE(field, their_field) {"cuda_copy_2d." #field, offsetof(cuda_copy_2d, field), offsetof(CUDA_MEMCPY2D, their_field)}
#define SAME_NUMBER(ours, theirs) {#ours, (size_t)(ours), (size_t)(theirs)}

static const struct { const char *what; size_t ours, theirs; } facts[] = {
    {"cuda_copy_2d", sizeof(cuda_copy_2d), sizeof(CUDA_MEMCPY2D)},
    {"cuda_memory_location", sizeof(cuda_memory_location), sizeof(CUmemLocation)},
    SAME_PLACE(from_type, srcMemoryType),
    SAME_PLACE(from_device, srcDevice),
    SAME_PLACE(from_pitch, srcPitch),
    SAME_PLACE(to_x_bytes, dstXInBytes),
    SAME_PLACE(to_type, dstMemoryType),
    SAME_PLACE(to_device, dstDevice),
    SAME_PLACE(to_pitch, dstPitch),
    SAME_PLACE(width_bytes, WidthInBytes),
    SAME_PLACE(height, Height),
    SAME_NUMBER(CUDA_FILE_NOT_FOUND, CUDA_ERROR_FILE_NOT_FOUND),
    SAME_NUMBER(CUDA_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
    SAME_NUMBER(CUDA_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    SAME_NUMBER(CUDA_COOPERATIVE_TOO_LARGE, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE),
    SAME_NUMBER(CUDA_POINTER_HOST_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER),
    SAME_NUMBER(CUDA_POINTER_BUFFER_ID, CU_POINTER_ATTRIBUTE_BUFFER_ID),
    SAME_NUMBER(CUDA_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR),
    SAME_NUMBER(CUDA_POINTER_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_SIZE),
    SAME_NUMBER(CUDA_ATTACH_GLOBAL, CU_MEM_ATTACH_GLOBAL),
    SAME_NUMBER(CUDA_ATTACH_HOST, CU_MEM_ATTACH_HOST),
    SAME_NUMBER(CUDA_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE),
    SAME_NUMBER(CUDA_HOST_MAPPED, CU_MEMHOSTALLOC_DEVICEMAP),
    SAME_NUMBER(CUDA_POOL_RESERVED_BYTES, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
    SAME_NUMBER(CUDA_POOL_RESERVED_MOST, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH),
    SAME_NUMBER(CUDA_POOL_USED_BYTES, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
    SAME_NUMBER(CUDA_POOL_USED_MOST, CU_MEMPOOL_ATTR_USED_MEM_HIGH),
};

static void types_have_the_drivers_layout(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        if (facts[i].ours != facts[i].theirs) fail_msg("%s: %zu here, %zu in cuda.h", facts[i].what, facts[i].ours, facts[i].theirs);
    }
}

#else

static void types_have_the_drivers_layout(void **state) {
    (void)state;
    print_message("skipped: cuda.h is not installed\n");
    skip();
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_have_the_drivers_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
