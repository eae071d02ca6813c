/* Chains of pointwise ops whose values all are bf16, or all f16, and bools, which are 0 and 1 in that format: chain_vectors.cu's machine with values as they are in memory, two to a
 * register. Steps may go through fp32 (chain_narrow.c), so numbers may be fp32's.
 *
 *     thread:  acc[4][8] in reg, 16 words  <-  y[4][8] of an operand (gmem), a number (constant bank) or a slot (smem)
 *              acc = f(acc, y) in pairs  ->  a slot, where a later instruction reads it again            the last result goes to gmem
 *
 * Sums, differences and products of pairs are those of fp32 rounded to the format: a product of two elements is exact in fp32, and 24 bits are as many as a sum needs to be rounded
 * twice to the same number (2 x 11 + 2). All other functions are computed in fp32, vector after vector. Resources: shared memory of 16 KiB for each slot, no barriers. Speed: README.md. */
#include "kernels/pointwise/chain_vectors.cuh"

enum { VECTOR_BYTES = CUDA_THREADS * 16, SLOT_BYTES = CHAIN_PACKED * VECTOR_BYTES };

#define EACH_VECTOR(v) _Pragma("unroll") for (int v = 0; v < CHAIN_PACKED; v++)

INLINE uint32_t slot_address(uint32_t slots, int index) { return slots + (uint32_t)index * SLOT_BYTES + threadIdx.x * 16; }

/* The vectors of a thread take turns at number 0, in loops that are not unrolled; the one that was there goes to the end as last. */
INLINE void rotate(uint4 *x, uint4 last) {
#pragma unroll
    for (int v = 1; v < CHAIN_PACKED; v++) x[v - 1] = x[v];
    x[CHAIN_PACKED - 1] = last;
}

INLINE uint4 all_words(uint32_t word) { return make_uint4(word, word, word, word); }
INLINE uint32_t packed_number(const int format, float number) { return pack_pair(format, number, number); }

INLINE int64_t vector_at(const chain_vector_arguments *a, int64_t first, const int v) { return min(first + v * CUDA_THREADS, a->vectors - 1); }
INLINE bool is_whole(const chain_vector_arguments *a, const bool crosses, int64_t first) {
    return first + (CHAIN_PACKED - 1) * CUDA_THREADS < a->vectors && vector_size(a, crosses, first + (CHAIN_PACKED - 1) * CUDA_THREADS) == PIECE;
}

/* One vector of an operand that does not lie as the result does, or at an end. */
INLINE uint4 load_words_loosely(const chain_vector_arguments *a, const int format, const bool crosses, int k, int64_t vector) {
    const cuda_array *array = &a->in[k];
    const int lies = a->lies[k], size = vector_size(a, crosses, vector);
    float x[PIECE];
    if (crosses && lies == CHAIN_ACROSS) {
        load_across(a, k, vector, size, x);
        return pack_halves(format, x);
    }
    const int64_t at = crosses && lies == CHAIN_REPEATS ? 0 : vector_offset(a, crosses, vector, 1 + k);
    if (lies == CHAIN_REPEATS) return all_words(packed_number(format, chain_element_at(array, at)));
    if (lies == CHAIN_DENSE && size == PIECE && array->format == CUDA_bool) load_bools(array, at, x);
    else load_apart(array, at, lies == CHAIN_DENSE ? 1 : a->steps[k], size, x);
    return pack_halves(format, x);
}

INLINE void load_operand(const chain_vector_arguments *a, const int format, const bool crosses, int k, int64_t first, uint4 *x) {
    const cuda_array *array = &a->in[k];
    if (a->lies[k] == CHAIN_DENSE && array->format == format && is_whole(a, crosses, first)) {
        EACH_VECTOR(v) x[v] = load_uint4(array, vector_offset(a, crosses, first + v * CUDA_THREADS, 1 + k), 2);
    } else if (a->lies[k] == CHAIN_REPEATS && (crosses || a->nest.rank == 1)) {
        const uint4 words = all_words(packed_number(format, chain_element_at(array, 0)));
        EACH_VECTOR(v) x[v] = words;
    } else {
#pragma unroll 1
        for (int v = 0; v < CHAIN_PACKED; v++) rotate(x, load_words_loosely(a, format, crosses, k, vector_at(a, first, v)));
    }
}

INLINE void read_words(const chain_vector_arguments *a, const int format, const bool crosses, int from, int index, float number, uint32_t slots, int64_t first, const uint4 *accumulator, uint4 *x) {
    switch (from) {
    case CHAIN_FROM_OPERAND: load_operand(a, format, crosses, index, first, x); break;
    case CHAIN_FROM_SLOT: EACH_VECTOR(v) x[v] = ld_shared_u32x4(slot_address(slots, index) + v * VECTOR_BYTES); break;
    case CHAIN_FROM_ACCUMULATOR: EACH_VECTOR(v) x[v] = accumulator[v]; break;
    default: EACH_VECTOR(v) x[v] = all_words(packed_number(format, number)); break;
    }
}

INLINE uint32_t add_pair(const int format, uint32_t x, uint32_t y) { return format == CUDA_bf16 ? add_bf16x2(x, y) : add_f16x2(x, y); }
INLINE uint32_t sub_pair(const int format, uint32_t x, uint32_t y) { return format == CUDA_bf16 ? sub_bf16x2(x, y) : sub_f16x2(x, y); }
INLINE uint32_t mul_pair(const int format, uint32_t x, uint32_t y) { return format == CUDA_bf16 ? mul_bf16x2(x, y) : mul_f16x2(x, y); }
INLINE uint4 add_words(const int format, uint4 x, uint4 y) { return make_uint4(add_pair(format, x.x, y.x), add_pair(format, x.y, y.y), add_pair(format, x.z, y.z), add_pair(format, x.w, y.w)); }
INLINE uint4 sub_words(const int format, uint4 x, uint4 y) { return make_uint4(sub_pair(format, x.x, y.x), sub_pair(format, x.y, y.y), sub_pair(format, x.z, y.z), sub_pair(format, x.w, y.w)); }
INLINE uint4 mul_words(const int format, uint4 x, uint4 y) { return make_uint4(mul_pair(format, x.x, y.x), mul_pair(format, x.y, y.y), mul_pair(format, x.z, y.z), mul_pair(format, x.w, y.w)); }
INLINE uint4 flip_words(uint4 x) { return make_uint4(x.x ^ 0x80008000, x.y ^ 0x80008000, x.z ^ 0x80008000, x.w ^ 0x80008000); }

/* Halves of x where those of condition are 1, which has bit 13 in both formats, else of y: 0. */
INLINE uint32_t select_pair(uint32_t condition, uint32_t x, uint32_t y) {
    const uint32_t mask = (condition >> 13 & 0x00010001) * 0xffff;
    return (x & mask) | (y & ~mask);
}
INLINE uint4 select_words(uint4 c, uint4 x, uint4 y) {
    return make_uint4(select_pair(c.x, x.x, y.x), select_pair(c.y, x.y, y.y), select_pair(c.z, x.z, y.z), select_pair(c.w, x.w, y.w));
}

/* In fp32, one vector after the other. number: what y is, where it is wide. */
INLINE void evaluate_words(const int format, int function, bool reads_y, bool is_wide, float number, uint4 *x, uint4 *y) {
#pragma unroll 1
    for (int v = 0; v < CHAIN_PACKED; v++) {
        float xs[PIECE], ys[PIECE];
        unpack_halves(format, x[0], xs);
        unpack_halves(format, reads_y ? y[0] : x[0], ys);
        if (is_wide) EACH_OF_PIECE(i) ys[i] = number;
        evaluate_vector(function, xs, ys);
        rotate(x, pack_halves(format, xs));
        if (reads_y) rotate(y, y[0]);
    }
}

/* Each value y becomes the expression. */
#define EACH_OF_ALL(expression)                                 \
    EACH_VECTOR(v) {                                            \
        float xs[PIECE];                                        \
        unpack_halves(format, x[v], xs);                        \
        EACH_OF_PIECE(i) {                                      \
            const float y = xs[i];                              \
            xs[i] = expression;                                 \
        }                                                       \
        x[v] = pack_halves(format, xs);                         \
    }                                                           \
    return true

/* The most frequent functions on all vectors at once, as their exponentials wait for each other else; false: it is another. */
INLINE bool evaluate_frequent(const int format, int function, uint4 *x) {
    const float factor = swish_factor(function == POINTWISE_quick_gelu);
    switch (function) {
    case POINTWISE_sigmoid: EACH_OF_ALL(F(soft_sigmoid)(y));
    case POINTWISE_silu:
    case POINTWISE_quick_gelu: EACH_OF_ALL(swish(y, factor));
    case POINTWISE_tanh: EACH_OF_ALL(F(soft_tanh)(y));
    case POINTWISE_gelu: EACH_OF_ALL(F(soft_gelu)(y));
    case POINTWISE_gelu_tanh: EACH_OF_ALL(F(soft_gelu_tanh)(y));
    }
    return false;
}

/* A product or sum with a number of fp32's. */
INLINE void combine_wide(const int format, bool is_product, float number, uint4 *x) {
    EACH_VECTOR(v) {
        float xs[PIECE];
        unpack_halves(format, x[v], xs);
        if (is_product) EACH_OF_PIECE(i) xs[i] = xs[i] * number;
        else EACH_OF_PIECE(i) xs[i] = xs[i] + number;
        x[v] = pack_halves(format, xs);
    }
}

/* acc = the instruction's function of acc and, where it reads one, y. */
INLINE void run_code(const chain_vector_arguments *a, const int format, const bool crosses, const chain_code *code, uint32_t slots, int64_t first, uint4 *x) {
    const int function = code->function;
    uint4 y[CHAIN_PACKED];
    const bool is_wide = code->is_wide != 0;
    if ((function == CHAIN_MUL_NUMBER || function == CHAIN_ADD_NUMBER) && is_wide) {
        combine_wide(format, function == CHAIN_MUL_NUMBER, code->y_number, x);
        return;
    }
    if (function == CHAIN_MUL_NUMBER || function == CHAIN_ADD_NUMBER) {
        const uint4 number = all_words(packed_number(format, code->y_number));
        if (function == CHAIN_MUL_NUMBER) EACH_VECTOR(v) x[v] = mul_words(format, x[v], number);
        else EACH_VECTOR(v) x[v] = add_words(format, x[v], number);
        return;
    }
    if (code->y != CHAIN_FROM_NOTHING) read_words(a, format, crosses, code->y, code->y_index, code->y_number, slots, first, x, y);
    switch (function) {
    case CHAIN_LOAD: EACH_VECTOR(v) x[v] = y[v]; break;
    case POINTWISE_mul: EACH_VECTOR(v) x[v] = mul_words(format, x[v], y[v]); break;
    case POINTWISE_add: EACH_VECTOR(v) x[v] = add_words(format, x[v], y[v]); break;
    case POINTWISE_sub: EACH_VECTOR(v) x[v] = sub_words(format, x[v], y[v]); break;
    case POINTWISE_neg: EACH_VECTOR(v) x[v] = flip_words(x[v]); break;
    case CHAIN_SELECT: {
        uint4 z[CHAIN_PACKED];
        read_words(a, format, crosses, code->z, code->z_index, code->z_number, slots, first, x, z);
        EACH_VECTOR(v) x[v] = select_words(x[v], y[v], z[v]);
        break;
    }
    case POINTWISE_COUNT: break;
    default: if (!evaluate_frequent(format, function, x)) evaluate_words(format, function, code->y != CHAIN_FROM_NOTHING, is_wide, code->y_number, x, y);
    }
}

INLINE void store_words_of(const chain_vector_arguments *a, const int format, const bool crosses, int64_t vector, uint4 words) {
    const int64_t at = vector_offset(a, crosses, vector, 0);
    const int size = vector_size(a, crosses, vector);
    float x[PIECE];
    if (size == PIECE && a->out.format == format) {
        store_uint4(&a->out, at, 2, words);
        return;
    }
    unpack_halves(format, words, x);
    if (size == PIECE) store_vector(&a->out, at, x);
    else store_apart(&a->out, at, size, x);
}

/* Asks for what the program reads later than its first operand, so that all are on their way together. */
INLINE void prefetch_operands(const chain_vector_arguments *a, const bool crosses, int64_t first) {
    for (int k = 1; k < a->operands; k++) {
        if (a->lies[k] != CHAIN_DENSE || !is_whole(a, crosses, first)) continue;
        EACH_VECTOR(v) prefetch_l2(a->in[k].data + (uint64_t)(vector_offset(a, crosses, first + v * CUDA_THREADS, 1 + k) * a->in[k].element_bytes));
    }
}

INLINE void chain_packed(const int format, const bool crosses, const chain_vector_arguments *a) {
    extern __shared__ __align__(16) uint8_t slot_bytes[];
    const uint32_t slots = shared_address(slot_bytes);
    grid_release();
    grid_wait();
    for (int64_t i = (int64_t)blockIdx.x * CUDA_THREADS * CHAIN_PACKED + threadIdx.x; i < a->vectors; i += item_step() * CHAIN_PACKED) {
        uint4 x[CHAIN_PACKED];
        EACH_VECTOR(v) x[v] = all_words(0);
        prefetch_operands(a, crosses, i);
#pragma unroll 1
        for (int c = 0; c < a->count; c++) {
            const chain_code code = code_at(a, c);
            run_code(a, format, crosses, &code, slots, i, x);
            if (code.keep != 0) EACH_VECTOR(v) st_shared_u32x4(slot_address(slots, code.keep - 1) + v * VECTOR_BYTES, x[v]);
        }
#pragma unroll 1
        for (int v = 0; v < CHAIN_PACKED; v++) {
            if (i + v * CUDA_THREADS < a->vectors) store_words_of(a, format, crosses, i + v * CUDA_THREADS, x[0]);
            rotate(x, x[0]);
        }
    }
}

#define ENTRY(name, format, crosses) \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS, CHAIN_PACKED_BLOCKS) name(const __grid_constant__ chain_vector_arguments arguments) { chain_packed(format, crosses, &arguments); }

ENTRY(chain_packed_bf16, CUDA_bf16, false)
ENTRY(chain_packed_f16, CUDA_f16, false)
/* Where vectors cross from row to row. */
ENTRY(chain_packed_bf16_across, CUDA_bf16, true)
ENTRY(chain_packed_f16_across, CUDA_f16, true)
