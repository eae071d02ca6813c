/* Tokens into caches, and keys and queries turned on the way, of rows that lie side by side at multiples of 16 bytes: a thread block for each few tokens, or several for one. A thread
 * turns eight elements and their partners in fp32, or moves 16 bytes. Resources: 1 KiB of shared memory. Speed: README.md. */
#include "kernels/cache/places.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/rotary/turn.cuh"

INLINE void turn_halves(const cache_arguments *a, const cache_part *p, const cache_item *item, int64_t token) {
    const int64_t i = item->unit * CUDA_VECTOR, j = i + a->width / 2, cosine = token * a->cosine_token, sine = token * a->sine_token;
    float x[PIECE], y[PIECE], low_cosine[PIECE], low_sine[PIECE], high_cosine[PIECE], high_sine[PIECE], low[PIECE], high[PIECE];
    load_vector(&p->from, item->from + i, 1, x);
    load_vector(&p->from, item->from + j, 1, y);
    load_vector(&a->cosine, cosine + i, 1, low_cosine);
    load_vector(&a->sine, sine + i, 1, low_sine);
    load_vector(&a->cosine, cosine + j, 1, high_cosine);
    load_vector(&a->sine, sine + j, 1, high_sine);
    turn_pairs(x, y, low_cosine, low_sine, high_cosine, high_sine, low, high);
    store_vector(&p->to, item->to + i, low);
    store_vector(&p->to, item->to + j, high);
}

INLINE void turn_neighbours(const cache_arguments *a, const cache_part *p, const cache_item *item, int64_t token) {
    const int64_t i = item->unit * CUDA_VECTOR;
    float x[PIECE], cosine[PIECE], sine[PIECE], turned[PIECE];
    load_vector(&p->from, item->from + i, 1, x);
    load_vector(&a->cosine, token * a->cosine_token + i, 1, cosine);
    load_vector(&a->sine, token * a->sine_token + i, 1, sine);
    turn_four(x, cosine, sine, turned);
    store_vector(&p->to, item->to + i, turned);
}

/* Eight elements behind the width. */
INLINE void copy_rest(const cache_part *p, const cache_item *item, int64_t i) {
    const int bytes = p->from.element_bytes;
    store_uint4(&p->to, item->to + i, bytes, load_uint4(&p->from, item->from + i, bytes));
    if (bytes == 4) store_uint4(&p->to, item->to + i + 4, bytes, load_uint4(&p->from, item->from + i + 4, bytes));
}

INLINE void run_item(const cache_arguments *a, const cache_item *item, int64_t token) {
    const cache_part *p = &a->parts[item->part];
    const int64_t turned = (a->interleaved ? a->width : a->width / 2) / CUDA_VECTOR;
    if (!p->turned) ((uint4 *)p->to.data)[item->to + item->unit] = ((const uint4 *)p->from.data)[item->from + item->unit];
    else if (item->unit >= turned) copy_rest(p, item, a->width + (item->unit - turned) * CUDA_VECTOR);
    else if (a->interleaved) turn_neighbours(a, p, item, token);
    else turn_halves(a, p, item, token);
}

/* Blocks along y share the units of the same tokens. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS) cache_vectors(const __grid_constant__ cache_arguments arguments) {
    const cache_arguments *a = &arguments;
    const uint32_t units = (uint32_t)a->units, all = units * (uint32_t)a->together;
    grid_release();
    grid_wait();
    const int64_t first = (int64_t)blockIdx.x * a->together;
    const cache_place *places = NULL;
    cache_place only = {0, 0};
    if (a->tokens > 1) places = cache_places(a, first, blockIdx.y == 0);
    else only = cache_only_place(a, blockIdx.y == 0);
    for (uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x; i < all; i += gridDim.y * CUDA_THREADS) {
        const uint32_t token = i / units;
        if (first + token >= a->tokens) break;
        const cache_place place = a->tokens > 1 ? places[token] : only;
        const cache_item item = cache_item_at(a, first + token, &place, i - token * units);
        if (item.to >= 0) run_item(a, &item, first + token);
    }
}
