/* Functions that the formulas of op/pointwise.def name, where they are the same on every machine. Plain C that nvcc takes, too. LINKAGE: static inline, or what
 * device code has for it; REAL: float or double; F(name): the C library's name of that precision. */
#ifndef OP_POINTWISE_H
#define OP_POINTWISE_H

/* Division and remainder that round down. The quotient is made from the exact remainder, so that rounding of x / y cannot cross an integer. */
#define OP_DEFINE_DIVISIONS(LINKAGE, REAL, F)                                                           \
    LINKAGE REAL F(floor_remainder)(REAL x, REAL y) {                                                   \
        REAL rest = F(fmod)(x, y);                                                                      \
        return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;                                    \
    }                                                                                                   \
    LINKAGE REAL F(floor_divide)(REAL x, REAL y) {                                                      \
        if (y == 0) return x / y;                                                                       \
        REAL rest = F(fmod)(x, y), quotient = (x - rest) / y;                                           \
        if (rest != 0 && (y < 0) != (rest < 0)) quotient -= 1;                                          \
        return quotient == 0 ? F(copysign)((REAL)0, x / y) : F(rint)(quotient);                         \
    }

/* exp, erf and pow of a machine that has none of its own, */
#define OP_DEFINE_FUNCTIONS(LINKAGE, REAL, F)                                                           \
    LINKAGE REAL F(soft_exp)(REAL x) { return F(exp)(x); }                                              \
    LINKAGE REAL F(soft_erf)(REAL x) { return F(erf)(x); }                                              \
    LINKAGE REAL F(soft_pow)(REAL x, REAL y) { return F(pow)(x, y); }

/* and tanh, sigmoid and what is made of them. */
#define OP_DEFINE_SIGMOIDS(LINKAGE, REAL, F)                                                                                                              \
    LINKAGE REAL F(soft_tanh)(REAL x) { return F(tanh)(x); }                                                                                              \
    LINKAGE REAL F(soft_sigmoid)(REAL x) { return 1 / (1 + F(exp)(-x)); }                                                                                 \
    LINKAGE REAL F(soft_silu)(REAL x) { return x / (1 + F(exp)(-x)); }                                                                                    \
    LINKAGE REAL F(soft_gelu)(REAL x) { return x * (1 + F(erf)(x * (REAL)0.70710678118654752440)) / 2; }                                                  \
    LINKAGE REAL F(soft_gelu_tanh)(REAL x) { return x * (1 + F(tanh)((REAL)0.79788456080286535588 * (x + (REAL)0.044715 * x * x * x))) / 2; }             \
    LINKAGE REAL F(soft_quick_gelu)(REAL x) { return x / (1 + F(exp)((REAL)-1.702 * x)); }

/* Slopes, of what is above: what gradients multiply by. */
#define OP_DEFINE_SLOPES(LINKAGE, REAL, F)                                                                                                                \
    LINKAGE REAL F(soft_silu_slope)(REAL x) {                                                                                                             \
        const REAL s = F(soft_sigmoid)(x);                                                                                                                \
        return s * (1 + x * (1 - s));                                                                                                                     \
    }                                                                                                                                                     \
    LINKAGE REAL F(soft_gelu_slope)(REAL x) {                                                                                                             \
        return (1 + F(soft_erf)(x * (REAL)0.70710678118654752440)) / 2 + x * (REAL)0.39894228040143267794 * F(soft_exp)(-x * x / 2);                      \
    }                                                                                                                                                     \
    LINKAGE REAL F(soft_gelu_tanh_slope)(REAL x) {                                                                                                        \
        const REAL whole = x * x, square = whole < (REAL)1e30 ? whole : (REAL)1e30;   /* finite, so that beyond it 0 times it is 0 */                       \
        const REAL t = F(soft_tanh)((REAL)0.79788456080286535588 * x * (1 + (REAL)0.044715 * square));                                                    \
        return (1 + t + x * (1 - t * t) * (REAL)0.79788456080286535588 * (1 + (REAL)0.134145 * square)) / 2;                                              \
    }                                                                                                                                                     \
    LINKAGE REAL F(soft_quick_gelu_slope)(REAL x) {                                                                                                       \
        const REAL s = F(soft_sigmoid)((REAL)1.702 * x);                                                                                                  \
        return s + s * (1 - s) * x * (REAL)1.702;   /* the product is 0 where s is 0 or 1 and x is finite */                                              \
    }

/* Negative powers: 1 and -1 have them, other integers give 0, as in PyTorch. */
#define OP_DEFINE_POWER(LINKAGE)                                                                        \
    LINKAGE int64_t integer_power(int64_t x, int64_t y) {                                               \
        if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 == 0 ? 1 : -1) : 0;                             \
        uint64_t power = 1, square = (uint64_t)x;                                                       \
        for (; y > 0; y /= 2) {                                                                         \
            if (y % 2 != 0) power *= square;                                                            \
            square *= square;                                                                           \
        }                                                                                               \
        return (int64_t)power;                                                                          \
    }

#endif
