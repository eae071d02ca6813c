/* One value of a thread by codes (chain_few.h): each reads slots of shared memory, which a thread has for itself, and the caller keeps what it makes in the next one. */
#ifndef KERNELS_POINTWISE_FEW_CUH
#define KERNELS_POINTWISE_FEW_CUH

#include "kernels/pointwise/chain_few.h"
#include "kernels/pointwise/functions.cuh"

INLINE float few_read(const few_code *code, const int k, float (*slots)[CUDA_THREADS]) {
    return code->from[k] == FEW_NUMBER ? code->numbers[k] : slots[code->from[k]][threadIdx.x];
}

INLINE float few_rounded(const int format, float x) {
    float pair[2];
    unpack_pair(format, pack_pair(format, x, 0), pair);
    return pair[0];
}

INLINE float few_run(const few_code *code, float (*slots)[CUDA_THREADS]) {
    const int function = code->function;
    const float x = few_read(code, 0, slots), y = few_read(code, 1, slots);
    float result;
    if (function == FEW_SELECT) result = x != 0 ? y : few_read(code, 2, slots);
    else result = evaluate_one(function, x, y);
    return code->rounds == CUDA_bf16 ? few_rounded(CUDA_bf16, result) : code->rounds == CUDA_f16 ? few_rounded(CUDA_f16, result) : result;
}

#endif
