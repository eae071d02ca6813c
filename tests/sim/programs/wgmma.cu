// Products of a warpgroup from shared memory without swizzle: bf16, f16 and e4m3, onto zeros and onto earlier results; bulk copies with an mbarrier bring the
// operands, as bytes of the input. Results are the matrix unit's own roundings.
// launch: block=128
// in: random 4096
// vector: wgmma
// out: 49152
#include <cstdint>

__device__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ uint64_t descriptor(const void *p, uint32_t leading, uint32_t stride) {
    return (uint64_t)(shared_address(p) >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32;
}

#define WGMMA(shape, types, tail)                                                                                                                       \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned." shape ".f32." types " {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1" tail "; }" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])                                      \
                 : "l"(a), "l"(b), "r"(onto))

// Random bits as numbers of moderate size: the exponent of a 16-bit float is kept near its middle.
__device__ uint32_t tame(uint32_t word, int kind) {
    if (kind == 0) return (word & 0x83ff83ff) | 0x3c003c00;                  // bf16: 2^-8 to 2^-1, about
    if (kind == 1) return (word & 0x8fff8fff) | 0x30003000;                  // f16: 2^-3 to 2^0
    return word & 0xbfbfbfbf;                                                // e4m3: below 2
}

extern "C" __global__ __launch_bounds__(128) void test(float *out, const uint32_t *in) {
    __shared__ __align__(1024) uint32_t left[64 * 8], right[16 * 8];         // 64 and 16 rows of 32 bytes, in cores of 8 rows x 16 bytes
    __shared__ __align__(8) uint64_t arrived;
    int thread = threadIdx.x;
    if (thread == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(shared_address(&arrived)));
    __syncthreads();
    for (int round = 0; round < 12; round++) {
        int kind = round % 3;
        const uint32_t *from = in + round * 256;
        if (thread == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 2560;" :: "r"(shared_address(&arrived)));
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 2048, [%2];" :: "r"(shared_address(left)), "l"(from), "r"(shared_address(&arrived)) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];" :: "r"(shared_address(right)), "l"(from + 600), "r"(shared_address(&arrived)) : "memory");
        }
        asm volatile("{ .reg .pred p; wait: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra wait; }" :: "r"(shared_address(&arrived)), "r"(round & 1) : "memory");
        for (int i = thread; i < 512; i += 128) left[i] = tame(left[i], kind);
        for (int i = thread; i < 128; i += 128) right[i] = tame(right[i], kind);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        float d[8] = {0};
        uint64_t a = descriptor(left, 128, 256), b = descriptor(right, 128, 256);
        for (int again = 0; again < 2; again++) {
            int onto = again;
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            if (kind == 0) WGMMA("m64n16k16", "bf16.bf16", ", 0, 0");
            else if (kind == 1) WGMMA("m64n16k16", "f16.f16", ", 0, 0");
            else WGMMA("m64n16k32", "e4m3.e4m3", "");
            asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
        }
        for (int i = 0; i < 8; i++) out[round * 1024 + i * 128 + thread] = d[i];
        __syncthreads();
    }
}
