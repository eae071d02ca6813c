/* Loads, stores and conversions that C has no word for, one function an instruction. */
#ifndef KERNELS_GPU_PTX_LDST_CUH
#define KERNELS_GPU_PTX_LDST_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

/* Four 8x8 matrices of 16-bit elements: lane l names row l % 8 of matrix l / 8 and holds elements 2 (l % 4) and the next of row l / 4 of each. */
PTX void stmatrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

/* The same matrices, read: lane l names row l % 8 of matrix l / 8 and gets elements 2 (l % 4) and the next of row l / 4 of each; */
PTX uint4 ldmatrix_x4(uint32_t address) {
    uint4 x;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
    return x;
}
/* .. or of rows 2 (l % 4) and the next, element l / 4. */
PTX uint4 ldmatrix_x4_transposed(uint32_t address) {
    uint4 x;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
    return x;
}

PTX void st_shared_f32x2(uint32_t address, float x, float y) { asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory"); }
PTX void st_shared_f32x4(uint32_t address, float x, float y, float z, float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
PTX void st_shared_u16(uint32_t address, uint16_t x) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(x) : "memory"); }
PTX void st_shared_u32(uint32_t address, uint32_t x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory"); }
PTX void st_shared_u32x4(uint32_t address, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
PTX uint4 ld_shared_u32x4(uint32_t address) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
    return x;
}
PTX uint32_t ld_shared_u32(uint32_t address) {
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}
PTX float ld_shared_f32(uint32_t address) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
}
PTX void st_global_f32(uint64_t address, float x) { asm volatile("st.global.f32 [%0], %1;" ::"l"(address), "f"(x) : "memory"); }
PTX void st_shared_f32(uint32_t address, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory"); }
PTX float2 ld_shared_f32x2(uint32_t address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}
/* address: in the cluster's window, see cluster_map. */
PTX void st_cluster_f32(uint32_t address, float x) { asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory"); }
/* The same of 8 bytes at a later time; the barrier, which is in the same block, gets them. */
PTX void st_async_u32x2(uint32_t address, uint32_t x, uint32_t y, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(address), "r"(x), "r"(y), "r"(barrier) : "memory");
}
PTX float ld_cluster_f32(uint32_t address) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
}
PTX float2 ld_cluster_f32x2(uint32_t address) {
    float2 x;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}
PTX float4 ld_cluster_f32x4(uint32_t address) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(address) : "memory");
    return x;
}

/* Packed pairs, low in the lower half; rounded to nearest even. */
PTX uint32_t cvt_bf16x2(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
PTX uint32_t cvt_f16x2(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
/* Two e4m3 codes, exactly. */
PTX uint32_t cvt_f16x2_e4m3x2(uint16_t codes) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
    return pair;
}
PTX uint32_t cvt_f16x2_e5m2x2(uint16_t codes) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(codes));
    return pair;
}
PTX float cvt_f32_f16(uint16_t half) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
}
/* Products of bf16 pairs. */
PTX uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t pair;
    asm("mul.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}
PTX uint32_t add_bf16x2(uint32_t a, uint32_t b) {
    uint32_t pair;
    asm("add.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}
PTX uint32_t sub_bf16x2(uint32_t a, uint32_t b) {
    uint32_t pair;
    asm("sub.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}
PTX uint32_t add_f16x2(uint32_t a, uint32_t b) {
    uint32_t pair;
    asm("add.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}
PTX uint32_t sub_f16x2(uint32_t a, uint32_t b) {
    uint32_t pair;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}
PTX uint32_t mul_f16x2(uint32_t a, uint32_t b) {
    uint32_t pair;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}
/* Asks for the line of global memory around address. */
PTX void prefetch_l2(uint64_t address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }
/* Asks for so many bytes of it; the address and bytes are multiples of 16. */
PTX void prefetch_bytes(const void *from, uint32_t bytes) { asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory"); }
/* Bytes of {high, low} that the nibbles of selector name. */
PTX uint32_t prmt(uint32_t low, uint32_t high, uint32_t selector) { return __byte_perm(low, high, selector); }

/* Asynchronous copies of 4, 8 or 16 bytes into shared memory; of these only valid bytes are read, zeros fill the rest. */
#define cp_async(to, from, size, valid)                                                                                                  \
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(size), "r"(valid) : "memory")
/* 16 bytes (valid 16; or zeros, valid 0) that leave no trace in L1. */
PTX void cp_async_stream(uint32_t to, const void *from, int valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}
PTX void cp_async_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until all but pending groups of this thread are done. */
#define cp_async_wait(pending) asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory")
/* One arrival that was counted in the barrier's number, once the copies of this thread up to here are done. */
PTX void cp_async_arrive(uint32_t barrier) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory"); }

#endif
