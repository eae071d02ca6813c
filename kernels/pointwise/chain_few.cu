/* Chains of few elements: an element for each thread, by little code. Between the large kernels of a model's step a small one takes as long as its instructions need to come from memory, one after the other
 * wherever it branches. What chain_vectors.cu does with sixteen elements of a thread is here a fifth of the code.
 *
 *     thread:  operands gmem -> slots (smem)       all on their way at once
 *              each step: slots, numbers (constant bank) -> reg -> a slot of its own      the last result -> gmem
 *
 * Operands may lie in any way. The bits are those of the ops one by one, but for the payloads of NaNs. Resources: 24 KiB of shared memory, no barriers, as a thread reads what it wrote itself. Speed: README.md. */
#include "kernels/pointwise/chain_few.h"
#include "kernels/pointwise/few.cuh"

#define EACH_OPERAND(k) _Pragma("unroll") for (int k = 0; k < CHAIN_OPERANDS; k++)
#define EACH_AXIS(axis) _Pragma("unroll") for (int axis = 0; axis < FEW_RANK; axis++)

/* The thread's place along each axis. */
INLINE void find_place(const chain_few_arguments *a, uint32_t element, uint32_t *place) {
    EACH_AXIS(axis) place[axis] = 0;
    place[FEW_RANK - 1] = element;
    if (a->rank < 2) return;
#pragma unroll
    for (int axis = FEW_RANK - 1; axis > 0; axis--) {
        const uint32_t next = place[axis] / a->dims[axis];
        place[axis] -= next * a->dims[axis];
        place[axis - 1] = next;
    }
}

INLINE int32_t offset_of(const int32_t *strides, const uint32_t *place) {
    int32_t offset = 0;
    EACH_AXIS(axis) offset += strides[axis] * (int32_t)place[axis];
    return offset;
}

/* An element as it is in memory. */
INLINE uint32_t load_bits(uint64_t from, int bytes) {
    return bytes == 4 ? *(const uint32_t *)from : bytes == 2 ? *(const uint16_t *)from : *(const uint8_t *)from;
}

INLINE float value_of(int format, uint32_t bits) {
    if (format == CUDA_f32) return __uint_as_float(bits);
    if (format == CUDA_bf16) return __uint_as_float(bits << 16);
    return format == CUDA_f16 ? cvt_f32_f16((uint16_t)bits) : (float)(bits != 0);
}

/* All loads begin before the first of them is used. */
INLINE void load_operands(const chain_few_arguments *a, const uint32_t *place, float (*slots)[CUDA_THREADS]) {
    uint32_t bits[CHAIN_OPERANDS];
    EACH_OPERAND(k) if (k < (int)a->operands) bits[k] = load_bits(a->in[k].data + (int64_t)offset_of(a->strides[1 + k], place), a->in[k].element_bytes);
    EACH_OPERAND(k) if (k < (int)a->operands) slots[k][threadIdx.x] = value_of(a->in[k].format, bits[k]);
}

INLINE void store_value(const chain_few_arguments *a, int32_t at, float x) {
    const uint64_t to = a->out.data + (int64_t)at;
    if (a->out.format == CUDA_f32) *(float *)to = x;
    else if (a->out.format == CUDA_bf16) *(uint16_t *)to = (uint16_t)pack_pair(CUDA_bf16, x, 0);
    else if (a->out.format == CUDA_f16) *(uint16_t *)to = (uint16_t)pack_pair(CUDA_f16, x, 0);
    else *(uint8_t *)to = x != 0;
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) chain_few(const __grid_constant__ chain_few_arguments arguments) {
    __shared__ float slots[FEW_SLOTS][CUDA_THREADS];
    const chain_few_arguments *a = &arguments;
    const uint32_t element = blockIdx.x * CUDA_THREADS + threadIdx.x;
    uint32_t place[FEW_RANK];
    float result = 0;
    grid_release();
    find_place(a, element, place);
    grid_wait();
    if (element >= a->elements) return;
    load_operands(a, place, slots);
#pragma unroll 1
    for (int c = 0; c < (int)a->count; c++) {
        result = few_run(&a->codes[c], slots);
        slots[CHAIN_OPERANDS + c][threadIdx.x] = result;
    }
    store_value(a, offset_of(a->strides[0], place), result);
}
