/* dropout on Hopper and later: eight elements a thread, two calls of Philox (op/dropping.h), the bits of dropout.cu. Speed: README.md. */
#include "kernels/dropout/dropout_cuda.h"
#include "kernels/gpu/rows/vectors.cuh"
#include "op/dropping.h"

INLINE void drop(const int format, const dropout_arguments *a) {
    grid_release();
    grid_wait();
    const uint64_t seed = (uint64_t)load_int(&a->draw, 0), step = (uint64_t)load_int(&a->draw, 1);
    const float factor = (float)a->factor;
    for (int64_t vector = item_first(); vector < a->count / PIECE; vector += item_step()) {
        const philox_words low = dropping_words(seed, step, a->site, (uint64_t)vector * 2), high = dropping_words(seed, step, a->site, (uint64_t)vector * 2 + 1);
        float x[PIECE];
        load_vector_of(format, &a->x, vector * PIECE, x);
        EACH_OF_PIECE(i) x[i] *= (i < DROPPING_GROUP ? low.word[i % DROPPING_GROUP] : high.word[i % DROPPING_GROUP]) >= a->threshold ? factor : 0;
        store_vector(&a->out, vector * PIECE, x);
    }
}

#define ENTRY(format) \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) dropout_vectors_##format(const __grid_constant__ dropout_arguments arguments) { drop(CUDA_##format, &arguments); }

ENTRY(f32)
ENTRY(bf16)
ENTRY(f16)
