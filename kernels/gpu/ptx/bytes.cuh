/* Bytes in words: chosen with their signs, multiplied and added, and short reads of shared memory, one function an instruction. */
#ifndef KERNELS_GPU_PTX_BYTES_CUH
#define KERNELS_GPU_PTX_BYTES_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* Of {high, low} the bytes that the selector's lower four nibbles name; where a nibble's bit 3 is set, all bits of its byte are the sign of the one that the others name. */
PTX uint32_t prmt_signs(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
    return bytes;
}

/* Four products of signed bytes, and sum. */
PTX int32_t dp4a(uint32_t x, uint32_t y, int32_t sum) {
    int32_t all;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(all) : "r"(x), "r"(y), "r"(sum));
    return all;
}

PTX uint32_t ld_shared_u8(uint32_t address) {
    uint16_t x;
    asm volatile("ld.shared.u8 %0, [%1];" : "=h"(x) : "r"(address) : "memory");
    return x;
}
PTX uint32_t ld_shared_u16(uint32_t address) {
    uint16_t x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address) : "memory");
    return x;
}

#endif
