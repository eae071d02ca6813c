/* Of f16 pairs: halves, stores, and mma.sync that begins a sum (fragments: mma.cuh), one function an instruction. */
#ifndef KERNELS_GPU_PTX_HALF_CUH
#define KERNELS_GPU_PTX_HALF_CUH

#include "kernels/gpu/ptx/ldst.cuh"

/* The lower half of a pair (which 0) or the upper one, twice: no instruction where the pair is a factor. */
PTX uint32_t half_twice(uint32_t pair, const int which) {
    uint32_t twice;
    if (which == 0) asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {low, low};\n}" : "=r"(twice) : "r"(pair));
    else asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {high, high};\n}" : "=r"(twice) : "r"(pair));
    return twice;
}

/* Of four e4m3 codes the lower two (which 0) or the upper ones, exactly. */
PTX uint32_t halves_of_e4m3(uint32_t codes, const int which) {
    uint32_t pair;
    if (which == 0) asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}" : "=r"(pair) : "r"(codes));
    else asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}" : "=r"(pair) : "r"(codes));
    return pair;
}

PTX void st_shared_u32x2(uint32_t address, uint32_t x, uint32_t y) { asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory"); }

/* d = a b^T. */
PTX void mma_f16_first(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b_low, uint32_t b_high) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b_low), "r"(b_high), "f"(0.0f));
}

#endif
