/* Products of 2 to 16 rows with weights in bf16 and f16 (panel.cuh). */
#include "kernels/gemm/skinny/panel.cuh"

PANEL_ENTRY(matmul_panel_bf16_m8, SKINNY_BF16, 1)
PANEL_ENTRY(matmul_panel_bf16_m16, SKINNY_BF16, 2)
PANEL_ENTRY(matmul_panel_f16_m8, SKINNY_F16, 1)
PANEL_ENTRY(matmul_panel_f16_m16, SKINNY_F16, 2)
