/* Convolutions in groups of few channels (depthwise among them): a block makes a tile of results of some groups of one element of the batch.
 *
 *     x (gmem, any strides, 2 or 4 bytes an element) -> fp32 in smem [groups, channels][in_rows, in_cols], zeros in the padding; w -> fp32 in smem [outputs, channels, taps]
 *     a thread: four results side by side in ROWS lines; it reads each line of x that they need once, in words of 16 bytes                     (known windows)
 *               four results of a line, a quarter of the tile apart, so that lanes read neighbours                                             (any window)
 *
 * Sums are fp32, over channels, then lines, then taps of a line, in order. Resources: up to NARROW_BYTES (conv_narrow.c) of shared memory. Speed: README.md. */
#include "kernels/conv/conv_cuda.h"
#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/ldst.cuh"

#define INLINE static __device__ __forceinline__

enum { RUN = NARROW_RUN, AT_ONCE = 8 };

/* Which results a block makes: places of the first ones. */
typedef struct narrow_tile { int64_t batch; int group, row, col; } narrow_tile;

INLINE narrow_tile tile_of(const narrow_arguments *a, int64_t number) {
    const int64_t line = number / a->tiles_x, block = line / a->tiles_y, batch = block / a->group_blocks;
    const narrow_tile t = {batch, (int)(block - batch * a->group_blocks) * a->groups, (int)(line - block * a->tiles_y) * a->tile_rows, (int)(number - line * a->tiles_x) * a->tile_cols};
    return t;
}

INLINE float read_element(const int format, uint64_t data, int64_t at) {
    if (format == CUDA_f32) return ((const float *)data)[at];
    const uint16_t half = ((const uint16_t *)data)[at];
    return format == CUDA_bf16 ? __uint_as_float((uint32_t)half << 16) : cvt_f32_f16(half);
}

/* A place in the tile of x, by the axes that are counted along, the fastest last, and where its element lies in x and in shared memory. */
typedef struct narrow_place { int slow, middle, fast, from, to; } narrow_place;
/* What moves with each axis: elements of x, floats of shared memory. */
typedef struct narrow_steps { int fasts, middles, from[3], to[3]; } narrow_steps;

INLINE narrow_steps steps_of(const narrow_arguments *a, const bool by_channel) {
    const int c = a->x_steps[0], y = a->x_steps[1], x = a->x_steps[2];
    const narrow_steps lines = {a->in_cols, a->in_rows, {c, y, x}, {a->plane, a->in_cols, 1}};
    const narrow_steps channels = {a->groups * a->channels, a->in_cols, {y, x, c}, {a->in_cols, 1, a->plane}};
    return by_channel ? channels : lines;
}

INLINE narrow_place first_place(const narrow_steps *s) {
    const int lines = (int)threadIdx.x / s->fasts;
    narrow_place p = {lines / s->middles, lines % s->middles, (int)threadIdx.x % s->fasts, 0, 0};
    p.from = p.slow * s->from[0] + p.middle * s->from[1] + p.fast * s->from[2];
    p.to = p.slow * s->to[0] + p.middle * s->to[1] + p.fast * s->to[2];
    return p;
}

/* 256 elements further. from, to: what that is before an axis ends. */
INLINE void next_place(const narrow_arguments *a, const narrow_steps *s, narrow_place *p, int from, int to) {
    p->fast += a->steps[2], p->middle += a->steps[1], p->slow += a->steps[0], p->from += from, p->to += to;
    if (p->fast >= s->fasts) p->fast -= s->fasts, p->middle++, p->from += s->from[1] - s->fasts * s->from[2], p->to += s->to[1] - s->fasts * s->to[2];
    if (p->middle >= s->middles) p->middle -= s->middles, p->slow++, p->from += s->from[0] - s->middles * s->from[1], p->to += s->to[0] - s->middles * s->to[1];
}

/* The tile of x: AT_ONCE elements a thread on their way together. */
INLINE void bring_window(const int format, const bool by_channel, const narrow_arguments *a, const narrow_tile *t, float *window) {
    const conv_arguments *c = &a->conv;
    const int planes = min(a->groups, (int)(c->outputs / a->outputs_per_group) - t->group) * a->channels, count = (by_channel ? a->groups * a->channels : planes) * a->in_rows * a->in_cols;
    const int y0 = (int)(t->row * c->stride_y - c->padding_y), x0 = (int)(t->col * c->stride_x - c->padding_x), height = (int)c->height, width = (int)c->width;
    const int64_t first = t->batch * c->x_strides[0] + (int64_t)t->group * a->channels * c->x_strides[1] + y0 * c->x_strides[2] + x0 * c->x_strides[3];
    const uint64_t data = c->x.data + (uint64_t)(first * (format == CUDA_f32 ? 4 : 2));
    const narrow_steps s = steps_of(a, by_channel);
    const int from = a->steps[0] * s.from[0] + a->steps[1] * s.from[1] + a->steps[2] * s.from[2], to = a->steps[0] * s.to[0] + a->steps[1] * s.to[1] + a->steps[2] * s.to[2];
    narrow_place p = first_place(&s);
    for (int i = threadIdx.x; i < count; i += AT_ONCE * CUDA_THREADS) {
        float x[AT_ONCE];
        int places[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int row = by_channel ? p.slow : p.middle, col = by_channel ? p.middle : p.fast;
            const bool is_there = i + k * CUDA_THREADS < count && (!by_channel || p.fast < planes);
            places[k] = is_there ? p.to : -1;
            x[k] = is_there && (uint32_t)(y0 + row) < (uint32_t)height && (uint32_t)(x0 + col) < (uint32_t)width ? read_element(format, data, p.from) : 0;
            next_place(a, &s, &p, from, to);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (places[k] >= 0) window[places[k]] = x[k];
    }
}

/* The weights of the tile's outputs lie side by side. */
INLINE void bring_weights(const narrow_arguments *a, const narrow_tile *t, float *weights) {
    const int depth = a->channels * (int)(a->conv.taps_y * a->conv.taps_x), outputs = min(a->groups * a->outputs_per_group, (int)a->conv.outputs - t->group * a->outputs_per_group);
    const int64_t first = (int64_t)t->group * a->outputs_per_group * depth;
    for (int i = threadIdx.x; i < outputs * depth; i += CUDA_THREADS) weights[i] = read_element(a->conv.weight.format, a->conv.weight.data, first + i);
}

INLINE float bias_of(const narrow_arguments *a, int64_t output) {
    return a->conv.has_bias ? read_element(a->conv.bias.format, a->conv.bias.data, output * a->conv.bias_step) : 0;
}

/* The address of the tile's first result. */
INLINE uint64_t results_of(const narrow_arguments *a, const narrow_tile *t) {
    const conv_arguments *c = &a->conv;
    return c->out.data + (uint64_t)((t->batch * c->out_strides[0] + (int64_t)t->group * a->outputs_per_group * c->out_strides[1] + t->row * c->out_strides[2] + t->col) * c->out.element_bytes);
}

INLINE void store_one(const int format, uint64_t out, int at, float x) {
    if (format == CUDA_f32) ((float *)out)[at] = x;
    else ((uint16_t *)out)[at] = (uint16_t)(format == CUDA_bf16 ? cvt_bf16x2(x, 0) : cvt_f16x2(x, 0));
}

/* Four results side by side, of which left are in front of the line's end. */
INLINE void store_run(const int format, bool in_runs, uint64_t out, int at, int left, const float *x) {
    if (!in_runs || left < RUN) {
#pragma unroll
        for (int e = 0; e < RUN; e++)
            if (e < left) store_one(format, out, at + e, x[e]);
    } else if (format == CUDA_f32) {
        *(float4 *)((float *)out + at) = make_float4(x[0], x[1], x[2], x[3]);
    } else if (format == CUDA_bf16) {
        *(uint2 *)((uint16_t *)out + at) = make_uint2(cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]));
    } else {
        *(uint2 *)((uint16_t *)out + at) = make_uint2(cvt_f16x2(x[0], x[1]), cvt_f16x2(x[2], x[3]));
    }
}

/* n / d by d's reciprocal, of numbers far below 2^23. */
INLINE int divide(int n, float by_d) { return (int)(((float)n + 0.5f) * by_d); }

/* The window [taps_y, taps_x] at steps of stride, results in ROWS lines. */
#define KNOWN(name, taps_y, taps_x, stride, ROWS)                                                                                                  \
    INLINE void multiply_##name(const narrow_arguments *a, const float *window, const float *weights, float (*sums)[RUN]) {                        \
        enum { WORDS = ((RUN - 1) * stride + taps_x + 3) / 4 };                                                                                    \
        for (int c = 0; c < a->channels; c++, window += a->plane, weights += taps_y * taps_x)                                                      \
            _Pragma("unroll") for (int line = 0; line < (ROWS - 1) * stride + taps_y; line++) {                                                    \
                float x[4 * WORDS];                                                                                                                \
                _Pragma("unroll") for (int i = 0; i < WORDS; i++) {                                                                                \
                    const float4 word = *(const float4 *)(window + line * a->in_cols + 4 * i);                                                     \
                    x[4 * i] = word.x, x[4 * i + 1] = word.y, x[4 * i + 2] = word.z, x[4 * i + 3] = word.w;                                        \
                }                                                                                                                                  \
                _Pragma("unroll") for (int r = 0; r < ROWS; r++) {                                                                                 \
                    if (line < r * stride || line >= r * stride + taps_y) continue;                                                                \
                    _Pragma("unroll") for (int tap = 0; tap < taps_x; tap++) {                                                                     \
                        const float w = weights[(line - r * stride) * taps_x + tap];                                                               \
                        _Pragma("unroll") for (int e = 0; e < RUN; e++) sums[r][e] = fmaf(x[e * stride + tap], w, sums[r][e]);                     \
                    }                                                                                                                              \
                }                                                                                                                                  \
            }                                                                                                                                      \
    }                                                                                                                                              \
    INLINE void make_##name(const narrow_arguments *a, const narrow_tile *t, const float *window, const float *weights) {                             \
        const conv_arguments *c = &a->conv;                                                                                                           \
        const int runs = a->tile_cols / RUN, items = a->tile_rows / ROWS * runs, depth = a->channels * taps_y * taps_x, format = c->out.format;       \
        const int first = t->group * a->outputs_per_group, outputs = min(a->groups * a->outputs_per_group, (int)c->outputs - first);                  \
        const int rows = (int)c->rows - t->row, cols = (int)c->cols - t->col;                                                                         \
        const uint64_t out = results_of(a, t);                                                                                                        \
        for (int i = threadIdx.x; i < outputs * items; i += CUDA_THREADS) {                                                                           \
            const int output = divide(i, a->by_items), item = i - output * items, line = divide(item, a->by_runs), run = item - line * runs;          \
            const int group = a->outputs_per_group > 1 ? output / a->outputs_per_group : output, row = line * ROWS, col = run * RUN;                  \
            float sums[ROWS][RUN] = {{0}};                                                                                                            \
            multiply_##name(a, window + group * a->channels * a->plane + row * stride * a->in_cols + col * stride, weights + output * depth, sums);   \
            const float bias = bias_of(a, first + output);                                                                                            \
            int at = output * a->out_steps[0] + row * a->out_steps[1] + col;                                                                          \
            _Pragma("unroll") for (int r = 0; r < ROWS; r++, at += a->out_steps[1]) {                                                                 \
                if (row + r >= rows) break;                                                                                                           \
                _Pragma("unroll") for (int e = 0; e < RUN; e++) sums[r][e] += bias;                                                                   \
                store_run(format, a->in_runs, out, at, cols - col, sums[r]);                                                                          \
            }                                                                                                                                         \
        }                                                                                                                                             \
    }
#define NARROW_WINDOW(name, taps_y, taps_x, stride, rows) KNOWN(name, taps_y, taps_x, stride, rows)
#include "kernels/conv/narrow.def"
#undef NARROW_WINDOW

INLINE void make_any(const narrow_arguments *a, const narrow_tile *t, const float *window, const float *weights) {
    const conv_arguments *c = &a->conv;
    const int runs = a->tile_cols / RUN, items = a->tile_rows * runs, taps_y = (int)c->taps_y, taps_x = (int)c->taps_x, stride = (int)c->stride_x, dilation = (int)c->dilation_x;
    const uint64_t out = results_of(a, t);
    const int first = t->group * a->outputs_per_group, outputs = min(a->groups * a->outputs_per_group, (int)c->outputs - first);
    for (int i = threadIdx.x; i < outputs * items; i += CUDA_THREADS) {
        const int output = divide(i, a->by_items), item = i - output * items, row = divide(item, a->by_runs), run = item - row * runs;
        const float *w = weights + output * a->channels * taps_y * taps_x, *from = window + output / a->outputs_per_group * a->channels * a->plane + row * (int)c->stride_y * a->in_cols + run * stride;
        float sums[RUN] = {0};
        for (int channel = 0; channel < a->channels; channel++, from += a->plane)
            for (int y = 0; y < taps_y; y++) {
                const float *line = from + y * (int)c->dilation_y * a->in_cols;
                for (int tap = 0; tap < taps_x; tap++, w++, line += dilation) {
#pragma unroll
                    for (int e = 0; e < RUN; e++) sums[e] = fmaf(line[e * runs * stride], *w, sums[e]);
                }
            }
        if (t->row + row >= c->rows) continue;
        const float bias = bias_of(a, first + output);
        const int at = output * a->out_steps[0] + row * a->out_steps[1] + run;
#pragma unroll
        for (int e = 0; e < RUN; e++)
            if (t->col + run + e * runs < c->cols) store_one(c->out.format, out, at + e * runs, sums[e] + bias);
    }
}

INLINE void bring(const narrow_arguments *a, const narrow_tile *t, float *window, float *weights) {
    bring_weights(a, t, weights);
#define FORMAT(name)                                            \
    if (a->conv.x.format == name) {                             \
        if (a->by_channel) bring_window(name, true, a, t, window);  \
        else bring_window(name, false, a, t, window);           \
    }
    FORMAT(CUDA_f32)
    FORMAT(CUDA_bf16)
    FORMAT(CUDA_f16)
#undef FORMAT
}

#define ENTRY(name)                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 3) conv_narrow_##name(const __grid_constant__ narrow_arguments arguments) {    \
        extern __shared__ __align__(16) float window[];                                                                                    \
        const narrow_arguments *a = &arguments;                                                                                            \
        float *const weights = window + a->groups * a->channels * a->plane;                                                                \
        grid_release();                                                                                                                    \
        grid_wait();                                                                                                                       \
        const narrow_tile t = tile_of(a, blockIdx.x);                                                                                      \
        bring(a, &t, window, weights);                                                                                                     \
        __syncthreads();                                                                                                                   \
        make_##name(a, &t, window, weights);                                                                                               \
    }
#define NARROW_WINDOW(name, taps_y, taps_x, stride, rows) ENTRY(name)
#include "kernels/conv/narrow.def"
#undef NARROW_WINDOW
ENTRY(any)
