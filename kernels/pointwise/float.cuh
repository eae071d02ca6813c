/* The formulas of op/pointwise.def on one fp32 value, for plain kernels. */
#ifndef KERNELS_POINTWISE_FLOAT_CUH
#define KERNELS_POINTWISE_FLOAT_CUH

#include "kernels/pointwise/pointwise_cuda.h"
#include "kernels/pointwise/sigmoids.cuh"

#define REAL float
#define F(name) name##f
DEVICE float evaluate_float(int function, float x, float y) {
    switch (function) {
#define OP_REAL1(name, formula) case POINTWISE_##name: return formula;
#define OP_REAL2(name, formula) case POINTWISE_##name: return formula;
#include "op/pointwise.def"
    default: return x;
    }
}
#undef REAL
#undef F

#endif
