/* Windows of x [b,c,height,width], of any strides, as rows of patches [groups][rows,k], k = (c of the group, tap y, tap x): elements of 2 or 4 bytes, zeros in the padding. A thread writes 16 bytes
 * of a row where rows are multiples of that, else single elements. Resources: no shared memory. Speed: README.md, with the product. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/conv/conv_cuda.h"

#define INLINE static __device__ __forceinline__

/* The window that a row of patches is of: its batch's offset in x, and where it begins. */
typedef struct window { int64_t at, y, x; } window;

INLINE window window_of(const conv_arguments *a, int64_t row) {
    const int64_t area = a->rows * a->cols, batch = row / area, place = row - batch * area, line = place / a->cols;
    const window w = {batch * a->x_strides[0], line * a->stride_y - a->padding_y, (place - line * a->cols) * a->stride_x - a->padding_x};
    return w;
}

/* A place in a row of patches: channel and taps. */
typedef struct tap { int32_t c, y, x; } tap;

INLINE tap tap_of(const conv_arguments *a, uint32_t k) {
    const uint32_t taps = (uint32_t)(a->taps_y * a->taps_x), c = k / taps, rest = k - c * taps, y = rest / (uint32_t)a->taps_x;
    const tap t = {(int32_t)c, (int32_t)y, (int32_t)(rest - y * (uint32_t)a->taps_x)};
    return t;
}
INLINE void next_tap(const conv_arguments *a, tap *t) {
    if (++t->x < a->taps_x) return;
    t->x = 0;
    if (++t->y < a->taps_y) return;
    t->y = 0;
    t->c++;
}

/* Where the element under a tap lies; -1: in the padding. */
INLINE int64_t element_of(const conv_arguments *a, const window *w, int64_t first_channel, const tap *t) {
    const int64_t y = w->y + t->y * a->dilation_y, x = w->x + t->x * a->dilation_x;
    if (y < 0 || y >= a->height || x < 0 || x >= a->width) return -1;
    return w->at + (first_channel + t->c) * a->x_strides[1] + y * a->x_strides[2] + x * a->x_strides[3];
}

#define CONV_PATCHES(name, type)                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ patch_arguments arguments) {                          \
        enum { MOST = 16 / (int)sizeof(type) };                                                                                                   \
        const conv_arguments *a = &arguments.conv;                                                                                                \
        const int each = arguments.in_words ? MOST : 1;                                                                                           \
        const uint32_t depth = (uint32_t)(a->channels * a->taps_y * a->taps_x), steps = depth / each;                                             \
        grid_release();                                                                                                                           \
        grid_wait();                                                                                                                              \
        for (int64_t i = item_first(); i < arguments.groups * arguments.count * steps; i += item_step()) {                                        \
            const int64_t line = i / steps, group = line / arguments.count, row = line - group * arguments.count;                                 \
            const uint32_t k = (uint32_t)(i - line * steps) * each;                                                                               \
            const window w = window_of(a, arguments.first + row);                                                                                 \
            tap t = tap_of(a, k);                                                                                                                 \
            type *to = (type *)arguments.patches + line * depth + k;                                                                              \
            __align__(16) type x[MOST];                                                                                                           \
            _Pragma("unroll") for (int e = 0; e < MOST; e++) {                                                                                    \
                if (e >= each) break;                                                                                                             \
                const int64_t from = element_of(a, &w, group * a->channels, &t);                                                                  \
                x[e] = from < 0 ? 0 : ((const type *)a->x.data)[from];                                                                            \
                next_tap(a, &t);                                                                                                                  \
            }                                                                                                                                     \
            if (arguments.in_words) *(uint4 *)to = *(const uint4 *)x;                                                                             \
            else *to = x[0];                                                                                                                      \
        }                                                                                                                                         \
    }
CONV_PATCHES(conv_patches_2, uint16_t)
CONV_PATCHES(conv_patches_4, uint32_t)
