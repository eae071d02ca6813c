/* Arguments that are read before they are wanted. */
#ifndef KERNELS_GPU_PTX_LINES_CUH
#define KERNELS_GPU_PTX_LINES_CUH

#include <stdint.h>

/* Reads a word of each line of 64 bytes of a kernel's arguments, which come from memory the first time, so that they come side by side. */
static __device__ __forceinline__ void touch_lines(const void *arguments, const int bytes) {
#pragma unroll
    for (int i = 0; i < bytes; i += 64) {
        const int word = *(const int *)((const uint8_t *)arguments + i);
        asm volatile("" ::"r"(word));
    }
}

#endif
