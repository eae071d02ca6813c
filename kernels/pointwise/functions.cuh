/* The formulas of op/pointwise.def on vectors of eight fp32 values in registers. Those of many instructions are called, one element after the other. */
#ifndef KERNELS_POINTWISE_FUNCTIONS_CUH
#define KERNELS_POINTWISE_FUNCTIONS_CUH

#include "kernels/gpu/rows/vectors.cuh"
#include "kernels/pointwise/pointwise_cuda.h"
#include "kernels/pointwise/sigmoids.cuh"

#define REAL float
#define F(name) name##f

static __device__ __noinline__ float evaluate_long(int function, float x, float y) {
    switch (function) {
#define OP_LONG1(name, formula) case POINTWISE_##name: return formula;
#define OP_LONG2(name, formula) case POINTWISE_##name: return formula;
#include "op/pointwise.def"
    default: return x;
    }
}

/* One element after the other, each moved to the front. The result is moved in last, so ys may be xs. */
INLINE void evaluate_longs(int function, float *xs, float *ys) {
#pragma unroll 1
    for (int k = 0; k < PIECE; k++) {
        float y = ys[0], result = evaluate_long(function, xs[0], y);
#pragma unroll
        for (int i = 1; i < PIECE; i++) xs[i - 1] = xs[i], ys[i - 1] = ys[i];
        ys[PIECE - 1] = y;
        xs[PIECE - 1] = result;
    }
}

/* xs becomes the function's values; a cast, which is POINTWISE_COUNT, has none. ys, which keeps its values, may be xs. */
INLINE void evaluate_vector(int function, float *xs, float *ys) {
    switch (function) {
#define OP_REAL1(name, formula) \
    case POINTWISE_##name: EACH_OF_PIECE(i) { const float x = xs[i]; xs[i] = formula; } break;
#define OP_REAL2(name, formula) \
    case POINTWISE_##name: EACH_OF_PIECE(i) { const float x = xs[i], y = ys[i]; xs[i] = formula; } break;
#define OP_LONG1(name, formula)
#define OP_LONG2(name, formula)
#include "op/pointwise.def"
    case POINTWISE_COUNT: break;
    default: evaluate_longs(function, xs, ys);
    }
}

/* The same of one value; the most frequent functions come first. */
INLINE float evaluate_one(int function, float x, float y) {
    if (function == POINTWISE_COUNT) return x;
    if (function == POINTWISE_mul) return x * y;
    if (function == POINTWISE_add) return x + y;
    switch (function) {
#define OP_REAL1(name, formula) case POINTWISE_##name: return formula;
#define OP_REAL2(name, formula) case POINTWISE_##name: return formula;
#define OP_LONG1(name, formula)
#define OP_LONG2(name, formula)
#include "op/pointwise.def"
    default: return evaluate_long(function, x, y);
    }
}

#endif
