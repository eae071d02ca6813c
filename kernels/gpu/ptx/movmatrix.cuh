/* movmatrix (PTX ISA 9.7.14.5.17): transposes what products leave in registers, so that it is an operand of the next one. */
#ifndef KERNELS_GPU_PTX_MOVMATRIX_CUH
#define KERNELS_GPU_PTX_MOVMATRIX_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* The matrix of 8x8 16-bit elements of which lane l has elements 2 (l % 4) and the next of row l / 4, transposed. */
PTX uint32_t movmatrix_transposed(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

#endif
