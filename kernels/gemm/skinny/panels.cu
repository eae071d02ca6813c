/* Products of 2 to 16 rows with weights in bf16 and f16, panels one after another (panels.cuh). */
#include "kernels/gemm/skinny/panels.cuh"

PANELS_ENTRY(matmul_panels_bf16_m8, SKINNY_BF16, 1)
PANELS_ENTRY(matmul_panels_bf16_m16, SKINNY_BF16, 2)
PANELS_ENTRY(matmul_panels_f16_m8, SKINNY_F16, 1)
PANELS_ENTRY(matmul_panels_f16_m16, SKINNY_F16, 2)
