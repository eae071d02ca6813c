/* What convolutions by wgmma read: x [b,c,height,width] of any strides as [groups, b, lines, cols, channels], channels of a group rounded up to 8, zeros in the padding; and w with the channels of a
 * tap side by side (wgmma.h). Elements of 2 bytes.
 *
 *     x      a tile of 64 channels by 64 places of an image: neighbours in a line (gmem) -> smem [places][channels] -> 8 channels a thread; or straight, where channels lie side by side in x
 *     w      8 channels a thread
 *
 * Resources: 8 KiB of shared memory. Speed: README.md, with the product. */
#include "kernels/conv/wgmma.h"
#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/ptx/cluster.cuh"

#define INLINE static __device__ __forceinline__

enum { WORD = 8, PITCH = LAYOUT_CHANNELS + 2, WARPS = CUDA_THREADS / 32, EACH = LAYOUT_CHANNELS / WARPS };

/* Which part of which image of a group a block lays out. */
typedef struct layout_tile { int group, image, channel, place; } layout_tile;

INLINE layout_tile tile_of(const conv_layout_arguments *a, int number) {
    const int places = number / a->channel_tiles, image = places / a->place_tiles, group = image / (int)a->conv.batches;
    const layout_tile t = {group, image - group * (int)a->conv.batches, (number - places * a->channel_tiles) * LAYOUT_CHANNELS, (places - image * a->place_tiles) * LAYOUT_PLACES};
    return t;
}

/* Where a place's elements lie in x, without their channel; -1: in the padding, or there is no such place. */
INLINE int64_t place_in_x(const conv_layout_arguments *a, const layout_tile *t, int place) {
    const int line = place / a->cols, y = line - (int)a->conv.padding_y, x = place - line * a->cols - (int)a->conv.padding_x;
    if (line >= a->lines || y < 0 || y >= a->conv.height || x < 0 || x >= a->conv.width) return -1;
    return t->image * a->conv.x_strides[0] + y * a->conv.x_strides[2] + x * a->conv.x_strides[3];
}

INLINE uint4 *word_of(const conv_layout_arguments *a, const layout_tile *t, int place, int channel) {
    const int64_t image = (int64_t)t->group * a->conv.batches + t->image;
    return (uint4 *)((uint16_t *)a->lines_at + (image * a->lines * a->cols + place) * a->depth + channel);
}

/* Eight channels of a place a thread. */
INLINE void copy_words(const conv_layout_arguments *a, const layout_tile *t) {
    for (int i = threadIdx.x; i < LAYOUT_PLACES * LAYOUT_CHANNELS / WORD; i += CUDA_THREADS) {
        const int place = t->place + i / (LAYOUT_CHANNELS / WORD), channel = t->channel + i % (LAYOUT_CHANNELS / WORD) * WORD;
        const int64_t from = place_in_x(a, t, place);
        if (place >= a->lines * a->cols || channel >= a->depth) continue;
        const uint4 zeros = {0, 0, 0, 0};
        *word_of(a, t, place, channel) = from < 0 ? zeros : *(const uint4 *)((const uint16_t *)a->conv.x.data + from + t->group * a->channels + channel);
    }
}

/* Neighbours in a line by neighbouring lanes, then eight channels of a place by a thread. */
INLINE void turn_places(const conv_layout_arguments *a, const layout_tile *t, uint16_t (*tile)[PITCH]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint16_t *const x = (const uint16_t *)a->conv.x.data + (int64_t)t->group * a->channels * a->conv.x_strides[1];
#pragma unroll
    for (int half = 0; half < LAYOUT_PLACES; half += 32) {
        const int64_t from = place_in_x(a, t, t->place + half + lane);
        uint16_t values[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int channel = t->channel + warp * EACH + i;
            values[i] = from < 0 || channel >= a->channels ? 0 : x[from + channel * a->conv.x_strides[1]];
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) tile[half + lane][warp * EACH + i] = values[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < LAYOUT_PLACES * LAYOUT_CHANNELS / WORD; i += CUDA_THREADS) {
        const int row = i / (LAYOUT_CHANNELS / WORD), col = i % (LAYOUT_CHANNELS / WORD) * WORD;
        if (t->place + row >= a->lines * a->cols || t->channel + col >= a->depth) continue;
        const uint32_t *const from = (const uint32_t *)&tile[row][col];
        *word_of(a, t, t->place + row, t->channel + col) = make_uint4(from[0], from[1], from[2], from[3]);
    }
}

/* Eight elements of a segment of one output, number of the word. */
INLINE void turn_weights(const conv_layout_arguments *a, int64_t number) {
    const int words = a->length / WORD, taps = (int)(a->conv.taps_y * a->conv.taps_x);
    const int64_t line = number / words, output = line / a->segments;
    const int segment = (int)(line - output * a->segments), first = (int)(number - line * words) * WORD, tap = first / a->depth, channel = first - tap * a->depth;
    const uint16_t *const w = (const uint16_t *)a->conv.weight.data + output * a->channels * taps + segment * a->taps_of_segment + tap;
    __align__(16) uint16_t x[WORD];
#pragma unroll
    for (int i = 0; i < WORD; i++) x[i] = channel + i < a->channels ? w[(channel + i) * taps] : 0;
    *(uint4 *)((uint16_t *)a->weights_at + number * WORD) = *(const uint4 *)x;
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) conv_layout(const __grid_constant__ conv_layout_arguments arguments) {
    __shared__ __align__(16) uint16_t tile[LAYOUT_PLACES][PITCH];
    const conv_layout_arguments *a = &arguments;
    grid_release();
    grid_wait();
    if ((int)blockIdx.x >= a->x_blocks) {
        const int64_t number = (int64_t)((int)blockIdx.x - a->x_blocks) * CUDA_THREADS + threadIdx.x;
        if (number < (int64_t)a->groups * a->conv.outputs_per_group * a->segments * (a->length / WORD)) turn_weights(a, number);
        return;
    }
    const layout_tile t = tile_of(a, blockIdx.x);
    if (a->in_words) copy_words(a, &t);
    else turn_places(a, &t, tile);
}
