// What nvcc makes of ordinary CUDA: calls, printf, constants, shared memory, shuffles, atomics, double precision, half precision, 64-bit division.
// launch: block=64
// in: f32 0.5 1.5 2.5 3.5 4.5 5.5 6.5 7.5 8.5 9.5 10.5 11.5 12.5 13.5 14.5 15.5 16.5 17.5 18.5 19.5 20.5 21.5 22.5 23.5 24.5 25.5 26.5 27.5 28.5 29.5 30.5 31.5
// in: f32 -0.5 -1.5 -2.5 -3.5 -4.5 -5.5 -6.5 -7.5 -8.5 -9.5 -10.5 -11.5 -12.5 -13.5 -14.5 -15.5 -16.5 -17.5 -18.5 -19.5 -20.5 -21.5 -22.5 -23.5 -24.5 -25.5 -26.5 -27.5 -28.5 -29.5 -30.5 -31.5
// vector: kernels
// out: 1280
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__constant__ int table[4] = {3, 1, 4, 2};

__device__ __noinline__ float iterate(float a, int n) {
    for (int i = 0; i < n; i++) a = a * 1.25f + 0.5f;
    return a;
}

extern "C" __global__ void test(float *out, const float *in) {
    __shared__ float values[64];
    int i = threadIdx.x;
    values[i] = in[i];
    __syncthreads();
    float v = iterate(values[63 - i], table[i & 3]);
    out[i] = v;
    float sum = v;
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    out[64 + i] = sum;
    double d = v;
    for (int k = 0; k < (i & 7); k++) d = sqrt(d * d + 1.0) / 1.5;
    out[128 + i] = (float)d;
    long long wide = (long long)(v * 1000.0f) * 1000003ll;
    out[192 + i] = __half2float(__float2half(v / 3.0f)) + __bfloat162float(__float2bfloat16(sum)) + (float)(wide / (i + 7)) + (float)(wide % (i + 9));
    out[256 + i] = (float)(__popc(__ballot_sync(0xffffffffu, v > 1.0f)) + __reduce_add_sync(0xffffffffu, i) + (int)__byte_perm(__float_as_int(v), i, 0x4123));
    if (i == 3) printf("lane %d has %.3f of %s, %lld\n", i, v, "the warp", wide);
}
