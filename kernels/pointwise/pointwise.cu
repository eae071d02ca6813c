/* Pointwise ops, cast and where: one thread an element, any strides, any format of a byte or more. fp32 for formats of up to 32 bits, each operation
 * rounded on its own; double for f64; int64 for integers, which wrap when they are stored. Resources: no shared memory. Speed: not measured. */
#include "kernels/pointwise/divisions.cuh"
#include "kernels/pointwise/pointwise_cuda.h"

#define CUDA_INTEGER(name)

/* ---- real numbers ---- */

#define REAL float
#define F(name) name##f
DEFINE_DIVISIONS(REAL, F)
DEVICE float evaluate_float(int function, float x, float y) {
    switch (function) {
#define CUDA_REAL1(name, expression) case POINTWISE_##name: return expression;
#define CUDA_REAL2(name, expression) case POINTWISE_##name: return expression;
#include "kernels/pointwise/pointwise_cuda.def"
    default: return x;
    }
}
#undef REAL
#undef F

#define REAL double
#define F(name) name
DEFINE_DIVISIONS(REAL, F)
DEVICE double evaluate_double(int function, double x, double y) {
    switch (function) {
#include "kernels/pointwise/pointwise_cuda.def"
    default: return x;
    }
}
#undef REAL
#undef F
#undef CUDA_REAL1
#undef CUDA_REAL2

KERNEL(pointwise_float, pointwise_arguments) {
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[3];
        nest_offsets(&arguments.nest, i, 3, at);
        store_float(&arguments.out, at[0], evaluate_float(arguments.function, load_float(&arguments.in[0], at[1]), load_float(&arguments.in[1], at[2])));
    }
}

KERNEL(pointwise_double, pointwise_arguments) {
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[3];
        nest_offsets(&arguments.nest, i, 3, at);
        store_double(&arguments.out, at[0], evaluate_double(arguments.function, load_double(&arguments.in[0], at[1]), load_double(&arguments.in[1], at[2])));
    }
}

/* ---- integers and bools ---- */

DEVICE int64_t wrap_mul(int64_t x, int64_t y) { return (int64_t)((uint64_t)x * (uint64_t)y); }

/* Negative powers: 1 and -1 have them, other integers give 0. */
DEVICE int64_t integer_power(int64_t x, int64_t y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 == 0 ? 1 : -1) : 0;
    int64_t power = 1;
    for (; y > 0; y /= 2) {
        if (y % 2 != 0) power = wrap_mul(power, x);
        x = wrap_mul(x, x);
    }
    return power;
}

DEVICE int64_t evaluate_integer(int function, int64_t x, int64_t y, int is_bool) {
    switch (function) {
    case POINTWISE_neg: return (int64_t)(0 - (uint64_t)x);
    case POINTWISE_abs: return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
    case POINTWISE_sign: return (x > 0) - (x < 0);
    case POINTWISE_relu: return x < 0 ? 0 : x;
    case POINTWISE_not: return is_bool ? !x : ~x;
    case POINTWISE_isnan:
    case POINTWISE_isinf: return 0;
    case POINTWISE_add: return (int64_t)((uint64_t)x + (uint64_t)y);
    case POINTWISE_sub: return (int64_t)((uint64_t)x - (uint64_t)y);
    case POINTWISE_mul: return wrap_mul(x, y);
    case POINTWISE_floordiv: return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y - (x % y != 0 && (x % y < 0) != (y < 0));
    case POINTWISE_remainder: return y == -1 ? 0 : x % y != 0 && (x % y < 0) != (y < 0) ? x % y + y : x % y;
    case POINTWISE_pow: return integer_power(x, y);
    case POINTWISE_minimum: return x < y ? x : y;
    case POINTWISE_maximum: return x > y ? x : y;
    case POINTWISE_eq: return x == y;
    case POINTWISE_ne: return x != y;
    case POINTWISE_lt: return x < y;
    case POINTWISE_le: return x <= y;
    case POINTWISE_gt: return x > y;
    case POINTWISE_ge: return x >= y;
    case POINTWISE_and: return x & y;
    case POINTWISE_or: return x | y;
    case POINTWISE_xor: return x ^ y;
    default: return x;   /* floor, ceil, round */
    }
}

KERNEL(pointwise_integer, pointwise_arguments) {
    int divides = arguments.function == POINTWISE_floordiv || arguments.function == POINTWISE_remainder;
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[3];
        nest_offsets(&arguments.nest, i, 3, at);
        int64_t x = load_int(&arguments.in[0], at[1]), y = load_int(&arguments.in[1], at[2]), result = 0;
        if (divides && y == 0) fault_raise(&arguments.fault, CUDA_FAULT_DIVISION, x, 0);
        else result = evaluate_integer(arguments.function, x, y, arguments.is_bool);
        store_int(&arguments.out, at[0], result);
    }
}

/* ---- cast and where ---- */

KERNEL(pointwise_cast, pointwise_arguments) {
    const cuda_array *x = &arguments.in[0], *out = &arguments.out;
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[2];
        nest_offsets(&arguments.nest, i, 2, at);
        if (x->format == out->format) {
            copy_element(out, at[0], x, at[1]);
        } else if (is_integer(x->format)) {
            int64_t value = load_int(x, at[1]);
            store_integer(out, at[0], value);
        } else {
            double value = load_double(x, at[1]);
            store_real(out, at[0], value);
        }
    }
}

KERNEL(pointwise_where, pointwise_arguments) {
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[4];
        nest_offsets(&arguments.nest, i, 4, at);
        int from = load_int(&arguments.in[0], at[1]) != 0 ? 1 : 2;
        copy_element(&arguments.out, at[0], &arguments.in[from], at[1 + from]);
    }
}
