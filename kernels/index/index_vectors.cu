/* take and index of rows: 16 bytes at a time, where they lie side by side in x and in the result, four of them a thread. index_put, all places together: which place is the last one that
 * writes to an element is found first. Resources: no shared memory. Speed: README.md. */
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/index/index.cuh"

enum { WORDS_AT_ONCE = 4 };

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) index_read_words(const __grid_constant__ read_arguments arguments) {
    const read_arguments *a = &arguments;
    grid_release();
    grid_wait();
    for (int64_t first = (int64_t)blockIdx.x * CUDA_THREADS * WORDS_AT_ONCE + threadIdx.x; first < a->nest.count; first += item_step() * WORDS_AT_ONCE) {
        int64_t to[WORDS_AT_ONCE], from[WORDS_AT_ONCE];
        uint4 words[WORDS_AT_ONCE];
#pragma unroll
        for (int k = 0; k < WORDS_AT_ONCE; k++) {
            int64_t at[2 + INDEX_MOST];
            const int64_t i = first + k * CUDA_THREADS;
            from[k] = i < a->nest.count ? read_place(a, i, at) : -1;
            to[k] = at[0];
        }
#pragma unroll
        for (int k = 0; k < WORDS_AT_ONCE; k++) words[k] = from[k] < 0 ? make_uint4(0, 0, 0, 0) : ((const uint4 *)a->x.data)[from[k]];
#pragma unroll
        for (int k = 0; k < WORDS_AT_ONCE; k++)
            if (first + k * CUDA_THREADS < a->nest.count) ((uint4 *)a->out.data)[to[k]] = words[k];
    }
}

/* The same of rows [rows, words] that one index names, as of embeddings: one division says which row a word is of. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS) index_read_rows(const __grid_constant__ read_arguments arguments) {
    const read_arguments *a = &arguments;
    const int last = a->nest.rank - 1;
    const uint32_t words_of_row = (uint32_t)a->nest.dims[last], count = (uint32_t)a->nest.count;
    const int64_t to_row = last > 0 ? a->nest.strides[0][0] : 0, from_row = last > 0 ? a->nest.strides[1][0] : 0, index_row = last > 0 ? a->nest.strides[2][0] : 0;
    grid_release();
    grid_wait();
    for (uint32_t first = blockIdx.x * CUDA_THREADS * WORDS_AT_ONCE + threadIdx.x; first < count; first += gridDim.x * CUDA_THREADS * WORDS_AT_ONCE) {
        int64_t to[WORDS_AT_ONCE], from[WORDS_AT_ONCE];
        uint4 words[WORDS_AT_ONCE];
#pragma unroll
        for (int k = 0; k < WORDS_AT_ONCE; k++) {
            const uint32_t i = first + k * CUDA_THREADS, row = i / words_of_row, word = i - row * words_of_row;
            from[k] = to[k] = -1;
            if (i >= count) continue;
            const int64_t index = load_index(&a->index[0], row * index_row, a->sizes[0], &a->fault);
            to[k] = row * to_row + word;
            if (index >= 0) from[k] = row * from_row + index * a->strides[0] + word;
        }
#pragma unroll
        for (int k = 0; k < WORDS_AT_ONCE; k++) words[k] = from[k] < 0 ? make_uint4(0, 0, 0, 0) : ((const uint4 *)a->x.data)[from[k]];
#pragma unroll
        for (int k = 0; k < WORDS_AT_ONCE; k++)
            if (to[k] >= 0) ((uint4 *)a->out.data)[to[k]] = words[k];
    }
}

/* What a place says of out: where its first element lies, and which combination of indices it is; -1: one lies outside. */
static __device__ __forceinline__ int64_t place_key(const write_arguments *a, int64_t place, int64_t *at, int64_t *to) {
    int64_t key = 0;
    nest_offsets(&a->places, place, 2 + a->indices, at);
    *to = at[0];
    for (int k = 0; k < a->indices; k++) {
        const int64_t index = load_index(&a->index[k], at[2 + k], a->sizes[k], &a->fault);
        if (index < 0) return -1;
        *to += index * a->strides[k];
        key = key * a->sizes[k] + index;
    }
    return key;
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) index_last_places(const __grid_constant__ place_arguments arguments) {
    const write_arguments *a = &arguments.write;
    for (int64_t place = item_first(); place < a->places.count; place += item_step()) {
        int64_t at[2 + INDEX_MOST], to;
        const int64_t key = place_key(a, place, at, &to);
        if (key >= 0) atomicMax((uint32_t *)arguments.last + key, (uint32_t)place + 1);
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) index_write_places(const __grid_constant__ place_arguments arguments) {
    const write_arguments *a = &arguments.write;
    for (int64_t i = item_first(); i < a->places.count * a->items.count; i += item_step()) {
        int64_t at[2 + INDEX_MOST], item[2 + INDEX_MOST], to;
        const int64_t place = i / a->items.count, key = place_key(a, place, at, &to);
        if (key < 0 || ((const uint32_t *)arguments.last)[key] != (uint32_t)place + 1) continue;
        nest_offsets(&a->items, i - place * a->items.count, 2, item);
        to += item[0];
        const int64_t from = at[1] + item[1];
        if (arguments.in_words) ((uint4 *)a->out.data)[to] = ((const uint4 *)a->values.data)[from];
        else copy_element(&a->out, to, &a->values, from);
    }
}
