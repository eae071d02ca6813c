/* The loops of pointwise.h for the compiler to vectorise, from the formulas of op/pointwise.def; each pointwise_<instruction set>.c defines POINTWISE_TABLE, the name
 * of its table, and includes this. */
#include "kernels/cpu/real.h"
#include "kernels/pointwise/pointwise.h"

#define LOOP1(op, class, type, result, expression)                                               \
    static bool op##_##class(const void *xs, const void *ys, void *outs, int64_t count) {        \
        const type *restrict at_x = xs;                                                          \
        result *restrict out = outs;                                                             \
        (void)ys;                                                                                \
        for (int64_t i = 0; i < count; i++) {                                                    \
            type x = at_x[i];                                                                    \
            out[i] = (result)(expression);                                                       \
        }                                                                                        \
        return true;                                                                             \
    }
#define LOOP2(op, class, type, result, expression)                                               \
    static bool op##_##class(const void *xs, const void *ys, void *outs, int64_t count) {        \
        const type *restrict at_x = xs, *restrict at_y = ys;                                     \
        result *restrict out = outs;                                                             \
        for (int64_t i = 0; i < count; i++) {                                                    \
            type x = at_x[i], y = at_y[i];                                                       \
            out[i] = (result)(expression);                                                       \
        }                                                                                        \
        return true;                                                                             \
    }

/* ---- real numbers ---- */

OP_DEFINE_FUNCTIONS(static inline, double, DOUBLE_NAME)
OP_DEFINE_SIGMOIDS(static inline, double, DOUBLE_NAME)
OP_DEFINE_SLOPES(static inline, double, DOUBLE_NAME)

#define OP_REAL1(name, formula) LOOP1(name, f, float, float, real_##name(x, 0))
#define OP_REAL2(name, formula) LOOP2(name, f, float, float, real_##name(x, y))
#define OP_TEST1(name, formula) LOOP1(name, f, float, uint8_t, real_##name(x, 0))
#define OP_TEST2(name, formula) LOOP2(name, f, float, uint8_t, real_##name(x, y))
#include "op/pointwise.def"

#define REAL double
#define F(name) name
#define OP_REAL1(name, formula) LOOP1(name, d, double, double, formula)
#define OP_REAL2(name, formula) LOOP2(name, d, double, double, formula)
#define OP_TEST1(name, formula) LOOP1(name, d, double, uint8_t, formula)
#define OP_TEST2(name, formula) LOOP2(name, d, double, uint8_t, formula)
#include "op/pointwise.def"
#undef REAL
#undef F

/* ---- integers and bools ---- */

OP_DEFINE_POWER(static inline)

#define DIVIDE2(op, expression)                                                                  \
    static bool op##_i(const void *xs, const void *ys, void *outs, int64_t count) {              \
        const int64_t *restrict at_x = xs, *restrict at_y = ys;                                  \
        int64_t *restrict out = outs;                                                            \
        for (int64_t i = 0; i < count; i++) {                                                    \
            int64_t x = at_x[i], y = at_y[i];                                                    \
            if (y == 0) return false;                                                            \
            out[i] = expression;                                                                 \
        }                                                                                        \
        return true;                                                                             \
    }
#define OP_INTEGER1(name, formula) LOOP1(name, i, int64_t, int64_t, formula)
#define OP_INTEGER2(name, formula) LOOP2(name, i, int64_t, int64_t, formula)
#define OP_INTEGER_TEST1(name, formula) LOOP1(name, i, int64_t, uint8_t, formula)
#define OP_INTEGER_TEST2(name, formula) LOOP2(name, i, int64_t, uint8_t, formula)
#define OP_INTEGER_DIVIDE2(name, formula) DIVIDE2(name, formula)
#define OP_TRUTH1(name, formula) LOOP1(name, b, uint8_t, uint8_t, formula)
#define OP_TRUTH2(name, formula) LOOP2(name, b, uint8_t, uint8_t, formula)
#include "op/pointwise.def"

const pointwise_table POINTWISE_TABLE = {{
#define OP_REAL1(name, formula) [OP_##name][POINTWISE_REAL] = name##_f, [OP_##name][POINTWISE_DOUBLE] = name##_d,
#define OP_REAL2(name, formula) OP_REAL1(name, formula)
#define OP_INTEGER1(name, formula) [OP_##name][POINTWISE_INTEGER] = name##_i,
#define OP_INTEGER2(name, formula) OP_INTEGER1(name, formula)
#define OP_TRUTH1(name, formula) [OP_##name][POINTWISE_BOOL] = name##_b,
#define OP_TRUTH2(name, formula) OP_TRUTH1(name, formula)
#include "op/pointwise.def"
}};
