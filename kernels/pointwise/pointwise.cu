/* Pointwise ops, cast, where (one thread an element) and chains of them (four), any strides, any format of a byte or more. fp32 for formats of up to 32 bits, each operation
 * rounded on its own; double for f64; int64 for integers, which wrap when they are stored. Resources: no shared memory. Speed: bench/results/h200/plain.md. */
#include "kernels/pointwise/chain_cuda.h"
#include "kernels/pointwise/float.cuh"

/* ---- real numbers ---- */

#define REAL double
#define F(name) name
OP_DEFINE_DIVISIONS(DEVICE, REAL, F)
DEVICE double evaluate_double(int function, double x, double y) {
    switch (function) {
#define OP_REAL1(name, formula) case POINTWISE_##name: return formula;
#define OP_REAL2(name, formula) case POINTWISE_##name: return formula;
#include "op/pointwise.def"
    default: return x;
    }
}
#undef REAL
#undef F

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

OP_DEFINE_POWER(DEVICE)

DEVICE int64_t evaluate_truth(int function, int64_t x, int64_t y) {
    switch (function) {
#define OP_TRUTH1(name, formula) case POINTWISE_##name: return formula;
#define OP_TRUTH2(name, formula) case POINTWISE_##name: return formula;
#include "op/pointwise.def"
    default: return x;
    }
}

DEVICE int64_t evaluate_integer(int function, int64_t x, int64_t y, int is_bool) {
    if (is_bool) return evaluate_truth(function, x, y);
    switch (function) {
#define OP_INTEGER1(name, formula) case POINTWISE_##name: return formula;
#define OP_INTEGER2(name, formula) case POINTWISE_##name: return formula;
#include "op/pointwise.def"
    default: return x;
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

/* ---- chains: a thread takes a few elements that follow each other through all steps ----
 *
 * Between steps a value lies in local memory as what it is computed in: an int64 for integers and bools, the bits of a double for f64, those of a float for all else. */

DEVICE float bits_float(uint64_t bits) { return small_float((int32_t)(uint32_t)bits); }
DEVICE uint64_t float_bits(float value) { return (uint32_t)small_bits(value); }
DEVICE double bits_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
DEVICE uint64_t double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

DEVICE uint64_t load_value(const cuda_array *array, int64_t at) {
    if (is_integer(array->format)) return (uint64_t)load_int(array, at);
    if (array->format == CUDA_f64) return ((const uint64_t *)array->data)[at];
    return float_bits(load_float(array, at));
}
DEVICE void store_value(const cuda_array *array, int64_t at, uint64_t value) {
    if (is_integer(array->format)) store_int(array, at, (int64_t)value);
    else if (array->format == CUDA_f64) ((uint64_t *)array->data)[at] = value;
    else store_float(array, at, bits_float(value));
}

/* Rounded or wrapped as memory of that format would hold it. */
DEVICE uint64_t hold_value(const chain_step *step, uint64_t value) {
    uint64_t element = 0;
    cuda_array one = {(uint64_t)&element, step->format, step->element_bytes};
    store_value(&one, 0, value);
    return load_value(&one, 0);
}

DEVICE uint64_t cast_value(const chain_step *step, uint64_t value) {
    const chain_read *x = &step->in[0];
    uint64_t element = 0;
    cuda_array one = {(uint64_t)&element, step->format, step->element_bytes};
    if (x->format == step->format) return value;
    if (is_integer(x->format)) store_integer(&one, 0, (int64_t)value);
    else store_real(&one, 0, x->format == CUDA_f64 ? bits_double(value) : (double)bits_float(value));
    return load_value(&one, 0);
}

#define EACH(e) for (int e = 0; e < CHAIN_WIDTH; e++)

/* Where the elements of a thread are: those from first on, count of them, stride apart in each array where they lie in one line. Behind the last one it is repeated. */
typedef struct chain_place {
    int64_t first, at[1 + CHAIN_OPERANDS];
    int count, is_line;
} chain_place;

DEVICE int64_t place_offset(const chain_arguments *a, const chain_place *place, int array, int e) {
    int64_t at[1 + CHAIN_OPERANDS];
    if (e >= place->count) e = place->count - 1;
    if (place->is_line) return place->at[array] + e * a->nest.strides[array][a->nest.rank - 1];
    nest_offsets(&a->nest, place->first + e, 1 + a->operands, at);
    return at[array];
}

#define LOAD_EACH(type, value) EACH(e) x[e] = (uint64_t)(int64_t)(((const type *)in->data)[at[e]] value); return
DEVICE void load_values(const cuda_array *in, const int64_t *at, uint64_t *x) {
    switch (in->format) {
    case CUDA_i64: LOAD_EACH(int64_t, );
    case CUDA_i32: LOAD_EACH(int32_t, );
    case CUDA_bool: LOAD_EACH(uint8_t, != 0);
    case CUDA_f32: EACH(e) x[e] = ((const uint32_t *)in->data)[at[e]]; return;
    default: EACH(e) x[e] = load_value(in, at[e]);
    }
}

DEVICE void read_values(const chain_arguments *a, const chain_read *read, const chain_place *place, uint64_t (*results)[CHAIN_WIDTH], uint64_t *x) {
    if (read->kind == CHAIN_OPERAND) {
        int64_t at[CHAIN_WIDTH];
        EACH(e) at[e] = place_offset(a, place, 1 + read->index, e);
        load_values(&a->in[read->index], at, x);
    } else if (read->kind == CHAIN_RESULT) {
        EACH(e) x[e] = results[read->index][e];
    } else {
        EACH(e) x[e] = read->number;
    }
}

/* The frequent functions have their own loop, as the others take longer than to find them. */
#define INTEGER_EACH(name) case POINTWISE_##name: EACH(e) x[e] = (uint64_t)evaluate_integer(POINTWISE_##name, (int64_t)x[e], (int64_t)y[e], is_bool); return
DEVICE void evaluate_integers(const cuda_fault_place *fault, int function, int is_bool, uint64_t *x, const uint64_t *y) {
    switch (function) {
    INTEGER_EACH(add);
    INTEGER_EACH(sub);
    INTEGER_EACH(mul);
    INTEGER_EACH(and);
    INTEGER_EACH(or);
    INTEGER_EACH(eq);
    INTEGER_EACH(lt);
    INTEGER_EACH(le);
    INTEGER_EACH(gt);
    INTEGER_EACH(ge);
    default: EACH(e) x[e] = (uint64_t)evaluate_checked(fault, function, (int64_t)x[e], (int64_t)y[e], is_bool);
    }
}
#define FLOAT_EACH(name) case POINTWISE_##name: EACH(e) x[e] = float_bits(evaluate_float(POINTWISE_##name, bits_float(x[e]), bits_float(y[e]))); return
DEVICE void evaluate_floats(int function, uint64_t *x, const uint64_t *y) {
    switch (function) {
    FLOAT_EACH(add);
    FLOAT_EACH(sub);
    FLOAT_EACH(mul);
    FLOAT_EACH(div);
    default: EACH(e) x[e] = float_bits(evaluate_float(function, bits_float(x[e]), bits_float(y[e])));
    }
}
DEVICE void evaluate_doubles(int function, uint64_t *x, const uint64_t *y) { EACH(e) x[e] = double_bits(evaluate_double(function, bits_double(x[e]), bits_double(y[e]))); }

/* What functions made, in the step's format: a predicate of real numbers made 0 or 1. */
DEVICE void hold_values(const chain_step *step, uint64_t *x) {
    if (step->format == CUDA_f32 || step->format == CUDA_f64 || step->format == CUDA_i64) return;
    if (step->format == CUDA_bool) {
        EACH(e) x[e] = x[e] != 0;
    } else {
        EACH(e) x[e] = hold_value(step, x[e]);
    }
}

DEVICE void run_step(const chain_arguments *a, const chain_step *step, const chain_place *place, uint64_t (*results)[CHAIN_WIDTH], uint64_t *x) {
    uint64_t y[CHAIN_WIDTH], z[CHAIN_WIDTH];
    const int last = step->count - 1;
    read_values(a, &step->in[0], place, results, x);
    read_values(a, &step->in[step->by == CHAIN_WHERE ? 1 : last], place, results, y);
    switch (step->by) {
    case CHAIN_CAST: EACH(e) x[e] = cast_value(step, x[e]); return;
    case CHAIN_WHERE:
        read_values(a, &step->in[2], place, results, z);
        EACH(e) x[e] = x[e] != 0 ? y[e] : z[e];
        return;
    case CHAIN_FLOAT: evaluate_floats(step->function, x, y); break;
    case CHAIN_DOUBLE: evaluate_doubles(step->function, x, y); break;
    default: evaluate_integers(&a->fault, step->function, step->is_bool, x, y);
    }
    hold_values(step, x);
}

KERNEL(pointwise_chain, chain_arguments) {
    const chain_arguments *a = &arguments;
    for (int64_t i = item_first() * CHAIN_WIDTH; i < a->nest.count; i += item_step() * CHAIN_WIDTH) {
        chain_place place;
        uint64_t results[CHAIN_STEPS][CHAIN_WIDTH], made[CHAIN_WIDTH];
        place.first = i;
        place.count = i + CHAIN_WIDTH <= a->nest.count ? CHAIN_WIDTH : (int)(a->nest.count - i);
        place.is_line = a->nest.rank > 0 && i % a->nest.dims[a->nest.rank - 1] + place.count <= a->nest.dims[a->nest.rank - 1];
        nest_offsets(&a->nest, i, 1 + a->operands, place.at);
        for (int k = 0; k < a->count; k++) {
            run_step(a, &a->steps[k], &place, results, made);
            EACH(e) results[k][e] = made[e];
        }
        for (int e = 0; e < place.count; e++) store_value(&a->out, place_offset(a, &place, 0, e), made[e]);
    }
}
