/* Chains of pointwise ops on values of f32, bf16, f16 and bool: twice eight elements a thread, all steps of them in one launch.
 *
 *     thread:  acc[2][8] in reg  <-  y[2][8] of an operand (gmem), a number (constant bank) or a slot (smem)   one instruction of the program, by branches that all
 *              acc = round(f(acc, y))  ->  a slot, where a later instruction reads it again                    threads take alike; the last result goes to gmem
 *
 * The program comes in the arguments (chain_cuda.h); the host half makes it of the steps (chain_cuda.c). Each step rounds to its format as a store and a load would, so the bits are
 * those of the ops one by one, but for the payloads of NaNs. An operand is read where it is used; one that is read again may be kept in a slot. Resources: shared memory of 16 KiB for each slot; no
 * barriers, as a thread reads what it wrote itself. Speed: README.md. */
#include "kernels/pointwise/chain_steps.cuh"

/* What lies behind the end is the last vector once more. */
INLINE int64_t vector_at(const chain_vector_arguments *a, int64_t first, const int v) { return min(first + v * CUDA_THREADS, a->vectors - 1); }

/* Are all elements of all vectors of the thread there? first: its first vector; the others are CUDA_THREADS apart. */
INLINE bool is_whole(const chain_vector_arguments *a, const bool crosses, int64_t first) {
    return first + (CHAIN_VECTORS - 1) * CUDA_THREADS < a->vectors && vector_size(a, crosses, first + (CHAIN_VECTORS - 1) * CUDA_THREADS) == PIECE;
}

INLINE void load_operand(const chain_vector_arguments *a, const chain_place *place, int k, float x[][PIECE]) {
    const bool crosses = place->crosses;
    const int64_t first = place->first;
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
    load_dense(array, at, x);
}

INLINE void store_values(const chain_vector_arguments *a, int64_t at, int size, float *x) {
    if (size == PIECE) store_vector(&a->out, at, x);
    else store_apart(&a->out, at, size, x);
}

INLINE void chain_vectors_of(const chain_vector_arguments *a, const bool crosses) {
    extern __shared__ __align__(16) uint8_t slot_bytes[];
    const uint32_t slots = shared_address(slot_bytes);
    grid_release();
    grid_wait();
    for (int64_t i = (int64_t)blockIdx.x * CUDA_THREADS * CHAIN_VECTORS + threadIdx.x; i < a->vectors; i += item_step() * CHAIN_VECTORS) {
        float x[CHAIN_VECTORS][PIECE];
        chain_place place = {.first = i, .crosses = crosses};
        EACH_VECTOR(v) place.in_slot[v] = v * VECTOR_BYTES + threadIdx.x * 16;
        run_chain(a, &place, slots, x);
        EACH_VECTOR(v) {
            const int64_t vector = i + v * CUDA_THREADS;
            if (vector < a->vectors) store_values(a, vector_offset(a, crosses, vector, 0), vector_size(a, crosses, vector), x[v]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 3) chain_vectors(const __grid_constant__ chain_vector_arguments arguments) { chain_vectors_of(&arguments, false); }
/* Where vectors cross from row to row. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 2) chain_vectors_across(const __grid_constant__ chain_vector_arguments arguments) { chain_vectors_of(&arguments, true); }
