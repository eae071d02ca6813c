/* The machine that runs chains in fp32 on twice eight elements a thread (chain_vectors.cu, chain_tiles.cu): an accumulator in registers, slots in shared memory, instructions in the constant bank. Where operands lie
 * is the kernel's business, which has load_operand. */
#ifndef KERNELS_POINTWISE_CHAIN_STEPS_CUH
#define KERNELS_POINTWISE_CHAIN_STEPS_CUH

#include "kernels/pointwise/chain_vectors.cuh"

enum { VECTOR_BYTES = CUDA_THREADS * CUDA_VECTOR * 4, SLOT_BYTES = CHAIN_VECTORS * VECTOR_BYTES };

#define EACH_VECTOR(v) _Pragma("unroll") for (int v = 0; v < CHAIN_VECTORS; v++)
#define EACH_VALUE(v, k) EACH_VECTOR(v) EACH_OF_PIECE(k)

/* Where the thread's vectors are: of the space the first one, or the tile; of a slot, bytes behind its beginning. */
typedef struct chain_place {
    int64_t first;
    uint32_t in_slot[CHAIN_VECTORS];
    bool crosses;                 /* vectors cross from row to row */
    int row_bits;                 /* of tiles: logarithm of their rows */
} chain_place;

/* An operand's elements of the thread's vectors. */
INLINE void load_operand(const chain_vector_arguments *a, const chain_place *place, int k, float x[][PIECE]);

/* A vector in a slot: two words of 16 bytes, each beside those of the thread's neighbours. */
INLINE uint32_t slot_address(uint32_t slots, int index) { return slots + (uint32_t)index * SLOT_BYTES; }

INLINE void slot_store(uint32_t slot, const chain_place *place, float x[][PIECE]) {
    EACH_VECTOR(v) {
        st_shared_f32x4(slot + place->in_slot[v], x[v][0], x[v][1], x[v][2], x[v][3]);
        st_shared_f32x4(slot + place->in_slot[v] + VECTOR_BYTES / 2, x[v][4], x[v][5], x[v][6], x[v][7]);
    }
}

INLINE void slot_load(uint32_t slot, const chain_place *place, float x[][PIECE]) {
    EACH_VECTOR(v) {
        const uint4 low = ld_shared_u32x4(slot + place->in_slot[v]), high = ld_shared_u32x4(slot + place->in_slot[v] + VECTOR_BYTES / 2);
        const uint32_t bits[PIECE] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        EACH_OF_PIECE(i) x[v][i] = __uint_as_float(bits[i]);
    }
}

/* Vectors that lie at multiples of 16 bytes, from element at[v] on. */
INLINE void load_dense(const cuda_array *array, const int64_t *at, float x[][PIECE]) {
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

INLINE void read_values(const chain_vector_arguments *a, int from, int index, float number, uint32_t slots, const chain_place *place, float accumulator[][PIECE], float x[][PIECE]) {
    switch (from) {
    case CHAIN_FROM_OPERAND: load_operand(a, place, index, x); break;
    case CHAIN_FROM_SLOT: slot_load(slot_address(slots, index), place, x); break;
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

/* acc = the instruction's function of acc and, where it reads one, y. */
INLINE void run_code(const chain_vector_arguments *a, const chain_code *code, uint32_t slots, const chain_place *place, float x[][PIECE]) {
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
    if (code->y != CHAIN_FROM_NOTHING) read_values(a, code->y, code->y_index, code->y_number, slots, place, x, y);
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
        read_values(a, code->z, code->z_index, code->z_number, slots, place, x, y);
        EACH_VALUE(v, k) x[v][k] = chosen >> (v * PIECE + k) & 1 ? x[v][k] : y[v][k];
    } else {
        EACH_VECTOR(v) evaluate_vector(function, x[v], y[v]);
    }
}

/* The whole program. x: the result's values. */
INLINE void run_chain(const chain_vector_arguments *a, const chain_place *place, uint32_t slots, float x[][PIECE]) {
    EACH_VALUE(v, k) x[v][k] = 0;
#pragma unroll 1
    for (int c = 0; c < a->count; c++) {
        const chain_code code = code_at(a, c);
        run_code(a, &code, slots, place, x);
        round_values_to(code.rounds, x);
        if (code.keep != 0) slot_store(slot_address(slots, code.keep - 1), place, x);
    }
}

#endif
