/* The types that the calls of cublaslt.def take, with the layout that the library gives them, so that no header of it is needed to build. tests/device/test_library_abi.c
 * holds them against cublasLt.h where that is installed. Defines nothing that runs. */
#ifndef KERNELS_LIBRARY_CUBLASLT_ABI_H
#define KERNELS_LIBRARY_CUBLASLT_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef struct cublaslt_handle_st *cublaslt_handle;
typedef struct cublaslt_desc_st *cublaslt_desc;
typedef struct cublaslt_layout_st *cublaslt_layout;
typedef struct cublaslt_preference_st *cublaslt_preference;

typedef enum cublaslt_status {
    CUBLASLT_OK = 0,
    CUBLASLT_NOT_INITIALIZED = 1,
    CUBLASLT_ALLOC_FAILED = 3,
    CUBLASLT_INVALID_VALUE = 7,
    CUBLASLT_NOT_SUPPORTED = 15
} cublaslt_status;

typedef enum cublaslt_type { CUBLASLT_F32 = 0, CUBLASLT_F16 = 2, CUBLASLT_BF16 = 14, CUBLASLT_E4M3 = 28, CUBLASLT_E5M2 = 29, CUBLASLT_E2M1 = 33 } cublaslt_type;
typedef enum cublaslt_compute { CUBLASLT_COMPUTE_F32 = 68 } cublaslt_compute;
enum { CUBLASLT_PLAIN = 0, CUBLASLT_TRANSPOSED = 1 };

typedef enum cublaslt_layout_attribute { CUBLASLT_LAYOUT_BATCHES = 5, CUBLASLT_LAYOUT_BATCH_STRIDE = 6 } cublaslt_layout_attribute;   /* int32_t; int64_t, in elements */

typedef enum cublaslt_desc_attribute {
    CUBLASLT_DESC_TRANSPOSE_A = 3,    /* int32_t */
    CUBLASLT_DESC_TRANSPOSE_B = 4,
    CUBLASLT_DESC_EPILOGUE = 7,       /* uint32_t */
    CUBLASLT_DESC_BIAS = 8,           /* an address */
    CUBLASLT_DESC_SCALES_A = 17,
    CUBLASLT_DESC_SCALES_B = 18,
    CUBLASLT_DESC_BIAS_TYPE = 26,     /* int32_t */
    CUBLASLT_DESC_SCALE_MODE_A = 31,
    CUBLASLT_DESC_SCALE_MODE_B = 32
} cublaslt_desc_attribute;

typedef enum cublaslt_scale_mode {
    CUBLASLT_SCALE_ONE = 0,           /* fp32, for the whole matrix */
    CUBLASLT_SCALE_16_E4M3 = 1,       /* for 16 and 32 elements along k, in tiles of 128 x 4 */
    CUBLASLT_SCALE_32_E8M0 = 2,
    CUBLASLT_SCALE_EACH = 3,          /* fp32, for each row of a or column of b */
    CUBLASLT_SCALE_1X128 = 4,         /* fp32, by block: the rows' index runs fastest */
    CUBLASLT_SCALE_128X128 = 5        /* fp32, by block: the index along k runs fastest, of a size that is a multiple of 4 */
} cublaslt_scale_mode;

/* RELU and GELU (its tanh form) come behind the bias, whose elements go with the rows of d. */
typedef enum cublaslt_epilogue { CUBLASLT_POST_NONE = 1, CUBLASLT_POST_RELU = 2, CUBLASLT_POST_BIAS = 4, CUBLASLT_POST_GELU = 32 } cublaslt_epilogue;

typedef enum cublaslt_preference_attribute {
    CUBLASLT_PREFER_WORKSPACE_BYTES = 1,   /* uint64_t: at most */
    CUBLASLT_PREFER_REDUCTIONS = 3,        /* uint32_t: how parts of sums over k may be added, joined */
    CUBLASLT_PREFER_ALIGNMENT_A = 5,       /* uint32_t: bytes, at least */
    CUBLASLT_PREFER_ALIGNMENT_B = 6,
    CUBLASLT_PREFER_ALIGNMENT_C = 7,
    CUBLASLT_PREFER_ALIGNMENT_D = 8
} cublaslt_preference_attribute;

enum { CUBLASLT_REDUCTION_F32 = 2 };      /* in the type that sums have; others add in the result's */

typedef struct cublaslt_algorithm { uint64_t opaque[8]; } cublaslt_algorithm;
typedef struct cublaslt_candidate {
    cublaslt_algorithm algorithm;
    size_t workspace_bytes;
    cublaslt_status state;            /* not OK: this candidate is none */
    float waves;
    int reserved[4];
} cublaslt_candidate;

#endif
