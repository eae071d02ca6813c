/* The types and numbers that the calls of cudnn.def take, as the library has them since 9.0, so that no header of it is needed to build. tests/device/test_library_abi.c
 * holds them against cudnn.h where that is installed. Defines nothing that runs. */
#ifndef KERNELS_LIBRARY_CUDNN_ABI_H
#define KERNELS_LIBRARY_CUDNN_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef struct cudnn_handle_st *cudnn_handle;
typedef void *cudnn_desc;             /* of any kind; attributes are set one by one, then it is finalized */

typedef enum cudnn_status {
    CUDNN_OK = 0,
    CUDNN_BAD_PARAM = 2000,
    CUDNN_NOT_SUPPORTED = 3000,       /* and what else is from there to 3999 */
    CUDNN_HOST_MEMORY = 4003,
    CUDNN_DEVICE_MEMORY = 4004
} cudnn_status;

typedef enum cudnn_kind {
    CUDNN_POINTWISE = 0,
    CUDNN_ENGINE_CONFIG = 3,
    CUDNN_HEURISTICS = 4,
    CUDNN_PLAN = 5,
    CUDNN_OPERATION_POINTWISE = 13,
    CUDNN_OPERATION_GRAPH = 15,
    CUDNN_VARIANT_PACK = 16,
    CUDNN_TENSOR = 17,
    CUDNN_MATMUL = 18,
    CUDNN_OPERATION_MATMUL = 19,
    CUDNN_REDUCTION = 21,
    CUDNN_OPERATION_REDUCTION = 22
} cudnn_kind;

/* Of the values of an attribute, with how C has one of them. */
typedef enum cudnn_type {
    CUDNN_AS_HANDLE = 0,            /* cudnn_handle */
    CUDNN_AS_DATA = 1,              /* cudnn_data */
    CUDNN_AS_BOOL = 2,              /* bool */
    CUDNN_AS_INT64 = 3,
    CUDNN_AS_ADDRESS = 6,           /* void * */
    CUDNN_AS_HEURISTIC = 8,         /* cudnn_heuristic */
    CUDNN_AS_POINTWISE = 14,        /* cudnn_pointwise */
    CUDNN_AS_DESC = 15,             /* cudnn_desc */
    CUDNN_AS_REDUCTION = 18         /* cudnn_reduction */
} cudnn_type;

typedef enum cudnn_attribute {
    CUDNN_POINTWISE_MODE = 0,
    CUDNN_POINTWISE_MATH = 1,
    CUDNN_POINTWISE_AXIS = 9,
    CUDNN_HEURISTICS_MODE = 200,
    CUDNN_HEURISTICS_GRAPH = 201,
    CUDNN_HEURISTICS_RESULTS = 202,
    CUDNN_PLAN_HANDLE = 400,
    CUDNN_PLAN_CONFIG = 401,
    CUDNN_PLAN_WORKSPACE_BYTES = 402,
    CUDNN_OPERATION_POINTWISE_DESC = 750,
    CUDNN_OPERATION_POINTWISE_X = 751,
    CUDNN_OPERATION_POINTWISE_B = 752,
    CUDNN_OPERATION_POINTWISE_Y = 753,
    CUDNN_OPERATION_POINTWISE_T = 758,
    CUDNN_GRAPH_HANDLE = 800,
    CUDNN_GRAPH_OPERATIONS = 801,
    CUDNN_TENSOR_ALIGNMENT = 900,
    CUDNN_TENSOR_DATA = 901,
    CUDNN_TENSOR_DIMS = 902,
    CUDNN_TENSOR_STRIDES = 903,
    CUDNN_TENSOR_ID = 906,
    CUDNN_TENSOR_IS_VIRTUAL = 907,
    CUDNN_TENSOR_IS_BY_VALUE = 908,
    CUDNN_PACK_IDS = 1000,
    CUDNN_PACK_ADDRESSES = 1001,
    CUDNN_PACK_WORKSPACE = 1003,
    CUDNN_MATMUL_MATH = 1500,
    CUDNN_OPERATION_MATMUL_A = 1520,
    CUDNN_OPERATION_MATMUL_B = 1521,
    CUDNN_OPERATION_MATMUL_C = 1522,
    CUDNN_OPERATION_MATMUL_DESC = 1523,
    CUDNN_REDUCTION_MODE = 1600,
    CUDNN_REDUCTION_MATH = 1601,
    CUDNN_OPERATION_REDUCTION_X = 1610,
    CUDNN_OPERATION_REDUCTION_Y = 1611,
    CUDNN_OPERATION_REDUCTION_DESC = 1612
} cudnn_attribute;

typedef enum cudnn_data { CUDNN_F32 = 0, CUDNN_F16 = 2, CUDNN_I32 = 4, CUDNN_BF16 = 9, CUDNN_BOOL = 11 } cudnn_data;
typedef enum cudnn_heuristic { CUDNN_HEURISTIC_FALLBACK = 2, CUDNN_HEURISTIC_A = 3 } cudnn_heuristic;
typedef enum cudnn_reduction { CUDNN_SUM = 0, CUDNN_MAX = 3 } cudnn_reduction;
typedef enum cudnn_pointwise {
    CUDNN_ADD = 0,
    CUDNN_MUL = 1,
    CUDNN_DIV = 6,
    CUDNN_SUB = 9,
    CUDNN_EXP = 13,
    CUDNN_LOG = 15,
    CUDNN_GREATER = 302,
    CUDNN_NOT_LESS = 303,
    CUDNN_INDEX = 501,                /* along the axis */
    CUDNN_SELECT = 601                /* t ? x : b */
} cudnn_pointwise;

#endif
