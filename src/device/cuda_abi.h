/* Types of the calls of cuda.def, with the driver's layout, so that no header of the toolkit is needed to build.
 * tests/device/test_cuda_abi.c holds every size, offset and number against cuda.h where that is installed. Defines nothing that runs. */
#ifndef DEVICE_CUDA_ABI_H
#define DEVICE_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef struct cuda_context_st *cuda_context;
typedef struct cuda_library_st *cuda_library;
typedef struct cuda_kernel_st *cuda_kernel;
typedef struct cuda_function_st *cuda_function;
typedef struct cuda_stream_st *cuda_stream;         /* NULL: the legacy default stream */
typedef struct cuda_event_st *cuda_event;
typedef struct cuda_graph_st *cuda_graph;
typedef struct cuda_node_st *cuda_node;
typedef struct cuda_graph_exec_st *cuda_graph_exec;
typedef struct cuda_memory_pool_st *cuda_memory_pool;
typedef struct cuda_log_handle_st *cuda_log_handle;
typedef struct cuda_array_st *cuda_array_object;
typedef int cuda_device;
typedef uint64_t cuda_pointer;
typedef struct cuda_uuid { char bytes[16]; } cuda_uuid;

typedef enum cuda_result {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_INITIALIZED = 3,
    CUDA_STUB_LIBRARY = 34,
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_IMAGE = 200,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_NO_BINARY_FOR_GPU = 209,
    CUDA_INVALID_PTX = 218,
    CUDA_JIT_COMPILER_NOT_FOUND = 221,
    CUDA_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_INVALID_HANDLE = 400,
    CUDA_NOT_FOUND = 500,
    CUDA_NOT_READY = 600,
    CUDA_ILLEGAL_ADDRESS = 700,
    CUDA_LAUNCH_OUT_OF_RESOURCES = 701,
    CUDA_ASSERT = 710,
    CUDA_ILLEGAL_INSTRUCTION = 715,
    CUDA_MISALIGNED_ADDRESS = 716,
    CUDA_LAUNCH_FAILED = 719,
    CUDA_NOT_SUPPORTED = 801,
    CUDA_CAPTURE_UNSUPPORTED = 900,
    CUDA_CAPTURE_INVALIDATED = 901,
    CUDA_UPDATE_FAILURE = 910,
    CUDA_INVALID_CLUSTER_SIZE = 912,
    CUDA_UNKNOWN = 999
} cuda_result;

typedef enum cuda_symbol_status { CUDA_SYMBOL_FOUND = 0, CUDA_SYMBOL_NOT_FOUND = 1, CUDA_SYMBOL_TOO_OLD = 2 } cuda_symbol_status;
typedef enum cuda_log_level { CUDA_LOG_ERROR = 0, CUDA_LOG_WARNING = 1 } cuda_log_level;
typedef void (*cuda_log_callback)(void *user, cuda_log_level level, char *message, size_t length);

typedef enum cuda_device_attribute {
    CUDA_DEVICE_MAX_THREADS_PER_BLOCK = 1,
    CUDA_DEVICE_MAX_GRID_X = 5,
    CUDA_DEVICE_MAX_GRID_Y = 6,
    CUDA_DEVICE_MAX_GRID_Z = 7,
    CUDA_DEVICE_CLOCK_KHZ = 13,
    CUDA_DEVICE_MULTIPROCESSORS = 16,
    CUDA_DEVICE_MEMORY_CLOCK_KHZ = 36,
    CUDA_DEVICE_MEMORY_BUS_BITS = 37,
    CUDA_DEVICE_L2_BYTES = 38,
    CUDA_DEVICE_UNIFIED_ADDRESSING = 41,
    CUDA_DEVICE_CAPABILITY_MAJOR = 75,
    CUDA_DEVICE_CAPABILITY_MINOR = 76,
    CUDA_DEVICE_SHARED_BYTES_PER_MULTIPROCESSOR = 81,
    CUDA_DEVICE_SHARED_BYTES_PER_BLOCK = 97,       /* with opting in */
    CUDA_DEVICE_MEMORY_POOLS = 115,
    CUDA_DEVICE_CLUSTER_LAUNCH = 120
} cuda_device_attribute;

typedef enum cuda_function_attribute {
    CUDA_FUNCTION_MAX_THREADS = 0,
    CUDA_FUNCTION_SHARED_BYTES = 1,                /* static */
    CUDA_FUNCTION_LOCAL_BYTES = 3,                 /* spills and stack of a thread */
    CUDA_FUNCTION_REGISTERS = 4,
    CUDA_FUNCTION_PTX_VERSION = 5,
    CUDA_FUNCTION_BINARY_VERSION = 6,
    CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES = 8,
    CUDA_FUNCTION_NON_PORTABLE_CLUSTER = 14
} cuda_function_attribute;

enum { CUDA_STREAM_NON_BLOCKING = 1, CUDA_EVENT_BLOCKING = 1, CUDA_EVENT_NO_TIMING = 2 };

/* ---- memory ---- */

typedef enum cuda_memory_type { CUDA_MEMORY_HOST = 1, CUDA_MEMORY_DEVICE = 2, CUDA_MEMORY_ARRAY = 3, CUDA_MEMORY_UNIFIED = 4 } cuda_memory_type;
typedef enum cuda_pointer_attribute {
    CUDA_POINTER_CONTEXT = 1,
    CUDA_POINTER_MEMORY_TYPE = 2,                  /* unsigned: cuda_memory_type */
    CUDA_POINTER_DEVICE_POINTER = 3,
    CUDA_POINTER_IS_MANAGED = 8,                   /* unsigned */
    CUDA_POINTER_DEVICE_ORDINAL = 9                /* int */
} cuda_pointer_attribute;

typedef enum cuda_memory_pool_attribute { CUDA_POOL_RELEASE_THRESHOLD = 4 } cuda_memory_pool_attribute;   /* uint64_t */
typedef struct cuda_memory_pool_props {
    int allocation_type;                           /* 1: pinned */
    int handle_types;
    int location_type, location_id;                /* 1: a device, by its ordinal */
    void *windows_security;
    size_t max_bytes;
    unsigned short usage;
    unsigned char reserved[54];
} cuda_memory_pool_props;
enum { CUDA_ALLOCATION_PINNED = 1, CUDA_LOCATION_DEVICE = 1 };

/* ---- launching ---- */

typedef enum cuda_launch_attribute_id {
    CUDA_LAUNCH_IGNORE = 0,
    CUDA_LAUNCH_COOPERATIVE = 2,
    CUDA_LAUNCH_CLUSTER = 4,
    CUDA_LAUNCH_PRIORITY = 8,
    CUDA_LAUNCH_PREFERRED_CLUSTER = 11
} cuda_launch_attribute_id;

typedef union cuda_launch_value {
    char pad[64];
    int cooperative;
    struct { unsigned x, y, z; } cluster;          /* also of the preferred cluster */
    int priority;
} cuda_launch_value;

typedef struct cuda_launch_attribute {
    cuda_launch_attribute_id id;
    char pad[8 - sizeof(cuda_launch_attribute_id)];
    cuda_launch_value value;
} cuda_launch_attribute;

typedef struct cuda_launch_config {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    cuda_stream stream;
    cuda_launch_attribute *attributes;
    unsigned attribute_count;
} cuda_launch_config;

/* ---- tensor maps ---- */

typedef struct cuda_tensor_map { _Alignas(128) uint64_t opaque[16]; } cuda_tensor_map;
typedef enum cuda_tensor_type {
    CUDA_TENSOR_U8 = 0,
    CUDA_TENSOR_U16,
    CUDA_TENSOR_U32,
    CUDA_TENSOR_I32,
    CUDA_TENSOR_U64,
    CUDA_TENSOR_I64,
    CUDA_TENSOR_F16,
    CUDA_TENSOR_F32,
    CUDA_TENSOR_F64,
    CUDA_TENSOR_BF16,
    CUDA_TENSOR_F32_FTZ,
    CUDA_TENSOR_TF32,
    CUDA_TENSOR_TF32_FTZ,
    CUDA_TENSOR_16U4_ALIGN8,                       /* 16 4-bit elements in 8 bytes of shared memory */
    CUDA_TENSOR_16U4_ALIGN16,
    CUDA_TENSOR_16U6_ALIGN16
} cuda_tensor_type;
typedef enum cuda_tensor_interleave { CUDA_INTERLEAVE_NONE = 0, CUDA_INTERLEAVE_16, CUDA_INTERLEAVE_32 } cuda_tensor_interleave;
typedef enum cuda_tensor_swizzle {
    CUDA_SWIZZLE_NONE = 0,
    CUDA_SWIZZLE_32,
    CUDA_SWIZZLE_64,
    CUDA_SWIZZLE_128,
    CUDA_SWIZZLE_128_ATOM_32,
    CUDA_SWIZZLE_128_ATOM_32_FLIP_8,
    CUDA_SWIZZLE_128_ATOM_64
} cuda_tensor_swizzle;
typedef enum cuda_tensor_promotion { CUDA_PROMOTION_NONE = 0, CUDA_PROMOTION_64, CUDA_PROMOTION_128, CUDA_PROMOTION_256 } cuda_tensor_promotion;
typedef enum cuda_tensor_fill { CUDA_FILL_ZERO = 0, CUDA_FILL_NAN = 1 } cuda_tensor_fill;

/* ---- graphs ---- */

typedef enum cuda_capture_status { CUDA_CAPTURE_NONE = 0, CUDA_CAPTURE_ACTIVE = 1, CUDA_CAPTURE_BROKEN = 2 } cuda_capture_status;
typedef enum cuda_capture_mode { CUDA_CAPTURE_GLOBAL = 0, CUDA_CAPTURE_THREAD_LOCAL = 1, CUDA_CAPTURE_RELAXED = 2 } cuda_capture_mode;
enum { CUDA_CAPTURE_ADD_DEPENDENCIES = 0, CUDA_CAPTURE_SET_DEPENDENCIES = 1 };

typedef enum cuda_node_type { CUDA_NODE_KERNEL = 0, CUDA_NODE_MEMCPY = 1, CUDA_NODE_MEMSET = 2, CUDA_NODE_GRAPH = 4, CUDA_NODE_EMPTY = 5, CUDA_NODE_EVENT = 7 } cuda_node_type;

/* from_port of a programmatic edge: the trigger of the kernel before; type: programmatic. All zeros: a full dependency. */
typedef struct cuda_edge { unsigned char from_port, to_port, type, reserved[5]; } cuda_edge;
enum { CUDA_PORT_PROGRAMMATIC = 1, CUDA_EDGE_PROGRAMMATIC = 1 };

typedef struct cuda_kernel_node {
    cuda_function function;                        /* or NULL, and kernel and context */
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    void **parameters, **extra;
    cuda_kernel kernel;
    cuda_context context;
} cuda_kernel_node;

typedef struct cuda_copy {
    size_t from_x_bytes, from_y, from_z, from_lod;
    cuda_memory_type from_type;
    const void *from_host;
    cuda_pointer from_device;
    cuda_array_object from_array;
    void *reserved0;
    size_t from_pitch, from_height;
    size_t to_x_bytes, to_y, to_z, to_lod;
    cuda_memory_type to_type;
    void *to_host;
    cuda_pointer to_device;
    cuda_array_object to_array;
    void *reserved1;
    size_t to_pitch, to_height;
    size_t width_bytes, height, depth;
} cuda_copy;

typedef struct cuda_memcpy_node { int flags, reserved; cuda_context context; cuda_copy copy; } cuda_memcpy_node;

typedef struct cuda_memset_v1 { cuda_pointer to; size_t pitch; unsigned value, element_bytes; size_t width, height; } cuda_memset_v1;
typedef struct cuda_memset_node { cuda_pointer to; size_t pitch; unsigned value, element_bytes; size_t width, height; cuda_context context; } cuda_memset_node;

typedef struct cuda_node_params {
    cuda_node_type type;
    int reserved0[3];
    union {
        long long reserved1[29];
        cuda_kernel_node kernel;
        cuda_memcpy_node memcpy;
        cuda_memset_node memset;
        struct { cuda_graph graph; int ownership; } graph;
        struct { cuda_event event; } record;       /* of CUDA_NODE_EVENT */
    };
    long long reserved2;
} cuda_node_params;

typedef struct cuda_instantiate_params {
    uint64_t flags;
    cuda_stream upload_stream;
    cuda_node failed_node;                         /* written by the driver */
    int result;                                    /* 0: done; else why not */
} cuda_instantiate_params;
enum { CUDA_INSTANTIATE_UPLOAD = 2 };

typedef struct cuda_update_result { int result; cuda_node failed_node, failed_from_node; } cuda_update_result;

#endif
