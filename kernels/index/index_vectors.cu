/* take and index of rows: 16 bytes a thread, where they lie side by side in x and in the result. Resources: no shared memory. Speed: README.md. */
#include "kernels/common/cuda/ptx_cluster.cuh"
#include "kernels/index/index.cuh"

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) index_read_words(const __grid_constant__ read_arguments arguments) {
    grid_release();
    grid_wait();
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[2 + INDEX_MOST], from = read_place(&arguments, i, at);
        ((uint4 *)arguments.out.data)[at[0]] = from < 0 ? make_uint4(0, 0, 0, 0) : ((const uint4 *)arguments.x.data)[from];
    }
}
