/* An ordinary program of CUDA's runtime, which knows of no simulator: launches in both ways, a cluster among them, a constant, events, and errors. */
#include <cooperative_groups.h>
#include <cstdio>
#include <cuda_runtime.h>

__constant__ float scale[2];

__global__ void add(const float *x, const float *y, float *z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = scale[1] * (x[i] + y[i]);
}

__global__ void ranks(unsigned *out) {
    if (threadIdx.x == 0) out[blockIdx.x] = cooperative_groups::this_cluster().block_rank();
}

static int failed;
#define EXPECT(condition)                                                     \
    do {                                                                      \
        if (!(condition)) {                                                   \
            printf("line %d: %s does not hold\n", __LINE__, #condition);      \
            failed = 1;                                                       \
        }                                                                     \
    } while (0)

int main() {
    const int n = 1000;
    float *x, *y, *z, h[n], factors[2] = {1, 2};
    unsigned *out, found[4];
    cudaDeviceProp properties;
    cudaEvent_t begin, end;
    float milliseconds = -1;
    EXPECT(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
    printf("%s, compute capability %d.%d, %d multiprocessors\n", properties.name, properties.major, properties.minor, properties.multiProcessorCount);
    EXPECT(cudaMalloc(&x, n * 4) == cudaSuccess && cudaMalloc(&y, n * 4) == cudaSuccess && cudaMalloc(&z, n * 4) == cudaSuccess && cudaMalloc(&out, 16) == cudaSuccess);
    for (int i = 0; i < n; i++) h[i] = i;
    EXPECT(cudaMemcpy(x, h, n * 4, cudaMemcpyHostToDevice) == cudaSuccess && cudaMemset(y, 0, n * 4) == cudaSuccess);
    EXPECT(cudaMemcpyToSymbol(scale, factors, sizeof factors) == cudaSuccess);
    EXPECT(cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess && cudaEventRecord(begin) == cudaSuccess);
    add<<<(n + 127) / 128, 128>>>(x, y, z, n);
    EXPECT(cudaGetLastError() == cudaSuccess && cudaEventRecord(end) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    EXPECT(cudaMemcpy(h, z, n * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    printf("%g\n", h[999]);
    EXPECT(cudaEventElapsedTime(&milliseconds, begin, end) == cudaErrorNotSupported && milliseconds == 0);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 2;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 4;
    config.blockDim = 32;
    config.attrs = &attribute;
    config.numAttrs = 1;
    EXPECT(cudaLaunchKernelEx(&config, ranks, out) == cudaSuccess && cudaMemcpy(found, out, 16, cudaMemcpyDeviceToHost) == cudaSuccess);
    EXPECT(found[0] == 0 && found[1] == 1 && found[2] == 0 && found[3] == 1);
    EXPECT(cudaMemcpyToSymbol(scale, factors, 12) == cudaErrorInvalidValue && cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
    EXPECT(cudaSetDevice(1) == cudaErrorInvalidDevice);
    add<<<1, 2048>>>(x, y, z, n);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    add<<<8, 128>>>(x, y, z, 1001);   /* one element beyond the allocation */
    EXPECT(cudaGetLastError() == cudaErrorLaunchFailure);
    return failed;
}
