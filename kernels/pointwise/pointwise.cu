/* Pointwise ops, cast, where, and chains of them: one thread an element, any strides, any format of a byte or more. fp32 for formats of up to 32 bits, each operation
 * rounded on its own; double for f64; int64 for integers, which wrap when they are stored. Resources: no shared memory. Speed: not measured. */
#include "kernels/pointwise/chain_cuda.h"
#include "kernels/pointwise/divisions.cuh"

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

/* An integer divided by zero is a fault. */
DEVICE int64_t evaluate_checked(const cuda_fault_place *fault, int function, int64_t x, int64_t y, int is_bool) {
    int divides = function == POINTWISE_floordiv || function == POINTWISE_remainder;
    if (!divides || y != 0) return evaluate_integer(function, x, y, is_bool);
    fault_raise(fault, CUDA_FAULT_DIVISION, x, 0);
    return 0;
}

KERNEL(pointwise_integer, pointwise_arguments) {
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[3];
        nest_offsets(&arguments.nest, i, 3, at);
        int64_t x = load_int(&arguments.in[0], at[1]), y = load_int(&arguments.in[1], at[2]);
        store_int(&arguments.out, at[0], evaluate_checked(&arguments.fault, arguments.function, x, y, arguments.is_bool));
    }
}

/* ---- cast and where ---- */

DEVICE void cast_element(const cuda_array *out, int64_t at_out, const cuda_array *x, int64_t at_x) {
    if (x->format == out->format) {
        copy_element(out, at_out, x, at_x);
    } else if (is_integer(x->format)) {
        int64_t value = load_int(x, at_x);
        store_integer(out, at_out, value);
    } else {
        double value = load_double(x, at_x);
        store_real(out, at_out, value);
    }
}

KERNEL(pointwise_cast, pointwise_arguments) {
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[2];
        nest_offsets(&arguments.nest, i, 2, at);
        cast_element(&arguments.out, at[0], &arguments.in[0], at[1]);
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

/* ---- chains: a thread takes its element through all steps; results between them lie in local memory, in their formats ---- */

/* Where a step reads: an operand, an earlier result or a number, as an array and a place in it. */
DEVICE cuda_array chain_array(const chain_arguments *a, const chain_read *read, const int64_t *offsets, uint64_t *results, uint64_t *number, int64_t *at) {
    *at = 0;
    if (read->kind == CHAIN_OPERAND) {
        *at = offsets[1 + read->index];
        return a->in[read->index];
    }
    *number = read->number;
    cuda_array array = {(uint64_t)(read->kind == CHAIN_RESULT ? &results[read->index] : number), read->format, read->element_bytes};
    return array;
}

DEVICE void chain_element(const chain_arguments *a, const chain_step *step, const int64_t *offsets, uint64_t *results, const cuda_array *out, int64_t at_out) {
    cuda_array in[CHAIN_READS];
    uint64_t numbers[CHAIN_READS];
    int64_t at[CHAIN_READS];
    for (int k = 0; k < step->count; k++) in[k] = chain_array(a, &step->in[k], offsets, results, &numbers[k], &at[k]);
    int last = step->count - 1;
    switch (step->by) {
    case CHAIN_CAST: cast_element(out, at_out, &in[0], at[0]); return;
    case CHAIN_WHERE: {
        int from = load_int(&in[0], at[0]) != 0 ? 1 : 2;
        copy_element(out, at_out, &in[from], at[from]);
        return;
    }
    case CHAIN_FLOAT: store_float(out, at_out, evaluate_float(step->function, load_float(&in[0], at[0]), load_float(&in[last], at[last]))); return;
    case CHAIN_DOUBLE: store_double(out, at_out, evaluate_double(step->function, load_double(&in[0], at[0]), load_double(&in[last], at[last]))); return;
    default: store_int(out, at_out, evaluate_checked(&a->fault, step->function, load_int(&in[0], at[0]), load_int(&in[last], at[last]), step->is_bool));
    }
}

KERNEL(pointwise_chain, chain_arguments) {
    const int last = arguments.count - 1;
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[1 + CHAIN_OPERANDS];
        uint64_t results[CHAIN_STEPS];
        nest_offsets(&arguments.nest, i, 1 + arguments.operands, at);
        for (int k = 0; k < last; k++) {
            const chain_step *step = &arguments.steps[k];
            cuda_array result = {(uint64_t)&results[k], step->format, step->element_bytes};
            chain_element(&arguments, step, at, results, &result, 0);
        }
        chain_element(&arguments, &arguments.steps[last], at, results, &arguments.out, at[0]);
    }
}
