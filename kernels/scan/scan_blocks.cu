/* cumsum, sort and topk of lines by blocks that hold a piece of a line in shared memory: any format, any strides.
 *
 *     cumsum: a block for each line, tiles of 1024 elements, 4 a thread -> sums of threads, warps and tiles, in double or int64
 *     sort:   elements become (key, index): 64 bits that order as they do, and where they were, which makes the order of equal ones; tiles of 4096 pairs are sorted by Batcher's
 *             bitonic network (Batcher, Sorting networks and their applications, 1968), several short lines in a tile; tiles of a long line are merged through memory
 *     topk:   of each tile of a long line the first ones stay, until one tile holds them
 *
 * Resources: 48 KiB of shared memory. Speed: README.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/scan/scan_cuda.h"

#define INLINE static __device__ __forceinline__

/* ---- cumsum ---- */

enum { CUMSUM_WARPS = CUDA_THREADS / 32, CUMSUM_EACH = 4 };

/* The sum of what lies in front of the thread's own in the block; total: of all. Own is never subtracted again: an infinity would leave NaN. */
#define BEFORE_IN_BLOCK(name, type, shuffled)                                              \
    INLINE type name(type own, type *of_warp, type *total) {                               \
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;              \
        type up_to = own, before = 0, sum = 0;                                             \
        _Pragma("unroll") for (int step = 1; step < 32; step *= 2) {                       \
            const type other = (type)__shfl_up_sync(~0u, (shuffled)up_to, step);           \
            if (lane >= step) up_to += other;                                              \
        }                                                                                  \
        const type ahead = (type)__shfl_up_sync(~0u, (shuffled)up_to, 1);                  \
        __syncthreads();                                                                   \
        if (lane == 31) of_warp[warp] = up_to;                                             \
        __syncthreads();                                                                   \
        for (int i = 0; i < CUMSUM_WARPS; i++) before += i < warp ? of_warp[i] : 0, sum += of_warp[i]; \
        *total = sum;                                                                      \
        return lane > 0 ? before + ahead : before;                                         \
    }
BEFORE_IN_BLOCK(real_before, double, double)
BEFORE_IN_BLOCK(whole_before, uint64_t, unsigned long long)

#define CUMSUM(name, type, before, load, store)                                                                              \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ cumsum_arguments arguments) {    \
        __shared__ type of_warp[CUMSUM_WARPS];                                                                               \
        const cumsum_arguments *a = &arguments;                                                                              \
        for (int64_t line = blockIdx.x; line < a->nest.count; line += gridDim.x) {                                           \
            int64_t at[2];                                                                                                   \
            type sum = 0;                                                                                                    \
            nest_offsets(&a->nest, line, 2, at);                                                                             \
            for (int64_t tile = 0; tile < a->count; tile += CUDA_THREADS * CUMSUM_EACH) {                                    \
                const int64_t first = tile + (int64_t)threadIdx.x * CUMSUM_EACH;                                             \
                type x[CUMSUM_EACH], own = 0, total;                                                                         \
                _Pragma("unroll") for (int k = 0; k < CUMSUM_EACH; k++)                                                      \
                    x[k] = first + k < a->count ? (type)load(&a->x, at[1] + (first + k) * a->x_step) : (type)0;              \
                _Pragma("unroll") for (int k = 0; k < CUMSUM_EACH; k++) own += x[k];                                         \
                type so_far = sum + before(own, of_warp, &total);                                                            \
                _Pragma("unroll") for (int k = 0; k < CUMSUM_EACH; k++) {                                                    \
                    const type with = so_far + x[k];                                                                         \
                    if (first + k < a->count) store(&a->out, at[0] + (first + k) * a->out_step, a->exclusive ? so_far : with); \
                    so_far = with;                                                                                           \
                }                                                                                                            \
                sum += total;                                                                                                \
            }                                                                                                                \
        }                                                                                                                    \
    }
CUMSUM(scan_cumsum_real, double, real_before, load_double, store_double)
CUMSUM(scan_cumsum_whole, uint64_t, whole_before, load_int, store_int)

/* ---- sort, topk ---- */

typedef struct tile_pairs {
    uint64_t keys[SORT_TILE];
    uint32_t places[SORT_TILE];
} tile_pairs;

/* Bits that order as the element does: NaN above all numbers, zeros equal. */
INLINE uint64_t key_of(const cuda_array *x, int64_t at) {
    if (is_integer(x->format)) return (uint64_t)load_int(x, at) ^ 1ull << 63;
    const double value = load_double(x, at);
    if (value != value) return ~0ull;
    const uint64_t bits = (uint64_t)__double_as_longlong(value == 0 ? 0.0 : value);
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

INLINE bool comes_later(uint64_t key, uint32_t place, uint64_t other_key, uint32_t other_place) { return key > other_key || (key == other_key && place > other_place); }

/* Pairs i and i + stride of every other stretch come into order, each stretch of size ascending or, in turns, descending; first: what the tile's number 0 is of its line. */
INLINE void exchange_in_tile(tile_pairs *tile, int64_t first, int64_t size, int stride) {
    for (int k = (int)threadIdx.x; k < SORT_TILE / 2; k += SORT_THREADS) {
        const int i = 2 * k - (k & (stride - 1)), j = i + stride;
        const uint64_t x = tile->keys[i], y = tile->keys[j];
        const uint32_t x_place = tile->places[i], y_place = tile->places[j];
        const bool descends = ((first + i) & size) != 0;
        if (comes_later(x, x_place, y, y_place) == descends) continue;
        tile->keys[i] = y, tile->keys[j] = x;
        tile->places[i] = y_place, tile->places[j] = x_place;
    }
    __syncthreads();
}

/* Where tile number blockIdx.x, or the segment of it that element e is in, lies. */
typedef struct tile_place { int64_t line, first; } tile_place;
INLINE tile_place place_of(const sort_arguments *a, int e) {
    tile_place p;
    if (a->tiles > 1) {
        p.line = blockIdx.x / a->tiles;
        p.first = blockIdx.x % a->tiles * SORT_TILE + e;
    } else {
        p.line = (int64_t)blockIdx.x * (SORT_TILE / a->segment) + e / (int)a->segment;
        p.first = e & ((int)a->segment - 1);
    }
    return p;
}

INLINE void write_result(const sort_arguments *a, int64_t line, int64_t place, uint32_t index) {
    int64_t at[3];
    nest_offsets(&a->nest, line, 3, at);
    copy_element(&a->values, at[0] + place * a->values_step, &a->x, at[1] + (int64_t)index * a->x_step);
    store_int(&a->indices, at[2] + place * a->indices_step, (int64_t)index);
}

/* Sorts tiles of x, or of the pairs that a round before left. The first kept pairs of each go to memory, or are the result. */
extern "C" __global__ void __launch_bounds__(SORT_THREADS) scan_sort_tiles(const __grid_constant__ sort_arguments arguments) {
    extern __shared__ __align__(16) uint8_t bytes[];
    tile_pairs *tile = (tile_pairs *)bytes;
    const sort_arguments *a = &arguments;
    for (int e = (int)threadIdx.x; e < SORT_TILE; e += SORT_THREADS) {
        const tile_place p = place_of(a, e);
        uint64_t key = ~0ull;
        uint32_t place = ~0u;
        if (p.line < a->nest.count && p.first < a->count) {
            if (a->from_keys != 0) {
                key = ((const uint64_t *)a->from_keys)[p.line * a->count + p.first];
                place = ((const uint32_t *)a->from_places)[p.line * a->count + p.first];
            } else {
                int64_t at[2];
                nest_offsets(&a->nest, p.line, 2, at);
                key = key_of(&a->x, at[1] + p.first * a->x_step);
                if (a->descending) key = ~key;
                place = (uint32_t)p.first;
            }
        }
        tile->keys[e] = key;
        tile->places[e] = place;
    }
    __syncthreads();
    const int64_t tile_first = a->tiles > 1 && a->alternates ? (int64_t)(blockIdx.x % a->tiles) * SORT_TILE : 0;
    for (int size = 2; size <= (int)a->segment; size *= 2)
        for (int stride = size / 2; stride > 0; stride /= 2) {
            /* The last stretch of a segment ascends, unless tiles take turns for what merges them. */
            if (size == (int)a->segment && !(a->tiles > 1 && a->alternates)) exchange_in_tile(tile, 0, (int64_t)1 << 62, stride);
            else exchange_in_tile(tile, tile_first, size, stride);
        }
    for (int e = (int)threadIdx.x; e < SORT_TILE; e += SORT_THREADS) {
        const tile_place p = place_of(a, e);
        const int in_segment = e & ((int)a->segment - 1);
        if (p.line >= a->nest.count || in_segment >= a->kept) continue;
        if (a->to_keys == 0) {
            if (tile->places[e] != ~0u) write_result(a, p.line, in_segment, tile->places[e]);
            continue;
        }
        const int64_t to = (p.line * a->tiles + p.first / SORT_TILE) * a->kept + in_segment;
        ((uint64_t *)a->to_keys)[to] = tile->keys[e];
        ((uint32_t *)a->to_places)[to] = tile->places[e];
    }
}

/* One step of the network between tiles: stretches of size, pairs stride apart. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS) scan_sort_step(const __grid_constant__ sort_arguments arguments) {
    const sort_arguments *a = &arguments;
    uint64_t *keys = (uint64_t *)a->to_keys;
    uint32_t *places = (uint32_t *)a->to_places;
    const int64_t padded = a->tiles * SORT_TILE;
    for (int64_t k = item_first(); k < a->nest.count * padded / 2; k += item_step()) {
        const int64_t i = 2 * k - (k & (a->stride - 1)), j = i + a->stride;
        const bool descends = ((i & (padded - 1)) & a->size) != 0;
        if (comes_later(keys[i], places[i], keys[j], places[j]) == descends) continue;
        const uint64_t key = keys[i];
        const uint32_t place = places[i];
        keys[i] = keys[j], keys[j] = key;
        places[i] = places[j], places[j] = place;
    }
}

/* The steps of stretches of size that stay within tiles; behind the last ones the result is written. */
extern "C" __global__ void __launch_bounds__(SORT_THREADS) scan_sort_merge(const __grid_constant__ sort_arguments arguments) {
    extern __shared__ __align__(16) uint8_t bytes[];
    tile_pairs *tile = (tile_pairs *)bytes;
    const sort_arguments *a = &arguments;
    const int64_t line = blockIdx.x / a->tiles, first = blockIdx.x % a->tiles * SORT_TILE, from = (int64_t)blockIdx.x * SORT_TILE;
    for (int e = (int)threadIdx.x; e < SORT_TILE; e += SORT_THREADS) {
        tile->keys[e] = ((const uint64_t *)a->to_keys)[from + e];
        tile->places[e] = ((const uint32_t *)a->to_places)[from + e];
    }
    __syncthreads();
    for (int stride = SORT_TILE / 2; stride > 0; stride /= 2) exchange_in_tile(tile, first, a->size, stride);
    for (int e = (int)threadIdx.x; e < SORT_TILE; e += SORT_THREADS) {
        if (a->size < a->tiles * SORT_TILE) {
            ((uint64_t *)a->to_keys)[from + e] = tile->keys[e];
            ((uint32_t *)a->to_places)[from + e] = tile->places[e];
        } else if (first + e < a->kept && tile->places[e] != ~0u) {
            write_result(a, line, first + e, tile->places[e]);
        }
    }
}
