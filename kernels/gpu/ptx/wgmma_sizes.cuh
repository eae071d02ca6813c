/* Products of further sizes by wgmma, beside those of wgmma.cuh, which says how operands and sums lie. */
#ifndef KERNELS_GPU_PTX_WGMMA_SIZES_CUH
#define KERNELS_GPU_PTX_WGMMA_SIZES_CUH

#include "kernels/gpu/ptx/wgmma.cuh"

#define WGMMA_D80 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_D112 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55"

#define WGMMA_IO40(d, i) WGMMA_IO32(d, i), WGMMA_IO8(d, i + 32)
#define WGMMA_IO56(d, i) WGMMA_IO32(d, i), WGMMA_IO16(d, i + 32), WGMMA_IO8(d, i + 48)

WGMMA_SHARED(112, 16, bf16, "bf16", 56, "%56", "%57", "%58", ", 0, 0")
WGMMA_SHARED(112, 16, f16, "f16", 56, "%56", "%57", "%58", ", 0, 0")

/* n80: the last columns are a quarter of the second 64, whose other places are not read. */
WGMMA_COLUMNS_TYPES(80, 40, "%40, %41, %42, %43", "%44", "%45")

#endif
