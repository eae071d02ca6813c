/* Chains of pointwise ops on values of f32, bf16, f16 and bool: twice eight elements a thread, all steps of them in one launch.
 *
 *     thread:  acc[2][8] in reg  <-  y[2][8] of an operand (gmem), a number (constant bank) or a slot (smem)   one instruction of the program, by branches that all
 *              acc = round(f(acc, y))  ->  a slot, where a later instruction reads it again                    threads take alike; the last result goes to gmem
 *
 * The program comes in the arguments (chain_cuda.h); the host half makes it of the steps (chain_cuda.c). Each step rounds to its format as a store and a load would, so the bits are
 * those of the ops one by one, but for the payloads of NaNs. An operand is read where it is used; one that is read again may be kept in a slot. Resources: shared memory of 16 KiB for each slot; no
 * barriers, as a thread reads what it wrote itself. Speed: README.md. */
#include "kernels/pointwise/chain_vectors.cuh"

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

/* What lies behind the end is the last vector once more. */
INLINE int64_t vector_at(const chain_vector_arguments *a, int64_t first, const int v) { return min(first + v * CUDA_THREADS, a->vectors - 1); }

/* Are all elements of all vectors of the thread there? first: its first vector; the others are CUDA_THREADS apart. */
INLINE bool is_whole(const chain_vector_arguments *a, const bool crosses, int64_t first) {
    return first + (CHAIN_VECTORS - 1) * CUDA_THREADS < a->vectors && vector_size(a, crosses, first + (CHAIN_VECTORS - 1) * CUDA_THREADS) == PIECE;
}

INLINE void load_operand(const chain_vector_arguments *a, const bool crosses, int k, int64_t first, float x[][PIECE]) {
    const cuda_array *array = &a->in[k];
    const int lies = a->lies[k];
    int64_t at[CHAIN_VECTORS];
    if (crosses && lies == CHAIN_ACROSS) {
        EACH_VECTOR(v) load_across(a, k, vector_at(a, first, v), vector_size(a, crosses, vector_at(a, first, v)), x[v]);
        return;
    }
    EACH_VECTOR(v) at[v] = vector_offset(a, crosses, vector_at(a, first, v), 1 + k);
    if (lies == CHAIN_REPEATS) {
        EACH_VECTOR(v) {
            const float one = chain_element_at(array, crosses ? 0 : at[v]);
            EACH_OF_PIECE(i) x[v][i] = one;
        }
        return;
    }
    if (lies == CHAIN_APART || !is_whole(a, crosses, first)) {
        EACH_VECTOR(v) load_apart(array, at[v], crosses ? 1 : a->steps[k], vector_size(a, crosses, vector_at(a, first, v)), x[v]);
        return;
    }
    if (array->format == CUDA_bool) {
        EACH_VECTOR(v) load_bools(array, at[v], x[v]);
    } else if (array->format == CUDA_f32) {
        EACH_VECTOR(v) load_vector_of(CUDA_f32, array, at[v], x[v]);
    } else if (array->format == CUDA_bf16) {
        EACH_VECTOR(v) load_vector_of(CUDA_bf16, array, at[v], x[v]);
    } else {
        EACH_VECTOR(v) load_vector_of(CUDA_f16, array, at[v], x[v]);
    }
}

INLINE void read_values(const chain_vector_arguments *a, const bool crosses, int from, int index, float number, uint32_t slots, int64_t first, float accumulator[][PIECE], float x[][PIECE]) {
    switch (from) {
    case CHAIN_FROM_OPERAND: load_operand(a, crosses, index, first, x); break;
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
    if (size == PIECE) store_vector(&a->out, at, x);
    else store_apart(&a->out, at, size, x);
}

/* acc = the instruction's function of acc and, where it reads one, y. */
INLINE void run_code(const chain_vector_arguments *a, const bool crosses, const chain_code *code, uint32_t slots, int64_t first, float x[][PIECE]) {
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
    if (code->y != CHAIN_FROM_NOTHING) read_values(a, crosses, code->y, code->y_index, code->y_number, slots, first, x, y);
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
        read_values(a, crosses, code->z, code->z_index, code->z_number, slots, first, x, y);
        EACH_VALUE(v, k) x[v][k] = chosen >> (v * PIECE + k) & 1 ? x[v][k] : y[v][k];
    } else {
        EACH_VECTOR(v) evaluate_vector(function, x[v], y[v]);
    }
}

INLINE void chain_vectors_of(const chain_vector_arguments *a, const bool crosses) {
    extern __shared__ __align__(16) uint8_t slot_bytes[];
    const uint32_t slots = shared_address(slot_bytes);
    grid_release();
    grid_wait();
    for (int64_t i = (int64_t)blockIdx.x * CUDA_THREADS * CHAIN_VECTORS + threadIdx.x; i < a->vectors; i += item_step() * CHAIN_VECTORS) {
        float x[CHAIN_VECTORS][PIECE];
        EACH_VALUE(v, k) x[v][k] = 0;
#pragma unroll 1
        for (int c = 0; c < a->count; c++) {
            const chain_code code = code_at(a, c);
            run_code(a, crosses, &code, slots, i, x);
            round_values_to(code.rounds, x);
            if (code.keep != 0) slot_store(slot_address(slots, code.keep - 1), x);
        }
        EACH_VECTOR(v) {
            const int64_t vector = i + v * CUDA_THREADS;
            if (vector < a->vectors) store_values(a, vector_offset(a, crosses, vector, 0), vector_size(a, crosses, vector), x[v]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 3) chain_vectors(const __grid_constant__ chain_vector_arguments arguments) { chain_vectors_of(&arguments, false); }
/* Where vectors cross from row to row. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 2) chain_vectors_across(const __grid_constant__ chain_vector_arguments arguments) { chain_vectors_of(&arguments, true); }
