/* Division and remainder that round down, for pointwise_cuda.def. */
#ifndef KERNELS_POINTWISE_DIVISIONS_CUH
#define KERNELS_POINTWISE_DIVISIONS_CUH

#include "kernels/common/cuda/device.cuh"

/* From the exact remainder, so that rounding of x / y cannot cross an integer. */
#define DEFINE_DIVISIONS(REAL, F)                                                                       \
    DEVICE REAL F(floor_remainder)(REAL x, REAL y) {                                                    \
        REAL rest = F(fmod)(x, y);                                                                      \
        return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;                                    \
    }                                                                                                   \
    DEVICE REAL F(floor_divide)(REAL x, REAL y) {                                                       \
        if (y == 0) return x / y;                                                                       \
        REAL rest = F(fmod)(x, y), quotient = (x - rest) / y;                                           \
        if (rest != 0 && (y < 0) != (rest < 0)) quotient -= 1;                                          \
        return quotient == 0 ? F(copysign)((REAL)0, x / y) : F(rint)(quotient);                         \
    }

#endif
