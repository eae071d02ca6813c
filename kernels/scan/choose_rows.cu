/* choose of short lines, as routers weigh experts: a warp each, which takes the elements as topk_rows.cu does.
 *
 *     lanes:   the elements of a line gmem -> smem, and their softmax there, where they are chosen by that, eight a lane
 *     lane k:  the index of the result's element k  ->  the value there -> slot 0 (smem)
 *              each step: slots, numbers (constant bank), or all lanes' values -> reg -> the next slot         the last result -> gmem
 *
 * f32, bf16 and f16, under any strides. Resources: 33 KiB of shared memory. Speed: README.md. */
#include "kernels/pointwise/few.cuh"
#include "kernels/scan/scan_cuda.h"
#include "kernels/scan/topk_rows.cuh"

/* Of the first length lanes, in their order; rounded once. */
INLINE float sum_line(float x, int length, int format) {
    double sum = 0;
    for (int lane = 0; lane < length; lane++) sum += (double)__shfl_sync(~0u, x, lane);
    return format == CUDA_bf16 ? few_rounded(CUDA_bf16, odd_float(sum)) : format == CUDA_f16 ? few_rounded(CUDA_f16, odd_float(sum)) : (float)sum;
}

INLINE float rounded_to(int format, float x) { return format == CUDA_bf16 ? few_rounded(CUDA_bf16, x) : format == CUDA_f16 ? few_rounded(CUDA_f16, x) : x; }

/* As softmax_rows.cu computes it: sums of eight, one after the other, and those as pairs. */
INLINE float softmax_line(float x, int length, int format) {
    const bool is_there = (int)threadIdx.x % 32 < length;
    const float most = lanes_max(is_there ? x : -INFINITE, 32), power = ex2((x - most) * 1.44269504f);
    float sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++)
        for (int lane = i * 8; lane < min(i * 8 + 8, length); lane++) sums[i] += __shfl_sync(~0u, power, lane);
    const float scale = 1 / (sums[0] + sums[2] + (sums[1] + sums[3]));
    return rounded_to(format, most == -INFINITE ? 0 : power * scale);
}

/* The warp's line in shared memory becomes its softmax, eight elements a lane at a time, as softmax_rows.cu has them. */
INLINE void softmax_elements(const int turns, float *line, int count, int format) {
    const int lane = (int)threadIdx.x % 32;
    float x[2][PIECE], most = -INFINITE, sum = 0;
#pragma unroll
    for (int turn = 0; turn < turns; turn++) EACH_OF_PIECE(i) {
        const int place = (turn * 32 + lane) * PIECE + i;
        x[turn][i] = place < count ? line[place] : -INFINITE;
        most = max_nan(most, x[turn][i]);
    }
    most = lanes_max(most, 32);
#pragma unroll
    for (int turn = 0; turn < turns; turn++) EACH_OF_PIECE(i) {
        x[turn][i] = ex2((x[turn][i] - most) * 1.44269504f);
        sum += (turn * 32 + lane) * PIECE + i < count ? x[turn][i] : 0;
    }
    const float scale = 1 / row_sum(sum, 32, NULL);
#pragma unroll
    for (int turn = 0; turn < turns; turn++) EACH_OF_PIECE(i) {
        const int place = (turn * 32 + lane) * PIECE + i;
        if (place < count) line[place] = rounded_to(format, most == -INFINITE ? 0 : x[turn][i] * scale);
    }
    __syncwarp();
}

/* The warp's line of x, or its softmax, to shared memory. */
INLINE void load_line(const int each, const choose_arguments *a, int64_t at, float *line) {
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();             /* behind those who read the line before */
#pragma unroll
    for (int e = 0; e < each; e++)
        if (e * 32 + lane < a->count) line[e * 32 + lane] = element_at(a->x.format, a->x.data, at + (e * 32 + lane) * a->x_step);
    __syncwarp();
    if (a->by_softmax) softmax_elements(each > 8 ? 2 : 1, line, a->count, a->x.format);
}

INLINE float run_step(const few_code *code, int length, float (*slots)[CUDA_THREADS]) {
    if (code->function == FEW_SUM) return sum_line(few_read(code, 0, slots), length, code->rounds);
    return code->function == FEW_SOFTMAX ? softmax_line(few_read(code, 0, slots), length, code->rounds) : few_run(code, slots);
}

INLINE void choose_rows(const int each, const choose_arguments *a) {
    __shared__ float slots[CHOOSE_SLOTS][CUDA_THREADS], lines[CUDA_THREADS / 32][TOPK_KEYS * 32];
    const int lane = (int)threadIdx.x % 32;
    float *line = lines[threadIdx.x / 32];
    grid_release();
    grid_wait();
    for (int64_t item = item_first() / 32; item < a->nest.count; item += item_step() / 32) {
        int64_t at[CHOOSE_ARRAYS];
        uint32_t keys[TOPK_KEYS];
        nest_offsets(&a->nest, item, CHOOSE_ARRAYS, at);
        load_line(each, a, at[CHOOSE_OF_X], line);
#pragma unroll
        for (int e = 0; e < each; e++) keys[e] = e * 32 + lane < a->count ? key_of_number(line[e * 32 + lane]) ^ (a->descending ? 0 : ~0u) : 0;
        const uint32_t mine = pick_elements(each, keys, a->count, a->length);
        float value = lane >= a->length ? 0 : a->y_is_x ? line[mine] : element_at(a->y.format, a->y.data, at[CHOOSE_OF_Y] + (int64_t)mine * a->y_step);
        slots[0][threadIdx.x] = value;
#pragma unroll 1
        for (int c = 0; c < a->steps; c++) {
            value = run_step(&a->codes[c], a->length, slots);
            slots[1 + c][threadIdx.x] = value;
        }
        if (lane < a->length) store_int(&a->indices, at[CHOOSE_OF_INDICES] + lane * a->indices_step, (int64_t)mine);
        if (lane < a->results) store_float(&a->values, at[CHOOSE_OF_VALUES] + lane * a->values_step, value);
    }
}

#define CHOOSE_ROWS(name, each) \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ choose_arguments arguments) { choose_rows(each, &arguments); }
CHOOSE_ROWS(scan_choose_64, 2)
CHOOSE_ROWS(scan_choose_128, 4)
CHOOSE_ROWS(scan_choose_256, 8)
CHOOSE_ROWS(scan_choose_512, 16)
