// What programs ask of CUDA's runtime beside launches and plain copies: managed, pinned, registered and pitched memory, managed variables, copies of rows and boxes, fills,
// pools, functions that streams call, a barrier of the grid, and suggestions of sizes. Says what is wrong and returns 1.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CHECK(condition)                                                 \
    do {                                                                 \
        if (!(condition)) {                                              \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);       \
            return 1;                                                    \
        }                                                                \
    } while (0)
#define OK(call) CHECK((call) == cudaSuccess)

__managed__ int counter = 5;
__managed__ float table[4];

__global__ void count(int *also) {
    if (threadIdx.x == 0) {
        counter += 1;
        *also += 10;
    }
    table[threadIdx.x] = 2.0f * threadIdx.x;
}

__global__ void rows(float *out, size_t pitch, int width, int height) {
    for (int y = threadIdx.y; y < height; y += blockDim.y) {
        for (int x = threadIdx.x; x < width; x += blockDim.x) ((float *)((char *)out + y * pitch))[x] += 100.0f * y + x;
    }
}

/* Each block's number goes to the next one's place, and is read behind a barrier of the grid. */
__global__ void ring(int *place, int *out) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    if (threadIdx.x == 0) place[(blockIdx.x + 1) % gridDim.x] = blockIdx.x;
    grid.sync();
    if (threadIdx.x == 0) out[blockIdx.x] = place[blockIdx.x];
    grid.sync();
    if (threadIdx.x == 0) place[blockIdx.x] = -1;
}

static void tell(void *user) { *(int *)user += 1; }

int main() {
    /* managed variables and memory, on either side */
    int *managed;
    OK(cudaMallocManaged(&managed, sizeof *managed));
    *managed = 7;
    CHECK(counter == 5);
    count<<<1, 4>>>(managed);
    OK(cudaDeviceSynchronize());
    CHECK(counter == 6 && *managed == 17 && table[3] == 6.0f);
    void *symbol;
    OK(cudaGetSymbolAddress(&symbol, counter));
    CHECK(symbol == &counter);
    cudaPointerAttributes about;
    OK(cudaPointerGetAttributes(&about, managed));
    CHECK(about.type == cudaMemoryTypeManaged && about.hostPointer == managed && about.devicePointer == managed);
    OK(cudaFree(managed));

    /* pinned and registered memory of the host */
    int *pinned, *own = (int *)malloc(64), *there, local = 3;
    OK(cudaHostAlloc(&pinned, 4096, cudaHostAllocMapped));
    *pinned = 1;
    OK(cudaHostGetDevicePointer(&there, pinned, 0));
    count<<<1, 4>>>(there);
    OK(cudaHostRegister(own, 64, cudaHostRegisterMapped));
    CHECK(cudaHostRegister(own + 1, 8, 0) == cudaErrorHostMemoryAlreadyRegistered && cudaGetLastError() == cudaErrorHostMemoryAlreadyRegistered);
    *own = 2;
    OK(cudaHostGetDevicePointer(&there, own, 0));
    count<<<1, 4>>>(there);
    OK(cudaDeviceSynchronize());
    CHECK(*pinned == 11 && *own == 12 && counter == 8);
    OK(cudaPointerGetAttributes(&about, pinned));
    CHECK(about.type == cudaMemoryTypeHost);
    OK(cudaPointerGetAttributes(&about, &local));
    CHECK(about.type == cudaMemoryTypeUnregistered);
    OK(cudaHostUnregister(own));
    CHECK(cudaHostUnregister(own) == cudaErrorHostMemoryNotRegistered && cudaGetLastError() == cudaErrorHostMemoryNotRegistered);
    CHECK(cudaFree(pinned) == cudaErrorInvalidValue && cudaGetLastError() == cudaErrorInvalidValue);
    OK(cudaFreeHost(pinned));
    free(own);

    /* rows of a pitch */
    float *pitched, from[3][5], to[3][5];
    size_t pitch;
    OK(cudaMallocPitch(&pitched, &pitch, sizeof from[0], 3));
    CHECK(pitch >= sizeof from[0] && pitch % 256 == 0);
    for (int y = 0; y < 3; y++) for (int x = 0; x < 5; x++) from[y][x] = 0.5f;
    OK(cudaMemcpy2D(pitched, pitch, from, sizeof from[0], sizeof from[0], 3, cudaMemcpyHostToDevice));
    rows<<<1, dim3(4, 2)>>>(pitched, pitch, 5, 3);
    OK(cudaMemcpy2D(to, sizeof to[0], pitched, pitch, sizeof to[0], 3, cudaMemcpyDeviceToHost));
    for (int y = 0; y < 3; y++) for (int x = 0; x < 5; x++) CHECK(to[y][x] == 100.0f * y + x + 0.5f);
    OK(cudaMemset2D(pitched, pitch, 0, 4, 3));
    OK(cudaMemcpy2D(to, sizeof to[0], pitched, pitch, sizeof to[0], 3, cudaMemcpyDefault));
    CHECK(to[2][0] == 0 && to[2][1] == 201.5f);
    CHECK(cudaMemcpy2D(to, 4, pitched, pitch, sizeof to[0], 3, cudaMemcpyDefault) == cudaErrorInvalidValue && cudaGetLastError() == cudaErrorInvalidValue);

    /* a box out of a volume */
    cudaPitchedPtr volume;
    unsigned char bytes[2][3][4], back[2][2];
    OK(cudaMalloc3D(&volume, make_cudaExtent(4, 3, 2)));
    for (int i = 0; i < 24; i++) bytes[0][0][i] = (unsigned char)i;
    cudaMemcpy3DParms box = {};
    box.srcPtr = make_cudaPitchedPtr(bytes, 4, 4, 3);
    box.dstPtr = volume;
    box.extent = make_cudaExtent(4, 3, 2);
    box.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&box));
    box.srcPtr = volume;
    box.srcPos = make_cudaPos(1, 2, 0);
    box.dstPtr = make_cudaPitchedPtr(back, 2, 2, 1);
    box.extent = make_cudaExtent(2, 1, 2);
    box.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&box));
    CHECK(back[0][0] == 9 && back[0][1] == 10 && back[1][0] == 21 && back[1][1] == 22);

    /* pools, and what a stream calls */
    cudaMemPool_t pool;
    uint64_t threshold = 12345, read = 0;
    int told = 0, *some;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &read));
    CHECK(read == 12345);
    OK(cudaMallocAsync(&some, 64, 0));
    OK(cudaLaunchHostFunc(0, tell, &told));
    OK(cudaFreeAsync(some, 0));
    CHECK(told == 1);

    /* the grid's barrier; more blocks than the chip holds are refused */
    int *place, *out, result[8], blocks, threads;
    OK(cudaMalloc(&place, 8 * sizeof *place));
    OK(cudaMalloc(&out, sizeof result));
    void *arguments[] = {&place, &out};
    OK(cudaLaunchCooperativeKernel(ring, 8, 64, arguments, 0, 0));
    OK(cudaMemcpy(result, out, sizeof result, cudaMemcpyDefault));
    for (int i = 0; i < 8; i++) CHECK(result[i] == (i + 7) % 8);
    CHECK(cudaLaunchCooperativeKernel(ring, 1 << 20, 64, arguments, 0, 0) == cudaErrorCooperativeLaunchTooLarge && cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge);
    OK(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, rows));
    CHECK(threads >= 32 && blocks > 0);
    printf("all right\n");
    return 0;
}
