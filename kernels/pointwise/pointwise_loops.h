/* The loops of pointwise.h in plain C for the compiler to vectorise; each pointwise_<instruction set>.c defines POINTWISE_TABLE, the name of its
 * table, and includes this. The functions mean what src/op/pointwise.c means; log, pow, sin, cos and what divides with remainder call the C
 * library for each element. */
#include <math.h>

#include "kernels/common/cpu/math.h"
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

#define REAL1(op, in_float, in_double) LOOP1(op, f, float, float, in_float) LOOP1(op, d, double, double, in_double)
#define REAL2(op, in_float, in_double) LOOP2(op, f, float, float, in_float) LOOP2(op, d, double, double, in_double)
#define REAL2_IS(op, expression) LOOP2(op, f, float, uint8_t, expression) LOOP2(op, d, double, uint8_t, expression)

static inline double gelu(double x) { return x * (1 + erf(x * 0.70710678118654752440)) / 2; }
static inline double gelu_tanh(double x) { return x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))) / 2; }
static inline double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static inline float softplus_float(float x) { return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x)); }
static inline double modulo(double x, double y) {
    double rest = fmod(x, y);
    return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;
}
/* From the exact remainder, so that rounding of x / y cannot cross an integer. */
static inline double floor_quotient(double x, double y) {
    if (y == 0) return x / y;
    double rest = fmod(x, y), quotient = (x - rest) / y;
    if (rest != 0 && (y < 0) != (rest < 0)) quotient -= 1;
    return quotient == 0 ? copysign(0.0, x / y) : rint(quotient);
}

REAL1(neg, -x, -x)
REAL1(abs, cpu_abs(x), fabs(x))
REAL1(sign, (float)((x > 0) - (x < 0)), (x > 0) - (x < 0))
REAL1(exp, cpu_exp(x), exp(x))
REAL1(log, logf(x), log(x))
REAL1(sqrt, sqrtf(x), sqrt(x))
REAL1(rsqrt, 1 / sqrtf(x), 1 / sqrt(x))
REAL1(reciprocal, 1 / x, 1 / x)
REAL1(sin, sinf(x), sin(x))
REAL1(cos, cosf(x), cos(x))
REAL1(atan, atanf(x), atan(x))
REAL1(tanh, cpu_tanh(x), tanh(x))
REAL1(sigmoid, cpu_sigmoid(x), 1 / (1 + exp(-x)))
REAL1(erf, cpu_erf(x), erf(x))
REAL1(relu, cpu_relu(x), x < 0 ? 0 : x)
REAL1(silu, cpu_silu(x), x / (1 + exp(-x)))
REAL1(gelu, cpu_gelu(x), gelu(x))
REAL1(gelu_tanh, cpu_gelu_tanh(x), gelu_tanh(x))
REAL1(softplus, softplus_float(x), softplus(x))
REAL1(floor, floorf(x), floor(x))
REAL1(ceil, ceilf(x), ceil(x))
REAL1(round, rintf(x), rint(x))
LOOP1(isnan, f, float, uint8_t, x != x)
LOOP1(isnan, d, double, uint8_t, x != x)
LOOP1(isinf, f, float, uint8_t, (cpu_bits(x) & 0x7fffffff) == 0x7f800000)
LOOP1(isinf, d, double, uint8_t, fabs(x) == (double)INFINITY)
REAL2(add, x + y, x + y)
REAL2(sub, x - y, x - y)
REAL2(mul, x * y, x * y)
REAL2(div, x / y, x / y)
REAL2(floordiv, floor_quotient((double)x, (double)y), floor_quotient(x, y))
REAL2(remainder, modulo((double)x, (double)y), modulo(x, y))
REAL2(pow, pow((double)x, (double)y), pow(x, y))
REAL2(minimum, cpu_select((x < y) | (x != x), x, y), (x < y || x != x) ? x : y)
REAL2(maximum, cpu_select((x > y) | (x != x), x, y), (x > y || x != x) ? x : y)
REAL2_IS(eq, x == y)
REAL2_IS(ne, x != y)
REAL2_IS(lt, x < y)
REAL2_IS(le, x <= y)
REAL2_IS(gt, x > y)
REAL2_IS(ge, x >= y)

/* ---- integers, unsigned where they wrap ---- */

static inline int64_t power(int64_t x, int64_t y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 == 0 ? 1 : -1) : 0;
    uint64_t result = 1, square = (uint64_t)x;
    for (; y > 0; y /= 2) {
        if (y % 2 != 0) result *= square;
        square *= square;
    }
    return (int64_t)result;
}

LOOP1(neg, i, int64_t, int64_t, 0 - (uint64_t)x)
LOOP1(abs, i, int64_t, int64_t, x < 0 ? 0 - (uint64_t)x : (uint64_t)x)
LOOP1(sign, i, int64_t, int64_t, (x > 0) - (x < 0))
LOOP1(relu, i, int64_t, int64_t, x < 0 ? 0 : x)
LOOP1(floor, i, int64_t, int64_t, x)
LOOP1(not, i, int64_t, int64_t, ~x)
LOOP1(isnan, i, int64_t, uint8_t, x != x)
LOOP2(add, i, int64_t, int64_t, (uint64_t)x + (uint64_t)y)
LOOP2(sub, i, int64_t, int64_t, (uint64_t)x - (uint64_t)y)
LOOP2(mul, i, int64_t, int64_t, (uint64_t)x * (uint64_t)y)
LOOP2(pow, i, int64_t, int64_t, power(x, y))
LOOP2(minimum, i, int64_t, int64_t, x < y ? x : y)
LOOP2(maximum, i, int64_t, int64_t, x > y ? x : y)
LOOP2(eq, i, int64_t, uint8_t, x == y)
LOOP2(ne, i, int64_t, uint8_t, x != y)
LOOP2(lt, i, int64_t, uint8_t, x < y)
LOOP2(le, i, int64_t, uint8_t, x <= y)
LOOP2(gt, i, int64_t, uint8_t, x > y)
LOOP2(ge, i, int64_t, uint8_t, x >= y)
LOOP2(and, i, int64_t, int64_t, x & y)
LOOP2(or, i, int64_t, int64_t, x | y)
LOOP2(xor, i, int64_t, int64_t, x ^ y)

/* Division by -1 is apart: it traps for the smallest x. */
static bool remainder_i(const void *xs, const void *ys, void *outs, int64_t count) {
    const int64_t *x = xs, *y = ys;
    int64_t *out = outs;
    for (int64_t i = 0; i < count; i++) {
        if (y[i] == 0) return false;
        int64_t rest = y[i] == -1 ? 0 : x[i] % y[i];
        out[i] = rest != 0 && (rest < 0) != (y[i] < 0) ? rest + y[i] : rest;
    }
    return true;
}

static bool floordiv_i(const void *xs, const void *ys, void *outs, int64_t count) {
    const int64_t *x = xs, *y = ys;
    int64_t *out = outs;
    for (int64_t i = 0; i < count; i++) {
        if (y[i] == 0) return false;
        out[i] = y[i] == -1 ? (int64_t)(0 - (uint64_t)x[i]) : x[i] / y[i] - (x[i] % y[i] != 0 && (x[i] % y[i] < 0) != (y[i] < 0));
    }
    return true;
}

/* ---- bool: bytes, where any but 0 is true ---- */

LOOP1(not, b, uint8_t, uint8_t, x == 0)
LOOP1(isnan, b, uint8_t, uint8_t, x & 0)
LOOP2(or, b, uint8_t, uint8_t, (x | y) != 0)
LOOP2(and, b, uint8_t, uint8_t, (x != 0) & (y != 0))
LOOP2(ne, b, uint8_t, uint8_t, (x != 0) ^ (y != 0))
LOOP2(eq, b, uint8_t, uint8_t, (x != 0) == (y != 0))
LOOP2(lt, b, uint8_t, uint8_t, (x == 0) & (y != 0))
LOOP2(le, b, uint8_t, uint8_t, (x == 0) | (y != 0))
LOOP2(gt, b, uint8_t, uint8_t, (x != 0) & (y == 0))
LOOP2(ge, b, uint8_t, uint8_t, (x != 0) | (y == 0))

#define REAL(op) [OP_##op] = {op##_f, op##_d, NULL, NULL}
#define NUMBER(op) [OP_##op] = {op##_f, op##_d, op##_i, NULL}
const pointwise_table POINTWISE_TABLE = {{
    NUMBER(neg), NUMBER(abs), NUMBER(sign), REAL(exp), REAL(log), REAL(sqrt), REAL(rsqrt), REAL(reciprocal), REAL(sin), REAL(cos), REAL(atan), REAL(tanh),
    REAL(sigmoid), REAL(erf), NUMBER(relu), REAL(silu), REAL(gelu), REAL(gelu_tanh), REAL(softplus), NUMBER(floor),
    [OP_ceil] = {ceil_f, ceil_d, floor_i, NULL}, [OP_round] = {round_f, round_d, floor_i, NULL}, [OP_not] = {NULL, NULL, not_i, not_b},
    [OP_isnan] = {isnan_f, isnan_d, isnan_i, isnan_b}, [OP_isinf] = {isinf_f, isinf_d, isnan_i, isnan_b},
    [OP_add] = {add_f, add_d, add_i, or_b}, NUMBER(sub), [OP_mul] = {mul_f, mul_d, mul_i, and_b}, REAL(div), NUMBER(floordiv), NUMBER(remainder),
    NUMBER(pow), [OP_minimum] = {minimum_f, minimum_d, minimum_i, and_b}, [OP_maximum] = {maximum_f, maximum_d, maximum_i, or_b},
    [OP_eq] = {eq_f, eq_d, eq_i, eq_b}, [OP_ne] = {ne_f, ne_d, ne_i, ne_b}, [OP_lt] = {lt_f, lt_d, lt_i, lt_b}, [OP_le] = {le_f, le_d, le_i, le_b},
    [OP_gt] = {gt_f, gt_d, gt_i, gt_b}, [OP_ge] = {ge_f, ge_d, ge_i, ge_b}, [OP_and] = {NULL, NULL, and_i, and_b}, [OP_or] = {NULL, NULL, or_i, or_b},
    [OP_xor] = {NULL, NULL, xor_i, ne_b},
}};
