/* Our types of vendors' libraries beside their headers: sizes, numbers, and the type of every call, where the headers are found (the build says so:
 * HAVE_CUBLASLT_H). Without them nothing is compared, and the test says that it is skipped. */
#include "support/support.h"

#include "kernels/library/cublaslt_abi.h"

#ifdef HAVE_CUBLASLT_H

#include <cublasLt.h>

#define SAME_SIZE(ours, theirs) {#ours, sizeof(ours), sizeof(theirs)}
#define SAME_PLACE(ours, field, theirs, their_field) {#ours "." #field, offsetof(ours, field), offsetof(theirs, their_field)}
#define SAME_NUMBER(ours, theirs) {#ours, (size_t)(ours), (size_t)(theirs)}
static const struct { const char *what; size_t ours, theirs; } facts[] = {
    SAME_SIZE(cublaslt_status, cublasStatus_t),
    SAME_SIZE(cublaslt_type, cudaDataType_t),
    SAME_SIZE(cublaslt_compute, cublasComputeType_t),
    SAME_SIZE(cublaslt_desc_attribute, cublasLtMatmulDescAttributes_t),
    SAME_SIZE(cublaslt_layout_attribute, cublasLtMatrixLayoutAttribute_t),
    SAME_SIZE(cublaslt_preference_attribute, cublasLtMatmulPreferenceAttributes_t),
    SAME_SIZE(cublaslt_desc, cublasLtMatmulDesc_t),
    SAME_SIZE(cublaslt_algorithm, cublasLtMatmulAlgo_t),
    SAME_SIZE(cublaslt_candidate, cublasLtMatmulHeuristicResult_t),
    SAME_PLACE(cublaslt_candidate, workspace_bytes, cublasLtMatmulHeuristicResult_t, workspaceSize),
    SAME_PLACE(cublaslt_candidate, state, cublasLtMatmulHeuristicResult_t, state),
    SAME_PLACE(cublaslt_candidate, waves, cublasLtMatmulHeuristicResult_t, wavesCount),

    SAME_NUMBER(CUBLASLT_OK, CUBLAS_STATUS_SUCCESS),
    SAME_NUMBER(CUBLASLT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED),
    SAME_NUMBER(CUBLASLT_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED),
    SAME_NUMBER(CUBLASLT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE),
    SAME_NUMBER(CUBLASLT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED),
    SAME_NUMBER(CUBLASLT_F32, CUDA_R_32F),
    SAME_NUMBER(CUBLASLT_F16, CUDA_R_16F),
    SAME_NUMBER(CUBLASLT_BF16, CUDA_R_16BF),
    SAME_NUMBER(CUBLASLT_E4M3, CUDA_R_8F_E4M3),
    SAME_NUMBER(CUBLASLT_E5M2, CUDA_R_8F_E5M2),
    SAME_NUMBER(CUBLASLT_E2M1, CUDA_R_4F_E2M1),
    SAME_NUMBER(CUBLASLT_COMPUTE_F32, CUBLAS_COMPUTE_32F),
    SAME_NUMBER(CUBLASLT_PLAIN, CUBLAS_OP_N),
    SAME_NUMBER(CUBLASLT_TRANSPOSED, CUBLAS_OP_T),
    SAME_NUMBER(CUBLASLT_LAYOUT_BATCHES, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT),
    SAME_NUMBER(CUBLASLT_LAYOUT_BATCH_STRIDE, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET),
    SAME_NUMBER(CUBLASLT_DESC_TRANSPOSE_A, CUBLASLT_MATMUL_DESC_TRANSA),
    SAME_NUMBER(CUBLASLT_DESC_TRANSPOSE_B, CUBLASLT_MATMUL_DESC_TRANSB),
    SAME_NUMBER(CUBLASLT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE),
    SAME_NUMBER(CUBLASLT_DESC_BIAS, CUBLASLT_MATMUL_DESC_BIAS_POINTER),
    SAME_NUMBER(CUBLASLT_DESC_SCALES_A, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER),
    SAME_NUMBER(CUBLASLT_DESC_SCALES_B, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER),
    SAME_NUMBER(CUBLASLT_DESC_BIAS_TYPE, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE),
    SAME_NUMBER(CUBLASLT_DESC_SCALE_MODE_A, CUBLASLT_MATMUL_DESC_A_SCALE_MODE),
    SAME_NUMBER(CUBLASLT_DESC_SCALE_MODE_B, CUBLASLT_MATMUL_DESC_B_SCALE_MODE),
    SAME_NUMBER(CUBLASLT_SCALE_ONE, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F),
    SAME_NUMBER(CUBLASLT_SCALE_16_E4M3, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3),
    SAME_NUMBER(CUBLASLT_SCALE_32_E8M0, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0),
    SAME_NUMBER(CUBLASLT_SCALE_EACH, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F),
    SAME_NUMBER(CUBLASLT_SCALE_1X128, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F),
    SAME_NUMBER(CUBLASLT_SCALE_128X128, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F),
    SAME_NUMBER(CUBLASLT_POST_NONE, CUBLASLT_EPILOGUE_DEFAULT),
    SAME_NUMBER(CUBLASLT_POST_RELU | CUBLASLT_POST_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS),
    SAME_NUMBER(CUBLASLT_POST_GELU | CUBLASLT_POST_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS),
    SAME_NUMBER(CUBLASLT_PREFER_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES),
    SAME_NUMBER(CUBLASLT_PREFER_REDUCTIONS, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK),
    SAME_NUMBER(CUBLASLT_REDUCTION_F32, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE),
    SAME_NUMBER(CUBLASLT_PREFER_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES),
    SAME_NUMBER(CUBLASLT_PREFER_ALIGNMENT_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES),
    SAME_NUMBER(CUBLASLT_PREFER_ALIGNMENT_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES),
    SAME_NUMBER(CUBLASLT_PREFER_ALIGNMENT_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES),
};

static void types_are_the_libraries(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        if (facts[i].ours == facts[i].theirs) continue;
        fail_msg("%s: %zu here, %zu in the header", facts[i].what, facts[i].ours, facts[i].theirs);
    }
}

#else

static void types_are_the_libraries(void **state) {
    (void)state;
    print_message("skipped: cublasLt.h is not installed\n");
    skip();
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_are_the_libraries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
