/* Types and numbers of the driver's interface that the calls of other_calls.def take and those of device/cuda.def do not. tests/sim/test_other_calls.c holds them against cuda.h. */
#ifndef SIM_DRIVER_OTHER_CALLS_H
#define SIM_DRIVER_OTHER_CALLS_H

#include "device/cuda_abi.h"

/* Results beside those of device/cuda_abi.h, of the same enum. */
#define CUDA_FILE_NOT_FOUND ((cuda_result)301)
#define CUDA_COOPERATIVE_TOO_LARGE ((cuda_result)720)
#define CUDA_ALREADY_REGISTERED ((cuda_result)712)
#define CUDA_NOT_REGISTERED ((cuda_result)713)

enum { CUDA_POINTER_HOST_POINTER = 4, CUDA_POINTER_BUFFER_ID = 7, CUDA_POINTER_RANGE_START = 11, CUDA_POINTER_RANGE_SIZE = 12 };
enum { CUDA_ATTACH_GLOBAL = 1, CUDA_ATTACH_HOST = 2, CUDA_HOST_PORTABLE = 1, CUDA_HOST_MAPPED = 2 };
/* Attributes of pools that can only be read: uint64_t. Those below are flags, int. */
enum { CUDA_POOL_RESERVED_BYTES = 5, CUDA_POOL_RESERVED_MOST, CUDA_POOL_USED_BYTES, CUDA_POOL_USED_MOST };

typedef struct cuda_memory_location { int type, id; } cuda_memory_location;

typedef struct cuda_copy_2d {
    size_t from_x_bytes, from_y;
    cuda_memory_type from_type;
    const void *from_host;
    cuda_pointer from_device;
    cuda_array_object from_array;
    size_t from_pitch;
    size_t to_x_bytes, to_y;
    cuda_memory_type to_type;
    void *to_host;
    cuda_pointer to_device;
    cuda_array_object to_array;
    size_t to_pitch;
    size_t width_bytes, height;
} cuda_copy_2d;

typedef void (*cuda_host_function)(void *user);
typedef void (*cuda_stream_callback)(cuda_stream stream, cuda_result result, void *user);

#endif
