/* Chains of pointwise ops on values of f32, bf16, f16 and bool: twice eight elements a thread, all steps of them in one launch.
 *
 *     thread:  acc[2][8] in reg  <-  y[2][8] of an operand (gmem), a number (constant bank) or a slot (smem)   one instruction of the program, by branches that all
 *              acc = round(f(acc, y))  ->  a slot, where a later instruction reads it again                    threads take alike; the last result goes to gmem
 *
 * The program comes in the arguments (chain_cuda.h); the host half makes it of the steps (chain_cuda.c). Each step rounds to its format as a store and a load would, so the bits are
 * those of the ops one by one, but for the payloads of NaNs. An operand is read where it is used; one that is read again may be kept in a slot. Resources: shared memory of 16 KiB for each slot; no
 * barriers, as a thread reads what it wrote itself. Speed: README.md. */
#include "kernels/pointwise/chain_cuda.h"
#include "kernels/pointwise/functions.cuh"

static_assert(sizeof(chain_code) == 16, "an instruction is a load");

enum { VECTOR_BYTES = CUDA_THREADS * CUDA_VECTOR * 4, SLOT_BYTES = CHAIN_VECTORS * VECTOR_BYTES };

#define EACH_VECTOR(v) _Pragma("unroll") for (int v = 0; v < CHAIN_VECTORS; v++)
#define EACH_VALUE(v, k) EACH_VECTOR(v) EACH_OF_PIECE(k)

/* The thread's elements of a slot: two words of 16 bytes, each beside those of its neighbours. */
INLINE uint32_t slot_address(uint32_t slots, int index) { return slots + (uint32_t)index * SLOT_BYTES + threadIdx.x * 16; }

INLINE void slot_store(uint32_t address, float x[][PIECE]) {
    EACH_VECTOR(v) {
        st_shared_f32x4(address + v * VECTOR_BYTES, x[v][0], x[v][1], x[v][2], x[v][3]);
        st_shared_f32x4(address + v * VECTOR_BYTES + VECTOR_BYTES / 2, x[v][4], x[v][5], x[v][6], x[v][7]);
    }
}

INLINE void slot_load(uint32_t address, float x[][PIECE]) {
    EACH_VECTOR(v) {
        const uint4 low = ld_shared_u32x4(address + v * VECTOR_BYTES), high = ld_shared_u32x4(address + v * VECTOR_BYTES + VECTOR_BYTES / 2);
        const uint32_t bits[PIECE] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        EACH_OF_PIECE(i) x[v][i] = __uint_as_float(bits[i]);
    }
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

/* What lies behind the end is the last vector once more; */
INLINE int64_t vector_at(const chain_vector_arguments *a, int64_t first, const int v) { return min(first + v * CUDA_THREADS, a->nest.count - 1); }
/* of the last one of a nest of one axis some elements may be missing. */
INLINE int vector_size(const chain_vector_arguments *a, int64_t vector) { return a->nest.rank > 1 ? PIECE : (int)min((int64_t)PIECE, a->elements - vector * PIECE); }

/* Are all elements of all vectors of the thread there? first: its first vector; the others are CUDA_THREADS apart. */
INLINE bool is_whole(const chain_vector_arguments *a, int64_t first) {
    return first + (CHAIN_VECTORS - 1) * CUDA_THREADS < a->nest.count && vector_size(a, first + (CHAIN_VECTORS - 1) * CUDA_THREADS) == PIECE;
}

INLINE void load_operand(const chain_vector_arguments *a, int k, int64_t first, float x[][PIECE]) {
    const cuda_array *array = &a->in[k];
    const int lies = a->lies[k];
    int64_t at[CHAIN_VECTORS];
    EACH_VECTOR(v) at[v] = chain_offset(&a->nest, vector_at(a, first, v), 1 + k);
    if (lies == CHAIN_REPEATS) {
        EACH_VECTOR(v) {
            const float one = chain_element_at(array, at[v]);
            EACH_OF_PIECE(i) x[v][i] = one;
        }
    } else if (lies == CHAIN_APART || !is_whole(a, first)) {
        EACH_VECTOR(v) load_apart(array, at[v], a->steps[k], vector_size(a, vector_at(a, first, v)), x[v]);
    } else if (array->format == CUDA_bool) {
        EACH_VECTOR(v) load_bools(array, at[v], x[v]);
    } else if (array->format == CUDA_f32) {
        EACH_VECTOR(v) load_vector_of(CUDA_f32, array, at[v], x[v]);
    } else if (array->format == CUDA_bf16) {
        EACH_VECTOR(v) load_vector_of(CUDA_bf16, array, at[v], x[v]);
    } else {
        EACH_VECTOR(v) load_vector_of(CUDA_f16, array, at[v], x[v]);
    }
}

INLINE void read_values(const chain_vector_arguments *a, int from, int index, float number, uint32_t slots, int64_t first, float accumulator[][PIECE], float x[][PIECE]) {
    switch (from) {
    case CHAIN_FROM_OPERAND: load_operand(a, index, first, x); break;
    case CHAIN_FROM_SLOT: slot_load(slot_address(slots, index), x); break;
    case CHAIN_FROM_ACCUMULATOR: EACH_VALUE(v, k) x[v][k] = accumulator[v][k]; break;
    default: EACH_VALUE(v, k) x[v][k] = number; break;
    }
}

INLINE void round_values_to(int format, float x[][PIECE]) {
    if (format == CUDA_bf16) {
        EACH_VECTOR(v) unpack_halves(CUDA_bf16, pack_halves(CUDA_bf16, x[v]), x[v]);
    } else if (format == CUDA_f16) {
        EACH_VECTOR(v) unpack_halves(CUDA_f16, pack_halves(CUDA_f16, x[v]), x[v]);
    }
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

/* acc = the instruction's function of acc and, where it reads one, y. */
INLINE void run_code(const chain_vector_arguments *a, const chain_code *code, uint32_t slots, int64_t first, float x[][PIECE]) {
    const int function = code->function;
    float y[CHAIN_VECTORS][PIECE];
    if (function == CHAIN_MUL_NUMBER) {
        EACH_VALUE(v, k) x[v][k] = x[v][k] * code->y_number;
        return;
    }
    if (function == CHAIN_ADD_NUMBER) {
        EACH_VALUE(v, k) x[v][k] = x[v][k] + code->y_number;
        return;
    }
    if (code->y != CHAIN_FROM_NOTHING) read_values(a, code->y, code->y_index, code->y_number, slots, first, x, y);
    if (function == POINTWISE_mul) {
        EACH_VALUE(v, k) x[v][k] = x[v][k] * y[v][k];
    } else if (function == POINTWISE_add) {
        EACH_VALUE(v, k) x[v][k] = x[v][k] + y[v][k];
    } else if (function == CHAIN_LOAD) {
        EACH_VALUE(v, k) x[v][k] = y[v][k];
    } else if (function == CHAIN_SELECT) {
        uint32_t chosen = 0;   /* a bit a value, so that y can be read over by z */
        EACH_VALUE(v, k) chosen |= (uint32_t)(x[v][k] != 0) << (v * PIECE + k);
        EACH_VALUE(v, k) x[v][k] = y[v][k];
        read_values(a, code->z, code->z_index, code->z_number, slots, first, x, y);
        EACH_VALUE(v, k) x[v][k] = chosen >> (v * PIECE + k) & 1 ? x[v][k] : y[v][k];
    } else {
        EACH_VECTOR(v) evaluate_vector(function, x[v], y[v]);
    }
}

/* An instruction in one load. */
INLINE chain_code code_at(const chain_vector_arguments *a, int c) {
    const uint4 words = ((const uint4 *)a->codes)[c];
    chain_code code;
    memcpy(&code, &words, sizeof code);
    return code;
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 3) chain_vectors(const __grid_constant__ chain_vector_arguments arguments) {
    extern __shared__ __align__(16) uint8_t slot_bytes[];
    const chain_vector_arguments *a = &arguments;
    const uint32_t slots = (uint32_t)__cvta_generic_to_shared(slot_bytes);
    for (int64_t i = (int64_t)blockIdx.x * CUDA_THREADS * CHAIN_VECTORS + threadIdx.x; i < a->nest.count; i += item_step() * CHAIN_VECTORS) {
        float x[CHAIN_VECTORS][PIECE];
        EACH_VALUE(v, k) x[v][k] = 0;
#pragma unroll 1
        for (int c = 0; c < a->count; c++) {
            const chain_code code = code_at(a, c);
            run_code(a, &code, slots, i, x);
            round_values_to(code.rounds, x);
            if (code.keep != 0) slot_store(slot_address(slots, code.keep - 1), x);
        }
        EACH_VECTOR(v) {
            const int64_t vector = i + v * CUDA_THREADS;
            if (vector < a->nest.count) store_values(a, chain_offset(&a->nest, vector, 0), vector_size(a, vector), x[v]);
        }
    }
}
