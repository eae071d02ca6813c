/* Pointwise ops, cast and where of f32, bf16 and f16 that lie side by side: eight elements a thread, in loads and stores of 16 bytes, fp32 inside. Where the elements of
 * an operand repeat along the last axis, one is read for all eight. The results are those of pointwise.cu. Resources: no shared memory. Speed: README.md. */
#include "kernels/pointwise/functions.cuh"

/* Elements of vector i: all eight but at the end of a nest of one axis. */
INLINE int vector_size(const pointwise_arguments *a, int64_t i) { return a->nest.rank > 1 ? CUDA_VECTOR : (int)min((int64_t)CUDA_VECTOR, a->elements - i * CUDA_VECTOR); }

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 5) pointwise_vectors(const __grid_constant__ pointwise_arguments arguments) {
    const cuda_array *x = &arguments.in[0], *y = &arguments.in[1];
    grid_release();
    grid_wait();
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[3];
        float xs[PIECE], ys[PIECE];
        nest_offsets(&arguments.nest, i, 3, at);
        int size = vector_size(&arguments, i);
        if (size == CUDA_VECTOR) {
            load_vector(x, at[1], arguments.steps[1], xs);
            load_vector(y, at[2], arguments.steps[2], ys);
            evaluate_vector(arguments.function, xs, ys);
            store_vector(&arguments.out, at[0], xs);
            continue;
        }
#pragma unroll 1
        for (int k = 0; k < size; k++) {
            EACH_OF_PIECE(j) {
                xs[j] = element_at(x->format, x->data, at[1] + k * arguments.steps[1]);
                ys[j] = element_at(y->format, y->data, at[2] + k * arguments.steps[2]);
            }
            evaluate_vector(arguments.function, xs, ys);
            store_float(&arguments.out, at[0] + k, xs[0]);
        }
    }
}

/* Bits of x where they are set in mask, else those of y. */
INLINE uint4 select_words(uint4 mask, uint4 x, uint4 y) {
    return make_uint4((x.x & mask.x) | (y.x & ~mask.x), (x.y & mask.y) | (y.y & ~mask.y), (x.z & mask.z) | (y.z & ~mask.z), (x.w & mask.w) | (y.w & ~mask.w));
}
/* The eight elements of an operand as words of 4 bytes, or pairs of 2. */
INLINE void load_selected(const cuda_array *array, int64_t at, int step, uint4 *words) {
    if (step == 0) {
        uint32_t one = array->element_bytes == 4 ? ((const uint32_t *)array->data)[at] : ((const uint16_t *)array->data)[at] * 0x10001u;
        words[0] = words[1] = make_uint4(one, one, one, one);
    } else {
        words[0] = load_uint4(array, at, array->element_bytes);
        if (array->element_bytes == 4) words[1] = load_uint4(array, at + 4, 4);
    }
}
INLINE uint32_t mask_if(bool is_set, uint32_t mask) { return is_set ? mask : 0; }

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) pointwise_vectors_where(const __grid_constant__ pointwise_arguments arguments) {
    const cuda_array *c = &arguments.in[0], *out = &arguments.out;
    grid_release();
    grid_wait();
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[4];
        nest_offsets(&arguments.nest, i, 4, at);
        int size = vector_size(&arguments, i);
        if (size < CUDA_VECTOR) {
            for (int k = 0; k < size; k++) {   /* operands by their constant numbers: places that are looked up by one that is not would lie in local memory */
                if (((const uint8_t *)c->data)[at[1] + k * arguments.steps[1]] != 0) copy_element(out, at[0] + k, &arguments.in[1], at[2] + k * arguments.steps[2]);
                else copy_element(out, at[0] + k, &arguments.in[2], at[3] + k * arguments.steps[3]);
            }
            continue;
        }
        uint2 bits = make_uint2(0, 0);
        if (arguments.steps[1] != 0) bits = *(const uint2 *)(c->data + (uint64_t)at[1]);
        else if (((const uint8_t *)c->data)[at[1]] != 0) bits = make_uint2(~0u, ~0u);
        bool is[PIECE];
#pragma unroll
        for (int k = 0; k < 4; k++) is[k] = bits.x >> (8 * k) & 0xff, is[4 + k] = bits.y >> (8 * k) & 0xff;
        uint4 x[2], y[2];
        load_selected(&arguments.in[1], at[2], arguments.steps[2], x);
        load_selected(&arguments.in[2], at[3], arguments.steps[3], y);
        if (out->element_bytes == 4) {
            store_uint4(out, at[0], 4, select_words(make_uint4(mask_if(is[0], ~0u), mask_if(is[1], ~0u), mask_if(is[2], ~0u), mask_if(is[3], ~0u)), x[0], y[0]));
            store_uint4(out, at[0] + 4, 4, select_words(make_uint4(mask_if(is[4], ~0u), mask_if(is[5], ~0u), mask_if(is[6], ~0u), mask_if(is[7], ~0u)), x[1], y[1]));
        } else {
            uint4 mask = make_uint4(mask_if(is[0], 0xffff) | mask_if(is[1], 0xffff0000), mask_if(is[2], 0xffff) | mask_if(is[3], 0xffff0000),
                                    mask_if(is[4], 0xffff) | mask_if(is[5], 0xffff0000), mask_if(is[6], 0xffff) | mask_if(is[7], 0xffff0000));
            store_uint4(out, at[0], 2, select_words(mask, x[0], y[0]));
        }
    }
}
