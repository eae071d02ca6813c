/* Chains of pointwise ops on values of f32, bf16, f16 and bool: eight elements a thread, all steps of them in one launch.
 *
 *     thread:  acc[8] in reg  <-  y[8] of an operand (gmem), a number (constant bank) or a slot (smem)   one instruction of the program, by a switch that all threads
 *              acc = round(f(acc, y))  ->  a slot, where a later instruction reads it again              take alike; the last one's result goes to gmem
 *
 * The program comes in the arguments (chain_cuda.h); the host half makes it of the steps (chain_cuda.c). Each step rounds to its format as a store and a load would, so the bits are
 * those of the ops one by one, but for the payloads of NaNs. An operand is read where it is used, from L1 after the first time. Resources: shared memory of 8 KiB for each slot; no
 * barriers, as a thread reads what it wrote itself. Speed: README.md. */
#include "kernels/pointwise/chain_cuda.h"
#include "kernels/pointwise/functions.cuh"

enum { SLOT_BYTES = CUDA_THREADS * CUDA_VECTOR * 4 };

/* The thread's elements of a slot: two words of 16 bytes, each beside those of its neighbours. */
INLINE uint32_t slot_address(uint32_t slots, int index) { return slots + (uint32_t)index * SLOT_BYTES + threadIdx.x * 16; }

INLINE void slot_store(uint32_t address, const float *x) {
    st_shared_f32x4(address, x[0], x[1], x[2], x[3]);
    st_shared_f32x4(address + SLOT_BYTES / 2, x[4], x[5], x[6], x[7]);
}

INLINE void slot_load(uint32_t address, float *x) {
    const uint4 low = ld_shared_u32x4(address), high = ld_shared_u32x4(address + SLOT_BYTES / 2);
    const uint32_t bits[PIECE] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    EACH_OF_PIECE(i) x[i] = __uint_as_float(bits[i]);
}

INLINE float chain_element_at(const cuda_array *array, int64_t at) {
    return array->format == CUDA_bool ? (float)(((const uint8_t *)array->data)[at] != 0) : element_at(array->format, array->data, at);
}

/* Elements step apart, the first size of eight; the others repeat the last. */
INLINE void load_apart(const cuda_array *array, int64_t at, int64_t step, int size, float *x) {
#pragma unroll 1
    for (int k = 0; k < PIECE; k++) {
        const float one = chain_element_at(array, at + min(k, size - 1) * step);
#pragma unroll
        for (int i = 1; i < PIECE; i++) x[i - 1] = x[i];
        x[PIECE - 1] = one;
    }
}

INLINE void load_bools(const cuda_array *array, int64_t at, float *x) {
    const uint2 bytes = *(const uint2 *)(array->data + (uint64_t)at);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = (bytes.x >> (8 * i) & 0xff) != 0, x[4 + i] = (bytes.y >> (8 * i) & 0xff) != 0;
}

INLINE void load_operand(const chain_vector_arguments *a, int k, int64_t at, int size, float *x) {
    const cuda_array *array = &a->in[k];
    const int lies = size < PIECE && a->lies[k] != CHAIN_REPEATS ? CHAIN_APART : a->lies[k];
    if (lies == CHAIN_APART) {
        load_apart(array, at, a->steps[k], size, x);
    } else if (lies == CHAIN_REPEATS) {
        const float one = chain_element_at(array, at);
        EACH_OF_PIECE(i) x[i] = one;
    } else if (array->format == CUDA_bool) {
        load_bools(array, at, x);
    } else {
        load_vector(array, at, 1, x);
    }
}

/* The offset of vector i in one array of the nest. */
INLINE int64_t chain_offset(const cuda_nest *nest, int64_t i, int array) {
    if (nest->rank == 1) return i * nest->strides[array][0];
    int64_t offset = 0;
    if (nest->narrow) {
        uint32_t left = (uint32_t)i;
        for (int axis = nest->rank - 1; axis > 0; axis--) {
            const uint32_t size = (uint32_t)nest->dims[axis], next = left / size;
            offset += (left - next * size) * nest->strides[array][axis];
            left = next;
        }
        return offset + left * nest->strides[array][0];
    }
    for (int axis = nest->rank - 1; axis > 0; axis--) {
        offset += i % nest->dims[axis] * nest->strides[array][axis];
        i /= nest->dims[axis];
    }
    return offset + i * nest->strides[array][0];
}

INLINE void read_values(const chain_vector_arguments *a, int from, int index, float number, uint32_t slots, int64_t i, int size, const float *accumulator, float *x) {
    switch (from) {
    case CHAIN_FROM_OPERAND: load_operand(a, index, chain_offset(&a->nest, i, 1 + index), size, x); break;
    case CHAIN_FROM_SLOT: slot_load(slot_address(slots, index), x); break;
    case CHAIN_FROM_ACCUMULATOR: EACH_OF_PIECE(k) x[k] = accumulator[k]; break;
    default: EACH_OF_PIECE(k) x[k] = number; break;
    }
}

INLINE void round_values_to(int format, float *x) {
    if (format == CUDA_bf16) unpack_halves(CUDA_bf16, pack_halves(CUDA_bf16, x), x);
    else if (format == CUDA_f16) unpack_halves(CUDA_f16, pack_halves(CUDA_f16, x), x);
}

INLINE void store_values(const chain_vector_arguments *a, int64_t at, int size, float *x) {
    if (size == PIECE) {
        store_vector(&a->out, at, x);
        return;
    }
#pragma unroll 1
    for (int k = 0; k < size; k++) {
        store_float(&a->out, at + k, x[0]);
#pragma unroll
        for (int i = 1; i < PIECE; i++) x[i - 1] = x[i];
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 4) chain_vectors(const __grid_constant__ chain_vector_arguments arguments) {
    extern __shared__ __align__(16) uint8_t slot_bytes[];
    const chain_vector_arguments *a = &arguments;
    const uint32_t slots = (uint32_t)__cvta_generic_to_shared(slot_bytes);
    for (int64_t i = item_first(); i < a->nest.count; i += item_step()) {
        const int size = a->nest.rank > 1 ? PIECE : (int)min((int64_t)PIECE, a->elements - i * PIECE);
        float x[PIECE], y[PIECE];
        EACH_OF_PIECE(k) x[k] = 0;
#pragma unroll 1
        for (int c = 0; c < a->count; c++) {
            const chain_code *code = &a->codes[c];
            if (code->y != CHAIN_FROM_NOTHING) read_values(a, code->y, code->y_index, code->y_number, slots, i, size, x, y);
            if (code->swapped) EACH_OF_PIECE(k) {
                const float other = x[k];
                x[k] = y[k];
                y[k] = other;
            }
            if (code->function == CHAIN_LOAD) {
                EACH_OF_PIECE(k) x[k] = y[k];
            } else if (code->function == CHAIN_SELECT) {
                float z[PIECE];
                read_values(a, code->z, code->z_index, code->z_number, slots, i, size, x, z);
                EACH_OF_PIECE(k) x[k] = x[k] != 0 ? y[k] : z[k];
            } else {
                evaluate_vector(code->function, x, y);
            }
            round_values_to(code->rounds, x);
            if (code->keep != 0) slot_store(slot_address(slots, code->keep - 1), x);
        }
        store_values(a, chain_offset(&a->nest, i, 0), size, x);
    }
}
